"""The kinds of abuse.

Every loop here is bounded in count, and every wait in time. Peers that log on come from addresses of their own
(`user_host`), from which no wrong password was tried."""

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import struct
import sys
import time

import clients
import disk
import nfs4
import oncrpc
import smb3
import weft
from oncrpc import MOUNT, NFS, RPCBIND

# Interval between an abuser's actions.
STEP_SECONDS = 0.25
# Number of hosts that pretend to be clients: 127.1.0.1 and on.
HOSTS = 64
# The server's descriptor limit in the test of EMFILE.
FEW_DESCRIPTORS = 512
# Files in the folder whose listings are never read.
LONG_FOLDER = 4000
# Time until files held by a vanished client are free: SMB disconnects it after 30 seconds, NFSv4 when its lease of 60
# has ended. Connections and leases are checked every few seconds.
SMB_FREE_SECONDS, NFS_FREE_SECONDS = 45, 75
# Time until connections end that send nothing, or stop in their first message: 30 seconds, checked every few seconds.
DEADLINE_SECONDS = 45
PORTS = ["smb", "smbd", "nfs", "nfs_rdma", "mountd", "rpcbind", "nbd"]
RDMA_PORTS = ["smbd", "nfs_rdma"]
# A call of each: NULL, EXPORT, DUMP.
CALLS = {"nfs": (NFS, 3, 0), "mountd": (MOUNT, 3, 5), "rpcbind": (RPCBIND, 2, 4)}

# The head of an option of NBD with 2 GiB.
GIANT_OPTION = disk.option(disk.OPT_GO)[:-4] + b"\x7f\xff\xff\xff"


def host(number):
    return f"127.1.{number % HOSTS // 250}.{number % HOSTS % 250 + 1}"


def user_host(number):
    return f"127.2.{number // 250}.{number % 250 + 1}"


