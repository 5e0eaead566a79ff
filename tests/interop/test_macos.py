"""What Macs ask for beyond SMB: the Python package smbprotocol sends it, laid out here from Apple's published client
(SMBClient, netsmb/smb_2.h) and from "Time Machine over SMB Specification". No Mac is at hand."""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest
import uuid

import weft

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    from smbprotocol import connection, create_contexts, exceptions, file_info, ioctl, open as files, session, tree
except ImportError:
    files = None

QUERY, RESOLVE = 1, 2
SERVER_CAPS, VOLUME_CAPS, MODEL = 1, 2, 4
READ_DIR_ATTR, COPYFILE, UNIX_BASED, NFS_ACE, READ_DIR_ATTR_V2 = 1, 2, 4, 8, 0x10
FULL_SYNC = 4
# What macOS 15 says that it can do.
MACOS = 0x3F

FINDER_INFO = b"TEXTttxt" + b"\x40\0" + bytes(10) + b"\1\2\3\4" + b"\5\6" + bytes(6)
AFP_INFO = b"AFP\0" + struct.pack("<III", 0x10000, 0, 0x80000000) + FINDER_INFO + bytes(12)
assert len(AFP_INFO) == 60

FILE = """
user = "{user}"

[listeners]
addresses = ["127.0.0.1"]
smb_port = 0
smb_direct_port = 0

[smb]
mac_model = "MacPro7,1"

[shares.data]
path = "data"

[shares.backup]
path = "backup"
time_machine = true
"""


def query(parts=7, client=MACOS):
    return struct.pack("<IIQQ", QUERY, 0, parts, client)


def entries(buffer):
    """{name: the entry's bytes} of a FileIdBothDirectoryInformation listing."""
    found = {}
    while buffer:
        (following,) = struct.unpack_from("<I", buffer)
        (length,) = struct.unpack_from("<I", buffer, 60)
        found[buffer[104 : 104 + length].decode("utf-16-le")] = buffer[:104]
        buffer = buffer[following:] if following else b""
    return found


