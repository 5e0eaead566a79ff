"""The space of a deleted or replaced file becomes free, whoever deletes it: otherwise nothing else would fit on a
file system of 8 MiB."""

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import time
import unittest

import nfs4
import weft
from test_across import Nfs, Nfs3
from test_nfs import libnfs

SIZE = 1 << 20
SAVES = 12


@contextlib.contextmanager
def small_disk():
    """A tmpfs of 8 MiB, named like the share."""
    with tempfile.TemporaryDirectory(prefix="weft-space-") as folder:
        at = pathlib.Path(folder) / "data"
        at.mkdir()
        weft.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", at)
        try:
            yield at
        finally:
            weft.run("umount", "--lazy", at)


def used(path):
    s = os.statvfs(path)
    return (s.f_blocks - s.f_bfree) * s.f_frsize


@unittest.skipUnless(os.geteuid() == 0, "mounting a tmpfs needs root")
class Space(unittest.TestCase):
    def setUp(self):
        self.disk = self.enterContext(small_disk())
        self.server = weft.Server(self.disk)
        self.addCleanup(self.server.stop)
        local = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-local-"))
        self.source = weft.random_file(os.path.join(local, "document"), SIZE)

    def assert_used(self, files, seconds=0):
        """The disk holds this many documents and little else, now or soon."""
        until = time.monotonic() + seconds
        while used(self.disk) >= (files + 1) * SIZE and time.monotonic() < until:
            time.sleep(1)
        self.assertGreaterEqual(used(self.disk), files * SIZE)
        self.assertLess(used(self.disk), (files + 1) * SIZE)

    def test_saving_as_an_editor_does_by_smb(self):
        for _ in range(SAVES):
            weft.smbclient(self.server, f"put {self.source} new; rename new document -f")
        self.assert_used(1)
        self.assertTrue(weft.same(self.source, self.disk / "document"))
        weft.smbclient(self.server, "del document")
        self.assert_used(0)

    def test_what_nfs_has_read_is_replaced_by_smb(self):
        for _ in range(SAVES):
            weft.smbclient(self.server, f"put {self.source} new; rename new document -f")
            weft.run("nfs-cat", libnfs(self.server, "document"))
        self.assert_used(1)

    def test_what_is_written_by_nfs_is_deleted_by_smb(self):
        for _ in range(SAVES):
            weft.run("nfs-cp", self.source, libnfs(self.server, "document"))
            weft.smbclient(self.server, "del document")
        self.assert_used(0)

    def test_what_is_deleted_and_replaced_by_nfs(self):
        """By REMOVE and RENAME of version 3 and 4, of files that both versions have used."""
        nfs3 = Nfs3(self.server.ready)
        self.addCleanup(nfs3.end)
        weft.run("nfs-cp", self.source, libnfs(self.server, "document"))
        for _ in range(SAVES):
            weft.run("nfs-cp", self.source, libnfs(self.server, "other"))
            weft.smbclient(self.server, "get document /dev/null; get other /dev/null")
            nfs3.begin("document")
            self.assertEqual(nfs3.replace(), "ok")
            self.assert_used(1)
        self.assertTrue(weft.same(self.source, self.disk / "document"))
        new = Nfs(self.server.ready["nfs_port"], "space")
        self.addCleanup(new.end)
        for side in [new, nfs3]:
            side.begin("document")
            self.assertEqual(side.remove(), "ok")
            self.assert_used(0)
            weft.run("nfs-cp", self.source, libnfs(self.server, "document"))
            weft.smbclient(self.server, "get document /dev/null")

    def test_a_copy_that_finds_no_space_leaves_none_taken(self):
        large = weft.random_file(self.source + ".large", 12 << 20)
        newer = f"nfs://127.0.0.1:{self.server.ready['nfs_port']}/data/large?vers=4.1"
        for url in [newer, self.server.nfs_url("large"), self.server.url("large")]:
            for command in [["cp", large, url], ["put", url]]:
                with self.subTest(url=url, command=command[0]), open(large, "rb") as bytes:
                    done = weft.run(weft.WEFT, *command, check=False, stdin=bytes)
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stderr, "NOSPC|no space left on the server")
                    self.assertEqual(list(self.disk.iterdir()), [])
                    self.assert_used(0)

    def test_new_content_that_finds_no_space_to_take_its_place_stays(self):
        large = weft.random_file(self.source + ".large", 5 << 20)
        weft.random_file(self.disk / "kept", SIZE)
        partial = self.disk / ".kept.weft-partial"
        url = self.server.url("kept")
        for command in [["cp", large, url], ["put", url]]:
            with self.subTest(command=command[0]), open(large, "rb") as bytes:
                done = weft.run(weft.WEFT, *command, check=False, stdin=bytes)
                self.assertEqual(done.returncode, 1)
                self.assertIn("the new content is in .kept.weft-partial", done.stderr)
                self.assertTrue(weft.same(large, partial))

    def test_a_download_that_finds_no_space_names_the_local_file(self):
        """The full disk is the local one: the message must not send users to the server or to its file."""
        with weft.serving() as server:
            weft.random_file(pathlib.Path(server.folder) / "large", 12 << 20)
            newer = f"nfs://127.0.0.1:{server.ready['nfs_port']}/data/large?vers=4.1"
            for url in [newer, server.nfs_url("large"), server.url("large")]:
                for command in [["cp", url, self.disk / "copy"], ["cp", "--resume", url, self.disk / "copy"]]:
                    with self.subTest(url=url, command=command[1]):
                        done = weft.run(weft.WEFT, *command, "-q", check=False)
                        self.assertEqual(done.returncode, 1)
                        [line] = done.stderr.splitlines()
                        self.assertTrue(line.startswith(f"weft: {self.disk}/copy: No space left on device"), line)
                        self.assertIn(f"df -h {self.disk} ", line)
                        for partial in self.disk.iterdir():
                            partial.unlink()
            folder = server.url("", "data").rstrip("/")
            done = weft.run(weft.WEFT, "sync", "-q", folder, self.disk, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"weft: destination {self.disk}/large: No space left on device", done.stderr)
            with open(self.disk / "piped", "wb") as out:
                command = [weft.WEFT, "cat", server.url("large")]
                environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
                done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
            self.assertRegex(done.stderr, "^weft: standard output: No space left on device")

    def test_what_both_know_is_deleted_and_replaced_on_the_host(self):
        for n in range(3):
            weft.smbclient(self.server, f"put {self.source} file{n}")
            weft.run("nfs-cat", libnfs(self.server, f"file{n}"))
        os.remove(self.disk / "file0")
        os.replace(self.disk / "file1", self.disk / "file2")
        self.assert_used(1, seconds=60)
        weft.smbclient(self.server, "ls")
        self.assert_used(1)

    def test_large_streams_go_with_their_file(self):
        """The disk has no room for the streams of a second file, so each round needs the space of the previous one."""
        client = nfs4.Client(self.server.ready["nfs_port"], "space")
        self.addCleanup(client.hang_up)

        def by_nfs():
            # Read it there, too: the server keeps a file open for a while after a read.
            attribute = [*client.walk("data", "file"), nfs4.words(nfs4.OPENATTR, 0)]
            attribute.append(nfs4.words(nfs4.LOOKUP) + nfs4.opaque(b"one"))
            read = nfs4.words(nfs4.READ) + nfs4.ANONYMOUS + bytes(8) + nfs4.words(4096)
            reply = client.run(*attribute, read)
            for op in (nfs4.PUTROOTFH, nfs4.LOOKUP, nfs4.LOOKUP, nfs4.OPENATTR, nfs4.LOOKUP, nfs4.READ):
                client.check(reply, op)
            reply = client.run(*client.walk("data"), nfs4.words(nfs4.REMOVE) + nfs4.opaque(b"file"))
            for op in (nfs4.PUTROOTFH, nfs4.LOOKUP, nfs4.REMOVE):
                client.check(reply, op)

        empty = self.source + ".empty"
        with open(empty, "wb"):
            pass
        ways = {
            "SMB": (lambda: weft.smbclient(self.server, "del file"), 0),
            "NFS": (by_nfs, 0),
            "a program": (lambda: os.remove(self.disk / "file"), 60),
            "a rename over it": (lambda: weft.smbclient(self.server, f"put {empty} new; rename new file -f"), 0),
        }
        for who, (delete, seconds) in ways.items():
            with self.subTest(who=who):
                streams = "; ".join(f"put {self.source} file:{name}" for name in ("one", "two", "three", "four"))
                weft.smbclient(self.server, streams)
                self.assert_used(4)
                delete()
                self.assert_used(0, seconds)

    def test_a_file_system_inside_of_the_share_has_small_streams_alone(self):
        inner = self.disk / "inner"
        inner.mkdir()
        weft.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", inner)
        self.addCleanup(weft.run, "umount", "--lazy", inner)
        small = self.source + ".small"
        with open(small, "wb") as out:
            out.write(b"a few bytes")
        weft.smbclient(self.server, f"put {small} inner/file:small")
        for name in ("one", "two"):
            said = weft.smbclient(self.server, f"put {self.source} inner/file:{name}", check=False)
            self.assertIn("NT_STATUS_DISK_FULL", said)
        self.assertEqual(len([line for line in self.server.faults() if "on device" in line]), 1)
        weft.smbclient(self.server, f"get inner/file:small {small}.back")
        self.assertTrue(weft.same(small, small + ".back"))
        self.assertFalse((self.disk / ".weft-streams").exists())


