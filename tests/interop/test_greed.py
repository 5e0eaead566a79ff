"""Resources that one client can tie up in the server, and one server in a client: descriptors, files elsewhere, the
terminal."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import nfs4
import oncrpc
import weft
from oncrpc import MOUNT, NFS, NLM, opaque, words


class HostileNfs:
    """An NFSv3 server that a test controls: `names` of the root, each a file unless its handle begins with d."""

    def __init__(self, names, size=5):
        self.names, self.size = names, size
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def url(self, path=""):
        return f"nfs://127.0.0.1:{self.port}/x/{path}?vers=3&mountport={self.port}"

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        # The client hangs up when it has received enough.
        with contextlib.suppress(OSError), peer, peer.makefile("rb") as file:
            while head := file.read(4):
                message = file.read(struct.unpack(">I", head)[0] & 0x7FFF_FFFF)
                xid, _, _, program, _, procedure, _, length = struct.unpack(">8I", message[:32])
                args = message[32 + length + -length % 4 + 8:]
                answer = words(xid, 1, 0, 0, 0, 0) + self.answer(program, procedure, args)
                peer.sendall(oncrpc.record(answer))

    def attributes(self, handle):
        kind = 2 if handle.startswith(b"d") else 1
        return words(kind, 0o755, 1, 0, 0) + struct.pack(">QQQQQ", self.size, self.size, 0, 1, 1) + words(1, 0, 1, 0, 1, 0)

    def answer(self, program, procedure, args):
        if program == MOUNT:
            return words(0) + opaque(b"d-root") + words(1, 1) if procedure == 1 else b""
        if procedure == 0:
            return b""
        length = struct.unpack(">I", args[:4])[0]
        handle, rest = args[4:4 + length], args[4 + length + -length % 4:]
        post = words(1) + self.attributes(handle)
        if procedure == 1:
            return words(0) + self.attributes(handle)
        if procedure == 3:
            name = rest[4:4 + struct.unpack(">I", rest[:4])[0]]
            found = self.names.get(handle, {}).get(name)
            return words(2, 0) if found is None else words(0) + opaque(found) + words(1) + self.attributes(found) + post
        if procedure == 6:
            data = b"EVIL!"[struct.unpack(">Q", rest[:8])[0]:]
            return words(0) + post + words(len(data), 1) + opaque(data)
        if procedure == 17:
            entries = b""
            for at, (name, found) in enumerate(self.names.get(handle, {}).items()):
                entries += words(1) + struct.pack(">Q", 9) + opaque(name) + struct.pack(">Q", at + 3)
                entries += words(1) + self.attributes(found) + words(1) + opaque(found)
            return words(0) + post + bytes(8) + entries + words(0, 1)
        if procedure == 19:
            return words(0) + post + words(65536, 65536, 4096, 65536, 65536, 4096, 65536) + bytes(16) + words(0x1B)
        return words(10004, 0, 0)


class Greed(unittest.TestCase):
    def descriptors(self, server):
        return len(list(pathlib.Path(f"/proc/{server.ready['pid']}/fd").iterdir()))

    @unittest.skipUnless(os.geteuid() == 0, "listens at port 111")
    def test_a_host_that_takes_no_answers_of_its_lock_manager_holds_few_descriptors(self):
        # The peer need not be allowed by any export.
        with weft.serving("--export", "data:net=192.0.2.0/24") as server:
            with socket.create_server(("127.0.0.9", 111), backlog=1024):
                before = self.descriptors(server)
                peer = self.enterContext(oncrpc.Connection(server.ready["nfs_port"], "127.0.0.9"))
                lock = opaque(b"box") + opaque(bytes(40)) + opaque(b"owner") + words(1) + struct.pack(">QQ", 0, 1)
                for _ in range(500):
                    peer.call(NLM, 4, 6, opaque(b"cookie") + words(1) + lock)
                self.assertLess(self.descriptors(server), before + 40)

    def test_a_client_that_says_again_where_it_is_called_has_one_connection(self):
        with weft.serving() as server, socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            port = listener.getsockname()[1]
            address = f"127.0.0.1.{port >> 8}.{port & 255}".encode()
            peer = self.enterContext(oncrpc.Connection(server.ready["nfs_port"]))

            def compound(op):
                return peer.call(NFS, 4, 1, nfs4.compound(0, op)).rest()

            call = words(35) + b"verifier" + opaque(b"greedy") + words(0x4000_0000) + opaque(b"tcp") + opaque(address)
            answer = compound(call + words(1))
            self.assertEqual(answer[:4], words(0))
            before = self.descriptors(server)
            for _ in range(500):
                self.assertEqual(compound(words(36) + answer[20:36])[:4], words(0))
            deadline = time.monotonic() + 10
            while self.descriptors(server) > before + 5 and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertLessEqual(self.descriptors(server), before + 5)

    @unittest.skipUnless(os.geteuid() == 0, "the kernel decides who may read, which needs root")
    def test_after_a_restart_nobody_takes_back_what_he_never_had(self):
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / "data"
            folder.mkdir()
            for name, mode in [("own", 0o666), ("secret", 0o600)]:
                (folder / name).write_text("for root alone")
                (folder / name).chmod(mode)
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            command = [
                weft.WEFT, "serve", folder, "--user", weft.USER, "--json", "--state-dir", f"{work}/state", "--smb-port", 0,
                "--smbd-port", 0, "--nfs-port", port,
            ]
            server = weft.Process(command, f"{work}/log")
            try:
                # A client with an open file, and a handle that root squashing does not let it read: root is nobody
                # here.
                client = nfs4.Client(port, "greedy")
                self.assertEqual(client.open("data", "own", 3, 0)[0], "ok")
                handles = {}
                for name in ["own", "secret"]:
                    reply = client.run(*client.walk("data", name), nfs4.words(nfs4.GETFH))
                    client.check(reply, nfs4.PUTROOTFH), client.check(reply, nfs4.LOOKUP), client.check(reply, nfs4.LOOKUP)
                    client.check(reply, nfs4.GETFH)
                    handles[name] = reply.opaque()
                server.crash()
                server.start()
                again = nfs4.Client(port, "greedy", reclaims=True)
                for name, wanted in [("secret", "ACCESS"), ("own", "ok")]:
                    back = nfs4.words(0, 3, 0) + bytes(8) + nfs4.opaque(b"o") + nfs4.words(0, 1, 0)
                    self.assertEqual(again.on(handles[name], nfs4.OPEN, back)[1], wanted, name)
            finally:
                server.stop()

    @unittest.skipUnless(os.geteuid() == 0, "the kernel decides who may read, which needs root")
    def test_who_may_read_a_folder_and_not_enter_it_gets_names_alone(self):
        with weft.serving("--export", "data:root_squash") as server:
            folder = server.folder / "folder"
            folder.mkdir()
            (folder / "inner").write_text("inside")
            folder.chmod(0o744)
            peer = self.enterContext(oncrpc.Connection(server.ready["nfs_port"]))
            found = peer.lookup(peer.mount(b"/data"), b"folder")
            listed = peer.call(NFS, 3, 17, opaque(found) + bytes(16) + words(4096, 8192)).rest()
            # After the padded name and the cookie: neither attributes nor a handle.
            at = listed.index(b"inner") + 8 + 8
            self.assertEqual((listed[:4], listed[at:at + 8]), (words(0), words(0, 0)))
            client = nfs4.Client(server.ready["nfs_port"], "names")
            args = bytes(16) + words(4096, 8192, 1, 1 << 1 | 1 << 4 | 1 << 19 | 1 << 20)
            reply = client.run(*client.walk("data", "folder"), words(nfs4.READDIR) + args)
            client.check(reply, nfs4.PUTROOTFH), client.check(reply, nfs4.LOOKUP), client.check(reply, nfs4.LOOKUP)
            client.check(reply, nfs4.READDIR)
            at = reply.data.index(b"inner") + 8
            self.assertEqual(reply.data[at:at + 8], words(1, 1 << 1 | 1 << 20))

    def test_a_server_that_has_no_memory_for_a_buffer_does_not_say_that_it_is_ready(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (96 << 20, 96 << 20))

        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "data").mkdir()
            command = [str(weft.WEFT), "serve", f"{folder}/data", "--json", "--cores", "1", "--smb-port", "0", "--smbd-port", "0"]
            environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_STATE_DIR=f"{folder}/state")
            done = subprocess.run(
                command, capture_output=True, env=environment, preexec_fn=limit, stdin=subprocess.DEVNULL, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertIn("no memory for the first buffers", done.stderr)

    def test_a_server_that_has_too_few_descriptors_does_not_say_that_it_is_ready(self):
        # A server for NBD alone is counted as well. 20 are too few even for the cores.
        for few in (64, 20):
            def limit():
                resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))

            for nbd in (False, True):
                with self.subTest(few=few, nbd=nbd), tempfile.TemporaryDirectory() as folder:
                    served = [folder, "--smb-port", "0", "--smbd-port", "0"]
                    state = f"{folder}/state"
                    if nbd:
                        weft.run(weft.WEFT, "volume", "create", "vol", "--size", "64M", "--file", f"{folder}/vol.img", "--state-dir", state)
                        served = ["--volume", "vol", "--nbd-port", "0", "--state-dir", state]
                    environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_STATE_DIR=state)
                    process = subprocess.Popen(
                        [str(weft.WEFT), "serve", "--json", *served], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                        preexec_fn=limit, stdin=subprocess.DEVNULL, text=True)
                    ready = process.stdout.readline()
                    process.terminate()
                    out, said = process.communicate(timeout=60)
                    self.assertEqual(ready + out, "", said)
                    self.assertEqual(process.returncode, 1, said)
                    self.assertIn(f"may open {few} files", said)
                    self.assertRegex(said, r"needs at least \d+: raise the limit with `ulimit -n 1024`")
                    self.assertIn("LimitNOFILE=1024", said)

    def test_who_opens_all_that_he_can_keeps_nobody_from_logging_on(self):
        from impacket.smbconnection import SMBConnection

        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))

        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as work:
            command = [str(weft.WEFT), "serve", folder, "--user", weft.USER, "--json", "--smb-port", "0", "--smbd-port", "0"]
            environment = dict(os.environ, WEFT_PASSWORD=weft.PASSWORD, WEFT_STATE_DIR=f"{work}/state")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, preexec_fn=limit, text=True)
            try:
                port, share = json.loads(process.stdout.readline())["smb_port"], pathlib.Path(folder).name
                first = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=port)
                first.login(weft.USER, weft.PASSWORD)
                tree, opened = first.connectTree(share), 0
                with self.assertRaises(Exception):
                    while opened < 1000:
                        first.createFile(tree, f"f{opened}")
                        opened += 1
                # A quarter of 600 is for open files of SMB, and half of that for one client; each takes two.
                self.assertTrue(30 < opened <= 38, opened)
                # A client from another address lists, opens and reads.
                second = SMBConnection("::1", "::1", sess_port=port)
                second.login(weft.USER, weft.PASSWORD)
                self.assertGreaterEqual(len(second.listPath(share, "*")), opened)
                for n in range(10):
                    (pathlib.Path(folder) / f"other{n}").touch()
                tree = second.connectTree(share)
                self.assertTrue(all(second.openFile(tree, f"other{n}") for n in range(10)))
            finally:
                process.terminate()
                process.wait(30)
                process.stdout.close()

    def test_clients_of_many_addresses_that_do_not_read_keep_no_listing_waiting_for_long(self):
        self.enterContext(weft.own_network())
        server = self.enterContext(weft.serving("--buffers", "64M"))
        (server.folder / "long").mkdir()
        for number in range(2000):
            (server.folder / "long" / f"{number:0250}").touch()
        readdir = nfs4.words(nfs4.READDIR) + bytes(16) + nfs4.words(60_000, 60_000, 1, 0x18)

        def calls(count, listings):
            operations = [*nfs4.Client.walk("data", "long"), *[readdir] * listings]
            for xid in range(count):
                yield oncrpc.record(nfs4.compound_call(xid, 0, *operations))

        def connected(address):
            return weft.nfs_connection(server.ready["nfs_port"], address)

        # Answers may hold 32 MiB, and 16 MiB per address. Each of these connections holds one answer of 1 MiB and has
        # another waiting.
        for number in range(60):
            peer = self.enterContext(connected(f"127.1.0.{number % 12 + 1}"))
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                peer.send(b"".join(calls(100, 15)))
        # Until they hold all that they can get, or are disconnected.
        time.sleep(3)
        begun = time.monotonic()
        with oncrpc.Connection(server.ready["nfs_port"]) as reader:
            status = None
            # A client that is told to wait asks again.
            while status in (None, "DELAY") and time.monotonic() - begun < 20:
                call = nfs4.compound_call(next(reader.xids), 0, *nfs4.Client.walk("data", "long"), readdir)
                reply = reader.exchange(call).accepted()
                status = nfs4.STATUS.get(number := reply.word(), number)
        self.assertEqual(status, "ok")
        self.assertGreater(len(reply.rest()), 4096)
        # TCP disconnects them after 60 s.
        self.assertLess(time.monotonic() - begun, 20)

    def test_requests_that_are_refused_do_not_fill_the_log(self):
        from impacket.smbconnection import SMBConnection

        with weft.serving() as server:
            peer = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.smb_port)
            peer.login(weft.USER, weft.PASSWORD)
            before = server.log_text().count("\n")
            for _ in range(1000):
                try:
                    peer.getSMBServer().connectTree("data")
                    peer.getSMBServer()._Session["TreeConnectTable"].clear()
                except Exception:
                    pass
            self.assertLess(server.log_text().count("\n") - before, 150)

    def test_a_server_cannot_write_outside_of_the_target(self):
        names = {
            b"d-root": {b"link": b"d-sub", b"file": b"f1", b"plain": b"f2"},
            b"d-sub": {b"precious": b"f3", b"new": b"f4"},
        }
        with HostileNfs(names) as server, tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            target, outside = work / "target", work / "outside"
            target.mkdir(), outside.mkdir()
            (outside / "precious").write_text("mine")
            (work / "file").write_text("mine")
            (target / "link").symlink_to(outside)
            (target / "file").symlink_to(work / "file")
            for options in [[], ["--dry-run"]]:
                done = weft.run(weft.WEFT, "sync", *options, server.url(), target, check=False)
                self.assertNotEqual(done.returncode, 0)
            self.assertEqual([p.name for p in outside.iterdir()], ["precious"])
            self.assertEqual(((outside / "precious").read_text(), (work / "file").read_text()), ("mine", "mine"))
            self.assertEqual((target / "plain").read_text(), "EVIL!")

    def test_a_folder_that_becomes_a_link_while_it_is_copied_to_leads_nowhere(self):
        """A user with write access to the target replaces what sync has listed there by links to another user's
        folder."""
        names = {b"d-root": {b"a": b"f1", b"d": b"d-d", b"made": b"d-made"}, b"d-d": {b"profile": b"f2"}, b"d-made": {b"new": b"f3"}}
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            target, victim = work / "target", work / "victim"
            for folder in [target / "d", target / "gone", victim]:
                folder.mkdir(parents=True)
            for precious in [target / "d" / "profile", target / "gone" / "passwd", victim / "profile", victim / "passwd"]:
                precious.write_text("mine")

            class Swapping(HostileNfs):
                swaps = []

                def answer(self, program, procedure, args):
                    while procedure == 6 and self.swaps:
                        folder = target / self.swaps.pop()
                        folder.rename(work / f"moved-{len(list(work.iterdir()))}")
                        folder.symlink_to(victim)
                    return super().answer(program, procedure, args)

            with Swapping(names) as server:
                server.swaps = ["d", "made"]
                done = weft.run(weft.WEFT, "sync", "--delete", "--files", "1", server.url(), target, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                for name in ["d/profile", "made/new"]:
                    self.assertIn(f"{target}/{name}: this name is a symbolic link here", done.stderr)
                self.assertEqual((target / "gone" / "passwd").read_text(), "mine")
                # Files are only deleted once everything has arrived.
                for name in ["d", "made"]:
                    (target / name).unlink()
                server.names = {b"d-root": {b"b": b"f1"}}
                server.swaps = ["gone"]
                done = weft.run(weft.WEFT, "sync", "--delete", "--files", "1", server.url(), target, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"{target}/gone/passwd: this name is a symbolic link here", done.stderr)
            self.assertEqual({p.name: p.read_text() for p in victim.iterdir()}, {"profile": "mine", "passwd": "mine"})

    def test_a_file_that_becomes_a_link_before_it_is_sent_is_not_sent(self):
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            source, private = work / "source", work / "private"
            (source / "d").mkdir(parents=True), private.mkdir()
            for path in [source / "notes", source / "d" / "notes", private / "notes"]:
                path.write_text("notes")

            class Swapping(HostileNfs):
                called = set()

                def answer(self, program, procedure, args):
                    # When the target is listed, the source has been listed already.
                    if procedure == 17 and not (source / "d").is_symlink():
                        (source / "notes").unlink(), (source / "d").rename(work / "moved")
                        (source / "notes").symlink_to(private / "notes"), (source / "d").symlink_to(private)
                    self.called.add((program, procedure))
                    return super().answer(program, procedure, args)

            with Swapping({b"d-root": {b"d": b"d-d"}}) as server:
                done = weft.run(weft.WEFT, "sync", source, server.url(), check=False)
            self.assertEqual(done.returncode, 1)
            for path in ["notes", "d/notes"]:
                self.assertIn(f"{source}/{path}: this name is a symbolic link here", done.stderr)
            self.assertNotIn((NFS, 8), server.called, "CREATE")

    def test_names_do_nothing_to_the_terminal(self):
        hostile = b"\x1b]0;owned\x07\x1b[2J\r\xc2\x9b31m"
        with HostileNfs({b"d-root": {hostile: b"f1", b"two\nlines": b"f2"}}) as server:
            for command in [["ls"], ["ls", "--json"], ["sync", "--dry-run"]]:
                target = ["/nonexistent"] if command[0] == "sync" else []
                said = weft.run(weft.WEFT, *command, server.url(), *target)
                text = said.stdout + said.stderr
                self.assertNotRegex(text, "[\x00-\x08\x0b-\x1f\x7f-\x9f]")
                self.assertIn("u001b[2J", text)
                self.assertNotIn("two\nlines", text)

    def test_a_file_that_ends_too_soon_ends_the_copy(self):
        with HostileNfs({b"d-root": {b"f": b"f1"}}, size=(1 << 64) - 1) as server:
            done = weft.run(weft.WEFT, "cat", server.url("f"), check=False, timeout=20)
            self.assertEqual((done.returncode, done.stdout), (1, "EVIL!"))

    def test_a_copy_is_not_written_into_a_file_of_somebody_else(self):
        if os.geteuid() != 0:
            self.skipTest("needs another user")
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            (server.folder / "f").write_text("for me alone")
            draft = pathlib.Path(work) / ".f.weft-partial"
            draft.write_text("")
            os.chown(draft, 65534, 65534)
            target = pathlib.Path(work) / "f"
            done = weft.run(weft.WEFT, "cp", "-q", server.url("f"), target, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("another user has created this file", done.stderr)
            self.assertFalse(target.exists())
            self.assertEqual(draft.read_text(), "")

    def test_a_server_that_asks_for_an_old_dialect_is_shown_no_proof_of_a_password(self):
        """In 2.1 the server need not prove that it knows the password, so files would go to an impostor."""
        commands = []
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve():
                peer, _ = listener.accept()
                with contextlib.suppress(OSError), peer, peer.makefile("rb") as file:
                    while head := file.read(4):
                        request = file.read(struct.unpack(">I", head)[0])
                        commands.append(struct.unpack("<H", request[12:14])[0])
                        header = request[:14] + struct.pack("<HI", 1, 1) + request[20:64]
                        body = struct.pack("<HHHH", 65, 1, 0x0210, 0) + bytes(16)
                        body += struct.pack("<IIII", 4, 1 << 20, 1 << 20, 1 << 20) + bytes(16) + struct.pack("<HHI", 128, 0, 0)
                        peer.sendall(struct.pack(">I", len(header) + len(body)) + header + body)

            threading.Thread(target=serve, daemon=True).start()
            url = f"smb://{weft.USER}@127.0.0.1:{listener.getsockname()[1]}/data/f"
            done = weft.run(weft.WEFT, "cp", "/etc/hostname", url, check=False, timeout=40)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--min-dialect", done.stderr)
        self.assertEqual(set(commands), {0})


if __name__ == "__main__":
    unittest.main()
