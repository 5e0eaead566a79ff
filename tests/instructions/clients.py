"""Clients that send batches of READs and WRITEs and wait for all answers. They are the small clients of the interop tests, written
from the specifications alone; another library would decide for itself what it sends together."""

import http.client
import itertools
import os
import random
import socket
import struct
import time

from program import weft

import disk
import nfs4
import oncrpc
import smb3
from oncrpc import opaque, words
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SIZE = 8 << 10
FILE_BYTES = 4 << 20
NAME = "file.bin"
# Clients of NFSv4.1 with one name would be one client.
NUMBERS = itertools.count()


def offsets():
    """Places in the file, each time the same, and none twice in a row."""
    places = list(range(0, FILE_BYTES, SIZE))
    random.Random(20261129).shuffle(places)
    return itertools.cycle(places)


def write_file(server, name=NAME, size=FILE_BYTES):
    """Makes a file that is read and written."""
    file = Smb(server, name=name).file
    for offset in range(0, size, 64 << 10):
        file.write(os.urandom(min(64 << 10, size - offset)), offset)


class GmacLink(smb3.Link):
    """A connection whose messages are signed with AES-GMAC ([MS-SMB2] 3.1.4.1), as Windows 11 does it."""

    AES_GMAC = 2

    def negotiation(self, ciphers=()):
        return super().negotiation(ciphers, signings=(self.AES_GMAC,))

    def mac(self, key, message):
        # MessageId, and the role: 0 is the client.
        nonce = message[24:32] + bytes(4)
        return AESGCM(key).encrypt(nonce, b"", message[:48] + bytes(16) + message[64:])


class Smb:
    """One open file over SMB 3.1.1. `signed`: its READs and WRITEs are."""

    def __init__(self, server, signed=False, name=NAME):
        self.link = GmacLink(server.ready["smb_port"])
        session = self.link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree("ram")
        self.file = tree.open(name)
        self.to = {"session": session.number, "tree": tree.number, "key": session.key if signed else None}
        self.offsets, self.payload = offsets(), os.urandom(SIZE)

    def read(self, count):
        def body():
            return struct.pack("<HBBIQ16sIIIHHx", 49, 80, 0, SIZE, next(self.offsets), self.file.id, 0, 0, 0, 0, 0)

        for answer in self.exchange(smb3.READ, body, count):
            if struct.unpack_from("<I", answer.body, 4)[0] != SIZE:
                raise SystemExit("a READ was answered with another length")

    def write(self, count):
        def body():
            head = struct.pack("<HHIQ16sIIHHI", 49, 112, SIZE, next(self.offsets), self.file.id, 0, 0, 0, 0, 0)
            return head + self.payload

        for answer in self.exchange(smb3.WRITE, body, count):
            if struct.unpack_from("<I", answer.body, 4)[0] != SIZE:
                raise SystemExit("a WRITE was answered with another length")

    def exchange(self, command, body, count):
        """Sends so many requests with one call; their answers."""
        frames = [self.link.frame(command, body(), **self.to) for _ in range(count)]
        self.link.socket.sendall(b"".join(frame for _, frame in frames))
        answers = [self.link.answer(number) for number, _ in frames]
        for answer in answers:
            if answer.status != 0:
                raise smb3.Refused(answer.status)
        return answers


