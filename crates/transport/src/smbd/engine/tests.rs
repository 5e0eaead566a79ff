//! Two engines under virtual time, and one engine against a hand-made peer.

use std::collections::VecDeque;

use proptest::prelude::*;
use weft_machine::{Pool, buf};

use weft_wire::smbd::{NegotiateRequest, VERSION};

use super::super::config::MAX_FRAGMENTED;
use super::*;

/// A small generator of delays: the order of events must not depend on the host.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below.max(1)
    }
}

/// One engine, its receive queue, and what a correct peer may conclude about it.
struct Side {
    engine: Engine,
    receives: VecDeque<Buf>,
    got: VecDeque<Vec<u8>>,
    /// Whether the upper layer takes messages.
    takes: bool,
    /// Receives that the pool can spare, beyond those posted.
    memory: usize,
    /// Credits in messages that have reached this side, minus messages that it sent: never negative.
    credits: i64,
    finished: Vec<u64>,
    invalidated: Vec<(Stag, Option<u64>)>,
    /// Messages on the wire from this side: delivery time and bytes.
    wire: VecDeque<(Time, Vec<u8>)>,
    sent: usize,
    empty: usize,
    flags: Vec<u16>,
    ended: Option<Ending>,
    next: u64,
}

struct Pair {
    now: Time,
    dice: Dice,
    pool: Pool,
    sides: [Side; 2],
}

const ACTIVE: usize = 0;
const PASSIVE: usize = 1;

impl Pair {
    fn new(active: Config, passive: Config, seed: u64) -> Pair {
        let now = Time::from_nanos(1_000_000);
        let side = |role, config| Side {
            engine: Engine::new(role, config, now),
            receives: VecDeque::new(),
            got: VecDeque::new(),
            takes: true,
            memory: usize::MAX,
            credits: 0,
            finished: Vec::new(),
            invalidated: Vec::new(),
            wire: VecDeque::new(),
            sent: 0,
            empty: 0,
            flags: Vec::new(),
            ended: None,
            next: 0,
        };
        Pair {
            now,
            dice: Dice(seed),
            pool: Pool::new(1 << 30),
            sides: [side(Role::Active, active), side(Role::Passive, passive)],
        }
    }

    fn established(active: Config, passive: Config, seed: u64) -> Pair {
        let mut pair = Pair::new(active, passive, seed);
        while !pair.sides.iter().all(|side| side.engine.is_established()) {
            assert!(pair.step(), "negotiation came to a halt");
        }
        pair
    }

    /// Does everything possible at this moment.
    fn pump(&mut self) {
        for (i, side) in self.sides.iter_mut().enumerate() {
            loop {
                let mut progress = false;
                let wanted = side.engine.receives_wanted().min(side.memory);
                for _ in 0..wanted {
                    side.memory -= 1;
                    side.receives.push_back(self.pool.try_alloc(side.engine.receive_size()).unwrap());
                }
                if wanted > 0 {
                    side.engine.handle(Event::Posted(wanted), self.now).unwrap();
                }
                while let Some(output) = side.engine.poll_output() {
                    progress = true;
                    side.carry_out(i, output, self.now, &mut self.dice);
                }
                if !progress {
                    break;
                }
            }
        }
    }

    /// Performs the next event; false when nothing is in transit but timers.
    fn step(&mut self) -> bool {
        self.pump();
        let Some(from) =
            (0..2).filter(|&i| !self.sides[i].wire.is_empty()).min_by_key(|&i| self.sides[i].wire[0].0)
        else {
            return false;
        };
        let (at, bytes) = self.sides[from].wire.pop_front().unwrap();
        self.now = self.now.max(at);
        self.deliver(1 - from, &bytes);
        self.pump();
        true
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let side = &mut self.sides[to];
        if side.ended.is_some() {
            return;
        }
        let mut buf = side.receives.pop_front().expect("a message found no receive");
        assert!(bytes.len() <= side.engine.receive_size(), "a message is longer than the receive");
        if side.engine.is_established() {
            if let Ok(transfer) = DataTransfer::parse(bytes) {
                side.credits += i64::from(transfer.credits_granted);
            }
        } else if let Ok(response) = NegotiateResponse::parse(bytes) {
            side.credits += i64::from(response.credits_granted);
        }
        buf.set_len(0);
        buf.extend_from_slice(bytes);
        side.memory = side.memory.saturating_add(1);
        let mut result = side.engine.handle(Event::Received(buf), self.now);
        while result.is_ok()
            && let Some(len) = side.engine.buffer_wanted()
        {
            let buf = self.pool.try_alloc(len).unwrap();
            result = side.engine.handle(Event::Buffer(buf), self.now);
        }
        side.ended = result.err();
    }

