"""Abuse of every port at once while one SMB and one NFS client work.

For each kind of abuse (kinds.py): the abuse begins, the two clients are measured beside it, it ends, and the clients
are measured without it. Finally all kinds run together. The table, in Markdown, lists for each kind the throughput that
the two clients kept, the server's processor time that the abuse alone took, the server's peak memory, its growth
afterwards, and what was left behind. Every loop is bounded in count and time, the whole run by LIMIT_SECONDS, and
everything stays on the loopback interface of the test's own network.

The bounds limit what the *server* takes away from its clients. The server has one processor; the clients share another
with the abusers, which they would not do on a network of their own. So the abusers' processor time is measured as well,
and when the clients are measured without abuse, this process burns the same time, equally often, on that processor.
Results are medians of consecutive pairs, because other load on a machine varies: two measurements without abuse
sometimes differ by a tenth. If the median of the requested pairs is below its bound, up to MORE times as many pairs are
measured, and the median of all counts.

Bounds: both clients keep KEPT of their throughput; the server's resident memory stays below --buffers, its ramdisk and
CONSTANT_BYTES; and at the latest SETTLE_SECONDS after the abuse has ended, the server has no more descriptors,
connections, sessions, opens and threads than before, no other files in its state directory, and at most AFTER_BYTES
more memory. Locks belong to opens and end with them: a client takes the lock of a vanished client to prove that it is
free. Exits with 1 if a bound is broken.

The table goes to standard output, progress to standard error.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
sys.path.append(str(ROOT / "target" / "python"))
import smb3  # noqa: E402
import weft  # noqa: E402

if not smb3.spnego:
    sys.exit("test-abuse logs on by pyspnego: bash tests/interop/deps.sh installs it")

from kinds import FEW_DESCRIPTORS, KINDS, LONG_FOLDER, STEP_SECONDS, Abuse, Descriptors, Recorded, TlsOfNbd, Together  # noqa: E402

KEPT = 0.9
# Factor by which the number of requested pairs of a row may grow, see above.
MORE = 3
BUFFERS = 256 << 20
RAM = 96 << 20
# Code, stacks of the cores, tables of connections and sessions, and the allocator's own reserve.
CONSTANT_BYTES = 96 << 20
# Growth of that which may remain afterwards.
AFTER_BYTES = 32 << 20
# Vanished clients are disconnected after 60 seconds (TCP keepalive, TCP_USER_TIMEOUT); the state of an NFSv4 client
# ends with its lease, also after 60 seconds.
SETTLE_SECONDS = 75
# Limit for the whole run, which is aborted then.
LIMIT_SECONDS = 40 * 60


class Server(weft.Process):
    """The server under abuse, on the first of two or more processors."""

    def __init__(self, work, descriptors=None, buffers=BUFFERS, nbd_tls=False):
        self.work, self.buffers, self.nbd_tls = work, buffers, nbd_tls
        self.data, self.full, self.state = work / "data", work / "full", work / "state"
        self.source = weft.random_file(work / "source", 2 << 20)
        state = self.state
        if not (state / "volumes").exists():
            for name in ("data", "full"):
                (work / name).mkdir(exist_ok=True)
            with open(self.data / "abuse-read", "wb") as file:
                file.truncate(1 << 20)
            (self.data / "abuse-list").mkdir()
            for number in range(LONG_FOLDER):
                (self.data / "abuse-list" / f"{number:0250}").touch()
            weft.run(
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=localhost", "-keyout", work / "key.pem", "-out", work / "certificate.pem",
            )
            weft.run("mount", "-t", "tmpfs", "-o", "size=8m", "full", self.full)
            weft.run(
                weft.WEFT, "volume", "create", "vol", "--size", "64M", "--file", work / "vol.img", "--state-dir", state
            )
        # A limit that a root process could raise again would be none.
        limit = ["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []
        command = [
            *limit, *pinned(0), weft.WEFT, "serve", self.data, self.full, "--ram", f"ram={RAM}", "--user", weft.USER,
            "--json", "--buffers", str(buffers), "--state-dir", state, "--volume", "vol", "--nbd-port", 0, "--cores", 1,
            "--no-root-squash", "--nfs-udp",
        ]
        for name in ["nfs", *(["nbd"] if nbd_tls else [])]:
            command += [f"--{name}-tls-cert", work / "certificate.pem", f"--{name}-tls-key", work / "key.pem"]
        for name in ["smb", "smbd", "nfs", "nfs-rdma", "mountd", "rpcbind"]:
            command += [f"--{name}-port", 0]
        super().__init__(command, work / "log")

    def status(self, field):
        """A number from /proc/PID/status, in the file's unit."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        return 0

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        return self.status("VmRSS") << 10

    def descriptors(self):
        """The targets of its descriptors, except for the slabs of its buffer pool: those stay mapped, and their
        memory is measured."""
        found = []
        for name in os.listdir(folder := f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"{folder}/{name}"))
        return [target for target in found if "memfd:weft-slab" not in target]

    def threads(self):
        """The names of its threads."""
        found = []
        for thread in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.append((thread / "comm").read_text().strip())
        return found

    def holds(self):
        """Numbers of what it holds for clients, from its own status and from the kernel."""
        # Counted before the status request, which takes a descriptor and a worker thread for a moment.
        descriptors, threads = len(self.descriptors()), len(self.threads())
        told = weft.run(weft.WEFT, "status", "--json", "--state-dir", self.state, "--pid", self.process.pid, timeout=30)
        [told] = json.loads(told.stdout)["servers"]
        return {
            "descriptors": descriptors, "connections": len(told["connections"]), "sessions": told["sessions"],
            "opens": told["opens"], "threads": threads, "files of state": len(self.files()),
        }

    def files(self):
        return [path for path in self.state.rglob("*") if path.is_file()]


