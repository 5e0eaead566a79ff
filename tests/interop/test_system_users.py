"""Accounts and groups of the system (NSS): users of Weft with the name of an account, groups in rights and in permissions,
principals without an entry of their own, and a directory service that fails or never answers.

The server runs in a mount namespace with /etc/passwd, /etc/group and /etc/nsswitch.conf of its own, and with an NSS module
of the test, which plays a domain as SSSD does."""

import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import unittest.mock

from impacket.dcerpc.v5 import samr, transport

import test_kerberos
import weft

PASSWD = """root:x:0:0::/root:/bin/sh
alice:x:5001:5001::/:/bin/sh
bob:x:5002:5001::/:/bin/sh
carol:x:5003:5001::/:/bin/sh
toor:x:0:0::/root:/bin/sh
1000:x:5005:5001::/:/bin/sh
straße:x:5006:5001::/:/bin/sh
"""
GROUP = """root:x:0:
people:x:5001:
crew:x:6001:alice,carol
staff:x:6002:bob
"""
NSSWITCH = "passwd: files weftdomain\ngroup: files weftdomain\nhosts: files dns\n"

# A domain with a user and a group. A file "hangs" keeps it from answering, a file "fails" makes it fail.
MODULE = r"""
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_there(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("WEFT_TEST_DOMAIN"), name);
    return access(path, F_OK) == 0;
}

static enum nss_status answer(int found, int *error) {
    while (is_there("hangs")) usleep(10000);
    if (is_there("fails")) { *error = ECONNREFUSED; return NSS_STATUS_UNAVAIL; }
    return found ? NSS_STATUS_SUCCESS : NSS_STATUS_NOTFOUND;
}

static enum nss_status user(int found, struct passwd *to, int *error) {
    enum nss_status status = answer(found, error);
    static char name[] = "dora@weft.test", empty[] = "";
    if (status == NSS_STATUS_SUCCESS)
        *to = (struct passwd){ name, empty, 70001, 70001, empty, empty, empty };
    return status;
}

static enum nss_status group(int found, struct group *to, int *error) {
    enum nss_status status = answer(found, error);
    static char name[] = "domain users@weft.test", empty[] = "";
    static char *nobody[] = { NULL };
    if (status == NSS_STATUS_SUCCESS) *to = (struct group){ name, empty, 70002, nobody };
    return status;
}

enum nss_status _nss_weftdomain_getpwnam_r(const char *name, struct passwd *to, char *b, size_t n, int *e) {
    return user(strcmp(name, "dora@weft.test") == 0, to, e);
}
enum nss_status _nss_weftdomain_getpwuid_r(uid_t uid, struct passwd *to, char *b, size_t n, int *e) {
    return user(uid == 70001, to, e);
}
enum nss_status _nss_weftdomain_getgrnam_r(const char *name, struct group *to, char *b, size_t n, int *e) {
    return group(strcmp(name, "domain users@weft.test") == 0, to, e);
}
enum nss_status _nss_weftdomain_getgrgid_r(gid_t gid, struct group *to, char *b, size_t n, int *e) {
    return group(gid == 70002, to, e);
}
enum nss_status _nss_weftdomain_initgroups_dyn(const char *name, gid_t primary, long int *start, long int *size,
                                               gid_t **groups, long int limit, int *error) {
    if (strcmp(name, "dora@weft.test") != 0) return NSS_STATUS_NOTFOUND;
    if (*start == *size) {
        gid_t *more = realloc(*groups, (*size + 8) * sizeof **groups);
        if (!more) { *error = ENOMEM; return NSS_STATUS_TRYAGAIN; }
        *groups = more;
        *size += 8;
    }
    (*groups)[(*start)++] = 70002;
    return NSS_STATUS_SUCCESS;
}
"""

FILE = """
{extra}
[listeners]
smb_port = 0
smb_direct_port = 0

[shares.team]
path = "team"
read = ["@crew", "@domain users@weft.test", "eve"]
write = ["@staff"]

[shares.common]
path = "common"
"""

# The first argument is the folder with the files; the others are the command.
INSIDE = ("for name in passwd group nsswitch.conf; do mount --bind \"$0/$name\" \"/etc/$name\" || exit 99; done; "
          "exec \"$@\"")


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


