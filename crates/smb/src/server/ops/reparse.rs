//! Reparse points: links, pipes, sockets and devices, and the conversion of files to them and back.
//!
//! Spec: [MS-FSCC] 2.1.2.4 (links), 2.1.2.6 (what NFS clients make); [MS-FSA] 2.1.5.10.3, 2.1.5.10.14, 2.1.5.10.37
//! (FSCTL_DELETE_, GET_ and SET_REPARSE_POINT). Other reparse points are unknown here, and SMB users may not create
//! devices.
//!
//! In the store the reparse point is another file than the opened one that is converted. The new file is prepared under
//! a name of its own, with its owner, its descriptor and its open, and then takes the old one's name. So a failure
//! leaves the old file as it was; a crash can leave one of the two as `.weft-reparse-*`. The handle moves to the new
//! file: later requests, even in the same compound, concern what the name is by then.
//!
//! On NTFS a reparse point keeps the security descriptor of its file. Linux cannot store one with a link, a pipe or a
//! socket, so only a user who may remove the descriptor (WRITE_DAC) may convert a file that has one. A link that
//! becomes a file or directory inherits like any new one, and its user must be allowed to add it. Owner and group stay
//! if the server may set them, and permissions if both files have some.

use std::sync::Arc;

use weft_machine::{Charge, random, rt};
use weft_store::access;
use weft_store::opens::{Open as Claim, Opening, Reach, Rights};
use weft_store::vfs::{
    Attr, DirName, Error, Exists, Hold, Kind, Make, NodeId, OpenFile, SetAttr, Special, Vfs,
};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::reparse::{MAX_DATA, NFS, NFS_LINK, SYMLINK};
use weft_wire::smb2::{NtStatus, utf16};

use super::caching::Caching;
use super::channel_sequence::ChannelSequence;
use super::create::{DATA, WRITE_DATA, rights_of_access};
use super::ioctl::Output;
use super::opens::{self, Open};
use super::owned_open::OwnedOpen;
use super::{security, status, symlink};
use crate::server::context::{Failure, OpContext};
use crate::server::held::{DESCRIPTORS_OF_OPEN, OPEN_BYTES};

/// ReparseTag, ReparseDataLength, Reserved.
const HEAD: usize = 8;
/// [MS-FSCC] 2.1.2.6: the types, as their letters.
const FIFO: u64 = u64::from_le_bytes(*b"FIFO\0\0\0\0");
const SOCKET: u64 = u64::from_le_bytes(*b"SOCK\0\0\0\0");
const CHARACTER: u64 = u64::from_le_bytes(*b"CHR\0\0\0\0\0");
const BLOCK: u64 = u64::from_le_bytes(*b"BLK\0\0\0\0\0");

/// The reparse tag of a kind of file.
pub(super) fn tag(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Symlink => Some(SYMLINK),
        Kind::Special(_) => Some(NFS),
        Kind::File | Kind::Dir => None,
    }
}

/// FSCTL_GET_REPARSE_POINT.
pub(super) async fn get(cx: &OpContext, open: &Open) -> Result<Output, Failure> {
    let tag = tag(open.kind).ok_or(NtStatus::NOT_A_REPARSE_POINT)?;
    let data = match open.kind {
        Kind::Special(special) => special_data(special),
        // An absolute target names a path on this host, which clients must not see.
        _ => {
            let posix = cx.connection().negotiated().posix;
            symlink::reparse_data(&open.vfs, open.node, posix).await?.ok_or(NtStatus::ACCESS_DENIED)?
        }
    };
    let mut output = tag.to_le_bytes().to_vec();
    output.extend(u16::try_from(data.len()).unwrap_or(u16::MAX).to_le_bytes());
    output.extend([0, 0]);
    output.extend(data);
    Ok(output.into())
}

fn special_data(special: Special) -> Vec<u8> {
    let (what, numbers) = match special {
        Special::Fifo => (FIFO, None),
        Special::Socket => (SOCKET, None),
        Special::Char(major, minor) => (CHARACTER, Some([major, minor])),
        Special::Block(major, minor) => (BLOCK, Some([major, minor])),
    };
    let mut data = what.to_le_bytes().to_vec();
    numbers.into_iter().flatten().for_each(|number| data.extend(number.to_le_bytes()));
    data
}

/// What a client wants a file to become.
enum Wish {
    Link(symlink::Target),
    Special(Special),
}

impl Wish {
    fn parse(input: &[u8]) -> Result<Wish, NtStatus> {
        let (tag, data) = split(input)?;
        match tag {
            SYMLINK => Ok(Wish::Link(symlink::parse(data)?)),
            NFS => Wish::of_nfs(data),
            _ => Err(status::IO_REPARSE_TAG_INVALID),
        }
    }

