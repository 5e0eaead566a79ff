//! Why a client uses TCP although the server offers RDMA, and what to type: the most frequent question.
//!
//! [MS-SMB2] 3.2.4.1.2.2 (how a client finds RDMA), [MS-SMBD] 1.9 (ports), RFC 8267 section 6 (port of NFS/RDMA). The
//! advice is based only on what the server has seen of the client.

use std::collections::HashSet;

use super::{Advice, Connection, Seen};
use crate::default_port;
use crate::out::ShellCommand;

/// The RDMA services of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    /// An address at which clients reach it, in URL form.
    pub host: String,
    /// Port of SMB Direct, if served.
    pub smbd_port: Option<u16>,
    /// Port of NFS over RDMA.
    pub nfs_rdma_port: Option<u16>,
    /// RDMA providers.
    pub providers: Vec<String>,
}

fn advice(reason: impl Into<String>, remedy: impl Into<String>) -> Option<Advice> {
    Some(Advice { reason: reason.into(), remedy: remedy.into() })
}

/// The ids of the sessions that have an RDMA connection.
pub(crate) fn by_rdma(connections: &[Connection]) -> HashSet<String> {
    let with = connections.iter().filter(|connection| connection.provider.is_some());
    with.flat_map(|connection| connection.sessions.iter().map(|session| session.id.clone())).collect()
}

/// Whether RDMA carries the data of a connection's session on another of its connections: Windows logs on over TCP and
/// then adds RDMA channels.
pub(super) fn has_rdma_beside(connection: &Connection, by_rdma: &HashSet<String>) -> bool {
    connection.sessions.iter().any(|session| by_rdma.contains(&session.id))
}

/// Advice about an SMB connection on TCP; `by_rdma` are the sessions that use RDMA. `None` if nothing is wrong.
pub(crate) fn smb(offer: &Offer, connection: &Connection, by_rdma: &HashSet<String>) -> Option<Advice> {
    let seen: Seen = connection.seen;
    if connection.transport != "tcp" || connection.sessions.is_empty() || offer.providers.is_empty() {
        return None;
    }
    let port = offer.smbd_port?;
    if has_rdma_beside(connection, by_rdma) {
        return None;
    }
    let doctor = ShellCommand::new("weft doctor").operand(&offer.host);
    if !seen.knows_rdma {
        let dialect = connection.dialect.as_deref().unwrap_or("an old dialect");
        return advice(
            format!("the client chose SMB {dialect}, and SMB Direct needs 3.0"),
            "allow newer dialects on the client (smbclient: -m SMB3; Linux: mount -o vers=3.1.1)",
        );
    }
    if seen.asked_endpoints {
        return advice(
            format!(
                "Weft's client was told the RDMA port ({port}, {}) but could not reach it",
                offer.providers.join(" and ")
            ),
            format!("on the client: {doctor} shows the step that fails"),
        );
    }
    let wanted = default_port::SMB_DIRECT;
    if seen.asked_interfaces && port != wanted {
        return advice(
            format!("the client looks for SMB Direct at port {wanted}, but it is served at {port}"),
            format!("weft serve --smbd-port {wanted}"),
        );
    }
    if seen.asked_interfaces {
        return advice(
            "the client knows that RDMA is offered but does not use it: it has no RDMA device in that network, or \
             a firewall blocks it",
            format!("on Windows: Get-SmbClientNetworkInterface must show RDMA Capable; elsewhere: {doctor}"),
        );
    }
    let mount = match port {
        default_port::SMB_DIRECT | default_port::SMB => {
            "mount -t cifs -o rdma,vers=3.1.1 with an RDMA device".to_owned()
        }
        _ => format!(
            "mount -t cifs -o rdma,vers=3.1.1 with an RDMA device, after weft serve --smbd-port {wanted}"
        ),
    };
    // Samba's library also claims to support Multichannel, but never asks.
    let windows = match seen.multichannel {
        true => "; on Windows: Get-SmbClientConfiguration must show EnableMultiChannel",
        false => "",
    };
    advice(
        "the client did not ask for RDMA: smbclient and libraries never do, Linux needs an option, weft was told \
         --transport tcp",
        format!("weft cp (which chooses RDMA by itself), or {mount}{windows}"),
    )
}