    /// Moves to the earliest timer and lets it fire.
    fn wait(&mut self) {
        self.pump();
        let at = self.sides.iter().filter_map(|side| side.engine.poll_timeout()).min().expect("a timer");
        self.now = self.now.max(at);
        for side in &mut self.sides {
            if side.engine.poll_timeout().is_some_and(|at| at <= self.now)
                && let Err(ending) = side.engine.handle(Event::Timeout, self.now)
            {
                side.ended = Some(ending);
            }
        }
        self.pump();
    }

    fn send(&mut self, from: usize, message: &[u8], pieces: usize, invalidate: Option<Stag>) -> u64 {
        let side = &mut self.sides[from];
        let number = side.next;
        side.next += 1;
        let mut body = vec![Bytes::new()];
        body.extend(message.chunks(message.len().div_ceil(pieces)).map(Bytes::copy_from_slice));
        let submission = Submission { number, body, len: message.len(), invalidate };
        side.engine.handle(Event::Submit(submission), self.now).unwrap();
        number
    }

    /// Runs until nothing is in transit.
    fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "the two never fall silent");
        }
    }

    fn assert_fine(&self) {
        for side in &self.sides {
            assert!(side.ended.is_none(), "{:?}", side.ended);
        }
    }
}

impl Side {
    fn carry_out(&mut self, i: usize, output: Output, now: Time, dice: &mut Dice) {
        match output {
            Output::Send { data, invalidate, finishes } => {
                let bytes: Vec<u8> = data.concat();
                let negotiation = self.sent == 0;
                self.sent += 1;
                if !negotiation {
                    let transfer = DataTransfer::parse(&bytes).unwrap();
                    self.empty += usize::from(transfer.data.is_empty());
                    self.flags.push(transfer.flags);
                    // [MS-SMBD] 3.1.5.1.
                    assert!(self.credits >= 1, "side {i} sends without a credit");
                    assert!(
                        self.credits > 1 || transfer.credits_granted > 0,
                        "side {i} spends its last credit without granting one"
                    );
                    self.credits -= 1;
                }
                let earliest = self.wire.back().map_or(now, |(at, _)| (*at).max(now));
                let at = earliest + Duration::from_nanos(dice.roll(20_000));
                self.wire.push_back((at, bytes));
                self.finished.extend(finishes);
                if let Some(stag) = invalidate {
                    self.invalidated.push((stag, finishes));
                }
            }
            Output::Deliver(body) => {
                if self.takes {
                    self.engine.handle(Event::Taken(body.len()), now).unwrap();
                }
                self.got.push_back(body.to_vec());
            }
            Output::Spare(_) => {}
            Output::Close(ending) => self.ended = Some(ending),
        }
    }

    fn take_all(&mut self, now: Time) {
        self.takes = true;
        for body in &self.got {
            self.engine.handle(Event::Taken(body.len()), now).unwrap();
        }
    }
}

fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut dice = Dice(salt);
    (0..len).map(|_| dice.roll(256) as u8).collect()
}

fn credits(n: u16) -> Config {
    Config { receive_credits: n, send_credits: n, ..Config::default() }
}

#[test]
fn both_sides_agree_on_sizes() {
    let ours = Config::default();
    let kernel = Config { max_send_size: 1364, max_receive_size: 1364, ..Config::default() };
    let pair = Pair::established(kernel, ours, 1);
    assert_eq!(pair.sides[PASSIVE].engine.receive_size(), 1364);
    assert_eq!(pair.sides[PASSIVE].engine.max_send, 1364);
    assert_eq!(pair.sides[ACTIVE].engine.max_send, 1364);
    let pair = Pair::established(ours, ours, 1);
    for side in &pair.sides {
        assert_eq!(side.engine.max_send, 8136);
        assert_eq!(side.engine.receive_size(), 8136);
        assert_eq!(side.engine.max_message_out(), MAX_FRAGMENTED as usize);
        assert_eq!(side.engine.max_read_write(), 8 << 20);
    }
    let small = Config { max_read_write_size: 1 << 20, max_fragmented_size: 1 << 17, ..ours };
    let pair = Pair::established(ours, small, 1);
    assert_eq!(pair.sides[ACTIVE].engine.max_read_write(), 1 << 20);
    assert_eq!(pair.sides[ACTIVE].engine.max_message_out(), 1 << 17);
    assert_eq!(pair.sides[ACTIVE].engine.max_message_in(), MAX_FRAGMENTED as usize);
}

