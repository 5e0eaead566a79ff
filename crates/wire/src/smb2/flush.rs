//! FLUSH ([MS-SMB2] 2.2.17, 2.2.18): makes written data durable.
//!
//! Apple's clients set Reserved1 to 0xFFFF for F_FULLFSYNC, which reaches the medium itself ("Time Machine over SMB
//! Specification", Supporting the F_FULLFSYNC Extension).

use bytes::Bytes;

use super::field::{Put, array_at, empty_body, fixed, u16_at};
use super::{FileId, Malformed};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The open to flush.
    pub file: FileId,
    /// Whether a Mac asks that the data reach the medium.
    pub full_sync: bool,
}

/// Reserved1 for a full sync.
const FULL_SYNC: u16 = 0xFFFF;

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<24>(message, 24)?;
        Ok(Request { file: FileId::from_bytes(array_at(b, 8)), full_sync: u16_at(b, 2) == FULL_SYNC })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(24);
        out.put_u16(if self.full_sync { FULL_SYNC } else { 0 });
        out.put_u32(0);
        out.put(&self.file.to_bytes());
    }
}

empty_body! {
    Response: "A response.";
}
