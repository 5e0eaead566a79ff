"""What a server reports to its operator: its disk, other servers beside it, and how to reach it."""

import contextlib
import ipaddress
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import weft
from disk import WRITE
from disk import Disk as Client
from test_space import small_disk


def status(server, state):
    return json.loads(weft.run(weft.WEFT, "status", "--json", "--state-dir", state, "--pid", server.ready["pid"]).stdout)


@unittest.skipUnless(os.geteuid() == 0, "mounting a tmpfs needs root")
class Disk(unittest.TestCase):
    def test_a_full_disk_is_told_once_and_shown(self):
        with small_disk() as disk, tempfile.TemporaryDirectory(prefix="weft-state-") as state:
            server = weft.Server(disk, "--state-dir", state)
            try:
                large = weft.random_file(os.path.join(state, "large"), 16 << 20)
                for _ in range(3):
                    said = weft.smbclient(server, f"put {large} large", check=False)
                    self.assertIn("NT_STATUS_DISK_FULL", said)
                told = [line for line in server.faults() if "share data" in line]
                self.assertEqual(len(told), 1, server.log_text())
                self.assertIn(f"the disk of {disk} is full", told[0])
                self.assertIn(f"df -h {disk}", told[0])
                self.assertIn(f"at {disk}/large", told[0])
                shown = weft.run(weft.WEFT, "status", "--state-dir", state).stdout
                self.assertRegex(shown, rf"share     ! data: the disk of {disk} is full")
                self.assertRegex(shown, r"\d+ requests failed in \d+ s")
            finally:
                server.stop()

    def test_a_full_disk_below_a_volume_is_told_and_shown_until_it_takes_writes_again(self):
        with small_disk() as disk, tempfile.TemporaryDirectory(prefix="weft-state-") as state:
            state_dir = ["--state-dir", state]
            weft.run(weft.WEFT, "volume", "create", "vol", "--file", disk / "vol.img", "--size", "64M", *state_dir)
            command = [weft.WEFT, "serve", "--json", "--nbd-port", "0", "--volume", "vol", *state_dir]
            server = weft.Process(command, pathlib.Path(state) / "log")
            try:
                client = Client(server.ready["nbd_port"], "vol")
                refused = 0
                for offset in range(0, 32 << 20, 1 << 20):
                    client.send(WRITE, offset, 1 << 20, bytes([7]) * (1 << 20))
                    refused += client.answer()[1] != 0
                self.assertGreater(refused, 0)
                told = [line for line in server.faults() if "volume vol: " in line]
                self.assertEqual(len(told), 1, server.log_text())
                self.assertIn(f"the disk of the volume's file {disk}/vol.img is full", told[0])
                [volume] = status(server, state)["servers"][0]["volumes"]
                self.assertRegex(volume["warning"], rf"{disk}/vol.img is full.*{refused} requests failed")
                client.close()
            finally:
                server.stop()

    def test_a_disk_that_became_read_only_is_told(self):
        with small_disk() as disk, tempfile.TemporaryDirectory(prefix="weft-state-") as state:
            server = weft.Server(disk, "--state-dir", state)
            try:
                (disk / "file").write_text("x")
                weft.run("mount", "-o", "remount,ro", disk)
                weft.smbclient(server, "mkdir folder", check=False)
                told = [line for line in server.faults() if "share data" in line]
                self.assertEqual(len(told), 1, server.log_text())
                self.assertIn("is read-only", told[0])
                self.assertIn(f"mount -o remount,rw {disk};", told[0])
            finally:
                server.stop()

    def test_a_full_state_directory_is_shown(self):
        with small_disk() as disk, tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            state = disk / "state"
            server = weft.Server(pathlib.Path(folder), "--state-dir", state)

            def shown():
                return weft.run(weft.WEFT, "status", "--state-dir", state).stdout

            try:
                self.assertNotIn("state directory", shown())
                filler = disk / "filler"
                with self.assertRaises(OSError), open(filler, "wb", buffering=0) as out:
                    while True:
                        out.write(bytes(1 << 20))
                with self.assertRaises(OSError), open(filler, "ab", buffering=0) as out:
                    while True:
                        out.write(bytes(4096))
                self.assertRegex(shown(), rf"state     ! the disk of the state directory {state} is full: .*df -h {state}")
                filler.unlink()
                self.assertNotIn("state directory", shown())
            finally:
                server.stop()


