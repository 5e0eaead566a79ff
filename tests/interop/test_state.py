"""The state directory over versions of the program: what earlier ones wrote is read and migrated, and what is newer, cut off,
something else, or another user's is treated as docs/state.md says, with the file's name and what to do.

state/FORMAT.tar.xz are state directories as versions of the program left them. When a format changes, record another one with
the program that still writes the old one: WEFT_BINARY=FILE /usr/bin/python3 test_state.py state/NUMBER.tar.xz"""

import os
import pathlib
import shutil
import struct
import sys
import tarfile
import tempfile
import unittest

import nfs4
import test_persistent
import test_replica
import weft

RECORDED = pathlib.Path(__file__).resolve().parent / "state"
PASSWORD = "recorded"
# The instances in the names of recorded journals: servers have other ports when the tests run.
INSTANCES = {"smb": "127.0.0.1_4450", "nfs": "127.0.0.1_2049"}


def serving(state, ports, *more, folder):
    options = ["--state-dir", state, "--continuous-availability", "data", "--volume", "vol1", "--volume", "vol2", "--nbd-port", 0, "--replica"]
    return weft.Server(folder, *options, *more, ports=ports)


def record(state, folder):
    """Leaves a state directory that has everything: users, volumes, a group, a persistent handle, an NFS client with an open
    file. Returns the ports of the server."""
    def weft_with(*command, **more):
        return weft.run(weft.WEFT, *command, "--state-dir", state, **more)

    weft_with("user", "add", "alice", "--group", "team", password=PASSWORD)
    for volume in ["vol1", "vol2"]:
        weft_with("volume", "create", volume, "--size", "1M", "--ram")
    ports = {"smb": weft.free_port(), "nfs": weft.free_port()}
    data = folder / "data"
    data.mkdir()
    client = test_persistent.Persistent("test_a_server_that_ends_under_a_writer")
    client.setUp()
    server, partner = serving(state, ports, folder=data), None
    try:
        partner = test_replica.Host(folder, "partner", {"vol2": 1 << 20})
        to = ["127.0.0.1", "--smb-port", partner.ports["smb"], "--user", weft.USER]
        weft_with("replica", "create", "vol2", *to, "--group", "group1")
        share = client.connect(server)
        client.open(share, client.ask())
        nfs4.Client(ports["nfs"], "recorded").open("data", "other", 3, 0)
    finally:
        server.crash()
        if partner:
            partner.crash()
        client.doCleanups()
    shutil.rmtree(state / "run")
    return ports


def renamed(state, before, after):
    """Journals with the ports of another server in their names."""
    for protocol in INSTANCES:
        (state / f"{protocol}-{before[protocol]}.redb").rename(state / f"{protocol}-{after[protocol]}.redb")


def at(ports):
    return {protocol: f"127.0.0.1_{ports[protocol]}" for protocol in INSTANCES}


def nobodys(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def archive(path):
    """Records a state directory."""
    with tempfile.TemporaryDirectory(prefix="weft-state-") as folder:
        folder = pathlib.Path(folder)
        state = folder / "state"
        renamed(state, at(record(state, folder)), INSTANCES)
        with tarfile.open(path, "w:xz") as out:
            out.add(state, ".", filter=nobodys)


class Versions(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-state-")))
        self.state, self.data = self.folder / "state", self.folder / "data"
        self.data.mkdir()

    def start(self, ports, *more):
        server = serving(self.state, ports, *more, folder=self.data)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def test_what_every_version_left_is_read(self):
        recorded = sorted(RECORDED.glob("*.tar.xz"))
        self.assertGreaterEqual(len(recorded), 2)
        for path in recorded:
            with self.subTest(format=path.name):
                shutil.rmtree(self.state, ignore_errors=True)
                with tarfile.open(path) as content:
                    content.extractall(self.state)
                self.state.chmod(0o700)
                ports = {"smb": weft.free_port(), "nfs": weft.free_port()}
                renamed(self.state, INSTANCES, at(ports))
                for run in range(2):
                    server = self.start(ports)
                    said = server.log_text()
                    migrated = said.count("migrated from format")
                    self.assertEqual(migrated, 2 if path.name.startswith("1.") and run == 0 else 0, said)
                    self.assertNotIn("its record cannot be read", said)
                    self.assertEqual([volume["name"] for volume in server.ready["volumes"]], ["vol1", "vol2"])
                    weft.smbclient(server, "ls", user="alice", password=PASSWORD)
                    # Its file is not in this folder.
                    self.assertEqual("lost a persistent handle of tester on data" in said, run == 0, said)
                    # An NFS client that had state is waited for: others get nothing meanwhile.
                    client = nfs4.Client(ports["nfs"], f"new{run}")
                    self.assertEqual(client.open("data", "new", 3, 0)[0], "GRACE")
                    client.hang_up()
                    self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].endswith(".tar.xz"):
        archive(sys.argv[1])
    else:
        unittest.main()
