//! READLINK (RFC 1813 3.3.5). The target is DDP-eligible (RFC 8267 section 3), so it is a part of its own.

use bytes::Bytes;
use weft_wire::nfs3::{AttrOnly, Outcome, ReadlinkArgs, Status, Xdr};
use weft_wire::xdr::Encoder;

use super::{failed, failed_at};
use crate::server::context::{Context, Results};

pub(in crate::server) async fn readlink(cx: &Context<'_>, args: ReadlinkArgs, mut body: Encoder) -> Results {
    let failure: Outcome<(), AttrOnly> = match cx.node(&args.symlink).await {
        Err(status) => failed(status, AttrOnly::default()),
        Ok(node) => match node.vfs().readlink(node.id).await {
            Ok(target) => {
                body.u32(Status::OK.0);
                node.post().await.emit(&mut body);
                // The store's targets are at most PATH_MAX bytes long.
                body.u32(target.len() as u32);
                return Results::new(body, Some(Bytes::from(target).into()));
            }
            Err(e) => failed_at(&node, &e).await,
        },
    };
    failure.emit(&mut body);
    Results::new(body, None)
}
