"""A disk with a bad block: a READ that finds it is answered with an error, and the others on its connection with data."""

import contextlib
import errno
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import fuse
import oncrpc
import smb3
import test_rpctls
import weft
from oncrpc import NFS, opaque

# Short answers are read into memory, as are all of a file system that may block; on a disk long ones go by sendfile, and the
# longest by parts of a megabyte.
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
        self.assertIn("file system error: Input/output error", self.server.log_text())

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



class BadBlock(fuse.Mount):
    """One file, `disk`, with a block that cannot be read once `bad_at` is set."""

    bad_at = None

    def answer(self, operation, unique, node, body):
        if operation == fuse.READ and self.bad_at is not None:
            offset, size = struct.unpack_from("<QI", body, 8)
            if offset < self.bad_at + 4096 and offset + size > self.bad_at:
                return self.reply(unique, error=errno.EIO)
        return super().answer(operation, unique, node, body)


def no_loop():
    """Why a disk image cannot be mounted here, or None."""
    return fuse.why_not() or (None if os.path.exists("/dev/loop-control") else "/dev/loop-control does not exist")


@unittest.skipIf(no_loop(), no_loop())
class Block(unittest.TestCase):
    """A local file system with a bad block in the middle of a file: the page cache has what is around it."""

    # In the file.
    BAD_AT = (4 << 20) + (300 << 10)

    def setUp(self):
        work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-block-")))
        for name in ["source", "images", "data"]:
            (work / name).mkdir()
        self.content = os.urandom(SIZE)
        (work / "source" / "file").write_bytes(self.content)
        image = work / "image"
        with open(image, "wb") as file:
            file.truncate(32 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-d", work / "source", image], check=True)
        bytes_of_image = image.read_bytes()
        bad_at = bytes_of_image.index(self.content[self.BAD_AT:self.BAD_AT + 4096])
        images = self.enterContext(BadBlock(work / "images", {"disk": bytes_of_image}))
        made = subprocess.run(["losetup", "-r", "-f", "--show", work / "images" / "disk"], capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "-d", device], check=True)
        subprocess.run(["mount", "-t", "ext4", "-o", "ro,noload", device, work / "data"], check=True)
        self.addCleanup(subprocess.run, ["umount", work / "data"], check=True)
        images.bad_at = bad_at
        self.server = weft.Server(work / "data", "--read-only", "data")
        self.addCleanup(self.server.stop)

    def all_around(self, read, longest):
        """Every READ around the bad block is answered, again and again, whatever the page cache has by then. `read(offset, length)`
        returns the bytes, or None for an error."""
        first = 4 << 20
        # Fills the page cache on both sides of the block.
        self.assertIsNone(read(self.BAD_AT // longest * longest, longest))
        for offset in range(first, first + (1 << 20), 64 << 10):
            is_bad = offset <= self.BAD_AT < offset + (64 << 10)
            self.assertEqual(read(offset, 64 << 10), None if is_bad else self.content[offset:offset + (64 << 10)])
        for _ in range(3):
            for length in [length for length in [16 << 10, 64 << 10, 256 << 10, 1 << 20] if length <= longest]:
                offset = self.BAD_AT // length * length
                self.assertIsNone(read(offset, length), length)
                self.assertEqual(read(0, length), self.content[:length])

    def test_over_nfs(self):
        with oncrpc.Connection(self.server.ready["nfs_port"]) as peer:
            peer.socket.settimeout(20)
            file = peer.lookup(peer.mount(b"/data"), b"file")

            def read(offset, length):
                reply = peer.call(NFS, 3, 6, opaque(file) + struct.pack(">QI", offset, length))
                if status := reply.word():
                    self.assertEqual(status, NFS_IO)
                    return None
                reply.take(4 + 84 + 8)
                return reply.opaque()

            self.all_around(read, 1 << 20)
        self.assertIn("a READ failed: Input/output error", self.server.log_text())

    def test_over_smb(self):
        link = smb3.Link(self.server.smb_port)
        session = link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree("data")
        file = tree.open("file", access=smb3.GENERIC_READ, how=smb3.OPEN)

        def read(offset, length):
            body = smb3.reading(file.id, length, offset)
            number = link.send(smb3.READ, body, session=session.number, tree=tree.number, key=None)
            answer = link.answer(number, 20)
            if answer.status:
                self.assertEqual(answer.status, UNEXPECTED_IO_ERROR)
                return None
            place, count = struct.unpack_from("<2xBxI", answer.body)
            self.assertEqual(count, length)
            return answer.frame[place:place + count]

        # More would need several credits.
        with contextlib.closing(link.socket):
            self.all_around(read, 64 << 10)
        self.assertIn("a READ failed: Input/output error", self.server.log_text())


if __name__ == "__main__":
    unittest.main()
