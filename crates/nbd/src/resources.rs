//! What connections share: exports, buffers and limits, and how a connection may end.
//!
//! Spec: doc/proto.md "Block size constraints". Does not: serve (`server`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::Pool;
use weft_machine::rt::Drain;
use weft_store::block::Block;
use weft_wire::nbd::Malformed;

/// A volume under the name that clients ask for.
#[derive(Clone, Debug)]
pub struct Export {
    /// The name.
    pub name: String,
    /// A sentence for people, which `nbdinfo` shows.
    pub description: String,
    /// Its bytes.
    pub block: Arc<dyn Block>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a connection may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Options of a handshake.
    pub options: usize,
    /// Bytes of an option's data that are looked at; a longer one is refused.
    pub option_bytes: u32,
    /// Bytes of an option's data that are skipped after it was refused; a longer one ends the connection.
    pub skipped_bytes: u32,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// Bytes of a READ or WRITE. Clients that do not ask assume 32 MiB ("Block size constraints").
    pub request_bytes: u32,
    /// A WRITE that is longer is carried out in pieces of this size, at most a pool buffer.
    pub piece_bytes: u32,
    /// How long [`Limits::payload_step`] bytes of a payload may take to come: it has a buffer meanwhile.
    pub payload: Duration,
    /// See [`Limits::payload`].
    pub payload_step: usize,
    /// Requests that are not answered yet.
    pub requests: usize,
    /// Bytes of WRITEs that are not answered yet.
    pub unanswered_bytes: usize,
    /// Replies that the client has not taken; then no more requests are taken from it.
    pub replies: usize,
    /// Extents of a BLOCK_STATUS reply.
    pub extents: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            options: 64,
            option_bytes: 32 << 10,
            skipped_bytes: 1 << 20,
            handshake: Duration::from_secs(30),
            request_bytes: 32 << 20,
            piece_bytes: 4 << 20,
            // 64 KiB a second at least: a piece of 4 MiB is here within about a minute, and half of it is not kept for longer.
            payload: Duration::from_secs(10),
            payload_step: 640 << 10,
            requests: 128,
            unanswered_bytes: 64 << 20,
            replies: 32,
            extents: 256,
        }
    }
}

/// Why a connection ended other than in order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client sent what is no message.
    #[error("the client sent no NBD message: {0}")]
    Malformed(#[from] Malformed),
    /// The client did what it must not.
    #[error("the client broke a rule: {0}")]
    Violation(&'static str),
    /// The connection or, with an answer half sent, the volume failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What every connection of a server uses.
pub(crate) struct Resources {
    /// Buffers for what is sent.
    pub pool: Pool,
    /// Buffers for the payload of WRITEs.
    pub received: Pool,
    pub limits: Limits,
    /// Begins when no more requests are to be taken.
    pub drain: Drain,
}
