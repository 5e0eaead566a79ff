//! The audit log of this server: its start, its end, and what administrators do. The file servers tell the rest
//! ([`weft_store::audit`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_machine::deadline;
use weft_machine::file::private;
use weft_machine::file::whole::{self, Access};
use weft_store::audit::{self, Audit, Event, Fact, Kind, Losses, Outcome, Rules, Unusable, Who};

use super::error::StartError;
use super::log_ons::Listed;
use crate::Failure;
use crate::admin::Reloaded;
use crate::config::{AuditConfig, LOOK_LIMIT, Plan, key};
use crate::out::path_name;

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

/// The audit log of one run of the server.
pub(super) struct Run {
    pub audit: Audit,
    file: PathBuf,
    /// Keeps the number of lost events that no line tells yet, for the next run.
    untold: Option<PathBuf>,
}

/// The number in an [`Run::untold`], and its end.
const MOST_UNTOLD: usize = 21;
/// The most characters of an audit log's path in the name of its [`Run::untold`].
const MOST_NAME: usize = 100;

/// Opens the audit log, if the configuration has one.
pub(super) fn start(plan: &Plan) -> Result<Option<Run>, StartError> {
    let AuditConfig { file, .. } = &plan.config().audit;
    let Some(file) = file.clone() else { return Ok(None) };
    let rules = Rules { file: file.clone(), wanted: plan.config().audit.wanted() };
    let started = deadline::within(&file, LOOK_LIMIT, move || audit::start(rules));
    let audit = started.unwrap_or_else(|why| Err(Unusable::Open(why.into()))).map_err(|fault| {
        let key = plan.config().sources.named(&key::AUDIT_FILE);
        StartError::Audit { key, file: file.clone(), fault }
    })?;
    let untold = plan.state_dir().map(|state| state.join(untold_name(&file)));
    let run = Run { audit, file, untold };
    run.begin();
    Ok(Some(run))
}

/// The name of the file that keeps the number of lost events of this audit log.
fn untold_name(file: &Path) -> String {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
    let name: Vec<char> = whole.to_string_lossy().chars().map(safe).collect();
    let end = name.get(name.len().saturating_sub(MOST_NAME)..).unwrap_or_default();
    format!("audit-{}.lost", end.iter().collect::<String>())
}

impl Run {
    /// Tells the start, and before it what the last run could not tell.
    fn begin(&self) {
        let lost_before = self.lost_before();
        if let Some(events) = lost_before {
            self.audit.lost_before(events);
        }
        let version = format!("start of weft {}", env!("CARGO_PKG_VERSION"));
        self.audit.tell(command(By::Starter, version, Outcome::Done));
        // A number that cannot be told now either stays where it is.
        if lost_before.is_some() && self.audit.flush(FLUSH) && self.audit.untold().is_none() {
            self.forget();
        }
    }

    /// The number of events that the last run has lost and could not tell.
    fn lost_before(&self) -> Option<u64> {
        let path = self.untold.as_deref()?;
        match private::read(path, MOST_UNTOLD) {
            Ok(read) => {
                let bytes = read?;
                let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
                if number.is_none() {
                    tracing::warn!(
                        "{} does not hold a number: some events are missing in the audit log, and nobody knows how many",
                        path_name(path)
                    );
                }
                number
            }
            Err(e) => {
                tracing::warn!(
                    "{}, the number of events that are missing in the audit log, cannot be read: {e}",
                    path_name(path)
                );
                None
            }
        }
    }

    /// Writes the last lines. If the file cannot say how many events it lacks, the state directory keeps the number for the
    /// next start.
    pub(super) fn end(&self) {
        self.audit.tell(command(By::Starter, "stop".into(), Outcome::Done));
        if !self.audit.flush(FLUSH) {
            tracing::error!("audit log: its last lines are not written: the disk does not answer");
        }
        let Some(Losses { events, why }) = self.audit.untold() else { return self.forget() };
        let kept = match &self.untold {
            Some(path) => match whole::replace(path, format!("{events}\n").as_bytes(), Access::Private) {
                Ok(()) => "the next start tells the number there".to_owned(),
                Err(e) => {
                    format!("the number cannot be kept for the next start either: {}: {e}", path_name(path))
                }
            },
            None => "without a state directory the next start does not tell the number".to_owned(),
        };
        tracing::error!(
            "audit log {}: {events} events are missing at its end: {why}; {kept}",
            path_name(&self.file)
        );
    }

    /// Everything is told. A file that is no number goes as well: the start has warned of it.
    fn forget(&self) {
        let Some(path) = &self.untold else { return };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(
                    "cannot remove {}, so the next start tells its number again: {e}",
                    path_name(path)
                );
            }
            _ => {}
        }
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

    /// A run whose audit log is in this folder, and its state directory, too.
    fn run(folder: &Path) -> Run {
        let file = folder.join("log/audit.jsonl");
        let audit = audit::start(Rules { file: file.clone(), wanted: Wanted::ALL }).unwrap();
        let run = Run { audit, untold: Some(folder.join(untold_name(&file))), file };
        run.begin();
        run
    }

    fn lines(folder: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(folder.join("log/audit.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn what_a_run_cannot_tell_the_next_one_tells_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::create_dir(&log).unwrap();
        let kept = |dir: &Path| {
            let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
            entries.filter(|name| name.to_string_lossy().ends_with(".lost")).collect::<Vec<_>>()
        };
        let first = run(dir.path());
        first.end();
        assert!(kept(dir.path()).is_empty());
        let second = run(dir.path());
        // A folder that is gone stands for a full disk.
        std::fs::remove_dir_all(&log).unwrap();
        for _ in 0..3 {
            second.audit.tell(command(By::Starter, "x".into(), Outcome::Done));
        }
        second.end();
        let [name] = &kept(dir.path())[..] else { panic!("{:?}", kept(dir.path())) };
        assert!(name.to_string_lossy().ends_with("_log_audit.jsonl.lost"), "{name:?}");
        // The start, if it was still in the queue, and the end are lost as well.
        let number: u64 = std::fs::read_to_string(dir.path().join(name)).unwrap().trim().parse().unwrap();
        assert!((4..=5).contains(&number), "{number}");
        // Elsewhere: the thread of the second run, which no end of a process has stopped, would use the folder if it came back.
        let other = tempfile::tempdir().unwrap();
        let log = other.path().join("log");
        std::fs::create_dir(&log).unwrap();
        let name_there = untold_name(&log.join("audit.jsonl"));
        std::fs::copy(dir.path().join(name), other.path().join(name_there)).unwrap();
        let third = run(other.path());
        assert!(kept(other.path()).is_empty(), "it is told");
        third.end();
        let found = lines(other.path());
        assert_eq!((&found[0]["event"], &found[0]["lost"]), (&"lost".into(), &number.into()));
        assert_eq!(found.iter().filter(|line| line["event"] == "lost").count(), 1);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_number_that_is_none_stays_and_is_no_reason_not_to_start() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("log")).unwrap();
        let path = dir.path().join(untold_name(&dir.path().join("log/audit.jsonl")));
        for damaged in ["x\n", "", "123456789012345678901234567890\n"] {
            std::fs::write(&path, damaged).unwrap();
            let run = run(dir.path());
            assert_eq!(run.lost_before(), None, "{damaged:?}");
            assert!(path.exists());
        }
        let long = PathBuf::from(format!("/{}", "\u{e9}".repeat(300)));
        assert_eq!(untold_name(&long).len(), MOST_NAME + "audit-.lost".len());
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
