"""Makes the file system that packaging/Containerfile describes, and runs it as rootless engines do, without one: a user namespace with a range
of ids that belong to nobody on this host, namespaces of its own for mounts, processes, IPC and the name, a read-only root, no capability, and
the server as process 1.

What is missing on purpose, because some engines do not provide it: /etc/machine-id, /dev/shm, and any directory for temporary files.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from bare import ENVIRONMENT, PASSWORDS, REPOSITORY, ROOT, Service, check_rights, inside, main, run

# Where the ids of the container begin on this host, and how many there are: those of nobody.
FIRST_ID, IDS = 1_000_000, 65_536
# The shared folders of the host.
SHARED = ROOT.parent / f"{ROOT.name}.srv"
VOLUMES = ROOT.parent / f"{ROOT.name}.volumes"
CAPABILITIES = [f"Cap{name}" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")]


def containerfile():
    """The instructions: pairs of a word and the rest of the line."""
    text = (REPOSITORY / "packaging/Containerfile").read_text()
    lines = [line for line in re.sub(r"\\\n", "", text).splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def words(rest):
    """The words of the form of an instruction that is a list."""
    return json.loads(rest)


class Image:
    """What an engine makes of the Containerfile: its file system is ROOT."""

    def __init__(self):
        self.volumes, self.environment = [], {}
        for instruction, rest in containerfile():
            match instruction:
                case "FROM":
                    # The bare root stands for it.
                    assert rest == "debian:12-slim", rest
                case "COPY":
                    pattern, target = rest.split()
                    assert pattern == "target/deb/weft_*.deb", pattern
                    package, = (ROOT / "root").glob("weft_*.deb")
                    shutil.copy(package, ROOT / target.strip("/"))
                case "RUN":
                    # The package lists of the bare root are there already, and this has no network.
                    inside("sh", "-ec", rest.replace("apt-get update &&", ""))
                case "USER":
                    self.uid, self.gid = map(int, rest.split(":"))
                case "ENV":
                    name, _, value = rest.partition("=")
                    self.environment[name] = value
                case "VOLUME":
                    self.volumes = words(rest)
                case "ENTRYPOINT":
                    self.command = words(rest)
                case "CMD":
                    self.arguments = words(rest)
                case "HEALTHCHECK":
                    self.health = words(rest.partition("CMD ")[2])
                case "EXPOSE" | "STOPSIGNAL":
                    pass
                case _:
                    raise AssertionError(f"unknown instruction: {instruction}")


def give(folder, uid, gid):
    """Everything below belongs to ids of the container."""
    for path in [folder, *folder.rglob("*")]:
        os.lchown(path, uid, gid)


class Container:
    """A running container."""

    def __init__(self, image, *arguments):
        self.image = image
        information, told = os.pipe()
        waits, mapped = os.pipe()
        binds = [word for volume in image.volumes for word in ("--bind", VOLUMES / volume.strip("/"), volume)]
        devices = [word for name in ("null", "zero", "full", "random", "urandom", "tty")
                   for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
        # setpriv does what an engine does itself: from here on, one user without any right.
        closed = ["setpriv", "--reuid", image.uid, "--regid", image.gid, "--clear-groups", "--inh-caps", "-all", "--ambient-caps", "-all",
                  "--bounding-set", "-all", "--no-new-privs", "--"]
        command = ["bwrap", "--unshare-user", "--userns-block-fd", waits, "--info-fd", told, "--unshare-pid", "--as-pid-1", "--unshare-ipc",
                   "--unshare-uts", "--hostname", "container", "--ro-bind", ROOT, "/", "--proc", "/proc", "--tmpfs", "/dev", *devices,
                   "--remount-ro", "/dev", *binds, "--bind", SHARED, "/srv", "--die-with-parent", "--new-session",
                   "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP",
                   *closed, *image.command, *(arguments or image.arguments)]
        environment = {"PATH": ENVIRONMENT["PATH"], **image.environment}
        self.error = None
        # bwrap waits for its ids until this has written them, and Service waits for the server.
        writer = threading.Thread(target=self.map_ids, args=(information, mapped))
        writer.start()
        self.service = Service(command, env=environment, passed=[told, waits])
        writer.join()
        if self.error:
            raise self.error

    def map_ids(self, information, mapped):
        try:
            text = b""
            while not text.rstrip().endswith(b"}"):
                more = os.read(information, 1000)
                if not more:
                    return
                text += more
            pid = json.loads(text)["child-pid"]
            for name in ("gid_map", "uid_map"):
                pathlib.Path(f"/proc/{pid}/{name}").write_text(f"0 {FIRST_ID} {IDS}\n")
            self.pid = pid
            os.write(mapped, b"1")
        except OSError as e:
            self.error = e
        finally:
            os.close(mapped)
            os.close(information)

    def exec(self, *command, expect=0, env=()):
        """Runs a command in it as its user, as `podman exec` does."""
        enter = ["nsenter", "--target", self.pid, "--user", "--mount", "--pid", "--ipc", "--uts", "--root", "--wd", "--setuid",
                 self.image.uid, "--setgid", self.image.gid]
        return run(*enter, *command, expect=expect, env={"PATH": ENVIRONMENT["PATH"], **self.image.environment, **dict(env)})

    def status(self):
        """/proc/PID/status of the server."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def children(self):
        """State letters of the processes whose parent is process 1 of the container."""
        states = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
            except FileNotFoundError:
                continue
            if int(parent) == self.pid:
                states.append(state)
        return states

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.service.process.poll() is None:
            # As an engine does that has lost its patience: the kernel ends what is in the namespace, too.
            os.kill(self.pid, signal.SIGKILL)
            self.service.process.wait(30)
            self.service.process.stdout.close()
        self.service.log.close()


