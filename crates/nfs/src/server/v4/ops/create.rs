//! CREATE: everything but regular files. Spec: RFC 8881 18.4, RFC 7530 16.4.
//!
//! Devices, sockets and pipes are refused: the store makes none, and a device that a client makes would be a way into
//! the host.

use weft_store::{Exists, Make};
use weft_wire::nfs4::{ChangeInfo, Create, CreateOk, CreateType, FileType, Status};

use super::super::attributes::{change, changes};
use super::super::compound::Compound;
use super::super::names::{component, status};
use super::super::place::Place;
use crate::server::dispatch::Node;

pub async fn create(c: &mut Compound<'_>, args: Create) -> Result<CreateOk, Status> {
    let (dir, before) = c.place()?.directory().await?;
    let make = match args.kind {
        CreateType::Link(target) if target.0.is_empty() => return Err(Status::INVAL),
        CreateType::Link(target) => Make::Symlink(target.0.to_vec()),
        CreateType::Other(FileType::DIR) => Make::Dir,
        CreateType::Device(..) | CreateType::Other(_) => return Err(Status::BADTYPE),
    };
    let name = component(&args.name)?;
    let changes = changes(&args.attributes, c.minor, true)?;
    if changes.set.size.is_some() {
        return Err(Status::INVAL);
    }
    let vfs = &dir.share.vfs;
    let made = vfs.create(dir.id, name, make, Exists::Fail, changes.set).await.map_err(|e| status(&e))?;
    let change = ChangeInfo { atomic: false, before: change(&before), after: change(&dir.attr().await?) };
    c.go(Place::Node(Node { id: made.0.node, ..dir }));
    Ok(CreateOk { change, attrset: changes.mask })
}
