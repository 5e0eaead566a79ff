//! What a client wants of a connection.
//!
//! Owns: the secret, wiped when dropped. Does not: parse command lines.

use std::ops::RangeInclusive;
use std::time::Duration;

use weft_machine::Pool;
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use weft_wire::smb2::{Dialect, Guid};

use crate::auth::Secret;

/// How much a protection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wish {
    /// When the server insists.
    #[default]
    IfRequired,
    /// In any case; without it the connection fails.
    Required,
}

/// Who we are and how we talk.
#[derive(Clone)]
pub struct Options {
    /// The server's name as the user gave it: part of share paths and of authentication.
    pub host: String,
    /// The server that has to answer, by its ServerGuid ([MS-SMB2] 2.2.4): any other is refused before anybody logs on. For
    /// connections whose address may belong to another server, as names of sockets do.
    pub server: Option<Guid>,
    /// User name.
    pub user: String,
    /// What proves the user.
    pub secret: Secret,
    /// Log on by a Kerberos ticket for `cifs/host` from the user's credential cache; then `user`, `secret` and `domain`
    /// count for nothing.
    pub kerberos: bool,
    /// Domain; empty for a user of the server itself.
    pub domain: String,
    /// Signing of all messages. TREE_CONNECT and negotiate validation are signed in any case. While it is in force RDMA
    /// channels are used only with a server that signs what moves by RDMA too (RDMA transforms).
    pub signing: Wish,
    /// Encryption of all messages. While it is in force RDMA channels are used only with a server that encrypts what
    /// moves by RDMA too.
    pub encryption: Wish,
    /// Dialects to offer. In 2.1 the server need not show that it knows the password, and a changed NEGOTIATE is not noticed:
    /// whoever is in between decides that it is spoken. So it is not among them unless somebody wants it.
    pub dialects: RangeInclusive<Dialect>,
    /// Ciphers to offer, best first. AES-128-CCM is the only one of dialects 3.0 and 3.0.2.
    pub ciphers: Vec<CipherId>,
    /// Signing algorithms to offer, best first.
    pub signing_algorithms: Vec<SigningId>,
    /// Offer to sign and encrypt what moves by RDMA.
    pub rdma_transforms: bool,
    /// Offer to compress, and ask for it, on connections without RDMA.
    pub compression: bool,
    /// Where payload buffers come from; for SMB Direct the pool that the channel registers from.
    pub pool: Pool,
    /// Credits to hold: at most this many requests (of 64 KiB each) are outstanding.
    pub credits: u16,
    /// READs and WRITEs longer than this use the RDMA channel where there is one.
    pub rdma_threshold: usize,
    /// How long the server may be silent while it owes an answer.
    pub timeout: Duration,
    /// The same while the session has other connections, by which requests then go again.
    pub failover: Duration,
}

impl Options {
    /// Reasonable choices for this user of this host.
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
