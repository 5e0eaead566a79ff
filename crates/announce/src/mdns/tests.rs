use weft_wire::dns::Name;

use super::*;

const SMB: &str = "_smb._tcp.local";

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn name(text: &str) -> Name {
    Name::new(text.split('.')).unwrap()
}

fn service(kind: &'static str, instance: &str, port: u16) -> Service {
    Service { kind, instance: instance.into(), port, text: Vec::new() }
}

fn peer(host: u8, port: u16) -> SocketAddr {
    ([192, 0, 2, host], port).into()
}

fn responder(host: u8, seed: u64) -> Responder {
    let addresses: Vec<IpAddr> = vec![[192, 0, 2, host].into()];
    let services = vec![service("_smb", "nas", 445)];
    Responder::new("eth0", "nas", services, (addresses.clone(), addresses), Chance::new(seed), at(0))
}

/// Responders on one link. Each packet reaches all of them, also its sender, as on a real link.
struct Link {
    now: Time,
    hosts: Vec<(u8, Responder)>,
    /// What was sent: when, by whom, where to, what.
    seen: Vec<(Time, u8, To, Message)>,
}

impl Link {
    fn of(hosts: Vec<(u8, Responder)>) -> Link {
        Link { now: at(0), hosts, seen: Vec::new() }
    }

