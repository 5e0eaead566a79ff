//! Detects that a copy's source no longer knows the partnership, because it was removed on that side only.
//!
//! See [`Ask::Holds`](super::setup::Ask::Holds). The copy could not be reached at the removal, so nobody told it; it
//! asks while its source is silent. The result is only reported: the source's volumes may be in use, or the host may
//! be a different one by now.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use weft_machine::rt;
use weft_replica::destination::Destination;

use super::Replicas;
use super::group::{Group, State};

/// How often a silent source is asked.
const ASKS_EVERY: Duration = Duration::from_secs(10);

/// The sentence about a source that no longer knows the group, with commands for this host.
pub(super) fn told(group: &str, host: &str) -> String {
    format!(
        "{host} answers that it does not know this partnership: either it was removed there, and data written there since would be \
         missing here, or that server has lost its state directory. To end it on this host too: `weft replica remove {group}`"
    )
}

impl Group {
    /// While this side is this copy: when its source is silent, finds out whether it still knows the partnership.
    pub async fn watch_removed(&self, replicas: &Replicas, copy: &Arc<Destination>) {
        let is = |state: &State| self.is_this_copy(state, copy);
        while is(&self.state()) && !replicas.ends() {
            self.look_whether_removed(replicas, copy).await;
            let over = self.engine().until(|state| !is(state));
            let _is_time = rt::timeout(ASKS_EVERY, over).await;
        }
        self.set_removed_by(None);
    }

    async fn look_whether_removed(&self, replicas: &Replicas, copy: &Destination) {
        let source = self.config().partners.into_iter().next().filter(|_| copy.is_source_silent());
        let by = match source {
            None => None,
            Some(source) => match self.ask_partner(replicas, &source).await {
                Some(holds) if holds.part.is_unknown() => Some(source.address.host),
                Some(_) => None,
                // It may have gone since it answered.
                None => self.removed_by().filter(|host| *host == source.address.host),
            },
        };
        self.set_removed_by(by);
    }

    fn set_removed_by(&self, host: Option<String>) {
        *self.removed_by.lock().unwrap_or_else(PoisonError::into_inner) = host;
    }

    /// The host of the source that last answered that it does not know this copy.
    pub fn removed_by(&self) -> Option<String> {
        self.removed_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
