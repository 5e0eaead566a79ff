//! However buffers come and go, the slabs occupy no more memory than the limit, and everything merges again.

use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;

/// What the kernel holds for the slabs.
fn held(pool: &Pool) -> usize {
    let bytes = |mapping: &Arc<Mapping>| rustix::fs::fstat(mapping.as_fd()).unwrap().st_blocks as usize * 512;
    pool.slabs().iter().map(bytes).sum()
}

/// Writes to every page, so that the kernel holds memory for all of it.
fn touch(buf: &mut Buf) {
    buf.room().chunks_mut(MIN_BUF).for_each(|page| page[0] = 1);
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    TakeMany(Vec<usize>),
    /// Frees one of the live buffers.
    Free(usize),
    /// Frees every nth of the live buffers, which leaves gaps.
    Sieve(usize),
    Trim,
}

fn size() -> impl Strategy<Value = usize> {
    // Each power of two is as likely as the others.
    (0..=24u32, any::<u32>()).prop_map(|(log, low)| (1 << log) - (low as usize % (1 << log)) / 2)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => size().prop_map(Step::Take),
        2 => prop::collection::vec(size(), 1..4).prop_map(Step::TakeMany),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (2..5usize).prop_map(Step::Sieve),
        1 => Just(Step::Trim),
    ]
}

/// No two live buffers overlap.
fn apart(alive: &[Buf]) -> bool {
    let mut ranges: Vec<(usize, usize)> =
        alive.iter().map(|buf| (buf.as_ptr() as usize, buf.as_ptr() as usize + buf.capacity())).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|two| two[0].1 <= two[1].0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn memory_stays_within_the_limit(
        limit in prop_oneof![Just(MAX_BUF), Just(3 * MAX_BUF + MIN_BUF), Just(100 << 20)],
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let pool = Pool::new(limit);
        let mut alive: Vec<Buf> = Vec::new();
        let mut in_use = 0;
        let mut within = |alive: &mut Vec<Buf>, taken: Option<Vec<Buf>>, wanted: usize| {
            let room = in_use + wanted <= limit;
            prop_assert_eq!(taken.is_some(), room, "a request waits for bytes only");
            for mut buf in taken.unwrap_or_default() {
                touch(&mut buf);
                alive.push(buf);
            }
            in_use = alive.iter().map(Buf::capacity).sum();
            prop_assert_eq!(pool.in_use_bytes(), in_use);
            prop_assert!(pool.resident_bytes() <= limit);
            Ok(())
        };
        let counted = |size: usize| size.max(MIN_BUF).next_power_of_two();
        for step in steps {
            match step {
                Step::Take(size) => {
                    let taken = pool.try_alloc(size).map(|buf| vec![buf]);
                    within(&mut alive, taken, counted(size))?;
                }
                Step::TakeMany(sizes) => {
                    let taken = pool.try_alloc_many(&sizes);
                    within(&mut alive, taken, sizes.into_iter().map(counted).sum())?;
                }
                Step::Free(which) if !alive.is_empty() => drop(alive.swap_remove(which % alive.len())),
                Step::Free(_) => {}
                Step::Sieve(nth) => {
                    let mut number = 0;
                    alive.retain(|_| { number += 1; number % nth == 0 });
                }
                Step::Trim => pool.trim(),
            }
            within(&mut alive, Some(Vec::new()), 0)?;
        }
        prop_assert!(apart(&alive));
        prop_assert!(held(&pool) <= pool.resident_bytes(), "nothing takes memory that is not counted");
        drop(alive);
        prop_assert!(pool.is_whole());
        pool.trim();
        pool.trim();
        prop_assert_eq!((pool.resident_bytes(), held(&pool)), (0, 0));
    }
}

/// This took 1.36 GiB with a limit of 256 MiB: each size in turn takes everything.
#[test]
fn sizes_serve_each_other() {
    let limit = 4 * MAX_BUF;
    let pool = Pool::new(limit);
    for log in (MIN_BUF.ilog2()..=MAX_BUF.ilog2()).chain([MIN_BUF.ilog2()]) {
        let mut all: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(1 << log)).collect();
        assert_eq!(all.len(), limit >> log);
        all.iter_mut().for_each(touch);
        assert!(held(&pool) <= limit, "{} bytes after buffers of {}", held(&pool), 1 << log);
    }
    assert_eq!(pool.slabs().len(), 1);
    assert!(pool.is_whole());
}

/// One page in each large block is in use: large requests still find a place, and the gaps occupy no memory.
#[test]
fn gaps_cost_addresses_and_no_memory() {
    let limit = 4 * MAX_BUF;
    let pool = Pool::new(limit);
    let mut kept = Vec::new();
    for log in MIN_BUF.ilog2()..MAX_BUF.ilog2() {
        let mut some: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(1 << log)).collect();
        some.iter_mut().for_each(touch);
        // One of each pair of neighbours stays, up to half of the limit.
        let mut number = 0;
        some.retain(|_| {
            number += 1;
            number % 2 == 0 && (log < 20 || number % 8 == 0)
        });
        let room = (limit / 2).saturating_sub(pool.in_use_bytes() - some.len() * (1 << log));
        some.truncate(room >> log);
        kept.extend(some);
        assert!(held(&pool) <= limit);
    }
    let room = (limit - pool.in_use_bytes()) / MAX_BUF;
    let mut large: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(MAX_BUF)).collect();
    assert!(room > 0 && pool.slabs().len() > 1);
    assert_eq!(large.len(), room);
    large.iter_mut().for_each(touch);
    assert!(held(&pool) <= limit);
}

#[test]
fn memory_that_is_no_longer_needed_goes_back_after_a_while() {
    let pool = Pool::new(8 * MAX_BUF);
    let mut all = pool.try_alloc_many(&[MAX_BUF; 6]).unwrap();
    all.iter_mut().for_each(touch);
    all.truncate(1);
    let before = pool.punches();
    pool.trim();
    assert_eq!(held(&pool), 6 * MAX_BUF, "it was needed since the last time");
    assert_eq!(pool.punches(), before);
    let again = pool.try_alloc(MAX_BUF).unwrap();
    drop(again);
    pool.trim();
    assert_eq!(held(&pool), 2 * MAX_BUF);
    assert!(pool.punches() > before);
    pool.trim();
    assert_eq!(held(&pool), MAX_BUF, "what is in use stays");
    assert_eq!(all[0].room()[MAX_BUF - MIN_BUF], 1);
}
