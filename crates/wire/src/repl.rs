//! Replication of volumes: records of a log, and the control messages of a source and its destination, little-endian.
//!
//! What: [`record`] and [`control`], parse and emit. Spec: ours, version 1 of each, drawn in the two files.
//! Does not: say what a side does with them (see the `replica` crate), or carry payload: a record's follows
//! its header, and blocks that are copied travel as plain writes of the protocol below.

pub mod control;
pub mod record;

#[cfg(test)]
mod tests;

/// The last sequence that a history can have. Whoever names a later one is refused, so that counting on never overflows; nobody
/// writes so many records.
pub const MAX_SEQUENCE: u64 = 1 << 62;
/// The last epoch, for the same reason.
pub const MAX_EPOCH: u64 = 1 << 62;

/// Why bytes are none of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Something else, or nothing that was ever written.
    #[error("it is nothing of a replica's")]
    Magic,
    /// Shorter or longer than it says.
    #[error("{0} bytes are too few or too many")]
    Length(usize),
    /// The checksum does not fit.
    #[error("its checksum does not fit")]
    Sum,
    /// A version that this program does not know.
    #[error("version {0}, which this program does not know")]
    Version(u16),
    /// A field out of range under a checksum that fits.
    #[error("{0} makes no sense")]
    Field(&'static str),
}

/// Takes from the front, never past the end.
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

    /// A sequence, or 0 for what is before the first.
    fn sequence(&mut self) -> Result<u64, Malformed> {
        let sequence = self.u64()?;
        if sequence <= MAX_SEQUENCE { Ok(sequence) } else { Err(Malformed::Field("a sequence")) }
    }

    fn epoch(&mut self) -> Result<u64, Malformed> {
        let epoch = self.u64()?;
        if epoch <= MAX_EPOCH { Ok(epoch) } else { Err(Malformed::Field("an epoch")) }
    }

    /// A 16-bit count that the limit allows and the bytes at hand could hold.
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
