//! Operations on names: CREATE, LINK, RENAME, READDIR, SETATTR, ACCESS, SECINFO (RFC 8881 18.1, 18.4, 18.9, 18.23,
//! 18.26, 18.29, 18.30; RFC 7530 section 16).
//!
//! Operations whose only argument is a name take a [`Text`].

use super::{Bitmap, ChangeInfo, Fattr, FileType, LinkText, SpecData, Stateid, Text, Verifier};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// Bits of ACCESS.
#[allow(missing_docs, reason = "the RFC's names")]
pub mod access {
    pub use crate::nfs::access::*;

    pub const XAREAD: u32 = 0x40;
    pub const XAWRITE: u32 = 0x80;
    pub const XALIST: u32 = 0x100;
}

xdr_struct! {
    /// ACCESS4resok.
    pub struct AccessOk {
        /// The rights that the server can evaluate.
        pub supported: u32,
        /// The rights that are granted.
        pub access: u32,
    }
}

/// createtype4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateType {
    /// NF4LNK to this target.
    Link(LinkText),
    /// NF4BLK or NF4CHR.
    Device(FileType, SpecData),
    /// Any other type, including types that cannot be created.
    Other(FileType),
}

impl Xdr for CreateType {
    fn parse(d: &mut Decoder) -> Result<CreateType, Malformed> {
        Ok(match FileType(d.u32()?) {
            FileType::LNK => CreateType::Link(LinkText::parse(d)?),
            kind @ (FileType::BLK | FileType::CHR) => CreateType::Device(kind, SpecData::parse(d)?),
            other => CreateType::Other(other),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            CreateType::Link(target) => {
                FileType::LNK.emit(e);
                target.emit(e);
            }
            CreateType::Device(kind, numbers) => {
                kind.emit(e);
                numbers.emit(e);
            }
            CreateType::Other(kind) => kind.emit(e),
        }
    }
}

xdr_struct! {
    /// CREATE4args.
    pub struct Create {
        /// Kind of object; with a link its target, with a device its numbers.
        pub kind: CreateType,
        /// Its name in the current directory.
        pub name: Text,
        /// Its attributes.
        pub attributes: Fattr,
    }
}

xdr_struct! {
    /// CREATE4resok.
    pub struct CreateOk {
        /// The directory before and after.
        pub change: ChangeInfo,
        /// Attributes that were set.
        pub attrset: Bitmap,
    }
}

xdr_struct! {
    /// RENAME4args.
    pub struct Rename {
        /// The name in the saved directory.
        pub from: Text,
        /// The name in the current directory.
        pub to: Text,
    }
}

xdr_struct! {
    /// RENAME4resok.
    pub struct RenameOk {
        /// The saved directory.
        pub from: ChangeInfo,
        /// The current directory.
        pub to: ChangeInfo,
    }
}

xdr_struct! {
    /// READDIR4args.
    pub struct Readdir {
        /// Continue after this entry; 0 is the start.
        pub cookie: u64,
        /// From the reply that gave the cookie; zero at the start.
        pub verifier: Verifier,
        /// Most bytes of names and cookies; a hint.
        pub dircount: u32,
        /// Most bytes of READDIR4resok.
        pub maxcount: u32,
        /// The requested attributes.
        pub attributes: Bitmap,
    }
}

xdr_struct! {
    /// entry4 without its list link.
    pub struct Entry {
        /// Continues the listing after this entry.
        pub cookie: u64,
        /// The name.
        pub name: Text,
        /// Attributes.
        pub attributes: Fattr,
    }
}

/// READDIR4resok.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirOk {
    /// The client sends it back with a cookie.
    pub verifier: Verifier,
    /// Entries in order.
    pub entries: Vec<Entry>,
    /// Whether the directory ends with these entries.
    pub eof: bool,
}

impl Xdr for ReaddirOk {
    fn parse(d: &mut Decoder) -> Result<ReaddirOk, Malformed> {
        let verifier = d.fixed()?;
        // The list cannot outgrow the stream, since every entry takes at least 20 bytes of it.
        let mut entries = Vec::new();
        while d.bool()? {
            entries.push(Entry::parse(d)?);
        }
        Ok(ReaddirOk { verifier, entries, eof: d.bool()? })
    }
    fn emit(&self, e: &mut Encoder) {
        e.fixed(&self.verifier);
        for entry in &self.entries {
            e.bool(true);
            entry.emit(e);
        }
        e.bool(false);
        e.bool(self.eof);
    }
}

xdr_struct! {
    /// SETATTR4args.
    pub struct Setattr {
        /// The state that permits a change of size.
        pub stateid: Stateid,
        /// The attributes to set.
        pub attributes: Fattr,
    }
}
