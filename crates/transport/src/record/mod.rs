//! RPC over TCP: each message is a record of fragments, each behind a bit and a 31-bit length.
//!
//! What: [`Record`], a [`Channel`](crate::Channel) over a byte stream. Spec: RFC 5531 section 11 (record marking).
//! Owns: nothing beyond the framed stream. Does not: look into RPC messages, retransmit, reconnect.
//!
//! Every message is sent as one fragment; received fragments are joined, which costs a counted copy.

mod secured;

use std::rc::Rc;

use weft_machine::{Pool, Stream};
use weft_wire::rpc::Fragment;

use crate::channel::Kind;
use crate::framed::{Framed, Framing, Head};
use crate::strangers::Strangers;

pub use secured::{Secured, accept};

/// What a channel over TCP is willing to do.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Longest message in bytes, both ways; at most what a pool buffer can hold.
    pub max_message: usize,
    /// Whether to take several small messages at a time while a peer keeps them coming: for servers, whose cost per
    /// message is the wake-up. A peer that waits for its answers is not kept waiting; see `framed::gather`.
    pub gather: bool,
}

impl Default for Config {
    /// A 1 MiB READ or WRITE and 64 KiB for its headers.
    fn default() -> Config {
        Config { max_message: (1 << 20) + (64 << 10), gather: false }
    }
}

/// RPC over TCP. Dropping it closes the channel.
pub type Record = Framed<RecordMarking>;

impl Record {
    /// Takes over a connected stream. Buffers come from `pool`.
    pub fn new(stream: Stream, pool: Pool, config: Config) -> Rc<Record> {
        Framed::over(stream, pool, config.max_message, config.gather, None)
    }

    /// The same for a server: until the peer is known, it is received from on other terms.
    pub fn of_stranger(stream: Stream, pool: Pool, config: Config, terms: Strangers) -> Rc<Record> {
        Framed::over(stream, pool, config.max_message, config.gather, Some(terms))
    }
}

/// The framing of RFC 5531 section 11.
pub enum RecordMarking {}

impl Framing for RecordMarking {
    const KIND: Kind = Kind::Record;
    const XDR: bool = true;
    const MAX_FRAME: usize = (1 << 31) - 1;

    fn parse(header: [u8; Fragment::BYTES]) -> Result<Head, &'static str> {
        let Fragment { last, len } = Fragment::parse(header);
        Ok(Head::Frame { len: len as usize, last })
    }

    fn emit(len: usize) -> Option<[u8; Fragment::BYTES]> {
        Fragment { last: true, len: u32::try_from(len).ok()? }.emit()
    }
}

#[cfg(test)]
mod tests;
