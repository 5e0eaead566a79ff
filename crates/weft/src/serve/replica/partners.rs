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
use super::no_source::Standing;
use super::setup::{Ask, Tell};
use super::{Replicas, carrier, removed};
use crate::args::replica::Objection;
use crate::out::Said;

/// How long partners that are asked what they have may take.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// A copy that has not found its source among its partners asks again after so long, and after twice as long each time, up to this.
/// A source that has just come says so when it has asked its destinations, which is in a moment.
pub(super) const ASKS_AGAIN: Duration = Duration::from_secs(1);
pub(super) const ASKS_AT_LEAST: Duration = Duration::from_secs(60);
/// What a side of a group answers.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(from = "Message", into = "Message")]
pub(super) struct Holds {
    /// What it is, and has.
    pub part: Part,
    /// What it knows another side to have: it was set back.
    pub known: Option<Known>,
    /// What it has as a copy, where it is one.
    pub copy: Option<Standing>,
}

/// What a side of a group is, with the epoch and the last record of what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It is written to there.
    Source { epoch: u64, last: u64 },
    /// A copy that could be promoted.
    Copy { epoch: u64, last: u64 },
    /// It was a source, and is stopped or being opened.
    Stopped { epoch: u64, last: u64 },
    /// It has nothing that could be gone on with, and does not say what it was.
    Nothing,
    /// The server knows nothing of the partnership.
    Unknown,
    /// The same, and it was told by its source that it is over.
    Ended,
}

/// What a side knows another one to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Of which epoch that is; `None` from a server of an older version.
    pub epoch: Option<u64>,
    /// The last record.
    pub last: u64,
    /// That side's host.
    pub holder: Said,
}

impl Part {
    /// The epoch and the last record; zeros, which are less than what anybody has, of a side that has nothing.
    pub fn has(self) -> (u64, u64) {
        match self {
            Part::Source { epoch, last } | Part::Copy { epoch, last } | Part::Stopped { epoch, last } => {
                (epoch, last)
            }
            Part::Nothing | Part::Unknown | Part::Ended => (0, 0),
        }
    }

    /// Whether the server answers that there is no such partnership.
    pub fn is_unknown(self) -> bool {
        matches!(self, Part::Unknown | Part::Ended)
    }
}

impl From<Part> for Holds {
    fn from(part: Part) -> Holds {
        Holds { part, known: None, copy: None }
    }
}

/// [`Holds`] as it travels. An older version has neither `part` nor `known_epoch`.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Word>,
    epoch: u64,
    last: u64,
    source: bool,
    known: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    known_epoch: Option<u64>,
    holder: Said,
    copy: Option<Standing>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Source,
    Copy,
    Stopped,
    Unknown,
    Ended,
    #[serde(other)]
    Nothing,
}

impl From<Message> for Holds {
    fn from(message: Message) -> Holds {
        let Message { epoch, last, .. } = message;
        // An older version says of a stopped source that it is none, and zeros where it has nothing, or knows nothing of the partnership.
        let word = message.part.unwrap_or(match (message.source, epoch) {
            (true, _) => Word::Source,
            (false, 0) => Word::Nothing,
            (false, _) => Word::Copy,
        });
        let part = match word {
            Word::Source => Part::Source { epoch, last },
            Word::Copy => Part::Copy { epoch, last },
            Word::Stopped => Part::Stopped { epoch, last },
            Word::Nothing => Part::Nothing,
            Word::Unknown => Part::Unknown,
            Word::Ended => Part::Ended,
        };
        let known = Known { epoch: message.known_epoch, last: message.known, holder: message.holder };
        Holds { part, known: (known.last > 0).then_some(known), copy: message.copy }
    }
}

impl From<Holds> for Message {
    fn from(Holds { part, known, copy }: Holds) -> Message {
        let word = match part {
            Part::Source { .. } => Word::Source,
            Part::Copy { .. } => Word::Copy,
            Part::Stopped { .. } => Word::Stopped,
            Part::Nothing => Word::Nothing,
            Part::Unknown => Word::Unknown,
            Part::Ended => Word::Ended,
        };
        let (epoch, last) = part.has();
        let source = matches!(part, Part::Source { .. });
        let (known, known_epoch, holder) =
            known.map_or((0, None, Said::default()), |known| (known.last, known.epoch, known.holder));
        Message { part: Some(word), epoch, last, source, known, known_epoch, holder, copy }
    }
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
    fn hear(&mut self, (epoch, last): (u64, u64), host: &str) {
        if (epoch, last) > (self.epoch, self.last) {
            (self.epoch, self.last, self.holder) = (epoch, last, host.to_owned().into());
        }
    }

