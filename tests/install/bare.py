"""A bare root with the package in it: commands of its root, the service as its unit starts it, and clients of this host.

`run.sh` makes the root and the namespaces that this runs in, and passes the root and the repository.
"""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT, REPOSITORY = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
UNITS = "usr/lib/systemd/system"
STATE, CONFIG = ROOT / "var/lib/weft", ROOT / "etc/weft/weft.toml"
PASSWORDS = {"alice": "alices-secret", "bob": "bobs-secret"}
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


def run(*command, expect=0, **kwargs):
    """Runs a command on this host; its exit status must be `expect`. Returns its output, with errors."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300, **kwargs)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{shlex.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def inside(*command, expect=0, env=()):
    """Runs a command as root of the bare root."""
    return run("chroot", ROOT, *command, expect=expect, env={**ENVIRONMENT, **dict(env)})


def typed(command, *lines, asks=rb": $"):
    """Runs a command inside on a terminal, and types these lines, each when it asks once more."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(shutil.which("chroot"), ["chroot", str(ROOT), *command], ENVIRONMENT)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal.
        for line in lines:
            asked = len(shown)
            while not re.search(asks, shown[asked:]):
                shown += os.read(terminal, 1000)
            os.write(terminal, line.encode() + b"\r")
        while more := os.read(terminal, 1000):
            shown += more
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert status == 0, shown.decode()
    return shown.decode()


class Unit:
    """A unit of the package with the drop-ins in /etc, as systemd reads them: the last value of a key counts, the values of a list
    add up, and an empty one forgets those before."""

    def __init__(self, name, root=ROOT):
        texts = [root / UNITS / name, *sorted((root / f"etc/systemd/system/{name}.d").glob("*.conf"))]
        self.lines = [line for text in texts for line in text.read_text().splitlines() if not line.startswith("#")]

    def all(self, key):
        found = []
        for line in self.lines:
            name, _, value = line.partition("=")
            if name == key:
                found = [*found, value] if value else []
        return found

    def last(self, key):
        return self.all(key)[-1]

    def capabilities(self, key):
        """Names as setpriv has them."""
        return [name.removeprefix("CAP_").lower() for value in self.all(key) for name in value.split()]


def processes(name):
    """The processes of this name in this namespace."""
    names = pathlib.Path("/proc").glob("[0-9]*/comm")
    return [int(path.parent.name) for path in names if path.read_text().strip() == name]


class Service:
    """A server that listens. Ended by SIGTERM, as by a service manager."""

    def __init__(self, command, passed=(), begun=lambda pid: None, **kwargs):
        """The descriptors `passed` are the child's from then on. `begun` is called when the process runs."""
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        pass_fds=passed, **{"stdin": subprocess.DEVNULL, **kwargs})
        for descriptor in passed:
            os.close(descriptor)
        begun(self.process.pid)
        self.ready = self.process.stdout.readline()
        if not self.ready.startswith("ready"):
            self.process.wait()
            raise AssertionError(f"{shlex.join(map(str, command))}\n{self.text()}")

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        # In a sandbox, the process that was started is not the server itself.
        own = self.process.pid
        servers = [own] if pathlib.Path(f"/proc/{own}/comm").read_text().strip() == "weft" else processes("weft")
        for pid in servers:
            os.kill(pid, signal.SIGTERM)
        status = self.process.wait(30)
        self.process.stdout.close()
        assert status == 0, f"status {status}\n{self.text()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.log.close()


