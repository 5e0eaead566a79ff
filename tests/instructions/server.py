"""The servers whose instructions are counted."""

import contextlib
import json
import pathlib
import sys
import tempfile
import time

from program import PATIENCE, Program, weft

# No polling before a sleep, and no record of slow operations: callgrind makes all of them slow. It writes files from inside the
# server, so that is not confined.
CONFIGURATION = """
admin = "unix:{admin}"
[log]
slow = "1h"
[listeners]
addresses = ["127.0.0.1"]
smb_port = 0
smb_direct_port = 0
{listeners}
[limits]
cores = 1
spin = "0us"
[smb]
signing = "enabled"
act_as_callers = false
[confine]
landlock = false
seccomp = false
"""
# What a server of files has besides.
FILES = """
[nfs]
root_squash = false
act_as_callers = false
[shares.ram]
ram = "64M"
"""
# What both servers of a replicated volume have besides.
REPLICA = """
[replication]
enabled = true
[volumes.vol1]
"""


def serving(folder, listeners, tables):
    """The arguments of a `weft serve` with a configuration of its own."""
    configuration = folder / "weft.toml"
    configuration.write_text(CONFIGURATION.format(admin=folder / "admin.sock", listeners=listeners) + tables)
    return ["serve", "--config", configuration, "--state-dir", folder / "state", "--user", weft.USER, "--json"]


class Server(Program):
    """`weft serve` on one core, with a share in memory, `ram`. A folder cannot be served: Valgrind 3.19, Debian 12's, has no openat2. What
    differs is how the store gets bytes: a READ of a folder asks the kernel for the file's size, and a WRITE calls pwrite, where a share in
    memory copies into its mapping."""

    def __init__(self, binary, work):
        self.admin = work / "admin.sock"
        super().__init__(binary, work, *serving(work, "nfs_port = 0\nmountd_port = 0", FILES))
        self.start_counting()


class PerfServer(Program):
    """`weft rdma perf server`: the providers of RDMA without any protocol above them."""

    def __init__(self, binary, work):
        super().__init__(binary, work, "rdma", "perf", "server", "--port", 0, "--spin-us", 0, "--json")
        self.start_counting()


class Source(Program):
    """The source of a volume in memory that is replicated synchronously. `other`, the destination, is not counted. The journals of both
    are files."""

    TRANSPORT = "tcp"
    VOLUME = "vol1"
    VOLUME_BYTES = 64 << 20

    def __init__(self, binary, work):
        arguments = [serving(self.host(binary, work / name), "nbd_port = 0", REPLICA) for name in ("source", "destination")]
        self.other = weft.Process([binary, *arguments[1]], work / "destination.log")
        try:
            super().__init__(binary, work, *arguments[0])
        except BaseException:
            self.other.crash()
            raise
        try:
            self.replicate(work / "source" / "state")
        except BaseException:
            self.crash()
            raise
        self.start_counting()

    def replicate(self, state):
        self.state = state
        self.weft(
            "replica", "create", self.VOLUME, f"127.0.0.1:{self.VOLUME}", "--smb-port", self.other.ready["smb_port"], "--user", weft.USER,
            "--mode", "sync", "--transport", self.TRANSPORT, "--log-size", 64 << 20,
        )
        self.wait_until_following()

    @classmethod
    def host(cls, binary, folder):
        folder.mkdir()
        weft.run(
            binary, "volume", "create", cls.VOLUME, "--size", cls.VOLUME_BYTES, "--ram", "--state-dir", folder / "state",
        )
        return folder

    def weft(self, *arguments):
        return weft.run(self.binary, *arguments, "--state-dir", self.state, timeout=PATIENCE).stdout

    def wait_until_following(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            [group] = json.loads(self.weft("replica", "status", "--json"))["groups"]
            phases = [peer["phase"] for peer in (group["engine"] or {}).get("peers", [])]
            if phases == ["ContinuouslyReplicating"]:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"the volume is not replicated: {json.dumps(group, indent=1)}")
            time.sleep(0.1)

    def stop(self):
        super().stop()
        if status := self.other.stop():
            raise SystemExit(f"the destination ended with status {status}: {self.other.log_text()}")

    def crash(self):
        super().crash()
        self.other.crash()


class ShmSource(Source):
    """The same by RDMA over shared memory."""

    TRANSPORT = "shm"


@contextlib.contextmanager
def started(kind, binary):
    """A server of this kind in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="weft-instructions-") as folder:
        server = kind(binary, pathlib.Path(folder))
        try:
            yield server
        except BaseException:
            print(server.process.log_text(), file=sys.stderr)
            server.crash()
            raise
        server.stop()
