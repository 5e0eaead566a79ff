"""A server confines itself: its files by Landlock, its system calls by seccomp. What the kernel enforces is read from /proc, and tried
where the server opens a file by name while it runs: at a reload."""

import ctypes
import json
import os
import pathlib
import pwd
import re
import tempfile
import unittest
import unittest.mock

import fuse
import weft

LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
FILE = """
[listeners]
smb_port = 0
smb_direct_port = 0
{confine}
[shares.stay]
path = "stay"
"""
# Runs a command in which a system call of Landlock fails, as it does where the kernel has none (ENOSYS) or a container forbids it (EPERM).
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
errno, number = int(sys.argv[1]), 444
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *line) for line in lines)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""


def landlock_version():
    """The version of this kernel's Landlock; 0 if there is none."""
    return max(0, ctypes.CDLL(None, use_errno=True).syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))


def threads(pid):
    """What the kernel says about each thread of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [dict(line.split(":\t") for line in (task / "status").read_text().splitlines() if ":\t" in line) for task in tasks]


class Confined(unittest.TestCase):
    def setUp(self):
        self.work, self.elsewhere = [self.folder(prefix) for prefix in ["weft-confined-", "weft-elsewhere-"]]
        self.state = self.work / "state"
        for folder in [self.work / "stay", self.work / "beside", self.elsewhere / "far"]:
            folder.mkdir()
            (folder / f"in-{folder.name}").touch()
        self.file = self.work / "weft.toml"

    def folder(self, prefix):
        made = tempfile.TemporaryDirectory(prefix=prefix)
        self.addCleanup(made.cleanup)
        return pathlib.Path(made.name)

    def weft(self, *arguments, check=True):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, check=check)

    def serving(self, *options, confine="", launcher=(), file=None):
        self.file.write_text(FILE.format(confine=f"[confine]\n{confine}\n"))
        return weft.configured(file or self.file, self.state, "--user", weft.USER, *options, launcher=launcher)

    def add(self, *shares):
        self.file.write_text(self.file.read_text() + "".join(f'[shares.{path.name}]\npath = "{path}"\n' for path in shares))

    def report(self):
        [server] = json.loads(self.weft("reload", "--json").stdout)
        return server["reloaded"]

    def listed(self, server, share):
        done = weft.run("smbclient", f"//127.0.0.1/{share}", "-p", server.ready["smb_port"], "-U", f"{weft.USER}%{weft.PASSWORD}",
                        "-c", "put /etc/hostname new; ls", check=False)
        return done.stdout + done.stderr

    def check_confined(self, server):
        for status in threads(server.ready["pid"]):
            self.assertEqual((status["Seccomp"].strip(), status["NoNewPrivs"].strip()), ("2", "1"), status)
        said = re.search(r"the server is confined: Landlock \(version (\d+)\) .*; seccomp refuses (\d+) system calls", server.log_text())
        self.assertIsNotNone(said, server.log_text())
        self.assertEqual(int(said[1]), landlock_version())
        self.assertGreater(int(said[2]), 50)
        self.assertEqual([line for line in server.faults() if "far is not served" not in line], [])

    @unittest.skipUnless(landlock_version() >= 2, "this kernel's Landlock cannot confine a file server")
    def test_every_thread_is_confined_and_a_share_elsewhere_waits_for_a_restart(self):
        with self.serving() as server:
            self.check_confined(server)
            self.add(self.work / "beside", self.elsewhere / "far")
            report = self.report()
            self.assertEqual((report["added"], [share["name"] for share in report["absent"]]), (["beside"], ["far"]))
            told = f"cannot serve {self.elsewhere}/far until the server is restarted: Landlock confines"
            self.assertIn(told, report["absent"][0]["why"])
            self.assertIn(told, server.log_text())
            self.assertRegex(self.weft("status").stdout, "share +! far is not served: .*until the server is restarted")
            for share in ["stay", "beside"]:
                said = self.listed(server, share)
                self.assertTrue(f"in-{share}" in said and "new" in said, said)
            self.assertIn("BAD_NETWORK_NAME", self.listed(server, "far"))
            # Another command is not confined, and finds nothing wrong.
            self.assertNotIn("far", weft.run(weft.WEFT, "config", "check", self.file).stderr)
            server.restart()
            said = self.listed(server, "far")
            self.assertTrue("in-far" in said and "new" in said, said)
            self.check_confined(server)

    @unittest.skipUnless(landlock_version() >= 2, "this kernel's Landlock cannot confine a file server")
    @unittest.skipIf(fuse.why_not(), fuse.why_not())
    def test_a_dead_mount_among_the_shares_is_told_and_does_not_end_the_confinement(self):
        dead = self.work / "dead"
        dead.mkdir()
        told = (rf"cannot serve {dead}: Transport endpoint is not connected .*: `umount -l {dead}`, and mount it again\. "
                r"Afterwards, .*`weft reload")
        with fuse.dead(dead), self.serving(confine=f'[shares.dead]\npath = "{dead}"') as server:
            self.assertRegex(server.log_text(), "the server is confined: Landlock")
            [fault] = server.faults()
            self.assertRegex(fault, told)
            self.assertRegex(weft.run(weft.WEFT, "config", "check", self.file).stderr, told)
            self.assertIn("in-stay", self.listed(server, "stay"))

    @unittest.skipUnless(landlock_version() >= 2, "this kernel's Landlock cannot confine a file server")
    def test_the_file_says_where_shares_may_be_added(self):
        with self.serving(confine=f'folders = ["{self.elsewhere}"]') as server:
            self.add(self.work / "beside", self.elsewhere / "far")
            report = self.report()
            self.assertEqual((report["added"], [share["name"] for share in report["absent"]]), (["far"], ["beside"]))
            said = self.listed(server, "far")
            self.assertTrue("in-far" in said and "new" in said, said)
        # Another folder at the same path is not the one that the server has kept.
        with self.serving(confine="folders = []") as server:
            (self.work / "stay").rename(self.work / "old")
            (self.work / "stay").mkdir()
            told = f"cannot serve {self.file.parent}/stay until the server is restarted"
            self.assertIn(told, self.weft("reload").stdout)
            self.assertIn("is now another folder", self.weft("status").stdout)
            self.assertIn("in-stay", self.listed(server, "stay"))
            # `weft share add` keeps a share that only waits.
            done = self.weft("share", "--config", self.file, "add", "far", self.elsewhere / "far", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"share far is in \S+, but server \d+ does not serve it before a restart: .*until the server is restarted")
            self.assertIn("[shares.far]", self.file.read_text())
            server.restart()
            self.assertIn("in-far", self.listed(server, "far"))

    @unittest.skipUnless(landlock_version() >= 2, "this kernel's Landlock cannot confine a file server")
    def test_the_kernel_refuses_what_is_elsewhere(self):
        """The configuration is a link that is turned to a file elsewhere: the server opens that at its next reload."""
        away = self.elsewhere / "away.toml"
        link = self.work / "link.toml"
        link.symlink_to(self.file)

        def turn(to):
            link.unlink()
            link.symlink_to(to)

        for options, refused in [([], True), (["--unconfined"], False)]:
            with self.serving(*options, file=link) as server:
                away.write_text(self.file.read_text().replace('path = "stay"', f'path = "{self.work}/stay"'))
                turn(away)
                done = self.weft("reload", check=False)
                self.assertEqual("Permission denied" in done.stderr, refused, done.stderr)
                self.assertEqual(done.returncode != 0, refused)
                turn(self.file)
                self.weft("reload")
                self.assertIn("in-stay", self.listed(server, "stay"))

    def test_each_of_the_two_can_be_switched_off(self):
        def filters(server):
            return {status["Seccomp"].strip() for status in threads(server.ready["pid"])}

        with self.serving("--unconfined") as server:
            self.assertEqual(filters(server), {"0"})
            self.assertIn("the server is not confined: confine.landlock is false", server.log_text())
            self.add(self.elsewhere / "far")
            self.assertEqual(self.report()["added"], ["far"])
        with self.serving(confine="landlock = false") as server:
            self.assertEqual(filters(server), {"2"})
            self.add(self.elsewhere / "far")
            self.assertEqual(self.report()["added"], ["far"])
        with self.serving(confine="seccomp = false") as server:
            self.assertEqual(filters(server), {"0"})
            self.add(self.elsewhere / "far")
            self.assertEqual([share["name"] for share in self.report()["absent"]], ["far"] * (landlock_version() >= 2))

    def test_a_kernel_without_landlock_serves_and_says_so(self):
        launcher = self.work / "without"
        launcher.write_text(WITHOUT_LANDLOCK)
        for errno, why in [(38, "this kernel was built without it"), (95, "it was not enabled when this kernel started"),
                           (1, "the kernel refused it: Operation not permitted")]:
            with self.serving(launcher=["/usr/bin/python3", launcher, errno]) as server:
                self.assertIn(f"WARN the server is not as confined as it could be: Landlock keeps it from no file: {why}",
                              re.sub(r" +", " ", server.log_text()))
                self.assertIn("in-stay", self.listed(server, "stay"))
                self.add(self.elsewhere / "far")
                self.assertEqual(self.report()["added"], ["far"])
            (self.work / "weft.log").unlink()

    @unittest.skipUnless(os.getuid() == 0 and landlock_version() >= 2, "the server runs as another user")
    def test_a_server_of_any_user_is_confined(self):
        nobody = pwd.getpwnam("nobody")
        run = self.work / "run"
        run.mkdir(mode=0o700)
        for path in [self.work, *self.work.rglob("*"), self.elsewhere, *self.elsewhere.rglob("*")]:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        self.state.mkdir(mode=0o700)
        os.chown(self.state, nobody.pw_uid, nobody.pw_gid)
        as_nobody = ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups",
                     "env", f"XDG_RUNTIME_DIR={run}"]
        with self.serving(launcher=as_nobody) as server:
            self.check_confined(server)
            self.assertIn("in-stay", self.listed(server, "stay"))
            self.add(self.elsewhere / "far")
            self.assertEqual([share["name"] for share in self.report()["absent"]], ["far"])

    def test_a_folder_of_the_command_line_is_all_that_its_server_keeps(self):
        """Nothing is different for who types it, also where links lead out of the folder."""
        folder = self.work / "stay"
        (folder / "out").symlink_to(self.elsewhere / "far")
        (folder / "beside").symlink_to("in-stay")
        said = []
        commands = ["ls in-stay", "cd out; ls", "get out/in-far /dev/null", "get beside /dev/null",
                    "mkdir d; put /etc/hostname d/f; rename d/f g; rm g; rmdir d"]
        for options in [[], ["--unconfined"]]:
            server = weft.Server(folder, *options)
            self.addCleanup(server.stop)
            self.assertNotIn("a reload can add", server.log_text())
            said.append([weft.smbclient(server, command, share="stay", check=False) for command in commands])
        strip = lambda text: re.sub(r"\([\d.]+ (Kilo|kb).*|\d+ blocks .*|  +[A-Z][a-z]{2} [A-Z].*", "", text)
        self.assertEqual(*[[strip(one) for one in each] for each in said])


if __name__ == "__main__":
    unittest.main()
