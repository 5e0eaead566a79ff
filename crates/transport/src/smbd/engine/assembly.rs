//! A message that comes in fragments, in memory that grows as they come.
//!
//! Spec: [MS-SMBD] 3.1.5.8. Owns: the buffer. Does not: allocate; it says how much it needs.

use weft_machine::{Buf, buf};

use crate::channel::Ending;

/// The first buffer of a message in fragments, in bytes.
const FIRST_BYTES: usize = 64 << 10;
/// The next is so many times as large: a peer has sent a quarter of what it holds. A mebibyte is copied once and a third.
const GROWTH: usize = 4;

/// A message of which some fragments are here.
#[derive(Debug)]
pub(super) struct Assembly {
    /// Filled up to its length; `None` before the first fragment.
    buf: Option<Buf>,
    /// Bytes that are still to come.
    remaining: usize,
}

impl Assembly {
    /// Of a message of `len` bytes, none of which is here.
    pub(super) fn new(len: usize) -> Assembly {
        Assembly { buf: None, remaining: len }
    }

    /// Whether a fragment of `len` bytes that says that `remaining` bytes follow goes on where the last ended.
    pub(super) fn check(&self, len: usize, remaining: usize) -> Result<(), Ending> {
        match self.remaining.checked_sub(len) {
            None => Err(Ending::Violation("[MS-SMBD] 3.1.5.8: more fragments than announced")),
            Some(rest) if rest != remaining => {
                Err(Ending::Violation("[MS-SMBD] 3.1.5.8: RemainingDataLength does not add up"))
            }
            Some(_) => Ok(()),
        }
    }

    fn filled(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len())
    }

    /// The size of the buffer without which a fragment of `len` bytes does not fit.
    pub(super) fn wanted(&self, len: usize) -> Option<usize> {
        let have = self.buf.as_ref().map_or(0, Buf::capacity);
        let needed = self.filled().saturating_add(len);
        if needed <= have {
            return None;
        }
        let total = self.filled().saturating_add(self.remaining);
        let next = have.saturating_mul(GROWTH).max(FIRST_BYTES).max(needed);
        // No step for less than what it leaves to the next.
        Some(if next.saturating_mul(2) >= total { total } else { next })
    }

    /// Goes on in `larger`.
    pub(super) fn move_to(&mut self, mut larger: Buf) {
        larger.set_len(self.filled());
        if let Some(old) = &self.buf {
            buf::copy(&mut larger, old);
        }
        self.buf = Some(larger);
    }

    /// Appends a fragment that was checked and fits. Whether the message is whole.
    pub(super) fn append(&mut self, data: &[u8]) -> bool {
        let filled = self.filled();
        if let Some(buf) = &mut self.buf {
            buf.set_len(filled.saturating_add(data.len()));
            if let Some(room) = buf.get_mut(filled..) {
                buf::copy(room, data);
            }
        }
        self.remaining = self.remaining.saturating_sub(data.len());
        self.remaining == 0
    }

    /// The message.
    pub(super) fn into_buf(self) -> Option<Buf> {
        self.buf
    }
}
