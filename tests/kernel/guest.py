"""Boots the guest with a job, and serves it from the host. Ports are those of the standards: the tests run in a network
namespace of their own (see run.sh), and Linux's cifs takes no other port for SMB Direct than 5445 or 445."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

# Behind this folder, because both have files of tests with the same names.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "interop"))

import weft  # noqa: E402

BOOT = pathlib.Path(__file__).resolve().parent / "guest" / "boot.sh"
PORTS = {"smb": 4450, "smbd": 5445, "nfs": 2049, "nfs-rdma": 20049, "mountd": 20048}
# How the guest names the host, and a file of the folder that both see.
HOST, INPUT = "10.0.2.2", "/lab/input"
# Longer than three RDMA transfers of a mebibyte, and no multiple of anything.
INPUT_BYTES = (3 << 20) + 4099
# Seconds for what takes one or two where nothing else runs: a machine may stand still now and then.
PATIENCE = 600
# LAB_ALOUD=1 shows what guests say when they say it, and not only where a test fails.
ALOUD = os.environ.get("LAB_ALOUD")
# What a kernel says before it says nothing more.
SICK = re.compile(r"BUG:|Oops|general protection|refcount_t:|use-after-free|Call Trace")


class Guest:
    """A guest that runs one job. What it prints comes line by line."""

    def __init__(self, job, siw="", forward="", seconds=1800, tap="", drives=()):
        self.shared = tempfile.TemporaryDirectory(prefix="weft-guest-")
        self.folder = pathlib.Path(self.shared.name)
        self.input = weft.random_file(self.folder / "input", INPUT_BYTES)
        environment = dict(os.environ, LAB_SIW=siw, LAB_FORWARD=forward, LAB_TAP=tap, LAB_SECONDS=str(seconds))
        environment["LAB_DRIVES"] = " ".join(drives)
        self.process = subprocess.Popen(
            [str(BOOT), str(self.folder), job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env=environment, start_new_session=True,
        )
        self.said = []

    def line(self):
        """The next line, or None at the end."""
        line = self.process.stdout.readline()
        if not line:
            return None
        self.said.append(line.rstrip("\n"))
        if ALOUD:
            print(self.said[-1], file=sys.stderr, flush=True)
        return self.said[-1]

    def wait_for(self, text):
        """Reads on until a line is `text`."""
        while (line := self.line()) is not None:
            if line == text:
                return
        raise AssertionError(f"the guest ended and never said {text!r}\n{self.report()}")

    def finish(self):
        """Reads to the end; returns the job's exit status."""
        while self.line() is not None:
            pass
        status = self.process.wait()
        sick = SICK.search(self.console())
        if sick:
            raise AssertionError(f"the guest's kernel is not well: {sick.group()}\n{self.report()}")
        return status

    def kill(self):
        """The plug is pulled."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def console(self):
        console = self.folder / ".console"
        return console.read_text(errors="replace") if console.exists() else ""

    def report(self):
        return "\n".join(["--- guest:", *self.said, "--- its kernel:", *self.console().splitlines()[-30:]])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdout.close()
        self.shared.cleanup()


def run(job, **options):
    """Boots a guest, lets it run the job to its end; fails unless it ends with 0. Returns its lines."""
    with Guest(job, **options) as guest:
        status = guest.finish()
        if status != 0:
            raise AssertionError(f"the job ended with {status}\n{guest.report()}")
        return guest.said


def serving(*options, listen="127.0.0.1", sockets=None):
    """`weft serve` at the ports above."""
    # The guest calls the host by an address that the host does not have. It comes by a NAT, or over RDMA: not from reserved ports.
    insecure = ["--export", "data:insecure", "--export", "ram:insecure"]
    return weft.serving("-v", "--server-name", HOST, *insecure, *options, ports=PORTS, listen=listen, sockets=sockets)


@contextlib.contextmanager
def tap(number=0):
    """A tap device between the host (HOST, or `host(number)`) and a guest: the host can call the guest, and sees its address.
    Gives its name."""
    name = f"weft-guest{number}"
    made = subprocess.run(["ip", "tuntap", "add", "dev", name, "mode", "tap"], capture_output=True, text=True)
    if made.returncode != 0:
        raise unittest.SkipTest(f"no tap device: {made.stderr.strip()}")
    try:
        weft.run("ip", "addr", "add", f"{host(number)}/24", "dev", name)
        weft.run("ip", "link", "set", name, "up")
        yield name
    finally:
        weft.run("ip", "link", "del", name)


def host(number):
    """The host's address on the link of this number."""
    return f"10.0.{number + 2}.2"


def cifs(version, *more, transport="rdma"):
    """Arguments of a mount of the share `data`."""
    rdma, port = (["rdma"], PORTS["smbd"]) if transport == "rdma" else ([], PORTS["smb"])
    options = [f"vers={version}", f"username={weft.USER}", f"password={weft.PASSWORD}", f"port={port}"]
    return f"-t cifs -o {','.join([*options, *rdma, *more])} //{HOST}/data"


def nfs(transport="rdma", *more):
    """Arguments of a mount of the export `data`."""
    port = PORTS["nfs-rdma" if transport == "rdma" else "nfs"]
    options = ["vers=3", "nolock", f"proto={transport}", f"port={port}", "mountproto=tcp", f"mountport={PORTS['mountd']}"]
    return f"-t nfs -o {','.join([*options, *more])} {HOST}:/data"


def eventually(what, holds, seconds=PATIENCE):
    """Waits until `holds()`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {seconds} s: {what}")
        time.sleep(0.1)
