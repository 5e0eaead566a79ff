"""Clients for the abusers: SMB 3.0.2 over TCP and SMB Direct, NFS/RDMA, NBD, RPC, shared memory. They share no code
with the server, and implement only what an abuser needs.

References: [MS-SMB2] 2.2, [MS-SMBD] 2.2, RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP), RFC 8166 (RPC-over-RDMA), RFC 9289
(RPC-with-TLS), NBD's doc/proto.md.
"""

import array
import fcntl
import hashlib
import hmac
import os
import pathlib
import socket
import ssl
import struct

import spnego
import weft
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

SUCCESS, MORE, SHARING_VIOLATION = 0, 0xC0000016, 0xC0000043
(NEGOTIATE, SESSION_SETUP, TREE_CONNECT, CREATE, READ, WRITE, LOCK, ECHO, QUERY_DIRECTORY) = (0, 1, 3, 5, 8, 9, 10, 13, 14)
DIALECT = 0x0302
SIGNED = 8
RDMA_V1 = 1
MPA = b"MPA ID Req Frame\x40\x01\x00\x00"
# crates/rdma/src/shm: protocol version, and length of its control segment.
SHM_VERSION, SHM_SEGMENT = 2, 362_496


def exactly(peer, count):
    got = b""
    while len(got) < count:
        piece = peer.recv(count - len(got))
        if not piece:
            raise ConnectionResetError("the server has hung up")
        got += piece
    return got


def crc_table():
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        yield crc