    /// Takes in what a side knows another one to have; `before` is the epoch of what a server of an older version speaks of.
    fn hear_known(&mut self, known: &Known, before: u64) {
        self.hear((known.epoch.unwrap_or(before), known.last), &known.holder);
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

/// What is known of the other sides, against a failover of this one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// By the word that passes over it, in a sentence.
    pub objections: Vec<(Objection, String)>,
    /// What nobody knows.
    pub unasked: String,
    /// The names of other copies that have more.
    pub ahead: Vec<String>,
}

impl Elsewhere {
    /// Of what partners have answered, the source first, to a copy that has `own`: an epoch, and the last record of it. `most` was heard
    /// before, and `successor` is who was to take the place of its source, of which the copy has heard lately if `is_heard`.
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
            // One that is a copy of the same time still: the roles were to be exchanged, and were not. Whoever says anything less, has
            // perhaps lost what it had answered.
            let is_copy_still =
                |holds: &Holds| matches!(holds.part, Part::Copy { epoch: its, .. } if its == epoch);
            if !there.is_some_and(is_copy_still) {
                let why = format!(
                    "the roles were exchanged, and the source is {successor} by now, unless {successor} says that it is a copy still: a \
                     failover here would make a second one"
                );
                objections.push((Objection::Switched, why));
            }
        }
        for (number, (partner, holds)) in asked.iter().enumerate() {
            let host = &partner.address.host;
            match holds {
                // One of an earlier epoch is none any more, as soon as it hears of that.
                Some(Holds { part: Part::Source { epoch: its, .. }, .. }) if *its < epoch => {}
                Some(Holds { part: Part::Source { epoch: its, last: end }, .. }) => {
                    sources.push(host.clone().into());
                    // What a source that is heard of has on the way is no loss.
                    if !is_heard || *its > epoch {
                        most.hear((*its, *end), host);
                    }
                }
                // Whoever is not there any more may serve the volumes all the same.
                Some(holds) if number == 0 && holds.part.is_unknown() => {
                    objections.push((Objection::Removed, removed::told(name, host)));
                }
                Some(holds) => {
                    most.hear(holds.part.has(), host);
                    if let Some(known) = &holds.known {
                        most.hear_known(known, epoch);
                    }
                }
                // That its source is lost is why somebody wants this.
                None if number == 0 => {}
                None => most.silent.push(host.clone().into()),
            }
        }
        if !sources.is_empty() {
            let why = format!(
                "{hosts} could be asked, and says that it is the source and can be written to, whether it reaches this side or not: what it \
                 answers from now on would be missing here. To lose nothing, mend the way from there (`weft replica status` on {hosts} says \
                 what is wrong with it); if {hosts} is lost all the same, stop its server and try again",
                hosts = joined(&sources)
            );
            objections.push((Objection::Alive, why));
        }
        if let Some(missing) = most.missing(epoch, last) {
            objections
                .push((Objection::OtherHasMore, format!("{missing}. What this copy lacks would be lost")));
        }
        let is_ahead =
            |holds: &Holds| !matches!(holds.part, Part::Source { .. }) && holds.part.has() > (epoch, last);
        let ahead = asked.iter().skip(1).filter(|(_, holds)| holds.as_ref().is_some_and(is_ahead));
        let ahead = ahead.map(|(partner, _)| partner.name.clone()).collect();
        Elsewhere { objections, unasked: most.unasked(), ahead }
    }
}

fn joined(hosts: &[Said]) -> String {
    hosts.iter().map(|host| &**host).collect::<Vec<_>>().join(" and ")
}

