"""Whose files: a server that runs as root uses folders as the accounts of the users who are logged on.

The server runs in a mount namespace with accounts of its own (see test_system_users)."""

import os
import unittest

import weft
from test_system_users import Inside, can_mount

ALICE, BOB, PEOPLE = 5001, 5002, 5001

FILE = """
{extra}
[listeners]
smb_port = 0
smb_direct_port = 0

[shares.team]
path = "team"

[shares.common]
path = "common"
{force}
"""


@unittest.skipUnless(can_mount(), "needs root and mount namespaces")
class Acting(Inside):
    def setUp(self):
        super().setUp()
        self.work.chmod(0o755)
        self.team = self.work / "team"
        (self.team / "plan.txt").unlink()
        for folder in ["team", "common"]:
            (self.work / folder).chmod(0o777)
        (self.work / "new").write_text("content")
        self.add_users("alice", "bob", "eve")

    def configure(self, extra="", force=""):
        (self.work / "weft.toml").write_text(FILE.format(extra=extra, force=force))

    def owner(self, path):
        status = (self.work / path).stat()
        return status.st_uid, status.st_gid

    def test_files_belong_to_their_users_and_the_kernel_decides_who_else_gets_them(self):
        with self.serving() as server:
            self.assertIn("putting file", self.smbclient(server, "alice", "put new hers; mkdir private"))
            self.assertIn("putting file", self.smbclient(server, "bob", "put new his"))
            self.assertEqual(self.owner("team/hers"), (ALICE, PEOPLE))
            self.assertEqual(self.owner("team/private"), (ALICE, PEOPLE))
            self.assertEqual(self.owner("team/his"), (BOB, PEOPLE))

            # Closed to everybody else: what is in it, and its names.
            (self.team / "private").chmod(0o700)
            self.assertIn("putting file", self.smbclient(server, "alice", "put new private\\secret"))
            for command in ["get private\\secret -", "put new private\\other", "del private\\secret", "cd private; ls",
                            "rename private\\secret mine"]:
                with self.subTest(command):
                    self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "bob", command))
            self.assertIn("getting file", self.smbclient(server, "alice", "get private\\secret -"))

            # An ACL of the host lets bob in, and nothing else has changed.
            granted = weft.run("setfacl", "-m", f"u:{BOB}:rx", self.team / "private", check=False)
            if granted.returncode != 0:
                self.skipTest(f"no POSIX ACLs: {granted.stderr}")
            self.assertIn("getting file", self.smbclient(server, "bob", "get private\\secret -"))
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "bob", "put new private\\other"))
            weft.run("setfacl", "-m", f"u:{BOB}:rwx", self.team / "private")
            self.assertIn("putting file", self.smbclient(server, "bob", "put new private\\other"))
            self.assertEqual(self.owner("team/private/other"), (BOB, PEOPLE))

            # Those who share a group share a directory with its bit; in a sticky one, they keep what is theirs.
            (self.team / "sticky").mkdir()
            (self.team / "sticky").chmod(0o1777)
            self.smbclient(server, "alice", "put new sticky\\hers")
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "bob", "del sticky\\hers"))
            self.assertNotIn("NT_STATUS", self.smbclient(server, "alice", "del sticky\\hers"))
            self.assertFalse(server.faults("ERROR"))

    def test_a_user_without_an_account_is_told_what_to_do_and_the_user_of_the_command_line_is_the_server(self):
        self.configure(extra='user = "tester"')
        with self.serving() as server:
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "eve", "ls"))
            said = server.log_text()
            self.assertIn("eve has no account of the system", said)
            self.assertIn("useradd eve", said)
            self.assertIn("shares.team.force_user", said)
            self.smbclient(server, "tester", "put new roots", password=weft.PASSWORD)
            self.assertEqual(self.owner("team/roots"), (os.geteuid(), os.getegid()))
        self.configure(extra="[smb]\nact_as_callers = false")
        with self.serving() as server:
            self.smbclient(server, "eve", "put new of-eve")
            self.assertEqual(self.owner("team/of-eve"), (os.geteuid(), os.getegid()))

    def test_everybody_is_the_user_whom_a_share_names_from_the_next_reload_on(self):
        with self.serving() as server:
            self.smbclient(server, "alice", "put new first", share="common")
            self.assertEqual(self.owner("common/first")[0], ALICE)
            self.configure(force='force_user = "nobody-here"')
            refused = self.weft("reload", "--state-dir", self.state, check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("this host has no account nobody-here; create it (useradd nobody-here)", refused.stderr)
            self.assertRegex(refused.stderr, r"weft\.toml:\d+:\d+")
            self.configure(force='force_user = "bob"')
            self.weft("reload", "--state-dir", self.state)
            for user in ["alice", "eve"]:
                with self.subTest(user):
                    self.assertIn("putting file", self.smbclient(server, user, f"put new of-{user}", share="common"))
                    self.assertEqual(self.owner(f"common/of-{user}"), (BOB, PEOPLE))


if __name__ == "__main__":
    unittest.main()
