//! Limits how often a sleeping peer is woken: what network cards call interrupt moderation.
//!
//! The first news to a sleeping peer rings its bell at once. While this side works on without a pause, further news
//! rings at most every [`INTERVAL`]; a pending ring is sent when the core's loop turns. A peer with eight large READs
//! outstanding is thus woken for several at a time: a wake-up costs both ends some microseconds.
//! `machine::shm::Doorbell` decides whether the peer sleeps.
//!
//! News is delayed by at most `INTERVAL` beyond the work during which it was published.

use std::cell::Cell;
use std::time::Duration;

use weft_machine::shm::{Ringer, Sleeper};
use weft_machine::{Time, rt};

/// Two or three transfers of 512 KiB.
const INTERVAL: Duration = Duration::from_micros(150);

/// The peer's bell, rung with moderation.
pub(super) struct Moderated {
    sleeping: Sleeper,
    bell: Ringer,
    owed: Cell<bool>,
    last: Cell<Option<Time>>,
}

impl Moderated {
    pub(super) fn new(sleeping: Sleeper, bell: Ringer) -> Moderated {
        Moderated { sleeping, bell, owed: Cell::new(false), last: Cell::new(None) }
    }

    /// News was published: wakes the peer now, or later.
    pub(super) fn news(&self) {
        self.news_at(rt::now);
    }

    fn news_at(&self, now: impl FnOnce() -> Time) {
        if !self.sleeping.is_asleep() {
            // The peer checks the ring before it sleeps again, so no ring is pending either.
            return self.owed.set(false);
        }
        let now = now();
        if self.last.get().is_some_and(|last| now.since(last) < INTERVAL) {
            return self.owed.set(true);
        }
        self.last.set(Some(now));
        self.settle();
    }

    /// Sends a pending ring if the peer sleeps: called in each turn of the core's loop.
    pub(super) fn ring_if_owed(&self) {
        if self.owed.get() {
            self.settle();
        }
    }

    fn settle(&self) {
        self.owed.set(false);
        self.sleeping.wake(&self.bell);
    }
}

impl Drop for Moderated {
    fn drop(&mut self) {
        self.ring_if_owed();
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::shm::{Doorbell, Words};

    use super::*;

    fn bell() -> (Moderated, Sleeper, Doorbell) {
        let words = Words::create("bell-test", 4096).unwrap();
        let (ours, theirs) = Doorbell::new().unwrap();
        (Moderated::new(Sleeper::new(words.clone()), theirs), Sleeper::new(words), ours)
    }

    #[test]
    fn the_first_news_ring_the_next_are_owed_and_settled_by_the_loop() {
        rt::block_on(async {
            let (moderated, peer, bell) = bell();
            let now = rt::now();
            moderated.news_at(|| now);
            assert!(!bell.silence().unwrap(), "an awake peer is not disturbed");
            peer.announce();
            moderated.news_at(|| now);
            assert!(bell.silence().unwrap());
            // The peer slept again at once, and there is more news.
            peer.announce();
            moderated.news_at(|| now);
            assert!(!bell.silence().unwrap(), "too soon");
            moderated.ring_if_owed();
            assert!(bell.silence().unwrap(), "but the loop settles it");
            moderated.ring_if_owed();
            assert!(!bell.silence().unwrap(), "once");
        })
        .unwrap();
    }

    #[test]
    fn nothing_is_owed_to_a_peer_that_woke_by_itself_or_after_the_end() {
        rt::block_on(async {
            let (moderated, peer, bell) = bell();
            let now = rt::now();
            peer.announce();
            moderated.news_at(|| now);
            assert!(bell.silence().unwrap());
            peer.announce();
            moderated.news_at(|| now);
            peer.awake();
            moderated.ring_if_owed();
            assert!(!bell.silence().unwrap());
            peer.announce();
            moderated.news_at(|| now);
            drop(moderated);
            assert!(bell.silence().unwrap(), "the end settles what is owed");
        })
        .unwrap();
    }
}
