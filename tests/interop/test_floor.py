"""The floor of the benches (tests/peers/floor): that it moves the bytes which a server would, and that a line is judged by it.

A floor that moved fewer bytes, or other ones, would make every server look bad, and its figures would not show it. So its
frames are checked here from outside, by Python and by PyCryptodome, and the ratios by figures that are given."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

from Cryptodome.Cipher import AES
from Cryptodome.Hash import CMAC

PEERS = pathlib.Path(__file__).resolve().parents[1] / "peers"
sys.path.insert(0, str(PEERS))
import compare  # noqa: E402
from servers import build_floor  # noqa: E402

SPAN = 4 << 20
SIZES = [8 << 10, 256 << 10, 1 << 20]
FILE, MEMORY, MAPPED = range(3)
COPY, SENDFILE, PIECES, SPLICE = range(4)
PLAIN, GMAC, CMAC_, GCM = range(4)
KEY = b"key of the floor"


def nonce_of(number):
    return struct.pack("<Q", number) + bytes(4)


class Connection:
    """A client in Python: the work, requests that it makes itself, and answers."""

    def __init__(self, floor, size, write=False, storage=FILE, pattern=COPY, protection=PLAIN):
        self.size, self.write, self.protection = size, write, protection
        transform = 52 if protection == GCM else 0
        self.request_bytes, self.reply_bytes = transform + (116 if write else 117), transform + 84
        self.socket = socket.create_connection(("127.0.0.1", floor.port), timeout=30)
        self.socket.sendall(struct.pack(
            "=8I", write, 0, storage, pattern, protection, self.request_bytes, self.reply_bytes, size
        ))

    def receive(self, size):
        found = bytearray()
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            if not piece:
                raise EOFError(f"{len(found)} of {size} bytes")
            found += piece
        return bytes(found)

    def request(self, block, payload=b""):
        header = bytearray(self.request_bytes)
        if self.protection == GCM:
            header[24:32] = struct.pack("<Q", 7)
            cipher = AES.new(KEY, AES.MODE_GCM, nonce=nonce_of(7))
            cipher.update(bytes(header[24:56]))
            sealed, tag = cipher.encrypt_and_digest(bytes(header[56:]) + payload)
            header[8:24], header[56:], payload = tag, sealed[:len(header) - 56], sealed[len(header) - 56:]
        elif self.protection != PLAIN:
            header[28:36] = struct.pack("<Q", 7)
            header[52:68] = self.mac(7, bytes(header[4:]) + payload)
        header[:4] = struct.pack("=I", block)
        self.socket.sendall(bytes(header) + payload)

    def mac(self, number, covered):
        if self.protection == CMAC_:
            return CMAC.new(KEY, covered, ciphermod=AES).digest()
        return AES.new(KEY, AES.MODE_GCM, nonce=nonce_of(number)).update(covered).digest()

    def answer(self):
        """The payload of an answer whose MAC is right."""
        header = self.receive(self.reply_bytes)
        payload = b"" if self.write else self.receive(self.size)
        if self.protection == GCM:
            [number] = struct.unpack("<Q", header[24:32])
            cipher = AES.new(KEY, AES.MODE_GCM, nonce=nonce_of(number))
            cipher.update(header[24:56])
            return cipher.decrypt_and_verify(header[56:] + payload, header[8:24])[len(header) - 56:]
        if self.protection != PLAIN:
            [number] = struct.unpack("<Q", header[28:36])
            assert self.mac(number, header[4:52] + bytes(16) + header[68:] + payload) == header[52:68]
        return payload

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


class Running(unittest.TestCase):
    """With a server on a file of random bytes."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="weft-floor-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.program = build_floor(pathlib.Path(cls.folder.name) / "floor")

    def setUp(self):
        self.path = pathlib.Path(self.folder.name) / "file"
        self.content = os.urandom(SPAN)
        self.path.write_bytes(self.content)
        self.process = subprocess.Popen(
            [self.program, "serve", self.path, str(SPAN)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(self.stop)
        self.port = int(self.process.stdout.readline())

    def stop(self):
        self.process.kill()
        self.process.communicate()

    def block(self, size, number):
        return self.content[number * size:(number + 1) * size]

    def load(self, *words):
        return subprocess.run(
            [self.program, "load", str(self.port), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60,
        )


class Reads(Running):
    def check(self, wanted, size, **how):
        with Connection(self, size, **how) as client:
            numbers = [1, 0, SPAN // size - 1, 1, 2]
            for number in numbers:
                client.request(number)
            for number in numbers:
                self.assertEqual(client.answer(), wanted(size, number))

    def test_every_pattern_sends_the_bytes_of_the_file(self):
        for size in SIZES:
            for storage, pattern in [(FILE, COPY), (FILE, SENDFILE), (MAPPED, COPY)]:
                with self.subTest(size=size, storage=storage, pattern=pattern):
                    self.check(self.block, size, storage=storage, pattern=pattern)

    def test_every_pattern_sends_the_bytes_of_the_memory(self):
        def words(size, number):
            return struct.pack(f"={size // 8}Q", *range(number * size, (number + 1) * size, 8))

        for size in SIZES:
            for pattern, protection in [(COPY, PLAIN), (SENDFILE, PLAIN), (COPY, GMAC), (COPY, CMAC_), (COPY, GCM)]:
                with self.subTest(size=size, pattern=pattern, protection=protection):
                    self.check(words, size, storage=MEMORY, pattern=pattern, protection=protection)

    def test_signed_and_encrypted_answers_are_what_another_library_expects(self):
        for size in SIZES:
            for protection in [GMAC, CMAC_, GCM]:
                with self.subTest(size=size, protection=protection):
                    self.check(self.block, size, protection=protection)

    def test_a_block_behind_the_end_ends_the_server(self):
        with Connection(self, 8 << 10) as client:
            client.request(SPAN // (8 << 10))
            with self.assertRaises(EOFError):
                client.answer()
        self.assertIn("behind the end", self.process.stderr.read())


class Writes(Running):
    def test_every_pattern_writes_the_bytes_of_the_request_and_no_others(self):
        for size in SIZES:
            for pattern, protection in [(COPY, PLAIN), (PIECES, PLAIN), (SPLICE, PLAIN), (COPY, GMAC), (COPY, CMAC_), (COPY, GCM)]:
                if pattern != COPY and size < 32 << 10:
                    continue
                with self.subTest(size=size, pattern=pattern, protection=protection):
                    wanted = bytearray(self.path.read_bytes())
                    with Connection(self, size, True, pattern=pattern, protection=protection) as client:
                        for number in [2, 0, SPAN // size - 1]:
                            payload = os.urandom(size)
                            wanted[number * size:(number + 1) * size] = payload
                            client.request(number, payload)
                        for _ in range(3):
                            client.answer()
                    self.assertEqual(self.path.read_bytes(), bytes(wanted))

    def test_memory_keeps_what_was_written(self):
        for size in SIZES:
            for protection in [PLAIN, GCM]:
                with self.subTest(size=size, protection=protection):
                    payload = os.urandom(size)
                    with Connection(self, size, True, MEMORY, protection=protection) as client:
                        client.request(1, payload)
                        client.answer()
                    with Connection(self, size, storage=MEMORY) as client:
                        client.request(1)
                        self.assertEqual(client.answer(), payload)

    def test_a_wrong_mac_ends_the_server_and_nothing_is_written(self):
        for protection in [GMAC, CMAC_, GCM]:
            for size in SIZES:
                with self.subTest(protection=protection, size=size):
                    self.stop()
                    self.setUp()
                    with Connection(self, size, True, protection=protection) as client:
                        header = bytes(client.request_bytes)
                        client.socket.sendall(header + bytes(size))
                        with self.assertRaises((EOFError, ConnectionResetError)):
                            client.answer()
                    self.assertIn("MAC of a request is wrong", self.process.stderr.read())
                    self.assertEqual(self.path.read_bytes(), self.content)


class Loads(Running):
    def test_the_client_reaches_every_floor_of_the_benches(self):
        import nfs
        import smb

        floors = {
            (line.floor, line.write, line.size, line.depth) for line in [*smb.lines(), *nfs.lines()] if line.floor
        }
        self.assertGreater(len(floors), 30)
        for floor, write, size, depth in floors:
            for pattern in floor.patterns:
                with self.subTest(floor=floor, write=write, size=size, pattern=pattern):
                    done = self.load(floor.protocol, "write" if write else "read", floor.storage, pattern, floor.protection,
                                     size, depth, SPAN, 10)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    begin, figures = done.stdout.splitlines()
                    figures = json.loads(figures)
                    self.assertEqual(begin, "begin")
                    self.assertGreaterEqual(figures["operations"], depth)
                    self.assertEqual(figures["bytes"], figures["operations"] * size)

    def test_what_is_not_possible_is_refused(self):
        for words in ["smb read file pieces plain 8192 32 4194304 10", "smb write file sendfile plain 8192 32 4194304 10",
                      "nfs4.1 read file copy gcm 8192 32 4194304 10", "smb read file sendfile gmac 8192 32 4194304 10",
                      "smb read file copy plain 0 32 4194304 10", "smb read file copy plain 8192 many 4194304 10"]:
            with self.subTest(words=words):
                done = self.load(*words.split())
                self.assertEqual(done.returncode, 2)
                self.assertIn("not possible", done.stderr)


class Stored(unittest.TestCase):
    """The floor of a durable write."""

    def test_a_message_is_in_both_files_when_it_is_answered_and_the_file_goes_round(self):
        with tempfile.TemporaryDirectory(prefix="weft-floor-") as folder, contextlib.ExitStack() as ends:
            port, paths, size = None, [], 4096
            program = build_floor(pathlib.Path(folder) / "floor")
            for name in ["there", "here"]:
                paths.append(pathlib.Path(folder) / name)
                paths[-1].write_bytes(bytes(2 * size))
                command = [program, "store", paths[-1], str(2 * size), str(size), *([str(port)] if port else [])]
                process = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                ends.callback(process.kill)
                port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                messages = [os.urandom(size) for _ in range(3)]
                for number, message in enumerate(messages):
                    client.sendall(message)
                    self.assertEqual(client.recv(16, socket.MSG_WAITALL), message[:16])
                    for path in paths:
                        at = number % 2 * size
                        self.assertEqual(path.read_bytes()[at:at + size], message)
            self.assertEqual(process.wait(30), 0)


class Measured(unittest.TestCase):
    """Loaders that are a line of shell each."""

    def measure(self, script):
        server = types.SimpleNamespace(name="new", cpu_seconds=lambda: 1.0)
        line = compare.Line("READ", ("weft", "data"), (), 8192, None, metric="latency")
        with unittest.mock.patch.object(compare, "PATIENCE", 0.5):
            return compare.measure(line, server, ["sh", "-c", script], 0.1)

    def test_a_loader_that_begins_again_is_measured(self):
        done = json.dumps({"operations": 4, "bytes": 4, "seconds": 2})
        self.assertEqual(self.measure(f"echo begin; echo begin; echo '{done}'; cat"), 500_000)

    def test_one_that_makes_no_progress_stalls_and_is_ended(self):
        for script in ["sleep 60", "echo begin; sleep 60 & wait"]:
            with self.subTest(script=script), self.assertRaises(compare.InVain) as raised:
                self.measure(script)
            self.assertEqual(raised.exception.word, "stalls")

    def test_one_that_ends_early_fails(self):
        for script in ["exit 1", "echo begin; exit 1", "echo hello"]:
            with self.subTest(script=script), self.assertRaises(compare.InVain) as raised:
                self.measure(script)
            self.assertEqual(raised.exception.word, "fails")

    def test_one_without_an_operation_does_nothing(self):
        with self.assertRaises(compare.InVain) as raised:
            self.measure("""echo begin; echo '{"operations": 0, "bytes": 0, "seconds": 1}'""")
        self.assertEqual(raised.exception.word, "does nothing")


class Judged(unittest.TestCase):
    """Lines with figures that are given."""

    def judge(self, figures, *lines, repetitions=3):
        """The exit code, what is printed, and the JSON; `figures` has a list for each server, the patterns of the floor apart."""
        with tempfile.TemporaryDirectory(prefix="weft-judged-") as folder:
            path = pathlib.Path(folder) / "out.json"
            arguments = types.SimpleNamespace(repetitions=repetitions, seconds=1, span=SPAN, json=path, weft="/bin/true")

            class Server:
                engine = "none"

                def __init__(self, name):
                    self.name = name

                def load(self, line, pattern, *_):
                    return pattern

                def stop(self):
                    pass

            servers = {name: Server(name) for name in ["weft", "old", "new", "floor"]}
            given = {name: iter(list(values) * len(lines)) for name, values in figures.items()}

            def measure(line, server, command, seconds):
                figure = next(given[command if server.name == "floor" else server.name])
                if isinstance(figure, str):
                    raise compare.InVain(figure, server)
                return figure

            with unittest.mock.patch.object(compare, "measure", measure), \
                    unittest.mock.patch.object(compare, "claim_memory", lambda: None), \
                    unittest.mock.patch("builtins.print") as printed, self.assertRaises(SystemExit) as ended:
                compare.judge(lines, servers, lambda line, server, share: None, arguments)
            said = "\n".join(" ".join(map(str, call.args)) for call in printed.call_args_list)
            return ended.exception.code, said, json.loads(path.read_text())

    def line(self, most, promise, metric="cost", peers=("old", "new")):
        floor = compare.Floor("smb", ("copy", "sendfile"), most)
        return compare.Line("READ", ("weft", "data"), tuple((name, "data") for name in peers), 8192, promise, metric=metric,
                            floor=floor)

    FIGURES = {"copy": [1.0, 1.0, 9.0], "sendfile": [2.0, 2.0, 2.0], "weft": [1.3, 1.3, 5.0], "old": [4.0, 4.0, 4.0],
               "new": [1.3, 2.6, 2.6]}

    def test_a_line_within_both_bounds_holds(self):
        code, said, found = self.judge(self.FIGURES, self.line(1.4, 0.6))
        self.assertEqual((code, found["short"]), (0, []))
        [line] = found["lines"]
        # Medians, the best pattern and the best peer.
        self.assertEqual(line["floor"]["neighbour"], "floor (copy)")
        self.assertAlmostEqual(line["floor"]["ratio"], 1.3)
        self.assertEqual(line["best_peer"]["neighbour"], "new")
        self.assertAlmostEqual(line["best_peer"]["ratio"], 0.5)
        self.assertEqual(line["weft"]["figures"], self.FIGURES["weft"])
        self.assertEqual(line["floor"]["patterns"]["sendfile"], self.FIGURES["sendfile"])
        self.assertNotIn("SHORT", said)

    def test_a_line_too_far_above_the_floor_falls_short(self):
        code, said, found = self.judge(self.FIGURES, self.line(1.2, 0.6))
        self.assertEqual(code, 1)
        self.assertEqual(len(found["short"]), 1)
        self.assertIn("1.30 of floor (copy)'s server CPU s/GiB, promised <= 1.2", said)
        self.assertFalse(found["lines"][0]["floor"]["holds"])
        self.assertTrue(found["lines"][0]["best_peer"]["holds"])

    def test_a_line_behind_the_best_peer_falls_short_though_it_is_ahead_of_another(self):
        code, said, found = self.judge(self.FIGURES, self.line(1.4, 0.4))
        self.assertEqual(code, 1)
        self.assertIn("0.50 of new's", said)
        self.assertEqual(len(found["short"]), 1)

    def test_a_peer_that_stalls_is_shown_and_the_other_one_counts(self):
        figures = {**self.FIGURES, "new": [1.3, "stalls"]}
        code, said, found = self.judge(figures, self.line(1.4, 0.6))
        self.assertEqual((code, found["short"]), (0, []))
        [line] = found["lines"]
        self.assertEqual(line["best_peer"]["neighbour"], "old")
        self.assertEqual([peer["in_vain"] for peer in line["peers"]], [None, "stalls"])
        self.assertIn("old 4 (4-4), new stalls", said)

    def test_a_line_without_any_peer_that_came_to_its_end_falls_short(self):
        code, said, found = self.judge({**self.FIGURES, "old": ["fails"], "new": ["stalls"]}, self.line(1.4, 0.6))
        self.assertEqual(code, 1)
        self.assertIn("no peer came to its end (old fails, new stalls)", said)
        self.assertIsNone(found["lines"][0]["best_peer"])

    def test_a_peer_with_a_bound_of_its_own_is_judged_though_another_one_is_the_best(self):
        def judged(bound):
            return self.judge(self.FIGURES, dataclasses.replace(self.line(1.4, 0.6), bounds=(("old", bound),)))

        self.assertEqual(judged(0.33)[0], 0)
        code, said, found = judged(0.3)
        self.assertEqual(code, 1)
        self.assertIn("0.33 of old's server CPU s/GiB, promised <= 0.3", said)
        self.assertTrue(found["lines"][0]["best_peer"]["holds"])

    def test_one_of_two_clients_that_falls_short_is_enough(self):
        figures = {name: values * 2 for name, values in self.FIGURES.items()}
        figures["weft"] = [1.5] * 3 + [1.3] * 3
        code, _, found = self.judge(figures, self.line(1.4, 0.6), self.line(1.4, 0.6))
        self.assertEqual((code, len(found["short"])), (1, 1))

    def test_where_more_is_better_the_bound_is_a_least_one(self):
        code, said, found = self.judge(self.FIGURES, self.line(None, 0.3, "rate"))
        self.assertEqual(code, 0)
        self.assertEqual(found["lines"][0]["floor"]["neighbour"], "floor (sendfile)")
        self.assertEqual(found["lines"][0]["best_peer"]["neighbour"], "old")
        code, said, _ = self.judge(self.FIGURES, self.line(None, 0.4, "rate"))
        self.assertEqual(code, 1)
        self.assertIn("promised >= 0.4", said)


if __name__ == "__main__":
    unittest.main()
