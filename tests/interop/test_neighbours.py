"""Hostile neighbours: users and hosts with log-ons of their own, who know more of others than they should. Nobody reads, breaks,
binds or reclaims what is another's.

Every attempt stands beside its rightful owner's, who succeeds with the same request: otherwise a refusal would show nothing.
mallory knows what SMB sends in the clear (ClientGuids, ids, keys of leases, CreateGuids), and in some rows the signing key of a
session, too. Ids of NFS are secrets; he knows some of them nevertheless, as docs/security.md has it. `smb3` and `nfs4` are the
attackers; smbclient, impacket and smbprotocol are users beside them who must not notice anything. Guessing, floods and greed
are in test_hostile and test_greed."""

import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from impacket.dcerpc.v5 import samr, srvs, transport
from impacket.smbconnection import SMBConnection

import nfs4
import oncrpc
import smb3
import test_system_users
import weft
from oncrpc import NFS, NLM, NSM, opaque, words
from smb3 import Refused

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    from smbprotocol import connection, open as files, session, tree
except ImportError:
    connection = None

HERS, HIS, MALLORYS = "127.0.0.2", "127.0.0.3", "127.0.0.66"

FILE = """
[listeners]
smb_port = 0
smb_direct_port = 0

# As root, too: the users of these tests have no accounts of the system.
[smb]
act_as_callers = false

[shares.common]
path = "common"
continuous_availability = true

[shares.team]
path = "team"
read = ["mallory"]
write = ["alice", "bob"]

[shares.hers]
path = "hers"
write = ["alice"]
dfs_links = { projects = ["//192.0.2.7/confidential"] }
"""

# Which changes a watch reports: names of files and folders; sizes and times of the last write.
NAMES, CONTENT = 0x03, 0x18
REQUEST_RESUME_KEY, COPYCHUNK, GET_REFERRALS = 0x140078, 0x1440F2, 0x60194
OFFLOAD_READ, OFFLOAD_WRITE = 0x94264, 0x98268


def guid():
    return os.urandom(16)


