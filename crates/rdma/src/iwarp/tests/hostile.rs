//! A peer that breaks the rules: each rule with the Terminate that it causes.

use proptest::prelude::*;
use weft_wire::rdmap::{Opcode, ReadRequest, Terminate};
use weft_wire::{ddp, mpa};

use super::*;
use crate::verbs::{Disconnect, Refusal, WorkError};

/// One connection, and a peer that consists of scripted bytes. The connection is the responder, and has received a
/// valid FPDU.
struct Probe {
    end: Connection,
    pool: Pool,
    now: Time,
    crc: bool,
}

impl Probe {
    fn new(crc: bool) -> Probe {
        let pool = Pool::new(32 << 20);
        let setting = Setting { crc, ..Setting::default() };
        let mut probe = Probe { end: setting.connection(1, &pool), pool, now: Time::from_nanos(1), crc };
        // An empty Write allows the responder to send Terminates.
        let opening = probe.fpdu(&tagged(Opcode::Write, 0, 0, true), &[]);
        probe.feed(&opening);
        assert!(probe.end.ended().is_none());
        probe
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut n = 0;
            if let Some(staging) = self.end.staging_wanted() {
                self.end.stage_in(self.pool.try_alloc(staging.bytes).unwrap());
            }
            for slot in self.end.recv_slots().iter_mut() {
                let part = slot.len().min(bytes.len() - n);
                slot[..part].copy_from_slice(&bytes[n..n + part]);
                n += part;
                if part < slot.len() {
                    break;
                }
            }
            self.end.received(n, self.now);
            bytes = &bytes[n..];
        }
    }

    fn fpdu(&self, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let len = (header.len() + payload.len()) as u16;
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + mpa::pad(len), 0);
        let mut crc = mpa::Crc::default();
        crc.update(&bytes);
        // Without CRCs the field may hold anything.
        bytes.extend_from_slice(&if self.crc { crc.field() } else { *b"junk" });
        bytes
    }

    fn say(&mut self, header: &[u8], payload: &[u8]) {
        let fpdu = self.fpdu(header, payload);
        self.feed(&fpdu);
    }

    /// The Terminate that was sent.
    fn terminate(&mut self) -> Terminate {
        let mut slices = [IoSlice::new(&[]); 16];
        let Next::Slices { filled, .. } = self.end.next_out(&mut slices) else { panic!("nothing was said") };
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        let ddp::Header::Untagged(header) = ddp::Header::parse(&bytes[2..]).unwrap() else {
            panic!("tagged")
        };
        assert_eq!((header.qn, header.msn, header.mo, header.last), (2, 1, 0, true));
        assert_eq!(Opcode::parse(header.control), Ok(Opcode::Terminate));
        let terminate = Terminate::parse(&bytes[2 + ddp::UNTAGGED_LEN..]).unwrap();
        assert_eq!(bytes.len(), mpa::fpdu_len(u16::from_be_bytes([bytes[0], bytes[1]])));
        terminate
    }
}

fn tagged(opcode: Opcode, stag: u32, to: u64, last: bool) -> Vec<u8> {
    ddp::Tagged { last, control: opcode.control(), stag, to }.emit().to_vec()
}

fn untagged(opcode: Opcode, qn: u32, msn: u32, mo: u32, last: bool) -> Vec<u8> {
    ddp::Untagged { last, control: opcode.control(), invalidate: 0, qn, msn, mo }.emit().to_vec()
}

fn read_request(size: u32, source: Segment) -> [u8; 28] {
    ReadRequest { sink_stag: 1, sink_to: 2, size, source_stag: source.stag.0, source_to: source.offset }
        .emit()
}

