"""Starts the binary for a test and talks to it. Ports are chosen freely unless the test names one; every
file is temporary."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import random
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = pathlib.Path(os.environ.get("WEFT_BINARY") or ROOT / "target" / "release" / "weft")
USER, PASSWORD = "tester", "secret-of-the-test"
# The beginning of a configuration: free ports.
FREE_PORTS = """
[listeners]
smb_port = 0
smb_direct_port = 0
nfs_port = 0
mountd_port = 0
"""
# As root, too: the users of most tests have no accounts of the system.
NO_ACCOUNTS = """
[smb]
act_as_callers = false
"""

# Child processes would inherit a signal that is ignored here (by nohup, or in the background of a script).
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def alone(tests):
    """Marks a class of tests that measure, or keep every core busy: `make interop` runs them one by one, with no
    other test at the same time. Plain unittest ignores it."""
    tests.runs_alone = True
    return tests


def is_alone(tests):
    """Whether `alone` marks this class itself. A subclass needs its own mark."""
    return tests is not None and vars(tests).get("runs_alone", False)


class Process:
    """A running `weft serve --json`. `ready` is its first line of output; its log has the later output of all its
    starts."""

    def __init__(self, command, log, sockets=None):
        """`sockets`: names and sockets that each start gets, as a service manager passes them (sd_listen_fds(3))."""
        self.command, self.log, self.sockets = command, pathlib.Path(log), sockets or []
        self.start()

    def start(self):
        """Starts it; again after `crash` or `stop`."""
        environment = dict(os.environ, WEFT_PASSWORD=PASSWORD)
        command = [str(c) for c in self.command]
        with open(self.log, "a") as log, passing(self.sockets) as (prefix, descriptors):
            # Without a terminal, SIGHUP means a reload.
            self.process = subprocess.Popen(
                [*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
                pass_fds=descriptors,
            )
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
            raise RuntimeError("weft did not get ready: " + self.log_text())
        self.ready = json.loads(line)

    @property
    def smb_port(self):
        return self.ready["smb_port"]

    def crash(self):
        """Kills the server without notice."""
        self.process.kill()
        self.end()

    def stop(self):
        """Stops the server as a service manager does; its exit status must be 0."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def restart(self):
        """Stops it and starts it again, as a service manager does; returns the seconds until it is ready."""
        began = time.monotonic()
        status = Process.stop(self)
        if status != 0:
            raise RuntimeError(f"weft ended with status {status}: " + self.log_text())
        self.start()
        return time.monotonic() - began

    def end(self):
        """Waits for its end; returns its exit status."""
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status

    def log_text(self):
        return self.log.read_text()

    def faults(self, *levels):
        """Lines of its log at these levels, by default WARN and ERROR. When other tests keep the host busy, the
        watchdog reports a delayed core; that is not a fault of the server and is left out."""
        levels = levels or ("WARN", "ERROR")
        lines = self.log_text().splitlines()
        return [line for line in lines if any(f" {level} " in line for level in levels) and "to its loop" not in line]


@contextlib.contextmanager
def configured(file, state, *options, launcher=()):
    """A server with this configuration file and state directory; its log is beside the file. Unless the test has waited for its
    end, it is stopped, and its exit status must be 0."""
    command = [*launcher, WEFT, "serve", "--config", file, "--state-dir", state, "--json", *options]
    server = Process(command, pathlib.Path(file).with_name("weft.log"))
    try:
        yield server
    finally:
        if server.process.returncode is None and (status := server.stop()) != 0:
            raise AssertionError(f"weft ended with status {status}: " + server.log_text())


@contextlib.contextmanager
def passing(sockets):
    """A command that starts another with these sockets, pairs of a name and a socket, as descriptors 3 and up. Gives the command, and
    the descriptors that it inherits."""
    if not sockets:
        yield [], []
        return
    # Out of the way of the numbers that they get. In place of None, nothing is passed.
    high = [one and fcntl.fcntl(one, fcntl.F_DUPFD, 100) for _, one in sockets]
    try:
        moves = "".join(f"exec {3 + n}<&{fd} {fd}<&-; " if fd else f"exec {3 + n}<&-; " for n, fd in enumerate(high))
        variables = f"export LISTEN_PID=$$ LISTEN_FDS={len(high)} LISTEN_FDNAMES={shlex.quote(':'.join(name for name, _ in sockets))}; "
        yield ["bash", "-c", moves + variables + 'exec "$@"', "bash"], [fd for fd in high if fd]
    finally:
        for fd in filter(None, high):
            os.close(fd)


