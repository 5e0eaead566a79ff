"""A restart that clients do not notice: the service manager keeps the listening sockets, the server drains, and what clients
hold comes back. `make test-restart` does the same with the kernel's clients (tests/kernel/test_restart.py)."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock
import uuid

import nfs4
import test_persistent
import weft

RESTARTS = 3
# A program of an older version, which the one under test replaces while clients work.
OLDER = os.environ.get("WEFT_OLDER")


def bound(kind=socket.SOCK_STREAM, port=0, backlog=4096):
    """A socket as a socket unit binds it."""
    one = socket.socket(socket.AF_INET, kind)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    if kind == socket.SOCK_STREAM:
        one.listen(backlog)
    return one


def port_of(one):
    return one.getsockname()[1]


class Restarting(unittest.TestCase):
    def setUp(self):
        self.state = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-state-")))

    def bind(self, *names):
        """Sockets of these names."""
        sockets = [(name, bound()) for name in names]
        for _, one in sockets:
            self.addCleanup(one.close)
        return sockets

    def volume(self):
        place = ["--file", self.state / "vol1.img", "--state-dir", self.state]
        weft.run(weft.WEFT, "volume", "create", "vol1", "--size", "4M", *place)
        return ["--volume", "vol1"]


class Passed(Restarting):
    """Sockets that the service manager passes."""

    def test_every_listener_serves_on_the_socket_of_its_name(self):
        sockets = self.bind("smb", "smb-direct", "nfs", "nfs-rdma", "mountd", "rpcbind", "nbd", "admin")
        ports = {name: port_of(one) for name, one in sockets}
        datagrams = bound(socket.SOCK_DGRAM, ports["nfs"])
        self.addCleanup(datagrams.close)
        sockets.append(("nfs", datagrams))
        options = [*self.volume(), "--state-dir", self.state, "--nbd-port", ports["nbd"], "--nfs-udp", "--admin", f"127.0.0.1:{ports['admin']}",
                   "--rpcbind-port", ports["rpcbind"]]
        fixed = dict(ports, smbd=ports["smb-direct"])
        # By the names of the listeners; or all in one unit, whose name they have.
        for names in [[name for name, _ in sockets], ["weft.socket"] * len(sockets)]:
            passed = [(name, one) for name, (_, one) in zip(names, sockets)]
            with self.subTest(names=names), weft.serving(*options, ports=fixed, sockets=passed) as server:
                self.assertEqual(server.log_text().count("the service manager passes"), len(sockets), server.log_text())
                weft.smbclient(server, "ls")
                weft.run(weft.WEFT, "cp", self.state / "vol1.img", server.url("copy"), "--transport", "iwarp")
                nfs4.Client(ports["nfs"], "a")
                self.assertIn("vol1", weft.run("nbdinfo", "--list", f"nbd://127.0.0.1:{ports['nbd']}").stdout)
                health = weft.run("curl", "-sS", f"http://127.0.0.1:{ports['admin']}/healthz").stdout
                self.assertEqual(health, "ok\n")

    def test_a_unix_socket_stays_the_service_managers(self):
        path = self.state / "nbd.sock"
        one = socket.socket(socket.AF_UNIX)
        self.addCleanup(one.close)
        one.bind(str(path))
        one.listen()
        options = [*self.volume(), "--state-dir", self.state, "--nbd-socket", path]
        for _ in range(2):
            with weft.serving(*options, sockets=[("nbd", one)]):
                self.assertIn("vol1", weft.run("nbdinfo", "--list", f"nbd+unix:///?socket={path}").stdout)
            self.assertTrue(path.exists(), "its file was removed")

    def test_a_unix_socket_that_admits_every_user_is_refused(self):
        self.state.chmod(0o755)
        path = self.state / "weft.sock"
        one = socket.socket(socket.AF_UNIX)
        self.addCleanup(one.close)
        one.bind(str(path))
        one.listen()
        weft.run(weft.WEFT, "volume", "create", "vol1", "--size", "4M", "--ram", "--state-dir", self.state / "state")
        for name, options in [("nbd", ["--volume", "vol1", "--nbd-socket", path]), ("admin", ["--admin", f"unix:{path}"])]:
            with self.subTest(name=name):
                # systemd's default.
                path.chmod(0o666)
                said = self.refused([(name, one)], *options)
                self.assertIn(f"descriptor 3 ({name}), a Unix socket at {path}, admits every user of this host, because its file has mode 0666: "
                              "write SocketMode=0660 in its socket unit", said)
                path.chmod(0o660)
                with weft.serving(*options, "--state-dir", self.state / "state", sockets=[(name, one)]) as server:
                    self.assertIn("the service manager passes", server.log_text())

    def refused(self, sockets, *options):
        """Why a server with these sockets does not start."""
        folder, log = self.state / "data", self.state / "log"
        folder.mkdir(exist_ok=True)
        log.write_text("")
        command = [weft.WEFT, "serve", folder, "--listen", "127.0.0.1", "--smbd-port", 0, "--state-dir", self.state / "state", *options]
        with self.assertRaises(RuntimeError) as failed:
            weft.Process([*command, "--json"], log, sockets)
        return str(failed.exception)

    def test_a_descriptor_that_does_not_fit_is_named_with_what_to_write(self):
        [(_, one)] = self.bind("smb")
        port = port_of(one)
        here = f"a TCP socket at 127.0.0.1:{port}"
        connection = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(connection.close)
        file = open(self.state / "file", "w")
        self.addCleanup(file.close)
        for name, what, options, says in [
            ("samba", one, [], f"descriptor 3 (samba), {here}, has the name of no listener: write FileDescriptorName="),
            ("smb", one, [], f"descriptor 3 (smb), {here}, has another place than --smb-port, which is 4450: change that, or the socket unit"),
            ("nbd", one, [], f"descriptor 3 (nbd), {here}, is for nbd, which is not served so: set --nbd-port, or disable the socket unit"),
            ("weft.socket", one, [], f"{here}, is where nothing is configured to listen: configure that port for a service"),
            ("smb", connection, [], "descriptor 3 (smb), a connection (Accept=yes), cannot be used: Weft takes ports (ListenStream=PORT"),
            ("smb", file, [], "descriptor 3 (smb), no socket, cannot be used: Weft takes ports"),
        ]:
            with self.subTest(name=name, says=says):
                said = self.refused([(name, what)], *options)
                self.assertIn("socket activation: ", said)
                self.assertIn(says, said)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as mptcp:
            mptcp.bind(("127.0.0.1", 0))
            mptcp.listen()
            said = self.refused([("smb", mptcp)], "--smb-port", port_of(mptcp))
            self.assertIn("descriptor 3 (smb), a stream socket of another protocol than TCP (SocketProtocol=), cannot be used: Weft takes", said)
        # One that the service manager has announced and not passed: the number may be that of a file of the server's own.
        said = self.refused([("smb", None)], "--smb-port", port)
        self.assertIn("socket activation: descriptor 3 (smb), which LISTEN_FDS announces, is not open: pass it, or lower LISTEN_FDS", said)
        # The same socket twice; a port of another address.
        said = self.refused([("smb", one), ("smb", one)], "--smb-port", port)
        self.assertIn(f"descriptor 4 (smb), {here}, is passed twice: remove one", said)
        everywhere = socket.create_server(("0.0.0.0", 0))
        self.addCleanup(everywhere.close)
        said = self.refused([("smb", everywhere)], "--smb-port", port_of(everywhere))
        self.assertIn("has an address that is not in --listen (127.0.0.1): add 0.0.0.0 there, or write", said)

    @unittest.skipUnless(shutil.which("systemd-socket-activate"), "needs systemd-socket-activate")
    def test_systemd_starts_the_server_at_its_first_connection(self):
        port = weft.free_port()
        (self.state / "data").mkdir()
        (self.state / "data" / "file").write_text("content")
        command = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}", "--fdname=smb", "-E", "WEFT_PASSWORD", weft.WEFT, "serve",
                   self.state / "data", "--listen", "127.0.0.1", "--smb-port", port, "--smbd-port", 0, "--user", weft.USER,
                   "--state-dir", self.state]
        with open(self.state / "log", "w") as log:
            process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log, env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD))
        try:
            until = time.monotonic() + 30
            while "Listening on" not in (self.state / "log").read_text() and time.monotonic() < until:
                time.sleep(0.05)
            url = f"smb://{weft.USER}@127.0.0.1:{port}/data/file"
            self.assertEqual(weft.run(weft.WEFT, "cat", url).stdout, "content", (self.state / "log").read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Unnoticed(Restarting):
    """Restarts under clients that are at work."""

    def test_nobody_is_refused_while_the_server_is_away(self):
        sockets = self.bind("smb", "nfs", "nbd")
        ports = {name: port_of(one) for name, one in sockets}
        options = [*self.volume(), "--state-dir", self.state, "--nbd-port", ports["nbd"]]
        longest, connected, failures, over = 0.0, 0, [], threading.Event()

        def connect():
            nonlocal longest, connected
            while not over.is_set():
                for name, port in ports.items():
                    began = time.monotonic()
                    try:
                        with socket.create_connection(("127.0.0.1", port), 30) as one:
                            # NBD's server speaks first. One that ends closes those whom it has not heard yet.
                            if name == "nbd" and one.recv(8) == b"NBDMAGIC":
                                connected += 1
                                longest = max(longest, time.monotonic() - began)
                    except OSError as e:
                        failures.append((name, e))
                    time.sleep(0.002)

        with weft.serving(*options, ports=ports, sockets=sockets) as server:
            client = threading.Thread(target=connect)
            client.start()
            try:
                took = []
                for _ in range(RESTARTS):
                    time.sleep(0.3)
                    took.append(server.restart())
                time.sleep(0.3)
            finally:
                over.set()
                client.join()
        refused = [failure for failure in failures if isinstance(failure[1], ConnectionRefusedError)]
        self.assertEqual(refused, [])
        self.assertGreater(connected, RESTARTS)
        print(f"{connected} connections, the longest waited {longest:.2f} s; the server was away for at most {max(took):.2f} s")

    @unittest.skipUnless(shutil.which("qemu-io"), "needs qemu-io: tests/interop/deps.sh installs it")
    def test_qemu_writes_and_verifies_a_volume_over_restarts(self):
        for passes in [True, False]:
            with self.subTest(passes=passes):
                self.qemu_over_restarts(passes)

    def qemu_over_restarts(self, passes):
        sockets = self.bind("nbd")
        port = port_of(sockets[0][1])
        if not passes:
            sockets[0][1].close()
        if not (self.state / "vol1.img").exists():
            self.volume()
        options = ["--volume", "vol1", "--state-dir", self.state, "--nbd-port", port]
        node = f"driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port},export=vol1,reconnect-delay=60"
        with weft.serving(*options, sockets=sockets if passes else None) as server:
            command = ["qemu-io", "-t", "none", "--image-opts", node]
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            said, longest, operations = [], 0.0, 0

            def ask(line, answer):
                nonlocal longest, operations
                began = time.monotonic()
                client.stdin.write(line + "\n")
                client.stdin.flush()
                while True:
                    text = client.stdout.readline()
                    self.assertTrue(text, said)
                    said.append(text)
                    self.assertNotRegex(text, "failed|error|Pattern")
                    if answer in text:
                        break
                # The rates of the last operation.
                longest, operations = max(longest, time.monotonic() - began), operations + 1

            try:
                restarts = iter([threading.Thread(target=server.restart) for _ in range(RESTARTS)])
                under_way = []
                for number in range(256 * RESTARTS):
                    if number % 256 == 128:
                        under_way = [next(restarts)]
                        under_way[0].start()
                    at = number * 65536 % (4 << 20)
                    pattern = number % 255 + 1
                    ask(f"write -P {pattern} {at} 65536", "wrote 65536")
                    ask(f"read -P {pattern} {at} 65536", "read 65536")
                    if number % 256 == 255:
                        under_way[0].join()
                client.stdin.write("flush\nq\n")
                client.stdin.close()
                self.assertEqual(client.wait(60), 0)
            finally:
                client.kill()
                client.wait()
                client.stdout.close()
        print(f"{operations} operations of qemu-io over {RESTARTS} restarts, the longest took {longest:.2f} s")


@unittest.skipUnless(test_persistent.files, "no smbprotocol: tests/interop/deps.sh installs it")
class Ordered(test_persistent.Persistent):
    """A writer with a persistent handle, as in test_persistent, whose server ends in order: it must not close what it still holds."""

    def end(self, server):
        self.assertEqual(weft.Process.stop(server), 0)


@unittest.skipUnless(test_persistent.files, "no smbprotocol: tests/interop/deps.sh installs it")
class Away(Restarting):
    """A persistent handle whose share, or whose user, is not there at a start."""

    def setUp(self):
        super().setUp()
        self.data = self.state / "data"
        self.data.mkdir()
        self.file = self.state / "weft.toml"
        self.file.write_text(
            f'[listeners]\naddresses = ["127.0.0.1"]\nsmb_port = {weft.free_port()}\nsmb_direct_port = 0\n'
            # Also as root, for users without accounts of the system.
            '[smb]\nact_as_callers = false\n'
            '[shares.data]\npath = "data"\ncontinuous_availability = true\n[shares.ram]\nram = "1M"\n')
        self.add_user()
        self.client = test_persistent.Persistent("test_a_server_that_ends_under_a_writer")
        self.client.setUp()
        self.addCleanup(self.client.doCleanups)

    def user(self, *command):
        weft.run(weft.WEFT, "user", *command, "--state-dir", self.state / "state", password=weft.PASSWORD)

    def add_user(self):
        self.user("add", weft.USER)

    def begun(self, server):
        """A client writes, and the server ends."""
        file, _ = self.client.open(self.client.connect(server), self.client.ask())
        file.write(b"before", 0)
        self.assertEqual(server.stop(), 0)
        return file.file_id

    def is_back(self, server, file_id):
        share = self.client.connect(server)
        with self.assertRaises(test_persistent.exceptions.SMBResponseException) as refused:
            self.client.open(self.client.connect(server, uuid.uuid4()), None)
        self.assertEqual(refused.exception.status, 0xC0000467)
        file, _ = self.client.open(share, self.client.again(file_id))
        self.assertEqual(file.read(0, 64), b"before")

    def test_a_folder_that_is_missing_for_a_start(self):
        with weft.configured(self.file, self.state / "state") as server:
            file_id = self.begun(server)
            self.data.rename(self.state / "away")
            server.start()
            server.restart()
            # The disk is there again, and a reload finds it.
            (self.state / "away").rename(self.data)
            weft.run(weft.WEFT, "reload", "--state-dir", self.state / "state")
            self.is_back(server, file_id)
            self.assertIn("1 persistent handles on data are not restored yet: the share is not there", server.log_text())
            # Or the next start.
            self.assertEqual(server.stop(), 0)
            self.data.rename(self.state / "away")
            server.start()
            self.assertEqual(server.stop(), 0)
            (self.state / "away").rename(self.data)
            server.start()
            self.is_back(server, file_id)

    def test_a_mount_point_without_its_disk(self):
        """The folder at the share's path is served, and its files are others than those of the disk."""
        disk, point = self.state / "disk", self.state / "point"
        with weft.configured(self.file, self.state / "state") as server:
            file_id = self.begun(server)
            self.data.rename(disk)
            self.data.mkdir()
            (self.data / "file").write_text("another file")
            server.start()
            server.restart()
            with self.assertRaises(test_persistent.exceptions.SMBResponseException) as refused:
                self.client.open(self.client.connect(server), self.client.again(file_id))
            self.assertEqual(refused.exception.status, 0xC0000034)
            # The disk is mounted, and a reload finds it.
            self.data.rename(point)
            disk.rename(self.data)
            weft.run(weft.WEFT, "reload", "--state-dir", self.state / "state")
            self.is_back(server, file_id)
            self.assertIn("1 persistent handles on data are not restored yet: another folder is at its path", server.log_text())
            self.assertNotIn("lost a persistent handle", server.log_text())

    def test_another_user_of_the_name(self):
        with weft.configured(self.file, self.state / "state") as server:
            file_id = self.begun(server)
            self.user("remove", weft.USER)
            self.add_user()
            server.start()
            share = self.client.connect(server)
            with self.assertRaises(test_persistent.exceptions.SMBResponseException) as refused:
                self.client.open(share, self.client.again(file_id))
            self.assertEqual(refused.exception.status, 0xC0000034)
            self.client.open(share, None)
            self.assertIn(f"lost a persistent handle of {weft.USER} on data: its user is gone, or another one has the name now", server.log_text())


