//! FLUSH ([MS-SMB2] 2.2.17, 2.2.18): makes written data durable.

use bytes::Bytes;

use super::field::{Put, array_at, empty_body, fixed};
use super::{FileId, Malformed};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The open to flush.
    pub file: FileId,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<24>(message, 24)?;
        Ok(Request { file: FileId::from_bytes(array_at(b, 8)) })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(24);
        out.put_zeros(6);
        out.put(&self.file.to_bytes());
    }
}

empty_body! {
    Response: "A response.";
}
