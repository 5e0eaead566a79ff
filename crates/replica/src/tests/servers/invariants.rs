//! What is so at any moment, whatever has just happened.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::clock::Time;
use weft_machine::rt;
use weft_store::block::Block;

use super::{Running, Servers};
use crate::group::State;
use crate::source::Source;
use crate::status::Phase;

/// How often it is looked at between events.
const LOOK: Duration = Duration::from_millis(50);

/// What sources say of themselves, and since when it is not so.
#[derive(Default)]
pub(super) struct Claims {
    /// The source that has answered a protected write last,
    protects: Option<usize>,
    /// and those before it, which the later one's copy has taken the place of.
    before: BTreeSet<usize>,
    wrong_since: BTreeMap<usize, Time>,
}

impl Claims {
    /// A source has answered a write that its copy has: why that cannot be, if it cannot.
    pub(super) fn answers(&mut self, source: usize) -> Option<String> {
        if self.protects != Some(source) {
            self.before.extend(self.protects.replace(source));
        }
        self.before
            .contains(&source)
            .then(|| "two sources have answered protected writes by turns".to_owned())
    }
}

impl Servers {
    /// Looks, until the story ends.
    pub(super) async fn watch(self: Rc<Self>) {
        while !self.stop.get() {
            rt::sleep(LOOK).await;
            self.invariants();
        }
    }

    /// See the file.
    pub(super) fn invariants(&self) {
        self.learn();
        for n in 0..2 {
            let Some(running) = self.running(n) else {
                self.claims.borrow_mut().wrong_since.remove(&n);
                continue;
            };
            self.only_a_source_is_used(n, &running);
            if let State::Source(source) = running.group.state() {
                self.what_it_says_is_so(n, &source);
            }
        }
    }

    /// A group that cannot start is stopped, for a reason, and nobody reaches its volumes; nor those of a copy.
    fn only_a_source_is_used(&self, n: usize, running: &Running) {
        let state = running.group.state();
        if let State::Stopped(stopped) = &state
            && stopped.why.is_empty()
        {
            self.fail(format!("server {n} is stopped, and does not say why"));
        }
        let is_used = running.fronts.iter().any(|front| front.readable().is_ok());
        if is_used && matches!(state, State::Stopped(_) | State::Destination(_)) {
            self.fail(format!(
                "server {n} lets volumes be used that are no source's: {}",
                self.describe_one(n)
            ));
        }
        if let (Some(lost), State::Source(_) | State::Destination(_)) = (self.lost[n].get(), &state) {
            self.fail(format!(
                "server {n} goes on without what it has lost, {lost:?}: {}",
                self.describe_one(n)
            ));
        }
    }

    /// A source says that its copy follows, and lacks nothing: that is so, but for as long as it takes to notice.
    fn what_it_says_is_so(&self, n: usize, source: &Arc<Source>) {
        let status = source.status();
        let says = |peer: &crate::status::PeerStatus| {
            peer.phase == Phase::ContinuouslyReplicating && peer.lag_bytes == 0 && !peer.unprotected
        };
        let has = match self.running(1 - n).map(|running| running.group.state()) {
            Some(State::Destination(copy)) => {
                let copy = copy.status();
                copy.consistent && copy.epoch == status.epoch && copy.last >= status.last
            }
            _ => false,
        };
        let wrong = status.peers.iter().any(says) && !has;
        let wrong_since = &mut self.claims.borrow_mut().wrong_since;
        if !wrong {
            wrong_since.remove(&n);
            return;
        }
        let config = &self.world.config;
        let since = *wrong_since.entry(n).or_insert_with(rt::now);
        if rt::now().since(since) > (config.timeout + config.beat) * 2 {
            self.fail(format!(
                "server {n} says that it has a copy, which it has not:\n{}",
                self.describe_one(1 - n)
            ));
        }
    }
}
