"""A file system that does not answer blocks only the clients that use it: its calls wait on worker threads, not on a
core."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import fuse
import weft
from test_endings import until

ENVIRONMENT = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
SLOW = b"it was slow\n" * 1000
# A separate file for each question, because data that was read stays in memory.
FILES = {name: SLOW for name in ["lookup", "open", "read", "flush"]} | {"sub": {}}
TREE = {"file": SLOW, "sub": {"inside": b"x"}, "nfs": FILES, "smb": FILES}


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class Blocking(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-blocking-")))
        self.folder, self.state = self.work / "data", self.work / "state"
        self.folder.mkdir()

    def mount(self, point):
        return self.enterContext(fuse.Mount(point, TREE))

    def serve(self):
        # One core, so that a blocking call would stop everything.
        server = weft.Server(self.folder, "--cores", "1", "--state-dir", self.state)
        self.addCleanup(self.end, server)
        weft.run(weft.WEFT, "put", server.url("here", "ram"), input="quick\n")
        return server

    def end(self, server):
        if server.process.poll() is None:
            server.process.kill()
            server.end()
        server.log.unlink()

    def start(self, *command):
        """A client that will wait."""
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=ENVIRONMENT,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def others_are_answered(self, server, slow):
        """Runs while the file system waits for the test."""
        for url in [server.url, server.nfs_url]:
            self.assertIn("here", weft.run(weft.WEFT, "ls", url("", "ram"), timeout=60).stdout)
            self.assertEqual(weft.run(weft.WEFT, "cat", url("here", "ram"), timeout=60).stdout, "quick\n")
        self.assertIn("ram", weft.run(weft.WEFT, "status", "--state-dir", self.state, timeout=60).stdout)
        self.assertTrue(slow.is_holding(), "it was answered before")

    def test_whoever_asks_a_hung_file_system_waits_alone(self):
        slow = self.mount(self.folder)
        server = self.serve()
        asks = {
            "lookup": (fuse.LOOKUP, "cat", "lookup"),
            "getattr": (fuse.GETATTR, "ls", "sub/"),
            "open": (fuse.OPEN, "cat", "open"),
            "opendir": (fuse.OPENDIR, "ls", ""),
            "readdir": (fuse.READDIR, "ls", ""),
            "read": (fuse.READ, "cat", "read"),
            "flush": (fuse.FLUSH, "cat", "flush"),
        }
        for what, (operation, command, path) in asks.items():
            for protocol, url in [("nfs", server.nfs_url), ("smb", server.url)]:
                if (what, protocol) == ("flush", "nfs"):
                    # The server keeps the file open for the next request.
                    continue
                with self.subTest(holds=what, protocol=protocol):
                    slow.hold(operation)
                    name = path and f"{protocol}/{path}"
                    client = self.start(weft.WEFT, command, url(name))
                    slow.wait_until_held()
                    self.others_are_answered(server, slow)
                    slow.release()
                    said, why = client.communicate(timeout=60)
                    self.assertEqual(client.returncode, 0, why)
                    if command == "cat":
                        self.assertEqual(said.encode(), SLOW)

    def test_whoever_changes_a_hung_file_system_waits_alone(self):
        slow = self.mount(self.folder)
        server = self.serve()
        asks = {
            "statfs": (fuse.STATFS, "dir"),
            "setattr": (fuse.SETATTR, "put /etc/hostname file"),
            "write": (fuse.WRITE, "put /etc/hostname file"),
            "flush": (fuse.FLUSH, "put /etc/hostname file"),
        }
        for what, (operation, command) in asks.items():
            with self.subTest(holds=what):
                slow.hold(operation)
                client = self.start(
                    "smbclient", "//127.0.0.1/data", "-p", server.smb_port, "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", command
                )
                slow.wait_until_held()
                self.others_are_answered(server, slow)
                slow.release()
                said, why = client.communicate(timeout=60)
                self.assertEqual((client.returncode, "NT_STATUS" in said + why), (0, False), said + why)
        self.assertEqual((self.folder / "file").read_text(), pathlib.Path("/etc/hostname").read_text())

    def test_a_mount_below_a_share_leaves_the_rest_of_the_share_alone(self):
        (self.folder / "local").write_text("quick\n")
        points = [self.folder / "before", self.folder / "after"]
        for point in points:
            point.mkdir()
        before = self.mount(points[0])
        server = self.serve()
        after = self.mount(points[1])
        for slow, point in [(before, "before"), (after, "after")]:
            with self.subTest(mounted=point):
                slow.hold(fuse.LOOKUP, fuse.GETATTR)
                client = self.start(weft.WEFT, "ls", server.url(f"{point}/sub/"))
                slow.wait_until_held()
                for url in [server.url, server.nfs_url]:
                    self.assertEqual(weft.run(weft.WEFT, "cat", url("local"), timeout=60).stdout, "quick\n")
                self.others_are_answered(server, slow)
                slow.release()
                said, why = client.communicate(timeout=60)
                self.assertEqual(client.returncode, 0, why)
                self.assertIn("inside", said)

    def test_a_mount_that_hangs_is_listed_without_attributes_and_the_rest_with_them(self):
        """Nobody could list the folder. Nothing ends a call to this file system, and its root is all that is asked for."""
        (self.folder / "local").write_text("quick\n")
        (self.folder / "hung").mkdir()
        slow = self.enterContext(fuse.Mount(self.folder / "hung", TREE, heeds_interrupts=False))
        server = self.serve()
        # Its descriptors are kept, and everything is asked again.
        slow.hold(fuse.LOOKUP, fuse.GETATTR, fuse.OPENDIR, fuse.READDIR, fuse.STATFS)
        try:
            clients = {
                "weft, SMB": (weft.WEFT, "ls", server.url("")),
                "smbclient": ("smbclient", "//127.0.0.1/data", "-p", server.smb_port, "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", "ls"),
                # NFS clients would look up the one name without attributes, and wait for that.
            }
            for turn in range(2):
                for name, command in clients.items():
                    with self.subTest(client=name, turn=turn):
                        begun = time.monotonic()
                        client = self.start(*command)
                        said, why = client.communicate(timeout=60)
                        took = time.monotonic() - begun
                        self.assertEqual(client.returncode, 0, why)
                        self.assertRegex(said, "local")
                        self.assertRegex(said, "hung")
                        self.assertLess(took, 20)
            self.others_are_answered(server, slow)
            for url in [server.url, server.nfs_url]:
                self.assertEqual(weft.run(weft.WEFT, "cat", url("local"), timeout=60).stdout, "quick\n")
            # A client that goes into it waits alone.
            client = self.start(weft.WEFT, "ls", server.url("hung/"))
            self.others_are_answered(server, slow)
        finally:
            slow.release()
        said, why = client.communicate(timeout=60)
        self.assertEqual(client.returncode, 0, why)
        self.assertIn("file", said)
        said = weft.run("smbclient", "//127.0.0.1/data", "-p", server.smb_port, "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", "ls").stdout
        self.assertRegex(said, r"hung +D ")

    def test_a_client_that_hangs_goes_and_the_server_ends(self):
        slow = self.mount(self.folder)
        server = self.serve()
        slow.hold(fuse.LOOKUP, fuse.GETATTR)
        clients = [self.start(weft.WEFT, "cat", url("file")) for url in [server.url, server.nfs_url]]
        slow.wait_until_held()

        def protocols():
            said = weft.run(weft.WEFT, "status", "--state-dir", self.state, "--json", timeout=60).stdout
            return {connection["protocol"] for connection in json.loads(said)["servers"][0]["connections"]}

        until(lambda: protocols() == {"smb", "nfs"})
        for client in clients:
            client.kill()
            client.wait()
        # The NFS open stays until its calls have ended.
        until(lambda: "smb" not in protocols())
        self.assertTrue(slow.is_holding())
        self.start(weft.WEFT, "cat", server.url("file"))
        self.others_are_answered(server, slow)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(), 0)
