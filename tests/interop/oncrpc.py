"""ONC RPC (RFC 5531) with XDR, and of NFSv3 what finds a file: written for these tests from the RFCs alone; it shares no code
with the server."""

import itertools
import socket
import struct

import weft

NFS, MOUNT, RPCBIND, NLM, NSM = 100003, 100005, 100000, 100021, 100024
AUTH_NONE, AUTH_SYS, AUTH_TLS = 0, 1, 7


def words(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


def opaque(data):
    return words(len(data)) + data + bytes(-len(data) % 4)


# Also the verifier of a call.
NO_CREDENTIAL = words(AUTH_NONE, 0)


def unix(uid):
    """The credential of a user and a group with the same number."""
    return words(AUTH_SYS) + opaque(words(0) + opaque(b"box") + words(uid, uid, 0))


def message(xid, program, version, procedure, args=b"", credential=NO_CREDENTIAL):
    return words(xid, 0, 2, program, version, procedure) + credential + NO_CREDENTIAL + args


def record(message):
    """A message with its record mark."""
    return words(1 << 31 | len(message)) + message


class Reply:
    """Results, consumed in order."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if len(self.data) - self.at < count:
            raise AssertionError("the message ends too early")
        self.at += count
        return self.data[self.at - count:self.at]

    def word(self):
        return struct.unpack(">I", self.take(4))[0]

    def opaque(self):
        length = self.word()
        return self.take(length + -length % 4)[:length]

    def rest(self):
        return self.take(len(self.data) - self.at)

    def accepted(self):
        """Takes the header after the xid, with the verifier. Raises `Refused` if the call was not carried out."""
        if self.word() != 1:
            raise AssertionError("not a reply")
        if self.word():
            if self.word() != 1:
                raise AssertionError("another version of RPC")
            raise Refused("auth", self.word(), self.rest())
        self.verifier = self.word(), self.opaque()
        if status := self.word():
            raise Refused("accept", status, self.rest())
        return self


class Refused(Exception):
    """("auth", auth_stat) or ("accept", accept_stat) of a call that was not carried out; and what follows."""


class Connection:
    """Calls over one TCP connection, one at a time."""

    def __init__(self, port, source="127.0.0.1", uid=0, reserved=True):
        """`reserved`: from a port that only root can have."""
        if reserved:
            self.socket = weft.nfs_connection(port, source=source)
        else:
            self.socket = socket.create_connection(("127.0.0.1", port), 60, source_address=(source, 0))
        self.credential, self.xids = unix(uid), itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def receive(self, count):
        received = b""
        while len(received) < count:
            piece = self.socket.recv(count - len(received))
            if not piece:
                raise EOFError("the server closed the connection")
            received += piece
        return received

    def exchange(self, message):
        """The reply to a message, after its xid."""
        self.socket.sendall(record(message))
        reply, is_last = b"", False
        while not is_last:
            mark, = struct.unpack(">I", self.receive(4))
            is_last = mark >> 31
            reply += self.receive(mark & 0x7FFF_FFFF)
        if reply[:4] != message[:4]:
            raise AssertionError("the reply to another call")
        return Reply(reply[4:])

    def call(self, program, version, procedure, args=b"", xid=None, credential=None):
        """The results of a call."""
        credential = self.credential if credential is None else credential
        return self.exchange(message(xid or next(self.xids), program, version, procedure, args, credential)).accepted()

    def mount(self, path):
        """The handle of a share, or None if the server refuses it."""
        reply = self.call(MOUNT, 3, 1, opaque(path))
        return None if reply.word() else reply.opaque()

    def lookup(self, folder, name):
        reply = self.call(NFS, 3, 3, opaque(folder) + opaque(name))
        if status := reply.word():
            raise AssertionError(f"LOOKUP of {name}: {status}")
        return reply.opaque()
