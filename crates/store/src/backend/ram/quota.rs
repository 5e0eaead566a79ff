//! What the files of a memory disk may occupy, and the data of one file.
//!
//! Owns: the memfd of a file; its bytes are given back when the last open of a removed file lets go.
//! Accounting: a file is charged its length in whole pages, holes included, before it grows. A truncation that races
//! with a write may leave a file charged too little until its next write; never a limit that is passed for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_machine::File;

use crate::vfs::{Error, Quota};

const PAGE: u64 = 4096;

/// The space of a share.
#[derive(Debug)]
pub(super) struct Usage {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl Usage {
    pub(super) fn new(limit_bytes: u64) -> Usage {
        Usage { limit_bytes, used_bytes: AtomicU64::new(0) }
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn take(&self, bytes: u64) -> Result<(), Error> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes);
        match self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::NoSpace),
        }
    }

    pub(super) fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes of a regular file.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) file: File,
    /// How much of the share's space this file holds.
    charged_bytes: AtomicU64,
    usage: Arc<Usage>,
}

impl Data {
    /// An empty file.
    pub(super) fn new(usage: Arc<Usage>) -> Result<Data, Error> {
        Ok(Data { file: File::in_memory("weft-ram")?, charged_bytes: AtomicU64::new(0), usage })
    }

    /// Truncates or extends.
    pub(super) fn set_len(&self, len: u64) -> Result<(), Error> {
        let now = self.file.len()?;
        self.grow(now, len)?;
        self.file.set_len(len)?;
        if len < now {
            let pages = len.div_ceil(PAGE).saturating_mul(PAGE);
            let before = self.charged_bytes.swap(pages, Ordering::Relaxed);
            match before.checked_sub(pages) {
                Some(freed) => self.usage.give(freed),
                // Another truncation went further in between; what is missing is charged by the next write.
                None => self.charged_bytes.store(before, Ordering::Relaxed),
            }
        }
        Ok(())
    }
}

impl Quota for Data {
    fn grow(&self, len: u64, end: u64) -> Result<(), Error> {
        let pages = len.max(end).div_ceil(PAGE).checked_mul(PAGE).ok_or(Error::NoSpace)?;
        let mut charged = self.charged_bytes.load(Ordering::Relaxed);
        while let Some(more) = pages.checked_sub(charged).filter(|&more| more > 0) {
            self.usage.take(more)?;
            match self.charged_bytes.compare_exchange(charged, pages, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => {
                    self.usage.give(more);
                    charged = now;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        self.usage.give(*self.charged_bytes.get_mut());
    }
}
