"""Samba's smbclient on a share: put, get, list, rename, delete; signed, encrypted, every dialect."""

import os
import pathlib
import tempfile
import unittest

import weft

SIGNED = ("--client-protection=sign",)
ENCRYPTED = ("--client-protection=encrypt",)


class SmbClient(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory(prefix="weft-client-")
        self.addCleanup(self.work.cleanup)
        self.source = weft.random_file(pathlib.Path(self.work.name) / "source", (3 << 20) + 17)
        self.empty = weft.random_file(pathlib.Path(self.work.name) / "nothing", 0)
        self.back = pathlib.Path(self.work.name) / "back"

    def round(self, server, *options, share="data"):
        """Every basic command once."""
        say = lambda commands: weft.smbclient(server, commands, *options, share=share)
        say(f"mkdir dir; cd dir; put {self.source} one; put {self.empty} empty")
        listed = say("ls dir\\*")
        self.assertRegex(listed, r"one +A? +3145745 ")
        self.assertRegex(listed, r"empty +A? +0 ")
        self.back.unlink(missing_ok=True)
        say(f"rename dir\\one dir\\two; get dir\\two {self.back}")
        self.assertTrue(weft.same(self.source, self.back))
        say("del dir\\two; del dir\\empty; rmdir dir")
        self.assertNotIn("dir", say("ls").split())

    def test_plain_signed_and_encrypted(self):
        with weft.serving() as server:
            for options in [(), SIGNED, ENCRYPTED]:
                for share in ["data", "ram"]:
                    with self.subTest(options=options, share=share):
                        self.round(server, *options, share=share)

    def test_every_dialect(self):
        with weft.serving("--min-dialect", "2.1") as server:
            for dialect in ["SMB2_10", "SMB3_00", "SMB3_02", "SMB3_11"]:
                for options in [(), SIGNED] + ([ENCRYPTED] if dialect != "SMB2_10" else []):
                    with self.subTest(dialect=dialect, options=options):
                        self.round(server, "-m", dialect, *options)

    def test_dialects_below_3_0_are_refused_unless_they_are_asked_for(self):
        with weft.serving() as server:
            for dialect in ["SMB2_02", "SMB2_10"]:
                said = weft.smbclient(server, "ls", "-m", dialect, check=False)
                self.assertIn("NT_STATUS_NOT_SUPPORTED", said)
            self.assertIn("--min-dialect 2.1 lets it in", server.log_text())

    def test_required_signing(self):
        for option in [("--signing", "required"), ("--require-signing",)]:
            with weft.serving(*option) as server:
                self.round(server)
                self.round(server, *SIGNED)
                self.assertIn("signing=true", server.log_text())

    def test_only_clients_of_other_hosts_must_sign(self):
        unsigned = ("--option=client signing=if_required", "--option=client min protocol=SMB2")
        with weft.serving() as server:
            self.round(server, *unsigned)
            self.assertIn("signing=false", server.log_text())
            self.assertNotIn("signing=true", server.log_text())

    @unittest.skipUnless(os.geteuid() == 0, "needs root for an address of its own")
    def test_clients_of_other_hosts_sign(self):
        with weft.own_network():
            weft.run("ip", "address", "add", "10.9.9.9/32", "dev", "lo")
            with weft.serving(listen="10.9.9.9") as server:
                weft.run(
                    "smbclient", "//10.9.9.9/data", "-p", server.smb_port, "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", "ls"
                )
                self.assertIn("signing=true", server.log_text())
                self.assertNotIn("signing=false", server.log_text())

    def test_a_log_on_that_was_meant_for_another_server_is_refused(self):
        """What an NTLM relay would present: the name that the client addressed is not this server's."""
        call = lambda server: weft.run(
            "smbclient", "//files.example/data", "-I", "127.0.0.1", "-p", server.smb_port,
            "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", "ls", check=False,
        )
        with weft.serving() as server:
            refused = call(server)
            self.assertIn("NT_STATUS_ACCESS_DENIED", refused.stdout + refused.stderr)
            self.assertIn('the client meant "cifs/files.example"', server.log_text())
        for option in [("--server-name", "files.example"), ("--signing", "required")]:
            with weft.serving(*option) as server:
                self.assertEqual(call(server).returncode, 0)

    def test_required_encryption(self):
        with weft.serving("--require-encryption", "--min-dialect", "2.1") as server:
            self.round(server)
            self.round(server, *ENCRYPTED)
            # A dialect without encryption is refused.
            said = weft.smbclient(server, "ls", "-m", "SMB2_10", check=False)
            self.assertIn("NT_STATUS_ACCESS_DENIED", said)

    def test_wrong_password_and_unknown_user_are_refused(self):
        with weft.serving() as server:
            for user, password in [(weft.USER, "wrong"), ("nobody", weft.PASSWORD), (weft.USER, "")]:
                said = weft.smbclient(server, "ls", user=user, password=password, check=False)
                self.assertIn("NT_STATUS_LOGON_FAILURE", said)
            said = weft.run(
                "smbclient", "//127.0.0.1/data", "-p", server.smb_port, "-N", "-c", "ls", check=False
            )
            self.assertNotEqual(said.returncode, 0)
            # The right password still works.
            weft.smbclient(server, "ls")

    def test_nothing_outside_the_share(self):
        with weft.serving() as server:
            outside = server.folder.parent / "outside"
            outside.write_text("not shared")
            (server.folder / "link").symlink_to(outside)
            (server.folder / "up").symlink_to("..")
            for name in ["..\\outside", "link", "up\\outside", "..\\..\\..\\etc\\passwd"]:
                with self.subTest(name=name):
                    self.back.unlink(missing_ok=True)
                    weft.smbclient(server, f"get {name} {self.back}", check=False)
                    self.assertTrue(not self.back.exists() or self.back.stat().st_size == 0)
            weft.smbclient(server, f"put {self.source} ..\\planted", check=False)
            self.assertFalse((server.folder.parent / "planted").exists())

    def test_files_that_their_names_hide_are_written_again(self):
        with weft.serving() as server:
            for source in [self.source, self.empty, self.source]:
                weft.smbclient(server, f"put {source} .hidden")
                self.assertTrue(weft.same(source, server.folder / ".hidden"))
                self.assertRegex(weft.smbclient(server, "ls"), r"\.hidden +A?H ")

    def test_names_beyond_ascii_and_large_folders(self):
        with weft.serving() as server:
            name = "Grüße 漢字 😀.txt"
            weft.smbclient(server, f'put {self.source} "{name}"')
            self.assertTrue(weft.same(self.source, server.folder / name))
            self.assertIn(name, weft.smbclient(server, "ls"))
            many = server.folder / "many"
            many.mkdir()
            for i in range(3000):
                (many / f"file-{i:05}").touch()
            listed = weft.smbclient(server, "ls many\\*")
            self.assertEqual(listed.count("file-"), 3000)


if __name__ == "__main__":
    unittest.main()
