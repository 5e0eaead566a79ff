"""A share's quota that the kernel keeps: ext4's project quotas, in the guest, where the server runs as root. Linux's NFS client
sees the quota as the size of the disk and gets EDQUOT; what the server may not do, an administrator may have done."""

import shutil
import subprocess
import tempfile
import unittest

import guest
import weft

CONFIG = """
[listeners]
smb_port = 4450
smb_direct_port = 0
nfs_port = 2049

[smb]
act_as_callers = false

[nfs]
root_squash = false
act_as_callers = false

[shares.team]
path = "/q/team"
nfs.secure = false
"""

JOB = r"""
modprobe quota_v2; modprobe loop 2> /dev/null
mkdir -p /q /var/w && mount -t ext4 -o prjquota /dev/vdb /q || exit 1
mkdir -p /q/team/deep /q/beside && dd if=/dev/zero of=/q/team/deep/old bs=1M count=4 status=none || exit 2
export WEFT_PASSWORD=secret XDG_RUNTIME_DIR=/var/w
begin() { # LAUNCHER...
    "$@" /lab/weft serve --config /var/w/weft.toml --state-dir /var/w/state --user u --buffers 128M > /var/w/log 2>&1 &
    server=$!
    for n in $(seq 600); do
        # Its line in the log, and its ports.
        grep -q 'share team: ' /var/w/log && mount -t nfs -o vers=4.2,port=2049 10.0.2.15:/team /mnt 2> /dev/null && return
        kill -0 $server || break
        sleep 0.2
    done
    cat /var/w/log; exit 3
}
end() {
    umount /mnt; kill $server; wait $server; server=
}
is() { # WHAT IS SHALL
    [ "$2" = "$3" ] || { echo "FAIL $1: $2, not $3"; cat /var/w/log; exit 4; }
}
status() { /lab/weft status --json --state-dir /var/w/state; }

# The server makes the project, with what is there already.
{ cat /lab/weft.toml; echo 'quota = "32M"'; } > /var/w/weft.toml
begin
grep 'kernel enforces its quota' /var/w/log || { cat /var/w/log; exit 5; }
is 'size in MiB' "$(df --output=size -B1M /mnt | tail -1 | tr -d ' ')" 32
used=$(df --output=used -B1M /mnt | tail -1 | tr -d ' ')
[ "$used" -ge 4 ] && [ "$used" -le 6 ] || { echo "FAIL used: $used"; exit 6; }
status | grep -q '"project": *1464139776' || { status; exit 7; }
error=$(dd if=/dev/zero of=/mnt/big bs=1M count=64 conv=fsync 2>&1) && exit 8
echo "$error" | grep -q 'quota exceeded' || { echo "FAIL error: $error"; exit 9; }
[ "$(du -sm /q/team | cut -f1)" -le 33 ] || exit 10
# Beside it there is room.
dd if=/dev/zero of=/q/beside/big bs=1M count=64 conv=fsync status=none || exit 11
mv /mnt/big /mnt/deep/big || exit 12
dd if=/dev/zero of=/mnt/deep/big bs=1M count=4 conv=notrunc,fsync status=none || { echo 'FAIL overwrite'; exit 13; }
rm /mnt/deep/big && dd if=/dev/zero of=/mnt/again bs=1M count=16 conv=fsync status=none || exit 14
# Another share of the folder: the kernel's limit is the smaller one, and the other one again when that share goes.
cp /var/w/weft.toml /var/w/one.toml
printf '\n[shares.other]\npath = "/q/team"\nquota = "24M"\n' >> /var/w/weft.toml
/lab/weft reload --state-dir /var/w/state || exit 23
is 'the smaller of two limits' "$(df --output=size -B1M /q/team | tail -1 | tr -d ' ')" 24
cp /var/w/one.toml /var/w/weft.toml && /lab/weft reload --state-dir /var/w/state || exit 24
is 'size without the other share' "$(df --output=size -B1M /q/team | tail -1 | tr -d ' ')" 32
# A reload changes it.
sed -i 's/32M/64M/' /var/w/weft.toml && /lab/weft reload --state-dir /var/w/state || exit 15
is 'size after a reload' "$(df --output=size -B1M /mnt | tail -1 | tr -d ' ')" 64
end

# A server without the privilege uses the project as it is, and counts where it would have to change it.
begin setpriv --bounding-set -sys_admin --inh-caps -sys_admin
grep 'kernel enforces its quota' /var/w/log || { cat /var/w/log; exit 16; }
is 'size without the privilege' "$(df --output=size -B1M /mnt | tail -1 | tr -d ' ')" 64
end
sed -i 's/64M/48M/' /var/w/weft.toml
begin setpriv --bounding-set -sys_admin --inh-caps -sys_admin
grep 'enforced by counting, because this server may not set project quotas' /var/w/log || { cat /var/w/log; exit 17; }
is 'counted size' "$(df --output=size -B1M /mnt | tail -1 | tr -d ' ')" 48
end

# Without a quota in the file, no limit stays.
sed -i '/^quota/d' /var/w/weft.toml
/lab/weft share remove team --config /var/w/weft.toml --state-dir /var/w/state > /dev/null || exit 18
cat /lab/weft.toml > /var/w/weft.toml
/lab/weft share remove team --config /var/w/weft.toml --state-dir /var/w/state > /dev/null
/lab/weft share add team /q/team --quota 40M --config /var/w/weft.toml --state-dir /var/w/state > /var/w/said || { cat /var/w/said; exit 19; }
grep 'the kernel keeps its quota, as that of project' /var/w/said || { cat /var/w/said; exit 20; }
is 'size by the command' "$(df --output=size -B1M /q/team | tail -1 | tr -d ' ')" 40
/lab/weft share remove team --config /var/w/weft.toml --state-dir /var/w/state > /dev/null || exit 21
[ "$(df --output=size -B1M /q/team | tail -1 | tr -d ' ')" -gt 200 ] || exit 22
echo DONE
"""


class Project(unittest.TestCase):
    def test_ext4_keeps_the_quota_of_a_share(self):
        with tempfile.NamedTemporaryFile(prefix="weft-quota-", suffix=".img") as disk:
            disk.truncate(384 << 20)
            made = subprocess.run(
                ["/usr/sbin/mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota", disk.name],
                capture_output=True, text=True,
            )
            self.assertEqual(made.returncode, 0, made.stderr)
            with guest.Guest("exec bash /lab/quota.sh", drives=[disk.name]) as machine:
                # The guest takes minutes to boot: the files are there before it looks for them.
                shutil.copy(weft.WEFT, machine.folder / "weft")
                (machine.folder / "weft.toml").write_text(CONFIG)
                (machine.folder / "quota.sh").write_text(JOB)
                status = machine.finish()
                self.assertEqual(status, 0, machine.report())
                self.assertIn("DONE", machine.said)


if __name__ == "__main__":
    unittest.main()
