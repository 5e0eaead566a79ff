"""The named pipes: lists of shares and sessions, names for SIDs, accounts; by Samba's rpcclient and by impacket."""

import os
import tempfile
import unittest

from impacket.dcerpc.v5 import lsad, lsat, samr, srvs, transport, wkst
from impacket.dcerpc.v5.dtypes import NULL
from impacket.dcerpc.v5.rpcrt import DCERPCException
from impacket.smbconnection import SMBConnection

import test_tshark
import weft

MORE_DATA = 234


class RpcClient(unittest.TestCase):
    """Samba's client."""

    def ask(self, server, command, *options):
        return weft.run(
            "rpcclient", "-p", server.smb_port, "127.0.0.1", "-U", f"{weft.USER}%{weft.PASSWORD}", *options,
            "-c", command, check=False,
        ).stdout

    def test_shares_are_listed(self):
        with weft.serving("--min-dialect", "2.1") as server:
            for options in [(), ("-m", "SMB2_10"), ("--client-protection=encrypt",)]:
                with self.subTest(options=options):
                    said = weft.run(
                        "smbclient", "-L", "//127.0.0.1", "-p", server.smb_port, *options,
                        "-U", f"{weft.USER}%{weft.PASSWORD}",
                    ).stdout
                    self.assertRegex(said, r"data +Disk")
                    self.assertRegex(said, r"ram +Disk")
                    self.assertRegex(said, r"IPC\$ +IPC")
            # A user who may not log on gets no information.
            said = weft.run(
                "smbclient", "-N", "-L", "//127.0.0.1", "-p", server.smb_port, check=False
            )
            self.assertNotIn("Disk", said.stdout)

    def test_what_the_server_says_of_itself(self):
        with weft.serving() as server:
            self.assertRegex(self.ask(server, "srvinfo"), r"platform_id\s+:\s+500")
            for level in [1, 2, 502]:
                self.assertIn("netname: data", self.ask(server, f"netshareenum {level}"))
            self.assertIn("netname: ram", self.ask(server, "netsharegetinfo ram"))
            self.assertIn("NETNAMENOTFOUND", self.ask(server, "netsharegetinfo nothing"))
            self.assertIn("Received 1 entries", self.ask(server, "netsessenum"))

    def test_names_and_sids(self):
        with weft.serving() as server:
            said = self.ask(server, f"lookupnames {weft.USER} Everyone nobody-of-that-name")
            sid = said.split()[1]
            self.assertRegex(sid, r"^S-1-5-21-\d+-\d+-\d+-\d+$")
            self.assertIn("Everyone S-1-1-0 (Well-known Group: 5)", said)
            self.assertIn("UNKNOWN", said)
            said = self.ask(server, f"lookupsids {sid} S-1-5-18 S-1-22-1-2147480000 S-1-5-21-1-2-3-4")
            self.assertRegex(said, rf"{sid} \S+\\{weft.USER} \(1\)")
            self.assertIn(r"S-1-5-18 NT AUTHORITY\SYSTEM (5)", said)
            self.assertIn(r"S-1-22-1-2147480000 Unix User\2147480000 (1)", said)
            self.assertIn("S-1-5-21-1-2-3-4 *unknown*", said)

    def test_accounts(self):
        with weft.serving() as server:
            self.assertIn(f"user:[{weft.USER}]", self.ask(server, "enumdomusers"))
            self.assertRegex(self.ask(server, f"queryuser {weft.USER}"), rf"User Name\s+:\s+{weft.USER}")
            self.assertIn("name:[Builtin]", self.ask(server, "enumdomains"))
            self.assertIn(f"Account Name: {weft.USER}", self.ask(server, "getusername"))
            # There are no password rules: any password, without expiry.
            for command in ["getdompwinfo", "querydominfo 1"]:
                self.assertRegex(self.ask(server, command), r"(?i)min(imum |_)password(_| )length:?\s*:\s+0")
            self.assertIn("Force Logoff:\t-1", self.ask(server, "querydominfo 3"))
            self.assertIn("Group Name:\tNone", self.ask(server, "querygroup 513"))
            self.assertIn("attr:[0x7]", self.ask(server, "querygroupmem 513"))
            self.assertIn("NT_STATUS_NO_SUCH_GROUP", self.ask(server, "querygroup 514"))
            # SIDs stay the same after a restart.
            before = self.ask(server, f"lookupnames {weft.USER}")
            server.crash()
            server.start()
            self.assertEqual(self.ask(server, f"lookupnames {weft.USER}"), before)


