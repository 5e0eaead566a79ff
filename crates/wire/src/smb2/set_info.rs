//! SET_INFO ([MS-SMB2] 2.2.39, 2.2.40): changes attributes, names and sizes, and deletes.
//!
//! [`super::fscc`] has the layouts of the classes.

use bytes::Bytes;

use super::field::{Put, array_at, behind_header, fixed, len32, region, u16_at, u32_at};
use super::query_info::InfoType;
use super::{FileId, HEADER_LEN, Malformed};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The subject.
    pub info_type: InfoType,
    /// Information class: a [`super::fscc::FileClass`] or [`super::fscc::FsClass`], by `info_type`.
    pub class: u8,
    /// Parts of a security descriptor.
    pub additional_information: u32,
    /// The file.
    pub file: FileId,
    /// The new values, laid out by `class`.
    pub buffer: Bytes,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<32>(message, 33)?;
        let (at, len) = (usize::from(u16_at(b, 8)), u32_at(b, 4) as usize);
        Ok(Request {
            info_type: InfoType(b[2]),
            class: b[3],
            additional_information: u32_at(b, 12),
            file: FileId::from_bytes(array_at(b, 16)),
            buffer: region(message, at, len, HEADER_LEN + 32, "SET_INFO buffer")?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(33);
        out.put_u8(self.info_type.0);
        out.put_u8(self.class);
        out.put_u32(len32(self.buffer.len()));
        out.put_u16(behind_header(32));
        out.put_u16(0);
        out.put_u32(self.additional_information);
        out.put(&self.file.to_bytes());
        out.put(&self.buffer);
    }
}

/// A response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response;

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        fixed::<2>(message, 2).map(|_| Response)
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(2);
    }
}
