//! The NBD server: exports volumes as disks for other programs.
//!
//! [`Server`] serves connections; the handshake is a state machine ([`negotiation`]), requests are plain futures. See
//! the NBD project's doc/proto.md. The server does not listen, and does not depend on what a volume is stored on.
#![forbid(unsafe_code)]
// No value from the network is used as an index, and every sum that may overflow states what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod connection;
mod execute;
mod meter;
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
