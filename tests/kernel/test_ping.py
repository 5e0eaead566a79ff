"""rdma-core's rping on the kernel's siw against `weft rdma ping`, as client and as server."""

import contextlib
import json
import subprocess
import unittest

import guest
import weft

PORT, NO_CRC_PORT = 7174, 7175
SETTINGS = ["", "mpa_crc_required=1", "peer_to_peer=1", "mpa_crc_required=1 peer_to_peer=1"]


@contextlib.contextmanager
def answering(port, *options):
    """`weft rdma ping --server`; it must end well."""
    command = [weft.WEFT, "rdma", "ping", "--server", "--port", str(port), "--provider", "iwarp", "--json", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(server.stdout.readline())["ready"]
        yield
    finally:
        server.terminate()
        status = server.wait(timeout=guest.PATIENCE)
        server.stdout.close()
    assert status == 0, status


class Ping(unittest.TestCase):
    def test_rping_asks(self):
        # -V compares the data of each round.
        rounds = "".join(
            f"timeout {guest.PATIENCE} rping -c -a {guest.HOST} -p {port} -C 20 -S {size} -V; status=$?\n"
            f"[ $status = 0 ] && echo good {port} {size} || {{ echo rping ended with $status; exit 1; }}\n"
            for port in [PORT, NO_CRC_PORT] for size in [64, 1000, 65535]
        )
        for siw in SETTINGS:
            with self.subTest(siw=siw), answering(PORT, "--crc", "always"), answering(NO_CRC_PORT, "--crc", "asked"):
                said = guest.run(rounds, siw=siw)
                good = [line for line in said if line.startswith("good")]
                self.assertEqual(good, [f"good {port} {n}" for port in [PORT, NO_CRC_PORT] for n in [64, 1000, 65535]])

    def test_rping_answers(self):
        for siw in SETTINGS:
            job = f"""
            for size in 64 64 65535; do
                rping -s -a 10.0.2.15 -p {PORT} -C 20 -S $size -V &
                until ss -Hltn | grep -q :{PORT}; do sleep 0.2; done
                echo ready
                wait $! || exit 1
            done
            """
            with self.subTest(siw=siw), guest.Guest(job, siw=siw, forward=f"1{PORT}:{PORT}") as machine:
                for size, crc, peer in [(64, "always", []), (64, "asked", ["--peer-to-peer"]), (65535, "asked", [])]:
                    machine.wait_for("ready")
                    done = weft.run(
                        weft.WEFT, "rdma", "ping", f"127.0.0.1:1{PORT}", "-c", "20", "-s", str(size), "--json", "--crc",
                        crc, *peer, check=False, timeout=guest.PATIENCE,
                    )
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr + machine.report())
                    outcome = json.loads(done.stdout)
                    self.assertTrue(outcome["intact"], outcome)
                    self.assertEqual(outcome["rounds"], 20)
                    # The peer's RDMA Read and RDMA Write, counted here.
                    self.assertEqual(outcome["bytes_read_by_peer"], 20 * size)
                    self.assertEqual(outcome["bytes_written_by_peer"], 20 * size)
                self.assertEqual(machine.finish(), 0, machine.report())


if __name__ == "__main__":
    unittest.main()