def pinned(cpu):
    return ["taskset", "-c", str(cpu)] if (os.cpu_count() or 1) > 1 else []


def work_of(server, out):
    """The command lines of the two clients, on the second processor."""
    r = server.ready
    line = ["-b64K", "-r", "-o8", "-t1", "-c16M"]
    common = ["--quiet", "--repetitions", "1", "--duration", str(SECONDS), "--transport", "tcp", "--out"]
    smb = f"smb://{weft.USER}@127.0.0.1:{r['smb_port']}/ram/bench-smb"
    nfs = f"nfs://127.0.0.1:{r['nfs_port']}/ram/bench-nfs?mountport={r['mountd_port']}&rdmaport={r['nfs_rdma_port']}"
    for name, url in (("smb", smb), ("nfs", nfs)):
        yield name, [*pinned(1), weft.WEFT, "bench", "diskspd", *common, out / f"{name}.json", *line, url]


# On a virtual machine, shorter measurements differ by a fifth from one another even without abuse.
SECONDS = 4.0


def spent():
    """Processor seconds of this process, and of its abuse clients that have ended. The measured clients are not
    reaped here, or are subtracted: see `measure`."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def burn(seconds):
    """Spends so much processor time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def measure(server, out, meanwhile=lambda: None):
    """Both clients work at once; `meanwhile` is called each STEP_SECONDS. Returns their bytes per second (0 for a
    client that fails), the server's peak memory, and the processor seconds that each call of `meanwhile` took."""
    environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
    clients = {}
    for name, command in work_of(server, out):
        (out / f"{name}.json").unlink(missing_ok=True)
        clients[name] = subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.DEVNULL, stderr=open(out / f"{name}.err", "w"), env=environment
        )
    until = time.monotonic() + 60 + SECONDS
    peak, steps, taken = server.resident(), 0, 0.0

    def running(client):
        # Without reaping it, because its processor time does not belong to the abuse.
        return os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    while any(map(running, clients.values())) and time.monotonic() < until:
        began, before = time.monotonic(), spent()
        meanwhile()
        taken += spent() - before
        steps += 1
        peak = max(peak, server.resident())
        time.sleep(max(0, began + STEP_SECONDS - time.monotonic()))
    rates = {}
    for name, client in clients.items():
        if running(client):
            client.kill()
        client.wait()
        rates[name] = 0.0
        with contextlib.suppress(OSError, KeyError, IndexError, json.JSONDecodeError):
            report = json.loads((out / f"{name}.json").read_text())
            rates[name] = report["sections"][0]["points"][0]["throughput"]["median"]
        if rates[name] == 0:
            print(f"  {name} client failed: {(out / f'{name}.err').read_text().strip()[-400:]}", file=sys.stderr)
    return rates, peak, taken / max(steps, 1)


