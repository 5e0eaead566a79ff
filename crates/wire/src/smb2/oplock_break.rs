//! OPLOCK_BREAK ([MS-SMB2] 2.2.23 notification, 2.2.24 acknowledgment, 2.2.25 response): the server revokes caching
//! rights, and the client acknowledges.
//!
//! The StructureSize distinguishes oplocks from leases.

use bytes::Bytes;

use super::create::OplockLevel;
use super::create_context::LeaseState;
use super::field::{Put, TRUNCATED, array_at, fixed, u16_at, u32_at};
use super::{FileId, Guid, HEADER_LEN, Malformed};

/// Lease break flag: the client must acknowledge.
pub const ACK_REQUIRED: u32 = 0x01;

/// A notification from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// An oplock.
    Oplock {
        /// The rights that remain.
        level: OplockLevel,
        /// The file.
        file: FileId,
    },
    /// A lease.
    Lease {
        /// The new epoch (3.x).
        epoch: u16,
        /// [`ACK_REQUIRED`] or 0.
        flags: u32,
        /// Key of the lease.
        key: Guid,
        /// The current rights.
        current: LeaseState,
        /// The rights that remain.
        new: LeaseState,
    },
}

impl Notification {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Notification, Malformed> {
        match structure_size(message)? {
            24 => {
                let (level, file) = parse_oplock(message)?;
                Ok(Notification::Oplock { level, file })
            }
            _ => {
                let b = fixed::<44>(message, 44)?;
                Ok(Notification::Lease {
                    epoch: u16_at(b, 2),
                    flags: u32_at(b, 4),
                    key: array_at(b, 8),
                    current: LeaseState(u32_at(b, 24)),
                    new: LeaseState(u32_at(b, 28)),
                })
            }
        }
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Notification::Oplock { level, file } => emit_oplock(*level, *file, out),
            Notification::Lease { epoch, flags, key, current, new } => {
                out.put_u16(44);
                out.put_u16(*epoch);
                out.put_u32(*flags);
                out.put(key);
                out.put_u32(current.0);
                out.put_u32(new.0);
                out.put_zeros(12);
            }
        }
    }
}

/// The client's acknowledgment; the server's response to it has the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgment {
    /// An oplock.
    Oplock {
        /// The rights that remain.
        level: OplockLevel,
        /// The file.
        file: FileId,
    },
    /// A lease.
    Lease {
        /// Key of the lease.
        key: Guid,
        /// The rights that remain.
        state: LeaseState,
    },
}

/// The client's acknowledgment.
pub type Request = Acknowledgment;
/// The server's response.
pub type Response = Acknowledgment;

impl Acknowledgment {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Acknowledgment, Malformed> {
        match structure_size(message)? {
            24 => {
                let (level, file) = parse_oplock(message)?;
                Ok(Acknowledgment::Oplock { level, file })
            }
            _ => {
                let b = fixed::<36>(message, 36)?;
                Ok(Acknowledgment::Lease { key: array_at(b, 8), state: LeaseState(u32_at(b, 24)) })
            }
        }
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Acknowledgment::Oplock { level, file } => emit_oplock(*level, *file, out),
            Acknowledgment::Lease { key, state } => {
                out.put_u16(36);
                out.put_u16(0);
                out.put_u32(0);
                out.put(key);
                out.put_u32(state.0);
                out.put_u64(0);
            }
        }
    }
}

fn structure_size(message: &Bytes) -> Result<u16, Malformed> {
    message.get(HEADER_LEN..HEADER_LEN + 2).map(|b| u16_at(b, 0)).ok_or(TRUNCATED)
}

fn parse_oplock(message: &Bytes) -> Result<(OplockLevel, FileId), Malformed> {
    let b = fixed::<24>(message, 24)?;
    Ok((OplockLevel(b[2]), FileId::from_bytes(array_at(b, 8))))
}

fn emit_oplock(level: OplockLevel, file: FileId, out: &mut Vec<u8>) {
    out.put_u16(24);
    out.put_u8(level.0);
    out.put_zeros(5);
    out.put(&file.to_bytes());
}
