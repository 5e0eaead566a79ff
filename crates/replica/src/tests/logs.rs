//! The ring by itself: what is there again after a crash, however much of the end was written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::Pool;
use weft_machine::sim::Sim;
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::control::Era;

use crate::error::Damage;
use crate::fuzz::disk::Disk;
use crate::journal::{LogMemory, Names, Side, Wall};
use crate::log::{KEPT_PART, LEAST_KEPT, Log};
use crate::record::{Header, Kind, Record, SECTOR, sum_of};
use crate::state::{Layout, Member, State, Tail};
use crate::status::Role;

const RING: u64 = 16 * SECTOR as u64;

fn state(tail: Tail, life: u64) -> State {
    let era = Era { epoch: 1, tag: 1, after: 0 };
    State {
        generation: 2,
        partnership: [0; 16],
        role: Role::Source,
        consistent: true,
        gave_up: false,
        holds: true,
        closed: false,
        damaged: false,
        ahead: false,
        unfinished: false,
        claimed: 0,
        told: 0,
        set_back: None,
        set_back_by: None,
        log: 5,
        life,
        tail,
        layout: Layout { bitmap_bytes: 4096, log_at: 0, log_bytes: RING },
        promised: era,
        eras: vec![era],
        members: vec![Member { size: 1 << 20, granule: 65536 }],
        peers: Vec::new(),
    }
}

const START: Tail = Tail { position: 0, sequence: 1, life: 1 };

struct Ring {
    disk: Disk,
    block: Arc<dyn Block>,
    pool: Pool,
    log_memory: LogMemory,
}

impl Ring {
    fn new() -> Ring {
        let disk = Disk::new(vec![0xee; RING as usize], Duration::ZERO);
        Ring { block: disk.open(), disk, pool: Pool::new(0), log_memory: LogMemory::default() }
    }

    fn side(&self) -> Side {
        Side {
            journal: self.block.clone(),
            members: Vec::new(),
            pool: self.pool.clone(),
            log_memory: self.log_memory.clone(),
            wall: Wall::new(0),
            names: Names::new("db", []),
            draw: 1,
        }
    }

    /// The log and the first byte of every record in it.
    async fn open(&self, tail: Tail, life: u64) -> (Log, Vec<u8>) {
        let (log, found, damage) = self.look(tail, life).await;
        assert_eq!(damage, None);
        (log, found)
    }

    /// The same, where it may be damaged.
    async fn look(&self, tail: Tail, life: u64) -> (Log, Vec<u8>, Option<Damage>) {
        let mut found = Vec::new();
        let state = state(tail, life);
        let side = self.side();
        let log = Log::open(&side, &state, life, 4096, async |record: Record| {
            found.push(record.payload.first().map_or(0, |bytes| bytes[0]));
            Ok(())
        });
        let (log, damage) = log.await.expect("it opens");
        (log, found, damage)
    }

    async fn spoil(&self, sector: u64) {
        let data = vec![Bytes::from_static(&[0xdd; SECTOR])];
        let offset = sector * SECTOR as u64;
        self.block.submit(BlockOp::Write { offset, data, durable: true }).await.expect("it is written");
    }
}

fn record(byte: u8, sectors: usize) -> Record {
    let payload = vec![Bytes::from(vec![byte; sectors * SECTOR])];
    let kind = Kind::Write { len: (sectors * SECTOR) as u32, sum: sum_of(&payload) };
    let header = Header {
        log: 0,
        life: 0,
        epoch: 1,
        sequence: 0,
        member: 0,
        offset: 0,
        unix_ms: 0,
        settled: 0,
        claimed: 0,
        kind,
    };
    Record { header, payload }
}

/// Several records in one batch.
async fn append_together(log: &Log, bytes: &[u8]) {
    for byte in bytes {
        log.place(record(*byte, 1)).expect("there is room");
    }
    assert!(log.claim_writer());
    while log.write_next().await.is_some() {}
}

async fn append(log: &Log, byte: u8, sectors: usize) -> Option<u64> {
    let sequence = log.place(record(byte, sectors)).ok()?;
    assert!(log.claim_writer());
    while log.write_next().await.is_some() {}
    Some(sequence)
}

#[test]
fn of_a_torn_end_nothing_is_taken_for_a_record() {
    Sim::new(1).run(async {
        // 1 takes the sectors 0 and 1, 2 those from 2 to 4, 3 those from 5 to 8: any of them may be missing.
        for spoilt in 5..9 {
            let ring = Ring::new();
            let (log, found) = ring.open(START, 1).await;
            assert!(found.is_empty());
            for byte in 1..=3 {
                append(&log, byte, usize::from(byte)).await.expect("there is room");
            }
            assert_eq!(ring.open(START, 2).await.1, [1, 2, 3]);
            ring.spoil(spoilt).await;
            assert_eq!(ring.open(START, 2).await.1, [1, 2]);
        }
    });
}

