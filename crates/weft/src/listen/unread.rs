//! Chooses the connections to close while answers wait for memory that the answers of others hold.
//!
//! TCP gives up a peer that accepts nothing, but only after half a minute or more, and peers with many addresses
//! could hold all answer memory for that time. So while an answer waits for memory, a holder that releases nothing
//! for [`PATIENCE`] is told to close: those silent for longest first, as many as make room. If nobody waits, a peer
//! may be as slow as it likes. This file records since when each holder has released nothing. It does not know or
//! close connections.

use std::collections::HashMap;
use std::time::Duration;

use weft_machine::{Pool, Time};

/// How long a holder of answer memory may release nothing while others wait for it. An answer has at most 1 MiB with
/// few exceptions, which a link of 2 Mbit/s transfers in this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Holders that have released nothing since others wait, by number.
#[derive(Default)]
pub(super) struct Silent(HashMap<u64, Since>);

struct Since {
    time: Time,
    given_back_bytes: u64,
}

impl Silent {
    /// Forgets all, because nobody waits.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The holders to close now so that `wanted_bytes` become free. `holders`: those that keep others waiting, with
    /// the share that their answers hold.
    pub(super) fn look<'a>(
        &mut self,
        now: Time,
        holders: impl Iterator<Item = (u64, &'a Pool)>,
        wanted_bytes: usize,
    ) -> Vec<u64> {
        let before = std::mem::take(&mut self.0);
        let mut late = Vec::new();
        for (number, share) in holders.filter(|(_, share)| share.in_use_bytes() > 0) {
            let given_back_bytes = share.given_back_bytes();
            let same = before.get(&number).filter(|since| since.given_back_bytes == given_back_bytes);
            let time = same.map_or(now, |since| since.time);
            self.0.insert(number, Since { time, given_back_bytes });
            if now.since(time) >= PATIENCE {
                late.push((time, number, share));
            }
        }
        late.sort_by_key(|(time, number, _)| (*time, *number));
        let mut free_bytes = 0;
        late.into_iter()
            .take_while(|(_, _, share)| {
                let wanted = free_bytes < wanted_bytes;
                free_bytes = free_bytes.saturating_add(share.in_use_bytes());
                wanted
            })
            .map(|(_, number, _)| number)
            .collect()
    }
}
