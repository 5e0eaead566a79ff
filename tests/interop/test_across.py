"""Two clients on one file, one by NFS and one by SMB: state of the first one affects the second one.

The table below is the test. A line is a step: the client, its action, and the result. Each block has a file of its own.
`waits` is a request that is not answered yet; `then` is its answer. `recalled` is what the server recalls from the
client.
"""

import os
import socket
import struct
import tempfile
import threading
import time
import unittest

import nfs4
import oncrpc
import smb3
import weft
from oncrpc import NFS, NLM

TABLE = """
Share modes: the access that one client denies is denied to the other
  smb | open r, deny w | ok
  nfs | open w         | SHARE_DENIED
  nfs | open r         | ok
  nfs | write 0 5      | OPENMODE
  smb | close          | ok
  nfs | open w         | ok

Share modes: the other way round
  nfs | open r, deny r | ok
  smb | open r         | SHARING_VIOLATION
  smb | open w         | ok
  nfs | close          | ok
  smb | open rw        | ok

Locks: those of SMB are mandatory to NFS
  smb | open rw        | ok
  smb | lock 0 10      | ok
  nfs | open rw        | ok
  nfs | lock 5 10      | DENIED
  nfs | write 5 1      | LOCKED
  nfs | read 5 1       | LOCKED
  nfs | write 10 1     | ok
  nfs | lock 10 10     | ok
  smb | unlock 0 10    | ok
  nfs | write 5 1      | ok
  nfs | lock 5 10      | ok

Locks: those of NFS are mandatory to SMB
  nfs | open rw        | ok
  nfs | lock 0 10      | ok
  smb | open rw        | ok
  smb | lock 5 10      | LOCK_NOT_GRANTED
  smb | write 5 1      | FILE_LOCK_CONFLICT
  smb | read 5 1       | FILE_LOCK_CONFLICT
  smb | write 10 1     | ok
  nfs | unlock 0 10    | ok
  smb | lock 5 10      | ok

A read delegation delays an open for writing, but not an open for reading
  nfs | open r, with delegation  | ok, delegated
  smb | open r         | ok
  smb | open rw        | waits
  nfs | recalled       | ok
  nfs | give back      | ok
  smb | then           | ok
  nfs | open r         | ok

A write delegation delays every open
  nfs | open rw, with delegation | ok, delegated
  smb | open r         | waits
  nfs | recalled       | ok
  nfs | give back      | ok
  smb | then           | ok

A delegation is recalled when the name is deleted
  nfs | open r, with delegation  | ok, delegated
  nfs | close          | ok
  smb | delete         | waits
  nfs | recalled       | ok
  nfs | give back      | ok
  smb | then           | ok
  nfs | look up        | NOENT

A lease delays an open
  smb | open rw, lease rwh | ok, leased rwh
  nfs | open r         | DELAY
  smb | recalled       | rh
  nfs | open r         | DELAY
  smb | give back rh   | ok
  nfs | open r         | ok

A write revokes a lease for reading, and need not wait for its handles
  smb | open r, lease rh | ok, leased rh
  nfs | open rw        | ok
  nfs | write 0 5      | ok
  smb | recalled       | none

A name that a lease keeps open is removed once the lease was given back
  smb | open r, lease rh | ok, leased rh
  nfs | remove         | DELAY
  smb | recalled       | r
  smb | close          | ok
  nfs | remove         | ok

A change in a directory is reported to clients that cache it
  smb | open directory, lease rh | ok, leased rh
  nfs | open r         | ok
  nfs | make directory | ok
  smb | recalled       | none

So is a write to a file in it, since the listing has its size
  nfs | open rw        | ok
  smb | open directory, lease rh | ok, leased rh
  nfs | write 0 5      | ok
  smb | recalled       | none
"""

