//! Removes the large streams of files that other programs have deleted.
//!
//! There are two ways to find them. If a file's descriptor is cached, the loss of its last name is noticed (see
//! [`Folder::sweep`]), and its streams are removed at once. For other files, a thread checks once an hour: every file
//! with streams in [`FOLDER`] is looked up where it was last seen, and otherwise in the whole tree. A file that is
//! missing in two checks is gone; one check is not enough, because a program may move a file behind the walk. An
//! incomplete walk decides nothing. Before anything is removed, a walk asks for the identity of every file:
//! directories of some file systems (FUSE, overlayfs) list inode numbers that differ from their files', and
//! directories of all file systems do so for mount points. The same checks find what crashes and failures leave: a
//! file in the folder of an existing file to which none of that file's attributes led in two checks. One check is not
//! enough, because a moving stream has its file before its attribute. If the attributes cannot be read, nothing is
//! decided.
//! Cost: nothing while the folder does not exist. A walk reads only names and inodes, and more only before it removes
//! something. The attributes of each file with large streams are read. This does not run in read-only shares, and
//! does not look for files on other devices than the share's root: a device's number, and so the files' identities,
//! change when the host restarts.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::io::{Errno, Result};

use super::sys::{self, Identity};
use super::{Folder, MAX_CACHED_FDS, MAX_ENTRIES, xattr};
use crate::vfs::depot::{ATTRIBUTES, FOLDER, folder_of, leads_to, number_of, whose};
use crate::vfs::{DirName, Error, Kind, NodeId};

/// Interval between two checks.
const TURN: Duration = Duration::from_secs(3600);
/// Maximum depth of a walk, with a descriptor per level; a deeper tree is left alone.
const MAX_DEPTH: usize = 256;

/// How a walk recognizes a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// First by the inode number that its directory lists, then by its identity: no system call for most files.
    Listing,
    /// By its identity only.
    Identity,
}

/// State kept between checks.
#[derive(Default)]
pub(super) struct Orphans {
    /// Files that have lost their last name.
    gone: Vec<Identity>,
    looked: Option<Instant>,
    /// Files that were missing in the last check.
    suspects: HashSet<Identity>,
    /// Stream files, by their file and number, to which no attribute led.
    unnamed: HashSet<(Identity, u64)>,
}

/// Stream files to which no attribute leads, in the previous check and in this one.
struct Unnamed {
    before: HashSet<(Identity, u64)>,
    now: HashSet<(Identity, u64)>,
}

impl Orphans {
    /// A file was seen without a name.
    pub(super) fn has_lost_its_name(&mut self, file: Identity) {
        // In a read-only share nobody processes them; a walk finds those left out here.
        if self.gone.len() < MAX_CACHED_FDS {
            self.gone.push(file);
        }
    }
}

