//! Remembers the files of which a read has failed.
//!
//! The page cache can have the first and the last bytes of a range, and a bad block in between is found when half of a
//! message has been sent. So for such a file the page cache is not asked: a range is read before it is sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::File;
use super::busy::Inode;
use crate::clock::Time;
use crate::rt;

/// Files remembered at once; the oldest is forgotten for a new one.
const MAX_FILES: usize = 1024;
/// How long a failed read is remembered: a disk may be repaired, and a number be given to another file.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The files of this process.
static DOUBTED: Doubted = Doubted { any: AtomicBool::new(false), files: Mutex::new(VecDeque::new()) };

struct Doubted {
    /// Whether there is one: nearly always none.
    any: AtomicBool,
    /// The files, and when a read of each failed last; the latest is at the end.
    files: Mutex<VecDeque<(Inode, Time)>>,
}

impl Doubted {
    fn files(&self) -> MutexGuard<'_, VecDeque<(Inode, Time)>> {
        // No change under this lock can be interrupted.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, inode: Inode, now: Time) {
        let mut files = self.files();
        files.retain(|(known, _)| *known != inode);
        if files.len() >= MAX_FILES {
            files.pop_front();
        }
        files.push_back((inode, now));
        self.any.store(true, Ordering::Relaxed);
    }

    fn has(&self, inode: impl FnOnce() -> Option<Inode>, now: impl FnOnce() -> Time) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let (mut files, now) = (self.files(), now());
        while files.front().is_some_and(|(_, failed)| now.since(*failed) > REMEMBERED) {
            files.pop_front();
        }
        self.any.store(!files.is_empty(), Ordering::Relaxed);
        inode().is_some_and(|inode| files.iter().any(|(known, _)| *known == inode))
    }
}

/// A read of the file has failed.
pub(super) fn add(file: &File) {
    if let Ok(inode) = file.inode() {
        DOUBTED.add(inode, rt::now());
    }
}

/// Whether a read of the file has failed.
pub(super) fn has(file: &File) -> bool {
    DOUBTED.has(|| file.inode().ok(), rt::now)
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
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let has = |n: usize, seconds| doubted.has(|| Some(inodes[n]), || at(seconds));
        assert!(!doubted.has(|| panic!("not even asked"), || panic!("not even asked")));
        for inode in inodes.iter().chain(&inodes) {
            doubted.add(*inode, at(1));
            doubted.add(*inode, at(2));
        }
        assert_eq!(doubted.files().len(), MAX_FILES);
        assert!(!has(0, 3) && !has(1, 3) && has(2, 3) && has(MAX_FILES + 1, 3));
        doubted.add(inodes[5], at(40));
        assert!(has(6, 62) && !has(6, 63) && has(5, 63));
        assert!(!has(5, 101) && !doubted.any.load(Ordering::Relaxed));
    }
}
