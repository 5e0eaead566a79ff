"""Copies that outlast their connections: every connection is cut on the way, or the server is killed and restarted."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import unittest

import weft

SIZE = 96 << 20
MIB = 1 << 20


class Cutter:
    """Relays connections to a server. Those in its list are cut, each after so many bytes of both directions
    together; the others are left alone."""

    def __init__(self, port, cuts, waits=False):
        self.port, self.cuts, self.carried = port, list(cuts), 0
        # It may wait first, until the test lets it cut.
        self.reached, self.go_on = threading.Event(), threading.Event()
        if not waits:
            self.go_on.set()
        # Whether it refuses connections after the last cut.
        self.gone = False
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self):
        return self.listener.getsockname()[1]

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                if self.gone and not self.cuts:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.port))
                except OSError:
                    # It is unavailable at the moment.
                    client.close()
                    continue
                threading.Thread(target=self.both_ways, args=(client, server), daemon=True).start()

    def both_ways(self, client, server):
        pair = (client, server)
        back = threading.Thread(target=self.carry, args=(server, client, pair), daemon=True)
        back.start()
        self.carry(client, server, pair)
        back.join()
        for end in pair:
            end.close()

    def carry(self, one, other, pair):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 18):
                with self.lock:
                    self.carried += len(data)
                    cut = self.cuts and self.carried >= self.cuts[0]
                    if cut:
                        self.cuts.pop(0)
                if cut:
                    self.reached.set()
                    self.go_on.wait()
                    break
                other.sendall(data)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


class Lasting(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-lasting-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.large = weft.random_file(self.work / "large", SIZE)

    def url(self, port, name):
        return f"smb://{weft.USER}@127.0.0.1:{port}/data/{name}"

    def copy(self, *arguments):
        """Runs `weft cp` over TCP; returns its summary."""
        done = weft.run(weft.WEFT, "cp", "-q", "--json", "--transport", "tcp", *arguments)
        return json.loads(done.stdout)

    def test_connections_that_are_cut(self):
        # Upload, download, and the verification of the copy.
        cuts = [at * MIB for at in [8, 40, 90, 130, 180]]
        for options in [[], ["--encrypt"], ["--sign"]]:
            with self.subTest(options=options), weft.serving() as server:
                cutter = Cutter(server.smb_port, cuts)
                told = self.copy(*options, self.large, self.url(cutter.address, "there"))
                self.assertEqual((cutter.cuts, told["reconnected"]), ([], len(cuts)))
                self.assertTrue(weft.same(self.large, server.folder / "there"))
                self.assertEqual(os.listdir(server.folder), ["there"])
                cutter.close()
                cutter = Cutter(server.smb_port, cuts)
                told = self.copy(*options, self.url(cutter.address, "there"), self.work / "back")
                self.assertEqual((cutter.cuts, told["reconnected"]), ([], len(cuts)))
                self.assertTrue(weft.same(self.large, self.work / "back"))
                cutter.close()

    def test_a_handle_outlasts_the_server(self):
        """On a continuously available share the file is not reopened by its name."""
        with tempfile.TemporaryDirectory(prefix="weft-state-") as state, weft.serving(
            "--continuous-availability", "data", "--state-dir", state
        ) as server:
            cutter = Cutter(server.smb_port, [20 * MIB], waits=True)
            environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_LOG="debug")
            copy = subprocess.Popen(
                [weft.WEFT, "cp", "-q", "--json", "--transport", "tcp", self.large, self.url(cutter.address, "there")],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            cutter.reached.wait()
            server.crash()
            server.start()
            cutter.port = server.smb_port
            cutter.go_on.set()
            out, log = copy.communicate(timeout=120)
            self.assertEqual(copy.returncode, 0, log)
            self.assertEqual(json.loads(out)["reconnected"], 1)
            self.assertNotIn("is opened by its name", log)
            self.assertTrue(weft.same(self.large, server.folder / "there"))
            cutter.close()

    def test_a_folder(self):
        tree = self.work / "tree"
        (tree / "sub").mkdir(parents=True)
        for i in range(40):
            weft.random_file(tree / "sub" / f"file-{i}", MIB + i)
        with weft.serving() as server:
            cutter = Cutter(server.smb_port, [at * MIB for at in [3, 17, 33, 60]])
            weft.run(weft.WEFT, "cp", "-q", "-r", "--transport", "tcp", tree, self.url(cutter.address, ""))
            self.assertEqual(cutter.cuts, [])
            cutter.close()
            for i in range(40):
                name = pathlib.Path("tree") / "sub" / f"file-{i}"
                self.assertTrue(weft.same(self.work / name, server.folder / name))

    def test_what_an_earlier_copy_has_left_behind(self):
        with weft.serving() as server:
            weft.random_file(server.folder / ".there.weft-partial", MIB)
            self.copy(self.large, self.url(server.smb_port, "there"))
            self.assertEqual(os.listdir(server.folder), ["there"])
            self.assertTrue(weft.same(self.large, server.folder / "there"))

    def start_copy(self, source, target):
        """A `weft cp` in the background."""
        command = [weft.WEFT, "cp", "-q", "--json", "--transport", "tcp", source, target]
        copying = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        self.addCleanup(copying.kill)
        return copying

    @contextlib.contextmanager
    def restarted(self, server, cutter):
        """Waits until the copy has come so far, kills the server, runs the block, and restarts the server."""
        self.assertTrue(cutter.reached.wait(timeout=120))
        server.command[server.command.index("--smb-port") + 1] = server.smb_port
        server.crash()
        yield
        server.start()
        cutter.go_on.set()

    def test_a_server_that_is_killed_and_started_again(self):
        for up in [True, False]:
            # In the middle of the copy, and during its verification.
            for at in [40, 140]:
                with self.subTest(up=up, at=at), weft.serving() as server:
                    cutter = Cutter(server.smb_port, [at * MIB], waits=True)
                    ends = [self.large, self.url(cutter.address, "copy")]
                    if not up:
                        weft.random_file(server.folder / "large", SIZE)
                        ends = [self.url(cutter.address, "large"), self.work / "copy"]
                    copying = self.start_copy(*ends)
                    with self.restarted(server, cutter):
                        pass
                    told, said = copying.communicate(timeout=120)
                    self.assertEqual(copying.returncode, 0, said)
                    self.assertEqual(json.loads(told)["reconnected"], 1)
                    cutter.close()
                    copy = server.folder / "copy" if up else self.work / "copy"
                    self.assertTrue(weft.same(self.large, copy))

    def test_a_file_that_is_replaced_meanwhile(self):
        with weft.serving() as server:
            weft.random_file(server.folder / "large", SIZE)
            cutter = Cutter(server.smb_port, [40 * MIB], waits=True)
            copying = self.start_copy(self.url(cutter.address, "large"), self.work / "copy")
            with self.restarted(server, cutter):
                weft.random_file(server.folder / "other", SIZE)
                os.rename(server.folder / "other", server.folder / "large")
            _, said = copying.communicate(timeout=120)
            cutter.close()
            self.assertEqual(copying.returncode, 1, said)
            self.assertIn("while the connection was lost", said)
            self.assertEqual(os.listdir(self.work), ["large"])

    def test_a_server_that_stays_away(self):
        with weft.serving() as server:
            weft.random_file(server.folder / "large", SIZE)
            cutter = Cutter(server.smb_port, [8 * MIB])
            # After the cut, connections are refused.
            cutter.gone = True
            command = [weft.WEFT, "cp", "-q", "--transport", "tcp", "--patience", "1"]
            failed = weft.run(*command, self.url(cutter.address, "large"), self.work / "copy", check=False)
            cutter.close()
            self.assertEqual(failed.returncode, 1)
            self.assertIn("reconnecting, for 1 s at most", failed.stderr)
            self.assertIn("could not be re-established within 1s", failed.stderr)
            self.assertEqual(os.listdir(self.work), ["large"])


if __name__ == "__main__":
    unittest.main()
