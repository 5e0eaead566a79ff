//! Directory entries that were fetched ahead of a client's requests.
//!
//! Spec: [MS-FSA] 2.1.5.6.3 (the order of a listing is stable). Owns the entries and the sum of their sizes; fetching
//! and charging are elsewhere.
//!
//! Entries arrive in hundreds and may leave one by one, each in its own request. No request may traverse the remaining
//! ones, so the sum is maintained, and the memory of departed entries is freed once it is half of all.

use std::collections::VecDeque;
use std::mem::size_of;

use weft_wire::smb2::fscc::directory::Entry;

use crate::server::held::ENTRY_BYTES;

/// An entry with the position after it in the store; 0 if it has none.
pub(super) type Positioned = (u64, Entry);

/// A queue of entries.
#[derive(Default)]
pub(super) struct Ahead {
    entries: VecDeque<Positioned>,
    /// Size of all entries: [`ENTRY_BYTES`] plus the name for each.
    bytes: usize,
}

#[cfg(test)]
thread_local! {
    /// Entries that were traversed or moved while queued.
    pub(super) static HANDLED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reserves memory for exactly this many entries.
    pub(super) fn expect(&mut self, entries: usize) {
        self.entries.reserve_exact(entries);
    }

    pub(super) fn push(&mut self, entry: Positioned) {
        self.bytes = self.bytes.saturating_add(bytes(&entry));
        self.entries.push_back(entry);
    }

    /// Takes the next entry.
    pub(super) fn pop(&mut self) -> Option<Positioned> {
        let entry = self.entries.pop_front()?;
        self.bytes = self.bytes.saturating_sub(bytes(&entry));
        Some(entry)
    }

    /// Puts an entry back to the front.
    pub(super) fn give_back(&mut self, entry: Positioned) {
        self.bytes = self.bytes.saturating_add(bytes(&entry));
        self.entries.push_front(entry);
    }

    /// Drops the entries that can be fetched from the store again.
    pub(super) fn drop_stored(&mut self) {
        self.handle();
        self.entries.retain(|(position, _)| *position == 0);
        self.bytes = self.entries.iter().map(bytes).fold(0, usize::saturating_add);
    }

    /// Frees the memory of departed entries, unless more remaining ones than that would have to be moved.
    pub(super) fn shrink(&mut self) {
        let len = self.entries.len();
        if self.entries.capacity() > len.saturating_mul(2) {
            self.handle();
            self.entries.shrink_to_fit();
        }
    }

    /// Memory in use, including unused capacity.
    pub(super) fn bytes(&self) -> usize {
        let spare = self.entries.capacity().saturating_sub(self.entries.len());
        self.bytes.saturating_add(spare.saturating_mul(size_of::<Positioned>()))
    }

    /// Counts a traversal of all entries.
    fn handle(&self) {
        #[cfg(test)]
        HANDLED.set(HANDLED.get() + self.entries.len());
    }
}

fn bytes((_, entry): &Positioned) -> usize {
    ENTRY_BYTES.saturating_add(entry.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(entries: usize) -> Ahead {
        let mut ahead = Ahead::default();
        ahead.expect(entries);
        (1..=entries as u64).for_each(|n| ahead.push((n, Entry { name: n.to_string(), ..Entry::default() })));
        ahead
    }

    #[test]
    fn the_sum_is_that_of_the_entries_and_ends_with_them() {
        let mut ahead = ahead(1000);
        ahead.push((0, Entry::default()));
        for _ in 0..5 {
            let next = ahead.pop().unwrap();
            ahead.give_back(next);
            ahead.pop().unwrap();
            ahead.shrink();
            assert_eq!(ahead.bytes, ahead.entries.iter().map(bytes).sum::<usize>());
        }
        ahead.drop_stored();
        ahead.shrink();
        assert_eq!((ahead.entries.len(), ahead.bytes()), (1, ENTRY_BYTES));
        ahead.pop().unwrap();
        ahead.shrink();
        assert_eq!((ahead.bytes(), ahead.entries.capacity()), (0, 0));
    }

    #[test]
    fn room_that_is_kept_is_at_most_as_much_as_is_used_and_counts() {
        let mut ahead = ahead(1000);
        while ahead.pop().is_some() {
            ahead.shrink();
            let (len, capacity) = (ahead.entries.len(), ahead.entries.capacity());
            assert!(capacity <= 2 * len, "{capacity} for {len}");
            assert_eq!(ahead.bytes(), ahead.bytes + (capacity - len) * size_of::<Positioned>());
        }
    }
}
