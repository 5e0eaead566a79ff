//! Creates files, directories, symbolic links, pipes, sockets and devices.
//!
//! Between two system calls others may give the name of a new object to another one: who may change a directory can rename into it,
//! or link, a file that is not his. The server can be root, and it acts for a user on this user's other files, too. So nothing is
//! ever changed through a name after the creation:
//!
//! - A regular file is created open; everything else goes through that descriptor.
//! - Other objects are created *in place* if the creating call gives them all their attributes. Only the node is found by name,
//!   and it is accepted only if it is the new object (see [`Newborns`]): the caller may use it, and protect it, without further
//!   checks.
//! - If more must be set (an owner, times, ...), they are created *aside*: in a new folder beside the name that only its owner can
//!   use. There the object is opened and gets its attributes by descriptor. Then it is moved to its name, which replaces nothing.
//!   The folder is beside the name so that the object inherits what it would inherit there: the group, a default ACL, a project.
//!
//! # Why aside is safe
//! The folder is opened by name, so it may be another one. But its descriptor shows that it belongs to the user who creates (or to
//! the server) and that nobody else has any permission there; an ACL cannot give one, as the bits of the group are its mask. Only
//! that user and root can change the names in such a folder, whichever it is, and its owner cannot give away what is not his. So
//! what is created in it by a call that fails if the name exists is what is opened there afterwards.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use weft_machine::{clock, credentials, random, umask};

#[cfg(test)]
use self::tests::meanwhile;
use super::sys::{Identity, Stat};
use super::{Folder, resize, sys, xattr};
use crate::backend::{creation_modes, may_reuse, names, with_verifier};
use crate::vfs::{Attr, Caller, Created, Error, Exists, Kind, Make, NodeId, SetAttr};

#[cfg(test)]
mod tests;

/// What the names of folders begin with in which objects are created.
pub(super) const ASIDE: &[u8] = b".weft-new-";
/// The name of the new object there.
const INSIDE: &[u8] = b"new";

/// How far birth times are behind the clock: a tick of the kernel, or the resolution of the file system.
const BEHIND: Duration = Duration::from_millis(20);
/// How many new objects are remembered.
const REMEMBERED: usize = 1024;

/// Where tests let others act between two system calls.
#[cfg(not(test))]
fn meanwhile() {}

/// Recognizes an object that was created in place, when its name is looked up afterwards.
///
/// It is the new object, or as good as it, if it
/// - is of the requested kind, and belongs to whom the new object belongs to;
/// - was born after the creation began, by the file system's clock;
/// - has no second name (a directory cannot have one): a link would bring a file from where its owner alone can change names;
/// - was not taken for the result of another creation. A client may have a new object already, and have put something in it.
///
/// What is left is an empty object that another program of the same user created in the same tick, in a directory where the
/// attacker may rename. He could put an object of his own in its place as well.
#[derive(Default)]
pub(super) struct Newborns {
    recent: Mutex<Recent>,
    /// An object seemed to be older than its creation. The clocks may differ, so from now on objects are created aside.
    distrusted: AtomicBool,
}

#[derive(Default)]
struct Recent {
    order: VecDeque<Identity>,
    known: HashSet<Identity>,
    /// Number of objects so far.
    count: u64,
}

/// The beginning of a creation.
struct Begun {
    at: Duration,
    count: u64,
}

impl Newborns {
    // Each step leaves it usable.
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Begun {
        Begun { at: clock::wall().saturating_sub(BEHIND), count: self.recent().count }
    }

    /// Takes an object for the result of a creation.
    fn take(&self, identity: Identity, begun: Option<&Begun>) -> bool {
        let mut recent = self.recent();
        // As long as half of what is remembered is older than this creation, nothing is forgotten that is younger.
        let all_known = begun.is_none_or(|begun| recent.count - begun.count < REMEMBERED as u64 / 2);
        if !all_known || !recent.known.insert(identity) {
            return false;
        }
        recent.count += 1;
        recent.order.push_back(identity);
        if recent.order.len() > REMEMBERED
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.known.remove(&oldest);
        }
        true
    }
}

/// A creation of something other than a regular file.
struct Making<'a> {
    dir: NodeId,
    fd: &'a OwnedFd,
    name: &'a [u8],
    make: &'a Make,
    set: SetAttr,
    by: &'a Caller,
}

