"""Finding programs: rpcinfo and showmount query our rpcbind, libnfs needs no ports in its URLs, and we register with
Debian's rpcbind."""

import itertools
import os
import pathlib
import socket
import struct
import tempfile
import unittest

import oncrpc
import weft
from oncrpc import MOUNT, NFS, NLM, NSM, RPCBIND, opaque, words

PORTS = {"nfs": 2049, "nfs-rdma": 20049, "mountd": 20048}


def found():
    """{(program, version, protocol): port} from rpcinfo's output."""
    lines = weft.run("rpcinfo", "-p", "127.0.0.1").stdout.splitlines()[1:]
    return {(int(p), int(v), proto): int(port) for p, v, proto, port, *_ in map(str.split, lines)}


@unittest.skipUnless(os.geteuid() == 0, "rpcinfo and showmount know no port but 111: the tests need root for a network of their own")
class Rpcbind(unittest.TestCase):
    def setUp(self):
        self.enterContext(weft.own_network())

    def test_rpcinfo_and_showmount_find_everything(self):
        for options, protocols in [([], ["tcp"]), (["--nfs-udp"], ["tcp", "udp"])]:
            with self.subTest(protocols=protocols), weft.serving("--rpcbind-port", 111, *options, ports=PORTS) as server:
                self.assertEqual(server.ready["nfs_udp"], "udp" in protocols)
                self.finds_everything(server, protocols)

    def finds_everything(self, server, protocols):
        self.assertEqual(server.ready["rpcbind_port"], 111)
        expected = {(RPCBIND, version, p): 111 for version in [2, 3, 4] for p in protocols}
        for protocol in protocols:
            expected |= {(NFS, 3, protocol): 2049, (MOUNT, 3, protocol): 20048}
            expected |= {(NLM, 4, protocol): 2049, (NSM, 1, protocol): 2049}
        # Version 4 requires a transport with congestion control.
        expected[NFS, 4, "tcp"] = 2049
        self.assertEqual(found(), expected)
        for net, program, version in [(n, p, v) for (p, v, n) in expected]:
            with self.subTest(net=net, program=program, version=version):
                said = weft.run("rpcinfo", "-T", net, "127.0.0.1", program, version).stdout
                self.assertIn(f"program {program} version {version} ready and waiting", said)
        self.assertIn("127.0.0.1.78.81", weft.run("rpcinfo", "127.0.0.1").stdout, "NFS over RDMA")
        exports = weft.run("showmount", "-e", "127.0.0.1").stdout.split()
        self.assertLessEqual({"/data", "/ram"}, set(exports))
        # Other hosts cannot register anything here.
        self.assertNotEqual(weft.run("rpcinfo", "-d", NFS, 3, check=False).returncode, 0)
        self.assertEqual(found(), expected)

    def test_libnfs_needs_no_ports(self):
        with weft.serving("--rpcbind-port", 111, ports=PORTS) as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "source", (1 << 20) + 3)
            weft.run("nfs-cp", source, "nfs://127.0.0.1/data/copy")
            self.assertTrue(weft.same(source, server.folder / "copy"))
            self.assertIn("/data", weft.run("showmount", "-a", "127.0.0.1").stdout)


@unittest.skipUnless(os.geteuid() == 0, "needs root for a network and a /run of its own")
class Registration(unittest.TestCase):
    def test_a_running_rpcbind_is_told_and_told_again_at_the_end(self):
        with tempfile.TemporaryDirectory() as work:
            script = f"""
            # In a chroot, / may not be a mount point: then there is nothing above it to make private.
            mount --make-rprivate / 2> /dev/null
            ip link set lo up; mount -t tmpfs run /run; mkdir /run/rpcbind; mkdir {work}/data
            serve="{weft.WEFT} serve {work}/data --user u --json --smb-port 0 --smbd-port 0 --nfs-port 0 --mountd-port 0 --rpcbind"
            $serve > {work}/none 2>&1 && exit 1
            rpcbind -f & binder=$!
            until rpcinfo -p 127.0.0.1 > /dev/null 2>&1; do sleep 0.1; done
            $serve > {work}/ready 2> {work}/log & server=$!
            until [ -s {work}/ready ]; do sleep 0.1; done
            rpcinfo -p 127.0.0.1 > {work}/during
            showmount -e 127.0.0.1 > {work}/exports
            $serve > {work}/second 2>&1 && exit 2
            kill -TERM $server; wait $server || exit 3
            rpcinfo -p 127.0.0.1 > {work}/after
            kill $binder
            """
            weft.run("unshare", "--net", "--mount", "--propagation", "unchanged", "bash", "-uc", script)
            read = lambda name: (pathlib.Path(work) / name).read_text()
            self.assertIn("--rpcbind-port 111", read("none"), "no advice where no rpcbind runs")
            for program in ["100003", "100005", "100021"]:
                self.assertIn(program, read("during"))
                self.assertNotIn(program, read("after"))
            self.assertIn("/data", read("exports"))
            self.assertIn("registered by another server", read("second"))