/// The peer's bytes to a connection with one region of 100 bytes (`w` to write, `r` to read), a receive buffer of 4096
/// bytes and one Read under way, and the numbers of the Terminate that they cause.
type Rule = (&'static str, fn(&mut Probe, Scene), (u8, u8, u8));

#[derive(Clone, Copy)]
struct Scene {
    w: Segment,
    r: Segment,
    sink: (u32, u64),
}

const RULES: &[Rule] = &[
    (
        "version of DDP, tagged",
        |p, _| p.say(&with(tagged(Opcode::Write, 0, 0, true), 0, 0xc0), &[]),
        (1, 1, 4),
    ),
    (
        "version of DDP, untagged",
        |p, _| p.say(&with(untagged(Opcode::Send, 0, 1, 0, true), 0, 0x42), &[]),
        (1, 2, 6),
    ),
    ("version of RDMAP", |p, _| p.say(&with(tagged(Opcode::Write, 0, 0, true), 1, 0x80), &[]), (0, 2, 5)),
    ("reserved opcode", |p, _| p.say(&with(tagged(Opcode::Write, 0, 0, true), 1, 0x48), &[]), (0, 2, 6)),
    ("a tagged Send", |p, _| p.say(&tagged(Opcode::Send, 0, 0, true), &[]), (0, 2, 6)),
    ("an untagged Write", |p, _| p.say(&untagged(Opcode::Write, 0, 1, 0, true), &[]), (0, 2, 6)),
    ("a Send in the queue of Reads", |p, _| p.say(&untagged(Opcode::Send, 1, 1, 0, true), &[]), (0, 2, 6)),
    ("queue 3", |p, _| p.say(&untagged(Opcode::Send, 3, 1, 0, true), &[]), (1, 2, 1)),
    ("message 2 before 1", |p, _| p.say(&untagged(Opcode::Send, 0, 2, 0, true), b"x"), (1, 2, 3)),
    ("message 0", |p, _| p.say(&untagged(Opcode::Send, 0, 0, 0, true), b"x"), (1, 2, 3)),
    ("a gap in a message", |p, _| p.say(&untagged(Opcode::Send, 0, 1, 4, true), b"x"), (1, 2, 4)),
    (
        "an overlap in a message",
        |p, _| {
            p.say(&untagged(Opcode::Send, 0, 1, 0, false), b"abcd");
            p.say(&untagged(Opcode::Send, 0, 1, 0, true), b"x");
        },
        (1, 2, 4),
    ),
    ("a message too long", |p, _| p.say(&untagged(Opcode::Send, 0, 1, 0, true), &[0; 4097]), (1, 2, 5)),
    (
        "a message too long in its second segment",
        |p, _| {
            p.say(&untagged(Opcode::Send, 0, 1, 0, false), &[0; 4096]);
            p.say(&untagged(Opcode::Send, 0, 1, 4096, true), b"x");
        },
        (1, 2, 5),
    ),
    (
        "a message without a buffer",
        |p, _| {
            p.say(&untagged(Opcode::Send, 0, 1, 0, true), b"x");
            p.say(&untagged(Opcode::Send, 0, 2, 0, true), b"x");
        },
        (1, 2, 2),
    ),
    (
        "a Write to no region",
        |p, s| p.say(&tagged(Opcode::Write, !s.w.stag.0, s.w.offset, true), b"x"),
        (1, 1, 0),
    ),
    (
        "a Write behind a region",
        |p, s| p.say(&tagged(Opcode::Write, s.w.stag.0, s.w.offset + 100, true), b"x"),
        (1, 1, 1),
    ),
    (
        "a Write before a region",
        |p, s| p.say(&tagged(Opcode::Write, s.w.stag.0, s.w.offset - 1, true), b"xx"),
        (1, 1, 1),
    ),
    (
        "a Write across an end",
        |p, s| p.say(&tagged(Opcode::Write, s.w.stag.0, s.w.offset + 99, true), b"xx"),
        (1, 1, 1),
    ),
    (
        "a Write that wraps",
        |p, s| p.say(&tagged(Opcode::Write, s.w.stag.0, u64::MAX, true), b"xx"),
        (1, 1, 3),
    ),
    (
        "a Write to be read",
        |p, s| p.say(&tagged(Opcode::Write, s.r.stag.0, s.r.offset, true), b"x"),
        (0, 1, 2),
    ),
    ("a Write to a sink", |p, s| p.say(&tagged(Opcode::Write, s.sink.0, s.sink.1, true), b"x"), (1, 1, 0)),
    ("a Read of no region", |p, s| read(p, 1, Segment { stag: crate::Stag(!s.r.stag.0), ..s.r }), (0, 1, 0)),
    ("a Read behind a region", |p, s| read(p, 1, part(s.r, 100, 1)), (0, 1, 1)),
    ("a Read across an end", |p, s| read(p, 101, s.r), (0, 1, 1)),
    ("a Read of 4 GiB", |p, s| read(p, u32::MAX, s.r), (0, 1, 1)),
    ("a Read that wraps", |p, s| read(p, 2, Segment { offset: u64::MAX, ..s.r }), (0, 1, 4)),
    ("a Read of what is to be written", |p, s| read(p, 1, s.w), (0, 1, 2)),
    (
        "one Read too many",
        |p, s| {
            (1..=5)
                .for_each(|msn| p.say(&untagged(Opcode::ReadRequest, 1, msn, 0, true), &read_request(9, s.r)))
        },
        (1, 2, 2),
    ),
    (
        "a short Read Request",
        |p, _| p.say(&untagged(Opcode::ReadRequest, 1, 1, 0, true), &[0; 27]),
        (0, 2, 0xff),
    ),
    ("a long Read Request", |p, _| p.say(&untagged(Opcode::ReadRequest, 1, 1, 0, true), &[0; 29]), (1, 2, 5)),
    (
        "half a Read Request",
        |p, _| p.say(&untagged(Opcode::ReadRequest, 1, 1, 0, false), &[0; 28]),
        (0, 2, 0xff),
    ),
    (
        "Read Request 2 before 1",
        |p, _| p.say(&untagged(Opcode::ReadRequest, 1, 2, 0, true), &[0; 28]),
        (1, 2, 3),
    ),
    (
        "a response for another sink",
        |p, s| p.say(&tagged(Opcode::ReadResponse, !s.sink.0, s.sink.1, true), &[7; 50]),
        (1, 1, 0),
    ),
    (
        "a response somewhere else",
        |p, s| p.say(&tagged(Opcode::ReadResponse, s.sink.0, s.sink.1 + 1, true), &[7; 50]),
        (1, 1, 1),
    ),
    (
        "a response too long",
        |p, s| p.say(&tagged(Opcode::ReadResponse, s.sink.0, s.sink.1, true), &[7; 51]),
        (1, 1, 1),
    ),
    (
        "a response too short",
        |p, s| p.say(&tagged(Opcode::ReadResponse, s.sink.0, s.sink.1, true), &[7; 49]),
        (1, 1, 1),
    ),
    (
        "a response to nothing",
        |p, s| {
            p.say(&tagged(Opcode::ReadResponse, s.sink.0, s.sink.1, true), &[7; 50]);
            p.say(&tagged(Opcode::ReadResponse, s.sink.0, s.sink.1, true), &[7; 50]);
        },
        (0, 2, 6),
    ),
    ("an FPDU shorter than its header", |p, _| p.say(&[0xc1, 0x40, 0, 0], &[]), (2, 0, 3)),
    ("an empty FPDU", |p, _| p.feed(&[0, 0, 0, 0, 0, 0, 0, 0]), (2, 0, 3)),
    ("a long Terminate", |p, _| p.say(&untagged(Opcode::Terminate, 2, 1, 0, true), &[0; 53]), (1, 2, 5)),
    ("Terminate 2", |p, _| p.say(&untagged(Opcode::Terminate, 2, 2, 0, true), &[0; 4]), (1, 2, 3)),
    (
        "to invalidate what is not",
        |p, _| p.say(&with(untagged(Opcode::SendInvalidate, 0, 1, 0, true), 2, 9), b"x"),
        (0, 1, 9),
    ),
];

fn with(mut header: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    header[at] = value;
    header
}

fn read(probe: &mut Probe, size: u32, source: Segment) {
    probe.say(&untagged(Opcode::ReadRequest, 1, 1, 0, true), &read_request(size, source));
}

fn scene(probe: &mut Probe) -> Scene {
    let region = |probe: &mut Probe, access| {
        let buf = probe.pool.buf_from(&[FILL; 100]).unwrap();
        probe.end.register(buf, access).unwrap()
    };
    let (w, r) = (region(probe, Access::RemoteWrite), region(probe, Access::RemoteRead));
    let recv = probe.pool.try_alloc(4096).unwrap();
    probe.end.post(Work::Recv { id: 1, buf: recv }).unwrap();
    let into = probe.pool.try_alloc(4096).unwrap();
    let from = Segment { stag: crate::Stag(9), offset: 9, len: 50 };
    probe.end.post(Work::Read { id: 2, into, from }).unwrap();
    probe.end.pump();
    let all: usize = {
        let mut slices = [IoSlice::new(&[]); 16];
        let Next::Slices { filled, .. } = probe.end.next_out(&mut slices) else { panic!("no Read Request") };
        slices[..filled].iter().map(|slice| slice.len()).sum()
    };
    probe.end.sent(all, probe.now);
    let pending = probe.end.reads.front().unwrap();
    Scene { w, r, sink: (pending.sink_stag, pending.sink_to) }
}

#[test]
fn each_rule_has_its_terminate() {
    for crc in [true, false] {
        for (what, break_it, numbers) in RULES {
            let mut probe = Probe::new(crc);
            let scene = scene(&mut probe);
            break_it(&mut probe, scene);
            match probe.end.ended() {
                Some(Disconnect::Refused(_) | Disconnect::Violation(_)) => {}
                other => panic!("{what}: {other:?}"),
            }
            let terminate = probe.terminate();
            assert_eq!((terminate.layer, terminate.etype, terminate.code), *numbers, "{what}");
            // Nothing of it was placed in memory.
            for region in [scene.w, scene.r] {
                let buf = probe.end.invalidate(region.stag, probe.now).unwrap();
                assert!(buf.iter().all(|byte| *byte == FILL), "{what}: placed");
            }
            // Nor is anything that follows.
            let mut done = Vec::new();
            probe.end.take_completions(&mut done);
            probe.say(&untagged(Opcode::Send, 0, 1, 0, true), b"more");
            assert!(probe.end.completions.is_empty(), "{what}");
            done.sort_by_key(|c| c.id);
            assert!(done.iter().map(|c| c.id).eq([1, 2]), "{what}: {done:?}");
        }
    }
}

/// Other tests provoke each of these.
const PROVOKED_ELSEWHERE: &[((u8, u8, u8), &str)] = &[
    ((0, 0, 0), "stories::an_unreadable_file_ends_the_connection_and_says_so"),
    ((2, 0, 2), "a_crc_that_does_not_match_is_reported"),
    ((2, 0, 6), "setup: the reply's ORD exceeds the IRD"),
    ((2, 0, 7), "setup: no common ready-to-receive indication"),
];

#[test]
fn every_code_that_can_be_sent_is_provoked() {
    let mut provoked: Vec<_> = RULES.iter().map(|(_, _, numbers)| *numbers).collect();
    provoked.extend(PROVOKED_ELSEWHERE.iter().map(|(numbers, _)| *numbers));
    let mut sent = crate::iwarp::terminate::all_numbers();
    for numbers in [&mut provoked, &mut sent] {
        numbers.sort_unstable();
        numbers.dedup();
    }
    assert_eq!(provoked, sent);
}

#[test]
fn a_crc_that_does_not_match_is_reported() {
    let mut probe = Probe::new(true);
    let mut fpdu = probe.fpdu(&untagged(Opcode::Send, 0, 1, 0, true), b"x");
    *fpdu.last_mut().unwrap() ^= 1;
    probe.feed(&fpdu);
    let Terminate { layer, etype, code, header, .. } = probe.terminate();
    assert_eq!((layer, etype, code, header), (2, 0, 2, None));
}

/// RFC 5040 4.8: the refused headers come back.
#[test]
fn a_refused_read_request_comes_back() {
    let mut probe = Probe::new(true);
    let scene = scene(&mut probe);
    read(&mut probe, 101, scene.r);
    let terminate = probe.terminate();
    assert_eq!(terminate.segment_len, Some(46));
    assert!(matches!(terminate.header, Some(ddp::Header::Untagged(h)) if h.qn == 1 && h.msn == 1));
    let read = terminate.read.unwrap();
    assert_eq!((read.sink_stag, read.sink_to, read.size), (1, 2, 101));
    assert_eq!((read.source_stag, read.source_to), (scene.r.stag.0, scene.r.offset));
}

#[test]
fn an_empty_read_is_not_checked() {
    let mut probe = Probe::new(true);
    let scene = scene(&mut probe);
    read(&mut probe, 0, Segment { stag: crate::Stag(!scene.r.stag.0), offset: u64::MAX, len: 0 });
    assert!(probe.end.ended().is_none());
    assert_eq!(probe.end.tx.responses(), 1);
}

#[test]
fn a_terminate_is_understood_or_ends_the_stream_anyway() {
    let terminate = |body: &[u8]| {
        let mut probe = Probe::new(true);
        scene(&mut probe);
        probe.say(&untagged(Opcode::Terminate, 2, 1, 0, true), body);
        let mut done = Vec::new();
        probe.end.take_completions(&mut done);
        assert!(done.iter().any(|c| c.id == 2 && c.result.as_ref().is_err_and(|e| *e == WorkError::Flushed)));
        // It gets no answer.
        assert!(probe.end.finished_sending());
        probe.end.ended().unwrap().clone()
    };
    assert_eq!(terminate(&[0x11, 0x00, 0, 0]), Disconnect::Terminated(Refusal::InvalidStag));
    let raw = Refusal::Other { layer: 3, etype: 7, code: 0x55 };
    assert_eq!(terminate(&[0x37, 0x55, 0, 0]), Disconnect::Terminated(raw));
    // Cut short, or announcing headers that are missing.
    assert!(matches!(terminate(&[0x11]), Disconnect::Violation(_)));
    assert!(matches!(terminate(&[0x11, 0x00, 0xe0, 0]), Disconnect::Violation(_)));
}

/// RFC 5042 6.4: what a peer announces costs no memory here before it arrives.
#[test]
fn staging_grows_with_what_has_come() {
    let mut probe = Probe::new(true);
    let idle = probe.pool.in_use_bytes();
    assert!(idle <= 4096, "{idle}");
    // An FPDU of 64 KiB without a posted buffer: its CRC must confirm it first.
    let fpdu = probe.fpdu(&untagged(Opcode::Send, 0, 1, 0, true), &[5; 60_000]);
    for (came, held) in
        [(3000, 4 << 10), (4095, 4 << 10), (5000, 16 << 10), (16_000, 16 << 10), (20_000, 64 << 10)]
    {
        let mut probe = Probe::new(true);
        probe.feed(&fpdu[..came]);
        assert_eq!(probe.pool.in_use_bytes(), held, "after {came} bytes");
    }
    probe.feed(&fpdu);
    assert_eq!(probe.end.ended(), Some(&Disconnect::Refused(Refusal::NoBuffer)));
}

#[test]
fn an_fpdu_that_is_begun_and_not_ended_ends_the_connection() {
    let mut probe = Probe::new(true);
    assert_eq!(probe.end.timeout(), None);
    let fpdu = probe.fpdu(&untagged(Opcode::Send, 0, 1, 0, true), &[5; 100]);
    probe.feed(&fpdu[..30]);
    let late = probe.end.timeout().expect("a deadline");
    // A byte now and then does not extend the deadline.
    probe.now = probe.now + Duration::from_secs(20);
    probe.feed(&fpdu[30..31]);
    assert_eq!(probe.end.timeout(), Some(late));
    assert!(!probe.end.handle_timeout(probe.now));
    assert!(probe.end.handle_timeout(late), "the socket is to be closed");
    assert_eq!(probe.end.ended(), Some(&Disconnect::Lost(std::io::ErrorKind::TimedOut)));
    assert!(probe.end.finished());
}

#[test]
fn a_peer_that_sends_one_fpdu_after_the_other_is_not_late() {
    let mut probe = Probe::new(true);
    let fpdu = probe.fpdu(&tagged(Opcode::Write, 0, 0, true), &[]);
    probe.feed(&fpdu[..3]);
    for _ in 0..10 {
        let late = probe.end.timeout().expect("a deadline");
        probe.now = probe.now + Duration::from_secs(20);
        assert!(probe.now < late);
        probe.feed(&[&fpdu[3..], &fpdu[..3]].concat());
    }
    probe.feed(&fpdu[3..]);
    assert_eq!(probe.end.timeout(), None);
}

#[test]
fn a_read_that_is_not_answered_ends_the_connection() {
    let mut pair = Pair::new(Setting::default());
    let region = pair.region(1, &[7; 1000], Access::RemoteRead);
    pair.read(0, 1, region);
    pair.read(0, 2, region);
    while pair.transmit(0) {}
    let late = pair.ends[0].patience_at().expect("a deadline");
    // The first is answered; from then on the second has the full time.
    pair.now = pair.now + Duration::from_secs(20);
    while pair.deliver(0) {}
    while pair.transmit(1) {}
    let half = pair.wire[1].len() * 3 / 4;
    let rest = pair.wire[1].split_off(half);
    while !pair.wire[1].is_empty() {
        pair.deliver(1);
    }
    pair.ends[0].take_completions(&mut pair.done[0]);
    assert!(matches!(pair.completed(0, 1).result, Ok(Done::Read { .. })));
    let later = pair.ends[0].patience_at().expect("a deadline");
    assert!(later > late);
    assert!(pair.ends[0].handle_timeout(later));
    assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Lost(std::io::ErrorKind::TimedOut)));
    pair.ends[0].take_completions(&mut pair.done[0]);
    assert_eq!(pair.completed(0, 2).result.unwrap_err(), WorkError::Flushed);
    drop(rest);
}

