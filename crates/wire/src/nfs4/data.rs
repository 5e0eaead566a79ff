//! READ, WRITE, COMMIT (RFC 8881 18.22, 18.32, 18.3), and minor version 2's operations on ranges of a file (ALLOCATE to
//! CLONE, RFC 7862 section 15).

use super::{Bitmap, MAX_DATA, NetAddr, Stable, Stateid, Status, Text, UpTo, Verifier};
use crate::xdr::{Data, Decoder, Encoder, Malformed, Xdr, xdr_struct};

xdr_struct! {
    /// READ4args, READ_PLUS4args.
    pub struct Read {
        /// The open, lock or delegation that permits it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub count: u32,
    }
}

xdr_struct! {
    /// READ4resok without the data's content, which the transport carries.
    pub struct ReadHead {
        /// Whether the data reaches the end of the file.
        pub eof: bool,
        /// Bytes of data.
        pub count: u32,
    }
}

/// WRITE4args.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The open, lock or delegation that permits it.
    pub stateid: Stateid,
    /// First byte.
    pub offset: u64,
    /// Stability.
    pub stable: Stable,
    /// DDP-eligible (RFC 8267 section 5).
    pub data: Data,
}

impl Xdr for Write {
    fn parse(d: &mut Decoder) -> Result<Write, Malformed> {
        Ok(Write {
            stateid: Stateid::parse(d)?,
            offset: d.u64()?,
            stable: Stable::parse(d)?,
            data: d.data(MAX_DATA)?,
        })
    }
    fn emit(&self, e: &mut Encoder) {
        self.stateid.emit(e);
        e.u64(self.offset);
        self.stable.emit(e);
        e.opaque(self.data.here());
    }
}

xdr_struct! {
    /// WRITE4resok.
    pub struct WriteOk {
        /// Bytes written.
        pub count: u32,
        /// Stability.
        pub committed: Stable,
        /// Changes when the server may have lost unstable data.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// COMMIT4args.
    pub struct Commit {
        /// First byte.
        pub offset: u64,
        /// Length in bytes; 0 reaches to the end.
        pub count: u32,
    }
}

xdr_struct! {
    /// ALLOCATE4args, DEALLOCATE4args.
    pub struct Allocate {
        /// The open, lock or delegation that permits it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub length: u64,
    }
}

xdr_struct! {
    /// SEEK4args.
    pub struct Seek {
        /// The open, lock or delegation that permits it.
        pub stateid: Stateid,
        /// Offset at which the search starts.
        pub offset: u64,
        /// data_content4: 0 finds data, 1 finds a hole.
        pub what: u32,
    }
}

xdr_struct! {
    /// seek_res4.
    pub struct SeekOk {
        /// Whether the search reached the end of the file.
        pub eof: bool,
        /// Offset of the find.
        pub offset: u64,
    }
}

xdr_struct! {
    /// IO_ADVISE4args.
    pub struct IoAdvise {
        /// The open, lock or delegation that permits it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub count: u64,
        /// IO_ADVISE_type4.
        pub hints: Bitmap,
    }
}

/// netloc4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetLoc {
    /// A host name.
    Name(Text),
    /// A URL.
    Url(Text),
    /// An address.
    Addr(NetAddr),
}

impl Xdr for NetLoc {
    fn parse(d: &mut Decoder) -> Result<NetLoc, Malformed> {
        match d.u32()? {
            1 => Text::parse(d).map(NetLoc::Name),
            2 => Text::parse(d).map(NetLoc::Url),
            3 => NetAddr::parse(d).map(NetLoc::Addr),
            _ => Err(Malformed("unknown netloc_type4")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            NetLoc::Name(name) => {
                e.u32(1);
                name.emit(e);
            }
            NetLoc::Url(url) => {
                e.u32(2);
                url.emit(e);
            }
            NetLoc::Addr(addr) => {
                e.u32(3);
                addr.emit(e);
            }
        }
    }
}

xdr_struct! {
    /// COPY4args.
    pub struct Copy {
        /// State id for the saved file.
        pub from_stateid: Stateid,
        /// State id for the current file.
        pub to_stateid: Stateid,
        /// First byte in the saved file.
        pub from_offset: u64,
        /// First byte in the current file.
        pub to_offset: u64,
        /// Length in bytes; 0 reaches to the end.
        pub count: u64,
        /// Whether bytes must be copied in order.
        pub consecutive: bool,
        /// Whether the reply must wait for the end of the copy.
        pub synchronous: bool,
        /// Servers to copy from, if not this one.
        pub servers: UpTo<NetLoc, 16>,
    }
}

xdr_struct! {
    /// write_response4.
    pub struct WriteResponse {
        /// State id of the copy, if it continues asynchronously.
        pub callback: UpTo<Stateid, 1>,
        /// Bytes copied so far.
        pub count: u64,
        /// Stability.
        pub committed: Stable,
        /// See [`WriteOk::verifier`].
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// COPY4resok.
    pub struct CopyOk {
        /// Bytes copied, and their stability.
        pub response: WriteResponse,
        /// Whether bytes are copied in order.
        pub consecutive: bool,
        /// Whether the copy is complete.
        pub synchronous: bool,
    }
}

xdr_struct! {
    /// OFFLOAD_STATUS4resok.
    pub struct OffloadStatusOk {
        /// Bytes copied so far.
        pub count: u64,
        /// The outcome, if the copy has ended.
        pub complete: UpTo<Status, 1>,
    }
}

xdr_struct! {
    /// CLONE4args.
    pub struct Clone_ {
        /// State id for the saved file.
        pub from_stateid: Stateid,
        /// State id for the current file.
        pub to_stateid: Stateid,
        /// First byte in the saved file.
        pub from_offset: u64,
        /// First byte in the current file.
        pub to_offset: u64,
        /// Length in bytes; 0 reaches to the end.
        pub count: u64,
    }
}
