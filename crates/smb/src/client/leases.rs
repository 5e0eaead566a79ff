//! The leases of a session, which let its handles outlive its connections, and the answers to their breaks.
//!
//! Spec: [MS-SMB2] 3.2.4.3.8 (requesting), 3.2.5.19.2 (breaks). Owns the keys in use, each with its tree. Nothing is
//! cached under a lease: every break is acknowledged at once, unless the lease has an owner (see `leased`).

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weft_wire::smb2::create_context::LeaseState;
use weft_wire::smb2::oplock_break::{ACK_REQUIRED, Notification, Request};
use weft_wire::smb2::{Command, Guid};

use super::link::{Call, Policy, TreeConnect};

/// The lease keys, each with the tree of its file.
pub(super) struct Leases {
    policy: Policy,
    known: RefCell<HashMap<Guid, Known>>,
}

struct Known {
    tree: TreeConnect,
    /// Of a lease whose owner acknowledges its breaks.
    owned: Option<Rc<Breaks>>,
}

/// A break of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseBreak {
    /// The rights so far.
    pub from: LeaseState,
    /// The rights that remain.
    pub to: LeaseState,
    /// Whether the server waits for [`super::Lease::acknowledge`]; otherwise the rights are already gone.
    pub acknowledge: bool,
}

/// The breaks that the owner of a lease has not taken.
#[derive(Default)]
pub(super) struct Breaks {
    arrived: RefCell<VecDeque<LeaseBreak>>,
    waiting: RefCell<Option<Waker>>,
}

impl Breaks {
    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        !self.arrived.borrow().is_empty()
    }

    /// Takes the first one.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<LeaseBreak> {
        match self.arrived.borrow_mut().pop_front() {
            Some(broken) => Poll::Ready(broken),
            None => {
                *self.waiting.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// One has arrived.
    fn push(&self, broken: LeaseBreak) {
        self.arrived.borrow_mut().push_back(broken);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

impl Leases {
    /// None yet, in a session with this policy.
    pub fn new(policy: Policy) -> Leases {
        Leases { policy, known: RefCell::default() }
    }

    /// Registers a key that is about to be requested.
    pub fn enter(&self, key: Guid, tree: TreeConnect) {
        self.known.borrow_mut().insert(key, Known { tree, owned: None });
    }

    /// The same for a lease whose owner acknowledges its breaks.
    pub fn enter_owned(&self, key: Guid, tree: TreeConnect, breaks: Rc<Breaks>) {
        self.known.borrow_mut().insert(key, Known { tree, owned: Some(breaks) });
    }

    /// Removes a key.
    pub fn leave(&self, key: &Guid) {
        self.known.borrow_mut().remove(key);
    }

    /// Tells the owner of a lease that it is broken. Without an owner, returns the acknowledgement, if the break requires
    /// one. Breaks are unsigned (3.3.4.7);
    /// the only effect of a forged one is that the server refuses the acknowledgement.
    pub fn broken(&self, message: &Bytes) -> Option<Call> {
        let Ok(Notification::Lease { flags, key, current, new, .. }) = Notification::parse(message) else {
            return None;
        };
        let known = self.known.borrow();
        let Known { tree, owned } = known.get(&key)?;
        let acknowledge = flags & ACK_REQUIRED != 0;
        if let Some(breaks) = owned {
            breaks.push(LeaseBreak { from: current, to: new, acknowledge });
            return None;
        }
        if !acknowledge {
            return None;
        }
        let request = Request::Lease { key, state: new };
        Some(Call::new(Command::OplockBreak, *tree, self.policy, |out| request.emit(out)))
    }
}
