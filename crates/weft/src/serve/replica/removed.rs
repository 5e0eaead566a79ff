//! A copy whose source answers that it knows nothing of the partnership: it was removed there, on that side alone.
//!
//! Spec: [`Ask::Holds`](super::setup::Ask::Holds). Nobody tells the copy, which could not be reached then; it asks, as long as its source is
//! silent. Does not: decide anything: the volumes there may be used, or the host may be another one by now.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use weft_machine::rt;
use weft_replica::destination::Destination;

use super::Replicas;
use super::group::{Group, State};

/// How often a silent source is asked.
const ASKS_EVERY: Duration = Duration::from_secs(10);

/// What is said of a source on this host, which does not know the group any more.
pub(super) fn told(group: &str, host: &str) -> String {
    format!(
        "{host} could be asked, and knows nothing of this partnership: it was removed there, and what is in use there since would be \
         missing here, or that server has lost its state directory. To end it here, too: `weft replica remove {group}`"
    )
}

impl Group {
    /// As long as this side is this copy: finds out, while its source is silent, whether that knows it still.
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
                // It may have gone since it said that.
                None => self.removed_by().filter(|host| *host == source.address.host),
            },
        };
        self.set_removed_by(by);
    }

    fn set_removed_by(&self, host: Option<String>) {
        *self.removed_by.lock().unwrap_or_else(PoisonError::into_inner) = host;
    }

    /// The host of the source that said, when it was asked last, that it does not know this copy.
    pub fn removed_by(&self) -> Option<String> {
        self.removed_by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
