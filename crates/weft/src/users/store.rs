//! The file of users and groups, `users.toml` in the state directory.
//!
//! ```toml
//! version = 1
//! [users.alice]
//! nt_hash = "9f86..." # sealed
//! rid = 1482913741 # of the SID; users of earlier versions have none
//! [groups]
//! staff = ["alice"]
//! ```
//!
//! It is readable by its owner only, and replaced as a whole: a reader sees it before or after a change. Comments that
//! an administrator writes into it stay. Writers take turns by a lock on the key's file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table, TomlError, value};
use weft_machine::file::whole::{self, Access, folder_of};
use weft_machine::file::{private, regular};
use weft_machine::random;
use weft_smb::auth::Secret;
use weft_smb::server::CREATED_RIDS;

use super::seal::{KeyFault, SealingKey};
use super::{Name, UnfitName, joined};
use crate::out::{ShellCommand, path_name};
use crate::system_folder::is_system_folder;

const FILE: &str = "users.toml";
/// How the names of its drafts begin, see [`whole`].
const DRAFT: &str = "users.toml.new-";
const KEY_FILE: &str = "users.key";
/// The version that this program writes, and the only one that it reads.
const VERSION: i64 = 1;
/// The longest file in bytes.
const MAX_BYTES: usize = 4 << 20;
/// The most users.
const MAX_USERS: usize = 10_000;
/// How many names a message lists.
const MOST_SHOWN: usize = 10;
/// The most groups.
const MAX_GROUPS: usize = 1_000;
/// What to do about a file that is damaged.
const RESTORE: &str = "restore the file from a backup; if there is none, move it away, and add the users again with `weft user add`";
const HEADER: &str = "# Users and groups of weft serve. `weft user` and `weft group` change this file; comments stay.\n\
                      # The hashes are sealed with users.key: whoever has both files can log on as any user.\n";

/// The users and groups of a state directory.
#[derive(Clone)]
pub(crate) struct Store {
    path: PathBuf,
    key_path: PathBuf,
}

/// All users and groups at one time.
#[derive(Default)]
pub(crate) struct Listing {
    /// The users, with the NT hashes of their passwords; `None` if the hash does not open with the key: then the user
    /// cannot log on.
    pub users: BTreeMap<Name, Option<Secret>>,
    /// The relative ids of those who got one when they were created.
    pub rids: BTreeMap<Name, u32>,
    /// The groups with their members, who are users.
    pub groups: BTreeMap<Name, Vec<Name>>,
    /// What is wrong with the key, if it opens nothing.
    pub key_fault: Option<KeyFault>,
}

impl Listing {
    /// The name of a user as it was given.
    pub(crate) fn user(&self, name: &Name) -> Option<&Name> {
        self.users.get_key_value(name).map(|(name, _)| name)
    }

    /// The users who cannot log on, because their hashes do not open.
    pub(crate) fn locked(&self) -> impl Iterator<Item = &Name> {
        self.users.iter().filter(|(_, secret)| secret.is_none()).map(|(name, _)| name)
    }

    /// The groups of each user who is in any.
    pub(crate) fn groups_by_user(&self) -> BTreeMap<&Name, Vec<&Name>> {
        let mut groups: BTreeMap<&Name, Vec<&Name>> = BTreeMap::new();
        for (group, members) in &self.groups {
            members.iter().for_each(|member| groups.entry(member).or_default().push(group));
        }
        groups
    }
}

