//! Remembers the files of which a read has failed.
//!
//! The page cache can have the first and the last bytes of a range, and a bad block in between is found when half of a
//! message has been sent. So for such a file the page cache is not asked: a range is read before it is sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::File;
use super::busy::Inode;

/// Files remembered at once; the oldest is forgotten for a new one.
const MAX_FILES: usize = 1024;

/// The files of this process.
static DOUBTED: Doubted = Doubted { any: AtomicBool::new(false), files: Mutex::new(VecDeque::new()) };

struct Doubted {
    /// Whether there is one: nearly always none.
    any: AtomicBool,
    files: Mutex<VecDeque<Inode>>,
}

impl Doubted {
    fn files(&self) -> MutexGuard<'_, VecDeque<Inode>> {
        // No change under this lock can be interrupted.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, inode: Inode) {
        let mut files = self.files();
        if !files.contains(&inode) {
            if files.len() >= MAX_FILES {
                files.pop_front();
            }
            files.push_back(inode);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn has(&self, inode: impl FnOnce() -> Option<Inode>) -> bool {
        self.any.load(Ordering::Relaxed) && inode().is_some_and(|inode| self.files().contains(&inode))
    }
}

/// A read of the file has failed.
pub(super) fn add(file: &File) {
    if let Ok(inode) = file.inode() {
        DOUBTED.add(inode);
    }
}

/// Whether a read of the file has failed.
pub(super) fn has(file: &File) -> bool {
    DOUBTED.has(|| file.inode().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_files_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let inodes: Vec<Inode> = (0..MAX_FILES + 2)
            .map(|n| Inode::of(std::fs::File::create(folder.path().join(n.to_string())).unwrap()).unwrap())
            .collect();
        let doubted = Doubted { any: AtomicBool::new(false), files: Mutex::default() };
        let has = |n: usize| doubted.has(|| Some(inodes[n]));
        assert!(!doubted.has(|| panic!("not even asked")));
        for inode in inodes.iter().chain(&inodes) {
            doubted.add(*inode);
            doubted.add(*inode);
        }
        assert_eq!(doubted.files().len(), MAX_FILES);
        assert!(!has(0) && !has(1) && has(2) && has(MAX_FILES + 1));
    }
}
