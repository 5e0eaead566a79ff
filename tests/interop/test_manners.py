"""Behaviour of every client command when the server does not answer, when it is interrupted, and with names of
several addresses."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import weft
from test_reach import Peer, closes, is_silent, reads_and_closes
from test_replica import Host

SMB, NFS = "smb://a@127.0.0.1:{port}/s", "nfs://127.0.0.1:{port}/s"
REPLICA = ["vol1", "127.0.0.1:vol1", "--smb-port", "{port}", "--user", "a", "--state-dir", "{state}"]
ASLEEP = "accepts connections but does not answer"
# The command, its last message when the server does not answer, and its time limit; None for commands that print their
# own limit.
COMMANDS = [
    (["ls", SMB], ASLEEP, None),
    (["ls", NFS], ASLEEP, None),
    (["stat", SMB + "/x"], ASLEEP, None),
    (["stat", NFS + "/x"], ASLEEP, None),
    (["cat", SMB + "/x"], ASLEEP, None),
    (["cat", NFS + "/x"], ASLEEP, None),
    (["put", SMB + "/x"], ASLEEP, None),
    (["put", NFS + "/x"], ASLEEP, None),
    (["cp", "-r", SMB + "/x", "{folder}/copy"], ASLEEP, None),
    (["cp", "-r", "{folder}", NFS + "/x"], ASLEEP, None),
    (["sync", SMB, "{folder}"], ASLEEP, None),
    (["sync", "{folder}", NFS], ASLEEP, None),
    (["bench", "smb", SMB], ASLEEP, None),
    (["bench", "nfs", NFS], ASLEEP, None),
    (["replica", "check", "127.0.0.1", *REPLICA[2:]], ASLEEP, None),
    (["replica", "create", *REPLICA], ASLEEP, 25),
    (["doctor", "127.0.0.1:{port}", "--timeout", "2"], "connected, but silent", 5),
    (["doctor", "127.0.0.1:{port}", "--timeout", "2", "--user", "a", "--smb-port", "{port}"], "no answer in time", 8),
    (["rdma", "ping", "127.0.0.1:{port}"], "on that host: weft rdma ping --server", None),
    (["rdma", "perf", "client", "127.0.0.1:{port}"], "on that host: weft rdma perf server", None),
]
# Allowance for a busy host.
LATER = 15


class Commands(unittest.TestCase):
    def setUp(self):
        work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-manners-")))
        # Replication commands talk to the server of their own host.
        self.host = Host(work, "here", {"vol1": 1 << 20})
        self.addCleanup(self.host.stop)
        self.folder = work / "folder"
        self.folder.mkdir()
        (self.folder / "file").write_text("x")

    @contextlib.contextmanager
    def started(self, command, behave=is_silent):
        """Runs the command against a peer that accepts connections and handles them as given."""
        peer = Peer(behave)
        words = [word.format(port=peer.port, folder=self.folder, state=self.host.state) for word in command]
        process = subprocess.Popen(
            [weft.WEFT, *words], env=dict(os.environ, WEFT_PASSWORD="x"), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        try:
            yield peer, process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            peer.close()


class Waits(Commands):
    def test_every_command_ends_where_nobody_answers(self):
        ended = {}

        def carry_out(number, command):
            begun = time.monotonic()
            with self.started(command) as (_, process), contextlib.suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=100)
                ended[number] = process.returncode, said, time.monotonic() - begun

        threads = [
            threading.Thread(target=carry_out, args=(number, command)) for number, (command, *_) in enumerate(COMMANDS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, (command, says, limit) in enumerate(COMMANDS):
            with self.subTest(command=command):
                self.assertIn(number, ended, "it still waits")
                status, said, took = ended[number]
                self.assertNotEqual(status, 0)
                self.assertIn(says, said)
                if limit is None:
                    told = [int(seconds) for seconds in re.findall(r"(\d+) s at most", said)]
                    self.assertTrue(told, said)
                    limit = max(told)
                self.assertLess(took, limit + LATER)


@weft.alone
class Interrupts(Commands):
    def test_sigint_where_the_server_is_silent(self):
        self.all_end_by(signal.SIGINT, is_silent)

    def test_sigterm_where_the_server_is_silent(self):
        self.all_end_by(signal.SIGTERM, is_silent)

    def test_sigint_where_the_server_closes(self):
        self.all_end_by(signal.SIGINT, closes)

    def test_sigterm_where_the_server_closes(self):
        self.all_end_by(signal.SIGTERM, closes)

    def test_sigint_where_the_server_reads_and_closes(self):
        self.all_end_by(signal.SIGINT, reads_and_closes)

    def test_sigterm_where_the_server_reads_and_closes(self):
        self.all_end_by(signal.SIGTERM, reads_and_closes)

    def test_the_terminal_that_goes_ends_them_in_order(self):
        """SIGHUP does not get its default action, which ends a process immediately."""
        for command in [command for command, *_ in COMMANDS if command[0] in ("rdma", "bench", "cp", "sync")]:
            with self.subTest(command=command):
                self.assertEqual(self.ends_by(signal.SIGHUP, command, is_silent), -signal.SIGHUP)

    def all_end_by(self, number, behave):
        for command in [command for command, *_ in COMMANDS]:
            with self.subTest(command=command):
                self.ends_by(number, command, behave)

    def ends_by(self, number, command, behave):
        with self.started(command, behave) as (peer, process):
            while not peer.taken:
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            # By now it waits for an answer, or has reported that none came.
            time.sleep(0.1)
            if number == signal.SIGHUP:
                caught = pathlib.Path(f"/proc/{process.pid}/status").read_text().partition("SigCgt:")[2].split()[0]
                self.assertTrue(int(caught, 16) & 1 << number - 1)
            begun = time.monotonic()
            process.send_signal(number)
            status = process.wait(timeout=30)
            self.assertNotEqual(status, 0)
            self.assertLess(time.monotonic() - begun, 1)
            return status


class AtWork(unittest.TestCase):
    """An open that waits for another client, which has the file and does not acknowledge the oplock break."""

    def test_it_is_told_and_interrupted(self):
        from impacket.smb3structs import SMB2_OPLOCK_LEVEL_BATCH
        from impacket.smbconnection import SMBConnection

        with weft.serving() as server:
            (pathlib.Path(server.folder) / "file").write_text("x")
            holder = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.smb_port)
            holder.login(weft.USER, weft.PASSWORD)
            tree = holder.connectTree("data")
            holder.getSMBServer().create(
                tree, "file", 0x12019F, 7, 0x40, 1, 0, oplockLevel=SMB2_OPLOCK_LEVEL_BATCH
            )
            process = subprocess.Popen(
                [weft.WEFT, "cat", server.url("file")], env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            self.addCleanup(process.stderr.close)
            begun = time.monotonic()
            line = process.stderr.readline()
            self.assertRegex(line, r"the server is at work .*waiting for 115 s at most")
            self.assertLess(time.monotonic() - begun, 15)
            begun = time.monotonic()
            process.send_signal(signal.SIGINT)
            self.assertNotEqual(process.wait(timeout=30), 0)
            self.assertLess(time.monotonic() - begun, 1)
            holder.close()


class Closing(unittest.TestCase):
    """An NFS server that starts to close every connection at its first request, like one behind a broken balancer."""

    def test_it_is_told(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-closing-") as work:
            weft.random_file(server.folder / "large", 64 << 20)
            ready = server.ready
            for options in ["?vers=4.1", f"?vers=3&mountport={ready['mountd_port']}"]:
                with self.subTest(options=options):
                    self.tells(ready["nfs_port"], options, pathlib.Path(work))

    def tells(self, port, options, work):
        closing, between = threading.Event(), []

        def carry(source, target):
            with contextlib.suppress(OSError):
                while some := source.recv(1 << 16):
                    target.sendall(some)
            closes(target)

        def behave(connection):
            if closing.is_set():
                return reads_and_closes(connection)
            server = weft.nfs_connection(port)
            between.append(server)
            threading.Thread(target=carry, args=(server, connection), daemon=True).start()
            with server:
                carry(connection, server)

        peer = Peer(behave)
        self.addCleanup(peer.close)
        url = f"nfs://127.0.0.1:{peer.port}/data/large{options}"
        command = ["cp", "-q", "--transport", "tcp", "--queue-depth", "1", "--block", "4K", url, work / "target"]
        process = subprocess.Popen([weft.WEFT, *command], stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        partial = work / ".target.weft-partial"
        while not (partial.exists() and partial.stat().st_size > 100_000):
            self.assertIsNone(process.poll())
            time.sleep(0.005)
        closing.set()
        for server in between:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
        begun = time.monotonic()
        line = process.stderr.readline()
        self.assertRegex(line, r"ends connections without an answer .*trying for 8\d s at most")
        self.assertLess(time.monotonic() - begun, 15)
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=30), 0)


@weft.alone
class Deletions(unittest.TestCase):
    """`weft sync --delete` of many files over a slow link: it does not wait for each file."""

    FILES, ONE_WAY = 150, 0.02

    def test_many_files_far_away(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-empty-") as empty:
            urls = [server.url("copy"), f"nfs://127.0.0.1:{server.ready['nfs_port']}/data/copy?vers=4.1"]
            for url in urls:
                folder = pathlib.Path(server.folder) / "copy"
                for name in ["", "a", "a/b", "a/b/c", "d"]:
                    (folder / name).mkdir()
                for number in range(self.FILES):
                    (folder / ["", "a", "a/b", "a/b/c", "d"][number % 5] / f"f{number}").touch()
                port = int(url.split("/")[2].rsplit(":", 1)[1])
                far = Peer(lambda connection, port=port: self.carry(connection, port))
                self.addCleanup(far.close)
                begun = time.monotonic()
                done = weft.run(
                    weft.WEFT, "sync", "--delete", "--transport", "tcp", "--json", empty,
                    url.replace(f":{port}/", f":{far.port}/"),
                )
                took = time.monotonic() - begun
                with self.subTest(url=url):
                    self.assertEqual((json.loads(done.stdout)["deleted"], os.listdir(folder)), (self.FILES + 4, []))
                    # One by one, each file would take at least one round trip.
                    self.assertLess(took, self.FILES * 2 * self.ONE_WAY)
                folder.rmdir()

    def carry(self, connection, port):
        server = weft.nfs_connection(port)
        threading.Thread(target=self.carry_one_way, args=(server, connection), daemon=True).start()
        self.carry_one_way(connection, server)

    def carry_one_way(self, source, target):
        on_the_way = queue.SimpleQueue()

        def arrive():
            with contextlib.suppress(OSError), target:
                while True:
                    at, some = on_the_way.get()
                    time.sleep(max(0, at - time.monotonic()))
                    if not some:
                        return target.shutdown(socket.SHUT_WR)
                    target.sendall(some)

        threading.Thread(target=arrive, daemon=True).start()
        some = b"begin"
        while some:
            try:
                some = source.recv(1 << 16)
            except OSError:
                some = b""
            on_the_way.put((time.monotonic() + self.ONE_WAY, some))


@unittest.skipUnless(os.geteuid() == 0, "needs root to mount an /etc/hosts of its own")
class Names(unittest.TestCase):
    """A name with two addresses, the first of which refuses connections: clients use the other one."""

    NAME = "refused.test"

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-names-")))
        hosts = self.work / "hosts"
        hosts.write_text(f"::1 {self.NAME}\n127.0.0.1 {self.NAME}\n")
        # In a chroot, / may not be a mount point: then there is nothing above it to make private.
        script = 'mount --make-rprivate / 2> /dev/null; mount --bind "$0" /etc/hosts && exec "$@"'
        self.knowing = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, hosts]

    def weft(self, *command):
        return weft.run(*self.knowing, weft.WEFT, *command).stdout

    def test_doctor_smb_direct_and_nfs(self):
        with weft.serving("--server-name", self.NAME) as server:
            ready = server.ready
            (server.folder / "file").write_text("x")
            log_on = ["--user", weft.USER, "--smb-port", ready["smb_port"]]
            for port, options, says in [
                ("smbd_port", log_on, "RDMA is used"), ("nfs_rdma_port", ["--service", "nfs"], "RDMA would be used"),
            ]:
                with self.subTest(doctor=port):
                    said = self.weft("doctor", f"{self.NAME}:{ready[port]}", *options)
                    self.assertIn(f"{self.NAME} is ::1, 127.0.0.1", said)
                    self.assertIn("open at 127.0.0.1", said)
                    self.assertIn(says, said)
            newer = f"nfs://127.0.0.1:{ready['nfs_port']}/data/file?vers=4.1&rdmaport={ready['nfs_rdma_port']}"
            for url in [server.url("file"), server.nfs_url("file"), newer]:
                url, copy = url.replace("127.0.0.1", self.NAME), self.work / "copy"
                for transport in ["tcp", "iwarp", "shm"]:
                    with self.subTest(url=url, transport=transport):
                        copied = json.loads(self.weft("cp", "--json", "--transport", transport, url, copy))
                        self.assertEqual((copied["transport"], copy.read_text()), (transport, "x"))
                        copy.unlink()

    def test_replica(self):
        knowing = self.knowing

        class Named(Host):
            def command_at(self, ports):
                return [*knowing, *super().command_at(ports)]

            def weft(self, *command, check=True, timeout=120):
                return weft.run(*knowing, weft.WEFT, *command, "--state-dir", self.state, check=check, timeout=timeout)

            def to(self, *volumes):
                return [word.replace("127.0.0.1", Names.NAME) for word in map(str, super().to(*volumes))]

        here, there = hosts = [
            Named(self.work, name, {"vol1": 1 << 20}, "--server-name", self.NAME) for name in ["here", "there"]
        ]
        for host in hosts:
            self.addCleanup(host.stop)
        for transport in ["tcp", "iwarp", "shm"]:
            with self.subTest(transport=transport):
                options = [*there.to("vol1"), "--transport", transport]
                self.assertIn("volume vol1", here.replica("check", *options).stdout)
                here.replica("create", "vol1", *options, "--log-size", "64M", "--overwrite")
                [group] = here.wait_until_following()
                [link] = group["links"]
                self.assertEqual((link["transport"], link["address"].split(":")[0]), (transport, self.NAME))
                here.replica("remove", "vol1")


if __name__ == "__main__":
    unittest.main()
