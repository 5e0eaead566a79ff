//! ONC RPC, NFS (version 3 and versions 4.0 to 4.2) and MOUNT v3, server and client, over any
//! [`weft_transport::Channel`].
//!
//! See RFC 5531, RFC 1813 and RFC 8881. Nothing in this crate depends on the transport that carries a call.
#![forbid(unsafe_code)]
// No value from the network is used as an index, and every sum that may overflow states what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod client;
mod gss;
#[cfg(any(test, fuzzing))]
mod memory;
pub mod server;
