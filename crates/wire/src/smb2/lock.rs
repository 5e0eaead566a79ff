//! LOCK ([MS-SMB2] 2.2.26, 2.2.27): locks and unlocks byte ranges.

use bytes::Bytes;

use super::field::{Put, TRUNCATED, array_at, bits, empty_body, fixed, len16, u16_at, u32_at, u64_at};
use super::{FileId, HEADER_LEN, Malformed};

/// Most ranges in one request; more are refused. Clients send one or two.
pub const MAX_LOCKS: usize = 64;
const ELEMENT_LEN: usize = 24;
/// The longest request, without its header, in bytes.
pub const MAX_REQUEST_LEN: usize = 24 + MAX_LOCKS * ELEMENT_LEN;

bits! {
    /// The operation on a range.
    Flags: u32 {
        /// Lock shared.
        SHARED_LOCK = 0x0000_0001;
        /// Lock exclusively.
        EXCLUSIVE_LOCK = 0x0000_0002;
        /// Unlock.
        UNLOCK = 0x0000_0004;
        /// Fail at once instead of waiting.
        FAIL_IMMEDIATELY = 0x0000_0010;
    }
}

/// One range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The operation.
    pub flags: Flags,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// LockSequenceNumber (4 bits) and LockSequenceIndex, for replay.
    pub sequence: u32,
    /// The file.
    pub file: FileId,
    /// Ranges; never empty.
    pub locks: Vec<Element>,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<24>(message, 48)?;
        let count = usize::from(u16_at(b, 2));
        if count == 0 || count > MAX_LOCKS {
            return Err(Malformed("LockCount"));
        }
        let at = HEADER_LEN + 24;
        let locks = message
            .get(at..count.saturating_mul(ELEMENT_LEN).saturating_add(at))
            .ok_or(TRUNCATED)?
            .chunks_exact(ELEMENT_LEN)
            .map(|l| Element { offset: u64_at(l, 0), length: u64_at(l, 8), flags: Flags(u32_at(l, 16)) })
            .collect();
        Ok(Request { sequence: u32_at(b, 4), file: FileId::from_bytes(array_at(b, 8)), locks })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(48);
        out.put_u16(len16(self.locks.len()));
        out.put_u32(self.sequence);
        out.put(&self.file.to_bytes());
        for lock in &self.locks {
            out.put_u64(lock.offset);
            out.put_u64(lock.length);
            out.put_u32(lock.flags.0);
            out.put_u32(0);
        }
    }
}

empty_body! {
    Response: "A response.";
}
