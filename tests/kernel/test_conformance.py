"""What every provider owes its users, on the kernel's siw: the conformance suite of weft-rdma in the guest, with siw at both ends
and with our iwarp at either."""

import json
import os
import re
import shutil
import subprocess
import unittest

import guest
import weft

# Modules of the suite that need a device.
KINDS = ["rnic_device", "iwarp_from_rnic", "rnic_from_iwarp"]


def suite():
    """The suite's program: WEFT_CONFORMANCE, or what cargo builds."""
    if named := os.environ.get("WEFT_CONFORMANCE"):
        return named
    command = ["cargo", "test", "--locked", "--offline", "-p", "weft-rdma", "--test", "conformance", "--no-run"]
    built = subprocess.run([*command, "--message-format=json"], cwd=weft.ROOT, stdout=subprocess.PIPE, text=True)
    found = [json.loads(line).get("executable") for line in built.stdout.splitlines() if line.startswith("{")]
    [program] = [one for one in found if one] or [None]
    assert program, "cargo did not build the suite; build it where there is a network: " + " ".join(command).replace(" --offline", "")
    return program


class Conformance(unittest.TestCase):
    def test_every_case_on_siw(self):
        job = """
        until [ -e /lab/lent ]; do sleep 0.2; done
        cp /lab/conformance /tmp/conformance
        WEFT_TEST_RNIC=10.0.2.15 timeout 3000 /tmp/conformance rnic --test-threads 1 --nocapture
        """
        program = suite()
        with guest.Guest(job, seconds=3300) as machine:
            shutil.copy(program, machine.folder / "conformance")
            (machine.folder / "lent").touch()
            status = machine.finish()
            said = "\n".join(machine.said)
            self.assertEqual(status, 0, machine.report())
            # A case that finds no device passes, too: it says that it was skipped.
            self.assertNotIn("skipped", said, machine.report())
            for kind in KINDS:
                ran = re.findall(rf"^test {kind}::\S+ \.\.\. ", said, re.MULTILINE)
                self.assertGreaterEqual(len(ran), 39, machine.report())


if __name__ == "__main__":
    unittest.main()
