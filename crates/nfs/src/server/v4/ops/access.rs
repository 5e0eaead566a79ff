//! ACCESS (RFC 8881 18.1, RFC 7530 16.1; RFC 8276 8.5 for extended attributes).
//!
//! A server that is not root grants every right that is meaningful for the type of node, and the operation itself
//! finds out; execution follows the mode bits, because the client executes without asking again.

use weft_store::Kind;
use weft_wire::nfs4::{AccessOk, Status, access as bit};

use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::names::status;
use crate::server::caller::{EXECUTE, READ, WRITE};

const XATTRS: u32 = bit::XAREAD | bit::XAWRITE | bit::XALIST;
const DIRECTORY: u32 = bit::READ | bit::LOOKUP | bit::MODIFY | bit::EXTEND | bit::DELETE;
const FILE: u32 = bit::READ | bit::MODIFY | bit::EXTEND | bit::EXECUTE;

pub async fn access(c: &Compound<'_>, wanted: u32) -> Result<AccessOk, Status> {
    let known = 0x3f | if c.minor >= 2 { XATTRS } else { 0 };
    let (supported, possible) = match c.object()? {
        FsObject::Root => (DIRECTORY, bit::READ | bit::LOOKUP),
        FsObject::Attributes(of) => {
            let attr = of.attr().await?;
            let granted = of.granted(c.cx, &attr).await.map_err(|e| status(&e))?;
            let reads = if granted & READ != 0 { bit::READ | bit::LOOKUP } else { 0 };
            let writes = if granted & WRITE != 0 { bit::MODIFY | bit::EXTEND | bit::DELETE } else { 0 };
            (DIRECTORY, reads | writes)
        }
        FsObject::Node(node) => {
            let attr = node.attr().await?;
            let granted = node.granted(c.cx, &attr).await.map_err(|e| status(&e))?;
            let mut possible = 0;
            let mut add = |class: u32, bits: u32| possible |= if granted & class != 0 { bits } else { 0 };
            let (supported, xattrs) = match attr.kind {
                Kind::Dir => (DIRECTORY | XATTRS, XATTRS),
                Kind::File => (FILE | XATTRS, XATTRS),
                Kind::Symlink | Kind::Special(_) => (FILE, 0),
            };
            add(READ, bit::READ | (xattrs & (bit::XAREAD | bit::XALIST)));
            add(WRITE, bit::MODIFY | bit::EXTEND | bit::DELETE | (xattrs & bit::XAWRITE));
            add(EXECUTE, bit::LOOKUP | bit::EXECUTE);
            (supported, possible & supported)
        }
    };
    let wanted = wanted & known;
    Ok(AccessOk { supported: wanted & supported, access: wanted & possible })
}
