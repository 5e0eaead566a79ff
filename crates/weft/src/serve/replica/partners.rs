//! Asks the other sides of a group what they have, and which of them is its source.
//!
//! See [`Ask::Holds`]. A group's file lists its partners, a copy's source first. A hello does not say which host sent
//! it, so a copy with several partners asks them which one is the source. [`super::destinations`] decides which
//! partners there are.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use weft_machine::rt;
use weft_replica::destination::Destination;
use weft_replica::status::Role;

use super::config::Partner;
use super::error::Unrecorded;
use super::group::{Group, State};
use super::most::{Most, joined};
use super::position::{Holds, Part, RemotePosition};
use super::setup::{Ask, Tell};
use super::{Replicas, carrier, removed};
use crate::args::replica::Objection;
use crate::out::Said;

/// A copy that has not found its source among its partners asks again after this time, then after twice as long each
/// time, up to a limit. A new source says so once it has asked its destinations, which takes a moment.
pub(super) const ASKS_AGAIN: Duration = Duration::from_secs(1);
pub(super) const ASKS_AT_LEAST: Duration = Duration::from_secs(60);

/// What is known about the other sides that matters for a failover of this one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// Each objection with its sentence.
    pub objections: Vec<(Objection, String)>,
    /// The sentence about hosts that could not be asked.
    pub unasked: String,
    /// The names of other copies that have more.
    pub ahead: Vec<String>,
}

impl Elsewhere {
    /// Evaluates the partners' answers, the source's first, for a copy that has `own`: an epoch and its last record.
    /// `most` is from earlier messages, and `successor` was to replace the copy's source, which was heard recently if
    /// `is_heard`.
    fn of(
        name: &str,
        asked: &[(Partner, Option<Holds>)],
        own: (u64, u64),
        is_heard: bool,
        successor: &str,
        mut most: Most,
    ) -> Elsewhere {
        let (epoch, last) = own;
        let (mut objections, mut sources) = (Vec::new(), Vec::<Said>::new());
        if !successor.is_empty() {
            let there = asked
                .iter()
                .find(|(partner, _)| partner.name == successor)
                .and_then(|(_, holds)| holds.as_ref());
            // Whether the successor is still a copy of the same time: the planned exchange did not happen. A
            // successor that reports less may have lost what it had acknowledged.
            let is_copy_still =
                |holds: &Holds| matches!(holds.part, Part::Copy { epoch: its, .. } if its == epoch);
            if !there.is_some_and(is_copy_still) {
                let why = format!(
                    "the roles were exchanged, and {successor} is now the source, unless it says that it is still a copy: a \
                     failover here would make a second source"
                );
                objections.push((Objection::Switched, why));
            }
        }
        for (number, (partner, holds)) in asked.iter().enumerate() {
            let host = &partner.address.host;
            match holds {
                // A source of an earlier epoch gives up as soon as it hears about the later one.
                Some(Holds { part: Part::Source { epoch: its, .. }, .. }) if *its < epoch => {}
                Some(Holds { part: Part::Source { epoch: its, last: end }, .. }) => {
                    sources.push(host.clone().into());
                    // Data that a reachable source has not sent yet is not lost.
                    if !is_heard || *its > epoch {
                        most.hear((*its, *end), host);
                    }
                }
                // A side that has left the group may still serve the volumes.
                Some(holds) if number == 0 && holds.part.is_unknown() => {
                    objections.push((Objection::Removed, removed::told(name, host)));
                }
                Some(holds) => {
                    most.hear(holds.part.has(), host);
                    if let Some(known) = &holds.known {
                        most.hear_known(known, epoch);
                    }
                }
                // A lost source is the reason for the failover.
                None if number == 0 => {}
                None => most.silent.push(host.clone().into()),
            }
        }
        if !sources.is_empty() {
            let why = format!(
                "{hosts} answers that it is the source and accepts writes, whether or not it reaches this side: writes that it \
                 acknowledges from now on would be missing here. To lose nothing, repair the link from there (`weft replica status` on {hosts} says \
                 what is wrong with it); if {hosts} is lost anyway, stop its server and try again",
                hosts = joined(&sources)
            );
            objections.push((Objection::Alive, why));
        }
        if let Some(missing) = most.missing(epoch, last) {
            objections
                .push((Objection::OtherHasMore, format!("{missing}. The missing records would be lost")));
        }
        let is_ahead =
            |holds: &Holds| !matches!(holds.part, Part::Source { .. }) && holds.part.has() > (epoch, last);
        let ahead = asked.iter().skip(1).filter(|(_, holds)| holds.as_ref().is_some_and(is_ahead));
        let ahead = ahead.map(|(partner, _)| partner.name.clone()).collect();
        Elsewhere { objections, unasked: most.unasked(), ahead }
    }
}

