"""Volumes over NBD, tested with independent programs: QEMU's tools, libnbd's, nbdkit, fio, and ext4's fsck."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import weft
from disk import FLAGS, FLUSH, OPT_LIST, OPT_STARTTLS, WRITE, Disk, begun_write, option

MIB = 1 << 20


class Volumes(weft.Process):
    """A server whose volumes lie in a folder of their own."""

    def __init__(self, folder, volumes, *options):
        self.folder = pathlib.Path(folder)
        self.state = self.folder / "state"
        self.socket = self.folder / "nbd.sock"
        for name, create in volumes.items():
            names = {"folder": folder, "image": self.folder.name}
            self.weft("volume", "create", name, *[str(word).format(**names) for word in create])
        command = [
            weft.WEFT, "serve", "--json", "--nbd-port", "0", "--nbd-socket", self.socket, "--state-dir", self.state, *options,
        ]
        for name in volumes:
            command += ["--volume", name]
        super().__init__(command, self.folder / "log.txt")

    def weft(self, *command, check=True):
        return weft.run(weft.WEFT, *command, "--state-dir", self.state, check=check)

    def uri(self, name):
        return f"nbd://127.0.0.1:{self.ready['nbd_port']}/{name}"

    def unix_uri(self, name):
        return f"nbd+unix:///{name}?socket={self.socket}"


@contextlib.contextmanager
def serving(volumes, *options):
    """Volumes in a fresh folder; checks at the end that the server stopped cleanly without faults."""
    with tempfile.TemporaryDirectory(prefix="weft-nbd-") as folder:
        server = Volumes(folder, volumes, *options)
        try:
            yield server
        except BaseException:
            print(server.log_text())
            server.stop()
            raise
        status, faults = server.stop(), server.faults()
        if status != 0 or faults:
            raise AssertionError(f"weft ended with status {status}: {faults}\n{server.log_text()}")


def file_volume(size, *options):
    return ["--size", size, "--file", "{folder}/vol1.img", *options]


# Every kind of volume that a test can create. A device volume needs a spare device.
KINDS = {
    "file": file_volume("64M"),
    "direct": ["--size", "64M", "--file", "{folder}/direct.img", "--direct"],
    "ram": ["--size", "64M", "--ram"],
    "taken": ["--size", "64M", "--ram", "--allocate"],
}
# `make test-ceph` runs these tests with an image of its cluster as well.
if ceph := os.environ.get("WEFT_TEST_CEPH"):
    KINDS["rbd"] = ["--size", "64M", "--rbd", "rbd/{image}", "--ceph-conf", ceph]


def make_certificates(folder):
    """An authority, and a server and a client with certificates signed by it, under the names that clients expect."""
    def openssl(*words):
        weft.run("openssl", *words, cwd=folder)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        "req", "-x509", *new, "-keyout", "ca-key.pem", "-out", "ca-cert.pem", "-subj", "/CN=authority", "-days", "2",
        "-addext", "keyUsage=critical,keyCertSign",
    )
    for name in ["server", "client"]:
        (folder / "extensions").write_text(
            f"subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={name}Auth\n"
            "keyUsage=critical,digitalSignature\nbasicConstraints=critical,CA:FALSE\n"
        )
        openssl("req", *new, "-keyout", f"{name}-key.pem", "-out", "request.pem", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", "request.pem", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
            "-out", f"{name}-cert.pem", "-days", "2", "-extfile", "extensions",
        )


def qemu_io(uri, *commands, check=True):
    words = [word for command in commands for word in ("-c", command)]
    done = weft.run("qemu-io", "-f", "raw", *words, uri, check=False)
    said = done.stdout + done.stderr
    # Its exit status does not report pattern mismatches.
    failed = done.returncode != 0 or "failed" in said or "rror" in said
    if check and failed:
        raise AssertionError(f"qemu-io {commands}: {done.returncode}\n{said}")
    return said


class Handshake(unittest.TestCase):
    def test_nbdinfo_reads_everything(self):
        with serving(KINDS) as server:
            listed = json.loads(weft.run("nbdinfo", "--list", "--json", server.uri("")).stdout)
            exports = {export["export-name"]: export for export in listed["exports"]}
            self.assertEqual(set(exports), set(KINDS))
            for export in exports.values():
                self.assertEqual(export["export-size"], 64 * MIB)
                self.assertIn("base:allocation", export["contexts"])
                self.assertFalse(export["is_read_only"])
                for can in ["flush", "fua", "trim", "zero", "fast_zero", "df", "cache", "multi_conn"]:
                    self.assertTrue(export[f"can_{can}"], can)
            self.assertEqual(listed["protocol"], "newstyle-fixed")
            self.assertTrue(listed["structured"])
            for uri in [server.uri("ram"), server.unix_uri("ram")]:
                self.assertEqual(weft.run("nbdinfo", "--size", uri).stdout.strip(), str(64 * MIB))
            missing = weft.run("nbdinfo", server.uri("no-such"), check=False)
            self.assertNotEqual(missing.returncode, 0)

    def test_read_only_is_kept(self):
        with serving({"ram": KINDS["ram"]}, "--nbd-read-only") as server:
            self.assertEqual(weft.run("nbdinfo", "--is", "read-only", server.uri("ram"), check=False).returncode, 0)
            refused = qemu_io(server.uri("ram"), "write 0 4k", check=False)
            self.assertIn("permission denied", refused.lower())
            weft.run("qemu-io", "-r", "-f", "raw", "-c", "read -P 0 0 4k", server.uri("ram"))

    def test_tls_is_declined_politely(self):
        with serving({"ram": KINDS["ram"]}) as server:
            uri = server.uri("ram").replace("nbd://", "nbds://")
            done = weft.run("env", "LIBNBD_DEBUG=1", "nbdinfo", uri, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("server error message: this server has no TLS", done.stderr)

    def test_under_tls_and_only_so(self):
        with tempfile.TemporaryDirectory() as folder:
            pki = pathlib.Path(folder)
            make_certificates(pki)
            tls = ["--nbd-tls-cert", pki / "server-cert.pem", "--nbd-tls-key", pki / "server-key.pem"]
            nobody = pki / "nobody"
            nobody.mkdir()
            shutil.copy(pki / "ca-cert.pem", nobody)
            for clients in [[], ["--nbd-tls-clients", pki / "ca-cert.pem"]]:
                with self.subTest(clients=clients), tempfile.TemporaryDirectory() as home:
                    server = Volumes(home, KINDS, *tls, *clients)
                    self.addCleanup(lambda process=server.process: process.poll() is None and process.kill())
                    port = server.ready["nbd_port"]
                    for name in KINDS:
                        uri = f"nbds://localhost:{port}/{name}?tls-certificates={pki}"
                        self.assertEqual(weft.run("nbdinfo", "--size", uri).stdout.strip(), str(64 * MIB))
                        source = weft.random_file(pki / "source", 64 * MIB)
                        weft.run("nbdcopy", "--connections=2", source, uri)
                        weft.run("nbdcopy", uri, pki / "back")
                        self.assertTrue(weft.same(source, pki / "back"))
                    qemu = weft.run(
                        "qemu-io", "--object", f"tls-creds-x509,id=t,dir={pki},endpoint=client", "--image-opts",
                        "-c", "write -P 9 3 5M", "-c", "read -P 9 3 5M", "-c", "write -z 0 1M", "-c", "flush",
                        f"driver=nbd,host=localhost,port={port},export=ram,tls-creds=t",
                    )
                    self.assertNotIn("failed", qemu.stdout + qemu.stderr)
                    plain = weft.run("env", "LIBNBD_DEBUG=1", "nbdinfo", server.uri("ram"), check=False)
                    self.assertNotEqual(plain.returncode, 0)
                    self.assertIn("under TLS only", plain.stderr)
                    stranger = f"nbds://localhost:{port}/ram?tls-certificates={nobody}"
                    let_in = weft.run("nbdinfo", "--size", stranger, check=False).returncode == 0
                    self.assertEqual(let_in, not clients)
                    # Data sent before the keys could come from an attacker.
                    ahead = socket.create_connection(("127.0.0.1", port))
                    ahead.recv(18)
                    ahead.sendall(FLAGS + option(OPT_STARTTLS) + option(OPT_LIST))
                    self.assertEqual(ahead.recv(100), b"")
                    ahead.close()
                    self.assertEqual(server.stop(), 0)

    def test_nbdkit_passes_it_on_through_its_filters(self):
        with serving({"ram": KINDS["ram"]}) as server:
            for filters in [[], ["--filter=blocksize", "minblock=4k"], ["--filter=cow"], ["--filter=checkwrite"]]:
                client = "nbdinfo --map $uri" if "--filter=checkwrite" in filters else (
                    "qemu-io -f raw -c 'write -P 5 1M 1M' -c 'read -P 5 1M 1M' -c 'write -z 1M 1M' -c flush $uri"
                )
                options = [word for word in filters if not word.startswith("--")]
                plain = [word for word in filters if word.startswith("--")]
                weft.run("nbdkit", *plain, "-U", "-", "nbd", f"uri={server.uri('ram')}", *options, "--run", client)


class Data(unittest.TestCase):
    def test_qemu_io_finds_what_it_wrote(self):
        with serving(KINDS) as server:
            for name in KINDS:
                with self.subTest(volume=name):
                    # Zeros that keep their space are written to an image, which is not fast.
                    fast = "write -z -n -u 2M 64k" if name == "rbd" else "write -z -n 2M 64k"
                    qemu_io(
                        server.uri(name),
                        "write -P 0xaa 0 64k", "write -f -P 0xbb 64k 3M", "read -P 0xbb 64k 3M",
                        "write -z 128k 128k", "read -P 0 128k 128k", "write -z -u 1M 1M", "read -P 0 1M 1M",
                        fast, "read -P 0 2M 64k", "discard 2M 512k", "read -P 0xaa 0 64k",
                        # At odd offsets, across blocks, and longer than the server handles at once.
                        "write -P 0xcc 12345 6789", "read -P 0xcc 12345 6789", "read -P 0xaa 0 12345",
                        "write -P 0xdd 8M 34M", "read -P 0xdd 8M 34M", "flush",
                        # Several requests at a time.
                        "aio_write -P 1 50M 1M", "aio_write -P 2 51M 1M", "aio_write -P 3 52M 1M", "aio_flush",
                        "read -P 1 50M 1M", "read -P 2 51M 1M", "read -P 3 52M 1M",
                    )
                    beyond = qemu_io(server.uri(name), "write 64M 512", check=False)
                    self.assertIn("rror", beyond)

    def test_a_device(self):
        """The same on a block device, if one is available: a loop device, which needs root."""
        with tempfile.TemporaryDirectory() as work:
            image = pathlib.Path(work) / "device.img"
            weft.run("truncate", "-s", "64M", image)
            loop = weft.run("losetup", "-f", "--show", image, check=False)
            if loop.returncode != 0:
                self.skipTest("no loop device: " + loop.stderr.strip())
            device = loop.stdout.strip()
            try:
                for options in [[], ["--direct"]]:
                    with self.subTest(options=options), serving({"dev": ["--device", device, *options]}) as server:
                        qemu_io(
                            server.uri("dev"), "write -P 1 0 4M", "write -f -P 2 4M 3M", "read -P 2 4M 3M",
                            "write -z 1M 128k", "read -P 0 1M 128k", "write -z -u 2M 1M", "read -P 0 2M 1M",
                            "write -z 12345 6789", "read -P 0 12345 6789", "read -P 1 0 12345", "discard 4M 512k",
                            "discard 5M 1000", "write -P 3 8M 34M", "read -P 3 8M 34M", "flush",
                        )
                        weft.run("qemu-img", "compare", "-f", "raw", "-F", "raw", server.uri("dev"), image)
                        # It is free again.
                        second = weft.run(
                            weft.WEFT, "volume", "create", "again", "--device", device, "--state-dir",
                            server.folder / "other", check=False,
                        )
                        self.assertIn("in use", second.stderr)
            finally:
                weft.run("losetup", "-d", device)

    def test_images_go_there_and_back(self):
        with serving(KINDS) as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "source", 64 * MIB)
            with open(source, "r+b") as image:
                # A hole in the middle.
                os.posix_fallocate(image.fileno(), 0, 64 * MIB)
                weft.run("fallocate", "--punch-hole", "--offset", 16 * MIB, "--length", 32 * MIB, source)
            for name in KINDS:
                with self.subTest(volume=name):
                    back = pathlib.Path(work) / f"back-{name}"
                    weft.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, server.uri(name))
                    weft.run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, server.unix_uri(name))
                    weft.run("qemu-img", "convert", "-f", "raw", "-O", "raw", server.uri(name), back)
                    self.assertTrue(weft.same(source, back))
                    mapped = json.loads(weft.run(
                        "qemu-img", "map", "-f", "raw", "--output=json", server.uri(name)).stdout)
                    zeros = sum(extent["length"] for extent in mapped if extent["zero"])
                    self.assertEqual(zeros, 32 * MIB, "the hole is a hole there, too")
            # The file of a volume holds exactly its bytes.
            self.assertTrue(weft.same(source, server.folder / "vol1.img"))
            self.assertLess(os.stat(server.folder / "vol1.img").st_blocks * 512, 40 * MIB)

    def test_nbdcopy_over_several_connections(self):
        with serving(KINDS) as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "source", 64 * MIB)
            for name in KINDS:
                with self.subTest(volume=name):
                    back = pathlib.Path(work) / f"back-{name}"
                    weft.run("nbdcopy", "--connections=4", "--requests=64", "--flush", source, server.uri(name))
                    weft.run("nbdcopy", "--connections=4", server.uri(name), back)
                    self.assertTrue(weft.same(source, back))
            # From one volume to another, and an empty one.
            weft.run("nbdcopy", "--destination-is-zero", "--allocated", server.uri("ram"), server.uri("file"))
            self.assertTrue(weft.same(source, server.folder / "vol1.img"))
            weft.run("nbdcopy", "null:", server.uri("ram"), check=False)

    def test_the_map_is_that_of_the_file(self):
        with serving(KINDS) as server:
            # After memory was reserved for the whole volume, all of it is data.
            for name in KINDS.keys() - {"taken"}:
                # An image's objects, of 1 MiB in that cluster, exist or not.
                stored = MIB if name == "rbd" else 65536
                with self.subTest(volume=name):
                    qemu_io(server.uri(name), "write -P 1 1M 1M", "write -P 1 32M 64k", "flush")
                    extents = json.loads(weft.run("nbdinfo", "--map", "--json", server.uri(name)).stdout)
                    seen = [(extent["offset"], extent["length"], extent["type"]) for extent in extents]
                    self.assertEqual(seen, [
                        (0, MIB, 3), (MIB, MIB, 0), (2 * MIB, 30 * MIB, 3), (32 * MIB, stored, 0),
                        (32 * MIB + stored, 32 * MIB - stored, 3),
                    ])

    def test_fio_verifies(self):
        with serving(KINDS) as server:
            for name in KINDS:
                with self.subTest(volume=name):
                    done = weft.run(
                        "fio", "--name=verify", "--ioengine=nbd", f"--uri={server.unix_uri(name)}",
                        "--rw=randwrite", "--bssplit=512/20:4k/40:64k/30:1m/10", "--iodepth=16", "--size=32M",
                        "--io_size=64M", "--verify=crc32c", "--verify_fatal=1", "--fsync=64", "--output-format=json",
                        "--randrepeat=1", "--bs_unaligned=0", cwd=server.folder,
                    )
                    report = done.stdout[done.stdout.index("{"):]
                    job = json.loads(report)["jobs"][0]
                    self.assertEqual(job["error"], 0)
                    self.assertGreater(job["read"]["io_bytes"], 16 * MIB, "it read back its own writes")


class FileSystems(unittest.TestCase):
    def test_ext4_lives_on_a_volume(self):
        """mkfs, files by debugfs, and fsck, through nbdfuse, which presents the volume as a file."""
        with serving({"file": file_volume("128M")}) as server:
            disk = server.folder / "disk"
            disk.touch()
            source = weft.random_file(server.folder / "source", 20 * MIB)
            back = server.folder / "back"
            with nbdfuse(disk, server.unix_uri("file")):
                weft.run("mkfs.ext4", "-q", "-F", disk)
                weft.run("debugfs", "-w", "-R", f"write {source} big", disk)
                weft.run("e2fsck", "-f", "-n", disk)
            server.stop()
            server.start()
            with nbdfuse(disk, server.uri("file")):
                weft.run("e2fsck", "-f", "-n", disk)
                weft.run("debugfs", "-R", f"dump big {back}", disk)
            self.assertTrue(weft.same(source, back))
            # The volume's own file contains that file system.
            weft.run("e2fsck", "-f", "-n", server.folder / "vol1.img")


@contextlib.contextmanager
def nbdfuse(file, uri):
    process = subprocess.Popen(["nbdfuse", str(file), uri], stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 20
        while os.stat(file).st_size == 0:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"nbdfuse: {process.stderr.read()}")
            time.sleep(0.02)
        yield
    finally:
        subprocess.run(["fusermount3", "-u", str(file)], check=False)
        process.wait(timeout=20)
        process.stderr.close()


class Crashes(unittest.TestCase):
    def test_what_was_flushed_outlives_the_server(self):
        """Eight writes and a flush at a time; the server is killed during them, several times."""
        with serving({"file": file_volume("64M")}) as server:
            block = 65536
            promised = {}
            for round_ in range(5):
                disk = Disk(server.socket, "file")
                kill_after = 40 + 13 * round_
                answered = 0
                generation = 0
                written = {}
                with self.assertRaises(OSError):
                    while True:
                        generation += 1
                        batch = {}
                        for i in range(8):
                            place = (generation * 8 + i * 97) % (64 * MIB // block)
                            byte = (round_ * 50 + generation * 8 + i) % 255 + 1
                            batch[place] = byte
                            disk.send(WRITE, place * block, data=bytes([byte]) * block)
                        disk.send(FLUSH)
                        # Written, perhaps, from here on; certain only when the flush is answered. A flush covers the
                        # writes answered before it was sent, so a second flush covers the batch.
                        for place, byte in batch.items():
                            written.setdefault(place, set()).add(byte)
                        for _ in range(9):
                            self.assertEqual(disk.answer()[1], 0)
                        disk.flush()
                        for place, byte in batch.items():
                            promised[place] = {byte}
                            written.pop(place, None)
                        answered += 10
                        if answered >= kill_after:
                            # While the next batch is in progress.
                            for place in range(900, 908):
                                written.setdefault(place, set()).add(255)
                                disk.send(WRITE, place * block, data=b"\xff" * block)
                            server.crash()
                            kill_after = 1 << 30
                disk.socket.close()
                server.start()
                # Writes that were neither answered nor refused may be present or not.
                for place, bytes_ in written.items():
                    promised[place] = promised.get(place, {0}) | bytes_
                reader = Disk(server.socket, "file")
                for place, allowed in promised.items():
                    data = reader.read(place * block, block)
                    self.assertIn(data[0], allowed, f"block {place} in round {round_}")
                    if len(allowed) == 1:
                        self.assertEqual(data, bytes([data[0]]) * block)
                self.assertGreater(len(promised), 20)
                reader.close()

    def test_a_dead_server_leaves_no_lock_and_no_socket_in_the_way(self):
        with serving({"file": file_volume("1M")}) as server:
            second = weft.run(
                weft.WEFT, "serve", "--volume", "file", "--nbd-port", "0", "--state-dir", server.state, check=False
            )
            self.assertNotEqual(second.returncode, 0)
            self.assertIn("in use", second.stderr)
            self.assertIn("in use", server.weft("volume", "list").stdout)
            self.assertIn("in use", server.weft("volume", "remove", "file", check=False).stderr)
            server.crash()
            self.assertTrue(server.socket.exists())
            server.start()
            qemu_io(server.unix_uri("file"), "write -P 1 0 1M", "read -P 1 0 1M")

    def test_a_served_volume_grows(self):
        with serving({"file": file_volume("16M")}) as server:
            uri = server.unix_uri("file")
            smaller = server.weft("volume", "resize", "file", "8M", check=False)
            self.assertIn("cannot shrink now", smaller.stderr)
            self.assertIn("24 MiB", server.weft("volume", "resize", "file", "24M").stdout)
            self.assertEqual(weft.run("nbdinfo", "--size", uri).stdout.strip(), str(24 << 20))
            [told] = json.loads(server.weft("status", "--json").stdout)["servers"]
            self.assertEqual(told["volumes"][0]["size"], 24 << 20)
            self.assertIn("sizes are absolute", server.weft("volume", "resize", "file", "+1G", check=False).stderr)
            qemu_io(uri, "write -P 3 23M 1M", "flush")
            server.crash()
            server.start()
            qemu_io(uri, "read -P 3 23M 1M")

    def test_memory_is_taken_when_it_is_served(self):
        ram = lambda size: ["--ram", "--allocate", "--size", size]
        with serving({"taken": ram("16M")}) as server:
            uri = server.unix_uri("taken")
            self.assertIn("taken", server.weft("volume", "info", "taken").stdout)
            extents = json.loads(weft.run("nbdinfo", "--map", "--json", uri).stdout)
            self.assertEqual([extent["description"] for extent in extents], ["data"])
            qemu_io(uri, "read -P 0 0 16M", "write -P 5 3M 5M", "read -P 5 3M 5M", "read -P 0 8M 8M")
            server.weft("volume", "resize", "taken", "24M")
            qemu_io(uri, "write -P 6 20M 4M", "read -P 0 8M 12M", "read -P 6 20M 4M")
            # More memory than any machine has.
            refused = server.weft("volume", "create", "vast", *ram("1024T"), check=False)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn("write a size from 1 to", refused.stderr)
            # All that this machine has; the volumes keep theirs.
            whole = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 20}M"
            server.weft("volume", "create", "vast", *ram(whole))
            refused = weft.run(
                weft.WEFT, "serve", "--volume", "vast", "--nbd-port", "0", "--state-dir", server.state, check=False,
            )
            self.assertIn("are needed, but only", refused.stderr)


class Beside(unittest.TestCase):
    def test_shares_and_volumes_are_served_together(self):
        with tempfile.TemporaryDirectory() as work:
            state = pathlib.Path(work) / "state"
            weft.run(weft.WEFT, "volume", "create", "vol1", "--size", "16M", "--ram", "--state-dir", state)
            options = ["--volume", "vol1", "--nbd-port", "0", "--state-dir", state]
            with weft.serving(*options) as server:
                uri = f"nbd://127.0.0.1:{server.ready['nbd_port']}/vol1"
                qemu_io(uri, "write -P 3 0 1M", "read -P 3 0 1M")
                weft.smbclient(server, "ls")

    def test_begun_writes_of_many_clients_hold_nobody_up(self):
        with tempfile.TemporaryDirectory() as work, weft.serving(
            "--volume", "vol", "--nbd-port", "0", "--buffers", "128M", "--state-dir", self.state(work)
        ) as server, contextlib.ExitStack() as stack:
            for _ in range(300):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.ready["nbd_port"])))
                peer.sendall(begun_write(b"vol"))
            source = weft.random_file(pathlib.Path(work) / "file", 8 << 20)
            begun = time.monotonic()
            weft.smbclient(server, f"put {source} there")
            qemu_io(f"nbd://127.0.0.1:{server.ready['nbd_port']}/vol", "write -P 7 0 4M", "read -P 7 0 4M")
            # They used to stall everything until they were disconnected, which takes ten seconds now and took a minute
            # before.
            self.assertLess(time.monotonic() - begun, 8)

    def state(self, work):
        """The state directory of a server with a volume of 16 MiB."""
        state = pathlib.Path(work) / "state"
        weft.run(weft.WEFT, "volume", "create", "vol", "--ram", "--size", "16M", "--state-dir", state)
        return str(state)

    def test_what_is_asked_for_wrongly_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as work:
            state = ["--state-dir", pathlib.Path(work) / "state"]
            no_door = weft.run(weft.WEFT, "serve", "--volume", "v", *state, check=False)
            self.assertIn("--nbd", no_door.stderr)
            nothing = weft.run(weft.WEFT, "serve", "--volume", "v", "--nbd-port", "0", *state, check=False)
            self.assertIn("weft volume list", nothing.stderr)
            sizeless = weft.run(
                weft.WEFT, "volume", "create", "v", "--file", pathlib.Path(work) / "new", *state, check=False
            )
            self.assertIn("needs a size", sizeless.stderr)
            self.assertFalse((pathlib.Path(work) / "new").exists())


if __name__ == "__main__":
    if not shutil.which("nbdinfo"):
        raise SystemExit("this needs packages that tests/interop/deps.sh installs")
    unittest.main()
