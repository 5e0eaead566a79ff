//! One record of a replication log: a change by a write, its position in the history, and checksums over both.
//!
//! [`Header`] and the layout of a record in a log and in an append are our own format, version 2, little-endian. The
//! payload follows the header and is padded with zeros to [`SECTOR`]; it does not pass through this module.
//!
//! ```text
//!   0   4  "WfLR"
//!   4   2  version
//!   6   1  kind: 1 write (payload follows), 2 zeroes, 3 pad (the log continues at its beginning)
//!   7   1  flags: 1 the space of zeroes stays reserved
//!   8   8  log: a random id of this log, so that records which another log left on the medium are not taken for its own
//!  16   8  life: number of times that the log was opened for writing; never decreases from one record to the next
//!  24   8  epoch of the source that wrote it
//!  32   8  sequence: one more than that of the record before
//!  40   2  member: number of the volume in its group
//!  42   2  zero
//!  44   4  bytes of payload: the length for a write, else 0
//!  48   8  offset in the volume
//!  56   8  length of the range
//!  64   8  when it was written, milliseconds of Unix time, by the source's clock
//!  72   8  settled: the last sequence that was durable in this log before this record was written
//!  80   4  CRC32C of the payload
//!  84   4  CRC32C of the 84 bytes before
//!  88   8  claimed: the last sequence durable at the source when it sent this record; stored by a destination
//!  96   4  CRC32C of the 96 bytes before, zero without a claim
//! 100      zeros up to 512, then the payload, padded to a multiple of 512
//! ```
//!
//! Everything in a log starts on a multiple of 512, the unit that disks write entirely or not at all: a torn write of
//! one record cannot damage the one before. The sequence distinguishes records of an earlier lap of the ring from those
//! of this one. The life distinguishes records that an earlier opening left after a lost record from those that belong
//! after its successor.
//!
//! The settled sequence distinguishes a torn end, which nobody relied on, from damage in the middle: a missing record
//! that a later one calls settled was once there.
//!
//! A source sends records as they are in its log, with the settled sequence updated. The destination replaces log, life
//! and settled by its own, and stores the source's settled sequence as claimed; nothing else changes. Older versions
//! neither write a claim nor read it.

use super::{Malformed, Reader};

/// The version that this module writes.
pub const VERSION: u16 = 2;
/// Length of a header with its zeros, and the unit of every length in a log.
pub const SECTOR: usize = 512;
/// The longest payload; longer writes are split into several records.
pub const MAX_PAYLOAD: usize = 4 << 20;
/// Most volumes of one group.
pub const MAX_MEMBERS: usize = 64;

const MAGIC: [u8; 4] = *b"WfLR";
const LEN: usize = 88;
const SUM_AT: usize = 84;
const CLAIM_SUM_AT: usize = LEN + 8;
const FLAG_KEEP_SPACE: u8 = 1;

/// The change that a record makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Writes the payload at the offset.
    Write {
        /// Bytes, 1 to [`MAX_PAYLOAD`].
        len: u32,
        /// CRC32C of the payload.
        sum: u32,
    },
    /// Makes the range read as zeros.
    Zeroes {
        /// Bytes, not 0.
        len: u64,
        /// Whether its space stays reserved.
        keep_space: bool,
    },
    /// Nothing: the remainder of the ring up to its end is unused in this lap.
    Pad,
}

/// The header of a record, drawn in the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The log's id.
    pub log: u64,
    /// The opening of the log.
    pub life: u64,
    /// The source's epoch.
    pub epoch: u64,
    /// Position in the history; a pad has that of the record after it.
    pub sequence: u64,
    /// Number of the volume.
    pub member: u16,
    /// First byte in the volume.
    pub offset: u64,
    /// Milliseconds of Unix time.
    pub unix_ms: u64,
    /// The last sequence that was durable in the log before this record was written; the log fills it in.
    pub settled: u64,
    /// The last sequence that the source had durable when it sent this record, as the destination remembers it; 0 if
    /// unknown.
    pub claimed: u64,
    /// The change.
    pub kind: Kind,
}

impl Header {
    /// Length of the payload in bytes, without padding.
    pub fn payload_len(&self) -> usize {
        match self.kind {
            Kind::Write { len, .. } => len as usize,
            Kind::Zeroes { .. } | Kind::Pad => 0,
        }
    }

