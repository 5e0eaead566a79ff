//! READDIRPLUS (RFC 1813 3.3.17).

use weft_machine::rt;
use weft_wire::nfs3::{AttrOnly, EntryPlus, Name, Outcome, ReaddirplusArgs, ReaddirplusOk};

use super::readdir::{EMPTY_LISTING, Found, fit, listing, names};
use super::{failed, failed_at};
use crate::server::context::Context;
use crate::server::file_id::FileId;
use crate::server::handles::BYTES;

/// Bytes of an entryplus3 beyond an entry3: post_op_attr, and post_op_fh3 with our handles.
const PLUS: usize = 4 + 84 + 4 + 4 + BYTES;

pub(in crate::server) async fn readdirplus(
    cx: &Context<'_>,
    args: ReaddirplusArgs,
) -> Outcome<ReaddirplusOk, AttrOnly> {
    let dir = match cx.node(&args.dir).await {
        Ok(dir) => dir,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let limit = cx.server.limits.max_listing;
    let (dir_room, room) = (args.dircount.min(limit) as usize, args.maxcount.min(limit) as usize);
    let names = match names(cx, &dir, args.cookie, room / (28 + PLUS)).await {
        Ok(names) => names,
        Err(e) => return failed_at(&dir, &e).await,
    };
    // dircount is a hint that counts names only; it never excludes the first entry.
    let (mut used, mut dir_used) = (EMPTY_LISTING, 0usize);
    let fits = |entry: &Found| {
        let first = dir_used == 0;
        used = used.saturating_add(entry.len()).saturating_add(PLUS);
        dir_used = dir_used.saturating_add(entry.len());
        used <= room && (first || dir_used <= dir_room)
    };
    let attributes = dir.post().await;
    match fit(names, fits) {
        Ok(names) => {
            let enters = names.enters;
            let mut handles = Vec::with_capacity(names.found.len());
            for found in &names.found {
                rt::yield_if_due().await;
                let handle = match &found.attr {
                    Ok(attr) if enters => cx.handle(FileId { node: attr.node, ..dir.file() }).await.ok(),
                    _ => None,
                };
                handles.push(handle);
            }
            let mut handles = handles.into_iter();
            Ok(listing(attributes, names, |found| EntryPlus {
                fileid: found.fileid(),
                attributes: found.attr.ok().filter(|_| enters).map(|attr| dir.attributes(&attr)),
                name: Name(found.name),
                cookie: found.cookie,
                handle: handles.next().flatten(),
            }))
        }
        Err(status) => failed(status, AttrOnly { attributes }),
    }
}
