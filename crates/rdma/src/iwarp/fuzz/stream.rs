//! The engine of a connection against an arbitrary peer: arbitrary bytes, valid streams, and damaged streams.
//!
//! Covers RFC 5044 4, RFC 5041 5 and 7, RFC 5040 5 and 7. It does not check the answers to the peer; `tests/hostile.rs`
//! does, rule by rule.
//!
//! The peer's script builds FPDUs from the connection's own state (its regions, its pending Reads), so that most of
//! them are nearly right, and adds a valid CRC and the agreed markers. It checks that nothing panics; that there is
//! always room to receive; that every piece of work completes once; that memory changes only where the peer was allowed
//! to write and did; and that at the end the connection releases everything within its time limit.

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Buf, Payload, Pool, Time};
use weft_wire::ddp;
use weft_wire::rdmap::{self, Opcode, ReadRequest, Terminate};

use crate::fuzz::Script;
use crate::iwarp::connection::{Connection, Limits, first_staging};
use crate::iwarp::frame::{Next, Out};
use crate::iwarp::setup::{Agreed, Opening, Role};
use crate::verbs::{Access, Completion, Done, Segment, Stag, Work};

const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Never part of the peer's payload.
const FILL: u8 = 0xa5;
const MAX_ACTS: usize = 400;
const MAX_REGIONS: usize = 6;
const REGION_LENS: [usize; 3] = [100, 3000, 30_000];
/// Payload lengths of the peer's FPDUs: every length below, and some long ones.
const LONG_PAYLOADS: [usize; 3] = [2000, 9000, 30_000];

thread_local! {
    // One for all inputs: making a pool is a hundred times as much work as a short script.
    static POOL: Pool = Pool::new(64 << 20);
}

/// A scripted connection.
pub fn fpdu_stream(data: &[u8]) {
    let pool = POOL.with(Pool::clone);
    let mut script = Script::new(data);
    let mut world = World::new(&pool, &mut script);
    let mut acts = 0;
    while !script.is_over() && acts < MAX_ACTS {
        world.act(&mut script);
        acts += 1;
    }
    world.end();
    drop(world);
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
}

struct Region {
    segment: Segment,
    access: Access,
    /// Where the peer may have written.
    written: Vec<bool>,
}

struct World {
    end: Connection,
    pool: Pool,
    /// Whether the pool has room for optional requests.
    plenty: bool,
    now: Time,
    crc: bool,
    /// Frames the peer's messages.
    peer: Out,
    /// What the peer has sent and is not delivered yet.
    wire: Vec<u8>,
    /// The peer may have written anywhere that it may write: arbitrary bytes were delivered.
    anything: bool,
    regions: Vec<Region>,
    /// Never posted, never registered.
    bystander: Buf,
    next_id: u64,
    /// Ids that have not completed.
    open: Vec<u64>,
}

impl World {
    fn new(pool: &Pool, script: &mut Script<'_>) -> World {
        let flags = script.byte();
        let (crc, marked, markers) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        let role = if flags & 8 != 0 {
            let open_with =
                [None, Some(Opening::Write), Some(Opening::Send), Some(Opening::Read)][script.below(4)];
            Role::Initiator { open_with }
        } else {
            Role::Responder { empty_send_opens: flags & 16 != 0 }
        };
        let depth = 1 + script.below(4) as u16;
        let agreed =
            Agreed { role, crc, markers, marked, ird: depth, ord: depth, private_data: Bytes::new() };
        let limits = Limits {
            max_send_work: 32,
            max_recv_work: 8,
            max_regions: MAX_REGIONS,
            fpdu_payload: 1 + script.below(3000),
            close_timeout: CLOSE_TIMEOUT,
        };
        let staging = pool.try_alloc(first_staging(&agreed)).expect("room");
        let mut bystander = pool.try_alloc(4096).expect("room");
        bystander.set_len(4096);
        bystander.fill(FILL);
        World {
            end: Connection::new(&agreed, limits, staging, [1, 2]),
            pool: pool.clone(),
            plenty: flags & 32 != 0,
            now: Time::from_nanos(1),
            crc,
            peer: Out::new(crc, marked),
            wire: Vec::new(),
            anything: false,
            regions: Vec::new(),
            bystander,
            next_id: 0,
            open: Vec::new(),
        }
    }

    fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 => {
                let len = script.below(64);
                self.wire.extend_from_slice(script.bytes(len));
                self.anything = true;
            }
            1 => self.flip(script),
            2..=5 => self.peer_says(script),
            6 | 7 => self.deliver(script),
            8 => self.transmit(script),
            9 | 10 => self.post(script),
            11 => self.register(script),
            12 => self.invalidate(script),
            13 => self.take_completions(),
            14 => {
                self.now = self.now + Duration::from_millis(u64::from(script.byte()) * 30);
                if self.end.timeout().is_some_and(|at| at <= self.now) {
                    self.end.handle_timeout(self.now);
                }
            }
            _ => match script.byte() % 8 {
                0 => self.end.close(self.now),
                1 => self.end.eof(self.now),
                2 => self.end.lost(std::io::ErrorKind::ConnectionReset, self.now),
                _ => self.deliver_all(),
            },
        }
    }

    // ---- the peer ----

    /// One FPDU, nearly right.
    fn peer_says(&mut self, script: &mut Script<'_>) {
        let kind = script.below(6);
        let payload = match script.byte() {
            long @ 250..=252 => LONG_PAYLOADS[usize::from(long - 250)],
            short => usize::from(short),
        };
        let last = !script.one_in(4);
        let (header, payload): (Vec<u8>, Bytes) = match kind {
            0 | 1 => self.a_write(script, payload, last),
            2 => {
                let opcode = Opcode::send(script.flag(), script.flag());
                let invalidate = self.some_stag(script).0;
                let msn = self.end.rx.send_msn.wrapping_add(small(script));
                let mo = self.end.rx.recv_filled as u32;
                let header = ddp::Untagged {
                    last,
                    control: opcode.control(),
                    invalidate,
                    qn: rdmap::QN_SEND,
                    msn,
                    mo: mo.wrapping_add(small(script)),
                };
                (header.emit().to_vec(), filler(payload))
            }
            3 => self.a_read_request(script),
            4 => {
                let (stag, to) = match self.end.reads.front() {
                    Some(read) => (read.sink_stag, read.sink_to.wrapping_add(read.filled as u64)),
                    None => (1, 2),
                };
                let left = self.end.reads.front().map_or(payload, |read| read.len - read.filled);
                let payload = if script.flag() { left.min(30_000) } else { payload };
                let to = to.wrapping_add(u64::from(small(script)));
                let control = Opcode::ReadResponse.control();
                (ddp::Tagged { last, control, stag, to }.emit().to_vec(), filler(payload))
            }
            _ => {
                let body =
                    if script.flag() { terminate(script) } else { script.bytes(payload % 60).to_vec() };
                let header = ddp::Untagged {
                    last,
                    control: Opcode::Terminate.control(),
                    invalidate: 0,
                    qn: rdmap::QN_TERMINATE,
                    msn: 1,
                    mo: 0,
                };
                (header.emit().to_vec(), body.into())
            }
        };
        let mut header = header;
        if script.one_in(8) {
            let at = script.below(header.len());
            header[at] = script.byte();
            self.anything |= kind <= 1 || at < 2;
        }
        let ulpdu = header.len() + payload.len();
        self.peer.begin(&header, payload.len());
        self.peer.payload(payload);
        self.peer.finish(ulpdu);
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let Next::Slices { filled, .. } = self.peer.next(&mut slices) else { break };
            let said: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
            self.wire.extend_from_slice(&said);
            self.peer.advance(said.len());
        }
    }

    fn a_write(&mut self, script: &mut Script<'_>, payload: usize, last: bool) -> (Vec<u8>, Bytes) {
        let (stag, to) = match self.regions.len() {
            0 => (Stag(script.long() as u32), script.long()),
            n => {
                let region = &mut self.regions[script.below(n)];
                let len = region.written.len();
                let at = if script.one_in(8) { len } else { script.below(len) };
                let end = (at + payload).min(len);
                region.written[at..end].fill(true);
                (region.segment.stag, region.segment.offset.wrapping_add(at as u64))
            }
        };
        (
            ddp::Tagged { last, control: Opcode::Write.control(), stag: stag.0, to }.emit().to_vec(),
            filler(payload),
        )
    }

    fn a_read_request(&mut self, script: &mut Script<'_>) -> (Vec<u8>, Bytes) {
        let (stag, offset, len) = match self.regions.len() {
            0 => (1, 2, 3),
            n => {
                let Segment { stag, offset, len } = self.regions[script.below(n)].segment;
                (stag.0, offset, len)
            }
        };
        let request = ReadRequest {
            sink_stag: script.long() as u32,
            sink_to: script.long(),
            size: len.wrapping_sub(u32::from(script.byte())),
            source_stag: stag,
            source_to: offset.wrapping_add(u64::from(script.byte())),
        };
        let header = ddp::Untagged {
            last: script.byte() % 16 != 1,
            control: Opcode::ReadRequest.control(),
            invalidate: 0,
            qn: rdmap::QN_READ_REQUEST,
            msn: self.end.rx.read_msn.wrapping_add(small(script)),
            mo: 0,
        };
        (header.emit().to_vec(), Bytes::copy_from_slice(&request.emit()))
    }

    /// Changes a byte in transit.
    fn flip(&mut self, script: &mut Script<'_>) {
        if self.wire.is_empty() {
            return;
        }
        let at = script.below(self.wire.len().min(1 << 16));
        let bits = script.byte();
        self.wire[at] ^= bits;
        // With CRCs on, damaged bytes are not placed; without CRCs, nobody can tell.
        self.anything |= !self.crc;
    }

    fn some_stag(&self, script: &mut Script<'_>) -> Stag {
        match self.regions.len() {
            0 => Stag(script.long() as u32),
            n => self.regions[script.below(n)].segment.stag,
        }
    }

    fn deliver(&mut self, script: &mut Script<'_>) {
        let limit = 1 + usize::from(script.word());
        self.deliver_some(limit);
    }

    fn deliver_all(&mut self) {
        while !self.wire.is_empty() {
            self.deliver_some(usize::MAX);
        }
    }

    /// One receive of at most `limit` bytes.
    fn deliver_some(&mut self, limit: usize) {
        if self.wire.is_empty() {
            return;
        }
        let mut n = 0;
        // Optional memory is not always granted.
        if let Some(staging) = self.end.staging_wanted()
            && (staging.needed || self.plenty)
        {
            self.end.stage_in(self.pool.try_alloc(staging.bytes).expect("room"));
        }
        {
            let mut slots = self.end.recv_slots();
            assert!(slots.iter().map(|slot| slot.len()).sum::<usize>() > 0, "no room to receive");
            for slot in slots.iter_mut() {
                let part = slot.len().min(limit - n).min(self.wire.len() - n);
                slot[..part].copy_from_slice(&self.wire[n..n + part]);
                n += part;
                if part < slot.len() {
                    break;
                }
            }
        }
        self.wire.drain(..n);
        self.end.received(n, self.now);
    }

    // ---- our side ----

    fn post(&mut self, script: &mut Script<'_>) {
        let id = self.next_id;
        let len = script.below(3000);
        let to = Segment { stag: Stag(script.byte().into()), offset: script.byte().into(), len: len as u32 };
        let work = match script.below(4) {
            0 => Work::Send {
                id,
                data: vec![filler(len)],
                invalidate: script.flag().then_some(to.stag),
                solicited: script.flag(),
                signalled: true,
            },
            1 => Work::Write { id, data: Payload::Chain(vec![filler(len)]), to, signalled: true },
            2 => Work::Recv { id, buf: self.pool.try_alloc(len.max(1)).expect("room") },
            _ => Work::Read { id, into: self.pool.try_alloc(len.max(1)).expect("room"), from: to },
        };
        if self.end.post(work).is_ok() {
            self.open.push(id);
            self.next_id += 1;
        }
    }

    fn transmit(&mut self, script: &mut Script<'_>) {
        self.end.pump();
        let mut slices = [IoSlice::new(&[]); 16];
        let Next::Slices { filled, .. } = self.end.next_out(&mut slices) else { return };
        let offered: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
        let taken = offered.min(1 + usize::from(script.word()));
        self.end.sent(taken, self.now);
    }

    fn register(&mut self, script: &mut Script<'_>) {
        let access = [Access::RemoteWrite, Access::RemoteRead, Access::RemoteFill][script.below(3)];
        let len = REGION_LENS[script.below(REGION_LENS.len())];
        let mut buf = self.pool.try_alloc(len).expect("room");
        buf.set_len(len);
        buf.fill(FILL);
        if let Ok(segment) = self.end.register(buf, access) {
            self.regions.push(Region { segment, access, written: vec![false; len] });
        }
    }

    fn invalidate(&mut self, script: &mut Script<'_>) {
        if !self.regions.is_empty() {
            let at = script.below(self.regions.len());
            let region = self.regions.swap_remove(at);
            self.take_back(region);
        }
    }

    fn take_back(&mut self, region: Region) {
        let buf = self.end.invalidate(region.segment.stag, self.now).expect("a region comes back once");
        assert_eq!(buf.len(), region.written.len());
        let untouched = match region.access {
            Access::RemoteRead => buf.iter().all(|byte| *byte == FILL),
            Access::RemoteWrite => {
                self.anything
                    || buf.iter().zip(&region.written).all(|(byte, written)| *written || *byte == FILL)
            }
            Access::RemoteFill => true,
        };
        assert!(untouched, "memory changed that nobody may write");
    }

    fn take_completions(&mut self) {
        let mut done = Vec::new();
        self.end.take_completions(&mut done);
        for Completion { id, result } in done {
            let at = self.open.iter().position(|open| *open == id).expect("completed twice, or never posted");
            self.open.swap_remove(at);
            if let Ok(Done::Received { buf, .. } | Done::Read { buf }) = result {
                assert!(buf.len() <= buf.capacity());
            }
        }
    }

    /// The peer leaves, at any point.
    fn end(&mut self) {
        self.deliver_all();
        self.end.eof(self.now);
        self.end.close(self.now);
        self.now = self.now + CLOSE_TIMEOUT;
        if self.end.timeout().is_some() {
            self.end.handle_timeout(self.now);
        }
        assert!(self.end.ended().is_some());
        self.take_completions();
        assert!(self.open.is_empty(), "never completed: {:?}", self.open);
        for region in std::mem::take(&mut self.regions) {
            self.take_back(region);
        }
        assert!(self.bystander.iter().all(|byte| *byte == FILL));
    }
}

/// Mostly 0.
fn small(script: &mut Script<'_>) -> u32 {
    match script.byte() {
        n @ 1..=3 => u32::from(n),
        4 => u32::MAX,
        _ => 0,
    }
}

fn filler(len: usize) -> Bytes {
    vec![0x11; len].into()
}

fn terminate(script: &mut Script<'_>) -> Vec<u8> {
    let numbers = script.byte();
    let header = ddp::Untagged {
        last: true,
        control: Opcode::ReadRequest.control(),
        invalidate: 0,
        qn: u32::from(script.byte() % 3),
        msn: u32::from(script.byte()),
        mo: 0,
    };
    let tagged =
        ddp::Tagged { last: true, control: Opcode::Write.control(), stag: script.byte().into(), to: 9 };
    let header = if script.flag() { ddp::Header::Tagged(tagged) } else { ddp::Header::Untagged(header) };
    let mut body = Vec::new();
    Terminate {
        layer: numbers >> 6,
        etype: numbers & 7,
        code: script.byte() % 12,
        segment_len: script.flag().then_some(20),
        header: script.flag().then_some(header),
        read: None,
    }
    .emit(&mut body);
    body
}
