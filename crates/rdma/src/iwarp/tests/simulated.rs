//! Two providers over the machine's simulated TCP, from one seed, which determines the settings, work, window, pieces,
//! delays, the order in which tasks run and completions are processed, and the byte at which the connection breaks. A
//! model of plain arrays gives the expected content of each side's memory: the peer's writes, in order, as far as they
//! arrived, and no other change.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_machine::rt;
use weft_machine::sim::{Cut, CutHow, Faults, Side, Sim};

use super::*;
use crate::iwarp::{Config, Provider};
use crate::verbs::{ConnectError, ConnectParams, Disconnect, Provider as _, QueuePair, Stag, WorkError};

/// Seeds to run: 3 ms of one core each in the test profile. `WEFT_SEEDS` overrides it; CI runs 4,000.
const SEEDS: u64 = 1000;
const REGION: usize = 900;
const RECVS: u64 = 14;
const MOST_WORK: u64 = 10;
/// After this long without an event a side takes the connection for dead.
const PATIENCE: Duration = Duration::from_secs(30);
/// A side's first message: the positions of its two regions.
const TOLD: usize = 24;
/// Ids of Sends, Writes and Reads; those of receive buffers lie below.
const FIRST_WORK: u64 = 100;
const TOLD_ID: u64 = 98;
const BYE_ID: u64 = 99;
const BYE: &[u8] = b"bye";

thread_local! {
    // One for all stories: making a pool costs as much as a story.
    static POOL: Pool = Pool::new(64 << 20);
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize),
    Write(usize, usize),
    Read(usize, usize),
}

/// What one side does.
#[derive(Clone, Debug)]
struct Plan {
    config: Config,
    ops: Vec<Op>,
    /// Closes first; the other side observes it.
    closes: bool,
}

/// What a side has observed by the end.
struct Life {
    completions: Vec<Completion>,
    ended: Disconnect,
    /// What was posted, Sends and receive buffers included.
    posted: Vec<u64>,
    sink: Buf,
    source: Buf,
    placed: u64,
    /// Neither posted nor registered; it lies between buffers that are.
    bystander: Buf,
}

fn data(side: usize, id: u64, len: usize) -> Vec<u8> {
    pattern(id * 2 + side as u64, len)
}

fn readable(side: usize) -> Vec<u8> {
    pattern(7 + side as u64, REGION)
}

/// A buffer filled with `FILL`.
fn blank(pool: &Pool, len: usize) -> Buf {
    let mut buf = pool.try_alloc(len).unwrap();
    buf.room().fill(FILL);
    buf
}

/// One side of a connection, carrying out its plan.
struct Player {
    qp: Rc<dyn QueuePair>,
    side: usize,
    pool: Pool,
    rng: Rng,
    seen: Vec<Completion>,
    posted: Vec<u64>,
}

impl Player {
    /// Waits for completions and processes them in any order.
    async fn poll(&mut self) -> Result<(), Disconnect> {
        let mut some = Vec::new();
        std::future::poll_fn(|cx| self.qp.poll(cx, &mut some)).await?;
        assert!(!some.is_empty());
        while !some.is_empty() {
            let next = self.rng.below(some.len());
            self.seen.push(some.remove(next));
        }
        Ok(())
    }

    fn has(&self, id: u64) -> bool {
        self.seen.iter().any(|c| c.id == id)
    }

    /// The message in receive buffer `id`.
    fn message(&self, id: u64) -> Option<&[u8]> {
        self.seen.iter().find_map(|c| match &c.result {
            Ok(Done::Received { buf, .. }) if c.id == id => Some(&buf[..]),
            _ => None,
        })
    }

    fn post(&mut self, work: Work) -> Result<(), Disconnect> {
        let id = work.id();
        match self.qp.post(work) {
            Ok(()) => {
                self.posted.push(id);
                Ok(())
            }
            // The next poll returns the reason.
            Err((crate::verbs::PostError::Closed, _)) => Ok(()),
            Err((other, _)) => panic!("{other}"),
        }
    }

    fn send(&mut self, id: u64, message: Vec<u8>) -> Result<(), Disconnect> {
        let solicited = self.rng.one_in(2);
        let data = vec![message.into()];
        self.post(Work::Send { id, data, invalidate: None, solicited, signalled: true })
    }