class Server(Process):
    """A server with one folder share `data` and one ramdisk `ram`. Its log is deleted when it has stopped."""

    def __init__(self, folder, *options, ports=None, listen="127.0.0.1", sockets=None):
        self.folder = folder
        command = [WEFT, "serve", folder, "--ram", "ram=2G", "--user", USER, "--json"]
        # None: the default addresses.
        if listen is not None:
            command += ["--listen", listen]
        for name in ["smb", "smbd", "nfs", "nfs-rdma", "mountd"]:
            command += [f"--{name}-port", (ports or {}).get(name, 0)]
        # If the tests run as root, so do the NFS clients that they start.
        command += ["--no-root-squash", *options]
        log, path = tempfile.mkstemp(prefix="weft-log-", suffix=".txt")
        os.close(log)
        super().__init__(command, path, sockets)

    def stop(self):
        status = super().stop()
        self.log.unlink()
        return status

    def url(self, path, share="data"):
        return f"smb://{USER}@127.0.0.1:{self.smb_port}/{share}/{path}"

    def nfs_url(self, path, share="data"):
        r = self.ready
        return (
            f"nfs://127.0.0.1:{r['nfs_port']}/{share}/{path}"
            f"?mountport={r['mountd_port']}&rdmaport={r['nfs_rdma_port']}"
        )


@contextlib.contextmanager
def serving(*options, ports=None, listen="127.0.0.1", sockets=None):
    """A server on a fresh folder; checks its exit status at the end."""
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        server = Server(data, *options, ports=ports, listen=listen, sockets=sockets)
        try:
            yield server
        except BaseException:
            print(server.log_text())
            server.stop()
            raise
        log = server.log_text()
        status = server.stop()
        if status != 0:
            print(log)
            raise AssertionError(f"weft ended with status {status}")


def as_root_of(socket_of, *address):
    """Runs `socket_of` with a reserved port of this host, which a server that runs as root expects of NFS clients.
    Without root any port will do, since the server does not run as root either. The arguments in `address` come
    before the port."""
    if os.geteuid() != 0:
        return socket_of((*address, 0))
    for port in random.sample(range(665, 1024), 1024 - 665):
        try:
            return socket_of((*address, port))
        except OSError as e:
            if e.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise OSError("no reserved port is free")


def nfs_connection(port, source="127.0.0.1", timeout=60):
    """A TCP connection as NFS clients make it."""
    there = ("127.0.0.1", port)
    return as_root_of(lambda own: socket.create_connection(there, timeout, source_address=own), source)


@contextlib.contextmanager
def own_network():
    """A network namespace for this thread and its child processes, with only a loopback interface: for clients that
    need a fixed port, which may be taken here. Sockets of shared memory, which are named by ports, go to a separate
    folder meanwhile. Needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    clone_newnet = 0x4000_0000
    if libc.unshare(clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    try:
        run("ip", "link", "set", "lo", "up")
        # Addresses for documentation (RFC 5737): packets are dropped silently, as on most networks.
        run("ip", "route", "add", "192.0.2.0/24", "dev", "lo")
        with tempfile.TemporaryDirectory(prefix="weft-run-") as folder, unittest.mock.patch.dict(
            os.environ, XDG_RUNTIME_DIR=folder
        ):
            yield
    finally:
        if libc.setns(before, clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(before)


def run(*command, check=True, timeout=120, password=PASSWORD, **more):
    """Runs a command to its end; shows its output if it fails."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    environment = dict(os.environ, WEFT_PASSWORD=password, PATH=path)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, errors="replace", timeout=timeout,
        env=environment, **more,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def run_with_own_mounts(script, *arguments):
    """Runs a shell script whose mounts no other process sees. Needs root."""
    # In a chroot, / may not be a mount point: then there is nothing above it to make private.
    script = "mount --make-rprivate / 2> /dev/null\nset -e\n" + script
    return run("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, "sh", *arguments)


def smbclient(server, commands, *options, share="data", user=USER, password=PASSWORD, check=True, **more):
    """Runs smbclient's commands on a share; returns all output."""
    done = run(
        "smbclient", f"//127.0.0.1/{share}", "-p", server.smb_port, "-U", f"{user}%{password}", *options,
        "-c", commands, check=False, **more,
    )
    said = done.stdout + done.stderr
    if check and (done.returncode != 0 or "NT_STATUS_" in said):
        raise AssertionError(f"smbclient {commands!r} {options}: {done.returncode}\n{said}")
    return said


def free_port():
    """A TCP port of 127.0.0.1 that nobody uses, and that no connection gets by itself: it is below the kernel's range for those (32768 to
    60999)."""
    while True:
        with socket.socket() as any_port, contextlib.suppress(OSError):
            any_port.bind(("127.0.0.1", random.randrange(10000, 32000)))
            return any_port.getsockname()[1]


def random_file(path, size):
    """A file of `size` random bytes. The same name gives the same bytes each time, so that a failure by content is
    reproducible; WEFT_TEST_SEED changes them."""
    seed = os.environ.get("WEFT_TEST_SEED", "20261122")
    block = random.Random(f"{seed} {pathlib.Path(path).name}").randbytes(min(size, 1 << 20))
    with open(path, "wb") as out:
        left = size
        number = 0
        while left:
            # Each block differs, so that a swapped or repeated block shows.
            piece = (number.to_bytes(8, "little") + block[8:])[: min(left, len(block))]
            out.write(piece)
            left -= len(piece)
            number += 1
    return path


def same(a, b):
    """Whether two files hold the same bytes."""
    return subprocess.run(["cmp", "-s", str(a), str(b)]).returncode == 0