/// Why the store cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{}: {source}{}", path_name(path), foreign(path, source))]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path_name(path))]
    Malformed { path: PathBuf, why: String },
    #[error(
        "{}: it has version {found}, and this program knows version {VERSION}: use the weft that wrote it",
        path_name(path)
    )]
    Newer { path: PathBuf, found: i64 },
    /// There were users, and now there is no file.
    #[error(
        "{} is missing, and there were users in it: nothing has changed; restore it from a backup. To remove a user: {} NAME",
        path_name(.0),
        ShellCommand::new("weft user remove").here()
    )]
    Gone(PathBuf),
    /// No hash can be sealed.
    #[error(
        "{}, the key of the users' hashes: {fault}: restore it from a backup. If it is lost, `{}` makes a new one: {user} can log on then, \
         and everybody else after a `weft user passwd` of their own",
        path_name(key),
        ShellCommand::new("weft user passwd --new-key").operand(user.as_str()).here()
    )]
    KeyLost { key: PathBuf, fault: KeyFault, user: Name },
    #[error("there is already a user {0}; to change the password: {try_it}", try_it = ShellCommand::new("weft user passwd").operand(.0.as_str()).here())]
    UserExists(Name),
    #[error("there is no user {0}: {try_it} shows all", try_it = ShellCommand::new("weft user list").here())]
    NoUser(Name),
    #[error("there is no group {0}: {try_it} shows all", try_it = ShellCommand::new("weft group list").here())]
    NoGroup(Name),
    #[error("{user} is not in the group {group}: {try_it} shows its members", try_it = ShellCommand::new("weft group list").here())]
    NoMember { user: Name, group: Name },
    #[error(
        "{0} is already the name of a user, a group, or an account of every Windows host: choose another name"
    )]
    Taken(Name),
    #[error("limit reached: {0}")]
    Full(&'static str),
}

/// What to do if a file of the state directory cannot be opened because that, or where it would be, is another user's.
fn foreign(path: &Path, source: &io::Error) -> String {
    let folder = path.ancestors().find(|above| above.is_dir());
    let owner = folder.and_then(|folder| Some((folder, folder.metadata().ok()?.uid())));
    let own = rustix::process::geteuid().as_raw();
    match owner.filter(|(_, owner)| source.kind() == io::ErrorKind::PermissionDenied && *owner != own) {
        None => String::new(),
        Some((folder, owner)) => format!(
            "; the folder {} belongs to user {owner}, and this process runs as user {own}: run the command as that user or as root, name \
             another folder with --state-dir{}",
            path_name(folder),
            remedy(path, folder, own)
        ),
    }
}

/// How root gives the user of the server a state directory: only that, never a folder above it.
fn remedy(path: &Path, folder: &Path, own: u32) -> String {
    match path.parent() {
        Some(state) if state != folder => {
            let make = ShellCommand::new("install -d -m 700").option("-o", own.to_string()).operand(state);
            format!(", or make one for the user of the server, as root: {make}")
        }
        Some(_) if !is_system_folder(folder) => {
            let give = ShellCommand::new("chown -R").operand(format!("{own}:")).operand(folder);
            format!(", or give it to the user of the server, as root: {give}")
        }
        _ => String::new(),
    }
}

impl Store {
    /// The store of a state directory, which need not exist.
    pub(crate) fn of(state: &Path) -> Store {
        Store { path: state.join(FILE), key_path: state.join(KEY_FILE) }
    }

    /// What it contains; `None` if there is no such file.
    pub(crate) fn read(&self) -> Result<Option<Listing>, StoreError> {
        let Some(document) = self.document()? else { return Ok(None) };
        let key = self.key()?;
        let listing = self.listing(&document, key.as_ref().ok())?;
        Ok(Some(Listing { key_fault: key.err(), ..listing }))
    }

    fn key(&self) -> Result<Result<SealingKey, KeyFault>, StoreError> {
        SealingKey::existing(&self.key_path).map_err(|source| self.io_at(&self.key_path, source))
    }

    /// Whether the file of users is missing although there is their key: somebody has removed it, or it was not restored.
    pub(crate) fn has_lost_users(&self) -> bool {
        !self.path.exists() && self.key_path.exists()
    }

    /// The file of users.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The error of a change of this user's password, if the key is lost.
    pub(crate) fn key_lost(&self, fault: KeyFault, user: &Name) -> StoreError {
        StoreError::KeyLost { key: self.key_path.clone(), fault, user: user.clone() }
    }

    /// Which users cannot log on, and what to type; `None` if all can.
    pub(crate) fn locked(&self, listing: &Listing) -> Option<String> {
        let first = listing.locked().next()?;
        let mut names = joined(listing.locked().take(MOST_SHOWN));
        match listing.locked().count().saturating_sub(MOST_SHOWN) {
            0 => {}
            more => names += &format!(" and {more} more"),
        }
        let passwd = match listing.key_fault {
            Some(_) => ShellCommand::new("weft user passwd --new-key"),
            None => ShellCommand::new("weft user passwd"),
        };
        let passwd = passwd.operand(first.as_str()).here();
        let (path, key) = (path_name(&self.path), path_name(&self.key_path));
        let why = listing.key_fault.map_or(String::new(), |fault| format!(" ({fault})"));
        Some(format!(
            "{path}: the hashes of these users do not open with {key}{why}, so they cannot log on: {names}. Restore the key, or give each \
             a new password: {passwd}"
        ))
    }