impl Folder {
    /// Removes the streams of deleted files.
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
            tracing::warn!("cannot remove the streams of files that other programs deleted: {e}");
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
        let mut owners = Vec::new();
        each_entry(folder, |raw| {
            let owner = whose(&raw.name).map(|stable| Identity::from_stable(&stable, &self.home));
            owners.extend(owner.filter(|owner| owner.is_beside(&self.home)));
            Ok(())
        })?;
        let before = std::mem::take(&mut self.orphans().unnamed);
        let mut unnamed = Unnamed { before, now: HashSet::new() };
        let mut wanted = HashSet::new();
        for owner in owners {
            match self.open_where_it_was(&owner) {
                Some(file) => self.remove_unnamed(folder, &owner, file.as_fd(), &mut unnamed),
                None => drop(wanted.insert(owner)),
            }
        }
        let all = wanted.is_empty()
            || self.walk_for(&mut wanted, By::Listing, |dir, name, owner| {
                if let Ok(file) = sys::open_path(dir, name) {
                    self.remove_unnamed(folder, owner, file.as_fd(), &mut unnamed);
                }
            })?;
        self.orphans().unnamed = unnamed.now;
        if !all {
            not_all();
            return Ok(());
        }
        let before = std::mem::take(&mut self.orphans().suspects);
        let (mut gone, suspects) =
            wanted.into_iter().partition::<HashSet<_>, _>(|file| before.contains(file));
        self.orphans().suspects = suspects;
        if !gone.is_empty() && !self.walk_for(&mut gone, By::Identity, |_, _, _| {})? {
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

    /// A descriptor of a file where it was last seen. It evicts no other descriptor from the cache.
    fn open_where_it_was(&self, identity: &Identity) -> Option<OwnedFd> {
        let node = self.table().of(identity)?;
        let DirName { dir, name } = match node {
            NodeId::ROOT => DirName { dir: NodeId::ROOT, name: b".".to_vec() },
            node => self.place(node).ok()?,
        };
        let file = sys::open_path(self.dir_fd(dir).ok()?.as_fd(), &name).ok()?;
        (sys::stat(file.as_fd()).ok()?.identity() == *identity).then_some(file)
    }

    /// Removes stream files to which no attribute of `file` leads now, or led in the previous check. A failed removal
    /// is repeated in the next check.
    fn remove_unnamed(
        &self,
        folder: BorrowedFd<'_>,
        owner: &Identity,
        file: BorrowedFd<'_>,
        unnamed: &mut Unnamed,
    ) {
        let mut remove = || -> std::result::Result<(), Error> {
            let name = folder_of(&owner.to_stable(&self.home));
            let streams = sys::open_path(folder, &name)?;
            let mut numbers = Vec::new();
            each_entry(streams.as_fd(), |raw| {
                numbers.extend(number_of(&raw.name).map(|number| (number, raw.name.clone())));
                Ok(())
            })?;
            // Read after the files were listed: an attribute leads to its file from the end of the move until the
            // file is removed.
            let Some(named) = named(file)? else { return Ok(()) };
            for (number, file_name) in numbers.into_iter().filter(|(number, _)| !named.contains(number)) {
                if unnamed.before.contains(&(*owner, number)) {
                    tracing::info!("removing a stream's file that no attribute refers to");
                    self.remove_entry(streams.as_fd(), &file_name, AtFlags::empty())?;
                } else {
                    unnamed.now.insert((*owner, number));
                }
            }
            // This succeeds only if it is empty; a writer creates it again.
            let _ = self.remove_entry(folder, &name, AtFlags::REMOVEDIR);
            Ok(())
        };
        if let Err(e) = remove() {
            tracing::debug!("cannot examine the files of streams: {e}");
        }
    }

    /// Removes from `wanted` what exists below the root, and reports where it was `found`. False if not everything
    /// can be read.
    fn walk_for(
        &self,
        wanted: &mut HashSet<Identity>,
        by: By,
        mut found: impl FnMut(BorrowedFd<'_>, &[u8], &Identity),
    ) -> Result<bool> {
        let Ok(root) = self.fd(NodeId::ROOT) else { return Ok(false) };
        wanted.remove(&self.home);
        let inodes: HashSet<u64> = wanted.iter().map(Identity::inode).collect();
        // The directories on the way down, each with the subdirectories still to be read.
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
                // It was removed or moved.
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
                let identity = stat.identity();
                if wanted.remove(&identity) {
                    found(dir.as_fd(), &raw.name, &identity);
                }
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
            self.remove_entry(streams.as_fd(), &name, AtFlags::empty())?;
        }
        self.remove_entry(folder, &name, AtFlags::REMOVEDIR)
    }

    /// Removes a stream's file or folder, and closes its cached descriptor: the space is free unless a client has it
    /// open.
    fn remove_entry(&self, dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<()> {
        let identity = sys::stat_at(dir, name)?.identity();
        rustix::fs::unlinkat(dir, name, flags)?;
        let node = self.table().of(&identity);
        node.and_then(|node| self.unnamed(node));
        Ok(())
    }
}

/// The numbers to which the attributes of a file lead; `None` if they are changing or cannot be read.
fn named(file: BorrowedFd<'_>) -> std::result::Result<Option<HashSet<u64>>, Error> {
    named_by(|| xattr::list(file), |name| xattr::get(file, name))
}

fn named_by(
    list: impl Fn() -> std::result::Result<Vec<Vec<u8>>, Error>,
    get: impl Fn(&[u8]) -> std::result::Result<Vec<u8>, Error>,
) -> std::result::Result<Option<HashSet<u64>>, Error> {
    let names = list()?;
    let mut numbers = HashSet::new();
    for name in names.iter().filter(|name| name.starts_with(ATTRIBUTES)) {
        match get(name) {
            Ok(value) => numbers.extend(leads_to(value)),
            Err(Error::NoXattr) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    // A file system mounted without attributes lists none, although the files keep theirs. No stream has this name.
    if numbers.is_empty() && !matches!(get(ATTRIBUTES), Err(Error::NoXattr)) {
        return Ok(None);
    }
    Ok((list()? == names).then_some(numbers))
}

fn not_all() {
    tracing::debug!("the share cannot be read completely: no streams are removed");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// ext4 with `nouser_xattr` lists nothing, and so does a file system remounted without attributes.
    #[test]
    fn attributes_that_cannot_be_had_decide_nothing() {
        let none = || Ok(Vec::new());
        for refuse in [|| Error::NotSupported, || Error::Access, || Error::Stale] {
            assert!(matches!(named_by(none, |_| Err(refuse())), Ok(None) | Err(_)));
        }
        // On file systems with attributes, there are none.
        assert_eq!(named_by(none, |_| Err(Error::NoXattr)).unwrap(), Some(HashSet::new()));
        // One attribute that leads to a file is enough.
        let value = [&b"\x89WEFT\r\n\x1a"[..], &7_u64.to_le_bytes()].concat();
        let one = || Ok(vec![b"other".to_vec(), b"weft.stream.s".to_vec()]);
        let get = |name: &[u8]| match name {
            b"weft.stream.s" => Ok(value.clone()),
            _ => Err(Error::NotSupported),
        };
        assert_eq!(named_by(one, get).unwrap(), Some(HashSet::from([7])));
        assert!(named_by(one, |_| Err(Error::NotSupported)).is_err());
    }
}
