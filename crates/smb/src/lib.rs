//! SMB 3.1.1, server and client, over any [`weft_transport::Channel`].
//!
//! Spec: [MS-SMB2], [MS-FSCC], [MS-NLMP], [MS-SPNG]. Dialects 2.1 to 3.1.1.
//! Owns: connections, sessions, trees, opens of the protocol. Does not: touch sockets, RDMA or the file system; the
//! transport moves bytes, the store keeps them.
#![forbid(unsafe_code)]
// Nothing from the network reaches an index, and a sum that may overflow says what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod auth;
pub mod client;
pub mod compression;
pub mod crypto;
mod ids;
pub mod server;
