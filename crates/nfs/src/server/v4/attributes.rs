//! Attributes of NFSv4: encodes those of a node, and decodes those that a client sets.
//!
//! See RFC 7530 5, RFC 8881 5, RFC 7862 12.2, RFC 8276 8.2 and RFC 9754.
//!
//! The change attribute is the time of the last change in nanoseconds. Users are identified by number, as Linux
//! clients with AUTH_SYS write them.

mod named;

use bytes::Bytes;
use weft_store::{self as store, Attr, Kind, SetAttr, Space, Special, Timestamp, Unread};
use weft_wire::nfs4::{
    Acl, Attributes, Bitmap, Fattr, FileType, Fsid, OpenArguments, SetTime, SpecData, Status, Text, Time,
    attr, share,
};

use super::acl;
use super::compound::Compound;
use super::fs_object::FsObject;
use super::names::{MAX_NAME, status};
use crate::server::attributes::MAX_FILE_SIZE;
use crate::server::context::Node;

/// Fills in those attributes of `$v` that are `$wanted`.
macro_rules! give {
    ($v:ident, $wanted:ident; $($field:ident $number:ident = $value:expr;)*) => {
        $(if $wanted.has(attr::$number) { $v.$field = Some($value); })*
    };
}

/// FH4_PERSISTENT.
const PERSISTENT: u32 = 0;
/// NFS4_CHANGE_TYPE_IS_TIME_METADATA.
const CHANGE_IS_CTIME: u32 = 4;
/// FSCHARSET_CAP4_ALLOWS_ONLY_UTF8.
const ONLY_UTF8: u32 = 2;
/// Largest hard link count: ext4's limit, the lowest of the common file systems.
const MAX_LINKS: u32 = 65_000;
/// Block size of CLONE's ranges on the file systems that support it.
const CLONE_BLOCK: u32 = 4096;

/// The mandatory attributes (RFC 7530 5.6) and the optional ones supported in every minor version.
const IN_ALL: Bitmap = Bitmap::of(&[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 26, 27, 28, 29, 30, 31,
    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 47, 48, 50, 51, 52, 53, 54, 55,
]);
const SINCE_1: Bitmap = Bitmap::of(&[attr::MODE_SET_MASKED, attr::SUPPATTR_EXCLCREAT, attr::FS_CHARSET_CAP]);
const SINCE_2: Bitmap =
    Bitmap::of(&[attr::CLONE_BLKSIZE, attr::CHANGE_ATTR_TYPE, attr::MODE_UMASK, attr::XATTR_SUPPORT])
        .or_const(DELEGATED)
        .or_const(Bitmap::of(&[attr::OPEN_ARGUMENTS]));
/// Times that the holder of a delegation maintains and reports (RFC 9754).
const DELEGATED: Bitmap = Bitmap::of(&[attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]);
/// Attributes that can be set but not read.
const WRITE_ONLY: Bitmap =
    Bitmap::of(&[attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET, attr::MODE_SET_MASKED, attr::MODE_UMASK])
        .or_const(DELEGATED);
const SETTABLE: Bitmap =
    Bitmap::of(&[attr::SIZE, attr::ACL, attr::MODE, attr::OWNER, attr::OWNER_GROUP]).or_const(WRITE_ONLY);
/// Attributes available in an exclusive create, whose verifier is stored in the times (RFC 8881 5.8.1.14).
const EXCLUSIVE: Bitmap =
    Bitmap::of(&[attr::SIZE, attr::ACL, attr::MODE, attr::OWNER, attr::OWNER_GROUP, attr::MODE_UMASK]);
const SPACE: Bitmap = Bitmap::of(&[
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::QUOTA_AVAIL_HARD,
    attr::QUOTA_AVAIL_SOFT,
    attr::QUOTA_USED,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
]);

/// What is supported in a minor version.
pub(super) fn supported(minor: u32) -> Bitmap {
    match minor {
        0 => IN_ALL,
        1 => IN_ALL.or(SINCE_1),
        _ => IN_ALL.or(SINCE_1).or(SINCE_2),
    }
}

