"""Our clients on the kernel's servers: ksmbd over SMB Direct and nfsd over RDMA, on siw."""

import json
import pathlib
import tempfile
import unittest

import guest
import weft

SMB, SMBD, NFS, MOUNTD = 10445, 15445, 12049, 12048
FORWARD = f"{SMB}:445 {SMBD}:5445 {NFS}:20049 {MOUNTD}:20048"
SHARES = {
    "smb": f"smb://u@127.0.0.1:{SMB}/export/{{}}?rdmaport={SMBD}",
    "nfs": f"nfs://127.0.0.1:2049/export/{{}}?mountport={MOUNTD}&rdmaport={NFS}",
}


class Servers(unittest.TestCase):
    def there_and_back(self, siw, *options):
        job = """
        serve-nfs && serve-smb || exit 1
        echo ready
        until [ -e /lab/done ]; do sleep 0.2; done
        cmp /lab/input /srv/export/by-smb && cmp /lab/input /export/by-nfs
        """
        with guest.Guest(job, siw=siw, forward=FORWARD) as machine, tempfile.TemporaryDirectory() as work:
            machine.wait_for("ready")
            for kind, url in SHARES.items():
                with self.subTest(server=kind, siw=siw, options=options):
                    back = pathlib.Path(work) / kind
                    name = url.format(f"by-{kind}")
                    for ends in [(machine.input, name), (name, back)]:
                        done = weft.run(
                            weft.WEFT, "cp", "-q", "--json", *ends, "--transport", "iwarp", *options, password="p",
                            check=False, timeout=guest.PATIENCE,
                        )
                        self.assertEqual(done.returncode, 0, done.stderr + machine.report())
                        outcome = json.loads(done.stdout)
                        self.assertEqual(outcome["transport"], "iwarp")
                        self.assertGreaterEqual(outcome["rdma_bytes"], guest.INPUT_BYTES)
                    self.assertTrue(weft.same(machine.input, back))
            (machine.folder / "done").touch()
            self.assertEqual(machine.finish(), 0, machine.report())

    def test_there_and_back(self):
        self.there_and_back("")

    def test_there_and_back_without_crcs(self):
        self.there_and_back("", "--no-crc")

    def test_there_and_back_where_the_guest_requires_crcs(self):
        self.there_and_back("mpa_crc_required=1", "--no-crc")


if __name__ == "__main__":
    unittest.main()
