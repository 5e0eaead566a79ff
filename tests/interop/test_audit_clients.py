"""The audit log, told by clients of others: files that are moved while they are open, names that replace others, reparse
points, further channels and repeated log-ons, the status of refused log-ons, and a client that is refused all the time."""

import os
import pathlib
import shutil
import sys
import tempfile
import time
import unittest
import unittest.mock
import uuid

from impacket.smbconnection import SessionError, SMBConnection

import nfs4
import weft
from nfs4 import opaque, words
from test_across import Nfs3
from test_audit import Audited
from test_endings import until
from test_kerberos import HOST, KDC, Realm

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    import smbclient
    from smbprotocol import connection, ioctl, open as files, session, tree
except ImportError:
    connection = None

SMBTORTURE = shutil.which("smbtorture")
SAVEFH, RENAME = 32, 29


class Clients(Audited):
    def setUp(self):
        super().setUp()
        self.seen = 0

    def news(self, fields, expected):
        """The lines since the last call are these, told by these fields, `None` for those that a line lacks. The thread that
        writes them may be behind the answer."""
        until(lambda: len(self.lines()) >= self.seen + len(expected))
        lines = self.lines()
        new, self.seen = lines[self.seen:], len(lines)
        self.assertEqual([tuple(line.get(field) for field in fields) for line in new], expected)


@unittest.skipUnless(connection, "no smbprotocol: tests/interop/deps.sh installs it")
class Paths(Clients):
    FIELDS = "event", "path", "to", "written_bytes"

    def opened(self, server, user, path, *more, share="team"):
        """An open file of smbprotocol's client, which lets others rename and delete it."""
        link = connection.Connection(uuid.uuid4(), "127.0.0.1", server.ready["smb_port"])
        link.connect()
        self.addCleanup(link.disconnect)
        who = session.Session(link, user, f"of-{user}", auth_protocol="ntlm", require_encryption=False)
        who.connect()
        share = tree.TreeConnect(who, rf"\\127.0.0.1\{share}")
        share.connect()
        file = files.Open(share, path)
        file.create(files.ImpersonationLevel.Impersonation, files.FilePipePrinterAccessMask.GENERIC_ALL, 0, 7,
                    files.CreateDisposition.FILE_OPEN_IF, *(more or [0]))
        return file

    def test_a_file_that_is_moved_while_it_is_open(self):
        (self.work / "data" / "folder").mkdir()
        with self.serving(more='events = ["create", "write", "close", "delete", "rename"]') as server:
            file = self.opened(server, "alice", r"folder\a.txt", files.CreateOptions.FILE_DELETE_ON_CLOSE, share="data")
            self.news(self.FIELDS, [("create", "folder/a.txt", None, None)])
            said = self.smbclient(server, "bob", r"rename folder\a.txt folder\b.txt", share="data")
            self.assertNotIn("NT_STATUS", said)
            self.news(self.FIELDS, [("rename", "folder/a.txt", "folder/b.txt", None)])
            # A client of another protocol moves the folder.
            other = Nfs3(server.ready)
            self.move(other, "folder", "moved")
            file.write(b"12345", 0)
            self.news(self.FIELDS, [("write", "moved/b.txt", None, None)])
            self.move(other, "moved", "again")
            file.close(False)
            self.news(self.FIELDS, [("close", "again/b.txt", None, 5), ("delete", "again/b.txt", None, None)])
            self.assertFalse((self.work / "data" / "again" / "b.txt").exists())
            other.end()

    def move(self, nfs, old, new):
        self.assertEqual(nfs.call(14, nfs.at_root(old) + nfs.at_root(new)), "ok")
        self.news(self.FIELDS, [("rename", old, new, None)])

    def test_a_stream_keeps_the_name_of_its_file_when_it_is_renamed(self):
        with self.serving(more='events = ["create", "write", "rename", "close"]') as server:
            stream = self.opened(server, "alice", "f.txt:one")
            self.news(self.FIELDS, [("create", "f.txt:one", None, None)])
            rename = b"\0" * 16 + len(name := ":two".encode("utf-16-le")).to_bytes(4, "little") + name
            request = files.SMB2SetInfoRequest()
            # FileRenameInformation.
            request["info_type"], request["file_info_class"] = 1, 10
            request["file_id"], request["buffer"] = stream.file_id, rename
            link, who = stream.connection, stream.tree_connect
            link.receive(link.send(request, who.session.session_id, who.tree_connect_id))
            self.news(self.FIELDS, [("rename", "f.txt:one", "f.txt:two", None)])
            stream.write(b"x", 0)
            stream.close(False)
            self.news(self.FIELDS, [("write", "f.txt:two", None, None), ("close", "f.txt:two", None, 1)])

    def test_links_made_and_removed_by_reparse_points(self):
        fields = "event", "result", "path", "object"
        with self.serving(more='events = ["create", "delete", "denied"]') as server:
            smbclient.reset_connection_cache()
            self.addCleanup(smbclient.reset_connection_cache)
            mine = {"username": "alice", "password": "of-alice", "port": server.ready["smb_port"], "auth_protocol": "ntlm"}
            smbclient.symlink("plan.txt", r"\\127.0.0.1\team\link", **mine)
            self.assertEqual(os.readlink(self.work / "team" / "link"), "plan.txt")
            self.news(fields, [
                ("create", "ok", "link", "file"), ("delete", "ok", "link", "file"), ("create", "ok", "link", "symlink"),
            ])
            link = self.opened(server, "alice", "link", files.CreateOptions.FILE_OPEN_REPARSE_POINT)
            self.control(link, ioctl.CtlCode.FSCTL_DELETE_REPARSE_POINT, b"\x0c\0\0\xa0\0\0\0\0")
            self.news(fields, [("delete", "ok", "link", "symlink"), ("create", "ok", "link", "file")])
            self.assertFalse((self.work / "team" / "link").is_symlink())
            link.close(False)
            # A device, which clients may not make.
            device = b"\x14\0\0\x80\x10\0\0\0CHR\0\0\0\0\0\x01\0\0\0\x03\0\0\0"
            with self.assertRaisesRegex(Exception, "ACCESS_DENIED"):
                self.control(self.opened(server, "alice", "device"), ioctl.CtlCode.FSCTL_SET_REPARSE_POINT, device)
            self.news(fields, [("create", "ok", "device", "file"), ("create", "denied", "device", "file")])

    @staticmethod
    def control(file, code, data):
        request = ioctl.SMB2IOCTLRequest()
        request["ctl_code"], request["file_id"], request["buffer"] = code, file.file_id, data
        request["flags"] = ioctl.IOCTLFlags.SMB2_0_IOCTL_IS_FSCTL
        link, who = file.connection, file.tree_connect
        link.receive(link.send(request, who.session.session_id, who.tree_connect_id))


