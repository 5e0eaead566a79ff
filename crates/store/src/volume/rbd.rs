//! A block whose bytes are an image of a Ceph cluster (RBD).
//!
//! The `ceph` room opens the image and has its lock; this file makes it fit the contract of [`crate::block`].
//!
//! Durability: librbd's cache is off, so an answered write is on the disks of the cluster already, unless a setting of the
//! image itself turns the cache on again. Therefore a flush, and a durable change, also asks librbd to flush.
//! Buffers: reads fill buffers of the pool, at most 4 MiB a request; writes are sent from where they lie.
//! Size: the image may grow while it is served; whole units of [`SIZE_UNIT`] count. It never shrinks for its users: what lies
//! past the end of an image that was made smaller cannot be read or written.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use rustix::io::Errno;
use siphasher::sip::SipHasher24;
use weft_ceph::{Client, Image, ImageSpec, MAX_SLICES};
use weft_machine::recorder::{self, Hop};
use weft_machine::{Payload, Pool};

use super::abandoned::Abandoned;
use super::identity::FileIdentity;
use super::plain::BLOCK_BYTES;
use super::{Error as VolumeError, SIZE_UNIT};
use crate::Error;
use crate::block::{Block, BlockOp, Extent, Geometry, Medium, Outcome};

/// Bytes of one read: an image's object usually has 4 MiB, and larger requests are split there anyway.
const PIECE: usize = 4 << 20;

/// The longest address of a holder that is recorded; an IPv6 address with its port and nonce has some 65 bytes.
const MAX_HOLDER: usize = 128;

/// Where a volume's image is, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageRecord {
    /// The image.
    pub spec: ImageSpec,
    /// As whom, by which configuration.
    pub client: Client,
    /// The address with which the last server held the image's lock. That server is dead if its volume can be opened, because
    /// the volume's metadata are locked as well. Empty if there was none.
    pub holder: String,
}

impl ImageRecord {
    /// The same, held by the client at this address.
    pub(super) fn held_by(&self, holder: &str) -> ImageRecord {
        // The lock of a server with a longer one would outlast it for half a minute.
        let holder = if holder.len() <= MAX_HOLDER { holder } else { "" };
        ImageRecord { holder: holder.to_owned(), ..self.clone() }
    }

    /// As text that separates its parts by zeros, which none of them contains.
    pub(super) fn emit(&self) -> Vec<u8> {
        let ImageRecord { spec, client: Client { conf, id }, holder } = self;
        let spec = spec.to_string();
        let conf = conf.as_os_str().as_encoded_bytes();
        [spec.as_bytes(), id.as_bytes(), holder.as_bytes(), conf].join(&0)
    }

    /// The most bytes of [`ImageRecord::emit`], whoever will be the holder.
    pub(super) fn emit_longest(&self) -> usize {
        self.held_by("").emit().len() + MAX_HOLDER
    }

    /// The inverse.
    pub(super) fn parse(bytes: &[u8]) -> Option<ImageRecord> {
        use std::os::unix::ffi::OsStringExt;
        let mut parts = bytes.split(|byte| *byte == 0);
        let mut text = || parts.next().and_then(|part| String::from_utf8(part.to_vec()).ok());
        let (spec, id, holder) = (text()?.parse().ok()?, text()?, text()?);
        let conf = PathBuf::from(std::ffi::OsString::from_vec(parts.next()?.to_vec()));
        parts.next().is_none().then_some(ImageRecord { spec, client: Client { conf, id }, holder })
    }
}

/// Tells images with the same name apart, as [`FileIdentity`] does files.
pub(super) fn identity(of: &weft_ceph::Identity) -> FileIdentity {
    let weft_ceph::Identity { fsid, image, created_us } = of;
    let number = SipHasher24::new().hash(format!("{fsid}/{image}").as_bytes());
    // Zero is nobody's (`FileIdentity::CUT_OFF`).
    FileIdentity { inode: number.max(1), born_us: Some(*created_us) }
}

