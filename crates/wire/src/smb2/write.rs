//! WRITE: bytes for a file.
//!
//! Spec: [MS-SMB2] 2.2.21, 2.2.22.
//! Buffers: a parsed request's data is a slice of the message, never copied; a request is emitted
//! without its data, which follows as its own part or travels by RDMA.
//! Does not: choose how the data travels.

use bytes::Bytes;

use super::channel::Channel;
use super::field::{Put, array_at, bits, fixed, len16, region, u16_at, u32_at, u64_at};
use super::{FileId, HEADER_LEN, Malformed};

/// Where the data of a request that we emit begins, counted from its header.
pub const REQUEST_DATA_AT: usize = HEADER_LEN + 48;

bits! {
    /// Request flags.
    Flags: u32 {
        /// Durable before it is answered.
        WRITE_THROUGH = 0x0000_0001;
        /// Past the server's cache.
        WRITE_UNBUFFERED = 0x0000_0002;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// First byte.
    pub offset: u64,
    /// Of which file.
    pub file: FileId,
    /// How the data travels.
    pub channel: Channel,
    /// With an RDMA channel: how many bytes to fetch.
    pub remaining_bytes: u32,
    /// Flags.
    pub flags: Flags,
    /// The data, when it came in the message.
    pub data: Bytes,
}

impl Request {
    /// How many bytes are to be written, wherever they are.
    pub fn len(&self) -> usize {
        match self.channel {
            Channel::None | Channel::Unknown(_) => self.data.len(),
            _ => self.remaining_bytes as usize,
        }
    }

    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads it.
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

    /// Appends the body up to the data; the caller sends `self.data` behind it at [`REQUEST_DATA_AT`].
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
            // StructureSize counts one byte of the buffer; servers insist on it.
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
    /// Reads it.
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