/// Checks what GETATTR and READDIR request: NFS4ERR_INVAL for attributes that can only be set.
pub(super) fn readable(wanted: Bitmap) -> Result<(), Status> {
    if wanted.and(WRITE_ONLY).is_empty() { Ok(()) } else { Err(Status::INVAL) }
}

/// The supported ones of the `wanted` attributes of `fs_object`.
pub(super) async fn of_object(
    cx: &Compound<'_>,
    object: &FsObject<'_>,
    wanted: Bitmap,
) -> Result<Attributes, Status> {
    match object {
        FsObject::Root => {
            let mut values = of_root(cx, wanted);
            if wanted.has(attr::ACL) {
                values.acl = Some(acl::of_mode(0o555, true));
            }
            if wanted.has(attr::FILEHANDLE) {
                values.filehandle = Some(FsObject::Root.handle(cx.cx).await?);
            }
            Ok(values)
        }
        FsObject::Node(node) => {
            let attr = node.attr().await?;
            let mut values = of_node(cx, node, &attr, wanted).await?;
            super::delegations::as_written(cx, node, &mut values).await?;
            Ok(values)
        }
        FsObject::Attributes(node) => named::values(cx, node, wanted).await,
    }
}

/// The same for a node whose attributes are known.
pub(super) async fn of_node(
    cx: &Compound<'_>,
    node: &Node<'_>,
    known: &Attr,
    wanted: Bitmap,
) -> Result<Attributes, Status> {
    let space = if wanted.and(SPACE).is_empty() {
        None
    } else {
        Some(node.share.vfs.statfs().await.map_err(|e| status(&e))?)
    };
    let mut values = node_values(cx, node, known, wanted, space);
    if wanted.has(attr::ACL) {
        values.acl = Some(acl::of(node, known).await?);
    }
    if wanted.has(attr::FILEHANDLE) {
        values.filehandle = Some(FsObject::Node(Node { id: known.node, ..*node }).handle(cx.cx).await?);
    }
    if let Some((_, name)) = node.share.vfs.stream_of(known.node) {
        named::of_attribute(&mut values, known.fileid, &name);
    } else if wanted.has(attr::NAMED_ATTR) && matches!(known.kind, Kind::File | Kind::Dir) {
        values.named_attr = Some(node.share.vfs.has_streams(known.node).await.map_err(|e| status(&e))?);
    }
    Ok(values)
}

/// What is known of a listed object whose attributes cannot be read.
pub(super) fn of_unread(node: &Node<'_>, known: &Unread, wanted: Bitmap, why: Status) -> Attributes {
    let mut values = Attributes { rdattr_error: Some(why.0), ..Attributes::default() };
    if wanted.has(attr::TYPE) {
        values.kind = known.kind.map(file_type);
    }
    if wanted.has(attr::FSID) {
        values.fsid = Some(fsid(node));
    }
    if wanted.has(attr::MOUNTED_ON_FILEID) {
        values.mounted_on_fileid = Some(known.fileid);
    }
    values
}

fn fsid(node: &Node<'_>) -> Fsid {
    Fsid { major: node.share.id.number().saturating_add(1), minor: 0 }
}

/// Without waiting: the caller has queried the free space if it is wanted.
fn node_values(
    cx: &Compound<'_>,
    node: &Node<'_>,
    known: &Attr,
    wanted: Bitmap,
    space: Option<Space>,
) -> Attributes {
    let mut v = common(cx, wanted);
    own_values(&mut v, node, known, wanted);
    if let Some(space) = space {
        give! { v, wanted;
            files_avail FILES_AVAIL = space.files_free;
            files_free FILES_FREE = space.files_free;
            files_total FILES_TOTAL = space.files;
            // RFC 8881 5.8.2.28 to 5.8.2.30. Without a quota only the disk limits anybody.
            quota_avail_hard QUOTA_AVAIL_HARD = space.available;
            quota_avail_soft QUOTA_AVAIL_SOFT = space.available;
            quota_used QUOTA_USED = space.total.saturating_sub(space.free);
            space_avail SPACE_AVAIL = space.available;
            space_free SPACE_FREE = space.free;
            space_total SPACE_TOTAL = space.total;
        }
    }
    v
}

