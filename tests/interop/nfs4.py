"""A small NFSv4.1 client with a backchannel, written for these tests from RFC 8881 and RFC 5531 alone: it shares no
code with the server."""

import itertools
import queue
import socket
import struct
import threading

import oncrpc
import weft
from oncrpc import opaque, words

CALLBACK = 0x40000000
(ACCESS, CLOSE, CREATE, DELEGRETURN, GETATTR, GETFH, LOCK, LOCKU, LOOKUP, OPEN) = (3, 4, 6, 8, 9, 10, 12, 14, 15, 18)
(PUTFH, PUTROOTFH, READ, REMOVE, WRITE, EXCHANGE_ID, CREATE_SESSION, SEQUENCE, RECLAIM_COMPLETE) = (
    22, 24, 25, 28, 38, 42, 43, 53, 58)
OPENATTR, READDIR = 19, 26
CB_RECALL, CB_SEQUENCE = 4, 11
STATUS = {
    0: "ok", 2: "NOENT", 13: "ACCESS", 17: "EXIST", 70: "STALE", 10006: "SERVERFAULT", 10008: "DELAY", 10010: "DENIED",
    10012: "LOCKED", 10013: "GRACE", 10015: "SHARE_DENIED", 10017: "CLID_INUSE", 10022: "STALE_CLIENTID", 10025: "BAD_STATEID",
    10033: "NO_GRACE", 10037: "LOCKS_HELD", 10038: "OPENMODE", 10046: "FILE_OPEN", 10052: "BADSESSION",
    10055: "CONN_NOT_BOUND_TO_SESSION", 10082: "WRONG_CRED", 10087: "DELEG_REVOKED",
}
ANONYMOUS = bytes(16)


def compound(minor, *ops):
    """The arguments of a COMPOUND without a tag."""
    return opaque(b"") + words(minor, len(ops)) + b"".join(ops)


def compound_call(xid, minor, *ops, uid=0):
    return oncrpc.message(xid, oncrpc.NFS, 4, 1, compound(minor, *ops), oncrpc.unix(uid))


class Reply(oncrpc.Reply):
    """With the results of operations."""

    def expect(self, op):
        number, status = self.word(), self.word()
        if number != op:
            raise AssertionError(f"the result of operation {number} where that of {op} was expected")
        return STATUS.get(status, str(status))


class Client:
    def __init__(self, port, name, reclaims=False, source="127.0.0.1", uid=0, verifier=None):
        """`reclaims`: the client does not send RECLAIM_COMPLETE yet. `verifier`: that of its EXCHANGE_ID, by default a part of
        its name."""
        self.socket = weft.nfs_connection(port, source)
        # `receive` waits for as long as the connection lives, and for whole messages.
        self.socket.settimeout(None)
        self.xids, self.owner, self.uid = itertools.count(1), name.encode(), uid
        self.replies, self.recalls = queue.Queue(), queue.Queue()
        self.lock = threading.Lock()
        threading.Thread(target=self.receive, daemon=True).start()
        verifier = verifier or name.encode().ljust(8)[:8]
        reply = self.compound(words(EXCHANGE_ID) + verifier + opaque(self.owner) + words(0, 0, 0))
        self.check(reply, EXCHANGE_ID)
        client, sequence = reply.take(8), reply.word()
        self.client = client
        channel = words(0, 1 << 20, 1 << 20, 4096, 16, 8, 0)
        args = client + words(sequence, 2) + channel + channel + words(CALLBACK, 1, 0)
        reply = self.compound(words(CREATE_SESSION) + args)
        self.check(reply, CREATE_SESSION)
        self.session, self.sequence = reply.take(16), 0
        if not reclaims:
            self.check(self.run(words(RECLAIM_COMPLETE, 0)), RECLAIM_COMPLETE)

    @staticmethod
    def check(reply, op):
        status = reply.expect(op)
        if status != "ok":
            raise AssertionError(f"operation {op}: {status}")

    def send(self, message):
        with self.lock:
            self.socket.sendall(oncrpc.record(message))

    def receive(self):
        try:
            while head := self.socket.recv(4, socket.MSG_WAITALL):
                length = struct.unpack(">I", head)[0] & 0x7FFFFFFF
                message = self.socket.recv(length, socket.MSG_WAITALL)
                if message[4:8] == words(1):
                    self.replies.put(Reply(message))
                else:
                    self.answer(Reply(message))
        except OSError:
            pass  # The test has ended.

    def answer(self, call):
        """Answers CB_COMPOUND of CB_SEQUENCE and CB_RECALL with success, and keeps the delegation until `give_back`."""
        xid = call.take(4)
        call.take(20)
        for _ in range(2):
            call.word(), call.opaque()
        call.opaque()
        _minor, _ident, count = call.word(), call.word(), call.word()
        if (count, call.word()) != (2, CB_SEQUENCE):
            raise AssertionError("CB_SEQUENCE comes first")
        session, sequence, slot, highest = call.take(16), call.word(), call.word(), call.word()
        _cache, lists = call.word(), call.word()
        if lists != 0 or call.word() != CB_RECALL:
            raise AssertionError("only recalls are expected")
        self.recalls.put(call.take(16))
        results = words(CB_SEQUENCE, 0) + session + words(sequence, slot, highest, highest) + words(CB_RECALL, 0)
        self.send(xid + words(1, 0, 0, 0, 0) + words(0, 0, 2) + results)

    def message(self, *ops):
        """A COMPOUND of these operations."""
        return compound_call(next(self.xids), 1, *ops, uid=self.uid)

    def compound(self, *ops):
        self.send(self.message(*ops))
        return self.results()

    def results(self):
        """Those of the next reply."""
        reply = self.replies.get(timeout=60)
        reply.take(4), reply.accepted()
        # The status, no tag, and the number of results.
        reply.word(), reply.opaque(), reply.word()
        return reply

    def run(self, *ops):
        self.sequence += 1
        sequence = words(SEQUENCE) + self.session + words(self.sequence, 0, 0, 0)
        reply = self.compound(sequence, *ops)
        self.check(reply, SEQUENCE)
        reply.take(16), [reply.word() for _ in range(5)]
        return reply

    @staticmethod
    def walk(*names):
        return [words(PUTROOTFH)] + [words(LOOKUP) + opaque(name.encode()) for name in names]

    def on(self, handle, op, args=b""):
        """One operation on a file: the rest of the reply after its status, and the status."""
        reply = self.run(words(PUTFH) + opaque(handle), words(op) + args)
        self.check(reply, PUTFH)
        return reply, reply.expect(op)

    def open(self, share, name, access, deny):
        """The status, and on success the handle and the state ids of the open and of a delegation."""
        owner = bytes(8) + opaque(self.owner)
        args = words(0, access, deny) + owner + words(1, 0, 0, 0) + words(0) + opaque(name.encode())
        reply = self.run(*self.walk(share), words(OPEN) + args, words(GETFH))
        self.check(reply, PUTROOTFH), self.check(reply, LOOKUP)
        status = reply.expect(OPEN)
        if status != "ok":
            return status, None, None, None
        stateid = reply.take(16)
        reply.take(4 + 8 + 8 + 4)
        reply.take(4 * reply.word())
        kind, delegation = reply.word(), None
        if kind in (1, 2):
            delegation = reply.take(16)
            reply.word()
            if kind == 2:
                reply.take(12)
            [reply.word() for _ in range(3)], reply.opaque()
        elif kind == 3:
            if reply.word() in (1, 2):
                reply.word()
        self.check(reply, GETFH)
        return status, reply.opaque(), stateid, delegation

    def hang_up(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
