//! The header of a compressed message, and those of the payloads that it may be a chain of.
//!
//! Spec: [MS-SMB2] 2.2.42, 2.2.3.1.3 (algorithms). Does not: compress.
//!
//! ```text
//! fc "SMB" | length of what is compressed 4 | algorithm 2 | 0 2 | bytes before it that are not 4 | those, then it
//! fc "SMB" | length of the whole message 4  | payloads, each: algorithm 2 | 1 the first, 0 the others 2 | length 4 | ...
//!           none: as it is;  pattern: byte 1, 0 3, repetitions 4;  others: length before 4, then the compressed bytes
//! ```

use super::Malformed;
use super::field::{Put, Reader, array_at, codes, u16_at, u32_at};

/// What a compressed message begins with.
pub const MAGIC_COMPRESSED: [u8; 4] = *b"\xfcSMB";
/// Length of the header of a message that is one compressed piece.
pub const UNCHAINED_LEN: usize = 16;
/// Length of the header of a chain.
pub const CHAINED_LEN: usize = 8;
/// Length of the header of a payload, without the length before compression.
pub const PAYLOAD_LEN: usize = 8;
/// Length of a pattern.
pub const PATTERN_LEN: usize = 8;
/// SMB2_COMPRESSION_CAPABILITIES_FLAG_CHAINED, and SMB2_COMPRESSION_FLAG_CHAINED.
pub const CHAINED: u16 = 1;

codes! {
    /// How bytes are compressed.
    Algorithm: u16 {
        /// Not at all.
        NONE = 0x0000;
        /// LZNT1 ([MS-XCA] 2.5).
        LZNT1 = 0x0001;
        /// Plain LZ77 ([MS-XCA] 2.3).
        LZ77 = 0x0002;
        /// LZ77 and Huffman's code ([MS-XCA] 2.1).
        LZ77_HUFFMAN = 0x0003;
        /// One byte, so many times; in chains only.
        PATTERN_V1 = 0x0004;
        /// LZ4, a block.
        LZ4 = 0x0005;
    }
}

/// The header of a compressed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressed {
    /// One piece, behind `plain` bytes that are as they were.
    Piece {
        /// Length of the piece before.
        original: u32,
        /// How.
        algorithm: Algorithm,
        /// Bytes that are not compressed.
        plain: u32,
    },
    /// A chain of payloads.
    Chain {
        /// Length of the message before.
        original: u32,
    },
}

impl Compressed {
    /// Reads it; what follows it begins at [`UNCHAINED_LEN`] or [`CHAINED_LEN`].
    pub fn parse(message: &[u8]) -> Result<Compressed, Malformed> {
        let h = message.first_chunk::<UNCHAINED_LEN>().ok_or(Malformed("shorter than its header"))?;
        if array_at::<4>(h, 0) != MAGIC_COMPRESSED {
            return Err(Malformed("ProtocolId is not that of a compressed message"));
        }
        let original = u32_at(h, 4);
        match u16_at(h, 10) {
            0 => {
                let algorithm = Algorithm(u16_at(h, 8));
                Ok(Compressed::Piece { original, algorithm, plain: u32_at(h, 12) })
            }
            CHAINED => Ok(Compressed::Chain { original }),
            _ => Err(Malformed("flags of a compressed message")),
        }
    }

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put(&MAGIC_COMPRESSED);
        match *self {
            Compressed::Chain { original } => out.put_u32(original),
            Compressed::Piece { original, algorithm, plain } => {
                out.put_u32(original);
                out.put_u16(algorithm.0);
                out.put_u16(0);
                out.put_u32(plain);
            }
        }
    }
}

/// One payload of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// As it is.
    Plain(&'a [u8]),
    /// A byte, so many times.
    Pattern {
        /// The byte.
        byte: u8,
        /// How often.
        count: u32,
    },
    /// Compressed.
    Packed {
        /// How.
        algorithm: Algorithm,
        /// Length before.
        original: u32,
        /// What it became.
        data: &'a [u8],
    },
}