class Abuse:
    """One kind: `begin` opens its connections, `step` is called each STEP_SECONDS meanwhile, `end` closes
    everything. `after` is called once at the end and returns a list of faults."""

    name = ""

    def __init__(self, server):
        self.server, self.peers = server, []

    def port(self, name):
        return self.server.ready[f"{name}_port"]

    def connect(self, port, number, nonblocking=True, address=None):
        """A connection from one of many addresses; None if the server refuses it."""
        peer = socket.socket()
        peer.settimeout(2)
        try:
            peer.bind((address or host(number), 0))
            peer.connect(("127.0.0.1", port))
        except OSError:
            peer.close()
            return None
        if nonblocking:
            peer.setblocking(False)
        self.peers.append(peer)
        return peer

    def shm(self, port):
        """A connection by shared memory; None if the server refuses it."""
        try:
            peer = clients.shm_connect(self.port(port))
        except OSError:
            return None
        peer.setblocking(False)
        self.peers.append(peer)
        return peer

    def send(self, peer, data):
        """Sends as much as possible without waiting; a hang-up by the peer is an expected result."""
        with contextlib.suppress(OSError):
            if peer:
                return peer.send(data)
        return 0

    def prepared(self, what, prepare, numbers):
        """Results of `prepare` for each of these numbers, many at a time, because a log-on may have to wait.
        Connections that the server ends meanwhile are left out; if all of them end, the messages are out of date."""

        def one(number):
            try:
                return prepare(number)
            except (OSError, smb3.Refused) as e:
                self.said = e
                return None

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            made = [peer for peer in pool.map(one, numbers) if peer]
        if len(made) < len(numbers):
            print(f"  {what}: {len(made)} of {len(numbers)} got through: {self.said}", file=sys.stderr)
        if not made:
            raise AssertionError(f"{what}: none got through: the messages sent are out of date")
        return made

    def user(self, number, share="data", address=None, grant=None):
        """The share, for a user who has logged on, by TCP, or by SMB Direct if there is a `grant` of credits. Who comes from an
        `address` signs his requests."""
        peer = self.connect(self.port("smb" if grant is None else "smbd"), number, False, address or user_host(number))
        if peer is None:
            raise ConnectionRefusedError("no connection")
        peer.settimeout(20)
        link = clients.Smb(peer) if grant is None else clients.SmbOverRdma(peer, grant)
        session = link.log_on(weft.USER, weft.PASSWORD)
        if address is None:
            session.key = None
        return session.tree(share)

    def flood(self, link, count, command, body, **how):
        """Sends a request many times at once, and reads no answer."""
        frames = b"".join(link.frame(command, body, **how)[1] for _ in range(count))
        link.socket.setblocking(False)
        self.send(link.socket, frames)

    def flood_of_large(self, tree, count, command, body):
        """The same with requests that ask for 1 MiB, as many as the credits allow."""
        link, session = tree.session.link, tree.session.number
        self.flood(link, min(count, link.credits // 16), command, body, session=session, tree=tree.number, charge=16, credits=16)

    def rich_user(self, number, **how):
        """A user with credits for many large requests."""
        tree = self.user(number, **how)
        for _ in range(4):
            tree.ask(smb3.ECHO, smb3.ECHOING, credits=512)
        return tree

    def prune(self):
        """Closes connections that the server has ended: together, the kinds use more than a process may have
        descriptors."""

        def ended(peer):
            if isinstance(peer, ssl.SSLSocket) or peer.type == socket.SOCK_DGRAM:
                return False
            peer.setblocking(False)
            try:
                return peer.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

        self.peers, before = [], self.peers
        for peer in before:
            if ended(peer):
                peer.close()
            else:
                self.peers.append(peer)

    def begin(self):
        pass

    def step(self):
        pass

    def end(self):
        for peer in self.peers:
            peer.close()
        self.peers = []

    def after(self):
        return []


class Idle(Abuse):
    name = "idle connections, 400 to each port and each socket of shared memory"

    def begin(self):
        for port in PORTS:
            for number in range(400):
                self.connect(self.port(port), number)
        for port in RDMA_PORTS:
            for _ in range(400):
                self.shm(port)


class Deadlines(Abuse):
    """These clients never hang up: the server does, within the time stated for each."""

    name = "20 to each port and socket that say nothing, 20 that stop in their first message, until the server has ended them"
    all = ()

    def begin(self):
        for peer, _ in self.all:
            peer.close()
        self.all = []
        for port in PORTS:
            for number in range(20):
                begun = self.connect(self.port(port), number)
                self.send(begun, Slow.STARTS[port][:10])
                self.all += [(begun, f"{port}, begun"), (self.connect(self.port(port), number), f"{port}, silent")]
        for port in RDMA_PORTS:
            self.all += [(self.shm(port), f"{port} by shared memory, silent") for _ in range(20)]
        tls = self.prepared("TLS of NFS", self.tls, range(40))
        hello = clients.client_hello()
        for peer in tls[:20]:
            self.send(peer, hello[:50])
        self.all += [(peer, "TLS of NFS, " + ("silent" if number >= 20 else "begun")) for number, peer in enumerate(tls)]
        self.all = [(peer, what) for peer, what in self.all if peer]
        self.since, self.peers = time.monotonic(), []

    def tls(self, number):
        peer = self.connect(self.port("nfs"), number, nonblocking=False)
        clients.start_tls_of_nfs(peer)
        peer.setblocking(False)
        return peer

    def after(self):
        ended = {}
        while self.all:
            late = time.monotonic() > self.since + DEADLINE_SECONDS
            for peer, what in self.all[:]:
                with contextlib.suppress(BlockingIOError):
                    # NBD's greeting precedes the end.
                    with contextlib.suppress(ConnectionResetError):
                        while peer.recv(1000):
                            pass
                    peer.close()
                    self.all.remove((peer, what))
                    ended[what] = time.monotonic() - self.since
            if late:
                break
            time.sleep(0.5)
        print("  ended: " + "; ".join(f"{what} {seconds:.0f} s" for what, seconds in ended.items()), file=sys.stderr)
        left = sorted({what for _, what in self.all})
        for peer, _ in self.all:
            peer.close()
        return [f"not ended after {DEADLINE_SECONDS} s: {what}" for what in left]


class MountdFlood(Abuse):
    name = "9,000 connections to mountd alone"

    def begin(self):
        self.number = 0
        self.some(9000)

    def step(self):
        # The flood continues: the client keeps the newest thousands, as the server does.
        for peer in self.peers[:-4000]:
            peer.close()
        del self.peers[:-4000]
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
        "rpcbind": b"\x80\0\0\x28" + bytes(40),
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
    name = "announced giants, 600 each: 8 MiB to SMB, NFS, mountd, rpcbind; an option of 2 GiB to NBD; MPA private data of 64 KiB"

    def begin(self):
        for number in range(600):
            self.send(self.connect(self.port("smb"), number), b"\0\x7f\xff\xff\xfeSMB")
            for port in ("nfs", "mountd", "rpcbind"):
                self.send(self.connect(self.port(port), number), b"\x80\x7f\xff\xff" + bytes(8))
            self.send(self.connect(self.port("nbd"), number), disk.FLAGS + GIANT_OPTION + bytes(8))
            for port in RDMA_PORTS:
                self.send(self.connect(self.port(port), number), b"MPA ID Req Frame\x40\x01\xff\xff" + bytes(8))


class HalfOpenMpa(Abuse):
    name = "MPA requests, half of them whole, 600 to each RDMA port"

    def begin(self):
        for port in RDMA_PORTS:
            for number in range(600):
                self.send(self.connect(self.port(port), number), clients.MPA if number % 2 else clients.MPA[:10])


class HalfOpenShm(Abuse):
    """A message of these sockets arrives whole or not at all, so a slow or giant message is impossible."""

    name = "shared memory: 200 whole requests to each socket without a word afterwards, and 200 garbled ones"
    bells = ()

    def begin(self):
        self.bells, asked = [], 0
        for port in RDMA_PORTS:
            for number in range(200):
                peer = self.shm(port)
                with contextlib.suppress(OSError):
                    if peer:
                        self.bells.append(clients.shm_request(peer))
                        asked += 1
                self.send(self.shm(port), (b"weft-shm" + bytes(16), b"x", bytes(532))[number % 3])
        if not asked or not any(self.answered(peer) for peer in self.peers):
            raise AssertionError("no request by shared memory was accepted: the messages sent are out of date")

    def answered(self, peer):
        peer.settimeout(0.05)
        with contextlib.suppress(OSError):
            return peer.recv(600)[:8] == b"weft-shm"
        return False

    def end(self):
        super().end()
        for bell in self.bells:
            bell.close()


class Datagrams(Abuse):
    name = "datagrams to NFS, mountd and rpcbind by UDP: calls, garbage, 60 KiB, from 1,280 senders, 1,200 a second"

    def begin(self):
        self.sent = 0
        for number in range(1280):
            peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            peer.bind((host(number), 0))
            peer.setblocking(False)
            self.peers.append(peer)
        self.step()

    def step(self):
        for _ in range(int(1200 * STEP_SECONDS / len(CALLS))):
            peer = self.peers[self.sent % len(self.peers)]
            for port in CALLS:
                call = oncrpc.message(7, *CALLS[port])
                with contextlib.suppress(OSError):
                    peer.sendto((call, call[:17], call + bytes(60_000))[self.sent % 3], ("127.0.0.1", self.port(port)))
            self.sent += 1


class Tls(Abuse):
    """Includes NBD if the server has it under TLS."""

    name = "TLS asked of NFS, 60 each: then silence, a byte a quarter second, a giant record, a giant message under TLS"

    def begin(self):
        self.sent, self.hello = 0, clients.client_hello()
        starts = {"nfs": clients.start_tls_of_nfs}
        if self.server.nbd_tls:
            starts["nbd"] = clients.start_tls_of_nbd
        context = clients.tls_context()
        self.slow = []
        for port, start in starts.items():
            def asked(number, port=port, start=start):
                peer = self.connect(self.port(port), number, nonblocking=False)
                if peer:
                    start(peer)
                    peer.setblocking(False)
                return peer

            def inside(number, port=port):
                peer = asked(number, port)
                peer.settimeout(10)
                talk = context.wrap_socket(peer, server_hostname="localhost")
                self.peers[self.peers.index(peer)] = talk
                talk.setblocking(False)
                return talk

            silent, slow, giants = (self.prepared(f"TLS of {port}", asked, range(60)) for _ in range(3))
            self.slow += slow
            for number, peer in enumerate(giants):
                # A record above the maximum length, and a ClientHello of 16 MiB.
                self.send(peer, b"\x16\x03\x01\xff\xff" if number % 2 else b"\x16\x03\x01\x40\x00\x01\xff\xff\xff")
            giant = {"nfs": b"\x80\x7f\xff\xff" + bytes(8), "nbd": GIANT_OPTION}[port]
            for peer in self.prepared(f"handshakes of {port}", inside, range(60)):
                self.send(peer, giant)

    def step(self):
        for peer in self.slow:
            self.send(peer, self.hello[self.sent : self.sent + 1])
        self.sent += 1


class NeverReading(Abuse):
    name = "clients that never read their answers, 50 each to NFS, mountd and rpcbind"

    def begin(self):
        self.all = []
        for port, (program, version, procedure) in CALLS.items():
            calls = clients.rpc_call(program, version, procedure) * 1000
            for number in range(50):
                self.all.append([self.connect(self.port(port), number), calls, 0])
        self.fill()

    def fill(self):
        """Sends until the socket accepts no more: then the buffers of both kernels are full, and the server holds
        answers."""
        until = time.monotonic() + 10
        while self.step() > 0 and time.monotonic() < until:
            time.sleep(0.01)

    def step(self):
        sent = 0
        for entry in self.all:
            peer, calls, done = entry
            # A call that was cut continues at the cut.
            taken = self.send(peer, calls[done:])
            entry[2] = (done + taken) % len(calls)
            sent += taken
        return sent


class NeverReadingSmb(Abuse):
    name = "SMB clients that never read: 50 that have not logged on, ECHOs; 40 users, each with 64 READs of 1 MiB under way"

    def begin(self):
        for link in self.prepared("SMB without a log-on", self.stranger, range(50)):
            self.flood(link, 1000, smb3.ECHO, smb3.ECHOING, credits=1)
        for file in self.prepared("log-ons to SMB", self.reader, range(40)):
            self.flood_of_large(file.tree, 64, smb3.READ, smb3.reading(file.id, 1 << 20))

    def stranger(self, number):
        return clients.Smb(self.connect(self.port("smb"), number, nonblocking=False))

    def reader(self, number):
        return self.rich_user(number).open("abuse-read", access=smb3.GENERIC_READ)


class NeverReadingListings(Abuse):
    name = (
        "clients that ask for long listings and never read them: 50 of NFS, each 300 COMPOUNDs of 15 READDIRs; 20 users of SMB, each 60 "
        "QUERY_DIRECTORYs of 1 MiB"
    )

    def begin(self):
        readdir = nfs4.words(nfs4.READDIR) + bytes(16) + nfs4.words(60_000, 60_000, 1, 0x18)
        operations = [*nfs4.Client.walk("data", "abuse-list"), *[readdir] * 15]
        calls = b"".join(oncrpc.record(nfs4.compound_call(xid, 0, *operations)) for xid in range(300))
        self.calls = [[self.connect(self.port("nfs"), number), calls] for number in range(50)]
        for folder in self.prepared("log-ons to SMB", self.lister, range(20)):
            # FileBothDirectoryInformation, each time from the start.
            self.flood_of_large(folder.tree, 60, smb3.QUERY_DIRECTORY, smb3.listing(folder.id, 3, 1 << 20, flags=1))

    def lister(self, number):
        return self.rich_user(number).open("abuse-list", access=smb3.GENERIC_READ, how=smb3.OPEN, options=smb3.DIRECTORY)

    def step(self):
        for entry in self.calls:
            peer, calls = entry
            entry[1] = calls[self.send(peer, calls):] if calls else calls


class NeverReadingNbd(Abuse):
    name = "NBD clients that never read: 50, each with 64 READs of 1 MiB under way"

    def begin(self):
        reads = b"".join(disk.request(disk.READ, number, 0, 1 << 20) for number in range(64))
        for number in range(50):
            self.send(self.connect(self.port("nbd"), number), disk.start(b"vol") + reads)


class NeverCompleting(Abuse):
    name = (
        "RDMA peers that answer no Read and take nothing: 100 to NFS, 100 to SMB Direct without credits for the server, "
        "20 users with READs and WRITEs of 1 MiB by RDMA"
    )

    def begin(self):
        self.prepared("NFS/RDMA", self.nfs, range(100))
        self.prepared("SMB Direct without a log-on", self.stranger, range(100))
        self.prepared("log-ons to SMB Direct", self.reader, range(20))

    def nfs(self, number):
        peer = self.connect(self.port("nfs_rdma"), number, nonblocking=False)
        line = clients.Iwarp(peer)
        # As many as the initial receives of the server.
        for call in range(3):
            line.send(clients.rdma_call(call, reads=60_000))
        line.send(clients.rdma_call(3, reply=60_000))
        return peer

    def stranger(self, number):
        peer = self.connect(self.port("smbd"), number, nonblocking=False)
        link = clients.SmbOverRdma(peer, grant=1)
        # No more credits are granted from here on, so no later request can be answered.
        link.channel.grant = 0
        for _ in range(4):
            link.send(smb3.ECHO, smb3.ECHOING, credits=1)
        return peer

    def reader(self, number):
        tree = self.rich_user(100 + number, grant=10)
        file = tree.open("abuse-read")
        # WRITEs, whose data the server has to fetch, come first: it stops fetching from a client that does not read.
        for command, body in [(smb3.WRITE, clients.writing), (smb3.READ, clients.reading)]:
            for _ in range(3):
                tree.send(command, body(file, 1 << 20), charge=16, credits=16)
        return tree.session.link.socket


class Calls(Abuse):
    name = "20,000 empty calls a second, by 50 connections to NFS"

    def begin(self):
        self.all = [self.connect(self.port("nfs"), number) for number in range(50)]

    def step(self):
        calls = clients.rpc_call(NFS, 3, 0) * int(20_000 * STEP_SECONDS / 50)
        for peer in self.all:
            self.send(peer, calls)
            with contextlib.suppress(OSError):
                peer and peer.recv(1 << 20)


class NbdWrites(Abuse):
    name = "begun WRITEs of 8 MiB, 300 to NBD"

    def begin(self):
        for number in range(300):
            self.send(self.connect(self.port("nbd"), number), disk.begun_write(b"vol"))


@contextlib.contextmanager
def vanishing(address):
    """An address for clients that are reachable at first. Afterwards no packet reaches them or arrives from them:
    their packets are routed to 192.0.2.0/24, which drops them silently."""
    weft.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    try:
        yield
    finally:
        weft.run("ip", "address", "del", f"{address}/32", "dev", "lo")


class Vanished(Abuse):
    name = "clients that vanished, 200 each to SMB and NFS"
    ADDRESS = "192.0.2.2"

    def begin(self):
        with vanishing(self.ADDRESS):
            for port, first in (("smb", b""), ("nfs", clients.rpc_call(NFS, 3, 0))):
                for number in range(200):
                    self.send(self.connect(self.port(port), number, address=self.ADDRESS), first)


class VanishedHolders(Abuse):
    name = "clients that vanished with a file that they let nobody else open, and a lock: one by SMB, one by NFSv4.1"
    ADDRESS = "192.0.2.{}"
    round = 100

    def __init__(self, server):
        super().__init__(server)
        # Files held in each way, in all repetitions.
        self.held, self.nfs = {"smb": [], "nfs": []}, []

    def begin(self):
        self.round += 1
        self.names = {way: f"held-{way}-{self.round}" for way in ("smb", "nfs")}
        for way, name in self.names.items():
            (self.server.data / name).write_bytes(bytes(100))
            self.held[way].append(name)
        address = self.ADDRESS.format(self.round)
        with vanishing(address):
            self.user(0, address=address).open(self.names["smb"], sharing=0).lock(0, 10)
            self.nfs.append(nfs4.Client(self.port("nfs"), f"holder-{self.round}-{time.monotonic_ns()}", source=address))
            if self.take_by_nfs(self.nfs[-1], self.names["nfs"]) != "ok":
                raise AssertionError("the holder by NFSv4.1 could not open its file")
        self.since = time.monotonic()
        if any(self.free(way, name) for way, name in self.names.items()):
            raise AssertionError("a file that a client holds was given to another client")

    def take_by_nfs(self, client, name, give_back=False):
        """Opens the file for reading and writing, denies both to others, and locks 10 bytes; returns the status."""
        status, handle, stateid, _ = client.open("data", name, 3 | 0x400, 3)
        if status == "ok":
            area = struct.pack(">QQ", 0, 10)
            new = nfs4.words(1, 0) + stateid + nfs4.words(0) + bytes(8) + nfs4.opaque(b"locks")
            reply, status = client.on(handle, nfs4.LOCK, nfs4.words(2, 0) + area + new)
            if status == "ok" and give_back:
                client.on(handle, nfs4.LOCKU, nfs4.words(2, 0) + reply.take(16) + area)
            if give_back:
                client.on(handle, nfs4.CLOSE, nfs4.words(0) + stateid)
        return status

    def free(self, way, name):
        """Whether another client can open the file and take the lock."""
        if way == "nfs":
            client = nfs4.Client(self.port("nfs"), f"other-{self.round}-{time.monotonic_ns()}")
            try:
                return self.take_by_nfs(client, name, give_back=True) == "ok"
            finally:
                client.hang_up()
        tree = self.user(200)
        try:
            tree.open(name, sharing=0).lock(0, 10)
            return True
        except smb3.Refused as refused:
            if refused.status != "SHARING_VIOLATION":
                raise
            return False
        finally:
            self.peers.remove(tree.session.link.socket)
            tree.session.link.close()

    def end(self):
        super().end()
        while self.nfs:
            self.nfs.pop().hang_up()

    def after(self):
        faults = []
        # Files of earlier repetitions are free as well, and stay open until another client asks for them.
        for way, seconds in (("smb", SMB_FREE_SECONDS), ("nfs", NFS_FREE_SECONDS)):
            for name in self.held[way]:
                while not (free := self.free(way, name)) and time.monotonic() < self.since + seconds:
                    time.sleep(1)
                print(f"  {name} is {'free' if free else 'held'} after {time.monotonic() - self.since:.0f} s", file=sys.stderr)
                if not free:
                    faults.append(f"{name}, which the client held by {way}, was not free after {seconds} s")
                (self.server.data / name).unlink()
        return faults


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
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, smb3.Refused):
                await asyncio.wait_for(self.guess(number), 2)

        await asyncio.gather(*map(one, numbers))

    async def guess(self, number):
        link = smb3.AsyncLink(host(number))
        await link.dial(self.port("smb"))
        try:
            await link.negotiate()
            await link.log_on(smb3.proof_of(weft.USER, f"wrong-{number}"))
        finally:
            link.writer.close()


class FullDisk(Abuse):
    name = "a full disk: writes into a share without space"

    def begin(self):
        self.steps = 0
        with contextlib.suppress(OSError), open(self.server.full / "fill", "wb", buffering=0) as fill:
            for _ in range(64):
                fill.write(bytes(1 << 20))

    def step(self):
        # Once a second, by a new client each time.
        self.steps += 1
        if self.steps % 4 != 1:
            return
        name = f"smb://{weft.USER}@127.0.0.1:{self.port('smb')}/full/more"
        done = weft.run(weft.WEFT, "cp", "--quiet", self.server.source, name, check=False, timeout=30)
        if done.returncode == 0:
            raise AssertionError("a file was written to a full disk")

    def end(self):
        super().end()
        self.left = [left.name for left in self.server.full.iterdir() if left.name != "fill"]
        for left in self.server.full.iterdir():
            left.unlink()

    def after(self):
        return [f"files on the full disk: {self.left}"] if self.left else []


class Descriptors(Abuse):
    """Runs with a server that has few descriptors. Refused clients retry."""

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
            turn = self.number % (len(PORTS) + 1)
            if turn < len(PORTS):
                self.connect(self.port(PORTS[turn]), self.number)
            else:
                self.shm("smbd")
            self.number += 1


class Recorded(Abuse):
    """The amounts at which each of these stopped a server, with all its protocols, before limits existed; it had
    --buffers 1G."""

    name = (
        "at once: 1,820 MPA requests, 4,300 NFS/RDMA connections of 20 bytes, 315 begun SMB Direct messages, "
        "140 SMB and 520 NFS giants"
    )

    def begin(self):
        for number in range(1820):
            self.send(self.connect(self.port("smbd"), number), clients.MPA)
        for number in range(4300):
            self.send(self.connect(self.port("nfs_rdma"), number), clients.MPA)
        self.prepared("begun SMB Direct messages", self.fragment, range(315))
        for number in range(140):
            self.send(self.connect(self.port("smb"), number), b"\0\x7f\xff\xff\xfeSMB")
        for number in range(520):
            self.send(self.connect(self.port("nfs"), number), b"\x80\x0f\xff\xff" + bytes(8))

    def fragment(self, number):
        """Negotiates SMB Direct ([MS-SMBD] 2.2.1) and sends the first fragment of a message of 60 KiB (2.2.3)."""
        peer = self.connect(self.port("smbd"), number, nonblocking=False)
        if peer is None:
            return None
        clients.SmbDirect(peer).begin(60_000)
        peer.setblocking(False)
        return peer


class Together(Abuse):
    name = "all of these at once"

    def __init__(self, server):
        super().__init__(server)
        # Kinds that take long to begin come first, as others would reach their deadlines by then. So do those that log
        # on.
        first = [MountdFlood, NeverReading, NeverReadingSmb, NeverCompleting, VanishedHolders]
        self.kinds = [kind(server) for kind in [*first, *(kind for kind in KINDS if kind not in first)]]

    def begin(self):
        for kind in self.kinds:
            start = time.monotonic()
            kind.begin()
            kind.prune()
            if (seconds := time.monotonic() - start) > 3:
                print(f"  {kind.name[:40]}: began in {seconds:.0f} s", file=sys.stderr)

    def step(self):
        for kind in self.kinds:
            kind.step()

    def end(self):
        for kind in self.kinds:
            kind.end()

    def after(self):
        return [fault for kind in self.kinds for fault in kind.after()]


class TlsOfNbd(Tls):
    """Runs with a server that has NBD under TLS."""

    name = "TLS asked of NFS and NBD, of a server whose NBD is under TLS, 60 each: then the same"


KINDS = [
    Idle, Slow, Giants, HalfOpenMpa, HalfOpenShm, Tls, Datagrams, NeverReading, NeverReadingSmb, NeverReadingListings,
    NeverReadingNbd, NeverCompleting, Calls, NbdWrites, Vanished, VanishedHolders, WrongPasswords, FullDisk, MountdFlood,
    Deadlines,
]
