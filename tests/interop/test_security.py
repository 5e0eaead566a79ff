"""Security descriptors: Samba's smbcacls shows and sets them, files store them, and they are enforced."""

import os
import unittest

import weft


@unittest.skipUnless(os.geteuid() == 0, "smbcacls knows no port but 445: the tests need root for a network of their own")
class Descriptors(unittest.TestCase):
    def setUp(self):
        self.enterContext(weft.own_network())

    def cacls(self, server, path, *options, check=True):
        return weft.run(
            "smbcacls", "//127.0.0.1/data", path, "-U", f"{weft.USER}%{weft.PASSWORD}",
            *options, check=check,
        ).stdout

    def test_shown_set_and_kept_over_a_restart(self):
        with weft.serving(ports={"smb": 445}) as server:
            (server.folder / "file").write_text("mine")
            shown = self.cacls(server, "file")
            self.assertRegex(shown, rf"OWNER:\S+\\{weft.USER}")
            self.assertIn(r"ACL:NT AUTHORITY\Authenticated Users:ALLOWED/0x0/FULL", shown)
            self.cacls(server, "file", "--set", f"ACL:{weft.USER}:ALLOWED/0/READ,ACL:Everyone:DENIED/0/W")
            server.crash()
            server.start()
            shown = self.cacls(server, "file")
            self.assertRegex(shown, rf"ACL:\S+\\{weft.USER}:ALLOWED/0x0/READ")
            self.assertIn("ACL:Everyone:DENIED/0x0/W", shown)
            self.assertNotIn("Authenticated Users", shown)

    def test_a_copy_by_nfs_keeps_them(self):
        with weft.serving(ports={"smb": 445}) as server:
            file, new = server.folder / "file", server.folder.parent / "new"
            file.write_text("old")
            new.write_text("new")
            url = f"nfs://127.0.0.1:{server.ready['nfs_port']}/data/file?vers=4.1"
            said = weft.run(weft.WEFT, "cp", new, url).stderr
            self.assertNotIn("in place", said)
            self.cacls(server, "file", "--set", f"ACL:{weft.USER}:ALLOWED/0/FULL,ACL:Everyone:ALLOWED/0/FULL")
            before = self.cacls(server, "file")
            new.write_text("newer")
            said = weft.run(weft.WEFT, "cp", new, url).stderr
            self.assertIn("is written in place: its ACL or named attributes would be lost", said)
            self.assertEqual((file.read_text(), self.cacls(server, "file")), ("newer", before))
            # A long one does not fit into a message of RPC-over-RDMA.
            many = ",".join(f"ACL:S-1-22-1-{uid}:ALLOWED/0/FULL" for uid in range(70000, 70150))
            self.cacls(server, "file", "--set", f"ACL:Everyone:ALLOWED/0/FULL,{many}")
            before = self.cacls(server, "file")
            new.write_text("newest")
            by_shm = f"{url}&rdmaport={server.ready['nfs_rdma_port']}"
            said = weft.run(weft.WEFT, "cp", "--transport", "shm", new, by_shm).stderr
            self.assertIn("is written in place: its ACL or named attributes would be lost", said)
            self.assertEqual((file.read_text(), self.cacls(server, "file")), ("newest", before))

    def test_a_copy_by_nfs_replaces_what_has_only_inherited_them(self):
        with weft.serving(ports={"smb": 445}) as server:
            (server.folder / "dir").mkdir()
            self.cacls(
                server, "dir", "--set",
                f"ACL:{weft.USER}:ALLOWED/OI|CI/FULL,ACL:Everyone:ALLOWED/OI|CI/FULL",
            )
            new = server.folder.parent / "new"
            for mode, content in [(0o644, "one"), (0o644, "two"), (0o600, "three"), (0o600, "four")]:
                new.write_text(content)
                new.chmod(mode)
                url = f"nfs://127.0.0.1:{server.ready['nfs_port']}/data/dir/file-{mode:o}?vers=4.1"
                said = weft.run(weft.WEFT, "cp", new, url).stderr
                self.assertNotIn("in place", said)
                self.assertEqual((server.folder / "dir" / f"file-{mode:o}").read_text(), content)

    def test_they_hold(self):
        with weft.serving(ports={"smb": 445}) as server:
            (server.folder / "file").write_text("mine")
            self.cacls(server, "file", "--set", f"ACL:{weft.USER}:ALLOWED/0/R")
            weft.smbclient(server, "get file /dev/null")
            said = weft.smbclient(server, "put /etc/hostname file", check=False)
            self.assertIn("NT_STATUS_ACCESS_DENIED", said)
            self.assertEqual((server.folder / "file").read_text(), "mine")
            # The owner grants himself access again.
            self.cacls(server, "file", "--set", f"ACL:{weft.USER}:ALLOWED/0/FULL")
            weft.smbclient(server, "put /etc/hostname file")

    def test_new_files_inherit(self):
        with weft.serving(ports={"smb": 445}) as server:
            (server.folder / "dir").mkdir()
            self.cacls(
                server, "dir", "--set",
                f"ACL:{weft.USER}:ALLOWED/OI|CI/FULL,ACL:Everyone:ALLOWED/OI/READ,ACL:CREATOR OWNER:ALLOWED/OI|CI|IO/FULL",
            )
            weft.smbclient(server, "put /etc/hostname dir\\file; mkdir dir\\sub")
            shown = self.cacls(server, "dir\\file")
            self.assertRegex(shown, rf"ACL:\S+\\{weft.USER}:ALLOWED/0x0/FULL")
            self.assertIn("ACL:Everyone:ALLOWED/0x0/READ", shown)
            self.assertNotIn("CREATOR", shown)
            shown = self.cacls(server, "dir\\sub")
            self.assertRegex(shown, rf"ACL:\S+\\{weft.USER}:ALLOWED/OI\|CI/FULL")
            self.assertIn(r"ACL:CREATOR OWNER:ALLOWED/OI|CI|IO/FULL", shown)
            # Permissions follow as far as possible.
            self.assertEqual((server.folder / "dir" / "file").stat().st_mode & 0o007, 0o004 | 0o001)


if __name__ == "__main__":
    unittest.main()
