//! Offloaded copies ([MS-FSCC] 2.1.11, 2.3.41 to 2.3.44): OFFLOAD_READ returns a token for a range, and OFFLOAD_WRITE
//! writes its data elsewhere.
//!
//! Only the server that issued a token interprets its content.

use super::Malformed;
use super::field::{Put, Reader};

/// TokenType of the zero token.
const ZERO_DATA: u32 = 0xFFFF_0001;
/// From here on, types are reserved for well-known tokens.
const WELL_KNOWN: u32 = 0xFFFF_0000;
/// Bytes of a token.
const TOKEN_LEN: usize = 512;

/// STORAGE_OFFLOAD_TOKEN (2.1.11), whose numbers are big-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An unlimited number of zeros; any client can make this token.
    Zeros,
    /// A token issued by a server, with a type of its own and up to 504 bytes.
    Own {
        /// TokenType.
        kind: u32,
        /// TokenId, of the length in its header.
        id: Vec<u8>,
    },
}

impl Token {
    /// Most bytes of [`Token::Own`].
    pub const MAX_ID: usize = TOKEN_LEN - 8;

    fn parse(bytes: &[u8; TOKEN_LEN]) -> Result<Token, Malformed> {
        let [k0, k1, k2, k3, _, _, l0, l1, id @ ..] = bytes;
        match u32::from_be_bytes([*k0, *k1, *k2, *k3]) {
            ZERO_DATA => Ok(Token::Zeros),
            WELL_KNOWN.. => Err(Malformed("reserved token type")),
            kind => {
                let len = usize::from(u16::from_be_bytes([*l0, *l1]));
                let id = id.get(..len).ok_or(Malformed("wrong token length"))?;
                Ok(Token::Own { kind, id: id.to_vec() })
            }
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let end = out.len().saturating_add(TOKEN_LEN);
        let (kind, id) = match self {
            Token::Zeros => (ZERO_DATA, &[][..]),
            Token::Own { kind, id } => (*kind, id.get(..Token::MAX_ID).unwrap_or(id)),
        };
        out.put(&kind.to_be_bytes());
        out.put_u16(0);
        // At most 504.
        out.put(&(id.len() as u16).to_be_bytes());
        out.put(id);
        out.resize(end, 0);
    }
}

/// FSCTL_OFFLOAD_READ_INPUT (2.3.41).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadRead {
    /// Size field, unchecked.
    pub size: u32,
    /// Requested lifetime of the token in milliseconds; 0: the server's choice.
    pub ttl_ms: u32,
    /// Offset of the range.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl OffloadRead {
    /// Length on the wire in bytes, and the required value of its size.
    pub const LEN: u32 = 32;

    /// Parses the structure.
    pub fn parse(input: &[u8]) -> Result<OffloadRead, Malformed> {
        let mut r = Reader::new(input);
        let (size, _flags, ttl_ms, _reserved) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        Ok(OffloadRead { size, ttl_ms, offset: r.u64()?, len: r.u64()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.size);
        out.put_u32(0);
        out.put_u32(self.ttl_ms);
        out.put_u32(0);
        out.put_u64(self.offset);
        out.put_u64(self.len);
    }
}

/// FSCTL_OFFLOAD_READ_OUTPUT (2.3.42).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadReadAnswer {
    /// Whether all data after the token's range is zero.
    pub zero_beyond: bool,
    /// Length of the token's range in bytes.
    pub len: u64,
    /// The token.
    pub token: Token,
}

impl OffloadReadAnswer {
    /// Length on the wire in bytes.
    pub const LEN: u32 = 16 + TOKEN_LEN as u32;

    /// Parses the structure.
    pub fn parse(output: &[u8]) -> Result<OffloadReadAnswer, Malformed> {
        let mut r = Reader::new(output);
        let (_size, flags, len) = (r.u32()?, r.u32()?, r.u64()?);
        Ok(OffloadReadAnswer { zero_beyond: flags & 1 != 0, len, token: Token::parse(&r.array()?)? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(OffloadReadAnswer::LEN);
        out.put_u32(self.zero_beyond.into());
        out.put_u64(self.len);
        self.token.emit(out);
    }
}

/// FSCTL_OFFLOAD_WRITE_INPUT (2.3.43).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadWrite {
    /// Size field, unchecked.
    pub size: u32,
    /// Offset in the target.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the token's range.
    pub transfer_offset: u64,
    /// The token; `None` if it is invalid.
    pub token: Option<Token>,
}

impl OffloadWrite {
    /// Length on the wire in bytes, and the required value of its size.
    pub const LEN: u32 = 32 + TOKEN_LEN as u32;

