//! NFS version 4.1: the same mounted export, over a session.
//!
//! [`Mount`] has the same methods as version 3's. See RFC 8881. The client does not request delegations or layouts,
//! or cache.
//!
//! `slots` limits the outstanding requests; `session` ensures that none is carried out twice and reclaims what a
//! restarted server forgot; `compound` encodes operations and decodes results; `opened` is one open file,
//! and `locks` its byte-range locks.

mod attributes;
pub(super) mod callback;
mod compound;
mod locking;
mod locks;
mod mount;
mod opened;
mod session;
mod slots;

pub use mount::{Extras, Mount};
pub(super) use opened::Opened;

#[cfg(test)]
mod tests;
