//! The leases of a session: what lets its handles outlive its connections, and how they are given back.
//!
//! Spec: [MS-SMB2] 3.2.4.3.8 (requesting), 3.2.5.19.2 (breaks).
//! Owns: which keys are in use, and in which tree. Does not: cache anything by a lease: a break is acknowledged as it comes.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use weft_wire::smb2::oplock_break::{ACK_REQUIRED, Notification, Request};
use weft_wire::smb2::{Command, Guid};

use super::link::{Call, Protection};

/// Keys, each with the tree of its file and how requests in that are protected.
#[derive(Default)]
pub(super) struct Leases(RefCell<HashMap<Guid, (u32, Protection)>>);

impl Leases {
    /// A lease of this key is about to be asked for.
    pub fn enter(&self, key: Guid, tree: u32, protection: Protection) {
        self.0.borrow_mut().insert(key, (tree, protection));
    }

    /// It is no more.
    pub fn leave(&self, key: &Guid) {
        self.0.borrow_mut().remove(key);
    }

    /// What answers a break, if it is of ours and wants an answer. Breaks are not signed (3.3.4.7): what a forged one does is
    /// that the server refuses the answer.
    pub fn broken(&self, message: &Bytes) -> Option<Call> {
        let Ok(Notification::Lease { flags, key, new, .. }) = Notification::parse(message) else {
            return None;
        };
        if flags & ACK_REQUIRED == 0 {
            return None;
        }
        let (tree, protection) = *self.0.borrow().get(&key)?;
        let request = Request::Lease { key, state: new };
        Some(Call::new(Command::OplockBreak, tree, protection, |out| request.emit(out)))
    }
}
