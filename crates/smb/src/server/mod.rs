//! The SMB server: connections, sessions, trees, and the operations on them.
//!
//! Spec: [MS-SMB2] 3.3.
//! Owns: the users, the table of sessions, the limits. Does not: listen or accept (the caller hands over channels),
//! nor touch files (the store does).

mod connection;
mod context;
pub(crate) mod ops;
mod requests;
mod session;

use std::net::IpAddr;
use std::sync::Arc;

use weft_machine::Pool;
use weft_store::vfs::Share;

use crate::auth::Secret;

/// Somebody who may log on.
pub struct User {
    /// Name, compared without regard to case.
    pub name: String,
    /// What proves it.
    pub secret: Secret,
}

/// One network interface that clients may use for more channels ([MS-SMB2] 2.2.32.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Interface number.
    pub index: u32,
    /// Address.
    pub addr: IpAddr,
    /// Bits per second.
    pub link_speed_bps: u64,
    /// Whether SMB Direct is served on it.
    pub rdma: bool,
    /// Whether it spreads connections over queues.
    pub rss: bool,
}

/// Bounds on what peers can make the server keep.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions of one connection.
    pub sessions: usize,
    /// Trees of one session.
    pub trees: usize,
    /// Opens of one session.
    pub opens: usize,
    /// Credits that a connection can hold, thus requests that it can have outstanding.
    pub credits: u16,
    /// Requests in one compound.
    pub compound: usize,
    /// Largest READ, WRITE or transact in bytes; at most 8 MiB.
    pub max_io: u32,
    /// How long a connection may take to authenticate.
    pub authenticate_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 64,
            trees: 256,
            opens: 16_384,
            credits: 512,
            compound: 64,
            max_io: 8 << 20,
            authenticate_ms: 30_000,
        }
    }
}

/// What a server is made of.
pub struct Config {
    /// Identifies this server to clients; stable over restarts where possible.
    pub server_guid: [u8; 16],
    /// NetBIOS-like name, shown in the NTLM challenge.
    pub name: String,
    /// What is served.
    pub shares: Vec<Share>,
    /// Who may log on.
    pub users: Vec<User>,
    /// Refuse sessions that do not sign.
    pub require_signing: bool,
    /// Refuse sessions that do not encrypt.
    pub require_encryption: bool,
    /// Answer to FSCTL_QUERY_NETWORK_INTERFACE_INFO.
    pub interfaces: Vec<NetworkInterface>,
    /// Answer to FSCTL_WEFT_ENDPOINTS: UTF-8 lines.
    pub endpoints: String,
    /// Payload buffers.
    pub pool: Pool,
    /// Bounds.
    pub limits: Limits,
}

/// A server, shared by all cores.
pub struct Server {
    pub(crate) config: Config,
}
