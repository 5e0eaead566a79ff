"""The status page of weft serve --admin, in a headless Chromium: what it shows of real clients, hostile names, colour
schemes and widths, and that it asks nobody but its server."""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest

import browser
import fuse
import weft
from test_endings import until
from test_metrics import TOKEN, get
from test_status import put_inside, smbclient_inside

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
OVERRIDE = "a\u202egnp.exe\u0007"


@contextlib.contextmanager
def with_token(*options):
    """A server whose admin pages need a token."""
    with tempfile.TemporaryDirectory(prefix="weft-token-") as folder:
        file = pathlib.Path(folder) / "token"
        file.write_text(TOKEN + "\n")
        file.chmod(0o600)
        with weft.serving("--admin", "127.0.0.1:0", "--admin-token-file", file, *options) as server:
            yield server


def address(server, host="127.0.0.1"):
    return f"http://{host}:{server.ready['admin_port']}/"


class Impostor(http.server.BaseHTTPRequestHandler):
    """Serves weft's own page, with its policy, and statuses that no server would send."""

    def do_GET(self):
        made = self.server.made.get(self.path)
        if made is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.weft, timeout=30)
            connection.request("GET", self.path)
            answer = connection.getresponse()
            code, headers, body = answer.status, answer.getheaders(), answer.read()
            connection.close()
        else:
            code, headers, body = 200, [("Content-Type", "application/json")], json.dumps(made).encode()
        self.send_response(code)
        for name, value in headers:
            if name.lower() not in ("content-length", "date", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def impostor(server, made):
    """The address of a server that answers these paths with these objects, and the rest by `server`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as other:
        other.weft, other.made = server.ready["admin_port"], made
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{other.server_port}/"
        finally:
            other.shutdown()
            thread.join()


def traffic(**some):
    fields = ["rdma_written_bytes", "rdma_writes", "rdma_read_bytes", "rdma_reads", "rdma_by_client_bytes", "sent_bytes", "sent",
              "received_bytes", "received"]
    return {field: some.get(field, 0) for field in fields}


def connection(number, state, transport="tcp", provider=None, user="alice", **some):
    """A connection of a made-up status."""
    session = {"id": f"{number:016x}", "user": user, "signing": "AES-128-GMAC", "signing_required": True, "encryption": None,
               "channels": 1, "shares": ["team"], "encrypted_shares": [], "opens": 3, "age_seconds": 90}
    reasons = {
        "used": ("SMB Direct over iwarp: 98.1 % of 4.2 GiB by RDMA", None),
        "in-messages": ("SMB Direct over iwarp, but 3.1 GiB of 3.2 GiB travelled in messages: its messages are encrypted, and such data "
                        "goes by RDMA only to clients with RDMA transforms", "use a client with SMB 3.1.1 RDMA transforms"),
        "not-used": ("the client did not ask for RDMA: smbclient and libraries never do, Linux needs an option",
                     "mount -t cifs -o rdma,vers=3.1.1,port=5445 with an RDMA device"),
        "not-possible": ("NBD has no RDMA", "serve the volume as a file, too: [shares.NAME] with volumes = true"),
    }
    reason, remedy = reasons[state]
    made = {"protocol": "smb", "peer": f"192.0.2.{number % 250}:{40000 + number}", "transport": transport, "provider": provider,
            "age_seconds": 100 + number, "dialect": "3.1.1", "client": None, "sessions": [session], "traffic": traffic(), "nbd": None,
            "nfs": None, "seen": {}, "advice": None, "rdma": {"state": state, "reason": reason, "remedy": remedy}}
    return {**made, **some}


def made_status():
    """A busy server with every state of RDMA and hostile names."""
    direct = traffic(rdma_written_bytes=4 << 30, rdma_writes=4096, rdma_read_bytes=1 << 30, rdma_reads=99, sent_bytes=80 << 20, sent=5000,
                     received_bytes=9 << 20, received=5000)
    sealed = traffic(rdma_written_bytes=90 << 20, sent_bytes=3 << 30, received_bytes=100 << 20)
    tcp = traffic(sent_bytes=700 << 20, received_bytes=70 << 20)
    connections = [
        connection(1, "used", "smb-direct", "iwarp", traffic=direct),
        connection(2, "used", "smb-direct", "iwarp", user="bob", traffic=direct),
        connection(3, "in-messages", "smb-direct", "iwarp", user="carol", traffic=sealed),
        connection(4, "not-used", user=HOSTILE, traffic=tcp),
        connection(5, "not-used", user=OVERRIDE, traffic=tcp, peer=HOSTILE + ":1"),
        connection(6, "not-possible", protocol="nbd", dialect=None, sessions=[], traffic=traffic(),
                   nbd={"volume": "db", "tls": True, "read_bytes": 5 << 20, "reads": 9, "written_bytes": 1 << 20, "writes": 3}),
    ]
    kind = {"protocol": "smb", "transport": "tcp", "provider": None, "open": 2, "without_rdma": 2, "ended": 7, "traffic": tcp}
    direct_kind = {**kind, "transport": "smb-direct", "provider": "iwarp", "open": 3, "without_rdma": 0, "traffic": {
        name: direct[name] * 2 + sealed[name] for name in direct}}
    share = {"name": "team", "kind": "dir", "source": "/srv/team", "encrypted": True, "opens": 12, "connections": 5, "warning": None,
             "space": {"total_bytes": 4 << 40, "available_bytes": 1 << 40}}
    lines = [{"group": "db", "role": "source", "text": "db, source: synchronous to other:db, continuously replicating, lag 0 B, 0.0 s, by iwarp",
              "needs_attention": False, "reason": None, "remedy": None},
             {"group": "mail", "role": "source", "text": "mail, source: synchronous to other:mail, disconnected, lag 1.2 GiB, 612.0 s",
              "needs_attention": True, "reason": "other offers no RDMA", "remedy": "on other: weft serve --rdma iwarp"}]
    return {
        "version": "0.1.0", "build": "abcdef0 2026-11-28", "pid": 4711, "up_seconds": 266400, "listen": "0.0.0.0", "ports": [["smb", 445]],
        "providers": ["iwarp", "shm"], "driver": "io_uring", "state_warning": None, "config": "/etc/weft/weft.toml", "opens": 14,
        "sessions": 5, "shares": [share, {**share, "name": HOSTILE, "source": HOSTILE, "encrypted": False, "space": None,
                                          "warning": "its disk is full: " + HOSTILE}],
        "volumes": [{"name": "db", "kind": "file", "source": "/srv/db.raw", "size": 64 << 30, "clients": 1, "warning": None}],
        "replicas": [], "connections": connections, "ended": [], "kinds": [direct_kind, kind], "replication": lines,
        "more": {"connections": 1744, "shares": 0, "volumes": 0, "replicas": 0, "sessions": 0, "session_shares": 0},
    }


def made_latency():
    """An hour with a bad quarter."""
    minutes = []
    for minute in range(60):
        slow = 3 if 30 <= minute < 40 else 0
        def counts(middle, most):
            return [max(0, int(most * 2.0 ** -(2 * abs(i - middle)))) for i in range(24)]
        # The running minute began 29 s ago, and somebody has set the clock.
        minutes.append({"ended": 1795900000 + 60 * (minute % 7), "age_seconds": max(0, 60 * (58 - minute) + 29.0), "seconds": 60.0, "series": [
            {"operation": "read", "by_rdma": True, "counts": counts(4, 50_000), "seconds": 4.0},
            {"operation": "read", "by_rdma": False, "counts": counts(6 + slow, 9_000), "seconds": 3.0},
            {"operation": "write", "by_rdma": True, "counts": counts(7 + 2 * slow, 4_000), "seconds": 2.0},
            {"operation": "other", "by_rdma": False, "counts": counts(3, 700), "seconds": 0.2}]})
    return {"bounds": [4e-6 * 2 ** i for i in range(23)], "minutes": minutes}


def made_slow():
    """One that hangs, and more that ended than are shown."""
    hops = dict.fromkeys(["queue", "decode", "store", "pool", "disk", "wire", "replica", "peer"], 0.0)
    ended = {"began": "2026-11-28T10:00:00Z", "protocol": "smb", "transport": "tcp", "operation": "read", "share": "team",
             "client": "192.0.2.7:40000", "user": OVERRIDE, "file": HOSTILE, "bytes": 8192, "total_ms": 1234.5, "at": None,
             "hops": {**hops, "queue": 0.25, "disk": 1234.25}}
    hangs = {**ended, "at": "peer", "total_ms": 61_000.0, "operation": "lock", "hops": {**hops, "peer": 61_000.0}}
    unread = {**ended, "at": "wire", "protocol": "", "operation": "", "share": None, "user": None, "file": None}
    return {"pid": 4711, "threshold_ms": 100.0, "operations": [hangs, unread] + [ended] * 70, "more": 3}


@unittest.skipIf(browser.missing(), browser.missing())
class Page(unittest.TestCase):
    def setUp(self):
        self.seen = self.enterContext(browser.Browser())

    def picture(self, name):
        """For people: WEFT_PICTURES=DIR keeps the pictures."""
        folder = os.environ.get("WEFT_PICTURES")
        if folder:
            self.seen.screenshot(pathlib.Path(folder) / f"{name}.png")

    def text(self, of="body"):
        return self.seen.ask(f"return document.querySelector('{of}').innerText")

    def until(self, script, wanted=lambda value: value):
        """The value of a script, once it is what is wanted."""
        end = time.monotonic() + 30
        while True:
            value = self.seen.ask(script)
            if wanted(value):
                return value
            self.assertLess(time.monotonic(), end, f"{script}: {value}\n{self.text()}\n{self.seen.console()}")
            time.sleep(0.1)

    def rows(self, table):
        """The rows of a table, by the titles of the columns."""
        return self.seen.ask(f"""return [...document.querySelectorAll('#{table} tbody tr')].map(row =>
            Object.fromEntries([...row.cells].map(cell => [cell.dataset.label, cell.innerText])))""")

    def only_from(self, page):
        """Nothing was asked of anybody but the server, and the browser has nothing to complain about."""
        self.assertEqual([], self.seen.console())
        strange = [url for url in self.seen.requests() if not url.startswith(page) and not url.startswith("data:image/svg+xml,")]
        self.assertEqual([], strange)

    def type_token(self, token):
        self.seen.ask(f"""document.getElementById('token').value = {json.dumps(token)};
            document.getElementById('token-form').requestSubmit();""")

    def test_it_shows_real_clients_and_why_one_does_not_use_rdma(self):
        with with_token("--ram", "R&D 'x'=64M") as server:
            page = address(server)
            self.seen.open(page, "light", 1280)
            self.assertTrue(self.until("return document.activeElement.id === 'token'"), "the keyboard begins at the token")
            self.assertNotIn(weft.USER, self.text())
            with smbclient_inside(server), put_inside(server, "iwarp"):
                self.type_token(TOKEN)
                rows = lambda: self.seen.ask("return document.querySelectorAll('#connections tbody tr').length")
                self.until("return document.querySelectorAll('#connections .badge.used').length")
                self.until("return document.querySelectorAll('#connections .badge.not-used').length")
                self.assertGreaterEqual(rows(), 2)
                found = {row["RDMA"]: row for row in self.rows("connections")}
                self.assertEqual(found["RDMA"]["transport"], "smb-direct (iwarp)")
                self.assertEqual(found["RDMA"]["user"], weft.USER)
                self.assertIn("did not ask for RDMA", found["TCP, not RDMA"]["why"])
                self.assertIn("Try: weft cp", found["TCP, not RDMA"]["why"])
                self.assertIn("could use RDMA and", self.text("#verdict"))
                status = json.loads(get(server, "/api/v1/status", Authorization=f"Bearer {TOKEN}")[2])
                advice = [one["rdma"] for one in status["connections"] if one["rdma"]["state"] == "not-used"][0]
                self.assertIn(advice["reason"], self.text("#reasons"))
                self.assertIn("Try: " + advice["remedy"], self.text("#reasons"))
                self.assertEqual(["data", "ram", "R&D 'x'"], [row["share"] for row in self.rows("shares")])
                self.assertIn("of 64.0 MiB free", self.rows("shares")[2]["space"])
                self.assertEqual({weft.USER}, {row["user"] for row in self.rows("sessions")})
                # The clients' operations of this minute are on the map, and in numbers.
                self.until("return document.querySelectorAll('#heat rect:not(.ground)').length")
                self.assertIn("WRITE", [row["operations"] for row in self.rows("quantiles")])
                # Only those without RDMA, and by a word.
                self.seen.ask("document.getElementById('fallen').click()")
                self.assertEqual({"TCP, not RDMA"}, {row["RDMA"] for row in self.rows("connections")})
                self.seen.ask("""document.getElementById('fallen').click(); const filter = document.getElementById('filter');
                    filter.value = 'smb-DIRECT'; filter.dispatchEvent(new Event('input'))""")
                self.assertEqual({"RDMA"}, {row["RDMA"] for row in self.rows("connections")})
                self.only_from(page)
            self.seen.ask("""const filter = document.getElementById('filter'); filter.value = ''; filter.dispatchEvent(new Event('input'))""")
            self.until("return document.getElementById('connections').innerText", lambda text: "Nobody is connected." in text)
            # The token is in memory, and nowhere else.
            kept = self.seen.ask("return [location.href, document.cookie, JSON.stringify(sessionStorage), JSON.stringify(localStorage)].join()")
            self.assertNotIn(TOKEN, kept)
            self.assertNotIn(TOKEN, self.seen.ask("return document.documentElement.outerHTML"))
            self.only_from(page)

    def test_a_wrong_token_is_asked_for_again_and_a_lost_server_is_told(self):
        with with_token() as server:
            self.seen.open(address(server), "light", 1280)
            self.type_token("not-the-token-of-this-server")
            self.until("return !document.getElementById('token-wrong').hidden")
            self.assertTrue(self.seen.ask("return document.getElementById('content').hidden"))
            self.type_token("geheim\u00fc\u2713-und-mehr-Zeichen")
            self.until("return document.getElementById('token-wrong').innerText", lambda text: "one word" in text)
            self.type_token(TOKEN)
            self.until("return !document.getElementById('content').hidden")
            self.assertTrue(self.seen.ask("return document.getElementById('ask').hidden"))
            self.until("return document.activeElement.id === 'main'")
            self.assertRegex(self.until("return document.getElementById('updated').innerText"), "^updated ")
            self.assertEqual("", self.text("#state"), "a screen reader hears changes only")
            # An answer on its way changes nothing after a pause.
            self.seen.ask("keepAsking(); document.getElementById('pause').click()")
            updated = self.text("#updated")
            time.sleep(4)
            self.assertEqual(("paused", updated), (self.text("#state"), self.text("#updated")))
            self.seen.ask("document.getElementById('pause').click()")
            self.until("return document.getElementById('state').innerText", lambda text: text == "")
        self.until("return document.getElementById('state').innerText", lambda text: "does not answer since" in text)
        self.assertEqual([], self.seen.poor_text())

    def test_without_a_token_it_shows_no_names_and_says_how_to_see_them(self):
        with weft.serving("--admin", "127.0.0.1:0") as server, smbclient_inside(server):
            page = address(server, "localhost")
            self.seen.open(page, "light", 1280)
            self.until("return document.querySelectorAll('#connections .badge.not-used').length")
            self.assertIn("--admin-token-file", self.text("#reduced"))
            self.assertEqual(["data", "ram"], [row["share"] for row in self.rows("shares")])
            self.assertEqual(["client 1"], [row["client"] for row in self.rows("connections")])
            self.assertTrue(self.seen.ask("return document.getElementById('slow-section').hidden"))
            for secret in [weft.USER, str(server.folder)]:
                self.assertNotIn(secret, self.text())
                self.assertNotIn(secret, get(server, "/api/v1/overview")[2])
            self.only_from(page)

    def test_names_from_outside_are_text_in_every_width_and_colour(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            with impostor(server, {"/api/v1/overview": made_status(), "/api/v1/latency": made_latency()}) as page:
                for scheme in ("light", "dark"):
                    for width in (1280, 390):
                        with self.subTest(scheme=scheme, width=width):
                            self.seen.open(page, scheme, width)
                            self.until("return document.querySelectorAll('#connections tbody tr').length", lambda n: n == 6)
                            self.picture(f"{scheme}-{width}")
                            self.check(width)
                            self.only_from(page)

    def test_slow_operations_are_told_with_their_hops_in_every_width_and_colour(self):
        made = {"/api/v1/status": made_status(), "/api/v1/latency": made_latency(), "/api/v1/slow": made_slow()}
        with with_token() as server, impostor(server, made) as page:
            for scheme in ("light", "dark"):
                for width in (1280, 390):
                    with self.subTest(scheme=scheme, width=width):
                        self.seen.open(page, scheme, width)
                        self.type_token(TOKEN)
                        self.until("return document.querySelectorAll('#slow tbody tr').length", lambda n: n == 20)
                        self.picture(f"slow-{scheme}-{width}")
                        hangs, unread, ended = self.rows("slow")[:3]
                        self.assertEqual((hangs["operation"], hangs["took"], hangs["state"], hangs["time by hop"]),
                                         ("SMB lock", "61 s", "still running, waiting for another client", "peer 61 s"))
                        self.assertEqual((unread["operation"], unread["file"]), ("not understood yet", "–"))
                        self.assertEqual((ended["took"], ended["state"], ended["time by hop"]),
                                         ("1.23 s", "ended", "disk 1.23 s, queue 250 µs"))
                        self.assertEqual((ended["user"], ended["client"], ended["share"], ended["file"]),
                                         ("a\ufffdgnp.exe\ufffd", "192.0.2.7:40000", "team", HOSTILE))
                        self.assertIn("20 shown, 55 more are left out; weft status --slow shows all", self.text("#slow"))
                        self.assertIn("Operations of 100 ms (log.slow) and more", self.text("#slow-text"))
                        self.assertEqual("Weft status", self.seen.ask("return document.title"))
                        self.assertLessEqual(self.seen.ask("return document.documentElement.scrollWidth"), width, "no sideways scrolling")
                        self.assertEqual([], self.seen.poor_text())
                        self.only_from(page)

    @unittest.skipIf(fuse.why_not(), fuse.why_not())
    def test_an_operation_is_shown_while_the_disk_hangs_and_after_it_ended(self):
        work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-page-")))
        folder, token = work / "data", work / "token"
        folder.mkdir()
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        mounted = self.enterContext(fuse.Mount(folder, {"f": b"x" * 4096}))
        server = weft.Server(folder, "--state-dir", work / "state", "--admin", "127.0.0.1:0", "--admin-token-file", token)
        self.addCleanup(server.stop)
        mounted.hold(fuse.READ)
        command = [str(word) for word in (weft.WEFT, "cat", "--transport", "tcp", server.url("f"))]
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(os.environ, WEFT_PASSWORD=weft.PASSWORD))
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        mounted.wait_until_held()
        self.seen.open(address(server), "light", 1280)
        self.type_token(TOKEN)
        # A busy machine may be slow at other operations, too.
        until(lambda: any(row["operation"] == "SMB read" and row["state"] == "still running, waiting for the disk" for row in self.rows("slow")))
        [row] = [row for row in self.rows("slow") if row["operation"] == "SMB read" and "still running" in row["state"]]
        self.assertEqual((row["share"], row["user"]), ("data", weft.USER))
        self.assertRegex(row["file"], r"\bf$")
        mounted.release()
        self.assertEqual(client.communicate(timeout=60)[0], b"x" * 4096)
        until(lambda: any(row["operation"] == "SMB read" and row["state"] == "ended" for row in self.rows("slow")))
        self.assertFalse(any(row["operation"] == "SMB read" and "still running" in row["state"] for row in self.rows("slow")))
        self.only_from(address(server))

    def check(self, width):
        ask = self.seen.ask
        self.assertEqual("Weft status", ask("return document.title"))
        self.assertEqual(0, ask("return document.querySelectorAll('img, script:not(:last-child), main script').length"))
        everywhere = self.text()
        self.assertEqual(HOSTILE, self.rows("connections")[3]["user"])
        self.assertEqual(HOSTILE, self.rows("shares")[1]["share"])
        self.assertIn("its disk is full: " + HOSTILE, self.text("#problems"))
        # What would turn the line around, or ring, is a sign.
        self.assertEqual("a\ufffdgnp.exe\ufffd", self.rows("connections")[4]["user"])
        self.assertNotIn("\u202e", everywhere)
        # So is what nobody sees: marks of direction, soft hyphens, fillers, tags.
        unseen = "\u061c\u00ad\u3164\U000e0041\ufff9"
        self.assertEqual("a" + "\ufffd" * 5 + "b", ask(f"return shown({json.dumps('a' + unseen + 'b')})"))
        self.assertIn("2 connections of 5 could use RDMA and do not", self.text("#verdict"))
        self.assertIn("6 shown, 1744 more are left out", self.text("#connections"))
        self.assertIn("those of 6 of 1750 connections", self.text("#cut"))
        filtered = lambda value: ask(f"const filter = document.getElementById('filter'); filter.value = '{value}'; filter.dispatchEvent(new Event('input'))")
        filtered("no such name")
        self.assertIn("0 of 6 match the filter, 1744 more are left out", self.text("#connections"))
        filtered("")
        self.assertIn("not by RDMA: other offers no RDMA", self.text("#replication"))
        # An hour, most of it in the rows in the middle.
        self.assertGreater(ask("return document.querySelectorAll('#heat rect:not(.ground)').length"), 300)
        columns = ask("return new Set([...document.querySelectorAll('#heat rect:not(.ground)')].map(e => e.getAttribute('x'))).size")
        self.assertEqual(columns, 60, "each minute has its column")
        label = ask("return document.getElementById('heat').getAttribute('aria-label')")
        self.assertRegex(label, r"half within 64 µs, 99 percent within ")
        ask("document.querySelector('input[name=operation][value=write]').click()")
        self.assertRegex(ask("return document.getElementById('heat').getAttribute('aria-label')"), r"half within 512 µs")
        ask("document.querySelector('input[name=operation][value=\"\"]').click()")
        self.assertLessEqual(ask("return document.documentElement.scrollWidth"), width, "no sideways scrolling")
        self.assertEqual([], self.seen.poor_text())
        # Every field has a name, every picture a text, every table a region that the keyboard reaches.
        self.assertEqual([], ask("""return [...document.querySelectorAll('input')].filter(e => e.labels.length === 0).map(e => e.id)"""))
        self.assertEqual([], ask("""return [...document.querySelectorAll('[role=img]')].filter(e => !e.getAttribute('aria-label')).map(e => e.id)"""))
        self.assertEqual([], ask("""return [...document.querySelectorAll('.wrap')].filter(e => e.tabIndex !== 0 || !e.getAttribute('aria-label')).map(e => e.id)"""))
        self.assertEqual([1, 1, 1], ask("return ['main', 'header', 'h1'].map(name => document.querySelectorAll(name).length)"))

    def test_the_policy_stops_a_script_that_is_not_its_own(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            self.seen.open(address(server), "light", 1280)
            self.until("return !document.getElementById('content').hidden")
            self.only_from(address(server))
            said = self.seen.ask("""
                const script = document.createElement('script');
                try { script.textContent = "document.title = 'owned'"; } catch (why) { return why.name; }
                document.body.append(script);
                return document.title;""")
            self.assertEqual("TypeError", said, "Trusted Types")
            self.seen.ask("const button = document.createElement('button'); button.setAttribute('title', 'x'); document.body.append(button)")
            self.assertEqual("Weft status", self.seen.ask("return document.title"))


if __name__ == "__main__":
    unittest.main()
