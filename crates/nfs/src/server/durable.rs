//! State that outlives the server: the key of its handles, and which clients had state.
//!
//! See RFC 8881 8.4.2.1 and 8.4.3 (what a server must remember to let the right clients reclaim), and RFC 7530
//! 9.6.3.4. It consists of the key file and the journal. Opens and locks are not stored; clients reclaim them in the
//! grace period.
//!
//! ```text
//! DIR/nfs-handles.key        16 random bytes, 0600: whoever reads them can forge handles
//! DIR/nfs-INSTANCE.redb      table "clients": one byte (2 without, 3 with sessions), the identity that claimed the
//!                            name (51 bytes), and the client's name; an earlier version wrote one byte (0 without,
//!                            1 with sessions) and the name
//!                            table "hosts": addresses of hosts that hold NLM locks, each followed by a zero byte;
//!                            an earlier version wrote the host's name after that
//!                            table "runs": how often the server was started
//!                            table "format": 2; without it, version 1, which differs in nothing else
//! ```
//! A client enters the journal before it is told that its open succeeded, and leaves it when its state is removed.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use redb::{ReadableTable, TableDefinition};
use siphasher::sip::SipHasher24;
use weft_machine::file::journal::{self, Format, Journal};
use weft_machine::file::private;
use weft_machine::random;

use super::identity::IDENTITY_BYTES;

/// A client's own name for itself; clients with sessions have a separate name space.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Who {
    pub sessions: bool,
    pub name: Bytes,
    /// The identity that claimed the name; `None` if an earlier version wrote the entry without one.
    pub by: Option<[u8; IDENTITY_BYTES]>,
}

impl Who {
    /// In the form that an earlier version wrote.
    pub fn of_anybody(&self) -> Who {
        Who { by: None, ..self.clone() }
    }
}

/// Flag in the first byte: the identity follows.
const IDENTIFIED: u8 = 2;

const CLIENTS: TableDefinition<'static, &[u8], ()> = TableDefinition::new("clients");
const HOSTS: TableDefinition<'static, &[u8], ()> = TableDefinition::new("hosts");
const RUNS: TableDefinition<'static, (), u32> = TableDefinition::new("runs");
/// Version 1 had the same tables; some entries have older forms, which are read as they are.
const FORMAT: Format = Format { version: 2, migrate: |_, _| Ok(()) };
const KEY_FILE: &str = "nfs-handles.key";

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file system returned an error.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, io::Error),
    /// The key file is invalid.
    #[error(
        "{path} does not hold 16 bytes: restore it from a backup, or move it away, which makes mounts stale",
        path = .0.display()
    )]
    Key(PathBuf),
    /// Another server of this name is running, or the journal is damaged.
    #[error("{0}")]
    Journal(#[from] journal::Unusable),
}

/// The state directory of one server.
pub struct Durable {
    pub(super) key: [u8; 16],
    /// Distinguishes this server from others, over all its runs.
    pub(super) identity: [u8; 16],
    journal: Journal,
    /// The number of the record, made in this run, for which a client is in the journal. Locked around a transaction,
    /// and changed once that is on disk.
    remembered: Mutex<HashMap<Who, u64>>,
}

impl std::fmt::Debug for Durable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Durable")
    }
}

impl Durable {
    /// Opens the state in `dir`, creating it if missing. `instance` distinguishes servers that share the directory;
    /// it becomes part of a file name.
    ///
    /// # Errors
    /// The directory, the key file or the journal cannot be created or read, or another process has the journal open.
    pub fn open(dir: &Path, instance: &str) -> Result<Durable, Unusable> {
        private::folder(dir).map_err(|e| Unusable::Io(dir.to_owned(), e))?;
        if has_lost_key(dir) {
            tracing::warn!(
                "{} is missing, although there is state of NFS clients: a new key is made, and all NFS mounts become stale; if there is a \
                 backup, stop the server, restore the file and start again",
                dir.join(KEY_FILE).display()
            );
        }
        let key = key(&dir.join(KEY_FILE))?;
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        let name: String = instance.chars().map(safe).collect();
        let journal = Journal::open(&dir.join(format!("nfs-{name}.redb")), &FORMAT)?;
        journal.change(|begun| {
            begun.open_table(CLIENTS)?;
            begun.open_table(HOSTS)?;
            Ok(())
        })?;
        let mut identity = [0; 16];
        for (half, label) in identity.chunks_exact_mut(8).zip(["major", "minor"]) {
            half.copy_from_slice(
                &SipHasher24::new_with_key(&key).hash(format!("{label} {name}").as_bytes()).to_be_bytes(),
            );
        }
        Ok(Durable { key, identity, journal, remembered: Mutex::default() })
    }

    /// The clients that had state in the last run.
    pub(super) fn clients(&self) -> Result<Vec<Who>, Unusable> {
        let clients = self.journal.read(|begun| {
            let mut clients = Vec::new();
            for entry in begun.open_table(CLIENTS)?.iter()? {
                let (name, _) = entry?;
                clients.extend(who(name.value()));
            }
            Ok(clients)
        });
        Ok(clients?)
    }

