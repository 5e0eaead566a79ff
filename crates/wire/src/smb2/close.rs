//! CLOSE ([MS-SMB2] 2.2.15, 2.2.16): ends an open.

use bytes::Bytes;

use super::create::FileSummary;
use super::field::{Put, array_at, bits, fixed, u16_at};
use super::{FileId, Malformed};

bits! {
    /// Flags of both directions.
    Flags: u16 {
        /// The response includes attributes.
        POSTQUERY_ATTRIB = 0x0001;
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags.
    pub flags: Flags,
    /// The open to close.
    pub file: FileId,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<24>(message, 24)?;
        Ok(Request { flags: Flags(u16_at(b, 2)), file: FileId::from_bytes(array_at(b, 8)) })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(24);
        out.put_u16(self.flags.0);
        out.put_u32(0);
        out.put(&self.file.to_bytes());
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The attributes, if requested.
    pub summary: Option<FileSummary>,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<60>(message, 60)?;
        let with = Flags(u16_at(b, 2)).contains(Flags::POSTQUERY_ATTRIB);
        Ok(Response { summary: with.then(|| FileSummary::parse(&array_at(b, 8))) })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(60);
        out.put_u16(if self.summary.is_some() { Flags::POSTQUERY_ATTRIB.0 } else { 0 });
        out.put_u32(0);
        self.summary.unwrap_or_default().emit(out);
    }
}
