//! The records that a source must have before this side follows it, if this side was set back and gave up for a copy
//! that had more (docs/replication.md, "Damage").
//!
//! The state holds the last record of that copy. The owner of this destination asks the copy whether it still has it,
//! and reports the answer with [`Destination::holder_is`].

use super::waiting::Awaited;
use super::{Core, Destination};
use crate::error::Error;
use crate::state::State;

/// Who has the records that a source must have, as far as is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Nobody was asked, or the copy that had them could not be reached.
    NotKnown,
    /// This partner has them.
    Has(String),
    /// The copy that had them no longer has a consistent copy that goes as far.
    Lost,
    /// The copy follows this epoch by now; whether that source had the records is unknown.
    Later(u64),
}

impl Destination {
    /// If this side was set back: the last record that a source must have before this side follows it, and the copy
    /// that had it.
    pub fn floor(&self) -> Option<(u64, Option<String>)> {
        let core = self.core();
        Some((core.state.floor()?, core.state.set_back_by_name().map(str::to_owned)))
    }

    /// Waits until a source was refused because it lacks those records.
    pub async fn until_refused(&self) {
        self.until(|core| match core.lacks.is_some() && core.state.floor().is_some() {
            true => Ok(()),
            false => Err(Awaited::News),
        })
        .await;
    }

    /// Sets who has the records, as was just found out.
    pub fn holder_is(&self, holder: Holder) {
        self.handle(|core| core.holder = holder);
    }

    /// Follows any source from now on, even if it lacks records of a copy.
    pub async fn follow_any(&self) -> Result<(), Error> {
        self.handle(|core| core.lacks = None);
        self.decide(State::forget_set_back).await
    }

    /// The missing records and who has them, as the reason why this side follows no source without them.
    pub fn asks_for(&self) -> Option<String> {
        let core = self.core();
        Some(format!("records up to {}, {}", core.state.floor()?, who_has_it(&core)))
    }

    /// Why a source was refused that lacks records of a copy. It suggests a takeover only by a copy that still has
    /// them.
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
