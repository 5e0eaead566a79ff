//! Authentication inside SPNEGO: NTLMv2 and Kerberos, on both sides. NTLMv1, LM, guest and anonymous
//! are refused.
//!
//! Spec: [MS-NLMP] 3, [MS-SPNG] 3, RFC 4178 3.
//! Owns: the users and their secrets, wiped when dropped and never printed. Does not: ask a clock or a random number
//! generator: the caller passes time and nonces in. Does not know SMB.

mod acceptor;
mod delay;
mod initiator;
mod keys;
mod target;
mod ticketed;
mod tickets;

use std::collections::HashMap;
use std::sync::Arc;

use weft_wire::{ntlm, spnego};
use zeroize::{ZeroizeOnDrop, Zeroizing};

pub use acceptor::{Acceptor, Login, Refused, Step};
pub use delay::{Crowded, Delays};
pub use initiator::{Credentials, Initiator, Nonces};
pub use target::{ServerNames, Target};
pub use ticketed::{TicketError, Ticketed};
pub use weft_kerberos::Keytab;

/// The 16 bytes that both sides share after authentication; wiped when dropped.
pub type SessionKey = Zeroizing<[u8; 16]>;

/// What proves a user: the NT hash of the password. As good as the password for logging on, hence no Debug.
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
}

/// Why authentication did not succeed. The texts say nothing that helps to guess passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token that its specification does not allow.
    #[error("{0}")]
    Ntlm(#[from] ntlm::Malformed),
    /// A token that its specification does not allow.
    #[error("{0}")]
    Spnego(#[from] spnego::Malformed),
    /// A well-formed token that has no place here (order, contradiction).
    #[error("unexpected authentication token: {0}")]
    Unexpected(&'static str),
    /// Nothing that both sides speak.
    #[error("no common mechanism: NTLMv2 is spoken here, and Kerberos where there is a keytab")]
    NoMechanism,
    /// Anonymous or guest.
    #[error("anonymous access is not allowed")]
    Anonymous,
    /// NTLMv1 or LM.
    #[error("the client answered with NTLMv1, which is not accepted")]
    Obsolete,
    /// Unknown user, wrong password, or a message integrity code that does not fit.
    #[error("unknown user or wrong password")]
    LogonFailure,
    /// The response is bound to a TLS channel, which SMB has not: it was made for another service.
    #[error("the client's response is bound to a channel of another service (NTLM relay)")]
    Bound,
    /// Kerberos does not accept the ticket.
    #[error("the Kerberos ticket was not accepted")]
    Ticket,
    /// The ticket is valid, but its user is none of ours.
    #[error("the Kerberos ticket is of nobody who may log on here")]
    Stranger,
}

/// Who may log on. Names are compared without regard to case ([MS-NLMP] 3.2.5.1.2).
pub struct Users {
    by_name: HashMap<String, (Arc<str>, Secret)>,
    /// Stands in for the secret of a user who does not exist, so that the same work is done.
    nobody: Secret,
}

impl Users {
    /// A store of these users; of two with the same name the later counts.
    pub fn new<'a>(users: impl IntoIterator<Item = (&'a str, Secret)>) -> Users {
        let by_name =
            users.into_iter().map(|(name, secret)| (keys::upper(name), (Arc::from(name), secret))).collect();
        Users { by_name, nobody: Secret([0; 16]) }
    }

    fn find(&self, name: &str) -> Option<&(Arc<str>, Secret)> {
        self.by_name.get(&keys::upper(name))
    }
}

#[cfg(test)]
mod tests;
