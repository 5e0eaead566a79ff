"""Installs the Debian package in a bare root and uses it: as root, who installs and configures, and as alice and bob, who may do
different things. `run.sh` makes the root and the namespaces that this runs in.

The service runs without systemd, with what its unit says: user, capabilities, limits, environment and command.
"""

import contextlib
import os
import pathlib
import pty
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT, REPOSITORY = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
UNIT = ROOT / "lib/systemd/system/weft.service"
STATE, CONFIG = ROOT / "var/lib/weft", ROOT / "etc/weft/weft.toml"
PASSWORDS = {"alice": "alices-secret", "bob": "bobs-secret"}
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
ALL_CAPABILITIES = "-all"


def run(*command, expect=0, **kwargs):
    """Runs a command on this host; its exit status must be `expect`. Returns its output, with errors."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, **kwargs)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{shlex.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def inside(*command, expect=0, env=()):
    """Runs a command as root of the bare root."""
    return run("chroot", ROOT, *command, expect=expect, env={**ENVIRONMENT, **dict(env)})


def typed(command, *lines):
    """Runs a command inside on a terminal, and types these lines when it asks."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(shutil.which("chroot"), ["chroot", str(ROOT), *command], ENVIRONMENT)
    shown = b""
    for line in lines:
        asked = shown.count(b": ")
        while shown.count(b": ") == asked:
            shown += os.read(terminal, 1000)
        os.write(terminal, line.encode() + b"\r")
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal.
        while more := os.read(terminal, 1000):
            shown += more
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert status == 0, shown.decode()
    return shown.decode()


def unit(key):
    """The values of a key of the installed unit."""
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def processes(name):
    """The processes of this name in this namespace. In a sandbox, the one that was started is not the server itself."""
    names = pathlib.Path("/proc").glob("[0-9]*/comm")
    return [int(path.parent.name) for path in names if path.read_text().strip() == name]


class Service:
    """A server that listens. Ended by SIGTERM, as by a service manager."""

    def __init__(self, command, **kwargs):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, **kwargs)
        self.ready = self.process.stdout.readline()
        if not self.ready.startswith("ready"):
            self.process.wait()
            raise AssertionError(f"{shlex.join(map(str, command))}\n{self.text()}")

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in processes("weft"):
            os.kill(pid, signal.SIGTERM)
        status = self.process.wait(30)
        self.process.stdout.close()
        assert status == 0, self.text()
        self.log.close()


def service():
    """Starts what the unit starts, as it does."""
    (user,), (group,), (mask,), (files,) = map(unit, ("User", "Group", "UMask", "LimitNOFILE"))
    may = "-all" + "".join(f",+{name.removeprefix('CAP_').lower()}" for name in unit("AmbientCapabilities")[0].split())
    closed = ["--no-new-privs"] if unit("NoNewPrivileges") == ["yes"] else []
    command = shlex.split(unit("ExecStart")[0])
    environment = dict(word.split("=", 1) for word in unit("Environment"))

    def limit():
        os.umask(int(mask, 8))
        # No more than this host allows.
        most = min(int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    setpriv = ["setpriv", "--reuid", user, "--regid", group, "--init-groups", "--inh-caps", may, "--ambient-caps", may,
               "--bounding-set", may, *closed]
    return Service(["chroot", ROOT, *setpriv, "--", *command], env={**ENVIRONMENT, "HOME": "/var/lib/weft", **environment},
                   preexec_fn=limit)


def smb(user, share, command, password=None, port=445, expect=0):
    """One command of smbclient."""
    login = f"{user}%{password or PASSWORDS[user]}"
    return run("smbclient", f"//127.0.0.1/{share}", "-p", port, "-U", login, "-c", command, expect=expect,
               env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})


def nfs(tool, *words, expect=0):
    """One of libnfs's tools."""
    return run(tool, *words, expect=expect)


def share_url(share, file="", uid=0):
    return f"nfs://127.0.0.1/{share}/{file}?version=3&nfsport=2049&mountport=20048&uid={uid}&gid={uid}"


