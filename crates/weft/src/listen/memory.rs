//! Limits how much of the buffer pool the connections of one source may hold, before and after their peer is
//! identified.
//!
//! Before its peer is identified, a connection allocates from the strangers' share, and each source is limited to a
//! part of it, so that one address cannot prevent others from logging on. Messages of an identified peer come from
//! the pool: TCP connections have a share of their source's, which is a fair share of a part of the pool, so that an
//! address that sends slowly or much delays itself alone. RDMA connections hold receives, incoming messages and pulled payload; for identified peers these come
//! from a part of the pool shared by all connections of the source. An RDMA connection keeps what it holds when its
//! peer is identified. Long answers have their own part of the pool: together they hold so little that incoming
//! messages, and data read for sending, never wait for clients that do not read their answers. No source holds more
//! than is still free of that part. A peer that does not read, or does not finish its message, while others wait for
//! such memory is disconnected (holders.rs); within a source this is what protects its users from each other. Memory of
//! requests that are carried out is not freed by closing their connection, so however long they take, it stays open: a
//! share whose disk hangs takes the memory of the addresses that write to it. This file owns the shares of each connected
//! source and of each connection. It does not count connections.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use weft_machine::buf::MAX_BUF;
use weft_machine::meter::Events;
use weft_machine::{Peer, Pool, Source, Time, rt};
use weft_transport::arriving::Arriving;

use super::holders::{Holder, Late, Silent};
use super::notice::Notice;
use super::shortage::Shortage;

/// The part of the pool, and of the strangers' share, that one source may hold: enough for a host with many clients,
/// and three more such hosts are served beside a malicious one.
const PART: usize = 4;

/// The part of the pool that long answers may hold until the network has accepted them.
const ANSWERS_PART: usize = 2;

/// The part of the pool that messages of identified peers over TCP may hold until their requests are carried out, at
/// least [`INCOMING_BYTES`].
const INCOMING_PART: usize = 2;
/// In the smallest pool: two of the longest messages, and staging buffers.
const INCOMING_BYTES: usize = 3 * MAX_BUF;
/// The least that the messages of one source may hold: the longest one, and staging buffers.
const SOURCE_INCOMING_BYTES: usize = 2 * MAX_BUF;

/// Connections that were told to close because others waited for memory that they held.
pub(crate) static TOLD: Events = Events::new();

/// How often to check whether requests wait for memory.
const LOOK: Duration = Duration::from_secs(1);

/// The shares, by source.
pub(crate) struct Memory {
    pool: Pool,
    answers: Pool,
    incoming: Pool,
    strangers: Pool,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    /// Sources that are connected, or whose ended connections still hold memory.
    known: HashMap<Source, Shares>,
    /// Of these, the ones that are not connected.
    left: HashSet<Source>,
    /// The connections, by their numbers.
    connections: BTreeMap<u64, Arc<Connection>>,
    next: u64,
    do_not_read: Silent,
    do_not_finish: Silent,
    shortage: Shortage,
}

/// The memory held by one connection. Its shares are parts of its source's.
struct Connection {
    source: Source,
    answers: Pool,
    incoming: Pool,
    /// What its incoming memory holds for a message that has not arrived in full.
    arriving: Arc<Arriving>,
    /// Tells the connection to close.
    notice: Notice,
    /// Why, once the notice is given.
    why: OnceLock<Withheld>,
}

/// Why a connection must close: others wait for memory that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withheld {
    /// It does not read answers.
    Answers,
    /// It does not finish a message, which has this much memory.
    Message { held_bytes: usize },
}

/// The shares of a source, and its number of connections.
struct Shares {
    strangers: Pool,
    rdma: Pool,
    answers: Pool,
    incoming: Pool,
    members: usize,
}

/// One connection's membership in the shares of its source, until it is dropped.
pub(super) struct Member {
    memory: Arc<Memory>,
    source: Source,
    /// The source of its buffers while its peer is unidentified.
    pub(super) strangers: Pool,
    number: u64,
    connection: Arc<Connection>,
    rdma: Option<Rdma>,
}

