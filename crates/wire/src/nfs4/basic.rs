//! The basic types of NFSv4: handles, state ids, names, owners, times, lists (RFC 8881 3.2, 3.3; RFC 7530 2.1, 2.2).

use bytes::Bytes;

use super::{MAX_HANDLE, MAX_OPAQUE, MAX_TEXT};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, emit_list, list, xdr_struct};

pub use crate::nfs::Verifier;

/// nfs_fh4.
pub type Handle = crate::nfs::Handle<MAX_HANDLE>;

/// A string whose meaning and character set the server judges: component4, utf8str_cs and the like.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Text(pub Bytes);

impl Text {
    /// A string constant.
    pub const fn known(text: &'static str) -> Text {
        Text(Bytes::from_static(text.as_bytes()))
    }
}

impl Xdr for Text {
    fn parse(d: &mut Decoder) -> Result<Text, Malformed> {
        d.opaque(MAX_TEXT).map(Text)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// An opaque identity: the owner of a client, of opens or of locks (NFS4_OPAQUE_LIMIT).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Opaque(pub Bytes);

impl Xdr for Opaque {
    fn parse(d: &mut Decoder) -> Result<Opaque, Malformed> {
        d.opaque(MAX_OPAQUE).map(Opaque)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// linktext4. It is DDP-eligible in READLINK and CREATE (RFC 8267 section 5), so the content may be detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkText(pub Bytes);

impl Xdr for LinkText {
    fn parse(d: &mut Decoder) -> Result<LinkText, Malformed> {
        d.payload(MAX_TEXT).map(LinkText)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// A list of at most `N` items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpTo<T, const N: usize>(pub Vec<T>);

impl<T, const N: usize> Default for UpTo<T, N> {
    fn default() -> UpTo<T, N> {
        UpTo(Vec::new())
    }
}

impl<T: Xdr, const N: usize> Xdr for UpTo<T, N> {
    fn parse(d: &mut Decoder) -> Result<UpTo<T, N>, Malformed> {
        list(d, N).map(UpTo)
    }
    fn emit(&self, e: &mut Encoder) {
        emit_list(&self.0, e);
    }
}

/// stateid4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stateid {
    /// Incremented by every change of the state.
    pub seqid: u32,
    /// Identifies the state.
    pub other: [u8; 12],
}

impl Stateid {
    /// All zeros: no state at all (RFC 8881 8.2.3).
    pub const ANONYMOUS: Stateid = Stateid { seqid: 0, other: [0; 12] };
    /// All ones: READ bypasses locks (RFC 8881 8.2.3).
    pub const BYPASS: Stateid = Stateid { seqid: u32::MAX, other: [0xff; 12] };
    /// The current state id of a compound (RFC 8881 16.2.3.1.2).
    pub const CURRENT: Stateid = Stateid { seqid: 1, other: [0; 12] };
    /// The id of a closed state (RFC 8881 8.2.3).
    pub const INVALID: Stateid = Stateid { seqid: u32::MAX, other: [0; 12] };
}

impl Xdr for Stateid {
    fn parse(d: &mut Decoder) -> Result<Stateid, Malformed> {
        Ok(Stateid { seqid: d.u32()?, other: d.fixed()? })
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(self.seqid);
        e.fixed(&self.other);
    }
}

xdr_struct! {
    /// open_owner4, lock_owner4.
    pub struct Owner {
        /// The client's id.
        pub client: u64,
        /// The owner within the client.
        pub owner: Opaque,
    }
}

/// nfstime4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds; valid values are below 10^9.
    pub nseconds: u32,
}

impl Xdr for Time {
    fn parse(d: &mut Decoder) -> Result<Time, Malformed> {
        Ok(Time { seconds: d.u64()?.cast_signed(), nseconds: d.u32()? })
    }
    fn emit(&self, e: &mut Encoder) {
        e.u64(self.seconds.cast_unsigned());
        e.u32(self.nseconds);
    }
}

/// settime4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// SET_TO_SERVER_TIME4.
    Server,
    /// SET_TO_CLIENT_TIME4.
    Client(Time),
}

impl Xdr for SetTime {
    fn parse(d: &mut Decoder) -> Result<SetTime, Malformed> {
        match d.u32()? {
            0 => Ok(SetTime::Server),
            1 => Time::parse(d).map(SetTime::Client),
            _ => Err(Malformed("RFC 8881 3.3.2: unknown time_how4")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            SetTime::Server => e.u32(0),
            SetTime::Client(time) => {
                e.u32(1);
                time.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// change_info4: the change attribute of a directory before and after an operation.
    pub struct ChangeInfo {
        /// Whether no other change happened in between.
        pub atomic: bool,
        /// The change attribute before.
        pub before: u64,
        /// The change attribute after.
        pub after: u64,
    }
}

/// nfs_ftype4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType(pub u32);

#[allow(missing_docs, reason = "the RFC's names")]
impl FileType {
    pub const REG: FileType = FileType(1);
    pub const DIR: FileType = FileType(2);
    pub const BLK: FileType = FileType(3);
    pub const CHR: FileType = FileType(4);
    pub const LNK: FileType = FileType(5);
    pub const SOCK: FileType = FileType(6);
    pub const FIFO: FileType = FileType(7);
    pub const ATTRDIR: FileType = FileType(8);
    pub const NAMEDATTR: FileType = FileType(9);
}

impl Xdr for FileType {
    fn parse(d: &mut Decoder) -> Result<FileType, Malformed> {
        d.u32().map(FileType)
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(self.0);
    }
}

xdr_struct! {
    /// specdata4.
    #[derive(Copy, Default)]
    pub struct SpecData {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
}

xdr_struct! {
    /// netaddr4, clientaddr4.
    pub struct NetAddr {
        /// "tcp", "tcp6", "rdma", ...
        pub netid: Text,
        /// Universal address (RFC 5665 5.2.3).
        pub addr: Text,
    }
}

/// Checks that a discriminant is below `n`.
pub(super) fn below(value: u32, n: u32, why: &'static str) -> Result<u32, Malformed> {
    if value < n { Ok(value) } else { Err(Malformed(why)) }
}
