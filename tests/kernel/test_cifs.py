"""The kernel's SMB client on our server: plain, signed and sealed, over TCP and over SMB Direct (siw), it does a day's work.

What is done on each mount is guest/bin/work; guest/files.c has the tests of files that two clients see."""

import os
import stat
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


# What people do where there are modes, links and pipes. Attributes are asked for anew each time: Linux 6.12 shows the mode of
# a file that it has just made as `file_mode` until it asks.
POSIX = r"""
mkdir -p /mnt/p && mount {how} /mnt/p && cd /mnt/p || exit 1
bad=0
is() { # WHAT EXPECTED COMMAND
    got=$(eval "$3" 2>&1)
    [ "$got" = "$2" ] || { echo "FAIL $1: $got"; bad=1; }
}
[[ $(awk '$2 == "/mnt/p" {print $4}' /proc/mounts) == *,posix,* ]] || { echo 'FAIL: no POSIX extensions'; bad=1; }
is space '' 'df -k . > /dev/null'
umask 027
mkdir -p d/e && echo content > d/e/f && touch made
for mode in 0 1777 640 444 755 600; do
    is "mode $mode" $mode "chmod $mode made; stat -c %a made"
done
is 'set-group-id of a folder' 3770 'chmod 3770 d; stat -c %a d'
chmod 4755 made
is owner '' 'chown 1000 made > /dev/null 2>&1 && echo changed'
ln -s ../f d/e/up && ln -s d/e to && ln -s nowhere dangling
is link ../f 'readlink d/e/up'
is 'link followed' content 'ln -s e/f d/way; cat d/way; rm d/way'
is 'link to a folder' f 'ls to | grep -x f'
is 'links' '3 3' 'ln d/e/f one && ln one two && stat -c %h one d/e/f | xargs'
is 'one name less' 2 'rm one; stat -c %h d/e/f'
is pipe through 'mkfifo pipe && (echo through > pipe &) && cat pipe'
is device '' 'mknod device c 1 3 2> /dev/null && echo made'
is case 'NAME Name name' 'touch Name name NAME; ls | grep -i ^name | LC_ALL=C sort | xargs'
is 'case again' 'Name name' 'rm NAME; ls | grep -i ^name | LC_ALL=C sort | xargs'
for name in 'a:b' 'c*d?' '<e|f>' 'g"h' 'end.' 'end ' $'new\nline'; do
    is "name $name" "$name" 'echo > "$name"; ls -N -d "$name"; rm "$name"'
done
exec 3<> held
echo old >&3
# Linux asks by the name's former handle as long as there is one: what has the name now is seen when that is closed.
echo new > other && mv other held
exec 3>&-
is 'replaced while it was open' new 'cat held'
is 'a folder moves with what is open in it' content 'exec 4< d/e/f; mv d D; cat D/e/f'
exec 3> removed
rm removed
is 'removed while it is open' '' 'echo more >&3; ls -d removed 2> /dev/null'
exec 3>&-
is locked busy 'flock made -c "flock -n made true 2> /dev/null || echo busy"'
is cloned '' 'git -c safe.directory="*" clone -q /lab/project project && git -C project status --porcelain'
# Two clocks: a file that was just made may be of the future, which make says.
is built 0 'make -s -C project 2> /tmp/make || cat /tmp/make; project/answer 42; echo $?'
cd / && umount /mnt/p || bad=1
[ $bad = 0 ] && echo PASS
true
"""


class Posix(unittest.TestCase):
    def test_a_folder_is_as_on_a_local_disk(self):
        how = guest.cifs("3.1.1", "posix", "actimeo=0", "closetimeo=0", transport="tcp")
        with guest.serving("--posix") as server, guest.Guest(POSIX.replace("{how}", how), seconds=3000) as machine:
            project.repository(machine.folder)
            machine.finish()
            self.assertIn("PASS", machine.said, machine.report() + server.log_text()[-4000:])
            folder = server.folder
            made = os.stat(folder / "made")
            # No program runs in the name of the server's own user.
            self.assertEqual(stat.S_IMODE(made.st_mode), 0o755)
            self.assertEqual(os.readlink(folder / "D" / "e" / "up"), "../f")
            self.assertTrue(stat.S_ISFIFO(os.lstat(folder / "pipe").st_mode))
            self.assertEqual(stat.S_IMODE(os.stat(folder / "D" / "e" / "f").st_mode), 0o640)
            self.assertEqual((folder / "held").read_text(), "new\n")


if __name__ == "__main__":
    unittest.main()
