# `make` lists the targets.

CARGO ?= cargo
WEFT  := target/release/weft

.PHONY: help build quick demo deb test-install test-container test-tasks test-systemd test-reproducible test deps fmt-check lint unit interop instructions docs man test-kernel test-smbtorture bench-demo bench-rdma bench-peers bench-smb bench-scale bench-cores bench-team bench-nfs bench-admin bench-instructions bench-before bench-check bench-papers sim test-replica test-ceph test-reload test-restart test-abuse test-fresh bench-replica fuzz clean

help:
	@echo "make demo         build, serve a ramdisk on loopback, sweep READ and WRITE over TCP, iWARP and shm, write report.html"
	@echo "make test         run everything that CI runs (as root it installs the necessary Debian packages)"
	@echo "make man          write the manual pages to target/man"
	@echo "make sim          run servers, clients, disks, network and clocks in one simulation: SEED=17 repeats one, SEEDS=0..10000 runs many"
	@echo "make test-kernel  interoperate with the Linux kernel's iWARP, SMB Direct and NFS/RDMA in a QEMU guest (Debian 12; builds it first)"
	@echo "make test-replica  replicate volumes under a Linux guest and PostgreSQL, and kill their server (builds the guest of test-kernel)"
	@echo "make test-ceph    serve images of a Ceph cluster on loopback: suite of blocks, NBD, locks, failures (installs Debian's Ceph)"
	@echo "make test-reload  reload the configuration of a server 500 times while clients copy over SMB and NFS; RELOADS=2000"
	@echo "make test-restart  restart and kill a server while Linux's cifs and NFSv4 and QEMU's NBD write and verify (builds the guest of test-kernel); RESTARTS=10"
	@echo "make test-abuse   floods, slow and vanished clients, wrong passwords, a full disk, on every port, while two clients work; REPEAT=3 (needs root)"
	@echo "make test-fresh   run make demo and make test in a bare Debian 12 root (needs root, debootstrap and half an hour)"
	@echo "make fuzz         run the executing fuzzers, coverage-guided, MINUTES=60 in turns, JOBS=1 at a time; corpora in fuzz/corpus (installs cargo-fuzz)"
	@echo "make test-smbtorture  run Samba's SMB tests against weft, and against Debian's smbd for comparison"
	@echo "make deb          make the Debian package, target/deb/weft_*.deb (installs debhelper)"
	@echo "make test-install  install the package in a bare Debian 12 root, use, upgrade and purge it (needs root and debootstrap)"
	@echo "make test-container  run the file system of packaging/Containerfile without privileges, and without an engine (needs root and debootstrap)"
	@echo "make test-tasks   carry out the commands of docs/tasks in bare Debian 12 roots (needs root and debootstrap)"
	@echo "make test-systemd  use the units of the package on an emulated Debian 12 with systemd (needs root and debootstrap; builds the guest of test-kernel)"
	@echo "make test-reproducible  build the package twice, in other folders and surroundings, and compare the two byte by byte"
	@echo "make build        build the release binary, $(WEFT)"
	@echo "make quick        build an optimised binary for day-to-day work, target/quick/weft: after a change, in a part of the time"
	@echo "make bench-demo   run the demo and check its bounds: exits non-zero and names the line that falls short; then the floor beside it"
	@echo "make bench-rdma   compare iWARP with plain TCP, shared memory with memcpy, and run 1,000 connections; checks bounds likewise"
	@echo "make bench-peers  compare SMB READ with Debian's smbd, by the same independent client (installs samba)"
	@echo "make bench-smb    SMB READ and WRITE, plain, signed, encrypted, of folders and of memory, beside the floor and the best peer; OPTIONS='--match signed --size 8192', CHIMERA=FILE for another peer"
	@echo "make bench-before compare SMB and NFS with an older version of weft, BESIDE=FILE, by the same independent clients"
	@echo "make bench-scale  1,000 connections, 10,000 opens, a million notify events, a folder of 100,000: memory, latency, limits"
	@echo "make bench-cores  processor time of the server per READ and WRITE with 1, 2, 4 and 8 serving threads, by shared memory and TCP"
	@echo "make bench-team   200 users, 50 shares, 2,000 connections: memory, latency of log-ons, reload; beside Debian's smbd (installs samba)"
	@echo "make bench-check  check that weft bench agrees with independent loaders within 5%, against smbd and Ganesha (on a quiet machine)"
	@echo "make bench-papers measure the white papers' pictures on this machine: JSON, page, and each claim, in docs/results"
	@echo "make bench-replica  compare the first copy with raw RDMA Writes and with a file copy over TCP; latency of synchronous writes, beside a floor"
	@echo "make bench-admin  the cost of the admin server, scraped every second: at rest and under load, below 1 % (on a quiet machine)"
	@echo "make bench-instructions  instructions and allocations of the server per READ, WRITE, RDMA Send and replicated WRITE (installs valgrind)"
	@echo "make bench-nfs    READ and WRITE of NFSv3, 4.0 and 4.1 beside the floor and the best peer, OPTIONS as in bench-smb; then NFS/RDMA beside NFS/TCP"

