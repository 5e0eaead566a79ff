//! Promotes a copy without its source: collects the objections, and checks which of them the user overrides.
//!
//! See docs/replication.md, "Who is asked before a write is answered". Each objection has a word. All current
//! objections are reported together, and each must be named: a user who overrides one must not override another that
//! was not reported. `weft_replica::group` promotes, [`super::partners`] asks the other sides.

use std::sync::Arc;

use weft_replica::destination::{Destination, Force};
use weft_replica::error::Objection as Engines;
use weft_replica::status::{Mode, Role};
use weft_wire::repl::control::Era;

use super::Replicas;
use super::error::Error;
use super::group::Group;
use super::partners::Elsewhere;
use crate::args::replica::Objection;

/// Promotes a copy if every current objection is overridden. Returns the new era, and sentences about the other
/// sides, each after a semicolon.
pub(super) async fn take_over(
    replicas: &Arc<Replicas>,
    group: &Group,
    copy: &Destination,
    tag: u64,
    past: &[Objection],
) -> Result<(Era, String), Error> {
    let others = group.is_behind(replicas, copy).await;
    promote(replicas, group, copy, tag, past, others).await
}

/// The same, given the other sides' answers.
pub(super) async fn promote(
    replicas: &Replicas,
    group: &Group,
    copy: &Destination,
    tag: u64,
    past: &[Objection],
    others: Elsewhere,
) -> Result<(Era, String), Error> {
    let passes = |objection| past.contains(&objection);
    let force = Force {
        source_alive: passes(Objection::Alive),
        inconsistent: passes(Objection::Resync),
        behind: passes(Objection::Behind),
    };
    let own = match others.objections.iter().all(|(objection, _)| passes(*objection)) {
        false => copy.objections(),
        true => {
            let before = group.config().partners;
            let parted = group.part_from(replicas, &others.ahead)?;
            match group.engine().take_over(copy, tag, force).await {
                Ok(era) if others.unasked.is_empty() => return Ok((era, parted)),
                Ok(era) => return Ok((era, format!("{parted}; {}", others.unasked))),
                Err(source) if copy.status().role == Role::Source => {
                    return Err(Error::PromotedClosed { source, parted });
                }
                Err(e) => {
                    if !parted.is_empty() {
                        // It is still a copy.
                        group.change(replicas, |config| config.partners = before)?;
                    }
                    match e {
                        weft_replica::Error::Objections(own) => own,
                        source => return Err(Error::StaysCopy { group: group.name.clone(), source }),
                    }
                }
            }
        }
    };
    let host = group.config().partners.into_iter().next().map(|partner| partner.address.host);
    let host = host.unwrap_or_else(|| "its source".into());
    let mode = copy.status().peers.first().and_then(|peer| peer.mode);
    let own = own.iter().map(|objection| told(&group.name, &host, mode, objection)).collect();
    Err(Error::Objections { group: group.name.clone(), objections: each_once(own, others.objections) })
}

/// Each objection once: if the source was heard recently, its answer adds nothing.
fn each_once(
    mut all: Vec<(Objection, String)>,
    others: Vec<(Objection, String)>,
) -> Vec<(Objection, String)> {
    for (objection, why) in others {
        if !all.iter().any(|(known, _)| *known == objection) {
            all.push((objection, why));
        }
    }
    all
}

/// An objection of this side, with its cost, and what to do instead.
fn told(name: &str, host: &str, mode: Option<Mode>, objection: &Engines) -> (Objection, String) {
    match objection {
        Engines::Alive(_) => {
            let lost = match mode {
                Some(Mode::Synchronous) => {
                    format!(
                        "writes that {host} acknowledges before it learns about this side are refused there"
                    )
                }
                _ => format!("writes that {host} has acknowledged but not sent yet are lost"),
            };
            let why = format!(
                "{objection}; {lost}, and {host} stops once it is reached. To lose nothing: `weft replica switch {name}` on {host} \
                 exchanges the roles. If {host} is lost anyway, stop its server and try again"
            );
            (Objection::Alive, why)
        }
        Engines::Behind(_) => {
            let why = format!(
                "{objection}; writes that {host} has acknowledged are lost with them. To lose nothing, start {host} again, wait until `weft \
                 replica status` on this host says that it is continuously replicating, and try again"
            );
            (Objection::Behind, why)
        }
        Engines::GaveUp => {
            let why = format!(
                "{objection}. This copy has the data of that time; data that only {host} has is overwritten when {host} becomes its copy"
            );
            (Objection::Resync, why)
        }
        Engines::Inconsistent => {
            (Objection::Resync, format!("{objection}; files and databases in it may be damaged"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_that_speaks_against_a_failover_is_told_with_the_words_that_pass_over_it() {
        let told = |objection| told("db", "alpha", Some(Mode::Synchronous), &objection);
        let (alive, behind) = (Engines::Alive(Duration::from_millis(1500)), Engines::Behind(3));
        let refusal = |own, others| {
            let objections = each_once(own, others);
            Error::Objections { group: "db".parse().unwrap(), objections }.to_string()
        };
        let one = refusal(vec![told(behind)], Vec::new());
        assert!(
            one.ends_with("despite this objection: `weft replica switch db --failover --force=behind`"),
            "{one}"
        );
        let more = (Objection::OtherHasMore, "this copy lacks records 4 to 9; gamma has them".to_owned());
        let own = vec![told(alive), told(behind), told(Engines::Inconsistent)];
        let answers = (Objection::Alive, "alpha could be asked".to_owned());
        let all = refusal(own, vec![answers, more]);
        assert!(!all.contains("could be asked"), "{all}");
        for said in [
            "alive: its source is alive: it was heard from 1.5 s ago",
            "behind: its source had 3 more records",
            "resync: a resync is under way",
            "other-has-more: this copy lacks records 4 to 9",
            "--force=alive,behind,resync,other-has-more`",
        ] {
            assert!(all.contains(said), "{all}");
        }
    }
}
