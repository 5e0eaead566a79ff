"""The file system of one share does not answer, and nothing ends a system call on it: the server starts, checks and reloads its
configuration nevertheless, and serves the other shares. What it asked for stays asked until the file system answers."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import fuse
import weft

FILE = """
[listeners]
smb_port = 0
smb_direct_port = 0
"""
# Everything that a look at a folder, or its opening, may ask.
ALL = [fuse.LOOKUP, fuse.GETATTR, fuse.ACCESS, fuse.OPENDIR, fuse.READDIR, fuse.STATFS]
TREE = {"in-slow": b"", "sub": {}, "disk": bytes(1 << 20)}
# Far less than a hang, and more than the limits of some looks.
SOON = 40


class Slow(unittest.TestCase):
    """Folders to serve; one of them is a file system that the tests let hang."""

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-hung-")))
        self.state, self.file = self.work / "state", self.work / "weft.toml"
        for name in ["stay", "slow"]:
            (self.work / name).mkdir()
        (self.work / "stay" / "in-stay").touch()
        self.slow = self.enterContext(fuse.Mount(self.work / "slow", TREE, heeds_interrupts=False))
        self.write("stay", "slow")

    def write(self, *shares, **keys):
        tables = [f'[shares.{name}]\npath = "{self.work / keys.get(name, name)}"\n' for name in shares]
        self.file.write_text(FILE + "".join(table + keys.get("more", "") for table in tables))

    def weft(self, *arguments, check=True):
        return weft.run(weft.WEFT, *arguments, check=check, timeout=SOON)

    @contextlib.contextmanager
    def serving(self):
        command = [weft.WEFT, "serve", "--config", self.file, "--state-dir", self.state, "--user", weft.USER, "--json"]
        with open(os.devnull) as nothing, unittest.mock.patch("sys.stdin", nothing):
            begun = time.monotonic()
            server = weft.Process(command, self.work / "weft.log")
            self.assertLess(time.monotonic() - begun, SOON)
        try:
            yield server
        finally:
            self.slow.release()
            server.stop()

    def report(self):
        [server] = json.loads(self.weft("reload", "--json", "--state-dir", self.state).stdout)
        return server["reloaded"]

    def listed(self, server, share):
        done = weft.run("smbclient", f"//127.0.0.1/{share}", "-p", server.ready["smb_port"], "-U", f"{weft.USER}%{weft.PASSWORD}",
                        "-c", "ls", check=False, timeout=SOON)
        return done.stdout + done.stderr

    def told(self, folder="slow", share="slow"):
        return f"shares.{share}.path: cannot serve {self.work}/{folder}: its file system has not answered within 5 s"


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class Hung(Slow):
    def test_the_server_starts_without_it_and_a_reload_serves_it_once_it_answers(self):
        self.slow.hold(*ALL)
        with self.serving() as server:
            self.assertEqual([share["name"] for share in server.ready["shares_not_served"]], ["slow"])
            self.assertIn(self.told(), server.log_text())
            self.assertIn(self.told(), server.ready["shares_not_served"][0]["why"])
            self.assertIn("Once it answers, `weft reload", server.ready["shares_not_served"][0]["why"])
            self.assertIn("in-stay", self.listed(server, "stay"))
            self.assertIn("BAD_NETWORK_NAME", self.listed(server, "slow"))
            self.assertRegex(self.weft("status", "--state-dir", self.state).stdout, "share +! slow is not served: .*has not answered within 5 s")
            # Once more while it hangs.
            self.assertEqual([share["name"] for share in self.report()["absent"]], ["slow"])
            self.slow.release()
            self.assertEqual(self.report()["added"], ["slow"])
            self.assertIn("in-slow", self.listed(server, "slow"))

    def test_a_server_of_nothing_else_says_so_and_ends(self):
        self.write("slow")
        self.slow.hold(*ALL)
        done = self.weft("serve", "--config", self.file, "--state-dir", self.state, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("nothing is left to serve: share slow is not served: ", done.stderr)
        typed = self.weft("serve", self.work / "slow", "--state-dir", self.state, check=False)
        self.assertEqual(typed.returncode, 1, typed.stderr)
        self.assertIn(f"cannot serve {self.work}/slow: its file system has not answered within 5 s", typed.stderr)

    def test_a_check_names_the_share_and_ends(self):
        self.slow.hold(*ALL)
        begun = time.monotonic()
        done = self.weft("config", "check", self.file)
        self.assertLess(time.monotonic() - begun, 15, "one limit, whatever the rules are")
        self.assertIn(self.told(), done.stderr)
        self.assertNotIn("stay", done.stderr)
        self.assertIn("no errors", done.stdout)

    def test_a_reload_does_not_move_a_share_to_the_folder_below_its_mount(self):
        """Clients wrote to the disk below from then on, and nothing said so."""
        with self.serving() as server:
            self.assertIn("in-slow", self.listed(server, "slow"))
            self.slow.detach()
            self.assertEqual(list((self.work / "slow").iterdir()), [])
            [warning] = self.report()["warnings"]
            self.assertIn(f"share slow keeps the folder that it has: its file system is not mounted at {self.work}/slow any more", warning)
            self.assertIn("in-slow", self.listed(server, "slow"))
            self.assertIn("slow is now another folder", self.weft("status", "--state-dir", self.state).stdout)
            # A folder that nothing was mounted at may be replaced.
            (self.work / "stay").rename(self.work / "old")
            (self.work / "stay").mkdir()
            self.report()
            self.assertNotIn("in-stay", self.listed(server, "stay"))

    def test_what_is_inside_is_not_waited_for_share_by_share(self):
        self.write("stay", *(f"s{n}" for n in range(6)), **{f"s{n}": f"slow/sub/{n}" for n in range(6)})
        self.slow.hold(*ALL)
        begun = time.monotonic()
        done = self.weft("config", "check", self.file)
        self.assertLess(time.monotonic() - begun, 15)
        self.assertIn(self.told("slow/sub/5", "s5"), done.stderr)
        with self.serving() as server:
            self.assertEqual(len(server.ready["shares_not_served"]), 6)

    def test_a_served_share_that_hangs_keeps_what_it_has_and_holds_up_no_reload(self):
        with self.serving() as server:
            self.assertIn("in-slow", self.listed(server, "slow"))
            self.slow.hold(*ALL)
            for turn, more in enumerate(["read_only = true\n", ""]):
                self.write("stay", "slow", more=more)
                begun = time.monotonic()
                report = self.report()
                self.assertLess(time.monotonic() - begun, 15)
                self.assertEqual((report["changed"], report["absent"], report["removed"]), (["slow", "stay"], [], []))
                [warning] = report["warnings"]
                self.assertIn("share slow keeps the folder that it has: ", warning)
                self.assertIn(self.told(), warning)
            self.assertIn("in-stay", self.listed(server, "stay"))
            # Another folder that hangs is not taken for it.
            self.write("stay", "slow", slow="slow/sub")
            refused = self.weft("reload", "--state-dir", self.state, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(self.told("slow/sub"), refused.stderr)
            self.write("stay", "slow")
            self.slow.release()
            self.assertEqual(self.report()["warnings"], [])
            self.assertIn("in-slow", self.listed(server, "slow"))

    def test_a_new_share_that_hangs_is_absent_and_the_others_come(self):
        (self.work / "new").mkdir()
        self.write("stay")
        with self.serving() as server:
            self.slow.hold(*ALL)
            self.write("stay", "new", "slow")
            report = self.report()
            self.assertEqual((report["added"], [share["name"] for share in report["absent"]]), (["new"], ["slow"]))
            self.assertIn(self.told(), server.log_text())
            refused = self.weft("share", "add", "other", self.work / "slow/sub", "--config", self.file, "--state-dir", self.state,
                                check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("has not answered within 5 s", refused.stderr)
            self.slow.release()
            self.assertEqual(self.report()["added"], ["slow"])

    def test_its_user_may_be_removed_while_it_hangs(self):
        with self.serving():
            self.slow.hold(*ALL)
            reload = subprocess.Popen([weft.WEFT, "reload", "--state-dir", self.state], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.weft("user", "add", "carol", "--state-dir", self.state)
            self.assertEqual(reload.wait(SOON), 0)


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class OwnFiles(Slow):
    """What the server itself needs does not answer."""

    def test_it_does_not_start_and_names_the_file(self):
        cases = [
            ("state_dir = '{slow}/sub'\n", "state_dir: cannot use {slow}/sub: ", []),
            ("[smb]\nkeytab = '{slow}/in-slow'\n", "smb.keytab: cannot use {slow}/in-slow: ", []),
            ("[audit]\nfile = '{slow}/audit.jsonl'\n", "audit.file: cannot use {slow}/audit.jsonl: ", []),
            ("[tls.nfs]\ncertificate = '{slow}/in-slow'\nkey = '{slow}/in-slow'\n", "tls.nfs.certificate: cannot use {slow}/in-slow: ", []),
            ("", "--state-dir: cannot use {slow}/sub: ", ["--state-dir", self.work / "slow/sub"]),
        ]
        self.slow.hold(*ALL, fuse.OPEN, fuse.READ)
        for text, told, options in cases:
            with self.subTest(told=told):
                slow = self.work / "slow"
                self.write("stay")
                self.file.write_text(text.format(slow=slow) + self.file.read_text())
                begun = time.monotonic()
                done = self.weft("serve", "--config", self.file, "--user", weft.USER, *options, check=False)
                self.assertLess(time.monotonic() - begun, 15)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(told.format(slow=slow) + "its file system has not answered within 5 s", done.stderr)
                if not options:
                    checked = self.weft("config", "check", self.file, check=False)
                    self.assertEqual(checked.returncode, 1, checked.stderr)
                    self.assertIn(told.format(slow=slow), checked.stderr)

    def test_a_key_that_can_be_named_and_not_read(self):
        self.write("stay")
        self.file.write_text(f"[smb]\nkeytab = '{self.work}/slow/in-slow'\n" + self.file.read_text())
        self.slow.hold(fuse.OPEN)
        done = self.weft("serve", "--config", self.file, "--state-dir", self.state, "--user", weft.USER, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("its file system has not answered within 5 s", done.stderr)

    def test_a_reload_that_needs_it_is_refused_and_what_is_served_stays(self):
        self.write("stay")
        text = self.file.read_text()
        with self.serving() as server:
            self.slow.hold(*ALL)
            self.file.write_text(f"[tls.nbd]\ncertificate = '{self.work}/slow/in-slow'\nkey = '{self.work}/slow/in-slow'\n" + text)
            refused = self.weft("reload", "--state-dir", self.state, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("tls.nbd.certificate: cannot use ", refused.stderr)
            self.assertIn("in-stay", self.listed(server, "stay"))
            self.file.write_text(text)
            self.report()

    def test_a_list_of_volumes_does_not_wait_for_one(self):
        create = ["volume", "create", "--state-dir", self.state]
        self.weft(*create, "good", "--size", "1M", "--file", self.work / "good.img")
        self.weft(*create, "bad", "--file", self.work / "slow/disk")
        self.slow.hold(*ALL)
        begun = time.monotonic()
        listed = json.loads(self.weft("volume", "list", "--json", "--state-dir", self.state).stdout)
        self.assertLess(time.monotonic() - begun, SOON)
        self.assertEqual([(one["name"], "allocated" in one and one["allocated"] is not None) for one in listed], [("bad", False), ("good", True)])

    def test_a_volume_is_absent_and_the_others_are_served(self):
        create = ["volume", "create", "--state-dir", self.state]
        self.weft(*create, "good", "--size", "1M", "--file", self.work / "good.img")
        self.weft(*create, "bad", "--file", self.work / "slow/disk")
        self.write("stay")
        self.file.write_text("[listeners]\nnbd_port = 0\nsmb_port = 0\nsmb_direct_port = 0\n[volumes]\ngood = {}\nbad = {}\n"
                             + self.file.read_text().removeprefix(FILE))
        for holds in [ALL, [fuse.OPEN]]:
            with self.subTest(holds=holds):
                self.slow.hold(*holds)
                with self.serving() as server:
                    self.assertEqual([volume["name"] for volume in server.ready["volumes"]], ["good"])
                    [absent] = server.ready["not_served"]
                    self.assertEqual(absent["name"], "bad")
                    self.assertIn(f"cannot open {self.work}/slow/disk: its file system has not answered within 5 s. The volume may be intact",
                                  absent["why"])
                    self.assertIn("in-stay", self.listed(server, "stay"))
        with self.serving() as server:
            self.assertEqual(sorted(volume["name"] for volume in server.ready["volumes"]), ["bad", "good"])


if __name__ == "__main__":
    unittest.main()
