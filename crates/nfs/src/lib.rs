//! ONC RPC, NFSv3 and MOUNT v3, server and client, over any [`weft_transport::Channel`].
//!
//! Spec: RFC 5531, RFC 1813. Owns: file handles, RPC dispatch. Does not: know which transport carries a call.
#![forbid(unsafe_code)]

pub mod client;
#[cfg(any(test, fuzzing))]
mod memory;
pub mod server;
