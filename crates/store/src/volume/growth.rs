//! An open volume that becomes longer while it is used, enters or leaves a group, and whose file is another one than it was.
//!
//! Spec: ftruncate(2). Owns: what is known of the size, the file and the group. Does not: shrink, which takes a volume that nobody has
//! open, but for a growth that came to nothing.
//! Order: the file or device first, durably, then the superblock, and only then the block: whatever happens in between, all
//! bytes that anybody was told of are there.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;

use super::identity::FileIdentity;
use super::plain::{self, Plain};
use super::superblock::{Membership, Superblock};
use super::{Error, Metadata, io_error, is_name, medium, valid_size};
use crate::block::{Block, Medium};

/// Lets an open volume grow, and become that of another file. As long as one of these is there the volume stays locked.
#[derive(Clone, Debug)]
pub struct Growth(Arc<Open>);

#[derive(Debug)]
struct Open {
    metadata: Metadata,
    block: Arc<Plain>,
    superblock: Mutex<Superblock>,
}

impl Growth {
    pub(super) fn new(metadata: Metadata, block: Arc<Plain>, superblock: Superblock) -> Growth {
        Growth(Arc::new(Open { metadata, block, superblock: Mutex::new(superblock) }))
    }

    fn lock(&self) -> MutexGuard<'_, Superblock> {
        // What is kept here is replaced as a whole.
        self.0.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that the volume has now. Does not block.
    pub fn size(&self) -> u64 {
        self.0.block.geometry().size
    }

    /// What the volume is now. Does not block but for a change that is under way.
    pub fn superblock(&self) -> Superblock {
        self.lock().clone()
    }

    /// The volume is in this group from now on, or in none, durably. Blocks.
    pub fn set_membership(&self, membership: Option<Membership>) -> Result<(), Error> {
        let mut superblock = self.lock();
        if superblock.membership == membership {
            return Ok(());
        }
        let new = Superblock { membership, ..superblock.clone() };
        if new.membership.as_ref().is_some_and(|of| !is_name(&of.group) || !new.has_room_for_group()) {
            let why =
                "its path and the group's name are too long, or the name is none: it cannot be in this group";
            return Err(Error::Path { path: new.path, why });
        }
        *superblock = self.0.metadata.write(&new)?;
        Ok(())
    }

    /// Why the file that is open is not the one that the volume lay on when it was last believed. Whoever serves it says what
    /// that means: nobody else knows what was written to the other one. Blocks.
    pub fn replaced(&self) -> Option<String> {
        let superblock = self.superblock();
        let old = superblock.file?;
        let path = superblock.path.display();
        if old == FileIdentity::CUT_OFF {
            return Some(format!(
                "{path} was shorter than the volume, and what it has behind that now is not what was there"
            ));
        }
        match self.identity(&superblock) {
            // Where files have no identity that stays this one was not before.
            Ok(now) if now.is_none_or(|now| !old.is(&now)) => Some(format!(
                "{path} is not the file that it was: it was made anew, restored, or moved from another file system"
            )),
            Ok(_) => None,
            Err(e) => Some(format!("whether {path} is the file that it was cannot be told: {e}")),
        }
    }

    /// The volume lies on the file that is open from now on, whatever it lay on. Blocks.
    pub fn accept(&self) -> Result<(), Error> {
        let mut superblock = self.lock();
        let identity = self.identity(&superblock);
        let file = identity.map_err(|e| io_error("cannot look at", &superblock.path)(e))?;
        if superblock.file == file {
            return Ok(());
        }
        let new = Superblock { file, ..superblock.clone() };
        *superblock = self.0.metadata.write(&new)?;
        Ok(())
    }

