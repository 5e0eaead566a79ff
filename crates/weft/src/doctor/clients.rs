//! Why a Windows or Linux client of this server stays on TCP, and what to do about it: the question that is asked most.
//!
//! Spec: [MS-SMB2] 3.2.4.1.2.2 (how a client finds RDMA), [MS-SMBD] 1.9 (port 5445 on iWARP), RFC 8267 section 6 (port 20049).
//! Does not: look; it judges what the examination has found from here, and says what only the client can tell.

use super::report::Report;
use crate::args::Service;

/// Port of SMB Direct on iWARP, where clients other than Weft's look for it.
const SMB_DIRECT: u16 = weft_transport::smbd::IWARP_PORT;

/// What the examination has found.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// SMB over TCP is open at 445; `None` where nobody looked.
    pub smb_open: Option<bool>,
    /// The port at which RDMA answered over the network (shared memory is not for others), and what is served there.
    pub iwarp: Option<(u16, Service)>,
    /// The server tells its SMB clients of an interface with RDMA; `None` where nobody logged on.
    pub announced: Option<bool>,
    /// It was asked at an address that no other host reaches.
    pub loopback: bool,
    /// The connection needs the client to ask for no CRC.
    pub crc_refused: bool,
}

/// A client's chance: what stands in its way as far as this host can see, and what to type.
struct Chance {
    /// Nothing that can be seen from here is in the way.
    clear: bool,
    found: String,
    remedy: String,
}

/// Adds a step for each kind of client that the service has.
pub(super) fn judge(report: &mut Report, facts: &Facts) {
    // Where no RDMA is reached the steps before have said why; that is in everybody's way.
    let Some((port, service)) = facts.iwarp else { return };
    if facts.loopback && service != Service::Ping {
        let how = "ask at the address that they use: weft serve --listen ADDR, weft doctor ADDR";
        return report.skip("other clients", "nobody else reaches a loopback address", Some(how));
    }
    let steps = match service {
        Service::Smb => {
            vec![("Windows clients", windows(facts, port)), ("Linux clients", linux_smb(facts, port))]
        }
        Service::Nfs => vec![("Linux clients", linux_nfs(port))],
        Service::Ping => vec![],
    };
    for (name, chance) in steps {
        if chance.clear {
            report.advise(name, chance.found, &chance.remedy);
        } else {
            report.warn(name, chance.found, &chance.remedy);
        }
    }
}

fn blocked(found: impl Into<String>, remedy: impl Into<String>) -> Chance {
    Chance { clear: false, found: found.into(), remedy: remedy.into() }
}

/// Windows begins at TCP, asks for the interfaces, and comes to those that have RDMA and that its own card reaches.
fn windows(facts: &Facts, port: u16) -> Chance {
    if facts.crc_refused {
        return blocked(
            "their cards ask for a CRC, which the server refuses",
            "let the server take CRCs: weft serve without --crc asked",
        );
    }
    if port != SMB_DIRECT {
        return blocked(
            format!("they look for SMB Direct over iWARP at port {SMB_DIRECT}, and it is at {port}"),
            format!("weft serve --smbd-port {SMB_DIRECT}"),
        );
    }
    if facts.smb_open == Some(false) {
        return blocked(
            "they begin at port 445 by TCP and learn of RDMA there, and it is closed",
            "weft serve --smb-port 445 (or redirect it), or on Windows 11 24H2 and Server 2025: net use \\\\HOST\\SHARE /TCPPORT:N",
        );
    }
    if facts.announced == Some(false) {
        return blocked(
            "the server tells them of no interface with RDMA, so they do not try",
            "weft serve --listen ADDR with the one address that they reach, and with --rdma iwarp or rnic",
        );
    }
    let told = match facts.announced {
        Some(_) => "the server tells them of RDMA",
        None => "what the server tells them was not looked at (--user NAME)",
    };
    Chance {
        clear: true,
        found: format!("nothing seen from here is in their way; {told}"),
        remedy: [
            "where one stays on TCP: Server 2012 or later, or Windows 10 or 11 Enterprise, Education or Pro for Workstations",
            "a card with iWARP in it: Windows has none in software; Get-NetAdapterRdma must show it Enabled",
            "Get-SmbClientNetworkInterface must show RDMA Capable, Get-SmbClientConfiguration EnableMultiChannel True",
            "Get-SmbMultichannelConnection shows what is used; the log SmbClient/Connectivity says why not",
        ]
        .join("\n"),
    }
}

