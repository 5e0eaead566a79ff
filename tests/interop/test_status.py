"""weft status: connected clients, their transport, and why it is not RDMA."""

import contextlib
import json
import os
import pathlib
import stat
import subprocess
import tempfile
import time
import unittest

import weft


@contextlib.contextmanager
def smbclient_inside(server):
    """An smbclient that logs on and waits for commands."""
    command = ["smbclient", "//127.0.0.1/data", "-p", str(server.smb_port), "-U", f"{weft.USER}%{weft.PASSWORD}"]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield client
    finally:
        client.stdin.close()
        client.wait(timeout=30)


@contextlib.contextmanager
def put_inside(server, transport):
    """A `weft put` in the middle of its file, by this transport."""
    command = [weft.WEFT, "put", server.url("held"), "--transport", transport]
    environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
    client = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, env=environment)
    try:
        client.stdin.write(b"w" * (12 << 20))
        client.stdin.flush()
        yield client
    finally:
        client.stdin.close()
        client.wait(timeout=60)


def status(state, *options):
    done = weft.run(weft.WEFT, "status", "--state-dir", state, "--json", *options)
    return json.loads(done.stdout)["servers"]


class Status(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-state-")
        self.addCleanup(folder.cleanup)
        self.state = pathlib.Path(folder.name)

    def wait_for(self, wanted):
        """The first status that meets the condition, which may take some time."""
        until = time.monotonic() + 30
        while True:
            [server] = status(self.state)
            found = [c for c in server["connections"] if wanted(c)]
            if found:
                return server, found[0]
            self.assertLess(time.monotonic(), until, json.dumps(server, indent=1))

    def test_a_client_on_rdma_shows_its_bytes_and_one_on_tcp_why(self):
        with weft.serving("--state-dir", self.state) as server:
            with smbclient_inside(server), put_inside(server, "iwarp"):
                self.wait_for(lambda c: c["transport"] == "tcp" and c["sessions"] and c["sessions"][0]["shares"])
                found, direct = self.wait_for(lambda c: c["traffic"]["rdma_read_bytes"] >= 1 << 20)
                self.assertEqual((direct["transport"], direct["provider"]), ("smb-direct", "iwarp"))
                self.assertEqual(direct["dialect"], "3.1.1")
                self.assertIsNone(direct["advice"])
                [session] = direct["sessions"]
                self.assertEqual((session["user"], session["shares"]), (weft.USER, ["data"]))
                self.assertEqual((session["channels"], session["opens"]), (1, 1))

                plain = [c for c in found["connections"] if c["transport"] == "tcp"]
                self.assertEqual(len(plain), 1)
                self.assertEqual(plain[0]["traffic"]["rdma_read_bytes"], 0)
                self.assertIn("smbclient", plain[0]["advice"]["reason"])
                self.assertEqual(found["sessions"], 2)
                self.assertEqual([share["name"] for share in found["shares"]], ["data", "ram"])
                self.assertEqual(found["opens"], 1)

                said = weft.run(weft.WEFT, "status", "--state-dir", self.state).stdout
                self.assertIn("RDMA (iwarp)", said)
                self.assertIn("1 client on TCP although RDMA is served", said)
            # Disconnected clients are no longer shown.
            until = time.monotonic() + 30
            while status(self.state)[0]["connections"]:
                self.assertLess(time.monotonic(), until)

    def test_a_client_of_nfs_is_shown_with_its_version_and_user(self):
        with weft.serving("--state-dir", self.state) as server:
            command = [weft.WEFT, "put", server.nfs_url("held"), "--transport", "tcp"]
            client = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE)
            try:
                client.stdin.write(b"w" * (4 << 20))
                client.stdin.flush()
                _, found = self.wait_for(lambda c: c["protocol"] == "nfs" and c["dialect"] and c["nfs"]["uids"])
                self.assertEqual((found["dialect"], found["nfs"]["uids"]), ("3", [os.getuid()]))
                said = weft.run(weft.WEFT, "status", "--state-dir", self.state).stdout
                self.assertIn("NFS 3", said)
                self.assertIn(f"uid {os.getuid()}", said)
            finally:
                client.stdin.close()
                client.wait(timeout=60)

    def test_servers_are_found_one_by_one_and_dead_ones_passed_over(self):
        with tempfile.TemporaryDirectory() as folder:
            first = weft.Server(folder, "--state-dir", self.state)
            with weft.serving("--state-dir", self.state) as second:
                pids = {server["pid"] for server in status(self.state)}
                self.assertEqual(pids, {first.ready["pid"], second.ready["pid"]})
                [one] = status(self.state, "--pid", second.ready["pid"])
                self.assertEqual(dict(one["ports"])["smb"], second.smb_port)
                first.crash()
                self.assertEqual([server["pid"] for server in status(self.state)], [second.ready["pid"]])
            first.log.unlink()
        refused = weft.run(weft.WEFT, "status", "--state-dir", self.state, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("no server runs", refused.stderr)

    def test_the_socket_is_for_its_owner_alone(self):
        with weft.serving("--state-dir", self.state) as server:
            socket = self.state / "run" / f"{server.ready['pid']}.sock"
            self.assertEqual(stat.S_IMODE(socket.stat().st_mode), 0o600)
            self.assertEqual(stat.S_IMODE(socket.parent.stat().st_mode), 0o700)
        self.assertFalse(socket.exists())

    def test_state_is_for_its_owner_alone(self):
        state = self.state / "new"
        for _ in range(2):
            with weft.serving("--state-dir", state, "--continuous-availability", "data") as server:
                # NFS names its file by the current port.
                journals = [state / "smb-127.0.0.1_0.redb", state / f"nfs-127.0.0.1_{server.ready['nfs_port']}.redb"]
                for journal in journals:
                    self.assertEqual(stat.S_IMODE(journal.stat().st_mode), 0o600)
                self.assertEqual(stat.S_IMODE(state.stat().st_mode), 0o700)
            # As created by an earlier version.
            state.chmod(0o755)
            for journal in journals:
                journal.chmod(0o644)

    def test_an_nbd_client_shows_what_it_does_to_which_volume(self):
        weft.run(weft.WEFT, "volume", "--state-dir", self.state, "create", "vol1", "--size", "8M", "--ram")
        with weft.serving("--state-dir", self.state, "--volume", "vol1", "--nbd-port", "0") as server:
            uri = f"nbd://127.0.0.1:{server.ready['nbd_port']}/vol1"
            client = subprocess.Popen(
                ["qemu-io", "-f", "raw", uri], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
            )
            try:
                client.stdin.write("write -P 7 0 1M\nflush\n")
                client.stdin.flush()
                found, nbd = self.wait_for(lambda c: (c["nbd"] or {}).get("written_bytes") == 1 << 20)
            finally:
                client.stdin.close()
                client.wait(timeout=30)
            self.assertEqual((nbd["protocol"], nbd["transport"], nbd["nbd"]["volume"]), ("nbd", "tcp", "vol1"))
            self.assertEqual(found["volumes"][0]["clients"], 1)


if __name__ == "__main__":
    unittest.main()