impl Group {
    /// This side's position, for a partner that asks.
    pub fn holds(&self) -> Holds {
        let whole = self.status().filter(|status| status.consistent);
        let known = match (self.engine().set_back(), self.known_most()) {
            (Some((last, holder)), _) => {
                let epoch = self.status().map(|status| status.epoch);
                Some(RemotePosition { epoch, last, holder: holder.into() })
            }
            // It has given up its role for one that has more, and follows nobody yet.
            (None, Some(most)) => {
                Some(RemotePosition { epoch: Some(most.epoch), last: most.last, holder: most.holder })
            }
            (None, None) => None,
        };
        let part = match (whole.map(|status| (status.epoch, status.last)), self.state()) {
            (None, _) => Part::Nothing,
            (Some((epoch, last)), State::Source(_)) => Part::Source { epoch, last },
            (Some((epoch, last)), State::Destination(_)) => Part::Copy { epoch, last },
            (Some((epoch, last)), State::Starting | State::Stopped(_)) => Part::Stopped { epoch, last },
        };
        Holds { part, known, copy: self.standing() }
    }

    /// Asks all partners what they have. `None` for one that cannot be reached or does not know the question.
    pub(super) async fn ask_partners(&self, replicas: &Replicas) -> Vec<(Partner, Option<Holds>)> {
        let asked = self.config().partners.into_iter().map(|partner| async {
            let holds = self.ask_partner(replicas, &partner).await;
            (partner, holds)
        });
        join_all(asked).await
    }

    /// Asks one of them.
    pub(super) async fn ask_partner(&self, replicas: &Replicas, partner: &Partner) -> Option<Holds> {
        let ask = Ask::Holds { partnership: self.partnership_hex() };
        match carrier::ask_briefly(&partner.address, &replicas.pool, &ask).await {
            Some(Tell::Holds(holds)) => Some(holds),
            _ => None,
        }
    }

    /// The side with the most, as far as this one and its partners know.
    pub async fn most(&self, replicas: &Replicas) -> Most {
        let mut most = Most::default();
        let mut known = vec![self.holds()];
        for (partner, holds) in self.ask_partners(replicas).await {
            let host = partner.address.host;
            match holds {
                Some(holds) => {
                    most.hear(holds.part.has(), &host);
                    known.push(holds);
                }
                None => most.silent.push(host.into()),
            }
        }
        // The epoch before anybody was promoted.
        let before = self.latest_epoch();
        for known in known.iter().filter_map(|holds| holds.known.as_ref()) {
            most.hear_known(known, before);
        }
        // A side that reported its position recently still has that data, even if it cannot be reached now.
        match self.known_most() {
            Some(before) if (before.epoch, before.last) > (most.epoch, most.last) => {
                Most { silent: most.silent, ..before }
            }
            _ => most,
        }
    }

    /// The objections to promoting this copy, from everybody who can be asked; and the hosts that could not be asked.
    pub async fn is_behind(&self, replicas: &Replicas, copy: &Destination) -> Elsewhere {
        let asked = self.ask_partners(replicas).await;
        let status = copy.status();
        let (own, is_heard) = ((status.epoch, status.last), !copy.is_source_silent());
        let most = self.heard_most().unwrap_or_default();
        Elsewhere::of(&self.name, &asked, own, is_heard, &self.config().successor, most)
    }

