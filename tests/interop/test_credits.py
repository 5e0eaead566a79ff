"""Credits bound what a client keeps the server waiting for ([MS-SMB2] 3.3.1.1): a request that waits gives none back before it is answered."""

import os
import pathlib
import struct
import tempfile
import unittest

import smb3
import weft

WRITE_THROUGH = 1
FILE_BYTES = 64 << 10


class Waiting(unittest.TestCase):
    def test_a_write_that_waits_for_the_disk_keeps_its_credits(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        os.chmod(work.name, 0o755)
        server = weft.Server(work.name)
        self.addCleanup(server.stop)
        link = smb3.Link(server.smb_port)
        session = link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree(pathlib.Path(work.name).name)
        file = tree.open("file")
        to = {"session": session.number, "tree": tree.number, "key": session.key}

        def write(charge):
            head = struct.pack("<HHIQ16sIIHHI", 49, 112, FILE_BYTES, 0, file.id, 0, 0, 0, 0, WRITE_THROUGH)
            return link.request(smb3.WRITE, head + bytes(FILE_BYTES), charge=charge, credits=charge, **to)

        number, message = write(1)
        link.transmit(message)
        self.assertEqual(link.answer(number).status, 0)
        # Each uses up all credits that there are. They are sent at once, and none is answered before the disk has the first.
        every = link.credits
        self.assertGreater(every, 0)
        requests = [write(every) for _ in range(3)]
        link.socket.sendall(b"".join(smb3.framed(message) for _, message in requests))
        with self.assertRaises(ConnectionError):
            for number, _ in requests:
                link.answer(number)


if __name__ == "__main__":
    unittest.main()
