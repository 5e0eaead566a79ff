//! What version 4 tells the audit log: opens, and the operations that change names and rights.
//!
//! An OPEN has an [`AuditedOpen`], which counts the payload of its READs and WRITEs. Those without an open (special
//! state ids, delegations) are told as in version 3: the first of a caller on a file.
//!
//! An owner is a program of the client, and may act for several users: each who opens a file through it has an
//! [`AuditedOpen`] of the one state. A user beyond [`MOST_USERS`], or one who uses the state without an OPEN, has none.

use std::sync::Arc;

use weft_store::audit::{AuditedOpen, Event, Fact, Kind, Outcome};
use weft_wire::nfs4::{Claim, CreateType, FileType, Op, Open, Stateid, Status, Text, share};

use super::attributes::changes;
use super::audited::path_of;
use super::compound::Compound;
use super::fs_object::FsObject;
use super::io;
use super::state::{Held, State};
use crate::server::audit::{Auditing, changes as setattr, outcome, path, who};
use crate::server::context::Node;

const PROTOCOL: &str = "nfs4";
/// Users of one state whose opens are told with their bytes. Clients have an owner for each user.
const MOST_USERS: usize = 4;

/// An object, or a name in it.
struct Place<'a> {
    object: FsObject<'a>,
    name: Option<Vec<u8>>,
}

impl Place<'_> {
    async fn path(&self) -> Vec<u8> {
        match self.object {
            FsObject::Node(node) => path(&node, self.name.as_deref()).await,
            FsObject::Attributes(node) => {
                let mut path = path(&node, None).await;
                if let Some(name) = &self.name {
                    path.push(b':');
                    path.extend_from_slice(name);
                }
                path
            }
            FsObject::Root => self.name.clone().unwrap_or_default(),
        }
    }
}

/// An operation that is told once it has ended.
pub(super) struct Asked<'a> {
    events: Vec<(Kind, Vec<Fact>)>,
    at: Place<'a>,
    to: Option<Place<'a>>,
}

/// The operation, if it is to be told. OPEN, CLOSE, READ and WRITE have functions of their own.
pub(super) fn asked<'a>(c: &Compound<'a>, auditing: &Auditing, op: &Op) -> Option<Box<Asked<'a>>> {
    let object = c.object().ok()?;
    let named = |object, name: &Text| Place { object, name: Some(name.0.to_vec()) };
    let one = |kind, facts, at| Asked { events: vec![(kind, facts)], at, to: None };
    let here = || Place { object, name: None };
    Some(Box::new(match op {
        Op::Create(args) => {
            let made = match args.kind {
                CreateType::Link(_) => "symlink",
                CreateType::Other(FileType::DIR) => "directory",
                CreateType::Device(..) | CreateType::Other(_) => "special",
            };
            one(Kind::Create, vec![Fact::Object(made)], named(object, &args.name))
        }
        Op::Remove(name) => one(Kind::Delete, Vec::new(), named(object, name)),
        Op::Rename(args) => {
            let at = named(c.saved?, &args.from);
            Asked { to: Some(named(object, &args.to)), ..one(Kind::Rename, Vec::new(), at) }
        }
        Op::Link(name) => {
            let at = Place { object: c.saved?, name: None };
            Asked { to: Some(named(object, name)), ..one(Kind::Link, Vec::new(), at) }
        }
        Op::Setattr(args) => {
            let wished = changes(&args.attributes, c.minor, false).ok()?;
            let set = wished.set;
            let (owner, group) = (set.uid.is_some(), set.gid.is_some());
            let events = setattr(set.mode.is_some(), owner, group, wished.acl.is_some(), set.size.is_some());
            Asked { events, at: here(), to: None }
        }
        Op::Allocate(_) | Op::Deallocate(_) | Op::Copy(_) | Op::Clone(_) => {
            one(Kind::Write, Vec::new(), here())
        }
        // The pseudo root's entries are the shares: the first look-up stands for connecting to one.
        Op::Lookup(name) if matches!(object, FsObject::Root) && auditing.audit.may_want(Kind::Connect) => {
            one(Kind::Connect, Vec::new(), named(object, name))
        }
        _ => return None,
    }))
}

/// The operation has ended.
pub(super) async fn tell(c: &Compound<'_>, auditing: &Auditing, asked: Box<Asked<'_>>, status: Status) {
    let replaced = c.has_replaced.take().then_some(Fact::Replaced);
    let Some(outcome) = outcome(status.0, || status.to_string()) else { return };
    let Asked { events, at, to } = *asked;
    let denied = outcome != Outcome::Done;
    // Clients repeat the look-up of a share, and the first time is told.
    if let [(kind @ Kind::Connect, _)] = events.as_slice()
        && !auditing.is_news(*kind, denied, (&at.name, c.cx.caller.uid(), &*c.cx.host))
    {
        return;
    }
    let share = match at.object {
        FsObject::Node(node) | FsObject::Attributes(node) => Some(node.share.name.clone()),
        // Where a share is looked up.
        FsObject::Root => at.name.as_deref().map(|name| String::from_utf8_lossy(name).into()),
    };
    let is_inside = !matches!(at.object, FsObject::Root);
    let at = at.path().await;
    let to = match &to {
        Some(to) => Some(to.path().await),
        None => None,
    };
    for (kind, mut facts) in events {
        facts.extend(replaced.clone());
        let event = Event::now(kind, outcome.clone(), who(c.cx, PROTOCOL));
        let path = is_inside.then(|| at.clone());
        auditing.audit.tell(Event { share: share.clone(), path, to: to.clone(), facts, ..event });
    }
}

