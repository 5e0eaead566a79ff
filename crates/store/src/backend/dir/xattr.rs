//! Extended attributes of files in a folder: those of the namespace `user.`, and the summary of them for a listing.
//!
//! xattr(7). A file is accessed by its descriptor in /proc/self/fd, a listed entry by its name under its directory's
//! descriptor; neither follows a symbolic link. Other namespaces are not offered, because they have a meaning for the
//! kernel. Links, devices and pipes have no attributes here.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result};

use crate::backend::names;
use crate::vfs::{Dos, Error, MAX_XATTR_VALUE, OWN_XATTRS, STREAM_XATTRS, SetXattr, XattrSummary};

const PREFIX: &[u8] = b"user.";
const DOS: &[u8] = b"user.weft.dos";
/// Buffer size of a first call; few files have more names, or a longer value.
const FIRST_BYTES: usize = 512;

/// A path that names what `fd` is open on.
fn path(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// A path that names an entry of a directory.
fn entry_path(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    [&path(dir), &b"/"[..], name].concat()
}

fn full(name: &[u8]) -> std::result::Result<Vec<u8>, Error> {
    names::check_xattr(name)?;
    Ok([PREFIX, name].concat())
}

/// Whether a directory passes a POSIX ACL on to new objects. The kernel tells everybody.
pub(super) fn hands_down_acl(dir: BorrowedFd<'_>) -> bool {
    rustix::fs::getxattr_query(path(dir), c"system.posix_acl_default").is_ok()
}

/// Calls `ask` with a small buffer first, then with the maximum.
fn growing(mut ask: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buf = vec![0; FIRST_BYTES];
    let len = match ask(&mut buf) {
        Err(Errno::RANGE) => {
            buf.resize(MAX_XATTR_VALUE, 0);
            ask(&mut buf)?
        }
        other => other?,
    };
    buf.truncate(len);
    Ok(buf)
}

/// A value.
pub(super) fn get(fd: BorrowedFd<'_>, name: &[u8]) -> std::result::Result<Vec<u8>, Error> {
    let (path, name) = (path(fd), full(name)?);
    Ok(growing(|buf| rustix::fs::getxattr(&path[..], &name[..], buf))?)
}

/// Sets a value.
pub(super) fn set(
    fd: BorrowedFd<'_>,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> std::result::Result<(), Error> {
    let flags = match how {
        SetXattr::Create => XattrFlags::CREATE,
        SetXattr::Replace => XattrFlags::REPLACE,
        SetXattr::Either => XattrFlags::empty(),
    };
    if value.len() > MAX_XATTR_VALUE {
        return Err(Error::XattrTooBig);
    }
    Ok(rustix::fs::setxattr(path(fd), full(name)?, value, flags)?)
}

/// Removes a value.
pub(super) fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> std::result::Result<(), Error> {
    Ok(rustix::fs::removexattr(path(fd), full(name)?)?)
}

/// Names, without their namespace.
pub(super) fn list(fd: BorrowedFd<'_>) -> std::result::Result<Vec<Vec<u8>>, Error> {
    let path = path(fd);
    let names = match growing(|buf| rustix::fs::listxattr(&path[..], buf)) {
        // A file system without attributes has none to list.
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    Ok(ours(&names).map(<[u8]>::to_vec).collect())
}

/// Names of `user.` in a list as the kernel gives it.
fn ours(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&b| b == 0).filter_map(|name| name.strip_prefix(PREFIX)).filter(|name| !name.is_empty())
}

/// The summary for the file behind a descriptor.
pub(super) fn summary(fd: BorrowedFd<'_>) -> XattrSummary {
    let path = path(fd);
    summary_of(
        || growing(|buf| rustix::fs::listxattr(&path[..], buf)),
        |name, buf| rustix::fs::getxattr(&path[..], name, buf),
        |name| rustix::fs::getxattr_query(&path[..], name),
    )
}

/// The summary for an entry of a directory.
pub(super) fn summary_of_entry(dir: BorrowedFd<'_>, name: &[u8]) -> XattrSummary {
    let path = entry_path(dir, name);
    summary_of(
        || growing(|buf| rustix::fs::llistxattr(&path[..], buf)),
        |name, buf| rustix::fs::lgetxattr(&path[..], name, buf),
        |name| rustix::fs::lgetxattr_query(&path[..], name),
    )
}

/// Attributes that cannot be read (no such namespace, the file was removed) count as missing.
fn summary_of(
    list: impl FnOnce() -> Result<Vec<u8>>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize>,
    len: impl Fn(&[u8]) -> Result<usize>,
) -> XattrSummary {
    let mut summary = XattrSummary::default();
    let Ok(names) = list() else { return summary };
    for name in ours(&names) {
        if !name.starts_with(OWN_XATTRS) {
            let value = len(&[PREFIX, name].concat()).unwrap_or(0);
            summary.count = summary.count.saturating_add(1);
            let bytes = u32::try_from(name.len().saturating_add(value)).unwrap_or(0);
            summary.bytes = summary.bytes.saturating_add(bytes);
        } else if DOS.ends_with(name) {
            let mut buf = [0; 64];
            summary.dos = get(DOS, &mut buf).ok().and_then(|len| Dos::parse(buf.get(..len)?));
        } else if name.starts_with(STREAM_XATTRS) {
            summary.streams = true;
        }
    }
    summary
}