impl Making<'_> {
    /// Creates the object, with a mode that the umask narrows.
    fn call(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let (file_mode, dir_mode) = creation_modes(self.by);
        match self.make {
            Make::Dir => rustix::fs::mkdirat(dir, name, creation_mode(&self.set, dir_mode)),
            Make::Symlink(target) => rustix::fs::symlinkat(target, dir, name),
            Make::Special(special) => {
                sys::make_special(dir, name, *special, creation_mode(&self.set, file_mode))
            }
            Make::File => Err(Errno::INVAL),
        }
    }

    /// The same with exactly the requested mode; `None` if that is impossible.
    fn call_exactly(&self) -> Option<Result<(), Errno>> {
        umask::lifted(self.set.mode.unwrap_or(0), || self.call(self.fd.as_fd(), self.name))
    }

    fn kind(&self) -> Option<Kind> {
        match self.make {
            Make::Dir => Some(Kind::Dir),
            Make::Symlink(_) => Some(Kind::Symlink),
            Make::Special(special) => Some(Kind::Special(*special)),
            Make::File => None,
        }
    }

    /// Whom the new object belongs to.
    fn owner(&self) -> u32 {
        match self.by {
            Caller::Server => rustix::process::geteuid().as_raw(),
            Caller::User(user) => user.uid(),
        }
    }

    fn removal(&self) -> AtFlags {
        if *self.make == Make::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() }
    }

    /// Whether the creating call gives it all its attributes. mkdir(2) ignores set-id bits.
    fn is_done_at_once(&self) -> bool {
        let set = &self.set;
        let needs_bits = *self.make == Make::Dir && set.mode.is_some_and(|mode| mode & 0o6000 != 0);
        !needs_bits && set.uid.is_none() && set.gid.is_none() && set.atime.is_none() && set.mtime.is_none()
    }
}

