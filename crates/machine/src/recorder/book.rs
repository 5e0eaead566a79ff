//! What each core has recorded: the operations that it follows, and the last slow ones that have ended.
//!
//! A book belongs to one thread. Others read it when somebody asks, also while the thread is blocked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use slab::Slab;

use super::flight::{Details, Flight, Known, Landed};
use super::hop::{Hop, PerHop};
use super::told;
use crate::meter::What;

/// Slow operations that each core keeps.
pub const MAX_RECORDS: usize = 256;
/// Bytes of the texts about them, on each core.
pub const MAX_RECORD_BYTES: usize = 64 << 10;
/// Operations under way that each core lists; further ones are timed, but not shown before they end.
pub const MAX_FOLLOWED: usize = 4096;

/// From this number of ticks on, an operation is slow.
pub(super) static THRESHOLD: AtomicU64 = AtomicU64::new(u64::MAX);
static BOOKS: Mutex<Vec<Arc<Book>>> = Mutex::new(Vec::new());

/// The records of one thread.
#[derive(Default)]
pub(super) struct Book {
    /// The operation that the thread works on, and since when; 0: none.
    works_on: AtomicU64,
    works_since: AtomicU64,
    followed: Mutex<Slab<Weak<Flight>>>,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    kept: VecDeque<Known>,
    bytes: usize,
}

impl Records {
    fn push(&mut self, known: Known) {
        self.bytes += known.details.bytes();
        self.kept.push_back(known);
        while self.kept.len() > MAX_RECORDS || self.bytes > MAX_RECORD_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.details.bytes();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete before anything could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    /// The book of a new thread. It stays when the thread ends, as what is in it does.
    pub fn enter() -> Arc<Book> {
        let mut books = lock(&BOOKS);
        // That of a thread which has ended goes on.
        let free = books.iter().find(|book| Arc::strong_count(book) == 1);
        let book = free.cloned().unwrap_or_default();
        if Arc::strong_count(&book) == 1 {
            books.push(book.clone());
        }
        book
    }

    /// The thread works on this now.
    #[inline]
    pub fn works_on(&self, what: What, since: u64) {
        self.works_on.store(what.word(), Ordering::Relaxed);
        self.works_since.store(since, Ordering::Relaxed);
    }

    /// The thread has learned what it works on.
    #[inline]
    pub fn works_on_what(&self, what: What) {
        self.works_on.store(what.word(), Ordering::Relaxed);
    }

    /// The thread works on no operation.
    #[inline]
    pub fn rests(&self) {
        self.works_since.store(0, Ordering::Relaxed);
    }

    /// Follows a flight.
    pub fn follow(self: &Arc<Self>, flight: &Arc<Flight>) {
        let mut followed = lock(&self.followed);
        let key = match followed.len() < MAX_FOLLOWED {
            true => followed.insert(Arc::downgrade(flight)),
            false => usize::MAX,
        };
        drop(followed);
        flight.entered(self.clone(), key);
    }

    fn look(&self, now: u64, into: &mut Vec<Known>) {
        let threshold = THRESHOLD.load(Ordering::Relaxed);
        into.extend(lock(&self.records).kept.iter().cloned());
        // Looked at without the lock, which the end of a flight takes.
        let followed: Vec<Arc<Flight>> =
            lock(&self.followed).iter().filter_map(|(_, flight)| flight.upgrade()).collect();
        let is_slow = |known: &Known| now.saturating_sub(known.received) >= threshold;
        let under_way: Vec<Known> =
            followed.iter().filter_map(|flight| flight.look(now)).filter(is_slow).collect();
        // An operation that has not waited yet is not followed, and may block its core.
        let since = self.works_since.load(Ordering::Relaxed);
        let blocks = since != 0 && now.saturating_sub(since) >= threshold;
        if blocks && !under_way.iter().any(|known| known.at == Some(Hop::Store) && known.received <= since) {
            let mut hops = PerHop::default();
            *hops.at(Hop::Store) = now.saturating_sub(since);
            into.push(Known {
                what: What::from_word(self.works_on.load(Ordering::Relaxed)),
                details: Details::default(),
                received: since,
                until: now,
                hops,
                bytes: 0,
                at: Some(Hop::Store),
            });
        }
        into.extend(under_way);
    }
}

impl Landed for Book {
    fn landed(&self, key: usize, known: Known, is_patient: bool) {
        lock(&self.followed).try_remove(key);
        let total = known.until.saturating_sub(known.received);
        let waited = if is_patient { known.hops.of(Hop::Peer) } else { 0 };
        if total.saturating_sub(waited) >= THRESHOLD.load(Ordering::Relaxed) {
            told::log(&known);
            lock(&self.records).push(known);
        }
    }
}

/// What all threads know.
pub(super) fn look(now: u64) -> Vec<Known> {
    let books: Vec<Arc<Book>> = lock(&BOOKS).clone();
    let mut all = Vec::new();
    books.iter().for_each(|book| book.look(now, &mut all));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: usize, received: u64) -> Known {
        Known {
            what: What::default(),
            details: Details { file: "x".repeat(text), ..Details::default() },
            received,
            until: received + 1,
            hops: PerHop::default(),
            bytes: 0,
            at: None,
        }
    }

    #[test]
    fn the_oldest_make_room_by_number_and_by_bytes() {
        let mut records = Records::default();
        for n in 0..3 * MAX_RECORDS as u64 {
            records.push(known(1, n));
        }
        assert_eq!((records.kept.len(), records.bytes), (MAX_RECORDS, MAX_RECORDS));
        assert_eq!(records.kept.front().map(|known| known.received), Some(2 * MAX_RECORDS as u64));
        for n in 0..MAX_RECORDS as u64 {
            records.push(known(600, n));
        }
        assert!(records.bytes <= MAX_RECORD_BYTES, "{}", records.bytes);
        assert_eq!(records.bytes, records.kept.len() * 600);
        assert_eq!(records.kept.back().map(|known| known.received), Some(MAX_RECORDS as u64 - 1));
    }
}
