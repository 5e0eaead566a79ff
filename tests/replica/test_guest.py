"""A Linux guest whose disk is a replicated volume: what its kernel and its programs were promised is on the copy when the
server under it is killed. Wants the guest of tests/kernel (see its run.sh); LAB says where it was built."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "interop"), str(ROOT / "tests" / "kernel")]

import guest  # noqa: E402
import test_replica  # noqa: E402
import weft  # noqa: E402

MIB = 1 << 20
# Writes files one after the other and says of each, when it is durable, what is in it. Something else writes without pause.
JOB = r"""
set -e
mkdir -p /disk; mount -t ext4 /dev/vdb /disk
(while :; do dd if=/dev/urandom of=/disk/noise bs=64k count=64 conv=notrunc,fsync status=none || break; done) &
n=0
while :; do
    n=$((n + 1)); mkdir -p /disk/d$((n % 7))
    head -c $((n * 3571 % 90000 + 1)) /dev/urandom > /disk/d$((n % 7))/f$n
    sync /disk/d$((n % 7))/f$n /disk/d$((n % 7)) || exit 0
    set -- $(md5sum /disk/d$((n % 7))/f$n)
    echo "synced d$((n % 7))/f$n $1"
done
"""


# Everything that PostgreSQL needs is in /lab/pg, as the host has it. One client says what was committed, others make a noise.
POSTGRES = pathlib.Path("/usr/lib/postgresql/15")
POSTGRES_JOB = r"""
set -e
pg=/usr/lib/postgresql/15/bin
mkdir -p /disk; mount -t ext4 /dev/vdb /disk
mkdir -p /lab/pg/dev /lab/pg/disk; mount --bind /dev /lab/pg/dev; mount --bind /disk /lab/pg/disk
run() { chroot --userspec=65534:65534 /lab/pg "$@"; }
run $pg/postgres -D /disk/data -k /disk/data -c listen_addresses= -c dynamic_shared_memory_type=mmap 2> /lab/postgres.log &
until run $pg/pg_isready -q -h /disk/data; do sleep 0.5; done
echo "postgres is up"
run $pg/pgbench -n -h /disk/data -U nobody -c 2 -T 1000 postgres > /dev/null 2>&1 &
for n in $(seq 100000); do echo "insert into log values ($n);"; echo "\\echo committed $n"; done |
    run $pg/psql -q -X -h /disk/data -U nobody postgres || true
