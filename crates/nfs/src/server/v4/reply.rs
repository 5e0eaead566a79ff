//! The reply of a COMPOUND: results in one buffer, cut where payload (READ, READLINK) lies between them, so that the transport
//! decides where that goes.
//!
//! Spec: RFC 8881 16.2. Does not: bound its length; the session or the channel does.

use weft_machine::Payload;
use weft_transport::{Part, To};
use weft_wire::xdr::{Encoder, pad};

use crate::server::context::Results;

/// Bytes of an operation's number before its result.
const NUMBER_BYTES: usize = 4;

/// Buffers with payload behind each but the last.
#[derive(Default)]
pub(super) struct Body {
    /// What has ended, with the payload behind it.
    done: Vec<(Encoder, Payload, To)>,
    pub tail: Encoder,
    /// Bytes in `done`.
    before: usize,
    /// Of these, without payload.
    results_before: usize,
}

impl Body {
    /// Behind this header.
    pub fn new(header: Encoder) -> Body {
        Body { tail: header, ..Body::default() }
    }

    /// Ends a buffer with payload, whose length the buffer ends with.
    pub fn payload(&mut self, payload: Payload) {
        self.end(payload, To::Ticket);
    }

    /// The same with payload that always travels in the message. Its length is put in front.
    pub fn inline(&mut self, payload: Payload) {
        self.tail.u32(payload.len() as u32);
        self.end(payload, To::Inline);
    }

    fn end(&mut self, payload: Payload, to: To) {
        let fill = pad(payload.len());
        self.results_before = self.results_len();
        self.before = self.len().saturating_add(payload.len()).saturating_add(fill);
        self.done.push((std::mem::take(&mut self.tail), payload, to));
    }

    pub fn len(&self) -> usize {
        self.before.saturating_add(self.tail.len())
    }

    /// The same without payload.
    pub fn results_len(&self) -> usize {
        self.results_before.saturating_add(self.tail.len())
    }

    /// Where in `tail` the next operation's result begins: its status, behind the number.
    pub fn next_result(&self) -> usize {
        self.tail.len().saturating_add(NUMBER_BYTES)
    }

    /// Its first buffer, which begins with the header.
    pub fn head(&mut self) -> &mut Encoder {
        self.done.first_mut().map_or(&mut self.tail, |(head, ..)| head)
    }

    /// The first `start` bytes, and behind them what was kept of another reply.
    pub fn replayed(mut self, start: usize, kept: &[u8]) -> Results {
        let mut head = std::mem::take(self.head());
        head.truncate(start);
        head.raw(kept);
        Results::new(head, None)
    }

    /// Where the next operation's result begins; see [`Body::take_back`].
    pub fn mark(&self) -> Mark {
        Mark { parts: self.done.len(), at: self.tail.len() }
    }

    /// Whether it has no payload: it is the one buffer `tail`.
    pub fn is_one_buffer(&self) -> bool {
        self.done.is_empty()
    }

    /// Takes the result back that was appended since `mark`. The compound ends with that, so lengths are not counted anew.
    pub fn take_back(&mut self, mark: Mark) {
        if mark.parts < self.done.len() {
            self.tail = self.done.swap_remove(mark.parts).0;
            self.done.truncate(mark.parts);
            (self.before, self.results_before) = (0, 0);
        }
        self.tail.truncate(mark.at);
    }

    pub fn into_results(self) -> Results {
        let mut parts = Vec::with_capacity(self.done.len().saturating_mul(2).saturating_add(1));
        for (bytes, data, to) in self.done {
            parts.push(Part::Bytes(bytes.into_bytes()));
            parts.push(Part::Payload { data, to });
        }
        if !self.tail.is_empty() {
            parts.push(Part::Bytes(self.tail.into_bytes()));
        }
        Results::Parts(parts, None)
    }
}

/// Where in a reply a result begins.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    parts: usize,
    at: usize,
}
