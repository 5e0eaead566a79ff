"""What a service manager is told by sd_notify, and the unit in packaging."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import weft

UNIT = weft.ROOT / "packaging" / "weft.service"


@unittest.skipUnless(os.geteuid() == 0, "needs root for a /var/lib of its own")
class Package(unittest.TestCase):
    """The package's scripts, with a /var/lib of their own and in place of the commands that change the host, ones that say so."""

    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-package-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        for name in ["adduser", "deb-systemd-invoke", "runuser", "install", "systemctl"]:
            fake = self.work / "bin" / name
            fake.parent.mkdir(exist_ok=True)
            refuse = "echo 'weft.toml:1:1: wrong'; exit 1" if name == "runuser" else "exit 0"
            fake.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.work}/asked\n{refuse}\n')
            fake.chmod(0o755)

    def scripted(self, prepare, script, *arguments, after=":"):
        """Runs a script of the package; returns its output, and what `after` prints."""
        return weft.run_with_own_mounts(
            f"""mount -t tmpfs none /var/lib
            mount -t tmpfs none /var/log
            mount -t tmpfs none /run
            mkdir -p /run/systemd/system
            {prepare}
            PATH={self.work}/bin:$PATH sh -e {UNIT.parent}/debian/weft.{script} {" ".join(arguments)} 2>&1
            {after}"""
        ).stdout

    def test_a_purge_empties_a_mount_point_and_the_target_of_a_link(self):
        files = "mkdir {0}/volumes; touch {0}/users.key {0}/users.toml {0}/volumes/v.volume {0}/nfs-1.redb"
        mounted = "mkdir /var/lib/weft; mount -t tmpfs none /var/lib/weft; " + files.format("/var/lib/weft")
        said = self.scripted(mounted, "postrm", "purge", after="find /var/lib")
        self.assertIn("it is a mount point", said)
        self.assertEqual([line for line in said.splitlines() if line.startswith("/")], ["/var/lib", "/var/lib/weft"])
        linked = "mkdir /var/lib/disk; ln -s disk /var/lib/weft; touch /var/lib/disk/mine; " + files.format("/var/lib/disk")
        said = self.scripted(linked, "postrm", "purge", after="find /var/lib")
        left = [line for line in said.splitlines() if line.startswith("/")]
        self.assertEqual(left, ["/var/lib", "/var/lib/disk", "/var/lib/disk/mine"], said)
        said = self.scripted("mkdir /var/lib/weft; " + files.format("/var/lib/weft"), "postrm", "purge", after="find /var/lib")
        self.assertEqual([line for line in said.splitlines() if line.startswith("/")], ["/var/lib"])

    def test_a_link_that_leads_nowhere_is_told(self):
        said = self.scripted("ln -s disk /var/lib/weft", "postinst", "configure")
        self.assertIn("/var/lib/weft leads to /var/lib/disk, which does not exist", said)
        self.assertNotIn("install ", (self.work / "asked").read_text())

    def test_an_upgrade_restarts_nothing_that_would_not_start(self):
        said = self.scripted("mkdir /var/lib/weft", "postinst", "configure", "0.1")
        self.assertIn("weft.toml:1:1: wrong", said)
        self.assertIn("the service is not restarted", said)
        asked = (self.work / "asked").read_text()
        self.assertIn("runuser -u weft -- env WEFT_STATE_DIR=/var/lib/weft /usr/bin/weft config check", asked)
        self.assertNotIn("deb-systemd-invoke", asked)
        (self.work / "bin/runuser").write_text("#!/bin/sh\nexit 0\n")
        said = self.scripted("mkdir /var/lib/weft", "postinst", "configure", "0.1")
        self.assertIn("deb-systemd-invoke try-restart weft.service", (self.work / "asked").read_text())
        self.assertNotIn("WARNING", said)
        # As root, where the service runs so.
        (self.work / "bin/systemctl").write_text("#!/bin/sh\necho root\n")
        (self.work / "bin/runuser").write_text(f'#!/bin/sh\necho runuser "$@" >> {self.work}/asked\n')
        self.scripted("mkdir /var/lib/weft", "postinst", "configure", "0.1")
        self.assertIn("runuser -u root -- env", (self.work / "asked").read_text())

    def test_a_purge_removes_the_audit_log(self):
        said = self.scripted("mkdir /var/log/weft; touch /var/log/weft/audit.jsonl", "postrm", "remove", after="find /var/log")
        self.assertIn("/var/log/weft/audit.jsonl", said)
        said = self.scripted("mkdir /var/log/weft; touch /var/log/weft/audit.jsonl", "postrm", "purge", after="find /var/log")
        self.assertNotIn("/var/log/weft", said)


