//! A small database of the server's own, which survives a disk that is temporarily full or failing.
//!
//! After a disk error, redb refuses everything until it is reopened; the next change here does that. Changes confirmed
//! before such an error are on disk; the change that met it is not, and its caller gets the error. It owns the open
//! database and its lock, and leaves the tables to its users.
//!
//! The table "format" has the version of the other tables. An older version is migrated when the database is opened, and a
//! newer one is refused: this program could not keep what it does not know. Databases without the table have version 1.

use std::fmt;
use std::io::{self, Read};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Error, ReadTransaction, ReadableDatabase, TableDefinition, TableError,
    WriteTransaction,
};

use super::regular::{self, Irregular};
use super::{private, whole};

/// How much of its file a journal caches in memory.
const CACHE_BYTES: usize = 4 << 20;

const FORMAT: TableDefinition<'static, (), u32> = TableDefinition::new("format");
/// The version of a database without that table.
const UNSTATED: u32 = 1;

/// The format of a journal's tables.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The version that this program writes.
    pub version: u32,
    /// Turns tables of the given older version, which may lack some, into those of this one.
    pub migrate: fn(&WriteTransaction, u32) -> Result<(), Error>,
}

/// Opens the database, as often as needed.
type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send + Sync>;

/// See the module.
pub struct Journal {
    path: PathBuf,
    open: Opener,
    /// `None` after a disk error.
    database: Mutex<Option<Database>>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why a journal cannot be used: which one, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Another process has it open.
    #[error("{path} is in use by another server", path = .0.display())]
    InUse(PathBuf),
    /// Its disk or its permissions prevent it.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, io::Error),
    /// Its content is not what was written.
    #[error("{path} is damaged ({1}); to start without its content, move it away", path = .0.display())]
    Damaged(PathBuf, Box<Error>),
    /// A newer program has written it.
    #[error(
        "{path} was written by a newer version of Weft (its format is {found}, and this version knows {known}): use that version \
         again, or restore a backup; to start without its content, move it away",
        path = path.display()
    )]
    Newer {
        /// Which one.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The database library does not read its layout.
    #[error(
        "{path} has the database layout {layout}, which this version of Weft does not read: use the version that wrote it; to start \
         without its content, move it away",
        path = path.display()
    )]
    Layout {
        /// Which one.
        path: PathBuf,
        /// The version of redb's layout.
        layout: u8,
    },
}

impl Journal {
    /// Opens the file, or creates it, with no access for other users.
    ///
    /// # Errors
    /// It cannot be opened or made, is damaged, a newer program has written it, or another process has it open.
    pub fn open(path: &Path, format: &Format) -> Result<Journal, Unusable> {
        let file = path.to_owned();
        Journal::opened_by(path, format, move || {
            if !has_content(&file)? {
                create(&file)?;
            }
            // Opened once: another file may take its name meanwhile.
            bounded().create_with_backend(FileBackend::new(private::file(&file)?)?)
        })
    }

