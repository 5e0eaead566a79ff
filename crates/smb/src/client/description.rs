//! What a user is told about a session or a share.

use std::fmt;

use weft_transport::Kind;
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use weft_wire::smb2::{Dialect, Guid};

/// The properties of a session, or of a share in it; its `Display` is one line for a user.
#[derive(Clone, Debug)]
pub struct Description {
    /// The server.
    pub peer: String,
    /// SMB over TCP or SMB Direct.
    pub transport: Kind,
    /// "tcp", "iwarp", "shm".
    pub medium: &'static str,
    /// Dialect.
    pub dialect: Dialect,
    /// How messages are signed, if they are.
    pub signing: Option<SigningId>,
    /// How messages are encrypted, if they are.
    pub cipher: Option<CipherId>,
    /// Whether it is the share that requires encryption; the session does not.
    pub by_share: bool,
    /// Whether large READs and WRITEs move by RDMA.
    pub rdma: bool,
    /// The server's identity.
    pub server_guid: Guid,
    /// Number of connections.
    pub connections: usize,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Kind::Smbd => "SMB Direct over ",
            _ => "",
        };
        write!(f, "SMB {} to {} by {transport}{}", self.dialect, self.peer, self.medium)?;
        match (self.cipher, self.signing) {
            (Some(cipher), _) if self.by_share => write!(f, ", encrypted for the share ({cipher:?})")?,
            (Some(cipher), _) => write!(f, ", encrypted ({cipher:?})")?,
            (None, Some(signing)) => write!(f, ", signed ({signing:?})")?,
            (None, None) => f.write_str(", neither signed nor encrypted")?,
        }
        f.write_str(if self.rdma { ", payload by RDMA" } else { ", payload in messages" })?;
        match self.connections {
            1 => Ok(()),
            n => write!(f, ", {n} connections"),
        }
    }
}
