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
//! Other handles of the file, or of one of its streams, would stay with a file without a name. NTFS, which converts the
//! file itself, has no such rule: here they are a sharing violation, after handles that are only kept for caching were
//! recalled, and nobody opens either file until the exchange is done. For the same reason a file with streams is not
//! converted ([MS-FSA] would let it keep them), nor one with extended attributes: those share a field with the reparse
//! tag on NTFS (STATUS_EAS_NOT_SUPPORTED).
//!
//! On NTFS a reparse point keeps the security descriptor of its file. Linux cannot store one with a link, a pipe or a
//! socket, so only a user who may remove the descriptor (WRITE_DAC) may convert a file that has one. A link that
//! becomes a file or directory inherits like any new one. What it is, and what it leads to, is changed only by a user
//! who may add a file or directory of this kind, because nothing else says who may write to it. Owner and group stay
//! if the server may set them, and permissions if both files have some.

use std::sync::Arc;

use weft_machine::{Charge, random, rt};
use weft_store::access;
use weft_store::opens::{Access, Alone, Open as Claim, Opening, Reach, Rights};
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
use super::control_output::Output;
use super::opens::{self, Open};
use super::owned_open::OwnedOpen;
use super::recalls::{self, Interim};
use super::rights::{DATA, WRITE_DATA, rights_of_access};
use super::{audit, ea, reparse_tag, security, status, symlink};
use crate::server::answer::Failure;
use crate::server::context::OpContext;
use crate::server::held::{DESCRIPTORS_OF_OPEN, OPEN_BYTES};

/// ReparseTag, ReparseDataLength, Reserved.
const HEAD: usize = 8;
/// [MS-FSCC] 2.1.2.6: the types, as their letters.
const FIFO: u64 = u64::from_le_bytes(*b"FIFO\0\0\0\0");
const SOCKET: u64 = u64::from_le_bytes(*b"SOCK\0\0\0\0");
const CHARACTER: u64 = u64::from_le_bytes(*b"CHR\0\0\0\0\0");
const BLOCK: u64 = u64::from_le_bytes(*b"BLK\0\0\0\0\0");