    fn of_nfs(data: &[u8]) -> Result<Wish, NtStatus> {
        let invalid = status::IO_REPARSE_DATA_INVALID;
        let (what, rest) = data.split_first_chunk().ok_or(invalid)?;
        match (u64::from_le_bytes(*what), rest) {
            (FIFO, []) => Ok(Wish::Special(Special::Fifo)),
            (SOCKET, []) => Ok(Wish::Special(Special::Socket)),
            (CHARACTER | BLOCK, [_, _, _, _, _, _, _, _]) => Err(NtStatus::ACCESS_DENIED),
            (NFS_LINK, name) => {
                let name = utf16::decode(name).map_err(|_| invalid)?;
                Ok(Wish::Link(symlink::from_client(name, true)?))
            }
            _ => Err(invalid),
        }
    }

    fn tag(&self) -> u32 {
        match self {
            Wish::Link(_) => SYMLINK,
            Wish::Special(_) => NFS,
        }
    }
}

/// Tag and data of a REPARSE_DATA_BUFFER ([MS-FSCC] 2.1.2.2).
fn split(input: &[u8]) -> Result<(u32, &[u8]), NtStatus> {
    match input {
        [t0, t1, t2, t3, l0, l1, _, _, data @ ..]
            if input.len() <= MAX_DATA && usize::from(u16::from_le_bytes([*l0, *l1])) == data.len() =>
        {
            Ok((u32::from_le_bytes([*t0, *t1, *t2, *t3]), data))
        }
        _ => Err(status::IO_REPARSE_DATA_INVALID),
    }
}

/// FSCTL_SET_REPARSE_POINT: an empty file or directory becomes a link, a pipe or a socket.
pub(super) async fn set(cx: &OpContext, open: &Arc<Open>, input: &[u8]) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES)?;
    let vfs = &open.vfs;
    if open.node == NodeId::ROOT {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if vfs.stream_of(open.node).is_some() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let wish = Wish::parse(input)?;
    let attr = vfs.getattr(open.node).await?;
    match attr.kind {
        Kind::Dir if !vfs.readdir(open.node, 0, 1).await?.0.is_empty() => {
            return Err(NtStatus::DIRECTORY_NOT_EMPTY.into());
        }
        // A pipe cannot be a directory.
        Kind::Dir if matches!(wish, Wish::Special(_)) => return Err(NtStatus::FILE_IS_A_DIRECTORY.into()),
        Kind::File if attr.size > 0 => return Err(status::IO_REPARSE_DATA_INVALID.into()),
        kind if tag(kind).is_some_and(|tag| tag != wish.tag()) => {
            return Err(status::IO_REPARSE_TAG_MISMATCH.into());
        }
        _ => {}
    }
    let to_directory = match attr.kind {
        Kind::Symlink => symlink::is_to_directory(vfs, open.node).await?,
        kind => kind == Kind::Dir,
    };
    security::may_lose_descriptor(cx, open, &attr).await?;
    let place = open.place().await?;
    let new = match wish {
        Wish::Link(target) => {
            let target = symlink::to_store(vfs, &target, place.dir, to_directory).await?;
            New { make: Make::Symlink(target), mode: None, descriptor: None }
        }
        Wish::Special(special) => {
            New { make: Make::Special(special), mode: Some(attr.mode), descriptor: None }
        }
    };
    replace(cx, open, place, attr, new).await
}

/// The file that shall take another one's place.
struct New {
    make: Make,
    /// Its permissions; `None` for the default ones.
    mode: Option<u32>,
    descriptor: Option<SecurityDescriptor>,
}

/// A prepared file, with what the handle needs on it.
struct Successor {
    attr: Attr,
    claim: Claim,
    hold: Hold,
    file: Option<OpenFile>,
}

/// Replaces the opened file by a new one and moves the handle to it.
async fn replace(
    cx: &OpContext,
    open: &Arc<Open>,
    place: DirName,
    before: Attr,
    new: New,
) -> Result<Output, Failure> {
    // A lost connection drops the request, but must not leave the new file under its first name.
    let successor = rt::uncancelled(succeed(open.clone(), place.clone(), before, new)).await?;
    go_over(cx, open, successor, place).await
}