/// A file is open by this state. `access` is that of this OPEN.
pub(super) async fn opened(
    c: &Compound<'_>,
    auditing: &Auditing,
    (node, is_new): (&Node<'_>, bool),
    state: &State,
    access: u32,
    truncates: bool,
) {
    let kind = if is_new { Kind::Create } else { Kind::Open };
    let facts = vec![Fact::Object("file"), words(access)];
    let path = path(node, None).await;
    let mut held = state.held_mut();
    let opens = &mut held.audited;
    // The owner may have it open already; then the state stays the same.
    match opens.iter().find(|open| open.is_of(c.cx.caller.uid())) {
        Some(open) => {
            open.is_at(path);
            open.tell(kind, Outcome::Done, facts);
            if truncates && !is_new {
                open.wrote(0);
            }
        }
        None => {
            let (audit, share) = (auditing.audit.clone(), node.share.name.clone());
            let open = AuditedOpen::new(audit, who(c.cx, PROTOCOL), share, path, Some((kind, facts)));
            if truncates && !is_new {
                open.wrote(0);
            }
            match opens.len() < MOST_USERS {
                true => opens.push(open),
                false => open.forget(),
            }
        }
    }
}

/// An OPEN has failed: told if the caller may not do it.
pub(super) async fn open_refused(c: &Compound<'_>, auditing: &Auditing, args: &Open, status: Status) {
    let Ok(object) = c.object() else { return };
    let name = match &args.claim {
        Claim::Null(name) | Claim::DelegateCur(_, name) | Claim::DelegatePrev(name) => Some(name.0.to_vec()),
        _ => None,
    };
    let events = vec![(Kind::Open, vec![words(args.access)])];
    tell(c, auditing, Box::new(Asked { events, at: Place { object, name }, to: None }), status).await;
}

fn words(access: u32) -> Fact {
    let all = [(share::READ, "read"), (share::WRITE, "write")];
    Fact::Access(all.into_iter().filter(|(bit, _)| access & bit != 0).map(|(_, word)| word).collect())
}

/// What a READ or WRITE has done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    Read,
    Written,
}

/// What remains to be told of a READ or WRITE.
pub(super) enum Remainder<'a> {
    /// It has no open, or was denied.
    Asked(Box<Asked<'a>>, Status),
    /// It is the first WRITE of this many bytes through this open.
    FirstWrite(Arc<State>, u64),
}

impl Remainder<'_> {
    /// Tells it.
    pub async fn tell(self, c: &Compound<'_>, auditing: &Auditing) {
        match self {
            Remainder::Asked(asked, status) => tell(c, auditing, asked, status).await,
            Remainder::FirstWrite(state, bytes) => {
                let path = path_of(&state).await;
                if let Some(audited) = of_caller(c, &state.held()) {
                    path.into_iter().for_each(|path| audited.is_at(path));
                    audited.wrote(bytes);
                }
            }
        }
    }
}

/// A READ or WRITE has ended: counts its bytes on its open, without an allocation. Returns what remains to be told.
pub(super) fn moved<'a>(
    c: &Compound<'a>,
    auditing: &Auditing,
    stateid: &Stateid,
    what: Moved,
    result: Result<u64, Status>,
) -> Option<Remainder<'a>> {
    let kind = if what == Moved::Read { Kind::Open } else { Kind::Write };
    let bytes = match result {
        Ok(bytes) => bytes,
        Err(status) => {
            outcome(status.0, String::new)?;
            return Some(Remainder::Asked(missing_open(c, auditing, kind, true)?, status));
        }
    };
    let state = io::state(c, &c.node().ok()?, stateid).ok()?;
    if let Some(state) = state {
        let held = state.held();
        if let Some(audited) = of_caller(c, &held) {
            match what {
                Moved::Read => audited.read(bytes),
                Moved::Written if audited.tells_write() => {
                    drop(held);
                    return Some(Remainder::FirstWrite(state, bytes));
                }
                Moved::Written => audited.wrote(bytes),
            }
            return None;
        }
    }
    Some(Remainder::Asked(missing_open(c, auditing, kind, false)?, Status::OK))
}

/// The open of the caller.
fn of_caller<'a>(c: &Compound<'_>, held: &'a Held) -> Option<&'a AuditedOpen> {
    held.audited.iter().find(|open| open.is_of(c.cx.caller.uid()))
}

/// What is told of a file that is used without an open, or without the right to it: the first time.
fn missing_open<'a>(
    c: &Compound<'a>,
    auditing: &Auditing,
    kind: Kind,
    denied: bool,
) -> Option<Box<Asked<'a>>> {
    let node = c.node().ok()?;
    if !auditing.is_news(kind, denied, (node.share.id, node.id, c.cx.caller.uid(), &*c.cx.host)) {
        return None;
    }
    let facts = if kind == Kind::Open { vec![words(share::READ)] } else { Vec::new() };
    let at = Place { object: FsObject::Node(node), name: None };
    Some(Box::new(Asked { events: vec![(kind, facts)], at, to: None }))
}