CRC_TABLE = list(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def fpdu(number, message):
    """An RDMAP Send (RFC 5040 4.3) in an untagged DDP segment (RFC 5041 4.3) in an FPDU (RFC 5044 4)."""
    segment = bytes([0x41, 0x43]) + bytes(4) + struct.pack(">III", 0, number, 0) + message
    framed = struct.pack(">H", len(segment)) + segment
    framed += bytes(-len(framed) % 4)
    return framed + struct.pack("<I", crc32c(framed))


class Iwarp:
    """A connection over iWARP that sends and receives Sends, and answers nothing else, neither Read nor Terminate."""

    def __init__(self, peer):
        self.peer, self.number = peer, 0
        peer.sendall(MPA)
        answer = exactly(peer, 20)
        exactly(peer, struct.unpack_from(">H", answer, 18)[0])

    def send(self, message):
        self.number += 1
        self.peer.sendall(fpdu(self.number, message))

    def receive(self):
        """The next Send's bytes."""
        while True:
            length = struct.unpack(">H", exactly(self.peer, 2))[0]
            rest = exactly(self.peer, length + -(length + 2) % 4 + 4)
            # Untagged, with one of RDMAP's Send opcodes.
            if rest[0] & 0x80 == 0 and rest[1] & 0xF in (3, 4, 5, 6):
                return rest[18:length]


class SmbDirect(Iwarp):
    """Messages of one fragment. The server may send as many as a log-on needs; after `grant = 0` it gets no more
    credits."""

    def __init__(self, peer, grant=10):
        super().__init__(peer)
        self.grant = grant
        super().send(struct.pack("<HHHHIII", 0x100, 0x100, 0, 10, 1364, 8192, 1 << 20))
        super().receive()

    def send(self, message):
        """A data transfer message ([MS-SMBD] 2.2.3)."""
        head = struct.pack("<HHHHIII", 10, self.grant, 0, 0, 0, 24 if message else 0, len(message))
        super().send(head + bytes(4) + message)

    def begin(self, length):
        """The first fragment of a message of so many bytes, without the others."""
        super().send(struct.pack("<HHHHIIII", 10, 1, 0, 0, length, 24, 8, 0) + bytes(8))

    def receive(self):
        while True:
            message = super().receive()
            offset, length = struct.unpack_from("<II", message, 12)
            if length:
                return message[offset : offset + length]


class Tcp:
    """SMB's framing over TCP."""

    def __init__(self, peer):
        self.peer = peer

    def send(self, message):
        self.peer.sendall(struct.pack(">I", len(message)) + message)

    def receive(self):
        return exactly(self.peer, struct.unpack(">I", exactly(self.peer, 4))[0])


class Refused(OSError):
    """The server answered with an unexpected status."""


class Smb:
    """A client of SMB 3.0.2. It signs if `signs` is set; it never checks a signature."""

    def __init__(self, channel, signs=False):
        self.channel, self.signs, self.key = channel, signs, None
        self.message, self.session, self.tree, self.credits = 0, 0, 0, 1

    def packed(self, command, body, charge=1, credits=1):
        """A request, with the next number."""
        flags = SIGNED if self.key else 0
        header = struct.pack(
            "<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, charge, 0, command, credits, flags, 0, self.message, 0, self.tree,
            self.session, bytes(16),
        )
        self.message += charge
        self.credits -= charge
        if not self.key:
            return header + body
        mac = CMAC(AES(self.key))
        mac.update(header + body)
        return header[:48] + mac.finalize() + body

    def send(self, command, body, **how):
        self.channel.send(self.packed(command, body, **how))

    def ask(self, command, body, *expected, credits=1):
        """The answer, whose status must be among `expected` (SUCCESS by default); waits while it is pending."""
        self.send(command, body, credits=credits)
        while True:
            answer = self.channel.receive()
            status, _, granted = struct.unpack_from("<IHH", answer, 8)
            self.credits += granted
            if status != 0x103:
                break
        self.session, self.status = struct.unpack_from("<Q", answer, 40)[0], status
        if status not in (expected or (SUCCESS,)):
            raise Refused(f"command {command} was answered by 0x{status:08X}")
        return answer

    def negotiate(self):
        self.ask(NEGOTIATE, struct.pack("<HHHHI16sQHH", 36, 2, 1, 0, 0, os.urandom(16), 0, 0x0300, DIALECT))

    def log_on(self, password=weft.PASSWORD):
        proof = spnego.client(weft.USER, password, hostname="127.0.0.1", service="cifs", protocol="ntlm")
        token = proof.step()
        while True:
            body = struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token
            answer = self.ask(SESSION_SETUP, body, SUCCESS, MORE)
            at, length = struct.unpack_from("<HH", answer, 68)
            if self.status == SUCCESS:
                break
            token = proof.step(answer[at : at + length])
        if self.signs:
            # [MS-SMB2] 3.1.4.2: SP800-108 in counter mode.
            fixed = b"SMB2AESCMAC\0\0SmbSign\0" + struct.pack(">I", 128)
            secret = proof.session_key[:16].ljust(16, b"\0")
            self.key = hmac.new(secret, struct.pack(">I", 1) + fixed, hashlib.sha256).digest()[:16]

    def connect(self, share):
        path = f"\\\\127.0.0.1\\{share}".encode("utf-16-le")
        answer = self.ask(TREE_CONNECT, struct.pack("<HHHH", 9, 0, 72, len(path)) + path, credits=64)
        self.tree = struct.unpack_from("<I", answer, 36)[0]

    def open(self, name, access, share, disposition=3, options=0x40):
        """Opens with FILE_OPEN_IF by default. Returns False if another open's share mode denies it."""
        path = name.encode("utf-16-le")
        head = struct.pack("<HBBIQQIIIIIHHII", 57, 0, 0, 2, 0, 0, access, 0, share, disposition, options, 120, len(path), 0, 0)
        answer = self.ask(CREATE, head + path, SUCCESS, SHARING_VIOLATION, credits=512)
        self.file = answer[128:144]
        return self.status == SUCCESS

    def lock(self, offset, length):
        """Requests an exclusive lock, without waiting."""
        self.ask(LOCK, struct.pack("<HHI16sQQII", 48, 1, 0, self.file, offset, length, 0x12, 0))

    def read(self, offset, length, descriptor=b""):
        """A READ request; by RDMA if there is a descriptor."""
        channel = (RDMA_V1, 0, 112, len(descriptor)) if descriptor else (0, 0, 0, 0)
        body = struct.pack("<HBBIQ16sIIIHH", 49, 0x50, 0, length, offset, self.file, 0, *channel) + (descriptor or b"\0")
        return self.packed(READ, body, charge=-(-length // 65536), credits=-(-length // 65536))

    def write(self, offset, length, descriptor):
        """The request of a WRITE whose data the server is to fetch."""
        body = struct.pack("<HHIQ16sIIHHI", 49, 0, 0, offset, self.file, RDMA_V1, length, 112, len(descriptor), 0)
        return self.packed(WRITE, body + descriptor, charge=-(-length // 65536), credits=-(-length // 65536))


def descriptor(length):
    """A descriptor of client memory that does not exist ([MS-SMBD] 2.2.3.1)."""
    return struct.pack("<QII", 0, 0x1234_5678, length)


def rpc_call(program, version, procedure, flavor=0):
    """A call without credentials or arguments, as one record."""
    return struct.pack(">IIIIIIIIIII", 0x80000028, 7, 0, 2, program, version, procedure, flavor, 0, 0, 0)


def rdma_call(number, reads=0, reply=0):
    """A NULL call of NFS by RPC-over-RDMA (RFC 8166 4): inline, or in `reads` bytes for the server to fetch; offers
    `reply` bytes of memory that does not exist for a long answer."""
    call = rpc_call(100003, 3, 0)[4:]
    procedure = 1 if reads else 0
    head = struct.pack(">IIII", number, 1, 4, procedure)
    # One segment each: position, handle, length, offset.
    head += struct.pack(">IIIIQI", 1, 0, 0x1234, reads, 0, 0) if reads else struct.pack(">I", 0)
    head += struct.pack(">I", 0)
    head += struct.pack(">IIIIQ", 1, 1, 0x5678, reply, 0) if reply else struct.pack(">I", 0)
    return head if reads else head + call


def nbd_start(export):
    """The client's messages until it has the export; no other message of the server needs an answer than its
    greeting."""
    return struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, len(export)) + export


def nbd_request(kind, number, offset, length):
    return struct.pack(">IHHQQI", 0x25609513, 0, kind, number, offset, length)


def start_tls_of_nfs(peer):
    """RFC 9289 4.1."""
    peer.sendall(rpc_call(100003, 3, 0, flavor=7))
    if b"STARTTLS" not in exactly(peer, 4 + 32):
        raise AssertionError("the server does not offer TLS")


def start_tls_of_nbd(peer):
    exactly(peer, 18)
    peer.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 5, 0))
    if struct.unpack_from(">I", exactly(peer, 20), 12)[0] != 1:
        raise AssertionError("the server does not offer TLS")


def tls_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["sunrpc"])
    return context


def client_hello():
    """The first bytes of a handshake."""
    out = ssl.MemoryBIO()
    talk = tls_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    try:
        talk.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def shm_connect(port):
    """A connection to a port's shared-memory socket."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(2)
    try:
        peer.connect(str(pathlib.Path(os.environ["XDG_RUNTIME_DIR"]) / "weft" / f"rdma-{port}.sock"))
    except OSError:
        peer.close()
        raise
    return peer


def shm_request(peer):
    """A whole request with the descriptors that it passes: the control segment and a bell. Returns our end of the
    bell."""
    segment = os.memfd_create("abuse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    ours, theirs = socket.socketpair()
    try:
        os.ftruncate(segment, SHM_SEGMENT)
        # F_ADD_SEALS, F_SEAL_SHRINK.
        fcntl.fcntl(segment, 1033, 2)
        message = b"weft-shm" + struct.pack("<IIHHI", SHM_VERSION, 1, 8, 8, 0)
        passed = array.array("i", [segment, theirs.fileno()])
        peer.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    finally:
        os.close(segment)
        theirs.close()
    return ours
