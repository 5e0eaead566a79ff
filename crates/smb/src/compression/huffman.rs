//! LZ77+Huffman: blocks of 64 KiB, each with its own canonical code for literals and matches.
//!
//! Spec: [MS-XCA] 2.1 (compression), 2.2 (decompression), 3.2 (examples).
//!
//! ```text
//! block:  256 bytes: the lengths of 512 codes, four bits each, even symbols in the low half
//!         a stream of bits in 16-bit words, highest bit first; the bytes of long lengths lie between its words, where a
//!         reader that has read two words ahead finds them next
//! symbol: below 256 a literal; above, 256 + 16 * (bits of the distance) + min(length - 3, 15)
//! ```

use super::Corrupt;
use super::matches::{Finder, Token};
use super::output::Output;

const BLOCK: usize = 1 << 16;
const WINDOW: usize = (1 << 16) - 1;
const SYMBOLS: usize = 512;
const TABLE: usize = SYMBOLS / 2;
const MAX_BITS: u32 = 15;
/// Ends the data, for readers that need an end marker; also codes the match of length three at distance one.
const END: usize = 256;

/// Appends the compressed `data`; returns false as soon as the result takes `limit` bytes.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
pub(super) fn compress(data: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let mut finder = Finder::new();
    let mut tokens = Vec::new();
    let mut from = 0;
    loop {
        let to = data.len().min(from + BLOCK);
        tokens.clear();
        let longest = |at: usize| to - at;
        finder.cut(data, (from, to), (0, WINDOW), longest, |token| tokens.push(token));
        block(&tokens, to == data.len(), out);
        if out.len() - start >= limit {
            return false;
        }
        if to == data.len() {
            return true;
        }
        from = to;
    }
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn symbol(token: Token) -> usize {
    match token {
        Token::Literal(byte) => byte.into(),
        Token::Match { len, distance } => 256 + (16 * distance.ilog2() as usize) + (len - 3).min(15),
    }
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn block(tokens: &[Token], last: bool, out: &mut Vec<u8>) {
    let mut counts = [0u32; SYMBOLS];
    tokens.iter().for_each(|token| counts[symbol(*token)] += 1);
    // Counted in every block, so that there are at least two symbols: the code of a single one would be zero bits long.
    counts[END] += 1;
    if counts.iter().filter(|count| **count > 0).count() == 1 {
        counts[0] += 1;
    }
    let lengths = lengths(&counts);
    out.extend((0..TABLE).map(|i| lengths[2 * i] | lengths[2 * i + 1] << 4));
    let codes = codes(&lengths);
    let mut bits = Bits::new(out);
    let put = |bits: &mut Bits<'_>, symbol: usize| bits.put(codes[symbol].into(), lengths[symbol].into());
    for token in tokens {
        put(&mut bits, symbol(*token));
        if let Token::Match { len, distance } = *token {
            if let Some(more) = (len - 3).checked_sub(15) {
                bits.put_length(more);
            }
            let high = distance.ilog2();
            bits.put((distance - (1 << high)) as u32, high);
        }
    }
    if last {
        put(&mut bits, END);
    }
    bits.end();
}

/// Code lengths of an optimal prefix code; of a nearly optimal one if the optimal code is too long.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn lengths(counts: &[u32; SYMBOLS]) -> [u8; SYMBOLS] {
    let mut counts = *counts;
    loop {
        let lengths = unbounded(&counts);
        if lengths.iter().all(|len| u32::from(*len) <= MAX_BITS) {
            return lengths;
        }
        // Flatter counts give a flatter code, at the latest when all are one.
        counts.iter_mut().filter(|count| **count > 0).for_each(|count| *count = *count / 4 + 1);
    }
}

/// Huffman's algorithm: merges the two rarest nodes until one is left.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn unbounded(counts: &[u32; SYMBOLS]) -> [u8; SYMBOLS] {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    let mut parents = Vec::with_capacity(2 * SYMBOLS);
    let mut leaves = Vec::new();
    let mut heap = BinaryHeap::new();
    for (symbol, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        heap.push(Reverse((u64::from(*count), parents.len())));
        leaves.push(symbol);
        parents.push(usize::MAX);
    }
    while let (Some(Reverse((a, left))), Some(Reverse((b, right)))) = (heap.pop(), heap.pop()) {
        let node = parents.len();
        parents.push(usize::MAX);
        (parents[left], parents[right]) = (node, node);
        heap.push(Reverse((a + b, node)));
        if heap.len() == 1 {
            break;
        }
    }
    let mut depths = vec![0u8; parents.len()];
    for node in (0..parents.len()).rev() {
        if parents[node] != usize::MAX {
            // Counts sum up to at most 2^17, so no code is longer than some thirty bits.
            depths[node] = depths[parents[node]] + 1;
        }
    }
    let mut lengths = [0; SYMBOLS];
    leaves.into_iter().enumerate().for_each(|(node, symbol)| lengths[symbol] = depths[node]);
    lengths
}

/// The canonical code: ordered by length, then by symbol.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn codes(lengths: &[u8; SYMBOLS]) -> [u16; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let mut next = 0u32;
    for bits in 1..=MAX_BITS {
        next <<= 1;
        for symbol in (0..SYMBOLS).filter(|symbol| u32::from(lengths[*symbol]) == bits) {
            codes[symbol] = next as u16;
            next += 1;
        }
    }
    codes
}

