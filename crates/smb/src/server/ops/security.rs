//! Security descriptors: what they allow at CREATE, and how QUERY_INFO and SET_INFO show and change them.
//!
//! Spec: [MS-FSA] 2.1.5.1.1 (creation), 2.1.5.1.2.1 (access to existing files), 2.1.5.14, 2.1.5.17; [MS-SMB2]
//! 3.3.5.20.3, 3.3.5.21.3. [`weft_store::access`] decides, and with it the kernel where it judges the user (see
//! [`super::judged`]): then a descriptor only denies. SACLs are not kept: nobody has the privilege for them.

use weft_store::access::{self, Guard, Token, inherit};
use weft_store::rights::Right;
use weft_store::vfs::{Attr, DirName, Dos, Error, Kind, NodeId, Permissions, SetAttr, Vfs};
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::query_info::SecurityInformation;

use super::attributes::{self, Metadata};
use super::judged;
use super::opens::Open;
use super::rights::CHANGING;
use crate::server::answer::Failure;
use crate::server::context::OpContext;
use crate::server::directory::Directory;
use crate::server::session::Session;

/// `STATUS_INVALID_OWNER`: the descriptor has no owner, or one that the user may not set.
const INVALID_OWNER: NtStatus = NtStatus(0xC000_005A);
/// `STATUS_INVALID_SECURITY_DESCR`.
const INVALID_SECURITY_DESCR: NtStatus = NtStatus(0xC000_0079);
/// Parts that require READ_CONTROL or WRITE_OWNER; labels do not exist here.
const OWNER: SecurityInformation = SecurityInformation(
    SecurityInformation::OWNER.0 | SecurityInformation::GROUP.0 | SecurityInformation::LABEL.0,
);

/// The identity of a session's user in access checks. One who has an account of the system is that Unix user too, and in
/// its groups.
fn token(directory: &Directory, session: &Session) -> Token {
    let accounts = &directory.accounts;
    let everybody = [Sid::everyone(), Sid::network(), Sid::authenticated_users()];
    let unix = session.account.as_deref().into_iter().flat_map(|account| {
        let groups = account.groups.iter().map(|gid| Sid::unix_group(*gid));
        std::iter::once(Sid::unix_user(account.uid)).chain(groups)
    });
    match &session.account {
        Some(account) if !session.is_ours => Token {
            user: Sid::unix_user(account.uid),
            group: Sid::unix_group(account.gid),
            others: everybody.into_iter().chain(unix).collect(),
        },
        _ => {
            let groups = accounts.sids_of_groups(directory.groups_of(&session.user));
            Token {
                user: accounts.sid_of_user(&session.user),
                group: accounts.primary_group(),
                others: everybody.into_iter().chain(groups).chain(unix).collect(),
            }
        }
    }
}

/// The groups are those at the session's first question, as in Windows: a change takes effect at the next log-on.
fn token_of(cx: &OpContext) -> &Token {
    cx.session().token.get_or_init(|| token(&cx.server().directory(), cx.session()))
}

/// The user for whom listings of this tree leave out unreadable files; `None` if they show everything.
pub(super) fn hides(cx: &OpContext) -> Option<&Token> {
    cx.tree().share.as_ref().filter(|share| share.rules.hides_unreadable).map(|_| token_of(cx))
}

/// All rights that a descriptor leaves the user. Where the kernel judges, a file without one is left to the kernel.
fn left_by(vfs: &Vfs, guard: &Guard, token: &Token) -> AccessMask {
    if vfs.is_judged() && !guard.stored { AccessMask::FILE_ALL } else { guard.grants(token) }
}

/// The rights on a file that no descriptor takes from the user.
pub(super) async fn left_to(cx: &OpContext, vfs: &Vfs, attr: &Attr) -> Result<AccessMask, Error> {
    let guard = access::look(vfs, attr, token_of(cx)).await?;
    Ok(left_by(vfs, &guard, token_of(cx)))
}

