"""libnfs's tools on a share over TCP, and the same bytes over NFS/RDMA."""

import pathlib
import tempfile
import unittest

import weft


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
                        import subprocess

                        subprocess.run(["nfs-cat", libnfs(server, "one", share)], stdout=out, check=True, timeout=60)
                    self.assertTrue(weft.same(self.source, self.back))
            self.assertTrue(weft.same(self.source, server.folder / "one"))

    def test_libnfs_by_version_4(self):
        import subprocess

        with weft.serving() as server:
            url = lambda path: f"nfs://127.0.0.1/{path}?version=4&nfsport={server.ready['nfs_port']}"
            # One root above all shares.
            listed = weft.run("nfs-ls", url("")).stdout.splitlines()
            self.assertEqual({line.split()[-1] for line in listed}, {"data", "ram"})
            # libnfs 4.0 encodes no WRITE of more than some 3 KiB in version 4: what is longer gets there by version 3.
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


if __name__ == "__main__":
    unittest.main()
