//! Identifies the file of a volume, so that another file with the same name is not mistaken for it.
//!
//! statx(2), statfs(2). An inode number is reused soon after its file is deleted, so the birth time counts if the
//! file system reports it. The device does not: its number may change with a reboot. The content is not examined.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

/// File systems that renumber files when they are mounted or forget them: vfat, exfat, and those in user space.
const NUMBERED_ANEW: [u64; 3] = [0x4d44, 0x2011_bab0, 0x6573_5546];

/// Distinguishes a file from earlier and later files with its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    /// Its number in its file system.
    pub inode: u64,
    /// Creation time in microseconds of Unix time: some file systems store no more than seven digits of a second.
    /// `None` if the file system does not report it.
    pub born_us: Option<i64>,
}

impl FileIdentity {
    /// Matches no file: replaces the identity of a file that was found truncated. If it were extended again, zeros
    /// would replace the volume's bytes.
    pub(super) const CUT_OFF: FileIdentity = FileIdentity { inode: 0, born_us: None };

    /// The identity of an open file; `None` if the file system has nothing stable.
    pub(super) fn of(file: impl AsFd) -> Result<Option<FileIdentity>, Errno> {
        // The magic numbers have 32 bits; the field is signed, and wider on some machines.
        if NUMBERED_ANEW.contains(&(rustix::fs::fstatfs(&file)?.f_type as u64 & 0xffff_ffff)) {
            return Ok(None);
        }
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let about = match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted) {
            // Some containers forbid it.
            Err(Errno::NOSYS) => return Ok(None),
            about => about?,
        };
        let told = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::BTIME);
        let born = about.stx_btime;
        let born_us = born.tv_sec.saturating_mul(1_000_000).saturating_add(i64::from(born.tv_nsec / 1000));
        Ok(Some(FileIdentity { inode: about.stx_ino, born_us: told.then_some(born_us) }))
    }

    /// Whether both identify one file, as far as both are known.
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
