"""Clients that begin large messages and go on slowly: memory for messages stays for those who send theirs at once."""

import concurrent.futures
import contextlib
import os
import pathlib
import socket
import struct
import tempfile
import threading
import time
import unittest

import oncrpc
import smb3
import weft
from oncrpc import NFS, opaque, words

# Half of this is for messages, and half of the pool for those of an address.
BUFFERS = "64M"
LARGE, SMALL = 4 << 20, 60_000
# Each WRITE of 4 MiB has a buffer of 8 MiB, so these fill whatever the server has for messages, and some wait for it.
CLIENTS = 10
# What arrives at once, so that the server believes the announcement, and then each second: more than the lowest rate at which
# the server goes on waiting for a message if nobody else needs its memory.
BEGINNING, RATE = 300_000, 9_000
AT_ONCE = 4
# Each of a few rounds closes the connections that hold memory, five seconds after others began to wait for it.
WATCHED = 40


class Unfinished(unittest.TestCase):
    def setUp(self):
        work = self.enterContext(tempfile.TemporaryDirectory())
        os.chmod(work, 0o755)
        self.folder = pathlib.Path(work)
        (self.folder / "file").write_bytes(bytes(8192))
        (self.folder / "file").chmod(0o666)
        self.share = self.folder.name
        self.server = weft.Server(work, "--buffers", BUFFERS, "--export", f"{self.share}:insecure")
        self.addCleanup(self.server.stop)
        self.port, self.nfs_port = self.server.smb_port, self.server.ready["nfs_port"]

    def writing(self, source):
        """A client that writes to a file of its own: what it sends with `length` bytes, and its answer's status."""
        link = smb3.Link(self.port, source)
        self.addCleanup(link.close)
        session = link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree(self.share)
        file = tree.open(f"of-{source}-{link.socket.getsockname()[1]}")
        link.ask(smb3.ECHO, smb3.ECHOING, session=session.number, key=session.key, credits=512)

        def write(length, timeout):
            head = struct.pack("<HHIQ16sIIHHI", 49, 112, length, 0, file.id, 0, 0, 0, 0, 0)
            begun = time.monotonic()
            link.socket.settimeout(timeout)
            number = tree.send(smb3.WRITE, head + bytes(length), charge=-(-length // 65536), credits=64)
            self.assertEqual(link.answer(number, timeout).status, 0)
            return time.monotonic() - begun

        return write

    @contextlib.contextmanager
    def trickling(self, connections, message):
        """While this runs, each of these connections sends a message slowly."""
        over = threading.Event()

        def trickle():
            sent = [0] * len(connections)
            begun = time.monotonic()
            while not over.wait(0.5):
                until = BEGINNING + int((time.monotonic() - begun) * RATE)
                for at, connection in enumerate(connections):
                    # One that the server has closed is not replaced.
                    with contextlib.suppress(OSError):
                        while sent[at] < until:
                            sent[at] += connection.send(message[sent[at]:until])

        for connection in connections:
            connection.setblocking(False)
        sender = threading.Thread(target=trickle, daemon=True)
        sender.start()
        # Until the server has the beginnings, and memory is short.
        time.sleep(2)
        try:
            yield
        finally:
            over.set()
            sender.join()

    def slow_of_smb(self, source):
        connections, message = [], b""
        for _ in range(CLIENTS):
            link = smb3.Link(self.port, source)
            self.addCleanup(link.close)
            session = link.log_on(weft.USER, weft.PASSWORD)
            _, head = link.request(smb3.WRITE, bytes(48), session=session.number, key=session.key)
            message = smb3.framed(head + bytes(LARGE))
            connections.append(link.socket)
        return connections, message

    def slow_of_nfs(self, source, clients):
        peer = oncrpc.Connection(self.nfs_port, source)
        self.addCleanup(peer.close)
        file = peer.lookup(peer.mount(b"/" + self.share.encode()), b"file")
        length = 1 << 20
        arguments = opaque(file) + struct.pack(">QII", 0, length, 0) + opaque(bytes(length))
        connections = []
        for _ in range(clients):
            connection = socket.create_connection(("127.0.0.1", self.nfs_port), 30, source_address=(source, 0))
            self.addCleanup(connection.close)
            # A call that identifies it.
            connection.sendall(oncrpc.record(oncrpc.message(1, NFS, 3, 1, opaque(file), peer.credential)))
            self.assertTrue(connection.recv(4096))
            connections.append(connection)
        return connections, oncrpc.record(oncrpc.message(2, NFS, 3, 7, arguments, peer.credential))

    def test_another_address_is_served_at_once_and_the_same_one_soon(self):
        same, other = self.writing("127.0.0.8"), self.writing("127.0.0.9")
        with self.trickling(*self.slow_of_smb("127.0.0.8")):
            for length in (SMALL, LARGE):
                self.assertLess(other(length, AT_ONCE * 5), AT_ONCE)
            self.assertLess(same(SMALL, AT_ONCE * 5), AT_ONCE, "it passes what waits for more than is free")
            self.assertLess(same(LARGE, WATCHED * 2), WATCHED)
            log = self.server.log_text()
        self.assertRegex(log, r"WARN.*closed: its message arrives slowly.*8192 KiB")
        self.assertRegex(log, r"WARN.*127\.0\.0\.8:\d+")
        self.assertRegex(log, r"WARN.*requests wait for payload buffers.*127\.0\.0\.8 holds most of them")

    def test_the_same_without_a_log_on_over_nfs(self):
        other = self.writing("127.0.0.9")
        with self.trickling(*self.slow_of_nfs("127.0.0.8", 60)):
            for length in (SMALL, LARGE):
                self.assertLess(other(length, AT_ONCE * 5), AT_ONCE)

    def test_who_sends_large_writes_one_after_another_stays(self):
        busy = [self.writing("127.0.0.8") for _ in range(2)]
        with self.trickling(*self.slow_of_smb("127.0.0.8")):
            until = time.monotonic() + 30

            def writes(write):
                while time.monotonic() < until:
                    write(LARGE, WATCHED)

            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(writes, busy))


if __name__ == "__main__":
    unittest.main()