#[test]
fn windows_accepts_our_negotiate_request() {
    // [MS-SMBD] 3.1.5.6 note 6: PreferredSendSize above 8136 is refused. This holds whatever the configuration says.
    for max_send_size in [0, 1364, 8136, 8137, 65536, u32::MAX] {
        let config = Config { max_send_size, ..Config::default() };
        let mut engine = Engine::new(Role::Active, config, Time::ZERO);
        let Some(Output::Send { data, .. }) = engine.poll_output() else { panic!("no request") };
        let request = NegotiateRequest::parse(&data.concat()).unwrap();
        assert!((128..=8136).contains(&request.preferred_send_size));
        assert_eq!((request.min_version, request.max_version), (VERSION, VERSION));
        assert_eq!(request.credits_requested, 255);
        // Room for SMB's overhead around a mebibyte: 16, 52 and 64 bytes of headers and at least a WRITE's 48.
        assert!(request.max_fragmented_size >= (1 << 20) + 164);
    }
}

#[test]
fn a_small_message_is_not_copied_and_a_large_one_once_and_a_third() {
    let mut pair = Pair::established(Config::default(), Config::default(), 7);
    for (len, most) in
        [(100, 0), (8112, 0), (8113, 8113), (100 << 10, 100 << 10), (1 << 20, (1 << 20) * 4 / 3)]
    {
        let message = pattern(len, len as u64);
        let before = buf::copies().1;
        pair.send(ACTIVE, &message, 3, None);
        pair.settle();
        assert_eq!(pair.sides[PASSIVE].got.pop_front().unwrap(), message);
        let copied = buf::copies().1 - before;
        assert!((most * 3 / 4..=most).contains(&copied), "{copied} of {len} bytes");
    }
}

#[test]
fn a_message_of_many_pieces_is_cut_into_fragments_without_loss() {
    let small = Config { max_send_size: 128, max_receive_size: 512, ..Config::default() };
    let mut pair = Pair::established(small, small, 3);
    for pieces in [1, 2, 3, 7, 50, 1000] {
        let message = pattern(1000, pieces as u64);
        pair.send(PASSIVE, &message, pieces, None);
        pair.send(ACTIVE, &message, pieces, None);
        pair.settle();
        assert_eq!(pair.sides[ACTIVE].got.pop_front().unwrap(), message);
        assert_eq!(pair.sides[PASSIVE].got.pop_front().unwrap(), message);
    }
    pair.assert_fine();
}

#[test]
fn a_region_is_invalidated_with_the_last_fragment_only() {
    let mut pair = Pair::established(Config::default(), Config::default(), 5);
    pair.wait();
    let number = pair.send(PASSIVE, &pattern(100_000, 1), 4, Some(Stag(77)));
    pair.settle();
    let small = pair.send(PASSIVE, &pattern(10, 1), 1, Some(Stag(78)));
    pair.settle();
    assert_eq!(pair.sides[PASSIVE].invalidated, [(Stag(77), Some(number)), (Stag(78), Some(small))]);
    assert_eq!(pair.sides[PASSIVE].finished, [number, small]);
}

#[test]
fn the_passive_side_may_speak_first() {
    let mut pair = Pair::established(Config::default(), Config::default(), 5);
    pair.send(PASSIVE, b"hello", 1, None);
    pair.settle();
    assert!(pair.sides[ACTIVE].got.is_empty(), "the passive side has no credit yet");
    pair.wait();
    pair.settle();
    assert_eq!(pair.sides[ACTIVE].got.len(), 1);
    assert_eq!(pair.now.since(Time::from_nanos(1_000_000)).as_millis(), FIRST_GRANT.as_millis());
}

#[test]
fn the_first_message_carries_the_first_credits() {
    let mut pair = Pair::established(Config::default(), Config::default(), 5);
    pair.send(ACTIVE, b"negotiate", 1, None);
    pair.settle();
    pair.send(PASSIVE, b"response", 1, None);
    pair.settle();
    assert_eq!(pair.sides[ACTIVE].got.len(), 1);
    assert_eq!((pair.sides[ACTIVE].empty, pair.sides[PASSIVE].empty), (0, 0));
}

#[test]
fn requests_and_answers_need_no_messages_for_credits() {
    let mut pair = Pair::established(Config::default(), Config::default(), 9);
    for round in 0..2000u64 {
        pair.send(ACTIVE, &pattern(120, round), 1, None);
        pair.settle();
        pair.send(PASSIVE, &pattern(84, round), 2, None);
        pair.settle();
    }
    assert_eq!((pair.sides[ACTIVE].empty, pair.sides[PASSIVE].empty), (0, 0));
    assert_eq!(pair.sides[PASSIVE].got.len(), 2000);
    pair.assert_fine();
}

#[test]
fn a_one_way_stream_costs_few_messages_for_credits() {
    let mut pair = Pair::established(Config::default(), Config::default(), 9);
    for round in 0..5000u64 {
        pair.send(ACTIVE, &pattern(100, round), 1, None);
    }
    pair.settle();
    assert_eq!(pair.sides[PASSIVE].got.len(), 5000);
    let empty = pair.sides[PASSIVE].empty;
    assert!((1..=5000 / 100).contains(&empty), "{empty} messages for credits");
    pair.assert_fine();
}