class Manager:
    """A service manager that has started a server; it reads its socket when it is asked to."""

    def __init__(self, case, address=None, fills=False, folders=(), **variables):
        work = pathlib.Path(case.enterContext(tempfile.TemporaryDirectory(prefix="weft-service-")))
        (work / "weft.toml").write_text('[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.a]\nram = "1M"\n')
        for name in folders:
            (work / name).mkdir()
            with open(work / "weft.toml", "a") as file:
                file.write(f'[shares.{name}]\npath = "{name}"\n')
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        case.addCleanup(self.socket.close)
        self.socket.bind(address or str(work / "notify"))
        self.socket.settimeout(30)
        name = self.socket.getsockname()
        self.fillers = 0
        if fills:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, contextlib.suppress(BlockingIOError):
                other.setblocking(False)
                while True:
                    other.sendto(b"other", name)
                    self.fillers += 1
        told = {"NOTIFY_SOCKET": "@" + name[1:].decode() if isinstance(name, bytes) else name, **variables}
        command = [weft.WEFT, "serve", "--config", work / "weft.toml", "--state-dir", work / "state", "--json"]
        with unittest.mock.patch.dict(os.environ, told):
            self.server = weft.Process(["setsid", *command], work / "weft.log")
        case.addCleanup(lambda: self.server.process.poll() is None and self.server.crash())

    def messages(self, seconds):
        """What comes within that time."""
        self.socket.settimeout(seconds)
        until, found = time.monotonic() + seconds, []
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < until:
                found.append(self.socket.recv(4096).decode())
        self.socket.settimeout(30)
        return found

    def await_line(self, text):
        """Receives until a message contains this line."""
        while text not in self.socket.recv(4096).decode().splitlines():
            pass


