"""Our own verbs on both kinds of iWARP: `weft rdma` over the kernel's siw (`--provider rnic`) in the guest, over our iwarp
on the host, each in either role."""

import contextlib
import json
import shutil
import subprocess
import unittest

import guest
import weft

# CRC always and where the other side asks for it.
PORTS = {"always": 7174, "asked": 7175}
SIZES, DEPTHS, COUNT = "1,4K,100000", "1,16", 32
PING_SIZES = [1, 1000, 65535]
# Three operations: each size once for latency, and at each depth for bandwidth.
ROWS = 3 * (3 + 3 * 2)


def asks(address, port, provider, crc, weft_in="/tmp/weft"):
    """The commands of a client, as shell lines: a ping of each size, then every measurement with all bytes compared."""
    common = f"{address}:{port} --provider {provider} --crc {crc} --json"
    pings = [f"{weft_in} rdma ping {common} -c 10 -s {size}" for size in PING_SIZES]
    return [
        *pings,
        f"{weft_in} rdma perf client {common} --op send,write,read --size {SIZES} --qd {DEPTHS} --count {COUNT} --check",
    ]


class Verbs(unittest.TestCase):
    def check(self, outcomes):
        """What `asks` printed, one JSON value for each command."""
        *pings, rows = outcomes
        self.assertEqual(len(pings), len(PING_SIZES))
        for size, said in zip(PING_SIZES, pings):
            self.assertEqual((said["rounds"], said["intact"], said["error"]), (10, True, None), said)
        self.assertEqual(len(rows), ROWS)
        for row in rows:
            self.assertEqual((row["iterations"], row["mismatches"]), (COUNT, 0), row)

    def test_the_guest_asks(self):
        for siw in ["", "mpa_crc_required=1", "peer_to_peer=1"]:
            with self.subTest(siw=siw), contextlib.ExitStack() as servers:
                for crc, port in PORTS.items():
                    servers.enter_context(measured("--listen", "127.0.0.1", "--port", port, "--crc", crc))
                lines = [line for port in PORTS.values() for line in asks(guest.HOST, port, "rnic", "asked")]
                with guest.Guest(self.job(lines), siw=siw) as machine:
                    self.lend(machine)
                    self.assertEqual(machine.finish(), 0, machine.report())
                    said = values("\n".join(machine.said).split("begin\n", 1)[1])
                each = len(said) // len(PORTS)
                self.check(said[:each])
                self.check(said[each:])

    def test_the_guest_answers(self):
        job = self.job([
            f"/tmp/weft rdma perf server --listen 10.0.2.15 --port {PORTS['always']} --provider rnic --json &",
            "until [ -e /lab/done ]; do sleep 0.2; done; kill $!; wait $!",
        ])
        port = PORTS["always"]
        with guest.Guest(job, forward=f"1{port}:{port}") as machine:
            self.lend(machine)
            while not (machine.line() or self.fail(machine.report())).startswith('{"'):
                pass
            for crc in PORTS:
                said = []
                for line in asks("127.0.0.1", f"1{port}", "iwarp", crc, weft_in=weft.WEFT):
                    done = weft.run(*line.split(), check=False, timeout=guest.PATIENCE)
                    self.assertEqual(done.returncode, 0, done.stderr + machine.report())
                    said.append(json.loads(done.stdout))
                self.check(said)
            (machine.folder / "done").touch()
            self.assertEqual(machine.finish(), 0, machine.report())

    def job(self, lines):
        """The script of the guest; it waits for our binary."""
        return "\n".join([
            "set -e",
            "until [ -e /lab/lent ]; do sleep 0.2; done",
            "cp /lab/weft /tmp/weft",
            "/tmp/weft rdma devices",
            "echo begin",
            *lines,
        ])

    def lend(self, machine):
        shutil.copy(weft.WEFT, machine.folder / "weft")
        (machine.folder / "lent").touch()


@contextlib.contextmanager
def measured(*options):
    """`weft rdma perf server` over iwarp; it must end well."""
    command = [weft.WEFT, "rdma", "perf", "server", "--provider", "iwarp", "--json", *options]
    server = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(server.stdout.readline())["ready"]
        yield
    finally:
        server.terminate()
        status = server.wait(timeout=guest.PATIENCE)
        server.stdout.close()
    assert status == 0, status


def values(text):
    """JSON values one behind the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


if __name__ == "__main__":
    unittest.main()
