//! A folder of the host as a share.
//!
//! Every operation is a few system calls on one name below one directory descriptor (see `sys` for how that stays
//! inside the folder); the node table maps [`NodeId`]s to files. The backend caches descriptors of recently used
//! directories and files. It never follows symbolic links.
//!
//! System calls on metadata run on the calling core: if the kernel has the answer cached, they take one to three
//! microseconds, less than a hop to another thread. Calls that wait for the disk by design (sync) run on a worker,
//! and so does every operation on a file system that may block (see `site`).
//! Errors: a file whose name was changed or removed by another program, and which no client holds, is [`Error::Stale`].

mod create;
mod folds;
mod judged;
mod listing;
mod lookup;
mod observe;
mod orphans;
mod search;
mod site;
mod sys;
mod table;
mod workers;
mod xattr;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use weft_machine::file::busy::{self, Inode, Unlocked};
use weft_machine::file::ending::{self, MUCH_BYTES};
use weft_machine::file::system::{Device, FileSystem};
use weft_machine::recorder::{self, Hop};
use weft_machine::{File, clock, credentials, rt};

use self::create::Newborns;
use self::folds::Folds;
use self::lookup::{Looked, Turns};
use self::observe::Observer;
use self::orphans::Orphans;
use self::search::Search;
use self::site::{Site, Systems};
use self::sys::{Identity, Proc, Stat};
use self::table::{MAX_NODES, Reach, Table};
use super::names;
use crate::set_id;
use crate::vfs::error::UNANSWERED;
use crate::vfs::{
    Attr, Backend, Caller, Created, DirName, Effect, Error, Exists, Hold, Kind, Make, NameChange, NodeId, Op,
    OpenFile, Outcome, Permissions, SetAttr, SetTime, Space, Vfs, Watches, XattrSummary,
};

/// Maximum number of descriptors cached for the nodes of a share.
const MAX_CACHED_FDS: usize = 4096;
/// All shares together cache at most this part of the process's descriptors, because open files take precedence.
const CACHED_PART: usize = 16;

/// The maximum number of descriptors that all shares cache for nodes, if the process may have `of`.
pub fn cached_descriptors(of: usize) -> usize {
    of / CACHED_PART
}

pub use sys::kept_free;

/// Maximum depth of a node below the nearest cached directory.
const MAX_DEPTH: usize = 1024;
/// Maximum number of entries in the answer to one [`Op::Readdir`].
const MAX_ENTRIES: usize = 4096;

/// The descriptor of a file whose name is being removed. Dropping it does not wait for the disk.
struct Ending(Option<OwnedFd>);

