//! NFSv3 attributes: fattr3, sattr3, wcc_data; the arguments and results of GETATTR, SETATTR, ACCESS (RFC 1813 2.5,
//! 3.3.1, 3.3.2, 3.3.4).

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
        /// Type of the object.
        pub kind: FileType,
        /// Permission bits.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length in bytes.
        pub size: u64,
        /// Bytes occupied.
        pub used: u64,
        /// Device numbers.
        pub rdev: SpecData,
        /// File system.
        pub fsid: u64,
        /// File id, unique in the file system.
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
    /// wcc_attr: the attributes before an operation that reveal whether another client changed the file.
    pub struct WccAttr {
        /// Length in bytes.
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
        /// Attributes before the operation.
        pub before: Option<WccAttr>,
        /// After it.
        pub after: PostOpAttr,
    }
}

/// set_atime, set_mtime: how to set a time.
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
    /// sattr3: the attributes to change.
    #[derive(Default)]
    pub struct SetAttributes {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// New size in bytes: truncates or extends the file.
        pub size: Option<u64>,
        /// Time of the last read.
        pub atime: SetTime,
        /// Time of the last write.
        pub mtime: SetTime,
    }
}

xdr_struct! {
    /// GETATTR3args.
    pub struct GetattrArgs {
        /// The object.
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
        /// The object.
        pub object: Handle,
        /// The attributes to change.
        pub attributes: SetAttributes,
        /// The change happens only if the object's ctime equals this.
        pub guard: Option<Time>,
    }
}

xdr_struct! {
    /// SETATTR3resok and resfail.
    #[derive(Default)]
    pub struct WccOnly {
        /// Attributes of the object.
        pub wcc: WccData,
    }
}

xdr_struct! {
    /// ACCESS3args.
    pub struct AccessArgs {
        /// The object.
        pub object: Handle,
        /// The rights in question.
        pub access: u32,
    }
}

xdr_struct! {
    /// ACCESS3resok.
    pub struct AccessOk {
        /// Attributes after the operation.
        pub attributes: PostOpAttr,
        /// The granted subset.
        pub access: u32,
    }
}

xdr_struct! {
    /// A `resfail` arm that carries attributes only.
    #[derive(Default)]
    pub struct AttrOnly {
        /// Attributes after the operation.
        pub attributes: PostOpAttr,
    }
}
