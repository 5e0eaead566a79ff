//! The Network Block Device protocol: a [`handshake`] of options, then [`transmission`] of requests and replies, all
//! big-endian.
//!
//! The specification is the NBD project's doc/proto.md, "Protocol phases" and "Values". Only fixed newstyle is
//! implemented; oldstyle cannot refuse anything. `nbd::negotiation` holds the state of a handshake, knows the exports
//! and limits lengths.

pub mod handshake;
pub mod transmission;

#[cfg(test)]
mod tests;

/// Why bytes are not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the message has.
    #[error("message of {0} bytes is cut off")]
    Truncated(usize),
    /// More bytes than the message has.
    #[error("message with {0} bytes too many")]
    Trailing(usize),
    /// Another magic number: the peer speaks another protocol, or the stream is out of step.
    #[error("unexpected magic number {0:#x}")]
    Magic(u64),
    /// A flag that must not be set.
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// A length or number inside that contradicts another.
    #[error("{0} out of range")]
    Range(&'static str),
    /// A name that is not UTF-8, or longer than [`handshake::MAX_STRING`].
    #[error("not a name")]
    Name,
}

/// A cursor over a message that takes from the front and never reads past the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Truncated(self.0.len()))?;
        self.0 = rest;
        Ok(*front)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated(self.0.len()))?;
        self.0 = rest;
        Ok(front)
    }

    /// A 32-bit length, then that many bytes of UTF-8.
    fn string(&mut self) -> Result<String, Malformed> {
        let len = self.u32()? as usize;
        name(self.bytes(len)?)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing(self.0.len())) }
    }

    /// The remaining bytes, without a check.
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// "Values", strings: UTF-8 of at most 4096 bytes without NUL.
fn name(bytes: &[u8]) -> Result<String, Malformed> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= handshake::MAX_STRING && !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(Malformed::Name),
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text.as_bytes());
}
