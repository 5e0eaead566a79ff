"""What replication costs, as ratios of one run, each beside its bound: the first copy beside raw RDMA Writes and beside a file
copy over SMB on TCP; what the destination's processor does beyond storing the bytes; a synchronous write beside a local one and
a round trip; a volume that is not replicated beside the bare file. The machine has to be idle.

First copies are of volumes in memory, in two ways. A "sparse" destination gets each page from the kernel while it is copied
into, which a receiver of raw Writes does not: that is registered memory, all there. So what is held beside raw Writes is the
copy between volumes whose memory was taken before (`weft volume create --ram --allocate`), and beside raw Writes over 256 MiB
of memory: 16 MiB that go round stay in the processor's cache, and a volume does not. The other figures are printed as well.
Beside the copy over TCP stand WRITEs of the bare program of tests/peers/floor into as much memory.

Durable writes are to blocks that were written before, by a log that has gone round: the first write to a block of a new file
costs the file system a transaction of its own. No thread looks for work before it sleeps there (--spin-us 0): the threads of two
servers and of their client would do that on each other's processors. Beside each stands a floor, the same bare program:
it receives 8 KiB, stores them in a file that goes round (pwrite, fdatasync) and answers; for a synchronous write it sends them to
another one first, so that both disks work at the same time. No durable write over TCP can take less.

    bench.py [--size BYTES] [--rounds N] [--writes N] [--seconds N] [--json FILE] [--gate]

A minute's look whether everything runs: bench.py --size 67108864 --rounds 1 --writes 50 --seconds 1"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "interop"), str(ROOT / "tests" / "peers")]

import compare  # noqa: E402
import servers as peers  # noqa: E402
import weft  # noqa: E402
from disk import FUA, WRITE, Disk  # noqa: E402

SMALL = 8192
# Of a log, and of the file that the floor writes in its place.
LOG_SIZE = 64 << 20
# The floor's answer (floor.h).
STORED = 16
TB = 10**12


def processor_seconds(pid):
    """Of all threads that the process ever had: its own clock (the id is the kernel's, posix-timers.h)."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def cycles_per_second():
    """Cycles that a second of processor time has, as the kernel says; a turbo is not in it."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return float(line.split(":")[1]) * 1e6
    return None


def storing_seconds(size):
    """Processor seconds that it takes to store so many bytes in memory as a destination does: the least that it can do."""
    piece = os.urandom(1 << 20)
    store = os.memfd_create("weft-bench")
    try:
        before = time.process_time()
        for offset in range(0, size, len(piece)):
            os.pwrite(store, piece, offset)
        return time.process_time() - before
    finally:
        os.close(store)


class Server:
    """A `weft serve` with one volume, and perhaps a share in memory."""

    def __init__(self, folder, name, *options, volume=(), replica=True):
        self.state = pathlib.Path(folder) / name
        self.state.mkdir()
        weft.run(weft.WEFT, "volume", "create", "vol1", *volume, "--state-dir", self.state)
        command = [
            weft.WEFT, "serve", "--json", "--volume", "vol1", "--nbd-port", 0, "--smb-port", 0, "--smbd-port", 0, "--user",
            weft.USER, "--signing", "enabled", "--state-dir", self.state, *(["--replica"] if replica else []), *options,
        ]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        self.ready = json.loads(self.process.stdout.readline())

    def replica(self, *command):
        return weft.run(weft.WEFT, "replica", *command, "--state-dir", self.state, timeout=3600).stdout

    def peer(self):
        [group] = json.loads(self.replica("status", "--json"))["groups"]
        return group["engine"]["peers"][0], group["links"][0]

    def cpu(self):
        return processor_seconds(self.process.pid)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@contextlib.contextmanager
def servers(*makes):
    made = []
    try:
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
            for number, (options, volume, replica) in enumerate(makes):
                made.append(Server(folder, f"host{number}", *options, volume=volume, replica=replica))
            yield made
    finally:
        for server in made:
            if server.process.poll() is None:
                server.stop()


def fill(server, size):
    """Random bytes in all of a volume: nothing can be left out."""
    disk = Disk(server.ready["nbd_port"], "vol1")
    block = os.urandom(1 << 20)
    for offset in range(0, size, 1 << 20):
        disk.write(offset, offset.to_bytes(8, "little") + block[8:])
    disk.close()


def raw_write(provider, size, depth=4):
    """Bytes a second of RDMA Writes of 4 MiB; as many buffers as are under way, so that few of them stay in the processor's
    cache, and many do not, as the bytes of a volume do not."""
    process = subprocess.Popen(
        [weft.WEFT, "rdma", "perf", "server", "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = json.loads(process.stdout.readline())["port"]
        done = weft.run(
            weft.WEFT, "rdma", "perf", "client", f"127.0.0.1:{port}", "--provider", provider, "--op", "write", "--size", "4M",
            "--qd", str(depth), "--count", max(16, size // (4 << 20)), "--json",
        )
        [rate] = [row["bandwidth"]["average_bytes_per_s"] for row in json.loads(done.stdout) if row["mode"] == "bandwidth"]
        return rate
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def floor_write(program, span=256 << 20):
    """Bytes a second of messages of 1 MiB that the floor's program receives over TCP into memory of 256 MiB."""
    floor = compare.Floor("smb", ("copy",), None, "memory")
    line = compare.Line("", ("floor", ""), (), 1 << 20, None, True, "rate", 4, floor=floor)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        server = peers.Floor(program, pathlib.Path(folder) / "file", span)
        try:
            return compare.measure(line, server, server.load(line, "copy", span, 1.0), 1.0) * 1e6
        finally:
            server.stop()


def first_copy(transport, size, taken=False):
    """Seconds, processor seconds of both ends and of the destination, and bytes by RDMA of the first copy of a full volume;
    `taken`: between volumes whose memory was taken when they were opened."""
    ram = ["--size", str(size), "--ram", *(["--allocate"] if taken else [])]
    with servers(((), ram, True), ((), ram, True)) as (here, there):
        fill(here, size)
        before = here.cpu(), there.cpu()
        began = time.time()
        here.replica(
            "create", "vol1", "127.0.0.1:vol1", "--smb-port", there.ready["smb_port"], "--user", weft.USER, "--transport",
            transport, "--mode", "async", "--overwrite",
        )
        while True:
            peer, link = here.peer()
            if peer["phase"] == "ContinuouslyReplicating":
                break
            # Asking is a process, which takes a processor from those that copy. When it was over the source knows.
            time.sleep(max(0.1, size / (16 << 30)))
        seconds = peer["since_ms"] / 1e3 - began
        cpu = here.cpu() - before[0], there.cpu() - before[1]
        traffic = link["traffic"]
        rdma = traffic["rdma_by_client_bytes"] + traffic["rdma_read_bytes"] + traffic["rdma_written_bytes"]
        return {
            "seconds": seconds, "cpu": sum(cpu), "destination_cpu": cpu[1], "rdma_bytes": rdma, "storing_cpu": storing_seconds(size),
        }


def file_copy(size):
    """The same bytes as a file over SMB on TCP: seconds, processor seconds of both ends."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-", dir="/dev/shm") as source:
        path = weft.random_file(pathlib.Path(source) / "file", size)
        options = ["--ram", f"ram={size + (64 << 20)}"]
        with servers((options, ["--size", "1M", "--ram"], False)) as (server,):
            url = f"smb://{weft.USER}@127.0.0.1:{server.ready['smb_port']}/ram/file"
            before = server.cpu(), os.times()
            began = time.monotonic()
            weft.run(weft.WEFT, "cp", path, url, "--transport", "tcp", "--no-verify", "--quiet", timeout=3600)
            seconds = time.monotonic() - began
            after = os.times()
            client = after.children_user + after.children_system - before[1].children_user - before[1].children_system
            return {"seconds": seconds, "cpu": server.cpu() - before[0] + client}


def round_trip(there, folder, transport):
    """Microseconds of a small request to another server and back, as `weft replica check` measures it: a median."""
    page = weft.run(
        weft.WEFT, "replica", "check", "127.0.0.1", "--smb-port", there.ready["smb_port"], "--user", weft.USER, "--transport",
        transport, "--json", "--state-dir", folder, timeout=120, check=False,
    )
    return json.loads(page.stdout)["measured"]["round_trip_ms"] * 1e3


def fio(socket, pattern, depth, seconds, size):
    """Requests a second of fio's nbd engine."""
    done = weft.run(
        "fio", "--name=volume", "--ioengine=nbd", f"--uri=nbd+unix:///vol1?socket={socket}", f"--rw={pattern}", "--bs=4k",
        f"--iodepth={depth}", "--time_based", f"--runtime={seconds}", f"--size={size}", "--output-format=json", timeout=seconds + 120,
    )
    [job] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    return job["read"]["iops"] + job["write"]["iops"]


def unreplicated(rounds, seconds):
    """Medians of what a file gives by fio's nbd engine: bare, and as a volume that can be replicated and is not."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as images:
        size = 256 << 20
        sockets = {name: f"{images}/{name}.sock" for name in ["bare", "volume"]}
        makes = [
            (("--nbd-socket", sockets[name]), ["--size", "256M", "--file", f"{images}/{name}"], name == "volume")
            for name in sockets
        ]
        with servers(*makes) as made:
            for server in made:
                fill(server, size)
            for _ in range(rounds):
                for pattern in ["randread", "randwrite"]:
                    for depth in [1, 32]:
                        for name, socket in sockets.items():
                            row = found.setdefault(f"{pattern} qd{depth}", {}).setdefault(name, [])
                            row.append(fio(socket, pattern, depth, seconds, size))
    return {
        what: {name: statistics.median(values) for name, values in row.items()} for what, row in found.items()
    }


def write_latency(transport, count):
    """Median microseconds of a durable 8 KiB write, one at a time, and of a round trip; `transport`: None for a volume alone."""
    mode = "async" if transport == "async" else "sync"
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as images:
        volumes = [["--size", "64M", "--file", f"{images}/{name}"] for name in "ab"]
        makes = [(("--spin-us", "0"), volumes[0], transport is not None)]
        if transport:
            makes.append((("--spin-us", "0"), volumes[1], True))
        with servers(*makes) as made:
            if transport:
                here, there = made
                here.replica(
                    "create", "vol1", "127.0.0.1:vol1", "--smb-port", there.ready["smb_port"], "--user", weft.USER,
                    "--mode", mode, "--log-size", str(LOG_SIZE), "--transport", "tcp" if transport == "async" else transport,
                )
                while here.peer()[0]["phase"] != "ContinuouslyReplicating":
                    time.sleep(0.02)
            # Twice what the log holds.
            for _ in range(2):
                fill(made[0], 64 << 20)
            while transport and here.peer()[0]["lag_bytes"]:
                time.sleep(0.02)
            trip = 0 if transport in (None, "async") else round_trip(there, made[0].state, transport)
            disk = Disk(made[0].ready["nbd_port"], "vol1")
            data, times = os.urandom(SMALL), []
            for number in range(count):
                began = time.perf_counter()
                disk.call(WRITE, number % 1024 * SMALL, data=data, flags=FUA)
                times.append((time.perf_counter() - began) * 1e6)
            disk.close()
            return statistics.median(times), trip


def floor_latency(program, logs, count):
    """Median microseconds of a message of 8 KiB that so many of the floor's programs store, one at a time."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder, contextlib.ExitStack() as ends:
        port = None
        for number in range(logs):
            path = pathlib.Path(folder) / f"log{number}"
            peers.write_file(path, LOG_SIZE)
            with open(path) as file:
                os.fsync(file)
            command = [program, "store", path, str(LOG_SIZE), str(SMALL), *([str(port)] if port else [])]
            process = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            # It ends by itself when its connection does; when it has none, it is told to.
            ends.callback(process.terminate)
            port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data, times = os.urandom(SMALL), []
            for _ in range(count):
                began = time.perf_counter()
                connection.sendall(data)
                if len(connection.recv(STORED, socket.MSG_WAITALL)) != STORED:
                    raise SystemExit("the floor has ended")
                times.append((time.perf_counter() - began) * 1e6)
        return statistics.median(times)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--size", type=int, default=4 << 30)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--writes", type=int, default=500)
    arguments.add_argument("--seconds", type=int, default=5, help="of each run of fio")
    arguments.add_argument("--json", type=pathlib.Path)
    arguments.add_argument("--gate", action="store_true", help="exit 1 where a bound is not kept")
    options = arguments.parse_args()
    size, result, kept = options.size, {"size": options.size, "load": os.getloadavg()[0]}, []
    if result["load"] > 0.5:
        print(f"the machine is busy (load {result['load']:.1f}): the figures say little")

    program = peers.build_floor()
    # Interleaved, so that what the machine does meanwhile falls on all alike.
    rounds = []
    for _ in range(options.rounds):
        row = {"file": file_copy(size)}
        for transport in ["iwarp", "shm", "tcp"]:
            row[transport] = first_copy(transport, size, taken=True)
            row[transport]["sparse"] = first_copy(transport, size)
            if transport == "tcp":
                row[transport]["floor"] = floor_write(program)
            else:
                row[transport]["raw"] = raw_write(transport, size)
                row[transport]["raw_memory"] = raw_write(transport, size, depth=64)
        rounds.append(row)
    median = lambda of: statistics.median(of(row) for row in rounds)
    print(f"first copy of {size / 2**30:.2f} GiB, medians of {options.rounds}")
    rates = {}
    for transport in ["iwarp", "shm", "tcp"]:
        rate = rates[transport] = median(lambda row: size / row[transport]["seconds"])
        cpu = median(lambda row: row[transport]["cpu"])
        line = f"  {transport:<6} {rate / 1e9:6.2f} GB/s  {cpu:6.2f} CPU s  destination {median(lambda row: row[transport]['destination_cpu']):.2f}"
        if transport != "tcp":
            memory = median(lambda row: row[transport]["raw_memory"])
            ratio = median(lambda row: size / row[transport]["seconds"] / row[transport]["raw_memory"])
            line += f"  {ratio:.2f} of raw RDMA Writes over 256 MiB of memory ({memory / 1e9:.2f} GB/s)"
            cached = median(lambda row: size / row[transport]["seconds"] / row[transport]["raw"])
            line += f", {cached:.2f} of those over 16 MiB ({median(lambda row: row[transport]['raw']) / 1e9:.2f} GB/s)"
            kept.append((f"first copy by {transport}, of raw RDMA Writes", ratio, ">=", 0.85))
            result[f"{transport}_of_raw"], result[f"{transport}_of_cached_raw"] = ratio, cached
        else:
            floor = median(lambda row: row["tcp"]["floor"])
            ratio = result["tcp_of_floor"] = median(lambda row: size / row["tcp"]["seconds"] / row["tcp"]["floor"])
            line += f"  {ratio:.2f} of the floor's WRITEs over TCP into 256 MiB of memory ({floor / 1e9:.2f} GB/s)"
        print(line)
        sparse = median(lambda row: size / row[transport]["sparse"]["seconds"])
        cpu = median(lambda row: row[transport]["sparse"]["cpu"])
        print(f"         {sparse / 1e9:6.2f} GB/s  {cpu:6.2f} CPU s  where the destination is sparse")
    print(f"  file   {median(lambda row: size / row['file']['seconds']) / 1e9:6.2f} GB/s  {median(lambda row: row['file']['cpu']):6.2f} CPU s  a file, weft cp over SMB on TCP")
    faster = median(lambda row: row["file"]["seconds"] / row["shm"]["seconds"])
    cheaper = median(lambda row: row["file"]["cpu"] / row["shm"]["cpu"])
    kept.append(("first copy by shm, times as fast as a file over TCP", faster, ">=", 1.5))
    kept.append(("first copy by shm, times as cheap in CPU seconds", cheaper, ">=", 3))
    stored = median(lambda row: size / row["shm"]["sparse"]["storing_cpu"])
    print(f"  storing them in fresh memory, and nothing else: {stored / 1e9:.2f} GB/s of one processor")
    print(f"  blocks by shm beat the file {faster:.2f} times in time and {cheaper:.2f} times in CPU")
    hertz = cycles_per_second()
    if hertz:
        # Both in memory that has yet to be had.
        of = lambda row: row["shm"]["sparse"]
        beyond = median(lambda row: of(row)["destination_cpu"] - of(row)["storing_cpu"]) * hertz / size
        storing = median(lambda row: of(row)["storing_cpu"]) * hertz / size
        print(f"  destination by shm: {max(beyond, 0):.2f} cycles per byte beyond storing them, which takes {storing:.2f}")
        kept.append(("destination by shm, cycles per byte beyond storing", max(beyond, 0), "<=", 0.3))
        result["beyond_storing"] = beyond
    else:
        print("  destination by shm: this machine does not say how fast its processor is")
    for transport in ["iwarp", "shm"]:
        minutes = 2 * TB / rates[transport] / 60
        print(f"  2 TB at this rate by {transport}: {minutes:.1f} minutes (the paper's 10 GB/s: 3.3, it says 4)")

    print(f"durable {SMALL // 1024} KiB write, one at a time, median of {options.writes}")
    latency, trips = {}, {}
    floors = {logs: [] for logs in (1, 2)}
    for transport in [None, "async", "tcp", "iwarp", "shm"]:
        name = transport or "local"
        latency[name], trips[name] = write_latency(transport, options.writes)
        # Beside each write in turn, so that a drift of the disk meets both.
        logs = 2 if trips[name] else 1
        floors[logs].append(floor_latency(program, logs, options.writes))
        line = f"  {name:<6} {latency[name]:8.0f} us  {latency[name] / latency['local']:.2f} of local"
        line += f"  {latency[name] / floors[logs][-1]:.2f} of the floor ({floors[logs][-1]:.0f} us)"
        if trips[name]:
            least = latency["local"] + trips[name]
            line += f"  {latency[name] / least:.2f} of local + round trip ({trips[name]:.0f} us)"
            kept.append((f"synchronous write by {name}, of local + round trip", latency[name] / least, "<=", 1.2))
        print(line)

    print(f"4 KiB requests a second of fio's nbd engine, {options.seconds} s, medians of {options.rounds}")
    alone = unreplicated(options.rounds, options.seconds)
    for what, row in alone.items():
        print(f"  {what:<15} bare {row['bare']:9.0f}  volume that is not replicated {row['volume']:9.0f}")
        kept.append((f"{what}, volume of bare file", row["volume"] / row["bare"], ">=", 0.95))
    result.update(
        rounds=rounds, faster=faster, cheaper=cheaper, latency_us=latency, round_trip_us=trips, floor_us=floors, rates=rates, unreplicated=alone,
    )

    holds = lambda value, side, bound: value >= bound if side == ">=" else value <= bound
    print("what was said to hold")
    for what, value, side, bound in kept:
        print(f"  {'holds      ' if holds(value, side, bound) else 'falls short'}  {what:<52} {value:6.2f} {side} {bound}")
    result["bounds"] = [
        {"what": what, "value": value, "side": side, "bound": bound, "holds": holds(value, side, bound)}
        for what, value, side, bound in kept
    ]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if options.gate and not all(bound["holds"] for bound in result["bounds"]) else 0)


if __name__ == "__main__":
    main()
