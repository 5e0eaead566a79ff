//! A peer that owes an answer and is not heard: whose fault that is, in the same words for every protocol.

use std::fmt;
use std::time::Duration;

use crate::Channel;

/// Why nothing is heard of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It says nothing, or the network loses it.
    Server,
    /// What it is asked, or answers, waits on our side for memory ([`Channel::waits_for_memory`]).
    Memory,
}

impl Silence {
    /// Of the server at the other end of a channel that is silent.
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

/// There was no memory for what a server answers, for so long: other requests of this client hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for the server's answers within {} s: what is read or written at a time is more than the buffers hold", .0.as_secs())]
pub struct Starved(pub Duration);
