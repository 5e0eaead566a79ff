"""A small client of SMB 2.1 to 3.1.1 for tests that need every byte: it chooses its ClientGuid and its address, signs with
whatever key it is given, and uses ids that are not its own. It was written from [MS-SMB2] alone and shares no code with the
server; pyspnego makes its NTLM proofs. `Link` waits for its answers, `AsyncLink` is for many connections in one process."""

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import struct
import sys
import time

import weft

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    import spnego
    from cryptography.hazmat.primitives.ciphers import algorithms
    from cryptography.hazmat.primitives.cmac import CMAC
except ImportError:
    spnego = None

(NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_CONNECT, TREE_DISCONNECT, CREATE, CLOSE, FLUSH, READ, WRITE, LOCK, IOCTL, CANCEL, ECHO,
 QUERY_DIRECTORY, CHANGE_NOTIFY, QUERY_INFO, SET_INFO, OPLOCK_BREAK) = range(19)
PENDING, MORE_PROCESSING = 0x103, 0xC0000016
STATUS = {
    0: "ok", 0x103: "PENDING", 0x10B: "NOTIFY_CLEANUP", 0x10C: "NOTIFY_ENUM_DIR", 0xC0000001: "UNSUCCESSFUL", 0xC000000D: "INVALID_PARAMETER",
    0xC0000022: "ACCESS_DENIED", 0xC0000034: "OBJECT_NAME_NOT_FOUND", 0xC0000043: "SHARING_VIOLATION", 0xC0000054: "FILE_LOCK_CONFLICT",
    0xC0000055: "LOCK_NOT_GRANTED", 0xC000006D: "LOGON_FAILURE", 0xC000011F: "TOO_MANY_OPENED_FILES",
    0xC00000BB: "NOT_SUPPORTED", 0xC00000CC: "BAD_NETWORK_NAME", 0xC00000C9: "NETWORK_NAME_DELETED", 0xC00000D0: "REQUEST_NOT_ACCEPTED",
    0xC0000120: "CANCELLED", 0xC0000128: "FILE_CLOSED", 0xC0000184: "INVALID_DEVICE_STATE", 0xC0000203: "USER_SESSION_DELETED",
    0xC0000225: "NOT_FOUND", 0xC000022D: "RETRY", 0xC0000465: "INVALID_TOKEN", 0xC0000467: "FILE_NOT_AVAILABLE", 0xC000020C: "CONNECTION_DISCONNECTED",
    0xC000022A: "DUPLICATE_OBJECTID",
}
SIGNED, ASYNC, REPLAY = 0x8, 0x2, 0x20000000
BINDING = 1
NONE, BATCH, LEASE = 0, 9, 0xFF
R, RH, RWH = 1, 3, 7
OPEN, OPEN_IF, OVERWRITE = 1, 3, 4
DIRECTORY, NO_DIRECTORY = 1, 0x40
GENERIC_READ, GENERIC_WRITE, DELETE = 0x80000000, 0x40000000, 0x10000
ALL_SHARED = 7
AES_128_CCM, AES_128_GCM, AES_256_GCM = 1, 2, 4


class Refused(Exception):
    def __init__(self, status):
        self.status = STATUS.get(status, hex(status))
        super().__init__(self.status)


class HungUp(ConnectionError):
    """The server has closed the connection."""


def framed(message):
    """As TCP carries it (2.1)."""
    return len(message).to_bytes(4, "big") + message


def proof_of(user, password):
    return spnego.client(user, password, hostname="127.0.0.1", service="cifs", protocol="ntlm")


def derived(key, label, context):
    """[SP800-108] 5.1 with HMAC-SHA256, for a key of 128 bits ([MS-SMB2] 3.1.4.2)."""
    return hmac.new(key, struct.pack(">I", 1) + label + b"\0" + context + struct.pack(">I", 128), "sha256").digest()[:16]


def contexts(named):
    """Create contexts in a row (2.2.13.2)."""
    out = b""
    for at, (name, data) in enumerate(named):
        start = 16 + len(name) + -len(name) % 8
        one = struct.pack("<IHHHHI", 0, 16, len(name), 0, start, len(data)) + name.ljust(start - 16, b"\0") + data
        if at + 1 < len(named):
            one = one.ljust(len(one) + -len(one) % 8, b"\0")
            one = struct.pack("<I", len(one)) + one[4:]
        out += one
    return out


