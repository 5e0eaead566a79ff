//! A record with its payload: what a log holds and an append carries.
//!
//! The layout is in `wire::repl::record`. Emitting and parsing do not touch the payload, whose buffers are the writer's
//! own; sums are checked only by `Record::is_whole`.

use std::ops::Range;

use bytes::{Buf, Bytes};
use weft_store::block::BlockOp;
pub use weft_wire::repl::record::{Header, Kind, MAX_MEMBERS, MAX_PAYLOAD, SECTOR};

use weft_wire::repl::Malformed;

/// The smallest log: room for several of the longest records.
#[cfg(not(any(test, fuzzing)))]
pub const MIN_LOG_BYTES: u64 = 16 * (MAX_PAYLOAD as u64);
/// The smallest log in tests, whose records are shorter accordingly.
#[cfg(any(test, fuzzing))]
pub const MIN_LOG_BYTES: u64 = 64 << 10;

static ZEROS: [u8; SECTOR] = [0; SECTOR];

/// A header and its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The header.
    pub header: Header,
    /// As many bytes as the header says, in order; none for zeroes.
    pub payload: Vec<Bytes>,
}

impl Record {
    /// Whether the payload has the sum that the header says.
    pub fn is_whole(&self) -> bool {
        match self.header.kind {
            Kind::Write { len, sum } => {
                self.payload.iter().map(Bytes::len).sum::<usize>() == len as usize
                    && sum_of(&self.payload) == sum
            }
            Kind::Zeroes { .. } | Kind::Pad => self.payload.is_empty(),
        }
    }

    /// Pieces of the record as it lies in a log, at most.
    pub fn pieces(&self) -> usize {
        self.payload.len().saturating_add(2)
    }

    /// Appends the record as it lies in a log: header, payload, padding.
    pub fn emit(&self, chain: &mut Vec<Bytes>) {
        chain.push(Bytes::copy_from_slice(&self.header.emit()));
        chain.extend(self.payload.iter().cloned());
        if let Some(zeros) = ZEROS.get(..padding(&self.header)).filter(|zeros| !zeros.is_empty()) {
            chain.push(Bytes::from_static(zeros));
        }
    }

    /// Reads all records of an append. The payload is sliced, not copied, and its sums are not checked.
    pub fn parse_all(mut chain: Vec<Bytes>) -> Result<Vec<Record>, Malformed> {
        chain.reverse();
        let mut records = Vec::new();
        while chain.iter().any(|piece| !piece.is_empty()) {
            let head = take(&mut chain, SECTOR)?;
            let header = match &head[..] {
                [whole] => Header::parse(whole)?,
                parts => Header::parse(&parts.concat())?,
            };
            let payload = take(&mut chain, header.payload_len())?;
            take(&mut chain, padding(&header))?;
            records.push(Record { header, payload });
        }
        Ok(records)
    }

    /// What it does to its volume; `None` for a pad.
    pub fn operation(&self) -> Option<BlockOp> {
        let offset = self.header.offset;
        match self.header.kind {
            Kind::Write { .. } => Some(BlockOp::Write { offset, data: self.payload.clone(), durable: false }),
            Kind::Zeroes { len, keep_space } => {
                Some(BlockOp::WriteZeroes { offset, len, durable: false, keep_space, fast: false })
            }
            Kind::Pad => None,
        }
    }
}

/// Zeros that pad the payload to a sector.
fn padding(header: &Header) -> usize {
    header.record_len().saturating_sub(SECTOR).saturating_sub(header.payload_len())
}

/// Whether two ranges of one volume share a byte.
pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// CRC32C over a chain.
pub fn sum_of(chain: &[Bytes]) -> u32 {
    chain.iter().fold(0, |sum, piece| crc32c::crc32c_append(sum, piece))
}

/// Takes `n` bytes from the end of a reversed chain, which is its front.
fn take(chain: &mut Vec<Bytes>, n: usize) -> Result<Vec<Bytes>, Malformed> {
    let mut taken = Vec::new();
    let mut missing = n;
    while missing > 0 {
        let piece = chain.last_mut().ok_or(Malformed::Length(n.saturating_sub(missing)))?;
        let part = piece.split_to(missing.min(piece.len()));
        if !piece.has_remaining() {
            chain.pop();
        }
        missing = missing.saturating_sub(part.len());
        if !part.is_empty() {
            taken.push(part);
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &[&'static [u8]]) -> Record {
        let payload: Vec<Bytes> = payload.iter().map(|piece| Bytes::from_static(piece)).collect();
        let len = payload.iter().map(Bytes::len).sum::<usize>() as u32;
        let kind = Kind::Write { len, sum: sum_of(&payload) };
        let header = Header {
            log: 1,
            life: 1,
            epoch: 1,
            sequence: 9,
            member: 0,
            offset: 512,
            unix_ms: 0,
            settled: 0,
            claimed: 0,
            kind,
        };
        Record { header, payload }
    }

    #[test]
    fn an_append_is_read_as_it_was_written_however_it_is_cut() {
        let kind = Kind::Zeroes { len: 4096, keep_space: false };
        let zeroes = Record { header: Header { kind, ..record(&[b"x"]).header }, payload: Vec::new() };
        let records = [record(&[b"warp", b"weft"]), zeroes, record(&[&[7; 600]])];
        let mut chain = Vec::new();
        records.iter().for_each(|record| record.emit(&mut chain));
        let whole = Bytes::from(chain.concat());
        assert_eq!(whole.len() % SECTOR, 0);
        for cut in 0..=whole.len() {
            let parsed = Record::parse_all(vec![whole.slice(..cut), whole.slice(cut..)]).expect("records");
            assert_eq!(parsed.len(), 3);
            for (parsed, record) in parsed.iter().zip(&records) {
                assert_eq!(parsed.header, record.header);
                assert_eq!(parsed.payload.concat(), record.payload.concat());
                assert!(parsed.is_whole());
            }
        }
        for len in (1..whole.len()).filter(|len| ![1024, 1536].contains(len)) {
            assert!(Record::parse_all(vec![whole.slice(..len)]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn damage_shows_in_the_sum() {
        let mut damaged = record(&[b"warp", b"weft"]);
        damaged.payload[1] = Bytes::from_static(b"wefT");
        assert!(!damaged.is_whole());
        damaged.payload.pop();
        assert!(!damaged.is_whole());
    }
}