/// RFC 5044 7.1.2 rule 4 again: before the first valid FPDU, a responder may not even send a Terminate.
#[test]
fn a_first_fpdu_that_is_wrong_is_answered_by_the_end_alone() {
    let pool = Pool::new(32 << 20);
    let mut end = Setting::default().connection(1, &pool);
    end.recv_slots()[0][..8].fill(0);
    end.received(8, Time::from_nanos(1));
    assert!(matches!(end.ended(), Some(Disconnect::Violation(_))));
    assert!(end.finished_sending());
}

/// A responder that asked for markers, fed a stream taken from RFC 5044.
fn marked(crc: bool, bytes: &[u8]) -> (Connection, Pool) {
    let pool = Pool::new(32 << 20);
    let mut end = Setting { crc, markers: [false, true], ..Setting::default() }.connection(1, &pool);
    for id in 1..=2 {
        let buf = pool.try_alloc(4096).unwrap();
        end.post(Work::Recv { id, buf }).unwrap();
    }
    // Byte by byte: nothing depends on what arrives together.
    for byte in bytes {
        end.recv_slots()[0][0] = *byte;
        end.received(1, Time::from_nanos(1));
    }
    (end, pool)
}

/// RFC 5044 figure 5: the first FPDU of a stream, a Send of 24 zeros, with its marker. And what happens if the marker
/// points elsewhere, with a valid CRC or without one (RFC 5044 8, error 3).
#[test]
fn the_first_marker_of_rfc_5044() {
    let mut fpdu = vec![0, 0, 0, 0, 0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    fpdu.extend_from_slice(&[0; 24]);
    let whole = [&fpdu[..], &[0x52, 0x23, 0x99, 0x83]].concat();
    let (mut end, _pool) = marked(true, &whole);
    let mut done = Vec::new();
    end.take_completions(&mut done);
    let [Completion { id: 1, result: Ok(Done::Received { buf, .. }) }] = &done[..] else {
        panic!("{done:?}")
    };
    assert_eq!(buf[..], [0; 24]);
    // The two low bits are ignored, but the CRC covers them.
    let resealed = |marker: [u8; 4]| {
        let mut bytes = fpdu.clone();
        bytes[..4].copy_from_slice(&marker);
        let mut crc = mpa::Crc::default();
        crc.update(&bytes);
        [bytes, crc.field().to_vec()].concat()
    };
    assert_eq!(marked(true, &resealed([0, 0, 0, 3])).0.ended(), None);
    for crc in [true, false] {
        let (end, _pool) = marked(crc, &resealed([0, 0, 0, 4]));
        assert_eq!(end.ended(), Some(&Disconnect::Violation("FPDU length or header")));
    }
    let mut damaged = whole.clone();
    damaged[3] = 3;
    let ended = marked(true, &damaged).0.ended().cloned();
    assert_eq!(ended, Some(Disconnect::Violation("CRC of an FPDU does not match")));
    // Cut inside the marker, or right after it.
    for cut in 1..whole.len() {
        let (mut end, _pool) = marked(true, &whole[..cut]);
        end.eof(Time::from_nanos(2));
        assert!(matches!(end.ended(), Some(Disconnect::Lost(_))), "{cut}");
    }
}

/// A marker inside an FPDU holds the distance back to its start (RFC 5044 4.3); a wrong distance ends the stream.
#[test]
fn a_marker_inside_points_at_its_fpdu() {
    let first = |pointer: u16| {
        let mut bytes = vec![0, 0, 0, 0];
        let ulpdu = (ddp::UNTAGGED_LEN + 600) as u16;
        bytes.extend_from_slice(&ulpdu.to_be_bytes());
        bytes.extend_from_slice(&untagged(Opcode::Send, 0, 1, 0, true));
        bytes.extend_from_slice(&[7; 600][..488]);
        assert_eq!(bytes.len(), 512);
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&pointer.to_be_bytes());
        bytes.extend_from_slice(&[7; 600][488..]);
        bytes.resize(bytes.len() + mpa::pad(ulpdu), 0);
        [bytes, b"junk".to_vec()].concat()
    };
    let (mut end, _pool) = marked(false, &first(508));
    let mut done = Vec::new();
    end.take_completions(&mut done);
    let [Completion { result: Ok(Done::Received { buf, .. }), .. }] = &done[..] else { panic!("{done:?}") };
    assert_eq!(buf[..], [7; 600]);
    for lie in [0, 504, 512] {
        let (end, _pool) = marked(false, &first(lie));
        assert_eq!(end.ended(), Some(&Disconnect::Violation("FPDU length or header")), "{lie}");
    }
}

