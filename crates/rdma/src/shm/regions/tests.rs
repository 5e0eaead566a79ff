use std::sync::atomic::AtomicBool;
use std::time::Instant;

use weft_machine::buf::MAX_BUF;

use super::super::layout::REGION_WORDS;
use super::*;

/// How long to wait for a stopped peer.
const LIMIT: Duration = Duration::from_secs(1);

/// A table and the peer's access to it.
struct Both {
    pool: Pool,
    table: RegionTable,
    reach: Reach,
    hazard: Word,
    ended: Word,
}

fn both(limit: usize) -> Both {
    let entries = Words::create("test", REGIONS * REGION_WORDS).unwrap();
    let (hazard, ended) =
        (Words::create("test", 1).unwrap().word(0), Words::create("test", 1).unwrap().word(0));
    Both {
        pool: Pool::new(MAX_BUF),
        table: RegionTable::new(entries.clone(), limit),
        reach: Reach::new(hazard.clone(), ended.clone(), entries),
        hazard,
        ended,
    }
}

impl Both {
    fn add(&mut self, len: usize, access: Access) -> Segment {
        let mut buf = self.pool.try_alloc(len).unwrap();
        buf.set_len(len);
        self.table.add(&self.pool, buf, access).unwrap()
    }

    fn take(&mut self, stag: Stag) -> Option<Window> {
        let taken = self.table.take(stag, &self.hazard, LIMIT, || false)?;
        Some(window(taken.unwrap()))
    }

    fn denial(&self, segment: Segment, len: usize, access: Access) -> Option<Denied> {
        self.reach.region(segment, len, access).err()
    }
}

const WRITE: Access = Access::RemoteWrite;
const READ: Access = Access::RemoteRead;

fn window(held: Held) -> Window {
    match held {
        Held::Window(window) => window,
        Held::Lent(_) => panic!("lent"),
    }
}

#[test]
fn access_is_checked_for_stag_rights_and_bounds() {
    let mut both = both(8);
    let segment = both.add(100, WRITE);
    let refused = |refusal| Some(Denied::Refused(refusal));
    assert_eq!(both.denial(segment, 100, WRITE), None);
    assert_eq!(both.denial(segment, 0, WRITE), None);
    assert_eq!(both.denial(segment, 100, READ), refused(Refusal::Access));
    assert_eq!(both.denial(segment, 101, WRITE), refused(Refusal::Bounds));
    let at = |offset| Segment { offset, ..segment };
    assert_eq!(both.denial(at(1), 99, WRITE), None);
    assert_eq!(both.denial(at(1), 100, WRITE), refused(Refusal::Bounds));
    assert_eq!(both.denial(at(101), 0, WRITE), refused(Refusal::Bounds));
    assert_eq!(both.denial(at(u64::MAX), 1, WRITE), refused(Refusal::Bounds));
    for wrong in [0, 1, segment.stag.0 ^ 1, segment.stag.0 ^ 1 << 31, u32::MAX] {
        let wrong = Segment { stag: Stag(wrong), ..segment };
        assert_eq!(both.denial(wrong, 1, WRITE), refused(Refusal::InvalidStag), "{wrong:?}");
    }
    assert_eq!(both.hazard.load(Ordering::Relaxed), 0, "nobody stays inside");
}

#[test]
fn a_region_taken_back_or_revoked_is_gone_and_its_index_returns_under_another_stag() {
    let mut both = both(1);
    let first = both.add(10, READ);
    assert!(matches!(
        both.table.add(&both.pool, both.pool.try_alloc(1).unwrap(), READ),
        Err(PostError::RegionsFull(1))
    ));
    both.table.revoke(first.stag);
    assert_eq!(both.denial(first, 1, READ), Some(Denied::Refused(Refusal::InvalidStag)));
    assert!(both.table.holds(first.stag), "its owner has not taken it yet");
    assert_eq!(both.take(first.stag).unwrap().len(), 10);
    assert!(both.take(first.stag).is_none());
    let second = both.add(10, READ);
    assert_ne!(first.stag, second.stag);
    assert_eq!(first.stag.0 & 0xfff, second.stag.0 & 0xfff);
    assert_eq!(both.denial(first, 1, READ), Some(Denied::Refused(Refusal::InvalidStag)));
    assert!(both.take(first.stag).is_none());
    assert_eq!(both.denial(second, 1, READ), None);
}

#[test]
fn stags_do_not_repeat_soon() {
    let mut both = both(2);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..10_000 {
        let segment = both.add(1, READ);
        assert!(seen.insert(segment.stag), "{:?} again", segment.stag);
        assert!(both.take(segment.stag).is_some());
    }
}

