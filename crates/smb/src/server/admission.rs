//! Admission: the checks that a request must pass before an operation runs. There is no other way to an [`OpContext`].
//!
//! Spec: [MS-SMB2] 3.3.5.2.4 (signature), 3.3.5.2.9 (session), 3.3.5.2.11 (tree connect), in this order. Each step
//! takes the value that the previous step returned, and only this file creates these values:
//!
//! ```text
//! verify --> Verified --> in_session --> InSession --> in_tree --> Admitted --> OpContext::new
//!            NEGOTIATE,                  LOGOFF,                   TREE_DISCONNECT,
//!            ECHO                        TREE_CONNECT, CANCEL      all operations
//! ```
//!
//! A refusal is counted and logged only when [`Refused::tell`] is called, so that the READ fast path can leave a
//! request to the general path. Decryption, credits and the other requests of a compound are in [`super::frame`].
//! SESSION_SETUP finds its session and key in other ways (see [`super::session_setup`]).
//!
//! [`OpContext`]: super::context::OpContext

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::rt;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, HEADER_LEN, Header, NtStatus, change_notify, lock};

use super::connection::Connection;
use super::session::{Binding, Session, Tree};
use crate::crypto::{Sender, SigningKey};

/// The longest request that is copied out of its buffer before it may wait.
const SHORT_BYTES: usize = 4096;

/// How a request was protected in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Not,
    /// With the key of its channel.
    Signed,
    /// Encrypted, with the keys of its session.
    Sealed,
}

/// An unchecked request.
pub(super) struct Incoming<'a> {
    pub connection: &'a Rc<Connection>,
    pub header: &'a Header,
    /// Header first, without the rest of its compound. An admitted request takes the message; a refused one leaves it.
    pub message: &'a mut Bytes,
}

/// A request whose sender has proven, where required, that it has the key of the channel. It may have no session.
pub(super) struct Verified<'a> {
    incoming: Incoming<'a>,
    /// This connection's channel of the session; `None` if there is none.
    binding: Option<Rc<Binding>>,
    protection: Protection,
}

/// A request of a live session, protected as the session requires.
pub(super) struct InSession<'a> {
    incoming: Incoming<'a>,
    binding: Rc<Binding>,
    protection: Protection,
}

/// A request in a tree of its session, protected as the share requires: everything that an operation relies on.
pub(crate) struct Admitted {
    connection: Rc<Connection>,
    binding: Rc<Binding>,
    tree: Arc<Tree>,
    header: Header,
    message: Bytes,
    protection: Protection,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// NEGOTIATE is signed, but there is no key yet.
    SignedNegotiate,
    /// The request is signed, but its authentication is still in progress and has no key yet.
    NoKeyYet,
    /// The signature was not made with the channel's key.
    Forged,
    /// The request is not signed.
    NotSigned,
    /// The request was encrypted for another session than the one that it names.
    SealedByAnother,
    /// This connection is not a channel of the session, or the session has ended.
    NoSession,
    /// The client has to authenticate again.
    Expired,
    /// The session requires encryption, but the request is not encrypted.
    SessionNotSealed,
    /// The request names no tree.
    NoTreeId,
    /// The session has no tree with this id.
    NoTree,
    /// The share requires encryption, but the request is not encrypted.
    ShareNotSealed,
}

impl Refused {
    /// Counts and logs the refusal; returns the status of the answer.
    pub fn tell(self, connection: &Connection) -> NtStatus {
        match self {
            Refused::Forged => connection.forged(),
            Refused::NotSigned => {
                tracing::warn!(peer = %connection.peer, "refused: an unsigned request");
            }
            Refused::SessionNotSealed => {
                tracing::warn!(peer = %connection.peer, "refused: an unencrypted request");
            }
            Refused::ShareNotSealed => {
                tracing::warn!(peer = %connection.peer, "refused: an unencrypted request to an encrypted share");
            }
            _ => {}
        }
        self.status()
    }

    fn status(self) -> NtStatus {
        match self {
            Refused::SignedNegotiate | Refused::NoTreeId => NtStatus::INVALID_PARAMETER,
            Refused::NoKeyYet => NtStatus::NOT_SUPPORTED,
            Refused::Forged
            | Refused::NotSigned
            | Refused::SealedByAnother
            | Refused::SessionNotSealed
            | Refused::ShareNotSealed => NtStatus::ACCESS_DENIED,
            Refused::NoSession => NtStatus::USER_SESSION_DELETED,
            Refused::Expired => NtStatus::NETWORK_SESSION_EXPIRED,
            Refused::NoTree => NtStatus::NETWORK_NAME_DELETED,
        }
    }
}

// The steps are always inlined, as are `OpContext::new` and `frame::context`: calls would copy the values between
// steps, which costs a READ 200 instructions.

/// All steps at once, for a request that is alone in its message. `sealed` is the session whose keys encrypted it.
#[inline(always)]
pub(super) fn admit(
    connection: &Rc<Connection>,
    header: &Header,
    message: &Bytes,
    sealed: Option<&Arc<Session>>,
) -> Result<Admitted, Refused> {
    let incoming = Incoming { connection, header, message: &mut message.clone() };
    incoming.verify(header.session_id, sealed)?.in_session()?.in_tree(header.tree_id())
}

