"""NFS under TLS (RFC 9289), tested with OpenSSL through Python: the probe, the handshake, READ and WRITE, and
refused clients."""

import os
import pathlib
import ssl
import struct
import subprocess
import tempfile
import unittest

import weft

NFS, MOUNT = 100003, 100005
AUTH_NONE, AUTH_SYS, AUTH_TLS = 0, 1, 7
# auth_stat: bad credential, too weak.
BADCRED, TOOWEAK = 1, 5


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Peer:
    """An RPC client on one connection."""

    def __init__(self, port):
        self.stream = weft.nfs_connection(port)
        self.xid = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def read(self, count):
        data = b""
        while len(data) < count:
            piece = self.stream.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def exchange(self, program, version, procedure, args=b"", flavor=AUTH_SYS):
        """The reply after its xid."""
        self.xid += 1
        body = struct.pack(">2I4s3I", 0, 4, b"test", os.getuid(), os.getgid(), 0) if flavor == AUTH_SYS else b""
        call = struct.pack(">6I", self.xid, 0, 2, program, version, procedure)
        call += struct.pack(">I", flavor) + opaque(body) + bytes(8) + args
        self.stream.sendall(struct.pack(">I", 1 << 31 | len(call)) + call)
        reply, last = b"", False
        while not last:
            mark = struct.unpack(">I", self.read(4))[0]
            last, length = mark >> 31, mark & 0x7FFFFFFF
            reply += self.read(length)
        xid, kind = struct.unpack(">2I", reply[:8])
        assert (xid, kind) == (self.xid, 1)
        return reply[8:]

    def call(self, *what, **how):
        """The results of a call that is accepted and succeeds."""
        reply = self.exchange(*what, **how)
        accepted, _, length = struct.unpack(">3I", reply[:12])
        status = struct.unpack(">I", reply[12 + length : 16 + length])[0]
        assert (accepted, status) == (0, 0), reply
        return reply[16 + length :]

    def denied(self, *what, **how):
        """Why a call is denied: its auth_stat."""
        reply, one, stat = struct.unpack(">3I", self.exchange(*what, **how))
        assert (reply, one) == (1, 1)
        return stat

    def probe(self):
        """Whether the server accepts TLS."""
        reply = self.exchange(NFS, 3, 0, flavor=AUTH_TLS)
        return reply == struct.pack(">3I8sI", 0, AUTH_NONE, 8, b"STARTTLS", 0)

    def start_tls(self, context):
        assert self.probe()
        self.stream = context.wrap_socket(self.stream, server_hostname="127.0.0.1")

    def mount(self, path):
        reply = self.call(MOUNT, 3, 1, opaque(path))
        length = struct.unpack(">I", reply[4:8])[0]
        return reply[8 : 8 + length]

    def lookup(self, folder, name):
        reply = self.call(NFS, 3, 3, opaque(folder) + opaque(name))
        assert reply[:4] == bytes(4), reply
        length = struct.unpack(">I", reply[4:8])[0]
        return reply[8 : 8 + length]

    def data(self, file, offset, count):
        """READ's data: after status, attributes, count and end of file."""
        reply = self.call(NFS, 3, 6, opaque(file) + struct.pack(">QI", offset, count))
        assert reply[:4] == bytes(4), reply
        length = struct.unpack(">I", reply[100:104])[0]
        return reply[104 : 104 + length]


