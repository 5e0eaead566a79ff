"""Does `weft bench` measure right? The same work on Debian's smbd and NFS-Ganesha by `weft bench diskspd` and by independent
loaders: the Go client of tests/peers/loader for SMB, libnfs for NFS, and fio with its nfs engine where that is installed.

Server on processor 0, clients on the others, files in the page cache, congestion control reno, loaders in turn. Prints each
figure as median and range of the repetitions, and exits non-zero, naming the line, where weft's median is further than 5% from
the other's, or where the loader costs more than a third of the server's processor time at 8 KiB.

To be run on a quiet machine, as root: make bench-check.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare import Line, measure
from fio import has_nfs
from servers import PASSWORD, USER, WEFT, Ganesha, Smbd, wait_for_port, write_file

WITHIN = 0.05
LOADER_COST = 1 / 3
SIZES = [8 << 10, 64 << 10, 512 << 10]
DEPTH = 32
# Seconds of warm-up on files that were just made.
SETTLING = 5


def weft(server, target, size, write, arguments, made_bytes=None):
    """One run of our loader: bytes per second, and the cores that it and the server kept busy."""
    with tempfile.TemporaryDirectory(prefix="weft-check-") as folder:
        out = pathlib.Path(folder) / "out.json"
        line = [f"-b{size}", f"-o{DEPTH}", "-t1", "-r", f"-w{100 if write else 0}", "-d1", f"-f{arguments.span}"]
        # The others' file is older: one that was just made is being written to disk, which makes WRITEs to it dear at first.
        line += [f"-c{made_bytes}", f"-W{SETTLING}"] if made_bytes else []
        cpus = ",".join(str(c) for c in range(1, os.cpu_count())) or "0"
        subprocess.run(
            ["taskset", "-c", cpus, WEFT, "bench", "diskspd", "--quiet", "--transport", "tcp", "--congestion", "reno",
             "--duration", str(arguments.seconds), "--repetitions", "1", "--server-pid", str(server.process.pid),
             "--out", out, *line, target],
            check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, WEFT_PASSWORD=PASSWORD),
        )
        [section] = json.loads(out.read_text())["sections"]
        [point] = section["points"]
        for mark in point.get("marks", []):
            print(f"  marked: {mark['text']}")
        return point["throughput"]["median"], point["client"]["cores_busy"]["median"], point["server"]["cores_busy"]["median"]


def fio(server, size, write, arguments):
    """One run of fio's nfs engine: bytes per second."""
    cpus = ",".join(str(c) for c in range(1, os.cpu_count())) or "0"
    url = f"nfs://127.0.0.1{server.export('data')}?nfsport={server.port}&mountport={server.mount_port}&version=3"
    done = subprocess.run(
        ["taskset", "-c", cpus, "fio", "--name=check", "--ioengine=nfs", f"--nfs_url={url}", "--filename=/file.bin",
         f"--bs={size}", f"--iodepth={DEPTH}", f"--rw={'randwrite' if write else 'randread'}", f"--size={arguments.span}",
         "--time_based", f"--runtime={arguments.seconds}", "--ramp_time=0.5", "--output-format=json"],
        check=True, capture_output=True, text=True,
    )
    job = json.loads(done.stdout)["jobs"][0]
    return job["write" if write else "read"]["bw_bytes"]


