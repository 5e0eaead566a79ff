//! The audit log of this server: its start, its end, and what administrators do. The file servers tell the rest
//! ([`weft_store::audit`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use weft_machine::deadline;
use weft_store::audit::{self, Audit, Event, Fact, Kind, Outcome, Rules, Unusable, Who};

use super::error::StartError;
use super::log_ons::Listed;
use crate::Failure;
use crate::admin::Reloaded;
use crate::config::{AuditConfig, LOOK_LIMIT, Plan, key};

/// How long the end of the server waits for the last lines, on a disk that hangs.
const FLUSH: Duration = Duration::from_secs(5);

/// Who administers the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// The process that has sent SIGHUP; the system does not say which.
    Signal,
    /// A user of this host, at the admin socket.
    User(u32),
    /// The one who has started the server.
    Starter,
}

/// Opens the audit log, if the configuration has one.
pub(super) fn start(plan: &Plan) -> Result<Audit, StartError> {
    let AuditConfig { file, .. } = &plan.config().audit;
    let Some(file) = file.clone() else { return Ok(Audit::default()) };
    let rules = Rules { file: file.clone(), wanted: plan.config().audit.wanted() };
    let started = deadline::within(&file, LOOK_LIMIT, move || audit::start(rules));
    let audit = started.unwrap_or_else(|why| Err(Unusable::Open(why.into()))).map_err(|fault| {
        let key = plan.config().sources.named(&key::AUDIT_FILE);
        StartError::Audit { key, file, fault }
    })?;
    let version = format!("start of weft {}", env!("CARGO_PKG_VERSION"));
    audit.tell(command(By::Starter, version, Outcome::Done));
    Ok(audit)
}

/// Writes the last lines.
pub(super) fn end(audit: &Audit) {
    audit.tell(command(By::Starter, "stop".into(), Outcome::Done));
    if !audit.flush(FLUSH) {
        tracing::error!("audit log: its last lines are not written: the disk does not answer");
    }
}

/// A new configuration is in use. The file is opened anew, for logrotate.
pub(super) fn apply(audit: &Audit, config: &AuditConfig) {
    audit.set_wanted(config.wanted());
    audit.reopen();
}

/// Tells of a reload.
pub(super) fn reloaded(audit: &Audit, by: By, result: &Result<Reloaded, Failure>) {
    if !audit.is_on() {
        return;
    }
    audit.tell(match result {
        Ok(Reloaded { added, removed, changed, .. }) => {
            let event = command(by, "reload".into(), Outcome::Done);
            let event = event.with(Fact::Added(added.clone())).with(Fact::Removed(removed.clone()));
            event.with(Fact::Changed(changed.clone()))
        }
        Err(e) => command(by, "reload".into(), Outcome::Failed(e.to_string())),
    });
}

/// Tells of another command, which has ended like this.
pub(super) fn commanded<T, E: Display>(audit: &Audit, by: By, what: String, result: &Result<T, E>) {
    if audit.is_on() {
        let outcome = match result {
            Ok(_) => Outcome::Done,
            Err(e) => Outcome::Failed(e.to_string()),
        };
        audit.tell(command(by, what, outcome));
    }
}

/// The names of users and groups, with the groups of each user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names(BTreeMap<String, Vec<String>>);

impl Names {
    /// The names in a list.
    pub(super) fn of(listed: &Listed) -> Names {
        let users = listed.users.iter().map(|user| (user.name.clone(), user.groups.clone()));
        let groups = listed.groups.iter().map(|group| (format!("@{group}"), Vec::new()));
        Names(users.chain(groups).collect())
    }

    /// Tells how the names have changed; a new password is no change of names.
    pub(super) fn tell_change(&self, audit: &Audit, by: By, after: &Names) {
        if !audit.is_on() {
            return;
        }
        let without = |list: &Names, other: &Names| {
            list.0.keys().filter(|name| !other.0.contains_key(*name)).cloned().collect::<Vec<_>>()
        };
        let differs =
            |(name, groups): &(&String, &Vec<String>)| after.0.get(*name).is_some_and(|now| now != *groups);
        let changed = self.0.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        let event = command(by, "users".into(), Outcome::Done);
        let event = event.with(Fact::Added(without(after, self))).with(Fact::Removed(without(self, after)));
        audit.tell(event.with(Fact::Changed(changed)));
    }
}

fn command(by: By, what: String, outcome: Outcome) -> Event {
    let (client, uid) = match by {
        By::Signal => ("signal", None),
        By::User(uid) => ("admin socket", Some(uid)),
        By::Starter => ("local", Some(rustix::process::getuid().as_raw())),
    };
    let who = Who { uid, client: Some(client.into()), ..Who::default() };
    Event::now(Kind::Admin, outcome, who).with(Fact::Command(what))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use weft_smb::auth::Secret;
    use weft_smb::server::User;
    use weft_store::audit::{FIELDS, Wanted};

    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/audit.md");

    #[test]
    fn the_reference_has_every_field_and_every_event() {
        for field in FIELDS {
            assert!(
                REFERENCE.contains(&format!("\n| `{field}` | ")),
                "docs/audit.md lacks the field {field}"
            );
        }
        for kind in Kind::ALL {
            assert!(
                REFERENCE.contains(&format!("\n| `{}` | ", kind.name())),
                "docs/audit.md lacks {}",
                kind.name()
            );
        }
    }

    /// What is told of a change of users.
    fn told(before: &Listed, after: &Listed) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.jsonl");
        let audit = audit::start(Rules { file: file.clone(), wanted: Wanted::ALL }).unwrap();
        Names::of(before).tell_change(&audit, By::User(7), &Names::of(after));
        assert!(audit.flush(Duration::from_secs(60)));
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    }

    #[test]
    fn changes_of_users_and_groups_are_told_by_name() {
        let user = |name: &str, groups: &[&str]| User {
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..User::new(name, Secret::password("x"))
        };
        let listed = |users: Vec<User>, groups: &[&str]| Listed {
            users,
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Listed::default()
        };
        let before = listed(vec![user("alice", &[]), user("bob", &["staff"])], &["staff"]);
        let after = listed(vec![user("alice", &["staff"]), user("carol", &[])], &["staff", "guests"]);
        let line = told(&before, &after);
        assert_eq!((&line["event"], &line["command"]), (&"admin".into(), &"users".into()));
        assert_eq!((&line["client"], &line["uid"]), (&"admin socket".into(), &7.into()));
        assert_eq!(line["added"], serde_json::json!(["@guests", "carol"]));
        assert_eq!(line["removed"], serde_json::json!(["bob"]));
        assert_eq!(line["changed"], serde_json::json!(["alice"]));
    }
}