#[test]
fn a_credit_is_granted_only_after_its_receive_is_posted() {
    // The peer wants 255, but there is memory for three receives only: the harness fails a message that finds none.
    let mut pair = Pair::new(Config::default(), Config::default(), 11);
    pair.sides[PASSIVE].memory = 3;
    pair.sides[ACTIVE].memory = 2;
    while !pair.sides.iter().all(|side| side.engine.is_established()) {
        assert!(pair.step());
    }
    assert!(pair.sides[ACTIVE].credits <= 3);
    for round in 0..200u64 {
        pair.send(ACTIVE, &pattern(9000, round), 1, None);
        pair.send(PASSIVE, &pattern(9000, round), 1, None);
    }
    pair.settle();
    assert_eq!((pair.sides[ACTIVE].got.len(), pair.sides[PASSIVE].got.len()), (200, 200));
    pair.assert_fine();
}

#[test]
fn one_credit_each_is_enough_for_both_directions_at_once() {
    // The deadlock on the last credit.
    for (a, b) in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 255), (255, 1)] {
        for seed in 0..8 {
            let mut pair = Pair::established(credits(a), credits(b), seed);
            for round in 0..20u64 {
                pair.send(ACTIVE, &pattern(20_000, round), 1, None);
                pair.send(PASSIVE, &pattern(20_000, round), 1, None);
            }
            pair.settle();
            if pair.sides.iter().any(|side| side.got.len() < 20) {
                // Only before the first grant may both be silent.
                pair.wait();
                pair.settle();
            }
            assert_eq!(
                (pair.sides[ACTIVE].got.len(), pair.sides[PASSIVE].got.len()),
                (20, 20),
                "{a} {b} {seed}"
            );
            pair.assert_fine();
        }
    }
}

#[test]
fn a_reader_that_does_not_read_stops_the_writer_and_starts_it_again() {
    let mut pair = Pair::established(Config::default(), Config::default(), 13);
    pair.sides[PASSIVE].takes = false;
    for round in 0..2000u64 {
        pair.send(ACTIVE, &pattern(60_000, round), 1, None);
    }
    pair.settle();
    let delivered = pair.sides[PASSIVE].got.len();
    assert!(delivered * 60_000 <= MAX_HELD_BYTES + 255 * 8136, "{delivered} messages pile up");
    let now = pair.now;
    pair.sides[PASSIVE].take_all(now);
    pair.settle();
    assert_eq!(pair.sides[PASSIVE].got.len(), 2000);
    pair.assert_fine();
}

#[test]
fn an_idle_peer_is_asked_and_its_answer_keeps_the_connection() {
    let mut pair = Pair::established(Config::default(), Config::default(), 17);
    pair.send(ACTIVE, b"x", 1, None);
    pair.settle();
    let start = pair.now;
    for _ in 0..10 {
        pair.wait();
        pair.settle();
        pair.assert_fine();
    }
    assert!(pair.now.since(start) >= Duration::from_secs(120 * 4));
    let asked: usize = pair.sides.iter().flat_map(|side| &side.flags).filter(|&&flags| flags != 0).count();
    assert!(asked >= 4, "asked {asked} times");
    let sent: usize = pair.sides.iter().map(|side| side.sent).sum();
    assert!(sent <= 2 + 1 + 3 * asked, "{sent} messages for {asked} questions");
}

#[test]
fn an_answer_to_a_keepalive_does_not_ask_back() {
    let mut pair = Pair::established(Config::default(), Config::default(), 17);
    pair.send(ACTIVE, b"x", 1, None);
    pair.settle();
    let (now, pool) = (pair.now, pair.pool.clone());
    let passive = &mut pair.sides[PASSIVE];
    let question = DataTransfer::header(255, 0, RESPONSE_REQUESTED, 0, 0);
    passive
        .engine
        .handle(Event::Received(pool.buf_from(&question[..DataTransfer::LEN]).unwrap()), now)
        .unwrap();
    passive.flags.clear();
    pair.pump();
    assert_eq!(pair.sides[PASSIVE].flags, [0]);
}