@unittest.skipUnless(OLDER, "WEFT_OLDER names no program of an older version")
class Upgraded(Ordered):
    """The same with a server that is an older program until its first end."""

    def setUp(self):
        super().setUp()
        self.newer = weft.WEFT
        self.enterContext(unittest.mock.patch.object(weft, "WEFT", pathlib.Path(OLDER)))

    def end(self, server):
        super().end(server)
        server.command[0] = self.newer


@unittest.skipUnless(test_persistent.files, "no smbprotocol: tests/interop/deps.sh installs it")
@unittest.skipUnless(os.geteuid() == 0, "mounts a small file system for the state directory: needs root")
class Full(unittest.TestCase):
    """The disk of the state directory is full when the server ends."""

    def test_nothing_acknowledged_is_lost(self):
        work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-full-")))
        state, data = work / "state", work / "data"
        state.mkdir(), data.mkdir()
        mount = f"mount -t tmpfs -o size=1m,mode=700 none {state} && echo mounted && exec sleep 600"
        holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", mount], stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "mounted\n")
        seen = pathlib.Path(f"/proc/{holder.pid}/root{state}")
        ports = {"smb": weft.free_port(), "nfs": weft.free_port()}
        command = ["nsenter", "-t", holder.pid, "--mount", weft.WEFT, "serve", data, "--user", weft.USER, "--listen", "127.0.0.1", "--json",
                   "--smb-port", ports["smb"], "--smbd-port", 0, "--nfs-port", ports["nfs"], "--no-root-squash", "--state-dir", state,
                   "--continuous-availability", "data"]
        server = weft.Process(command, work / "log")
        self.addCleanup(lambda: server.process.poll() is None and server.crash())
        client = test_persistent.Persistent("test_a_server_that_ends_under_a_writer")
        client.setUp()
        self.addCleanup(client.doCleanups)
        file, _ = client.open(client.connect(server), client.ask())
        file.write(b"before", 0)
        with contextlib.suppress(OSError), open(seen / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        # What is open needs no record to go on.
        file.write(b"while it was full", 6)
        late = nfs4.Client(ports["nfs"], "late")
        self.assertEqual(late.open("data", "late", 3, 0)[0], "SERVERFAULT", "its open could not be recorded")
        late.hang_up()
        self.assertEqual(server.stop(), 0)
        # Everything was recorded before it was answered, so an end needs no space, and neither does a start.
        server.start()
        (seen / "filler").unlink()
        file, _ = client.open(client.connect(server), client.again(file.file_id))
        self.assertEqual(file.read(0, 64), b"beforewhile it was full")
        file.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
