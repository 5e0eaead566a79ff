"""weft replica: volumes that are replicated to another server, which takes over when the first one is killed."""

import contextlib
import json
import os
import pathlib
import shutil
import stat
import struct
import tempfile
import threading
import time
import unittest
import urllib.parse

import weft
from disk import Disk, Writer

MIB = 1 << 20


class Host(weft.Process):
    """A `weft serve --replica` with volumes of its own, in place of a host."""

    def __init__(self, folder, name, volumes, *options):
        self.folder = pathlib.Path(folder) / name
        self.folder.mkdir()
        self.state = self.folder / "state"
        self.volumes = list(volumes)
        for volume, size in volumes.items():
            self.weft("volume", "create", volume, "--size", str(size), "--file", self.folder / f"{volume}.img")
        self.options = options
        self.disks = []
        super().__init__(self.command_at({"smb": 0, "nbd": 0}), self.folder / "log.txt")

    def weft(self, *command, check=True, timeout=120):
        return weft.run(weft.WEFT, *command, "--state-dir", self.state, check=check, timeout=timeout)

    def replica(self, *command, check=True):
        return self.weft("replica", *command, check=check)

    def start(self):
        """The same server restarted, with its volumes and groups."""
        super().start()
        # It is reached again at the same address.
        self.ports = {"smb": self.ready["smb_port"], "nbd": self.ready["nbd_port"]}
        self.command = self.command_at(self.ports)

    def command_at(self, ports):
        command = [
            weft.WEFT, "serve", "--json", "--replica", "--user", weft.USER, "--smb-port", ports["smb"], "--smbd-port", 0,
            "--nbd-port", ports["nbd"], "--state-dir", self.state, *self.options,
        ]
        for volume in self.volumes:
            command += ["--volume", volume]
        return command

    def replace(self, volume, begins=b""):
        """Replaces a volume's file by another one, as `rm` and `truncate -s` do."""
        path = self.folder / f"{volume}.img"
        size = path.stat().st_size
        path.unlink()
        path.write_bytes(begins)
        with open(path, "r+b") as file:
            file.truncate(size)

    def damage_log(self, group, back):
        """Damages a record of a group's log, `back` records before the last; see crates/wire/src/repl/record.rs."""
        path = self.state / "replica" / f"{group}.log"
        content = bytearray(path.read_bytes())
        states = [content[at : at + 4096] for at in (0, 4096)]
        state = max(states, key=lambda state: struct.unpack_from("<Q", state, 16))
        log, (start, length) = bytes(state[40:48]), struct.unpack_from("<QQ", state, 88)
        records = {}
        for at in range(start, start + length, 512):
            if content[at : at + 4] == b"WfLR" and content[at + 8 : at + 16] == log and content[at + 6] != 3:
                [sequence] = struct.unpack_from("<Q", content, at + 32)
                records[sequence] = at
        at = records[max(records) - back]
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes(512))

    def disk(self, volume):
        self.disks.append(Disk(self.ports["nbd"], volume))
        return self.disks[-1]

    def uri(self, volume):
        return f"nbd://127.0.0.1:{self.ports['nbd']}/{volume}"

    def to(self, *volumes):
        """The address of this host in another host's commands."""
        return ["127.0.0.1" + (":" + ",".join(volumes) if volumes else ""), "--smb-port", self.ports["smb"], "--user", weft.USER]

    def take_over(self, group, past="alive"):
        """Makes this side the source at once. Plain `--failover` waits until the source has been silent for ten
        seconds; `test_a_client_that_reconnects_at_once_...` and `..._by_iwarp` use that."""
        return self.replica("switch", group, "--failover", f"--force={past}").stdout

    def status(self):
        return json.loads(self.replica("status", "--json").stdout)["groups"]

    def wait_for(self, what, holds, seconds=90):
        until = time.monotonic() + seconds
        while True:
            groups = self.status()
            if holds(groups):
                return groups
            if time.monotonic() > until:
                raise AssertionError(f"{self.folder.name}: not {what}: {json.dumps(groups, indent=1)}\n{self.log_text()}")
            time.sleep(0.1)

    def wait_until_following(self, peers=1):
        def holds(groups):
            found = [peer for group in groups for peer in (group["engine"] or {}).get("peers", [])]
            return len(found) >= peers and all(peer["phase"] == "ContinuouslyReplicating" for peer in found)

        return self.wait_for("replicating continuously", holds)

    def wait_until(self, role):
        return self.wait_for(role, lambda groups: bool(groups) and all(group["role"] == role for group in groups))


class Reconnecting(threading.Thread):
    """A client that writes and flushes, and reconnects at once when cut off, like a kernel's client."""

    def __init__(self, port, name, blocks):
        super().__init__(daemon=True)
        self.port, self.name = port, name
        self.writer = Writer(None, blocks)
        self.count, self.wanted = 0, 0
        self.enough, self.ending = threading.Event(), threading.Event()

    def run(self):
        version = 0
        while not self.ending.is_set():
            try:
                with contextlib.closing(Disk(self.port, self.name)) as disk:
                    while not self.ending.is_set():
                        block = self.writer.pick()
                        version += 1
                        self.writer.sent[block].append(version)
                        disk.write(block * Writer.BLOCK, Writer.content(block, version))
                        disk.flush()
                        self.writer.acknowledged[block] = version
                        self.count += 1
                        if self.count >= self.wanted:
                            self.enough.set()
            except (OSError, AssertionError):
                # Refused, reset, or an error instead of an answer.
                time.sleep(0.001)

    def after(self, writes):
        self.wanted = self.count + writes
        self.enough.clear()
        if not self.enough.wait(timeout=120):
            raise AssertionError(f"{self.count} writes were answered, {self.wanted} wanted")

    def end(self):
        self.ending.set()
        self.join(timeout=60)

    def lost(self, disk):
        return self.writer.lost(disk)


