//! PATHCONF (RFC 1813 3.3.20).

use weft_wire::nfs3::{AttrOnly, ObjectArgs, Outcome, PathconfOk};

use super::{failed, failed_at};
use crate::server::context::Context;

/// Most hard links of a file: the smallest limit of the common file systems (ext4).
const LINK_MAX: u32 = 65_000;
/// Longest name (NAME_MAX).
const NAME_MAX: u32 = 255;

pub(in crate::server) async fn pathconf(cx: &Context<'_>, args: ObjectArgs) -> Outcome<PathconfOk, AttrOnly> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    match node.getattr().await {
        Ok(attr) => Ok(PathconfOk {
            attributes: Some(node.attributes(&attr)),
            linkmax: LINK_MAX,
            name_max: NAME_MAX,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }),
        Err(e) => failed_at(&node, &e).await,
    }
}