/// The memory of an RDMA connection, identified or not.
struct Rdma {
    own: Pool,
    known: Pool,
    peer: Cell<Identified>,
}

/// Whether the peer of an RDMA connection is identified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identified {
    No,
    /// Identified, but the source's limit had no room for what the connection holds.
    Waits,
    Moved,
}

impl Memory {
    pub(crate) fn new(pool: &Pool, strangers: &Pool) -> Arc<Memory> {
        let (pool, strangers) = (pool.clone(), strangers.clone());
        let answers = pool.fair_share(pool.limit_bytes() / ANSWERS_PART);
        let incoming = pool.fair_share((pool.limit_bytes() / INCOMING_PART).max(INCOMING_BYTES));
        Arc::new(Memory { pool, answers, incoming, strangers, sources: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        // No code inside the lock can panic halfway.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part(whole: &Pool) -> Pool {
        whole.share(whole.limit_bytes() / PART)
    }

    /// Adds a connection of `peer` that needs memory only for incoming messages.
    pub(super) fn join(self: &Arc<Self>, peer: Peer) -> Member {
        let source = Source::of(peer);
        let mut sources = self.lock();
        sources.tidy();
        let shares = sources.known.entry(source).or_insert_with(|| Shares {
            strangers: Memory::part(&self.strangers),
            rdma: Memory::part(&self.pool),
            answers: match source {
                // It runs as the server's user, see `join_rdma`.
                Source::Local => self.answers.clone(),
                _ => Memory::part(&self.answers),
            },
            incoming: match source {
                Source::Local => self.incoming.clone(),
                _ => {
                    let most_bytes = (self.pool.limit_bytes() / PART).max(SOURCE_INCOMING_BYTES);
                    // Fair among its connections as well: one of them takes at most half.
                    self.incoming.fair_share(most_bytes)
                }
            },
            members: 0,
        });
        shares.members += 1;
        let strangers = shares.strangers.clone();
        let connection = Arc::new(Connection {
            source,
            answers: shares.answers.share(usize::MAX),
            incoming: shares.incoming.share(usize::MAX),
            arriving: Arc::default(),
            notice: Notice::default(),
            why: OnceLock::new(),
        });
        let number = sources.next;
        sources.next += 1;
        sources.connections.insert(number, connection.clone());
        Member { memory: self.clone(), source, strangers, number, connection, rdma: None }
    }

    /// While it runs, tells connections to close that hold memory for which others wait.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            rt::sleep(LOOK).await;
            self.look(rt::now());
        }
    }

    fn look(&self, now: Time) {
        let mut sources = self.lock();
        let Sources { known, connections, do_not_read, do_not_finish, shortage, .. } = &mut *sources;
        if let Some(waited) = shortage.look(now, self.pool.oldest_waiting()) {
            self.warn(known, waited);
        }
        if self.pool.waiting() == 0 {
            do_not_read.forget();
            return do_not_finish.forget();
        }
        let pool = &self.pool;
        let answers = Part { pool, whole: &self.answers, of_sources: parts(known, |shares| &shares.answers) };
        let holders = connections.iter().map(|(number, of)| {
            let (held_bytes, progress) = (of.answers.in_use_bytes(), of.answers.given_back_bytes());
            (of.source, Holder { number: *number, held_bytes, progress, received_bytes: 0 })
        });
        for late in answers.late(now, holders, do_not_read) {
            tell(connections, late, Withheld::Answers);
        }
        let incoming =
            Part { pool, whole: &self.incoming, of_sources: parts(known, |shares| &shares.incoming) };
        let holders = connections.iter().map(|(number, of)| {
            let arrived = of.arriving.arrived();
            // What a peer began before it was identified is a stranger's memory.
            let held_bytes = arrived.held_bytes.min(of.incoming.in_use_bytes());
            let (progress, received_bytes) = (arrived.messages, arrived.received_bytes);
            (of.source, Holder { number: *number, held_bytes, progress, received_bytes })
        });
        for late in incoming.late(now, holders, do_not_finish) {
            tell(connections, late, Withheld::Message { held_bytes: late.held_bytes });
        }
    }

