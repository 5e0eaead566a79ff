"""How long a server keeps connections that send nothing, or only the beginning of a message: on every port."""

import contextlib
import os
import pathlib
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

import disk
import oncrpc
import weft
from test_nbd import make_certificates

# A frame that asks for a connection (RFC 5044 7.1), with CRC, and the length of its answer.
MPA = b"MPA ID Req Frame\x40\x01\x00\x00", 20
# NULL of NFS under AUTH_TLS, which asks for TLS (RFC 9289 4.1).
RPC_TLS = oncrpc.record(oncrpc.message(1, oncrpc.NFS, 3, 0, credential=oncrpc.words(oncrpc.AUTH_TLS, 0))), 36
# The same with the handshake: the beginning goes under TLS, or is the first half of a TLS record.
UNDER_TLS, HALF_A_RECORD = "under TLS", "half a record of TLS"
# The client's flags and NBD_OPT_STARTTLS, acknowledged after the greeting.
NBD_TLS = disk.FLAGS + disk.option(disk.OPT_STARTTLS), 18 + 20

# The port, the exchange before, the message that is begun, and the seconds after which the server hangs up:
# docs/security.md.
CASES = [
    ("smb_port", None, b"", 30),
    ("smb_port", None, b"\0\0\0", 10),
    ("smbd_port", None, b"", 10),
    ("smbd_port", None, b"MPA", 10),
    ("smbd_port", MPA, b"", 5),
    ("smbd_port", MPA, b"\0\x20\x41", 5),
    ("nfs_port", None, b"", 30),
    ("nfs_port", None, b"\x80\0\0", 10),
    ("nfs_rdma_port", None, b"", 10),
    ("nfs_rdma_port", None, b"MPA", 10),
    ("nfs_rdma_port", MPA, b"", 30),
    ("nfs_rdma_port", MPA, b"\0\x20\x41", 30),
    ("mountd_port", None, b"", 30),
    ("mountd_port", None, b"\x80\0\0", 10),
    ("rpcbind_port", None, b"", 30),
    ("rpcbind_port", None, b"\x80\0\0", 10),
    ("nbd_port", None, b"", 30),
    ("nbd_port", None, b"\0\0\0", 30),
    # With TLS, the first call is examined before anything else.
    ("tls_nfs_port", None, b"", 30),
    ("tls_nfs_port", None, b"\x80\0\0", 10),
    ("tls_nfs_port", None, RPC_TLS[0][:43], 10),
    ("tls_nfs_port", RPC_TLS, b"", 10),
    ("tls_nfs_port", RPC_TLS, b"\x16\x03\x01", 10),
    ("tls_nfs_port", UNDER_TLS, b"", 30),
    ("tls_nfs_port", UNDER_TLS, b"\x80\0\0", 10),
    ("tls_nfs_port", UNDER_TLS, HALF_A_RECORD, 10),
    ("tls_nbd_port", None, b"", 30),
    ("tls_nbd_port", None, b"\0\0\0", 30),
    ("tls_nbd_port", NBD_TLS, b"", 30),
    ("tls_nbd_port", NBD_TLS, b"\x16\x03\x01", 30),
]
# Deadlines are checked every five seconds, for a begun message from the first check on; the host may also be busy.
LATER = 15


