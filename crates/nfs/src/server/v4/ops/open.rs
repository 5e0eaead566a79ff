//! OPEN: opens a file by name or handle for an owner, creating it if requested (RFC 8881 18.16, RFC 7530 16.16).
//!
//! An owner has one state per file, however many OPENs it sent; access and deny bits are the union of them. The
//! store's table of opens, which also has SMB's opens, decides whether they conflict with others.

use std::sync::{Arc, RwLock};

use weft_machine::Charge;
use weft_machine::budget::Full;
use weft_store::opens::{Access, Open as Entry, Opening, Refused, Rights};
use weft_store::{Attr, Created, Error, Exists, Kind as NodeKind, Make, OpenFile, SetAttr};
use weft_wire::nfs4::{
    Bitmap, ChangeInfo, Claim, CreateHow, Delegation, Open, OpenOk, Status, Text, attr, open_flag, share,
};

use super::super::acl;
use super::super::attributes::{Changes, change, changes};
use super::super::audit;
use super::super::close::{close, give_back, give_up};
use super::super::compound::Compound;
use super::super::delegations;
use super::super::fs_object::FsObject;
use super::super::named;
use super::super::names::{component, new_component, not_found, status};
use super::super::state::budget::no_room;
use super::super::state::{Answered, Client, Held, Kind, Owner, OwnerSequence, SequenceCheck, State};
use crate::server::caller::{EXECUTE, READ, WRITE};
use crate::server::context::Node;
use crate::server::guard;

/// The attributes that hold the verifier of an exclusive create; the client is told to set them afterwards.
const TIMES: Bitmap = Bitmap::of(&[attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET]);
const NO_CHANGE: ChangeInfo = ChangeInfo { atomic: false, before: 0, after: 0 };

