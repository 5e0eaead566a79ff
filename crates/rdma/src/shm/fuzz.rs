//! A peer that scribbles over everything it can map, rings at will and passes arbitrary descriptors, while we post and
//! poll.
//!
//! It attacks `layout` (the control segment), `news` (the rings) and `message` (the socket). The fuzzer owns one queue
//! pair, and builds the peer's end by hand. It does not check the answers to a peer that keeps the rules; `tests` does.
//!
//! Scribbles are of two kinds: any word anywhere, and entries of rings and tables that look right. It checks that
//! nothing panics or accesses memory outside of a mapping (a fuzzer sees either), that no wait exceeds the stall limit,
//! that every piece of work completes at most once and all of it by the end, that nothing changes that was not given to
//! the peer, and that no buffer is lost.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::{SendFlags, Shutdown};
use weft_machine::buf::memfd;
use weft_machine::net::Readable;
use weft_machine::shm::{Doorbell, Producer, Ringer, Socket, Words};
use weft_machine::{Buf, File, FileRange, Payload, Pool, rt};

use super::layout::{Half, RECV_SLOTS, REGION_WORDS, REGIONS, SEGMENT_WORDS, SLOT_WORDS, Side, halves};
use super::message::{MAX_MESSAGE, Message};
use super::news::{News, Posted};
use super::queue_pair::{Parts, ShmQueuePair};
use super::slabs::PeerSlabs;
use super::{Config, quarantine};
use crate::fuzz::Script;
use crate::verbs::{Access, Completion, Done, PostError, QueuePair, Refusal, Segment, Stag, Work};

const MAX_ACTS: usize = 200;
/// Each stall costs as much as a peer that was stopped inside our memory.
const STALL_LIMIT: Duration = Duration::from_millis(1);
const SLAB_BYTES: usize = 1 << 20;
const FILL: u8 = 0xa5;
const MAX_REGIONS: usize = 8;

thread_local! {
    // One for all inputs: making a pool is as much work as a short script.
    static POOL: Pool = Pool::new(64 << 20);
}

/// A scripted misbehaving peer.
pub fn shm_rings(data: &[u8]) {
    let pool = POOL.with(Pool::clone);
    rt::block_on(async {
        let mut script = Script::new(data);
        let mut world = World::new(&pool);
        let mut acts = 0;
        while !script.is_over() && acts < MAX_ACTS {
            world.act(&mut script);
            acts += 1;
            if acts % 16 == 0 {
                // The core's own turn: its pollers and tasks check the same memory.
                rt::sleep(Duration::ZERO).await;
            }
        }
        world.end();
    })
    .expect("a core");
    quarantine::sweep();
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
}

/// The peer's parts of the connection.
struct Peer {
    socket: Socket,
    segment: Words,
    own: Half,
    other: Half,
    posted: Producer<SLOT_WORDS>,
    news: Producer<SLOT_WORDS>,
    /// Nobody silences it.
    _own_bell: Doorbell,
    /// Rings the other side's bell.
    bell: Ringer,
    slab: OwnedFd,
}

struct Region {
    segment: Segment,
    /// The peer changes it only through its mapping, which this peer does not use.
    len: usize,
}

struct World {
    qp: Option<std::rc::Rc<ShmQueuePair>>,
    peer: Option<Peer>,
    pool: Pool,
    file: FileRange,
    regions: Vec<Region>,
    bystander: Buf,
    next_id: u64,
    /// Ids that have not completed; unsignalled work may never complete.
    open: Vec<(u64, bool)>,
    over: bool,
}

impl World {
    fn new(pool: &Pool) -> World {
        let (ours, theirs) = Socket::pair().expect("a socket");
        let segment = Words::create("fuzz", SEGMENT_WORDS).expect("memory");
        let (our_bell, bell) = Doorbell::new().expect("sockets");
        let (own_bell, their_bell) = Doorbell::new().expect("sockets");
        let parts = Parts {
            side: Side::Connecting,
            link: Readable::new(ours).expect("a core"),
            segment: segment.clone(),
            our_bell,
            their_bell,
            pool: pool.clone(),
            slabs: PeerSlabs::default(),
            caps: Config { max_regions: MAX_REGIONS, ..Config::default() }.caps(),
            stall_limit: STALL_LIMIT,
            peer: weft_machine::Peer::Local { uid: 0, pid: Some(0) },
        };
        let qp = ShmQueuePair::new(parts).expect("a core");
        let (own, other) = halves(&segment, Side::Accepting);
        let posted = Producer::new(own.recvs.clone(), other.recvs_taken.clone());
        let news = Producer::new(other.news.clone(), own.news_taken.clone());
        let slab = memfd("fuzz", SLAB_BYTES).expect("memory");
        let mut bystander = pool.try_alloc(4096).expect("room");
        bystander.set_len(4096);
        bystander.fill(FILL);
        World {
            qp: Some(qp),
            peer: Some(Peer {
                socket: theirs,
                segment,
                own,
                other,
                posted,
                news,
                _own_bell: own_bell,
                bell,
                slab,
            }),
            pool: pool.clone(),
            file: FileRange { file: File::in_memory("fuzz").expect("memory"), offset: 0, len: 100 },
            regions: Vec::new(),
            bystander,
            next_id: 0,
            open: Vec::new(),
            over: false,
        }
    }

