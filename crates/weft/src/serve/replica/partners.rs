//! What the other sides of a group have, and which of them is its source.
//!
//! Spec: [`Ask::Holds`]. A group's partners are kept in its file, the source of a copy first. A hello does not say
//! from which host it comes, so a copy that knows several partners asks them which one is the source.
//! Does not: decide what a group is, which partners it has (see [`super::destinations`]), or carry anything (see [`super::carrier`]).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use serde::{Deserialize, Serialize};
use weft_machine::rt;
use weft_replica::destination::Destination;
use weft_replica::status::Role;

use super::config::Partner;
use super::destinations::{MOST_NAME, MOST_PARTNERS};
use super::group::{Group, State};
use super::setup::{Ask, Tell};
use super::{Replicas, carrier};
use crate::out::Said;

/// How long partners that are asked what they have may take.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// A copy that has not found its source among its partners asks again after so long, and after twice as long each time, up to this.
/// A source that has just come says so when it has asked its destinations, which is in a moment.
pub(super) const ASKS_AGAIN: Duration = Duration::from_secs(1);
pub(super) const ASKS_AT_LEAST: Duration = Duration::from_secs(60);
/// What a side of a group has.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Holds {
    /// Of which epoch that is; zero from a side that has nothing that could be gone on with.
    pub epoch: u64,
    /// Its last record.
    pub last: u64,
    /// Whether it is the source.
    pub source: bool,
    /// The last record that it knows another side to have: it was set back.
    pub known: u64,
    /// That side's host.
    pub holder: Said,
}

/// The side that has most.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Most {
    /// Of which epoch that is.
    #[serde(rename = "most_epoch")]
    pub epoch: u64,
    /// Its last record; zero where nobody knows.
    #[serde(rename = "most_last")]
    pub last: u64,
    /// Its host.
    pub holder: Said,
    /// Hosts that could not be asked.
    pub silent: Vec<Said>,
}

impl Most {
    /// Forgets what no host of a group would say: it comes from another server, and is kept.
    pub fn keep_short(&mut self) {
        self.silent.retain(|host| host.len() <= MOST_NAME);
        self.silent.truncate(MOST_PARTNERS);
        if self.holder.len() > MOST_NAME {
            *self = Most::default();
        }
    }

    /// Takes in what a host has, or is known to have.
    fn hear(&mut self, epoch: u64, last: u64, host: &str) {
        if (epoch, last) > (self.epoch, self.last) {
            (self.epoch, self.last, self.holder) = (epoch, last, host.to_owned().into());
        }
    }

    /// What a copy lacks that has everything through record `last` of this epoch.
    pub fn missing(&self, epoch: u64, last: u64) -> Option<String> {
        let holder = &self.holder;
        match (self.epoch, self.last) {
            most if most <= (epoch, last) => None,
            (later, _) if later > epoch => Some(format!(
                "this copy is of epoch {epoch}; {holder} has what was written since, in epoch {later}"
            )),
            (_, most) => Some(format!(
                "this copy lacks records {} to {most}; {holder} has them",
                last.saturating_add(1)
            )),
        }
    }

    /// What nobody knows.
    pub fn unasked(&self) -> String {
        match self.silent.is_empty() {
            true => String::new(),
            false => format!("{} could not be asked, and may have more", joined(&self.silent)),
        }
    }
}

fn joined(hosts: &[Said]) -> String {
    hosts.iter().map(|host| &**host).collect::<Vec<_>>().join(" and ")
}

impl Group {
    /// What this side has, for a partner that asks.
    pub fn holds(&self) -> Holds {
        let (known, holder) = match (self.engine().set_back(), self.known_most()) {
            (Some(known), _) => known,
            // It has given up for one that has more, and follows nobody yet.
            (None, Some(most)) => (most.last, most.holder.into()),
            (None, None) => (0, String::new()),
        };
        let whole = self.status().filter(|status| status.consistent);
        Holds {
            epoch: whole.as_ref().map_or(0, |status| status.epoch),
            last: whole.map_or(0, |status| status.last),
            source: matches!(self.state(), State::Source(_)),
            known,
            holder: holder.into(),
        }
    }

    /// Asks all partners what they have. `None` of one that cannot be reached, or does not know the question.
    async fn ask_partners(&self, replicas: &Replicas) -> Vec<(Partner, Option<Holds>)> {
        let ask = Ask::Holds { partnership: self.partnership_hex() };
        let asked = self.config().partners.into_iter().map(|partner| async {
            let told = rt::timeout(ANSWERS_WITHIN, carrier::ask(&partner.address, &replicas.pool, &ask));
            let holds = match told.await {
                Ok(Ok(Tell::Holds(holds))) => Some(holds),
                _ => None,
            };
            (partner, holds)
        });
        join_all(asked).await
    }

    /// Which side has most, as far as this one and its partners know.
    pub async fn most(&self, replicas: &Replicas) -> Most {
        let mut most = Most::default();
        let mut known = vec![self.holds()];
        for (partner, holds) in self.ask_partners(replicas).await {
            let host = partner.address.host;
            match holds {
                Some(holds) => {
                    most.hear(holds.epoch, holds.last, &host);
                    known.push(holds);
                }
                None => most.silent.push(host.into()),
            }
        }
        // Of the epoch before anybody was promoted.
        let epoch = self.latest_epoch();
        for Holds { known, holder, .. } in known.into_iter().filter(|holds| holds.known > 0) {
            most.hear(epoch, known, &holder);
        }
        // One that told what it has a moment ago, and cannot be reached now, has it still.
        match self.known_most() {
            Some(before) if (before.epoch, before.last) > (most.epoch, most.last) => {
                Most { silent: most.silent, ..before }
            }
            _ => most,
        }
    }

