//! Volumes as files of a share: what a client writes to such a file goes through the volume's block.
//!
//! Owns: the blocks, shared with whoever else serves them. Does not: resize a volume (see `weft volume resize`), or keep two
//! clients from writing to it at once: that is for their locks and share modes, as with any disk image in a share.
//! Buffers: reads are ranges of the volume's own file, which leave by sendfile or RDMA without a copy, as a folder's do.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::File;

use super::{Item, Items, Shelf};
use crate::block::{Block, BlockOp};
use crate::vfs::{Error, NodeId, OpenFile, Sink};

/// A volume for a share.
#[derive(Clone, Debug)]
pub struct ShareVolume {
    /// Its name, which the file has as well.
    pub name: String,
    /// Takes writes.
    pub block: Arc<dyn Block>,
    /// Where its bytes can be read when the block says that they are written.
    pub content: File,
    /// Refuse writes.
    pub read_only: bool,
}

/// The backend's list.
pub struct Volumes(Vec<ShareVolume>);

impl Volumes {
    /// A share's worth of volumes, by name.
    pub fn shelf(mut volumes: Vec<ShareVolume>) -> Shelf<Volumes> {
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Shelf::new(Volumes(volumes))
    }
}

/// The number of a volume follows from its name, so that it survives restarts and neighbours: FNV-1a.
fn node(name: &str) -> NodeId {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    // The highest bit is for streams, 0 and 1 are taken.
    NodeId((hash >> 1).max(2))
}

impl Items for Volumes {
    fn kind(&self) -> &'static str {
        "volumes"
    }

    fn list(&self) -> Vec<Item> {
        let item = |volume: &ShareVolume| Item {
            node: node(&volume.name),
            name: volume.name.clone().into_bytes(),
            size: volume.block.geometry().size,
        };
        self.0.iter().map(item).collect()
    }

    fn open(&self, wanted: NodeId, write: bool) -> Result<OpenFile, Error> {
        let found = self.0.iter().find(|volume| node(&volume.name) == wanted).ok_or(Error::Stale)?;
        if write && found.read_only {
            return Err(Error::ReadOnly);
        }
        let file = OpenFile::new(wanted, found.content.clone(), None);
        let file = file.through(Arc::new(Disk(found.block.clone())));
        Ok(if write { file } else { file.read_only() })
    }
}

/// A block that takes a file's changes.
#[derive(Debug)]
struct Disk(Arc<dyn Block>);

impl Sink for Disk {
    fn len(&self) -> u64 {
        self.0.geometry().size
    }

    fn readable(&self) -> Result<(), Error> {
        self.0.readable()
    }

    fn write(&self, offset: u64, chain: Vec<Bytes>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let len: u64 = chain.iter().map(|bytes| bytes.len() as u64).sum();
            // A file would grow; a disk is full.
            if offset.checked_add(len).is_none_or(|end| end > self.len()) {
                return Err(Error::NoSpace);
            }
            if len == 0 {
                return Ok(());
            }
            self.0.submit(BlockOp::Write { offset, data: chain, durable: false }).await.map(drop)
        })
    }

    fn sync(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.0.submit(BlockOp::Flush).await.map(drop) })
    }

    fn zero(&self, offset: u64, len: u64, keep_space: bool) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // Past the end there is nothing to zero, as with a file.
            let len = len.min(self.len().saturating_sub(offset));
            if len == 0 {
                return Ok(());
            }
            let op = BlockOp::WriteZeroes { offset, len, durable: false, keep_space, fast: false };
            self.0.submit(op).await.map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::{Payload, Pool, rt};

    use super::*;
    use crate::vfs::{Exists, Make, SetAttr, Vfs};
    use crate::volume::{Create, Place, Volumes as Known};

    fn run<T>(story: impl AsyncFnOnce(Vfs, Arc<dyn Block>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let known = Known::at(dir.path());
        let create = Create {
            place: Place::Ram,
            size: Some(1 << 20),
            allocate: false,
            direct: false,
            id: [1; 16],
            created: 0,
        };
        known.create("vol1", &create).unwrap();
        rt::block_on(async {
            let volume = known.open("vol1", &Pool::new(1 << 20)).unwrap();
            let (block, content) = (volume.block.clone(), volume.content.clone());
            let share = ShareVolume { name: "vol1".into(), block: block.clone(), content, read_only: false };
            story(Vfs::new(Volumes::shelf(vec![share])), block).await
        })
        .unwrap()
    }

    async fn bytes(payload: Payload) -> Vec<u8> {
        payload.into_chain(&Pool::new(1 << 20)).await.unwrap().concat()
    }

    #[test]
    fn a_volume_is_read_and_written_as_a_file() {
        run(async |vfs, block| {
            let attr = vfs.lookup(NodeId::ROOT, b"VOL1", true).await.unwrap();
            assert_eq!(attr.size, 1 << 20);
            let file = vfs.open(attr.node, true).await.unwrap();
            file.write(4096, &[Bytes::from_static(b"warp")]).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(bytes(file.read(4096, 4).unwrap()).await, b"warp");
            // Who has it by another door sees the same.
            let read = block.submit(BlockOp::Read { offset: 4096, len: 4 }).await.unwrap();
            let crate::block::Outcome::Data(read) = read else { panic!("data") };
            assert_eq!(bytes(read).await, b"warp");
            file.punch_hole(4096, 2).await.unwrap();
            assert_eq!(bytes(file.read(4096, 4).unwrap()).await, b"\0\0rp");
        });
    }

    #[test]
    fn its_size_is_fixed_and_so_are_the_names() {
        run(async |vfs, _| {
            let node = vfs.lookup(NodeId::ROOT, b"vol1", false).await.unwrap().node;
            let file = vfs.open(node, true).await.unwrap();
            let end = file.len().unwrap();
            assert!(matches!(file.write(end - 1, &[Bytes::from_static(b"xx")]).await, Err(Error::NoSpace)));
            assert!(matches!(file.allocate(end, 1, false).await, Err(Error::NotSupported)));
            let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            assert!(matches!(vfs.setattr(node, sized(0)).await, Err(Error::NotPermitted)));
            vfs.setattr(node, sized(end)).await.unwrap();
            let make = vfs.create(NodeId::ROOT, b"new", Make::File, Exists::Fail, SetAttr::default()).await;
            assert!(matches!(make, Err(Error::ReadOnly)));
            assert!(matches!(vfs.remove(NodeId::ROOT, b"vol1").await, Err(Error::ReadOnly)));
            let (list, end) = vfs.readdir(NodeId::ROOT, 0, 10).await.unwrap();
            assert_eq!((list.len(), end), (1, true));
            assert_eq!(list[0].name, b"vol1");
            // A reader is one.
            let reader = vfs.open(node, false).await.unwrap();
            assert!(matches!(reader.write(0, &[Bytes::from_static(b"x")]).await, Err(Error::Access)));
        });
    }
}
