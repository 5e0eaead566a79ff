//! Opens for the audit log: the file's path, whether it is told, and CREATEs that are denied.
//!
//! An open without access to data is told only if it creates something: clients ask for attributes all the time.

use std::sync::Arc;

use weft_store::audit::{AuditedOpen, Event, Fact, Kind, Outcome};
use weft_store::vfs::Kind as NodeKind;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateAction, CreateDisposition, Request};

use super::opens::Open;
use super::rights::DATA;
use crate::server::Server;
use crate::server::audit::{self, actor, outcome};
use crate::server::context::OpContext;
use crate::server::directory::Who;

/// The words for rights.
const RIGHTS: [(AccessMask, &str); 7] = [
    (AccessMask::FILE_READ_DATA, "read"),
    (AccessMask::FILE_WRITE_DATA, "write"),
    (AccessMask::FILE_APPEND_DATA, "append"),
    (AccessMask::FILE_EXECUTE, "execute"),
    (AccessMask::DELETE, "delete"),
    (AccessMask::WRITE_DAC, "change_rights"),
    (AccessMask::WRITE_OWNER, "change_owner"),
];

fn rights(access: AccessMask) -> Fact {
    let has = RIGHTS.into_iter().filter(|(right, _)| access.contains(*right));
    Fact::Access(has.map(|(_, word)| word).collect())
}

fn object(kind: NodeKind) -> Fact {
    Fact::Object(match kind {
        NodeKind::File => "file",
        NodeKind::Dir => "directory",
        NodeKind::Symlink => "symlink",
        NodeKind::Special(_) => "special",
    })
}

/// A reparse point was set or deleted: an object of another kind has the name of the open one.
pub(super) fn replaced(audited: &AuditedOpen, old: NodeKind, new: NodeKind) {
    audited.tell(Kind::Delete, Outcome::Done, vec![object(old)]);
    audited.tell(Kind::Create, Outcome::Done, vec![object(new)]);
}

/// A reparse point could not be set or deleted: told if the user may not do it.
pub(super) async fn not_replaced(open: &Open, status: NtStatus) {
    if let Some(outcome) = outcome(status)
        && let Some(audited) = open.located().await
    {
        audited.tell(Kind::Create, outcome, vec![object(open.kind)]);
    }
}

/// A file is open, and nobody else has it yet.
pub(super) async fn opened(cx: &OpContext, open: &Arc<Open>) {
    let Some((audit, who)) = actor(cx.connection(), cx.session()) else { return };
    let share = open.share.get().cloned().unwrap_or_else(|| "".into());
    let path = open.path().await.unwrap_or_else(|_| open.name());
    let is_file = open.kind == NodeKind::File;
    let has_data = has_data(open);
    let facts = || vec![object(open.kind), rights(open.access)];
    let is_new = open.action == CreateAction::CREATED;
    let told = match is_new {
        true if is_file => Some((Kind::Create, facts())),
        false if has_data => Some((Kind::Open, facts())),
        _ => None,
    };
    let audited = AuditedOpen::new(audit.clone(), who, share, path, told);
    match open.action {
        CreateAction::CREATED if !is_file => {
            audited.tell(Kind::Create, Outcome::Done, vec![object(open.kind)]);
        }
        CreateAction::OVERWRITTEN | CreateAction::SUPERSEDED => audited.wrote(0),
        _ => {}
    }
    // The open is new.
    let _ = open.audited.set(Arc::new(audited));
}

/// Whether it is an open of a file's data.
fn has_data(open: &Open) -> bool {
    open.kind == NodeKind::File && open.access.intersects(DATA)
}

/// A persistent handle of an earlier run, which has told its open, waits for its client. Until that is back it has no
/// address.
pub(super) async fn restored(server: &Server, who: Who<'_>, open: &Open, last_path: &[u8]) {
    let Some((audit, who)) = audit::user(server, who) else { return };
    let share = open.share.get().cloned().unwrap_or_else(|| "".into());
    let path = open.path().await.unwrap_or_else(|_| last_path.to_vec());
    let told = has_data(open) || open.action == CreateAction::CREATED;
    // The open is new.
    let _ = open.audited.set(Arc::new(AuditedOpen::restored(audit, who, share, path, told)));
}

/// The client of a preserved handle is back: what it does with it comes from its new address.
pub(super) fn returned(cx: &OpContext, open: &Open) {
    if let (Some(audited), Some((_, who))) = (open.audited.get(), actor(cx.connection(), cx.session())) {
        audited.is_by(who);
    }
}

/// A CREATE has failed: told if the user may not do it.
pub(super) fn refused(cx: &OpContext, status: NtStatus) {
    let Some(outcome) = outcome(status) else { return };
    let (Some((audit, who)), Some(share)) = (actor(cx.connection(), cx.session()), &cx.tree().share) else {
        return;
    };
    let Ok(request) = Request::parse(cx.message()) else { return };
    let path = request.name.replace('\\', "/").trim_matches('/').as_bytes().to_vec();
    let kind = match request.disposition {
        CreateDisposition::Create => Kind::Create,
        _ => Kind::Open,
    };
    let access = rights(request.desired_access.expand_generic());
    audit.tell(Event::now(kind, outcome, who).in_share(&share.name).on(path).with(access));
}
