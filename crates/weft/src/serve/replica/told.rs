//! The groups as a status reports them.

use serde_json::Value;

use super::group::{Group, State};
use super::{Replicas, removed};
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
    let mut engine =
        group.status().and_then(|status| serde_json::to_value(status).ok()).unwrap_or(Value::Null);
    let partner_stopped = group.partner_stopped();
    let partner_removed = group.removed_by().map(|host| removed::told(&group.name, &host));
    if partner_stopped.is_some() {
        do_not_follow(&mut engine);
    }
    let link = |partner: &super::config::Partner| {
        let report = group.report(&partner.name);
        Link {
            name: partner.name.clone(),
            address: partner.address.authority(),
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
        partner_stopped,
        partner_removed,
        no_source: group.no_source(),
        test_failover: group.picture_uris(),
        in_memory: config.in_memory,
        policy: config.policy,
        engine,
        links: config.partners.iter().map(link).collect(),
    }
}

/// A copy does not follow a stopped source, even if it has not yet been silent for long enough to notice.
fn do_not_follow(engine: &mut Value) {
    if engine["role"] != "destination" {
        // A source learns about it when it asks.
        return;
    }
    for peer in engine["peers"].as_array_mut().into_iter().flatten() {
        if peer["phase"] == "ContinuouslyReplicating" {
            peer["phase"] = "WaitingForSource".into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_of_a_stopped_source_does_not_follow_it() {
        let after = |role: &str, phase: &str| {
            let mut engine = json!({ "role": role, "peers": [{ "phase": phase }] });
            do_not_follow(&mut engine);
            engine["peers"][0]["phase"].as_str().unwrap().to_owned()
        };
        assert_eq!(after("destination", "ContinuouslyReplicating"), "WaitingForSource");
        assert_eq!(after("destination", "Resyncing"), "Resyncing");
        assert_eq!(after("source", "ContinuouslyReplicating"), "ContinuouslyReplicating");
        let mut none = Value::Null;
        do_not_follow(&mut none);
        assert!(none.is_null());
    }
}
