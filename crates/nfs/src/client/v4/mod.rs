//! NFS version 4.1: the same mounted export, over a session.
//!
//! What: [`Mount`], which has the shape of version 3's. Spec: RFC 8881. Owns: nothing; `session` has what a server keeps of
//! us. Does not: ask for delegations or layouts, lock, cache.
//!
//! `slots` says which request may go, `session` that none is carried out twice and that what a restarted server forgot is
//! taken back, `compound` puts operations together and takes results apart, `opened` is one open file.

mod attributes;
pub(super) mod callback;
mod compound;
mod mount;
mod opened;
mod session;
mod slots;

pub use mount::Mount;
pub(super) use opened::Opened;

#[cfg(test)]
mod tests;
