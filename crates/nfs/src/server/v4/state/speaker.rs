//! The client for which a request names states and clients.
//!
//! See RFC 8881 2.10.8.3 (who may use what a client made). Every lookup of a client, a session or a state checks its
//! result against this.

use super::{Lease, Session};
use crate::server::identity::Origin;

/// The client for which a request names states and clients.
#[derive(Clone, Copy)]
pub enum Speaker<'a> {
    /// This session's client only.
    Session(&'a Session),
    /// A client of minor version 0 that the request names, if it has this origin.
    Alone(&'a Origin),
}

impl Speaker<'_> {
    /// Whether it has a session.
    pub fn has_session(self) -> bool {
        matches!(self, Speaker::Session(_))
    }

    /// Whether the request may use a client or its states.
    pub fn may_use(self, lease: &Lease) -> bool {
        match self {
            Speaker::Session(session) => session.lease.client == lease.client,
            Speaker::Alone(origin) => !lease.owned.sessions && lease.owned.allows(origin),
        }
    }
}
