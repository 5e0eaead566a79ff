//! Asks the kernel which part of a file is in the page cache, for many pages at a time.
//!
//! See cachestat(2), Linux 6.5. It owns nothing; the parent decides what an answer is worth. mincore(2) looks at each page and needs
//! a mapping; this call counts what the cache holds, a large folio at once. It counts pages that are still being read as well.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::PAGE;

/// The part of a file that is asked for at once: as much as a disk reads ahead, and few enough pages for a call of microseconds.
const AROUND: u64 = 1 << 20;

/// cachestat(2), which has the same number on all architectures that Weft runs on.
const SYS_CACHESTAT: libc::c_long = 451;

/// The kernel has no such call, or the process may not make it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// `struct cachestat_range` of linux/mman.h.
#[repr(C)]
struct Asked {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of linux/mman.h.
#[repr(C)]
#[derive(Default)]
struct Counted {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The part of the file around `range`, if the page cache holds all of its pages, and it is more than the range.
pub(super) fn around(fd: BorrowedFd<'_>, range: &Range<u64>) -> Option<Range<u64>> {
    let start = range.start / AROUND * AROUND;
    let around = start..range.end.checked_next_multiple_of(AROUND)?;
    let is_wider = around.start < range.start || around.end > range.end;
    (is_wider && holds(fd, &around)).then_some(around)
}

/// Whether all pages of a range of whole pages are cached, as far as the kernel tells this process.
fn holds(fd: BorrowedFd<'_>, range: &Range<u64>) -> bool {
    if REFUSED.load(Ordering::Relaxed) {
        return false;
    }
    let asked = Asked { offset: range.start, len: range.end - range.start };
    let mut counted = Counted::default();
    // SAFETY: the descriptor is open during the call, in which the kernel reads the first structure and writes the second.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const asked, &raw mut counted, 0) };
    if result == 0 {
        return counted.cached.saturating_mul(PAGE) >= asked.len;
    }
    let error = std::io::Error::last_os_error();
    if matches!(Errno::from_io_error(&error), Some(Errno::NOSYS | Errno::PERM)) {
        // A file of others is refused by EPERM as well: then this process asks no more, which costs some queries.
        REFUSED.store(true, Ordering::Relaxed);
    }
    false
}
