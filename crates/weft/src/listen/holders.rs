//! Chooses the connections to close while others wait for memory that they hold.
//!
//! That is memory of answers that the peer does not read, or of a message that the peer does not finish. TCP gives up a
//! peer that accepts nothing, but only after half a minute or more, and a message may arrive slowly for as long as it
//! keeps a low rate: peers with many connections could hold all memory for that time. So while somebody waits for memory,
//! a holder that makes no progress for [`PATIENCE`] is told to close: the slowest first, as many as make room. If nobody
//! waits, a peer may be as slow as it likes. This file records since when each holder has made no progress. It does not
//! know or close connections.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use weft_machine::Time;

/// How long a holder may make no progress while others wait for its memory. An answer has at most 1 MiB with few
/// exceptions, which a link of 2 Mbit/s transfers in this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a message may take to fill its memory while others wait for it, if its bytes keep coming: a WRITE of 1 MiB,
/// which has 2 MiB of memory, needs 100 KiB/s. Whoever wants to hold a pool of 1 GiB in spite of that has to send
/// 50 MiB/s, and does not hold it longer than others who send as much.
const ARRIVAL: Duration = Duration::from_secs(20);

/// What keeps others waiting.
pub(super) struct Holder {
    /// The number of its connection.
    pub(super) number: u64,
    /// What closing it would free.
    pub(super) held_bytes: usize,
    /// Changes when it makes progress: frees some of its memory, or finishes a message.
    pub(super) progress: u64,
    /// Bytes of the unfinished message and those before that have arrived.
    pub(super) received_bytes: u64,
}

/// A holder to close.
#[derive(Clone, Copy)]
pub(super) struct Late {
    pub(super) number: u64,
    pub(super) held_bytes: usize,
}

/// Holders that have made no progress since others wait, by number.
#[derive(Default)]
pub(super) struct Silent(HashMap<u64, Since>);

struct Since {
    time: Time,
    progress: u64,
    received_bytes: u64,
}

impl Silent {
    /// Forgets all, because nobody waits.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The holders to close now so that `wanted_bytes` become free. `holders`: those that keep others waiting.
    pub(super) fn look(
        &mut self,
        now: Time,
        holders: impl Iterator<Item = Holder>,
        wanted_bytes: usize,
    ) -> Vec<Late> {
        let before = std::mem::take(&mut self.0);
        let mut late = Vec::new();
        for Holder { number, held_bytes, progress, received_bytes } in holders {
            if held_bytes == 0 {
                continue;
            }
            let same = before.get(&number).filter(|since| since.progress == progress);
            let (time, from) = same.map_or((now, received_bytes), |since| (since.time, since.received_bytes));
            self.0.insert(number, Since { time, progress, received_bytes: from });
            let came = u128::from(received_bytes.saturating_sub(from));
            let needed = held_bytes as u128 * now.since(time).as_millis() / ARRIVAL.as_millis();
            if now.since(time) >= PATIENCE && came < needed {
                // Rates of the same magnitude count as equal.
                let rate = came / now.since(time).as_millis().max(1);
                late.push((
                    (rate.checked_ilog2(), time, Reverse(held_bytes), number),
                    Late { number, held_bytes },
                ));
            }
        }
        late.sort_by_key(|(order, _)| *order);
        let mut free_bytes: usize = 0;
        late.into_iter()
            .map(|(_, late)| late)
            .take_while(|late| {
                let wanted = free_bytes < wanted_bytes;
                free_bytes = free_bytes.saturating_add(late.held_bytes);
                wanted
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one holder after another is told within a minute, where each has 8 MiB and receives bytes at `rates`.
    fn told(rates: &[u64], wanted_bytes: usize) -> Vec<(u64, u64)> {
        let mut silent = Silent::default();
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for secs in 0..60 {
            let here: Vec<Holder> = (0..)
                .zip(rates)
                .filter(|(number, _)| !gone.iter().any(|(other, _)| other == number))
                .map(|(number, rate)| {
                    let received_bytes = rate * secs;
                    // A message of 4 MiB has 8 MiB.
                    Holder { number, held_bytes: 8 << 20, progress: received_bytes >> 22, received_bytes }
                })
                .collect();
            let now = Time::ZERO + Duration::from_secs(secs);
            let wanted_bytes = wanted_bytes.saturating_sub(gone.len() * (8 << 20));
            gone.extend(
                silent.look(now, here.into_iter(), wanted_bytes).iter().map(|late| (late.number, secs)),
            );
        }
        gone
    }

    #[test]
    fn of_those_that_send_slowly_the_slowest_go_and_who_finishes_messages_stays() {
        let rates = [64 << 20, 9 << 10, 0, 2 << 20, 9 << 10];
        assert_eq!(told(&rates, 1), [(2, 5)], "one makes room");
        assert_eq!(told(&rates, 20 << 20), [(2, 5), (1, 5), (4, 5)]);
        assert_eq!(told(&rates, usize::MAX), [(2, 5), (1, 5), (4, 5)], "the others make progress");
    }

    #[test]
    fn a_message_that_keeps_coming_has_twenty_seconds() {
        assert!(told(&[450 << 10], usize::MAX).is_empty());
        assert_eq!(told(&[400 << 10], usize::MAX), [(0, 5)]);
        // Who stops has no more than the time for what has come.
        let mut silent = Silent::default();
        let mut look = |secs: u64, received_bytes| {
            let holder = Holder { number: 1, held_bytes: 2 << 20, progress: 0, received_bytes };
            silent.look(Time::ZERO + Duration::from_secs(secs), std::iter::once(holder), 1).len()
        };
        assert_eq!([look(0, 0), look(9, 1 << 20), look(11, 1 << 20)], [0, 0, 1]);
    }
}
