//! The duplicate request cache: a client that did not see a reply repeats its request, perhaps on another connection,
//! and gets the first reply.
//!
//! See RFC 1813 4.5 (duplicate request cache) and RFC 7530 3.1.1. It holds the latest replies, as RPC bodies without
//! header and framing. Sessions have slots of their own (`v4::state::session`).
//!
//! A request is identified by its caller (host, protection and kind of port, user), its xid, its procedure and all of
//! its bytes: clients reuse xids, some (pyNfsClient) within a second, and another request with the same xid must be
//! carried out. Hashes are keyed with a random key, so that nobody can construct a request that passes for another
//! client's.
//!
//! A client may repeat a request before the first has finished: a change is answered once it is on disk, which can
//! take longer than a connection lasts. So a request enters the cache before it changes anything, and a repetition
//! waits there for the reply.
//!
//! Cost: the bytes of a compound are hashed once, and only if a cached request has the same xid or the compound is to
//! be cached itself. Hashing a WRITE of 8 KiB costs ten times as much as copying it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::lock::{Mutex as Queue, OwnedMutexGuard};
use siphasher::sip::SipHasher24;
use weft_wire::xdr::Decoder;

use super::credential::Credential;
use super::header::Header;
use super::identity::Origin;
use super::v4::state::numbers::random_hasher;

/// Replies kept.
const MAX_KEPT: usize = 4096;
/// Entries examined to find one that can be evicted.
const MAX_LOOKED_AT: usize = 64;
/// Longest reply kept, in bytes; every procedure that changes something replies with less.
pub(super) const MAX_ANSWER: usize = 1024;
/// Most bytes of a request that identify it, and of the payload beside it. Every request that changes something and
/// has no sequence number is shorter; the longest carry two names (RENAME) or a path (SYMLINK).
const QUESTION_BYTES: usize = 8192;

/// The client's number for a request; two different requests may share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Number {
    asker: u64,
    xid: u32,
    procedure: (u32, u32, u32),
}

/// Hashes the identity under which a request is made. Leaves out what changes when it is repeated: the stamp and the
/// machine name.
pub(super) fn hash_credential(credential: &Credential, hasher: &mut SipHasher24) {
    match credential {
        Credential::Sys(sys) => {
            hasher.write_u32(1);
            hasher.write_u32(sys.uid);
            hasher.write_u32(sys.gid);
            hasher.write_usize(sys.gids().len());
            sys.gids().iter().for_each(|gid| hasher.write_u32(*gid));
        }
        Credential::Ticket(service, ticket) => {
            hasher.write_u32(6);
            // A reply that was encrypted is not repeated in plain text.
            hasher.write_u32(service.number());
            hasher.write(&ticket.principal.0);
        }
        Credential::None => hasher.write_u32(0),
    }
}

/// Identifies a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Question {
    number: Number,
    bytes: u64,
}