# The state that an NFSv4 client had on a file before its server was killed; another client, and its request for that
# file; the outcome while the first client may reclaim its state, and the outcome once it has.
GRACE = """
  open rw         | smb | open r           | ok    | ok
  open rw         | smb | open rw          | waits | ok
  open rw         | smb | open r, deny w   | waits | SHARING_VIOLATION
  open r, deny w  | smb | open w           | waits | SHARING_VIOLATION
  open r, deny r  | smb | open r, deny r   | waits | SHARING_VIOLATION
  open rw         | smb | overwrite        | waits | ok
  open rw         | smb | delete           | waits | ok
  lock 0 10       | smb | lock 5 10        | LOCK_NOT_GRANTED | LOCK_NOT_GRANTED
  lock 0 10       | smb | lock 10 10       | LOCK_NOT_GRANTED | ok
  lock 0 10       | smb | wait for 10 10   | waits | ok
  open rw         | v3  | remove           | waits | ok
  open rw         | v3  | rename           | waits | ok
  open rw         | v3  | replace          | waits | ok
  open rw         | v3  | create           | waits | ok
  open rw         | v3  | change mode      | ok    | ok
  lock 0 10       | v3  | lock 5 10        | GRACE | DENIED
  lock 0 10       | v3  | lock 10 10       | GRACE | ok
  open rw         | v4  | open r           | GRACE | ok
  open rw         | v4  | remove           | DELAY | ok
"""

LEASES = {"r": 1, "h": 2, "w": 4}


def letters(bits):
    return "".join(letter for letter in "rwh" if bits & LEASES[letter]) or "none"


class Smb:
    def __init__(self, port):
        self.link = smb3.Link(port)
        self.tree = self.link.log_on(weft.USER, weft.PASSWORD).tree("data")

    def begin(self, name):
        self.name, self.file, self.key = name, None, os.urandom(16)

    @staticmethod
    def status(act, *arguments):
        try:
            act(*arguments)
        except smb3.Refused as refused:
            return refused.status
        return "ok"

    def open(self, how, deny="", lease=None, disposition=smb3.OPEN):
        is_directory = how == "directory"
        access = 0x80 | (1 if is_directory else sum({"r": 1, "w": 2, "d": 0x10000}[letter] for letter in how))
        wish = {"oplock": smb3.LEASE, "asks": [smb3.lease(self.key, sum(LEASES[letter] for letter in lease))]} if lease else {}
        try:
            self.file = self.tree.open(
                "" if is_directory else self.name, access=access, how=disposition,
                options=smb3.DIRECTORY if is_directory else smb3.NO_DIRECTORY,
                sharing=smb3.ALL_SHARED & ~sum({"r": 1, "w": 2}[letter] for letter in deny), **wish)
        except smb3.Refused as refused:
            return refused.status
        if not lease:
            return "ok"
        return f"ok, leased {letters(struct.unpack_from('<I', self.file.granted[b'RqLs'], 16)[0])}"

    def delete(self):
        """Opens the file for deletion, marks it, and closes it."""
        status = self.open("d")
        return status if status != "ok" else self.status(self.file.delete)

    def overwrite(self):
        return self.open("w", disposition=smb3.OVERWRITE)

    def close(self):
        return self.status(self.file.close)

    def lock(self, offset, length, flags=0x12):
        return self.status(self.file.lock, offset, length, flags)

    def wait_for(self, offset, length):
        return self.lock(offset, length, 2)

    def unlock(self, offset, length):
        return self.lock(offset, length, 4)

    def write(self, offset, length):
        return self.status(self.file.write, b"s" * length, offset)

    def read(self, offset, length):
        return self.status(self.file.read, length, offset)

    def recalled(self):
        key, new = self.link.notice()
        if key != self.key:
            raise AssertionError("a break of an unknown lease")
        return letters(new)

    def give_back(self, keep):
        return self.status(self.tree.acknowledge, self.key, sum(LEASES[letter] for letter in keep))

    def end(self):
        self.link.close()