/// Whether a listing that hides unreadable files shows this one to a user.
pub(super) async fn is_readable(vfs: &Vfs, attr: &Attr, token: &Token) -> Result<bool, Error> {
    let needed = AccessMask::FILE_GENERIC_READ.without(AccessMask::SYNCHRONIZE);
    let guard = access::look(vfs, attr, token).await?;
    if !left_by(vfs, &guard, token).contains(needed) {
        return Ok(false);
    }
    Ok(!vfs.is_judged() || vfs.access(attr.node, Permissions::READ).await? == Permissions::READ)
}

/// The rights that the parent directory adds; none for a share's root, which has no parent.
async fn from_parent(cx: &OpContext, vfs: &Vfs, attr: &Attr, dir: NodeId) -> Result<AccessMask, Failure> {
    if attr.node == NodeId::ROOT { Ok(AccessMask::NONE) } else { from_above(cx, vfs, dir).await }
}

/// The rights that a directory adds to what is in it.
pub(super) async fn from_above(cx: &OpContext, vfs: &Vfs, dir: NodeId) -> Result<AccessMask, Failure> {
    let above = vfs.getattr(dir).await?;
    let guard = access::look(vfs, &above, token_of(cx)).await?;
    Ok(access::from_above(left_by(vfs, &guard, token_of(cx))))
}

/// All rights that the user has to a file at `place`.
pub(super) async fn maximal(
    cx: &OpContext,
    vfs: &Vfs,
    metadata: Metadata<'_>,
    place: DirName<&[u8]>,
) -> Result<AccessMask, Failure> {
    let above = from_parent(cx, vfs, metadata.attr, place.dir).await?;
    maximal_below(cx, vfs, metadata, place, above).await
}

/// The same for a file to which its directory adds the rights `above`.
pub(super) async fn maximal_below(
    cx: &OpContext,
    vfs: &Vfs,
    Metadata { attr, dos }: Metadata<'_>,
    place: DirName<&[u8]>,
    above: AccessMask,
) -> Result<AccessMask, Failure> {
    let guard = access::look(vfs, attr, token_of(cx)).await?;
    let mut granted = left_by(vfs, &guard, token_of(cx)) | above;
    if vfs.is_judged() {
        granted = judged::granted(vfs, attr, place, granted).await?;
    }
    Ok(granted & ceiling(vfs, attr, dos))
}

/// The most that anybody may do, whatever the security descriptor says.
fn ceiling(vfs: &Vfs, attr: &Attr, dos: Option<Dos>) -> AccessMask {
    let most = attributes::maximal_access(attr, dos);
    if vfs.is_read_only() { most.without(CHANGING) } else { most }
}

/// The access that a user requests.
pub(super) struct Asked {
    /// DesiredAccess.
    pub(super) desired: AccessMask,
    /// What CREATE will do to the file, which must be allowed too but is not granted.
    pub(super) implied: AccessMask,
}

/// GrantedAccess to an existing file: everything that is requested, or a refusal.
pub(super) async fn granted(
    cx: &OpContext,
    vfs: &Vfs,
    Asked { desired, implied }: Asked,
    Metadata { attr, dos }: Metadata<'_>,
    place: DirName<&[u8]>,
) -> Result<AccessMask, Failure> {
    let explicit = desired.without(AccessMask::MAXIMUM_ALLOWED);
    let guard = access::look(vfs, attr, token_of(cx)).await?;
    let mut granted = left_by(vfs, &guard, token_of(cx));
    let maximum = desired.contains(AccessMask::MAXIMUM_ALLOWED);
    if maximum || !granted.contains(explicit | implied) {
        granted |= from_parent(cx, vfs, attr, place.dir).await?;
    }
    if vfs.is_judged() {
        // The kernel is asked for no more than what is needed.
        let asked = if maximum { granted } else { granted & (explicit | implied) };
        granted = judged::granted(vfs, attr, place, asked).await?;
    }
    if !granted.contains(explicit | implied) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if vfs.is_read_only() && (explicit | implied).intersects(CHANGING) {
        // [MS-FSA] has its own status for a read-only volume; other users may change this one.
        return Err(match cx.tree().right < Right::Write {
            true => NtStatus::ACCESS_DENIED.into(),
            false => NtStatus::MEDIA_WRITE_PROTECTED.into(),
        });
    }
    let ceiling = ceiling(vfs, attr, dos);
    if !ceiling.contains(explicit) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    Ok(if maximum { granted & ceiling } else { explicit })
}

