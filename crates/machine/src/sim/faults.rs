//! Faults of a simulated network and its connections.
//!
//! `net` applies the parameters.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The end of a connection that sends the bytes in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Dialer,
    /// The end that accepted.
    Acceptor,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutHow {
    /// Both ends get ECONNRESET, the reader after the bytes that came before.
    Reset,
    /// The reader sees the end of the stream as after an orderly close; the sender gets EPIPE.
    Close,
    /// Nothing arrives any more, in either direction, and neither end is told.
    Silent,
}

/// One planned cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which connection, counted from 0 in the order in which they are made in the world.
    pub connection: u64,
    /// The side whose bytes are counted.
    pub side: Side,
    /// How many bytes still arrive.
    pub at_byte: u64,
    /// What happens then.
    pub how: CutHow,
}

/// A simulated network's behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// One-way delay; each piece draws from the range, but the order of a stream is kept.
    pub latency: RangeInclusive<Duration>,
    /// Bytes per second of each direction of each connection; `None` is without limit.
    pub bytes_per_second: Option<u64>,
    /// Sends take and receives return random fractions of what they could.
    pub split: bool,
    /// How many bytes a direction holds between its ends before sends wait.
    pub socket_buffer_bytes: usize,
    /// Connections to be cut.
    pub cuts: Vec<Cut>,
}

impl Default for Faults {
    /// A quick, faultless network.
    fn default() -> Faults {
        Faults {
            latency: Duration::from_micros(10)..=Duration::from_micros(10),
            bytes_per_second: None,
            split: false,
            socket_buffer_bytes: 256 << 10,
            cuts: Vec::new(),
        }
    }
}

impl Faults {
    /// A bad but working network: jitter, splits everywhere and small buffers.
    pub fn rough() -> Faults {
        Faults {
            latency: Duration::from_micros(1)..=Duration::from_millis(2),
            split: true,
            socket_buffer_bytes: 4096,
            ..Faults::default()
        }
    }
}
