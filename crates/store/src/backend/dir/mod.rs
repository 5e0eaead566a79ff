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

mod across;
mod cores;
mod create;
mod crossing;
mod entries;
mod folds;
mod judged;
mod listing;
mod lookup;
mod observe;
mod orphans;
mod reach;
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
use weft_machine::file::busy::Unlocked;
use weft_machine::file::system::{Device, FileSystem};
use weft_machine::{File, clock, credentials};

use self::create::Newborns;
use self::entries::Ending;
use self::folds::Folds;
use self::lookup::Turns;
use self::observe::Observer;
use self::orphans::Orphans;
use self::search::Searches;
use self::site::{Site, Systems};
use self::sys::{Identity, Proc};
use self::table::{MAX_NODES, Table};
use super::names;
use crate::set_id;
use crate::vfs::error::UNANSWERED;
use crate::vfs::{
    Attr, Backend, Caller, Created, DirName, Effect, Error, Hold, Kind, NameChange, NodeId, Op, OpenFile,
    Outcome, Permissions, SetAttr, SetTime, Space, Vfs, Watches, XattrSummary,
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

/// Maximum number of entries in the answer to one [`Op::Readdir`].
const MAX_ENTRIES: usize = 4096;

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
    searches: Mutex<Searches>,
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
            searches: Mutex::default(),
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

    fn searches(&self) -> MutexGuard<'_, Searches> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, Orphans> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation where its system calls belong.
    fn run(self: &Arc<Folder>, site: Site, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match site {
            Site::Core(other) => {
                other.as_ref().unwrap_or(self.systems.home()).inline(|| self.on_core(op, by))
            }
            Site::Workers(system) => Box::pin(self.clone().on_workers(system, op, by)),
        }
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
        let site = self.0.site(&op);
        match self.0.leads_across(&op) {
            false => self.0.run(site, op, by),
            true => Box::pin(self.0.clone().list_across(site, op, by)),
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
