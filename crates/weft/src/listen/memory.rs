//! What the connections of one source may hold of the buffer pool, before they are known and after.
//!
//! Before its peer is known a connection takes from the strangers' share, of which each source has a part, so that one address
//! keeps nobody else from logging on. A known peer's messages come out of the pool; on RDMA connections, which hold receives,
//! messages on their way in and payload that is pulled, out of a part of it that all connections of the source share. An RDMA
//! connection takes what it holds along when its peer becomes known. Long answers have a part of the pool of their own: all
//! together hold so little that what has to be received, or read to be sent, never waits for clients that do not read their answers.
//! Owns: the shares of each source that is connected. Does not: count connections.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_machine::{Peer, Pool, Source};

/// The part of the pool, and of the strangers' share, that one source may hold: enough for a host with many clients, and three more
/// of them are served beside one that means harm.
const PART: usize = 4;

/// The part of the pool that long answers may hold, until the network has taken them.
const ANSWERS_PART: usize = 2;

/// The shares, by source.
pub(crate) struct Memory {
    pool: Pool,
    answers: Pool,
    strangers: Pool,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    /// Those that are connected, or whose connections left something behind.
    known: HashMap<Source, Shares>,
    /// The latter.
    left: HashSet<Source>,
}

/// The shares of a source, and how many connections it has.
struct Shares {
    strangers: Pool,
    rdma: Pool,
    answers: Pool,
    members: usize,
}

/// One connection's part in the shares of its source, until it is dropped.
pub(super) struct Member {
    memory: Arc<Memory>,
    source: Source,
    /// Where its buffers come from while its peer is a stranger.
    pub(super) strangers: Pool,
    /// Where the bytes of long answers come from.
    pub(super) answers: Pool,
    rdma: Option<Rdma>,
}

/// What an RDMA connection holds, strange or known.
struct Rdma {
    own: Pool,
    known: Pool,
    peer: Cell<Known>,
}

/// Whether the peer of an RDMA connection is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    No,
    /// It is, and there was no room for what it holds among the known.
    Waits,
    Moved,
}

