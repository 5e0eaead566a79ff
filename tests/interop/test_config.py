"""A configuration file: its shares are served under their own names, options override it, and errors say where they
are. smbclient, libnfs and Weft's own client look at the result."""

import errno
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

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

    def serving(self, *options):
        """A server with this file; checks its exit status at the end."""
        return weft.configured(self.path, self.work / "state", *options)

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
            status = weft.run(weft.WEFT, "status", "--state-dir", self.work / "state", "--json").stdout
            self.assertEqual(json.loads(status)["servers"][0]["config"], str(self.path))
            self.assertIn(f"config    {self.path}", weft.run(weft.WEFT, "status", "--state-dir", self.work / "state").stdout)

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
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o644)
        done = weft.run(weft.WEFT, "config", "init", self.work / "none" / "weft.toml", check=False)
        self.assertIn(f"create it: mkdir -p {self.work / 'none'}", done.stderr)
        before = self.path.read_text() + "# mine\n"
        self.path.write_text(before)
        done = weft.run(weft.WEFT, "config", "init", self.path, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weft.toml exists", done.stderr)
        self.assertEqual(self.path.read_text(), before)
        # Nothing in it is in effect: a server could start, and would wait for its first share.
        done = weft.run(weft.WEFT, "config", "check", self.path)
        self.assertIn("nothing to serve yet", done.stderr)
        self.path.write_text(before + '[shares.a]\nram = "1M"\n')
        self.assertIn("no errors", weft.run(weft.WEFT, "config", "check", self.path).stdout)

    def test_a_key_can_come_from_a_pipe(self):
        """Whoever holds the key elsewhere decrypts it into a pipe, which can be read once."""
        weft.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                 "key.pem", "-out", "chain.pem", "-subj", "/CN=server", "-days", "2", cwd=self.work)
        serve = f"exec {weft.WEFT} serve --config {self.path} --state-dir {self.work / 'state'} --json"
        tls = f"--nfs-tls-cert {self.work / 'chain.pem'} --nfs-tls-key <(cat {self.work / 'key.pem'})"
        server = weft.Process(["bash", "-c", f"{serve} {tls}"], self.work / "log")
        self.assertEqual(server.stop(), 0, server.log_text())

    def test_a_fifo_without_another_end_is_told(self):
        """Opening it, or reading it, waited for ever; with `--pcap` even SIGTERM did not end that."""
        weft.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                 "key.pem", "-out", "chain.pem", "-subj", "/CN=server", "-days", "2", cwd=self.work)
        fifo, state = self.work / "fifo", self.work / "state"
        os.mkfifo(fifo, 0o600)
        # One of its own, because the other is open to read.
        capture = self.work / "capture"
        os.mkfifo(capture, 0o600)
        weft.run(weft.WEFT, "user", "add", "alice", "--state-dir", state)
        (state / "users.key").unlink()
        os.mkfifo(state / "users.key", 0o600)
        serve = [weft.WEFT, "serve", "--config", self.path, "--state-dir", self.work / "other"]
        silent = f"{fifo}: it is a pipe, and nobody has opened it to write for 10 s"
        commands = [
            ([weft.WEFT, "config", "check", fifo], "it is a pipe, and nobody has opened it to write for 10 s"),
            ([weft.WEFT, "serve", "--config", fifo], "it is a pipe, and nobody has opened it to write for 10 s"),
            ([*serve, "--nfs-tls-cert", self.work / "chain.pem", "--nfs-tls-key", fifo], silent),
            ([*serve, "--nfs-tls-cert", fifo, "--nfs-tls-key", self.work / "key.pem"], silent),
            ([*serve, "--admin", "127.0.0.1:0", "--admin-token-file", fifo], "nobody has opened it to write for 10 s"),
            ([*serve, "--keytab", fifo], f"{fifo}: it is a FIFO, not a regular file: move it away"),
            ([*serve, "--pcap", capture], f"{capture}: it is a pipe, and nobody has opened it to read for 10 s"),
            ([weft.WEFT, "user", "add", "bob", "--state-dir", state], "users.key: it is a FIFO, not a regular file: move it away"),
        ]
        environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
        waiting = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
                   for command, _ in commands]
        for process in waiting:
            self.addCleanup(process.kill)
        for process, (command, says) in zip(waiting, commands):
            with self.subTest(command=command):
                said, _ = process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
                self.assertIn(says, said)

    def test_what_is_no_file_is_not_replaced_by_one(self):
        """`weft share add --config /dev/null` made a file of the device."""
        fifo, link = self.work / "fifo", self.work / "link"
        os.mkfifo(fifo, 0o600)
        link.symlink_to(fifo)
        for path in [fifo, link]:
            done = weft.run(weft.WEFT, "share", "add", "x", self.work / "one", "--config", path, check=False, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"{fifo}: it is a FIFO, not a regular file: move it away", done.stderr)
        self.assertTrue(fifo.is_fifo())

    def test_a_reload_of_a_pipe_that_is_empty_now_changes_nothing(self):
        fifo, text = self.work / "fifo.toml", self.path.read_text()
        os.mkfifo(fifo, 0o600)
        writes = threading.Thread(target=lambda: fifo.write_text(text))
        writes.start()
        with weft.configured(fifo, self.work / "state") as server:
            writes.join(60)
            self.assertEqual(self.names(server), ["Old things", "projects"])
            ends = threading.Thread(target=lambda: fifo.open("w").close())
            ends.start()
            done = weft.run(weft.WEFT, "reload", "--state-dir", self.work / "state", check=False)
            ends.join(60)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn(f"{fifo}: cannot read the configuration: it is a pipe, and nothing comes from it", done.stderr)
            listed = weft.smbclient(server, "ls", share="projects")
            self.assertIn("in-one", listed)

    def test_a_check_looks_where_the_server_makes_its_files(self):
        (self.work / "file").touch()
        os.mkfifo(self.work / "fifo")
        for key, name, says in [
            ("[audit]\nfile", "fifo", "it is not a regular file"), ("[audit]\nfile", "one", "it is not a regular file"),
            ("[audit]\nfile", "none/log", "there is no folder {work}/none: mkdir -p {work}/none"),
            ("nbd_socket", "file", "it is not a socket"), ("nbd_socket", "n" * 120, "the name of a socket in a deep folder has at most 82 bytes"),
            ("nbd_socket", "none/s", "there is no folder {work}/none"), ("nbd_socket", "n" * 82, None),
        ]:
            with self.subTest(key=key, name=name):
                path = self.work / name
                listeners = f"[listeners]\nnbd_socket = '{path}'\n" if key == "nbd_socket" else "[listeners]\n"
                other = "" if key == "nbd_socket" else f"{key} = '{path}'\n"
                self.write(FILE.replace("[listeners]\n", listeners) + other)
                done = weft.run(weft.WEFT, "config", "check", self.path, check=False)
                # The socket of a server without volumes is misuse besides. A service manager may make a missing folder at the start.
                status = 2 if key == "nbd_socket" else 0 if name.startswith("none/") else 1
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                if says is None:
                    self.assertNotIn("cannot use", done.stderr)
                else:
                    self.assertIn(f"cannot use {path}: {says.format(work=self.work)}", done.stderr)

    def test_a_signal_ends_a_server_that_waits_for_its_file(self):
        fifo = self.work / "fifo"
        os.mkfifo(fifo)
        server = subprocess.Popen([weft.WEFT, "serve", "--config", fifo], stderr=subprocess.PIPE)
        # The server has opened the pipe as soon as this succeeds, and waits for its content.
        writer, until = None, time.monotonic() + 60
        while writer is None:
            try:
                writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as e:
                self.assertEqual(e.errno, errno.ENXIO)
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)
        self.addCleanup(os.close, writer)
        server.terminate()
        self.assertEqual(server.wait(timeout=60), -signal.SIGTERM)
        server.stderr.close()

    def test_a_file_that_others_can_write_is_refused_or_told(self):
        self.path.chmod(0o666)
        done = weft.run(weft.WEFT, "config", "check", self.path, check=False)
        self.assertIn(f"{self.path}: it can be written by other users: chmod go-w {self.path}", done.stderr)
        self.assertEqual(done.returncode, 1 if os.geteuid() == 0 else 0)

    def test_a_private_key_in_place_of_its_path_is_not_printed(self):
        self.write(FILE + '[tls.nfs]\ncertificate = "c.pem"\nkey = """-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n"""\n')
        for command in [["config", "check", self.path], ["config", "show", "--config", self.path]]:
            done = weft.run(weft.WEFT, *command, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("tls.nfs.key: write the path of a file, not its content", done.stderr)
            self.assertNotIn("MC4CAQAw", done.stdout + done.stderr)

    def test_shares_that_bypass_each_other_are_told(self):
        (self.work / "one" / "secret").mkdir()
        self.write(FILE + '[shares.secret]\npath = "one/secret"\nencrypt = true\n')
        done = weft.run(weft.WEFT, "config", "check", self.path)
        says = "contains the folder of shares.secret.path (line 23), whose encrypt share projects does not have"
        self.assertIn(f"{self.path}:16:1: shares.projects.path: ", done.stderr)
        self.assertIn(says, done.stderr)
        self.assertIn("no errors", done.stdout)
        with self.serving() as server:
            self.assertIn(says, server.log_text())
        command = ["share", "add", "open", self.work / "one" / "secret", "--config", self.path]
        self.assertIn("whose encrypt share open does not have", weft.run(weft.WEFT, *command).stderr)
        # What may not be reached at all: the state directory, and the file itself.
        done = self.refused("--state-dir", self.work / "one" / "state")
        self.assertRegex(done.stderr, r"--state-dir: .* the folder of share projects, whose clients can reach it")
        self.write(FILE + f'[shares.all]\npath = "{self.work}"\n')
        done = self.refused("--state-dir", "/none/state")
        self.assertRegex(done.stderr, r"shares\.all\.path: .*weft\.toml is in .*: they could change what is served")

    def test_the_file_of_a_volume_lies_in_no_share_that_clients_write(self):
        state = self.work / "state"
        weft.run(weft.WEFT, "volume", "create", "disk", "--file", self.work / "one" / "disk.img", "--size", "1M", "--state-dir", state)
        file = FILE.replace('[listeners]', '[listeners]\nnbd_port = 0')
        self.write(file + '[volumes.disk]\n')
        done = self.refused("--state-dir", state)
        self.assertRegex(done.stderr, r"volumes\.disk: .*one/disk\.img is in .*one, the folder of share projects, .*: they could overwrite")
        # Clients that only read do no harm.
        self.write(file.replace('path = "one"', 'path = "one"\nread_only = true') + '[volumes.disk]\n')
        with self.serving() as server:
            self.assertEqual(server.ready["volumes"][0]["name"], "disk")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to run as another user")
    def test_a_broken_file_names_the_option_that_does_without_it(self):
        """`weft status` refused although the server ran."""
        home = self.work / "home"
        (home / "weft").mkdir(parents=True)
        (home / "weft/weft.toml").write_text("shares = 3")
        as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.getuid() == 0 else []
        self.work.chmod(0o755)
        for command in [("status",), ("user", "list"), ("volume", "list")]:
            line = [*as_nobody, "env", f"XDG_CONFIG_HOME={home}", weft.WEFT, *command]
            done = weft.run(*line, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, "weft.toml:.*until that is corrected, name the server's state directory with --state-dir DIR")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to run as another user")
    def test_a_directory_that_nobody_named_is_told(self):
        """Commands used another directory than the server, whose file was emptied."""
        home, state = self.work / "home", self.work / "state-home"
        (home / "weft").mkdir(parents=True)
        state.mkdir()
        os.chown(state, 65534, 65534)
        self.work.chmod(0o755)
        file = home / "weft/weft.toml"
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        as_nobody += ["env", f"XDG_CONFIG_HOME={home}", f"XDG_STATE_HOME={state}", weft.WEFT]
        for text in ["", "# nothing\n"]:
            file.write_text(text)
            for command in [("status",), ("reload",), ("user", "add", "alice"), ("user", "list"), ("volume", "list")]:
                done = weft.run(*as_nobody, *command, check=False)
                self.assertNotEqual(done.returncode, 0, command)
                self.assertRegex(done.stderr, f"{file} is empty, .*--state-dir DIR")
        self.assertEqual(list(state.iterdir()), [])
        file.unlink()
        self.assertIn(f"no users in {state}/weft", weft.run(*as_nobody, "user", "list").stderr)
        made = f"made {state}/weft/users.toml"
        self.assertIn(made, weft.run(*as_nobody, "user", "add", "alice").stdout)
        self.assertNotIn("made", weft.run(*as_nobody, "user", "add", "bob").stdout)
        listed = weft.run(*as_nobody, "user", "list")
        self.assertEqual((listed.stdout.split(), listed.stderr), (["alice", "bob"], ""))
        named = weft.run(*as_nobody, "user", "add", "alice", "--state-dir", state / "named")
        self.assertEqual(named.stdout, "added user alice\n")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to run as another user")
    def test_a_folder_of_the_server_that_its_user_may_not_write_is_told(self):
        """The check found no errors, and the server did not start."""
        (self.work / "audit").mkdir()
        (self.work / "state").mkdir()
        for folder in [self.work, self.work / "audit", self.work / "state"]:
            folder.chmod(0o755)
        self.path.write_text(f'state_dir = "{self.work}/state"\n[audit]\nfile = "{self.work}/audit/log"\n[shares.r]\nram = "1M"\n')
        self.path.chmod(0o644)
        as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", weft.WEFT]
        said = weft.run(*as_nobody, "config", "check", self.path).stderr
        for key, folder in [("state_dir", "state"), ("audit.file", "audit")]:
            self.assertRegex(said, f"{key}: cannot use .*the server's user nobody may not write {self.work}/{folder}: "
                                   f"chown nobody: {self.work}/{folder}")
            os.chown(self.work / folder, 65534, 65534)
        self.assertNotIn("may not write", weft.run(*as_nobody, "config", "check", self.path).stderr)
        self.assertNotIn("may not write", weft.run(weft.WEFT, "config", "check", self.path).stderr)

    def test_a_missing_state_directory_of_the_file_is_made_with_a_warning(self):
        """Its disk was not mounted, and the server lacked its users, keys and locks."""
        state = self.work / "disk/state"
        self.path.write_text(f'state_dir = "{state}"\n[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.r]\nram = "1M"\n')
        command = [weft.WEFT, "serve", "--config", self.path, "--json"]
        server = weft.Process(command, self.work / "weft.log")
        self.addCleanup(server.process.kill)
        told = [line for line in server.faults() if "made the state directory" in line]
        self.assertEqual(len(told), 1, server.log_text())
        self.assertIn(f"made the state directory {state}: it was missing; if it is on a disk of its own, stop, mount it, start again", told[0])
        server.restart()
        self.assertEqual(server.log_text().count("made the state directory"), 1)
        self.assertEqual(server.stop(), 0)

    def test_a_service_prints_no_password(self):
        """It went to the journal."""
        state = self.work / "state"
        text = '[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.a]\nram = "1M"\n'
        self.path.write_text(text)
        weft.run(weft.WEFT, "user", "add", "alice", "--state-dir", state)
        (state / "users.toml").unlink()
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(str(self.work / "notify"))
        service = {"NOTIFY_SOCKET": str(self.work / "notify"), "WEFT_PASSWORD": ""}
        with unittest.mock.patch.dict(os.environ, service):
            server = weft.Process(
                ["env", "WEFT_PASSWORD=", weft.WEFT, "serve", "--config", self.path, "--state-dir", state, "--json"],
                self.work / "log",
            )
            try:
                log = server.log_text()
            finally:
                server.stop()
        self.assertNotIn("password of", log)
        self.assertRegex(log, "users.toml is missing, although there is its key: restore it")
        self.assertRegex(log, "nobody can log on with a password: there are no users; add one: weft user add NAME")
        # A user whom the configuration names needs a password.
        with unittest.mock.patch.dict(os.environ, service):
            done = weft.run(weft.WEFT, "serve", "--config", self.path, "--state-dir", state, "--user", "zed", check=False,
                            password="", stdin=subprocess.DEVNULL)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no password for zed: set WEFT_PASSWORD in the environment of the service", done.stderr)

    @unittest.skipUnless(os.getuid() == 0, "needs another user")
    def test_a_state_directory_of_another_user_is_named_with_its_owner(self):
        state = self.work / "state"
        weft.run(weft.WEFT, "user", "add", "alice", "--state-dir", state)
        self.work.chmod(0o755)
        done = weft.run("setpriv", "--reuid", "65534", "--clear-groups", weft.WEFT, "user", "list", "--state-dir", state, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, f"the folder {state} belongs to user 0, .*: chown -R 65534: {state}")

    def test_a_draft_of_a_killed_command_goes_with_the_next_change(self):
        state = self.work / "state"
        weft.run(weft.WEFT, "user", "add", "alice", "--state-dir", state)
        for name in ["users.toml.new-1", "users.toml.new-4194304", "users.toml.old"]:
            (state / name).write_text("sealed")
        weft.run(weft.WEFT, "user", "passwd", "alice", "--state-dir", state)
        self.assertEqual(sorted(path.name for path in state.glob("users.toml*")), ["users.toml", "users.toml.old"])

    @unittest.skipUnless(os.getuid() == 0, "needs another user")
    def test_whoever_may_not_look_for_servers_is_told_as_whom_to_ask(self):
        state = self.work / "state"
        self.work.chmod(0o755)
        for owner, says in [(0, "run the command as root"), (65533, "run the command as root or as the user 65533")]:
            (state / "run").mkdir(parents=True, exist_ok=True)
            state.chmod(0o700)
            os.chown(state, owner, owner)
            as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", weft.WEFT]
            done = weft.run(*as_nobody, "status", "--state-dir", state, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"cannot look for servers in {state}/run: Permission denied \(os error 13\); {says}\n")

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
        # A folder that the user may list and not search.
        (self.work / "one").chmod(0o744)
        (place / "weft.toml").write_text(f'[shares.a]\npath = "{self.work / "one"}"\n')
        done = weft.run(*as_nobody[:-1], "config", "check", check=False)
        self.assertIn(f"{place}/weft.toml:2:1: shares.a.path: cannot serve {self.work / 'one'}: ", done.stderr)
        # A folder that is named replaces the file.
        done = weft.run(*as_nobody, self.work / "nothing", check=False)
        self.assertNotIn("weft.toml", done.stderr)
        self.assertIn("no such folder", done.stderr)


if __name__ == "__main__":
    unittest.main()