    /// Adds a user.
    pub(crate) fn add_user(&self, name: &Name, secret: &Secret, groups: &[Name]) -> Result<(), StoreError> {
        self.change(|change| {
            if change.listing.user(name).is_some() {
                return Err(StoreError::UserExists(name.clone()));
            }
            if name.is_reserved() || change.listing.groups.contains_key(name) || groups.contains(name) {
                return Err(StoreError::Taken(name.clone()));
            }
            change.set_secret(name, secret)?;
            change.set_rid(name)?;
            groups.iter().try_for_each(|group| change.add_member(group, name))
        })
    }

    /// Gives a user a new password. `new_key` makes a new key if the old one is lost.
    pub(crate) fn set_password(&self, name: &Name, secret: &Secret, new_key: bool) -> Result<(), StoreError> {
        self.change(|change| {
            let user = change.known(name)?;
            if new_key {
                change.renew_key()?;
            }
            change.set_secret(&user, secret)
        })
    }

    /// Removes a user, from the groups too.
    pub(crate) fn remove_user(&self, name: &Name) -> Result<(), StoreError> {
        self.change(|change| {
            change.known(name)?;
            remove_key(table(&mut change.document, "users"), name);
            let groups: Vec<Name> = change.listing.groups.keys().cloned().collect();
            groups.iter().for_each(|group| change.drop_member(group, name));
            Ok(())
        })
    }

    /// Adds users to a group, which is created if missing.
    pub(crate) fn add_to_group(&self, group: &Name, users: &[Name]) -> Result<(), StoreError> {
        self.change(|change| {
            change.ensure_group(group)?;
            users
                .iter()
                .try_for_each(|user| change.known(user).and_then(|user| change.add_member(group, &user)))
        })
    }

    /// Removes users from a group, or the whole group if none is named.
    pub(crate) fn remove_from_group(&self, group: &Name, users: &[Name]) -> Result<(), StoreError> {
        self.change(|change| {
            let members = change
                .listing
                .groups
                .get(group)
                .cloned()
                .ok_or_else(|| StoreError::NoGroup(group.clone()))?;
            if users.is_empty() {
                remove_key(table(&mut change.document, "groups"), group);
            }
            for user in users {
                if !members.contains(user) {
                    return Err(StoreError::NoMember { user: user.clone(), group: group.clone() });
                }
                change.drop_member(group, user);
            }
            Ok(())
        })
    }

    /// Changes the file under the lock, as a whole or not at all.
    fn change(&self, act: impl FnOnce(&mut Change<'_>) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let at_key = |source| self.io_at(&self.key_path, source);
        if let Some(folder) = self.path.parent() {
            private::folder(folder).map_err(|source| self.io_at(folder, source))?;
        }
        let is_new = !self.path.try_exists().map_err(|source| self.io_at(&self.path, source))?;
        if is_new {
            SealingKey::open(&self.key_path).map_err(at_key)?;
        }
        let lock = match regular::read_only(&self.key_path) {
            // A new key would open none of the hashes.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                File::open(self.path.parent().unwrap_or(&self.path))
            }
            opened => opened,
        };
        let lock = lock.map_err(at_key)?;
        lock.lock().map_err(at_key)?;
        self.remove_drafts()?;
        let key = self.key()?;
        let document = match self.document()? {
            Some(document) => document,
            None => {
                let empty = format!("{HEADER}version = {VERSION}\n");
                self.parse(&empty)?
            }
        };
        let listing = self.listing(&document, key.as_ref().ok())?;
        let mut change = Change { document, listing, key, store: self };
        act(&mut change)?;
        let text = change.document.to_string();
        // What is written can be read again, or the file stays as it was.
        self.listing(&self.parse(&text)?, change.key.as_ref().ok())?;
        whole::replace(&self.path, text.as_bytes(), Access::Private)
            .map_err(|source| self.io_at(&self.path, source))
    }

