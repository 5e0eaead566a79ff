//! Pairs of connections under virtual time: the whole engine, without socket or clock.

mod hostile;
mod model;
mod seeds;
mod simulated;
mod stories;
mod wired;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::Rng;
use weft_machine::{Buf, FileRange, Payload, Pool, Time};

use super::connection::{Connection, FileNeed, Limits, first_staging};
use super::frame::Next;
use super::setup::{Agreed, Role};
use crate::verbs::{Access, Completion, Done, Segment, Work};

const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const FILL: u8 = 0xa5;

#[derive(Clone, Copy, Debug)]
struct Setting {
    crc: bool,
    /// Whether each side requires markers of the other.
    markers: [bool; 2],
    fpdu_payload: usize,
    /// Most bytes of one send and one receive.
    chunk: usize,
    seed: u64,
    depth: u16,
    roles: [Role; 2],
}

impl Default for Setting {
    fn default() -> Setting {
        Setting {
            crc: true,
            markers: [false; 2],
            fpdu_payload: 100,
            chunk: 1 << 20,
            seed: 1,
            depth: 4,
            roles: [Role::Initiator { open_with: None }, Role::Responder { empty_send_opens: false }],
        }
    }
}

impl Setting {
    fn connection(&self, side: usize, pool: &Pool) -> Connection {
        let agreed = Agreed {
            role: self.roles[side],
            crc: self.crc,
            markers: self.markers[1 - side],
            marked: self.markers[side],
            ird: self.depth,
            ord: self.depth,
            private_data: Bytes::new(),
        };
        let limits = Limits {
            max_send_work: 1000,
            max_recv_work: 1000,
            max_regions: 16,
            fpdu_payload: self.fpdu_payload,
            close_timeout: CLOSE_TIMEOUT,
        };
        let staging = pool.try_alloc(first_staging(&agreed)).unwrap();
        Connection::new(&agreed, limits, staging, [self.seed, side as u64])
    }
}

/// Two connections and the bytes between them. Side 0 is the initiator.
struct Pair {
    ends: [Connection; 2],
    /// Bytes in transit from each side.
    wire: [VecDeque<u8>; 2],
    /// Bytes that each side has sent so far.
    sent: [usize; 2],
    /// This side's wire breaks after this many bytes.
    cut: [Option<usize>; 2],
    /// (side, position, bits to flip): the byte at this position of the side's stream arrives damaged.
    flip: Option<(usize, usize, u8)>,
    ended: [bool; 2],
    done: [Vec<Completion>; 2],
    pool: Pool,
    now: Time,
    rng: Rng,
    chunk: usize,
}

impl Pair {
    fn new(setting: Setting) -> Pair {
        let pool = Pool::new(64 << 20);
        Pair {
            ends: [setting.connection(0, &pool), setting.connection(1, &pool)],
            wire: Default::default(),
            sent: [0; 2],
            cut: [None; 2],
            flip: None,
            ended: [false; 2],
            done: Default::default(),
            pool,
            now: Time::from_nanos(1),
            rng: Rng::new(setting.seed),
            chunk: setting.chunk,
        }
    }

    fn buf(&self, bytes: &[u8]) -> Buf {
        self.pool.buf_from(bytes).unwrap()
    }

    fn post(&mut self, side: usize, work: Work) {
        self.ends[side].post(work).map_err(|(e, _)| e).unwrap();
    }

    fn recv(&mut self, side: usize, id: u64, capacity: usize) {
        let mut buf = self.pool.try_alloc(capacity).unwrap();
        buf.room().fill(FILL);
        self.post(side, Work::Recv { id, buf });
    }

    fn send(&mut self, side: usize, id: u64, data: &[u8]) {
        let data = vec![Bytes::copy_from_slice(data)];
        self.post(side, Work::Send { id, data, invalidate: None, solicited: false, signalled: true });
    }

    fn write(&mut self, side: usize, id: u64, data: &[u8], to: Segment) {
        let data = Payload::Chain(vec![Bytes::copy_from_slice(data)]);
        self.post(side, Work::Write { id, data, to, signalled: true });
    }

    fn read(&mut self, side: usize, id: u64, from: Segment) {
        let mut into = self.pool.try_alloc(from.len as usize).unwrap();
        into.room().fill(FILL);
        self.post(side, Work::Read { id, into, from });
    }

    fn region(&mut self, side: usize, bytes: &[u8], access: Access) -> Segment {
        let buf = self.buf(bytes);
        self.ends[side].register(buf, access).unwrap()
    }

