"""weft status --watch on a terminal: a page that follows the server and the terminal's size, and restores the
terminal."""

import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import weft

ENTER, LEAVE, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def solid(text):
    """Without blanks, and without sequences that move the cursor or change colours."""
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]| ", b"", text)


class Screen:
    """A terminal that shows the page."""

    def __init__(self, state, columns=120, rows=30):
        self.leader, follower = pty.openpty()
        self.size(columns, rows)
        self.before = termios.tcgetattr(follower)
        self.follower = follower
        command = [str(weft.WEFT), "status", "--watch", "--state-dir", str(state)]
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.seen = b""

    def size(self, columns, rows):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, wanted, after=0):
        """Reads until the text appears; the first `after` bytes do not count. A redraw skips blanks that are already
        there, so blanks do not count either."""
        deadline = time.monotonic() + 30
        while wanted not in self.seen[after:] and solid(wanted) not in solid(self.seen[after:]):
            if time.monotonic() > deadline:
                raise AssertionError(f"{wanted!r} did not come; the last was {self.seen[-600:]!r}")
            if select.select([self.leader], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.leader, 65536)
                except OSError:
                    raise AssertionError(f"the page ended: {self.seen[-600:]!r}, {self.process.stderr.read()!r}")
        return len(self.seen)

    def end(self):
        """Waits for the end; returns the exit status."""
        status = self.process.wait(30)
        while select.select([self.leader], [], [], 0.2)[0]:
            try:
                self.seen += os.read(self.leader, 65536)
            except OSError:
                break
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        os.close(self.follower)
        os.close(self.leader)


class Watch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-state-")
        self.addCleanup(folder.cleanup)
        self.state = pathlib.Path(folder.name)

    def screen(self, **size):
        screen = Screen(self.state, **size)
        self.addCleanup(screen.close)
        return screen

    def given_back(self, screen):
        self.assertIn(LEAVE, screen.seen, "the earlier screen is shown again")
        self.assertIn(CURSOR, screen.seen[screen.seen.rindex(ENTER):], "the cursor is back")
        self.assertEqual(screen.before, termios.tcgetattr(screen.follower), "the terminal echoes and has lines again")

    def test_it_follows_the_server_and_the_size_and_gives_the_terminal_back(self):
        with weft.serving("--state-dir", self.state) as server:
            for ending in (b"q", b"\x03", signal.SIGTERM):
                with self.subTest(ending=ending):
                    screen = self.screen()
                    screen.until(ENTER)
                    screen.until(f"process {server.process.pid}".encode())
                    mark = screen.until(b"no traffic yet")
                    screen.size(44, 12)
                    screen.process.send_signal(signal.SIGWINCH)
                    screen.until(b"q quits", after=mark)
                    if isinstance(ending, bytes):
                        os.write(screen.leader, ending)
                    else:
                        screen.process.send_signal(ending)
                    self.assertEqual(0, screen.end())
                    self.given_back(screen)

    def test_a_key_that_comes_with_a_change_of_size_counts(self):
        with weft.serving("--state-dir", self.state):
            for columns in range(40, 60):
                screen = self.screen()
                screen.until(b"no traffic yet")
                screen.size(columns, 12)
                os.write(screen.leader, b"q")
                self.assertEqual(0, screen.end())

    def test_a_server_that_ends_is_said_and_the_page_stays(self):
        with weft.serving("--state-dir", self.state):
            screen = self.screen()
            screen.until(b"process")
        screen.until(b"no server runs")
        os.write(screen.leader, b"q")
        self.assertEqual(0, screen.end())
        self.given_back(screen)

    def test_without_a_server_the_terminal_is_not_touched(self):
        screen = self.screen()
        self.assertEqual(1, screen.end())
        self.assertNotIn(ENTER, screen.seen)
        self.assertIn(b"no server runs", screen.process.stderr.read())


if __name__ == "__main__":
    unittest.main()