class Inside(unittest.TestCase):
    """A server in a mount namespace."""

    @classmethod
    def setUpClass(cls):
        cls.built = tempfile.TemporaryDirectory(prefix="weft-nss-")
        cls.addClassCleanup(cls.built.cleanup)
        source = pathlib.Path(cls.built.name) / "module.c"
        source.write_text(MODULE)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", source.with_name("libnss_weftdomain.so.2"), source], check=True)

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weft-system-")))
        self.state = self.work / "state"
        for folder in ["team", "common", "domain"]:
            (self.work / folder).mkdir()
        for name, text in [("passwd", PASSWD), ("group", GROUP), ("nsswitch.conf", NSSWITCH)]:
            (self.work / name).write_text(text)
        (self.work / "team" / "plan.txt").write_text("of the team")
        self.enterContext(unittest.mock.patch.dict(os.environ, {
            "LD_LIBRARY_PATH": self.built.name, "WEFT_TEST_DOMAIN": str(self.work / "domain"),
        }))
        self.configure()

    def configure(self, extra=""):
        # Some of the users have no account; test_acting is about files.
        extra = "smb.act_as_callers = false\n" + extra
        (self.work / "weft.toml").write_text(FILE.format(extra=extra))

    def inside(self, *command):
        return ["unshare", "-m", "sh", "-c", INSIDE, self.work, *command]

    def weft(self, *arguments, password="", check=True):
        return weft.run(*self.inside(weft.WEFT, *arguments), password=password, check=check)

    def add_users(self, *names):
        for name in names:
            self.weft("user", "add", name, "--state-dir", self.state, password=f"of-{name}")

    def serving(self):
        return weft.configured(self.work / "weft.toml", self.state, launcher=self.inside())

    def smbclient(self, server, user, commands, share="team", password=None):
        password = f"of-{user.lower()}" if password is None else password
        return weft.smbclient(server, commands, share=share, user=user, password=password, check=False, cwd=self.work)

    def rpcclient(self, server, commands):
        line = ["rpcclient", "-p", str(server.ready["smb_port"]), "-U", "eve%of-eve", "127.0.0.1", "-c", commands]
        return subprocess.run(line, capture_output=True, text=True, timeout=60).stdout

    def account(self, server):
        """The uid of the last log-on, as the log has it."""
        last = [line for line in server.log_text().splitlines() if "logged on" in line][-1]
        return last.split("uid=")[1].split()[0] if "uid=" in last else None


