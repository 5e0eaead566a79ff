//! SMB over TCP: each message behind a zero byte and a 24-bit length.
//!
//! What: [`Nbss`], a [`Channel`](crate::Channel) over a byte stream. Spec: [MS-SMB2] 2.1 (Direct TCP); RFC 1002 4.3.6
//! (keepalives are skipped).
//! Owns: nothing beyond the framed stream. Does not: do RDMA, look into messages, or retry.

use std::rc::Rc;

use weft_machine::{Pool, Stream};
use weft_wire::nbss::{self, Header, Malformed};

use crate::channel::Kind;
use crate::framed::{Framed, Framing, Head};
use crate::strangers::Strangers;

/// What a channel over TCP is willing to do.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Longest message in bytes, both ways; at most what the header can say and a pool buffer can hold.
    pub max_message: usize,
    /// Whether to take several small messages at a time while a peer keeps them coming: for servers, whose cost per
    /// message is the wake-up. A peer that waits for its answers is not kept waiting; see `framed::gather`.
    pub gather: bool,
}

impl Default for Config {
    /// An 8 MiB READ or WRITE and 64 KiB for its headers.
    fn default() -> Config {
        Config { max_message: (8 << 20) + (64 << 10), gather: false }
    }
}

/// SMB over TCP. Dropping it closes the channel.
pub type Nbss = Framed<DirectTcp>;

impl Nbss {
    /// Takes over a connected stream. Buffers come from `pool`.
    pub fn new(stream: Stream, pool: Pool, config: Config) -> Rc<Nbss> {
        Framed::over(stream, pool, config.max_message, config.gather, None)
    }

    /// The same for a server: until the peer is known, it is received from on other terms.
    pub fn of_stranger(stream: Stream, pool: Pool, config: Config, terms: Strangers) -> Rc<Nbss> {
        Framed::over(stream, pool, config.max_message, config.gather, Some(terms))
    }
}

/// The framing of [MS-SMB2] 2.1.
pub enum DirectTcp {}

impl Framing for DirectTcp {
    const KIND: Kind = Kind::Nbss;
    const XDR: bool = false;
    const MAX_FRAME: usize = nbss::MAX_MESSAGE;

    fn parse(header: [u8; nbss::HEADER_LEN]) -> Result<Head, &'static str> {
        match Header::parse(&header) {
            Ok(Header::Message { len }) => Ok(Head::Frame { len, last: true }),
            Ok(Header::KeepAlive) => Ok(Head::Nothing),
            Err(Malformed::KeepAliveBody) => Err("[MS-SMB2] 2.1: keepalive with a body"),
            Err(_) => Err("[MS-SMB2] 2.1: the first byte of the transport header is not zero"),
        }
    }

    fn emit(len: usize) -> Option<[u8; nbss::HEADER_LEN]> {
        Header::Message { len }.emit().ok()
    }
}

#[cfg(test)]
mod tests;
