//! SECINFO and SECINFO_NO_NAME (RFC 8881 18.29, 18.45; RFC 7530 16.31). With sessions, both consume the file handle.

use weft_wire::nfs4::{SecinfoOk, Status, Text, UpTo};

use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::lookup;
use crate::server::export;

const CURRENT: u32 = 0;
const PARENT: u32 = 1;

/// The flavours that the export requires; above the exports, those of all of them.
fn flavors(c: &Compound<'_>, object: FsObject<'_>) -> Result<SecinfoOk, Status> {
    object.admit(c.cx, true)?;
    let flavors = match object {
        FsObject::Root => export::flavors_of_all(c.cx.list().iter().map(|share| &share.rules.nfs)),
        FsObject::Node(node) | FsObject::Attributes(node) => export::flavors(&node.share.rules.nfs),
    };
    Ok(UpTo(flavors.into_iter().map(export::secinfo).collect()))
}

/// Also without sessions, a handle that PUTFH accepted only for this question must not stay usable: later operations do
/// not check the flavour again.
fn consume(c: &mut Compound<'_>) {
    let refused = c.current.is_some_and(|object| object.judge(c.cx).is_err());
    if c.minor > 0 || refused {
        c.current = None;
        c.stateid = None;
    }
}

pub async fn secinfo(c: &mut Compound<'_>, name: &Text) -> Result<SecinfoOk, Status> {
    let found = lookup::down(c, name).await;
    let object = found.map_err(|e| if e == Status::SYMLINK { Status::NOTDIR } else { e })?;
    let flavors = flavors(c, object)?;
    consume(c);
    Ok(flavors)
}

pub async fn no_name(c: &mut Compound<'_>, style: u32) -> Result<SecinfoOk, Status> {
    let here = c.object()?;
    let object = match style {
        CURRENT => here,
        PARENT => lookup::up(c).await?,
        _ => return Err(Status::INVAL),
    };
    let flavors = flavors(c, object)?;
    consume(c);
    Ok(flavors)
}
