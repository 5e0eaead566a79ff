//! MOUNT: resolves "/NAME", or a folder below it, to a handle.
//!
//! See RFC 1813 section 5. [`Mounts`] lists who has mounted what, for information only; it decides nothing. Only the
//! networks and ports of an export restrict mounting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_store::rules::Network;
use weft_store::{Error, Kind, NodeId, Share, ShareList};
use weft_wire::mount::{DirPath, Export, List, MountEntry, MountResult, MountStatus, Name};
use weft_wire::nfs3::Status;

use super::attributes::status;
use super::context::Context;
use super::export::{self, KeptOut};
use super::file_id::FileId;

/// The mounts that clients have reported.
pub(super) struct Mounts {
    entries: Mutex<Vec<(String, DirPath)>>,
    limit: usize,
}

impl Mounts {
    pub fn new(limit: usize) -> Mounts {
        Mounts { entries: Mutex::default(), limit }
    }

    /// Forgets the mounts of shares that are not in this list.
    pub fn keep_of(&self, shares: &ShareList) {
        let is_of_one =
            |path: &DirPath| names(&path.0).next().is_some_and(|name| shares.named(name).is_some());
        self.entries().retain(|(_, path)| is_of_one(path));
    }

    // A Vec's push or retain leaves it usable even if it panicked.
    fn entries(&self) -> MutexGuard<'_, Vec<(String, DirPath)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn mnt(cx: &Context<'_>, path: DirPath) -> MountResult {
    match find(cx, &path.0).await {
        Ok((share, node)) => {
            remember(cx, &path);
            let flavors = export::flavors(&share.rules.nfs);
            match cx.handle(FileId { share: share.key(), node }).await {
                Ok(handle) => MountResult::Ok { handle, flavors },
                Err(_) => MountResult::Failed(MountStatus::IO),
            }
        }
        Err(status) => MountResult::Failed(status),
    }
}

fn remember(cx: &Context<'_>, path: &DirPath) {
    let mounts = &cx.server.mounts;
    // A copy, because a slice would keep the call's whole receive buffer in use.
    let entry = (cx.host.to_string(), DirPath(Bytes::copy_from_slice(&path.0)));
    let mut entries = mounts.entries();
    if entries.len() < mounts.limit && !entries.contains(&entry) {
        entries.push(entry);
    }
}

/// Most symbolic links followed in one path, as in Linux.
const LINKS: usize = 40;
/// Most names left to walk: the most that a Linux path can have.
const NAMES: usize = 2048;

/// The names of a path.
fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !name.is_empty() && name != b".")
}

/// Walks from the export down. The client cannot see folders that it has not mounted, so links on the way are
/// followed here if they are relative; an absolute link names a path of the host that created it. No link leads out
/// of the share.
async fn find<'a>(cx: &Context<'a>, path: &[u8]) -> Result<(&'a Share, NodeId), MountStatus> {
    let mut names_left: Vec<Vec<u8>> = names(path).rev().map(<[u8]>::to_vec).collect();
    let export = names_left.pop().ok_or(MountStatus::NOENT)?;
    let share = cx.list().named(&export).ok_or(MountStatus::NOENT)?;
    match cx.judge(share.id) {
        // The flavour is checked when the share is used; MOUNT tells the caller which one is needed.
        Ok(()) | Err(KeptOut::Flavor) => {}
        // Nor does the port of a caller matter who will show a ticket; MOUNT takes none. It learns no names below.
        Err(KeptOut::Port) if names_left.is_empty() && share.rules.nfs.admits_tickets(cx.peer) => {}
        Err(kept_out) => {
            cx.tell(share.id, kept_out);
            return Err(MountStatus::ACCES);
        }
    }
    // Clients mount as root, which is usually mapped to nobody.
    let vfs = share.vfs.as_server();
    // The nodes from the root to the current folder.
    let (mut way, mut links) = (vec![NodeId::ROOT], 0usize);
    while let Some(name) = names_left.pop() {
        let here = *way.last().unwrap_or(&NodeId::ROOT);
        if name == b".." {
            if way.len() == 1 {
                return Err(MountStatus::ACCES);
            }
            way.pop();
            continue;
        }
        let attr = vfs.lookup(here, &name, false).await.map_err(|e| refused(&e))?;
        match attr.kind {
            Kind::Dir => way.push(attr.node),
            Kind::Symlink => {
                links = links.saturating_add(1);
                let target = vfs.readlink(attr.node).await.map_err(|e| refused(&e))?;
                if target.first() == Some(&b'/') || links > LINKS {
                    return Err(MountStatus::ACCES);
                }
                names_left.extend(names(&target).rev().map(<[u8]>::to_vec));
                if names_left.len() > NAMES {
                    return Err(MountStatus::NAMETOOLONG);
                }
            }
            Kind::File | Kind::Special(_) => return Err(MountStatus::NOTDIR),
        }
    }
    Ok((share, *way.last().unwrap_or(&NodeId::ROOT)))
}

fn refused(error: &Error) -> MountStatus {
    match status(error) {
        Status::NOENT => MountStatus::NOENT,
        Status::NOTDIR => MountStatus::NOTDIR,
        Status::ACCES => MountStatus::ACCES,
        _ => MountStatus::IO,
    }
}

pub(super) fn dump(cx: &Context<'_>) -> List<MountEntry> {
    let entries = cx.server.mounts.entries();
    let entry = |(host, directory): &(String, DirPath)| MountEntry {
        hostname: Name(Bytes::copy_from_slice(host.as_bytes())),
        directory: directory.clone(),
    };
    List(entries.iter().map(entry).collect())
}

pub(super) fn umnt(cx: &Context<'_>, path: DirPath) {
    let gone = (cx.host.to_string(), path);
    cx.server.mounts.entries().retain(|entry| *entry != gone);
}

pub(super) fn umntall(cx: &Context<'_>) {
    let host = cx.host.to_string();
    cx.server.mounts.entries().retain(|entry| entry.0 != host);
}

pub(super) fn exports(cx: &Context<'_>) -> List<Export> {
    let export = |share: &Arc<Share>| {
        let group = |network: &Network| Name(Bytes::from(network.to_string()));
        let groups = List(share.rules.nfs.networks.iter().map(group).collect());
        Export { dir: DirPath(Bytes::from(format!("/{}", share.name))), groups }
    };
    List(cx.list().iter().map(export).collect())
}
