//! Reads the configuration again while the server runs: `weft reload`, SIGHUP, and commands that change the file.
//!
//! A new configuration is checked, and the folders of new shares are opened, before anything changes; then users and
//! shares are replaced together. Open files of shares that keep their name and their files live on. Keys that a running
//! server cannot change keep their values; the report names them.
//!
//! A file system that does not answer delays a reload by the limit of a look (`crate::config::LOOK_LIMIT`), and not the next one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::lock::Mutex;
use weft_machine::rt;
use weft_store::Share;
use weft_store::audit::Audit;
use weft_store::vfs::VfsId;

use super::announced::Announced;
use super::audit::{self, By, Names};
use super::files::FileServers;
use super::log_ons::{self, Listed, LogOns};
use super::neighbours::{self, Marks};
use super::service::ServiceManager;
use super::status::Subject;
use crate::Failure;
use crate::admin::Reloaded;
use crate::args::Serve;
use crate::config::reference::{self, Effective};
use crate::config::{
    AbsentShare, AnnounceConfig, ConfigError, Looks, PlannedShare, ServeConfig, ShareConfig, ShareSource,
    Sources, TakesEffect,
};
use crate::config_command;
use crate::logging;
use crate::out::{ShellCommand, path_name};
use crate::shares::{self, Described};

/// See the module.
pub(super) struct Reload {
    args: Serve,
    file: Option<PathBuf>,
    log_ons: Option<Arc<LogOns>>,
    files: Option<FileServers>,
    /// The share of replication over SMB.
    door: Option<Share>,
    subject: Arc<Subject>,
    announced: Arc<Announced>,
    audit: Audit,
    manager: ServiceManager,
    /// Held by a reload from its beginning to its end.
    reloading: Mutex<()>,
    /// Held while something is applied.
    current: Mutex<Current>,
}

/// What is served now.
pub(super) struct Current {
    /// The configuration at the start, which keys that need a restart still have.
    pub started: ServeConfig,
    /// The last configuration that was read.
    pub config: ServeConfig,
    pub shares: Vec<Described>,
    /// The marks of its folders; see [`neighbours`].
    pub marks: Option<Marks>,
    /// The users and groups that were last read.
    pub names: Names,
}

/// The parts of a server that a reload changes.
pub(super) struct Changed {
    pub log_ons: Option<Arc<LogOns>>,
    pub files: Option<FileServers>,
    pub door: Option<Share>,
    pub subject: Arc<Subject>,
    pub announced: Arc<Announced>,
    pub audit: Audit,
    pub manager: ServiceManager,
}

/// A new configuration, checked, with everything that may fail done.
struct Prepared {
    config: ServeConfig,
    shares: Vec<PreparedShare>,
    /// The shares whose folders cannot be served.
    absent: Vec<AbsentShare>,
    /// Which folders the server's user may not write, and which wait for a restart or do not answer.
    warnings: Vec<String>,
    looks: Looks,
}

/// A share whose files are open.
enum PreparedShare {
    /// One that is served already: its rules are applied with all others, because they change the files' common state.
    Known(Box<(Described, PlannedShare)>),
    New(Box<Described>),
}

impl PreparedShare {
    fn known(described: &Described, planned: PlannedShare) -> PreparedShare {
        PreparedShare::Known(Box::new((described.clone(), planned)))
    }

    fn apply(self) -> Described {
        match self {
            PreparedShare::Known(known) => known.0.under(&known.1),
            PreparedShare::New(described) => *described,
        }
    }
}

