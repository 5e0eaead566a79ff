//! What a counted folder occupied last, kept in the state directory: until the first count after a start is complete, the quota
//! is what is left of that, and not all of it once more.
//!
//! ```text
//! weft-quota 1
//! node 131
//! used_bytes 1048576
//! ```
//!
//! `node` is the inode of the folder: a record is not that of another folder at its path. It is written every [`RECORD`] while
//! the number changes, so a crash forgets what was written in that time, until the folder is counted.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use siphasher::sip::SipHasher24;
use weft_machine::file::private;
use weft_machine::file::whole::{self, Access};

/// How often the number is recorded.
pub(super) const RECORD: Duration = Duration::from_secs(5);
/// The version of the layout.
const VERSION: u32 = 1;
/// The most bytes of a record.
const MAX_BYTES: usize = 4096;

/// The record of one folder.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    node: u64,
    /// What was written last.
    used_bytes: Option<u64>,
    /// Whether it is a newer version's, which is not changed.
    is_newer: bool,
    /// Whether the log has told that it cannot be written.
    has_told: bool,
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Used(u64),
    /// Of another folder.
    Other,
    Newer(u32),
    Damaged,
}

/// The file of the record for a share of a folder, in a state directory.
pub(super) fn file(state: &Path, share: &str, folder: &Path) -> PathBuf {
    // Two shares of one folder have a record each.
    let of = [share.as_bytes(), folder.as_os_str().as_encoded_bytes()].join(&0);
    state.join("quotas").join(format!("{:016x}", SipHasher24::new().hash(&of)))
}

impl Record {
    /// The record in this file, for the folder with this inode.
    pub(super) fn new(path: &Path, node: u64) -> Record {
        Record { path: path.to_owned(), node, used_bytes: None, is_newer: false, has_told: false }
    }

    /// What was recorded last.
    pub(super) fn read(&mut self) -> Option<u64> {
        let begins = "the quota of its folder begins without what was counted before";
        let path = self.path.display();
        match private::read(&self.path, MAX_BYTES) {
            Ok(None) => None,
            Ok(Some(bytes)) => match parsed(&bytes, self.node) {
                Read::Used(used_bytes) => Some(used_bytes),
                Read::Other => None,
                Read::Newer(version) => {
                    self.is_newer = true;
                    tracing::warn!(
                        "{path} has version {version}, and this program knows versions up to {VERSION}: {begins}, and the file stays as \
                         it is"
                    );
                    None
                }
                Read::Damaged => {
                    tracing::warn!("{path} is damaged: {begins}");
                    None
                }
            },
            Err(e) => {
                tracing::warn!("cannot read {path}: {e}: {begins}");
                None
            }
        }
    }

    /// Records what is used, if that has changed.
    pub(super) fn write(&mut self, used_bytes: u64) {
        if self.is_newer || self.used_bytes == Some(used_bytes) {
            return;
        }
        match self.replace(used_bytes) {
            Ok(()) => (self.used_bytes, self.has_told) = (Some(used_bytes), false),
            Err(e) if !std::mem::replace(&mut self.has_told, true) => {
                tracing::warn!(
                    "cannot write {}: {e}: after a restart a quota begins with an old number",
                    self.path.display()
                );
            }
            Err(_) => {}
        }
    }

    fn replace(&self, used_bytes: u64) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            private::folder(folder)?;
        }
        whole::replace(&self.path, emitted(self.node, used_bytes).as_bytes(), Access::Private)
    }

    /// The folder has no quota any more.
    pub(super) fn remove(self) {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {e}", self.path.display());
            }
            _ => {}
        }
    }
}

fn emitted(node: u64, used_bytes: u64) -> String {
    format!("weft-quota {VERSION}\nnode {node}\nused_bytes {used_bytes}\n")
}

fn parsed(bytes: &[u8], node: u64) -> Read {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let mut number =
        |key: &str| -> Option<u64> { lines.next()?.strip_prefix(key)?.strip_prefix(' ')?.parse().ok() };
    match number("weft-quota").map(u32::try_from) {
        Some(Ok(VERSION)) => {}
        Some(Ok(version)) if version > VERSION => return Read::Newer(version),
        _ => return Read::Damaged,
    }
    match (number("node"), number("used_bytes")) {
        (Some(of), Some(used_bytes)) if of == node => Read::Used(used_bytes),
        (Some(_), Some(_)) => Read::Other,
        _ => Read::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_folder_and_version() {
        let work = tempfile::tempdir().unwrap();
        let path = file(work.path(), "team", Path::new("/srv/team"));
        assert_ne!(path, file(work.path(), "other", Path::new("/srv/team")));
        let mut record = Record::new(&path, 7);
        assert_eq!(record.read(), None);
        record.write(4096);
        assert_eq!(Record::new(&path, 7).read(), Some(4096));
        assert_eq!(Record::new(&path, 8).read(), None, "another folder");
        let text = emitted(7, u64::MAX);
        assert_eq!(parsed(text.as_bytes(), 7), Read::Used(u64::MAX));
        for cut in 0..text.len() - 1 {
            let read = parsed(&text.as_bytes()[..cut], 7);
            // A number that was cut is a number.
            assert!(matches!(read, Read::Damaged) || cut > text.len() - 21, "{cut}: {read:?}");
        }
        for damaged in ["", "weft-quota 0\n", "weft-quota x\n", "weft-quota 1\nnode 7\nused_bytes -1\n", "x"]
        {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(Record::new(&path, 7).read(), None, "{damaged}");
        }
        std::fs::write(&path, "weft-quota 2\nsomething else\n").unwrap();
        let mut newer = Record::new(&path, 7);
        assert_eq!(newer.read(), None);
        newer.write(1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "weft-quota 2\nsomething else\n");
        record.remove();
        assert!(!path.exists());
    }
}