    /// Bytes of the volume that the record changes.
    pub fn range_len(&self) -> u64 {
        match self.kind {
            Kind::Write { len, .. } => len.into(),
            Kind::Zeroes { len, .. } => len,
            Kind::Pad => 0,
        }
    }

    /// Bytes of the record in a log and in an append: header, payload and padding.
    pub fn record_len(&self) -> usize {
        SECTOR.saturating_add(self.payload_len().next_multiple_of(SECTOR))
    }

    /// The header with its zeros.
    pub fn emit(&self) -> [u8; SECTOR] {
        let (kind, flags, payload, len, sum): (u8, u8, u32, u64, u32) = match self.kind {
            Kind::Write { len, sum } => (1, 0, len, len.into(), sum),
            Kind::Zeroes { len, keep_space } => (2, if keep_space { FLAG_KEEP_SPACE } else { 0 }, 0, len, 0),
            Kind::Pad => (3, 0, 0, 0, 0),
        };
        let mut bytes = [0; SECTOR];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = kind;
        bytes[7] = flags;
        bytes[8..16].copy_from_slice(&self.log.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.life.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..42].copy_from_slice(&self.member.to_le_bytes());
        bytes[44..48].copy_from_slice(&payload.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.offset.to_le_bytes());
        bytes[56..64].copy_from_slice(&len.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.unix_ms.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.settled.to_le_bytes());
        bytes[80..84].copy_from_slice(&sum.to_le_bytes());
        let own = crc32c::crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..LEN].copy_from_slice(&own.to_le_bytes());
        if self.claimed > 0 {
            bytes[LEN..CLAIM_SUM_AT].copy_from_slice(&self.claimed.to_le_bytes());
            let sum = crc32c::crc32c(&bytes[..CLAIM_SUM_AT]);
            bytes[CLAIM_SUM_AT..CLAIM_SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Parses the header at the front of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let bytes = bytes.first_chunk::<SECTOR>().ok_or(Malformed::Length(bytes.len()))?;
        if bytes[..4] != MAGIC {
            return Err(Malformed::Magic);
        }
        let mut r = Reader(&bytes[SUM_AT..LEN]);
        if r.u32()? != crc32c::crc32c(&bytes[..SUM_AT]) {
            return Err(Malformed::Sum);
        }
        let mut r = Reader(&bytes[4..SUM_AT]);
        let version = r.u16()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let (kind, flags) = (r.u8()?, r.u8()?);
        let (log, life, epoch, sequence) = (r.u64()?, r.u64()?, r.u64()?, r.sequence()?);
        let (member, zero, payload) = (r.u16()?, r.u16()?, r.u32()?);
        let (offset, len, unix_ms, settled, sum) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?, r.u32()?);
        let kind = match (kind, flags) {
            (1, 0) if len == 0 || len > MAX_PAYLOAD as u64 || u64::from(payload) != len => {
                return Err(Malformed::Field("its length"));
            }
            (1, 0) => Kind::Write { len: payload, sum },
            (2, 0 | FLAG_KEEP_SPACE) if len == 0 || payload != 0 => {
                return Err(Malformed::Field("its length"));
            }
            (2, 0 | FLAG_KEEP_SPACE) => Kind::Zeroes { len, keep_space: flags != 0 },
            (3, 0) if len == 0 && payload == 0 => Kind::Pad,
            _ => return Err(Malformed::Field("its kind")),
        };
        if sequence == 0 {
            return Err(Malformed::Field("its sequence"));
        }
        if usize::from(member) >= MAX_MEMBERS || zero != 0 || offset.checked_add(len).is_none() {
            return Err(Malformed::Field("its member or range"));
        }
        // A damaged or missing claim counts as none.
        let mut r = Reader(&bytes[LEN..CLAIM_SUM_AT + 4]);
        let (claimed, sum) = (r.u64()?, r.u32()?);
        let claimed = if sum == crc32c::crc32c(&bytes[..CLAIM_SUM_AT]) { claimed } else { 0 };
        Ok(Header { log, life, epoch, sequence, member, offset, unix_ms, settled, claimed, kind })
    }
}
