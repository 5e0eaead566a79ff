//! Shared memory between processes of one user: control segments, rings, doorbells, and the socket that passes
//! their descriptors.
//!
//! These are the primitives of `rdma::shm`, safe to use against a peer that scribbles over everything it can map. They
//! use unix(7) SCM_RIGHTS and SO_PEERCRED, and memfd_create(2) with seals. They do not protect *data* from a peer of
//! the same user, which can always write what it maps. But it can never make us access memory outside a mapping.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod dir;
mod doorbell;
mod ring;
mod socket;
mod words;

pub use dir::{runtime_dir, secure_dir};
pub use doorbell::{Doorbell, Ringer, Sleeper};
pub use ring::{Consumer, Full, Producer};
pub use socket::{PathListener, Received, Socket, check_same_user};
pub use words::{Word, Words, adopt};

#[cfg(test)]
mod tests;