@unittest.skipUnless(smb3.spnego, "no pyspnego: tests/interop/deps.sh installs it")
class Smb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        work = tempfile.TemporaryDirectory(prefix="weft-neighbours-")
        cls.addClassCleanup(work.cleanup)
        cls.work = pathlib.Path(work.name)
        for share in ["common", "team", "hers"]:
            (cls.work / share).mkdir()
        (cls.work / "weft.toml").write_text(FILE)
        state = ["--state-dir", cls.work / "state"]
        for user in ["alice", "bob", "mallory"]:
            weft.run(weft.WEFT, "user", "add", user, *state, password=f"of-{user}")
        command = [weft.WEFT, "serve", "--config", cls.work / "weft.toml", *state, "--json"]
        cls.server = weft.Process(command, cls.work / "weft.log")
        cls.addClassCleanup(lambda: cls.server.stop())

    @property
    def port(self):
        return self.server.ready["smb_port"]

    def setUp(self):
        # What the ordinary clients work with.
        (self.work / "common" / "plan").write_text("of all")

    def tearDown(self):
        """Users beside the attackers, with clients of others, have noticed nothing."""
        line = ["smbclient", "-p", str(self.port), "//127.0.0.1/hers", "-U", "alice%of-alice", "-c"]
        said = subprocess.run([*line, "put weft.toml kept; get kept -"], capture_output=True, text=True, timeout=60, cwd=self.work)
        self.assertIn("act_as_callers", said.stdout + said.stderr)
        peer = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=self.port)
        peer.login("bob", "of-bob")
        self.assertIn("plan", [entry.get_longname() for entry in peer.listPath("common", "*")])
        peer.close()
        if connection:
            link = connection.Connection(uuid.uuid4(), "127.0.0.1", self.port)
            link.connect()
            who = session.Session(link, "mallory", "of-mallory", auth_protocol="ntlm")
            who.connect()
            share = tree.TreeConnect(who, r"\\127.0.0.1\common")
            share.connect()
            file = files.Open(share, "plan")
            file.create(files.ImpersonationLevel.Impersonation, files.FilePipePrinterAccessMask.GENERIC_READ, 0, 7,
                        files.CreateDisposition.FILE_OPEN, 0)
            self.assertEqual(file.read(0, 6), b"of all")
            link.disconnect()
        self.assertFalse(self.server.faults("ERROR"))

    def link(self, **how):
        link = smb3.Link(self.port, **how)
        self.addCleanup(link.close)
        return link

    def log_on(self, user, **how):
        how.setdefault("source", {"alice": HERS, "bob": HIS, "mallory": MALLORYS}[user])
        return self.link(**how).log_on(user, f"of-{user}")

    def at(self, user, share="common", **how):
        """A user's tree, on a connection of its own from the user's host."""
        return self.log_on(user, **how).tree(share)

    def refused(self, act, *expected):
        """The status of an attempt, which is one of these."""
        with self.assertRaises(Refused) as refused:
            act()
        self.assertIn(refused.exception.status, expected)

    def test_durable_handles_go_back_to_their_owners_alone(self):
        made = guid()
        # What the first CREATE asks for, and what a reconnect names.
        one = smb3.durable(), smb3.durable_again
        two = smb3.durable2(made), lambda file: smb3.durable2_again(file, made)
        kept = smb3.durable2(made, True), lambda file: smb3.durable2_again(file, made, True)
        for way, (asks, names), is_leased in [
            ("version 1", one, False), ("version 2", two, False), ("version 1, leased", one, True), ("version 2, leased", two, True),
            ("persistent", kept, False), ("persistent, leased", kept, True),
        ]:
            with self.subTest(way):
                self.durable(f"durable {way}".replace(", ", "-"), asks, names, is_leased)

    def durable(self, name, asks, names, is_leased):
        client, key = guid(), guid()
        leased = {"oplock": smb3.LEASE, "asks": [smb3.lease(key, smb3.RWH)]} if is_leased else {}

        def again(user, file, share="common", **how):
            wish = dict(leased, asks=[names(file.id), *leased.get("asks", [])])
            return self.at(user, share, **how).open(name, how=smb3.OPEN, **wish)

        first = dict(leased or {"oplock": smb3.BATCH}, asks=[asks, *leased.get("asks", [])])
        file = self.at("alice", guid=client).open(name, **first)
        self.assertTrue({b"DHnQ", b"DH2Q"} & set(file.granted), "it is durable")
        file.write(b"hers")
        # She comes back twice: after the first time, too, nobody else does.
        for _ in range(2):
            file.tree.session.link.close()
            for neighbour, how in [
                ("another user", {}),
                ("another user who claims to be her client", {"guid": client}),
                ("the same from her host", {"guid": client, "source": HERS}),
            ]:
                with self.subTest(neighbour):
                    self.refused(lambda: again("mallory", file, **how), "ACCESS_DENIED", "OBJECT_NAME_NOT_FOUND")
            # It belongs to its share, and with a lease to its client.
            self.refused(lambda: again("alice", file, "team", guid=client), "OBJECT_NAME_NOT_FOUND", "INVALID_PARAMETER")
            if is_leased:
                self.refused(lambda: again("alice", file), "OBJECT_NAME_NOT_FOUND")
            file = again("alice", file, guid=client)
            self.assertEqual(file.read(), b"hers")
        file.close()

    def test_persistent_handles_survive_a_restart_for_their_owners_alone(self):
        client, made = guid(), guid()
        wish = {"oplock": smb3.BATCH, "asks": [smb3.durable2(made, True)], "sharing": 0}
        file = self.at("alice", guid=client).open("persistent", **wish)
        self.assertEqual(struct.unpack("<II", file.granted[b"DH2Q"])[1], 2, "it is persistent")
        file.write(b"hers")
        self.server.crash()
        self.server.start()

        def again(user, **how):
            asks = [smb3.durable2_again(file.id, made, True)]
            return self.at(user, **how).open("persistent", how=smb3.OPEN, asks=asks)

        def replay(user, **how):
            return self.at(user, **how).open("persistent", replay=True, **wish)

        for how in [{}, {"guid": client}, {"guid": client, "source": HERS}]:
            self.refused(lambda: again("mallory", **how), "ACCESS_DENIED")
            self.refused(lambda: replay("mallory", **how), "ACCESS_DENIED")
            self.refused(lambda: self.at("mallory", **how).open("persistent"), "FILE_NOT_AVAILABLE")
        file = replay("alice", guid=client)
        self.assertEqual(file.read(), b"hers")
        file.tree.session.link.close()
        file = again("alice", guid=client)
        self.assertEqual(file.read(), b"hers")
        file.close()

    def test_a_create_is_repeated_by_its_user_alone(self):
        client, made = guid(), guid()
        alice = self.log_on("alice", guid=client)
        tree = alice.tree("common")
        wish = {"oplock": smb3.BATCH, "asks": [smb3.durable2(made)]}
        file = tree.open("repeated", **wish)
        for how in [{"guid": client}, {"guid": client, "source": HERS}]:
            self.refused(lambda: self.at("mallory", **how).open("repeated", replay=True, **wish), "ACCESS_DENIED")
        self.assertEqual(tree.open("repeated", replay=True, **wish).id, file.id)
        file.write(b"hers")
        file.close()

    def test_breaks_reach_and_are_acknowledged_by_the_owner_alone(self):
        client, key = guid(), guid()
        leased = {"oplock": smb3.LEASE, "asks": [smb3.lease(key, smb3.RWH)]}
        # mallory claims to be alice's client, was there before her, and uses her key for a file of his own.
        mallory = self.at("mallory", guid=client)
        mallory.open("mallorys", **leased)
        alice = self.at("alice", guid=client)
        file = alice.open("leased", **leased)
        self.assertEqual(struct.unpack_from("<I", file.granted[b"RqLs"], 16)[0], smb3.RWH)
        bob = self.at("bob")
        waiting = bob.send(smb3.CREATE, smb3.wish("leased"))
        self.assertEqual(alice.session.link.notice(), (key, smb3.RH))
        for attacker in [mallory, self.at("mallory"), self.at("bob", guid=client)]:
            self.refused(lambda: attacker.acknowledge(key, smb3.RH), "OBJECT_NAME_NOT_FOUND", "UNSUCCESSFUL")
        self.assertTrue(bob.session.link.waits(waiting), "nobody has acknowledged it")
        self.assertFalse(mallory.session.link.is_told(), "a break of hers went to him")
        alice.acknowledge(key, smb3.RH)
        bob.opened(bob.session.link.answer(waiting)).close()
        # With her key he is no part of her lease: his open breaks it.
        file = alice.open("leased", **leased)
        mallory = self.at("mallory", guid=client)
        waiting = mallory.send(smb3.CREATE, smb3.wish("leased"))
        self.assertEqual(alice.session.link.notice(), (key, smb3.RH))
        alice.acknowledge(key, smb3.RH)
        mallory.opened(mallory.session.link.answer(waiting))
        # The key is that of one file, for her; others may have the same key.
        self.refused(lambda: alice.open("another", **leased), "INVALID_PARAMETER")
        self.at("bob").open("another", **leased).close()

    def test_an_oplock_is_acknowledged_by_its_owner_alone(self):
        alice, bob, mallory = self.at("alice"), self.at("bob"), self.at("mallory")
        file = alice.open("oplocked", oplock=smb3.BATCH)
        self.assertEqual(file.oplock, smb3.BATCH)
        waiting = bob.send(smb3.CREATE, smb3.wish("oplocked"))
        self.assertEqual(alice.session.link.notice()[0], file.id)
        self.refused(lambda: file.through(mallory).acknowledge(1), "FILE_CLOSED")
        # Another session of her own is another one, too.
        self.refused(lambda: file.through(self.at("alice")).acknowledge(1), "FILE_CLOSED")
        self.assertTrue(bob.session.link.waits(waiting), "nobody has acknowledged it")
        file.acknowledge(1)
        bob.opened(bob.session.link.answer(waiting))

    def test_channels_join_the_session_of_their_user_alone(self):
        client = guid()
        alice = self.log_on("alice", guid=client)
        file = alice.tree("common").open("channels")
        file.write(b"hers")
        mallory = self.log_on("mallory")
        wrong = guid()
        rows = [
            # The connection, whose credentials, the key that signs, and the answer.
            ("his credentials and her key", {"guid": client}, "mallory", alice.key, "NOT_SUPPORTED"),
            ("the same from her host", {"guid": client, "source": HERS}, "mallory", alice.key, "NOT_SUPPORTED"),
            ("his credentials and his key", {"guid": client}, "mallory", mallory.key, "ACCESS_DENIED"),
            ("her credentials and a wrong key", {"guid": client}, "alice", wrong, "ACCESS_DENIED"),
            ("another client", {}, "alice", alice.key, "USER_SESSION_DELETED"),
            ("another dialect", {"guid": client, "dialect": 0x0302}, "alice", alice.key, "INVALID_PARAMETER"),
            ("another cipher", {"guid": client, "ciphers": [smb3.AES_256_GCM]}, "alice", alice.key, "INVALID_PARAMETER"),
        ]
        for name, how, user, key, status in rows:
            with self.subTest(name):
                link = self.link(**{"source": MALLORYS, **how})
                self.refused(lambda: link.bind(alice, user, f"of-{user}", key), status)
                self.assertEqual(file.read(), b"hers")
        channel = self.link(guid=client, source=HERS).bind(alice, "alice", "of-alice")
        through = smb3.File(smb3.Tree(channel, file.tree.number), file.id)
        self.assertEqual(through.read(), b"hers")
        # A connection that is no channel of the session, with its id, its key, or both.
        for name, stolen in [("his key", mallory.key), ("her key", alice.key)]:
            with self.subTest(name):
                link = self.log_on("mallory").link
                taken = smb3.File(smb3.Tree(smb3.Session(link, alice.number, stolen), file.tree.number), file.id)
                for act in [taken.read, lambda: taken.write(b"his"), taken.close, lambda: taken.tree.session.ask(smb3.LOGOFF, b"\4\0\0\0")]:
                    self.refused(act, "USER_SESSION_DELETED")
        self.assertEqual(file.read(), b"hers")

    def test_a_session_is_ended_by_its_user_alone(self):
        alice = self.log_on("alice")
        file = alice.tree("common").open("ended")
        self.link(source=MALLORYS).log_on("mallory", "of-mallory", previous=alice.number)
        file.write(b"still hers")
        # A failed log-on ends nothing either.
        self.refused(lambda: self.link(source=MALLORYS).log_on("alice", "of-mallory", previous=alice.number), "LOGON_FAILURE")
        file.write(b"still hers")
        self.link(source=HERS).log_on("alice", "of-alice", previous=alice.number)
        self.refused(lambda: file.write(b"gone"), "USER_SESSION_DELETED")

    def test_a_client_that_somebody_else_claims_to_be_still_logs_on(self):
        client = guid()
        self.log_on("mallory", guid=client, dialect=0x0300)
        alice = self.log_on("alice", guid=client)
        alice.tree("common").open("logged on").close()
        # The rule itself holds for her own connections.
        self.refused(lambda: self.log_on("alice", guid=client, dialect=0x0300), "USER_SESSION_DELETED")

    def test_ids_of_another_connection_name_nothing(self):
        alice, mallory = self.log_on("alice"), self.log_on("mallory")
        hers, his = alice.tree("hers"), mallory.tree("common")
        file = hers.open("secret", access=smb3.GENERIC_READ | smb3.GENERIC_WRITE | smb3.DELETE)
        file.write(b"hers")
        folder = hers.open("", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)
        for name, act in {
            "READ": lambda file, folder: file.read(),
            "WRITE": lambda file, folder: file.write(b"his"),
            "LOCK": lambda file, folder: file.lock(0, 1),
            "SET_INFO": lambda file, folder: file.rename("stolen"),
            "IOCTL": lambda file, folder: file.control(REQUEST_RESUME_KEY, b""),
            "CHANGE_NOTIFY": lambda file, folder: smb3.changes(folder.tree.session.link.answer(folder.notify())),
            "CLOSE": lambda file, folder: file.close(),
        }.items():
            with self.subTest(name):
                self.refused(lambda: act(file.through(his), folder.through(his)), "FILE_CLOSED")
                # Her tree, in his session: his own has one tree, and hers has more.
                trees = [alice.tree("common") for _ in range(3)]
                strange = smb3.Tree(mallory, trees[-1].number)
                self.refused(lambda: act(file.through(strange), folder.through(strange)), "NETWORK_NAME_DELETED")
        self.assertEqual(file.read(), b"hers")
        file.lock(0, 1)
        file.rename("still secret")
        file.close()
        # The share itself.
        self.refused(lambda: mallory.tree("hers"), "ACCESS_DENIED")

    def test_a_request_is_cancelled_by_its_session_alone(self):
        alice = self.log_on("alice")
        folder = alice.tree("common").open("", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)
        waiting = folder.notify()
        number = alice.link.interim(waiting)
        cancel = struct.pack("<HH", 4, 0)
        for name, send in {
            # bob's session is on her very connection, as on a host with several users.
            "another session of the connection": lambda bob: bob.send(smb3.CANCEL, cancel, message=waiting, async_id=number),
            "the same by MessageId": lambda bob: bob.send(smb3.CANCEL, cancel, message=waiting),
            "her session with another's key": lambda bob: alice.link.send(
                smb3.CANCEL, cancel, session=alice.number, key=bob.key, message=waiting, async_id=number),
        }.items():
            with self.subTest(name):
                send(alice.link.log_on("bob", "of-bob"))
                self.assertTrue(alice.link.waits(waiting))
        for name, whose in [("her session", alice.number), ("his session", None)]:
            with self.subTest(f"another connection, {name}"):
                mallory = self.log_on("mallory")
                mallory.link.send(
                    smb3.CANCEL, cancel, session=whose or mallory.number, key=mallory.key, message=waiting, async_id=number)
                self.assertTrue(alice.link.waits(waiting))
        alice.send(smb3.CANCEL, cancel, message=waiting, async_id=number)
        self.refused(lambda: smb3.changes(alice.link.answer(waiting)), "CANCELLED")

    def test_tokens_and_resume_keys_are_of_their_owners(self):
        alice, mallory = self.at("alice"), self.at("mallory")
        for name in ["token-from", "token-hers", "token-his"]:
            (self.work / "common" / name).write_bytes(os.urandom(4096))
        content = (self.work / "common" / "token-from").read_bytes()
        source, hers, his = alice.open("token-from"), alice.open("token-hers"), mallory.open("token-his")
        token = source.control(OFFLOAD_READ, struct.pack("<IIIIQQ", 32, 0, 0, 0, 0, 4096))[16:]
        write = struct.pack("<IIQQQ", 32 + 512, 0, 0, 4096, 0) + token
        self.refused(lambda: his.control(OFFLOAD_WRITE, write), "INVALID_TOKEN")
        key = source.control(REQUEST_RESUME_KEY, b"")[:24]
        copy = key + struct.pack("<II", 1, 0) + struct.pack("<QQII", 0, 0, 4096, 0)
        self.refused(lambda: his.control(COPYCHUNK, copy), "OBJECT_NAME_NOT_FOUND")
        # A resume key is of a session, a token of a user.
        beside = self.at("alice").open("token-hers")
        self.refused(lambda: beside.control(COPYCHUNK, copy), "OBJECT_NAME_NOT_FOUND")
        beside.control(OFFLOAD_WRITE, write)
        self.assertEqual((self.work / "common" / "token-hers").read_bytes(), content)
        (self.work / "common" / "token-hers").write_bytes(bytes(4096))
        hers.control(COPYCHUNK, copy)
        self.assertEqual((self.work / "common" / "token-hers").read_bytes(), content)
        self.assertNotEqual((self.work / "common" / "token-his").read_bytes(), content)

    def test_an_application_moves_for_whoever_may_do_as_much_alone(self):
        instance = guid()
        wish = {"asks": [smb3.application(instance)], "how": smb3.OPEN_IF}
        file = self.at("alice", "team").open("vm", **wish)
        file.write(b"hers")
        # mallory may read the share.
        reads = dict(wish, how=smb3.OPEN, access=smb3.GENERIC_READ)
        self.assertEqual(self.at("mallory", "team").open("vm", **reads).read(), b"hers")
        file.write(b"still")
        # Another host of hers, and one of bob's, who may write to it as well.
        moved = self.at("alice", "team").open("vm", **wish)
        self.refused(lambda: file.write(b"gone"), "FILE_CLOSED")
        self.at("bob", "team").open("vm", **wish)
        self.refused(lambda: moved.write(b"gone"), "FILE_CLOSED")

    def test_links_of_a_share_are_told_to_those_who_may_use_it(self):
        def refer(user):
            path = struct.pack("<H", 4) + r"\127.0.0.1\hers\projects".encode("utf-16-le") + bytes(2)
            return smb3.File(self.log_on(user).tree("IPC$"), b"\xff" * 16).control(GET_REFERRALS, path)

        self.assertIn("confidential".encode("utf-16-le"), refer("alice"))
        self.refused(lambda: refer("mallory"), "NOT_FOUND")

    def rpc(self, user, pipe, interface):
        rpc = transport.SMBTransport("127.0.0.1", self.port, pipe, user, f"of-{user}").get_dce_rpc()
        rpc.connect()
        self.addCleanup(rpc.disconnect)
        rpc.bind(interface)
        return rpc

    def test_pipes_and_their_handles_are_of_one_connection(self):
        alice, mallory = self.log_on("alice"), self.log_on("mallory")
        pipe, his = alice.tree("IPC$").open("samr"), mallory.tree("IPC$")
        stolen = pipe.through(his)
        for act in [stolen.read, lambda: stolen.write(b"x"), stolen.close]:
            self.refused(act, "FILE_CLOSED")
        pipe.close()
        first, second = self.rpc("alice", r"\samr", samr.MSRPC_UUID_SAMR), self.rpc("mallory", r"\samr", samr.MSRPC_UUID_SAMR)
        handle = samr.hSamrConnect(first)["ServerHandle"]
        self.assertTrue(samr.hSamrEnumerateDomainsInSamServer(first, handle)["Buffer"]["Buffer"])
        with self.assertRaisesRegex(Exception, "(?i)context_mismatch"):
            samr.hSamrEnumerateDomainsInSamServer(second, handle)
        with self.assertRaisesRegex(Exception, "(?i)context_mismatch"):
            samr.hSamrCloseHandle(second, handle)
        self.assertTrue(samr.hSamrEnumerateDomainsInSamServer(first, handle)["Buffer"]["Buffer"])

    def test_lists_of_sessions_and_files_tell_of_nobody_else(self):
        alice = self.at("alice", "hers")
        alice.open("listed").write(b"hers")
        for user in ["alice", "mallory"]:
            rpc = self.rpc(user, r"\srvsvc", srvs.MSRPC_UUID_SRVS)
            told = srvs.hNetrSessionEnum(rpc, "\0", "\0", 10)["InfoStruct"]["SessionInfo"]["Level10"]["Buffer"]
            self.assertEqual({row["sesi10_username"].rstrip("\0") for row in told}, {user})
            # Of another by name.
            asked = srvs.hNetrSessionEnum(rpc, "\0", "alice\0", 10)["InfoStruct"]["SessionInfo"]["Level10"]["Buffer"]
            self.assertEqual(bool(asked), user == "alice")
            shares = srvs.hNetrShareEnum(rpc, 1)["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"]
            self.assertEqual("hers" in {row["shi1_netname"].rstrip("\0") for row in shares}, user == "alice")
            # Who has which files open is told to nobody.
            for act in [lambda: srvs.hNetrFileEnum(rpc, "\0", "\0", 3), lambda: srvs.hNetrConnectionEnum(rpc, "hers\0", 1),
                        lambda: srvs.hNetrSessionDel(rpc, "\0", "alice\0")]:
                with self.assertRaises(Exception) as refused:
                    act()
                self.assertNotIn("listed", str(refused.exception))
        alice.open("listed").close()


