//! What a connection is, for whoever runs the server: dialect, sessions, protection, and what its client has asked for.
//!
//! Spec: [MS-SMB2] 3.3.1.7, 3.3.1.8 (state), 3.3.4.21 (query server information).
//! Does not: count payload; the channel does. Nothing here is kept for this purpose on the way of a request, but for two
//! flags of questions that a client asks once.

use std::rc::Rc;

use weft_machine::rt;
use weft_wire::smb2::Dialect;
use weft_wire::smb2::negotiate::{Capabilities, CipherId, SigningId};

use super::connection::Connection;
use super::session::Session;

/// A connection that is served. Stays on its core; cloning shares it.
#[derive(Clone)]
pub struct Served(pub(super) Rc<Connection>);

/// A connection as it is now.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// "3.1.1"; `None` before NEGOTIATE.
    pub dialect: Option<String>,
    /// ClientGuid, in hex: the same on all connections of a client. `None` before NEGOTIATE and with 2.0.2.
    pub client: Option<String>,
    /// Whether the dialect has SMB Direct at all: from 3.0 on.
    pub knows_rdma: bool,
    /// Whether the client said that it makes several connections for a session, which is how Windows comes to RDMA.
    pub multichannel: bool,
    /// Whether it has asked for the server's interfaces (FSCTL_QUERY_NETWORK_INTERFACE_INFO).
    pub asked_interfaces: bool,
    /// Whether it has asked for Weft's own list of ways (FSCTL_WEFT_ENDPOINTS).
    pub asked_endpoints: bool,
    /// Its sessions.
    pub sessions: Vec<SessionAbout>,
}

/// A session as it is now.
#[derive(Clone, Debug)]
pub struct SessionAbout {
    /// SessionId: the same on all channels of a session.
    pub id: u64,
    /// Who logged on.
    pub user: String,
    /// The algorithm that signs.
    pub signing: &'static str,
    /// Whether requests that are not signed are refused.
    pub signing_required: bool,
    /// The cipher, where all of the session is encrypted.
    pub encryption: Option<&'static str>,
    /// Connections of the session.
    pub channels: usize,
    /// Shares that it is connected to, those that are encrypted by themselves told apart.
    pub shares: Vec<ShareAbout>,
    /// Files and folders that it has open.
    pub opens: usize,
    /// Since it was set up.
    pub age_seconds: u64,
}

/// A share that a session is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareAbout {
    /// Its name.
    pub name: String,
    /// Whether what belongs to it is encrypted whatever the session is.
    pub encrypted: bool,
}

impl Served {
    /// Serves it to its end.
    pub async fn run(self) {
        self.0.run().await;
    }

    /// What it is now.
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
            shares: session.shares(),
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

/// What a client has asked on a connection so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub interfaces: bool,
    pub endpoints: bool,
}
