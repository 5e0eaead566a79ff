//! The staging ring: received bytes whose destination is not known yet.
//!
//! It does not interpret the bytes.

use weft_machine::Buf;
use weft_wire::mpa::{CRC_LEN, Crc};

/// Received bytes whose destination is not known yet.
pub(super) struct Ring {
    buf: Buf,
    head: usize,
    len: usize,
}

impl Ring {
    pub(super) fn new(mut buf: Buf) -> Ring {
        buf.set_len(buf.capacity());
        Ring { buf, head: 0, len: 0 }
    }

    /// The most bytes that it holds.
    pub(super) fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Moves the content to `buf`, which is larger.
    pub(super) fn move_to(&mut self, buf: Buf) {
        let mut larger = Ring::new(buf);
        let (first, second) = self.slices(0, self.len);
        larger.put(first);
        larger.put(second);
        *self = larger;
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The position of byte `at`, counted from the first one; `at` is at most the capacity.
    fn position(&self, at: usize) -> usize {
        let straight = self.head.saturating_add(at);
        straight.checked_sub(self.capacity()).unwrap_or(straight)
    }

    /// Up to `limit` bytes of free room, in stream order.
    pub(super) fn free(&mut self, limit: usize) -> (&mut [u8], &mut [u8]) {
        let room = self.capacity().saturating_sub(self.len).min(limit);
        let tail = self.position(self.len);
        let (before, from_tail) = self.buf.split_at_mut(tail);
        let first = room.min(from_tail.len());
        (from_tail.split_at_mut(first).0, before.split_at_mut(room.saturating_sub(first)).0)
    }

    /// Free room from position `at` of the empty ring on, for bytes that follow others that are put in front first.
    pub(super) fn behind(&mut self, at: usize, limit: usize) -> &mut [u8] {
        debug_assert!(self.len == 0 && self.head == 0);
        let (_, room) = self.buf.split_at_mut(at);
        room.split_at_mut(room.len().min(limit)).0
    }

    /// The `n` bytes received there come next; the bytes put in front are consumed.
    pub(super) fn take_behind(&mut self, at: usize, n: usize) {
        if n > 0 {
            assert!(self.len == 0, "bytes before these");
            self.head = at;
            self.len = n;
        }
    }

    /// Copies out the bytes received there.
    pub(super) fn peek_behind(&self, at: usize, to: &mut [u8]) {
        let (_, from) = self.buf.split_at(at);
        to.copy_from_slice(from.split_at(to.len()).0);
    }

    /// Appends a few bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let (first, second) = self.free(bytes.len());
        let (a, b) = bytes.split_at(first.len());
        first.copy_from_slice(a);
        second.copy_from_slice(b);
        self.commit(bytes.len());
    }

    pub(super) fn commit(&mut self, n: usize) {
        self.len = self.len.saturating_add(n);
        assert!(self.len <= self.buf.len(), "more received than there was room for");
    }

    /// The bytes `[at, at + len)`, which must be present, in at most two parts.
    pub(super) fn slices(&self, at: usize, len: usize) -> (&[u8], &[u8]) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        let (before, from_start) = self.buf.split_at(self.position(at));
        let first = len.min(from_start.len());
        (from_start.split_at(first).0, before.split_at(len.saturating_sub(first)).0)
    }

    /// Copies out the bytes available from `at` on, without consuming them: for headers.
    pub(super) fn peek<'a>(&self, at: usize, to: &'a mut [u8]) -> &'a [u8] {
        let len = to.len().min(self.len.saturating_sub(at));
        let (to, _) = to.split_at_mut(len);
        if len > 0 {
            let (first, second) = self.slices(at, len);
            let (to_first, to_second) = to.split_at_mut(first.len());
            to_first.copy_from_slice(first);
            to_second.copy_from_slice(second);
        }
        to
    }

    /// Adds the first `n` bytes to a CRC, if there is one.
    pub(super) fn checksum(&self, n: usize, crc: &mut Option<Crc>) {
        if let Some(crc) = crc {
            let (first, second) = self.slices(0, n);
            crc.update(first);
            crc.update(second);
        }
    }

    /// Whether the field at `at` equals this CRC.
    pub(super) fn holds(&self, at: usize, crc: Crc) -> bool {
        let mut field = [0; CRC_LEN];
        self.peek(at, &mut field) == crc.field()
    }

    pub(super) fn consume(&mut self, n: usize) {
        assert!(n <= self.len);
        self.len = self.len.saturating_sub(n);
        self.head = self.position(n);
        if self.len == 0 {
            // Start again at the front, which is in the cache.
            self.head = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.head = 0;
        self.len = 0;
    }
}
