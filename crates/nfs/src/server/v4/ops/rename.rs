//! RENAME, from the saved to the current directory (RFC 8881 18.26, RFC 7530 16.28).

use weft_store::{Error, Kind, opens::Access, opens::Rights};
use weft_wire::nfs4::{ChangeInfo, Rename, RenameOk, Status};

use super::super::attributes::change;
use super::super::compound::Compound;
use super::super::delegations;
use super::super::fs_object::FsObject;
use super::super::named;
use super::super::names::{component, new_component, not_found, status};
use crate::server::context::Node;
use crate::server::guard;

pub async fn rename(c: &Compound<'_>, args: &Rename) -> Result<RenameOk, Status> {
    let to = c.object()?;
    let from = c.saved.ok_or(Status::NOFILEHANDLE)?;
    if let (FsObject::Attributes(from), FsObject::Attributes(to)) = (&from, &to) {
        return named::rename(c, from, to, args).await;
    }
    let (from, from_before) = from.directory().await?;
    let (to, to_before) = to.directory().await?;
    let (from_name, to_name) = (&*component(&args.from)?, &*component(&args.to)?);
    if from.share.id != to.share.id {
        return Err(Status::XDEV);
    }
    let vfs = &from.share.vfs;
    let moved = vfs.lookup(from.id, from_name, false).await.map_err(|e| not_found(&args.from, &e))?;
    let replaced = match vfs.lookup(to.id, to_name, false).await {
        Ok(attr) => Some(attr),
        Err(Error::NotFound) => {
            new_component(&args.to)?;
            None
        }
        Err(e) => return Err(status(&e)),
    };
    c.cx.caller.check_unmake(&from_before, &moved).map_err(|e| status(&e))?;
    from.admit_unmake(c.cx, &from_before, &moved).await.map_err(|e| status(&e))?;
    match &replaced {
        Some(target) => c.cx.caller.check_unmake(&to_before, target),
        None => c.cx.caller.check_make(&to_before),
    }
    .map_err(|e| status(&e))?;
    match &replaced {
        Some(target) => to.admit_unmake(c.cx, &to_before, target).await,
        None => to.admit(c.cx, &to_before, guard::making(moved.kind)).await,
    }
    .map_err(|e| status(&e))?;
    from.may_unlink(from_name).await.map_err(|e| status(&e))?;
    match &replaced {
        Some(_) => to.may_unlink(to_name).await,
        None => to.check_make(&c.cx.caller, &to_before).await,
    }
    .map_err(|e| status(&e))?;
    let replaced = replaced.filter(|attr| attr.node != moved.node);
    let mut lost = None;
    if let Some(target) = &replaced {
        // RFC 8881 18.26.3: a directory replaces only a directory, and another type only another type.
        if (target.kind == Kind::Dir) != (moved.kind == Kind::Dir) {
            return Err(Status::EXIST);
        }
        let target = Node { id: target.node, ..to };
        delegations::pass(&target, Access::Handle, Rights::DELETE).await?;
        lost = Some((target, target.stable().await));
    }
    let moved = Node { id: moved.node, ..from };
    delegations::pass(&moved, Access::Rename, Rights::DELETE).await?;
    vfs.rename(from.at(from_name), to.at(to_name), true).await.map_err(|e| match e {
        Error::NotEmpty => Status::EXIST,
        e => status(&e),
    })?;
    if let Some((target, stable)) = lost {
        c.has_replaced.set(true);
        target.unnamed(c.cx, stable).await;
    }
    let info = |before, after| ChangeInfo { atomic: false, before: change(before), after };
    let (from_after, to_after) = (change(&from.attr().await?), change(&to.attr().await?));
    Ok(RenameOk { from: info(&from_before, from_after), to: info(&to_before, to_after) })
}
