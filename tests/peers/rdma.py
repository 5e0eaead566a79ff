"""NFS/RDMA over shared memory beside NFS/TCP: the same server, the same client, the same work, one run.

`weft bench run` against a server of its own with its share in memory, which has processor 0; the client has the others. READ
of 32 KiB and WRITE of 64 KiB and above are judged: throughput at least twice that of TCP, cycles per byte of both ends
at most a third, and wake-ups (context switches of the host, which is how this provider is told of anything while it does not
poll) falling as the I/O grows. Prints each line and exits non-zero, naming those that fall short.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

WEFT = pathlib.Path(__file__).resolve().parents[2] / "target/release/weft"
# READ from 32 KiB on, WRITE from 64 KiB on.
FROM = {"READ": 32 << 10, "WRITE": 64 << 10}
SIZES = [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20]
TIMES_TCP = 2.0
CYCLES_OF_TCP = 1 / 3
# Wake-ups per second against bytes of an I/O, both as logarithms: -1 is a linear fall.
SLOPE = -0.7
# So few are none: the host's own timers and whoever else runs wake as often.
FEW = 500.0


def options():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--weft", default=str(WEFT))
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--size", type=int, action="append", help="bytes of an I/O; by default all that are judged")
    options.add_argument("--file-size", default="64M")
    options.add_argument("--depth", type=int, default=8)
    options.add_argument("--out", help="keep the report: FILE.json or FILE.html")
    return options.parse_args()


def job(arguments, sizes):
    blocks = ", ".join(f'"{size >> 10}K"' for size in sizes)
    return f"""
server = "local"
protocol = "nfs"
transports = ["tcp", "shm"]

[[work]]
name = "white paper"
read = [100, 0]
block = [{blocks}]
queue_depth = {arguments.depth}
order = "sequential"
streams = true
files = {arguments.depth}
file_size = "{arguments.file_size}"
duration = "{arguments.seconds}s"
repetitions = {arguments.repetitions}
"""


def measure(arguments, sizes):
    """The points by transport, mix and size."""
    with tempfile.TemporaryDirectory(prefix="weft-rdma-") as folder:
        folder = pathlib.Path(folder)
        (folder / "job.toml").write_text(job(arguments, sizes))
        report = folder / "report.json"
        command = [arguments.weft, "bench", "run", folder / "job.toml", "--quiet", "--out", report]
        if arguments.out:
            command += ["--out", os.path.abspath(arguments.out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        sections = json.loads(report.read_text())["sections"]
    points = [point for section in sections for point in section["points"]]
    mix = lambda point: "READ" if point["work"]["mix"] in ["read", {"percent": 100}] else "WRITE"
    return {(point["transport"], mix(point), point["work"]["size"]): point for point in points}


def median(point, *path):
    for key in path:
        point = (point or {}).get(key)
    return point and point["median"]


def wakeups(point):
    """Per second, on the host that both ends are on."""
    return median(point, "client", "context_switches_per_second")


def slope(found):
    """Of the logarithms, by least squares."""
    x, y = [math.log(size) for size, _ in found], [math.log(max(rate, 1.0)) for _, rate in found]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def judge(points, sizes):
    """Prints every line; those that fall short."""
    short = []

    def line(name, value, bound, holds, shown):
        print(f"{'ok   ' if holds else 'SHORT'} {name}: {shown} ({bound})", flush=True)
        if not holds:
            short.append(name)

    for mix, smallest in FROM.items():
        rates = []
        for size in (size for size in sizes if size >= smallest):
            tcp, shm = points.get(("tcp", mix, size)), points.get(("shm", mix, size))
            name = f"NFS {mix} {size >> 10} KiB, shm beside tcp"
            if not tcp or not shm:
                line(name, None, "both measured", False, "not measured")
                continue
            a, b = median(shm, "throughput"), median(tcp, "throughput")
            line(f"{name}, throughput", a / b, f"at least {TIMES_TCP:g} times", a >= TIMES_TCP * b,
                 f"{a / 1e6:.0f} against {b / 1e6:.0f} MB/s, {a / b:.2f} times")
            a, b = median(shm, "cycles_per_byte"), median(tcp, "cycles_per_byte")
            if a is None or b is None:
                line(f"{name}, cycles per byte", None, "both known", False, "not known")
            else:
                line(f"{name}, cycles per byte", a / b, f"at most {CYCLES_OF_TCP:.2f} of TCP's", a <= CYCLES_OF_TCP * b,
                     f"{a:.2f} against {b:.2f}, {a / b:.2f} of it")
            if wakeups(shm) is not None:
                rates.append((size, wakeups(shm)))
        for size, rate in rates:
            print(f"      NFS {mix} {size >> 10} KiB over shm: {rate:.0f} wake-ups per second", flush=True)
        if len(rates) >= 3:
            name, found = f"NFS {mix} over shm, wake-ups by I/O size", slope(rates)
            none = max(rate for _, rate in rates) < FEW
            shown = "hardly any at any size" if none else f"they go with the size to the power of {found:.2f}"
            line(name, found, f"at most {SLOPE:g}; -1 is a linear fall", none or found <= SLOPE, shown)
    return short


def main():
    arguments = options()
    sizes = sorted(arguments.size or SIZES)
    short = judge(measure(arguments, sizes), sizes)
    if short:
        sys.exit(f"{len(short)} lines fall short:\n  " + "\n  ".join(short))


if __name__ == "__main__":
    main()
