"""Messages of clients about servers that misbehave and about names with several addresses, and how soon the clients
end."""

import contextlib
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
from concurrent.futures import ThreadPoolExecutor

import weft


class Peer:
    """Accepts connections on loopback and runs `behave` on each."""

    def __init__(self, behave):
        self.behave, self.taken, self.open = behave, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.taken += 1
                self.open.append(connection)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with contextlib.suppress(OSError):
            self.behave(connection)

    def close(self):
        for end in [self.listener, *self.open]:
            end.close()


def closes(connection):
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def reads_and_closes(connection):
    connection.recv(65536)
    closes(connection)


def is_silent(connection):
    while connection.recv(65536):
        pass


def speaks_http(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    closes(connection)


def greets_as_nbd(connection):
    connection.sendall(b"NBDMAGICIHAVEOPT\0\3")
    is_silent(connection)


class Reach(unittest.TestCase):
    @contextlib.contextmanager
    def peer(self, behave):
        peer = Peer(behave)
        try:
            yield peer
        finally:
            peer.close()

    def said(self, *arguments, within=30, status=1):
        begun = time.monotonic()
        done = weft.run(weft.WEFT, *arguments, check=False, timeout=60)
        self.assertLess(time.monotonic() - begun, within, done.stderr)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def test_peers_that_close(self):
        for behave in [closes, reads_and_closes]:
            for url in ["smb://a@127.0.0.1:{}/s/x", "nfs://127.0.0.1:{}/s/x", "nfs://127.0.0.1:{}/s/x?vers=3"]:
                with self.subTest(url=url, behave=behave.__name__), self.peer(behave) as peer:
                    said = self.said("cp", url.format(peer.port), "/dev/null", within=15)
                    self.assertIn(f"127.0.0.1:{peer.port} accepts connections and closes them without an answer", said)
                    # Some connections find out what it is; there are not many.
                    self.assertLess(peer.taken, 20)

    def test_silent_peers(self):
        """Messages for a silent port: one limit, which is kept, and finally the cause."""
        environment = dict(os.environ, WEFT_PASSWORD="x")

        def lines(url):
            """Each line with the time at which it was read, including the end."""
            by = ["--transport", "iwarp"] if "rdmaport" in url else []
            with self.peer(is_silent) as peer:
                command = [weft.WEFT, "ls", *by, url.format(peer.port)]
                process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
                with process.stderr:
                    said = [(time.monotonic(), line) for line in process.stderr]
                process.wait(timeout=30)
                return [*said, (time.monotonic(), "")]

        urls = ["smb://a@127.0.0.1:{}/s", "nfs://127.0.0.1:{}/s", "nfs://127.0.0.1:{}/s?vers=3"]
        urls += ["smb://a@127.0.0.1/s?rdmaport={}", "nfs://127.0.0.1/s?rdmaport={}"]
        # All at once, because the test only waits.
        with ThreadPoolExecutor(len(urls)) as threads:
            for url, said in zip(urls, threads.map(lines, urls)):
                with self.subTest(url=url):
                    text = "".join(line for _, line in said)
                    self.assertIn("waiting for", text)
                    matter = "timed out during" if "rdmaport" in url else "accepts connections but does not answer"
                    self.assertIn(matter, text)
                    limits = [(at, int(s)) for at, line in said for s in re.findall(r"(\d+) s at most", line)]
                    [(at, seconds)] = limits
                    self.assertAlmostEqual(said[-1][0] - at, seconds, delta=1.5)

    def test_other_servers(self):
        for behave, name in [(speaks_http, "speaks HTTP"), (greets_as_nbd, "speaks NBD")]:
            for url in ["smb://a@127.0.0.1:{}/s", "nfs://127.0.0.1:{}/s"]:
                with self.subTest(url=url, name=name), self.peer(behave) as peer:
                    self.assertIn(name, self.said("ls", url.format(peer.port), within=40))

    def test_the_other_protocol(self):
        with weft.serving() as server:
            ready = server.ready
            said = self.said("ls", f"smb://{weft.USER}@127.0.0.1:{ready['nfs_port']}/data", within=10)
            self.assertIn(f"speaks NFS, not SMB; try nfs://127.0.0.1:{ready['nfs_port']}/data", said)
            said = self.said("cp", f"nfs://127.0.0.1:{ready['smb_port']}/data/x", "/dev/null", within=40)
            self.assertIn(f"speaks SMB, not NFS; try smb://USER@127.0.0.1:{ready['smb_port']}/data", said)
            said = self.said("ls", f"smb://{weft.USER}@127.0.0.1:{ready['smbd_port']}/data", within=40)
            self.assertIn("is an RDMA port", said)

    def test_the_first_signal_ends_it(self):
        commands = [
            ("cp", "smb://a@127.0.0.1:{}/s/x", "/dev/null"), ("cp", "nfs://127.0.0.1:{}/s/x", "/dev/null"),
            ("sync", "nfs://127.0.0.1:{}/s", "."), ("put", "smb://a@127.0.0.1:{}/s/x"),
            ("ls", "nfs://127.0.0.1:{}/s"), ("cat", "smb://a@127.0.0.1:{}/s/x"),
        ]
        environment = dict(os.environ, WEFT_PASSWORD="x")
        for number in [signal.SIGINT, signal.SIGTERM]:
            for command in commands:
                with self.subTest(command=command, signal=int(number)), self.peer(is_silent) as peer:
                    process = subprocess.Popen(
                        [weft.WEFT, *(part.format(peer.port) for part in command)], env=environment,
                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                    )
                    while not peer.taken:
                        time.sleep(0.01)
                    begun = time.monotonic()
                    process.send_signal(number)
                    self.assertNotEqual(process.wait(timeout=30), 0)
                    self.assertLess(time.monotonic() - begun, 2.5)
                    process.stderr.close()

    def test_a_server_that_is_stopped_in_a_copy(self):
        """A running copy from a server that is stopped (SIGSTOP): the first signal ends it, and nothing is left
        behind."""
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            weft.random_file(server.folder / "large", 64 << 20)
            environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
            for url in [server.url("large"), server.nfs_url("large")]:
                target = pathlib.Path(work) / "target"
                target.write_bytes(b"old")
                process = subprocess.Popen(
                    [weft.WEFT, "cp", "-q", "--transport", "tcp", "--queue-depth", "1", "--block", "4K", url, target],
                    env=environment, stderr=subprocess.PIPE, text=True,
                )
                partial = target.with_name(".target.weft-partial")
                while not (partial.exists() and partial.stat().st_size > 100_000):
                    self.assertIsNone(process.poll())
                    time.sleep(0.005)
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                begun = time.monotonic()
                process.send_signal(signal.SIGINT)
                self.assertNotEqual(process.wait(timeout=30), 0)
                self.assertLess(time.monotonic() - begun, 2.5)
                server.process.send_signal(signal.SIGCONT)
                self.assertEqual((os.listdir(work), target.read_bytes()), (["target"], b"old"))
                process.stderr.close()

    def test_names_with_several_addresses(self):
        """A name whose first address refuses connections, and one whose first address does not answer."""
        script = 'mount --bind "$1" /etc/hosts; exec "$2" ls "$3"'
        # The server has a list of the names under which clients may address it.
        names = ["--server-name", "refused.test", "--server-name", "silent.test"]
        with weft.serving(*names) as server, tempfile.NamedTemporaryFile("w", prefix="weft-hosts-") as hosts:
            (server.folder / "file").write_text("x")
            # 192.0.2.0/24 (RFC 5737) and 2001:db8::/32 (RFC 3849) are routed nowhere.
            hosts.write(
                "::1 refused.test\n127.0.0.1 refused.test\n192.0.2.1 silent.test\n127.0.0.1 silent.test\n"
            )
            hosts.flush()
            for name in ["refused.test", "silent.test"]:
                for url in [server.url("", "data"), server.nfs_url("")]:
                    url = url.replace("127.0.0.1", name)
                    with self.subTest(url=url):
                        done = weft.run_with_own_mounts(script, hosts.name, weft.WEFT, url)
                        self.assertIn("file", done.stdout)

    def test_default_ports(self):
        """On loopback the client tries weft serve's own port after 445, and says so."""
        with weft.own_network(), weft.serving(ports={"smb": 4450}) as server:
            (server.folder / "file").write_text("x")
            done = weft.run(weft.WEFT, "ls", f"smb://{weft.USER}@127.0.0.1/data")
            self.assertIn("file", done.stdout)
            self.assertIn("127.0.0.1:445; port 4450, the default of weft serve, answers", done.stderr)
            # Printed commands can be typed.
            said = self.said("ls", f"smb://{weft.USER}@127.0.0.1/data/none")
            self.assertIn(f"smb://{weft.USER}@127.0.0.1/data/none: no such file", said)
            said = self.said("ls", f"smb://{weft.USER}@127.0.0.1/none")
            self.assertIn(f"`weft ls smb://{weft.USER}@127.0.0.1` lists", said)
            # An explicit port is used as given.
            said = self.said("ls", f"smb://{weft.USER}@127.0.0.1:445/data")
            self.assertIn("127.0.0.1:445: Connection refused", said)
            self.assertNotIn("4450", said)
            # So does doctor.
            done = weft.run(weft.WEFT, "doctor", "127.0.0.1", "--user", weft.USER, check=False)
            self.assertIn("nothing listens at 445; 4450, the default of weft serve, answers and is used", done.stdout)

    def test_shared_memory_leads_to_the_server_that_was_named(self):
        """Two servers with the same RDMA port, each with sockets of its own, like two containers on one host: the
        client shares the socket folder of the other one."""
        with contextlib.ExitStack() as stack:
            def served(text, smbd, *options):
                run = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-run-"))
                with unittest.mock.patch.dict(os.environ, XDG_RUNTIME_DIR=run):
                    server = stack.enter_context(weft.serving(*options, ports={"smbd": smbd}, listen=text))
                (pathlib.Path(server.folder) / "who").write_text(text)
                return server, run

            named, own = served("127.0.0.1", 0)
            # The server's name in a log-on is checked only without other protection.
            other, others = served("127.0.0.2", named.ready["smbd_port"], "--require-encryption")
            url = named.url("who")
            for run, transport in [(own, "shm"), (others, "iwarp")]:
                with self.subTest(run=run), unittest.mock.patch.dict(os.environ, XDG_RUNTIME_DIR=run):
                    self.assertEqual(weft.run(weft.WEFT, "cat", url).stdout, "127.0.0.1")
                    copied = weft.run(weft.WEFT, "cp", "--json", __file__, named.url("copy"))
                    self.assertEqual(json.loads(copied.stdout)["transport"], transport)
                    self.assertTrue(weft.same(__file__, pathlib.Path(named.folder) / "copy"))
                    self.assertFalse((pathlib.Path(other.folder) / "copy").exists())
            with unittest.mock.patch.dict(os.environ, XDG_RUNTIME_DIR=others):
                said = self.said("cat", url, "--transport", "shm")
                self.assertIn("another server answers there", said)
        said = self.said("cat", "nfs://192.0.2.1/data/x?rdmaport=20049", "--transport", "shm")
        self.assertIn("shared memory reaches only servers on this host, and 192.0.2.1 is another host", said)

    def test_before_anything_connects(self):
        for arguments, says in [
            (["cp", "//nas/data/x", "."], "@nas/data/x"),
            (["cp", r"\\nas\data\x", "."], "@nas/data/x"),
            (["ls", "nas:/export"], "nfs://nas/export"),
            (["ls", "smb://nas/data"], "names no user"),
            (["ls", "cifs://nas/data"], "@nas/data"),
            (["cp", "/no/such/file", "smb://a@192.0.2.1/data/"], "/no/such/file: No such file"),
            (["sync", "/no/such/folder", "nfs://192.0.2.1/data/"], "/no/such/folder: No such file"),
            (["put", "smb://a@192.0.2.1/data/"], "names no file"),
            (["cat", "./here"], "@HOST/SHARE/PATH"),
            (["ls", "localhost"], "@localhost, or nfs://localhost/EXPORT"),
            (["ls", "smb://a@::1/data"], "write 'smb://a@[::1]/data'"),
        ]:
            with self.subTest(arguments=arguments):
                # Errors that the command line form excludes, and files that do not exist.
                status = 1 if arguments[1].startswith("/no/such") else 2
                self.assertIn(says, self.said(*arguments, within=5, status=status))


class Listening(unittest.TestCase):
    """The default addresses of `weft serve`: both loopback addresses, with the same ports."""

    EVERYTHING = ["--rpcbind-port", 0, "--volume", "vol", "--nbd-port", 0]

    @contextlib.contextmanager
    def serving(self, **more):
        with tempfile.TemporaryDirectory() as state, unittest.mock.patch.dict(os.environ, WEFT_STATE_DIR=state):
            weft.run(weft.WEFT, "volume", "create", "vol", "--size", "1M", "--ram")
            with weft.serving(*self.EVERYTHING, listen=None, **more) as server:
                yield server

    def connects(self, host, port):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=10):
            return True
        return False

    def test_every_service_listens_at_both_addresses(self):
        with self.serving() as server:
            self.assertEqual((server.ready["listen"], server.ready["addresses"]), ("127.0.0.1", ["127.0.0.1", "::1"]))
            ports = {name: port for name, port in server.ready.items() if name.endswith("_port")}
            self.assertEqual(len(ports), 7, ports)
            for name, port in ports.items():
                for host in ["127.0.0.1", "::1"]:
                    with self.subTest(service=name, host=host):
                        self.assertTrue(self.connects(host, port))
            (server.folder / "file").write_text("x")
            for host in ["127.0.0.1", "[::1]", "localhost"]:
                for url in [server.url(""), server.nfs_url("")]:
                    for transport in ["tcp", "iwarp", "shm"]:
                        with self.subTest(host=host, url=url, transport=transport):
                            url = url.replace("127.0.0.1", host)
                            done = weft.run(weft.WEFT, "ls", url, "--transport", transport)
                            self.assertIn("file", done.stdout)

    def test_an_address_is_that_one(self):
        for listen, reached, silent in [("127.0.0.1", "127.0.0.1", "::1"), ("::1", "::1", "127.0.0.1")]:
            with self.subTest(listen=listen), weft.serving(listen=listen) as server:
                self.assertEqual(server.ready["addresses"], [listen])
                self.assertTrue(self.connects(reached, server.smb_port))
                self.assertFalse(self.connects(silent, server.smb_port))

    @unittest.skipUnless(os.geteuid() == 0, "needs root for a network of its own")
    def test_a_host_without_ipv6(self):
        with weft.own_network():
            weft.run("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=1")
            with self.serving() as server:
                self.assertEqual(server.ready["addresses"], ["127.0.0.1"])
                self.assertIn("data", weft.run(weft.WEFT, "ls", server.url("", "").rstrip("/")).stdout)

    def test_a_port_that_is_taken_at_one_of_them(self):
        """Clients of `localhost` would reach another program there."""
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
            port = other.getsockname()[1]
            with self.assertRaisesRegex(RuntimeError, rf"cannot listen on \[::1\]:{port}: .*another program uses the port"):
                with weft.serving(listen=None, ports={"smb": port}):
                    pass


if __name__ == "__main__":
    unittest.main()
