"""A disk with a bad block: a READ that finds it is answered with an error, and the others on its connection with data."""

import errno
import os
import struct
import unittest

import fuse
import oncrpc
import smb3
import test_rpctls
import weft
from oncrpc import NFS, opaque

# Short answers are read into memory, long ones go by sendfile; the longest by parts of a megabyte.
LENGTHS = [4096, 65536, 1 << 20]
BAD_AT = 4 << 20
SIZE = 8 << 20
NFS_IO = 5
UNEXPECTED_IO_ERROR = 0xC00000E9


class Failing(fuse.Mount):
    """Everything from BAD_AT on is unreadable."""

    def answer(self, operation, unique, node, body):
        if operation == fuse.READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            if offset + size > BAD_AT:
                return self.reply(unique, error=errno.EIO)
        return super().answer(operation, unique, node, body)


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class Unreadable(test_rpctls.WithKeys):
    def setUp(self):
        super().setUp()
        folder = self.work / "data"
        folder.mkdir()
        self.content = os.urandom(SIZE)
        self.enterContext(Failing(folder, {"file": self.content}))
        self.server = weft.Server(folder, *self.server_options)
        self.addCleanup(self.server.stop)

    def read_over_nfs(self, peer):
        file = peer.lookup(peer.mount(b"/data"), b"file")
        peer.socket.settimeout(20)
        for length in LENGTHS:
            calls = {100: 0, 101: BAD_AT, 102: BAD_AT - length}
            peer.socket.sendall(
                b"".join(
                    oncrpc.record(
                        oncrpc.message(xid, NFS, 3, 6, opaque(file) + struct.pack(">QI", offset, length), peer.credential)
                    )
                    for xid, offset in calls.items()
                )
            )
            seen = {}
            while len(seen) < len(calls):
                (word,) = struct.unpack(">I", peer.receive(4))
                reply = peer.receive(word & 0x7FFFFFFF)
                xid, status = struct.unpack_from(">I20xI", reply)
                # READ3resfail has attributes, READ3resok the data behind them as well.
                seen[xid] = (status, reply[28 + 88 + 12 :])
            data = [(0, self.content[at : at + length]) for at in (0, BAD_AT - length)]
            self.assertEqual(seen, {100: data[0], 101: (NFS_IO, b""), 102: data[1]}, length)

    def test_over_nfs(self):
        with test_rpctls.Peer(self.server.ready["nfs_port"]) as peer:
            self.read_over_nfs(peer)
        self.assertIn("a READ failed: Input/output error", self.server.log_text())

    def test_over_nfs_under_tls(self):
        with test_rpctls.Peer(self.server.ready["nfs_port"]) as peer:
            peer.start_tls(self.context())
            self.read_over_nfs(peer)

    def test_over_smb(self):
        link = smb3.Link(self.server.smb_port)
        session = link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree("data")
        file = tree.open("file", access=smb3.GENERIC_READ, how=smb3.OPEN)
        for length in LENGTHS[:2]:
            for offset, status in [(0, 0), (BAD_AT, UNEXPECTED_IO_ERROR), (4096, 0)]:
                body = smb3.reading(file.id, length, offset)
                number = link.send(smb3.READ, body, session=session.number, tree=tree.number, key=None)
                answer = link.answer(number, 20)
                self.assertEqual(answer.status, status, (length, offset))
                if status == 0:
                    self.assertIn(self.content[offset : offset + length], answer.frame)


if __name__ == "__main__":
    unittest.main()
