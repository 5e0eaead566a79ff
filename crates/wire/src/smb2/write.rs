//! WRITE ([MS-SMB2] 2.2.21, 2.2.22): writes bytes to a file.
//!
//! The data of a parsed request is a slice of the message, never a copy. A request is emitted without its data, which
//! follows as its own part or is transferred by RDMA.

use bytes::Bytes;

use super::channel::Channel;
use super::field::{Put, array_at, bits, fixed, len16, region, u16_at, u32_at, u64_at};
use super::{FileId, HEADER_LEN, Malformed};

/// Offset of the data in requests that we emit, from their header.
pub const REQUEST_DATA_AT: usize = HEADER_LEN + 48;

bits! {
    /// Request flags.
    Flags: u32 {
        /// The write is durable before the response.
        WRITE_THROUGH = 0x0000_0001;
        /// Bypass the server's cache.
        WRITE_UNBUFFERED = 0x0000_0002;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// First byte.
    pub offset: u64,
    /// The file.
    pub file: FileId,
    /// How the data is transferred.
    pub channel: Channel,
    /// With an RDMA channel: the number of bytes to fetch.
    pub remaining_bytes: u32,
    /// Flags.
    pub flags: Flags,
    /// The data, if the message carries it.
    pub data: Bytes,
}

impl Request {
    /// Number of bytes to write, in the message or by RDMA.
    pub fn len(&self) -> usize {
        match self.channel {
            Channel::None | Channel::Unknown(_) => self.data.len(),
            _ => self.remaining_bytes as usize,
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parses a message.
    #[inline]
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<48>(message, 49)?;
        let channel = Channel::parse(u32_at(b, 32), || {
            let (at, len) = (usize::from(u16_at(b, 40)), usize::from(u16_at(b, 42)));
            region(message, at, len, REQUEST_DATA_AT, "WRITE channel information")
        })?;
        let (at, len) = (usize::from(u16_at(b, 2)), u32_at(b, 4) as usize);
        Ok(Request {
            offset: u64_at(b, 8),
            file: FileId::from_bytes(array_at(b, 16)),
            channel,
            remaining_bytes: u32_at(b, 36),
            flags: Flags(u32_at(b, 44)),
            data: region(message, at, len, REQUEST_DATA_AT, "WRITE data")?,
        })
    }

    /// Appends the body up to the data; the caller sends `self.data` after it, at [`REQUEST_DATA_AT`].
    #[inline]
    pub fn emit_head(&self, out: &mut Vec<u8>) {
        let info = self.channel.info();
        let inline = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        out.put_u16(49);
        out.put_u16(if inline == 0 { 0 } else { REQUEST_DATA_AT as u16 });
        out.put_u32(inline);
        out.put_u64(self.offset);
        out.put(&self.file.to_bytes());
        out.put_u32(self.channel.code());
        out.put_u32(self.remaining_bytes);
        out.put_u16(if info.is_empty() { 0 } else { REQUEST_DATA_AT as u16 });
        out.put_u16(len16(info.len()));
        out.put_u32(self.flags.0);
        out.put(&info);
        if info.is_empty() && inline == 0 {
            // StructureSize counts one byte of the buffer, and servers require that byte.
            out.put_u8(0);
        }
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Bytes written.
    pub count: u32,
}

impl Response {
    /// Parses a message.
    #[inline]
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<16>(message, 17)?;
        Ok(Response { count: u32_at(b, 4) })
    }

    /// Appends the body.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(17);
        out.put_u32(self.count);
        out.put_u64(0);
    }
}
