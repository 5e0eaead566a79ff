//! Receives headers and payload from a byte stream.
//!
//! A small staging area receives headers, several at a time.
//!
//! Buffers: a payload is received page-aligned into a pool buffer; the part that arrived with the headers is copied
//! there, at most the size of the staging area.

use std::io;

use weft_machine::{Buf, buf};

use weft_machine::net::Link;
use weft_machine::recorder::Arrival;

/// Large enough for a train of headers, and small enough that copying it costs next to nothing.
const STAGING_BYTES: usize = 8 << 10;

/// A payload up to this size gets its buffer at once.
const SMALL_BYTES: usize = 64 << 10;
/// Of a longer one, this much is first left waiting in the socket, or half of it.
const GOOD_PART: usize = 256 << 10;

pub(crate) struct Receiver {
    staging: Box<[u8; STAGING_BYTES]>,
    /// `start <= end <= STAGING_BYTES`: received and not yet taken.
    start: usize,
    end: usize,
    /// When the last bytes arrived.
    arrival: Arrival,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver { staging: Box::new([0; STAGING_BYTES]), start: 0, end: 0, arrival: Arrival::default() }
    }
}

impl Receiver {
    /// Whether bytes have arrived that nobody has requested yet.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.staged().is_empty()
    }

    fn staged(&self) -> &[u8] {
        self.staging.split_at(self.end).0.split_at(self.start).1
    }

    /// The next `n` staged bytes; at least `n` are staged.
    fn take(&mut self, n: usize) -> &[u8] {
        let start = self.start;
        self.start = start.saturating_add(n);
        self.staging.split_at(start).1.split_at(n).0
    }

    /// Receives once, when nothing is staged; false at the end of the stream.
    async fn refill(&mut self, link: &Link) -> io::Result<bool> {
        debug_assert!(self.start == self.end);
        self.start = 0;
        self.end = 0;
        self.end = link.recv(&mut self.staging[..]).await?;
        self.arrival = Arrival::now();
        Ok(self.end > 0)
    }

    /// Fills `into`; false if the stream ends before its first byte, an error if it ends later.
    pub(crate) async fn exact(&mut self, link: &Link, into: &mut [u8]) -> io::Result<bool> {
        let len = into.len();
        let mut rest = into;
        while !rest.is_empty() {
            if self.staged().is_empty() && !self.refill(link).await? {
                let begun = rest.len() < len;
                return if begun { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(false) };
            }
            let n = self.staged().len().min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(self.take(n));
            rest = later;
        }
        Ok(true)
    }

    /// Waits for the first byte of the next item if none is staged; false at the end of the stream.
    pub(crate) async fn begun(&mut self, link: &Link) -> io::Result<bool> {
        let begun = self.is_ahead() || self.refill(link).await?;
        self.arrival.taken();
        Ok(begun)
    }

    /// Whether `len` bytes are staged.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.staged().len() >= len
    }

    /// Drops `len` bytes.
    pub(crate) async fn skip(&mut self, link: &Link, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            if self.staged().is_empty() && !self.refill(link).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let n = self.staged().len().min(left);
            self.take(n);
            left = left.saturating_sub(n);
        }
        Ok(())
    }

    /// Waits until a good part of a payload is in the socket, if the kernel reports how much that is.
    pub(crate) async fn good_part(&self, link: &Link, len: usize) -> io::Result<()> {
        let rest = len.saturating_sub(self.staged().len());
        match link.plain() {
            Some(stream) if len > SMALL_BYTES => stream.wait_for((rest / 2).min(GOOD_PART)).await,
            _ => Ok(()),
        }
    }

    /// Fills at least `payload[from..to]` with the next bytes; returns up to where it is filled.
    pub(crate) async fn payload(
        &mut self,
        link: &Link,
        payload: &mut Buf,
        from: usize,
        to: usize,
    ) -> io::Result<usize> {
        let (_, mut rest) = payload.split_at_mut(from);
        let staged = self.staged().len().min(rest.len());
        if staged > 0 {
            let (now, later) = rest.split_at_mut(staged);
            buf::copy(now, self.take(staged));
            rest = later;
        }
        let mut done = from.saturating_add(staged);
        while done < to {
            let n = link.recv(rest).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest = rest.split_at_mut(n).1;
            done = done.saturating_add(n);
        }
        Ok(done)
    }
}
