//! Explains a peer's missing answer, and whose fault it is, in the same words for every protocol.

use std::fmt;
use std::time::Duration;

use crate::Channel;

/// Why a server's answer is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The server does not answer, or the network loses the answer.
    Server,
    /// Our request, or the server's answer, waits on our side for memory ([`Channel::waits_for_memory`]).
    Memory,
}

impl Silence {
    /// The reason for the silence of the server at the other end of `channel`.
    pub fn of(channel: &dyn Channel) -> Silence {
        match channel.waits_for_memory() {
            true => Silence::Memory,
            false => Silence::Server,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Silence::Server => "the server does not answer",
            Silence::Memory => "no memory for the server's answers, which other requests hold",
        })
    }
}

/// There was no memory for a server's answers for this long: other requests of this client hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for the server's answers within {} s: the data read or written at a time exceeds the buffers", .0.as_secs())]
pub struct Starved(pub Duration);