    /// Removes what killed processes have left: it has hashes, too. Under the lock nobody else writes a draft.
    fn remove_drafts(&self) -> Result<(), StoreError> {
        let at_folder = |source| self.io_at(folder_of(&self.path), source);
        for entry in folder_of(&self.path).read_dir().map_err(at_folder)? {
            let entry = entry.map_err(at_folder)?;
            let is_draft = entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT));
            if is_draft && entry.file_type().map_err(at_folder)?.is_file() {
                std::fs::remove_file(entry.path()).map_err(|source| self.io_at(&entry.path(), source))?;
            }
        }
        Ok(())
    }

    fn document(&self) -> Result<Option<DocumentMut>, StoreError> {
        let at_file = |source| self.io_at(&self.path, source);
        let Some(bytes) = private::read(&self.path, MAX_BYTES).map_err(at_file)? else { return Ok(None) };
        let not_utf8 = |_| self.malformed(format!("it is not UTF-8: {RESTORE}"));
        let text = String::from_utf8(bytes).map_err(not_utf8)?;
        self.parse(&text).map(Some)
    }

    fn parse(&self, text: &str) -> Result<DocumentMut, StoreError> {
        if text.len() > MAX_BYTES {
            return Err(StoreError::Full("bytes of the store"));
        }
        let document: DocumentMut = text.parse().map_err(|e: TomlError| {
            let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let (line, message) = (before.matches('\n').count() + 1, e.message().replace('\n', ", "));
            self.malformed(format!("line {line} is not TOML ({message}): {RESTORE}"))
        })?;
        match document.get("version").and_then(Item::as_integer) {
            Some(VERSION) => Ok(document),
            Some(found) => Err(StoreError::Newer { path: self.path.clone(), found }),
            None if text.trim().is_empty() => Err(self.malformed(format!("it is empty: {RESTORE}"))),
            None => Err(self.malformed(format!("it has no version: {RESTORE}"))),
        }
    }

    /// Without a key all users are locked.
    fn listing(&self, document: &DocumentMut, key: Option<&SealingKey>) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        let mut keys = document.iter().map(|(key, _)| key);
        if let Some(unknown) = keys.find(|key| !["version", "users", "groups"].contains(key)) {
            return Err(self.malformed(format!("unknown key {unknown}")));
        }
        let mut rids = BTreeSet::new();
        for (name, user) in self.entries(document, "users", MAX_USERS)? {
            let sealed = user.get("nt_hash").and_then(Item::as_str);
            let sealed = sealed.ok_or_else(|| self.malformed(format!("users.{name} has no nt_hash")))?;
            let secret = key.and_then(|key| key.open_sealed(&name, sealed).ok());
            if let Some(rid) = user.get("rid") {
                let rid = rid.as_integer().and_then(|rid| u32::try_from(rid).ok());
                let rid = rid.filter(|rid| CREATED_RIDS.contains(rid));
                let rid = rid.ok_or_else(|| {
                    let (least, most) = (CREATED_RIDS.start, CREATED_RIDS.end - 1);
                    self.malformed(format!("users.{name}.rid is not a number from {least} to {most}"))
                })?;
                if !rids.insert(rid) {
                    return Err(self.malformed(format!("users.{name} has the rid of another user")));
                }
                listing.rids.insert(name.clone(), rid);
            }
            if listing.users.insert(name.clone(), secret).is_some() {
                return Err(self.malformed(format!("two users are called {name}")));
            }
        }
        for (name, members) in self.entries(document, "groups", MAX_GROUPS)? {
            let unfit = || self.malformed(format!("groups.{name} is not an array of users"));
            if listing.user(&name).is_some() {
                return Err(self.malformed(format!("{name} is the name of a user and of a group")));
            }
            let (mut users, mut seen) = (Vec::new(), BTreeSet::new());
            for member in members.as_array().ok_or_else(unfit)? {
                let member: Name = member.as_str().ok_or_else(unfit)?.parse().map_err(|e| self.unfit(&e))?;
                match listing.user(&member) {
                    Some(user) if seen.insert(user.clone()) => users.push(user.clone()),
                    Some(_) => {}
                    None => {
                        return Err(
                            self.malformed(format!("groups.{name} has a member {member}, who is no user"))
                        );
                    }
                }
            }
            if listing.groups.insert(name.clone(), users).is_some() {
                return Err(self.malformed(format!("two groups are called {name}")));
            }
        }
        Ok(listing)
    }

    /// The entries of a table by name.
    fn entries<'a>(
        &self,
        document: &'a DocumentMut,
        of: &str,
        most: usize,
    ) -> Result<Vec<(Name, &'a Item)>, StoreError> {
        let Some(item) = document.get(of) else { return Ok(Vec::new()) };
        let table = item.as_table_like().ok_or_else(|| self.malformed(format!("{of} is not a table")))?;
        if table.len() > most {
            return Err(self.malformed(format!("it has more than {most} {of}")));
        }
        let entry = |(name, item): (&str, &'a Item)| Ok((name.parse().map_err(|e| self.unfit(&e))?, item));
        table.iter().map(entry).collect()
    }

    fn io_at(&self, path: &Path, source: io::Error) -> StoreError {
        StoreError::Io { path: path.to_owned(), source }
    }

    fn malformed(&self, why: impl Into<String>) -> StoreError {
        StoreError::Malformed { path: self.path.clone(), why: why.into() }
    }

    fn unfit(&self, e: &UnfitName) -> StoreError {
        self.malformed(e.to_string())
    }
}

