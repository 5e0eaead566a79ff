//! Compressed messages: what two sides negotiate, and how messages are compressed and decompressed.
//!
//! Spec: [MS-SMB2] 3.1.4.4 (compressing), 3.1.5.3 (chains), 2.2.3.1.3 (negotiation); [MS-XCA]; LZ4's block format.
//! Signing and encryption are elsewhere: a message is signed, then compressed, then encrypted. Lengths are not trusted:
//! the receiver limits the length of the result, and nothing is written beyond the declared length.

mod huffman;
mod input;
mod lz77;
mod lznt1;
mod matches;
mod output;

use weft_wire::smb2::Malformed;
use weft_wire::smb2::compression::{Algorithm, CHAINED, CHAINED_LEN, Compressed, Payload, UNCHAINED_LEN};
use weft_wire::smb2::negotiate::Context;

/// Our algorithms, best first: speed counts more than ratio.
const OURS: [Algorithm; 5] =
    [Algorithm::PATTERN_V1, Algorithm::LZ4, Algorithm::LZ77, Algorithm::LZNT1, Algorithm::LZ77_HUFFMAN];
/// 3.1.4.4.1: shorter runs are not worth a pattern.
const MIN_RUN: usize = 64;
/// 3.1.4.4: shorter data is sent uncompressed, inside a chain too.
const MIN_BYTES: usize = 1024;
/// Limit on the payloads in a chain. An encoder that splits repeatedly adds three per round: two runs and the data between.
const MAX_PAYLOADS: usize = 1024;

/// Data that cannot be decompressed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt compressed data: {0}")]
pub struct Corrupt(pub &'static str);

impl From<Malformed> for Corrupt {
    fn from(malformed: Malformed) -> Corrupt {
        Corrupt(malformed.0)
    }
}

/// What both sides of a connection support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Best first; never empty.
    algorithms: Vec<Algorithm>,
    chained: bool,
}

impl Agreed {
    /// What a client offers.
    pub fn offer() -> Context {
        Context::Compression { flags: CHAINED.into(), algorithms: OURS.map(|algorithm| algorithm.0).to_vec() }
    }

    /// The common subset of an offer, in the offer's order; `None` if it is empty. Also parses the server's answer to
    /// [`Agreed::offer`].
    pub fn of(flags: u32, algorithms: &[u16]) -> Option<Agreed> {
        let chained = flags & u32::from(CHAINED) != 0;
        // 3.3.5.4: patterns are included even without chains, although only chains can use them.
        let ours = |algorithm: &Algorithm| OURS.contains(algorithm);
        let mut common: Vec<Algorithm> = Vec::new();
        for algorithm in algorithms.iter().copied().map(Algorithm).filter(ours) {
            if !common.contains(&algorithm) {
                common.push(algorithm);
            }
        }
        (!common.is_empty()).then_some(Agreed { algorithms: common, chained })
    }

    /// The negotiate context that announces it.
    pub fn context(&self) -> Context {
        let flags = if self.chained { CHAINED.into() } else { 0 };
        Context::Compression { flags, algorithms: self.algorithms.iter().map(|a| a.0).collect() }
    }

    /// The context of a server that has nothing in common with a client (3.3.5.4).
    pub fn nothing() -> Context {
        Context::Compression { flags: 0, algorithms: vec![Algorithm::NONE.0] }
    }

    /// The algorithm that data is compressed with.
    fn codec(&self) -> Option<Algorithm> {
        self.algorithms.iter().copied().find(|algorithm| *algorithm != Algorithm::PATTERN_V1)
    }

    /// Compresses a message; `None` if that does not make it shorter. The first `plain` bytes, its headers, are left
    /// uncompressed where that makes no difference.
    pub fn compress(&self, message: &[u8], plain: usize) -> Option<Vec<u8>> {
        // Patterns in short messages cost next to nothing; see 3.1.4.4 for both bounds.
        let patterns = self.chained && self.algorithms.contains(&Algorithm::PATTERN_V1);
        let least = if patterns { MIN_RUN } else { MIN_BYTES };
        if message.len() < least || u32::try_from(message.len()).is_err() {
            return None;
        }
        let compressed = match self.chained {
            true => self.chain(message, plain)?,
            false => self.piece(message, plain)?,
        };
        (compressed.len() < message.len()).then_some(compressed)
    }

