//! Destinations that know nothing of the partnership.
//!
//! Spec: docs/replication.md, "Damage". A destination that was removed says so at a hello. A source that runs goes on, and remembers that. One
//! that is opened and has not known it may be of a time before replication was ended, its state directory set back: its log is older than
//! its volumes then. Does not: say hello (see `session`).

use super::Source;
use crate::error::Error;
use crate::state::PeerState;
use crate::status::Phase;

impl Source {
    /// What destination `n` has said of the partnership.
    pub(super) async fn learn_whether_it_knows(&self, n: usize, knows: bool) -> Result<(), Error> {
        let is_news = {
            let mut core = self.core();
            let goes_on = core.goes_on;
            let (partner, state) = core.peer(n)?;
            partner.knows = Some(knows);
            // Before that is decided nothing follows from it.
            state.may_be_gone == knows && (knows || goes_on)
        };
        match is_news {
            true => self.persist(|state| remember(state, &[n], !knows)).await,
            false => Ok(()),
        }
    }

    /// Looks, when destinations were asked, at what they have said: where no destination knows the partnership, which this side has not
    /// heard before, it stops, with its log as it is. Otherwise it goes on, and remembers who is gone.
    pub async fn look_for_partners(&self) -> Result<(), Error> {
        let gone = {
            let mut core = self.core();
            if core.halted.is_some() {
                return Ok(());
            }
            let says = |knows| {
                let peers = core.peers.iter().zip(&core.state.peers).enumerate();
                let those = peers.filter_map(move |(n, pair)| match pair {
                    (Some(partner), Some(state)) if partner.knows == Some(knows) => Some((n, state)),
                    _ => None,
                });
                those.collect::<Vec<(usize, &PeerState)>>()
            };
            let gone = says(false);
            let names: Vec<&str> =
                gone.iter().filter(|(_, state)| !state.may_be_gone).map(|(_, state)| &*state.name).collect();
            if says(true).is_empty() && !names.is_empty() {
                let why = format!(
                    "{} says that nobody there knows this partnership: it was removed there, or the state directory was lost",
                    names.join(" and ")
                );
                drop(core);
                self.halt(Phase::Refused, why, None);
                return Ok(());
            }
            let gone: Vec<usize> =
                gone.into_iter().filter(|(_, state)| !state.may_be_gone).map(|(n, _)| n).collect();
            core.goes_on = true;
            gone
        };
        match gone.is_empty() {
            true => Ok(()),
            false => self.persist(|state| remember(state, &gone, true)).await,
        }
    }

    /// Somebody says that this side goes on without those that know nothing of the partnership. To be opened anew.
    pub async fn go_on_without(&self) -> Result<(), Error> {
        let gone: Vec<usize> = {
            let core = self.core();
            if !core.is_over() {
                return Err(Error::State("no destination has said that it knows nothing of the partnership"));
            }
            let says = |(n, partner): (usize, &Option<super::Partner>)| {
                partner.as_ref().is_some_and(|partner| partner.knows == Some(false)).then_some(n)
            };
            core.peers.iter().enumerate().filter_map(says).collect()
        };
        self.persist(|state| remember(state, &gone, true)).await
    }
}

fn remember(state: &mut crate::state::State, peers: &[usize], gone: bool) {
    for n in peers {
        if let Some(Some(peer)) = state.peers.get_mut(*n) {
            peer.may_be_gone = gone;
        }
    }
}
