//! Files in a share that is a DFS root: names prefixed with the namespace, and DFS links.
//!
//! Spec: [MS-SMB2] 3.3.5.9 (normalization), [MS-DFSC] 3.2.4.1. The links are the server's (`server::dfs`). Links are
//! not stored in the folder: listings show them as the reparse points that Windows has there, and they hide anything of
//! the same name in the folder.

use weft_store::vfs::{Attr, NodeId};
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::fscc::directory;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{NtStatus, reparse};

use super::opens::Open;
use super::path::Path;
use super::{attributes, resolve, volume};
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// The path of a CREATE relative to the share; STATUS_PATH_NOT_COVERED if it goes through a link.
pub(super) fn relative(cx: &OpContext, name: String) -> Result<String, NtStatus> {
    let Some(share) = &cx.tree().share else { return Ok(name) };
    let dfs = &cx.config().offers.dfs;
    if !dfs.is_root(&share.name) {
        return Ok(name);
    }
    let name = match cx.header().flags.contains(Flags::DFS_OPERATIONS) {
        true => dfs.normalize(&share.name, &name)?.to_owned(),
        false => name,
    };
    // Also for clients without DFS: a file that they created there would be hidden.
    if dfs.covers(&share.name, &name) { Err(NtStatus::PATH_NOT_COVERED) } else { Ok(name) }
}

/// Refuses a new name that is a link's, or is below one.
pub(super) fn refuse_covered(cx: &OpContext, name: &str) -> Result<(), NtStatus> {
    let covered = |share: &weft_store::vfs::Share| cx.config().offers.dfs.covers(&share.name, name);
    if cx.tree().share.as_ref().is_some_and(covered) { Err(NtStatus::NOT_SAME_DEVICE) } else { Ok(()) }
}

/// The links in a directory, as entries of its listing.
pub(super) async fn links_in(cx: &OpContext, open: &Open) -> Result<Vec<directory::Entry>, Failure> {
    let dfs = &cx.config().offers.dfs;
    let Some(share) = cx.tree().share.as_ref().filter(|share| dfs.is_root(&share.name)) else {
        return Ok(Vec::new());
    };
    let mut entries = Vec::new();
    for dir in dfs.directories(&share.name) {
        let here = match dir {
            [] => open.node == NodeId::ROOT,
            names => {
                let path = Path::parse(&names.join("\\"))?;
                // If the folder has no such directory, nobody can list it.
                let found = resolve::resolve(&open.vfs, &path).await.ok().and_then(|resolved| resolved.found);
                found.is_some_and(|(attr, _)| attr.node == open.node)
            }
        };
        if here {
            let attr = open.vfs.getattr(open.node).await?;
            entries.extend(dfs.links_in(&share.name, dir).map(|name| entry(&attr, name)));
        }
    }
    Ok(entries)
}

/// A link has the times of its directory.
fn entry(dir: &Attr, name: &str) -> directory::Entry {
    let summary = attributes::summary(dir, None, name.as_bytes());
    directory::Entry {
        file_index: 0,
        creation_time: summary.creation_time,
        last_access_time: summary.last_access_time,
        last_write_time: summary.last_write_time,
        change_time: summary.change_time,
        end_of_file: 0,
        allocation_size: 0,
        attributes: FileAttributes::DIRECTORY | FileAttributes::REPARSE_POINT,
        ea_size: reparse::DFS,
        // Not any file's id; those are never that large.
        file_id: volume::id(name) | 1 << 63,
        short_name: String::new(),
        name: name.to_owned(),
        posix: None,
        mac: None,
    }
}
