//! What was told a short time ago: clients without opens repeat themselves with every request.
//!
//! A table of hashes with a fixed number of slots, in which a newer entry replaces an older one of the same slot: no
//! lock, no allocation. An entry that was replaced is told again.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siphasher::sip::SipHasher13;
use weft_machine::clock;

/// Slots: 64 KiB.
const SLOTS: usize = 8192;
/// What goes on is told again after this time.
const AGAIN: Duration = Duration::from_secs(3600);

/// See the module.
pub struct Recent {
    /// A secret, so that no client can choose a key that collides with that of another.
    key: [u8; 16],
    slots: Box<[AtomicU64]>,
}

impl Recent {
    /// An empty table; `key` is random.
    pub fn new(key: [u8; 16]) -> Recent {
        Recent { key, slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Enters what is told now; false if it was told a short time ago.
    pub fn enter(&self, what: impl Hash) -> bool {
        let hash = self.hash(what);
        self.slot(hash).is_some_and(|slot| slot.swap(hash, Ordering::Relaxed) != hash)
    }

    /// Never 0, which is an empty slot.
    fn hash(&self, what: impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        let epoch = clock::wall().as_secs().checked_div(AGAIN.as_secs()).unwrap_or(0);
        (epoch, what).hash(&mut hasher);
        hasher.finish() | 1
    }

    fn slot(&self, hash: u64) -> Option<&AtomicU64> {
        // The lowest bit is always set.
        self.slots.get(usize::try_from((hash >> 1) % SLOTS as u64).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::sim::{self, Sim};

    use super::*;

    #[test]
    fn what_is_repeated_is_told_once_an_hour() {
        Sim::new(1).run(async {
            sim::set_wall(Duration::from_secs(7200));
            let recent = Recent::new([7; 16]);
            assert!(recent.enter((b"handle", 1000)) && !recent.enter((b"handle", 1000)));
            assert!(recent.enter((b"handle", 1001)), "another user");
            sim::set_wall(Duration::from_secs(10_800));
            assert!(recent.enter((b"handle", 1000)));
        });
    }

    #[test]
    fn many_clients_need_no_memory() {
        let recent = Recent::new([7; 16]);
        let told = (0..100_000_u32).filter(|n| recent.enter(n)).count();
        assert_eq!(told, 100_000);
    }
}
