//! Kerberos through the system's GSSAPI: checks clients' tickets against a keytab, and presents our ticket to a server.
//!
//! Spec: RFC 4120, RFC 4121 (the mechanism), RFC 2744 (the calls), [MS-KILE]. The library is MIT's
//! `libgssapi_krb5.so.2`, loaded on first use: Weft builds and runs without it. Owns the keytab's credential and the
//! contexts, and has the rules by which a principal stands for a user. This crate contains `unsafe` because it calls C. It
//! knows neither SPNEGO nor SMB nor RPC, issues no tickets (the KDC does), and does not know which users exist.

mod bindings;
mod cause;
mod context;
mod handle;
mod initiator;
mod library;
mod principal;
mod principals;

pub use cause::Cause;
pub use context::{Context, Keytab, Step};
pub use initiator::{Initiator, Progress};
pub use principal::Principal;
pub use principals::{BadPrincipal, Claimed, Principals, is_spelled};

/// Why authentication failed or is impossible.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The library is not installed.
    #[error("{0}: Kerberos needs MIT's GSSAPI (on Debian: apt install libgssapi-krb5-2)")]
    Library(String),
    /// A GSSAPI call failed.
    #[error("{0}")]
    Gss(Failure),
    /// The library returned something that the specification does not allow.
    #[error("unexpected result from GSSAPI: {0}")]
    Unexpected(&'static str),
}

/// The status of a failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{said}")]
pub struct Failure {
    /// What the library says.
    said: String,
    /// The status of GSS-API (RFC 2744 3.9.1).
    pub major: u32,
    /// The status of the mechanism.
    pub minor: u32,
}

impl Failure {
    /// What is wrong.
    pub fn cause(&self) -> Cause {
        Cause::of(self.major, self.minor)
    }
}

/// A failure of our own, with GSS_S_FAILURE.
impl From<&str> for Failure {
    fn from(said: &str) -> Failure {
        Failure { said: said.to_owned(), major: 13 << 16, minor: 0 }
    }
}