class Ram(unittest.TestCase):
    """Files of a ramdisk may use a quarter of the descriptors, so a client that fills it excludes nobody."""

    def test_many_small_files_and_few_descriptors(self):
        from impacket.smbconnection import SMBConnection

        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        def logged_on():
            peer = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=port)
            peer.login(weft.USER, weft.PASSWORD)
            return peer, peer.connectTree("ram")

        with tempfile.TemporaryDirectory() as work:
            command = [weft.WEFT, "serve", "--ram", "ram=64M", "--user", weft.USER, "--json", "--smb-port", "0", "--smbd-port", "0"]
            environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_STATE_DIR=f"{work}/state")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, preexec_fn=limit, text=True)
            try:
                ready = json.loads(process.stdout.readline())
                port = ready["smb_port"]
                peer, tree = logged_on()
                before = len(os.listdir(f"/proc/{ready['pid']}/fd"))
                for number in range(240):
                    file = peer.createFile(tree, f"f{number}")
                    peer.writeFile(tree, file, b"x")
                    peer.closeFile(tree, file)
                self.assertLess(len(os.listdir(f"/proc/{ready['pid']}/fd")), before + 256 // 4 + 5)
                # All of these have their file open at the same time.
                others = [logged_on() for _ in range(8)]
                self.assertEqual(len(peer.listPath("ram", "f*")), 240)
                for number in range(240):
                    other, _ = others[number % len(others)]
                    other.deleteFile("ram", f"f{number}")
                self.assertEqual(peer.listPath("ram", "*")[2:], [])
            finally:
                process.terminate()
                process.wait(30)
                process.stdout.close()


if __name__ == "__main__":
    unittest.main()
