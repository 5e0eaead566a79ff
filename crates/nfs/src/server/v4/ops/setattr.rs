//! SETATTR (RFC 8881 18.30, RFC 7530 16.32). Setting the size requires a state id's access; other attributes do not.

use weft_store::opens::Access;
use weft_store::{Kind, SetAttr};
use weft_wire::nfs4::{Bitmap, Setattr, Status, attr};

use super::super::acl;
use super::super::attributes::{self, changes};
use super::super::compound::Compound;
use super::super::delegations;
use super::super::io::{self, Intent};
use super::super::names::status;
use crate::server::guard;

/// The attribute that belongs to a named attribute itself, not to its file.
const SIZE: Bitmap = Bitmap::of(&[attr::SIZE]);

/// The status, and which attributes were set: all or none.
pub async fn setattr(c: &mut Compound<'_>, args: &Setattr) -> (Status, Bitmap) {
    match set(c, args).await {
        Ok(set) => (Status::OK, set),
        Err(status) => (status, Bitmap::EMPTY),
    }
}

async fn set(c: &mut Compound<'_>, args: &Setattr) -> Result<Bitmap, Status> {
    let object = c.object()?;
    let mut changes = changes(&args.attributes, c.minor, false)?;
    let node = object.writable()?;
    if node.is_attribute() && !changes.mask.without(SIZE).is_empty() {
        return Err(Status::ATTRNOTSUPP);
    }
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
    } else {
        if attributes::is_delegated(changes.mask) {
            // RFC 9754: only the holder of the delegation may set these times.
            let state = io::state(c, &node, &args.stateid)?.ok_or(Status::BAD_STATEID)?;
            state.delegation().filter(|right| right.times).ok_or(Status::INVAL)?;
            attributes::drop_known(&mut changes, &attr);
        }
        delegations::clear(c, &node, Access::Write).await?;
    }
    c.cx.caller.check_set(&attr, &changes.set).map_err(|e| status(&e))?;
    changes.set = c.cx.caller.settable(&attr, changes.set);
    node.admit(c.cx, &attr, guard::setting(&changes.set)).await.map_err(|e| status(&e))?;
    if changes.acl.is_some() {
        acl::check_set(c, &node, &attr).await?;
    }
    if changes.set != SetAttr::default() {
        // An ACL in the request takes effect; otherwise an existing one follows the mode.
        let done = node.set(&attr, changes.set, changes.acl.is_some()).await;
        done.map_err(|e| status(&e))?;
    }
    acl::keep(c, &node, &attr, changes.acl.as_ref()).await?;
    Ok(changes.mask)
}
