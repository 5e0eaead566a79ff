//! Streams beside files that are no more: what other programs delete takes its large streams along, too.
//!
//! Two ways lead to them. A file whose descriptor is cached is known to have lost its last name (see [`Dir::sweep`]): its streams go
//! at once. For the others a thread looks once an hour: whatever file has streams in [`FOLDER`] is looked up where it was
//! seen last, and, if it is not there, in the whole tree. One that was nowhere in two looks is gone; one look is not enough,
//! because a program may move a file behind the walk. A walk that cannot read everything decides nothing. Before anything is
//! removed, a walk asks for the identity of every file: directories of some file systems (FUSE, overlayfs) list other inode numbers
//! than their files have, and of what is mounted there any directory does.
//! Cost: nothing while the folder does not exist; a walk reads names and inodes alone, and more only before it removes.
//! Owns: what was nowhere in the last look. Does not: run in shares that are read-only, or look for what lies on another device
//! than the share's root: that has another number, and so another identity, after a restart of the host.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::io::{Errno, Result};

use super::sys::{self, Identity};
use super::{Dir, MAX_CACHED_FDS, MAX_ENTRIES};
use crate::vfs::depot::{FOLDER, folder_of, whose};
use crate::vfs::{Kind, NodeId};

/// Between two looks.
const TURN: Duration = Duration::from_secs(3600);
/// How deep a walk goes, a descriptor each; a tree that is deeper is left alone.
const MAX_DEPTH: usize = 256;

/// By what a walk knows a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By the inode number that its directory lists, and then by itself: no call for most files.
    Listing,
    /// By itself alone.
    Identity,
}

/// What is remembered between looks.
#[derive(Default)]
pub(super) struct Orphans {
    /// Files that were seen to have no name any more.
    gone: Vec<Identity>,
    looked: Option<Instant>,
    /// What was nowhere.
    suspects: HashSet<Identity>,
}

impl Orphans {
    /// A file was seen without a name.
    pub(super) fn has_lost_its_name(&mut self, file: Identity) {
        // In a share that is read-only nobody takes them; what is left out is found by a walk.
        if self.gone.len() < MAX_CACHED_FDS {
            self.gone.push(file);
        }
    }
}

impl Dir {
    /// Removes the streams of files that are no more.
    pub(super) fn remove_orphans(&self, now: Instant) {
        let (gone, look) = {
            let mut orphans = self.orphans();
            let look = orphans.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= TURN);
            if look {
                orphans.looked = Some(now);
            }
            (std::mem::take(&mut orphans.gone), look)
        };
        let done = self.streams_folder().and_then(|folder| match folder {
            Some(folder) => {
                let gone = gone.iter().filter(|file| !self.is_where_it_was(file));
                gone.into_iter().try_for_each(|file| self.remove_streams(folder.as_fd(), file))?;
                if look { self.look(folder.as_fd()) } else { Ok(()) }
            }
            None => Ok(()),
        });
        if let Err(e) = done {
            tracing::warn!("the streams of files that other programs deleted stay: {e}");
        }
    }

    fn streams_folder(&self) -> Result<Option<OwnedFd>> {
        let Ok(root) = self.fd(NodeId::ROOT) else { return Ok(None) };
        match sys::open_path(root.as_fd(), FOLDER) {
            Ok(folder) if sys::stat(folder.as_fd())?.kind() == Kind::Dir => Ok(Some(folder)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn look(&self, folder: BorrowedFd<'_>) -> Result<()> {
        let mut wanted = HashSet::new();
        each_entry(folder, |raw| {
            if let Some(stable) = whose(&raw.name) {
                let identity = Identity::from_stable(&stable, &self.home);
                if identity.is_beside(&self.home) && !self.is_where_it_was(&identity) {
                    wanted.insert(identity);
                }
            }
            Ok(())
        })?;
        if !wanted.is_empty() && !self.walk_for(&mut wanted, By::Listing)? {
            not_all();
            return Ok(());
        }
        let before = std::mem::take(&mut self.orphans().suspects);
        let (mut gone, suspects) =
            wanted.into_iter().partition::<HashSet<_>, _>(|file| before.contains(file));
        self.orphans().suspects = suspects;
        if !gone.is_empty() && !self.walk_for(&mut gone, By::Identity)? {
            not_all();
            return Ok(());
        }
        for file in gone {
            tracing::info!("removing the streams of a file that another program has deleted");
            self.remove_streams(folder, &file)?;
        }
        Ok(())
    }

    fn is_where_it_was(&self, identity: &Identity) -> bool {
        let node = self.table().of(identity);
        node.is_some_and(|node| node == NodeId::ROOT || self.place(node).is_ok())
    }

    /// Takes out of `wanted` what there is below the root. False where not everything can be read.
    fn walk_for(&self, wanted: &mut HashSet<Identity>, by: By) -> Result<bool> {
        let Ok(root) = self.fd(NodeId::ROOT) else { return Ok(false) };
        wanted.remove(&self.home);
        let inodes: HashSet<u64> = wanted.iter().map(Identity::inode).collect();
        // The directories on the way down, with those in each that are still to be read.
        let mut open = vec![(sys::open_path(root.as_fd(), b".")?, vec![b".".to_vec()])];
        while let Some((above, left)) = open.last_mut() {
            let Some(name) = left.pop() else {
                open.pop();
                continue;
            };
            if wanted.is_empty() {
                return Ok(true);
            }
            let dir = match sys::open_path(above.as_fd(), &name) {
                Ok(dir) => dir,
                // It went, or elsewhere.
                Err(_) => return Ok(false),
            };
            let at_root = open.len() == 1;
            let mut below = Vec::new();
            let read = each_entry(dir.as_fd(), |raw| {
                let may_be = raw.maybe_dir || by == By::Identity || inodes.contains(&raw.inode);
                if (at_root && raw.name == FOLDER) || !may_be {
                    return Ok(());
                }
                let stat = sys::stat_at(dir.as_fd(), &raw.name)?;
                wanted.remove(&stat.identity());
                if stat.kind() == Kind::Dir {
                    below.push(raw.name.clone());
                }
                Ok(())
            });
            if read.is_err() || open.len() >= MAX_DEPTH {
                return Ok(false);
            }
            open.push((dir, below));
        }
        Ok(true)
    }

    fn remove_streams(&self, folder: BorrowedFd<'_>, file: &Identity) -> Result<()> {
        let name = folder_of(&file.to_stable(&self.home));
        let streams = match sys::open_path(folder, &name) {
            Ok(streams) => streams,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut names = Vec::new();
        each_entry(streams.as_fd(), |raw| {
            names.push(raw.name.clone());
            Ok(())
        })?;
        for name in names {
            rustix::fs::unlinkat(&streams, &name[..], AtFlags::empty())?;
        }
        rustix::fs::unlinkat(folder, &name[..], AtFlags::REMOVEDIR)
    }
}

fn not_all() {
    tracing::debug!("not all of the share can be read: no streams are removed");
}

fn each_entry(dir: BorrowedFd<'_>, mut each: impl FnMut(&sys::Raw) -> Result<()>) -> Result<()> {
    let open = sys::open_dir(dir)?;
    let mut cookie = 0;
    loop {
        let (raw, end) = sys::entries(open.as_fd(), cookie, MAX_ENTRIES)?;
        cookie = raw.last().map_or(cookie, |last| last.cookie);
        raw.iter().try_for_each(&mut each)?;
        if end {
            return Ok(());
        }
    }
}
