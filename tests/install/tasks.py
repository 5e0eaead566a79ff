"""Carries out the commands of docs/tasks, page by page, in bare roots with the package.

A block `sh` is for root on the server, `sh client` for a client of it, `sh both`, `sh nas1` and `sh nas2` for two hosts with a network of
their own, `sh lost` for nas2 after nas1 has been killed. Blocks without a language need what is not here (another operating system, a card, an engine), and are not run. systemctl and
journalctl are played by this program, for the service that it starts as the unit says; passwords are typed where a command asks for one.
Each page begins with the package as it is after its installation, but for the one that installs it.
"""

import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from bare import ENVIRONMENT, REPOSITORY, ROOT, bound_sockets, main, run, service

PAGES = REPOSITORY / "docs/tasks"
PASSWORD = "correct-horse-battery"
# What the pages take for granted; run.sh has downloaded it.
GRANTED = ["curl", "openssl", "ca-certificates"]
BLOCK = re.compile(r"^```sh *(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(rb"(?i)(password[^\n]*|the same again): *$")
CONFIRM = re.compile(rb"\[Y/n\] *$")


def typed(command, folder, environment):
    """Runs a command on a terminal, and answers what it asks for. Returns its status and what it shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(str(command[0]), [str(word) for word in command], environment)
    shown, answered = b"", 0
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal.
        while more := os.read(terminal, 4096):
            shown += more
            for prompt, answer in [(PROMPT, PASSWORD), (CONFIRM, "Y")]:
                if prompt.search(shown[answered:]):
                    answered = len(shown)
                    os.write(terminal, answer.encode() + b"\r")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, shown.decode(errors="replace")


class Host:
    """A host with a root of its own, which is forgotten at the end."""

    def __init__(self, name, lower, enter=()):
        self.name, self.enter = name, list(enter)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-", dir=ROOT.parent))
        for part in ("upper", "work", "root"):
            (self.work / part).mkdir()
        self.root = self.work / "root"
        layers = f"lowerdir={':'.join(map(str, lower))},upperdir={self.work}/upper,workdir={self.work}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, self.root)
        for part in ("proc", "dev", "sys"):
            run("mount", "--rbind", f"/{part}", self.root / part)
        # Folders that clients use are of an ordinary file system, as on most hosts.
        (self.work / "srv").mkdir()
        run("mount", "--bind", self.work / "srv", self.root / "srv")
        self.service, self.sockets = None, []

    def start(self):
        if self.service is None:
            self.service = service(self.sockets, self.root, self.enter)

    def stop(self):
        if self.service is not None:
            self.service.stop()
            self.service = None

    def kill(self):
        """As a host that loses its power. What it has on its disk stays."""
        self.service.process.kill()
        self.service.process.wait()
        self.service.process.stdout.close()
        self.service.log.close()
        self.service = None

    def systemctl(self, words):
        match words:
            case ["restart", "weft"]:
                self.stop()
                self.start()
            case ["start", "weft"]:
                self.start()
            case ["stop", "weft"]:
                self.stop()
            case ["enable", "--now", "weft.socket"]:
                self.sockets = bound_sockets(self.root)
            case ["daemon-reload"]:
                pass
            case _:
                raise AssertionError(f"nobody plays systemctl {words}")

    def run(self, block):
        """Runs a block. Each of its lines must succeed."""
        rest = ""
        for line in [*block.splitlines(), "systemctl"]:
            words = line.split("#")[0].split()
            if words[:1] not in (["systemctl"], ["journalctl"]):
                rest += line + "\n"
                continue
            if rest:
                self.shell(rest)
                rest = ""
            if words[1:] and words[0] == "systemctl":
                self.systemctl(words[1:])

    def shell(self, text):
        # The package's own script starts the service where systemd runs.
        installs = re.search(r"apt install .*weft_", text)
        status, shown = typed([*self.enter, "chroot", self.root, "bash", "-ec", f"cd /root\n{text}"], "/", ENVIRONMENT)
        log = self.service.text() if self.service else ""
        assert status == 0, f"{self.name}: status {status}\n{text}\n{shown}\nlog:\n{log}"
        if installs:
            self.start()

    def remove(self):
        with contextlib.suppress(AssertionError):
            self.stop()
        for bound in self.sockets:
            bound.close()
        run("umount", "--recursive", self.root)
        shutil.rmtree(self.work)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        package, = (ROOT / "root").glob("weft_*.deb")
        deb = ROOT / "root/target/deb"
        deb.mkdir(parents=True)
        shutil.move(package, deb / package.name)
        installed = Host("installed", [ROOT])
        installed.shell(f"apt-get install -y -qq --no-install-recommends {' '.join(GRANTED)} >/dev/null")
        run("umount", "--recursive", installed.root)
        cls.bare = [installed.work / "upper", ROOT]
        later = Host("installed", cls.bare)
        status, shown = typed(["chroot", later.root, "bash", "-ec", "cd /root; apt install -y ./target/deb/weft_*.deb"], "/", ENVIRONMENT)
        assert status == 0, shown
        run("umount", "--recursive", later.root)
        cls.installed = [later.work / "upper", *cls.bare]
        cls.folders = [installed.work, later.work]

    @classmethod
    def tearDownClass(cls):
        for folder in cls.folders:
            shutil.rmtree(folder)

    def carry_out(self, name, lower=None, prepare=lambda host: None):
        host = Host("nas", lower or self.installed)
        client = tempfile.TemporaryDirectory()
        try:
            prepare(host)
            if not lower:
                host.start()
            for where, block in BLOCK.findall((PAGES / name).read_text()):
                if where == "client":
                    environment = {"PATH": os.environ["PATH"], "HOME": client.name}
                    status, shown = typed(["bash", "-ec", block], client.name, environment)
                    self.assertEqual(status, 0, f"client:\n{block}\n{shown}\n{host.service.text()}")
                else:
                    self.assertEqual(where, "")
                    host.run(block)
        finally:
            host.remove()
            client.cleanup()

    def test_each_page_is_carried_out(self):
        tests = {name.removeprefix("test_").replace("_", "-") + ".md" for name in dir(self) if name.startswith("test_")}
        self.assertEqual({page.name for page in PAGES.glob("*.md") if BLOCK.search(page.read_text())} - tests, set())

    def test_the_first_page_of_the_project(self):
        """The package's paragraph of README.md. `make deb` has been done, and here everybody is root."""
        block, = re.findall(r"^```\n(make deb .*?)^```$", (REPOSITORY / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        *server, client = block.splitlines()
        host = Host("nas", self.bare)
        try:
            host.shell("\n".join(["make() { test \"$*\" = deb; }", 'sudo() { "$@"; }', *server]))
            status, shown = typed(["bash", "-ec", client], "/", {"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
            self.assertEqual(status, 0, f"{client}\n{shown}\n{host.service.text()}")
        finally:
            host.remove()

    def test_team(self):
        self.carry_out("team.md", lower=self.bare)

    def test_nfs_kerberos(self):
        def keytab(host):
            """A keytab with a key, in the format that ktadd writes."""
            principal = b"".join(len(word).to_bytes(2, "big") + word for word in (b"EXAMPLE.ORG", b"nfs", b"nas.example.org"))
            key = (18).to_bytes(2, "big") + (32).to_bytes(2, "big") + os.urandom(32)
            entry = (2).to_bytes(2, "big") + principal + (3).to_bytes(4, "big") + bytes(4) + b"\2" + key
            (host.root / "root/weft.keytab").write_bytes(b"\5\2" + len(entry).to_bytes(4, "big") + entry)
        self.carry_out("nfs-kerberos.md", prepare=keytab)

    def test_rdma_card(self):
        self.carry_out("rdma-card.md")

    def test_restart_upgrade(self):
        def disk(host):
            """A disk that is not mounted yet."""
            (host.root / "srv/team").mkdir(parents=True, exist_ok=True)
            with open(host.root / "etc/fstab", "a") as fstab:
                fstab.write("tmpfs /srv/team tmpfs size=1M 0 0\n")
        self.carry_out("restart-upgrade.md", prepare=disk)

    def test_monitoring(self):
        self.carry_out("monitoring.md")

    def test_backup(self):
        self.carry_out("backup.md")

    def test_security(self):
        self.carry_out("security.md")

    def test_troubleshooting(self):
        self.carry_out("troubleshooting.md")

    def await_roles(self, hosts, **expected):
        """Waits until the group has these roles."""
        deadline = time.monotonic() + 60
        while True:
            shown = {name: run(*host.enter, "chroot", host.root, "weft", "replica", "status", "--json", env=ENVIRONMENT)
                     for name, host in hosts.items()}
            roles = {name: json.loads(text)["groups"][0]["role"] for name, text in shown.items()}
            if roles == expected:
                return
            self.assertLess(time.monotonic(), deadline, f"{roles} instead of {expected}")
            time.sleep(0.2)

    def test_replication(self):
        names = "127.0.0.1 localhost\n10.99.0.1 nas1\n10.99.0.2 nas2\n"
        other = subprocess.Popen(["unshare", "--net", "--uts", "sleep", "infinity"])
        hosts = {}
        try:
            # Until it has a network of its own.
            while os.readlink(f"/proc/{other.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            enter = ["nsenter", "--target", str(other.pid), "--net", "--uts", "--"]
            run("ip", "link", "add", "nas", "type", "veth", "peer", "name", "nas", "netns", other.pid)
            for prefix, number in [([], 1), (enter, 2)]:
                for words in [("addr", "add", f"10.99.0.{number}/24", "dev", "nas"), ("link", "set", "nas", "up"), ("link", "set", "lo", "up")]:
                    run(*prefix, "ip", *words)
                hosts[f"nas{number}"] = Host(f"nas{number}", self.installed, prefix)
            run(*enter, "hostname", "nas2")
            for host in hosts.values():
                (host.root / "etc/hosts").write_text(names)
                host.start()
            blocks = BLOCK.findall((PAGES / "replication.md").read_text())
            lost = [block for where, block in blocks if where == "lost"]
            for where, block in blocks:
                for name in hosts if where == "both" else {where} - {"lost"}:
                    hosts[name].run(block)
            self.await_roles(hosts, nas1="destination", nas2="source")
            hosts["nas2"].run("weft replica switch vol1")
            self.await_roles(hosts, nas1="source", nas2="destination")
            hosts["nas1"].kill()
            for block in lost:
                hosts["nas2"].run(block)
            hosts["nas1"].start()
            self.await_roles(hosts, nas1="destination", nas2="source")
        finally:
            for host in hosts.values():
                host.remove()
            other.kill()
            other.wait()


if __name__ == "__main__":
    # The name of the server that the pages use.
    run("hostname", "nas")
    names = ROOT.parent / f"{ROOT.name}.hosts"
    names.write_text("127.0.0.1 localhost nas nas.example.org\n::1 localhost\n")
    run("mount", "--bind", names, "/etc/hosts")
    (ROOT / "etc/hosts").write_text(names.read_text())
    main(Pages, "carried out", failfast=False)