class Names(Clients):
    def test_a_rename_that_replaces_a_file_says_so_over_each_protocol(self):
        fields = "event", "path", "to", "replaced"
        for name in ["a", "b", "c", "other"]:
            (self.work / "data" / name).write_text(name)
        (self.work / "team" / "a").write_text("a")
        with self.serving(more='events = ["rename"]') as server:
            self.assertNotIn("NT_STATUS", self.smbclient(server, "alice", "rename a new; rename new plan.txt -f"))
            self.news(fields, [("rename", "a", "new", None), ("rename", "new", "plan.txt", True)])
            three = Nfs3(server.ready)
            three.begin("a")
            self.assertEqual(three.replace(), "ok")
            self.news(fields, [("rename", "other", "a", True)])
            three.end()
            four = nfs4.Client(server.ready["nfs_port"], "renamer", uid=0)
            for old, new, replaced in [("b", "a", True), ("a", "d", None)]:
                reply = four.run(*four.walk("data"), words(SAVEFH), words(RENAME) + opaque(old.encode()) + opaque(new.encode()))
                for op in [nfs4.PUTROOTFH, nfs4.LOOKUP, SAVEFH, RENAME]:
                    self.assertEqual(reply.expect(op), "ok")
                self.news(fields, [("rename", old, new, replaced)])
            four.hang_up()

    def test_two_users_who_open_a_file_through_one_owner(self):
        fields = "event", "uid", "path"
        file = self.work / "data" / "f"
        file.write_text("content")
        file.chmod(0o666)
        with self.serving(more='events = ["open", "close"]') as server:
            four = nfs4.Client(server.ready["nfs_port"], "shared", uid=1001)
            status, _, _, _ = four.open("data", "f", 3, 0)
            self.assertEqual(status, "ok")
            self.news(fields, [("open", 1001, "f")])
            four.uid = 1002
            status, handle, stateid, _ = four.open("data", "f", 3, 0)
            self.assertEqual(status, "ok")
            self.news(fields, [("open", 1002, "f")])
            _, status = four.on(handle, nfs4.CLOSE, words(0) + stateid)
            self.assertEqual(status, "ok")
            self.news(fields, [("close", 1001, "f"), ("close", 1002, "f")])
            four.hang_up()


