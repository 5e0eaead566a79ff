//! The configuration of a server's groups: their volumes, their partners, and how to reach them.
//!
//! Layout: `STATE/replica/GROUP.json`, one file per group, closed to other users, because it contains passwords.
//! Beside it are the journal, `GROUP.log`, and `GROUP.members`, a second list of the group's volumes: it keeps them
//! closed if the first file cannot be read. A file is written under another name and renamed. The state of
//! replication is in the journal.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weft_machine::file::private;
use weft_replica::status::Mode;
use weft_store::block::Medium;
use weft_store::volume::Volumes;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::error::{FileFault, Unlisted, UnusableFile};
use super::kept::Kept;
use super::names::GroupName;
use crate::args::Transport;
use crate::args::replica::{OnCongestion, OnLoss};
use crate::connect::reach::authority;

/// The version that this module writes.
const VERSION: u32 = 1;
/// Maximum number of groups.
pub(super) const MOST_GROUPS: usize = 256;
/// Maximum number of partners: a source has at most eight destinations.
pub(super) const MOST_PARTNERS: usize = 8;
/// The longest file of a group, in bytes.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// The longest name of a partner, in bytes: the journal has no room for more.
pub(super) const MOST_NAME: usize = 128;

/// A group of volumes that keep their order of writes.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Group {
    /// Version of this file's layout.
    pub version: u32,
    /// Its name on this host.
    pub name: GroupName,
    /// 32 hexadecimal digits, the same on both sides.
    pub partnership: String,
    /// Its volumes on this host, in the group's order.
    pub volumes: Vec<String>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Whether everything is in memory and lost with the process.
    pub in_memory: bool,
    /// A random number that identifies this side to its partners. Zero in a file of an older version.
    #[serde(default)]
    pub speaker: u64,
    /// The latest epoch seen on this side, in case the journal is lost. Zero in a file of an older version.
    #[serde(default)]
    pub epoch: u64,
    /// How a source behaves when a destination is away or slow.
    #[serde(default, flatten)]
    pub policy: Policy,
    /// The other sides: a source's destinations; for a destination, its source first, then the other destinations in
    /// the source's list.
    pub partners: Vec<Partner>,
    /// The number of that list. Zero in a file of an older version, and for a copy that has not received one.
    #[serde(default)]
    pub list: ListNumber,
    /// The source's name for the destination that is about to replace it, until the new source has connected.
    #[serde(default)]
    pub successor: String,
    /// Set while the group is being created and has answered nothing: after a crash it is forgotten. Older versions
    /// ignore this and treat it as a group that has lost its journal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beginning: bool,
    /// The identity of its volumes when it was last opened, in the group's order. Empty in a file of an older
    /// version.
    #[serde(default)]
    pub kept: Vec<Kept>,
}

/// Orders the lists of destinations that sources send.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct ListNumber {
    /// The epoch of the source that sent it; zero for this side's own list as a source. Which source is followed
    /// decides whether another source's list counts.
    pub epoch: u64,
    /// Counts the lists of this source.
    pub count: u64,
}

impl ListNumber {
    /// Its count, if it is later than another list of the same source.
    pub fn later_than(self, other: ListNumber) -> Option<u64> {
        (self.epoch == other.epoch && self.count > other.count).then_some(self.count)
    }
}

/// How a source behaves when a destination is away or slow.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Policy {
    /// When a destination is away.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// When a destination is slow.
    #[serde(default)]
    pub on_congestion: OnCongestion,
}

/// Another side of a group.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Partner {
    /// Its name on this side: HOST:GROUP.
    pub name: String,
    /// How to reach it.
    pub address: Address,
    /// Whether writes wait for it while it is a destination.
    pub synchronous: bool,
}

impl Partner {
    /// When writes are acknowledged.
    pub fn mode(&self) -> Mode {
        if self.synchronous { Mode::Synchronous } else { Mode::Asynchronous }
    }
}

/// How to reach a server.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Address {
    /// Name or address.
    pub host: String,
    /// TCP port of SMB.
    pub port: u16,
    /// The user to log on as.
    pub user: String,
    /// The user's password.
    pub password: Password,
    /// The transport to use.
    pub transport: Transport,
    /// Encrypt everything.
    pub encrypt: bool,
    /// Compress TCP traffic if both servers can.
    #[serde(default)]
    pub compress: bool,
}

