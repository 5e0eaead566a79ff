"""A server under callgrind, which counts the instructions of its user mode.

Valgrind runs a program some fifty times slower than the processor and one thread at a time, but the number of
instructions that a request costs hardly depends on that."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "interop"))

import callgrind  # noqa: E402
import weft  # noqa: E402

# Longest time for a command of Valgrind's, on a machine that is busy with something else.
PATIENCE = 120


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
nfs_port = 0
mountd_port = 0
[limits]
cores = 1
spin = "0us"
[smb]
signing = "enabled"
act_as_callers = false
[nfs]
root_squash = false
act_as_callers = false
[confine]
landlock = false
seccomp = false
[shares.ram]
ram = "64M"
"""


class Server:
    """`weft serve` on one core, with a share in memory, `ram`. A folder cannot be served: Valgrind 3.19, Debian 12's, has no openat2. What
    differs is how the store gets bytes: a READ of a folder asks the kernel for the file's size, and a WRITE calls pwrite, where a share in
    memory copies into its mapping."""

    def __init__(self, binary, work):
        self.work, self.dumps = pathlib.Path(work), 0
        configuration = self.work / "weft.toml"
        self.admin = self.work / "admin.sock"
        configuration.write_text(CONFIGURATION.format(admin=self.admin))
        command = [
            sys.executable, pathlib.Path(__file__).with_name("refuse_io_uring.py"), "valgrind", "--tool=callgrind",
            "--instr-atstart=no", f"--vgdb-prefix={work}/vgdb", f"--callgrind-out-file={work}/profile.%p",
            f"--log-file={work}/valgrind.%p.log",
            binary, "serve", "--config", configuration, "--state-dir", self.work / "state", "--user", weft.USER, "--json",
        ]
        self.process = weft.Process(command, self.work / "server.log")
        self.pid, self.ready = self.process.process.pid, self.process.ready
        self.tell("instrumentation", "on")

    def tell(self, *command):
        """A command for callgrind in the server."""
        done = subprocess.run(
            ["vgdb", f"--vgdb-prefix={self.work}/vgdb", f"--pid={self.pid}", *command], capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode != 0:
            raise SystemExit(f"valgrind's vgdb {' '.join(command)}: {done.stdout}{done.stderr}")

    def count(self, work):
        """The profile of what the server does meanwhile."""
        self.tell("zero")
        work()
        self.rest()
        self.tell("dump")
        self.dumps += 1
        return callgrind.parse(self.file())

    def file(self):
        """The last dump."""
        return self.work / f"profile.{self.pid}.{self.dumps}"

    def rest(self):
        """Returns when the server sleeps. Requests that reach a server that is still busy with the last ones would be received at
        once, or be polled for, which costs another number of instructions."""
        deadline, asleep = time.monotonic() + PATIENCE, 0
        while asleep < 3:
            if time.monotonic() > deadline:
                raise SystemExit("the server does not come to rest")
            time.sleep(0.0002)
            asleep = asleep + 1 if self.sleeps() else 0

    def sleeps(self):
        """Whether none of its threads runs or wants to."""
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            try:
                # Behind the name, which may contain anything.
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended meanwhile.
            if state != "S":
                return False
        return True

    def stop(self):
        status = self.process.stop()
        if status != 0:
            raise SystemExit(f"the server ended with status {status}: {self.process.log_text()}")


@contextlib.contextmanager
def started(binary):
    """A server in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="weft-instructions-") as folder:
        server = Server(binary, folder)
        try:
            yield server
        except BaseException:
            print(server.process.log_text(), file=sys.stderr)
            server.process.crash()
            raise
        server.stop()