build:
	$(CARGO) build --release --locked -p weft

quick:
	$(CARGO) build --profile quick --locked -p weft

# SOURCE_DATE_EPOCH is the time of its files; the default is that of the commit.
deb:
	bash packaging/deb.sh

demo: build
	$(WEFT) demo --out report.html --json report.json

# The steps run one after another, even with -j, and each is timed. Documentation reuses what lint has checked. The
# interoperability tests run the binary that the unit tests have built: it is not optimised, and checks all arithmetic.
test:
	@start=$$(date +%s); told=; \
	step() { began=$$(date +%s); $(MAKE) --no-print-directory $$@ || exit; told="$$told $$1 $$(($$(date +%s) - began))"; }; \
	step deps; step fmt-check; step lint; step docs; step unit; \
	step interop WEFT_BINARY=$(CURDIR)/target/debug/weft; \
	step instructions; \
	echo "all of make test passed in $$(($$(date +%s) - start)) s:$$told"

deps:
	bash tests/interop/deps.sh

fmt-check:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Includes simulated pairs of iWARP queue pairs and simulated replicas: a minute of one core; WEFT_SEEDS=10000 runs more.
# Failures are reproducible: property tests begin at this seed, while plain cargo test takes a new one each time. Lint has
# built the examples, and no documentation contains code that runs.
unit: SEED ?= 20261122
unit: WEFT_SEEDS ?= 4000
unit:
	WEFT_SEEDS=$(WEFT_SEEDS) PROPTEST_RNG_SEED=$(SEED) $(CARGO) test --workspace --lib --bins --tests --locked

# The first 200 seeds are part of `unit`. A seed that fails prints its last events, and repeats them.
sim: SEED ?=
sim: SEEDS ?= $(or $(SEED),0..10000)
sim:
	$(CARGO) run --release --locked -p weft-sim -- $(SEEDS)

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# Several tests at a time, then the tests that measure one by one; both halves run even if one fails. WEFT_BINARY=FILE
# tests another binary than the release build; JOBS=8 runs eight tests at a time.
interop: $(if $(WEFT_BINARY),,build)
	export WEFT_BINARY=$(WEFT_BINARY); \
	/usr/bin/python3 -m pytest tests/interop -n auto -m "not alone"; first=$$?; \
	/usr/bin/python3 -m pytest tests/interop -m alone && exit $$first

# What an operation costs the server, counted by callgrind, against the bounds of tests/instructions/bounds.toml. CI has no release build, so
# this counts the debug program: of that only calls (allocations, locks, atomic operations, clocks) are figures, its instructions show changes.
instructions:
	/usr/bin/python3 tests/instructions/count.py --build debug --binary $(CURDIR)/target/debug/weft --short

man: build
	$(WEFT) man target/man

# The guest is built once, in target/lab, from Debian packages: this takes about three minutes and needs the network.
# Only tests/kernel/deps.sh needs root, and only if a package is missing; the tests run in a network namespace of their
# own, with or without root. JOBS=3 runs three guests at a time.
test-kernel: build
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	bash tests/kernel/run.sh

# The short replication tests are part of `interop`; these boot the guest of test-kernel.
test-replica: build
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	PATH=$$PATH:/usr/sbin:/sbin /usr/bin/python3 -m unittest discover -v -s tests/replica -t tests/replica

# Some minutes. TESTS="blocks NBD images" selects parts.
test-ceph: build
	bash tests/interop/deps.sh
	bash tests/ceph/deps.sh
	/usr/bin/python3 -u tests/ceph/suite.py $(TESTS)

# A few minutes. The test of `interop` reloads 20 times.
test-reload: RELOADS ?= 500
test-reload: build
	bash tests/interop/deps.sh
	RELOADS=$(RELOADS) /usr/bin/python3 -m pytest -s tests/interop/test_reload.py -k disturb_no_load

# Ten minutes; prints the longest operation of each client. WEFT_OLDER=FILE names a program of an older version, which is then upgraded under load, too. The short restart tests are part of `interop`.
test-restart: RESTARTS ?= 3
test-restart: build
	bash tests/interop/deps.sh
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	RESTARTS=$(RESTARTS) /usr/bin/python3 -m pytest -s tests/interop/test_restart.py tests/interop/test_state.py
	RESTARTS=$(RESTARTS) bash tests/kernel/run.sh test_restart

# Twenty minutes on a quiet machine, 40 minutes at most; 10 minutes with REPEAT=1. docs/security.md shows its table.
test-abuse: REPEAT ?= 3
test-abuse: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/abuse/abuse.py --repetitions $(REPEAT)

# Run by hand before each release.
test-fresh:
	bash tests/fresh/run.sh

# The package of `make deb`, or PACKAGE=FILE. A minute, and another for the root, which is made once in target/lab. Not part of `make
# test`, because the release build takes longer than that.
test-install: $(if $(PACKAGE),,deb)
	bash tests/install/run.sh $(PACKAGE)

