//! Directory listings: READDIR, READDIRPLUS (RFC 1813 3.3.16, 3.3.17).
//!
//! The server counts bytes against dircount and maxcount.

use super::{Handle, Name, PostOpAttr, Verifier, Xdr, xdr_struct};
use crate::xdr::{Decoder, Encoder, Malformed};

xdr_struct! {
    /// READDIR3args.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: Handle,
        /// Continue after this entry; 0 is the start.
        pub cookie: u64,
        /// From the reply that gave the cookie; zero at the start.
        pub verifier: Verifier,
        /// Most bytes of READDIR3resok.
        pub count: u32,
    }
}

xdr_struct! {
    /// entry3 without its list link.
    pub struct Entry {
        /// File id, unique in the file system.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// Continues the listing after this entry.
        pub cookie: u64,
    }
}

xdr_struct! {
    /// READDIRPLUS3args.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: Handle,
        /// Continue after this entry; 0 is the start.
        pub cookie: u64,
        /// From the reply that gave the cookie; zero at the start.
        pub verifier: Verifier,
        /// Most bytes of names, file ids and cookies.
        pub dircount: u32,
        /// Most bytes of READDIRPLUS3resok.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// entryplus3 without its list link.
    pub struct EntryPlus {
        /// File id, unique in the file system.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// Continues the listing after this entry.
        pub cookie: u64,
        /// Attributes.
        pub attributes: PostOpAttr,
        /// Handle.
        pub handle: Option<Handle>,
    }
}

/// READDIR3resok and READDIRPLUS3resok.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<E> {
    /// Attributes of the directory.
    pub attributes: PostOpAttr,
    /// The client sends it back with a cookie.
    pub verifier: Verifier,
    /// Entries in order.
    pub entries: Vec<E>,
    /// Whether the directory ends with these entries.
    pub eof: bool,
}

/// READDIR3resok.
pub type ReaddirOk = Listing<Entry>;
/// READDIRPLUS3resok.
pub type ReaddirplusOk = Listing<EntryPlus>;

impl<E: Xdr> Xdr for Listing<E> {
    fn parse(d: &mut Decoder) -> Result<Listing<E>, Malformed> {
        let (attributes, verifier) = (PostOpAttr::parse(d)?, Verifier::parse(d)?);
        // The list cannot outgrow the stream, since every entry takes at least 24 bytes of it.
        let mut entries = Vec::new();
        while d.bool()? {
            entries.push(E::parse(d)?);
        }
        Ok(Listing { attributes, verifier, entries, eof: d.bool()? })
    }
    fn emit(&self, e: &mut Encoder) {
        self.attributes.emit(e);
        self.verifier.emit(e);
        for entry in &self.entries {
            e.bool(true);
            entry.emit(e);
        }
        e.bool(false);
        e.bool(self.eof);
    }
}
