//! An SMB client, dialects 2.1 to 3.1.1, over any [`weft_transport::Channel`]: [`Session`], [`Tree`], [`File`].
//!
//! Spec: [MS-SMB2] 3.2. Owns the connections of one session. It does not discover servers, reconnect, follow DFS links
//! (it only resolves them), cache, or take oplocks. The owner of a [`Lease`] may cache. Runs on one core: clones share
//! state through `Rc`. Needs a running [`weft_machine::rt`] loop.

mod connections;
mod copy;
mod core;
mod credits;
mod description;
mod dfs;
mod durable;
mod error;
mod file;
mod kept;
mod leased;
mod leases;
mod link;
mod lock_sequences;
mod locks;
mod negotiate;
mod open_options;
mod options;
mod path;
mod payload;
mod region;
mod session;
mod setup;
mod shares;
mod stat;
mod tree;

pub use description::Description;
pub use dfs::{Referral, Target};
pub use error::{Denial, Error};
pub use file::File;
pub use leased::Lease;
pub use leases::LeaseBreak;
pub use locks::{ByteRange, LockKind, OnConflict};
pub use open_options::OpenOptions;
pub use options::{Options, Wish};
pub use session::{Carrier, Endpoint, Session};
pub use shares::Share;
pub use stat::Stat;
pub use tree::{Entry, Space, Tree};
pub use weft_wire::smb2::Filetime;
pub use weft_wire::smb2::create_context::LeaseState;
pub use weft_wire::smb2::ioctl::{CtlCode, NetworkInterface};

#[cfg(test)]
mod tests;
