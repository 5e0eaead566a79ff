//! What the RDMA connections of one address may hold of the buffer pool: receives, messages on their way in, and payload that is
//! pulled, all before anybody has logged on.
//!
//! Owns: a share of the pool for each address that is connected. Does not: count connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_machine::{Peer, Pool, Source};

/// The part of the pool that one address may hold: enough for a host with many clients, and three more of them are served beside
/// one that means harm.
const PART: usize = 4;

/// The shares, by address.
pub(super) struct RdmaMemory {
    pool: Pool,
    shares: Mutex<HashMap<Source, (Pool, usize)>>,
}

/// One connection's part in the share of its address, until it is dropped.
pub(super) struct Member {
    memory: Arc<RdmaMemory>,
    source: Source,
    /// Where its buffers come from.
    pub(super) pool: Pool,
}

impl RdmaMemory {
    pub(super) fn new(pool: &Pool) -> Arc<RdmaMemory> {
        Arc::new(RdmaMemory { pool: pool.clone(), shares: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Source, (Pool, usize)>> {
        // Nothing inside the lock can panic half-way.
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of `peer` begins. A process of this host is not limited: it runs as the server's user.
    pub(super) fn join(self: &Arc<Self>, peer: &Peer) -> Member {
        let source = Source::of(*peer);
        let pool = match source {
            Source::Local => self.pool.clone(),
            Source::V4(_) | Source::V6(_) => {
                let mut shares = self.lock();
                let make = || (self.pool.share(self.pool.limit_bytes() / PART), 0);
                let (pool, members) = shares.entry(source).or_insert_with(make);
                *members += 1;
                pool.clone()
            }
        };
        Member { memory: self.clone(), source, pool }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut shares = self.memory.lock();
        if let Some((_, members)) = shares.get_mut(&self.source) {
            *members -= 1;
            if *members == 0 {
                shares.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(addr: &str) -> Peer {
        Peer::Rdma(addr.parse().unwrap())
    }

    #[test]
    fn the_connections_of_an_address_share_a_quarter_and_leave_the_rest_to_others() {
        let pool = Pool::new(128 << 20);
        let memory = RdmaMemory::new(&pool);
        let greedy = ["10.0.0.1:1", "10.0.0.1:2"].map(|addr| memory.join(&peer(addr)));
        let taken: Vec<_> = std::iter::from_fn(|| greedy[0].pool.try_alloc(1 << 20)).collect();
        assert_eq!(taken.len(), 32);
        assert!(greedy[1].pool.try_alloc(4096).is_none());
        assert!(memory.join(&peer("10.0.0.2:1")).pool.try_alloc(16 << 20).is_some());
        // Of IPv6 a host has a network.
        let one = memory.join(&peer("[2001:db8::1]:1"));
        let _all: Vec<_> = std::iter::from_fn(|| one.pool.try_alloc(1 << 20)).collect();
        assert!(memory.join(&peer("[2001:db8::ffff]:1")).pool.try_alloc(4096).is_none());
        assert!(memory.join(&peer("[2001:db8:0:1::1]:1")).pool.try_alloc(4096).is_some());
        // What a connection left behind counts, until it is gone as well.
        drop(greedy);
        assert_eq!(memory.lock().len(), 1);
        drop(taken);
        assert!(memory.join(&peer("10.0.0.1:3")).pool.try_alloc(16 << 20).is_some());
    }
}
