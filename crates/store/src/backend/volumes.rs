//! Volumes as files of a share: writes to such a file go through the volume's block.
//!
//! The blocks are shared with other servers of the volumes. A volume cannot be resized here (see `weft volume
//! resize`), and concurrent writers must coordinate with locks and share modes, as with any disk image in a share.
//! Buffers: reads are ranges of the volume's own file, which are sent by sendfile or RDMA without a copy, like a
//! folder's.

use std::sync::Arc;

use weft_machine::{DataRanges, File, Payload, PayloadSource};

use super::{Item, Items, Shelf};
use crate::block::{Block, BlockOp, Outcome};
use crate::vfs::object::range;
use crate::vfs::{Done, Error, NodeId, Object, ObjectOp, OpenFile, Submission};

/// A volume for a share.
#[derive(Clone, Debug)]
pub struct ShareVolume {
    /// Its name, and that of the file.
    pub name: String,
    /// Takes writes.
    pub block: Arc<dyn Block>,
    /// The file from which its bytes are read, as long as the block says that they are current. An image has none.
    pub content: Option<File>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// The backend's list.
pub struct Volumes(Vec<ShareVolume>);

impl Volumes {
    /// A shelf of these volumes, by name.
    pub fn shelf(mut volumes: Vec<ShareVolume>) -> Shelf<Volumes> {
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Shelf::new(Volumes(volumes))
    }
}

/// The number of a volume is derived from its name (FNV-1a), so it survives restarts and changes of other volumes.
fn node(name: &str) -> NodeId {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    // The highest bit is for streams; 0 and 1 are taken.
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
        let disk = Disk { block: found.block.clone(), content: found.content.clone() };
        let file = OpenFile::new(wanted, Arc::new(disk));
        Ok(if write { file } else { file.read_only() })
    }
}

/// A block as an open file. Its size is fixed.
#[derive(Debug)]
struct Disk {
    block: Arc<dyn Block>,
    /// The file from which its bytes are read, as long as the block says that they are current. An image has none.
    content: Option<File>,
}

impl Disk {
    fn len(&self) -> u64 {
        self.block.geometry().size
    }

    fn read(&self, offset: u64, len: usize) -> Submission<'_> {
        let Some(content) = &self.content else { return self.ask(offset, len) };
        let read = move || Done::Data(range(content, self.len(), offset, len));
        match self.block.readable() {
            Ok(()) => Submission::Now(Ok(read())),
            // It may be so in a moment.
            Err(_) => Submission::later(async move {
                self.block.until_readable().await?;
                Ok(read())
            }),
        }
    }

    /// Reads by the block itself.
    fn ask(&self, offset: u64, len: usize) -> Submission<'_> {
        let len = self.len().saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            return Submission::Now(Ok(Done::Data(Payload::Chain(Vec::new()))));
        }
        Submission::later(async move {
            match self.block.submit(BlockOp::Read { offset, len }).await? {
                Outcome::Data(payload) => Ok(Done::Data(payload)),
                Outcome::Done | Outcome::Extents(_) => Err(Error::NotSupported),
            }
        })
    }

    async fn change(&self, op: BlockOp) -> Result<Done, Error> {
        self.block.submit(op).await?;
        Ok(Done::Done)
    }

    /// The ranges that hold data.
    async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<DataRanges, Error> {
        if let Some(content) = &self.content {
            self.block.until_readable().await?;
            return Ok(content.data_ranges(offset, len, max).await?);
        }
        let len = self.len().saturating_sub(offset).min(len);
        let (mut found, end) = (DataRanges { ranges: Vec::new(), more: false }, offset.saturating_add(len));
        if len == 0 || max == 0 {
            return Ok(found);
        }
        // A hole may come before each of them.
        let status = BlockOp::Status { offset, len, max_extents: max.saturating_mul(2) };
        let Outcome::Extents(extents) = self.block.submit(status).await? else {
            return Err(Error::NotSupported);
        };
        let mut at = offset;
        for extent in extents {
            let next = at.saturating_add(extent.len);
            if !extent.hole {
                found.ranges.push(at..next);
            }
            at = next;
        }
        found.more = at < end || found.ranges.len() > max;
        found.ranges.truncate(max);
        Ok(found)
    }
}