def durable():
    return b"DHnQ", bytes(16)


def durable_again(file):
    return b"DHnC", file


def durable2(guid, persistent=False, timeout=60_000):
    return b"DH2Q", struct.pack("<II8x", timeout, 2 if persistent else 0) + guid


def durable2_again(file, guid, persistent=False):
    return b"DH2C", file + guid + struct.pack("<I", 2 if persistent else 0)


def lease(key, state):
    return b"RqLs", key + struct.pack("<IIQ16sHH", state, 0, 0, bytes(16), 0, 0)


def application(guid):
    name = bytes.fromhex("45bca66aefa7f74a9008fa462e144d74")
    return name, struct.pack("<HH", 20, 0) + guid


def as_of(seconds):
    """The state of the share at this Unix time (2.2.13.2.7)."""
    return b"TWrp", struct.pack("<Q", (seconds + 11_644_473_600) * 10_000_000)


# The bodies of requests.

def setting_up(token, flags=0, previous=0):
    return struct.pack("<HBBIIHHQ", 25, flags, 1, 1, 0, 88, len(token), previous) + token


def entering(share):
    path = rf"\\127.0.0.1\{share}".encode("utf-16-le")
    return struct.pack("<HHHH", 9, 0, 72, len(path)) + path


def wish(name, access=GENERIC_READ | GENERIC_WRITE, how=OPEN_IF, options=0, oplock=NONE, asks=(), sharing=ALL_SHARED):
    name, extra = name.encode("utf-16-le"), contexts(asks)
    padded = name.ljust(len(name) + -len(name) % 8, b"\0") or bytes(8)
    at = 120 + len(padded) if extra else 0
    head = struct.pack("<HBBIQQIIIIIHHII", 57, 0, oplock, 2, 0, 0, access, 0, sharing, how, options, 120, len(name), at, len(extra))
    return head + padded + extra


def closing(file):
    return struct.pack("<HHI16s", 24, 0, 0, file)


def reading(file, length, offset=0):
    return struct.pack("<HBBIQ16sIIIHHx", 49, 80, 0, length, offset, file, 0, 0, 0, 0, 0)


def listing(folder, kind, room, flags=0):
    pattern = "*".encode("utf-16-le")
    return struct.pack("<HBBI16sHHI", 33, kind, flags, 0, folder, 96, len(pattern), room) + pattern


def watching(folder, whole_tree=False, what=0x1F):
    return struct.pack("<HHI16sII", 32, int(whole_tree), 65536, folder, what, 0)


def informing(file, kind, data):
    """SET_INFO of a file."""
    return struct.pack("<HBBIHHI16s", 33, 1, kind, len(data), 96, 0, 0, file) + data


def renaming(file, name):
    """The same with FileRenameInformation; `name` in UTF-16."""
    return informing(file, 10, struct.pack("<B7xQI", 0, 0, len(name)) + name)


ECHOING = struct.pack("<HH", 4, 0)


class Answer:
    def __init__(self, frame):
        self.frame, self.header, self.body = frame, frame[:64], frame[64:]
        self.status, self.command, self.credits = struct.unpack_from("<IHH", frame, 8)
        self.flags, = struct.unpack_from("<I", frame, 16)
        self.message, = struct.unpack_from("<Q", frame, 24)
        self.async_id, = struct.unpack_from("<Q", frame, 32)
        self.tree, = struct.unpack_from("<I", frame, 36)
        self.session, = struct.unpack_from("<Q", frame, 40)

    def at(self, offset, length):
        """A buffer whose offset counts from the header."""
        return self.body[offset - 64:offset - 64 + length]

    def token(self):
        """Of SESSION_SETUP."""
        return self.at(*struct.unpack_from("<HH", self.body, 4))

    def buffer(self):
        """Of QUERY_DIRECTORY and CHANGE_NOTIFY."""
        return self.at(*struct.unpack_from("<HI", self.body, 2))


