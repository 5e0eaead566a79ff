//! Checks names, and maps errors of the store to nfsstat4.
//!
//! See RFC 8881 14 and 15.1.7 (names), RFC 7530 12 and 13.1. Names are UTF-8; file names that are not UTF-8 travel in
//! the encoding of [`octets`], as over SMB. Version 3 carries them unchanged. Names are not normalized.
//!
//! Noncharacters (Unicode 23.7: U+FFFE, U+FFFF and the like) are not accepted in new names. A file that another
//! program has named so can still be listed, found, renamed and removed.

use std::borrow::Cow;

use bytes::Bytes;
use weft_store::Error;
use weft_wire::nfs4::{Status, Text};
use weft_wire::octets;

/// The longest name of Linux file systems, in bytes.
pub(super) const MAX_NAME: usize = 255;

/// A valid name in a directory, in the store's form.
pub(super) fn component(name: &Text) -> Result<Cow<'_, [u8]>, Status> {
    let text = well_formed(name)?;
    let bytes = octets::from_text(text).ok_or(Status::BADCHAR)?;
    check(&bytes)?;
    Ok(bytes)
}

/// A valid name of a named attribute, which must be text.
pub(super) fn attribute(name: &Text) -> Result<&[u8], Status> {
    well_formed(name)?;
    check(&name.0)?;
    Ok(&name.0)
}

/// The wire form of a name of the store.
pub(super) fn shown(name: &[u8]) -> Text {
    Text(Bytes::copy_from_slice(octets::to_text(name).as_bytes()))
}

fn check(bytes: &[u8]) -> Result<(), Status> {
    if bytes.is_empty() {
        return Err(Status::INVAL);
    }
    if bytes.len() > MAX_NAME {
        return Err(Status::NAMETOOLONG);
    }
    if bytes.iter().any(|b| matches!(b, 0 | b'/')) {
        return Err(Status::BADCHAR);
    }
    if bytes == b"." || bytes == b".." {
        return Err(Status::BADNAME);
    }
    Ok(())
}

/// A name for something new: NFS4ERR_INVAL if it contains a noncharacter.
pub(super) fn new_component(name: &Text) -> Result<Cow<'_, [u8]>, Status> {
    let bytes = component(name)?;
    utf8(name)?;
    Ok(bytes)
}

/// The same for a named attribute.
pub(super) fn new_attribute(name: &Text) -> Result<&[u8], Status> {
    let bytes = attribute(name)?;
    utf8(name)?;
    Ok(bytes)
}

/// Why looking up this name failed: a name that could not be created is reported as invalid, not as missing.
pub(super) fn not_found(name: &Text, e: &Error) -> Status {
    match (e, utf8(name)) {
        (Error::NotFound, Err(no_name)) => no_name,
        _ => status(e),
    }
}

/// NFS4ERR_INVAL for text that is not UTF-8 or contains a noncharacter.
pub(super) fn utf8(text: &Text) -> Result<&str, Status> {
    let text = well_formed(text)?;
    if text.chars().any(is_noncharacter) { Err(Status::INVAL) } else { Ok(text) }
}

/// NFS4ERR_INVAL for text that is not UTF-8.
pub(super) fn well_formed(text: &Text) -> Result<&str, Status> {
    std::str::from_utf8(&text.0).map_err(|_| Status::INVAL)
}

/// The last two code points of every plane, and thirty-two in the first.
fn is_noncharacter(c: char) -> bool {
    let c = u32::from(c);
    c & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&c)
}

/// Maps errors of the store to nfsstat4; nothing else does.
pub(super) fn status(e: &Error) -> Status {
    match e {
        Error::NotFound => Status::NOENT,
        Error::Stale => Status::STALE,
        Error::Exists => Status::EXIST,
        Error::NotDir => Status::NOTDIR,
        Error::IsDir => Status::ISDIR,
        Error::NotEmpty => Status::NOTEMPTY,
        Error::Access => Status::ACCESS,
        Error::NotPermitted => Status::PERM,
        Error::BadName => Status::BADNAME,
        Error::NameTooLong => Status::NAMETOOLONG,
        Error::Invalid => Status::INVAL,
        Error::NoSpace => Status::NOSPC,
        Error::OverQuota => Status::DQUOT,
        Error::TooLarge => Status::FBIG,
        // Transient: the client repeats the request by itself.
        Error::Limit(_) => Status::DELAY,
        Error::Sharing => Status::FILE_OPEN,
        Error::ReadOnly => Status::ROFS,
        Error::NotSupported => Status::NOTSUPP,
        Error::NoXattr => Status::NOXATTR,
        Error::XattrTooBig => Status::XATTR2BIG,
        // The connection ends over this. Whoever still gets the answer, or gets it from a cache, repeats the operation,
        // which was not carried out.
        Error::Payload(_) => {
            tracing::debug!("a WRITE: {e}");
            Status::DELAY
        }
        Error::Io(e) => {
            tracing::warn!("file system error: {e}");
            Status::IO
        }
    }
}