    /// Like [`Journal::open`] with another opener: for tests with failing disks.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn opened_by(
        path: &Path,
        format: &Format,
        open: impl Fn() -> Result<Database, DatabaseError> + Send + Sync + 'static,
    ) -> Result<Journal, Unusable> {
        let database = caught(|| Ok(open()?)).map_err(|e| unusable(path, e))?;
        let journal =
            Journal { path: path.to_owned(), open: Box::new(open), database: Mutex::new(Some(database)) };
        journal.adopt(format)?;
        Ok(journal)
    }

    /// Migrates an older version, and records the version.
    fn adopt(&self, format: &Format) -> Result<(), Unusable> {
        let (found, is_new) = self.read(|begun| {
            let stated = match begun.open_table(FORMAT) {
                Ok(table) => table.get(())?.map(|version| version.value()),
                Err(TableError::TableDoesNotExist(_)) => None,
                Err(e) => return Err(e.into()),
            };
            Ok((stated, begun.list_tables()?.next().is_none()))
        })?;
        let found = found.unwrap_or(if is_new { 0 } else { UNSTATED });
        let known = format.version;
        if found == known {
            return Ok(());
        }
        if found > known {
            return Err(Unusable::Newer { path: self.path.clone(), found, known });
        }
        self.change(|begun| {
            if !is_new {
                (format.migrate)(begun, found)?;
            }
            Ok(begun.open_table(FORMAT)?.insert((), known).map(drop)?)
        })?;
        if !is_new {
            tracing::info!("{}: migrated from format {found} to {known}", self.path.display());
        }
        Ok(())
    }

    /// Changes the database. Returns once the change is on disk.
    ///
    /// # Errors
    /// The disk is full or failed; nothing was changed then.
    pub fn change<T>(&self, act: impl FnOnce(&WriteTransaction) -> Result<T, Error>) -> Result<T, Unusable> {
        self.with(|database| {
            let begun = database.begin_write()?;
            let done = act(&begun)?;
            begun.commit()?;
            Ok(done)
        })
    }

    /// Reads the database.
    ///
    /// # Errors
    /// The disk failed.
    pub fn read<T>(&self, look: impl FnOnce(&ReadTransaction) -> Result<T, Error>) -> Result<T, Unusable> {
        self.with(|database| look(&database.begin_read()?))
    }

    fn with<T>(&self, act: impl FnOnce(&Database) -> Result<T, Error>) -> Result<T, Unusable> {
        let mut held = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match held.take() {
            Some(database) => database,
            None => caught(|| Ok((self.open)()?)).map_err(|e| unusable(&self.path, e))?,
        };
        let done = caught(|| act(&database));
        match done {
            // A database that has met a disk error is dropped, because it would refuse everything.
            Err(Error::Io(_) | Error::PreviousIo) => {}
            // To close what it has read wrongly may fail in the same way.
            Err(Error::Corrupted(_)) => {
                let _ = caught(move || {
                    drop(database);
                    Ok(())
                });
            }
            _ => *held = Some(database),
        }
        done.map_err(|e| unusable(&self.path, e))
    }
}

/// Runs a call of redb, which panics where it reads a page that it has not written: the disk or another program has
/// changed it, and the process has other files to serve.
fn caught<T>(act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // What `act` leaves behind of a database is dropped.
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panicked| {
        let text = panicked.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("a page cannot be read");
        Err(Error::Corrupted(text.to_owned()))
    })
}

/// A builder with a cache of at most [`CACHE_BYTES`].
fn bounded() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Whether the file exists and contains more than zeros.
fn has_content(path: &Path) -> io::Result<bool> {
    let mut file = match regular::read_only(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let mut chunk = vec![0; 64 << 10];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(false),
            n if chunk.iter().take(n).any(|byte| *byte != 0) => return Ok(true),
            _ => {}
        }
    }
}

/// Creates an empty database, closed to other users. It gets its name once it is complete: redb extends the file before
/// it writes the header, so a full disk would leave a file that looks damaged. A file without content, which earlier
/// versions left in that case, is replaced.
fn create(path: &Path) -> Result<(), DatabaseError> {
    match std::fs::remove_file(path) {
        Ok(()) => tracing::warn!(
            "{} is empty, as a full disk or a crash leaves a file: its content is lost, and it starts again",
            path.display()
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e.into()),
    }
    let draft = whole::draft_of(path);
    let made = private::file(&draft)
        .map_err(DatabaseError::from)
        .and_then(|file| bounded().create_with_backend(FileBackend::new(file)?))
        .and_then(|database| {
            drop(database);
            Ok(private::publish(&draft, path)?)
        });
    if made.is_err() {
        // The first error is the one to report; a draft that stays has no effect.
        let _ = std::fs::remove_file(&draft);
    }
    made
}

