//! NFS version 4, minor versions 0, 1 and 2: compounds, operations, attributes, callbacks.
//!
//! The specifications are RFC 7530 and 7531 (4.0), RFC 8881 and 5662 (4.1), RFC 7862 and 7863 (4.2), RFC 8276 (extended
//! attributes). Each family has one file; names are the RFCs' without prefix and suffix. pNFS and SSV are unsupported:
//! their operations have names but no arguments.

mod acl;
mod attributes;
mod basic;
mod bitmap;
mod callback;
mod client;
mod compound;
mod data;
mod lock;
mod names;
mod open;
mod session;
mod status;
mod xattr;

pub use acl::*;
pub use attributes::*;
pub use basic::*;
pub use bitmap::*;
pub use callback::*;
pub use client::*;
pub use compound::*;
pub use data::*;
pub use lock::*;
pub use names::*;
pub use open::*;
pub use session::*;
pub use status::*;
pub use xattr::*;

pub use crate::nfs::Stable;
pub use crate::xdr::Xdr;
use crate::xdr::{Decoder, Encoder, Malformed, xdr_struct};

/// The program number.
pub const PROGRAM: u32 = 100_003;
/// The program version.
pub const VERSION: u32 = 4;
/// The highest minor version.
pub const MINOR_VERSION: u32 = 2;
/// NULL.
pub const NULL: u32 = 0;
/// COMPOUND.
pub const COMPOUND: u32 = 1;
/// Longest file handle (NFS4_FHSIZE).
pub const MAX_HANDLE: usize = 128;
/// Longest opaque identity (NFS4_OPAQUE_LIMIT).
pub const MAX_OPAQUE: usize = 1024;
/// Longest string that is parsed. The protocol has no limit, so that a server can answer NFS4ERR_NAMETOOLONG.
pub const MAX_TEXT: usize = 8192;
/// Largest payload of a READ or WRITE that is parsed.
pub const MAX_DATA: usize = 8 << 20;

#[cfg(test)]
mod tests;