/// A change of the file that is being made.
struct Change<'a> {
    document: DocumentMut,
    /// What the file contained before.
    listing: Listing,
    key: Result<SealingKey, KeyFault>,
    store: &'a Store,
}

impl Change<'_> {
    /// The name of a user as it is recorded.
    fn known(&self, name: &Name) -> Result<Name, StoreError> {
        self.listing.user(name).cloned().ok_or_else(|| StoreError::NoUser(name.clone()))
    }

    fn set_secret(&mut self, name: &Name, secret: &Secret) -> Result<(), StoreError> {
        if self.listing.users.is_empty() {
            // A new key harms nobody.
            self.renew_key()?;
        }
        let first = self.listing.users.keys().next().unwrap_or(name);
        let user = self.listing.user(name).unwrap_or(first);
        let key = self.key.as_ref().map_err(|fault| self.store.key_lost(*fault, user))?;
        let sealed =
            key.seal(name, secret).map_err(|source| self.store.io_at(&self.store.key_path, source))?;
        if self.listing.user(name).is_none() && self.listing.users.len() >= MAX_USERS {
            return Err(StoreError::Full("users"));
        }
        let users = table(&mut self.document, "users");
        // Only `[users.NAME]`, without a line `[users]` before it.
        users.set_implicit(true);
        let user = users.entry(name.as_str()).or_insert_with(|| Item::Table(Table::new()));
        if let Some(user) = user.as_table_like_mut() {
            user.insert("nt_hash", value(sealed));
        }
        Ok(())
    }

    /// Makes a new key if the old one is lost.
    fn renew_key(&mut self) -> Result<(), StoreError> {
        if self.key.is_err() {
            let key_path = &self.store.key_path;
            self.key =
                Ok(SealingKey::replace(key_path).map_err(|source| self.store.io_at(key_path, source))?);
        }
        Ok(())
    }

    /// Gives a new user a SID that no earlier user had, also none of the same name: files may still name that one.
    fn set_rid(&mut self, name: &Name) -> Result<(), StoreError> {
        let rid = loop {
            let bytes = random::bytes().map_err(|e| self.store.io_at(&self.store.path, e.into()))?;
            // Chance does not repeat one of these billion numbers.
            let rid =
                CREATED_RIDS.start + u32::from_be_bytes(bytes) % (CREATED_RIDS.end - CREATED_RIDS.start);
            if !self.listing.rids.values().any(|known| *known == rid) {
                break rid;
            }
        };
        let users = table(&mut self.document, "users");
        if let Some(user) = users.get_mut(name.as_str()).and_then(Item::as_table_like_mut) {
            user.insert("rid", value(i64::from(rid)));
        }
        Ok(())
    }

    fn ensure_group(&mut self, group: &Name) -> Result<(), StoreError> {
        if self.listing.groups.contains_key(group) {
            return Ok(());
        }
        if group.is_reserved() || self.listing.user(group).is_some() {
            return Err(StoreError::Taken(group.clone()));
        }
        if self.listing.groups.len() >= MAX_GROUPS {
            return Err(StoreError::Full("groups"));
        }
        let groups = table(&mut self.document, "groups");
        if key_of(groups, group).is_none() {
            groups.insert(group.as_str(), value(Array::new()));
        }
        Ok(())
    }

    fn add_member(&mut self, group: &Name, user: &Name) -> Result<(), StoreError> {
        self.ensure_group(group)?;
        if let Some(members) = members(&mut self.document, group)
            && !members.iter().any(|member| is(member, user))
        {
            members.push(user.as_str());
        }
        Ok(())
    }

    fn drop_member(&mut self, group: &Name, user: &Name) {
        if let Some(members) = members(&mut self.document, group) {
            members.retain(|member| !is(member, user));
        }
    }
}