impl Ending {
    /// Closes it, waiting for the disk if nobody else has the file open.
    fn close(mut self) {
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

/// The result of an operation.
struct Done {
    outcome: Outcome,
    /// A large file whose name was removed.
    ending: Option<Ending>,
}

/// Serves a folder.
pub struct Dir(Arc<Folder>);

/// The state of a share, used by its operations on cores and on workers.
struct Folder {
    /// The identity of the root.
    home: Identity,
    systems: Systems,
    table: Mutex<Table>,
    folds: Mutex<Folds>,
    turns: Turns,
    search: Mutex<Search>,
    orphans: Mutex<Orphans>,
    newborns: Newborns,
    proc: Proc,
    /// Started by the first watch.
    observer: OnceLock<Option<Arc<Observer>>>,
    sweeps: AtomicBool,
    tidies: AtomicBool,
}

impl Dir {
    /// The open root of the share, wherever its path leads by now.
    pub fn root(&self) -> Result<Arc<OwnedFd>, Error> {
        self.0.fd(NodeId::ROOT)
    }

    /// Its file system.
    pub fn file_system(&self) -> Arc<FileSystem> {
        self.0.systems.home().clone()
    }

    /// Serves `path`, which must be a directory; symbolic links in the path itself are followed.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Dir> {
        Ok(Dir(Arc::new(Folder::open(path.as_ref(), Systems::of)?)))
    }

    /// The same, with every operation on workers.
    #[cfg(test)]
    pub(crate) fn open_on_workers(path: impl AsRef<Path>) -> io::Result<Dir> {
        let systems = |_| Systems::new(FileSystem::fixed(true));
        Ok(Dir(Arc::new(Folder::open(path.as_ref(), systems)?)))
    }

    /// The same as [`Dir::open`], caching no descriptors, as when all shares together have reached their limit.
    #[cfg(test)]
    pub(crate) fn open_without_cache(path: impl AsRef<Path>) -> io::Result<Dir> {
        let folder = Folder::open(path.as_ref(), Systems::of)?;
        folder.table().cache_nothing();
        Ok(Dir(Arc::new(folder)))
    }
}

impl Folder {
    fn open(path: &Path, systems: impl FnOnce(Device) -> Systems) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|e| explain(e, path, "cannot be served"))?;
        let proc =
            Proc::open().map_err(|e| explain(e, "/proc/self/fd".as_ref(), "is needed to open files"))?;
        match sys::open_path(root.as_fd(), b".") {
            Err(e @ (Errno::NOSYS | Errno::PERM)) => {
                return Err(explain(
                    e,
                    path,
                    "needs the system call openat2 (Linux 5.6; a container's seccomp profile may forbid it)",
                ));
            }
            other => drop(other.map_err(|e| explain(e, path, "cannot be searched"))?),
        }
        let identity = sys::stat(root.as_fd())?.identity();
        let all_cached = cached_descriptors(super::descriptor_limit());
        let max_cached = (MAX_CACHED_FDS.min(all_cached), all_cached);
        let table = Table::new(identity, Arc::new(root), MAX_NODES, max_cached);
        Ok(Folder {
            home: identity,
            systems: systems(identity.device()),
            table: Mutex::new(table),
            folds: Mutex::default(),
            turns: Turns::default(),
            search: Mutex::default(),
            orphans: Mutex::default(),
            newborns: Newborns::default(),
            proc,
            observer: OnceLock::new(),
            sweeps: AtomicBool::new(false),
            tidies: AtomicBool::new(false),
        })
    }

    // Only the growth of a map could panic under the lock, and each step leaves the table usable.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folds(&self) -> MutexGuard<'_, Folds> {
        self.folds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn search(&self) -> MutexGuard<'_, Search> {
        self.search.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor of `node`: the cached one, or one opened by walking down from the nearest cached directory.
    ///
    /// A caller has found the node before, so the server walks: whether a descriptor is cached decides nothing.
    fn fd(&self, node: NodeId) -> Result<Arc<OwnedFd>, Error> {
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
    fn dir_fd(&self, node: NodeId) -> Result<Arc<OwnedFd>, Error> {
        if self.table().kind(node)? != Kind::Dir {
            return Err(Error::NotDir);
        }
        self.fd(node)
    }

    fn seen(&self, stat: &Stat, dir: NodeId, name: &[u8]) -> Result<Attr, Error> {
        self.saw_device_of(stat);
        let node = self.table().seen(stat.identity(), stat.kind(), dir, name)?;
        Ok(stat.attr(node, &self.home))
    }

    fn saw_device_of(&self, stat: &Stat) {
        if !stat.identity().is_beside(&self.home) {
            self.systems.saw_another();
        }
    }

    /// Runs `act`, which changes the entries of `dir`, and keeps `folds` up to date.
    fn changing<T, E: From<Errno>>(
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

    fn getattr(&self, node: NodeId) -> Result<Attr, Error> {
        Ok(sys::attr(self.fd(node)?.as_fd(), node, &self.home)?)
    }

    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr, Error> {
        let kind = self.table().kind(node)?;
        let fd = self.fd(node)?;
        self.apply(&fd, kind, set)?;
        Ok(sys::attr(fd.as_fd(), node, &self.home)?)
    }

    fn apply(&self, fd: &OwnedFd, kind: Kind, set: &SetAttr) -> Result<(), Error> {
        if let Some(size) = set.size {
            let file = self.reopen(fd, kind, OFlags::WRONLY)?;
            resize(&file, size)?;
        }
        // Before the mode: a change of owner clears the set-id bits.
        if set.uid.is_some() || set.gid.is_some() {
            sys::chown(fd.as_fd(), set.uid, set.gid)?;
        }
        // Permissions of symbolic links have no meaning, and Linux has no call to set them.
        if let Some(mode) = set.mode.filter(|_| kind != Kind::Symlink) {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            // The kernel gives the bit to a directory in one that has it, whichever the caller's groups; so a mode does not take
            // it away either.
            let has = || Ok::<_, Error>(sys::stat(fd.as_fd())?.is_set_group_id());
            match kind == Kind::Dir && mode.contains(Mode::SGID) && has()? {
                true => set_id::kept(|| self.proc.chmod(fd.as_fd(), mode))?,
                false => self.proc.chmod(fd.as_fd(), mode)?,
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            self.set_times(fd, set)?;
        }
        Ok(())
    }

    /// Sets times. Callers who may write can set both to now; for utimensat(2) only the owner can set one of them, which
    /// protocols do not tell apart: NFS clients do so when they truncate a file.
    fn set_times(&self, fd: &OwnedFd, set: &SetAttr) -> Result<(), Error> {
        let times = sys::times(set.atime, set.mtime);
        let utimens = || self.proc.utimens(fd.as_fd(), &times);
        let one_is_now =
            matches!((set.atime, set.mtime), (None, Some(SetTime::Now)) | (Some(SetTime::Now), None));
        match utimens() {
            Err(Errno::PERM) if one_is_now && credentials::is_another() => {
                match self.proc.access(fd.as_fd(), Permissions::WRITE)? {
                    Permissions::WRITE => Ok(credentials::as_server(utimens)?),
                    _ => Err(Error::Access),
                }
            }
            done => Ok(done?),
        }
    }

    fn reopen(&self, fd: &OwnedFd, kind: Kind, flags: OFlags) -> Result<OwnedFd, Error> {
        match kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::IsDir),
            // Opening a device or a pipe can block or act.
            Kind::Symlink | Kind::Special(_) => return Err(Error::Invalid),
        }
        Ok(self.proc.reopen(fd.as_fd(), flags)?)
    }

    fn open_file(&self, node: NodeId, write: bool, by: &Caller) -> Result<OpenFile, Error> {
        let kind = self.table().kind(node)?;
        let system = self.system_of(node)?;
        if system.may_hang() && system.closes_too_much() {
            return Err(Error::Limit(UNANSWERED));
        }
        let fd = self.fd(node)?;
        let file = match self.reopen(&fd, kind, if write { OFlags::RDWR } else { OFlags::RDONLY }) {
            // A user may write to files that he may not read.
            Err(Error::Access) if write && by.is_user() => self.reopen(&fd, kind, OFlags::WRONLY)?,
            opened => opened?,
        };
        let file = OpenFile::of_file(node, File::on(file, system));
        Ok(if write { file } else { file.read_only() })
    }

    fn rename(
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

    /// The object of a name before it is removed: its node, if known, and the file, if freeing its space takes time.
    fn named(&self, dir: &OwnedFd, name: &[u8]) -> (Option<NodeId>, Option<Ending>) {
        sys::stat_at(dir.as_fd(), name).map_or((None, None), |stat| self.named_so(dir, name, &stat))
    }

    fn named_so(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> (Option<NodeId>, Option<Ending>) {
        let is_large = stat.kind() == Kind::File && stat.allocated() >= MUCH_BYTES;
        let file = is_large.then(|| sys::open_path(dir.as_fd(), name).ok()).flatten();
        (self.table().of(&stat.identity()), file.map(|fd| Ending(Some(fd))))
    }

    /// A name of this node was removed. If it was the last one, its cached descriptor is closed unless a client has
    /// it open: the file system keeps the space as long as a descriptor exists.
    fn unnamed(&self, node: NodeId) -> Option<NodeId> {
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

    fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        names::check_entry(name)?;
        if self.table().kind(node)? == Kind::Dir {
            return Err(Error::IsDir);
        }
        let (fd, dir_fd) = (self.fd(node)?, self.dir_fd(dir)?);
        let link = || self.proc.link(fd.as_fd(), dir_fd.as_fd(), name);
        Ok(self.changing((dir, &dir_fd), None, Some(name), link)?)
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        if self.table().kind(node)? != Kind::Symlink {
            return Err(Error::Invalid);
        }
        let fd = self.fd(node)?;
        Ok(rustix::fs::readlinkat(&*fd, c"", Vec::new())?.into_bytes())
    }

    fn place(&self, node: NodeId) -> Result<DirName, Error> {
        if node == NodeId::ROOT {
            return Err(Error::Invalid);
        }
        let (identity, (parent, name)) = {
            let table = self.table();
            (table.identity(node)?, table.place(node)?)
        };
        let dir = self.dir_fd(parent)?;
        match sys::stat_at(dir.as_fd(), &name) {
            Ok(stat) if stat.identity() == identity => Ok(DirName { dir: parent, name: name.into_vec() }),
            Ok(_) | Err(Errno::NOENT) => Err(Error::Stale),
            Err(e) => Err(e.into()),
        }
    }

    fn statfs(&self) -> Result<Space, Error> {
        let s = rustix::fs::fstatvfs(&*self.fd(NodeId::ROOT)?)?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        Ok(Space {
            total: bytes(s.f_blocks),
            free: bytes(s.f_bfree),
            available: bytes(s.f_bavail),
            files: s.f_files,
            files_free: s.f_ffree,
        })
    }

    fn unlink(
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

    /// Marks for the observer what an operation is about to change; removes the marks of names if it fails. The inode
    /// locks that it takes on this core (see [`Folder::locks`]) are free.
    fn carry_out(&self, op: Op, by: &Caller, _unlocked: &Unlocked) -> Result<Done, Error> {
        let observer = self.observer.get().and_then(Option::as_ref);
        let Some(own) = observer.map(|observer| observer.own()).filter(|own| own.is_observed()) else {
            return self.act(op, by);
        };
        let now = clock::instant();
        let (mut names, mut content) = (Vec::new(), None);
        match op.effect() {
            Effect::AddsName { dir, name, of } => {
                names.push((dir, name.to_vec(), NameChange::Added));
                content = of;
            }
            Effect::RemovesName { dir, name } => names.push((dir, name.to_vec(), NameChange::Removed)),
            Effect::Moves { from, to } => {
                names.push((from.dir, from.name.clone(), NameChange::Removed));
                names.push((to.dir, to.name.clone(), NameChange::Added));
            }
            Effect::SetsAttributes(node) | Effect::SetsXattrs(node) => content = Some(node),
            Effect::Inspects
            | Effect::Reads
            | Effect::Flushes
            | Effect::OpensToWrite
            | Effect::AsksToRemove => {}
        }
        if let Some(node) = content {
            own.content(node, now);
        }
        names.iter().for_each(|(dir, name, change)| own.name(*dir, name, *change, now));
        let done = self.act(op, by);
        match done.as_ref().map(|done| &done.outcome) {
            Ok(Outcome::Created(Created { attr, is_new: false })) => {
                names.iter().for_each(|(dir, name, change)| own.unmark_name(*dir, name, *change));
                own.content(attr.node, now);
            }
            Ok(Outcome::Created(Created { attr, .. })) => own.content(attr.node, now),
            Ok(_) => {}
            Err(_) => names.iter().for_each(|(dir, name, change)| own.unmark_name(*dir, name, *change)),
        }
        done
    }

    fn perform(&self, op: Op, by: &Caller) -> Result<Done, Error> {
        let mut ending = None;
        let mut without = |(node, end)| {
            ending = end;
            Outcome::Unlinked(node)
        };
        let outcome = match op {
            Op::Getattr { node } => Outcome::Attr(self.getattr(node)?),
            Op::Setattr { node, set } => Outcome::Attr(self.setattr(node, &set)?),
            Op::Open { node, write } => Outcome::File(self.open_file(node, write, by)?),
            Op::Create { dir, name, make, exists, set } => {
                Outcome::Created(self.create(dir, &name, &make, exists, set, by)?)
            }
            Op::Remove { dir, name } => without(self.unlink(dir, &name, AtFlags::empty())?),
            Op::Rmdir { dir, name } => without(self.unlink(dir, &name, AtFlags::REMOVEDIR)?),
            Op::Rename { from, to, replace } => {
                without(self.rename((from.dir, &from.name), (to.dir, &to.name), replace)?)
            }
            Op::Link { node, dir, name } => {
                self.link(node, dir, &name)?;
                Outcome::Done
            }
            Op::Readlink { node } => Outcome::Target(self.readlink(node)?),
            Op::Readdir { dir, cookie, max, xattrs } => {
                Outcome::Entries(self.readdir(dir, (cookie, max), xattrs, by)?)
            }
            Op::Place { node } => Outcome::Place(self.place(node)?),
            Op::Statfs => Outcome::Space(self.statfs()?),
            Op::Hold { node } => Outcome::Held(Hold::new(self.fd(node)?)),
            Op::GetXattr { node, name } => match self.xattr_fd(node)? {
                Some(fd) => Outcome::Value(self.of_server(&name, || xattr::get(fd.as_fd(), &name))?),
                None => return Err(Error::NoXattr),
            },
            Op::SetXattr { node, name, value, how } => {
                let fd = self.xattr_fd(node)?.ok_or(Error::NotSupported)?;
                self.may_change_xattr(&fd, &name, by)?;
                self.of_server(&name, || xattr::set(fd.as_fd(), &name, &value, how))?;
                Outcome::Done
            }
            Op::ListXattrs { node } => match self.xattr_fd(node)? {
                Some(fd) => Outcome::Names(xattr::list(fd.as_fd())?),
                None => Outcome::Names(Vec::new()),
            },
            Op::RemoveXattr { node, name } => {
                let fd = self.xattr_fd(node)?.ok_or(Error::NoXattr)?;
                self.may_change_xattr(&fd, &name, by)?;
                self.of_server(&name, || xattr::remove(fd.as_fd(), &name))?;
                Outcome::Done
            }
            Op::XattrSummary { node } if self.table().kind(node)? == Kind::Symlink => {
                Outcome::XattrSummary(XattrSummary::of_link(&self.readlink(node)?))
            }
            Op::XattrSummary { node } => {
                let fd = self.xattr_fd(node)?;
                Outcome::XattrSummary(fd.map(|fd| xattr::summary(fd.as_fd())).unwrap_or_default())
            }
            Op::MayUnlink { dir, name } => {
                names::check_entry(&name)?;
                let uid = match by {
                    Caller::Server => rustix::process::geteuid().as_raw(),
                    Caller::User(user) => user.uid(),
                };
                sys::may_unlink(self.dir_fd(dir)?.as_fd(), &name, uid)?;
                Outcome::Done
            }
            Op::Access { node, wanted } => {
                Outcome::Permissions(self.proc.access(self.fd(node)?.as_fd(), wanted)?)
            }
            Op::Stable { node } => Outcome::Stable(self.table().identity(node)?.to_stable(&self.home)),
            Op::SyncDir { .. } | Op::SyncAll { .. } | Op::Find { .. } | Op::Lookup { .. } => {
                unreachable!("handled where it can wait")
            }
        };
        Ok(Done { outcome, ending })
    }

    /// A descriptor of a node that can have extended attributes.
    fn xattr_fd(&self, node: NodeId) -> Result<Option<Arc<OwnedFd>>, Error> {
        match self.table().kind(node)? {
            Kind::File | Kind::Dir => {}
            Kind::Symlink | Kind::Special(_) => return Ok(None),
        }
        self.fd(node).map(Some)
    }

    fn is_large(&self, dir: NodeId, name: &[u8]) -> bool {
        self.dir_fd(dir).is_ok_and(|fd| self.named(&fd, name).1.is_some())
    }

    /// Whether truncating a file to `size` may free much space: all its data may lie behind `size`.
    fn has_much_behind(&self, node: NodeId, size: u64) -> bool {
        let stat = self.fd(node).and_then(|fd| Ok(sys::stat(fd.as_fd())?));
        stat.is_ok_and(|stat| {
            let reserved = stat.allocated().saturating_sub(stat.size());
            let behind = stat.size().saturating_sub(size).saturating_add(reserved);
            stat.kind() == Kind::File && stat.size() >= size && stat.allocated().min(behind) >= MUCH_BYTES
        })
    }

    /// The files whose inode locks an operation takes on this core while a worker may hold them (see [`busy`]). Only
    /// regular files are ever claimed.
    fn locks(&self, op: &Op) -> Vec<Inode> {
        let named = |dir: &NodeId, name: &[u8]| {
            self.dir_fd(*dir).ok().and_then(|dir| Inode::named(dir.as_fd(), name).ok())
        };
        let locked = match op {
            Op::Setattr { node, .. }
            | Op::SetXattr { node, .. }
            | Op::RemoveXattr { node, .. }
            | Op::Link { node, .. } => [self.fd(*node).ok().and_then(|fd| Inode::of(&*fd).ok()), None],
            Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set } if set.size.is_some() => {
                [named(dir, name), None]
            }
            Op::Remove { dir, name } => [named(dir, name), None],
            Op::Rename { from, to, .. } => [named(&from.dir, &from.name), named(&to.dir, &to.name)],
            _ => [None, None],
        };
        locked.into_iter().flatten().collect()
    }

    /// Waits until no worker holds a file whose lock `op` takes on this core.
    async fn unlocked(&self, op: &Op) -> Unlocked {
        let mut locks = self.locks(op);
        loop {
            let unlocked = busy::shared(locks).await;
            // Meanwhile its names may have been given to other files.
            locks = self.locks(op);
            if unlocked.covers(&locks) {
                return unlocked;
            }
        }
    }

    /// A file that is about to be truncated.
    fn to_shrink(&self, node: NodeId, by: &Caller) -> Result<OwnedFd, Error> {
        let (fd, kind) = (self.fd(node)?, self.table().kind(node)?);
        let file = by.run(|| self.reopen(&fd, kind, OFlags::WRONLY))?;
        if let Some(observer) = self.observer.get().and_then(Option::as_ref) {
            observer.own().content(node, clock::instant());
        }
        Ok(file)
    }

    /// Truncates a file where waiting is possible.
    async fn shrink(&self, node: NodeId, size: u64, by: &Caller) -> Result<(), Error> {
        let file = self.to_shrink(node, by)?;
        let inode = Inode::of(&file)?;
        Ok(busy::lengthy(inode, move || rustix::fs::ftruncate(&file, size)).await?)
    }

    /// Creates a file, or truncates the existing one.
    async fn create_emptied(
        self: &Arc<Folder>,
        dir: NodeId,
        name: Vec<u8>,
        set: SetAttr,
        by: Caller,
    ) -> Result<Outcome, Error> {
        let (size, set) = (set.size, SetAttr { size: None, ..set });
        let make = Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set };
        let unlocked = self.unlocked(&make).await;
        let made = self.carry_out(make, &by, &unlocked)?.outcome;
        // The truncation waits by itself.
        drop(unlocked);
        let Outcome::Created(Created { attr, is_new }) = made else {
            return Err(Error::Invalid);
        };
        let set = SetAttr { size, ..SetAttr::default() };
        match self.on_core(Op::Setattr { node: attr.node, set }, by).await? {
            Outcome::Attr(attr) => Ok(Outcome::Created(Created { attr, is_new })),
            _ => Err(Error::Invalid),
        }
    }

    /// Runs the parts of an operation that this core can do, and answers the rest.
    fn begin<'a>(
        self: &'a Arc<Folder>,
        op: Op,
        by: Caller,
        unlocked: &Unlocked,
    ) -> LocalBoxFuture<'a, Result<Outcome, Error>> {
        match op {
            // It changes nothing, and needs no permission of the caller.
            Op::Getattr { node } => Box::pin(std::future::ready(self.getattr(node).map(Outcome::Attr))),
            Op::SyncDir { dir } => Box::pin(async move {
                recorder::at(Hop::Disk, rt::blocking(self.sync_dir(dir)?)).await?;
                Ok(Outcome::Done)
            }),
            // Syncing a whole file system takes long: it runs in the places of lengthy work.
            Op::SyncAll { node } => Box::pin(async move {
                recorder::at(Hop::Disk, rt::lengthy(self.sync_all(node))).await?;
                Ok(Outcome::Done)
            }),
            Op::Find { stable } => {
                Box::pin(async move { self.find(&Site::Core(None), stable).await.map(Outcome::Attr) })
            }
            Op::Lookup { dir, name, fold_case } => match self.lookup(dir, &name, fold_case, &by) {
                Ok(Looked::Found(attr)) => Box::pin(std::future::ready(Ok(Outcome::Attr(attr)))),
                Ok(Looked::Unread { .. }) => Box::pin(async move {
                    self.search_folded(&Site::Core(None), dir, &name).await.map(Outcome::Attr)
                }),
                Err(e) => Box::pin(std::future::ready(Err(e))),
            },
            Op::Setattr { node, set: SetAttr { size: Some(size), .. } }
                if self.has_much_behind(node, size) =>
            {
                Box::pin(async move {
                    self.shrink(node, size, &by).await?;
                    let unlocked = self.unlocked(&op).await;
                    self.carry_out(op, &by, &unlocked).map(|done| done.outcome)
                })
            }
            Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set }
                if set.size.is_some() && self.is_large(dir, &name) =>
            {
                Box::pin(self.create_emptied(dir, name, set, by))
            }
            op => match self.carry_out(op, &by, unlocked) {
                Ok(Done { outcome, ending: Some(ending) }) => Box::pin(async move {
                    // When this is answered the space is free, unless a client has the file open.
                    rt::lengthy(move || ending.close()).await;
                    Ok(outcome)
                }),
                done => Box::pin(std::future::ready(done.map(|done| done.outcome))),
            },
        }
    }

    /// Makes a directory's entries durable; the result blocks when it is called.
    fn sync_dir(&self, dir: NodeId) -> Result<impl FnOnce() -> Result<(), Errno> + Send + 'static, Error> {
        let open = sys::open_dir(&self.dir_fd(dir)?)?;
        Ok(move || rustix::fs::fsync(open))
    }

    /// Makes all data on the file system of a node durable; the result blocks when it is called.
    fn sync_all(&self, node: NodeId) -> impl FnOnce() -> Result<(), Errno> + Send + 'static {
        let dir = self.any_dir_beside(node);
        move || match dir {
            Some(dir) => rustix::fs::syncfs(dir),
            // If there is no directory that the server may read or has open, sync everything.
            None => {
                rustix::fs::sync();
                Ok(())
            }
        }
    }

    /// Any directory on the file system of a node that can be opened.
    fn any_dir_beside(&self, node: NodeId) -> Option<OwnedFd> {
        let device = self.fd(node).and_then(|fd| Ok(sys::stat(fd.as_fd())?.identity().device())).ok();
        let above = self.place(node).map_or(NodeId::ROOT, |place| place.dir);
        [node, above, NodeId::ROOT].into_iter().find_map(|dir| {
            let open = sys::open_dir(&self.dir_fd(dir).ok()?).ok()?;
            let of = sys::stat(open.as_fd()).ok()?.identity().device();
            let same = device == Some(of);
            same.then_some(open)
        })
    }

    fn sweep(&self, max: usize) {
        let looked_at = self.table().turn(max);
        for (node, fd) in looked_at {
            let Ok(stat) = sys::stat(fd.as_fd()) else { continue };
            if stat.links() == 0 {
                let closed = self.table().unlinked(node);
                drop(closed);
                self.orphans().has_lost_its_name(stat.identity());
            }
        }
    }

    /// Runs an operation whose file system does not block.
    fn on_core(self: &Arc<Folder>, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if let Some(unlocked) = Unlocked::all() {
            return self.begin(op, by, &unlocked);
        }
        if let Ok(unlocked) = Unlocked::now(self.locks(&op)) {
            return self.begin(op, by, &unlocked);
        }
        Box::pin(async move {
            let unlocked = self.unlocked(&op).await;
            let begun = self.begin(op, by, &unlocked);
            // The locked files of this core are done; work on a worker claims the file itself.
            drop(unlocked);
            begun.await
        })
    }
}

