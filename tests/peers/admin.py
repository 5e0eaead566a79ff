"""The cost of `weft serve --admin`, scraped every second, beside the same server without it.

At rest: the processor time of one round of requests (metrics, status, latency). Under load: megabytes per second of the
server's processor time, of NFSv3 READs and WRITEs of 8 KiB from a ramdisk, the most operations for the least work, so the
most that counting can cost. Processor time and not instructions, because many virtual machines have no counters for them.
Exits non-zero where it costs more than 1 %.
"""

import http.client
import pathlib
import socket
import sys
import tempfile
import threading
import time

from compare import Line, judge, options, put, wanted
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
        yield Line(f"{name} of a ramdisk", ("admin", "ram"), (("without", "ram"),), SIZE, 0.99, write)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Scraped(Weft):
    """A server with admin pages, which are asked for once a second while it is measured."""

    def __init__(self, socket_path, *arguments, **more):
        self.socket_path = socket_path
        super().__init__(*arguments, "--admin", f"unix:{socket_path}", name="admin, scraped", **more)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.scrape, daemon=True)

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

    def scrape(self):
        while not self.ended.wait(1):
            connection = UnixConnection(self.socket_path)
            self.round(connection)
            connection.close()

    def at_rest(self):
        """Processor time of a round, a second apart from the one before as far as the server knows."""
        connection = UnixConnection(self.socket_path)
        size = self.round(connection)
        # A status is kept for a second: every round must cause a new one.
        used = []
        for _ in range(10):
            time.sleep(1.1)
            before = self.cpu_seconds()
            self.round(connection)
            time.sleep(0.2)
            used.append(self.cpu_seconds() - before)
        idle_before = self.cpu_seconds()
        time.sleep(2)
        idle = (self.cpu_seconds() - idle_before) / 2
        connection.close()
        seconds = max(0.0, sum(used) / len(used) - idle * 0.2)
        print(f"at rest: a round of {size} bytes takes {seconds * 1e6:.0f} us of processor time, {seconds:.2%} of one processor at one "
              f"a second; bound {MOST_AT_REST:.0%}", flush=True)
        return seconds <= MOST_AT_REST

    def stop(self):
        self.ended.set()
        self.thread.join()
        super().stop()


def main():
    arguments = options(__doc__).parse_args()

    def loader(line, server, share):
        url = f"nfs://127.0.0.1{server.export(share)}/file.bin?nfsport={server.port}&mountport={server.mount_port}&version=3"
        operation = "write" if line.write else "read"
        return [arguments.loader, url, operation, str(line.size), str(line.depth), str(arguments.span),
                str(arguments.seconds)]

    with tempfile.TemporaryDirectory(prefix="weft-admin-") as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir(mode=0o777)
        write_file(data / "file.bin", arguments.span)
        nfs = ["--nfs-port", "0", "--mountd-port", "0", "--no-root-squash", *arguments.weft_option]
        todo = wanted(lines(), arguments)
        scraped = Scraped(work / "admin.sock", data, *nfs, binary=arguments.weft)
        is_cheap = scraped.at_rest()
        servers = {"admin": scraped, "without": Weft(data, *nfs, name="without", binary=arguments.weft)}
        put(todo, servers, data / "file.bin")
        scraped.thread.start()
        try:
            judge(todo, servers, loader, arguments)
        except SystemExit as ended:
            sys.exit(ended.code or int(not is_cheap))


if __name__ == "__main__":
    main()
