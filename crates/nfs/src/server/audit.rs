//! What NFS tells the audit log: callers, paths, and the calls of version 3. Version 4 is in [`super::v4`].
//!
//! Version 3 opens nothing: the first READ and the first WRITE of a caller on a file are told, and again once in a
//! while if they go on. AUTH_SYS ids are claims of the client.

use std::hash::Hash;

use weft_machine::Source;
use weft_store::audit::{Audit, Event, Fact, Kind, Outcome, Recent, Who};
use weft_store::rules::Protection;
use weft_store::{NodeId, Vfs};
use weft_transport::Kind as Transport;
use weft_wire::mount::{DirPath, MountResult, MountStatus};
use weft_wire::nfs3::{
    CreateArgs, DirOp, Handle, LinkArgs, MkdirArgs, MknodArgs, RenameArgs, SetattrArgs, Status, SymlinkArgs,
    Xdr, procedure as nfs,
};
use weft_wire::xdr::{Decoder, Encoder};

use super::context::{Context, Node, Results};

/// The longest handle on the wire (NFS3_FHSIZE).
const MAX_HANDLE: usize = 64;

/// The audit log of a server that has one.
pub(super) struct Auditing {
    pub audit: Audit,
    /// READs, WRITEs and look-ups of shares that were told.
    pub recent: Recent,
}

impl Auditing {
    /// Whether something that clients repeat with every request is told: it is wanted, and was not told a short time
    /// ago with the same outcome. Enters it, so ask only once the outcome is known: otherwise what is denied would hide
    /// what is done.
    pub fn is_news(&self, kind: Kind, denied: bool, what: impl Hash) -> bool {
        let is_wanted = if denied { self.audit.may_want(kind) } else { self.audit.wants(kind) };
        is_wanted && self.recent.enter((kind as u8, denied, what))
    }
}

/// The outcome to tell; `None` if it failed for a reason that has nothing to do with rights. Version 4 has the numbers
/// of version 3, and one more.
pub(super) fn outcome(status: u32, shown: impl FnOnce() -> String) -> Option<Outcome> {
    const OK: u32 = Status::OK.0;
    const PERM: u32 = Status::PERM.0;
    const ACCES: u32 = Status::ACCES.0;
    const ROFS: u32 = Status::ROFS.0;
    const WRONGSEC: u32 = weft_wire::nfs4::Status::WRONGSEC.0;
    match status {
        OK => Some(Outcome::Done),
        PERM | ACCES | ROFS | WRONGSEC => Some(Outcome::Denied(shown())),
        _ => None,
    }
}

/// The caller of a call in this version. Its user id is the one after squashing.
pub(super) fn who(cx: &Context<'_>, protocol: &'static str) -> Who {
    let transport = match (cx.kind, cx.protection) {
        (Transport::RpcRdma, _) => "rpc-rdma",
        (Transport::Datagram, _) => "udp",
        (_, Protection::None) => "tcp",
        (_, Protection::Tls | Protection::Mutual) => "tls",
    };
    Who {
        uid: Some(cx.caller.uid()),
        client: Some(cx.peer.to_string().into()),
        source: Some(Source::of(cx.peer)),
        protocol: Some(protocol),
        transport: Some(transport),
        ..Who::default()
    }
}

