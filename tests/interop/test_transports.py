"""One large file to the server and back over every transport, by Weft's own client against Weft's own server.

The other tests of this folder test each end with independent software; this one is about size.
"""

import json
import os
import pathlib
import tempfile
import unittest

import weft

# 1 GiB unless WEFT_TEST_FILE_SIZE asks for less.
SIZE = int(os.environ.get("WEFT_TEST_FILE_SIZE", 1 << 30))


@weft.alone
class Transports(unittest.TestCase):
    def test_a_large_file_there_and_back(self):
        with weft.serving() as server, tempfile.TemporaryDirectory(prefix="weft-client-") as work:
            source = weft.random_file(pathlib.Path(work) / "big.iso", SIZE)
            back = pathlib.Path(work) / "back.iso"
            for transport in ["tcp", "iwarp", "shm"]:
                with self.subTest(transport=transport):
                    there = weft.run(
                        weft.WEFT, "cp", "-q", "--json", source, server.url("big.iso"), "--transport", transport
                    )
                    self.assertTrue(weft.same(source, server.folder / "big.iso"))
                    again = weft.run(
                        weft.WEFT, "cp", "-q", "--json", server.url("big.iso"), back, "--transport", transport
                    )
                    self.assertTrue(weft.same(source, back))
                    for said in (there, again):
                        said = json.loads(said.stdout)
                        self.assertEqual(said["bytes"], SIZE)
                        self.assertEqual(said["transport"], transport)
                        # Was RDMA really used? All of the payload, or none of it.
                        self.assertGreaterEqual(said["rdma_bytes"], SIZE) if transport != "tcp" else (
                            self.assertEqual(said["rdma_bytes"], 0)
                        )
                    back.unlink()
                    (server.folder / "big.iso").unlink()

    def test_encrypted_sessions_keep_their_rdma(self):
        size = 9 << 20
        with weft.serving("--require-encryption") as server, tempfile.TemporaryDirectory() as work:
            source = weft.random_file(pathlib.Path(work) / "file", size)
            # Written, then read again for verification.
            for transport, moved in [("tcp", 0), ("iwarp", 2 * size), ("shm", 2 * size)]:
                with self.subTest(transport=transport):
                    done = weft.run(
                        weft.WEFT, "cp", "-q", "--json", source, server.url("file"), "--transport", transport
                    )
                    told = json.loads(done.stdout)
                    # Verification transfers the data once more.
                    self.assertEqual(
                        (told["rdma_bytes"], told["rdma_bytes"] + told["rdma_verify_bytes"]), (moved // 2, moved)
                    )
                    self.assertTrue(weft.same(source, server.folder / "file"))

    def test_errors_say_what_to_do(self):
        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            back = pathlib.Path(work) / "back"
            wrong = weft.run(weft.WEFT, "cp", "-q", server.url("x"), back, password="wrong", check=False)
            self.assertNotEqual(wrong.returncode, 0)
            self.assertIn("password", wrong.stderr.lower())
            missing = weft.run(weft.WEFT, "cp", "-q", server.url("missing"), back, check=False)
            self.assertNotEqual(missing.returncode, 0)
            self.assertFalse(back.exists(), "a failed copy leaves nothing behind")
            nobody = weft.run(
                weft.WEFT, "ls", f"smb://{weft.USER}@127.0.0.1:1/data", check=False
            )
            self.assertIn("127.0.0.1:1", nobody.stderr)


if __name__ == "__main__":
    unittest.main()
