//! RPC over TCP: each message is a record of fragments, each after a bit and a 31-bit length.
//!
//! [`Record`] is a [`Channel`] over a byte stream. It implements RFC 5531 section 11 (record marking).
//! It does not interpret RPC messages, retransmit or reconnect.
//!
//! Every message is sent as one fragment; received fragments are joined, which costs a counted copy.

mod secured;

use std::rc::Rc;

use weft_machine::{Pool, Stream};
use weft_wire::rpc::Fragment;

use crate::channel::{Channel, Kind};
use crate::framed::{Framed, Framing, Head};
use crate::strangers::Strangers;

pub use secured::{Secured, accept};

/// The limits and options of a channel over TCP.
pub type Config = crate::framed::Config<RecordMarking>;

/// RPC over TCP. Dropping it closes the channel.
pub type Record = Framed<RecordMarking>;

impl Record {
    /// Takes over a connected stream. Buffers come from `pool`.
    pub fn channel(stream: Stream, pool: Pool, config: Config) -> Rc<dyn Channel> {
        Record::over(stream, pool, config, None)
    }

    /// The same for a server: until the peer is identified, terms for strangers apply.
    pub fn of_stranger(stream: Stream, pool: Pool, config: Config, terms: Strangers) -> Rc<dyn Channel> {
        Record::over(stream, pool, config, Some(terms))
    }
}

/// The framing of RFC 5531 section 11.
#[derive(Clone, Copy, Debug)]
pub enum RecordMarking {}

impl Framing for RecordMarking {
    const KIND: Kind = Kind::Record;
    const XDR: bool = true;
    const MAX_FRAME: usize = (1 << 31) - 1;
    /// A 1 MiB READ or WRITE and 64 KiB for its headers.
    const DEFAULT_MESSAGE: usize = (1 << 20) + (64 << 10);

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
