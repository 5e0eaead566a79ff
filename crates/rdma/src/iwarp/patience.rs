//! How long a peer may take over what holds memory here: the response to an RDMA Read, and an FPDU that it has begun.
//!
//! Spec: RFC 5042 5.4.3, 6.4 (what a peer may use up). RFC 5040 leaves time to the user, who cannot see either of the two.
//! Owns: two deadlines. Does not: end the connection.

use std::time::Duration;

use weft_machine::Time;

/// How long the oldest Read may take, besides the time that its bytes take at [`READ_BYTES_PER_SECOND`].
const READ_LIMIT: Duration = Duration::from_secs(30);
/// The least speed of a response: 2 Mbit/s, below any link that RDMA is used on.
const READ_BYTES_PER_SECOND: u64 = 256 << 10;
/// How long an FPDU may take from its first byte to its last. It has at most 64 KiB.
const FPDU_LIMIT: Duration = Duration::from_secs(30);

/// What the peer owes, and until when.
#[derive(Debug, Default)]
pub(super) struct Patience {
    read: Option<Time>,
    fpdu: Option<Time>,
}

impl Patience {
    /// A Read of `len` bytes is the oldest whose request is on its way, `None`: there is none.
    pub(super) fn oldest_read(&mut self, len: Option<usize>, now: Time) {
        let time =
            |len: usize| Duration::from_millis((len as u64).saturating_mul(1000) / READ_BYTES_PER_SECOND);
        self.read = len.map(|len| now + READ_LIMIT + time(len));
    }

    /// The same Read as before, or the first.
    pub(super) fn awaits_read(&mut self, len: Option<usize>, now: Time) {
        if self.read.is_none() {
            self.oldest_read(len, now);
        }
    }

    /// The present FPDU is whole.
    pub(super) fn fpdu_ended(&mut self) {
        self.fpdu = None;
    }

    /// An FPDU has begun, perhaps long ago.
    pub(super) fn awaits_fpdu(&mut self, now: Time) {
        self.fpdu.get_or_insert(now + FPDU_LIMIT);
    }

    /// When one of the two is late.
    pub(super) fn at(&self) -> Option<Time> {
        self.read.into_iter().chain(self.fpdu).min()
    }
}
