//! Creates files, directories, symbolic links, pipes, sockets and devices.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::{Folder, resize, sys, xattr};
use crate::backend::{DIR_MODE, FILE_MODE, may_reuse, names, with_verifier};
use crate::vfs::{Attr, Caller, Created, Error, Exists, Kind, Make, NodeId, SetAttr};

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
            Make::File => sys::create_file(fd.as_fd(), name, creation_mode(&set, FILE_MODE)).map(Some),
            Make::Dir => rustix::fs::mkdirat(&*fd, name, creation_mode(&set, DIR_MODE)).map(|()| None),
            Make::Symlink(target) => rustix::fs::symlinkat(target, &*fd, name).map(|()| None),
            Make::Special(special) => {
                let mode = creation_mode(&set, FILE_MODE);
                sys::make_special(fd.as_fd(), name, *special, mode).map(|()| None)
            }
        });
        let (stat, file) = match made {
            Ok(Some(file)) => (sys::stat(file.as_fd())?, Some(file)),
            // Another program may have replaced the new file; then this is the object that the name means now.
            Ok(None) => (sys::stat_at(fd.as_fd(), name)?, None),
            Err(Errno::EXIST) => {
                let attr = self.reuse(&fd, dir, name, make, exists, &set)?;
                return Ok(Created { attr, is_new: false });
            }
            Err(e) => return Err(e.into()),
        };
        let attr = self.seen(&stat, dir, name)?;
        // A new directory inherits the set-group-id bit of its parent (mkdir(2)).
        let inherited = if *make == Make::Dir { attr.mode & 0o2000 } else { 0 };
        let set = SetAttr { mode: set.mode.map(|mode| mode | inherited), ..set };
        let differs = set.mode.is_some_and(|mode| (mode ^ attr.mode) & 0o777 != 0);
        let set = match differs && by.is_user() && xattr::hands_down_acl(fd.as_fd()) {
            // The directory's ACL has replaced the umask, and limits the mode.
            true => SetAttr { mode: set.mode.map(|mode| mode & 0o7000 | attr.mode & 0o777), ..set },
            false => set,
        };
        // The umask has removed bits, and setting an owner removes the set-id bits; a second call sets them only if
        // they were requested.
        let owned = set.uid.is_some() || set.gid.is_some();
        let lost = |mode: &u32| mode & 0o7777 != attr.mode || (owned && mode & 0o6000 != 0);
        let set = SetAttr { mode: set.mode.filter(lost), ..set };
        // By the descriptor of the creation: the mode may keep its owner from opening it again. It is empty already.
        let (size, set) = match &file {
            Some(_) => (set.size.filter(|size| *size > 0), SetAttr { size: None, ..set }),
            None => (None, set),
        };
        if size.is_none() && set == SetAttr::default() {
            return Ok(Created { attr, is_new: true });
        }
        let sized = file.zip(size).map_or(Ok(()), |(file, size)| resize(&file, size));
        match sized.and_then(|()| self.setattr(attr.node, &set)) {
            Ok(attr) => Ok(Created { attr, is_new: true }),
            Err(e) => {
                // A half-made file is worse than none; removing it may fail, too.
                let flags = if attr.kind == Kind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let _ = rustix::fs::unlinkat(&*fd, name, flags);
                self.unnamed(attr.node);
                Err(e)
            }
        }
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

/// The mode for creation. If none is given, the server's umask decides, as for any program.
fn creation_mode(set: &SetAttr, default: u32) -> Mode {
    Mode::from_raw_mode(set.mode.unwrap_or(default) & 0o7777)
}
