"""A client of RPCSEC_GSS (RFC 2203), built by hand on the system's libgssapi_krb5: contexts, calls, and NFSv3 as far as the
tests need it. It shares nothing with Weft."""

import contextlib
import ctypes
import ctypes.util
import itertools
import struct

import oncrpc
from oncrpc import Refused, Reply, opaque, words

NONE, INTEGRITY, PRIVACY = 1, 2, 3
NFS, MOUNT = (100003, 3), (100005, 3)
GSS = 6
LIBRARY = "libgssapi_krb5.so.2"


class Buffer(ctypes.Structure):
    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_void_p)]

    @staticmethod
    def of(content):
        # The bytes stay alive as long as the buffer.
        buffer = Buffer(len(content), ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p))
        buffer.content = content
        return buffer


class Oid(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("elements", ctypes.c_char_p)]


KRB5 = Oid(9, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02")
HOSTBASED = Oid(10, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04")
MUTUAL = 2


class Context:
    """A security context with a service such as nfs@host, with the ticket of KRB5CCNAME."""

    def __init__(self, service):
        self.library = ctypes.CDLL(LIBRARY)
        self.minor, self.context, self.name = ctypes.c_uint32(), ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.library.gss_import_name(
            ctypes.byref(self.minor), ctypes.byref(Buffer.of(service.encode())), ctypes.byref(HOSTBASED), ctypes.byref(self.name)
        ))

    def check(self, major):
        if major & 0xFFFF0000:
            raise OSError(f"GSS-API: {major:#x}, {self.minor.value}")

    def take(self, buffer):
        content = ctypes.string_at(buffer.value, buffer.length) if buffer.length else b""
        self.library.gss_release_buffer(ctypes.byref(ctypes.c_uint32()), ctypes.byref(buffer))
        return content

    def step(self, token=b""):
        output = Buffer()
        self.check(self.library.gss_init_sec_context(
            ctypes.byref(self.minor), None, ctypes.byref(self.context), self.name, ctypes.byref(KRB5), MUTUAL, 0, None,
            ctypes.byref(Buffer.of(token)), None, ctypes.byref(output), None, None,
        ))
        return self.take(output)

    def mic(self, message):
        output = Buffer()
        self.check(self.library.gss_get_mic(
            ctypes.byref(self.minor), self.context, 0, ctypes.byref(Buffer.of(message)), ctypes.byref(output)
        ))
        return self.take(output)

    def verify(self, message, mic):
        self.check(self.library.gss_verify_mic(
            ctypes.byref(self.minor), self.context, ctypes.byref(Buffer.of(message)), ctypes.byref(Buffer.of(mic)), None
        ))

    def wrap(self, message):
        output, encrypted = Buffer(), ctypes.c_int()
        self.check(self.library.gss_wrap(
            ctypes.byref(self.minor), self.context, 1, 0, ctypes.byref(Buffer.of(message)), ctypes.byref(encrypted),
            ctypes.byref(output),
        ))
        assert encrypted.value
        return self.take(output)

    def unwrap(self, token):
        output, encrypted = Buffer(), ctypes.c_int()
        self.check(self.library.gss_unwrap(
            ctypes.byref(self.minor), self.context, ctypes.byref(Buffer.of(token)), ctypes.byref(output),
            ctypes.byref(encrypted), None,
        ))
        assert encrypted.value
        return self.take(output)


class Rpc(oncrpc.Connection):
    """Calls over one TCP connection, in one context."""

    def __init__(self, port, reserved=False):
        super().__init__(port, reserved=reserved)
        self.sequences = itertools.count(1)
        self.handle = b""
        self.gss = None

    def head(self, program, procedure, kind, sequence, service):
        credential = words(1, kind, sequence, service) + opaque(self.handle)
        return words(next(self.xids), 0, 2, *program, procedure) + words(GSS) + opaque(credential)

    def establish(self, service, program=NFS):
        self.gss = Context(service)
        token = self.gss.step()
        reply = self.exchange(self.head(program, 0, 1, 0, 1) + words(0, 0) + opaque(token)).accepted()
        handle, major, minor, window, token = reply.opaque(), reply.word(), reply.word(), reply.word(), reply.opaque()
        if major:
            raise Refused("gss", major, minor)
        self.gss.step(token)
        self.gss.verify(words(window), reply.verifier[1])
        self.handle = handle

    def message(self, program, procedure, arguments, service, sequence=None, kind=0):
        sequence = sequence or next(self.sequences)
        head = self.head(program, procedure, kind, sequence, service)
        body = words(sequence) + arguments
        if service == INTEGRITY:
            arguments = opaque(body) + opaque(self.gss.mic(body))
        elif service == PRIVACY:
            arguments = opaque(self.gss.wrap(body))
        return sequence, head + words(GSS) + opaque(self.gss.mic(head)) + arguments

    def verified(self, sequence, message):
        """The reply to a message, whose verifier must be the server's."""
        reply = self.exchange(message).accepted()
        flavor, verifier = reply.verifier
        assert flavor == GSS
        self.gss.verify(words(sequence), verifier)
        return reply

    def protected(self, program, procedure, arguments, service):
        """The results of a call."""
        sequence, message = self.message(program, procedure, arguments, service)
        reply = self.verified(sequence, message)
        if service == NONE:
            return reply
        if service == INTEGRITY:
            body = reply.opaque()
            self.gss.verify(body, reply.opaque())
        else:
            body = self.gss.unwrap(reply.opaque())
        body = Reply(body)
        assert body.word() == sequence and not reply.rest()
        return body

    def destroy(self):
        self.verified(*self.message(NFS, 0, b"", NONE, kind=3))


@contextlib.contextmanager
def connected(port, service=None, **options):
    rpc = Rpc(port, **options)
    try:
        if service:
            rpc.establish(service)
        yield rpc
    finally:
        rpc.close()


def mount(port, name):
    """The handle of a share, and its flavors."""
    with connected(port, reserved=True) as rpc:
        reply = rpc.call(*MOUNT, 1, opaque(b"/" + name.encode()))
        if (status := reply.word()):
            raise Refused("mount", status)
        handle = reply.opaque()
        return handle, [reply.word() for _ in range(reply.word())]


def getattr_status(rpc, handle, service):
    return rpc.protected(NFS, 1, opaque(handle), service).word()


def create(rpc, directory, name, service):
    """Makes a file; returns the status, and its handle."""
    reply = rpc.protected(NFS, 8, opaque(directory) + opaque(name.encode()) + words(0, 0, 0, 0, 0, 0, 0), service)
    status = reply.word()
    return (status, None) if status else (0, reply.opaque() if reply.word() else None)


def write(rpc, file, content, service):
    reply = rpc.protected(NFS, 7, opaque(file) + struct.pack(">Q", 0) + words(len(content), 2) + opaque(content), service)
    return reply.word()


def read(rpc, file, count, service):
    reply = rpc.protected(NFS, 6, opaque(file) + struct.pack(">Q", 0) + words(count), service)
    assert reply.word() == 0 and reply.word() == 1
    reply.take(84)
    reply.word()
    reply.word()
    return reply.opaque()