class Hosts(unittest.TestCase):
    """Servers that replicate; the test's end removes them."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-replica-"))
        self.hosts = []
        self.addCleanup(self.end)

    def end(self):
        for host in self.hosts:
            for disk in host.disks:
                disk.close()
            if host.process.poll() is None:
                host.process.kill()
                host.end()

    def host(self, name, volumes, *options):
        host = Host(self.folder, name, volumes, *options)
        self.hosts.append(host)
        return host

    def pair(self, *options, size=16 * MIB):
        return self.host("here", {"vol1": size}, *options), self.host("there", {"vol1": size}, *options)

    def create(self, here, there, *options, volumes="vol1", check=True):
        return here.replica("create", volumes, *there.to(*volumes.split(",")), "--log-size", "64M", *options, check=check)

    def replicated(self, *options):
        """A source and a replica that follows."""
        here, there = self.pair()
        self.create(here, there, *options)
        here.wait_until_following()
        return here, there


class Replica(Hosts):
    def verified(self, source):
        """The result of a comparison of both sides of vol1. On a busy host the link may be lost, and made again, right
        after it was seen."""
        end = time.monotonic() + 30
        while (done := source.replica("verify", "vol1", "--json", check=False)).returncode:
            self.assertIn("the destination does not follow at present", done.stderr)
            self.assertLess(time.monotonic(), end, source.replica("status").stdout + source.log_text())
            time.sleep(0.2)
        return json.loads(done.stdout)

    def assert_equal_sides(self, source):
        self.assertEqual(self.verified(source)["different"], 0)

    def takes_over_by(self, transport, *force):
        here, there = self.pair()
        writer = Writer(here.disk("vol1"), blocks=2048)
        writer.start()
        writer.after(200)
        # The first copy is made while the volume is written.
        self.create(here, there, "--transport", transport)
        [group] = here.wait_until_following()
        self.assertEqual(group["links"][0]["transport"], transport)
        said = here.weft("status").stdout
        self.assertIn("vol1, source: synchronous to 127.0.0.1:vol1", said)
        self.assertIn(f"by {transport}", said)
        self.assertEqual("not by RDMA: TCP, as requested" in said, transport == "tcp", said)
        writer.after(500)
        here.crash()
        writer.join(timeout=60)

        said = there.replica("switch", "vol1", "--failover", *force).stdout
        self.assertIn("now the source", said)
        disk = there.disk("vol1")
        self.assertEqual(writer.lost(disk), [])

        # The new source continues; the former one returns, gives up no acknowledged write, and follows.
        after = Writer(disk, blocks=2048, seed=7)
        after.start()
        after.after(100)
        here.start()
        here.wait_until("destination")
        there.wait_until_following()
        after.after(100)
        after.stop()
        found = self.verified(there)
        self.assertEqual((found["different"], found["bytes"]), (0, 16 * MIB))
        self.assertEqual([here.stop(), there.stop()], [0, 0])

    def test_what_was_answered_is_on_the_promoted_copy_and_the_old_source_becomes_one_by_iwarp(self):
        # Without force: the replica waits until its source has been silent for ten seconds.
        self.takes_over_by("iwarp")

    def test_what_was_answered_is_on_the_promoted_copy_and_the_old_source_becomes_one_by_shm(self):
        self.takes_over_by("shm", "--force=alive")

    def test_what_was_answered_is_on_the_promoted_copy_and_the_old_source_becomes_one_by_tcp(self):
        self.takes_over_by("tcp", "--force=alive")

    def test_a_client_that_reconnects_at_once_writes_to_nothing_that_is_not_replicated(self):
        here, there = self.pair("--share-volumes")
        self.create(here, there)
        here.wait_until_following()
        client = Reconnecting(here.ports["nbd"], "vol1", blocks=1024)
        client.start()
        client.after(200)
        # Killed during the copy, and stopped in order: it is available before the log was replayed.
        for end in [here.crash, here.stop, here.crash]:
            end()
            here.start()
            client.after(300)
        here.wait_until_following()
        client.after(100)
        here.crash()
        client.end()
        there.replica("switch", "vol1", "--failover")
        self.assertEqual(client.lost(there.disk("vol1")), [])

    def loses_its_journal(self, lost):
        here, there = self.pair("--share-volumes")
        self.create(here, there)
        here.wait_until_following()
        here.disk("vol1").write(0, b"a" * 4096)
        here.crash()
        journal = here.state / "replica" / "vol1.log"
        if lost == "missing":
            journal.unlink()
        else:
            size = journal.stat().st_size
            journal.write_bytes(b"")
            if lost == "zeroed":
                with open(journal, "r+b") as file:
                    file.truncate(size)
        here.start()
        [group] = here.wait_until("stopped")
        for command in ["--failover", "resolve vol1 --keep there", "resolve vol1 --keep here", "remove vol1 --force"]:
            self.assertIn(command, group["stopped"])
        with contextlib.closing(here.disk("vol1")) as closed:
            with self.assertRaises(OSError):
                closed.write(0, b"x" * 4096)
            with self.assertRaises(OSError):
                closed.read(0, 4096)
        url = f"smb://{weft.USER}@127.0.0.1:{here.ports['smb']}/volumes/vol1"
        self.assertNotEqual(weft.run(weft.WEFT, "cat", url, check=False).returncode, 0)
        self.assertIn("--force", here.replica("remove", "vol1", check=False).stderr)
        self.assertIn("already", self.create(here, there, check=False).stderr)
        # The other side reports it, too.
        told = there.wait_for("told", lambda groups: groups[0]["partner_stopped"])
        self.assertIn("journal", told[0]["partner_stopped"])
        self.assertIn("stopped on the other side", there.replica("status").stdout)
        there.take_over("vol1")
        there.disk("vol1").write(4096, b"b" * 4096)
        here.replica("resolve", "vol1", "--keep", "there")
        there.wait_until_following()
        self.assert_equal_sides(there)
        self.assertEqual(there.disk("vol1").read(0, 8192), b"a" * 4096 + b"b" * 4096)

    def test_a_source_whose_journal_is_missing_serves_nothing_and_can_be_helped(self):
        self.loses_its_journal("missing")

    def test_a_source_whose_journal_is_truncated_serves_nothing_and_can_be_helped(self):
        self.loses_its_journal("truncated")

    def test_a_source_whose_journal_is_zeroed_serves_nothing_and_can_be_helped(self):
        self.loses_its_journal("zeroed")

    def test_what_the_volumes_hold_counts_where_the_journal_is_lost_and_so_is_the_copy(self):
        here, there = self.replicated()
        disk = here.disk("vol1")
        disk.write(0, b"a" * 4096)
        self.assertEqual(here.stop(), 0)
        (here.state / "replica" / "vol1.log").unlink()
        here.start()
        here.wait_until("stopped")
        self.assertIn("continues with the data left", here.replica("resolve", "vol1", "--keep", "here").stdout)
        # Its replica takes it back after a full comparison.
        here.wait_until_following()
        disk = here.disk("vol1")
        self.assertEqual(disk.read(0, 4096), b"a" * 4096)
        disk.write(4096, b"b" * 4096)
        self.assert_equal_sides(here)
        # A replica that has lost its data becomes one again.
        self.assertEqual(there.stop(), 0)
        (there.state / "replica" / "vol1.log").write_bytes(b"")
        there.start()
        there.wait_until("stopped")
        here.wait_for("told", lambda groups: groups[0]["partner_stopped"])
        there.replica("resolve", "vol1", "--keep", "there")
        # Once contacted, it is known to have changed.
        disk.write(8192, b"c" * 4096)
        here.wait_until_following()
        self.assert_equal_sides(here)

    def test_a_volume_whose_file_was_replaced_is_not_believed_and_is_made_whole(self):
        here, there = self.replicated()
        disk = here.disk("vol1")
        disk.write(0, b"a" * 4096)
        disk.flush()
        # A replica while it runs: its server reports the change, and the next start does not accept the new file.
        there.replace("vol1")
        [server] = json.loads(there.weft("status", "--json").stdout)["servers"]
        self.assertIn("is now another file", server["volumes"][0]["warning"])
        self.assertIn("is now another file", there.log_text())
        self.assertEqual(there.stop(), 0)
        there.start()
        [group] = there.wait_until("stopped")
        self.assertIn("vol1.img is not the original file", group["stopped"])
        self.assertIn("--keep there", group["stopped"])
        self.assertNotEqual(there.replica("switch", "vol1", "--failover", "--force", check=False).returncode, 0)
        # Nor after another start.
        self.assertEqual(there.stop(), 0)
        there.start()
        there.wait_until("stopped")
        there.replica("resolve", "vol1", "--keep", "there")
        disk.write(4096, b"b" * 4096)
        here.wait_until_following()
        self.assert_equal_sides(here)
        # A source: it serves nothing, and takes over the data of its replica.
        self.assertEqual(here.stop(), 0)
        here.replace("vol1")
        here.start()
        here.wait_until("stopped")
        with contextlib.closing(here.disk("vol1")) as closed, self.assertRaises(OSError):
            closed.read(0, 4096)
        there.take_over("vol1")
        here.replica("resolve", "vol1", "--keep", "there")
        there.disk("vol1").write(8192, b"c" * 4096)
        there.wait_until_following()
        self.assert_equal_sides(there)
        self.assertEqual(there.disk("vol1").read(0, 12288), b"a" * 4096 + b"b" * 4096 + b"c" * 4096)
        # A restored backup counts once the operator says so.
        self.assertEqual(there.stop(), 0)
        there.replace("vol1", b"d" * 4096)
        there.start()
        there.wait_until("stopped")
        there.replica("resolve", "vol1", "--keep", "here")
        there.wait_until_following()
        self.assert_equal_sides(there)
        self.assertEqual(there.disk("vol1").read(0, 8192), b"d" * 4096 + bytes(4096))
        # Outside a group, the volume is served as it is, with one message.
        there.replica("remove", "vol1")
        self.assertEqual(there.stop(), 0)
        there.replace("vol1", b"e" * 4096)
        for times in (1, 1):
            there.start()
            self.assertEqual(there.disk("vol1").read(0, 4096), b"e" * 4096)
            self.assertEqual(there.log_text().count("it is served as it is now"), times)
            self.assertEqual(there.stop(), 0)

    def test_a_group_without_its_file_is_stopped_and_nothing_else_is(self):
        here = self.host("here", {"vol1": 8 * MIB, "vol2": 8 * MIB})
        there = self.host("there", {"vol1": 8 * MIB})
        self.create(here, there)
        here.wait_until_following()
        self.assertEqual(here.stop(), 0)
        (here.state / "replica" / "vol1.json").write_bytes(b"")
        # A server without replication does not serve it either.
        plain = weft.run(
            weft.WEFT, "serve", "--nbd-port", 0, "--volume", "vol1", "--state-dir", here.state, check=False, timeout=30
        )
        self.assertIn("--replica", plain.stderr)
        here.start()
        [group] = here.wait_until("stopped")
        self.assertIn("vol1.json is of no use", group["stopped"])
        here.disk("vol2").write(0, b"a" * 4096)
        with contextlib.closing(here.disk("vol1")) as closed, self.assertRaises(OSError):
            closed.write(0, b"x" * 4096)
        here.replica("remove", "vol1", "--force")
        here.disk("vol1").write(0, b"y" * 4096)
        there.replica("remove", "vol1")
        self.create(here, there, "--overwrite")
        here.wait_until_following()
        self.assert_equal_sides(here)

    def test_blocks_of_a_source_that_have_rotted_do_not_go_to_its_copy_unasked(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 65536)
        self.assertEqual(here.stop(), 0)
        with open(here.folder / "vol1.img", "r+b") as file:
            file.seek(8192)
            file.write(bytes(4096))
        here.start()
        here.wait_until_following()
        for repair in ([], ["--repair"]):
            done = here.replica("verify", "vol1", *repair, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("64 KiB at 0 of vol1", done.stdout)
            self.assertIn("If the copy is right, make it the source first", done.stdout)
        self.assertRegex(here.weft("status").stdout, r"! vol1: the last verify, \d+ s ago, found 64 KiB that differ")
        here.replica("switch", "vol1")
        there.wait_until_following()
        there.replica("verify", "vol1", "--repair", "--force")
        there.wait_for("copied again", lambda groups: not groups[0]["engine"]["peers"][0]["bytes_remaining"])
        there.wait_until_following()
        self.assert_made_equal(there)
        self.assertEqual(there.disk("vol1").read(8192, 4096), b"a" * 4096)
        self.assertNotIn("differ", there.weft("status").stdout)

    def assert_made_equal(self, source, seconds=60):
        """Both sides of vol1 are equal as soon as they are compared. Until a replica that starts over has
        been contacted, its source reports the earlier state."""
        until = time.monotonic() + seconds
        while True:
            done = source.replica("verify", "vol1", "--json", check=False)
            if done.stdout or time.monotonic() > until:
                break
            time.sleep(0.1)
        self.assertEqual(json.loads(done.stdout or "{}").get("different"), 0, done.stderr)

    def assert_closed(self, host, *volumes):
        for volume in volumes:
            with contextlib.closing(host.disk(volume)) as closed, self.assertRaises(OSError):
                closed.write(0, b"x" * 4096)

    def test_a_volume_of_a_group_is_neither_removed_nor_cut_off_past_it(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 4096)
        past = [["remove", "vol1"], ["remove", "vol1", "--delete-file"], ["resize", "vol1", "8M", "--shrink"]]
        # While it is served, and while it is not.
        for running in (True, False):
            for host in (here, there):
                if not running:
                    self.assertEqual(host.stop(), 0)
                for command in past:
                    refused = host.weft("volume", *command, check=False)
                    self.assertEqual(refused.returncode, 1, refused.stdout)
                    self.assertIn("is in the group vol1", refused.stderr)
                    self.assertIn("weft replica remove vol1", refused.stderr)
        # Groups are older than this record in volumes, and a volume knows it even if its group's files do not.
        for host in (here, there):
            (host.state / "replica").rename(host.folder / "aside")
            for command in past:
                self.assertIn("in the group vol1", host.weft("volume", *command, check=False).stderr)
            (host.folder / "aside").rename(host.state / "replica")
            host.start()
        here.wait_until_following()
        self.assert_equal_sides(here)
        self.assertEqual(here.disk("vol1").read(0, 4096), b"a" * 4096)
        # Outside a group it is an ordinary volume, on both sides.
        here.replica("remove", "vol1")
        for host in (here, there):
            self.assertEqual(host.stop(), 0)
            host.weft("volume", "resize", "vol1", "8M", "--shrink")
            host.weft("volume", "remove", "vol1", "--delete-file")

    def test_a_volume_whose_file_is_lost_gets_its_content_back_as_its_status_says(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 4096)
        for host, other in ((there, here), (here, there)):
            self.assertEqual(host.stop(), 0)
            image = host.folder / "vol1.img"
            image.unlink()
            host.start()
            [group] = host.wait_until("stopped")
            remake = f"truncate -s {16 * MIB} {image}"
            status = host.weft("status").stdout
            for said in (group["stopped"], status):
                self.assertIn(f"`{remake}`", said)
                self.assertIn("--keep there", said)
                self.assertNotIn("volume remove", said)
            if other.status()[0]["role"] == "destination":
                other.take_over("vol1")
            weft.run(*remake.split())
            self.assertEqual(host.stop(), 0)
            host.start()
            host.wait_until("stopped")
            self.assert_closed(host, "vol1")
            host.replica("resolve", "vol1", "--keep", "there")
            other.disk("vol1").write(4096, b"b" * 4096)
            self.assert_made_equal(other)
        self.assertEqual(there.disk("vol1").read(0, 8192), b"a" * 4096 + b"b" * 4096)

    def test_another_volume_in_place_of_a_groups_own_is_not_believed(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 4096)
        for host, other in ((there, here), (here, there)):
            self.assertEqual(host.stop(), 0)
            metadata = host.state / "volumes" / "vol1.volume"
            metadata.unlink()
            again = ["volume", "create", "vol1", "--size", "16M", "--file"]
            refused = host.weft(*again, host.folder / "vol1.img", check=False)
            self.assertIn("weft replica remove vol1 --force", refused.stderr)
            # Nor does a start without the volume end its group.
            host.start()
            [group] = host.wait_until("stopped")
            self.assertIn(f"{metadata} is missing", group["stopped"])
            self.assertEqual(host.stop(), 0)
            # Created despite all that, as by an older program.
            elsewhere = host.folder / "elsewhere"
            weft.run(weft.WEFT, *again, host.folder / "new.img", "--state-dir", elsewhere)
            (elsewhere / "volumes" / "vol1.volume").rename(metadata)
            host.start()
            [group] = host.wait_until("stopped")
            self.assertIn("not the group's volume", group["stopped"])
            self.assert_closed(host, "vol1")
            if other.status()[0]["role"] == "destination":
                other.take_over("vol1")
            host.replica("resolve", "vol1", "--keep", "there")
            other.disk("vol1").write(4096, b"b" * 4096)
            self.assert_made_equal(other)
            # From now on the file belongs to the group.
            self.assertEqual(host.stop(), 0)
            host.start()
            other.wait_until_following()

    def test_a_group_of_an_older_version_takes_its_volumes_as_they_are(self):
        here, there = self.replicated()
        self.assertEqual(here.stop(), 0)
        file = here.state / "replica" / "vol1.json"
        group = json.loads(file.read_text())
        kept = group.pop("kept")
        self.assertEqual(kept[0]["size"], 16 * MIB)
        file.write_text(json.dumps(group))
        here.start()
        here.wait_until_following()
        self.assertEqual(json.loads(file.read_text())["kept"], kept)

    def test_a_volume_whose_group_is_lost_is_served_by_nobody(self):
        for lost in (["vol1.json", "vol1.members", "vol1.log", "vol1.volume"], ["vol1.json", "vol1.members"]):
            with self.subTest(lost=lost):
                here = self.host(f"here-{len(lost)}", {"vol1": 8 * MIB, "vol2": 8 * MIB})
                there = self.host(f"there-{len(lost)}", {"vol1": 8 * MIB})
                self.create(here, there)
                here.wait_until_following()
                here.disk("vol1").write(0, b"a" * 4096)
                here.crash()
                for name in lost:
                    (here.state / "replica" / name).unlink()
                there.take_over("vol1")
                plain = weft.run(
                    weft.WEFT, "serve", "--nbd-port", 0, "--volume", "vol1", "--state-dir", here.state, check=False, timeout=30
                )
                self.assertIn("add --replica", plain.stderr)
                here.start()
                [group] = here.wait_until("stopped")
                self.assertEqual((group["name"], group["volumes"]), ("vol1", ["vol1"]))
                self.assertIn("weft replica remove vol1 --force", group["stopped"])
                self.assertIn("group vol1: ", here.log_text())
                self.assert_closed(here, "vol1")
                here.disk("vol2").write(0, b"b" * 4096)
                self.assertIn("vol1 is stopped", self.create(here, there, "--overwrite", check=False).stderr)
                # The other side has all data.
                here.replica("remove", "vol1", "--force")
                there.replica("remove", "vol1", "--force")
                self.create(there, here, "--overwrite")
                there.wait_until_following()
                self.assert_equal_sides(there)
                self.assertEqual(there.disk("vol1").read(0, 4096), b"a" * 4096)
                # After it ended in order, nothing of it is left.
                there.replica("remove", "vol1")
                for host in (here, there):
                    self.assertEqual(host.stop(), 0)
                    self.assertEqual(list((host.state / "replica").iterdir()), [])
                    host.start()
                    self.assertEqual(host.status(), [])
                    host.disk("vol1").write(0, b"c" * 4096)

    def test_a_group_in_memory_leaves_nothing_in_the_way_when_its_server_is_killed(self):
        here, there = (self.host(name, {"vol1": 8 * MIB}) for name in ("here", "there"))
        for host in (here, there):
            self.assertEqual(host.stop(), 0)
            host.ports = {"smb": 0, "nbd": 0}
            host.weft("volume", "create", "fast", "--size", "8M", "--ram")
            host.volumes.append("fast")
            host.command = host.command_at(host.ports)
            host.start()
        self.create(here, there, volumes="fast")
        here.wait_until_following()
        here.crash()
        here.start()
        self.assertEqual(here.status(), [])
        for volume in ("vol1", "fast"):
            here.disk(volume).write(0, b"a" * 4096)

    def test_a_volume_in_memory_is_not_believed_after_a_restart_where_its_group_has_files(self):
        here, there = (self.host(name, {"disk": 8 * MIB}) for name in ("here", "there"))
        for host in (here, there):
            self.assertEqual(host.stop(), 0)
            host.weft("volume", "create", "fast", "--size", "8M", "--ram")
            host.volumes.append("fast")
            host.command = host.command_at({"smb": 0, "nbd": 0})
            host.start()
        self.create(here, there, "--group", "vol1", volumes="disk,fast")
        here.wait_until_following()
        here.disk("fast").write(0, b"a" * 4096)
        self.assertEqual(there.stop(), 0)
        there.start()
        [group] = there.wait_until("stopped")
        self.assertIn("volume fast: it is in memory", group["stopped"])
        there.replica("resolve", "vol1", "--keep", "there")
        here.disk("fast").write(4096, b"b" * 4096)
        self.assert_made_equal(here)

    def test_a_source_that_is_well_is_not_superseded_unless_that_is_said(self):
        here, there = self.replicated()
        writer = Writer(here.disk("vol1"), blocks=1024)
        writer.start()
        writer.after(200)
        refused = there.replica("switch", "vol1", "--failover", check=False)
        self.assertNotEqual(refused.returncode, 0)
        for said in ["its source is alive", "weft replica switch vol1` on 127.0.0.1", "--failover --force=alive`", "refused"]:
            self.assertIn(said, refused.stderr)
        # Objections that are not named still apply.
        for force in ["--force", "--force=behind,resync"]:
            self.assertIn("--force=alive`", there.replica("switch", "vol1", "--failover", force, check=False).stderr)
        self.assertEqual(here.status()[0]["role"], "source")
        writer.after(200)
        there.replica("switch", "vol1", "--failover", "--force=alive")
        # From then on nothing is acknowledged that the new source lacks.
        writer.join(timeout=60)
        self.assertFalse(writer.is_alive())
        self.assertEqual(writer.lost(there.disk("vol1")), [])
        here.wait_until("destination")
        there.wait_until_following()
        self.assert_equal_sides(there)

    def test_roles_are_exchanged_and_back_while_it_is_written_to(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"w" * 4096)
        self.assertIn("now the source", here.replica("switch", "vol1").stdout)
        there.wait_until("source")
        there.wait_until_following()
        disk = there.disk("vol1")
        self.assertEqual(disk.read(0, 4096), b"w" * 4096)
        disk.write(4096, b"x" * 4096)
        # A replica cannot be written.
        with contextlib.closing(here.disk("vol1")) as copy, self.assertRaises(OSError):
            copy.read(0, 4096)
        refused = here.replica("switch", "vol1", check=False)
        self.assertIn("--failover", refused.stderr)
        there.replica("switch", "vol1")
        here.wait_until_following()
        self.assertEqual(here.disk("vol1").read(0, 8192), b"w" * 4096 + b"x" * 4096)

    def test_a_destination_that_waits_for_its_source_says_what_was_agreed(self):
        here, there = self.replicated("--mode", "sync")
        self.assertEqual([here.stop(), there.stop()], [0, 0])
        there.start()
        there.wait_until("destination")
        self.assertIn(", synchronous: ", there.replica("status").stdout)

    def test_a_suspension_is_caught_up_with_and_survives_a_restart(self):
        here, there = self.replicated("--mode", "async", "--transport", "tcp", "--compress")
        here.replica("suspend", "vol1")
        disk = here.disk("vol1")
        disk.write(MIB, b"a" * 65536)
        disk.close()
        self.assertEqual(here.stop(), 0)
        here.start()
        [group] = here.wait_for(
            "suspended", lambda groups: groups and (groups[0]["engine"] or {}).get("peers", [{}])[0].get("phase") == "Suspended"
        )
        # It is suspended before its log has been replayed.
        [group] = here.wait_for("started", lambda groups: groups[0]["role"] != "starting")
        self.assertEqual(group["role"], "source")
        here.replica("resume", "vol1")
        here.wait_until_following()
        found = self.verified(here)
        self.assertEqual(found["different"], 0)
        here.replica("remove", "vol1")
        self.assertEqual((here.status(), there.status()), ([], []))
        self.assertEqual([fault for host in [here, there] for fault in host.faults("ERROR")], [])
        # Both sides are ordinary volumes now, with the same bytes.
        self.assertEqual(there.disk("vol1").read(MIB, 65536), b"a" * 65536)
        here.disk("vol1").write(0, b"b" * 4096)

    def test_a_lost_destination_is_written_down_and_caught_up_with(self):
        here, there = self.replicated()
        writer = Writer(here.disk("vol1"), blocks=1024)
        writer.start()
        writer.after(100)
        there.crash()
        # Writes do not wait forever: they continue, and the status reports that they have no replica.
        here.wait_for("unprotected", lambda groups: groups[0]["engine"]["peers"][0]["unprotected"])
        writer.after(100)
        there.start()
        here.wait_until_following()
        writer.after(100)
        writer.stop()
        self.assert_equal_sides(here)

    def test_writes_wait_for_a_lost_destination_where_that_was_asked_for(self):
        here, there = self.pair()
        self.create(here, there, "--on-loss", "suspend-io", "--on-congestion", "pull-ahead")
        [group] = here.wait_until_following()
        self.assertEqual((group["on_loss"], group["on_congestion"]), ("suspend-io", "pull-ahead"))
        disk, answered = here.disk("vol1"), threading.Event()
        disk.write(0, b"a" * 4096)
        before = here.status()[0]["engine"]["last"]
        there.crash()

        def write():
            disk.write(4096, b"b" * 4096)
            answered.set()

        writer = threading.Thread(target=write)
        writer.start()
        # The write is durable here and its destination is known to be lost, but it is not acknowledged yet.
        def waits(groups):
            [peer] = groups[0]["engine"]["peers"]
            return groups[0]["engine"]["last"] > before and peer["phase"] == "WaitingForDestination"

        [group] = here.wait_for("waiting", waits)
        self.assertEqual((answered.is_set(), group["engine"]["peers"][0]["unprotected"]), (False, False))
        there.start()
        writer.join(timeout=60)
        self.assertTrue(answered.is_set())
        here.wait_until_following()
        # Both sides remember it.
        self.assertEqual([group["on_loss"] for host in [here, there] for group in host.status()], ["suspend-io"] * 2)
        refused = self.create(here, there, "--on-loss", "never", check=False)
        self.assertIn("suspend-io", refused.stderr)

    def test_a_damaged_log_is_said_and_made_good(self):
        here, there = self.replicated()
        disk = here.disk("vol1")
        for block in range(10):
            disk.write(block * 4096, bytes([65 + block]) * 4096)
        there.crash()
        there.damage_log("vol1", 4)
        there.start()

        def is_equal_again(groups):
            engine = groups[0]["engine"]
            return bool(engine) and engine["consistent"] and engine["peers"][0]["phase"] == "ContinuouslyReplicating"

        there.wait_for("equal again", is_equal_again)
        here.wait_until_following()
        self.assertIn("its log is damaged: record", there.log_text())
        self.assert_equal_sides(here)
        # A source is not used: it has acknowledged data that it may no longer have.
        for block in range(10):
            disk.write(block * 4096, bytes([97 + block]) * 4096)
        here.crash()
        here.damage_log("vol1", 4)
        here.start()
        [group] = here.wait_until("stopped")
        self.assertIn("weft replica resolve vol1 --keep there", group["stopped"])
        there.take_over("vol1")
        said = here.replica("resolve", "vol1", "--keep", "there").stdout
        self.assertIn("now a copy", said)
        there.wait_until_following()
        copy = there.disk("vol1")
        self.assertEqual([copy.read(block * 4096, 1) for block in range(10)], [bytes([97 + block]) for block in range(10)])
        self.assert_equal_sides(there)

    def test_two_volumes_of_a_group_keep_their_order(self):
        here = self.host("here", {"data": 8 * MIB, "log": 8 * MIB})
        there = self.host("there", {"data": 8 * MIB, "log": 8 * MIB})
        self.create(here, there, "--group", "db", "--mode", "async", volumes="data,log")
        here.wait_until_following()
        data, log = here.disk("data"), here.disk("log")
        for version in range(1, 400):
            # First the log, then the data it describes, like every database.
            log.write(0, Writer.content(0, version))
            data.write(0, Writer.content(0, version))
        here.crash()
        there.take_over("db")
        versions = [int.from_bytes(there.disk(name).read(0, 4096)[8:16], "little") for name in ["data", "log"]]
        self.assertLessEqual(versions[0], versions[1])
        self.assertLessEqual(versions[1], versions[0] + 1)

    def two_sources(self):
        """Both sides of a group after each was written without the other."""
        here, there = self.replicated("--mode", "async")
        here.disk("vol1").write(0, b"a" * 4096)
        here.wait_for("equal", lambda groups: groups[0]["engine"]["peers"][0]["lag_bytes"] == 0)
        there.crash()
        here.disk("vol1").write(4096, b"h" * 4096)
        here.crash()
        there.start()
        there.wait_until("destination")
        there.take_over("vol1")
        there.disk("vol1").write(4096, b"t" * 4096)
        here.start()
        [group] = here.wait_until("stopped")
        self.assertIn("both sides were written to", group["stopped"])
        return here, there

    def test_two_sources_are_shown_and_one_of_them_counts(self):
        here, there = self.two_sources()
        with contextlib.closing(here.disk("vol1")) as split, self.assertRaises(OSError):
            split.read(0, 4096)
        # It is stopped, restarted, and answers nothing meanwhile.
        self.assertEqual(here.stop(), 0)
        here.start()
        here.wait_until("stopped")
        there.wait_for("told", lambda groups: groups[0]["partner_stopped"])
        here.replica("resolve", "vol1", "--keep", "there")
        here.wait_until("destination")
        # The request for a decision ends at once, not only after the half minute for which the last report counts.
        there.wait_for("told that it goes on", lambda groups: not groups[0]["partner_stopped"], seconds=15)
        there.wait_until_following()
        self.assert_equal_sides(there)
        there.replica("switch", "vol1")
        here.wait_until("source")
        self.assertEqual(here.disk("vol1").read(0, 8192), b"a" * 4096 + b"t" * 4096)

    def the_superseded_side_counts(self, here, there, *decisions):
        there.wait_for("undecided", lambda groups: "resolve" in str(groups[0]["engine"]["peers"][0]["last_error"]))
        for host, keep in decisions:
            host.replica("resolve", "vol1", "--keep", keep)
        here.wait_until_following()
        there.wait_until("destination")
        self.assertEqual(here.disk("vol1").read(4096, 4096), b"h" * 4096)
        self.assert_equal_sides(here)

    def test_the_side_that_was_superseded_may_count_when_it_is_told_first(self):
        here, there = self.two_sources()
        self.the_superseded_side_counts(here, there, (here, "here"), (there, "there"))

    def test_the_side_that_was_superseded_may_count_when_it_is_told_last(self):
        here, there = self.two_sources()
        self.the_superseded_side_counts(here, there, (there, "there"), (here, "here"))

    def test_a_test_writes_to_a_picture_while_replication_goes_on(self):
        here, there = self.replicated()
        disk = here.disk("vol1")
        disk.write(0, b"a" * 4096)
        self.assertIn("on the host of the copy", here.replica("test-failover", "vol1", check=False).stderr)
        said = there.replica("test-failover", "vol1").stdout
        uri = said.split("replication continues: ")[1].split()[0]
        path = urllib.parse.unquote(uri.split("?socket=")[1])
        # Only the server's user: NBD asks for no password.
        self.assertEqual(stat.filemode(os.stat(path).st_mode), "srw-------")
        self.assertIn("vol1", weft.run("nbdinfo", uri).stdout)
        with contextlib.closing(Disk(path, "vol1")) as picture:
            self.assertEqual(picture.read(0, 4096), b"a" * 4096)
            picture.write(4096, b"p" * 4096)
            # Later replicated writes are not in the snapshot, and the snapshot is not in the replica.
            disk.write(0, b"b" * 4096)
            disk.write(4096, b"c" * 4096)
            self.assertIn(uri, there.replica("status").stdout)
            self.assertEqual(there.status()[0]["test_failover"], [uri])
            self.assertEqual(picture.read(0, 8192), b"a" * 4096 + b"p" * 4096)
        there.replica("test-failover", "vol1", "--end")
        self.assertEqual(there.status()[0]["test_failover"], [])
        self.assertFalse(os.path.exists(path))
        self.assert_equal_sides(here)
        here.replica("switch", "vol1")
        there.wait_until("source")
        self.assertEqual(there.disk("vol1").read(0, 8192), b"b" * 4096 + b"c" * 4096)

    def test_a_volume_grows_in_use_on_both_sides(self):
        here, there = self.pair("--share-volumes")
        self.create(here, there)
        here.wait_until_following()
        writer = Writer(here.disk("vol1"), blocks=1024)
        writer.start()
        writer.after(50)
        self.assertIn("cannot shrink", here.replica("resize", "vol1", "8M", check=False).stderr)
        self.assertIn("run the command on its source", there.replica("resize", "vol1", "24M", check=False).stderr)
        self.assertIn("weft replica resize vol1", here.weft("volume", "resize", "vol1", "24M", check=False).stderr)
        self.assertIn("24 MiB", here.replica("resize", "vol1", "24M").stdout)
        # New connections see the new size; existing ones continue.
        disk = here.disk("vol1")
        self.assertEqual(disk.size, 24 * MIB)
        disk.write(20 * MIB, b"n" * 4096)
        listing = weft.run(weft.WEFT, "ls", f"smb://{weft.USER}@127.0.0.1:{here.ports['smb']}/volumes").stdout
        self.assertIn(str(24 * MIB), listing)
        writer.after(50)
        writer.stop()
        here.wait_until_following()
        found = self.verified(here)
        self.assertEqual((found["bytes"], found["different"]), (24 * MIB, 0))
        # Both sides remember it, and the replica is complete.
        there.crash()
        there.start()
        there.wait_until_following()
        here.crash()
        there.take_over("vol1")
        disk = there.disk("vol1")
        self.assertEqual((disk.size, disk.read(20 * MIB, 4096)), (24 * MIB, b"n" * 4096))
        self.assertEqual(writer.lost(disk), [])

    def test_a_destination_that_is_not_there_keeps_a_volume_from_growing(self):
        here, there = self.replicated()
        there.crash()
        self.assertIn("so no volume was changed", here.replica("resize", "vol1", "24M", check=False).stderr)
        self.assertEqual(here.disk("vol1").size, 16 * MIB)
        there.start()
        # The source may not have noticed yet.
        there.wait_until("destination")
        here.wait_until_following()
        here.replica("resize", "vol1", "24M")
        here.wait_until_following()
        self.assertEqual(here.disk("vol1").size, 24 * MIB)

    def test_volumes_that_were_made_longer_while_nobody_served_them_grow_when_that_is_said(self):
        here, there = self.replicated()
        self.assertEqual([here.stop(), there.stop()], [0, 0])
        for host in [there, here]:
            host.weft("volume", "resize", "vol1", str(24 * MIB))
            host.start()
        here.wait_until_following()
        self.assertEqual(here.disk("vol1").size, 16 * MIB)
        here.replica("resize", "vol1")
        here.wait_until_following()
        self.assertEqual(here.disk("vol1").size, 24 * MIB)

    def test_roles_are_exchanged_with_a_destination_that_has_more_room(self):
        here, there = self.host("here", {"vol1": 16 * MIB}), self.host("there", {"vol1": 24 * MIB})
        self.create(here, there)
        for source, copy in [(here, there), (there, here), (here, there)]:
            # Immediately: it follows before anything is exchanged.
            source.replica("switch", "vol1")
            copy.wait_until("source")
        there.wait_until_following()
        self.assertEqual(there.disk("vol1").size, 16 * MIB)
        self.assertEqual(self.verified(there)["bytes"], 16 * MIB)

    def test_a_switch_that_cannot_be_written_down_does_not_take_place(self):
        here, there = self.replicated()
        # Nothing can be written in its place, as on a full disk.
        draft = here.state / "replica" / ".vol1.new"
        draft.mkdir()
        refused = here.replica("switch", "vol1", check=False)
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        self.assertIn("the roles are unchanged", refused.stderr)
        self.assertIn(str(here.state / "replica"), refused.stderr)
        self.assertEqual([group["role"] for host in [here, there] for group in host.status()], ["source", "destination"])
        here.disk("vol1").write(0, b"a" * 4096)
        draft.rmdir()
        here.replica("switch", "vol1")
        there.wait_until("source")
        self.assertEqual(there.disk("vol1").read(0, 4096), b"a" * 4096)
        self.assertIn("group vol1: replication stops, and so do writes: the roles were exchanged", here.log_text())

    def test_no_write_fails_while_replication_is_removed(self):
        here, there = self.replicated()
        writer = Writer(here.disk("vol1"), blocks=2048)
        writer.start()
        writer.after(200)
        here.replica("remove", "vol1")
        writer.after(200)
        writer.stop()
        self.assertEqual((here.status(), there.status()), ([], []))
        here.crash()
        here.start()
        self.assertEqual(writer.lost(here.disk("vol1")), [])

    def test_a_removal_that_cannot_be_written_down_changes_nothing(self):
        here, there = self.replicated()
        # Nothing can be written in its place, as on a full disk.
        draft = here.state / "replica" / ".vol1.new"
        draft.mkdir()
        refused = here.replica("remove", "vol1", check=False)
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        self.assertIn("nothing was changed", refused.stderr)
        self.assertIn(str(here.state / "replica"), refused.stderr)
        self.assertEqual([group["role"] for host in [here, there] for group in host.status()], ["source", "destination"])
        here.wait_until_following()
        here.disk("vol1").write(0, b"a" * 4096)
        self.assert_equal_sides(here)
        draft.rmdir()
        here.replica("remove", "vol1")
        self.assertEqual((here.status(), there.status()), ([], []))

    def test_a_removal_that_failed_at_its_end_can_be_repeated(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 4096)
        # Exists, as for a change of the group, but is not removed like a file.
        members = here.state / "replica" / "vol1.members"
        members.unlink()
        members.mkdir()
        for _ in range(2):
            refused = here.replica("remove", "vol1", check=False)
            self.assertNotEqual(refused.returncode, 0, refused.stdout)
            self.assertIn("cannot remove the record of group vol1", refused.stderr)
        self.assertEqual(there.status(), [])
        members.rmdir()
        here.replica("remove", "vol1")
        self.assertEqual(here.status(), [])
        self.assertEqual(here.disk("vol1").read(0, 4096), b"a" * 4096)
        here.disk("vol1").write(0, b"b" * 4096)

    def test_a_source_that_comes_back_is_told_that_its_copy_was_removed(self):
        here, there = self.replicated()
        here.crash()
        there.replica("remove", "vol1")
        self.assertEqual(there.status(), [])
        here.start()
        # The replica was removed there, or that server was reinstalled: the volume is still served.
        here.wait_until("source")
        here.disk("vol1").write(0, b"b" * 4096)
        [group] = here.wait_for(
            "told", lambda groups: "weft replica remove" in str((groups[0]["engine"] or {}).get("peers", [{}])[0].get("last_error"))
        )
        [peer] = group["engine"]["peers"]
        self.assertIn("the other side has removed this partnership", peer["last_error"])
        self.assertIn("`weft replica remove vol1 --to 127.0.0.1:vol1`", peer["last_error"])
        # The advice in the message works.
        here.replica("remove", "vol1", "--to", "127.0.0.1:vol1")
        self.assertEqual(here.status(), [])
        self.create(here, there, "--overwrite")
        here.wait_until_following()

    def test_a_state_directory_of_before_replication_was_ended_is_not_replayed(self):
        here, there = self.replicated()
        here.disk("vol1").write(0, b"a" * 4096)
        here.crash()
        log, kept = here.state / "replica" / "vol1.log", here.folder / "kept.log"
        before = log.read_bytes()
        shutil.copytree(here.state, here.folder / "before", ignore=shutil.ignore_patterns("run"))
        # The file stays the same, as when its file system returns to a snapshot.
        kept.hardlink_to(log)
        here.start()
        here.wait_until("source")
        here.replica("remove", "vol1")
        self.assertEqual((here.status(), there.status()), ([], []))
        here.disk("vol1").write(0, b"z" * 4096)
        self.assertEqual(here.stop(), 0)
        shutil.copytree(here.folder / "before", here.state, dirs_exist_ok=True)
        log.unlink()
        with open(kept, "r+b") as file:
            file.write(before)
        log.hardlink_to(kept)
        here.start()
        [group] = here.wait_until("stopped")
        self.assertIn("has ended this partnership", group["stopped"])
        self.assertIn("volumes stay as they are", here.replica("remove", "vol1", check=False).stderr)
        here.replica("remove", "vol1", "--force")
        self.assertEqual(here.disk("vol1").read(0, 4096), b"z" * 4096)

    def test_a_volume_whose_file_is_gone_stops_its_group_and_nothing_else(self):
        here = self.host("here", {"vol1": 16 * MIB, "vol2": 4 * MIB})
        there = self.host("there", {"vol1": 16 * MIB})
        self.create(here, there)
        here.wait_until_following()
        here.disk("vol1").write(0, b"a" * 4096)
        here.disk("vol2").write(0, b"b" * 4096)
        self.assertEqual(here.stop(), 0)
        image = here.folder / "vol1.img"
        kept = image.rename(here.folder / "kept.img")
        here.start()
        self.assertEqual([volume["name"] for volume in here.ready["volumes"]], ["vol2"])
        self.assertEqual([volume["name"] for volume in here.ready["not_served"]], ["vol1"])
        [group] = here.wait_until("stopped")
        for said in [str(image), "start the server again", "switch vol1 --failover", "remove vol1 --force"]:
            self.assertIn(said, group["stopped"])
        status = here.weft("status").stdout
        self.assertIn(f"! vol1 is not served: cannot open {image}", status)
        self.assertIn(f"volume vol1 is not served: cannot open {image}", here.log_text())
        self.assertIn("not served: cannot open", self.create(here, there, volumes="vol1", check=False).stderr)
        there.wait_for("told", lambda groups: "not served" in str(groups[0]["partner_stopped"]))
        # The other volume is served, and once its file is back the first one is as before.
        self.assertEqual(here.disk("vol2").read(0, 4096), b"b" * 4096)
        self.assertEqual(here.stop(), 0)
        kept.rename(image)
        here.start()
        here.wait_until_following()
        self.assertEqual(here.disk("vol1").read(0, 4096), b"a" * 4096)
        self.assert_equal_sides(here)

    def test_a_server_none_of_whose_volumes_has_a_file_does_not_start(self):
        state = pathlib.Path(self.folder) / "state"
        image = pathlib.Path(self.folder) / "vol1.img"
        weft.run(weft.WEFT, "volume", "create", "vol1", "--size", str(MIB), "--file", image, "--state-dir", state)
        image.unlink()
        refused = weft.run(
            weft.WEFT, "serve", "--volume", "vol1", "--nbd-port", "0", "--state-dir", state, check=False, timeout=30
        )
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"nothing is left to serve: volume vol1: cannot open {image}", refused.stderr)

    def test_a_check_takes_what_create_takes(self):
        here, there = self.pair()
        checked = here.replica("check", *there.to("vol1"))
        self.assertIn("volume vol1", checked.stdout)

    def test_what_is_in_the_way_is_named(self):
        here, there = self.pair()
        small = self.host("small", {"vol1": MIB})
        there.disk("vol1").write(0, b"x" * 4096)

        def refused(*command):
            done = here.replica(*command, check=False)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            return done.stderr

        self.assertIn("--overwrite", refused("create", "vol1", *there.to("vol1")))
        self.assertIn("weft volume resize", refused("create", "vol1", *small.to("vol1")))
        self.assertIn("not served by this server", refused("create", "vol1", *there.to("other")))
        self.assertIn("not served by this server", refused("create", "other", *there.to("vol1")))
        self.assertIn("is not replicated", refused("suspend", "vol1"))
        for name in ["127.0.0.1", "localhost"]:
            own = [str(word).replace("127.0.0.1", name) for word in here.to("vol1")]
            self.assertIn(f"{name} is this server itself", refused("create", "vol1", *own))
        self.assertEqual((here.status(), there.status()), ([], []))
        # A refused command leaves nothing that blocks the next one.
        self.create(here, there, "--overwrite")
        here.wait_until_following()
        self.assertIn("already", refused("create", "vol1", *there.to("vol1")))
        here.stop()
        self.assertIn("no server runs", refused("status"))

    def test_nobody_without_the_password_comes_in_and_nobody_is_shown_the_share(self):
        here, there = self.pair()
        options = there.to("vol1")
        stranger = weft.run(
            weft.WEFT, "replica", "create", "vol1", *options, "--state-dir", here.state, check=False, password="wrong"
        )
        self.assertNotEqual(stranger.returncode, 0)
        shares = weft.run(weft.WEFT, "ls", f"smb://{weft.USER}@127.0.0.1:{there.ports['smb']}").stdout
        self.assertNotIn("replica", shares)
        listed = weft.run(
            weft.WEFT, "ls", f"smb://{weft.USER}@127.0.0.1:{there.ports['smb']}/weft-replica$", check=False
        )
        self.assertEqual(listed.stdout, "")


if __name__ == "__main__":
    unittest.main()
