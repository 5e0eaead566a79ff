"""Clients for the abusers: SMB 3.0.2 over TCP and SMB Direct, NFS/RDMA, NBD, RPC, shared memory. They share no code
with the server, and implement only what an abuser needs beyond smb3 and oncrpc.

References: [MS-SMBD] 2.2, RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP), RFC 8166 (RPC-over-RDMA), RFC 9289
(RPC-with-TLS), NBD's doc/proto.md.
"""

import array
import fcntl
import os
import pathlib
import socket
import ssl
import struct

import disk
import oncrpc
import smb3

# The newest one without a hash of the log-on: its TREE_CONNECT need not be signed.
DIALECT = 0x0302
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


class Smb(smb3.Link):
    """Over a connected socket."""

    def __init__(self, peer):
        self.begin(peer, dialect=DIALECT)


class SmbOverRdma(smb3.Link):
    def __init__(self, peer, grant):
        self.channel = SmbDirect(peer, grant)
        self.begin(peer, dialect=DIALECT)

    def transmit(self, message):
        self.channel.send(message)

    def take(self, until):
        return self.channel.receive()


def reading(file, length):
    """The body of a READ whose data the server is to place in client memory."""
    head = struct.pack("<HBBIQ16sIIIHH", 49, 80, 0, length, 0, file.id, 0, RDMA_V1, 0, 112, 16)
    return head + descriptor(length)


def writing(file, length):
    """The body of a WRITE whose data the server is to fetch."""
    return struct.pack("<HHIQ16sIIHHI", 49, 0, 0, 0, file.id, RDMA_V1, length, 112, 16, 0) + descriptor(length)


def descriptor(length):
    """A descriptor of client memory that does not exist ([MS-SMBD] 2.2.3.1)."""
    return struct.pack("<QII", 0, 0x1234_5678, length)


def rpc_call(program, version, procedure, flavor=0):
    """A call without credentials or arguments, as one record."""
    return oncrpc.record(oncrpc.message(7, program, version, procedure, credential=oncrpc.words(flavor, 0)))


def rdma_call(number, reads=0, reply=0):
    """A NULL call of NFS by RPC-over-RDMA (RFC 8166 4): inline, or in `reads` bytes for the server to fetch; offers
    `reply` bytes of memory that does not exist for a long answer."""
    call = oncrpc.message(7, oncrpc.NFS, 3, 0)
    procedure = 1 if reads else 0
    head = struct.pack(">IIII", number, 1, 4, procedure)
    # One segment each: position, handle, length, offset.
    head += struct.pack(">IIIIQI", 1, 0, 0x1234, reads, 0, 0) if reads else struct.pack(">I", 0)
    head += struct.pack(">I", 0)
    head += struct.pack(">IIIIQ", 1, 1, 0x5678, reply, 0) if reply else struct.pack(">I", 0)
    return head if reads else head + call


def start_tls_of_nfs(peer):
    """RFC 9289 4.1."""
    peer.sendall(rpc_call(oncrpc.NFS, 3, 0, flavor=oncrpc.AUTH_TLS))
    if b"STARTTLS" not in exactly(peer, 4 + 32):
        raise AssertionError("the server does not offer TLS")


def start_tls_of_nbd(peer):
    exactly(peer, 18)
    peer.sendall(disk.FLAGS + disk.option(disk.OPT_STARTTLS))
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
