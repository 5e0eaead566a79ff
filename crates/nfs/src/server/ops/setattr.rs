//! SETATTR. Spec: RFC 1813 3.3.2.

use weft_store::Error;
use weft_store::opens::{Access, Rights};
use weft_wire::nfs3::{Outcome, SetattrArgs, Status, WccOnly};

use super::{failed, status, wcc};
use crate::server::attributes::{changes, time};
use crate::server::dispatch::{Connection, Node};

pub(in crate::server) async fn setattr(cx: &Connection<'_>, args: SetattrArgs) -> Outcome<WccOnly, WccOnly> {
    let node = match cx.node(&args.object) {
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
            Ok(set) => change(&node, set).await.map_err(|e| status(&e)),
            Err(status) => Err(status),
        }
    };
    let wcc = node.wcc(Some(wcc(&before))).await;
    match done {
        Ok(()) => Ok(WccOnly { wcc }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}

async fn change(node: &Node<'_>, set: weft_store::SetAttr) -> Result<(), Error> {
    if set.size.is_some() {
        node.pass(Access::Write, Rights::WRITE).await?;
    }
    node.vfs().setattr(node.id, set).await.map(drop)
}