    fn piece(&self, message: &[u8], plain: usize) -> Option<Vec<u8>> {
        let algorithm = self.codec()?;
        let (head, rest) = message.split_at_checked(plain)?;
        let mut out = Vec::with_capacity(message.len());
        // Both lengths are below the message's.
        Compressed::Piece { original: rest.len() as u32, algorithm, plain: head.len() as u32 }.emit(&mut out);
        out.extend_from_slice(head);
        pack(algorithm, rest, rest.len(), &mut out).then_some(out)
    }

    fn chain(&self, message: &[u8], plain: usize) -> Option<Vec<u8>> {
        let (head, rest) = message.split_at_checked(plain)?;
        let mut out = Vec::with_capacity(message.len());
        Compressed::Chain { original: message.len() as u32 }.emit(&mut out);
        let mut first = true;
        let mut put = |payload: Payload<'_>, out: &mut Vec<u8>| {
            if payload.original_len() > 0 {
                payload.emit(std::mem::take(&mut first), out);
            }
        };
        put(Payload::Plain(head), &mut out);
        let (front, middle, back) = match self.algorithms.contains(&Algorithm::PATTERN_V1) {
            true => runs(rest),
            false => (&[][..], rest, &[][..]),
        };
        let run =
            |bytes: &[u8]| Payload::Pattern { byte: *bytes.first().unwrap_or(&0), count: bytes.len() as u32 };
        put(run(front), &mut out);
        let mut packed = Vec::new();
        let data = match self.codec().filter(|_| middle.len() > MIN_BYTES) {
            Some(algorithm) if pack(algorithm, middle, middle.len(), &mut packed) => {
                Payload::Packed { algorithm, original: middle.len() as u32, data: &packed }
            }
            _ => Payload::Plain(middle),
        };
        put(data, &mut out);
        put(run(back), &mut out);
        Some(out)
    }

    /// The decompressed length of a message; an error if it exceeds `most`, or if the message uses an algorithm that
    /// was not negotiated.
    pub fn original_len(&self, compressed: &[u8], most: usize) -> Result<usize, Corrupt> {
        let len = match Compressed::parse(compressed)? {
            Compressed::Chain { .. } if !self.chained => {
                return Err(Corrupt("a chain, which was not negotiated"));
            }
            Compressed::Chain { original } => original as usize,
            Compressed::Piece { algorithm, .. }
                if !self.algorithms.contains(&algorithm) || algorithm == Algorithm::PATTERN_V1 =>
            {
                return Err(Corrupt("an algorithm that was not negotiated"));
            }
            Compressed::Piece { original, plain, .. } => {
                (original as usize).checked_add(plain as usize).ok_or(Corrupt("the length overflows"))?
            }
        };
        if len <= most { Ok(len) } else { Err(Corrupt("longer than a message may be")) }
    }

    /// Fills `out`, which must be [`Agreed::original_len`] bytes long.
    pub fn decompress(&self, compressed: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
        match Compressed::parse(compressed)? {
            Compressed::Piece { algorithm, plain, .. } => {
                let rest = compressed.get(UNCHAINED_LEN..).ok_or(Corrupt("ends too early"))?;
                let (head, data) = rest.split_at_checked(plain as usize).ok_or(Corrupt("ends too early"))?;
                let (front, room) =
                    out.split_at_mut_checked(head.len()).ok_or(Corrupt("longer than declared"))?;
                front.copy_from_slice(head);
                unpack(algorithm, data, room)
            }
            Compressed::Chain { .. } => {
                self.unchain(compressed.get(CHAINED_LEN..).ok_or(Corrupt("ends too early"))?, out)
            }
        }
    }

    fn unchain(&self, mut chain: &[u8], mut out: &mut [u8]) -> Result<(), Corrupt> {
        for i in 0..MAX_PAYLOADS {
            let (payload, rest) = Payload::parse(chain, i == 0)?;
            let (room, behind) =
                out.split_at_mut_checked(payload.original_len()).ok_or(Corrupt("longer than declared"))?;
            match payload {
                Payload::Plain(bytes) => room.copy_from_slice(bytes),
                Payload::Pattern { byte, .. } if self.algorithms.contains(&Algorithm::PATTERN_V1) => {
                    room.fill(byte)
                }
                Payload::Packed { algorithm, data, .. } if self.algorithms.contains(&algorithm) => {
                    unpack(algorithm, data, room)?;
                }
                _ => return Err(Corrupt("an algorithm that was not negotiated")),
            }
            (chain, out) = (rest, behind);
            if chain.is_empty() {
                return if out.is_empty() { Ok(()) } else { Err(Corrupt("shorter than declared")) };
            }
        }
        Err(Corrupt("too many payloads in a chain"))
    }
}

