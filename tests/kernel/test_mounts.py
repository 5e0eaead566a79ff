"""The kernel's clients on our server: cifs over SMB Direct and NFS over RDMA, on siw, the kernel's own iWARP.

Each boot is a story of several mounts; each mount is exercised by guest/bin/exercise, and the host compares the copy.
"""

import re
import unittest

import guest
import weft


class Clients(unittest.TestCase):
    def exercise(self, mounts, *serve, siw=""):
        """Mounts one after the other, {name: (medium, arguments)}; returns the server's log."""
        job = "".join(f"exercise {name} {medium} {guest.INPUT} {how}\n" for name, (medium, how) in mounts.items())
        with guest.serving(*serve) as server, guest.Guest(job + "true", siw=siw) as machine:
            machine.finish()
            for name in mounts:
                with self.subTest(mount=name):
                    self.assertIn(f"PASS {name}", machine.said, machine.report() + server.log_text())
                    self.assertTrue(weft.same(machine.input, server.folder / name), "the host sees other bytes")
            return server.log_text()

    def test_every_dialect_and_protection(self):
        mounts = {f"smb-{v}": ("rdma", guest.cifs(v, "cache=none")) for v in ["3.0", "3.0.2", "3.1.1"]}
        mounts["signed"] = ("rdma", guest.cifs("3.1.1", "cache=none", "sign"))
        # Linux 6.12 asks a sealed session for READs that its own SMB Direct cannot take inline, and is not at ease with the
        # part of it that it gets (ENOMEM): docs/interop.md says rsize=131072.
        mounts["sealed"] = ("rdma", guest.cifs("3.1.1", "cache=none", "seal", "rsize=131072"))
        mounts["cached"] = ("rdma", guest.cifs("3.1.1"))
        mounts["smb-tcp"] = ("tcp", guest.cifs("3.1.1", "cache=none", transport="tcp"))
        mounts["smb-tcp-2.1"] = ("tcp", guest.cifs("2.1", "cache=none", transport="tcp"))
        mounts["nfs-tcp"] = ("tcp", guest.nfs("tcp"))
        mounts["nfs-rdma"] = ("rdma", guest.nfs())
        log = self.exercise(mounts, "--min-dialect", "2.1")
        # Our side asks for CRCs unless it is told not to, and siw agrees.
        self.assertIn("iwarp accepted crc=true", log)
        self.assertNotIn("crc=false", log)

    def test_the_guest_asks_for_crcs_and_opens_as_a_peer(self):
        mounts = {"smb": ("rdma", guest.cifs("3.1.1", "cache=none")), "nfs": ("rdma", guest.nfs())}
        log = self.exercise(mounts, "--crc", "asked", siw="mpa_crc_required=1 peer_to_peer=1")
        self.assertIn("iwarp accepted crc=true", log)
        self.assertNotIn("crc=false", log)

    def test_no_crcs_and_the_guest_opens_as_a_peer(self):
        mounts = {"smb": ("rdma", guest.cifs("3.1.1", "cache=none")), "nfs": ("rdma", guest.nfs())}
        log = self.exercise(mounts, "--crc", "asked", siw="peer_to_peer=1")
        self.assertIn("iwarp accepted crc=false", log)

    def test_no_crcs_and_segments_of_64_kib(self):
        # siw's own flag in the MPA frame, 0x08 beside the revision: it then sends FPDUs of up to 64 KiB.
        mounts = {"smb": ("rdma", guest.cifs("3.1.1", "cache=none")), "nfs": ("rdma", guest.nfs())}
        log = self.exercise(mounts, "--crc", "asked", siw="try_gso=1")
        self.assertIn("iwarp accepted crc=false", log)

    def test_a_sealed_share_keeps_its_payload_out_of_rdma(self):
        mounts = {"sealed": ("rdma", guest.cifs("3.1.1", "cache=none", "seal"))}
        self.exercise(mounts, "--require-encryption")

    def test_a_wrong_password_is_refused(self):
        job = f"! mount {guest.cifs('3.1.1').replace(weft.PASSWORD, 'wrong')} /mnt"
        with guest.serving():
            guest.run(job)


class Ends(unittest.TestCase):
    """Either side vanishes without a word."""

    def test_the_server_outlives_a_guest_without_power(self):
        # Both mounts are busy writing when the plug is pulled.
        job = f"""
        mkdir /mnt/smb /mnt/nfs
        mount {guest.cifs('3.1.1', 'cache=none')} /mnt/smb && mount {guest.nfs()} /mnt/nfs || exit 1
        while cp {guest.INPUT} /mnt/smb/half-smb; do :; done &
        while cp {guest.INPUT} /mnt/nfs/half-nfs; do :; done
        """
        with guest.serving() as server:
            with guest.Guest(job) as machine:
                for name in ["half-smb", "half-nfs"]:
                    file = server.folder / name
                    guest.eventually(f"{name} grows", lambda: file.exists() and file.stat().st_size > 100_000)
                self.assertIsNone(machine.process.poll(), machine.report())
                machine.kill()
            for kind in ["Smbd", "RpcRdma"]:
                self.assertEqual(len(re.findall(rf"{kind} over iwarp from \S+: connected", server.log_text())), 1)
                ended = re.compile(rf"{kind} over iwarp from \S+: (ended|closed: connection lost)")
                guest.eventually(f"{kind} ends", lambda: ended.search(server.log_text()))
            guest.run(f"exercise after rdma {guest.INPUT} {guest.nfs()} | grep PASS")

    def test_the_guest_comes_back_to_a_server_that_was_started_again(self):
        job = f"""
        mount {guest.cifs('3.1.1', 'cache=none')} /mnt && cp {guest.INPUT} /mnt/copy || exit 1
        echo written
        until [ -e /lab/again ]; do sleep 0.2; done
        for attempt in $(seq 20); do
            timeout 60 cmp {guest.INPUT} /mnt/copy && exit 0
            sleep 1
        done
        exit 1
        """
        with guest.serving() as server, guest.Guest(job) as machine:
            machine.wait_for("written")
            server.crash()
            server.start()
            (machine.folder / "again").touch()
            self.assertEqual(machine.finish(), 0, machine.report())


if __name__ == "__main__":
    unittest.main()
