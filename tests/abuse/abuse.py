"""Abuse of every port at once while one SMB and one NFS client work.

Each kind of abuse begins, the two clients are measured beside it, it ends, and the clients are measured without it; at last all
kinds run together. The table tells, for each, what throughput the two clients kept, what the abuse alone took of the server's
processor, how much memory the server had at most, and what was left behind. Every loop here is bounded in count and time, and
everything stays on the loopback interface of a network of the test's own.

What is bounded is what the *server* takes away from its clients. The server has one processor; the clients share another with those
who abuse, and on a network of their own they would not. So the abusers' processor time is measured as well, and where the clients
are measured without abuse, this process burns as much, as often, on that processor. Both are medians of pairs that follow each
other, because other work on a machine comes and goes.

Bounds: both clients keep KEPT of their throughput, the server's resident memory stays below --buffers, its ramdisk and
CONSTANT_BYTES, and a minute after the abuse has ended the server has the descriptors that it had before. Exits with 1 where one of
them is broken.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
sys.path.append(str(ROOT / "target" / "python"))
import weft  # noqa: E402

try:
    import spnego
except ImportError:
    sys.exit("test-abuse logs on by pyspnego: bash tests/interop/deps.sh installs it")

KEPT = 0.9
BUFFERS = 256 << 20
RAM = 96 << 20
# Code, stacks of the cores, tables of connections and sessions, and the allocator's own reserve.
CONSTANT_BYTES = 96 << 20
# Descriptors of the server in the test of EMFILE.
FEW_DESCRIPTORS = 512
# Clients that vanish without a word are given up after 60 seconds (TCP keepalive, TCP_USER_TIMEOUT).
SETTLE_SECONDS = 75
# How often abusers do something.
STEP_SECONDS = 0.25
# As many hosts as pretend to be clients: 127.1.0.1 and on.
HOSTS = 64


def host(number):
    return f"127.1.{number % HOSTS // 250}.{number % HOSTS % 250 + 1}"


class Abuse:
    """One kind: `begin` opens its connections, `step` is called each STEP_SECONDS meanwhile, `end` closes everything."""

    name = ""

    def __init__(self, server):
        self.server, self.peers = server, []

    def port(self, name):
        return self.server.ready[f"{name}_port"]

    def connect(self, port, number, nonblocking=True):
        """A connection from one of many addresses; None where the server refuses it."""
        peer = socket.socket()
        peer.settimeout(2)
        try:
            peer.bind((host(number), 0))
            peer.connect(("127.0.0.1", port))
        except OSError:
            peer.close()
            return None
        if nonblocking:
            peer.setblocking(False)
        self.peers.append(peer)
        return peer

    def send(self, peer, data):
        """As much as goes out at once; a peer that has hung up is what we want to see."""
        with contextlib.suppress(OSError):
            if peer:
                return peer.send(data)
        return 0

    def begin(self):
        pass

    def step(self):
        pass

    def end(self):
        for peer in self.peers:
            peer.close()
        self.peers = []


def rpc_call(program, version, procedure):
    """A call without credentials or arguments, as one record."""
    return struct.pack(">IIIIIIIIIII", 0x80000028, 7, 0, 2, program, version, procedure, 0, 0, 0, 0)


PORTS = ["smb", "smbd", "nfs", "nfs_rdma", "mountd", "nbd"]


class Idle(Abuse):
    name = "idle connections, 400 to each port"

    def begin(self):
        for port in PORTS:
            for number in range(400):
                self.connect(self.port(port), number)


class MountdFlood(Abuse):
    name = "9,000 connections to mountd alone"

    def begin(self):
        self.number = 0
        self.some(9000)

    def step(self):
        # The flood goes on: the newest thousands are kept, as the server keeps its newest.
        for peer in self.peers[:-8500]:
            peer.close()
        del self.peers[:-8500]
        self.some(500)

    def some(self, count):
        for _ in range(count):
            self.connect(self.port("mountd"), self.number)
            self.number += 1


class Slow(Abuse):
    name = "a byte a quarter second, 100 to each port"
    STARTS = {
        "smb": b"\0\0\0\x40\xfeSMB" + bytes(64),
        "smbd": b"MPA ID Req Frame\x40\x01\x00\x00",
        "nfs": b"\x80\0\0\x28" + bytes(40),
        "nfs_rdma": b"MPA ID Req Frame\x40\x01\x00\x00",
        "mountd": b"\x80\0\0\x28" + bytes(40),
        "nbd": bytes(64),
    }

    def begin(self):
        self.sent = 0
        self.all = [(self.connect(self.port(port), n), port) for port in PORTS for n in range(100)]

    def step(self):
        for peer, port in self.all:
            self.send(peer, self.STARTS[port][self.sent : self.sent + 1])
        self.sent += 1


class Giants(Abuse):
    name = "announced giants (8 MiB), 600 each to SMB, NFS, mountd"

    def begin(self):
        for number in range(600):
            self.send(self.connect(self.port("smb"), number), b"\0\x7f\xff\xff\xfeSMB")
            for port in ("nfs", "mountd"):
                self.send(self.connect(self.port(port), number), b"\x80\x7f\xff\xff" + bytes(8))


class HalfOpenMpa(Abuse):
    name = "MPA requests, half of them whole, 600 to each RDMA port"

    def begin(self):
        whole = b"MPA ID Req Frame\x40\x01\x00\x00"
        for port in ("smbd", "nfs_rdma"):
            for number in range(600):
                self.send(self.connect(self.port(port), number), whole if number % 2 else whole[:10])


class NeverReading(Abuse):
    name = "clients that never read their answers, 50 each to NFS and mountd"
    CALLS = {"nfs": (100003, 3, 0), "mountd": (100005, 3, 5)}

    def begin(self):
        self.all = []
        for port, (program, version, procedure) in self.CALLS.items():
            calls = rpc_call(program, version, procedure) * 1000
            for number in range(50):
                self.all.append([self.connect(self.port(port), number), calls, 0])
        # Until nothing more is taken: then the buffers of both kernels are full, and the server holds answers.
        until = time.monotonic() + 10
        while self.step() > 0 and time.monotonic() < until:
            time.sleep(0.01)

    def step(self):
        sent = 0
        for entry in self.all:
            peer, calls, done = entry
            # A call that was cut goes on where it was cut.
            taken = self.send(peer, calls[done:])
            entry[2] = (done + taken) % len(calls)
            sent += taken
        return sent


class Calls(Abuse):
    name = "20,000 empty calls a second, by 50 connections to NFS"

    def begin(self):
        self.all = [self.connect(self.port("nfs"), number) for number in range(50)]

    def step(self):
        calls = rpc_call(100003, 3, 0) * int(20_000 * STEP_SECONDS / 50)
        for peer in self.all:
            self.send(peer, calls)
            with contextlib.suppress(OSError):
                peer and peer.recv(1 << 20)


class NbdWrites(Abuse):
    name = "begun WRITEs of 8 MiB, 300 to NBD"

    def begin(self):
        option = b"IHAVEOPT" + struct.pack(">II", 1, 3) + b"vol"
        write = struct.pack(">IHHQQI", 0x25609513, 0, 1, 1, 0, 8 << 20)
        for number in range(300):
            peer = self.connect(self.port("nbd"), number)
            # The server speaks first; what it says needs no answer but this.
            self.send(peer, struct.pack(">I", 3) + option + write + bytes(1000))


class Vanished(Abuse):
    name = "clients that vanished, 200 each to SMB and NFS"
    ADDRESS = "10.99.99.2"

    def begin(self):
        weft.run("ip", "address", "add", f"{self.ADDRESS}/32", "dev", "lo")
        for port, first in (("smb", b""), ("nfs", rpc_call(100003, 3, 0))):
            for _ in range(200):
                peer = socket.socket()
                peer.bind((self.ADDRESS, 0))
                with contextlib.suppress(OSError):
                    peer.connect(("127.0.0.1", self.port(port)))
                self.send(peer, first)
                self.peers.append(peer)
        # From here on nothing reaches them any more, and nothing of theirs arrives.
        weft.run("ip", "address", "del", f"{self.ADDRESS}/32", "dev", "lo")


class WrongPasswords(Abuse):
    name = f"wrong passwords for the same user from {HOSTS} addresses"

    def begin(self):
        self.round = 0

    def step(self):
        # Two guesses at a time, eight a second.
        self.round += 1
        asyncio.run(self.some(range(self.round * 2, self.round * 2 + 2)))

    async def some(self, numbers):
        async def one(number):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, struct.error):
                await asyncio.wait_for(self.guess(number), 2)

        await asyncio.gather(*map(one, numbers))

    async def guess(self, number):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port("smb"), local_addr=(host(number), 0)
        )
        message, session = 0, 0

        async def ask(command, body):
            nonlocal message
            header = struct.pack(
                "<4sHHIHHIIQIIQ16s", b"\xfeSMB", 64, 0, 0, command, 1, 0, 0, message, 0, 0, session, bytes(16)
            )
            message += 1
            writer.write(struct.pack(">I", len(header) + len(body)) + header + body)
            length = struct.unpack(">I", await reader.readexactly(4))[0]
            return await reader.readexactly(length)

        try:
            await ask(0, struct.pack("<HHHHI16sQHH", 36, 2, 1, 0, 0, os.urandom(16), 0, 0x0300, 0x0302))
            proof = spnego.client(
                weft.USER, f"wrong-{number}", hostname="127.0.0.1", service="cifs", protocol="ntlm"
            )
            token = proof.step()
            for _ in range(2):
                body = struct.pack("<HBBIIHHQ", 25, 0, 1, 0, 0, 88, len(token), 0) + token
                answer = await ask(1, body)
                session = struct.unpack_from("<Q", answer, 40)[0]
                at, length = struct.unpack_from("<HH", answer, 68)
                if struct.unpack_from("<I", answer, 8)[0] != 0xC0000016:
                    break
                token = proof.step(answer[at : at + length])
        finally:
            writer.close()


class FullDisk(Abuse):
    name = "a full disk: writes into a share without space"

    def begin(self):
        self.folder, self.steps = self.server.full, 0
        with contextlib.suppress(OSError), open(self.folder / "fill", "wb", buffering=0) as fill:
            for _ in range(64):
                fill.write(bytes(1 << 20))

    def step(self):
        # Once a second, by a client that ends each time.
        self.steps += 1
        if self.steps % 4 != 1:
            return
        name = f"smb://{weft.USER}@127.0.0.1:{self.port('smb')}/full/more"
        done = weft.run(weft.WEFT, "cp", "--quiet", self.server.source, name, check=False, timeout=30)
        if done.returncode == 0:
            raise AssertionError("a full disk took a file")

    def end(self):
        super().end()
        for left in self.folder.iterdir():
            left.unlink()


class Descriptors(Abuse):
    """Runs with a server that may have few of them. Whoever is sent away comes back."""

    name = f"more connections than descriptors ({FEW_DESCRIPTORS})"

    def begin(self):
        self.number = 0
        self.some(FEW_DESCRIPTORS * 2)

    def step(self):
        for peer in self.peers[:100]:
            peer.close()
        del self.peers[:100]
        self.some(100)

    def some(self, count):
        for _ in range(count):
            self.connect(self.port(PORTS[self.number % len(PORTS)]), self.number)
            self.number += 1


class Recorded(Abuse):
    """The numbers with which each of these stopped a server, all protocols of it, before there were limits: it had --buffers 1G."""

    name = (
        "at once: 1,820 MPA requests, 4,300 NFS/RDMA connections of 20 bytes, 315 begun SMB Direct messages, "
        "140 SMB and 520 NFS giants"
    )
    MPA = b"MPA ID Req Frame\x40\x01\x00\x00"

    def begin(self):
        for number in range(1820):
            self.send(self.connect(self.port("smbd"), number), self.MPA)
        for number in range(4300):
            self.send(self.connect(self.port("nfs_rdma"), number), self.MPA)
        self.fragments = 0
        for number in range(315):
            self.fragments += self.fragment(number)
        if self.fragments == 0:
            raise AssertionError("no SMB Direct message was begun: what is sent is out of date")
        for number in range(140):
            self.send(self.connect(self.port("smb"), number), b"\0\x7f\xff\xff\xfeSMB")
        for number in range(520):
            self.send(self.connect(self.port("nfs"), number), b"\x80\x0f\xff\xff" + bytes(8))

    def fragment(self, number):
        """Negotiates SMB Direct ([MS-SMBD] 2.2.1) and sends the first fragment of a message of 60 KiB (2.2.3)."""
        peer = self.connect(self.port("smbd"), number, nonblocking=False)
        if peer is None:
            return False
        negotiate = struct.pack("<HHHHIII", 0x100, 0x100, 0, 10, 1364, 8192, 1 << 20)
        first = struct.pack("<HHHHIIII", 10, 1, 0, 0, 60_000, 24, 8, 0) + bytes(8)
        try:
            peer.sendall(self.MPA)
            answer = self.exactly(peer, 20)
            self.exactly(peer, struct.unpack_from(">H", answer, 18)[0])
            peer.sendall(fpdu(1, negotiate))
            self.exactly(peer, 2)
            peer.sendall(fpdu(2, first))
        except OSError:
            return False
        peer.setblocking(False)
        return True

    def exactly(self, peer, count):
        got = b""
        while len(got) < count:
            piece = peer.recv(count - len(got))
            if not piece:
                raise ConnectionResetError
            got += piece
        return got


def fpdu(number, message):
    """An RDMAP Send (RFC 5040 4.3) in an untagged DDP segment (RFC 5041 4.3) in an FPDU (RFC 5044 4)."""
    segment = bytes([0x41, 0x43]) + bytes(4) + struct.pack(">III", 0, number, 0) + message
    framed = struct.pack(">H", len(segment)) + segment
    framed += bytes(-len(framed) % 4)
    return framed + struct.pack("<I", crc32c(framed))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Together(Abuse):
    name = "all of these at once"

    def __init__(self, server):
        super().__init__(server)
        # Those that take long to begin come first: others would have met their deadlines by then.
        first = [NeverReading, MountdFlood]
        self.kinds = [kind(server) for kind in [*first, *(kind for kind in KINDS if kind not in first)]]

    def begin(self):
        for kind in self.kinds:
            kind.begin()

    def step(self):
        for kind in self.kinds:
            kind.step()

    def end(self):
        for kind in self.kinds:
            kind.end()


KINDS = [
    Idle, Slow, Giants, HalfOpenMpa, NeverReading, Calls, NbdWrites, Vanished, WrongPasswords, FullDisk, MountdFlood,
]


class Server(weft.Process):
    """The server under abuse, on the first processor where there are two."""

    def __init__(self, work, descriptors=None, buffers=BUFFERS):
        self.work, self.buffers = work, buffers
        self.full = work / "full"
        self.source = weft.random_file(work / "source", 2 << 20)
        state = work / "state"
        if not (state / "volumes").exists():
            for name in ("data", "full"):
                (work / name).mkdir(exist_ok=True)
            weft.run("mount", "-t", "tmpfs", "-o", "size=8m", "full", self.full)
            weft.run(
                weft.WEFT, "volume", "create", "vol", "--size", "64M", "--file", work / "vol.img", "--state-dir", state
            )
        # A limit that a process of root's could raise again would be none.
        limit = ["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []
        command = [
            *limit, *pinned(0), weft.WEFT, "serve", work / "data", self.full, "--ram", f"ram={RAM}", "--user", weft.USER,
            "--json", "--buffers", str(buffers), "--state-dir", state, "--volume", "vol", "--nbd-port", 0, "--cores", 1,
            "--no-root-squash",
        ]
        for name in ["smb", "smbd", "nfs", "nfs-rdma", "mountd"]:
            command += [f"--{name}-port", 0]
        super().__init__(command, work / "log")

    def status(self, field):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
        return 0

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        return self.status("VmRSS")

    def descriptors(self):
        """How many it has, but for the slabs of its buffer pool: those stay mapped, and the memory in them is measured."""
        count = 0
        for name in os.listdir(folder := f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                count += "memfd:weft-slab" not in os.readlink(f"{folder}/{name}")
        return count


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


SECONDS = 2.0


def spent():
    """Processor seconds of this process, and of the clients of its abuse that have ended. Those that are measured are not reaped
    here, or taken out again: see `measure`."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def burn(seconds):
    """Spends so much processor time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def measure(server, out, meanwhile=lambda: None):
    """Both clients work at once; `meanwhile` is called each STEP_SECONDS. Returns their bytes per second (0 for a client that fails),
    the server's memory at most, and the processor seconds that `meanwhile` took each time."""
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
        # Without reaping it: its processor time is not that of the abuse.
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
    """What the abuse alone takes of the server's processor, in a second."""
    began, before = time.monotonic(), server.processor_seconds()
    while time.monotonic() < began + 1:
        abuse.step()
        time.sleep(STEP_SECONDS)
    return (server.processor_seconds() - before) / (time.monotonic() - began)