/// A Write of 1000 bytes to a fill region, cut into segments of these lengths and received in pieces of `chunk` bytes.
fn filled_by(crc: bool, lens: &[usize], chunk: usize) {
    let mut probe = Probe::new(crc);
    let buf = probe.pool.buf_from(&[FILL; 1000]).unwrap();
    let region = probe.end.register(buf, Access::RemoteFill).unwrap();
    let data = pattern(3, 1000);
    let (mut stream, mut at) = (Vec::new(), 0);
    for (n, len) in lens.iter().enumerate() {
        let header = tagged(Opcode::Write, region.stag.0, region.offset + at as u64, n + 1 == lens.len());
        stream.extend(probe.fpdu(&header, &data[at..at + len]));
        at += len;
    }
    assert_eq!(at, 1000);
    // Something else follows in the same receive.
    stream.extend(probe.fpdu(&tagged(Opcode::Write, 0, 0, true), &[]));
    stream.chunks(chunk).for_each(|part| probe.feed(part));
    assert_eq!(probe.end.ended(), None, "crc {crc}, {lens:?}, {chunk} bytes at a time");
    let filled = probe.end.invalidate(region.stag, probe.now).unwrap();
    assert!(filled[..] == data[..], "crc {crc}, {lens:?}, {chunk} bytes at a time");
}

