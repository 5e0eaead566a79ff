//! Compounds ([MS-SMB2] 2.2.1 NextCommand, 3.3.5.2.7): several messages in one, each 8-byte aligned.
//!
//! The server relates the messages to each other by their flags.

use bytes::Bytes;

use super::field::{self, u32_at};
use super::header::NEXT_COMMAND_AT;
use super::{HEADER_LEN, Malformed};

/// The messages of `frame` in order, each beginning with its header and ending before the next (padding included). A
/// malformed link ends the iteration with an error. Nothing is allocated; each message costs one reference count.
pub fn split(frame: Bytes) -> Split {
    Split { rest: frame }
}

/// See [`split`].
#[derive(Debug)]
pub struct Split {
    rest: Bytes,
}

impl Split {
    /// Whether no message remains.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Split {
    type Item = Result<Bytes, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some(header) = rest.first_chunk::<HEADER_LEN>() else {
            return Some(Err(Malformed("shorter than a header")));
        };
        let next = u32_at(header, NEXT_COMMAND_AT) as usize;
        if next == 0 {
            return Some(Ok(rest));
        }
        // A further message needs room for a header.
        let fits = next >= HEADER_LEN && rest.len().checked_sub(next).is_some_and(|left| left >= HEADER_LEN);
        if !next.is_multiple_of(8) || !fits {
            return Some(Err(Malformed("NextCommand")));
        }
        let mut this = rest;
        self.rest = this.split_off(next);
        Some(Ok(this))
    }
}

/// Pads the message that began at `start` to a multiple of 8 bytes, so that another can follow, and sets its
/// NextCommand.
///
/// # Panics
///
/// When no header lies at `start`. Only our own code can cause this, since we emitted the message.
pub fn link(out: &mut Vec<u8>, start: usize) {
    field::pad(out, start, 8);
    let len = field::len32(field::since(out, start));
    super::header::patch_next_command(out.get_mut(start..).unwrap_or_default(), len);
}
