//! Which operations the kernel judges with the rights of their caller, and what the server does in his name with its own.
//!
//! There is one place where a caller's identity is assumed, [`Folder::act`], on whatever thread an operation runs; the
//! look-up of a name, which may continue as a search, assumes it by itself. The server's own rights are used to reach a
//! node that the caller has found before, to read the attributes of listed entries, and for Weft's own extended
//! attributes.

use std::os::fd::{AsFd, OwnedFd};

use super::sys;
use super::{Done, Folder};
use crate::access;
use crate::vfs::{Caller, Effect, Error, OWN_XATTRS, Op, Permissions};
use weft_machine::credentials;

impl Folder {
    /// Makes the system calls of an operation: with the rights of its caller, or with the server's if it needs none.
    pub(super) fn act(&self, op: Op, by: &Caller) -> Result<Done, Error> {
        match is_judged(&op) {
            true => by.run(|| self.perform(op, by)),
            false => self.perform(op, &Caller::Server),
        }
    }

    /// Accesses an extended attribute: Weft's own ones with the server's rights, as users must not be able to hide what
    /// protects a file.
    pub(super) fn of_server<T>(&self, name: &[u8], act: impl FnOnce() -> T) -> T {
        if name.starts_with(OWN_XATTRS) { credentials::as_server(act) } else { act() }
    }

    /// Whether the caller may change this extended attribute. The kernel does not know what Weft's own ones mean: like the
    /// mode, a security descriptor is changed by the owner, and the others by him and by who may write to the file.
    pub(super) fn may_change_xattr(&self, fd: &OwnedFd, name: &[u8], by: &Caller) -> Result<(), Error> {
        let Caller::User(user) = by else { return Ok(()) };
        if !name.starts_with(OWN_XATTRS) || user.uid() == 0 || sys::stat(fd.as_fd())?.uid() == user.uid() {
            return Ok(());
        }
        let may_write =
            || Ok::<_, Error>(self.proc.access(fd.as_fd(), Permissions::WRITE)? == Permissions::WRITE);
        if name != access::XATTR && may_write()? { Ok(()) } else { Err(Error::NotPermitted) }
    }
}

/// Whether the kernel judges an operation's caller. The others need no permission of his: he has found the node, or the
/// operation is part of another one.
fn is_judged(op: &Op) -> bool {
    !matches!(op.effect(), Effect::Inspects | Effect::Flushes)
}