#[test]
fn the_peer_invalidates_only_what_it_could_access() {
    let mut both = both(8);
    let segment = both.add(10, WRITE);
    assert!(!both.reach.invalidate(Stag(segment.stag.0 ^ 1 << 20)));
    assert!(both.reach.invalidate(segment.stag));
    assert!(!both.reach.invalidate(segment.stag), "only once");
    assert_eq!(both.denial(segment, 1, WRITE), Some(Denied::Refused(Refusal::InvalidStag)));
    assert!(both.take(segment.stag).is_some());
}

#[test]
fn memory_of_another_pool_is_refused() {
    let mut both = both(8);
    let foreign = Pool::new(MAX_BUF).try_alloc(1).unwrap();
    assert!(matches!(both.table.add(&both.pool, foreign, READ), Err(PostError::Misuse(_))));
    let free = both.add(1, READ);
    assert_eq!(both.denial(free, 1, READ), None, "the refusal used nothing up");
}

#[test]
fn who_has_ended_is_not_accessed() {
    let mut both = both(8);
    let segment = both.add(10, WRITE);
    assert!(both.reach.receive_buffers().is_ok());
    both.ended.store(1, Ordering::Release);
    assert_eq!(both.denial(segment, 1, WRITE), Some(Denied::Ended));
    assert!(matches!(both.reach.receive_buffers(), Err(Denied::Ended)));
}

#[test]
fn a_dead_peer_is_not_waited_for_and_a_stopped_one_not_forever() {
    let mut both = both(8);
    let segment = both.add(10, WRITE);
    let other = both.add(10, WRITE);
    let (inside, _) = both.reach.region(segment, 10, WRITE).unwrap();
    // Still inside, and it never leaves.
    std::mem::forget(inside);
    let start = Instant::now();
    assert!(both.take(other.stag).is_some(), "another region is not waited for");
    assert!(start.elapsed() < LIMIT);
    assert!(matches!(both.table.take(segment.stag, &both.hazard, LIMIT, || true), Some(Ok(_))));
    assert!(start.elapsed() < LIMIT);

    let segment = both.add(10, WRITE);
    let (inside, _) = both.reach.region(segment, 10, WRITE).unwrap();
    std::mem::forget(inside);
    assert!(matches!(both.table.take(segment.stag, &both.hazard, LIMIT, || false), Some(Err((Stuck, _)))));
}

/// Tells the writer to stop, also when an assertion fails, because a scope waits for its threads.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The central property: while one thread writes whenever the table allows it, the owner takes the region back at a
/// random moment; from then on not a byte may change.
#[test]
fn nothing_is_placed_after_a_region_was_taken_back() {
    const ROUNDS: usize = 1_000;
    // A copy of this length takes so long that the owner nearly always interrupts one.
    const LEN: usize = 256 << 10;
    let Both { pool, mut table, reach, hazard, .. } = both(4);
    // The peer sees the memory through its own mapping, as another process would.
    drop(pool.try_alloc(1));
    let fd = std::os::fd::AsFd::as_fd(&*pool.slab(0).unwrap()).try_clone_to_owned().unwrap();
    let slab = Window::over(weft_machine::shm::adopt(fd, 1, usize::MAX).unwrap().into());
    let current = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each access writes another value over the whole region, first byte to last.
            let values: Vec<Vec<u8>> = (1..=16).map(|value| vec![value; LEN]).collect();
            for mine in values.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let stag = Stag(current.load(Ordering::Relaxed) as u32);
                let segment = Segment { stag, offset: 0, len: LEN as u32 };
                if let Ok((_inside, place)) = reach.region(segment, LEN, WRITE) {
                    assert!(slab.write_at(place.offset as usize, mine));
                    placed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _stop = StopOnDrop(&done);
        for round in 0..ROUNDS {
            let mut buf = pool.try_alloc(LEN).unwrap();
            buf.set_len(LEN);
            buf.fill(0x55);
            let segment = table.add(&pool, buf, WRITE).unwrap();
            let before = placed.load(Ordering::Relaxed);
            current.store(u64::from(segment.stag.0), Ordering::Relaxed);
            if round % 2 == 0 {
                // Waits until the peer is writing.
                while placed.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            let window = window(table.take(segment.stag, &hazard, LIMIT, || false).unwrap().unwrap());
            let buf = window.try_into_buf().unwrap();
            // An access that was admitted has ended, so its value is everywhere; and the content no longer changes.
            let last = buf[LEN - 1];
            let whole = vec![last; LEN];
            assert!(buf[..] == whole[..], "round {round}: taken back in the middle of an access");
            std::thread::yield_now();
            assert!(buf[..] == whole[..], "round {round}: placed after the region was taken back");
        }
    });
    assert!(placed.into_inner() > 0);
}
