//! The journal of persistent handles: what is needed to reopen each one after a restart of the server.
//!
//! Spec: [MS-SMB2] 3.3.5.9.10, 3.3.5.9.12 (Open.IsPersistent). Owns one file with a table of records by
//! FileId.Persistent. `ops` opens the files; only handles on continuously available shares are recorded.
//!
//! ```text
//! DIR/smb-INSTANCE.redb      table "handles": FileId.Persistent -> record;  table "server": "guid" -> ServerGuid
//!                            table "format": 5; without it, version 1, whose records may have version 2
//!
//! record: 6 | create guid 16 | client guid 16 | user, share (length 2, UTF-8) | stable id of the file 24
//!         | access 4, as requested 4 | options 4 | sharing 1 | create action 4 | timeout in ms 4 | delete pending 1
//!         | 0, or 1 rights 1, or 2 lease key 16, state 4, 0 or 1 parent 16 epoch 2,
//!           source: 0 unknown, 1 IPv4 4, 2 IPv6 prefix 8, 3 this host
//!         | locks: count 2, each offset 8 length 8 exclusive 1 | lock sequences: count 1, each index 1 number 1
//!         | path of the file below the share's root (length 2), empty if unknown
//!         | who the user is: 0 unknown, 1 relative id 4, 2 uid 4
//!         | the share's root: 0 unknown, 1 its stable id 24
//! ```
//! The stable id identifies the file; the path is where it was, which saves a search. The source of a lease is the
//! address whose users share it: their handles need the same lease again, because two leases would break each other.
//! The user's number distinguishes the user from a later one of the same name, and the root's stable id the folder with the file from
//! another one at the share's path, such as the mount point of a disk that is not mounted.
//! Records of version 5 have no root, those of version 4 no number of the user, those of version 3 no source, and those of version 2 no path either; they are
//! rewritten when the journal is opened. A record is written before its handle is returned to a client, and lists a lock before the LOCK is answered.
//! It is removed when the handle closes. It may overstate the caching rights, but never understates them: a client that
//! reconnects is told what it actually got.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableTable, TableDefinition};
use weft_machine::file::{journal, private};
use weft_machine::recorder::{self, Hop};
use weft_machine::{Source, random, rt};
use weft_store::vfs::Stable;
use weft_wire::smb2::Guid;
use weft_wire::smb2::create_context::{Lease, LeaseFlags, LeaseState, LeaseV2};

use super::user_id::UserId;

const HANDLES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("handles");
const SERVER: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("server");
const VERSION: u8 = 6;
/// The version that does not know the share's root.
const WITHOUT_ROOT: u8 = 5;
/// The version that names its user alone.
const WITHOUT_USER_ID: u8 = 4;
/// The version whose leases have no source.
const WITHOUT_SOURCE: u8 = 3;
/// The version whose records have no path either.
const WITHOUT_PATH: u8 = 2;

const FORMAT: journal::Format = journal::Format { version: 5, migrate };

type Handles<'a> = redb::Table<'a, u64, &'static [u8]>;
/// The right to write the next record of a handle. The value is true once no more may be written.
pub(super) type RecordGuard = futures_util::lock::OwnedMutexGuard<bool>;

/// Why the journal cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

fn unusable(e: impl Display) -> Unusable {
    Unusable(e.to_string())
}

/// The journal of one server.
#[derive(Clone)]
pub struct Journal {
    database: Arc<journal::Journal>,
    guid: Guid,
    #[cfg(test)]
    worker: Worker,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journal")
    }
}

impl Journal {
    /// Opens or creates the journal in `dir`. `instance` distinguishes servers that share the directory; it becomes
    /// part of the file name.
    ///
    /// # Errors
    /// The directory or the journal cannot be created or read, or another process has it open.
    pub fn open(dir: &Path, instance: &str) -> Result<Journal, Unusable> {
        private::folder(dir).map_err(|e| Unusable(format!("{}: {e}", dir.display())))?;
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        let name: String = instance.chars().map(safe).collect();
        Journal::of(journal::Journal::open(&dir.join(format!("smb-{name}.redb")), &FORMAT).map_err(unusable)?)
    }

