//! An open volume that grows while it is used, joins or leaves a group, or whose file was replaced.
//!
//! ftruncate(2). This module owns the current size, file and group. Shrinking requires a volume that nobody has open,
//! except for undoing an unused growth.
//! Order: the file or device first, durably, then the superblock, and only then the block: whatever happens in
//! between, all announced bytes exist.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;

use super::identity::FileIdentity;
use super::medium::Opened;
use super::plain;
use super::rbd;
use super::superblock::{Membership, Superblock};
use super::{Error, Metadata, io_error, is_name, medium, valid_size};
use crate::block::Medium;

/// Lets an open volume grow, or accept a replaced file. The volume stays locked while one of these exists.
#[derive(Clone, Debug)]
pub struct Growth(Arc<Open>);

#[derive(Debug)]
struct Open {
    metadata: Metadata,
    opened: Opened,
    superblock: Mutex<Superblock>,
}

impl Growth {
    pub(super) fn new(metadata: Metadata, opened: Opened, superblock: Superblock) -> Growth {
        Growth(Arc::new(Open { metadata, opened, superblock: Mutex::new(superblock) }))
    }

    fn lock(&self) -> MutexGuard<'_, Superblock> {
        // The value under this lock is replaced as a whole.
        self.0.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current size in bytes. Does not block.
    pub fn size(&self) -> u64 {
        self.0.opened.block().geometry().size
    }

    /// The current metadata. Blocks only for a change in progress.
    pub fn superblock(&self) -> Superblock {
        self.lock().clone()
    }

    /// Records durably that the volume is in this group, or in none. Blocks.
    pub fn set_membership(&self, membership: Option<Membership>) -> Result<(), Error> {
        let mut superblock = self.lock();
        if superblock.membership == membership {
            return Ok(());
        }
        let new = Superblock { membership, ..superblock.clone() };
        if new.membership.as_ref().is_some_and(|of| !is_name(&of.group) || !new.has_room_for_group()) {
            let why = "it cannot be in this group: its path and the group's name are too long, or the name is invalid";
            return Err(Error::Path { path: new.path, why });
        }
        *superblock = self.0.metadata.write(&new)?;
        Ok(())
    }

    /// Why the open file is not the file that was last accepted for the volume. The caller decides what that means,
    /// because only it knows what was written to the other one. Blocks.
    pub fn replaced(&self) -> Option<String> {
        let superblock = self.superblock();
        let old = superblock.file?;
        let path = superblock.storage();
        if old == FileIdentity::CUT_OFF {
            return Some(format!(
                "{path} was shorter than the volume, and its bytes past that length are not the original ones"
            ));
        }
        match self.identity(&superblock) {
            // If the file system has no stable identities, the recorded one cannot be this file's.
            Ok(now) if now.is_none_or(|now| !old.is(&now)) => Some(format!(
                "{path} is not the original file: it was recreated, restored, or moved from another file system"
            )),
            Ok(_) => None,
            Err(e) => Some(format!("cannot find out whether {path} is the original file: {e}")),
        }
    }

    /// Accepts the open file as the volume's, whatever file it had. Blocks.
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

