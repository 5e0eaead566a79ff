//! Reads the configuration again while the server runs: `weft reload`, SIGHUP, and commands that change the file.
//!
//! A new configuration is checked, and the folders of new shares are opened, before anything changes; then users and
//! shares are replaced together. Open files of shares that keep their name and their files live on. Keys that a running
//! server cannot change keep their values; the report names them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::lock::Mutex;
use weft_machine::rt;
use weft_store::Share;

use super::files::FileServers;
use super::log_ons::{self, Listed, LogOns};
use super::neighbours::{self, Marks};
use super::status::Subject;
use crate::Failure;
use crate::admin::Reloaded;
use crate::args::Serve;
use crate::config::reference::{self, Effective};
use crate::config::{PlannedShare, ServeConfig, ShareSource};
use crate::config_command;
use crate::shares::{self, Described};

/// The keys of a share that a running server can change.
const CHANGEABLE: [&str; 7] =
    ["path", "read", "write", "read_only", "encrypt", "hide_unreadable", "snapshots"];

/// See the module.
pub(super) struct Reload {
    args: Serve,
    file: Option<PathBuf>,
    log_ons: Option<Arc<LogOns>>,
    files: Option<FileServers>,
    /// The share of replication over SMB.
    door: Option<Share>,
    subject: Arc<Subject>,
    current: Mutex<Current>,
}

/// What is served now.
pub(super) struct Current {
    pub config: ServeConfig,
    pub shares: Vec<Described>,
    /// The marks of its folders; see [`neighbours`].
    pub marks: Option<Marks>,
}

/// The parts of a server that a reload changes.
pub(super) struct Changed {
    pub log_ons: Option<Arc<LogOns>>,
    pub files: Option<FileServers>,
    pub door: Option<Share>,
    pub subject: Arc<Subject>,
}

/// A new configuration, checked, with everything that may fail done.
struct Prepared {
    config: ServeConfig,
    shares: Vec<Described>,
}

impl Reload {
    pub(super) fn new(args: Serve, changed: Changed, current: Current) -> Reload {
        let Changed { log_ons, files, door, subject } = changed;
        let file = current.config.sources.file().map(Path::to_owned);
        Reload { args, file, log_ons, files, door, subject, current: Mutex::new(current) }
    }

    /// Whether the server was started with this configuration file.
    pub(super) fn uses(&self, file: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.file.as_deref().is_some_and(|own| real(own) == real(file))
    }

    /// Whether it was started with a configuration file.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the users and groups again and applies them. Waits for a reload that runs: the last change counts.
    pub(super) async fn users(&self) -> Result<(), Failure> {
        let _one_at_a_time = self.current.lock().await;
        let users = self.read_users().await?;
        if let Some(files) = &self.files {
            files.smb.replace_users(&users.users, &users.groups).await;
        }
        tracing::info!("read the users and groups again");
        Ok(())
    }

    /// The user whom the configuration names.
    pub(super) fn configured_user(&self) -> Option<&str> {
        self.log_ons.as_ref()?.configured()
    }

    async fn read_users(&self) -> Result<Listed, Failure> {
        let Some(log_ons) = self.log_ons.clone() else { return Ok(Listed::default()) };
        Ok(rt::blocking(move || log_ons.now()).await?)
    }

    /// Reads everything again and applies it. On an error nothing has changed.
    pub(super) async fn run(&self) -> Result<Reloaded, Failure> {
        let current = &mut *self.current.lock().await;
        let (args, known) = (self.args.clone(), current.shares.clone());
        let prepared = rt::blocking(move || prepare(args, &known).map_err(|e| e.to_string())).await?;
        let users = self.read_users().await?;
        let Prepared { config, shares } = prepared;
        let is_among =
            |list: &[Described], one: &Described| list.iter().any(|other| other.source == one.source);
        let other_folders = shares.iter().any(|share| !is_among(&current.shares, share))
            || current.shares.iter().any(|share| !is_among(&shares, share));
        let report = report(&current.config, &config, &current.shares, &shares);
        let served: Vec<Share> = shares.iter().map(|described| described.share.clone()).collect();
        log_ons::warn_of_unknown(&served, &users).await;
        if let Some(files) = &self.files {
            files.replace(served, self.door.clone(), &users).await;
        }
        self.subject.replace_shares(&shares);
        if other_folders {
            // Otherwise our own marks would look like those of another server.
            current.marks = None;
            current.marks = Some(neighbours::mark(&shares));
        }
        current.shares = shares;
        // Keys that need a restart are compared with what the server was started with.
        current.config.shares = config.shares;
        tracing::info!("{report}");
        Ok(report)
    }
}

