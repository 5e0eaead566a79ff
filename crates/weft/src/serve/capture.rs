//! `--pcap FILE`: the file of a capture, and the rules for what it may replace. `weft_rdma::wrap::pcap` writes
//! packets.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weft_machine::file::{pipe, regular};
use weft_rdma::wrap::pcap::Capture;

use crate::out::{ShellCommand, path_name};

/// The first bytes of a capture: pcap with microseconds or nanoseconds, in either byte order, and pcapng.
const MAGICS: [[u8; 4]; 5] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x0a, 0x0d, 0x0d, 0x0a],
];

/// A capture cannot be written to this file.
#[derive(Debug, thiserror::Error)]
#[error("{key} {}: {fault}", path_name(path))]
pub(crate) struct CannotCapture {
    key: String,
    path: PathBuf,
    fault: Fault,
}

/// The problem with the file.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it is a symbolic link: give the file itself")]
    Link,
    #[error("it is a folder: give a file in it")]
    Folder,
    #[error("it is in the shared folder {}, and a capture contains the data of all users: choose a file elsewhere", path_name(.0))]
    Served(PathBuf),
    #[error("the file exists and is not a capture: remove it, or choose another file")]
    Other,
    #[error("another server is writing it: choose another file")]
    Used,
    #[error("cannot create a file in {}: {source}", path_name(folder))]
    Unmade { folder: PathBuf, source: io::Error },
    #[error("there is no folder {}; create it: {}", path_name(.0), ShellCommand::new("mkdir -p").operand(.0))]
    NoFolder(PathBuf),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Creates a capture at `path`, readable only by this user, because it contains the users' data. An older capture is
/// replaced by a new file, because another user may have created it or have it open; any other file stays, and the
/// capture is refused. A pipe or device receives the bytes.
///
/// `key` is the option that asks for it. `shared`: the served folders, without links. A capture in one of them would show clients
/// the data of others.
pub(super) fn begin(key: &str, path: &Path, limit: u64, shared: &[&Path]) -> Result<Capture, CannotCapture> {
    let begin = || {
        let there = path.symlink_metadata().map(|found| found.file_type());
        let file = match there {
            Ok(there) if there.is_symlink() => {
                return Err(Fault::Link);
            }
            Ok(there) if there.is_dir() => return Err(Fault::Folder),
            Ok(there) if !there.is_file() => pipe::output(path)?,
            there => {
                let folder = folder_of(path)?;
                if let Some(share) = shared.iter().find(|share| folder.starts_with(share)) {
                    return Err(Fault::Served(share.to_path_buf()));
                }
                if there.is_ok() {
                    let mut old = regular::read_only(path)?;
                    if !is_capture(&mut old)? {
                        return Err(Fault::Other);
                    }
                    // The lock is a server's, which keeps the file open.
                    if matches!(old.try_lock_shared(), Err(TryLockError::WouldBlock)) {
                        return Err(Fault::Used);
                    }
                }
                // Mode 0600. An error of this call names the temporary file.
                let made = tempfile::NamedTempFile::new_in(&folder);
                let made = made.map_err(|e| Fault::Unmade { folder, source: e.kind().into() })?;
                // Nobody else has this file. On a file system without locks, captures of two servers can replace each other.
                let _ = made.as_file().try_lock();
                made.persist(path).map_err(|e| e.error)?
            }
        };
        Ok(Capture::new(file, limit)?)
    };
    begin().map_err(|fault| CannotCapture { key: key.to_owned(), path: path.to_owned(), fault })
}

/// The folder of a file, without links.
fn folder_of(path: &Path) -> Result<PathBuf, Fault> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Fault::NoFolder(folder.to_owned()),
        _ => Fault::Io(e),
    })
}

/// Whether a file begins like a capture, or is empty.
fn is_capture(file: &mut File) -> io::Result<bool> {
    let mut first = Vec::new();
    file.take(4).read_to_end(&mut first)?;
    Ok(first.is_empty() || MAGICS.iter().any(|magic| first == magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_its_owners_alone_whoever_made_a_file_of_its_name() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("run.pcap"), folder.path().join("other"));
        std::fs::write(&path, MAGICS[0]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let opened = File::open(&path).unwrap();
        begin("--pcap", &path, 1 << 20, &[]).unwrap();
        let made = path.metadata().unwrap();
        assert_eq!(made.mode() & 0o7777, 0o600);
        assert_ne!(made.ino(), opened.metadata().unwrap().ino());
        // A link leads to a file that is not a capture.
        std::fs::write(&other, "kept").unwrap();
        std::fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        let refused = begin("--pcap", &path, 1 << 20, &[]).err().unwrap().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        // A device stays a device.
        begin("--pcap", Path::new("/dev/null"), 1 << 20, &[]).unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }

    #[test]
    fn a_capture_replaces_captures_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, run) = (folder.path().join("notes.txt"), folder.path().join("run.pcap"));
        for content in ["to be kept", "\n"] {
            std::fs::write(&notes, content).unwrap();
            let refused = begin("--pcap", &notes, 1 << 20, &[]).err().unwrap().to_string();
            assert!(refused.contains("is not a capture"), "{refused}");
            assert_eq!(std::fs::read_to_string(&notes).unwrap(), content);
        }
        // The second capture replaces the first; an empty file is what `mktemp` creates.
        std::fs::write(&run, "").unwrap();
        for _ in 0..2 {
            begin("--pcap", &run, 1 << 20, &[]).unwrap();
            assert!(is_capture(&mut File::open(&run).unwrap()).unwrap() && run.metadata().unwrap().len() > 0);
        }
    }

    #[test]
    fn a_capture_that_is_written_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run.pcap");
        let writing = begin("--pcap", &run, 1 << 20, &[]).unwrap();
        let refused = begin("--pcap", &run, 1 << 20, &[]).err().unwrap().to_string();
        assert!(refused.contains("another server is writing it"), "{refused}");
        drop(writing);
        begin("--pcap", &run, 1 << 20, &[]).unwrap();
    }

    #[test]
    fn a_capture_lies_in_no_share() {
        let folder = tempfile::tempdir().unwrap();
        let (share, below) = (folder.path().join("data"), folder.path().join("data/sub"));
        std::fs::create_dir_all(&below).unwrap();
        std::os::unix::fs::symlink(&below, folder.path().join("link")).unwrap();
        for path in ["data/run.pcap", "data/sub/run.pcap", "link/run.pcap"] {
            let refused =
                begin("--pcap", &folder.path().join(path), 1 << 20, &[&share]).err().unwrap().to_string();
            assert!(refused.contains("it is in the shared folder"), "{path}: {refused}");
        }
        assert!(begin("--pcap", &folder.path().join("run.pcap"), 1 << 20, &[&share]).is_ok());
    }

    #[test]
    fn a_folder_that_is_missing_is_named_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let refused =
            begin("--pcap", &folder.path().join("no pe/x"), 1 << 20, &[]).err().unwrap().to_string();
        let missing = folder.path().join("no pe");
        assert!(refused.ends_with(&format!("create it: mkdir -p '{}'", missing.display())), "{refused}");
        assert!(!refused.contains(".tmp/") && refused.matches("/x").count() == 1, "{refused}");
    }
}