/// What the attributes of a node tell.
pub(super) const OWN: Bitmap = Bitmap::of(&[
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_CREATE,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::MOUNTED_ON_FILEID,
]);

/// Fills in those of [`OWN`] that are wanted.
pub(super) fn own_values(v: &mut Attributes, node: &Node<'_>, known: &Attr, wanted: Bitmap) {
    give! { v, wanted;
        kind TYPE = file_type(known.kind);
        change CHANGE = change(known);
        size SIZE = known.size;
        fsid FSID = fsid(node);
        fileid FILEID = known.fileid;
        mode MODE = known.mode & 0o7777;
        numlinks NUMLINKS = known.nlink;
        owner OWNER = number(known.uid);
        owner_group OWNER_GROUP = number(known.gid);
        rawdev RAWDEV = device(known.kind);
        space_used SPACE_USED = known.allocated;
        time_access TIME_ACCESS = time(known.atime);
        time_create TIME_CREATE = time(known.btime);
        time_metadata TIME_METADATA = time(known.ctime);
        time_modify TIME_MODIFY = time(known.mtime);
        mounted_on_fileid MOUNTED_ON_FILEID = mounted_on(node, known);
    }
}

/// The root of a share has a file number of its own in the pseudo file system.
fn mounted_on(node: &Node<'_>, known: &Attr) -> u64 {
    if known.node == store::NodeId::ROOT { node.share.id.number().saturating_add(2) } else { known.fileid }
}

/// Attributes of the pseudo file system's root.
fn of_root(cx: &Compound<'_>, wanted: Bitmap) -> Attributes {
    let mut v = common(cx, wanted);
    let born = cx.cx.server.born;
    give! { v, wanted;
        kind TYPE = FileType::DIR;
        // The names in it change with the list of shares.
        change CHANGE = nanos(born).wrapping_add(cx.cx.list().number());
        size SIZE = 0;
        fsid FSID = Fsid::default();
        fileid FILEID = 1;
        mode MODE = 0o555;
        numlinks NUMLINKS = cx.cx.list().len().saturating_add(2) as u32;
        owner OWNER = number(0);
        owner_group OWNER_GROUP = number(0);
        rawdev RAWDEV = SpecData::default();
        space_used SPACE_USED = 0;
        time_access TIME_ACCESS = time(born);
        time_create TIME_CREATE = time(born);
        time_metadata TIME_METADATA = time(born);
        time_modify TIME_MODIFY = time(born);
        mounted_on_fileid MOUNTED_ON_FILEID = 1;
        files_avail FILES_AVAIL = 0;
        files_free FILES_FREE = 0;
        files_total FILES_TOTAL = cx.cx.list().len() as u64;
        quota_avail_hard QUOTA_AVAIL_HARD = 0;
        quota_avail_soft QUOTA_AVAIL_SOFT = 0;
        quota_used QUOTA_USED = 0;
        space_avail SPACE_AVAIL = 0;
        space_free SPACE_FREE = 0;
        space_total SPACE_TOTAL = 0;
    }
    v
}

