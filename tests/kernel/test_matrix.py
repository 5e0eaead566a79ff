"""The kernel's NFS client on our server: every version on every transport does a day's work, and outlives our server's death.

What is done on each mount is guest/bin/work; guest/connectathon.c has the tests of a file system's rules."""

import subprocess
import tempfile
import unittest

import guest
import project

VERSIONS = ["3", "4.0", "4.1", "4.2"]


def mount(version, transport, *more):
    """Arguments of a mount of the share `data`."""
    if version == "3":
        return guest.nfs(transport, *more)
    port = guest.PORTS["nfs-rdma" if transport == "rdma" else "nfs"]
    return f"-t nfs -o {','.join([f'vers={version}', f'proto={transport}', f'port={port}', *more])} {guest.HOST}:/data"


class Work(unittest.TestCase):
    def work(self, transport):
        names = {f"{transport}-{version}": mount(version, transport) for version in VERSIONS}
        project.work(self, transport, names)

    def test_every_version_over_tcp(self):
        self.work("tcp")

    def test_every_version_over_rdma(self):
        self.work("rdma")


class Deaths(unittest.TestCase):
    """The server is killed twice while data is written that is verified later. Nothing that was acknowledged is lost."""

    FIO = "--name=written --direct=1 --rw=randwrite --bs=16k --size=12M --randseed=7 --fallocate=none --verify=crc32c --verify_fatal=1"

    def die(self, transport):
        for version in VERSIONS:
            with self.subTest(version=version), tempfile.TemporaryDirectory(prefix="weft-state-") as state:
                # Slow enough to be caught in the act; then everything is read back.
                job = f"""
                mount {mount(version, transport)} /mnt || exit 1
                fio --directory=/mnt --ioengine=libaio --iodepth=8 --rate=,1500k {self.FIO} > /tmp/fio 2>&1 || {{ cat /tmp/fio; exit 2; }}
                umount /mnt || exit 3
                """
                with guest.serving("--state-dir", state) as server, guest.Guest(job) as machine:
                    file = server.folder / "written.0.0"
                    for megabytes in [2, 6]:
                        written = lambda: file.exists() and file.stat().st_blocks * 512 > megabytes << 20
                        guest.eventually(f"{megabytes} MiB are written", written)
                        self.assertIsNone(machine.process.poll(), machine.report())
                        server.crash()
                        server.start()
                    self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])
                    # The host reads the same.
                    seen = ["fio", f"--directory={server.folder}", "--ioengine=psync", "--verify_only", *self.FIO.split()]
                    judged = subprocess.run(seen, capture_output=True, text=True, cwd=state)
                    self.assertEqual(judged.returncode, 0, judged.stdout + judged.stderr)

    def test_a_death_while_written_to_over_tcp(self):
        self.die("tcp")

    def test_a_death_while_written_to_over_rdma(self):
        self.die("rdma")


if __name__ == "__main__":
    unittest.main()