pub async fn open(c: &mut Compound<'_>, n: u32, args: Open) -> Status {
    if let Err(status) = c.object() {
        return c.put::<()>(n, Err(status));
    }
    let owner = c.client(args.owner.client).and_then(|client| {
        let owner = client.owner(&args.owner.owner.0, c.cx.server.states.limits.owners);
        let owner = owner.map_err(|full| no_room(full, c.minor))?;
        Ok((client, owner))
    });
    let (client, owner) = match owner {
        Ok(known) => known,
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    let mut turn = owner.turn().await;
    if c.minor == 0 {
        match turn.check(args.seqid, n) {
            // An owner that has opened nothing yet cannot be harmed by another attempt, and libnfs does not count an
            // OPEN that met a symbolic link: it reuses the number for the link's target.
            Ok(SequenceCheck::Again(answered)) if owner.is_confirmed() || answered.status == Status::OK => {
                return c.again(n, answered);
            }
            Ok(SequenceCheck::Next) if owner.is_confirmed() || turn.is_new() => {}
            // RFC 7530 16.18.5: an unconfirmed owner starts over.
            _ if !owner.is_confirmed() => forget(c, &client, &mut turn).await,
            Ok(_) => {}
            Err(status) => return c.put::<()>(n, Err(status)),
        }
        c.forget_closed(&client, &mut turn);
    }
    let at = c.reply.next_result();
    let result = carry_out(c, &client, &owner, &mut turn, &args).await;
    if let (Err(status), Some(auditing)) = (&result, c.cx.server.auditing.get()) {
        Box::pin(audit::open_refused(c, auditing, &args, *status)).await;
    }
    let ended = c.put(n, result);
    if c.minor == 0 {
        turn.answered(args.seqid, c.answered(n, ended, at));
    }
    ended
}

/// Removes everything of an owner that will not be confirmed.
async fn forget(c: &Compound<'_>, client: &Client, turn: &mut OwnerSequence) {
    for state in std::mem::take(turn).states() {
        c.cx.server.states.leave(&state);
        client.mine().states.remove(&state.other);
        close(&state).await;
    }
}

async fn carry_out(
    c: &mut Compound<'_>,
    client: &Arc<Client>,
    owner: &Arc<Owner>,
    turn: &mut OwnerSequence,
    args: &Open,
) -> Result<OpenOk, Status> {
    check_share(args, c.minor)?;
    check_grace(c, client, args)?;
    let (access, deny) = (args.access & share::BOTH, args.deny);
    let mut found = find(c, client, args, access).await?;
    if !found.new {
        let attr = found.node.attr().await?;
        let reads = if access & share::READ != 0 { READ } else { 0 };
        let writes = if access & share::WRITE != 0 || found.truncate.is_some() { WRITE } else { 0 };
        match args.claim {
            // Only the client's word shows that it had this open. If the mode bits no longer permit it, only the
            // file's owner gets it back.
            Claim::Previous(_) => match found.node.check_data(&c.cx.caller, &attr, reads).await {
                Ok(()) => found.node.check_data(&c.cx.caller, &attr, writes).await,
                refused => refused,
            },
            _ => found.node.check_open(&c.cx.caller, &attr, reads | writes).await,
        }
        .map_err(|e| status(&e))?;
        found.node.admit(c.cx, &attr, guard::data(reads | writes)).await.map_err(|e| status(&e))?;
    }
    let wanted = Wanted { access, deny, truncates: found.truncate.is_some() };
    let state = acquire(c, client, owner, turn, &mut found, wanted).await?;
    if let Some(set) = found.truncate {
        found.node.share.vfs.setattr(found.node.id, set).await.map_err(|e| status(&e))?;
    }
    if let Some(auditing) = c.cx.server.auditing.get() {
        Box::pin(audit::opened(
            c,
            auditing,
            (&found.node, found.new),
            &state,
            wanted.access,
            wanted.truncates,
        ))
        .await;
    }
    let mut flags = open_flag::LOCKTYPE_POSIX;
    if c.minor > 0 {
        owner.confirm();
        flags |= open_flag::PRESERVE_UNLINKED;
        if client.back().is_some_and(|back| back.is_up()) {
            flags |= open_flag::MAY_NOTIFY_LOCK;
        }
    } else if let Claim::Previous(_) = args.claim {
        // RFC 7530 16.18.5: a reclaiming owner is not asked to confirm.
        owner.confirm();
    } else if !owner.is_confirmed() {
        flags |= open_flag::CONFIRM;
    }
    c.set_current(FsObject::Node(found.node));
    let stateid = state.stateid();
    c.stateid = Some(stateid);
    let delegation = match args.claim {
        // The client already has one.
        Claim::DelegateCur(..) | Claim::DelegCurFh(_) => Delegation::None,
        // An unconfirmed owner may never confirm.
        _ if flags & open_flag::CONFIRM != 0 => Delegation::None,
        _ => delegations::grant(c, client, &found.node, args.access, Some(&state)).await,
    };
    Ok(OpenOk { stateid, change: found.change, flags, attrset: found.attrset, delegation })
}

fn check_share(args: &Open, minor: u32) -> Result<(), Status> {
    let since_1 = share::WANT_DELEG_MASK | share::WANT_SIGNAL | share::WANT_PUSH;
    let wants = match minor {
        0 => 0,
        1 => since_1,
        _ => since_1 | share::WANT_DELEG_TIMESTAMPS | share::WANT_OPEN_XOR_DELEG,
    };
    let wish = args.access & share::WANT_DELEG_MASK;
    if args.access & share::BOTH == 0
        || args.access & !(share::BOTH | wants) != 0
        || wish > share::WANT_CANCEL
        || args.deny > share::BOTH
    {
        return Err(Status::INVAL);
    }
    Ok(())
}

fn check_grace(c: &Compound<'_>, client: &Client, args: &Open) -> Result<(), Status> {
    let grace = &c.cx.server.states.grace;
    let reclaimed = c.minor > 0 && client.mine().reclaimed;
    match args.claim {
        Claim::Previous(_) if reclaimed || !grace.lasts(c.now) => Err(Status::NO_GRACE),
        Claim::Previous(_) if !grace.may_reclaim(&client.who) => Err(Status::RECLAIM_BAD),
        Claim::Previous(_) => Ok(()),
        _ if grace.lasts(c.now) || (c.minor > 0 && !reclaimed) => Err(Status::GRACE),
        _ => Ok(()),
    }
}

/// The file that an OPEN found or created.
struct Found<'a> {
    node: Node<'a>,
    change: ChangeInfo,
    attrset: Bitmap,
    /// Whether the OPEN created it: the creator may open the file, whatever its mode.
    new: bool,
    /// The file existed, and is to be truncated.
    truncate: Option<SetAttr>,
    /// The mode of a new file, set after the open, so that a mode without write permission does not prevent this open
    /// from writing.
    mode: Option<u32>,
    /// Reserved already, if the OPEN may create the file.
    room: Option<Room>,
}

