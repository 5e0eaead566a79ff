//! In whose name a request names states and clients.
//!
//! Spec: RFC 8881 2.10.8.3 (who may use what a client made). Does not: find anything; whatever finds a client, a session or
//! a state asks this whether it is for the one who asks.

use super::{Lease, Session};
use crate::server::identity::Origin;

/// In whose name a request names states and clients.
#[derive(Clone, Copy)]
pub enum Speaker<'a> {
    /// This session's client, and no other.
    Session(&'a Session),
    /// A client of minor version 0 that it names, if it comes from there.
    Alone(&'a Origin),
}

impl Speaker<'_> {
    /// Whether it has a session.
    pub fn has_session(self) -> bool {
        matches!(self, Speaker::Session(_))
    }

    /// Whether a client, or a state of it, is one that the request may have to do with.
    pub fn may_use(self, lease: &Lease) -> bool {
        match self {
            Speaker::Session(session) => session.lease.client == lease.client,
            Speaker::Alone(origin) => !lease.owned.sessions && lease.owned.allows(origin),
        }
    }
}
