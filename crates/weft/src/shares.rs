//! Opens the files of the shares in a plan.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use weft_machine::meter::Subject;
use weft_store::backend::{Dir, Ram};
use weft_store::health::Health;
use weft_store::quota::{self, Quota};
use weft_store::snapshots::Snapshots;
use weft_store::{Share, Vfs};

use crate::config::{AbsentShare, Origin, PlannedShare, ShareConfig, ShareSource};
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
    /// The folder's file system and node.
    folder: Option<(u64, u64)>,
    /// The open folder.
    root: Option<Arc<OwnedFd>>,
}

impl Described {
    /// Whether this is still the folder at its path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.folder == identity(path)
    }

    /// Whether these are the files of a folder that was at this path when the share was opened.
    pub(crate) fn was_at(&self, path: &Path) -> bool {
        self.folder.is_some() && source_of_folder(path) == self.source
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
        let folder = Path::new(&self.source);
        quota::check(folder, root, limit_bytes).map_err(|e| cannot_open(folder, &e.to_string()))
    }

    /// The same files under another configuration. Blocks while a quota is set.
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
            described.share.vfs.close_cached();
        }
        (described.folder, described.root) = (self.folder, self.root.clone());
        described.share.snapshots = planned.snapshots.clone();
        described
    }
}

impl Described {
    /// Its quota under another configuration.
    fn requota(&self, config: &ShareConfig) -> std::io::Result<Option<Quota>> {
        match (self.share.vfs.quota(), config.quota, &self.root) {
            (Some(quota), Some(limit_bytes), _) => quota.limited_to(limit_bytes).map(Some),
            (None, Some(limit_bytes), Some(root)) => Quota::new(&config.name, root, limit_bytes).map(Some),
            (Some(quota), None, _) => {
                quota.end();
                Ok(None)
            }
            (None, ..) => Ok(None),
        }
    }
}

/// A folder that existed when the plan was made can no longer be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {path}: {why}")]
pub(crate) struct CannotOpen {
    path: String,
    why: String,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// What is said of a folder.
pub(crate) fn source_of_folder(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// What is said of a ramdisk.
pub(crate) fn source_of_ram(size_bytes: u64) -> String {
    format!("ram, {size_bytes} bytes")
}

/// Opens the files of a share; `None` for those of volumes, which are opened with the volumes.
fn open(planned: &PlannedShare) -> Result<Option<Described>, CannotOpen> {
    let name = planned.config.name.as_str();
    let (mut opened_root, mut quota) = (None, None);
    let (vfs, source) = match &planned.config.source {
        ShareSource::Folder(path) => {
            let backend = Dir::open(path).map_err(|e| cannot_open(path, &e.to_string()))?;
            let folder = path.canonicalize().unwrap_or_else(|_| path.clone());
            let system = backend.file_system();
            let root = backend.root().map_err(|e| cannot_open(path, &e.to_string()))?;
            if let Some(limit_bytes) = planned.config.quota {
                quota::check(&folder, &root, limit_bytes).map_err(|e| cannot_open(path, &e.to_string()))?;
                let limited = Quota::new(name, &root, limit_bytes);
                quota = Some(limited.map_err(|e| cannot_open(path, &e.to_string()))?);
            }
            opened_root = Some(root.clone());
            let health = Health::new(name, Some(&folder)).of_root(root).on(system);
            let vfs = Vfs::new(backend).heard_by(health);
            (vfs, source_of_folder(&folder))
        }
        ShareSource::Ram { size_bytes } => {
            let vfs = Vfs::new(Ram::new(*size_bytes)).heard_by(Health::new(name, None));
            (vfs, source_of_ram(*size_bytes))
        }
        ShareSource::Volumes => return Ok(None),
    };
    let mut described = ruled(&planned.config, vfs, source, quota);
    described.root = opened_root;
    if let ShareSource::Folder(path) = &planned.config.source {
        described.folder = identity(path);
    }
    described.share.snapshots = planned.snapshots.clone();
    Ok(Some(described))
}

/// Opens the files of these shares, except those of volumes. A share of the configuration file that cannot be opened is
/// added to `absent`.
///
/// # Errors
/// A share of the command line cannot be opened.
pub(crate) fn open_all(
    shares: &[PlannedShare],
    absent: &mut Vec<AbsentShare>,
) -> Result<Vec<Described>, CannotOpen> {
    let mut opened = Vec::new();
    for planned in shares {
        match (open(planned), &planned.config.source) {
            (Ok(described), _) => opened.extend(described),
            (Err(e), ShareSource::Folder(path)) if planned.config.origin == Origin::File => {
                absent.push(AbsentShare::new(&planned.config.name, path, e));
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
    Described { share, source, files, folder: None, root: None }
}

/// Some errors already name the path.
fn cannot_open(path: &Path, why: &str) -> CannotOpen {
    let why = why.strip_prefix(&format!("{}: ", path.display())).unwrap_or(why);
    CannotOpen { path: path_name(path), why: why.to_owned() }
}
