//! FLUSH: makes what was written durable.
//!
//! Spec: [MS-SMB2] 2.2.17, 2.2.18. Does not: anything else.

use bytes::Bytes;

use super::field::{Put, array_at, empty_body, fixed};
use super::{FileId, Malformed};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to flush.
    pub file: FileId,
}

impl Request {
    /// Reads it.
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
