"""The comparison that the benches share: the same work on our server and on theirs, in turn, and the ratio of the medians."""

import argparse
import dataclasses
import json
import mmap
import os
import statistics
import subprocess
import sys

from servers import PASSWORD, USER

# What is compared: its unit, how it is got from (bytes, operations, seconds, server CPU seconds), whether less is better.
METRICS = {
    "cpu": ("MB per server CPU s", lambda b, n, s, cpu: b / cpu / 1e6, False),
    "rate": ("MB/s", lambda b, n, s, cpu: b / s / 1e6, False),
    "latency": ("us, mean", lambda b, n, s, cpu: s / n * 1e6, True),
}


# The servers of another weft have the names of ours behind this word.
BESIDE = "other"


@dataclasses.dataclass(frozen=True)
class Line:
    """One comparison: the same work on ours and on theirs, and the ratio that is promised, if any."""

    title: str
    ours: tuple  # server, share
    theirs: tuple
    size: int
    promise: float | None
    write: bool = False
    metric: str = "cpu"
    depth: int = 32
    loader: str = "plain"


def options(description):
    """The command line that the benches share."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--loader", required=True)
    options.add_argument("--match", default="", help="only lines whose title contains this")
    options.add_argument("--size", type=int, action="append", help="bytes of a request; by default all that are judged")
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2)
    options.add_argument("--span", type=int, default=1 << 30, help="bytes of the file")
    options.add_argument("--weft-option", action="append", default=[], help="further options of weft serve")
    options.add_argument(
        "--beside", metavar="BINARY",
        help="another weft in the place of the peers; a line falls short if it is worse by more than its spread",
    )
    return options


def wanted(lines, arguments):
    """The lines that the command line asks for. Beside another weft, lines that differ in their peer alone are one."""
    if arguments.beside:
        alike = {}
        for line in lines:
            other = dataclasses.replace(line, theirs=(f"{BESIDE} {line.ours[0]}", line.ours[1]), promise=None)
            alike.setdefault(dataclasses.replace(other, title=""), dataclasses.replace(other, title=line.title))
        lines = alike.values()
    return [
        line for line in lines
        if arguments.match in line.title and (not arguments.size or line.size in arguments.size)
    ]


def start(make, lines, arguments):
    """The servers that the lines need. `make` has a function for each name of ours and of the peers, which takes what
    only Weft has: its binary, and a word before its name."""
    servers = {}
    for name in sorted({side[0] for line in lines for side in (line.ours, line.theirs)}):
        other = name.startswith(BESIDE)
        servers[name] = make[name.removeprefix(f"{BESIDE} ")](
            **({"binary": arguments.beside, "prefix": f"{BESIDE} "} if other else {})
        )
    return servers


def put(lines, servers, path):
    """Copies the file to the ramdisks that the lines use."""
    for name, share in sorted({side for line in lines for side in (line.ours, line.theirs)}):
        if share == "ram":
            servers[name].put(path, share)


def write_file(path, size):
    """A file that is in the page cache, for everybody to write to.

    The kernel keeps a file in pieces as long as the writes that made it, of up to 2 MiB, and ext4 walks through every
    block of a piece whenever a part of it is written: 8 KiB cost the kernel 20 us in a file that was written by
    megabytes, and 3 us in one that was written by 64 KiB, as cp and dd do it, whichever server writes them."""
    with open(path, "wb", buffering=0) as out:
        block = os.urandom(64 << 10)
        for _ in range(size // len(block)):
            out.write(block)
    os.chmod(path, 0o666)


def claim_memory(size=512 << 20):
    """Frees memory that was just used, for the sockets of whoever is measured next.

    A virtual machine's host may take free memory back. What it has taken costs several microseconds per 4 KiB to be used
    again, which would be most of what an answer of 64 KiB costs, at one time and not at another, whoever sends it."""
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def measure(line, server, command):
    """One run of the loader `command`: the line's metric."""
    cpus = ",".join(str(c) for c in range(1, os.cpu_count())) or "0"
    process = subprocess.Popen(
        ["taskset", "-c", cpus, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # The password comes by the environment: command lines are visible to everybody.
        env=dict(os.environ, LOADER_USER=USER, LOADER_PASSWORD=PASSWORD),
    )
    if process.stdout.readline().strip() != "begin":
        raise SystemExit(f"the loader did not begin against {server.name}")
    before = server.cpu_seconds()
    done = json.loads(process.stdout.readline())
    cpu = server.cpu_seconds() - before
    process.stdin.close()
    if process.wait() != 0:
        raise SystemExit(f"the loader failed against {server.name}")
    return METRICS[line.metric][1](done["bytes"], done["operations"], done["seconds"], cpu)


def compare(line, servers, loader, repetitions):
    """Measures both sides in turn, so that a drift of the machine meets both, and prints the line; what falls short.
    `loader(line, server, share)` is the command of the load."""
    unit, _, less = METRICS[line.metric]
    seen = {line.ours: [], line.theirs: []}
    for _ in range(repetitions):
        for (name, share), figures in seen.items():
            claim_memory()
            figures.append(measure(line, servers[name], loader(line, servers[name], share)))
    ratio = statistics.median(seen[line.ours]) / statistics.median(seen[line.theirs])
    shown = [f"{statistics.median(f):.0f} ({min(f):.0f}-{max(f):.0f})" for f in seen.values()]
    promise = line.promise
    if line.theirs[0].startswith(BESIDE):
        spread = max((max(f) - min(f)) / statistics.median(f) for f in seen.values())
        promise = round(1 + spread if less else max(1 - spread, 0), 2)
    bound = "" if promise is None else f"{'<=' if less else '>='} {promise}"
    names = f"{servers[line.ours[0]].name} / {servers[line.theirs[0]].name}"
    print(f"{line.title:31} {line.size >> 10:5} KiB  {names:30} {unit:20} {shown[0]:>20} {shown[1]:>20} {ratio:6.2f}  {bound}",
          flush=True)
    if promise is None or (ratio <= promise if less else ratio >= promise):
        return None
    return f"{line.title}, {line.size >> 10} KiB: {ratio:.2f} of {servers[line.theirs[0]].name}'s {unit}, promised {bound}"


def judge(lines, servers, loader, arguments):
    """Compares line by line, stops the servers, names what falls short and ends the program."""
    try:
        print(f"{arguments.repetitions} repetitions: median (range), ours, theirs, ratio, bound")
        short = [said for line in lines if (said := compare(line, servers, loader, arguments.repetitions))]
    finally:
        for server in servers.values():
            server.stop()
    for said in short:
        print("falls short:", said, file=sys.stderr)
    sys.exit(1 if short else 0)
