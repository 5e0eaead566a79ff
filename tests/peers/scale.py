"""Many of everything against one `weft serve`: connections, opens, notify events, entries of a folder.

Prints a table of memory and latency, and judges it: how many of what there were, how many bytes each cost, and what the
server says when a limit is reached. Its client speaks SMB 2.1 over asyncio, so that no memory but the server's own is counted and
nothing of Weft is on both sides. The latencies have Python's own time in them.
"""

import argparse
import asyncio
import pathlib
import resource
import statistics
import struct
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
import smb3  # noqa: E402
import weft  # noqa: E402
from smb3 import Refused  # noqa: E402

if not smb3.spnego:
    sys.exit("bench-scale logs on by pyspnego: bash tests/interop/deps.sh installs it")

SUCCESS, NOTIFY_ENUM_DIR, NO_MORE_FILES = 0, 0x10C, 0x80000006
READ_DATA, LIST = 0x00120089, 0x00100081
FILE_NAMES = 1

CONNECTIONS = 1_000
OPENS = 10_000
EVENTS = 1_000_000
ENTRIES = 100_000
# Changes between two looks at what has arrived: half of them names that appear, half of them names that go.
BATCH = 1_000
FLOOD = 200_000

# What one of each may cost the server, and what the issue promises of a folder. Counts must be exact.
BYTES_PER_CONNECTION = 128 << 10
BYTES_PER_OPEN = 8 << 10
FIRST_ENTRY_MS = 50


class Client(smb3.AsyncLink):
    """Several requests may be outstanding, and none is signed."""

    def __init__(self):
        super().__init__(dialect=0x0210)
        self.waiting = {}

    async def dial(self, port):
        await super().dial(port)
        self.pump = asyncio.create_task(self.receive())

    async def log_on(self):
        await super().log_on(smb3.proof_of(weft.USER, weft.PASSWORD))
        self.key = None
        return self

    async def receive(self):
        try:
            while True:
                answer = await self.take()
                # An interim answer is followed by the real one.
                if answer.status != smb3.PENDING and answer.message in self.waiting:
                    self.waiting.pop(answer.message).set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError) as end:
            for answer in self.waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(f"the server has closed the connection: {end}"))

    def post(self, command, body, **more):
        number = super().post(command, body, **more)
        self.waiting[number] = asyncio.get_running_loop().create_future()
        return number

    async def answer(self, number):
        return await self.waiting[number]

    async def open(self, name, access=READ_DATA, options=0):
        wish = smb3.wish(name, access=access, how=smb3.OPEN, options=options)
        return (await self.ask(smb3.CREATE, wish)).body[64:80]

    async def close(self, file):
        await self.ask(smb3.CLOSE, smb3.closing(file))

    def look(self, folder):
        """The next names of a folder."""
        return self.ask(smb3.QUERY_DIRECTORY, smb3.listing(folder, 12, 65536), (SUCCESS, NO_MORE_FILES))

    def notify(self, folder):
        return self.ask(smb3.CHANGE_NOTIFY, smb3.watching(folder, what=FILE_NAMES), (SUCCESS, NOTIFY_ENUM_DIR))

    async def end(self):
        self.pump.cancel()
        await self.leave()


def chained(answer):
    """How many entries an answer's buffer has: each says where the next one is."""
    buffer, count = answer.buffer(), 0
    while buffer:
        count += 1
        step = struct.unpack_from("<I", buffer)[0]
        buffer = buffer[step:] if step else b""
    return count


