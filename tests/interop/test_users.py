"""Users and groups of `weft user` and `weft group`: they log on with their own passwords, and rights on shares bind
them. smbclient and rpcclient are the clients."""

import json
import pathlib
import subprocess
import tempfile
import time
import unittest

import weft

FILE = weft.FREE_PORTS + weft.NO_ACCOUNTS + """
[shares.team]
path = "team"
read = ["@staff"]
write = ["alice"]

[shares.common]
path = "common"
"""


class Users(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-users-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        self.state = self.work / "state"
        for folder in ["team", "common"]:
            (self.work / folder).mkdir()
        (self.work / "team" / "plan.txt").write_text("of the team")
        (self.work / "weft.toml").write_text(FILE)
        for user, *options in [("alice",), ("bob", "--group", "staff"), ("eve",)]:
            self.weft("user", "add", user, *options, password=f"of-{user}")

    def weft(self, *arguments, password="", check=True):
        """One command about this state directory."""
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, password=password, check=check)

    def serving(self):
        return weft.configured(self.work / "weft.toml", self.state)

    def smbclient(self, server, user, commands, share="team", password=None):
        """What smbclient prints as this user."""
        password = f"of-{user}" if password is None else password
        return weft.smbclient(server, commands, share=share, user=user, password=password, check=False, cwd=self.work)

    def shares(self, server, user):
        line = ["smbclient", "-g", "-p", str(server.ready["smb_port"]), "-L", "127.0.0.1", "-U", f"{user}%of-{user}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
        return {row.split("|")[1] for row in done.stdout.splitlines() if row.startswith("Disk|")}

    def test_rights_bind_each_user_over_every_operation(self):
        with self.serving() as server:
            (self.work / "new").write_text("x")
            self.assertIn("putting file", self.smbclient(server, "alice", "put new"))
            self.assertIn("of the team", self.smbclient(server, "bob", "get plan.txt -"))
            for change in ["put new other", "mkdir folder", "del plan.txt", "rename plan.txt other", "setmode plan.txt +r",
                           "hardlink plan.txt other", "rmdir folder"]:
                with self.subTest(change):
                    said = self.smbclient(server, "bob", change)
                    self.assertRegex(said, "NT_STATUS_(ACCESS_DENIED|OBJECT_NAME_NOT_FOUND)")
            self.assertEqual({path.name for path in (self.work / "team").iterdir()}, {"plan.txt", "new"})
            self.assertIn("tree connect failed: NT_STATUS_ACCESS_DENIED", self.smbclient(server, "eve", "ls"))
            self.assertEqual(self.shares(server, "bob"), {"team", "common"})
            self.assertEqual(self.shares(server, "eve"), {"common"})
            for user in ["alice", "bob", "eve"]:
                self.assertIn("putting file", self.smbclient(server, user, f"put new of-{user}", share="common"))
            for user, password in [("alice", "of-bob"), ("nobody", "of-alice"), ("eve", "")]:
                self.assertIn("NT_STATUS_LOGON_FAILURE", self.smbclient(server, user, "ls", password=password))
            # NFS has no users that log on.
            listing = weft.run(weft.WEFT, "ls", f"nfs://127.0.0.1:{server.ready['nfs_port']}", check=False)
            self.assertNotIn("team", listing.stdout)

    def test_users_and_groups_are_told_to_those_who_show_permissions(self):
        with self.serving() as server:
            line = ["rpcclient", "-p", str(server.ready["smb_port"]), "-U", "alice%of-alice", "127.0.0.1", "-c"]
            done = subprocess.run([*line, "enumdomusers; enumalsgroups domain; lookupnames staff"], capture_output=True,
                                  text=True, timeout=60, check=True)
            for user in ["alice", "bob", "eve"]:
                self.assertIn(f"user:[{user}]", done.stdout)
            self.assertIn("group:[staff]", done.stdout)
            self.assertRegex(done.stdout, r"staff S-1-5-21-\S+ \(Local Group")

    def test_changes_of_users_take_effect_while_the_server_runs(self):
        with self.serving() as server:
            self.weft("user", "add", "carol", "--group", "staff", password="of-carol")
            self.assertIn("of the team", self.smbclient(server, "carol", "get plan.txt -"))
            self.weft("user", "passwd", "carol", password="changed")
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.smbclient(server, "carol", "ls"))
            self.assertIn("plan.txt", self.smbclient(server, "carol", "ls", password="changed"))
            self.weft("group", "add", "staff", "eve")
            self.assertIn("plan.txt", self.smbclient(server, "eve", "ls"))
            self.weft("group", "remove", "staff", "eve")
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "eve", "ls"))

            line = ["smbclient", "-p", str(server.ready["smb_port"]), "//127.0.0.1/team", "-U"]
            sessions = {}
            for user in ["bob", "alice"]:
                sessions[user] = subprocess.Popen([*line, f"{user}%of-{user}"], stdin=subprocess.PIPE, text=True,
                                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.addCleanup(sessions[user].stdout.close)
            until = time.monotonic() + 30
            while server.log_text().count("logged on user=bob") + server.log_text().count("logged on user=alice") < 2:
                self.assertLess(time.monotonic(), until, server.log_text())
                time.sleep(0.05)
            self.weft("user", "remove", "bob")
            said = {user: session.communicate("ls\n", timeout=60)[0] for user, session in sessions.items()}
            self.assertIn("NT_STATUS_USER_SESSION_DELETED", said["bob"])
            self.assertIn("plan.txt", said["alice"])
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.smbclient(server, "bob", "ls"))
            self.assertEqual([user["name"] for user in json.loads(self.weft("user", "list", "--json").stdout)],
                             ["alice", "carol", "eve"])

    def test_the_store_survives_a_restart_and_is_closed_to_others(self):
        with self.serving() as server:
            server.crash()
            server.start()
            self.assertIn("plan.txt", self.smbclient(server, "alice", "ls"))
        for name in ["users.toml", "users.key"]:
            path = self.state / name
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            self.assertNotIn(b"of-alice", path.read_bytes())
        with open(self.state / "users.toml", "a") as store:
            store.write("[users.mallory]\nnt_hash = \"00\"\n")
        with self.serving() as server:
            self.assertRegex(server.log_text(), "do not open with .*users.key, so they cannot log on: mallory")
            self.assertIn("plan.txt", self.smbclient(server, "alice", "ls"))

    def test_a_lost_key_locks_its_users_until_they_get_new_passwords(self):
        """The advised command failed with the same error, and the server did not start."""
        (self.state / "users.key").unlink()
        with self.serving() as server:
            self.assertRegex(self.weft("status").stdout, "server +! .*users.key .it is missing., so they cannot log on: alice, ")
            self.assertIn("NT_STATUS_", self.smbclient(server, "alice", "ls"))
            refused = self.weft("user", "passwd", "alice", password="new", check=False)
            self.assertIn("it is missing: restore it from a backup. If it is lost, `weft user passwd --new-key", refused.stderr)
            told = self.weft("user", "passwd", "--new-key", "alice", password="of-alice")
            self.assertRegex(told.stderr, "they cannot log on: bob")
            self.assertIn("plan.txt", self.smbclient(server, "alice", "ls"))
            self.assertIn("! needs a new password", self.weft("user", "list").stdout)
            for user in [line.split()[0] for line in self.weft("user", "list").stdout.splitlines() if "!" in line]:
                self.weft("user", "passwd", user, password=f"of-{user}")
            self.assertNotIn("!", self.weft("status").stdout)

    def test_a_name_with_rights_is_removed_only_by_force(self):
        """The name of a removed group meant the host's group."""
        with self.serving():
            for command, shown in [(("group", "remove", "staff"), "@staff"), (("user", "remove", "alice"), "alice")]:
                refused = self.weft(*command, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertRegex(refused.stderr, f"{shown} has rights on shares: .*--force")
                self.weft(*command, "--force")

    def test_mistakes_name_what_to_type(self):
        for arguments, says in [
            (("user", "add", "Alice"), "to change the password: weft user passwd Alice --state-dir"),
            (("user", "passwd", "nobody"), "there is no user nobody: weft user list --state-dir"),
            (("user", "remove", "nobody"), "there is no user nobody"),
            (("user", "add", "a/b"), "cannot be a name"),
            (("group", "add", "staff", "nobody"), "there is no user nobody"),
            (("group", "remove", "nobody"), "there is no group nobody: weft group list"),
            (("group", "remove", "staff", "alice"), "alice is not in the group staff"),
        ]:
            with self.subTest(arguments):
                refused = self.weft(*arguments, password="x", check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn(says, refused.stderr)
        no_password = self.weft("user", "add", "dave", check=False)
        self.assertIn("set WEFT_PASSWORD, or give --generate", no_password.stderr)
        made = self.weft("user", "add", "dave", "--generate")
        self.assertRegex(made.stdout, "password of dave: [a-z2-9]{12}\n")


if __name__ == "__main__":
    unittest.main()
