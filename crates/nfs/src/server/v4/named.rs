//! Named attributes: files in an attribute directory that belongs to a file or directory. They are the store's named
//! streams: what NFS writes here, SMB reads as `file:name`.
//!
//! See RFC 8881 5.3 and 18.17, RFC 7530 5.3 and 16.17. Reading, writing and locking treat an attribute like any other
//! node.
//!
//! The directory exists if it has entries, or when a client asks to create it. Names are case-insensitive, as in SMB.
//! The permission to read or write a file's data extends to its named attributes. Mode, owner, times and ACL are the
//! file's, and are set there.

use bytes::Bytes;
use weft_store::opens::{Access, Rights};
use weft_store::{Attr, Created, Error, Kind};
use weft_wire::nfs4::{Bitmap, ChangeInfo, Entry, Rename, RenameOk, Status, Text};

use super::attributes::{self, change};
use super::compound::Compound;
use super::delegations;
use super::fs_object::FsObject;
use super::names::{attribute, new_attribute, not_found, status};
use crate::server::caller::{READ, WRITE};
use crate::server::context::Node;
use crate::server::guard;

/// OPENATTR.
pub(super) async fn openattr(c: &mut Compound<'_>, make: bool) -> Result<(), Status> {
    let wrong = if c.minor == 0 { Status::INVAL } else { Status::WRONG_TYPE };
    let node = match c.object()? {
        FsObject::Root => return Err(Status::NOTSUPP),
        FsObject::Attributes(_) => return Err(wrong),
        FsObject::Node(node) if node.is_attribute() => return Err(wrong),
        FsObject::Node(node) => node,
    };
    match node.attr().await?.kind {
        Kind::File | Kind::Dir => {}
        Kind::Symlink | Kind::Special(_) => return Err(Status::NOTSUPP),
    }
    admit(c, &node, if make { WRITE } else { READ }).await?;
    // NOENT is the right reply only if the node could have attributes.
    let any = node.share.vfs.list_xattrs(node.id).await.map(drop);
    any.map_err(|e| status(&e))?;
    if !make && !node.share.vfs.has_streams(node.id).await.map_err(|e| status(&e))? {
        return Err(Status::NOENT);
    }
    c.set_current(FsObject::Attributes(node));
    Ok(())
}

/// The attribute directory of `of`, for a caller with this access to the file's data.
async fn admit(c: &Compound<'_>, of: &Node<'_>, wanted: u32) -> Result<Attr, Status> {
    let attr = of.attr().await?;
    of.check(&c.cx.caller, &attr, wanted).await.map_err(|e| status(&e))?;
    of.admit(c.cx, &attr, guard::data(wanted)).await.map_err(|e| status(&e))?;
    Ok(attr)
}

/// [MS-FSCC] 2.1.5.3: only names that SMB can express, so that both protocols see the same.
fn spelled(name: &[u8]) -> Result<&[u8], Status> {
    if name.iter().any(|b| matches!(b, b':' | b'\\')) { Err(Status::BADCHAR) } else { Ok(name) }
}

/// The attribute with this name.
async fn find(of: &Node<'_>, name: &Text) -> Result<Attr, Status> {
    let bytes = attribute(name)?;
    let found = of.share.vfs.stream(of.id, bytes, false).await;
    found.map(|found| found.attr).map_err(|e| not_found(name, &e))
}

/// LOOKUP in the directory.
pub(super) async fn look_up<'a>(c: &Compound<'a>, of: Node<'a>, name: &Text) -> Result<FsObject<'a>, Status> {
    admit(c, &of, READ).await?;
    Ok(FsObject::Node(Node { id: find(&of, name).await?.node, ..of }))
}

/// The attribute that an OPEN names. With `make` it is created if missing; the result tells whether it was.
pub(super) async fn open<'a>(
    c: &Compound<'a>,
    of: Node<'a>,
    name: &Text,
    make: bool,
) -> Result<(Node<'a>, bool), Status> {
    let at = |attr: Attr| Node { id: attr.node, ..of };
    match find(&of, name).await {
        Err(Status::NOENT) if make => {}
        found => return found.map(|attr| (at(attr), false)),
    }
    let name = spelled(new_attribute(name)?)?;
    admit(c, &of, WRITE).await?;
    let Created { attr, is_new } = of.share.vfs.stream(of.id, name, true).await.map_err(|e| status(&e))?;
    Ok((at(attr), is_new))
}

/// REMOVE in the directory.
pub(super) async fn remove(c: &Compound<'_>, of: &Node<'_>, name: &Text) -> Result<ChangeInfo, Status> {
    let before = admit(c, of, WRITE).await?;
    let victim = Node { id: find(of, name).await?.node, ..*of };
    delegations::pass(&victim, Access::Handle, Rights::DELETE).await?;
    of.share.vfs.remove_stream(of.id, attribute(name)?).await.map_err(|e| status(&e))?;
    Ok(ChangeInfo { atomic: false, before: change(&before), after: change(&of.attr().await?) })
}

/// RENAME within the directory; an attribute stays with its file.
pub(super) async fn rename(
    c: &Compound<'_>,
    from: &Node<'_>,
    to: &Node<'_>,
    args: &Rename,
) -> Result<RenameOk, Status> {
    if from.file() != to.file() {
        return Err(Status::XDEV);
    }
    let before = admit(c, from, WRITE).await?;
    let moved = Node { id: find(from, &args.from).await?.node, ..*from };
    let to = spelled(new_attribute(&args.to)?)?;
    let vfs = &from.share.vfs;
    let has_replaced = match vfs.stream(from.id, to, false).await {
        Ok(replaced) if replaced.attr.node != moved.id => {
            let replaced = Node { id: replaced.attr.node, ..*from };
            delegations::pass(&replaced, Access::Handle, Rights::DELETE).await?;
            true
        }
        Ok(_) | Err(Error::NotFound) => false,
        Err(e) => return Err(status(&e)),
    };
    delegations::pass(&moved, Access::Rename, Rights::DELETE).await?;
    vfs.rename_stream(moved.id, to, true).await.map_err(|e| status(&e))?;
    c.has_replaced.set(has_replaced);
    let info = ChangeInfo { atomic: false, before: change(&before), after: change(&from.attr().await?) };
    Ok(RenameOk { from: info.clone(), to: info })
}

/// READDIR of the attribute directory, from its `skip`th name on, in byte order. `None` after the last.
pub(super) async fn list(
    c: &Compound<'_>,
    of: &Node<'_>,
    skip: u64,
    wanted: Bitmap,
    mut add: impl FnMut(Entry) -> bool,
) -> Result<bool, Status> {
    admit(c, of, READ).await?;
    let all = of.share.vfs.streams(of.id).await.map_err(|e| status(&e))?;
    let first = usize::try_from(skip).unwrap_or(usize::MAX);
    for (n, entry) in all.into_iter().enumerate().skip(first) {
        let attr = match of.share.vfs.stream(of.id, &entry.name, false).await {
            Ok(found) => found.attr,
            // Removed since it was listed.
            Err(Error::NotFound) => continue,
            Err(e) => return Err(status(&e)),
        };
        let node = Node { id: attr.node, ..*of };
        let attributes = attributes::of_node(c, &node, &attr, wanted).await?.fattr();
        let name = Text(Bytes::from(entry.name));
        if !add(Entry { cookie: (n as u64).saturating_add(1), name, attributes }) {
            return Ok(false);
        }
    }
    Ok(true)
}