/// Checks whether a file may be created in `dir`; returns its descriptor, `None` if it gets none of its own.
pub(super) async fn birth(
    cx: &OpContext,
    vfs: &Vfs,
    dir: NodeId,
    asked: Option<&[u8]>,
    container: bool,
) -> Result<Option<SecurityDescriptor>, Failure> {
    let asked = asked.map(SecurityDescriptor::parse).transpose().map_err(|_| INVALID_SECURITY_DESCR)?;
    let token = token_of(cx);
    let above = vfs.getattr(dir).await?;
    let guard = access::look(vfs, &above, token).await?;
    may_add(left_by(vfs, &guard, token), container)?;
    if let Some(owner) = asked.as_ref().and_then(|asked| asked.owner.as_ref())
        && !token.has(owner)
    {
        return Err(INVALID_OWNER.into());
    }
    if !guard.stored && asked.as_ref().is_none_or(|asked| asked.dacl == Dacl::Absent) {
        return Ok(None);
    }
    Ok(Some(inherit::created(&guard.descriptor, asked, container, token)))
}

/// Requires FILE_ADD_FILE or FILE_ADD_SUBDIRECTORY among the rights on the directory.
fn may_add(granted: AccessMask, container: bool) -> Result<(), NtStatus> {
    let needed = if container { AccessMask::FILE_APPEND_DATA } else { AccessMask::FILE_WRITE_DATA };
    if granted.contains(needed) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
}

/// Whether an existing file may get a name in `dir` (rename, link).
pub(super) async fn may_move_to(
    cx: &OpContext,
    vfs: &Vfs,
    dir: NodeId,
    container: bool,
) -> Result<(), Failure> {
    let above = vfs.getattr(dir).await?;
    let guard = access::look(vfs, &above, token_of(cx)).await?;
    Ok(may_add(left_by(vfs, &guard, token_of(cx)), container)?)
}

/// Whether an opened file may be replaced by one that cannot have its descriptor, if it has one: requires WRITE_DAC,
/// whether or not CREATE asked for it.
pub(super) async fn may_lose_descriptor(cx: &OpContext, open: &Open, attr: &Attr) -> Result<(), Failure> {
    let guard = access::look(&open.vfs, attr, token_of(cx)).await?;
    let mut granted = guard.grants(token_of(cx)) & AccessMask::WRITE_DAC;
    if open.vfs.is_judged() {
        granted = judged::of_owner(&open.vfs, attr, granted);
    }
    if guard.stored && !(open.access | granted).contains(AccessMask::WRITE_DAC) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    Ok(())
}

/// Whether the target of a rename may be replaced.
pub(super) async fn may_delete(
    cx: &OpContext,
    vfs: &Vfs,
    target: Metadata<'_>,
    place: DirName<&[u8]>,
) -> Result<(), Failure> {
    let asked = Asked { desired: AccessMask::DELETE, implied: AccessMask::NONE };
    granted(cx, vfs, asked, target, place).await.map(|_| ())
}

