"""Starts the release binary for a test and talks to it. Every port is any free one unless the test names it, every file is
temporary."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "target" / "release" / "weft"
USER, PASSWORD = "tester", "secret-of-the-test"


class Server:
    """A running `weft serve` with one folder share `data` and one ramdisk `ram`."""

    def __init__(self, folder, *options, ports=None):
        self.folder = folder
        self.log = tempfile.NamedTemporaryFile("w+", prefix="weft-log-", suffix=".txt", delete=False)
        self.command = [
            WEFT, "serve", folder, "--ram", "ram=2G", "--user", USER, "--listen", "127.0.0.1", "--json",
        ]
        for name in ["smb", "smbd", "nfs", "nfs-rdma", "mountd"]:
            self.command += [f"--{name}-port", (ports or {}).get(name, 0)]
        # The tests may run as root, and then so do the NFS clients that they start.
        self.command += ["--no-root-squash"]
        self.command += options
        self.start()

    def start(self):
        """Starts it; again after `crash`."""
        environment = dict(os.environ, WEFT_PASSWORD=PASSWORD)
        self.process = subprocess.Popen(
            [str(c) for c in self.command], stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True
        )
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise RuntimeError("weft did not get ready: " + self.log_text())
        self.ready = json.loads(line)

    def crash(self):
        """Ends the server without a word to anybody."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    @property
    def smb_port(self):
        return self.ready["smb_port"]

    def log_text(self):
        with open(self.log.name) as log:
            return log.read()

    def stop(self):
        """Ends the server as a service manager does; its exit status must be 0."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=30)
        self.process.stdout.close()
        self.log.close()
        os.unlink(self.log.name)
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
def serving(*options, ports=None):
    """A server on a fresh folder; checks its exit status at the end."""
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        server = Server(data, *options, ports=ports)
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


@contextlib.contextmanager
def own_network():
    """A network of this thread and the processes that it starts, with nothing but a loopback interface: for clients that
    insist on a port that may be somebody else's here. Needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    clone_newnet = 0x4000_0000
    if libc.unshare(clone_newnet) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    try:
        run("ip", "link", "set", "lo", "up")
        yield
    finally:
        if libc.setns(before, clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(before)


def run(*command, check=True, timeout=120, password=PASSWORD, **more):
    """Runs a command to its end; on failure shows what it said."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    environment = dict(os.environ, WEFT_PASSWORD=password, PATH=path)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, errors="replace", timeout=timeout,
        env=environment, **more,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def smbclient(server, commands, *options, share="data", user=USER, password=PASSWORD, check=True):
    """Runs smbclient's commands on a share; returns all that it said."""
    done = run(
        "smbclient", f"//127.0.0.1/{share}", "-p", server.smb_port, "-U", f"{user}%{password}", *options,
        "-c", commands, check=False,
    )
    said = done.stdout + done.stderr
    if check and (done.returncode != 0 or "NT_STATUS_" in said):
        raise AssertionError(f"smbclient {commands!r} {options}: {done.returncode}\n{said}")
    return said


def random_file(path, size):
    """A file of `size` random bytes."""
    with open(path, "wb") as out, open("/dev/urandom", "rb") as chance:
        block = chance.read(min(size, 1 << 20))
        left = size
        number = 0
        while left:
            # Each block differs, so a swapped or repeated block is seen.
            piece = (number.to_bytes(8, "little") + block[8:])[: min(left, len(block))]
            out.write(piece)
            left -= len(piece)
            number += 1
    return path


def same(a, b):
    """Whether two files hold the same bytes."""
    return subprocess.run(["cmp", "-s", str(a), str(b)]).returncode == 0
