"""An NBD client that records which of its writes were answered: a crash must not lose those."""

import collections
import socket
import struct
import threading

OPT_EXPORT_NAME, OPT_LIST, OPT_STARTTLS, OPT_GO = 1, 3, 5, 7
REP_ACK, REP_INFO = 1, 3
READ, WRITE, DISC, FLUSH = 0, 1, 2, 3
FUA = 1
# The client's: fixed newstyle, no zeroes.
FLAGS = struct.pack(">I", 3)


def option(kind, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", kind, len(data)) + data


def request(command, cookie, offset, length, flags=0):
    return struct.pack(">IHHQQI", 0x2560_9513, flags, command, cookie, offset, length)


def start(export):
    """All that a client sends until it has an export."""
    return FLAGS + option(OPT_EXPORT_NAME, export)


def begun_write(export):
    """The same, and a WRITE of 8 MiB without most of its data."""
    return start(export) + request(WRITE, 1, 0, 8 << 20) + bytes(1000)


class Disk:
    """A connection to an export. Writes may overlap; all calls must come from one thread."""

    def __init__(self, where, name):
        """`where`: a TCP port of loopback, or the path of a Unix socket."""
        if isinstance(where, int):
            self.socket = socket.create_connection(("127.0.0.1", where))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(where))
        if self.take(16) != b"NBDMAGICIHAVEOPT":
            raise AssertionError("no NBD server")
        self.take(2)
        data = struct.pack(">I", len(name)) + name.encode() + struct.pack(">H", 0)
        self.socket.sendall(FLAGS + option(OPT_GO, data))
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            body = self.take(length)
            if kind == REP_INFO and struct.unpack(">H", body[:2]) == (0,):
                self.size = struct.unpack(">Q", body[2:10])[0]
            if kind == REP_ACK:
                break
            if kind & 0x8000_0000:
                raise AssertionError(f"the server refuses {name}: {body[:200]!r}")
        self.cookie = 0

    def take(self, length):
        data = bytearray()
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("the server hung up")
            data += piece
        return bytes(data)

    def send(self, command, offset=0, length=0, data=b"", flags=0):
        self.cookie += 1
        self.socket.sendall(request(command, self.cookie, offset, length or len(data), flags) + data)
        return self.cookie

    def answer(self):
        """The cookie of the next request that is answered, and its error."""
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        if magic != 0x6744_6698:
            raise AssertionError(f"{magic:#x} is not a simple reply")
        return cookie, error

    def call(self, *arguments, **more):
        cookie = self.send(*arguments, **more)
        answered, error = self.answer()
        assert answered == cookie
        if error:
            raise OSError(error, "the server refused the request")

    def write(self, offset, data):
        self.call(WRITE, offset, data=data)

    def flush(self):
        self.call(FLUSH)

    def read(self, offset, length):
        self.call(READ, offset, length)
        return self.take(length)

    def close(self):
        try:
            self.send(DISC)
        except OSError:
            pass
        self.socket.close()


class Writer(threading.Thread):
    """Writes versions of blocks, several at a time, until the server is gone. A block repeats its number and its
    version, so that a torn write shows."""

    BLOCK = 4096

    def __init__(self, disk, blocks, depth=8, seed=1):
        super().__init__(daemon=True)
        self.disk, self.blocks, self.depth = disk, blocks, depth
        self.chance = seed
        self.sent = collections.defaultdict(list)
        self.acknowledged = {}
        self.count = 0
        self.enough = threading.Event()
        self.wanted = 0
        self.stopping = False
        self.failure = None

    @classmethod
    def content(cls, block, version):
        return struct.pack("<QQ", block, version) * (cls.BLOCK // 16)

    def pick(self):
        self.chance = (self.chance * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.chance >> 33) % self.blocks

    def run(self):
        underway, version = {}, 0
        try:
            while not self.stopping or underway:
                while len(underway) < self.depth and not self.stopping:
                    block = self.pick()
                    # One write of a block at a time, so that the last one is known.
                    if any(block == other for other, _ in underway.values()):
                        continue
                    version += 1
                    self.sent[block].append(version)
                    data = self.content(block, version)
                    underway[self.disk.send(WRITE, block * self.BLOCK, data=data)] = (block, version)
                cookie, error = self.disk.answer()
                block, version_of = underway.pop(cookie)
                if error:
                    raise AssertionError(f"a write failed: {error}")
                self.acknowledged[block] = version_of
                self.count += 1
                if self.count >= self.wanted:
                    self.enough.set()
        except (ConnectionError, OSError):
            # The server was killed, as the test intends.
            pass
        except AssertionError as failure:
            self.failure = failure
        self.enough.set()

    def after(self, writes):
        """Waits until so many more writes were answered."""
        self.wanted = self.count + writes
        self.enough.clear()
        if not self.enough.wait(timeout=120):
            raise AssertionError(f"{self.count} writes were answered, {self.wanted} wanted")
        if self.failure:
            raise self.failure

    def stop(self):
        self.stopping = True
        self.join(timeout=60)
        if self.failure:
            raise self.failure

    def lost(self, disk):
        """Acknowledged data that `disk` lacks: each block must hold the version that was last answered, or a later
        one."""
        lost = []
        for block in range(self.blocks):
            held = disk.read(block * self.BLOCK, self.BLOCK)
            number, version = struct.unpack("<QQ", held[:16])
            if held == bytes(self.BLOCK):
                version = 0
            elif held != self.content(block, version) or number != block:
                lost.append(f"block {block} is torn or belongs to another block")
                continue
            promised = self.acknowledged.get(block, 0)
            if version < promised or (version and version not in self.sent[block]):
                lost.append(f"block {block}: version {version} of {promised}")
        return lost
