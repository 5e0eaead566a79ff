//! SMB Direct: messages, and payload by RDMA, over a queue pair of any provider.
//!
//! What: [`Smbd`], a [`Channel`](crate::Channel); [`connect`] and [`accept`] negotiate one. Spec: [MS-SMBD].
//! Owns: the queue pair, posted receives, unsent messages, fetches under way.
//! Does not: parse SMB2; the segments of a READ or WRITE come from above.
//!
//! Operation: [`engine`] decides, `driver` posts what it says and hands it what completes. Whoever sends or receives
//! drives the queue pair on the spot; a task of the connection does it when nobody else does, and watches the time.
//! Buffers: posted receives come from the pool; a message of one fragment is delivered as a slice of its receive
//! buffer. Payload for RDMA goes down as it is, a file range unread.
//! Errors: a peer that breaks the protocol is disconnected; an inline payload that cannot be read fails its own
//! `send` alone.

mod channel;
pub mod config;
mod driver;
pub mod engine;
mod relay;
mod set_up;
mod split;

pub use channel::Smbd;
pub use config::Config;
pub use engine::Agreed;
pub use set_up::{accept, connect};
#[cfg(any(test, fuzzing))]
pub(crate) use set_up::{first_receive, passive};

/// The port of SMB Direct on iWARP ([MS-SMBD] 1.9): not 445, which is TCP's and InfiniBand's.
pub const IWARP_PORT: u16 = 5445;

#[cfg(test)]
mod tests;
