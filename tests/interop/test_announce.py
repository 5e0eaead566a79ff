"""A server announces itself: python-zeroconf and Avahi find it by mDNS, wsdd by WS-Discovery, on a network of two hosts
(network namespaces with a cable between them)."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import weft

HERE = pathlib.Path(__file__).parent
OURS, THEIRS, FOREIGN = "10.77.0.1", "10.77.0.2", "10.99.0.2"
FILE = """
[listeners]
addresses = ["0.0.0.0"]
smb_port = 445
smb_direct_port = 0
nfs_port = 2049
mountd_port = 0

[announce]
mdns = true
ws_discovery = true
name = "nas"
workgroup = "loom"

[shares.data]
path = "data"
"""
MORE = '[shares.more]\npath = "more"\n'
SOAP = "http://www.w3.org/2003/05/soap-envelope"
ADDRESSING = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
DISCOVERY = "http://schemas.xmlsoap.org/ws/2005/04/discovery"
GROUP = ("239.255.255.250", 3702)


def probe(message, action="Probe", body="<d:Probe/>"):
    return (
        f"<s:Envelope xmlns:s='{SOAP}' xmlns:a='{ADDRESSING}' xmlns:d='{DISCOVERY}'><s:Header><a:Action>{DISCOVERY}/{action}"
        f"</a:Action><a:MessageID>urn:{message}</a:MessageID></s:Header><s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


class Lines:
    """A program on the other host, and the lines of JSON that it prints."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines, self.seen = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def until(self, fits, within=30):
        """The first line that fits and was not returned before."""
        deadline = time.monotonic() + within
        while True:
            for line in self.seen:
                if fits(line):
                    self.seen.remove(line)
                    return line
            try:
                self.seen.append(self.lines.get(timeout=max(deadline - time.monotonic(), 0)))
            except queue.Empty:
                raise AssertionError(f"nothing fits within {within} s: {self.seen}") from None

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@unittest.skipUnless(os.geteuid() == 0, "needs root for networks of its own")
class Announced(unittest.TestCase):
    def setUp(self):
        self.enterContext(weft.own_network())
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-announce-")))
        for folder in ["data", "more"]:
            (self.work / folder).mkdir()
        self.file = self.work / "weft.toml"
        self.file.write_text(FILE)
        # The other host. It says when it has its own network.
        host = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(lambda: (host.stdin.close(), host.wait(), host.stdout.close()))
        host.stdout.readline()
        self.there = ["nsenter", "--net", "--target", str(host.pid)]
        weft.run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "wire", "netns", host.pid)
        self.set_up([], "cable", OURS)
        self.set_up(self.there, "wire", THEIRS)
        weft.run(*self.there, "ip", "address", "add", f"{FOREIGN}/32", "dev", "wire")

    @staticmethod
    def set_up(where, link, address):
        # Link-local addresses at once: nobody else has them.
        weft.run(*where, "sysctl", "-qw", f"net.ipv6.conf.{link}.accept_dad=0")
        weft.run(*where, "ip", "address", "add", f"{address}/24", "dev", link)
        weft.run(*where, "ip", "link", "set", link, "up")
        weft.run(*where, "ip", "link", "set", "lo", "up")
        weft.run(*where, "ip", "route", "add", "224.0.0.0/4", "dev", link)

    @contextlib.contextmanager
    def serving(self):
        command = [weft.WEFT, "serve", "--config", self.file, "--state-dir", self.work / "state", "--user", "u", "--json"]
        server = weft.Process(command, self.work / "weft.log")
        try:
            yield server
        except BaseException:
            print(server.log_text())
            raise
        finally:
            if server.process.poll() is None:
                server.stop()

    def browsing(self, *types):
        found = Lines([*self.there, "/usr/bin/python3", HERE / "mdns.py", THEIRS, *types])
        self.addCleanup(found.end)
        return found

    def reload(self, server, text):
        self.file.write_text(text)
        server.process.send_signal(signal.SIGHUP)

    def socket_there(self, source=THEIRS):
        """A UDP socket of the other host."""
        return InThere(self.there[-1], source)


