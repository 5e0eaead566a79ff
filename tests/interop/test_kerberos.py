"""Kerberos: Samba's smbclient with tickets of a test realm, MIT's KDC on a port of loopback, all without root."""

import os
import pathlib
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
import unittest
import unittest.mock

import weft

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
KDC = shutil.which("krb5kdc", path=PATH)
REALM = "WEFT.TEST"
HOST = "nas.weft.test"

# With a clock skew of a second, an expired ticket is refused immediately, not five minutes later.
KRB5_CONF = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  clockskew = {skew}
  default_ccache_name = FILE:{work}/ccache
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  .weft.test = {realm}
[dbmodules]
  db_module_dir = {plugins}/kdb
"""
KDC_CONF = """
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {realm} = {{
    database_name = {work}/principal
    key_stash_file = {work}/stash
    acl_file = {work}/acl
    max_life = 10h
  }}
"""


class Realm:
    """A KDC, its database and its files, in a folder."""

    def __init__(self, work, skew=1):
        self.work = pathlib.Path(work)
        port = weft.free_port()
        # Its plugins and libraries lie next to the programs, also if they are unpacked rather than installed.
        self.root = pathlib.Path(KDC).parent.parent
        libraries = self.root / "lib" / sysconfig.get_config_var("MULTIARCH")
        fields = {"realm": REALM, "work": work, "port": port, "skew": skew, "plugins": libraries / "krb5" / "plugins"}
        (self.work / "krb5.conf").write_text(KRB5_CONF.format(**fields))
        (self.work / "kdc.conf").write_text(KDC_CONF.format(**fields))
        self.environment = {
            "KRB5_CONFIG": f"{work}/krb5.conf",
            "KRB5_KDC_PROFILE": f"{work}/kdc.conf",
            "KRB5RCACHEDIR": work,
            "KRB5CCNAME": f"FILE:{work}/ccache",
        }
        self.tools = dict(os.environ, PATH=PATH, LD_LIBRARY_PATH=str(libraries), **self.environment)
        self.tool("sbin/kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
        for principal in [weft.USER, "mallory"]:
            self.admin(f"addprinc -pw {weft.PASSWORD} {principal}")
        for service, keytab in [(HOST, "keytab"), ("localhost", "keytab"), ("other.weft.test", "other")]:
            for kind in ["cifs", "nfs"]:
                self.admin(f"addprinc -randkey {kind}/{service}")
                self.admin(f"ktadd -k {work}/{keytab} {kind}/{service}")
        self.log = open(self.work / "kdc.log", "w")
        self.kdc = subprocess.Popen([KDC, "-n"], env=self.tools, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if self.kdc.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the KDC did not get ready: " + (self.work / "kdc.log").read_text())
            time.sleep(0.05)

    def tool(self, name, *command, text=None):
        # Not the first one of the PATH, but the one next to the KDC.
        done = subprocess.run(
            [str(self.root / name), *command], env=self.tools, input=text, text=True, capture_output=True
        )
        if done.returncode != 0:
            raise AssertionError(f"{name} {command}: {done.stdout}{done.stderr}")

    def admin(self, query):
        self.tool("sbin/kadmin.local", "-r", REALM, "-q", query)

    def log_on(self, principal, *options):
        self.tool("bin/kinit", *options, principal, text=weft.PASSWORD + "\n")

    def stop(self):
        self.kdc.terminate()
        self.kdc.wait()
        self.log.close()


def realm_for(test, **how):
    """A realm until the end of a test; servers and clients that it starts belong to it."""
    realm = Realm(test.enterContext(tempfile.TemporaryDirectory(prefix="weft-realm-")), **how)
    test.addCleanup(realm.stop)
    test.enterContext(unittest.mock.patch.dict(os.environ, realm.environment))
    return realm


@unittest.skipUnless(KDC, "no KDC: tests/interop/deps.sh installs it")
class WithRealm(unittest.TestCase):
    def setUp(self):
        self.realm = realm_for(self)
        self.work = self.realm.work


class Kerberos(WithRealm):
    def say(self, server, commands, *options, check=True):
        """smbclient by ticket, never by password; the commands are those that a user types."""
        ticket = ("--use-kerberos=required", f"--use-krb5-ccache={self.work}/ccache")
        done = weft.run(
            "smbclient", f"//{HOST}/data", "-I", "127.0.0.1", "-p", server.smb_port, *ticket, *options,
            check=False, input="".join(command.strip() + "\n" for command in commands.split(";")),
        )
        said = done.stdout + done.stderr
        if check:
            self.assertNotIn("NT_STATUS_", said)
        return said

    def test_tickets_open_what_passwords_open(self):
        (source := self.work / "source").write_text("by ticket")
        self.realm.log_on(weft.USER)
        with weft.serving("--keytab", self.work / "keytab", "--min-dialect", "2.0.2") as server:
            protections = [("sign",), ("encrypt",)]
            ciphers = ["AES-128-GCM", "AES-256-GCM", "AES-128-CCM", "AES-256-CCM"]
            options = [("-m", dialect) for dialect in ["SMB2_02", "SMB2_10", "SMB3_00", "SMB3_02", "SMB3_11"]]
            options += [(f"--client-protection={protection}",) for (protection,) in protections]
            options += [
                ("--client-protection=encrypt", f"--option=client smb3 encryption algorithms={cipher}")
                for cipher in ciphers
            ]
            for chosen in options:
                with self.subTest(options=chosen):
                    self.say(server, f"put {source} f; get f {self.work / 'back'}; del f", *chosen)
                    self.assertEqual((self.work / "back").read_text(), "by ticket")
            # Passwords still work beside tickets.
            weft.smbclient(server, "ls")

    def test_who_is_not_let_in(self):
        with weft.serving("--keytab", self.work / "keytab") as server:
            # A principal of the realm that is no user here.
            self.realm.log_on("mallory")
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.say(server, "ls", check=False))
        # A ticket for a service with another key.
        self.realm.log_on(weft.USER)
        with weft.serving("--keytab", self.work / "other") as server:
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.say(server, "ls", check=False))
        # Without a keytab the server does not offer Kerberos.
        with weft.serving() as server:
            self.assertIn("NT_STATUS_", self.say(server, "ls", check=False))

    def test_a_session_ends_with_its_ticket(self):
        with weft.serving("--keytab", self.work / "keytab") as server:
            self.realm.log_on(weft.USER, "-l", "6s")
            said = self.say(server, "ls; !sleep 9; ls", check=False)
            self.assertIn("blocks available", said)
            self.assertIn("NT_STATUS_NETWORK_SESSION_EXPIRED", said)
            # A new ticket lets it continue.
            self.realm.log_on(weft.USER)
            self.say(server, "ls")

    def test_our_own_client_shows_its_ticket(self):
        """`weft --kerberos`, with a name of this host for which a ticket exists."""

        def client(server, *command, check=True):
            # A password would also work, so make sure that it is not used.
            return weft.run(weft.WEFT, *command, "--kerberos", check=check, password="wrong", timeout=60)

        (source := self.work / "source").write_bytes(os.urandom(3_000_000))
        with weft.serving("--keytab", self.work / "keytab") as server:
            url = f"smb://localhost:{server.smb_port}/data/"
            # Without a ticket, and for a server unknown to the realm, the message says what to do.
            said = client(server, "ls", url, check=False)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("kinit", said.stderr)
            self.realm.log_on(weft.USER)
            said = client(server, "ls", url.replace("localhost", "127.0.0.1"), check=False)
            self.assertNotEqual(said.returncode, 0)
            self.assertIn("cifs/HOST", said.stderr)
            # Over each transport, with two channels of one session, signed and encrypted.
            for options in [("tcp",), ("tcp", "--channels", 2), ("shm", "--encrypt"), ("iwarp", "--sign")]:
                with self.subTest(options=options):
                    client(server, "cp", source, url, "--quiet", "--transport", *options)
                    (server.folder / "source").rename(server.folder / "copied")
                    self.assertEqual((server.folder / "copied").read_bytes(), source.read_bytes())
            self.assertIn("copied", client(server, "ls", url).stdout)
        # The server must prove its identity, which needs the right key.
        with weft.serving("--keytab", self.work / "other") as server:
            said = client(server, "ls", f"smb://localhost:{server.smb_port}/data/", check=False)
            self.assertNotEqual(said.returncode, 0)

    def test_a_keytab_that_is_none(self):
        (self.work / "data").mkdir()
        for keytab in [self.work / "missing", self.work / "krb5.conf"]:
            command = [weft.WEFT, "serve", self.work / "data", "--smb-port", 0, "--smbd-port", 0, "--keytab", keytab]
            done = weft.run(*command, check=False, timeout=20)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--keytab", done.stderr)
