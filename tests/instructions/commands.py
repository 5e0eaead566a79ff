"""Clients that are commands of `weft`, which speak what the small clients of `clients` do not: RDMA. Each call runs a command from
its beginning to its end. What it does only once is the same for any number of operations, so the difference of two runs has none of it."""

from clients import SIZE, write_file
from program import weft


class Sends:
    """Messages to `weft rdma perf server`. Each is answered by a short one, which says that it was consumed: at depth 1 after each. (Where
    latency is measured both sides would poll.)"""

    # As long as most requests. Over shm the client copies the message into the server's buffer, and rings the bell of a server that sleeps
    # at most every 150 us. Messages that take longer are received one by one, and cost the server the same.
    BYTES = {"iwarp": 256, "shm": 4 << 20}
    # Of the operations of a run, one in so many is its warm-up.
    WARM_UP = 5

    def __init__(self, server, provider):
        self.server, self.provider = server, provider

    def send(self, count):
        if count % self.WARM_UP:
            raise SystemExit(f"{count} Sends: take a multiple of {self.WARM_UP}")
        self.server.serve(
            "rdma", "perf", "client", f"127.0.0.1:{self.server.ready['port']}", "--provider", self.provider, "--op", "send",
            "--size", self.BYTES[self.provider], "--only", "bandwidth", "--qd", 1, "--count", count - count // self.WARM_UP, "--json",
        )


class SmbDirect:
    """A file of so many blocks, which is copied block by block over SMB Direct."""

    def __init__(self, server, transport):
        self.server, self.transport, self.files = server, transport, set()

    def options(self):
        return ["--transport", self.transport, "--block", SIZE, "--queue-depth", 1, "--no-verify", "--quiet"]

    def url(self, name):
        return f"smb://{weft.USER}@127.0.0.1:{self.server.ready['smb_port']}/ram/{name}"

    def read(self, count):
        """The first call with this number makes the file. That one is not to be counted."""
        name, copy = f"{count}.bin", self.server.work / "copy"
        if count not in self.files:
            write_file(self.server, name, count * SIZE)
            self.files.add(count)
        self.server.serve("cp", *self.options(), self.url(name), copy)
        if copy.stat().st_size != count * SIZE:
            raise SystemExit(f"{copy} is not {count} blocks long")
        copy.unlink()
