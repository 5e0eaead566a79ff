//! Whether RDMA carries a connection's payload, in words: the transport in use, the reason for it, and what to type.
//!
//! [`advice`] knows why a client stayed on TCP; this file covers every connection, also those where
//! nothing is wrong.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::advice::{self, Offer};
use super::{Advice, Connection};
use crate::size::human;

/// Below this many bytes a connection says nothing about how its client moves payload.
const TELLING_BYTES: u64 = 1 << 20;

/// Whether RDMA carries the payload of a connection.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RdmaState {
    /// Most bytes travel by RDMA Read and Write, or nothing has been transferred yet.
    Used,
    /// The connection is RDMA's, but most bytes travel in messages.
    InMessages,
    /// On TCP; another connection of the same session uses RDMA.
    Beside,
    /// On TCP although the server offers RDMA.
    NotUsed,
    /// On TCP, and the server does not offer RDMA for this protocol.
    NotOffered,
    /// The protocol has no RDMA.
    NotPossible,
    /// Not known before the log-on.
    #[default]
    Unknown,
}

/// Whether RDMA is used, why, and what to do about it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Usage {
    /// Whether it is used.
    pub state: RdmaState,
    /// Why.
    pub reason: String,
    /// What to type, or to change, if RDMA is not used.
    pub remedy: Option<String>,
}

fn usage(state: RdmaState, reason: impl Into<String>) -> Usage {
    Usage { state, reason: reason.into(), remedy: None }
}

impl Usage {
    fn with(self, remedy: impl Into<String>) -> Usage {
        Usage { remedy: Some(remedy.into()), ..self }
    }
}

/// Explains a connection whose advice is known; `by_rdma` are the sessions that use RDMA.
pub(crate) fn of(offer: &Offer, connection: &Connection, by_rdma: &HashSet<String>) -> Usage {
    if let Some(Advice { reason, remedy }) = &connection.advice {
        return usage(RdmaState::NotUsed, reason.as_str()).with(remedy.as_str());
    }
    if let Some(provider) = &connection.provider {
        return on_rdma(connection, provider);
    }
    match (connection.protocol.as_str(), connection.transport.as_str()) {
        (_, "unix") => usage(RdmaState::NotPossible, "a Unix socket connects processes of this host"),
        ("nbd", _) => usage(RdmaState::NotPossible, "NBD has no RDMA").with(
            "serve the volume as a file, too: [shares.NAME] with volumes = true, over SMB Direct or NFS/RDMA",
        ),
        (_, "udp") => usage(RdmaState::NotPossible, "the client mounted NFS over UDP")
            .with("mount -t nfs -o rdma,port=20049 with an RDMA device"),
        ("smb", _) if offer.providers.is_empty() || offer.smbd_port.is_none() => not_offered(),
        ("smb", _) if connection.sessions.is_empty() => {
            usage(RdmaState::Unknown, "the client has not logged on yet")
        }
        ("smb", _) if advice::has_rdma_beside(connection, by_rdma) => usage(
            RdmaState::Beside,
            "SMB Multichannel: the session's data travels by RDMA on another connection, this one is for control",
        ),
        _ => not_offered(),
    }
}

fn not_offered() -> Usage {
    usage(RdmaState::NotOffered, "this server offers no RDMA")
        .with("weft serve --rdma iwarp (any network card) or --rdma rnic (an RDMA device)")
}

/// A connection of SMB Direct or RPC-over-RDMA.
fn on_rdma(connection: &Connection, provider: &str) -> Usage {
    let name = match connection.transport.as_str() {
        "smb-direct" => "SMB Direct",
        _ => "RPC-over-RDMA",
    };
    let (by_rdma, inline) = (connection.traffic.rdma_bytes(), connection.traffic.inline_bytes());
    let all = by_rdma.saturating_add(inline);
    if all < TELLING_BYTES {
        return usage(RdmaState::Used, format!("{name} over {provider}; little has been transferred yet"));
    }
    // In tenths of a percent, so that 99.96 % is not shown as all.
    let part = u128::from(by_rdma) * 1000 / u128::from(all);
    let percent = format!("{}.{} %", part / 10, part % 10);
    if by_rdma >= inline {
        return usage(
            RdmaState::Used,
            format!("{name} over {provider}: {percent} of {} by RDMA", human(all)),
        );
    }
    let why =
        format!("{name} over {provider}, but {} of {} travelled in messages", human(inline), human(all));
    let is_sealed =
        connection.sessions.iter().any(|s| s.encryption.is_some() || !s.encrypted_shares.is_empty());
    let is_signed = connection.sessions.iter().any(|session| session.signing_required);
    if is_sealed || is_signed {
        let how = if is_sealed { "encrypted" } else { "signed" };
        return usage(
            RdmaState::InMessages,
            format!("{why}: its messages are {how}, and such data goes by RDMA only to clients with RDMA transforms"),
        )
        .with(
            "use a client with SMB 3.1.1 RDMA transforms (Windows Server 2022, Windows 11, weft), or do not require \
             it in a network that you trust",
        );
    }
    usage(RdmaState::InMessages, format!("{why}: names, attributes and small READs and WRITEs do"))
}