/// 3.3.5.20.3: returns the requested parts.
pub(super) async fn query(
    cx: &OpContext,
    open: &Open,
    wanted: SecurityInformation,
) -> Result<Vec<u8>, Failure> {
    if wanted.intersects(SecurityInformation::SACL) {
        // This needs ACCESS_SYSTEM_SECURITY, which CREATE grants to nobody.
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if wanted.intersects(OWNER | SecurityInformation::DACL) {
        open.require(AccessMask::READ_CONTROL)?;
    }
    let attr = open.vfs.getattr(open.node).await?;
    let token = token_of(cx);
    let Guard { mut descriptor, stored } = access::look(&open.vfs, &attr, token).await?;
    if open.vfs.is_judged() && !stored && descriptor.owner.as_ref() != Some(&token.user) {
        // An ACL of the host may grant more than the mode.
        let place = open.last_place();
        let mask = judged::granted(&open.vfs, &attr, place.borrow(), AccessMask::FILE_ALL).await?;
        if let Dacl::List(aces) = &mut descriptor.dacl {
            aces.push(Ace::allow(token.user.clone(), mask, AceFlags::NONE));
        }
    }
    if let Dacl::List(aces) = &mut descriptor.dacl
        && cx.session().is_mac()
    {
        aces.splice(0..0, of_nfs(&attr));
    }
    let shown = SecurityDescriptor {
        owner: descriptor.owner.filter(|_| wanted.contains(SecurityInformation::OWNER)),
        group: descriptor.group.filter(|_| wanted.contains(SecurityInformation::GROUP)),
        ..match wanted.contains(SecurityInformation::DACL) {
            true => SecurityDescriptor {
                control: descriptor.control,
                dacl: descriptor.dacl,
                ..SecurityDescriptor::default()
            },
            false => SecurityDescriptor::default(),
        }
    };
    Ok(shown.to_bytes())
}

/// What Windows' NFS server tells of a Unix file, as a Mac writes it: owner, group and mode, in entries that deny nothing.
fn of_nfs(attr: &Attr) -> [Ace; 3] {
    let entry = |sid| Ace::Deny { flags: AceFlags::NONE, mask: AccessMask::NONE, sid };
    [Sid::nfs_user(attr.uid), Sid::nfs_group(attr.gid), Sid::nfs_mode(attr.mode)].map(entry)
}

/// The mode that an ACL encodes.
fn mode_of(dacl: &Dacl) -> Option<u32> {
    entries(dacl).iter().find_map(|ace| match ace {
        Ace::Allow { sid, .. } => sid.unix_mode(),
        _ => None,
    })
}

/// 3.3.5.21.3: checks the access first; parts that are not named stay unchanged.
pub(super) async fn set(
    cx: &OpContext,
    open: &Open,
    what: SecurityInformation,
    buffer: &[u8],
) -> Result<(), Failure> {
    if what.intersects(SecurityInformation::SACL) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if what.intersects(SecurityInformation::DACL) {
        open.require(AccessMask::WRITE_DAC)?;
    }
    if what.intersects(OWNER) {
        open.require(AccessMask::WRITE_OWNER)?;
    }
    let mut new = SecurityDescriptor::parse(buffer).map_err(|_| INVALID_SECURITY_DESCR)?;
    let token = token_of(cx);
    let attr = open.vfs.getattr(open.node).await?;
    let is_of_mac = cx.session().is_mac() && what.intersects(SecurityInformation::DACL);
    let by_mac = if is_of_mac { take_mode(&mut new.dacl) } else { None };
    if let Some(mode) = by_mac
        && what == SecurityInformation::DACL
        && attr.kind != Kind::Symlink
        && is_same_list(&access::look(&open.vfs, &attr, token).await?.descriptor.dacl, &new.dacl)
    {
        let mode = settable(&attr, mode);
        access::chmod::set(&open.vfs, &attr, SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
        return Ok(());
    }
    // A POSIX client sets a mode with an ACL that contains nothing else. Pipes and sockets have a mode too.
    if let Some(mode) = mode_of(&new.dacl)
        && what == SecurityInformation::DACL
        && attr.kind != Kind::Symlink
        && cx.connection().negotiated().posix
    {
        let mode = attributes::settable_mode(mode, attr.kind == Kind::Dir);
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        access::chmod::set(&open.vfs, &attr, set).await?;
        return Ok(());
    }
    if !matches!(attr.kind, Kind::File | Kind::Dir) {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let Guard { mut descriptor, stored } = access::look(&open.vfs, &attr, token).await?;
    if what.contains(SecurityInformation::OWNER) {
        // A user may take ownership, but giving it to somebody else needs a privilege.
        let owner = new.owner.ok_or(INVALID_OWNER)?;
        if !token.has(&owner) && descriptor.owner.as_ref() != Some(&owner) {
            return Err(INVALID_OWNER.into());
        }
        descriptor.owner = Some(owner);
    }
    if what.contains(SecurityInformation::GROUP) {
        let group = new.group.ok_or(INVALID_SECURITY_DESCR)?;
        // The kernel decides whether the user may give the file to a group of the host.
        if let Some(gid) = group.unix_gid().filter(|gid| open.vfs.is_judged() && *gid != attr.gid) {
            let set = SetAttr { gid: Some(gid), ..SetAttr::default() };
            open.vfs.setattr(open.node, set).await?;
        }
        descriptor.group = Some(group);
    }
    if open.vfs.is_judged() && !stored && !what.contains(SecurityInformation::DACL) {
        // The list shows the mode, and kept it would take away what an ACL of the host grants to others.
        return Ok(());
    }
    // With another list, a Mac sends the mode that it was shown. It means a mode if that is another one, or if nothing of
    // the list was shown to it: then both are those of the file that it copies.
    let by_mac = by_mac
        .filter(|mode| (mode ^ attr.mode) & 0o777 != 0 || !has_common_subject(&descriptor.dacl, &new.dacl));
    if what.contains(SecurityInformation::DACL) {
        // An absent DACL becomes a null DACL.
        descriptor.dacl = if new.dacl == Dacl::Absent { Dacl::Null } else { new.dacl };
        descriptor.control = new.control;
        descriptor = inherit::canonical(descriptor);
    }
    match by_mac {
        Some(mode) => {
            access::chmod::set_with(&open.vfs, open.node, settable(&attr, mode), &descriptor).await?
        }
        None => access::keep(&open.vfs, open.node, &descriptor).await?,
    }
    Ok(())
}

/// Takes out of a list what a Mac adds to it: entries for the identities of Windows' NFS server (S-1-5-88), which deny nothing.
/// Returns the mode that one of them has. A Mac changes a mode by sending the list that it was shown together with that.
fn take_mode(dacl: &mut Dacl) -> Option<u32> {
    let Dacl::List(aces) = dacl else { return None };
    let mut mode = None;
    aces.retain(|ace| match ace {
        Ace::Allow { sid, mask, .. } | Ace::Deny { sid, mask, .. } if sid.is_of_nfs() => {
            mode = mode.or(sid.unix_mode());
            *mask != AccessMask::NONE && sid.unix_mode().is_none()
        }
        _ => true,
    });
    mode
}

/// Whether a list that a Mac sends is the one that it was shown: converted there and back, it has the same entries. A list
/// without entries says nothing but the mode.
fn is_same_list(shown: &Dacl, sent: &Dacl) -> bool {
    // It spells generic rights out, and may leave out SYNCHRONIZE, which means nothing to it.
    let normal = |dacl: &Dacl| -> Vec<Ace> {
        let mut aces = entries(dacl).to_vec();
        for ace in &mut aces {
            if let Ace::Allow { mask, .. } | Ace::Deny { mask, .. } = ace {
                *mask = mask.expand_generic().without(AccessMask::SYNCHRONIZE);
            }
        }
        aces
    };
    let sent = normal(sent);
    sent.is_empty() || sent == normal(shown)
}

/// Whether two lists have entries for the same user or group.
fn has_common_subject(one: &Dacl, other: &Dacl) -> bool {
    fn subjects(dacl: &Dacl) -> impl Iterator<Item = &Sid> {
        entries(dacl).iter().filter_map(|ace| match ace {
            Ace::Allow { sid, .. } | Ace::Deny { sid, .. } => Some(sid),
            Ace::Other { .. } => None,
        })
    }
    subjects(one).any(|sid| subjects(other).any(|known| known == sid))
}

fn entries(dacl: &Dacl) -> &[Ace] {
    match dacl {
        Dacl::List(aces) => aces,
        Dacl::Null | Dacl::Absent => &[],
    }
}

/// The mode of a file whose permissions are those of `mode`; its other bits stay.
fn settable(attr: &Attr, mode: u32) -> u32 {
    let directory = attr.kind == Kind::Dir;
    let others = if directory { attr.mode & !0o777 } else { 0 };
    attributes::settable_mode(others | (mode & 0o777), directory)
}
