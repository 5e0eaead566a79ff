//! Destinations that do not know the partnership (docs/replication.md, "Damage").
//!
//! A destination that was removed says so at a hello, and so does a freshly installed server in its place: a source
//! goes on without it, and remembers that. If a source is opened and hears that it has ended the partnership itself,
//! its state directory was set back to a time before that, and its log is older than its volumes.

use super::{Knows, Source};
use crate::error::Error;
use crate::state::PeerState;
use crate::status::Phase;

impl Source {
    /// Remembers whether destination `n` knows the partnership.
    pub(super) async fn learn_whether_it_knows(&self, n: usize, knows: Knows) -> Result<(), Error> {
        let is_there = knows == Knows::Yes;
        let is_news = self.handle(|core| {
            let goes_on = core.goes_on;
            let (partner, state) = core.peer_mut(n)?;
            partner.knows = Some(knows);
            // It has no consequence before `look_for_partners` has decided.
            Ok::<_, Error>(state.may_be_gone == is_there && (is_there || goes_on))
        })?;
        match is_news {
            true => self.persist(|state| remember(state, &[n], !is_there)).await,
            false => Ok(()),
        }
    }

    /// Evaluates the answers after the destinations were asked. If no destination knows the partnership, and one says
    /// for the first time that its source has ended it, this side stops and leaves its log as it is. Otherwise it goes
    /// on, and remembers who is gone.
    pub async fn look_for_partners(&self) -> Result<(), Error> {
        let gone = self.handle(|core| {
            if core.halted.is_some() {
                return Ok(Vec::new());
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
                return Err(format!(
                    "{} says that its source, which is this side, has ended this partnership",
                    names.join(" and ")
                ));
            }
            let gone = says(|knows| knows != Knows::Yes);
            let gone = gone.into_iter().filter(is_news).map(|(n, _)| n).collect();
            core.goes_on = true;
            Ok(gone)
        });
        let gone: Vec<usize> = match gone {
            Ok(gone) => gone,
            Err(why) => {
                self.halt(Phase::Refused, why, None);
                return Ok(());
            }
        };
        match gone.is_empty() {
            true => Ok(()),
            false => self.persist(|state| remember(state, &gone, true)).await,
        }
    }

    /// Goes on without the destinations that do not know the partnership, as an administrator has decided. The source
    /// has to be opened again.
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
