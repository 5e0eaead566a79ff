"""SMB over TCP: Weft beside Debian's smbd, the same independent clients, one run.

Server on processor 0, client on the others, a 1 GiB file in the page cache, congestion control reno on both. Prints
each figure as median and range of the repetitions, and exits non-zero, naming the line, where a stated ratio falls
short.
"""

import pathlib
import tempfile
import time

from compare import Line, judge, options, put, start, wanted, write_file
from servers import Smbd, Stream, Weft

SIZES = [8 << 10, 64 << 10, 1 << 20]


def first_lines():
    """What the first slice promises."""
    for size, promise in zip(SIZES, [1.5, 0.8, None]):
        yield Line("READ", ("weft", "data"), ("smbd", "data"), size, promise)


def lines():
    """What the whole server promises."""
    plain, smbd = ("weft", "data"), ("smbd", "data")
    for size, promise in zip(SIZES, [2.2, 1.1, 1.0]):
        yield Line("READ", plain, smbd, size, promise)
    for size, promise in zip(SIZES, [3.0, 1.6, 1.05]):
        yield Line("WRITE", plain, smbd, size, promise, write=True)
    for size, promise in zip(SIZES, [2.9, 1.4, 1.0]):
        yield Line("READ of a ramdisk", ("weft", "ram"), smbd, size, promise)
    for write in [False, True]:
        name = "WRITE" if write else "READ"
        for size, promise in zip(SIZES, [4, 3, 2.2]):
            yield Line(f"{name}, signed", ("weft signed", "data"), ("smbd signed", "data"), size, promise, write,
                       loader="signed")
        for size in SIZES:
            yield Line(f"{name}, AES-128-GCM beside signed", ("weft encrypted", "data"), ("weft signed", "data"), size,
                       0.8, write, loader="signed")
    yield Line("READ, one at a time", plain, smbd, 8 << 10, 0.75, metric="latency", depth=1)
    yield Line("READ beside a plain TCP stream", plain, ("stream", ""), 1 << 20, 0.65, metric="rate")


def makers(work, data, arguments):
    """What starts the server of each name."""
    def weft(*options, name="weft"):
        return lambda **which: Weft(data, *options, *arguments.weft_option, name=name, **which)

    return {
        "weft": weft(),
        "weft signed": weft("--signing", "required", name="weft, signed"),
        "weft encrypted": weft("--require-encryption", name="weft, encrypted"),
        "smbd": lambda: Smbd(work, data),
        "smbd signed": lambda: Smbd(work, data, "mandatory"),
        "stream": lambda: Stream(arguments.loader),
    }


def main():
    arguments = options(__doc__)
    arguments.add_argument("--signed-loader", required=True)
    arguments.add_argument("--first", action="store_true", help="plain READs alone, against the bounds of the first slice")
    arguments = arguments.parse_args()

    def loader(line, server, share):
        command = [
            arguments.loader if line.loader == "plain" else arguments.signed_loader,
            "--address", f"127.0.0.1:{server.port}", "--seconds", str(arguments.seconds),
        ]
        if isinstance(server, Stream):
            return command + ["--stream"]
        return command + [
            "--share", share, "--file", "file.bin", "--size", str(line.size), "--depth", str(line.depth),
            "--span", str(arguments.span), *(["--write"] if line.write else []),
        ]

    with tempfile.TemporaryDirectory(prefix="weft-peers-") as folder:
        work = pathlib.Path(folder)
        work.chmod(0o755)
        data = work / "data"
        data.mkdir(mode=0o777)
        write_file(data / "file.bin", arguments.span)
        todo = wanted(first_lines() if arguments.first else lines(), arguments)
        servers = start(makers(work, data, arguments), todo, arguments)
        put(todo, servers, data / "file.bin")
        time.sleep(2)  # smbd forks its helpers first
        judge(todo, servers, loader, arguments)


if __name__ == "__main__":
    main()
