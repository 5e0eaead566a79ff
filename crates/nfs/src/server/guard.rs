//! Applies security descriptors on top of the mode bits: a descriptor denies what it does not grant, whichever
//! protocol set it.
//!
//! See [MS-DTYP] 2.5.3.2, implemented by `weft_store::access`, and RFC 8881 6.2.1 for the same in NFS terms. Files
//! without a descriptor are judged by their mode bits alone, or by the kernel (see `judged`).
//!
//! Root passes unless it is squashed, as with mode bits.

use weft_store::access::{self, granted, inherit};
use weft_store::{Attr, Error, Kind, SetAttr};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::AccessMask;

use super::caller::{Caller, EXECUTE, READ, WRITE};
use super::context::{Context, Node};

/// The rights for reading and writing data.
pub(super) fn data(wanted: u32) -> AccessMask {
    let mut mask = AccessMask::NONE;
    if wanted & READ != 0 {
        mask |= AccessMask::FILE_READ_DATA;
    }
    if wanted & WRITE != 0 {
        mask |= AccessMask::FILE_WRITE_DATA;
    }
    mask
}

/// The right to create a node in a directory.
pub(super) fn making(kind: Kind) -> AccessMask {
    if kind == Kind::Dir { AccessMask::FILE_APPEND_DATA } else { AccessMask::FILE_WRITE_DATA }
}

/// The rights for changing attributes.
pub(super) fn setting(set: &SetAttr) -> AccessMask {
    let mut mask = AccessMask::NONE;
    let mut add = |needed: bool, bits| {
        if needed {
            mask |= bits;
        }
    };
    add(set.size.is_some(), AccessMask::FILE_WRITE_DATA);
    add(set.mode.is_some(), AccessMask::WRITE_DAC);
    add(set.uid.is_some() || set.gid.is_some(), AccessMask::WRITE_OWNER);
    add(set.atime.is_some() || set.mtime.is_some(), AccessMask::FILE_WRITE_ATTRIBUTES);
    mask
}

impl Caller {
    /// All rights that a descriptor grants; without one, nothing is denied here.
    pub fn granted_by(&self, descriptor: Option<&SecurityDescriptor>) -> AccessMask {
        match descriptor {
            Some(descriptor) if !self.is_root() => granted(descriptor, &self.token()),
            _ => AccessMask::FILE_ALL,
        }
    }

    /// Refuses unless the descriptor grants all of `wanted`.
    pub fn admitted(&self, descriptor: Option<&SecurityDescriptor>, wanted: AccessMask) -> Result<(), Error> {
        if self.granted_by(descriptor).contains(wanted) { Ok(()) } else { Err(Error::Access) }
    }
}

impl Node<'_> {
    /// Refuses unless the descriptor of this node, if it has one, grants all of `wanted`.
    pub async fn admit(&self, cx: &Context<'_>, attr: &Attr, wanted: AccessMask) -> Result<(), Error> {
        if wanted == AccessMask::NONE || cx.caller.is_root() {
            return Ok(());
        }
        let descriptor = access::stored(&self.share.vfs, attr).await?;
        cx.caller.admitted(descriptor.as_ref(), wanted)
    }

    /// Refuses a caller who may not write data, by mode bits (or the kernel) and descriptor. The owner may do what he could
    /// when he opened the file.
    pub async fn check_writing(&self, cx: &Context<'_>, attr: &Attr) -> Result<(), Error> {
        self.check_data(&cx.caller, attr, WRITE).await?;
        self.admit(cx, attr, data(WRITE)).await
    }

    /// The subset of READ, WRITE and EXECUTE that mode bits (or the kernel) and descriptor both grant.
    pub async fn granted(&self, cx: &Context<'_>, attr: &Attr) -> Result<u32, Error> {
        let by_mode = self.permitted(&cx.caller, attr, READ | WRITE | EXECUTE).await?;
        if cx.caller.is_root() {
            return Ok(by_mode);
        }
        let descriptor = access::stored(&self.share.vfs, attr).await?;
        let by_descriptor = cx.caller.granted_by(descriptor.as_ref());
        let classes = [
            (READ, AccessMask::FILE_READ_DATA),
            (WRITE, AccessMask::FILE_WRITE_DATA),
            (EXECUTE, AccessMask::FILE_EXECUTE),
        ];
        let granted = classes.iter().filter(|(_, needed)| by_descriptor.contains(*needed));
        Ok(by_mode & granted.map(|(class, _)| class).sum::<u32>())
    }

    /// Refuses unless `victim` may be removed from this directory: its own descriptor or the directory's can allow
    /// that.
    pub async fn admit_unmake(&self, cx: &Context<'_>, dir: &Attr, victim: &Attr) -> Result<(), Error> {
        if cx.caller.is_root() {
            return Ok(());
        }
        let (own, above) =
            (access::stored(&self.share.vfs, victim).await?, access::stored(&self.share.vfs, dir).await?);
        let by_dir = cx.caller.granted_by(above.as_ref());
        // In a directory without a descriptor, the mode bits decide who may delete entries.
        let child = AccessMask::FILE_DELETE_CHILD;
        let either = match (&own, &above) {
            (None, None) => true,
            (Some(_), None) => cx.caller.granted_by(own.as_ref()).contains(AccessMask::DELETE),
            (None, Some(_)) => by_dir.contains(child),
            (Some(_), Some(_)) => {
                by_dir.contains(child) || cx.caller.granted_by(own.as_ref()).contains(AccessMask::DELETE)
            }
        };
        if either { Ok(()) } else { Err(Error::Access) }
    }

    /// Applies what the directory's descriptor passes on to a new node.
    pub async fn hand_down(&self, cx: &Context<'_>, dir: &Attr, made: &Attr) -> Result<(), Error> {
        let Some(above) = access::stored(&self.share.vfs, dir).await? else { return Ok(()) };
        if !matches!(made.kind, Kind::File | Kind::Dir) {
            return Ok(());
        }
        let descriptor = inherit::created(&above, None, made.kind == Kind::Dir, &cx.caller.token());
        access::keep(&self.share.vfs, made.node, &descriptor).await
    }
}