    /// Why this copy is not the one to become the source, as far as anybody knows that can be asked; or which hosts could not be.
    pub async fn is_behind(&self, replicas: &Replicas, copy: &Destination) -> Result<String, String> {
        let config = self.config();
        let name = &self.name;
        let forced = format!("Nevertheless: `weft replica switch {name} --failover --force`");
        let status = copy.status();
        let (epoch, last) = (status.epoch, status.last);
        let asked = self.ask_partners(replicas).await;
        if !config.successor.is_empty() {
            let to = &config.successor;
            let there =
                asked.iter().find(|(partner, _)| partner.name == *to).and_then(|(_, holds)| holds.as_ref());
            // One that is a copy of the same time still: the roles were to be exchanged, and were not.
            if there.is_none_or(|holds| holds.source || holds.epoch > epoch) {
                return Err(format!(
                    "{name}: the roles were exchanged, and the source is {to} by now, unless {to} says otherwise when it can be reached: a \
                     failover here would make a second one. {forced}"
                ));
            }
        }
        let mut most = self.heard_most().unwrap_or_default();
        for (number, (partner, holds)) in asked.into_iter().enumerate() {
            match holds {
                // Its source lives: the engine says so.
                Some(Holds { source: true, epoch: its, .. }) if its <= epoch => {}
                Some(holds) => {
                    most.hear(holds.epoch, holds.last, &partner.address.host);
                    if holds.known > 0 {
                        most.hear(epoch, holds.known, &holds.holder);
                    }
                }
                // That its source is lost is why somebody wants this.
                None if number == 0 => {}
                None => most.silent.push(partner.address.host.into()),
            }
        }
        match most.missing(epoch, last) {
            Some(missing) => Err(format!("{name}: {missing}. What this copy lacks would be lost. {forced}")),
            None => Ok(most.unasked()),
        }
    }

    /// Before this copy is promoted by force: the other copies that have more are none of its destinations. It would overwrite what
    /// only they have. What is to be said of them.
    pub async fn part_from_who_has_more(
        &self,
        replicas: &Replicas,
        copy: &Destination,
    ) -> Result<String, String> {
        let status = copy.status();
        let asked = self.ask_partners(replicas).await;
        let has_more =
            |holds: &Holds| !holds.source && (holds.epoch, holds.last) > (status.epoch, status.last);
        let more = asked.into_iter().skip(1).filter(|(_, holds)| holds.as_ref().is_some_and(has_more));
        let more: Vec<Partner> = more.map(|(partner, _)| partner).collect();
        if more.is_empty() {
            return Ok(String::new());
        }
        let is_kept = |partner: &Partner| !more.iter().any(|other| other.name == partner.name);
        self.change(replicas, |config| config.partners.retain(is_kept))?;
        let hosts: Vec<Said> = more.into_iter().map(|partner| partner.address.host.into()).collect();
        let (hosts, name) = (joined(&hosts), &self.name);
        Ok(format!(
            "; {hosts} has records that this side lacks, and stays as it is: to overwrite them, `weft replica remove {name}` there, and then \
             `weft replica create` here"
        ))
    }

    /// As long as this side is this copy: finds out, whenever a later source was accepted, which partner that is.
    pub async fn find_source(&self, replicas: &Replicas, copy: &Arc<Destination>) {
        let is = |state: &State| {
            matches!(state, State::Destination(now) if Arc::ptr_eq(now, copy)) && !self.engine().has_ended()
        };
        let (mut known, mut pause) = (0, ASKS_AGAIN);
        while is(&self.state()) && !replicas.ends() {
            let over = std::pin::pin!(self.engine().until(|state| !is(state)));
            let claimed = std::pin::pin!(copy.until_claimed(known));
            let Either::Left((epoch, _)) = select(claimed, over).await else { return };
            if self.name_source(replicas, epoch).await {
                (known, pause) = (epoch, ASKS_AGAIN);
                continue;
            }
            let over = self.engine().until(|state| !is(state));
            let _is_time = rt::timeout(pause, over).await;
            pause = pause.saturating_mul(2).min(ASKS_AT_LEAST);
        }
    }

    /// Puts the partner first that is the source of this epoch. Whether that is known.
    async fn name_source(&self, replicas: &Replicas, epoch: u64) -> bool {
        let config = self.config();
        let first = config.partners.first().map(|partner| partner.name.clone());
        let found = match &config.partners[..] {
            [] | [_] => first.clone(),
            _ => {
                let asked = self.ask_partners(replicas).await;
                let is_source = |holds: &Holds| holds.source && holds.epoch == epoch;
                let found = asked.into_iter().find(|(_, holds)| holds.as_ref().is_some_and(is_source));
                found.map(|(partner, _)| partner.name)
            }
        };
        // Whatever it is, it was accepted.
        self.know_most(None);
        let Some(source) = found else { return false };
        if first.as_ref() == Some(&source) && config.successor.is_empty() {
            return true;
        }
        let named = self.change(replicas, |config| {
            config.partners.sort_by_key(|partner| partner.name != source);
            config.successor.clear();
        });
        match named {
            Ok(()) => {
                tracing::info!("group {}: its source is {source}", self.name);
                if self.is_destination() {
                    self.engine().is_copy_of(&source);
                }
            }
            Err(why) => tracing::warn!("{why}; {source} is its source"),
        }
        true
    }

    /// The epoch and the last record of a copy, where this side is one.
    pub fn copy_has(&self) -> Option<(u64, u64)> {
        let status = self.status().filter(|status| status.role == Role::Destination)?;
        Some((status.epoch, status.last))
    }
}
