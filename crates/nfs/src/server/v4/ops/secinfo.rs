//! SECINFO and SECINFO_NO_NAME. Spec: RFC 8881 18.29, 18.45; RFC 7530 16.31. With sessions both consume the handle.

use weft_wire::nfs4::{Secinfo, SecinfoOk, Status, Text, UpTo};
use weft_wire::rpc::Flavor;

use super::super::compound::Compound;
use super::lookup;

const CURRENT: u32 = 0;
const PARENT: u32 = 1;

fn flavors() -> SecinfoOk {
    UpTo(vec![Secinfo::Flavor(Flavor::SYS), Secinfo::Flavor(Flavor::NONE)])
}

fn consume(c: &mut Compound<'_>) {
    if c.minor > 0 {
        c.current = None;
        c.stateid = None;
    }
}

pub async fn secinfo(c: &mut Compound<'_>, name: &Text) -> Result<SecinfoOk, Status> {
    lookup::down(c, name).await.map_err(|e| if e == Status::SYMLINK { Status::NOTDIR } else { e })?;
    consume(c);
    Ok(flavors())
}

pub async fn no_name(c: &mut Compound<'_>, style: u32) -> Result<SecinfoOk, Status> {
    c.place()?;
    match style {
        CURRENT => {}
        PARENT => drop(lookup::up(c).await?),
        _ => return Err(Status::INVAL),
    }
    consume(c);
    Ok(flavors())
}