class Connection:
    """What a connection remembers, and the messages that it sends; how they travel is left to others."""

    def __init__(self, guid=None, dialect=0x0311):
        self.guid, self.dialect, self.next, self.preauth = guid or os.urandom(16), dialect, 0, bytes(64)
        # Granted and not used yet.
        self.credits = 1

    def negotiation(self, ciphers=(), signings=()):
        extra = b""
        offset = count = 0
        if self.dialect == 0x0311:
            lists = [(1, struct.pack("<HHH", 1, 32, 1) + os.urandom(32))]
            if ciphers:
                lists.append((2, struct.pack(f"<H{len(ciphers)}H", len(ciphers), *ciphers)))
            if signings:
                lists.append((8, struct.pack(f"<H{len(signings)}H", len(signings), *signings)))
            offset, count = 104, len(lists)
            for at, (kind, data) in enumerate(lists):
                one = struct.pack("<HHI", kind, len(data), 0) + data
                extra += one if at + 1 == count else one.ljust(len(one) + -len(one) % 8, b"\0")
        # DFS, leasing, large MTU, multichannel, persistent handles, directory leasing, encryption.
        body = struct.pack("<HHHHI16sIHHH", 36, 1, 1, 0, 0x7F, self.guid, offset, count, 0, self.dialect)
        return body.ljust(offset - 64, b"\0") + extra if offset else body

    def hash(self, message):
        self.preauth = hashlib.sha512(self.preauth + message).digest()

    def mac(self, key, message):
        message = message[:48] + bytes(16) + message[64:]
        if self.dialect < 0x0300:
            return hmac.new(key, message, "sha256").digest()[:16]
        mac = CMAC(algorithms.AES(key))
        mac.update(message)
        return mac.finalize()

    def request(self, command, body, session=0, tree=0, key=None, flags=0, message=None, async_id=None, hashed=False, charge=1, credits=64):
        """The MessageId and the bytes of a request, signed if there is a key. `message`: that of another request, for CANCEL."""
        number = self.next if message is None else message
        if message is None:
            self.next += charge
            self.credits -= charge
        flags |= (SIGNED if key else 0) | (ASYNC if async_id is not None else 0)
        where = struct.pack("<Q", async_id) if async_id is not None else struct.pack("<II", 0, tree)
        frame = struct.pack("<4sHHIHHIIQ", b"\xfeSMB", 64, charge, 0, command, credits, flags, 0, number) + where
        frame += struct.pack("<Q16x", session) + body
        if key:
            frame = frame[:48] + self.mac(key, frame) + frame[64:]
        if hashed:
            self.hash(frame)
        return number, frame

    def frame(self, command, body, **more):
        """The same as TCP carries it."""
        number, message = self.request(command, body, **more)
        return number, framed(message)

    def heard(self, message):
        answer = Answer(message)
        self.credits += answer.credits
        return answer

    def judged(self, answer, accept, hashed):
        if answer.status not in accept:
            raise Refused(answer.status)
        if hashed and (answer.command == NEGOTIATE or answer.status == MORE_PROCESSING):
            self.hash(answer.frame)
        return answer

    def signing(self, key, preauth):
        if self.dialect < 0x0300:
            return key
        if self.dialect < 0x0311:
            return derived(key, b"SMB2AESCMAC\0", b"SmbSign\0")
        return derived(key, b"SMBSigningKey\0", preauth)