fn is(member: &toml_edit::Value, user: &Name) -> bool {
    member.as_str().is_some_and(|member| member.parse::<Name>().is_ok_and(|member| member == *user))
}

/// A table at the top, created if missing. The listing has checked that an existing one is a table.
fn table<'a>(document: &'a mut DocumentMut, name: &str) -> &'a mut Table {
    let item = document.entry(name).or_insert_with(|| Item::Table(Table::new()));
    if !item.is_table() {
        // An inline table: it becomes one that can grow by lines.
        *item = match std::mem::take(item).into_table() {
            Ok(table) => Item::Table(table),
            Err(_) => Item::Table(Table::new()),
        };
    }
    match item {
        Item::Table(table) => table,
        _ => unreachable!("it was made a table"),
    }
}

/// A table's key for a name, which may be written in another case.
fn key_of(table: &Table, name: &Name) -> Option<String> {
    table
        .iter()
        .map(|(key, _)| key)
        .find(|key| key.parse::<Name>().is_ok_and(|key| key == *name))
        .map(str::to_owned)
}

fn remove_key(table: &mut Table, name: &Name) {
    if let Some(key) = key_of(table, name) {
        table.remove(&key);
    }
}

fn members<'a>(document: &'a mut DocumentMut, group: &Name) -> Option<&'a mut Array> {
    let groups = table(document, "groups");
    let key = key_of(groups, group)?;
    groups.get_mut(&key)?.as_array_mut()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_sid_belongs_to_a_creation_and_no_later_user_of_the_name_has_it() {
        let (_dir, store) = store();
        let (alice, secret) = (name("alice"), Secret::password("of alice"));
        let rid = || store.read().unwrap().unwrap().rids.get(&alice).copied();
        store.add_user(&alice, &secret, &[]).unwrap();
        let first = rid().unwrap();
        store.set_password(&name("ALICE"), &Secret::password("another"), false).unwrap();
        assert_eq!(rid(), Some(first));
        store.remove_user(&alice).unwrap();
        store.add_user(&alice, &secret, &[]).unwrap();
        assert_ne!(rid().unwrap(), first);
        // Users of earlier versions have the SID that is derived from their name.
        let text = std::fs::read_to_string(&store.path).unwrap();
        let written = |change: &dyn Fn(&str) -> String| {
            let lines =
                text.lines().map(|line| if line.starts_with("rid") { change(line) } else { line.into() });
            std::fs::write(&store.path, lines.collect::<Vec<_>>().join("\n")).unwrap();
            store.read()
        };
        assert!(written(&|_| String::new()).unwrap().unwrap().rids.is_empty());
        for wrong in ["rid = 1000", "rid = -1", "rid = 'x'", "rid = 2147483648"] {
            let said = written(&|_| wrong.to_owned()).err().unwrap().to_string();
            assert!(said.contains("users.alice.rid is not a number from 1073742824 to 2147483647"), "{said}");
        }
        written(&str::to_owned).unwrap();
        let twin = text.replace("[users.alice]", "[users.bob]");
        let hash = twin.lines().find(|line| line.starts_with("nt_hash")).unwrap();
        let sealed =
            SealingKey::existing(&store.key_path).unwrap().unwrap().seal(&name("bob"), &secret).unwrap();
        let twin = twin.replace(hash, &format!("nt_hash = '{sealed}'"));
        let (_, twin) = twin.split_once("[users.bob]").unwrap();
        std::fs::write(&store.path, format!("{text}\n[users.bob]{twin}")).unwrap();
        let said = store.read().err().unwrap().to_string();
        assert!(said.contains("users.bob has the rid of another user"), "{said}");
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::of(&dir.path().join("state"));
        (dir, store)
    }

    fn add(store: &Store, user: &str, password: &str) {
        store.add_user(&name(user), &Secret::password(password), &[]).unwrap();
    }

    fn opened(store: &Store, user: &str) -> Secret {
        store.read().unwrap().unwrap().users[&name(user)].clone().unwrap()
    }

    fn names<'a>(of: impl IntoIterator<Item = &'a Name>) -> Vec<&'a str> {
        of.into_iter().map(Name::as_str).collect()
    }

    #[test]
    fn users_and_groups_come_change_and_go() {
        let (_dir, store) = store();
        assert!(store.read().unwrap().is_none());
        add(&store, "alice", "one");
        store.add_user(&name("bob"), &Secret::password("two"), &[name("staff"), name("ops")]).unwrap();
        store.add_to_group(&name("Staff"), &[name("ALICE"), name("alice")]).unwrap();
        let listing = store.read().unwrap().unwrap();
        assert_eq!(names(listing.users.keys()), ["alice", "bob"]);
        assert_eq!(names(&listing.groups[&name("staff")]), ["bob", "alice"]);
        assert_eq!(names(listing.groups_by_user()[&name("Bob")].iter().copied()), ["ops", "staff"]);
        let hash = |store: &Store, user| *opened(store, user).as_nt_hash();
        assert_eq!(hash(&store, "Alice"), *Secret::password("one").as_nt_hash());
        store.set_password(&name("Alice"), &Secret::password("three"), false).unwrap();
        assert_eq!(hash(&store, "alice"), *Secret::password("three").as_nt_hash());
        store.remove_from_group(&name("staff"), &[name("alice")]).unwrap();
        store.remove_user(&name("BOB")).unwrap();
        let listing = store.read().unwrap().unwrap();
        assert_eq!(names(listing.users.keys()), ["alice"]);
        assert_eq!(names(&listing.groups[&name("staff")]), [""; 0]);
        store.remove_from_group(&name("ops"), &[]).unwrap();
        assert_eq!(names(store.read().unwrap().unwrap().groups.keys()), ["staff"]);
    }

    #[test]
    fn a_change_that_is_refused_changes_nothing() {
        let (_dir, store) = store();
        add(&store, "alice", "one");
        let before = std::fs::read(&store.path).unwrap();
        let secret = Secret::password("two");
        let refused = [
            store.add_user(&name("Alice"), &secret, &[]),
            store.set_password(&name("bob"), &secret, false),
            store.remove_user(&name("bob")),
            store.add_to_group(&name("staff"), &[name("alice"), name("bob")]),
            store.remove_from_group(&name("staff"), &[]),
            store.add_to_group(&name("ALICE"), &[]),
            store.add_user(&name("Everyone"), &secret, &[]),
            store.add_user(&name("x"), &secret, &[name("X")]),
        ];
        for refused in refused {
            let said = refused.unwrap_err().to_string();
            let says = ["weft user ", "weft group ", "choose another name"];
            assert!(says.iter().any(|says| said.contains(says)), "{said}");
        }
        assert_eq!(std::fs::read(&store.path).unwrap(), before);
    }

    #[test]
    fn comments_stay_and_nobody_else_reads_the_file() {
        let (_dir, store) = store();
        add(&store, "alice", "one");
        let text = std::fs::read_to_string(&store.path).unwrap();
        assert!(!text.contains("\n[users]\n"), "{text}");
        std::fs::write(&store.path, text.replace("[users.alice]", "# The boss.\n[users.alice] # room 7"))
            .unwrap();
        std::fs::set_permissions(&store.path, std::fs::Permissions::from_mode(0o644)).unwrap();
        add(&store, "bob", "two");
        store.add_to_group(&name("staff"), &[name("bob")]).unwrap();
        let text = std::fs::read_to_string(&store.path).unwrap();
        assert!(text.contains("# The boss.\n[users.alice] # room 7\n"), "{text}");
        for file in [&store.path, &store.key_path] {
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{}", file.display());
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let (_dir, store) = store();
        add(&store, "alice", "one");
        let good = std::fs::read_to_string(&store.path).unwrap();
        for (bad, why) in [
            (good.replace("version = 1", "version = 2"), "version 2"),
            (good.replace("version = 1\n", ""), "no version"),
            (good.clone() + "[users.Alice]\nnt_hash = \"\"\n", "Alice"),
            (good.clone() + "[groups]\nstaff = [\"bob\"]\n", "bob, who is no user"),
            (good.clone() + "[groups]\nstaff = 3\n", "not an array"),
            (good.clone() + "[group]\n", "unknown key group"),
            (good.clone() + "[groups]\n\"@staff\" = []\n", "cannot be a name"),
            ("version = 1\nversion = ".into(), "line 2 is not TOML"),
            ("\n".into(), "it is empty: restore the file from a backup; if there is none, move it away"),
        ] {
            std::fs::write(&store.path, &bad).unwrap();
            let said = store.read().err().unwrap().to_string();
            assert!(said.contains("users.toml") && said.contains(why), "{why}: {said}");
            assert!(!said.contains('\n'), "{said}");
            assert!(store.set_password(&name("alice"), &Secret::password("x"), false).is_err());
            assert_eq!(std::fs::read_to_string(&store.path).unwrap(), bad, "it stays as it was");
        }
    }

    #[test]
    fn a_lost_key_is_not_replaced_by_one_that_opens_nothing() {
        let (_dir, store) = store();
        add(&store, "alice", "one");
        let key = std::fs::read(&store.key_path).unwrap();
        std::fs::remove_file(&store.key_path).unwrap();
        let listing = store.read().unwrap().unwrap();
        assert_eq!((names(listing.locked()), listing.key_fault), (vec!["alice"], Some(KeyFault::Missing)));
        let said = store.add_user(&name("bob"), &Secret::password("x"), &[]).unwrap_err().to_string();
        assert!(said.contains("users.key") && said.contains("it is missing: restore it"), "{said}");
        assert!(said.contains("weft user passwd") && said.contains("--new-key"), "{said}");
        assert!(store.set_password(&name("alice"), &Secret::password("two"), false).is_err());
        assert!(!store.key_path.exists());
        std::fs::write(&store.key_path, key).unwrap();
        opened(&store, "alice");
        assert_eq!(store.key_path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    /// Every command failed with the advice to use a command that failed.
    #[test]
    fn users_whose_key_is_lost_get_new_passwords_and_can_be_removed() {
        let other = [7; 32];
        for (lost, fault) in [
            (None, Some(KeyFault::Missing)),
            (Some(&other[..9]), Some(KeyFault::Length)),
            (Some(&[]), Some(KeyFault::Length)),
            (Some(&other[..]), None),
        ] {
            let (_dir, store) = store();
            for user in ["alice", "bob", "carol"] {
                add(&store, user, "old");
            }
            store.add_to_group(&name("staff"), &[name("alice"), name("carol")]).unwrap();
            match lost {
                Some(bytes) => std::fs::write(&store.key_path, bytes).unwrap(),
                None => std::fs::remove_file(&store.key_path).unwrap(),
            }
            let listing = store.read().unwrap().unwrap();
            assert_eq!((names(listing.locked()).len(), listing.key_fault), (3, fault));
            let said = store.locked(&listing).unwrap();
            assert!(said.contains("alice, bob, carol. Restore the key"), "{said}");
            store.remove_user(&name("carol")).unwrap();
            store.set_password(&name("alice"), &Secret::password("new"), true).unwrap();
            assert_eq!(opened(&store, "alice").as_nt_hash(), Secret::password("new").as_nt_hash());
            let listing = store.read().unwrap().unwrap();
            assert_eq!((names(listing.locked()), listing.key_fault), (vec!["bob"], None));
            assert_eq!(names(&listing.groups[&name("staff")]), ["alice"]);
            // No further key is made.
            store.set_password(&name("bob"), &Secret::password("new"), true).unwrap();
            assert_eq!(store.locked(&store.read().unwrap().unwrap()), None);
            assert_eq!(store.key_path.metadata().unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn writers_take_turns() {
        let (_dir, store) = store();
        add(&store, "first", "x");
        std::thread::scope(|scope| {
            for i in 0..8 {
                let store = &store;
                scope.spawn(move || add(store, &format!("user{i}"), "x"));
            }
        });
        assert_eq!(store.read().unwrap().unwrap().users.len(), 9);
    }
}
