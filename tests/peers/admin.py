"""The cost of `weft serve --admin`, scraped every second.

At rest: the processor time of one round of requests (metrics, status, latency). Under load: megabytes per second of the
server's processor time, of NFSv3 READs and WRITEs of 8 KiB from a ramdisk, the most operations for the least work, so the
most that a scrape can disturb. One server is measured in turn with and without somebody who asks: two servers have two
ramdisks, and on a virtual machine the same copy into other memory can take several times as long. Nothing on the path of a
READ or WRITE depends on `--admin`, so without a scrape the server is the one that it would be without it.
Processor time and not instructions, because many virtual machines have no counters for them; `make bench-instructions`
counts those of a round. Exits non-zero where a scrape costs more than 1 %.
"""

import http.client
import pathlib
import socket
import statistics
import sys
import tempfile
import threading
import time

from compare import Line, judge, options, wanted
from servers import Weft, write_file

# What the page and Prometheus ask for.
PATHS = ["/metrics", "/api/v1/status", "/api/v1/latency"]
# Of one processor, with a round each second.
MOST_AT_REST = 0.01
SIZE = 8 << 10


def lines():
    """What is promised."""
    for write in [False, True]:
        name = "WRITE" if write else "READ"
        yield Line(f"{name} of a ramdisk", ("scraped", "ram"), (("unscraped", "ram"),), SIZE, 0.99, write)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Administered(Weft):
    """A server with an admin server."""

    def __init__(self, socket_path, *arguments, **more):
        self.socket_path = socket_path
        super().__init__(*arguments, "--admin", f"unix:{socket_path}", name="admin", **more)

    def round(self, connection):
        """Asks for each page; the number of bytes."""
        size = 0
        for path in PATHS:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            # The version before the latency page has none.
            if answer.status not in (200, 404):
                raise SystemExit(f"{path}: {answer.status}")
            size += len(body)
        return size

    def at_rest(self):
        """Whether a round each second costs no more than it may."""
        connection = UnixConnection(self.socket_path)
        size = self.round(connection)

        def used(seconds):
            """Processor time of a round, and of what else the server does in these seconds."""
            before = self.cpu_seconds()
            self.round(connection)
            time.sleep(seconds)
            return self.cpu_seconds() - before

        # A status is kept for a second: every round must cause a new one.
        late, at_once = [], []
        for _ in range(10):
            time.sleep(1.1)
            late.append(used(0.2))
            at_once.append(used(0))
        before = self.cpu_seconds()
        time.sleep(2)
        idle = (self.cpu_seconds() - before) / 2
        connection.close()
        seconds = max(0.0, statistics.median(late) - idle * 0.2)
        print(f"at rest: a round of {size} bytes takes {seconds * 1e6:.0f} us of processor time, {seconds:.2%} of one processor at one "
              f"a second; bound {MOST_AT_REST:.0%}. Right after another one, with the status kept and the program in the processor's "
              f"caches, it takes {statistics.median(at_once) * 1e6:.0f} us", flush=True)
        return seconds <= MOST_AT_REST


class Side:
    """The same server, scraped each second or not."""

    def __init__(self, server, name):
        self.server, self.name = server, name

    def __getattr__(self, name):
        return getattr(self.server, name)

    def stop(self):
        """The server is the other side's too: `main` ends it."""


class Scraper:
    """Asks for all pages once a second, while it is told to."""

    def __init__(self, server):
        self.server, self.asks, self.ended, self.rounds = server, threading.Event(), threading.Event(), 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ended.wait(1):
            if self.asks.is_set():
                connection = UnixConnection(self.server.socket_path)
                self.server.round(connection)
                connection.close()
                self.rounds += 1

    def stop(self):
        self.ended.set()
        self.thread.join()
        if not self.rounds:
            raise SystemExit("nobody was answered while the server was measured")


def main():
    arguments = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-admin-") as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir(mode=0o777)
        write_file(data / "file.bin", arguments.span)
        nfs = ["--nfs-port", "0", "--mountd-port", "0", "--no-root-squash", *arguments.weft_option]
        todo = wanted(lines(), arguments)
        server = Administered(work / "admin.sock", data, *nfs, binary=arguments.weft)
        is_cheap = server.at_rest()
        server.put(data / "file.bin", "ram")
        scraper = Scraper(server)

        def loader(line, side, share):
            # The side that is measured next.
            (scraper.asks.set if side.name == "scraped" else scraper.asks.clear)()
            url = f"nfs://127.0.0.1{server.export(share)}/file.bin?nfsport={server.port}&mountport={server.mount_port}&version=3"
            operation = "write" if line.write else "read"
            return [arguments.loader, url, operation, str(line.size), str(line.depth), str(arguments.span),
                    str(arguments.seconds)]

        sides = {name: Side(server, name) for name in ["scraped", "unscraped"]}
        try:
            judge(todo, sides, loader, arguments)
        except SystemExit as ended:
            sys.exit(ended.code or int(not is_cheap))
        finally:
            scraper.stop()
            server.stop()


if __name__ == "__main__":
    main()