/// Attributes with the same values for every node.
fn common(cx: &Compound<'_>, wanted: Bitmap) -> Attributes {
    let mut v = Attributes::default();
    let wanted = wanted.and(supported(cx.minor));
    give! { v, wanted;
        supported_attrs SUPPORTED_ATTRS = supported(cx.minor);
        fh_expire_type FH_EXPIRE_TYPE = PERSISTENT;
        link_support LINK_SUPPORT = true;
        symlink_support SYMLINK_SUPPORT = true;
        named_attr NAMED_ATTR = false;
        unique_handles UNIQUE_HANDLES = true;
        lease_time LEASE_TIME = cx.cx.server.states.limits.lease.as_secs() as u32;
        rdattr_error RDATTR_ERROR = Status::OK.0;
        aclsupport ACLSUPPORT = acl::SUPPORTED;
        cansettime CANSETTIME = true;
        case_insensitive CASE_INSENSITIVE = false;
        case_preserving CASE_PRESERVING = true;
        chown_restricted CHOWN_RESTRICTED = true;
        homogeneous HOMOGENEOUS = true;
        maxfilesize MAXFILESIZE = MAX_FILE_SIZE;
        maxlink MAXLINK = MAX_LINKS;
        maxname MAXNAME = MAX_NAME as u32;
        maxread MAXREAD = u64::from(cx.cx.max_payload());
        maxwrite MAXWRITE = u64::from(cx.cx.max_payload());
        no_trunc NO_TRUNC = true;
        time_delta TIME_DELTA = Time { seconds: 0, nseconds: 1 };
        suppattr_exclcreat SUPPATTR_EXCLCREAT = EXCLUSIVE.and(supported(cx.minor));
        fs_charset_cap FS_CHARSET_CAP = ONLY_UTF8;
        clone_blksize CLONE_BLKSIZE = CLONE_BLOCK;
        change_attr_type CHANGE_ATTR_TYPE = CHANGE_IS_CTIME;
        xattr_support XATTR_SUPPORT = true;
        open_arguments OPEN_ARGUMENTS = OpenArguments {
            access: Bitmap::of(&[share::READ, share::WRITE, share::BOTH]),
            deny: Bitmap::of(&[0, share::READ, share::WRITE, share::BOTH]),
            // ANY, NO and CANCEL, and TIMESTAMPS.
            wants: Bitmap::of(&[3, 4, 5, 20]),
            // NULL, PREVIOUS, DELEGATE_CUR, FH and DELEG_CUR_FH.
            claims: Bitmap::of(&[0, 1, 2, 4, 5]),
            create: Bitmap::of(&[0, 1, 2, 3]),
        };
    }
    v
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::REG,
        Kind::Dir => FileType::DIR,
        Kind::Symlink => FileType::LNK,
        Kind::Special(Special::Fifo) => FileType::FIFO,
        Kind::Special(Special::Socket) => FileType::SOCK,
        Kind::Special(Special::Block(..)) => FileType::BLK,
        Kind::Special(Special::Char(..)) => FileType::CHR,
    }
}

fn device(kind: Kind) -> SpecData {
    match kind {
        Kind::Special(Special::Block(major, minor) | Special::Char(major, minor)) => {
            SpecData { major, minor }
        }
        _ => SpecData::default(),
    }
}

/// The change attribute.
pub(super) fn change(attr: &Attr) -> u64 {
    nanos(attr.ctime)
}

fn nanos(t: Timestamp) -> u64 {
    t.secs.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(u64::from(t.nanos))
}

fn time(t: Timestamp) -> Time {
    Time { seconds: t.secs, nseconds: t.nanos }
}

fn number(id: u32) -> Text {
    Text(Bytes::from(id.to_string().into_bytes()))
}

/// The attributes that a client sets, and their bitmap.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub set: SetAttr,
    pub acl: Option<Acl>,
    pub mask: Bitmap,
}