class Link(Connection):
    """One connection over TCP."""

    def __init__(self, port, source="127.0.0.1", ciphers=(), **how):
        self.begin(socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0)), ciphers, **how)

    def begin(self, connected, ciphers=(), **how):
        """Negotiates on a connected socket."""
        super().__init__(**how)
        self.socket = connected
        self.answers, self.interims, self.notices, self.buffer = {}, {}, [], b""
        self.ask(NEGOTIATE, self.negotiation(ciphers), hashed=True)

    def close(self):
        """Hangs up without a word."""
        self.socket.close()

    def send(self, command, body, **more):
        """Sends a request; returns its MessageId."""
        number, message = self.request(command, body, **more)
        try:
            self.transmit(message)
        except OSError as e:
            raise HungUp from e
        return number

    def transmit(self, message):
        self.socket.sendall(framed(message))

    def take(self, until):
        """The next message, or TimeoutError."""
        while True:
            if len(self.buffer) >= 4:
                length = int.from_bytes(self.buffer[:4], "big")
                if len(self.buffer) >= 4 + length:
                    message, self.buffer = self.buffer[4:4 + length], self.buffer[4 + length:]
                    return message
            self.socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                more = self.socket.recv(1 << 20)
            except TimeoutError:
                raise
            except OSError as e:
                raise HungUp from e
            if not more:
                raise HungUp
            self.buffer += more

    def receive(self, until):
        answer = self.heard(self.take(until))
        if answer.command == OPLOCK_BREAK and answer.message == (1 << 64) - 1:
            self.notices.append(answer)
        elif answer.status == PENDING and answer.flags & ASYNC:
            self.interims[answer.message] = answer.async_id
        else:
            self.answers[answer.message] = answer

    def answer(self, number, timeout=30):
        """The final answer to a request."""
        until = time.monotonic() + timeout
        while number not in self.answers:
            self.receive(until)
        return self.answers.pop(number)

    def interim(self, number, timeout=30):
        """The AsyncId of a request that waits."""
        until = time.monotonic() + timeout
        while number not in self.interims:
            if number in self.answers:
                raise AssertionError(f"answered at once: {STATUS.get(self.answers[number].status, self.answers[number].status)}")
            self.receive(until)
        return self.interims[number]

    def waits(self, number, seconds=0.3):
        """Whether a request has no final answer for this long."""
        try:
            self.answers[number] = self.answer(number, seconds)
            return False
        except TimeoutError:
            return True

    def notice(self, timeout=30):
        """The next break: (key or FileId, new state)."""
        until = time.monotonic() + timeout
        while not self.notices:
            self.receive(until)
        body = self.notices.pop(0).body
        if struct.unpack_from("<H", body)[0] == 44:
            return body[8:24], struct.unpack_from("<I", body, 28)[0]
        return body[8:24], body[2]

    def is_told(self, seconds=0.3):
        """Whether a break arrives within this time; it stays for `notice`."""
        until = time.monotonic() + seconds
        try:
            while not self.notices:
                self.receive(until)
        except TimeoutError:
            return False
        return True

    def ask(self, command, body, accept=(0,), hashed=False, **more):
        return self.judged(self.answer(self.send(command, body, hashed=hashed, **more)), accept, hashed)

    def authenticate(self, user, password, session=0, key=None, flags=0, previous=0):
        """(session id, session key, hash) of a log-on, or of a binding to a session."""
        proof = proof_of(user, password)
        token, negotiated = proof.step(), self.preauth
        try:
            while True:
                body = setting_up(token, flags, previous)
                answer = self.ask(SESSION_SETUP, body, (0, MORE_PROCESSING), True, session=session, key=key)
                session = answer.session
                if answer.status == 0:
                    return session, proof.session_key[:16], self.preauth
                token = proof.step(answer.token())
        finally:
            self.preauth = negotiated

    def log_on(self, user, password, previous=0):
        number, key, preauth = self.authenticate(user, password, previous=previous)
        return Session(self, number, self.signing(key, preauth))

    def bind(self, session, user, password, key=None):
        """Makes this connection a channel of a session: `key` signs the request instead of the session's own."""
        number, own, preauth = self.authenticate(user, password, session.number, key or session.key, BINDING)
        return Session(self, number, self.signing(own, preauth))


