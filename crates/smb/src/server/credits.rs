//! The window of message ids that a client may use, and the grant of further ids.
//!
//! Spec: [MS-SMB2] 3.3.1.1 (algorithm for the window), 3.3.1.2 (granting), 3.3.5.2.3 (verifying). Owns one bit per id
//! of the window.
//!
//! The 16-bit counter of some clients overflows if they get all the credits that they ask for, and every credit is a
//! request that the server must be able to hold: so the cap covers available and outstanding credits together.

use std::collections::VecDeque;

/// Distance between the oldest unused id and the newest, in multiples of the cap: a client that never uses a granted id
/// runs out of credits instead of making the window grow.
const SPAN_CAPS: u64 = 4;

/// The command sequence window of a connection.
pub(super) struct Window {
    cap: u64,
    /// All smaller ids are used.
    low: u64,
    /// Ids from here on are not granted yet. `low <= high`.
    high: u64,
    /// The used ids of `low..`, 64 per word; the first bit is `base`, a multiple of 64 at or below `low`.
    used: VecDeque<u64>,
    base: u64,
    /// Number of unused ids in the window.
    available: u64,
    /// Credits of unanswered requests.
    outstanding: u64,
}

impl Window {
    /// A window with only id 0 (3.3.5.1). The client will hold at most `cap` credits.
    pub fn new(cap: u16) -> Window {
        let cap = u64::from(cap.max(1));
        Window { cap, low: 0, high: 1, used: VecDeque::from([0]), base: 0, available: 1, outstanding: 0 }
    }

    /// Uses `charge` ids from `id` on. Returns false, and changes nothing, if one of them was not granted or is used
    /// already.
    #[must_use]
    pub fn take(&mut self, id: u64, charge: u16) -> bool {
        let charge = u64::from(charge.max(1));
        let Some(end) = id.checked_add(charge) else { return false };
        if id < self.low || end > self.high || (id..end).any(|id| self.bit(id)) {
            return false;
        }
        for id in id..end {
            let (word, bit) = self.place(id);
            if let Some(word) = self.used.get_mut(word) {
                *word |= 1u64.wrapping_shl(bit);
            }
        }
        self.available = self.available.saturating_sub(charge);
        self.outstanding = self.outstanding.saturating_add(charge);
        self.slide();
        true
    }

    /// The word and the bit of an id in `used`; ids start at `base`.
    fn place(&self, id: u64) -> (usize, u32) {
        let at = id.saturating_sub(self.base);
        ((at / 64) as usize, (at % 64) as u32)
    }

    /// The bits of an id and of the following ids in its word; ids outside the window count as used.
    fn bits(&self, id: u64) -> u64 {
        let (word, bit) = self.place(id);
        self.used.get(word).map_or(u64::MAX, |word| word.wrapping_shr(bit))
    }

    fn bit(&self, id: u64) -> bool {
        self.bits(id) & 1 == 1
    }

    /// Advances the lower edge past used ids.
    fn slide(&mut self) {
        while self.low < self.high {
            let (_, bit) = self.place(self.low);
            let in_word = u64::from(u64::BITS.saturating_sub(bit));
            let used = u64::from((!self.bits(self.low)).trailing_zeros());
            let run = used.min(in_word).min(self.high.saturating_sub(self.low));
            if run == 0 {
                break;
            }
            self.low = self.low.saturating_add(run);
            if used < in_word {
                // The next id in this word is unused.
                break;
            }
        }
        while self.low.saturating_sub(self.base) >= 64 && self.used.len() > 1 {
            self.used.pop_front();
            self.base = self.base.saturating_add(64);
        }
    }

    /// Returns the credits to grant to a request of `charge` that is answered or told to wait: as many as it asks for,
    /// as far as the cap and `limit` allow; at least one if the client would otherwise have none.
    pub fn grant(&mut self, charge: u16, wanted: u16, limit: u16) -> u16 {
        self.outstanding = self.outstanding.saturating_sub(u64::from(charge.max(1)));
        let cap = self.cap.min(u64::from(limit.max(1)));
        let room = cap.saturating_sub(self.available.saturating_add(self.outstanding));
        let span = self.cap.saturating_mul(SPAN_CAPS).saturating_sub(self.high.saturating_sub(self.low));
        let stranded = self.available == 0 && self.outstanding == 0;
        let granted = u64::from(wanted).max(u64::from(stranded)).min(room).min(span);
        self.high = self.high.saturating_add(granted);
        self.available = self.available.saturating_add(granted);
        let words = (self.high.saturating_sub(self.base).div_ceil(64) as usize).max(1);
        if self.used.len() < words {
            self.used.resize(words, 0);
        }
        // The cap is 16 bits wide.
        granted as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(cap: u16, granted: u16) -> Window {
        let mut window = Window::new(cap);
        assert!(window.take(0, 1));
        assert_eq!(window.grant(1, granted, u16::MAX), granted);
        window
    }

    #[test]
    fn only_id_0_at_first() {
        let mut window = Window::new(8);
        assert!(!window.take(1, 1) && !window.take(0, 2));
        assert!(window.take(0, 0), "a charge of 0 is 1");
        assert!(!window.take(0, 1), "used");
        assert!(!window.take(1, 1), "not granted");
    }

    #[test]
    fn ids_are_used_once_in_any_order() {
        let mut window = opened(512, 100);
        for id in [5, 3, 100, 1, 4, 2] {
            assert!(window.take(id, 1), "{id}");
            assert!(!window.take(id, 1), "{id} again");
        }
        assert!(!window.take(101, 1));
        assert!(window.take(10, 10) && !window.take(19, 1) && !window.take(9, 2) && window.take(20, 1));
        assert!(!window.take(u64::MAX, 1) && !window.take(u64::MAX - 1, 3));
    }

    #[test]
    fn the_cap_holds_for_available_and_outstanding() {
        let mut window = opened(16, 10);
        assert_eq!(window.grant(0, 0, u16::MAX), 0);
        assert!(window.take(1, 4));
        assert_eq!(window.grant(1, 1000, u16::MAX), 16 - 6 - 3, "3 of the charge remain outstanding");
    }

    #[test]
    fn a_limit_below_the_cap_holds_until_it_is_lifted() {
        let mut window = opened(512, 1);
        assert_eq!(window.grant(0, 1000, 8), 7);
        assert_eq!(window.grant(0, 1000, 8), 0);
        assert_eq!(window.grant(0, 1000, u16::MAX), 504);
    }

    #[test]
    fn nobody_is_left_with_nothing() {
        let mut window = Window::new(16);
        assert!(window.take(0, 1));
        assert_eq!(window.grant(1, 0, u16::MAX), 1);
        assert!(window.take(1, 1));
    }

    #[test]
    fn an_id_that_is_never_used_stops_the_window() {
        let mut window = opened(4, 4);
        // Id 1 is never used.
        let (mut id, mut granted) = (2, 0);
        while window.take(id, 1) {
            granted += u64::from(window.grant(1, 1, u16::MAX));
            id += 1;
            assert!(id < 1000, "the window grows without end");
        }
        assert!(granted <= 4 * SPAN_CAPS);
        assert!(window.used.len() <= 2);
    }

    #[test]
    fn a_long_life() {
        let mut window = opened(512, 512);
        let mut id = 1;
        for step in 0..100_000u64 {
            let charge = (step % 7 + 1) as u16;
            assert!(window.take(id, charge), "{id}");
            id += u64::from(charge);
            assert_eq!(window.grant(charge, charge, u16::MAX), charge);
            assert!(window.used.len() <= 10);
        }
    }
}
