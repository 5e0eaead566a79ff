//! The pool: hands out buffers, within a limit on the memory of its slabs.
//!
//! A [`Pool`] is a handle to the whole pool, or to a share of it ([`Pool::share`]) with a smaller limit. Small blocks
//! come from this thread's cache; everything else goes through one lock to the [`Budget`].

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use thiserror::Error;

use super::arena::{Arena, Mappings, Piece};
use super::budget::{Budget, ROOT};
use super::buffer::Chunk;
use super::cache::Caches;
use super::memory::{Handle, Memory};
use super::waiting::{QueuedRequest, Waiting};
use super::{Buf, MAX_BUF, MIN_BUF, Mapping, Window, order_of};

/// Unidentified peers may hold one in this many of a pool's bytes.
const STRANGERS_SHARE: usize = 8;
/// How much one step of [`Pool::trim`] returns to the system under the lock.
const TRIM_BYTES: usize = 4 << 20;

/// The requested buffers together exceed what the pool or the share may ever hold.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("buffers of {wanted_bytes} bytes exceed the limit of {limit_bytes}")]
pub struct OverLimit {
    /// The sum of the sizes, each rounded up to a power of two.
    pub wanted_bytes: usize,
    /// The limit.
    pub limit_bytes: usize,
}

/// Slabs with a limit, or a share of them. Clones share it.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("limit_bytes", &self.limit_bytes()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that hands out at most `limit_bytes` at a time (rounded up to one `MAX_BUF`), and whose slabs never
    /// occupy more memory than that.
    pub fn new(limit_bytes: usize) -> Pool {
        let limit_bytes = limit_bytes.max(MAX_BUF);
        let mappings = Mappings::new(limit_bytes);
        let arena = Arena::new(limit_bytes, mappings.clone());
        let budget = Mutex::new(Budget::new(limit_bytes, arena));
        let memory = Memory { mappings, caches: Caches::new(limit_bytes), budget };
        Pool(Arc::new(Handle { memory: Arc::new(memory), share: ROOT }))
    }

    /// A share of this pool: the same memory, of which the share hands out at most `limit_bytes` at a time. The limit
    /// is rounded up to one `MAX_BUF`, so that a single buffer always fits, and down to this pool's limit. A buffer is
    /// charged to its share and all ancestors until it is dropped.
    pub fn share(&self, limit_bytes: usize) -> Pool {
        let memory = self.memory().clone();
        let share = memory.lock().divide(self.0.share, limit_bytes.max(MAX_BUF));
        Pool(Arc::new(Handle { memory, share }))
    }

    /// Like [`Pool::share`], but divided fairly: none of its own shares holds more than is still free of it, and memory
    /// that becomes free goes to the one that holds least. So `n` shares that take all they can, and give it back now
    /// and then, leave one part in `n + 1` of the whole for the next one.
    pub fn fair_share(&self, limit_bytes: usize) -> Pool {
        let share = self.share(limit_bytes);
        self.memory().lock().divide_fairly(share.0.share);
        share
    }

    /// The share of unidentified peers: an eighth, so that all of them together leave the rest alone. Other shares
    /// leave this eighth alone as well, so that a peer about to identify itself need not wait for them (in a pool too
    /// small for that, as much as leaves one `MAX_BUF`). Make it once and clone it: each call makes another share, and
    /// the first one has the reserve.
    pub fn for_strangers(&self) -> Pool {
        let limit_bytes = self.limit_bytes();
        let strangers = self.share(limit_bytes / STRANGERS_SHARE);
        let reserve_bytes = (limit_bytes / STRANGERS_SHARE).min(limit_bytes - MAX_BUF);
        self.memory().lock().set_reserve(strangers.0.share, reserve_bytes);
        strangers
    }

    /// Moves this share to `parent`, another share of the same pool, with all buffers that it has handed out, wherever
    /// they are: for a connection's share when its peer is identified. False, with no change, if `parent` has no room
    /// for them, has a lower limit, is a descendant of this share, or belongs to another pool.
    #[must_use]
    pub fn move_to(&self, parent: &Pool) -> bool {
        Arc::ptr_eq(self.memory(), parent.memory())
            && self.memory().with(|budget, caches, wakers| {
                budget.move_share(self.0.share, parent.0.share, caches, wakers)
            })
    }

    /// Raises this share's limit to that of its parent.
    pub fn raise_limit(&self) {
        self.memory().with(|budget, caches, wakers| budget.raise_limit(self.0.share, caches, wakers));
    }

    /// The limit of this share in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.memory().lock().limit_bytes(self.0.share)
    }

    /// Bytes that this share has handed out at present, each buffer rounded up to a power of two.
    pub fn in_use_bytes(&self) -> usize {
        let budget = self.memory().lock();
        let cached = if self.0.share == ROOT { self.memory().caches.bytes() } else { 0 };
        budget.in_use_bytes(self.0.share).saturating_sub(cached)
    }

    /// Bytes given back to this share since it was made, counted like [`Pool::in_use_bytes`]: if this does not change
    /// while some are handed out, their holder keeps them.
    pub fn given_back_bytes(&self) -> u64 {
        self.memory().lock().given_back_bytes(self.0.share)
    }

    /// Bytes of requests that wait because this share, and not one below it, is at its limit, or because it is divided
    /// fairly.
    pub fn wanted_bytes(&self) -> usize {
        self.memory().lock().wanted_bytes(self.0.share)
    }

    /// Whether at most half is handed out of this share and of each ancestor, so that it is fine to take more than is
    /// needed now.
    pub fn has_plenty(&self) -> bool {
        self.memory().lock().has_plenty(self.0.share)
    }

    /// The most memory that the slabs of the whole pool can occupy: every page that was handed out since it was last
    /// returned to the system. It never exceeds the pool's limit.
    pub fn resident_bytes(&self) -> usize {
        self.memory().lock().arena.touched_bytes()
    }

    /// How many requests wait for memory, in the whole pool.
    pub fn waiting(&self) -> usize {
        self.memory().lock().waiting()
    }

    /// The number of the request that has waited longest, in the whole pool: if it does not change, this request still
    /// waits.
    pub fn oldest_waiting(&self) -> Option<u64> {
        self.memory().lock().oldest_waiting()
    }

    /// An empty buffer with room for `capacity` bytes, or `None` if the share or the pool is at its limit or others
    /// already wait.
    ///
    /// # Panics
    /// If `capacity` exceeds [`MAX_BUF`]: sizes from the network are checked against protocol limits first.
    pub fn try_alloc(&self, capacity: usize) -> Option<Buf> {
        let order = order_of(capacity).expect("buffer request above MAX_BUF");
        let memory = self.memory();
        if self.0.caches(order)
            && let Some(piece) = memory.caches.take(order)
        {
            return Some(self.wrap(piece));
        }
        let piece = memory.lock().try_take(self.0.share, order, &memory.caches)?;
        Some(self.wrap(piece))
    }

    /// Buffers for all of these capacities, or `None` if there is no room for all of them now.
    pub fn try_alloc_many(&self, capacities: &[usize]) -> Option<Vec<Buf>> {
        let orders = self.orders(capacities).ok()?;
        let memory = self.memory();
        let pieces = memory.lock().try_take_all(self.0.share, &orders, &memory.caches)?;
        Some(self.wrap_all(pieces))
    }

    /// Like [`Pool::try_alloc`], but waits for a buffer instead of failing. Requests are served in order, except
    /// that small ones pass large ones for a while.
    pub async fn alloc(&self, capacity: usize) -> Buf {
        let mut waiting = Waiting::default();
        std::future::poll_fn(|cx| self.poll_alloc(cx, capacity, &mut waiting)).await
    }

    /// Waits for all of these buffers together and holds none of them meanwhile, so that two callers that need several
    /// never block each other. An error if there can never be room.
    pub async fn alloc_many(&self, capacities: &[usize]) -> Result<Vec<Buf>, OverLimit> {
        let mut waiting = Waiting::default();
        std::future::poll_fn(|cx| self.poll_alloc_many(cx, capacities, &mut waiting)).await
    }

    /// Poll form of [`Pool::alloc`]. `waiting` is the caller's position in the queue: kept from poll to poll, one for
    /// each request, and dropped to cancel the request.
    ///
    /// # Panics
    /// As [`Pool::try_alloc`].
    pub fn poll_alloc(&self, cx: &mut Context<'_>, capacity: usize, waiting: &mut Waiting) -> Poll<Buf> {
        if waiting.is_empty()
            && let Some(buf) = self.try_alloc(capacity)
        {
            return Poll::Ready(buf);
        }
        let order = order_of(capacity).expect("buffer request above MAX_BUF");
        self.poll_pieces(cx, &[order], waiting).map(|mut pieces| {
            let piece = pieces.pop().expect("one block was asked for");
            self.wrap(piece)
        })
    }

    /// Poll form of [`Pool::alloc_many`]; `waiting` as in [`Pool::poll_alloc`].
    pub fn poll_alloc_many(
        &self,
        cx: &mut Context<'_>,
        capacities: &[usize],
        waiting: &mut Waiting,
    ) -> Poll<Result<Vec<Buf>, OverLimit>> {
        let orders = match self.orders(capacities) {
            Ok(orders) => orders,
            Err(e) => return Poll::Ready(Err(e)),
        };
        self.poll_pieces(cx, &orders, waiting).map(|pieces| Ok(self.wrap_all(pieces)))
    }

    fn poll_pieces(&self, cx: &mut Context<'_>, orders: &[u8], waiting: &mut Waiting) -> Poll<Vec<Piece>> {
        if !waiting.is_for(&self.0, orders) {
            waiting.leave();
        }
        if let Some(id) = waiting.place() {
            let granted = self.memory().with(|budget, _, wakers| budget.fetch(id, cx.waker(), wakers));
            let Some(pieces) = granted else { return Poll::Pending };
            waiting.served();
            return Poll::Ready(pieces);
        }
        let share = self.0.share;
        let taken = self.memory().with(|budget, caches, wakers| {
            let taken = budget.try_take_all(share, orders, caches);
            taken.ok_or_else(|| budget.enter(share, orders.to_vec(), cx.waker().clone(), caches, wakers))
        });
        match taken {
            Ok(pieces) => Poll::Ready(pieces),
            Err(id) => {
                waiting.enter(QueuedRequest { share: self.0.clone(), id, orders: orders.to_vec() });
                Poll::Pending
            }
        }
    }

    fn orders(&self, capacities: &[usize]) -> Result<Vec<u8>, OverLimit> {
        let too_long = |wanted_bytes| OverLimit { wanted_bytes, limit_bytes: MAX_BUF };
        let order = |capacity: &usize| order_of(*capacity).ok_or_else(|| too_long(*capacity));
        let orders = capacities.iter().map(order).collect::<Result<Vec<u8>, _>>()?;
        let sizes = orders.iter().map(|order| MIN_BUF << order);
        let wanted_bytes = sizes.fold(0, |sum: usize, bytes| sum.saturating_add(bytes));
        let limit_bytes = self.memory().lock().attainable_bytes(self.0.share);
        if wanted_bytes > limit_bytes {
            return Err(OverLimit { wanted_bytes, limit_bytes });
        }
        Ok(orders)
    }

    /// Returns memory that was not needed lately to the system, and merges the caches' blocks: the memory of free
    /// buffers that exceeds the peak use since the last call. Must be called every few seconds.
    pub fn trim(&self) {
        let goal = self.memory().with(|budget, caches, wakers| {
            budget.collect(caches);
            // The system may have memory for a slab again.
            budget.serve(ROOT, caches, wakers);
            budget.take_peak()
        });
        loop {
            let mut budget = self.memory().lock();
            let excess = budget.arena.touched_bytes().saturating_sub(goal);
            if excess == 0 || budget.arena.punch(excess.min(TRIM_BYTES)) == 0 {
                return;
            }
        }
    }

    /// How often memory of free buffers was returned to the system. A registration that pins pages of more than one
    /// buffer is outdated if this has changed since it was made, because returned memory has other pages now.
    pub fn punches(&self) -> u64 {
        self.memory().mappings.punches()
    }

    /// Whether every buffer has been given back, and all memory is free slabs.
    pub fn is_whole(&self) -> bool {
        self.memory().with(|budget, caches, _| {
            budget.collect(caches);
            budget.arena.is_whole()
        })
    }

    /// A buffer with a copy of `bytes`. For headers and tests; payload is moved with [`super::copy`].
    pub fn buf_from(&self, bytes: &[u8]) -> Option<Buf> {
        let mut buf = self.try_alloc(bytes.len())?;
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        Some(buf)
    }

    /// The existing slabs, in order of their numbers: the shm provider passes them to its peer.
    pub fn slabs(&self) -> Vec<Arc<Mapping>> {
        self.memory().mappings.iter().cloned().collect()
    }

    /// Slab number `number`, if it exists.
    pub fn slab(&self, number: u32) -> Option<Arc<Mapping>> {
        self.memory().mappings.get(number).cloned()
    }

    /// The address range of the slab that contains `address`, if it belongs to this pool. Slabs stay mapped at least as
    /// long as the pool lives.
    pub fn slab_around(&self, address: usize) -> Option<Range<usize>> {
        let ranges = self.memory().mappings.iter().map(|mapping| {
            let base = mapping.base.as_ptr() as usize;
            base..base + mapping.len
        });
        ranges.into_iter().find(|range| range.contains(&address))
    }

    /// The position of `bytes` for a peer that maps our slabs, as in [`Buf::location`]; `None` if they are not in a
    /// buffer of this pool.
    pub fn location(&self, bytes: &Bytes) -> Option<(u32, u64)> {
        let start = bytes.as_ptr() as usize;
        self.memory().mappings.iter().zip(0..).find_map(|(mapping, number)| {
            let offset = start.checked_sub(mapping.base.as_ptr() as usize)?;
            let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= mapping.len);
            inside.then_some((number, offset as u64))
        })
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    fn wrap(&self, piece: Piece) -> Buf {
        let mapping = self.memory().mappings.get(piece.slab).expect("slabs stay");
        // SAFETY: the piece lies within its slab, so the pointer stays inside the mapping.
        let ptr = unsafe { mapping.base.add(piece.offset()) };
        let chunk = Chunk::Pooled { share: self.0.clone(), piece, start: ptr.as_ptr() as usize };
        Buf { chunk: Arc::new(chunk), ptr, cap: piece.bytes(), len: 0 }
    }

    fn wrap_all(&self, pieces: Vec<Piece>) -> Vec<Buf> {
        pieces.into_iter().map(|piece| self.wrap(piece)).collect()
    }
}

impl Buf {
    /// The position of this memory for a peer that maps our slabs; see [`Window::location`].
    pub fn location(&self, pool: &Pool) -> Option<(u32, u64)> {
        self.chunk.location(self.ptr, pool.memory())
    }
}

impl Window {
    /// The position of this memory for a peer that maps our slabs: (slab number, offset in it). `None` if it is not of
    /// `pool`.
    pub fn location(&self, pool: &Pool) -> Option<(u32, u64)> {
        self.chunk.location(self.ptr, pool.memory())
    }
}