/// FSCTL_GET_REPARSE_POINT.
pub(super) async fn get(cx: &OpContext, open: &Open) -> Result<Output, Failure> {
    let tag = reparse_tag::of(open.kind).ok_or(NtStatus::NOT_A_REPARSE_POINT)?;
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
    may_be_lost(vfs, &attr).await?;
    match attr.kind {
        // A pipe cannot be a directory.
        Kind::Dir if matches!(wish, Wish::Special(_)) => return Err(NtStatus::FILE_IS_A_DIRECTORY.into()),
        kind if reparse_tag::of(kind).is_some_and(|tag| tag != wish.tag()) => {
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
    if reparse_tag::of(attr.kind).is_some() {
        security::may_move_to(cx, vfs, place.dir, to_directory).await?;
    }
    let new = match wish {
        Wish::Link(target) => {
            let target = symlink::to_store(vfs, &target, place.dir, to_directory).await?;
            New { make: Make::Symlink(target), mode: None, descriptor: None }
        }
        Wish::Special(special) => {
            New { make: Make::Special(special), mode: Some(attr.mode), descriptor: None }
        }
    };
    // Others are disturbed by those only who may do all this. What they write back, and who may then lose its
    // descriptor, is another question.
    recall(cx, open).await?;
    let attr = vfs.getattr(open.node).await?;
    security::may_lose_descriptor(cx, open, &attr).await?;
    replace(cx, open, place, attr, new).await
}

/// Recalls what others cache of the file, and handles that they keep only for that.
async fn recall(cx: &OpContext, open: &Open) -> Result<(), Failure> {
    let opens = open.vfs.opens();
    let cleared = opens.clear(open.node, Some(open.claim.key()), Access::Rename);
    recalls::wait(cx, Interim::Silent, cleared).await?;
    // A client that had it open before a restart may still reclaim it.
    Ok(opens.may_replace()?)
}

/// Whether the file or directory has nothing that a reparse point of this host cannot keep.
async fn may_be_lost(vfs: &Vfs, attr: &Attr) -> Result<(), Failure> {
    let node = attr.node;
    match attr.kind {
        Kind::Symlink | Kind::Special(_) => return Ok(()),
        Kind::File if attr.size > 0 => return Err(status::IO_REPARSE_DATA_INVALID.into()),
        Kind::Dir if !vfs.as_server().readdir(node, 0, 1).await?.entries.is_empty() => {
            return Err(NtStatus::DIRECTORY_NOT_EMPTY.into());
        }
        Kind::File | Kind::Dir => {}
    }
    if vfs.has_streams(node).await? {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    if ea::has_any(vfs, node).await? {
        return Err(NtStatus::EAS_NOT_SUPPORTED.into());
    }
    Ok(())
}

/// The file that shall take another one's place.
struct New {
    make: Make,
    /// Its permissions; a link has none.
    mode: Option<u32>,
    descriptor: Option<SecurityDescriptor>,
}

/// A prepared file, with what the handle needs on it.
struct Successor {
    attr: Attr,
    claim: Claim,
    hold: Hold,
    file: Option<OpenFile>,
    /// Keeps others from opening it under its first name.
    alone: Alone,
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
    let _alone = open.claim.alone()?;
    let number = u64::from_ne_bytes(random::bytes()?);
    let first = DirName { dir: place.dir, name: format!(".weft-reparse-{number:016x}").into_bytes() };
    // The descriptor brings the permissions of group and others.
    let mode = mode.map(|mode| if descriptor.is_some() { mode & !0o077 } else { mode });
    let birth = SetAttr { mode, ..SetAttr::default() };
    let made = vfs.create(first.dir, &first.name, make, Exists::Fail, birth).await?.attr;
    let done = match prepare(&open, &before, &made, descriptor.as_ref()).await {
        Ok(successor) => {
            let (new, old) = (Named { at: &first, attr: &made }, Named { at: &place, attr: &before });
            let audited = open.located().await;
            exchange(vfs, new, old).await.map(|()| {
                // Here, because it is done even if its client is gone by now.
                if let Some(audited) = audited {
                    audit::replaced(audited, before.kind, made.kind);
                }
                successor
            })
        }
        Err(failure) => Err(failure),
    };
    if done.is_err()
        && let Err(e) = discard(vfs, Named { at: &first, attr: &made }).await
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
    let has_data = matches!(made.kind, Kind::File | Kind::Dir);
    let rights = if has_data { rights_of_access(open.access) } else { Rights::NONE };
    let reach = if has_data { Reach::Data } else { Reach::Attributes };
    let opening = Opening { reach, past_grace: true, ..Opening::new(rights, Rights::ALL, vfs.opens().key()) };
    // Nobody keeps the old file from others by opening the new one first.
    let claim = vfs.opens().try_open(made.node, &opening)?;
    // Before its owner and descriptor say who may open it.
    let alone = claim.alone()?;
    keep_owner(vfs, before, made).await?;
    if let Some(descriptor) = descriptor {
        access::keep(vfs, made.node, descriptor).await?;
    }
    let attr = vfs.getattr(made.node).await?;
    let hold = vfs.hold(attr.node).await?;
    let file = match attr.kind {
        Kind::File if open.access.intersects(DATA) => {
            Some(vfs.open(attr.node, open.access.intersects(WRITE_DATA)).await?)
        }
        _ => None,
    };
    Ok(Successor { attr, claim, hold, file, alone })
}

/// A file and one of its names.
#[derive(Clone, Copy)]
struct Named<'a> {
    at: &'a DirName,
    attr: &'a Attr,
}

impl Named<'_> {
    /// Fails if somebody has given the name to another file.
    async fn verify(self, vfs: &Vfs) -> Result<(), Failure> {
        let found = vfs.lookup(self.at.dir, &self.at.name, false).await?;
        if found.node == self.attr.node { Ok(()) } else { Err(NtStatus::SHARING_VIOLATION.into()) }
    }
}

/// Gives `new` the name of `old` and removes the latter. If this fails, both have the names that they had.
async fn exchange(vfs: &Vfs, new: Named<'_>, old: Named<'_>) -> Result<(), Failure> {
    // Protocols without opens, and other programs, may have written to it or renamed it meanwhile.
    may_be_lost(vfs, &vfs.getattr(old.attr.node).await?).await?;
    new.verify(vfs).await?;
    old.verify(vfs).await?;
    if new.attr.kind != Kind::Dir && old.attr.kind != Kind::Dir {
        return Ok(vfs.rename(new.at.borrow(), old.at.borrow(), true).await?);
    }
    // rename(2) replaces a directory only by a directory.
    let name = [&new.at.name[..], b"-old"].concat();
    let aside = Named { at: &DirName { dir: old.at.dir, name }, attr: old.attr };
    vfs.rename(old.at.borrow(), aside.at.borrow(), false).await?;
    let Err(failed) = put_and_remove(vfs, new, old.at, aside).await else { return Ok(()) };
    if let Err(e) = vfs.rename(aside.at.borrow(), old.at.borrow(), false).await {
        let (name, aside) = (old.at.name.escape_ascii(), aside.at.name.escape_ascii());
        tracing::warn!("{name} is now {aside}, after a failure to convert it: {e}");
    }
    Err(failed)
}

/// Renames `new` to `name` and removes what was set aside; undoes the former if the latter fails.
async fn put_and_remove(vfs: &Vfs, new: Named<'_>, name: &DirName, aside: Named<'_>) -> Result<(), Failure> {
    aside.verify(vfs).await?;
    vfs.rename(new.at.borrow(), name.borrow(), false).await?;
    // Somebody may have added a file to a directory since it was found empty.
    let Err(failed) = unlink(vfs, aside).await else { return Ok(()) };
    if let Err(e) = vfs.rename(name.borrow(), new.at.borrow(), false).await {
        tracing::warn!("{} stays converted, after a failure: {e}", name.name.escape_ascii());
    }
    Err(failed.into())
}

async fn unlink(vfs: &Vfs, Named { at, attr }: Named<'_>) -> Result<(), Error> {
    match attr.kind {
        Kind::Dir => vfs.rmdir(at.dir, &at.name).await,
        _ => vfs.remove(at.dir, &at.name).await,
    }
}

/// Removes a file that is not needed any more, unless its name is another one's by now.
async fn discard(vfs: &Vfs, file: Named<'_>) -> Result<(), Error> {
    match vfs.lookup(file.at.dir, &file.at.name, false).await {
        Ok(found) if found.node == file.attr.node => unlink(vfs, file).await,
        Ok(_) | Err(Error::NotFound) => Ok(()),
        Err(e) => Err(e),
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
    let tag = reparse_tag::of(open.kind).ok_or(NtStatus::NOT_A_REPARSE_POINT)?;
    if tag != asked {
        return Err(status::IO_REPARSE_TAG_MISMATCH.into());
    }
    let vfs = &open.vfs;
    let to_directory = open.kind == Kind::Symlink && symlink::is_to_directory(vfs, open.node).await?;
    let place = open.place().await?;
    let descriptor = security::birth(cx, vfs, place.dir, None, to_directory).await?;
    recall(cx, open).await?;
    let attr = vfs.getattr(open.node).await?;
    let make = if to_directory { Make::Dir } else { Make::File };
    let mode = match attr.kind {
        // The permissions of a link mean nothing, and what it was before it became one is unknown.
        Kind::Symlink if to_directory => 0o700,
        Kind::Symlink => 0o600,
        _ => attr.mode,
    };
    replace(cx, open, place, attr, New { make, mode: Some(mode), descriptor }).await
}

/// Moves the handle to `successor`. It has no caching rights there; the old ones are gone.
async fn go_over(
    cx: &OpContext,
    open: &Arc<Open>,
    Successor { attr, claim, hold, file, alone }: Successor,
    place: DirName,
) -> Result<Output, Failure> {
    drop(alone);
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
    if let Some(audited) = open.audited.get() {
        let _ = new.audited.set(audited.clone());
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
