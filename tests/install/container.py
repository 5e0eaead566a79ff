"""Makes the file system that packaging/Containerfile describes, and runs it as rootless engines do, without one: as a user without rights, in a
user namespace with a range of ids, namespaces of its own for mounts, processes, IPC and the name, a read-only root, no capability, and the
server as process 1.

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
import time
import unittest

from bare import ENVIRONMENT, PASSWORDS, REPOSITORY, ROOT, Service, check_rights, inside, main, run

# The user of this host who starts the container, and who is root in it; where its other ids begin on this host (as /etc/subuid says), and
# how many there are. All are those of nobody here.
STARTER, FIRST_ID, IDS = 65_533, 1_000_000, 65_535
# The shared folders of the host.
SHARED = ROOT.parent / f"{ROOT.name}.srv"
VOLUMES = ROOT.parent / f"{ROOT.name}.volumes"
# A folder of the host that is mounted, too, and that nobody shares.
OUTSIDE = ROOT.parent / f"{ROOT.name}.outside"
# Where everybody may look for the root, wherever it is.
MOUNTED = pathlib.Path("/mnt")
# What an engine does between the namespaces and the program: each command is exec'ed, and so has the rights of the container's root. Arguments:
# the root, how many volumes, pairs of a folder of this host and a folder in the container, and the command.
SETUP = r"""
read -r mapped
root=$1 volumes=$2
shift 2
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -o remount,bind,ro dev
while [ "$volumes" -gt 0 ]; do
    mount --bind "$1" ".$2"
    volumes=$((volumes - 1))
    shift 2
