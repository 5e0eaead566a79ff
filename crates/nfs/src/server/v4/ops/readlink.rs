//! READLINK (RFC 8881 18.24, RFC 7530 16.25). The target is payload (RFC 8267 section 5).

use bytes::Bytes;
use weft_machine::Payload;
use weft_store::Kind;
use weft_wire::nfs4::Status;

use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::names::status;

/// The target's length, and the target.
pub async fn readlink(c: &Compound<'_>) -> Result<(u32, Payload), Status> {
    let wrong = if c.minor == 0 { Status::INVAL } else { Status::WRONG_TYPE };
    let FsObject::Node(node) = c.object()? else { return Err(wrong) };
    match node.attr().await?.kind {
        Kind::Symlink => {}
        Kind::Dir | Kind::File | Kind::Special(_) => return Err(wrong),
    }
    let target = node.share.vfs.readlink(node.id).await.map_err(|e| status(&e))?;
    Ok((target.len() as u32, Payload::from(Bytes::from(target))))
}
