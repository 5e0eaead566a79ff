"""A program under callgrind, which counts the instructions of its user mode.

Valgrind runs a program some fifty times slower than the processor and one thread at a time, but the number of
instructions that a request costs hardly depends on that."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "interop"))

import callgrind  # noqa: E402
import weft  # noqa: E402

# Longest time for a command of Valgrind's, on a machine that is busy with something else.
PATIENCE = 120
# The processor of the counted program, and of clients that must not disturb it.
PROCESSOR = max(os.sched_getaffinity(0))


class Program:
    """A command of `weft` that prints a line of JSON when it is ready."""

    def __init__(self, binary, work, *arguments):
        self.binary, self.work, self.dumps = binary, pathlib.Path(work), 0
        command = [
            "taskset", "--cpu-list", PROCESSOR, sys.executable, pathlib.Path(__file__).with_name("refuse_io_uring.py"),
            "valgrind", "--tool=callgrind",
            "--instr-atstart=no", f"--vgdb-prefix={work}/vgdb", f"--callgrind-out-file={work}/profile.%p",
            f"--log-file={work}/valgrind.%p.log", binary, *arguments,
        ]
        self.process = weft.Process(command, self.work / "server.log")
        self.pid, self.ready = self.process.process.pid, self.process.ready
        self.go_first()

    def go_first(self):
        """Gives it the processor before all others whenever it can run, if this user may do that."""
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(1))

    def start_counting(self):
        """From here on it is much slower."""
        self.tell("instrumentation", "on")

    def tell(self, *command):
        """A command for callgrind in the program."""
        done = subprocess.run(
            ["vgdb", f"--vgdb-prefix={self.work}/vgdb", f"--pid={self.pid}", *command], capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode != 0:
            raise SystemExit(f"valgrind's vgdb {' '.join(command)}: {done.stdout}{done.stderr}")

    def count(self, work):
        """The profile of what the program does meanwhile."""
        self.rest()
        self.tell("zero")
        work()
        self.rest()
        self.tell("dump")
        self.dumps += 1
        return callgrind.parse(self.file())

    def file(self):
        """The last dump."""
        return self.work / f"profile.{self.pid}.{self.dumps}"

    def rest(self):
        """Returns when the program sleeps. Requests that reach a server that is still busy with the last ones would be received at
        once, or be polled for, which costs another number of instructions."""
        deadline, asleep = time.monotonic() + PATIENCE, 0
        while asleep < 3:
            if time.monotonic() > deadline:
                raise SystemExit("the server does not come to rest")
            time.sleep(0.0002)
            asleep = asleep + 1 if self.sleeps() else 0

    def sleeps(self):
        """Whether none of its threads runs or wants to."""
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            try:
                # Behind the name, which may contain anything.
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended meanwhile.
            if state != "S":
                return False
        return True

    def serve(self, *arguments):
        """Runs a command of `weft` as its client, which gets the processor only while the program sleeps.

        So each request reaches a sleeping server, as those of the other clients do, although this client does not wait for that: a
        request wakes the server, which takes the processor at once and keeps it until it sleeps again (SCHED_FIFO or, for a user who may not
        have that, almost always because of SCHED_IDLE, sched(7)). The client then finds the answer without having slept itself."""

        def yield_to_others():
            os.sched_setaffinity(0, {PROCESSOR})
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

        weft.run(self.binary, *arguments, timeout=PATIENCE, preexec_fn=yield_to_others)

    def stop(self):
        status = self.process.stop()
        if status != 0:
            raise SystemExit(f"the server ended with status {status}: {self.process.log_text()}")

    def crash(self):
        self.process.crash()
