//! An authentication in progress on a connection.
//!
//! Spec: [MS-SMB2] 3.3.5.5. The round trips are in [`super::session_setup`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::{Time, rt};

use super::session::{Binding, Session};
use crate::auth::{Acceptor, Users};
use crate::crypto::Preauth;

/// An authentication between two round trips.
pub(super) struct InProgress {
    pub acceptor: Acceptor,
    /// The users when it began.
    pub users: Arc<Users>,
    /// 3.1.1: the preauthentication hash that the keys will be bound to.
    pub preauth: Rc<RefCell<Preauth>>,
    pub purpose: Purpose,
    pub begun: Time,
    /// One of the places that the connection has for authentications; freed on drop.
    pub _place: Rc<()>,
}

impl InProgress {
    /// Whether the client is still within the time limit.
    pub fn is_fresh(&self, limit: Duration) -> bool {
        rt::now().since(self.begun) <= limit
    }
}

/// The purpose of an authentication.
#[derive(Clone)]
pub(super) enum Purpose {
    /// A new session.
    New,
    /// Reauthentication of its session (3.3.5.5.2).
    Again(Rc<Binding>),
    /// Binding this connection to a session.
    Bind(Arc<Session>),
}

impl Purpose {
    /// Whether a round trip continues an authentication of the same purpose.
    pub fn is_alike(&self, other: &Purpose) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}
