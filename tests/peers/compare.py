"""The comparison that the benches share: the same work on Weft, on its peers and on the floor, in turn.

The floor (floor/main.c) is a bare program that moves the same bytes and does nothing else: what it costs, no server can save. A line
has two ratios of medians, `Weft / floor` and `Weft / best peer`, and each may have a bound."""

import argparse
import dataclasses
import json
import mmap
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time

from servers import PASSWORD, USER, WEFT

# What is compared: its unit, how it is got from (bytes, operations, seconds, server CPU seconds), whether less is better.
METRICS = {
    "cost": ("server CPU s/GiB", lambda b, n, s, cpu: cpu / b * (1 << 30), True),
    "cpu": ("MB per server CPU s", lambda b, n, s, cpu: b / cpu / 1e6, False),
    "rate": ("MB/s", lambda b, n, s, cpu: b / s / 1e6, False),
    "latency": ("us, mean", lambda b, n, s, cpu: s / n * 1e6, True),
}


# The servers of another weft have the names of ours behind this word.
BESIDE = "other"
# The name of the floor's server.
FLOOR = "floor"
# A floor needs less time than a server: its figures hardly differ.
FLOOR_SECONDS = 1.0
# A loader that says nothing for so long beyond the time that it was given makes no progress.
PATIENCE = 30.0


@dataclasses.dataclass(frozen=True)
class Floor:
    """What the floor under a line exchanges. It is measured by each pattern of system calls, and the best one counts."""

    protocol: str
    patterns: tuple
    most: float | None  # the bound on Weft / floor
    storage: str = "file"
    protection: str = "plain"


def patterns(write, size):
    """The patterns that may be the cheapest for plain payload of files."""
    if not write:
        return ("copy", "sendfile")
    return ("copy", "pieces") if size > 128 << 10 else ("copy",)


@dataclasses.dataclass(frozen=True)
class Line:
    """One comparison: the same work on ours and on the peers, and the bound on Weft / best peer, if there is one."""

    title: str
    ours: tuple  # server, share
    peers: tuple  # of the same
    size: int
    promise: float | None  # on Weft / each peer that has no bound of its own
    write: bool = False
    metric: str = "cpu"
    depth: int = 32
    loader: str = "plain"
    floor: Floor | None = None
    bounds: tuple = ()  # pairs of a peer's server and the bound on Weft / this peer

    def bound(self, server):
        return dict(self.bounds).get(server, self.promise)


class InVain(SystemExit):
    """A loader got nothing done: against a peer this is shown, against Weft and the floor it ends the bench."""

    def __init__(self, word, server):
        super().__init__(f"{server.name} {word}: the loader did not come to its end")
        self.word = word


def program(path):
    """A path of the command line to something that can be run."""
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is no program: name the file that you built")
    return os.path.abspath(path)


