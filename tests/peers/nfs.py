"""NFS over TCP, versions 3, 4.0 and 4.1: Weft beside the floor, Debian's NFS-Ganesha and Chimera, the same independent clients,
one run.

Clients are libnfs (3 and 4.0), fio with its nfs engine where that is installed (3), and nfs41-loader.c (4.1). Server on processor
0, client on the others, a 1 GiB file in the page cache, congestion control reno on both. Prints each figure as median and
range of the repetitions, and exits non-zero, naming the line, where a stated ratio falls short. A line that is measured with two
clients holds if it holds with both.
"""

import pathlib
import sys
import tempfile

from compare import FLOOR, Floor, Line, judge, options, patterns, program, put, start, wanted
from fio import has_nfs
from servers import Chimera, Floor as FloorServer, Ganesha, Weft, in_root, write_file

SIZES = [8 << 10, 64 << 10, 512 << 10]
LIBNFS, FIO, LIBNFS4, SESSION = "libnfs", "fio", "libnfs 5", "nfs41-loader"
# The version that each client speaks.
VERSIONS = {LIBNFS: "3", FIO: "3", LIBNFS4: "4.0", SESSION: "4.1"}
# Five times Ganesha's bytes for the processor time at 8 KiB, three times from 64 KiB on.
OF_GANESHA = [1 / 5, 1 / 3, 1 / 3]
# Ahead of Chimera.
OF_CHIMERA = 1


def lines(with_chimera=False):
    """What is promised."""
    peers = ("ganesha", "chimera") if with_chimera else ("ganesha",)
    more = {"peers": tuple((name, "data") for name in peers), "bounds": (("chimera", OF_CHIMERA),)}
    for client, version in VERSIONS.items():
        protocol = f"nfs{version}"
        for write, bounds in [(False, [1.4, 1.3, 1.2]), (True, [1.25, 1.1, 1.1])]:
            name = f"NFSv{version} {'WRITE' if write else 'READ'}"
            for size, most, promise in zip(SIZES, bounds, OF_GANESHA):
                floor = Floor(protocol, patterns(write, size), most)
                yield Line(name, ("weft", "data"), size=size, promise=promise, write=write, metric="cost", loader=client,
                           floor=floor, **more)
            for size, most, promise in zip(SIZES, [1.5, 1.2, 1.2], OF_GANESHA):
                floor = Floor(protocol, ("copy",) if write else ("copy", "sendfile"), most, "memory")
                yield Line(f"{name} of a ramdisk", ("weft", "ram"), size=size, promise=promise, write=write, metric="cost",
                           loader=client, floor=floor, **more)
    for client in [LIBNFS, SESSION]:
        floor = Floor(f"nfs{VERSIONS[client]}", ("copy", "sendfile"), 1.25)
        yield Line(f"NFSv{VERSIONS[client]} READ, one at a time", ("weft", "data"), size=8 << 10, promise=None, metric="latency",
                   depth=1, loader=client, floor=floor, **more)


def programs(arguments, work):
    """The clients that there are, by name; says which are not."""
    found = {LIBNFS: [arguments.loader], SESSION: [arguments.session_loader]}
    fio = in_root(arguments.root, work, "fio")
    if has_nfs(fio):
        found[FIO] = fio
    else:
        print("there is no fio with an nfs engine: its lines are left out")
    if arguments.libnfs5_loader:
        found[LIBNFS4] = in_root(arguments.root, work, arguments.libnfs5_loader)
    else:
        print("there is no loader on libnfs 5: the lines of NFSv4.0 are left out")
    return found


def main():
    arguments = options(__doc__)
    arguments.add_argument("--session-loader", required=True, help="the program of nfs41-loader.c")
    arguments.add_argument("--libnfs5-loader", help="by default the lines of NFSv4.0 are left out: older ones cannot write by it")
    arguments.add_argument("--chimera", type=program, metavar="BINARY",
                           help="Chimera's program; by default it is not among the peers")
    arguments = arguments.parse_args()

    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir(mode=0o777)
        clients = programs(arguments, work)
        if not arguments.chimera and not arguments.beside:
            print("there is no --chimera BINARY: Chimera is not among the peers")

        def loader(line, server, share):
            version, program = VERSIONS[line.loader], clients[line.loader]
            export = server.export(share, version)
            where = f"nfs://127.0.0.1{export}"
            options = f"nfsport={server.port}&mountport={server.mount_port}&version={version[0]}"
            operation = "write" if line.write else "read"
            how = [operation, str(line.size), str(line.depth), str(arguments.span), str(arguments.seconds)]
            if line.loader == FIO:
                return [sys.executable, str(pathlib.Path(__file__).with_name("fio.py")), f"{where}?{options}", *how, *program]
            if line.loader == SESSION:
                return [*program, str(server.port), f"{export}/file.bin", *how]
            return [*program, f"{where}/file.bin?{options}", *how]

        write_file(data / "file.bin", arguments.span)
        nfs = ["--nfs-port", "0", "--mountd-port", "0", "--no-root-squash", *arguments.weft_option]
        todo = wanted((line for line in lines(bool(arguments.chimera)) if line.loader in clients), arguments)
        make = {
            "chimera": lambda: Chimera(work, data, arguments.chimera, root=arguments.root),
            "ganesha": lambda: Ganesha(work, data, arguments.root),
            "weft": lambda **which: Weft(data, *nfs, **{"binary": arguments.weft, **which}),
            FLOOR: lambda: FloorServer(arguments.floor, work / "floor.bin", arguments.span),
        }
        servers = start(make, todo, arguments)
        put(todo, servers, data / "file.bin")
        judge(todo, servers, loader, arguments)


if __name__ == "__main__":
    main()