def shake_hands(peer):
    """Begins TLS on a connection; returns the data to send next, and the session that encrypts it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["sunrpc"])
    received, unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(received, unsent)
    while True:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            peer.sendall(unsent.read())
            received.write(peer.recv(1 << 16))
        else:
            peer.sendall(unsent.read())
            return unsent, session


class Deadlines(unittest.TestCase):
    def say(self, peer, said, length):
        """Sends a message and receives so many bytes of its answer."""
        peer.sendall(said)
        with peer.makefile("rb", buffering=0) as answer:
            while length and (some := answer.read(length)):
                length -= len(some)
        self.assertEqual(length, 0, said)

    @contextlib.contextmanager
    def serving(self):
        """The ports of two servers with all services, one of them with TLS where supported."""
        with tempfile.TemporaryDirectory(prefix="weft-deadlines-") as work, contextlib.ExitStack() as stack:
            work = pathlib.Path(work)
            make_certificates(work)
            ports, tls = {}, []
            for service in ["nfs", "nbd"]:
                tls += [f"--{service}-tls-cert", work / "server-cert.pem", f"--{service}-tls-key", work / "server-key.pem"]
            for prefix, options in [("", []), ("tls_", tls)]:
                state = ["--state-dir", work / f"{prefix}state"]
                weft.run(weft.WEFT, "volume", "create", "vol", "--ram", "--size", "1M", *state)
                options += ["--rpcbind-port", 0, "--volume", "vol", "--nbd-port", 0, *state]
                server = stack.enter_context(weft.serving(*options))
                ports |= {prefix + name: port for name, port in server.ready.items() if name.endswith("_port")}
            yield ports

    def test_who_says_nothing_or_no_more_than_a_beginning_is_let_go(self):
        with self.serving() as ports, contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
            self.assertLessEqual({name for name in ports if not name.startswith("tls_")}, {port for port, *_ in CASES})
            begun = time.monotonic()
            for case in CASES:
                port, before, beginning, _ = case
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", ports[port]), timeout=10))
                if before == UNDER_TLS:
                    self.say(peer, *RPC_TLS)
                    shaken, session = shake_hands(peer)
                    if beginning == HALF_A_RECORD:
                        session.write(bytes(64))
                        record = shaken.read()
                        peer.sendall(record[: len(record) // 2])
                    elif beginning:
                        session.write(beginning)
                        peer.sendall(shaken.read())
                else:
                    if before:
                        self.say(peer, *before)
                    peer.sendall(beginning)
                waiting.register(peer, selectors.EVENT_READ, case)
            kept, last = {}, max(limit for *_, limit in CASES) + LATER
            while waiting.get_map() and time.monotonic() < begun + last:
                for key, _ in waiting.select(1):
                    with contextlib.suppress(ConnectionResetError):
                        if key.fileobj.recv(4096):
                            continue
                    kept[key.data] = time.monotonic() - begun
                    waiting.unregister(key.fileobj)
            for case in CASES:
                *_, limit = case
                with self.subTest(case=case):
                    self.assertIn(case, kept, "it is still there")
                    self.assertLess(kept[case], limit + LATER)
                    # Enough time for clients that do send something.
                    self.assertGreater(kept[case], limit - 1)


@unittest.skipUnless(os.geteuid() == 0, "needs root for networks of its own")
class Vanished(unittest.TestCase):
    """An SMB client that vanished silently: its connection is idle, and its file is open and denied to others."""

    # `SILENCE` of the server; TCP's own probes take 60 s.
    SILENCE, LATER = 30, 15
    CLIENT = """
import sys
from impacket.smbconnection import SMBConnection
peer = SMBConnection(sys.argv[1], sys.argv[1], sess_port=int(sys.argv[2]))
peer.login(sys.argv[3], sys.argv[4])
peer.createFile(peer.connectTree("data"), "held", shareMode=0)
print("open", flush=True)
sys.stdin.read()
"""

    def test_its_open_is_gone_in_time(self):
        self.enterContext(weft.own_network())
        server = self.enterContext(weft.serving(listen="0.0.0.0"))
        elsewhere = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(elsewhere.communicate)
        elsewhere.stdout.readline()
        there = ["nsenter", "--net", "--target", str(elsewhere.pid)]
        weft.run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(elsewhere.pid))
        for command in (["ip", "address", "add", "198.51.100.1/24", "dev", "here"], ["ip", "link", "set", "here", "up"],
                        [*there, "ip", "address", "add", "198.51.100.2/24", "dev", "there"], [*there, "ip", "link", "set", "there", "up"]):
            weft.run(*command)
        client = subprocess.Popen(
            [*there, sys.executable, "-c", self.CLIENT, "198.51.100.1", str(server.smb_port), weft.USER, weft.PASSWORD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(client.communicate)
        self.assertEqual(client.stdout.readline(), "open\n")
        # From now on nothing from the client arrives, although its link is up: the server receives no notice.
        weft.run(*there, "ip", "route", "add", "blackhole", "198.51.100.1/32")
        begun = time.monotonic()
        while "NT_STATUS_SHARING_VIOLATION" in (said := weft.smbclient(server, "get held /dev/null", check=False)):
            self.assertLess(time.monotonic() - begun, self.SILENCE + self.LATER, said)
            time.sleep(0.2)
        self.assertNotIn("NT_STATUS", said)
        self.assertGreater(time.monotonic() - begun, self.SILENCE / 2, "a slow client is not disconnected")


if __name__ == "__main__":
    unittest.main()
