//! LZNT1: independent chunks of 4096 bytes, with matches whose field widths change as the chunk grows.
//!
//! Spec: [MS-XCA] 2.5, 3.3 (example). No end-of-buffer marker is written: 2.5.1.2 makes it optional, and the length
//! makes it superfluous.

use super::Corrupt;
use super::input::Input;
use super::matches::{Finder, Token};
use super::output::Output;

/// Uncompressed bytes in a chunk.
const CHUNK: usize = 4096;
const SIGNATURE: u16 = 3 << 12;
const COMPRESSED: u16 = 1 << 15;

/// Width of a match's length field after `done` bytes of the chunk (2.5.1.4).
fn length_bits(done: usize) -> u32 {
    let reaches = |bits: &u32| 1usize.wrapping_shl(bits.saturating_sub(1)) < done;
    let displacement = (4..=12u32).rev().find(reaches).unwrap_or(4);
    16u32.saturating_sub(displacement)
}

/// Appends the compressed `data`; returns false as soon as the result takes `limit` bytes.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
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

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
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
    // At most 4096 + 2, minus 3.
    let size = (out.len() - header - 3) as u16;
    out[header..header + 2].copy_from_slice(&(kind | SIGNATURE | size).to_le_bytes());
}

/// Fills `out` exactly.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let (mut input, mut output) = (Input::new(data), Output::new(out));
    while !input.is_empty() {
        let header = input.u16()?;
        if header == 0 {
            break;
        }
        if header >> 12 & 7 != SIGNATURE >> 12 {
            return Err(Corrupt("an invalid LZNT1 chunk header"));
        }
        let body = input.take(usize::from(header & 0xfff).saturating_add(1))?;
        if header & COMPRESSED == 0 {
            output.put_all(body)?;
        } else {
            // A chunk holds at most 4096 bytes, and its matches do not reach back beyond its start.
            output.apart(CHUNK, |output| expand(body, output))?;
        }
    }
    if output.is_full() { Ok(()) } else { Err(Corrupt("shorter than declared")) }
}

fn expand(body: &[u8], output: &mut Output<'_>) -> Result<(), Corrupt> {
    let mut input = Input::new(body);
    while !input.is_empty() {
        let flags = input.u8()?;
        for bit in 0..8u32 {
            if input.is_empty() {
                break;
            }
            if flags.wrapping_shr(bit) & 1 == 0 {
                output.put(input.u8()?)?;
            } else {
                let word = usize::from(input.u16()?);
                let bits = length_bits(output.len());
                let (distance, len) = (word.wrapping_shr(bits), word & !usize::MAX.wrapping_shl(bits));
                output.repeat(distance.saturating_add(1), len.saturating_add(3))?;
            }
        }
    }
    Ok(())
}
