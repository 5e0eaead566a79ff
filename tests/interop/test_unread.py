"""Clients that do not read the answers to their READs: memory and connections stay for those who do."""

import contextlib
import os
import socket
import struct
import time
import unittest

import fuse
import nfs4
import oncrpc
import test_rpctls
import weft
from oncrpc import NFS, opaque, words

SIZE = 4 << 20
READ = 6
# Each asks for more than its part of the server's buffers.
CLIENTS, CALLS = 120, 4
BUFFERS = "64M"
# Far less than the kernel needs to give up a peer that takes nothing.
SOON = 20


class Mute(test_rpctls.Peer):
    """A client whose kernel takes next to nothing."""

    def __init__(self, port, source):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((source, 0))
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", port))
        self.credential, self.xids = oncrpc.unix(0), iter(range(1, 1000))

    def ask(self, file):
        args = opaque(file) + struct.pack(">QI", 0, 1 << 20)
        calls = [oncrpc.message(next(self.xids), NFS, 3, READ, args, self.credential) for _ in range(CALLS)]
        self.socket.sendall(b"".join(map(oncrpc.record, calls)))


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class Unread(test_rpctls.WithKeys):
    def setUp(self):
        super().setUp()
        self.slow, plain = self.work / "slow", self.work / "plain"
        self.slow.mkdir(), plain.mkdir()
        self.content = os.urandom(SIZE)
        (plain / "file").write_bytes(self.content)
        self.mounted = self.enterContext(fuse.Mount(self.slow, {"file": self.content}))
        self.server = weft.Server(
            self.slow, plain, "--buffers", BUFFERS, "--export", "slow:insecure", "--export", "plain:insecure", *self.server_options
        )
        self.addCleanup(self.server.stop)
        self.port = self.server.ready["nfs_port"]

    def file(self, share):
        with test_rpctls.Peer(self.port) as peer:
            return peer.lookup(peer.mount(share), b"file")

    def others_are_served(self, share, context=None):
        """Although clients of one address ask for a file and do not read the answers."""
        asked, own = self.file(share), self.file(b"plain")
        with contextlib.ExitStack() as stack:
            for _ in range(CLIENTS):
                mute = stack.enter_context(Mute(self.port, "127.0.0.8"))
                if context:
                    mute.start_tls(context)
                mute.ask(asked)
            time.sleep(2)
            begun = time.monotonic()
            with test_rpctls.Peer(self.port, "127.0.0.9") as peer:
                for length in [100, 16 << 10, 60_000, 1 << 20]:
                    self.assertEqual(peer.data(own, 0, length), self.content[:length])
            self.assertLess(time.monotonic() - begun, SOON)

    def test_of_a_file_system_that_may_block(self):
        self.others_are_served(b"slow")

    def test_under_tls(self):
        self.others_are_served(b"plain", self.context())

    def test_compounds_that_hold_data_do_not_wait_for_each_others_room(self):
        """Each reads from a file system that may block, and lists another share behind that."""
        def lookup(name):
            return words(nfs4.LOOKUP) + opaque(name)

        reads = words(nfs4.READ) + bytes(16) + struct.pack(">QI", 0, 1 << 20)
        lists = words(nfs4.READDIR) + bytes(16) + words(64 << 10, 64 << 10, 1, 0x10)
        root = words(nfs4.PUTROOTFH)
        operations = [root, lookup(b"slow"), lookup(b"file"), reads, root, lookup(b"plain"), lists]
        clients, calls = 4, 40
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(test_rpctls.Peer(self.port)) for _ in range(clients)]
            for peer in peers:
                peer.socket.settimeout(SOON)
                # What is asked fits into the socket's buffers, so nobody needs to read meanwhile.
                asked = [oncrpc.message(xid, NFS, 4, 1, nfs4.compound(0, *operations), peer.credential) for xid in range(calls)]
                peer.socket.sendall(b"".join(map(oncrpc.record, asked)))
            for peer in peers:
                seen = set()
                for _ in range(calls):
                    mark, = struct.unpack(">I", peer.receive(4))
                    reply = oncrpc.Reply(peer.receive(mark & 0x7FFF_FFFF))
                    seen.add(reply.word())
                    # A listing without room is asked for again.
                    self.assertIn(nfs4.STATUS.get(status := reply.accepted().word(), status), ["ok", "DELAY"])
                self.assertEqual(seen, set(range(calls)))

    def test_a_share_that_hangs_does_not_keep_the_replies_of_another_on_the_same_connection(self):
        slow, plain = self.file(b"slow"), self.file(b"plain")
        for length in [4096, 100_000, 1 << 20]:
            with test_rpctls.Peer(self.port) as peer:
                peer.socket.settimeout(SOON)
                self.mounted.hold(fuse.READ)
                for xid, file in [(70, slow), (71, plain)]:
                    args = opaque(file) + struct.pack(">QI", length, length)
                    peer.socket.sendall(oncrpc.record(oncrpc.message(xid, NFS, 3, READ, args, peer.credential)))
                    if file == slow:
                        self.mounted.wait_until_held()
                        # The other reply is queued behind this one, if anything of it is queued.
                        time.sleep(0.3)

                def reply():
                    mark, = struct.unpack(">I", peer.receive(4))
                    whole = peer.receive(mark & 0x7FFF_FFFF)
                    # READ3resok: header, status, attributes, count, eof, length.
                    self.assertEqual(whole[24 + 4 + 88 + 12:][:length], self.content[length:2 * length])
                    return struct.unpack_from(">I", whole)[0]

                self.assertEqual(reply(), 71)
                self.mounted.release()
                self.assertEqual(reply(), 70)


if __name__ == "__main__":
    unittest.main()