impl Group {
    /// What this side has, for a partner that asks.
    pub fn holds(&self) -> Holds {
        let whole = self.status().filter(|status| status.consistent);
        let known = match (self.engine().set_back(), self.known_most()) {
            (Some((last, holder)), _) => {
                let epoch = self.status().map(|status| status.epoch);
                Some(Known { epoch, last, holder: holder.into() })
            }
            // It has given up for one that has more, and follows nobody yet.
            (None, Some(most)) => {
                Some(Known { epoch: Some(most.epoch), last: most.last, holder: most.holder })
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

    /// Asks all partners what they have. `None` of one that cannot be reached, or does not know the question.
    pub(super) async fn ask_partners(&self, replicas: &Replicas) -> Vec<(Partner, Option<Holds>)> {
        let asked = self.config().partners.into_iter().map(|partner| async {
            let holds = self.ask_partner(replicas, &partner).await;
            (partner, holds)
        });
        join_all(asked).await
    }

    /// The same of one of them.
    pub(super) async fn ask_partner(&self, replicas: &Replicas, partner: &Partner) -> Option<Holds> {
        let ask = Ask::Holds { partnership: self.partnership_hex() };
        let told = rt::timeout(ANSWERS_WITHIN, carrier::ask(&partner.address, &replicas.pool, &ask));
        match told.await {
            Ok(Ok(Tell::Holds(holds))) => Some(holds),
            _ => None,
        }
    }

    /// Which side has most, as far as this one and its partners know.
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
        // Of the epoch before anybody was promoted.
        let before = self.latest_epoch();
        for known in known.iter().filter_map(|holds| holds.known.as_ref()) {
            most.hear_known(known, before);
        }
        // One that told what it has a moment ago, and cannot be reached now, has it still.
        match self.known_most() {
            Some(before) if (before.epoch, before.last) > (most.epoch, most.last) => {
                Most { silent: most.silent, ..before }
            }
            _ => most,
        }
    }

    /// Why this copy is not the one to become the source, as far as anybody knows that can be asked; and which hosts could not be.
    pub async fn is_behind(&self, replicas: &Replicas, copy: &Destination) -> Elsewhere {
        let asked = self.ask_partners(replicas).await;
        let status = copy.status();
        let (own, is_heard) = ((status.epoch, status.last), !copy.is_source_silent());
        let most = self.heard_most().unwrap_or_default();
        Elsewhere::of(&self.name, &asked, own, is_heard, &self.config().successor, most)
    }

    /// Before this copy is promoted by force: the other copies that have more, which these are, are none of its destinations. It would
    /// overwrite what only they have. What is to be said of them.
    pub fn part_from(&self, replicas: &Replicas, ahead: &[String]) -> Result<String, String> {
        let is_ahead = |partner: &Partner| ahead.contains(&partner.name);
        let partners = self.config().partners.into_iter();
        let hosts: Vec<Said> = partners.filter(is_ahead).map(|partner| partner.address.host.into()).collect();
        if hosts.is_empty() {
            return Ok(String::new());
        }
        self.change(replicas, |config| config.partners.retain(|partner| !is_ahead(partner)))?;
        let (hosts, name) = (joined(&hosts), &self.name);
        Ok(format!(
            "; {hosts} has records that this side lacks, and stays as it is: to overwrite them, `weft replica remove {name}` there, and then \
             `weft replica create` here"
        ))
    }

    /// Whether this side is this copy still, in a group that has not ended.
    pub(super) fn is_this_copy(&self, state: &State, copy: &Arc<Destination>) -> bool {
        matches!(state, State::Destination(now) if Arc::ptr_eq(now, copy)) && !self.engine().has_ended()
    }

    /// As long as this side is this copy: finds out, whenever a later source was accepted, which partner that is.
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

    /// Puts the partner first that is the source of this epoch. Whether that is known.
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

#[cfg(test)]
mod tests {
    use super::super::config::{Address, Password};
    use super::*;

    /// What partners say to a copy of epoch 1 that has 10 records: the words of what speaks against its promotion.
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

    fn parsed(message: &str) -> Holds {
        serde_json::from_str(message).unwrap()
    }

    #[test]
    fn only_a_copy_of_the_same_time_proves_that_roles_were_not_exchanged() {
        let says = |part: Part| words(&[("a", None), ("b", Some(part.into()))], "b:db");
        assert_eq!(says(Part::Copy { epoch: 1, last: 10 }), [""; 0]);
        assert_eq!(says(Part::Copy { epoch: 1, last: 12 }), ["other-has-more"]);
        let ahead = |part: Part| elsewhere(&[("a", None), ("b", Some(part.into()))], false, "").ahead;
        assert_eq!(ahead(Part::Copy { epoch: 1, last: 12 }), ["b:db"]);
        // A source is no copy that would be overwritten.
        for part in [Part::Copy { epoch: 1, last: 10 }, Part::Source { epoch: 2, last: 20 }] {
            assert_eq!(ahead(part), [""; 0], "{part:?}");
        }
        // It was the source, and has lost what it had answered; it is being opened, it was made anew.
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
        // As an older version says it.
        let old = parsed(r#"{"epoch":0,"last":0,"source":false,"known":0,"holder":""}"#);
        assert_eq!(words(&[("a", None), ("b", Some(old))], "b:db"), ["switched"]);
    }

    #[test]
    fn a_source_that_answers_is_alive_though_it_does_not_reach_its_copy() {
        let source = |epoch, last| Some(Holds::from(Part::Source { epoch, last }));
        assert_eq!(words(&[("a", source(1, 10))], ""), ["alive"]);
        // What it has answered alone, or another copy has, is missing here.
        let found = elsewhere(&[("a", source(1, 1410)), ("b", None)], false, "");
        let [(Objection::Alive, alive), (Objection::OtherHasMore, more)] = &found.objections[..] else {
            panic!("{found:?}")
        };
        assert!(alive.contains("a could be asked, and says that it is the source"), "{alive}");
        assert!(more.contains("this copy lacks records 11 to 1410; a has them"), "{more}");
        // So it is whoever of the partners that is, and whatever epoch it has reached.
        assert_eq!(words(&[("a", None), ("b", source(2, 10))], ""), ["alive", "other-has-more"]);
        // What it has sent, and is on its way, is not missing.
        let found = elsewhere(&[("a", source(1, 12))], true, "");
        assert!(matches!(found.objections[..], [(Objection::Alive, _)]), "{found:?}");
        // One that was replaced before is not in the way.
        let asked = [("a", Some(Part::Copy { epoch: 1, last: 10 }.into())), ("b", source(0, 99))];
        assert_eq!(words(&asked, ""), [""; 0]);
    }

    #[test]
    fn a_source_that_answers_that_it_knows_nothing_of_the_partnership_is_not_a_silent_one() {
        assert_eq!(words(&[("a", None)], ""), [""; 0]);
        assert_eq!(words(&[("a", Some(Part::Unknown.into()))], ""), ["removed"]);
        // Another copy may go.
        assert_eq!(words(&[("a", None), ("b", Some(Part::Unknown.into()))], ""), [""; 0]);
        // A server of an older version does not tell it from a source that has lost everything.
        assert_eq!(words(&[("a", Some(Part::Nothing.into()))], ""), [""; 0]);
    }

    #[test]
    fn what_is_known_of_another_side_is_of_the_epoch_that_it_is_said_to_be_of() {
        let known = |epoch| Some(Known { epoch, last: 10, holder: "c".to_owned().into() });
        let says =
            |known| words(&[("a", None), ("b", Some(Holds { part: Part::Nothing, known, copy: None }))], "");
        assert_eq!(says(known(Some(1))), [""; 0]);
        assert_eq!(says(known(Some(2))), ["other-has-more"]);
        assert_eq!(says(known(None)), [""; 0], "an older version speaks of the epoch of this copy");
    }

    #[test]
    fn what_a_side_has_is_understood_by_and_from_the_version_before() {
        let (epoch, last) = (3, 17);
        for part in [
            Part::Source { epoch, last },
            Part::Copy { epoch, last },
            Part::Stopped { epoch, last },
            Part::Nothing,
            Part::Unknown,
            Part::Ended,
        ] {
            let known = Some(Known { epoch: Some(2), last: 9, holder: "c".to_owned().into() });
            let holds = Holds { part, known, copy: None };
            assert_eq!(parsed(&serde_json::to_string(&holds).unwrap()), holds);
        }
        let old = serde_json::to_value(Holds::from(Part::Source { epoch, last })).unwrap();
        assert_eq!((&old["epoch"], &old["last"], &old["source"]), (&3.into(), &17.into(), &true.into()));
        let from =
            |source, epoch| parsed(&format!(r#"{{"epoch":{epoch},"last":17,"source":{source},"known":4}}"#));
        assert_eq!(from(true, 3).part, Part::Source { epoch, last });
        assert_eq!(from(false, 3).part, Part::Copy { epoch, last });
        assert_eq!(from(false, 0).part, Part::Nothing);
        assert_eq!(from(false, 3).known, Some(Known { epoch: None, last: 4, holder: Said::default() }));
        assert_eq!(parsed(r#"{"part":"a later one"}"#).part, Part::Nothing);
    }
}