class Tls(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-tls-")))
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                     "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
        for name in ["server", "client"]:
            self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                         f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            (self.work / "names").write_text("subjectAltName=IP:127.0.0.1\n")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                         "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "names")
        self.server_options = ["--nfs-tls-cert", self.work / "server.pem", "--nfs-tls-key", self.work / "server.key"]

    def openssl(self, *arguments):
        weft.run("openssl", *arguments, cwd=self.work)

    def context(self, known=False):
        context = ssl.create_default_context(cafile=self.work / "ca.pem")
        context.set_alpn_protocols(["sunrpc"])
        if known:
            context.load_cert_chain(self.work / "client.pem", self.work / "client.key")
        return context

    def test_a_client_asks_for_tls_and_reads_and_writes_under_it(self):
        with weft.serving(*self.server_options) as server:
            source = weft.random_file(server.folder / "source", (3 << 20) + 5)
            whole = source.read_bytes()
            with Peer(server.ready["nfs_port"]) as peer:
                peer.start_tls(self.context())
                self.assertEqual(peer.stream.version(), "TLSv1.3")
                self.assertEqual(peer.stream.selected_alpn_protocol(), "sunrpc")
                root = peer.mount(b"/data")
                file = peer.lookup(root, b"source")
                read = b""
                while piece := peer.data(file, len(read), 1 << 20):
                    read += piece
                self.assertEqual(read, whole)
                # WRITE, FILE_SYNC.
                data = os.urandom(1 << 20)
                args = opaque(file) + struct.pack(">QII", 77, len(data), 2) + opaque(data)
                self.assertEqual(peer.call(NFS, 3, 7, args)[:4], bytes(4))
                self.assertEqual(source.read_bytes(), whole[:77] + data + whole[77 + len(data) :])
                # A second probe is an error (RFC 9289 4.1).
                self.assertEqual(peer.denied(NFS, 3, 0, flavor=AUTH_TLS), BADCRED)
            # Clients without TLS are served as before, on the same port.
            with Peer(server.ready["nfs_port"]) as peer:
                file = peer.lookup(peer.mount(b"/data"), b"source")
                self.assertEqual(len(peer.data(file, 0, 4096)), 4096)

    def test_an_export_that_wants_tls_keeps_others_out(self):
        options = [*self.server_options, "--export", "data:xprtsec=tls"]
        with weft.serving(*options) as server:
            (server.folder / "file").write_bytes(b"secret")
            port = server.ready["nfs_port"]
            with Peer(port) as peer:
                root = peer.mount(b"/data")
                self.assertEqual(peer.denied(NFS, 3, 3, opaque(root) + opaque(b"file")), TOOWEAK)
                # The other share requires nothing.
                peer.call(NFS, 3, 1, opaque(peer.mount(b"/ram")))
            with Peer(port) as peer:
                peer.start_tls(self.context())
                self.assertEqual(peer.data(peer.lookup(root, b"file"), 0, 100), b"secret")

    def test_an_export_that_wants_to_know_its_clients_asks_for_certificates(self):
        clients = ["--nfs-tls-clients", self.work / "ca.pem"]
        with weft.serving(*self.server_options, *clients, "--export", "data:xprtsec=mtls") as server:
            (server.folder / "file").write_bytes(b"secret")
            port = server.ready["nfs_port"]
            for known in [False, True]:
                with Peer(port) as peer:
                    peer.start_tls(self.context(known))
                    root = peer.mount(b"/data")
                    if known:
                        self.assertEqual(peer.data(peer.lookup(root, b"file"), 0, 100), b"secret")
                    else:
                        self.assertEqual(peer.denied(NFS, 3, 3, opaque(root) + opaque(b"file")), TOOWEAK)

    def test_a_server_without_a_certificate_says_no(self):
        with weft.serving() as server, Peer(server.ready["nfs_port"]) as peer:
            self.assertEqual(peer.denied(NFS, 3, 0, flavor=AUTH_TLS), BADCRED)
            # A request in clear text is refused.
            peer.call(NFS, 3, 0)

    def test_a_broken_handshake_ends_the_connection_alone(self):
        with weft.serving(*self.server_options) as server:
            with Peer(server.ready["nfs_port"]) as peer:
                self.assertTrue(peer.probe())
                peer.stream.sendall(b"GET / HTTP/1.0\r\n\r\n" * 4)
                while peer.stream.recv(4096):
                    pass
            with Peer(server.ready["nfs_port"]) as peer:
                peer.start_tls(self.context())
                peer.call(NFS, 3, 0)

    def test_what_does_not_go_together_is_told(self):
        for options, says in [
            (["--export", "data:xprtsec=tls"], "--nfs-tls-cert"),
            ([*self.server_options, "--export", "data:xprtsec=mtls"], "--nfs-tls-clients"),
            (["--nfs-tls-cert", self.work / "ca.key", "--nfs-tls-key", self.work / "ca.key"], "cannot use TLS with"),
        ]:
            with self.subTest(says=says), self.assertRaisesRegex(RuntimeError, says):
                folder = self.work / "data"
                folder.mkdir(exist_ok=True)
                weft.Server(folder, *options)


if __name__ == "__main__":
    unittest.main()
