//! The space limit of a memory disk, and the data of one file.
//!
//! A file's bytes are released when the last open of a removed file is closed.
//! Accounting: a file is charged its length in whole pages, holes included, before it grows. A truncation that races
//! with a write may leave a file undercharged until its next write, but the limit is never exceeded permanently. with
//! a write may leave a file charged too little until its next write; never a limit that is passed for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weft_machine::File;

use crate::vfs::{Error, Quota};

const PAGE: u64 = 4096;
/// The longest file of a memory disk: 16 TiB, as on ext4. A larger offset is a mistake, not a lack of space.
pub(in crate::backend) const MAX_FILE_BYTES: u64 = 16 << 40;
/// Descriptors of all memory disks: at most half of what the process may have, so that connections and files of other
/// shares get the rest.
static ALL_DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// The space of a share.
#[derive(Debug)]
pub(super) struct Usage {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    /// The number of descriptors of its files, and the limit.
    descriptors: AtomicUsize,
    max_descriptors: usize,
}

impl Usage {
    pub(super) fn new(limit_bytes: u64, max_descriptors: usize) -> Usage {
        Usage {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            descriptors: AtomicUsize::new(0),
            max_descriptors,
        }
    }

    /// The number of descriptors of its files.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors.load(Ordering::Relaxed)
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

/// The space that a file is charged; released on drop.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: AtomicU64,
    usage: Arc<Usage>,
}

impl Charge {
    /// An empty charge.
    pub(super) fn none(usage: Arc<Usage>) -> Charge {
        Charge { bytes: AtomicU64::new(0), usage }
    }

    /// The charged bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.usage.give(*self.bytes.get_mut());
    }
}

/// A descriptor from a share's budget.
#[derive(Debug)]
struct Descriptor(Arc<Usage>);

impl Descriptor {
    /// [`Error::NoSpace`] if the share's limit, or that of all memory disks, is reached.
    fn take(usage: &Arc<Usage>) -> Result<Descriptor, Error> {
        let within = |most: usize| move |used: usize| (used < most).then_some(used + 1);
        let add = |count: &AtomicUsize, most| {
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within(most)).is_ok()
        };
        if !add(&ALL_DESCRIPTORS, super::super::descriptor_limit() / 2) {
            return Err(Error::NoSpace);
        }
        if !add(&usage.descriptors, usage.max_descriptors) {
            ALL_DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::NoSpace);
        }
        Ok(Descriptor(usage.clone()))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.descriptors.fetch_sub(1, Ordering::Relaxed);
        ALL_DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of a regular file.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) file: File,
    pub(super) charge: Charge,
    /// Released after the file is closed: fields are dropped in this order.
    _descriptor: Descriptor,
}

impl Data {
    /// An empty file.
    pub(super) fn new(charge: Charge) -> Result<Data, Error> {
        let descriptor = Descriptor::take(&charge.usage)?;
        let file = File::in_memory("weft-ram").map_err(|e| match e.into() {
            // Other parts of the process have used the descriptors that the budget allows.
            Error::Limit(_) => Error::NoSpace,
            e => e,
        })?;
        Ok(Data { file, charge, _descriptor: descriptor })
    }

    /// Truncates or extends.
    pub(super) fn set_len(&self, len: u64) -> Result<(), Error> {
        let now = self.file.len()?;
        self.grow(now, len)?;
        self.file.set_len(len)?;
        if len < now {
            let pages = len.div_ceil(PAGE).saturating_mul(PAGE);
            let Charge { bytes, usage } = &self.charge;
            let before = bytes.swap(pages, Ordering::Relaxed);
            match before.checked_sub(pages) {
                Some(freed) => usage.give(freed),
                // Another truncation went further in between; the next write charges what is missing.
                None => bytes.store(before, Ordering::Relaxed),
            }
        }
        Ok(())
    }
}

impl Quota for Data {
    fn grow(&self, len: u64, end: u64) -> Result<(), Error> {
        if end > MAX_FILE_BYTES {
            return Err(Error::TooLarge);
        }
        let pages = len.max(end).div_ceil(PAGE).checked_mul(PAGE).ok_or(Error::NoSpace)?;
        let Charge { bytes, usage } = &self.charge;
        let mut charged = bytes.load(Ordering::Relaxed);
        while let Some(more) = pages.checked_sub(charged).filter(|&more| more > 0) {
            usage.take(more)?;
            match bytes.compare_exchange(charged, pages, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => {
                    usage.give(more);
                    charged = now;
                }
            }
        }
        Ok(())
    }
}
