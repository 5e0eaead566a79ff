"""fio with its nfs engine as a loader: fio.py URL read|write SIZE DEPTH SPAN SECONDS FIO..., FIO being the command that runs it.

Prints "begin" before fio starts, and afterwards what it did, as the other loaders do. So the time that fio takes to mount is
part of the server's time; it is a few requests. Nothing is warmed up for the same reason: what fio did before it began to
count would count for the server.
"""

import json
import subprocess
import sys


def has_nfs(fio):
    """Debian 12's fio has no nfs engine; newer ones do."""
    try:
        return "nfs" in subprocess.run([*fio, "--enghelp"], capture_output=True, text=True).stdout.split()
    except FileNotFoundError:
        return False


def main():
    url, operation, size, depth, span, seconds, *fio = sys.argv[1:]
    print("begin", flush=True)
    done = subprocess.run(
        [*fio, "--name=load", "--ioengine=nfs", f"--nfs_url={url}", "--filename=/file.bin", f"--bs={size}",
         f"--iodepth={depth}", f"--rw=rand{operation}", "--norandommap", f"--size={span}", "--time_based",
         f"--runtime={float(seconds) * 1000:.0f}ms", "--output-format=json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )
    if done.returncode != 0:
        sys.exit(f"fio failed: {done.stdout}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0][operation]
    print(json.dumps({"operations": job["total_ios"], "bytes": job["io_bytes"], "seconds": job["runtime"] / 1000}), flush=True)
    # Until standard input ends, as the other loaders do.
    sys.stdin.read()


if __name__ == "__main__":
    main()
