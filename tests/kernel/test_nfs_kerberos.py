"""The kernel's NFS client with Kerberos tickets (rpc.gssd): krb5, krb5i and krb5p, by every version, over TCP and RDMA.

The KDC runs on the host, where the guest reaches it. The guest has the key of its machine, as a host that has joined a realm,
and the ticket of a user."""

import pwd
import sys
import unittest

import guest
import weft

import test_kerberos as realms  # of tests/interop, which `guest` puts before this folder

NAS, MACHINE = realms.HOST, "guest.weft.test"
SERVICES = ["krb5", "krb5i", "krb5p"]
# The account of this host that the map gives to the user.
ACCOUNT = "daemon"
BEGIN = f"""
cp /lab/krb5.conf /lab/krb5.keytab /etc || exit 90
printf '%s\\n' '127.0.0.1 localhost' '{guest.HOST} {NAS}' '10.0.2.15 {MACHINE} guest' > /etc/hosts
modprobe -a sunrpc rpcsec_gss_krb5 && mkdir -p /run/rpc_pipefs && mount -t rpc_pipefs pipes /run/rpc_pipefs || exit 91
rpc.gssd -vv -p /run/rpc_pipefs || exit 92
cp /lab/ccache /tmp/krb5cc_1000 && chown 1000:1000 /tmp/krb5cc_1000 && chmod 600 /tmp/krb5cc_1000 || exit 93
"""


def mount(version, service, transport="tcp"):
    """Arguments of a mount of the share `data`."""
    port = guest.PORTS["nfs-rdma" if transport == "rdma" else "nfs"]
    options = [f"vers={version}", f"sec={service}", f"proto={transport}", f"port={port}"]
    if version == "3":
        options += ["nolock", "mountproto=tcp", f"mountport={guest.PORTS['mountd']}"]
    return f"-t nfs -o {','.join(options)} {NAS}:/data"


@unittest.skipUnless(realms.KDC, "no KDC: tests/interop/deps.sh installs it")
class Tickets(unittest.TestCase):
    def setUp(self):
        # The clock of an emulated guest falls behind.
        self.realm = realms.realm_for(self, skew=300)
        self.realm.admin(f"addprinc -randkey nfs/{MACHINE}")
        self.realm.admin(f"ktadd -k {self.realm.work}/machine nfs/{MACHINE}")
        self.realm.log_on(weft.USER)
        self.config = self.realm.work / "weft.toml"
        self.config.write_text(f'[kerberos.map]\n"{weft.USER}@{realms.REALM}" = "{ACCOUNT}"\n')

    def run_job(self, job, *options):
        """Serves `data` by ticket, runs the job in a guest of the realm; returns the server's folder's owners by name."""
        keytab = ("--keytab", self.realm.work / "keytab", "--config", self.config)
        with weft.serving("-v", *keytab, *options, ports=guest.PORTS) as server:
            server.folder.chmod(0o777)
            server.folder.parent.chmod(0o755)
            with guest.Guest("until [ -e /lab/ready ]; do sleep 1; done\n" + BEGIN + job) as machine:
                conf = (self.realm.work / "krb5.conf").read_text()
                conf = conf.replace("127.0.0.1", guest.HOST).replace(f"FILE:{self.realm.work}/ccache", "FILE:/tmp/krb5cc_%{uid}")
                (machine.folder / "krb5.conf").write_text(conf)
                (machine.folder / "krb5.keytab").write_bytes((self.realm.work / "machine").read_bytes())
                (machine.folder / "ccache").write_bytes((self.realm.work / "ccache").read_bytes())
                (machine.folder / "ready").touch()
                status = machine.finish()
                self.assertEqual(status, 0, machine.report() + server.log_text())
                copies = {path.name: weft.same(machine.input, path) for path in server.folder.iterdir()}
                owners = {path.name: path.stat().st_uid for path in server.folder.iterdir()}
                return machine, copies, owners

    def exercise(self, mounts):
        job = "".join(f"exercise {name} {medium} {guest.INPUT} {how}\n" for name, (medium, how) in mounts.items())
        machine, copies, owners = self.run_job(job + "true", "--export", "data:insecure,sec=krb5:krb5i:krb5p")
        for name in mounts:
            with self.subTest(mount=name):
                self.assertIn(f"PASS {name}", machine.said, machine.report())
                self.assertTrue(copies.get(name), "the host sees other bytes")
                # Root of a host shows the machine's ticket, which stands for no user here.
                self.assertEqual(owners.get(name), 65534)

    def test_every_version_and_protection_over_tcp(self):
        versions = ["3", "4.0", "4.1", "4.2"]
        self.exercise({f"{v}-{s}": ("tcp", mount(v, s)) for v in versions for s in SERVICES})

    def test_every_protection_over_rdma(self):
        self.exercise({f"{v}-{s}": ("rdma", mount(v, s, "rdma")) for v in ["3", "4.2"] for s in SERVICES})

    def test_who_may_do_what(self):
        job = f"""
        cp {guest.INPUT} /tmp/input && chmod 644 /tmp/input || exit 94
        as() {{ setpriv --reuid "$1" --regid 1000 --clear-groups "${{@:2}}"; }}
        ! mount {mount('4.2', 'sys')} /mnt 2> /dev/null || exit 1
        ! mount {mount('4.2', 'krb5i')} /mnt 2> /dev/null || exit 2
        # Without `sec=`, the client asks which flavor it is (SECINFO_NO_NAME, SECINFO).
        mount -t nfs -o vers=4.2,port={guest.PORTS['nfs']} {NAS}:/data /mnt || exit 3
        grep -q ' /mnt .*sec=krb5p' /proc/mounts || {{ cat /proc/mounts; exit 4; }}
        as 1000 sh -c 'umask 077; cp /tmp/input /mnt/own' || exit 5
        as 1000 cmp /tmp/input /mnt/own || exit 6
        # Neither root of the host, who has the machine's ticket, nor a user without one.
        ! cat /mnt/own > /dev/null 2>&1 || exit 7
        ! as 1001 ls /mnt > /dev/null 2>&1 || exit 8
        umount /mnt
        # MOUNT tells the flavor to version 3.
        mount -t nfs -o vers=3,nolock,proto=tcp,port={guest.PORTS['nfs']},mountproto=tcp,mountport={guest.PORTS['mountd']} {NAS}:/data /mnt || exit 9
        grep -q ' /mnt .*sec=krb5p' /proc/mounts || exit 10
        as 1000 cmp /tmp/input /mnt/own || exit 11
        ! as 1001 ls /mnt > /dev/null 2>&1 || exit 12
        umount /mnt
        """
        _, copies, owners = self.run_job(job, "--export", "data:insecure,sec=krb5p")
        self.assertTrue(copies["own"])
        self.assertEqual(owners["own"], pwd.getpwnam(ACCOUNT).pw_uid)


if __name__ == "__main__":
    sys.exit(unittest.main())