    /// Carries out the whole plan; ends with the connection, or orderly.
    async fn play(&mut self, plan: &Plan, peer_sends: u64, told: Vec<u8>) -> Result<(), Disconnect> {
        if self.side == 0 {
            self.send(TOLD_ID, told.clone())?;
        }
        while self.message(0).is_none() {
            self.poll().await?;
        }
        if self.side == 1 {
            self.send(TOLD_ID, told)?;
        }
        let theirs = self.message(0).unwrap().to_vec();
        let segment = |at: usize| Segment {
            stag: Stag(u32::from_be_bytes(theirs[at..at + 4].try_into().unwrap())),
            offset: u64::from_be_bytes(theirs[at + 4..at + 12].try_into().unwrap()),
            len: REGION as u32,
        };
        let (sink, source) = (segment(0), segment(12));
        for (id, op) in (FIRST_WORK..).zip(&plan.ops) {
            match *op {
                Op::Send(len) => self.send(id, data(self.side, id, len))?,
                Op::Write(at, len) => {
                    let data = Payload::Chain(vec![data(self.side, id, len).into()]);
                    self.post(Work::Write {
                        id,
                        data,
                        to: part(sink, at as u64, len as u32),
                        signalled: true,
                    })?;
                }
                Op::Read(at, len) => {
                    let into = blank(&self.pool, len);
                    self.post(Work::Read { id, into, from: part(source, at as u64, len as u32) })?;
                }
            }
            match self.rng.below(4) {
                0 => rt::sleep(Duration::from_micros(self.rng.within(1..=3000))).await,
                1 => rt::yield_now().await,
                _ => {}
            }
        }
        while !(0..plan.ops.len() as u64).all(|n| self.has(FIRST_WORK + n)) {
            self.poll().await?;
        }
        // The peer's last message follows its last Write, and is sent after its Reads are done.
        self.send(BYE_ID, BYE.to_vec())?;
        while !self.has(BYE_ID) || self.message(peer_sends + 1).is_none() {
            self.poll().await?;
        }
        if !plan.closes {
            // Until the peer closes.
            loop {
                self.poll().await?;
            }
        }
        Ok(())
    }
}

async fn live(
    qp: Rc<dyn QueuePair>,
    side: usize,
    plan: &Plan,
    peer_sends: u64,
    pool: &Pool,
    seed: u64,
) -> Life {
    let filled = |bytes: &[u8]| pool.buf_from(bytes).unwrap();
    let sink = qp.register(filled(&[FILL; REGION]), Access::RemoteWrite).ok();
    let mut bystander = blank(pool, REGION);
    bystander.set_len(REGION);
    let source = qp.register(filled(&readable(side)), Access::RemoteRead).ok();
    let told: Vec<u8> = [sink, source]
        .iter()
        .flatten()
        .flat_map(|s| [&s.stag.0.to_be_bytes()[..], &s.offset.to_be_bytes()].concat())
        .collect();
    let rng = Rng::new(seed ^ side as u64);
    let posted = (0..RECVS).collect();
    let mut player = Player { qp: qp.clone(), side, pool: pool.clone(), rng, seen: Vec::new(), posted };
    if told.len() == TOLD {
        // Whatever the outcome, the connection is closed in the end.
        let _ = rt::timeout(PATIENCE, player.play(plan, peer_sends, told)).await;
    }
    qp.close();
    let ended = loop {
        if let Err(reason) = player.poll().await {
            break reason;
        }
    };
    let back = |segment: Option<Segment>, blank: &[u8]| match segment {
        Some(segment) => qp.invalidate(segment.stag).expect("a region comes back"),
        None => filled(blank),
    };
    let (sink, source) = (back(sink, &[FILL; REGION]), back(source, &readable(side)));
    let Player { seen: completions, posted, .. } = player;
    Life { completions, ended, posted, sink, source, placed: qp.traffic().placed.0, bystander }
}