/// The largest size in whole units.
pub(super) fn whole_units(bytes: u64) -> u64 {
    bytes - bytes % SIZE_UNIT
}

/// See the module.
#[derive(Debug)]
pub struct Rbd {
    image: Image,
    pool: Pool,
    /// The largest size that the image has had while it was open.
    size: AtomicU64,
    /// Whether a flush has failed; see the contract.
    lost: AtomicBool,
    /// Changes that librbd still makes although their futures were dropped.
    abandoned: Abandoned,
}

impl Rbd {
    /// Opens the image of a volume, and locks it. Blocks.
    pub(super) fn open(record: &ImageRecord, size: u64, pool: &Pool) -> Result<Rbd, VolumeError> {
        let former = Some(&*record.holder).filter(|holder| !holder.is_empty());
        let image = weft_ceph::open(&record.client, &record.spec, former)?;
        if image.size() < size {
            return Err(VolumeError::Shrunk {
                path: record.spec.to_string().into(),
                expected: size,
                actual: image.size(),
            });
        }
        let (size, pool) = (AtomicU64::new(whole_units(image.size())), pool.clone());
        Ok(Rbd { image, pool, size, lost: AtomicBool::new(false), abandoned: Abandoned::default() })
    }

    /// The open image.
    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// Whether a flush has failed: then every one fails until the volume is opened again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The problem of the image, if any.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_cut_off = self.image.size() < self.size();
        self.image.over().map(ToOwned::to_owned).or_else(|| is_cut_off.then(|| self.cut_off().to_string()))
    }

    fn cut_off(&self) -> Error {
        Error::Io(io::Error::other(format!(
            "{} was made smaller: it has {} of the {} bytes of the volume, and requests past its end fail; `rbd resize` restores its \
             size, but not its data",
            self.image.spec(),
            self.image.size(),
            self.size()
        )))
    }

    /// Sets a smaller size, after the image has got it.
    pub(super) fn shrunk(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    fn size(&self) -> u64 {
        let now = whole_units(self.image.size());
        self.size.fetch_max(now, Ordering::AcqRel).max(now)
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Payload, Error> {
        let mut chain = Vec::with_capacity(len.div_ceil(PIECE));
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE);
            let mut buf = self.pool.alloc(piece).await;
            buf.set_len(piece);
            let at = offset + done as u64;
            let (bytes, bufs) = self.on_disk(self.image.read(at, vec![buf])).await?;
            if bytes < piece {
                return Err(Error::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            chain.extend(bufs.into_iter().map(weft_machine::Buf::freeze));
            done += piece;
        }
        Ok(Payload::Chain(chain))
    }

    async fn write(&self, offset: u64, data: Vec<Bytes>) -> Result<(), Error> {
        let data: Vec<Bytes> = data.into_iter().filter(|bytes| !bytes.is_empty()).collect();
        let mut at = offset;
        for batch in data.chunks(MAX_SLICES) {
            let (runs, _awaits) = self.abandoned.begun();
            self.on_disk(self.image.write(at, batch.to_vec(), runs)).await?;
            at += batch.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), Error> {
        let lost = || {
            Error::Io(io::Error::other(
                "an earlier write could not be made durable: every flush fails until the server is restarted",
            ))
        };
        if self.has_lost() {
            return Err(lost());
        }
        if let Err(e) = self.on_disk(self.image.flush()).await {
            // Before anybody else can be told that all is well.
            self.lost.store(true, Ordering::Release);
            tracing::error!(
                "writes to {} could not be made durable, and may be lost: {e}",
                self.image.spec()
            );
            return Err(e);
        }
        if self.has_lost() { Err(lost()) } else { Ok(()) }
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<(), Error> {
        let (runs, _awaits) = self.abandoned.begun();
        self.on_disk(self.image.discard(offset, len, runs)).await
    }

    async fn zero(&self, offset: u64, len: u64, keep_space: bool, fast: bool) -> Result<(), Error> {
        if keep_space && fast {
            return Err(Error::NotSupported);
        }
        let len = usize::try_from(len).map_err(|_| Error::Invalid)?;
        let (runs, _awaits) = self.abandoned.begun();
        self.on_disk(self.image.write_zeroes(offset, len, keep_space, runs)).await
    }

    async fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Error> {
        let (mut extents, mut at, end) = (Extents::new(max), offset, offset + len);
        while at < end && !extents.is_full() {
            let (stored, known) = self.on_disk(self.image.stored(at, end - at)).await?;
            for range in stored {
                extents.add(range.start - at, true);
                extents.add(range.end - range.start, false);
                at = range.end;
            }
            extents.add(known - at, true);
            at = known;
        }
        Ok(extents.list)
    }

    /// Waits for the cluster.
    async fn on_disk<T>(&self, request: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
        recorder::at(Hop::Disk, request).await.map_err(|e| {
            match e.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOSPC | Errno::DQUOT) => Error::NoSpace,
                _ => Error::Io(e),
            }
        })
    }
}

/// Extents of which neighbours differ, up to a number.
struct Extents {
    list: Vec<Extent>,
    max: usize,
    full: bool,
}

impl Extents {
    fn new(max: usize) -> Extents {
        Extents { list: Vec::new(), max, full: false }
    }

    /// Whether another extent would not fit: then the last one is complete.
    fn is_full(&self) -> bool {
        self.full
    }

    fn add(&mut self, len: u64, hole: bool) {
        if len == 0 || self.full {
            return;
        }
        let count = self.list.len();
        match self.list.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ if count == self.max => self.full = true,
            _ => self.list.push(Extent { len, hole }),
        }
    }
}

