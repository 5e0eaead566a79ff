"""A team on one server: 200 users in groups, 50 shares with rights, 2,000 connections that stay.

Prints a table of memory and of the latency of log-ons, and judges it: what a connection costs, that a reload with everybody
connected loses nobody, that a user who is removed loses his own sessions and nobody else's, and that all is given back when
everybody has left, twice. Beside it, in the same run, Debian's smbd with fewer connections: it forks a process for each.

The client is the one below, over asyncio, on another processor than the servers: SMB 3.1.1 with NTLMv2 and signatures, as
Windows logs on, and nothing of Weft in it. Latencies have its own time in them, which is in the table, too.
"""

import argparse
import asyncio
import hashlib
import hmac
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "interop"), str(HERE)]
import smb3  # noqa: E402
import weft  # noqa: E402
from servers import PASSWORD, USER, Smbd, cpu_seconds, descendants, wait_for_port  # noqa: E402

try:
    from impacket.ntlm import compute_nthash
except ImportError:
    sys.exit("bench-team needs impacket: bash tests/interop/deps.sh installs it")

USERS, GROUPS, SHARES, CONNECTIONS = 200, 10, 50, 2_000
AT_ONCE = 64
ONE_BY_ONE = 200
SMBD_CONNECTIONS = 200

HEAD = """# A team on one server (`make bench-team`)

Memory and the latency of log-ons. Each connection has a session and a tree; each user has an address of its own, a group that may
read some of the shares, and some users and groups may write. Beside it, in the same run, Debian's smbd with fewer connections: it
forks a process for each. The client is Python's asyncio on another processor than the servers, with SMB 3.1.1, NTLMv2 and
signatures and nothing of Weft in it; the latencies have its own time in them. "With all" is from the TCP connection to the answer
to TREE_CONNECT. Written on {when}; load of the machine at the end: {load:.1f}.

"""

# What the project has set itself.
BYTES_PER_CONNECTION = 64 << 10
BYTES_LEFT = 4 << 10
LOG_ON_MS = 20

# NTLM: Unicode, the target's name, signatures, NTLM, sessions of version 2, its list of names, a version, 128 and 56 bits.
NTLM_FLAGS = 0x1 | 0x4 | 0x10 | 0x200 | 0x8000 | 0x80000 | 0x800000 | 0x2000000 | 0x20000000 | 0x80000000
VERSION = b"\x0a\x00\x00\x00\x00\x00\x00\x0f"


def md5(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.md5).digest()


class Ntlm:
    """The two messages of a client ([MS-NLMP] 3.1.5.1): NTLMv2 with a check of the messages themselves."""

    def __init__(self, user, nt_hash):
        self.user, self.nt_hash = user.encode("utf-16-le"), nt_hash
        self.first = b"NTLMSSP\0" + struct.pack("<II16x", 1, NTLM_FLAGS) + VERSION

    def step(self, challenge=None):
        """The first message, or the answer to a challenge."""
        if challenge is None:
            return self.first
        server = challenge[24:32]
        length, at = struct.unpack_from("<HxxI", challenge, 40)
        names, when = challenge[at:at + length], struct.pack("<Q", int((time.time() + 11_644_473_600) * 10_000_000))
        pairs = b""
        while names:
            kind, size = struct.unpack_from("<HH", names)
            if kind == 0:
                break
            if kind == 7:
                when = names[4:12]
            pairs += names[:4 + size]
            names = names[4 + size:]
        # MsvAvFlags: there is a MIC.
        pairs += struct.pack("<HHI", 6, 4, 2) + bytes(4)
        key = md5(self.nt_hash, self.user.decode("utf-16-le").upper().encode("utf-16-le"))
        blob = b"\1\1" + bytes(6) + when + os.urandom(8) + bytes(4) + pairs + bytes(4)
        proof = md5(key, server, blob)
        self.session_key = md5(key, proof)
        fields, payload, at = b"", b"", 88
        # LM and NT responses, domain, user, workstation, session key.
        for part in [bytes(24), proof + blob, b"", self.user, b"", b""]:
            fields += struct.pack("<HHI", len(part), len(part), at + len(payload))
            payload += part
        head = b"NTLMSSP\0" + struct.pack("<I", 3) + fields + struct.pack("<I", NTLM_FLAGS) + VERSION
        mic = md5(self.session_key, self.first, challenge, head + bytes(16) + payload)
        return head + mic + payload