class InThere:
    """A UDP socket in the network of another process."""

    def __init__(self, pid, source):
        with open(f"/proc/{pid}/ns/net") as network, open("/proc/thread-self/ns/net") as own:
            enter(network)
            try:
                self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            finally:
                enter(own)
        self.socket.bind((source, 0))
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(THEIRS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def ask(self, message, to=GROUP):
        self.socket.sendto(message, to)

    def answers(self, within):
        """Everything that comes until nothing comes for so long."""
        self.socket.settimeout(within)
        came = []
        with contextlib.suppress(TimeoutError):
            while True:
                came.append(self.socket.recv(65536))
        return came


def enter(network):
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0x4000_0000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Mdns(Announced):
    def test_zeroconf_finds_what_is_served_and_hears_when_it_goes(self):
        found = self.browsing("_smb._tcp.local.", "_nfs._tcp.local.", "_device-info._tcp.local.")
        with self.serving() as server:
            smb = found.until(lambda line: line["name"] == "nas._smb._tcp.local.")
            self.assertEqual((smb["port"], smb["server"], smb["addresses"]), (445, "nas.local.", [OURS]))
            nfs = found.until(lambda line: line["name"] == "data on nas._nfs._tcp.local.")
            self.assertEqual((nfs["port"], nfs["text"]), (2049, ["path=/data"]))
            # Shares come and go.
            self.reload(server, FILE + MORE)
            more = found.until(lambda line: line["name"] == "more on nas._nfs._tcp.local.")
            self.assertEqual((more["event"], more["text"]), ("Added", ["path=/more"]))
            self.reload(server, FILE)
            found.until(lambda line: (line["event"], line["name"]) == ("Removed", "more on nas._nfs._tcp.local."))
            # So does the announcement itself.
            self.reload(server, FILE.replace("mdns = true", "mdns = false"))
            found.until(lambda line: (line["event"], line["name"]) == ("Removed", "nas._smb._tcp.local."))
            self.reload(server, FILE)
            found.until(lambda line: (line["event"], line["name"]) == ("Added", "nas._smb._tcp.local."))
            self.assertEqual(server.stop(), 0)
            # Long before it would be forgotten.
            found.until(lambda line: (line["event"], line["name"]) == ("Removed", "nas._smb._tcp.local."), within=10)
        self.assertEqual(server.faults(), [])

    def test_a_model_is_told(self):
        found = self.browsing("_device-info._tcp.local.")
        with self.serving():
            self.assertEqual(found.until(lambda line: True)["text"], ["model=Xserve"])

    def test_a_name_that_another_host_has_is_left_to_it(self):
        other = Lines([*self.there, "/usr/bin/python3", HERE / "mdns.py", THEIRS, "--claim", "nas", "4450"])
        self.addCleanup(other.end)
        other.until(lambda line: line["event"] == "claimed")
        found = self.browsing("_smb._tcp.local.")
        with self.serving() as server:
            second = found.until(lambda line: line["name"] == "nas (2)._smb._tcp.local.")
            self.assertEqual((second["server"], second["port"]), ("nas-2.local.", 445))
            self.assertEqual(other.process.poll(), None)
            self.assertIn("another host has the name nas.local; trying nas-2.local", server.log_text())
            # The name of the service may be settled before that of the host.
            told = "has the name nas, so this one is announced there as nas-2.local"
            deadline = time.monotonic() + 30
            while told not in server.log_text() and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertIn(told, server.log_text())
            status = weft.run(weft.WEFT, "status", "--state-dir", self.work / "state").stdout
            self.assertIn(told, status)
            self.assertIn("choose another name with announce.name", status)

    def test_a_server_that_is_to_be_silent_is(self):
        with self.serving() as server:
            self.reload(server, FILE.replace('name = "nas"', 'name = "nas"\ninterfaces = ["lo"]'))
            found = self.browsing("_smb._tcp.local.")
            deadline = time.monotonic() + 30
            while "not announced on cable any more" not in server.log_text():
                self.assertLess(time.monotonic(), deadline, server.log_text())
                time.sleep(0.05)
            self.reload(server, FILE)
            found.until(lambda line: line["event"] == "Added")


AVAHI = """
[server]
host-name=nas
use-ipv4=yes
use-ipv6=no
allow-interfaces=cable
enable-dbus=yes
[publish]
publish-workstation=no
publish-hinfo=no
[rlimits]
"""
BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow user="*"/></policy>
</busconfig>
"""


class WithAvahi(Announced):
    def test_avahi_of_the_same_host_keeps_its_name_and_finds_the_server(self):
        """Both have port 5353, and both have addresses at nas.local."""
        (self.work / "avahi.conf").write_text(AVAHI)
        (self.work / "bus.conf").write_text(BUS)
        script = f"""
        mount --make-rprivate / 2> /dev/null
        mount -t tmpfs run /run; mkdir -p /run/avahi-daemon; export DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus
        dbus-daemon --config-file={self.work}/bus.conf --nofork --nopidfile & bus=$!
        until [ -S /run/bus ]; do sleep 0.1; done
        avahi-daemon --file={self.work}/avahi.conf --no-drop-root --no-chroot --no-rlimits 2> {self.work}/avahi.log & avahi=$!
        until avahi-resolve -4 -n nas.local > /dev/null 2>&1; do sleep 0.2; done
        {weft.WEFT} serve --config {self.file} --state-dir {self.work}/state --user u --json > {self.work}/ready 2> {self.work}/weft.log & server=$!
        until avahi-browse -rtpk _smb._tcp > {self.work}/smb 2>&1 && grep -q '^=' {self.work}/smb; do sleep 0.2; done
        avahi-browse -rtpk _nfs._tcp > {self.work}/nfs
        avahi-resolve -4 -n nas.local > {self.work}/name
        kill -TERM $server; wait $server; echo $? > {self.work}/status
        # What has said goodbye is forgotten after a second (RFC 6762 10.1).
        for try in $(seq 50); do avahi-browse -rtpk _smb._tcp > {self.work}/after; [ -s {self.work}/after ] || break; sleep 0.2; done
        avahi-resolve -4 -n nas.local > {self.work}/name-after
        kill $avahi $bus; wait $avahi $bus
        """
        weft.run("unshare", "--mount", "--propagation", "unchanged", "timeout", "100", "bash", "-uc", script, check=False)
        read = lambda name: (self.work / name).read_text() if (self.work / name).exists() else ""
        log = read("avahi.log") + read("weft.log")
        self.assertIn(f";nas;_smb._tcp;local;nas.local;{OURS};445;", read("smb").replace("\\032", " "), log)
        self.assertIn(f";data on nas;_nfs._tcp;local;nas.local;{OURS};2049;\"path=/data\"", read("nfs").replace("\\032", " "), log)
        self.assertEqual(read("name"), f"nas.local\t{OURS}\n", log)
        self.assertEqual(read("status"), "0\n", log)
        self.assertNotIn("nas", read("after"), log)
        self.assertEqual(read("name-after"), f"nas.local\t{OURS}\n", log)
        self.assertIn("Avahi runs on this host", read("weft.log"))
        for trouble in ["conflict", "another host has the name"]:
            self.assertNotIn(trouble, log.lower())


class WsDiscovery(Announced):
    def test_wsdd_finds_the_server_reads_its_name_and_hears_when_it_goes(self):
        log = self.work / "wsdd.log"

        def until(pattern, count=1, within=30):
            deadline = time.monotonic() + within
            while len(found := re.findall(pattern, log.read_text())) < count:
                self.assertLess(time.monotonic(), deadline, f"{pattern}: {log.read_text()}")
                time.sleep(0.1)
            return found

        discovered = rf"discovered NAS in Workgroup:LOOM on {OURS}"
        with self.serving() as server:
            # The list of devices that wsdd offers needs an older Python than Debian's, so its log must do.
            with open(log, "w") as out:
                command = [*self.there, "wsdd", "--no-host", "--discovery", "--interface", "wire", "-vv"]
                client = subprocess.Popen(command, stdout=out, stderr=out)
            try:
                # Its Probe finds the server, and the metadata have its name.
                until(discovered)
                self.assertEqual(server.stop(), 0)
                until(rf"{OURS}:3702.*Bye")
                # Hello tells that it is back, each time with the same identity.
                server.start()
                until(discovered, 2)
                server.restart()
                until(discovered, 3)
                hellos = until(r"Hello from (\S+) on ", 2)
                self.assertEqual(len(set(hellos)), 1, hellos)
            finally:
                client.send_signal(signal.SIGINT)
                client.wait(timeout=30)

    def test_it_is_no_amplifier(self):
        with self.serving(), self.socket_there() as peer, self.socket_there(FOREIGN) as foreign:
            peer.ask(probe("first"))
            [answer] = self.first_answer(peer)
            self.assertIn(b"ProbeMatches", answer)
            self.assertLess(len(answer), 4 * len(probe("first")))
            # By unicast nobody answers, nor others than hosts of the network.
            peer.ask(probe("unicast"), (OURS, 3702))
            foreign.ask(probe("foreign"))
            # The same message again, other types, and what is no XML.
            peer.ask(probe("first"))
            peer.ask(probe("other", body="<d:Probe><d:Types>d:x</d:Types></d:Probe>"))
            bomb = b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]>" + probe("bomb", body="<d:Probe>&b;</d:Probe>")
            for hostile in [bomb, b"<a>" * 2000, b"\xff" * 60_000, b"", b"<"]:
                peer.ask(hostile)
            self.assertEqual(peer.answers(1.5), [])
            self.assertEqual(foreign.answers(0.1), [])
            for i in range(500):
                peer.ask(probe(f"flood {i}"))
            flood = peer.answers(1.5)
            self.assertLessEqual(len(flood), 40)
            # It still lives.
            peer.ask(probe("last"))
            self.assertEqual(len(peer.answers(1.5)), 1)

    def first_answer(self, peer):
        """The first answer; the server may still be opening its sockets."""
        for _ in range(20):
            if came := peer.answers(1):
                return came
            peer.ask(probe("first"))
        raise AssertionError("no answer")

    def test_metadata_are_for_those_who_ask_as_windows_does(self):
        with self.serving(), self.socket_there() as peer:
            peer.ask(probe("first"))
            [answer] = self.first_answer(peer)
            url = re.search(rb"<d:XAddrs>([^<]+)<", answer)[1].decode()
            address = re.search(rb"<a:Address>([^<]+)<", answer)[1].decode()
            self.assertTrue(url.startswith(f"http://{OURS}:5357/"), url)
            get = (
                f"<s:Envelope xmlns:s='{SOAP}' xmlns:a='{ADDRESSING}'><s:Header><a:To>{address}</a:To><a:Action>"
                "http://schemas.xmlsoap.org/ws/2004/09/transfer/Get</a:Action><a:MessageID>urn:1</a:MessageID></s:Header><s:Body/>"
                "</s:Envelope>"
            )
            status = ["curl", "-s", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}"]
            kind = ["-H", "Content-Type: application/soap+xml"]
            ask = lambda *more: weft.run(*self.there, *more, check=False).stdout
            whole = ask("curl", "-s", "--max-time", "5", *kind, "-d", get, url)
            self.assertIn(">NAS/Workgroup:LOOM<", whole)
            # With a long body curl asks first whether it may send it.
            self.assertIn("NAS/Workgroup", ask("curl", "-s", "--max-time", "5", "-H", "Expect: 100-continue", *kind, "-d", get + " " * 4000, url))
            self.assertEqual(ask(*status, url), "405")
            self.assertEqual(ask(*status, *kind, "-d", get, f"http://{OURS}:5357/other"), "404")
            self.assertEqual(ask(*status, *kind, "-d", "<x/>", url), "400")
            self.assertEqual(ask(*status, *kind, "-d", " " * 9000, url), "413")
            self.assertEqual(ask(*status, "-H", "Transfer-Encoding: chunked", *kind, "-d", get, url), "411")
            # From another network the connection is closed.
            self.assertEqual(ask(*status, "--interface", FOREIGN, *kind, "-d", get, url), "000")

    def test_tshark_reads_what_is_sent(self):
        capture = self.work / "capture.pcap"
        with subprocess.Popen([*self.there, "tcpdump", "-i", "wire", "--immediate-mode", "-U", "-w", capture, "udp"], stderr=subprocess.PIPE) as dump:
            dump.stderr.readline()
            with self.serving(), self.socket_there() as peer:
                peer.ask(probe("first"))
                self.first_answer(peer)
            dump.send_signal(signal.SIGINT)
        read = lambda *more: weft.run("tshark", "-r", capture, *more).stdout
        sent = read("-Y", f"ip.src == {OURS} && udp.srcport == 3702", "-T", "fields", "-e", "udp.payload")
        sent = "\n".join(bytes.fromhex(line).decode() for line in sent.split())
        for action in ["Hello", "ProbeMatches", "Bye"]:
            self.assertIn(f"{DISCOVERY}/{action}", sent)
        self.assertEqual(read("-Y", "_ws.malformed"), "")
        # Packets of mDNS have 255 hops, those of WS-Discovery do not leave the link.
        hops = lambda port: set(read("-Y", f"ip.src == {OURS} && udp.srcport == {port}", "-T", "fields", "-e", "ip.ttl").split())
        self.assertEqual((hops(5353), hops(3702)), ({"255"}, {"1"}))
        goodbye = read("-Y", f"ip.src == {OURS} && dns.resp.ttl == 0", "-T", "fields", "-e", "dns.resp.name")
        self.assertIn("nas._smb._tcp.local", goodbye)


class Config(unittest.TestCase):
    def test_a_server_on_loopback_is_not_announced(self):
        with tempfile.TemporaryDirectory() as work:
            file = pathlib.Path(work) / "weft.toml"
            file.write_text('[announce]\nmdns = true\n[shares.a]\nram = "1M"\n')
            checked = weft.run(weft.WEFT, "config", "check", file, check=False)
            self.assertNotEqual(checked.returncode, 0)
            self.assertIn('announce.mdns = true needs an address that other hosts reach', checked.stderr)
            self.assertIn('give listeners.addresses = ["0.0.0.0"]', checked.stderr)
            file.write_text('[listeners]\naddresses = ["0.0.0.0"]\n[announce]\nws_discovery = true\n[shares.a]\nram = "1M"\n')
            checked = weft.run(weft.WEFT, "config", "check", file)
            self.assertIn("listeners.smb_port = 4450: Windows shows this server and cannot open it", checked.stderr)


if __name__ == "__main__":
    unittest.main()
