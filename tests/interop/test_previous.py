"""Previous versions and read-only shares, as Samba's smbclient and libnfs see them."""

import pathlib
import tempfile
import unittest

import weft

OLD, NEWER = "@GMT-2026.01.02-03.04.05", "@GMT-2026.03.04-00.00.00"


class Previous(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory(prefix="weft-previous-")
        self.addCleanup(self.work.cleanup)
        self.back = pathlib.Path(self.work.name) / "back"

    def snapshots(self, server):
        """The share's folder has two earlier states, and a folder that only looks like one."""
        for name, text in [("2026-01-02_03.04.05", "first"), ("2026-03-04_00.00.00", "second")]:
            state = server.folder / ".snap" / f"at-{name}" / "dir"
            state.mkdir(parents=True)
            (state / "file").write_text(text)
        (server.folder / ".snap" / "at-2020-01-01_00.00.00").symlink_to("/")
        (server.folder / "dir").mkdir()
        (server.folder / "dir" / "file").write_text("now")

    def got(self, server, name, *options):
        self.back.unlink(missing_ok=True)
        weft.smbclient(server, f'get "{name}" {self.back}', *options)
        return self.back.read_text()

    def test_smbclient_lists_them_and_reads_them(self):
        with weft.serving("--snapshots", "data=.snap/at-%Y-%m-%d_%H.%M.%S", "--min-dialect", "2.1") as server:
            self.snapshots(server)
            for options in [(), ("--client-protection=encrypt",), ("-m", "SMB2_10")]:
                with self.subTest(options=options):
                    told = weft.smbclient(server, "allinfo dir\\file", *options)
                    self.assertIn(OLD, told)
                    self.assertIn(NEWER, told)
                    self.assertEqual(self.got(server, f"{OLD}\\dir\\file", *options), "first")
                    self.assertEqual(self.got(server, f"{NEWER}\\dir\\file", *options), "second")
                    self.assertEqual(self.got(server, "dir\\file", *options), "now")
                    self.assertRegex(weft.smbclient(server, f"ls {OLD}\\dir\\*", *options), r"file +\S* +5 ")
            for refused in ["@GMT-2026.01.02-03.04.06", "@GMT-2020.01.01-00.00.00"]:
                said = weft.smbclient(server, f"ls {refused}\\*", check=False)
                self.assertIn("NT_STATUS_OBJECT_NAME_NOT_FOUND", said)
            # Weft's own client has no syntax for a version: it uses the path.
            shown = weft.run(weft.WEFT, "cat", server.url(f"{OLD}/dir/file")).stdout
            self.assertEqual(shown, "first")

    def test_nobody_changes_the_past(self):
        with weft.serving("--snapshots", "data=.snap/at-%Y-%m-%d_%H.%M.%S") as server:
            self.snapshots(server)
            source = weft.random_file(pathlib.Path(self.work.name) / "source", 100)
            for command in [
                f"put {source} {OLD}\\dir\\file", f"put {source} {OLD}\\dir\\other", f"mkdir {OLD}\\new", f"del {OLD}\\dir\\file",
                f"rmdir {OLD}\\dir", f"rename {OLD}\\dir\\file {OLD}\\dir\\away",
            ]:
                with self.subTest(command=command):
                    said = weft.smbclient(server, command, check=False)
                    self.assertRegex(said, "NT_STATUS_(MEDIA_WRITE_PROTECTED|CANNOT_DELETE)")
            self.assertEqual(self.got(server, f"{OLD}\\dir\\file"), "first")
            self.assertEqual([p.name for p in (server.folder / ".snap" / "at-2026-01-02_03.04.05").rglob("*")], ["dir", "file"])

    def test_a_share_without_snapshots_has_none(self):
        with weft.serving() as server:
            (server.folder / "file").write_text("now")
            self.assertNotIn("@GMT", weft.smbclient(server, "allinfo file"))
            said = weft.smbclient(server, f"ls {OLD}\\*", check=False)
            self.assertIn("NT_STATUS_OBJECT_NAME_NOT_FOUND", said)

    def test_what_makes_no_sense_is_refused_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder) / "data"
            data.mkdir()
            for options, word in [
                (["--snapshots", "data=.snap/daily"], "one component"), (["--snapshots", "data=../%Y-%m-%d"], ".."),
                (["--snapshots", "data=%H"], "year"), (["--snapshots", "other=%F"], "no share of that name"),
                (["--snapshots", "data"], "NAME=PATTERN"), (["--read-only", "other"], "no share of that name"),
            ]:
                with self.subTest(options=options):
                    done = weft.run(
                        weft.WEFT, "serve", data, "--user", weft.USER, "--smb-port", 0, *options, check=False,
                    )
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(word, done.stderr)


class ReadOnly(unittest.TestCase):
    def test_a_read_only_share_is_read_and_never_changed(self):
        with weft.serving("--read-only", "data") as server, tempfile.TemporaryDirectory() as work:
            (server.folder / "file").write_text("content")
            source = weft.random_file(pathlib.Path(work) / "source", 100)
            self.assertIn("file", weft.smbclient(server, "ls"))
            for command in [f"put {source} new", f"put {source} file", "mkdir new", "del file", "rename file away"]:
                said = weft.smbclient(server, command, check=False)
                self.assertRegex(said, "NT_STATUS_(MEDIA_WRITE_PROTECTED|CANNOT_DELETE)", command)
            for url in [server.url, server.nfs_url]:
                self.assertEqual(weft.run(weft.WEFT, "cat", url("file")).stdout, "content")
                done = weft.run(weft.WEFT, "cp", source, url("new"), check=False)
                self.assertNotEqual(done.returncode, 0)
            self.assertEqual([p.name for p in server.folder.iterdir()], ["file"])
            # The other share is unchanged.
            weft.smbclient(server, f"put {source} new", share="ram")


if __name__ == "__main__":
    unittest.main()