class Client(smb3.AsyncLink):
    """One connection with one session in one tree. It answers one request at a time."""

    def __init__(self, user, nt_hash, share, source):
        super().__init__(source)
        self.user, self.nt_hash, self.share = user, nt_hash, share

    async def work(self):
        """Opens the folder of the share and closes it again; the status."""
        try:
            wish = smb3.wish("", access=0x80, how=smb3.OPEN, options=smb3.DIRECTORY)
            answer = await self.ask(smb3.CREATE, wish)
            await self.ask(smb3.CLOSE, smb3.closing(answer.body[64:80]))
            return "ok"
        except smb3.Refused as refused:
            return refused.status
        except (asyncio.IncompleteReadError, ConnectionError):
            return "disconnected"

    async def arrive(self, port):
        """(seconds of the log-on, seconds of everything)"""
        started = time.perf_counter()
        await self.connect(port)
        ntlm, logging_on = Ntlm(self.user, self.nt_hash), time.perf_counter()
        await self.log_on(ntlm)
        took = time.perf_counter() - logging_on
        await self.enter(self.share)
        return took, time.perf_counter() - started


class Usage:
    """What the processes of a server hold at this moment."""

    def __init__(self, pid):
        self.rss = self.pss = self.descriptors = 0
        pids = descendants(pid)
        self.processes = len(pids)
        self.cpu = cpu_seconds(pids)
        for one in pids:
            of = pathlib.Path(f"/proc/{one}")
            for line in (of / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Rss:", "Pss:")):
                    name, size = line.split()[:2]
                    setattr(self, name[:-1].lower(), getattr(self, name[:-1].lower()) + (int(size) << 10))
            self.descriptors += len(list((of / "fd").iterdir()))


class Report:
    """The tables, and what of them falls short."""

    def __init__(self):
        self.memory, self.latency, self.said, self.short = [], [], [], []

    def row(self, what, usage, connections=0, before=None):
        each = ["", ""]
        if before and connections:
            each = [f"{(now - then) / connections / 1024:,.1f}" for now, then in [(usage.rss, before.rss), (usage.pss, before.pss)]]
        mib = [f"{size / (1 << 20):,.1f}" for size in (usage.rss, usage.pss)]
        self.memory.append([what, *mib, *each, f"{usage.descriptors:,}", f"{usage.processes:,}"])

    def took(self, what, count, log_ons, all_of_it, cpu, own_cpu):
        def times(seconds):
            ordered = sorted(seconds)
            return [f"{statistics.median(ordered) * 1e3:.2f}", f"{ordered[len(ordered) * 99 // 100] * 1e3:.2f}"]

        each = [f"{seconds / count * 1e6:,.0f}" for seconds in (cpu, own_cpu)]
        self.latency.append([what, f"{count:,}", *times(log_ons), *times(all_of_it), *each])

    def gate(self, name, holds, said):
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {said}", flush=True)
        self.said.append(f"- {name}: {said}" + ("" if holds else " (**falls short**)"))
        if not holds:
            self.short.append(name)

    def markdown(self):
        def table(head, rows):
            lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
            return "\n".join("| " + " | ".join(line) + " |" for line in lines)

        memory = table(["", "RSS MiB", "PSS MiB", "RSS KiB a connection", "PSS KiB a connection", "descriptors", "processes"], self.memory)
        latency = table(["log-ons", "how many", "median ms", "p99 ms", "with all, median ms", "with all, p99 ms", "server us of CPU",
                         "client us of CPU"], self.latency)
        return f"{memory}\n\n{latency}\n\n" + "\n".join(self.said) + "\n"


def own_cpu():
    return time.process_time()


async def arrive(report, what, clients, port, pid, at_once):
    """Lets clients log on, some at a time, and adds a row."""
    cpu, own = cpu_seconds(descendants(pid)), own_cpu()
    times, waiting = [], iter(clients)

    async def worker():
        for client in waiting:
            times.append(await client.arrive(port))

    await asyncio.gather(*(worker() for _ in range(at_once)))
    # A server that forks counts what a child has used as long as that lives.
    cpu, own = cpu_seconds(descendants(pid)) - cpu, own_cpu() - own
    report.took(what, len(times), [log_on for log_on, _ in times], [whole for _, whole in times], cpu, own)
    return [log_on for log_on, _ in times]


async def all_work(clients):
    """The statuses of one request of each, and how many there are of each."""
    statuses = {}
    for at in range(0, len(clients), AT_ONCE):
        for status in await asyncio.gather(*(client.work() for client in clients[at:at + AT_ONCE])):
            statuses[status] = statuses.get(status, 0) + 1
    return statuses


async def until_idle(pid, descriptors):
    """Until the server has noticed that everybody has left."""
    for _ in range(300):
        usage = Usage(pid)
        if usage.descriptors <= descriptors:
            break
        await asyncio.sleep(0.1)
    return usage


class Team:
    """The configuration, and who may use what."""

    def __init__(self, folder):
        self.folder, self.state = folder, folder / "state"
        self.users = [f"user{n:03}" for n in range(USERS)]
        lines = ["[listeners]", "smb_port = 0", "smb_direct_port = 0", "", "[smb]", "act_as_callers = false"]
        for n in range(SHARES):
            (folder / f"share{n:02}").mkdir()
            # A group reads, one user of it writes, and so does another group.
            lines += [f"[shares.share{n:02}]", f'path = "share{n:02}"', f'read = ["@group{n % GROUPS}"]',
                      f'write = ["user{n:03}", "@group{(n + 1) % GROUPS}"]']
        (folder / "weft.toml").write_text("\n".join(lines) + "\n")
        for n, user in enumerate(self.users):
            self.weft("user", "add", user, "--group", f"group{n % GROUPS}", password=f"of-{user}")
        self.hashes = {user: compute_nthash(f"of-{user}") for user in self.users}

    def weft(self, *arguments, password=""):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, password=password)

    def client(self, number):
        """A connection of one of the users, each of whom has an address of its own, to a share that his group may read."""
        n = number % USERS
        share = n % GROUPS + GROUPS * (number // USERS % (SHARES // GROUPS))
        user = self.users[n]
        return Client(user, self.hashes[user], f"share{share:02}", f"127.1.{n // 250}.{n % 250 + 1}")

    def start(self):
        command = ["taskset", "-c", "0", weft.WEFT, "serve", "--config", self.folder / "weft.toml", "--state-dir", self.state,
                   "--cores", "1", "--json"]
        return weft.Process(command, self.folder / "weft.log")


async def measure(report, team, server, count):
    pid, port = server.ready["pid"], server.ready["smb_port"]
    report.row("weft, started", Usage(pid))
    # What is paid once is paid.
    warm = team.client(0)
    await warm.arrive(port)
    await warm.work()
    await warm.leave()
    await asyncio.sleep(0.5)
    before = Usage(pid)
    report.row("one user has been there", before)
    clients = [team.client(n) for n in range(count)]
    slow, fast = clients[:ONE_BY_ONE], clients[ONE_BY_ONE:]
    one_by_one = await arrive(report, "weft, one by one", slow, port, pid, 1)
    await arrive(report, f"weft, {AT_ONCE} at once", fast, port, pid, AT_ONCE)
    full = Usage(pid)
    report.row(f"{count:,} connections", full, count, before)
    each = (full.rss - before.rss) / count
    report.gate("memory of a connection", each <= BYTES_PER_CONNECTION,
                f"{each / 1024:.1f} KiB, with session and tree (at most {BYTES_PER_CONNECTION >> 10})")
    p99 = sorted(one_by_one)[len(one_by_one) * 99 // 100] * 1e3
    report.gate("a log-on", p99 < LOG_ON_MS, f"{p99:.2f} ms at the 99th percentile, one by one (less than {LOG_ON_MS})")
    worked = await all_work(clients)
    report.gate("everybody is served", worked == {"ok": count}, f"{worked}")

    # A user is added while one of the others works without a pause.
    longest, done = 0.0, asyncio.Event()

    async def works_on():
        nonlocal longest
        while not done.is_set():
            started = time.perf_counter()
            if await clients[1].work() != "ok":
                raise AssertionError("a reload has taken a session away")
            longest = max(longest, time.perf_counter() - started)

    worker = asyncio.create_task(works_on())
    started = time.perf_counter()
    await asyncio.to_thread(team.weft, "user", "add", "late", "--group", "group0", password="of-late")
    added = time.perf_counter() - started
    config = team.folder / "weft.toml"
    config.write_text(config.read_text() + '[shares.late]\npath = "late"\nread = ["late"]\n')
    (team.folder / "late").mkdir()
    started = time.perf_counter()
    await asyncio.to_thread(team.weft, "reload")
    reloaded = time.perf_counter() - started
    done.set()
    await worker
    # The new share holds some descriptors as well.
    expected = before.descriptors + Usage(pid).descriptors - full.descriptors
    late = Client("late", compute_nthash("of-late"), "late", "127.1.9.1")
    await late.arrive(port)
    worked = await all_work([*clients, late])
    report.gate("a reload with everybody connected", worked == {"ok": count + 1},
                f"`weft user add` {added * 1e3:.0f} ms, `weft reload` with a new share {reloaded * 1e3:.0f} ms; the longest request of "
                f"another meanwhile {longest * 1e3:.1f} ms; then {worked}")

    gone = team.users[17]
    started = time.perf_counter()
    await asyncio.to_thread(team.weft, "user", "remove", gone, "--force")
    removed = time.perf_counter() - started
    his = [client for client in clients if client.user == gone]
    others = [client for client in clients if client.user != gone]
    lost, kept = await all_work(his), await all_work([*others, late])
    report.gate("a user who is removed", lost == {"USER_SESSION_DELETED": len(his)} and kept == {"ok": len(others) + 1},
                f"in {removed * 1e3:.0f} ms; his {len(his)} sessions: {lost}; the others: {kept}")

    left = []
    everybody = [*clients, late]
    for turn in range(2):
        for client in everybody:
            await client.leave()
        left.append(await until_idle(pid, expected))
        report.row(f"all have left{', again' if turn else ''}", left[-1])
        if turn == 0:
            everybody = [team.client(n) for n in range(count) if team.users[n % USERS] != gone]
            await arrive(report, f"weft, {AT_ONCE} at once, again", everybody, port, pid, AT_ONCE)
    # Pages that the allocator keeps are used again: a second time must not add to them.
    grown = (left[1].rss - left[0].rss) / len(everybody)
    report.gate("what stays behind", grown <= BYTES_LEFT, f"{grown / 1024:.2f} KiB a connection more after the second time (at most "
                f"{BYTES_LEFT >> 10})")
    report.gate("descriptors", left[1].descriptors <= expected,
                f"{left[1].descriptors} are left of {full.descriptors:,}, as many as before with the new share")


async def measure_smbd(report, smbd, count):
    pid = smbd.process.pid
    nt_hash = compute_nthash(PASSWORD)
    clients = [Client(USER, nt_hash, "data", f"127.1.0.{n % 250 + 1}") for n in range(count + 1)]
    await clients[0].arrive(smbd.port)
    await clients[0].leave()
    await asyncio.sleep(2)
    before = Usage(pid)
    report.row("smbd, one user has been there", before)
    await arrive(report, "smbd, one by one", clients[1:count // 2], smbd.port, pid, 1)
    await arrive(report, f"smbd, {AT_ONCE} at once", clients[count // 2:], smbd.port, pid, AT_ONCE)
    report.row(f"smbd, {count:,} connections", Usage(pid), count, before)
    worked = await all_work(clients[1:])
    if worked != {"ok": count}:
        raise SystemExit(f"smbd does not serve everybody: {worked}")
    for client in clients[1:]:
        await client.leave()
    await asyncio.sleep(3)
    report.row("smbd, all have left", Usage(pid))


def raise_limit(needed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))
    except ValueError:
        sys.exit(f"{needed:,} descriptors are needed and {hard:,} allowed: ulimit -Hn {needed} (as root), or fewer --connections")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--connections", type=int, default=CONNECTIONS)
    arguments.add_argument("--smbd-connections", type=int, default=SMBD_CONNECTIONS, help="0: without smbd")
    arguments.add_argument("--out", type=pathlib.Path, help="write the tables to this file, in Markdown")
    arguments = arguments.parse_args()
    if arguments.connections < ONE_BY_ONE + USERS:
        sys.exit(f"--connections {arguments.connections}: at least {ONE_BY_ONE + USERS}, so that each user has some")
    # A quarter of the server's descriptors is for connections, and six sixteenths of these are for SMB.
    raise_limit(arguments.connections * 4 * 16 // 6 + 300)
    os.sched_setaffinity(0, {min(1, os.cpu_count() - 1)})
    report = Report()
    with tempfile.TemporaryDirectory(prefix="weft-team-") as folder:
        folder = pathlib.Path(folder)
        (folder / "team").mkdir()
        team = Team(folder / "team")
        server = team.start()
        try:
            asyncio.run(measure(report, team, server, arguments.connections))
        except BaseException:
            print("\n".join(server.log_text().splitlines()[-20:]), file=sys.stderr)
            raise
        finally:
            server.stop()
        if arguments.smbd_connections:
            (folder / "data").mkdir()
            smbd = Smbd(folder, folder / "data")
            try:
                wait_for_port(smbd.port)
                asyncio.run(measure_smbd(report, smbd, arguments.smbd_connections))
            finally:
                smbd.stop()
    version = subprocess.run([weft.WEFT, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    text = f"{version}, {USERS} users in {GROUPS} groups, {SHARES} shares.\n\n{report.markdown()}"
    print(f"\n{text}")
    if arguments.out:
        head = HEAD.format(load=os.getloadavg()[0], when=time.strftime("%Y-%m-%d"))
        arguments.out.write_text(head + text)
    if report.short:
        sys.exit(f"fell short: {', '.join(report.short)}")


if __name__ == "__main__":
    main()
