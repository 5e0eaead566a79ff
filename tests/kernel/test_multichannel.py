"""The kernel's SMB client with several channels over two links: one is cut while files are copied and compared, and the copy
goes on over the other."""

import contextlib
import unittest

import guest
import weft

# Files are copied one by one, and one in CUT of them is under way when a link goes.
FILES, CUT = 16, 4
CHANNELS = 4
# What tells that a link is in use, and not only known: more than set-up takes.
IN_USE = 1 << 20


class Links(unittest.TestCase):
    def copy(self, transport, number=None):
        """Copies over both links; cuts link `number` in the middle, if one is given."""
        options = ["multichannel", f"max_channels={CHANNELS}", "cache=none", "hard"]
        # A silent link is given up after three of these; and so is one whose host stands still for so long.
        if number is not None:
            options.append("echo_interval=5")
        job = f"""
        mount {guest.cifs('3.1.1', *options, transport=transport)} /mnt || exit 1
        # A call that meets the reconnection may fail with EAGAIN (Linux 6.12), "hard" or not: docs/interop.md.
        insist() {{
            for again in 1 2 3; do
                "$@" 2> /tmp/said && return
                cat /tmp/said; grep -q "Resource temporarily unavailable" /tmp/said || return 1
            done
            return 1
        }}
        for n in $(seq {FILES}); do
            insist cp {guest.INPUT} /mnt/copy-$n && insist cmp {guest.INPUT} /mnt/copy-$n || exit 2
            echo "copied $n"
        done
        cat /proc/fs/cifs/DebugData
        umount /mnt || exit 3
        """
        with contextlib.ExitStack() as stack:
            taps = [stack.enter_context(guest.tap(n)) for n in range(2)]
            server = stack.enter_context(guest.serving(listen="0.0.0.0"))
            machine = stack.enter_context(guest.Guest(job, tap=" ".join(taps)))
            machine.wait_for(f"copied {CUT}")
            used = [carried(tap) for tap in taps]
            self.assertGreater(min(used), IN_USE, machine.report() + server.log_text()[-4000:])
            if number is not None:
                file = server.folder / f"copy-{CUT + 1}"
                guest.eventually("the next file grows", lambda: file.exists() and file.stat().st_size > 0)
                weft.run("ip", "link", "set", taps[number], "down")
            self.assertEqual(machine.finish(), 0, machine.report() + server.log_text()[-4000:])
            for n in range(1, FILES + 1):
                self.assertTrue(weft.same(machine.input, server.folder / f"copy-{n}"), f"the host sees other bytes in {n}")

    def test_one_link_of_two_is_cut_while_a_copy_uses_both(self):
        self.copy("tcp", 1)

    def test_the_link_of_the_mount_itself_is_cut(self):
        self.copy("tcp", 0)

    def test_smb_direct_uses_both_links(self):
        # None is cut: docs/interop.md says what Linux makes of that.
        self.copy("rdma")


def carried(tap):
    """Bytes that came from the guest over this link."""
    shown = weft.run("ip", "-s", "-o", "link", "show", "dev", tap).stdout
    # RX of the host's side: the first number after its heading.
    return int(shown.split("RX:", 1)[1].split("\\", 1)[1].split()[0])


if __name__ == "__main__":
    unittest.main()