@unittest.skipUnless(can_mount(), "needs root and mount namespaces")
class SystemUsers(Inside):
    def test_users_have_the_accounts_of_their_names_and_rights_name_groups_of_the_system(self):
        self.add_users("alice", "bob", "eve", "1000", "Carol", "root")
        with self.serving() as server:
            (self.work / "new").write_text("x")
            for user, uid, team in [("alice", "5001", "read"), ("ALICE", "5001", "read"), ("bob", "5002", "write"),
                                    ("eve", None, "read"), ("1000", "5005", None), ("root", "0", None),
                                    # The store's spelling is not that of the system.
                                    ("carol", None, None)]:
                with self.subTest(user):
                    password = {"carol": "of-Carol"}.get(user)
                    said = self.smbclient(server, user, "get plan.txt -; put new", password=password)
                    self.assertEqual(self.account(server), uid)
                    self.assertEqual("of the team" in said, team is not None, said)
                    self.assertEqual("putting file" in said, team == "write", said)
            for strange in ["alice@weft.test", "dora@weft.test", "alice ", "nobody", "5001"]:
                with self.subTest(strange):
                    self.assertNotIn("blocks", self.smbclient(server, strange, "ls", password="of-alice"))
        # A group of ours hides that of the system, also without members.
        self.weft("group", "add", "CREW", "--state-dir", self.state)
        with self.serving() as server:
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "alice", "ls"))
        self.configure("[identity]\nsystem_users = false\n")
        with self.serving() as server:
            self.assertIn("blocks", self.smbclient(server, "alice", "ls", share="common"))
            self.assertIsNone(self.account(server))
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "bob", "ls"))

    def test_commands_say_what_a_group_is(self):
        self.add_users("eve")
        self.weft("group", "add", "staff", "eve", "--state-dir", self.state)
        config = self.work / "weft.toml"
        config.write_text(config.read_text().replace('"eve"]', '"@nowhere"]'))
        listed = self.weft("share", "--config", config, "list", "--state-dir", self.state).stdout
        self.assertIn("read: @crew (a group of the system, gid 6001), @domain users@weft.test (a group of the system, "
                      "gid 70002), @nowhere (no such group); write: @staff\n", listed)
        listed = json.loads(self.weft("share", "--config", config, "list", "--json", "--state-dir", self.state).stdout)
        self.assertEqual(listed[0]["groups"], {"crew": "system", "domain users@weft.test": "system", "nowhere": "unknown",
                                               "staff": "weft"})
        config.write_text(f'state_dir = "{self.state}"\n' + config.read_text())
        checked = self.weft("config", "check", config)
        self.assertIn("@crew: a group of the system, gid 6001\n", checked.stdout)
        self.assertIn("@staff: a group of weft group\n", checked.stdout)
        self.assertIn("@nowhere: no such group\n", checked.stderr)
        with self.serving() as server:
            self.assertIn("the rights name @nowhere, but there is no such group", server.log_text())
            self.assertNotIn("the rights name @crew, but", server.log_text())

    def test_permissions_name_users_and_groups_of_the_system(self):
        # smbcacls knows no port but 445.
        self.enterContext(weft.own_network())
        config = self.work / "weft.toml"
        config.write_text(config.read_text().replace("smb_port = 0", "smb_port = 445"))
        self.add_users("eve", "alice")
        with self.serving() as server:
            said = self.rpcclient(server, "lookupnames crew; lookupnames bob; lookupnames 'Unix Group\\staff'; "
                                          "lookupnames dora@weft.test; lookupnames nobody-here")
            for line in ["crew S-1-22-2-6001 (", "bob S-1-22-1-5002 (", "S-1-22-2-6002 (", "S-1-22-1-70001 ("]:
                self.assertIn(line, said)
            self.assertNotIn("nobody-here S-", said)
            said = self.rpcclient(server, "lookupsids S-1-22-2-6001 S-1-22-1-5002 S-1-22-1-4242 S-1-22-2-70002")
            for line in ["S-1-22-2-6001 Unix Group\\crew", "S-1-22-1-5002 Unix User\\bob", "S-1-22-1-4242 Unix User\\4242",
                         "S-1-22-2-70002 Unix Group\\domain users@weft.test"]:
                self.assertIn(line, said)
            (self.work / "new").write_text("x")
            self.assertIn("putting file", self.smbclient(server, "eve", "put new secret", share="common"))

            def acl(*options):
                line = ["smbcacls", "//127.0.0.1/common", "secret", "-U", "eve%of-eve"]
                done = subprocess.run([*line, *options], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                return done.stdout

            acl("-S", "ACL:eve:ALLOWED/0/FULL,ACL:Unix Group\\people:ALLOWED/0/READ")
            self.assertIn("ACL:Unix Group\\people:ALLOWED/0x0/READ", acl())
            # Only members of the group read it.
            self.assertIn("getting file", self.smbclient(server, "alice", "get secret -", share="common"))
            acl("-S", "ACL:eve:ALLOWED/0/FULL,ACL:Unix Group\\staff:ALLOWED/0/READ")
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "alice", "get secret -", share="common"))
            acl("-S", "ACL:eve:ALLOWED/0/FULL,ACL:Unix User\\alice:ALLOWED/0/READ")
            self.assertIn("getting file", self.smbclient(server, "alice", "get secret -", share="common"))

    def test_the_account_manager_translates_names_and_ids_of_the_system(self):
        self.add_users("eve")
        with self.serving() as server:
            pipe = transport.SMBTransport("127.0.0.1", server.ready["smb_port"], r"\samr", "eve", "of-eve")
            rpc = pipe.get_dce_rpc()
            rpc.connect()
            rpc.bind(samr.MSRPC_UUID_SAMR)
            handle = samr.hSamrConnect(rpc)["ServerHandle"]
            for domain, sid, names, ids in [("Unix User", "S-1-22-1", ["bob", "dora@weft.test"], [5002, 70001]),
                                            ("Unix Group", "S-1-22-2", ["crew", "domain users@weft.test"], [6001, 70002])]:
                found = samr.hSamrLookupDomainInSamServer(rpc, handle, domain)["DomainId"]
                self.assertEqual(found.formatCanonical(), sid)
                opened = samr.hSamrOpenDomain(rpc, handle, domainId=found)["DomainHandle"]
                answer = samr.hSamrLookupNamesInDomain(rpc, opened, names)
                self.assertEqual([element["Data"] for element in answer["RelativeIds"]["Element"]], ids)
                answer = samr.hSamrLookupIdsInDomain(rpc, opened, ids)
                self.assertEqual([element["Data"] for element in answer["Names"]["Element"]], names)
                with self.assertRaises(samr.DCERPCSessionError):
                    samr.hSamrLookupNamesInDomain(rpc, opened, ["nobody-here"])
            rpc.disconnect()

    def test_accounts_and_groups_come_and_go(self):
        self.add_users("alice", "eve", "frank")
        with self.serving() as server:
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "frank", "ls"))
            self.assertIsNone(self.account(server))
            (self.work / "passwd").write_text(PASSWD + "frank:x:5010:6001::/:/bin/sh\n")
            self.assertIn("blocks", self.smbclient(server, "frank", "ls"))
            self.assertEqual(self.account(server), "5010")
            (self.work / "passwd").write_text(PASSWD)
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "frank", "ls"))
            # A group is looked up again by a reload.
            (self.work / "group").write_text(GROUP.replace("crew:x:6001", "crew:x:6100"))
            self.assertIn("blocks", self.smbclient(server, "alice", "ls", share="common"))
            self.weft("reload", "--state-dir", self.state)
            self.assertIn("blocks", self.smbclient(server, "alice", "ls"))
            (self.work / "group").write_text(GROUP.replace("crew:x:6001:alice,carol", "crew:x:6100:"))
            self.weft("reload", "--state-dir", self.state)
            self.assertIn("ACCESS_DENIED", self.smbclient(server, "alice", "ls"))

    def test_a_directory_service_that_fails_or_hangs_is_not_an_unknown_user(self):
        self.add_users("alice", "eve")
        with self.serving() as server:
            (self.work / "domain" / "fails").touch()
            # The files know alice, and only the domain could know eve.
            self.assertIn("blocks", self.smbclient(server, "alice", "ls"))
            self.assertIn("NT_STATUS_NO_LOGON_SERVERS", self.smbclient(server, "eve", "ls"))
            self.assertIn("NT_STATUS_LOGON_FAILURE", self.smbclient(server, "eve", "ls", password="wrong"))
            (self.work / "domain" / "fails").unlink()
            self.assertIn("blocks", self.smbclient(server, "eve", "ls"))

            line = ["smbclient", "-p", str(server.ready["smb_port"]), "//127.0.0.1/team", "-U"]
            session = subprocess.Popen([*line, "eve%of-eve"], stdin=subprocess.PIPE, text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
            self.addCleanup(session.stdout.close)
            until = time.monotonic() + 30
            while server.log_text().count("logged on user=eve") < 2:
                self.assertLess(time.monotonic(), until, server.log_text())
                time.sleep(0.05)
            (self.work / "domain" / "hangs").touch()
            waiting = [subprocess.Popen([*line, "eve%of-eve", "-t", "60", "-c", "ls"], stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.STDOUT) for _ in range(20)]
            begun = time.monotonic()
            # Everybody else is served meanwhile, on every core.
            self.assertIn("plan.txt", session.communicate("ls\n", timeout=60)[0])
            for _ in range(4):
                self.assertIn("plan.txt", self.smbclient(server, "alice", "ls"))
            self.assertLess(time.monotonic() - begun, 9)
            for client in waiting:
                self.assertIn("NT_STATUS_NO_LOGON_SERVERS", client.communicate(timeout=60)[0])
            # A stop does not wait for the directory service.
            begun = time.monotonic()
            server.stop()
            self.assertLess(time.monotonic() - begun, 20)
            (self.work / "domain" / "hangs").unlink()
            server.start()
            self.assertIn("blocks", self.smbclient(server, "eve", "ls"))


@unittest.skipUnless(can_mount(), "needs root and mount namespaces")
@unittest.skipUnless(test_kerberos.KDC, "no KDC: tests/interop/deps.sh installs it")
class Principals(Inside):
    """Users by ticket."""

    def setUp(self):
        super().setUp()
        realm = self.work / "realm"
        realm.mkdir()
        self.realm = test_kerberos.Realm(str(realm))
        self.addCleanup(self.realm.stop)
        for principal in ["alice", "carol", "dora", "root", "toor", "ghost", "HTTP/host", "ALICE", "1000", "straße"]:
            self.realm.admin(f"addprinc -pw {weft.PASSWORD} {principal}")
        self.enterContext(unittest.mock.patch.dict(os.environ, self.realm.environment))
        self.keytab = f'smb.keytab = "{realm}/keytab"\n'

    def ticket(self, server, principal, commands="ls", share="common"):
        self.realm.log_on(principal)
        ticket = ("--use-kerberos=required", f"--use-krb5-ccache={self.work}/realm/ccache")
        line = ["smbclient", f"//{test_kerberos.HOST}/{share}", "-I", "127.0.0.1", "-p", str(server.ready["smb_port"])]
        done = subprocess.run([*line, *ticket, "-c", commands], capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def admitted(self, server, principals):
        return {name for name in principals if "blocks" in self.ticket(server, name)}

    ALL = ["alice", "carol", "dora", "root", "toor", "ghost", "HTTP/host", "ALICE", "1000", "straße", "tester"]

    def test_principals_need_a_user_unless_the_configuration_says_otherwise(self):
        self.add_users("alice", "root")
        self.configure(self.keytab)
        with self.serving() as server:
            # Root is a user of the store, but nobody has named the principal.
            self.assertEqual(self.admitted(server, self.ALL), {"alice"})
            self.assertIn("the uid 0", server.log_text())
        self.configure(self.keytab + "kerberos.system_users = true\n")
        with self.serving() as server:
            self.assertEqual(self.admitted(server, self.ALL), {"alice", "carol", "1000", "straße"})
            # The groups of the system count for carol, who is no user of the store.
            self.assertIn("plan.txt", self.ticket(server, "carol", share="team"))
            self.assertIn("ACCESS_DENIED", self.ticket(server, "1000", share="team"))
            (self.work / "new").write_text("x")
            self.assertIn("putting file", self.ticket(server, "carol", f"put {self.work}/new of-carol"))
            # Who loses the account loses the session at a reload, and does not return.
            line = ["smbclient", f"//{test_kerberos.HOST}/common", "-I", "127.0.0.1", "-p", str(server.ready["smb_port"]),
                    "--use-kerberos=required", f"--use-krb5-ccache={self.work}/realm/ccache"]
            self.realm.log_on("carol")
            before = server.log_text().count("logged on user=carol")
            session = subprocess.Popen(line, stdin=subprocess.PIPE, text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
            self.addCleanup(session.stdout.close)
            until = time.monotonic() + 30
            while server.log_text().count("logged on user=carol") == before:
                self.assertLess(time.monotonic(), until, server.log_text())
                time.sleep(0.05)
            (self.work / "passwd").write_text(PASSWD.replace("carol:", "other:"))
            self.weft("reload", "--state-dir", self.state)
            self.assertIn("NT_STATUS_USER_SESSION_DELETED", session.communicate("ls\n", timeout=60)[0])
            self.assertEqual(self.admitted(server, ["carol"]), set())
            # Rights would take one for the other.
            self.add_users("strasse")
            self.assertEqual(self.admitted(server, ["straße"]), set())

    def test_a_map_names_the_users_of_principals(self):
        self.add_users("alice")
        self.configure(self.keytab + "[kerberos.map]\n" + "".join(f'"{name}@WEFT.TEST" = "{user}"\n' for name, user in [
            ("HTTP/host", "alice"), ("dora", "dora@weft.test"), ("toor", "root"), ("ghost", "nobody-here"), ("tester", "alice"),
        ]))
        with self.serving() as server:
            self.assertEqual(self.admitted(server, self.ALL), {"alice", "HTTP/host", "dora", "toor", "tester"})
            for principal, user, uid in [("HTTP/host", "alice", "5001"), ("dora", "dora@weft.test", "70001"),
                                         ("toor", "root", "0")]:
                self.ticket(server, principal)
                self.assertIn(f"logged on user={user} ", server.log_text())
                self.assertEqual(self.account(server), uid)
            self.assertIn("plan.txt", self.ticket(server, "dora", share="team"))
        for wrong, says in [('"alice" = "alice"', "write a principal with its realm"), ('"a@R" = 1', "write a string")]:
            self.configure(self.keytab + f"[kerberos.map]\n{wrong}\n")
            refused = self.weft("config", "check", self.work / "weft.toml", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(says, refused.stderr)
        for extra, says in [("kerberos.system_users = true\n", "needs a keytab"),
                            (self.keytab + "kerberos.system_users = true\nidentity.system_users = false\n",
                             "needs accounts of the system")]:
            self.configure(extra)
            refused = self.weft("config", "check", self.work / "weft.toml", check=False)
            self.assertIn(says, refused.stderr)


if __name__ == "__main__":
    unittest.main()