#[cfg(test)]
mod tests {
    use super::super::{Session, Traffic};
    use super::*;

    fn offer() -> Offer {
        let providers = vec!["iwarp".into()];
        Offer { host: "nas".into(), smbd_port: Some(5445), nfs_rdma_port: Some(20049), providers }
    }

    fn connection(protocol: &str, transport: &str) -> Connection {
        let session = Session { id: "a".into(), ..Session::default() };
        let sessions = if protocol == "smb" { vec![session] } else { Vec::new() };
        let provider = ["smb-direct", "rpc-rdma"].contains(&transport).then(|| "iwarp".to_owned());
        let (protocol, transport) = (protocol.into(), transport.into());
        Connection { protocol, transport, provider, sessions, ..Connection::default() }
    }

    #[test]
    fn every_connection_is_explained() {
        let nobody = HashSet::new();
        let state = |connection: &Connection| of(&offer(), connection, &nobody).state;
        let none = Offer { providers: Vec::new(), ..offer() };
        assert_eq!(of(&none, &connection("smb", "tcp"), &nobody).state, RdmaState::NotOffered);
        assert_eq!(of(&none, &connection("nfs", "tcp"), &nobody).state, RdmaState::NotOffered);
        assert_eq!(state(&connection("nbd", "tcp")), RdmaState::NotPossible);
        assert_eq!(state(&connection("nbd", "unix")), RdmaState::NotPossible);
        assert_eq!(state(&connection("nfs", "udp")), RdmaState::NotPossible);
        let strange = Connection { sessions: Vec::new(), ..connection("smb", "tcp") };
        assert_eq!(state(&strange), RdmaState::Unknown);
        let beside = HashSet::from(["a".to_owned()]);
        assert_eq!(of(&offer(), &connection("smb", "tcp"), &beside).state, RdmaState::Beside);
        let advice = Some(Advice { reason: "why".into(), remedy: "what".into() });
        let told = of(&offer(), &Connection { advice, ..connection("smb", "tcp") }, &nobody);
        assert_eq!((told.state, told.reason.as_str()), (RdmaState::NotUsed, "why"));
        assert_eq!(told.remedy.as_deref(), Some("what"));
    }

    #[test]
    fn an_rdma_connection_tells_how_much_travels_by_rdma() {
        let with = |rdma, inline, transport: &str| {
            let traffic = Traffic { rdma_written_bytes: rdma, sent_bytes: inline, ..Traffic::default() };
            of(&offer(), &Connection { traffic, ..connection("smb", transport) }, &HashSet::new())
        };
        let idle = with(0, 500, "smb-direct");
        assert!(idle.state == RdmaState::Used && idle.reason.contains("little"), "{idle:?}");
        let busy = with(9_996_000, 4_000, "smb-direct");
        assert!(busy.state == RdmaState::Used && busy.reason.contains("99.9 %"), "{busy:?}");
        let small = with(100, 4 << 20, "rpc-rdma");
        assert!(small.state == RdmaState::InMessages && small.remedy.is_none(), "{small:?}");
        assert!(small.reason.starts_with("RPC-over-RDMA over iwarp"), "{small:?}");
    }

    #[test]
    fn protected_data_in_messages_names_the_missing_transform() {
        let traffic = Traffic { sent_bytes: 8 << 20, ..Traffic::default() };
        let mut connection = Connection { traffic, ..connection("smb", "smb-direct") };
        connection.sessions[0].encryption = Some("AES-128-GCM".into());
        let told = of(&offer(), &connection, &HashSet::new());
        assert!(told.state == RdmaState::InMessages && told.reason.contains("encrypted"), "{told:?}");
        assert!(told.remedy.unwrap().contains("RDMA transforms"));
        (connection.sessions[0].encryption, connection.sessions[0].signing_required) = (None, true);
        assert!(of(&offer(), &connection, &HashSet::new()).reason.contains("signed"));
    }
}