fn unusable(path: &Path, e: Error) -> Unusable {
    let path = path.to_owned();
    match e {
        Error::DatabaseAlreadyOpen => Unusable::InUse(path),
        Error::UpgradeRequired(layout) => Unusable::Layout { path, layout },
        // redb reports a file that is not its own, or too short, as an I/O error without a system call.
        Error::Io(e)
            if e.raw_os_error().is_some()
                || e.kind() == io::ErrorKind::StorageFull
                || Irregular::is_cause_of(&e) =>
        {
            Unusable::Io(path, e)
        }
        e => Unusable::Damaged(path, Box::new(e)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use redb::backends::InMemoryBackend;
    use redb::{ReadableTable, StorageBackend};

    use super::*;

    const NUMBERS: TableDefinition<'static, u64, u64> = TableDefinition::new("numbers");

    const PLAIN: Format = Format { version: 2, migrate: |_, _| Ok(()) };

    /// A disk that can stop accepting writes.
    #[derive(Clone, Debug, Default)]
    struct Disk {
        memory: Arc<InMemoryBackend>,
        full: Arc<AtomicBool>,
        read_bytes: Arc<AtomicUsize>,
    }

    impl Disk {
        fn check(&self) -> Result<(), io::Error> {
            match self.full.load(Ordering::Acquire) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> Result<u64, io::Error> {
            self.memory.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
            self.read_bytes.fetch_add(out.len(), Ordering::AcqRel);
            self.memory.read(offset, out)
        }

        fn set_len(&self, len: u64) -> Result<(), io::Error> {
            self.memory.set_len(len)
        }

        fn sync_data(&self) -> Result<(), io::Error> {
            self.check()?;
            self.memory.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
            self.check()?;
            self.memory.write(offset, data)
        }
    }

    fn put(journal: &Journal, number: u64) -> Result<(), Unusable> {
        journal.change(|begun| Ok(begun.open_table(NUMBERS)?.insert(number, number).map(drop)?))
    }

    fn numbers(journal: &Journal) -> Vec<u64> {
        let all = journal.read(|begun| {
            let table = begun.open_table(NUMBERS)?;
            table.iter()?.map(|entry| Ok(entry?.0.value())).collect()
        });
        all.unwrap()
    }

    #[test]
    fn a_disk_that_was_full_takes_changes_again() {
        let disk = Disk::default();
        let backend = disk.clone();
        let open = move || Database::builder().create_with_backend(backend.clone());
        let journal = Journal::opened_by(Path::new("state/j"), &PLAIN, open).unwrap();
        put(&journal, 1).unwrap();
        disk.full.store(true, Ordering::Release);
        for _ in 0..3 {
            let error = put(&journal, 2).unwrap_err();
            assert!(matches!(error, Unusable::Io(..)), "{error}");
        }
        disk.full.store(false, Ordering::Release);
        put(&journal, 3).unwrap();
        assert_eq!(numbers(&journal), [1, 3]);
    }

    #[test]
    fn what_it_holds_in_memory_has_a_limit() {
        const LARGE: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("large");
        const EACH: usize = 1 << 20;
        let disk = Disk::default();
        let backend = disk.clone();
        let open = move || bounded().create_with_backend(backend.clone());
        let journal = Journal::opened_by(Path::new("state/j"), &PLAIN, open).unwrap();
        let count = 4 * CACHE_BYTES / EACH;
        for number in 0..count as u64 {
            let value = vec![7; EACH];
            journal
                .change(|begun| Ok(begun.open_table(LARGE)?.insert(number, &value[..]).map(drop)?))
                .unwrap();
        }
        disk.read_bytes.store(0, Ordering::Release);
        for number in 0..count as u64 {
            let read = |begun: &ReadTransaction| {
                Ok(begun.open_table(LARGE)?.get(number)?.map_or(0, |value| value.value().len()))
            };
            assert_eq!(journal.read(read).unwrap(), EACH);
        }
        // What is not cached is read from the disk.
        let read = disk.read_bytes.load(Ordering::Acquire);
        assert!(read >= count * EACH - CACHE_BYTES, "{read}");
    }

    /// What earlier versions left on a full disk: the length of a database, and nothing in it.
    #[test]
    fn a_file_that_never_had_content_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-x.redb");
        for len in [0, 1 << 20] {
            let file = File::create(&path).unwrap();
            file.set_len(len).unwrap();
            let journal = Journal::open(&path, &PLAIN).unwrap();
            put(&journal, 1).unwrap();
            drop(journal);
            // The next start finds it.
            assert_eq!(numbers(&Journal::open(&path, &PLAIN).unwrap()), [1], "{len}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_database_that_cannot_be_created_leaves_no_part_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-x.redb");
        // A folder has the name of the draft.
        let draft = whole::draft_of(&path);
        std::fs::create_dir(&draft).unwrap();
        assert!(Journal::open(&path, &PLAIN).is_err());
        assert!(!path.exists());
        std::fs::remove_dir(&draft).unwrap();
        put(&Journal::open(&path, &PLAIN).unwrap(), 1).unwrap();
    }

    /// The process ended with "entered unreachable code", and named no file.
    #[test]
    fn damage_inside_is_named_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-x.redb");
        let journal = Journal::open(&path, &PLAIN).unwrap();
        for number in 0..500 {
            put(&journal, number).unwrap();
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let mut damages = 0;
        // The header is checked when the file is opened.
        for at in (4096..whole.len()).step_by(4096).take(256) {
            let mut damaged = whole.clone();
            damaged[at..at + 64].fill(0xff);
            std::fs::write(&path, &damaged).unwrap();
            let used = Journal::open(&path, &PLAIN).and_then(|journal| {
                journal.read(|begun| {
                    let table = begun.open_table(NUMBERS)?;
                    table.iter()?.try_for_each(|entry| Ok(entry.map(drop)?))
                })?;
                put(&journal, 7)
            });
            if let Err(e) = used {
                assert!(matches!(e, Unusable::Damaged(..)), "{at}: {e}");
                assert!(e.to_string().contains("nfs-x.redb is damaged ("), "{e}");
                assert!(e.to_string().contains("move it away"), "{e}");
                damages += 1;
            }
        }
        assert!(damages > 0);
    }

    #[test]
    fn what_is_in_the_way_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-x.redb");
        let journal = Journal::open(&path, &PLAIN).unwrap();
        put(&journal, 1).unwrap();
        let error = Journal::open(&path, &PLAIN).unwrap_err().to_string();
        assert_eq!(error, format!("{} is in use by another server", path.display()));
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let mut beheaded = whole.clone();
        beheaded[..4096].fill(0);
        let foreign = b"something else".repeat(4096);
        for damaged in [&whole[..7], &whole[..whole.len() / 2], &foreign, &beheaded] {
            std::fs::write(&path, damaged).unwrap();
            let error = Journal::open(&path, &PLAIN).unwrap_err();
            assert!(matches!(error, Unusable::Damaged(..)), "{error}");
            assert!(error.to_string().starts_with(&format!("{} is damaged", path.display())), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let error = Journal::open(&path, &PLAIN).unwrap_err();
        assert!(matches!(error, Unusable::Io(..)) && error.to_string().contains("nfs-x.redb"), "{error}");
        // The start waited for a writer.
        std::fs::remove_dir(&path).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let error = Journal::open(&path, &PLAIN).unwrap_err();
        assert!(matches!(error, Unusable::Io(..)), "{error}");
        let says = format!("{}: it is a FIFO, not a regular file: move it away", path.display());
        assert_eq!(error.to_string(), says);
        assert!(path.exists());
    }

    #[test]
    fn an_older_format_is_migrated_once_and_a_newer_one_is_refused_as_it_is() {
        fn tenfold(begun: &WriteTransaction, from: u32) -> Result<(), Error> {
            assert!(from < 3, "{from}");
            let mut table = begun.open_table(NUMBERS)?;
            let all: Vec<u64> =
                table.iter()?.map(|entry| Ok(entry?.0.value())).collect::<Result<_, redb::StorageError>>()?;
            for number in all {
                table.remove(number)?;
                table.insert(number * 10, 0)?;
            }
            Ok(())
        }
        const TENFOLD: Format = Format { version: 3, migrate: tenfold };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.redb");
        // As programs wrote it that stated no version.
        let database = Database::create(&path).unwrap();
        let begun = database.begin_write().unwrap();
        begun.open_table(NUMBERS).unwrap().insert(4, 4).unwrap();
        begun.commit().unwrap();
        drop(database);
        drop(Journal::open(&path, &PLAIN).unwrap());
        for _ in 0..2 {
            assert_eq!(numbers(&Journal::open(&path, &TENFOLD).unwrap()), [40]);
        }
        let before = std::fs::read(&path).unwrap();
        let error = Journal::open(&path, &PLAIN).unwrap_err().to_string();
        let name = path.display();
        assert!(
            error.starts_with(&format!(
                "{name} was written by a newer version of Weft (its format is 3, and this version knows 2): use that version again"
            )),
            "{error}"
        );
        // redb marks a file that it opens, and unmarks it.
        assert_eq!(std::fs::read(&path).unwrap().len(), before.len());
        assert_eq!(numbers(&Journal::open(&path, &TENFOLD).unwrap()), [40]);
        // A new one has nothing to migrate.
        drop(Journal::open(&dir.path().join("new.redb"), &TENFOLD).unwrap());
    }
}
