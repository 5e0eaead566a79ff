//! READ ([MS-SMB2] 2.2.19, 2.2.20): reads bytes of a file.
//!
//! The data of a parsed response is a slice of the message. A response is emitted without its data, which may be a file
//! range that has not been read yet, or be transferred by RDMA.

use bytes::Bytes;

use super::channel::Channel;
use super::field::{
    Put, array_at, behind_header, bits, fixed, len16, patch_u32, region, u16_at, u32_at, u64_at,
};
use super::rdma_transform::{self, Crypto};
use super::{FileId, HEADER_LEN, Malformed};

/// Offset of the data in responses that we emit, from their header.
pub const RESPONSE_DATA_AT: usize = HEADER_LEN + 16;

/// SMB2_READFLAG_RESPONSE_RDMA_TRANSFORM.
const TRANSFORMED: u32 = 1;

bits! {
    /// Request flags (3.0.2 and later).
    Flags: u8 {
        /// Bypass the server's cache.
        READ_UNBUFFERED = 0x01;
        /// Compress the response.
        REQUEST_COMPRESSED = 0x02;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Preferred offset of the data in the response; not binding.
    pub padding: u8,
    /// Flags.
    pub flags: Flags,
    /// Requested length in bytes.
    pub length: u32,
    /// First byte.
    pub offset: u64,
    /// The file.
    pub file: FileId,
    /// With fewer bytes the server answers STATUS_END_OF_FILE.
    pub minimum_count: u32,
    /// How the data is transferred.
    pub channel: Channel,
    /// With an RDMA channel: the length again.
    pub remaining_bytes: u32,
}

impl Request {
    /// Parses a message.
    #[inline]
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<48>(message, 49)?;
        let channel = Channel::parse(u32_at(b, 36), || {
            let (at, len) = (usize::from(u16_at(b, 44)), usize::from(u16_at(b, 46)));
            region(message, at, len, HEADER_LEN + 48, "READ channel information")
        })?;
        Ok(Request {
            padding: b[2],
            flags: Flags(b[3]),
            length: u32_at(b, 4),
            offset: u64_at(b, 8),
            file: FileId::from_bytes(array_at(b, 16)),
            minimum_count: u32_at(b, 32),
            channel,
            remaining_bytes: u32_at(b, 40),
        })
    }

    /// Appends the body.
    #[inline]
    pub fn emit(&self, out: &mut Vec<u8>) {
        let info = self.channel.info();
        out.put_u16(49);
        out.put_u8(self.padding);
        out.put_u8(self.flags.0);
        out.put_u32(self.length);
        out.put_u64(self.offset);
        out.put(&self.file.to_bytes());
        out.put_u32(self.minimum_count);
        out.put_u32(self.channel.code());
        out.put_u32(self.remaining_bytes);
        out.put_u16(if info.is_empty() { 0 } else { behind_header(48) });
        out.put_u16(len16(info.len()));
        out.put(&info);
        if info.is_empty() {
            // StructureSize counts one byte of the buffer, and servers require that byte.
            out.put_u8(0);
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The data, if the message carries it.
    pub data: Bytes,
    /// Length of the data that was transferred by RDMA instead.
    pub data_remaining: u32,
    /// The transform of that data; only in 3.1.1, and only if negotiated.
    pub transform: Option<Crypto>,
}

impl Response {
    /// Parses a message.
    #[inline]
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<16>(message, 17)?;
        let data = region(message, usize::from(b[2]), u32_at(b, 4) as usize, RESPONSE_DATA_AT, "READ data")?;
        let (data, transform) = match u32_at(b, 12) & TRANSFORMED {
            0 => (data, None),
            _ => (Bytes::new(), Some(Crypto::parse(&data)?)),
        };
        Ok(Response { data, data_remaining: u32_at(b, 8), transform })
    }

    /// Appends the body up to the data: `data_len` bytes follow in the message at [`RESPONSE_DATA_AT`];
    /// `data_remaining` bytes were transferred by RDMA.
    #[inline]
    pub fn emit_head(data_len: u32, data_remaining: u32, out: &mut Vec<u8>) {
        out.put_u16(17);
        out.put_u8(RESPONSE_DATA_AT as u8);
        out.put_u8(0);
        out.put_u32(data_len);
        out.put_u32(data_remaining);
        out.put_u32(0);
    }

    /// Appends a body whose payload is transformed and transferred by RDMA. [`Response::set_transform`] fills in the
    /// transform once it is known.
    pub fn emit_transformed(nonce_len: usize, data_remaining: u32, out: &mut Vec<u8>) {
        let len = rdma_transform::len(nonce_len);
        Response::emit_head(len as u32, data_remaining, out);
        let flags = out.len().saturating_sub(4);
        patch_u32(out, flags, TRANSFORMED);
        out.put_zeros(len);
    }

    /// Fills in the transform, whose length was announced.
    ///
    /// # Panics
    ///
    /// When `message` does not end with the body of [`Response::emit_transformed`] for this nonce length.
    pub fn set_transform(message: &mut [u8], transform: &Crypto) {
        let mut bytes = Vec::new();
        transform.emit(&mut bytes);
        let place = message.get_mut(RESPONSE_DATA_AT..).filter(|place| place.len() == bytes.len());
        place.expect("a body of emit_transformed").copy_from_slice(&bytes);
    }
}