class AsyncLink(Connection):
    """One connection over asyncio, with one session in one tree."""

    def __init__(self, source="127.0.0.1", **how):
        super().__init__(**how)
        self.source, self.session, self.tree, self.key = source, 0, 0, None

    async def dial(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(self.source, 0))

    async def negotiate(self):
        await self.ask(NEGOTIATE, self.negotiation(), hashed=True)

    async def connect(self, port):
        await self.dial(port)
        await self.negotiate()
        return self

    async def log_on(self, proof):
        self.session, self.key, negotiated, token = 0, None, self.preauth, proof.step()
        while True:
            answer = await self.ask(SESSION_SETUP, setting_up(token), (0, MORE_PROCESSING), True)
            self.session = answer.session
            if answer.status == 0:
                break
            token = proof.step(answer.token())
        self.key, self.preauth = self.signing(proof.session_key[:16], self.preauth), negotiated
        return self

    async def enter(self, share):
        self.tree = (await self.ask(TREE_CONNECT, entering(share))).tree
        return self

    def post(self, command, body, **more):
        """Sends a request; returns its MessageId."""
        number, frame = self.frame(command, body, session=self.session, tree=self.tree, key=self.key, **more)
        self.writer.write(frame)
        return number

    async def take(self):
        return self.heard(await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big")))

    async def answer(self, number):
        """The final answer to a request; what arrives before is of no interest."""
        while True:
            answer = await self.take()
            if answer.message == number and answer.status != PENDING:
                return answer

    async def ask(self, command, body, accept=(0,), hashed=False, **more):
        return self.judged(await self.answer(self.post(command, body, hashed=hashed, **more)), accept, hashed)

    async def leave(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Session:
    """A session, as one connection has it."""

    def __init__(self, link, number, key):
        self.link, self.number, self.key = link, number, key

    def send(self, command, body, tree=0, **more):
        return self.link.send(command, body, session=self.number, tree=tree, key=self.key, **more)

    def ask(self, command, body, tree=0, accept=(0,), **more):
        return self.link.ask(command, body, accept, session=self.number, tree=tree, key=self.key, **more)

    def tree(self, share):
        return Tree(self, self.ask(TREE_CONNECT, entering(share)).tree)


class Tree:
    def __init__(self, session, number):
        self.session, self.number = session, number

    def send(self, command, body, **more):
        return self.session.send(command, body, self.number, **more)

    def ask(self, command, body, **more):
        return self.session.ask(command, body, self.number, **more)

    def open(self, name, replay=False, **how):
        return self.opened(self.ask(CREATE, wish(name, **how), flags=REPLAY if replay else 0))

    def opened(self, answer):
        at, length = struct.unpack_from("<II", answer.body, 80)
        extra, granted = answer.at(at, length) if at else b"", {}
        while extra:
            step, name_at, name_len, data_at, data_len = struct.unpack_from("<IHH2xHI", extra)
            granted[extra[name_at:name_at + name_len]] = extra[data_at:data_at + data_len]
            extra = extra[step:] if step else b""
        return File(self, answer.body[64:80], answer.body[2], granted)

    def acknowledge(self, key, state):
        """Of a lease break."""
        return self.ask(OPLOCK_BREAK, struct.pack("<HHI16sIQ", 36, 0, 0, key, state, 0))


class File:
    """An open, named by its FileId."""

    def __init__(self, tree, file, oplock=0, granted=()):
        self.tree, self.id, self.oplock, self.granted = tree, file, oplock, granted

    def through(self, tree):
        """The same FileId, used in another tree."""
        return File(tree, self.id)

    def read(self, length=64, offset=0):
        answer = self.tree.ask(READ, reading(self.id, length, offset))
        return answer.at(answer.body[2], struct.unpack_from("<I", answer.body, 4)[0])

    def write(self, data, offset=0):
        head = struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), offset, self.id, 0, 0, 0, 0, 0)
        self.tree.ask(WRITE, head + data)

    def close(self):
        self.tree.ask(CLOSE, closing(self.id))

    def acknowledge(self, level):
        """Of an oplock break."""
        return self.tree.ask(OPLOCK_BREAK, struct.pack("<HBBI16s", 24, level, 0, 0, self.id))

    def control(self, code, data, room=4096):
        head = struct.pack("<HHI16sIIIIIIII", 57, 0, code, self.id, 120 if data else 0, len(data), 0, 0, 0, room, 1, 0)
        answer = self.tree.ask(IOCTL, head + (data or b"\0"))
        return answer.at(*struct.unpack_from("<II", answer.body, 32))

    def lock(self, offset, length, flags=0x12):
        """An exclusive lock that does not wait; flags 4 unlocks."""
        body = struct.pack("<HHI16sQQII", 48, 1, 0, self.id, offset, length, flags, 0)
        self.tree.ask(LOCK, body)

    def rename(self, to):
        self.tree.ask(SET_INFO, renaming(self.id, to.encode("utf-16-le")))

    def delete(self):
        """Marks it for deletion and closes it."""
        self.tree.ask(SET_INFO, informing(self.id, 13, b"\x01"))
        self.close()

    def notify(self, whole_tree=False, what=0x1F):
        """Requests the next changes; returns the MessageId."""
        return self.tree.send(CHANGE_NOTIFY, watching(self.id, whole_tree, what))


def changes(answer):
    """The names in the answer to a CHANGE_NOTIFY."""
    if answer.status != 0:
        raise Refused(answer.status)
    buffer, names = answer.buffer(), []
    while buffer:
        step, _action, length = struct.unpack_from("<III", buffer)
        names.append(buffer[12:12 + length].decode("utf-16-le"))
        buffer = buffer[step:] if step else b""
    return names
