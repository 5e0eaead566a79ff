//! `weft share`: adds, changes, removes and lists the shares of a configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use weft_store::quota;
use weft_store::rights::{Principal, Rights};

use crate::Failure;
use crate::args::{Share, ShareAdd, ShareCommand, ShareSet};
use crate::config::edit::{self, Change, Edit, NewValue};
use crate::config::{self, Looks, ServeConfig, ShareConfig, ShareSource, find};
use crate::groups::{self, Kind};
use crate::misuse::Misuse;
use crate::out::path_name;
use crate::reload::{self, NotTaken};
use crate::size::human;

/// Runs the command.
pub(crate) fn run(args: Share) -> Result<ExitCode, Failure> {
    let (path, state) = (file(args.config)?, args.state_dir);
    match args.command {
        ShareCommand::Add(args) => {
            let name = args.name.clone();
            let saved = add(&path, args)?;
            note_unknown_users(&saved, &name, state.as_deref())?;
            take_over(&saved, &name, state.as_deref())?;
        }
        ShareCommand::Set(args) => {
            // A file that is missing is an error, and its folder is not created.
            config::read(&path)?;
            let changed = set(&path, args)?;
            note_unknown_users(&changed.file, &changed.name, state.as_deref())?;
            changed.taken_over(state.as_deref())?;
        }
        ShareCommand::Remove(args) => {
            // A file that is missing is an error, and its folder is not created.
            config::read(&path)?;
            let saved = remove(&path, &args.name)?;
            say!("removed share {} from {}; its files stay", args.name, path_name(&saved))?;
            reload::servers_of(&saved, state.as_deref())?;
        }
        ShareCommand::List(args) => {
            let config = config::read(&path)?;
            list(&config, &groups::of_rights(&config, state.as_deref()), args.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A user may be added later, so an unknown one is no error.
fn note_unknown_users(file: &Path, name: &str, state: Option<&Path>) -> Result<(), Failure> {
    let config = config::read(file)?;
    let share = config.shares.iter().filter(|share| share.is_named(name));
    groups::note_unknown_users(&groups::unknown_users(&config, share, state));
    Ok(())
}

/// The file that is changed.
fn file(named: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let no_file = || Misuse::new("neither XDG_CONFIG_HOME nor HOME is set: name the file with --config FILE");
    Ok(named.or_else(find::default_file).ok_or_else(no_file)?)
}

/// Removes a share and the limit of its folder. Returns the file that was changed.
fn remove(path: &Path, name: &str) -> Result<PathBuf, Failure> {
    let mut edit = Edit::open(path)?;
    let folder = edit.limited_folder(name);
    edit.remove_share(name)?;
    let config = edit.changed()?;
    let saved = edit.save()?;
    let Some(folder) = folder else { return Ok(saved) };
    if Looks::at([&folder]).is_silent(&folder) {
        note!("the quota of its folder may still apply: its file system does not answer");
    } else if let Err(e) = enforce(&folder, others_quota(&config, name, &folder)) {
        // The folder may be gone, and its limit with it.
        note!("the quota of its folder may still apply: {e}");
    }
    Ok(saved)
}

/// Returns the file that was changed.
fn add(path: &Path, args: ShareAdd) -> Result<PathBuf, Failure> {
    // In the file, a relative path would refer to the file's folder.
    let folder = std::path::absolute(&args.path)?;
    let given = |list: Vec<Principal>| (!list.is_empty()).then_some(list);
    let share = ShareConfig {
        rights: Rights { read: given(args.read), write: given(args.write) },
        read_only: args.read_only,
        encrypt: args.encrypt,
        quota: args.quota,
        ..ShareConfig::new(args.name, ShareSource::Folder(folder))
    };
    let mut edit = Edit::open(path)?;
    edit.add_share(&share)?;
    let kept = match share.source.folder() {
        Some(folder) => {
            limit(folder, others_quota(&edit.changed()?, &share.name, folder), (None, share.quota))?
        }
        None => None,
    };
    let is_new = edit.is_new();
    let saved = edit.save()?;
    if is_new {
        note!("{} did not exist: made", path_name(&saved));
    }
    say!("added share {} to {}", share.name, path_name(&saved))?;
    if share.quota.is_some() {
        say_who_keeps(kept)?;
    }
    Ok(saved)
}

/// Who keeps a quota: the kernel, as that of a project, or else the server.
fn say_who_keeps(project: Option<u32>) -> Result<(), Failure> {
    match project {
        Some(id) => say!("the kernel keeps its quota, as that of project {id}")?,
        None => say!("the server keeps its quota: it counts the files")?,
    }
    Ok(())
}

/// A share that was changed in its file.
struct ShareChanged {
    file: PathBuf,
    name: String,
    /// The text of the file before and after.
    texts: (String, String),
    folder: PathBuf,
    /// The quota of its folder before and after.
    quotas: (Option<u64>, Option<u64>),
    /// That of the folder's other shares.
    others: Option<u64>,
}

/// The smallest quota of the other shares of a folder.
fn others_quota(config: &ServeConfig, name: &str, folder: &Path) -> Option<u64> {
    let others = config.shares.iter().filter(|share| !share.is_named(name));
    let limited: Vec<_> = others.filter_map(|share| Some((share.source.folder()?, share.quota?))).collect();
    let looks = Looks::at(limited.iter().map(|(path, _)| *path).chain([folder]));
    let place = looks.place(folder)?;
    limited.iter().filter(|(path, _)| looks.place(path) == Some(place)).map(|(_, quota)| *quota).min()
}

/// Lets the kernel keep a quota of a share if it can; returns the project, which has only one limit for all shares of a folder.
fn limit(
    folder: &Path,
    others: Option<u64>,
    (before, quota): (Option<u64>, Option<u64>),
) -> Result<Option<u32>, Failure> {
    // Whether there is a folder, and answers, is reported by `Edit::save`.
    if before == quota || !Looks::at([folder]).is_dir(folder) {
        return Ok(None);
    }
    let least = quota.into_iter().chain(others).min();
    Ok(enforce(folder, least).map_err(|e| format!("cannot set the quota: {e}"))?)
}

/// Lets the kernel keep this quota of a folder, or none.
fn enforce(folder: &Path, quota: Option<u64>) -> std::io::Result<Option<u32>> {
    match quota {
        Some(bytes) => quota::let_the_kernel(folder, bytes),
        None => quota::release(folder).map(|()| None),
    }
}

/// Changes keys of a share.
fn set(path: &Path, args: ShareSet) -> Result<ShareChanged, Failure> {
    let change = |key: &str, to| Change { key: key.to_owned(), to: Some(to) };
    let principals =
        |key, list: Vec<Principal>| (!list.is_empty()).then(|| change(key, NewValue::Principals(list)));
    let typed = args.key.into_iter().map(|(key, value)| Change { key, to: Some(NewValue::Typed(value)) });
    let changes: Vec<Change> = [
        principals("read", args.read),
        principals("write", args.write),
        args.quota.map(|bytes| change("quota", NewValue::Size(bytes))),
        args.read_only.map(|flag| change("read_only", NewValue::Flag(flag))),
        args.encrypt.map(|flag| change("encrypt", NewValue::Flag(flag))),
    ]
    .into_iter()
    .flatten()
    .chain(typed)
    .chain(args.unset.into_iter().map(|key| Change { key, to: None }))
    .collect();
    let mut edit = Edit::open(path)?;
    let (before, quota_before) = (edit.text(), edit.share(&args.name)?.quota);
    edit.set_share(&args.name, &changes)?;
    let config = edit.changed()?;
    let name = edit.share(&args.name)?.name.clone();
    let share = config.shares.iter().find(|share| share.name == name);
    let share = share.ok_or_else(|| format!("share {name} is gone"))?;
    let folder = share.source.folder().map(Path::to_owned).unwrap_or_default();
    let others = others_quota(&config, &name, &folder);
    let (quotas, after) = ((quota_before, share.quota), edit.text());
    let kept = limit(&folder, others, quotas)?;
    let file = match edit.save() {
        Ok(file) => file,
        Err(e) => {
            limit(&folder, others, (quotas.1, quotas.0))?;
            return Err(e.into());
        }
    };
    say!("changed share {name} in {}", path_name(&file))?;
    if quotas.0 != quotas.1 && quotas.1.is_some() {
        say_who_keeps(kept)?;
    }
    Ok(ShareChanged { file, name, texts: (before, after), folder, quotas, others })
}

impl ShareChanged {
    /// Lets the running servers take the change over. If one refuses it, the file becomes what it was.
    fn taken_over(self, state: Option<&Path>) -> Result<(), Failure> {
        let ShareChanged { file, name, texts: (before, after), folder, quotas, others } = self;
        let shown = path_name(&file);
        match reload::servers_of(&file, state) {
            Ok(reports) => {
                let refused = reports.into_iter().find_map(|(pid, report)| {
                    let absent = report.absent.into_iter().find(|absent| absent.name == name)?;
                    (!absent.needs_restart).then_some((pid, absent.why))
                });
                match refused {
                    Some((pid, why)) => Err(format!(
                        "{shown} is changed, but server {pid} does not serve share {name}: {why}"
                    )
                    .into()),
                    None => Ok(()),
                }
            }
            Err(e) => match e.downcast_ref::<NotTaken>() {
                Some(NotTaken { refusals, is_refused: true }) => {
                    edit::revert(&file, &after, &before)?;
                    limit(&folder, others, (quotas.1, quotas.0))?;
                    Err(format!("{shown} is as it was: {refusals}").into())
                }
                _ => Err(e),
            },
        }
    }
}

/// Lets the running servers take a new share over. If one cannot serve it, because it runs as another user than this
/// command, the share is removed from the file again: the line would stay without effect, or in the way of later changes. One
/// that only waits for a restart stays, and is a failure nevertheless: nobody can use it yet.
fn take_over(file: &Path, name: &str, state: Option<&Path>) -> Result<(), Failure> {
    let undo = || -> Result<(), Failure> {
        remove(file, name)?;
        Ok(())
    };
    let shown = path_name(file);
    match reload::servers_of(file, state) {
        Ok(reports) => {
            let refused = reports.into_iter().find_map(|(pid, report)| {
                Some((pid, report.absent.into_iter().find(|absent| absent.name == name)?))
            });
            let Some((pid, absent)) = refused else { return Ok(()) };
            if absent.needs_restart {
                return Err(format!(
                    "share {name} is in {shown}, but server {pid} does not serve it before a restart: {}",
                    absent.why
                )
                .into());
            }
            undo()?;
            reload::servers_of(file, state)?;
            Err(format!("{shown} is as it was, without share {name}: server {pid}: {}", absent.why).into())
        }
        Err(e) => match e.downcast_ref::<NotTaken>() {
            Some(NotTaken { refusals, is_refused: true }) => {
                undo()?;
                Err(format!("{shown} is as it was, without share {name}: {refusals}").into())
            }
            _ => Err(e),
        },
    }
}

/// `kinds` says which groups the rights name.
fn list(config: &ServeConfig, kinds: &BTreeMap<String, Kind>, json: bool) -> Result<(), Failure> {
    let source = |share: &ShareConfig| match &share.source {
        ShareSource::Folder(path) => path_name(path),
        ShareSource::Ram { size_bytes } => format!("ram, {size_bytes} bytes"),
        ShareSource::Volumes => "the volumes".to_owned(),
    };
    let names = |list: &Option<Vec<Principal>>| -> Option<Vec<String>> {
        list.as_ref().map(|list| list.iter().map(Principal::to_string).collect())
    };
    if json {
        let shares = config.shares.iter().map(|share| {
            let kinds: BTreeMap<&str, &str> = share
                .rights
                .groups()
                .filter_map(|name| Some((name, kinds.get(name)?.word())))
                .collect();
            json!({
                "name": share.name, "source": source(share), "read": names(&share.rights.read),
                "write": names(&share.rights.write), "read_only": share.read_only, "encrypt": share.encrypt, "groups": kinds,
                "quota_bytes": share.quota,
            })
        });
        serde_json::to_writer_pretty(&mut crate::out::Stdout, &shares.collect::<Vec<_>>())?;
        say!()?;
        return Ok(());
    }
    let width = config.shares.iter().map(|share| share.name.chars().count()).max().unwrap_or(0);
    for share in &config.shares {
        let mut line = format!("{:width$}  {}", share.name, source(share));
        for (what, list) in [("read", &share.rights.read), ("write", &share.rights.write)] {
            let shown = |principal: &Principal| match principal {
                Principal::Group(name) => match kinds.get(name) {
                    // Weft's own groups are what is meant without a word about it.
                    Some(kind) if *kind != Kind::Own => format!("{principal} ({kind})"),
                    _ => principal.to_string(),
                },
                _ => principal.to_string(),
            };
            if let Some(list) = list.as_ref().map(|list| list.iter().map(shown).collect::<Vec<_>>()) {
                line +=
                    &format!("; {what}: {}", if list.is_empty() { "nobody".into() } else { list.join(", ") });
            }
        }
        if let Some(bytes) = share.quota {
            line += &format!("; quota: {}", human(bytes));
        }
        for (what, is_set) in [("read-only", share.read_only), ("encrypted", share.encrypt)] {
            if is_set {
                line += &format!("; {what}");
            }
        }
        say!("{line}")?;
    }
    Ok(())
}
