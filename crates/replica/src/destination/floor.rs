//! What a source has to have for a side to follow it that was set back, and gave up for the copy that had more.
//!
//! Spec: docs/replication.md, "Damage"; the last record of that copy is in the state. Does not: ask that copy whether it has it still: whoever
//! has this destination does, and says so ([`Destination::holder_is`]).

use super::{Core, Destination};
use crate::error::Error;
use crate::state::State;

/// What is known at present of who has what this side has to find in a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Nobody was asked, or the copy that had it could not be.
    NotKnown,
    /// This partner has it.
    Has(String),
    /// The copy that had it has no whole copy that goes so far.
    Lost,
    /// It is of this epoch by now: whether that came from a source that had it is not known.
    Later(u64),
}

impl Destination {
    /// What a source has to have for this side to follow it, where this side was one that was set back: up to which record, and
    /// the copy that had that.
    pub fn floor(&self) -> Option<(u64, Option<String>)> {
        let core = self.core();
        Some((core.state.floor()?, core.state.set_back_by_name().map(str::to_owned)))
    }

    /// Waits until a source was refused because it lacks that.
    pub async fn until_refused(&self) {
        let refused = || {
            let core = self.core();
            (core.lacks.is_some() && core.state.floor().is_some()).then_some(())
        };
        self.changed.until(refused).await;
    }

    /// Who has it, as was found out a moment ago.
    pub fn holder_is(&self, holder: Holder) {
        self.core().holder = holder;
    }

    /// Whatever source comes is followed, also where it lacks what a copy has.
    pub async fn follow_any(&self) -> Result<(), Error> {
        self.core().lacks = None;
        self.persist(State::forget_set_back).await
    }

    /// Why this side follows no source that lacks something: that, and who has it.
    pub fn asks_for(&self) -> Option<String> {
        let core = self.core();
        Some(format!("records up to {}, {}", core.state.floor()?, who_has_it(&core)))
    }

    /// Why a source was refused that lacks what a copy had. Nobody is told to make a copy the source that may not have it any more.
    pub(super) fn refused_source(&self, core: &Core) -> Option<String> {
        let (epoch, copy) = (core.lacks?, core.state.floor()?);
        let here = &self.config.group;
        let take_over = format!(
            "`weft replica switch {here} --failover` there, and `weft replica remove {here}` on the source of epoch {epoch}"
        );
        let to_keep = match &core.holder {
            Holder::Has(_) => format!(" To go on with those: {take_over}."),
            Holder::NotKnown => format!(
                " If `weft replica status` there shows a whole copy with record {copy}, to go on with those: {take_over}."
            ),
            Holder::Lost | Holder::Later(_) => String::new(),
        };
        Some(format!(
            "the source of epoch {epoch} is not followed: it lacks records up to {copy}, {}.{to_keep} To go on without them: `weft replica \
             resolve {here} --keep there --force` here",
            who_has_it(core)
        ))
    }
}

fn who_has_it(core: &Core) -> String {
    let had = core.state.set_back_by_name().unwrap_or("another copy");
    match &core.holder {
        Holder::Has(name) => format!("which {name} has"),
        Holder::Lost => {
            format!(
                "which {had} had; it says that it has no whole copy now that goes so far, and nobody else who was asked has one"
            )
        }
        Holder::Later(epoch) => {
            format!(
                "which {had} had; it is of epoch {epoch} now, and whether they are in that is not known here"
            )
        }
        Holder::NotKnown => format!(
            "which {had} had; whether it has them still is not known: it was not asked, or could not be"
        ),
    }
}