impl Address {
    /// The host and port.
    pub fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// HOST:PORT as users write it.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}

/// Wiped on drop, and never shown.
#[derive(Serialize, Deserialize, Clone, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub(crate) struct Password(String);

impl Password {
    /// Takes over a password.
    pub(crate) fn new(text: &str) -> Password {
        Password(text.to_owned())
    }

    /// The text, for a log-on.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// A group found at the start.
#[derive(Debug)]
pub(super) enum Remembered {
    /// Intact.
    Group(Group),
    /// Parts of it exist, but its file is unusable.
    Damaged(Damaged),
}

/// A group whose file is unusable.
#[derive(Debug)]
pub(super) struct Damaged {
    /// Its name.
    pub name: GroupName,
    /// Its volumes, if known: otherwise it may contain any volume.
    pub volumes: Option<Vec<String>>,
    /// Its partnership, if known.
    pub partnership: Option<[u8; 16]>,
    /// Whether only the list of its volumes is left, which is the first file written when a group is created.
    pub is_list_alone: bool,
    /// The problem.
    pub why: String,
}

impl Remembered {
    /// Its name.
    pub fn name(&self) -> &GroupName {
        match self {
            Remembered::Group(group) => &group.name,
            Remembered::Damaged(damaged) => &damaged.name,
        }
    }

    /// Whether it contains this volume, or may.
    pub fn may_have(&self, volume: &String) -> bool {
        match self {
            Remembered::Group(group) => group.volumes.contains(volume),
            Remembered::Damaged(damaged) => {
                damaged.volumes.as_ref().is_none_or(|volumes| volumes.contains(volume))
            }
        }
    }
}

/// The folder of all groups.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The folder of this state directory.
    pub fn of(state: &Path) -> Folder {
        Folder(state.join("replica"))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a group's journal.
    pub fn journal(&self, group: &GroupName) -> PathBuf {
        self.0.join(format!("{group}.log"))
    }

    fn file(&self, group: &GroupName) -> PathBuf {
        self.0.join(format!("{group}.json"))
    }

    fn members(&self, group: &GroupName) -> PathBuf {
        self.0.join(format!("{group}.members"))
    }

    /// The path of the journal's metadata as a volume.
    pub fn metadata(&self, group: &GroupName) -> PathBuf {
        self.0.join(format!("{group}.volume"))
    }

    /// Whether a group of this name is recorded.
    pub fn knows(&self, group: &GroupName) -> bool {
        [self.file(group), self.members(group)].iter().any(|path| path.exists())
    }

    /// Creates the folder if it is missing. `weft replica check` does so too, and may be root's.
    pub fn make(&self) -> io::Result<()> {
        private::folder_in_state(&self.0)
    }

    /// All groups, by name. A group whose file is lost or unreadable is reported as damaged, and does not block the
    /// others. A group exists as long as any part of it does: the remains of a lost one may contain acknowledged
    /// writes.
    pub fn load(&self) -> Result<Vec<Remembered>, Unlisted> {
        let wrong = |source| Unlisted { folder: self.0.clone(), source };
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(wrong)?,
        };
        let (mut names, mut journals) = (BTreeSet::new(), BTreeSet::new());
        for entry in entries {
            let entry = entry.map_err(wrong)?;
            let file = entry.file_name();
            let name = file.to_str().filter(|name| !name.starts_with('.'));
            // A file whose name cannot be a group's is ignored.
            let of = |suffix: &str| {
                let name = name.and_then(|name| name.strip_suffix(suffix))?;
                name.parse::<GroupName>().ok()
            };
            names.extend(of(".json").or_else(|| of(".members")));
            journals.extend(of(".log").or_else(|| of(".volume")));
        }
        journals.retain(|name| !self.was_in_memory(name));
        names.extend(journals);
        let groups = names.into_iter().map(|name| match self.load_one(&name) {
            Ok(group) => Remembered::Group(group),
            Err(unusable) => {
                let why = unusable.to_string();
                let members = private::read(&self.members(&name), MOST_BYTES).ok().flatten();
                let volumes = members.and_then(|text| serde_json::from_slice(&text).ok());
                let others = [self.file(&name), self.journal(&name), self.metadata(&name)];
                // If the search fails, a journal may exist.
                let is_list_alone = volumes.is_some()
                    && others.iter().all(|path| path.try_exists().is_ok_and(|is_there| !is_there));
                Remembered::Damaged(Damaged { name, volumes, partnership: None, is_list_alone, why })
            }
        });
        Ok(groups.collect())
    }

