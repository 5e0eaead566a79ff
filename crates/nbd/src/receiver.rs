//! From a byte stream to headers and payload.
//!
//! Owns: a small staging area, into which headers are received, several at a time. Does not: know what they mean.
//! Buffers: a payload lands page-aligned in a pool buffer; what of it had come with the headers is copied there, which is
//! at most the staging area.

use std::io;

use weft_machine::{Buf, buf};

use weft_machine::net::Link;

/// Room for a train of headers, and little enough to cost next to nothing where it has to be copied.
const STAGING_BYTES: usize = 8 << 10;

pub(crate) struct Receiver {
    staging: Box<[u8; STAGING_BYTES]>,
    /// `start <= end <= STAGING_BYTES`: received and not yet taken.
    start: usize,
    end: usize,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver { staging: Box::new([0; STAGING_BYTES]), start: 0, end: 0 }
    }
}

impl Receiver {
    /// Whether bytes have come that nobody has asked for yet.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.staged().is_empty()
    }

    fn staged(&self) -> &[u8] {
        &self.staging[self.start..self.end]
    }

    /// Receives once, when nothing is staged; false at the end of the stream.
    async fn refill(&mut self, link: &Link) -> io::Result<bool> {
        debug_assert!(self.start == self.end);
        self.start = 0;
        self.end = 0;
        self.end = link.recv(&mut self.staging[..]).await?;
        Ok(self.end > 0)
    }

    /// Fills `into`; false when the stream ends before the first byte of it, an error when it ends later.
    pub(crate) async fn exact(&mut self, link: &Link, into: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < into.len() {
            if self.staged().is_empty() && !self.refill(link).await? {
                return if done == 0 { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            let n = self.staged().len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&self.staged()[..n]);
            self.start += n;
            done += n;
        }
        Ok(true)
    }

    /// Drops `len` bytes.
    pub(crate) async fn skip(&mut self, link: &Link, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            if self.staged().is_empty() && !self.refill(link).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let n = self.staged().len().min(left);
            self.start += n;
            left -= n;
        }
        Ok(())
    }

    /// Fills a buffer, all of its length, with what comes next.
    pub(crate) async fn payload(&mut self, link: &Link, mut payload: Buf) -> io::Result<Buf> {
        let len = payload.len();
        let mut done = self.staged().len().min(len);
        buf::copy(&mut payload[..done], &self.staged()[..done]);
        self.start += done;
        while done < len {
            match link.recv(&mut payload[done..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(payload)
    }
}
