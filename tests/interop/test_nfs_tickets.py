"""NFS with Kerberos tickets: RPCSEC_GSS by a client built by hand on the system's GSS-API, with MIT's KDC.

The Linux kernel's client is in tests/kernel/test_nfs_kerberos.py."""

import os
import pwd
import unittest

import gss
import oncrpc
import test_kerberos as realms
import weft
from oncrpc import opaque

SERVICES = {"krb5": gss.NONE, "krb5i": gss.INTEGRITY, "krb5p": gss.PRIVACY}
FLAVORS = {"krb5": 390003, "krb5i": 390004, "krb5p": 390005}
SERVICE = "nfs@localhost"
TOO_WEAK, CRED_PROBLEM, CTX_PROBLEM = ("auth", 5), ("auth", 13), ("auth", 14)


class Tickets(realms.WithRealm):
    def serving(self, *options):
        return weft.serving("--keytab", self.work / "keytab", *options)

    def refused(self, expected, call, *arguments):
        with self.assertRaises(gss.Refused) as refused:
            call(*arguments)
        self.assertEqual(refused.exception.args[:2], expected)

    def test_every_protection_carries_data(self):
        self.realm.log_on(weft.USER)
        content = os.urandom(1_000_003)
        for name, service in SERVICES.items():
            with self.subTest(name), self.serving("--export", f"data:sec={name}") as server:
                server.folder.chmod(0o777)
                root, flavors = gss.mount(server.ready["nfs_port"], "data")
                self.assertEqual(flavors, [FLAVORS[name]])
                with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                    status, file = gss.create(rpc, root, "f", service)
                    self.assertEqual((status, gss.write(rpc, file, content[:1_000_000], service)), (0, 0))
                    self.assertEqual(gss.read(rpc, file, 1_000_000, service), content[:1_000_000])
                    self.assertEqual((server.folder / "f").read_bytes(), content[:1_000_000])
                    for other in SERVICES.values():
                        if other != service:
                            self.refused(TOO_WEAK, gss.getattr_status, rpc, root, other)
                    # A context is not bound to its connection.
                    with gss.connected(server.ready["nfs_port"]) as second:
                        second.gss, second.handle, second.sequences = rpc.gss, rpc.handle, rpc.sequences
                        self.assertEqual(gss.getattr_status(second, root, service), 0)
                    rpc.destroy()
                    self.refused(CRED_PROBLEM, gss.getattr_status, rpc, root, service)
                with gss.connected(server.ready["nfs_port"], reserved=True) as rpc:
                    for credential in [oncrpc.NO_CREDENTIAL, oncrpc.unix(0), oncrpc.unix(1000)]:
                        self.refused(TOO_WEAK, lambda: rpc.call(*gss.NFS, 1, opaque(root), credential=credential))

    def test_what_is_encrypted_cannot_be_read_on_the_way(self):
        self.realm.log_on(weft.USER)
        with self.serving("--export", "data:sec=krb5i:krb5p") as server:
            server.folder.chmod(0o777)
            root, flavors = gss.mount(server.ready["nfs_port"], "data")
            self.assertEqual(flavors, [FLAVORS["krb5i"], FLAVORS["krb5p"]])
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                seen = []
                whole, rpc.exchange = rpc.exchange, lambda message: self.watched(whole, message, seen)
                for service, is_seen in [(gss.INTEGRITY, True), (gss.PRIVACY, False)]:
                    _, file = gss.create(rpc, root, f"secret-{service}", service)
                    gss.write(rpc, file, b"what nobody may read", service)
                    seen.clear()
                    self.assertEqual(gss.read(rpc, file, 100, service), b"what nobody may read")
                    self.assertEqual(b"nobody may" in b"".join(seen), is_seen)

    def watched(self, exchange, message, seen):
        reply = exchange(message)
        seen.append(reply.data)
        return reply

    def test_a_message_is_good_for_once(self):
        self.realm.log_on(weft.USER)
        with self.serving("--export", "data:sec=krb5i") as server:
            root, _ = gss.mount(server.ready["nfs_port"], "data")
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                sequence, message = rpc.message(gss.NFS, 1, opaque(root), gss.INTEGRITY)
                rpc.exchange(message).accepted()
                # What somebody who listens sends again.
                with gss.connected(server.ready["nfs_port"]) as thief, self.assertRaises((EOFError, ConnectionError)):
                    thief.exchange(message)
                self.assertEqual(gss.getattr_status(rpc, root, gss.INTEGRITY), 0, "the client is not disturbed")
                # Another body under the same header, and a changed one.
                _, other = rpc.message(gss.NFS, 1, opaque(root), gss.INTEGRITY)
                self.refused(("accept", 4), lambda: rpc.exchange(other[:-1] + bytes([other[-1] ^ 1])).accepted())
                _, other = rpc.message(gss.NFS, 1, opaque(root), gss.INTEGRITY)
                self.refused(CRED_PROBLEM, lambda: rpc.exchange(other[:23] + b"\x02" + other[24:]).accepted())
            # A ticket is accepted once, too: the replay cache is the library's.
            with gss.connected(server.ready["nfs_port"]) as first, gss.connected(server.ready["nfs_port"]) as second:
                first.gss = gss.Context(SERVICE)
                request = first.head(gss.NFS, 0, 1, 0, 1) + oncrpc.NO_CREDENTIAL + opaque(first.gss.step())
                majors = []
                for rpc in [first, second]:
                    reply = rpc.exchange(request).accepted()
                    reply.opaque()
                    majors.append(reply.word())
                self.assertEqual(majors[0], 0)
                self.assertNotEqual(majors[1], 0)

    def test_a_context_ends_with_its_ticket(self):
        with self.serving("--export", "data:sec=krb5") as server:
            root, _ = gss.mount(server.ready["nfs_port"], "data")
            self.realm.log_on(weft.USER, "-l", "6s")
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                self.assertEqual(gss.getattr_status(rpc, root, gss.NONE), 0)
                realms.time.sleep(9)
                # The library may refuse to sign with the client's side of the context first.
                with self.assertRaises((gss.Refused, OSError)) as ended:
                    gss.getattr_status(rpc, root, gss.NONE)
                if isinstance(ended.exception, gss.Refused):
                    self.assertIn(ended.exception.args[:2], [CTX_PROBLEM, CRED_PROBLEM])

    def test_rights_bind_principals(self):
        config = self.work / "weft.toml"
        folder = self.work / "team"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        config.write_text(
            f'[shares.team]\npath = "{folder}"\nread = ["mallory"]\nwrite = ["{weft.USER}"]\nnfs.sec = ["krb5p"]\n'
            f'[kerberos.map]\n"mallory@{realms.REALM}" = "mallory"\n'
        )
        with self.serving("--config", config) as server:
            root, flavors = gss.mount(server.ready["nfs_port"], "team")
            self.assertEqual(flavors, [FLAVORS["krb5p"]])
            self.realm.log_on(weft.USER)
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                self.assertEqual(gss.create(rpc, root, "f", gss.PRIVACY)[0], 0)
            # The realm knows her, and the server does not: she is not one of those who may read.
            self.realm.log_on("mallory")
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                self.assertEqual(gss.getattr_status(rpc, root, gss.PRIVACY), 13)
            self.assertIn("stands for no user of this server", server.log_text())

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as its callers")
    def test_files_belong_to_the_account_of_the_principal(self):
        config = self.work / "weft.toml"
        config.write_text(f'[kerberos.map]\n"mallory@{realms.REALM}" = "daemon"\n')
        with self.serving("--config", config, "--export", "data:sec=krb5p") as server:
            server.folder.chmod(0o777)
            server.folder.parent.chmod(0o755)
            root, _ = gss.mount(server.ready["nfs_port"], "data")
            self.realm.log_on("mallory")
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                self.assertEqual(gss.create(rpc, root, "f", gss.PRIVACY)[0], 0)
            self.assertEqual((server.folder / "f").stat().st_uid, pwd.getpwnam("daemon").pw_uid)
            # A user of the server without an account of the system is the anonymous user.
            self.realm.log_on(weft.USER)
            with gss.connected(server.ready["nfs_port"], SERVICE) as rpc:
                self.assertEqual(gss.create(rpc, root, "g", gss.PRIVACY)[0], 0)
            self.assertEqual((server.folder / "g").stat().st_uid, 65534)

    def test_what_a_configuration_must_have(self):
        (self.work / "data").mkdir()
        command = [weft.WEFT, "serve", self.work / "data", "--smb-port", 0, "--smbd-port", 0, "--nfs-port", 0]
        for options, says in [
            (["--export", "data:sec=krb5p"], "--keytab"),
            (["--export", "data:sec=krb6"], "krb5p"),
        ]:
            done = weft.run(*command, *options, check=False, timeout=20)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)
        config = self.work / "weft.toml"
        for sec, says in [("krb5p", "smb.keytab"), ("kerberos", "krb5p")]:
            config.write_text(f'[shares.data]\npath = "{self.work}/data"\nnfs.sec = ["{sec}"]\n')
            done = weft.run(weft.WEFT, "serve", "--config", config, "--nfs-port", 0, check=False, timeout=20)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"{config}:3:", done.stderr)
            self.assertIn(says, done.stderr)
