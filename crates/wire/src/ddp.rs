//! DDP segment headers, which say where a segment's payload goes (RFC 5041 4).
//!
//! The region table and the receive queue check that the destination exists.
//!
//! Tagged, 14 bytes (the ULP byte is RDMAP's control field):
//!
//! ```text
//!                                 +-+-+-------+---+---------------+
//!                                 |T|L| Rsvd  |DV |   RsvdULP     |
//! +-------------------------------+-+-+-------+---+---------------+
//! |                              STag                             |
//! +---------------------------------------------------------------+
//! |                        tagged offset (TO)                     |
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! Untagged, 18 bytes:
//!
//! ```text
//!                                 +-+-+-------+---+---------------+
//!                                 |T|L| Rsvd  |DV | RsvdULP[0:7]  |
//! +-------------------------------+-+-+-------+---+---------------+
//! |                         RsvdULP[8:39]                         |
//! +---------------------------------------------------------------+
//! |                       queue number (QN)                       |
//! +---------------------------------------------------------------+
//! |                 message sequence number (MSN)                 |
//! +---------------------------------------------------------------+
//! |                      message offset (MO)                      |
//! +---------------------------------------------------------------+
//! ```

/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED_LEN: usize = 18;

const FLAG_TAGGED: u8 = 0x80;
const FLAG_LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// Why bytes are not a DDP header.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than a header.
    #[error("DDP header cut short")]
    Truncated,
    /// DV is not 1.
    #[error("DDP version unknown")]
    Version {
        /// Whether the segment calls itself tagged: the DDP error has one code for each kind.
        tagged: bool,
    },
}

/// A header of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// For a tagged buffer.
    Tagged(Tagged),
    /// For the next buffer of a queue.
    Untagged(Untagged),
}

/// Payload for a tagged buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// L: the last segment of its message.
    pub last: bool,
    /// RDMAP's control field.
    pub control: u8,
    /// The buffer.
    pub stag: u32,
    /// Offset in the buffer, in bytes.
    pub to: u64,
}

/// Payload for a queued buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// L: the last segment of its message.
    pub last: bool,
    /// RDMAP's control field.
    pub control: u8,
    /// The other four bytes for RDMAP: the STag of a Send with Invalidate, else zero.
    pub invalidate: u32,
    /// Queue number.
    pub qn: u32,
    /// Message sequence number in the queue, from 1, modulo 2^32.
    pub msn: u32,
    /// Offset in the message, in bytes.
    pub mo: u32,
}

impl Header {
    /// Length of the header that starts with this byte.
    pub const fn len_of(first: u8) -> usize {
        if first & FLAG_TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
    }

    /// Parses the header at the start of a segment. The payload begins after [`Header::len`] bytes.
    pub fn parse(segment: &[u8]) -> Result<Header, Malformed> {
        let control = *segment.first().ok_or(Malformed::Truncated)?;
        let tagged = control & FLAG_TAGGED != 0;
        let header = segment.get(..Header::len_of(control)).ok_or(Malformed::Truncated)?;
        if control & VERSION_MASK != VERSION {
            return Err(Malformed::Version { tagged });
        }
        let last = control & FLAG_LAST != 0;
        let word = |at: usize| -> Result<u32, Malformed> {
            let bytes = header.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Truncated)?;
            Ok(u32::from_be_bytes(*bytes))
        };
        let control = *header.get(1).ok_or(Malformed::Truncated)?;
        Ok(if tagged {
            let to = u64::from(word(6)?) << 32 | u64::from(word(10)?);
            Header::Tagged(Tagged { last, control, stag: word(2)?, to })
        } else {
            Header::Untagged(Untagged {
                last,
                control,
                invalidate: word(2)?,
                qn: word(6)?,
                msn: word(10)?,
                mo: word(14)?,
            })
        })
    }

    /// Length of this header.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Header::Tagged(_) => TAGGED_LEN,
            Header::Untagged(_) => UNTAGGED_LEN,
        }
    }

    /// L.
    pub fn last(&self) -> bool {
        match self {
            Header::Tagged(h) => h.last,
            Header::Untagged(h) => h.last,
        }
    }

    /// RDMAP's control field.
    pub fn control(&self) -> u8 {
        match self {
            Header::Tagged(h) => h.control,
            Header::Untagged(h) => h.control,
        }
    }

    /// Appends the header.
    pub fn emit(&self, to: &mut Vec<u8>) {
        match self {
            Header::Tagged(h) => to.extend_from_slice(&h.emit()),
            Header::Untagged(h) => to.extend_from_slice(&h.emit()),
        }
    }
}

impl Tagged {
    /// The header's bytes.
    pub fn emit(&self) -> [u8; TAGGED_LEN] {
        let mut out = [0; TAGGED_LEN];
        out[0] = FLAG_TAGGED | if self.last { FLAG_LAST } else { 0 } | VERSION;
        out[1] = self.control;
        out[2..6].copy_from_slice(&self.stag.to_be_bytes());
        out[6..].copy_from_slice(&self.to.to_be_bytes());
        out
    }
}

impl Untagged {
    /// The header's bytes.
    pub fn emit(&self) -> [u8; UNTAGGED_LEN] {
        let mut out = [0; UNTAGGED_LEN];
        out[0] = if self.last { FLAG_LAST } else { 0 } | VERSION;
        out[1] = self.control;
        out[2..6].copy_from_slice(&self.invalidate.to_be_bytes());
        out[6..10].copy_from_slice(&self.qn.to_be_bytes());
        out[10..14].copy_from_slice(&self.msn.to_be_bytes());
        out[14..].copy_from_slice(&self.mo.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests;
