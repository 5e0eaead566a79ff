//! Shared memory between processes of one user: control segments, rings, doorbells, and the socket that passes
//! their descriptors.
//!
//! What: the primitives of `rdma::shm`, safe to use against a peer that scribbles over everything it can map.
//! Spec: unix(7) SCM_RIGHTS and SO_PEERCRED, memfd_create(2) with seals.
//! Owns: mappings and descriptors. Does not: know verbs, or keep a same-user peer from spoiling *data*: it can
//! always write what it maps. It can never make us read or write outside a mapping.
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