/// A peer may cut a Write as it likes: bytes that were received ahead, assuming segments of equal length, are moved to
/// where they belong. A segment longer than the one before it used to overwrite the bytes behind it.
#[test]
fn segments_of_any_length_fill_a_region() {
    let cuts: &[&[usize]] = &[
        &[100, 101, 100, 699],
        &[100, 99, 100, 101, 600],
        &[100, 120, 100, 680],
        &[100, 119, 121, 660],
        &[10, 900, 90],
        &[100, 1, 1, 1, 897],
        &[300, 0, 300, 400],
        &[1, 2, 4, 8, 16, 32, 64, 128, 256, 489],
        &[100; 10],
    ];
    for crc in [true, false] {
        for lens in cuts {
            [10_000, 1, 7, 150, 333].into_iter().for_each(|chunk| filled_by(crc, lens, chunk));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A Write cut into arbitrary segments.
    #[test]
    fn any_segments_fill_a_region(
        crc: bool, cuts in proptest::collection::vec(0usize..1000, 0..9), chunk in 1usize..1200,
    ) {
        let mut ends = cuts;
        ends.extend([0, 1000]);
        ends.sort_unstable();
        let lens: Vec<usize> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
        filled_by(crc, &lens, chunk);
    }

    /// Arbitrary bytes never cause a panic and are never placed.
    #[test]
    fn no_bytes_do_harm(crc: bool, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut probe = Probe::new(crc);
        let scene = scene(&mut probe);
        probe.feed(&bytes);
        let buf = probe.end.invalidate(scene.w.stag, probe.now).unwrap();
        prop_assert!(buf.iter().all(|byte| *byte == FILL));
    }

    /// The same after markers.
    #[test]
    fn no_marked_bytes_do_harm(crc: bool, bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let (end, _pool) = marked(crc, &bytes);
        prop_assert!(end.traffic().placed.0 == 0);
    }

    /// A valid FPDU with one byte changed and a valid CRC is checked, whatever it has become.
    #[test]
    fn no_header_does_harm(crc: bool, rule in 0..RULES.len(), at in 0usize..18, value: u8, size in 0usize..300) {
        let mut probe = Probe::new(crc);
        let scene = scene(&mut probe);
        let headers = [
            tagged(Opcode::Write, scene.w.stag.0, scene.w.offset + 50, true),
            untagged(Opcode::Send, 0, 1, 0, true),
            untagged(Opcode::ReadRequest, 1, 1, 0, true),
            untagged(Opcode::Terminate, 2, 1, 0, true),
            tagged(Opcode::ReadResponse, scene.sink.0, scene.sink.1, true),
        ];
        let mut header = headers[rule % headers.len()].clone();
        let at = at % header.len();
        header[at] = value;
        probe.say(&header, &vec![0x11; size]);
        let buf = probe.end.invalidate(scene.w.stag, probe.now).unwrap();
        prop_assert_eq!(buf.len(), 100);
        let buf = probe.end.invalidate(scene.r.stag, probe.now).unwrap();
        prop_assert!(buf.iter().all(|byte| *byte == FILL), "a region that is only read was written");
    }
}
