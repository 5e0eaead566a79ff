//! [`IdMap`]: a hash map keyed by ids that this side assigns (session, tree and message ids). One multiplication
//! hashes.
//!
//! It does not resist keys chosen by a peer: a peer may look ids up, but never inserts one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// See the module documentation.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Fibonacci hashing.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        // 2^64 divided by the golden ratio; the table takes its index from the low bits and its tags from the high ones.
        let product = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_are_spread_over_a_table() {
        let low = |id: u64| {
            let mut hasher = IdHasher::default();
            hasher.write_u64(id);
            hasher.finish() % 1024
        };
        let places: std::collections::HashSet<u64> = (0..1024).map(low).collect();
        assert!(places.len() > 512, "{} places of 1024", places.len());
    }
}
