//! SMB over TCP: each message follows a zero byte and a 24-bit length.
//!
//! [`Nbss`] is a [`Channel`] over a byte stream. It implements [MS-SMB2] 2.1 (Direct TCP) and RFC 1002
//! 4.3.6 (keepalives are skipped). It has no RDMA, does not interpret messages and does not retry.

use std::rc::Rc;

use weft_machine::{Pool, Stream};
use weft_wire::nbss::{self, Header, Malformed};

use crate::channel::{Channel, Kind};
use crate::framed::{Framed, Framing, Head};
use crate::strangers::Strangers;

/// The limits and options of a channel over TCP.
pub type Config = crate::framed::Config<DirectTcp>;

/// SMB over TCP. Dropping it closes the channel.
pub type Nbss = Framed<DirectTcp>;

impl Nbss {
    /// Takes over a connected stream. Buffers come from `pool`.
    pub fn channel(stream: Stream, pool: Pool, config: Config) -> Rc<dyn Channel> {
        Nbss::over(stream, pool, config, None)
    }

    /// The same for a server: until the peer is identified, terms for strangers apply.
    pub fn of_stranger(stream: Stream, pool: Pool, config: Config, terms: Strangers) -> Rc<dyn Channel> {
        Nbss::over(stream, pool, config, Some(terms))
    }
}

/// The framing of [MS-SMB2] 2.1.
#[derive(Clone, Copy, Debug)]
pub enum DirectTcp {}

impl Framing for DirectTcp {
    const KIND: Kind = Kind::Nbss;
    const XDR: bool = false;
    const MAX_FRAME: usize = nbss::MAX_MESSAGE;
    /// An 8 MiB READ or WRITE and 64 KiB for its headers.
    const DEFAULT_MESSAGE: usize = (8 << 20) + (64 << 10);

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
