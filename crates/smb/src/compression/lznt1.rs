//! LZNT1: chunks of 4096 bytes, each by itself, with matches whose fields move as the chunk grows.
//!
//! Spec: [MS-XCA] 2.5, 3.3 (example). Owns: nothing. Does not: write an end of the buffer, which 2.5.1.2 leaves open and
//! the length makes superfluous.

use super::Corrupt;
use super::input::Input;
use super::matches::{Finder, Token, repeat};

/// Bytes in a chunk before it is compressed.
const CHUNK: usize = 4096;
const SIGNATURE: u16 = 3 << 12;
const COMPRESSED: u16 = 1 << 15;

/// Bits of a match's length, after `done` bytes of the chunk (2.5.1.4).
fn length_bits(done: usize) -> u32 {
    let displacement = (4..=12).rev().find(|bits| 1 << (bits - 1) < done).unwrap_or(4);
    16 - displacement
}

/// Appends the compressed `data`; gives up once that takes `limit` bytes.
pub(super) fn compress(data: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut finder = Finder::new();
    for from in (0..data.len()).step_by(CHUNK) {
        let to = data.len().min(from + CHUNK);
        chunk(data, (from, to), &mut finder, out);
        if out.len() - start >= limit {
            return false;
        }
    }
    true
}

fn chunk(data: &[u8], (from, to): (usize, usize), finder: &mut Finder, out: &mut Vec<u8>) {
    let header = out.len();
    out.extend([0; 2]);
    let (mut flags_at, mut count, mut done) = (0, 8, 0);
    let longest = |at: usize| (1 << length_bits(at - from)) + 2;
    finder.cut(data, (from, to), (from, CHUNK), longest, |token| {
        if count == 8 {
            (flags_at, count) = (out.len(), 0);
            out.push(0);
        }
        match token {
            Token::Literal(byte) => {
                out.push(byte);
                done += 1;
            }
            Token::Match { len, distance } => {
                out[flags_at] |= 1 << count;
                let word = (distance - 1) << length_bits(done) | (len - 3);
                out.extend((word as u16).to_le_bytes());
                done += len;
            }
        }
        count += 1;
    });
    let mut kind = COMPRESSED;
    if out.len() - header - 2 >= to - from {
        kind = 0;
        out.truncate(header + 2);
        out.extend_from_slice(&data[from..to]);
    }
    // At most 4096 + 2, less 3.
    let size = (out.len() - header - 3) as u16;
    out[header..header + 2].copy_from_slice(&(kind | SIGNATURE | size).to_le_bytes());
}

/// Fills `out`, neither less nor more.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let mut input = Input::new(data);
    let mut at = 0;
    while !input.is_empty() {
        let header = input.u16()?;
        if header == 0 {
            break;
        }
        if header >> 12 & 7 != SIGNATURE >> 12 {
            return Err(Corrupt("no chunk of LZNT1"));
        }
        let body = input.take(usize::from(header & 0xfff) + 1)?;
        if header & COMPRESSED == 0 {
            let room = out.get_mut(at..at + body.len()).ok_or(Corrupt("longer than it says"))?;
            room.copy_from_slice(body);
            at += body.len();
        } else {
            // A chunk is of 4096 bytes at most, and nothing in it is from before it.
            let end = out.len().min(at + CHUNK);
            at += expand(body, &mut out[at..end])?;
        }
    }
    if at == out.len() { Ok(()) } else { Err(Corrupt("shorter than it says")) }
}

fn expand(body: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    let mut input = Input::new(body);
    let mut at = 0;
    while !input.is_empty() {
        let flags = input.u8()?;
        for bit in 0..8 {
            if input.is_empty() {
                break;
            }
            if flags >> bit & 1 == 0 {
                *out.get_mut(at).ok_or(Corrupt("longer than it says"))? = input.u8()?;
                at += 1;
            } else {
                let word = usize::from(input.u16()?);
                let bits = length_bits(at);
                let (distance, len) = ((word >> bits) + 1, (word & ((1 << bits) - 1)) + 3);
                repeat(out, at, distance, len)?;
                at += len;
            }
        }
    }
    Ok(at)
}