    /// All that is wrong with the open volume, and what to do about it; `None` where nothing is. Blocks.
    pub fn trouble(&self) -> Option<String> {
        let troubles: Vec<String> = [self.astray(), self.lost()].into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join(". "))
    }

    /// Why no flush succeeds any more.
    fn lost(&self) -> Option<String> {
        self.0.block.has_lost().then(|| {
            format!(
                "a flush of {} failed: what was written since the flush before it may be lost, and every flush fails until the \
                 server is restarted, also when the disk works again. Mend the disk, restart the server, and check what the \
                 volume holds (fsck, for a file system on it)",
                self.superblock().path.display()
            )
        })
    }

    /// Why the next start will not find the file that is open: its path leads to another one, or nowhere. What is written to it is gone with
    /// the process, unless it was moved. Blocks.
    fn astray(&self) -> Option<String> {
        let superblock = self.superblock();
        if superblock.medium != Medium::File {
            return None;
        }
        let path = &superblock.path;
        let open = rustix::fs::fstat(self.0.block.content().as_fd()).ok()?;
        let why = match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => "is another file now",
            Err(e) if e.kind() == io::ErrorKind::NotFound => "is not there any more",
            // A folder that cannot be looked into, say: that has nothing to do with the file.
            Err(_) => return None,
        };
        let fate = match open.st_nlink {
            0 => {
                "the file that is served was removed, and is gone when the server ends: copy the volume away from it before that"
            }
            _ => "the file that is served has another name: move it back before the server ends",
        };
        Some(format!("{} {why}; {fate}", path.display()))
    }

    fn identity(&self, superblock: &Superblock) -> io::Result<Option<FileIdentity>> {
        match superblock.medium {
            Medium::File => Ok(FileIdentity::of(self.0.block.content().as_fd())?),
            Medium::Ram | Medium::Device => Ok(None),
        }
    }

    /// Lets the volume have `size` bytes; what is added to a file reads as zeros. One that is as long stays as it is. Blocks.
    pub fn grow(&self, size: u64) -> Result<Superblock, Error> {
        let Open { metadata, block, .. } = &*self.0;
        // Held throughout: one at a time.
        let mut superblock = self.lock();
        valid_size(size)?;
        if size < superblock.size {
            return Err(Error::Size(format!(
                "the volume has {} bytes, and is in use: it cannot become smaller now",
                superblock.size
            )));
        }
        if size == superblock.size {
            return Ok(superblock.clone());
        }
        lengthen(&superblock, block, size)?;
        let new = Superblock { size, ..superblock.clone() };
        let new = metadata.write(&new)?;
        block.grown(size);
        *superblock = new.clone();
        Ok(new)
    }

    /// What it has now, for [`Growth::give_back`]. Blocks.
    pub fn before(&self) -> Result<Before, Error> {
        let superblock = self.lock();
        let file = match superblock.medium {
            Medium::Device => Ok(superblock.size),
            _ => file_bytes(self.0.block.content().as_fd()),
        };
        Ok(Before {
            size: superblock.size,
            file: file.map_err(io_error("cannot look at", &superblock.path))?,
        })
    }

    /// Ends a growth that came to nothing: the volume has what it had before, and so has its file. Only for who knows that nobody has
    /// used what was added. Blocks.
    pub fn give_back(&self, before: &Before) -> Result<(), Error> {
        let Open { metadata, block, .. } = &*self.0;
        let mut superblock = self.lock();
        if before.size >= superblock.size {
            return Ok(());
        }
        let new = Superblock { size: before.size, ..superblock.clone() };
        // The other way round than it grows: all bytes that the superblock promises are there.
        *superblock = metadata.write(&new)?;
        block.shrunk(before.size);
        if superblock.medium == Medium::Device {
            return Ok(());
        }
        let file = block.content();
        let cut = || -> io::Result<()> {
            if file_bytes(file.as_fd())? > before.file {
                rustix::fs::ftruncate(file.as_fd(), before.file)?;
            }
            Ok(())
        };
        cut().map_err(io_error("cannot size", &superblock.path))
    }

    /// Where it takes what it grows by, and how many bytes there are. Blocks.
    pub fn room(&self) -> Result<(Store, u64), Error> {
        let superblock = self.lock();
        let file = self.0.block.content();
        let found = || -> io::Result<(Store, u64)> {
            match superblock.medium {
                Medium::Ram => Ok((Store::Memory, plain::memory_available()?)),
                Medium::File => {
                    let disk = rustix::fs::fstatvfs(file.as_fd())?;
                    let device = rustix::fs::fstat(file.as_fd())?.st_dev;
                    Ok((Store::Disk(device), disk.f_bavail.saturating_mul(disk.f_frsize)))
                }
                Medium::Device => {
                    let all = rustix::fs::seek(file.as_fd(), SeekFrom::End(0))?;
                    Ok((Store::Device(superblock.id), all.saturating_sub(superblock.size)))
                }
            }
        };
        found().map_err(io_error("cannot look at", &superblock.path))
    }
}

/// Bytes that are free in the host's memory, or in the file system of this folder. Blocks.
pub fn free_bytes(folder: Option<&Path>) -> io::Result<u64> {
    let Some(folder) = folder else { return plain::memory_available() };
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// What a volume had before it grew for something that may come to nothing.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Bytes of the volume.
    pub size: u64,
    /// Bytes of its file.
    file: u64,
}

/// What volumes take from, so that the growth of several can be added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The file system of this device number.
    Disk(u64),
    /// The host's memory.
    Memory,
    /// A device of its own, by the volume's random number.
    Device([u8; 16]),
}

fn file_bytes(file: impl AsFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0))
}

fn lengthen(superblock: &Superblock, block: &Plain, size: u64) -> Result<(), Error> {
    let (file, path) = (block.content(), &superblock.path);
    if superblock.medium == Medium::Device {
        return medium::device_holds(file.as_fd(), size, path);
    }
    let sized = || -> io::Result<()> {
        // It may be longer than its volume: what is there stays.
        let there = file_bytes(file.as_fd())?;
        if there < size {
            if superblock.taken {
                plain::take(&file, there, size - there)?;
            }
            rustix::fs::ftruncate(file.as_fd(), size)?;
        }
        if superblock.medium == Medium::File {
            rustix::fs::fsync(file.as_fd())?;
        }
        Ok(())
    };
    sized().map_err(io_error("cannot size", path))
}