class LogOns(Clients):
    FIELDS = "event", "result", "status", "user"

    def test_a_refused_log_on_says_why_in_the_log_and_not_to_the_client(self):
        with self.serving(more='events = ["logon"]') as server:
            for user, password, status in [("alice", "wrong", "WRONG_PASSWORD"), ("nobody", "x", "NO_SUCH_USER")]:
                said = self.smbclient(server, user, "ls", password=password)
                self.assertIn("NT_STATUS_LOGON_FAILURE", said)
                self.news(self.FIELDS, [("logon", "denied", f"STATUS_{status}", user)])
            old = "--option=client ntlmv2 auth=no", "--option=client use spnego=no"
            weft.smbclient(server, "ls", *old, share="team", user="alice", password="of-alice", check=False)
            self.news(self.FIELDS, [("logon", "denied", "STATUS_NTLM_BLOCKED", "alice")])

    @unittest.skipUnless(SMBTORTURE, "no smbtorture")
    def test_further_channels_and_repeated_log_ons_of_smbtorture(self):
        for test, expected in [("reauth1", self.again), ("bind1", self.bound)]:
            with self.subTest(test=test):
                self.audit.unlink(missing_ok=True)
                self.seen = 0
                with self.serving(more='events = ["logon", "logoff", "connect"]') as server:
                    target = f"//127.0.0.1/team", "-p", server.ready["smb_port"], "-U", "alice%of-alice"
                    done = weft.run(SMBTORTURE, *target, f"smb2.session.{test}", check=False, cwd=self.work)
                    self.assertIn(f"success: {test}", done.stdout + done.stderr)
                lines = [line for line in self.lines() if line["result"] == "ok"]
                expected([(line["event"], line["client"]) for line in lines], lines)

    def again(self, told, lines):
        """A client logs on, connects, and logs on again on the same connection."""
        (first, client), *_ = told
        self.assertEqual(first, "logon")
        own = [event for event, address in told if address == client]
        self.assertEqual(own[:3], ["logon", "connect", "logon"], told)
        self.assertEqual((own.count("logoff"), {line["user"] for line in lines}), (1, {"alice"}), told)

    def bound(self, told, lines):
        """Two connections log on, and one of them becomes a channel of the other's session, told with its own address. A
        session ends once."""
        log_ons = [address for event, address in told if event == "logon"]
        self.assertEqual(len(set(log_ons)), 2, told)
        self.assertGreaterEqual(max(log_ons.count(address) for address in log_ons), 2, told)
        self.assertEqual([event for event, _ in told].count("logoff"), 2, told)

    def test_a_client_that_is_refused_all_the_time(self):
        asked, begun = 0, time.monotonic()
        with self.serving(more='events = ["denied"]') as server:
            bob = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.ready["smb_port"])
            bob.login("bob", "of-bob")
            team = bob.connectTree("team")
            # More than the limit, 500 at once and 50 each second, however slow this client is.
            while asked < 700 + 50 * (time.monotonic() - begun):
                self.assertLess(time.monotonic() - begun, 300, asked)
                with self.assertRaises(SessionError):
                    bob.openFile(team, "plan.txt", desiredAccess=0x40000000)
                asked += 1
            bob.close()
        lines = self.lines()
        lost = [line for line in lines if line["event"] == "lost"]
        denied = [line for line in lines if line["event"] == "open"]
        self.assertEqual({line["client"] for line in lost}, {"127.0.0.1"})
        self.assertEqual(len(denied) + sum(line["lost"] for line in lost), asked)
        self.assertGreaterEqual(len(denied), 500)
        self.assertEqual({(line["user"], line["status"]) for line in denied}, {("bob", "STATUS_ACCESS_DENIED")})


@unittest.skipUnless(KDC, "no KDC: tests/interop/deps.sh installs it")
class Tickets(Clients):
    def test_a_ticket_that_is_refused_says_why_in_the_log(self):
        realm_work = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-realm-"))
        realm = Realm(realm_work)
        self.addCleanup(realm.stop)
        if weft.USER != "alice":
            realm.admin(f"addprinc -pw {weft.PASSWORD} alice")
        self.enterContext(unittest.mock.patch.dict(os.environ, realm.environment))
        ticket = "--use-kerberos=required", f"--use-krb5-ccache={realm_work}/ccache"

        def refused(principal, keytab):
            self.audit.unlink(missing_ok=True)
            realm.tool("bin/kinit", principal, text=weft.PASSWORD + "\n")
            with self.serving("--keytab", pathlib.Path(realm_work) / keytab, more='events = ["logon"]') as server:
                target = f"//{HOST}/team", "-I", "127.0.0.1", "-p", server.ready["smb_port"]
                done = weft.run("smbclient", *target, *ticket, "-c", "ls", check=False)
                self.assertIn("NT_STATUS_LOGON_FAILURE", done.stdout + done.stderr)
            (line,) = self.lines()
            self.assertEqual(line["result"], "denied")
            return line["status"], line.get("user"), line["reason"]

        status, user, _ = refused("mallory", "keytab")
        self.assertEqual((status, user), ("STATUS_LOGON_TYPE_NOT_GRANTED", "mallory@WEFT.TEST"))
        status, _, reason = refused("alice", "other")
        self.assertEqual(status, "STATUS_LOGON_FAILURE")
        self.assertIn("Kerberos", reason)


if __name__ == "__main__":
    unittest.main()
