//! Destinations that know nothing of the partnership.
//!
//! Spec: docs/replication.md, "Damage". A destination that was removed says so at a hello, and so does a server in its place that was installed
//! anew: a source goes on without either, and remembers that. One that is opened, and hears that it has ended the partnership itself, is of
//! a time before that, its state directory set back: its log is older than its volumes then. Does not: say hello (see `session`).

use super::{Knows, Source};
use crate::error::Error;
use crate::state::PeerState;
use crate::status::Phase;

impl Source {
    /// What destination `n` has said of the partnership.
    pub(super) async fn learn_whether_it_knows(&self, n: usize, knows: Knows) -> Result<(), Error> {
        let is_there = knows == Knows::Yes;
        let is_news = {
            let mut core = self.core();
            let goes_on = core.goes_on;
            let (partner, state) = core.peer(n)?;
            partner.knows = Some(knows);
            // Before that is decided nothing follows from it.
            state.may_be_gone == is_there && (is_there || goes_on)
        };
        match is_news {
            true => self.persist(|state| remember(state, &[n], !is_there)).await,
            false => Ok(()),
        }
    }

    /// Looks, when destinations were asked, at what they have said: where one was told by its source that the partnership is over, which this
    /// side has not heard before, and none knows it, it stops, with its log as it is. Otherwise it goes on, and remembers who is gone.
    pub async fn look_for_partners(&self) -> Result<(), Error> {
        let gone = {
            let mut core = self.core();
            if core.halted.is_some() {
                return Ok(());
            }
            let says = |is: fn(Knows) -> bool| {
                let peers = core.peers.iter().zip(&core.state.peers).enumerate();
                let those = peers.filter_map(move |(n, pair)| match pair {
                    (Some(partner), Some(state)) if partner.knows.is_some_and(is) => Some((n, state)),
                    _ => None,
                });
                those.collect::<Vec<(usize, &PeerState)>>()
            };
            let is_news = |(_, state): &(usize, &PeerState)| !state.may_be_gone;
            let ended = says(|knows| knows == Knows::Ended);
            let names: Vec<&str> = ended.into_iter().filter(is_news).map(|(_, state)| &*state.name).collect();
            if says(|knows| knows == Knows::Yes).is_empty() && !names.is_empty() {
                let why = format!(
                    "{} says that its source, which is this side, has ended this partnership",
                    names.join(" and ")
                );
                drop(core);
                self.halt(Phase::Refused, why, None);
                return Ok(());
            }
            let gone = says(|knows| knows != Knows::Yes);
            let gone: Vec<usize> = gone.into_iter().filter(is_news).map(|(n, _)| n).collect();
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
                return Err(Error::State("no destination has said that the partnership is over"));
            }
            let says = |(n, partner): (usize, &Option<super::Partner>)| {
                let says = partner.as_ref().and_then(|partner| partner.knows);
                says.is_some_and(|knows| knows != Knows::Yes).then_some(n)
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
