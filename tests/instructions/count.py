"""Counts what an operation costs the server in user mode: instructions, allocations, locks, atomic operations, readings of
clocks. Compares the counts with bounds.toml, and exits non-zero, naming the line, where one is exceeded.

Each figure is the difference between N and 2N operations, divided by N, so what happens once does not count. Nothing is timed. A
disturbance (a batch that arrived in two pieces, a timer of the server) adds instructions and never saves any, so each of the two is the
least of several repetitions. Of Sends it is the largest: where one comes before the last was answered, the two cost less."""

import argparse
import collections.abc
import dataclasses
import itertools
import pathlib
import re
import shutil
import sys
import tomllib

import clients
import commands
import server
from program import ROOT

BOUNDS = pathlib.Path(__file__).with_name("bounds.toml")
# A bound whose figure is below this part of it guards little.
SLACK = 0.9
# What is counted by calls.
CALLS = {
    # Of mimalloc: an optimised program inlines what is above these.
    "allocations": re.compile(r"^mi_(malloc|zalloc|realloc)_aligned$"),
    "locks": re.compile(r"sync::(poison::)?(mutex|rwlock)::(Mutex|RwLock)<.*>::(try_)?(lock|read|write)$"),
    "atomics": re.compile(r"^core::sync::atomic::atomic_(add|sub|and|or|xor|swap|compare_exchange|compare_exchange_weak|u?max|u?min)$"),
    "clocks": re.compile(r"(_rdtsc|Timespec::now)$"),
}
# An optimised program shows no locks, atomics and clocks: they are inlined.
SEEN = {"debug": [*CALLS], "release": ["allocations"]}


@dataclasses.dataclass
class Line:
    """An operation, and how many of them a client sends at once."""

    name: str
    client: type
    operation: str
    # None: the client is a command, which sends all of them one by one.
    at_once: int | None = 1
    arguments: dict = dataclasses.field(default_factory=dict)
    short: bool = True
    # How many are counted, if it is not what the command line says.
    operations: int | None = None
    server: type = server.Server
    # Of several repetitions: by their instructions.
    chosen: collections.abc.Callable = min


LINES = [
    Line("SMB READ", clients.Smb, "read"),
    Line("SMB READ, 8 at a time", clients.Smb, "read", at_once=8),
    Line("SMB WRITE", clients.Smb, "write"),
    Line("SMB WRITE, 4 at a time", clients.Smb, "write", at_once=4, short=False),
    Line("SMB READ, signed", clients.Smb, "read", arguments={"signed": True}),
    Line("SMB WRITE, signed", clients.Smb, "write", arguments={"signed": True}, short=False),
    Line("NFSv3 READ", clients.Nfs3, "read"),
    Line("NFSv3 READ, 8 at a time", clients.Nfs3, "read", at_once=8, short=False),
    Line("NFSv3 WRITE", clients.Nfs3, "write", short=False),
    Line("NFSv4.1 READ", clients.Nfs41, "read"),
    Line("NFSv4.1 READ, 8 at a time", clients.Nfs41, "read", at_once=8, short=False),
    Line("round of admin pages", clients.Admin, "round", short=False, operations=4),
    Line("SMB Direct READ, shm", commands.SmbDirect, "read", at_once=None, arguments={"transport": "shm"}),
    Line("SMB Direct READ, iwarp", commands.SmbDirect, "read", at_once=None, arguments={"transport": "iwarp"}),
    Line("Send, shm", commands.Sends, "send", at_once=None, operations=160, arguments={"provider": "shm"}, server=server.PerfServer, chosen=max),
    Line("Send, iwarp", commands.Sends, "send", at_once=None, operations=160, arguments={"provider": "iwarp"}, server=server.PerfServer, chosen=max),
    Line("replicated WRITE, tcp", clients.Nbd, "write", short=False, server=server.Source),
    Line("replicated WRITE, shm", clients.Nbd, "write", short=False, server=server.ShmSource),
]


@dataclasses.dataclass
class Figure:
    """What one operation costs, and how much the repetitions differ in instructions, as a part of the figure."""

    counts: dict
    spread: float
    # Of that many operations.
    profile: object
    operations: int


def counts(profile):
    return {
        "instructions": profile.instructions,
        **{name: profile.called(pattern) for name, pattern in CALLS.items()},
    }


