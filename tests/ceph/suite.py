#!/usr/bin/python3
"""Runs everything that is tested over Ceph: the suite of blocks, the NBD tests of tests/interop with volumes on images, and the tests
beside this file. One cluster on loopback serves them all; it ends with this program."""

import os
import pathlib
import subprocess
import sys
import time

import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    began = time.monotonic()
    ceph = cluster.Cluster()
    print(f"a cluster answers at {ceph.address} after {time.monotonic() - began:.1f} s")
    environment = dict(os.environ, WEFT_TEST_CEPH=str(ceph.conf))
    tests = ROOT / "tests"
    environment["PYTHONPATH"] = os.pathsep.join(str(tests / folder) for folder in ["ceph", "interop"])
    python = [sys.executable, "-m", "unittest", "-v"]
    steps = {
        "blocks": (
            ["cargo", "test", "--locked", "-p", "weft-store", "-p", "weft-ceph", "--lib", "--", "blocks"],
            ROOT,
        ),
        "NBD": ([*python, "test_nbd"], tests / "interop"),
        "images": ([*python, "test_rbd"], tests / "ceph"),
    }
    asked = sys.argv[1:] or list(steps)
    failed = []
    try:
        for name in asked:
            command, folder = steps[name]
            step = time.monotonic()
            status = subprocess.run(command, cwd=folder, env=environment).returncode
            print(f"{name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - step:.0f} s", flush=True)
            failed += [name] if status else []
    finally:
        ceph.stop()
    if failed:
        sys.exit("failed over Ceph: " + ", ".join(failed))
    print(f"all of it passed over Ceph in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
