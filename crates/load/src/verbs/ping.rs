//! A data check modelled on rping: the client's bytes travel to the server by RDMA Read and back by RDMA Write.
//!
//! [`Client`] runs rounds and compares; [`serve`] is the other side. Either interoperates with rdma-core's rping. See
//! rping(1); `wire::rping` defines the message and the round.
//!
//! rping's server writes back a C string: what it read up to the first zero byte. So the bytes of a round are text
//! that ends with its only zero byte, as rping's own are.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_rdma::{Access, Disconnect, Done, Segment, Stag, Work};
use weft_wire::rping::{ADVERT_LEN, Advert};

use super::end::{End, EndError};

/// The largest round. rping itself stops at 64 KiB.
pub const MAX_SIZE: u32 = 1 << 20;
/// rping's default size.
pub const DEFAULT_SIZE: u32 = 64;
/// rping's default port.
pub const PORT: u16 = 7174;
/// Receive buffers that each side keeps posted: a round never has more than one message outstanding.
pub const RECVS: usize = 2;
/// Size of a receive buffer: large enough to recognize messages that are not 16 bytes long.
pub const RECV_BYTES: usize = 64;

/// First and last character of rping's text.
const FIRST: u8 = b'A';
const LAST: u8 = b'z';
const LETTERS: u64 = (LAST - FIRST) as u64 + 1;

/// Why pinging ended.
#[derive(Debug, thiserror::Error)]
pub enum PingError {
    /// The connection or a work request failed.
    #[error("{0}")]
    End(#[from] EndError),
    /// The peer's message is not an rping message.
    #[error("the peer does not speak rping: {0}")]
    Malformed(#[from] weft_wire::rping::Malformed),
    /// The returned bytes differ.
    #[error("round {round}: byte {at} of {size} came back as {got:#04x}, but {sent:#04x} was sent")]
    Differs {
        /// The round, from 1.
        round: u64,
        /// Offset of the first byte that differs.
        at: usize,
        /// Bytes of the round.
        size: usize,
        /// The byte returned.
        got: u8,
        /// The byte sent.
        sent: u8,
    },
    /// The peer advertises more than a round allows.
    #[error("the peer advertises {0} bytes, but a round has 1 to {MAX_SIZE}")]
    Size(u32),
    /// The peer's sink is smaller than its source was.
    #[error("the peer's sink has {sink} bytes, but its source had {source_bytes}")]
    Sink {
        /// Size of the sink in bytes.
        sink: u32,
        /// Size of the source in bytes.
        source_bytes: u32,
    },
    /// The peer accepts no RDMA Reads.
    #[error("the peer accepts no RDMA Reads (its IRD is 0): start it with an IRD of at least 1")]
    NoReads,
}

/// The receive buffers to pass when accepting a connection, or to post once it is made.
pub fn recvs(pool: &weft_machine::Pool) -> Result<Vec<Work>, EndError> {
    (0..RECVS)
        .map(|_| {
            let buf = pool.try_alloc(RECV_BYTES).ok_or(EndError::Memory)?;
            Ok(Work::Recv { id: 0, buf })
        })
        .collect()
}

/// The side that owns the bytes.
pub struct Client {
    end: End,
    size: usize,
    rounds: u64,
}

impl Client {
    /// A client for rounds of `size` bytes over `end`; posts its receive buffers.
    pub fn new(end: End, size: u32) -> Result<Client, PingError> {
        if size == 0 || size > MAX_SIZE {
            return Err(PingError::Size(size));
        }
        for recv in recvs(&end.pool)? {
            end.post(recv)?;
        }
        Ok(Client { end, size: size as usize, rounds: 0 })
    }

    /// Runs one round; returns how long it took. Returned bytes that differ are an error.
    pub async fn round(&mut self) -> Result<Duration, PingError> {
        let text = text(self.rounds, self.size);
        let mut source = self.end.buffer(self.size)?;
        source.copy_from_slice(&text);
        let mut sink = self.end.buffer(self.size)?;
        sink.fill(0xa5);
        let started = rt::now();
        let source = self.end.register(source, Access::RemoteRead)?;
        self.tell(source).await?;
        // The region is no longer advertised, so nobody may read it.
        drop(self.end.take_back(source.stag)?);
        let sink = self.end.register(sink, Access::RemoteWrite)?;
        self.tell(sink).await?;
        let elapsed = rt::now().since(started);
        let came = self.end.take_back(sink.stag)?;
        self.rounds = self.rounds.saturating_add(1);
        match text.iter().zip(&came[..]).enumerate().find(|(_, (sent, got))| sent != got) {
            None => Ok(elapsed),
            Some((at, (&sent, &got))) => {
                Err(PingError::Differs { round: self.rounds, at, size: self.size, got, sent })
            }
        }
    }

    /// Advertises `region` and waits until the server has finished with it.
    async fn tell(&mut self, region: Segment) -> Result<(), PingError> {
        let advert = Advert { address: region.offset, rkey: region.stag.0, size: region.len };
        self.end.send(Bytes::copy_from_slice(&advert.emit()))?;
        let answer = self.end.message().await?;
        Advert::parse(&answer)?;
        Ok(self.end.recv(answer)?)
    }

    /// Ends the connection.
    pub async fn close(self) {
        self.end.close().await;
    }
}

/// The text of round `n`: "rdma-ping-N: " and letters that start one further in each round, as rping's do.
fn text(n: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{n}: ").into_bytes();
    let after =
        (text.len() as u64..size as u64).map(|at| FIRST.wrapping_add((n.wrapping_add(at) % LETTERS) as u8));
    text.extend(after);
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// Answers rounds until the client disconnects; returns how many there were. The end's receive buffers are already
/// posted.
pub async fn serve(end: &mut End) -> Result<u64, PingError> {
    if end.qp.caps().ord == 0 {
        return Err(PingError::NoReads);
    }
    let mut rounds = 0u64;
    loop {
        let source = match advert(end).await {
            Err(PingError::End(EndError::Ended(Disconnect::Peer))) => return Ok(rounds),
            other => other?,
        };
        if source.len == 0 || source.len > MAX_SIZE {
            return Err(PingError::Size(source.len));
        }
        let into = end.pool.try_alloc(source.len as usize).ok_or(EndError::Memory)?;
        end.post(Work::Read { id: 1, into, from: source })?;
        let (_, Done::Read { buf }) = end.finished().await? else {
            return Err(EndError::Peer("something other than the RDMA Read finished").into());
        };
        answer(end)?;
        let sink = advert(end).await?;
        if sink.len < source.len {
            return Err(PingError::Sink { sink: sink.len, source_bytes: source.len });
        }
        // The reply follows the bytes, so they have arrived when it does.
        end.post(Work::Write { id: 2, data: buf.freeze().into(), to: sink, signalled: false })?;
        answer(end)?;
        rounds = rounds.saturating_add(1);
    }
}

async fn advert(end: &mut End) -> Result<Segment, PingError> {
    let message = end.message().await?;
    let advert = Advert::parse(&message)?;
    end.recv(message)?;
    Ok(Segment { stag: Stag(advert.rkey), offset: advert.address, len: advert.size })
}

fn answer(end: &End) -> Result<(), EndError> {
    end.send(Bytes::from_static(&[0; ADVERT_LEN]))
}

#[cfg(test)]
mod tests;
