//! Describes a connection for the administrator: dialect, sessions, protection, and what its client has asked for.
//!
//! Spec: [MS-SMB2] 3.3.1.7, 3.3.1.8 (state), 3.3.4.21 (query server information). Payload is counted by the channel.
//! The request path keeps nothing for this purpose except two flags for queries that a client sends once.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_wire::smb2::Dialect;
use weft_wire::smb2::negotiate::{Capabilities, CipherId, SigningId};

use super::connection::Connection;
use super::session::{Session, Tree};

/// A connection with its server. Stays on its core; cloning shares it.
#[derive(Clone)]
pub struct Served(pub(super) Rc<Connection>);

/// A snapshot of a connection.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// "3.1.1"; `None` before NEGOTIATE.
    pub dialect: Option<String>,
    /// ClientGuid, in hex: the same on all connections of a client. `None` before NEGOTIATE and with 2.0.2.
    pub client: Option<String>,
    /// Whether the dialect supports SMB Direct: from 3.0 on.
    pub knows_rdma: bool,
    /// Whether the client announced multichannel, by which Windows discovers RDMA.
    pub multichannel: bool,
    /// Whether it has asked for the server's interfaces (FSCTL_QUERY_NETWORK_INTERFACE_INFO).
    pub asked_interfaces: bool,
    /// Whether it has asked for Weft's own list of endpoints (FSCTL_WEFT_ENDPOINTS).
    pub asked_endpoints: bool,
    /// Its sessions.
    pub sessions: Vec<SessionAbout>,
}

/// A snapshot of a session.
#[derive(Clone, Debug)]
pub struct SessionAbout {
    /// SessionId: the same on all channels of a session.
    pub id: u64,
    /// The user.
    pub user: String,
    /// The signing algorithm.
    pub signing: &'static str,
    /// Whether unsigned requests are refused.
    pub signing_required: bool,
    /// The cipher, if the whole session is encrypted.
    pub encryption: Option<&'static str>,
    /// Connections of the session.
    pub channels: usize,
    /// The connected shares, with a mark for those that require encryption themselves.
    pub shares: Vec<ShareAbout>,
    /// Number of open files and folders.
    pub opens: usize,
    /// Age of the session.
    pub age_seconds: u64,
}

/// A share that a session is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareAbout {
    /// Its name.
    pub name: String,
    /// Whether the share requires encryption, independent of the session.
    pub encrypted: bool,
}

impl Served {
    /// Serves the connection to its end.
    pub fn run(self) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            self.0.run().await;
        })
    }

    /// The current state.
    pub fn about(&self) -> About {
        let connection = &self.0;
        if !connection.is_negotiated() {
            return About::default();
        }
        let negotiated = connection.negotiated();
        let known = negotiated.dialect >= Dialect::V2_1 && negotiated.client_guid != [0; 16];
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let asked = connection.asked.get();
        About {
            dialect: Some(negotiated.dialect.to_string()),
            client: known.then(|| hex(&negotiated.client_guid)),
            knows_rdma: negotiated.dialect >= Dialect::V3_0,
            multichannel: negotiated.client_capabilities.contains(Capabilities::MULTI_CHANNEL),
            asked_interfaces: asked.interfaces,
            asked_endpoints: asked.endpoints,
            sessions: connection.sessions().iter().map(|session| SessionAbout::of(session)).collect(),
        }
    }
}

impl ShareAbout {
    /// The connected shares of a session by name, without IPC$.
    fn of(session: &Session) -> Vec<ShareAbout> {
        let about = |tree: &Arc<Tree>| {
            let share = tree.share.as_ref()?;
            Some(ShareAbout { name: share.name.to_string(), encrypted: share.rules.encrypted })
        };
        let mut shares: Vec<_> = session.trees().iter().filter_map(about).collect();
        shares.sort_by(|a, b| a.name.cmp(&b.name));
        shares.dedup();
        shares
    }
}

impl SessionAbout {
    fn of(session: &Session) -> SessionAbout {
        let cipher = session.profile.cipher.filter(|_| session.encrypt);
        SessionAbout {
            id: session.id,
            user: session.user.to_string(),
            signing: signing_name(session.profile.signing),
            signing_required: session.signing_required,
            encryption: cipher.map(cipher_name),
            channels: session.mailboxes().len(),
            shares: ShareAbout::of(session),
            opens: session.opens.len(),
            age_seconds: rt::now().since(session.met).as_secs(),
        }
    }
}

fn signing_name(signing: SigningId) -> &'static str {
    match signing {
        SigningId::AES_GMAC => "AES-128-GMAC",
        SigningId::AES_CMAC => "AES-128-CMAC",
        _ => "HMAC-SHA256",
    }
}

fn cipher_name(cipher: CipherId) -> &'static str {
    match cipher {
        CipherId::AES_128_GCM => "AES-128-GCM",
        CipherId::AES_256_GCM => "AES-256-GCM",
        CipherId::AES_128_CCM => "AES-128-CCM",
        _ => "AES-256-CCM",
    }
}
