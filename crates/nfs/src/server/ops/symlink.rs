//! SYMLINK (RFC 1813 3.3.10). The store never follows links, so a target may be anything.

use weft_store::Make;
use weft_wire::nfs3::{CreateOk, Outcome, SymlinkArgs, WccOnly};

use super::make;
use crate::server::attributes::changes;
use crate::server::context::Context;

pub(in crate::server) async fn symlink(cx: &Context<'_>, args: SymlinkArgs) -> Outcome<CreateOk, WccOnly> {
    make(cx, &args.object, Make::Symlink(args.target.0.to_vec()), changes(&args.attributes)).await
}