/// Parses a fattr4 to be set. `creating`: on a new node.
pub(super) fn changes(fattr: &Fattr, minor: u32, creating: bool) -> Result<Changes, Status> {
    let Fattr { mask, .. } = fattr;
    if !mask.without(supported(minor)).is_empty() {
        return Err(Status::ATTRNOTSUPP);
    }
    let wrong = if creating { DELEGATED } else { Bitmap::of(&[attr::MODE_UMASK]) };
    if !mask.without(SETTABLE).is_empty() || !mask.and(wrong).is_empty() {
        return Err(Status::INVAL);
    }
    let values = Attributes::parse(fattr).map_err(|_| Status::BADXDR)?;
    if [attr::MODE, attr::MODE_SET_MASKED, attr::MODE_UMASK].iter().filter(|bit| mask.has(**bit)).count() > 1
    {
        return Err(Status::INVAL);
    }
    let mode = match (values.mode, values.mode_umask, values.mode_set_masked) {
        (Some(mode), ..) => Some(mode),
        (_, Some(pair), _) => Some(pair.mode & !pair.mask),
        (.., Some(pair)) if creating || pair.mask & 0o7777 == 0o7777 => Some(pair.mode & pair.mask),
        // Reads and changes the mode in two steps, because no backend does it in one.
        (.., Some(_)) => return Err(Status::ATTRNOTSUPP),
        _ => None,
    };
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Status::INVAL);
    }
    let delegated = |time: Option<Time>| time.map(|time| set_time(SetTime::Client(time))).transpose();
    let times = (delegated(values.time_deleg_access)?, delegated(values.time_deleg_modify)?);
    let set = SetAttr {
        size: values.size,
        mode,
        uid: values.owner.as_ref().map(id).transpose()?,
        gid: values.owner_group.as_ref().map(id).transpose()?,
        atime: values.time_access_set.map(set_time).transpose()?.or(times.0),
        mtime: values.time_modify_set.map(set_time).transpose()?.or(times.1),
    };
    if set.size.is_some_and(|size| size > MAX_FILE_SIZE) {
        return Err(Status::FBIG);
    }
    if let Some(list) = &values.acl {
        acl::check(list)?;
    }
    Ok(Changes { set, acl: values.acl, mask: *mask })
}

/// Whether only the holder of a delegation may set these.
pub(super) fn is_delegated(mask: Bitmap) -> bool {
    !mask.and(DELEGATED).is_empty()
}

/// Removes times of a delegation that the file already has. Linux sends both with each delegation that it returns,
/// changed or not; setting them again would update the file's change time.
pub(super) fn drop_known(changes: &mut Changes, attr: &Attr) {
    let known = |bit, told: Option<store::SetTime>, now: Timestamp| {
        changes.mask.has(bit) && told == Some(store::SetTime::To(now))
    };
    let accessed = known(attr::TIME_DELEG_ACCESS, changes.set.atime, attr.atime);
    let modified = known(attr::TIME_DELEG_MODIFY, changes.set.mtime, attr.mtime);
    if accessed {
        changes.set.atime = None;
    }
    if modified {
        changes.set.mtime = None;
    }
}

/// A user or group by number; names are not supported (NFS4ERR_BADOWNER).
fn id(text: &Text) -> Result<u32, Status> {
    let text = super::names::utf8(text)?;
    if text.is_empty() {
        return Err(Status::INVAL);
    }
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or(Status::BADOWNER)
}

fn set_time(time: SetTime) -> Result<store::SetTime, Status> {
    match time {
        SetTime::Server => Ok(store::SetTime::Now),
        SetTime::Client(t) if t.nseconds < 1_000_000_000 => {
            Ok(store::SetTime::To(Timestamp { secs: t.seconds, nanos: t.nseconds }))
        }
        SetTime::Client(_) => Err(Status::INVAL),
    }
}

/// VERIFY and NVERIFY: whether the node has these values.
pub(super) async fn same(cx: &Compound<'_>, object: &FsObject<'_>, fattr: &Fattr) -> Result<bool, Status> {
    if !fattr.mask.without(supported(cx.minor)).is_empty() {
        return Err(Status::ATTRNOTSUPP);
    }
    if !fattr.mask.and(WRITE_ONLY).is_empty() || fattr.mask.has(attr::RDATTR_ERROR) {
        return Err(Status::INVAL);
    }
    Attributes::parse(fattr).map_err(|_| Status::BADXDR)?;
    let mine = of_object(cx, object, fattr.mask).await?.fattr();
    // XDR is canonical, so equal values have equal bytes.
    Ok(mine.values == fattr.values)
}
