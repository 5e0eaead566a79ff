//! Who has to go while answers wait for memory that the answers of others hold.
//!
//! TCP gives a peer up that takes nothing, but after half a minute and more, and peers of many addresses may hold all memory of answers so
//! long. So while an answer waits for memory, whoever holds some of it and gives nothing back for [`PATIENCE`] is told to go: those who
//! have been silent for longest first, as many as make room. Where nobody waits, a peer may be as slow as it likes.
//! Owns: since when each holder has given nothing back. Does not: know connections, or close them.

use std::collections::HashMap;
use std::time::Duration;

use weft_machine::{Pool, Time};

/// How long whoever holds memory of answers may give nothing back while others wait for it. An answer has 1 MiB at most but for
/// few, which a link of 2 Mbit/s takes in this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Those who have given nothing back since others wait, by number.
#[derive(Default)]
pub(super) struct Silent(HashMap<u64, Since>);

struct Since {
    time: Time,
    given_back_bytes: u64,
}

impl Silent {
    /// Forgets all: nobody waits.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Who has to go now so that `wanted_bytes` become free. `holders`: those who keep others waiting, with the share that their answers
    /// hold.
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
