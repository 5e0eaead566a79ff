//! The NBD server: volumes as disks of other programs.
//!
//! What: [`Server`] serves connections; the handshake is a state machine ([`negotiation`]), requests are plain futures.
//! Spec: the NBD project's doc/proto.md. Owns: exports, limits. Does not: listen, or know what a volume lies on.
#![forbid(unsafe_code)]
// Nothing from the network reaches an index, and a sum that may overflow says what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod connection;
mod execute;
pub mod negotiation;
mod outbox;
mod receiver;
mod resources;
mod server;
mod watch;

#[cfg(test)]
mod tests;

pub use resources::{Error, Export, Limits};
pub use server::{Config, Server};
pub use watch::Watch;
pub use weft_machine::net::{Tls, TlsError};