class Folder(unittest.TestCase):
    def test_a_folder_that_is_moved_or_removed_while_it_is_served_is_shown(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as work, contextlib.ExitStack() as stack:
            work = pathlib.Path(work)
            folder, moved, state = work / "data", work / "moved", work / "state"
            folder.mkdir()
            server = weft.Server(folder, "--state-dir", state)
            stack.callback(server.stop)

            def warning():
                return status(server, state)["servers"][0]["shares"][0]["warning"]

            self.assertIsNone(warning())
            folder.rename(moved)
            self.assertIn(f"was moved to {moved}", warning())
            self.assertIn(f"was moved to {moved}", server.log_text())
            folder.mkdir()
            self.assertIn(f"{folder} is now another folder", warning())
            folder.rmdir()
            moved.rename(folder)
            self.assertIsNone(warning())
            folder.rmdir()
            self.assertRegex(warning(), "was removed, .*`weft reload` serves it")
            folder.mkdir()

    @unittest.skipUnless(os.geteuid() == 0, "needs root for a mount")
    def test_a_file_system_that_is_unmounted_lazily_is_not_called_moved(self):
        """The folder was said to have been moved to /."""
        script = """
            mkdir "$2/disk"; mount -t tmpfs none "$2/disk"; mkdir "$2/disk/data"
            "$1" serve "$2/disk/data" --state-dir "$2/state" --smb-port 0 --smbd-port 0 > "$2/ready" 2> "$2/log" &
            until grep -q ready "$2/ready"; do kill -0 $!; sleep 0.1; done
            umount -l "$2/disk"
            "$1" status --state-dir "$2/state"
            kill $!; wait $!"""
        with tempfile.TemporaryDirectory(prefix="weft-test-") as work:
            said = weft.run_with_own_mounts(script, weft.WEFT, work).stdout
            self.assertRegex(said, "! data: .*the file system of the served folder was unmounted.*`weft reload`")
            self.assertNotIn("moved", said)


@unittest.skipUnless(os.geteuid() == 0, "permissions are the server's decision only if it runs as root")
class Squashed(unittest.TestCase):
    def test_why_root_of_a_client_is_refused_is_told(self):
        with weft.serving("--export", "data:root_squash") as server:
            server.folder.chmod(0o755)
            server.folder.parent.chmod(0o755)
            said = weft.run(weft.WEFT, "put", server.nfs_url("file"), input="x", check=False)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("--no-root-squash or --export SHARE:no_root_squash", server.log_text())
        with weft.serving("--export", "data:no_root_squash") as server:
            weft.run(weft.WEFT, "put", server.nfs_url("file"), input="x")
            self.assertNotIn("root-squash", server.log_text())


class Neighbours(unittest.TestCase):
    def test_a_second_server_says_what_it_shares_with_the_first(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as work, contextlib.ExitStack() as stack:
            work = pathlib.Path(work)
            for folder in ["data/inside", "state", "other", "link"]:
                (work / folder).mkdir(parents=True)
            (work / "link" / "data").symlink_to(work / "data")

            def served(folder, state):
                server = weft.Server(folder, "--state-dir", work / state)
                stack.callback(server.stop)
                return server

            first = served(work / "data", "state")
            alone = served(work / "other", "other-state")
            again = served(work / "link" / "data", "state")
            inside = served(work / "data" / "inside", "third-state")
            self.assertEqual((first.faults(), alone.faults()), ([], []))
            folder, state = sorted(again.faults(), key=lambda line: "state directory" in line)
            self.assertIn(f"share data: another Weft already serves {work}/data", folder)
            self.assertIn(f"that of process {first.ready['pid']}", state)
            self.assertIn("another Weft serves", "".join(inside.faults()))

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_another_user_cannot_pretend_to_be_a_second_server(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as work:
            folder = pathlib.Path(work) / "data"
            folder.mkdir()
            found = folder.stat()
            place = f"{found.st_dev:x}-{found.st_ino:x}"
            # Under the name for root, the name for that user, and the name of an earlier version.
            names = [f"weft-serves-0-{place}", f"weft-serves-65534-{place}", f"weft-serves-{place}"]
            faked = """
import os, socket, sys
os.setuid(65534)
held = []
for name in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        held.append(socket.socket(socket.AF_UNIX, kind))
        held[-1].bind("\\0" + name)
        kind == socket.SOCK_STREAM and held[-1].listen()
print("there", flush=True)
sys.stdin.read()
"""
            other = subprocess.Popen(
                [sys.executable, "-c", faked, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(other.communicate)
            self.assertEqual(other.stdout.readline(), "there\n")
            server = weft.Server(folder, "--state-dir", pathlib.Path(work) / "state")
            faults = server.faults()
            server.stop()
            self.assertEqual(faults, [])


class Hints(unittest.TestCase):
    """The command that is printed for connecting does connect."""

    def hints(self, *listen):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as work:
            (pathlib.Path(work) / "data").mkdir()
            options = [part for one in listen for part in ("--listen", one)]
            log = pathlib.Path(work) / "log"
            with open(log, "w") as out:
                server = subprocess.Popen(
                    [weft.WEFT, "serve", pathlib.Path(work) / "data", "--user", weft.USER, *options,
                     "--smb-port", "0", "--smbd-port", "0"],
                    stdout=subprocess.PIPE, stderr=out, env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD), text=True,
                )
            try:
                self.assertIn("ready", server.stdout.readline())
                said = log.read_text()
                url = re.search(r"weft ls '?(smb://[^\s']+)", said).group(1)
                weft.run(weft.WEFT, "ls", url)
                client = re.search(r"smbclient (//\S+) -p (\d+) -U (\S+)", said)
                weft.run("smbclient", client[1], "-p", client[2], "-U", f"{client[3]}%{weft.PASSWORD}", "-c", "ls")
                return url
            finally:
                server.terminate()
                server.wait(timeout=30)
                server.stdout.close()

    def test_for_whatever_is_listened_on(self):
        for listen in [["0.0.0.0"], ["::"], ["::1"], ["[::1]"], ["localhost"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "0.0.0.0"]]:
            with self.subTest(listen=listen):
                url = self.hints(*listen)
                host = re.match(r"smb://[^@]+@(\[[^]]+\]|[^:/]+):", url).group(1).strip("[]")
                self.assertFalse(ipaddress.ip_address(host).is_unspecified, url)

    def test_what_is_no_address(self):
        for wrong, right in [
            ("fe80::1%lo", "another address of lo"), ("127.0.0.1:4450", "--smb-port 4450"),
            ("127.0.0.1,::1", "--listen 127.0.0.1 --listen ::1"),
        ]:
            done = weft.run(weft.WEFT, "serve", "--ram", "ram=64M", "--listen", wrong, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(right, done.stderr)


if __name__ == "__main__":
    unittest.main()