def listeners():
    """The local addresses of listening TCP sockets, as /proc/net has them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {fields[1].split(":")[0] for fields in lines if fields[3] == "0A"}


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


class Install(unittest.TestCase):
    """The steps run in the order of their names; each relies on those before."""

    def test_1_it_installs_on_a_host_without_systemd(self):
        self.assertFalse((ROOT / "run/systemd/system").exists())
        package, = (ROOT / "root").glob("weft_*.deb")
        said = inside("apt-get", "install", "-y", f"/root/{package.name}")
        self.assertNotRegex(said, r"(?i)\berror|fail")
        self.assertRegex(inside("id", "weft"), r"^uid=\d+\(weft\) gid=\d+\(weft\)")
        self.assertEqual(stat.S_IMODE(STATE.stat().st_mode), 0o700)
        self.assertEqual(STATE.stat().st_uid, int(inside("id", "-u", "weft")))
        self.assertEqual(stat.S_IMODE(CONFIG.stat().st_mode), 0o644)
        self.assertEqual(inside("dpkg-query", "-W", "-f", "${Conffiles}", "weft").split()[0], "/etc/weft/weft.toml")
        self.assertIn("no errors", inside("weft", "config", "check"))
        listed = inside("dpkg-query", "-L", "weft")
        for file in ["man1/weft-user-add.1.gz", "bash-completion/completions/weft", "vendor-completions/_weft",
                     "vendor_completions.d/weft.fish", "weft/examples/weft.toml"]:
            self.assertIn(file, listed)
        inside("bash", "-n", "/usr/share/bash-completion/completions/weft")

    def test_2_the_version_names_the_commit(self):
        head = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
        if head.returncode != 0:
            self.skipTest("this is no work tree of git")
        self.assertRegex(inside("weft", "--version"), rf"^weft [\d.]+ \({head.stdout.strip()}, \d{{4}}-\d\d-\d\d(, modified)?\)\n$")

    def test_3_it_starts_with_nothing_shared_and_takes_users_and_shares_at_once(self):
        for folder in ("team", "plans"):
            inside("install", "-d", "-o", "weft", "-g", "weft", f"/srv/{folder}")
        with service() as running:
            self.assertIn("smb=445", running.ready)
            self.assertLessEqual(listeners(), LOOPBACK)
            self.assertNotIn("password of", running.text())
            self.assertIn("added user alice", typed(["weft", "user", "add", "alice", "--group", "staff"], *[PASSWORDS["alice"]] * 2))
            inside("weft", "user", "add", "bob", env={"WEFT_PASSWORD": PASSWORDS["bob"]})
            inside("weft", "share", "add", "team", "/srv/team", "--write", "@staff")
            inside("weft", "share", "add", "plans", "/srv/plans", "--write", "alice", "--read", "bob")
            self.check_rights()
            version = inside("weft", "--version").split()
            self.assertIn(" ".join(version[:2]), inside("weft", "status"))

    def check_rights(self, port=445):
        """Alice may write to both shares. Bob may read one, and does not see the other. Nobody else may do anything."""
        with tempfile.TemporaryDirectory() as folder:
            sent, got = pathlib.Path(folder, "sent"), pathlib.Path(folder, "got")
            sent.write_bytes(os.urandom(300_000))
            for share in ("team", "plans"):
                smb("alice", share, f"put {sent} one; get one {got}", port=port)
                self.assertEqual(sent.read_bytes(), got.read_bytes())
            got.unlink()
            smb("bob", "plans", f"get one {got}", port=port)
            self.assertEqual(sent.read_bytes(), got.read_bytes())
            self.assertIn("ACCESS_DENIED", smb("bob", "plans", f"put {sent} two", port=port, expect=1))
            self.assertIn("ACCESS_DENIED", smb("bob", "plans", "rm one", port=port, expect=None))
            self.assertIn("ACCESS_DENIED", smb("bob", "team", "ls", port=port, expect=1))
            self.assertIn("LOGON_FAILURE", smb("alice", "team", "ls", password="wrong", port=port, expect=1))
            self.assertIn("LOGON_FAILURE", smb("carol", "team", "ls", password="any", port=port, expect=1))
            self.assertIn("one", smb("alice", "plans", "ls", port=port))

    def test_4_what_root_has_made_is_the_services(self):
        owner = STATE.stat().st_uid
        for path in [STATE, *STATE.rglob("*")]:
            found = path.lstat()
            self.assertEqual(found.st_uid, owner, path)
            self.assertEqual(stat.S_IMODE(found.st_mode) & 0o077, 0, path)
        self.assertEqual({STATE / "users.toml", STATE / "users.key"} - set(STATE.iterdir()), set())
        with service():
            self.check_rights()

    def test_5_nfs_offers_what_its_own_rules_allow(self):
        """NFS has no passwords, so it offers only a share that has rules for NFS, to whoever may connect."""
        text = CONFIG.read_text()
        text = text.replace("smb_port = 445\n", "smb_port = 445\nnfs_port = 2049\nmountd_port = 20048\n")
        CONFIG.write_text(text + "\n[shares.plans.nfs]\nread_only = true\nnet = [\"127.0.0.1\"]\n")
        with service(), tempfile.TemporaryDirectory() as folder:
            sent = pathlib.Path(folder, "sent")
            sent.write_text("new")
            for uid in (1001, 1002):
                self.assertIn("one", nfs("nfs-ls", share_url("plans", uid=uid)))
                nfs("nfs-cp", share_url("plans", "one", uid), pathlib.Path(folder, f"of-{uid}"))
                self.assertEqual((ROOT / "srv/plans/one").read_bytes(), pathlib.Path(folder, f"of-{uid}").read_bytes())
                self.assertNotEqual(run("nfs-cp", sent, share_url("plans", "two", uid), expect=None), "")
                self.assertRegex(nfs("nfs-ls", share_url("team", uid=uid), expect=None), "(?i)fail|error|denied|exist")
            self.assertFalse((ROOT / "srv/plans/two").exists())
            self.check_rights()

    def test_6_it_runs_in_an_unprivileged_container(self):
        """The file system that the Containerfile makes, under bubblewrap as a user without rights: no capability, one user id, the
        system read-only, only the state and the shares writable."""
        containerfile = (REPOSITORY / "packaging/Containerfile").read_text()
        command = [word.strip('"') for word in re.search(r"^CMD \[(.*)\]$", containerfile, re.MULTILINE)[1].split(", ")]
        user = int(inside("id", "-u", "weft"))
        # The ids of a rootless engine: the container's only user is the one who starts it.
        outside = 65533
        for folder in (STATE, ROOT / "srv"):
            run("chown", "-R", outside, folder)
        try:
            sandbox = ["bwrap", "--unshare-user", "--uid", user, "--gid", user, "--unshare-pid", "--unshare-ipc", "--unshare-uts",
                       "--cap-drop", "ALL", "--ro-bind", ROOT, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                       "--bind", STATE, "/var/lib/weft", "--bind", ROOT / "srv", "/srv", "--die-with-parent", "--new-session"]
            with Service(["setpriv", "--reuid", outside, "--regid", outside, "--clear-groups", "--bounding-set", ALL_CAPABILITIES,
                          "--no-new-privs", *sandbox, "/usr/bin/weft", *command], env=ENVIRONMENT) as running:
                port = int(re.search(r"smb=(\d+)", running.ready)[1])
                self.check_rights(port)
        finally:
            for folder in (STATE, ROOT / "srv/team", ROOT / "srv/plans"):
                run("chown", "-R", f"{user}:{user}", folder)

    def test_7_an_upgrade_keeps_edits_and_restarts(self):
        newer = self.newer_package()
        # Debian's own scripts ask for systemd by this folder.
        (ROOT / "run/systemd/system").mkdir(parents=True)
        systemctl, asked = ROOT / "bin/systemctl", ROOT / "root/asked"
        systemctl.write_text('#!/bin/sh\necho "$*" >>/root/asked\n')
        systemctl.chmod(0o755)
        before = CONFIG.read_text()
        try:
            inside("apt-get", "install", "-y", f"/root/{newer.name}")
            self.assertRegex(asked.read_text(), r"(?m)\brestart weft\.service$")
        finally:
            shutil.rmtree(ROOT / "run/systemd")
            systemctl.unlink()
        self.assertIn("share", before)
        self.assertEqual(CONFIG.read_text(), before)
        with service():
            self.check_rights()

    def newer_package(self):
        """The same package with a higher version."""
        package, = (ROOT / "root").glob("weft_*.deb")
        tree, newer = ROOT / "root/tree", ROOT / "root/newer.deb"
        inside("dpkg-deb", "-R", f"/root/{package.name}", "/root/tree")
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+newer", control.read_text()))
        inside("dpkg-deb", "-b", "-Zgzip", "-z1", "/root/tree", "/root/newer.deb")
        return newer

    def test_8_only_a_purge_removes_what_it_keeps(self):
        inside("apt-get", "remove", "-y", "weft")
        self.assertTrue((STATE / "users.toml").exists() and CONFIG.exists())
        self.assertFalse((ROOT / "usr/bin/weft").exists())
        said = inside("apt-get", "purge", "-y", "weft")
        self.assertIn("removing /var/lib/weft", said)
        self.assertFalse(STATE.exists() or CONFIG.exists())
        self.assertTrue((ROOT / "srv/team/one").exists(), "shared files are not the package's")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    result = unittest.TextTestRunner(verbosity=2, failfast=True).run(unittest.defaultTestLoader.loadTestsFromTestCase(Install))
    print(f"installed, used and removed in {time.monotonic() - began:.0f} s")
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