    /// A journal in memory whose disk can fail, to test the answers in that case.
    #[cfg(test)]
    pub(super) fn on(disk: impl redb::StorageBackend + Clone) -> Journal {
        let open = move || redb::Database::builder().create_with_backend(disk.clone());
        Journal::of(journal::Journal::opened_by(Path::new("disk"), &FORMAT, open).unwrap()).unwrap()
    }

    fn of(database: journal::Journal) -> Result<Journal, Unusable> {
        let made: Guid = random::bytes().map_err(unusable)?;
        let guid = database.change(|begun| {
            begun.open_table(HANDLES)?;
            let mut server = begun.open_table(SERVER)?;
            let known = server.get("guid")?.and_then(|known| Guid::try_from(known.value()).ok());
            if known.is_none() {
                server.insert("guid", &made[..])?;
            }
            Ok(known.unwrap_or(made))
        });
        Ok(Journal {
            guid: guid.map_err(unusable)?,
            database: Arc::new(database),
            #[cfg(test)]
            worker: Worker::default(),
        })
    }

    /// ServerGuid, which is the same in all runs.
    pub fn server_guid(&self) -> Guid {
        self.guid
    }

    /// The wanted handles. Unreadable records are skipped and logged. Blocks.
    pub(super) fn records(&self, is_wanted: impl Fn(u64) -> bool) -> Result<Vec<(u64, Record)>, Unusable> {
        let records = self.database.read(|begun| {
            let mut records = Vec::new();
            for entry in begun.open_table(HANDLES)?.iter()? {
                let (id, bytes) = entry?;
                if !is_wanted(id.value()) {
                    continue;
                }
                match Record::parse(bytes.value()) {
                    Some(record) => records.push((id.value(), record)),
                    None => tracing::warn!("lost a persistent handle: its record cannot be read"),
                }
            }
            Ok(records)
        });
        records.map_err(unusable)
    }

    /// The records of these handles.
    pub(super) async fn records_of(&self, ids: HashSet<u64>) -> Result<Vec<(u64, Record)>, Unusable> {
        let journal = self.clone();
        recorder::at(Hop::Disk, rt::blocking(move || journal.records(|id| ids.contains(&id)))).await
    }

    /// Completes once the record is on disk. `guard` is released then, even if nobody waits any more: the handle's next
    /// record must come later.
    pub(super) async fn save(&self, id: u64, record: &Record, guard: RecordGuard) -> Result<(), Unusable> {
        let bytes = record.to_bytes();
        self.change(guard, move |table| table.insert(id, &bytes[..]).map(drop)).await
    }

    /// Writes the records of many handles, which nobody else has, in one step.
    pub(super) async fn save_all(&self, records: Vec<(u64, Record)>) -> Result<(), Unusable> {
        let insert = move |table: &mut Handles<'_>| {
            records.iter().try_for_each(|(id, record)| table.insert(id, &record.to_bytes()[..]).map(drop))
        };
        self.change((), insert).await
    }

    /// Removes the records of closed handles. `guard` is released as in [`Journal::save`].
    pub(super) async fn forget(&self, ids: Vec<u64>, guard: impl Send + 'static) -> Result<(), Unusable> {
        self.change(guard, move |table| ids.iter().try_for_each(|id| table.remove(id).map(drop))).await
    }

    /// Holds `guard` until the change is on disk.
    async fn change(
        &self,
        guard: impl Send + 'static,
        act: impl FnOnce(&mut Handles<'_>) -> Result<(), redb::StorageError> + Send + 'static,
    ) -> Result<(), Unusable> {
        let database = self.database.clone();
        let change = move || {
            let changed = database.change(|begun| Ok(act(&mut begun.open_table(HANDLES)?)?));
            drop(guard);
            changed
        };
        #[cfg(test)]
        let change = self.worker.clone().run(change);
        #[cfg(not(test))]
        let change = rt::blocking(change);
        recorder::at(Hop::Disk, change).await.map_err(unusable)
    }
}