    fn act(&mut self, script: &mut Script<'_>) {
        let kind = script.byte() % 16;
        if let Some(peer) = &mut self.peer {
            match kind {
                0 | 1 => return peer.scribble(script),
                2 | 3 => return peer.tell(script),
                4 | 5 => return peer.open(script),
                6 => return peer.post(script),
                7 => return peer.pass(script),
                8 => return peer.pretend(script),
                9 if script.byte() == 0 => {
                    self.peer = None;
                    return;
                }
                _ => {}
            }
        }
        match kind {
            0..=2 | 12 => self.register(script),
            3 | 13 => self.invalidate(script),
            4..=8 | 10 | 11 => self.post(script),
            14 if script.byte() == 0 => self.qp().close(),
            _ => self.poll(),
        }
    }

    fn qp(&self) -> &dyn QueuePair {
        &**self.qp.as_ref().expect("until the end")
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let id = self.next_id;
        let stag = match script.byte() {
            n @ 0..=199 => peer_stag(n % 8),
            _ => Stag(script.long() as u32),
        };
        let offset = match script.byte() {
            255 => script.long(),
            n => u64::from(n % 4) * 1000,
        };
        let segment = Segment { stag, offset, len: script.below(5000) as u32 };
        let signalled = script.byte() % 8 != 1;
        let bytes = || Bytes::from(vec![0x11; segment.len as usize]);
        let work = match script.byte() % 6 {
            0 => Work::Send { id, data: vec![bytes()], invalidate: None, solicited: false, signalled },
            1 => Work::Send { id, data: Vec::new(), invalidate: Some(stag), solicited: true, signalled },
            2 => Work::Write { id, data: bytes().into(), to: segment, signalled },
            3 => {
                let data = Payload::File(FileRange { len: segment.len as usize, ..self.file.clone() });
                Work::Write { id, data, to: segment, signalled }
            }
            4 => Work::Read {
                id,
                into: self.pool.try_alloc(segment.len.max(1) as usize).expect("room"),
                from: segment,
            },
            _ => Work::Recv { id, buf: self.pool.try_alloc(4096).expect("room") },
        };
        let signalled = signalled || matches!(work, Work::Read { .. } | Work::Recv { .. });
        match self.qp().post(work) {
            Ok(()) => {
                self.open.push((id, signalled));
                self.next_id += 1;
            }
            Err((PostError::Misuse(_) | PostError::Closed | PostError::QueueFull, _)) => {}
            Err((other, _)) => panic!("{other}"),
        }
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        let polled = self.qp().poll(&mut Context::from_waker(Waker::noop()), &mut done);
        match polled {
            Poll::Ready(Ok(())) => assert!(!done.is_empty()),
            Poll::Ready(Err(_)) => {
                assert!(done.is_empty());
                self.over = true;
            }
            Poll::Pending => assert!(done.is_empty() && !self.over),
        }
        for Completion { id, result } in done {
            let at = self.open.iter().position(|(open, _)| *open == id);
            self.open.swap_remove(at.expect("completed twice, or never posted"));
            if let Ok(Done::Received { buf, .. } | Done::Read { buf }) = result {
                assert!(buf.len() <= buf.capacity());
            }
        }
        // The peer writes these numbers at will.
        let _ = self.qp().traffic();
    }

    fn register(&mut self, script: &mut Script<'_>) {
        let len = 1 + script.below(5000);
        let mut buf = self.pool.try_alloc(len).expect("room");
        buf.set_len(len);
        buf.fill(FILL);
        let access = if script.flag() { Access::RemoteRead } else { Access::RemoteWrite };
        if let Ok(segment) = self.qp().register(buf, access) {
            self.regions.push(Region { segment, len });
        }
    }

    fn invalidate(&mut self, script: &mut Script<'_>) {
        if !self.regions.is_empty() {
            let at = script.below(self.regions.len());
            let region = self.regions.swap_remove(at);
            self.take_back(&region);
        }
    }

    fn take_back(&mut self, region: &Region) {
        // Nothing: the peer claims to be inside, and the memory is kept from reuse until it is gone.
        if let Some(buf) = self.qp().invalidate(region.segment.stag) {
            assert_eq!(buf.len(), region.len);
            assert!(buf.iter().all(|byte| *byte == FILL), "we wrote into our own region");
        }
    }

    fn end(&mut self) {
        self.qp().close();
        for _ in 0..3 {
            self.poll();
        }
        assert!(self.over, "closed, and goes on");
        assert!(self.open.iter().all(|(_, signalled)| !signalled), "never completed: {:?}", self.open);
        for region in std::mem::take(&mut self.regions) {
            self.take_back(&region);
        }
        assert!(self.bystander.iter().all(|byte| *byte == FILL));
        self.qp = None;
        self.peer = None;
    }
}

/// STags of the peer's invented regions.
fn peer_stag(n: u8) -> Stag {
    Stag(1 << 12 | u32::from(n))
}

