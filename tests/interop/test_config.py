"""A configuration file: its shares are served under their own names, options override it, and errors say where they
are. smbclient, libnfs and Weft's own client look at the result."""

import contextlib
import json
import os
import pathlib
import re
import tempfile
import unittest

import weft

FILE = """
user = "{user}"

[listeners]
addresses = ["127.0.0.1"]
smb_port = 0
smb_direct_port = 0
nfs_port = 0
mountd_port = 0

[nfs]
# The clients of the tests run as root, if the tests do.
root_squash = false

[shares.projects]
path = "one"

[shares."Old things"]
path = "two"
read_only = true
nfs.secure = false
"""


# Without the port of NFS, and without what would need it before MOUNT does.
NO_NFS = FILE.replace("nfs_port = 0\n", "").replace("nfs.secure = false\n", "")


class Configured(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-config-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        for folder in ["one", "two", "three"]:
            (self.work / folder).mkdir()
            (self.work / folder / f"in-{folder}").write_text(f"of {folder}")
        self.path = self.work / "weft.toml"
        self.write(FILE)

    def write(self, text):
        self.path.write_text(text.format(user=weft.USER))

    @contextlib.contextmanager
    def serving(self, *options):
        """A server with this file; checks its exit status at the end."""
        state = self.work / "state"
        command = [weft.WEFT, "serve", "--config", self.path, "--state-dir", state, "--json", *options]
        server = weft.Process(command, self.work / "log")
        server.state, server.smb_port = state, server.ready["smb_port"]
        try:
            yield server
        finally:
            status = server.stop()
        self.assertEqual(status, 0, server.log_text())

    def refused(self, *options):
        done = weft.run(weft.WEFT, "serve", "--config", self.path, *options, check=False)
        self.assertNotEqual(done.returncode, 0)
        return done

    def names(self, server):
        return sorted(share["name"] for share in server.ready["shares"])

    def test_shares_have_the_names_of_the_file(self):
        with self.serving() as server:
            self.assertEqual(self.names(server), ["Old things", "projects"])
            # Relative folders are those beside the file, not those of the process.
            self.assertIn("in-one", weft.smbclient(server, "ls", share="projects"))
            self.assertIn("in-two", weft.smbclient(server, "ls", share="Old things"))
            self.assertIn("NT_STATUS_", weft.smbclient(server, "mkdir x", share="Old things", check=False))
            weft.smbclient(server, "mkdir x", share="projects")
            self.assertIn("NT_STATUS_BAD_NETWORK_NAME", weft.smbclient(server, "ls", share="one", check=False))
            ready = server.ready
            url = f"nfs://127.0.0.1/projects?nfsport={ready['nfs_port']}&mountport={ready['mountd_port']}&version=3"
            self.assertIn("in-one", weft.run("nfs-ls", url).stdout)
            own = f"smb://{weft.USER}@127.0.0.1:{server.smb_port}/Old%20things/in-two"
            self.assertEqual(weft.run(weft.WEFT, "cat", own).stdout, "of two")
            # The log and the status name the file.
            self.assertRegex(server.log_text(), rf"configuration: {re.escape(str(self.path))}")
            status = weft.run(weft.WEFT, "status", "--state-dir", server.state, "--json").stdout
            self.assertEqual(json.loads(status)["servers"][0]["config"], str(self.path))
            self.assertIn(f"config    {self.path}", weft.run(weft.WEFT, "status", "--state-dir", server.state).stdout)

    def test_options_override_the_file_and_add_shares(self):
        options = ["--min-dialect", "3.1.1", "--read-only", "projects", "--ram", "scratch=64M"]
        with self.serving(*options, self.work / "three") as server:
            self.assertEqual(self.names(server), ["Old things", "projects", "scratch", "three"])
            self.assertIn("in-three", weft.smbclient(server, "ls", share="three"))
            self.assertIn("NT_STATUS_", weft.smbclient(server, "mkdir x", share="projects", check=False))
            self.assertIn("NT_STATUS_", weft.smbclient(server, "ls", "-m", "SMB3_02", share="projects", check=False))
        shown = weft.run(weft.WEFT, "config", "show", "--config", self.path, *options).stdout
        at = re.escape(str(self.path))
        self.assertRegex(shown, r'smb\.min_dialect = "3\.1\.1" +# --min-dialect\n')
        self.assertRegex(shown, r"shares\.projects\.read_only = true +# --read-only projects\n")
        self.assertRegex(shown, rf"listeners\.smb_port = 0 +# {at}:6:1\n")
        self.assertRegex(shown, r"limits\.pin = false +# default\n")
        self.assertIn('shares."Old things".path = ', shown)
        # An option that the file does not allow is refused under the name that was typed.
        said = self.refused("--smbd-port", "1", "--smb-port", "1").stderr
        self.assertIn("--smb-port and --smbd-port are both 1", said)

    def test_a_wrong_file_is_refused_with_its_places(self):
        wrong = FILE.replace("smb_port = 0\n", "smb_prot = 0\n", 1).replace("root_squash = false", "root_squash = 0")
        self.write(wrong.replace("nfs.secure = false", "encrypt = 1"))
        for command in [["serve", "--config", self.path], ["config", "check", self.path]]:
            done = weft.run(weft.WEFT, *command, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            said = done.stderr
            self.assertIn(f"{self.path}:6:1: listeners.smb_prot: unknown key; did you mean listeners.smb_port?", said)
            self.assertRegex(said, r"weft\.toml:13:15: nfs\.root_squash: write true or false, not an integer")
            self.assertRegex(said, r'weft\.toml:21:11: shares\."Old things"\.encrypt: write true or false')
        # A rule between keys.
        self.write(NO_NFS)
        done = weft.run(weft.WEFT, "config", "check", self.path, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"{self.path}:8:1: listeners.mountd_port needs NFS", done.stderr)
        done = self.refused()
        self.assertIn(f"{self.path}:8:1: listeners.mountd_port needs NFS", done.stderr)
        # The option that helps is accepted in addition to the file.
        with self.serving("--nfs-port", "0") as server:
            self.assertIn("nfs_port", server.ready)
        self.path.unlink()
        done = self.refused()
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{self.path}: cannot read the configuration: No such file", done.stderr)

    def test_the_example_is_checked_and_never_overwrites(self):
        self.path.unlink()
        weft.run(weft.WEFT, "config", "init", self.path)
        self.assertEqual(self.path.read_text(), weft.run(weft.WEFT, "config", "init").stdout)
        before = self.path.read_text() + "# mine\n"
        self.path.write_text(before)
        done = weft.run(weft.WEFT, "config", "init", self.path, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weft.toml exists", done.stderr)
        self.assertEqual(self.path.read_text(), before)
        # Nothing in it is in effect, so there is nothing to serve.
        done = weft.run(weft.WEFT, "config", "check", self.path, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing to serve", done.stderr)
        self.path.write_text(before + '[shares.a]\nram = "1M"\n')
        self.assertIn("no errors", weft.run(weft.WEFT, "config", "check", self.path).stdout)

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to run as another user")
    def test_without_arguments_the_file_of_the_user_is_read(self):
        place = self.work / "home" / "weft"
        place.mkdir(parents=True)
        (place / "weft.toml").write_text('[limits]\ncores = 0\n[shares.a]\nram = "1M"\n')
        for path in [self.work, self.work / "home", place, place / "weft.toml"]:
            path.chmod(0o755)
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env"]
        as_nobody += [f"XDG_CONFIG_HOME={self.work / 'home'}", weft.WEFT, "serve"]
        done = weft.run(*as_nobody, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"{place}/weft.toml:2:1: limits.cores = 0: write a number", done.stderr)
        # A folder that is named replaces the file.
        done = weft.run(*as_nobody, self.work / "nothing", check=False)
        self.assertNotIn("weft.toml", done.stderr)
        self.assertIn("no such folder", done.stderr)


if __name__ == "__main__":
    unittest.main()
