//! Access control lists (RFC 8881 6.2.1, RFC 7530 6.2.1).

use super::{Text, UpTo};
use crate::xdr::xdr_struct;

/// Most entries that are parsed.
pub const MAX_ACES: usize = 1024;

xdr_struct! {
    /// nfsace4.
    pub struct Ace {
        /// Allow, deny, audit or alarm.
        pub kind: u32,
        /// Inheritance, and whether `who` is a group.
        pub flags: u32,
        /// The rights that the entry allows or denies.
        pub mask: u32,
        /// "OWNER@", "GROUP@", "EVERYONE@", or a user or group.
        pub who: Text,
    }
}

/// The attribute.
pub type Acl = UpTo<Ace, MAX_ACES>;

/// Kinds of entries.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod ace_type {
    pub const ALLOWED: u32 = 0;
    pub const DENIED: u32 = 1;
    pub const AUDIT: u32 = 2;
    pub const ALARM: u32 = 3;
}

/// Bits of a mask.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod ace_mask {
    pub const READ_DATA: u32 = 0x01;
    pub const WRITE_DATA: u32 = 0x02;
    pub const APPEND_DATA: u32 = 0x04;
    pub const READ_NAMED_ATTRS: u32 = 0x08;
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const DELETE_CHILD: u32 = 0x40;
    pub const READ_ATTRIBUTES: u32 = 0x80;
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    pub const DELETE: u32 = 0x1_0000;
    pub const READ_ACL: u32 = 0x2_0000;
    pub const WRITE_ACL: u32 = 0x4_0000;
    pub const WRITE_OWNER: u32 = 0x8_0000;
    pub const SYNCHRONIZE: u32 = 0x10_0000;
}
