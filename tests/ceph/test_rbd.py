"""Volumes on images of a Ceph cluster: what must hold beyond the guarantees of every volume. tests/ceph/suite.py runs this."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import cluster

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
import weft  # noqa: E402
from test_nbd import Volumes, qemu_io  # noqa: E402
from test_replica import Host  # noqa: E402

MIB = 1 << 20
CEPH = None


def setUpModule():
    global CEPH
    CEPH = cluster.Cluster()


def tearDownModule():
    CEPH.stop()


def image(name, *options, size="64M"):
    return ["--size", size, "--rbd", f"rbd/{name}", "--ceph-conf", str(CEPH.conf), *options]


@contextlib.contextmanager
def serving(volumes, *options, faults=True):
    """As in test_nbd; with `faults` false the log may have warnings."""
    with tempfile.TemporaryDirectory(prefix="weft-rbd-") as folder:
        server = Volumes(folder, volumes, *options)
        try:
            yield server
        except BaseException:
            print(server.log_text())
            raise
        finally:
            if server.process.returncode is None:
                server.stop()
        if server.process.returncode not in (0, -9) or (faults and server.faults()):
            raise AssertionError(f"weft ended with status {server.process.returncode}: {server.log_text()}")


def volume_of(server, name):
    (one,) = json.loads(server.weft("status", "--json").stdout)["servers"]
    return next(volume for volume in one["volumes"] if volume["name"] == name)


def within(seconds, condition):
    """Waits until `condition` returns something true, and returns it."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.1)
    return found