/// Rewrites records of older versions. Those that cannot be read stay, and are reported when the handles are restored.
fn migrate(begun: &redb::WriteTransaction, _from: u32) -> Result<(), redb::Error> {
    let mut table = begun.open_table(HANDLES)?;
    let mut older = Vec::new();
    for entry in table.iter()? {
        let (id, bytes) = entry?;
        let bytes = bytes.value();
        if matches!(bytes.first(), Some(&(WITHOUT_PATH..=WITHOUT_ROOT))) {
            older.extend(Record::parse(bytes).map(|record| (id.value(), record.to_bytes())));
        }
    }
    for (id, bytes) in older {
        table.insert(id, &bytes[..])?;
    }
    Ok(())
}

/// The thread that waits for the disk: calls complete there even if their waiters are dropped. A test can hold them.
#[cfg(test)]
#[derive(Clone, Default)]
struct Worker(Arc<std::sync::Mutex<Option<Gate>>>);

/// Blocks the calls while a test holds it.
#[cfg(test)]
pub(super) type Gate = Arc<futures_util::lock::Mutex<()>>;

#[cfg(test)]
impl Journal {
    /// Makes changes that start from now on wait for this.
    pub(super) fn hold(&self, gate: Option<Gate>) {
        *self.worker.0.lock().unwrap() = gate;
    }
}

#[cfg(test)]
impl Worker {
    async fn run<T: Send + 'static>(self, call: impl FnOnce() -> T + Send + 'static) -> T {
        use futures_util::future::FutureExt;

        let Some(gate) = self.0.lock().unwrap().clone() else { return rt::blocking(call).await };
        let result = std::rc::Rc::new(std::cell::Cell::new(None));
        let done = result.clone();
        let work = async move {
            let _held = gate.lock().await;
            done.set(Some(call()));
        };
        let work = work.boxed_local().shared();
        rt::spawn(work.clone()).detach();
        work.await;
        result.take().unwrap()
    }
}

/// The caching rights of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    Nothing,
    /// An oplock with these rights: read 1, write 2, handle 4.
    Oplock(u8),
    /// A lease, and the address whose users share it, if known.
    Lease(Lease, Option<Source>),
}

/// The record of a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub create_guid: Guid,
    pub client: Guid,
    pub user: String,
    /// Who that is, if known.
    pub user_id: Option<UserId>,
    pub share: String,
    /// The share's root, if known.
    pub root: Option<Stable>,
    pub file: Stable,
    pub access: u32,
    /// DesiredAccess, by which a repeated CREATE is recognized.
    pub desired: u32,
    pub options: u32,
    /// Read 1, write 2, delete 4.
    pub sharing: u8,
    pub action: u32,
    pub timeout_ms: u32,
    pub delete_pending: bool,
    pub cached: Cached,
    /// Offset, length, and whether exclusive.
    pub locks: Vec<(u64, u64, bool)>,
    pub sequences: Vec<(u8, u8)>,
    /// The path from the share's root, with `/` between names.
    pub path: Vec<u8>,
}

