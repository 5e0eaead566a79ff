"""A server in a PID namespace of its own, as in a container: clients outside it have no process id there, and use its Unix
sockets and shared memory all the same."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

import weft

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
FILE = weft.FREE_PORTS + weft.NO_ACCOUNTS + """
[shares.data]
path = "data"
[volumes.v1]
"""


def can_unshare():
    return shutil.which("unshare") and subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(can_unshare(), "needs root and PID namespaces")
class OwnProcesses(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-pid-")))
        self.state = self.work / "state"
        (self.work / "data").mkdir()
        self.weft("user", "add", weft.USER, password=weft.PASSWORD)
        self.weft("volume", "create", "v1", "--size", "2M", "--file", self.work / "v1.img")
        text = FILE.replace("[listeners]\n", f'[listeners]\nnbd_socket = "{self.work}/nbd.sock"\n')
        (self.work / "weft.toml").write_text(f'admin = "unix:{self.work}/admin.sock"\n' + text)
        command = [*UNSHARE, weft.WEFT, "serve", "--config", self.work / "weft.toml", "--state-dir", self.state, "--json"]
        self.server = weft.Process(command, self.work / "log")
        self.addCleanup(self.end)

    def end(self):
        # unshare does not pass a signal on.
        parent = self.server.process.pid
        [child] = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        self.assertEqual(self.server.end(), 0, self.server.log_text())

    def weft(self, *arguments, password=""):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, password=password, timeout=60)

    def test_clients_outside_it_are_served(self):
        for _ in range(3):
            self.assertIn("process 1,", self.weft("status").stdout)
        self.assertIn("read the configuration again", self.weft("reload").stdout)
        with socket.socket(socket.AF_UNIX) as page:
            page.settimeout(60)
            page.connect(str(self.work / "admin.sock"))
            page.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertTrue(page.recv(4096).startswith(b"HTTP/1.1 200 "))
        size = weft.run("nbdinfo", "--size", f"nbd+unix:///v1?socket={self.work}/nbd.sock", timeout=60)
        self.assertEqual(int(size.stdout), 2 << 20)
        (self.work / "file").write_text("by shared memory")
        url = f"smb://{weft.USER}@127.0.0.1:{self.server.smb_port}/data/file"
        weft.run(weft.WEFT, "cp", "-q", self.work / "file", url, "--transport", "shm", timeout=60)
        self.assertEqual((self.work / "data" / "file").read_text(), "by shared memory")
        self.assertEqual([line for line in self.server.faults() if "accept" in line or "refused" in line or "socket" in line], [])