    /// One send of one side, of at most `chunk` bytes; false when it has nothing to send.
    fn transmit(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        loop {
            end.pump();
            match end.wants_file() {
                None => break,
                Some(FileNeed::Read { range, piece }) => {
                    end.file_read(read(&self.pool, &range, piece), self.now);
                }
                Some(FileNeed::Warm(range)) => end.file_warm(Ok(range.len), self.now),
            }
        }
        let mut slices = [IoSlice::new(&[]); 16];
        let bytes: Vec<u8> = match end.next_out(&mut slices) {
            Next::Nothing => return false,
            Next::Slices { filled, .. } => slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect(),
            Next::File { range, from } => read(&self.pool, range, None).unwrap().0[from..].to_vec(),
        };
        let mut taken = 0;
        let limit = self.rng.within(1..=self.chunk as u64) as usize;
        for byte in bytes.into_iter().take(limit) {
            let at = self.sent[side] + taken;
            let flipped = self.flip.filter(|(whose, place, _)| (*whose, *place) == (side, at));
            if self.cut[side].is_none_or(|cut| at < cut) {
                self.wire[side].push_back(byte ^ flipped.map_or(0, |(_, _, bits)| bits));
            }
            taken += 1;
        }
        self.sent[side] += taken;
        self.ends[side].sent(taken, self.now);
        true
    }

    /// One receive of what `side` has sent; false when nothing is on the wire.
    fn deliver(&mut self, side: usize) -> bool {
        let to = 1 - side;
        if self.wire[side].is_empty() {
            let over = self.ends[side].finished_sending()
                || self.cut[side].is_some_and(|cut| self.sent[side] >= cut);
            if over && !std::mem::replace(&mut self.ended[side], true) {
                self.ends[to].eof(self.now);
                return true;
            }
            return false;
        }
        let mut left = self.rng.within(1..=self.chunk as u64) as usize;
        let mut n = 0;
        if let Some(staging) = self.ends[to].staging_wanted() {
            self.ends[to].stage_in(self.pool.try_alloc(staging.bytes).unwrap());
        }
        let mut slots = self.ends[to].recv_slots();
        assert!(slots.iter().any(|slot| !slot.is_empty()), "no room to receive");
        for slot in slots.iter_mut() {
            let part = slot.len().min(left).min(self.wire[side].len());
            for (place, byte) in slot.iter_mut().zip(self.wire[side].drain(..part)) {
                *place = byte;
            }
            n += part;
            left -= part;
            if part < slot.len() {
                break;
            }
        }
        self.ends[to].received(n, self.now);
        true
    }

    /// One step of one side.
    fn step(&mut self) -> bool {
        let side = self.rng.below(2);
        let mut moved = false;
        for side in [side, 1 - side] {
            moved |= self.transmit(side);
            moved |= self.deliver(side);
            self.ends[side].take_completions(&mut self.done[side]);
        }
        moved
    }

    /// Steps until nothing moves any more.
    fn settle(&mut self) {
        while self.step() {}
        for side in 0..2 {
            self.ends[side].take_completions(&mut self.done[side]);
        }
    }

    /// The message that arrived at `side` in the buffer `id`.
    fn received(&mut self, side: usize, id: u64) -> Buf {
        match self.completed(side, id) {
            Completion { result: Ok(Done::Received { buf, .. }), .. } => buf,
            other => panic!("{other:?}"),
        }
    }

    fn completed(&mut self, side: usize, id: u64) -> Completion {
        let at = self.done[side].iter().position(|completion| completion.id == id);
        self.done[side].remove(at.unwrap_or_else(|| panic!("{id} has not completed: {:?}", self.done[side])))
    }
}

fn read(pool: &Pool, range: &FileRange, piece: Option<usize>) -> std::io::Result<(Bytes, Vec<u32>)> {
    let mut buf = pool.try_alloc(range.len).unwrap();
    buf.set_len(range.len);
    let window = buf.into_window();
    let mut sums = Vec::new();
    range.try_read_summed(&window, piece.unwrap_or(1), &mut sums).expect("files in memory do not sleep")?;
    Ok((window.try_into_buf().unwrap().freeze(), sums))
}

fn part(of: Segment, offset: u64, len: u32) -> Segment {
    Segment { stag: of.stag, offset: of.offset.wrapping_add(offset), len }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // Never FILL, so that placed bytes can be told from others.
    (0..len as u64).map(|i| (i.wrapping_mul(7).wrapping_add(seed * 29 + (i >> 7)) % 0xa5) as u8).collect()
}
