"""Locks of the kernel's NFSv3 client: by NLM, with callbacks, beside those of its NFSv4 client, and over our restart.

The guest and the host are on one network here, because server and client call each other; ports are found by rpcbind."""

import tempfile
import unittest

import guest

RPCBIND = ("--rpcbind-port", 111)
BEGIN = f"""
rpcbind && rpc.statd || exit 90
mkdir /mnt/3 /mnt/4
mount -t nfs -o vers=3,proto=tcp {guest.HOST}:/data /mnt/3 || exit 91
mount -t nfs -o vers=4.1,port={guest.PORTS['nfs']} {guest.HOST}:/data /mnt/4 || exit 92
: > /mnt/3/locked
exec 3<> /mnt/3/locked 4<> /mnt/4/locked
"""


class Locks(unittest.TestCase):
    def setUp(self):
        self.tap = self.enterContext(guest.tap())

    def run_job(self, server, job, **options):
        with guest.Guest(BEGIN + job, tap=self.tap, **options) as machine:
            self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])

    def test_every_way_to_lock(self):
        with guest.serving(*RPCBIND, listen=guest.HOST) as server:
            self.run_job(server, "timeout 1500 connectathon /mnt/3 basic general append special lock || exit 1")

    def test_version_3_and_version_4_keep_each_other_out_and_who_waits_is_told(self):
        job = """
        flock -n 3 || exit 1
        flock -n 4 && exit 2
        flock -u 3
        flock -n 4 || exit 3
        flock -n 3 && exit 4
        # It waits by NLM, and the server calls when the lock is free.
        flock 3 && touch /lab/got & waiter=$!
        sleep 5
        [ ! -e /lab/got ] || exit 5
        flock -u 4
        wait $waiter && [ -e /lab/got ] || exit 6
        # The waiter shares its open with this shell: the lock is held until it is given back.
        flock -n 4 && exit 7
        flock -u 3
        flock -n 4 || exit 8
        """
        with guest.serving(*RPCBIND, listen=guest.HOST) as server:
            self.run_job(server, job)
            self.assertIn("a client was told that it has its lock", server.log_text())

    def test_mount_and_locks_by_udp(self):
        job = f"""
        mount -t nfs -o vers=3,proto=tcp,mountproto=udp {guest.HOST}:/ram /mnt || exit 1
        exec 5<> /mnt/locked
        flock -n 5 && flock -u 5 || exit 2
        rpcinfo -T udp {guest.HOST} 100021 4 || exit 3
        """
        with guest.serving(*RPCBIND, "--nfs-udp", listen=guest.HOST) as server:
            self.run_job(server, job)

    def test_a_lock_outlives_our_restart(self):
        job = """
        flock -n 3 || exit 1
        echo locked
        until [ -e /lab/again ]; do sleep 0.2; done
        # New locks wait until the old ones are back; then ours is still there.
        timeout 200 flock -n 4 && exit 2
        flock -u 3
        timeout 60 flock 4 || exit 3
        """
        with tempfile.TemporaryDirectory(prefix="weft-state-") as state:
            options = [*RPCBIND, "--state-dir", state]
            with guest.serving(*options, listen=guest.HOST) as server:
                with guest.Guest(BEGIN + job, tap=self.tap) as machine:
                    machine.wait_for("locked")
                    server.crash()
                    server.start()
                    told = lambda: "was told to reclaim its locks" in server.log_text()
                    guest.eventually("the client's status monitor is told", told)
                    (machine.folder / "again").touch()
                    self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])


if __name__ == "__main__":
    unittest.main()
