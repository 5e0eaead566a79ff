//! GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR (RFC 8276 8.4). The store's names have no "user." prefix.

use bytes::Bytes;
use weft_store::{Kind, MAX_XATTR_NAME, OWN_XATTRS, SetXattr};
use weft_wire::nfs4::{ChangeInfo, Listxattrs, ListxattrsOk, Setxattr, Status, Text, UpTo, XattrValue};
use weft_wire::smb2::access::AccessMask;
use weft_wire::xdr::pad;

use super::super::attributes::change;
use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::names::{status, well_formed};
use crate::server::caller::{READ, WRITE};
use crate::server::context::Node;

/// Cookie, count, eof.
const EMPTY: usize = 8 + 4 + 4;

async fn node<'a>(c: &Compound<'a>, wanted: u32) -> Result<(Node<'a>, u64), Status> {
    let FsObject::Node(node) = c.object()? else { return Err(Status::PERM) };
    if node.is_attribute() {
        return Err(Status::WRONG_TYPE);
    }
    let attr = node.attr().await?;
    match attr.kind {
        Kind::File | Kind::Dir => {
            node.check(&c.cx.caller, &attr, wanted).await.map_err(|e| status(&e))?;
            let right = if wanted == WRITE { AccessMask::FILE_WRITE_EA } else { AccessMask::FILE_READ_EA };
            node.admit(c.cx, &attr, right).await.map_err(|e| status(&e))?;
            Ok((node, change(&attr)))
        }
        Kind::Symlink | Kind::Special(_) => Err(Status::WRONG_TYPE),
    }
}

fn key(name: &Text) -> Result<&[u8], Status> {
    if name.0.is_empty() || name.0.contains(&0) {
        return Err(Status::INVAL);
    }
    well_formed(name)?;
    if name.0.len() > MAX_XATTR_NAME { Err(Status::NAMETOOLONG) } else { Ok(&name.0) }
}

pub async fn get(c: &Compound<'_>, name: &Text) -> Result<XattrValue, Status> {
    let (node, _) = node(c, READ).await?;
    let key = key(name)?;
    if key.starts_with(OWN_XATTRS) {
        return Err(Status::NOXATTR);
    }
    let value = node.share.vfs.get_xattr(node.id, key).await.map_err(|e| status(&e))?;
    Ok(XattrValue(Bytes::from(value)))
}

pub async fn set(c: &Compound<'_>, args: &Setxattr) -> Result<ChangeInfo, Status> {
    let (node, before) = node(c, WRITE).await?;
    let key = key(&args.name)?;
    let how = match args.option {
        0 => SetXattr::Either,
        1 => SetXattr::Create,
        2 => SetXattr::Replace,
        _ => return Err(Status::INVAL),
    };
    if key.starts_with(OWN_XATTRS) {
        return Err(Status::ACCESS);
    }
    node.share.vfs.set_xattr(node.id, key, &args.value.0, how).await.map_err(|e| status(&e))?;
    Ok(ChangeInfo { atomic: false, before, after: change(&node.attr().await?) })
}

pub async fn list(c: &Compound<'_>, args: &Listxattrs) -> Result<ListxattrsOk, Status> {
    let (node, _) = node(c, READ).await?;
    let mut all = node.share.vfs.list_xattrs(node.id).await.map_err(|e| status(&e))?;
    all.retain(|name| !name.starts_with(OWN_XATTRS));
    // A cookie counts names in byte order.
    all.sort();
    let skip = usize::try_from(args.cookie).unwrap_or(usize::MAX);
    if skip > all.len() {
        return Err(Status::BAD_COOKIE);
    }
    let mut left = (args.maxcount as usize).checked_sub(EMPTY).ok_or(Status::TOOSMALL)?;
    let rest = all.len().saturating_sub(skip);
    let mut names = Vec::new();
    for name in all.drain(skip..) {
        let len = name.len().saturating_add(pad(name.len())).saturating_add(4);
        let Some(behind) = left.checked_sub(len) else { break };
        left = behind;
        names.push(Text(Bytes::from(name)));
    }
    if names.is_empty() && rest > 0 {
        return Err(Status::TOOSMALL);
    }
    let eof = names.len() == rest;
    Ok(ListxattrsOk { cookie: args.cookie.saturating_add(names.len() as u64), names: UpTo(names), eof })
}

pub async fn remove(c: &Compound<'_>, name: &Text) -> Result<ChangeInfo, Status> {
    let (node, before) = node(c, WRITE).await?;
    let key = key(name)?;
    if key.starts_with(OWN_XATTRS) {
        return Err(Status::NOXATTR);
    }
    node.share.vfs.remove_xattr(node.id, key).await.map_err(|e| status(&e))?;
    Ok(ChangeInfo { atomic: false, before, after: change(&node.attr().await?) })
}
