//! A digest of the events of a run, which two runs of one seed must share.
//!
//! The events are not kept (a failing seed can be run again).

use crate::clock::Time;

/// Something the simulator did.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Spawn(u64),
    Poll(u64),
    /// Connection made.
    Connect(u64),
    /// Bytes sent into a pipe.
    Send(u64, usize),
    /// Bytes received from a pipe.
    Receive(u64, usize),
    /// A pipe was cut.
    Cut(u64),
}

/// A rolling hash (FNV-1a on words) over all events.
#[derive(Debug)]
pub(super) struct Trace {
    digest: u64,
    events: u64,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { digest: 0xcbf2_9ce4_8422_2325, events: 0 }
    }
}

impl Trace {
    pub(super) fn record(&mut self, at: Time, event: Event) {
        tracing::trace!(?at, ?event);
        let words = match event {
            Event::Spawn(id) => [1, id, 0],
            Event::Poll(id) => [2, id, 0],
            Event::Connect(id) => [3, id, 0],
            Event::Send(pipe, n) => [4, pipe, n as u64],
            Event::Receive(pipe, n) => [5, pipe, n as u64],
            Event::Cut(pipe) => [6, pipe, 0],
        };
        for word in words.into_iter().chain([at.as_nanos()]) {
            self.digest = (self.digest ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23);
        }
        self.events += 1;
    }

    pub(super) fn digest(&self) -> (u64, u64) {
        (self.digest, self.events)
    }
}
