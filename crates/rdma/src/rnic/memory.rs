//! Memory that the device may access: buffers of our own work, and the regions open to the peer.
//!
//! [`Local`] finds or makes the key of memory that our work refers to; [`Regions`] is the table of regions open to the
//! peer. See RFC 5040 5.4 (revocation) and ibv_reg_mr(3). It owns the registrations and the buffers of regions.
//!
//! Registering costs a system call and pins pages, so local registrations are cached: pool memory in blocks of
//! [`BLOCK_BYTES`], since the same buffers are used again and again. They carry no remote right, so caching them
//! exposes nothing. Regions are registered one by one and deregistered when they are taken back, which makes a later
//! access by the peer fail; a cache of remote keys would not.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{Buf, Pool, Window};

use super::bindings::*;
use super::objects::{Mr, Pd};
use crate::{Access, PostError, Segment, Stag};

/// Pool memory is registered in pieces of this size, or of the buffer's size if that is larger.
const BLOCK_BYTES: usize = 256 << 10;
/// Registrations cached per connection; beyond that, the least recently used one is dropped.
const MAX_KEPT: usize = 512;
const PAGE: usize = 4096;

/// A piece of memory as work refers to it, with the registration that keeps its key valid.
pub(super) struct Piece {
    pub(super) sge: ibv_sge,
    _key: Rc<Mr>,
}

struct Kept {
    /// One past the last byte.
    end: usize,
    mr: Rc<Mr>,
    /// When it was last used.
    used: u64,
}

/// The local keys of a connection.
pub(super) struct Local {
    pd: Arc<Pd>,
    /// Keeps the memory of cached registrations mapped.
    pool: Pool,
    /// Keyed by the first byte. They may overlap.
    kept: BTreeMap<usize, Kept>,
    asked: u64,
    /// How often the pool had returned memory to the system when the first of them was made.
    punches: u64,
}

impl Local {
    pub(super) fn new(pd: Arc<Pd>, pool: Pool) -> Local {
        Local { pd, pool, kept: BTreeMap::new(), asked: 0, punches: 0 }
    }

    /// Whether the memory is the pool's, so that its key is likely to be cached.
    pub(super) fn is_pooled(&self, bytes: &[u8]) -> bool {
        self.pool.slab_around(bytes.as_ptr().addr()).is_some()
    }

    /// Memory for work that only reads it.
    pub(super) fn readable(&mut self, bytes: &[u8]) -> io::Result<Piece> {
        let address = bytes.as_ptr().expose_provenance();
        let key = match self.pool.slab_around(address) {
            Some(slab) => self.pooled(address, bytes.len(), slab)?,
            // SAFETY: the device does not write without a right to.
            None => Rc::new(self.retrying(|pd| unsafe { pd.register(address, bytes.len(), 0) })?),
        };
        piece(address, bytes.len(), key)
    }

    /// Memory for work that fills it.
    pub(super) fn writable(&mut self, window: &Window) -> io::Result<Piece> {
        let (address, len) = (window.address(), window.len());
        if let Some(slab) = self.pool.slab_around(address) {
            let key = self.pooled(address, len, slab)?;
            return piece(address, len, key);
        }
        // SAFETY: no reference to a window's memory exists; the work that uses the key holds the window.
        let register = |pd: &Arc<Pd>| unsafe { pd.register(address, len, IBV_ACCESS_LOCAL_WRITE) };
        let key = Rc::new(self.retrying(register)?);
        piece(address, len, key)
    }

    fn pooled(&mut self, address: usize, len: usize, slab: std::ops::Range<usize>) -> io::Result<Rc<Mr>> {
        self.asked = self.asked.wrapping_add(1);
        let end = address.saturating_add(len);
        // A block also pins the pages of neighbouring buffers. Pages that the pool has returned to the system are
        // replaced by others when they are used again; work under way uses a buffer, whose pages stay, and keeps its
        // key.
        let punches = self.pool.punches();
        if self.punches != punches {
            self.kept.clear();
            self.punches = punches;
        }
        if let Some((_, kept)) = self.kept.range_mut(..=address).next_back()
            && end <= kept.end
        {
            kept.used = self.asked;
            return Ok(kept.mr.clone());
        }
        let offset = address.saturating_sub(slab.start);
        let block = address.saturating_sub(offset % BLOCK_BYTES);
        let past_block = block.saturating_add(BLOCK_BYTES).min(slab.end);
        let (first, past) = if len > 0 && end <= past_block {
            (block, past_block)
        } else {
            (address.saturating_sub(address % PAGE), end.next_multiple_of(PAGE).min(slab.end))
        };
        let whole = past.saturating_sub(first);
        while self.kept.len() >= MAX_KEPT && self.forget_one() {}
        // SAFETY: only our own work uses local keys, and work that fills memory holds its window: no reference to that
        // part exists, whatever else lies in the block.
        let register = |pd: &Arc<Pd>| unsafe { pd.register(first, whole, IBV_ACCESS_LOCAL_WRITE) };
        let mr = Rc::new(self.retrying(register)?);
        self.kept.insert(first, Kept { end: past, mr: mr.clone(), used: self.asked });
        Ok(mr)
    }

