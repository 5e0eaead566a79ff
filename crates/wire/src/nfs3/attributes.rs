//! Attributes: fattr3, sattr3, wcc_data; GETATTR, SETATTR, ACCESS.
//!
//! Spec: RFC 1813 2.5, 3.3.1, 3.3.2, 3.3.4. Does not: map attributes of a file system.

use super::{Handle, Xdr, xdr_struct};
use crate::xdr::{Decoder, Encoder, Malformed};

/// ftype3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the RFC's names")]
pub enum FileType {
    Reg = 1,
    Dir = 2,
    Blk = 3,
    Chr = 4,
    Lnk = 5,
    Sock = 6,
    Fifo = 7,
}

impl Xdr for FileType {
    fn parse(d: &mut Decoder) -> Result<FileType, Malformed> {
        Ok(match d.u32()? {
            1 => FileType::Reg,
            2 => FileType::Dir,
            3 => FileType::Blk,
            4 => FileType::Chr,
            5 => FileType::Lnk,
            6 => FileType::Sock,
            7 => FileType::Fifo,
            _ => return Err(Malformed("RFC 1813 2.5: unknown ftype3")),
        })
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(*self as u32);
    }
}

xdr_struct! {
    /// nfstime3: seconds and nanoseconds since 1970.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds.
        pub nseconds: u32,
    }
}

xdr_struct! {
    /// specdata3: device numbers.
    #[derive(Copy, Default)]
    pub struct SpecData {
        /// Major.
        pub major: u32,
        /// Minor.
        pub minor: u32,
    }
}

xdr_struct! {
    /// fattr3.
    pub struct Attributes {
        /// What it is.
        pub kind: FileType,
        /// Permission bits.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Bytes.
        pub size: u64,
        /// Bytes occupied.
        pub used: u64,
        /// Device numbers.
        pub rdev: SpecData,
        /// File system.
        pub fsid: u64,
        /// Number in the file system.
        pub fileid: u64,
        /// Last read.
        pub atime: Time,
        /// Last write.
        pub mtime: Time,
        /// Last change of attributes.
        pub ctime: Time,
    }
}

/// post_op_attr.
pub type PostOpAttr = Option<Attributes>;

xdr_struct! {
    /// wcc_attr: enough of the attributes before an operation to tell whether somebody else changed the file.
    pub struct WccAttr {
        /// Bytes.
        pub size: u64,
        /// Last write.
        pub mtime: Time,
        /// Last change of attributes.
        pub ctime: Time,
    }
}

xdr_struct! {
    /// wcc_data: weak cache consistency.
    #[derive(Default)]
    pub struct WccData {
        /// Before the operation.
        pub before: Option<WccAttr>,
        /// After it.
        pub after: PostOpAttr,
    }
}

/// set_atime, set_mtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// DONT_CHANGE.
    #[default]
    Keep,
    /// SET_TO_SERVER_TIME.
    Server,
    /// SET_TO_CLIENT_TIME.
    Client(Time),
}

impl Xdr for SetTime {
    fn parse(d: &mut Decoder) -> Result<SetTime, Malformed> {
        match d.u32()? {
            0 => Ok(SetTime::Keep),
            1 => Ok(SetTime::Server),
            2 => Time::parse(d).map(SetTime::Client),
            _ => Err(Malformed("RFC 1813 2.5: unknown time_how")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            SetTime::Keep => e.u32(0),
            SetTime::Server => e.u32(1),
            SetTime::Client(time) => {
                e.u32(2);
                time.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// sattr3: what to change.
    #[derive(Default)]
    pub struct SetAttributes {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Truncate or extend.
        pub size: Option<u64>,
        /// Last read.
        pub atime: SetTime,
        /// Last write.
        pub mtime: SetTime,
    }
}

xdr_struct! {
    /// GETATTR3args.
    pub struct GetattrArgs {
        /// Of what.
        pub object: Handle,
    }
}

xdr_struct! {
    /// GETATTR3resok.
    pub struct GetattrOk {
        /// The attributes.
        pub attributes: Attributes,
    }
}

xdr_struct! {
    /// SETATTR3args.
    pub struct SetattrArgs {
        /// Of what.
        pub object: Handle,
        /// What to change.
        pub attributes: SetAttributes,
        /// Only if its ctime is this.
        pub guard: Option<Time>,
    }
}

xdr_struct! {
    /// SETATTR3resok and resfail.
    #[derive(Default)]
    pub struct WccOnly {
        /// Of the object.
        pub wcc: WccData,
    }
}

xdr_struct! {
    /// ACCESS3args.
    pub struct AccessArgs {
        /// Of what.
        pub object: Handle,
        /// Which rights are asked about.
        pub access: u32,
    }
}

xdr_struct! {
    /// ACCESS3resok.
    pub struct AccessOk {
        /// After the operation.
        pub attributes: PostOpAttr,
        /// Which of them are granted.
        pub access: u32,
    }
}

xdr_struct! {
    /// A `resfail` arm that carries attributes only.
    #[derive(Default)]
    pub struct AttrOnly {
        /// After the operation.
        pub attributes: PostOpAttr,
    }
}