"""


class Killed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-replica-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.hosts = []
        self.addCleanup(self.end)

    def end(self):
        for host in self.hosts:
            if host.process.poll() is None:
                host.crash()

    def pair(self, size, *content):
        """Two servers; the volume of the first has an ext4, and is being copied to the second."""
        image = self.folder / "image"
        subprocess.run(["truncate", "-s", str(size), image], check=True)
        weft.run("mkfs.ext4", "-q", "-F", *content, image)
        self.hosts = [test_replica.Host(self.folder, name, {"vol1": size}) for name in ["here", "there"]]
        here, there = self.hosts
        weft.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, here.uri("vol1"))
        here.replica("create", "vol1", *there.to("vol1"), "--log-size", "64M")
        return here, there

    def copy(self, there):
        """An image of the promoted copy, its journal replayed as a mount would; after that there is nothing to mend."""
        there.replica("switch", "vol1", "--failover")
        copy = self.folder / "copy"
        weft.run("nbdcopy", there.uri("vol1"), copy)
        replayed = weft.run("e2fsck", "-p", copy, check=False)
        self.assertIn(replayed.returncode, [0, 1], replayed.stdout + replayed.stderr)
        weft.run("e2fsck", "-f", "-n", copy)
        return copy

    def test_every_synced_file_is_on_the_promoted_copy(self):
        here, there = self.pair(256 * MIB)
        synced = {}
        with guest.Guest(JOB, drives=[here.uri("vol1")]) as linux:

            def listen(count):
                while len(synced) < count:
                    line = linux.line()
                    self.assertIsNotNone(line, linux.report())
                    if line.startswith("synced "):
                        _, name, digest = line.split()
                        synced[name] = digest

            # Some while the first copy is being made, some when the copy follows.
            listen(5)
            here.wait_until_following()
            listen(len(synced) + 60)
            here.crash()
        copy = self.copy(there)
        for name, digest in synced.items():
            held = subprocess.run(["debugfs", "-R", f"cat /{name}", copy], capture_output=True, check=True).stdout
            self.assertEqual(hashlib.md5(held).hexdigest(), digest, name)
        print(f"{len(synced)} synced files are on the copy", file=sys.stderr)

    def as_nobody(self, *command, **more):
        """Runs a program of PostgreSQL, which refuses to be root."""
        command = [str(word) for word in ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]]
        return subprocess.run(command, check=True, text=True, cwd="/", **more)

    @unittest.skipUnless(POSTGRES.exists() and os.geteuid() == 0, "wants root and Debian's postgresql-15")
    def test_every_committed_transaction_is_on_the_promoted_copy(self):
        self.folder.chmod(0o755)
        tree = self.folder / "tree"
        tree.mkdir()
        shutil.chown(tree, 65534, 65534)
        data = tree / "data"
        programs = POSTGRES / "bin"
        self.as_nobody(
            programs / "initdb", "-D", data, "-U", "nobody", "-A", "trust", "--locale=C", "-E", "SQL_ASCII", "-N",
            stdout=subprocess.DEVNULL,
        )

        def postgres(directory):
            return lambda action: self.as_nobody(
                programs / "pg_ctl", "-D", directory, "-w", "-l", directory / "log", "-o",
                f"-k {directory} -c listen_addresses=", action, stdout=subprocess.DEVNULL,
            )

        control = postgres(data)
        control("start")
        try:
            psql = [programs / "psql", "-q", "-X", "-A", "-t", "-U", "nobody", "postgres", "-h"]
            self.as_nobody(*psql, data, "-c", "create table log (n int primary key)")
            self.as_nobody(programs / "pgbench", "-i", "-q", "-h", data, "-U", "nobody", "postgres", capture_output=True)
        finally:
            control("stop")
        here, there = self.pair(512 * MIB, "-d", tree)
        committed = 0
        with guest.Guest(POSTGRES_JOB, drives=[here.uri("vol1")], seconds=900) as linux:
            self.root_for(linux.folder / "pg", ["postgres", "psql", "pgbench", "pg_isready"])

            def listen(count):
                nonlocal committed
                while committed < count:
                    line = linux.line()
                    self.assertIsNotNone(line, linux.report())
                    if line.startswith("committed "):
                        committed = int(line.split()[1])

            listen(5)
            here.wait_until_following()
            listen(committed + 50)
            here.crash()
        copy = self.copy(there)
        held = self.folder / "held"
        held.mkdir()
        subprocess.run(["debugfs", "-R", f"rdump /data {held}", copy], capture_output=True, check=True)
        subprocess.run(["chown", "-R", "65534:65534", held], check=True)
        subprocess.run(["chmod", "-R", "u=rwX,go=", held / "data"], check=True)
        (held / "data" / "postmaster.pid").unlink(missing_ok=True)
        control = postgres(held / "data")
        control("start")
        try:
            found = self.as_nobody(*psql, held / "data", "-c", "select count(*), max(n) from log", capture_output=True).stdout
            sums = self.as_nobody(
                *psql, held / "data", "-c",
                "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)",
                capture_output=True,
            ).stdout.strip()
        finally:
            control("stop")
        count, last = map(int, found.strip().split("|"))
        # No hole, and no less than was said to be committed; the answer to one more may have been lost.
        self.assertEqual(count, last)
        self.assertGreaterEqual(last, committed)
        # What pgbench's transactions have changed fits together.
        self.assertIn(sums, ["t", ""])
        print(f"{committed} transactions were committed, {last} are on the copy", file=sys.stderr)

    @staticmethod
    def root_for(root, programs):
        """A folder in which these programs of PostgreSQL run."""
        root.mkdir()
        shutil.copytree(POSTGRES, root / POSTGRES.relative_to("/"), symlinks=True)
        for folder in ["/usr/share/postgresql/15", "/usr/share/zoneinfo"]:
            shutil.copytree(folder, root / folder[1:], symlinks=True)
        (root / "etc").mkdir()
        (root / "etc" / "passwd").write_text("nobody:x:65534:65534::/:/bin/sh\n")
        (root / "tmp").mkdir(mode=0o1777)
        for program in programs:
            said = subprocess.run(["ldd", POSTGRES / "bin" / program], capture_output=True, text=True, check=True).stdout
            for library in re.findall(r"(/\S+) \(0x", said):
                there = root / library[1:]
                there.parent.mkdir(parents=True, exist_ok=True)
                if not there.exists():
                    shutil.copy(library, there)


if __name__ == "__main__":
    unittest.main()