/// Reads and checks the configuration, and opens the files of new shares. Blocks.
fn prepare(args: Serve, known: &[Described]) -> Result<Prepared, Failure> {
    let plan = config_command::requested(args)?.check()?;
    let mut shares = Vec::new();
    for planned in &plan.shares {
        match known.iter().find(|described| is_same(described, planned)) {
            Some(described) => shares.push(described.under(planned)),
            None => shares.extend(shares::open(std::slice::from_ref(planned))?),
        }
    }
    // The volumes are those of the start.
    if let Some(config) = plan.shared_volumes()
        && let Some(described) = known.iter().find(|described| described.share.vfs.kind() == "volumes")
    {
        shares.push(described.under(&PlannedShare { config: config.clone(), snapshots: None }));
    }
    Ok(Prepared { config: plan.config().clone(), shares })
}

/// Whether a planned share is one that is served, with the same files.
fn is_same(described: &Described, planned: &PlannedShare) -> bool {
    let is_named = planned.config.is_named(&described.share.name);
    is_named
        && match &planned.config.source {
            // Also if another folder took its place: then the server holds the old one.
            ShareSource::Folder(path) => {
                shares::source_of_folder(path) == described.source && described.is_at(path)
            }
            // The size needs a restart; another ramdisk would be empty.
            ShareSource::Ram { .. } => described.share.vfs.kind() == "ram",
            ShareSource::Volumes => false,
        }
}

/// What a reload changes, and what it cannot change.
fn report(old: &ServeConfig, new: &ServeConfig, before: &[Described], after: &[Described]) -> Reloaded {
    let named = |list: &[Described], name: &str| list.iter().any(|described| &*described.share.name == name);
    let without = |list: &[Described], other: &[Described]| -> Vec<String> {
        let names = list.iter().map(|described| described.share.name.to_string());
        names.filter(|name| !named(other, name)).collect()
    };
    let (was, is) = (reference::effective(old), reference::effective(new));
    let differs = |one: &&Effective| {
        was.iter().find(|other| other.key == one.key).is_none_or(|other| other.value != one.value)
    };
    let gone = was.iter().filter(|one| !is.iter().any(|other| other.key == one.key));
    let changed: Vec<&str> = is.iter().filter(differs).chain(gone).map(|one| one.key.as_str()).collect();
    let of_share = |key: &str| key.starts_with("shares.");
    let is_changeable = |key: &str| {
        let last = key.rsplit('.').next().unwrap_or_default();
        of_share(key) && (CHANGEABLE.contains(&last) || key.contains(".nfs."))
    };
    let mut restart: Vec<String> =
        changed.iter().filter(|key| !is_changeable(key)).map(|&key| key.into()).collect();
    // A share that comes or goes brings its defaults.
    let (added, removed) = (without(after, before), without(before, after));
    restart.retain(|key| {
        !added.iter().chain(&removed).any(|name| is_of(key, name) && is_default(&was, &is, key))
    });
    let mut altered: Vec<String> = after
        .iter()
        .map(|described| described.share.name.to_string())
        .filter(|name| {
            named(before, name) && changed.iter().any(|key| is_of(key, name) && is_changeable(key))
        })
        .collect();
    altered.sort();
    restart.sort();
    restart.dedup();
    Reloaded { added, removed, changed: altered, restart }
}

fn is_of(key: &str, share: &str) -> bool {
    key.strip_prefix("shares.").is_some_and(|rest| {
        rest.strip_prefix(&*crate::config::key::part(share)).is_some_and(|rest| rest.starts_with('.'))
    })
}

/// Whether a key has its default wherever it exists.
fn is_default(was: &[Effective], is: &[Effective], key: &str) -> bool {
    was.iter().chain(is).filter(|one| one.key == key).all(|one| one.origin == "default")
}