#[cfg(test)]
thread_local! {
    /// Number of requests whose bytes were hashed on this thread.
    pub(super) static HASHED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The future reply of a request. The task that holds it carries the request out; the others wait.
pub(super) type CacheEntry = Arc<Queue<Option<Bytes>>>;

#[derive(Default)]
struct Table {
    entries: HashMap<Question, CacheEntry>,
    /// In order of arrival, except that a request still running when it was the oldest is moved back; each appears
    /// once.
    order: VecDeque<Question>,
    /// How many of them have each number.
    numbers: HashMap<Number, usize>,
}

impl Table {
    /// Makes room for one more entry. Requests that are still running keep theirs, beyond the limit if necessary;
    /// connections bound their number.
    fn make_room(&mut self) {
        for _ in 0..MAX_LOOKED_AT {
            if self.order.len() < MAX_KEPT {
                return;
            }
            let Some(oldest) = self.order.pop_front() else { return };
            // An entry can be removed only with the table locked.
            if self.entries.get(&oldest).is_some_and(|entry| Arc::strong_count(entry) > 1) {
                self.order.push_back(oldest);
            } else {
                self.forget(oldest);
            }
        }
    }

    fn forget(&mut self, question: Question) {
        self.entries.remove(&question);
        if let Entry::Occupied(mut alike) = self.numbers.entry(question.number) {
            match alike.get().checked_sub(1).filter(|left| *left > 0) {
                Some(left) => *alike.get_mut() = left,
                None => drop(alike.remove()),
            }
        }
    }
}

/// The cache.
pub(super) struct Duplicates {
    hasher: SipHasher24,
    table: Mutex<Table>,
}

impl Default for Duplicates {
    fn default() -> Duplicates {
        Duplicates { hasher: random_hasher(), table: Mutex::default() }
    }
}

impl Duplicates {
    /// The number of a call from `from`.
    pub fn number(&self, from: &Origin, call: &Header, credential: &Credential) -> Number {
        let mut asker = self.hasher;
        asker.write(&from.bytes());
        hash_credential(credential, &mut asker);
        let procedure = (call.program, call.version, call.procedure);
        Number { asker: asker.finish(), xid: call.xid, procedure }
    }

    /// The call with this number whose arguments are `taken` and the remainder of `d`.
    pub fn question(&self, number: Number, taken: &[u8], d: &Decoder) -> Question {
        let beside = d.peek_detached();
        let beside = beside.split_at(beside.len().min(QUESTION_BYTES)).0;
        let mut bytes = self.hasher;
        for piece in [taken, d.peek(QUESTION_BYTES), beside] {
            bytes.write_usize(piece.len());
            bytes.write(piece);
        }
        bytes.write_usize(d.total());
        #[cfg(test)]
        HASHED.set(HASHED.get() + 1);
        Question { number, bytes: bytes.finish() }
    }

    // Maps and queue change together; after a panic between them, at worst an entry is never evicted.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a request, created if there is none.
    pub fn entry(&self, question: Question) -> CacheEntry {
        let mut table = self.table();
        if let Some(entry) = table.entries.get(&question) {
            return entry.clone();
        }
        table.make_room();
        let entry = CacheEntry::default();
        table.order.push_back(question);
        let alike = table.numbers.entry(question.number).or_default();
        *alike = alike.saturating_add(1);
        table.entries.insert(question, entry.clone());
        entry
    }

    /// Whether a request with this number is cached, perhaps a different one.
    pub fn knows(&self, number: Number) -> bool {
        self.table().numbers.contains_key(&number)
    }

    /// The entry of a cached request.
    fn cached_entry(&self, question: &Question) -> Option<CacheEntry> {
        self.table().entries.get(question).cloned()
    }
}

/// A request whose operations must be examined to learn whether it changes anything, until it is answered.
pub(super) struct Asked {
    number: Number,
    taken: Bytes,
    arguments: Decoder,
    question: Option<Question>,
    /// The entry for its reply. While it is held, a repetition waits.
    held: Option<OwnedMutexGuard<Option<Bytes>>>,
}

impl Asked {
    /// The call with this number whose arguments are `taken` and `arguments`.
    pub fn new(number: Number, taken: Bytes, arguments: Decoder) -> Asked {
        Asked { number, taken, arguments, question: None, held: None }
    }

    /// The reply to the same request, if it is cached. If that is still running, this waits for it.
    pub async fn answered(&mut self, duplicates: &Duplicates) -> Option<Bytes> {
        if !duplicates.knows(self.number) {
            return None;
        }
        let question = self.question(duplicates);
        self.hold(duplicates.cached_entry(&question)?).await
    }

    /// From now on, a repetition waits for this request's reply. `Some`: another one was first, and this is its
    /// reply.
    pub async fn begin(&mut self, duplicates: &Duplicates) -> Option<Bytes> {
        let question = self.question(duplicates);
        self.hold(duplicates.entry(question)).await
    }

    pub fn has_begun(&self) -> bool {
        self.held.is_some()
    }

    /// Caches the reply of a request that has begun.
    pub fn keep(self, answer: impl FnOnce() -> Bytes) {
        if let Some(mut held) = self.held {
            *held = Some(answer());
        }
    }

    async fn hold(&mut self, entry: CacheEntry) -> Option<Bytes> {
        let held = entry.lock_owned().await;
        let answer = held.clone();
        if answer.is_none() {
            self.held = Some(held);
        }
        answer
    }

    fn question(&mut self, duplicates: &Duplicates) -> Question {
        let Asked { number, taken, arguments, question, .. } = self;
        *question.get_or_insert_with(|| duplicates.question(*number, taken, arguments))
    }
}

#[cfg(test)]
mod tests {
    use weft_transport::{Peer, Security};
    use weft_wire::rpc::AuthSys;

    use super::*;

    fn call(xid: u32) -> Header {
        Header { xid, program: 100_003, version: 4, procedure: 1 }
    }

    fn user(uid: u32) -> Credential {
        Credential::Sys(AuthSys::new(Bytes::new(), uid, uid))
    }

    fn from(peer: &str) -> Origin {
        Origin::of(Peer::Tcp(peer.parse().unwrap()), None)
    }

    const HOST: &str = "192.0.2.1:700";

    #[test]
    fn a_number_is_known_as_long_as_an_answer_to_it_is_kept() {
        let duplicates = Duplicates::default();
        let number = |xid| duplicates.number(&from(HOST), &call(xid), &user(1));
        let question = |xid, bytes: &'static [u8]| {
            duplicates.question(number(xid), &[], &Decoder::new(Bytes::from_static(bytes)))
        };
        let known = |xid| duplicates.knows(number(xid));
        let keep = |question, answer| *duplicates.entry(question).try_lock().unwrap() = Some(answer);
        let answer = |question| duplicates.cached_entry(&question)?.try_lock()?.clone();
        assert!(!known(7));
        // Two requests with one number, and enough others to fill the cache.
        keep(question(7, b"one"), Bytes::from_static(b"1"));
        keep(question(7, b"two"), Bytes::from_static(b"2"));
        assert!(known(7) && !known(8));
        assert_eq!(answer(question(7, b"one")), Some(Bytes::from_static(b"1")));
        assert_eq!(answer(question(7, b"two")), Some(Bytes::from_static(b"2")));
        assert_eq!(answer(question(7, b"six")), None);
        let rest = 100..100 + MAX_KEPT as u32;
        for xid in rest.clone().take(MAX_KEPT - 1) {
            keep(question(xid, b"more"), Bytes::new());
        }
        assert_eq!(answer(question(7, b"one")), None);
        assert!(known(7), "the second of that number is still kept");
        keep(question(rest.end, b"more"), Bytes::new());
        assert!(!known(7) && known(100));
        assert_eq!(duplicates.table().numbers.len(), MAX_KEPT);
    }

    #[test]
    fn a_request_that_is_carried_out_keeps_its_place_however_many_come_meanwhile() {
        let duplicates = Duplicates::default();
        let question = |xid| {
            let number = duplicates.number(&from(HOST), &call(xid), &user(1));
            duplicates.question(number, &[], &Decoder::new(Bytes::new()))
        };
        let (first, all) = (2 * MAX_LOOKED_AT, MAX_KEPT + MAX_LOOKED_AT);
        let running: Vec<CacheEntry> = (0..first as u32).map(|xid| duplicates.entry(question(xid))).collect();
        for xid in first..2 * MAX_KEPT {
            duplicates.entry(question(xid as u32));
            assert!(duplicates.table().order.len() < all);
        }
        for (xid, entry) in (0..).zip(&running) {
            assert!(Arc::ptr_eq(entry, &duplicates.entry(question(xid))), "{xid}");
        }
        drop(running);
        for xid in 2 * MAX_KEPT..4 * MAX_KEPT {
            duplicates.entry(question(xid as u32));
        }
        let table = duplicates.table();
        assert!(!table.entries.contains_key(&question(0)));
        assert_eq!([table.order.len(), table.entries.len(), table.numbers.len()], [MAX_KEPT; 3]);
    }

    #[test]
    fn nobody_else_has_the_same_number() {
        let duplicates = Duplicates::default();
        let number = |peer, uid| duplicates.number(&from(peer), &call(7), &user(uid));
        let own = number(HOST, 1);
        assert_eq!(number("192.0.2.1:701", 1), own, "connected again");
        assert_ne!(number("192.0.2.2:700", 1), own);
        assert_ne!(number("192.0.2.1:40000", 1), own, "any user's port");
        assert_ne!(number(HOST, 2), own, "another user");
        let tls = Some(Security { holder: None });
        let tls = Origin::of(Peer::Tcp(HOST.parse().unwrap()), tls);
        assert_ne!(duplicates.number(&tls, &call(7), &user(1)), own);
        assert_ne!(
            Duplicates::default().number(&from(HOST), &call(7), &user(1)),
            own,
            "to be known beforehand"
        );
        let stamped = |stamp| {
            let mut sys = AuthSys::new(Bytes::new(), 1, 1);
            sys.stamp = stamp;
            duplicates.number(&from(HOST), &call(7), &Credential::Sys(sys))
        };
        assert_eq!(stamped(1), stamped(2), "Linux' changes when it asks again");
    }
}
