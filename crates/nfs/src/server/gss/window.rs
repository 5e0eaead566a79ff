//! The sequence numbers of a context: each is accepted once.
//!
//! See RFC 2203 5.3.3.1. A call repeated by its client has a new number, so a number that comes for the second time is a
//! replay.

/// How far a number may be below the highest one; what clients are told. More than the calls that a connection carries
/// out at a time, several times over, because a client may use several connections.
pub const WINDOW: u32 = 1024;

const WORDS: usize = (WINDOW / 64) as usize;

/// See the module.
#[derive(Default)]
pub struct Window {
    /// The highest number.
    highest: Option<u32>,
    /// One bit for each of the last [`WINDOW`] numbers, by its remainder.
    seen: [u64; WORDS],
}

impl Window {
    /// Whether the number comes for the first time and is not too old; from now on it has come.
    pub fn accept(&mut self, number: u32) -> bool {
        match self.highest {
            Some(highest) if number <= highest => {
                if highest.saturating_sub(number) >= WINDOW || self.has(number) {
                    return false;
                }
            }
            Some(highest) if number.saturating_sub(highest) < WINDOW => {
                for passed in highest..number {
                    self.put(passed.wrapping_add(1), false);
                }
                self.highest = Some(number);
            }
            _ => {
                self.seen = [0; WORDS];
                self.highest = Some(number);
            }
        }
        self.put(number, true);
        true
    }

    fn has(&self, number: u32) -> bool {
        let (word, bit) = place(number);
        self.seen.get(word).is_some_and(|seen| seen & bit != 0)
    }

    fn put(&mut self, number: u32, is_seen: bool) {
        let (word, bit) = place(number);
        if let Some(seen) = self.seen.get_mut(word) {
            *seen = if is_seen { *seen | bit } else { *seen & !bit };
        }
    }
}

fn place(number: u32) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_number_is_accepted_once_and_old_ones_not_at_all() {
        let mut window = Window::default();
        assert!(window.accept(5) && !window.accept(5));
        assert!(window.accept(4) && !window.accept(4), "below the first one, but within the window");
        assert!(window.accept(5 + WINDOW) && !window.accept(5), "now below the window");
        assert!(window.accept(6) && !window.accept(6), "its last number");
        assert!(window.accept(9 * WINDOW) && !window.accept(5 + WINDOW));
        assert!(window.accept(u32::MAX) && !window.accept(u32::MAX) && window.accept(u32::MAX - 1));
    }

    proptest! {
        #[test]
        fn it_decides_as_a_set_does(steps in prop::collection::vec((any::<bool>(), 0..2 * WINDOW), 1..400)) {
            let (mut window, mut seen) = (Window::default(), HashSet::new());
            let mut highest = None;
            for (is_above, by) in steps {
                let last: u32 = highest.unwrap_or(10_000);
                let number = if is_above { last + by } else { last - by.min(last) };
                let is_old = highest.is_some_and(|highest| number + WINDOW <= highest);
                let expected = !is_old && seen.insert(number);
                prop_assert_eq!(window.accept(number), expected, "{} after {:?}", number, highest);
                if expected {
                    highest = highest.max(Some(number));
                }
            }
        }
    }
}
