//! Headers of compressed messages and of the payloads in a chain ([MS-SMB2] 2.2.42; algorithms 2.2.3.1.3).
//!
//! ```text
//! fc "SMB" | uncompressed length of the data 4 | algorithm 2 | 0 2 | length of the plain bytes 4 | plain bytes, then data
//! fc "SMB" | uncompressed message length 4      | payloads, each: algorithm 2 | 1 in the first, else 0 2 | length 4 | ...
//!           none: plain bytes;  pattern: byte 1, 0 3, repetitions 4;  others: uncompressed length 4, compressed bytes
//! ```

use super::Malformed;
use super::field::{Put, Reader, array_at, codes, u16_at, u32_at};

/// First bytes of a compressed message.
pub const MAGIC_COMPRESSED: [u8; 4] = *b"\xfcSMB";
/// Length of the header of an unchained message.
pub const UNCHAINED_LEN: usize = 16;
/// Length of the header of a chained message.
pub const CHAINED_LEN: usize = 8;
/// Length of the header of a payload, without the uncompressed length.
pub const PAYLOAD_LEN: usize = 8;
/// Length of a pattern.
pub const PATTERN_LEN: usize = 8;
/// SMB2_COMPRESSION_CAPABILITIES_FLAG_CHAINED, and SMB2_COMPRESSION_FLAG_CHAINED.
pub const CHAINED: u16 = 1;

codes! {
    /// Compression algorithm.
    Algorithm: u16 {
        /// Uncompressed.
        NONE = 0x0000;
        /// LZNT1 ([MS-XCA] 2.5).
        LZNT1 = 0x0001;
        /// Plain LZ77 ([MS-XCA] 2.3).
        LZ77 = 0x0002;
        /// LZ77 with Huffman coding ([MS-XCA] 2.1).
        LZ77_HUFFMAN = 0x0003;
        /// Repetitions of one byte; only in chains.
        PATTERN_V1 = 0x0004;
        /// LZ4 block format.
        LZ4 = 0x0005;
    }
}

/// The header of a compressed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressed {
    /// One compressed segment after `plain` uncompressed bytes.
    Piece {
        /// Uncompressed length of the segment.
        original: u32,
        /// The algorithm.
        algorithm: Algorithm,
        /// Number of uncompressed bytes.
        plain: u32,
    },
    /// A chain of payloads.
    Chain {
        /// Uncompressed length of the whole message.
        original: u32,
    },
}

impl Compressed {
    /// Parses the header; the content begins at [`UNCHAINED_LEN`] or [`CHAINED_LEN`].
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
            _ => Err(Malformed("unknown flags of a compressed message")),
        }
    }

    /// Appends the header.
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
    /// Uncompressed bytes.
    Plain(&'a [u8]),
    /// Repetitions of one byte.
    Pattern {
        /// The byte.
        byte: u8,
        /// Number of repetitions.
        count: u32,
    },
    /// Compressed.
    Packed {
        /// The algorithm.
        algorithm: Algorithm,
        /// Uncompressed length.
        original: u32,
        /// Compressed bytes.
        data: &'a [u8],
    },
}

impl<'a> Payload<'a> {
    /// Parses the payload at the start of `chain`; also returns the bytes after it.
    pub fn parse(chain: &'a [u8], first: bool) -> Result<(Payload<'a>, &'a [u8]), Malformed> {
        let mut r = Reader::new(chain);
        let (algorithm, flags, len) = (Algorithm(r.u16()?), r.u16()?, r.u32()? as usize);
        if flags != if first { CHAINED } else { 0 } {
            return Err(Malformed("wrong flags of a compressed payload"));
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
            _ => return Err(Malformed("unknown compression algorithm")),
        };
        Ok((payload, r.rest()))
    }

    /// Appends the structure.
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

    /// Uncompressed length.
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
