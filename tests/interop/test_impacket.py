"""impacket, an independent SMB client in Python, also on a network that tampers with its messages."""

import io
import os
import socket
import threading
import unittest

from impacket.smbconnection import SessionError, SMBConnection

import weft


def connect(server, port=None):
    connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=port or server.smb_port)
    connection.login(weft.USER, weft.PASSWORD)
    return connection


class Tamper(threading.Thread):
    """A relay that flips one bit of the `nth` frame from the client after the log-on."""

    def __init__(self, port, nth):
        super().__init__(daemon=True)
        self.port, self.nth = port, nth
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.tampered = False

    @property
    def listening_port(self):
        return self.listener.getsockname()[1]

    def run(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", self.port))
        back = threading.Thread(target=self.pump_back, args=(server, client), daemon=True)
        back.start()
        number = 0
        with client, server:
            while True:
                head = client.recv(4, socket.MSG_WAITALL)
                if len(head) < 4:
                    break
                body = bytearray(client.recv(int.from_bytes(head[1:], "big"), socket.MSG_WAITALL))
                number += 1
                if number == self.nth:
                    body[-1] ^= 1
                    self.tampered = True
                server.sendall(head + bytes(body))
            server.shutdown(socket.SHUT_WR)
            back.join(10)
        self.listener.close()

    @staticmethod
    def pump_back(server, client):
        try:
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other direction ended first.


class Impacket(unittest.TestCase):
    def round(self, server):
        connection = connect(server)
        data = os.urandom(300_000)
        connection.createDirectory("data", "dir")
        connection.putFile("data", "dir\\one", io.BytesIO(data).read)
        names = [entry.get_longname() for entry in connection.listPath("data", "dir\\*")]
        self.assertIn("one", names)
        connection.rename("data", "dir\\one", "dir\\two")
        back = io.BytesIO()
        connection.getFile("data", "dir\\two", back.write)
        self.assertEqual(back.getvalue(), data)
        connection.deleteFile("data", "dir\\two")
        connection.deleteDirectory("data", "dir")
        self.assertEqual(os.listdir(server.folder), [])
        connection.logoff()

    def test_put_get_list_rename_delete(self):
        with weft.serving() as server:
            self.round(server)

    def test_with_signing_required(self):
        with weft.serving("--signing", "required") as server:
            self.round(server)

    def test_with_encryption_required(self):
        with weft.serving("--require-encryption") as server:
            self.round(server)

    def test_wrong_password(self):
        with weft.serving() as server:
            connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.smb_port)
            with self.assertRaises(SessionError) as refused:
                connection.login(weft.USER, "wrong")
            self.assertIn("STATUS_LOGON_FAILURE", str(refused.exception))

    def test_dot_dot_is_refused(self):
        with weft.serving() as server:
            connection = connect(server)
            for name in ["..\\x", "a\\..\\..\\x", "../x"]:
                with self.subTest(name=name), self.assertRaises(SessionError):
                    connection.putFile("data", name, io.BytesIO(b"x").read)
            self.assertEqual(sorted(os.listdir(server.folder.parent)), ["data"])

    def test_a_tampered_packet_is_refused(self):
        """Frames 1 to 3 negotiate and log on; all later ones are signed. Each is tampered with once."""
        with weft.serving("--signing", "required") as server:
            for nth in [4, 5, 6]:
                with self.subTest(nth=nth):
                    relay = Tamper(server.smb_port, nth)
                    relay.start()
                    with self.assertRaises(Exception):
                        connection = connect(server, relay.listening_port)
                        connection.putFile("data", "forged", io.BytesIO(b"payload").read)
                    self.assertTrue(relay.tampered)
            path = server.folder / "forged"
            self.assertTrue(not path.exists() or path.read_bytes() != b"payload")
            self.round_after(server)

    def round_after(self, server):
        """The server still serves others."""
        path = server.folder / "forged"
        path.unlink(missing_ok=True)
        self.round(server)


if __name__ == "__main__":
    unittest.main()