    /// Before this copy is promoted by force: removes other copies that have more (`ahead`) from its destinations,
    /// because it would overwrite data that only they have. Returns the sentences about them.
    pub fn part_from(&self, replicas: &Replicas, ahead: &[String]) -> Result<String, Unrecorded> {
        let is_ahead = |partner: &Partner| ahead.contains(&partner.name);
        let partners = self.config().partners.into_iter();
        let hosts: Vec<Said> = partners.filter(is_ahead).map(|partner| partner.address.host.into()).collect();
        if hosts.is_empty() {
            return Ok(String::new());
        }
        self.change(replicas, |config| config.partners.retain(|partner| !is_ahead(partner)))?;
        let (hosts, name) = (joined(&hosts), &self.name);
        Ok(format!(
            "; {hosts} has records that this side lacks and is left unchanged: to overwrite it, run `weft replica remove {name}` there, and then \
             `weft replica create` here"
        ))
    }

    /// Whether this side is still this copy, in a group that has not ended.
    pub(super) fn is_this_copy(&self, state: &State, copy: &Arc<Destination>) -> bool {
        matches!(state, State::Destination(now) if Arc::ptr_eq(now, copy)) && !self.engine().has_ended()
    }

    /// While this side is this copy: when a later source was accepted, finds out which partner that is.
    pub async fn find_source(&self, replicas: &Replicas, copy: &Arc<Destination>) {
        let is = |state: &State| self.is_this_copy(state, copy);
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

    /// Puts the partner that is the source of this epoch first. Returns whether it is known.
    async fn name_source(&self, replicas: &Replicas, epoch: u64) -> bool {
        let config = self.config();
        let first = config.partners.first().map(|partner| partner.name.clone());
        let found = match &config.partners[..] {
            [] | [_] => first.clone(),
            _ => {
                let asked = self.ask_partners(replicas).await;
                let is_source =
                    |holds: &Holds| matches!(holds.part, Part::Source { epoch: its, .. } if its == epoch);
                let found = asked.into_iter().find(|(_, holds)| holds.as_ref().is_some_and(is_source));
                found.map(|(partner, _)| partner.name)
            }
        };
        // Earlier knowledge is obsolete, because a source was accepted.
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

    /// The epoch and last record, if this side is a copy.
    pub fn copy_has(&self) -> Option<(u64, u64)> {
        let status = self.status().filter(|status| status.role == Role::Destination)?;
        Some((status.epoch, status.last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{Address, Password};
    use super::*;

    /// The objection words for a copy of epoch 1 with 10 records, given its partners' answers.
    fn words(asked: &[(&str, Option<Holds>)], successor: &str) -> Vec<&'static str> {
        elsewhere(asked, false, successor).objections.iter().map(|(objection, _)| objection.word()).collect()
    }

    fn elsewhere(asked: &[(&str, Option<Holds>)], is_heard: bool, successor: &str) -> Elsewhere {
        let partner = |name: &str| Partner {
            name: format!("{name}:db"),
            address: Address {
                host: name.to_owned(),
                port: 1,
                user: "x".into(),
                password: Password::new("y"),
                transport: crate::args::Transport::Tcp,
                encrypt: true,
                compress: false,
            },
            synchronous: true,
        };
        let asked: Vec<_> = asked.iter().map(|(name, holds)| (partner(name), holds.clone())).collect();
        Elsewhere::of("db", &asked, (1, 10), is_heard, successor, Most::default())
    }

    #[test]
    fn only_a_copy_of_the_same_time_proves_that_roles_were_not_exchanged() {
        let says = |part: Part| words(&[("a", None), ("b", Some(part.into()))], "b:db");
        assert_eq!(says(Part::Copy { epoch: 1, last: 10 }), [""; 0]);
        assert_eq!(says(Part::Copy { epoch: 1, last: 12 }), ["other-has-more"]);
        let ahead = |part: Part| elsewhere(&[("a", None), ("b", Some(part.into()))], false, "").ahead;
        assert_eq!(ahead(Part::Copy { epoch: 1, last: 12 }), ["b:db"]);
        // A source is not a copy that would be overwritten.
        for part in [Part::Copy { epoch: 1, last: 10 }, Part::Source { epoch: 2, last: 20 }] {
            assert_eq!(ahead(part), [""; 0], "{part:?}");
        }
        // It was the source and has lost its data, is being opened, or was reinstalled.
        for part in [
            Part::Nothing,
            Part::Unknown,
            Part::Stopped { epoch: 1, last: 10 },
            Part::Source { epoch: 1, last: 10 },
            Part::Copy { epoch: 0, last: 10 },
        ] {
            assert!(says(part).contains(&"switched"), "{part:?}");
        }
        assert_eq!(words(&[("a", None), ("b", None)], "b:db"), ["switched"]);
        assert_eq!(says(Part::Source { epoch: 2, last: 20 }), ["switched", "alive", "other-has-more"]);
        // As an older version sends it.
        let old =
            serde_json::from_str(r#"{"epoch":0,"last":0,"source":false,"known":0,"holder":""}"#).unwrap();
        assert_eq!(words(&[("a", None), ("b", Some(old))], "b:db"), ["switched"]);
    }

    #[test]
    fn a_source_that_answers_is_alive_though_it_does_not_reach_its_copy() {
        let source = |epoch, last| Some(Holds::from(Part::Source { epoch, last }));
        assert_eq!(words(&[("a", source(1, 10))], ""), ["alive"]);
        // Records that it acknowledged alone, or that another copy has, are missing here.
        let found = elsewhere(&[("a", source(1, 1410)), ("b", None)], false, "");
        let [(Objection::Alive, alive), (Objection::OtherHasMore, more)] = &found.objections[..] else {
            panic!("{found:?}")
        };
        assert!(alive.contains("a answers that it is the source"), "{alive}");
        assert!(more.contains("this copy lacks records 11 to 1410; a has them"), "{more}");
        // This holds for every partner, and for every epoch that it has reached.
        assert_eq!(words(&[("a", None), ("b", source(2, 10))], ""), ["alive", "other-has-more"]);
        // Records on the way are not missing.
        let found = elsewhere(&[("a", source(1, 12))], true, "");
        assert!(matches!(found.objections[..], [(Objection::Alive, _)]), "{found:?}");
        // A source that was replaced earlier is no obstacle.
        let asked = [("a", Some(Part::Copy { epoch: 1, last: 10 }.into())), ("b", source(0, 99))];
        assert_eq!(words(&asked, ""), [""; 0]);
    }

    #[test]
    fn a_source_that_answers_that_it_knows_nothing_of_the_partnership_is_not_a_silent_one() {
        assert_eq!(words(&[("a", None)], ""), [""; 0]);
        assert_eq!(words(&[("a", Some(Part::Unknown.into()))], ""), ["removed"]);
        // Another copy may be gone.
        assert_eq!(words(&[("a", None), ("b", Some(Part::Unknown.into()))], ""), [""; 0]);
        // A server of an older version does not distinguish it from a source that has lost everything.
        assert_eq!(words(&[("a", Some(Part::Nothing.into()))], ""), [""; 0]);
    }

    #[test]
    fn what_is_known_of_another_side_is_of_the_epoch_that_it_is_said_to_be_of() {
        let known = |epoch| Some(RemotePosition { epoch, last: 10, holder: "c".to_owned().into() });
        let says =
            |known| words(&[("a", None), ("b", Some(Holds { part: Part::Nothing, known, copy: None }))], "");
        assert_eq!(says(known(Some(1))), [""; 0]);
        assert_eq!(says(known(Some(2))), ["other-has-more"]);
        assert_eq!(says(known(None)), [""; 0], "an older version speaks of the epoch of this copy");
    }
}
