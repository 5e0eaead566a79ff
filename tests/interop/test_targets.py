"""Targets of copies: devices, pipes and links stay what they are, and a replaced file keeps its attributes, locally
and on the server."""

import json
import os
import pathlib
import socket
import stat
import subprocess
import tempfile
import threading
import time
import unittest

import weft

CONTENT = b"the new content\n"


class Targets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = weft.serving()
        cls.server = cls.context.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-targets-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.there = self.server.folder
        (self.there / "source").write_bytes(CONTENT)

    def cp(self, *arguments, **more):
        return weft.run(weft.WEFT, "cp", *arguments, **more)

    def down(self, target, **more):
        return self.cp(self.server.url("source"), target, **more)

    def attributed(self, path):
        """A file with everything that a copy can lose."""
        path.write_bytes(b"an older and much longer content " * 50_000)
        os.setxattr(path, "user.comment", b"mine")
        weft.run("setfacl", "-m", "u:4711:rw", path)
        os.chown(path, 1234, 4321)
        os.utime(path, (1, 1))
        return self.attributes(path)

    @staticmethod
    def attributes(path):
        s = os.stat(path)
        names = [name for name in os.listxattr(path) if not name.startswith("security.")]
        return (
            oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, {name: os.getxattr(path, name) for name in names},
        )

    def test_device(self):
        null = self.work / "null"
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        said = self.down(null).stdout
        self.assertTrue(stat.S_ISCHR(os.stat(null).st_mode))
        self.assertIn("not verified", said)
        # Through a link to it, too.
        (self.work / "link").symlink_to(null)
        self.down(self.work / "link")
        self.assertTrue((self.work / "link").is_symlink())
        self.assertTrue(stat.S_ISCHR(os.stat(null).st_mode))
        self.assertEqual(sorted(os.listdir(self.work)), ["link", "null"])

    def test_fifo(self):
        fifo = self.work / "fifo"
        os.mkfifo(fifo)
        got = []
        reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
        reader.start()
        self.down(fifo)
        reader.join()
        self.assertEqual(got, [CONTENT])
        self.assertTrue(fifo.is_fifo())

    def test_a_fifo_that_nobody_reads(self):
        fifo = self.work / "fifo"
        os.mkfifo(fifo)
        environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
        waiting = subprocess.Popen(
            [weft.WEFT, "cp", self.server.url("source"), fifo], env=environment, stderr=subprocess.PIPE, text=True
        )
        # The first line describes the connection; after that, the command waits for a reader.
        waiting.stderr.readline()
        waiting.terminate()
        begun = time.monotonic()
        self.assertNotEqual(waiting.wait(timeout=30), 0)
        self.assertLess(time.monotonic() - begun, 5)
        waiting.stderr.close()

    def test_socket(self):
        path = self.work / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            done = self.down(path, check=False)
        self.assertIn("is a socket", done.stderr)
        self.assertNotEqual(done.returncode, 0)
        self.assertTrue(path.is_socket())

    def test_standard_output_and_input(self):
        self.assertEqual(self.down("-").stdout.encode(), CONTENT)
        done = self.cp("-q", "--json", self.server.url("source"), "-")
        self.assertEqual(done.stdout.encode(), CONTENT)
        self.assertEqual(json.loads(done.stderr)["bytes"], len(CONTENT))
        done = self.cp("-", self.server.url("from-input"), input="what was piped")
        self.assertEqual((self.there / "from-input").read_text(), "what was piped")
        # For a folder as its target a pipe has no file name.
        done = self.cp("-", self.server.url(""), input="x", check=False)
        self.assertIn("name the file", done.stderr)
        self.assertNotIn("-", os.listdir(os.getcwd()))

    def test_symbolic_links(self):
        (self.work / "far").mkdir()
        file = self.work / "far" / "file"
        file.write_bytes(b"old")
        (self.work / "link").symlink_to("far/file")
        (self.work / "dangling").symlink_to("far/made")
        self.down(self.work / "link")
        self.down(self.work / "dangling")
        self.assertTrue((self.work / "link").is_symlink() and (self.work / "dangling").is_symlink())
        self.assertEqual((file.read_bytes(), (self.work / "far" / "made").read_bytes()), (CONTENT, CONTENT))

    def test_what_is_replaced_here(self):
        for options in [[], ["--resume"]]:
            path = self.work / "file"
            before = self.attributed(path)
            self.cp(*options, self.server.url("source"), path)
            self.assertEqual(path.read_bytes(), CONTENT)
            self.assertEqual(self.attributes(path), before)
            self.assertGreater(os.stat(path).st_mtime, 1)
            self.assertEqual(os.listdir(self.work), ["file"])

    def test_sync_here(self):
        before = self.attributed(self.work / "source")
        (self.work / "behind").write_bytes(b"old")
        (self.there / "sub").mkdir()
        (self.there / "sub" / "link").write_bytes(CONTENT)
        (self.there / "sub" / "pipe").write_bytes(CONTENT)
        (self.work / "sub").mkdir()
        (self.work / "sub" / "link").symlink_to("../behind")
        os.mkfifo(self.work / "sub" / "pipe")
        done = weft.run(weft.WEFT, "sync", self.server.url(""), self.work, check=False)
        self.assertEqual(self.attributes(self.work / "source"), before)
        self.assertEqual((self.work / "source").read_bytes(), CONTENT)
        # A server, which chooses names, must not choose the target of a local link.
        self.assertEqual((self.work / "behind").read_bytes(), b"old")
        self.assertTrue((self.work / "sub" / "link").is_symlink())
        self.assertIn("sub/link: a symbolic link, device or FIFO is in the way", done.stderr)
        # It does not wait for a reader of the pipe, and reports that it left the pipe out.
        self.assertTrue((self.work / "sub" / "pipe").is_fifo())
        self.assertIn("sub/pipe: a symbolic link, device or FIFO is in the way", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_hard_links_here(self):
        path, other = self.work / "file", self.work / "other"
        before = self.attributed(path)
        os.link(path, other)
        done = self.down(path)
        self.assertIn("written in place", done.stderr)
        self.assertEqual((path.read_bytes(), other.read_bytes()), (CONTENT, CONTENT))
        self.assertEqual(self.attributes(other)[:3], before[:3])
        self.assertEqual(sorted(os.listdir(self.work)), ["file", "other"])

    def as_nobody(self, *arguments):
        """Runs weft as a user other than root."""
        return weft.run(
            "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", weft.WEFT, "cp", *arguments,
            check=False,
        )

    def test_folders_and_files_of_others(self):
        self.work.chmod(0o755)
        path = self.work / "file"
        path.write_bytes(b"old")
        path.chmod(0o666)
        # The folder takes no temporary file.
        done = self.as_nobody(self.server.url("source"), path)
        self.assertEqual((done.returncode, path.read_bytes()), (0, CONTENT), done.stderr)
        self.assertIn("written in place", done.stderr)
        # It does, but the owner cannot be preserved: the file is written in place.
        self.work.chmod(0o777)
        path.write_bytes(b"old")
        done = self.as_nobody(self.server.url("source"), path)
        self.assertEqual((done.returncode, path.read_bytes()), (0, CONTENT), done.stderr)
        self.assertEqual(os.stat(path).st_uid, 0)
        # Neither is possible: the file is not written, and nothing stays behind.
        path.write_bytes(b"old")
        path.chmod(0o644)
        done = self.as_nobody(self.server.url("source"), path)
        self.assertIn("cannot be written", done.stderr)
        self.assertEqual((path.read_bytes(), os.stat(path).st_uid), (b"old", 0))
        self.assertEqual(os.listdir(self.work), ["file"])

    def test_what_something_is_mounted_on(self):
        path, behind = self.work / "file", self.work / "behind"
        path.write_bytes(b"old")
        behind.write_bytes(b"old")
        # Like a container's /etc/hosts: a rename onto it fails.
        script = 'mount --bind "$1" "$2"; exec "$3" cp "$4" "$2"'
        done = weft.run_with_own_mounts(script, behind, path, weft.WEFT, self.server.url("source"))
        self.assertIn("written in place", done.stderr)
        self.assertEqual((behind.read_bytes(), path.read_bytes()), (CONTENT, b"old"))

    def test_what_is_replaced_there_over_smb(self):
        (self.work / "new").write_bytes(CONTENT)
        there, other = self.there / "kept", self.there / "kept-2"
        for options in [[], ["--no-verify"]]:
            before, inode = self.attributed(there), os.stat(there).st_ino
            self.cp(*options, self.work / "new", self.server.url("kept"))
            self.assertEqual(there.read_bytes(), CONTENT)
            self.assertEqual(self.attributes(there), before)
            self.assertEqual(os.stat(there).st_ino, inode)
        os.link(there, other)
        large = weft.random_file(self.work / "large", (40 << 20) + 5)
        self.cp(large, self.server.url("kept"))
        self.assertTrue(weft.same(large, there) and weft.same(large, other))
        weft.run(weft.WEFT, "put", self.server.url("kept"), input="piped")
        self.assertEqual((there.read_text(), other.read_text()), ("piped", "piped"))
        self.assertEqual([name for name in os.listdir(self.there) if "partial" in name], [])

    def test_what_is_replaced_there_over_nfs(self):
        (self.work / "new").write_bytes(CONTENT)
        ready = self.server.ready
        for version in ["vers=3", "vers=4.1"]:
            mount = f"&mountport={ready['mountd_port']}" if version == "vers=3" else ""
            url = lambda name: f"nfs://127.0.0.1:{ready['nfs_port']}/data/{name}?{version}{mount}"
            there, other, link = (self.there / f"{version}-{name}" for name in ["kept", "other", "link"])
            there.write_bytes(b"old" * 1000)
            there.chmod(0o640)
            os.chown(there, 1234, 4321)
            self.cp(self.work / "new", url(there.name))
            s = os.stat(there)
            self.assertEqual(
                (there.read_bytes(), oct(s.st_mode & 0o7777), s.st_uid, s.st_gid), (CONTENT, "0o640", 1234, 4321)
            )
            os.link(there, other)
            link.symlink_to(other.name)
            large = weft.random_file(self.work / "large", (9 << 20) + 5)
            done = self.cp(large, url(link.name))
            self.assertTrue(weft.same(large, there) and weft.same(large, other), done.stderr)
            self.assertTrue(link.is_symlink())
            if version == "vers=4.1":
                os.unlink(other)
                weft.smbclient(self.server, f"put /etc/hostname {there.name}:stream")
                kept = {name: os.getxattr(there, name) for name in os.listxattr(there)}
                inode = os.stat(there).st_ino
                done = self.cp(self.work / "new", url(there.name))
                self.assertIn("is written in place: its ACL or named attributes would be lost", done.stderr)
                self.assertEqual((there.read_bytes(), os.stat(there).st_ino), (CONTENT, inode))
                self.assertIn("user.weft.stream.stream", kept)
                self.assertEqual({name: os.getxattr(there, name) for name in os.listxattr(there)}, kept)
        self.assertEqual([name for name in os.listdir(self.there) if "partial" in name], [])


if __name__ == "__main__":
    unittest.main()