class Commands(unittest.TestCase):
    def test_the_life_of_a_volume(self):
        with tempfile.TemporaryDirectory() as state:
            def volume(*words, check=True):
                return weft.run(weft.WEFT, "volume", *words, "--state-dir", state, check=check)

            made = volume("create", "v", *image("life", size="8M")).stdout
            self.assertIn("image rbd/life", made)
            self.assertEqual(json.loads(CEPH.rbd("info", "rbd/life", "--format=json"))["size"], 8 * MIB)
            told = json.loads(volume("info", "v", "--json").stdout)
            self.assertEqual(
                (told["kind"], told["image"], told["ceph_id"], told["size"], told["path"]), ("rbd", "rbd/life", "admin", 8 * MIB, None)
            )
            self.assertIn("image rbd/life", volume("list").stdout)
            # An image belongs to one volume, and an existing one keeps its size.
            taken = volume("create", "w", *image("life"), check=False)
            self.assertIn("image rbd/life already is the storage of volume v", taken.stderr)
            CEPH.rbd("create", "rbd/there", "--size", "4M")
            other = volume("create", "w", *image("there"), check=False)
            self.assertIn("image rbd/there has 4194304 bytes, not 67108864", other.stderr)
            volume("resize", "v", "16M")
            self.assertEqual(json.loads(CEPH.rbd("info", "rbd/life", "--format=json"))["size"], 16 * MIB)
            self.assertIn("--shrink", volume("resize", "v", "4M", check=False).stderr)
            volume("resize", "v", "4M", "--shrink")
            self.assertEqual(json.loads(CEPH.rbd("info", "rbd/life", "--format=json"))["size"], 4 * MIB)
            refused = volume("remove", "v", "--delete-file", check=False)
            self.assertIn("`rbd rm rbd/life` deletes its image", refused.stderr)
            self.assertIn("image rbd/life stays as it is", volume("remove", "v").stdout)
            self.assertEqual(json.loads(CEPH.rbd("info", "rbd/life", "--format=json"))["size"], 4 * MIB)

    def test_what_is_missing_is_named(self):
        CEPH.rbd("create", "rbd/named", "--size", "4M")
        CEPH.rbd("create", "rbd/plain-image", "--size", "4M", "--image-feature", "layering")
        nowhere = CEPH.conf_with("nowhere", CEPH.address, "127.0.0.1:1")
        no_monitor = CEPH.conf_with("no-monitor", f"mon_host = v2:{CEPH.address}\n", "")
        no_key = CEPH.conf_with("no-key", str(CEPH.keyring), str(CEPH.work / "none"))
        wrong = CEPH.work / "wrong.keyring"
        wrong.write_text("[client.admin]\nkey = AQDH3nJlAAAAABAAq0Pc0DGZfhhKgbBCRBbqzg==\n")
        bad_key = CEPH.conf_with("bad-key", str(CEPH.keyring), str(wrong))
        poor = CEPH.user("poor", "mon", "allow r")
        cases = [
            (["rbd/none"], "there is no image rbd/none"),
            (["none/named"], 'the cluster has no pool "none"'),
            (["rbd/plain-image"], "`rbd feature enable rbd/plain-image exclusive-lock`"),
            (["rbd/named", "--ceph-conf", "/none/ceph.conf"], "cannot read Ceph's configuration /none/ceph.conf"),
            (["rbd/named", "--ceph-conf", str(nowhere)], "no cluster answers at v2:127.0.0.1:1"),
            (["rbd/named", "--ceph-conf", str(no_monitor)], "names no monitor (mon_host)"),
            (["rbd/named", "--ceph-conf", str(no_key)], "no readable key of client.admin"),
            (["rbd/named", "--ceph-conf", str(bad_key)], "the cluster refuses client.admin"),
            (["rbd/named", "--ceph-conf", str(poor), "--ceph-id", "poor"], "client.poor may not use rbd/named"),
            (["named"], "write POOL/IMAGE"),
        ]
        with tempfile.TemporaryDirectory() as state:
            for words, expected in cases:
                with self.subTest(expected):
                    began = time.monotonic()
                    done = weft.run(
                        weft.WEFT, "volume", "create", "v", "--ceph-conf" if "--ceph-conf" not in words else "--rbd",
                        *([str(CEPH.conf), "--rbd"] if "--ceph-conf" not in words else []), *words, "--state-dir", state, check=False,
                    )
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(expected, done.stderr)
                    self.assertLess(time.monotonic() - began, 30)
            self.assertEqual(list(pathlib.Path(state).glob("volumes/*.volume")), [])

    def test_a_user_of_a_namespace(self):
        CEPH.rbd("namespace", "create", "plain/team")
        conf = CEPH.user("team", "mon", "profile rbd", "osd", "profile rbd pool=plain namespace=team")
        words = ["--size", "8M", "--rbd", "plain/team/vm", "--ceph-conf", str(conf), "--ceph-id", "team"]
        with serving({"v": words}) as server:
            qemu_io(server.uri("v"), "write -P 7 0 1M", "flush")
        self.assertIn("vm", CEPH.rbd("ls", "plain/team"))
        self.assertNotIn("vm", CEPH.rbd("ls", "plain"))


