//! What connections share: exports, buffers and limits; and how a connection may fail.
//!
//! See doc/proto.md "Block size constraints".

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::Pool;
use weft_machine::rt::Drain;
use weft_store::block::Block;
use weft_wire::nbd::Malformed;

/// A volume and its export name.
#[derive(Clone, Debug)]
pub struct Export {
    /// The name.
    pub name: String,
    /// A description for people, which `nbdinfo` shows.
    pub description: String,
    /// The volume.
    pub block: Arc<dyn Block>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Options of a handshake.
    pub options: usize,
    /// Most bytes of an option's data; a longer one is refused.
    pub option_bytes: u32,
    /// Bytes of a refused option's data that are skipped; more end the connection.
    pub skipped_bytes: u32,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// Bytes of a READ or WRITE. Clients that do not ask assume 32 MiB ("Block size constraints").
    pub request_bytes: u32,
    /// A WRITE that is longer is carried out in pieces of this size, at most a pool buffer.
    pub piece_bytes: u32,
    /// How long [`Limits::payload_step`] bytes of a payload may take to arrive, because the payload occupies a buffer
    /// meanwhile.
    pub payload: Duration,
    /// See [`Limits::payload`].
    pub payload_step: usize,
    /// Most unanswered requests.
    pub requests: usize,
    /// Most bytes of unanswered WRITEs.
    pub unanswered_bytes: usize,
    /// Most unread replies; beyond that, no requests are received.
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
            // At least 64 KiB a second: a piece of 4 MiB arrives within about a minute, and half of it is not kept
            // for longer.
            payload: Duration::from_secs(10),
            payload_step: 640 << 10,
            requests: 128,
            unanswered_bytes: 64 << 20,
            replies: 32,
            extents: 256,
        }
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client's message is malformed.
    #[error("the client's message is not NBD: {0}")]
    Malformed(#[from] Malformed),
    /// The client violated the protocol.
    #[error("the client violated the protocol: {0}")]
    Violation(&'static str),
    /// The connection failed, or the volume did with a reply half sent.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What every connection of a server uses.
pub(crate) struct Resources {
    /// Buffers for data to send.
    pub pool: Pool,
    /// Buffers for the payload of WRITEs.
    pub received: Pool,
    pub limits: Limits,
    /// Signals that no more requests are accepted.
    pub drain: Drain,
}