class Impacket(unittest.TestCase):
    """A client that decodes each structure by itself."""

    def connect(self, server):
        connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.smb_port)
        connection.login(weft.USER, weft.PASSWORD)
        return connection

    def bind(self, connection, pipe, interface):
        rpc = transport.SMBTransport(
            "127.0.0.1", filename=pipe, smb_connection=connection
        ).get_dce_rpc()
        rpc.connect()
        rpc.bind(interface)
        return rpc

    def test_server_service(self):
        with weft.serving() as server:
            connection = self.connect(server)
            names = sorted(share["shi1_netname"][:-1] for share in connection.listShares())
            self.assertEqual(names, ["IPC$", "data", "ram"])
            rpc = self.bind(connection, "srvsvc", srvs.MSRPC_UUID_SRVS)
            for level in [0, 1, 2, 501, 502]:
                answer = srvs.hNetrShareEnum(rpc, level)["InfoStruct"]["ShareInfo"][f"Level{level}"]
                self.assertEqual(len(answer["Buffer"]), 3)
            for level in [0, 1, 2, 10, 502]:
                answer = srvs.hNetrSessionEnum(rpc, NULL, NULL, level)["InfoStruct"]["SessionInfo"]
                self.assertEqual(answer[f"Level{level}"]["Buffer"][0][f"sesi{level}_cname"], "127.0.0.1\0")
            for level in [100, 101, 102]:
                answer = srvs.hNetrServerGetInfo(rpc, level)["InfoStruct"][f"ServerInfo{level}"]
                self.assertGreater(len(answer[f"sv{level}_name"]), 1)
            self.assertGreater(srvs.hNetrRemoteTOD(rpc)["BufferPtr"]["tod_year"], 2025)
            with self.assertRaisesRegex(DCERPCException, "nca_s_op_rng_error"):
                srvs.hNetrFileEnum(rpc, NULL, NULL, 3)
            # The association survives a fault.
            self.assertEqual(srvs.hNetrShareGetInfo(rpc, "data\0", 1)["ErrorCode"], 0)

    def test_a_list_in_pages(self):
        with weft.serving() as server:
            rpc = self.bind(self.connect(server), "srvsvc", srvs.MSRPC_UUID_SRVS)
            names, resume, more = [], 0, True
            while more:
                ask = srvs.NetrShareEnum()
                ask["ServerName"], ask["PreferedMaximumLength"], ask["ResumeHandle"] = NULL, 1, resume
                ask["InfoStruct"]["Level"] = ask["InfoStruct"]["ShareInfo"]["tag"] = 1
                ask["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"] = NULL
                try:
                    answer, more = rpc.request(ask), False
                except srvs.DCERPCSessionError as error:
                    self.assertEqual(error.get_error_code(), MORE_DATA)
                    answer = error.get_packet()
                page = answer["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"]
                self.assertEqual(len(page), 1)
                names.append(page[0]["shi1_netname"][:-1])
                resume = answer["ResumeHandle"]
            self.assertEqual(names, ["data", "ram", "IPC$"])

    def test_other_services(self):
        with weft.serving() as server:
            connection = self.connect(server)
            rpc = self.bind(connection, "wkssvc", wkst.MSRPC_UUID_WKST)
            for level in [100, 101, 102]:
                wkst.hNetrWkstaGetInfo(rpc, level)
            rpc = self.bind(connection, "lsarpc", lsat.MSRPC_UUID_LSAT)
            policy = lsad.hLsarOpenPolicy2(rpc)["PolicyHandle"]
            for kind in [3, 5, 6, 12]:
                lsad.hLsarQueryInformationPolicy2(rpc, policy, kind)
            for lookup in [lsat.hLsarLookupNames, lsat.hLsarLookupNames2, lsat.hLsarLookupNames3]:
                self.assertEqual(lookup(rpc, policy, (weft.USER, "Everyone"))["MappedCount"], 2)
            # A call of several fragments, with as many in its answer.
            names = [weft.USER] * 900
            rpc.set_max_fragment_size(1000)
            self.assertEqual(lsat.hLsarLookupNames3(rpc, policy, names)["MappedCount"], 900)
            rpc = self.bind(connection, "samr", samr.MSRPC_UUID_SAMR)
            handle = samr.hSamrConnect(rpc)["ServerHandle"]
            domains = samr.hSamrEnumerateDomainsInSamServer(rpc, handle)["Buffer"]["Buffer"]
            sid = samr.hSamrLookupDomainInSamServer(rpc, handle, domains[0]["Name"])["DomainId"]
            domain = samr.hSamrOpenDomain(rpc, handle, domainId=sid)["DomainHandle"]
            user = samr.hSamrEnumerateUsersInDomain(rpc, domain)["Buffer"]["Buffer"][0]
            self.assertEqual(user["Name"], weft.USER)
            handle = samr.hSamrOpenUser(rpc, domain, userId=user["RelativeId"])["UserHandle"]
            for kind in [7, 8, 9, 16, 21]:
                samr.hSamrQueryInformationUser2(rpc, handle, kind)
            for kind in [*range(1, 10), 11, 12, 13]:
                samr.hSamrQueryInformationDomain2(rpc, domain, kind)
            of_user = samr.hSamrRidToSid(rpc, domain, user["RelativeId"])["Sid"].formatCanonical()
            self.assertEqual(of_user, f"{sid.formatCanonical()}-{user['RelativeId']}")
            group = samr.hSamrOpenGroup(rpc, domain, groupId=513)["GroupHandle"]
            for kind in range(1, 6):
                samr.hSamrQueryInformationGroup(rpc, group, kind)
            members = samr.hSamrGetMembersInGroup(rpc, group)["Members"]["Members"]
            self.assertEqual([member["Data"] for member in members], [user["RelativeId"]])
            with self.assertRaisesRegex(DCERPCException, "STATUS_NO_SUCH_ALIAS"):
                samr.hSamrOpenAlias(rpc, domain, aliasId=544)


@unittest.skipUnless(os.geteuid() == 0, "capturing on the loopback interface needs root")
class Dissected(unittest.TestCase):
    def test_tshark_finds_nothing_malformed(self):
        client, tshark = RpcClient(), test_tshark.Tshark()
        tshark.options = ("--immediate-mode",)

        def talk():
            for command in [
                "srvinfo", "netshareenum 502", f"lookupnames {weft.USER} nobody", "lookupsids S-1-1-0",
                f"queryuser {weft.USER}", "enumdomains", "lsaquery", "querydominfo 3", "querygroup 513", "getdompwinfo",
            ]:
                said = client.ask(server, command, "--client-protection=sign")
                self.assertNotEqual(said, "", command)

        with weft.serving() as server, tempfile.TemporaryDirectory() as work:
            tshark.decode = ("-d", f"tcp.port=={server.smb_port},nbss")
            path = tshark.capture([server.smb_port], work, talk)
            # tshark learns the interfaces from the binds.
            text = tshark.judge(path, "dcerpc", "srvsvc", "lsarpc", "samr")
            self.assertNotIn("Long frame", text)


if __name__ == "__main__":
    unittest.main()
