//! Which groups the rights on shares name: groups of `weft group`, those of the system, or none; and which users do not exist.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use weft_machine::nss;
use weft_store::rights::{Principal, folded};

use crate::config::{ServeConfig, ShareConfig};
use crate::out::ShellCommand;
use crate::users::store::Store;

/// How long the system may take to answer for all groups.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a group of rights is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A group of `weft group`.
    Own,
    /// A group of the system, with its gid.
    System(u32),
    /// A group of the system, which only a server that runs as root uses.
    SystemOfRoot(u32),
    /// There is no such group.
    Unknown,
    /// The users of the state directory or the system did not answer.
    Unanswered(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Own => f.write_str("a group of weft group"),
            Kind::System(gid) => write!(f, "a group of the system, gid {gid}"),
            Kind::SystemOfRoot(gid) => {
                write!(f, "a group of the system, gid {gid}, if the server runs as root")
            }
            Kind::Unknown => f.write_str("no such group"),
            Kind::Unanswered(why) => write!(f, "not known: {why}"),
        }
    }
}

impl Kind {
    /// For programs.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Kind::Own => "weft",
            Kind::System(_) | Kind::SystemOfRoot(_) => "system",
            Kind::Unknown => "unknown",
            Kind::Unanswered(_) => "unanswered",
        }
    }
}

/// The groups that the rights of a configuration name, by these names. Nothing is read if there are none. `state` is
/// the state directory, if not the configured one.
pub(crate) fn of_rights(config: &ServeConfig, state: Option<&Path>) -> BTreeMap<String, Kind> {
    let mut names: BTreeMap<String, Kind> = BTreeMap::new();
    for principal in config.shares.iter().flat_map(|share| share.rights.principals()) {
        if let Principal::Group(name) = principal {
            names.insert(name.clone(), Kind::Unknown);
        }
    }
    if names.is_empty() {
        return names;
    }
    let state = state.map(Path::to_owned).or_else(|| config.state_dir());
    let own = match state.map(|state| Store::of(&state).read()).transpose() {
        Ok(listing) => {
            let groups = listing.flatten().map(|listing| listing.groups).unwrap_or_default();
            groups.keys().map(|group| folded(group.as_str())).collect::<HashSet<String>>()
        }
        Err(why) => {
            let why = why.to_string();
            names.values_mut().for_each(|kind| *kind = Kind::Unanswered(why.clone()));
            return names;
        }
    };
    names.iter_mut().filter(|(name, _)| own.contains(&folded(name))).for_each(|(_, kind)| *kind = Kind::Own);
    if config.identity.system_users != Some(false) {
        let others = names.iter().filter(|(_, kind)| **kind != Kind::Own).map(|(name, _)| name.clone());
        let is_used = config.identity.uses_system();
        let gid_of = move |name: &str| {
            let of_gid = |gid| if is_used { Kind::System(gid) } else { Kind::SystemOfRoot(gid) };
            Ok(nss::gid_of(name)?.map_or(Kind::Unknown, of_gid))
        };
        names.extend(of_system(others.collect(), gid_of));
    }
    names
}

/// The users whom the rights of these shares name, and whom neither `weft user` nor the system has. Users of the realm
/// cannot be listed, so nobody is unknown where tickets are accepted.
pub(crate) fn unknown_users<'a>(
    config: &ServeConfig,
    shares: impl Iterator<Item = &'a ShareConfig>,
    state: Option<&Path>,
) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = shares
        .flat_map(|share| share.rights.principals())
        .filter_map(|principal| match principal {
            Principal::User(name) => Some(name.clone()),
            Principal::Group(_) | Principal::Everyone => None,
        })
        .collect();
    if names.is_empty() || config.smb.keytab.is_some() {
        return BTreeSet::new();
    }
    let state = state.map(Path::to_owned).or_else(|| config.state_dir());
    // The command that uses the file reports why it cannot be read.
    let Ok(listing) = state.map(|state| Store::of(&state).read()).transpose() else { return BTreeSet::new() };
    let own = listing.flatten().map(|listing| listing.users).unwrap_or_default();
    let of_variable = || std::env::var("USER").unwrap_or_else(|_| "weft".to_owned());
    let beside = config.user.clone().or_else(|| own.is_empty().then(of_variable));
    let known: HashSet<String> =
        own.keys().map(|name| folded(name.as_str())).chain(beside.as_deref().map(folded)).collect();
    names.retain(|name| !known.contains(&folded(name)));
    if config.identity.system_users == Some(false) {
        return names;
    }
    let uid_of = |name: &str| Ok(nss::user_of(name)?.map_or(Kind::Unknown, |entry| Kind::System(entry.id)));
    let found = of_system(names.into_iter().collect(), uid_of);
    found.into_iter().filter(|(_, kind)| *kind == Kind::Unknown).map(|(name, _)| name).collect()
}

