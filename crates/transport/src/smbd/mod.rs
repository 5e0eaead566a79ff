//! SMB Direct: messages, and payload by RDMA, over a queue pair of any provider.
//!
//! [`Smbd`] is a [`Channel`](crate::Channel); [`connect`] and [`accept`] negotiate one. It implements [MS-SMBD]. It
//! owns the queue pair, posted receives, unsent messages and pending fetches. It does not parse SMB2; the caller
//! supplies the segments of a READ or WRITE.
//!
//! [`engine`] decides; `driver` carries out its outputs and reports completions to it. A sender or receiver drives the
//! queue pair directly; otherwise a task of the connection does, which also watches the deadlines. Posted receives come
//! from the pool; a message of one fragment is delivered as a slice of its receive buffer. Payload for RDMA is passed
//! to the provider unchanged, a file range unread. A peer that breaks the protocol is disconnected; an inline payload
//! that cannot be read fails its own `send` only.

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

/// The port of SMB Direct on iWARP ([MS-SMBD] 1.9): not 445, which TCP and InfiniBand use.
pub const IWARP_PORT: u16 = 5445;

#[cfg(test)]
mod tests;