/// Linux uses RDMA for SMB only where the mount says so.
fn linux_smb(facts: &Facts, port: u16) -> Chance {
    if facts.crc_refused {
        return blocked(
            "siw and cards may ask for a CRC, which the server refuses",
            "let the server take CRCs: weft serve without --crc asked; or rmmod siw; modprobe siw mpa_crc_required=0",
        );
    }
    Chance {
        clear: true,
        found: "nothing seen from here is in their way; they use RDMA only where the mount asks for it"
            .into(),
        remedy: format!(
            "mount -t cifs -o rdma,vers=3.1.1,port={port},user=NAME //HOST/SHARE DIR\nwithout a card first: rdma link add siw0 type siw \
             netdev DEV\na kernel without CONFIG_CIFS_SMB_DIRECT refuses \"rdma\"; dmesg says why"
        ),
    }
}

fn linux_nfs(port: u16) -> Chance {
    Chance {
        clear: true,
        found: "nothing seen from here is in their way; they use RDMA only where the mount asks for it"
            .into(),
        remedy: format!(
            "mount -t nfs -o rdma,port={port} HOST:/EXPORT DIR\nwithout a card first: rdma link add siw0 type siw netdev DEV\n\
             grep proto= /proc/mounts shows rdma where it is used\nover RDMA their ports are not reserved: an export of a server that is root lets \
             them in with weft serve --export NAME:insecure"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    fn steps(facts: &Facts) -> Vec<(String, Status, String)> {
        let mut report = Report::default();
        judge(&mut report, facts);
        let all = report.steps.into_iter();
        all.map(|s| (s.name, s.status, format!("{}: {}", s.found, s.remedy.unwrap_or_default()))).collect()
    }

    fn clear() -> Facts {
        Facts {
            smb_open: Some(true),
            iwarp: Some((SMB_DIRECT, Service::Smb)),
            announced: Some(true),
            ..Facts::default()
        }
    }

    #[test]
    fn each_way_to_stay_on_tcp_has_its_own_answer() {
        let windows = |facts: Facts| {
            let (name, state, text) = steps(&facts).remove(0);
            assert_eq!((name.as_str(), state), ("Windows clients", Status::Warning), "{text}");
            text
        };
        assert!(windows(Facts { iwarp: Some((5555, Service::Smb)), ..clear() }).contains("--smbd-port 5445"));
        assert!(windows(Facts { smb_open: Some(false), ..clear() }).contains("--smb-port 445"));
        assert!(windows(Facts { announced: Some(false), ..clear() }).contains("--listen ADDR"));
        assert!(windows(Facts { crc_refused: true, ..clear() }).contains("CRC"));
    }

    #[test]
    fn where_nothing_is_in_the_way_the_client_s_own_side_is_named() {
        let all = steps(&clear());
        assert!(all.iter().all(|(_, state, _)| *state == Status::Ok), "{all:?}");
        assert!(
            all[0].2.contains("Pro for Workstations") && all[0].2.contains("Get-SmbClientNetworkInterface")
        );
        assert!(all[1].2.contains("mount -t cifs -o rdma,vers=3.1.1,port=5445"));
        let nfs = steps(&Facts { iwarp: Some((20049, Service::Nfs)), ..Facts::default() });
        assert_eq!(nfs.len(), 1);
        assert!(nfs[0].2.contains("mount -t nfs -o rdma,port=20049"));
        assert!(nfs[0].2.contains("--export NAME:insecure"));
    }

    #[test]
    fn without_rdma_the_steps_before_have_said_why() {
        assert!(steps(&Facts::default()).is_empty());
    }
}