impl Folder {
    pub(super) fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        make: &Make,
        exists: Exists,
        set: SetAttr,
        by: &Caller,
    ) -> Result<Created, Error> {
        names::check_entry(name)?;
        let fd = self.dir_fd(dir)?;
        if let Make::Symlink(target) = make {
            names::check_target(target)?;
        }
        let set = with_verifier(set, exists);
        let made = self.changing((dir, &fd), None, Some(name), || match make {
            Make::File => self.make_file(&fd, name, &set, by),
            Make::Dir if set.size.is_some() => Err(Error::IsDir),
            Make::Symlink(_) | Make::Special(_) if set.size.is_some() => Err(Error::Invalid),
            Make::Dir | Make::Symlink(_) | Make::Special(_) => {
                // Permissions of symbolic links have no meaning.
                let mode = set.mode.filter(|_| !matches!(make, Make::Symlink(_)));
                let set = SetAttr { mode, ..set.clone() };
                self.make_other(&Making { dir, fd: &fd, name, make, set, by })
            }
        });
        match made {
            Ok(stat) => Ok(Created { attr: self.seen(&stat, dir, name)?, is_new: true }),
            Err(Error::Exists) => {
                let attr = self.reuse(&fd, dir, name, make, exists, &set)?;
                Ok(Created { attr, is_new: false })
            }
            Err(e) => Err(e),
        }
    }

    fn make_file(&self, dir: &OwnedFd, name: &[u8], set: &SetAttr, by: &Caller) -> Result<Stat, Error> {
        let (mode, _) = creation_modes(by);
        let file = sys::create_file(dir.as_fd(), name, creation_mode(set, mode))?;
        meanwhile();
        // Its mode may keep its owner from opening it again. It is empty already.
        let sized = set.size.filter(|size| *size > 0).map_or(Ok(()), |size| resize(&file, size));
        let completed = sized.and_then(|()| self.complete(&file, dir, set, by));
        if completed.is_err() {
            // A half-made file is worse than none; removing it may fail, too. Its name may mean another file by now. Who changes
            // that after this look could have removed the other file himself: to rename or replace a name takes the same rights.
            let is_there = sys::stat(file.as_fd())
                .and_then(|made| Ok(sys::stat_at(dir.as_fd(), name)?.identity() == made.identity()));
            if is_there.unwrap_or(false) {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
        }
        completed
    }

    /// Sets the attributes of a new object that its creation did not give it.
    fn complete(&self, new: &OwnedFd, dir: &OwnedFd, set: &SetAttr, by: &Caller) -> Result<Stat, Error> {
        let stat = sys::stat(new.as_fd())?;
        let left = left_to_set(&stat, dir.as_fd(), set, by);
        if left == SetAttr::default() {
            return Ok(stat);
        }
        self.apply(new, stat.kind(), &left)?;
        Ok(sys::stat(new.as_fd())?)
    }

    fn make_other(&self, making: &Making<'_>) -> Result<Stat, Error> {
        if making.is_done_at_once() && self.recognizes_births(making.dir)? {
            let begun = self.newborns.begin();
            if let Some(made) = making.call_exactly() {
                made?;
                meanwhile();
                if let Some(stat) = self.found_in_place(making, &begun)? {
                    return Ok(stat);
                }
                // It can be the new object all the same: a removed one had the same inode in the same tick. Whoever may have put
                // another one here could have removed it, too; and a directory is removed only if it is empty.
                rustix::fs::unlinkat(making.fd, making.name, making.removal())?;
            }
        }
        self.make_aside(making)
    }

    /// Whether birth times prove something here: they are stored, and by this host's clock.
    fn recognizes_births(&self, dir: NodeId) -> Result<bool, Error> {
        let is_dated = self.table().identity(dir)?.is_dated();
        let trusted = !self.newborns.distrusted.load(Ordering::Relaxed);
        Ok(is_dated && trusted && !self.system_of(dir)?.may_hang())
    }

    /// What the name means now: the new object, `None` if it is known already, or an error if it is another one.
    fn found_in_place(&self, making: &Making<'_>, begun: &Begun) -> Result<Option<Stat>, Error> {
        let stat = sys::stat_at(making.fd.as_fd(), making.name)?;
        let identity = stat.identity();
        if identity.is_older_than(begun.at) {
            self.newborns.distrusted.store(true, Ordering::Relaxed);
            return Err(Error::Stale);
        }
        let is_single = stat.kind() == Kind::Dir || stat.links() == 1;
        // Some file systems give all objects the owner of the mount.
        let is_owned = stat.uid() == making.owner() || sys::stat(making.fd.as_fd())?.uid() == stat.uid();
        let is_new = Some(stat.kind()) == making.kind() && is_single && is_owned;
        if !is_new {
            return Err(Error::Stale);
        }
        Ok(self.newborns.take(identity, Some(begun)).then_some(stat))
    }

    fn make_aside(&self, making: &Making<'_>) -> Result<Stat, Error> {
        // Otherwise only the last step would tell.
        match sys::stat_at(making.fd.as_fd(), making.name) {
            Ok(_) => return Err(Error::Exists),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let aside = Aside::beside(making)?;
        if !aside.is_private {
            drop(aside);
            return self.make_anywhere(making);
        }
        making.call(aside.fd.as_fd(), INSIDE)?;
        meanwhile();
        let placed = self.complete_aside(&aside, making);
        if placed.is_err() {
            // Nothing else can have this name there. Removing it may fail, too.
            let _ = rustix::fs::unlinkat(&aside.fd, INSIDE, making.removal());
        }
        let new = placed?;
        let stat = sys::stat(new.as_fd())?;
        self.newborns.take(stat.identity(), None);
        Ok(stat)
    }

    fn complete_aside(&self, aside: &Aside<'_>, making: &Making<'_>) -> Result<OwnedFd, Error> {
        let new = sys::open_path(aside.fd.as_fd(), INSIDE)?;
        self.complete(&new, making.fd, &making.set, making.by)?;
        // The user could create the folder here, so he may create names. His own rights may not suffice for the move: a directory
        // moves only if its mode lets him write to it.
        credentials::as_server(|| aside.place(making))?;
        Ok(new)
    }

    /// On a file system where a new folder is not private, and birth times prove nothing: it shows its mount's owner and mode for
    /// every object, or another host decides about both. So there is nothing to set, or to be gained.
    fn make_anywhere(&self, making: &Making<'_>) -> Result<Stat, Error> {
        if self.recognizes_births(making.dir)? {
            return Err(Error::Access);
        }
        making.call(making.fd.as_fd(), making.name)?;
        Ok(sys::stat_at(making.fd.as_fd(), making.name)?)
    }

    fn reuse(
        &self,
        fd: &OwnedFd,
        dir: NodeId,
        name: &[u8],
        make: &Make,
        exists: Exists,
        set: &SetAttr,
    ) -> Result<Attr, Error> {
        let attr = self.seen(&sys::stat_at(fd.as_fd(), name)?, dir, name)?;
        may_reuse(&attr, make, exists)?;
        match (make, exists, set.size) {
            (Make::File, Exists::Reuse, Some(_)) => {
                self.setattr(attr.node, &SetAttr { size: set.size, ..SetAttr::default() })
            }
            _ => Ok(attr),
        }
    }
}

/// A folder in which an object is created. Dropping it removes it.
struct Aside<'a> {
    above: BorrowedFd<'a>,
    name: Vec<u8>,
    fd: OwnedFd,
    /// Only who creates, and root, can use it.
    is_private: bool,
}

