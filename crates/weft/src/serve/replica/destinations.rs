//! The list of a group's destinations: how a source sends it to each destination, and what a copy does with it.
//!
//! See [`Ask::Know`]. The source's list counts as a whole: the partners of a copy are exactly its source and the
//! list's members, with the addresses and passwords of the list. So a destination that was removed or re-added is so
//! for all of them. A source sends its list when it is opened, when the list changes, before the roles are exchanged,
//! and every ten minutes. A list carries the source's epoch and a count, which the group's file keeps: an older list
//! that arrives late changes nothing. [`super::carrier`] connects, and [`super::partners`] finds out which partner is
//! the source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, join_all, select};
use weft_machine::rt;
use weft_replica::source::Source;

use super::config::{self, ListNumber, MOST_NAME, MOST_PARTNERS, Partner};
use super::error::{Error, Unrecorded, Untold};
use super::group::{Group, State};
use super::own_address::way_back;
use super::partners::{ASKS_AGAIN, ASKS_AT_LEAST};
use super::setup::{Ask, List, Tell, UNREADABLE};
use super::{Replicas, carrier};
use crate::out::{self, Said};
use crate::serve::names::host_name;

/// How long a destination may take to process a list: it asks the listed servers, which takes up to
/// [`carrier::ANSWERS_WITHIN`].
const HEARS_WITHIN: Duration = Duration::from_secs(10);
/// How often a source repeats its list, for copies whose files were restored or whose server was updated.
const SAYS_AGAIN: Duration = Duration::from_secs(600);

/// Whether two partners are the same, whatever their names.
fn is_same(a: &Partner, b: &Partner) -> bool {
    a.name == b.name || a.address.host_and_port() == b.address.host_and_port()
}

/// A partner, and the number of the server that its address leads to, if it answers.
#[derive(Clone, Debug)]
struct Seen {
    partner: Partner,
    server: Option<u64>,
}

/// The new partners of a copy, its source first, and the destinations left out because they lead to this side itself,
/// to the source, or to a server already in the list. `own` and `source` are servers' numbers.
fn compose(
    known: &[Seen],
    said_source: Option<Seen>,
    list: Vec<Seen>,
    source: u64,
    own: u64,
) -> (Vec<Partner>, Vec<Said>) {
    let is_listed = |seen: &&Seen| list.iter().any(|other| is_same(&seen.partner, &other.partner));
    let is_source = |seen: &&Seen| seen.server == Some(source);
    let found = known.iter().find(is_source).or_else(|| said_source.as_ref().filter(is_source));
    let sources: Vec<&Seen> = match (found, known.first()) {
        (Some(found), _) => vec![found],
        // None answers. A source is not in its own list, and the first partner is the source unless another was
        // promoted a moment ago.
        (None, Some(first)) if !is_listed(&first) => vec![first],
        (None, _) => known.iter().filter(|seen| !is_listed(seen)).collect(),
    };
    let mut taken: Vec<Seen> = sources.into_iter().cloned().collect();
    for seen in &mut taken {
        seen.partner.name = name_beside(&seen.partner, &list);
    }
    if taken.is_empty() {
        // All known partners are listed as destinations, one of them by mistake.
        taken.extend(said_source.or_else(|| known.first().cloned()));
    }
    let mut left_out = Vec::new();
    for seen in list {
        let leads_here = seen.server == Some(own) || seen.server == Some(source);
        let is_taken = |other: &Seen| {
            is_same(&other.partner, &seen.partner) || (seen.server.is_some() && seen.server == other.server)
        };
        if leads_here || taken.len() >= MOST_PARTNERS || taken.iter().any(is_taken) {
            left_out.push(seen.partner.name.into());
        } else {
            taken.push(seen);
        }
    }
    (taken.into_iter().map(|seen| seen.partner).collect(), left_out)
}

/// The source's name among its destinations: its address, if a destination with another address has the same name,
/// because two hosts have the same host name.
fn name_beside(source: &Partner, list: &[Seen]) -> String {
    let name = &source.name;
    let is_taken = |seen: &Seen| {
        seen.partner.name == *name && seen.partner.address.host_and_port() != source.address.host_and_port()
    };
    match name.rsplit_once(':') {
        Some((_, group)) if list.iter().any(is_taken) => format!("{}:{group}", source.address.host),
        _ => name.clone(),
    }
}

