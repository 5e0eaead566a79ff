//! The reply of a COMPOUND: results in one buffer, split where payload (READ, READLINK) is inserted, so that the
//! transport decides where the payload goes.
//!
//! See RFC 8881 16.2. The session or the channel bounds its length.

use weft_machine::Payload;
use weft_transport::{Part, To};
use weft_wire::xdr::{Encoder, pad};

use crate::server::context::Results;
use crate::server::instead::Cut;

/// Bytes of the operation number before a result.
const NUMBER_BYTES: usize = 4;

/// Buffers, each followed by payload except the last.
#[derive(Default)]
pub(super) struct Body {
    /// Finished buffers, each with the payload that follows.
    done: Vec<(Encoder, Payload, To)>,
    pub tail: Encoder,
    /// Bytes in `done`.
    before: usize,
    /// The same without payload.
    results_before: usize,
}

impl Body {
    /// An empty body after this header.
    pub fn new(header: Encoder) -> Body {
        Body { tail: header, ..Body::default() }
    }

    /// Appends payload; the buffer ends with its length.
    pub fn payload(&mut self, payload: Payload) {
        self.end(payload, To::Ticket);
    }

    /// Like [`Body::payload`], for payload that always travels inside the message. Writes its length first.
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

    /// Offset in `tail` of the next operation's result: its status, after the number.
    pub fn next_result(&self) -> usize {
        self.tail.len().saturating_add(NUMBER_BYTES)
    }

    /// The first buffer, which begins with the header.
    pub fn head(&mut self) -> &mut Encoder {
        self.done.first_mut().map_or(&mut self.tail, |(head, ..)| head)
    }

    /// The first `start` bytes, followed by the cached part of another reply.
    pub fn replayed(mut self, start: usize, kept: &[u8]) -> Results {
        let mut head = std::mem::take(self.head());
        head.truncate(start);
        head.raw(kept);
        Results::new(head, None)
    }

    /// The position of the next operation's result; see [`Body::take_back`].
    pub fn mark(&self) -> Mark {
        Mark { parts: self.done.len(), at: self.tail.len() }
    }

    /// Whether it has no payload, so that `tail` is all of it.
    pub fn is_one_buffer(&self) -> bool {
        self.done.is_empty()
    }

    /// Removes the result appended since `mark`. The compound ends then, so the lengths are not recomputed.
    pub fn take_back(&mut self, mark: Mark) {
        if mark.parts < self.done.len() {
            self.tail = self.done.swap_remove(mark.parts).0;
            self.done.truncate(mark.parts);
            (self.before, self.results_before) = (0, 0);
        }
        self.tail.truncate(mark.at);
    }

    /// `cut`: what it becomes if payload cannot be read.
    pub fn into_results(self, cut: Cut) -> Results {
        let mut parts = Vec::with_capacity(self.done.len().saturating_mul(2).saturating_add(1));
        for (bytes, data, to) in self.done {
            parts.push(Part::Bytes(bytes.into_bytes()));
            parts.push(Part::Payload { data, to });
        }
        if !self.tail.is_empty() {
            parts.push(Part::Bytes(self.tail.into_bytes()));
        }
        Results::Parts(parts, None, cut)
    }
}

/// The position of a result in a reply.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    parts: usize,
    at: usize,
}
