//! An open volume that becomes longer while it is used.
//!
//! Spec: ftruncate(2). Owns: what is known of the size. Does not: shrink, which takes a volume that nobody has open.
//! Order: the file or device first, durably, then the superblock, and only then the block: whatever happens in between, all
//! bytes that anybody was told of are there.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::plain::{self, Plain};
use super::superblock::Superblock;
use super::{Error, Metadata, io_error, medium, valid_size};
use crate::block::Medium;

/// Lets an open volume grow. As long as one of these is there the volume stays locked.
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

    /// Lets the volume have `size` bytes; what is added to a file reads as zeros. One that is as long stays as it is. Blocks.
    pub fn grow(&self, size: u64) -> Result<Superblock, Error> {
        let Open { metadata, block, superblock } = &*self.0;
        // Held throughout: one at a time.
        let mut superblock = superblock.lock().unwrap_or_else(PoisonError::into_inner);
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
        let new = Superblock { generation: superblock.generation + 1, size, ..superblock.clone() };
        metadata.write(&new)?;
        block.grown(size);
        *superblock = new.clone();
        Ok(new)
    }
}

fn lengthen(superblock: &Superblock, block: &Plain, size: u64) -> Result<(), Error> {
    let (file, path) = (block.content(), &superblock.path);
    if superblock.medium == Medium::Device {
        return medium::device_holds(file.as_fd(), size, path);
    }
    let sized = || -> io::Result<()> {
        // It may be longer than its volume: what is there stays.
        let there = u64::try_from(rustix::fs::fstat(file.as_fd())?.st_size).unwrap_or(0);
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
