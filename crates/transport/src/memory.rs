//! What a buffer costs the pool: the power of two that its length is rounded up to.

use weft_machine::buf::MIN_BUF;

/// What the pool counts for a buffer of `len` bytes.
pub(crate) fn counted_bytes(len: usize) -> usize {
    len.max(MIN_BUF).checked_next_power_of_two().unwrap_or(usize::MAX)
}

/// The same for several buffers.
pub(crate) fn counted_sum(lens: impl IntoIterator<Item = usize>) -> usize {
    lens.into_iter().fold(0, |sum: usize, len| sum.saturating_add(counted_bytes(len)))
}

#[cfg(test)]
mod tests {
    use weft_machine::Pool;
    use weft_machine::buf::MAX_BUF;

    use super::*;

    #[test]
    fn buffers_count_here_as_in_the_pool() {
        let pool = Pool::new(2 * MAX_BUF);
        let lens = [MAX_BUF / 4, MAX_BUF / 4 + 1, 1, 0];
        let bufs = pool.try_alloc_many(&lens).unwrap();
        assert_eq!(pool.in_use_bytes(), counted_sum(lens));
        assert_eq!(bufs[1].capacity(), counted_bytes(lens[1]));
        assert_eq!(counted_sum([usize::MAX, 1]), usize::MAX);
    }
}
