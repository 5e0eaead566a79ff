"""SMB Direct over shared memory beside SMB/TCP, and encrypted SMB Direct beside the cipher alone: one run.

`weft bench run` against servers of its own with their share in memory, which have processor 0; the client has the others.
READs and WRITEs of 64 KiB go both ways at the same time: SMB Direct has at least twice TCP's throughput, at most a 3.5th of
its cycles per byte of both ends. Encrypted, its throughput is held beside what the engine does by itself on as many buffers of
the same size (`aead`, an example of weft-smb), one thread sealing while another opens, each on a processor of its own:
of each byte that moves one end seals and the other opens, so one way the slower of the two is what is possible, and both ways
what two processors do that share both works. Prints each line and exits non-zero, naming those that fall short.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZE = 64 << 10
TIMES_TCP = 2.0
CYCLES_OF_TCP = 1 / 3.5
OF_ENGINE = 0.8
CIPHER = "AES_128_GCM"
MIXES = {"both ways": 50, "READ": 100, "WRITE": 0}


def options():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--weft", default=str(ROOT / "target/release/weft"))
    options.add_argument("--aead", default=str(ROOT / "target/release/examples/aead"))
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--file-size", default="64M")
    options.add_argument("--depth", type=int, default=8)
    return options.parse_args()


def job(arguments, transports, mixes, sizes):
    blocks = ", ".join(f'"{size >> 10}K"' for size in sizes)
    return f"""
server = "local"
protocol = "smb"
transports = {json.dumps(transports)}

[[work]]
name = "direct"
read = {json.dumps(mixes)}
block = [{blocks}]
queue_depth = {arguments.depth}
file_size = "{arguments.file_size}"
duration = "{arguments.seconds}s"
repetitions = 1
"""


def run(arguments, transports, mixes, sizes, *more):
    """One run: its points by transport, share of READs and size, and what encrypts."""
    with tempfile.TemporaryDirectory(prefix="weft-direct-") as folder:
        folder = pathlib.Path(folder)
        (folder / "job.toml").write_text(job(arguments, transports, mixes, sizes))
        report = folder / "report.json"
        command = [arguments.weft, "bench", "run", folder / "job.toml", "--quiet", "--out", report, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        sections = json.loads(report.read_text())["sections"]
    share = lambda mix: {"read": 100, "write": 0}.get(mix) if isinstance(mix, str) else mix["percent"]
    points = {
        (point["transport"], share(point["work"]["mix"]), point["work"]["size"]): point
        for section in sections for point in section["points"]
    }
    return points, [section["peer"].get("encryption") for section in sections]


def engine(arguments):
    """Bytes per second that are sealed and opened, each by a processor of its own, at the same time."""
    command = [arguments.aead, str(arguments.seconds), str(arguments.depth), str(SIZE)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def possible(share, seal, open_):
    """What two processors move of which one seals and one opens; both ways each does both."""
    return 2 / (1 / seal + 1 / open_) if share == 50 else min(seal, open_)


def shown(figures, scale=1.0, digits=0):
    low, middle, high = (f"{value * scale:.{digits}f}" for value in (min(figures), statistics.median(figures), max(figures)))
    return f"{middle} ({low}-{high})"


def main():
    arguments = options()
    rates, cycles = {"tcp": [], "shm": []}, {"tcp": [], "shm": []}
    sealed, alone = {mix: [] for mix in MIXES}, {mix: [] for mix in MIXES}
    for _ in range(arguments.repetitions):
        points, _ = run(arguments, ["tcp", "shm"], [50], [SIZE])
        for transport in rates:
            point = points[transport, 50, SIZE]
            rates[transport].append(point["throughput"]["median"])
            if point.get("cycles_per_byte"):
                cycles[transport].append(point["cycles_per_byte"]["median"])
        points, ciphers = run(arguments, ["shm"], list(MIXES.values()), [SIZE], "--encrypt")
        if any(CIPHER not in (cipher or "") for cipher in ciphers):
            sys.exit(f"{CIPHER} was to be agreed on, and this was: {ciphers}")
        own = engine(arguments)
        for mix, share in MIXES.items():
            sealed[mix].append(points["shm", share, SIZE]["throughput"]["median"])
            alone[mix].append(possible(share, own["seal"], own["open"]))
    short = []

    def line(name, ours, theirs, scale, digits, unit, bound, holds):
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"{'ok   ' if holds(ratio) else 'SHORT'} {name}: {shown(ours, scale, digits)} against "
              f"{shown(theirs, scale, digits)} {unit}, {ratio:.2f} of it ({bound})", flush=True)
        if not holds(ratio):
            short.append(f"{name}: {ratio:.2f}, promised {bound}")

    print(f"{arguments.repetitions} repetitions of {arguments.seconds:g} s: median (range)")
    line("SMB Direct on shm beside SMB/TCP, 64 KiB both ways, throughput", rates["shm"], rates["tcp"], 1e-6, 0, "MB/s",
         f"at least {TIMES_TCP:g}", lambda ratio: ratio >= TIMES_TCP)
    if cycles["shm"] and cycles["tcp"]:
        line("SMB Direct on shm beside SMB/TCP, 64 KiB both ways, cycles per byte", cycles["shm"], cycles["tcp"], 1, 2, "cycles",
             f"at most {CYCLES_OF_TCP:.3f}", lambda ratio: ratio <= CYCLES_OF_TCP)
    else:
        print("SHORT SMB Direct on shm beside SMB/TCP, cycles per byte: not known on this machine")
        short.append("cycles per byte of SMB Direct and SMB/TCP are not known on this machine")
    for mix in MIXES:
        line(f"SMB Direct on shm, {CIPHER}, beside the engine alone, 64 KiB {mix}", sealed[mix], alone[mix], 1e-6, 0, "MB/s",
             f"at least {OF_ENGINE:g}", lambda ratio: ratio >= OF_ENGINE)
    if short:
        sys.exit("falls short:\n  " + "\n  ".join(short))


if __name__ == "__main__":
    main()
