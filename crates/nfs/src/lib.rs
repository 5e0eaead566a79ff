//! ONC RPC, NFSv3 and MOUNT v3, server and client, over any [`weft_transport::Channel`].
//!
//! Spec: RFC 5531, RFC 1813. Owns: file handles, RPC dispatch. Does not: know which transport carries a call.
#![forbid(unsafe_code)]
// Nothing from the network reaches an index, and a sum that may overflow says what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod client;
#[cfg(any(test, fuzzing))]
mod memory;
pub mod server;
