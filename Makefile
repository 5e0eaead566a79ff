# `make` lists the targets.

CARGO ?= cargo
WEFT  := target/release/weft

.PHONY: help build demo test deps fmt-check lint unit interop docs man test-kernel test-smbtorture bench-demo bench-rdma bench-peers bench-smb bench-scale bench-nfs bench-check bench-papers sim test-replica test-abuse test-fresh bench-replica fuzz clean

help:
	@echo "make demo         build, serve a ramdisk on loopback, sweep READ and WRITE over TCP, iWARP and shm, write report.html"
	@echo "make test         everything that CI runs (as root it installs the Debian packages that it needs)"
	@echo "make man          the manual pages, in target/man"
	@echo "make sim          servers, clients, disks, network and clocks in one simulation: SEED=17 repeats one, SEEDS=0..10000 runs many"
	@echo "make test-kernel  against the Linux kernel's iWARP, SMB Direct and NFS/RDMA in a QEMU guest (Debian 12; builds it first)"
	@echo "make test-replica  volumes replicated under a Linux guest and PostgreSQL, their server killed (wants the guest of test-kernel)"
	@echo "make test-abuse   floods, slow and vanished clients, wrong passwords, a full disk, on every port, while two clients work, REPEAT=3 (wants root)"
	@echo "make test-fresh   make demo and make test in a bare Debian 12 root (wants root, debootstrap and half an hour)"
	@echo "make fuzz         the fuzzers that execute what they are given, by coverage, MINUTES=60 in turns, JOBS=1 at a time; corpora in fuzz/corpus (installs cargo-fuzz)"
	@echo "make test-smbtorture  Samba's own tests of SMB, beside what Debian's smbd passes of them"
	@echo "make build        the release binary, $(WEFT)"
	@echo "make bench-demo   the demo with its bounds judged: exits non-zero and names the line that falls short"
	@echo "make bench-rdma   iWARP beside plain TCP, shared memory beside memcpy, 1,000 connections: bounds judged likewise"
	@echo "make bench-peers  SMB READ beside Debian's smbd, same independent client (installs samba)"
	@echo "make bench-smb    the same for READ and WRITE, plain, signed, encrypted, from a folder and from memory"
	@echo "make bench-scale  1,000 connections, 10,000 opens, a million notify events, a folder of 100,000: memory, latency, limits"
	@echo "make bench-check  weft bench beside independent loaders, against smbd and Ganesha: within 5% (on a quiet machine)"
	@echo "make bench-papers the white papers' pictures on this machine: JSON, page, and their claims one by one, in docs/results"
	@echo "make bench-replica  first copy beside raw RDMA Writes and beside a file copy over TCP; latency of synchronous writes"
	@echo "make bench-nfs    NFSv3 READ and WRITE beside Debian's NFS-Ganesha, same independent client (installs nfs-ganesha); then NFS/RDMA beside NFS/TCP"

build:
	$(CARGO) build --release --locked -p weft

demo: build
	$(WEFT) demo --out report.html --json report.json

# One after another whatever -j says, and each with its seconds. Documentation uses what lint has checked. The release build runs
# beside the checks: it uses another folder of target, and neither keeps two cores busy all the time.
test:
	@start=$$(date +%s); told=; \
	step() { began=$$(date +%s); $(MAKE) --no-print-directory $$1 || exit; told="$$told $$1 $$(($$(date +%s) - began))"; }; \
	step deps; step fmt-check; \
	$(MAKE) --no-print-directory build & build=$$!; trap "kill $$build 2>/dev/null" EXIT; \
	step lint; step docs; step unit; \
	wait $$build || exit; trap - EXIT; \
	step interop; \
	echo "all of make test passed in $$(($$(date +%s) - start)) s:$$told"

deps:
	bash tests/interop/deps.sh

fmt-check:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Simulated pairs of iWARP queue pairs: about a minute of one core. What fails here can be seen again: property tests begin at
# this seed, where cargo test alone takes a new one each time. Lint has built the examples, and no documentation holds code that runs.
unit: SEED ?= 20261122
unit:
	WEFT_SEEDS=10000 PROPTEST_RNG_SEED=$(SEED) $(CARGO) test --workspace --lib --bins --tests --locked

# The first 200 seeds are part of `unit`. A seed that fails prints its last events, and repeats them.
sim: SEED ?=
sim: SEEDS ?= $(or $(SEED),0..10000)
sim:
	$(CARGO) run --release --locked -p weft-sim -- $(SEEDS)

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Several tests at a time, then one by one those that measure; both halves run. JOBS=8 runs so many at a time.
interop: build
	/usr/bin/python3 -m pytest tests/interop -n auto -m "not alone"; first=$$?; \
	/usr/bin/python3 -m pytest tests/interop -m alone && exit $$first

man: build
	$(WEFT) man target/man

# The guest is built once, in target/lab, from Debian packages: some three minutes and the network. Only tests/kernel/deps.sh wants
# root, and only where a package is missing; the tests run in a network namespace of their own, with or without root.
# JOBS=3 runs so many guests at a time.
test-kernel: build
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	bash tests/kernel/run.sh

# The short stories of replication are part of `interop`; these boot the guest of test-kernel.
test-replica: build
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	PATH=$$PATH:/usr/sbin:/sbin /usr/bin/python3 -m unittest discover -v -s tests/replica -t tests/replica

# Twenty minutes on a quiet machine, 40 minutes at most; 10 minutes with REPEAT=1. Its table is that of docs/security.md.
test-abuse: REPEAT ?= 3
test-abuse: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/abuse/abuse.py --repetitions $(REPEAT)

# By hand before each release.
test-fresh:
	bash tests/fresh/run.sh

# Samba's test suite: some ten minutes. SUITES="smb2.lock smb2.lease" runs those alone.
test-smbtorture: build
	bash tests/smbtorture/run.sh $(SUITES)

# TARGETS="smb_server" runs that one alone. On a finding it exits non-zero and says how to see it again.
fuzz: MINUTES ?= 60
fuzz: JOBS ?= 1
fuzz:
	/usr/bin/python3 fuzz/run.py --minutes $(MINUTES) --jobs $(JOBS) $(TARGETS)

bench-demo: build
	$(WEFT) demo --gate --out report.html --json report.json

bench-rdma: build
	$(WEFT) rdma bench --gate --json bench-rdma.json

bench-peers: build
	bash tests/peers/run.sh smb --first

# A quarter of an hour. The second half wants nobody else's server: SMB Direct over shared memory beside SMB/TCP, and encrypted
# beside the cipher alone. Both halves run, whatever the first one finds.
bench-smb: build
	$(CARGO) build --release --locked -p weft-smb --example aead
	bash tests/peers/run.sh smb; first=$$?; /usr/bin/python3 tests/peers/direct.py && exit $$first

# Some minutes; wants 20,000 descriptors (ulimit -Hn).
bench-scale: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/peers/scale.py

# The second half wants nobody else's server: NFS/RDMA over shared memory beside NFS/TCP, by `weft bench`. Both halves run.
bench-nfs: build
	bash tests/peers/run.sh nfs; first=$$?; /usr/bin/python3 tests/peers/rdma.py && exit $$first

# Some ten minutes. Does our loader measure what others measure?
bench-check: build
	bash tests/peers/run.sh check

bench-replica: build
	/usr/bin/python3 tests/replica/bench.py --gate

# Ten minutes on two cores; wants a quiet machine.
bench-papers: build
	bash docs/results/measure.sh

clean:
	$(CARGO) clean
	rm -f report.html report.json bench-rdma.json