/// Advice about an NFS connection on TCP.
pub(crate) fn nfs(offer: &Offer, connection: &Connection) -> Option<Advice> {
    if connection.transport != "tcp" || offer.providers.is_empty() {
        return None;
    }
    match offer.nfs_rdma_port {
        Some(port) => advice(
            "NFS uses the transport of its mount, and that was TCP",
            format!(
                "mount -t nfs -o rdma,port={port} with an RDMA device, or weft cp 'nfs://...?rdmaport={port}'"
            ),
        ),
        None => advice(
            "NFS is served only over TCP",
            "weft serve --nfs-rdma-port 20049, then mount -o rdma,port=20049",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Session;
    use super::*;

    fn offer() -> Offer {
        Offer {
            host: "10.0.0.1".into(),
            smbd_port: Some(5445),
            nfs_rdma_port: None,
            providers: vec!["iwarp".into(), "shm".into()],
        }
    }

    fn tcp() -> Connection {
        Connection {
            protocol: "smb".into(),
            transport: "tcp".into(),
            dialect: Some("3.1.1".into()),
            sessions: vec![Session { id: "a".into(), ..Session::default() }],
            ..Connection::default()
        }
    }

    fn said(offer: &Offer, seen: Seen) -> String {
        let advice = smb(offer, &Connection { seen, ..tcp() }, &by_rdma(&[tcp()])).unwrap();
        format!("{}: {}", advice.reason, advice.remedy)
    }

    #[test]
    fn each_way_to_stay_on_tcp_has_its_own_answer() {
        let knows = Seen { knows_rdma: true, ..Seen::default() };
        assert!(said(&offer(), Seen::default()).contains("SMB Direct needs 3.0"));
        assert!(said(&offer(), knows).contains("did not ask for RDMA"));
        let multichannel = Seen { multichannel: true, ..knows };
        assert!(said(&offer(), multichannel).contains("EnableMultiChannel"));
        let asked = Seen { asked_interfaces: true, ..multichannel };
        assert!(said(&offer(), asked).contains("firewall"));
        let elsewhere = Offer { smbd_port: Some(5555), ..offer() };
        assert!(said(&elsewhere, asked).contains("--smbd-port 5445"));
        let ours = Seen { asked_endpoints: true, ..knows };
        assert!(said(&elsewhere, ours).contains("weft doctor 10.0.0.1"));
    }

    #[test]
    fn nothing_is_said_where_nothing_is_amiss() {
        // RDMA carries the data of this session on another of its connections.
        let direct = Connection { transport: "smb-direct".into(), provider: Some("iwarp".into()), ..tcp() };
        let nobody = HashSet::new();
        assert_eq!(smb(&offer(), &tcp(), &by_rdma(&[tcp(), direct.clone()])), None);
        assert_eq!(smb(&offer(), &direct, &nobody), None);
        // Without RDMA service there is nothing to advise; nor before a log-on.
        let none = Offer { providers: Vec::new(), ..offer() };
        assert_eq!(smb(&none, &tcp(), &nobody), None);
        assert_eq!(smb(&offer(), &Connection { sessions: Vec::new(), ..tcp() }, &nobody), None);
        // Another session does not count for this one.
        let other = Connection { sessions: vec![Session { id: "b".into(), ..Session::default() }], ..direct };
        assert!(smb(&offer(), &tcp(), &by_rdma(&[other])).is_some());
    }

    #[test]
    fn nfs_on_tcp_is_told_the_mount_option() {
        let nfs_tcp = Connection { protocol: "nfs".into(), transport: "tcp".into(), ..Connection::default() };
        assert!(nfs(&offer(), &nfs_tcp).unwrap().remedy.contains("--nfs-rdma-port"));
        let with = Offer { nfs_rdma_port: Some(20049), ..offer() };
        assert!(nfs(&with, &nfs_tcp).unwrap().remedy.contains("rdma,port=20049"));
    }
}
