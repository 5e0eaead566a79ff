//! Closes large files in the background: when the last descriptor of an unlinked file is closed, the file system frees
//! its blocks, and the close takes as long as the disk does; minutes with many extents, or if each is discarded.
//!
//! A separate thread closes such descriptors, and nobody waits for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{self, SyncSender};

use crate::sim;

/// Freeing less takes no noticeable time.
pub const MUCH_BYTES: u64 = 1 << 20;
/// Memory, including that of tmpfs, is freed faster, and its user wants it back at once.
const MUCH_MEMORY_BYTES: u64 = 64 << 20;
/// The most files that wait for the thread. The close of further files is waited for, so that these use up neither
/// descriptors nor space.
const MAX_WAITING: usize = 128;

/// Called before `fd` is closed: if that may free much, a duplicate keeps the file open until a thread has closed it.
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
                tracing::warn!("closing a large file blocks from now on: no thread: {e}");
                None
            }
        }
    });
    // Without a duplicate, the caller's close waits.
    if let (Some(closer), Ok(fd)) = (closer, fd.as_fd().try_clone_to_owned()) {
        // The thread ends with the process; if too many files wait, this closes the duplicate, and the caller's close
        // is the last one.
        let _ = closer.try_send(fd);
    }
}
