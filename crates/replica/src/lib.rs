//! Storage Replica: volumes that copy themselves to other hosts, block by block, and stay copies.
//!
//! A [`source::Source`] wraps the blocks of a group of volumes, a [`destination::Destination`] keeps their copy, and a
//! [`peer::Peer`] carries requests from one to the other. The messages are in `wire::repl`, the layout on disk in
//! [`journal`]. The crate does not listen, connect, encrypt, or name volumes.
//!
//! # How a write travels
//!
//! ```text
//!   submit ──┬─► own log, durable ──► the volume ──┐
//!            └─► peer's log, durable ──────────────┴─► answered (synchronous)
//! ```
//!
//! A group of volumes has one log and one order; a single volume is a group of one. Writes that arrive together become
//! durable together. If writes wait for a destination, it gets records while they are logged, so that both logs are
//! flushed at the same time; any other destination gets them when they are durable. A source begins a new era whenever it is
//! opened, and the era says whether it may have lost records that a destination has. The payload is hashed once on each side, and never copied: a
//! record is a header and the caller's own buffers.
//!
//! # What is remembered
//!
//! Each side of a group has a *journal*, a separate block: state (two checksummed copies), one bitmap for each
//! destination and volume, and the ring log. Until a destination has a changed range, it is named in the log, in the
//! bitmap, or, while it is copied, by a lock that holds back writes to it. A record leaves the log when the volumes are
//! durable, and each destination has the record or its bitmap, durably, names its range.
//!
//! # Histories
//!
//! A history is a sequence of eras, each written by one source. A promotion begins an era, with a higher epoch and a
//! random tag, behind the last record of the new source. A source that is reopened, and may have lost records that a
//! destination has, begins an era of the same epoch: it is the same source, and the destination's records behind that
//! point are diverged. Whoever knows a later era fences a source. Its records behind the point where the histories part
//! are *diverged*, and are overwritten when it becomes a destination; if any of them were answered, an administrator
//! has to decide that.
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
mod owner;
mod partner;
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

pub use error::{Damage, Error};
pub use status::{Mode, Phase, Role, Status};
