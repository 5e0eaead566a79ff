//! Callers and files that a connection knows from earlier calls of version 3.
//!
//! See RFC 5531 section 9 and RFC 1813 3.3.6, 3.3.7. Two READs of one file by one caller are the same bytes between the
//! transaction id and the offset: program, procedure, credential, verifier and handle. [`Familiar`] keeps these bytes, with what
//! `dispatch` has made of them: whose call it is, by the rules of which shares, and which node it names. A call that begins with
//! them needs to be neither parsed nor looked up again (see `at_once`).
//!
//! Only what is decided by these bytes, by the connection and by the list of shares is kept. Everything else (attributes,
//! permissions, opens and caching rights of others) is asked anew for each call.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use weft_machine::recorder::User;
use weft_store::{NodeId, Share};

use super::caller::Caller;
use super::peer_shares::PeerShares;

/// Maximum number of calls that a connection knows; each takes some 300 bytes.
const MAX_KNOWN: usize = 32;
/// Longest beginning that is kept: a credential with 16 groups and a long machine name.
const MAX_BYTES: usize = 512;
/// Every handle ends with a tag of this length, by which most beginnings differ.
const TAG: usize = 8;

/// A caller and a file, of one procedure.
pub(super) struct Known {
    /// The call from its second word up to the offset.
    pub beginning: Box<[u8]>,
    pub procedure: u32,
    /// The shares as the caller uses them.
    pub shares: Rc<PeerShares>,
    pub share: Arc<Share>,
    pub node: NodeId,
    pub caller: Caller,
    /// For the flight recorder.
    pub user: User,
}

/// What a connection knows.
#[derive(Default)]
pub(super) struct Familiar {
    known: RefCell<Vec<Rc<Known>>>,
    /// Where the next one is entered, once there is no more room.
    next: Cell<usize>,
    /// Hashes of the last calls that were not known. A call is entered when it comes again: most files are read by one call, and
    /// what returns only after more others than there is room for would always push out what returns before it.
    seen: Cell<[u64; MAX_KNOWN]>,
    seen_next: Cell<usize>,
    hashing: RandomState,
}

impl Familiar {
    /// What is known of a call.
    #[inline]
    pub fn find(&self, message: &[u8]) -> Option<Rc<Known>> {
        let behind_xid = message.get(4..)?;
        let is_same = |known: &&Rc<Known>| {
            let Some(beginning) = behind_xid.get(..known.beginning.len()) else { return false };
            beginning.last_chunk::<TAG>() == known.beginning.last_chunk() && *beginning == *known.beginning
        };
        self.known.borrow().iter().find(is_same).cloned()
    }

    /// Whether a call that begins so (from its second word up to the offset), and is not known, is worth knowing: it has come
    /// before.
    pub fn is_wanted(&self, beginning: &[u8]) -> bool {
        if beginning.len() > MAX_BYTES {
            return false;
        }
        let hash = self.hashing.hash_one(beginning);
        let mut seen = self.seen.get();
        if seen.contains(&hash) {
            return true;
        }
        let at = self.seen_next.get();
        if let Some(place) = seen.get_mut(at) {
            *place = hash;
        }
        self.seen.set(seen);
        self.seen_next.set(at.wrapping_add(1) % MAX_KNOWN);
        false
    }

    /// Enters a call. It replaces one that begins in the same way.
    pub fn enter(&self, beginning: &[u8], known: impl FnOnce(Box<[u8]>) -> Known) {
        let new = Rc::new(known(beginning.into()));
        let mut all = self.known.borrow_mut();
        if let Some(old) = all.iter_mut().find(|old| *old.beginning == *beginning) {
            *old = new;
        } else if all.len() < MAX_KNOWN {
            all.push(new);
        } else if let Some(old) = all.get_mut(self.next.get()) {
            *old = new;
            self.next.set(self.next.get().wrapping_add(1) % MAX_KNOWN);
        }
    }

    /// Forgets everything: it would keep shares that are no longer served.
    pub fn clear(&self) {
        self.known.borrow_mut().clear();
    }
}
