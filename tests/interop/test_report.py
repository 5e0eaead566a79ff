"""How weft presents a measurement: the result against its JSON Schema, the pages in a headless Chromium (light and
dark, wide and narrow, without requests or errors), the tables in a terminal, and the exit status of a comparison."""

import copy
import csv
import json
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

import browser
from weft import ROOT, WEFT

PICTURES = [
    ("latency", "SMB", ["read", "write"], [1, 2, 4, 8, 16, 32, 64, 128, 256], 1),
    ("smb", "SMB", ["read", "write", {"percent": 50}], [2, 4, 8, 16, 32, 64, 128, 256], 10),
    ("table", "SMB", ["read"], [512, 8, 1], 16),
    ("nfs", "NFS", ["read", "write"], [4, 16, 64, 256, 1024, 4096], 16),
    ("replica", "replica", ["write"], [1024], 8),
    ("demo", "NFS", ["read"], [8, 64, 512], 1),
]
SLOWER = {"tcp": 4, "iwarp": 5, "iwarp-nocrc": 4.5, "shm": 1, "rnic": 0.7}
NAMES = {"tcp": "TCP", "iwarp": "iWARP", "iwarp-nocrc": "iWARP, no CRC", "shm": "shared memory", "rnic": "RDMA device"}


def spread(value, noise=0.05):
    return {"min": value * (1 - noise), "median": value, "max": value * (1 + noise)}


def end(nanoseconds, idle):
    return {"cores_busy": spread(0.5), "cycles_per_byte": spread(nanoseconds / 9e4), "idle_percent": spread(idle, 0.01),
            "interrupts_per_second": spread(1e9 / nanoseconds), "memory_bytes": spread(64 << 20)}


def point(protocol, mix, kib, depth, transport):
    """A made-up point: larger sizes take longer; it depends on the transport."""
    nanoseconds = SLOWER[transport] * (12_000 + kib * 128)
    each = 1e9 / nanoseconds
    percentiles = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999", "max"]
    rdma = transport != "tcp"
    total = int(each * depth * kib * 1024)
    traffic = {"rdma_read_bytes": 0, "rdma_write_bytes": total if rdma else 0, "send_bytes": 4096,
               "inline_bytes": 0 if rdma else total}
    return {
        "work": {"protocol": protocol, "mix": mix, "size": kib * 1024, "queue_depth": depth},
        "transport": transport, "repetitions": 3, "operations": 3_000_000, "bytes": total, "seconds": 3.0,
        "throughput": spread(each * depth * kib * 1024), "iops": spread(each * depth),
        "latency": {name: spread(nanoseconds * depth * (1 + i / 5)) for i, name in enumerate(percentiles)},
        "cycles_per_byte": spread(nanoseconds / 4e4), "client": end(nanoseconds, 40.0), "server": end(nanoseconds, 60.0),
        "traffic": traffic,
    }


def result():
    """A result with every picture and every transport, according to docs/result-schema.md."""
    sections = []
    for picture, protocol, mixes, sizes, depth in PICTURES:
        points = [point(protocol, mix, kib, depth, transport) for transport in SLOWER for mix in mixes for kib in sizes]
        sections.append({"picture": picture, "peer": {"host": "<nas> & \"co\"", "software": "Weft 0.1.0"}, "points": points})
    sections[0]["points"][3]["marks"] = [{"kind": "noisy", "text": "medians differ by 31%"}]
    sections[1]["refusals"] = [{"transport": "rnic", "reason": "no device leads there"}]
    sections[4]["points"][0]["timeline"] = [{"at": i, "throughput": 1e9 + i, "iops": 1e3} for i in range(9)]
    environment = {
        "role": "client", "processor": "Test", "hz": 2.5e9, "cycles": "CPU time x nominal clock", "processors": 2,
        "kernel": "6.18", "congestion_control": "reno", "driver": "io_uring", "interface": "lo", "mtu": 65536,
        "version": "0.1.0", "command": "weft bench all local --out 'a report.html' " + "x" * 300}
    return {"schema": "weft-result/1", "title": "All <pictures>", "started": "2026-11-22T02:00:00Z", "seconds": 58.5,
            "interrupted": True, "environment": environment, "sections": sections,
            "verdicts": [{"claim": "a < b", "ratio": 0.4, "bound": 0.25, "holds": False}], "notes": ["loopback"]}