    fn run(&mut self, until: Time) {
        loop {
            self.exchange();
            let next = self.hosts.iter().filter_map(|(_, host)| host.wants()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            for (_, host) in &mut self.hosts {
                host.on_time(self.now);
            }
        }
        self.now = until;
    }

    fn exchange(&mut self) {
        loop {
            let mut packets = Vec::new();
            for (number, host) in &mut self.hosts {
                while let Some(packet) = host.pop() {
                    assert!(packet.bytes.len() <= MAX_PACKET);
                    self.seen.push((self.now, *number, packet.to, Message::parse(&packet.bytes).unwrap()));
                    packets.push((*number, packet));
                }
            }
            if packets.is_empty() {
                return;
            }
            for (from, packet) in packets {
                if !matches!(packet.to, To::One(_)) {
                    for (_, host) in &mut self.hosts {
                        host.handle(self.now, peer(from, PORT), &packet.bytes);
                    }
                }
            }
        }
    }

    /// Asks the first host; returns what it sends within a second.
    fn ask(&mut self, from: SocketAddr, message: &Message) -> Vec<(Time, To, Message)> {
        let before = self.seen.len();
        self.hosts[0].1.handle(self.now, from, &message.emit());
        let until = self.now + Duration::from_secs(1);
        self.run(until);
        self.seen.split_off(before).into_iter().map(|(when, _, to, message)| (when, to, message)).collect()
    }
}

fn asking(text: &str, kind: u16) -> Message {
    let question = Question { name: name(text), kind, class: CLASS_IN, unicast: false };
    Message { questions: vec![question], ..Message::default() }
}

fn settled() -> Link {
    let mut link = Link::of(vec![(7, responder(7, 1))]);
    link.run(at(10_000));
    link.seen.clear();
    link
}

fn names(host: &Responder) -> Vec<String> {
    host.claims.iter().map(|claim| claim.name().to_string()).collect()
}

fn has(message: &Message, of: &str, kind: u16) -> bool {
    message.answers.iter().any(|record| record.name.is(&name(of)) && record.data.kind() == kind)
}

#[test]
fn a_name_is_probed_for_three_times_and_announced_twice() {
    let mut link = Link::of(vec![(7, responder(7, 1))]);
    link.run(at(10_000));
    let probes: Vec<_> = link.seen.iter().filter(|(.., message)| !message.response).collect();
    let times: Vec<Time> = probes.iter().map(|(when, ..)| *when).collect();
    assert_eq!(probes.len(), 3);
    assert!(times[0] <= at(250) && times[1] - times[0] == PROBE_EVERY && times[2] - times[1] == PROBE_EVERY);
    for (.., message) in &probes {
        assert!(message.questions.iter().all(|one| one.kind == kind::ANY && !one.unicast));
        assert_eq!((message.questions.len(), message.authority.len()), (2, 3));
    }
    let announced: Vec<_> = link.seen.iter().filter(|(.., message)| message.response).collect();
    assert_eq!(announced.len(), 2);
    assert_eq!((announced[0].0 - times[2], announced[1].0 - announced[0].0), (PROBE_EVERY, ANNOUNCE_EVERY));
    for (_, _, to, message) in announced {
        assert_eq!(*to, To::Everybody);
        assert!(has(message, SMB, kind::PTR) && has(message, "nas._smb._tcp.local", kind::SRV));
        assert!(has(message, "nas.local", kind::A) && has(message, "nas._smb._tcp.local", kind::TXT));
        for record in &message.answers {
            assert_eq!(record.flush, record.data.kind() != kind::PTR, "only our own records flush caches");
        }
    }
}

#[test]
fn a_question_is_answered_with_what_is_needed_next() {
    let mut link = settled();
    let told = link.ask(peer(9, PORT), &asking(SMB, kind::PTR));
    let [(when, to, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*to, To::Group(Family::V4));
    let delay = when.since(at(10_000)).as_millis();
    assert!((20..=120).contains(&delay), "{delay}");
    assert!(has(message, SMB, kind::PTR) && message.answers.len() == 1);
    let more: Vec<u16> = message.additional.iter().map(|record| record.data.kind()).collect();
    assert_eq!(more, [kind::SRV, kind::TXT, kind::A, kind::NSEC]);
    // Names that we do not have are others'.
    assert!(link.ask(peer(9, PORT), &asking("other.local", kind::A)).is_empty());
    assert!(link.ask(peer(9, PORT), &asking("_http._tcp.local", kind::PTR)).is_empty());
    // RFC 6763 9: which types are there?
    let told = link.ask(peer(9, PORT), &asking("_services._dns-sd._udp.local", kind::PTR));
    assert!(has(&told[0].2, "_services._dns-sd._udp.local", kind::PTR));
    // RFC 6762 6.1: there is no IPv6 address.
    let told = link.ask(peer(9, PORT), &asking("nas.local", kind::AAAA));
    assert_eq!(told[0].0.since(at(0)).as_millis() % 1000, 0, "without delay");
    let data: Vec<u16> = told[0].2.answers.iter().map(|record| record.data.kind()).collect();
    assert_eq!(data, [kind::NSEC]);
}

#[test]
fn what_the_asker_knows_is_not_sent() {
    let mut link = settled();
    let told = link.ask(peer(9, PORT), &asking(SMB, kind::PTR));
    let known = |ttl| {
        let answers = told[0].2.answers.iter().map(|record| Record { ttl, ..record.clone() }).collect();
        Message { answers, ..asking(SMB, kind::PTR) }
    };
    assert!(link.ask(peer(9, PORT), &known(2250)).is_empty());
    assert_eq!(link.ask(peer(9, PORT), &known(2249)).len(), 1, "less than half of its time is left");
    // RFC 6762 7.2: more known answers follow in another packet.
    let first = Message { truncated: true, ..asking(SMB, kind::PTR) };
    link.hosts[0].1.handle(link.now, peer(9, PORT), &first.emit());
    let rest = Message { questions: Vec::new(), ..known(4500) };
    assert!(link.ask(peer(9, PORT), &rest).is_empty());
    assert_eq!(link.ask(peer(9, PORT), &first).len(), 1);
}

#[test]
fn a_record_is_multicast_once_a_second() {
    let mut link = settled();
    let began = link.now;
    for i in 0..100u8 {
        link.hosts[0].1.handle(link.now, peer(i, PORT), &asking(SMB, kind::PTR).emit());
        link.run(began + Duration::from_millis(u64::from(i) * 30));
    }
    link.run(began + Duration::from_secs(10));
    let times: Vec<Time> = link.seen.iter().map(|(when, ..)| *when).collect();
    assert!((3..=5).contains(&times.len()), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= MULTICAST_EVERY), "{times:?}");
}

#[test]
fn a_resolver_that_knows_no_multicast_gets_its_own_answer_and_not_many() {
    let mut link = settled();
    let asked = Message { id: 4711, ..asking("nas.local", kind::A) };
    let told = link.ask(peer(9, 40_000), &asked);
    let [(_, to, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((*to, message.id, &message.questions), (To::One(peer(9, 40_000)), 4711, &asked.questions));
    assert!(message.answers.iter().chain(&message.additional).all(|one| one.ttl <= LEGACY_TTL && !one.flush));
    for _ in 0..1000 {
        link.hosts[0].1.handle(link.now, peer(9, 40_000), &asked.emit());
    }
    link.exchange();
    assert!(link.seen.len() <= UNICASTS.0 as usize, "{}", link.seen.len());
}

#[test]
fn a_flood_is_not_read_to_its_end() {
    let mut link = settled();
    let asked = asking("nas.local", kind::A);
    for _ in 0..PACKETS.0 {
        link.hosts[0].1.handle(link.now, peer(9, PORT), &asking("else.local", kind::A).emit());
    }
    assert!(link.ask(peer(9, PORT), &asked).is_empty(), "it is not read");
    link.run(at(20_000));
    assert!(!link.ask(peer(9, PORT), &asked).is_empty());
}

#[test]
fn a_packet_of_very_many_questions_is_answered_in_part() {
    for (others, answers) in [(MAX_ASKED - 1, true), (MAX_ASKED, false)] {
        let mut link = settled();
        let mut asked = Message::default();
        for i in 0..others {
            // Each twice, which counts once.
            asked
                .questions
                .extend([0, 1].map(|_| asking(&format!("else-{i}.local"), kind::A).questions.remove(0)));
        }
        asked.questions.extend(asking("nas.local", kind::A).questions);
        assert_eq!(!link.ask(peer(9, PORT), &asked).is_empty(), answers, "{others}");
    }
}

#[test]
fn an_answer_by_unicast_is_given_if_others_have_it() {
    let mut link = settled();
    let mut asked = asking("nas.local", kind::A);
    asked.questions[0].unicast = true;
    // Announced some seconds ago, which is within a quarter of its time.
    assert_eq!(link.ask(peer(9, PORT), &asked)[0].1, To::One(peer(9, PORT)));
    link.run(at(60_000));
    assert_eq!(link.ask(peer(9, PORT), &asked)[0].1, To::Group(Family::V4));
}

#[test]
fn the_later_of_two_hosts_takes_another_name() {
    let mut link = settled();
    let addresses: Vec<IpAddr> = vec![[192, 0, 2, 8].into()];
    let services = vec![service("_smb", "nas", 4450)];
    let second =
        Responder::new("eth0", "nas", services, (addresses.clone(), addresses), Chance::new(2), link.now);
    link.hosts.push((8, second));
    link.run(at(30_000));
    assert_eq!(names(&link.hosts[0].1), ["nas.local", "nas._smb._tcp.local"]);
    assert_eq!(names(&link.hosts[1].1), ["nas-2.local", "nas (2)._smb._tcp.local"]);
    assert_eq!(link.hosts[1].1.substitutes(), ["nas-2.local", "nas (2)._smb._tcp.local"]);
    assert!(link.hosts[0].1.substitutes().is_empty());
    // Its service is announced at its new name.
    let (.., last) = link.seen.iter().rfind(|(_, by, _, message)| *by == 8 && message.response).unwrap();
    let target = last.answers.iter().find_map(|record| match &record.data {
        Data::Srv { target, port: 4450 } => Some(target.to_string()),
        _ => None,
    });
    assert_eq!(target.as_deref(), Some("nas-2.local"));
}

#[test]
fn two_hosts_that_start_at_once_end_with_different_names() {
    for seed in 0..50 {
        let mut link = Link::of(vec![(7, responder(7, seed)), (8, responder(8, seed + 1000))]);
        link.run(at(60_000));
        let (a, b) = (names(&link.hosts[0].1), names(&link.hosts[1].1));
        assert!(a.iter().zip(&b).all(|(a, b)| a != b), "{seed}: {a:?} {b:?}");
        assert!(
            link.hosts.iter().all(|(_, host)| host.claims.iter().all(|claim| claim.state == State::Held))
        );
        // RFC 6762 8.2: the greater data win, here those of 192.0.2.8.
        assert_eq!(b[0], "nas.local", "{seed}");
    }
}

#[test]
fn another_responder_of_this_host_is_no_conflict() {
    let mut link = settled();
    let own = vec![[192, 0, 2, 7].into(), [192, 0, 2, 6].into()];
    link.hosts[0].1.set_addresses(link.now, vec![[192, 0, 2, 7].into()], own);
    let of = |ip: [u8; 4]| {
        let data = Data::A(ip.into());
        Record { name: name("nas.local"), class: CLASS_IN, flush: true, ttl: 120, data }
    };
    let announce = |ip| Message { answers: vec![of(ip)], ..answer() };
    link.hosts[0].1.handle(link.now, peer(7, PORT), &announce([192, 0, 2, 6]).emit());
    assert_eq!(link.hosts[0].1.claims[0].state, State::Held);
    // An answer from another port proves nothing (RFC 6762 6).
    link.hosts[0].1.handle(link.now, peer(9, 40_000), &announce([192, 0, 2, 9]).emit());
    assert_eq!(link.hosts[0].1.claims[0].state, State::Held);
    link.hosts[0].1.handle(link.now, peer(9, PORT), &announce([192, 0, 2, 9]).emit());
    assert!(matches!(link.hosts[0].1.claims[0].state, State::Probing { .. }));
    // Nobody defends it.
    link.run(at(30_000));
    assert_eq!(names(&link.hosts[0].1)[0], "nas.local");
}

#[test]
fn somebody_who_has_every_name_is_asked_less_and_less() {
    let mut host = responder(7, 1);
    let (mut now, mut probes) = (at(0), 0);
    while now < at(60_000) {
        now = host.wants().unwrap_or(now + Duration::from_secs(1)).max(now);
        host.on_time(now);
        while let Some(packet) = host.pop() {
            let message = Message::parse(&packet.bytes).unwrap();
            probes += usize::from(!message.questions.is_empty());
            let taken = message.questions.iter().map(|question| {
                let data = Data::A([192, 0, 2, 66].into());
                Record { name: question.name.clone(), class: CLASS_IN, flush: true, ttl: 120, data }
            });
            let answers: Vec<Record> = taken.collect();
            if !answers.is_empty() {
                host.handle(now, peer(66, PORT), &Message { answers, ..answer() }.emit());
            }
        }
    }
    assert!((15..60).contains(&probes), "{probes}");
}

#[test]
fn services_come_and_go() {
    let mut link = settled();
    let now = link.now;
    let disk = Service { text: b"\x01a".to_vec(), ..service("_adisk", "nas", 9) };
    link.hosts[0].1.set_services(now, vec![disk.clone(), service("_smb", "nas", 445)]);
    link.run(at(20_000));
    let probed = link.seen.iter().find(|(.., message)| !message.response).unwrap();
    assert_eq!(probed.3.questions.len(), 1, "the other names are ours");
    assert!(link.seen.iter().any(|(.., message)| has(message, "_adisk._tcp.local", kind::PTR)));
    // Another text is announced without probes.
    link.seen.clear();
    let disk = Service { text: b"\x01b".to_vec(), ..disk };
    link.hosts[0].1.set_services(at(20_000), vec![service("_smb", "nas", 445), disk]);
    link.run(at(30_000));
    assert!(
        link.seen.iter().all(|(.., message)| message.response) && link.seen.len() == 2,
        "{:?}",
        link.seen
    );
    link.seen.clear();
    link.hosts[0].1.set_services(at(30_000), vec![service("_smb", "nas", 445)]);
    link.run(at(40_000));
    let [(_, _, To::Everybody, goodbye)] = &link.seen[..] else { panic!("{:?}", link.seen) };
    assert!(
        goodbye.answers.iter().all(|record| record.ttl == 0) && has(goodbye, "_adisk._tcp.local", kind::PTR)
    );
    assert!(!goodbye.answers.iter().any(|record| record.name.is(&name("_services._dns-sd._udp.local"))));
    link.seen.clear();
    link.hosts[0].1.end();
    link.exchange();
    let [(.., goodbye)] = &link.seen[..] else { panic!("{:?}", link.seen) };
    let target = Data::Srv { port: 445, target: name("nas.local") };
    assert!(goodbye.answers.iter().any(|record| record.ttl == 0 && record.data.is_same(&target)));
    assert!(!has(goodbye, "nas.local", kind::A));
    assert!(link.ask(peer(9, PORT), &asking(SMB, kind::PTR)).is_empty());
}

#[test]
fn many_services_are_told_in_packets_that_fit() {
    let services = (0..64)
        .map(|i| Service { text: vec![b'x'; 255], ..service("_nfs", &format!("share {i} on nas"), 2049) });
    let addresses: Vec<IpAddr> = vec![[192, 0, 2, 7].into()];
    let host = Responder::new(
        "eth0",
        "nas",
        services.collect(),
        (addresses.clone(), addresses),
        Chance::new(1),
        at(0),
    );
    let mut link = Link::of(vec![(7, host)]);
    link.run(at(10_000));
    assert!(link.hosts[0].1.claims.iter().all(|claim| claim.state == State::Held));
    // The first of its two probes has its records with it.
    let (.., first) = &link.seen[0];
    assert!(first.questions.iter().all(|one| first.authority.iter().any(|record| record.name.is(&one.name))));
    link.seen.clear();
    let told = link.ask(peer(9, PORT), &asking("_nfs._tcp.local", kind::PTR));
    assert_eq!(told.iter().map(|(.., message)| message.answers.len()).sum::<usize>(), 64);
}

#[test]
fn hostile_packets_do_nothing_but_cost_little() {
    let mut link = settled();
    let question = asking(SMB, kind::PTR).questions.remove(0);
    let many = Message { questions: vec![question; 500], ..Message::default() };
    for i in 0..200 {
        link.hosts[0].1.handle(link.now, peer(i, PORT), &many.emit());
    }
    assert!(link.hosts[0].1.pending.len() <= MAX_PENDING);
    link.run(at(20_000));
    assert!(link.seen.len() < 4, "{}", link.seen.len());
    let mut chance = Chance::new(9);
    let sample = Message { authority: link.seen[0].3.answers.clone(), ..asking(SMB, kind::ANY) }.emit();
    for _ in 0..20_000 {
        let mut bytes = sample.clone();
        for _ in 0..1 + chance.draw() % 4 {
            let place = chance.draw() as usize % bytes.len();
            bytes[place] = chance.draw() as u8;
        }
        bytes.truncate(1 + chance.draw() as usize % bytes.len());
        link.hosts[0].1.handle(link.now, peer(9, PORT), &bytes);
        link.hosts[0].1.out.clear();
    }
    assert!(link.hosts[0].1.pending.len() <= MAX_PENDING && link.hosts[0].1.sent.len() < 50);
}
