//! Storage Replica: volumes that copy themselves to other hosts, block by block, and stay copies.
//!
//! What: a [`source::Source`] wraps the blocks of a group of volumes, a [`destination::Destination`] keeps their copy, and a
//! [`peer::Peer`] is what lies between. Spec: ours; what the sides say is in `wire::repl`, what they keep in [`journal`].
//! Owns: logs, bitmaps and the state of both sides. Does not: listen, connect, encrypt, or name volumes.
//!
//! # How a write travels
//!
//! ```text
//!   submit ──┬─► own log, durable ──► the volume ──┐
//!            └─► peer's log, durable ──────────────┴─► answered (synchronous)
//! ```
//!
//! A group of volumes has one log and one order; a single volume is a group of one. Writes that come together become durable
//! together. To a destination that writes wait for, records are sent while they are logged, so that both logs are flushed at
//! once; to any other, when they are durable. A source that forgets in a crash what it has sent says so: it begins an era.
//! The payload is hashed once on each side, and never copied: a record is a header and the caller's own buffers.
//!
//! # What is remembered
//!
//! Per group and side one *journal*, a block of its own: state (two checksummed copies), one bitmap for each destination and
//! volume, and the ring log. A range is in one of three places until a destination has it: in the log, in the bitmap, or, while
//! it is copied, under a lock that holds writes to it back. Records leave the log when the volumes are durable, and each
//! destination has them or its bitmap, durably, names their ranges.
//!
//! # Histories
//!
//! A history is a row of eras, each written by one source. A promotion begins an era, with a higher epoch and a random tag,
//! behind the last record that the new source has. A source that was opened anew, and may have lost what a destination has,
//! begins one of the same epoch: it is the same source, and what the destination has behind that point goes as any other
//! that is diverged. A source is fenced by whoever knows a later era; what it has written behind the point where the histories
//! part is *diverged*, and goes when it becomes a destination, which never happens by itself when somebody was told that it
//! is safe.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod answer;
mod bitmap;
pub mod destination;
mod digest;
pub mod error;
pub mod front;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod group;
mod history;
pub mod journal;
mod log;
mod overlay;
pub mod peer;
pub mod record;
mod replay;
pub mod rescue;
mod scan;
pub mod signal;
pub mod source;
mod space;
pub mod state;
pub mod status;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use scan::Damage;
pub use status::{Mode, Phase, Role, Status};
