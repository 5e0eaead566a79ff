//! Requests that must not be carried out twice: a client that did not see the answer asks again, perhaps on another
//! connection, and gets the answer of the first time.
//!
//! Spec: RFC 1813 4.5 (duplicate request cache), RFC 7530 3.1.1. Owns: the last answers, as RPC bodies without header and
//! framing. Does not: know procedures; sessions have slots of their own (`v4::state::session`).
//!
//! A request is told from others by the peer's host, its xid, what it calls and all of its bytes: clients repeat xids, some
//! (pyNfsClient) within a second, and what only bears the number of another request must be carried out.

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

/// Which request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Question {
    host: u64,
    xid: u32,
    procedure: (u32, u32, u32),
    bytes: u64,
}

impl Question {
    /// The call from this host whose arguments are `taken` and what is next in `d`.
    pub fn of(host: &str, call: &Call, taken: &[u8], d: &Decoder) -> Question {
        let beside = d.peek_detached();
        let beside = &beside[..beside.len().min(QUESTION_BYTES)];
        let mut bytes = SipHasher24::new();
        for piece in [taken, d.peek(QUESTION_BYTES), beside] {
            bytes.write_usize(piece.len());
            bytes.write(piece);
        }
        bytes.write_usize(d.total());
        Question {
            host: SipHasher24::new().hash(host.as_bytes()),
            xid: call.xid,
            procedure: (call.program, call.version, call.procedure),
            bytes: bytes.finish(),
        }
    }
}

/// Where the answer of a request will be. Whoever holds it carries the request out, the others wait.
pub(super) type Place = Arc<Queue<Option<Bytes>>>;

#[derive(Default)]
struct Table {
    places: HashMap<Question, Place>,
    /// In the order in which they came; each once.
    order: VecDeque<Question>,
}

/// The cache.
#[derive(Default)]
pub(super) struct Duplicates {
    table: Mutex<Table>,
}

impl Duplicates {
    // Map and queue are changed together, and what is left when that panics is at worst kept for ever.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a request, new unless it has come before.
    pub fn place(&self, question: Question) -> Place {
        let mut table = self.table();
        if let Some(place) = table.places.get(&question) {
            return place.clone();
        }
        if table.order.len() >= MAX_KEPT
            && let Some(oldest) = table.order.pop_front()
        {
            table.places.remove(&oldest);
        }
        let place = Place::default();
        table.order.push_back(question);
        table.places.insert(question, place.clone());
        place
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
