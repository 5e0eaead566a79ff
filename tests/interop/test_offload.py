"""Copies by token (ODX): smbprotocol sends FSCTL_OFFLOAD_READ and FSCTL_OFFLOAD_WRITE, whose bytes are laid out
here."""

import os
import struct
import sys
import unittest
import uuid

import weft

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    from smbprotocol import connection, exceptions, ioctl, open as files, session, tree
except ImportError:
    files = None

OFFLOAD_READ, OFFLOAD_WRITE = 0x00094264, 0x00098268
INVALID_TOKEN = 0xC0000465
TOKEN = 512
# About 33 MiB, not a multiple of the sector size.
SIZE = (33 << 20) + 777


@unittest.skipUnless(files, "no smbprotocol: tests/interop/deps.sh installs it")
class Offload(unittest.TestCase):
    def share(self, server, name, user=weft.USER):
        link = connection.Connection(uuid.uuid4(), "127.0.0.1", server.smb_port)
        link.connect()
        self.addCleanup(link.disconnect)
        who = session.Session(link, user, weft.PASSWORD, auth_protocol="ntlm")
        who.connect()
        share = tree.TreeConnect(who, rf"\\127.0.0.1\{name}")
        share.connect()
        return share

    def open(self, share, name):
        file = files.Open(share, name)
        access = files.FilePipePrinterAccessMask
        file.create(
            files.ImpersonationLevel.Impersonation,
            access.GENERIC_READ | access.GENERIC_WRITE,
            files.FileAttributes.FILE_ATTRIBUTE_NORMAL,
            files.ShareAccess.FILE_SHARE_READ | files.ShareAccess.FILE_SHARE_WRITE,
            files.CreateDisposition.FILE_OPEN,
            files.CreateOptions.FILE_NON_DIRECTORY_FILE,
        )
        return file

    def control(self, file, code, data, room):
        request = ioctl.SMB2IOCTLRequest()
        # The package does not know these two.
        request.fields["ctl_code"].enum_strict = False
        request["ctl_code"] = code
        request["file_id"] = file.file_id
        request["max_output_response"] = room
        request["flags"] = ioctl.IOCTLFlags.SMB2_0_IOCTL_IS_FSCTL
        request["buffer"] = data
        tree_id = file.tree_connect.tree_connect_id
        sent = file.connection.send(request, sid=file.tree_connect.session.session_id, tid=tree_id)
        answer = ioctl.SMB2IOCTLResponse()
        answer.fields["ctl_code"].enum_strict = False
        answer.unpack(file.connection.receive(sent)["data"].get_value())
        return answer["buffer"].get_value()

    def read(self, file, offset, length):
        """(bytes that the token stands for, token)"""
        answer = self.control(file, OFFLOAD_READ, struct.pack("<IIIIQQ", 32, 0, 0, 0, offset, length), 16 + TOKEN)
        size, _flags, covered = struct.unpack_from("<IIQ", answer)
        self.assertEqual(size, 16 + TOKEN)
        return covered, answer[16:]

    def write(self, file, offset, length, skip, token):
        request = struct.pack("<IIQQQ", 32 + TOKEN, 0, offset, length, skip) + token
        size, _flags, written = struct.unpack("<IIQ", self.control(file, OFFLOAD_WRITE, request, 16))
        self.assertEqual(size, 16)
        return written

    def test_a_file_is_copied_without_passing_by_here(self):
        content = os.urandom(SIZE)
        rounded = -(-SIZE // 512) * 512
        with weft.serving() as server:
            (server.folder / "from").write_bytes(content)
            with open(server.folder / "to", "wb") as target:
                target.truncate(SIZE)
            # Two connections, two sessions: a token belongs to the user.
            source = self.open(self.share(server, "data"), "from")
            target = self.open(self.share(server, "data"), "to")
            covered, token = self.read(source, 0, rounded)
            self.assertEqual(covered, rounded)
            at = 0
            while at < rounded:
                written = self.write(target, at, rounded - at, at, token)
                self.assertGreater(written, 0)
                at += written
            self.assertEqual((server.folder / "to").read_bytes(), content)
            # Any changed bit makes a different token.
            forged = bytearray(token)
            forged[20] ^= 1
            for bad in [bytes(forged), bytes(TOKEN)]:
                with self.assertRaises(exceptions.SMBResponseException) as refused:
                    self.write(target, 0, 512, 0, bad)
                self.assertEqual(refused.exception.status, INVALID_TOKEN)
            # Another program changes the file, which invalidates the token.
            with open(server.folder / "from", "r+b") as changed:
                changed.write(b"changed")
            with self.assertRaises(exceptions.SMBResponseException) as refused:
                self.write(target, 0, 512, 0, token)
            self.assertEqual(refused.exception.status, INVALID_TOKEN)
            self.assertEqual((server.folder / "to").read_bytes(), content)


if __name__ == "__main__":
    unittest.main()