class Serving(unittest.TestCase):
    def test_what_was_answered_is_in_the_image(self):
        with serving({"v": image("answered")}) as server:
            # Without a flush: the cache is off.
            qemu_io(server.uri("v"), "write -P 0x5a 1M 3M", "write -P 0x5b 10M 65536")
            server.crash()
            exported = CEPH.work / "answered.img"
            CEPH.rbd("export", "--no-progress", "rbd/answered", exported)
            with open(exported, "rb") as file:
                file.seek(MIB)
                self.assertEqual(file.read(3 * MIB), b"\x5a" * 3 * MIB)
                file.seek(10 * MIB)
                self.assertEqual(file.read(65536), b"\x5b" * 65536)
            exported.unlink()
            # The lock of the killed server is broken, not waited for.
            began = time.monotonic()
            server.start()
            self.assertLess(time.monotonic() - began, 10)
            self.assertIn("the lock of the last server", server.log_text())
            qemu_io(server.uri("v"), "read -P 0x5a 1M 3M", "read -P 0 0 1M")

    def test_a_server_that_ends_gives_its_lock_back(self):
        with serving({"v": image("given")}) as server:
            self.assertIn("auto", CEPH.rbd("lock", "ls", "rbd/given"))
            server.stop()
            self.assertNotIn("auto", CEPH.rbd("lock", "ls", "rbd/given"))
            server.start()

    def test_a_second_server_is_refused(self):
        with serving({"v": image("second")}) as server, tempfile.TemporaryDirectory(prefix="weft-rbd-") as folder:
            began = time.monotonic()
            with self.assertRaises(RuntimeError) as refused:
                Volumes(folder, {"v": ["--rbd", "rbd/second", "--ceph-conf", str(CEPH.conf)]})
            self.assertRegex(str(refused.exception), r"image rbd/second is in use: the client at 127\.0\.0\.1\S+ holds its exclusive lock")
            self.assertGreater(time.monotonic() - began, 30)
            # The first has not noticed.
            qemu_io(server.uri("v"), "write -P 1 0 64k", "read -P 1 0 64k")

    def test_a_server_that_has_lost_its_lock_does_nothing_more(self):
        with serving({"v": image("lost")}, faults=False) as server:
            qemu_io(server.uri("v"), "write -P 1 0 64k")
            (lock,) = json.loads(CEPH.rbd("lock", "ls", "rbd/lost", "--format=json"))
            CEPH.rbd("lock", "rm", "rbd/lost", lock["id"], lock["locker"])
            said = qemu_io(server.uri("v"), "write -P 2 0 64k", check=False)
            self.assertIn("rror", said)
            for command in ["read 0 64k", "write -P 2 0 64k"]:
                self.assertIn("rror", qemu_io(server.uri("v"), command, check=False))
            trouble = within(20, lambda: volume_of(server, "v").get("warning"))
            self.assertIn("another client has taken the exclusive lock of rbd/lost", trouble)
            # Another server has it meanwhile; what the first was asked for is not there.
            with tempfile.TemporaryDirectory(prefix="weft-rbd-") as folder:
                other = Volumes(folder, {"v": ["--rbd", "rbd/lost", "--ceph-conf", str(CEPH.conf)]})
                qemu_io(other.uri("v"), "read -P 1 0 64k", "write -P 3 0 64k")
                self.assertIn("rror", qemu_io(server.uri("v"), "write -P 2 0 64k", check=False))
                qemu_io(other.uri("v"), "read -P 3 0 64k")
                self.assertEqual(other.stop(), 0)

    def test_a_server_that_was_stopped_while_another_took_over_wakes_up_fenced(self):
        with serving({"v": image("woken")}, faults=False) as server, tempfile.TemporaryDirectory(prefix="weft-rbd-") as folder:
            qemu_io(server.uri("v"), "write -P 1 0 64k")
            server.process.send_signal(cluster.signal.SIGSTOP)
            try:
                # Its client has not been heard of for 30 s then.
                other = Volumes(folder, {"v": ["--rbd", "rbd/woken", "--ceph-conf", str(CEPH.conf)]})
                qemu_io(other.uri("v"), "write -P 2 0 64k")
            finally:
                server.process.send_signal(cluster.signal.SIGCONT)
            self.assertIn("rror", qemu_io(server.uri("v"), "write -P 3 0 64k", check=False))
            qemu_io(other.uri("v"), "read -P 2 0 64k")
            self.assertEqual(other.stop(), 0)

    def test_growth_and_shrinking_from_outside_are_seen(self):
        with serving({"v": image("grows")}, faults=False) as server:
            CEPH.rbd("resize", "rbd/grows", "--size", "128M", "--no-progress")
            within(10, lambda: weft.run("nbdinfo", "--size", server.uri("v")).stdout.strip() == str(128 * MIB))
            qemu_io(server.uri("v"), "write -P 9 100M 1M", "read -P 9 100M 1M")
            self.assertEqual(volume_of(server, "v")["size"], 128 * MIB)
            server.weft("volume", "resize", "v", "192M")
            self.assertEqual(json.loads(CEPH.rbd("info", "rbd/grows", "--format=json"))["size"], 192 * MIB)
            self.assertEqual(weft.run("nbdinfo", "--size", server.uri("v")).stdout.strip(), str(192 * MIB))
            CEPH.rbd("resize", "rbd/grows", "--size", "64M", "--allow-shrink", "--no-progress")
            trouble = within(10, lambda: volume_of(server, "v").get("warning"))
            self.assertIn("rbd/grows was made smaller", trouble)
            qemu_io(server.uri("v"), "read 0 64M")
            for command in ["read 100M 64k", "write 100M 64k"]:
                self.assertIn("rror", qemu_io(server.uri("v"), command, check=False))
            server.stop()
            with self.assertRaises(RuntimeError) as refused:
                server.start()
            self.assertIn("rbd/grows has 67108864 bytes but should have 201326592", str(refused.exception))
            server.weft("volume", "resize", "v", "64M", "--shrink")
            server.start()
            qemu_io(server.uri("v"), "write -P 1 63M 1M", "read -P 1 63M 1M")

    def test_an_image_that_is_served_is_not_removed(self):
        with serving({"v": image("kept")}) as server:
            refused = CEPH.run("rbd", "rm", "--no-progress", "rbd/kept", check=False)
            self.assertNotEqual(refused.returncode, 0)
            qemu_io(server.uri("v"), "write -P 1 0 64k")

    def test_what_is_stored_and_what_is_not(self):
        with serving({"v": image("holes")}) as server:
            qemu_io(server.uri("v"), "write -P 1 8M 1M", "write -P 2 20M 4096")

            def data():
                parts = json.loads(weft.run("nbdinfo", "--map", "--json", server.uri("v")).stdout)
                return [(part["offset"] // MIB, part["length"] // MIB) for part in parts if part["type"] == 0]

            self.assertEqual(data(), [(8, 1), (20, 1)])
            qemu_io(server.uri("v"), "discard 8M 1M", "write -z -u 20M 1M")
            self.assertEqual(data(), [])
            qemu_io(server.uri("v"), "read -P 0 0 64M")

    def test_a_cluster_that_does_not_answer_delays_its_own_volume_only(self):
        with serving({"v": image("slow"), "r": ["--size", "8M", "--ram"]}, faults=False) as server:
            qemu_io(server.uri("v"), "write -P 1 0 64k")
            CEPH.pause("osd")
            try:
                answers = []
                waits = threading.Thread(target=lambda: answers.append(qemu_io(server.uri("v"), "write -P 2 0 64k", "read -P 2 0 64k")))
                waits.start()
                maps = threading.Thread(target=lambda: weft.run("nbdinfo", "--map", server.uri("v")))
                maps.start()
                began = time.monotonic()
                for pattern in range(1, 20):
                    qemu_io(server.uri("r"), f"write -P {pattern} 0 1M", f"read -P {pattern} 0 1M")
                self.assertLess(time.monotonic() - began, 10)
                self.assertTrue(waits.is_alive() and not answers)
            finally:
                CEPH.go_on("osd")
            waits.join(60)
            maps.join(60)
            self.assertEqual(len(answers), 1)

    def test_a_server_ends_although_the_cluster_does_not_answer(self):
        with serving({"v": image("ends")}, faults=False) as server:
            qemu_io(server.uri("v"), "write -P 1 0 64k")
            CEPH.pause("osd")
            try:
                began = time.monotonic()
                self.assertEqual(server.stop(), 0)
                self.assertLess(time.monotonic() - began, 20)
                self.assertIn("the lock of rbd/ends was not given back", server.log_text())
            finally:
                CEPH.go_on("osd")

    def test_a_server_starts_although_the_cluster_does_not_answer(self):
        volumes = {"v": image("starts"), "w": image("starts-too"), "r": ["--size", "8M", "--ram"]}
        with serving(volumes, faults=False) as server:
            server.stop()
            CEPH.pause("mon")
            try:
                began = time.monotonic()
                server.start()
                # One wait for both images.
                self.assertLess(time.monotonic() - began, 35)
                absent = {one["name"]: one["why"] for one in server.ready["not_served"]}
                self.assertEqual(set(absent), {"v", "w"})
                for why in absent.values():
                    self.assertIn(f"no cluster answers at v2:{CEPH.address}", why)
                qemu_io(server.uri("r"), "write 0 64k")
            finally:
                CEPH.go_on("mon")

    def test_volumes_as_files(self):
        with serving({"v": image("file")}, "--share-volumes=disks", "--user", weft.USER, "--smb-port", "0") as server:
            qemu_io(server.uri("v"), "write -P 0x41 1M 1M")
            with tempfile.TemporaryDirectory() as work:
                got = pathlib.Path(work) / "got"
                weft.run(weft.WEFT, "cp", f"smb://{weft.USER}@127.0.0.1:{server.smb_port}/disks/v", got)
                content = got.read_bytes()
                self.assertEqual(len(content), 64 * MIB)
                self.assertEqual(content[MIB : 2 * MIB], b"A" * MIB)
                self.assertEqual(content.count(0), 63 * MIB)

    def test_fio_verifies_while_the_server_is_killed(self):
        with serving({"v": image("verified")}, faults=False) as server:
            uri = f"nbd+unix:///v?socket={server.socket}"
            job = ["fio", "--name=v", "--ioengine=nbd", f"--uri={uri}", "--size=48M", "--bs=64k", "--iodepth=16", "--randrepeat=1"]
            weft.run(*job, "--rw=randwrite", "--verify=crc32c", "--do_verify=0", "--end_fsync=1", "--verify_state_save=0")
            server.crash()
            server.start()
            weft.run(*job, "--rw=randwrite", "--verify=crc32c", "--verify_only=1", "--verify_state_save=0")


class OnAnImage(Host):
    """A host of test_replica whose volumes are images."""

    def weft(self, *command, **more):
        if command[:2] == ("volume", "create"):
            command = [*command[: command.index("--file")], "--rbd", f"rbd/{self.folder.name}-{command[2]}", "--ceph-conf", CEPH.conf]
        return super().weft(*command, **more)


class Replicated(unittest.TestCase):
    def test_images_are_source_and_copy(self):
        with tempfile.TemporaryDirectory(prefix="weft-rbd-") as folder:
            here, there = OnAnImage(folder, "here", {"v": 32 * MIB}), OnAnImage(folder, "there", {"v": 32 * MIB})
            try:
                qemu_io(here.uri("v"), "write -P 1 0 4M", "write -P 2 20M 1M")
                here.replica("create", "v", *there.to("v"), "--log-size", "64M", "--mode", "sync")
                here.wait_until_following()
                qemu_io(here.uri("v"), "write -P 3 8M 1M", "discard 1M 1M", "flush")
                said = there.replica("test-failover", "v").stdout
                uri = said.split("replication continues: ")[1].split()[0]
                qemu_io(uri, "read -P 3 8M 1M", "write -P 4 8M 1M", "read -P 4 8M 1M", "read -P 0 1M 1M")
                there.replica("test-failover", "v", "--end")
                here.crash()
                there.take_over("v")
                qemu_io(there.uri("v"), "read -P 1 0 1M", "read -P 0 1M 1M", "read -P 3 8M 1M", "read -P 2 20M 1M", "write -P 5 0 64k")
                here.start()
                there.wait_until_following()
                there.replica("switch", "v")
                here.wait_until("source")
                qemu_io(here.uri("v"), "read -P 5 0 64k", "write -P 6 64k 64k")
                # A group's volumes grow together.
                here.wait_until_following()
                here.replica("resize", "v", "40M")
                sizes = [json.loads(CEPH.rbd("info", f"rbd/{name}-v", "--format=json"))["size"] for name in ["here", "there"]]
                self.assertEqual(sizes, [40 * MIB, 40 * MIB])
            except BaseException:
                print(here.log_text(), there.log_text())
                raise
            finally:
                for host in [here, there]:
                    if host.process.returncode is None:
                        host.stop()


if __name__ == "__main__":
    unittest.main()
