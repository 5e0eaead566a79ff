"""The commands of the RDMA layer as users type them: ping, perf, devices, doctor; exit statuses and JSON included."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import weft


@contextlib.contextmanager
def rdma_server(*command):
    """A server of `weft rdma`; yields its ready line and checks that it ends cleanly."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(weft.WEFT), "rdma", *command, "--port", "0", "--json"],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )
        try:
            ready = json.loads(process.stdout.readline() or "null")
            assert ready, "the server did not get ready"
            yield ready
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=30)
            process.stdout.close()
            log.seek(0)
            said = log.read()
        assert status == 0, f"ended with {status}\n{said}"
        assert "panicked" not in said, said


class Ping(unittest.TestCase):
    def test_bytes_go_there_and_back(self):
        with rdma_server("ping", "--server") as ready:
            for provider in ("iwarp", "shm"):
                done = weft.run(
                    weft.WEFT, "rdma", "ping", f"127.0.0.1:{ready['port']}", "-c", "20", "-s", "64K",
                    "--provider", provider, "--json",
                )
                said = json.loads(done.stdout)
                self.assertEqual((said["rounds"], said["intact"], said["error"]), (20, True, None))
                # All payload by RDMA, in both directions.
                self.assertEqual(said["bytes_read_by_peer"], 20 << 16)
                self.assertEqual(said["bytes_written_by_peer"], 20 << 16)

    def test_crc_and_peer_to_peer_on_and_off(self):
        with rdma_server("ping", "--server", "--crc", "asked") as ready:
            for options in ([], ["--crc", "asked"], ["--peer-to-peer"], ["--peer-to-peer", "--crc", "asked"]):
                weft.run(weft.WEFT, "rdma", "ping", f"127.0.0.1:{ready['port']}", "-q", *options)

    @contextlib.contextmanager
    def stopped_in_its_course(self, provider):
        """A ping whose server is stopped (SIGSTOP) after some rounds."""
        with rdma_server("ping", "--server") as ready:
            process = subprocess.Popen(
                [weft.WEFT, "rdma", "ping", f"127.0.0.1:{ready['port']}", "-c", "1000000000", "--provider", provider],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            try:
                for _ in range(3):
                    process.stdout.readline()
                os.kill(ready["pid"], signal.SIGSTOP)
                yield process
            finally:
                os.kill(ready["pid"], signal.SIGCONT)
                process.kill()
                process.wait()
                process.stdout.close()

    def test_a_signal_ends_the_wait_for_a_server_that_is_stopped(self):
        for provider in ["iwarp", "shm"]:
            for number in [signal.SIGINT, signal.SIGTERM]:
                with self.subTest(provider=provider, signal=int(number)), self.stopped_in_its_course(provider) as process:
                    begun = time.monotonic()
                    process.send_signal(number)
                    said, _ = process.communicate(timeout=30)
                    self.assertLess(time.monotonic() - begun, 1)
                    self.assertEqual(process.returncode, -number)
                    self.assertIn("RDMA ping statistics", said)

    def test_a_server_that_is_stopped_is_told_and_given_up(self):
        with self.stopped_in_its_course("iwarp") as process:
            begun = time.monotonic()
            said, _ = process.communicate(timeout=60)
            took = time.monotonic() - begun
        self.assertEqual(process.returncode, 1)
        self.assertRegex(said, r"waiting for the answer of 127\.0\.0\.1:\d+, for 8 s at most")
        self.assertRegex(said, r"127\.0\.0\.1:\d+ .*no answer in 10 s from the peer")
        # Silence is detected up to one check late.
        self.assertTrue(9 < took < 14, took)

    def test_nobody_there_says_what_to_type(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        done = weft.run(weft.WEFT, "rdma", "ping", f"127.0.0.1:{port}", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("weft rdma ping --server", done.stderr)


@weft.alone
class Perf(unittest.TestCase):
    def test_every_byte_of_every_operation(self):
        with rdma_server("perf", "server") as ready:
            for provider in ("iwarp", "shm"):
                done = weft.run(
                    weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{ready['port']}", "--provider", provider,
                    "--op", "send,write,read", "--size", "2,4K,1M", "--qd", "1,32", "--count", "64",
                    # Both ends poll: when other programs use the same two cores, each turn waits for them.
                    "--check", "--json", timeout=600,
                )
                rows = json.loads(done.stdout)
                # Three operations: three sizes of latency, three sizes at two depths of bandwidth.
                self.assertEqual(len(rows), 3 * (3 + 6))
                for row in rows:
                    self.assertEqual((row["iterations"], row["mismatches"]), (64, 0), row)

    def test_both_ways(self):
        with rdma_server("perf", "server") as ready:
            for provider in ("iwarp", "shm"):
                done = weft.run(
                    weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{ready['port']}", "--provider", provider,
                    "--bidirectional", "--op", "write,read", "--size", "4K,1M", "--qd", "8", "--count", "64",
                    "--check", "--json",
                )
                rows = json.loads(done.stdout)
                self.assertEqual([row["op"] for row in rows], ["write", "write", "read", "read"])
                for row in rows:
                    self.assertEqual((row["bidirectional"], row["iterations"], row["mismatches"]), (True, 64, 0), row)
            refused = weft.run(
                weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{ready['port']}", "--bidirectional", "--op", "send",
                check=False,
            )
            self.assertEqual(refused.returncode, 2)
            self.assertIn("--op write,read", refused.stderr)

    def test_a_sweep_prints_a_line_for_each_size(self):
        with rdma_server("perf", "server") as ready:
            done = weft.run(
                weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{ready['port']}", "--size", "2..1M",
                "--duration", "0.002", "--only", "bandwidth",
            )
            lines = [line.split() for line in done.stdout.splitlines()]
            sizes = [int(line[0]) for line in lines if line and line[0].isdigit()]
            self.assertEqual(sizes, [2**n for n in range(1, 21)])

    def test_the_perf_server_answers_pings_too(self):
        with rdma_server("perf", "server") as ready:
            weft.run(weft.WEFT, "rdma", "ping", f"127.0.0.1:{ready['port']}", "-q")

    def test_a_foreign_server_is_recognised(self):
        with weft.serving() as server:
            done = weft.run(
                weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{server.ready['smbd_port']}",
                "--count", "1", "--size", "8", check=False,
            )
            self.assertEqual(done.returncode, 1)
            self.assertIn("weft rdma perf server", done.stderr)


class Devices(unittest.TestCase):
    def test_every_provider_is_listed(self):
        providers = json.loads(weft.run(weft.WEFT, "rdma", "devices", "--json").stdout)
        self.assertEqual([p["provider"] for p in providers], ["iwarp", "shm", "rnic"])
        self.assertTrue(providers[0]["available"] and providers[0]["limits"]["ird"] > 0)
        for provider in providers:
            self.assertEqual(provider["available"], provider["why_not"] is None)
        self.assertIn("iwarp", weft.run(weft.WEFT, "rdma", "devices").stdout)


class Doctor(unittest.TestCase):
    def doctor(self, host, *options, password=weft.PASSWORD):
        done = weft.run(weft.WEFT, "doctor", host, *options, "--json", check=False, password=password)
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if report["verdict"]["rdma"] else 1)
        for step in report["steps"]:
            if step["status"] in ("warning", "failed"):
                self.assertTrue(step.get("remedy"), step)
        return report

    def test_our_server(self):
        with weft.serving() as server:
            ready = server.ready
            host = f"127.0.0.1:{ready['smbd_port']}"
            report = self.doctor(host, "--user", weft.USER, "--smb-port", str(ready["smb_port"]))
            self.assertEqual(report["verdict"]["by"], ["shm", "iwarp"])
            self.assertTrue(report["verdict"]["because"].startswith("RDMA is used"))
            nfs = self.doctor(f"127.0.0.1:{ready['nfs_rdma_port']}", "--service", "nfs")
            self.assertTrue(nfs["verdict"]["rdma"])
            # SMB over TCP does not use RDMA.
            self.assertFalse(self.doctor(f"127.0.0.1:{ready['smb_port']}", "--timeout", "1")["verdict"]["rdma"])

    def test_an_encrypted_server_keeps_its_rdma_and_the_doctor_says_so(self):
        with weft.serving("--require-encryption") as server:
            ready = server.ready
            report = self.doctor(
                f"127.0.0.1:{ready['smbd_port']}", "--user", weft.USER, "--smb-port", str(ready["smb_port"])
            )
            self.assertTrue(report["verdict"]["rdma"])

    def test_a_closed_port_for_people(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        done = weft.run(weft.WEFT, "doctor", f"127.0.0.1:{port}", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"port {port}", done.stdout)
        self.assertIn("RDMA is not used, because of", done.stdout)
        self.assertNotIn("\x1b", done.stdout)


if __name__ == "__main__":
    unittest.main()
