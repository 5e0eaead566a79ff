"""A file system that answers when the test allows it: a small FUSE server that speaks to /dev/fuse, written from the
kernel's include/uapi/linux/fuse.h (protocol 7.31). It needs only root.

    with fuse.Mount(folder, {"file": b"bytes", "sub": {}}) as slow:
        slow.hold(fuse.LOOKUP, fuse.GETATTR)
        ...                       # whoever looks something up waits
        slow.wait_until_held()
        slow.release()
"""

import contextlib
import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import threading

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FLUSH = 1, 2, 3, 4, 14, 15, 16, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 34, 36, 38, 42
FATTR_SIZE = 1 << 3
MAX_WRITE = 1 << 17
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


def why_not():
    """Why a test cannot mount it here, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return None if os.path.exists("/dev/fuse") else "/dev/fuse does not exist"


class Node:
    def __init__(self, number, content):
        self.number = number
        self.names = {}
        self.content = None if isinstance(content, dict) else bytearray(content)

    def attributes(self):
        mode = stat.S_IFDIR | 0o755 if self.content is None else stat.S_IFREG | 0o644
        size = len(self.content or b"")
        return struct.pack("<6Q10I", self.number, size, size + 511 >> 9, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Mount:
    """A mounted tree: folders are dicts, files bytes. The kernel may not cache names or attributes. Without `heeds_interrupts` nothing
    but `release` ends a request that waits, as with a server that has lost its network: whoever asks cannot even be killed."""

    def __init__(self, point, tree, heeds_interrupts=True):
        self.heeds_interrupts = heeds_interrupts
        self.point, self.nodes = os.fspath(point), {}
        self.changed = threading.Condition()
        self.holds, self.held = frozenset(), {}
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.add(1, tree)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"weft-test", self.point.encode(), b"fuse.weft-test", 6, options) != 0:
            raise OSError(ctypes.get_errno(), "mount", self.point)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def add(self, number, content):
        node = self.nodes[number] = Node(number, content)
        if isinstance(content, dict):
            for name, inside in content.items():
                node.names[name] = self.add(len(self.nodes) + 1, inside)
        return node

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
        self.detach()
        self.thread.join(60)
        os.close(self.fd)

    def detach(self):
        """Takes it away from its mount point. Who has files open keeps them."""
        libc.umount2(self.point.encode(), MNT_DETACH)

    def hold(self, *operations):
        """From now on these requests wait."""
        with self.changed:
            self.holds = frozenset(operations)

    def release(self):
        """Answers all waiting requests; later ones do not wait."""
        with self.changed:
            self.holds = frozenset()
            held, self.held = self.held, {}
            self.changed.notify_all()
        for request in held.values():
            self.answer(*request)

    def let_one_pass(self):
        """Answers one waiting request, for a file system that is slow and does not hang."""
        with self.changed:
            request = self.held.pop(next(iter(self.held)), None) if self.held else None
        if request:
            self.answer(*request)

    def wait_until_held(self):
        with self.changed:
            assert self.changed.wait_for(lambda: self.held, 60), "nobody asks"

    def is_holding(self):
        with self.changed:
            return bool(self.held)

    def serve(self):
        while True:
            try:
                message = os.read(self.fd, MAX_WRITE + 4096)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                # ENODEV: unmounted.
                return
            operation, unique, node = struct.unpack_from("<IQQ", message, 4)
            body = message[40:]
            if operation in (FORGET, BATCH_FORGET):
                continue
            if operation == INTERRUPT and not self.heeds_interrupts:
                continue
            if operation == INTERRUPT:
                # Requests still waiting at the end fail, as with other servers.
                with self.changed:
                    interrupted = self.held.pop(struct.unpack_from("<Q", body)[0], None)
                if interrupted:
                    self.reply(interrupted[1], error=errno.EINTR)
                continue
            request = (operation, unique, node, body)
            with self.changed:
                if operation in self.holds:
                    self.held[unique] = request
                    self.changed.notify_all()
                    continue
            self.answer(*request)

    def reply(self, unique, data=b"", error=0):
        # ENOENT: the process that asked was killed.
        with contextlib.suppress(OSError):
            os.write(self.fd, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)

    def answer(self, operation, unique, number, body):
        node = self.nodes.get(number)
        if operation == INIT:
            readahead = struct.unpack_from("<I", body, 8)[0]
            out = struct.pack("<4I2H2I2H8I", 7, 31, readahead, 0, 12, 10, MAX_WRITE, 1, 0, 0, *[0] * 8)
            return self.reply(unique, out)
        if operation == LOOKUP:
            found = node.names.get(body.split(b"\0")[0].decode())
            if found is None:
                return self.reply(unique, error=errno.ENOENT)
            return self.reply(unique, struct.pack("<4Q2I", found.number, 0, 0, 0, 0, 0) + found.attributes())
        if operation == SETATTR and struct.unpack_from("<I", body)[0] & FATTR_SIZE:
            size = struct.unpack_from("<Q", body, 16)[0]
            node.content[:] = node.content[:size].ljust(size, b"\0")
        if operation in (GETATTR, SETATTR):
            return self.reply(unique, struct.pack("<Q2I", 0, 0, 0) + node.attributes())
        if operation in (OPEN, OPENDIR):
            return self.reply(unique, struct.pack("<Q2I", 0, 0, 0))
        if operation == READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            return self.reply(unique, bytes(node.content[offset:offset + size]))
        if operation == WRITE:
            offset, size = struct.unpack_from("<QI", body, 8)
            node.content[offset:offset + size] = body[40:40 + size]
            return self.reply(unique, struct.pack("<2I", size, 0))
        if operation == READDIR:
            offset = struct.unpack_from("<Q", body, 8)[0]
            entries = b""
            for at, (name, inside) in enumerate(list(node.names.items())[offset:], offset + 1):
                kind = 4 if inside.content is None else 8
                entry = struct.pack("<2Q2I", inside.number, at, len(name), kind) + name.encode()
                entries += entry + bytes(-len(entry) % 8)
            return self.reply(unique, entries)
        if operation == STATFS:
            return self.reply(unique, struct.pack("<5Q4I6I", 1 << 20, 1 << 19, 1 << 19, 100, 50, 4096, 255, 4096, 0, *[0] * 6))
        if operation in (RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY):
            return self.reply(unique)
        return self.reply(unique, error=errno.ENOSYS)


@contextlib.contextmanager
def dead(point):
    """A mount whose server was killed: whoever looks there gets ENOTCONN."""
    serve = f"import fuse, time; mount = fuse.Mount({os.fspath(point)!r}, {{}}); print(flush=True); time.sleep(600)"
    here = os.path.dirname(os.path.abspath(__file__))
    server = subprocess.Popen([sys.executable, "-c", serve], cwd=here, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"\n", "it is not mounted"
        server.send_signal(signal.SIGKILL)
        server.wait()
        yield
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        libc.umount2(os.fspath(point).encode(), MNT_DETACH)
