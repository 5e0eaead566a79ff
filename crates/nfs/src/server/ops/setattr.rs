//! SETATTR (RFC 1813 3.3.2).

use weft_store::opens::{Access, Rights};
use weft_store::{Attr, Error};
use weft_wire::nfs3::{Outcome, SetattrArgs, Status, WccOnly};

use super::{failed, status, wcc};
use crate::server::attributes::{changes, time};
use crate::server::caller::WRITE;
use crate::server::context::{Context, Node};
use crate::server::guard;

pub(in crate::server) async fn setattr(cx: &Context<'_>, args: SetattrArgs) -> Outcome<WccOnly, WccOnly> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let before = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed(status(&e), WccOnly::default()),
    };
    let done = if args.guard.is_some_and(|guard| guard != time(before.ctime)) {
        Err(Status::NOT_SYNC)
    } else {
        match changes(&args.attributes) {
            Ok(set) => change(cx, &node, &before, set).await.map_err(|e| status(&e)),
            Err(status) => Err(status),
        }
    };
    let wcc = node.wcc(Some(wcc(&before))).await;
    match done {
        Ok(()) => Ok(WccOnly { wcc }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}

async fn change(
    cx: &Context<'_>,
    node: &Node<'_>,
    before: &Attr,
    set: weft_store::SetAttr,
) -> Result<(), Error> {
    cx.caller.check_set(before, &set)?;
    let set = cx.caller.settable(before, set);
    node.admit(cx, before, guard::setting(&set)).await?;
    if let Some(size) = set.size {
        node.check_data(&cx.caller, before, WRITE).await?;
        // Truncation destroys data, so in the grace period clients that may have denied it reclaim first.
        let access = if size < before.size { Access::Overwrite } else { Access::Write };
        node.pass(access, Rights::WRITE).await?;
    } else {
        // Clients that cache the attributes are recalled, without waiting because attributes are not data.
        let _ = node.vfs().opens().recall(node.id, None, Access::Write);
    }
    node.set(before, set, false).await
}
