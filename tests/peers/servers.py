"""The servers that are measured: Debian's smbd and NFS-Ganesha, Chimera, Weft, the floor, and a plain TCP stream. Each runs on
processor 0."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = ROOT / "target" / "release" / "weft"
PASSWORD = "password-of-the-bench"
# An account that every host has; smbd needs a Unix one, its SMB password lives in the temporary folder.
USER = "root"

SMB_CONF = """
[global]
  server role = standalone server
  interfaces = lo
  bind interfaces only = yes
  smb ports = {port}
  disable netbios = yes
  load printers = no
  server min protocol = SMB2_10
  server signing = {signing}
  server smb encrypt = {encrypt}
  use sendfile = yes
  aio read size = 0
  log level = 0
  {folders}
[data]
  path = {data}
  read only = no
"""


GANESHA_CONF = """
NFS_CORE_PARAM {{
  NFS_Protocols = 3, 4; NFS_Port = {port}; MNT_Port = {mount_port};
  Enable_NLM = false; Enable_RQUOTA = false; {more}
}}
NFSv4 {{ Graceless = true; }}
LOG {{ Default_Log_Level = WARN; }}
EXPORT {{
  Export_Id = 1; Path = {data}; Pseudo = /data; Access_Type = RW; Squash = No_Root_Squash; SecType = sys, none;
  Transports = TCP; Protocols = 3, 4; FSAL {{ Name = VFS; }}
}}
"""


def cpu_seconds(pids):
    """CPU time of processes in all of their threads, ended ones too: their own clocks (the id is the kernel's, posix-timers.h)."""
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids) / 1e9


def descendants(pid):
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += descendants(int(child))
    return pids


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def wait_for_port(port):
    """Until somebody listens there."""
    for _ in range(300):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nobody listens on port {port}")


def write_file(path, size):
    """A file that is in the page cache, for everybody to write to.

    The kernel keeps a file in pieces as long as the writes that made it, of up to 2 MiB, and ext4 walks through every
    block of a piece whenever a part of it is written: 8 KiB cost the kernel 20 us in a file that was written by
    megabytes, and 3 us in one that was written by 64 KiB, as cp and dd do it, whichever server writes them."""
    with open(path, "wb", buffering=0) as out:
        block = os.urandom(64 << 10)
        for _ in range(size // len(block)):
            out.write(block)
    os.chmod(path, 0o666)


class Server:
    """A process on processor 0 and where it listens."""

    def cpu_seconds(self):
        return cpu_seconds(descendants(self.process.pid))

    def export(self, share, version="3"):
        """What a client of this version of NFS mounts."""
        return f"/{share}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


# Runs a program in another root directory, where a folder of this one is at its own path; processes and devices are the same.
IN_ROOT = """
root=$1 work=$2
shift 2
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root$work" "$work/run"
mount --bind "$work/run" "$root/run"
mount --rbind "$work" "$root$work"
exec chroot "$root" "$@"
"""


def in_root(root, work, *command):
    """The command line of a program of that root directory (of this one if there is none). The process id stays the same."""
    return ["unshare", "--mount", "bash", "-ec", IN_ROOT, "-", root, work, *command] if root else [*command]


def version(*command):
    """The first number with a dot that a program says about itself."""
    said = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)*", said.stdout + said.stderr)
    if not found:
        raise SystemExit(f"{' '.join(map(str, command))} does not tell its version: {said.stderr.strip()}")
    return found[0]


