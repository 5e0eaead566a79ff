//! MKDIR (RFC 1813 3.3.9).

use weft_store::Make;
use weft_wire::nfs3::{CreateOk, MkdirArgs, Outcome, WccOnly};

use super::make;
use crate::server::attributes::changes;
use crate::server::context::Context;

pub(in crate::server) async fn mkdir(cx: &Context<'_>, args: MkdirArgs) -> Outcome<CreateOk, WccOnly> {
    make(cx, &args.object, Make::Dir, changes(&args.attributes)).await
}