impl Reload {
    pub(super) fn new(args: Serve, changed: Changed, current: Current) -> Reload {
        let Changed { log_ons, files, door, subject, announced, audit, manager } = changed;
        let file = current.config.sources.file().map(Path::to_owned);
        let (reloading, current) = (Mutex::new(()), Mutex::new(current));
        Reload { args, file, log_ons, files, door, subject, announced, audit, manager, reloading, current }
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

    /// What is served, in a few words.
    pub(super) async fn summary(&self) -> String {
        self.subject.summary().await
    }

    /// Reads the users and groups again and applies them. Does not wait for a reload that is reading the configuration, because
    /// the file system of a share may hang: that one reads the users again before it applies anything.
    pub(super) async fn users(&self, by: By) -> Result<(), Failure> {
        let current = &mut *self.current.lock().await;
        let users = self.read_users().await?;
        let served: Vec<Share> = current.shares.iter().map(|described| described.share.clone()).collect();
        log_ons::warn_of_unknown(&served, &users).await;
        self.subject.replace_warnings_of_users(users.warnings.clone());
        let names = Names::of(&users);
        current.names.tell_change(&self.audit, by, &names);
        current.names = names;
        if let Some(files) = &self.files {
            files.replace_users(&users).await;
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
    pub(super) async fn run(&self, by: By) -> Result<Reloaded, Failure> {
        let result = self.apply().await;
        audit::reloaded(&self.audit, by, &result);
        result
    }

    async fn apply(&self) -> Result<Reloaded, Failure> {
        // Only a reload changes the shares and their configuration.
        let _alone = self.reloading.lock().await;
        let (known, started, served) = {
            let current = self.current.lock().await;
            (current.shares.clone(), current.started.clone(), current.config.sources.clone())
        };
        let args = self.args.clone();
        let prepare = move || {
            let requested = config_command::requested(args)?;
            check_not_emptied(&served, &requested.sources)?;
            prepare(requested, &known, &started)
        };
        let prepared = rt::blocking(move || prepare().map_err(|e: Failure| e.to_string())).await?;
        let current = &mut *self.current.lock().await;
        let users = self.read_users().await?;
        let Prepared { config, shares, absent, warnings, looks } = prepared;
        // Nothing fails from here on.
        let apply = || shares.into_iter().map(PreparedShare::apply).collect();
        let shares: Vec<Described> = rt::blocking(apply).await;
        let unlimited = unlimited(&current.shares, &shares, &config);
        if !unlimited.is_empty() {
            rt::blocking(move || unlimited.iter().for_each(Described::end_quota)).await;
        }
        let other_files = files_of(&shares) != files_of(&current.shares);
        let report = Reloaded { warnings, ..report(current, &config, &shares, absent) };
        let served: Vec<Share> = shares.iter().map(|described| described.share.clone()).collect();
        log_ons::warn_of_unknown(&served, &users).await;
        self.subject.replace_warnings_of_users(users.warnings.clone());
        if let Some(files) = &self.files {
            files.replace(served, self.door.clone(), &users).await;
        }
        self.subject.replace_shares(&shares, &report.absent);
        self.manager.status(&self.summary().await);
        let announce =
            AnnounceConfig { name: current.started.announce.name.clone(), ..config.announce.clone() };
        self.announced.clone().tell(ServeConfig { announce, ..config.clone() }, shares.clone()).await;
        if other_files {
            // Otherwise our own marks would look like those of another server.
            current.marks = None;
            let shares = shares.clone();
            current.marks = Some(rt::blocking(move || neighbours::mark(&shares, &looks)).await);
        }
        audit::apply(&self.audit, &config.audit);
        logging::use_format(config.log.format);
        weft_machine::recorder::enable(config.log.slow);
        current.names = Names::of(&users);
        current.shares = shares;
        current.config = config;
        match report.absent.is_empty() {
            true => tracing::info!("{report}"),
            false => tracing::warn!("{report}"),
        }
        Ok(report)
    }
}

/// The file systems of these shares. Another folder at the same path is another one.
fn files_of(shares: &[Described]) -> HashSet<VfsId> {
    shares.iter().map(|described| described.share.vfs.id()).collect()
}

/// Refuses a file that has lost all its keys: an editor, `cp` or a full disk has left it so, and everybody would be cut off.
fn check_not_emptied(served: &Sources, read: &Sources) -> Result<(), Failure> {
    if served.is_empty_file() || !read.is_empty_file() {
        return Ok(());
    }
    let file = read.file().map(path_name).unwrap_or_default();
    let remove =
        ShellCommand::new("weft share remove --config").operand(read.file().unwrap_or(Path::new("")));
    let why = format!(
        "{file} is empty: nothing has changed; write it again. To stop serving a share: {remove} NAME"
    );
    Err(why.into())
}

/// Checks the configuration, and opens the files of new shares. Blocks.
fn prepare(requested: ServeConfig, known: &[Described], started: &ServeConfig) -> Result<Prepared, Failure> {
    let mut plan = requested.check()?;
    let config = plan.config().clone();
    // The state directory and the keys of the start stay in use, wherever the file has them now.
    let (sources, shares) = (config.sources.clone(), config.shares.clone());
    let in_use = ServeConfig { sources, shares, ..started.clone() };
    plan.looks.also_at(in_use.own_paths());
    in_use.silent_files(&plan.looks).next().map_or(Ok(()), Err)?;
    in_use.check_exposure(&plan.looks)?;
    let (volumes, state) = (plan.shared_volumes().cloned(), started.state_dir());
    let mut shares = Vec::new();
    let mut absent = Vec::new();
    let mut waiting = Vec::new();
    for missing in std::mem::take(&mut plan.absent) {
        // The server still has the folder of a share that it serves, and clients may have files open in it. The status
        // says what is wrong.
        let planned = config.shares.iter().find(|share| share.name == missing.name);
        let kept = planned.map(|share| held(known, &config, share, &plan.looks)).transpose()?.flatten();
        match kept {
            Some(kept) => {
                // Another folder has taken its place, which only a restart can open; or nobody knows what is there.
                if missing.needs_restart {
                    waiting.push(missing.why);
                } else {
                    waiting.push(format!(
                        "share {} keeps the folder that it has: {}",
                        missing.name, missing.why
                    ));
                }
                shares.push(kept);
            }
            // Its new path is probably a mistake, and its clients should not pay for it.
            None if known.iter().any(|described| *described.share.name == *missing.name) => {
                return Err(missing.why.into());
            }
            None => absent.push(missing),
        }
    }
    for planned in plan.shares {
        match known.iter().find(|described| is_same(described, &planned, &plan.looks)) {
            Some(described) => {
                described.check_quota(&planned.config)?;
                shares.push(PreparedShare::known(described, planned));
            }
            None if let Some(described) = unmounted(known, &planned, &plan.looks) => {
                described.check_quota(&planned.config)?;
                waiting.push(format!(
                    "share {0} keeps the folder that it has: its file system is not mounted at {1} any more. Mount it again; to \
                     serve the folder that is there now, restart the server",
                    planned.config.name, described.source
                ));
                shares.push(PreparedShare::known(described, planned));
            }
            None => {
                let opened = shares::open_all(std::slice::from_ref(&planned), state.as_deref(), &mut absent)?;
                shares.extend(opened.into_iter().map(|described| PreparedShare::New(Box::new(described))));
            }
        }
    }
    // The volumes are those of the start.
    let shared = known.iter().find(|described| described.share.vfs.kind() == "volumes");
    if let (Some(config), Some(described)) = (volumes, shared) {
        let planned = PlannedShare { config, snapshots: None };
        shares.push(PreparedShare::known(described, planned));
    }
    let warnings = config.warnings(&plan.looks).into_iter().filter(ConfigError::is_of_permission);
    let warnings = waiting.into_iter().chain(warnings.map(|warning| warning.to_string())).collect();
    Ok(Prepared { config, shares, absent, warnings, looks: plan.looks })
}

/// A served share whose folder is no longer at its path, under its new rules.
fn held(
    known: &[Described],
    config: &ServeConfig,
    share: &ShareConfig,
    looks: &Looks,
) -> Result<Option<PreparedShare>, ConfigError> {
    let ShareSource::Folder(path) = &share.source else { return Ok(None) };
    let is_held =
        |described: &&Described| share.is_named(&described.share.name) && described.was_at(path, looks);
    let Some(described) = known.iter().find(is_held) else { return Ok(None) };
    let share = ShareConfig { acts: config.forced_user(share)?, ..share.clone() };
    let planned = PlannedShare { config: share, snapshots: described.snapshots() };
    Ok(Some(PreparedShare::known(described, planned)))
}

/// The served share whose file system was mounted at the path of a planned one, and is not any more. Clients would write to the disk
/// below.
fn unmounted<'a>(known: &'a [Described], planned: &PlannedShare, looks: &Looks) -> Option<&'a Described> {
    let path = planned.config.source.folder()?;
    let is_unmounted = |described: &&Described| {
        planned.config.is_named(&described.share.name) && described.is_unmounted(path, looks)
    };
    known.iter().find(is_unmounted)
}

/// The shares that have no quota any more, because they were taken out of the file or got another folder. Shares that stay end
/// their quotas themselves, and another share of the same folder keeps its own.
fn unlimited(before: &[Described], after: &[Described], config: &ServeConfig) -> Vec<Described> {
    let has_ended = |described: &&Described| {
        let is_same = |other: &Described| other.share.vfs.id() == described.share.vfs.id();
        // One that cannot be served now comes back with its quota.
        let waits = |share: &ShareConfig| {
            let folder = share.source.folder();
            let is_served = after.iter().any(|other| share.is_named(&other.share.name));
            !is_served && share.quota.is_some() && folder.is_some() && described.path() == folder
        };
        described.has_quota() && !after.iter().any(is_same) && !config.shares.iter().any(waits)
    };
    before.iter().filter(has_ended).cloned().collect()
}

/// Whether a planned share is one that is served, with the same files.
fn is_same(described: &Described, planned: &PlannedShare, looks: &Looks) -> bool {
    let is_named = planned.config.is_named(&described.share.name);
    is_named
        && match &planned.config.source {
            // Also if another folder took its place: then the server holds the old one.
            ShareSource::Folder(path) => described.is_at(path, looks),
            // The size needs a restart; another ramdisk would be empty.
            ShareSource::Ram { .. } => described.share.vfs.kind() == "ram",
            ShareSource::Volumes => false,
        }
}

/// What a reload changes, and what it cannot change.
fn report(
    current: &Current,
    config: &ServeConfig,
    after: &[Described],
    absent: Vec<AbsentShare>,
) -> Reloaded {
    let before = by_name(&current.shares);
    let after = by_name(after);
    let without = |list: &BTreeMap<&str, &Described>, other: &BTreeMap<&str, &Described>| -> Vec<String> {
        list.keys().filter(|name| !other.contains_key(*name)).map(|name| (*name).to_owned()).collect()
    };
    let [started, was, is] = [&current.started, &current.config, config].map(by_key);
    let configured: BTreeMap<&str, &ShareConfig> =
        config.shares.iter().map(|share| (share.name.as_str(), share)).collect();
    let (mut changed, mut restart) = (BTreeSet::new(), BTreeSet::new());
    let differs = |old: &BTreeMap<String, Effective>, key: &str| {
        old.get(key).map(|one| &one.value) != is.get(key).map(|one| &one.value)
    };
    for (key, one) in was.iter().chain(&is) {
        let Some(share) = one.share.as_deref().filter(|_| one.takes_effect == TakesEffect::Reload) else {
            continue;
        };
        if before.contains_key(share) && after.contains_key(share) && differs(&was, key) {
            changed.insert(share.to_owned());
        }
    }
    for (key, one) in started.iter().chain(&is) {
        let waits = match one.share.as_deref() {
            _ if one.takes_effect == TakesEffect::Reload => false,
            None => differs(&started, key),
            // A share that is gone needs nothing any more, and one without its folder needs that.
            Some(share) if absent.iter().any(|absent| absent.name == share) => false,
            Some(share) => match (is.get(key), configured.get(share)) {
                (Some(one), Some(config)) if one.is_source() => {
                    !after.get(share).is_some_and(|described| is_at_source(described, &config.source))
                }
                // A share that came later has the defaults until the restart.
                (Some(one), Some(_)) => {
                    started.get(key).map_or(!one.is_default, |started| started.value != one.value)
                }
                _ => false,
            },
        };
        if waits {
            // Of a volume that comes or goes, the volume is named.
            let volume = match started.contains_key(key) && is.contains_key(key) {
                true => None,
                false => key.strip_suffix(".read_only").filter(|_| one.share.is_none()),
            };
            restart.insert(volume.unwrap_or(key).to_owned());
        }
    }
    Reloaded {
        added: without(&after, &before),
        removed: without(&before, &after),
        changed: changed.into_iter().collect(),
        restart: restart.into_iter().collect(),
        absent,
        warnings: Vec::new(),
    }
}

fn by_name(shares: &[Described]) -> BTreeMap<&str, &Described> {
    shares.iter().map(|described| (&*described.share.name, described)).collect()
}

fn by_key(config: &ServeConfig) -> BTreeMap<String, Effective> {
    reference::effective(config).into_iter().map(|one| (one.key.clone(), one)).collect()
}

/// Whether the files of a share are where its configuration says.
fn is_at_source(described: &Described, source: &ShareSource) -> bool {
    match source {
        // Another folder is opened at once.
        ShareSource::Folder(_) => true,
        ShareSource::Ram { size_bytes } => described.source == shares::source_of_ram(*size_bytes),
        ShareSource::Volumes => described.share.vfs.kind() == "volumes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_store::rules::ActsAs;

    use crate::args::{Args, Command};

    /// A configuration file in a folder of its own, with folders to serve.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Host {
            let host = Host(tempfile::tempdir().unwrap());
            for folder in ["a", "b", "state"] {
                std::fs::create_dir(host.0.path().join(folder)).unwrap();
            }
            host
        }

        /// The arguments of a server with this configuration.
        fn write(&self, text: &str) -> Serve {
            let file = self.0.path().join("weft.toml");
            std::fs::write(&file, text).unwrap();
            let line = ["weft", "serve", "--config", file.to_str().unwrap()];
            match Args::of_line(line).unwrap().command {
                Command::Serve(args) => *args,
                _ => unreachable!(),
            }
        }

        /// What a server that starts with this configuration serves.
        fn start(&self, text: &str) -> Current {
            let args = self.write(text);
            let started = config_command::requested(args).unwrap();
            let Prepared { config, shares, .. } = prepare(started.clone(), &[], &started).unwrap();
            let shares = shares.into_iter().map(PreparedShare::apply).collect();
            Current { started, config, shares, marks: None, names: Names::default() }
        }

        fn prepare(&self, current: &Current, text: &str) -> Result<Prepared, Failure> {
            let requested = config_command::requested(self.write(text))?;
            check_not_emptied(&current.config.sources, &requested.sources)?;
            prepare(requested, &current.shares, &current.started)
        }

        fn reload(&self, current: &mut Current, text: &str) -> Reloaded {
            let Prepared { config, shares, absent, .. } = self.prepare(current, text).unwrap();
            let shares: Vec<Described> = shares.into_iter().map(PreparedShare::apply).collect();
            let report = report(current, &config, &shares, absent);
            (current.config, current.shares) = (config, shares);
            report
        }
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_prepared_changes_nothing_until_it_is_applied() {
        let host = Host::new();
        let current = host.start("state_dir = 'state'\n[shares.a]\npath = 'a'\nread_only = true\n");
        let vfs = current.shares[0].share.vfs.clone();
        assert!(!vfs.is_tidied());
        let prepared = host.prepare(&current, "state_dir = 'state'\n[shares.a]\npath = 'a'\n").unwrap();
        assert!(!vfs.is_tidied(), "the users may still be unreadable");
        let applied: Vec<_> = prepared.shares.into_iter().map(PreparedShare::apply).collect();
        assert!(vfs.is_tidied() && !applied[0].share.vfs.is_read_only());
        assert_eq!(applied[0].share.vfs.id(), vfs.id());
    }

    #[test]
    fn what_needs_a_restart_is_named_until_then() {
        let host = Host::new();
        let server = "state_dir = 'state'\n[listeners]\nsmb_port = 0\n";
        let mut current = host.start(&format!("{server}[shares.a]\npath = 'a'\n[shares.r]\nram = '1M'\n"));
        let text = "state_dir = 'state'\n[shares.a]\npath = 'a'\ncompress = true\nread_only = true\n\
                    [shares.b]\npath = 'b'\ndfs_links = { x = ['//h/s'] }\n[shares.r]\nram = '2M'\n";
        let restart =
            named(&["listeners.smb_port", "shares.a.compress", "shares.b.dfs_links", "shares.r.ram"]);
        let first = host.reload(&mut current, text);
        let (added, changed) = (named(&["b"]), named(&["a"]));
        assert_eq!(first, Reloaded { added, changed, restart: restart.clone(), ..Reloaded::default() });
        let second = host.reload(&mut current, text);
        assert_eq!(second, Reloaded { restart, ..Reloaded::default() });
        // Other files are opened at once, also those of a ramdisk; what is as at the start needs nothing.
        let text = format!("{server}[shares.a]\nram = '1M'\n[shares.r]\npath = 'b'\ncompress = false\n");
        let third = host.reload(&mut current, &text);
        let (removed, changed) = (named(&["b"]), named(&["a", "r"]));
        assert_eq!(third, Reloaded { removed, changed, ..Reloaded::default() });
        assert_eq!(current.shares[0].share.vfs.kind(), "ram");
        assert_eq!(host.reload(&mut current, &text), Reloaded::default());
    }

    /// The limit of the kernel's project stayed when a share was taken out of the file. The kernel that runs tests has no
    /// projects, so the count of the folder shows that a quota has ended.
    #[test]
    fn a_quota_ends_with_its_share_and_another_share_keeps_its_own() {
        let host = Host::new();
        let file = |shares: &[(&str, &str, &str)]| {
            let table = |(name, path, quota): &(&str, &str, &str)| {
                let quota = if quota.is_empty() { String::new() } else { format!("quota = '{quota}'\n") };
                format!("[shares.{name}]\npath = '{path}'\n{quota}")
            };
            format!("state_dir = 'state'\n{}", shares.iter().map(table).collect::<String>())
        };
        let limited = &[("a", "a", "1G"), ("b", "b", "1G")];
        for (after, ended) in [
            (&[("b", "b", "1G")][..], vec!["a"]),
            (&[("b", "b", "2G"), ("c", "a", "3G")], vec!["a"]),
            (&[("b", "b", "1G"), ("c", "a", "")], vec!["a"]),
            (&[("a", "b", "1G"), ("b", "a", "2G")], vec!["a", "b"]),
            (&[("b", "b", ""), ("a", "a", "1G")], vec![]),
        ] {
            let mut current = host.start(&file(limited));
            let before = current.shares.clone();
            let prepared = host.prepare(&current, &file(after)).unwrap();
            let shares: Vec<_> = prepared.shares.into_iter().map(PreparedShare::apply).collect();
            let unlimited = unlimited(&before, &shares, &prepared.config);
            let names: Vec<_> = unlimited.iter().map(|one| &*one.share.name).collect();
            assert_eq!(names, ended, "{after:?}");
            unlimited.iter().for_each(Described::end_quota);
            for (name, _, quota) in after.iter().filter(|(_, _, quota)| !quota.is_empty()) {
                let served = shares.iter().find(|described| &*described.share.name == *name);
                let Some(limited) = served.and_then(|served| served.share.vfs.quota()) else { continue };
                assert_eq!(
                    limited.usage().limit_bytes >> 30,
                    quota[..1].parse::<u64>().unwrap(),
                    "{name}, {after:?}"
                );
            }
            (current.config, current.shares) = (prepared.config, shares);
        }
    }

    /// It acted as the server from then on, which may be root.
    #[test]
    fn a_share_whose_folder_is_gone_acts_as_its_user_still() {
        if !weft_store::is_root() {
            // Only root can act as another user.
            return;
        }
        let host = Host::new();
        let text =
            "state_dir = 'state'\n[shares.a]\npath = 'a'\nforce_user = 'nobody'\n[shares.b]\npath = 'b'\n";
        let mut current = host.start(text);
        std::fs::remove_dir(host.0.path().join("a")).unwrap();
        assert_eq!(host.reload(&mut current, text), Reloaded::default());
        let a = current.shares.iter().find(|described| &*described.share.name == "a").unwrap();
        assert!(matches!(a.share.rules.acts, ActsAs::User(_)), "{:?}", a.share.rules.acts);
    }

    #[test]
    fn an_emptied_file_is_no_configuration_and_one_without_shares_is() {
        let host = Host::new();
        let text = "state_dir = 'state'\n[shares.a]\npath = 'a'\n";
        let mut current = host.start(text);
        for emptied in ["", "\n\n", "# state_dir = 'state'\n  # nothing\n"] {
            let refused = host.prepare(&current, emptied).err().unwrap().to_string();
            let says = ["weft.toml is empty: nothing has changed", "weft share remove --config ", " NAME"];
            assert!(says.iter().all(|part| refused.contains(part)), "{refused}");
        }
        // `weft share remove` leaves a table, so the last share can go.
        assert_eq!(host.reload(&mut current, "[shares]\n").removed, ["a"]);
        let refused = host.prepare(&current, "").err().unwrap().to_string();
        assert!(refused.contains("is empty"), "{refused}");
        // A server that has started with such a file has lost nothing.
        let mut current = host.start("# later\n");
        assert_eq!(host.reload(&mut current, "# still later\n"), Reloaded::default());
        assert_eq!(host.reload(&mut current, text).added, ["a"]);
    }

    #[test]
    fn a_volume_that_comes_or_goes_needs_a_restart() {
        let host = Host::new();
        let server = |volumes: &str| {
            format!(
                "state_dir = 'state'\n[replication]\nenabled = true\n[shares.a]\npath = 'a'\n[volumes]\n{volumes}"
            )
        };
        let mut current = host.start(&server("v = {}\nw = {}\n"));
        let report = host.reload(&mut current, &server("w.read_only = true\nx = {}\n"));
        assert_eq!(report.restart, ["volumes.v", "volumes.w.read_only", "volumes.x"]);
    }

    #[test]
    fn a_state_directory_that_is_still_in_use_is_not_served() {
        let host = Host::new();
        let current = host.start("state_dir = 'state'\n[shares.a]\npath = 'a'\n");
        std::fs::create_dir(host.0.path().join("other")).unwrap();
        let served = "state_dir = 'other'\n[shares.a]\npath = 'a'\n[shares.state]\npath = 'state'\n";
        let refused = host.prepare(&current, served).err().unwrap().to_string();
        assert!(refused.contains("the users' password hashes in it"), "{refused}");
    }
}
