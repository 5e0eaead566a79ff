"""A DFS namespace: smbclient follows links, skips an unavailable target, and works beyond them."""

import os
import pathlib
import tempfile
import unittest

import weft


@unittest.skipUnless(os.geteuid() == 0, "links name servers without a port: the test needs root for a network of its own")
class Dfs(unittest.TestCase):
    def setUp(self):
        self.enterContext(weft.own_network())
        work = tempfile.TemporaryDirectory(prefix="weft-dfs-")
        self.addCleanup(work.cleanup)
        self.other = pathlib.Path(work.name) / "other"
        self.other.mkdir()
        (self.other / "file").write_text("beyond the link")
        self.back = pathlib.Path(work.name) / "back"

    def test_a_link_leads_to_the_first_target_that_is_there(self):
        link = "data/Link=//127.0.0.1/missing,//127.0.0.1/other"
        with weft.serving(str(self.other), "--dfs-link", link, "--min-dialect", "2.0.2", ports={"smb": 445}) as server:
            for dialect in ["SMB2_02", "SMB3_11"]:
                with self.subTest(dialect=dialect):
                    say = lambda commands: weft.smbclient(server, commands, "-m", dialect, check=False)
                    self.assertRegex(say("ls"), r"Link +D")
                    moves = "mkdir d; rename file d\\file; rename d\\file file; rmdir d"
                    said = say(f"cd Link; ls; get file {self.back}; {moves}")
                    self.assertIn("file", said)
                    self.assertEqual(self.back.read_text(), "beyond the link")
                    self.assertEqual([entry.name for entry in self.other.iterdir()], ["file"])
                    # Nothing can be hidden behind the link.
                    self.assertIn("NT_STATUS_", say(f"put {self.back} Link"))

    def test_our_own_client_follows_links(self):
        """Links to a share beside the root, from there to another server, and back in a circle."""
        (self.other / "deep").mkdir()
        first = ("--dfs-link", "data/Link=//127.0.0.1/missing,//127.0.0.1/other", "--dfs-link", "data/away=//127.0.0.2/data/jump")
        with weft.serving(str(self.other), *first, ports={"smb": 445}) as server:
            second = ("--dfs-link", "data/jump=//127.0.0.1/other/deep", "--dfs-link", "data/round=//127.0.0.2/data/round")
            with weft.serving(*second, ports={"smb": 445}, listen="127.0.0.2"):
                client = lambda *command, check=True: weft.run(weft.WEFT, *command, "--transport", "tcp", check=check)
                url = f"smb://{weft.USER}@127.0.0.1/data/"
                self.assertIn("file", client("ls", url + "link").stdout)
                client("cp", "--quiet", url + "Link/file", self.back)
                self.assertEqual(self.back.read_text(), "beyond the link")
                # Across two links, the second on another server; written and read.
                said = client("cp", self.back, url + "away/copy")
                self.assertEqual((self.other / "deep" / "copy").read_text(), "beyond the link")
                self.assertIn("through the DFS link away", said.stdout + said.stderr)
                self.assertEqual(client("cat", url + "away/copy").stdout, "beyond the link")
                # Paths outside the link are unaffected.
                client("cp", "--quiet", self.back, url + "plain")
                self.assertEqual((server.folder / "plain").read_text(), "beyond the link")
                # A circle ends with an error.
                said = client("ls", f"smb://{weft.USER}@127.0.0.2/data/round", check=False)
                self.assertNotEqual(said.returncode, 0)
                self.assertIn("DFS link", said.stderr)
