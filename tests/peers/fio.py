"""fio with its nfs engine as a loader: fio.py URL read|write SIZE DEPTH SPAN SECONDS FIO..., FIO being the command that runs it.

Prints "begin" before fio starts (again if it has to start again), and afterwards what it did, as the other loaders do. So the
requests by which fio mounts are part of the server's time. Nothing is warmed up: the server's time for what fio did before
it began to count would be part of it, too.
"""

import json
import os
import signal
import subprocess
import sys

# Seconds that fio may take longer than asked to, and how often it may fail to end.
GRACE = 6
TRIES = 5


def has_nfs(fio):
    """Debian 12's fio has no nfs engine; newer ones do."""
    try:
        return "nfs" in subprocess.run([*fio, "--enghelp"], capture_output=True, text=True).stdout.split()
    except FileNotFoundError:
        return False


def run(command, seconds):
    """What fio prints, or None if it does not end.

    When its time is over it closes the connection without waiting for the requests that are outstanding, and often
    waits for their answers afterwards, whoever serves it. Being asked to end, it then prints what it did; being idle
    until then costs the server nothing."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    # First a request, then an end: jobs are processes of their own.
    for number, wait in [(signal.SIGTERM, seconds + GRACE), (signal.SIGKILL, GRACE)]:
        try:
            out, err = process.communicate(timeout=wait)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
    else:
        process.communicate()
        return None
    if "{" not in out:
        sys.exit(f"fio failed: {out}{err}")
    return out[out.index("{"):]


def main():
    url, operation, size, depth, span, seconds, *fio = sys.argv[1:]
    command = [
        *fio, "--name=load", "--ioengine=nfs", f"--nfs_url={url}", "--filename=/file.bin", f"--bs={size}",
        f"--iodepth={depth}", f"--rw=rand{operation}", "--norandommap", f"--size={span}", "--time_based",
        f"--runtime={float(seconds) * 1000:.0f}ms", "--output-format=json",
    ]
    for _ in range(TRIES):
        print("begin", flush=True)
        found = run(command, float(seconds))
        job = json.loads(found)["jobs"][0] if found else {}
        if job.get("error"):
            sys.exit(f"fio failed: error {job['error']}")
        if job and job[operation]["io_bytes"]:
            break
    else:
        sys.exit(f"fio did not end or did nothing, {TRIES} times in turn")
    job = job[operation]
    print(json.dumps({"operations": job["total_ios"], "bytes": job["io_bytes"], "seconds": job["runtime"] / 1000}), flush=True)
    # Until standard input ends, as the other loaders do.
    sys.stdin.read()


if __name__ == "__main__":
    main()
