//! NFS version 4.1: the same mounted export, over a session.
//!
//! [`Mount`] has the same methods as version 3's. See RFC 8881. The client does not request delegations or layouts,
//! or cache.
//!
//! `slots` limits the outstanding requests; `session` ensures that none is carried out twice and reclaims what a
//! restarted server forgot; `compound` encodes operations and decodes results; `opened` is one open file,
//! and `locks` its byte-range locks; `walk` leads to a path, and `security` asks which flavors are accepted there.

mod attributes;
pub(super) mod callback;
mod compound;
mod locking;
mod locks;
mod mount;
mod opened;
mod security;
mod session;
mod slots;
mod walk;

pub use mount::{Extras, Mount};
pub(super) use opened::Opened;
pub use security::offered;

#[cfg(test)]
mod tests;
