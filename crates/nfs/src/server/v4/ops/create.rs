//! CREATE: every type but regular files (RFC 8881 18.4, RFC 7530 16.4).
//!
//! A device node made by a client would give access to the host's devices: only unsquashed root may create one.

use weft_store::{Created, Exists, Kind, Make, Special};
use weft_wire::nfs4::{ChangeInfo, Create, CreateOk, CreateType, FileType, Status};

use super::super::acl;
use super::super::attributes::{change, changes};
use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::names::{new_component, status};
use crate::server::context::Node;
use crate::server::guard;

pub async fn create(c: &mut Compound<'_>, args: Create) -> Result<CreateOk, Status> {
    let (dir, before) = c.object()?.directory().await?;
    let make = match args.kind {
        CreateType::Link(target) if target.0.is_empty() => return Err(Status::INVAL),
        CreateType::Link(target) => Make::Symlink(target.0.to_vec()),
        CreateType::Other(FileType::DIR) => Make::Dir,
        CreateType::Other(FileType::FIFO) => Make::Special(Special::Fifo),
        CreateType::Other(FileType::SOCK) => Make::Special(Special::Socket),
        CreateType::Device(..) if !c.cx.caller.makes_devices() => return Err(Status::PERM),
        CreateType::Device(FileType::BLK, n) => Make::Special(Special::Block(n.major, n.minor)),
        CreateType::Device(_, n) => Make::Special(Special::Char(n.major, n.minor)),
        CreateType::Other(_) => return Err(Status::BADTYPE),
    };
    let name = &*new_component(&args.name)?;
    let changes = changes(&args.attributes, c.minor, true)?;
    if changes.set.size.is_some() {
        return Err(Status::INVAL);
    }
    let vfs = &dir.share.vfs;
    c.cx.caller.check_make(&before).map_err(|e| status(&e))?;
    let kind = if make == Make::Dir { Kind::Dir } else { Kind::File };
    dir.admit(c.cx, &before, guard::making(kind)).await.map_err(|e| status(&e))?;
    let set = c.cx.caller.owned(changes.set, &before);
    let (Created { attr: made, .. }, unsettled) =
        vfs.make(dir.id, name, make, Exists::Fail, set).await.map_err(|e| status(&e))?;
    let kept = acl::inherit(c, &dir, &before, &made, changes.acl.as_ref()).await;
    vfs.settle(unsettled).await.map_err(|e| status(&e))?;
    kept?;
    let change = ChangeInfo { atomic: false, before: change(&before), after: change(&dir.attr().await?) };
    c.set_current(FsObject::Node(Node { id: made.node, ..dir }));
    Ok(CreateOk { change, attrset: changes.mask })
}
