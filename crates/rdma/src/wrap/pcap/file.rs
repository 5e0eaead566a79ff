//! A capture file: IPv4 packets with timestamps.
//!
//! The format is the classic pcap format (draft-ietf-opsawg-pcap 4 and 5) with nanoseconds, LINKTYPE_RAW. It tracks how
//! much may still be written. It does not interpret the packets.
//!
//! A write error ends the capture with a line in the log, and has no other effect.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use weft_machine::clock;

/// Magic number of the variant with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Packets begin with an IP header.
const LINKTYPE_RAW: u32 = 101;
/// The longest packet: that of IPv4.
const SNAPLEN: u32 = 65_535;
/// Bytes before each packet.
const RECORD_LEN: usize = 16;

/// A capture file. Its clones write to the same file, from any core.
#[derive(Clone, Debug)]
pub struct Capture(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// None once the capture has ended.
    file: Option<File>,
    /// Bytes that may still be written.
    left: u64,
    /// Connections so far.
    flows: u16,
}

impl Capture {
    /// Starts a capture in an empty `file` that may grow to `limit` bytes.
    pub fn new(mut file: File, limit: u64) -> io::Result<Capture> {
        let mut header = Vec::with_capacity(24);
        header.extend_from_slice(&MAGIC.to_le_bytes());
        for version in [2u16, 4] {
            header.extend_from_slice(&version.to_le_bytes());
        }
        for word in [0, 0, SNAPLEN, LINKTYPE_RAW] {
            header.extend_from_slice(&word.to_le_bytes());
        }
        file.write_all(&header)?;
        let left = limit.saturating_sub(header.len() as u64);
        Ok(Capture(Arc::new(Mutex::new(State { file: Some(file), left, flows: 0 }))))
    }

    /// A number for the next connection; after 65,536 connections the numbers repeat.
    pub(super) fn next_flow(&self) -> u16 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.flows = state.flows.wrapping_add(1);
        state.flows
    }

    /// Writes one packet, if the capture has not ended.
    pub(super) fn packet(&self, packet: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let len = (RECORD_LEN + packet.len()) as u64;
        let left = state.left.checked_sub(len);
        let Some(file) = &mut state.file else { return };
        let written = match left {
            Some(_) => file.write_all(&record(packet)),
            None => Err(io::Error::other("it has reached its limit")),
        };
        match written {
            Ok(()) => state.left = left.unwrap_or(0),
            Err(e) => {
                tracing::warn!("the capture ends here: {e}");
                state.file = None;
            }
        }
    }
}

/// A packet with its record header: time, captured length, original length.
fn record(packet: &[u8]) -> Vec<u8> {
    let now = clock::wall();
    let mut record = Vec::with_capacity(RECORD_LEN + packet.len());
    // This format has unsigned 32-bit seconds, which end in 2106.
    record.extend_from_slice(&(now.as_secs() as u32).to_le_bytes());
    record.extend_from_slice(&now.subsec_nanos().to_le_bytes());
    for _ in 0..2 {
        record.extend_from_slice(&(packet.len() as u32).to_le_bytes());
    }
    record.extend_from_slice(packet);
    record
}
