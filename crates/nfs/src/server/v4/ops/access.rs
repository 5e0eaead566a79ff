//! ACCESS. Spec: RFC 8881 18.1, RFC 7530 16.1; RFC 8276 8.5 for extended attributes.
//!
//! As in version 3: every right that makes sense for the kind of node is granted, and the operation itself finds out.
//! Executing is left to the mode bits, since the client does it without asking again.

use weft_store::Kind;
use weft_wire::nfs4::{AccessOk, Status, access as bit};

use super::super::compound::Compound;
use super::super::place::Place;

const XATTRS: u32 = bit::XAREAD | bit::XAWRITE | bit::XALIST;
const DIRECTORY: u32 = bit::READ | bit::LOOKUP | bit::MODIFY | bit::EXTEND | bit::DELETE;
const FILE: u32 = bit::READ | bit::MODIFY | bit::EXTEND | bit::EXECUTE;

pub async fn access(c: &Compound<'_>, wanted: u32) -> Result<AccessOk, Status> {
    let known = 0x3f | if c.minor >= 2 { XATTRS } else { 0 };
    let (supported, possible) = match c.place()? {
        Place::Root => (DIRECTORY, bit::READ | bit::LOOKUP),
        Place::Node(node) => {
            let attr = node.attr().await?;
            match attr.kind {
                Kind::Dir => (DIRECTORY | XATTRS, DIRECTORY | XATTRS),
                Kind::File if attr.mode & 0o111 == 0 => (FILE | XATTRS, (FILE & !bit::EXECUTE) | XATTRS),
                Kind::File => (FILE | XATTRS, FILE | XATTRS),
                Kind::Symlink | Kind::Other => (FILE, bit::READ | bit::MODIFY | bit::EXTEND),
            }
        }
    };
    let wanted = wanted & known;
    Ok(AccessOk { supported: wanted & supported, access: wanted & possible })
}