    /// Logs that requests wait, and for whom.
    fn warn(&self, known: &HashMap<Source, Shares>, waited: Duration) {
        let held_bytes = |shares: &Shares| {
            let held = [&shares.answers, &shares.incoming, &shares.rdma].map(Pool::in_use_bytes);
            held.into_iter().fold(0, usize::saturating_add)
        };
        let most = known.iter().map(|(source, shares)| (held_bytes(shares), source)).max();
        let most = most.map(|(bytes, source)| format!("; {source} holds most of them, {} MiB", bytes >> 20));
        let (requests, limit_mib) = (self.pool.waiting(), self.pool.limit_bytes() >> 20);
        let (waited, most) = (waited.as_secs(), most.unwrap_or_default());
        tracing::warn!(
            "{requests} requests wait for payload buffers ({limit_mib} MiB), one of them for {waited} s{most}"
        );
    }

    /// Adds an RDMA connection of `peer`. A process on this host is not limited: it runs as the server's user.
    pub(super) fn join_rdma(self: &Arc<Self>, peer: Peer) -> Member {
        let mut member = self.join(peer);
        if member.source != Source::Local
            && let Some(shares) = self.lock().known.get(&member.source)
        {
            let (own, known) = (shares.strangers.share(usize::MAX), shares.rdma.clone());
            member.rdma = Some(Rdma { own, known, peer: Cell::new(Identified::No) });
        }
        member
    }
}

/// A part of the pool, and the shares of it that sources have.
struct Part<'a> {
    pool: &'a Pool,
    whole: &'a Pool,
    of_sources: HashMap<Source, &'a Pool>,
}

fn parts<'a>(
    known: &'a HashMap<Source, Shares>,
    share: impl Fn(&'a Shares) -> &'a Pool,
) -> HashMap<Source, &'a Pool> {
    known.iter().map(|(source, shares)| (*source, share(shares))).collect()
}