/// A reservation for one more open of a client. It is made before a file is created or a delegation recalled: an OPEN
/// refused by a limit then leaves no file behind, which would fail an exclusive create when the client repeats it.
struct Room {
    state: Charge,
    descriptors: Charge,
}

impl Room {
    fn take(c: &Compound<'_>, client: &Client) -> Result<Room, Status> {
        let states = &c.cx.server.states;
        states.remember(client)?;
        // Memory is freed by other clients, so it is worth waiting for. States and descriptors are limited per
        // client, which would retry until it closes something, perhaps from the very program that waits for this
        // OPEN.
        let too_many = |full| if c.minor == 0 { no_room(full, c.minor) } else { Status::NOSPC };
        if client.mine().states.len() >= states.limits.states {
            return Err(too_many(Full));
        }
        let state = client.state_room().map_err(|full| no_room(full, c.minor))?;
        Ok(Room { state, descriptors: states.descriptors(client).map_err(too_many)? })
    }
}

async fn find<'a>(c: &Compound<'a>, client: &Client, args: &Open, access: u32) -> Result<Found<'a>, Status> {
    match &args.claim {
        Claim::Null(name) => by_name(c, client, args, name, access).await,
        Claim::Fh | Claim::Previous(_) => by_handle(c, args).await,
        Claim::DelegateCur(stateid, name) => {
            if args.how.is_some() {
                return Err(Status::INVAL);
            }
            let found = by_name(c, client, args, name, access).await?;
            delegations::claimed(c, &found.node, stateid, access)?;
            Ok(found)
        }
        Claim::DelegCurFh(stateid) => {
            let found = by_handle(c, args).await?;
            delegations::claimed(c, &found.node, stateid, access)?;
            Ok(found)
        }
        Claim::DelegatePrev(_) | Claim::DelegPrevFh => Err(Status::NOTSUPP),
    }
}

async fn by_handle<'a>(c: &Compound<'a>, args: &Open) -> Result<Found<'a>, Status> {
    if args.how.is_some() {
        return Err(Status::INVAL);
    }
    let node = c.node()?;
    regular(&node.attr().await?, c.minor)?;
    Ok(Found {
        node,
        change: NO_CHANGE,
        attrset: Bitmap::EMPTY,
        new: false,
        truncate: None,
        mode: None,
        room: None,
    })
}

/// RFC 7530 16.16.5, RFC 8881 18.16.3: only regular files can be opened.
fn regular(attr: &Attr, minor: u32) -> Result<(), Status> {
    match attr.kind {
        NodeKind::File => Ok(()),
        NodeKind::Dir => Err(Status::ISDIR),
        NodeKind::Symlink => Err(Status::SYMLINK),
        NodeKind::Special(_) if minor == 0 => Err(Status::SYMLINK),
        NodeKind::Special(_) => Err(Status::WRONG_TYPE),
    }
}