class Nfs:
    def __init__(self, port, name, reclaims=False):
        self.client = nfs4.Client(port, name, reclaims)

    def begin(self, name):
        self.name, self.delegation, self.locks = name, None, None

    def take_back(self, how, deny=""):
        """Reclaims an open (CLAIM_PREVIOUS)."""
        bits = {"r": 1, "w": 2}
        access, denied = sum(bits[letter] for letter in how), sum(bits[letter] for letter in deny)
        owner = bytes(8) + nfs4.opaque(self.client.owner)
        reply, status = self.client.on(
            self.handle, nfs4.OPEN, nfs4.words(0, access, denied) + owner + nfs4.words(0, 1, 0))
        if status == "ok":
            self.stateid, self.locks = reply.take(16), None
        return status

    def take_back_lock(self, offset, length):
        return self.lock(offset, length, reclaim=1)

    def done(self):
        return self.client.run(nfs4.words(nfs4.RECLAIM_COMPLETE, 0)).expect(nfs4.RECLAIM_COMPLETE)

    def open(self, how, deny="", **wishes):
        bits = {"r": 1, "w": 2}
        access, denied = sum(bits[letter] for letter in how), sum(bits[letter] for letter in deny)
        # RFC 8881 18.16.1: no preference, or the wish for none.
        access |= 0 if wishes.get("with") == "delegation" else 0x400
        status, handle, stateid, delegation = self.client.open("data", self.name, access, denied)
        if status == "ok":
            self.handle, self.stateid, self.locks = handle, stateid, None
        if delegation:
            self.delegation = delegation
            status += ", delegated"
        return status

    def close(self):
        return self.client.on(self.handle, nfs4.CLOSE, nfs4.words(0) + self.stateid)[1]

    def lock(self, offset, length, reclaim=0):
        where = nfs4.words(2, reclaim) + struct.pack(">QQ", offset, length)
        owner = bytes(8) + nfs4.opaque(b"locks")
        known = nfs4.words(0) + (self.locks or b"") + nfs4.words(0)
        new = nfs4.words(1, 0) + self.stateid + nfs4.words(0) + owner
        reply, status = self.client.on(self.handle, nfs4.LOCK, where + (known if self.locks else new))
        if status == "ok":
            self.locks = reply.take(16)
        return status

    def unlock(self, offset, length):
        args = nfs4.words(2, 0) + self.locks + struct.pack(">QQ", offset, length)
        return self.client.on(self.handle, nfs4.LOCKU, args)[1]

    def write(self, offset, length):
        args = self.stateid + struct.pack(">QI", offset, 0) + nfs4.opaque(b"n" * length)
        return self.client.on(self.handle, nfs4.WRITE, args)[1]

    def read(self, offset, length):
        return self.client.on(self.handle, nfs4.READ, self.stateid + struct.pack(">QI", offset, length))[1]

    def remove(self):
        reply = self.client.run(*self.client.walk("data"), nfs4.words(nfs4.REMOVE) + nfs4.opaque(self.name.encode()))
        self.client.check(reply, nfs4.PUTROOTFH), self.client.check(reply, nfs4.LOOKUP)
        return reply.expect(nfs4.REMOVE)

    def look_up(self):
        reply = self.client.run(*self.client.walk("data", self.name))
        self.client.check(reply, nfs4.PUTROOTFH), self.client.check(reply, nfs4.LOOKUP)
        return reply.expect(nfs4.LOOKUP)

    def make_directory(self):
        args = nfs4.words(2) + nfs4.opaque(self.name.encode() + b"-more") + nfs4.words(0, 0)
        reply = self.client.run(*self.client.walk("data"), nfs4.words(nfs4.CREATE) + args)
        self.client.check(reply, nfs4.PUTROOTFH), self.client.check(reply, nfs4.LOOKUP)
        return reply.expect(nfs4.CREATE)

    def recalled(self):
        asked = self.client.recalls.get(timeout=10)
        return "ok" if asked == self.delegation else "another delegation"

    def give_back(self):
        return self.client.on(self.handle, nfs4.DELEGRETURN, self.delegation)[1]

    def end(self):
        self.client.hang_up()


class Nfs3:
    """NFSv3 and NLM."""

    NLM, JUKEBOX = {0: "ok", 1: "DENIED", 4: "GRACE"}, 10008

    def __init__(self, ready):
        with oncrpc.Connection(ready["mountd_port"]) as mountd:
            self.root = mountd.mount(b"/data")
        self.peer = oncrpc.Connection(ready["nfs_port"])

    def begin(self, name):
        self.name = self.at_root(name)
        self.file = self.peer.lookup(self.root, os.fsencode(name))

    def at_root(self, name):
        return nfs4.opaque(self.root) + nfs4.opaque(os.fsencode(name))

    def call(self, procedure, args):
        """Repeats a call while the server answers JUKEBOX (after five seconds)."""
        status = self.JUKEBOX
        while status == self.JUKEBOX:
            status = self.peer.call(NFS, 3, procedure, args).word()
        return "ok" if status == 0 else str(status)

    def remove(self):
        return self.call(12, self.name)

    def rename(self):
        return self.call(14, self.name + self.at_root(f"{os.urandom(4).hex()}"))

    def replace(self):
        """Renames another file over it."""
        return self.call(14, self.at_root("other") + self.name)

    def create(self):
        """UNCHECKED, with a size of 0."""
        return self.call(8, self.name + nfs4.words(0, 0, 0, 0, 1, 0, 0, 0, 0))

    def change_mode(self):
        return self.call(2, nfs4.opaque(self.file) + nfs4.words(1, 0o640, 0, 0, 0, 0, 0, 0))

    def lock(self, offset, length):
        lock = nfs4.opaque(b"box") + nfs4.opaque(self.file) + nfs4.opaque(b"owner") + nfs4.words(1)
        lock += struct.pack(">QQ", offset, length)
        reply = self.peer.call(NLM, 4, 2, nfs4.opaque(b"once") + nfs4.words(0, 1) + lock + nfs4.words(0, 0))
        reply.opaque()
        status = reply.word()
        return self.NLM.get(status, str(status))

    def end(self):
        self.peer.close()


