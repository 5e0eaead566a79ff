//! Groups as a status tells them.

use serde_json::Value;

use super::Replicas;
use super::group::{Group, State};
use crate::admin::replica::{Group as Told, Link};

/// All groups of a server.
pub(super) fn groups(replicas: &Replicas) -> Vec<Told> {
    replicas.groups().values().map(|group| told(group)).collect()
}

fn told(group: &Group) -> Told {
    let config = group.config();
    let (role, stopped) = match group.state() {
        State::Starting => ("starting", None),
        State::Source(_) => ("source", None),
        State::Destination(_) => ("destination", None),
        State::Stopped(stopped) => ("stopped", Some(group.why_stopped(&stopped))),
    };
    let engine = group.status().and_then(|status| serde_json::to_value(status).ok()).unwrap_or(Value::Null);
    let link = |partner: &super::config::Partner| {
        let report = group.report(&partner.name);
        Link {
            name: partner.name.clone(),
            address: format!("{}:{}", partner.address.host, partner.address.port),
            transport: report.transport.to_owned(),
            reason: report.reason.to_owned(),
            description: report.description,
            traffic: report.traffic,
        }
    };
    Told {
        name: group.name.to_string(),
        volumes: config.volumes,
        role: role.to_owned(),
        stopped,
        partner_stopped: group.partner_stopped(),
        test_failover: group.picture_uris(),
        in_memory: config.in_memory,
        policy: config.policy,
        engine,
        links: config.partners.iter().map(link).collect(),
    }
}
