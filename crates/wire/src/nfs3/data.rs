//! Payload operations of NFSv3: READ, WRITE, COMMIT (RFC 1813 3.3.6, 3.3.7, 3.3.21).
//!
//! The data of READ and WRITE are DDP-eligible (RFC 8267 section 3). Payload does not pass through this module: a head
//! ends with the opaque's length, and the content follows as its own part.

use bytes::Bytes;

use super::{Handle, MAX_DATA, PostOpAttr, Stable, Verifier, WccData, Xdr, xdr_struct};
use crate::xdr::{Data, Decoder, Encoder, Malformed};

xdr_struct! {
    /// READ3args.
    pub struct ReadArgs {
        /// The file.
        pub file: Handle,
        /// First byte.
        pub offset: u64,
        /// Length in bytes.
        pub count: u32,
    }
}

/// READ3resok up to the content of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadHead {
    /// Attributes of the file.
    pub attributes: PostOpAttr,
    /// Length of the data in bytes.
    pub count: u32,
    /// Whether the data reaches the end of the file.
    pub eof: bool,
}

impl ReadHead {
    /// Appends the head with the length of the data; `count` bytes of payload follow.
    pub fn emit(&self, e: &mut Encoder) {
        self.attributes.emit(e);
        e.u32(self.count);
        e.bool(self.eof);
        e.u32(self.count);
    }
}

/// READ3resok.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOk {
    /// All but the data.
    pub head: ReadHead,
    /// The data; `data.len() == head.count`.
    pub data: Bytes,
}

impl Xdr for ReadOk {
    fn parse(d: &mut Decoder) -> Result<ReadOk, Malformed> {
        let head = ReadHead { attributes: PostOpAttr::parse(d)?, count: d.u32()?, eof: d.bool()? };
        let data = d.payload(MAX_DATA)?;
        if data.len() as u64 != u64::from(head.count) {
            return Err(Malformed("RFC 1813 3.3.6: count and length of data differ"));
        }
        Ok(ReadOk { head, data })
    }
    fn emit(&self, e: &mut Encoder) {
        self.head.attributes.emit(e);
        e.u32(self.head.count);
        e.bool(self.head.eof);
        e.opaque(&self.data);
    }
}

/// WRITE3args up to the content of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub count: u32,
    /// When the data must be durable.
    pub stable: Stable,
}

impl WriteHead {
    /// Appends the head with the length of the data; `count` bytes of payload follow.
    pub fn emit(&self, e: &mut Encoder) {
        self.fields(e);
        e.u32(self.count);
    }

    fn fields(&self, e: &mut Encoder) {
        self.file.emit(e);
        e.u64(self.offset);
        e.u32(self.count);
        self.stable.emit(e);
    }
}

/// WRITE3args.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteArgs {
    /// All but the data.
    pub head: WriteHead,
    /// The data; its length may differ from `head.count`, which the server answers with NFS3ERR_INVAL.
    pub data: Data,
}

impl Xdr for WriteArgs {
    fn parse(d: &mut Decoder) -> Result<WriteArgs, Malformed> {
        let head = WriteHead {
            file: Handle::parse(d)?,
            offset: d.u64()?,
            count: d.u32()?,
            stable: Stable::parse(d)?,
        };
        Ok(WriteArgs { head, data: d.data(MAX_DATA)? })
    }
    fn emit(&self, e: &mut Encoder) {
        self.head.fields(e);
        e.opaque(self.data.here());
    }
}

xdr_struct! {
    /// WRITE3resok.
    pub struct WriteOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// Bytes written.
        pub count: u32,
        /// Stability of these bytes.
        pub committed: Stable,
        /// Changes when the server may have lost unstable data.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// COMMIT3args.
    pub struct CommitArgs {
        /// The file.
        pub file: Handle,
        /// First byte.
        pub offset: u64,
        /// Length in bytes; 0 reaches to the end.
        pub count: u32,
    }
}

xdr_struct! {
    /// COMMIT3resok.
    pub struct CommitOk {
        /// Attributes of the file.
        pub wcc: WccData,
        /// As in [`WriteOk`].
        pub verifier: Verifier,
    }
}
