//! Replication of volumes: the records of a replication log ([`record`]), and the control messages between a source and
//! its destination ([`control`]).
//!
//! Both formats are our own and little-endian; the two files draw them. The `replica` crate defines the behaviour
//! of both sides. Payload does not pass through this module: a record's payload follows its header, and copied blocks
//! are plain writes of the protocol below.

pub mod control;
pub mod record;

#[cfg(test)]
mod tests;

/// The last sequence that a history can have. A peer that names a later one is refused, so that incrementing never
/// overflows; no history gets this long.
pub const MAX_SEQUENCE: u64 = 1 << 62;
/// The last epoch, for the same reason.
pub const MAX_EPOCH: u64 = 1 << 62;

/// Why bytes do not parse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Something else, or bytes that were never written.
    #[error("it is not a record or message of a replica")]
    Magic,
    /// Shorter or longer than the header announces.
    #[error("its length of {0} bytes is wrong")]
    Length(usize),
    /// The checksum does not match.
    #[error("its checksum does not match")]
    Sum,
    /// A version that this program does not know.
    #[error("version {0}, which this program does not know")]
    Version(u16),
    /// A field out of range, although the checksum matches.
    #[error("{0} is invalid")]
    Field(&'static str),
}

/// A cursor that takes from the front and never reads past the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length(self.0.len()))?;
        self.0 = rest;
        Ok(*front)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Field("a flag")),
        }
    }

    /// A sequence, or 0 for the position before the first.
    fn sequence(&mut self) -> Result<u64, Malformed> {
        let sequence = self.u64()?;
        if sequence <= MAX_SEQUENCE { Ok(sequence) } else { Err(Malformed::Field("a sequence")) }
    }

    fn epoch(&mut self) -> Result<u64, Malformed> {
        let epoch = self.u64()?;
        if epoch <= MAX_EPOCH { Ok(epoch) } else { Err(Malformed::Field("an epoch")) }
    }

    /// A 16-bit count within the limit, for which enough bytes remain.
    fn count(&mut self, limit: usize, each: usize) -> Result<usize, Malformed> {
        let count = usize::from(self.u16()?);
        if count > limit || count.saturating_mul(each) > self.0.len() {
            return Err(Malformed::Field("a count"));
        }
        Ok(count)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Length(self.0.len())) }
    }
}
