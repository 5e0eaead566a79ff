//! Authentication inside SPNEGO: NTLMv2 and Kerberos, on both sides. NTLMv1, LM, guest and anonymous are refused.
//!
//! Spec: [MS-NLMP] 3, [MS-SPNG] 3, RFC 4178 3. Owns the users and their secrets, which are wiped on drop and never
//! printed. The caller passes time and nonces in. This module knows nothing of SMB.

mod acceptor;
mod delay;
mod initiator;
mod keys;
mod target;
mod ticketed;
mod tickets;

use std::collections::HashMap;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use weft_wire::{ntlm, spnego};
use zeroize::{ZeroizeOnDrop, Zeroizing};

pub use acceptor::{Acceptor, Login, Refused, Step};
pub use delay::{Crowded, Delays};
pub use initiator::{Credentials, Initiator, Nonces};
pub use target::{ServerNames, Target};
pub use ticketed::{TicketError, Ticketed};
pub use weft_kerberos::{BadPrincipal, Keytab, Principals};

/// The 16 bytes that both sides share after authentication; wiped when dropped.
pub type SessionKey = Zeroizing<[u8; 16]>;

/// A user's secret: the NT hash of the password. It is as good as the password for logging on, hence no Debug.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Secret([u8; 16]);

impl Secret {
    /// From a password.
    pub fn password(password: &str) -> Secret {
        Secret(keys::nt_hash(password))
    }

    /// From an NT hash (MD4 of the UTF-16 password), as `pdbedit -w` prints it.
    pub fn nt_hash(hash: [u8; 16]) -> Secret {
        Secret(hash)
    }

    /// The NT hash, to be sealed by whoever stores it.
    pub fn as_nt_hash(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Why authentication failed. The texts do not help to guess passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token that NTLM's specification does not allow.
    #[error("{0}")]
    Ntlm(#[from] ntlm::Malformed),
    /// A token that its specification does not allow.
    #[error("{0}")]
    Spnego(#[from] spnego::Malformed),
    /// A well-formed token that is not allowed here (wrong order, contradiction).
    #[error("unexpected authentication token: {0}")]
    Unexpected(&'static str),
    /// The two sides have no mechanism in common.
    #[error("no common mechanism: this side supports NTLMv2, and Kerberos if it has a keytab")]
    NoMechanism,
    /// Anonymous or guest.
    #[error("anonymous access is not allowed")]
    Anonymous,
    /// NTLMv1 or LM.
    #[error("the client answered with NTLMv1, which is not accepted")]
    Obsolete,
    /// Unknown user, wrong password, or wrong message integrity code.
    #[error("unknown user or wrong password")]
    LogonFailure,
    /// The response is bound to a TLS channel. SMB has none, so the response was made for another service.
    #[error("the client's response is bound to another service's TLS channel (NTLM relay)")]
    Bound,
    /// Kerberos rejected the ticket.
    #[error("the Kerberos ticket was not accepted")]
    Ticket,
    /// The ticket is valid, but its user is not one of ours.
    #[error("the Kerberos ticket is valid, but its user may not log on here")]
    Stranger,
    /// The ticket is valid, but only a principal that an administrator maps may become root.
    #[error("the Kerberos ticket is valid, but its user has the uid 0, and no line of kerberos.map names it")]
    Root,
    /// The ticket is valid, but the user, or the account that the directory service has found, is spelled otherwise.
    #[error(
        "the Kerberos ticket is valid, but the user of that name is spelled otherwise, and no line of kerberos.map names the principal"
    )]
    Spelling,
}

/// The users that may log on. Names are compared case-insensitively ([MS-NLMP] 3.2.5.1.2).
pub struct Users {
    by_name: HashMap<String, (Arc<str>, Secret)>,
    /// Replaces the secret of an unknown user, so that the work is the same.
    nobody: Secret,
}

impl Users {
    /// A table of these users; a later entry replaces an earlier one with the same name.
    pub fn new<'a>(users: impl IntoIterator<Item = (&'a str, Secret)>) -> Users {
        let by_name =
            users.into_iter().map(|(name, secret)| (keys::upper(name), (Arc::from(name), secret))).collect();
        Users { by_name, nobody: Secret([0; 16]) }
    }

    /// Whether a user of this name has the same secret in both tables, or in neither.
    pub fn agree(&self, other: &Users, name: &str) -> bool {
        match (self.find(name), other.find(name)) {
            (Some((_, one)), Some((_, another))) => one.0.ct_eq(&another.0).into(),
            (one, another) => one.is_none() && another.is_none(),
        }
    }

    /// Whether there is a user of this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&(Arc<str>, Secret)> {
        self.by_name.get(&keys::upper(name))
    }
}

#[cfg(test)]
mod tests;
