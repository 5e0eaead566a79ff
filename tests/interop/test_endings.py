"""How commands end: by the signal that stopped them, with all their child processes, and never by touching another
file."""

import os
import pathlib
import pty
import signal
import socket
import subprocess
import tempfile
import termios
import time
import unittest
import unittest.mock

import smb3
import weft
from test_reach import Peer, is_silent

ENVIRONMENT = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)


def until(condition, process=None):
    """Polls for up to a minute until there is a value; returns it."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        assert process is None or process.poll() is None, "it has ended"
        time.sleep(0.01)
    return found


def children(pid):
    """The child processes of a process."""
    return [
        int(child) for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
    ]


def is_gone(pid):
    """Whether a process has ended, even if it has not been waited for."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Options(unittest.TestCase):
    def test_what_smb_alone_has_is_refused_for_nfs(self):
        """`cp --encrypt` to nfs:// used to send in clear text without a warning."""
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            secret = pathlib.Path(work) / "secret"
            secret.write_text("secret")
            for options in [("--encrypt",), ("--sign",), ("--compress",), ("--min-dialect", "3.1.1")]:
                commands = [
                    ("cp", *options, secret, server.nfs_url("there")), ("sync", *options, work, server.nfs_url("")),
                    ("ls", *options, server.nfs_url("")),
                ]
                for command in commands:
                    with self.subTest(command=command):
                        done = weft.run(weft.WEFT, *command, check=False)
                        self.assertEqual(done.returncode, 2, done.stdout)
                        self.assertIn(" is for SMB; ", done.stderr)
            for option in ["--encrypt", "--sign"]:
                with self.subTest(bench=option):
                    done = weft.run(weft.WEFT, "bench", "nfs", server.nfs_url("").replace("/?", "?"), option, check=False)
                    self.assertEqual(done.returncode, 2, done.stdout)
                    self.assertIn(f"{option} is for SMB; ", done.stderr)
            self.assertEqual(os.listdir(server.folder), [])

    def test_a_command_line_that_is_wrong_ends_as_those_that_clap_refuses(self):
        """Eight of these ended with 1, as a command that fails while it runs."""
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        state = ["--state-dir", f"{work.name}/state"]
        for line, said in [
            (["cp", "-r", "-", "smb://a@h/s/x"], "-r copies folders"),
            (["cp", "smb://a@h/s", "."], "`weft cp -r smb://a@h/s .`"),
            (["cp", "-", "smb://a@h/s/x/"], "name the file in it"),
            (["sync", "-", "smb://a@h/s/x"], "sync copies folders"),
            (["doctor", "h", "--smb-port", "4450"], "--user"),
            (["ls", "smb://a@[::1/x"], "smb://a@[::1/x has brackets"),
            (["demo", "--only", "none", "--out", "/dev/null"], "--only"),
            (["demo", "--out", "-", "--json", "-"], "only one format"),
            (["rdma", "bench", "--only", "none"], "--only"),
            (["rdma", "ping", "h", "--provider", "iwarp,shm"], "one provider"),
            (["rdma", "ping", "h", "--port", "1"], "cannot be used with"),
            (["rdma", "ping", "h", "--size", "2M"], "from 1 to 1M"),
            (["rdma", "perf", "client", "h", "-b", "--op", "send"], "in both directions"),
            (["rdma", "perf", "client", "h", "-b", "--only", "latency"], "--bidirectional"),
            (["rdma", "perf", "client", "h", "--cpu", "4000"], "--cpu 4000"),
            (["replica", "check", "[::1"], "not closed"),
            (["replica", "create", "a,b", "h:a"], "as many volumes"),
            (["volume", "create", "v", "--size", "1000", "--ram", *state], "1000 bytes"),
            (["volume", "create", "v", "--ram", *state], "needs a size"),
            (["volume", "create", "a/b", "--size", "1M", "--ram", *state], "cannot name a volume"),
            (["bench", "nfs", "a b"], "write HOST"),
            (["bench", "smb", "h", "--nfs", "smb://a@h/s"], "--nfs takes a URL of NFS"),
        ]:
            with self.subTest(line=line):
                done = weft.run(weft.WEFT, *line, check=False, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)

    def test_a_command_to_type_repeats_the_state_directory(self):
        with tempfile.TemporaryDirectory() as state:
            def volume(*command, **environment):
                with unittest.mock.patch.dict(os.environ, environment):
                    done = weft.run(weft.WEFT, "volume", *command, check=False)
                return done.stdout + done.stderr

            option = ["--state-dir", state]
            self.assertIn(f"PATH --state-dir {state}\n", volume("list", *option))
            self.assertIn("PATH\n", volume("list", WEFT_STATE_DIR=state))
            made = volume("create", "v", "--size", "1M", "--ram", *option)
            self.assertIn(f"weft serve --volume v --nbd --state-dir {state}\n", made)
            self.assertIn(f"add --state-dir {state} to these commands", volume("info", "none", *option))
            self.assertNotIn("to these commands", volume("info", "none", WEFT_STATE_DIR=state))

    def test_a_question_mark_is_no_end_of_a_name(self):
        """`put what?` used to replace `what`."""
        with weft.serving() as server:
            for name in ["what", "con"]:
                (server.folder / name).write_text("mine")
                for command in [("put", server.url(f"{name}?")), ("cp", __file__, server.url(f"{name}?"))]:
                    with self.subTest(command=command):
                        done = weft.run(weft.WEFT, *command, check=False, stdin=subprocess.DEVNULL)
                        self.assertEqual(done.returncode, 2)
                        self.assertIn("%3F", done.stderr)
                self.assertEqual((server.folder / name).read_text(), "mine")


