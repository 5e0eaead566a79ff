//! A Multicast DNS responder (RFC 6762) for one link: it claims names, announces services and answers questions.
//!
//! It is a state machine without sockets or clock. The caller passes it packets and the time, sends the packets that it
//! returns, and calls it again when it asks for that. It only asks whether its names are free, so it needs no cache. Another responder on this host (Avahi) may share the
//! port: questions ask for answers by multicast only (RFC 6762 15.1), and an address of this host is no conflict.

mod claim;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weft_machine::{LogLimit, Time};
use weft_wire::dns::{CLASS_ANY, CLASS_IN, Data, Message, Question, Record, kind};

use self::claim::{Claim, State};
use crate::bucket::Bucket;
use crate::chance::Chance;
use crate::services::Service;

/// UDP port.
pub const PORT: u16 = 5353;
/// Longest packet that is sent: it fits a frame of Ethernet.
pub const MAX_PACKET: usize = 1400;
/// Longest packet that is read (RFC 6762 17).
pub const MAX_RECEIVED: usize = 9000;

/// Probes for a name, and the time between them (RFC 6762 8.1).
const PROBES: u8 = 3;
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How long the loser of two simultaneous probes waits (RFC 6762 8.2).
const DEFER: Duration = Duration::from_secs(1);
/// Announcements of a name, and the time between them (RFC 6762 8.3).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// After so many conflicts in [`CONFLICTS_WITHIN`], a probe waits for [`STORM_DELAY`] (RFC 6762 8.1).
const MOST_CONFLICTS: usize = 15;
const CONFLICTS_WITHIN: Duration = Duration::from_secs(10);
const STORM_DELAY: Duration = Duration::from_secs(5);
/// The time between two multicasts of a record, and to defend a name (RFC 6762 6).
const MULTICAST_EVERY: Duration = Duration::from_secs(1);
const DEFEND_EVERY: Duration = Duration::from_millis(250);
/// TTL of an answer to a resolver that knows nothing of multicast (RFC 6762 6.7).
const LEGACY_TTL: u32 = 10;
/// Most answers that wait.
const MAX_PENDING: usize = 64;
/// Most answers by unicast at once, and a second.
const UNICASTS: (u32, u32) = (20, 10);
/// Most packets that are read at once, and a second, so that a flood leaves the processor to others.
const PACKETS: (u32, u32) = (100, 50);
/// Most different questions of a packet that are answered.
const MAX_ASKED: usize = 32;

/// The version of IP that a packet is sent with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    #[must_use]
    pub fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To everybody on the link, by IPv4 and IPv6.
    Everybody,
    /// To everybody on the link, by one version of IP.
    Group(Family),
    /// To one host.
    One(SocketAddr),
}

/// A packet to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Where to.
    pub to: To,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// An answer that waits.
struct Pending {
    due: Time,
    family: Family,
    records: Vec<Record>,
    /// Whether somebody probes for a name of ours.
    defends: bool,
    /// The asker, if it sends more known answers (RFC 6762 7.2).
    continued_by: Option<IpAddr>,
}

/// See the module.
pub struct Responder {
    link: String,
    chance: Chance,
    /// The addresses of the server on this link.
    addresses: Vec<IpAddr>,
    /// All addresses of this host: another responder may announce them.
    own: Vec<IpAddr>,
    /// The first is the host's name.
    claims: Vec<Claim>,
    pending: Vec<Pending>,
    /// When records were last multicast.
    sent: Vec<(Family, Record, Time)>,
    /// The last conflicts.
    conflicts: VecDeque<Time>,
    /// Whether there were too many conflicts, with no long pause since.
    is_storm: bool,
    unicasts: Bucket,
    packets: Bucket,
    out: VecDeque<Packet>,
}