impl Object for Disk {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        Submission::Now(match op {
            ObjectOp::Read { offset, len, .. } => return self.read(offset, len),
            ObjectOp::Len => Ok(Done::Len(self.len())),
            // A file would grow; a disk is full.
            ObjectOp::Write { .. } if op.grows_to().is_none_or(|end| end > self.len()) => Err(Error::NoSpace),
            ObjectOp::Write { source, .. } if source.is_empty() => Ok(Done::Done),
            ObjectOp::Write { source: PayloadSource::Remote { .. }, .. } => Ok(Done::NeedsMemory),
            ObjectOp::Write { offset, source: PayloadSource::Memory(chain) } => {
                let data = chain.to_vec();
                return Submission::later(self.change(BlockOp::Write { offset, data, durable: false }));
            }
            ObjectOp::Sync { ended } => {
                return Submission::later(async move {
                    let done = self.block.submit(BlockOp::Flush).await.map(drop);
                    ended(&done);
                    done.map(|()| Done::Done)
                });
            }
            // Past the end there is nothing to zero, as with a file.
            ObjectOp::Zero { offset, .. } if offset >= self.len() => Ok(Done::Done),
            ObjectOp::Zero { len: 0, .. } => Ok(Done::Done),
            ObjectOp::Zero { offset, len, keep_space } => {
                let len = len.min(self.len().saturating_sub(offset));
                let zeroes = BlockOp::WriteZeroes { offset, len, durable: false, keep_space, fast: false };
                return Submission::later(self.change(zeroes));
            }
            ObjectOp::Extents { offset, len, max } => {
                return Submission::later(
                    async move { Ok(Done::Extents(self.extents(offset, len, max).await?)) },
                );
            }
            ObjectOp::Append { .. }
            | ObjectOp::Allocate { .. }
            | ObjectOp::Copy { .. }
            | ObjectOp::Clone { .. }
            | ObjectOp::Resize { .. }
            | ObjectOp::Exchange { .. } => Err(Error::NotSupported),
        })
    }

    fn content(&self) -> Option<&File> {
        self.content.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::future::LocalBoxFuture;
    use weft_machine::{Payload, Pool, rt};

    use super::*;
    use crate::block::{Geometry, Outcome};
    use crate::vfs::{Exists, Listing, Make, SetAttr, Vfs};
    use crate::volume::{Create, Storage, Volumes as Folder};

    fn run<T>(story: impl AsyncFnOnce(Vfs, Arc<dyn Block>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let known = Folder::at(dir.path());
        let create = Create {
            storage: Storage::Ram,
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
            assert_eq!(bytes(file.read(4096, 4).data().await.unwrap()).await, b"warp");
            // Users of another interface see the same.
            let read = block.submit(BlockOp::Read { offset: 4096, len: 4 }).await.unwrap();
            let crate::block::Outcome::Data(read) = read else { panic!("data") };
            assert_eq!(bytes(read).await, b"warp");
            file.punch_hole(4096, 2).await.unwrap();
            assert_eq!(bytes(file.read(4096, 4).data().await.unwrap()).await, b"\0\0rp");
        });
    }

    #[test]
    fn its_size_is_fixed_and_so_are_the_names() {
        run(async |vfs, _| {
            let node = vfs.lookup(NodeId::ROOT, b"vol1", false).await.unwrap().node;
            let file = vfs.open(node, true).await.unwrap();
            let end = file.len().await.unwrap();
            assert!(matches!(file.write(end - 1, &[Bytes::from_static(b"xx")]).await, Err(Error::NoSpace)));
            assert!(matches!(file.allocate(end, 1, false).await, Err(Error::NotSupported)));
            let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            assert!(matches!(vfs.setattr(node, sized(0)).await, Err(Error::NotPermitted)));
            vfs.setattr(node, sized(end)).await.unwrap();
            let make = vfs.create(NodeId::ROOT, b"new", Make::File, Exists::Fail, SetAttr::default()).await;
            assert!(matches!(make, Err(Error::ReadOnly)));
            assert!(matches!(vfs.remove(NodeId::ROOT, b"vol1").await, Err(Error::ReadOnly)));
            let Listing { entries: list, is_last: end } = vfs.readdir(NodeId::ROOT, 0, 10).await.unwrap();
            assert_eq!((list.len(), end), (1, true));
            assert_eq!(list[0].name, b"vol1");
            // A reader's open counts, too.
            let reader = vfs.open(node, false).await.unwrap();
            assert!(matches!(reader.write(0, &[Bytes::from_static(b"x")]).await, Err(Error::Access)));
        });
    }

    /// A block that is not readable at present, and is so in a moment or stays refused.
    #[derive(Debug)]
    struct Held {
        block: Arc<dyn Block>,
        opens: bool,
    }

    impl Block for Held {
        fn geometry(&self) -> Geometry {
            self.block.geometry()
        }

        fn readable(&self) -> Result<(), Error> {
            Err(Error::Io(std::io::Error::other("held")))
        }

        fn until_readable(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
            Box::pin(async {
                rt::yield_now().await;
                if self.opens { Ok(()) } else { self.readable() }
            })
        }

        fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
            self.block.submit(op)
        }
    }

    #[test]
    fn a_read_waits_while_its_block_is_held() {
        run(async |vfs, block| {
            let node = vfs.lookup(NodeId::ROOT, b"vol1", false).await.unwrap().node;
            let file = vfs.open(node, true).await.unwrap();
            file.write(0, &[Bytes::from_static(b"warp")]).await.unwrap();
            let content = block.memory().expect("it lies in memory").clone();
            for opens in [true, false] {
                let held = Arc::new(Held { block: block.clone(), opens });
                let disk = Disk { block: held, content: Some(content.clone()) };
                let file = OpenFile::new(node, Arc::new(disk));
                let held = |e: Error| assert!(!opens && e.to_string().contains("held"), "{e}");
                match file.read(0, 4).data().await {
                    Ok(read) => assert!(opens && bytes(read).await == b"warp"),
                    Err(e) => held(e),
                }
                // No other way leads past it.
                let copy = OpenFile::of_file(node, File::in_memory("copy").unwrap());
                match copy.copy_from(0, &file, 0, 4).await {
                    Ok(copied) => {
                        assert!(opens && copied == 4);
                        assert_eq!(bytes(copy.read(0, 10).data().await.unwrap()).await, b"warp");
                    }
                    Err(e) => held(e),
                }
                assert_eq!(copy.len().await.unwrap(), if opens { 4 } else { 0 });
                match file.data_ranges(0, 4, 1).await {
                    Ok(found) => assert!(opens && found.ranges.len() == 1),
                    Err(e) => held(e),
                }
            }
        });
    }
}
