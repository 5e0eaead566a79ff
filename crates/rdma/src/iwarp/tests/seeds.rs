//! Two queue pairs from one seed, which determines the settings, the work, the pieces, the order of events and the byte
//! at which the stream breaks. What was placed and delivered must be a prefix of what was posted, and nothing else may
//! change.

use super::*;
use crate::verbs::{Disconnect, WorkError};

/// Seeds to run: 5 ms of one core each in the test profile. `WEFT_SEEDS` overrides it; CI sets 4,000 and runs a
/// quarter of them here, because `simulated` runs them all.
const SEEDS: u64 = 1000;
/// Long enough for an FPDU with two markers.
const REGION: usize = 900;
const MOST_WORK: u64 = 12;
/// Streams break before this byte; most are shorter, and stay whole.
const CUT_WITHIN: u64 = 4000;

/// The work that one side has posted.
#[derive(Default)]
struct Posted {
    sends: Vec<Vec<u8>>,
    writes: Vec<(usize, Vec<u8>)>,
    reads: Vec<(u64, usize, usize)>,
    ids: Vec<u64>,
}

fn setting(rng: &mut Rng, seed: u64) -> Setting {
    let chunk = [2, 40, 40, 300, 300, 3000][rng.below(6)];
    let longest = [60, 1000][rng.below(2)];
    Setting {
        crc: rng.below(2) == 0,
        markers: [rng.below(4) == 0, rng.below(4) == 0],
        fpdu_payload: rng.within(1..=longest) as usize,
        chunk,
        seed,
        depth: rng.within(1..=3) as u16,
        ..Setting::default()
    }
}

/// Posts one piece of random work, unless the stream has ended.
fn post(
    pair: &mut Pair,
    rng: &mut Rng,
    side: usize,
    id: u64,
    sink: Segment,
    source: Segment,
    posted: &mut Posted,
) {
    let at = rng.below(REGION);
    let len = rng.within(0..=(REGION - at) as u64) as usize;
    let work = match rng.below(3) {
        0 => Work::Send {
            id,
            data: vec![pattern(id, len).into()],
            invalidate: None,
            solicited: rng.below(2) == 0,
            signalled: true,
        },
        1 => {
            let data = Payload::Chain(vec![pattern(id, len).into()]);
            Work::Write { id, data, to: part(sink, at as u64, len as u32), signalled: true }
        }
        _ => {
            let len = len.max(1);
            let into = pair.pool.try_alloc(len).unwrap();
            Work::Read { id, into, from: part(source, at as u64, len as u32) }
        }
    };
    let kind = match &work {
        Work::Send { .. } => 0,
        Work::Write { .. } => 1,
        _ => 2,
    };
    if pair.ends[side].post(work).is_err() {
        assert!(pair.ends[side].ended().is_some(), "refused without a reason");
        return;
    }
    posted.ids.push(id);
    match kind {
        0 => posted.sends.push(pattern(id, len)),
        1 => posted.writes.push((at, pattern(id, len))),
        _ => posted.reads.push((id, at, len.max(1))),
    }
}

/// The sink's content after the first `placed` bytes of these Writes.
fn after(writes: &[(usize, Vec<u8>)], mut placed: usize) -> Vec<u8> {
    let mut memory = vec![FILL; REGION];
    for (at, data) in writes {
        let len = data.len().min(placed);
        memory[*at..at + len].copy_from_slice(&data[..len]);
        placed -= len;
    }
    assert_eq!(placed, 0, "more was placed than was written");
    memory
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let setting = setting(&mut rng, seed);
    let mut pair = Pair::new(setting);
    if rng.below(4) > 0 {
        pair.cut[rng.below(2)] = Some(rng.within(0..=CUT_WITHIN) as usize);
    }
    let readable = [pattern(1, REGION), pattern(2, REGION)];
    let sinks = [0, 1].map(|side| pair.region(side, &[FILL; REGION], Access::RemoteWrite));
    let sources = [0, 1].map(|side| pair.region(side, &readable[side], Access::RemoteRead));
    let recvs = MOST_WORK + 1;
    (0..2).for_each(|side| (0..recvs).for_each(|id| pair.recv(side, id, REGION)));
    let mut posted = [Posted::default(), Posted::default()];
    // The initiator speaks first.
    let first = pattern(100, rng.below(REGION));
    pair.send(0, 100, &first);
    posted[0].sends.push(first);
    posted[0].ids.push(100);
    for id in 101..101 + rng.within(1..=MOST_WORK) {
        let side = rng.below(2);
        let there = 1 - side;
        post(&mut pair, &mut rng, side, id, sinks[there], sources[there], &mut posted[side]);
        for _ in 0..rng.below(3) {
            pair.step();
        }
    }
    pair.settle();
    for side in 0..2 {
        check(&mut pair, side, &posted, &readable, recvs, (sinks[side], sources[side]));
    }
}

fn check(
    pair: &mut Pair,
    side: usize,
    posted: &[Posted; 2],
    readable: &[Vec<u8>; 2],
    recvs: u64,
    (sink, source): (Segment, Segment),
) {
    let ended = pair.ends[side].ended().cloned();
    // Nothing but the stream fails here.
    let broken = (0..2).any(|side| pair.cut[side].is_some_and(|cut| pair.sent[side] >= cut));
    assert_eq!(ended.is_some(), broken, "{ended:?}");
    assert!(matches!(ended, None | Some(Disconnect::Peer | Disconnect::Lost(_))), "{ended:?}");
    let (ours, theirs) = (&posted[side], &posted[1 - side]);
    let (mut received, mut seen) = (0, Vec::new());
    for completion in std::mem::take(&mut pair.done[side]) {
        seen.push(completion.id);
        match completion.result {
            Ok(Done::Received { buf, .. }) => {
                assert_eq!(completion.id, received as u64, "receive buffers fill in order");
                assert!(buf[..] == theirs.sends[received][..], "message {received}");
                received += 1;
            }
            Ok(Done::Read { buf }) => {
                let (_, at, len) = ours.reads.iter().find(|(id, ..)| *id == completion.id).unwrap();
                assert!(buf[..] == readable[1 - side][*at..at + len], "Read {}", completion.id);
            }
            Ok(Done::Sent | Done::Written) => {}
            Err(WorkError::Flushed) => assert!(ended.is_some()),
            Err(other) => panic!("{other:?}"),
        }
    }
    // Everything posted completes once; receive buffers as far as they were filled, or all of them at the end.
    let filled = if ended.is_some() { recvs } else { theirs.sends.len() as u64 };
    let mut expected: Vec<u64> = (0..filled).chain(ours.ids.iter().copied()).collect();
    expected.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, expected, "{ended:?}");
    let placed = pair.ends[side].traffic().placed.0 as usize;
    if ended.is_none() {
        assert_eq!(placed, theirs.writes.iter().map(|(_, data)| data.len()).sum::<usize>());
    }
    let memory = pair.ends[side].invalidate(sink.stag, pair.now).unwrap();
    assert!(memory[..] == after(&theirs.writes, placed)[..], "memory that is written to");
    let memory = pair.ends[side].invalidate(source.stag, pair.now).unwrap();
    assert!(memory[..] == readable[side][..], "memory that is only read");
}

#[test]
fn any_seed() {
    let seeds = std::env::var("WEFT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds / 4 {
        if let Err(panic) = std::panic::catch_unwind(|| story(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
