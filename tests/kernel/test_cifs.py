"""The kernel's SMB client on our server: plain, signed and sealed, over TCP and over SMB Direct (siw), it does a day's work.

What is done on each mount is guest/bin/work; guest/files.c has the tests of files that two clients see."""

import unittest

import guest
import project

PROTECTIONS = {"plain": [], "signed": ["sign"], "sealed": ["seal"]}


def mount(protection, transport):
    """Arguments of a mount of the share `data`, with every cache that the kernel has."""
    # What Linux 6.12 asks a sealed session for over SMB Direct: docs/interop.md says why.
    fitting = ["rsize=131072"] if (protection, transport) == ("sealed", "rdma") else []
    # Symbolic links are files that the client knows again: there are no POSIX extensions here.
    return guest.cifs("3.1.1", "mfsymlinks", *PROTECTIONS[protection], *fitting, transport=transport)


class Work(unittest.TestCase):
    def work(self, transport):
        names = {f"{transport}-{protection}": mount(protection, transport) for protection in PROTECTIONS}
        project.work(self, transport, names)

    def test_every_protection_over_tcp(self):
        self.work("tcp")

    def test_every_protection_over_smb_direct(self):
        self.work("rdma")


if __name__ == "__main__":
    unittest.main()