async fn by_name<'a>(
    c: &Compound<'a>,
    client: &Client,
    args: &Open,
    name: &Text,
    access: u32,
) -> Result<Found<'a>, Status> {
    let dir = match c.object()? {
        FsObject::Root => {
            let name = &*component(name)?;
            let is_share = c.cx.list().named(name).is_some();
            return Err(match () {
                () if is_share => Status::ISDIR,
                () if args.how.is_some() => Status::ROFS,
                () => Status::NOENT,
            });
        }
        FsObject::Attributes(of) => return by_attribute(c, client, args, of, name).await,
        FsObject::Node(node) => node,
    };
    let before = dir.attr().await?;
    match before.kind {
        NodeKind::Dir => {}
        NodeKind::Symlink => return Err(Status::SYMLINK),
        NodeKind::File | NodeKind::Special(_) => return Err(Status::NOTDIR),
    }
    let text = name;
    let name = &*component(text)?;
    c.cx.caller.check(&before, EXECUTE).map_err(|e| status(&e))?;
    let vfs = &dir.share.vfs;
    let (exists, wish) = match &args.how {
        None => (None, Changes::default()),
        Some(CreateHow::Unchecked(fattr)) => (Some(Exists::Reuse), changes(fattr, c.minor, true)?),
        Some(CreateHow::Guarded(fattr)) => (Some(Exists::Fail), changes(fattr, c.minor, true)?),
        Some(CreateHow::Exclusive(verifier)) => (Some(Exists::Verifier(*verifier)), Changes::default()),
        Some(CreateHow::Exclusive41(verifier, fattr)) => {
            let wish = changes(fattr, c.minor, true)?;
            if !wish.mask.and(TIMES).is_empty() {
                return Err(Status::INVAL);
            }
            (Some(Exists::Verifier(*verifier)), wish)
        }
    };
    let known = match vfs.lookup(dir.id, name, false).await {
        Ok(attr) => Some(attr),
        Err(Error::NotFound) if exists.is_some() => {
            new_component(text)?;
            None
        }
        Err(e) => return Err(not_found(text, &e)),
    };
    let at = |id| Node { id, ..dir };
    match (known, exists) {
        (Some(attr), None) => {
            regular(&attr, c.minor)?;
            let change = ChangeInfo { atomic: false, before: change(&before), after: change(&before) };
            Ok(Found {
                node: at(attr.node),
                change,
                attrset: Bitmap::EMPTY,
                new: false,
                truncate: None,
                mode: None,
                room: None,
            })
        }
        (Some(attr), Some(Exists::Reuse)) => {
            regular(&attr, c.minor)?;
            // RFC 7530 16.16.5: an existing file can be truncated; no other attribute is set.
            let size = wish.set.size.filter(|size| *size == 0);
            let mut attrset = Bitmap::EMPTY;
            if size.is_some() {
                attrset.set(attr::SIZE);
            }
            let truncate = size.map(|size| SetAttr { size: Some(size), ..SetAttr::default() });
            let change = ChangeInfo { atomic: false, before: change(&before), after: change(&before) };
            Ok(Found { node: at(attr.node), change, attrset, new: false, truncate, mode: None, room: None })
        }
        (Some(_), Some(Exists::Fail)) => Err(Status::EXIST),
        (known, exists) => {
            let exists = exists.unwrap_or(Exists::Fail);
            let exclusive = matches!(exists, Exists::Verifier(_));
            let mode = wish.set.mode.filter(|mode| access & share::WRITE != 0 && mode & 0o200 == 0);
            c.cx.caller.check_make(&before).map_err(|e| status(&e))?;
            dir.admit(c.cx, &before, guard::making(NodeKind::File)).await.map_err(|e| status(&e))?;
            let wish = Changes { set: c.cx.caller.owned(wish.set, &before), ..wish };
            let room = match Room::take(c, client) {
                Ok(room) => Some(room),
                Err(status) if known.is_none() => return Err(status),
                // Nothing will be created, and the owner may already have the file open.
                Err(_) => None,
            };
            let set = SetAttr { mode: mode.map_or(wish.set.mode, |mode| Some(mode | 0o600)), ..wish.set };
            // Another client may have created it meanwhile; then the client is told to try again.
            let retry = if exists == Exists::Reuse { Exists::Fail } else { exists };
            let (Created { attr: made, is_new: new }, unsettled) =
                vfs.make(dir.id, name, Make::File, retry, set).await.map_err(|e| match e {
                    Error::Exists if exists == Exists::Reuse => Status::DELAY,
                    e => status(&e),
                })?;
            let kept = match new {
                true => acl::inherit(c, &dir, &before, &made, wish.acl.as_ref()).await,
                false => Ok(()),
            };
            vfs.settle(unsettled).await.map_err(|e| status(&e))?;
            kept?;
            let change =
                ChangeInfo { atomic: false, before: change(&before), after: change(&dir.attr().await?) };
            let attrset = if exclusive { wish.mask.or(TIMES) } else { wish.mask };
            Ok(Found {
                node: at(made.node),
                change,
                attrset,
                new,
                truncate: None,
                // A directory's default ACL may have taken permissions away.
                mode: mode.filter(|_| new).map(|mode| mode & (made.mode | 0o7000)),
                room,
            })
        }
    }
}

