//! QUERY_INFO ([MS-SMB2] 2.2.37, 2.2.38): queries a file, its file system, its security descriptor, or quotas.
//!
//! [`super::fscc`] has the layouts of the classes.

use bytes::Bytes;

use super::field::{
    Put, array_at, behind_header, bits, buffer_response, codes, fixed, len32, region, u16_at, u32_at,
};
use super::{FileId, HEADER_LEN, Malformed};

codes! {
    /// The subject of a query.
    InfoType: u8 {
        /// The file.
        FILE = 0x01;
        /// Its file system.
        FILESYSTEM = 0x02;
        /// Its security descriptor.
        SECURITY = 0x03;
        /// Quotas.
        QUOTA = 0x04;
    }
}

bits! {
    /// Parts of a security descriptor ([MS-SMB2] 2.2.37, AdditionalInformation).
    SecurityInformation: u32 {
        /// Owner.
        OWNER = 0x0000_0001;
        /// Group.
        GROUP = 0x0000_0002;
        /// DACL.
        DACL = 0x0000_0004;
        /// SACL.
        SACL = 0x0000_0008;
        /// Integrity label.
        LABEL = 0x0000_0010;
        /// Resource attributes.
        ATTRIBUTE = 0x0000_0020;
        /// Central policy.
        SCOPE = 0x0000_0040;
        /// The whole descriptor.
        BACKUP = 0x0001_0000;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The subject.
    pub info_type: InfoType,
    /// Information class: a [`super::fscc::FileClass`] or [`super::fscc::FsClass`], by `info_type`.
    pub class: u8,
    /// Largest output buffer in bytes.
    pub output_buffer_length: u32,
    /// [`SecurityInformation`], or an index into the extended attributes.
    pub additional_information: u32,
    /// How to iterate over extended attributes.
    pub flags: u32,
    /// The file.
    pub file: FileId,
    /// A list of extended attributes or quota entries to return.
    pub input: Bytes,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<40>(message, 41)?;
        let (at, len) = (usize::from(u16_at(b, 8)), u32_at(b, 12) as usize);
        Ok(Request {
            info_type: InfoType(b[2]),
            class: b[3],
            output_buffer_length: u32_at(b, 4),
            additional_information: u32_at(b, 16),
            flags: u32_at(b, 20),
            file: FileId::from_bytes(array_at(b, 24)),
            input: region(message, at, len, HEADER_LEN + 40, "QUERY_INFO input")?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(41);
        out.put_u8(self.info_type.0);
        out.put_u8(self.class);
        out.put_u32(self.output_buffer_length);
        out.put_u16(if self.input.is_empty() { 0 } else { behind_header(40) });
        out.put_u16(0);
        out.put_u32(len32(self.input.len()));
        out.put_u32(self.additional_information);
        out.put_u32(self.flags);
        out.put(&self.file.to_bytes());
        out.put(&self.input);
    }
}

buffer_response!("QUERY_INFO output");
