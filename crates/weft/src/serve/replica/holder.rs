//! Finds out who now has the data for which this side gave up its role when it was set back.
//!
//! See [`Ask::Holds`](super::setup::Ask::Holds). The user is told to promote that copy; the copy may have lost the
//! data since. `weft_replica::destination` keeps the required position and words the message.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::rt;
use weft_replica::destination::{Destination, Holder};

use super::Replicas;
use super::group::{Group, State};
use super::position::Holds;

/// How often partners are asked while a source is refused.
const ASKS_EVERY: Duration = Duration::from_secs(10);

impl Group {
    /// While this side is this copy: when a source that lacks something was refused, finds out who has it.
    pub async fn watch_holder(&self, replicas: &Replicas, copy: &Arc<Destination>) {
        let is = |state: &State| self.is_this_copy(state, copy);
        while is(&self.state()) && !replicas.ends() {
            let over = std::pin::pin!(self.engine().until(|state| !is(state)));
            let refused = std::pin::pin!(copy.until_refused());
            let Either::Left(_) = select(refused, over).await else { return };
            self.look_for_holder(replicas, copy).await;
            let over = self.engine().until(|state| !is(state));
            let _is_time = rt::timeout(ASKS_EVERY, over).await;
        }
    }

    /// Asks all partners, if a source must have certain records for this side to follow it.
    pub async fn look_for_holder(&self, replicas: &Replicas, copy: &Destination) {
        let Some((last, had)) = copy.floor() else { return };
        let asked = self.ask_partners(replicas).await;
        let asked: Vec<_> = asked.into_iter().map(|(partner, holds)| (partner.name, holds)).collect();
        copy.holder_is(holder(&asked, had.as_deref(), copy.status().epoch, last));
    }
}

/// The partner that says it has everything through record `last` of this epoch, which `had` had.
fn holder(asked: &[(String, Option<Holds>)], had: Option<&str>, epoch: u64, last: u64) -> Holder {
    let has = |holds: &Holds| {
        let (its, end) = holds.part.has();
        its == epoch && end >= last
    };
    if let Some((name, _)) = asked.iter().find(|(_, holds)| holds.as_ref().is_some_and(has)) {
        return Holder::Has(name.clone());
    }
    let says = asked.iter().find(|(name, _)| Some(&**name) == had).and_then(|(_, holds)| holds.as_ref());
    match says {
        None => Holder::NotKnown,
        Some(holds) => match holds.part.has() {
            (later, _) if later > epoch => Holder::Later(later),
            _ => Holder::Lost,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::position::Part;
    use super::*;

    #[test]
    fn who_had_something_is_asked_whether_that_is_so_still() {
        let holds = |epoch, last| Some(Holds::from(Part::Copy { epoch, last }));
        let found = |beta, gamma| {
            let asked = [("beta:db".to_owned(), beta), ("gamma:db".to_owned(), gamma)];
            holder(&asked, Some("beta:db"), 3, 8009)
        };
        assert_eq!(found(holds(3, 8009), None), Holder::Has("beta:db".into()));
        // Its journal is lost, it is in the middle of a resync, or it does not know the partnership.
        for part in [Part::Nothing, Part::Unknown] {
            assert_eq!(found(Some(part.into()), None), Holder::Lost);
        }
        assert_eq!(found(holds(3, 8008), holds(4, 9000)), Holder::Lost);
        assert_eq!(found(holds(3, 17), holds(3, 8010)), Holder::Has("gamma:db".into()));
        assert_eq!(found(holds(4, 8009), holds(2, 9000)), Holder::Later(4));
        assert_eq!(found(None, holds(3, 8008)), Holder::NotKnown);
    }
}