impl Responder {
    /// A responder for the link with this name. It probes for its names first. `addresses` are the server's on this
    /// link, `own` all of this host.
    #[must_use]
    pub fn new(
        link: &str,
        host: &str,
        services: Vec<Service>,
        (addresses, own): (Vec<IpAddr>, Vec<IpAddr>),
        mut chance: Chance,
        now: Time,
    ) -> Responder {
        let first = now + chance.millis(0, 250);
        let claims = [Claim::of_host(host, first)].into_iter();
        let claims =
            claims.chain(services.into_iter().map(|service| Claim::of_service(service, first))).collect();
        Responder {
            link: link.to_owned(),
            chance,
            addresses,
            own,
            claims,
            pending: Vec::new(),
            sent: Vec::new(),
            conflicts: VecDeque::new(),
            is_storm: false,
            unicasts: Bucket::new(now, UNICASTS.0, UNICASTS.1),
            packets: Bucket::new(now, PACKETS.0, PACKETS.1),
            out: VecDeque::new(),
        }
    }

    /// A packet to send.
    pub fn pop(&mut self) -> Option<Packet> {
        self.out.pop_front()
    }

    /// When [`Responder::on_time`] is wanted.
    #[must_use]
    pub fn wants(&self) -> Option<Time> {
        let claims = self.claims.iter().filter_map(|claim| claim.state.next());
        claims.chain(self.pending.iter().map(|pending| pending.due)).min()
    }

    /// The names that it announces because others have those that were wanted.
    #[must_use]
    pub fn substitutes(&self) -> Vec<String> {
        let substitutes = self.claims.iter().filter(|claim| claim.is_renamed() && claim.state.is_held());
        substitutes.map(|claim| claim.name().to_string()).collect()
    }

    /// Announces exactly these services from now on. New ones are probed for first, and a goodbye is sent for the others.
    pub fn set_services(&mut self, now: Time, services: Vec<Service>) {
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        let mut new = services;
        for (i, mut claim) in std::mem::take(&mut self.claims).into_iter().enumerate() {
            let same = new.iter().position(|service| claim.is_for(service));
            match same.map(|same| new.remove(same)) {
                Some(service) => {
                    if claim.replace(service) {
                        claim.announce_again(now);
                    }
                    kept.push(claim);
                }
                None if i == 0 => kept.push(claim),
                None => gone.push(claim),
            }
        }
        self.claims = kept;
        self.forget_answers();
        self.say_goodbye(&gone);
        let first = now + self.chance.millis(0, 250);
        self.claims.extend(new.into_iter().map(|service| Claim::of_service(service, first)));
    }

    /// Uses these addresses from now on.
    pub fn set_addresses(&mut self, now: Time, addresses: Vec<IpAddr>, own: Vec<IpAddr>) {
        self.own = own;
        if self.addresses == addresses {
            return;
        }
        self.addresses = addresses;
        self.forget_answers();
        if let Some(host) = self.claims.first_mut() {
            host.announce_again(now);
        }
    }

    /// Says goodbye to every service (RFC 6762 10.1). Addresses keep their time: the host stays, and another responder may
    /// announce them.
    pub fn end(&mut self) {
        let gone = self.claims.split_off(1.min(self.claims.len()));
        self.forget_answers();
        self.say_goodbye(&gone);
    }

    fn say_goodbye(&mut self, gone: &[Claim]) {
        let Some(host) = self.claims.first().map(Claim::name) else { return };
        let mut records = Vec::new();
        for claim in gone.iter().filter(|claim| claim.state.is_held()) {
            let name = claim.name();
            // Other hosts have services of the same type.
            let is_own = |record: &Record| match &record.data {
                Data::Ptr(to) => to.is(&name),
                _ => true,
            };
            records.extend(claim.records(&host, &[]).into_iter().filter(is_own));
        }
        for record in &mut records {
            record.ttl = 0;
        }
        if !records.is_empty() {
            self.send(To::Everybody, Message { answers: records, ..answer() });
        }
    }

    fn forget_answers(&mut self) {
        self.pending.clear();
        self.sent.clear();
    }

