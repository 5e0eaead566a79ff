//! VERIFY and NVERIFY (RFC 8881 18.31, 18.15; RFC 7530 16.35, 16.15).

use weft_wire::nfs4::{Fattr, Status};

use super::super::attributes::same;
use super::super::compound::Compound;

pub async fn verify(c: &Compound<'_>, fattr: &Fattr) -> Result<(), Status> {
    if same(c, &c.object()?, fattr).await? { Ok(()) } else { Err(Status::NOT_SAME) }
}

pub async fn nverify(c: &Compound<'_>, fattr: &Fattr) -> Result<(), Status> {
    if same(c, &c.object()?, fattr).await? { Err(Status::SAME) } else { Ok(()) }
}