    /// Whether nothing is left of a group's journal except that it was in memory: its server was killed.
    fn was_in_memory(&self, group: &GroupName) -> bool {
        let known = Volumes::at(&self.0).info(group);
        !self.journal(group).exists() && known.is_ok_and(|known| known.superblock.medium == Medium::Ram)
    }

    fn load_one(&self, name: &GroupName) -> Result<Group, UnusableFile> {
        let path = self.file(name);
        parse(&path, name).map_err(|fault| UnusableFile { path, fault })
    }

    /// Records a group durably. A group in memory is not recorded.
    pub fn save(&self, group: &Group) -> io::Result<()> {
        if group.in_memory {
            return Ok(());
        }
        self.make()?;
        // First the file that closes its volumes, then the one that opens them. For a group being created, first the
        // file that says so.
        if !group.beginning {
            self.save_members(group)?;
        }
        self.put(&group.name, &self.file(&group.name), &serde_json::to_vec_pretty(group)?)?;
        fs::File::open(&self.0)?.sync_all()
    }

    /// Writes the second list of a group's volumes if it is missing: groups of older versions lack it.
    pub fn save_members(&self, group: &Group) -> io::Result<()> {
        match self.members(&group.name).exists() {
            true => Ok(()),
            false => self.put(&group.name, &self.members(&group.name), &serde_json::to_vec(&group.volumes)?),
        }
    }

    /// The temporary name of a file being written. A crash may leave it.
    fn draft(&self, group: &GroupName) -> PathBuf {
        self.0.join(format!(".{group}.new"))
    }

    fn put(&self, group: &GroupName, path: &Path, content: &[u8]) -> io::Result<()> {
        replace(&self.draft(group), path, content)
    }

    /// Forgets a group durably.
    pub fn remove(&self, group: &GroupName) -> io::Result<()> {
        // A group that has lost its main file is stopped; one that has lost the other file works.
        for path in [self.draft(group), self.members(group), self.file(group)] {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        match fs::File::open(&self.0) {
            // A group in memory was never recorded.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            folder => folder?.sync_all(),
        }
    }
}

/// Reads the file of the group of this name.
fn parse(path: &Path, name: &GroupName) -> Result<Group, FileFault> {
    let content = private::read(path, MOST_BYTES)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let group: Group = serde_json::from_slice(&Zeroizing::new(content))?;
    if group.version != VERSION {
        return Err(FileFault::Version { is: group.version, known: VERSION });
    }
    if group.name != *name {
        return Err(FileFault::OtherGroup(group.name));
    }
    Ok(group)
}

/// Replaces a file: writes it durably as `draft` and renames it.
pub(super) fn replace(draft: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(draft, path)
}

impl Group {
    /// The partners to notify when this side is stopped or removed: a copy's source, or all destinations of a source.
    pub fn concerned(&self) -> &[Partner] {
        let of_copy = self.list.epoch > 0;
        let most = if of_copy { 1 } else { self.partners.len() };
        self.partners.get(..most).unwrap_or(&self.partners)
    }

    /// A group of the current version.
    pub fn new(
        name: GroupName,
        partnership: String,
        volumes: Vec<String>,
        log_bytes: u64,
        policy: Policy,
    ) -> Group {
        let (version, in_memory, partners, kept) = (VERSION, false, Vec::new(), Vec::new());
        Group {
            version,
            name,
            partnership,
            volumes,
            log_bytes,
            in_memory,
            speaker: 0,
            epoch: 0,
            policy,
            partners,
            list: ListNumber::default(),
            successor: String::new(),
            beginning: false,
            kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::membership::group_of;
    use super::*;

    fn name(text: &str) -> GroupName {
        text.parse().unwrap()
    }

    #[test]
    fn a_group_is_remembered_and_its_secrets_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path());
        assert!(folder.load().unwrap().is_empty());
        let policy = Policy { on_loss: OnLoss::SuspendIo, on_congestion: OnCongestion::PullAhead };
        let mut group =
            Group::new(name("db"), "ab".repeat(16), vec!["vol1".into(), "vol2".into()], 1 << 24, policy);
        let address = Address {
            host: "other".into(),
            port: 4450,
            user: "alice".into(),
            password: Password::new("secret"),
            transport: Transport::Auto,
            encrypt: true,
            compress: false,
        };
        assert!(!format!("{address:?}").contains("secret"));
        group.partners.push(Partner { name: "other:db".into(), address, synchronous: true });
        folder.save(&group).unwrap();
        folder.save(&group).unwrap();
        let mode = folder.file(&name("db")).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let [Remembered::Group(loaded)] = &folder.load().unwrap()[..] else { panic!("one group") };
        assert_eq!(loaded.concerned().len(), 1);
        assert_eq!(loaded.partners[0].address.password.text(), "secret");
        assert_eq!((&loaded.volumes, loaded.policy), (&group.volumes, policy));
        folder.remove(&name("db")).unwrap();
        folder.remove(&name("db")).unwrap();
        assert!(folder.load().unwrap().is_empty());
    }