#[test]
fn a_peer_that_does_not_answer_a_keepalive_is_gone_after_five_seconds() {
    let mut pair = Pair::established(Config::default(), Config::default(), 17);
    pair.send(ACTIVE, b"x", 1, None);
    pair.settle();
    let start = pair.now;
    let active = &mut pair.sides[ACTIVE];
    let asks = active.engine.poll_timeout().unwrap();
    assert!(asks.since(start) <= Duration::from_secs(120));
    active.engine.handle(Event::Timeout, asks).unwrap();
    let Some(Output::Send { data, .. }) = active.engine.poll_output() else { panic!("no question") };
    assert_eq!(DataTransfer::parse(&data.concat()).unwrap().flags, RESPONSE_REQUESTED);
    let gives_up = active.engine.poll_timeout().unwrap();
    assert_eq!(gives_up - asks, KEEPALIVE_ANSWER);
    assert!(matches!(active.engine.handle(Event::Timeout, gives_up), Err(Ending::TimedOut(_))));
    assert_eq!(active.engine.poll_timeout(), None);
}

#[test]
fn negotiation_has_a_time_limit() {
    for (role, limit) in [(Role::Active, ACTIVE_NEGOTIATION), (Role::Passive, PASSIVE_NEGOTIATION)] {
        let mut engine = Engine::new(role, Config::default(), Time::ZERO);
        while engine.poll_output().is_some() {}
        let deadline = engine.poll_timeout().unwrap();
        assert_eq!(deadline.since(Time::ZERO), limit);
        assert!(engine.handle(Event::Timeout, Time::from_nanos(deadline.as_nanos() - 1)).is_ok());
        assert!(matches!(engine.handle(Event::Timeout, deadline), Err(Ending::TimedOut(_))));
    }
}

#[test]
fn a_peer_of_another_version_is_told_so() {
    let pool = Pool::new(1 << 24);
    for (min, max) in [(0x0200, 0x0300), (0, 0x00ff), (0x0101, 0x0100), (0xffff, 0xffff)] {
        let mut engine = fresh(Role::Passive);
        let mut bytes = Vec::new();
        NegotiateRequest { min_version: min, max_version: max, ..request() }.emit(&mut bytes);
        engine.handle(Event::Received(pool.buf_from(&bytes).unwrap()), Time::ZERO).unwrap();
        let mut outputs = Vec::new();
        while let Some(output) = engine.poll_output() {
            outputs.push(output);
        }
        let [Output::Spare(_), Output::Send { data, .. }, Output::Close(Ending::Violation(_))] = &outputs[..]
        else {
            panic!("{outputs:?}");
        };
        let response = NegotiateResponse::parse(&data.concat()).unwrap();
        assert_eq!(response, NegotiateResponse::refusal(0xc000_00bb));
    }
}

fn request() -> NegotiateRequest {
    NegotiateRequest {
        min_version: VERSION,
        max_version: VERSION,
        credits_requested: 10,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    }
}

fn response() -> NegotiateResponse {
    NegotiateResponse {
        min_version: VERSION,
        max_version: VERSION,
        negotiated_version: VERSION,
        credits_requested: 10,
        credits_granted: 10,
        status: 0,
        max_read_write_size: 8 << 20,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    }
}

/// An engine that waits for the peer's first message.
fn fresh(role: Role) -> Engine {
    let mut engine = Engine::new(role, Config::default(), Time::ZERO);
    while engine.poll_output().is_some() {}
    engine.handle(Event::Posted(1), Time::ZERO).unwrap();
    engine
}

/// An engine in the role of `role` that has given its peer ten credits.
fn established(role: Role, pool: &Pool) -> Engine {
    let mut engine = fresh(role);
    let mut bytes = Vec::new();
    match role {
        Role::Passive => request().emit(&mut bytes),
        Role::Active => response().emit(&mut bytes),
    }
    engine.handle(Event::Received(pool.buf_from(&bytes).unwrap()), Time::ZERO).unwrap();
    let wanted = engine.receives_wanted();
    assert_eq!(wanted, 10);
    engine.handle(Event::Posted(wanted), Time::ZERO).unwrap();
    if role == Role::Active {
        let submission =
            Submission { number: 0, body: vec![Bytes::new(), "x".into()], len: 1, invalidate: None };
        engine.handle(Event::Submit(submission), Time::ZERO).unwrap();
    }
    while engine.poll_output().is_some() {}
    assert!(engine.is_established());
    assert_eq!(engine.granted, 10);
    engine
}

/// One Data Transfer with all its fields free.
fn transfer(requested: u16, granted: u16, remaining: u32, offset: u32, len: u32, total: usize) -> Vec<u8> {
    let mut bytes = DataTransfer::header(requested, granted, 0, remaining, len).to_vec();
    bytes[12..16].copy_from_slice(&offset.to_le_bytes());
    bytes.resize(total, 0xa5);
    bytes
}

fn feed(engine: &mut Engine, pool: &Pool, message: &[u8]) -> Result<(), Ending> {
    engine.handle(Event::Received(pool.buf_from(message).unwrap()), Time::ZERO)?;
    if let Some(len) = engine.buffer_wanted() {
        assert!(len <= engine.max_message_in());
        engine.handle(Event::Buffer(pool.try_alloc(len).unwrap()), Time::ZERO)?;
    }
    Ok(())
}