def check(title, size, ours, theirs, repetitions):
    """Measures in turn and prints the line; what falls short."""
    seen = {name: [] for name in ["weft", *theirs]}
    cost = []
    for _ in range(repetitions):
        rate, client, server = ours()
        seen["weft"].append(rate / 1e6)
        cost.append(client / max(server, 1e-9))
        for name, run in theirs.items():
            seen[name].append(run() / 1e6)
    short = []
    for name in theirs:
        ratio = statistics.median(seen["weft"]) / statistics.median(seen[name])
        shown = [f"{statistics.median(f):.0f} ({min(f):.0f}-{max(f):.0f})" for f in (seen["weft"], seen[name])]
        print(f"{title:28} {size >> 10:5} KiB  MB/s  weft {shown[0]:>20}  {name} {shown[1]:>20}  {ratio:5.3f}", flush=True)
        if abs(ratio - 1) > WITHIN:
            short.append(f"{title}, {size >> 10} KiB: {ratio:.3f} of {name}'s, promised within {WITHIN:.0%}")
    used = statistics.median(cost)
    print(f"{'':28} {'':9}  loader's processor time, of the server's: {used:.2f}", flush=True)
    if size == 8 << 10 and used > LOADER_COST:
        short.append(f"{title}, {size >> 10} KiB: the loader used {used:.2f} of the server's processor time, promised {LOADER_COST:.2f}")
    return short


def smb_lines(work, data, arguments):
    server = Smbd(work, data)
    try:
        wait_for_port(server.port)
        for write in [False, True]:
            for size in arguments.size or SIZES:
                line = Line("", ("smbd", "data"), (("smbd", "data"),), size, None, write, "rate", DEPTH)
                command = [arguments.loader, "-address", f"127.0.0.1:{server.port}", "-share", "data", "-file", "file.bin",
                           "-size", str(size), "-depth", str(DEPTH), "-span", str(arguments.span),
                           "-seconds", str(arguments.seconds), *(["-write"] if write else [])]
                name = "check.bin" if write else "file.bin"
                target = f"smb://{USER}@127.0.0.1:{server.port}/data/{name}"
                yield from check(
                    f"smbd, {'WRITE' if write else 'READ'}", size,
                    lambda: weft(server, target, size, write, arguments, arguments.span if write else None),
                    {"smb2 in Go": lambda: measure(line, server, command, arguments.seconds) * 1e6}, arguments.repetitions,
                )
    finally:
        server.stop()


def nfs_lines(work, data, arguments):
    server = Ganesha(work, data)
    try:
        for write in [False, True]:
            for size in arguments.size or SIZES:
                line = Line("", ("ganesha", "data"), (("ganesha", "data"),), size, None, write, "rate", DEPTH)
                export = server.export("data")
                url = f"nfs://127.0.0.1{export}/file.bin?nfsport={server.port}&mountport={server.mount_port}&version=3"
                command = [arguments.nfs_loader, url, "write" if write else "read", str(size), str(DEPTH),
                           str(arguments.span), str(arguments.seconds)]
                share = str(export).strip("/").replace("/", "%2F")
                name = "check.bin" if write else "file.bin"
                target = f"nfs://127.0.0.1:{server.port}/{share}/{name}?mountport={server.mount_port}"
                theirs = {"libnfs": lambda: measure(line, server, command, arguments.seconds) * 1e6}
                if has_nfs(["fio"]):
                    theirs["fio"] = lambda: fio(server, size, write, arguments)
                yield from check(
                    f"ganesha, {'WRITE' if write else 'READ'}", size,
                    lambda: weft(server, target, size, write, arguments, arguments.span if write else None),
                    theirs, arguments.repetitions,
                )
    finally:
        server.stop()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--loader", required=True)
    options.add_argument("--nfs-loader", required=True)
    options.add_argument("--only", choices=["smb", "nfs"])
    options.add_argument("--size", type=int, action="append", help="bytes of a request; by default all that are judged")
    options.add_argument("--repetitions", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2)
    options.add_argument("--span", type=int, default=256 << 20, help="bytes of the file")
    arguments = options.parse_args()
    short = []
    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        work.chmod(0o755)
        data = work / "data"
        data.mkdir(mode=0o777)
        write_file(data / "file.bin", arguments.span)
        print(f"{arguments.repetitions} repetitions in turn: median (range)")
        for name, lines in [("smb", smb_lines), ("nfs", nfs_lines)]:
            if arguments.only in (None, name):
                short += lines(work, data, arguments)
    for said in short:
        print("falls short:", said, file=sys.stderr)
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
