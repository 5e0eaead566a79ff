//! The end of large files: a file system frees the blocks of one that has no name when its last descriptor is closed, and that close
//! takes as long as the disk does; with many extents, or where each is discarded, minutes.
//!
//! Owns: the thread that closes such descriptors. Does not: wait for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{self, SyncSender};

use crate::sim;

/// Freeing less takes no time that anybody notices.
pub const MUCH_BYTES: u64 = 1 << 20;
/// Memory is freed faster, that of tmpfs included, and whoever has filled it wants it back at once.
const MUCH_MEMORY_BYTES: u64 = 64 << 20;
/// Files that wait for the thread, at most. Whoever closes another one waits for that, so these use up neither descriptors nor space.
const MAX_WAITING: usize = 128;

/// Before `fd` is closed: where that may free much, another descriptor keeps the file, until a thread has closed it.
pub fn let_go(fd: BorrowedFd<'_>) {
    let takes_long = || {
        let is_memory = rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type == super::TMPFS_MAGIC);
        !is_memory || frees_much(fd, MUCH_MEMORY_BYTES)
    };
    if !sim::active() && frees_much(fd, MUCH_BYTES) && takes_long() {
        elsewhere(fd);
    }
}

fn frees_much(fd: BorrowedFd<'_>, much: u64) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| stat.st_nlink == 0 && stat.st_blocks.unsigned_abs().saturating_mul(512) >= much)
}

fn elsewhere(fd: BorrowedFd<'_>) {
    static CLOSER: OnceLock<Option<SyncSender<OwnedFd>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, closed) = mpsc::sync_channel::<OwnedFd>(MAX_WAITING);
        let close = move || closed.into_iter().for_each(drop);
        match std::thread::Builder::new().name("weft-close".to_owned()).spawn(close) {
            Ok(_) => Some(sender),
            Err(e) => {
                tracing::warn!("large files are closed where that may be waited for: no thread: {e}");
                None
            }
        }
    });
    // Without another descriptor the close is waited for here.
    if let (Some(closer), Ok(fd)) = (closer, fd.as_fd().try_clone_to_owned()) {
        // The thread ends with the process; where too many wait, this closes the other descriptor, and the caller the last one.
        let _ = closer.try_send(fd);
    }
}
