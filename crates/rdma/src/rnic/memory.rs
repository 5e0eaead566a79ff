//! Memory that the device may touch: our own pieces of work, and the regions that the peer may reach.
//!
//! What: [`Local`] finds or makes the key of memory that our work names; [`Regions`] is the table of what is open to
//! the peer. Spec: RFC 5040 5.4 (revocation); ibv_reg_mr(3).
//! Owns: registrations, and the buffers of regions. Does not: post work.
//!
//! Registering costs a system call and pins pages, so local registrations are kept: pool memory in blocks of
//! [`BLOCK_BYTES`], since the same buffers come again and again. They carry no remote right, so keeping them opens
//! nothing. Regions are registered one by one and deregistered when they are taken back, which is what makes the peer's
//! later access fail; a table of kept remote keys would not.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{Buf, Pool, Window};

use super::bindings::*;
use super::objects::{Mr, Pd};
use crate::{Access, PostError, Segment, Stag};

/// Pool memory is registered in pieces of this size, or the buffer's where that is larger.
const BLOCK_BYTES: usize = 256 << 10;
/// Registrations kept per connection; of more, the longest unused goes.
const MAX_KEPT: usize = 512;
const PAGE: usize = 4096;

/// A piece of memory as work names it, with what keeps its key valid.
pub(super) struct Piece {
    pub(super) sge: ibv_sge,
    _key: Rc<Mr>,
}

struct Kept {
    /// One past the last byte.
    end: usize,
    mr: Rc<Mr>,
    /// When it was last asked for.
    used: u64,
}

/// The local keys of a connection.
pub(super) struct Local {
    pd: Arc<Pd>,
    /// Keeps the memory of what is kept mapped.
    pool: Pool,
    /// By first byte. They may overlap.
    kept: BTreeMap<usize, Kept>,
    asked: u64,
    /// How often the pool had given memory back to the system when the first of them was made.
    punches: u64,
}

impl Local {
    pub(super) fn new(pd: Arc<Pd>, pool: Pool) -> Local {
        Local { pd, pool, kept: BTreeMap::new(), asked: 0, punches: 0 }
    }

    /// Whether the memory is the pool's, so that its key is likely to be kept.
    pub(super) fn is_pooled(&self, bytes: &[u8]) -> bool {
        self.pool.slab_around(bytes.as_ptr().addr()).is_some()
    }

    /// Memory for work that only reads it.
    pub(super) fn readable(&mut self, bytes: &[u8]) -> io::Result<Piece> {
        let address = bytes.as_ptr().expose_provenance();
        let key = match self.pool.slab_around(address) {
            Some(slab) => self.pooled(address, bytes.len(), slab)?,
            // SAFETY: without a right to write, the device does not.
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
        // SAFETY: no reference to a window's memory exists; the work that names the key holds the window.
        let register = |pd: &Arc<Pd>| unsafe { pd.register(address, len, IBV_ACCESS_LOCAL_WRITE) };
        let key = Rc::new(self.retrying(register)?);
        piece(address, len, key)
    }

    fn pooled(&mut self, address: usize, len: usize, slab: std::ops::Range<usize>) -> io::Result<Rc<Mr>> {
        self.asked = self.asked.wrapping_add(1);
        let end = address.saturating_add(len);
        // A block pins the pages of neighbours as well. Those that the pool gave back to the system have other pages when
        // they are used again; work that is under way is in a buffer, whose pages stay, and keeps its key.
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
        // SAFETY: only our own work names local keys, and work that fills memory holds its window: no reference to
        // that part exists, whatever else lies in the block.
        let register = |pd: &Arc<Pd>| unsafe { pd.register(first, whole, IBV_ACCESS_LOCAL_WRITE) };
        let mr = Rc::new(self.retrying(register)?);
        self.kept.insert(first, Kept { end: past, mr: mr.clone(), used: self.asked });
        Ok(mr)
    }

    /// Registers; when that fails, once more without what is kept but not in use.
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

/// What the caller of `register` or `post` is told when the kernel does not let us register more.
pub(super) const NOT_REGISTERED: PostError =
    PostError::Misuse("the device takes no more memory: raise the limit of locked memory (ulimit -l)");

struct Region {
    window: Window,
    mr: Mr,
}

/// What the peer may reach.
pub(super) struct Regions {
    pd: Arc<Pd>,
    limit: usize,
    table: HashMap<u32, Region>,
}

/// The device kept a registration that it was told to end: the connection cannot go on.
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

    /// Takes a region back; on success neither device nor peer reaches it any more.
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