/// What to do about such a user.
pub(crate) fn note_unknown_users(names: &BTreeSet<String>) {
    for name in names {
        let add = ShellCommand::new("weft user add").operand(name);
        note!("{}: no such user; to add the user: {add}", crate::out::name(name));
    }
}

/// Asks on a thread of its own, because a directory service may never answer.
fn of_system(
    names: Vec<String>,
    ask: impl Fn(&str) -> std::io::Result<Kind> + Send + 'static,
) -> BTreeMap<String, Kind> {
    let silent = || Kind::Unanswered("the system's user database (NSS) did not answer".to_owned());
    let mut found: BTreeMap<String, Kind> = names.iter().map(|name| (name.clone(), silent())).collect();
    let (answers, all) = mpsc::channel();
    std::thread::spawn(move || {
        for name in names {
            let failed = |e| Kind::Unanswered(format!("the system's user database (NSS) failed: {e}"));
            let kind = ask(&name).unwrap_or_else(failed);
            // Nobody waits for an answer that comes too late.
            if answers.send((name, kind)).is_err() {
                return;
            }
        }
    });
    while let Ok((name, kind)) = all.recv_timeout(TIMEOUT) {
        found.insert(name, kind);
    }
    found
}

#[cfg(test)]
mod tests {
    use weft_store::rights::Rights;

    use super::*;
    use crate::config::ShareSource;
    use crate::users::Name;

    fn config(read: &[&str], system_users: Option<bool>) -> ServeConfig {
        let read = read.iter().map(|name| name.parse().unwrap()).collect();
        let mut config = ServeConfig::default();
        config.identity.system_users = system_users;
        config.shares.push(ShareConfig {
            rights: Rights { read: Some(read), write: None },
            ..ShareConfig::new("data", ShareSource::Ram { size_bytes: 1 << 20 })
        });
        config
    }

    #[test]
    fn users_whom_nobody_has_are_unknown() {
        let state = tempfile::tempdir().unwrap();
        let of = |config: &ServeConfig| {
            unknown_users(config, config.shares.iter(), Some(state.path())).into_iter().collect::<Vec<_>>()
        };
        let mut config = config(&["@staff", "*", "Alice", "daemon", "no such user"], Some(true));
        assert_eq!(of(&config), ["Alice", "no such user"], "every host has a user daemon");
        config.user = Some("alice".into());
        assert_eq!(of(&config), ["no such user"]);
        config.identity.system_users = Some(false);
        assert_eq!(of(&config), ["daemon", "no such user"]);
        config.smb.keytab = Some("/k".into());
        assert!(of(&config).is_empty(), "it may be one of the realm");
    }

    #[test]
    fn own_groups_come_before_those_of_the_system() {
        let state = tempfile::tempdir().unwrap();
        let daemon = nss::gid_of("daemon").unwrap().expect("every host has this group");
        let of = |system_users| {
            let config = config(&["@Staff", "@daemon", "@no such group", "alice", "*"], system_users);
            of_rights(&config, Some(state.path()))
        };
        let kind = |kinds: &BTreeMap<String, Kind>, name: &str| kinds.get(name).cloned();
        let kinds = of(Some(true));
        assert_eq!(kind(&kinds, "daemon"), Some(Kind::System(daemon)));
        assert_eq!(kind(&kinds, "no such group"), Some(Kind::Unknown));
        assert_eq!(kinds.len(), 3);
        assert_eq!(kind(&of(Some(false)), "daemon"), Some(Kind::Unknown));
        let store = Store::of(state.path());
        for group in ["staff", "DAEMON"] {
            store.add_to_group(&group.parse::<Name>().unwrap(), &[]).unwrap();
        }
        let kinds = of(Some(true));
        assert_eq!(kind(&kinds, "Staff"), Some(Kind::Own));
        assert_eq!(kind(&kinds, "daemon"), Some(Kind::Own));
        assert!(of_rights(&config(&["alice"], None), Some(state.path())).is_empty());
    }
}
