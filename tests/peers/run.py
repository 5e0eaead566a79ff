"""SMB READ over TCP: Weft beside Debian's smbd, the same independent client, one run.

Server on processor 0, client on the others, file in the page cache, unsigned, congestion control reno on both. Prints
bytes per server CPU second (median and range of the repetitions) and exits non-zero, naming the line, where a stated
ratio falls short.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "target" / "release" / "weft"
PASSWORD = "password-of-the-bench"
# An account that every host has; smbd needs a Unix one, its SMB password lives in the temporary folder.
USER = "root"
# READ size: least ratio of Weft's bytes per server CPU second to smbd's.
PROMISES = {8 << 10: 1.5, 64 << 10: 0.8, 1 << 20: None}

SMB_CONF = """
[global]
  server role = standalone server
  interfaces = lo
  bind interfaces only = yes
  smb ports = {port}
  disable netbios = yes
  load printers = no
  server min protocol = SMB2_10
  server signing = auto
  server smb encrypt = off
  use sendfile = yes
  aio read size = 0
  log level = 0
  {folders}
[data]
  path = {data}
  read only = no
"""


def cpu_seconds(pids):
    """CPU time of processes in all of their threads."""
    nanos = 0
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            nanos += int((task / "schedstat").read_text().split()[0])
    return nanos / 1e9


def descendants(pid):
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += descendants(int(child))
    return pids


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Smbd:
    """Debian's smbd at its best for this work, with its own configuration and state."""

    name = "smbd, sendfile"

    def __init__(self, work, data):
        self.port = free_port()
        folders = "\n  ".join(
            f"{key} = {work}/{key.replace(' ', '-')}"
            for key in ["private dir", "lock directory", "state directory", "cache directory", "pid directory",
                        "ncalrpc dir"]
        )
        for line in folders.splitlines():
            pathlib.Path(line.split("= ")[1]).mkdir(mode=0o700)
        conf = work / "smb.conf"
        conf.write_text(SMB_CONF.format(port=self.port, data=data, folders=folders))
        subprocess.run(
            ["smbpasswd", "-c", conf, "-s", "-a", USER], input=f"{PASSWORD}\n{PASSWORD}\n", text=True, check=True,
            capture_output=True,
        )
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", "smbd", "--foreground", "--no-process-group", "-s", conf],
            # A group of its own: when smbd ends it ends its whole process group, which would be ours.
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )

    def pids(self):
        return descendants(self.process.pid)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


class Weft:
    name = "weft"

    def __init__(self, work, data, options):
        self.process = subprocess.Popen(
            [WEFT, "serve", data, "--user", USER, "--smb-port", "0", "--smbd-port", "0", "--cores", "1", "--pin",
             "--congestion", "reno", "--json", *options],
            stdout=subprocess.PIPE, text=True, env=dict(os.environ, WEFT_PASSWORD=PASSWORD),
        )
        self.port = json.loads(self.process.stdout.readline())["smb_port"]

    def pids(self):
        return [self.process.pid]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(20) != 0:
            raise SystemExit("weft did not end well")


def measure(server, loader, size, depth, seconds, span):
    """One run of the loader; bytes per server CPU second, MB/s."""
    cpus = ",".join(str(c) for c in range(1, os.cpu_count())) or "0"
    process = subprocess.Popen(
        ["taskset", "-c", cpus, loader, "-address", f"127.0.0.1:{server.port}", "-share", "data", "-file", "file.bin",
         "-size", str(size), "-depth", str(depth), "-seconds", str(seconds), "-span", str(span)],
        stdout=subprocess.PIPE, text=True, env=dict(os.environ, LOADER_USER=USER, LOADER_PASSWORD=PASSWORD),
    )
    if process.stdout.readline().strip() != "begin":
        raise SystemExit(f"the loader did not begin against {server.name}")
    before = cpu_seconds(server.pids())
    line = process.stdout.readline()
    after = cpu_seconds(server.pids())
    if process.wait() != 0:
        raise SystemExit(f"the loader failed against {server.name}")
    done = json.loads(line)
    return done["bytes"] / (after - before), done["bytes"] / done["seconds"] / 1e6


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--loader", required=True)
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=2)
    arguments.add_argument("--depth", type=int, default=32)
    arguments.add_argument("--weft-option", action="append", default=[], help="further options of weft serve")
    arguments.add_argument("--size", type=int, action="append", help="bytes of a READ; by default all that are judged")
    arguments.add_argument("--span", type=int, default=1 << 30)
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        work.chmod(0o755)
        data = work / "data"
        data.mkdir(mode=0o777)
        with open(data / "file.bin", "wb") as out:
            block = os.urandom(1 << 20)
            for _ in range(arguments.span >> 20):
                out.write(block)
        os.chmod(data / "file.bin", 0o666)
        servers = [Smbd(work, data), Weft(work, data, arguments.weft_option)]
        time.sleep(2)  # smbd forks its helpers first
        short = []
        try:
            print(f"READ, queue depth {arguments.depth}, {arguments.repetitions} repetitions: median (range)")
            print(f"{'size':>8}  {'server':16} {'MB per server CPU s':>28} {'server CPU s/GiB':>17} {'MB/s':>8}  ratio")
            for size in arguments.size or PROMISES:
                promise = PROMISES.get(size)
                seen = {server.name: [] for server in servers}
                for _ in range(arguments.repetitions):
                    for server in servers:  # interleaved: a drift of the machine meets both
                        seen[server.name].append(
                            measure(server, arguments.loader, size, arguments.depth, arguments.seconds, arguments.span)
                        )
                medians = {}
                for server in servers:
                    efficiency = [e for e, _ in seen[server.name]]
                    medians[server.name] = statistics.median(efficiency)
                    ratio = medians[server.name] / medians["smbd, sendfile"]
                    figure = (
                        f"{medians[server.name] / 1e6:9.0f} ({min(efficiency) / 1e6:.0f}-{max(efficiency) / 1e6:.0f})"
                    )
                    rate = statistics.median(r for _, r in seen[server.name])
                    print(
                        f"{size:>8}  {server.name:16} {figure:>28} {(1 << 30) / medians[server.name]:>17.2f} {rate:>8.0f}"
                        f"  {ratio:.2f}"
                    )
                ratio = medians["weft"] / medians["smbd, sendfile"]
                if promise is not None and ratio < promise:
                    short.append(f"READ {size} bytes: {ratio:.2f} of smbd's bytes per CPU second, promised {promise}")
        finally:
            for server in servers:
                server.stop()
    for line in short:
        print("falls short:", line, file=sys.stderr)
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    if os.geteuid() != 0 or shutil.which("smbd") is None:
        sys.exit("this needs root (smbd) and the Debian package samba; `make bench-peers` installs it")
    main()