impl Record {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.create_guid);
        out.extend(self.client);
        for text in [&self.user, &self.share] {
            // Names of users and shares come from the command line.
            let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
            out.extend(len.to_le_bytes());
            out.extend(text.as_bytes().iter().take(len.into()));
        }
        out.extend(self.file.0);
        out.extend(self.access.to_le_bytes());
        out.extend(self.desired.to_le_bytes());
        out.extend(self.options.to_le_bytes());
        out.push(self.sharing);
        out.extend(self.action.to_le_bytes());
        out.extend(self.timeout_ms.to_le_bytes());
        out.push(self.delete_pending.into());
        match &self.cached {
            Cached::Nothing => out.push(0),
            Cached::Oplock(rights) => out.extend([1, *rights]),
            Cached::Lease(lease, source) => {
                out.push(2);
                out.extend(lease.key);
                out.extend(lease.state.0.to_le_bytes());
                out.push(lease.v2.is_some().into());
                if let Some(v2) = lease.v2 {
                    out.extend(v2.parent_key);
                    out.extend(v2.epoch.to_le_bytes());
                }
                match source {
                    None => out.push(0),
                    Some(Source::V4(ip)) => {
                        out.push(1);
                        out.extend(ip.octets());
                    }
                    Some(Source::V6(prefix)) => {
                        out.push(2);
                        out.extend(prefix.to_le_bytes());
                    }
                    Some(Source::Local) => out.push(3),
                }
            }
        }
        // The store allows 4096 per file.
        out.extend(u16::try_from(self.locks.len()).unwrap_or(u16::MAX).to_le_bytes());
        for (offset, len, exclusive) in self.locks.iter().take(u16::MAX.into()) {
            out.extend(offset.to_le_bytes());
            out.extend(len.to_le_bytes());
            out.push((*exclusive).into());
        }
        // There are 64.
        out.push(u8::try_from(self.sequences.len()).unwrap_or(u8::MAX));
        self.sequences.iter().take(u8::MAX.into()).for_each(|(index, number)| out.extend([*index, *number]));
        // A path that is too long is stored as unknown.
        let path = Some(&self.path[..]).filter(|path| path.len() <= u16::MAX.into()).unwrap_or_default();
        out.extend((path.len() as u16).to_le_bytes());
        out.extend(path);
        match self.user_id {
            None => out.push(0),
            Some(UserId::Rid(rid)) => {
                out.push(1);
                out.extend(rid.to_le_bytes());
            }
            Some(UserId::Uid(uid)) => {
                out.push(2);
                out.extend(uid.to_le_bytes());
            }
        }
        match self.root {
            None => out.push(0),
            Some(root) => {
                out.push(1);
                out.extend(root.0);
            }
        }
        out
    }

    fn parse(bytes: &[u8]) -> Option<Record> {
        let mut r = Fields(bytes);
        let version = r.byte()?;
        if !(WITHOUT_PATH..=VERSION).contains(&version) {
            return None;
        }
        let mut record = Record {
            create_guid: r.array()?,
            client: r.array()?,
            user: r.text()?,
            user_id: None,
            share: r.text()?,
            root: None,
            file: Stable(r.array()?),
            access: u32::from_le_bytes(r.array()?),
            desired: u32::from_le_bytes(r.array()?),
            options: u32::from_le_bytes(r.array()?),
            sharing: r.byte()?,
            action: u32::from_le_bytes(r.array()?),
            timeout_ms: u32::from_le_bytes(r.array()?),
            delete_pending: r.byte()? != 0,
            cached: match r.byte()? {
                0 => Cached::Nothing,
                1 => Cached::Oplock(r.byte()?),
                2 => Cached::Lease(r.lease()?, if version > WITHOUT_SOURCE { r.source()? } else { None }),
                _ => return None,
            },
            locks: {
                let count = u16::from_le_bytes(r.array()?);
                let lock = |_| {
                    let (offset, len) = (u64::from_le_bytes(r.array()?), u64::from_le_bytes(r.array()?));
                    Some((offset, len, r.byte()? != 0))
                };
                (0..count).map(lock).collect::<Option<_>>()?
            },
            sequences: {
                let count = r.byte()?;
                (0..count).map(|_| Some((r.byte()?, r.byte()?))).collect::<Option<_>>()?
            },
            path: if version == WITHOUT_PATH { Vec::new() } else { r.bytes()?.to_vec() },
        };
        if version > WITHOUT_USER_ID {
            record.user_id = r.user_id()?;
        }
        if version > WITHOUT_ROOT {
            record.root = r.root()?;
        }
        r.0.is_empty().then_some(record)
    }
}

