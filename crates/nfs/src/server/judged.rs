//! What the kernel permits a caller, in shares whose operations have the caller's own rights; elsewhere, what the mode
//! bits permit.
//!
//! Where the kernel judges (see [`Vfs::is_judged`](weft_store::Vfs::is_judged)), each operation on names and attributes
//! is refused by itself, and `caller` checks only what the kernel does not know: the export's rules. What is left are
//! permissions that the protocol asks about, and data: READ and WRITE use descriptors that are shared between callers,
//! so each of them asks the kernel first, as Linux's server does.

use weft_store::access::chmod;
use weft_store::{Attr, Error, Permissions, SetAttr};

use super::caller::{Caller, EXECUTE, READ, WRITE};
use super::context::Node;

impl Node<'_> {
    /// The subset of READ, WRITE and EXECUTE that mode bits or kernel grant.
    pub async fn permitted(&self, caller: &Caller, attr: &Attr, wanted: u32) -> Result<u32, Error> {
        if !self.share.vfs.is_judged() {
            return Ok(caller.granted(attr) & wanted);
        }
        let granted = self.share.vfs.access(self.id, Permissions::from_bits(wanted)).await?;
        Ok(caller.possible(attr) & granted.bits())
    }

    /// Refuses unless all of `wanted` is granted.
    pub async fn check(&self, caller: &Caller, attr: &Attr, wanted: u32) -> Result<(), Error> {
        caller.check(attr, wanted)?;
        let judged = self.share.vfs.is_judged();
        let granted = !judged || self.permitted(caller, attr, wanted).await? == wanted;
        if granted { Ok(()) } else { Err(caller.denied()) }
    }

    /// Checks an open for reading, writing or both. A caller with execute permission may read (RFC 1813 4.4).
    pub async fn check_open(&self, caller: &Caller, attr: &Attr, wanted: u32) -> Result<(), Error> {
        if wanted == READ && self.permitted(caller, attr, EXECUTE).await? & EXECUTE != 0 {
            return Ok(());
        }
        self.check(caller, attr, wanted).await
    }

    /// Checks a read or write of data without an open. The owner may do what he could when he opened the file.
    pub async fn check_data(&self, caller: &Caller, attr: &Attr, wanted: u32) -> Result<(), Error> {
        caller.check_writable(wanted)?;
        if caller.owns(attr) { Ok(()) } else { self.check_open(caller, attr, wanted).await }
    }

    /// Refuses to add a name to this directory, before anybody is disturbed by it.
    pub async fn check_make(&self, caller: &Caller, dir: &Attr) -> Result<(), Error> {
        self.check(caller, dir, WRITE | EXECUTE).await
    }

    /// Refuses to remove a name if the kernel will, before anybody is disturbed by it.
    pub async fn may_unlink(&self, name: &[u8]) -> Result<(), Error> {
        if self.share.vfs.is_judged() { self.share.vfs.may_unlink(self.id, name).await } else { Ok(()) }
    }

    /// Sets attributes as the caller. `before` are the present ones; without `keeps_acl`, a descriptor follows the mode.
    /// The size is set as if by a descriptor: the caller may have opened the file before its mode changed, and has been
    /// checked.
    pub async fn set(&self, before: &Attr, mut set: SetAttr, keeps_acl: bool) -> Result<(), Error> {
        let vfs = &self.share.vfs;
        if vfs.is_judged() && set.size.is_some() {
            let size = set.size.take();
            vfs.as_server().setattr(self.id, SetAttr { size, ..SetAttr::default() }).await?;
            if set == SetAttr::default() {
                return Ok(());
            }
        }
        match keeps_acl {
            true => vfs.setattr(self.id, set).await.map(drop),
            false => chmod::set(vfs, before, set).await.map(drop),
        }
    }
}
