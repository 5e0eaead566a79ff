"""rclone and the Python package smbprotocol; long paths and large folders."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

import test_commands
import weft

# After Debian's packages, because impacket needs its own version of cryptography.
sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    import smbclient
    import smbprotocol.exceptions
except ImportError:
    smbclient = None


class Rclone(unittest.TestCase):
    """An SMB client written in Go."""

    def test_a_tree_there_and_back(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-rclone-") as work:
            source, back = pathlib.Path(work) / "source", pathlib.Path(work) / "back"
            source.mkdir()
            test_commands.make_tree(source)
            hidden = weft.run("rclone", "obscure", weft.PASSWORD).stdout.strip()
            remote = (
                f":smb,host=127.0.0.1,port={server.smb_port},user={weft.USER},pass={hidden}:data/tree"
            )
            rclone = lambda *command: weft.run("rclone", "--config", "", "--retries", "1", *command)
            rclone("copy", "--create-empty-src-dirs", source, remote)
            self.assertTrue(test_commands.same_tree(source, server.folder / "tree"))
            # rclone reads both and compares them, and skips files that are already there.
            rclone("check", "--download", source, remote)
            said = rclone("copy", "-v", source, remote).stderr
            self.assertIn("nothing to transfer", said)
            rclone("copy", "--create-empty-src-dirs", remote, back)
            self.assertTrue(test_commands.same_tree(source, back))
            rclone("moveto", f"{remote}/sub/small", f"{remote}/moved")
            self.assertEqual((server.folder / "tree" / "moved").stat().st_size, 10)
            rclone("purge", remote)
            self.assertEqual(os.listdir(server.folder), [])


@unittest.skipUnless(smbclient, "no smbprotocol: tests/interop/deps.sh installs it")
class SmbProtocol(unittest.TestCase):
    """The package used by Ansible and others."""

    def connect(self, server, **options):
        smbclient.reset_connection_cache()
        smbclient.register_session(
            "127.0.0.1", username=weft.USER, password=weft.PASSWORD, port=server.smb_port,
            auth_protocol="ntlm", **options,
        )
        self.options = {"port": server.smb_port}
        self.addCleanup(smbclient.reset_connection_cache)

    def round(self, server):
        share = r"\\127.0.0.1\data"
        smbclient.makedirs(share + r"\a\b", **self.options)
        name = share + r"\a\b\Grüße 漢字 😀"
        data = os.urandom(300_000)
        with smbclient.open_file(name, mode="wb", **self.options) as file:
            file.write(data)
        with smbclient.open_file(name, mode="rb", **self.options) as file:
            self.assertEqual(file.read(), data)
        with smbclient.open_file(share + r"\a\text", mode="w", encoding="utf-8", **self.options) as file:
            file.write("Zeile\n" * 3)
        self.assertEqual((server.folder / "a" / "text").read_bytes().count(b"Zeile"), 3)
        self.assertEqual(smbclient.stat(name, **self.options).st_size, 300_000)
        self.assertEqual(smbclient.listdir(share + r"\a\b", **self.options), ["Grüße 漢字 😀"])
        entries = {entry.name: entry.is_dir() for entry in smbclient.scandir(share + r"\a", **self.options)}
        self.assertEqual(entries, {"b": True, "text": False})
        found = [names for _, _, names in smbclient.walk(share + r"\a", **self.options)]
        self.assertEqual(sum(found, []), ["text", "Grüße 漢字 😀"])
        smbclient.utime(name, (1_000_000_000, 1_000_000_000), **self.options)
        self.assertEqual((server.folder / "a" / "b" / "Grüße 漢字 😀").stat().st_mtime, 1_000_000_000)
        smbclient.rename(name, share + r"\moved", **self.options)
        with self.assertRaises(smbprotocol.exceptions.SMBOSError):
            smbclient.stat(name, **self.options)
        smbclient.remove(share + r"\moved", **self.options)
        smbclient.remove(share + r"\a\text", **self.options)
        smbclient.removedirs(share + r"\a\b", **self.options)
        self.assertEqual(os.listdir(server.folder), [])

    def test_plain_signed_and_encrypted(self):
        for options in [{}, {"require_signing": True}, {"encrypt": True}]:
            with self.subTest(options=options), weft.serving() as server:
                self.connect(server, **options)
                self.round(server)

    def test_long_paths(self):
        """A path of 16,000 characters in components of 200."""
        with weft.serving() as server:
            self.connect(server)
            path = r"\\127.0.0.1\data"
            for i in range(80):
                path += "\\" + f"{i:02}-".ljust(200, "x")
                smbclient.mkdir(path, **self.options)
            with smbclient.open_file(path + r"\file", mode="wb", **self.options) as file:
                file.write(b"deep")
            self.assertEqual(smbclient.stat(path + r"\file", **self.options).st_size, 4)
            # One component longer than any file system allows.
            with self.assertRaises(smbprotocol.exceptions.SMBOSError):
                smbclient.mkdir(r"\\127.0.0.1\data" + "\\" + "y" * 256, **self.options)


class Large(unittest.TestCase):
    def test_a_folder_of_a_hundred_thousand(self):
        with weft.serving() as server:
            many = server.folder / "many"
            many.mkdir()
            for i in range(100_000):
                (many / f"file-{i:06}").touch()
            listed = weft.smbclient(server, "ls many\\*")
            self.assertEqual(listed.count("file-"), 100_000)
            if smbclient:
                smbclient.reset_connection_cache()
                smbclient.register_session(
                    "127.0.0.1", username=weft.USER, password=weft.PASSWORD, port=server.smb_port, auth_protocol="ntlm",
                )
                started = time.monotonic()
                entries = smbclient.scandir(r"\\127.0.0.1\data\many", port=server.smb_port)
                self.assertTrue(next(entries).name.startswith("file-"))
                print(f"first of 100,000 entries after {(time.monotonic() - started) * 1000:.0f} ms")
                smbclient.reset_connection_cache()


if __name__ == "__main__":
    unittest.main()