/// Parses the fields of a record from the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn bytes(&mut self) -> Option<&[u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn lease(&mut self) -> Option<Lease> {
        let (key, state) = (self.array()?, LeaseState(u32::from_le_bytes(self.array()?)));
        let mut flags = LeaseFlags::NONE;
        let v2 = match self.byte()? {
            0 => None,
            _ => {
                let v2 = LeaseV2 { parent_key: self.array()?, epoch: u16::from_le_bytes(self.array()?) };
                if v2.parent_key != Guid::default() {
                    flags |= LeaseFlags::PARENT_LEASE_KEY_SET;
                }
                Some(v2)
            }
        };
        Some(Lease { key, state, flags, v2 })
    }

    /// `Some(None)` if it is unknown.
    fn user_id(&mut self) -> Option<Option<UserId>> {
        Some(match self.byte()? {
            0 => None,
            1 => Some(UserId::Rid(u32::from_le_bytes(self.array()?))),
            2 => Some(UserId::Uid(u32::from_le_bytes(self.array()?))),
            _ => return None,
        })
    }

    /// `Some(None)` if it is unknown.
    fn root(&mut self) -> Option<Option<Stable>> {
        Some(match self.byte()? {
            0 => None,
            1 => Some(Stable(self.array()?)),
            _ => return None,
        })
    }

    /// `Some(None)` if it is unknown.
    fn source(&mut self) -> Option<Option<Source>> {
        Some(match self.byte()? {
            0 => None,
            1 => Some(Source::V4(self.array::<4>()?.into())),
            2 => Some(Source::V6(u64::from_le_bytes(self.array()?))),
            3 => Some(Source::Local),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease {
        key: [4; 16],
        state: LeaseState(7),
        flags: LeaseFlags::PARENT_LEASE_KEY_SET,
        v2: Some(LeaseV2 { parent_key: [5; 16], epoch: 9 }),
    };

    fn record() -> Record {
        Record {
            create_guid: [1; 16],
            client: [2; 16],
            user: "älice".into(),
            user_id: Some(UserId::Rid(0x4000_03e8)),
            share: "Data".into(),
            root: Some(Stable([7; 24])),
            file: Stable([3; 24]),
            access: 0x1f01ff,
            desired: 0x0200_0000,
            options: 0x40,
            sharing: 5,
            action: 1,
            timeout_ms: 60_000,
            delete_pending: true,
            cached: Cached::Lease(LEASE, Some(Source::V4([192, 0, 2, 1].into()))),
            locks: vec![(0, 10, true), (1 << 40, u64::MAX >> 1, false)],
            sequences: vec![(1, 3), (64, 15)],
            path: b"d/\xffile".to_vec(),
        }
    }

    /// A record without what version 4 lacks.
    fn anonymous() -> Record {
        Record { user_id: None, root: None, ..record() }
    }

    /// The bytes of version 5, which lack the byte of an unknown root at the end.
    fn without_root(record: &Record) -> Vec<u8> {
        let mut bytes = record.to_bytes();
        bytes[0] = WITHOUT_ROOT;
        assert_eq!(bytes.pop(), Some(0));
        bytes
    }

    /// The bytes of version 4, which also lack the byte of an unknown user.
    fn without_user_id(record: &Record) -> Vec<u8> {
        let mut bytes = without_root(record);
        bytes[0] = WITHOUT_USER_ID;
        assert_eq!(bytes.pop(), Some(0));
        bytes
    }

    /// The bytes of version 3, which also lack the byte of an unknown source between the lease and the locks.
    fn without_source(record: &Record) -> Vec<u8> {
        let mut bytes = without_user_id(record);
        bytes[0] = WITHOUT_SOURCE;
        let after = 2 + 17 * record.locks.len() + 1 + 2 * record.sequences.len() + 2 + record.path.len();
        assert_eq!(bytes.remove(bytes.len() - after - 1), 0);
        bytes
    }

    /// A record of version 2, which has no path either.
    fn without_path() -> (Record, Vec<u8>) {
        let known = Record { path: Vec::new(), cached: Cached::Lease(LEASE, None), ..anonymous() };
        let mut bytes = without_source(&known);
        bytes[0] = WITHOUT_PATH;
        bytes.truncate(bytes.len() - 2);
        (known, bytes)
    }

    #[test]
    fn a_record_is_read_back_and_no_part_of_it_is() {
        let leased = [None, Some(Source::V6(0x2001_0db8_0000_0001)), Some(Source::Local)];
        let leased = leased.map(|source| Cached::Lease(LEASE, source));
        for (n, cached) in
            [Cached::Nothing, Cached::Oplock(7), record().cached].into_iter().chain(leased).enumerate()
        {
            let user_id = [None, Some(UserId::Rid(1000)), Some(UserId::Uid(u32::MAX))][n % 3];
            let root = [Some(Stable([9; 24])), None][n % 2];
            let record = Record { cached, user_id, root, ..record() };
            let bytes = record.to_bytes();
            assert_eq!(Record::parse(&bytes), Some(record));
            for len in 0..bytes.len() {
                assert_eq!(Record::parse(&bytes[..len]), None, "{len}");
            }
            assert_eq!(Record::parse(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn records_of_the_versions_before_are_read() {
        let known = Record { root: None, ..record() };
        let bytes = without_root(&known);
        assert_eq!((known.to_bytes()[0], bytes[0]), (6, 5));
        assert_eq!(Record::parse(&bytes), Some(known));
        let known = anonymous();
        let bytes = without_user_id(&known);
        assert_eq!(bytes[0], 4);
        assert_eq!(Record::parse(&bytes), Some(known));
        let known = Record { cached: Cached::Lease(LEASE, None), ..anonymous() };
        let bytes = without_source(&known);
        assert_eq!(Record::parse(&bytes), Some(known));
        let known = Record { cached: Cached::Oplock(7), ..anonymous() };
        let mut bytes = without_user_id(&known);
        bytes[0] = WITHOUT_SOURCE;
        assert_eq!(Record::parse(&bytes), Some(known));
        let (known, bytes) = without_path();
        assert_eq!(Record::parse(&bytes), Some(known));
        // A path that is too long for a record is unknown.
        let long = Record { path: vec![b'x'; 70_000], ..record() };
        assert_eq!(Record::parse(&long.to_bytes()), Some(Record { path: Vec::new(), ..record() }));
    }

    #[test]
    fn a_journal_outlives_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let first = Journal::open(&dir.path().join("state"), "127.0.0.1:445").unwrap();
        assert!(Journal::open(&dir.path().join("state"), "127.0.0.1:445").is_err(), "one server at a time");
        rt::block_on(async {
            let guard = async || Arc::<futures_util::lock::Mutex<bool>>::default().lock_owned().await;
            first.save(7, &record(), guard().await).await.unwrap();
            first.save(8, &record(), guard().await).await.unwrap();
            first.save(7, &Record { sharing: 1, ..record() }, guard().await).await.unwrap();
            first.forget(vec![8], ()).await.unwrap();
        })
        .unwrap();
        let guid = first.server_guid();
        drop(first);
        let again = Journal::open(&dir.path().join("state"), "127.0.0.1:445").unwrap();
        assert_eq!(again.records(|_| true).unwrap(), [(7, Record { sharing: 1, ..record() })]);
        assert_eq!(again.server_guid(), guid);
    }

    #[test]
    fn a_journal_of_the_format_before_is_migrated_and_one_of_the_next_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("smb-a.redb");
        let (known, older) = without_path();
        // Without the table "format". The second record is of a version that nobody has written.
        let database = redb::Database::create(&path).unwrap();
        let begun = database.begin_write().unwrap();
        begun.open_table(HANDLES).unwrap().insert(7, &older[..]).unwrap();
        begun.open_table(HANDLES).unwrap().insert(8, &[9, 9][..]).unwrap();
        begun.open_table(SERVER).unwrap().insert("guid", &[6; 16][..]).unwrap();
        begun.commit().unwrap();
        drop(database);
        let journal = Journal::open(dir.path(), "a").unwrap();
        assert_eq!(journal.records(|_| true).unwrap(), [(7, known)]);
        assert_eq!(journal.server_guid(), [6; 16]);
        let first = journal.database.read(|begun| {
            let table = begun.open_table(HANDLES)?;
            Ok(table.get(7)?.and_then(|bytes| bytes.value().first().copied()))
        });
        assert_eq!(first.unwrap(), Some(VERSION));
        drop(journal);
        let next = journal::Format { version: FORMAT.version + 1, migrate: |_, _| Ok(()) };
        drop(journal::Journal::open(&path, &next).unwrap());
        let refused = Journal::open(dir.path(), "a").unwrap_err().to_string();
        assert!(refused.contains("smb-a.redb was written by a newer version of Weft"), "{refused}");
    }
}
