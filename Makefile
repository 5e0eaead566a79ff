# `make` lists the targets.

CARGO ?= cargo
WEFT  := target/release/weft

.PHONY: help build demo test deps fmt-check lint unit interop docs man test-kernel test-smbtorture bench-demo bench-rdma bench-peers bench-smb bench-nfs clean

help:
	@echo "make demo         build, serve a ramdisk on loopback, sweep READ and WRITE over TCP, iWARP and shm, write report.html"
	@echo "make test         everything that CI runs (as root it installs the Debian packages that it needs)"
	@echo "make man          the manual pages, in target/man"
	@echo "make test-kernel  against the Linux kernel's iWARP, SMB Direct and NFS/RDMA in a QEMU guest (Debian 12; builds it first)"
	@echo "make test-smbtorture  Samba's own tests of SMB, beside what Debian's smbd passes of them"
	@echo "make build        the release binary, $(WEFT)"
	@echo "make bench-demo   the demo with its bounds judged: exits non-zero and names the line that falls short"
	@echo "make bench-rdma   iWARP beside plain TCP, shared memory beside memcpy, 1,000 connections: bounds judged likewise"
	@echo "make bench-peers  SMB READ beside Debian's smbd, same independent client (installs samba)"
	@echo "make bench-smb    the same for READ and WRITE, plain, signed, encrypted, from a folder and from memory"
	@echo "make bench-nfs    NFSv3 READ and WRITE beside Debian's NFS-Ganesha, same independent client (installs nfs-ganesha)"

build:
	$(CARGO) build --release --locked -p weft

demo: build
	$(WEFT) demo --out report.html --json report.json

test: deps fmt-check lint unit docs build interop
	@echo "all of make test passed"

deps:
	bash tests/interop/deps.sh

fmt-check:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Simulated pairs of iWARP queue pairs: about a minute of one core.
unit:
	WEFT_SEEDS=10000 $(CARGO) test --workspace --locked

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

interop: build
	/usr/bin/python3 -m unittest discover -v -s tests/interop -t tests/interop

man: build
	$(WEFT) man target/man

# The guest is built once, in target/lab, from Debian packages: some three minutes and the network. Only tests/kernel/deps.sh wants
# root, and only where a package is missing; the tests run in a network namespace of their own, with or without root.
test-kernel: build
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	bash tests/kernel/run.sh

# Samba's test suite: some ten minutes. SUITES="smb2.lock smb2.lease" runs those alone.
test-smbtorture: build
	bash tests/smbtorture/run.sh $(SUITES)

bench-demo: build
	$(WEFT) demo --gate --out report.html --json report.json

bench-rdma: build
	$(WEFT) rdma bench --gate --json bench-rdma.json

bench-peers: build
	bash tests/peers/run.sh smb --first

# A quarter of an hour.
bench-smb: build
	bash tests/peers/run.sh smb

bench-nfs: build
	bash tests/peers/run.sh nfs

clean:
	$(CARGO) clean
	rm -f report.html report.json bench-rdma.json