impl<'a> Payload<'a> {
    /// Reads the payload that `chain` begins with; gives what follows it, too.
    pub fn parse(chain: &'a [u8], first: bool) -> Result<(Payload<'a>, &'a [u8]), Malformed> {
        let mut r = Reader::new(chain);
        let (algorithm, flags, len) = (Algorithm(r.u16()?), r.u16()?, r.u32()? as usize);
        if flags != if first { CHAINED } else { 0 } {
            return Err(Malformed("flags of a compressed payload"));
        }
        let body = r.take(len)?;
        let mut b = Reader::new(body);
        let payload = match algorithm {
            Algorithm::NONE => Payload::Plain(body),
            Algorithm::PATTERN_V1 => {
                let byte = b.array::<4>()?[0];
                Payload::Pattern { byte, count: b.u32()? }
            }
            algorithm if algorithm.name().is_some() => {
                let original = b.u32()?;
                Payload::Packed { algorithm, original, data: b.rest() }
            }
            _ => return Err(Malformed("a compressed payload of an unknown algorithm")),
        };
        Ok((payload, r.rest()))
    }

    /// Appends it.
    pub fn emit(&self, first: bool, out: &mut Vec<u8>) {
        let mut head = |algorithm: Algorithm, len: usize| {
            out.put_u16(algorithm.0);
            out.put_u16(if first { CHAINED } else { 0 });
            out.put_u32(super::field::len32(len));
        };
        match *self {
            Payload::Plain(bytes) => {
                head(Algorithm::NONE, bytes.len());
                out.put(bytes);
            }
            Payload::Pattern { byte, count } => {
                head(Algorithm::PATTERN_V1, PATTERN_LEN);
                out.put(&[byte, 0, 0, 0]);
                out.put_u32(count);
            }
            Payload::Packed { algorithm, original, data } => {
                head(algorithm, data.len().saturating_add(4));
                out.put_u32(original);
                out.put(data);
            }
        }
    }

    /// Length before compression.
    pub fn original_len(&self) -> usize {
        match self {
            Payload::Plain(bytes) => bytes.len(),
            Payload::Pattern { count, .. } => *count as usize,
            Payload::Packed { original, .. } => *original as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_headers() {
        for header in [
            Compressed::Piece { original: 4096, algorithm: Algorithm::LZ77, plain: 80 },
            Compressed::Chain { original: 70_000 },
        ] {
            let mut bytes = Vec::new();
            header.emit(&mut bytes);
            if let Compressed::Chain { .. } = header {
                assert_eq!(bytes.len(), CHAINED_LEN);
                Payload::Plain(b"x").emit(true, &mut bytes);
            }
            assert!(bytes.len() >= UNCHAINED_LEN);
            assert_eq!(Compressed::parse(&bytes), Ok(header));
            assert!(Compressed::parse(&bytes[..15]).is_err());
            bytes[10] = 2;
            assert!(Compressed::parse(&bytes).is_err());
        }
        assert!(Compressed::parse(b"\xfeSMB000000000000").is_err());
    }

    #[test]
    fn payloads_of_a_chain() {
        let payloads = [
            Payload::Plain(b"head"),
            Payload::Packed { algorithm: Algorithm::LZ4, original: 100, data: b"less" },
            Payload::Pattern { byte: 7, count: 5000 },
        ];
        let mut bytes = Vec::new();
        payloads.iter().enumerate().for_each(|(i, payload)| payload.emit(i == 0, &mut bytes));
        let mut rest = &bytes[..];
        for (i, payload) in payloads.iter().enumerate() {
            let (read, behind) = Payload::parse(rest, i == 0).unwrap();
            assert_eq!(read, *payload);
            assert!(Payload::parse(rest, i != 0).is_err(), "only the first is marked");
            rest = behind;
        }
        assert_eq!((rest.len(), payloads[2].original_len()), (0, 5000));
        for len in 0..12 {
            assert!(Payload::parse(&bytes[..len], true).is_err());
        }
        bytes[0] = 9;
        assert!(Payload::parse(&bytes, true).is_err());
    }
}
