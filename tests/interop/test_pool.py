"""The buffers of a server are shared by all of its clients: none of them keeps what others wait for. Each test gives a server few
buffers, has a client do what could take all of them, and lets another one write."""

import pathlib
import struct
import tempfile
import threading
import time
import unittest

import smb3
import weft

BUFFERS = "64M"
LARGE_BYTES = 4 << 20
# More of these than BUFFERS has room for, with what each is decrypted into.
CONNECTIONS = 16
# Requests that wait, each with company that fills a receive buffer of 256 KiB. 64 MiB have room for 256 of them.
WAITING = 300
COMPANY = 20
PADDING = bytes(14_000)


class Sealed(smb3.Link):
    """A link that encrypts with AES-128-GCM once it has logged on ([MS-SMB2] 3.1.4.3)."""

    def begin(self, connected, ciphers=(), **how):
        self.keys = None
        super().begin(connected, [smb3.AES_128_GCM], **how)

    def log_on(self, user, password):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        number, key, preauth = self.authenticate(user, password)
        ours, theirs = (AESGCM(smb3.derived(key, label, preauth)) for label in [b"SMBC2SCipherKey\0", b"SMBS2CCipherKey\0"])
        self.keys, self.nonce = (number, ours, theirs), 0
        return smb3.Session(self, number, None)

    def sealed(self, message):
        number, ours, _ = self.keys
        self.nonce += 1
        rest = struct.pack("<QQIHHQ", self.nonce, 0, len(message), 0, 1, number)
        encrypted = ours.encrypt(rest[:12], message, rest)
        return b"\xfdSMB" + encrypted[-16:] + rest + encrypted[:-16]

    def transmit(self, message):
        super().transmit(self.sealed(message) if self.keys else message)

    def heard(self, message):
        if message[:4] == b"\xfdSMB":
            tag, rest = message[4:20], message[20:52]
            message = self.keys[2].decrypt(rest[:12], message[52:] + tag, rest)
        return super().heard(message)


def writing(file, data, offset=0):
    return struct.pack("<HHIQ16sIIHHI", 49, 112, len(data), offset, file.id, 0, 0, 0, 0, 0) + data


@unittest.skipIf(smb3.spnego is None, "needs pyspnego")
class Buffers(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        pathlib.Path(work.name).chmod(0o755)
        self.share = pathlib.Path(work.name).name
        self.server = weft.Server(work.name, "--buffers", BUFFERS)
        self.addCleanup(self.server.stop)
        self.other = self.connected(smb3.Link)
        self.file = self.other[1].open("other")

    def connected(self, kind):
        """A client's link with its tree, and credits for what it will ask."""
        link = kind(self.server.smb_port)
        session = link.log_on(weft.USER, weft.PASSWORD)
        tree = session.tree(self.share)
        link.ask(smb3.ECHO, smb3.ECHOING, session=session.number, key=session.key, credits=8192)
        return link, tree

    def request(self, tree, command, body, **how):
        session = tree.session
        return session.link.request(command, body, session=session.number, tree=tree.number, key=session.key, **how)

    def check_that_another_client_is_served(self):
        link, tree = self.other
        number, message = self.request(tree, smb3.WRITE, writing(self.file, bytes(60_000)))
        link.transmit(message)
        self.assertEqual(link.answer(number, 20).status, 0)

    def fill_with_requests_that_wait(self, command, body):
        link, tree = self.connected(smb3.Link)
        for _ in range(WAITING):
            company = [self.request(tree, smb3.ECHO, smb3.ECHOING + PADDING) for _ in range(COMPANY)]
            number, message = self.request(tree, command, body(tree))
            link.socket.sendall(b"".join(smb3.framed(bytes) for _, bytes in [*company, (number, message)]))
            for echo, _ in company:
                link.answer(echo)
            link.interim(number)
        self.check_that_another_client_is_served()
        link.close()

    def test_requests_that_wait_for_changes_keep_no_receive_buffer(self):
        def watch(tree):
            # One open has few watches.
            folder = tree.open("", access=smb3.GENERIC_READ, options=smb3.DIRECTORY, how=smb3.OPEN)
            return smb3.watching(folder.id, what=0x10) + PADDING

        self.fill_with_requests_that_wait(smb3.CHANGE_NOTIFY, watch)

    def test_requests_that_wait_for_locks_keep_no_receive_buffer(self):
        holder = self.other[1].open("locked")
        holder.lock(0, 1)
        waiter = None

        def lock(tree):
            nonlocal waiter
            waiter = waiter or tree.open("locked")
            return struct.pack("<HHI16sQQII", 48, 1, 0, waiter.id, 0, 1, 2, 0) + PADDING

        self.fill_with_requests_that_wait(smb3.LOCK, lock)

    def test_encrypted_requests_that_fill_the_pool_are_decrypted_one_after_another(self):
        clients = []
        for n in range(CONNECTIONS):
            link, tree = self.connected(Sealed)
            file = tree.open(f"file{n}")
            number, message = self.request(tree, smb3.WRITE, writing(file, bytes(LARGE_BYTES)), charge=LARGE_BYTES >> 16)
            clients.append((link, number, smb3.framed(link.sealed(message))))

        def send(link, frame):
            link.socket.sendall(frame[:-100])
            # All buffers are taken by messages that are nearly whole.
            time.sleep(1)
            link.socket.sendall(frame[-100:])

        senders = [threading.Thread(target=send, args=[link, frame]) for link, _, frame in clients]
        for sender in senders:
            sender.start()
        for link, number, _ in clients:
            self.assertEqual(link.answer(number, 20).status, 0)
        for sender in senders:
            sender.join()
        self.check_that_another_client_is_served()

    def test_encrypted_answers_that_nobody_reads_leave_room_for_requests(self):
        silent = [self.connected(Sealed) for _ in range(8)]
        link, tree = silent[0]
        big = tree.open("big")
        for at in range(4):
            body = writing(big, bytes(LARGE_BYTES), at * LARGE_BYTES)
            number, message = self.request(tree, smb3.WRITE, body, charge=LARGE_BYTES >> 16)
            link.transmit(message)
            self.assertEqual(link.answer(number).status, 0)
        files = [tree.open("big", how=smb3.OPEN) for _, tree in silent]
        for (link, tree), file in zip(silent, files):
            for at in range(4):
                body = struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, LARGE_BYTES, at * LARGE_BYTES, file.id, 0, 0, 0, 0, 0) + b"\0"
                link.transmit(self.request(tree, smb3.READ, body, charge=LARGE_BYTES >> 16)[1])
        for _ in range(3):
            self.check_that_another_client_is_served()


if __name__ == "__main__":
    unittest.main()
