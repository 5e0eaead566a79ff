"""tshark dissects everything that Weft puts on the wire: no malformed frame, no expert error, good CRCs."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import gss
import test_kerberos as realms
import weft


@unittest.skipUnless(os.geteuid() == 0, "capturing on the loopback interface needs root")
class Tshark(unittest.TestCase):
    # Protocols that tshark cannot infer from the port.
    decode = ()
    # tcpdump delivers its capture once a second, or when its buffer is full.
    options = ()

    def capture(self, ports, work, action):
        """Runs `action` while tcpdump captures the ports; returns the capture file, which tshark can follow.

        A loaded kernel may leave out of a capture a packet that did reach its receiver, without counting it as
        dropped. And two clients one after another may choose the same port below 1024: tshark takes the set-up of the
        second connection for FPDUs of the first. Neither is the sender's fault, so `action` runs once more."""
        for _ in range(3):
            path = self.record(ports, work, action)
            wrong = self.tshark(
                path, "-Y", "tcp.analysis.lost_segment or tcp.analysis.ack_lost_segment or tcp.analysis.reused_ports"
            )
            if not wrong:
                return path
        self.fail(f"three captures lack segments or have two connections of one port, the last one these:\n{wrong[:3000]}")

    def record(self, ports, work, action):
        path = pathlib.Path(work) / "run.pcap"
        expression = " or ".join(f"tcp port {port}" for port in ports)
        # Packets as large as the loopback interface allows; delivered and written immediately: the kernel may keep those of a short action
        # for a second, in which the file does not grow.
        dump = subprocess.Popen(
            ["tcpdump", "-i", "lo", "-s", "0", "-B", "65536", "--immediate-mode", "-U", "-Z", "root", "-w", str(path), *self.options,
             expression],
            stderr=subprocess.PIPE, text=True,
        )
        try:
            line = dump.stderr.readline()
            while "listening" not in line:
                self.assertNotEqual(line, "", "tcpdump ended")
                line = dump.stderr.readline()
            action()
            # tcpdump has seen everything once its file stops growing.
            size = -1
            while path.stat().st_size != size:
                size = path.stat().st_size
                time.sleep(0.3)
        finally:
            dump.terminate()
            said = dump.communicate()[1]
        self.assertIn("0 packets dropped by kernel", said)
        return path

    def tshark(self, path, *arguments):
        # Two passes: in the first one tshark has not yet seen the reply to which an RDMA Write belongs.
        done = weft.run(
            "tshark", "-2", "-r", path, "-o", "tcp.desegment_tcp_streams:TRUE", "-o", "tcp.try_heuristic_first:TRUE",
            *self.decode, *arguments,
        )
        return done.stdout

    def judge(self, path, *expected):
        for wrong in ["_ws.malformed", "_ws.expert.severity == error"]:
            frames = self.tshark(path, "-Y", wrong)
            self.assertEqual(frames.strip(), "", f"{wrong}:\n{frames[:3000]}")
        text = self.tshark(path, "-V")
        self.assertNotIn("Bad CRC", text)
        self.assertNotIn("[Malformed", text)
        for protocol in expected:
            self.assertGreater(
                len(self.tshark(path, "-Y", protocol).splitlines()), 0, f"tshark saw no {protocol} in {path}"
            )
        return text

    def test_smb_direct_over_iwarp(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-client-") as work:
            source = weft.random_file(pathlib.Path(work) / "source", 300_000)
            back = pathlib.Path(work) / "back"

            def action():
                weft.run(weft.WEFT, "cp", "-q", source, server.url("file"), "--transport", "iwarp")
                weft.run(weft.WEFT, "cp", "-q", server.url("file"), back, "--transport", "iwarp")

            path = self.capture([server.ready["smbd_port"]], work, action)
            self.assertTrue(weft.same(source, back))
            text = self.judge(path, "iwarp_mpa", "iwarp_ddp", "iwarp_rdma", "smb_direct", "smb2")
            self.assertIn("(Good CRC32)", text)

    def test_nfs_over_iwarp(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-client-") as work:
            source = weft.random_file(pathlib.Path(work) / "source", 300_000)
            back = pathlib.Path(work) / "back"

            def action():
                weft.run(weft.WEFT, "cp", "-q", source, server.nfs_url("file"), "--transport", "iwarp")
                weft.run(weft.WEFT, "cp", "-q", server.nfs_url("file"), back, "--transport", "iwarp")

            path = self.capture([server.ready["nfs_rdma_port"]], work, action)
            self.assertTrue(weft.same(source, back))
            self.judge(path, "iwarp_mpa", "iwarp_ddp", "iwarp_rdma", "rpcordma", "nfs")

    @unittest.skipUnless(realms.KDC, "no KDC: tests/interop/deps.sh installs it")
    def test_nfs_with_tickets(self):
        realm = realms.realm_for(self)
        work = realm.work
        realm.log_on(weft.USER)
        with weft.serving("--keytab", f"{work}/keytab", "--export", "data:sec=krb5:krb5i:krb5p") as server:
            server.folder.chmod(0o777)
            port = server.ready["nfs_port"]

            def action():
                root, _ = gss.mount(port, "data")
                with gss.connected(port, "nfs@localhost") as rpc:
                    for service in [gss.NONE, gss.INTEGRITY, gss.PRIVACY]:
                        _, file = gss.create(rpc, root, f"file-{service}", service)
                        self.assertEqual(gss.write(rpc, file, b"by ticket", service), 0)
                        self.assertEqual(gss.read(rpc, file, 100, service), b"by ticket")
                    rpc.destroy()

            path = self.capture([port], work, action)
        # With the key of the service it decrypts krb5p as well.
        self.decode = ("-d", f"tcp.port=={port},rpc", "-o", "kerberos.decrypt:TRUE", "-o", f"kerberos.file:{work}/keytab")
        text = self.judge(path, "rpc", "nfs", "spnego-krb5 or gss-api")
        for name in ["file-1", "file-2", "file-3"]:
            self.assertIn(name, text)

    @unittest.skipUnless(realms.KDC, "no KDC: tests/interop/deps.sh installs it")
    def test_our_own_nfs_client_with_tickets(self):
        realm = realms.realm_for(self)
        work = realm.work
        realm.log_on(weft.USER)
        source, back = weft.random_file(work / "source", 100_000), work / "back"
        with weft.serving("--keytab", f"{work}/keytab", "--export", "data:sec=krb5:krb5i:krb5p") as server:
            server.folder.chmod(0o777)
            port = server.ready["nfs_port"]

            def action():
                for version in ["3", "4.1"]:
                    for sec in ["krb5", "krb5i", "krb5p"]:
                        url = f"nfs://localhost:{port}/data/file-{version}-{sec}?vers={version}&sec={sec}"
                        weft.run(weft.WEFT, "cp", "-q", source, url, "--transport", "tcp")
                        weft.run(weft.WEFT, "cp", "-q", url, back, "--transport", "tcp")
                        self.assertTrue(weft.same(source, back))

            path = self.capture([port], work, action)
        self.decode = ("-d", f"tcp.port=={port},rpc", "-o", "kerberos.decrypt:TRUE", "-o", f"kerberos.file:{work}/keytab")
        text = self.judge(path, "rpc", "nfs", "spnego-krb5 or gss-api")
        for version in ["3", "4.1"]:
            for sec in ["krb5", "krb5i", "krb5p"]:
                self.assertIn(f"file-{version}-{sec}", text)
        # Without the key, what krb5p carries cannot be read.
        plain = self.tshark(path, "-V", "-o", "kerberos.decrypt:FALSE")
        self.assertNotIn("file-3-krb5p", plain)
        self.assertNotIn("file-4.1-krb5p", plain)
        self.assertIn("file-3-krb5i", plain)
        # Every context is ended (RPCSEC_GSS_DESTROY).
        kinds = self.tshark(path, "-T", "fields", "-e", "rpc.authgss.procedure", "-Y", "rpc.msgtyp == 0").split()
        self.assertEqual((kinds.count("1"), kinds.count("3")), (12, 12), kinds)

    def test_what_passes_by_shared_memory_as_the_server_captures_it(self):
        with tempfile.TemporaryDirectory(prefix="weft-client-") as work:
            path = pathlib.Path(work) / "run.pcap"
            source = weft.random_file(pathlib.Path(work) / "source", 300_000)
            back = pathlib.Path(work) / "back"
            with weft.serving("--pcap", path) as server:
                for url in [server.url("one"), server.nfs_url("two")]:
                    weft.run(weft.WEFT, "cp", "-q", source, url, "--transport", "shm")
                    weft.run(weft.WEFT, "cp", "-q", url, back, "--transport", "shm")
                    self.assertTrue(weft.same(source, back))
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            text = self.judge(path, "iwarp_mpa", "iwarp_ddp", "iwarp_rdma", "smb_direct", "smb2", "rpcordma", "nfs")
            self.assertIn("(Good CRC32)", text)
            # One-sided in both directions, by either protocol: the server fetches written data and places read data.
            for opcode in ["0x00", "0x01", "0x02"]:
                self.assertTrue(self.tshark(path, "-Y", f"iwarp_rdma.opcode == {opcode}"), opcode)

    def test_smb_over_tcp(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-client-") as work:
            # On a port other than 445, tshark takes the message length as 17 bits (RFC 1002 4.3.1), and misinterprets
            # the bytes after a longer message.
            source = weft.random_file(pathlib.Path(work) / "source", 100_000)

            def action():
                weft.smbclient(server, f"put {source} file; ls; get file {work}/back; del file")

            path = self.capture([server.smb_port], work, action)
            text = self.tshark(path, "-d", f"tcp.port=={server.smb_port},nbss", "-V", "-Y", "nbss")
            self.assertNotIn("[Malformed", text)
            self.assertIn("SMB2", text)


if __name__ == "__main__":
    unittest.main()