impl Memory {
    pub(crate) fn new(pool: &Pool, strangers: &Pool) -> Arc<Memory> {
        let (pool, strangers) = (pool.clone(), strangers.clone());
        let answers = pool.share(pool.limit_bytes() / ANSWERS_PART);
        Arc::new(Memory { pool, answers, strangers, sources: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        // Nothing inside the lock can panic half-way.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part(whole: &Pool) -> Pool {
        whole.share(whole.limit_bytes() / PART)
    }

    /// A connection of `peer` begins that needs no more than the messages on their way in.
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
        let (strangers, answers) = (shares.strangers.clone(), shares.answers.clone());
        Member { memory: self.clone(), source, strangers, answers, rdma: None }
    }

    /// A connection of `peer` by RDMA begins. A process of this host is not limited: it runs as the server's user.
    pub(super) fn join_rdma(self: &Arc<Self>, peer: Peer) -> Member {
        let mut member = self.join(peer);
        if member.source != Source::Local
            && let Some(shares) = self.lock().known.get(&member.source)
        {
            let (own, known) = (shares.strangers.share(usize::MAX), shares.rdma.clone());
            member.rdma = Some(Rdma { own, known, peer: Cell::new(Known::No) });
        }
        member
    }
}

impl Sources {
    /// Forgets the sources that are not connected and hold nothing any more.
    fn tidy(&mut self) {
        let Sources { known, left } = self;
        left.retain(|source| {
            let Some(shares) = known.get(source).filter(|shares| shares.members == 0) else { return false };
            // What this host's own answers hold is not of a share that would be forgotten.
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
    /// Where the buffers of an RDMA connection come from.
    pub(super) fn rdma(&self) -> Pool {
        self.rdma.as_ref().map_or(&self.memory.pool, |rdma| &rdma.own).clone()
    }

    /// The peer is known. Where its source holds all that it may, an RDMA connection goes on with a stranger's memory; false then, and
    /// it is to be tried again.
    pub(super) fn admit(&self) -> bool {
        let Some(rdma) = self.rdma.as_ref().filter(|rdma| rdma.peer.get() != Known::Moved) else {
            return true;
        };
        let moved = rdma.own.move_to(&rdma.known);
        if moved {
            rdma.own.raise_limit();
        }
        rdma.peer.set(if moved { Known::Moved } else { Known::Waits });
        moved
    }

    /// Where there was no room for a known peer's connection there may be by now.
    pub(super) fn settle(&self) {
        if self.rdma.as_ref().is_some_and(|rdma| rdma.peer.get() == Known::Waits) && self.admit() {
            tracing::debug!("a connection has found room among the known");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut sources = self.memory.lock();
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
    use weft_machine::buf::MAX_BUF;

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

    #[test]
    fn the_connections_of_an_address_share_a_quarter_and_leave_the_rest_to_others() {
        let (_pool, memory) = memory(8 * MAX_BUF);
        let greedy = ["10.0.0.1:1", "10.0.0.1:2"].map(|addr| known(&memory, addr));
        let taken: Vec<_> = std::iter::from_fn(|| greedy[0].rdma().try_alloc(1 << 20)).collect();
        assert_eq!(taken.len(), 32);
        assert!(greedy[1].rdma().try_alloc(4096).is_none());
        assert!(known(&memory, "10.0.0.2:1").rdma().try_alloc(16 << 20).is_some());
        // Of IPv6 a host has a network.
        let one = known(&memory, "[2001:db8::1]:1");
        let _all: Vec<_> = std::iter::from_fn(|| one.rdma().try_alloc(1 << 20)).collect();
        assert!(known(&memory, "[2001:db8::ffff]:1").rdma().try_alloc(4096).is_none());
        assert!(known(&memory, "[2001:db8:0:1::1]:1").rdma().try_alloc(4096).is_some());
        // What a connection left behind counts, until it is gone as well.
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
        let all =
            |member: &Member| std::iter::from_fn(|| member.answers.try_alloc(1 << 20)).collect::<Vec<_>>();
        // Of 16 buffers, an address has four, however many connections it has.
        let greedy = ["10.0.0.1:1", "10.0.0.1:2"].map(join);
        let mut held = all(&greedy[0]);
        assert_eq!((held.len(), all(&greedy[1]).len()), (4 * 16, 0));
        let more: Vec<_> = (2..9).map(|n| join(&format!("10.0.0.{n}:1"))).collect();
        held.extend(more.iter().flat_map(all));
        assert_eq!(held.len(), 16 * 16, "half of the pool, by however many addresses");
        assert!(pool.try_alloc(MAX_BUF).is_some());
        // What a connection left behind counts, until it is taken.
        drop(greedy);
        assert!(all(&join("10.0.0.1:3")).is_empty());
        drop(held);
        assert_eq!(all(&join("10.0.0.1:3")).len(), 4 * 16);
        drop(more);
        drop(join("10.0.0.9:1"));
        assert_eq!(memory.lock().known.len(), 0, "nothing is kept of who holds nothing");
    }

    #[test]
    fn an_address_keeps_nobody_else_from_logging_on() {
        let (pool, memory) = memory(64 * MAX_BUF);
        // Of eight, an address has two, by whatever transport.
        let greedy = memory.join(Peer::Tcp("10.0.0.1:1".parse().unwrap()));
        let mut held: Vec<_> = std::iter::from_fn(|| greedy.strangers.try_alloc(MAX_BUF)).collect();
        assert_eq!(held.len(), 2);
        let again = memory.join_rdma(peer("10.0.0.1:2"));
        assert!(again.rdma().try_alloc(4096).is_none());
        let other = memory.join_rdma(peer("10.0.0.2:1"));
        let first = other.rdma().try_alloc(4096);
        assert!(first.is_some() && known(&memory, "10.0.0.3:1").rdma().try_alloc(MAX_BUF).is_some());
        // Known peers that hold all they can keep nobody from it either.
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
        let local = memory.join_rdma(Peer::Local { uid: 0, pid: 1 });
        assert!(local.admit());
        assert_eq!(std::iter::from_fn(|| Some(local.rdma().try_alloc(MAX_BUF)?.freeze())).take(7).count(), 7);
    }
}