ACTING = """
[listeners]
smb_port = 0
smb_direct_port = 0

[shares.team]
path = "team"
snapshots = ".snap/at-%Y-%m-%d_%H.%M.%S"

[shares.common]
path = "common"
hide_unreadable = true
"""


@unittest.skipUnless(smb3.spnego and test_system_users.can_mount(), "needs pyspnego, root and mount namespaces")
class Accounts(test_system_users.Inside):
    """Users with accounts of the system, whom the kernel judges."""

    def configure(self, extra=""):
        self.work.chmod(0o755)
        for folder in ["team", "common"]:
            (self.work / folder).chmod(0o777)
        (self.work / "weft.toml").write_text(ACTING)
        self.add_users("alice", "bob")

    def at(self, server, user, share):
        link = smb3.Link(server.ready["smb_port"], source={"alice": HERS, "bob": HIS}[user])
        self.addCleanup(link.close)
        return link.log_on(user, f"of-{user}").tree(share)

    def watch(self, tree, whole_tree=False, what=NAMES):
        folder = tree.open("", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)
        waiting = folder.notify(whole_tree, what)
        tree.session.link.interim(waiting)
        return folder, waiting

    def test_changes_tell_no_names_of_folders_that_a_user_may_not_list(self):
        with self.serving() as server:
            alice, bob = self.at(server, "alice", "team"), self.at(server, "bob", "team")
            for name, mode in [("private", 0o700), ("entered", 0o711), ("shown", 0o755)]:
                alice.open(name, options=smb3.DIRECTORY).close()
                (self.work / "team" / name).chmod(mode)
            beside = self.at(server, "alice", "team")
            _, hers = self.watch(beside, whole_tree=True)
            folder, his = self.watch(bob, whole_tree=True)
            for name in ["private\\secret", "entered\\secret", "shown\\known"]:
                alice.open(name).close()
                # The owner of the folders is told of each.
                answer = smb3.changes(beside.session.link.answer(hers))
                self.assertIn(name, answer)
                hers = self.watch(beside, whole_tree=True)[1]
            self.assertEqual(smb3.changes(bob.session.link.answer(his)), ["shown\\known"])
            # By a program of the host, too.
            his = folder.notify(True, NAMES)
            bob.session.link.interim(his)
            (self.work / "team" / "private" / "other").write_text("x")
            self.assertTrue(bob.session.link.waits(his))
            (self.work / "team" / "shown" / "other").write_text("x")
            self.assertEqual(set(smb3.changes(bob.session.link.answer(his))), {"shown\\other"})

    def test_changes_tell_no_names_that_a_listing_hides(self):
        with self.serving() as server:
            alice, bob = self.at(server, "alice", "common"), self.at(server, "bob", "common")
            for name, mode in [("hidden", 0o600), ("shown", 0o644)]:
                alice.open(name).close()
                (self.work / "common" / name).chmod(mode)
            listed = self.smbclient(server, "bob", "ls", share="common")
            self.assertIn("shown", listed)
            self.assertNotIn("hidden", listed)
            self.assertIn("hidden", self.smbclient(server, "alice", "ls", share="common"))
            beside = self.at(server, "alice", "common")
            _, hers = self.watch(beside, what=CONTENT)
            _, his = self.watch(bob, what=CONTENT)
            alice.open("hidden").write(b"hers")
            self.assertEqual(set(smb3.changes(beside.session.link.answer(hers))), {"hidden"})
            self.assertTrue(bob.session.link.waits(his))
            alice.open("shown").write(b"hers")
            self.assertEqual(set(smb3.changes(bob.session.link.answer(his))), {"shown"})
            # A name that is gone cannot be judged: the folder is to be listed again.
            _, his = self.watch(bob)
            alice.open("hidden", access=smb3.GENERIC_READ | smb3.DELETE).rename("hidden still")
            self.assertEqual(smb3.STATUS[bob.session.link.answer(his).status], "NOTIFY_ENUM_DIR")

    def test_previous_versions_are_judged_like_the_present_one(self):
        then = 1_767_312_000
        state = self.work / "team" / ".snap" / f"at-{time.strftime('%Y-%m-%d_%H.%M.%S', time.gmtime(then))}"
        for folder, mode in [("private", 0o700), ("shown", 0o755)]:
            for place in [state / folder, self.work / "team" / folder]:
                place.mkdir(parents=True)
                (place / "file").write_text("of alice")
                for path in [place / "file", place]:
                    os.chown(path, 5001, 5001)
                place.chmod(mode)
        with self.serving() as server:
            alice, bob = self.at(server, "alice", "team"), self.at(server, "bob", "team")
            past = {"asks": [smb3.as_of(then)], "how": smb3.OPEN, "access": smb3.GENERIC_READ}
            for name, his in [("shown\\file", "of alice"), ("private\\file", None)]:
                self.assertEqual(alice.open(name, **past).read(), b"of alice")
                if his:
                    self.assertEqual(bob.open(name, **past).read(), his.encode())
                else:
                    with self.assertRaises(Refused) as refused:
                        bob.open(name, **past)
                    self.assertEqual(refused.exception.status, "ACCESS_DENIED")
            at = f"@GMT-{time.strftime('%Y.%m.%d-%H.%M.%S', time.gmtime(then))}"
            self.assertIn("file", self.smbclient(server, "alice", f"ls {at}\\private\\*"))
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "bob", f"ls {at}\\private\\*"))


