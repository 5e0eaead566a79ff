//! CREATE (RFC 1813 3.3.8).

use weft_store::opens::{Access, Rights};
use weft_store::{Attr, Error, Exists, Make, SetAttr};
use weft_wire::nfs3::{CreateArgs, CreateHow, CreateOk, Outcome, WccOnly};

use super::{begin, created, failed, make_in};
use crate::server::attributes::changes;
use crate::server::caller::WRITE;
use crate::server::context::{Context, Node};
use crate::server::guard;

pub(in crate::server) async fn create(cx: &Context<'_>, args: CreateArgs) -> Outcome<CreateOk, WccOnly> {
    let (dir, before) = match begin(cx, &args.object.dir).await {
        Ok(begun) => begun,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let how = match &args.how {
        CreateHow::Unchecked(set) => changes(set).map(|set| (Exists::Reuse, set)),
        CreateHow::Guarded(set) => changes(set).map(|set| (Exists::Fail, set)),
        CreateHow::Exclusive(verifier) => Ok((Exists::Verifier(*verifier), SetAttr::default())),
    };
    let (exists, set) = match how {
        Ok(how) => how,
        Err(status) => return failed(status, WccOnly { wcc: dir.wcc(before).await }),
    };
    let made = make(cx, &dir, &args.object.name.0, exists, set).await;
    created(cx, &dir, before, made).await
}

async fn make(
    cx: &Context<'_>,
    dir: &Node<'_>,
    name: &[u8],
    exists: Exists,
    set: SetAttr,
) -> Result<Attr, Error> {
    let known = match exists {
        Exists::Reuse => dir.vfs().lookup(dir.id, name, false).await.ok(),
        Exists::Fail | Exists::Verifier(_) => None,
    };
    let Some(known) = known else { return make_in(cx, dir, name, Make::File, exists, set).await };
    // Truncating an existing file: its other opens may deny that, and so may its mode.
    if set.size.is_some() {
        cx.caller.check_data(&known, WRITE)?;
        dir.admit(cx, &known, guard::data(WRITE)).await?;
        Node { id: known.node, ..*dir }.pass(Access::Overwrite, Rights::WRITE).await?;
    }
    dir.vfs().create(dir.id, name, Make::File, exists, set).await.map(|(attr, _)| attr)
}
