//! Resolves a path to a file, one look-up per name.
//!
//! Spec: [MS-FSA] 2.1.5.1, phase 6; [MS-SMB2] 3.3.5.9 (symbolic links). Links are not followed. A spelling with another
//! case is tried only if the exact one does not exist.

use weft_store::vfs::{Attr, DirName, Error, Kind, NodeId, Vfs};
use weft_wire::smb2::NtStatus;

use super::path::{self, Path};
use super::{status, symlink};
use crate::server::answer::Failure;

/// The result of resolving a path.
pub(super) struct Resolved {
    /// The directory of the last name; the root for the root itself.
    pub(super) dir: NodeId,
    /// The last name as the client spells it; empty for the root.
    pub(super) name: Vec<u8>,
    /// The file, and its name in the store's spelling.
    pub(super) found: Option<(Attr, Vec<u8>)>,
}

impl Resolved {
    /// A name in its directory.
    pub(super) fn at<'a>(&self, name: &'a [u8]) -> DirName<&'a [u8]> {
        DirName { dir: self.dir, name }
    }
}

/// Resolves a path, case-insensitively.
pub(super) async fn resolve(vfs: &Vfs, path: &Path) -> Result<Resolved, Failure> {
    walk(vfs, path, false).await
}

/// Resolves a path; `exact`, for POSIX, is case-sensitive.
pub(super) async fn walk(vfs: &Vfs, path: &Path, exact: bool) -> Result<Resolved, Failure> {
    let Some((last, before)) = path.names.split_last() else {
        let attr = vfs.getattr(NodeId::ROOT).await?;
        return Ok(Resolved { dir: NodeId::ROOT, name: Vec::new(), found: Some((attr, Vec::new())) });
    };
    let mut dir = NodeId::ROOT;
    for (i, name) in before.iter().enumerate() {
        let mut attr = vfs.lookup(dir, name, !exact).await;
        if matches!(attr, Err(Error::NotFound)) {
            for other in path::other_spellings(name, path.normalizes) {
                attr = vfs.lookup(dir, &other, !exact).await;
                if !matches!(attr, Err(Error::NotFound)) {
                    break;
                }
            }
        }
        let attr = match attr {
            Err(Error::NotFound | Error::NotDir | Error::Stale) => {
                return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into());
            }
            other => other?,
        };
        match attr.kind {
            Kind::Dir => dir = attr.node,
            Kind::Symlink => {
                let rest = path.names.get(i.saturating_add(1)..).unwrap_or_default();
                return Err(symlink::stopped(vfs, attr.node, rest, exact).await);
            }
            Kind::File | Kind::Special(_) => return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into()),
        }
    }
    let found = lookup(vfs, dir, last, (exact, path.normalizes)).await?;
    Ok(Resolved { dir, name: last.clone(), found })
}

/// Finds `name` in any case; returns its actual spelling. `normalizes`: see [`Path::normalizes`].
pub(super) async fn find(
    vfs: &Vfs,
    dir: NodeId,
    name: &[u8],
    normalizes: bool,
) -> Result<Option<(Attr, Vec<u8>)>, Failure> {
    lookup(vfs, dir, name, (false, normalizes)).await
}

/// Finds a name, or else another spelling of it.
async fn lookup(
    vfs: &Vfs,
    dir: NodeId,
    name: &[u8],
    (exact, normalizes): (bool, bool),
) -> Result<Option<(Attr, Vec<u8>)>, Failure> {
    if let Some(found) = lookup_spelling(vfs, dir, name, exact).await? {
        return Ok(Some(found));
    }
    for other in path::other_spellings(name, normalizes) {
        if let Some(found) = lookup_spelling(vfs, dir, &other, exact).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn lookup_spelling(
    vfs: &Vfs,
    dir: NodeId,
    name: &[u8],
    exact: bool,
) -> Result<Option<(Attr, Vec<u8>)>, Failure> {
    match vfs.lookup(dir, name, false).await {
        Ok(attr) => return Ok(Some((attr, name.to_vec()))),
        Err(Error::NotFound) if exact => return Ok(None),
        Err(Error::NotFound) => {}
        // The directory was removed meanwhile.
        Err(Error::Stale) => return Err(NtStatus::OBJECT_PATH_NOT_FOUND.into()),
        Err(e) => return Err(e.into()),
    }
    match vfs.lookup(dir, name, true).await {
        Ok(attr) => match vfs.place(attr.node).await {
            Ok(place) if place.dir == dir => Ok(Some((attr, place.name))),
            // Moved meanwhile, or found through another of its links: this name does not exist any more.
            Ok(_) | Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        },
        Err(Error::NotFound) => Ok(None),
        Err(e) => Err(status::of(&e).into()),
    }
}
