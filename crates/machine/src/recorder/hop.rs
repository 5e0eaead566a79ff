//! The hops of an operation: what its time is spent on.

use std::fmt;

/// Where an operation is. At each moment it is at one hop, so the times of all hops add up to its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hop {
    /// It waits for its turn: for its core, for memory or a limit, or for another operation on the same file.
    Queue,
    /// Its message is decrypted, decompressed or verified.
    Decode,
    /// The protocol and the file system's names: on the core, or on a worker.
    Store,
    /// It waits for a worker that makes its call.
    Pool,
    /// Data of a file or volume is read, written or made durable.
    Disk,
    /// Payload travels by RDMA, or the answer waits until the peer takes it.
    Wire,
    /// It waits for a partner of the replication.
    Replica,
    /// It waits for another client: a lock, or a right to cache that is recalled.
    Peer,
}

/// The number of hops.
pub const HOPS: usize = 8;

impl Hop {
    /// All, in the order of their numbers.
    pub const ALL: [Hop; HOPS] =
        [Hop::Queue, Hop::Decode, Hop::Store, Hop::Pool, Hop::Disk, Hop::Wire, Hop::Replica, Hop::Peer];
    /// Of several things that an operation waits for, the first of these is where it is: a call that has been made waits
    /// for its core, and a call on data is for the disk only once a worker has it.
    const FIRST: [Hop; HOPS] =
        [Hop::Queue, Hop::Pool, Hop::Disk, Hop::Replica, Hop::Wire, Hop::Peer, Hop::Decode, Hop::Store];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Hop::Queue => "queue",
            Hop::Decode => "decode",
            Hop::Store => "store",
            Hop::Pool => "pool",
            Hop::Disk => "disk",
            Hop::Wire => "wire",
            Hop::Replica => "replica",
            Hop::Peer => "peer",
        }
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value for each hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerHop<T>(pub(super) [T; HOPS]);

impl<T: Copy> PerHop<T> {
    /// The value of a hop.
    pub fn of(&self, hop: Hop) -> T {
        self.0[hop as usize]
    }

    pub(super) fn at(&mut self, hop: Hop) -> &mut T {
        &mut self.0[hop as usize]
    }

    pub(super) fn map<U>(self, to: impl FnMut(T) -> U) -> PerHop<U> {
        PerHop(self.0.map(to))
    }
}

impl PerHop<u32> {
    /// Where an operation is that waits for these; `None` if it waits for nothing.
    pub(super) fn first(&self) -> Option<Hop> {
        Hop::FIRST.into_iter().find(|hop| self.of(*hop) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_at_their_numbers_and_each_has_its_turn() {
        for (n, hop) in Hop::ALL.into_iter().enumerate() {
            assert_eq!(hop as usize, n);
            assert!(Hop::FIRST.contains(&hop));
            let mut waits = PerHop::<u32>::default();
            *waits.at(hop) = 2;
            assert_eq!(waits.first(), Some(hop));
        }
        let mut waits = PerHop::<u32>::default();
        assert_eq!(waits.first(), None);
        (*waits.at(Hop::Store), *waits.at(Hop::Disk)) = (1, 1);
        assert_eq!(waits.first(), Some(Hop::Disk));
        *waits.at(Hop::Pool) = 1;
        assert_eq!(waits.first(), Some(Hop::Pool));
    }
}
