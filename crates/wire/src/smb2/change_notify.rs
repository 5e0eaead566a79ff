//! CHANGE_NOTIFY ([MS-SMB2] 2.2.35, 2.2.36): waits for a change in a directory. [MS-FSCC] 2.7.1 defines the entries.

use bytes::Bytes;

use super::field::{Put, array_at, bits, buffer_response, fixed, u16_at, u32_at};
use super::{FileId, Malformed};

bits! {
    /// Flags.
    Flags: u16 {
        /// Watch the whole tree below the directory.
        WATCH_TREE = 0x0001;
    }
}

/// The length of a request, without its header, in bytes.
pub const REQUEST_LEN: usize = 32;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags.
    pub flags: Flags,
    /// Largest output buffer in bytes.
    pub output_buffer_length: u32,
    /// The directory.
    pub file: FileId,
    /// The kinds of change to report.
    pub completion_filter: u32,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<32>(message, 32)?;
        Ok(Request {
            flags: Flags(u16_at(b, 2)),
            output_buffer_length: u32_at(b, 4),
            file: FileId::from_bytes(array_at(b, 8)),
            completion_filter: u32_at(b, 24),
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(32);
        out.put_u16(self.flags.0);
        out.put_u32(self.output_buffer_length);
        out.put(&self.file.to_bytes());
        out.put_u32(self.completion_filter);
        out.put_u32(0);
    }
}

buffer_response!("CHANGE_NOTIFY output");