#[test]
fn damage_before_what_was_durable_later_is_no_end() {
    Sim::new(1).run(async {
        // 1 takes the sectors 0 and 1, 2 those from 2 to 4, 3 those from 5 to 8; whatever is damaged before 3 is known
        // to have been there. Before 2 it is known of 1 alone: 3 was never made durable before something else.
        for (spoilt, first) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 2)] {
            for unreadable in [false, true] {
                let ring = Ring::new();
                let (log, _) = ring.open(START, 1).await;
                for byte in 1..=3 {
                    append(&log, byte, usize::from(byte)).await.expect("there is room");
                }
                match unreadable {
                    true => ring.disk.fail(spoilt * SECTOR),
                    false => ring.spoil(spoilt as u64).await,
                }
                let before: Vec<u8> = (1..first as u8).collect();
                let (log, found, damage) = ring.look(START, 2).await;
                assert_eq!(
                    (found, damage),
                    (before.clone(), Some(Damage { first, last: 3 })),
                    "sector {spoilt}"
                );
                // Whoever goes on from there does not meet it again.
                let tail = log.tail_after(first - 1);
                log.free_through(first - 1);
                append(&log, 40, 4).await.expect("there is room");
                assert_eq!(ring.open(Tail { life: 2, ..tail }, 3).await.1, [40]);
            }
        }
    });
}

#[test]
fn what_cannot_be_read_at_the_end_is_damage_and_what_can_is_an_end() {
    Sim::new(1).run(async {
        let ring = Ring::new();
        let (log, _) = ring.open(START, 1).await;
        append(&log, 1, 1).await.expect("there is room");
        // Free space that was never written to: nobody can say that nothing was there.
        ring.disk.fail(2 * SECTOR);
        assert_eq!(ring.look(START, 2).await.2, Some(Damage { first: 2, last: 2 }));
        // Unless it was closed.
        let tail = log.tail_after(1);
        let closed = State { closed: true, ..state(tail, 2) };
        let side = ring.side();
        let opened = Log::open(&side, &closed, 2, 4096, async |_| panic!("it is empty"));
        assert_eq!(opened.await.expect("it opens").1, None);
        // A disk gives a sector that is written to another place.
        append(&log, 2, 1).await.expect("there is room");
        assert_eq!(ring.open(START, 2).await.1, [1, 2]);
    });
}

#[test]
fn of_a_batch_that_was_torn_what_came_through_is_no_sign_of_damage() {
    Sim::new(1).run(async {
        for spoilt in [2, 3, 4, 5, 6, 7] {
            let ring = Ring::new();
            let (log, _) = ring.open(START, 1).await;
            append(&log, 1, 1).await.expect("there is room");
            append_together(&log, &[2, 3, 4]).await;
            ring.spoil(spoilt).await;
            // 2 lies at 2 and 3, 3 at 4 and 5: what follows the lost one was written beside it.
            let whole: Vec<u8> = (1..=(spoilt / 2) as u8).collect();
            assert_eq!(ring.open(START, 2).await.1, whole, "sector {spoilt}");
        }
    });
}

#[test]
fn a_write_that_went_elsewhere_is_missed() {
    Sim::new(1).run(async {
        // The second record lands on the first, or behind the third.
        for to in [0, 10 * SECTOR] {
            let ring = Ring::new();
            let (log, _) = ring.open(START, 1).await;
            append(&log, 1, 1).await.expect("there is room");
            ring.disk.misdirect(to);
            append(&log, 2, 1).await.expect("there is room");
            append(&log, 3, 1).await.expect("there is room");
            let (_, found, damage) = ring.look(START, 2).await;
            let first = if to == 0 { 1 } else { 2 };
            assert_eq!(damage, Some(Damage { first, last: 3 }), "to {to}");
            assert_eq!(found.len() as u64, first - 1);
        }
    });
}

#[test]
fn damage_is_found_all_around_the_ring() {
    Sim::new(1).run(async {
        for sectors in [2u64, 3] {
            for laps in 0..12u8 {
                let ring = Ring::new();
                let (log, _) = ring.open(START, 1).await;
                let mut tail = START;
                let mut next = 1;
                // Two are held, whereever they lie.
                for byte in 1..=2 + laps {
                    append(&log, byte, sectors as usize - 1).await.expect("two fit");
                    next += 1;
                    if next > 3 {
                        tail = log.tail_after(next - 3);
                        log.free_through(next - 3);
                    }
                }
                let at = log.headers(next - 2, next - 2);
                assert_eq!(at.len(), 1);
                let content = ring.disk.content();
                let is_first = |at: &usize| {
                    Header::parse(&content[*at..])
                        .is_ok_and(|h| h.sequence == next - 2 && h.kind != Kind::Pad)
                };
                let place = (0..RING as usize).step_by(SECTOR).find(is_first).expect("it lies there");
                ring.spoil((place / SECTOR) as u64).await;
                let damage = ring.look(tail, 2).await.2;
                assert_eq!(damage, Some(Damage { first: next - 2, last: next - 1 }), "{sectors}, {laps}");
            }
        }
    });
}

