//! The quota of a folder as a project quota of the kernel (ext4 with the features project and quota, XFS mounted with
//! prjquota): the kernel counts and refuses, and tells the limit as the size of the file system to whoever asks for the
//! folder's.
//!
//! An administrator may have made the project; then a server without any privilege uses it. A server with CAP_SYS_ADMIN makes
//! it: a free number, which everything below the folder gets, and the limit.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, capabilities};
use weft_machine::file::project;

use super::folder::FolderId;
use super::ledger::NO_LIMIT;
use super::walk;

/// Where the numbers begin that are given to folders without a project.
const FIRST_ID: u32 = 0x5745_0000;
/// How many numbers are tried.
const MAX_TRIES: u32 = 4096;

/// Why the kernel does not limit a folder.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoProject {
    /// The file system has no project quotas, or they are not switched on.
    #[error("its file system has no project quotas")]
    Unsupported,
    /// The server may not make a project or set its limit.
    #[error("this server may not set project quotas")]
    Forbidden,
    #[error("its project has another limit, which others have set")]
    Others,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The limits of the shares whose folders have a project.
static LIMITS: Mutex<Vec<(FolderId, Weak<AtomicU64>)>> = Mutex::new(Vec::new());

/// The limit of one share of a folder with a project, which has only one limit for all of them.
#[derive(Debug)]
pub(super) struct ProjectLimit {
    folder: FolderId,
    own: Arc<AtomicU64>,
}

impl ProjectLimit {
    /// Of a share that wants this limit for its folder.
    pub(super) fn new(root: &OwnedFd, bytes: u64) -> io::Result<ProjectLimit> {
        let (folder, own) = (FolderId::of(root)?, Arc::new(AtomicU64::new(bytes)));
        let mut all = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, own)| own.strong_count() > 0);
        all.push((folder, Arc::downgrade(&own)));
        drop(all);
        Ok(ProjectLimit { folder, own })
    }

    /// What the share wants.
    pub(super) fn bytes(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// The share wants another limit, or [`NO_LIMIT`].
    pub(super) fn set(&self, bytes: u64) {
        self.own.store(bytes, Ordering::Relaxed);
    }

    /// The smallest limit of the folder's shares.
    pub(super) fn least(&self) -> u64 {
        let all = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let same = all.iter().filter(|(folder, _)| *folder == self.folder);
        let limits = same.filter_map(|(_, own)| Some(own.upgrade()?.load(Ordering::Relaxed)));
        limits.min().unwrap_or(NO_LIMIT)
    }
}

/// Lets the kernel limit the folder to so many bytes, unless it does already. Returns the project's number.
pub(super) fn limit(root: &OwnedFd, limit_bytes: u64, goes_on: &dyn Fn()) -> Result<u32, NoProject> {
    let own = own_project(root)?;
    if let Some(id) = own.filter(|_| limited_to(root, limit_bytes).unwrap_or(false)) {
        return Ok(id);
    }
    may_limit(root, own)?;
    let id = own.map_or_else(|| free_id(root), Ok)?;
    if own.is_none() {
        walk::assign(root, id, goes_on).map_err(|e| match e {
            walk::Unreached::Io(e) => no_project(e),
            e => io::Error::other(e.to_string()).into(),
        })?;
    }
    project::limit_project(root, id, limit_bytes).map_err(no_project)?;
    // Quotas may be counted but not enforced (XFS with pqnoenforce), or switched off.
    match limited_to(root, limit_bytes)? {
        true => Ok(id),
        false => Err(NoProject::Unsupported),
    }
}

/// Whether [`limit`] would succeed, as far as is known without changing anything.
pub(super) fn can_limit(root: &OwnedFd, limit_bytes: u64) -> Result<(), NoProject> {
    let own = own_project(root)?;
    if own.is_some() && limited_to(root, limit_bytes)? {
        return Ok(());
    }
    may_limit(root, own)
}

/// The project of a folder that is not that of the folder around it, whose limit is another one.
fn own_project(root: &OwnedFd) -> Result<Option<u32>, NoProject> {
    let project = project::project_of(root).map_err(no_project)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let around = rustix::fs::openat(root, c"..", flags, Mode::empty());
    let around = around.ok().and_then(|around| project::project_of(around).ok()).map(|around| around.id);
    Ok((project.id != 0 && project.is_inherited && around != Some(project.id)).then_some(project.id))
}

/// Whether the limit of this project, or of a new one, is Weft's to set. One that an administrator has numbered may be that
/// of other folders as well.
fn may_limit(root: &OwnedFd, own: Option<u32>) -> Result<(), NoProject> {
    if !may_set() {
        return Err(NoProject::Forbidden);
    }
    // Project 0 exists wherever projects are counted.
    let usage = project::project_usage(root, own.unwrap_or(0)).map_err(no_project)?;
    match own {
        Some(id) if !is_ours(id) && usage.limit_bytes != 0 => Err(NoProject::Others),
        _ => Ok(()),
    }
}

fn is_ours(id: u32) -> bool {
    (FIRST_ID..FIRST_ID + MAX_TRIES).contains(&id)
}

/// Takes the limit away that [`limit`] has set for a folder. An administrator's own projects stay as they are.
pub(super) fn unlimit(root: &OwnedFd) {
    let Ok(Some(id)) = own_project(root) else { return };
    if is_ours(id)
        && may_set()
        && let Err(e) = project::limit_project(root, id, 0)
    {
        tracing::warn!("cannot take the limit of project {id} away: {e}");
    }
}

/// Total and free bytes, as the kernel says for the folder.
pub(super) fn space(root: &OwnedFd) -> io::Result<(u64, u64)> {
    let space = rustix::fs::fstatvfs(root)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok((bytes(space.f_blocks), bytes(space.f_bfree)))
}

/// Whether the kernel limits the folder so: the size is told in whole blocks.
fn limited_to(root: &OwnedFd, limit_bytes: u64) -> io::Result<bool> {
    let block = rustix::fs::fstatvfs(root)?.f_frsize.max(1);
    Ok(space(root)?.0 / block == limit_bytes / block)
}

fn may_set() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn free_id(root: &OwnedFd) -> Result<u32, NoProject> {
    for id in FIRST_ID..FIRST_ID + MAX_TRIES {
        match project::project_usage(root, id) {
            Ok(usage) if usage == project::ProjectUsage::default() => return Ok(id),
            Ok(_) => {}
            // XFS knows nothing of a project that was never used.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(id),
            Err(e) => return Err(no_project(e)),
        }
    }
    Err(io::Error::other(format!("{MAX_TRIES} projects have limits already")).into())
}

fn no_project(e: io::Error) -> NoProject {
    match e.kind() {
        _ if project::is_without_projects(&e) => NoProject::Unsupported,
        io::ErrorKind::PermissionDenied => NoProject::Forbidden,
        _ => NoProject::Io(e),
    }
}
