"""A server reads its configuration again while clients work: `weft reload`, SIGHUP, `weft share`. smbclient and Weft's
own clients keep their sessions; RELOADS sets how often the load test reloads."""

import json
import os
import pathlib
import pwd
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import weft

RELOADS = int(os.environ.get("RELOADS", "20"))
FILE = weft.FREE_PORTS + weft.NO_ACCOUNTS + """
[nfs]
root_squash = false

[shares.stay]
path = "stay"
nfs.secure = false

[shares.go]
path = "go"
nfs.secure = false
"""


class Reload(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-reload-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        self.state = self.work / "state"
        for folder in ["stay", "go", "new"]:
            (self.work / folder).mkdir()
            (self.work / folder / f"in-{folder}").write_text(f"of {folder}")
        self.file = self.work / "weft.toml"
        self.file.write_text(FILE)
        for user in ["alice", "bob"]:
            self.weft("user", "add", user, password=f"of-{user}")

    def weft(self, *arguments, check=True, password=""):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, check=check, password=password)

    def serving(self, launcher=()):
        return weft.configured(self.file, self.state, launcher=launcher)

    def line(self, server, user, share):
        return ["smbclient", "-p", str(server.ready["smb_port"]), f"//127.0.0.1/{share}", "-U", f"{user}%of-{user}"]

    def smbclient(self, server, user, share, commands="ls"):
        done = subprocess.run([*self.line(server, user, share), "-c", commands], capture_output=True, text=True,
                              timeout=60, cwd=self.work, stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    def session(self, server, user, share):
        """A session that is open; its `communicate` runs commands and ends it."""
        before = self.connected(user, share)
        client = subprocess.Popen(self.line(server, user, share), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, cwd=self.work)
        self.addCleanup(client.stdout.close)
        until = time.monotonic() + 30
        while self.connected(user, share) == before:
            self.assertLess(time.monotonic(), until, server.log_text())
            time.sleep(0.02)
        return client

    def connected(self, user, share):
        """The number of sessions of this user that are connected to this share."""
        [server] = json.loads(self.weft("status", "--json").stdout)["servers"]
        sessions = [session for connection in server["connections"] for session in connection["sessions"]]
        return sum(session["user"] == user and share in session["shares"] for session in sessions)

    def report(self):
        [server] = json.loads(self.weft("reload", "--json").stdout)
        return server["reloaded"]

    def test_shares_come_change_and_go_and_other_sessions_live_on(self):
        with self.serving() as server:
            nfs = f"nfs://127.0.0.1:{server.ready['nfs_port']}"
            stays, goes = self.session(server, "alice", "stay"), self.session(server, "alice", "go")
            text = FILE.split("[shares.go]")[0] + f'[shares.new]\npath = "{self.work}/new"\nread = ["bob"]\n'
            self.file.write_text(text)
            report = self.report()
            self.assertEqual((report["added"], report["removed"], report["restart"]), (["new"], ["go"], []))
            self.assertIn("in-new", self.smbclient(server, "bob", "new"))
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "alice", "new"))
            self.assertIn("NT_STATUS_BAD_NETWORK_NAME", self.smbclient(server, "alice", "go"))
            self.assertIn("in-stay", stays.communicate("ls\n", timeout=60)[0])
            self.assertIn("NT_STATUS_NETWORK_NAME_DELETED", goes.communicate("ls\n", timeout=60)[0])
            self.assertEqual(weft.run(weft.WEFT, "ls", nfs).stdout.split(), ["/stay"])
            status = json.loads(self.weft("status", "--json").stdout)["servers"][0]
            self.assertEqual([share["name"] for share in status["shares"]], ["stay", "new"])

            writes = self.session(server, "alice", "stay")
            self.file.write_text(text.replace('path = "stay"', 'path = "stay"\nread_only = true'))
            self.assertEqual(self.report()["changed"], ["stay"])
            self.assertIn("NT_STATUS_NETWORK_NAME_DELETED", writes.communicate("ls\n", timeout=60)[0])
            refused = self.smbclient(server, "alice", "stay", "mkdir folder")
            self.assertIn("NT_STATUS_MEDIA_WRITE_PROTECTED", refused)

    def test_a_wrong_file_changes_nothing_and_what_needs_a_restart_is_named(self):
        with self.serving() as server:
            stays = self.session(server, "alice", "go")
            for wrong, says in [
                (FILE + "[shares.bad]\n", "shares.bad: the share has no files"),
                (FILE.replace('path = "go"', 'path = "missing"'), "no such folder"),
                ("[shares.x]\nram = 3\n", "shares.x.ram"),
            ]:
                self.file.write_text(wrong)
                refused = self.weft("reload", check=False)
                self.assertEqual(refused.returncode, 1)
                self.assertIn(says, refused.stderr)
            self.assertIn("in-go", stays.communicate("ls\n", timeout=60)[0])
            self.file.write_text(FILE.replace("smb_port = 0", "smb_port = 4499") + "[limits]\ncores = 1\n")
            self.assertEqual(self.report()["restart"], ["limits.cores", "listeners.smb_port"])
            self.assertEqual(self.report()["restart"], ["limits.cores", "listeners.smb_port"], "until the restart")
            self.assertIn("in-go", self.smbclient(server, "alice", "go"))

    def test_an_emptied_file_and_a_missing_store_cut_nobody_off(self):
        users = self.state / "users.toml"
        with self.serving() as server:
            stays = self.session(server, "alice", "go")
            for emptied in ["", "\n", "# all of it is a comment\n"]:
                self.file.write_text(emptied)
                refused = self.weft("reload", check=False)
                self.assertEqual(refused.returncode, 1)
                self.assertRegex(refused.stderr, "weft.toml is empty: nothing has changed; write it again.*weft share remove --config .* NAME")
            self.file.write_text(FILE)
            stored = users.read_bytes()
            users.unlink()
            refused = self.weft("reload", check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, "users.toml is missing, and there were users in it: nothing has changed; restore it")
            self.assertIn("in-go", self.smbclient(server, "alice", "go"))
            users.write_bytes(stored)
            users.chmod(0o600)
            self.assertEqual(self.report()["removed"], [])
            self.assertIn("in-go", stays.communicate("ls\n", timeout=60)[0])

    def test_the_last_share_of_a_file_can_be_removed(self):
        self.file.unlink()
        done = self.weft("share", "--config", self.file, "add", "new", self.work / "new")
        self.assertIn(f"{self.file} did not exist: made", done.stderr)
        launched = weft.configured(self.file, self.state, "--smb-port", "0", "--smbd-port", "0", "--nfs-port", "0", "--mountd-port", "0")
        with launched as server:
            done = self.weft("share", "--config", self.file, "remove", "new")
            self.assertIn("shares that are gone: new", done.stdout)
            self.assertIn("NT_STATUS_BAD_NETWORK_NAME", self.smbclient(server, "alice", "new"))
            done = self.weft("share", "--config", self.file, "add", "new", self.work / "new")
            self.assertIn("new shares: new", done.stdout)
            self.assertNotIn("did not exist", done.stderr)

    def test_a_hang_up_and_changes_of_the_file_are_taken_over(self):
        with self.serving() as server:
            self.file.write_text(FILE + f'[shares.new]\npath = "{self.work}/new"\n')
            os.kill(server.process.pid, signal.SIGHUP)
            until = time.monotonic() + 30
            while "new shares: new" not in server.log_text():
                self.assertLess(time.monotonic(), until, server.log_text())
                time.sleep(0.02)
            self.assertIn("in-new", self.smbclient(server, "alice", "new"))
            for _ in range(50):
                os.kill(server.process.pid, signal.SIGHUP)
                time.sleep(0.001)
            # Until the last of them has been followed; the next reload is that of the command.
            before, reloads = -1, server.log_text().count("read the configuration again")
            while before != reloads:
                time.sleep(0.5)
                before, reloads = reloads, server.log_text().count("read the configuration again")
            done = self.weft("share", "--config", self.file, "remove", "new")
            self.assertIn("shares that are gone: new", done.stdout)
            done = self.weft("share", "--config", self.file, "add", "again", self.work / "new", "--write", "bob")
            self.assertIn("new shares: again", done.stdout)
            self.assertIn("in-new", self.smbclient(server, "bob", "again"))
            adds = [
                subprocess.Popen([weft.WEFT, "share", "--config", self.file, "--state-dir", self.state, "add", f"s{n}",
                                  self.work / "new"], stdout=subprocess.DEVNULL)
                for n in range(6)
            ]
            self.assertEqual([add.wait(60) for add in adds], [0] * 6)
            for n in range(6):
                self.weft("share", "--config", self.file, "remove", f"s{n}")
            listed = json.loads(self.weft("share", "--config", self.file, "list", "--json").stdout)
            self.assertEqual([share["name"] for share in listed], ["stay", "go", "again"])
            self.assertEqual(listed[2]["write"], ["bob"])

    def test_a_share_without_its_folder_leaves_the_others_served(self):
        """One unplugged disk stopped the whole server, and its reloads."""
        away = self.work / "away"
        self.file.write_text(FILE + '[shares.away]\npath = "away"\n')
        checked = weft.run(weft.WEFT, "config", "check", self.file)
        self.assertIn("share away is not served", checked.stderr)
        with self.serving() as server:
            self.assertEqual([share["name"] for share in server.ready["shares"]], ["stay", "go"])
            [absent] = server.ready["shares_not_served"]
            self.assertEqual(absent["name"], "away")
            self.assertIn("no such folder; create it: mkdir -p", absent["why"])
            self.assertIn("share away is not served", server.log_text())
            self.assertIn("in-stay", self.smbclient(server, "alice", "stay"))
            status = self.weft("status").stdout
            self.assertRegex(status, "share +! away is not served: .*no such folder.* `weft reload --state-dir ")
            [about] = json.loads(self.weft("status", "--json").stdout)["servers"]
            self.assertIn("no such folder", {share["name"]: share for share in about["shares"]}["away"]["not_served"])
            # Other shares come and go meanwhile.
            report = self.report()
            self.assertEqual((report["added"], report["removed"], report["restart"]), ([], [], []))
            self.assertEqual([share["name"] for share in report["absent"]], ["away"])
            self.assertIn("new shares: new", self.weft("share", "--config", self.file, "add", "new", self.work / "new").stdout)
            away.mkdir()
            (away / "in-away").touch()
            self.assertEqual(self.report()["added"], ["away"])
            self.assertIn("in-away", self.smbclient(server, "alice", "away"))
            self.assertNotIn("!", self.weft("status").stdout)
            # A share that is served stays, because the server still has its folder.
            away.rename(self.work / "moved")
            report = self.report()
            self.assertEqual((report["removed"], report["absent"]), ([], []))
            self.assertIn("share away keeps the folder that it has: ", " ".join(report["warnings"]))
            self.assertIn("in-away", self.smbclient(server, "alice", "away"))
            self.assertIn("moved", self.weft("status").stdout)
        # With nothing left there is no server.
        self.file.write_text(FILE.split("[shares.stay]")[0] + '[shares.gone]\npath = "gone"\n')
        done = self.weft("serve", "--config", self.file, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no such folder", done.stderr)

    def test_an_address_that_the_host_lacks_leaves_the_others_served(self):
        listeners = 'addresses = ["127.0.0.1", "192.0.2.1"]\nsmb_port'
        self.file.write_text(FILE.replace("smb_port", listeners, 1))
        with self.serving() as server:
            self.assertIn("nothing listens on 192.0.2.1", server.log_text())
            self.assertIn("in-stay", self.smbclient(server, "alice", "stay"))
            [about] = json.loads(self.weft("status", "--json").stdout)["servers"]
            self.assertIn("192.0.2.1", " ".join(about["warnings"]))
            self.assertRegex(self.weft("status").stdout, "server +! .*nothing listens on 192.0.2.1")

    @unittest.skipUnless(os.getuid() == 0, "the server runs as another user")
    def test_a_share_that_the_server_cannot_read_is_not_added(self):
        """The line stayed, and every later reload failed."""
        closed = self.work / "closed"
        closed.mkdir(mode=0o700)
        nobody = pwd.getpwnam("nobody")
        for path in [self.work, *self.work.rglob("*")]:
            if path not in [closed, self.file]:
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        before = self.file.read_text()
        as_nobody = ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
        with self.serving(as_nobody) as server:
            done = self.weft("share", "--config", self.file, "add", "closed", closed, check=False)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stderr, "weft.toml is as it was, without share closed: .*Permission denied")
            self.assertEqual(self.file.read_text(), before)
            self.assertEqual(self.report()["absent"], [])
            self.assertIn("in-stay", self.smbclient(server, "alice", "stay"))

    @unittest.skipUnless(os.getuid() == 0, "the server runs as another user")
    def test_a_folder_that_the_server_may_not_write_is_told(self):
        """The commonest mistake was silent: mkdir as root, served by a user of its own."""
        nobody = pwd.getpwnam("nobody")
        for path in {self.work, *self.work.rglob("*")} - {self.file}:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        as_nobody = ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
        roots = self.work / "roots"
        roots.mkdir(mode=0o755)
        told = f"the server's user nobody may not write {roots}: chown nobody: {roots}, or set read_only for the share"
        with self.serving(as_nobody) as server:
            self.assertNotIn("may not write", server.log_text())
            done = self.weft("share", "--config", self.file, "add", "roots", roots)
            self.assertIn(told, done.stdout)
            self.assertIn(told, server.log_text())
            self.assertIn(told, weft.run(*as_nobody, weft.WEFT, "config", "check", self.file).stderr)
            self.file.write_text(self.file.read_text().replace("[shares.roots]", "[shares.roots]\nread_only = true"))
            self.assertEqual(self.report()["warnings"], [])

    def test_reloads_disturb_no_load_and_leak_nothing(self):
        """Verified copies over SMB and NFS, and one session, while shares and users come and go."""
        source = self.work / "source"
        weft.random_file(source, 4 << 20)
        with self.serving() as server:
            ready, stop, copies = server.ready, threading.Event(), {"smb": 0, "nfs": 0}
            urls = {
                "smb": f"smb://alice@127.0.0.1:{ready['smb_port']}/stay/by-smb",
                "nfs": f"nfs://127.0.0.1:{ready['nfs_port']}/stay/by-nfs?vers=4.1",
            }
            failures = []

            def copy(kind):
                while not stop.is_set():
                    done = weft.run(weft.WEFT, "cp", "--quiet", source, urls[kind], check=False,
                                    password="of-alice")
                    if done.returncode != 0:
                        failures.append((kind, done.stderr))
                        return
                    copies[kind] += 1

            def descriptors():
                return len(os.listdir(f"/proc/{server.process.pid}/fd"))

            def memory():
                status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
                return int(status.split("VmRSS:")[1].split()[0])

            stays = self.session(server, "alice", "stay")
            threads = [threading.Thread(target=copy, args=(kind,)) for kind in urls]
            for thread in threads:
                thread.start()
            try:
                figures = []
                for n in range(RELOADS):
                    (self.work / "new" / str(n)).mkdir()
                    text = FILE if n % 2 else FILE.split("[shares.go]")[0] + f'[shares.n{n}]\npath = "new/{n}"\nread = ["bob"]\n'
                    self.file.write_text(text)
                    if n % 4 == 0:
                        self.weft("user", "remove", "bob", "--force")
                    elif n % 4 == 1:
                        self.weft("user", "add", "bob", password="of-bob")
                    self.assertEqual(self.report()["restart"], [])
                    if n % 4 == 1:
                        self.assertIn("in-go", self.smbclient(server, "bob", "go"))
                    figures.append((descriptors(), memory()))
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(failures, [])
            self.assertTrue(all(copies.values()), copies)
            self.assertIn("in-stay", stays.communicate("ls\n", timeout=60)[0])
            for kind in urls:
                self.assertTrue(weft.same(source, self.work / "stay" / f"by-{kind}"))
            self.assertNotIn("another Weft", server.log_text())
            half = len(figures) // 2
            first, last = max(fds for fds, _ in figures[:half]), min(fds for fds, _ in figures[half:])
            self.assertLessEqual(last, first, figures)
            if RELOADS >= 100:
                print(f"{RELOADS} reloads, {copies} copies, descriptors and KiB: {figures[10]} to {figures[-1]}")


if __name__ == "__main__":
    unittest.main()
