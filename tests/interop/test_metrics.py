"""weft serve --admin: what traffic moves which counters, who may ask for what, and limits of the HTTP server."""

import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import struct
import subprocess
import ssl
import tempfile
import time
import unittest

import weft

OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
TOKEN = "abcdefghijklmnopqrstuvwx"
SAMPLE = re.compile(r'^([a-z_]+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def get(server, path, method="GET", **headers):
    """The answer to a request: status, headers and text. A header's name has - for _."""
    socket_path = server.ready.get("admin_socket")
    if socket_path:
        connection = UnixConnection(socket_path)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", server.ready["admin_port"], timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def raw(server, sent):
    """What comes back for these bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.ready["admin_port"]), timeout=60) as connection:
        connection.sendall(sent)
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
        except ConnectionResetError:
            pass
        return received.decode()


def libnfs(server, path):
    ready = server.ready
    return f"nfs://127.0.0.1/data/{path}?nfsport={ready['nfs_port']}&mountport={ready['mountd_port']}"


def samples(text):
    """Values by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            found[name, frozenset(LABEL.findall(labels or ""))] = float(value)
    return found


def total(found, name, **labels):
    """The sum of the samples that have these labels."""
    wanted = set(labels.items())
    return sum(value for (found_name, of), value in found.items() if found_name == name and wanted <= of)


def scraped(server, shows=lambda found: True):
    """The metrics, once they show this: connections and shares may be those of a second ago."""
    until = time.monotonic() + 30
    while True:
        status, _, text = get(server, "/metrics")
        assert status == 200, text
        found = samples(text)
        if shows(found):
            return found
        assert time.monotonic() < until, text
        time.sleep(0.1)


class Traffic(unittest.TestCase):
    def test_what_clients_do_is_counted_by_share_protocol_and_kind(self):
        size = 3 << 20
        with tempfile.TemporaryDirectory() as folder:
            source = weft.random_file(pathlib.Path(folder) / "one", size)
            with weft.serving("--admin", "127.0.0.1:0") as server:
                before = scraped(server)
                self.assertEqual(total(before, "weft_operation_duration_seconds_count"), 0)
                weft.smbclient(server, f"put {source} one; get one {folder}/back; ls")
                found = scraped(server)
                smb = {"protocol": "smb", "transport": "tcp", "share": "data", "payload": "inline"}
                count = "weft_operation_duration_seconds_count"
                for operation in ["create", "write", "read", "close", "query_directory"]:
                    self.assertGreater(total(found, count, operation=operation, **smb), 0, operation)
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **smb), size)
                self.assertEqual(total(found, "weft_operation_sent_bytes_total", operation="read", **smb), size)
                self.assertGreater(total(found, count, protocol="smb", share="", operation="session_setup"), 0)
                self.assertEqual(total(found, count, share="ram"), 0)
                closed = lambda found: total(found, "weft_connections_closed_total", protocol="smb") == 1
                found = scraped(server, closed)
                self.assertGreater(total(found, "weft_message_bytes_total", protocol="smb", direction="sent"), size)
                self.assertEqual((total(found, "weft_sessions"), total(found, "weft_connections")), (0, 0))

                weft.run("nfs-cp", source, libnfs(server, "two"))
                found = scraped(server)
                nfs = {"protocol": "nfs3", "transport": "tcp", "share": "data"}
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **nfs), size)
                self.assertGreater(total(found, count, operation="lookup", **nfs), 0)

                with open(source, "rb") as content:
                    url = f"nfs://127.0.0.1:{server.ready['nfs_port']}/data/three?vers=4.1"
                    weft.run(weft.WEFT, "put", url, "--transport", "tcp", stdin=content)
                found = scraped(server)
                nfs["protocol"] = "nfs4"
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **nfs), size)
                self.assertGreater(total(found, count, operation="open", **nfs), 0)
                self.consistent(found)

    def test_payload_by_rdma_is_counted_apart(self):
        size = 2 << 20
        with tempfile.TemporaryDirectory() as folder:
            source = weft.random_file(pathlib.Path(folder) / "one", size)
            with weft.serving("--admin", "127.0.0.1:0") as server:
                def by_rdma(command, url):
                    with open(source, "rb") as content:
                        weft.run(weft.WEFT, command, url, "--transport", "iwarp", stdin=content)

                by_rdma("put", server.url("one"))
                by_rdma("cat", server.url("one"))
                moved = lambda found: total(found, "weft_rdma_bytes_total", transport="smb-direct", provider="iwarp") >= 2 * size
                found = scraped(server, moved)
                direct = {"protocol": "smb", "transport": "smb-direct", "share": "data", "payload": "rdma"}
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **direct), size)
                self.assertEqual(total(found, "weft_operation_sent_bytes_total", operation="read", **direct), size)
                by_rdma("put", server.nfs_url("two"))
                by_rdma("cat", server.nfs_url("two"))
                found = scraped(server)
                rpc = {"transport": "rpc-rdma", "share": "data", "payload": "rdma"}
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **rpc), size)
                self.assertEqual(total(found, "weft_operation_sent_bytes_total", operation="read", **rpc), size)
                # Credits are of open connections, and a client with one call at a time never lacks one.
                gone = lambda found: total(found, "weft_connections", transport="rpc-rdma") == 0
                self.assertEqual(total(scraped(server, gone), "weft_rpc_rdma_credits_granted"), 0)
                self.assertIn(("weft_rpc_rdma_credits_exhausted_total", frozenset()), found)

    def test_durations_of_the_last_minutes_are_those_of_the_counters(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            weft.smbclient(server, "ls; mkdir a; ls")
            found = scraped(server)
            wanted = total(found, "weft_operation_duration_seconds_count") - total(
                found, "weft_operation_duration_seconds_count", operation="lock")
            latency = json.loads(get(server, "/api/v1/latency")[2])
            self.assertEqual(len(latency["bounds"]), 23)
            counts = [series["counts"] for minute in latency["minutes"] for series in minute["series"]]
            self.assertEqual(sum(map(sum, counts)), wanted)
            [running] = latency["minutes"]
            self.assertAlmostEqual(running["ended"], time.time(), delta=30)

    def test_a_volume_is_counted_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            state = f"{folder}/state"
            weft.run(weft.WEFT, "volume", "create", "v1", "--size", "16M", "--ram", "--state-dir", state)
            options = ["--nbd-socket", f"{folder}/nbd", "--admin", "127.0.0.1:0", "--state-dir", state, "--json"]
            process = weft.Process([weft.WEFT, "serve", "--volume", "v1", *options], f"{folder}/log")
            try:
                commands = ["-c", "write 0 1M", "-c", "flush", "-c", "read 0 256k"]
                weft.run("qemu-io", "-f", "raw", *commands, f"nbd+unix:///v1?socket={folder}/nbd")
                found = scraped(process)
                nbd = {"protocol": "nbd", "transport": "unix", "share": "v1"}
                self.assertEqual(total(found, "weft_operation_received_bytes_total", operation="write", **nbd), 1 << 20)
                self.assertEqual(total(found, "weft_operation_sent_bytes_total", operation="read", **nbd), 256 << 10)
                self.assertGreater(total(found, "weft_operation_duration_seconds_count", operation="flush", **nbd), 0)
                self.assertEqual(total(found, "weft_volume_size_bytes", volume="v1"), 16 << 20)
            finally:
                self.assertEqual(process.stop(), 0)

    def consistent(self, found):
        """A histogram is cumulative and its largest bucket is its count."""
        histograms = collections.defaultdict(dict)
        for (name, labels), value in found.items():
            if name == "weft_operation_duration_seconds_bucket":
                bound = dict(labels)["le"]
                of = frozenset(label for label in labels if label[0] != "le")
                histograms[of][float(bound)] = value
        self.assertGreater(len(histograms), 5)
        for of, buckets in histograms.items():
            values = [buckets[bound] for bound in sorted(buckets)]
            self.assertEqual(values, sorted(values))
            self.assertEqual(values[-1], found["weft_operation_duration_seconds_count", of])
            self.assertGreater(found["weft_operation_duration_seconds_sum", of], 0)

    def test_both_formats_pass_the_tools_that_read_them(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            weft.smbclient(server, "ls")
            status, headers, classic = get(server, "/metrics", Accept="text/plain")
            self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
            status, headers, text = get(server, "/metrics", Accept=OPEN_METRICS)
            self.assertTrue(headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0"))
            self.assertTrue(text.endswith("# EOF\n"))
            for name in ["process_open_fds", "process_cpu_seconds_total", "weft_pool_limit_bytes", "weft_core_sleeps_total"]:
                self.assertIn(f"\n{name}", text)
            promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
            if promtool:
                done = subprocess.run([promtool, "check", "metrics"], input=classic, text=True, capture_output=True)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            try:
                from prometheus_client.openmetrics.parser import text_string_to_metric_families
            except ImportError:
                return
            self.assertGreater(len(list(text_string_to_metric_families(text))), 20)

    def test_the_status_is_that_of_weft_status_and_health_is_told(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("python3-jsonschema is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path, state = pathlib.Path(folder) / "admin.sock", pathlib.Path(folder) / "state"
            with weft.serving("--admin", f"unix:{path}", "--state-dir", state) as server:
                self.assertEqual(server.ready["admin_socket"], str(path))
                self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o660)
                status, headers, text = get(server, "/api/v1/status")
                self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
                told = json.loads(weft.run(weft.WEFT, "status", "--state-dir", state, "--json").stdout)["servers"][0]
                found = json.loads(text)
                [space, _] = [share["space"] for share in found["shares"]]
                self.assertTrue(0 < space["available_bytes"] < space["total_bytes"], space)
                for moving in ["up_seconds", "connections", "ended", "kinds"]:
                    told.pop(moving), found.pop(moving)
                for share in told["shares"] + found["shares"]:
                    share.pop("space")
                self.assertEqual(found, told)
                for page in ["status", "latency"]:
                    status, headers, text = get(server, "/api/v1/schema" if page == "status" else f"/api/v1/{page}/schema")
                    self.assertEqual((status, headers["Content-Type"]), (200, "application/schema+json"))
                    schema, answer = json.loads(text), json.loads(get(server, f"/api/v1/{page}")[2])
                    jsonschema.Draft202012Validator.check_schema(schema)
                    jsonschema.validate(answer, schema)
                    self.assertLessEqual(answer.keys(), schema["properties"].keys())
                jsonschema.validate(json.loads(get(server, "/api/v1/overview")[2]), json.loads(get(server, "/api/v1/schema")[2]))
                self.assertEqual(get(server, "/healthz")[::2], (200, "ok\n"))
                self.assertEqual(get(server, "/metrics")[0], 200)
            self.assertFalse(path.exists())


class Access(unittest.TestCase):
    def test_on_loopback_nobody_learns_of_users_and_no_web_site_reads_it(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            self.assertEqual(get(server, "/healthz")[0], 200)
            self.assertEqual(get(server, "/api/v1/schema")[0], 200)
            status, headers, text = get(server, "/api/v1/status")
            self.assertEqual(status, 403)
            self.assertIn("--admin-token-file", text)
            self.assertNotIn(weft.USER, get(server, "/metrics")[2])
            for host in ["example.com", "localhost.example.com", "192.0.2.1:9470", "127.0.0.1.nip.io"]:
                status, headers, _ = get(server, "/metrics", Host=host)
                self.assertEqual(status, 403, host)
            for host in ["localhost", "127.0.0.1:9", "[::1]:9470"]:
                self.assertEqual(get(server, "/metrics", Host=host)[0], 200, host)
            status, headers, _ = get(server, "/metrics", Origin="http://example.com")
            self.assertFalse([name for name in headers if name.lower().startswith("access-control")])
            self.assertEqual((headers["Cache-Control"], headers["X-Content-Type-Options"]), ("no-store", "nosniff"))
            answer = raw(server, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
            self.assertTrue(answer.startswith("HTTP/1.1 403 "), answer)
            self.assertEqual(get(server, "/nothing")[0], 404)
            self.assertEqual(get(server, "/metrics/")[0], 404)

    def test_a_token_opens_every_page_and_nothing_else_does(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "token"
            file.write_text(TOKEN + "\n")
            file.chmod(0o600)
            with weft.serving("--admin", "127.0.0.1:0", "--admin-token-file", file) as server:
                self.assertEqual(get(server, "/healthz")[0], 200)
                for path in ["/metrics", "/api/v1/status", "/api/v1/schema"]:
                    status, headers, _ = get(server, path)
                    self.assertEqual((status, headers["WWW-Authenticate"]), (401, 'Bearer realm="weft"'), path)
                    for wrong in [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), ""]:
                        self.assertEqual(get(server, path, Authorization=f"Bearer {wrong}")[0], 401, path)
                    self.assertEqual(get(server, path, Authorization=f"Basic {TOKEN}")[0], 401, path)
                    self.assertEqual(get(server, path, Authorization=f"Bearer {TOKEN}")[0], 200, path)
                # The token is the proof, whatever name the client has for this host.
                self.assertEqual(get(server, "/metrics", Authorization=f"Bearer {TOKEN}", Host="nas.example.com")[0], 200)
                self.assertIn("refused a wrong token", server.log_text())
                self.assertNotIn(TOKEN, server.log_text())

    def test_clients_without_the_token_keep_nobody_out_who_has_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "token"
            file.write_text(TOKEN + "\n")
            file.chmod(0o600)
            with weft.serving("--admin", "127.0.0.1:0", "--admin-token-file", file) as server, contextlib.ExitStack() as held:
                right = {"Authorization": f"Bearer {TOKEN}"}
                keeps = http.client.HTTPConnection("127.0.0.1", server.ready["admin_port"], timeout=30)
                held.callback(keeps.close)
                keeps.request("GET", "/healthz", headers=right)
                self.assertEqual(keeps.getresponse().read(), b"ok\n")
                for _ in range(40):
                    held.enter_context(socket.create_connection(("127.0.0.1", server.ready["admin_port"]), timeout=30))
                    self.assertEqual(get(server, "/metrics", **right)[0], 200)
                # Whoever has shown the token keeps its connection, and nobody else does.
                keeps.request("GET", "/metrics", headers=right)
                self.assertEqual(keeps.getresponse().status, 200)
                for headers in [{}, {"Authorization": "Bearer wrong"}]:
                    for path in ["/", "/healthz", "/metrics"]:
                        self.assertEqual(get(server, path, **headers)[1]["Connection"], "close", path)
                self.assertIsNone(get(server, "/healthz", **right)[1]["Connection"])
                said = "32 connections to the admin server: closed one of 127.0.0.1 for a new one of 127.0.0.1"
                self.assertIn(said, server.log_text())
                self.assertIn("refused a wrong token of 127.0.0.1", server.log_text())

    def test_clients_that_leave_at_once_cost_no_more_than_others(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            for number in range(500):
                path = [b"/api/v1/overview", b"/metrics", b"/healthz"][number % 3]
                with socket.create_connection(("127.0.0.1", server.ready["admin_port"]), timeout=30) as leaves:
                    leaves.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    leaves.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for path in ["/api/v1/overview", "/metrics", "/healthz"]:
                self.assertEqual(get(server, path)[0], 200)

    def test_another_site_in_a_browser_gets_nothing(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            for site in ["cross-site", "same-site"]:
                for path in ["/metrics", "/api/v1/overview", "/"]:
                    self.assertEqual(get(server, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0], 403, path)
                # A link.
                self.assertEqual(get(server, "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")[0], 200)
            for path in ["/", "/metrics", "/healthz", "/nothing"]:
                _, headers, _ = get(server, path)
                for name, value in [("Cross-Origin-Resource-Policy", "same-origin"), ("Cross-Origin-Opener-Policy", "same-origin"),
                                    ("X-Frame-Options", "DENY"), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]:
                    self.assertEqual(headers[name], value, path)
                policy = headers["Content-Security-Policy"]
                self.assertTrue(policy.startswith("default-src 'none';"), policy)
                self.assertIn("frame-ancestors 'none'", policy)
                self.assertNotIn("unsafe", policy)
            # The page itself is for loopback alone, too, and a name that is there twice is none.
            self.assertEqual(get(server, "/", Host="example.com")[0], 403)
            twice = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\nConnection: close\r\n\r\n")
            self.assertRegex(twice, r"^HTTP/1.1 40[03] ")
            for host in ["localhost:pw@example.com", "[::1].example.com:80", "[::1]example.com"]:
                self.assertEqual(get(server, "/", Host=host)[0], 403, host)
            target = raw(server, b"GET http://localhost:pw@example.com/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertRegex(target, r"^HTTP/1.1 40[03] ")

    def test_only_plain_requests_of_a_sensible_size_are_answered(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"]:
                status, headers, _ = get(server, "/metrics", method=method)
                self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"), method)
            status, headers, text = get(server, "/metrics", method="HEAD")
            self.assertEqual((status, text), (200, ""))
            body = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\nxx"
            self.assertTrue(raw(server, body).startswith("HTTP/1.1 413 "))
            chunked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.assertTrue(raw(server, chunked).startswith("HTTP/1.1 413 "))
            self.assertEqual(get(server, "/" + "a" * 300)[0], 414)
            for head in [b"X: " + b"a" * 20000, b"\r\n".join(b"X%d: a" % n for n in range(100))]:
                answer = raw(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
                self.assertTrue(answer.startswith("HTTP/1.1 431 "), answer[:100])
            self.assertTrue(raw(server, b"\x16\x03\x01\x00\xff nonsense\r\n\r\n").startswith("HTTP/1.1 400 "))
            self.assertEqual(get(server, "/healthz")[0], 200)

    def test_clients_that_send_nothing_or_little_keep_nobody_out_for_long(self):
        with weft.serving("--admin", "127.0.0.1:0") as server:
            address = ("127.0.0.1", server.ready["admin_port"])
            slow = [socket.create_connection(address, timeout=60) for _ in range(32)]
            for number, connection in enumerate(slow):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc" if number % 2 else b"")
            until = time.monotonic() + 5
            while time.monotonic() < until and "connections to the admin server" not in server.log_text():
                try:
                    get(server, "/healthz")
                except (ConnectionError, http.client.HTTPException):
                    pass
                time.sleep(0.05)
            self.assertIn("limit reached: 32 connections to the admin server", server.log_text())
            begun = time.monotonic()
            # Each is closed, with or without an answer.
            for connection in slow:
                try:
                    while connection.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
                connection.close()
            self.assertLess(time.monotonic() - begun, 30)
            self.assertEqual(get(server, "/healthz")[0], 200)


class Encrypted(unittest.TestCase):
    """The admin server under TLS, with and without certificates of clients."""

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-tls-")))
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        for authority in ["ca", "other"]:
            self.openssl("req", "-x509", *key, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", f"/CN={authority}",
                         "-days", "2")
        (self.work / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        for name, authority in [("server", "ca"), ("client", "ca"), ("stranger", "other")]:
            self.openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial",
                         "-out", f"{name}.pem", "-days", "2", "-extfile", "names")
        (self.work / "token").write_text(TOKEN)
        (self.work / "token").chmod(0o600)
        self.certificate = ["--admin-tls-cert", self.work / "server.pem", "--admin-tls-key", self.work / "server.key"]

    def openssl(self, *arguments):
        weft.run("openssl", *arguments, cwd=self.work)

    def get(self, server, path, certificate=None, **headers):
        context = ssl.create_default_context(cafile=self.work / "ca.pem")
        if certificate:
            context.load_cert_chain(self.work / f"{certificate}.pem", self.work / f"{certificate}.key")
        connection = http.client.HTTPSConnection("127.0.0.1", server.ready["admin_port"], timeout=30, context=context)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def test_clients_without_a_certificate_of_the_authority_get_nothing(self):
        with weft.serving("--admin", "0.0.0.0:0", *self.certificate, "--admin-tls-clients", self.work / "ca.pem") as server:
            self.assertIn("status page: https://ADDRESS:", server.log_text())
            self.assertNotIn("does not encrypt", server.log_text())
            for path in ["/", "/metrics", "/api/v1/status", "/healthz"]:
                self.assertEqual(self.get(server, path, "client")[0], 200, path)
            self.assertIn('data-shows="all"', self.get(server, "/", "client")[1])
            for certificate in [None, "stranger"]:
                with self.assertRaises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected), msg=str(certificate)):
                    self.get(server, "/healthz", certificate)
            # HTTP without TLS is no request.
            self.assertNotIn("HTTP/1.1 200", raw(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))

    def test_a_certificate_is_verified_at_each_connection(self):
        """A resumed session would outlive the certificate."""
        with weft.serving("--admin", "127.0.0.1:0", *self.certificate, "--admin-tls-clients", self.work / "ca.pem") as server:
            for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
                context = ssl.create_default_context(cafile=self.work / "ca.pem")
                context.load_cert_chain(self.work / "client.pem", self.work / "client.key")
                context.minimum_version = context.maximum_version = version
                session = None
                for _ in range(2):
                    plain = socket.create_connection(("127.0.0.1", server.ready["admin_port"]), timeout=30)
                    with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls:
                        tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                        self.assertTrue(tls.recv(4096).startswith(b"HTTP/1.1 200 "), version)
                        self.assertFalse(tls.session_reused, version)
                        # TLS 1.3 has no session without a ticket.
                        session = tls.session if tls.session and tls.session.has_ticket or version == ssl.TLSVersion.TLSv1_2 else None

    def test_with_a_token_a_certificate_is_not_enough(self):
        token = ["--admin-token-file", self.work / "token"]
        with weft.serving("--admin", "127.0.0.1:0", *self.certificate, *token, "--admin-tls-clients", self.work / "ca.pem") as server:
            self.assertEqual(self.get(server, "/api/v1/status", "client")[0], 401)
            right = {"Authorization": f"Bearer {TOKEN}"}
            self.assertEqual(self.get(server, "/api/v1/status", "client", **right)[0], 200)
            with self.assertRaises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                self.get(server, "/api/v1/status", **right)
        with weft.serving("--admin", "0.0.0.0:0", *self.certificate, *token) as server:
            self.assertEqual(self.get(server, "/metrics")[0], 401)
            self.assertEqual(self.get(server, "/metrics", **right)[0], 200)
            self.assertNotIn("does not encrypt", server.log_text())

    def test_a_client_that_ends_no_handshake_is_closed(self):
        with weft.serving("--admin", "127.0.0.1:0", *self.certificate) as server:
            begun = time.monotonic()
            self.assertNotIn("HTTP", raw(server, b"\x16\x03\x01\x02\x00"))
            self.assertLess(time.monotonic() - begun, 30)
            # Without a token and authorities, the rules of loopback hold.
            self.assertEqual(self.get(server, "/api/v1/status")[0], 403)
            self.assertEqual(self.get(server, "/metrics", Host="example.com")[0], 403)

    def test_wrong_certificates_are_named(self):
        serve = lambda *options: Configuration.refused(self, *options)
        address = ("--admin", "127.0.0.1:0")
        (self.work / "bad.pem").write_text("nothing")
        said = serve(*address, "--admin-tls-cert", self.work / "bad.pem", "--admin-tls-key", self.work / "server.key")
        self.assertIn("--admin-tls-cert", said)
        (self.work / "empty.pem").write_text("")
        for wrong in ["bad.pem", "empty.pem"]:
            said = serve(*address, *self.certificate, "--admin-tls-clients", self.work / wrong)
            self.assertRegex(said, rf"--admin-tls-clients.*cannot verify clients by .*{wrong}: there is no certificate in it")
        self.assertIn("--admin-tls-clients", serve(*address, "--admin-tls-clients", self.work / "ca.pem"))
        said = serve(*address, "--admin-tls-cert", self.work / "server.pem", "--admin-tls-key", self.work / "client.key")
        self.assertIn("--admin-tls-cert", said)
        self.assertIn("--admin-tls-key", serve(*address, "--admin-tls-cert", self.work / "server.pem"))
        self.assertIn("--admin", serve(*self.certificate))
        said = serve("--admin", f"unix:{self.work}/socket", *self.certificate)
        self.assertIn("leave the certificate out", said)
        said = serve("--admin", "0.0.0.0:0", *self.certificate)
        self.assertIn("needs a token or certificates of clients", said)
        file = self.work / "weft.toml"
        file.write_text('admin = "0.0.0.0:0"\n[tls.admin]\nclients = "ca.pem"\n[shares.a]\nram = "1M"\n')
        done = weft.run(weft.WEFT, "serve", "--config", file, check=False)
        self.assertIn("tls.admin.clients needs a certificate", done.stderr)


class Configuration(unittest.TestCase):
    def refused(self, *options):
        done = weft.run(weft.WEFT, "serve", "--ram", "a=1M", "--smb-port", "0", "--smbd-port", "0", *options, check=False)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_an_address_for_others_needs_a_token_that_others_cannot_read(self):
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9470"]:
            said = self.refused("--admin", address)
            why = "needs a token or certificates of clients, because other hosts can reach it: give --admin-token-file or --admin-tls-clients"
            self.assertIn(why, said)
        for wrong in ["9470", "127.0.0.1", "localhost", "unix:", "http://127.0.0.1:9470", ""]:
            self.assertIn("write an address with its port", self.refused("--admin", wrong), wrong)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "token"
            file.write_text(TOKEN)
            file.chmod(0o644)
            token = ("--admin-token-file", file)
            self.assertIn("can be read by other users: chmod 600 it", self.refused("--admin", "0.0.0.0:0", *token))
            file.chmod(0o600)
            self.assertIn("--admin", self.refused(*token))
            said = self.refused("--admin", f"unix:{folder}/socket", *token)
            self.assertIn("leave the token out", said)
            file.write_text("short\n")
            self.assertIn("holds no token: write one word", self.refused("--admin", "127.0.0.1:0", *token))
            self.assertIn("cannot be read", self.refused("--admin", "127.0.0.1:0", "--admin-token-file", f"{folder}/none"))
            share = pathlib.Path(folder)
            file.write_text(TOKEN)
            said = self.refused(share, "--admin", "127.0.0.1:0", *token)
            self.assertIn("they could read the key in it", said)

    def test_a_port_in_use_is_named_with_its_option(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = self.refused("--admin", f"127.0.0.1:{port}")
            self.assertIn("another program uses the port", said)
            self.assertIn("--admin", said)

    def test_a_file_sets_it_and_a_server_without_it_counts_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "weft.toml"
            file.write_text('admin = "unix:admin.sock"\n[listeners]\nsmb_port = 0\nsmb_direct_port = 0\n[shares.a]\nram = "1M"\n')
            process = weft.Process([weft.WEFT, "serve", "--config", file, "--json"], f"{folder}/log")
            try:
                # A relative path is one of the file's folder.
                self.assertEqual(process.ready["admin_socket"], f"{folder}/admin.sock")
                self.assertEqual(get(process, "/healthz")[0], 200)
            finally:
                self.assertEqual(process.stop(), 0)
        with weft.serving() as server:
            self.assertFalse({"admin_port", "admin_socket"} & server.ready.keys())


if __name__ == "__main__":
    unittest.main()