def alone(server, abuse):
    """Processor seconds per second that the abuse alone takes of the server."""
    began, before = time.monotonic(), server.processor_seconds()
    while time.monotonic() < began + 1:
        abuse.step()
        time.sleep(STEP_SECONDS)
    return (server.processor_seconds() - before) / (time.monotonic() - began)


def settle(server, before, resident):
    """Waits until the server holds no more than `before`, and hardly more memory; returns what remains beyond, and
    how much more memory."""
    until = time.monotonic() + SETTLE_SECONDS
    # A status request is work for the server's worker threads, which end only if left alone long enough.
    pause = 1
    while True:
        left = {what: count - before[what] for what, count in server.holds().items() if count > before[what]}
        more = server.resident() - resident
        if (not left and more <= AFTER_BYTES) or time.monotonic() > until:
            return left, more
        time.sleep(pause)
        pause = min(2 * pause, 16)


def warm(server, out):
    """Makes the server open what it opens once and keeps: served files and folders, and its pool's memory."""
    measure(server, out)
    user = Abuse(server)
    user.user(0).open("abuse-read", access=smb3.GENERIC_READ)
    user.user(1).open("abuse-list", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)
    user.end()
    weft.run(weft.WEFT, "cp", "-q", server.source, f"smb://{weft.USER}@127.0.0.1:{server.ready['smb_port']}/full/warm")
    (server.full / "warm").unlink()
    settle(server, dict.fromkeys(server.holds(), 1 << 30) | {"connections": 0}, server.resident())


def row(server, abuse, out, repetitions):
    """One line of the table, and the broken bounds."""
    # Clients of the previous kind are gone by then.
    time.sleep(1)
    before, resident, known = server.holds(), server.resident(), set(server.descriptors())
    shares, taken, peak = {"smb": [], "nfs": []}, [], 0

    def kept():
        return {name: statistics.median(of) for name, of in shares.items()}

    while len(taken) < repetitions or (len(taken) < MORE * repetitions and min(kept().values()) < KEPT):
        start = time.monotonic()
        abuse.begin()
        began = time.monotonic() - start
        taken.append(alone(server, abuse))
        during, most, effort = measure(server, out, abuse.step)
        abuse.end()
        peak = max(peak, most)
        beside, _, _ = measure(server, out, lambda: burn(effort))
        if not all(beside.values()):
            raise AssertionError("a client failed although nobody was abusing the server")
        for name, of in shares.items():
            of.append(during[name] / beside[name])
        print(
            f"  began in {began:.1f} s; abusers {effort / STEP_SECONDS:.2f} of their processor; without abuse "
            + ", ".join(f"{name} {rate / 1e6:.0f} MB/s, kept {shares[name][-1]:.2f}" for name, rate in beside.items()),
            file=sys.stderr,
        )
    start = time.monotonic()
    faults = abuse.after()
    left, more = settle(server, before, resident)
    print(f"  {left or 'nothing'} left after {time.monotonic() - start:.0f} s", file=sys.stderr)
    if "descriptors" in left:
        print(f"  new descriptors: {sorted(set(server.descriptors()) - known)}", file=sys.stderr)
    if "threads" in left:
        print(f"  threads: {sorted(server.threads())}", file=sys.stderr)
    bound = server.buffers + RAM + CONSTANT_BYTES
    faults += [f"{name} kept {share:.2f}, median of {len(taken)}" for name, share in kept().items() if share < KEPT]
    if peak > bound:
        faults.append(f"{peak >> 20} MiB resident, bound {bound >> 20}")
    if more > AFTER_BYTES:
        faults.append(f"{more >> 20} MiB more afterwards, bound {AFTER_BYTES >> 20}")
    named = ", ".join(f"{count} {what}" for what, count in left.items())
    if named:
        faults.append(f"left behind: {named}")
    line = (
        f"| {abuse.name} | {kept()['smb']:.2f} | {kept()['nfs']:.2f} | {statistics.median(taken):.2f} | {peak >> 20} MiB "
        f"| {max(more, 0) >> 20} MiB | {named or 'nothing'} | {'; '.join(faults) or 'holds'} |"
    )
    return line, faults


