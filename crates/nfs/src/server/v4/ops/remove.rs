//! REMOVE (RFC 8881 18.25, RFC 7530 16.27). Files that NFS has open live on; SMB's share modes are respected.

use weft_store::{Kind, opens::Access, opens::Rights};
use weft_wire::nfs4::{ChangeInfo, Status, Text};

use super::super::attributes::change;
use super::super::compound::Compound;
use super::super::delegations;
use super::super::fs_object::FsObject;
use super::super::named;
use super::super::names::{component, not_found, status};
use crate::server::context::Node;

pub async fn remove(c: &Compound<'_>, name: &Text) -> Result<ChangeInfo, Status> {
    let object = c.object()?;
    if let FsObject::Attributes(of) = &object {
        return named::remove(c, of, name).await;
    }
    let (dir, before) = object.directory().await?;
    let vfs = &dir.share.vfs;
    let bytes = &*component(name)?;
    let found = vfs.lookup(dir.id, bytes, false).await.map_err(|e| not_found(name, &e))?;
    c.cx.caller.check_unmake(&before, &found).map_err(|e| status(&e))?;
    dir.admit_unmake(c.cx, &before, &found).await.map_err(|e| status(&e))?;
    dir.may_unlink(bytes).await.map_err(|e| status(&e))?;
    let victim = Node { id: found.node, ..dir };
    delegations::pass(&victim, Access::Handle, Rights::DELETE).await?;
    let stable = victim.stable().await;
    let done = match found.kind {
        Kind::Dir => vfs.rmdir(dir.id, bytes).await,
        _ => vfs.remove(dir.id, bytes).await,
    };
    done.map_err(|e| status(&e))?;
    victim.unnamed(c.cx, stable).await;
    Ok(ChangeInfo { atomic: false, before: change(&before), after: change(&dir.attr().await?) })
}