class Smbd(Server):
    """Debian's smbd at its best for this work, with its own configuration and state: this system's, or that of `root`."""

    def __init__(self, work, data, signing="auto", encrypt="off", root=None):
        self.port = free_port()
        way = ", signed" if signing == "mandatory" else ", encrypted" if encrypt == "required" else ""
        self.name = f"smbd {version(*in_root(root, work, 'smbd', '--version'))}{way}"
        state = work / f"smbd-{signing}-{encrypt}"
        folders = [
            f"{key} = {state}/{key.replace(' ', '-')}"
            for key in ["private dir", "lock directory", "state directory", "cache directory", "pid directory",
                        "ncalrpc dir"]
        ]
        for line in folders:
            pathlib.Path(line.split("= ")[1]).mkdir(mode=0o700, parents=True)
        conf = state / "smb.conf"
        conf.write_text(SMB_CONF.format(
            port=self.port, data=data, signing=signing, encrypt=encrypt, folders="\n  ".join(folders),
        ))
        subprocess.run(
            in_root(root, work, "smbpasswd", "-c", conf, "-s", "-a", USER), input=f"{PASSWORD}\n{PASSWORD}\n", text=True,
            check=True, capture_output=True,
        )
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", *in_root(root, work, "smbd", "--foreground", "--no-process-group", "-s", conf)],
            # A group of its own: when smbd ends it ends its whole process group, which would be ours.
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )


class Weft(Server):
    """`weft serve` on one core, with the folder as share `data` and a ramdisk as share `ram`."""

    def __init__(self, data, *options, name="weft", binary=WEFT, prefix=""):
        self.name, self.binary = prefix + name, binary
        # What is compared is said, whatever the defaults are.
        signing = [] if "--signing" in options or "--require-encryption" in options else ["--signing", "enabled"]
        # Each has its own, whatever this user's is.
        self.state = tempfile.TemporaryDirectory(prefix="weft-state-")
        self.process = subprocess.Popen(
            [self.binary, "serve", data, "--state-dir", self.state.name, "--ram", "ram=2G", "--user", USER, "--smb-port", "0", "--smbd-port", "0",
             "--cores", "1", "--pin", "--congestion", "reno", "--json", *signing, *options],
            stdout=subprocess.PIPE, text=True, env=dict(os.environ, WEFT_PASSWORD=PASSWORD),
        )
        ready = json.loads(self.process.stdout.readline())
        self.smb_port, self.mount_port = ready["smb_port"], ready.get("mountd_port")
        self.port = ready["nfs_port"] if "--nfs-port" in options else self.smb_port

    def put(self, path, share):
        """Copies a file to a share."""
        subprocess.run(
            [self.binary, "cp", path, f"smb://{USER}@127.0.0.1:{self.smb_port}/{share}/{path.name}", "--transport", "tcp"],
            check=True, capture_output=True, env=dict(os.environ, WEFT_PASSWORD=PASSWORD),
        )

    def stop(self):
        super().stop()
        self.state.cleanup()
        if self.process.returncode != 0:
            raise SystemExit(f"{self.name} did not end well")


class Rpcbind:
    """What servers of NFS register with, as long as one of them runs. The network is the bench's own, so its well-known port is free."""

    process, users = None, 0

    @classmethod
    def acquire(cls, root, work):
        if not cls.process:
            cls.process = subprocess.Popen(in_root(root, work, "rpcbind", "-f"), stderr=subprocess.DEVNULL)
            wait_for_port(111)
        cls.users += 1

    @classmethod
    def release(cls):
        cls.users -= 1
        if not cls.users:
            cls.process.terminate()
            cls.process.wait()
            cls.process = None


class Ganesha(Server):
    """Debian's NFS-Ganesha on files, this system's or that of `root`, with an rpcbind: it wants one."""

    def __init__(self, work, data, root=None):
        number = version(*in_root(root, work, "ganesha.nfsd", "-v"))
        self.name = f"ganesha {number}"
        self.data, self.port, self.mount_port = data, free_port(), free_port()
        conf = work / "ganesha.conf"
        # Newer ones end where the kernel does not let them be a server of disks (PR_SET_IO_FLUSHER), as in some containers.
        more = "allow_set_io_flusher_fail = true;" if int(number.split(".")[0]) >= 6 else ""
        conf.write_text(GANESHA_CONF.format(port=self.port, mount_port=self.mount_port, data=data, more=more))
        Rpcbind.acquire(root, work)
        try:
            ganesha = ["ganesha.nfsd", "-F", "-f", conf, "-L", work / "ganesha.log", "-p", work / "pid"]
            self.process = subprocess.Popen(["taskset", "-c", "0", *in_root(root, work, *ganesha)])
            wait_for_port(self.port)
            wait_for_port(self.mount_port)
        except BaseException:
            Rpcbind.release()
            raise

    def export(self, share, version="3"):
        return self.data if version == "3" else f"/{share}"

    def stop(self):
        super().stop()
        Rpcbind.release()