    /// Handles a packet from this link.
    pub fn handle(&mut self, now: Time, from: SocketAddr, bytes: &[u8]) {
        // So a flood of packets takes a limited part of a processor.
        if !self.packets.take(now) {
            return;
        }
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(e) => return tracing::debug!("mDNS on {}: a packet of {from} is ignored: {e}", self.link),
        };
        // RFC 6762 18.3, 18.11.
        if message.codes != (0, 0) {
            return;
        }
        if !message.response {
            self.compare_probes(now, &message);
            self.answer(now, from, &message);
        } else if from.port() == PORT {
            self.look_for_conflicts(now, &message);
        }
        self.on_time(now);
    }

    /// Two hosts that probe for a name at the same time compare the records that they would announce (RFC 6762 8.2).
    fn compare_probes(&mut self, now: Time, message: &Message) {
        let Some(host) = self.claims.first().map(Claim::name) else { return };
        for claim in &mut self.claims {
            let (State::Probing { .. }, name) = (claim.state, claim.name()) else { continue };
            let theirs: Vec<&Record> =
                message.authority.iter().filter(|record| record.name.is(&name)).collect();
            let ours = claim.unique(&host, &self.addresses);
            if !theirs.is_empty() && sorted(theirs.into_iter()) > sorted(ours.iter()) {
                claim.state = State::Probing { sent: 0, next: now + DEFER };
            }
        }
    }

    /// Looks for records of our names with other data (RFC 6762 9). A name that we still probe for is given up for another
    /// one; a name that we hold is probed for again.
    fn look_for_conflicts(&mut self, now: Time, message: &Message) {
        let Some(host) = self.claims.first().map(Claim::name) else { return };
        let records = || message.answers.iter().chain(&message.authority).chain(&message.additional);
        let mut hit = Vec::new();
        for (i, claim) in self.claims.iter().enumerate() {
            let (name, ours) = (claim.name(), claim.unique(&host, &self.addresses));
            let is_probing = matches!(claim.state, State::Probing { .. });
            let conflicts = |record: &Record| {
                let is_own = match record.data {
                    Data::A(ip) => self.own.contains(&ip.into()),
                    Data::Aaaa(ip) => self.own.contains(&ip.into()),
                    _ => false,
                };
                let has_kind = ours.iter().any(|one| one.data.kind() == record.data.kind());
                record.ttl > 0
                    && record.class == CLASS_IN
                    && record.data.kind() != kind::NSEC
                    && record.name.is(&name)
                    && (is_probing || has_kind)
                    && !is_own
                    && !ours.iter().any(|one| one.is_same(record))
            };
            if records().any(conflicts) {
                hit.push(i);
            }
        }
        for i in hit {
            let delay = self.conflict_delay(now);
            let Some(claim) = self.claims.get_mut(i) else { continue };
            let before = claim.name();
            if matches!(claim.state, State::Probing { .. }) {
                claim.rename();
                static RENAMED: LogLimit = LogLimit::new();
                if let Some(left_out) = RENAMED.pass(now) {
                    let name = claim.name();
                    tracing::warn!(
                        "mDNS on {}: another host has the name {before}; trying {name}{left_out}",
                        self.link
                    );
                }
            }
            claim.state = State::Probing { sent: 0, next: now + delay };
            self.forget_answers();
        }
    }

    fn conflict_delay(&mut self, now: Time) -> Duration {
        let is_quiet = self.conflicts.back().is_none_or(|last| now.since(*last) >= CONFLICTS_WITHIN);
        self.conflicts.push_back(now);
        if self.conflicts.len() > MOST_CONFLICTS {
            self.conflicts.pop_front();
        }
        let since = self.conflicts.front().map_or(Duration::ZERO, |first| now.since(*first));
        let are_many = self.conflicts.len() == MOST_CONFLICTS && since < CONFLICTS_WITHIN;
        self.is_storm = are_many || self.is_storm && !is_quiet;
        if self.is_storm { STORM_DELAY } else { self.chance.millis(0, 250) }
    }

    fn answer(&mut self, now: Time, from: SocketAddr, message: &Message) {
        let family = Family::of(from.ip());
        let is_known = |record: &Record| {
            message.answers.iter().any(|known| known.is_same(record) && known.ttl >= record.ttl.div_ceil(2))
        };
        if message.questions.is_empty() {
            // More known answers to an earlier question.
            for pending in self.pending.iter_mut().filter(|one| one.continued_by == Some(from.ip())) {
                pending.records.retain(|record| !is_known(record));
            }
            return;
        }
        let (mut everybody, mut one) = (Vec::new(), Vec::new());
        let is_legacy = from.port() != PORT;
        let mut asked: Vec<&Question> = Vec::new();
        for question in &message.questions {
            if asked.contains(&question) {
                continue;
            }
            if asked.len() == MAX_ASKED {
                break;
            }
            asked.push(question);
            for record in self.matching(question) {
                if is_known(&record) {
                    continue;
                }
                let alone =
                    is_legacy || question.unicast && self.was_sent(now, family, &record, quarter(&record));
                let list = if alone { &mut one } else { &mut everybody };
                if !list.contains(&record) {
                    list.push(record);
                }
            }
        }
        if !one.is_empty() {
            if self.unicasts.take(now) {
                self.answer_alone(from, message, one);
            } else if !is_legacy {
                everybody.extend(one);
            }
        }
        if everybody.is_empty() || self.pending.len() >= MAX_PENDING {
            return;
        }
        let defends = !message.authority.is_empty();
        let is_shared = everybody.iter().any(|record| !record.flush);
        // RFC 6762 6, 7.2: others may answer, too, or more known answers follow.
        let delay = match () {
            () if defends => Duration::ZERO,
            () if message.truncated => self.chance.millis(400, 500),
            () if is_shared => self.chance.millis(20, 120),
            () => Duration::ZERO,
        };
        let continued_by = message.truncated.then_some(from.ip());
        self.pending.push(Pending { due: now + delay, family, records: everybody, defends, continued_by });
    }

    /// Answers the asker only.
    fn answer_alone(&mut self, to: SocketAddr, message: &Message, records: Vec<Record>) {
        let additional = self.additional(&records);
        let mut told = Message { answers: records, additional, ..answer() };
        if to.port() != PORT {
            // RFC 6762 6.7: such an asker knows no flag of multicast and repeats the question only if nobody answers.
            told.id = message.id;
            told.questions =
                message.questions.iter().map(|one| Question { unicast: false, ..one.clone() }).collect();
            for record in told.answers.iter_mut().chain(&mut told.additional) {
                record.flush = false;
                record.ttl = record.ttl.min(LEGACY_TTL);
            }
        }
        self.send(To::One(to), told);
    }

    /// Our answers to a question.
    fn matching(&self, question: &Question) -> Vec<Record> {
        let Some(host) = self.claims.first().map(Claim::name) else { return Vec::new() };
        if ![CLASS_IN, CLASS_ANY].contains(&question.class) {
            return Vec::new();
        }
        let mut found: Vec<Record> = Vec::new();
        for claim in self.claims.iter().filter(|claim| claim.state.is_held()) {
            let records = claim.records(&host, &self.addresses);
            let named = || records.iter().filter(|record| record.name.is(&question.name));
            let fits = |record: &&Record| [record.data.kind(), kind::ANY].contains(&question.kind);
            found.extend(named().filter(fits).cloned());
            let is_unique = named().any(|record| record.flush);
            if is_unique && !named().any(|record| fits(&record)) {
                // RFC 6762 6.1: tell the client that the record does not exist, so that it need not wait for a timeout.
                found.extend(claim.types(&host, &self.addresses));
            }
        }
        let mut each: Vec<Record> = Vec::new();
        for record in found {
            if !each.iter().any(|one| one.is_same(&record)) {
                each.push(record);
            }
        }
        each
    }

    /// The records that a client needs next: it would ask for them after it got these (RFC 6763 12).
    fn additional(&self, answers: &[Record]) -> Vec<Record> {
        let Some(host) = self.claims.first().map(Claim::name) else { return Vec::new() };
        let mut more: Vec<Record> = Vec::new();
        let is_new =
            |more: &[Record], record: &Record| !answers.iter().chain(more).any(|one| one.is_same(record));
        let mut wants_host = false;
        for answer in answers {
            match &answer.data {
                Data::Ptr(instance) => {
                    for claim in self.claims.iter().skip(1).filter(|claim| claim.name().is(instance)) {
                        wants_host = true;
                        for record in claim.unique(&host, &[]) {
                            if is_new(&more, &record) {
                                more.push(record);
                            }
                        }
                    }
                }
                Data::Srv { .. } | Data::A(_) | Data::Aaaa(_) => wants_host = true,
                _ => {}
            }
        }
        if let Some(claim) = self.claims.first().filter(|claim| wants_host && claim.state.is_held()) {
            let records =
                claim.unique(&host, &self.addresses).into_iter().chain(claim.types(&host, &self.addresses));
            for record in records {
                if is_new(&more, &record) {
                    more.push(record);
                }
            }
        }
        more
    }

    /// Sends everything that is due.
    pub fn on_time(&mut self, now: Time) {
        let is_due = |claim: &Claim| claim.state.next().is_some_and(|next| next <= now);
        let Some(before) = self.claims.first().map(|claim| (claim.name(), claim.state)) else { return };
        let host = before.0;
        let (mut questions, mut authority, mut announced) = (Vec::new(), Vec::new(), Vec::new());
        for claim in self.claims.iter_mut().filter(|claim| is_due(claim)) {
            if let State::Probing { sent: PROBES.., .. } = claim.state {
                claim.state = State::Announcing { sent: 0, next: now };
            }
            match claim.state {
                State::Probing { sent, .. } => {
                    questions.push(Question {
                        name: claim.name(),
                        kind: kind::ANY,
                        class: CLASS_IN,
                        unicast: false,
                    });
                    // RFC 6762 8.2: without the bit of the cache.
                    let meant = claim.unique(&host, &self.addresses);
                    authority.extend(meant.into_iter().map(|record| Record { flush: false, ..record }));
                    claim.state = State::Probing { sent: sent.saturating_add(1), next: now + PROBE_EVERY };
                }
                State::Announcing { sent, .. } => {
                    announced.extend(claim.records(&host, &self.addresses));
                    let sent = sent.saturating_add(1);
                    claim.state = match sent {
                        ANNOUNCEMENTS.. => State::Held,
                        sent => State::Announcing { sent, next: now + ANNOUNCE_EVERY },
                    };
                }
                State::Held => {}
            }
        }
        let host_is_new = self.claims.first().is_some_and(|claim| claim.was_renamed && claim.state.is_held());
        if host_is_new {
            // The services' records name the host, which has another name now.
            for claim in &mut self.claims {
                claim.was_renamed = false;
                claim.announce_again(now + ANNOUNCE_EVERY);
            }
        }
        if !questions.is_empty() {
            self.send(To::Everybody, Message { questions, authority, ..Message::default() });
        }
        if !announced.is_empty() {
            for family in [Family::V4, Family::V6] {
                self.remember(now, family, &announced);
            }
            self.send(To::Everybody, Message { answers: announced, ..answer() });
        }
        for family in [Family::V4, Family::V6] {
            self.send_pending(now, family);
        }
    }

    /// Sends the answers that are due, together. A record that was sent a moment ago waits (RFC 6762 6).
    fn send_pending(&mut self, now: Time, family: Family) {
        let is_due = |pending: &Pending| pending.due <= now && pending.family == family;
        let (due, waiting) = std::mem::take(&mut self.pending).into_iter().partition::<Vec<_>, _>(is_due);
        self.pending = waiting;
        let mut answers: Vec<Record> = Vec::new();
        for Pending { records, defends, .. } in due {
            let every = if defends { DEFEND_EVERY } else { MULTICAST_EVERY };
            for record in records {
                let last = self.last_sent(family, &record);
                let again = last.map(|last| last + every).filter(|again| *again > now);
                let is_there = |list: &[Record]| list.iter().any(|one| one.is_same(&record));
                match again {
                    _ if is_there(&answers) => {}
                    None => answers.push(record),
                    Some(_)
                        if self.pending.iter().any(|one| one.family == family && is_there(&one.records)) => {}
                    Some(due) if self.pending.len() < MAX_PENDING => {
                        let records = vec![record];
                        self.pending.push(Pending { due, family, records, defends, continued_by: None });
                    }
                    Some(_) => {}
                }
            }
        }
        if answers.is_empty() {
            return;
        }
        self.remember(now, family, &answers);
        let additional = self.additional(&answers);
        self.send(To::Group(family), Message { answers, additional, ..answer() });
    }

    fn last_sent(&self, family: Family, record: &Record) -> Option<Time> {
        let sent = self.sent.iter().find(|(of, sent, _)| *of == family && sent.is_same(record));
        sent.map(|(_, _, at)| *at)
    }

    fn was_sent(&self, now: Time, family: Family, record: &Record, within: Duration) -> bool {
        self.last_sent(family, record).is_some_and(|at| now.since(at) < within)
    }

    /// Remembers when these records were multicast. Each of our records has one entry.
    fn remember(&mut self, now: Time, family: Family, records: &[Record]) {
        for record in records {
            self.sent.retain(|(of, sent, _)| *of != family || !sent.is_same(record));
            self.sent.push((family, record.clone(), now));
        }
    }

    /// Sends a message, in several packets if it is long; what may be asked for goes first.
    fn send(&mut self, to: To, message: Message) {
        let bytes = message.emit();
        if bytes.len() <= MAX_PACKET {
            return self.out.push_back(Packet { to, bytes });
        }
        if !message.additional.is_empty() {
            return self.send(to, Message { additional: Vec::new(), ..message });
        }
        if let (Some((first, second)), To::Everybody | To::Group(_)) = (halves(&message), to) {
            self.send(to, first);
            return self.send(to, second);
        }
        // To one, cut off: it asks for less, or by TCP, which nobody answers. A single record is never that long.
        let kept = message.answers.len().div_ceil(2).saturating_sub(1);
        if kept > 0 {
            let answers = message.answers.into_iter().take(kept).collect();
            self.send(to, Message { answers, truncated: true, ..message });
        }
    }
}

