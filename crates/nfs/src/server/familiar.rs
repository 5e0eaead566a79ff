//! Callers and files that a connection knows from earlier calls.
//!
//! See RFC 5531 section 9, RFC 1813 3.3.6, 3.3.7 and RFC 8881 16.2. Two READs of one file by one caller are the same bytes between
//! the transaction id and the state id or the offset: program, procedure, credential, verifier, in version 4 the head of the
//! COMPOUND and its session, and the handle. Only the slot of a SEQUENCE, a hole in these bytes, differs. [`Familiar`] keeps them,
//! with what `dispatch` has made of them: whose call it is, by the rules of which shares, and which node it names. A call that
//! begins with them needs to be neither parsed nor looked up again (see `at_once`).
//!
//! Only what is decided by these bytes, by the connection and by the list of shares is kept. Everything else (attributes,
//! permissions, sessions, states, opens and caching rights of others) is asked anew for each call.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use siphasher::sip::SipHasher24;
use weft_machine::recorder::User;
use weft_store::{NodeId, Share};
use weft_wire::nfs4::{SessionId, Text};

use super::caller::Caller;
use super::peer_shares::PeerShares;

/// Maximum number of calls that a connection knows; each takes some 300 bytes.
const MAX_KNOWN: usize = 32;
/// Longest beginning that is kept: a credential with 16 groups and a long machine name.
const MAX_BYTES: usize = 512;
/// Every handle ends with a tag of this length, by which most beginnings differ. In version 4 one more word follows it.
const TAG: usize = 8;

/// What is known of a call.
pub(super) enum Procedure {
    /// READ of version 3.
    Read3,
    /// WRITE of version 3.
    Write3,
    /// COMPOUND.
    Compound(KnownCompound),
}

/// A COMPOUND of PUTFH and READ or WRITE, in version 4.1 or later behind a SEQUENCE; in the hole is what differs between SEQUENCEs
/// of one session.
pub(super) struct KnownCompound {
    pub minor: u32,
    pub tag: Text,
    /// Number of operations.
    pub count: u32,
    /// Its last known operation: READ or WRITE.
    pub operation: u32,
    /// The session, and the beginning of the hash of each of its requests by this caller (see `Questions`).
    pub session: Option<(SessionId, SipHasher24)>,
}

/// A caller and a file, of one procedure.
pub(super) struct Known {
    pub beginning: Beginning,
    pub procedure: Procedure,
    /// The shares as the caller uses them.
    pub shares: Rc<PeerShares>,
    pub share: Arc<Share>,
    pub node: NodeId,
    pub caller: Caller,
    /// For the flight recorder.
    pub user: User,
}

/// A call from its second word up to the first argument that differs between calls for one file, without the bytes in the hole.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Beginning<T = Box<[u8]>> {
    pub bytes: T,
    /// Within the bytes; empty if there is none.
    pub hole: Range<usize>,
}

impl<T: AsRef<[u8]>> Beginning<T> {
    /// The bytes before and behind the hole.
    fn pieces(&self) -> [&[u8]; 2] {
        let bytes = self.bytes.as_ref();
        [0..self.hole.start, self.hole.end..bytes.len()].map(|range| bytes.get(range).unwrap_or_default())
    }

    fn is_same<U: AsRef<[u8]>>(&self, other: &Beginning<U>) -> bool {
        self.hole == other.hole && self.pieces() == other.pieces()
    }

    /// What a call behind this beginning has in the hole.
    pub fn hole_of<'a>(&self, behind_xid: &'a [u8]) -> Option<&'a [u8]> {
        behind_xid.get(self.hole.clone())
    }
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
            let known = &known.beginning;
            let Some(bytes) = behind_xid.get(..known.bytes.len()) else { return false };
            let Range { start, end } = known.hole;
            bytes.last_chunk::<TAG>() == known.bytes.last_chunk()
                && bytes.get(end..) == known.bytes.get(end..)
                && bytes.get(..start) == known.bytes.get(..start)
        };
        self.known.borrow().iter().find(is_same).cloned()
    }

    /// Whether a call that begins so, and is not known, is worth knowing: it has come before.
    pub fn is_wanted(&self, beginning: &Beginning<&[u8]>) -> bool {
        if beginning.bytes.len() > MAX_BYTES {
            return false;
        }
        let mut hasher = self.hashing.build_hasher();
        beginning.pieces().into_iter().for_each(|piece| hasher.write(piece));
        let hash = hasher.finish();
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
    pub fn enter(&self, known: Known) {
        let new = Rc::new(known);
        let mut all = self.known.borrow_mut();
        if let Some(old) = all.iter_mut().find(|old| old.beginning.is_same(&new.beginning)) {
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