class Nfs3(oncrpc.Connection):
    """A file over NFSv3 (RFC 1813), found by the MOUNT protocol."""

    READ, WRITE = 6, 7
    UNSTABLE = 0

    def __init__(self, server):
        with oncrpc.Connection(server.ready["mountd_port"]) as mount:
            root = mount.mount(b"/ram")
        super().__init__(server.ready["nfs_port"])
        self.handle = opaque(self.lookup(root, NAME.encode()))
        self.offsets, self.payload = offsets(), os.urandom(SIZE)

    def together(self, procedure, arguments):
        """The results of calls that are sent at once."""
        calls = [oncrpc.message(next(self.xids), oncrpc.NFS, 3, procedure, one, self.credential) for one in arguments]
        self.socket.sendall(b"".join(map(oncrpc.record, calls)))
        for _ in calls:
            mark, = struct.unpack(">I", self.receive(4))
            reply = oncrpc.Reply(self.receive(mark & 0x7FFF_FFFF))
            reply.take(4), reply.accepted()
            if status := reply.word():
                raise SystemExit(f"NFS answered {nfs4.STATUS.get(status, status)}")
            yield reply

    def read(self, count):
        arguments = [self.handle + struct.pack(">QI", next(self.offsets), SIZE) for _ in range(count)]
        for reply in self.together(self.READ, arguments):
            # The attributes that follow the status.
            if reply.word():
                reply.take(84)
            if reply.word() != SIZE:
                raise SystemExit("a READ was answered with another length")

    def write(self, count):
        payload = opaque(self.payload)
        arguments = [self.handle + struct.pack(">QII", next(self.offsets), SIZE, self.UNSTABLE) + payload for _ in range(count)]
        list(self.together(self.WRITE, arguments))


class Nfs41:
    """An open file over NFSv4.1 (RFC 8881): each READ is a COMPOUND of SEQUENCE, PUTFH and READ in a slot of its own."""

    SLOTS = 8
    READ_ACCESS = 1

    def __init__(self, server):
        self.client = nfs4.Client(server.ready["nfs_port"], f"instructions {next(NUMBERS)}")
        status, self.handle, self.state, _ = self.client.open("ram", NAME, self.READ_ACCESS, 0)
        if status != "ok":
            raise SystemExit(f"OPEN: {status}")
        # `run` of the client has used the first slot.
        self.sequences = [self.client.sequence] + [0] * (self.SLOTS - 1)
        self.offsets = offsets()

    def call(self, slot):
        self.sequences[slot] += 1
        sequence = words(nfs4.SEQUENCE) + self.client.session + words(self.sequences[slot], slot, self.SLOTS - 1, 0)
        read = words(nfs4.READ) + self.state + struct.pack(">QI", next(self.offsets), SIZE)
        return self.client.message(sequence, words(nfs4.PUTFH) + opaque(self.handle), read)

    def read(self, count):
        if count > self.SLOTS:
            raise SystemExit("more READs at once than the session has slots")
        self.client.socket.sendall(b"".join(oncrpc.record(call) for call in map(self.call, range(count))))
        for _ in range(count):
            reply = self.client.results()
            nfs4.Client.check(reply, nfs4.SEQUENCE)
            reply.take(16 + 5 * 4)
            nfs4.Client.check(reply, nfs4.PUTFH)
            nfs4.Client.check(reply, nfs4.READ)
            reply.word()
            if reply.word() != SIZE:
                raise SystemExit("a READ was answered with another length")


class Nbd:
    """A connection to a volume."""

    def __init__(self, server):
        self.disk = disk.Disk(server.ready["nbd_port"], server.VOLUME)
        self.offsets, self.payload = offsets(), os.urandom(SIZE)

    def write(self, count):
        for _ in range(count):
            self.disk.write(next(self.offsets), self.payload)


class Admin:
    """Prometheus and the status page: one connection that asks for the same as they do."""

    PATHS = ("/metrics", "/api/v1/status", "/api/v1/latency")
    # A status is kept for a second: each round is to cause a new one.
    PAUSE = 1.1

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("localhost")
        self.connection.sock = socket.socket(socket.AF_UNIX)
        self.connection.sock.connect(str(server.admin))

    def round(self, count):
        for _ in range(count):
            time.sleep(self.PAUSE)
            for path in self.PATHS:
                self.connection.request("GET", path)
                answer = self.connection.getresponse()
                if answer.status != 200 or not answer.read():
                    raise SystemExit(f"{path}: {answer.status}")