#[test]
fn impossible_negotiations_end_the_connection() {
    let pool = Pool::new(1 << 24);
    let good = request();
    for bad in [
        NegotiateRequest { credits_requested: 0, ..good },
        NegotiateRequest { max_receive_size: 127, ..good },
        NegotiateRequest { max_fragmented_size: 131_071, ..good },
    ] {
        let mut bytes = Vec::new();
        bad.emit(&mut bytes);
        assert!(
            matches!(feed(&mut fresh(Role::Passive), &pool, &bytes), Err(Ending::Violation(_))),
            "{bad:?}"
        );
    }
    let good = response();
    for bad in [
        NegotiateResponse { status: 0xc000_009a, ..good },
        NegotiateResponse { negotiated_version: 0x0200, ..good },
        NegotiateResponse { credits_requested: 0, ..good },
        NegotiateResponse { credits_granted: 0, ..good },
        NegotiateResponse { preferred_send_size: 8193, ..good },
        NegotiateResponse { max_receive_size: 127, ..good },
        NegotiateResponse { max_fragmented_size: 0, ..good },
    ] {
        let mut bytes = Vec::new();
        bad.emit(&mut bytes);
        assert!(
            matches!(feed(&mut fresh(Role::Active), &pool, &bytes), Err(Ending::Violation(_))),
            "{bad:?}"
        );
    }
}

#[test]
fn a_peer_that_wants_to_send_little_still_gets_receives_of_128_bytes() {
    let pool = Pool::new(1 << 24);
    let mut bytes = Vec::new();
    NegotiateRequest { preferred_send_size: 0, ..request() }.emit(&mut bytes);
    let mut engine = fresh(Role::Passive);
    feed(&mut engine, &pool, &bytes).unwrap();
    assert_eq!(engine.receive_size(), 128);
}

#[test]
fn every_message_truncated_anywhere_is_an_error() {
    let pool = Pool::new(1 << 24);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    request().emit(&mut first);
    response().emit(&mut second);
    for n in 0..first.len() {
        assert!(matches!(feed(&mut fresh(Role::Passive), &pool, &first[..n]), Err(Ending::Malformed(_))));
    }
    for n in 0..second.len() {
        assert!(matches!(feed(&mut fresh(Role::Active), &pool, &second[..n]), Err(Ending::Malformed(_))));
    }
    for message in
        [transfer(10, 1, 0, 24, 16, 40), transfer(10, 1, 100, 24, 16, 40), transfer(10, 1, 0, 0, 0, 20)]
    {
        for n in 0..message.len() {
            let result = feed(&mut established(Role::Passive, &pool), &pool, &message[..n]);
            assert!(matches!(result, Err(Ending::Malformed(_))), "{n} bytes");
        }
    }
}

#[test]
fn hostile_messages_end_the_connection() {
    let pool = Pool::new(1 << 24);
    let cases: &[(&str, &[Vec<u8>])] = &[
        ("no credits requested", &[transfer(0, 1, 0, 24, 8, 32)]),
        ("offset unaligned", &[transfer(10, 1, 0, 20, 8, 32)]),
        ("offset in the header", &[transfer(10, 1, 0, 8, 8, 32)]),
        ("length beyond the end", &[transfer(10, 1, 0, 24, 9, 32)]),
        ("length that overflows", &[transfer(10, 1, 0, 24, u32::MAX, 32)]),
        ("message too long", &[transfer(10, 1, MAX_FRAGMENTED - 7, 24, 8, 32)]),
        ("message so long that the sum overflows", &[transfer(10, 1, u32::MAX, 24, 8, 32)]),
        ("an empty fragment of something", &[transfer(10, 1, 8, 0, 0, 20)]),
        ("more than announced", &[transfer(10, 1, 8, 24, 8, 32), transfer(10, 1, 0, 24, 16, 40)]),
        ("more announced later", &[transfer(10, 1, 8, 24, 8, 32), transfer(10, 1, 8, 24, 8, 32)]),
        ("less than announced", &[transfer(10, 1, 16, 24, 8, 32), transfer(10, 1, 0, 24, 8, 32)]),
        ("a message inside a message", &[transfer(10, 1, 8, 24, 8, 32), transfer(10, 1, 100, 24, 8, 32)]),
    ];
    for role in [Role::Active, Role::Passive] {
        for (what, messages) in cases {
            let mut engine = established(role, &pool);
            let (last, before) = messages.split_last().unwrap();
            for message in before {
                feed(&mut engine, &pool, message).unwrap();
            }
            let result = feed(&mut engine, &pool, last);
            assert!(matches!(result, Err(Ending::Violation(_) | Ending::Malformed(_))), "{what}: {result:?}");
            assert!(!engine.is_established());
            assert_eq!(engine.receives_wanted(), 0);
        }
    }
}

