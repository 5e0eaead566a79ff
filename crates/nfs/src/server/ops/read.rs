//! READ (RFC 1813 3.3.6).
//!
//! The data is a range of the open file that has not been read yet, unless its file system may block; the call's ticket and
//! the transport decide where it is placed.

use weft_machine::Payload;
use weft_store::opens::{Access, Rights};
use weft_store::{Error, Kind};
use weft_wire::nfs3::{AttrOnly, Outcome, ReadArgs, ReadHead, Status, Xdr};
use weft_wire::xdr::Encoder;

use super::{failed, failed_at};
use crate::server::caller::READ;
use crate::server::context::{Context, Node, Results};

pub(in crate::server) async fn read(cx: &Context<'_>, args: ReadArgs, mut body: Encoder) -> Results {
    let failure: Outcome<(), AttrOnly> = match cx.node(&args.file).await {
        Err(status) => failed(status, AttrOnly::default()),
        Ok(node) => match fetch(cx, &node, &args).await {
            Ok((head, data)) => {
                body.u32(Status::OK.0);
                head.emit(&mut body);
                return Results::new(body, Some(data));
            }
            Err(e) => failed_at(&node, &e).await,
        },
    };
    failure.emit(&mut body);
    Results::new(body, None)
}

async fn fetch(cx: &Context<'_>, node: &Node<'_>, args: &ReadArgs) -> Result<(ReadHead, Payload), Error> {
    node.pass(Access::Read, Rights::READ).await?;
    let attr = node.getattr().await?;
    match attr.kind {
        Kind::File => {}
        Kind::Dir => return Err(Error::IsDir),
        Kind::Symlink | Kind::Special(_) => return Err(Error::Invalid),
    }
    node.check_data(&cx.caller, &attr, READ).await?;
    let file = node.open(cx, &attr, false, (args.offset, args.count)).await?;
    let data = file.read_within(attr.size, args.offset, args.count.min(cx.max_payload()) as usize).await?;
    let data = cx.answers.read(data).await?;
    let count = data.len() as u32;
    let eof = args.offset.saturating_add(u64::from(count)) >= attr.size;
    Ok((ReadHead { attributes: Some(node.attributes(&attr)), count, eof }, data))
}
