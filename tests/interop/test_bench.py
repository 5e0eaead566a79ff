"""`weft bench` as users type it: pictures, custom workloads, command lines of other loaders, agents, Ctrl-C. Each
point takes a few milliseconds: the tests check that something was measured, not the figures."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import weft
from test_commands import Smbd

TRANSPORTS = ["tcp", "iwarp", "shm"]
SHORT = ["--duration", "0.03", "--repetitions", "1", "--file-size", "8M"]


def bench(*command, status=0, **environment):
    """Runs `weft bench`; returns its output."""
    done = subprocess.run(
        [weft.WEFT, "bench", *map(str, command)], capture_output=True, text=True, timeout=300,
        env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, **environment),
    )
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "panicked" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def out(ending="json"):
    """A file for the results."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        yield pathlib.Path(folder) / f"out.{ending}"


def points(path):
    """The points of a report, with the picture of each."""
    report = json.loads(path.read_text())
    return [(section["picture"], point) for section in report["sections"] for point in section["points"]]


@weft.alone
class Pictures(unittest.TestCase):
    def test_every_picture_is_measured_over_every_transport(self):
        with out() as path:
            bench("all", "local", "--quick", *SHORT, "--out", path, "--out", path.with_suffix(".html"))
            seen = {(picture, point["work"]["mix"] if isinstance(point["work"]["mix"], str) else "mix", point["transport"])
                    for picture, point in points(path)}
            for transport in TRANSPORTS:
                for picture, mix in [
                    ("latency", "read"), ("latency", "write"), ("smb", "read"), ("smb", "mix"), ("table", "read"), ("nfs", "write"),
                    ("replica", "write"),
                ]:
                    self.assertIn((picture, mix, transport), seen)
            report = json.loads(path.read_text())
            self.assertEqual(report["sections"][0]["peer"]["software"], "Weft")
            self.assertFalse(report["interrupted"])
            page = path.with_suffix(".html").read_text()
            self.assertIn("<svg", page)
            self.assertLess(len(page), 2 << 20)

    def test_payload_of_the_rdma_columns_moved_by_rdma(self):
        with out() as path:
            bench("table", "local", *SHORT, "--out", path, "--only", "512 KiB")
            for _, point in points(path):
                traffic = point["traffic"]
                if point["transport"] == "tcp":
                    self.assertEqual(traffic["rdma_write_bytes"], 0)
                else:
                    self.assertGreater(traffic["rdma_write_bytes"], point["bytes"] // 2, point["transport"])

    def test_a_replica_is_copied_and_written_over_every_transport(self):
        with out() as path:
            said = bench("replica", "local", "--quick", *SHORT[:4], "--file-size", "16M", "--out", path)
            self.assertIn("2 TB at these rates of the first copy", said)
            seen = {(point["work"]["protocol"], point["transport"]): point for _, point in points(path)}
            written = ["local", "async", *TRANSPORTS]
            self.assertEqual(sorted(seen), sorted([("replica", t) for t in TRANSPORTS] + [("NBD", t) for t in written]))
            for transport in TRANSPORTS:
                copied = seen["replica", transport]
                self.assertEqual((copied["bytes"], copied["operations"]), (16 << 20, 1))
                by_rdma = copied["traffic"]["rdma_read_bytes"]
                self.assertEqual(by_rdma, 0 if transport == "tcp" else 16 << 20, transport)
                self.assertIn("memory_bytes", copied["server"], "of both ends")
            # Every write is durable on both sides, or on one, before it is answered.
            self.assertTrue(all(seen["NBD", name]["work"]["name"] == "durable write" for name in written))
            self.assertEqual([p for p in pathlib.Path(tempfile.gettempdir()).glob("weft-bench-replica-*")], [])

    def test_nfs_has_sixteen_streams_and_tells_of_interrupts(self):
        with out() as path:
            bench("nfs", "local", *SHORT, "--quick", "--only", "READ 32 KiB", "--out", path, "--transport", "tcp")
            [(_, point)] = points(path)
            self.assertEqual((point["work"]["files"], point["work"]["clients"], point["work"]["order"]), (16, 2, "sequential"))
            self.assertIn("context_switches_per_second", point["client"])

    def test_wrong_words_say_what_to_type(self):
        for status, command, part in [
            (2, ["latency"], "<HOST>"),
            (2, ["latency", "local", "--transport", "pigeon"], "iwarp-nocrc"),
            (2, ["latency", "local", "--out", "x.doc"], "x.doc"),
            (1, ["latency", "local", "--out", "/no/such/folder/x.json"], "/no/such/folder"),
            (2, ["latency", "local", "--duration", "soon"], "write seconds"),
            (2, ["latency", "ftp://nas/x"], "smb://"),
            (2, ["nfs", "local", "--clients", "3"], "16 streams cannot be divided among 3 clients"),
            (2, ["replica", "nas"], "weft bench replica local"),
            (1, ["replica", "local", "--file-size", "1M"], "16M to 4095M"),
        ]:
            self.assertIn(part, bench(*command, status=status), command)

    def test_a_server_that_is_not_there_is_named(self):
        said = bench("latency", "smb://tester@127.0.0.1:1/data", status=1)
        self.assertIn("127.0.0.1:1", said)


class IndependentServers(unittest.TestCase):
    def test_samba_is_measured_by_tcp_and_named(self):
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
            smbd = Smbd(pathlib.Path(folder))
            try:
                path = pathlib.Path(folder) / "out.json"
                bench("latency", smbd.url("")[:-1], *SHORT, "--quick", "--only", "8 KiB", "--out", path)
                seen = points(path)
                self.assertEqual({point["transport"] for _, point in seen}, {"tcp"})
                [section] = json.loads(path.read_text())["sections"]
                self.assertIn("Samba", section["peer"]["software"])
                self.assertEqual(section["peer"]["dialect"], "SMB 3.1.1")
                self.assertTrue(section["refusals"], "RDMA is reported as unavailable")
                self.assertEqual(list(smbd.folder.iterdir()), [], "the benchmark removed its files")
            finally:
                smbd.stop()


class JobFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-bench-")
        self.path = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)

    def job(self, text):
        path = self.path / "job.toml"
        path.write_text(text)
        return path

    def test_a_job_file_is_run(self):
        job = self.job(
            'server = "local"\ntransports = ["tcp", "shm"]\n[defaults]\nduration = "30ms"\nrepetitions = 1\n'
            'file_size = "4M"\n[[work]]\nname = "oltp"\nread = 70\nblock = "8K"\nqueue_depth = 4\nthreads = 2\nfiles = 3\n'
            'order = "zipf:0.99"\nrate = 500\nverify = true\n[[work]]\nname = "log"\nread = 0\norder = "sequential"\n'
        )
        path = self.path / "out.json"
        bench("run", job, "--out", path)
        seen = {(point["work"]["name"], point["transport"]): point for _, point in points(path)}
        self.assertEqual(sorted(seen), [(n, t) for n in ["log", "oltp"] for t in ["shm", "tcp"]])
        oltp = seen["oltp", "tcp"]
        self.assertTrue(oltp["latency_corrected"])
        self.assertEqual((oltp["work"]["order"], oltp["work"]["rate"]), ("zipf 0.99", 500))
        self.assertIn("reads", oltp)

    def test_a_mistake_in_a_job_file_is_told_with_its_line(self):
        said = bench("run", self.job('server = "local"\n[[work]]\nblok = "8K"\n'), status=1)
        self.assertIn("line 3", said)
        self.assertIn("blok", said)
        self.assertIn("names no server", bench("run", self.job("[[work]]\n"), status=2))

    def test_the_papers_command_lines_are_taken(self):
        for line in [
            ["diskspd", *SHORT[:4], "--transport", "tcp", "-b8K", "-w30", "-r", "-o10", "-t2", "-d20", "-h", "-L", "-c8M",
             "//local/bench/file"],
            ["sqlio", *SHORT[:4], "--transport", "shm", "-kR", "-s100", "-t1", "-o1", "-b8", "-frandom", "-BN", "-LS",
             "//local/bench/file"],
            ["iozone", *SHORT[:4], "--transport", "tcp", "-i", "0", "-i", "1", "-r", "64k", "-s", "1m", "-t", "2", "-F",
             "nfs://local/bench/1", "nfs://local/bench/2"],
            # As printed in the papers, with placeholders filled in. --file-size only keeps the test short.
            ["sqlio", *SHORT[:4], "--transport", "shm", "--folder", "//local/bench",
             *"-T100 -s20 -t1 -BN -LSi -dz testfile.dat -o40 -b8".split()],
            ["iozone", *SHORT[:4], "--transport", "tcp", "--folder", "nfs://local/bench", "--file-size", "1M",
             *"-n -i 1 -M -c -e -w -I -+u -t 16 -s 1g -r 32K".split()],
        ]:
            path = self.path / f"{line[0]}.json"
            bench(line[0], "--out", path, *line[1:])
            self.assertTrue(points(path), line)

    def test_an_unknown_flag_is_refused_by_its_name(self):
        self.assertIn("diskspd's -X is not supported", bench("diskspd", "-b8K", "-X", "//local/bench/file", status=2))
        self.assertIn("sqlio's -x", bench("sqlio", "-kR", "-x", "//local/bench/file", status=2))
        self.assertIn("is a local path", bench("diskspd", "-b8K", "/tmp/file", status=2))
        self.assertIn("--folder", bench("iozone", "-i", "1", "-t", "2", status=2))

    def test_a_file_of_the_users_is_read_and_never_written(self):
        with weft.serving() as server:
            mine = server.folder / "mine.bin"
            mine.write_bytes(os.urandom(1 << 20))
            before = mine.read_bytes()
            target = f"smb://{weft.USER}@127.0.0.1:{server.smb_port}/data/mine.bin"
            bench("diskspd", *SHORT[:4], "--transport", "tcp", "-b4K", "-r", target)
            said = bench("diskspd", *SHORT[:4], "--transport", "tcp", "-b4K", "-w100", target, status=1)
            self.assertIn("would be overwritten", said)
            said = bench("diskspd", *SHORT[:4], "--transport", "tcp", "-b4K", target + "2", status=1)
            self.assertIn("does not exist", said)
            self.assertEqual(mine.read_bytes(), before)
            self.assertEqual(os.listdir(server.folder), ["mine.bin"])


