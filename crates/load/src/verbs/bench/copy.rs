//! memcpy over the same buffers that Writes over shared memory use.
//!
//! It owns the buffers while it runs. These are not counted as payload copies.

use std::hint::black_box;
use std::time::{Duration, Instant};

use weft_machine::{Buf, Pool};

use crate::verbs::end::EndError;
use crate::verbs::pace::Pace;

/// Bytes per second of copies of `size` bytes from one of `slots` buffers to one of as many others, for `time`.
pub fn measure(pool: &Pool, size: usize, slots: usize, time: Duration) -> Result<f64, EndError> {
    let buffers = |fill: u8| -> Result<Vec<Buf>, EndError> {
        (0..slots)
            .map(|_| {
                let mut buf = pool.try_alloc(size).ok_or(EndError::Memory)?;
                buf.set_len(size);
                buf.fill(fill);
                Ok(buf)
            })
            .collect()
    };
    let (from, mut to) = (buffers(1)?, buffers(2)?);
    let started = Instant::now();
    let (begin, end) = (started + Pace::warm_up(time), started + Pace::warm_up(time) + time);
    let (mut copies, mut counted_from) = (0u64, None);
    loop {
        for (from, to) in from.iter().zip(&mut to) {
            black_box(&mut **to).copy_from_slice(black_box(&**from));
        }
        let now = Instant::now();
        match counted_from {
            None if now >= begin => counted_from = Some(now),
            None => {}
            Some(counted_from) => {
                copies += slots as u64;
                if now >= end {
                    return Ok((copies * size as u64) as f64 / (now - counted_from).as_secs_f64());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_a_speed() {
        let pool = Pool::new(8 << 20);
        let rate = measure(&pool, 65_536, 8, Duration::from_millis(10)).unwrap();
        assert!(rate > 1e6, "{rate}");
        assert!(measure(&pool, 4 << 20, 8, Duration::from_millis(1)).is_err());
    }
}
