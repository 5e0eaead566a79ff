"""NFSv3 over TCP: Weft beside Debian's NFS-Ganesha, the same independent client (libnfs), one run.

Server on processor 0, client on the others, a 1 GiB file in the page cache, congestion control reno on both. Prints
each figure as median and range of the repetitions, and exits non-zero, naming the line, where a stated ratio falls
short.
"""

import pathlib
import tempfile

from compare import Line, judge, options, put, start, wanted, write_file
from servers import Ganesha, Weft

SIZES = [8 << 10, 64 << 10, 512 << 10]


def lines():
    """What is promised."""
    for write in [False, True]:
        name = "WRITE" if write else "READ"
        for size, promise in zip(SIZES, [6, 3.5, 4]):
            yield Line(name, ("weft", "data"), ("ganesha", "data"), size, promise, write)
        for size, promise in zip(SIZES, [9, 5, 5]):
            yield Line(f"{name} of a ramdisk", ("weft", "ram"), ("ganesha", "data"), size, promise, write)
    yield Line("READ, one at a time", ("weft", "data"), ("ganesha", "data"), 8 << 10, None, metric="latency", depth=1)


def main():
    arguments = options(__doc__).parse_args()

    def loader(line, server, share):
        url = f"nfs://127.0.0.1{server.export(share)}/file.bin?nfsport={server.port}&mountport={server.mount_port}&version=3"
        operation = "write" if line.write else "read"
        return [arguments.loader, url, operation, str(line.size), str(line.depth), str(arguments.span),
                str(arguments.seconds)]

    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir(mode=0o777)
        write_file(data / "file.bin", arguments.span)
        nfs = ["--nfs-port", "0", "--mountd-port", "0", "--no-root-squash", *arguments.weft_option]
        todo = wanted(lines(), arguments)
        make = {"ganesha": lambda: Ganesha(work, data), "weft": lambda **which: Weft(data, *nfs, **which)}
        servers = start(make, todo, arguments)
        put(todo, servers, data / "file.bin")
        judge(todo, servers, loader, arguments)


if __name__ == "__main__":
    main()