impl Backend for Dir {
    fn kind(&self) -> &'static str {
        "dir"
    }

    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn judges_callers(&self) -> bool {
        true
    }

    fn sweep(&self, max: usize) {
        self.0.from_time_to_time(|folder| &folder.sweeps, move |folder| folder.sweep(max));
    }

    fn tidy(&self, now: Instant) {
        self.0.from_time_to_time(|folder| &folder.tidies, move |folder| folder.remove_orphans(now));
    }

    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        self.0.attr_now(node)
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        let folder = &self.0;
        match folder.site(&op) {
            Site::Core(other) => {
                other.as_ref().unwrap_or(folder.systems.home()).inline(|| folder.on_core(op, by))
            }
            Site::Workers(system) => Box::pin(folder.clone().on_workers(system, op, by)),
        }
    }

    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        let folder = self.0.clone();
        let observer = folder.observer.get_or_init(|| match Observer::start(&folder, watches) {
            Ok(observer) => Some(observer),
            Err(e) => {
                tracing::warn!(
                    "cannot observe changes by other programs, so watching clients do not see them: {e}"
                );
                None
            }
        });
        let Some(observer) = observer.clone() else { return Box::pin(std::future::ready(None)) };
        Box::pin(folder.observing(move |folder| observer.observe(folder, dir, recursive)))
    }
}

impl From<Dir> for Vfs {
    fn from(dir: Dir) -> Vfs {
        Vfs::new(dir)
    }
}

fn resize(file: &OwnedFd, size: u64) -> Result<(), Error> {
    if i64::try_from(size).is_err() {
        return Err(Error::TooLarge);
    }
    Ok(rustix::fs::ftruncate(file, size)?)
}

fn explain(e: Errno, path: &Path, what: &str) -> io::Error {
    let e = io::Error::from(e);
    io::Error::new(e.kind(), format!("{}: {what}: {e}", path.display()))
}
