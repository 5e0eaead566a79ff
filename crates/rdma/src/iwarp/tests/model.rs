//! Random work of both sides over a stream cut into random pieces, against a model of plain arrays.

use proptest::prelude::*;

use super::*;

/// Long enough for Read Responses that are received directly into their buffers.
const REGION: usize = 40_000;

#[derive(Clone, Debug)]
enum Op {
    Send { len: usize },
    Write { at: usize, len: usize },
    Read { at: usize, len: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..REGION, 0..REGION).prop_map(|(at, len)| (at, len.min(REGION - at)));
    prop_oneof![
        (0usize..4096).prop_map(|len| Op::Send { len }),
        range.clone().prop_map(|(at, len)| Op::Write { at, len }),
        range.prop_map(|(at, len)| Op::Read { at, len: len.max(1) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_was_posted_arrives_and_nothing_else_changes(
        crc: bool,
        markers: [bool; 2],
        fpdu_payload in prop_oneof![1usize..3000, 3000..65_000usize],
        chunk in prop_oneof![1usize..5000, 5000..300_000usize],
        seed: u64,
        depth in 1u16..4,
        fill: [bool; 2],
        ops in proptest::collection::vec((0usize..2, op()), 1..40),
    ) {
        let mut pair = Pair::new(Setting { crc, markers, fpdu_payload, chunk, seed, depth, ..Setting::default() });
        let mut written = [vec![FILL; REGION], vec![FILL; REGION]];
        let readable = [pattern(1, REGION), pattern(2, REGION)];
        let sinks = [0, 1].map(|side| {
            let access = if fill[side] { Access::RemoteFill } else { Access::RemoteWrite };
            pair.region(side, &written[side], access)
        });
        let mut touched = [vec![false; REGION], vec![false; REGION]];
        let sources = [0, 1].map(|side| pair.region(side, &readable[side], Access::RemoteRead));
        let mut messages: [Vec<Vec<u8>>; 2] = Default::default();
        let mut reads: [Vec<(u64, usize, usize)>; 2] = Default::default();
        for side in 0..2 {
            (0..ops.len() as u64 + 1).for_each(|id| pair.recv(side, id, 4096));
        }
        // The initiator speaks first.
        pair.send(0, 999, b"");
        messages[1].push(Vec::new());
        for (id, (side, op)) in (1000u64..).zip(&ops) {
            let (side, peer) = (*side, 1 - *side);
            match *op {
                Op::Send { len } => {
                    pair.send(side, id, &pattern(id, len));
                    messages[peer].push(pattern(id, len));
                }
                Op::Write { at, len } => {
                    pair.write(side, id, &pattern(id, len), part(sinks[peer], at as u64, len as u32));
                    written[peer][at..at + len].copy_from_slice(&pattern(id, len));
                    touched[peer][at..at + len].fill(true);
                }
                Op::Read { at, len } => {
                    pair.read(side, id, part(sources[peer], at as u64, len as u32));
                    reads[side].push((id, at, len));
                }
            }
            if seed % 3 == id % 3 {
                pair.step();
            }
        }
        pair.settle();
        for side in 0..2 {
            prop_assert!(pair.ends[side].ended().is_none(), "{:?}", pair.ends[side].ended());
            for (id, message) in (0u64..).zip(&messages[side]) {
                prop_assert!(pair.received(side, id)[..] == message[..]);
            }
            for (id, at, len) in &reads[side] {
                match pair.completed(side, *id).result {
                    Ok(Done::Read { buf }) => prop_assert!(buf[..] == readable[1 - side][*at..at + len]),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            // The remaining ones are Sends and Writes, in the order of posting.
            let ids: Vec<_> = pair.done[side].iter().map(|c| c.id).collect();
            prop_assert!(ids.is_sorted());
            prop_assert!(pair.done[side].iter().all(|c| matches!(c.result, Ok(Done::Sent | Done::Written))));
            let sink = pair.ends[side].invalidate(sinks[side].stag, pair.now).unwrap();
            // In a fill region, bytes that nobody wrote are undefined.
            let same = |(i, byte): (usize, &u8)| *byte == written[side][i] || fill[side] && !touched[side][i];
            prop_assert!(sink.iter().enumerate().all(same));
            let source = pair.ends[side].invalidate(sources[side].stag, pair.now).unwrap();
            prop_assert!(source[..] == readable[side][..]);
        }
    }
}