/// A named attribute. A new one is empty; all other attributes are those of its file.
async fn by_attribute<'a>(
    c: &Compound<'a>,
    client: &Client,
    args: &Open,
    of: Node<'a>,
    name: &Text,
) -> Result<Found<'a>, Status> {
    let (make, guarded, wish) = match &args.how {
        None => (false, false, Changes::default()),
        Some(CreateHow::Unchecked(fattr)) => (true, false, changes(fattr, c.minor, true)?),
        Some(CreateHow::Guarded(fattr)) => (true, true, changes(fattr, c.minor, true)?),
        // An attribute has no place for a verifier.
        Some(CreateHow::Exclusive(_) | CreateHow::Exclusive41(..)) => return Err(Status::INVAL),
    };
    let before = change(&of.attr().await?);
    let ((node, new), room) = match named::open(c, of, name, false).await {
        Err(Status::NOENT) if make => {
            let room = Room::take(c, client)?;
            (named::open(c, of, name, true).await?, Some(room))
        }
        found => (found?, None),
    };
    if guarded && !new {
        return Err(Status::EXIST);
    }
    let empties = wish.set.size == Some(0);
    let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
    Ok(Found {
        node,
        change: ChangeInfo { atomic: false, before, after: change(&of.attr().await?) },
        attrset: if empties { Bitmap::of(&[attr::SIZE]) } else { Bitmap::EMPTY },
        new,
        truncate: (empties && !new).then_some(truncate),
        mode: None,
        room,
    })
}

#[derive(Clone, Copy)]
struct Wanted {
    access: u32,
    deny: u32,
    truncates: bool,
}

/// The rights of an open, in the terms of the store's table.
pub fn rights(access: u32) -> Rights {
    Rights { read: access & share::READ != 0, write: access & share::WRITE != 0, delete: false }
}

/// What an open with these deny bits lets others do. NFS cannot deny removal or renaming.
pub fn sharing(deny: u32) -> Rights {
    Rights { read: deny & share::READ == 0, write: deny & share::WRITE == 0, delete: true }
}

pub fn bit(access: u32, deny: u32) -> u16 {
    // Two bits each: `access` of 1 to 3, `deny` of 0 to 3.
    1u16.checked_shl(deny.saturating_mul(4).saturating_add(access)).unwrap_or(0)
}

/// The owner's state for the file, new or extended.
async fn acquire(
    c: &Compound<'_>,
    client: &Arc<Client>,
    owner: &Arc<Owner>,
    turn: &mut OwnerSequence,
    found: &mut Found<'_>,
    wanted: Wanted,
) -> Result<Arc<State>, Status> {
    let node = found.node;
    let known = turn.states().find(|state| state.file == node.file() && !state.has_ended());
    match known {
        Some(state) => {
            widen(c, &node, &state, wanted).await?;
            Ok(state)
        }
        None => {
            let states = &c.cx.server.states;
            let room = match found.room.take() {
                Some(room) => room,
                None => Room::take(c, client)?,
            };
            let held = enter(c, client, found, wanted, room.descriptors).await?;
            let kind = Kind::Open { owner: owner.clone(), held: RwLock::new(held) };
            let state = states.enter(client.lease.clone(), &node, kind, room.state);
            if let Err(why) = client.hold(&state, &c.cx.server.shares) {
                give_back(c.cx.server, state).await;
                return Err(why.into());
            }
            turn.opened(&state);
            Ok(state)
        }
    }
}

async fn enter(
    c: &Compound<'_>,
    client: &Arc<Client>,
    found: &Found<'_>,
    wanted: Wanted,
    descriptors: Charge,
) -> Result<Held, Status> {
    let node = &found.node;
    let vfs = &node.share.vfs;
    let key = client.key(node.share.key(), vfs.opens());
    let opening = Opening {
        overwrites: wanted.truncates,
        // The caller has checked the grace period.
        past_grace: true,
        ..Opening::new(rights(wanted.access), sharing(wanted.deny), key)
    };
    let mut opened = vfs.opens().try_open(node.id, &opening);
    if opened.as_ref().err() == Some(&Refused::Sharing) && clear(c, node).await {
        opened = vfs.opens().try_open(node.id, &opening);
    }
    let open = opened.map_err(refused)?;
    let hold = vfs.hold(node.id).await.map_err(|e| status(&e))?;
    // The caller has been checked, and callers with execute permission read.
    let file =
        vfs.as_server().open(node.id, wanted.access & share::WRITE != 0).await.map_err(|e| status(&e))?;
    if let Some(mode) = found.mode {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        vfs.setattr(node.id, set).await.map_err(|e| status(&e))?;
    }
    let Wanted { access, deny, .. } = wanted;
    let asked = bit(access, deny);
    let opener = c.cx.caller.uid();
    Ok(Held {
        open: Some(open),
        file,
        _descriptors: descriptors,
        opener,
        hold: Some(hold),
        access,
        deny,
        asked,
        locks: Vec::new(),
        audited: Vec::new(),
    })
}

