//! QUERY_DIRECTORY ([MS-SMB2] 2.2.33, 2.2.34): lists a directory, one buffer at a time.
//!
//! [`super::fscc::directory`] has the layouts of the entries.

use bytes::Bytes;

use super::field::{
    Put, array_at, behind_header, bits, buffer_response, fixed, len16, region, u16_at, u32_at,
};
use super::fscc::FileClass;
use super::{FileId, HEADER_LEN, Malformed, utf16};

bits! {
    /// Flags.
    Flags: u8 {
        /// Start from the beginning.
        RESTART_SCANS = 0x01;
        /// Return one entry only.
        RETURN_SINGLE_ENTRY = 0x02;
        /// Start at `file_index`.
        INDEX_SPECIFIED = 0x04;
        /// Start from the beginning with a new pattern.
        REOPEN = 0x10;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Layout of the entries.
    pub class: FileClass,
    /// Flags.
    pub flags: Flags,
    /// Position at which to continue, with INDEX_SPECIFIED.
    pub file_index: u32,
    /// The directory.
    pub file: FileId,
    /// Largest output buffer in bytes.
    pub output_buffer_length: u32,
    /// `*`, a name, or a pattern with `*`, `?`, `<`, `>`, `"`. Empty continues with the previous pattern.
    pub pattern: String,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<32>(message, 33)?;
        let (at, len) = (usize::from(u16_at(b, 24)), usize::from(u16_at(b, 26)));
        let pattern = region(message, at, len, HEADER_LEN + 32, "QUERY_DIRECTORY pattern")?;
        Ok(Request {
            class: FileClass(b[2]),
            flags: Flags(b[3]),
            file_index: u32_at(b, 4),
            file: FileId::from_bytes(array_at(b, 8)),
            output_buffer_length: u32_at(b, 28),
            pattern: utf16::decode(&pattern)?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(33);
        out.put_u8(self.class.0);
        out.put_u8(self.flags.0);
        out.put_u32(self.file_index);
        out.put(&self.file.to_bytes());
        out.put_u16(behind_header(32));
        out.put_u16(len16(utf16::encoded_len(&self.pattern)));
        out.put_u32(self.output_buffer_length);
        utf16::encode(&self.pattern, out);
        if self.pattern.is_empty() {
            // StructureSize counts one byte of the buffer, and servers require that byte.
            out.put_u8(0);
        }
    }
}

buffer_response!("QUERY_DIRECTORY output");
