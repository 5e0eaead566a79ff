"""Persistent handles: the server is repeatedly killed under a writing client, and no acknowledged write is lost."""

import pathlib
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import uuid

import weft

sys.path.append(str(weft.ROOT / "target" / "python"))
try:
    from smbprotocol import connection, create_contexts, exceptions, open as files, session, tree
except ImportError:
    files = None

BLOCK = 65536
BLOCKS = 120
KILLS = 3


@unittest.skipUnless(files, "no smbprotocol: tests/interop/deps.sh installs it")
class Persistent(unittest.TestCase):
    def setUp(self):
        # The package does not announce the capability: 2.2.3, SMB2_GLOBAL_CAP_PERSISTENT_HANDLES.
        known = connection.Capabilities
        both = known.SMB2_GLOBAL_CAP_LARGE_MTU | known.SMB2_GLOBAL_CAP_PERSISTENT_HANDLES
        self.enterContext(unittest.mock.patch.object(known, "SMB2_GLOBAL_CAP_LARGE_MTU", both))
        self.client = uuid.uuid4()
        self.guid = uuid.uuid4()

    def connect(self, server, client=None):
        """A tree connection, as soon as a server answers."""
        until = time.monotonic() + 30
        while True:
            try:
                link = connection.Connection(client or self.client, "127.0.0.1", server.smb_port)
                link.connect()
                who = session.Session(link, weft.USER, weft.PASSWORD, auth_protocol="ntlm")
                who.connect()
                share = tree.TreeConnect(who, r"\\127.0.0.1\data")
                share.connect()
                return share
            except (OSError, ValueError, exceptions.SMBException):
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def open(self, share, context, disposition=files and files.CreateDisposition.FILE_OPEN_IF):
        file = files.Open(share, "file")
        wrapped = create_contexts.SMB2CreateContextRequest()
        if context:
            wrapped["buffer_name"] = context.NAME
            wrapped["buffer_data"] = context
        answer = file.create(
            files.ImpersonationLevel.Impersonation,
            files.FilePipePrinterAccessMask.GENERIC_READ | files.FilePipePrinterAccessMask.GENERIC_WRITE,
            files.FileAttributes.FILE_ATTRIBUTE_NORMAL,
            files.ShareAccess.FILE_SHARE_READ | files.ShareAccess.FILE_SHARE_WRITE,
            disposition,
            files.CreateOptions.FILE_NON_DIRECTORY_FILE,
            [wrapped] if context else None,
        )
        return file, answer or []

    def ask(self):
        context = create_contexts.SMB2CreateDurableHandleRequestV2()
        context["timeout"] = 60_000
        context["flags"] = create_contexts.DurableHandleFlags.SMB2_DHANDLE_FLAG_PERSISTENT
        context["create_guid"] = self.guid
        return context

    def again(self, file_id):
        context = create_contexts.SMB2CreateDurableHandleReconnectV2()
        context["file_id"] = file_id
        context["flags"] = create_contexts.DurableHandleFlags.SMB2_DHANDLE_FLAG_PERSISTENT
        context["create_guid"] = self.guid
        return context

    def lock(self, file, flags):
        element = files.SMB2LockElement()
        element["offset"], element["length"] = 10, 20
        element["flags"] = flags
        file.lock([element])

    def end(self, server):
        """How the server ends."""
        server.crash()

    def test_a_server_that_ends_under_a_writer(self):
        port = weft.free_port()
        state = self.enterContext(tempfile.TemporaryDirectory(prefix="weft-state-"))
        options = ("--continuous-availability", "data", "--state-dir", state)
        with weft.serving(*options, ports={"smb": port}) as server:
            alone = files.LockFlags.SMB2_LOCKFLAG_EXCLUSIVE_LOCK | files.LockFlags.SMB2_LOCKFLAG_FAIL_IMMEDIATELY
            share = self.connect(server)
            file, said = self.open(share, self.ask())
            self.assertTrue(any(c["flags"].get_value() == 2 for c in said), said)
            self.lock(file, alone)
            file_id = file.file_id
            written = 0
            kill_at = [BLOCKS * (i + 1) // (KILLS + 1) for i in range(KILLS)]
            reconnected = 0
            while written < BLOCKS:
                if kill_at and written >= kill_at[0]:
                    kill_at.pop(0)
                    # Probably while a WRITE is in flight.
                    killer = threading.Timer(0.002, lambda: (self.end(server), server.start()))
                    killer.start()
                try:
                    file.write(bytes([written % 251 + 1]) * BLOCK, written * BLOCK)
                    written += 1
                except (OSError, exceptions.SMBException):
                    killer.join()
                    share = self.connect(server)
                    if reconnected == 0:
                        # No other client gets it meanwhile.
                        other = self.connect(server, uuid.uuid4())
                        with self.assertRaises(exceptions.SMBResponseException) as refused:
                            self.open(other, None)
                        self.assertEqual(refused.exception.status, 0xC0000467)
                    file, _ = self.open(share, self.again(file_id))
                    reconnected += 1
            self.assertEqual(reconnected, KILLS)
            # The lock is restored each time: a second one of the same handle is refused, and unlocking succeeds.
            with self.assertRaises(exceptions.SMBResponseException):
                self.lock(file, alone)
            self.lock(file, files.LockFlags.SMB2_LOCKFLAG_UNLOCK)
            file.close()
            data = pathlib.Path(server.folder / "file").read_bytes()
            self.assertEqual(len(data), BLOCKS * BLOCK)
            for i in range(BLOCKS):
                self.assertEqual(data[i * BLOCK : (i + 1) * BLOCK], bytes([i % 251 + 1]) * BLOCK, f"block {i}")
            # A closed handle is not restored.
            self.end(server)
            server.start()
            with self.assertRaises(exceptions.SMBResponseException):
                self.open(self.connect(server), self.again(file_id))