    /// All problems of the open volume, and what to do about them; `None` if there are none. Blocks.
    pub fn trouble(&self) -> Option<String> {
        let troubles = [self.astray(), self.lost(), self.0.opened.trouble()];
        let troubles: Vec<String> = troubles.into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join(". "))
    }

    /// Why no flush can succeed any more.
    fn lost(&self) -> Option<String> {
        self.0.opened.has_lost().then(|| {
            format!(
                "a flush of {} failed: writes since the previous flush may be lost, and every flush fails until the \
                 server is restarted, even if the disk works again. Repair the disk, restart the server, and check the data on the \
                 volume (with fsck, if it holds a file system)",
                self.superblock().storage()
            )
        })
    }

    /// Why the next start will not find the open file: its path leads to another file, or to none. Unless the file
    /// was moved, its data is lost when the process ends. Blocks.
    fn astray(&self) -> Option<String> {
        let superblock = self.superblock();
        if superblock.medium != Medium::File {
            return None;
        }
        let path = &superblock.path;
        let open = rustix::fs::fstat(self.0.opened.content()?.as_fd()).ok()?;
        let why = match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => "is now another file",
            Err(e) if e.kind() == io::ErrorKind::NotFound => "no longer exists",
            // For example, a folder cannot be searched: that says nothing about the file.
            Err(_) => return None,
        };
        let fate = match open.st_nlink {
            0 => {
                "the served file was removed, and its data is lost when the server ends: copy the volume elsewhere before that"
            }
            _ => "the served file has another name: move it back before the server ends",
        };
        Some(format!("{} {why}; {fate}", path.display()))
    }

    fn identity(&self, superblock: &Superblock) -> io::Result<Option<FileIdentity>> {
        match &self.0.opened {
            Opened::Rbd(rbd) => Ok(Some(rbd::identity(rbd.image().identity()))),
            Opened::Plain(plain) if superblock.medium == Medium::File => {
                Ok(FileIdentity::of(plain.content().as_fd())?)
            }
            Opened::Plain(_) => Ok(None),
        }
    }

    /// Grows the volume to `size` bytes; bytes added to a file read as zeros. A volume of that size stays unchanged.
    /// Blocks.
    pub fn grow(&self, size: u64) -> Result<Superblock, Error> {
        let Open { metadata, opened, .. } = &*self.0;
        // Held throughout: one growth at a time.
        let mut superblock = self.lock();
        valid_size(size)?;
        let now = self.size();
        if size < now {
            return Err(Error::Size(format!(
                "the volume has {} bytes and is in use: it cannot shrink now",
                now
            )));
        }
        if size == superblock.size {
            return Ok(superblock.clone());
        }
        lengthen(&superblock, opened, size)?;
        let new = Superblock { size, ..superblock.clone() };
        let new = metadata.write(&new)?;
        opened.grown(size);
        *superblock = new.clone();
        Ok(new)
    }

    /// Gives an image's lock back, so that another server can take it at once, and ends the use of the volume. Blocks, for a
    /// limited time.
    pub fn end(&self) {
        if let Opened::Rbd(rbd) = &self.0.opened
            && !rbd.image().end()
        {
            tracing::warn!(
                "the lock of {} was not given back: another host gets it when the cluster has missed this one for half a minute",
                rbd.image().spec()
            );
        }
    }

    /// The current sizes, for [`Growth::give_back`]. Blocks.
    pub fn before(&self) -> Result<Before, Error> {
        let superblock = self.lock();
        let file = match &self.0.opened {
            Opened::Rbd(rbd) => Ok(rbd.image().size()),
            Opened::Plain(_) if superblock.medium == Medium::Device => Ok(superblock.size),
            Opened::Plain(plain) => file_bytes(plain.content().as_fd()),
        };
        Ok(Before {
            size: superblock.size,
            file: file.map_err(io_error("cannot look at", &superblock.path))?,
        })
    }

    /// Undoes an unused growth of the volume and its file. Only for a caller that knows that nobody has used the
    /// added space. Blocks.
    pub fn give_back(&self, before: &Before) -> Result<(), Error> {
        let Open { metadata, opened, .. } = &*self.0;
        let mut superblock = self.lock();
        if before.size >= superblock.size {
            return Ok(());
        }
        let new = Superblock { size: before.size, ..superblock.clone() };
        // In the reverse order of growing: all bytes that the superblock promises exist.
        *superblock = metadata.write(&new)?;
        let file = match opened {
            Opened::Rbd(rbd) => {
                rbd.image().shrink(before.file)?;
                rbd.shrunk(before.size);
                return Ok(());
            }
            Opened::Plain(plain) => {
                plain.shrunk(before.size);
                plain.content()
            }
        };
        if superblock.medium == Medium::Device {
            return Ok(());
        }
        let cut = || -> io::Result<()> {
            if file_bytes(file.as_fd())? > before.file {
                rustix::fs::ftruncate(file.as_fd(), before.file)?;
            }
            Ok(())
        };
        cut().map_err(io_error("cannot size", &superblock.path))
    }

    /// The store from which it grows, and its free bytes. Blocks.
    pub fn room(&self) -> Result<(Store, u64), Error> {
        let superblock = self.lock();
        // How much of an image fits into its cluster changes by the minute, and is for `ceph df` to tell.
        let Some(file) = self.0.opened.content() else {
            return Ok((Store::Device(superblock.id), u64::MAX));
        };
        let found = || -> io::Result<(Store, u64)> {
            match superblock.medium {
                Medium::Ram => Ok((Store::Memory, plain::memory_available()?)),
                Medium::File => {
                    let disk = rustix::fs::fstatvfs(file.as_fd())?;
                    let device = rustix::fs::fstat(file.as_fd())?.st_dev;
                    Ok((Store::Disk(device), disk.f_bavail.saturating_mul(disk.f_frsize)))
                }
                Medium::Device | Medium::Rbd => {
                    let all = rustix::fs::seek(file.as_fd(), SeekFrom::End(0))?;
                    Ok((Store::Device(superblock.id), all.saturating_sub(superblock.size)))
                }
            }
        };
        found().map_err(io_error("cannot look at", &superblock.path))
    }
}

/// Free bytes of the host's memory, or of the file system of this folder. Blocks.
pub fn free_bytes(folder: Option<&Path>) -> io::Result<u64> {
    let Some(folder) = folder else { return plain::memory_available() };
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The sizes of a volume before a growth that may be undone.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Bytes of the volume.
    pub size: u64,
    /// Bytes of its file.
    file: u64,
}

/// A store of volumes' space, for adding up the growth of several volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The file system of this device number.
    Disk(u64),
    /// The host's memory.
    Memory,
    /// A device or an image, identified by the volume's random number.
    Device([u8; 16]),
}

fn file_bytes(file: impl AsFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0))
}

fn lengthen(superblock: &Superblock, opened: &Opened, size: u64) -> Result<(), Error> {
    let (file, path) = match opened {
        Opened::Rbd(rbd) => return Ok(rbd.image().grow(size)?),
        Opened::Plain(plain) => (plain.content(), &superblock.path),
    };
    if superblock.medium == Medium::Device {
        return medium::device_holds(file.as_fd(), size, path);
    }
    let sized = || -> io::Result<()> {
        // It may be longer than its volume: existing bytes stay.
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