@unittest.skipUnless(smb3.spnego, "no pyspnego: tests/interop/deps.sh installs it")
class Across(unittest.TestCase):
    def test_what_one_has_the_other_meets(self):
        with weft.serving() as server:
            for number, block in enumerate(TABLE.strip().split("\n\n")):
                title, *steps = block.splitlines()
                name = f"file-{number}"
                (server.folder / name).write_bytes(bytes(100))
                sides = {"smb": Smb(server.smb_port), "nfs": Nfs(server.ready["nfs_port"], name)}
                for side in sides.values():
                    side.begin(name)
                self.running = {}
                for step in steps:
                    who, what, expected = (part.strip() for part in step.split("|"))
                    with self.subTest(block=title, step=step.strip()):
                        self.assertEqual(self.step(sides[who], who, what, expected == "waits"), expected)
                for side in sides.values():
                    side.end()

    def step(self, side, who, what, waits):
        if what == "then":
            thread, outcome = self.running.pop(who)
            thread.join(30)
            return outcome[0] if outcome else "still waits"
        act = self.act(side, what)
        if not waits:
            return act()
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(act()), daemon=True)
        thread.start()
        # The recall, which is the next step, proves that the server has the request; it must not be answered yet.
        thread.join(0.2)
        self.running[who] = (thread, outcome)
        return outcome[0] if outcome else "waits"

    @staticmethod
    def act(side, what):
        verb, *arguments = what.replace(",", "").split()
        if verb == "open":
            how, rest = arguments[0], arguments[1:]
            return lambda: side.open(how, **dict(zip(rest[::2], rest[1::2])))
        if verb == "give":
            return lambda: side.give_back(*arguments[1:])
        if verb == "look":
            return side.look_up
        if verb == "make":
            return side.make_directory
        if verb == "change":
            return side.change_mode
        if verb == "wait":
            return lambda: side.wait_for(*map(int, arguments[1:]))
        return lambda: getattr(side, verb)(*(int(argument) for argument in arguments))

    def test_after_a_restart_those_come_first_who_had_it(self):
        state = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-state-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # The server remembers state of NFS clients under its port.
        with weft.serving("--state-dir", state, ports={"nfs": port}) as server:
            (server.folder / "other").write_bytes(b"")
            cases = []
            for number, line in enumerate(GRACE.strip().splitlines()):
                had, who, what, *outcomes = (part.strip() for part in line.split("|"))
                cases.append((line.strip(), f"file-{number}", had, who, what, outcomes))
            keeper, kept = Nfs(server.ready["nfs_port"], "keeper"), {}
            for line, name, had, *_ in cases:
                (server.folder / name).write_bytes(bytes(100))
                keeper.begin(name)
                self.assertEqual(self.act(keeper, had if "open" in had else "open rw")(), "ok", line)
                if "lock" in had:
                    self.assertEqual(self.act(keeper, had)(), "ok", line)
                kept[name] = keeper.handle
            server.crash()
            keeper.end()
            server.start()
            ready = server.ready
            # Each request has its own connection and file, so it waits only for the client that held state before.
            asked = []
            for line, name, had, who, what, outcomes in cases:
                side = {
                    "smb": lambda: Smb(ready["smb_port"]), "v3": lambda: Nfs3(ready),
                    "v4": lambda: Nfs(ready["nfs_port"], name),
                }[who]()
                self.addCleanup(side.end)
                side.begin(name)
                if "lock" in had and who == "smb":
                    # An open for reading that denies nothing conflicts with nothing.
                    self.assertEqual(side.open("r"), "ok", line)
                asked.append((line, side, what, outcomes))
            answers = [[] for _ in asked]
            threads = []
            for (_, side, what, _), answer in zip(asked, answers):
                act = self.act(side, what)
                threads.append(threading.Thread(target=lambda act=act, answer=answer: answer.append(act()), daemon=True))
            keeper = Nfs(ready["nfs_port"], "keeper", reclaims=True)
            self.addCleanup(keeper.end)
            for thread in threads:
                thread.start()
            for (line, _, _, [meanwhile, _]), thread in zip(asked, threads):
                if meanwhile != "waits":
                    thread.join(30)
            for name, (_, _, had, *_) in zip(kept, cases):
                keeper.begin(name)
                keeper.handle = kept[name]
                verb, *rest = had.replace(",", "").split()
                opened = keeper.take_back("rw") if verb == "lock" else keeper.take_back(rest[0], *rest[2:])
                self.assertEqual(opened, "ok", had)
                if verb == "lock":
                    self.assertEqual(keeper.take_back_lock(*map(int, rest)), "ok", had)
            time.sleep(0.5)
            for (line, _, _, [meanwhile, _]), answer in zip(asked, answers):
                with self.subTest(meanwhile=line):
                    self.assertEqual(answer[0] if answer else "waits", meanwhile)
            self.assertEqual(keeper.done(), "ok")
            for (line, side, what, [meanwhile, then]), answer, thread in zip(asked, answers, threads):
                with self.subTest(afterwards=line):
                    thread.join(30)
                    self.assertFalse(thread.is_alive())
                    self.assertEqual(answer[0] if meanwhile == "waits" else self.act(side, what)(), then)

    def test_named_attributes_are_streams(self):
        with weft.serving() as server:
            (server.folder / "f").write_bytes(b"the file itself")
            there = server.folder.parent / "stream"
            client = nfs4.Client(server.ready["nfs_port"], "attributes")

            def results(*ops):
                """The rest of the reply after the status of the last operation, and that status."""
                reply = client.run(*ops)
                for op in ops[:-1]:
                    client.check(reply, struct.unpack(">I", op[:4])[0])
                return reply, reply.expect(struct.unpack(">I", ops[-1][:4])[0])

            attributes = [*client.walk("data", "f"), nfs4.words(nfs4.OPENATTR, 1)]
            # NFS makes one, SMB reads it.
            owner = bytes(8) + nfs4.opaque(b"owner")
            args = nfs4.words(0, 3, 0) + owner + nfs4.words(1, 1, 0, 0) + nfs4.words(0) + nfs4.opaque(b"notes")
            reply, status = results(*attributes, nfs4.words(nfs4.OPEN) + args)
            self.assertEqual(status, "ok")
            stateid = reply.take(16)
            notes = [*attributes, nfs4.words(nfs4.LOOKUP) + nfs4.opaque(b"notes")]
            args = stateid + struct.pack(">QI", 0, 2) + nfs4.opaque(b"by NFS")
            self.assertEqual(results(*notes, nfs4.words(nfs4.WRITE) + args)[1], "ok")
            weft.smbclient(server, f'get f:notes "{there}"')
            self.assertEqual(there.read_bytes(), b"by NFS")
            # SMB creates one; NFS lists it, reads it and removes it.
            there.write_bytes(b"by SMB")
            weft.smbclient(server, f'put "{there}" f:other')
            reply, status = results(*attributes, nfs4.words(nfs4.READDIR) + bytes(16) + nfs4.words(0, 4096, 0))
            self.assertEqual(status, "ok")
            reply.take(8)
            names = []
            while reply.word():
                reply.take(8)
                names.append(reply.opaque())
                self.assertEqual((reply.word(), reply.opaque()), (0, b""))
            self.assertEqual((names, reply.word()), ([b"notes", b"other"], 1))
            other = [*attributes, nfs4.words(nfs4.LOOKUP) + nfs4.opaque(b"other")]
            read = nfs4.words(nfs4.READ) + nfs4.ANONYMOUS + struct.pack(">QI", 0, 100)
            reply, status = results(*other, read)
            self.assertEqual((status, reply.word(), reply.opaque()), ("ok", 1, b"by SMB"))
            self.assertEqual(results(*attributes, nfs4.words(nfs4.REMOVE) + nfs4.opaque(b"other"))[1], "ok")
            said = weft.smbclient(server, f'get f:other "{there}"', check=False)
            self.assertIn("NT_STATUS_OBJECT_NAME_NOT_FOUND", said)
            self.assertEqual((server.folder / "f").read_bytes(), b"the file itself")
            client.hang_up()


if __name__ == "__main__":
    unittest.main()
