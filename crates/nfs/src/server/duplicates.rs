//! Requests that must not be carried out twice: a client that did not see the answer asks again, perhaps on another
//! connection, and gets the answer of the first time.
//!
//! Spec: RFC 1813 4.5 (duplicate request cache), RFC 7530 3.1.1. Owns: the last answers, as RPC bodies without header and
//! framing. Does not: know procedures; sessions have slots of their own (`v4::state::session`).
//!
//! A request is told from others by the peer's host, its xid, what it calls and all of its bytes: clients repeat xids, some
//! (pyNfsClient) within a second, and what only bears the number of another request must be carried out.
//!
//! Cost: the bytes of a compound are looked at only when its number is that of an answer that is kept, or its own answer is to
//! be; hashing a WRITE of 8 KiB takes as long as copying it ten times over.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::lock::Mutex as Queue;
use siphasher::sip::SipHasher24;
use weft_wire::rpc::Call;
use weft_wire::xdr::Decoder;

/// Answers that are kept.
const MAX_KEPT: usize = 4096;
/// Longest answer that is kept, in bytes: everything that changes something answers with less.
pub(super) const MAX_ANSWER: usize = 1024;
/// Bytes of a request that tell it from another one, and as many of what lies beside it: more than anything has that
/// changes something without a number of its own, the longest being two names (RENAME) or a path (SYMLINK).
const QUESTION_BYTES: usize = 8192;

/// What a client calls a request: two requests that differ may share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Number {
    host: u64,
    xid: u32,
    procedure: (u32, u32, u32),
}

impl Number {
    /// Of a call from this host.
    pub fn of(host: &str, call: &Call) -> Number {
        Number {
            host: SipHasher24::new().hash(host.as_bytes()),
            xid: call.xid,
            procedure: (call.program, call.version, call.procedure),
        }
    }
}

/// Which request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Question {
    number: Number,
    bytes: u64,
}

impl Question {
    /// The call of this number whose arguments are `taken` and what is next in `d`.
    pub fn of(number: Number, taken: &[u8], d: &Decoder) -> Question {
        let beside = d.peek_detached();
        let beside = beside.split_at(beside.len().min(QUESTION_BYTES)).0;
        let mut bytes = SipHasher24::new();
        for piece in [taken, d.peek(QUESTION_BYTES), beside] {
            bytes.write_usize(piece.len());
            bytes.write(piece);
        }
        bytes.write_usize(d.total());
        #[cfg(test)]
        HASHED.set(HASHED.get() + 1);
        Question { number, bytes: bytes.finish() }
    }
}

#[cfg(test)]
thread_local! {
    /// Requests whose bytes were hashed on this thread.
    pub(super) static HASHED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Where the answer of a request will be. Whoever holds it carries the request out, the others wait.
pub(super) type Place = Arc<Queue<Option<Bytes>>>;

#[derive(Default)]
struct Table {
    places: HashMap<Question, Place>,
    /// In the order in which they came; each once.
    order: VecDeque<Question>,
    /// How many of them bear each number.
    numbers: HashMap<Number, usize>,
}

impl Table {
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        self.places.remove(&oldest);
        if let Entry::Occupied(mut alike) = self.numbers.entry(oldest.number) {
            match alike.get().checked_sub(1).filter(|left| *left > 0) {
                Some(left) => *alike.get_mut() = left,
                None => drop(alike.remove()),
            }
        }
    }
}

/// The cache.
#[derive(Default)]
pub(super) struct Duplicates {
    table: Mutex<Table>,
}

impl Duplicates {
    // Maps and queue are changed together, and what is left when that panics is at worst kept for ever.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a request, new unless it has come before.
    pub fn place(&self, question: Question) -> Place {
        let mut table = self.table();
        if let Some(place) = table.places.get(&question) {
            return place.clone();
        }
        if table.order.len() >= MAX_KEPT {
            table.forget_oldest();
        }
        let place = Place::default();
        table.order.push_back(question);
        let alike = table.numbers.entry(question.number).or_default();
        *alike = alike.saturating_add(1);
        table.places.insert(question, place.clone());
        place
    }

    /// Whether a request of this number has come before, perhaps another one.
    pub fn knows(&self, number: Number) -> bool {
        self.table().numbers.contains_key(&number)
    }

    /// The answer of a request that has come before and is answered.
    pub fn answer(&self, question: &Question) -> Option<Bytes> {
        let place = self.table().places.get(question).cloned()?;
        place.try_lock()?.clone()
    }

    /// Keeps an answer.
    pub fn keep(&self, question: Question, answer: Bytes) {
        if let Some(mut place) = self.place(question).try_lock() {
            *place = Some(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::rpc::Credential;

    use super::*;

    fn call(xid: u32) -> Call {
        Call { xid, program: 100_003, version: 4, procedure: 1, credential: Credential::None }
    }

    fn question(xid: u32, bytes: &'static [u8]) -> Question {
        Question::of(Number::of("host", &call(xid)), &[], &Decoder::new(Bytes::from_static(bytes)))
    }

    #[test]
    fn a_number_is_known_as_long_as_an_answer_to_it_is_kept() {
        let duplicates = Duplicates::default();
        let known = |xid| duplicates.knows(Number::of("host", &call(xid)));
        assert!(!known(7));
        // Two requests of one number, and as many others as there is room for.
        duplicates.keep(question(7, b"one"), Bytes::from_static(b"1"));
        duplicates.keep(question(7, b"two"), Bytes::from_static(b"2"));
        assert!(known(7) && !known(8) && !duplicates.knows(Number::of("other", &call(7))));
        assert_eq!(duplicates.answer(&question(7, b"one")), Some(Bytes::from_static(b"1")));
        assert_eq!(duplicates.answer(&question(7, b"two")), Some(Bytes::from_static(b"2")));
        assert_eq!(duplicates.answer(&question(7, b"six")), None);
        let rest = 100..100 + MAX_KEPT as u32;
        for xid in rest.clone().take(MAX_KEPT - 1) {
            duplicates.keep(question(xid, b"more"), Bytes::new());
        }
        assert_eq!(duplicates.answer(&question(7, b"one")), None);
        assert!(known(7), "the second of that number is still kept");
        duplicates.keep(question(rest.end, b"more"), Bytes::new());
        assert!(!known(7) && known(100));
        assert_eq!(duplicates.table().numbers.len(), MAX_KEPT);
    }
}