def measure(counted, line, operations, repetitions):
    client = line.client(counted, **line.arguments)
    once = getattr(client, line.operation)
    at_once = line.at_once or 1

    def work(batches):
        if line.at_once is None:
            return once(batches)
        for _ in range(batches):
            counted.rest()
            once(line.at_once)

    batches = max((line.operations or operations) // at_once, 1)
    if line.at_once is None:
        work(batches), work(2 * batches)
    else:
        # All of the file is mapped and known to be in the page cache, and polling before sleeping has become rare.
        work(line.operations or max(clients.FILE_BYTES // clients.SIZE // line.at_once, 150))
    seen = {1: [], 2: []}
    for _ in range(repetitions):
        for factor, profiles in seen.items():
            profiles.append(counted.count(lambda: work(factor * batches)))
    chosen = {factor: line.chosen(profiles, key=lambda profile: profile.instructions) for factor, profiles in seen.items()}
    divided = batches * at_once
    profile = chosen[2].beyond(chosen[1])
    figure = {name: count / divided for name, count in counts(profile).items()}
    all_two = [profile.instructions for profile in seen[2]]
    spread = (max(all_two) - min(all_two)) / 2 / divided / figure["instructions"]
    return Figure(figure, spread, profile, divided)


def shown(figure, columns):
    cells = [f"{figure.counts['instructions']:>9,.0f}", f"{figure.spread:>7.1%}"]
    return " ".join(cells + [f"{figure.counts[name]:>12.2f}" for name in columns])


def where(figure, most):
    """Where the instructions go: the functions with the most of their own, per operation."""
    locks = figure.profile.callers(CALLS["locks"])
    if locks:
        print("    locks, by who takes them:")
    for name, calls in locks.most_common():
        # A module's own `lock` only calls Mutex::lock: who called it says what was locked.
        within = figure.profile.callers(re.compile(f"^{re.escape(name)}$")) if name.endswith("::lock") else {}
        by = "; by " + ", ".join(f"{caller} {count / figure.operations:.2f}" for caller, count in within.items()) if within else ""
        print(f"    {calls / figure.operations:>9,.2f}  {name}{by}")
    for title, costs in [("with what they call", figure.profile.inclusive), ("of their own", figure.profile.own)]:
        print(f"    {title}:")
        for name, cost in costs.most_common(most):
            print(f"    {cost / figure.operations:>9,.0f}  {figure.profile.calls[name] / figure.operations:>6.2f} calls  {name[:150]}")


def excess(line, figure, bounds, profile):
    """What exceeds the bounds of the line, in words."""
    for name, bound in bounds.items():
        count = figure.counts[name]
        if count > bound:
            what = name.replace("_", " ")
            yield (
                f"{line.name}: {count:,.2f} {what} per operation, more than {bound:,} ({BOUNDS.relative_to(ROOT)}). "
                f"What they are: callgrind_annotate {'--inclusive=yes ' if name == 'instructions' else ''}{profile}"
            )
        elif count < SLACK * bound:
            print(f"{line.name}: {count:,.2f} {name} per operation: its bound, {bound:,}, can be lowered ({BOUNDS.relative_to(ROOT)})")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True, help="the server's program")
    arguments.add_argument("--build", choices=["debug", "release"], required=True, help="which bounds apply to it")
    arguments.add_argument("--short", action="store_true", help="fewer lines and operations, as in make test")
    arguments.add_argument("--match", default="", metavar="TEXT", help="only lines whose name contains TEXT")
    arguments.add_argument("--where", type=int, default=0, metavar="N", help="print the N functions with most instructions of each line, and who takes its locks")
    arguments.add_argument("--operations", type=int, metavar="N")
    arguments.add_argument("--repetitions", type=int, metavar="N")
    arguments = arguments.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: sudo apt-get install valgrind")
    operations = arguments.operations or (64 if arguments.short else 512)
    repetitions = arguments.repetitions or (2 if arguments.short else 5)
    bounds = tomllib.loads(BOUNDS.read_text())[arguments.build]
    kept = ROOT / "target" / "instructions"
    kept.mkdir(parents=True, exist_ok=True)
    lines = [line for line in LINES if arguments.match in line.name and (line.short or not arguments.short)]
    if not lines:
        raise SystemExit(f"no line has {arguments.match!r} in its name: they are {'; '.join(line.name for line in LINES)}")
    failures = []
    columns = SEEN[arguments.build]
    print(f"{'':<26} {'instr.':>9} {'spread':>7} " + " ".join(f"{name.replace('_', ' '):>12}" for name in columns))
    for kind, of_one in itertools.groupby(lines, key=lambda line: line.server):
        with server.started(kind, arguments.binary) as counted:
            if kind is server.Server:
                clients.write_file(counted)
            for line in of_one:
                figure = measure(counted, line, operations, repetitions)
                print(f"{line.name:<26} {shown(figure, columns)}", flush=True)
                profile = kept / (re.sub(r"\W+", "-", line.name.lower()) + ".callgrind")
                shutil.copyfile(counted.file(), profile)
                if arguments.where:
                    where(figure, arguments.where)
                failures += excess(line, figure, bounds.get(line.name, {}), profile)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