class Children(unittest.TestCase):
    """Child processes of `demo` and `bench` end with them."""

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-endings-")))

    def measuring(self, *command):
        process = subprocess.Popen(
            [weft.WEFT, *command], cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        [child] = until(lambda: children(process.pid), process)
        # It has printed that it is ready, and holds ports, before clients connect.
        until(lambda: any("socket:" in name for name in self.descriptors(child)), process)
        return process, child

    def descriptors(self, pid):
        names = []
        for path in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                names.append(os.readlink(path))
            except OSError:
                continue
        return names

    COMMANDS = [
        ("demo", "--duration-ms", "60000", "--file-size", "1M"),
        ("bench", "latency", "local", "--duration", "60", "--file-size", "8M"),
        ("rdma", "bench"),
    ]

    def test_one_that_is_killed_leaves_no_server(self):
        for command in self.COMMANDS[:2]:
            with self.subTest(command=command):
                process, child = self.measuring(*command)
                process.kill()
                process.wait()
                until(lambda child=child: is_gone(child))

    def test_one_that_a_signal_stops_leaves_no_server(self):
        for command in self.COMMANDS[:2]:
            for number in [signal.SIGINT, signal.SIGTERM]:
                with self.subTest(command=command, signal=int(number)):
                    process, child = self.measuring(*command)
                    process.send_signal(number)
                    self.assertEqual(process.wait(timeout=60), -number)
                    self.assertTrue(is_gone(child))
        self.assertEqual(os.listdir(self.work), [])


class Signals(unittest.TestCase):
    """A shell ends its loop only if the signal itself ended the command (WIFSIGNALED)."""

    def test_every_command_ends_by_the_signal(self):
        with tempfile.TemporaryDirectory() as work:
            pathlib.Path(work, "file").write_text("x")
            for number in [signal.SIGINT, signal.SIGTERM]:
                for command in [
                    ("cp", "smb://a@127.0.0.1:{}/s/x", "/dev/null"), ("cp", work + "/file", "nfs://127.0.0.1:{}/s/x"),
                    ("sync", "nfs://127.0.0.1:{}/s", work), ("put", "smb://a@127.0.0.1:{}/s/x"),
                    ("ls", "nfs://127.0.0.1:{}/s"), ("cat", "smb://a@127.0.0.1:{}/s/x"),
                    ("stat", "smb://a@127.0.0.1:{}/s/x"), ("bench", "smb", "smb://a@127.0.0.1:{}/s"),
                    ("rdma", "ping", "127.0.0.1:{}"), ("rdma", "perf", "client", "127.0.0.1:{}"),
                ]:
                    with self.subTest(command=command, signal=int(number)):
                        self.assertEqual(self.stopped(command, number), -number)

    def stopped(self, command, number):
        peer = Peer(is_silent)
        process = subprocess.Popen(
            [weft.WEFT, *(word.format(peer.port) for word in command)], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: peer.taken, process)
            process.send_signal(number)
            return process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
            peer.close()

    def test_a_fifo_that_nobody_reads_is_not_called_a_server(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            (server.folder / "file").write_text("x")
            os.mkfifo(f"{work}/fifo")
            process = subprocess.Popen(
                [weft.WEFT, "cp", server.url("file"), f"{work}/fifo"], env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )
            # It is logged on, and prints how, before it opens the FIFO.
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            said += process.communicate(timeout=60)[1]
            self.assertEqual(process.returncode, -signal.SIGINT)
            self.assertIn("interrupted", said)
            self.assertNotIn("answer", said)

    def test_a_reader_who_does_not_read_holds_nothing_up(self):
        with weft.serving() as server:
            weft.random_file(server.folder / "large", 4 << 20)
            for command in [("cat", server.url("large")), ("cp", "-q", server.url("large"), "-")]:
                for number in [signal.SIGINT, signal.SIGTERM]:
                    with self.subTest(command=command, signal=int(number)):
                        process = subprocess.Popen(
                            [weft.WEFT, *command], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                        )
                        # From here on, the pipe fills up sooner or later.
                        process.stdout.read(1)
                        process.send_signal(number)
                        self.assertEqual(process.wait(timeout=30), -number)
                        process.stdout.close()

    def test_a_loop_of_a_shell_ends(self):
        peer = Peer(is_silent)
        self.addCleanup(peer.close)
        loop = f'while :; do "{weft.WEFT}" cp smb://a@127.0.0.1:{peer.port}/s/x /dev/null; echo again; done'
        shell = subprocess.Popen(
            ["bash", "-c", loop], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, text=True,
        )
        until(lambda: peer.taken, shell)
        # As the terminal does: to the whole process group.
        os.killpg(shell.pid, signal.SIGINT)
        said, _ = shell.communicate(timeout=60)
        self.assertEqual((shell.returncode, said), (-signal.SIGINT, ""))

    def test_what_serves_ends_in_order(self):
        for command in [
            ("rdma", "ping", "--server", "--port", "0"), ("rdma", "perf", "server", "--port", "0"),
            ("bench", "agent", "--listen", "127.0.0.1:0"),
        ]:
            for number in [signal.SIGINT, signal.SIGTERM]:
                with self.subTest(command=command, signal=int(number)):
                    process = subprocess.Popen([weft.WEFT, *command], stdout=subprocess.PIPE, text=True)
                    process.stdout.readline()
                    caught = 1 << number - 1
                    status = pathlib.Path(f"/proc/{process.pid}/status")
                    until(
                        lambda status=status, caught=caught: int(
                            next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:")).split()[1], 16
                        ) & caught, process,
                    )
                    process.send_signal(number)
                    self.assertEqual(process.wait(timeout=60), 0)
                    process.stdout.close()

    @unittest.skipUnless(smb3.spnego, "no pyspnego: tests/interop/deps.sh installs it")
    def test_a_server_waits_neither_for_a_watch_nor_for_half_a_handshake(self):
        state = ["--state-dir", self.enterContext(tempfile.TemporaryDirectory())]
        weft.run(weft.WEFT, "volume", "create", "vol", "--ram", "--size", "1M", *state)
        with weft.serving("--volume", "vol", "--nbd-port", 0, *state) as server:
            link = smb3.Link(server.smb_port)
            self.addCleanup(link.close)
            folder = link.log_on(weft.USER, weft.PASSWORD).tree("data").open("", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)
            watch = folder.notify()
            link.interim(watch)
            client = self.enterContext(socket.create_connection(("127.0.0.1", server.ready["nbd_port"])))
            self.assertTrue(client.recv(18, socket.MSG_WAITALL).startswith(b"NBDMAGICIHAVEOPT"))
            client.sendall(b"\0\0\0\3")
            self.assertTrue(link.waits(watch))
            begun = time.monotonic()
        # It drains for ten seconds at most.
        self.assertLess(time.monotonic() - begun, 5)


class Passwords(unittest.TestCase):
    def asked(self, act):
        """Runs `weft put` with a pipe as its input and a terminal of its own; returns its status, the content of the
        file, and whether the terminal echoes."""
        without = {name: value for name, value in os.environ.items() if name != "WEFT_PASSWORD"}
        with weft.serving() as server:
            give, given = os.pipe()
            os.write(given, b"content")
            os.close(given)
            pid, terminal = pty.fork()
            if pid == 0:
                os.dup2(give, 0)
                os.execve(weft.WEFT, [str(weft.WEFT), "put", server.url("file")], without)
            os.close(give)
            said = b""
            while b"Password for" not in said:
                said += os.read(terminal, 4096)
            until(lambda: not termios.tcgetattr(terminal)[3] & termios.ICANON)
            act(pid, terminal)
            # Whether the terminal echoes has to be checked before its last process is gone.
            _, status = os.waitpid(pid, 0)
            shows = bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
            os.close(terminal)
            path = server.folder / "file"
            return os.waitstatus_to_exitcode(status), path.read_text() if path.exists() else None, shows

    def test_a_pipe_as_input_leaves_the_terminal_to_the_password(self):
        typed = self.asked(lambda _, terminal: os.write(terminal, weft.PASSWORD.encode() + b"\r"))
        self.assertEqual(typed, (0, "content", True))

    def test_ctrl_c_and_signals_end_it_as_signals_do(self):
        self.assertEqual(self.asked(lambda _, terminal: os.write(terminal, b"half\x03")), (-signal.SIGINT, None, True))
        for number in [signal.SIGINT, signal.SIGTERM]:
            with self.subTest(signal=int(number)):
                stopped = self.asked(lambda pid, _, number=number: os.kill(pid, number))
                self.assertEqual(stopped, (-number, None, True))

    def test_without_a_terminal_it_is_said_what_to_do(self):
        without = {name: value for name, value in os.environ.items() if name != "WEFT_PASSWORD"}
        done = subprocess.run(
            [weft.WEFT, "ls", "smb://alice@127.0.0.1:1/data"], env=without, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, start_new_session=True,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("no password for alice at 127.0.0.1: run the command on a terminal, or set WEFT_PASSWORD", done.stderr)


    def test_a_server_that_has_asked_drains_on_a_signal(self):
        """The handlers of the question ended it at once; its sockets stayed."""
        without = {name: value for name, value in os.environ.items() if name != "WEFT_PASSWORD"}
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            with self.subTest(signal=int(number)), tempfile.TemporaryDirectory() as work:
                folder, socket_path = pathlib.Path(work) / "data", pathlib.Path(work) / "admin.sock"
                folder.mkdir()
                command = [
                    weft.WEFT, "serve", folder, "--user", "zed", "--smb-port", "0", "--smbd-port", "0", "--state-dir",
                    f"{work}/state", "--admin", f"unix:{socket_path}",
                ]
                pid, terminal = pty.fork()
                if pid == 0:
                    os.execve(weft.WEFT, [str(part) for part in command], without)
                said = b""
                while b"Password for zed" not in said:
                    said += os.read(terminal, 4096)
                until(lambda terminal=terminal: not termios.tcgetattr(terminal)[3] & termios.ICANON)
                os.write(terminal, b"correct horse\r")
                while b"ready smb=" not in said:
                    said += os.read(terminal, 4096)
                self.assertTrue(socket_path.exists())
                os.kill(pid, number)
                _, status = os.waitpid(pid, 0)
                self.assertEqual(os.waitstatus_to_exitcode(status), 0)
                said += os.read(terminal, 4096)
                os.close(terminal)
                self.assertIn(b"draining", said)
                self.assertFalse(socket_path.exists())


class Sockets(unittest.TestCase):
    def test_the_sockets_of_shared_memory_go_with_the_server(self):
        for cores in [1, 4]:
            with self.subTest(cores=cores), tempfile.TemporaryDirectory() as run:
                with unittest.mock.patch.dict(os.environ, XDG_RUNTIME_DIR=run), weft.serving("--cores", cores) as server:
                    self.assertIn(f"rdma-{server.ready['smbd_port']}.sock", os.listdir(f"{run}/weft"))
                self.assertEqual([name for name in os.listdir(f"{run}/weft") if name.startswith("rdma-")], [])


class Output(unittest.TestCase):
    """The output of commands, and where it goes."""

    def fails(self, *command, **more):
        done = weft.run(weft.WEFT, *command, check=False, **more)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def test_exports_are_listed(self):
        with weft.serving() as server:
            ready = server.ready
            for query in ["", f"?mountport={ready['mountd_port']}"]:
                listed = weft.run(weft.WEFT, "ls", f"nfs://127.0.0.1:{ready['nfs_port']}{query}").stdout
                self.assertEqual(listed.split(), ["/data", "/ram"])
            none = self.fails("ls", server.nfs_url("", share="none"))
            self.assertIn(f"`weft ls 'nfs://127.0.0.1:{ready['nfs_port']}?mountport=", none)

    def test_what_fails_is_told_once_with_its_object(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            (server.folder / "file").write_text("x")
            for url in [server.url("n" * 300), server.nfs_url("n" * 300)]:
                said = self.fails("put", url, stdin=subprocess.DEVNULL)
                self.assertIn("n" * 300, said)
                self.assertIn("255", said)
            full = ["sh", "-c", 'exec "$0" cat "$1" > /dev/full', weft.WEFT, server.url("file")]
            said = weft.run(*full, check=False).stderr
            self.assertIn("standard output: ", said)
            self.assertNotIn("df -h", said)
            self.assertIn("is a folder: copy it with -r: `weft cp -r . ", self.fails("cp", ".", server.url("")))
            (server.folder / "photos").mkdir()
            for url in [server.url("photos"), server.nfs_url("photos")]:
                said = self.fails("cp", url, work)
                self.assertIn("is a folder: copy it with -r: `weft cp -r ", said)
                self.assertIn("`weft sync ", said)
            place = ["--state-dir", f"{work}/state", "--size", "1M", "--file", "/no/such/folder/file"]
            said = self.fails("volume", "create", "v", *place)
            self.assertNotIn("because", said)
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
                said = self.fails("rdma", "ping", "--server", "--port", port)
                self.assertIn("choose another with --port N", said)
            for ram in ["data=5M", "a/b=5M"]:
                said = self.fails("serve", server.folder, "--ram", ram, "--smb-port", 0, "--smbd-port", 0)
                self.assertIn("--ram", said)


class Terminals(unittest.TestCase):
    def test_one_ctrl_d_ends_the_input(self):
        with weft.serving() as server:
            terminal, ours = pty.openpty()
            put = subprocess.Popen(
                [weft.WEFT, "put", server.url("file")], env=ENVIRONMENT, stdin=ours, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.write(terminal, b"content\n\x04")
            self.assertEqual(put.wait(timeout=60), 0)
            self.assertEqual((server.folder / "file").read_text(), "content\n")
            os.close(ours)
            os.close(terminal)


if __name__ == "__main__":
    unittest.main()
