"""Garbage, silence, floods and cuts on every port: the server survives them and serves others meanwhile."""

import contextlib
import os
import pathlib
import random
import resource
import socket
import tempfile
import time
import unittest

import weft


class Hostile(unittest.TestCase):
    def ports(self, server):
        ready = server.ready
        return [ready[name] for name in ("smb_port", "smbd_port", "nfs_port", "nfs_rdma_port", "mountd_port")]

    def test_garbage_on_every_port(self):
        chance = random.Random(1)
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "file", 1 << 20)
            weft.smbclient(server, f"put {source} kept")
            starts = [
                b"",
                b"\0\0\0\x40\xfeSMB",
                b"\0\xff\xff\xff\xfeSMB",
                b"\0\0\0\x40\xffSMB",
                b"\x80\0\0\x28",
                b"\xff\xff\xff\xff",
                b"MPA ID Req Frame",
                b"MPA ID Req Frame\x40\x02\xff\xff",
                b"GET / HTTP/1.1\r\n\r\n",
            ]
            for port in self.ports(server):
                for start in starts:
                    with socket.create_connection(("127.0.0.1", port)) as peer:
                        with contextlib.suppress(OSError):  # it may hang up on us at any byte
                            peer.sendall(start + chance.randbytes(chance.randrange(4096)))
            for _ in range(50):
                for port in self.ports(server):
                    with socket.create_connection(("127.0.0.1", port)) as peer:
                        with contextlib.suppress(OSError):
                            peer.sendall(chance.randbytes(chance.randrange(200)))
            self.still_serves(server, source, work)

    def test_silent_connections_do_not_stop_others(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
            source = weft.random_file(pathlib.Path(work) / "file", 1 << 20)
            weft.smbclient(server, f"put {source} kept")
            for port in self.ports(server):
                for _ in range(20):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            self.still_serves(server, source, work)

    def flood(self, stack, port, count):
        """Connections that send nothing."""
        return [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]

    def closed(self, peers):
        """Number of them that the server has closed."""
        count = 0
        for peer in peers:
            peer.setblocking(False)
            try:
                count += peer.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                count += 1
        return count

    def test_a_flood_of_idle_connections_costs_its_own_oldest(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
            source = weft.random_file(pathlib.Path(work) / "file", 1 << 20)
            weft.smbclient(server, f"put {source} kept")
            # An address gets a quarter of mountd's sixteenth of all connections, and at least 64.
            peers = self.flood(stack, server.ready["mountd_port"], 600)
            self.still_serves(server, source, work)
            self.assertEqual(self.closed(peers[:400]), 400)
            self.assertEqual(self.closed(peers[-60:]), 0)
            # Only the first few lines of a kind are logged.
            self.assertLess(server.log_text().count("in favour of another connection"), 20)

    def test_a_server_without_descriptors_lets_those_go_that_nobody_knows(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
            source = weft.random_file(pathlib.Path(work) / "file", 1 << 20)
            weft.smbclient(server, f"put {source} kept")
            pid = server.ready["pid"]
            descriptors = len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors + 60, before[1]))
            peers = self.flood(stack, server.ready["smb_port"], 300)
            back = pathlib.Path(work) / "back"
            until = time.monotonic() + 30
            while True:
                try:
                    weft.smbclient(server, f"get kept {back}")
                    break
                except AssertionError as e:
                    # During the flood, a connection may take the descriptor that the file needs, or that of this one.
                    refused = any(why in str(e) for why in ["TOO_MANY_OPENED_FILES", "NT_STATUS_CONNECTION_RESET"])
                    if not refused or time.monotonic() > until:
                        raise
            self.assertTrue(weft.same(source, back))
            self.assertGreater(self.closed(peers), 200)
            self.assertLess(server.log_text().count("accepting connections"), 20)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def test_a_client_killed_in_the_middle_loses_nothing_acknowledged(self):
        import subprocess

        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "file", 64 << 20)
            weft.smbclient(server, f"put {source} kept")
            for transport in ["tcp", "iwarp", "shm"]:
                with self.subTest(transport=transport):
                    copy = subprocess.Popen(
                        [str(weft.WEFT), "cp", "-q", str(source), server.url("cut"), "--transport", transport],
                        env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
                        stderr=subprocess.DEVNULL,
                    )
                    # Wait until it is well under way, then kill it without notice.
                    cut = server.folder / "cut"
                    while copy.poll() is None and not any(
                        p.stat().st_size > (1 << 20) for p in server.folder.iterdir() if p.name != "kept"
                    ):
                        pass
                    copy.kill()
                    copy.wait()
                    cut.unlink(missing_ok=True)
            self.still_serves(server, source, work)

    def still_serves(self, server, source, work):
        back = pathlib.Path(work) / "back"
        weft.smbclient(server, f"get kept {back}")
        self.assertTrue(weft.same(source, back))
        for transport in ["tcp", "iwarp", "shm"]:
            for url in [server.url("kept"), server.nfs_url("kept")]:
                back.unlink(missing_ok=True)
                weft.run(weft.WEFT, "cp", "-q", url, back, "--transport", transport)
                self.assertTrue(weft.same(source, back))


if __name__ == "__main__":
    unittest.main()
