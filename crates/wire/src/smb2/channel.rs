//! Channel information of READ and WRITE ([MS-SMB2] 2.2.19, 2.2.21): the client memory that the server may access by
//! RDMA, as a list of descriptors, with an RDMA transform before it if the payload is encrypted or signed.

use bytes::Bytes;

use super::Malformed;
use super::rdma_transform::Transformed;

pub use super::descriptor::{DESCRIPTOR_LEN, Descriptor, Descriptors, MAX_DESCRIPTORS};

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
            Channel::RdmaV1(d) | Channel::RdmaV1Invalidate(d) => d.as_bytes().clone(),
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
