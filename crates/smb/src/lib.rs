//! SMB 3.1.1, server and client, over any [`weft_transport::Channel`].
//!
//! Spec: [MS-SMB2], [MS-FSCC], [MS-NLMP], [MS-SPNG]. Dialects 2.1 to 3.1.1. Owns the protocol's connections, sessions,
//! trees and opens. It touches no sockets, RDMA or file system: the transport moves bytes, the store keeps them.
#![forbid(unsafe_code)]
// Network input never indexes anything, and arithmetic that may overflow states how it is handled.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod auth;
pub mod client;
pub mod compression;
pub mod crypto;
pub mod server;
