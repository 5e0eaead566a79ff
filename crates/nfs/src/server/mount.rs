//! MOUNT: from "/NAME" or a folder below it to a handle.
//!
//! Spec: RFC 1813 section 5. Owns: the list of who has mounted what, which is for people to read and decides nothing.
//! Does not: restrict who may mount beyond the networks of an export.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_store::rules::Network;
use weft_store::{Kind, NodeId, Share};
use weft_wire::mount::{DirPath, Export, List, MountEntry, MountResult, MountStatus, Name};
use weft_wire::nfs3::Status;

use super::attributes::status;
use super::dispatch::Connection;
use super::export::{self, KeptOut};

/// Who has mounted what, as far as they said.
pub(super) struct Mounts {
    entries: Mutex<Vec<(String, DirPath)>>,
    limit: usize,
}

impl Mounts {
    pub fn new(limit: usize) -> Mounts {
        Mounts { entries: Mutex::default(), limit }
    }

    // A Vec's push or retain leaves it usable even if it panicked.
    fn entries(&self) -> MutexGuard<'_, Vec<(String, DirPath)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn mnt(cx: &Connection<'_>, path: DirPath) -> MountResult {
    match find(cx, &path.0).await {
        Ok((share, node)) => {
            remember(cx, &path);
            let flavors = export::flavors(&cx.server.shares[share].rules.nfs);
            match cx.handle(share, node).await {
                Ok(handle) => MountResult::Ok { handle, flavors },
                Err(_) => MountResult::Failed(MountStatus::IO),
            }
        }
        Err(status) => MountResult::Failed(status),
    }
}

fn remember(cx: &Connection<'_>, path: &DirPath) {
    let mounts = &cx.server.mounts;
    // A copy: a slice would keep the receive buffer that the call came in.
    let entry = (cx.host().to_owned(), DirPath(Bytes::copy_from_slice(&path.0)));
    let mut entries = mounts.entries();
    if entries.len() < mounts.limit && !entries.contains(&entry) {
        entries.push(entry);
    }
}

/// Walks from the export down, never through a link and never up.
async fn find(cx: &Connection<'_>, path: &[u8]) -> Result<(usize, NodeId), MountStatus> {
    let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    let export = names.next().ok_or(MountStatus::NOENT)?;
    let number = cx.server.shares.iter().position(|share| share.name.as_bytes() == export);
    let number = number.ok_or(MountStatus::NOENT)?;
    // How callers name themselves is asked when they use it: here they learn how.
    if cx.admit(number) == Err(KeptOut::Network) {
        return Err(MountStatus::ACCES);
    }
    let vfs = &cx.server.shares[number].vfs;
    let mut node = NodeId::ROOT;
    for name in names {
        if name == b"." || name == b".." {
            return Err(MountStatus::ACCES);
        }
        let attr = vfs.lookup(node, name, false).await.map_err(|e| match status(&e) {
            Status::NOENT => MountStatus::NOENT,
            Status::NOTDIR => MountStatus::NOTDIR,
            Status::ACCES => MountStatus::ACCES,
            _ => MountStatus::IO,
        })?;
        if attr.kind != Kind::Dir {
            return Err(MountStatus::NOTDIR);
        }
        node = attr.node;
    }
    Ok((number, node))
}

pub(super) fn dump(cx: &Connection<'_>) -> List<MountEntry> {
    let entries = cx.server.mounts.entries();
    let entry = |(host, directory): &(String, DirPath)| MountEntry {
        hostname: Name(Bytes::copy_from_slice(host.as_bytes())),
        directory: directory.clone(),
    };
    List(entries.iter().map(entry).collect())
}

pub(super) fn umnt(cx: &Connection<'_>, path: DirPath) {
    let gone = (cx.host().to_owned(), path);
    cx.server.mounts.entries().retain(|entry| *entry != gone);
}

pub(super) fn umntall(cx: &Connection<'_>) {
    let host = cx.host().to_owned();
    cx.server.mounts.entries().retain(|entry| entry.0 != host);
}

pub(super) fn exports(cx: &Connection<'_>) -> List<Export> {
    let export = |share: &Share| {
        let group = |network: &Network| Name(Bytes::from(network.to_string()));
        let groups = List(share.rules.nfs.networks.iter().map(group).collect());
        Export { dir: DirPath(Bytes::from(format!("/{}", share.name))), groups }
    };
    List(cx.server.shares.iter().map(export).collect())
}
