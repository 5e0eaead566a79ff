//! How a node is reached: by its cached descriptor, or from the nearest directory that has one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use weft_machine::credentials;

use super::Folder;
use super::sys::{self, Stat};
use super::table::Reach;
use crate::vfs::{Attr, Error, Kind, NodeId};

/// Maximum depth of a node below the nearest cached directory.
pub(super) const MAX_DEPTH: usize = 1024;

impl Folder {
    /// A descriptor of `node`: the cached one, or one opened by walking down from the nearest cached directory.
    ///
    /// A caller has found the node before, so the server walks: whether a descriptor is cached decides nothing.
    pub(super) fn fd(&self, node: NodeId) -> Result<Arc<OwnedFd>, Error> {
        if let Reach::Fd(fd) = self.table().reach(node)? {
            return Ok(fd);
        }
        credentials::as_server(|| self.walk_to(node))
    }

    fn walk_to(&self, node: NodeId) -> Result<Arc<OwnedFd>, Error> {
        let mut path = Vec::new();
        let mut at = node;
        let mut fd = loop {
            match self.table().reach(at)? {
                Reach::Fd(fd) => break fd,
                // Deeper than any real path: parents moved by other programs form a loop.
                Reach::Name(..) if path.len() == MAX_DEPTH => return Err(Error::Stale),
                Reach::Name(parent, name) => {
                    path.push((at, name));
                    at = parent;
                }
            }
        };
        while let Some((id, name)) = path.pop() {
            let child = sys::open_path(fd.as_fd(), &name).map_err(|e| match e {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Error::Stale,
                e => e.into(),
            })?;
            let identity = sys::stat(child.as_fd())?.identity();
            let mut table = self.table();
            if identity != table.identity(id)? {
                return Err(Error::Stale);
            }
            let (kept, out) = table.keep(id, Arc::new(child));
            drop(table);
            drop(out);
            fd = kept;
        }
        Ok(fd)
    }

    /// Like [`Folder::fd`], for a node that must be a directory.
    pub(super) fn dir_fd(&self, node: NodeId) -> Result<Arc<OwnedFd>, Error> {
        if self.table().kind(node)? != Kind::Dir {
            return Err(Error::NotDir);
        }
        self.fd(node)
    }

    pub(super) fn reopen(&self, fd: &OwnedFd, kind: Kind, flags: OFlags) -> Result<OwnedFd, Error> {
        match kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::IsDir),
            // Opening a device or a pipe can block or act.
            Kind::Symlink | Kind::Special(_) => return Err(Error::Invalid),
        }
        Ok(self.proc.reopen(fd.as_fd(), flags)?)
    }

    pub(super) fn seen(&self, stat: &Stat, dir: NodeId, name: &[u8]) -> Result<Attr, Error> {
        self.saw_device_of(stat);
        let node = self.table().seen(stat.identity(), stat.kind(), dir, name)?;
        Ok(stat.attr(node, &self.home))
    }

    pub(super) fn saw_device_of(&self, stat: &Stat) {
        if !stat.identity().is_beside(&self.home) {
            self.systems.saw_another();
        }
    }
}