impl Part<'_> {
    /// The connections to close so that nobody has to wait for this part.
    fn late(
        &self,
        now: Time,
        holders: impl Iterator<Item = (Source, Holder)>,
        silent: &mut Silent,
    ) -> Vec<Late> {
        // A request waits for the whole pool, for this part, or for that of its own source.
        let wanted_of_pool = self.pool.wanted_bytes();
        let wanted_of_all = self.whole.wanted_bytes();
        let wanted: HashMap<Source, usize> = self
            .of_sources
            .iter()
            .map(|(source, share)| (*source, share.wanted_bytes()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let sum = [wanted_of_pool, wanted_of_all].into_iter().chain(wanted.values().copied());
        let wanted_bytes = sum.fold(0, usize::saturating_add);
        if wanted_bytes == 0 {
            silent.forget();
            return Vec::new();
        }
        let free_bytes = |pool: &Pool| pool.limit_bytes().saturating_sub(pool.in_use_bytes());
        let (free_of_pool, free_of_all) = (free_bytes(self.pool), free_bytes(self.whole));
        let holders = holders.filter(|(source, _)| {
            // A source that holds less than is free overall does not make others wait.
            let held_bytes = self.of_sources.get(source).map_or(0, |share| share.in_use_bytes());
            wanted.contains_key(source)
                || wanted_of_all > 0 && held_bytes >= free_of_all
                || wanted_of_pool > 0 && held_bytes >= free_of_pool
        });
        silent.look(now, holders.map(|(_, holder)| holder), wanted_bytes)
    }
}

fn tell(connections: &BTreeMap<u64, Arc<Connection>>, late: Late, why: Withheld) {
    if let Some(of) = connections.get(&late.number) {
        if of.why.set(why).is_ok() {
            TOLD.count();
        }
        of.notice.give();
    }
}

impl Sources {
    /// Forgets sources that are not connected and hold nothing any more.
    fn tidy(&mut self) {
        let Sources { known, left, .. } = self;
        left.retain(|source| {
            let Some(shares) = known.get(source).filter(|shares| shares.members == 0) else { return false };
            // Memory of this host's own answers and messages belongs to no share that would be forgotten.
            let own = [&shares.answers, &shares.incoming].into_iter().filter(|_| *source != Source::Local);
            let held = [&shares.strangers, &shares.rdma].into_iter().chain(own);
            let holds = held.into_iter().any(|share| share.in_use_bytes() > 0);
            if !holds {
                known.remove(source);
            }
            holds
        });
    }
}

impl Member {
    /// The source of memory for long answers.
    pub(super) fn answers(&self) -> Pool {
        self.connection.answers.clone()
    }

    /// The source of memory for messages once the peer is identified, over TCP.
    pub(super) fn incoming(&self) -> Pool {
        self.connection.incoming.clone()
    }

    /// Where the connection notes what it holds of such messages.
    pub(super) fn arriving(&self) -> Arc<Arriving> {
        self.connection.arriving.clone()
    }

    /// Completes when the connection must close because it holds memory for which others wait.
    pub(super) fn poll_notice(&self, cx: &Context<'_>) -> Poll<Withheld> {
        ready!(self.connection.notice.poll(cx));
        Poll::Ready(self.connection.why.get().copied().unwrap_or(Withheld::Answers))
    }

    /// The source of the buffers of an RDMA connection.
    pub(super) fn rdma(&self) -> Pool {
        self.rdma.as_ref().map_or(&self.memory.pool, |rdma| &rdma.own).clone()
    }

    /// Marks the peer as identified. If its source has reached its limit, an RDMA connection keeps a stranger's
    /// memory; then this returns false, and the caller must retry.
    pub(super) fn admit(&self) -> bool {
        let Some(rdma) = self.rdma.as_ref().filter(|rdma| rdma.peer.get() != Identified::Moved) else {
            return true;
        };
        let moved = rdma.own.move_to(&rdma.known);
        if moved {
            rdma.own.raise_limit();
        }
        rdma.peer.set(if moved { Identified::Moved } else { Identified::Waits });
        moved
    }

    /// Retries for an identified peer's connection that had no room before.
    pub(super) fn settle(&self) {
        if self.rdma.as_ref().is_some_and(|rdma| rdma.peer.get() == Identified::Waits) && self.admit() {
            tracing::debug!("a connection of an identified peer has found room");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut sources = self.memory.lock();
        sources.connections.remove(&self.number);
        if let Some(shares) = sources.known.get_mut(&self.source) {
            shares.members -= 1;
            if shares.members == 0 {
                sources.left.insert(self.source);
                sources.tidy();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use weft_machine::Buf;
    use weft_machine::buf::Waiting;
    use weft_transport::arriving::Arrived;

    use super::*;

    fn peer(addr: &str) -> Peer {
        Peer::Rdma(addr.parse().unwrap())
    }

    fn memory(limit_bytes: usize) -> (Pool, Arc<Memory>) {
        let pool = Pool::new(limit_bytes);
        let memory = Memory::new(&pool, &pool.for_strangers());
        (pool, memory)
    }

    fn known(memory: &Arc<Memory>, addr: &str) -> Member {
        let member = memory.join_rdma(peer(addr));
        assert!(member.admit());
        member
    }

    /// All memory that its answers can get, in buffers of 1 MiB.
    fn all_of(member: &Member) -> Vec<Buf> {
        std::iter::from_fn(|| member.answers().try_alloc(1 << 20)).collect()
    }

    #[test]
    fn the_connections_of_an_address_share_a_quarter_and_leave_the_rest_to_others() {
        let (_pool, memory) = memory(8 * MAX_BUF);
        let greedy = ["10.0.0.1:1", "10.0.0.1:2"].map(|addr| known(&memory, addr));
        let taken: Vec<_> = std::iter::from_fn(|| greedy[0].rdma().try_alloc(1 << 20)).collect();
        assert_eq!(taken.len(), 32);
        assert!(greedy[1].rdma().try_alloc(4096).is_none());
        assert!(known(&memory, "10.0.0.2:1").rdma().try_alloc(16 << 20).is_some());
        // For IPv6, a host has a whole network.
        let one = known(&memory, "[2001:db8::1]:1");
        let _all: Vec<_> = std::iter::from_fn(|| one.rdma().try_alloc(1 << 20)).collect();
        assert!(known(&memory, "[2001:db8::ffff]:1").rdma().try_alloc(4096).is_none());
        assert!(known(&memory, "[2001:db8:0:1::1]:1").rdma().try_alloc(4096).is_some());
        // Memory left by an ended connection counts until it is freed.
        drop(greedy);
        let next = memory.join_rdma(peer("10.0.0.1:3"));
        assert!(next.admit() && next.rdma().try_alloc(4096).is_none());
        drop((next, taken));
        assert!(known(&memory, "10.0.0.1:4").rdma().try_alloc(16 << 20).is_some());
        drop(known(&memory, "10.0.0.9:1"));
        assert_eq!(memory.lock().known.len(), 1, "nothing is kept of who holds nothing");
    }

    #[test]
    fn answers_of_an_address_that_nobody_reads_leave_room_for_those_of_others_and_for_requests() {
        let (pool, memory) = memory(32 * MAX_BUF);
        let join = |addr: &str| memory.join(Peer::Tcp(addr.parse().unwrap()));
        // Of 16 buffers, an address gets four, however many connections it has.
        let greedy = ["10.0.0.1:1", "10.0.0.1:2"].map(join);
        let mut held = all_of(&greedy[0]);
        assert_eq!((held.len(), all_of(&greedy[1]).len()), (4 * 16, 0));
        // No source holds more than is still free.
        let more: Vec<_> = (2..9).map(|n| join(&format!("10.0.0.{n}:1"))).collect();
        for member in &more {
            let all = all_of(member);
            assert!(!all.is_empty(), "nothing is left for one that reads");
            held.extend(all);
        }
        assert!(held.len() < 16 * 16, "half of the pool, by however many addresses");
        assert!(pool.try_alloc(MAX_BUF).is_some());
        // Memory left by an ended connection counts until it is freed.
        drop(greedy);
        assert!(all_of(&join("10.0.0.1:3")).is_empty());
        drop(held);
        assert_eq!(all_of(&join("10.0.0.1:3")).len(), 4 * 16);
        drop(more);
        drop(join("10.0.0.9:1"));
        assert_eq!(memory.lock().known.len(), 0, "nothing is kept of who holds nothing");
    }

    #[test]
    fn who_does_not_read_goes_while_answers_to_others_wait() {
        let (pool, memory) = memory(32 * MAX_BUF);
        let join = |n: u64| memory.join(Peer::Tcp(format!("10.0.0.{n}:1").parse().unwrap()));
        let at = |secs: u64| memory.look(Time::ZERO + Duration::from_secs(secs));
        let told = |member: &Member| member.poll_notice(&Context::from_waker(Waker::noop())).is_ready();
        // Six addresses hold all but 8 MiB: the first holds 64, the last 8.
        let members: Vec<Member> = (0..6).map(join).collect();
        let mut held: Vec<Vec<Buf>> = members.iter().map(all_of).collect();
        assert_eq!((held[0].len(), held[5].len(), pool.in_use_bytes()), (64, 8, 248 << 20));
        (0..60).for_each(at);
        assert!(!members.iter().any(told), "a peer may be slow where nobody waits");
        let mut cx = Context::from_waker(Waker::noop());
        let mut readers = [join(8), join(9)].map(|reader| (reader, Waiting::default()));
        let mut answered = || {
            readers
                .each_mut()
                .map(|(reader, waiting)| reader.answers().poll_alloc(&mut cx, MAX_BUF, waiting).is_ready())
        };
        assert_eq!(answered(), [false, false]);
        (60..63).for_each(at);
        // The first one reads, but frees too little for all.
        held[0].truncate(56);
        (63..65).for_each(at);
        assert!(!members.iter().any(told), "not at once");
        at(65);
        let gone: Vec<bool> = members.iter().map(told).collect();
        assert_eq!(gone, [false, true, false, false, false, false], "as many as make room");
        held[1].clear();
        assert_eq!(answered(), [true, true]);
        (66..90).for_each(at);
        assert_eq!(members.iter().filter(|member| told(member)).count(), 1, "nobody waits any more");
        drop((held, readers));
        assert_eq!(pool.in_use_bytes(), 0);
    }

    #[test]
    fn messages_of_an_address_take_a_quarter_and_leave_the_rest_to_others_and_to_answers() {
        let (pool, memory) = memory(32 * MAX_BUF);
        let join = |addr: &str| memory.join(Peer::Tcp(addr.parse().unwrap()));
        let all_of = |member: &Member| {
            std::iter::from_fn(|| member.incoming().try_alloc(1 << 20)).collect::<Vec<Buf>>()
        };
        // Of a quarter, a connection gets half, and the next one half of the remainder.
        let greedy: Vec<Member> = (1..9).map(|port| join(&format!("10.0.0.1:{port}"))).collect();
        let mut held: Vec<Buf> = Vec::new();
        let each: Vec<usize> = greedy
            .iter()
            .map(|member| {
                let all = all_of(member);
                let bufs = all.len();
                held.extend(all);
                bufs
            })
            .collect();
        assert_eq!(each, [64, 32, 16, 8, 4, 2, 1, 1], "of 8 buffers of 16 MiB");
        let others: Vec<Member> = (2..9).map(|n| join(&format!("10.0.0.{n}:1"))).collect();
        for member in &others {
            let all = all_of(member);
            assert!(!all.is_empty(), "nothing is left for one more address");
            held.extend(all);
        }
        assert!(held.len() < 16 * 16, "half of the pool, by however many addresses");
        assert!(others[0].answers().try_alloc(MAX_BUF).is_some() && pool.try_alloc(MAX_BUF).is_some());
        // This host's own processes are not limited to a quarter.
        drop((held, others));
        let local = memory.join(Peer::Local { uid: 0, pid: Some(1) });
        assert_eq!(all_of(&local).len(), 8 * 16);
        drop((local, greedy));
        assert_eq!((memory.lock().known.len(), pool.in_use_bytes()), (0, 0));
    }

    #[test]
    fn the_longest_message_fits_into_the_smallest_pool_beside_many_idle_connections() {
        let (_pool, memory) = memory(4 * MAX_BUF);
        let join = |port: u16| memory.join(Peer::Tcp(([10, 0, 0, 1], port).into()));
        let idle: Vec<(Member, Buf)> = (1..100)
            .map(|port| {
                let member = join(port);
                let staging = member.incoming().try_alloc(64 << 10).unwrap();
                (member, staging)
            })
            .collect();
        let busy = join(100);
        let _staging = busy.incoming().try_alloc(256 << 10).unwrap();
        assert!(busy.incoming().try_alloc(MAX_BUF).is_some());
        drop(idle);
    }

    #[test]
    fn who_does_not_finish_a_message_goes_while_others_wait() {
        const WRITE: usize = 8 << 20;
        let (_pool, memory) = memory(32 * MAX_BUF);
        let join = |addr: &str| memory.join(Peer::Tcp(addr.parse().unwrap()));
        let told = |member: &Member| match member.poll_notice(&Context::from_waker(Waker::noop())) {
            Poll::Ready(why) => Some(why),
            Poll::Pending => None,
        };
        // The connections of an address hold all that it has: slow ones, one that sends fast, and one whose requests wait
        // for a disk. It has a message that is carried out and nothing else.
        let members: Vec<Member> = (1..17).map(|port| join(&format!("10.0.0.1:{port}"))).collect();
        let hold = |member: &Member| member.incoming().try_alloc(WRITE).unwrap();
        let mut held: Vec<Buf> = members.iter().map(hold).collect();
        let look = |secs: u64| {
            for (number, member) in (0..).zip(&members) {
                let arrived = match number {
                    0 => Arrived { held_bytes: 0, received_bytes: WRITE as u64, messages: 1 },
                    1 => Arrived { held_bytes: WRITE, received_bytes: secs << 26, messages: secs << 3 },
                    _ => Arrived { held_bytes: WRITE, received_bytes: secs * number, messages: 1 },
                };
                if told(member).is_none() {
                    member.arriving().note(arrived);
                }
            }
            memory.look(Time::ZERO + Duration::from_secs(secs));
        };
        (0..60).for_each(look);
        assert!(!members.iter().any(|member| told(member).is_some()), "nobody waits");
        let other = join("10.0.0.2:1");
        let mut cx = Context::from_waker(Waker::noop());
        let mut elsewhere = Waiting::default();
        assert!(other.incoming().poll_alloc(&mut cx, WRITE, &mut elsewhere).is_ready(), "another address");
        // Another user of the same address, behind a proxy for example.
        let same = join("10.0.0.1:99");
        let mut waiting = Waiting::default();
        assert!(same.incoming().poll_alloc(&mut cx, WRITE, &mut waiting).is_pending());
        (60..65).for_each(look);
        assert!(!members.iter().any(|member| told(member).is_some()), "not at once");
        look(65);
        let gone: Vec<usize> = (0..16).filter(|n| told(&members[*n]).is_some()).collect();
        assert_eq!(gone, [2], "one makes room, the slowest");
        assert_eq!(told(&members[2]), Some(Withheld::Message { held_bytes: WRITE }));
        held.remove(2);
        assert!(same.incoming().poll_alloc(&mut cx, WRITE, &mut waiting).is_ready());
        (66..200).for_each(look);
        assert_eq!(
            members.iter().filter(|member| told(member).is_some()).count(),
            1,
            "nobody waits any more"
        );
    }

    #[test]
    fn an_address_keeps_nobody_else_from_logging_on() {
        let (pool, memory) = memory(64 * MAX_BUF);
        // Of eight, an address gets two, over any transport.
        let greedy = memory.join(Peer::Tcp("10.0.0.1:1".parse().unwrap()));
        let mut held: Vec<_> = std::iter::from_fn(|| greedy.strangers.try_alloc(MAX_BUF)).collect();
        assert_eq!(held.len(), 2);
        let again = memory.join_rdma(peer("10.0.0.1:2"));
        assert!(again.rdma().try_alloc(4096).is_none());
        let other = memory.join_rdma(peer("10.0.0.2:1"));
        let first = other.rdma().try_alloc(4096);
        assert!(first.is_some() && known(&memory, "10.0.0.3:1").rdma().try_alloc(MAX_BUF).is_some());
        // Identified peers that hold all of their memory cannot prevent it either.
        held.extend(std::iter::from_fn(|| pool.try_alloc(MAX_BUF)));
        assert_eq!(held.len(), 2 + 56);
        assert!(other.rdma().try_alloc(MAX_BUF).is_some());
        assert!(!other.admit() && other.rdma().try_alloc(4096).is_some(), "no room among the known");
        drop(held);
        other.settle();
        assert!(other.admit());
        let all: Vec<_> = std::iter::from_fn(|| other.rdma().try_alloc(MAX_BUF)).collect();
        assert_eq!(all.len(), 15, "a quarter of the pool, of which it held something already");
    }

    #[test]
    fn processes_of_this_host_have_the_whole_pool() {
        let (_pool, memory) = memory(8 * MAX_BUF);
        let local = memory.join_rdma(Peer::Local { uid: 0, pid: Some(1) });
        assert!(local.admit());
        assert_eq!(std::iter::from_fn(|| Some(local.rdma().try_alloc(MAX_BUF)?.freeze())).take(7).count(), 7);
    }
}