/// A quarter of the time that a record may be cached.
fn quarter(record: &Record) -> Duration {
    Duration::from_secs(u64::from(record.ttl.div_ceil(4)))
}

/// An answer without records.
fn answer() -> Message {
    Message { response: true, authoritative: true, ..Message::default() }
}

/// Splits a long message in two: each has half of the answers, or half of the probes with their records.
fn halves(message: &Message) -> Option<(Message, Message)> {
    let split = |records: &[Record]| {
        let (first, second) = records.split_at_checked(records.len().div_ceil(2))?;
        Some((first.to_vec(), second.to_vec()))
    };
    if message.answers.len() > 1 {
        let (first, second) = split(&message.answers)?;
        return Some((
            Message { answers: first, ..message.clone() },
            Message { answers: second, ..message.clone() },
        ));
    }
    let (first, second) = message.questions.split_at_checked(message.questions.len().div_ceil(2))?;
    if second.is_empty() {
        return None;
    }
    let part = |questions: &[Question]| {
        let of_these = |record: &&Record| questions.iter().any(|question| question.name.is(&record.name));
        let authority = message.authority.iter().filter(of_these).cloned().collect();
        Message { questions: questions.to_vec(), authority, ..message.clone() }
    };
    Some((part(first), part(second)))
}

/// Records in the order of RFC 6762 8.2.1.
fn sorted<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<(u16, u16, Vec<u8>)> {
    let mut list: Vec<_> =
        records.map(|record| (record.class, record.data.kind(), record.data.canonical())).collect();
    list.sort();
    list
}

#[cfg(test)]
mod tests;
