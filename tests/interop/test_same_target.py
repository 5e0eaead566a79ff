"""Two commands that write one file on a server: the file is complete, from one of them, however the other one ends."""

import fcntl
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

import weft

X, Y, OLD = b"X" * (3 << 20), b"Y" * (2 << 20), b"old"


class SameTarget(unittest.TestCase):
    def setUp(self):
        self.server = self.enterContext(weft.serving())
        self.folder = self.server.folder
        self.target = self.folder / "tgt"
        self.y = self.folder.parent / (self.folder.name + "-y")
        self.addCleanup(lambda: self.y.unlink(missing_ok=True))
        self.y.write_bytes(Y)
        self.smb = self.server.url("tgt")
        self.nfs = {v: f"nfs://127.0.0.1:{self.server.ready['nfs_port']}/data/tgt?vers={v}" for v in ["3", "4.1"]}

    def begin(self, command):
        """Starts a command; returns when its partial file exists."""
        before = set(os.listdir(self.folder))
        process = subprocess.Popen(
            [str(word) for word in [weft.WEFT, *command]], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        self.addCleanup(lambda: (process.kill(), process.communicate()) if process.returncode is None else None)
        end = time.monotonic() + 30
        while not any(name.endswith(".weft-partial") for name in set(os.listdir(self.folder)) - before):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end, "no partial file of its own")
            time.sleep(0.001)
        return process

    def begin_put(self, url):
        """A `weft put` that has not read all of its input: it ends when `finish` supplies the remainder."""
        process = self.begin(["put", url])
        process.stdin.write(X[: len(X) // 2])
        process.stdin.flush()
        return process

    def finish(self, process):
        _, said = process.communicate(X[len(X) // 2 :], timeout=60)
        return process.returncode, said.decode()

    def begin_long(self, *command):
        """A `weft cp` that is stopped (SIGSTOP) while it copies."""
        large = weft.random_file(self.folder.parent / (self.folder.name + "-large"), 32 << 20)
        self.addCleanup(lambda: os.unlink(large))
        small_steps = ["--transport", "tcp", "--queue-depth", "1", "--block", "4K"]
        process = self.begin(["cp", "-q", *command, *small_steps, large, self.nfs["4.1"]])
        [partial] = self.names()
        # The server creates a file and then opens it; only what was written shows that it is open.
        end = time.monotonic() + 30
        while not (self.folder / partial).stat().st_size:
            self.assertLess(time.monotonic(), end, "nothing is written")
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.assertEqual(self.names(), [partial], "the copy ended before it was stopped")
        return process, large

    def cp(self, *words):
        return weft.run(weft.WEFT, "cp", "-q", "--transport", "tcp", *words, check=False)

    def names(self):
        return sorted(os.listdir(self.folder))

    def new_content(self, said):
        """The file with the complete new content, which the message names."""
        return (self.folder / re.search(r"the new content is in (\S+)", said)[1]).read_bytes()

    def test_smb_lets_one_in(self):
        for old in [None, OLD]:
            for options in [[], ["--no-verify"]]:
                with self.subTest(old=old, options=options):
                    self.target.unlink(missing_ok=True)
                    if old:
                        self.target.write_bytes(old)
                    first = self.begin_put(self.smb)
                    for command in [["cp", "-q", *options, self.y, self.smb], ["put", self.smb]]:
                        with open(self.y, "rb") as content:
                            second = weft.run(weft.WEFT, *command, check=False, stdin=content)
                        self.assertEqual(second.returncode, 1)
                        self.assertIn("another copy to this file is under way", second.stderr)
                        self.assertEqual(self.target.read_bytes() if old else None, old)
                    self.assertEqual(self.finish(first), (0, ""))
                    self.assertEqual((self.target.read_bytes(), self.names()), (X, ["tgt"]))

    def test_smb_and_a_copy_that_can_be_resumed(self):
        """It has its own partial file, and detects the other one when it is about to overwrite the target."""
        self.target.write_bytes(OLD)
        first = self.begin_put(self.smb)
        second = self.cp("--resume", self.y, self.smb)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another copy to this file is under way", second.stderr)
        self.assertEqual((self.new_content(second.stderr), self.target.read_bytes()), (Y, OLD))
        self.assertEqual(self.finish(first), (0, ""))
        self.assertEqual(self.target.read_bytes(), X)
        self.assertEqual(self.cp("--resume", self.y, self.smb).returncode, 0)
        self.assertEqual((self.target.read_bytes(), self.names()), (Y, ["tgt"]))

    def test_smb_takes_over_what_a_killed_command_has_left(self):
        self.target.write_bytes(OLD)
        first = self.begin_put(self.smb)
        first.kill()
        first.communicate()
        self.assertEqual(self.target.read_bytes(), OLD)
        self.assertEqual(self.cp(self.y, self.smb).returncode, 0)
        self.assertEqual((self.target.read_bytes(), self.names()), (Y, ["tgt"]))

    def test_nfs_replaces_it_by_one_whole_file_after_the_other(self):
        for version, url in self.nfs.items():
            with self.subTest(version=version):
                first, killed = self.begin_put(url), self.begin_put(url)
                killed.kill()
                killed.communicate()
                self.assertEqual(self.cp(self.y, url).returncode, 0)
                self.assertEqual(self.target.read_bytes(), Y)
                self.assertEqual(self.finish(first), (0, ""))
                self.assertEqual(self.target.read_bytes(), X)
                left = [name for name in self.names() if name != "tgt"]
                self.assertEqual(len(left), 1)
                self.assertRegex(left[0], r"^\.tgt\.[0-9a-f]{16}\.weft-partial$")
                os.unlink(self.folder / left[0])

    def test_nfs_4_resumes_one_copy_at_a_time(self):
        first, large = self.begin_long("--resume")
        second = self.cp("--resume", large, self.nfs["4.1"])
        self.assertEqual(second.returncode, 1)
        self.assertIn("another copy to this file is under way", second.stderr)
        first.send_signal(signal.SIGCONT)
        self.assertEqual((first.communicate()[1], first.returncode), (b"", 0))
        self.assertTrue(weft.same(large, self.target))
        self.assertEqual(self.names(), ["tgt"])

    def test_nfs_writes_in_place_one_at_a_time(self):
        """A file with additional names is overwritten in place, which two commands must not do at once."""
        for version, url in self.nfs.items():
            with self.subTest(version=version):
                self.target.unlink(missing_ok=True)
                self.target.write_bytes(OLD)
                os.link(self.target, self.folder / "other")
                # SMB's partial file is the one that NFS uses beside a file that it overwrites.
                first = self.begin_put(self.smb)
                second = self.cp(self.y, url)
                self.assertEqual(second.returncode, 1)
                self.assertIn("another copy to this file is under way", second.stderr)
                self.assertEqual((self.new_content(second.stderr), self.target.read_bytes()), (Y, OLD))
                self.assertEqual(self.finish(first)[0], 0)
                self.assertEqual((self.folder / "other").read_bytes(), X)
                self.assertEqual(self.cp(self.y, url).returncode, 0)
                self.assertEqual((self.folder / "other").read_bytes(), Y)
                left = [name for name in self.names() if name not in ["tgt", "other"]]
                self.assertEqual(len(left), 1)
                for name in ["other", *left]:
                    os.unlink(self.folder / name)

    def test_sync_deletes_what_nobody_is_at_work_on(self):
        """Deletes what killed commands left, in a folder that is deleted as well, but not what a running command
        writes."""
        source = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-source-"))
        left = [".a.0123.weft-partial", "gone/.b.0123.weft-partial"]
        for version, url in {"smb": self.smb, **self.nfs}.items():
            with self.subTest(version=version):
                (self.folder / "gone").mkdir()
                for name in left:
                    (self.folder / name).write_bytes(b"half")
                    # NFSv3 has no opens that would show a file in use; only recent writes do.
                    if version == "3":
                        os.utime(self.folder / name, (1, time.time() - 2 * 86_400))
                writing = self.begin_put(url)
                root = url.replace("/data/tgt", "/data/")
                told = weft.run(weft.WEFT, "sync", source, root, "-n").stderr
                self.assertIn(f"an unfinished copy according to its name (--delete removes it): {left[0]}\n", told)
                told = weft.run(weft.WEFT, "sync", source, root, "-n", "--delete").stdout
                self.assertIn(f"delete     {left[0]}, unless a command is using it\n", told)
                weft.run(weft.WEFT, "sync", "-q", "--delete", source, root)
                self.assertEqual(len(self.names()), 1)
                self.assertEqual(self.finish(writing), (0, ""))
                self.assertEqual(self.names(), ["tgt"])
                self.target.unlink()
        with self.subTest(version="local"):
            local = pathlib.Path(source, "local")
            (local / "gone").mkdir(parents=True)
            for name in left:
                (local / name).write_bytes(b"half")
            with open(local / left[0]) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                weft.run(weft.WEFT, "sync", "-q", "--delete", self.server.url(""), local)
                self.assertEqual(os.listdir(local), [left[0]])

    def test_the_new_content_is_said_to_be_where_it_is_alone(self):
        """The message does not claim that a partial file which was removed has the new content."""
        first = self.begin_put(self.nfs["4.1"])
        for name in self.names():
            os.unlink(self.folder / name)
        status, said = self.finish(first)
        self.assertEqual(status, 1)
        self.assertNotIn("the new content is in", said)


if __name__ == "__main__":
    unittest.main()
