//! Tracks which queued messages the medium has taken: the numbers behind the futures of `Channel::send`.
//!
//! [`Sent`] counts messages and keeps the wakers of those who wait; messages are taken in the order of their numbers.
//! It keeps failures until they are reported; it does not own the messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem;
use std::task::Waker;

/// Failures kept for callers that have not asked yet (and may have dropped their future).
const MAX_FAILED: usize = 1024;

/// The numbers of a channel's messages.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Number of the next message.
    next: u64,
    /// All messages before this one have been taken or have failed.
    done: u64,
    /// The bytes in memory of the messages from `done` to `next`, and their sum.
    sizes: VecDeque<usize>,
    bytes: usize,
    /// Messages that failed while earlier ones are outstanding; none is below `done`.
    holes: BTreeSet<u64>,
    /// Failures not reported yet.
    failed: BTreeMap<u64, io::Error>,
    waiting: BTreeMap<u64, Waker>,
}

impl Sent {
    /// The number of a new message that occupies `bytes` bytes in memory.
    pub(crate) fn number(&mut self, bytes: usize) -> u64 {
        self.sizes.push_back(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        let number = self.next;
        // A 64-bit counter does not run out.
        self.next = number.saturating_add(1);
        number
    }

    /// Messages that are neither taken nor known to have failed.
    pub(crate) fn outstanding(&self) -> u64 {
        self.next.saturating_sub(self.done)
    }

    /// Their bytes in memory.
    pub(crate) fn outstanding_bytes(&self) -> usize {
        self.bytes
    }

    /// The medium has taken message `number` and all before it. The caller calls [`Sent::wake`] at the end of the
    /// batch.
    pub(crate) fn done(&mut self, number: u64) {
        self.done = self.done.max(number.saturating_add(1));
        self.close_holes();
    }

    fn close_holes(&mut self) {
        while let Some(&hole) = self.holes.first().filter(|&&hole| hole <= self.done) {
            self.holes.remove(&hole);
            self.done = self.done.max(hole.saturating_add(1));
        }
        let outstanding = usize::try_from(self.outstanding()).unwrap_or(usize::MAX);
        while self.sizes.len() > outstanding {
            self.bytes = self.bytes.saturating_sub(self.sizes.pop_front().unwrap_or(0));
        }
    }

    /// Message `number` will not be sent; the channel continues.
    pub(crate) fn fail(&mut self, number: u64, e: io::Error) {
        if self.failed.len() == MAX_FAILED {
            self.failed.pop_first();
        }
        self.failed.insert(number, e);
        let behind = usize::try_from(number.saturating_sub(self.done)).unwrap_or(usize::MAX);
        if let Some(size) = self.sizes.get_mut(behind) {
            self.bytes = self.bytes.saturating_sub(std::mem::take(size));
        }
        self.holes.insert(number);
        self.close_holes();
        if let Some(waker) = self.waiting.remove(&number) {
            waker.wake();
        }
    }

    /// Wakes the tasks whose messages are taken.
    pub(crate) fn wake(&mut self) {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| *entry.key() < self.done) {
            entry.remove().wake();
        }
    }

    /// Wakes all waiting tasks: the channel has ended, and its messages are gone.
    pub(crate) fn wake_all(&mut self) {
        mem::take(&mut self.waiting).into_values().for_each(Waker::wake);
        self.sizes.clear();
        self.bytes = 0;
    }

    /// The outcome of message `number`; `None` while it is queued. A failure is reported once.
    pub(crate) fn outcome(&mut self, number: u64) -> Option<io::Result<()>> {
        if !self.failed.is_empty()
            && let Some(e) = self.failed.remove(&number)
        {
            return Some(Err(e));
        }
        (number < self.done).then_some(Ok(()))
    }

    /// Wakes `waker` when message `number` has an outcome.
    pub(crate) fn wait(&mut self, number: u64, waker: &Waker) {
        self.waiting.entry(number).and_modify(|old| old.clone_from(waker)).or_insert_with(|| waker.clone());
    }

    /// Whether anybody waits.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nobody asks about message `number` any more.
    pub(crate) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
        self.failed.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_the_medium_has_taken_them_or_they_have_failed() {
        let mut sent = Sent::default();
        let numbers = [100, 20, 3, 0].map(|bytes| sent.number(bytes));
        assert_eq!(sent.outstanding_bytes(), 123);
        sent.fail(numbers[1], io::ErrorKind::Other.into());
        assert_eq!(sent.outstanding_bytes(), 103);
        sent.done(numbers[0]);
        assert_eq!((sent.outstanding_bytes(), sent.outstanding()), (3, 2));
        sent.done(numbers[3]);
        assert_eq!((sent.outstanding_bytes(), sent.sizes.len()), (0, 0));
        sent.number(7);
        assert_eq!(sent.outstanding_bytes(), 7);
    }

    #[test]
    fn outcomes_come_in_order_and_failures_once() {
        let mut sent = Sent::default();
        let numbers = [sent.number(0), sent.number(0), sent.number(0)];
        assert_eq!(sent.outstanding(), 3);
        assert!(sent.outcome(numbers[0]).is_none());
        sent.fail(numbers[1], io::ErrorKind::Other.into());
        sent.done(numbers[2]);
        assert!(matches!(sent.outcome(numbers[0]), Some(Ok(()))));
        assert!(matches!(sent.outcome(numbers[1]), Some(Err(_))));
        assert!(matches!(sent.outcome(numbers[2]), Some(Ok(()))));
        assert_eq!(sent.outstanding(), 0);
    }

    #[test]
    fn failed_messages_are_not_outstanding() {
        let mut sent = Sent::default();
        let numbers = [sent.number(0), sent.number(0), sent.number(0), sent.number(0)];
        sent.fail(numbers[0], io::ErrorKind::Other.into());
        assert_eq!(sent.outstanding(), 3);
        sent.fail(numbers[2], io::ErrorKind::Other.into());
        sent.done(numbers[1]);
        assert_eq!(sent.outstanding(), 1);
        sent.fail(numbers[3], io::ErrorKind::Other.into());
        assert_eq!(sent.outstanding(), 0);
        assert!(sent.holes.is_empty());
    }

    #[test]
    fn failures_that_nobody_asks_about_are_bounded() {
        let mut sent = Sent::default();
        for _ in 0..3 * MAX_FAILED {
            let number = sent.number(0);
            sent.fail(number, io::ErrorKind::Other.into());
        }
        assert_eq!(sent.failed.len(), MAX_FAILED);
    }
}