    /// Registers memory; on failure, drops cached registrations that are not in use and tries once more.
    fn retrying(&mut self, register: impl Fn(&Arc<Pd>) -> io::Result<Mr>) -> io::Result<Mr> {
        register(&self.pd).or_else(|_| {
            self.kept.retain(|_, kept| Rc::strong_count(&kept.mr) > 1);
            register(&self.pd)
        })
    }

    fn forget_one(&mut self) -> bool {
        let idle = self.kept.iter().filter(|(_, kept)| Rc::strong_count(&kept.mr) == 1);
        let oldest = idle.min_by_key(|(_, kept)| kept.used).map(|(first, _)| *first);
        oldest.is_some_and(|first| self.kept.remove(&first).is_some())
    }
}

fn piece(address: usize, len: usize, key: Rc<Mr>) -> io::Result<Piece> {
    let length = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(Piece { sge: ibv_sge { addr: address as u64, length, lkey: key.lkey() }, _key: key })
}

/// The error of `register` or `post` when the kernel refuses to register more memory.
pub(super) const NOT_REGISTERED: PostError =
    PostError::Misuse("the device accepts no more memory: raise the limit of locked memory (ulimit -l)");

struct Region {
    window: Window,
    mr: Mr,
}

/// The regions open to the peer.
pub(super) struct Regions {
    pd: Arc<Pd>,
    limit: usize,
    table: HashMap<u32, Region>,
}

/// The device kept a registration that it was told to end: the connection cannot continue.
pub(super) struct NotReleased;

impl Regions {
    pub(super) fn new(pd: Arc<Pd>, limit: usize) -> Regions {
        Regions { pd, limit, table: HashMap::new() }
    }

    /// Opens `buf` to the peer.
    pub(super) fn register(&mut self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        if buf.is_part() {
            return Err(PostError::Misuse("part of a buffer as a region"));
        }
        if buf.is_empty() {
            return Err(PostError::Misuse("empty region"));
        }
        let len = u32::try_from(buf.len()).map_err(|_| PostError::Misuse("region longer than 4 GiB"))?;
        if self.table.len() >= self.limit {
            return Err(PostError::RegionsFull(self.limit));
        }
        let rights = match access {
            Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Access::RemoteWrite | Access::RemoteFill => IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,
        };
        let window = buf.into_window();
        // SAFETY: no reference to a window's memory exists, and the table holds the window until it is deregistered.
        let mr = unsafe { self.pd.register(window.address(), window.len(), rights) };
        let mr = mr.map_err(|e| {
            tracing::warn!("registering {len} bytes: {e}");
            NOT_REGISTERED
        })?;
        let segment = Segment { stag: Stag(mr.rkey()), offset: window.address() as u64, len };
        self.table.insert(mr.rkey(), Region { window, mr });
        Ok(segment)
    }

    /// Takes a region back; on success neither device nor peer can access it any more.
    pub(super) fn take(&mut self, stag: Stag) -> Result<Option<Buf>, NotReleased> {
        let Some(Region { window, mr }) = self.table.remove(&stag.0) else { return Ok(None) };
        match mr.release() {
            Ok(()) => Ok(window.try_into_buf().ok()),
            Err(e) => {
                tracing::error!("a memory region could not be deregistered and is lost: {e}");
                // The device may still write there, so nobody may ever use it again.
                std::mem::forget(window);
                Err(NotReleased)
            }
        }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        for stag in self.table.keys().copied().collect::<Vec<_>>() {
            drop(self.take(Stag(stag)));
        }
    }
}