#[test]
fn what_lay_behind_a_lost_record_does_not_come_back_behind_its_successor() {
    Sim::new(1).run(async {
        let ring = Ring::new();
        let (log, _) = ring.open(START, 1).await;
        append(&log, 1, 1).await.expect("there is room");
        append_together(&log, &[2, 3]).await;
        // The second was lost, the third was not: a disk may write in any order.
        ring.spoil(2).await;
        let (log, found) = ring.open(START, 2).await;
        assert_eq!(found, [1]);
        append(&log, 20, 1).await.expect("there is room");
        // In the place of the lost one, as long, and followed by what has the next sequence.
        assert_eq!(ring.open(START, 3).await.1, [1, 20]);
    });
}

#[test]
fn a_ring_goes_round_and_never_over_what_it_holds() {
    Sim::new(1).run(async {
        let ring = Ring::new();
        let (log, _) = ring.open(START, 1).await;
        let mut tail = START;
        let (mut oldest, mut next) = (1u8, 1u8);
        for round in 0..60usize {
            let sectors = 1 + round * 7 % 5;
            while append(&log, next, sectors).await.is_none() {
                // Full: the oldest goes, which the state has to know first.
                tail = log.tail_after(oldest.into());
                log.free_through(oldest.into());
                oldest += 1;
            }
            next += 1;
            let held: Vec<u8> = (oldest..next).collect();
            assert_eq!(ring.open(tail, 2).await.1, held, "round {round}");
            for sequence in oldest..next {
                let read = log.record(sequence.into()).await.expect("it is there");
                assert_eq!(read.payload.concat()[0], sequence);
            }
            assert!(log.record(u64::from(oldest) - 1).await.is_err());
            let fill = log.fill();
            assert_eq!((fill.first, fill.last), (oldest.into(), u64::from(next) - 1));
        }
    });
}

#[test]
fn what_is_sent_early_is_limited_and_as_much_is_kept() {
    Sim::new(1).run(async {
        let ring = Ring::new();
        let (log, _) = ring.open(START, 1).await;
        append(&log, 1, 1).await.expect("there is room");
        for byte in 2..=4 {
            log.place(record(byte, 1)).expect("there is room");
        }
        // Two sectors each.
        let bytes = |sectors: u64| sectors * SECTOR as u64;
        let ahead = |sectors| log.through_ahead(bytes(sectors));
        assert_eq!((ahead(0), ahead(1), ahead(2), ahead(5), ahead(6), ahead(60)), (1, 1, 2, 3, 4, 4));
        assert!(log.claim_writer());
        while log.write_next().await.is_some() {}
        assert_eq!(log.through_ahead(0), 4);
        let through = |sectors| log.through_leaving(bytes(sectors));
        assert_eq!((through(0), through(1), through(2), through(7), through(8)), (4, 4, 3, 1, 0));
    });
}

#[test]
fn a_log_of_another_life_is_not_read() {
    Sim::new(1).run(async {
        let ring = Ring::new();
        let (log, _) = ring.open(START, 1).await;
        append(&log, 1, 1).await.expect("there is room");
        log.restart(0, 2);
        assert!(ring.open(Tail { life: 2, ..START }, 3).await.1.is_empty());
        let other = State { log: 6, ..state(START, 2) };
        let side = ring.side();
        let opened = Log::open(&side, &other, 2, 4096, async |_| panic!("it is another's"));
        assert_eq!(opened.await.expect("it opens").0.fill().last, 0);
    });
}

#[test]
fn written_records_of_all_logs_together_keep_a_bounded_part_of_the_pool() {
    Sim::new(1).run(async {
        let (pool, log_memory) = (Pool::new(1 << 20), LogMemory::default());
        // Each of them keeps four records, and one more would exceed the part.
        let full = pool.limit_bytes() / KEPT_PART / LEAST_KEPT / 4;
        let mut logs = Vec::new();
        for _ in 0..=full {
            let mut ring = Ring::new();
            (ring.pool, ring.log_memory) = (pool.clone(), log_memory.clone());
            let (log, _) = ring.open(START, 1).await;
            append_together(&log, &[1; 6]).await;
            logs.push(log);
        }
        let kept = |log: &Log| (1..=7).filter(|sequence| log.recent(*sequence).is_some()).count();
        let last = logs.pop().expect("there is one more");
        assert!(logs.iter().all(|log| kept(log) == 4));
        assert_eq!(kept(&last), 0);
        // What is not in memory is read.
        assert!(last.record(6).await.expect("it is in the log").is_whole());
        // What is not written yet stays, whatever others keep.
        last.place(record(2, 1)).expect("there is room");
        assert_eq!(kept(&last), 1);
        // A log that is closed keeps nothing.
        logs.pop();
        assert!(last.claim_writer());
        while last.write_next().await.is_some() {}
        assert_eq!(kept(&last), 1);
    });
}
