//! Changes a configuration file in place: its comments and its order stay.
//!
//! A change is checked before the file is replaced: the new text must be a configuration without errors.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml_edit::{Array, DocumentMut, Item, Key, Table, TableLike, Value, value};
use weft_machine::file::regular;
use weft_machine::file::whole::{self, Access, folder_of};
use weft_store::rights::Principal;

use super::share::ShareConfig;
use super::{BadFile, ConfigError, ServeConfig, ShareSource, file};
use crate::out::{ShellCommand, path_name};
use crate::size;

/// The text of a new file.
const HEADER: &str = "# The configuration of weft serve. `weft config reference` describes all keys.\n";

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EditError {
    #[error(transparent)]
    File(#[from] BadFile),
    /// The text would be no configuration.
    #[error("the file stays as it was, because the change would make it wrong: {0}")]
    Changed(BadFile),
    /// The configuration would be wrong, at a position that the file need not have.
    #[error("the file stays as it was, because the change would make it wrong: {0}")]
    Config(#[from] ConfigError),
    #[error("{}: {source}", path_name(path))]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: there is already a share {name}; choose another name, or change that share ({} --help tells how)", path_name(path), ShellCommand::new("weft share set").operand(name))]
    Exists { path: PathBuf, name: String },
    #[error("{}: a configuration file cannot name it, because it is not UTF-8: rename it", path_name(.0))]
    NotUtf8(PathBuf),
    #[error("{} exists: name another file, or remove it first", path_name(.0))]
    Taken(PathBuf),
    #[error("{}: there is no folder {}; create it: {}", path_name(path), path_name(folder), ShellCommand::new("mkdir -p").operand(folder))]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{}: it has no share {name}; it has {there}", path_name(path))]
    Missing { path: PathBuf, name: String, there: String },
    #[error("{}: share {name} does not set {key}; it sets {there}", path_name(path))]
    NotSet { path: PathBuf, name: String, key: String, there: String },
    #[error("{0:?} is not a key: write one such as quota or nfs.squash")]
    NoKey(String),
    #[error("{key} is chosen when a share is added; to choose another: {}, then weft share add", ShellCommand::new("weft share remove").operand(name))]
    Source { name: String, key: String },
    #[error("{}: another program has changed it meanwhile", path_name(.0))]
    Overtaken(PathBuf),
}

/// A configuration file that is about to change.
pub(crate) struct Edit {
    /// With links resolved: the file itself is replaced, not a link to it.
    path: PathBuf,
    document: DocumentMut,
    config: ServeConfig,
    is_new: bool,
    /// The name of the share that is added.
    added: Option<String>,
    /// Held from reading to writing: changes of the files of this folder take turns.
    _turn: File,
}

impl Edit {
    /// Opens a file; a missing one is created by [`Edit::save`].
    pub(crate) fn open(path: &Path) -> Result<Edit, EditError> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let failed = |source| EditError::Io { path: path.clone(), source };
        // The new text replaces what is at the path, and a device or a pipe would be gone.
        regular::check(&path).map_err(|irregular| failed(irregular.into()))?;
        let turn = turn(&path, PATIENCE).map_err(failed)?;
        let (text, is_new) = match file::text(&path) {
            Ok(text) => (text, false),
            Err(bad) if bad.is_missing() => (HEADER.to_owned(), true),
            Err(bad) => return Err(bad.into()),
        };
        let config = file::parse(&path, &text)?;
        // Two parsers of one grammar; the first one has better messages.
        let document = text.parse().map_err(|e: toml_edit::TomlError| EditError::Io {
            path: path.clone(),
            source: io::Error::new(io::ErrorKind::InvalidData, e.to_string()),
        })?;
        Ok(Edit { path, document, config, is_new, added: None, _turn: turn })
    }

    /// Adds a share of a folder.
    pub(crate) fn add_share(&mut self, share: &ShareConfig) -> Result<(), EditError> {
        let (path, name) = (self.path.clone(), share.name.clone());
        if self.config.shares.iter().any(|known| known.is_named(&name)) {
            return Err(EditError::Exists { path, name });
        }
        let mut table = Table::new();
        if let ShareSource::Folder(folder) = &share.source {
            let text = folder.to_str().ok_or_else(|| EditError::NotUtf8(folder.clone()))?;
            table.insert("path", value(text));
        }
        let lists = [("read", &share.rights.read), ("write", &share.rights.write)];
        for (key, list) in lists.into_iter().filter_map(|(key, list)| Some((key, list.as_ref()?))) {
            table.insert(key, value(list.iter().map(Principal::to_string).collect::<Array>()));
        }
        if let Some(bytes) = share.quota {
            table.insert("quota", value(size::exact(bytes)));
        }
        let flags = [("read_only", share.read_only), ("encrypt", share.encrypt)];
        for (key, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
            table.insert(key, value(true));
        }
        let mut before = "\n".to_owned();
        if self.document.is_empty() {
            // The text of a file without keys counts as the end of the file.
            before.insert_str(0, self.document.trailing().as_str().unwrap_or_default());
            self.document.set_trailing("");
        }
        table.decor_mut().set_prefix(before);
        let shares = self.document.entry("shares").or_insert_with(implicit);
        match shares {
            Item::Table(shares) => shares.insert(&name, Item::Table(table)),
            // An inline table of shares.
            Item::Value(Value::InlineTable(shares)) => {
                shares.insert(&name, table.into_inline_table().into());
                None
            }
            _ => None,
        };
        self.added = Some(name);
        Ok(())
    }

    /// Sets and removes keys of a share.
    pub(crate) fn set_share(&mut self, name: &str, changes: &[Change]) -> Result<(), EditError> {
        let name = self.share(name)?.name.clone();
        let path = self.path.clone();
        let shares = self.document.get_mut("shares").and_then(Item::as_table_like_mut);
        let Some(share) = shares.and_then(|shares| shares.get_mut(&name)).and_then(Item::as_table_like_mut)
        else {
            return Ok(());
        };
        for Change { key, to } in changes {
            let parts = Key::parse(key).map_err(|_| EditError::NoKey(key.clone()))?;
            let parts: Vec<&str> = parts.iter().map(Key::get).collect();
            if let ["path" | "ram" | "volumes"] = parts[..] {
                return Err(EditError::Source { name, key: key.clone() });
            }
            match to {
                Some(value) if put(share, &parts, value.toml()) => {}
                Some(_) => return Err(EditError::NoKey(key.clone())),
                None if take(share, &parts) => {}
                None => {
                    let there = share.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>().join(", ");
                    return Err(EditError::NotSet { path, name, key: key.clone(), there });
                }
            }
        }
        Ok(())
    }

    /// The text of the file, with the changes.
    pub(crate) fn text(&self) -> String {
        self.document.to_string()
    }

    /// What the file will contain.
    pub(crate) fn changed(&self) -> Result<ServeConfig, EditError> {
        file::parse(&self.path, &self.text()).map_err(|bad| EditError::Changed(bad.without_positions()))
    }

    /// A share as the file has it before the changes.
    pub(crate) fn share(&self, name: &str) -> Result<&ShareConfig, EditError> {
        let known = self.config.shares.iter().find(|share| share.is_named(name));
        known.ok_or_else(|| {
            let names: Vec<_> = self.config.shares.iter().map(|share| share.name.as_str()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            EditError::Missing { path: self.path.clone(), name: name.to_owned(), there }
        })
    }

    /// The folder of a share that has a quota.
    pub(crate) fn limited_folder(&self, name: &str) -> Option<PathBuf> {
        let share = self.config.shares.iter().find(|share| share.is_named(name) && share.quota.is_some())?;
        share.source.folder().map(Path::to_owned)
    }

    /// Removes a share.
    pub(crate) fn remove_share(&mut self, name: &str) -> Result<(), EditError> {
        let key = self.share(name)?.name.clone();
        if let Some(shares) = self.document.get_mut("shares").and_then(Item::as_table_like_mut) {
            shares.remove(&key);
            // A file without a key looks as if somebody had emptied it by mistake, and a server does not take that over.
            let is_last = shares.is_empty() && self.document.len() == 1;
            if let Some(table) =
                self.document.get_mut("shares").and_then(Item::as_table_mut).filter(|_| is_last)
            {
                table.set_implicit(false);
                table.set_dotted(false);
            }
        }
        Ok(())
    }

    /// Whether there was no such file.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Replaces the file; before that, checks what it will contain, and warns about shares that bypass each other's
    /// rules.
    pub(crate) fn save(self) -> Result<PathBuf, EditError> {
        let (text, config) = (self.text(), self.changed()?);
        // The folders of the other shares may be missing for the moment.
        let looks = config.look();
        let of_added = self.added.as_deref().and_then(|name| config.folder_error(name, &looks));
        let error = config.errors(&looks).find(|error| !error.is_of_folder());
        match of_added.or(error) {
            Some(error) => Err(error.into()),
            None => {
                for warning in config.warnings(&looks) {
                    tracing::warn!("{warning}");
                }
                let (path, text) = (self.path, text.as_bytes());
                let written = match self.is_new {
                    // Somebody may have created it meanwhile.
                    true => whole::create(&path, text, Access::Inherited),
                    false => whole::replace(&path, text, Access::Inherited),
                };
                match written {
                    Ok(()) => Ok(path),
                    Err(source) => Err(EditError::Io { path, source }),
                }
            }
        }
    }
}

/// A change of a key of a share, which may be dotted (`nfs.squash`).
pub(crate) struct Change {
    /// The key.
    pub key: String,
    /// Its value; `None` removes it.
    pub to: Option<NewValue>,
}

/// A value to write.
pub(crate) enum NewValue {
    /// Users and groups.
    Principals(Vec<Principal>),
    /// Bytes.
    Size(u64),
    /// Yes or no.
    Flag(bool),
    /// What somebody has typed: a value of TOML, or else a string without its quotes.
    Typed(String),
}

impl NewValue {
    fn toml(&self) -> Value {
        match self {
            NewValue::Principals(list) => list.iter().map(Principal::to_string).collect::<Array>().into(),
            NewValue::Size(bytes) => size::exact(*bytes).into(),
            NewValue::Flag(flag) => (*flag).into(),
            NewValue::Typed(text) => text.parse().unwrap_or_else(|_| text.into()),
        }
    }
}

/// Sets a key; what stands around its old value stays. A missing table above it is created. Returns whether a value can stand
/// there.
fn put(table: &mut dyn TableLike, key: &[&str], mut value: Value) -> bool {
    match key {
        [] => false,
        [last] => {
            match table.get_mut(last).and_then(Item::as_value_mut) {
                Some(old) => {
                    *value.decor_mut() = old.decor().clone();
                    *old = value;
                }
                None => drop(table.insert(last, Item::Value(value))),
            }
            true
        }
        [first, rest @ ..] => {
            let below =
                table.entry(first).or_insert_with(|| Item::Value(Value::InlineTable(Default::default())));
            below.as_table_like_mut().is_some_and(|below| put(below, rest, value))
        }
    }
}

/// Removes a key; returns whether it was there.
fn take(table: &mut dyn TableLike, key: &[&str]) -> bool {
    match key {
        [] => false,
        [last] => table.remove(last).is_some(),
        [first, rest @ ..] => {
            let below = table.get_mut(first).and_then(Item::as_table_like_mut);
            below.is_some_and(|below| take(below, rest))
        }
    }
}

/// Writes an earlier text of a file again, if the file has the later one.
pub(crate) fn revert(path: &Path, later: &str, earlier: &str) -> Result<(), EditError> {
    let failed = |source| EditError::Io { path: path.to_owned(), source };
    let _turn = turn(path, PATIENCE).map_err(failed)?;
    if file::text(path)? != later {
        return Err(EditError::Overtaken(path.to_owned()));
    }
    whole::replace(path, earlier.as_bytes(), Access::Inherited).map_err(failed)
}

/// How long a change waits for others. Every program that can read the folder can lock it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Locks the folder of a file, which is created if missing.
fn turn(path: &Path, patience: Duration) -> io::Result<File> {
    let folder = folder_of(path);
    std::fs::create_dir_all(folder)?;
    let (folder, until) = (File::open(folder)?, Instant::now() + patience);
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let text =
                    "another program has locked the folder of the file (flock): try again when it has ended";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// Creates a file, as a whole or not at all.
///
/// # Errors
/// It exists, or it cannot be created.
pub(crate) fn create(path: &Path, text: &str) -> Result<(), EditError> {
    let folder = folder_of(path);
    if !folder.exists() {
        return Err(EditError::NoFolder { path: path.to_owned(), folder: folder.to_owned() });
    }
    if path.symlink_metadata().is_ok() {
        return Err(EditError::Taken(path.to_owned()));
    }
    whole::create(path, text.as_bytes(), Access::Inherited).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => EditError::Taken(path.to_owned()),
        _ => EditError::Io { path: path.to_owned(), source },
    })
}

fn implicit() -> Item {
    let mut table = Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use weft_store::rights::Rights;

    use super::*;

    fn share(name: &str, folder: &Path) -> ShareConfig {
        ShareConfig::new(name, ShareSource::Folder(folder.to_owned()))
    }

    /// A folder beside the configuration.
    fn served_in(dir: &Path) -> PathBuf {
        let folder = dir.join("served");
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn shares_come_and_go_and_the_rest_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let served = served_in(dir.path());
        let path = dir.path().join("etc/weft.toml");
        let mut edit = Edit::open(&path).unwrap();
        let rights =
            Rights { read: None, write: Some(vec![Principal::Group("staff".into()), Principal::Everyone]) };
        edit.add_share(&ShareConfig { rights, read_only: true, ..share("team", &served) }).unwrap();
        edit.save().unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o644);
        let folder = served.display();
        let table =
            format!("\n[shares.team]\npath = \"{folder}\"\nwrite = [\"@staff\", \"*\"]\nread_only = true\n");
        assert_eq!(first, format!("{HEADER}{table}"));

        let commented = first.replace("[shares.team]", "# The team.\n[shares.team] # of the third floor")
            + "\n# Tuning\n[limits]\ncores = 1 # enough\n";
        std::fs::write(&path, &commented).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut edit = Edit::open(&path).unwrap();
        edit.add_share(&share("Old things", &served)).unwrap();
        edit.save().unwrap();
        let second = std::fs::read_to_string(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        assert!(second.contains("# The team.\n[shares.team] # of the third floor"), "{second}");
        assert!(
            second.contains("cores = 1 # enough") && second.contains("[shares.\"Old things\"]"),
            "{second}"
        );
        let mut edit = Edit::open(&path).unwrap();
        edit.remove_share("old THINGS").unwrap();
        edit.save().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), commented);
    }

    #[test]
    fn a_new_file_replaces_none_and_names_the_folder_that_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.toml");
        create(&path, "# new\n").unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o644);
        let said = create(&path, "# other\n").unwrap_err().to_string();
        assert!(said.ends_with("weft.toml exists: name another file, or remove it first"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "# new\n");
        let missing = dir.path().join("no pe");
        let said = create(&missing.join("weft.toml"), "").unwrap_err().to_string();
        assert!(said.ends_with(&format!("create it: mkdir -p '{}'", missing.display())), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn keys_of_a_share_change_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.toml");
        let typed = |key: &str, value: &str| Change {
            key: key.to_owned(),
            to: Some(NewValue::Typed(value.to_owned())),
        };
        let to = |key: &str, to| Change { key: key.to_owned(), to: Some(to) };
        let unset = |key: &str| Change { key: key.to_owned(), to: None };
        let edited = |text: &str, changes: &[Change]| -> Result<String, EditError> {
            std::fs::write(&path, text).unwrap();
            let mut edit = Edit::open(&path)?;
            assert_eq!(edit.text(), text);
            edit.set_share("TEAM", changes)?;
            edit.save()?;
            Ok(std::fs::read_to_string(&path).unwrap())
        };
        let text = "# Ours\nlisteners.nfs_port = 2049\n[shares.team] # first\nram = \"1M\" # small\nread_only = true # for now\n";
        let rights = vec![Principal::Group("staff".into()), Principal::User("alice".into())];
        let changes = [
            to("read_only", NewValue::Flag(false)),
            to("read", NewValue::Principals(rights)),
            typed("hide_unreadable", "true"),
            typed("nfs.squash", "all_squash"),
            typed("nfs.anonuid", "65534"),
        ];
        let changed = edited(text, &changes).unwrap();
        assert_eq!(
            changed,
            text.replace("= true #", "= false #")
                + "read = [\"@staff\", \"alice\"]\nhide_unreadable = true\nnfs = { squash = \"all_squash\", anonuid = 65534 }\n"
        );
        let changes = [unset("read"), unset("nfs.squash"), typed("nfs.secure", "false")];
        let changed = edited(&changed, &changes).unwrap();
        assert!(!changed.contains("read = [") && !changed.contains("squash"), "{changed}");
        let nfs = changed.lines().last().unwrap_or_default().replace(' ', "");
        assert_eq!(nfs, "nfs={anonuid=65534,secure=false}");
        // Every other form of a table.
        let inline = "[shares]\nteam = { ram = \"1M\" } # here\n";
        let changed = edited(inline, &[typed("encrypt", "true")]).unwrap();
        assert_eq!(changed, "[shares]\nteam = { ram = \"1M\" , encrypt = true } # here\n");
        let dotted =
            "listeners.nfs_port = 2049\nshares.team.ram = \"1M\"\nshares.team.nfs.secure = true # why\n";
        let changed = edited(dotted, &[typed("nfs.secure", "false")]).unwrap();
        assert_eq!(changed, dotted.replace("= true", "= false"));
        // What would be wrong changes nothing.
        let refused = |change: Change| {
            let said = edited(text, &[change]).unwrap_err().to_string();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            said
        };
        for (change, says) in [
            (
                typed("quotaa", "1G"),
                "weft.toml: shares.team.quotaa: unknown key; did you mean shares.team.quota?",
            ),
            (
                typed("hide_unreadable", "maybe"),
                "shares.team.hide_unreadable: write true or false, not a string",
            ),
            (typed("ram.x", "1"), "\"ram.x\" is not a key"),
            (
                typed("ram", "2M"),
                "ram is chosen when a share is added; to choose another: weft share remove team",
            ),
            (typed("a b", "1"), "\"a b\" is not a key"),
            (unset("quota"), "share team does not set quota; it sets ram, read_only"),
            (unset("nfs.squash"), "share team does not set nfs.squash"),
        ] {
            let said = refused(change);
            assert!(said.contains(says), "{says}: {said}");
        }
        let mut edit = Edit::open(&path).unwrap();
        let said = edit.set_share("other", &[]).unwrap_err().to_string();
        assert!(said.ends_with("it has no share other; it has team"), "{said}");
        // An undone change leaves what somebody else has written meanwhile.
        drop(edit);
        revert(&path, text, "[limits]\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[limits]\n");
        let said = revert(&path, text, text).unwrap_err().to_string();
        assert!(said.ends_with("another program has changed it meanwhile"), "{said}");
    }

    #[test]
    fn a_folder_that_stays_locked_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.toml");
        let first = turn(&path, Duration::ZERO).unwrap();
        assert_eq!(turn(&path, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(first);
        turn(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_change_that_would_be_wrong_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let served = served_in(dir.path());
        let path = dir.path().join("weft.toml");
        let text = "[shares]\na = { ram = \"1M\" }\n";
        std::fs::write(&path, text).unwrap();
        let refused = |change: &dyn Fn(&mut Edit) -> Result<(), EditError>| {
            let mut edit = Edit::open(&path).unwrap();
            let said = change(&mut edit).and_then(|()| edit.save().map(drop)).unwrap_err().to_string();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            said
        };
        let said = refused(&|edit| edit.add_share(&share("A", &served)));
        assert!(said.contains("already a share A"), "{said}");
        let said = refused(&|edit| edit.add_share(&share("b", Path::new("/none/x"))));
        assert!(said.contains("cannot serve /none/x"), "{said}");
        let said = refused(&|edit| edit.add_share(&share("b:c", &served)));
        assert!(said.contains("b:c"), "{said}");
        // Clients could change the file.
        let said = refused(&|edit| edit.add_share(&share("b", dir.path())));
        assert!(said.contains("they could change what is served"), "{said}");
        let said = refused(&|edit| edit.remove_share("b"));
        assert!(said.contains("no share b; it has a"), "{said}");
        std::fs::write(&path, "[shares.a]\nramm = \"1M\"\n").unwrap();
        assert!(matches!(Edit::open(&path), Err(EditError::File(_))));
        // A link stays one.
        std::fs::write(&path, text).unwrap();
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut edit = Edit::open(&link).unwrap();
        edit.add_share(&share("b", &served)).unwrap();
        edit.save().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert!(std::fs::read_to_string(&path).unwrap().contains("[shares.b]"));
    }
}
