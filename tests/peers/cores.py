"""What an operation costs `weft serve` with 1, 2, 4 and 8 serving threads: processor time of the server per READ and WRITE of
8 KiB, by SMB Direct over shared memory and by TCP, with eight clients that each keep eight requests outstanding.

    cores.py [--repetitions N] [--seconds N] [--cores 1,2,4,8]

Threads that share nothing cost the same however many they are. A lock or a cache line that all of them write costs more with
each thread that runs at the same time. All threads and the clients run on all processors of this host, so no more threads run at once
than it has processors, and only those counts are judged. More threads than processors are shown: each serves fewer clients, so
each wake-up serves fewer requests, which costs most over TCP. What more processors would show is counted:
`tests/instructions/count.py --build debug --binary target/debug/weft --where 1` tells who takes the locks of an operation."""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare import claim_memory, shown
from servers import PASSWORD, USER, WEFT

SIZE = 8 << 10
CLIENTS = 8
NAME, FILE_BYTES = "file", 64 << 20
# With as many threads as there are processors, or fewer, the median may cost that many times what it costs with one thread.
BOUND = 1.25


class Server:
    """`weft serve` with that many threads, and a file in memory."""

    def __init__(self, cores, work):
        self.cores = cores
        self.names = itertools.count()
        state = work / f"state-{cores}"
        state.mkdir()
        self.process = subprocess.Popen(
            [WEFT, "serve", "--state-dir", state, "--ram", "ram=1G", "--user", USER, "--smb-port", "0", "--smbd-port", "0",
             "--cores", str(cores), "--congestion", "reno", "--signing", "enabled", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, WEFT_PASSWORD=PASSWORD),
        )
        self.port = json.loads(self.process.stdout.readline())["smb_port"]

    def url(self, name):
        return f"//{USER}@127.0.0.1:{self.port}/ram/{name}"

    def put(self, path):
        weft("cp", path, f"smb:{self.url(path.name)}", "--transport", "tcp", "--quiet")

    def measure(self, transport, write, seconds):
        """Microseconds of the server's processor time for each operation, and operations per second."""
        # A benchmark does not overwrite files, so each WRITE makes one.
        name = f"written-{next(self.names)}" if write else NAME
        report = weft(
            "bench", "diskspd", "--transport", transport, "--server-pid", self.process.pid, "--duration", seconds,
            "--repetitions", 1, "--out", "-", "--", "-b8K", f"-w{100 if write else 0}", "-r", f"-o{CLIENTS}", f"-t{CLIENTS}", "-d1",
            *([f"-c{FILE_BYTES}"] if write else []), self.url(name),
        )
        (point,) = [point for section in json.loads(report)["sections"] for point in section["points"]]
        busy, iops = point["server"]["cores_busy"]["median"], point["iops"]["median"]
        return busy / iops * 1e6, iops

    def stop(self):
        self.process.terminate()
        if self.process.wait(20) != 0:
            raise SystemExit(f"weft serve --cores {self.cores} did not end well")


def weft(*arguments):
    done = subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, env=dict(os.environ, WEFT_PASSWORD=PASSWORD))
    if done.returncode != 0:
        raise SystemExit(f"weft {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1)
    options.add_argument("--cores", default="1,2,4,8")
    arguments = options.parse_args()
    counts = [int(count) for count in arguments.cores.split(",")]
    short = []
    with tempfile.TemporaryDirectory(prefix="weft-cores-") as folder:
        work = pathlib.Path(folder)
        path = work / NAME
        path.write_bytes(os.urandom(FILE_BYTES))
        servers = []
        try:
            for count in counts:
                servers.append(Server(count, work))
                servers[-1].put(path)
            print(f"Server us per operation of 8 KiB, medians of {arguments.repetitions} (range), {CLIENTS} clients with {CLIENTS} requests each;"
                  f" {os.cpu_count()} processors, load {os.getloadavg()[0]:.2f}")
            print(f"{'':20}" + "".join(f"{f'--cores {count}':>34}" for count in counts))
            for transport in ["shm", "tcp"]:
                for write in [False, True]:
                    figures = {server: [] for server in servers}
                    for _ in range(arguments.repetitions):
                        for server, seen in figures.items():
                            claim_memory()
                            seen.append(server.measure(transport, write, arguments.seconds))
                    one = statistics.median(us for us, _ in figures[servers[0]])
                    name = f"{'WRITE' if write else 'READ'}, {transport}"
                    cells = []
                    for server, seen in figures.items():
                        times = [us for us, _ in seen]
                        ratio = statistics.median(times) / one
                        late = server.cores <= os.cpu_count() and ratio > BOUND
                        if late:
                            short.append(f"{name}, --cores {server.cores}: {ratio:.2f} times one thread's")
                        iops = statistics.median(iops for _, iops in seen)
                        cells.append(f"{shown(times)} x {ratio:.2f}{' SHORT' if late else ''}, {iops / 1e3:.0f}k/s")
                    print(f"{name:20}" + "".join(f"{cell:>34}" for cell in cells), flush=True)
        finally:
            for server in servers:
                server.stop()
    for line in short:
        print(f"falls short: {line} (bound {BOUND})", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
