//! GETATTR (RFC 8881 18.7, RFC 7530 16.7).

use weft_wire::nfs4::{Bitmap, Fattr, Status};

use super::super::attributes;
use super::super::compound::Compound;

pub async fn getattr(c: &Compound<'_>, wanted: Bitmap) -> Result<Fattr, Status> {
    let object = c.object()?;
    attributes::readable(wanted)?;
    let wanted = wanted.and(attributes::supported(c.minor));
    Ok(attributes::of_object(c, &object, wanted).await?.fattr())
}
