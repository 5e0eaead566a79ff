"""weft status --slow: delays are injected at each hop, by the file system, the client, the network and a partner, and told as
what they were."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import fuse
import weft
from disk import READ, WRITE, Disk, request
from test_endings import until
from test_replica import Hosts

MIB = 1 << 20
# Well above the default threshold of 100 ms.
DELAY = 1.0
CONTENT = os.urandom(1 << 16)


def slow(state, *options):
    """The slow operations of the only server of a state directory."""
    said = weft.run(weft.WEFT, "status", "--slow", "--json", "--state-dir", state, *options, timeout=60).stdout
    [server] = json.loads(said)["servers"]
    return server["operations"]


class Stalling:
    """A way to a server that stops passing on what the server sends, once so many bytes have gone through."""

    def __init__(self, port, after, seconds):
        self.port, self.after, self.seconds = port, after, seconds
        self.stalled = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own_port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                # NFS servers expect a reserved port.
                server = weft.nfs_connection(self.port)
                # Little fits between the two.
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
                threading.Thread(target=self.pass_on, args=(client, server, None), daemon=True).start()
                threading.Thread(target=self.pass_on, args=(server, client, self.after), daemon=True).start()

    def pass_on(self, source, target, after):
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                passed += len(piece)
                if after is not None and passed >= after and not self.stalled.is_set():
                    self.stalled.set()
                    time.sleep(self.seconds)
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


class Slow(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-slow-")))
        self.folder, self.state = self.work / "data", self.work / "state"
        self.folder.mkdir()

    def serve(self, *options):
        server = weft.Server(self.folder, "--cores", "1", "--state-dir", self.state, *options)
        self.addCleanup(self.end, server)
        return server

    def end(self, server):
        if server.process.poll() is None:
            server.stop()

    def start(self, *command):
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def assert_at(self, operation, hop, seconds):
        """At least 80 % of an injected delay is told as this hop, and the hops add up to the whole."""
        self.assertGreaterEqual(operation["hops"][hop], 800 * seconds, operation)
        self.assertAlmostEqual(sum(operation["hops"].values()), operation["total_ms"], delta=1, msg=operation)

    @unittest.skipIf(fuse.why_not(), fuse.why_not())
    def test_what_a_hung_disk_holds_is_shown_while_it_hangs_and_told_as_what_it_was(self):
        asks = [(fuse.LOOKUP, "store", "tcp"), *[(fuse.READ, "disk", transport) for transport in ("tcp", "shm", "iwarp")]]
        names = [f"{hop}-{transport}" for _, hop, transport in asks]
        mounted = self.enterContext(
            fuse.Mount(self.folder, {protocol: dict.fromkeys(names, CONTENT) for protocol in ("smb", "nfs")})
        )
        server = self.serve()
        for protocol, url in [("smb", server.url), ("nfs", server.nfs_url)]:
            for (held, hop, transport), name in zip(asks, names):
                with self.subTest(protocol=protocol, hop=hop, transport=transport):
                    self.hangs(server, mounted, held, protocol, hop, transport, url(f"{protocol}/{name}"))
        self.assertIn("slow: ", server.log_text())
        self.assertIn("`weft status --slow` shows", server.log_text())

    def hangs(self, server, mounted, held, protocol, hop, transport, url):
        mounted.hold(held)
        try:
            client = self.start(weft.WEFT, "cat", "--transport", transport, url)
            mounted.wait_until_held()
            began = time.monotonic()

            def hanging():
                return [o for o in slow(self.state) if o["at"] == hop and o["protocol"].startswith(protocol)]

            until(hanging)
            # Neither does the other status wait for this file system.
            weft.run(weft.WEFT, "status", "--state-dir", self.state, timeout=30)
            time.sleep(DELAY)
            [operation] = hanging()
            self.assertTrue(mounted.is_holding())
            self.assertEqual(operation["share"], "data")
            self.assertIsNotNone(operation["client"])
            self.assertEqual(operation["transport"] in ("tcp",), transport == "tcp")
            if hop == "disk":
                self.assertEqual((operation["operation"], operation["bytes"]), ("read", len(CONTENT)))
            self.assert_at(operation, hop, DELAY)
            if protocol == "smb":
                self.assertEqual(operation["user"], weft.USER)
                self.assertIn(url.rpartition("/")[2], operation["file"])
            text = weft.run(weft.WEFT, "status", "--slow", "--state-dir", self.state).stdout
            self.assertIn("still running", text)
            took = time.monotonic() - began
        finally:
            mounted.release()
        said, why = client.communicate(timeout=60)
        self.assertEqual((client.returncode, said), (0, CONTENT), why)

        def ended():
            same = [o for o in slow(self.state) if o["at"] is None and o["began"][:16] == operation["began"][:16]]
            return [o for o in same if o["operation"] == operation["operation"] and o["hops"][hop] >= 800 * took]

        until(ended)

    def test_a_client_that_does_not_read_is_told_as_the_wire_and_not_as_the_disk(self):
        content = os.urandom(32 * MIB)
        (self.folder / "large").write_bytes(content)
        server = self.serve()
        for protocol, port in [("smb", server.ready["smb_port"]), ("nfs", server.ready["nfs_port"])]:
            with self.subTest(protocol=protocol):
                way = Stalling(port, 8 * MIB, DELAY)
                url = server.url if protocol == "smb" else server.nfs_url
                url = url("large").replace(f":{port}/", f":{way.own_port}/")
                client = self.start(weft.WEFT, "cat", "--transport", "tcp", url)
                said, why = client.communicate(timeout=120)
                self.assertEqual((client.returncode, said == content), (0, True), why)
                way.close()
                self.assertTrue(way.stalled.is_set())
                reads = [o for o in slow(self.state) if (o["protocol"][:3], o["operation"]) == (protocol, "read")]
                self.assertTrue(reads)
                longest = max(reads, key=lambda read: read["hops"]["wire"])
                self.assert_at(longest, "wire", DELAY)
                self.assertLess(longest["hops"]["disk"], 200 * DELAY, longest)

    def test_nbd_tells_the_client_and_the_disk_apart(self):
        folder = self.work / "volumes"
        folder.mkdir()
        weft.run(weft.WEFT, "volume", "create", "vol1", "--size", "64M", "--file", folder / "vol1.img", "--state-dir", self.state)
        command = [
            weft.WEFT, "serve", "--json", "--nbd-port", "0", "--state-dir", self.state, "--volume", "vol1", "--cores", "1",
        ]
        server = weft.Process(command, self.work / "log.txt")
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        disk = Disk(server.ready["nbd_port"], "vol1")
        for _ in range(48):
            disk.send(READ, 0, MIB)
        until(lambda: [o for o in slow(self.state) if o["at"] == "wire"])
        time.sleep(DELAY)
        for _ in range(48):
            self.assertEqual(disk.answer()[1], 0)
            disk.take(MIB)
        reads = [o for o in slow(self.state) if o["operation"] == "read" and o["at"] is None]
        # Those that were received when too many were unanswered have waited in the queue before.
        longest = max(reads, key=lambda read: read["hops"]["wire"])
        self.assertEqual((longest["protocol"], longest["share"], longest["bytes"]), ("nbd", "vol1", MIB))
        self.assert_at(longest, "wire", DELAY)
        for read in reads:
            self.assertLess(read["hops"]["disk"], 200 * DELAY, read)
        # A payload that comes slowly is waited for, too.
        disk.cookie += 1
        disk.socket.sendall(request(WRITE, disk.cookie, 0, MIB) + bytes(MIB // 2))
        until(lambda: [o for o in slow(self.state) if (o["operation"], o["at"]) == ("write", "wire")])
        time.sleep(DELAY)
        disk.socket.sendall(bytes(MIB // 2))
        self.assertEqual(disk.answer()[1], 0)
        [write] = [o for o in slow(self.state) if o["operation"] == "write"]
        self.assert_at(write, "wire", DELAY)
        disk.close()

    @unittest.skipIf(fuse.why_not(), fuse.why_not())
    def test_nbd_tells_a_slow_disk(self):
        folder = self.work / "volumes"
        folder.mkdir()
        mounted = self.enterContext(fuse.Mount(folder, {"vol1.img": bytes(MIB)}))
        weft.run(weft.WEFT, "volume", "create", "vol1", "--file", folder / "vol1.img", "--state-dir", self.state, check=False)
        command = [
            weft.WEFT, "serve", "--json", "--nbd-port", "0", "--state-dir", self.state, "--volume", "vol1", "--cores", "1",
        ]
        server = weft.Process(command, self.work / "log.txt")
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        disk = Disk(server.ready["nbd_port"], "vol1")
        mounted.hold(fuse.READ)
        disk.send(READ, 0, 4096)
        mounted.wait_until_held()
        time.sleep(DELAY)
        [read] = [o for o in slow(self.state) if o["operation"] == "read"]
        self.assertEqual((read["at"], read["share"]), ("disk", "vol1"))
        self.assert_at(read, "disk", DELAY)
        mounted.release()
        self.assertEqual(disk.answer()[1], 0)
        disk.take(4096)
        disk.close()


class Partner(Hosts):
    def test_a_partner_that_does_not_answer_is_told_as_the_replica(self):
        here, there = self.replicated()
        disk = here.disk("vol1")
        disk.write(0, b"x" * 4096)
        there.process.send_signal(signal.SIGSTOP)
        self.addCleanup(there.process.send_signal, signal.SIGCONT)
        writing = threading.Thread(target=disk.write, args=(4096, b"y" * 4096), daemon=True)
        writing.start()

        def told():
            # A busy host may have made the first write slow, too.
            return [o for o in slow(here.state) if o["protocol"] == "nbd" and o["file"] == "4096 bytes at 4096"]

        until(told)
        time.sleep(DELAY)
        [write] = told()
        self.assertEqual((write["at"], write["share"]), ("replica", "vol1"))
        self.assertGreaterEqual(write["hops"]["replica"], 800 * DELAY, write)
        there.process.send_signal(signal.SIGCONT)
        writing.join(60)
        self.assertFalse(writing.is_alive())
        [write] = told()
        self.assertIsNone(write["at"])
        self.assertGreaterEqual(write["hops"]["replica"], 0.8 * write["total_ms"], write)


if __name__ == "__main__":
    unittest.main()
