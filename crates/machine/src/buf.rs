//! Payload memory: page-aligned buffers cut from memfd slabs, and the one counted copy.
//!
//! Slabs are memfds so that the shm provider can hand them to a peer process of the same user. A buffer is either
//! exclusive ([`Buf`]: plain bytes) or shared ([`Window`]: memory that a peer, the kernel or another task may change at
//! any moment, and which therefore has no Rust reference). Reused buffers are not zeroed: a `Buf` of length n shows
//! only what its owner filled in.
//!
//! Sizes are powers of two from [`MIN_BUF`] to [`MAX_BUF`], so payloads start page-aligned. A copy whose ends differ by
//! 1 to 31 bytes modulo 4096 runs several times slower on common processors. A request larger than [`MAX_BUF`] is a
//! mistake of the caller and never succeeds.
//!
//! From the bottom up: `mapping` maps memory, `slab` tracks which pages of a memfd are free (`buddy`) and occupy
//! memory, `arena` combines slabs into one space, `budget` decides who may take of it and who is next, `cache` keeps
//! small blocks for each processor, `memory` is what buffers and waiting requests hold of a pool, and `pool` is the
//! interface.

mod arena;
mod buddy;
mod budget;
mod buffer;
mod cache;
mod mapping;
mod memory;
mod pool;
mod prefetch;
mod slab;
mod summed;
mod transfer;
mod waiting;

use std::cell::Cell;

pub use buffer::{Buf, Window};
pub use mapping::{Mapping, memfd};
pub use pool::{OverLimit, Pool};
pub use prefetch::prefetch;
pub use waiting::Waiting;

/// The largest buffer: one SMB Direct transfer of 8 MiB and room for its headers, one size up.
pub const MAX_BUF: usize = 16 << 20;
/// The smallest buffer.
pub const MIN_BUF: usize = 4096;
/// The address space of one slab. A page occupies memory only after it is touched.
const SLAB_BYTES: usize = 64 << 20;
/// The pages of a slab, each a smallest buffer.
const PAGES: usize = SLAB_BYTES / MIN_BUF;
/// Sizes double from `MIN_BUF` to `MAX_BUF`.
const CLASSES: usize = (MAX_BUF / MIN_BUF).trailing_zeros() as usize + 1;
/// Sizes that are cached, from the smallest: 4 to 64 KiB. The use of a larger buffer takes much longer than the lock.
const CACHED_ORDERS: usize = 5;

/// A buffer of `len` bytes is a block of 2^order pages.
fn order_of(len: usize) -> Option<u8> {
    (len <= MAX_BUF).then(|| (len.max(MIN_BUF).next_power_of_two() / MIN_BUF).trailing_zeros() as u8)
}

thread_local! {
    static COPIES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    COPIES.with(|c| {
        let (n, total) = c.get();
        c.set((n + 1, total + bytes as u64));
    });
}

/// The only copy of payload in Weft's own code. Everything that moves payload from buffer to buffer calls it (or
/// [`Window::place`]), so a test can assert the number of copies.
///
/// # Panics
/// If the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) {
    count(from.len());
    to.copy_from_slice(from);
}

/// The number of payload copies made by this thread since its start, and their bytes.
pub fn copies() -> (u64, u64) {
    COPIES.with(Cell::get)
}

#[cfg(test)]
mod tests;