class Service(unittest.TestCase):
    def test_a_manager_that_does_not_read_its_socket_delays_nothing(self):
        manager = Manager(self, fills=True, WATCHDOG_USEC="100000")
        server = manager.server
        # It is ready, reads its file again, and ends: the first message of these had blocked it.
        for _ in range(3):
            os.kill(server.process.pid, signal.SIGHUP)
        until = time.monotonic() + 30
        while "read the configuration again" not in server.log_text():
            self.assertLess(time.monotonic(), until, server.log_text())
            time.sleep(0.05)
        began = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - began, 10)
        said = server.log_text()
        self.assertEqual(said.count("the service manager ("), 1, said)
        self.assertRegex(said, "the service manager \\(NOTIFY_SOCKET=.*notify\\) was not told STOPPING=1: it does not read its socket")

    def test_a_manager_that_reads_later_hears_everything_in_order(self):
        manager = Manager(self, fills=True)
        os.kill(manager.server.process.pid, signal.SIGHUP)
        for _ in range(manager.fillers):
            self.assertEqual(manager.socket.recv(4096), b"other")
        manager.await_line("READY=1")
        manager.await_line("RELOADING=1")
        manager.await_line("READY=1")
        manager.server.process.send_signal(signal.SIGTERM)
        manager.await_line("STOPPING=1")
        self.assertEqual(manager.server.end(), 0)
        self.assertNotIn("the service manager (", manager.server.log_text())

    def test_a_socket_of_the_abstract_namespace(self):
        manager = Manager(self, address=f"\0weft-test-{os.getpid()}")
        manager.await_line("READY=1")
        manager.server.process.send_signal(signal.SIGTERM)
        manager.await_line("STOPPING=1")
        self.assertEqual(manager.server.end(), 0)

    def test_a_watchdog_that_wants_too_much_or_nothing(self):
        for usec, says, most in [
            ("1", "wants a sign of life every 1 us (WATCHDOG_USEC) and gets one every 50 ms", 30),
            ("0", "WATCHDOG_USEC=0 is not a number of microseconds above 0: the service manager gets no sign of life", 0),
            ("often", "WATCHDOG_USEC=often is not a number of microseconds above 0", 0),
        ]:
            with self.subTest(usec=usec):
                manager = Manager(self, WATCHDOG_USEC=usec)
                manager.await_line("READY=1")
                signs = [message for message in manager.messages(1) if message == "WATCHDOG=1\n"]
                self.assertEqual(len(signs) > 0, most > 0)
                self.assertLessEqual(len(signs), most)
                self.assertIn(says, manager.server.log_text())
                self.assertEqual(manager.server.stop(), 0)

    def test_a_share_whose_folder_is_gone_is_not_counted_as_if_it_were_well(self):
        manager = Manager(self, folders=["b"])
        manager.await_line("STATUS=shares: 2, volumes: 0")
        work = manager.server.log.parent
        (work / "b").rmdir()
        os.kill(manager.server.process.pid, signal.SIGHUP)
        manager.await_line("STATUS=shares: 2, volumes: 0, shares needing attention: 1")
        self.assertEqual(manager.server.stop(), 0)

    def test_the_service_manager_is_told_of_each_step(self):
        with tempfile.TemporaryDirectory(prefix="weft-service-") as folder:
            work = pathlib.Path(folder)
            one = "[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.a]\nram = \"1M\"\n"
            (work / "weft.toml").write_text(one)
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(manager.close)
            manager.bind(str(work / "notify"))
            manager.settimeout(30)
            told = {"NOTIFY_SOCKET": str(work / "notify"), "WATCHDOG_USEC": "400000"}
            command = [weft.WEFT, "serve", "--config", work / "weft.toml", "--state-dir", work / "state", "--json"]
            with unittest.mock.patch.dict(os.environ, told):
                server = weft.Process(["setsid", *command], work / "weft.log")

            def await_message(text):
                """Receives until a message contains this line."""
                while text not in (message := manager.recv(4096).decode()).splitlines():
                    self.assertIn(message.split("=")[0], ["WATCHDOG", "STATUS", "READY"], message)
                return message

            try:
                self.assertIn("STATUS=shares: 1, volumes: 0", await_message("READY=1"))
                for _ in range(3):
                    await_message("WATCHDOG=1")
                (work / "weft.toml").write_text(one + "[shares.b]\nram = \"1M\"\n")
                os.kill(server.process.pid, signal.SIGHUP)
                await_message("RELOADING=1")
                self.assertIn("STATUS=shares: 2, volumes: 0", await_message("READY=1"))
                # No signal says that a reload by the admin socket begins.
                (work / "weft.toml").write_text(one)
                weft.run(weft.WEFT, "reload", "--state-dir", work / "state")
                await_message("STATUS=shares: 1, volumes: 0")
            finally:
                os.kill(server.process.pid, signal.SIGTERM)
                await_message("STOPPING=1")
                server.process.wait(30)
                server.process.stdout.close()

    @unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd-analyze")
    def test_the_unit_is_valid_and_closed(self):
        exposure = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=25", str(UNIT)],
                                  capture_output=True, text=True)
        self.assertEqual(exposure.returncode, 0, exposure.stdout[-300:] + exposure.stderr)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd-analyze")
    def test_the_socket_unit_is_valid(self):
        # It says of an unknown line that it is ignored, and calls the unit valid. The program is not installed here.
        said = weft.run("systemd-analyze", "verify", "--man=no", UNIT.with_suffix(".socket"), check=False)
        complaints = [line for line in (said.stdout + said.stderr).splitlines() if "weft.socket" in line]
        self.assertEqual(complaints, [])

    def test_the_unit_does_not_give_up(self):
        text = UNIT.read_text()
        self.assertIn("StartLimitIntervalSec=0", text.split("[Service]")[0])
        self.assertIn("Restart=on-failure", text)

    def test_shells_get_their_completions(self):
        for shell, says in [("bash", "complete -F _weft"), ("zsh", "#compdef weft"), ("fish", "complete -c weft")]:
            self.assertIn(says, weft.run(weft.WEFT, "completions", shell).stdout)


if __name__ == "__main__":
    unittest.main()
