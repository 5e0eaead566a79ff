//! A client's connection options.
//!
//! Owns the secret, which is wiped on drop.

use std::ops::RangeInclusive;
use std::time::Duration;

use weft_machine::Pool;
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use weft_wire::smb2::{Dialect, Guid};

use crate::auth::Secret;

/// How strongly a protection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wish {
    /// If the server requires it.
    #[default]
    IfRequired,
    /// Always; if the server does not support it, the connection fails.
    Required,
}

/// The client's identity and preferences.
#[derive(Clone)]
pub struct Options {
    /// The server's name as the user gave it; it becomes part of share paths and of authentication.
    pub host: String,
    /// The expected ServerGuid ([MS-SMB2] 2.2.4): any other server is refused before the log-on. For connections whose
    /// address may belong to another server, as socket names may.
    pub server: Option<Guid>,
    /// User name.
    pub user: String,
    /// The password's hash.
    pub secret: Secret,
    /// Log on with a Kerberos ticket for `cifs/host` from the user's credential cache; `user`, `secret` and `domain`
    /// are then ignored.
    pub kerberos: bool,
    /// Domain; empty for a local user of the server.
    pub domain: String,
    /// Signing of all messages. TREE_CONNECT and negotiate validation are always signed. While it is in force, RDMA
    /// channels are used only if the server also signs RDMA payload (RDMA transforms).
    pub signing: Wish,
    /// Encryption of all messages. While it is in force, RDMA channels are used only if the server also encrypts RDMA
    /// payload.
    pub encryption: Wish,
    /// Dialects to offer. In 2.1 the server need not prove that it knows the password, and a changed NEGOTIATE goes
    /// unnoticed, so a man in the middle could force it. It is therefore offered only on request.
    pub dialects: RangeInclusive<Dialect>,
    /// Ciphers to offer, best first. AES-128-CCM is the only one in dialects 3.0 and 3.0.2.
    pub ciphers: Vec<CipherId>,
    /// Signing algorithms to offer, best first.
    pub signing_algorithms: Vec<SigningId>,
    /// Offer to sign and encrypt RDMA payload.
    pub rdma_transforms: bool,
    /// Offer compression, and request compressed responses, on connections without RDMA.
    pub compression: bool,
    /// The pool for payload buffers; for SMB Direct the pool that the channel registers.
    pub pool: Pool,
    /// Credits to hold: at most this many requests (of 64 KiB each) are in flight.
    pub credits: u16,
    /// READs and WRITEs longer than this use the RDMA channel if there is one.
    pub rdma_threshold: usize,
    /// How long the server may stay silent while it owes an answer.
    pub timeout: Duration,
    /// The same while the session has other connections, over which requests are then repeated.
    pub failover: Duration,
}

impl Options {
    /// Reasonable defaults for this user on this host.
    pub fn new(host: &str, user: &str, password: &str, pool: Pool) -> Options {
        Options {
            host: host.to_owned(),
            server: None,
            user: user.to_owned(),
            secret: Secret::password(password),
            kerberos: false,
            domain: String::new(),
            signing: Wish::IfRequired,
            encryption: Wish::IfRequired,
            dialects: Dialect::V3_0..=Dialect::V3_1_1,
            ciphers: vec![
                CipherId::AES_128_GCM,
                CipherId::AES_256_GCM,
                CipherId::AES_128_CCM,
                CipherId::AES_256_CCM,
            ],
            signing_algorithms: vec![SigningId::AES_GMAC, SigningId::AES_CMAC],
            rdma_transforms: true,
            compression: false,
            pool,
            credits: 512,
            rdma_threshold: 4096,
            timeout: Duration::from_secs(60),
            failover: Duration::from_secs(10),
        }
    }
}
