//! The local end of a folder copy: the folder to copy, or to copy into.
//!
//! The user has named it, and it is opened once. Everything else goes through the open folder, even if its path
//! changes.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Failure;
use crate::local::Folder;

/// The folder, which need not exist yet if it is the destination.
pub(super) struct Here {
    named: Named,
    open: OnceCell<Arc<Folder>>,
}

enum Named {
    /// Named by the user.
    Whole(PathBuf),
    /// Its parent is named by the user, its own name comes from the source: a symbolic link with that name was not
    /// chosen by the user.
    Inside(Folder, String),
}

impl Here {
    /// A folder that must exist.
    pub(super) fn source(path: &Path) -> Result<Here, Failure> {
        let here = Here { named: Named::Whole(path.to_owned()), open: OnceCell::new() };
        match here.open() {
            Ok(Some(_)) => Ok(here),
            Ok(None) => Err(format!("{}: no such folder", path.display()).into()),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                Err(format!("{} is not a folder", path.display()).into())
            }
            Err(e) => Err(format!("{}: {e}", path.display()).into()),
        }
    }

    /// The destination folder. `inside`: if `path` already is a folder, the folder of this name in it.
    pub(super) fn destination(path: &Path, inside: Option<&str>) -> Result<Here, Failure> {
        let named = match inside {
            Some(name) if path.is_dir() => {
                let above = Folder::named(path).map_err(|e| format!("{}: {e}", path.display()))?;
                Named::Inside(above, name.to_owned())
            }
            _ => Named::Whole(path.to_owned()),
        };
        Ok(Here { named, open: OnceCell::new() })
    }

    /// The path that messages show.
    pub(super) fn shown(&self) -> PathBuf {
        match &self.named {
            Named::Whole(path) => path.clone(),
            Named::Inside(above, name) => above.path_of(name),
        }
    }

    /// The folder, if it exists.
    pub(super) fn open(&self) -> io::Result<Option<Arc<Folder>>> {
        if let Some(open) = self.open.get() {
            return Ok(Some(open.clone()));
        }
        let opened = match &self.named {
            Named::Whole(path) => Folder::named(path),
            Named::Inside(above, name) => above.within(name),
        };
        match opened {
            Ok(folder) => Ok(Some(self.open.get_or_init(|| Arc::new(folder)).clone())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The folder, which exists since [`Here::make`].
    pub(super) fn root(&self) -> io::Result<Arc<Folder>> {
        self.open()?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Creates it, unless it exists.
    pub(super) fn make(&self) -> io::Result<()> {
        if self.open()?.is_some() {
            return Ok(());
        }
        match &self.named {
            Named::Whole(path) => {
                let made = Folder::made(path)?;
                self.open.get_or_init(|| Arc::new(made));
            }
            Named::Inside(above, name) => above.make(name)?,
        }
        self.root().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_followed_where_the_user_has_named_it_and_not_where_the_server_s_folder_has_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("real")).unwrap();
        std::fs::create_dir_all(at("into")).unwrap();
        symlink(at("real"), at("link")).unwrap();
        symlink(at("real"), at("into/photos")).unwrap();
        assert!(Here::source(&at("link")).is_ok());
        assert!(Here::source(&at("none")).is_err());
        let named = Here::destination(&at("link"), None).unwrap();
        assert!(named.open().unwrap().is_some());
        let inside = Here::destination(&at("into"), Some("photos")).unwrap();
        assert_eq!(inside.shown(), at("into/photos"));
        assert!(inside.open().is_err() && inside.make().is_err());
        let new = Here::destination(&at("into"), Some("new")).unwrap();
        assert!(new.open().unwrap().is_none());
        new.make().unwrap();
        assert!(new.root().is_ok() && at("into/new").is_dir());
        let made = Here::destination(&at("a/b"), Some("photos")).unwrap();
        made.make().unwrap();
        assert!(made.root().is_ok() && at("a/b").is_dir());
    }
}
