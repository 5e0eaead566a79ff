"""The quota of a share: smbclient, libnfs and Weft's own commands see it as the size of the disk, and what exceeds it is
refused in the words of each protocol. du(1) says what is used."""

import contextlib
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time
import unittest

import fuse
import weft
from test_nfs import libnfs

MIB = 1 << 20
FILE = weft.FREE_PORTS + weft.NO_ACCOUNTS + """
[nfs]
root_squash = false
act_as_callers = false

[shares.data]
path = "data"
nfs.secure = false
"""


def du(folder):
    return int(subprocess.run(["du", "-s", "-B1", folder], capture_output=True, text=True, check=True).stdout.split()[0])


class Limited(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-quota-")))
        self.folder, self.state, self.file = self.work / "data", self.work / "state", self.work / "weft.toml"
        self.folder.mkdir()
        (self.folder / "before").write_bytes(b"x" * MIB)
        self.small = weft.random_file(self.work / "small", MIB)
        self.large = weft.random_file(self.work / "large", 12 * MIB)

    def weft(self, *arguments, check=True):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, check=check)

    def serve(self, quota="8MiB"):
        self.limit(quota)
        server = self.enterContext(weft.configured(self.file, self.state, "--user", weft.USER))
        self.counted()
        return server

    def limit(self, quota):
        self.file.write_text(FILE + (f'quota = "{quota}"\n' if quota else ""))

    def share(self):
        [server] = json.loads(self.weft("status", "--json").stdout)["servers"]
        [share] = server["shares"]
        return share

    def counted(self):
        """The quota, once it is counted."""
        until = time.monotonic() + 60
        while (quota := self.share().get("quota")) and quota["is_counting"]:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)
        return quota

    def smb_space(self, server):
        """Total and free bytes, as smbclient shows them."""
        said = weft.smbclient(server, "du")
        blocks, size, free = map(int, re.search(r"(\d+) blocks of size (\d+)\. (\d+) blocks available", said).groups())
        return blocks * size, free * size

    def assert_agrees(self):
        self.assertEqual(self.counted()["used_bytes"], du(self.folder))


