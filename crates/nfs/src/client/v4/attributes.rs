//! Version 4 attributes in the form that the client shows and accepts for both versions.
//!
//! See RFC 8881 5.8 and 5.9 (owners). An owner that is not a number is shown as nobody.

use bytes::Bytes;
use weft_wire::nfs3::{FileType as Kind, SpecData};
use weft_wire::nfs4::{Attributes, Bitmap, Fattr, FileType, SetTime, Text, Time, attr};
use weft_wire::xdr::Malformed;

use crate::client::{Attributes as Shown, SetAttributes, SetTime as Set, Time as ShownTime};

/// The attributes requested.
pub(super) const WANTED: Bitmap = Bitmap::of(&[
    attr::TYPE,
    attr::SIZE,
    attr::FSID,
    attr::RDATTR_ERROR,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
]);

const NOBODY: u32 = 65_534;

/// Converts to version 3's attributes; `None` for those that the server did not return.
pub(super) fn shown(fattr: &Fattr) -> Result<Option<Shown>, Malformed> {
    let Attributes { kind, mode, numlinks, size, space_used, rawdev, fsid, fileid, .. } =
        Attributes::parse(fattr)?;
    let Some(kind) = kind else { return Ok(None) };
    let all = Attributes::parse(fattr)?;
    let kind = match kind {
        FileType::DIR | FileType::ATTRDIR => Kind::Dir,
        FileType::BLK => Kind::Blk,
        FileType::CHR => Kind::Chr,
        FileType::LNK => Kind::Lnk,
        FileType::SOCK => Kind::Sock,
        FileType::FIFO => Kind::Fifo,
        FileType::REG | FileType::NAMEDATTR => Kind::Reg,
        _ => return Err(Malformed("RFC 8881 3.2: unknown nfs_ftype4")),
    };
    let rdev = rawdev.unwrap_or_default();
    let size = size.unwrap_or(0);
    Ok(Some(Shown {
        kind,
        mode: mode.unwrap_or(0),
        nlink: numlinks.unwrap_or(1),
        uid: number(all.owner.as_ref()),
        gid: number(all.owner_group.as_ref()),
        size,
        used: space_used.unwrap_or(size),
        rdev: SpecData { major: rdev.major, minor: rdev.minor },
        fsid: fsid.map_or(0, |fsid| fsid.major ^ fsid.minor.rotate_left(32)),
        fileid: fileid.unwrap_or(0),
        atime: time(all.time_access),
        mtime: time(all.time_modify),
        ctime: time(all.time_metadata),
    }))
}

fn number(owner: Option<&Text>) -> u32 {
    let text = owner.and_then(|owner| std::str::from_utf8(&owner.0).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(NOBODY)
}

fn time(time: Option<Time>) -> ShownTime {
    let Time { seconds, nseconds } = time.unwrap_or_default();
    ShownTime { seconds, nseconds }
}

/// The attributes to change, in version 4's form.
pub(super) fn changes(set: &SetAttributes) -> Fattr {
    let text = |number: u32| Text(Bytes::from(number.to_string()));
    let time = |set| match set {
        Set::Keep => None,
        Set::Server => Some(SetTime::Server),
        Set::Client(ShownTime { seconds, nseconds }) => Some(SetTime::Client(Time { seconds, nseconds })),
    };
    Attributes {
        size: set.size,
        mode: set.mode,
        owner: set.uid.map(text),
        owner_group: set.gid.map(text),
        time_access_set: time(set.atime),
        time_modify_set: time(set.mtime),
        ..Attributes::default()
    }
    .fattr()
}