class Judge:
    """The table, and what of it falls short."""

    def __init__(self, pid):
        self.pid, self.rows, self.short = pid, [], []

    def memory(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise RuntimeError("the server is gone")

    def row(self, what, count, seconds=(), grown=None, note=""):
        median = f"{statistics.median(seconds) * 1e3:.2f}" if seconds else ""
        p99 = f"{sorted(seconds)[len(seconds) * 99 // 100] * 1e3:.2f}" if len(seconds) > 1 else ""
        each = f"{grown / count:,.0f}" if grown is not None and count else ""
        self.rows.append((what, f"{count:,}", f"{self.memory() / (1 << 20):.1f}", each, median, p99, note))

    def gate(self, name, holds, said):
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {said}", flush=True)
        if not holds:
            self.short.append(name)

    def print(self):
        head = ("what", "how many", "RSS MiB", "bytes each", "median ms", "p99 ms", "")
        widths = [max(len(row[i]) for row in [head, *self.rows]) for i in range(len(head))]
        for row in [head, *self.rows]:
            cells = [cell.ljust(width) if i in (0, 6) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
            print("  ".join(cells).rstrip())


async def timed(work, count, at_once):
    """Does `work(n)` for every n, some at a time: results in order, and how long each took."""
    results, seconds, numbers = [None] * count, [0.0] * count, iter(range(count))

    async def worker():
        for n in numbers:
            started = time.perf_counter()
            results[n] = await work(n)
            seconds[n] = time.perf_counter() - started

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return results, seconds


async def connections_and_opens(server, judge, count, opens):
    async def arrive(_):
        return await (await (await Client().connect(server.smb_port)).log_on()).enter("data")

    # What is paid once is paid.
    warm = await arrive(0)
    await warm.close(await warm.open("0"))
    before = judge.memory()
    clients, seconds = await timed(arrive, count, 8)
    grown = judge.memory() - before
    judge.row("connections, each with a session", count, seconds, grown)
    judge.gate("bytes per connection", grown <= count * BYTES_PER_CONNECTION, f"{grown // count:,} (at most {BYTES_PER_CONNECTION:,})")

    for what, whose in [("opens of one session", lambda n: warm), ("opens, spread over all sessions", lambda n: clients[n % count])]:
        before = judge.memory()
        files, seconds = await timed(lambda n: whose(n).open(str(n)), opens, 8)
        grown = judge.memory() - before
        judge.row(what, len(files), seconds, grown)
        name = f"bytes per {what.replace('opens', 'open', 1)}"
        judge.gate(name, grown <= opens * BYTES_PER_OPEN, f"{grown // opens:,} (at most {BYTES_PER_OPEN:,})")
        held = len(list(pathlib.Path(f"/proc/{judge.pid}/fd").iterdir()))
        judge.gate(f"descriptors of {what}", held >= opens, f"{held:,} held by the server")
        _, seconds = await timed(lambda n: whose(n).close(files[n]), opens, 8)
        judge.row("    closed again", opens, seconds)
    # The server remembers some files that were open a moment ago, with a descriptor each.
    left = len(list(pathlib.Path(f"/proc/{judge.pid}/fd").iterdir()))
    judge.gate("descriptors are given back", left <= held - opens, f"{left:,} are left of {held:,}")
    for client in [warm, *clients]:
        await client.end()


async def listing(server, judge, entries):
    client = await (await (await Client().connect(server.smb_port)).log_on()).enter("data")
    first, whole = [], []
    for _ in range(5):
        started = time.perf_counter()
        folder = await client.open("many", LIST, 1)
        answer = await client.look(folder)
        first.append(time.perf_counter() - started)
        count = 0
        while answer.status == SUCCESS:
            count += chained(answer)
            answer = await client.look(folder)
        whole.append(time.perf_counter() - started)
        await client.close(folder)
        if count != entries + 2:
            judge.gate("entries of a folder", False, f"{count:,} of {entries + 2:,}, with . and ..")
            return
    judge.row(f"first entries of a folder of {entries:,}", 5, first, note=f"the first time {first[0] * 1e3:.1f} ms")
    judge.row("    all of them", 5, whole)
    judge.gate("first entry", max(first) * 1e3 < FIRST_ENTRY_MS, f"{max(first) * 1e3:.1f} ms at worst (less than {FIRST_ENTRY_MS})")
    await client.end()


async def events(server, judge, count, flood):
    client = await (await (await Client().connect(server.smb_port)).log_on()).enter("data")
    folder = await client.open("watched", LIST, 1)
    there, seen, overflows, arrived = server.folder / "watched", 0, 0, asyncio.Event()

    async def watch():
        nonlocal seen, overflows
        # Two requests, so that one waits while the other's answer is on its way.
        asked = [asyncio.ensure_future(client.notify(folder)) for _ in range(2)]
        while True:
            answer = await asked.pop(0)
            asked.append(asyncio.ensure_future(client.notify(folder)))
            seen += chained(answer) if answer.status == SUCCESS else 0
            overflows += answer.status == NOTIFY_ENUM_DIR
            arrived.set()

    def change(first, changes):
        for n in range(first, first + changes // 2):
            path = there / f"f{n}"
            path.touch()
            path.unlink()

    async def until(enough, patience):
        while not enough():
            arrived.clear()
            await asyncio.wait_for(arrived.wait(), patience)

    watcher = asyncio.create_task(watch())
    # The watch begins with the first request: until it is there nothing is told.
    while not seen:
        await asyncio.to_thread(change, 0, 2)
        try:
            await until(lambda: seen >= 2, 1)
        except TimeoutError:
            pass
    await asyncio.sleep(1)
    before, seconds = judge.memory(), []
    seen = overflows = 0
    for first in range(0, count, BATCH):
        started = time.perf_counter()
        await asyncio.to_thread(change, first, BATCH)
        try:
            await until(lambda: overflows or seen >= first + BATCH, 60)
        except TimeoutError:
            break
        seconds.append(time.perf_counter() - started)
        if overflows:
            break
    judge.row(f"notify events, in batches of {BATCH:,}", seen, seconds, judge.memory() - before, "latency of a batch, with its making")
    judge.gate("notify events", seen == count and not overflows, f"{seen:,} of {count:,} told, {overflows} overflows")

    # Faster than anybody can be told: then that is said, and the watch goes on.
    seen = overflows = 0
    await asyncio.to_thread(change, count, flood)
    last = there / "the last one"
    last.touch()
    try:
        await until(lambda: overflows or seen >= flood + 1, 60)
        # Whatever is still on its way comes before what happens now.
        quiet = -1
        while quiet != (seen, overflows):
            quiet = (seen, overflows)
            await asyncio.sleep(1)
    except TimeoutError:
        pass
    judge.row("notify events, in one flood", seen, note=f"of {flood:,}; {overflows} times told that some are left out")
    judge.gate("a flood", overflows > 0 or seen == flood + 1, "what is left out is told" if overflows else "all told")
    before = seen
    last.unlink()
    try:
        await until(lambda: seen > before, 60)
        goes_on = True
    except TimeoutError:
        goes_on = False
    judge.gate("after a flood", goes_on, "the watch goes on")
    watcher.cancel()
    await client.end()


async def limits(server, log, judge):
    """A server with few descriptors: who comes too late is told so, what is open stays, and the log says what to type."""
    client = await (await (await Client().connect(server.smb_port)).log_on()).enter("data")
    files = []
    try:
        for n in range(1_000):
            files.append(await client.open(str(n)))
        status = "ok"
    except Refused as refused:
        status = refused.status
    judge.gate("no descriptors left", status == "TOO_MANY_OPENED_FILES", f"open {len(files) + 1} ends with {status}")
    judge.gate("no descriptors left: the log", "ulimit -n" in log(), "says ulimit -n")
    for file in files:
        await client.close(file)
    again = await client.open("0")
    judge.gate("after that", bool(again), f"{len(files)} files are closed, and opens go on")
    await client.end()

    client, sessions = await Client().connect(server.smb_port), 0
    try:
        for _ in range(1_000):
            await client.log_on()
            sessions += 1
    except Refused:
        pass
    judge.gate("sessions of a connection", sessions == 64, f"{sessions} (64 is the limit)")
    judge.gate("sessions of a connection: the log", "limit reached: sessions per connection" in log(), "says so")
    await client.end()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--connections", type=int, default=CONNECTIONS)
    arguments.add_argument("--opens", type=int, default=OPENS)
    arguments.add_argument("--events", type=int, default=EVENTS)
    arguments.add_argument("--entries", type=int, default=ENTRIES)
    arguments.add_argument("--flood", type=int, default=FLOOD)
    arguments = arguments.parse_args()
    # An open file takes two descriptors, and an address has an eighth of all for those.
    needed = 16 * arguments.opens + arguments.connections + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
        except ValueError:
            sys.exit(f"{needed:,} descriptors are needed and {hard:,} allowed: ulimit -Hn {needed} (as root), or fewer --opens")
    elif soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    with weft.serving("--min-dialect", "2.1", "--signing", "enabled") as server:
        for name in ("many", "watched"):
            (server.folder / name).mkdir()
        for n in range(max(arguments.opens, 1_000)):
            (server.folder / str(n)).touch()
        for n in range(arguments.entries):
            (server.folder / "many" / f"file-{n:06}").touch()
        judge = Judge(server.process.pid)
        judge.row("nothing yet", 0)
        asyncio.run(connections_and_opens(server, judge, arguments.connections, arguments.opens))
        asyncio.run(listing(server, judge, arguments.entries))
        asyncio.run(events(server, judge, arguments.events, arguments.flood))
        with tempfile.TemporaryDirectory(prefix="weft-test-") as few:
            folder = pathlib.Path(few) / "data"
            folder.mkdir()
            for n in range(1_000):
                (folder / str(n)).touch()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            plain, weft.WEFT = weft.WEFT, pathlib.Path(few) / "weft"
            weft.WEFT.write_text(f'#!/bin/sh\nulimit -n 400\nexec {plain} "$@"\n')
            weft.WEFT.chmod(0o755)
            poor = weft.Server(folder, "--min-dialect", "2.1", "--signing", "enabled")
            try:
                asyncio.run(limits(poor, poor.log_text, judge))
            finally:
                poor.stop()
        print()
        judge.print()
    if judge.short:
        sys.exit(f"fell short: {', '.join(judge.short)}")


if __name__ == "__main__":
    main()
