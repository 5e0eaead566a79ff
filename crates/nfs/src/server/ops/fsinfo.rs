//! FSINFO (RFC 1813 3.3.19).

use weft_wire::nfs3::{
    AttrOnly, FSF_CANSETTIME, FSF_HOMOGENEOUS, FSF_LINK, FSF_SYMLINK, FsinfoOk, ObjectArgs, Outcome, Time,
};

use super::{failed, failed_at};
use crate::server::attributes::MAX_FILE_SIZE;
use crate::server::context::Context;

/// READ and WRITE perform best in whole pages.
const MULTIPLE: u32 = 4096;

pub(in crate::server) async fn fsinfo(cx: &Context<'_>, args: ObjectArgs) -> Outcome<FsinfoOk, AttrOnly> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let attr = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed_at(&node, &e).await,
    };
    let payload = cx.max_payload();
    Ok(FsinfoOk {
        attributes: Some(node.attributes(&attr)),
        rtmax: payload,
        rtpref: payload,
        rtmult: MULTIPLE,
        wtmax: payload,
        wtpref: payload,
        wtmult: MULTIPLE,
        dtpref: cx.server.limits.max_listing,
        maxfilesize: MAX_FILE_SIZE,
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: FSF_LINK | FSF_SYMLINK | FSF_HOMOGENEOUS | FSF_CANSETTIME,
    })
}
