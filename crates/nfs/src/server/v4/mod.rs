//! NFS version 4: minor versions 0, 1 and 2.
//!
//! [`compound`] answers one COMPOUND; `ops` has one file per operation or family; `state` holds the state of clients.
//! See RFC 7530, RFC 8881, RFC 7862 and RFC 8276. pNFS, SSV and directory delegations are not supported
//! (NFS4ERR_NOTSUPP).

mod acl;
pub(super) mod at_once;
mod attributes;
mod audit;
mod audited;
mod close;
mod compound;
mod delegations;
mod dial;
mod dispatch;
mod fs_object;
mod io;
mod named;
mod names;
mod ops;
mod reply;
pub(super) mod state;

pub(super) use close::{clear_lapsed, close_open, release, sweep};
pub(super) use dispatch::compound;

#[cfg(test)]
pub(super) mod tests;
