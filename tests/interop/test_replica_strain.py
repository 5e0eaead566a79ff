"""A replicated pair under strain: clients that begin and never end, and a replica with a full disk."""

import contextlib
import os
import random
import socket
import threading
import time
import unittest

from disk import begun_write
from test_replica import Hosts
from test_space import small_disk

MIB = 1 << 20


class Strain(Hosts):
    def test_begun_writes_of_many_clients_do_not_hold_up_synchronous_ones(self):
        here, there = [self.host(name, {"vol1": 16 * MIB, "vol2": 16 * MIB}, "--buffers", "128M") for name in ["here", "there"]]
        self.create(here, there, "--mode", "sync")
        here.wait_until_following()
        disk = here.disk("vol1")
        # The client is active before they come: an idle one may have to make room.
        disk.write(12 * MIB, b"w" * 65536)
        with contextlib.ExitStack() as stack:
            for number in range(300):
                # To the source, to its replica, and to a volume of the same server.
                host = here if number % 3 else there
                name = b"vol1" if number % 2 else b"vol2"
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", host.ports["nbd"])))
                peer.sendall(begun_write(name))
            slowest, until = 0, time.monotonic() + 5
            while time.monotonic() < until:
                begun = time.monotonic()
                disk.write(12 * MIB, b"w" * 65536)
                disk.flush()
                slowest = max(slowest, time.monotonic() - begun)
            self.assertLess(slowest, 3)
        [group] = here.status()
        self.assertFalse(group["engine"]["peers"][0]["unprotected"])
        self.assertEqual(group["engine"]["unprotected_writes"], 0)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a tmpfs needs root")
    def test_a_copy_whose_disk_is_full_says_so_and_goes_on_when_there_is_space(self):
        small = self.enterContext(small_disk())
        here, there = self.host("here", {"vol1": 16 * MIB}), self.host("there", {"vol1": 16 * MIB})
        # Its volume is longer than its disk.
        there.stop()
        there.weft("volume", "remove", "vol1")
        there.weft("volume", "create", "vol1", "--size", "16M", "--file", small / "vol1.img")
        there.start()
        self.create(here, there)
        here.wait_until_following()
        disk, blocks = here.disk("vol1"), [random.Random(number).randbytes(MIB) for number in range(6)]
        (small / "other").write_bytes(bytes(4 * MIB))
        writer = threading.Thread(target=lambda: [disk.write(at * MIB, block) for at, block in enumerate(blocks)], daemon=True)
        writer.start()
        there.wait_for("full", lambda groups: groups[0]["engine"]["full"])
        self.assertIn("a disk on this side is full", there.replica("status").stdout)
        self.assertRegex(there.log_text(), r"group vol1: the disk of volume vol1 \(file .*vol1.img\) is full")
        self.assertFalse(here.status()[0]["engine"]["full"])
        (small / "other").unlink()
        # The operator is not asked for anything more.
        there.wait_for("goes on", lambda groups: not groups[0]["engine"]["full"])
        writer.join(timeout=60)
        self.assertFalse(writer.is_alive())
        here.wait_until_following()
        there.wait_for("applied", lambda groups: groups[0]["engine"]["applied"] == here.status()[0]["engine"]["last"])
        self.assertNotIn("is full", there.replica("status").stdout)
        found = here.replica("verify", "vol1", "--json").stdout
        self.assertIn('"different":0', found.replace(" ", ""))
        with open(small / "vol1.img", "rb") as copy:
            self.assertEqual(copy.read(6 * MIB), b"".join(blocks))


if __name__ == "__main__":
    unittest.main()
