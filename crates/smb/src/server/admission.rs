//! Admission: what a request has to pass before an operation sees it. There is no other way to an [`OpContext`].
//!
//! Spec: [MS-SMB2] 3.3.5.2.4 (signature), 3.3.5.2.9 (session), 3.3.5.2.11 (tree connect), in this order.
//! Owns: the proof. Each step takes the value that the step before gave, and only this file makes them:
//!
//! ```text
//! verify --> Verified --> in_session --> InSession --> in_tree --> Admitted --> OpContext::new
//!            NEGOTIATE,                  LOGOFF,                   TREE_DISCONNECT,
//!            ECHO                        TREE_CONNECT, CANCEL      all operations
//! ```
//!
//! Does not: count or log a refusal before [`Refused::tell`] is called, so that the READ that is carried out at once can leave a
//! request to the general path. Nor decrypt, count credits, or look at the rest of a compound (see [`super::frame`]). SESSION_SETUP
//! finds its session and its key in other ways (see [`super::session_setup`]).
//!
//! [`OpContext`]: super::context::OpContext

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::rt;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, Header, NtStatus};

use super::connection::Connection;
use super::session::{Binding, Session, Tree};
use crate::crypto::{Sender, SigningKey};

/// How a request was protected on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Not,
    /// By the key of its channel.
    Signed,
    /// Encrypted, by the keys of its session.
    Sealed,
}

/// A request that nobody has looked at.
pub(super) struct Incoming<'a> {
    pub connection: &'a Rc<Connection>,
    pub header: &'a Header,
    /// Header first, without the rest of its compound. An admitted request takes it; one that is refused leaves it.
    pub message: &'a mut Bytes,
}

/// A request whose sender has proven to have the key of the channel that it names, where that is required of it. It may name no
/// session.
pub(super) struct Verified<'a> {
    incoming: Incoming<'a>,
    /// This connection's channel of the session; `None` when it has none.
    binding: Option<Rc<Binding>>,
    protection: Protection,
}

/// A request of a session that goes on, protected as the session requires.
pub(super) struct InSession<'a> {
    incoming: Incoming<'a>,
    binding: Rc<Binding>,
    protection: Protection,
}

/// A request to a tree of its session, protected as the share requires: everything that an operation relies on.
pub(crate) struct Admitted {
    connection: Rc<Connection>,
    binding: Rc<Binding>,
    tree: Arc<Tree>,
    header: Header,
    message: Bytes,
    protection: Protection,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// NEGOTIATE is signed: there is no key yet.
    SignedNegotiate,
    /// It is signed, and its authentication, still in progress, has no key yet.
    NoKeyYet,
    /// The signature is not one of the channel's key.
    Forged,
    /// Not signed.
    NotSigned,
    /// Encrypted by another session than the one that it names.
    SealedByAnother,
    /// This connection is no channel of a session of this id, or the session has ended.
    NoSession,
    /// The client has to authenticate again.
    Expired,
    /// Not encrypted, in a session where it must be.
    SessionNotSealed,
    /// Names no tree.
    NoTreeId,
    /// The session has no tree of this id.
    NoTree,
    /// Not encrypted, to a share where it must be.
    ShareNotSealed,
}

impl Refused {
    /// Counts and logs it; the status of the answer.
    pub fn tell(self, connection: &Connection) -> NtStatus {
        match self {
            Refused::Forged => connection.forged(),
            Refused::NotSigned => {
                tracing::warn!(peer = %connection.peer, "refused: a request that is not signed");
            }
            Refused::SessionNotSealed => {
                tracing::warn!(peer = %connection.peer, "refused: a request that is not encrypted");
            }
            Refused::ShareNotSealed => {
                tracing::warn!(peer = %connection.peer, "refused: a request to an encrypted share that is not encrypted");
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

// The steps are always inlined, as are `OpContext::new` and `frame::context`: calls would move what each step gives, which costs a
// READ 200 instructions.

/// All steps at once, for a request that is alone in its message and came in the clear.
#[inline(always)]
pub(super) fn admit(
    connection: &Rc<Connection>,
    header: &Header,
    message: &Bytes,
) -> Result<Admitted, Refused> {
    let incoming = Incoming { connection, header, message: &mut message.clone() };
    incoming.verify(header.session_id, None)?.in_session()?.in_tree(header.tree_id())
}

impl<'a> Incoming<'a> {
    /// 3.3.5.2.4: the signature, where there is one or must be one. `session_id` is the header's, or in a related request that of
    /// the request before (3.3.5.2.7.2); `sealed` is the session whose keys the message was encrypted with.
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

    /// The key that verified its signature, when it came signed: the answer is signed by it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        let binding = self.binding.as_ref().filter(|_| self.protection == Protection::Signed)?;
        Some(&binding.signing)
    }

    /// 3.3.5.2.9: the session that it names, and what that requires.
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

/// What lets a client clean up goes on after its session has expired.
fn outlasts_session(command: Command) -> bool {
    matches!(command, Command::Logoff | Command::Close | Command::Lock | Command::Cancel)
}

impl<'a> InSession<'a> {
    /// The connection that it came by.
    pub fn connection(&self) -> &'a Rc<Connection> {
        self.incoming.connection
    }

    /// The session that it names.
    pub fn session(&self) -> &Arc<Session> {
        &self.binding.session
    }

    /// The whole request.
    pub fn message(&self) -> &Bytes {
        self.incoming.message
    }

    /// How it was protected on its way.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// 3.3.5.2.11: the tree that it is for, and what its share requires. In a related request the tree of the request before.
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
    /// The connection that it came by.
    pub fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// The session that it names.
    pub fn session(&self) -> &Arc<Session> {
        &self.binding.session
    }

    /// The tree that it names.
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

    /// Whether it came encrypted.
    pub fn encrypted(&self) -> bool {
        self.protection == Protection::Sealed
    }

    /// The key that verified its signature, when it came signed: the answer is signed by it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        (self.protection == Protection::Signed).then_some(&self.binding.signing)
    }

    /// The same request for a task of its own, which may outlast the connection.
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