/// The path of a node, or of this name in it. A path that cannot be found out any more is the name alone.
pub(super) async fn path(node: &Node<'_>, name: Option<&[u8]>) -> Vec<u8> {
    let mut path = path_of(&node.share.vfs, node.id).await.unwrap_or_default();
    if let Some(name) = name {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    path
}

/// The path of a node as the server sees it, `FILE:STREAM` for a named attribute; `None` if it has no name any more.
pub(super) async fn path_of(vfs: &Vfs, node: NodeId) -> Option<Vec<u8>> {
    let mut path = vfs.as_server().path(node).await.ok()?;
    if let Some((_, stream)) = vfs.stream_of(node) {
        path.push(b':');
        path.extend_from_slice(&stream);
    }
    Some(path)
}

/// A file of a call: a handle, or a name in its directory.
struct Place {
    handle: Handle,
    name: Option<Vec<u8>>,
}

impl Place {
    fn of(at: &DirOp) -> Place {
        Place { handle: at.dir, name: Some(at.name.0.to_vec()) }
    }
}

/// A call of version 3 that is told once it is answered.
pub(super) enum Asked {
    /// A READ (an open) or WRITE of this file. Nothing is allocated for one that was told already.
    Transfer(Kind, Handle),
    /// Any other.
    Change(Box<Change>),
}

/// A call that is told each time.
pub(super) struct Change {
    events: Vec<(Kind, Vec<Fact>)>,
    at: Place,
    to: Option<Place>,
}

impl Asked {
    /// The call with these arguments, if it may have to be told.
    pub fn of(auditing: &Auditing, procedure: u32, d: &Decoder) -> Option<Asked> {
        let kind = match procedure {
            nfs::READ => Kind::Open,
            nfs::WRITE => Kind::Write,
            _ => return Change::of(procedure, d).map(Asked::Change),
        };
        if !auditing.audit.may_want(kind) {
            return None;
        }
        let (len, rest) = d.peek(4 + MAX_HANDLE).split_first_chunk::<4>()?;
        let handle = rest.get(..u32::from_be_bytes(*len) as usize)?;
        Some(Asked::Transfer(kind, Handle::new(handle)?))
    }

    /// Whether a call with this status is told. Asked only once: see [`Auditing::is_news`].
    pub fn is_news(&self, cx: &Context<'_>, auditing: &Auditing, status: Status) -> bool {
        let Some(outcome) = outcome(status.0, String::new) else { return false };
        match self {
            Asked::Change(_) => true,
            Asked::Transfer(kind, handle) => {
                let denied = outcome != Outcome::Done;
                // Connections of one client count as one.
                auditing.is_news(*kind, denied, (handle.as_bytes(), cx.caller.uid(), &*cx.host))
            }
        }
    }

    /// The call has ended with this status, which [is news](Asked::is_news).
    pub async fn tell(self, cx: &Context<'_>, auditing: &Auditing, status: Status) {
        let change = match self {
            Asked::Change(change) => change,
            Asked::Transfer(kind, handle) => {
                let access = (kind == Kind::Open).then(|| Fact::Access(vec!["read"]));
                let events = vec![(kind, access.into_iter().collect())];
                Box::new(Change { events, at: Place { handle, name: None }, to: None })
            }
        };
        change.tell(cx, auditing, status).await;
    }
}

impl Change {
    fn of(procedure: u32, d: &Decoder) -> Option<Box<Change>> {
        let name = |kind: Kind, facts: Vec<Fact>, at: &DirOp, to: Option<Place>| Change {
            events: vec![(kind, facts)],
            at: Place::of(at),
            to,
        };
        let made = |object, at: &DirOp| name(Kind::Create, vec![Fact::Object(object)], at, None);
        fn parse<T: Xdr>(d: &Decoder) -> Option<T> {
            T::parse(&mut d.clone()).ok()
        }
        Some(Box::new(match procedure {
            nfs::CREATE => made("file", &parse::<CreateArgs>(d)?.object),
            nfs::MKDIR => made("directory", &parse::<MkdirArgs>(d)?.object),
            nfs::SYMLINK => made("symlink", &parse::<SymlinkArgs>(d)?.object),
            nfs::MKNOD => made("special", &parse::<MknodArgs>(d)?.object),
            nfs::REMOVE | nfs::RMDIR => name(Kind::Delete, Vec::new(), &parse::<DirOp>(d)?, None),
            nfs::RENAME => {
                let args = parse::<RenameArgs>(d)?;
                name(Kind::Rename, Vec::new(), &args.from, Some(Place::of(&args.to)))
            }
            nfs::LINK => {
                let args = parse::<LinkArgs>(d)?;
                let at = Place { handle: args.file, name: None };
                let events = vec![(Kind::Link, Vec::new())];
                Change { events, at, to: Some(Place::of(&args.link)) }
            }
            nfs::SETATTR => {
                let SetattrArgs { object, attributes: set, .. } = parse(d)?;
                let events = changes(
                    set.mode.is_some(),
                    set.uid.is_some(),
                    set.gid.is_some(),
                    false,
                    set.size.is_some(),
                );
                let at = Place { handle: object, name: None };
                Change { events, at, to: None }
            }
            _ => return None,
        }))
    }

    async fn tell(self: Box<Change>, cx: &Context<'_>, auditing: &Auditing, status: Status) {
        let Some(outcome) = outcome(status.0, || status.to_string()) else { return };
        let Ok(node) = cx.node(&self.at.handle).await else { return };
        let at = path(&node, self.at.name.as_deref()).await;
        let to = match &self.to {
            Some(to) => match cx.node(&to.handle).await {
                Ok(node) => Some(path(&node, to.name.as_deref()).await),
                Err(_) => None,
            },
            None => None,
        };
        let replaced = cx.has_replaced.get().then_some(Fact::Replaced);
        for (kind, mut facts) in self.events {
            facts.extend(replaced.clone());
            let event =
                Event::now(kind, outcome.clone(), who(cx, "nfs3")).in_share(&node.share.name).on(at.clone());
            auditing.audit.tell(Event { to: to.clone(), facts, ..event });
        }
    }
}

/// The events of a SETATTR.
pub(super) fn changes(mode: bool, uid: bool, gid: bool, acl: bool, size: bool) -> Vec<(Kind, Vec<Fact>)> {
    let all = [(mode, "mode"), (uid, "owner"), (gid, "group"), (acl, "acl")];
    let changed: Vec<_> = all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    let rights = (!changed.is_empty()).then(|| (Kind::Rights, vec![Fact::Changes(changed)]));
    rights.into_iter().chain(size.then(|| (Kind::Write, Vec::new()))).collect()
}

/// The status in a reply whose results begin here.
pub(super) fn status_of(results: &Results, begins: usize) -> Option<Status> {
    let Results::One { body, .. } = results else { return None };
    status_at(body, begins)
}

fn status_at(body: &Encoder, begins: usize) -> Option<Status> {
    body.after(begins).first_chunk().map(|word| Status(u32::from_be_bytes(*word)))
}

/// A MNT is answered.
pub(super) fn mounted(cx: &Context<'_>, path: &DirPath, result: &MountResult) {
    let Some(auditing) = cx.server.auditing.get() else { return };
    let status = match result {
        MountResult::Ok { .. } => MountStatus::OK,
        MountResult::Failed(status) => *status,
    };
    let Some(outcome) = outcome(status.0, || {
        format!("MNT3ERR_{}", if status == MountStatus::PERM { "PERM" } else { "ACCES" })
    }) else {
        return;
    };
    let inside = path.0.strip_prefix(b"/").unwrap_or(&path.0);
    let (share, below) = match inside.iter().position(|byte| *byte == b'/') {
        Some(at) => inside.split_at_checked(at).unwrap_or((inside, &[])),
        None => (inside, &[][..]),
    };
    let share = cx
        .list()
        .named(share)
        .map_or_else(|| String::from_utf8_lossy(share).into(), |share| share.name.clone());
    let event = Event::now(Kind::Connect, outcome, who(cx, "nfs3")).in_share(&share);
    let below = below.strip_prefix(b"/").unwrap_or(below);
    auditing.audit.tell(Event { path: (!below.is_empty()).then(|| below.to_vec()), ..event });
}
