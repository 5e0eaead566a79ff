"""What a service manager is told by sd_notify, and the unit in packaging."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import unittest.mock

import weft

UNIT = weft.ROOT / "packaging" / "weft.service"


class Service(unittest.TestCase):
    def test_the_service_manager_is_told_of_each_step(self):
        with tempfile.TemporaryDirectory(prefix="weft-service-") as folder:
            work = pathlib.Path(folder)
            (work / "weft.toml").write_text("[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.a]\nram = \"1M\"\n")
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
                if not os.isatty(0):
                    os.kill(server.process.pid, signal.SIGHUP)
                    await_message("RELOADING=1")
                    await_message("READY=1")
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

    def test_shells_get_their_completions(self):
        for shell, says in [("bash", "complete -F _weft"), ("zsh", "#compdef weft"), ("fish", "complete -c weft")]:
            self.assertIn(says, weft.run(weft.WEFT, "completions", shell).stdout)


if __name__ == "__main__":
    unittest.main()