done
mount -o remount,bind,ro "$root"
hostname container
pivot_root . .
umount -l .
exec "$@" </dev/null
"""
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


def outside(number):
    """The id on this host of an id of the container."""
    return FIRST_ID + number - 1


class Container:
    """A running container."""

    def __init__(self, image, *arguments):
        self.image = image
        volumes = [word for volume in image.volumes for word in (VOLUMES / volume.strip("/"), volume)]
        volumes += [SHARED, "/srv", OUTSIDE, "/var/lib/outside"]
        # From here on, one user without any right.
        closed = ["setpriv", "--reuid", image.uid, "--regid", image.gid, "--clear-groups", "--inh-caps", "-all", "--ambient-caps", "-all",
                  "--bounding-set", "-all", "--no-new-privs", "--"]
        command = ["setpriv", "--reuid", STARTER, "--regid", STARTER, "--clear-groups", "unshare", "--user", "--mount", "--pid", "--ipc", "--uts",
                   "--fork", "--kill-child", "bash", "-euc", SETUP, "bash", MOUNTED, len(volumes) // 2, *volumes,
                   *closed, *image.command, *(arguments or image.arguments)]
        go, self.mapped = os.pipe()
        self.service = Service(command, begun=self.begin, stdin=go, env={"PATH": ENVIRONMENT["PATH"], **image.environment})
        os.close(go)

    def begin(self, pid):
        """Maps the ids, as newuidmap does for those of /etc/subuid."""
        own = os.readlink("/proc/self/ns/user")
        deadline = time.monotonic() + 10
        while os.readlink(f"/proc/{pid}/ns/user") == own or not self.children(pid):
            assert time.monotonic() < deadline, "no user namespace"
            time.sleep(0.01)
        for name in ("uid_map", "gid_map"):
            pathlib.Path(f"/proc/{pid}/{name}").write_text(f"0 {STARTER} 1\n1 {FIRST_ID} {IDS}\n")
        (self.pid, _), = self.children(pid)
        os.write(self.mapped, b"\n")
        os.close(self.mapped)

    def exec(self, *command, expect=0, env=()):
        """Runs a command in it as its user, as `podman exec` does."""
        enter = ["nsenter", "--target", self.pid, "--user", "--mount", "--pid", "--ipc", "--uts", "--root", "--wd", "--setuid",
                 self.image.uid, "--setgid", self.image.gid]
        return run(*enter, *command, expect=expect, env={"PATH": ENVIRONMENT["PATH"], **self.image.environment, **dict(env)})

    def status(self):
        """/proc/PID/status of the server."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def children(self, pid):
        """The processes whose parent is this one: number and state letter."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
            except FileNotFoundError:
                continue
            if int(parent) == pid:
                found.append((int(path.parent.name), state))
        return found

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
        for name in ("proc", "sys", "dev"):
            run("umount", "--recursive", "--lazy", ROOT / name)
        give(ROOT, STARTER, STARTER)
        run("mount", "--bind", ROOT, MOUNTED)
        # A new volume has what the image has there. The folder of the host belongs to the container's user, as `:U` does it.
        for volume in cls.image.volumes:
            run("mkdir", "-p", (VOLUMES / volume.strip("/")).parent)
            run("cp", "-a", ROOT / volume.strip("/"), VOLUMES / volume.strip("/"))
            give(VOLUMES / volume.strip("/"), outside(cls.image.uid), outside(cls.image.gid))
        for name in ("team", "plans"):
            (SHARED / name).mkdir(parents=True)
        OUTSIDE.mkdir()
        # Where it is mounted: the root is read-only then.
        (ROOT / "var/lib/outside").mkdir()
        give(SHARED, outside(cls.image.uid), outside(cls.image.gid))

    def test_1_it_serves_as_process_1_without_any_right(self):
        with Container(self.image) as container:
            self.assertIn("smb=4450", container.service.ready)
            status = container.status()
            self.assertEqual(status["NSpid"].split()[-1], "1")
            self.assertEqual(status["Uid"].split(), [str(outside(self.image.uid))] * 4)
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
            self.assertEqual((one.st_uid, one.st_gid), (outside(self.image.uid), outside(self.image.gid)))
            self.assertNotIn("ERROR", container.service.text())

    def test_2_its_volumes_keep_everything(self):
        """The first container was killed: its sockets and locks are still in the volume."""
        with Container(self.image) as container:
            check_rights(self, 4450)
            self.assertIn("alice", container.exec("weft", "user", "list"))

    def test_3_the_server_confines_itself(self):
        """Its user may read a file outside the shares. The server may not: it fails to reload a configuration that is a link to it."""
        config, linked = VOLUMES / "etc/weft/weft.toml", pathlib.Path("/var/lib/outside/weft.toml")
        text = config.read_text()
        (OUTSIDE / linked.name).write_text(text)
        give(OUTSIDE, outside(self.image.uid), outside(self.image.gid))
        try:
            for arguments, confined in [([], True), (["--unconfined"], False)]:
                with Container(self.image, *self.image.arguments, *arguments) as container:
                    said, status = container.service.text(), container.status()
                    self.assertEqual("the server is confined: Landlock" in said, confined, said)
                    self.assertEqual("seccomp refuses" in said, confined, said)
                    # An engine has a filter of its own; here there is none.
                    self.assertEqual(status["Seccomp"], "2" if confined else "0")
                    container.exec("ln", "-sf", linked, "/etc/weft/weft.toml")
                    self.assertEqual(container.exec("cat", linked), text)
                    said = container.exec("weft", "reload", expect=int(confined))
                    self.assertEqual("Permission denied" in said, confined, said)
                    # The server continues with what it had, or has read the same again.
                    check_rights(self, 4450)
                    container.exec("rm", "/etc/weft/weft.toml")
                    container.exec("cp", linked, "/etc/weft/weft.toml")
        finally:
            config.unlink(missing_ok=True)
            config.write_text(text)
            give(VOLUMES / "etc/weft", outside(self.image.uid), outside(self.image.gid))

    def test_4_the_health_check_follows_the_server(self):
        with Container(self.image) as container:
            self.assertIn("share", container.exec(*self.image.health))
            os.kill(container.pid, signal.SIGSTOP)
            try:
                # The engine's limit, after which the check has failed.
                container.exec("timeout", "3", *self.image.health, expect=124)
            finally:
                os.kill(container.pid, signal.SIGCONT)
            container.exec(*self.image.health)

    def test_5_process_1_reaps_orphans(self):
        with Container(self.image) as container:
            before = len(container.children(container.pid))
            # The shell ends at once, so its child gets process 1 as its parent, and ends then.
            for _ in range(3):
                container.exec("sh", "-c", "sleep 0.3 >/dev/null 2>&1 &")
            eventually(self, "the orphans are children of process 1", lambda: len(container.children(container.pid)) >= before + 3)
            eventually(self, "no zombie is left", lambda: len(container.children(container.pid)) == before)

    def test_6_sigterm_drains(self):
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

    def test_7_an_engine_may_map_a_single_id(self):
        """As `podman run --userns=keep-id` and bubblewrap alone do it: the container's only user is the one who starts it."""
        try:
            for folder in (VOLUMES, SHARED):
                give(folder, STARTER, STARTER)
            binds = [word for volume in self.image.volumes for word in ("--bind", VOLUMES / volume.strip("/"), volume)]
            sandbox = ["bwrap", "--unshare-user", "--uid", self.image.uid, "--gid", self.image.gid, "--unshare-pid", "--unshare-ipc",
                       "--unshare-uts", "--cap-drop", "ALL", "--ro-bind", MOUNTED, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                       *binds, "--bind", SHARED, "/srv", "--die-with-parent", "--new-session"]
            with Service(["setpriv", "--reuid", STARTER, "--regid", STARTER, "--clear-groups", "--bounding-set", "-all", "--no-new-privs",
                          *sandbox, *self.image.command, *self.image.arguments],
                         env={"PATH": ENVIRONMENT["PATH"], **self.image.environment}) as running:
                check_rights(self, 4450)
                self.assertIn("the server is confined: Landlock", running.text())
        finally:
            for folder in (VOLUMES, SHARED):
                give(folder, outside(self.image.uid), outside(self.image.gid))


if __name__ == "__main__":
    main(Contained, "made, run and stopped")