    #[test]
    fn a_group_of_before_these_options_behaves_as_it_did() {
        let old = r#"{"version": 1, "name": "a", "partnership": "", "volumes": [], "log_bytes": 1, "in_memory": false,
            "partners": []}"#;
        let group: Group = serde_json::from_str(old).unwrap();
        assert_eq!(group.policy, Policy { on_loss: OnLoss::Continue, on_congestion: OnCongestion::Block });
    }

    #[test]
    fn what_cannot_be_read_is_named_and_keeps_nobody_else_from_anything() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path());
        let new = |group: &str| {
            let volumes = vec![format!("{group}-1"), format!("{group}-2")];
            Group::new(name(group), "ab".repeat(16), volumes, 1 << 24, Policy::default())
        };
        ["a", "b", "c", "d"].iter().for_each(|name| folder.save(&new(name)).unwrap());
        // An empty file, a lost file, and a group with neither file usable.
        fs::write(folder.file(&name("b")), b"").unwrap();
        fs::remove_file(folder.file(&name("c"))).unwrap();
        fs::write(folder.file(&name("d")), b"{").unwrap();
        fs::write(folder.members(&name("d")), b"[").unwrap();
        let [Remembered::Group(a), damaged @ ..] = &folder.load().unwrap()[..] else { panic!("a is whole") };
        assert_eq!(&*a.name, "a");
        let known: Vec<_> = damaged
            .iter()
            .map(|group| match group {
                Remembered::Damaged(Damaged { name, volumes, why, .. }) => {
                    assert!(why.contains(&format!("{name}.json")), "{why}");
                    (&**name, volumes.clone())
                }
                other => panic!("{other:?} is whole"),
            })
            .collect();
        let both = |name: &str| Some(vec![format!("{name}-1"), format!("{name}-2")]);
        assert_eq!(known, [("b", both("b")), ("c", both("c")), ("d", None)]);
        // Nobody knows which volumes are in d, so any may be.
        let may_have = |n: usize, volume: &str| damaged[n].may_have(&volume.to_owned());
        assert!(may_have(0, "b-2") && !may_have(0, "c-1") && may_have(2, "c-1"));
    }

    #[test]
    fn a_journal_is_a_group_although_nothing_else_of_it_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path());
        folder.make().unwrap();
        fs::write(folder.journal(&name("half")), b"records").unwrap();
        let [Remembered::Damaged(half)] = &folder.load().unwrap()[..] else { panic!("it is ignored") };
        assert_eq!((&*half.name, &half.volumes), ("half", &None));
        let found = group_of(dir.path(), "vol1").unwrap().unwrap();
        assert_eq!((found.group.as_str(), found.is_sure), ("half", false));
        fs::remove_file(folder.journal(&name("half"))).unwrap();
        // A group in memory whose server was killed cannot lack anything.
        let wanted = weft_store::volume::Create {
            storage: weft_store::volume::Storage::Ram,
            size: Some(1 << 20),
            allocate: false,
            direct: false,
            id: [7; 16],
            created: 1_790_000_000,
        };
        Volumes::at(folder.path()).create("gone", &wanted).unwrap();
        assert!(folder.load().unwrap().is_empty());
        // With unusable metadata, it may have been any group.
        fs::write(folder.path().join("gone.volume"), b"no").unwrap();
        assert_eq!(folder.load().unwrap().len(), 1);
        let group = Group::new(name("db"), "ab".repeat(16), vec!["vol1".into()], 1 << 24, Policy::default());
        folder.save(&group).unwrap();
        let found = group_of(dir.path(), "vol1").unwrap().unwrap();
        assert_eq!((found.group.as_str(), found.is_sure), ("db", true));
    }
}