    /// Returns once the journal durably records that the client has state. Returns false if the record of this number
    /// no longer exists and another may have replaced it.
    pub(super) fn remember(
        &self,
        who: &Who,
        record: u64,
        lasts: impl FnOnce() -> bool,
    ) -> Result<bool, Unusable> {
        let mut remembered = self.remembered();
        let mut written = false;
        self.change(CLIENTS, |table| {
            if !lasts() {
                return Ok(());
            }
            written = true;
            table.remove(&*name(&who.of_anybody()))?;
            table.insert(&*name(who), ())?;
            Ok(())
        })?;
        if written {
            remembered.insert(who.clone(), record);
        }
        Ok(written)
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<Who, u64>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These clients have nothing to reclaim, by a record of this run or, without a number, of the last. A client
    /// that has returned meanwhile stays, because another record of it is in the journal.
    pub(super) fn forget(&self, clients: &[(Who, Option<u64>)]) -> Result<(), Unusable> {
        let mut remembered = self.remembered();
        let goes = |(who, record): &&(Who, Option<u64>)| {
            let by = remembered.get(who).copied();
            by.is_none() || by == *record
        };
        let going: Vec<&Who> = clients.iter().filter(goes).map(|(who, _)| who).collect();
        self.change(CLIENTS, |table| {
            going.iter().try_for_each(|who| {
                table.remove(&*name(&who.of_anybody()))?;
                table.remove(&*name(who)).map(drop)
            })
        })?;
        for who in going {
            remembered.remove(who);
        }
        Ok(())
    }

    /// Hosts that hold locks.
    pub(super) fn hosts(&self) -> Result<Vec<Bytes>, Unusable> {
        let hosts = self.journal.read(|begun| {
            let table = begun.open_table(HOSTS)?;
            table.iter()?.map(|entry| Ok(Bytes::copy_from_slice(entry?.0.value()))).collect()
        });
        Ok(hosts?)
    }

    /// Returns once the journal durably records that the host holds locks.
    pub(super) fn watch(&self, host: &[u8]) -> Result<(), Unusable> {
        self.change(HOSTS, |table| table.insert(host, ()).map(drop))
    }

    /// These hosts hold no locks.
    pub(super) fn unwatch(&self, hosts: &[Vec<u8>]) -> Result<(), Unusable> {
        self.change(HOSTS, |table| hosts.iter().try_for_each(|host| table.remove(&**host).map(drop)))
    }

    /// Counts a start; the first is 1.
    pub(super) fn next_run(&self) -> Result<u32, Unusable> {
        let run = self.journal.change(|begun| {
            let mut table = begun.open_table(RUNS)?;
            let last = table.get(())?.map_or(0, |run| run.value());
            let run = last.wrapping_add(1);
            table.insert((), run)?;
            Ok(run)
        });
        Ok(run?)
    }

    fn change(
        &self,
        table: TableDefinition<'static, &'static [u8], ()>,
        act: impl FnOnce(&mut redb::Table<'_, &'static [u8], ()>) -> Result<(), redb::StorageError>,
    ) -> Result<(), Unusable> {
        Ok(self.journal.change(|begun| Ok(act(&mut begun.open_table(table)?)?))?)
    }
}

fn name(Who { sessions, name, by }: &Who) -> Vec<u8> {
    let kind = u8::from(*sessions) | if by.is_some() { IDENTIFIED } else { 0 };
    [&[kind][..], by.as_ref().map_or(&[], |by| &by[..]), name].concat()
}

fn who(name: &[u8]) -> Option<Who> {
    let (kind, name) = name.split_first()?;
    let (by, name) = match kind & IDENTIFIED {
        0 => (None, name),
        _ => name.split_first_chunk().map(|(by, name)| (Some(*by), name))?,
    };
    Some(Who { sessions: kind & 1 != 0, name: Bytes::copy_from_slice(name), by })
}

/// Whether the key is gone although a server has served clients with it.
fn has_lost_key(dir: &Path) -> bool {
    let is_journal = |name: &std::ffi::OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"nfs-") && name.ends_with(b".redb")
    };
    let is_lost = dir.join(KEY_FILE).symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    // A folder that cannot be read is reported by what is opened in it.
    let has_journal = || {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| is_journal(&entry.file_name()))
    };
    is_lost && has_journal()
}

