//! Opens the files of the shares in a plan.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_machine::deadline::{self, Progress};
use weft_machine::meter::Subject;
use weft_store::backend::{Dir, Ram};
use weft_store::health::Health;
use weft_store::quota::{self, Quota};
use weft_store::snapshots::Snapshots;
use weft_store::{Share, Vfs};

use crate::config::{
    AbsentShare, LOOK_LIMIT, Looks, Origin, Place, PlannedShare, ShareConfig, ShareSource, is_mount,
};
use crate::out::path_name;

/// A share and what `ready` says about it.
#[derive(Clone)]
pub(crate) struct Described {
    /// The share.
    pub share: Share,
    /// The folder, the size of the ramdisk, or the number of volumes.
    pub source: String,
    /// Its files, which the share may only let read.
    files: Vfs,
    /// The folder's path as it was configured.
    path: Option<PathBuf>,
    /// The folder's identity.
    place: Option<Place>,
    /// Whether a file system was mounted at it when it was opened.
    is_mount: bool,
    /// The open folder.
    root: Option<Arc<OwnedFd>>,
    /// Where the count for its quota is recorded.
    record: Option<PathBuf>,
}

impl Described {
    /// Whether this is the folder at a path, under the name that it had when the share was opened.
    pub(crate) fn is_at(&self, path: &Path, looks: &Looks) -> bool {
        self.place.is_some() && looks.place(path) == self.place && self.is_named_by(path, looks)
    }

    /// Whether a path leads to the folder's name of that time.
    fn is_named_by(&self, path: &Path, looks: &Looks) -> bool {
        looks.real(path).is_some_and(|real| real.display().to_string() == self.source)
    }

    /// Whether these are the files of a folder that was at this path when the share was opened.
    pub(crate) fn was_at(&self, path: &Path, looks: &Looks) -> bool {
        self.place.is_some() && (self.path.as_deref() == Some(path) || self.is_named_by(path, looks))
    }

    /// Whether its file system was mounted at this path and is not any more, so that the folder below has come to light.
    pub(crate) fn is_unmounted(&self, path: &Path, looks: &Looks) -> bool {
        let another = looks.place(path).is_some_and(|place| Some(place) != self.place);
        self.is_mount && another && !looks.is_mount(path) && self.was_at(path, looks)
    }

    /// The folder's path as it was configured.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Whether its folder has a quota.
    pub(crate) fn has_quota(&self) -> bool {
        self.share.vfs.quota().is_some()
    }

    /// The snapshots of its folder.
    pub(crate) fn snapshots(&self) -> Option<Arc<Snapshots>> {
        self.share.snapshots.clone()
    }

    /// Whether a configuration gives it a quota that can be enforced, before anything changes. Blocks.
    pub(crate) fn check_quota(&self, config: &ShareConfig) -> Result<(), CannotOpen> {
        let (Some(limit_bytes), Some(root)) = (config.quota, &self.root) else { return Ok(()) };
        if self.share.vfs.quota().is_some_and(|quota| quota.limit_bytes() == limit_bytes) {
            return Ok(());
        }
        check_quota(Path::new(&self.source), root, limit_bytes)
    }

    /// The same files under another configuration. Blocks while a quota is set, as long as the file system answers.
    pub(crate) fn under(&self, planned: &PlannedShare) -> Described {
        let before = self.share.vfs.quota();
        let quota = self.requota(&planned.config);
        let mut described = match &quota {
            Ok(quota) => ruled(&planned.config, self.files.clone(), self.source.clone(), quota.clone()),
            Err(e) => {
                // Nothing may grow that cannot be limited.
                tracing::error!(
                    "share {} is read-only, because its quota cannot be enforced: {e}",
                    self.share.name
                );
                let config = ShareConfig { read_only: true, ..planned.config.clone() };
                ruled(&config, self.files.clone(), self.source.clone(), None)
            }
        };
        let now = described.share.vfs.quota();
        if !(before.is_none() && now.is_none() || before.zip(now).is_some_and(|(before, now)| before.is(now)))
        {
            // Closing a file may ask its file system; that may also take place later.
            let vfs = described.share.vfs.clone();
            let closed = deadline::within(Path::new(&self.source), LOOK_LIMIT, move || vfs.close_cached());
            if let Err(e) = closed {
                tracing::warn!("share {}: files that clients have closed stay open: {e}", self.share.name);
            }
        }
        (described.path, described.place, described.is_mount) =
            (self.path.clone(), self.place, self.is_mount);
        (described.root, described.record) = (self.root.clone(), self.record.clone());
        described.share.snapshots = planned.snapshots.clone();
        described
    }
}

impl Described {
    /// Its quota under another configuration.
    fn requota(&self, config: &ShareConfig) -> io::Result<Option<Quota>> {
        let folder = Path::new(&self.source);
        match (self.share.vfs.quota().cloned(), config.quota, self.root.clone()) {
            (Some(quota), Some(limit_bytes), _) if quota.limit_bytes() == limit_bytes => {
                quota.count_again();
                Ok(Some(quota))
            }
            (Some(quota), Some(limit_bytes), _) => {
                asked(folder, move || quota.limited_to(limit_bytes)).map(Some)
            }
            (None, Some(limit_bytes), Some(root)) => {
                limited(&config.name, folder, root, limit_bytes, self.record.clone()).map(Some)
            }
            (Some(_), None, _) => {
                self.end_quota();
                Ok(None)
            }
            (None, ..) => Ok(None),
        }
    }

    /// The folder has no quota any more. Blocks as long as its file system answers.
    pub(crate) fn end_quota(&self) {
        let Some(quota) = self.share.vfs.quota().cloned() else { return };
        let ended = deadline::within(Path::new(&self.source), LOOK_LIMIT, move || quota.end());
        if let Err(e) = ended {
            tracing::warn!("share {}: its quota may still apply: {e}", self.share.name);
        }
    }
}

