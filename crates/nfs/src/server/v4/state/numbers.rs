//! Unguessable ids: sequential numbers, hidden by a permutation that only this run of the server knows.
//!
//! See RFC 8881 21 (an id does not prove who sends it; this makes guessing useless). `speaker` checks who may use an
//! id.
//!
//! A Feistel network of eight rounds over SipHash with a random key. Each purpose has a permutation of its own. So an
//! id is unique without a lookup, and the id of a client that is gone still identifies it.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

const ROUNDS: u8 = 8;

/// The part of a state id that stays the same as long as the state exists.
pub type Other = [u8; 12];

/// What a number identifies.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    Client,
    Confirmation,
    State,
    /// A client as shown to others: distinguishes clients, but gives no access.
    Shown,
}

/// The key.
pub struct Numbers(SipHasher24);

impl Numbers {
    /// # Panics
    /// When the system has no random numbers.
    pub fn new() -> Numbers {
        Numbers(random_hasher())
    }

    fn mix(&self, purpose: Purpose, round: u8, half: u32) -> u32 {
        let mut hasher = self.0;
        hasher.write(&[purpose as u8, round]);
        hasher.write(&half.to_be_bytes());
        hasher.finish() as u32
    }

    /// The id of a number.
    pub fn hide(&self, purpose: Purpose, number: u64) -> u64 {
        let (mut left, mut right) = ((number >> 32) as u32, number as u32);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(purpose, round, right));
        }
        u64::from(left) << 32 | u64::from(right)
    }

    /// The number of an id.
    pub fn show(&self, purpose: Purpose, id: u64) -> u64 {
        let (mut left, mut right) = ((id >> 32) as u32, id as u32);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(purpose, round, left), left);
        }
        u64::from(left) << 32 | u64::from(right)
    }
}

/// A hash that nobody else can compute, so nobody can construct two requests with the same hash.
///
/// # Panics
/// When the system has no random numbers.
pub fn random_hasher() -> SipHasher24 {
    SipHasher24::new_with_key(&weft_machine::random::bytes().expect("random numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_number_to_nobody_else() {
        let (numbers, other) = (Numbers::new(), Numbers::new());
        let all = [0, 1, 2, 3, 1 << 32, u64::MAX];
        for number in all {
            let id = numbers.hide(Purpose::Client, number);
            assert_eq!(numbers.show(Purpose::Client, id), number);
            assert_ne!(numbers.show(Purpose::State, id), number);
            assert_ne!(other.show(Purpose::Client, id), number);
        }
        // Neighbours are far apart: about half of their bits differ.
        let differ =
            |a, b| (numbers.hide(Purpose::Client, a) ^ numbers.hide(Purpose::Client, b)).count_ones();
        assert!((1..1000).all(|n| (4..=60).contains(&differ(n, n + 1))));
    }
}
