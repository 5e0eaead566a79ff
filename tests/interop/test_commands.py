"""weft ls, cat, put, stat, sync and cp -r, on Weft's own server and on Debian's smbd."""

import contextlib
import filecmp
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import weft

SMB_CONF = """
[global]
  workgroup = TEST
  server role = standalone server
  interfaces = 127.0.0.1
  bind interfaces only = yes
  smb ports = {port}
  disable netbios = yes
  load printers = no
  log file = {state}/log
  private dir = {state}/private
  lock directory = {state}/lock
  state directory = {state}/state
  cache directory = {state}/cache
  pid directory = {state}/pid
  ncalrpc dir = {state}/ncalrpc
  map to guest = bad user
[data]
  comment = a folder of smbd's
  path = {data}
  read only = no
  force user = root
[sealed]
  path = {data}
  read only = no
  force user = root
  browseable = no
  smb encrypt = required
"""


class Smbd:
    """Debian's smbd with a configuration and state of its own. Its user is one that every host has."""

    user = "nobody"

    def __init__(self, work):
        self.folder = work / "data"
        state = work / "state"
        for folder in ["private", "lock", "state", "cache", "pid", "ncalrpc"]:
            (state / folder).mkdir(mode=0o700, parents=True)
        self.folder.mkdir()
        self.port, self.log = weft.free_port(), state / "log"
        self.conf = conf = state / "smb.conf"
        conf.write_text(SMB_CONF.format(port=self.port, state=state, data=self.folder))
        subprocess.run(
            ["smbpasswd", "-c", conf, "-s", "-a", self.user], input=f"{weft.PASSWORD}\n" * 2, text=True, check=True,
            capture_output=True,
        )
        self.process = subprocess.Popen(
            ["/usr/sbin/smbd", "--foreground", "--no-process-group", "-s", conf],
            # When smbd ends it ends its whole process group, which would be ours.
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.05)
        # It listens before it is ready: once, on a busy machine, it answered the first log-on with NO_MEMORY.
        ask = ["smbclient", "//127.0.0.1/data", "-p", str(self.port), "-U", f"{self.user}%{weft.PASSWORD}", "-c", "ls"]
        end = time.monotonic() + 30
        while (said := subprocess.run(ask, capture_output=True, text=True)).returncode:
            if time.monotonic() > end:
                raise RuntimeError(said.stdout + said.stderr)
            time.sleep(0.2)

    def url(self, path="", share="data"):
        return f"smb://{self.user}@127.0.0.1:{self.port}/{share}/{path}"

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        # Its pipe servers have sessions of their own and outlive it by minutes.
        mark = f"--configfile={self.conf}".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if mark in (process / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGTERM)


class Relay(threading.Thread):
    """Relays one connection, and cuts it after so many bytes from the client."""

    def __init__(self, port, cut_after):
        super().__init__(daemon=True)
        self.port, self.left, self.carried = port, cut_after, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.start()

    def run(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", self.port))
        threading.Thread(target=self.back, args=(server, client), daemon=True).start()
        while self.carried < self.left:
            data = client.recv(1 << 20)
            if not data:
                break
            self.carried += len(data)
            server.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.listener.close()

    @staticmethod
    def back(server, client):
        # The other direction ends both.
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)


def make_tree(root):
    """Files large and small, empty ones, folders in folders, names beyond ASCII."""
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "nothing in it").mkdir()
    weft.random_file(root / "large", (5 << 20) + 3)
    weft.random_file(root / "sub" / "small", 10)
    weft.random_file(root / "sub" / "empty", 0)
    weft.random_file(root / "sub" / "deeper" / "Grüße 漢字 😀", 70_000)
    for i in range(40):
        weft.random_file(root / "sub" / f"many-{i}", i * 100)
    os.utime(root / "large", (1_000_000_000, 1_000_000_000))


def same_tree(a, b):
    """Whether two folders have the same content."""
    compared = filecmp.dircmp(a, b)
    return not (
        compared.left_only or compared.right_only or compared.diff_files or compared.funny_files
    ) and all(same_tree(a / name, b / name) for name in compared.common_dirs)