/// 3.1.4.4.1: splits data into runs of one byte at both ends, and the bytes between them.
fn runs(data: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let long = |count: usize| if count >= MIN_RUN { count } else { 0 };
    let front = data.first().map_or(0, |byte| data.iter().take_while(|other| *other == byte).count());
    let (front, rest) = data.split_at_checked(long(front)).unwrap_or((&[], data));
    let back = rest.last().map_or(0, |byte| rest.iter().rev().take_while(|other| *other == byte).count());
    let (middle, back) = rest.split_at_checked(rest.len().saturating_sub(long(back))).unwrap_or((rest, &[]));
    (front, middle, back)
}

/// Appends the compressed `data`; false, with some output appended, if it is not shorter than `limit`.
fn pack(algorithm: Algorithm, data: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    match algorithm {
        Algorithm::LZNT1 => lznt1::compress(data, limit, out),
        Algorithm::LZ77 => lz77::compress(data, limit, out),
        Algorithm::LZ77_HUFFMAN => huffman::compress(data, limit, out),
        Algorithm::LZ4 => {
            let start = out.len();
            out.resize(start.saturating_add(lz4_flex::block::get_maximum_output_size(data.len())), 0);
            match lz4_flex::block::compress_into(data, out.get_mut(start..).unwrap_or_default()) {
                Ok(len) if len < limit => {
                    out.truncate(start.saturating_add(len));
                    true
                }
                _ => false,
            }
        }
        _ => false,
    }
}

fn unpack(algorithm: Algorithm, data: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    match algorithm {
        Algorithm::LZNT1 => lznt1::decompress(data, out),
        Algorithm::LZ77 => lz77::decompress(data, out),
        Algorithm::LZ77_HUFFMAN => huffman::decompress(data, out),
        Algorithm::LZ4 => match lz4_flex::block::decompress_into(data, out) {
            Ok(len) if len == out.len() => Ok(()),
            Ok(_) => Err(Corrupt("shorter than declared")),
            Err(_) => Err(Corrupt("LZ4")),
        },
        _ => Err(Corrupt("an unknown algorithm")),
    }
}

/// Decompresses any data with any algorithm, for fuzzers.
#[doc(hidden)]
#[allow(clippy::arithmetic_side_effects, reason = "three bits are shifted by")]
pub fn fuzz(data: &[u8]) {
    let Some((&which, data)) = data.split_first() else { return };
    let all = Agreed { algorithms: OURS.to_vec(), chained: true };
    let mut out = vec![0; 1 << 12 << (which >> 5)];
    match Algorithm(u16::from(which & 7)) {
        Algorithm::NONE => {
            if let Ok(len) = all.original_len(data, 1 << 20) {
                out.resize(len, 0);
                let _ = all.decompress(data, &mut out);
            }
        }
        algorithm if algorithm.name().is_some() => {
            let _ = unpack(algorithm, data, &mut out);
            // Our own output must decompress.
            let mut packed = Vec::new();
            if pack(algorithm, data, usize::MAX, &mut packed) {
                let mut back = vec![0; data.len()];
                unpack(algorithm, &packed, &mut back).expect("what was just compressed");
                assert_eq!(back, data);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
