"""libnfs's tools on a share over TCP, and the same bytes over NFS/RDMA."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

import nfs4
import oncrpc
import weft
from oncrpc import MOUNT, NFS, opaque, words


def libnfs(server, path="", share="data"):
    ready = server.ready
    return (
        f"nfs://127.0.0.1/{share}/{path}"
        f"?version=3&nfsport={ready['nfs_port']}&mountport={ready['mountd_port']}"
    )


class Nfs(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory(prefix="weft-client-")
        self.addCleanup(self.work.cleanup)
        self.source = weft.random_file(pathlib.Path(self.work.name) / "source", (5 << 20) + 3)
        self.back = pathlib.Path(self.work.name) / "back"

    def test_libnfs_lists_writes_and_reads(self):
        with weft.serving() as server:
            for share in ["data", "ram"]:
                with self.subTest(share=share):
                    weft.run("nfs-cp", self.source, libnfs(server, "one", share))
                    listed = weft.run("nfs-ls", libnfs(server, "", share)).stdout
                    self.assertRegex(listed, r"5242883 one")
                    with open(self.back, "wb") as out:
                        subprocess.run(["nfs-cat", libnfs(server, "one", share)], stdout=out, check=True, timeout=60)
                    self.assertTrue(weft.same(self.source, self.back))
            self.assertTrue(weft.same(self.source, server.folder / "one"))

    def test_libnfs_by_version_4(self):
        with weft.serving() as server:
            url = lambda path: f"nfs://127.0.0.1/{path}?version=4&nfsport={server.ready['nfs_port']}"
            # One root above all shares.
            listed = weft.run("nfs-ls", url("")).stdout.splitlines()
            self.assertEqual({line.split()[-1] for line in listed}, {"data", "ram"})
            # libnfs 4.0 encodes no WRITE of more than about 3 KiB in version 4, so longer files are written by version
            # 3.
            short = weft.random_file(pathlib.Path(self.work.name) / "short", 3000)
            weft.run("nfs-cp", short, url("data/short"))
            self.assertTrue(weft.same(short, server.folder / "short"))
            weft.run("nfs-cp", self.source, libnfs(server, "one"))
            self.assertRegex(weft.run("nfs-ls", url("data")).stdout, r"5242883 one")
            with open(self.back, "wb") as out:
                subprocess.run(["nfs-cat", url("data/one")], stdout=out, check=True, timeout=60)
            self.assertTrue(weft.same(self.source, self.back))

    def test_the_same_bytes_over_rdma(self):
        with weft.serving() as server:
            weft.run("nfs-cp", self.source, libnfs(server, "one"))
            for transport in ["tcp", "iwarp", "shm"]:
                with self.subTest(transport=transport):
                    self.back.unlink(missing_ok=True)
                    weft.run(weft.WEFT, "cp", "-q", server.nfs_url("one"), self.back, "--transport", transport)
                    self.assertTrue(weft.same(self.source, self.back))
                    weft.run(
                        weft.WEFT, "cp", "-q", self.source, server.nfs_url(f"by-{transport}"),
                        "--transport", transport,
                    )
                    self.assertTrue(weft.same(self.source, server.folder / f"by-{transport}"))

    def test_our_own_client_by_version_41(self):
        with weft.serving() as server:
            ready = server.ready
            base = f"nfs://127.0.0.1:{ready['nfs_port']}/data"
            for transport in ["tcp", "iwarp", "shm"]:
                with self.subTest(transport=transport):
                    name, here = f"by-{transport}", f"{self.back}-{transport}"
                    url = f"{base}/{name}?vers=4.1&rdmaport={ready['nfs_rdma_port']}"
                    weft.run(weft.WEFT, "cp", "-q", self.source, url, "--transport", transport)
                    self.assertTrue(weft.same(self.source, server.folder / name))
                    said = weft.run(weft.WEFT, "cp", url, here, "--transport", transport, "--channels", "3").stderr
                    self.assertIn("NFSv4.1", said)
                    self.assertTrue(weft.same(self.source, pathlib.Path(here)))
                    # libnfs reads the written data.
                    with open(self.back, "wb") as out:
                        subprocess.run(["nfs-cat", libnfs(server, name)], stdout=out, check=True, timeout=60)
                    self.assertTrue(weft.same(self.source, self.back))
            # By default it discovers the version; with MOUNT's port, which only version 3 uses, it need not.
            found = lambda url: weft.run(weft.WEFT, "ls", url).stdout
            self.assertRegex(found(f"{base}/"), "by-tcp")
            self.assertRegex(found(server.nfs_url("")), "by-tcp")

    def test_smb_and_nfs_see_the_same_share(self):
        with weft.serving() as server:
            weft.smbclient(server, f"put {self.source} by-smb")
            weft.run("nfs-cp", self.source, libnfs(server, "by-nfs"))
            self.assertIn("by-smb", weft.run("nfs-ls", libnfs(server)).stdout)
            self.assertIn("by-nfs", weft.smbclient(server, "ls"))

    def test_an_unknown_export_is_refused(self):
        with weft.serving() as server:
            done = weft.run("nfs-ls", libnfs(server, "", "nothing"), check=False)
            self.assertNotEqual(done.returncode, 0)


class Ports(unittest.TestCase):
    """A server that runs as root trusts the ids in calls from reserved ports, which only root of the client's host
    can use (exports(5), secure). A server without root acts as itself for all callers, and accepts every port."""

    NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]

    def statuses(self, ready, share, reserved):
        """Results of MNT, of GETATTR with the handle that root gets, and of LOOKUP by version 4.0, from a reserved port or
        another."""
        path = share.encode()
        with oncrpc.Connection(ready["mountd_port"]) as peer:
            handle = peer.mount(b"/" + path)
        with oncrpc.Connection(ready["mountd_port"], reserved=reserved) as peer:
            found = [peer.call(MOUNT, 3, 1, opaque(b"/" + path)).word()]
        with oncrpc.Connection(ready["nfs_port"], reserved=reserved) as peer:
            found.append(peer.call(NFS, 3, 1, opaque(handle)).word())
            found.append(peer.call(NFS, 4, 1, nfs4.compound(0, words(nfs4.PUTROOTFH), words(nfs4.LOOKUP) + opaque(path))).word())
        return found

    @unittest.skipUnless(os.geteuid() == 0, "the server has to run as root")
    def test_a_server_that_is_root_wants_reserved_ports(self):
        with weft.serving("--export", "ram:insecure") as server:
            refused = self.statuses(server.ready, "data", reserved=False)
            # MNT3ERR_ACCES, NFS3ERR_PERM and NFS4ERR_PERM, like Linux's server and mountd.
            self.assertEqual(refused, [13, 1, 1])
            self.assertEqual(self.statuses(server.ready, "ram", reserved=False), [0, 0, 0])
            self.assertEqual(self.statuses(server.ready, "data", reserved=True), [0, 0, 0])
            self.assertIn("--export data:insecure", server.log_text())

    def test_the_log_says_why_an_export_refuses_a_caller(self):
        with weft.serving("--export", "data:net=10.0.0.0/8,insecure") as server:
            with oncrpc.Connection(server.ready["mountd_port"]) as peer:
                # MNT3ERR_ACCES.
                self.assertEqual(peer.call(MOUNT, 3, 1, opaque(b"/data")).word(), 13)
            self.assertIn("export data refused a caller whose address is in none of its networks; --export data:net=", server.log_text())

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_our_client_takes_a_reserved_port_and_says_where_it_cannot(self):
        with weft.serving("--export", "ram:insecure") as server:
            nfs, rdma = server.ready["nfs_port"], server.ready["nfs_rdma_port"]
            fourth = lambda share: f"nfs://127.0.0.1:{nfs}/{share}?vers=4.1&rdmaport={rdma}"
            for version, of in {"3": lambda share: server.nfs_url("", share), "4.1": fourth}.items():
                for transport in ["tcp", "iwarp"]:
                    ls = [weft.WEFT, "ls", "--transport", transport]
                    with self.subTest(version=version, transport=transport):
                        weft.run(*ls, of("data"))
                        weft.run(*self.NOBODY, *ls, of("ram"))
                        said = weft.run(*self.NOBODY, *ls, of("data"), check=False)
                        self.assertNotEqual(said.returncode, 0)
                        self.assertIn("the export requires a reserved port (below 1024): run weft as root", said.stderr)
                        self.assertIn("`insecure`", said.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "needs root for reserved ports")
    def test_where_no_reserved_port_is_free(self):
        with weft.own_network(), weft.serving("--export", "ram:insecure") as server, contextlib.ExitStack() as stack:
            url = server.nfs_url("")
            weft.run(weft.WEFT, "ls", url)
            for port in range(665, 1024):
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
            said = weft.run(weft.WEFT, "ls", url, check=False).stderr
            self.assertIn("no reserved port (665 to 1023) is free", said)
            self.assertIn("MNT3ERR_ACCES", said)
            # If no reserved port is required, another port will do.
            self.assertIn("no reserved port", weft.run(weft.WEFT, "ls", url.replace("/data/", "/ram/")).stderr)

    def test_a_server_that_is_not_root_takes_every_port(self):
        with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
            os.chmod(work, 0o777)
            state = pathlib.Path(work) / "state"
            as_nobody = self.NOBODY if os.geteuid() == 0 else []
            command = [*as_nobody, weft.WEFT, "serve", "--ram", "data=16M", "--ram", "strict=16M", "--json", "--state-dir", state]
            command += ["--export", "strict:secure"]
            for name in ["smb", "smbd", "nfs", "mountd"]:
                command += [f"--{name}-port", 0]
            log = stack.enter_context(tempfile.NamedTemporaryFile())
            server = weft.Process(command, log.name)
            stack.callback(server.stop)
            url = f"nfs://127.0.0.1:{server.ready['nfs_port']}/data?mountport={server.ready['mountd_port']}"
            weft.run(*as_nobody, weft.WEFT, "ls", url)
            if os.geteuid() == 0:
                self.assertEqual(self.statuses(server.ready, "data", reserved=False), [0, 0, 0])
                self.assertEqual(self.statuses(server.ready, "strict", reserved=False), [13, 1, 1])


@unittest.skipUnless(os.geteuid() == 0, "the server restarts at its ports: the tests need root for a network of their own")
class Deaths(unittest.TestCase):
    """The server is killed and restarted during our client's copy: the copy continues, and nothing is lost or
    written twice."""

    PORTS = {"nfs": 2049, "nfs-rdma": 20049, "mountd": 20048}

    def setUp(self):
        self.enterContext(weft.own_network())
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-client-")))

    def die(self, transport, *options):
        source = weft.random_file(self.work / "source", (200 << 20) + 3)
        with weft.serving("--state-dir", self.work / "state", ports=self.PORTS) as server:
            command = [weft.WEFT, "cp", "-q", "--json", "--transport", transport, *options]
            copy = subprocess.Popen(
                [str(word) for word in [*command, source, server.nfs_url("copy")]], stdout=subprocess.PIPE, text=True
            )
            # It writes under a temporary name until the copy is complete.
            written = lambda: sum(file.stat().st_blocks * 512 for file in server.folder.iterdir())
            while written() < 20 << 20:
                self.assertIsNone(copy.poll(), "the copy ended before the server did")
            server.crash()
            server.start()
            said, _ = copy.communicate(timeout=300)
            self.assertEqual(copy.returncode, 0, server.log_text()[-4000:])
            self.assertTrue(weft.same(source, server.folder / "copy"))
            self.assertGreater(json.loads(said)["lost_connections"], 0)

    def test_over_tcp(self):
        self.die("tcp")

    def test_over_several_connections(self):
        self.die("tcp", "--channels", 4)

    def test_over_iwarp(self):
        self.die("iwarp")

    def test_over_shared_memory(self):
        self.die("shm")


if __name__ == "__main__":
    unittest.main()