def settle(server, wanted):
    """Waits until the server has no more descriptors than `wanted`; how many it has then."""
    until = time.monotonic() + SETTLE_SECONDS
    while server.descriptors() > wanted and time.monotonic() < until:
        time.sleep(0.5)
    return server.descriptors()


def row(server, abuse, out, repetitions):
    """One line of the table."""
    held = server.descriptors()
    kept, taken, peak = {"smb": [], "nfs": []}, [], 0
    for _ in range(repetitions):
        start = time.monotonic()
        abuse.begin()
        began = time.monotonic() - start
        taken.append(alone(server, abuse))
        during, resident, effort = measure(server, out, abuse.step)
        abuse.end()
        peak = max(peak, resident)
        beside, _, _ = measure(server, out, lambda: burn(effort))
        for name, shares in kept.items():
            shares.append(during[name] / max(beside[name], 1))
        print(
            f"  began in {began:.1f} s; abusers {effort / STEP_SECONDS:.2f} of their processor; without abuse "
            + ", ".join(f"{name} {rate / 1e6:.0f} MB/s" for name, rate in beside.items()),
            file=sys.stderr,
        )
    left = settle(server, held) - held
    kept = {name: statistics.median(shares) for name, shares in kept.items()}
    bound = server.buffers + RAM + CONSTANT_BYTES
    faults = [f"{name} kept {share:.2f}" for name, share in kept.items() if share < KEPT]
    if peak > bound:
        faults.append(f"{peak >> 20} MiB resident, bound {bound >> 20}")
    if left > 0:
        faults.append(f"{left} descriptors left behind")
    if server.process.poll() is not None:
        faults.append("the server is gone")
    print(
        f"| {abuse.name} | {kept['smb']:.2f} | {kept['nfs']:.2f} | {statistics.median(taken):.2f} | {peak >> 20} MiB "
        f"| {max(left, 0)} | {'; '.join(faults) or 'holds'} |",
        flush=True,
    )
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("test-abuse needs root: it makes a network, an address and a small file system of its own")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(32768, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    if (os.cpu_count() or 1) > 1:
        # Beside the clients, and not beside the server. What this starts inherits it.
        os.sched_setaffinity(0, {1})
    faults = []

    def under(kinds, **limits):
        """Runs the kinds that were chosen against a server of their own."""
        chosen = [kind for kind in kinds if options.only in kind.name]
        if not chosen:
            return
        server = Server(work, **limits)
        try:
            measure(server, work)  # Warm.
            for kind in chosen:
                faults.extend(row(server, kind(server), work, options.repetitions))
            if server.stop() != 0:
                faults.append("the server ended with a fault")
        finally:
            if server.process.poll() is None:
                server.crash()
            if "panicked" in server.log_text():
                faults.append("the server panicked")

    with weft.own_network(), tempfile.TemporaryDirectory(prefix="weft-abuse-") as folder:
        work = pathlib.Path(folder)
        try:
            print("| abuse | SMB kept | NFS kept | server's processor | resident | descriptors left | |")
            print("|---|---|---|---|---|---|---|", flush=True)
            under([*KINDS, Together])
            under([Descriptors], descriptors=FEW_DESCRIPTORS)
            under([Recorded], buffers=1 << 30)
        finally:
            weft.run("umount", work / "full", check=False)
    sys.exit(f"{len(faults)} bounds broken" if faults else 0)


if __name__ == "__main__":
    main()
