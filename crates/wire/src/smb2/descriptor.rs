//! Descriptors of a client's memory: SMB_DIRECT_BUFFER_DESCRIPTOR_V1 ([MS-SMBD] 2.2.3.1). The transport accesses the
//! memory.
//!
//! ```text
//! descriptor: 0 Offset u64 | 8 Token u32 | 12 Length u32
//! ```

use bytes::Bytes;

use super::Malformed;
use super::field::{Put, u32_at, u64_at};

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

    pub(crate) fn as_bytes(&self) -> &Bytes {
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
