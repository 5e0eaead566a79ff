"""Samba's own test suite against `weft serve`, beside Debian's smbd.

Prints a line per suite and every test that smbd of the same version passes and Weft does not. Exits non-zero when fewer
tests pass than promised or when such a test is not named, with its reason, in docs/interop.md. --record writes weft-VERSION.tsv anew.
smbd has no rows of suites that need one of its modules; of those must pass what weft-VERSION.tsv says passes.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import csv
import pathlib
import queue
import re
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
import weft  # noqa: E402
from torture import SUITES, Torture, version  # noqa: E402

# How many tests must pass in all, by the version of smbtorture: a few less than do, because some ask how fast the machine is.
PROMISE = {"4.17": 447, "4.22": 513}

# Suites that hold up connections by packet filters, one at a time: two that run together undo each other's filters.
FILTERING = {"smb2.oplock", "smb2.multichannel"}


def load(path):
    """{(suite, test): verdict} of a row that was written before."""
    with open(path) as rows:
        return {(row["suite"], row["test"]): row["result"] for row in csv.DictReader(rows, delimiter="\t")}


def suite_of(test):
    """smb2.oplock of smb2.oplock.batch22b."""
    return ".".join(test.split(".")[:2])


def folder_shares(root, count):
    folders = [root / f"share{n}" for n in range(count)]
    for folder in folders:
        folder.mkdir()
    return folders


def torture(suites, jobs, raw, options, own_network):
    """Runs the suites, a few at a time, each on a share that no other uses: [(suite, test, verdict, reason)]."""
    with tempfile.TemporaryDirectory(prefix="weft-torture-") as root:
        folders = folder_shares(pathlib.Path(root), jobs)
        # smb2.acls.ACCESSBASED asks for a share of this name.
        hiding = pathlib.Path(root) / "hideunread"
        hiding.mkdir()
        # vfs.fruit compares the model with this one.
        config = pathlib.Path(root) / "weft.toml"
        config.write_text('[smb]\nmac_model = "MacSamba"\n')
        options = ["--config", config, *options]
        # Its tests speak every dialect, signed and not.
        options = [hiding, "--hide-unreadable", hiding.name, "--min-dialect", "2.0.2", "--signing", "enabled", *options]
        server = weft.Server(folders[0], *folders[1:], *options, ports={"smb": 445} if own_network else None)
        filters = ["--option=torture:use_iptables=yes"] if own_network else []
        free = queue.SimpleQueue()
        for folder in folders:
            free.put(folder.name)

        filtering = threading.Lock()

        def one(suite):
            with filtering if suite_of(suite) in FILTERING else contextlib.nullcontext():
                return alone(suite)

        def alone(suite):
            share = free.get()
            try:
                runner = Torture("127.0.0.1", server.smb_port, share, weft.USER, weft.PASSWORD, filters, raw=raw)
                return [(suite, test, *verdict) for test, verdict in runner.suite(suite).items()]
            finally:
                free.put(share)

        try:
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                rows = []
                for done in pool.map(one, suites):
                    rows += done
                    passed = sum(verdict == "PASS" for _, _, verdict, _ in done)
                    print(f"{done[0][0]:28} {passed:3} of {len(done):3} pass", flush=True)
                return rows
        finally:
            log = server.log_text()
            if status := server.stop():
                raise SystemExit(f"{log}\nweft ended with status {status}")


def summary(rows, smbd, known):
    """A table: per suite, what passes here and with smbd."""
    ours, theirs = collections.Counter(), collections.Counter()
    for suite, _, verdict, _ in rows:
        ours[suite] += verdict == "PASS"
    for (suite, _), verdict in smbd.items():
        theirs[suite] += verdict == "PASS" and suite in ours
    print(f"\n{'suite':28} {'weft':>5} {'smbd ' + known:>10}")
    for suite in ours:
        print(f"{suite:28} {ours[suite]:5} {theirs[suite]:10}")
    print(f"{'in all':28} {ours.total():5} {theirs.total():10}\n")
    return ours.total()


def explained():
    """The tests whose failure docs/interop.md gives a reason for, named like `smb2.lock.rw-shared`."""
    return set(re.findall(r"`(smb2\.[\w.-]+)`", (ROOT / "docs" / "interop.md").read_text()))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("suites", nargs="*", help="smb2.lock ...; all by default")
    arguments.add_argument("--jobs", type=int, default=4, help="suites at a time")
    arguments.add_argument("--record", action="store_true", help="write weft-VERSION.tsv anew")
    arguments.add_argument("--raw", type=argparse.FileType("w"), help="everything that smbtorture says goes here")
    arguments.add_argument("--weft-option", action="append", default=[], help="further options of weft serve")
    arguments.add_argument("--own-network", action="store_true", help="the network is ours: port 445 and packet filters")
    arguments = arguments.parse_args()
    whole = not arguments.suites
    suites = arguments.suites or [name if "." in name else f"smb2.{name}" for name in SUITES]

    known = version()
    if known not in PROMISE:
        raise SystemExit(f"smbtorture {known} was never run against smbd {known}: there are rows of {', '.join(PROMISE)}")
    rows = torture(suites, arguments.jobs, arguments.raw, arguments.weft_option, arguments.own_network)
    smbd = load(HERE / f"smbd-{known}.tsv")
    passed = summary(rows, smbd, known)
    # What must pass: what smbd passes, but for written reasons.
    reasons = explained()
    wanted = {key for key, verdict in smbd.items() if verdict == "PASS" and ".".join(key) not in reasons}
    # Suites for modules of smbd, which its rows lack.
    before = load(HERE / f"weft-{known}.tsv")
    rowless = {suite for suite, _ in before} - {suite for suite, _ in smbd}
    wanted |= {key for key, verdict in before.items() if verdict == "PASS" and key[0] in rowless}
    short = [row for row in rows if row[2] != "PASS" and row[:2] in wanted]
    for suite, test, verdict, reason in short:
        print(f"{verdict:8} {suite}.{test}: {reason}")
    if arguments.record:
        with open(HERE / f"weft-{known}.tsv", "w") as out:
            out.write("suite\ttest\tresult\n")
            out.writelines(f"{suite}\t{test}\t{verdict}\n" for suite, test, verdict, _ in rows)
    if whole and passed < PROMISE[known]:
        short.append(None)
        print(f"falls short: {passed} tests pass, promised {PROMISE[known]}")
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
