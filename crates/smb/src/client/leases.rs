//! The leases of a session, which let its handles outlive its connections, and the answers to their breaks.
//!
//! Spec: [MS-SMB2] 3.2.4.3.8 (requesting), 3.2.5.19.2 (breaks). Owns the keys in use, each with its tree. Nothing is
//! cached under a lease: every break is acknowledged at once.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use weft_wire::smb2::oplock_break::{ACK_REQUIRED, Notification, Request};
use weft_wire::smb2::{Command, Guid};

use super::link::{Call, Policy, TreeConnect};

/// The lease keys, each with the tree of its file.
pub(super) struct Leases {
    policy: Policy,
    trees: RefCell<HashMap<Guid, TreeConnect>>,
}

impl Leases {
    /// None yet, in a session with this policy.
    pub fn new(policy: Policy) -> Leases {
        Leases { policy, trees: RefCell::default() }
    }

    /// Registers a key that is about to be requested.
    pub fn enter(&self, key: Guid, tree: TreeConnect) {
        self.trees.borrow_mut().insert(key, tree);
    }

    /// Removes a key.
    pub fn leave(&self, key: &Guid) {
        self.trees.borrow_mut().remove(key);
    }

    /// The acknowledgement of a break, if the lease is ours and the break requires one. Breaks are unsigned (3.3.4.7);
    /// the only effect of a forged one is that the server refuses the acknowledgement.
    pub fn broken(&self, message: &Bytes) -> Option<Call> {
        let Ok(Notification::Lease { flags, key, new, .. }) = Notification::parse(message) else {
            return None;
        };
        if flags & ACK_REQUIRED == 0 {
            return None;
        }
        let tree = *self.trees.borrow().get(&key)?;
        let request = Request::Lease { key, state: new };
        Some(Call::new(Command::OplockBreak, tree, self.policy, |out| request.emit(out)))
    }
}
