//! What the kernel grants the user of a tree, in terms of SMB, on shares whose files are used as their users.
//!
//! Spec: [MS-FSA] 2.1.5.1.2.1 for the rights that a directory adds. Operations by name are refused by the kernel itself.
//! What is left are the rights that CREATE grants and that a client asks about: a handle has them until it is closed, as
//! an open file of the host keeps its own, so what it stands for is done with the server's rights.
//!
//! | rights | the kernel's permission |
//! |---|---|
//! | to see attributes, owner and permissions | none beyond finding the file |
//! | to read data and extended attributes, to list | read |
//! | to write, append, and set extended attributes | write; in a directory with execute: entries are changed |
//! | to set attributes and times | write, or being the owner |
//! | to execute; to traverse | read and execute, of which the owner can give himself the latter; execute |
//! | to set permissions and group | being the owner |
//! | to delete | write and execute in the directory, and what its sticky bit demands |

use weft_store::vfs::{Attr, Caller, DirName, Error, Kind, NodeId, Permissions, SetAttr, Vfs};
use weft_wire::smb2::access::AccessMask;

use super::opens::Open;

const READING: AccessMask = AccessMask(AccessMask::FILE_READ_DATA.0 | AccessMask::FILE_READ_EA.0);
const WRITING: AccessMask = AccessMask(
    AccessMask::FILE_WRITE_DATA.0
        | AccessMask::FILE_APPEND_DATA.0
        | AccessMask::FILE_WRITE_EA.0
        | AccessMask::FILE_DELETE_CHILD.0,
);
const OWNING: AccessMask = AccessMask(AccessMask::WRITE_DAC.0 | AccessMask::WRITE_OWNER.0);
/// The rights for which the kernel is asked.
const PERMITTED: AccessMask =
    AccessMask(READING.0 | WRITING.0 | AccessMask::FILE_WRITE_ATTRIBUTES.0 | AccessMask::FILE_EXECUTE.0);

/// Whether the user of a tree owns a file, as the kernel sees it.
fn owns(vfs: &Vfs, attr: &Attr) -> bool {
    match vfs.caller() {
        Caller::Server => true,
        Caller::User(user) => user.uid() == attr.uid || user.uid() == 0,
    }
}

/// Rights without those that only the owner has, unless the user is the owner.
pub(super) fn of_owner(vfs: &Vfs, attr: &Attr, rights: AccessMask) -> AccessMask {
    if owns(vfs, attr) { rights } else { rights.without(OWNING) }
}

/// The rights among `asked` that the kernel grants on a file or stream at `place`.
pub(super) async fn granted(
    vfs: &Vfs,
    attr: &Attr,
    place: DirName<&[u8]>,
    asked: AccessMask,
) -> Result<AccessMask, Error> {
    let asked = of_owner(vfs, attr, asked);
    let mut denied = AccessMask::NONE;
    if asked.intersects(PERMITTED) {
        denied |= not_permitted(vfs, attr, asked).await?;
    }
    if asked.contains(AccessMask::DELETE) && !may_delete(vfs, attr, place).await? {
        denied |= AccessMask::DELETE;
    }
    Ok(asked.without(denied))
}

async fn not_permitted(vfs: &Vfs, attr: &Attr, asked: AccessMask) -> Result<AccessMask, Error> {
    let (owns, is_dir) = (owns(vfs, attr), attr.kind == Kind::Dir);
    let mut wanted = Permissions::NONE;
    let mut want = |rights: AccessMask, permissions| {
        if asked.intersects(rights) {
            wanted = wanted | permissions;
        }
    };
    want(READING, Permissions::READ);
    want(WRITING, Permissions::WRITE);
    want(AccessMask::FILE_EXECUTE, Permissions::EXECUTE);
    if is_dir {
        want(WRITING, Permissions::EXECUTE);
    } else {
        want(AccessMask::FILE_EXECUTE, Permissions::READ);
    }
    if !owns {
        want(AccessMask::FILE_WRITE_ATTRIBUTES, Permissions::WRITE);
    }
    let has = vfs.access(attr.node, wanted).await?;
    let (reads, writes, executes) = (
        has.contains(Permissions::READ),
        has.contains(Permissions::WRITE),
        has.contains(Permissions::EXECUTE),
    );
    let mut denied = AccessMask::NONE;
    let mut deny = |unless: bool, rights| {
        if !unless {
            denied |= rights;
        }
    };
    deny(reads, READING);
    deny(writes && (executes || !is_dir), WRITING);
    deny(writes || owns, AccessMask::FILE_WRITE_ATTRIBUTES);
    deny(if is_dir { executes } else { reads && (executes || owns) }, AccessMask::FILE_EXECUTE);
    Ok(denied)
}

/// Whether the name may be removed; a stream, whether its file may be written.
async fn may_delete(vfs: &Vfs, attr: &Attr, place: DirName<&[u8]>) -> Result<bool, Error> {
    if vfs.stream_of(attr.node).is_some() {
        return Ok(vfs.access(attr.node, Permissions::WRITE).await? == Permissions::WRITE);
    }
    // The root has no name, and stays whoever asks. Where nothing may be changed, the refusal has a status of its own.
    if attr.node == NodeId::ROOT || vfs.is_read_only() {
        return Ok(true);
    }
    match vfs.may_unlink(place.dir, place.name).await {
        Ok(()) => Ok(true),
        Err(Error::Access | Error::NotPermitted) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Sets the times of an opened file. For the kernel only the owner may; for SMB, who may write to the file: clients set
/// times after they have written, and fail if they cannot.
pub(super) async fn set_times(open: &Open, set: SetAttr) -> Result<Attr, Error> {
    let vfs = &open.vfs;
    match vfs.setattr(open.node, set.clone()).await {
        Err(Error::Access | Error::NotPermitted)
            if vfs.is_judged() && vfs.access(open.node, Permissions::WRITE).await? == Permissions::WRITE =>
        {
            vfs.as_server().setattr(open.node, set).await
        }
        done => done,
    }
}