    /// Parses the structure.
    pub fn parse(input: &[u8]) -> Result<OffloadWrite, Malformed> {
        let mut r = Reader::new(input);
        let (size, _flags) = (r.u32()?, r.u32()?);
        let (offset, len, transfer_offset) = (r.u64()?, r.u64()?, r.u64()?);
        let token = Token::parse(&r.array()?).ok();
        Ok(OffloadWrite { size, offset, len, transfer_offset, token })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.size);
        out.put_u32(0);
        out.put_u64(self.offset);
        out.put_u64(self.len);
        out.put_u64(self.transfer_offset);
        self.token.as_ref().unwrap_or(&Token::Zeros).emit(out);
    }
}

/// FSCTL_OFFLOAD_WRITE_OUTPUT (2.3.44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadWriteAnswer {
    /// Bytes written.
    pub len: u64,
}

impl OffloadWriteAnswer {
    /// Length on the wire in bytes.
    pub const LEN: u32 = 16;

    /// Parses the structure.
    pub fn parse(output: &[u8]) -> Result<OffloadWriteAnswer, Malformed> {
        let mut r = Reader::new(output);
        let (_size, _flags) = (r.u32()?, r.u32()?);
        Ok(OffloadWriteAnswer { len: r.u64()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(OffloadWriteAnswer::LEN);
        out.put_u32(0);
        out.put_u64(self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_and_every_truncation_of_them() {
        let read = OffloadRead { size: 32, ttl_ms: 1, offset: 2, len: 3 };
        let mut bytes = Vec::new();
        read.emit(&mut bytes);
        assert_eq!(bytes.len(), OffloadRead::LEN as usize);
        assert_eq!(OffloadRead::parse(&bytes), Ok(read));
        (0..bytes.len()).for_each(|len| assert!(OffloadRead::parse(&bytes[..len]).is_err()));

        let token = Token::Own { kind: 0x0102_0304, id: vec![7; 40] };
        let answer = OffloadReadAnswer { zero_beyond: true, len: 5, token: token.clone() };
        let mut bytes = Vec::new();
        answer.emit(&mut bytes);
        assert_eq!(bytes.len(), OffloadReadAnswer::LEN as usize);
        assert_eq!(bytes[16..26], [1, 2, 3, 4, 0, 0, 0, 40, 7, 7], "big-endian");
        assert_eq!(OffloadReadAnswer::parse(&bytes), Ok(answer));
        (0..bytes.len()).for_each(|len| assert!(OffloadReadAnswer::parse(&bytes[..len]).is_err()));

        let write = OffloadWrite { size: 544, offset: 1, len: 2, transfer_offset: 3, token: Some(token) };
        let mut bytes = Vec::new();
        write.emit(&mut bytes);
        assert_eq!(bytes.len(), OffloadWrite::LEN as usize);
        assert_eq!(OffloadWrite::parse(&bytes), Ok(write.clone()));
        (0..bytes.len()).for_each(|len| assert!(OffloadWrite::parse(&bytes[..len]).is_err()));
        // A token with an excessive length, and a token of an unknown type.
        bytes[32 + 6..32 + 8].copy_from_slice(&505u16.to_be_bytes());
        assert_eq!(OffloadWrite::parse(&bytes).unwrap().token, None);
        bytes[32..36].copy_from_slice(&0xFFFF_0002u32.to_be_bytes());
        assert_eq!(OffloadWrite::parse(&bytes).unwrap().token, None);
        bytes[32..36].copy_from_slice(&ZERO_DATA.to_be_bytes());
        assert_eq!(OffloadWrite::parse(&bytes).unwrap().token, Some(Token::Zeros));

        let answer = OffloadWriteAnswer { len: 9 };
        let mut bytes = Vec::new();
        answer.emit(&mut bytes);
        assert_eq!(OffloadWriteAnswer::parse(&bytes), Ok(answer));
    }
}
