"""Runs suites of Samba's smbtorture and reads their verdicts.

A suite runs in one go; a test that got no verdict there (the suite hung, or died in it) runs once more alone, so one
hang does not lose the rest. Verdicts: PASS FAIL ERROR SKIP TIMEOUT CRASH NORUN NOSUITE.
"""

import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import time

# Every suite of smb2.* but those that want a special share or host: scans that take minutes, paired or interactive
# ones (hold-*, check-sharemode), ones that look into the share's folder themselves (kernel-oplocks, notify-inotify),
# and ones for modules of smbd (aio_delay, twrp, create_no_streams, samba3misc, ...) but that for Macs, vfs.fruit.
SUITES = """
connect create read rw lock lease dirlease oplock durable-open durable-open-disconnect durable-v2-open
durable-v2-delay durable-v2-regressions persistent-handles replay multichannel session session-id tcon notify ioctl
ioctl-on-stream acls sdread secleak maximum_allowed streams rename getinfo setinfo dir mkdir fileid charset mangle
openattr winattr compound compound_find compound_async credits sharemode deny delete-on-close-perms timestamps
timestamp_resolution maxfid bench name-mangling winattr2 stream-inherit-perms vfs.fruit
""".split()

# The command; another root directory's, for example: chroot DIRECTORY smbtorture.
SMBTORTURE = shlex.split(os.environ.get("SMBTORTURE", "smbtorture"))

VERDICTS = {"success": "PASS", "failure": "FAIL", "error": "ERROR", "skip": "SKIP", "xfail": "FAIL"}
LINE = re.compile(r"^(success|failure|error|skip|xfail): ?(.+?)\s*(?: \[\s*(.*))?$")


class Torture:
    """smbtorture against one share of one server."""

    def __init__(self, host, port, share, user, password, options=(), suite_limit=300, test_limit=60, raw=None):
        self.command = [
            *SMBTORTURE, f"//{host}/{share}", "-p", str(port), "-U", f"{user}%{password}", "--fullname", *options,
        ]
        self.suite_limit, self.test_limit, self.raw = suite_limit, test_limit, raw

    def suite(self, suite):
        """{test: (verdict, reason)} of one suite, in its own order."""
        names = listed(suite)
        if names is None:
            return {"-": ("NOSUITE", "this smbtorture has no such suite")}
        seen = self.run(suite, self.suite_limit)
        for name in names:
            if seen.get(name, ("TIMEOUT", ""))[0] in ("TIMEOUT", "CRASH"):
                again = self.run(name, self.test_limit)
                seen[name] = again.get(name) or seen.get(name) or ("NORUN", "")
        prefix = suite + "."
        ours = dict.fromkeys(names + [name for name in seen if name == suite or name.startswith(prefix)])
        return {name.removeprefix(prefix): seen.get(name, ("NORUN", "")) for name in ours}

    def run(self, what, limit):
        """{full name: (verdict, reason)} of one run of smbtorture."""
        # It leaves an empty folder where it was started.
        with tempfile.TemporaryDirectory(prefix="weft-smbtorture-") as here:
            return self.run_in(here, what, limit)

    def run_in(self, here, what, limit):
        process = subprocess.Popen(
            [*self.command, what], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=here,
        )
        reader = Reader(self.raw)
        end = time.monotonic() + limit
        rest = b""
        hung = False
        while True:
            left = max(0, end - time.monotonic())
            hung = not select.select([process.stdout], [], [], left)[0] or left == 0
            data = b"" if hung else os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                reader.line(line.decode("utf8", "replace"))
        if hung:
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        return reader.end("TIMEOUT" if hung else "CRASH", f"exit status {process.returncode}")


class Reader:
    """The subunit text that smbtorture prints: `test: NAME`, then `success: NAME` or `failure: NAME [` reason `]`."""

    def __init__(self, raw):
        self.raw, self.seen, self.running, self.wants_reason = raw, {}, None, None

    def line(self, line):
        if self.raw:
            self.raw.write(line + "\n")
        if self.wants_reason:
            if line.strip() and line.strip() != "]":
                verdict, _ = self.seen[self.wants_reason]
                self.seen[self.wants_reason] = (verdict, os.path.basename(line.strip())[:200])
                self.wants_reason = None
            return
        if line.startswith("test: "):
            self.running = line[6:].strip()
        elif found := LINE.match(line):
            word, name, reason = found.groups()
            self.seen[name] = (VERDICTS[word], (reason or "").strip())
            self.wants_reason = name if line.rstrip().endswith("[") else None
            self.running = None if self.running == name else self.running

    def end(self, verdict, reason):
        if self.running and self.running not in self.seen:
            self.seen[self.running] = (verdict, reason)
        return self.seen


def version():
    """4.22, for example."""
    said = subprocess.run([*SMBTORTURE, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+\.\d+)\.\d+", said)
    if not found:
        raise SystemExit(f"{' '.join(SMBTORTURE)} does not run, or does not say its version: {said!r}")
    return found[1]


def listed(suite):
    """The tests of a suite by full name, or None where this smbtorture has no such suite."""
    suites = subprocess.run([*SMBTORTURE, "--list-suites"], capture_output=True, text=True).stdout.split()
    if suite not in suites and ".".join(suite.split(".")[:2]) not in suites:
        return None
    names = []
    for line in subprocess.run([*SMBTORTURE, "--list", suite], capture_output=True, text=True).stdout.splitlines():
        parts = line.split(".")
        if len(parts) > 2 and parts[-1] == parts[-2]:
            parts.pop()
        name = ".".join(parts)
        # The list goes by prefix: smb2.create also names smb2.create_no_streams.
        if name == suite or name.startswith(suite + "."):
            names.append(name)
    return names or [suite]
