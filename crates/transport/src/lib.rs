//! Messages between two peers: the switch under SMB and under ONC RPC.
//!
//! What: five siblings of one shape, [`Channel`]: `nbss` (SMB over TCP), `smbd` (SMB Direct), `record` (RPC over
//! TCP), `datagram` (RPC over UDP), `rpcrdma` (RPC over RDMA).
//! Spec: [MS-SMBD] 3.1.4 gives the list of calls; RFC 8166 the meaning of tickets.
//! Owns: framing, credits, fragments, registered payload. Does not: look into messages.
#![forbid(unsafe_code)]
// Nothing from the network reaches an index, and a sum that may overflow says what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod channel;
pub mod datagram;
mod framed;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod memory;
pub mod nbss;
pub mod record;
mod rooms;
pub mod rpcrdma;
mod sent;
mod silence;
pub mod smbd;
pub mod strangers;

pub use channel::*;
pub use rooms::Rooms;
pub use silence::{Silence, Starved};
