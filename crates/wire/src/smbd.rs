//! SMB Direct messages: Negotiate Request and Response, Data Transfer, Buffer Descriptor V1 ([MS-SMBD] 2.2), and the
//! IRD/ORD header of iWARP private data ([`ReadDepths`], section 6).
//!
//! Each layout has one type. `transport::smbd` judges whether sizes and credits are acceptable. All fields are
//! little-endian unless noted.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SMBDirect protocol 1.0, the only version ([MS-SMBD] 1.7).
pub const VERSION: u16 = 0x0100;
/// Flag of a Data Transfer: the peer should respond promptly ([MS-SMBD] 2.2.3).
pub const RESPONSE_REQUESTED: u16 = 0x0001;

/// Why bytes are not the expected message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its fixed part.
    #[error("SMB Direct message shorter than its fixed part")]
    Truncated,
    /// [MS-SMBD] 3.1.5.8: the offset of the data is not a multiple of eight.
    #[error("DataOffset is not 8-byte aligned")]
    Unaligned,
    /// The data begins inside the header.
    #[error("DataOffset points into the header")]
    OffsetInHeader,
    /// [MS-SMBD] 3.1.5.8: the data does not end inside the message.
    #[error("data ends beyond the message")]
    OutOfBounds,
    /// [MS-SMBD] section 6: neither byte order gives depths that a provider can have.
    #[error("IRD/ORD header without a depth")]
    NoDepth,
}

/// The first message, sent by the side that connected ([MS-SMBD] 2.2.1).
///
/// ```text
///  0               2               4               6               8
/// +---------------+---------------+---------------+---------------+
/// | MinVersion    | MaxVersion    | Reserved      | CreditsRequest|
/// +---------------+---------------+---------------+---------------+
/// | PreferredSendSize             | MaxReceiveSize                |
/// +-------------------------------+-------------------------------+
/// | MaxFragmentedSize             |
/// +-------------------------------+ 20
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiateRequest {
    /// Lowest version that the sender speaks.
    pub min_version: u16,
    /// Highest version that the sender speaks.
    pub max_version: u16,
    /// Send credits requested.
    pub credits_requested: u16,
    /// Longest message that the sender wants to send, in bytes with the header.
    pub preferred_send_size: u32,
    /// Longest message that the sender can receive, in bytes with the header.
    pub max_receive_size: u32,
    /// Longest message of the upper layer that the sender can reassemble, in bytes.
    pub max_fragmented_size: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    min_version: U16,
    max_version: U16,
    reserved: U16,
    credits_requested: U16,
    preferred_send_size: U32,
    max_receive_size: U32,
    max_fragmented_size: U32,
}

impl NegotiateRequest {
    /// Bytes of the message.
    pub const LEN: usize = size_of::<RawRequest>();