/// The key, created at the first start.
fn key(path: &Path) -> Result<[u8; 16], Unusable> {
    let make = || Ok(random::bytes::<16>()?.to_vec());
    let key = private::made_once(path, make).map_err(|e| match e.kind() {
        io::ErrorKind::FileTooLarge => Unusable::Key(path.to_owned()),
        _ => Unusable::Io(path.to_owned(), e),
    })?;
    key.try_into().map_err(|_| Unusable::Key(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_remembered_outlives_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("state");
        let who = |sessions, name, by| Who { sessions, name: Bytes::from_static(name), by };
        let (a, b) = (who(true, b"a", Some([7; IDENTITY_BYTES])), who(false, b"b", None));
        let first = Durable::open(&dir, "127.0.0.1:2049").unwrap();
        assert_eq!(first.clients().unwrap(), []);
        first.remember(&a, 1, || true).unwrap();
        first.remember(&a, 1, || true).unwrap();
        first.remember(&b, 2, || true).unwrap();
        assert!(Durable::open(&dir, "127.0.0.1:2049").is_err(), "one server at a time");
        assert_eq!((first.next_run().unwrap(), first.next_run().unwrap()), (1, 2));
        first.watch(b"10.0.0.1\0box").unwrap();
        first.watch(b"10.0.0.2\0other").unwrap();
        first.unwatch(&[b"10.0.0.1\0box".to_vec()]).unwrap();
        let (key, identity) = (first.key, first.identity);
        drop(first);
        let again = Durable::open(&dir, "127.0.0.1:2049").unwrap();
        assert_eq!((again.key, again.identity), (key, identity));
        assert_eq!(again.clients().unwrap(), [b.clone(), a.clone()]);
        // An entry of an earlier version is replaced when its client is recorded again.
        let known = Who { by: Some([9; IDENTITY_BYTES]), ..b.clone() };
        again.remember(&known, 3, || true).unwrap();
        assert_eq!(again.clients().unwrap(), [known.clone(), a]);
        let b = known;
        assert_eq!(again.hosts().unwrap(), [&b"10.0.0.2\0other"[..]]);
        assert_eq!(again.next_run().unwrap(), 3);
        again.forget(&[(b, Some(3))]).unwrap();
        assert_eq!(again.clients().unwrap().len(), 1);
        // Another server in the same directory has the same handles, another identity and other clients.
        let other = Durable::open(&dir, "[::1]:2050").unwrap();
        assert_eq!(other.key, key);
        assert_ne!(other.identity, identity);
        assert_eq!(other.clients().unwrap(), []);
        let mode = std::fs::metadata(dir.join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(dir.join(KEY_FILE), b"short").unwrap();
        assert!(matches!(Durable::open(&dir, "third"), Err(Unusable::Key(_))));
        // Left by a crash or a full disk during an earlier version's first start.
        std::fs::write(dir.join(KEY_FILE), b"").unwrap();
        Durable::open(&dir, "fourth").unwrap();
    }

    #[test]
    fn a_key_is_lost_if_there_is_state_without_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_lost_key(dir.path()), "the first start");
        drop(Durable::open(dir.path(), "one").unwrap());
        assert!(!has_lost_key(dir.path()));
        std::fs::remove_file(dir.path().join(KEY_FILE)).unwrap();
        assert!(has_lost_key(dir.path()));
        std::fs::remove_file(dir.path().join("nfs-one.redb")).unwrap();
        assert!(!has_lost_key(dir.path()));
    }

    #[test]
    fn a_client_that_came_back_is_not_forgotten_with_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let who = Who { sessions: true, name: Bytes::from_static(b"a"), by: Some([7; IDENTITY_BYTES]) };
        let durable = Durable::open(dir.path(), "one").unwrap();
        durable.remember(&who, 1, || true).unwrap();
        durable.remember(&who, 2, || true).unwrap();
        // A request of the old record continues; it does not replace the new one.
        assert!(!durable.remember(&who, 1, || false).unwrap());
        durable.forget(&[(who.clone(), Some(1)), (who.clone(), None)]).unwrap();
        assert_eq!(durable.clients().unwrap(), std::slice::from_ref(&who));
        durable.forget(&[(who.clone(), Some(2))]).unwrap();
        assert_eq!(durable.clients().unwrap(), []);
        // An entry of the last run is removed by any record of the client, or without one.
        durable.remember(&who, 3, || true).unwrap();
        drop(durable);
        let again = Durable::open(dir.path(), "one").unwrap();
        again.forget(&[(who, Some(4))]).unwrap();
        assert_eq!(again.clients().unwrap(), []);
    }

    #[test]
    fn a_journal_of_the_format_before_is_migrated_and_one_of_the_next_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-a.redb");
        // Without the table "format".
        let database = redb::Database::create(&path).unwrap();
        let begun = database.begin_write().unwrap();
        begun.open_table(CLIENTS).unwrap().insert(&b"\x01old"[..], ()).unwrap();
        begun.open_table(RUNS).unwrap().insert((), 6).unwrap();
        begun.commit().unwrap();
        drop(database);
        let durable = Durable::open(dir.path(), "a").unwrap();
        let old = Who { sessions: true, name: Bytes::from_static(b"old"), by: None };
        assert_eq!(durable.clients().unwrap(), [old]);
        assert_eq!(durable.next_run().unwrap(), 7);
        drop(durable);
        let next = Format { version: FORMAT.version + 1, migrate: |_, _| Ok(()) };
        drop(Journal::open(&path, &next).unwrap());
        let refused = Durable::open(dir.path(), "a").unwrap_err().to_string();
        assert!(refused.contains("nfs-a.redb was written by a newer version of Weft"), "{refused}");
    }
}