@unittest.skipUnless(files, "no smbprotocol: tests/interop/deps.sh installs it")
class Macs(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-macos-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        for folder in ["data", "backup"]:
            (self.work / folder).mkdir()
        self.path = self.work / "weft.toml"

    def serve(self, text=FILE):
        self.path.write_text(text.format(user=weft.USER))
        command = [weft.WEFT, "serve", "--config", self.path, "--state-dir", self.work / "state", "--json"]
        server = weft.Process(command, self.work / "log")
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0))
        return server

    def connect(self, server, share="data"):
        return self.logged_on(server.ready["smb_port"], share)

    def logged_on(self, port, share):
        link = connection.Connection(uuid.uuid4(), "127.0.0.1", port)
        link.connect()
        self.addCleanup(link.disconnect)
        who = session.Session(link, weft.USER, weft.PASSWORD, auth_protocol="ntlm")
        who.connect()
        return self.share(who, share)

    def share(self, who, name):
        share = tree.TreeConnect(who, rf"\\127.0.0.1\{name}")
        share.connect()
        return share

    def open(self, share, path, disposition=None, directory=False, contexts=(), access=0x001F01FF):
        file = files.Open(share, path)
        wrapped = []
        for name, data in contexts:
            context = create_contexts.SMB2CreateContextRequest()
            context["buffer_name"] = name
            context["buffer_data"] = data
            wrapped.append(context)
        options = files.CreateOptions
        answer = file.create(
            files.ImpersonationLevel.Impersonation,
            access,
            files.FileAttributes.FILE_ATTRIBUTE_NORMAL,
            7,
            disposition if disposition is not None else files.CreateDisposition.FILE_OPEN,
            options.FILE_DIRECTORY_FILE if directory else options.FILE_NON_DIRECTORY_FILE,
            wrapped or None,
        )
        return file, answer or []

    def ask(self, share, *questions):
        """The data of the contexts AAPL in the answer to an open of the share's root."""
        root, answer = self.open(share, "", directory=True, contexts=[(b"AAPL", data) for data in questions])
        root.close()
        # Contexts that the package does not know.
        return [data for data in answer if isinstance(data, bytes)]

    def put(self, share, path, content):
        file, _ = self.open(share, path, files.CreateDisposition.FILE_OVERWRITE_IF)
        if content:
            file.write(content, 0)
        file.close()

    def content(self, share, path):
        file, _ = self.open(share, path)
        size = file.end_of_file
        content = file.read(0, size) if size else b""
        file.close()
        return content

    def list(self, share, pattern="*"):
        root, _ = self.open(share, "", directory=True)
        kind = file_info.FileInformationClass.FILE_ID_BOTH_DIRECTORY_INFORMATION
        request, _ = root.query_directory(pattern, kind, send=False)
        who = share.session
        sent = who.connection.send(request, who.session_id, share.tree_connect_id)
        answer = files.SMB2QueryDirectoryResponse()
        answer.unpack(who.connection.receive(sent)["data"].get_value())
        root.close()
        return entries(answer["buffer"].get_value())

    def test_the_server_tells_what_it_can_do(self):
        server = self.serve()
        share = self.connect(server)
        (answer,) = self.ask(share, query())
        command, reserved, parts, caps, volume, pad, length = struct.unpack_from("<IIQQQII", answer)
        self.assertEqual((command, reserved, parts, pad), (QUERY, 0, 7, 0))
        self.assertEqual(caps, COPYFILE | UNIX_BASED | NFS_ACE | READ_DIR_ATTR_V2)
        self.assertEqual(volume, 0)
        self.assertEqual(answer[40 : 40 + length].decode("utf-16-le"), "MacPro7,1")
        # An older Mac, and a share for Time Machine.
        (answer,) = self.ask(self.share(share.session, "backup"), query(3, READ_DIR_ATTR | UNIX_BASED))
        self.assertEqual(answer, struct.pack("<IIQQQ", QUERY, 0, 3, COPYFILE | UNIX_BASED | READ_DIR_ATTR, FULL_SYNC))

    def test_hostile_questions(self):
        share = self.connect(self.serve())
        whole = query()
        for length in range(len(whole)):
            with self.subTest(length=length), self.assertRaises(exceptions.InvalidParameter):
                self.ask(share, whole[:length])
        # A query that is too long, unknown commands, and more of them than are answered.
        self.assertEqual(len(self.ask(share, whole + bytes(60_000))), 1)
        self.assertEqual(self.ask(share, struct.pack("<IIQQ", 99, 0, 7, 7)), [])
        self.assertEqual(len(self.ask(share, *[whole] * 60)), 1)
        with self.assertRaises(exceptions.InvalidParameter):
            self.ask(share, *[whole] * 70)
        (answer,) = self.ask(share, struct.pack("<IIQ", RESOLVE, 0, 7))
        self.assertEqual(answer, struct.pack("<IIII", RESOLVE, 0, 0xC00000BB, 0))

    def test_a_listing_has_finder_info_and_sizes_of_resource_forks(self):
        share = self.connect(self.serve())
        self.put(share, "file", b"data")
        self.put(share, "file:AFP_AfpInfo", AFP_INFO)
        self.put(share, "file:AFP_Resource", bytes(70_000))
        self.put(share, "plain", b"")
        os.chmod(self.work / "data" / "file", 0o640)
        (self.work / "data" / "folder").mkdir(mode=0o750)
        # Before the Mac asks, the entry is SMB's.
        self.assertEqual(self.list(share, "file")["file"][64:68], bytes(4))
        self.ask(share, query())
        found = self.list(share)
        access, flags, fork, info, mode = struct.unpack_from("<IHQ16sH", found["file"], 64)
        self.assertEqual((access, flags, fork, oct(mode)), (0x1F01FF, 0, 70_000, "0o100640"))
        self.assertEqual(info, b"TEXTttxt" + b"\x40\0" + b"\5\6" + b"\1\2\3\4")
        access, flags, fork, info, mode = struct.unpack_from("<IHQ16sH", found["plain"], 64)
        self.assertEqual((access, flags, fork, info), (0x1F01FF, 1, 0, bytes(16)))
        self.assertEqual(oct(struct.unpack_from("<H", found["folder"], 94)[0]), "0o40750")
        # Another session of the same user is no Mac.
        self.assertEqual(self.list(self.logged_on(share.session.connection.port, "data"), "file")["file"][64:68], bytes(4))

    def test_a_copy_of_a_whole_file(self):
        share = self.connect(self.serve())
        self.ask(share, query())
        data = os.urandom(3_000_000)
        for at in range(0, len(data), 1 << 20):
            file, _ = self.open(share, "from", files.CreateDisposition.FILE_OPEN_IF)
            file.write(data[at : at + (1 << 20)], at)
            file.close()
        self.put(share, "from:AFP_AfpInfo", AFP_INFO)
        self.put(share, "from:AFP_Resource", data[:50_000])
        source, _ = self.open(share, "from")
        target, _ = self.open(share, "to", files.CreateDisposition.FILE_OVERWRITE_IF)
        key = self.control(source, ioctl.CtlCode.FSCTL_SRV_REQUEST_RESUME_KEY, b"", 32)[:24]
        self.control(target, ioctl.CtlCode.FSCTL_SRV_COPYCHUNK, key + bytes(8), 12)
        source.close()
        target.close()
        self.assertEqual((self.work / "data" / "to").read_bytes(), data)
        self.assertEqual(self.content(share, "to:AFP_AfpInfo"), AFP_INFO)
        self.assertEqual(self.content(share, "to:AFP_Resource"), data[:50_000])

    def control(self, file, code, data, room):
        request = ioctl.SMB2IOCTLRequest()
        request["ctl_code"] = code
        request["file_id"] = file.file_id
        request["max_output_response"] = room
        request["flags"] = ioctl.IOCTLFlags.SMB2_0_IOCTL_IS_FSCTL
        request["buffer"] = data
        share = file.tree_connect
        who = share.session
        sent = who.connection.send(request, who.session_id, share.tree_connect_id)
        answer = ioctl.SMB2IOCTLResponse()
        answer.unpack(who.connection.receive(sent)["data"].get_value())
        return answer["buffer"].get_value()

    def test_names_go_there_and_back(self):
        share = self.connect(self.serve())
        self.ask(share, query())
        folder = self.work / "data"
        composed = "Caf\u00e9 \u3067"
        decomposed = unicodedata.normalize("NFD", composed)
        self.assertNotEqual(composed, decomposed)
        # As a local program, or a Mac over NFS, stores it.
        (folder / decomposed).write_text("decomposed")
        (folder / "a:b").write_text("colon")
        (folder / "end.").write_text("dot")
        # As a Mac sends them over SMB.
        self.assertEqual(self.content(share, composed), b"decomposed")
        self.assertEqual(self.content(share, "a\uf022b"), b"colon")
        self.assertEqual(self.content(share, "end\uf029"), b"dot")
        for name in ["q\uf025 \uf020\uf021", "space\uf028", "x.y\uf029"]:
            self.put(share, name, b"new")
        for name in ['q? "*', "space ", "x.y."]:
            self.assertEqual((folder / name).read_text(), "new")

    def test_a_backup_is_synced_to_the_disk(self):
        if subprocess.run(["which", "strace"], capture_output=True).returncode:
            self.skipTest("no strace")
        server = self.serve()
        share = self.connect(server, "backup")
        self.ask(share, query())
        band, _ = self.open(share, "band", files.CreateDisposition.FILE_CREATE)
        band.write(b"backup", 0)
        trace = self.work / "trace"
        tracer = subprocess.Popen(
            ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", trace, "-p", str(server.process.pid)],
            stderr=subprocess.PIPE, text=True,
        )
        if "attached" not in tracer.stderr.readline():
            tracer.kill()
            tracer.communicate()
            self.skipTest("strace may not attach here")
        request = files.SMB2FlushRequest()
        request["reserved1"] = 0xFFFF
        request["file_id"] = band.file_id
        who = share.session
        sent = who.connection.send(request, who.session_id, share.tree_connect_id)
        who.connection.receive(sent)
        tracer.terminate()
        tracer.communicate()
        calls = trace.read_text()
        self.assertRegex(calls, r"(fsync|fdatasync)\(\d+<[^>]*/backup/band>")
        self.assertRegex(calls, r"fsync\(\d+<[^>]*/backup>")
        band.close()

    def test_nothing_is_answered_if_macs_are_switched_off(self):
        text = FILE.replace('mac_model = "MacPro7,1"', "macos = false").replace("time_machine = true\n", "")
        share = self.connect(self.serve(text))
        self.assertEqual(self.ask(share, query()), [])
        self.put(share, "plain", b"")
        self.assertEqual(self.list(share, "plain")["plain"][64:68], bytes(4))

    def test_wrong_configurations(self):
        cases = {
            FILE.replace("time_machine = true", "time_machine = true\nread_only = true"): "shares.backup.time_machine",
            FILE.replace("time_machine = true", 'time_machine = "yes"'): "write true or false",
            FILE.replace("[smb]", "[smb]\nmacos = false"): "smb.macos = false",
            FILE.replace('path = "backup"', 'ram = "1G"'): "ramdisk",
            FILE.replace("MacPro7,1", "Mac\\nPro"): "smb.mac_model",
            FILE.replace("MacPro7,1", "M" * 65): "1 to 64 printable ASCII characters",
            FILE.replace("time_machine", "time_machin"): "did you mean shares.backup.time_machine?",
        }
        for text, wanted in cases.items():
            self.path.write_text(text.format(user=weft.USER))
            done = weft.run(weft.WEFT, "config", "check", self.path, check=False)
            with self.subTest(wanted=wanted):
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(wanted, done.stdout + done.stderr)