/// Extends an owner's existing open.
async fn widen(c: &Compound<'_>, node: &Node<'_>, state: &State, wanted: Wanted) -> Result<(), Status> {
    let (access, deny, more) = {
        let held = state.held();
        // RFC 8881 9.7: its own deny bits apply to the owner too.
        if wanted.access & held.deny != 0 || wanted.deny & held.access != 0 {
            return Err(Status::SHARE_DENIED);
        }
        let (access, deny) = (held.access | wanted.access, held.deny | wanted.deny);
        let more = (access & !held.access & share::WRITE) | (deny & !held.deny & share::READ);
        (access, deny, more != 0)
    };
    if more || wanted.truncates {
        // For other clients, this counts as a new open.
        let key = state.held().open.as_ref().map(Entry::key).ok_or(Status::BAD_STATEID)?;
        let access = if wanted.truncates { Access::Overwrite } else { Access::OpenToWrite };
        node.share.vfs.opens().recall(node.id, Some(key), access).map_err(refused)?;
    }
    let writes = access & share::WRITE != 0 && state.held().access & share::WRITE == 0;
    let file: Option<OpenFile> = match writes {
        true => Some(node.share.vfs.as_server().open(node.id, true).await.map_err(|e| status(&e))?),
        false => None,
    };
    let change = |state: &State| match &state.held().open {
        Some(open) => open.change(rights(access), sharing(deny)),
        None => Err(Refused::NotLocked),
    };
    let mut changed = change(state);
    if changed == Err(Refused::Sharing) && clear(c, node).await {
        changed = change(state);
    }
    changed.map_err(refused)?;
    let mut held = state.held_mut();
    (held.access, held.deny) = (access, deny);
    held.asked |= bit(wanted.access, wanted.deny);
    if let Some(file) = file {
        held.file = file;
    }
    drop(held);
    state.changed();
    Ok(())
}

/// Revokes what clients with expired leases hold on this file. Returns whether there was anything.
pub async fn clear(c: &Compound<'_>, node: &Node<'_>) -> bool {
    let taken = c.cx.server.states.take_lapsed(node.file(), c.now);
    let any = !taken.0.is_empty();
    give_up(taken).await;
    any
}

fn refused(refused: Refused) -> Status {
    match refused {
        Refused::Recalling | Refused::Limit(_) => Status::DELAY,
        Refused::NotLocked | Refused::Closed => Status::BAD_STATEID,
        Refused::Sharing | Refused::DeletePending | Refused::Locked => Status::SHARE_DENIED,
    }
}

impl Compound<'_> {
    /// What a request that is not its owner's next one is answered (RFC 7530 9.1.7). Later versions have no such sequence.
    pub fn out_of_turn(&mut self, owner: &OwnerSequence, seqid: u32, n: u32) -> Option<Status> {
        if self.minor > 0 {
            return None;
        }
        match owner.check(seqid, n) {
            Ok(SequenceCheck::Next) => None,
            Ok(SequenceCheck::Again(answered)) => Some(self.again(n, answered)),
            Err(status) => Some(self.put::<()>(n, Err(status))),
        }
    }

    /// The reply to the owner's last request.
    pub fn again(&mut self, n: u32, answered: Answered) -> Status {
        // Whoever repeats the request may be another caller, whom the file's export refuses.
        if let Some(node) = answered.current.and_then(|file| self.node_of(file))
            && let Err(status) = FsObject::Node(node).admit(self.cx, false)
        {
            return self.put::<()>(n, Err(status));
        }
        let tail = &mut self.reply.tail;
        tail.u32(n);
        tail.u32(answered.status.0);
        tail.fixed(&answered.body);
        if let Some(file) = answered.current
            && let Some(node) = self.node_of(file)
        {
            self.set_current_keeping_stateid(FsObject::Node(node));
        }
        answered.status
    }

    /// The reply just made, which starts at `at` with its status.
    pub fn answered(&self, op: u32, status: Status, at: usize) -> Answered {
        let current = match self.current {
            Some(FsObject::Node(node)) => Some(node.file()),
            _ => None,
        };
        Answered { op, status, body: self.reply.tail.copy_from(at.saturating_add(4)), current }
    }

    /// The owner has sent another request, so its last CLOSE will not be repeated.
    pub fn forget_closed(&self, client: &Client, turn: &mut OwnerSequence) {
        if let Some(closed) = turn.closed.take().and_then(|closed| closed.upgrade()) {
            self.cx.server.states.leave(&closed);
            client.mine().states.remove(&closed.other);
        }
    }
}
