//! Time limits for a peer that holds memory here: for the response to an RDMA Read, and for an FPDU that it has begun.
//!
//! RFC 5042 5.4.3 and 6.4 describe what a peer may use up. RFC 5040 leaves time limits to the user, who can see neither
//! of the two. This file computes the two deadlines; `connection` ends the stream.

use std::time::Duration;

use weft_machine::Time;

/// Limit for the oldest Read, in addition to the time that its bytes take at [`READ_BYTES_PER_SECOND`].
const READ_LIMIT: Duration = Duration::from_secs(30);
/// The lowest speed of a response: 2 Mbit/s, below any link that RDMA is used on.
const READ_BYTES_PER_SECOND: u64 = 256 << 10;
/// Limit for an FPDU, from its first byte to its last. An FPDU has at most 64 KiB.
const FPDU_LIMIT: Duration = Duration::from_secs(30);

/// What the peer owes, and the deadline for it.
#[derive(Debug, Default)]
pub(super) struct Patience {
    read: Option<Time>,
    fpdu: Option<Time>,
}

impl Patience {
    /// A Read of `len` bytes is now the oldest whose request was sent; `None` if there is none.
    pub(super) fn oldest_read(&mut self, len: Option<usize>, now: Time) {
        let time =
            |len: usize| Duration::from_millis((len as u64).saturating_mul(1000) / READ_BYTES_PER_SECOND);
        self.read = len.map(|len| now + READ_LIMIT + time(len));
    }

    /// The oldest Read is the same as before, or the first one.
    pub(super) fn awaits_read(&mut self, len: Option<usize>, now: Time) {
        if self.read.is_none() {
            self.oldest_read(len, now);
        }
    }

    /// The current FPDU is complete.
    pub(super) fn fpdu_ended(&mut self) {
        self.fpdu = None;
    }

    /// An FPDU has begun, perhaps long ago.
    pub(super) fn awaits_fpdu(&mut self, now: Time) {
        self.fpdu.get_or_insert(now + FPDU_LIMIT);
    }

    /// When the earlier of the two deadlines expires.
    pub(super) fn at(&self) -> Option<Time> {
        self.read.into_iter().chain(self.fpdu).min()
    }
}
