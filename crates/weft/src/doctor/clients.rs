//! Explains why a Windows or Linux client of this server stays on TCP, and what to do about it: the most frequent
//! question.
//!
//! [MS-SMB2] 3.2.4.1.2.2 (how a client finds RDMA), [MS-SMBD] 1.9 (port 5445 on iWARP), RFC 8267 section 6 (port
//! 20049). The judgement uses only what the examination has found from this host; some facts only the client can
//! tell.

use super::report::Report;
use crate::args::Service;
use crate::default_port::{SMB, SMB_DIRECT};

/// The findings of the examination.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Whether SMB over TCP is open at 445; `None` if not examined.
    pub smb_open: Option<bool>,
    /// The port at which RDMA answered over the network (not shared memory, which is local), and its service.
    pub iwarp: Option<(u16, Service)>,
    /// Whether the server announces an interface with RDMA to its SMB clients; `None` without a log-on.
    pub announced: Option<bool>,
    /// Whether the examined address is loopback, which no other host reaches.
    pub loopback: bool,
    /// Whether the connection works only if the client asks for no CRC.
    pub crc_refused: bool,
}

/// A client's prospects: obstacles visible from this host, and what to type.
struct Chance {
    /// Whether no obstacle is visible from this host.
    clear: bool,
    found: String,
    remedy: String,
}

/// Adds a step for each kind of client of the service.
pub(super) fn judge(report: &mut Report, facts: &Facts) {
    // If no RDMA is reachable, earlier steps have said why, and that affects every client.
    let Some((port, service)) = facts.iwarp else { return };
    if facts.loopback && service != Service::Ping {
        let how = "examine the address that they use: weft serve --listen ADDR, weft doctor ADDR";
        return report.skip("other clients", "other hosts cannot reach a loopback address", Some(how));
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

/// Windows starts on TCP, asks for the interfaces, and uses those with RDMA that its own adapter reaches.
fn windows(facts: &Facts, port: u16) -> Chance {
    if facts.crc_refused {
        return blocked(
            "their cards ask for a CRC, which the server refuses",
            "let the server use CRCs: weft serve without --crc asked",
        );
    }
    if port != SMB_DIRECT {
        return blocked(
            format!("they look for SMB Direct over iWARP at port {SMB_DIRECT}, but it is at {port}"),
            format!("weft serve --smbd-port {SMB_DIRECT}"),
        );
    }
    if facts.smb_open == Some(false) {
        return blocked(
            "they begin on TCP port 445 and learn of RDMA there, but it is closed",
            "weft serve --smb-port 445 (or redirect it), or on Windows 11 24H2 and Server 2025: net use \\\\HOST\\SHARE /TCPPORT:N",
        );
    }
    if facts.announced == Some(false) {
        return blocked(
            "the server announces no interface with RDMA, so they do not try",
            "weft serve --listen ADDR (an address that they can reach) --rdma iwarp (or rnic) --smbd-port 5445",
        );
    }
    let told = match facts.announced {
        Some(_) => "the server announces RDMA",
        None => "the server's announcements were not examined (--user NAME)",
    };
    Chance {
        clear: true,
        found: format!("no obstacle visible from this host; {told}"),
        remedy: [
            "if a client stays on TCP: it needs Server 2012 or later, or Windows 10 or 11 Enterprise, Education or Pro for Workstations",
            "it needs an adapter with iWARP, because Windows has no software iWARP; Get-NetAdapterRdma must show it Enabled",
            "Get-SmbClientNetworkInterface must show RDMA Capable, Get-SmbClientConfiguration EnableMultiChannel True",
            "Get-SmbMultichannelConnection shows the transport in use; the log SmbClient/Connectivity says why not",
        ]
        .join("\n"),
    }
}

/// Linux uses RDMA for SMB only if the mount asks for it.
fn linux_smb(facts: &Facts, port: u16) -> Chance {
    if facts.crc_refused {
        return blocked(
            "siw and cards may ask for a CRC, which the server refuses",
            "let the server use CRCs: weft serve without --crc asked; or rmmod siw; modprobe siw mpa_crc_required=0",
        );
    }
    // The kernel tries these two over RDMA, whatever port= says.
    if ![SMB_DIRECT, SMB].contains(&port) {
        return blocked(
            format!("they look for SMB Direct at ports {SMB_DIRECT} and {SMB}, but it is at {port}"),
            format!("weft serve --smbd-port {SMB_DIRECT}"),
        );
    }
    Chance {
        clear: true,
        found: "no obstacle visible from this host; they use RDMA only if the mount asks for it".into(),
        remedy: "mount -t cifs -o rdma,vers=3.1.1,user=NAME //HOST/SHARE DIR\nwithout an RDMA adapter, first: rdma link add siw0 type siw \
                 netdev DEV\na kernel without CONFIG_CIFS_SMB_DIRECT refuses \"rdma\"; dmesg says why"
            .into(),
    }
}

fn linux_nfs(port: u16) -> Chance {
    Chance {
        clear: true,
        found: "no obstacle visible from this host; they use RDMA only if the mount asks for it".into(),
        remedy: format!(
            "mount -t nfs -o rdma,port={port} HOST:/EXPORT DIR\nwithout an RDMA adapter, first: rdma link add siw0 type siw netdev DEV\n\
             grep proto= /proc/mounts shows rdma if it is used\nover RDMA their ports are not reserved: if the server runs as root, let \
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
        let linux = &steps(&Facts { iwarp: Some((5555, Service::Smb)), ..clear() })[1];
        assert_eq!((linux.0.as_str(), linux.1), ("Linux clients", Status::Warning));
        assert!(linux.2.contains("--smbd-port 5445"), "the kernel ignores port= over RDMA: {}", linux.2);
    }

    #[test]
    fn where_nothing_is_in_the_way_the_client_s_own_side_is_named() {
        let all = steps(&clear());
        assert!(all.iter().all(|(_, state, _)| *state == Status::Ok), "{all:?}");
        assert!(
            all[0].2.contains("Pro for Workstations") && all[0].2.contains("Get-SmbClientNetworkInterface")
        );
        assert!(all[1].2.contains("mount -t cifs -o rdma,vers=3.1.1,user=NAME"));
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
