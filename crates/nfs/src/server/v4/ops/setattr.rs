//! SETATTR. Spec: RFC 8881 18.30, RFC 7530 16.32. The size is set by the right of a state id, the rest by nobody's.

use weft_store::Kind;
use weft_wire::nfs4::{Bitmap, Setattr, Status};

use super::super::attributes::changes;
use super::super::compound::Compound;
use super::super::io::{self, Intent};
use super::super::names::status;

/// The status, and which attributes were set: all or none.
pub async fn setattr(c: &mut Compound<'_>, args: &Setattr) -> (Status, Bitmap) {
    match set(c, args).await {
        Ok(set) => (Status::OK, set),
        Err(status) => (status, Bitmap::EMPTY),
    }
}

async fn set(c: &mut Compound<'_>, args: &Setattr) -> Result<Bitmap, Status> {
    let place = c.place()?;
    let changes = changes(&args.attributes, c.minor, false)?;
    let node = place.writable()?;
    let attr = node.attr().await?;
    if changes.set.size.is_some() {
        match attr.kind {
            Kind::File => {}
            Kind::Dir => return Err(Status::ISDIR),
            Kind::Symlink | Kind::Special(_) => return Err(Status::INVAL),
        }
        io::file(c, &node, &args.stateid, Intent::Resize).await?;
    } else if changes.mask.is_empty() {
        return Ok(Bitmap::EMPTY);
    }
    c.cx.caller.check_set(&attr, &changes.set).map_err(|e| status(&e))?;
    node.share.vfs.setattr(node.id, changes.set).await.map_err(|e| status(&e))?;
    Ok(changes.mask)
}