class Commands(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory(prefix="weft-commands-")
        self.addCleanup(work.cleanup)
        self.work = pathlib.Path(work.name)
        self.source = self.work / "source"
        self.source.mkdir()
        make_tree(self.source)

    def json(self, *command, **more):
        return json.loads(weft.run(weft.WEFT, *command, "--json", **more).stdout)

    def round(self, url, share_url, folder, remark, *options):
        """Every command once."""
        run = lambda *command, **more: weft.run(weft.WEFT, *command, *options, **more)
        # To a folder that does not exist yet, inside another that does not.
        done = self.json("sync", "-q", self.source, url("a/b"), *options)
        self.assertEqual((done["copied"], done["unchanged"], done["failed"]), (44, 0, []))
        self.assertTrue(same_tree(self.source, folder / "a" / "b"))
        self.assertEqual((folder / "a" / "b" / "large").stat().st_mtime, 1_000_000_000)
        # Again: nothing to do. One file changed: only that one is copied.
        self.assertEqual(self.json("sync", "-q", self.source, url("a/b"), *options)["copied"], 0)
        weft.random_file(self.source / "sub" / "small", 11)
        (self.source / "sub" / "many-7").unlink()
        said = run("sync", "-q", "-n", "--delete", self.source, url("a/b")).stdout
        self.assertIn("copy       sub/small (11 bytes)", said)
        self.assertIn("delete     sub/many-7", said)
        done = self.json("sync", "-q", "--delete", self.source, url("a/b"), *options)
        self.assertEqual((done["copied"], done["deleted"]), (1, 1))
        self.assertTrue(same_tree(self.source, folder / "a" / "b"))
        # Back, twice: as a folder's content, and as a folder.
        done = self.json("sync", "-q", url("a/b"), self.work / "back", *options)
        self.assertEqual(done["copied"], 43)
        self.assertTrue(same_tree(self.source, self.work / "back"))
        (self.work / "into").mkdir()
        run("cp", "-q", "-r", url("a/b"), self.work / "into")
        self.assertTrue(same_tree(self.source, self.work / "into" / "b"))
        # One file by itself.
        stat = self.json("stat", url("a/b/large"), *options)
        self.assertEqual((stat["size"], stat["folder"]), ((5 << 20) + 3, False))
        self.assertEqual(stat["modified"], "2001-09-09T01:46:40Z")
        listed = self.json("ls", url("a/b/sub/deeper"), *options)
        self.assertEqual([(entry["name"], entry["size"]) for entry in listed], [("Grüße 漢字 😀", 70_000)])
        self.assertIn({"share": "data", "remark": remark}, self.json("ls", share_url, *options))
        out = subprocess.run(
            [weft.WEFT, "cat", url("a/b/large"), *options], check=True, capture_output=True,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        ).stdout
        self.assertEqual(out, (self.source / "large").read_bytes())
        subprocess.run(
            [weft.WEFT, "put", url("put"), *options], check=True, input=out * 2,
            env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD),
        )
        self.assertEqual((folder / "put").read_bytes(), out * 2)
        # Failures name their cause.
        for command, reason in [
            (("stat", url("no/thing")), "no such file or folder"),
            (("cat", url("a/b")), "folder"),
            (("cp", url("a/b"), self.work / "x"), "-r"),
            (("ls", url("", share="none")), "share"),
        ]:
            failed = run(*command, check=False)
            self.assertEqual(failed.returncode, 1, failed.stdout)
            self.assertIn(reason, failed.stderr)
        for name in ["back", "into"]:
            shutil.rmtree(self.work / name)

    def test_on_our_own_server(self):
        for transport in ["tcp", "iwarp", "shm"]:
            with self.subTest(transport=transport), weft.serving() as server:
                base = f"smb://{weft.USER}@127.0.0.1:{server.smb_port}"
                self.round(server.url, base, server.folder, "", "--transport", transport)
            shutil.rmtree(self.source)
            self.source.mkdir()
            make_tree(self.source)

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/usr/sbin/smbd"), "smbd wants to be root, and to be")
    def test_on_smbd(self):
        server = Smbd(self.work)
        self.addCleanup(server.stop)
        for options in [(), ("--encrypt",)]:
            with self.subTest(options=options):
                base = f"smb://{server.user}@127.0.0.1:{server.port}"
                try:
                    self.round(server.url, base, server.folder, "a folder of smbd's", "--transport", "tcp", *options)
                except BaseException:
                    print(server.log.read_text())
                    raise
            for path in [self.source, server.folder]:
                shutil.rmtree(path)
                path.mkdir()
            make_tree(self.source)

    def sealed_round(self, url, *options):
        """A copy to a share that requires encryption and one back: what they report, and that no request is refused
        for not being encrypted."""
        for source, target in [(self.source / "large", url), (url, self.work / "back")]:
            said = weft.run(weft.WEFT, "-v", "cp", source, target, *options).stderr
            self.assertIn(", encrypted for the share (AES", said)
            self.assertNotIn("neither signed nor encrypted", said)
            self.assertNotIn("the server's interfaces:", said)
        self.assertTrue(weft.same(self.source / "large", self.work / "back"))

    def test_an_encrypted_share(self):
        for transport in ["tcp", "iwarp", "shm"]:
            with self.subTest(transport=transport), weft.serving("--encrypt-share", "data") as server:
                self.sealed_round(server.url("large"), "--transport", transport, "--channels", "2")
                self.assertNotIn("refused: an unencrypted request", server.log_text())

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/usr/sbin/smbd"), "smbd wants to be root, and to be")
    def test_an_encrypted_share_of_smbd(self):
        server = Smbd(self.work)
        self.addCleanup(server.stop)
        self.sealed_round(server.url("large", share="sealed"), "--transport", "tcp", "--channels", "2")
        said = weft.run(weft.WEFT, "cp", self.source / "large", server.url("plain"), "--transport", "tcp").stderr
        self.assertIn("neither signed nor encrypted", said)

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/usr/sbin/smbd"), "smbd wants to be root, and to be")
    def test_a_guest_s_session_is_refused(self):
        """smbd lets in a user whom it does not know, as a guest, whose session has no key."""
        server = Smbd(self.work)
        self.addCleanup(server.stop)
        url = server.url().replace(f"{server.user}@", "stranger@")
        said = weft.run(weft.WEFT, "ls", url, check=False)
        self.assertEqual(said.returncode, 1)
        self.assertIn("the server logged us on as a guest", said.stderr)

    def test_compressed(self):
        text = self.work / "text"
        text.write_text("".join(f"line {i * i % 977} of {i}\n" for i in range(200_000)))
        with weft.serving("--compress-share", "data") as server:
            for options in [(), ("--sign",), ("--encrypt",)]:
                with self.subTest(options=options):
                    options = ("--transport", "tcp", "--compress", *options)
                    # weft itself reads copies back and compares them, too.
                    weft.run(weft.WEFT, "cp", "-q", text, server.url("text"), *options)
                    weft.run(weft.WEFT, "cp", "-q", server.url("text"), self.work / "back", *options)
                    self.assertTrue(weft.same(text, server.folder / "text"))
                    self.assertTrue(weft.same(text, self.work / "back"))
            # Other clients are not affected.
            weft.smbclient(server, f"get text {self.work / 'again'}")
            self.assertTrue(weft.same(text, self.work / "again"))

    def test_a_copy_that_was_cut_goes_on(self):
        size = 400 << 20
        large = weft.random_file(self.work / "large", size)
        with weft.serving() as server:
            command = ["cp", "-q", "--resume", "--no-verify", "--patience", "0", "--transport", "tcp"]
            url = lambda port: f"smb://{weft.USER}@127.0.0.1:{port}/data/large"
            relay = Relay(server.smb_port, 300 << 20)
            failed = weft.run(
                weft.WEFT, *command, large, url(relay.listener.getsockname()[1]), check=False
            )
            self.assertEqual(failed.returncode, 1)
            self.assertFalse((server.folder / "large").exists())
            relay = Relay(server.smb_port, size * 2)
            weft.run(weft.WEFT, *command, large, url(relay.listener.getsockname()[1]))
            # At most 128 MiB of the data already there was sent again.
            self.assertLess(relay.carried, size - (300 << 20) + (140 << 20))
            self.assertTrue(weft.same(large, server.folder / "large"))
            self.assertEqual(os.listdir(server.folder), ["large"])


if __name__ == "__main__":
    unittest.main()
