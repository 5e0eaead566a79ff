//! A group whose sides are all copies: each gave up its role for another one, and no side serves it.
//!
//! With [`Standing`] a copy reports what it has even if it can be promoted only by force. See [`Ask::Holds`]. The
//! user decides which side becomes the source, by a failover.
//!
//! [`Ask::Holds`]: super::setup::Ask::Holds

use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt;
use weft_replica::destination::Destination;
use weft_replica::status::Phase;

use super::Replicas;
use super::error::Error;
use super::group::{Group, State};
use super::position::{Holds, Standing};

/// A copy that no source contacts asks its partners after this time, then after twice as long each time, up to a
/// limit.
const ASKS_AFTER: Duration = Duration::from_secs(2);
const ASKS_AT_LEAST: Duration = Duration::from_secs(30);

/// What to do if `own` and all others are copies; `None` if one of the others is not, or did not answer.
fn none_is_source(name: &str, own: Standing, others: &[(String, Option<Holds>)]) -> Option<String> {
    let standing = |(host, holds): &(String, Option<Holds>)| Some((holds.as_ref()?.copy?, host.clone()));
    let others: Vec<(Standing, String)> = others.iter().map(standing).collect::<Option<_>>()?;
    let (best, host) = others.iter().max_by_key(|(standing, _)| *standing)?;
    let failover = format!("weft replica switch {name} --failover");
    let hosts: Vec<&str> = others.iter().map(|(_, host)| host.as_str()).collect();
    let hosts = hosts.join(" and ");
    let to_type = match own.cmp(best) {
        std::cmp::Ordering::Greater => format!("this side has the most: run `{failover}` here"),
        std::cmp::Ordering::Equal => {
            format!("this side has as much as {host}: run `{failover}` here or there")
        }
        std::cmp::Ordering::Less => format!("{host} has the most: run `{failover}` there"),
    };
    Some(format!(
        "no side is the source: this one is a copy, and so is {hosts}. {to_type} first says what would be lost, and then continues with that \
         side's data"
    ))
}

/// Why a side does not give up its role if all `others` are copies; `None` if one of them is not, or did not answer.
fn follows_nobody(name: &str, others: &[(String, Option<Holds>)]) -> Option<Error> {
    let is_copy =
        |(_, holds): &(String, Option<Holds>)| holds.as_ref().is_some_and(|holds| holds.copy.is_some());
    if others.is_empty() || !others.iter().all(is_copy) {
        return None;
    }
    let hosts = others.iter().map(|(host, _)| host.clone()).collect();
    Some(Error::NoSource { group: name.to_owned(), hosts })
}

impl Group {
    /// What this side has, if it is a copy.
    pub fn standing(&self) -> Option<Standing> {
        let State::Destination(copy) = self.state() else { return None };
        let status = copy.status();
        let whole = status.consistent || status.gave_up;
        Some(Standing { whole, epoch: status.epoch, last: status.last })
    }

    async fn ask_for_standing(&self, replicas: &Replicas) -> Vec<(String, Option<Holds>)> {
        let asked = self.ask_partners(replicas).await.into_iter();
        asked.map(|(partner, holds)| (partner.address.host, holds)).collect()
    }

    /// Refuses to become a copy if all others are copies, because no side would be the source.
    pub async fn would_follow_nobody(&self, replicas: &Replicas) -> Result<(), Error> {
        let others = self.ask_for_standing(replicas).await;
        follows_nobody(&self.name, &others).map_or(Ok(()), Err)
    }

    /// While this side is this copy and no source contacts it: finds out whether there is one.
    pub async fn look_for_source(&self, replicas: &Replicas, copy: &Arc<Destination>) {
        let is = |state: &State| self.is_this_copy(state, copy);
        let mut pause = ASKS_AFTER;
        loop {
            let over = self.engine().until(|state| !is(state));
            if rt::timeout(pause, over).await.is_ok() || replicas.ends() {
                return self.know_no_source(None);
            }
            if !waits_for_source(copy) {
                self.know_no_source(None);
                pause = ASKS_AFTER;
                continue;
            }
            let others = self.ask_for_standing(replicas).await;
            let own = self.standing().unwrap_or_default();
            self.know_no_source(none_is_source(&self.name, own, &others));
            pause = pause.saturating_mul(2).min(ASKS_AT_LEAST);
        }
    }

    /// What to type if no side is the source.
    pub fn no_source(&self) -> Option<String> {
        match self.state() {
            State::Destination(copy) if waits_for_source(&copy) => self.known_no_source(),
            _ => None,
        }
    }
}

fn waits_for_source(copy: &Destination) -> bool {
    copy.status().peers.iter().all(|source| source.phase == Phase::WaitingForSource)
}

#[cfg(test)]
mod tests {
    use super::super::position::Part;
    use super::*;

    #[test]
    fn a_side_gives_up_unless_all_others_have() {
        let copy = || Some(Holds { copy: Some(Standing::default()), ..Holds::from(Part::Nothing) });
        let source = || Some(Holds::from(Part::Source { epoch: 0, last: 0 }));
        let told = |others: &[Option<Holds>]| {
            let others: Vec<_> = others.iter().map(|holds| ("beta".to_owned(), holds.clone())).collect();
            follows_nobody("db", &others).map(|e| e.to_string())
        };
        assert!(told(&[copy(), copy()]).is_some_and(|why| why.contains("no side would be the source")));
        // A source, a side that waits for the same decision, one that cannot be asked, and none.
        for others in [&[copy(), source()][..], &[Some(Holds::from(Part::Nothing))], &[copy(), None], &[]] {
            assert_eq!(told(others), None, "{others:?}");
        }
    }

    #[test]
    fn of_copies_alone_the_one_that_has_most_is_named() {
        let standing = |whole, epoch, last| Standing { whole, epoch, last };
        let copy = |copy| Some(Holds { copy: Some(copy), ..Holds::from(Part::Nothing) });
        let told = |own, other| none_is_source("db", own, &[("beta".into(), other)]);
        let says = |own, other| told(own, copy(other)).unwrap();
        let here = says(standing(true, 2, 5), standing(true, 1, 9));
        assert!(here.contains("no side is the source") && here.contains("this side has the most"), "{here}");
        let there = says(standing(false, 2, 5), standing(true, 1, 9));
        assert!(
            there.contains("beta has the most: run `weft replica switch db --failover` there"),
            "{there}"
        );
        assert!(says(standing(true, 1, 9), standing(true, 1, 9)).contains("here or there"));
        // A side that is something else, has an older version, or cannot be asked.
        assert_eq!(told(standing(true, 1, 9), Some(Holds::from(Part::Nothing))), None);
        assert_eq!(told(standing(true, 1, 9), None), None);
        assert_eq!(none_is_source("db", standing(true, 1, 9), &[]), None);
    }
}