impl<'a> Aside<'a> {
    fn beside(making: &Making<'a>) -> Result<Aside<'a>, Error> {
        let number = u64::from_ne_bytes(random::bytes().map_err(|e| Error::Io(e.into()))?);
        let name = [ASIDE, format!("{number:016x}").as_bytes()].concat();
        let above = making.fd.as_fd();
        rustix::fs::mkdirat(above, &name[..], Mode::RWXU)?;
        meanwhile();
        let fd = sys::open_path(above, &name)?;
        let stat = sys::stat(fd.as_fd())?;
        let is_private = stat.kind() == Kind::Dir && stat.uid() == making.owner() && stat.mode() & 0o077 == 0;
        Ok(Aside { above, name, fd, is_private })
    }

    /// Moves the object to its name, if that does not exist.
    fn place(&self, making: &Making<'_>) -> Result<(), Errno> {
        let (from, to) = ((self.fd.as_fd(), INSIDE), (making.fd.as_fd(), making.name));
        match sys::rename(from, to, false) {
            // Not every file system can do so. A directory replaces at most another one that is empty.
            Err(Errno::INVAL | Errno::NOSYS) if *making.make == Make::Dir => sys::rename(from, to, true),
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?;
                rustix::fs::unlinkat(from.0, from.1, AtFlags::empty())
            }
            done => done,
        }
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        // If it was moved away, it stays there. At its name is at most an empty directory of somebody who may remove it here.
        let is_there = sys::stat(self.fd.as_fd())
            .and_then(|stat| Ok(sys::stat_at(self.above, &self.name)?.identity() == stat.identity()));
        if is_there.unwrap_or(false)
            && let Err(e) = rustix::fs::unlinkat(self.above, &self.name[..], AtFlags::REMOVEDIR)
        {
            tracing::debug!("{} stays: {e}", self.name.escape_ascii());
        }
    }
}

/// The attributes of a new object that must still be set.
fn left_to_set(stat: &Stat, dir: BorrowedFd<'_>, set: &SetAttr, by: &Caller) -> SetAttr {
    // A new directory inherits the set-group-id bit of its parent (mkdir(2)).
    let inherited = if stat.kind() == Kind::Dir { stat.mode() & 0o2000 } else { 0 };
    let mode = set.mode.map(|mode| (mode | inherited) & 0o7777);
    let differs = mode.is_some_and(|mode| (mode ^ stat.mode()) & 0o777 != 0);
    let mode = match differs && by.is_user() && xattr::hands_down_acl(dir) {
        // The directory's ACL has replaced the umask, and limits the mode.
        true => mode.map(|mode| mode & 0o7000 | stat.mode() & 0o777),
        false => mode,
    };
    // The umask has removed bits, and setting an owner removes the set-id bits; a second call sets them only if they were
    // requested.
    let owned = set.uid.is_some() || set.gid.is_some();
    let lost = |mode: &u32| *mode != stat.mode() || (owned && mode & 0o6000 != 0);
    SetAttr { size: None, mode: mode.filter(lost), ..set.clone() }
}

/// The mode for creation. If none is given, the server's umask decides, as for any program.
fn creation_mode(set: &SetAttr, default: u32) -> Mode {
    Mode::from_raw_mode(set.mode.unwrap_or(default) & 0o7777)
}
