//! Whether a range of a file occupies space already, so that writing to it takes no more.
//!
//! FIEMAP (linux/fiemap.h) knows reserved extents, which lseek(2) takes for holes. Where a file system does not have it,
//! data is what lseek finds.

use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::ioctl::{Updater, opcode};

use super::File;

/// Extents that are read at a time.
const EXTENTS: usize = 32;
/// A range in more extents counts as not occupied.
const MAX_CALLS: usize = 32;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap`, with the extents behind it.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// The code contains the size of the structure without extents.
const FS_IOC_FIEMAP: u32 = opcode::read_write::<[u64; 4]>(b'f', 11);
const FIEMAP_EXTENT_LAST: u32 = 0x1;
/// Its blocks are another file's as well: a write takes new ones.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

impl File {
    /// Whether every byte of the range has space that is this file's alone. One or more system calls that do not wait for
    /// data; false if that cannot be found out.
    pub fn occupies(&self, range: Range<u64>) -> bool {
        if self.blocking().is_some() {
            return false;
        }
        match self.occupies_by_map(&range) {
            Err(Errno::NOTSUP | Errno::NOTTY) => self.occupies_by_seek(&range).unwrap_or(false),
            known => known.unwrap_or(false),
        }
    }

    fn occupies_by_map(&self, range: &Range<u64>) -> Result<bool, Errno> {
        let mut at = range.start;
        for _ in 0..MAX_CALLS {
            if at >= range.end {
                return Ok(true);
            }
            let mut map = Map {
                start: at,
                length: range.end - at,
                flags: 0,
                mapped: 0,
                room: EXTENTS as u32,
                reserved: 0,
                extents: [Extent::default(); EXTENTS],
            };
            // SAFETY: the kernel reads the head of the structure, and writes it and at most `room` extents, which follow it.
            unsafe {
                let update = Updater::<FS_IOC_FIEMAP, Map>::new(&mut map);
                rustix::ioctl::ioctl(self, update)?;
            }
            let found = &map.extents[..(map.mapped as usize).min(EXTENTS)];
            let Some(last) = found.last() else { return Ok(false) };
            for extent in found {
                if extent.logical > at || extent.flags & FIEMAP_EXTENT_SHARED != 0 {
                    return Ok(false);
                }
                at = at.max(extent.logical.saturating_add(extent.length));
                if at >= range.end {
                    return Ok(true);
                }
            }
            if last.flags & FIEMAP_EXTENT_LAST != 0 {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn occupies_by_seek(&self, range: &Range<u64>) -> Result<bool, Errno> {
        let data = rustix::fs::seek(self, SeekFrom::Data(range.start))?;
        if data != range.start {
            return Ok(false);
        }
        // The last block of a file is occupied as a whole.
        let end = range.end.min(rustix::fs::fstat(self)?.st_size.unsigned_abs().next_multiple_of(4096));
        Ok(rustix::fs::seek(self, SeekFrom::Hole(range.start))?.next_multiple_of(4096) >= end
            && end == range.end)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn story(file: &File, reserves: bool) {
        assert!(!file.occupies(0..1), "it is empty");
        crate::rt::block_on(async {
            file.write_at(0, &[vec![7; 3 << 20].into()]).await.unwrap();
            assert!(file.occupies(0..3 * MIB) && file.occupies(4096..8192));
            assert!(!file.occupies(0..3 * MIB + 4096));
            file.punch_hole(MIB, MIB).await.unwrap();
            assert!(file.occupies(0..MIB) && file.occupies(2 * MIB..3 * MIB));
            assert!(!file.occupies(0..3 * MIB) && !file.occupies(MIB + 4096..MIB + 8192));
            if reserves {
                file.allocate(8 * MIB, MIB, true).await.unwrap();
                assert!(file.occupies(8 * MIB..9 * MIB), "reserved space is occupied");
                assert!(!file.occupies(7 * MIB..9 * MIB));
            }
        })
        .unwrap();
    }

    #[test]
    fn holes_are_not_occupied_and_reservations_are() {
        let file = File::from(OwnedFd::from(tempfile::tempfile().unwrap()));
        let reserves = file.occupies_by_map(&(0..1)).is_ok();
        story(&file, reserves);
        // Files in memory have no map of extents.
        story(&File::in_memory("occupied").unwrap(), false);
    }
}
