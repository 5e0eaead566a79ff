//! Payload memory: page-aligned buffers cut from memfd slabs, and the one counted copy.
//!
//! Slabs are memfds so that the shm provider can hand them to a peer process of the same user. A buffer is either
//! exclusive ([`Buf`]: plain bytes) or shared ([`Window`]: memory that a peer, the kernel or another task may change
//! at any moment, therefore never seen as a Rust reference). Reused buffers are not zeroed: a `Buf` of length n shows only
//! what its owner filled in.
//!
//! Sizes are powers of two from [`MIN_BUF`] to [`MAX_BUF`], so payloads start page-aligned. A copy whose ends differ by
//! 1 to 31 bytes modulo 4096 runs several times slower on common processors. A request larger than [`MAX_BUF`] is the
//! caller's fault and never succeeds.
//!
//! From the system up: `mapping` maps memory, `slab` knows which pages of a memfd are free (`buddy`) and take memory,
//! `arena` makes one space of them, `budget` says who may take of it and who is next, `cache` keeps small blocks for each
//! processor, and `pool` is what others see.

mod arena;
mod buddy;
mod budget;
mod buffer;
mod cache;
mod mapping;
mod pool;
mod prefetch;
mod slab;
mod summed;
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
/// How much memory one slab maps. Pages are taken from the system only when they are touched.
const SLAB_BYTES: usize = 64 << 20;
/// The pages of a slab, each a smallest buffer.
const PAGES: usize = SLAB_BYTES / MIN_BUF;
/// Sizes double from `MIN_BUF` to `MAX_BUF`.
const CLASSES: usize = (MAX_BUF / MIN_BUF).trailing_zeros() as usize + 1;
/// Sizes that the caches keep, from the smallest: 4 to 64 KiB. What larger ones are used for takes much longer than the lock.
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

/// The one copy of payload in Weft's own code. Everything that moves payload from buffer to buffer calls it (or
/// [`Window::place`]), so a test can assert how often that happens.
///
/// # Panics
/// When the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) {
    count(from.len());
    to.copy_from_slice(from);
}

/// How many payload copies this thread has made, and of how many bytes, since it started.
pub fn copies() -> (u64, u64) {
    COPIES.with(Cell::get)
}

#[cfg(test)]
mod tests;