def weft(*arguments, status=0):
    done = subprocess.run([WEFT, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-report-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, report):
        path = self.folder / name
        path.write_text(json.dumps(report))
        return path


class Results(Case):
    def test_a_demo_writes_what_the_schema_says(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("python3-jsonschema is not installed")
        out, written = self.folder / "demo.html", self.folder / "demo.json"
        weft("demo", "--only", "SMB READ 8 KiB", "--repetitions", 2, "--duration-ms", 20, "--file-size", "8M",
             "--out", out, "--json", written, "--csv", self.folder / "demo.csv")
        schema = json.loads((ROOT / "docs/result.schema.json").read_text())
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
        checker = kind(schema)
        measured = json.loads(written.read_text())
        self.assertEqual([], [e.message for e in checker.iter_errors(measured)])
        self.assertEqual([], [e.message for e in checker.iter_errors(result())], "the tests' own result is one, too")
        self.assertTrue(list(checker.iter_errors({**measured, "schema": "weft-result/0"})))
        points = [p for s in measured["sections"] for p in s["points"]]
        self.assertEqual({"tcp", "iwarp", "iwarp-nocrc", "shm"}, {p["transport"] for p in points})
        for p in points:
            counted = sum(int(pair.split(":")[1]) for pair in p["histogram"]["counts"].split())
            self.assertEqual(p["operations"], counted, "the histogram holds every operation")
        with open(self.folder / "demo.csv", newline="") as lines:
            rows = list(csv.DictReader(lines))
        self.assertEqual(len(points), len(rows))
        self.assertEqual([str(p["latency"]["p99.99"]["median"]) for p in points],
                         [f"{float(r['latency_p99.99_ns'])}" for r in rows])

    def test_a_stored_result_is_printed_again_in_every_form(self):
        path = self.write("a.json", result())
        text = weft("bench", "show", path).stdout
        for part in ["SMB READ 8 KiB qd 1", "not measured: rnic: no device leads there", "ended early", "noisy"]:
            self.assertIn(part, text)
        self.assertNotIn("\x1b", text, "no colour into a pipe")
        forms = [self.folder / name for name in ("a.html", "a.csv", "b.json", "a.md")]
        weft("bench", "show", path, *[word for form in forms for word in ("--out", form)])
        self.assertLess(forms[0].stat().st_size, 2 << 20)
        self.assertEqual(json.loads(forms[2].read_text())["sections"][0]["points"][0]["iops"], result()["sections"][0]["points"][0]["iops"])
        self.assertIn("does not hold", forms[3].read_text())

    def test_what_is_no_result_is_refused_with_what_to_do(self):
        for text, part in [("[]", "not a result of weft bench"), ('{"schema": "weft-result/9"}', "measure again"), ("", "not a result")]:
            path = self.folder / "bad.json"
            path.write_text(text)
            error = weft("bench", "show", path, status=1).stderr
            self.assertIn(part, error)
            self.assertIn("bad.json", error)
        self.assertIn("the name must end in .html", weft("bench", "show", self.write("a.json", result()), "--out", "a.gif", status=2).stderr)

    def test_a_terminal_gets_lines_that_fit(self):
        path = self.write("a.json", result())
        for columns in (60, 100):
            leader, follower = pty.openpty()
            import fcntl
            import struct
            import termios
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
            process = subprocess.Popen([WEFT, "bench", "show", path], stdout=follower, env=environment)
            os.close(follower)
            seen = b""
            while True:
                try:
                    more = os.read(leader, 65536)
                except OSError:
                    break
                if not more:
                    break
                seen += more
            os.close(leader)
            self.assertEqual(0, process.wait(30))
            import re
            self.assertIn(b"\x1b[", seen)
            rows = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in seen.decode().splitlines() if " shm " in line]
            self.assertGreater(len(rows), 20)
            self.assertLessEqual(max(map(len, rows)), columns)


class Comparisons(Case):
    def test_worse_ends_ci_and_noise_does_not(self):
        before, after = result(), result()
        same = self.write("before.json", before), self.write("same.json", copy.deepcopy(before))
        done = weft("bench", "compare", *same, "--gate")
        self.assertIn("0 better, 0 worse", done.stdout)
        slow = after["sections"][0]["points"][0]
        slow["latency"]["mean"] = spread(slow["latency"]["mean"]["median"] * 1.04)
        noisy = self.write("noisy.json", after)
        self.assertIn("0 better, 0 worse", weft("bench", "compare", same[0], noisy, "--gate").stdout)
        slow["latency"]["mean"] = spread(slow["latency"]["mean"]["median"] * 2)
        slower = self.write("slower.json", after)
        self.assertIn("0 better, 1 worse", weft("bench", "compare", same[0], slower, "--gate", status=1).stdout)
        self.assertIn("0 better, 1 worse", weft("bench", "compare", same[0], slower).stdout)
        self.assertIn("1 better, 0 worse", weft("bench", "compare", slower, same[0], "--gate").stdout)

    def test_a_program_gets_every_line(self):
        before, after = result(), result()
        after["sections"][0]["points"].pop()
        after["environment"]["kernel"] = "6.1"
        paths = self.write("a.json", before), self.write("b.json", after)
        told = json.loads(weft("bench", "compare", *paths, "--json").stdout)
        self.assertEqual("weft-compare/1", told["schema"])
        self.assertEqual(["kernel: 6.18, then 6.1"], told["environment"])
        self.assertEqual(["first"], [lone["only_in"] for lone in told["lone"]])
        self.assertTrue(all(line["judgement"] == "same" and line["ratio"] == 1 for line in told["lines"]))

    def test_results_without_a_common_point_are_no_comparison(self):
        other = result()
        for section in other["sections"]:
            for p in section["points"]:
                p["transport"] = "other"
        error = weft("bench", "compare", self.write("a.json", result()), self.write("b.json", other), status=1).stderr
        self.assertIn("no point in common", error)


@unittest.skipIf(browser.missing(), browser.missing())
class Pages(Case):
    def look(self, path, check):
        """Runs `check` in both colour schemes, wide and narrow; the page must load nothing and log no error."""
        with browser.Browser() as seen:
            for scheme in ("light", "dark"):
                for width in (1280, 390):
                    with self.subTest(scheme=scheme, width=width):
                        seen.open(path, scheme, width)
                        self.assertEqual([], seen.console())
                        self.assertEqual({f"file://{path}"}, set(seen.requests()))
                        self.assertEqual(scheme == "dark", seen.ask("return matchMedia('(prefers-color-scheme: dark)').matches"))
                        self.assertLessEqual(seen.ask("return document.documentElement.scrollWidth"), width, "no sideways scrolling")
                        self.readable(seen, scheme)
                        check(seen)

    def readable(self, seen, scheme):
        """Text has enough contrast (WCAG: 4.5), text in pictures is at least 9 pixels high, and the page follows the
        colour scheme."""
        poor = seen.poor_text()
        self.assertEqual([], poor)
        ground = seen.ask("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        self.assertEqual(scheme == "dark", sum(ground) < 384, ground)

    def test_every_figure_has_its_series_and_nothing_is_cut(self):
        page = self.folder / "a.html"
        weft("bench", "show", self.write("a.json", result()), "--out", page)

        def check(seen):
            figures = seen.ask("""
                return [...document.querySelectorAll('figure')].map(f => {
                    const svg = f.querySelector('svg'), box = svg.getBoundingClientRect();
                    const out = [...f.querySelectorAll('svg')].flatMap(s => { const b = s.getBoundingClientRect();
                        return [...s.querySelectorAll('text,.dot,.bar')].filter(e => { const r = e.getBoundingClientRect();
                            return r.width && (r.left < b.left - 2 || r.right > b.right + 2 || r.top < b.top - 2 || r.bottom > b.bottom + 3); })
                            .map(e => e.textContent.slice(0, 50)); });
                    return {section: f.closest('section').id, caption: f.querySelector('figcaption').textContent,
                            series: [...new Set([...svg.querySelectorAll('[data-series]')].map(g => g.dataset.series))],
                            wide: box.width, high: box.height, name: svg.getAttribute('aria-label'), out};
                })""")
            sections = [f["section"] for f in figures]
            self.assertEqual(["demo", "latency", "smb", "table", "nfs", "replica"], list(dict.fromkeys(sections)))
            least = {"latency": 6, "smb": 9, "table": 3, "nfs": 6, "replica": 5, "demo": 2}
            for section, many in least.items():
                self.assertGreaterEqual(sections.count(section), many, section)
            for figure in figures:
                if "over time" in figure["caption"]:
                    continue
                self.assertEqual(set(NAMES.values()), set(figure["series"]), figure["caption"])
                self.assertTrue(figure["name"] and figure["wide"] > 250 and figure["high"] > 80, figure)
                self.assertEqual([], figure["out"], figure["caption"])
            self.assertGreaterEqual(seen.ask("return document.querySelectorAll('figure .strip').length"), 20, "ratios under the figures")
            colours = seen.ask("""return ['tcp', 'iwarp', 'nocrc', 'shm', 'rnic'].map(c =>
                getComputedStyle(document.querySelector('.series.' + c)).color)""")
            self.assertEqual(5, len(set(colours)), colours)
            text = seen.ask("return document.body.innerText")
            for part in ["Read with care", "Not measured: RDMA device: no device leads there", "other hardware", "Was RDMA used?",
                         "weft bench all local", "falls short", "All <pictures>", "does not hold"]:
                self.assertIn(part, text)

        self.look(page, check)

    def test_a_comparison_is_a_page_too(self):
        after = result()
        for p in after["sections"][0]["points"]:
            p["latency"]["mean"] = spread(p["latency"]["mean"]["median"] * 2)
        page = self.folder / "c.html"
        weft("bench", "compare", self.write("a.json", result()), self.write("b.json", after), "--out", page)

        def check(seen):
            self.assertGreater(seen.ask("return document.querySelectorAll('td .worse').length"), 50)
            self.assertGreater(seen.ask("return document.querySelectorAll('figure svg').length"), 10)

        self.look(page, check)


if __name__ == "__main__":
    unittest.main()
