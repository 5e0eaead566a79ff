//! The operations of NFS version 4, one file for each or for a family.
//!
//! See RFC 7530 16, RFC 8881 18, RFC 7862 15 and RFC 8276 8.4. `dispatch` parses and emits.
//!
//! Every operation is a function of the compound and its arguments. No borrow of state is held across an await.

pub mod access;
pub mod clientid;
pub mod copy;
pub mod create;
pub mod getattr;
pub mod link;
pub mod lock;
pub mod lookup;
pub mod open;
pub mod opened;
pub mod ranges;
pub mod read;
pub mod readdir;
pub mod readlink;
pub mod remove;
pub mod rename;
pub mod secinfo;
pub mod session;
pub mod setattr;
pub mod stateids;
pub mod verify;
pub mod write;
pub mod xattr;