impl Group {
    /// Changes this source's list of destinations, and sends it to each of them.
    pub fn change_destinations(
        &self,
        replicas: &Replicas,
        change: impl FnOnce(&mut config::Group),
    ) -> Result<(), Unrecorded> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.change(replicas, |config| {
            change(config);
            // Based on the clock, so that a source whose file was set back continues above its earlier counts.
            config.list = ListNumber { epoch: 0, count: config.list.count.saturating_add(1).max(now) };
        })?;
        self.listed.notify();
        Ok(())
    }

    /// As long as this side is this source: makes sure that each destination has its list.
    pub async fn say_list(&self, replicas: &Replicas, source: &Arc<Source>) {
        let is = |state: &State| {
            matches!(state, State::Source(now) if Arc::ptr_eq(now, source)) && !self.engine().has_ended()
        };
        // The last list of an earlier run may have announced an exchange of roles that did not take place.
        if let Err(why) = self.change_destinations(replicas, |_| ()) {
            tracing::warn!("{why}; its destinations may not know each other");
        }
        // By name: the count of the list that each has.
        let mut has: BTreeMap<String, u64> = BTreeMap::new();
        let (mut said_at, mut pause) = (rt::now(), ASKS_AGAIN);
        while is(&self.state()) && !replicas.ends() {
            if rt::now().since(said_at) >= SAYS_AGAIN {
                (said_at, pause) = (rt::now(), ASKS_AGAIN);
                has.clear();
            }
            let config = self.config();
            let (count, mut partners) = (config.list.count, config.partners);
            partners.retain(|partner| has.get(&partner.name) != Some(&count));
            let told = join_all(partners.iter().map(|partner| self.tell_list(replicas, partner))).await;
            for (partner, told) in partners.into_iter().zip(&told) {
                match told {
                    Ok(_) | Err(Untold::Older) => drop(has.insert(partner.name, count)),
                    Err(why) => {
                        tracing::debug!(
                            "group {}: {} did not get the list of destinations: {why}",
                            self.name,
                            partner.name
                        );
                    }
                }
            }
            let all_have = told.iter().all(|told| matches!(told, Ok(_) | Err(Untold::Older)));
            let wait = if all_have { SAYS_AGAIN } else { pause };
            let changes = self.listed.until(|| (self.config().list.count != count).then_some(()));
            let changes = std::pin::pin!(changes);
            let ends = std::pin::pin!(self.engine().until(|state| !is(state)));
            let woken = rt::timeout(wait, select(changes, ends)).await;
            // A new destination may not have accepted its source yet, and must not wait as long as one that is away.
            let again = woken.is_ok() || all_have;
            pause = if again { ASKS_AGAIN } else { pause.saturating_mul(2).min(ASKS_AT_LEAST) };
        }
    }

    /// The list for a destination.
    async fn list_for(&self, replicas: &Replicas, to: &Partner) -> Result<List, Untold> {
        let State::Source(source) = self.state() else {
            return Err(Untold::NotSource(self.name.clone()));
        };
        let config = self.config();
        let successor = self.successor();
        let mut partners = config.partners;
        partners.retain(|other| other.name != to.name);
        let number = ListNumber { epoch: source.status().epoch, count: config.list.count };
        let back = way_back(replicas, &to.address, None).await;
        let own = |address| Partner {
            name: format!("{}:{}", host_name(), self.name),
            address,
            synchronous: to.synchronous,
        };
        let successor = if successor == to.name { String::new() } else { successor };
        Ok(List {
            number,
            server: replicas.server,
            source: back.ok().map(own),
            partners,
            successor: successor.into(),
        })
    }

    /// Sends this source's list to a destination. Returns the entries that it left out.
    pub async fn tell_list(&self, replicas: &Replicas, to: &Partner) -> Result<Vec<Said>, Untold> {
        let late = |_| Err(Untold::Silent(to.address.host.clone()));
        rt::timeout(HEARS_WITHIN, self.try_to_tell(replicas, to)).await.unwrap_or_else(late)
    }

    async fn try_to_tell(&self, replicas: &Replicas, to: &Partner) -> Result<Vec<Said>, Untold> {
        let mut list = self.list_for(replicas, to).await?;
        let mut is_last = false;
        loop {
            let said = list.number.count;
            let know = Ask::Know { partnership: self.partnership_hex(), list: Box::new(list) };
            match carrier::exchange(&to.address, &replicas.pool, &know).await {
                Ok(Tell::Known { count, left_out }) if count <= said => return Ok(left_out),
                // It has a later list of this source: this side was set back. This side's list counts all the same.
                Ok(Tell::Known { count, .. }) if !is_last => {
                    self.change_destinations(replicas, |config| {
                        config.list.count = config.list.count.max(count)
                    })?;
                    list = self.list_for(replicas, to).await?;
                    is_last = true;
                }
                Ok(Tell::Error(why)) if why.starts_with(UNREADABLE) => return Err(Untold::Older),
                Ok(Tell::Error(why)) => return Err(Untold::Refused { host: to.address.host.clone(), why }),
                Ok(_) => return Err(Untold::Unexpected(to.address.host.clone())),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Processes a source's list: the other sides, and which of them is about to replace the source.
    pub async fn learn_list(&self, replicas: &Replicas, list: List) -> Result<Tell, Error> {
        let State::Destination(copy) = self.state() else {
            return Err(Error::NotDestination(self.name.clone()));
        };
        let odd = list.partners.iter().chain(&list.source).find(|partner| {
            let texts = [&partner.name, &partner.address.host, &partner.address.user];
            let named = (1..=MOST_NAME).contains(&partner.name.len());
            !named || texts.iter().any(|text| out::name(text) != ***text)
        });
        if let Some(odd) = odd {
            return Err(Error::OddPartner(odd.name.clone()));
        }
        if list.partners.len() > MOST_PARTNERS {
            return Err(Error::TooManyPartners(MOST_PARTNERS));
        }
        let List { number, server, source, partners, successor } = list;
        let follows = || match self.state() {
            State::Destination(now) if Arc::ptr_eq(&now, &copy) && copy.latest_epoch() == number.epoch => {
                Ok(())
            }
            State::Destination(now) => Err(Error::Follows {
                group: self.name.clone(),
                follows: now.latest_epoch(),
                epoch: number.epoch,
            }),
            _ => Err(Error::NotDestination(self.name.clone())),
        };
        follows()?;
        if let Some(count) = self.config().list.later_than(number) {
            return Ok(Tell::Known { count, left_out: Vec::new() });
        }
        let first = self.config().partners.first().map(|partner| partner.name.clone());
        let look = async |partners: Vec<Partner>| {
            join_all(
                partners
                    .into_iter()
                    .map(|partner| async { Seen { server: server_of(replicas, &partner).await, partner } }),
            )
            .await
        };
        let known = look(self.config().partners);
        let ((known, said_source), listed) =
            join(join(known, look(source.into_iter().collect())), look(partners)).await;
        let (partners, left_out) =
            compose(&known, said_source.into_iter().next(), listed, server, replicas.server);
        let now_first = partners.first().map(|partner| partner.name.clone());
        let successor = match successor.len() > MOST_NAME {
            true => "another host".to_owned(),
            false => successor.into(),
        };
        // Other lists may have arrived while the servers were asked.
        let mut later = None;
        let mut still = Ok(());
        self.change(replicas, |config| {
            still = follows();
            later = config.list.later_than(number);
            if still.is_ok() && later.is_none() {
                (config.partners, config.list, config.successor) = (partners, number, successor);
            }
        })?;
        still?;
        if let Some(count) = later {
            return Ok(Tell::Known { count, left_out: Vec::new() });
        }
        if let Some(source) = now_first.as_ref().filter(|now| Some(*now) != first.as_ref())
            && self.is_destination()
        {
            self.engine().is_copy_of(source);
        }
        Ok(Tell::Known { count: number.count, left_out })
    }

    /// Before the roles are exchanged: tells the next source about the other destinations, and them about it. Returns
    /// the sentences about those that could not be told.
    pub async fn tell_of_successor(&self, replicas: &Replicas, to: &str) -> Result<String, Error> {
        let partners = self.config().partners;
        let (next, others): (Vec<Partner>, Vec<Partner>) =
            partners.into_iter().partition(|partner| partner.name == to);
        let mut left_out = Vec::new();
        for next in &next {
            left_out = match self.tell_list(replicas, next).await {
                Ok(left_out) => left_out,
                // There is nobody to tell it about, and it knows nobody who was removed.
                Err(Untold::Older) if others.is_empty() => Vec::new(),
                Err(why) => {
                    return Err(Error::NotExchanged {
                        group: self.name.clone(),
                        to: next.name.clone(),
                        others: others.into_iter().map(|other| other.name).collect(),
                        why: Box::new(why),
                    });
                }
            };
        }
        let told = join_all(others.iter().map(|other| self.tell_list(replicas, other))).await;
        Ok(others
            .iter()
            .zip(told)
            .map(|(other, told)| said_of(&self.name, other, &told, &left_out, to))
            .collect())
    }

    /// After this side was promoted without its source: tells the other destinations that it is the source. Returns
    /// the sentences about them; `told` is the number of the last list of the old source.
    pub async fn tell_of_failover(&self, replicas: &Replicas, told: ListNumber) -> String {
        let (name, mut partners) = (&self.name, self.config().partners.into_iter());
        let source = partners.next().map(|source| source.address.host).unwrap_or_default();
        let others: Vec<Partner> = partners.collect();
        if others.is_empty() && told == ListNumber::default() {
            return format!(
                "; {source} has not reported its other destinations: if there are any, run `weft replica remove {name}` on each of them, and \
                 then `weft replica create` on this host"
            );
        }
        let told = join_all(others.iter().map(|other| self.tell_list(replicas, other))).await;
        others.iter().zip(told).map(|(other, told)| said_of(name, other, &told, &[], "this side")).collect()
    }
}

/// The sentence about a destination that was told about its group's next source, which has left these out.
fn said_of(
    group: &str,
    other: &Partner,
    told: &Result<Vec<Said>, Untold>,
    left_out: &[Said],
    to: &str,
) -> String {
    let name = &other.name;
    if left_out.iter().any(|out| **out == **name) {
        let at = other.address.authority();
        return format!(
            "; {name} does not become a copy of {to}: seen from there, {at} leads to a side of {group} that it already has. `weft replica create` \
             there adds it with another address"
        );
    }
    match told {
        Ok(_) => format!("; {name} also becomes a copy of {to}"),
        Err(why) => format!(
            "; {name} was not told ({why}): {to} replicates to it once it can reach it; do not start a failover on it before that"
        ),
    }
}

/// The number of the server that a partner's address leads to.
async fn server_of(replicas: &Replicas, partner: &Partner) -> Option<u64> {
    let look = Ask::Look { volumes: Vec::new(), measure: false };
    match carrier::ask_briefly(&partner.address, &replicas.pool, &look).await {
        Some(Tell::Looked { server, .. }) if server != 0 => Some(server),
        _ => None,
    }
}

/// The partner whose address leads to the server with this number.
pub(super) async fn who_is_at(replicas: &Replicas, server: u64, among: Vec<Partner>) -> Option<Partner> {
    let servers = join_all(among.iter().map(|partner| server_of(replicas, partner))).await;
    among.into_iter().zip(servers).find(|(_, its)| *its == Some(server)).map(|(partner, _)| partner)
}

/// Another partner that is the same copy under another address. Partners that cannot be asked do not count.
pub(super) async fn same_copy(replicas: &Replicas, partner: &Partner, others: &[Partner]) -> Option<String> {
    if others.is_empty() {
        return None;
    }
    let server = server_of(replicas, partner).await?;
    who_is_at(replicas, server, others.to_vec()).await.map(|other| other.name)
}

#[cfg(test)]
mod tests {
    use super::super::config::{Address, Password};
    use super::*;
    use crate::args::Transport;

    const OWN: u64 = 1;
    const SOURCE: u64 = 2;

    fn seen(name: &str, host: &str, server: Option<u64>) -> Seen {
        let address = Address {
            host: host.into(),
            port: 445,
            user: "alice".into(),
            password: Password::new("secret"),
            transport: Transport::Auto,
            encrypt: true,
            compress: false,
        };
        Seen { partner: Partner { name: name.into(), address, synchronous: true }, server }
    }

    fn composed(known: Vec<Seen>, source: Option<Seen>, list: Vec<Seen>) -> (Vec<String>, Vec<String>) {
        let (partners, left_out) = compose(&known, source, list, SOURCE, OWN);
        let names = partners.into_iter().map(|partner| partner.name).collect();
        (names, left_out.into_iter().map(String::from).collect())
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_leads_back_is_left_out_and_said() {
        let known = [seen("a", "a", Some(SOURCE))];
        let list = [
            seen("b", "localhost", Some(OWN)),
            seen("c", "c", Some(3)),
            seen("a-too", "alias", Some(SOURCE)),
            seen("c-too", "alias-of-c", Some(3)),
            seen("d", "d", None),
        ];
        assert_eq!(
            composed(known.to_vec(), None, list.to_vec()),
            (names(&["a", "c", "d"]), names(&["b", "a-too", "c-too"]))
        );
        let said = |name: &str, told| {
            said_of("db", &seen(name, "localhost", None).partner, &told, &["b".to_owned().into()], "a")
        };
        let left_out = said("b", Ok(Vec::new()));
        assert!(
            left_out.contains("does not become a copy of a: seen from there, localhost:445 leads"),
            "{left_out}"
        );
        assert!(!left_out.contains("also"), "{left_out}");
        assert_eq!(said("c", Ok(Vec::new())), "; c also becomes a copy of a");
        let untold = said("c", Err(Untold::Older));
        assert!(untold.contains("was not told (its server is of an older version"), "{untold}");
    }

    #[test]
    fn the_source_stays_whoever_it_is() {
        let (a, b, c) = (seen("a", "a", None), seen("b", "b", None), seen("c", "c", None));
        let answers = |seen: &Seen| Seen { server: Some(SOURCE), ..seen.clone() };
        // It cannot be reached from this side, and c was removed.
        assert_eq!(
            composed(vec![a.clone(), b.clone(), c.clone()], None, vec![b.clone()]).0,
            names(&["a", "b"])
        );
        // The second was promoted: the first is now its destination.
        assert_eq!(composed(vec![a.clone(), answers(&b)], None, vec![a.clone()]).0, names(&["b", "a"]));
        assert_eq!(composed(vec![a.clone(), b.clone()], None, vec![a.clone()]).0, names(&["b", "a"]));
        // A source that nobody has listed, or that is reachable only under the address it reports itself.
        let own = seen("host-of-b", "10.0.0.2", Some(SOURCE));
        assert_eq!(composed(vec![a.clone()], Some(own), vec![a.clone()]).0, names(&["host-of-b", "a"]));
        assert_eq!(composed(vec![a.clone()], Some(b.clone()), vec![a.clone()]).0, names(&["b", "a"]));
        // Its own entry has a new password, and the known address no longer leads there.
        let renewed = seen("a", "a", Some(SOURCE));
        assert_eq!(composed(vec![a.clone(), b.clone()], Some(renewed), vec![b]).0, names(&["a", "b"]));
        // Two hosts with the same name.
        let other = seen("host:db", "10.0.0.1", None);
        let source = seen("host:db", "10.0.0.2", Some(SOURCE));
        assert_eq!(
            composed(vec![other.clone()], Some(source), vec![other]).0,
            names(&["10.0.0.2:db", "host:db"])
        );
        // It is in its own list.
        let alias = seen("alias", "a", None);
        assert_eq!(composed(vec![a], None, vec![c, alias]), (names(&["a", "c"]), names(&["alias"])));
    }

    #[test]
    fn a_server_of_the_version_before_is_known_by_its_answer() {
        // The message as that version parses it.
        #[derive(serde::Deserialize, Debug)]
        #[serde(tag = "do", rename_all = "kebab-case")]
        enum Before {
            Nothing,
        }
        let list = List {
            number: ListNumber { epoch: 1, count: 1 },
            server: SOURCE,
            source: None,
            partners: Vec::new(),
            successor: Said::default(),
        };
        let know = Ask::Know { partnership: "ab".repeat(16), list: Box::new(list) };
        let e = serde_json::from_slice::<Before>(&serde_json::to_vec(&know).unwrap()).unwrap_err();
        let answered = format!("a message that cannot be read: {e}");
        assert!(answered.starts_with(UNREADABLE) && answered.contains("know"), "{answered}");
    }
}