def service(sockets=(), root=ROOT, enter=()):
    """Starts what the unit starts, as it does: with its user, capabilities, limits and environment, and with these bound sockets.
    `enter` is a command that runs it in other namespaces. The unit's seccomp filter and mounts need systemd itself."""
    unit = Unit("weft.service", root)
    user, group = unit.last("User"), unit.last("Group")
    for key, parent in [("StateDirectory", "var/lib"), ("LogsDirectory", "var/log")]:
        for folder in unit.all(key):
            # systemd makes the folder, and gives it to the user of the service with everything in it.
            (root / parent / folder).mkdir(int(unit.last(f"{key}Mode"), 8), exist_ok=True)
            run("chroot", root, "chown", "-R", f"{user}:{group}", f"/{parent}/{folder}")
    bounding = "-all" + "".join(f",+{name}" for name in unit.capabilities("CapabilityBoundingSet"))
    ambient = "-all" + "".join(f",+{name}" for name in unit.capabilities("AmbientCapabilities"))
    closed = ["--no-new-privs"] if unit.last("NoNewPrivileges") == "yes" else []
    variables = [line for file in unit.all("EnvironmentFile") for line in (root / file.lstrip("/")).read_text().splitlines()]
    environment = dict(word.split("=", 1) for word in [*unit.all("Environment"), *variables])
    mask, files = int(unit.last("UMask"), 8), int(unit.last("LimitNOFILE"))

    def limit():
        os.umask(mask)
        # No more than this host allows.
        most = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    setpriv = ["setpriv", "--reuid", user, "--regid", group, "--init-groups", "--inh-caps", ambient, "--ambient-caps", ambient,
               "--bounding-set", bounding, *closed]
    command = [*enter, "chroot", root, *setpriv, "--", *shlex.split(unit.last("ExecStart"))]
    if not sockets:
        return Service(command, env={**ENVIRONMENT, "HOME": "/var/lib/weft", **environment}, preexec_fn=limit)
    environment |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": ":".join(["weft.socket"] * len(sockets))}
    # systemd passes them from 3 on, to the process of this number, which stays the same in all of these programs.
    copies = [fcntl.fcntl(bound, fcntl.F_DUPFD_CLOEXEC, 100) for bound in sockets]
    moves = " ".join(f"{number}<&{copy} {copy}<&-" for number, copy in enumerate(copies, 3))
    command = ["bash", "-c", f'exec {moves}; export LISTEN_PID=$$; exec "$@"', "bash", *command]
    return Service(command, copies, env={**ENVIRONMENT, "HOME": "/var/lib/weft", **environment}, preexec_fn=limit)


def bound_sockets(root=ROOT):
    """What weft.socket has systemd bind."""
    sockets = []
    for address in Unit("weft.socket", root).all("ListenStream"):
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host.strip("[]"), int(port)))
        bound.listen()
        sockets.append(bound)
    return sockets


def smb(user, share, command, password=None, port=445, expect=0):
    """One command of smbclient."""
    login = f"{user}%{password or PASSWORDS[user]}"
    return run("smbclient", f"//127.0.0.1/{share}", "-p", port, "-t", 90, "-U", login, "-c", command, expect=expect,
               env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})


def check_rights(case, port=445):
    """Alice may write to both shares. Bob may read one, and does not see the other. Nobody else may do anything."""
    with tempfile.TemporaryDirectory() as folder:
        sent, got = pathlib.Path(folder, "sent"), pathlib.Path(folder, "got")
        sent.write_bytes(os.urandom(300_000))
        for share in ("team", "plans"):
            # The exit status of smbclient is that of its last command.
            smb("alice", share, f"put {sent} one", port=port)
            smb("alice", share, f"get one {got}", port=port)
            case.assertEqual(sent.read_bytes(), got.read_bytes())
        got.unlink()
        smb("bob", "plans", f"get one {got}", port=port)
        case.assertEqual(sent.read_bytes(), got.read_bytes())
        case.assertIn("ACCESS_DENIED", smb("bob", "plans", f"put {sent} two", port=port, expect=1))
        case.assertIn("ACCESS_DENIED", smb("bob", "plans", "rm one", port=port, expect=None))
        case.assertIn("ACCESS_DENIED", smb("bob", "team", "ls", port=port, expect=1))
        case.assertIn("LOGON_FAILURE", smb("alice", "team", "ls", password="wrong", port=port, expect=1))
        case.assertIn("LOGON_FAILURE", smb("carol", "team", "ls", password="any", port=port, expect=1))
        case.assertIn("one", smb("alice", "plans", "ls", port=port))


def main(case, did, failfast=True):
    """Runs the tests of a class in the order of their names."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(verbosity=2, failfast=failfast).run(tests)
    print(f"{did} in {time.monotonic() - began:.0f} s")
    sys.exit(not result.wasSuccessful())