#[test]
fn messages_without_credits_end_the_connection() {
    let pool = Pool::new(1 << 24);
    let mut engine = established(Role::Passive, &pool);
    // Ten credits were granted; the engine may not grant more, because it has none itself.
    for _ in 0..10 {
        feed(&mut engine, &pool, &transfer(10, 0, 0, 24, 8, 32)).unwrap();
        engine.handle(Event::Taken(8), Time::ZERO).unwrap();
        let wanted = engine.receives_wanted();
        engine.handle(Event::Posted(wanted), Time::ZERO).unwrap();
        while let Some(output) = engine.poll_output() {
            assert!(!matches!(output, Output::Send { .. }), "sent without a credit");
        }
    }
    let result = feed(&mut engine, &pool, &transfer(10, 0, 0, 24, 8, 32));
    assert!(matches!(result, Err(Ending::Violation(what)) if what.contains("without a credit")));
}

#[test]
fn a_message_that_is_begun_holds_what_has_come_and_ends_the_connection_in_time() {
    let pool = Pool::new(1 << 24);
    let mut engine = established(Role::Passive, &pool);
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let first = transfer(10, 1, 1_000_000, 24, 1000, 1024);
    engine.handle(Event::Received(pool.buf_from(&first).unwrap()), at(1)).unwrap();
    // A sixteenth of the announced length, until more has arrived.
    assert_eq!(engine.buffer_wanted(), Some(64 << 10));
    // The time of our own wait for memory does not count.
    assert!(engine.poll_timeout().unwrap() > at(100));
    engine.handle(Event::Buffer(pool.try_alloc(64 << 10).unwrap()), at(90)).unwrap();
    assert_eq!(engine.poll_timeout(), Some(at(90) + MESSAGE_LIMIT));
    // Neither credits nor another fragment extend the deadline.
    let credits = transfer(10, 1, 0, 0, 0, 20);
    let second = transfer(10, 1, 999_000, 24, 1000, 1024);
    for message in [credits, second] {
        engine.handle(Event::Received(pool.buf_from(&message).unwrap()), at(100)).unwrap();
        assert_eq!(engine.buffer_wanted(), None);
        assert_eq!(engine.poll_timeout(), Some(at(90) + MESSAGE_LIMIT));
    }
    engine.handle(Event::Timeout, at(119)).unwrap();
    let ended = engine.handle(Event::Timeout, at(120));
    assert!(matches!(ended, Err(Ending::TimedOut("the remainder of a fragmented message"))), "{ended:?}");
}

#[test]
fn a_stranger_sends_no_longer_messages_than_a_log_on_needs() {
    let pool = Pool::new(1 << 24);
    let strange = || {
        let mut engine = established(Role::Passive, &pool);
        engine.config.max_stranger_size = 64 << 10;
        engine
    };
    let mut engine = strange();
    feed(&mut engine, &pool, &transfer(10, 1, (64 << 10) - 1000, 24, 1000, 1024)).unwrap();
    let long = transfer(10, 1, (64 << 10) - 999, 24, 1000, 1024);
    assert!(matches!(feed(&mut strange(), &pool, &long), Err(Ending::Violation(_))));
    let mut engine = strange();
    engine.authenticated();
    feed(&mut engine, &pool, &long).unwrap();
}

#[test]
fn a_client_that_says_nothing_after_negotiation_is_let_go_in_time() {
    let pool = Pool::new(1 << 24);
    let late = Time::ZERO + FIRST_MESSAGE_LIMIT;
    let mut engine = established(Role::Passive, &pool);
    assert_eq!(engine.poll_timeout(), Some(late));
    // Credits do not count as a message.
    feed(&mut engine, &pool, &transfer(10, 1, 0, 0, 0, 20)).unwrap();
    assert!(matches!(engine.handle(Event::Timeout, late), Err(Ending::TimedOut(_))));
    let mut engine = established(Role::Passive, &pool);
    feed(&mut engine, &pool, &transfer(10, 1, 0, 24, 8, 32)).unwrap();
    assert!(engine.poll_timeout().unwrap() > late);
    // A server may be silent while nothing is requested.
    assert!(established(Role::Active, &pool).poll_timeout().unwrap() > late);
}

