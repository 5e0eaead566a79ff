//! Gathering: when a peer keeps sending many small messages, it pays to receive several at a time.
//!
//! [`Gather`] decides how many messages a receiver waits for; network cards call this adaptive moderation. It records
//! what the peer does; `receiver` owns the socket and the clock.
//!
//! A wake-up, a receive call and a send call cost several times as much as a small READ. A client with many requests
//! outstanding does not mind if its server takes them four at a time; a client with two outstanding and its server
//! would wait for each other. Only the rate of a peer's messages shows which it is, so the rate decides: the goal is
//! raised a step while messages come in crowds, and kept only if as many come in the same time as before. If a peer
//! stops half-way, the receiver waits for [`PATIENCE`] and no longer.

use std::time::Duration;

use weft_machine::Time;

/// The longest wait after the last message received.
pub(super) const PATIENCE: Duration = Duration::from_micros(150);
/// A message longer than this on average, a WRITE of 8 KiB, is worth a wake-up of its own.
const SMALL_BYTES: usize = 9 << 10;
/// The most messages to wait for.
const MAX_GOAL: usize = 16;
/// The most bytes to wait for.
const MAX_GOAL_BYTES: usize = 80 << 10;
/// Receives between two evaluations of the rate.
const EPOCH: u32 = 64;
/// An epoch that took longer says nothing about rates: the peer was doing something else.
const MAX_EPOCH: Duration = Duration::from_millis(50);
/// Percent of the goal that must arrive per receive for raising it to be worth a trial.
const CROWD_PERCENT: usize = 95;
/// The same while nothing is gathered: at 100 percent the peer has one request outstanding.
const FIRST_CROWD_PERCENT: usize = 120;
/// The rate that must be kept under a raised goal, in percent of the former rate.
const KEPT_PERCENT: u128 = 95;
/// Gatherings per epoch that may end by timeout.
const MAX_MISSED: u32 = EPOCH / 4;
/// Epochs after which a raised goal must prove itself again: the peer's behaviour may have changed.
const PROBATION: u32 = 256;
/// Epochs without a new attempt after a failed one: the first value, doubled with each failure, and the maximum.
const REST_FIRST: u32 = 8;
const REST_MOST: u32 = 1024;

/// What happened since the epoch began.
#[derive(Debug, Default)]
struct Epoch {
    /// When it began; `None` before the first receive.
    start: Option<Time>,
    receives: u32,
    messages: usize,
    bytes: usize,
    missed: u32,
}

/// How many messages to wait for.
#[derive(Debug)]
pub(super) struct Gather {
    /// In messages; 1 waits for the first message only.
    goal: usize,
    /// Nanoseconds per message before the goal was raised, during its trial.
    trial: Option<u128>,
    epoch: Epoch,
    /// Epochs until the next attempt.
    rest: u32,
    next_rest: u32,
    /// Epochs since the goal last changed.
    age: u32,
    /// Average bytes of a message in the last epoch.
    message_bytes: usize,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather {
            goal: 1,
            trial: None,
            epoch: Epoch::default(),
            rest: 0,
            next_rest: REST_FIRST,
            age: 0,
            message_bytes: 0,
        }
    }
}

impl Gather {
    /// Bytes that must be available before a wake-up pays; 1 for any.
    pub(super) fn low_water(&self) -> usize {
        // Message sizes vary: waiting for a little less than the average avoids a wait for the last bytes of a message.
        if self.goal == 1 { 1 } else { (self.goal_bytes().saturating_mul(7) / 8).max(1) }
    }

    /// Bytes of as many messages as the goal.
    fn goal_bytes(&self) -> usize {
        self.goal.saturating_mul(self.message_bytes)
    }

    /// A receive returned this many whole messages in this many bytes.
    pub(super) fn received(&mut self, messages: usize, bytes: usize, now: Time) {
        let epoch = &mut self.epoch;
        let Some(start) = epoch.start else {
            epoch.start = Some(now);
            return;
        };
        epoch.receives = epoch.receives.saturating_add(1);
        epoch.messages = epoch.messages.saturating_add(messages);
        epoch.bytes = epoch.bytes.saturating_add(bytes);
        if epoch.receives == EPOCH {
            let took = now.since(start);
            self.judge(took);
            self.epoch = Epoch { start: Some(now), ..Epoch::default() };
        }
    }

    /// A gathering timed out with less than the goal.
    pub(super) fn missed(&mut self) {
        self.epoch.missed = self.epoch.missed.saturating_add(1);
        if self.epoch.missed > MAX_MISSED {
            self.give_up();
        }
    }

    /// The peer pauses: earlier rates say nothing about later ones.
    pub(super) fn paused(&mut self) {
        self.epoch = Epoch::default();
    }

