//! Kerberos by the system's GSSAPI: tickets that clients show, checked against a keytab, and our own ticket, shown to a server.
//!
//! Spec: RFC 4120, RFC 4121 (the mechanism), RFC 2744 (the calls), [MS-KILE]. The library is MIT's `libgssapi_krb5.so.2`,
//! found when it is needed: Weft runs without it, and needs none of it to be built.
//! Owns: the keytab's credential, and contexts. One of the rooms of `unsafe`, because it calls C.
//! Does not: know SPNEGO or SMB, nor write tickets: there is a KDC for that. Nor map principals to users.

mod bindings;
mod context;
mod handle;
mod initiator;
mod library;
mod principal;

pub use context::{Context, Keytab, Step};
pub use initiator::{Initiator, Progress};
pub use principal::Principal;

/// Why a client was not let in, or nobody can be.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The library is not installed.
    #[error("{0}: Kerberos needs MIT's GSSAPI (on Debian: apt install libgssapi-krb5-2)")]
    Library(String),
    /// The library said no.
    #[error("{0}")]
    Gss(String),
    /// The library said something that it does not say.
    #[error("unexpected answer of GSSAPI: {0}")]
    Unexpected(&'static str),
}
