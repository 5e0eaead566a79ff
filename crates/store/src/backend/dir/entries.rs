//! Changes of a directory's entries: links, renames and removals.
//!
//! A removal may free much space, and the disk then takes long: it happens when the last descriptor is closed, which
//! [`Ending`] keeps for the caller.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use weft_machine::file::ending::{self, MUCH_BYTES};

use super::super::names;
use super::Folder;
use super::sys::{self, Stat};
use super::table::Reach;
use crate::vfs::{Error, Kind, NodeId};

/// The descriptor of a file whose name is being removed. Dropping it does not wait for the disk.
pub(super) struct Ending(Option<OwnedFd>);

impl Ending {
    /// Closes it, waiting for the disk if nobody else has the file open.
    pub(super) fn close(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            ending::let_go(fd.as_fd());
        }
    }
}

impl Folder {
    /// Runs `act`, which changes the entries of `dir`, and keeps `folds` up to date.
    pub(super) fn changing<T, E: From<Errno>>(
        &self,
        (dir, fd): (NodeId, &OwnedFd),
        removed: Option<&[u8]>,
        added: Option<&[u8]>,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if !self.folds().remembers(dir) {
            let done = act()?;
            // Another core may have begun to read the directory since, or have finished reading it.
            self.folds().distrust(dir);
            return Ok(done);
        }
        let before = sys::stat(fd.as_fd())?.stamp();
        let done = act()?;
        if let Ok(after) = sys::stat(fd.as_fd()) {
            self.folds().changed(dir, (before, after.stamp()), removed, added);
        }
        Ok(done)
    }

    pub(super) fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        names::check_entry(name)?;
        if self.table().kind(node)? == Kind::Dir {
            return Err(Error::IsDir);
        }
        let (fd, dir_fd) = (self.fd(node)?, self.dir_fd(dir)?);
        let link = || self.proc.link(fd.as_fd(), dir_fd.as_fd(), name);
        Ok(self.changing((dir, &dir_fd), None, Some(name), link)?)
    }

    pub(super) fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        replace: bool,
    ) -> Result<(Option<NodeId>, Option<Ending>), Error> {
        names::check_entry(from.1)?;
        names::check_entry(to.1)?;
        let (from_fd, to_fd) = (self.dir_fd(from.0)?, self.dir_fd(to.0)?);
        let there = if replace { sys::stat_at(to_fd.as_fd(), to.1).ok() } else { None };
        if let Some(there) = &there
            && there.links() > 1
            && (from.0, from.1) != (to.0, to.1)
            && sys::stat_at(from_fd.as_fd(), from.1).is_ok_and(|from| from.identity() == there.identity())
        {
            // rename(2) leaves two names of one file unchanged, so there is no change to report.
            return Ok((None, None));
        }
        let (replaced, ending) = there.map_or((None, None), |there| self.named_so(&to_fd, to.1, &there));
        let act = || sys::rename((from_fd.as_fd(), from.1), (to_fd.as_fd(), to.1), replace);
        if from.0 == to.0 {
            self.changing((to.0, &to_fd), Some(from.1), Some(to.1), act)?;
        } else {
            let arriving = || self.changing((to.0, &to_fd), None, Some(to.1), act);
            self.changing((from.0, &from_fd), Some(from.1), None, arriving)?;
        }
        // Clients that know the file by its node find it at its new place.
        match sys::stat_at(to_fd.as_fd(), to.1) {
            Ok(stat) => {
                self.seen(&stat, to.0, to.1)?;
            }
            // Another program has already moved it again.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        Ok((replaced.and_then(|node| self.unnamed(node)), ending))
    }

    pub(super) fn unlink(
        &self,
        dir: NodeId,
        name: &[u8],
        flags: AtFlags,
    ) -> Result<(Option<NodeId>, Option<Ending>), Error> {
        names::check_entry(name)?;
        let fd = self.dir_fd(dir)?;
        let (node, ending) = self.named(&fd, name);
        self.changing((dir, &fd), Some(name), None, || rustix::fs::unlinkat(&*fd, name, flags))?;
        Ok((node.and_then(|node| self.unnamed(node)), ending))
    }

    /// The object of a name before it is removed: its node, if known, and the file, if freeing its space takes time.
    pub(super) fn named(&self, dir: &OwnedFd, name: &[u8]) -> (Option<NodeId>, Option<Ending>) {
        sys::stat_at(dir.as_fd(), name).map_or((None, None), |stat| self.named_so(dir, name, &stat))
    }

    fn named_so(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> (Option<NodeId>, Option<Ending>) {
        let is_large = stat.kind() == Kind::File && stat.allocated() >= MUCH_BYTES;
        let file = is_large.then(|| sys::open_path(dir.as_fd(), name).ok()).flatten();
        (self.table().of(&stat.identity()), file.map(|fd| Ending(Some(fd))))
    }

    /// A name of this node was removed. If it was the last one, its cached descriptor is closed unless a client has
    /// it open: the file system keeps the space as long as a descriptor exists.
    pub(super) fn unnamed(&self, node: NodeId) -> Option<NodeId> {
        let reach = self.table().reach(node).ok()?;
        // Without a cached descriptor nothing here keeps the file; others may.
        let Reach::Fd(fd) = reach else { return Some(node) };
        let links = sys::stat(fd.as_fd()).ok()?.links();
        if links > 0 {
            return None;
        }
        let closed = self.table().unlinked(node);
        drop(closed);
        Some(node)
    }
}