def eventually(case, what, holds, seconds=10):
    deadline = time.monotonic() + seconds
    while not holds():
        case.assertLess(time.monotonic(), deadline, what)
        time.sleep(0.05)


class Contained(unittest.TestCase):
    """The steps run in the order of their names; each relies on those before."""

    @classmethod
    def setUpClass(cls):
        cls.image = Image()
        for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
            (ROOT / name).unlink(missing_ok=True)
        give(ROOT, FIRST_ID, FIRST_ID)
        # A new volume has what the image has there. The folder of the host belongs to the container's user, as `:U` does it.
        for volume in cls.image.volumes:
            run("mkdir", "-p", (VOLUMES / volume.strip("/")).parent)
            run("cp", "-a", ROOT / volume.strip("/"), VOLUMES / volume.strip("/"))
            give(VOLUMES / volume.strip("/"), FIRST_ID + cls.image.uid, FIRST_ID + cls.image.gid)
        for name in ("team", "plans"):
            (SHARED / name).mkdir(parents=True)
        give(SHARED, FIRST_ID + cls.image.uid, FIRST_ID + cls.image.gid)

    def test_1_it_serves_as_process_1_without_any_right(self):
        with Container(self.image) as container:
            self.assertIn("smb=4450", container.service.ready)
            status = container.status()
            self.assertEqual(status["NSpid"].split()[-1], "1")
            self.assertEqual(status["Uid"].split(), [str(FIRST_ID + self.image.uid)] * 4)
            self.assertEqual({status[name] for name in CAPABILITIES}, {"0" * 16})
            self.assertEqual((status["NoNewPrivs"], status["Groups"]), ("1", ""))
            for refused in ("/etc/x", "/usr/bin/x", "/tmp/x", "/dev/x"):
                self.assertIn("Read-only file system", container.exec("touch", refused, expect=1))
            for missing in ("/etc/machine-id", "/dev/shm"):
                container.exec("test", "-e", missing, expect=1)
            for user, group in [("alice", ["--group", "staff"]), ("bob", [])]:
                container.exec("weft", "user", "add", user, *group, env={"WEFT_PASSWORD": PASSWORDS[user]})
            container.exec("weft", "share", "add", "team", "/srv/team", "--write", "@staff")
            container.exec("weft", "share", "add", "plans", "/srv/plans", "--write", "alice", "--read", "bob")
            check_rights(self, 4450)
            one = (SHARED / "team/one").stat()
            self.assertEqual((one.st_uid, one.st_gid), (FIRST_ID + self.image.uid, FIRST_ID + self.image.gid))
            # The log may say what is not served here, and why; nothing is an error.
            self.assertNotIn("ERROR", container.service.text())
            print(container.service.text())

    def test_2_its_volumes_keep_everything(self):
        """The first container was killed: its sockets and locks are still in the volume."""
        with Container(self.image) as container:
            check_rights(self, 4450)
            self.assertIn("alice", container.exec("weft", "user", "list"))

    def test_3_the_health_check_follows_the_server(self):
        with Container(self.image) as container:
            self.assertIn("share", container.exec(*self.image.health))
            os.kill(container.pid, signal.SIGSTOP)
            try:
                with self.assertRaises(subprocess.TimeoutExpired):
                    # Its limit is the engine's.
                    subprocess.run(["nsenter", "--target", str(container.pid), "--user", "--mount", "--pid", "--root", "--wd", "--setuid",
                                    str(self.image.uid), "--setgid", str(self.image.gid), *self.image.health],
                                   env=self.image.environment, timeout=3, capture_output=True)
            finally:
                os.kill(container.pid, signal.SIGCONT)
            container.exec(*self.image.health)

    def test_4_process_1_reaps_orphans(self):
        with Container(self.image) as container:
            before = len(container.children())
            # The shell ends at once, so its child gets process 1 as its parent, and ends then.
            for _ in range(3):
                container.exec("sh", "-c", "sleep 0.3 >/dev/null 2>&1 &")
            eventually(self, "the orphans are children of process 1", lambda: len(container.children()) >= before + 3)
            eventually(self, "no zombie is left", lambda: len(container.children()) == before)

    def test_5_sigterm_drains(self):
        with Container(self.image) as container, tempfile.TemporaryDirectory() as folder:
            big = pathlib.Path(folder, "big")
            big.write_bytes(os.urandom(64 << 20))
            client = subprocess.Popen(["smbclient", "//127.0.0.1/team", "-p", "4450", "-U", f"alice%{PASSWORDS['alice']}", "-c",
                                       f"put {big} big; get big {folder}/again"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      stdin=subprocess.DEVNULL)
            eventually(self, "the client writes", lambda: (SHARED / "team/big").exists(), 30)
            began = time.monotonic()
            os.kill(container.pid, signal.SIGTERM)
            self.assertEqual(container.service.process.wait(30), 0, container.service.text())
            # Ten seconds for requests in flight, ten for replication.
            self.assertLess(time.monotonic() - began, 20)
            client.communicate(timeout=60)
        with Container(self.image):
            check_rights(self, 4450)

    def test_6_a_second_signal_ends_it_at_once(self):
        with Container(self.image) as container:
            self.assertIsNone(container.service.process.poll())
            os.kill(container.pid, signal.SIGTERM)
            os.kill(container.pid, signal.SIGTERM)
            container.service.process.wait(30)

    def test_7_an_engine_may_map_a_single_id(self):
        """As `podman run --userns=keep-id` and bubblewrap alone do it: the container's only user is the one who starts it."""
        outside = 65_533
        try:
            for folder in (VOLUMES, SHARED):
                give(folder, outside, outside)
            binds = [word for volume in self.image.volumes for word in ("--bind", VOLUMES / volume.strip("/"), volume)]
            sandbox = ["bwrap", "--unshare-user", "--uid", self.image.uid, "--gid", self.image.gid, "--unshare-pid", "--unshare-ipc",
                       "--unshare-uts", "--cap-drop", "ALL", "--ro-bind", ROOT, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                       *binds, "--bind", SHARED, "/srv", "--die-with-parent", "--new-session"]
            with Service(["setpriv", "--reuid", outside, "--regid", outside, "--clear-groups", "--bounding-set", "-all", "--no-new-privs",
                          *sandbox, *self.image.command, *self.image.arguments],
                         env={"PATH": ENVIRONMENT["PATH"], **self.image.environment}):
                check_rights(self, 4450)
        finally:
            for folder in (VOLUMES, SHARED):
                give(folder, FIRST_ID + self.image.uid, FIRST_ID + self.image.gid)


if __name__ == "__main__":
    main(Contained, "made, run and stopped")
