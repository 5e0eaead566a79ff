#!/usr/bin/env python3
"""Runs the executing fuzzers in turns, coverage-guided, from the kept corpora, and updates these.

Each kind gets an equal share of --minutes. A finding is stored in fuzz/artifacts/TARGET, its reproduction is printed,
and the exit status is 1. Afterwards, fuzz/corpus/TARGET covers every reached edge in few and small files, and includes
earlier findings (found-*).
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
# The turns, and the targets that share one.
KINDS = {
    "SMB": ["smb_server"],
    "NFS": ["nfs_server"],
    "replica's destination": ["repl_destination"],
    "hostile RDMA peer": ["rpcrdma_peer", "smbd_peer"],
}
VERSION = "0.13.2"
# Limits of a kept corpus.
MOST_FILES, MOST_BYTES = 399, 2 << 20
# Scripts run to their end, and short ones reach little.
FLAGS = ["-len_control=0", "-max_len=3000", "-timeout=60", "-rss_limit_mb=4096"]
# Interval between progress messages.
TELL_SECONDS = 60


def cargo():
    """The command, its environment and the sanitizer: nightly if installed, else stable with unstable features
    enabled."""
    env = dict(os.environ)
    if shutil.which("cargo-fuzz") is None:
        subprocess.run(["cargo", "install", "--locked", "--version", VERSION, "cargo-fuzz"], check=True)
        env["PATH"] = f"{pathlib.Path.home() / '.cargo/bin'}:{env['PATH']}"
    nightly = subprocess.run(["cargo", "+nightly", "--version"], capture_output=True)
    if nightly.returncode == 0:
        return ["cargo", "+nightly", "fuzz"], env
    env["RUSTC_BOOTSTRAP"] = "1"
    return ["cargo", "fuzz"], env


class Fuzzer:
    def __init__(self, targets):
        self.cargo, self.env = cargo()
        self.where = ["--fuzz-dir", str(HERE)]
        # The same dependency versions as the program.
        shutil.copy(HERE.parent / "Cargo.lock", HERE / "Cargo.lock")
        self.sanitizer = []
        if not self.build(targets):
            # A toolchain without the sanitizer's runtime library.
            self.sanitizer = ["-s", "none"]
            if not self.build(targets):
                sys.exit("cannot build the fuzzers: see above")

    def build(self, targets):
        return all(
            subprocess.run([*self.cargo, "build", *self.where, *self.sanitizer, target], env=self.env).returncode == 0
            for target in targets
        )

    def run(self, target, folders, *flags):
        """One run of libFuzzer: its exit status and output. The latest progress line is shown once a minute."""
        command = [*self.cargo, "run", *self.where, *self.sanitizer, target, *map(str, folders), "--", *flags]
        said, told = [], time.monotonic()
        with subprocess.Popen(
            command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as fuzzer:
            for line in fuzzer.stderr:
                said.append(line)
                if " cov: " in line and time.monotonic() - told >= TELL_SECONDS:
                    print(f"{target}: {' '.join(line.split())}", file=sys.stderr, flush=True)
                    told = time.monotonic()
        return fuzzer.returncode, "".join(said)

    def fuzz(self, target, seconds):
        """One turn: (executions, edges, findings)."""
        kept, learned = HERE / "corpus" / target, HERE / "target" / "learned" / target
        kept.mkdir(parents=True, exist_ok=True)
        learned.mkdir(parents=True, exist_ok=True)
        before = set((HERE / "artifacts" / target).glob("*"))
        code, said = self.run(target, [learned, kept], *FLAGS, f"-max_total_time={seconds}", "-print_final_stats=1")
        found = sorted(set((HERE / "artifacts" / target).glob("*")) - before)
        executions = re.findall(r"number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)", said, re.M) or ["0"]
        edges = re.findall(r"cov: (\d+)", said) or ["0"]
        if code != 0:
            print(said[-4000:], file=sys.stderr)
            print(f"{target}: reproduce with: {' '.join(self.cargo)} run {target} {' '.join(map(str, found))}", file=sys.stderr)
        elif int(executions[-1]) == 0:
            raise RuntimeError(f"{target} executed nothing:\n{said[-4000:]}")
        return int(executions[-1]), int(edges[-1]), code != 0

    def keep(self, target):
        """Reduces the corpus to few files that reach every edge reached before."""
        kept, learned = HERE / "corpus" / target, HERE / "target" / "learned" / target
        with tempfile.TemporaryDirectory() as folder:
            few = pathlib.Path(folder)
            # Edges only: distinguishing how often each is passed takes ten times the files.
            code, said = self.run(target, [few, learned, kept], *FLAGS, "-set_cover_merge=1", "-use_counters=0")
            if code != 0:
                raise RuntimeError(f"cannot reduce the corpus of {target}:\n{said[-4000:]}")
            files = sorted(few.iterdir(), key=lambda file: (file.stat().st_size, file.name))
            if not files:
                raise RuntimeError(f"nothing of the corpus of {target} is left:\n{said[-4000:]}")
            # Earlier findings stay, even if other files reach the same edges.
            for old in kept.iterdir():
                if not old.name.startswith("found-"):
                    old.unlink()
            total = 0
            for file in files[:MOST_FILES]:
                data = file.read_bytes()
                total += len(data)
                if total > MOST_BYTES:
                    break
                (kept / hashlib.sha1(data).hexdigest()[:12]).write_bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="total minutes, shared equally by the kinds")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent turns, each on a core of its own")
    parser.add_argument("targets", nargs="*", help="fuzzers to run; by default all executing ones")
    args = parser.parse_args()
    known = [target for targets in KINDS.values() for target in targets]
    strangers = set(args.targets) - set(known)
    if strangers:
        parser.error(f"no executing fuzzer {' or '.join(sorted(strangers))}; known: {', '.join(known)}")
    if not args.minutes > 0:
        parser.error("--minutes must be above 0")
    if args.jobs < 1:
        parser.error("--jobs must be at least 1")
    kinds = {kind: [t for t in targets if not args.targets or t in args.targets] for kind, targets in KINDS.items()}
    kinds = {kind: targets for kind, targets in kinds.items() if targets}
    fuzzer = Fuzzer([target for targets in kinds.values() for target in targets])
    turns = [
        (target, max(1, int(args.minutes * 60 / len(kinds) / len(targets)))) for targets in kinds.values() for target in targets
    ]

    def turn(target, seconds):
        executions, edges, found = fuzzer.fuzz(target, seconds)
        if not found:
            fuzzer.keep(target)
        return target, seconds, executions, edges, found

    # The long turns first, so that concurrent turns end at about the same time.
    turns.sort(key=lambda turn: -turn[1])
    with ThreadPoolExecutor(args.jobs) as several:
        try:
            done = list(several.map(lambda each: turn(*each), turns))
        except RuntimeError as why:
            sys.exit(str(why))
    rows, findings = [], 0
    for target, seconds, executions, edges, found in done:
        findings += found
        files = list((HERE / "corpus" / target).iterdir())
        size = sum(file.stat().st_size for file in files)
        rows.append((target, seconds / 60, executions, edges, len(files), size, "one" if found else "none"))
    print("| fuzzer | minutes | executions | edges | kept corpus | findings |\n|---|---|---|---|---|---|")
    for target, minutes, executions, edges, files, size, found in rows:
        print(f"| `{target}` | {minutes:.1f} | {executions:,} | {edges:,} | {files} files, {size / 1024:.0f} KiB | {found} |")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
