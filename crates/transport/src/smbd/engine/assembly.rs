//! Reassembles a fragmented message in memory that grows as the fragments arrive.
//!
//! It implements [MS-SMBD] 3.1.5.8 and owns the buffer. It does not allocate; it reports the size that it needs.

use weft_machine::{Buf, buf};

use crate::channel::Ending;

/// The first buffer of a message in fragments, in bytes.
const FIRST_BYTES: usize = 64 << 10;
/// Each next buffer is this many times as large: a peer has sent a quarter of what it occupies. A mebibyte is copied
/// one and a third times.
const GROWTH: usize = 4;

/// A partly received message.
#[derive(Debug)]
pub(super) struct Assembly {
    /// Filled up to its length; `None` before the first fragment.
    buf: Option<Buf>,
    /// Bytes still to come.
    remaining: usize,
}

impl Assembly {
    /// A message of `len` bytes, none of which has arrived.
    pub(super) fn new(len: usize) -> Assembly {
        Assembly { buf: None, remaining: len }
    }

    /// Checks that a fragment of `len` bytes, with `remaining` bytes announced after it, continues where the last one
    /// ended.
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

    /// The size of the buffer that a fragment of `len` bytes needs; `None` if it fits already.
    pub(super) fn wanted(&self, len: usize) -> Option<usize> {
        let have = self.buf.as_ref().map_or(0, Buf::capacity);
        let needed = self.filled().saturating_add(len);
        if needed <= have {
            return None;
        }
        let total = self.filled().saturating_add(self.remaining);
        let next = have.saturating_mul(GROWTH).max(FIRST_BYTES).max(needed);
        // The last step must not be smaller than the one before.
        Some(if next.saturating_mul(2) >= total { total } else { next })
    }

    /// Continues in `larger`.
    pub(super) fn move_to(&mut self, mut larger: Buf) {
        larger.set_len(self.filled());
        if let Some(old) = &self.buf {
            buf::copy(&mut larger, old);
        }
        self.buf = Some(larger);
    }

    /// Appends a fragment that was checked and fits. Returns whether the message is complete.
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
