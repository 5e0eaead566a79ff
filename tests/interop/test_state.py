"""The state directory over versions of the program: what earlier ones wrote is read and migrated, and what is newer, cut off,
something else, or another user's is treated as docs/state.md says, with the file's name and what to do.

state/FORMAT.tar.xz are state directories as versions of the program left them. When a format changes, record another one with
the program that still writes the old one: WEFT_BINARY=FILE /usr/bin/python3 test_state.py state/NUMBER.tar.xz"""

import os
import pathlib
import shutil
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


# Journals of an earlier format: both in the first, and only that of SMB in the others.
MIGRATED = {"1": 2, "2": 1, "3": 1}


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


def newer(path):
    path.write_text(path.read_text().replace("version = 1\n", "version = 9\n"))


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def something_else(path):
    path.write_bytes(b"something else " * 4096)


def emptied(path):
    os.truncate(path, 0)


def opened(path):
    path.chmod(0o644)


def piped(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def anothers(path):
    os.chown(path, 65534, 65534)


JOURNAL = "is damaged .*; to start without its content, move it away"
PIPE = r": it is a FIFO, not a regular file: move it away"
EMPTY = "is empty, as a full disk or a crash leaves a file"
LOCKED = r"do not open with \S+users.key \({}\), so they cannot log on: alice\. Restore the key, or .*weft user passwd --new-key alice"
VOLUME = "ERROR volume vol1 is not served: the metadata of the volume, .*vol1.volume, is unusable: {}. Restore its file"
# What happens to a file, whether the server starts, and what it says of it. docs/state.md shows the same.
STARTS, REFUSES = True, False
FATES = {
    "users.toml": {
        newer: (REFUSES, "it has version 9, and this program knows version 1: use the weft that wrote it"),
        cut: (REFUSES, "users.toml: it has no version: restore the file from a backup; if there is none, move it away"),
        something_else: (REFUSES, "users.toml: "),
        emptied: (REFUSES, "users.toml: it is empty: restore the file from a backup; if there is none, move it away"),
        pathlib.Path.unlink: (STARTS, "users.toml is missing, although there is its key: restore it from a backup, or add the users again"),
        opened: (STARTS, "users.toml was open to other users; it is closed now"),
        piped: (REFUSES, "users.toml" + PIPE),
    },
    "users.key": {
        cut: (STARTS, LOCKED.format("it does not have 32 bytes")),
        something_else: (STARTS, LOCKED.format("it does not have 32 bytes")),
        emptied: (STARTS, LOCKED.format("it does not have 32 bytes")),
        pathlib.Path.unlink: (STARTS, LOCKED.format("it is missing")),
        opened: (STARTS, "users.key was open to other users; it is closed now"),
        piped: (REFUSES, "users.key" + PIPE),
    },
    "nfs-handles.key": {
        cut: (REFUSES, "does not hold 16 bytes: restore it from a backup, or move it away, which makes mounts stale"),
        something_else: (REFUSES, "does not hold 16 bytes: restore it from a backup, or move it away, which makes mounts stale"),
        emptied: (STARTS, EMPTY),
        pathlib.Path.unlink: (STARTS, "WARN .*nfs-handles.key is missing, although there is state of NFS clients: a new key is made, and all NFS mounts become stale"),
        opened: (STARTS, "nfs-handles.key was open to other users; it is closed now"),
        piped: (REFUSES, "nfs-handles.key" + PIPE),
    },
    "nfs-*.redb": {
        cut: (REFUSES, JOURNAL),
        something_else: (REFUSES, JOURNAL),
        emptied: (STARTS, EMPTY),
        pathlib.Path.unlink: (STARTS, None),
        opened: (STARTS, "was open to other users; it is closed now"),
        piped: (REFUSES, "redb" + PIPE),
    },
    "smb-*.redb": {
        cut: (REFUSES, JOURNAL),
        something_else: (REFUSES, JOURNAL),
        emptied: (STARTS, EMPTY),
        pathlib.Path.unlink: (STARTS, None),
        opened: (STARTS, "was open to other users; it is closed now"),
        piped: (REFUSES, "redb" + PIPE),
    },
    "volumes/vol1.volume": {
        cut: (STARTS, VOLUME.format("it is truncated")),
        something_else: (STARTS, VOLUME.format("it is truncated|it is not the metadata of a volume")),
        emptied: (STARTS, VOLUME.format("it is truncated")),
        pathlib.Path.unlink: (REFUSES, 'there is no volume "vol1"; `weft volume list` lists the volumes'),
        opened: (STARTS, None),
        piped: (STARTS, "ERROR volume vol1 is not served: .*vol1.volume" + PIPE),
    },
}


class Versions(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-state-")))
        self.state, self.data = self.folder / "state", self.folder / "data"
        self.data.mkdir()

    def unpack(self, path):
        """The state directory is what was recorded; returns ports that fit it."""
        shutil.rmtree(self.state, ignore_errors=True)
        with tarfile.open(path) as content:
            content.extractall(self.state)
        self.state.chmod(0o700)
        ports = {"smb": weft.free_port(), "nfs": weft.free_port()}
        renamed(self.state, INSTANCES, at(ports))
        return ports

    def start(self, ports, *more):
        server = serving(self.state, ports, *more, folder=self.data)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def test_what_every_version_left_is_read(self):
        recorded = sorted(RECORDED.glob("*.tar.xz"))
        self.assertGreaterEqual(len(recorded), 2)
        for path in recorded:
            with self.subTest(format=path.name):
                ports = self.unpack(path)
                for run in range(2):
                    server = self.start(ports)
                    said = server.log_text()
                    migrated = said.count("migrated from format")
                    self.assertEqual(migrated, MIGRATED.get(path.name.split(".")[0], 0) if run == 0 else 0, said)
                    self.assertNotIn("its record cannot be read", said)
                    self.assertEqual([volume["name"] for volume in server.ready["volumes"]], ["vol1", "vol2"])
                    weft.smbclient(server, "help", share="IPC$", user="alice", password=PASSWORD)
                    # Its file is not in this folder.
                    self.assertEqual("lost a persistent handle of tester on data" in said, run == 0, said)
                    # An NFS client that had state is waited for: others get nothing meanwhile.
                    client = nfs4.Client(ports["nfs"], f"new{run}")
                    self.assertEqual(client.open("data", "new", 3, 0)[0], "GRACE")
                    client.hang_up()
                    self.assertEqual(server.stop(), 0)

    def test_what_is_not_as_it_was_written_is_named_with_what_to_do(self):
        newest = max(RECORDED.glob("*.tar.xz"), key=lambda path: int(path.name.split(".")[0]))
        for name, fates in FATES.items():
            for happens, (starts, says) in fates.items():
                with self.subTest(file=name, happens=happens.__name__):
                    ports = self.unpack(newest)
                    [path] = self.state.glob(name)
                    happens(path)
                    if starts:
                        server = self.start(ports)
                        said = server.log_text()
                        if happens is opened and not name.startswith("volumes/"):
                            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
                        self.assertEqual(server.stop(), 0)
                    else:
                        before = path.read_bytes() if path.is_file() else None
                        with self.assertRaises(RuntimeError) as refused:
                            self.start(ports)
                        said = str(refused.exception)
                        self.assertEqual(path.read_bytes() if path.is_file() else None, before, "it is not changed")
                    if says is None:
                        self.assertFalse([line for line in said.splitlines() if path.name in line and ("WARN" in line or "ERROR" in line)], said)
                    else:
                        self.assertRegex(said, says)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to run as another user")
    def test_files_of_another_user_are_refused_by_a_server_without_root(self):
        newest = max(RECORDED.glob("*.tar.xz"), key=lambda path: int(path.name.split(".")[0]))
        self.folder.chmod(0o755)
        for name in ["users.toml", "users.key", "nfs-handles.key", "nfs-*.redb", "smb-*.redb"]:
            with self.subTest(file=name):
                ports = self.unpack(newest)
                for path in [self.data, self.state, *self.state.rglob("*")]:
                    anothers(path)
                [path] = self.state.glob(name)
                os.chown(path, 0, 0)
                more = ["--state-dir", self.state, "--continuous-availability", "data", "--smb-port", ports["smb"], "--smbd-port", 0, "--nfs-port", ports["nfs"]]
                program = self.folder / "weft"
                shutil.copy(weft.WEFT, program)
                done = weft.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "serve", self.data, "--user", weft.USER, *more,
                                check=False, timeout=30)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"{path}: Permission denied", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].endswith(".tar.xz"):
        archive(sys.argv[1])
    else:
        unittest.main()