class Chimera(Server):
    """Chimera on files by io_uring, with one thread for its events and none to which it hands calls. Its ports of SMB and MOUNT are
    fixed. With an rpcbind it registers there, as beside Ganesha it must; else it has one of its own."""

    SMB_PORT, MOUNT_PORT = 445, 20048

    def __init__(self, work, data, binary, protocol="nfs", root=None):
        self.name = f"chimera {version(binary, '-v')}"
        self.mount_port, self.has_rpcbind = self.MOUNT_PORT, protocol == "nfs"
        nfs_port = free_port()
        self.port = nfs_port if protocol == "nfs" else self.SMB_PORT
        place = {"path": "/data"}
        conf = work / "chimera.json"
        conf.write_text(json.dumps({
            "server": {
                "threads": 1, "sync_delegation": False, "sync_delegation_threads": 1, "async_delegation": False,
                "nfs_port": nfs_port, "metrics_port": free_port(), "external_portmap": self.has_rpcbind,
                "state_dir": str(work),
            },
            "common": {"tcp_flavor": "plain"},
            "mounts": {"data": {"module": "io_uring", "path": str(data)}},
            "exports": {"/data": place},
            "shares": {"data": place},
            "users": [{"username": USER, "smbpasswd": PASSWORD, "uid": 0, "gid": 0}],
        }))
        if self.has_rpcbind:
            Rpcbind.acquire(root, work)
        try:
            with open(work / "chimera.log", "w") as log:
                self.process = subprocess.Popen(["taskset", "-c", "0", binary, "-c", conf], stdout=log, stderr=log)
            wait_for_port(self.port)
        except BaseException:
            if self.has_rpcbind:
                Rpcbind.release()
            raise

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            # One that stalls may not end.
            self.process.kill()
            self.process.wait()
        if self.has_rpcbind:
            Rpcbind.release()


class Stream(Server):
    """One plain TCP stream, sent in pieces of 1 MiB."""

    name = "plain TCP"

    def __init__(self, loader):
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", loader, "-serve-stream", "-size", str(1 << 20)], stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.process.stdout.readline())


def build_floor(program=ROOT / "target" / "peers" / "floor"):
    """Builds tests/peers/floor, by default where run.sh has it; the path of the program."""
    sources = sorted(pathlib.Path(__file__).with_name("floor").glob("*.c"))
    program.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, *sources, "-lcrypto"], check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        raise SystemExit("the floor could not be built: apt-get install gcc libc6-dev libssl-dev") from None
    return program


class Floor(Server):
    """The bare program of tests/peers/floor, on a file like the others' that nobody watches for changes."""

    name = "floor"

    def __init__(self, program, path, span):
        self.program = program
        write_file(path, span)
        self.engine = subprocess.run([program, "engine"], check=True, capture_output=True, text=True).stdout.strip()
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", program, "serve", path, str(span)], stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.process.stdout.readline() or 0)
        if not self.port:
            raise SystemExit("the floor did not start")

    def load(self, line, pattern, span, seconds):
        """The command line of its client."""
        floor = line.floor
        return [
            self.program, "load", str(self.port), floor.protocol, "write" if line.write else "read", floor.storage, pattern,
            floor.protection, str(line.size), str(line.depth), str(span), str(int(seconds * 1000)),
        ]
