//! The NBD server: volumes as disks of other programs.
//!
//! What: [`Server`] serves connections; the handshake is a state machine ([`negotiation`]), requests are plain futures.
//! Spec: the NBD project's doc/proto.md. Owns: exports, limits. Does not: listen, or know what a volume lies on.
#![forbid(unsafe_code)]

mod connection;
mod execute;
mod link;
pub mod negotiation;
mod outbox;
mod receiver;
mod server;

#[cfg(test)]
mod tests;

pub use link::{Tls, TlsError};
pub use server::{Config, Error, Export, Limits, Server};