def options(description):
    """The command line that the benches share."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--loader", required=True)
    options.add_argument("--floor", help="the program of tests/peers/floor")
    options.add_argument("--root", default="", help="the root directory of another Debian, whose servers are the peers")
    options.add_argument("--match", default="", help="only lines whose title contains this")
    options.add_argument("--client", default="", help="only lines whose client's name contains this")
    options.add_argument("--size", type=int, action="append", help="bytes of a request; by default all that are judged")
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2)
    options.add_argument("--span", type=int, default=1 << 30, help="bytes of the file")
    options.add_argument("--weft", type=pathlib.Path, default=WEFT, help="the binary that is measured")
    options.add_argument("--weft-option", action="append", default=[], help="further options of weft serve")
    options.add_argument("--json", type=pathlib.Path, help="a file for all figures")
    options.add_argument(
        "--beside", metavar="BINARY",
        help="another weft in the place of the peers; a line falls short if it is worse by more than its spread",
    )
    return options


def wanted(lines, arguments):
    """The lines that the command line asks for. Beside another weft, lines that differ in their peers alone are one."""
    if arguments.beside:
        alike = {}
        for line in lines:
            other = (f"{BESIDE} {line.ours[0]}", line.ours[1])
            other = dataclasses.replace(line, peers=(other,), promise=None, bounds=(), floor=None)
            alike.setdefault(dataclasses.replace(other, title=""), other)
        lines = alike.values()
    found = [
        line for line in lines
        if arguments.match in line.title and arguments.client in line.loader
        and (not arguments.size or line.size in arguments.size)
    ]
    if not found:
        sys.exit("no line has this --match, --client and --size")
    return found


def start(make, lines, arguments):
    """The servers that the lines need. `make` has a function for each name of ours and of the peers, which takes what
    only Weft has: its binary, and a word before its name."""
    servers = {}
    names = {side[0] for line in lines for side in (line.ours, *line.peers)} | {FLOOR for line in lines if line.floor}
    try:
        for name in sorted(names):
            other = name.startswith(BESIDE)
            servers[name] = make[name.removeprefix(f"{BESIDE} ")](
                **({"binary": arguments.beside, "prefix": f"{BESIDE} "} if other else {})
            )
    except BaseException:
        for server in servers.values():
            server.stop()
        raise
    return servers


def put(lines, servers, path):
    """Copies the file to the ramdisks that the lines use."""
    for name, share in sorted({side for line in lines for side in (line.ours, *line.peers)}):
        if share == "ram":
            servers[name].put(path, share)


def claim_memory(size=512 << 20):
    """Frees memory that was just used, for the sockets of whoever is measured next.

    A virtual machine's host may take free memory back. What it has taken costs several microseconds per 4 KiB to be used
    again, which would be most of what an answer of 64 KiB costs, at one time and not at another, whoever sends it."""
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def next_line(process, seconds):
    """What a loader says next; it is killed if it says nothing for so long."""
    timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


def measure(line, server, command, seconds):
    """One run of the loader `command`, which takes so long: the line's metric."""
    cpus = ",".join(str(c) for c in range(1, os.cpu_count())) or "0"
    process = subprocess.Popen(
        ["taskset", "-c", cpus, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        # The password comes by the environment: command lines are visible to everybody.
        env=dict(os.environ, LOADER_USER=USER, LOADER_PASSWORD=PASSWORD),
    )
    with process:
        before = None
        # A loader whose attempt was in vain begins again.
        while (said := next_line(process, seconds + PATIENCE)).strip() == "begin":
            before = server.cpu_seconds()
        if before is not None and said:
            done = json.loads(said)
            cpu = server.cpu_seconds() - before
        process.stdin.close()
        if process.wait() != 0 or before is None or not said:
            raise InVain("stalls" if process.returncode == -signal.SIGKILL else "fails", server)
    if not done["operations" if line.metric == "latency" else "bytes"]:
        raise InVain("does nothing", server)
    return METRICS[line.metric][1](done["bytes"], done["operations"], done["seconds"], cpu)


def shown(figures):
    """Median and range, with three digits that count."""
    low, middle, high = (
        f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in (min(figures), statistics.median(figures), max(figures))
    )
    return f"{middle} ({low}-{high})"


def best(figures, less):
    """The name with the best median."""
    return (min if less else max)(figures, key=lambda name: statistics.median(figures[name]))


@dataclasses.dataclass
class Ratio:
    """Of ours to a neighbour's: better or equal to the bound, or it falls short."""

    value: float
    neighbour: str
    bound: float | None
    less: bool

    def holds(self):
        return self.bound is None or (self.value <= self.bound if self.less else self.value >= self.bound)

    def bound_text(self):
        return "" if self.bound is None else f"{'<=' if self.less else '>='} {self.bound:.3g}"

    def __str__(self):
        return f"{self.value:.2f} {self.bound_text()}".strip() + ("" if self.holds() else " SHORT")

    def as_json(self):
        return {"ratio": self.value, "neighbour": self.neighbour, "bound": self.bound, "holds": self.holds()}


def compare(line, servers, loader, arguments):
    """Measures all sides in turn, so that a drift of the machine meets everybody, prints the line, and returns all of it.
    `loader(line, server, share)` is the command of the load."""
    unit, _, less = METRICS[line.metric]
    floors = {pattern: [] for pattern in line.floor.patterns} if line.floor else {}
    ours, peers, in_vain = [], {side: [] for side in line.peers}, {}

    def measured(side):
        claim_memory()
        return measure(line, servers[side[0]], loader(line, servers[side[0]], side[1]), arguments.seconds)

    for _ in range(arguments.repetitions):
        for pattern, figures in floors.items():
            claim_memory()
            command = servers[FLOOR].load(line, pattern, arguments.span, FLOOR_SECONDS)
            figures.append(measure(line, servers[FLOOR], command, FLOOR_SECONDS))
        ours.append(measured(line.ours))
        for side, figures in peers.items():
            try:
                if side not in in_vain:
                    figures.append(measured(side))
            except InVain as why:
                in_vain[side] = why.word
    whole = {side: figures for side, figures in peers.items() if side not in in_vain}

    def ratio(neighbour, figures, bound):
        return Ratio(statistics.median(ours) / statistics.median(figures), neighbour, bound, less)

    def bound(name):
        if not name.startswith(BESIDE):
            return line.bound(name)
        spread = max((max(f) - min(f)) / statistics.median(f) for f in [ours, *whole.values()])
        return 1 + spread if less else max(1 - spread, 0)

    to_peers = {side: ratio(servers[side[0]].name, figures, bound(side[0])) for side, figures in whole.items()}
    peer = best(whole, less) if whole else None
    to_peer = to_peers.get(peer)
    peer_column = ", ".join([
        *([f"{to_peer.neighbour} {shown(peers[peer])}"] if peer else []),
        *(f"{servers[name].name} {word}" for (name, _), word in in_vain.items()),
    ])
    # The best peer's ratio is shown in any case, another one's if its bound is not kept.
    ratio_column = ", ".join([
        str(to_peer or "-"),
        *(f"{found.neighbour} {found}" for side, found in to_peers.items() if side != peer and not found.holds()),
    ])
    floor_column, to_floor = "-", None
    if floors:
        pattern = best(floors, less)
        to_floor = ratio(f"floor ({pattern})", floors[pattern], line.floor.most)
        floor_column = f"{pattern} {shown(floors[pattern])}"
    print(f"{line.title:28} {line.size >> 10:5} KiB  {line.loader:12} {unit:19} {floor_column:30} {shown(ours):22} {peer_column:36} "
          f"{str(to_floor or '-'):20} {ratio_column}", flush=True)
    work = f"{line.title}, {line.size >> 10} KiB, {line.loader}"
    short = [
        f"{work}: {found.value:.2f} of {found.neighbour}'s {unit}, promised {found.bound_text()}"
        for found in [*([to_floor] if to_floor else []), *to_peers.values()] if not found.holds()
    ]
    if not whole:
        short.append(f"{work}: no peer came to its end ({peer_column})")
    return {
        "title": line.title, "bytes": line.size, "depth": line.depth, "write": line.write, "client": line.loader,
        "unit": unit, "less_is_better": less,
        "weft": {"server": servers[line.ours[0]].name, "share": line.ours[1], "figures": ours},
        "floor": {
            "storage": line.floor.storage, "protection": line.floor.protection, "patterns": floors,
            **to_floor.as_json(),
        } if floors else None,
        "peers": [
            {
                "server": servers[name].name, "share": share, "figures": figures, "in_vain": in_vain.get((name, share)),
                **(to_peers[name, share].as_json() if (name, share) in to_peers else {}),
            } for (name, share), figures in peers.items()
        ],
        "best_peer": to_peer.as_json() if to_peer else None,
    }, short


def machine(servers, arguments):
    """What the figures are of."""
    with open("/proc/cpuinfo") as cpus:
        model = next((line.split(":")[1].strip() for line in cpus if line.startswith("model name")), "unknown")
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kernel": platform.release(), "processor": model,
        "processors": os.cpu_count(), "load_average": os.getloadavg()[0], "congestion_control": congestion,
        "servers": sorted(server.name for server in servers.values()),
        "weft": subprocess.run([arguments.weft, "--version"], capture_output=True, text=True).stdout.strip(),
        "floor_engine": servers[FLOOR].engine if FLOOR in servers else None,
        "repetitions": arguments.repetitions, "seconds": arguments.seconds, "floor_seconds": FLOOR_SECONDS,
        "span_bytes": arguments.span,
    }


def judge(lines, servers, loader, arguments):
    """Compares line by line, stops the servers, names what falls short and ends the program."""
    about, compared, short = machine(servers, arguments), [], []
    print(f"{arguments.repetitions} repetitions: median (range). Load of this machine before: {about['load_average']:.2f} "
          "(a quiet one has less than 0.3)")
    print(f"{'work':28} {'size':>9}  {'client':12} {'unit':19} {'floor, by its best pattern':30} {'Weft':22} {'best peer':36} "
          f"{'Weft / floor':20} Weft / best peer")
    try:
        for line in lines:
            found, missed = compare(line, servers, loader, arguments)
            compared.append(found)
            short += missed
            # What has been measured is kept, even if the run does not come to its end.
            if arguments.json:
                arguments.json.write_text(json.dumps({"machine": about, "lines": compared, "short": short}, indent=1) + "\n")
    finally:
        for server in servers.values():
            server.stop()
    for said in short:
        print("falls short:", said, file=sys.stderr)
    sys.exit(1 if short else 0)