impl Block for Rbd {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size(), medium: Medium::Rbd, preferred: BLOCK_BYTES }
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            op.validate(self.size())?;
            // It may have been made smaller.
            op.validate(self.image.size()).map_err(|_| self.cut_off())?;
            self.abandoned.finished().await;
            let must_last = match op {
                BlockOp::Read { offset, len } => return self.read(offset, len).await.map(Outcome::Data),
                BlockOp::Status { offset, len, max_extents } => {
                    return self.status(offset, len, max_extents).await.map(Outcome::Extents);
                }
                BlockOp::Write { offset, data, durable } => {
                    self.write(offset, data).await?;
                    durable
                }
                BlockOp::Trim { offset, len, durable } => {
                    self.trim(offset, len).await?;
                    durable
                }
                BlockOp::WriteZeroes { offset, len, durable, keep_space, fast } => {
                    self.zero(offset, len, keep_space, fast).await?;
                    durable
                }
                BlockOp::Flush => true,
            };
            if must_last {
                self.flush().await?;
            }
            Ok(Outcome::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_several_answers_are_put_together() {
        let mut extents = Extents::new(3);
        for (len, hole) in [(4, true), (0, false), (4, true), (2, false), (3, false), (1, true), (0, true)] {
            extents.add(len, hole);
        }
        let of = |len, hole| Extent { len, hole };
        assert_eq!(extents.list, [of(8, true), of(5, false), of(1, true)]);
        assert!(!extents.is_full());
        extents.add(1, false);
        extents.add(1, true);
        assert!(extents.is_full() && extents.list.len() == 3 && extents.list[2].len == 1);
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let record = ImageRecord {
            spec: "rbd/team/vm1".parse().unwrap(),
            client: Client { conf: "/etc/ceph/a b.conf".into(), id: "weft".into() },
            holder: String::new(),
        };
        assert_eq!(ImageRecord::parse(&record.emit()), Some(record.clone()));
        let held = ImageRecord { holder: "10.0.0.1:0/123".into(), ..record };
        let bytes = held.emit();
        assert_eq!(ImageRecord::parse(&bytes), Some(held));
        for cut in 0..bytes.len() - "/etc/ceph/a b.conf".len() {
            assert_eq!(ImageRecord::parse(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(ImageRecord::parse(&[&bytes[..], b"\0"].concat()), None);
    }
}
