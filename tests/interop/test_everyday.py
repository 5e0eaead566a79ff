"""Everyday use of names, read-only files, links, pipes and keys, by smbclient and weft's own commands."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import termios
import time
import unittest

import weft


class Everyday(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-everyday-")))
        self.source = self.work / "source"
        self.source.mkdir()
        self.server = self.enterContext(weft.serving())
        self.folder = self.server.folder

    def weft(self, *command, **more):
        return weft.run(weft.WEFT, *command, **more)

    def contents(self, root):
        """Every file of a folder with its content; the names of folders end in a slash."""
        found = {}
        for path, folders, files in os.walk(root):
            at = os.path.relpath(path, root)
            found |= {os.path.normpath(os.path.join(at, name)) + "/": None for name in folders}
            for name in files:
                found[os.path.normpath(os.path.join(at, name))] = pathlib.Path(path, name).read_text()
        return found

    def test_smbclient_makes_hard_links(self):
        (self.folder / "one").write_text("content")
        weft.smbclient(self.server, "hardlink one two; rename one three")
        self.assertEqual((self.folder / "two").stat().st_ino, (self.folder / "three").stat().st_ino)

    def test_new_files_and_folders_by_nfs_have_the_mode_that_the_umask_leaves(self):
        (self.source / "folder").mkdir()
        (self.source / "folder" / "file").write_text("1")
        for vers in ["3", "4.1"]:
            url = self.server.nfs_url(f"by-{vers}")
            if vers == "4.1":
                url = f"{url.partition('?')[0]}?vers=4.1&rdmaport={self.server.ready['nfs_rdma_port']}"
            self.weft("cp", "-q", "-r", self.source / "folder", url, preexec_fn=lambda: os.umask(0o027))
            modes = [oct(path.stat().st_mode & 0o7777) for path in [self.folder / f"by-{vers}", self.folder / f"by-{vers}" / "file"]]
            self.assertEqual(modes, ["0o750", "0o640"])

    def test_a_name_that_changes_its_case_alone(self):
        """The file under the new name is the same file as under the old one: it must not be deleted after the copy."""
        (self.source / "readme").write_text("1")
        (self.source / "Dir").mkdir()
        (self.source / "Dir" / "x").write_text("2")
        self.weft("sync", "-q", self.source, self.server.url("s"))
        (self.source / "readme").rename(self.source / "README")
        (self.source / "Dir").rename(self.source / "dir")
        self.weft("sync", "-q", "--delete", self.source, self.server.url("s"))
        self.assertEqual(self.contents(self.folder / "s"), {"README": "1", "Dir/": None, "Dir/x": "2"})
        # Two such names collide there: one file is copied, the other reported.
        (self.source / "Readme").write_text("another")
        failed = self.weft("sync", "-q", "--delete", self.source, self.server.url("s"), check=False)
        self.assertEqual(failed.returncode, 1)
        readme = f"destination {self.server.url('s/Readme')}"
        self.assertIn(f"weft: {readme}: another name differs only in case", failed.stderr)
        self.assertEqual((self.folder / "s" / "README").read_text(), "1")

    def test_names_that_smb_cannot_spell(self):
        names = ["a:b", "c\\d", 'e*?<>|"', "new\nline", ".dot", "n" * 255, "😀" * 63, "trail ", "dot.", "100%"]
        for name in names:
            (self.source / name).write_text(name)
        self.weft("sync", "-q", self.source, self.server.url("s"))
        self.assertEqual(self.contents(self.folder / "s"), self.contents(self.source))
        self.weft("sync", "-q", self.server.url("s"), self.work / "back")
        self.assertEqual(self.contents(self.work / "back"), self.contents(self.source))
        said = self.weft("sync", self.source, self.server.url("s")).stdout
        self.assertIn(f"0 files copied (0 bytes), {len(names)} unchanged", said)
        self.weft("cp", "-q", self.source / "a:b", self.server.url(""))
        self.assertEqual((self.folder / "a:b").read_text(), "a:b")
        self.weft("put", self.server.url("n" * 250), stdin=subprocess.DEVNULL)
        self.assertEqual((self.folder / ("n" * 250)).read_text(), "")

    def test_what_a_dry_run_says_is_what_is_done(self):
        (self.folder / "f").write_text("1")
        back = self.work / "back"
        (back / "xd").mkdir(parents=True)
        (back / "xd" / "file").write_text("2")
        (back / "xd" / "link").symlink_to("file")
        sync = ["sync", "--delete", self.server.url(""), back]
        told, done = self.weft(*sync, "-n"), self.weft(*sync)
        for said in [told, done]:
            self.assertIn("not deleted at the destination, neither a file nor a folder: xd/link\n", said.stderr)
        self.assertIn("delete     xd/file\n", told.stdout)
        self.assertNotIn("xd/\n", told.stdout)
        self.assertEqual(sorted(os.listdir(back)), ["f", "xd"])
        self.assertEqual(os.listdir(back / "xd"), ["link"])
        # A file at one end, a folder at the other: the folder's content cannot be copied, and nothing is deleted.
        (self.folder / "a" / "b").mkdir(parents=True)
        (self.folder / "a" / "f1").write_text("1")
        (back / "a").write_text("2")
        (back / "extra").write_text("3")
        told = self.weft(*sync, "-n", check=False)
        self.assertEqual(told.returncode, 1)
        self.assertIn("a file at one end, a folder at the other", told.stdout)
        self.assertIn("delete     nothing, because not everything can be copied\n", told.stdout)
        self.assertNotRegex(told.stdout, "(?m)^(make|copy) |^delete +extra")
        done = self.weft(*sync, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 files copied (0 bytes), 1 unchanged, 0 deleted, 0 left out, 1 failed", done.stdout)

    def test_a_file_from_before_1970(self):
        long_ago = -315_619_200
        (self.folder / "old").write_text("1")
        os.utime(self.folder / "old", (long_ago, long_ago))
        self.weft("sync", "-q", self.server.url(""), self.work / "back")
        self.assertEqual((self.work / "back" / "old").stat().st_mtime, long_ago)
        self.assertIn(", 1 unchanged", self.weft("sync", self.server.url(""), self.work / "back").stdout)

    def test_one_bad_name_does_not_stop_the_others(self):
        (self.source / "good").write_text("1")
        with open(os.fsencode(self.source) + b"/bad\xff", "w"):
            pass
        self.folder.joinpath("s").mkdir()
        (self.folder / "s" / "extra").write_text("2")
        failed = self.weft("sync", "-q", "--delete", self.source, self.server.url("s"), check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn(f"weft: source {self.source}/bad", failed.stderr)
        self.assertIn("not UTF-8", failed.stderr)
        # A folder that could not be read also prevents all deletion.
        self.assertEqual(self.contents(self.folder / "s"), {"good": "1", "extra": "2"})

    def test_links_on_the_server_are_left_out_and_named(self):
        (self.folder / "s").mkdir()
        (self.folder / "s" / "file").write_text("1")
        (self.folder / "s" / "link").symlink_to("file")
        (self.work / "back").mkdir()
        (self.work / "back" / "extra").touch()
        said = self.weft("sync", "--delete", self.server.url("s"), self.work / "back")
        self.assertIn("left out, neither a file nor a folder: link", said.stderr)
        self.assertEqual(self.contents(self.work / "back"), {"file": "1"})

    def test_links_are_listed_with_where_they_lead(self):
        """Over SMB and NFS; SMB clients do not see a target that is a path of the server's host."""
        (self.folder / "d").mkdir()
        (self.folder / "d" / "f").write_text("12345")
        (self.folder / "link").symlink_to("d/f")
        (self.folder / "away").symlink_to("/etc/passwd")
        os.mkfifo(self.folder / "pipe")
        for url, away in [(self.server.url(""), ""), (self.server.nfs_url(""), " -> /etc/passwd")]:
            lines = self.weft("ls", url).stdout.splitlines()
            names = [re.sub(r"^ *\d+  \S+ \S+ UTC  ", "", line) for line in lines]
            self.assertEqual(names, ["away" + away, "d/", "link -> d/f", "pipe"], lines)
        listed = json.loads(self.weft("ls", "--json", self.server.url("")).stdout)
        self.assertEqual({e["name"]: e["target"] for e in listed}["link"], "d/f")
        for url in [self.server.url("link"), self.server.nfs_url("link")]:
            self.assertRegex(self.weft("stat", url).stdout, r"kind +link\n +leads to +d/f\n")
            self.assertEqual(json.loads(self.weft("stat", "--json", url).stdout)["target"], "d/f")
        self.assertIsNone(json.loads(self.weft("stat", "--json", self.server.url("d/f")).stdout)["target"])

    def test_read_only_files_are_replaced_and_deleted(self):
        for name in ["replaced", "deleted"]:
            (self.source / name).write_text("1")
        self.weft("sync", "-q", self.source, self.server.url("s"))
        weft.smbclient(self.server, "setmode s/replaced +r; setmode s/deleted +r")
        self.assertIn("CANNOT_DELETE", weft.smbclient(self.server, "del s/deleted", check=False))
        (self.source / "replaced").write_text("another")
        (self.source / "deleted").unlink()
        self.weft("sync", "-q", "--delete", self.source, self.server.url("s"))
        self.assertEqual(self.contents(self.folder / "s"), {"replaced": "another"})

    def test_what_a_mode_forbids_and_what_read_only_does(self):
        """A mode of 0444 does not prevent deletion, as on any Unix. A file that an SMB client made read-only stays
        so, also after a restart; NFS and the host still see its former mode."""
        for name in ["object", "replaced", "kept"]:
            (self.folder / name).write_text(name)
        (self.folder / "object").chmod(0o444)
        (self.folder / "replaced").chmod(0o444)
        weft.smbclient(self.server, "del object; setmode kept +r; rename kept replaced -f")
        self.assertEqual(sorted(os.listdir(self.folder)), ["replaced"])
        self.assertEqual((self.folder / "replaced").read_text(), "kept")
        self.assertNotEqual((self.folder / "replaced").stat().st_mode & 0o200, 0)
        refused = "NT_STATUS_(CANNOT_DELETE|ACCESS_DENIED)"
        for _ in range(2):
            self.assertRegex(weft.smbclient(self.server, "allinfo replaced"), r"attributes:.*R")
            self.assertRegex(weft.smbclient(self.server, "del replaced", check=False), refused)
            self.assertRegex(weft.smbclient(self.server, "put /etc/hostname replaced", check=False), refused)
            self.assertEqual(self.server.stop(), 0)
            self.server.start()
        weft.smbclient(self.server, "setmode replaced -r; del replaced")
        self.assertEqual(os.listdir(self.folder), [])

    def test_put_wants_the_name_of_a_file(self):
        (self.folder / "sub").mkdir()
        for path, status in [("sub", 1), ("sub/", 2), ("", 2)]:
            refused = self.weft("put", self.server.url(path), stdin=subprocess.DEVNULL, check=False)
            self.assertEqual(refused.returncode, status)
            self.assertRegex(refused.stderr, "names no file|is a folder: name a file in it")
        self.assertEqual(os.listdir(self.folder), ["sub"])

    def test_serve_refuses_what_it_cannot_do_from_the_start(self):
        for option, value, said in [("--congestion", "nope", r"it offers .*\breno\b"), ("--user", "", "--user")]:
            refused = self.weft("serve", self.folder, "--smb-port", 0, "--smbd-port", 0, option, value, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertRegex(refused.stderr, said)

    def test_a_closed_pipe_is_no_crash_and_a_full_disk_is_told(self):
        (self.source / "file").touch()
        (self.folder / "there").touch()
        url = self.server.url("")
        commands = [["ls", url], ["stat", url], ["ls", "--json", url], ["sync", self.source, url], ["rdma", "devices"]]
        environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
        for command in commands:
            with self.subTest(command=command):
                read, write = os.pipe()
                os.close(read)
                command = [str(c) for c in [weft.WEFT, *command]]
                done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, timeout=120)
                self.assertEqual((done.returncode, b"anic" in done.stderr), (0, False), done.stderr)
                # No process reads any of the output.
                subprocess.run(command, stdout=write, stderr=write, env=environment, timeout=120, check=True)
                os.close(write)
                with open("/dev/full", "w") as full:
                    done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=120)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, b"^(.*\n)*weft: .*No space left on device")

    def test_a_fifo_is_not_waited_for(self):
        os.mkfifo(self.source / "fifo")
        failed = self.weft("cp", self.source / "fifo", self.server.url(""), check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("not a regular file", failed.stderr)

    def test_the_second_ctrl_c_ends_a_copy_that_waits(self):
        """A stopped server answers nothing: the first signal requests an orderly end, the second ends the command at
        once."""
        (self.source / "file").touch()
        command = [weft.WEFT, "cp", "-q", "--transport", "tcp", self.source / "file", self.server.url("")]
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            copy = subprocess.Popen([str(c) for c in command], env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD))
            status = pathlib.Path(f"/proc/{copy.pid}/status")
            is_caught = lambda line: line.startswith("SigCgt:") and int(line.split()[1], 16) & 1 << signal.SIGINT - 1
            while not any(map(is_caught, status.read_text().splitlines())):
                time.sleep(0.01)
            while copy.poll() is None:
                copy.send_signal(signal.SIGINT)
                time.sleep(0.01)
        finally:
            self.server.process.send_signal(signal.SIGCONT)
        self.assertEqual(copy.returncode, -signal.SIGINT)

    def ask(self, keys):
        """Runs `weft ls` on a terminal and answers its prompt; returns exit status, output, and whether the terminal
        echoes again."""
        terminal, ours = pty.openpty()
        without = {name: value for name, value in os.environ.items() if name != "WEFT_PASSWORD"}
        command = [str(weft.WEFT), "ls", self.server.url("")]
        asked = subprocess.Popen(command, stdin=ours, stdout=ours, stderr=ours, env=without, start_new_session=True)
        said, until = b"", time.monotonic() + 60
        while b"Password for" not in said:
            said += os.read(terminal, 4096)
        # Input that is typed before the terminal is ready would be discarded.
        while termios.tcgetattr(ours)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        os.write(terminal, keys)
        status = asked.wait(timeout=60)
        shows = bool(termios.tcgetattr(ours)[3] & termios.ECHO)
        os.close(ours)
        while True:
            try:
                said += os.read(terminal, 4096)
            except OSError:
                break
        os.close(terminal)
        return status, said.decode(), shows

    def test_a_password_on_a_terminal(self):
        (self.folder / "there").touch()
        status, said, shows = self.ask(b"wrong\x15" + weft.PASSWORD.encode() + b"x\x7f\r")
        self.assertEqual((status, shows), (0, True), said)
        self.assertIn("there", said)
        self.assertNotIn(weft.PASSWORD, said)
        status, said, shows = self.ask(b"half\x03")
        self.assertEqual((status, shows), (-signal.SIGINT, True), said)
        self.assertIn("interrupted", said)

    def test_an_empty_password_is_none(self):
        folder = self.work / "data"
        folder.mkdir()
        command = [weft.WEFT, "serve", folder, "--user", weft.USER, "--smb-port", 0, "--smbd-port", 0]
        server = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, WEFT_PASSWORD=""),
        )
        port = re.search(r"smb=(\d+)", server.stdout.readline())[1]
        # Without a terminal for the prompt.
        url = f"smb://{weft.USER}@127.0.0.1:{port}/data"
        refused = weft.run("setsid", "--wait", weft.WEFT, "ls", url, check=False, password="")
        server.terminate()
        _, said = server.communicate(timeout=60)
        made_up = re.search(r"password of tester: (\S+)", said)
        self.assertTrue(made_up, said)
        self.assertIn("WEFT_PASSWORD is empty and is ignored", said)
        self.assertIn("no password for tester", refused.stderr)

    def test_a_terminal_that_goes_away_ends_a_server_in_order(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            data = pathlib.Path(folder, "data")
            data.mkdir()
            server = weft.Server(data)
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(server.end(), 0, server.log_text())
            self.assertIn("draining", server.log_text())
            # As under nohup.
            before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                server.start()
            finally:
                signal.signal(signal.SIGHUP, before)
            server.process.send_signal(signal.SIGHUP)
            weft.smbclient(server, "ls")
            self.assertEqual(server.stop(), 0)

    def test_a_server_outlives_the_reader_of_its_log(self):
        folder = self.work / "data"
        folder.mkdir()
        command = [weft.WEFT, "serve", folder, "--user", weft.USER, "--smb-port", 0, "--smbd-port", 0, "--json", "-vv"]
        server = subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        server.stderr.close()
        port = json.loads(server.stdout.readline())["smb_port"]
        (folder / "there").touch()
        for _ in range(3):
            self.assertIn("there", self.weft("ls", f"smb://{weft.USER}@127.0.0.1:{port}/data").stdout)
        server.terminate()
        self.assertEqual(server.wait(timeout=60), 0)
        server.stdout.close()

    def test_names_that_cannot_be_shared(self):
        for name in ["we:ird", "ipc$", "st*r"]:
            folder = self.work / name
            folder.mkdir()
            failed = self.weft("serve", folder, "--smb-port", 0, "--smbd-port", 0, check=False)
            self.assertEqual(failed.returncode, 1)
            self.assertIn(f'"{name}"', failed.stderr)


if __name__ == "__main__":
    unittest.main()
