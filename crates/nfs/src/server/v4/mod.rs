//! NFS version 4: minor versions 0, 1 and 2.
//!
//! What: [`compound`] answers one COMPOUND; one file per operation or family in `ops`.
//! Spec: RFC 7530, RFC 8881, RFC 7862, RFC 8276. Owns: nothing; what is remembered of clients is in `state`.
//! Does not: pNFS, SSV, directory delegations (they answer NFS4ERR_NOTSUPP).

mod acl;
mod attributes;
mod close;
mod compound;
mod delegations;
mod dial;
mod dispatch;
mod io;
mod named;
mod names;
mod ops;
mod place;
mod reply;
pub(super) mod state;

pub(super) use close::{clear_lapsed, close_open, sweep};
pub(super) use dispatch::compound;

#[cfg(test)]
pub(super) mod tests;