class Caller(oncrpc.Connection):
    """ONC RPC calls of one user of one host."""

    def compound(self, minor, *ops):
        """The status of a COMPOUND, and the results of its last operation."""
        reply = nfs4.Reply(self.call(NFS, 4, 1, nfs4.compound(minor, *ops)).rest())
        status = reply.word()
        reply.opaque(), reply.word()
        return nfs4.STATUS.get(status, str(status)), reply


TEST, CANCEL, UNLOCK, NM_LOCK, FREE_ALL = 1, 3, 4, 22, 23
GRANTED, DENIED = 0, 1
(FREE_STATEID, TEST_STATEID, DESTROY_SESSION, DESTROY_CLIENTID, BIND_CONN, OPEN_DOWNGRADE, SETATTR, RENEW, SETCLIENTID,
 SETCLIENTID_CONFIRM, RELEASE_LOCKOWNER) = (45, 55, 44, 57, 41, 21, 34, 30, 35, 36, 39)
NO_DELEGATION = 0x400


@unittest.skipUnless(os.geteuid() == 0, "NFS clients have reserved ports, which need root")
class Nfs(unittest.TestCase):
    def caller(self, server, source, **how):
        caller = Caller(server.ready["nfs_port"], source, **how)
        self.addCleanup(caller.close)
        return caller

    def client(self, server, name, source, **how):
        client = nfs4.Client(server.ready["nfs_port"], name, source=source, **how)
        self.addCleanup(client.hang_up)
        return client

    def test_states_of_a_client_are_used_by_it_alone(self):
        with weft.serving() as server:
            (server.folder / "file").write_bytes(b"content")
            alice, mallory = self.client(server, "alices", HERS), self.client(server, "mallorys", MALLORYS)
            # For reading first: OPEN_DOWNGRADE goes back to what was asked for.
            for access in [1, 3]:
                status, file, opened, _ = alice.open("data", "file", access | NO_DELEGATION, 0)
                self.assertEqual(status, "ok")
            # mallory has the file open as well: it is not the file that he is refused.
            self.assertEqual(mallory.open("data", "file", 3 | NO_DELEGATION, 0)[0], "ok")
            whole, owner = struct.pack(">QQ", 0, 10), bytes(8) + opaque(b"thread")

            def on(client, op, args):
                return client.on(file, op, args)[1]

            def test_stateid(client):
                reply = client.run(words(TEST_STATEID, 1) + opened)
                client.check(reply, TEST_STATEID)
                reply.word()
                return nfs4.STATUS[reply.word()]

            reply, status = alice.on(file, nfs4.LOCK, words(2, 0) + whole + words(1, 0) + opened + words(0) + owner)
            self.assertEqual(status, "ok")
            locked = reply.take(16)
            zero = bytes(4)
            # By the open and the locks of alice; those that end something last.
            rows = {
                "READ": lambda c: on(c, nfs4.READ, zero + opened[4:] + struct.pack(">QI", 0, 7)),
                "WRITE": lambda c: on(c, nfs4.WRITE, zero + opened[4:] + struct.pack(">QI", 0, 2) + opaque(b"c")),
                "SETATTR": lambda c: on(c, SETATTR, zero + opened[4:] + words(1, 1 << 4) + opaque(struct.pack(">Q", 7))),
                "TEST_STATEID": test_stateid,
                "LOCK of its owner": lambda c: on(c, nfs4.LOCK, words(2, 0) + whole + words(0) + zero + locked[4:] + words(0)),
                "LOCK under its open": lambda c: on(
                    c, nfs4.LOCK, words(2, 0) + struct.pack(">QQ", 20, 1) + words(1, 0) + zero + opened[4:] + words(0) + owner),
                "LOCKU": lambda c: on(c, nfs4.LOCKU, words(2, 0) + zero + locked[4:] + whole),
                "FREE_STATEID": lambda c: self.alone(c, words(FREE_STATEID) + zero + locked[4:], FREE_STATEID),
                "OPEN_DOWNGRADE": lambda c: on(c, OPEN_DOWNGRADE, zero + opened[4:] + words(0, 1, 0)),
                "CLOSE": lambda c: on(c, nfs4.CLOSE, words(0) + zero + opened[4:]),
            }
            for name, act in rows.items():
                with self.subTest(name):
                    if name == "FREE_STATEID":
                        # alice frees what holds no more locks.
                        on(alice, nfs4.LOCKU, words(2, 0) + zero + locked[4:] + struct.pack(">QQ", 0, (1 << 64) - 1))
                    self.assertEqual(act(mallory), "BAD_STATEID")
                    self.assertEqual(act(alice), "ok")
            # Out of a grace period nobody reclaims anything.
            back = words(0, 3, 0) + bytes(8) + opaque(b"o") + words(0, 1, 0)
            self.assertEqual(on(mallory, nfs4.OPEN, back), "NO_GRACE")
            self.assertEqual((server.folder / "file").read_bytes(), b"content")

    @staticmethod
    def alone(client, op, number):
        return client.run(op).expect(number)

    def test_a_delegation_is_returned_by_its_client_alone(self):
        with weft.serving() as server:
            (server.folder / "file").write_bytes(b"content")
            alice, mallory = self.client(server, "alices", HERS), self.client(server, "mallorys", MALLORYS)
            status, file, _, delegation = alice.open("data", "file", 1, 0)
            self.assertEqual(status, "ok")
            self.assertIsNotNone(delegation, "it is delegated")
            self.assertEqual(mallory.on(file, nfs4.DELEGRETURN, bytes(4) + delegation[4:])[1], "BAD_STATEID")
            self.assertEqual(alice.on(file, nfs4.DELEGRETURN, bytes(4) + delegation[4:])[1], "ok")

    def test_a_client_keeps_its_name_its_session_and_its_id(self):
        with weft.serving() as server:
            (server.folder / "file").touch()
            alice = self.client(server, "alices", HERS)
            self.assertEqual(alice.open("data", "file", 3 | NO_DELEGATION, 0)[0], "ok")

            def works():
                return alice.run(words(nfs4.PUTROOTFH)).expect(nfs4.PUTROOTFH)

            # Her name with another verifier, as a client that has restarted: elsewhere it is another client.
            for uid in [0, 1001]:
                other = self.client(server, "alices", MALLORYS, uid=uid, verifier=b"guessed!")
                self.assertNotEqual(other.client, alice.client)
                self.assertEqual(works(), "ok")
            # Another user of her own host.
            exchange = words(nfs4.EXCHANGE_ID) + b"guessed!" + opaque(b"alices") + words(0, 0, 0)
            self.assertEqual(self.caller(server, HERS, uid=1001).compound(1, exchange)[0], "CLID_INUSE")
            # Her name and her verifier: told that she is known, and no more.
            known = words(nfs4.EXCHANGE_ID) + b"alices".ljust(8) + opaque(b"alices") + words(0, 0, 0)
            elsewhere = self.caller(server, MALLORYS)
            status, _ = elsewhere.compound(1, known)
            self.assertEqual(status, "ok")
            channel = words(0, 1 << 20, 1 << 20, 4096, 16, 8, 0)
            create = words(nfs4.CREATE_SESSION) + alice.client + words(2, 2) + channel + channel + words(nfs4.CALLBACK, 1, 0)
            rows = [
                ("CREATE_SESSION elsewhere", elsewhere, create, "STALE_CLIENTID"),
                ("CREATE_SESSION as another user", self.caller(server, HERS, uid=1001), create, "CLID_INUSE"),
                ("DESTROY_CLIENTID elsewhere", elsewhere, words(DESTROY_CLIENTID) + alice.client, "STALE_CLIENTID"),
                ("DESTROY_CLIENTID as another user", self.caller(server, HERS, uid=1001), words(DESTROY_CLIENTID) + alice.client,
                 "WRONG_CRED"),
                ("DESTROY_SESSION elsewhere", elsewhere, words(DESTROY_SESSION) + alice.session, "CONN_NOT_BOUND_TO_SESSION"),
                ("DESTROY_SESSION from a port of anybody", self.caller(server, HERS, reserved=False),
                 words(DESTROY_SESSION) + alice.session, "ACCESS"),
                ("BIND_CONN_TO_SESSION as another user", self.caller(server, HERS, uid=1001),
                 words(BIND_CONN) + alice.session + words(3, 0), "WRONG_CRED"),
                ("BIND_CONN_TO_SESSION from a port of anybody", self.caller(server, HERS, reserved=False),
                 words(BIND_CONN) + alice.session + words(3, 0), "ACCESS"),
                ("SEQUENCE from a port of anybody", self.caller(server, HERS, reserved=False),
                 words(nfs4.SEQUENCE) + alice.session + words(1, 5, 5, 0), "ACCESS"),
                ("SEQUENCE of a guessed session", elsewhere, words(nfs4.SEQUENCE) + os.urandom(16) + words(1, 0, 0, 0), "BADSESSION"),
            ]
            for name, caller, op, wanted in rows:
                with self.subTest(name):
                    self.assertEqual(caller.compound(1, op)[0], wanted)
                    self.assertEqual(works(), "ok")
            # She does all of it herself.
            self.assertEqual(alice.compound(words(BIND_CONN) + alice.session + words(3, 0)).expect(BIND_CONN), "ok")
            self.assertEqual(alice.compound(words(DESTROY_SESSION) + alice.session).expect(DESTROY_SESSION), "ok")

    def test_a_client_of_the_oldest_version_keeps_its_id(self):
        with weft.serving() as server:
            alice, mallory = self.caller(server, HERS), self.caller(server, MALLORYS)

            def name(caller, verifier=b"verifier"):
                where = words(0x4000_0000) + opaque(b"tcp") + opaque(b"192.0.2.1.8.1")
                status, reply = caller.compound(0, words(SETCLIENTID) + verifier + opaque(b"alices") + where + words(1))
                self.assertEqual(status, "ok")
                reply.expect(SETCLIENTID)
                return reply.take(8), reply.take(8)

            # Ids of version 4.0 are all that its operations name, so they cannot be guessed: not from her own, nor from his.
            client, confirm = name(alice)
            near = [bytes(a ^ b for a, b in zip(client, bit)) for bit in [b"\0" * 7 + b"\1", b"\0\0\0\1" + b"\0" * 4]]
            self.assertEqual(mallory.compound(0, words(SETCLIENTID_CONFIRM) + client + b"guessed!")[0], "STALE_CLIENTID")
            self.assertEqual(alice.compound(0, words(SETCLIENTID_CONFIRM) + client + confirm)[0], "ok")
            # Her name, with her verifier and with another: elsewhere it is another client.
            for verifier in [b"verifier", b"guessed!"]:
                other, its = name(mallory, verifier)
                self.assertNotEqual(other, client)
                self.assertEqual(mallory.compound(0, words(SETCLIENTID_CONFIRM) + client + its)[0], "STALE_CLIENTID")
                self.assertEqual(mallory.compound(0, words(SETCLIENTID_CONFIRM) + other + its)[0], "ok")
            for guess in near:
                for op in [words(RENEW) + guess, words(RELEASE_LOCKOWNER) + guess + opaque(b"thread")]:
                    self.assertEqual(mallory.compound(0, op)[0], "STALE_CLIENTID")
            for op in [words(RENEW) + client, words(RELEASE_LOCKOWNER) + client + opaque(b"thread")]:
                self.assertEqual(alice.compound(0, op)[0], "ok")

    def test_locks_of_version_3_are_released_by_their_host_alone(self):
        with weft.serving() as server:
            (server.folder / "file").write_bytes(b"content")
            alice, mallory, bob = (self.caller(server, host) for host in [HERS, MALLORYS, HIS])
            file = alice.lookup(alice.mount(b"/data"), b"file")

            def lock(svid=7):
                return opaque(b"alices") + opaque(file) + opaque(b"owner") + words(svid) + struct.pack(">QQ", 0, 10)

            def nlm(caller, procedure, args):
                reply = caller.call(NLM, 4, procedure, opaque(b"cookie") + args)
                reply.opaque()
                return reply.word()

            def is_locked():
                return nlm(bob, TEST, words(1) + opaque(b"bobs") + opaque(file) + opaque(b"bob") + words(1) + struct.pack(">QQ", 0, 10))

            self.assertEqual(is_locked(), GRANTED)
            self.assertEqual(nlm(alice, NM_LOCK, words(0, 1) + lock() + words(0, 0)), GRANTED)
            self.assertEqual(is_locked(), DENIED)
            attempts = {
                "UNLOCK": lambda caller: nlm(caller, UNLOCK, lock()),
                "CANCEL": lambda caller: nlm(caller, CANCEL, words(0, 1) + lock()),
                "FREE_ALL": lambda caller: caller.call(NLM, 4, FREE_ALL, opaque(b"alices") + words(1)),
                "SM_NOTIFY": lambda caller: caller.call(NSM, 1, 6, opaque(b"alices") + words(99)),
            }
            for name, act in attempts.items():
                with self.subTest(name):
                    act(mallory)
                    self.assertEqual(is_locked(), DENIED)
            attempts["UNLOCK"](alice)
            self.assertEqual(is_locked(), GRANTED)
            # Her host restarts: it says so itself.
            self.assertEqual(nlm(alice, NM_LOCK, words(0, 1) + lock() + words(0, 0)), GRANTED)
            attempts["FREE_ALL"](alice)
            self.assertEqual(is_locked(), GRANTED)

    def test_a_repeated_request_is_answered_for_its_own_host(self):
        with weft.serving() as server:
            (server.folder / "file").touch()
            alice = self.caller(server, HERS)
            remove = opaque(alice.mount(b"/data")) + opaque(b"file")
            self.assertEqual(alice.call(NFS, 3, 12, remove, xid=77).word(), 0)
            # The same bytes with the same number: another host, another user, another kind of port.
            for name, other in [
                ("another host", self.caller(server, MALLORYS)),
                ("another user", self.caller(server, HERS, uid=1001)),
            ]:
                with self.subTest(name):
                    self.assertNotEqual(other.call(NFS, 3, 12, remove, xid=77).word(), 0)
            # The client itself, on another connection, is told again what was done.
            self.assertEqual(self.caller(server, HERS).call(NFS, 3, 12, remove, xid=77).word(), 0)

    def test_a_handle_opens_nothing_that_its_host_may_not_use(self):
        with weft.serving("--export", f"data:net={HERS}/32") as server:
            (server.folder / "file").write_bytes(b"content")
            alice, mallory = self.caller(server, HERS), self.caller(server, MALLORYS)
            root = alice.mount(b"/data")
            file = alice.lookup(root, b"file")
            self.assertIsNone(mallory.mount(b"/data"))
            self.assertIsNotNone(mallory.mount(b"/ram"), "he may use another share")
            for name, procedure, args in [
                ("GETATTR", 1, opaque(file)), ("ACCESS", 4, opaque(file) + words(63)), ("READ", 6, opaque(file) + struct.pack(">QI", 0, 7)),
                ("LOOKUP", 3, opaque(root) + opaque(b"file")), ("READDIR", 16, opaque(root) + bytes(16) + words(4096)),
                ("WRITE", 7, opaque(file) + struct.pack(">QII", 0, 1, 2) + opaque(b"x")),
            ]:
                with self.subTest(name):
                    self.assertNotEqual(mallory.call(NFS, 3, procedure, args).word(), 0)
                    self.assertEqual(alice.call(NFS, 3, procedure, args).word(), 0)
            put = words(nfs4.PUTFH) + opaque(file)
            for minor, caller in [(0, mallory), (0, alice)]:
                status, _ = caller.compound(minor, put, words(nfs4.READ) + bytes(16) + struct.pack(">QI", 0, 7))
                self.assertEqual(status == "ok", caller is alice)
            (server.folder / "locked").touch()
            lock = opaque(b"box") + opaque(alice.lookup(root, b"locked")) + opaque(b"owner") + words(1) + struct.pack(">QQ", 0, 10)
            for caller in [mallory, alice]:
                reply = caller.call(NLM, 4, NM_LOCK, opaque(b"cookie") + words(0, 1) + lock + words(0, 0))
                reply.opaque()
                self.assertEqual(reply.word() == GRANTED, caller is alice)


if __name__ == "__main__":
    unittest.main()