# The same for packaging/Containerfile. Half a minute.
test-container: $(if $(PACKAGE),,deb)
	bash tests/install/run.sh container $(PACKAGE)

# The same for the pages of docs/tasks. A minute.
test-tasks: $(if $(PACKAGE),,deb)
	bash tests/install/run.sh tasks $(PACKAGE)

# The package's units where systemd runs them. Five minutes.
test-systemd: $(if $(PACKAGE),,deb)
	bash tests/kernel/deps.sh
	bash tests/kernel/guest/build.sh
	bash tests/install/systemd.sh $(PACKAGE)

# Two release builds from nothing. What is committed is built.
test-reproducible:
	bash tests/install/reproduce.sh

# Samba's test suite: about ten minutes. SUITES="smb2.lock smb2.lease" runs only those.
test-smbtorture: build
	bash tests/smbtorture/run.sh $(SUITES)

# TARGETS="smb_server" runs only that fuzzer. On a finding it exits non-zero and says how to reproduce it.
fuzz: MINUTES ?= 60
fuzz: JOBS ?= 1
fuzz:
	/usr/bin/python3 fuzz/run.py --minutes $(MINUTES) --jobs $(JOBS) $(TARGETS)

bench-demo: build
	rm -f report.json; $(WEFT) demo --gate --out report.html --json report.json; first=$$?; \
	[ -e report.json ] && /usr/bin/python3 tests/peers/demo.py report.json && exit $$first

bench-rdma: build
	$(WEFT) rdma bench --gate --json bench-rdma.json

bench-peers: build
	bash tests/peers/run.sh smb --first

# Three quarters of an hour on a quiet machine. On Debian 12 the peers are those of Debian 13, in a root directory of their own
# (tests/peers/root.sh: some minutes, once); PEERS=host takes the host's. CHIMERA=FILE is Chimera's program, built from its public
# repository, and becomes a peer. OPTIONS="--client go-smb2 --size 8192 --repetitions 1 --json FILE"
# is a short run that keeps all figures. The second half compares our own server with itself: SMB Direct over shared memory with
# SMB/TCP, and encrypted transfers with the cipher alone. Both halves run, even if the first one fails; with OPTIONS only the first.
bench-smb: build
	$(if $(OPTIONS),,$(CARGO) build --release --locked -p weft-smb --example aead)
	bash tests/peers/run.sh smb $(if $(CHIMERA),--chimera $(abspath $(CHIMERA))) $(OPTIONS); first=$$?; $(if $(OPTIONS),,/usr/bin/python3 tests/peers/direct.py &&) exit $$first

# BESIDE=FILE names a binary of an older version. Both halves run, even if the first one fails.
bench-before: build
	@test -x "$(BESIDE)" || { echo "name the binary of the older version: make bench-before BESIDE=FILE" >&2; exit 2; }
	bash tests/peers/run.sh smb --beside "$(realpath $(BESIDE))"; first=$$?; \
	bash tests/peers/run.sh nfs --beside "$(realpath $(BESIDE))" && exit $$first

# A few minutes; needs 20,000 descriptors (ulimit -Hn).
bench-scale: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/peers/scale.py

bench-cores: build
	/usr/bin/python3 tests/peers/cores.py

# A minute on two cores, as root. OUT=FILE writes the tables.
bench-team: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/peers/team.py $(if $(OUT),--out $(OUT))

# Three quarters of an hour; PEERS, OPTIONS and CHIMERA as in bench-smb. The second half compares our own server with itself: NFS/RDMA over shared
# memory with NFS/TCP, by `weft bench`. Both halves run, even if the first one fails; with OPTIONS only the first.
bench-nfs: build
	bash tests/peers/run.sh nfs $(if $(CHIMERA),--chimera $(abspath $(CHIMERA))) $(OPTIONS); first=$$?; $(if $(OPTIONS),,/usr/bin/python3 tests/peers/rdma.py &&) exit $$first

# Two minutes on a quiet machine; another bound than 1 % would not be worth a run.
bench-admin: build
	bash tests/peers/run.sh admin --repetitions 15

# About ten minutes. Checks that our loader measures the same as others.
bench-check: build
	bash tests/peers/run.sh check

# Needs no quiet machine: nothing is timed. WHERE=20 prints the 20 functions with the most instructions of each line, MATCH="SMB READ" runs
# only lines whose name contains that.
bench-instructions: WHERE ?= 0
bench-instructions: build
	bash tests/interop/deps.sh
	/usr/bin/python3 tests/instructions/count.py --build release --binary $(CURDIR)/$(WEFT) --where $(WHERE) --match "$(MATCH)"

bench-replica: build
	/usr/bin/python3 tests/replica/bench.py --gate

# Ten minutes on two cores; needs a quiet machine.
bench-papers: build
	bash docs/results/measure.sh

clean:
	$(CARGO) clean
	rm -f report.html report.json bench-rdma.json
