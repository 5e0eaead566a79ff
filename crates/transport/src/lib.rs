//! Messages between two peers: the layer under SMB and under ONC RPC.
//!
//! Five transports implement [`Channel`]: `nbss` (SMB over TCP), `smbd` (SMB Direct), `record` (RPC over TCP),
//! `datagram` (RPC over UDP), `rpcrdma` (RPC over RDMA). [MS-SMBD] 3.1.4 defines the list of calls, RFC 8166 the
//! meaning of tickets. The room handles framing, credits, fragments and registered payload. It does not interpret
//! messages.
#![forbid(unsafe_code)]
// No input from the network is used as an unchecked index, and every sum that may overflow states the outcome.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod arriving;
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
pub use rooms::{Rooms, must_be_read, read_into_room};
pub use silence::{Silence, Starved};
