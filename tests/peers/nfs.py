"""NFSv3 over TCP: Weft beside the floor and Debian's NFS-Ganesha, the same independent clients, one run.

Clients are libnfs, and fio with its nfs engine where that is installed. Server on processor 0, client on the others, a
1 GiB file in the page cache, congestion control reno on both. Prints each figure as median and range of the repetitions, and
exits non-zero, naming the line, where a stated ratio falls short. A line that is measured with two clients holds if it
holds with both.
"""

import pathlib
import sys
import tempfile

from compare import FLOOR, Floor, Line, judge, options, patterns, put, start, wanted
from fio import has_nfs
from servers import Floor as FloorServer, Ganesha, Weft, in_root, write_file

SIZES = [8 << 10, 64 << 10, 512 << 10]
GANESHA = (("ganesha", "data"),)
LIBNFS, FIO = "libnfs", "fio"
# Five times Ganesha's bytes for the processor time at 8 KiB, three times from 64 KiB on.
OF_GANESHA = [1 / 5, 1 / 3, 1 / 3]


def lines():
    """What is promised."""
    for client in [LIBNFS, FIO]:
        for write, bounds in [(False, [1.4, 1.3, 1.2]), (True, [1.25, 1.1, 1.1])]:
            name = "WRITE" if write else "READ"
            for size, most, promise in zip(SIZES, bounds, OF_GANESHA):
                floor = Floor("nfs", patterns(write, size), most)
                yield Line(name, ("weft", "data"), GANESHA, size, promise, write, "cost", loader=client, floor=floor)
            for size, most, promise in zip(SIZES, [1.5, 1.2, 1.2], OF_GANESHA):
                floor = Floor("nfs", ("copy",) if write else ("copy", "sendfile"), most, "memory")
                yield Line(f"{name} of a ramdisk", ("weft", "ram"), GANESHA, size, promise, write, "cost", loader=client,
                           floor=floor)
    floor = Floor("nfs", ("copy", "sendfile"), 1.25)
    yield Line("READ, one at a time", ("weft", "data"), GANESHA, 8 << 10, None, metric="latency", depth=1, loader=LIBNFS,
               floor=floor)


def main():
    arguments = options(__doc__).parse_args()

    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir(mode=0o777)
        fio = in_root(arguments.root, work, "fio")
        with_fio = has_nfs(fio)
        if not with_fio:
            print("there is no fio with an nfs engine: its lines are left out")

        def loader(line, server, share):
            where = f"nfs://127.0.0.1{server.export(share)}"
            options = f"nfsport={server.port}&mountport={server.mount_port}&version=3"
            operation = "write" if line.write else "read"
            how = [operation, str(line.size), str(line.depth), str(arguments.span), str(arguments.seconds)]
            if line.loader == FIO:
                return [sys.executable, str(pathlib.Path(__file__).with_name("fio.py")), f"{where}?{options}", *how, *fio]
            return [arguments.loader, f"{where}/file.bin?{options}", *how]

        write_file(data / "file.bin", arguments.span)
        nfs = ["--nfs-port", "0", "--mountd-port", "0", "--no-root-squash", *arguments.weft_option]
        todo = wanted((line for line in lines() if line.loader != FIO or with_fio), arguments)
        make = {
            "ganesha": lambda: Ganesha(work, data, arguments.root),
            "weft": lambda **which: Weft(data, *nfs, **{"binary": arguments.weft, **which}),
            FLOOR: lambda: FloorServer(arguments.floor, work / "floor.bin", arguments.span),
        }
        servers = start(make, todo, arguments)
        put(todo, servers, data / "file.bin")
        judge(todo, servers, loader, arguments)


if __name__ == "__main__":
    main()