/// Both sides; a side without a `Life` never had a connection.
async fn both(plans: [Plan; 2], pool: Pool, seed: u64) -> [Option<Life>; 2] {
    let sends =
        [0, 1].map(|side| plans[side].ops.iter().filter(|op| matches!(op, Op::Send(_))).count() as u64);
    let provider = |side: usize| Provider::new(pool.clone(), plans[side].config.clone());
    let (client, server) = (provider(0), provider(1));
    let listener = server.listen(([10, 0, 0, 1], 7).into()).await.unwrap();
    let recvs = || (0..RECVS).map(|id| Work::Recv { id, buf: blank(&pool, REGION) });
    let serve = async {
        let setup = async {
            // A connection cut before its first byte may be retried in the older form.
            loop {
                match listener.accept().await.unwrap().request().await {
                    Ok(request) => return request.accept(ConnectParams::default(), recvs().collect()).await,
                    Err(ConnectError::Violation(_) | ConnectError::Io(_) | ConnectError::TimedOut(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        };
        let qp = rt::timeout(PATIENCE, setup).await.ok()?.ok()?;
        Some(live(qp, 1, &plans[1], sends[0], &pool, seed).await)
    };
    let ask = async {
        let (qp, _) = client.connect(listener.local_addr(), ConnectParams::default()).await.ok()?;
        for recv in recvs() {
            // A connection that has already ended accepts none.
            if qp.post(recv).is_err() {
                return None;
            }
        }
        Some(live(qp, 0, &plans[0], sends[1], &pool, seed).await)
    };
    let (served, asked) = futures_util::join!(serve, ask);
    [asked, served]
}

/// The sink's content after the first `placed` bytes of these Writes.
fn after(peer: usize, plan: &Plan, mut placed: usize) -> Vec<u8> {
    let mut memory = vec![FILL; REGION];
    for (id, op) in (FIRST_WORK..).zip(&plan.ops) {
        if let Op::Write(at, len) = *op {
            let here = len.min(placed);
            memory[at..at + here].copy_from_slice(&data(peer, id, len)[..here]);
            placed -= here;
        }
    }
    assert_eq!(placed, 0, "more was placed than was written");
    memory
}

/// Checks one side's observations against what the other side did.
fn check(side: usize, life: Life, plans: &[Plan; 2], broken: bool) {
    let (ours, theirs) = (&plans[side], &plans[1 - side]);
    let in_peace = match &life.ended {
        Disconnect::Local => ours.closes,
        Disconnect::Peer => !ours.closes,
        _ => false,
    };
    assert!(in_peace || broken, "side {side}: {}", life.ended);
    assert!(
        matches!(life.ended, Disconnect::Local | Disconnect::Peer | Disconnect::Lost(_)),
        "side {side}: {}",
        life.ended
    );
    // The peer's messages, in order.
    let mut messages: VecDeque<Vec<u8>> = VecDeque::new();
    for (id, op) in (FIRST_WORK..).zip(&theirs.ops) {
        if let Op::Send(len) = op {
            messages.push_back(data(1 - side, id, *len));
        }
    }
    messages.push_back(BYE.to_vec());
    let mut seen: Vec<u64> = Vec::new();
    let mut received: Vec<(u64, Buf)> = Vec::new();
    for completion in life.completions {
        let id = completion.id;
        seen.push(id);
        match completion.result {
            Ok(Done::Received { buf, .. }) => received.push((id, buf)),
            Ok(Done::Read { mut buf }) => {
                let Some(Op::Read(at, len)) = ours.ops.get((id - FIRST_WORK) as usize) else {
                    panic!("{id}")
                };
                assert!(buf[..] == readable(1 - side)[*at..at + len], "Read {id}");
                assert!(buf.room()[*len..].iter().all(|byte| *byte == FILL), "behind Read {id}");
            }
            Ok(Done::Sent | Done::Written) => {}
            Err(WorkError::Flushed) => assert!(broken || id < RECVS, "{id} was flushed in peace"),
            Err(other) => panic!("{other}"),
        }
    }
    // Receive buffers fill in the order of posting, with the peer's messages in order.
    received.sort_by_key(|(id, _)| *id);
    for (n, (id, mut buf)) in (0..).zip(received) {
        assert_eq!(id, n, "a buffer was passed over");
        let len = buf.len();
        if n == 0 {
            assert_eq!(len, TOLD);
        } else {
            let message = messages.pop_front().expect("more came than was sent");
            assert!(buf[..] == message[..], "message {n}");
        }
        assert!(buf.room()[len..].iter().all(|byte| *byte == FILL), "behind message {n}");
    }
    // Everything posted completes once.
    let mut posted = life.posted;
    posted.sort_unstable();
    seen.sort_unstable();
    assert_eq!(seen, posted);
    if !broken {
        assert!(messages.is_empty(), "{} messages did not come", messages.len());
        let all: usize = theirs.ops.iter().map(|op| if let Op::Write(_, len) = op { *len } else { 0 }).sum();
        assert_eq!(life.placed, all as u64);
    }
    let (sink, source) = (life.sink, life.source);
    assert!(sink[..] == after(1 - side, theirs, life.placed as usize)[..], "memory that is written to");
    assert!(source[..] == readable(side)[..], "memory that is only read");
    assert!(life.bystander.iter().all(|byte| *byte == FILL), "memory that is nobody's");
}

/// Runs a story. Returns the number of bytes that each side sent.
fn run(seed: u64, faults: Faults, plans: [Plan; 2]) -> [u64; 2] {
    let pool = POOL.with(Pool::clone);
    let broken = !faults.cuts.is_empty();
    let sim = Sim::new(seed).faults(faults);
    let lives = sim.run(both(plans.clone(), pool.clone(), seed));
    let sent = [Side::Dialer, Side::Acceptor].map(|side| sim.bytes_sent(0, side));
    drop(sim);
    assert!(broken || lives.iter().all(Option::is_some), "no connection over a good line");
    for (side, life) in lives.into_iter().enumerate() {
        if let Some(life) = life {
            check(side, life, &plans, broken);
        }
    }
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
    sent
}

fn op(rng: &mut Rng, longest: usize) -> Op {
    let at = rng.below(REGION);
    let len = rng.within(0..=(REGION - at).min(longest) as u64) as usize;
    match rng.below(3) {
        0 => Op::Send(len),
        1 => Op::Write(at, len),
        _ => Op::Read(at, len),
    }
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed ^ 0x51de);
    // The window limits how much is worth sending through it.
    let (window, longest) =
        [(1, 20), (7, 60), (40, 300), (300, REGION), (4096, REGION), (256 << 10, REGION)][rng.below(6)];
    let closer = rng.below(2);
    let mut plans = [0, 1].map(|side| {
        let longest_fpdu = [60, 1000][rng.below(2)];
        let config = Config {
            crc: rng.one_in(2),
            markers: rng.one_in(4),
            ird: rng.within(1..=3) as u16,
            ord: rng.within(1..=3) as u16,
            fpdu_payload: rng.within(1..=longest_fpdu) as usize,
            peer_to_peer: rng.one_in(4),
            ..Config::default()
        };
        let ops = (0..rng.within(0..=MOST_WORK)).map(|_| op(&mut rng, longest)).collect();
        Plan { config, ops, closes: side == closer }
    });
    let cuts = match rng.below(4) {
        0 => Vec::new(),
        _ => {
            let side = [Side::Dialer, Side::Acceptor][rng.below(2)];
            let how = [CutHow::Reset, CutHow::Close, CutHow::Silent][rng.below(3)];
            let latest = [300, 3000][rng.below(2)];
            let at_byte = rng.within(0..=latest);
            vec![Cut { connection: 0, side, at_byte, how }]
        }
    };
    if !cuts.is_empty() {
        // If its connection is cut before the reply, an initiator asks again in the older form, which does not
        // negotiate the depths.
        let ird = [0, 1].map(|side| plans[side].config.ird);
        (0..2).for_each(|side| plans[side].config.ord = plans[side].config.ord.min(ird[1 - side]));
    }
    let faults = Faults {
        latency: Duration::from_micros(1)..=Duration::from_micros([1, 50, 2000][rng.below(3)]),
        split: rng.one_in(2),
        socket_buffer_bytes: window,
        cuts,
        ..Faults::default()
    };
    run(seed, faults, plans);
}

#[test]
fn any_seed_over_simulated_tcp() {
    let seeds = std::env::var("WEFT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        if let Err(panic) = std::panic::catch_unwind(|| story(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A story with every kind of work, cut at every byte of either direction, in every way.
#[test]
fn the_connection_may_break_at_every_byte() {
    let side = |closes| Plan {
        config: Config { crc: true, fpdu_payload: 50, peer_to_peer: true, ..Config::default() },
        ops: vec![
            Op::Send(20),
            Op::Write(3, 70),
            Op::Read(5, 60),
            Op::Read(0, 0),
            Op::Write(40, 9),
            Op::Send(0),
        ],
        closes,
    };
    for (crc, markers) in [(true, false), (false, false), (true, true)] {
        let plans = [true, false].map(|closes| {
            let Plan { config, ops, closes } = side(closes);
            Plan { config: Config { crc, markers, ..config }, ops, closes }
        });
        let whole = run(0, Faults::default(), plans.clone());
        assert!(whole.iter().all(|sent| *sent > 500), "{whole:?}");
        for (n, side) in [Side::Dialer, Side::Acceptor].into_iter().enumerate() {
            for at_byte in 0..=whole[n] {
                let how = [CutHow::Reset, CutHow::Close, CutHow::Silent];
                // Each byte is cut in one way and its neighbours in the others; in all three ways if there is no marker
                // to wait for.
                let ways = if crc && !markers { &how[..] } else { &how[at_byte as usize % 3..][..1] };
                for how in ways {
                    let cuts = vec![Cut { connection: 0, side, at_byte, how: *how }];
                    let faults = Faults { cuts, ..Faults::default() };
                    let result = std::panic::catch_unwind(|| run(at_byte, faults, plans.clone()));
                    if let Err(panic) = result {
                        eprintln!("{side:?} cut at {at_byte} by {how:?}, crc {crc}, markers {markers}");
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }
}
