//! Measures what an allocation from the pool costs: instructions under `valgrind --tool=callgrind`, or time on several
//! threads.
//!
//! `pool_cost rounds N [threads]`: each thread allocates and frees N rounds of a mix as a server has it (mostly 4 to
//! 64 KiB, some of 1 MiB, eight alive at a time) and prints nanoseconds a pair. The memory is not touched.

use std::collections::VecDeque;
use std::time::Instant;

use weft_machine::Pool;

/// Sizes in the order of allocation.
const MIX: [usize; 8] = [4096, 8192, 4096, 65_536, 4096, 16_384, 8192, 1 << 20];
/// Live buffers per thread.
const ALIVE: usize = 8;

fn work(pool: &Pool, rounds: usize) {
    let mut alive = VecDeque::with_capacity(ALIVE);
    for round in 0..rounds {
        if alive.len() == ALIVE {
            alive.pop_front();
        }
        alive.push_back(pool.try_alloc(MIX[round % MIX.len()]).expect("a pool that is large enough"));
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let rounds = args.next().unwrap_or(1_000_000);
    let threads = args.next().unwrap_or(1);
    let pool = Pool::new(256 << 20);
    work(&pool, 1000);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&pool, rounds));
        }
    });
    println!("{:.1} ns a pair, {threads} threads", began.elapsed().as_nanos() as f64 / rounds as f64);
}