HEADING = """\
| abuse | SMB kept | NFS kept | server's processor | resident | more afterwards | left behind | |
|---|---|---|---|---|---|---|---|"""


class TooLong(Exception):
    """LIMIT_SECONDS are over."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="also write the table, and nothing else, to this file")
    parser.add_argument("--list", action="store_true", help="list the kinds and exit")
    options = parser.parse_args()
    # Each kind with the limits of its server.
    plan = [
        ([*KINDS, Together], {}),
        ([TlsOfNbd], {"nbd_tls": True}),
        ([Descriptors], {"descriptors": FEW_DESCRIPTORS}),
        ([Recorded], {"buffers": 1 << 30}),
    ]
    plan = [([kind for kind in kinds if options.only in kind.name], limits) for kinds, limits in plan]
    count = sum(len(kinds) for kinds, _ in plan)
    if options.list:
        print("\n".join(kind.name for kinds, _ in plan for kind in kinds))
        return
    if os.geteuid() != 0:
        sys.exit("test-abuse needs root: for a network, an address and a small file system of its own")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(32768, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    if (os.cpu_count() or 1) > 1:
        # On the clients' processor, not on the server's. Child processes inherit it.
        os.sched_setaffinity(0, {1})
    faults, lines, started = [], [], time.monotonic()

    def too_long(*_):
        raise TooLong(f"the run takes longer than {LIMIT_SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    # Clean up on termination as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    signal.alarm(LIMIT_SECONDS)

    def table(line):
        lines.append(line)
        print(line, flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def under(kinds, limits):
        """Runs these kinds against a server of their own."""
        server = Server(work, **limits)
        try:
            warm(server, work)
            for kind in kinds:
                passed = time.monotonic() - started
                print(f"{len(lines)} of {count}, {passed // 60:.0f}:{passed % 60:02.0f}: {kind.name}", file=sys.stderr, flush=True)
                abuse = kind(server)
                try:
                    line, broken = row(server, abuse, work, options.repetitions)
                except (AssertionError, OSError, LookupError, subprocess.SubprocessError, smb3.Refused) as e:
                    # The other kinds still run.
                    abuse.end()
                    traceback.print_exc()
                    broken = [f"failed:  {' '.join(str(e).split())[:200]}"]
                    line = f"| {kind.name} | | | | | | | {broken[0]} |"
                table(line)
                faults.extend(f"{kind.name}: {fault}" for fault in broken)
                if server.process.poll() is not None:
                    break
            if server.process.poll() is not None:
                faults.append("the server is gone")
            elif server.stop() != 0:
                faults.append("the server ended with a fault")
        finally:
            if server.process.poll() is None:
                server.crash()
            if "panicked" in server.log_text():
                faults.append("the server panicked")

    with weft.own_network(), tempfile.TemporaryDirectory(prefix="weft-abuse-") as folder:
        work = pathlib.Path(folder)
        try:
            table(HEADING)
            for kinds, limits in plan:
                if kinds:
                    under(kinds, limits)
        finally:
            signal.alarm(0)
            weft.run("umount", work / "full", check=False)
    passed = time.monotonic() - started
    print(f"{count} kinds, {options.repetitions} repetitions: {passed / 60:.1f} minutes", file=sys.stderr)
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
    sys.exit(f"{len(faults)} bounds broken" if faults else 0)


if __name__ == "__main__":
    main()
