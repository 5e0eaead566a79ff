//! A local file that a command reads: the open file, and its metadata when it was opened. Its path is not used again.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::folder::Folder;
use crate::fault::Fault;
use crate::when::When;

/// An open regular file.
pub(crate) struct Source {
    pub(crate) file: File,
    /// The path that messages show.
    pub(crate) shown: PathBuf,
    /// Bytes.
    pub(crate) size: u64,
    /// Last write.
    pub(crate) modified: When,
    /// Its inode number.
    pub(crate) inode: u64,
    /// Its permissions.
    pub(crate) mode: u32,
}

impl Source {
    /// The file that the user has named; links are followed.
    pub(crate) fn named(path: &Path) -> Result<Source, Fault> {
        let here = |e: io::Error| Fault::here(path, &e);
        // Checked before it is opened, because opening a FIFO would wait for a writer.
        let kind = std::fs::metadata(path).map_err(here)?;
        if !kind.is_file() {
            let shown = path.display();
            let why = match kind.is_dir() {
                true => format!("{shown} is a folder: copy it with -r"),
                false => {
                    format!("{shown} is not a regular file; weft cp - URL < {shown} copies its data")
                }
            };
            return Err(Fault::Here(why.into()));
        }
        Source::of(File::open(path).map_err(here)?, path.to_owned())
    }

    /// The file at `path` below a folder; no link is followed.
    pub(crate) fn below(root: &Folder, path: &str) -> Result<Source, Fault> {
        let shown = root.path_of(path);
        let opened = root.holder(path).and_then(|(folder, name)| folder.open_file(name, OFlags::RDONLY));
        Source::of(opened.map_err(|e| Fault::here(&shown, &e))?, shown)
    }

    fn of(file: File, shown: PathBuf) -> Result<Source, Fault> {
        let looked = file.metadata().and_then(|found| Ok((When::from(found.modified()?), found)));
        let (modified, found) = looked.map_err(|e| Fault::here(&shown, &e))?;
        let (size, inode, mode) = (found.len(), found.ino(), found.mode() & 0o777);
        Ok(Source { file, shown, size, modified, inode, mode })
    }
}