    /// Parses the message; bytes after its fixed part are ignored.
    pub fn parse(bytes: &[u8]) -> Result<NegotiateRequest, Malformed> {
        let (raw, _) = RawRequest::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok(NegotiateRequest {
            min_version: raw.min_version.get(),
            max_version: raw.max_version.get(),
            credits_requested: raw.credits_requested.get(),
            preferred_send_size: raw.preferred_send_size.get(),
            max_receive_size: raw.max_receive_size.get(),
            max_fragmented_size: raw.max_fragmented_size.get(),
        })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let raw = RawRequest {
            min_version: self.min_version.into(),
            max_version: self.max_version.into(),
            reserved: U16::ZERO,
            credits_requested: self.credits_requested.into(),
            preferred_send_size: self.preferred_send_size.into(),
            max_receive_size: self.max_receive_size.into(),
            max_fragmented_size: self.max_fragmented_size.into(),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// The second message, sent by the side that accepted ([MS-SMBD] 2.2.2). If `status` is an error, every other field but
/// the version range is zero (3.1.5.3).
///
/// ```text
///  0               2               4               6               8
/// +---------------+---------------+---------------+---------------+
/// | MinVersion    | MaxVersion    | NegotiatedVer | Reserved      |
/// +---------------+---------------+---------------+---------------+
/// | CreditsRequest| CreditsGranted| Status                        |
/// +---------------+---------------+-------------------------------+
/// | MaxReadWriteSize              | PreferredSendSize             |
/// +-------------------------------+-------------------------------+
/// | MaxReceiveSize                | MaxFragmentedSize             |
/// +-------------------------------+-------------------------------+ 32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiateResponse {
    /// Lowest version that the sender speaks.
    pub min_version: u16,
    /// Highest version that the sender speaks.
    pub max_version: u16,
    /// The negotiated version.
    pub negotiated_version: u16,
    /// Send credits requested.
    pub credits_requested: u16,
    /// Send credits granted.
    pub credits_granted: u16,
    /// NTSTATUS; zero is success.
    pub status: u32,
    /// Most bytes that the sender moves by RDMA for one read or write of the upper layer.
    pub max_read_write_size: u32,
    /// Longest message that the sender will send, in bytes with the header.
    pub preferred_send_size: u32,
    /// Longest message that the sender can receive, in bytes with the header.
    pub max_receive_size: u32,
    /// Longest message of the upper layer that the sender can reassemble, in bytes.
    pub max_fragmented_size: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawResponse {
    min_version: U16,
    max_version: U16,
    negotiated_version: U16,
    reserved: U16,
    credits_requested: U16,
    credits_granted: U16,
    status: U32,
    max_read_write_size: U32,
    preferred_send_size: U32,
    max_receive_size: U32,
    max_fragmented_size: U32,
}

impl NegotiateResponse {
    /// Bytes of the message.
    pub const LEN: usize = size_of::<RawResponse>();

    /// A refusal: the version range and the status, all else zero ([MS-SMBD] 3.1.5.3).
    pub fn refusal(status: u32) -> NegotiateResponse {
        NegotiateResponse {
            min_version: VERSION,
            max_version: VERSION,
            negotiated_version: 0,
            credits_requested: 0,
            credits_granted: 0,
            status,
            max_read_write_size: 0,
            preferred_send_size: 0,
            max_receive_size: 0,
            max_fragmented_size: 0,
        }
    }

    /// Parses the message; bytes after its fixed part are ignored.
    pub fn parse(bytes: &[u8]) -> Result<NegotiateResponse, Malformed> {
        let (raw, _) = RawResponse::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok(NegotiateResponse {
            min_version: raw.min_version.get(),
            max_version: raw.max_version.get(),
            negotiated_version: raw.negotiated_version.get(),
            credits_requested: raw.credits_requested.get(),
            credits_granted: raw.credits_granted.get(),
            status: raw.status.get(),
            max_read_write_size: raw.max_read_write_size.get(),
            preferred_send_size: raw.preferred_send_size.get(),
            max_receive_size: raw.max_receive_size.get(),
            max_fragmented_size: raw.max_fragmented_size.get(),
        })
    }

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let raw = RawResponse {
            min_version: self.min_version.into(),
            max_version: self.max_version.into(),
            negotiated_version: self.negotiated_version.into(),
            reserved: U16::ZERO,
            credits_requested: self.credits_requested.into(),
            credits_granted: self.credits_granted.into(),
            status: self.status.into(),
            max_read_write_size: self.max_read_write_size.into(),
            preferred_send_size: self.preferred_send_size.into(),
            max_receive_size: self.max_receive_size.into(),
            max_fragmented_size: self.max_fragmented_size.into(),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// Every message after the first two: credits, and a fragment of an upper-layer message unless `data` is empty
/// ([MS-SMBD] 2.2.3).
///
/// ```text
///  0               2               4               6               8
/// +---------------+---------------+---------------+---------------+
/// | CreditsRequest| CreditsGranted| Flags         | Reserved      |
/// +---------------+---------------+---------------+---------------+
/// | RemainingDataLength           | DataOffset                    |
/// +-------------------------------+-------------------------------+
/// | DataLength                    | Padding (with data)           |
/// +-------------------------------+-------------------------------+ 24
/// | Buffer ...
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataTransfer {
    /// The number of send credits that the sender wants to hold.
    pub credits_requested: u16,
    /// Send credits granted by this message.
    pub credits_granted: u16,
    /// [`RESPONSE_REQUESTED`] or nothing.
    pub flags: u16,
    /// Bytes of the upper-layer message that follow in later fragments.
    pub remaining_data_length: u32,
    /// Range of this fragment's bytes in the message; empty (and at 0) without data.
    pub data: Range<usize>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawData {
    credits_requested: U16,
    credits_granted: U16,
    flags: U16,
    reserved: U16,
    remaining_data_length: U32,
    data_offset: U32,
    data_length: U32,
}

impl DataTransfer {
    /// Length of the fixed part, and of the whole message without data.
    pub const LEN: usize = size_of::<RawData>();
    /// Offset of the data in messages that we send: the fixed part padded to eight (3.1.5.4).
    pub const DATA_OFFSET: usize = 24;

    /// Parses the fixed part of `message`, the whole message as received, and locates the data.
    pub fn parse(message: &[u8]) -> Result<DataTransfer, Malformed> {
        let (raw, _) = RawData::ref_from_prefix(message).map_err(|_| Malformed::Truncated)?;
        let offset = raw.data_offset.get() as usize;
        let len = raw.data_length.get() as usize;
        if !offset.is_multiple_of(8) {
            return Err(Malformed::Unaligned);
        }
        let end =
            offset.checked_add(len).filter(|&end| end <= message.len()).ok_or(Malformed::OutOfBounds)?;
        // The specification requires only alignment, but no sender means data to overlap the header.
        if len > 0 && offset < Self::LEN {
            return Err(Malformed::OffsetInHeader);
        }
        Ok(DataTransfer {
            credits_requested: raw.credits_requested.get(),
            credits_granted: raw.credits_granted.get(),
            flags: raw.flags.get(),
            remaining_data_length: raw.remaining_data_length.get(),
            data: if len == 0 { 0..0 } else { offset..end },
        })
    }

    /// The header of a message with `data_length` bytes at [`DataTransfer::DATA_OFFSET`], padding included. With a
    /// `data_length` of zero, the message is just its first [`DataTransfer::LEN`] bytes.
    pub fn header(
        credits_requested: u16,
        credits_granted: u16,
        flags: u16,
        remaining_data_length: u32,
        data_length: u32,
    ) -> [u8; Self::DATA_OFFSET] {
        let data_offset = if data_length == 0 { 0 } else { Self::DATA_OFFSET as u32 };
        let raw = RawData {
            credits_requested: credits_requested.into(),
            credits_granted: credits_granted.into(),
            flags: flags.into(),
            reserved: U16::ZERO,
            remaining_data_length: remaining_data_length.into(),
            data_offset: data_offset.into(),
            data_length: data_length.into(),
        };
        let mut header = [0; Self::DATA_OFFSET];
        header[..Self::LEN].copy_from_slice(raw.as_bytes());
        header
    }
}

/// A range of registered memory, in the channel part of SMB2 READ and WRITE ([MS-SMBD] 2.2.3.1).
///
/// ```text
///  0                               4               8
/// +-------------------------------+-------------------------------+
/// | Offset                                                        |
/// +-------------------------------+-------------------------------+
/// | Token                         | Length                        |
/// +-------------------------------+-------------------------------+ 16
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferDescriptorV1 {
    /// Tagged offset of the first byte.
    pub offset: u64,
    /// Steering tag.
    pub token: u32,
    /// Length in bytes.
    pub length: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDescriptor {
    offset: U64,
    token: U32,
    length: U32,
}

impl BufferDescriptorV1 {
    /// Bytes of one descriptor.
    pub const LEN: usize = size_of::<RawDescriptor>();

    /// Parses one descriptor at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<BufferDescriptorV1, Malformed> {
        let (raw, _) = RawDescriptor::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok(BufferDescriptorV1 { offset: raw.offset.get(), token: raw.token.get(), length: raw.length.get() })
    }

    /// Parses an array that fills `bytes` exactly. The caller limits their number.
    pub fn parse_array(bytes: &[u8]) -> Result<Vec<BufferDescriptorV1>, Malformed> {
        if !bytes.len().is_multiple_of(Self::LEN) {
            return Err(Malformed::Truncated);
        }
        bytes.chunks_exact(Self::LEN).map(Self::parse).collect()
    }

    /// Appends the descriptor.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let raw = RawDescriptor {
            offset: self.offset.into(),
            token: self.token.into(),
            length: self.length.into(),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// Byte order of [`ReadDepths`] on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// Network order: recent Linux.
    Big,
    /// Host order of a little-endian machine: older cifs.ko.
    Little,
}

/// The IRD/ORD Negotiate Header: the first eight bytes of MPA private data between SMB Direct peers whose iWARP
/// provider lacks RFC 6581 ([MS-SMBD] section 6). The specification does not fix the byte order, and both are in use.
///
/// ```text
///  0                               4                               8
/// +-------------------------------+-------------------------------+
/// | IRD                           | ORD                           |
/// +-------------------------------+-------------------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadDepths {
    /// Concurrent inbound RDMA Reads of the connecting side.
    pub ird: u32,
    /// Concurrent outbound RDMA Reads of the connecting side.
    pub ord: u32,
    /// The byte order received; an answer uses the same.
    pub order: ByteOrder,
}

impl ReadDepths {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// Largest possible depth: MPA's own field has 14 bits (RFC 6581 section 4).
    pub const DEEPEST: u32 = 0x3fff;

    /// Parses the header at the start of `private_data`, in whichever byte order gives valid depths.
    pub fn parse(private_data: &[u8]) -> Result<ReadDepths, Malformed> {
        let Some(&[a, b, c, d, e, f, g, h]) = private_data.first_chunk::<{ Self::LEN }>() else {
            return Err(Malformed::Truncated);
        };
        let plausible = |depths: &ReadDepths| {
            (1..=Self::DEEPEST).contains(&depths.ird) && (1..=Self::DEEPEST).contains(&depths.ord)
        };
        let big = ReadDepths {
            ird: u32::from_be_bytes([a, b, c, d]),
            ord: u32::from_be_bytes([e, f, g, h]),
            order: ByteOrder::Big,
        };
        let little =
            ReadDepths { ird: big.ird.swap_bytes(), ord: big.ord.swap_bytes(), order: ByteOrder::Little };
        [big, little].into_iter().find(plausible).ok_or(Malformed::NoDepth)
    }

    /// The header on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (ird, ord) = match self.order {
            ByteOrder::Big => (self.ird.to_be_bytes(), self.ord.to_be_bytes()),
            ByteOrder::Little => (self.ird.to_le_bytes(), self.ord.to_le_bytes()),
        };
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&ird);
        out[4..].copy_from_slice(&ord);
        out
    }
}

#[cfg(test)]
mod tests;
