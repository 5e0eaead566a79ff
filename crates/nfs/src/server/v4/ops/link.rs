//! LINK: adds a hard link to the saved file in the current directory (RFC 8881 18.9, RFC 7530 16.9).

use weft_store::Kind;
use weft_store::opens::{Access, Rights};
use weft_wire::nfs4::{ChangeInfo, Status, Text};

use super::super::attributes::change;
use super::super::compound::Compound;
use super::super::delegations;
use super::super::fs_object::FsObject;
use super::super::names::{new_component, status};
use crate::server::guard;

pub async fn link(c: &Compound<'_>, name: &Text) -> Result<ChangeInfo, Status> {
    let dir = c.object()?;
    let FsObject::Node(file) = c.saved.ok_or(Status::NOFILEHANDLE)? else { return Err(Status::ISDIR) };
    let (dir, before) = dir.directory().await?;
    if file.is_attribute() {
        return Err(Status::INVAL);
    }
    let linked = file.attr().await?;
    if linked.kind == Kind::Dir {
        return Err(Status::ISDIR);
    }
    let name = &*new_component(name)?;
    if file.share.id != dir.share.id {
        return Err(Status::XDEV);
    }
    dir.check_make(&c.cx.caller, &before).await.map_err(|e| status(&e))?;
    dir.admit(c.cx, &before, guard::making(Kind::File)).await.map_err(|e| status(&e))?;
    c.cx.caller.check_link(&linked).map_err(|e| status(&e))?;
    delegations::pass(&file, Access::Rename, Rights::NONE).await?;
    dir.share.vfs.link(file.id, dir.id, name).await.map_err(|e| status(&e))?;
    Ok(ChangeInfo { atomic: false, before: change(&before), after: change(&dir.attr().await?) })
}
