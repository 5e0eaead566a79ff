"""Finding programs: rpcinfo and showmount query our rpcbind, libnfs needs no ports in its URLs, and we register with
Debian's rpcbind."""

import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import unittest

import weft

PORTS = {"nfs": 2049, "nfs-rdma": 20049, "mountd": 20048}
NFS, MOUNT, RPCBIND, NLM, NSM = 100003, 100005, 100000, 100021, 100024


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
        self.xid = 0

    def call(self, port, program, version, procedure, args=b""):
        self.xid += 1
        with self.peer() as peer:
            head = struct.pack(">6I", self.xid, 0, 2, program, version, procedure)
            # AUTH_SYS with the user that runs the test, and no verifier.
            body = struct.pack(">2I4s3I", 0, 4, b"test", os.getuid(), os.getgid(), 0)
            credential = struct.pack(">2I", 1, len(body)) + body
            peer.sendto(head + credential + bytes(8) + args, ("127.0.0.1", port))
            reply = peer.recv(65536)
        self.sent, self.received = len(head + credential + bytes(8) + args), len(reply)
        xid, kind, accepted, *rest = struct.unpack(">5I", reply[:20])
        self.assertEqual((xid, kind), (self.xid, 1))
        if accepted != 0:
            return "refused", reply[12:]
        return struct.unpack(">I", reply[20:24])[0], reply[24:]

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
        opaque = lambda b: struct.pack(">I", len(b)) + b + bytes(-len(b) % 4)
        with weft.serving("--nfs-udp", "--rpcbind-port", 0) as server:
            (server.folder / "file").write_bytes(bytes(32768))
            nfs, mountd, rpcbind = (server.ready[f"{name}_port"] for name in ["nfs", "mountd", "rpcbind"])
            # AUTH_TOOWEAK, for any handle.
            too_weak = struct.pack(">2I", 1, 5)
            for procedure in range(1, 22):
                status, reply = self.call(nfs, NFS, 3, procedure, opaque(bytes(32)) + struct.pack(">QI", 0, 32768))
                self.assertEqual((procedure, status, reply), (procedure, "refused", too_weak))
            self.assertEqual(self.call(rpcbind, RPCBIND, 2, 4), ("refused", too_weak), "the list")
            self.assertLessEqual(self.received, self.sent)
            # Short answers are sent: NULL, the port of a program, a mount.
            for port, program, version in [(nfs, NFS, 3), (mountd, MOUNT, 3), (rpcbind, RPCBIND, 2), (nfs, NLM, 4)]:
                self.assertEqual(self.call(port, program, version, 0), (0, b""))
            status, reply = self.call(rpcbind, RPCBIND, 2, 3, struct.pack(">4I", NFS, 3, 6, 0))
            self.assertEqual((status, reply), (0, struct.pack(">I", nfs)))
            self.seen(nfs)
            self.assertEqual(self.call(rpcbind, RPCBIND, 2, 4)[0], 0)
            self.assertGreater(self.received, 2 * self.sent)

    def seen(self, port):
        """A call by TCP, after which the address counts as verified."""
        with weft.nfs_connection(port) as peer:
            peer.sendall(struct.pack(">11I", 0x80000028, 7, 0, 2, NFS, 3, 0, 0, 0, 0, 0))
            self.assertEqual(len(peer.recv(100)), 28)

    def test_mount_look_up_read_and_write(self):
        with weft.serving("--nfs-udp") as server:
            self.seen(server.ready["nfs_port"])
            (server.folder / "file").write_bytes(b"0123456789")
            nfs, mountd = server.ready["nfs_port"], server.ready["mountd_port"]
            opaque = lambda b: struct.pack(">I", len(b)) + b + bytes(-len(b) % 4)
            status, reply = self.call(mountd, MOUNT, 3, 1, opaque(b"/data"))
            self.assertEqual((status, reply[:4]), (0, bytes(4)))
            length = struct.unpack(">I", reply[4:8])[0]
            root = reply[8 : 8 + length]
            status, reply = self.call(nfs, NFS, 3, 3, opaque(root) + opaque(b"file"))
            self.assertEqual((status, reply[:4]), (0, bytes(4)))
            length = struct.unpack(">I", reply[4:8])[0]
            file = reply[8 : 8 + length]
            # READ: attributes (4 + 84 bytes), count, end of file, length, data.
            status, reply = self.call(nfs, NFS, 3, 6, opaque(file) + struct.pack(">QI", 3, 100))
            self.assertEqual((status, reply[:4]), (0, bytes(4)))
            self.assertEqual(reply[92:], struct.pack(">3I", 7, 1, 7) + b"3456789\0")
            # WRITE with FILE_SYNC, of more than a packet.
            data = os.urandom(32768)
            args = opaque(file) + struct.pack(">QII", 0, len(data), 2) + opaque(data)
            status, reply = self.call(nfs, NFS, 3, 7, args)
            self.assertEqual((status, reply[:4]), (0, bytes(4)))
            self.assertEqual((server.folder / "file").read_bytes(), data)
            status, reply = self.call(nfs, NFS, 3, 6, opaque(file) + struct.pack(">QI", 0, 1 << 20))
            self.assertEqual(reply[104:], data, "a READ is cut to what a datagram carries")
            # Version 4 is unavailable by UDP: PROG_MISMATCH, 3 to 3.
            status, reply = self.call(nfs, NFS, 4, 0)
            self.assertEqual((status, reply), (2, struct.pack(">2I", 3, 3)))


if __name__ == "__main__":
    unittest.main()