class Interrupted(unittest.TestCase):
    def test_ctrl_c_writes_what_was_measured_and_tidies_up(self):
        with out() as path:
            with weft.serving() as server:
                process = subprocess.Popen(
                    [weft.WEFT, "bench", "latency", server.url("")[:-1], "--transport", "tcp", "--duration", "60",
                     "--file-size", "8M", "--out", path],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
                )
                # Once its file is complete it measures, or is about to.
                made = []
                while not made or made[0].stat().st_size < 8 << 20:
                    self.assertIsNone(process.poll())
                    made = list(server.folder.glob("weft-bench-*/*.bin"))
                process.send_signal(signal.SIGINT)
                printed, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, -signal.SIGINT, said)
                self.assertIn("stopped", said)
                self.assertEqual(os.listdir(server.folder), [], "nothing is left behind")
            self.assertTrue(json.loads(path.read_text())["interrupted"])


class Agents(unittest.TestCase):
    @contextlib.contextmanager
    def agent(self, *options):
        """An agent, by the address that it listens on."""
        process = subprocess.Popen(
            [weft.WEFT, "bench", "agent", "--listen", "127.0.0.1:0", *map(str, options)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_AGENT_TOKEN="0123456789abcdef0123"),
        )
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(timeout=30)
            process.stdout.close()

    def test_an_agent_beside_the_server_tells_what_it_spends(self):
        with weft.serving() as server, out() as path, self.agent("--server-pid", server.process.pid) as at:
            run = ["latency", server.url("")[:-1], *SHORT, "--transport", "tcp", "--quick", "--only", "8 KiB", "--out", path]
            said = bench(*run, "--server-agent", at, WEFT_AGENT_TOKEN="0123456789abcdef0123")
            self.assertNotIn("figures are missing", said)
            for _, point in points(path):
                self.assertGreater(point["server"]["cores_busy"]["median"], 0)
                self.assertGreater(point["server"]["memory_bytes"]["median"], 1 << 20)
                self.assertIn("cycles_per_byte", point)
            # Without one, the message says what is missing and what to type.
            said = bench(*run)
            self.assertIn("figures are missing", said)
            self.assertIn("--server-pid", said)

    def test_an_agent_without_a_server_says_so(self):
        with weft.serving() as server, self.agent() as at:
            said = bench("latency", server.url("")[:-1], *SHORT, "--quick", "--server-agent", at, status=1,
                         WEFT_AGENT_TOKEN="0123456789abcdef0123")
            self.assertIn("--server", said)
        with tempfile.TemporaryDirectory() as empty:
            said = bench("agent", "--server", "--listen", "127.0.0.1:0", status=1, WEFT_STATE_DIR=empty)
            self.assertIn("no server runs", said)

    def test_agents_run_a_part_of_the_clients(self):
        with weft.serving() as server, out() as path:
            agents = [
                subprocess.Popen(
                    [weft.WEFT, "bench", "agent", "--listen", "127.0.0.1:0", "--once"], stdout=subprocess.PIPE, text=True,
                    env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_AGENT_TOKEN="0123456789abcdef0123"),
                )
                for _ in range(2)
            ]
            try:
                named = [part for agent in agents for part in ["--agent", agent.stdout.readline().split()[-1]]]
                said = bench("nfs", server.nfs_url("")[:-1].replace("/?", "?"), *named, status=1, WEFT_AGENT_TOKEN="wrong-wrong-wrong-wrong")
                self.assertIn("token", said)
            finally:
                for agent in agents:
                    agent.terminate()
                    agent.wait(timeout=30)
                    agent.stdout.close()
            agents = [
                subprocess.Popen(
                    [weft.WEFT, "bench", "agent", "--listen", "127.0.0.1:0", "--once"], stdout=subprocess.PIPE, text=True,
                    stderr=subprocess.DEVNULL,
                    env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_AGENT_TOKEN="0123456789abcdef0123"),
                )
                for _ in range(2)
            ]
            try:
                named = [part for agent in agents for part in ["--agent", agent.stdout.readline().split()[-1]]]
                bench("latency", server.url("")[:-1], *named, *SHORT, "--clients", "3", "--transport", "tcp", "--quick",
                      "--only", "8 KiB", "--out", path, WEFT_AGENT_TOKEN="0123456789abcdef0123")
                seen = points(path)
                self.assertEqual({point["work"]["clients"] for _, point in seen}, {3})
                self.assertTrue(all(point["operations"] > 0 for _, point in seen))
                for agent in agents:
                    self.assertEqual(agent.wait(timeout=30), 0)
            finally:
                for agent in agents:
                    agent.kill()
                    agent.wait()
                    agent.stdout.close()


if __name__ == "__main__":
    unittest.main()
