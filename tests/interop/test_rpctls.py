"""NFS under TLS (RFC 9289), tested with OpenSSL through Python: the probe, the handshake, READ and WRITE, and
refused clients."""

import os
import pathlib
import ssl
import struct
import tempfile
import unittest

import oncrpc
import weft
from oncrpc import AUTH_NONE, AUTH_TLS, NFS, opaque, words

# auth_stat: bad credential, too weak.
BADCRED, TOOWEAK = 1, 5
ASK_FOR_TLS = words(AUTH_TLS, 0)


class Peer(oncrpc.Connection):
    def denied(self, *what, **how):
        """Why a call is denied: its auth_stat."""
        try:
            self.call(*what, **how)
        except oncrpc.Refused as refused:
            kind, stat, rest = refused.args
            assert (kind, rest) == ("auth", b"")
            return stat
        raise AssertionError("the call was carried out")

    def probe(self):
        """Whether the server accepts TLS."""
        reply = self.call(NFS, 3, 0, credential=ASK_FOR_TLS)
        return (reply.verifier, reply.rest()) == ((AUTH_NONE, b"STARTTLS"), b"")

    def start_tls(self, context):
        assert self.probe()
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def data(self, file, offset, count):
        """READ's data."""
        reply = self.call(NFS, 3, 6, opaque(file) + struct.pack(">QI", offset, count))
        assert reply.word() == 0
        # Attributes, count and end of file.
        reply.take(4 + 84 + 8)
        return reply.opaque()


class WithKeys(unittest.TestCase):
    """Has certificates of an authority, for the server and a client."""

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


class Tls(WithKeys):
    def test_a_client_asks_for_tls_and_reads_and_writes_under_it(self):
        with weft.serving(*self.server_options) as server:
            source = weft.random_file(server.folder / "source", (3 << 20) + 5)
            whole = source.read_bytes()
            with Peer(server.ready["nfs_port"]) as peer:
                peer.start_tls(self.context())
                self.assertEqual(peer.socket.version(), "TLSv1.3")
                self.assertEqual(peer.socket.selected_alpn_protocol(), "sunrpc")
                root = peer.mount(b"/data")
                file = peer.lookup(root, b"source")
                read = b""
                while piece := peer.data(file, len(read), 1 << 20):
                    read += piece
                self.assertEqual(read, whole)
                # WRITE, FILE_SYNC.
                data = os.urandom(1 << 20)
                args = opaque(file) + struct.pack(">QII", 77, len(data), 2) + opaque(data)
                self.assertEqual(peer.call(NFS, 3, 7, args).word(), 0)
                self.assertEqual(source.read_bytes(), whole[:77] + data + whole[77 + len(data) :])
                # A second probe is an error (RFC 9289 4.1).
                self.assertEqual(peer.denied(NFS, 3, 0, credential=ASK_FOR_TLS), BADCRED)
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
            self.assertEqual(peer.denied(NFS, 3, 0, credential=ASK_FOR_TLS), BADCRED)
            # A request in clear text is refused.
            peer.call(NFS, 3, 0)

    def test_a_broken_handshake_ends_the_connection_alone(self):
        with weft.serving(*self.server_options) as server:
            with Peer(server.ready["nfs_port"]) as peer:
                self.assertTrue(peer.probe())
                peer.socket.sendall(b"GET / HTTP/1.0\r\n\r\n" * 4)
                while peer.socket.recv(4096):
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
