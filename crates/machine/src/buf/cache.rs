//! Keeps small blocks that were just given back for the next request on the same thread.
//!
//! Most requests are served here, without the pool's lock and the walk through a slab. Cached blocks count as taken
//! from the whole pool, and are collected as soon as a request does not find enough.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arena::Piece;
use super::{CACHED_ORDERS, MIN_BUF};

/// Blocks of each size on a shelf.
const DEPTH: usize = 16;
/// The most that a shelf holds: sixteen blocks of each size from 4 to 64 KiB.
const SHELF_BYTES: usize = DEPTH * MIN_BUF * ((1 << CACHED_ORDERS) - 1);
/// All shelves together hold at most one in this many of the limit's bytes.
const SHARE: usize = 8;

/// One shelf for each processor, or half as many: a power of two. Threads are assigned to shelves in turn.
pub(super) struct Caches {
    shelves: Box<[Shelf]>,
    /// Set while a request waits for memory of the whole pool: then nothing is cached.
    closed: AtomicBool,
}

/// Aligned so that two processors share neither a cache line nor the line prefetched with it.
#[repr(align(128))]
struct Shelf(Mutex<[Stack; CACHED_ORDERS]>);

#[derive(Clone, Copy)]
struct Stack {
    pieces: [Option<Piece>; DEPTH],
    len: usize,
}

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread among the callers of this function, from 1.
#[inline]
fn thread() -> usize {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(1 + ASKED.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl Caches {
    pub(super) fn new(limit_bytes: usize) -> Caches {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let shelves = 1 << processors.min(limit_bytes / SHARE / SHELF_BYTES).max(1).ilog2();
        let shelf = || Shelf(Mutex::new([Stack { pieces: [None; DEPTH], len: 0 }; CACHED_ORDERS]));
        Caches { shelves: (0..shelves).map(|_| shelf()).collect(), closed: AtomicBool::new(false) }
    }

    fn own(&self) -> MutexGuard<'_, [Stack; CACHED_ORDERS]> {
        self.shelves[thread() & (self.shelves.len() - 1)].lock()
    }

    /// A cached block of `order < CACHED_ORDERS`.
    pub(super) fn take(&self, order: u8) -> Option<Piece> {
        self.own()[usize::from(order)].pop()
    }

    /// Keeps a block of `order < CACHED_ORDERS`; false if there is no room for it.
    ///
    /// `closed` is checked under the shelf's lock. Whoever sets it collects from every shelf afterwards, so a block is
    /// either collected, or this sees the flag: none is left here while a request waits for it.
    pub(super) fn keep(&self, piece: Piece) -> bool {
        let mut shelf = self.own();
        !self.closed.load(Ordering::Relaxed) && shelf[usize::from(piece.order)].push(piece)
    }

    /// Disables or enables caching; returns the former state. The caller holds the pool's lock.
    pub(super) fn close(&self, closed: bool) -> bool {
        self.closed.swap(closed, Ordering::Relaxed)
    }

    /// Takes all cached blocks.
    pub(super) fn collect(&self, mut each: impl FnMut(Piece)) {
        for shelf in &self.shelves {
            for stack in shelf.lock().iter_mut() {
                while let Some(piece) = stack.pop() {
                    each(piece);
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let of_shelf = |shelf: &Shelf| -> usize {
            let stacks = shelf.lock();
            stacks.iter().zip(0..).map(|(stack, order)| stack.len * (MIN_BUF << order)).sum()
        };
        self.shelves.iter().map(of_shelf).sum()
    }
}

impl Shelf {
    // Nothing panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, [Stack; CACHED_ORDERS]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stack {
    fn pop(&mut self) -> Option<Piece> {
        self.len = self.len.checked_sub(1)?;
        self.pieces[self.len].take()
    }

    fn push(&mut self, piece: Piece) -> bool {
        let Some(place) = self.pieces.get_mut(self.len) else { return false };
        *place = Some(piece);
        self.len += 1;
        true
    }
}