#[test]
fn a_peer_has_few_receives_until_it_uses_them() {
    let mut pair = Pair::established(Config::default(), Config::default(), 3);
    for _ in 0..20 {
        // One after the other.
        pair.send(ACTIVE, b"ask", 1, None);
        pair.settle();
        pair.send(PASSIVE, b"answer", 1, None);
        pair.settle();
    }
    assert!(pair.sides.iter().all(|side| side.receives.len() <= FIRST_CREDITS + 1));
    for round in 0..40u64 {
        pair.send(ACTIVE, &pattern(200_000, round), 1, None);
    }
    pair.settle();
    assert!(pair.sides[PASSIVE].receives.len() > 200, "{}", pair.sides[PASSIVE].receives.len());
    pair.assert_fine();
}

#[test]
fn a_second_request_before_the_response_ends_the_connection() {
    let pool = Pool::new(1 << 24);
    let mut bytes = Vec::new();
    request().emit(&mut bytes);
    let mut engine = fresh(Role::Passive);
    feed(&mut engine, &pool, &bytes).unwrap();
    assert!(matches!(feed(&mut engine, &pool, &bytes), Err(Ending::Violation(_))));
}

#[test]
fn an_empty_message_between_fragments_is_not_a_fragment() {
    let pool = Pool::new(1 << 24);
    let mut engine = established(Role::Passive, &pool);
    feed(&mut engine, &pool, &transfer(10, 1, 8, 24, 8, 32)).unwrap();
    feed(&mut engine, &pool, &transfer(10, 3, 0, 0, 0, 20)).unwrap();
    feed(&mut engine, &pool, &transfer(10, 1, 0, 24, 8, 32)).unwrap();
    let mut delivered = Vec::new();
    while let Some(output) = engine.poll_output() {
        if let Output::Deliver(body) = output {
            delivered.push(body);
        }
    }
    assert_eq!(delivered, [Bytes::from(vec![0xa5; 16])]);
}

#[test]
fn granting_credits_for_ever_does_not_overflow() {
    let pool = Pool::new(1 << 24);
    let mut engine = established(Role::Passive, &pool);
    for _ in 0..10 {
        feed(&mut engine, &pool, &transfer(10, u16::MAX, 0, 0, 0, 20)).unwrap();
    }
    assert_eq!(engine.send_credits, u32::from(u16::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_whole_and_in_order(
        seed in any::<u64>(),
        active in 1u16..20,
        passive in 1u16..20,
        sizes in (128u32..2000, 512u32..2000, 128u32..2000, 512u32..2000),
        lens in proptest::collection::vec((any::<bool>(), 1usize..20_000, 1usize..5), 1..60),
    ) {
        let a = Config { max_send_size: sizes.0, max_receive_size: sizes.1, ..credits(active) };
        let b = Config { max_send_size: sizes.2, max_receive_size: sizes.3, ..credits(passive) };
        let mut pair = Pair::established(a, b, seed);
        let mut expected = [VecDeque::new(), VecDeque::new()];
        for (i, &(from_active, len, pieces)) in lens.iter().enumerate() {
            let from = if from_active { ACTIVE } else { PASSIVE };
            let message = pattern(len, i as u64);
            pair.send(from, &message, pieces, None);
            expected[1 - from].push_back(message);
            for _ in 0..pair.dice.roll(8) {
                pair.step();
            }
        }
        pair.settle();
        if pair.sides.iter().zip(&expected).any(|(side, expected)| side.got.len() < expected.len()) {
            // Only before the first grant may both be silent.
            pair.wait();
            pair.settle();
        }
        pair.assert_fine();
        for (side, expected) in pair.sides.iter().zip(expected) {
            prop_assert_eq!(&side.got, &expected);
            prop_assert!(side.engine.is_drained());
            prop_assert!(side.finished.is_sorted());
            prop_assert_eq!(side.finished.len() as u64, side.next);
        }
    }

    #[test]
    fn arbitrary_messages_never_panic(
        passive in any::<bool>(),
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..9),
    ) {
        let pool = Pool::new(1 << 26);
        let role = if passive { Role::Passive } else { Role::Active };
        for mut engine in [fresh(role), established(role, &pool)] {
            for message in &messages {
                if feed(&mut engine, &pool, message).is_err() {
                    break;
                }
                while engine.poll_output().is_some() {}
            }
        }
    }

    #[test]
    fn damaged_fragments_never_panic(
        flips in proptest::collection::vec((0usize..6, 0usize..24 * 8), 1..6),
    ) {
        let pool = Pool::new(1 << 26);
        let mut engine = established(Role::Passive, &pool);
        for i in 0..6u32 {
            let mut message = transfer(10, 1, (5 - i) * 16, 24, 16, 40);
            for (_, bit) in flips.iter().filter(|(at, _)| *at == i as usize) {
                message[bit / 8] ^= 1 << (bit % 8);
            }
            if feed(&mut engine, &pool, &message).is_err() {
                break;
            }
            while engine.poll_output().is_some() {}
        }
    }
}