async fn succeed(
    open: Arc<Open>,
    place: DirName,
    before: Attr,
    New { make, mode, descriptor }: New,
) -> Result<Successor, Failure> {
    let vfs = &open.vfs;
    let number = u64::from_ne_bytes(random::bytes()?);
    let first = DirName { dir: place.dir, name: format!(".weft-reparse-{number:016x}").into_bytes() };
    let mode = match &descriptor {
        // The descriptor brings the permissions of group and others.
        Some(_) => {
            let all = if make == Make::Dir { 0o700 } else { 0o600 };
            Some(mode.unwrap_or(all) & !0o077)
        }
        None => mode,
    };
    let birth = SetAttr { mode, ..SetAttr::default() };
    let (made, _) = vfs.create(first.dir, &first.name, make, Exists::Fail, birth).await?;
    let done = match prepare(&open, &before, &made, descriptor.as_ref()).await {
        Ok(successor) => {
            let exchanged = exchange(vfs, (&first, made.kind), (&place, before.kind)).await;
            exchanged.map(|()| successor).map_err(Failure::from)
        }
        Err(failure) => Err(failure),
    };
    if done.is_err()
        && let Err(e) = unlink(vfs, &first, made.kind).await
    {
        tracing::warn!("{} stays, after a failure to convert a file: {e}", first.name.escape_ascii());
    }
    done
}

/// Everything that can fail before the new file takes the name.
async fn prepare(
    open: &Open,
    before: &Attr,
    made: &Attr,
    descriptor: Option<&SecurityDescriptor>,
) -> Result<Successor, Failure> {
    let vfs = &open.vfs;
    keep_owner(vfs, before, made).await?;
    if let Some(descriptor) = descriptor {
        access::keep(vfs, made.node, descriptor).await?;
    }
    let attr = vfs.getattr(made.node).await?;
    let has_data = matches!(attr.kind, Kind::File | Kind::Dir);
    let rights = if has_data { rights_of_access(open.access) } else { Rights::NONE };
    let reach = if has_data { Reach::Data } else { Reach::Attributes };
    let opening = Opening { reach, past_grace: true, ..Opening::new(rights, Rights::ALL, vfs.opens().key()) };
    let claim = vfs.opens().open(attr.node, &opening).await?;
    let hold = vfs.hold(attr.node).await?;
    let file = match attr.kind {
        Kind::File if open.access.intersects(DATA) => {
            Some(vfs.open(attr.node, open.access.intersects(WRITE_DATA)).await?)
        }
        _ => None,
    };
    Ok(Successor { attr, claim, hold, file })
}

/// Gives `new` the name of `old` and removes the latter. If this fails, both have the names that they had.
async fn exchange(
    vfs: &Vfs,
    (new, kind): (&DirName, Kind),
    (old, old_kind): (&DirName, Kind),
) -> Result<(), Error> {
    if kind != Kind::Dir && old_kind != Kind::Dir {
        return vfs.rename(new.borrow(), old.borrow(), true).await;
    }
    // rename(2) replaces a directory only by a directory.
    let aside = DirName { dir: old.dir, name: [&new.name[..], b"-old"].concat() };
    vfs.rename(old.borrow(), aside.borrow(), false).await?;
    let Err(failed) = put_and_remove(vfs, new, old, (&aside, old_kind)).await else { return Ok(()) };
    if let Err(e) = vfs.rename(aside.borrow(), old.borrow(), false).await {
        let (name, aside) = (old.name.escape_ascii(), aside.name.escape_ascii());
        tracing::warn!("{name} is now {aside}, after a failure to convert it: {e}");
    }
    Err(failed)
}

/// Renames `new` to `name` and removes what was set aside; undoes the former if the latter fails.
async fn put_and_remove(
    vfs: &Vfs,
    new: &DirName,
    name: &DirName,
    (aside, kind): (&DirName, Kind),
) -> Result<(), Error> {
    vfs.rename(new.borrow(), name.borrow(), false).await?;
    // Somebody may have added a file to a directory since it was found empty.
    let Err(failed) = unlink(vfs, aside, kind).await else { return Ok(()) };
    if let Err(e) = vfs.rename(name.borrow(), new.borrow(), false).await {
        tracing::warn!("{} stays converted, after a failure: {e}", name.name.escape_ascii());
    }
    Err(failed)
}

async fn unlink(vfs: &Vfs, at: &DirName, kind: Kind) -> Result<(), Error> {
    match kind {
        Kind::Dir => vfs.rmdir(at.dir, &at.name).await,
        _ => vfs.remove(at.dir, &at.name).await,
    }
}

