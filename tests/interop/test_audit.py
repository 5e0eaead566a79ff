"""The audit log: what smbclient and libnfs do as several users is told line by line, its loss is told, and a disk that
is full or hangs below it stops no client. `--log-format json`, and the priorities of the journal."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import tempfile
import time
import unittest

import fuse
import weft
from test_across import Nfs3
from test_endings import until
from test_nfs import libnfs

FILE = weft.FREE_PORTS + weft.NO_ACCOUNTS + """
[nfs]
root_squash = false

[audit]
file = "{audit}"
{more}

[shares.team]
path = "team"
read = ["@staff"]
write = ["alice"]

[shares.data]
path = "data"
"""
UID = os.geteuid()
# Fields that differ from run to run.
VARIES = {"v", "time", "client", "sid", "uid", "transport"}


class Audited(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-audit-")))
        self.state, self.audit = self.work / "state", self.work / "audit.jsonl"
        for folder in ["team", "data"]:
            (self.work / folder).mkdir()
        (self.work / "team" / "plan.txt").write_text("of the team")
        for user, *options in [("alice",), ("bob", "--group", "staff")]:
            self.weft("user", "add", user, *options, password=f"of-{user}")

    def weft(self, *arguments, password="", check=True):
        return weft.run(weft.WEFT, *arguments, "--state-dir", self.state, password=password, check=check)

    def configure(self, more="", audit=None):
        (self.work / "weft.toml").write_text(FILE.format(audit=audit or self.audit, more=more))

    def serving(self, *options, more="", audit=None):
        self.configure(more, audit)
        return weft.configured(self.work / "weft.toml", self.state, *options)

    def smbclient(self, server, user, commands, share="team", password=None):
        password = f"of-{user}" if password is None else password
        return weft.smbclient(server, commands, share=share, user=user, password=password, check=False, cwd=self.work)

    def lines(self, path=None):
        """The lines, each checked: JSON with the version and a time."""
        found = []
        for line in (path or self.audit).read_text().splitlines():
            event = json.loads(line)
            self.assertEqual(event["v"], 1, line)
            self.assertRegex(event["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            found.append(event)
        return found

    def told(self, *events):
        """The lines of these events without what varies, as they are in the file."""
        lines = [line for line in self.lines() if not events or line["event"] in events]
        return [{key: value for key, value in line.items() if key not in VARIES} for line in lines]


class Lines(Audited):
    def test_two_users_over_smb(self):
        (self.work / "new").write_text("x" * 1000)
        with self.serving() as server:
            self.assertEqual(stat.S_IMODE(self.audit.stat().st_mode), 0o600)
            self.smbclient(server, "alice", "put new a.txt; rename a.txt b.txt; get b.txt -; del b.txt; mkdir folder")
            self.assertIn("NT_STATUS_ACCESS_DENIED", self.smbclient(server, "bob", "put new c.txt"))
            self.smbclient(server, "bob", "get plan.txt -")
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.smbclient(server, "bob", "ls", password="wrong"))
        alice = {"result": "ok", "user": "alice", "protocol": "smb"}
        bob = alice | {"user": "bob"}
        team = {"share": "team"}
        expected = [
            {"event": "logon"} | alice,
            {"event": "connect"} | alice | team,
            {"event": "create", "path": "a.txt"} | alice | team,
            {"event": "write", "path": "a.txt"} | alice | team,
            {"event": "close", "path": "a.txt", "read_bytes": 0, "written_bytes": 1000} | alice | team,
            {"event": "rename", "path": "a.txt", "to": "b.txt"} | alice | team,
            {"event": "open", "path": "b.txt"} | alice | team,
            {"event": "close", "path": "b.txt", "read_bytes": 1000, "written_bytes": 0} | alice | team,
            {"event": "delete", "path": "b.txt"} | alice | team,
            {"event": "create", "path": "folder", "object": "directory"} | alice | team,
            {"event": "logoff"} | alice,
            {"event": "logon"} | bob,
            {"event": "connect"} | bob | team,
            {"event": "open", "path": "c.txt", "result": "denied", "status": "STATUS_ACCESS_DENIED"} | (team | {
                "user": "bob", "protocol": "smb"}),
            {"event": "logoff"} | bob,
            {"event": "logon"} | bob,
            {"event": "connect"} | bob | team,
            {"event": "open", "path": "plan.txt"} | bob | team,
            {"event": "close", "path": "plan.txt", "read_bytes": 11, "written_bytes": 0} | bob | team,
            {"event": "logoff"} | bob,
        ]
        told = [line for line in self.told() if line["event"] != "admin"]
        self.assertTrue(all(line["access"] for line in told if line["event"] == "open"), told)
        refused = next(line for line in told if line["event"] == "logon" and line["result"] == "denied")
        told.remove(refused)
        told = [{k: v for k, v in line.items() if k != "access" and v != "file"} for line in told]
        # A session ends when its connection does, which the next client does not wait for.
        for kept in [lambda line: line["event"] == "logoff", lambda line: line["event"] != "logoff"]:
            self.assertEqual([line for line in told if kept(line)], [line for line in expected if kept(line)])
        self.assertEqual((refused["event"], refused["result"], refused["user"]), ("logon", "denied", "bob"))
        self.assertEqual(refused["status"], "STATUS_WRONG_PASSWORD")
        for line in self.lines():
            if line["event"] != "admin":
                self.assertRegex(line["client"], r"^127\.0\.0\.1:\d+$")
                self.assertEqual(line["transport"], "tcp")
                if line["result"] == "ok":
                    self.assertRegex(line["sid"], r"^S-1-5-21-\d+-\d+-\d+-\d+$")

    def test_nfs_of_both_versions(self):
        (self.work / "new").write_bytes(b"y" * 3000)
        with self.serving() as server:
            weft.run("nfs-cp", self.work / "new", libnfs(server, "three"))
            weft.run("nfs-cat", libnfs(server, "three"))
            weft.run("nfs-cat", libnfs(server, "three"))
            four = lambda path: f"nfs://127.0.0.1/{path}?version=4&nfsport={server.ready['nfs_port']}"
            weft.run("nfs-cp", self.work / "new", four("data/four"))
            weft.run("nfs-cat", four("data/four"))
        data = {"share": "data", "result": "ok"}
        three = [line for line in self.told() if line.get("protocol") == "nfs3"]
        known = {"protocol": "nfs3"} | data
        creates = [line for line in three if line["event"] != "connect"]
        self.assertEqual(creates, [
            {"event": "create", "path": "three", "object": "file"} | known,
            # The client truncates the file that it has just created, and writes it.
            {"event": "write", "path": "three"} | known,
            {"event": "write", "path": "three"} | known,
            # Once, although it is read twice.
            {"event": "open", "path": "three", "access": ["read"]} | known,
        ], three)
        self.assertEqual({line["share"] for line in three}, {"data"})
        self.assertIn({"event": "connect"} | known, three)

        four = [line for line in self.told() if line.get("protocol") == "nfs4"]
        known = {"protocol": "nfs4"} | data
        self.assertEqual(four[0], {"event": "connect"} | known)
        opened = [line for line in four if line["event"] in ("create", "write", "close", "open")]
        self.assertEqual([line["event"] for line in opened], ["create", "write", "close", "open", "close"], four)
        self.assertEqual({line["path"] for line in opened}, {"four"})
        self.assertEqual(opened[2], {"event": "close", "path": "four", "read_bytes": 0, "written_bytes": 3000} | known)
        self.assertEqual(opened[4]["read_bytes"], 3000)
        for line in self.lines():
            if line.get("protocol") in ("nfs3", "nfs4"):
                self.assertEqual((line["uid"], line["transport"]), (UID, "tcp"), line)

    def test_events_are_chosen_and_names_are_told_without_loss(self):
        name = b"f\xff\n.txt"
        (self.work / "data" / os.fsdecode(name)).write_text("x")
        with self.serving(more='events = ["delete", "rights", "denied"]') as server:
            client = Nfs3(server.ready)
            client.begin(name)
            for done in [client.change_mode(), client.create(), client.remove()]:
                self.assertEqual(done, "ok")
            client.end()
            self.smbclient(server, "bob", "put weft.toml c.txt")
        text = self.audit.read_text()
        self.assertIn('"path":"f\ufffd\\n.txt","path_hex":"66ff0a2e747874"', text)
        told = [(line["event"], line["result"]) for line in self.lines()]
        self.assertEqual(told, [("rights", "ok"), ("delete", "ok"), ("open", "denied")])
        rights, delete, _ = self.lines()
        self.assertEqual((rights["changes"], rights["protocol"]), (["mode"], "nfs3"))
        self.assertEqual(bytes.fromhex(delete["path_hex"]), name)

    def test_administrators_and_rotation(self):
        old = self.work / "audit.jsonl.1"
        with self.serving() as server:
            self.weft("user", "add", "carol", "--group", "staff", password="of-carol")
            self.weft("user", "remove", "carol")
            (self.work / "more").mkdir()
            self.audit.rename(old)
            with open(self.work / "weft.toml", "a") as out:
                out.write('[shares.more]\npath = "more"\n')
            self.weft("reload")
            until(lambda: self.audit.exists())
            server.process.send_signal(signal.SIGHUP)
            until(lambda: len(self.told("admin")) >= 2)
        first, second = self.lines(old), self.lines()
        commands = [(line["command"].split()[0], line.get("added"), line.get("removed")) for line in first]
        self.assertEqual(commands[:3], [("start", None, None), ("users", ["carol"], []), ("users", [], ["carol"])])
        by_user = [line for line in first if line["command"] == "users"]
        self.assertEqual({(line["client"], line["uid"]) for line in by_user}, {("admin socket", UID)})
        commands = [(line["command"], line["client"]) for line in first[3:] + second]
        self.assertEqual(commands, [("reload", "admin socket"), ("reload", "signal"), ("stop", "local")])
        reload = next(line for line in first + second if line["command"] == "reload")
        self.assertEqual((reload["added"], reload["removed"]), (["more"], []))

    def test_a_file_that_cannot_be_opened_anew_is_a_warning_of_the_status(self):
        folder = self.work / "log"
        folder.mkdir()
        audit = folder / "audit.jsonl"
        with self.serving(audit=audit):
            self.assertNotIn("audit log", self.weft("status").stdout)
            audit.rename(folder / "audit.jsonl.1")
            audit.mkdir()
            self.weft("reload")
            until(lambda: "audit.jsonl: is not a regular file; the file that was open is used on" in self.weft("status").stdout)
            audit.rmdir()
            self.weft("reload")
            until(lambda: "audit log" not in self.weft("status").stdout)

    def test_what_the_end_cannot_tell_the_next_start_tells(self):
        with self.serving() as server:
            # A disk that is full often has room for one more line; this file has not.
            self.audit.unlink()
            self.audit.mkdir()
            self.smbclient(server, "alice", "ls")
        [kept] = self.state.glob("audit-*.lost")
        number = int(kept.read_text())
        self.assertGreaterEqual(number, 4, "log-on, connection, log-off and the stop")
        self.assertRegex(server.log_text(), rf"ERROR audit log \S+audit.jsonl: {number} events are missing at its end: "
                         r".*audit.jsonl: is not a regular file; the next start tells the number there")
        self.audit.rmdir()
        with self.serving():
            self.assertFalse(kept.exists())
        told = [(line["event"], line.get("lost")) for line in self.lines()]
        self.assertEqual(told, [("lost", number), ("admin", None), ("admin", None)])

    def test_a_file_that_cannot_be_used_is_named(self):
        for audit, said in [(self.work / "none" / "a", "No such file"), (self.state, "not a regular file"),
                            (self.work / "team" / "a.jsonl", "they could read and change")]:
            with self.subTest(audit=audit):
                self.configure(audit=audit)
                done = weft.run(weft.WEFT, "serve", "--config", self.work / "weft.toml", "--state-dir", self.state, check=False)
                self.assertEqual((done.returncode != 0, "audit.file" in done.stderr), (True, True), done.stderr)
                self.assertIn(said, done.stderr)
        (self.work / "weft.toml").write_text('[audit]\nevents = ["opne"]\n[shares.data]\npath = "data"\n')
        done = weft.run(weft.WEFT, "config", "check", self.work / "weft.toml", check=False)
        self.assertRegex(done.stderr + done.stdout, r'weft\.toml:2:\d+.*\n?.*"opne"')


@unittest.skipUnless(os.geteuid() == 0, "mounting a tmpfs needs root")
class FullDisk(Audited):
    def test_what_a_full_disk_loses_is_told(self):
        disk = self.work / "disk"
        disk.mkdir()
        weft.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk)
        self.addCleanup(weft.run, "umount", "--lazy", disk)
        audit = disk / "audit.jsonl"
        (self.work / "new").write_text("x")
        with self.serving(audit=audit) as server:
            (disk / "filler").write_bytes(b"\0" * (48 << 10))
            for _ in range(4):
                self.smbclient(server, "alice", "; ".join(["put new a", "del a"] * 10))
            until(lambda: "events are lost" in server.log_text())
            said = self.weft("status").stdout
            self.assertRegex(said, r"audit log: \d+ events have been lost since the start: .*audit\.jsonl: No space left on device")
            (disk / "filler").unlink()
            until(lambda: any(line["event"] == "lost" for line in self.lines(audit)))
            self.smbclient(server, "alice", "put new last")
        lines = self.lines(audit)
        lost = sum(line["lost"] for line in lines if line["event"] == "lost")
        written = [line for line in lines if line["event"] not in ("lost", "admin")]
        # Per session log-on, connection, log-off; per round create, write, close and delete.
        self.assertEqual(lost + len(written), 4 * (3 + 10 * 4) + 3 + 3)
        self.assertGreater(lost, 0)
        self.assertIn("last", {line.get("path") for line in written})


@unittest.skipIf(fuse.why_not(), fuse.why_not())
class HungDisk(Audited):
    def test_a_hung_disk_below_the_audit_log_stops_no_client(self):
        disk = self.work / "disk"
        disk.mkdir()
        mounted = self.enterContext(fuse.Mount(disk, {"audit.jsonl": b""}))
        (self.work / "new").write_text("x")
        with self.serving("--cores", "1", audit=disk / "audit.jsonl") as server:
            mounted.hold(fuse.WRITE)
            for round in range(30):
                began = time.monotonic()
                said = self.smbclient(server, "alice", "; ".join(["put new a", "del a"] * 20))
                self.assertNotIn("NT_STATUS", said)
                self.assertLess(time.monotonic() - began, 30, f"round {round}")
            mounted.wait_until_held()
            mounted.release()
        self.assertNotIn("panic", server.log_text())


class Logs(Audited):
    def test_json_for_machines(self):
        with self.serving("--log-format", "json") as server:
            self.smbclient(server, "alice", "ls")
            self.smbclient(server, "alice", "ls", password="wrong")
        lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
        logged_on = next(line for line in lines if line["message"] == "logged on")
        self.assertEqual((logged_on["level"], logged_on["user"]), ("INFO", "alice"))
        self.assertRegex(logged_on["source"], r"^127\.0\.0\.1:\d+$")
        self.assertIn("WARN", {line["level"] for line in lines})
        self.assertFalse(re.search(r"^\d{4}-\d\d-\d\dT", server.log_text(), re.M), server.log_text())

    def test_priorities_in_the_journal(self):
        self.configure()
        log = self.work / "journal"
        command = [str(weft.WEFT), "serve", "--config", str(self.work / "weft.toml"), "--state-dir", str(self.state), "--json"]
        with open(log, "wb") as out:
            found = os.fstat(out.fileno())
            environment = dict(os.environ, JOURNAL_STREAM=f"{found.st_dev}:{found.st_ino}")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, env=environment, text=True)
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), 0)
            process.stdout.close()
        text = log.read_text()
        self.assertRegex(text, r"(?m)^<6>configuration: ")
        self.assertRegex(text, r"(?m)^<6>draining for at most ")
        self.assertFalse(re.search(r"^\d{4}-", text, re.M), text)


if __name__ == "__main__":
    unittest.main()
