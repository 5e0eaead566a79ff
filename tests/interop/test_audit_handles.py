"""The audit log and persistent handles: what is done through one after a crash of the server, and renames whose client hangs up
at once. And the length of lines about what is refused, with and without a log-on."""

import os
import socket
import struct
import unittest

from test_audit import Audited
from test_endings import until

import smb3
from smb3 import BATCH, DELETE, GENERIC_READ, GENERIC_WRITE, LEASE, OPEN, RWH, SESSION_SETUP, SET_INFO

CONTINUOUS = """
[shares.kept]
path = "data"
continuous_availability = true
"""
# Three bytes as UTF-8, and six in a line.
INVISIBLE = "\u200b"


def claiming(user):
    """An NTLM AUTHENTICATE with this user and a made-up proof ([MS-NLMP] 2.2.1.3)."""
    parts = [bytes(24), bytes(16) + struct.pack("<BBHIQ8sI", 1, 1, 0, 0, 0, b"12345678", 0) + bytes(8), b"", user.encode("utf-16-le"), b"", b""]
    fields, payload = b"", b""
    for part in parts:
        fields += struct.pack("<HHI", len(part), len(part), 88 + len(payload))
        payload += part
    return b"NTLMSSP\0" + struct.pack("<I", 3) + fields + struct.pack("<I", 0xA2888215) + bytes(24) + payload


@unittest.skipUnless(smb3.spnego, "no pyspnego: tests/interop/deps.sh installs it")
class Handles(Audited):
    def kept(self, server, **how):
        return smb3.Link(server.smb_port, **how).log_on("alice", "of-alice").tree("kept")

    def test_what_is_done_through_a_handle_after_a_crash(self):
        (self.work / "data" / "f").write_text("of the team")
        client, create, lease = os.urandom(16), os.urandom(16), smb3.lease(os.urandom(16), RWH)
        everything = {"access": GENERIC_READ | GENERIC_WRITE | DELETE, "how": OPEN, "oplock": LEASE}
        with self.serving(more=CONTINUOUS) as server:
            file = self.kept(server, guid=client).open("f", asks=[smb3.durable2(create, True), lease], **everything)
            self.assertIn(b"DH2Q", file.granted)
            server.crash()
            told = len(self.lines())
            server.start()
            again = [smb3.durable2_again(file.id, create, True), lease]
            file = self.kept(server, guid=client).open("f", asks=again, **everything)
            # As long as the server runs and once it ends, the handle is told only as what it is.
            server.restart()
            file = self.kept(server, guid=client).open("f", asks=again, **everything)
            file.write(b"evil")
            file.rename("g")
            file.delete()
        lines = [line for line in self.lines()[told:] if "path" in line]
        who = {"user": "alice", "protocol": "smb", "transport": "tcp", "share": "kept", "result": "ok"}
        for line in lines:
            self.assertEqual({key: line.get(key) for key in who}, who, line)
            self.assertTrue(line["client"].startswith("127.0.0.1:") and line["sid"], line)
        told = [(line["event"], line["path"], line.get("to"), line.get("written_bytes")) for line in lines]
        self.assertEqual(told[-4:], [("write", "f", None, None), ("rename", "f", "g", None), ("close", "g", None, 4), ("delete", "g", None, None)])
        self.assertEqual(told[:-4], [], "a restart is no close")

    def test_a_rename_whose_client_hangs_up_at_once(self):
        names = []
        stolen = lambda: sorted(name for name in names if (self.work / "data" / f"{name}.stolen").exists())
        with self.serving(more=CONTINUOUS) as server:
            # On a busy machine the reset overtakes most requests.
            while len(stolen()) < 10:
                self.assertLess(len(names), 1000, "hardly any is carried out")
                name = f"v{len(names)}"
                names.append(name)
                (self.work / "data" / name).write_text("of the team")
                tree = self.kept(server)
                file = tree.open(name, access=DELETE | GENERIC_READ, how=OPEN, oplock=BATCH, asks=[smb3.durable2(os.urandom(16), True)])
                tree.send(SET_INFO, smb3.renaming(file.id, f"{name}.stolen".encode("utf-16-le")))
                # A reset, which the server notices although it has not answered.
                hanging = tree.session.link.socket
                hanging.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                hanging.close()
            # From then on no further one begins.
            until(lambda: len(self.told("logoff")) == len(names))
        # One that had begun may have gone on until the server ended.
        self.assertEqual(sorted(line["path"] for line in self.told("rename")), stolen())


@unittest.skipUnless(smb3.spnego, "no pyspnego: tests/interop/deps.sh installs it")
class Refusals(Audited):
    def grown(self, before, lines):
        """The lines since then, once there are so many."""
        until(lambda: len(self.lines()) >= before + lines)
        return self.audit.read_bytes().splitlines()[before:]

    def test_a_log_on_without_a_password_writes_a_short_line(self):
        with self.serving() as server:
            before = len(self.lines())
            hello = b"NTLMSSP\0" + struct.pack("<I", 1) + struct.pack("<I", 0xA2888205) + bytes(24)
            for _ in range(5):
                link = smb3.Link(server.smb_port)
                session = link.ask(SESSION_SETUP, smb3.setting_up(hello), (smb3.MORE_PROCESSING,), True).session
                with self.assertRaises(smb3.Refused):
                    link.ask(SESSION_SETUP, smb3.setting_up(claiming(INVISIBLE * 7900)), (0,), True, session=session)
                link.close()
            for line in self.grown(before, 5):
                self.assertLess(len(line), 1000, line[:2000])
            refused = self.told("logon")
            self.assertEqual({(line["user"], line["cut"]) for line in refused}, {(INVISIBLE * 42, True)})

    def test_a_new_name_of_any_length_writes_a_short_line_or_none(self):
        with self.serving() as server:
            session = smb3.Link(server.smb_port).log_on("alice", "of-alice")
            for _ in range(5):
                session.ask(smb3.ECHO, smb3.ECHOING, credits=64)
            tree = session.tree("team")
            file = tree.open("plan.txt", access=GENERIC_READ, how=OPEN)
            before = len(self.lines())
            for units, status in [(1 << 19, "0xc0000033"), (32_768, "0xc0000033"), (32_767, "ACCESS_DENIED")]:
                body = smb3.renaming(file.id, (INVISIBLE * units).encode("utf-16-le"))
                with self.assertRaises(smb3.Refused) as refused:
                    tree.ask(SET_INFO, body, charge=-(-len(body) // 65536))
                self.assertEqual(refused.exception.status, status, f"{units} units")
        lines = self.grown(before, 1)
        self.assertLess(max(map(len, lines)), 5000)
        (rename,) = self.told("rename")
        self.assertEqual((rename["path"], rename["to"], rename["cut"]), ("plan.txt", INVISIBLE * 682, True))


if __name__ == "__main__":
    unittest.main()
