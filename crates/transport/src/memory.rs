//! Several buffers of the pool at once: all of them, or none while there are too few.
//!
//! Whoever holds some buffers while it waits for others can block, and be blocked by, its neighbours for ever. So the wait is for
//! the sum, and nothing is held meanwhile.
//! Owns: nothing. Does not: decide how much a connection may ask for.

use std::task::{Context, Poll};

use weft_machine::buf::{MAX_BUF, MIN_BUF};
use weft_machine::{Buf, Pool};

/// What the pool counts for a buffer of `len` bytes: its whole size class.
pub(crate) fn counted_bytes(len: usize) -> usize {
    len.max(MIN_BUF).checked_next_power_of_two().unwrap_or(usize::MAX)
}

/// The same for several buffers.
pub(crate) fn counted_sum(lens: impl IntoIterator<Item = usize>) -> usize {
    lens.into_iter().fold(0, |sum: usize, len| sum.saturating_add(counted_bytes(len)))
}

/// Buffers for these lengths, in this order. `Pending` holds nothing: `cx` is woken when there may be room for all.
/// Their [`counted_sum`] is at most [`MAX_BUF`].
pub(crate) fn poll_buffers(pool: &Pool, cx: &mut Context<'_>, lens: &[usize]) -> Poll<Vec<Buf>> {
    if let [len] = lens {
        return pool.poll_alloc(cx, *len).map(|buf| vec![buf]);
    }
    debug_assert!(counted_sum(lens.iter().copied()) <= MAX_BUF);
    // A buffer as large as all of them shows that there is room, and is cut no further: it goes back first.
    let room = counted_sum(lens.iter().copied()).min(MAX_BUF);
    drop(std::task::ready!(pool.poll_alloc(cx, room)));
    match lens.iter().map(|len| pool.try_alloc(*len)).collect::<Option<Vec<_>>>() {
        Some(bufs) => Poll::Ready(bufs),
        None => {
            // Another core was quicker. What was found goes back, and this core's other tasks have a turn before the next try.
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wait_is_for_the_sum_and_holds_nothing() {
        let pool = Pool::new(MAX_BUF);
        let mut cx = Context::from_waker(Waker::noop());
        let taken = pool.try_alloc(MAX_BUF / 2 + 1 - MIN_BUF).unwrap();
        assert_eq!(counted_bytes(taken.capacity()), MAX_BUF / 2);
        let lens = [MAX_BUF / 4, MAX_BUF / 4, 1];
        assert!(poll_buffers(&pool, &mut cx, &lens).is_pending());
        assert_eq!(pool.in_use_bytes(), MAX_BUF / 2);
        drop(taken);
        let Poll::Ready(bufs) = poll_buffers(&pool, &mut cx, &lens) else { panic!("there is room") };
        assert_eq!(bufs.iter().map(Buf::capacity).collect::<Vec<_>>(), [MAX_BUF / 4, MAX_BUF / 4, MIN_BUF]);
        assert_eq!(pool.in_use_bytes(), counted_sum(lens));
    }
}
