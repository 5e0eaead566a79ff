//! A name that a responder claims, and the records that it has there: the host's addresses, or a service (RFC 6763 4).

use std::net::IpAddr;

use weft_machine::Time;
use weft_wire::dns::{CLASS_IN, Data, Name, Record};

use crate::services::{Service, label};

/// TTL of records with an address or the name of a host, and of others (RFC 6762 10).
const HOST_TTL: u32 = 120;
const OTHER_TTL: u32 = 4500;

/// The progress of a claim (RFC 6762 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Others are asked whether they have the name.
    Probing { sent: u8, next: Time },
    /// The name is ours, and others are told.
    Announcing { sent: u8, next: Time },
    /// The name is ours.
    Held,
}

impl State {
    /// When the next packet is due.
    pub(super) fn next(self) -> Option<Time> {
        match self {
            State::Probing { next, .. } | State::Announcing { next, .. } => Some(next),
            State::Held => None,
        }
    }

    /// Whether the name is ours.
    pub(super) fn is_held(self) -> bool {
        !matches!(self, State::Probing { .. })
    }
}

/// What a name is for.
#[derive(Clone, Debug)]
enum Subject {
    Host(String),
    Service(Service),
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    subject: Subject,
    /// How many of its names turned out to be another host's.
    renamed: u32,
    /// Whether the name has changed since the services of this host were told.
    pub was_renamed: bool,
    pub state: State,
}

impl Claim {
    pub(super) fn of_host(name: &str, first: Time) -> Claim {
        Claim::new(Subject::Host(name.to_owned()), first)
    }

    pub(super) fn of_service(service: Service, first: Time) -> Claim {
        Claim::new(Subject::Service(service), first)
    }

    fn new(subject: Subject, first: Time) -> Claim {
        let state = State::Probing { sent: 0, next: first };
        Claim { subject, renamed: 0, was_renamed: false, state }
    }

    /// Whether it is the claim for a service, maybe with another port or text.
    pub(super) fn is_for(&self, service: &Service) -> bool {
        matches!(&self.subject, Subject::Service(own) if own.kind == service.kind && own.instance == service.instance)
    }

    /// Takes the service's port and text; returns whether they have changed.
    pub(super) fn replace(&mut self, service: Service) -> bool {
        match &mut self.subject {
            Subject::Service(own) if *own != service => {
                *own = service;
                true
            }
            _ => false,
        }
    }

    /// Announces its records again, if the name is ours.
    pub(super) fn announce_again(&mut self, now: Time) {
        if self.state.is_held() {
            self.state = State::Announcing { sent: 0, next: now };
        }
    }

    /// Takes the next name (RFC 6762 9, RFC 6763 appendix D).
    pub(super) fn rename(&mut self) {
        self.renamed = self.renamed.saturating_add(1);
        self.was_renamed = matches!(self.subject, Subject::Host(_));
    }

    /// Whether others have the name that it was to have.
    pub(super) fn is_renamed(&self) -> bool {
        self.renamed > 0
    }

    /// The name that it claims.
    pub(super) fn name(&self) -> Name {
        let number = self.renamed.saturating_add(1);
        match &self.subject {
            Subject::Host(host) if number == 1 => name([&label(host, ""), "local"]),
            Subject::Host(host) => name([&label(host, &format!("-{number}")), "local"]),
            Subject::Service(Service { kind, instance, .. }) if number == 1 => {
                name([&label(instance, ""), kind, "_tcp", "local"])
            }
            Subject::Service(Service { kind, instance, .. }) => {
                name([&label(instance, &format!(" ({number})")), kind, "_tcp", "local"])
            }
        }
    }

    /// The records that only we have.
    pub(super) fn unique(&self, host: &Name, addresses: &[IpAddr]) -> Vec<Record> {
        let record = |ttl, data| Record { name: self.name(), class: CLASS_IN, flush: true, ttl, data };
        match &self.subject {
            Subject::Host(_) => {
                let data = addresses.iter().map(|ip| match ip {
                    IpAddr::V4(ip) => Data::A(*ip),
                    IpAddr::V6(ip) => Data::Aaaa(*ip),
                });
                data.map(|data| record(HOST_TTL, data)).collect()
            }
            Subject::Service(service) => vec![
                record(HOST_TTL, Data::Srv { port: service.port, target: host.clone() }),
                // As it is read back.
                record(
                    OTHER_TTL,
                    Data::Txt(if service.text.is_empty() { vec![0] } else { service.text.clone() }),
                ),
            ],
        }
    }

    /// All its records: also those of its type, which other hosts have as well.
    pub(super) fn records(&self, host: &Name, addresses: &[IpAddr]) -> Vec<Record> {
        let mut records = self.unique(host, addresses);
        if let Subject::Service(Service { kind, .. }) = &self.subject {
            let pointer = |name, to| {
                let data = Data::Ptr(to);
                Record { name, class: CLASS_IN, flush: false, ttl: OTHER_TTL, data }
            };
            let of_kind = name([*kind, "_tcp", "local"]);
            records.push(pointer(of_kind.clone(), self.name()));
            // RFC 6763 9.
            records.push(pointer(name(["_services", "_dns-sd", "_udp", "local"]), of_kind));
        }
        records
    }

    /// The types that its name has (RFC 6762 6.1).
    pub(super) fn types(&self, host: &Name, addresses: &[IpAddr]) -> Option<Record> {
        let unique = self.unique(host, addresses);
        let mut types: Vec<u16> = unique.iter().map(|record| record.data.kind()).collect();
        types.sort_unstable();
        types.dedup();
        let ttl = unique.iter().map(|record| record.ttl).min()?;
        let data = Data::Nsec { next: self.name(), types };
        Some(Record { name: self.name(), class: CLASS_IN, flush: true, ttl, data })
    }
}

/// A name of labels that fit: [`label`] has made them, or they are written here.
fn name<const N: usize>(labels: [&str; N]) -> Name {
    Name::new(labels).expect("labels that fit a name")
}