impl Peer {
    /// Overwrites any word with any value; control words are chosen often.
    fn scribble(&mut self, script: &mut Script<'_>) {
        let word = match script.byte() % 12 {
            0 => &*self.own.hazard,
            1 => &self.own.ended,
            2 => &self.other.ended,
            3 => return self.doze(script),
            4 => &self.own.news_taken[0],
            5 => &self.other.news_taken[0],
            6 => &self.own.recvs_taken[0],
            7 => &self.other.news[script.below(32)],
            8 => &self.own.recvs[script.below(32)],
            9 => &self.other.regions[script.below(MAX_REGIONS * REGION_WORDS)],
            10 => &self.own.traffic[script.below(4)],
            _ => &self.segment[script.long() as usize % SEGMENT_WORDS],
        };
        let value = match script.byte() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => word.load(Ordering::Relaxed).wrapping_add(u64::from(script.byte())),
            3 => word.load(Ordering::Relaxed) ^ 1 << (script.byte() % 64),
            4 => u64::from(script.byte()),
            _ => script.long(),
        };
        word.store(value, Ordering::Release);
    }

    /// Sleeps, or claims to.
    fn doze(&mut self, script: &mut Script<'_>) {
        if script.flag() { self.own.sleeping.announce() } else { self.own.sleeping.awake() }
    }

    /// Valid or nearly valid news.
    fn tell(&mut self, script: &mut Script<'_>) {
        let news = match script.byte() % 8 {
            0 => News::Closed,
            1 => News::Refused(Refusal::Bounds),
            _ => News::Message {
                slot: script.below(2 * RECV_SLOTS) as u16 % if script.flag() { 4 } else { u16::MAX },
                len: u32::from(script.word()) % if script.flag() { 4097 } else { u32::MAX },
                invalidated: script.flag().then(|| Stag(script.long() as u32)),
                solicited: script.flag(),
            },
        };
        // A ring that its reader does not empty becomes full.
        let _ = self.news.push(news.emit());
    }

    /// A valid or nearly valid region.
    fn open(&mut self, script: &mut Script<'_>) {
        let index = script.byte() % 8;
        let entry = usize::from(index) * REGION_WORDS;
        assert!(usize::from(index) < REGIONS);
        let entry = &self.own.regions[entry..entry + REGION_WORDS];
        let slab = u64::from(script.byte() % 4);
        let len = if script.one_in(4) { u64::from(u32::MAX) } else { u64::from(script.word()) };
        let offset = match script.byte() % 8 {
            0 => u64::MAX - u64::from(script.word()),
            1 => (SLAB_BYTES as u64).wrapping_sub(u64::from(script.byte())),
            _ => u64::from(script.word()),
        };
        let rights = u64::from(script.byte() % 4);
        entry[1].store(slab << 32 | len, Ordering::Relaxed);
        entry[2].store(offset, Ordering::Relaxed);
        entry[0].store(u64::from(peer_stag(index).0) << 32 | rights, Ordering::Release);
    }

    /// A valid or nearly valid receive buffer.
    fn post(&mut self, script: &mut Script<'_>) {
        let posted = Posted {
            slot: script.below(RECV_SLOTS) as u16,
            capacity: u32::from(script.word()) * if script.flag() { 1 } else { 0xffff },
            slab: u32::from(script.byte() % 4),
            offset: match script.byte() % 8 {
                0 => script.long(),
                1 => SLAB_BYTES as u64 - u64::from(script.byte()),
                _ => u64::from(script.word()),
            },
        };
        let _ = self.posted.push(posted.emit());
    }

    /// A slab, or a descriptor that claims to be one.
    fn pass(&mut self, script: &mut Script<'_>) {
        let number = u32::from(script.byte() % 4) * if script.one_in(8) { 1000 } else { 1 };
        let other;
        let fd = match script.byte() % 8 {
            0 => self.bell.as_fd(),
            1 => self.socket.as_fd(),
            2 => {
                other = memfd("fuzz", 1 + script.below(5000)).expect("memory");
                other.as_fd()
            }
            _ => self.slab.as_fd(),
        };
        // A socket that nobody empties becomes full; a closed one stays closed.
        let _ = self.socket.send(&Message::Slab { number }.emit(), &[fd]);
    }

    /// Other noise: the bell, and invalid messages.
    fn pretend(&mut self, script: &mut Script<'_>) {
        match script.byte() % 8 {
            0 => {
                let len = script.below(MAX_MESSAGE + 2);
                let _ = self.socket.send(script.bytes(len), &[]);
            }
            1 => {
                let private_data = Bytes::new();
                let message = Message::Accept { ird: 1, ord: 1, private_data };
                let _ = self.socket.send(&message.emit(), &[self.bell.as_fd()]);
            }
            2 => while rustix::net::send(&self.bell, &[1; 4096], SendFlags::DONTWAIT).is_ok() {},
            3 => {
                let _ = rustix::net::shutdown(&self.bell, Shutdown::Both);
            }
            _ => self.bell.ring(),
        }
    }
}
