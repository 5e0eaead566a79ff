//! Finds the shares that give rights to a user or a group, before that one is removed: on a server that runs as root the
//! name would mean the account or the group of the host from then on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weft_store::rights::{Principal, folded};

use crate::Failure;
use crate::admin::{self, Request};
use crate::config::{self, find};
use crate::out::path_name;

/// # Errors
/// Shares of a configuration file of this state directory name the user or group.
pub(super) fn refuse_if_named(state: &Path, removed: &Principal) -> Result<(), Failure> {
    let mut found = Vec::new();
    for file in files(state)? {
        let config = match config::read(&file) {
            Ok(config) => config,
            Err(bad) => {
                note!("{bad}; whether its shares name {removed} is not known");
                continue;
            }
        };
        let names: Vec<&str> = config
            .shares
            .iter()
            .filter(|share| share.rights.principals().any(|named| is_same(named, removed)))
            .map(|share| share.name.as_str())
            .collect();
        if !names.is_empty() {
            found.push(format!("{} of {}", names.join(", "), path_name(&file)));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let what = match removed {
        Principal::Group(_) => "the group",
        _ => "the account",
    };
    Err(format!(
        "{removed} has rights on shares: {}. Without it, the name means {what} of the host on a server that runs as root: remove it \
         from the shares first, or give --force",
        found.join("; ")
    )
    .into())
}

/// The configuration files of a state directory: those of its running servers, and the default one.
fn files(state: &Path) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut files = BTreeSet::new();
    if let Some(file) = find::default_file().filter(|file| file.exists()) {
        let is_of_state =
            config::read(&file).map_or(true, |config| config.state_dir().as_deref() == Some(state));
        files.extend(is_of_state.then_some(file));
    }
    let answered = |_, answer: Value| {
        files.extend(answer.get("config").and_then(Value::as_str).map(PathBuf::from));
        Ok(())
    };
    admin::ask_each(&admin::servers(state)?, &Request::Status, answered, |pid, e| {
        format!("the server with process number {pid} does not say which shares name it: {e}")
    })?;
    Ok(files)
}

fn is_same(named: &Principal, removed: &Principal) -> bool {
    match (named, removed) {
        (Principal::User(named), Principal::User(removed))
        | (Principal::Group(named), Principal::Group(removed)) => folded(named) == folded(removed),
        _ => false,
    }
}