class Quota(Limited):
    def test_clients_see_it_as_the_size_of_the_disk_and_cannot_exceed_it(self):
        server = self.serve()
        total, free = self.smb_space(server)
        self.assertEqual((total, free), (8 * MIB, 8 * MIB - du(self.folder)))
        self.assert_agrees()
        weft.smbclient(server, f"put {self.small} by-smb")
        weft.run("nfs-cp", self.small, libnfs(server, "by-nfs"))
        self.assert_agrees()
        self.assertEqual(self.smb_space(server)[1], 8 * MIB - du(self.folder))

        said = weft.smbclient(server, f"put {self.large} too-large", check=False)
        self.assertIn("NT_STATUS_DISK_FULL", said)
        done = weft.run("nfs-cp", self.large, libnfs(server, "too-large-for-nfs"), check=False)
        self.assertNotEqual(done.returncode, 0, "not silently")
        self.assertLessEqual(du(self.folder), 8 * MIB)
        self.assert_agrees()
        port = server.ready["nfs_port"]
        for url, says in [
            (f"smb://{weft.USER}@127.0.0.1:{server.smb_port}/data/weft", "DISK_FULL|no space left"),
            (f"nfs://127.0.0.1:{port}/data/weft?mountport={server.ready['mountd_port']}", "the quota of the share"),
            (f"nfs://127.0.0.1:{port}/data/weft?vers=4.1", "the quota of the share"),
        ]:
            with self.subTest(url=url):
                done = weft.run(weft.WEFT, "cp", self.large, url, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, says)
                self.assertLessEqual(du(self.folder), 8 * MIB)
        weft.smbclient(server, "del by-smb; del by-nfs; del too-large*; del weft*; del .weft*", check=False)
        self.assertLess(du(self.folder), 2 * MIB)
        self.assert_agrees()
        weft.smbclient(server, f"put {self.small} again")
        self.assert_agrees()

    def test_a_reload_changes_it_and_who_has_too_much_may_read_and_delete(self):
        server = self.serve(None)
        self.assertIsNone(self.counted())
        self.assertGreater(self.smb_space(server)[0], 64 * MIB)
        weft.smbclient(server, f"put {self.large} large")
        self.limit("4MiB")
        self.weft("reload")
        self.assertGreater(self.counted()["used_bytes"], 12 * MIB)
        self.assertEqual(self.smb_space(server), (4 * MIB, 0))
        self.assertIn("NT_STATUS_DISK_FULL", weft.smbclient(server, f"put {self.small} more", check=False))
        text = self.weft("status").stdout
        self.assertRegex(text, r"quota +! data: 13(\.\d)? MiB of 4 MiB, counted in \d+ files?")
        weft.smbclient(server, f"get large {self.work}/back; rename large larger")
        self.assertTrue(weft.same(self.large, self.work / "back"))
        weft.smbclient(server, "del larger; del more", check=False)
        weft.smbclient(server, f"put {self.small} more")
        self.limit("64MiB")
        self.weft("reload")
        weft.smbclient(server, f"put {self.large} large")
        self.assert_agrees()
        self.limit(None)
        self.weft("reload")
        self.assertIsNone(self.counted())
        self.assertGreater(self.smb_space(server)[0], 64 * MIB)

    def test_two_shares_of_one_folder_have_one_count(self):
        self.limit("8MiB")
        self.file.write_text(self.file.read_text() + '\n[shares.other]\npath = "data"\nquota = "5MiB"\n')
        server = self.enterContext(weft.configured(self.file, self.state, "--user", weft.USER))
        self.assertIn("[shares.other]", self.file.read_text())

        def usage():
            [status] = json.loads(self.weft("status", "--json").stdout)["servers"]
            return {share["name"]: share["quota"] for share in status["shares"]}

        def other(command):
            done = weft.run("smbclient", "//127.0.0.1/other", "-p", server.smb_port, "-U", f"{weft.USER}%{weft.PASSWORD}", "-c", command,
                            check=False)
            return done.stdout + done.stderr

        until = time.monotonic() + 60
        while any(quota["is_counting"] for quota in usage().values()):
            self.assertLess(time.monotonic(), until)
        three = weft.random_file(self.work / "three", 3 * MIB)
        self.assertNotIn("NT_STATUS", other(f"put {three} a"))
        used = usage()
        self.assertEqual([used[name]["used_bytes"] for name in ["data", "other"]], [du(self.folder)] * 2)
        self.assertEqual([used[name]["limit_bytes"] for name in ["data", "other"]], [8 * MIB, 5 * MIB])
        self.assertIn("NT_STATUS_DISK_FULL", other(f"put {three} b"))
        self.assertNotIn("NT_STATUS", weft.smbclient(server, f"put {three} b", check=False))
        self.assertIn("NT_STATUS_DISK_FULL", weft.smbclient(server, f"put {three} c", check=False))
        self.assertLessEqual(du(self.folder), 8 * MIB)
        # The smaller share goes; the count stays.
        self.limit("8MiB")
        self.weft("reload")
        self.assertEqual(usage()["data"]["used_bytes"], du(self.folder))
        weft.smbclient(server, "del a; del b; del c", check=False)
        weft.smbclient(server, f"put {three} d")
        self.assert_agrees()

    def test_it_is_counted_anew_after_a_crash(self):
        server = self.serve()
        weft.smbclient(server, f"put {self.small} by-smb")
        server.crash()
        (self.folder / "by-others").write_bytes(b"x" * MIB)
        (self.folder / "before").unlink()
        self.serve()
        self.assert_agrees()

    def test_it_is_added_listed_and_refused_by_the_command(self):
        config = ["--config", self.file]
        said = self.weft("share", "add", "team", self.folder, "--quota", "200MiB", *config).stdout
        self.assertRegex(said, "keeps its quota")
        self.assertIn('quota = "200M"', self.file.read_text())
        self.assertIn("team  " + str(self.folder) + "; quota: 200 MiB", self.weft("share", "list", *config).stdout)
        [share] = json.loads(self.weft("share", "list", "--json", *config).stdout)
        self.assertEqual(share["quota_bytes"], 200 * MIB)
        refused = self.weft("share", "add", "other", self.folder, "--quota", "0", *config, check=False)
        self.assertEqual(refused.returncode, 2)
        self.weft("share", "remove", "team", *config)
        self.assertEqual(json.loads(self.weft("share", "list", "--json", *config).stdout), [])


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class Restart(Limited):
    """A folder whose first count after the start takes longer than its clients wait."""

    def setUp(self):
        super().setUp()
        # Enough folders for a count of half a minute at the pace of `trickle`. What is listed first is counted last.
        tree = {"last": {"first": b""}, "second": b""} | {f"folder{n}": {} for n in range(60)}
        self.slow = self.enterContext(fuse.Mount(self.folder, tree))

    def serve(self):
        command = [weft.WEFT, "serve", "--config", self.file, "--state-dir", self.state, "--user", weft.USER, "--json"]
        server = weft.Process(command, self.work / "weft.log")
        self.addCleanup(server.stop)
        self.addCleanup(self.slow.release)
        return server

    @contextlib.contextmanager
    def trickle(self):
        """Whoever lists a folder waits for a while."""
        ends = threading.Event()

        def let_pass():
            while not ends.wait(0.2):
                self.slow.let_one_pass()

        self.slow.hold(fuse.READDIR)
        thread = threading.Thread(target=let_pass)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            self.slow.release()

    def recorded(self):
        return "".join(path.read_text() for path in (self.state / "quotas").glob("*"))

    def test_what_was_used_counts_before_the_folder_is_counted_again(self):
        self.limit("1536KiB")
        for ends in ["stop", "crash"]:
            with self.subTest(ends=ends):
                server = self.serve()
                self.counted()
                if not (self.folder / "last" / "first").stat().st_size:
                    weft.smbclient(server, f"cd last; put {self.small} first")
                until = time.monotonic() + 60
                while f"used_bytes {MIB}\n" not in self.recorded():
                    self.assertLess(time.monotonic(), until, self.recorded())
                    time.sleep(0.1)
                getattr(server, ends)()
                with self.trickle():
                    server = self.serve()
                    self.assertTrue(self.share()["quota"]["is_counting"])
                    self.assertEqual(self.share()["quota"]["used_bytes"], MIB)
                    self.assertIn("NT_STATUS_DISK_FULL", weft.smbclient(server, f"put {self.small} second", check=False))
                    self.assertTrue(self.share()["quota"]["is_counting"])
                self.assertFalse(self.counted()["is_counting"])
                self.assert_agrees()
                server.stop()


if __name__ == "__main__":
    unittest.main()