class Udp(unittest.TestCase):
    """A client of our own, because no other client here still speaks NFS over UDP."""

    def setUp(self):
        self.xids = itertools.count(1)

    def call(self, port, program, version, procedure, args=b""):
        """The results. Keeps how long both messages were."""
        call = oncrpc.message(next(self.xids), program, version, procedure, args, oncrpc.unix(os.getuid()))
        with self.peer() as peer:
            peer.sendto(call, ("127.0.0.1", port))
            reply = peer.recv(65536)
        self.sent, self.received = len(call), len(reply)
        self.assertEqual(reply[:4], call[:4])
        return oncrpc.Reply(reply[4:]).accepted()

    def refused(self, *call):
        with self.assertRaises(oncrpc.Refused) as refused:
            self.call(*call)
        return refused.exception.args

    @staticmethod
    def peer():
        def bound(own):
            peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                peer.bind(own)
            except OSError:
                peer.close()
                raise
            peer.settimeout(30)
            return peer

        return weft.as_root_of(bound, "127.0.0.1")

    def test_nothing_listens_unless_it_is_asked_for(self):
        with weft.serving("--rpcbind-port", 0) as server:
            for name in ["nfs", "mountd", "rpcbind"]:
                with self.subTest(service=name), self.peer() as peer:
                    peer.connect(("127.0.0.1", server.ready[f"{name}_port"]))
                    peer.send(bytes(40))
                    with self.assertRaises(ConnectionRefusedError):
                        peer.recv(100)

    def test_an_address_that_was_not_seen_gets_no_more_than_it_sends(self):
        """A spoofed address could be flooded: READ made 274 bytes of one, rpcbind's list 21."""
        with weft.serving("--nfs-udp", "--rpcbind-port", 0) as server:
            (server.folder / "file").write_bytes(bytes(32768))
            nfs, mountd, rpcbind = (server.ready[f"{name}_port"] for name in ["nfs", "mountd", "rpcbind"])
            # AUTH_TOOWEAK, for any handle.
            too_weak = "auth", 5, b""
            for procedure in range(1, 22):
                refused = self.refused(nfs, NFS, 3, procedure, opaque(bytes(32)) + struct.pack(">QI", 0, 32768))
                self.assertEqual(refused, too_weak, procedure)
            self.assertEqual(self.refused(rpcbind, RPCBIND, 2, 4), too_weak, "the list")
            self.assertLessEqual(self.received, self.sent)
            # Short answers are sent: NULL, the port of a program, a mount.
            for port, program, version in [(nfs, NFS, 3), (mountd, MOUNT, 3), (rpcbind, RPCBIND, 2), (nfs, NLM, 4)]:
                self.assertEqual(self.call(port, program, version, 0).rest(), b"")
            self.assertEqual(self.call(rpcbind, RPCBIND, 2, 3, words(NFS, 3, 6, 0)).rest(), words(nfs))
            self.seen(nfs)
            self.call(rpcbind, RPCBIND, 2, 4)
            self.assertGreater(self.received, 2 * self.sent)

    def seen(self, port):
        """A call by TCP, after which the address counts as verified."""
        with oncrpc.Connection(port) as peer:
            self.assertEqual(peer.call(NFS, 3, 0).rest(), b"")

    def test_mount_look_up_read_and_write(self):
        with weft.serving("--nfs-udp") as server:
            self.seen(server.ready["nfs_port"])
            (server.folder / "file").write_bytes(b"0123456789")
            nfs, mountd = server.ready["nfs_port"], server.ready["mountd_port"]
            reply = self.call(mountd, MOUNT, 3, 1, opaque(b"/data"))
            self.assertEqual(reply.word(), 0)
            reply = self.call(nfs, NFS, 3, 3, opaque(reply.opaque()) + opaque(b"file"))
            self.assertEqual(reply.word(), 0)
            file = reply.opaque()
            # READ: attributes, count, end of file, data.
            reply = self.call(nfs, NFS, 3, 6, opaque(file) + struct.pack(">QI", 3, 100))
            self.assertEqual(reply.word(), 0)
            reply.take(4 + 84)
            self.assertEqual(reply.rest(), words(7, 1) + opaque(b"3456789"))
            # WRITE with FILE_SYNC, of more than a packet.
            data = os.urandom(32768)
            args = opaque(file) + struct.pack(">QII", 0, len(data), 2) + opaque(data)
            self.assertEqual(self.call(nfs, NFS, 3, 7, args).word(), 0)
            self.assertEqual((server.folder / "file").read_bytes(), data)
            reply = self.call(nfs, NFS, 3, 6, opaque(file) + struct.pack(">QI", 0, 1 << 20))
            reply.take(4 + 4 + 84 + 8)
            self.assertEqual(reply.opaque(), data, "a READ is cut to what a datagram carries")
            # Version 4 is unavailable by UDP: PROG_MISMATCH, 3 to 3.
            self.assertEqual(self.refused(nfs, NFS, 4, 0), ("accept", 2, words(3, 3)))


if __name__ == "__main__":
    unittest.main()