/// Gives the new file the owner and group of the old one. A server that may not do this owns the file, as it owns
/// whatever else clients create.
async fn keep_owner(vfs: &Vfs, before: &Attr, made: &Attr) -> Result<(), Error> {
    // One at a time: a server that may not give files away may still change the group.
    let owner = SetAttr { uid: Some(before.uid).filter(|uid| *uid != made.uid), ..SetAttr::default() };
    let group = SetAttr { gid: Some(before.gid).filter(|gid| *gid != made.gid), ..SetAttr::default() };
    for set in [group, owner].into_iter().filter(|set| *set != SetAttr::default()) {
        match vfs.setattr(made.node, set).await {
            Ok(_) | Err(Error::Access | Error::NotPermitted) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// FSCTL_DELETE_REPARSE_POINT ([MS-FSA] 2.1.5.10.3): a link becomes an empty file or directory, anything else a file.
pub(super) async fn delete(cx: &OpContext, open: &Arc<Open>, input: &[u8]) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES)?;
    let Some((asked, _)) = input.split_first_chunk::<4>().filter(|_| input.len() >= HEAD) else {
        return Err(status::IO_REPARSE_DATA_INVALID.into());
    };
    let asked = u32::from_le_bytes(*asked);
    if asked <= 1 {
        // Reserved.
        return Err(status::IO_REPARSE_TAG_INVALID.into());
    }
    let tag = tag(open.kind).ok_or(NtStatus::NOT_A_REPARSE_POINT)?;
    if tag != asked {
        return Err(status::IO_REPARSE_TAG_MISMATCH.into());
    }
    let vfs = &open.vfs;
    let to_directory = open.kind == Kind::Symlink && symlink::is_to_directory(vfs, open.node).await?;
    let attr = vfs.getattr(open.node).await?;
    let place = open.place().await?;
    let descriptor = security::birth(cx, vfs, place.dir, None, to_directory).await?;
    let make = if to_directory { Make::Dir } else { Make::File };
    // The permissions of a link mean nothing.
    let mode = Some(attr.mode).filter(|_| attr.kind != Kind::Symlink);
    replace(cx, open, place, attr, New { make, mode, descriptor }).await
}

/// Moves the handle to `successor`. It has no caching rights there; the old ones are gone.
async fn go_over(
    cx: &OpContext,
    open: &Arc<Open>,
    Successor { attr, claim, hold, file }: Successor,
    place: DirName,
) -> Result<Output, Failure> {
    if open.options.contains(CreateOptions::DELETE_ON_CLOSE) {
        claim.set_delete_on_close();
    }
    claim.set_delete_pending(open.claim.delete_pending());
    // It replaces an open that goes away, so there is room.
    let again = |charge: &Charge, of| charge.budget().restore(charge.holder().clone(), of);
    let (held, descriptors) =
        (again(open.held(), OPEN_BYTES), again(open.descriptors(), DESCRIPTORS_OF_OPEN));
    let new = Open::new(opens::New {
        id: open.persistent,
        sequence: ChannelSequence::starting(cx.header()),
        vfs: open.vfs.clone(),
        node: attr.node,
        kind: attr.kind,
        place,
        access: open.access,
        options: open.options,
        file,
        claim,
        caching: Caching::None,
        action: open.action,
        hold,
        held,
        descriptors,
    });
    if let Some(share) = open.share.get() {
        let _ = new.share.set(share.clone());
    }
    if open.is_posix() {
        new.set_posix();
    }
    match cx.session().opens.replace(open, OwnedOpen::new(Arc::new(new))) {
        // Not closed, which could delete the file that now has its name: it ends with its last request.
        Ok(old) => old.retire().await,
        // Closed meanwhile: do now what that close would have done.
        Err(new) => new.close().await,
    }
    Ok(Output::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nfs(data: &[u8]) -> Vec<u8> {
        let len = (data.len() as u16).to_le_bytes();
        [&NFS.to_le_bytes()[..], &len, &[0, 0], data].concat()
    }

    #[test]
    fn what_nfs_clients_make_and_every_truncation_of_it() {
        for special in [Special::Fifo, Special::Socket] {
            let bytes = nfs(&special_data(special));
            assert!(matches!(Wish::parse(&bytes), Ok(Wish::Special(parsed)) if parsed == special));
            (0..bytes.len()).for_each(|len| assert!(Wish::parse(&bytes[..len]).is_err(), "{len}"));
        }
        let refused = |data: &[u8]| Wish::parse(&nfs(data)).err();
        let device = special_data(Special::Char(1, 3));
        assert_eq!(device, b"CHR\0\0\0\0\0\x01\0\0\0\x03\0\0\0");
        assert_eq!(refused(&device), Some(NtStatus::ACCESS_DENIED));
        assert_eq!(refused(&device[..12]), Some(status::IO_REPARSE_DATA_INVALID));
        assert_eq!(refused(b"FIFO\0\0\0\0x"), Some(status::IO_REPARSE_DATA_INVALID));
        let link = b"LNK\x01\0\0\0\0a\0/\0b\0";
        assert!(matches!(Wish::parse(&nfs(link)), Ok(Wish::Link(target)) if target.name() == "a\\b"));
        assert_eq!(refused(b"LNK\x01\0\0\0\0/\0b\0"), Some(NtStatus::ACCESS_DENIED));
        let mut other = nfs(b"FIFO\0\0\0\0");
        other[0] = 3;
        assert_eq!(Wish::parse(&other).err(), Some(status::IO_REPARSE_TAG_INVALID));
    }
}
