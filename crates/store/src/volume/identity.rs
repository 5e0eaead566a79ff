//! Which file it is that a volume lies on, so that another one of the same name is not taken for it.
//!
//! Spec: statx(2), statfs(2). Does not: look at content, or remember (see `superblock`).
//!
//! An inode number is given out again soon after its file is gone, so the time of birth counts where the file system tells it. The
//! device does not: its number may be another one after a reboot.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

/// File systems that number a file anew whenever they are mounted or forget it: vfat, exfat, and those in user space.
const NUMBERED_ANEW: [u64; 3] = [0x4d44, 0x2011_bab0, 0x6573_5546];

/// Tells a file from those that have its name before or after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    /// Its number in its file system.
    pub inode: u64,
    /// When it was made, microseconds of Unix time: some file systems keep no more than seven digits of a second. `None` where
    /// the file system does not tell.
    pub born_us: Option<i64>,
}

impl FileIdentity {
    /// Of no file: in place of that of one that was found cut off. Made longer again, it has zeros where the volume's bytes were.
    pub(super) const CUT_OFF: FileIdentity = FileIdentity { inode: 0, born_us: None };

    /// Of an open file; `None` where the file system has nothing that stays.
    pub(super) fn of(file: impl AsFd) -> Result<Option<FileIdentity>, Errno> {
        // The magic numbers have 32 bits; the field is signed, and wider on some machines.
        if NUMBERED_ANEW.contains(&(rustix::fs::fstatfs(&file)?.f_type as u64 & 0xffff_ffff)) {
            return Ok(None);
        }
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let about = match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted) {
            // Forbidden to some containers.
            Err(Errno::NOSYS) => return Ok(None),
            about => about?,
        };
        let told = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
        let born = about.stx_btime;
        let born_us = born.tv_sec.saturating_mul(1_000_000).saturating_add(i64::from(born.tv_nsec / 1000));
        Ok(Some(FileIdentity { inode: about.stx_ino, born_us: told.then_some(born_us) }))
    }

    /// Whether both are of one file, as far as both tell.
    pub fn is(&self, other: &FileIdentity) -> bool {
        let as_old = |(own, other)| own == other;
        self.inode == other.inode && self.born_us.zip(other.born_us).is_none_or(as_old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_number_and_its_birth_as_far_as_both_are_told() {
        let old = FileIdentity { inode: 7, born_us: Some(10) };
        assert!(old.is(&old));
        assert!(!old.is(&FileIdentity { inode: 7, born_us: Some(11) }), "the number was given out again");
        assert!(!old.is(&FileIdentity { inode: 8, born_us: Some(10) }));
        assert!(old.is(&FileIdentity { inode: 7, born_us: None }));
        assert!(!old.is(&FileIdentity { inode: 8, born_us: None }));
    }
}
