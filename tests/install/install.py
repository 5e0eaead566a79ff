"""Installs the Debian package in a bare root and uses it: as root, who installs and configures, and as alice and bob, who may do
different things, with smbclient, libnfs and Linux's own clients.

The service runs without systemd, with what its unit says (bare.py).
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

from bare import CONFIG, PASSWORDS, REPOSITORY, ROOT, STATE, bound_sockets, check_rights, inside, main, run, service, smb, typed

BOOT = REPOSITORY / "tests/kernel/guest/boot.sh"
# Where `tests/kernel/guest/build.sh` has put the guest.
LAB = pathlib.Path(os.environ.get("LAB", REPOSITORY / "target/lab"))
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
# The ids of alice and bob as accounts of the system, and that of Debian's group staff.
ALICE, BOB, STAFF = 1001, 1002, 50


def nfs(tool, *words, expect=0):
    """One of libnfs's tools."""
    return run(tool, *words, expect=expect)


def share_url(share, file="", uid=0, gid=None):
    gid = uid if gid is None else gid
    return f"nfs://127.0.0.1/{share}/{file}?version=3&nfsport=2049&mountport=20048&uid={uid}&gid={gid}"


def listeners():
    """The local addresses of listening TCP sockets, as /proc/net has them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {fields[1].split(":")[0] for fields in lines if fields[3] == "0A"}


def owner(path):
    found = path.stat()
    return found.st_uid, found.st_gid


class Install(unittest.TestCase):
    """The steps run in the order of their names; each relies on those before."""

    def test_1_it_installs_on_a_host_without_systemd(self):
        self.assertFalse((ROOT / "run/systemd/system").exists())
        package, = (ROOT / "root").glob("weft_*.deb")
        said = inside("apt-get", "install", "-y", f"/root/{package.name}")
        self.assertNotRegex(said, r"(?i)\berror|fail")
        self.assertRegex(inside("id", "weft"), r"^uid=\d+\(weft\) gid=\d+\(weft\)")
        self.assertEqual(stat.S_IMODE(STATE.stat().st_mode), 0o700)
        self.assertEqual(STATE.stat().st_uid, int(inside("id", "-u", "weft")))
        self.assertEqual(stat.S_IMODE(CONFIG.stat().st_mode), 0o644)
        self.assertEqual(inside("dpkg-query", "-W", "-f", "${Conffiles}", "weft").split()[0], "/etc/weft/weft.toml")
        self.assertIn("no errors", inside("weft", "config", "check"))
        listed = inside("dpkg-query", "-L", "weft")
        for file in ["system/weft.service", "system/weft.socket", "man1/weft-user-add.1.gz", "bash-completion/completions/weft",
                     "vendor-completions/_weft", "vendor_completions.d/weft.fish", "weft/examples/weft.toml",
                     "weft/examples/as-users.conf"]:
            self.assertIn(file, listed)
        enabled = [path.name for path in (ROOT / "etc/systemd/system").glob("*.wants/weft.*")]
        self.assertEqual(enabled, ["weft.service"], "the sockets are bound by the server until somebody enables weft.socket")

    def test_2_shells_complete_its_commands_and_man_shows_them(self):
        inside("apt-get", "install", "-y", "--no-install-recommends", "bash-completion", "fish", "man-db", "zsh")
        completion = "/usr/share/bash-completion/completions/weft"
        # The shells load the files by themselves, for a command of this name.
        said = inside("bash", "-c", """. /usr/share/bash-completion/bash_completion; _completion_loader weft; complete -p weft
                                       COMP_WORDS=(weft user a) COMP_CWORD=2; _weft weft a user; echo "${COMPREPLY[@]}" """)
        self.assertEqual(said.splitlines()[1:], ["add"], said)
        self.assertRegex(said, r"^complete .*-F _weft .*weft\n")
        self.assertIn("-F _weft", inside("bash", "-c", f". {completion}; complete -p weft"))
        self.assertEqual(inside("zsh", "-fc", "autoload -Uz compinit; compinit -u; echo $_comps[weft]; autoload +X _weft && echo loaded"),
                         "_weft\nloaded\n")
        inside("fish", "--no-execute", "/usr/share/fish/vendor_completions.d/weft.fish")
        self.assertRegex(inside("fish", "-c", "complete -C 'weft user a'"), r"(?m)^add\t")
        pages = sorted(path.name for path in (ROOT / "usr/share/man/man1").glob("weft*"))
        self.assertGreater(len(pages), 30)
        for page in pages:
            # As lintian tries them.
            said = inside("sh", "-c", f"man --warnings -E UTF-8 -l -Tutf8 -Z /usr/share/man/man1/{page} >/dev/null", env={"MANWIDTH": "80"})
            # Except that a line ends short of the margin before a long word.
            self.assertEqual([line for line in said.splitlines() if not line.endswith("cannot adjust line")], [], page)
        shown = inside("man", "weft-share-add", env={"MANPAGER": "cat"})
        for text in ("NAME", "--write", "--read"):
            self.assertIn(text, shown)
        example = "/usr/share/doc/weft/examples/weft.toml"
        self.assertIn("no errors", inside("weft", "config", "check", example))
        self.assertEqual((ROOT / example.lstrip("/")).read_text(), inside("weft", "config", "init"))

    def test_2_the_version_names_the_commit(self):
        head = subprocess.run(["git", "-C", REPOSITORY, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
        if head.returncode != 0:
            self.skipTest("this is no work tree of git")
        self.assertRegex(inside("weft", "--version"), rf"^weft [\d.]+ \({head.stdout.strip()}, \d{{4}}-\d\d-\d\d(, modified)?\)\n$")

    def test_3_it_starts_with_nothing_shared_and_takes_users_and_shares_at_once(self):
        for folder in ("team", "plans"):
            inside("install", "-d", "-o", "weft", "-g", "weft", f"/srv/{folder}")
        with service() as running:
            self.assertIn("smb=445", running.ready)
            self.assertLessEqual(listeners(), LOOPBACK)
            self.assertNotIn("password of", running.text())
            self.assertIn("added user alice", typed(["weft", "user", "add", "alice", "--group", "staff"], *[PASSWORDS["alice"]] * 2))
            inside("weft", "user", "add", "bob", env={"WEFT_PASSWORD": PASSWORDS["bob"]})
            inside("weft", "share", "add", "team", "/srv/team", "--write", "@staff")
            inside("weft", "share", "add", "plans", "/srv/plans", "--write", "alice", "--read", "bob")
            check_rights(self)
            version = inside("weft", "--version").split()
            self.assertIn(" ".join(version[:2]), inside("weft", "status"))

    def test_4_what_root_has_made_is_the_services(self):
        uid = STATE.stat().st_uid
        for path in [STATE, *STATE.rglob("*")]:
            found = path.lstat()
            self.assertEqual(found.st_uid, uid, path)
            self.assertEqual(stat.S_IMODE(found.st_mode) & 0o077, 0, path)
        self.assertEqual({STATE / "users.toml", STATE / "users.key"} - set(STATE.iterdir()), set())
        with service():
            check_rights(self)

    def test_5_nfs_offers_what_its_own_rules_allow(self):
        """Callers without tickets name their users themselves. So only a share that has rules for NFS is offered, to whoever may
        connect; as this service is not root, it acts as itself for all of them."""
        text = CONFIG.read_text()
        text = text.replace("smb_port = 445\n", "smb_port = 445\nnfs_port = 2049\nmountd_port = 20048\n")
        CONFIG.write_text(text + "\n[shares.plans.nfs]\nread_only = true\nnet = [\"127.0.0.1\"]\n")
        with service(), tempfile.TemporaryDirectory() as folder:
            sent = pathlib.Path(folder, "sent")
            sent.write_text("new")
            for uid in (ALICE, BOB):
                self.assertIn("one", nfs("nfs-ls", share_url("plans", uid=uid)))
                nfs("nfs-cp", share_url("plans", "one", uid), pathlib.Path(folder, f"of-{uid}"))
                self.assertEqual((ROOT / "srv/plans/one").read_bytes(), pathlib.Path(folder, f"of-{uid}").read_bytes())
                self.assertNotEqual(run("nfs-cp", sent, share_url("plans", "two", uid), expect=None), "")
                self.assertRegex(nfs("nfs-ls", share_url("team", uid=uid), expect=None), "(?i)fail|error|denied|exist")
            self.assertFalse((ROOT / "srv/plans/two").exists())
            check_rights(self)

    def test_6_the_socket_unit_keeps_the_ports_between_two_servers(self):
        sockets = bound_sockets()
        try:
            with service(sockets):
                check_rights(self)
            # Nobody serves now: a client waits in the queue of the kernel.
            waiting = subprocess.Popen(["smbclient", "//127.0.0.1/team", "-p", "445", "-U", f"alice%{PASSWORDS['alice']}", "-c", "ls"],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
            with service(sockets):
                said = waiting.communicate(timeout=60)[0]
                self.assertEqual(waiting.returncode, 0, said)
                self.assertIn("one", said)
        finally:
            for bound in sockets:
                bound.close()

    def test_7_as_root_it_uses_folders_as_each_user(self):
        """The drop-in as-users.conf: rights of the shares as before, and within them the kernel's, over SMB and NFS alike."""
        drop_in = ROOT / "etc/systemd/system/weft.service.d/as-users.conf"
        inside("install", "-D", "-m", "0644", "/usr/share/doc/weft/examples/as-users.conf", f"/{drop_in.relative_to(ROOT)}")
        for name, uid in [("alice", ALICE), ("bob", BOB)]:
            inside("useradd", "--no-create-home", "--uid", uid, name)
        inside("usermod", "--append", "--groups", "staff", "alice")
        inside("install", "-d", "-m", "2775", "-g", "staff", "/srv/desk")
        desk = ROOT / "srv/desk"
        self.assertEqual(owner(desk), (0, STAFF))
        with service() as running, tempfile.TemporaryDirectory() as folder:
            inside("weft", "share", "add", "desk", "/srv/desk", "--write", "@staff", "--write", "bob")
            sent, got = pathlib.Path(folder, "sent"), pathlib.Path(folder, "got")
            sent.write_text("from alice")
            smb("alice", "desk", f"put {sent} hers")
            self.assertEqual(owner(desk / "hers"), (ALICE, STAFF))
            # The share lets bob read and write. The file's mode comes from the unit's umask, and lets others do nothing.
            self.assertEqual(stat.S_IMODE((desk / "hers").stat().st_mode), 0o640)
            self.assertIn("ACCESS_DENIED", smb("bob", "desk", f"get hers {got}", expect=1))
            (desk / "hers").chmod(0o664)
            smb("bob", "desk", f"get hers {got}")
            self.assertEqual(got.read_text(), "from alice")
            self.assertIn("ACCESS_DENIED", smb("bob", "desk", f"put {sent} hers", expect=1))
            self.assertIn("ACCESS_DENIED", smb("bob", "desk", f"put {sent} his", expect=1))
            with open(CONFIG, "a") as config:
                config.write('\n[shares.desk.nfs]\nnet = ["127.0.0.1"]\n')
            inside("weft", "reload")
            fetched, stolen = pathlib.Path(folder, "fetched"), pathlib.Path(folder, "stolen")
            nfs("nfs-cp", sent, share_url("desk", "by-nfs", ALICE, STAFF))
            self.assertEqual(owner(desk / "by-nfs"), (ALICE, STAFF))
            (desk / "by-nfs").chmod(0o660)
            nfs("nfs-cp", share_url("desk", "by-nfs", ALICE, STAFF), fetched)
            self.assertEqual(fetched.read_text(), "from alice")
            self.assertIn("by-nfs", nfs("nfs-ls", share_url("desk", "", BOB)))
            nfs("nfs-cp", share_url("desk", "by-nfs", BOB), stolen, expect=10)
            self.assertEqual(stolen.read_text() if stolen.exists() else "", "")
            nfs("nfs-cp", sent, share_url("desk", "of-bob", BOB), expect=10)
            self.assertFalse((desk / "of-bob").exists())
            self.assertNotRegex(running.text(), "(?m)^.*(WARN|ERROR).*capabilit")

    def test_8_linux_mounts_it_as_alice_and_bob(self):
        if not (LAB / "root.img").exists():
            self.skipTest(f"there is no guest in {LAB}: bash tests/kernel/guest/build.sh")
        text = CONFIG.read_text()
        # The guest calls this host 10.0.2.2, and its calls come by a NAT.
        text = text.replace('[shares.desk.nfs]\n', '[shares.desk.nfs]\nsecure = false\n')
        CONFIG.write_text(text + '\n[smb]\nserver_names = ["10.0.2.2"]\n')
        job = f"""
            set -e
            smb() {{ mount -t cifs -o "vers=3.1.1,port=445,username=$1,password=$2" //10.0.2.2/desk /mnt; }}
            as() {{ setpriv --reuid "$1" --regid "$2" --clear-groups sh -c "$3"; }}
            refused() {{ if "$@" 2>/lab/refused; then echo "NOT REFUSED: $*"; exit 1; fi; grep -q 'Permission denied' /lab/refused; }}
            smb alice {PASSWORDS['alice']}
            echo cifs >/mnt/by-cifs
            grep -q cifs /mnt/by-cifs
            umount /mnt
            smb bob {PASSWORDS['bob']}
            ls /mnt | grep -q by-cifs
            refused sh -c 'echo x >/mnt/of-bob'
            umount /mnt
            for version in 4.2 4.1 3,nolock,mountproto=tcp,mountport=20048; do
                mount -t nfs -o "vers=$version,proto=tcp,port=2049" 10.0.2.2:/desk /mnt
                as {ALICE} {STAFF} "echo $version >/mnt/kernel-$version && chmod 660 /mnt/kernel-$version && cat /mnt/kernel-$version"
                refused as {BOB} {BOB} "cat /mnt/kernel-$version"
                refused as {BOB} {BOB} "echo x >/mnt/of-bob"
                umount /mnt
            done
            echo all of it worked
        """
        with service() as running, tempfile.TemporaryDirectory() as folder:
            # cifs.ko logs on once more where the first password was wrong: none is.
            said = subprocess.run(["bash", BOOT, folder, job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
                                  env=dict(os.environ, LAB=str(LAB), LAB_SECONDS="800"))
            self.assertEqual(said.returncode, 0, said.stdout + running.text())
            self.assertIn("all of it worked", said.stdout)
        desk = ROOT / "srv/desk"
        self.assertEqual(owner(desk / "by-cifs"), (ALICE, STAFF))
        self.assertEqual(owner(desk / "kernel-4.2"), (ALICE, STAFF))
        self.assertFalse((desk / "of-bob").exists())

    def test_9_an_upgrade_keeps_edits_and_state_and_restarts(self):
        shutil.rmtree(ROOT / "etc/systemd/system/weft.service.d")
        run("chown", "-R", f"{inside('id', '-u', 'weft').strip()}:{inside('id', '-g', 'weft').strip()}", STATE)
        newer = self.newer_package()
        # Debian's own scripts ask for systemd by this folder.
        (ROOT / "run/systemd/system").mkdir(parents=True)
        systemctl, asked = ROOT / "bin/systemctl", ROOT / "root/asked"
        systemctl.write_text('#!/bin/sh\necho "$*" >>/root/asked\n')
        systemctl.chmod(0o755)
        before, users = CONFIG.read_text(), (STATE / "users.toml").read_text()
        try:
            # The file of the new package differs, and so does ours: dpkg asks, and keeping ours is its default.
            said = typed(["apt-get", "install", "-y", f"/root/{newer.name}"], "N", asks=rb"\[default=N\] \? $")
            self.assertIn("Configuration file '/etc/weft/weft.toml'", said)
            self.assertRegex(asked.read_text(), r"(?m)\brestart weft\.service$")
            self.assertNotRegex(asked.read_text(), r"(?m)^(stop|restart|start) .*weft\.socket")
        finally:
            shutil.rmtree(ROOT / "run/systemd")
            systemctl.unlink()
        self.assertIn("share", before)
        self.assertEqual(CONFIG.read_text(), before)
        self.assertEqual((STATE / "users.toml").read_text(), users)
        self.assertIn("# Of the newer package.", CONFIG.with_suffix(".toml.dpkg-dist").read_text())
        with service():
            check_rights(self)

    def newer_package(self):
        """The same package with a higher version and another configuration file."""
        package, = (ROOT / "root").glob("weft_*.deb")
        tree, newer = ROOT / "root/tree", ROOT / "root/newer.deb"
        inside("dpkg-deb", "-R", f"/root/{package.name}", "/root/tree")
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+newer", control.read_text()))
        with open(tree / "etc/weft/weft.toml", "a") as config:
            config.write("# Of the newer package.\n")
        inside("dpkg-deb", "-b", "-Zgzip", "-z1", "/root/tree", "/root/newer.deb")
        return newer

    def test_a_only_a_purge_removes_what_it_keeps(self):
        (ROOT / "var/log/weft").mkdir(exist_ok=True)
        inside("apt-get", "remove", "-y", "weft")
        self.assertTrue((STATE / "users.toml").exists() and CONFIG.exists() and (ROOT / "var/log/weft").exists())
        self.assertFalse((ROOT / "usr/bin/weft").exists())
        said = inside("apt-get", "purge", "-y", "weft")
        self.assertIn("removing /var/lib/weft", said)
        left = [path for path in (STATE, CONFIG, ROOT / "var/log/weft") if path.exists()]
        self.assertEqual(left, [])
        self.assertEqual([str(path) for path in (ROOT / "etc/systemd/system").rglob("weft*")], [])
        self.assertTrue((ROOT / "srv/team/one").exists(), "shared files are not the package's")


if __name__ == "__main__":
    main(Install, "installed, used and removed")
