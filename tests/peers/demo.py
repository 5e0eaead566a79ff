"""What `weft demo` measured, beside the floor: the same READs and WRITEs of the floor's program over TCP, in memory as the demo's
are, server on processor 0, client on another. One request at a time is a mean round trip, more of them are a throughput.

    demo.py REPORT.json [--repetitions N] [--seconds N] [--match TEXT]

REPORT.json is what `weft demo --json` wrote. The floor is measured right after it, so run it on a quiet machine. Nothing is judged
here: the bounds of the demo are between its transports."""

import argparse
import json
import pathlib
import statistics
import tempfile

from compare import METRICS, Floor, Line, best, claim_memory, measure, shown
from servers import Floor as FloorServer, build_floor

SPAN = 256 << 20
# As Weft's own client speaks NFS to a server that does not refuse it.
PROTOCOLS = {"SMB": "smb", "NFS": "nfs4.1"}
TRANSPORTS = ["tcp", "iwarp", "iwarp-nocrc", "shm"]


def works(report, match):
    """The works of a report: protocol, operation, size, depth, and the medians of its transports, in the unit of their metric."""
    found = {}
    for section in report["sections"]:
        for point in section["points"]:
            work = point["work"]
            key = (work["protocol"], work["mix"], work["size"], work["queue_depth"])
            alone = work["queue_depth"] == 1
            figure = point["latency"]["mean"]["median"] / 1e3 if alone else point["throughput"]["median"] / 1e6
            found.setdefault(key, {})[point["transport"]] = figure
    return {key: row for key, row in found.items() if match in f"{key[0]} {key[1].upper()} {key[2] >> 10} KiB, depth {key[3]}"}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("report", type=pathlib.Path)
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--seconds", type=float, default=0.3)
    options.add_argument("--match", default="", help="only works whose line contains this")
    arguments = options.parse_args()
    todo = works(json.loads(arguments.report.read_text()), arguments.match)
    if not todo:
        options.error(f"{arguments.report} has no work with --match {arguments.match!r}")
    print(f"The floor beside the demo, medians of {arguments.repetitions} (range); one at a time in us, else in MB/s")
    print(f"{'work':28} {'floor, by its best pattern':32}" + "".join(f"{name:>12}" for name in TRANSPORTS) + "   tcp / floor")
    with tempfile.TemporaryDirectory(prefix="weft-floor-") as folder:
        server = FloorServer(build_floor(), pathlib.Path(folder) / "file", SPAN)
        try:
            for (protocol, mix, size, depth), row in todo.items():
                metric = "latency" if depth == 1 else "rate"
                patterns = ("copy", "sendfile") if mix == "read" else ("copy",)
                line = Line("", ("floor", ""), (), size, None, mix == "write", metric, depth,
                            floor=Floor(PROTOCOLS[protocol], patterns, None, "memory"))
                figures = {pattern: [] for pattern in patterns}
                for _ in range(arguments.repetitions):
                    for pattern, list_ in figures.items():
                        claim_memory()
                        command = server.load(line, pattern, SPAN, arguments.seconds)
                        list_.append(measure(line, server, command, arguments.seconds))
                pattern = best(figures, METRICS[metric][2])
                columns = "".join(f"{row[name]:12.4g}" if name in row else f"{'-':>12}" for name in TRANSPORTS)
                ratio = f"{row['tcp'] / statistics.median(figures[pattern]):.2f}" if "tcp" in row else "-"
                title = f"{protocol} {mix.upper()} {size >> 10} KiB, depth {depth}"
                print(f"{title:28} {pattern + ' ' + shown(figures[pattern]):32}{columns}   {ratio}", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