/// The bit stream, with the bytes that lie between its words (2.1.4.3).
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    word: u32,
    free: u32,
    /// Positions of the word that is being filled, and of the next one.
    places: [usize; 2],
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
impl Bits<'_> {
    fn new(out: &mut Vec<u8>) -> Bits<'_> {
        let at = out.len();
        out.extend([0; 4]);
        Bits { out, word: 0, free: 16, places: [at, at + 2] }
    }

    /// Appends at most 16 bits.
    fn put(&mut self, value: u32, count: u32) {
        if let Some(free) = self.free.checked_sub(count) {
            self.free = free;
            self.word = self.word << count | value;
            return;
        }
        let over = count - self.free;
        self.word = self.word << self.free | value >> over;
        self.store();
        self.free = 16 - over;
        self.word = value & ((1 << over) - 1);
    }

    fn store(&mut self) {
        let [at, next] = self.places;
        self.out[at..at + 2].copy_from_slice(&(self.word as u16).to_le_bytes());
        self.places = [next, self.out.len()];
        self.out.extend([0; 2]);
    }

    /// Appends the part of a length beyond the 18 that its symbol covers.
    fn put_length(&mut self, more: usize) {
        if more < 255 {
            self.out.push(more as u8);
            return;
        }
        self.out.push(255);
        match u16::try_from(more + 15) {
            Ok(len) => self.out.extend(len.to_le_bytes()),
            Err(_) => {
                self.out.extend([0; 2]);
                self.out.extend((more as u32 + 15).to_le_bytes());
            }
        }
    }

    fn end(self) {
        let [at, _] = self.places;
        // The word of zeros that follows serves readers that are one word ahead.
        self.out[at..at + 2].copy_from_slice(&((self.word << self.free) as u16).to_le_bytes());
    }
}

/// Fills `out` exactly.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let most = out.len();
    let mut output = Output::new(out);
    let mut table = vec![0u16; 1 << MAX_BITS];
    let mut position = 0usize;
    // Empty input compresses to a block that holds only the end symbol.
    while !output.is_full() || position == 0 {
        let body = position.saturating_add(TABLE);
        let lengths = data.get(position..body).ok_or(Corrupt("the code table is truncated"))?;
        fill(&mut table, lengths)?;
        let mut bits = Reader::new(data, body)?;
        let end = most.min(output.len().saturating_add(BLOCK));
        while output.len() < end {
            let first = (bits.next >> (32 - MAX_BITS)) as usize;
            let symbol = usize::from(table.get(first).copied().ok_or(Corrupt("an unassigned code"))?);
            bits.skip(length(lengths, symbol))?;
            let Some(code) = symbol.checked_sub(256) else {
                output.put(symbol as u8)?;
                continue;
            };
            let (mut len, high) = (code % 16, (code / 16) as u32);
            if len == 15 {
                len = len.saturating_add(bits.length()?);
            }
            // Zero bits if `high` is 0.
            let low = u64::from(bits.next).wrapping_shr(32u32.saturating_sub(high)) as usize;
            let distance = 1usize.wrapping_shl(high).saturating_add(low);
            bits.skip(high)?;
            output.repeat(distance, len.saturating_add(3))?;
        }
        position = bits.position;
        if output.is_full() {
            break;
        }
    }
    Ok(())
}

fn length(lengths: &[u8], symbol: usize) -> u32 {
    let pair = lengths.get(symbol / 2).copied().unwrap_or(0);
    u32::from(if symbol.is_multiple_of(2) { pair & 0xf } else { pair >> 4 })
}

/// Maps each 15-bit prefix to its symbol.
fn fill(table: &mut [u16], lengths: &[u8]) -> Result<(), Corrupt> {
    let mut at = 0usize;
    for bits in 1..=MAX_BITS {
        for symbol in (0..SYMBOLS).filter(|symbol| length(lengths, *symbol) == bits) {
            let end = at.saturating_add(1usize.wrapping_shl(MAX_BITS.saturating_sub(bits)));
            table.get_mut(at..end).ok_or(Corrupt("an oversubscribed code"))?.fill(symbol as u16);
            at = end;
        }
    }
    if at == table.len() { Ok(()) } else { Err(Corrupt("an incomplete code")) }
}

/// A bit reader, two words ahead (2.2.4).
struct Reader<'a> {
    data: &'a [u8],
    position: usize,
    next: u32,
    /// Number of bits in `next` beyond 16; negative between consuming bits and refilling.
    extra: i32,
}

impl Reader<'_> {
    fn new(data: &[u8], position: usize) -> Result<Reader<'_>, Corrupt> {
        let mut reader = Reader { data, position, next: 0, extra: 16 };
        let first = reader.word()?;
        reader.next = first << 16 | reader.word()?;
        Ok(reader)
    }

    fn word(&mut self) -> Result<u32, Corrupt> {
        let bytes = self.take::<2>()?;
        Ok(u16::from_le_bytes(bytes).into())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let rest = self.data.get(self.position..).unwrap_or_default();
        let bytes = rest.first_chunk::<N>().ok_or(Corrupt("ends too early"))?;
        self.position = self.position.saturating_add(N);
        Ok(*bytes)
    }

    /// Consumes at most 15 bits.
    fn skip(&mut self, count: u32) -> Result<(), Corrupt> {
        self.next = self.next.wrapping_shl(count);
        self.extra = self.extra.saturating_sub_unsigned(count);
        if self.extra < 0 {
            let word = self.word()?;
            self.next |= word.wrapping_shl(self.extra.unsigned_abs());
            self.extra = self.extra.saturating_add(16);
        }
        Ok(())
    }

    /// Reads the part of a length beyond the 18 that its symbol covers.
    fn length(&mut self) -> Result<usize, Corrupt> {
        let [byte] = self.take::<1>()?;
        if byte < 255 {
            return Ok(byte.into());
        }
        let long = match u16::from_le_bytes(self.take()?) {
            0 => u32::from_le_bytes(self.take()?) as usize,
            long => long.into(),
        };
        long.checked_sub(15).ok_or(Corrupt("the long form of a short match"))
    }
}