impl<'a> Incoming<'a> {
    /// 3.3.5.2.4: checks the signature, if there is one or must be one. `session_id` is the header's, or in a related
    /// request the one of the previous request (3.3.5.2.7.2); `sealed` is the session whose keys encrypted the message.
    #[inline(always)]
    pub fn verify(self, session_id: u64, sealed: Option<&Arc<Session>>) -> Result<Verified<'a>, Refused> {
        let binding = self.connection.binding(session_id);
        let protection = self.protection(session_id, sealed, binding.as_deref())?;
        Ok(Verified { incoming: self, binding, protection })
    }

    #[inline(always)]
    fn protection(
        &self,
        session_id: u64,
        sealed: Option<&Arc<Session>>,
        binding: Option<&Binding>,
    ) -> Result<Protection, Refused> {
        if let Some(session) = sealed {
            return match binding {
                Some(binding) if !Arc::ptr_eq(&binding.session, session) => Err(Refused::SealedByAnother),
                _ => Ok(Protection::Sealed),
            };
        }
        match (self.header.flags.contains(Flags::SIGNED), binding) {
            (true, _) if self.header.command == Command::Negotiate => Err(Refused::SignedNegotiate),
            (true, Some(binding)) => match binding.signing.verify(Sender::Client, self.message) {
                true => Ok(Protection::Signed),
                false => Err(Refused::Forged),
            },
            (true, None) if self.connection.in_progress.borrow().contains_key(&session_id) => {
                Err(Refused::NoKeyYet)
            }
            (true, None) => Err(Refused::NoSession),
            (false, Some(binding)) if binding.must_sign => Err(Refused::NotSigned),
            (false, _) => Ok(Protection::Not),
        }
    }
}

impl<'a> Verified<'a> {
    /// The whole request.
    pub fn message(&self) -> &Bytes {
        self.incoming.message
    }

    /// The key that verified its signature, if it was signed; the answer is signed with it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        let binding = self.binding.as_ref().filter(|_| self.protection == Protection::Signed)?;
        Some(&binding.signing)
    }

    /// 3.3.5.2.9: finds its session and checks the session's requirements.
    #[inline(always)]
    pub fn in_session(self) -> Result<InSession<'a>, Refused> {
        let Verified { incoming, binding, protection } = self;
        let binding = binding.ok_or(Refused::NoSession)?;
        if binding.session.encrypt && protection != Protection::Sealed {
            return Err(Refused::SessionNotSealed);
        }
        if !outlasts_session(incoming.header.command) && binding.session.is_expired(rt::now) {
            return Err(Refused::Expired);
        }
        Ok(InSession { incoming, binding, protection })
    }
}

/// The bytes of a message that its command looks at. Requests that wait without limit have a length of their own, whatever a client appends.
fn used_len(command: Command, message: &[u8]) -> usize {
    let len = match command {
        Command::ChangeNotify => HEADER_LEN.saturating_add(change_notify::REQUEST_LEN),
        Command::Lock => HEADER_LEN.saturating_add(lock::MAX_REQUEST_LEN),
        _ => message.len(),
    };
    len.min(message.len())
}

/// Whether a command is allowed after the session has expired: those that let a client clean up.
fn outlasts_session(command: Command) -> bool {
    matches!(command, Command::Logoff | Command::Close | Command::Lock | Command::Cancel)
}

impl<'a> InSession<'a> {
    /// The connection that it arrived on.
    pub fn connection(&self) -> &'a Rc<Connection> {
        self.incoming.connection
    }

    /// Its session.
    pub fn session(&self) -> &Arc<Session> {
        &self.binding.session
    }

    /// The whole request.
    pub fn message(&self) -> &Bytes {
        self.incoming.message
    }

    /// How it was protected in transit.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// 3.3.5.2.11: finds its tree and checks the share's requirements. A related request uses the previous request's
    /// tree.
    #[inline(always)]
    pub fn in_tree(self, tree_id: Option<u32>) -> Result<Admitted, Refused> {
        let InSession { incoming, binding, protection } = self;
        let id = tree_id.ok_or(Refused::NoTreeId)?;
        let tree = binding.session.tree(id).ok_or(Refused::NoTree)?;
        if tree.encrypted() && protection != Protection::Sealed {
            return Err(Refused::ShareNotSealed);
        }
        Ok(Admitted {
            connection: incoming.connection.clone(),
            binding,
            tree,
            header: *incoming.header,
            message: std::mem::take(incoming.message),
            protection,
        })
    }
}

impl Admitted {
    /// The connection that it arrived on.
    pub fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Its session.
    pub fn session(&self) -> &Arc<Session> {
        &self.binding.session
    }

    /// Its tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The whole request; see [`OpContext::message`](super::context::OpContext::message).
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    /// Whether it was encrypted.
    pub fn encrypted(&self) -> bool {
        self.protection == Protection::Sealed
    }

    /// The key that verified its signature, if it was signed; the answer is signed with it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        (self.protection == Protection::Signed).then_some(&self.binding.signing)
    }

    /// Copies a short request out of the buffer that it was received into. That buffer holds many requests, and one of them may wait for
    /// hours: CHANGE_NOTIFY and LOCK wait for other clients, a READ for a disk. A WRITE stays, because its payload is not copied.
    pub fn leave_buffer(&mut self) {
        if self.header.command == Command::Write {
            return;
        }
        let used = used_len(self.header.command, &self.message);
        if let Some(used) = self.message.get(..used).filter(|used| used.len() <= SHORT_BYTES) {
            self.message = Bytes::copy_from_slice(used);
        }
    }

    /// The same request for a separate task, which may outlive the connection.
    pub fn detach(&self) -> Admitted {
        Admitted {
            connection: self.connection.clone(),
            binding: self.binding.clone(),
            tree: self.tree.clone(),
            header: self.header,
            message: self.message.clone(),
            protection: self.protection,
        }
    }
}
