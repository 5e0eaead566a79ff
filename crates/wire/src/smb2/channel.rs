//! Channel information of READ and WRITE ([MS-SMB2] 2.2.19, 2.2.21): the client memory that the server may access by
//! RDMA.
//!
//! Descriptors are SMB_DIRECT_BUFFER_DESCRIPTOR_V1 ([MS-SMBD] 2.2.3.1). The transport accesses the memory.
//!
//! ```text
//! descriptor: 0 Offset u64 | 8 Token u32 | 12 Length u32
//! ```

use bytes::Bytes;

use super::Malformed;
use super::field::{Put, u32_at, u64_at};
use super::rdma_transform::Transformed;

/// Length of a descriptor in bytes.
pub const DESCRIPTOR_LEN: usize = 16;
/// Most descriptors in one request; more are refused. An 8 MiB transfer in 4 KiB pages has 2,048, and the length field
/// of channel information allows at most 4,095.
pub const MAX_DESCRIPTORS: usize = 2048;

/// One range of the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Tagged offset of the first byte.
    pub offset: u64,
    /// Steering tag.
    pub token: u32,
    /// Length in bytes.
    pub length: u32,
}

/// A list of descriptors, kept in wire form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors(Bytes);

impl Descriptors {
    pub(crate) fn parse(info: Bytes) -> Result<Descriptors, Malformed> {
        if info.is_empty() || !info.len().is_multiple_of(DESCRIPTOR_LEN) {
            return Err(Malformed("channel information is no whole number of descriptors"));
        }
        if info.len() > MAX_DESCRIPTORS * DESCRIPTOR_LEN {
            return Err(Malformed("too many buffer descriptors"));
        }
        Ok(Descriptors(info))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Number of descriptors.
    pub fn len(&self) -> usize {
        self.0.len() / DESCRIPTOR_LEN
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the descriptors.
    pub fn iter(&self) -> impl Iterator<Item = Descriptor> + '_ {
        self.0.chunks_exact(DESCRIPTOR_LEN).map(|d| Descriptor {
            offset: u64_at(d, 0),
            token: u32_at(d, 8),
            length: u32_at(d, 12),
        })
    }

    /// Total length in bytes.
    pub fn total(&self) -> u64 {
        self.iter().map(|d| u64::from(d.length)).sum()
    }
}

impl FromIterator<Descriptor> for Descriptors {
    fn from_iter<I: IntoIterator<Item = Descriptor>>(descriptors: I) -> Descriptors {
        let mut bytes = Vec::with_capacity(DESCRIPTOR_LEN);
        for d in descriptors {
            bytes.put_u64(d.offset);
            bytes.put_u32(d.token);
            bytes.put_u32(d.length);
        }
        Descriptors(bytes.into())
    }
}

/// How the payload of a READ or WRITE is transferred.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Channel {
    /// In the message.
    #[default]
    None,
    /// By RDMA; the client invalidates the memory itself.
    RdmaV1(Descriptors),
    /// By RDMA; the server's response invalidates the first token.
    RdmaV1Invalidate(Descriptors),
    /// By RDMA, encrypted or signed ([MS-SMB2] 2.2.43); only for WRITE.
    RdmaTransform(Transformed),
    /// An undefined code, answered with STATUS_INVALID_PARAMETER.
    Unknown(u32),
}

impl Channel {
    /// Parses a Channel code and its information.
    #[inline]
    pub(crate) fn parse(
        code: u32,
        info: impl FnOnce() -> Result<Bytes, Malformed>,
    ) -> Result<Channel, Malformed> {
        Ok(match code {
            // The information of SMB2_CHANNEL_NONE is ignored.
            0 => Channel::None,
            1 => Channel::RdmaV1(Descriptors::parse(info()?)?),
            2 => Channel::RdmaV1Invalidate(Descriptors::parse(info()?)?),
            3 => Channel::RdmaTransform(Transformed::parse(&info()?)?),
            other => Channel::Unknown(other),
        })
    }

    pub(crate) fn code(&self) -> u32 {
        match self {
            Channel::None => 0,
            Channel::RdmaV1(_) => 1,
            Channel::RdmaV1Invalidate(_) => 2,
            Channel::RdmaTransform(_) => 3,
            Channel::Unknown(other) => *other,
        }
    }

    pub(crate) fn info(&self) -> Bytes {
        match self {
            Channel::RdmaV1(d) | Channel::RdmaV1Invalidate(d) => d.0.clone(),
            Channel::RdmaTransform(transformed) => transformed.to_bytes(),
            Channel::None | Channel::Unknown(_) => Bytes::new(),
        }
    }

    /// The client's memory, if the payload is transferred by plain RDMA.
    pub fn descriptors(&self) -> Option<&Descriptors> {
        match self {
            Channel::RdmaV1(d) | Channel::RdmaV1Invalidate(d) => Some(d),
            _ => None,
        }
    }
}
