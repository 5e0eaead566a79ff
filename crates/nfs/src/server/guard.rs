//! What a security descriptor adds to the mode bits: it denies what it does not grant, whichever protocol set it.
//!
//! Spec: [MS-DTYP] 2.5.3.2 by way of `weft_store::access`; RFC 8881 6.2.1 for the same in the words of NFS.
//! Does not: decide by itself; files without a descriptor are judged by their mode bits alone.
//!
//! Root, where it is not squashed, passes, as it does with mode bits.

use weft_store::access::{self, granted, inherit};
use weft_store::{Attr, Error, Kind, SetAttr};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::AccessMask;

use super::caller::{Caller, EXECUTE, READ, WRITE};
use super::context::{Context, Node};

/// What reading and writing data need.
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

/// What making something in a directory needs.
pub(super) fn making(kind: Kind) -> AccessMask {
    if kind == Kind::Dir { AccessMask::FILE_APPEND_DATA } else { AccessMask::FILE_WRITE_DATA }
}

/// What changing attributes needs.
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
    /// All that a descriptor grants; `None` has nothing to say.
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

    /// Of READ, WRITE and EXECUTE those that mode bits and descriptor grant together.
    pub async fn granted(&self, cx: &Context<'_>, attr: &Attr) -> Result<u32, Error> {
        let by_mode = cx.caller.granted(attr);
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

    /// Refuses unless `victim` may lose its name in this directory: its own descriptor may allow that, or the
    /// directory's.
    pub async fn admit_unmake(&self, cx: &Context<'_>, dir: &Attr, victim: &Attr) -> Result<(), Error> {
        if cx.caller.is_root() {
            return Ok(());
        }
        let (own, above) =
            (access::stored(&self.share.vfs, victim).await?, access::stored(&self.share.vfs, dir).await?);
        let by_dir = cx.caller.granted_by(above.as_ref());
        // A directory without a descriptor says by its mode bits who may delete what is in it.
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

    /// Gives something new in this directory what the directory hands down to it.
    pub async fn hand_down(&self, cx: &Context<'_>, dir: &Attr, made: &Attr) -> Result<(), Error> {
        let Some(above) = access::stored(&self.share.vfs, dir).await? else { return Ok(()) };
        if !matches!(made.kind, Kind::File | Kind::Dir) {
            return Ok(());
        }
        let descriptor = inherit::created(&above, None, made.kind == Kind::Dir, &cx.caller.token());
        access::keep(&self.share.vfs, made.node, &descriptor).await
    }
}
