"""A server that is restarted while fio writes and verifies through three clients of others: Linux's cifs on a continuously
available share, Linux's NFSv4, and QEMU's NBD client below the guest's disk. They pause, and see no error."""

import contextlib
import json
import os
import pathlib
import socket
import tempfile
import time
import unittest
import unittest.mock

import guest
import test_nfs4
import weft

RESTARTS = int(os.environ.get("RESTARTS", "3"))
# A program of an older version, which the one under test replaces.
OLDER = os.environ.get("WEFT_OLDER")
# Between restarts: an emulated guest needs some seconds to come back.
BETWEEN_SECONDS = 25
NBD_PORT = 10809
# Nothing is cached, so that every operation meets the server. Over NFS and NBD, fio checks each block a few writes after it has
# written it. Over cifs it checks all at the end: a READ of Linux 6.12 that loses its connection fails with EAGAIN, and a FLUSH
# with EBADF, "hard" or not (docs/interop.md).
JOB = """
mkdir -p /mnt/cifs /mnt/nfs
# On a busy host cifs may give its first call up.
insist() {{ "$@" || "$@" || "$@"; }}
insist mount {cifs} /mnt/cifs && insist mount {nfs} /mnt/nfs || exit 1
grep -q persistent /proc/mounts || {{ grep cifs /proc/mounts; exit 2; }}
load() {{ # NAME FILE OPTION...
    fio --name="$1" --filename="$2" --rw=randwrite --bs=16k --rate_iops=,25 --direct=1 --ioengine=psync --fallocate=none \\
        --verify=crc32c --verify_fatal=1 --time_based --runtime={seconds} --output-format=json --output="/tmp/$1.json" "${{@:3}}"
    echo "ended $1 $?"
}}
checking="--size=4m --verify_backlog=8"
load cifs /mnt/cifs/cifs --size=64m & load nfs /mnt/nfs/nfs $checking & load nbd /dev/vdb $checking &
sleep 10
echo loading
wait
for name in cifs nfs nbd; do echo "told $name $(tr -d '\\n' < "/tmp/$name.json")"; done
cp /mnt/cifs/cifs /mnt/nfs/nfs /lab
umount /mnt/cifs && umount /mnt/nfs && insist mount {cifs} /mnt/cifs && cmp /lab/cifs /mnt/cifs/cifs && umount /mnt/cifs || exit 3
"""


def nbd_drive(export):
    """A disk of the guest, by QEMU's NBD client, which reconnects. A comma in an option of QEMU is doubled."""
    server = {"type": "inet", "host": "127.0.0.1", "port": str(NBD_PORT)}
    nbd = {"driver": "nbd", "server": server, "export": export, "reconnect-delay": 120}
    node = {"driver": "raw", "file": nbd}
    return ("json:" + json.dumps(node, separators=(",", ":"))).replace(",", ",,")


def listening():
    """Sockets as socket units bind them."""
    ports = {"smb": guest.PORTS["smb"], "nfs": guest.PORTS["nfs"], "nbd": NBD_PORT}
    return [(name, socket.create_server(("127.0.0.1", port))) for name, port in ports.items()]


class Restarts(unittest.TestCase):
    def under_load(self, restart, sockets=None):
        """Restarts the server under the load of three clients; prints the longest operation of each."""
        with contextlib.ExitStack() as stack:
            state = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-state-")))
            weft.run(weft.WEFT, "volume", "create", "vol1", "--size", "4M", "--file", state / "vol1.img", "--state-dir", state)
            options = ["--state-dir", state, "--continuous-availability", "data", "--volume", "vol1", "--nbd-port", NBD_PORT]
            server = stack.enter_context(guest.serving(*options, sockets=sockets))
            job = JOB.format(
                cifs=guest.cifs("3.1.1", "persistenthandles", "hard", transport="tcp"),
                nfs=test_nfs4.mount("4.1"),
                seconds=20 + RESTARTS * (BETWEEN_SECONDS + 5),
            )
            machine = stack.enter_context(guest.Guest(job, drives=[nbd_drive("vol1")]))
            machine.wait_for("loading")
            took = []
            for _ in range(RESTARTS):
                took.append(restart(server))
                time.sleep(BETWEEN_SECONDS)
            status = machine.finish()
            said = machine.report() + server.log_text()[-6000:]
            self.assertEqual(status, 0, said)
            for name in ["cifs", "nfs", "nbd"]:
                self.assertIn(f"ended {name} 0", machine.said, said)
                [told] = [line for line in machine.said if line.startswith(f"told {name} ")]
                # Notes of fio may surround it.
                result, _ = json.JSONDecoder().raw_decode(told, told.index("{"))
                [done] = result["jobs"]
                self.assertEqual(done["error"], 0, said)
                longest = max(done[way]["clat_ns"]["max"] for way in ["read", "write"]) / 1e9
                average = done["write"]["clat_ns"]["mean"] / 1e9
                if name != "nbd":
                    self.assertTrue(weft.same(machine.folder / name, server.folder / name), f"the host sees other bytes in {name}")
                count = done["write"]["total_ios"] + done["read"]["total_ios"]
                print(f"{name}: {count} operations, a write took {average:.3f} s on average, the longest {longest:.1f} s", flush=True)
            print("the server was away for", ", ".join(f"{seconds:.2f} s" for seconds in took), flush=True)

    def test_stopped_and_started_under_load(self):
        self.under_load(lambda server: server.restart())

    def test_stopped_and_started_under_load_with_sockets_of_the_service_manager(self):
        sockets = listening()
        for _, one in sockets:
            self.addCleanup(one.close)
        self.under_load(lambda server: server.restart(), sockets)

    @unittest.skipUnless(OLDER, "WEFT_OLDER names no program of an older version")
    def test_upgraded_under_load(self):
        newer = weft.WEFT

        def upgrade(server):
            server.command[0] = newer
            return server.restart()

        with unittest.mock.patch.object(weft, "WEFT", pathlib.Path(OLDER)):
            self.under_load(upgrade)

    def test_killed_under_load(self):
        def kill(server):
            began = time.monotonic()
            server.crash()
            server.start()
            return time.monotonic() - began

        self.under_load(kill)


if __name__ == "__main__":
    unittest.main()
