"""SMB over TCP: Weft beside the floor, Debian's smbd and Chimera, the same independent clients, one run.

Server on processor 0, client on the others, a 1 GiB file in the page cache, congestion control reno on both. Prints
each figure as median and range of the repetitions, and exits non-zero, naming the line, where a stated ratio falls
short. A line that is measured with two clients holds if it holds with both.
"""

import pathlib
import tempfile
import time

from compare import FLOOR, Floor, Line, judge, options, patterns, program, put, start, wanted
from servers import Chimera, Floor as FloorServer, Smbd, Stream, Weft, in_root, write_file

SIZES = [8 << 10, 64 << 10, 1 << 20]
PLAIN, SMBD, CHIMERA, RAM = ("weft", "data"), ("smbd", "data"), ("chimera", "data"), ("weft", "ram")
# Clients by the names that lines use. go-smb2 signs with AES-CMAC, the crate smb2 with AES-GMAC; libsmb2 is in C.
GO, CRATE, LIBSMB2 = "go-smb2", "smb2 (Rust)", "libsmb2"
MACS = {GO: "cmac", CRATE: "gmac"}


def first_lines():
    """What the first slice promises."""
    for size, promise in zip(SIZES, [1 / 1.5, 1 / 0.8, None]):
        yield Line("READ", PLAIN, (SMBD,), size, promise, metric="cost", loader=GO)


def lines(with_chimera=False):
    """What the whole server promises."""
    plain = (SMBD, CHIMERA) if with_chimera else (SMBD,)
    for client in [GO, LIBSMB2]:
        for size, most in zip(SIZES, [1.4, 1.3, 1.2]):
            floor = Floor("smb", patterns(False, size), most)
            yield Line("READ", PLAIN, plain, size, 1, False, "cost", loader=client, floor=floor)
        for size, most in zip(SIZES, [1.25, 1.1, 1.1]):
            floor = Floor("smb", patterns(True, size), most)
            yield Line("WRITE", PLAIN, plain, size, 1, True, "cost", loader=client, floor=floor)
        for size, most in zip(SIZES, [1.5, 1.2, 1.2]):
            floor = Floor("smb", ("copy", "sendfile"), most, "memory")
            yield Line("READ of a ramdisk", RAM, plain, size, 1, False, "cost", loader=client, floor=floor)
        for size, most in zip(SIZES, [1.5, 1.2, 1.2]):
            floor = Floor("smb", ("copy",), most, "memory")
            yield Line("WRITE of a ramdisk", RAM, plain, size, 1, True, "cost", loader=client, floor=floor)
    for client, mac in MACS.items():
        for write in [False, True]:
            name = "WRITE" if write else "READ"
            for size in SIZES:
                floor = Floor("smb", ("copy",), 1.25, protection=mac)
                yield Line(f"{name}, signed", ("weft signed", "data"), (("smbd signed", "data"),), size, 1, write, "cost",
                           loader=client, floor=floor)
            for size in SIZES:
                floor = Floor("smb", ("copy",), 1 / 0.9, protection="gcm")
                yield Line(f"{name}, AES-128-GCM", ("weft encrypted", "data"), (("smbd encrypted", "data"),), size, 1, write,
                           "cost", loader=client, floor=floor)
    # Only a client that polls shows what the server adds to a round trip of the floor, whose ends poll: the other's own
    # wake-ups take longer than both.
    for client, most in [(LIBSMB2, 1.25), (GO, None)]:
        floor = Floor("smb", ("copy", "sendfile"), most)
        yield Line("READ, one at a time", PLAIN, plain, 8 << 10, 0.75, metric="latency", depth=1, loader=client, floor=floor)
    yield Line("READ beside a TCP stream", PLAIN, (("stream", ""),), 1 << 20, 0.65, metric="rate", loader=GO)


def makers(work, data, arguments):
    """What starts the server of each name."""
    def weft(*more, name="weft"):
        return lambda **which: Weft(data, *more, *arguments.weft_option, name=name, **{"binary": arguments.weft, **which})

    root = arguments.root
    return {
        "weft": weft(),
        "weft signed": weft("--signing", "required", name="weft, signed"),
        "weft encrypted": weft("--require-encryption", name="weft, encrypted"),
        "smbd": lambda: Smbd(work, data, root=root),
        "smbd signed": lambda: Smbd(work, data, "mandatory", root=root),
        "smbd encrypted": lambda: Smbd(work, data, encrypt="required", root=root),
        "chimera": lambda: Chimera(work, data, arguments.chimera, "smb"),
        "stream": lambda: Stream(arguments.loader),
        FLOOR: lambda: FloorServer(arguments.floor, work / "floor.bin", arguments.span),
    }


def main():
    arguments = options(__doc__)
    arguments.add_argument("--signed-loader", required=True)
    arguments.add_argument("--libsmb2-loader", help="by default its lines are left out")
    arguments.add_argument("--chimera", type=program, metavar="BINARY",
                           help="Chimera's program, a peer of the plain lines; by default it is none")
    arguments.add_argument("--first", action="store_true", help="plain READs alone, against the bounds of the first slice")
    arguments = arguments.parse_args()
    if not arguments.libsmb2_loader:
        print("there is no loader on libsmb2: its lines are left out")
    if not arguments.chimera and not arguments.beside:
        print("there is no --chimera BINARY: Chimera is not among the peers")

    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        work.chmod(0o755)
        data = work / "data"
        data.mkdir(mode=0o777)
        programs = {
            GO: [arguments.loader],
            CRATE: [arguments.signed_loader],
            LIBSMB2: in_root(arguments.root, work, arguments.libsmb2_loader),
        }

        def loader(line, server, share):
            command = [*programs[line.loader], "--address", f"127.0.0.1:{server.port}", "--seconds", str(arguments.seconds)]
            if isinstance(server, Stream):
                return command + ["--stream"]
            return command + [
                "--share", share, "--file", "file.bin", "--size", str(line.size), "--depth", str(line.depth),
                "--span", str(arguments.span), *(["--write"] if line.write else []),
            ]

        write_file(data / "file.bin", arguments.span)
        every = first_lines() if arguments.first else lines(bool(arguments.chimera))
        todo = wanted((line for line in every if line.loader != LIBSMB2 or arguments.libsmb2_loader), arguments)
        servers = start(makers(work, data, arguments), todo, arguments)
        put(todo, servers, data / "file.bin")
        time.sleep(2)  # smbd forks its helpers first
        judge(todo, servers, loader, arguments)


if __name__ == "__main__":
    main()
