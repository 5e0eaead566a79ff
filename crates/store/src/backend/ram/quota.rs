//! The space limit of a memory disk, and the data of one file.
//!
//! A file's bytes are released when the last open of a removed file is closed.
//! Accounting: whatever may enlarge a file reserves the space first and releases the reservation when it has ended,
//! well or not. Under one lock, a file is charged the largest of its length, the space that was allocated past its end,
//! and its reservations, in whole pages, holes included. An allocation past the end that ends during a truncation stays
//! charged until the next truncation, because nothing tells which of the two came first.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    counts: Mutex<Counts>,
    usage: Arc<Usage>,
}

/// In bytes of whole pages.
/// Invariant: `charged` is at least the file's length, `allocated`, and each of `reserved`.
#[derive(Debug, Default)]
struct Counts {
    charged: u64,
    /// The end of the space that was allocated past the end of the file.
    allocated: u64,
    /// The ends of the operations under way.
    reserved: Vec<u64>,
}

impl Counts {
    fn reserve(&mut self, pages: u64, usage: &Usage) -> Result<(), Error> {
        let more = pages.saturating_sub(self.charged);
        if more > 0 {
            usage.take(more)?;
            self.charged = pages;
        }
        self.reserved.push(pages);
        Ok(())
    }

    fn release(&mut self, pages: u64) {
        if let Some(at) = self.reserved.iter().position(|reserved| *reserved == pages) {
            self.reserved.swap_remove(at);
        }
    }

    /// Gives back what a file of this length does not occupy.
    fn settle(&mut self, len: u64, usage: &Usage) {
        let occupied = self.reserved.iter().copied().fold(whole_pages(len).max(self.allocated), u64::max);
        if occupied < self.charged {
            usage.give(self.charged - occupied);
            self.charged = occupied;
        }
    }
}

fn whole_pages(len: u64) -> u64 {
    len.div_ceil(PAGE).saturating_mul(PAGE)
}

impl Charge {
    /// An empty charge.
    pub(super) fn none(usage: Arc<Usage>) -> Charge {
        Charge { counts: Mutex::default(), usage }
    }

    /// The charged bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.counts().charged
    }

    /// The charge of `len` bytes that have left their file.
    pub(super) fn moved(mut self, len: u64) -> Charge {
        let counts = self.counts.get_mut().unwrap_or_else(PoisonError::into_inner);
        *counts = Counts { charged: counts.charged, ..Counts::default() };
        counts.settle(len, &self.usage);
        self
    }

    // Nothing panics between two changes of the counts.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.usage.give(self.bytes());
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

    /// Truncates or extends. A truncation frees the space that was allocated past the end of the file.
    pub(super) fn set_len(&self, len: u64) -> Result<(), Error> {
        let pages = pages_up_to(len)?;
        let (reserved, allocated) = {
            let mut counts = self.charge.counts();
            let truncates = len < self.file.len()?;
            // It stays reserved until it is free. What another task allocates meanwhile is counted anew.
            let allocated = if truncates { counts.allocated } else { 0 };
            counts.reserve(pages.max(allocated), &self.charge.usage)?;
            if truncates {
                counts.allocated = 0;
            }
            (pages.max(allocated), allocated)
        };
        let done = self.file.set_len(len);
        self.released(reserved, if done.is_err() { allocated } else { 0 });
        Ok(done?)
    }

    /// Ends a reservation; the file occupies space up to `allocated`, whatever its length.
    fn released(&self, pages: u64, allocated: u64) {
        let mut counts = self.charge.counts();
        counts.release(pages);
        counts.allocated = counts.allocated.max(allocated);
        // The length is read under the lock. Each operation that may enlarge the file meanwhile has a reservation.
        match self.file.len() {
            Ok(len) => counts.settle(len, &self.charge.usage),
            // It stays charged until the next operation.
            Err(e) => tracing::warn!("the length of a file in memory is unknown: {e}"),
        }
    }
}

fn pages_up_to(end: u64) -> Result<u64, Error> {
    if end > MAX_FILE_BYTES { Err(Error::TooLarge) } else { Ok(whole_pages(end)) }
}

impl Quota for Data {
    fn reserve(&self, range: Range<u64>) -> Result<(), Error> {
        self.charge.counts().reserve(pages_up_to(range.end)?, &self.charge.usage)
    }

    fn release(&self, range: Range<u64>, allocated: bool) {
        let pages = whole_pages(range.end);
        self.released(pages, if allocated { pages } else { 0 });
    }
}
