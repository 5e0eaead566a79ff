//! LOOKUP and LOOKUPP (RFC 8881 18.13, 18.14; RFC 7530 16.13, 16.14).
//!
//! The parent of a share's root is the root of the pseudo file system, which has no parent.

use weft_store::{Kind, NodeId};
use weft_wire::nfs4::{Status, Text};

use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::named;
use super::super::names::{component, not_found, status};
use crate::server::caller::EXECUTE;
use crate::server::context::Node;

pub async fn lookup(c: &mut Compound<'_>, name: &Text) -> Result<(), Status> {
    let object = down(c, name).await?;
    object.admit(c.cx, false)?;
    c.set_current(object);
    Ok(())
}

/// The object with this name in the current directory.
pub async fn down<'a>(c: &Compound<'a>, name: &Text) -> Result<FsObject<'a>, Status> {
    let dir = c.object()?;
    let node = match dir {
        FsObject::Root => {
            let name = &*component(name)?;
            let share = c.cx.list().named(name).ok_or(Status::NOENT)?;
            return Ok(FsObject::Node(Node { share, id: NodeId::ROOT }));
        }
        FsObject::Attributes(of) => return named::look_up(c, of, name).await,
        FsObject::Node(node) => node,
    };
    let attr = node.attr().await?;
    match attr.kind {
        Kind::Dir => {}
        Kind::Symlink => return Err(Status::SYMLINK),
        Kind::File | Kind::Special(_) => return Err(Status::NOTDIR),
    }
    let bytes = &*component(name)?;
    c.cx.caller.check(&attr, EXECUTE).map_err(|e| status(&e))?;
    let found = node.share.vfs.lookup(node.id, bytes, false).await.map_err(|e| not_found(name, &e))?;
    Ok(FsObject::Node(Node { id: found.node, ..node }))
}

pub async fn lookupp(c: &mut Compound<'_>) -> Result<(), Status> {
    let object = up(c).await?;
    c.set_current(object);
    Ok(())
}

/// The parent of the current directory.
pub async fn up<'a>(c: &Compound<'a>) -> Result<FsObject<'a>, Status> {
    let node = match c.object()? {
        FsObject::Root => return Err(Status::NOENT),
        // RFC 8881 18.14.3: the parent of an attribute directory is the object that has the attributes.
        FsObject::Attributes(of) => return Ok(FsObject::Node(of)),
        FsObject::Node(node) => node,
    };
    match node.attr().await?.kind {
        Kind::Dir => {}
        Kind::Symlink if c.minor > 0 => return Err(Status::SYMLINK),
        _ => return Err(Status::NOTDIR),
    }
    if node.id == NodeId::ROOT {
        return Ok(FsObject::Root);
    }
    let above = node.share.vfs.lookup(node.id, b"..", false).await.map_err(|e| status(&e))?;
    Ok(FsObject::Node(Node { id: above.node, ..node }))
}
