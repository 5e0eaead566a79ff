"""A Ceph cluster on loopback for tests: a monitor and an OSD in memory, with keys, in a folder of its own. Its processes are
children of the test, and end with it."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

# The `rbd` and `ceph` commands are scripts of the system's interpreter, and its daemons are in sbin.
ENVIRONMENT = dict(os.environ, PATH="/usr/bin:/usr/sbin:/bin:/sbin:" + os.environ.get("PATH", ""))


def free_ports(number):
    """The first of so many ports in a row that nobody listens on."""
    for first in range(21000 + os.getpid() % 5000, 32000, number):
        held = []
        try:
            for port in range(first, first + number):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise RuntimeError("no free ports")


class Cluster:
    """Pools `rbd` (small objects, for the block suite) and `plain`. `conf` is the configuration for clients, as client.admin."""

    def __init__(self):
        # Short, because the path of a socket has at most 107 bytes.
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="wc-", dir="/tmp"))
        self.conf = self.work / "ceph.conf"
        self.keyring = self.work / "admin.keyring"
        self.processes = {}
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def run(self, *command, check=True, timeout=60, **more):
        done = subprocess.run(
            [str(word) for word in command], env=dict(ENVIRONMENT, CEPH_CONF=str(self.conf)), capture_output=True, text=True,
            timeout=timeout, **more,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def ceph(self, *words, **more):
        return self.run("ceph", *words, **more).stdout

    def rbd(self, *words, **more):
        return self.run("rbd", *words, **more).stdout

    def daemon(self, name, *command):
        """Starts a daemon in the foreground; `name` finds it again."""
        log = open(self.work / f"{name}.out", "ab")
        self.processes[name] = subprocess.Popen(
            [*map(str, command), "-f", "-c", str(self.conf)], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()

    def start(self):
        port = free_ports(40)
        self.address = f"127.0.0.1:{port}"
        lib = next(pathlib.Path("/usr/lib").glob("*/rados-classes")).parent
        self.conf.write_text(f"""[global]
fsid = {uuid.uuid4()}
mon_host = v2:{self.address}
ms_bind_msgr1 = false
ms_bind_port_min = {port + 1}
ms_bind_port_max = {port + 39}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
keyring = {self.keyring}
run_dir = {self.work}
log_file = {self.work}/$name.log
admin_socket = {self.work}/$name.asok
pid_file =
crash_dir = {self.work}
osd_class_dir = {lib}/rados-classes
erasure_code_dir = {lib}/ceph/erasure-code
plugin_dir = {lib}/ceph
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
ms_async_op_threads = 1
[client]
log_file =
admin_socket =
rbd_default_order = 20
[mon]
mon_data = {self.work}/mon
mon_data_avail_crit = 0
paxos_propose_interval = 0.05
mon_osd_min_down_reporters = 1
[osd]
osd_data = {self.work}/osd
keyring = {self.work}/osd/keyring
osd_objectstore = memstore
memstore_device_bytes = 2G
osd_class_load_list = *
osd_class_default_list = *
""")
        for folder in ["mon", "osd"]:
            (self.work / folder).mkdir()
        authtool = ["ceph-authtool", self.keyring, "--gen-key"]
        self.run(*authtool, "--create-keyring", "-n", "mon.", "--cap", "mon", "allow *")
        caps = ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"]
        self.run(*authtool, "-n", "client.admin", *caps)
        fsid = self.run("ceph-conf", "-c", self.conf, "fsid").stdout.strip()
        monmap = self.work / "monmap"
        self.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:{self.address}]", monmap)
        self.run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", self.keyring, "-c", self.conf)
        self.daemon("mon", "ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        self.ceph("osd", "new", osd, timeout=90)
        key = self.ceph("auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *")
        (self.work / "osd" / "keyring").write_text(key)
        self.ceph("osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h")
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "-c", self.conf)
        self.daemon("osd", "ceph-osd", "-i", "0")
        for pool in ["rbd", "plain"]:
            self.ceph("osd", "pool", "create", pool, "4", "4")
            self.ceph("osd", "pool", "application", "enable", pool, "rbd")
        until = time.monotonic() + 60
        while json.loads(self.ceph("osd", "stat", "--format=json"))["num_up_osds"] < 1:
            if time.monotonic() > until:
                raise RuntimeError("the OSD does not come up: " + (self.work / "osd.out").read_text())
            time.sleep(0.1)
        for pool in ["rbd", "plain"]:
            self.rbd("pool", "init", pool)

    def user(self, name, *caps):
        """A configuration with the key of a user."""
        keyring = self.work / f"{name}.keyring"
        keyring.write_text(self.ceph("auth", "get-or-create", f"client.{name}", *caps))
        return self.conf_with(name, str(self.keyring), str(keyring))

    def conf_with(self, name, old, new):
        """A copy of the configuration in which one text is replaced."""
        conf = self.work / f"{name}.conf"
        conf.write_text(self.conf.read_text().replace(old, new))
        return conf

    def pause(self, name):
        self.processes[name].send_signal(signal.SIGSTOP)

    def go_on(self, name):
        self.processes[name].send_signal(signal.SIGCONT)

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        shutil.rmtree(self.work, ignore_errors=True)