    fn judge(&mut self, took: Duration) {
        let Epoch { receives, messages, bytes, .. } = self.epoch;
        let average = bytes.checked_div(messages);
        let each = took.as_nanos().checked_div(messages as u128);
        let (Some(average), Some(each)) = (average, each.filter(|_| took <= MAX_EPOCH)) else {
            return self.retreat();
        };
        self.message_bytes = average;
        if self.message_bytes > SMALL_BYTES {
            return self.retreat();
        }
        if let Some(before) = self.trial.take() {
            if each.saturating_mul(KEPT_PERCENT) > before.saturating_mul(100) {
                return self.give_up();
            }
            self.next_rest = REST_FIRST;
        }
        self.rest = self.rest.saturating_sub(1);
        self.age = self.age.saturating_add(1);
        if self.goal > 1 && self.age == PROBATION {
            return self.retreat();
        }
        let percent = if self.goal == 1 { FIRST_CROWD_PERCENT } else { CROWD_PERCENT };
        let wanted = percent.saturating_mul(self.goal).saturating_mul(receives as usize);
        let crowd = messages.saturating_mul(100) >= wanted;
        let room = self.goal < MAX_GOAL && self.goal_bytes().saturating_mul(2) <= MAX_GOAL_BYTES;
        if self.rest == 0 && crowd && room {
            self.trial = Some(each);
            self.age = 0;
            self.goal = self.goal.saturating_mul(2);
        }
    }

    /// The goal did harm.
    fn give_up(&mut self) {
        self.retreat();
        self.rest = self.next_rest;
        self.next_rest = self.next_rest.saturating_mul(2).min(REST_MOST);
    }

    fn retreat(&mut self) {
        self.goal = (self.goal / 2).max(1);
        self.age = 0;
        self.trial = None;
        self.epoch = Epoch::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that keeps `depth` requests outstanding and needs `think` nanoseconds for each answer, one after the
    /// other; the server needs `wake` for a batch and `work` for a request.
    struct Peer {
        depth: usize,
        think: u64,
        wake: u64,
        work: u64,
    }

    impl Peer {
        /// Simulates this peer for `nanos` nanoseconds against `gather`; returns messages per second and messages per
        /// receive of the second half.
        fn play(&self, gather: &mut Gather, nanos: u64) -> (f64, f64) {
            const BYTES: usize = 120;
            // When each outstanding request reaches the server.
            let mut arrivals = std::collections::VecDeque::from(vec![0u64; self.depth]);
            let (mut now, mut client_free) = (0u64, 0u64);
            let (mut messages, mut receives) = (0usize, 0usize);
            while now < nanos {
                let wanted = gather.low_water().div_ceil(BYTES).max(1);
                let full = arrivals.get(wanted - 1).copied();
                let patience = arrivals[0].max(now) + PATIENCE.as_nanos() as u64;
                let ready = full.filter(|&at| at <= patience);
                if ready.is_none() && wanted > 1 {
                    gather.missed();
                }
                now = now.max(ready.unwrap_or(patience)) + self.wake;
                let here = arrivals.iter().take_while(|&&at| at <= now).count();
                gather.received(here, here * BYTES, Time::ZERO + Duration::from_nanos(now));
                if 2 * now > nanos {
                    (messages, receives) = (messages + here, receives + 1);
                }
                now += self.work * here as u64;
                arrivals.drain(..here);
                for _ in 0..here {
                    client_free = client_free.max(now) + self.think;
                    arrivals.push_back(client_free);
                }
            }
            (messages as f64 / (nanos as f64 / 2e9), messages as f64 / receives as f64)
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_slow_client_with_many_requests_outstanding_is_served_in_crowds_at_the_same_rate() {
        let peer = Peer { depth: 32, think: 11_000, wake: 8_000, work: 5_000 };
        let mut gather = Gather::default();
        let (rate, crowd) = peer.play(&mut gather, SECOND);
        assert!(crowd > 5.0, "{crowd} messages a receive");
        assert!(rate > 0.95 * 1e9 / 11_000.0, "{rate} messages a second");
    }

    #[test]
    fn a_client_that_waits_for_its_answers_is_not_made_to_wait() {
        for depth in [1, 2, 3, 4] {
            let peer = Peer { depth, think: 3_000, wake: 4_000, work: 3_000 };
            let (alone, _) = peer.play(&mut Gather { rest: u32::MAX, ..Gather::default() }, SECOND);
            let (rate, _) = peer.play(&mut Gather::default(), SECOND);
            assert!(rate > 0.95 * alone, "depth {depth}: {rate} instead of {alone}");
        }
    }

    #[test]
    fn large_messages_are_never_waited_for() {
        let mut gather = Gather::default();
        for i in 0..100_000 {
            gather.received(4, 4 * 16_500, Time::ZERO + Duration::from_micros(i * 10));
            assert_eq!(gather.low_water(), 1);
        }
    }

    #[test]
    fn attempts_that_fail_become_rare() {
        let mut gather = Gather::default();
        let mut attempts = 0;
        for i in 0..EPOCH as u64 * 10_000 {
            let before = gather.goal;
            gather.received(2, 240, Time::ZERO + Duration::from_micros(i * 10));
            attempts += u32::from(gather.goal > before);
            while gather.goal > 1 {
                gather.missed();
            }
        }
        assert!((5..30).contains(&attempts), "{attempts} attempts");
    }
}
