"""Weft's NFS client with Kerberos tickets (`sec=krb5`, `krb5i`, `krb5p`): against `weft serve`, and against NFS-Ganesha."""

import os
import pathlib
import shutil
import socket
import struct
import subprocess
import time
import unittest

import test_kerberos as realms
import weft

FLAVORS = ["krb5", "krb5i", "krb5p"]
GANESHA = shutil.which("ganesha.nfsd", path=realms.PATH)
PRINCIPAL = f"{weft.USER}@{realms.REALM}"


class WithRealm(realms.WithRealm):
    def fails(self, *command):
        """What a command that fails says."""
        done = weft.run(weft.WEFT, *command, check=False, timeout=60)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def there_and_back(self, url, *options, size=3_000_000):
        """Copies a file to a URL of NFS and back; returns what the first copy says of its connection."""
        source = weft.random_file(self.work / "source", size)
        said = weft.run(weft.WEFT, "cp", source, url, *options).stderr
        back = self.work / "back"
        weft.run(weft.WEFT, "cp", "-q", url, back, *options)
        self.assertTrue(weft.same(source, back))
        return said


class OfWeft(WithRealm):
    def serving(self, *options, **more):
        return weft.serving("--keytab", self.work / "keytab", *options, **more)

    def url(self, server, path="f", host="localhost", **options):
        options.setdefault("rdmaport", server.ready["nfs_rdma_port"])
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"nfs://{host}:{server.ready['nfs_port']}/data/{path}?{query}"

    def test_every_version_and_protection_over_every_transport(self):
        self.realm.log_on(weft.USER)
        with self.serving("--export", "data:sec=krb5:krb5i:krb5p") as server:
            server.folder.chmod(0o777)
            for version in ["3", "4.1"]:
                for sec in FLAVORS:
                    for transport in [("tcp", "--channels", 3), ("iwarp",), ("shm",)]:
                        with self.subTest(version=version, sec=sec, transport=transport):
                            url = self.url(server, f"{version}-{sec}", vers=version, sec=sec)
                            said = self.there_and_back(url, "--transport", *transport)
                            self.assertIn(f"NFSv{version} ", said)
                            self.assertIn(f", {sec} as {PRINCIPAL}, ", said)
                            placed = transport[0] != "tcp" and sec == "krb5"
                            self.assertEqual("payload by RDMA" in said, placed, said)
            text = weft.run(weft.WEFT, "ls", self.url(server, "", sec="krb5p")).stdout
            self.assertIn("4.1-krb5i", text)
            self.assertNotIn("refused a Kerberos ticket", server.log_text())

    def test_the_flavor_is_the_one_that_the_export_accepts(self):
        self.realm.log_on(weft.USER)
        with self.serving("--export", "data:sec=krb5p") as server:
            server.folder.chmod(0o777)
            for version in ["3", "4.1"]:
                said = self.there_and_back(self.url(server, vers=version))
                self.assertIn(f", krb5p as {PRINCIPAL}, because the export accepts no Unix ids", said)
                said = self.fails("cp", self.work / "source", self.url(server, vers=version, sec="krb5i"))
                self.assertIn("does not accept krb5i, but krb5p; write ", said)
                self.assertIn("sec=krb5p", said)
                said = self.fails("cp", self.work / "source", self.url(server, vers=version, sec="sys"))
                self.assertIn("does not accept sys, but krb5p; write ", said)
            self.assertIn("export data refused a caller with a security flavor that it does not accept", server.log_text())
        with self.serving("--export", "data:sec=sys:krb5i:krb5") as server:
            server.folder.chmod(0o777)
            for version in ["3", "4.1"]:
                # Two users, of whom none may write to the other's file.
                said = self.there_and_back(self.url(server, f"ids-{version}", vers=version))
                self.assertNotIn("krb5", said)
                said = self.there_and_back(self.url(server, f"ticket-{version}", vers=version), "--kerberos")
                self.assertIn(f", krb5i as {PRINCIPAL}, ", said)
        with self.serving() as server:
            for version in ["3", "4.1"]:
                said = self.fails("ls", "-k", self.url(server, "", vers=version))
                self.assertIn("accepts no Kerberos tickets, but sys, none: omit --kerberos", said)

    def test_who_has_no_usable_ticket_is_told_what_to_do(self):
        with self.serving("--export", "data:sec=krb5i") as server:
            for version in ["3", "4.1"]:
                with self.subTest(version=version):
                    (self.work / "ccache").unlink(missing_ok=True)
                    ls = lambda **options: self.fails("ls", self.url(server, "", vers=version, **options))
                    self.assertIn("get one with kinit", ls())
                    self.realm.log_on(weft.USER)
                    # The ticket names the host, and this is another name of it.
                    self.assertIn("no service nfs/127.0.0.1: name the server as in", ls(host="127.0.0.1"))
                    # A cache that tells the library that this clock is an hour behind.
                    self.turn_clock(3600)
                    self.assertIn("this host's clock and the KDC's differ", ls())
                    # kinit would believe the old cache.
                    (self.work / "ccache").unlink()
                    self.realm.log_on(weft.USER)
                    weft.run(weft.WEFT, "ls", self.url(server, "", vers=version))
                    self.turn_clock(3600)
                    # The cache has the service's ticket already.
                    self.assertIn("its clock and this host's differ", ls())
                    (self.work / "ccache").unlink()
                    self.realm.log_on(weft.USER, "-l", "1s")
                    time.sleep(3)
                    self.assertIn("has expired: get a new one with kinit", ls())
        self.realm.log_on(weft.USER)
        # The server has the key of another name.
        with weft.serving("--keytab", self.work / "other", "--export", "data:sec=krb5") as server:
            self.assertIn("ktadd nfs/localhost", self.fails("ls", self.url(server, "")))
        with weft.serving() as server:
            said = self.fails("ls", self.url(server, "", sec="krb5"))
            self.assertTrue("takes no Kerberos tickets" in said or "does not accept krb5" in said, said)

    def turn_clock(self, seconds):
        """Sets the offset of the KDC's clock that kinit writes into the header of the cache (DeltaTime)."""
        cache = self.work / "ccache"
        content = cache.read_bytes()
        version, length = struct.unpack(">HH", content[:4])
        self.assertEqual(version, 0x0504)
        cache.write_bytes(struct.pack(">HHHHii", version, 12, 1, 8, seconds, 0) + content[4 + length:])

    def pouring(self, url):
        """`weft put`, which is given the content bit by bit."""
        return subprocess.Popen(
            [weft.WEFT, "put", url, "--transport", "tcp"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )

    def pour(self, put, content):
        put.stdin.write(content)
        put.stdin.flush()

    def outlasts(self, version, sec, lifetime, between):
        """A copy in whose middle something happens: `between` gets the server and the time by which the ticket has ended."""
        content = os.urandom(16 << 20)
        half = len(content) // 2
        options = ("--export", f"data:sec={sec}", "--state-dir", self.work / f"state-{version}")
        with self.serving(*options, ports={"nfs": weft.free_port()}) as server:
            server.folder.chmod(0o777)
            self.realm.log_on(weft.USER, "-l", f"{lifetime}s")
            ended = time.monotonic() + lifetime + 2
            put = self.pouring(self.url(server, vers=version, sec=sec))
            self.pour(put, content[:half])
            between(server, ended)
            _, said = put.communicate(content[half:], timeout=120)
            self.assertEqual(put.returncode, 0, said.decode() + server.log_text())
            self.assertEqual((server.folder / "f").read_bytes(), content)

    def test_a_copy_outlasts_a_restart_of_the_server(self):
        for version, sec in [("3", "krb5p"), ("4.1", "krb5i")]:
            with self.subTest(version=version, sec=sec):
                # The server forgets its contexts, and refuses the next call.
                self.outlasts(version, sec, 3600, lambda server, _: server.restart())

    def test_a_copy_outlasts_its_ticket_if_there_is_a_new_one(self):
        def renewed(_, ended):
            self.realm.log_on(weft.USER)
            time.sleep(max(0, ended - time.monotonic()))

        for version, sec in [("3", "krb5i"), ("4.1", "krb5p")]:
            with self.subTest(version=version, sec=sec):
                self.outlasts(version, sec, 10, renewed)

    def test_a_copy_whose_ticket_has_ended_says_so(self):
        with self.serving("--export", "data:sec=krb5p") as server:
            server.folder.chmod(0o777)
            self.realm.log_on(weft.USER, "-l", "5s")
            put = self.pouring(self.url(server))
            self.pour(put, os.urandom(8 << 20))
            time.sleep(7)
            _, said = put.communicate(os.urandom(8 << 20), timeout=60)
            self.assertNotEqual(put.returncode, 0)
            self.assertIn("has expired: get a new one with kinit", said.decode())


GANESHA_CONF = """
NFS_CORE_PARAM {{
  NFS_Protocols = 3, 4; NFS_Port = {port}; MNT_Port = {mount_port};
  Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true; Plugins_Dir = "{plugins}";
}}
NFS_KRB5 {{ PrincipalName = nfs; KeytabPath = "{work}/keytab"; CCacheDir = "{work}"; Active_krb5 = true; }}
NFSv4 {{ Graceless = true; Minor_Versions = 0, 1, 2; RecoveryRoot = "{work}/recovery"; IdmapConf = "{work}/idmapd.conf"; }}
LOG {{ Default_Log_Level = EVENT; }}
EXPORT {{
  Export_Id = 1; Path = {data}; Pseudo = /data; Access_Type = RW; Squash = No_Root_Squash; SecType = {sec};
  Transports = TCP; Protocols = 3, 4; FSAL {{ Name = VFS; }}
}}
"""
IDMAPD_CONF = """
[General]
Domain = weft.test
Local-Realms = {realm}
[Translation]
Method = static
GSS-Methods = static
[Static]
{principal} = daemon
"""


# rpcbind has one lock file for the whole host.
@weft.alone
@unittest.skipUnless(GANESHA, "no NFS-Ganesha: tests/interop/deps.sh installs it")
@unittest.skipUnless(os.geteuid() == 0, "NFS-Ganesha needs root")
class OfGanesha(WithRealm):
    """The server is not ours: ntirpc's RPCSEC_GSS, with a sequence window of its own."""

    def setUp(self):
        # Before the KDC, which clients and server have to reach; rpcbind has a well-known port.
        self.enterContext(weft.own_network())
        super().setUp()

    def serve(self, sec):
        """Starts NFS-Ganesha; returns its ports."""
        data = self.work / "data"
        data.mkdir(exist_ok=True)
        data.chmod(0o777)
        self.work.chmod(0o755)
        (self.work / "recovery").mkdir(exist_ok=True)
        port, mount_port = weft.free_port(), weft.free_port()
        # Its libraries lie next to the program, also if they are unpacked rather than installed.
        root = pathlib.Path(GANESHA).parent.parent
        libraries = next(root.glob("lib/*/ganesha"))
        conf = self.work / "ganesha.conf"
        conf.write_text(GANESHA_CONF.format(
            port=port, mount_port=mount_port, plugins=libraries, work=self.work, data=data, sec=sec
        ))
        (self.work / "idmapd.conf").write_text(IDMAPD_CONF.format(realm=realms.REALM, principal=PRINCIPAL))
        # It registers its ports.
        rpcbind = subprocess.Popen(["rpcbind", "-f"], stderr=subprocess.DEVNULL, env=self.realm.tools)
        self.addCleanup(self.end, rpcbind)
        self.wait_for(111, rpcbind)
        paths = os.pathsep.join(map(str, [root / "lib", libraries.parent, root / "lib" / "ganesha"]))
        environment = dict(os.environ, LD_LIBRARY_PATH=paths, **self.realm.environment)
        self.log = self.work / "ganesha.log"
        server = subprocess.Popen(
            [GANESHA, "-F", "-f", conf, "-L", self.log, "-p", self.work / "ganesha.pid"], env=environment,
        )
        self.addCleanup(self.end, server)
        self.wait_for(port, server)
        self.wait_for(mount_port, server)
        return port, mount_port

    def wait_for(self, port, process):
        until = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            log = self.work / "ganesha.log"
            if process.poll() is not None or time.monotonic() > until:
                self.fail(f"nothing listens at port {port}: " + (log.read_text() if log.exists() else ""))
            time.sleep(0.1)

    def end(self, process):
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def urls(self, ports, path="f", **options):
        """The URL for each version."""
        port, mount_port = ports
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return {
            "4.1": f"nfs://localhost:{port}/data/{path}?vers=4.1{query}",
            "3": f"nfs://localhost:{port}/data/{path}?vers=3&mountport={mount_port}{query}",
        }

    def test_every_version_and_protection(self):
        ports = self.serve("krb5, krb5i, krb5p")
        self.realm.log_on(weft.USER)
        for sec in FLAVORS:
            for version, url in self.urls(ports, f"{{}}-{sec}", sec=sec).items():
                for channels in [1, 4]:
                    with self.subTest(version=version, sec=sec, channels=channels):
                        url_ = url.format(version)
                        said = self.there_and_back(url_, "--channels", channels, size=20_000_000)
                        self.assertIn(f", {sec} as {PRINCIPAL}, ", said)
                        self.assertTrue(weft.same(self.work / "source", self.work / "data" / f"{version}-{sec}"))

    def test_the_flavor_is_the_one_that_the_export_accepts(self):
        ports = self.serve("krb5p")
        self.realm.log_on(weft.USER)
        for version, url in self.urls(ports).items():
            with self.subTest(version=version):
                said = self.there_and_back(url)
                self.assertIn(f", krb5p as {PRINCIPAL}, because the export accepts no Unix ids", said)
        for version, url in self.urls(ports, sec="krb5").items():
            with self.subTest(version=version):
                self.assertIn("does not accept krb5, but krb5p; write ", self.fails("ls", url))


if __name__ == "__main__":
    unittest.main()
