//! Plain LZ77: 32-bit words of flags, literal bytes, and matches of two or more bytes.
//!
//! Spec: [MS-XCA] 2.3 (compression), 2.4 (decompression), 3.1 (examples).
//! The message states the decompressed length.

use super::Corrupt;
use super::input::Input;
use super::matches::{Finder, Token};
use super::output::Output;

const WINDOW: usize = 1 << 13;

/// Appends the compressed `data`; returns false, with part of it written, as soon as the result takes `limit` bytes.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
pub(super) fn compress(data: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut flags = Flags::new(out);
    let mut half = None;
    let mut full = false;
    Finder::new().cut(
        data,
        (0, data.len()),
        (0, WINDOW),
        |_| usize::MAX >> 1,
        |token| {
            if full {
                return;
            }
            match token {
                Token::Literal(byte) => {
                    out.push(byte);
                    flags.next(false, out);
                }
                Token::Match { len, distance } => {
                    put_match(len, distance, &mut half, out);
                    flags.next(true, out);
                }
            }
            full = out.len() - start >= limit;
        },
    );
    flags.end(out);
    !full && out.len() - start < limit
}

/// A word of flags that fills up while the items that it describes are written after it.
struct Flags {
    at: usize,
    word: u32,
    count: u32,
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
impl Flags {
    fn new(out: &mut Vec<u8>) -> Flags {
        let at = out.len();
        out.extend([0; 4]);
        Flags { at, word: 0, count: 0 }
    }

    fn next(&mut self, is_match: bool, out: &mut Vec<u8>) {
        self.word = self.word << 1 | u32::from(is_match);
        self.count += 1;
        if self.count == 32 {
            out[self.at..self.at + 4].copy_from_slice(&self.word.to_le_bytes());
            *self = Flags::new(out);
        }
    }

    /// Fills the unused flags with ones.
    fn end(self, out: &mut [u8]) {
        // `count` is below 32.
        let word = ((u64::from(self.word) + 1) << (32 - self.count)) - 1;
        out[self.at..self.at + 4].copy_from_slice(&(word as u32).to_le_bytes());
    }
}

/// `half` is the position of a byte whose upper four bits are free.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn put_match(len: usize, distance: usize, half: &mut Option<usize>, out: &mut Vec<u8>) {
    let (mut len, offset) = (len - 3, (distance - 1) << 3);
    out.extend(((offset | len.min(7)) as u16).to_le_bytes());
    if len < 7 {
        return;
    }
    len -= 7;
    let nibble = len.min(15) as u8;
    match half.take() {
        None => {
            *half = Some(out.len());
            out.push(nibble);
        }
        Some(at) => out[at] |= nibble << 4,
    }
    if len < 15 {
        return;
    }
    len -= 15;
    if len < 255 {
        out.push(len as u8);
        return;
    }
    out.push(255);
    let len = len + 7 + 15;
    match u16::try_from(len) {
        Ok(len) => out.extend(len.to_le_bytes()),
        Err(_) => {
            out.extend([0; 2]);
            out.extend((len as u32).to_le_bytes());
        }
    }
}

/// Fills `out` exactly.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let (mut input, mut output) = (Input::new(data), Output::new(out));
    let (mut flags, mut count) = (0u32, 0u32);
    let mut half: Option<u8> = None;
    loop {
        if count == 0 {
            if input.is_empty() && output.is_full() {
                return Ok(());
            }
            flags = input.u32()?;
            count = 32;
        }
        count = count.saturating_sub(1);
        if flags.wrapping_shr(count) & 1 == 0 {
            // 2.3.4 writes no zeros after the last literal, but they are harmless.
            if input.is_empty() && output.is_full() {
                return Ok(());
            }
            if output.is_full() {
                return Err(Corrupt("longer than declared"));
            }
            output.put(input.u8()?)?;
            continue;
        }
        if input.is_empty() {
            return if output.is_full() { Ok(()) } else { Err(Corrupt("shorter than declared")) };
        }
        let word = usize::from(input.u16()?);
        let (short, distance) = (word % 8, (word / 8).saturating_add(1));
        let len = if short == 7 { long(&mut input, &mut half)? } else { short };
        output.repeat(distance, len.saturating_add(3))?;
    }
}

/// A length that does not fit three bits, minus 3. `half` holds four bits left over from another length.
fn long(input: &mut Input<'_>, half: &mut Option<u8>) -> Result<usize, Corrupt> {
    let nibble = match half.take() {
        None => {
            let byte = input.u8()?;
            *half = Some(byte >> 4);
            byte & 0xf
        }
        Some(nibble) => nibble,
    };
    if nibble < 15 {
        return Ok(usize::from(nibble).saturating_add(7));
    }
    let more = input.u8()?;
    if more < 255 {
        return Ok(usize::from(more).saturating_add(15 + 7));
    }
    let long = match input.u16()? {
        0 => input.u32()? as usize,
        long => long.into(),
    };
    if long < 15 + 7 { Err(Corrupt("the long form of a short match")) } else { Ok(long) }
}