/// Does some work on a folder, unless its file system does not answer.
fn asked<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    deadline::within(folder, LOOK_LIMIT, work)?
}

/// Whether a folder can have a quota.
fn check_quota(folder: &Path, root: &Arc<OwnedFd>, limit_bytes: u64) -> Result<(), CannotOpen> {
    let (at, root) = (folder.to_owned(), root.clone());
    let check = move || quota::check(&at, root, limit_bytes).map_err(io::Error::other);
    asked(folder, check).map_err(|e| cannot_open(folder, &e))
}

/// The quota of an open folder.
fn limited(
    name: &str,
    folder: &Path,
    root: Arc<OwnedFd>,
    limit_bytes: u64,
    record: Option<PathBuf>,
) -> io::Result<Quota> {
    let name = name.to_owned();
    let work = move |progress: &Progress| {
        Quota::new(&name, root, limit_bytes, record.as_deref(), &|| progress.tell())
    };
    deadline::within_of_progress(folder, LOOK_LIMIT, work)?
}

/// A folder that existed when the plan was made can no longer be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {path}: {why}")]
pub(crate) struct CannotOpen {
    path: String,
    why: String,
    /// Whether its file system has not answered.
    is_silent: bool,
}

/// What is said of a ramdisk.
pub(crate) fn source_of_ram(size_bytes: u64) -> String {
    format!("ram, {size_bytes} bytes")
}

/// An open folder.
struct Opened {
    backend: Dir,
    root: Arc<OwnedFd>,
    /// Without links.
    folder: PathBuf,
    place: Option<Place>,
    is_mount: bool,
}

impl Opened {
    /// Blocks.
    fn at(path: &Path) -> io::Result<Opened> {
        let backend = Dir::open(path)?;
        let root = backend.root().map_err(|e| io::Error::other(e.to_string()))?;
        let folder = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Opened { backend, root, folder, place: Place::of(path), is_mount: is_mount(path) })
    }
}

/// Opens the files of a share; `None` for those of volumes, which are opened with the volumes.
fn open(planned: &PlannedShare, state: Option<&Path>) -> Result<Option<Described>, CannotOpen> {
    let config = &planned.config;
    let mut described = match &config.source {
        ShareSource::Folder(path) => open_folder(config, path, state)?,
        ShareSource::Ram { size_bytes } => {
            let vfs = Vfs::new(Ram::new(*size_bytes)).heard_by(Health::new(&config.name, None));
            ruled(config, vfs, source_of_ram(*size_bytes), None)
        }
        ShareSource::Volumes => return Ok(None),
    };
    described.share.snapshots = planned.snapshots.clone();
    Ok(Some(described))
}

/// Opens a folder, with the quota of its share.
fn open_folder(config: &ShareConfig, path: &Path, state: Option<&Path>) -> Result<Described, CannotOpen> {
    let (name, at) = (config.name.as_str(), path.to_owned());
    let opened = asked(path, move || Opened::at(&at)).map_err(|e| cannot_open(path, &e))?;
    let Opened { backend, root, folder, place, is_mount } = opened;
    let record = state.map(|state| quota::record_file(state, name, &folder));
    let mut quota = None;
    if let Some(limit_bytes) = config.quota {
        check_quota(&folder, &root, limit_bytes)?;
        let limited = limited(name, &folder, root.clone(), limit_bytes, record.clone());
        quota = Some(limited.map_err(|e| cannot_open(path, &e))?);
    }
    let health = Health::new(name, Some(&folder)).of_root(root.clone()).on(backend.file_system());
    let vfs = Vfs::new(backend).heard_by(health);
    let described = ruled(config, vfs, folder.display().to_string(), quota);
    Ok(Described { path: Some(path.to_owned()), place, is_mount, root: Some(root), record, ..described })
}

/// Opens the files of these shares, except those of volumes; `state` is the state directory, where counts are kept. A share of the configuration file that cannot be opened is
/// added to `absent`.
///
/// # Errors
/// A share of the command line cannot be opened.
pub(crate) fn open_all(
    shares: &[PlannedShare],
    state: Option<&Path>,
    absent: &mut Vec<AbsentShare>,
) -> Result<Vec<Described>, CannotOpen> {
    let mut opened = Vec::new();
    for planned in shares {
        match (open(planned, state), &planned.config.source) {
            (Ok(described), _) => opened.extend(described),
            (Err(e), ShareSource::Folder(path)) if planned.config.origin == Origin::File => {
                let is_silent = e.is_silent;
                absent.push(AbsentShare { is_silent, ..AbsentShare::new(&planned.config.name, path, e) });
            }
            (Err(e), _) => return Err(e),
        }
    }
    Ok(opened)
}

/// A share of these files, with the configured rules for its users.
pub(crate) fn ruled(config: &ShareConfig, vfs: Vfs, source: String, quota: Option<Quota>) -> Described {
    let files = vfs.clone();
    let vfs = match quota {
        Some(quota) => vfs.limited(quota),
        None => vfs,
    };
    let vfs = if config.read_only { vfs.read_only() } else { vfs.changeable() };
    let mut share = Share::new(config.name.as_str(), vfs);
    share.rules = config.rules();
    share.meter = Subject::named(&config.name);
    Described { share, source, files, path: None, place: None, is_mount: false, root: None, record: None }
}

/// Some errors already name the path.
fn cannot_open(path: &Path, e: &io::Error) -> CannotOpen {
    let why = e.to_string();
    let why = why.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&why).to_owned();
    CannotOpen { path: path_name(path), why, is_silent: e.kind() == io::ErrorKind::TimedOut }
}
