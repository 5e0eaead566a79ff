//! Limits how much of the buffer pool the connections of one source may hold, before and after their peer is
//! identified.
//!
//! Before its peer is identified, a connection allocates from the strangers' share, and each source is limited to a
//! part of it, so that one address cannot prevent others from logging on. Messages of an identified peer come from
//! the pool. RDMA connections hold receives, incoming messages and pulled payload; for identified peers these come
//! from a part of the pool shared by all connections of the source. An RDMA connection keeps what it holds when its
//! peer is identified. Long answers have their own part of the pool: together they hold so little that incoming
//! messages, and data read for sending, never wait for clients that do not read their answers. No source holds more
//! than is still free of that part, and a peer that does not read while others wait for answer memory is disconnected
//! (unread.rs). This file owns the shares of each connected source and of each connection's answers. It does not
//! count connections.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use weft_machine::{Peer, Pool, Source, Time, rt};

use super::notice::Notice;
use super::unread::Silent;

/// The part of the pool, and of the strangers' share, that one source may hold: enough for a host with many clients,
/// and three more such hosts are served beside a malicious one.
const PART: usize = 4;

/// The part of the pool that long answers may hold until the network has accepted them.
const ANSWERS_PART: usize = 2;

/// How often to check whether answers wait for memory.
const LOOK: Duration = Duration::from_secs(1);

/// The shares, by source.
pub(crate) struct Memory {
    pool: Pool,
    answers: Pool,
    strangers: Pool,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    /// Sources that are connected, or whose ended connections still hold memory.
    known: HashMap<Source, Shares>,
    /// Of these, the ones that are not connected.
    left: HashSet<Source>,
    /// The memory held by the answers of each connection, by its number.
    answers: BTreeMap<u64, Arc<Answers>>,
    next: u64,
    silent: Silent,
}

/// The memory held by the answers of one connection.
struct Answers {
    source: Source,
    /// A part of its source's limit.
    share: Pool,
    /// Tells the connection to close.
    notice: Notice,
}

/// The shares of a source, and its number of connections.
struct Shares {
    strangers: Pool,
    rdma: Pool,
    answers: Pool,
    members: usize,
}

/// One connection's membership in the shares of its source, until it is dropped.
pub(super) struct Member {
    memory: Arc<Memory>,
    source: Source,
    /// The source of its buffers while its peer is unidentified.
    pub(super) strangers: Pool,
    number: u64,
    answers: Arc<Answers>,
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
        Arc::new(Memory { pool, answers, strangers, sources: Mutex::default() })
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
            members: 0,
        });
        shares.members += 1;
        let (strangers, share) = (shares.strangers.clone(), shares.answers.share(usize::MAX));
        let answers = Arc::new(Answers { source, share, notice: Notice::default() });
        let number = sources.next;
        sources.next += 1;
        sources.answers.insert(number, answers.clone());
        Member { memory: self.clone(), source, strangers, number, answers, rdma: None }
    }

    /// While it runs, tells connections to close whose answers hold memory that others wait for.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            rt::sleep(LOOK).await;
            self.look(rt::now());
        }
    }

    fn look(&self, now: Time) {
        let mut sources = self.lock();
        let Sources { known, answers, silent, .. } = &mut *sources;
        if self.pool.waiting() == 0 {
            return silent.forget();
        }
        // An answer waits for all answers, or for those of its own source.
        let wanted_of_all = self.answers.wanted_bytes();
        let wanted: HashMap<Source, usize> = known
            .iter()
            .map(|(source, shares)| (*source, shares.answers.wanted_bytes()))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        if wanted_of_all == 0 && wanted.is_empty() {
            return silent.forget();
        }
        let free_bytes = self.answers.limit_bytes().saturating_sub(self.answers.in_use_bytes());
        let is_in_the_way = |of: &Answers| {
            // A source that holds less than is free overall does not make others wait.
            let held_bytes = known.get(&of.source).map_or(0, |shares| shares.answers.in_use_bytes());
            wanted.contains_key(&of.source) || wanted_of_all > 0 && held_bytes >= free_bytes
        };
        let holders = answers.iter().filter(|(_, of)| is_in_the_way(of));
        let wanted_bytes = wanted.values().fold(wanted_of_all, |sum, bytes| sum.saturating_add(*bytes));
        for number in silent.look(now, holders.map(|(number, of)| (*number, &of.share)), wanted_bytes) {
            if let Some(of) = answers.get(&number) {
                of.notice.give();
            }
        }
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

impl Sources {
    /// Forgets sources that are not connected and hold nothing any more.
    fn tidy(&mut self) {
        let Sources { known, left, .. } = self;
        left.retain(|source| {
            let Some(shares) = known.get(source).filter(|shares| shares.members == 0) else { return false };
            // Memory of this host's own answers belongs to no share that would be forgotten.
            let own = if *source == Source::Local { None } else { Some(&shares.answers) };
            let held = [Some(&shares.strangers), Some(&shares.rdma), own];
            let holds = held.into_iter().flatten().any(|share| share.in_use_bytes() > 0);
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
        self.answers.share.clone()
    }

    /// Completes when the connection must close because it does not read answers whose memory others wait for.
    pub(super) fn poll_notice(&self, cx: &Context<'_>) -> Poll<()> {
        self.answers.notice.poll(cx)
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
        sources.answers.remove(&self.number);
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
    use weft_machine::buf::{MAX_BUF, Waiting};

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
