"""Abuse of every port at once while one SMB and one NFS client work.

Each kind of abuse begins, the two clients are measured beside it, and it ends; at last all kinds run together. The table tells, for
each, what throughput the two clients kept, how much memory the server had at most, and what was left behind. Every loop here is
bounded in count and time, and everything stays on the loopback interface of a network of the test's own.

Bounds: both clients keep KEPT of their throughput, the server's resident memory stays below --buffers, its ramdisk and
CONSTANT_BYTES, and a while after the abuse has ended the server has the descriptors that it had before. Exits with 1 where one of
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
SETTLE_SECONDS = 45
# As many hosts as pretend to be clients: 127.1.0.1 and on.
HOSTS = 64


def host(number):
    return f"127.1.{number % HOSTS // 250}.{number % HOSTS % 250 + 1}"


class Abuse:
    """One kind: `begin` opens its connections, `step` is called four times a second meanwhile, `end` closes everything."""

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
        for number in range(9000):
            self.connect(self.port("mountd"), number)


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
            call = struct.pack(">IIIIIIIIIII", 0x80000028, 7, 0, 2, program, version, procedure, 0, 0, 0, 0)
            for number in range(50):
                self.all.append((self.connect(self.port(port), number), call * 1000))

    def step(self):
        for peer, calls in self.all:
            self.send(peer, calls)


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
        call = struct.pack(">IIIIIIIIIII", 0x80000028, 7, 0, 2, 100003, 3, 0, 0, 0, 0, 0)
        for port, first in (("smb", b""), ("nfs", call)):
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
        # Two guesses at a time: the guessers share a processor with the clients that are measured.
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
        # Once a second: the client that is refused shares a processor with those that are measured.
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
    """Runs with a server that may have few of them."""

    name = f"more connections than descriptors ({FEW_DESCRIPTORS})"

    def begin(self):
        for number in range(FEW_DESCRIPTORS * 2):
            self.connect(self.port(PORTS[number % len(PORTS)]), number)


class Together(Abuse):
    name = "all of these at once"

    def __init__(self, server, kinds):
        super().__init__(server)
        self.kinds = [kind(server) for kind in kinds]

    def begin(self):
        for kind in self.kinds:
            kind.begin()

    def step(self):
        for kind in self.kinds:
            kind.step()

    def end(self):
        for kind in self.kinds:
            kind.end()


KINDS = [Idle, Slow, Giants, HalfOpenMpa, NeverReading, NbdWrites, Vanished, WrongPasswords, FullDisk, MountdFlood]


class Server(weft.Process):
    """The server under abuse, on one processor where there are two."""

    def __init__(self, work, descriptors=None):
        self.work = work
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
            "--json", "--buffers", str(BUFFERS), "--state-dir", state, "--volume", "vol", "--nbd-port", 0, "--cores", 1,
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

    def resident(self):
        return self.status("VmRSS")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def pinned(cpu):
    return ["taskset", "-c", str(cpu)] if (os.cpu_count() or 1) > 1 else []


def work_of(server, out):
    """The command lines of the two clients, each in the other half of the second processor."""
    r = server.ready
    line = ["-b64K", "-r", "-o8", "-t1", "-c16M"]
    common = ["--quiet", "--repetitions", "1", "--duration", str(SECONDS), "--transport", "tcp", "--out"]
    smb = f"smb://{weft.USER}@127.0.0.1:{r['smb_port']}/ram/bench-smb"
    nfs = f"nfs://127.0.0.1:{r['nfs_port']}/ram/bench-nfs?mountport={r['mountd_port']}&rdmaport={r['nfs_rdma_port']}"
    for name, url in (("smb", smb), ("nfs", nfs)):
        yield name, [*pinned(1), weft.WEFT, "bench", "diskspd", *common, out / f"{name}.json", *line, url]


SECONDS = 1.0


def measure(server, out, meanwhile=lambda: None):
    """Bytes per second of both clients, working at once; `meanwhile` is called four times a second. A client that fails has 0."""
    environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD)
    clients = {}
    for name, command in work_of(server, out):
        (out / f"{name}.json").unlink(missing_ok=True)
        clients[name] = subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.DEVNULL, stderr=open(out / f"{name}.err", "w"), env=environment
        )
    until = time.monotonic() + 60 + SECONDS
    peak = server.resident()
    while any(c.poll() is None for c in clients.values()) and time.monotonic() < until:
        meanwhile()
        peak = max(peak, server.resident())
        time.sleep(0.25)
    rates = {}
    for name, client in clients.items():
        if client.poll() is None:
            client.kill()
        client.wait()
        rates[name] = 0.0
        with contextlib.suppress(OSError, KeyError, IndexError, json.JSONDecodeError):
            report = json.loads((out / f"{name}.json").read_text())
            rates[name] = report["sections"][0]["points"][0]["throughput"]["median"]
        if rates[name] == 0:
            print(f"  {name} client failed: {(out / f'{name}.err').read_text().strip()[-400:]}", file=sys.stderr)
    return rates, peak


def settle(server, wanted):
    """Waits until the server has no more descriptors than `wanted`; how many it has then."""
    until = time.monotonic() + SETTLE_SECONDS
    while server.descriptors() > wanted and time.monotonic() < until:
        time.sleep(0.5)
    return server.descriptors()


def rates_of(samples, name):
    return statistics.median(rates[name] for rates, _ in samples)


def row(server, abuse, out, repetitions):
    """One line of the table."""
    before = [measure(server, out) for _ in range(repetitions)]
    held = server.descriptors()
    start = time.monotonic()
    abuse.begin()
    began = time.monotonic() - start
    during = [measure(server, out, abuse.step) for _ in range(repetitions)]
    abuse.end()
    after = [measure(server, out) for _ in range(repetitions)]
    left = settle(server, held) - held
    quiet = before + after
    kept = {name: rates_of(during, name) / max(rates_of(quiet, name), 1) for name in ("smb", "nfs")}
    peak = max(peak for _, peak in during)
    bound = BUFFERS + RAM + CONSTANT_BYTES
    faults = [f"{name} kept {share:.2f}" for name, share in kept.items() if share < KEPT]
    if peak > bound:
        faults.append(f"{peak >> 20} MiB resident, bound {bound >> 20}")
    if left > 0:
        faults.append(f"{left} descriptors left behind")
    if server.process.poll() is not None:
        faults.append("the server is gone")
    print(
        f"| {abuse.name} | {kept['smb']:.2f} | {kept['nfs']:.2f} | {peak >> 20} MiB | {max(left, 0)} "
        f"| {'; '.join(faults) or 'holds'} |",
        flush=True,
    )
    print(f"  began in {began:.1f} s; quiet smb {rates_of(quiet, 'smb') / 1e6:.0f} MB/s, "
          f"nfs {rates_of(quiet, 'nfs') / 1e6:.0f} MB/s", file=sys.stderr)
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("test-abuse needs root: it makes a network, an address and a small file system of its own")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(32768, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    chosen = [kind for kind in KINDS if options.only in kind.name]
    faults = []
    with weft.own_network(), tempfile.TemporaryDirectory(prefix="weft-abuse-") as folder:
        work = pathlib.Path(folder)
        server = Server(work)
        try:
            print("| abuse | SMB kept | NFS kept | resident | descriptors left | |\n|---|---|---|---|---|---|")
            measure(server, work)  # Warm.
            for kind in chosen:
                faults += row(server, kind(server), work, options.repetitions)
            if not options.only:
                faults += row(server, Together(server, KINDS), work, options.repetitions)
            if server.stop() != 0:
                faults.append("the server ended with a fault")
            if options.only in Descriptors.name:
                server = Server(work, FEW_DESCRIPTORS)
                faults += row(server, Descriptors(server), work, options.repetitions)
                if server.stop() != 0:
                    faults.append("the server ended with a fault")
        finally:
            if server.process.poll() is None:
                server.crash()
            weft.run("umount", work / "full", check=False)
    sys.exit(f"{len(faults)} bounds broken" if faults else 0)


if __name__ == "__main__":
    main()
