//! The records of persistent handles: written before the client learns of a handle, and at each change.
//!
//! Spec: [MS-SMB2] 3.3.5.9.10, 3.3.5.9.12 (Open.IsPersistent), 3.3.7.1. The records are in the [`Journal`];
//! [`super::durable`] decides who gets a handle back, for handles of this run and of the last one alike.
//!
//! What a client was told is never lost: the record of a CREATE or a LOCK is written before its answer, and writes go
//! through to the file (3.3.5.9: FILE_WRITE_THROUGH). A record that cannot be written is logged. The file's name is on
//! disk before its record: after a crash of the host, a record without a file would be a lost handle.
//!
//! [`Journal`]: crate::server::journal::Journal

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures_util::future::try_join;
use futures_util::lock::Mutex;
use weft_store::Unsettled;
use weft_store::opens::{Caching as Rights, Rights as Sharing};
use weft_store::vfs::{Error, Kind, NodeId, Share};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateAction, CreateOptions, Request};
use weft_wire::smb2::create_context::LeaseState;
use weft_wire::smb2::negotiate::Capabilities;
use weft_wire::smb2::{Guid, NtStatus};

use super::caching::Caching;
use super::caching_rights::{rights_of, state_of};
use super::durable::{Durable, Owner};
use super::granting::Wanted;
use super::opens::Open;
use super::persistent::Persistent;
use super::rights::rights_of_share;
use super::{durability, status};
use crate::server::Server;
use crate::server::context::OpContext;
use crate::server::held;
use crate::server::journal::{Cached, Record};

/// Whether handles of this tree can be persistent, as announced to the client.
pub(super) fn available(cx: &OpContext, share: &Share) -> bool {
    let said = cx.connection().negotiated().server_capabilities;
    said.contains(Capabilities::PERSISTENT_HANDLES) && cx.config().offers.is_continuous(&share.name)
}

/// Records a new open, if its client wants a persistent handle; from then on the handle is persistent. Nobody else can
/// close it meanwhile, because it is in no table yet.
pub(super) async fn begin(
    cx: &OpContext,
    share: &Share,
    open: &Open,
    sharing: Sharing,
    desired: AccessMask,
    durable: &durability::Wanted,
    wanted: &Wanted,
) -> Option<Persistent> {
    let durability::Wanted::V2 { timeout, create_guid, persistent: true } = *durable else { return None };
    // 3.3.5.9.10: directories are never durable. Nor are streams, which have no name of their own across restarts.
    if open.kind != Kind::File || open.vfs.stream_of(open.node).is_some() || !available(cx, share) {
        return None;
    }
    let journal = cx.config().offers.journal.clone()?;
    let (root, file) = match try_join(open.vfs.stable(NodeId::ROOT), open.vfs.stable(open.node)).await {
        Ok(both) => both,
        Err(e) => {
            tracing::warn!("cannot make a handle persistent: {e}");
            return None;
        }
    };
    let gone = Arc::<Mutex<bool>>::default();
    let guard = gone.clone().lock_owned().await;
    let path_bytes = AtomicUsize::new(0);
    let persistent =
        Persistent { journal, share: share.name.clone(), sharing, desired, root, file, path_bytes, gone };
    let cached = match (&open.caching, wanted) {
        (Caching::Oplock(_), Wanted::Oplock(rights)) => Cached::Oplock(bits(*rights)),
        (Caching::Lease(held), Wanted::Lease(lease)) => Cached::Lease(*lease, held.source()),
        _ => Cached::Nothing,
    };
    let session = cx.session();
    let (user, user_id, client) = (&*session.user, session.user_id, session.client_guid);
    let owner = Owner { user, user_id, client, create_guid, timeout };
    let record = persistent.record(open, owner, cached).await;
    if let Err(full) = persistent.charge(open.held(), &record) {
        let _ = held::refused(full);
        return None;
    }
    if let Err(e) = settle(open).await {
        tracing::error!("cannot make a handle persistent: its file is not on disk: {e}");
        return None;
    }
    match persistent.journal.save(open.persistent, &record, guard).await {
        Ok(()) => Some(persistent),
        Err(e) => {
            tracing::error!("cannot make a handle persistent: {e}");
            None
        }
    }
}

/// Makes durable what the handle needs after a crash of the host: the file's name and, if the CREATE made or replaced the
/// file, the file. Another client may have created the name a moment ago without flushing it.
async fn settle(open: &Open) -> Result<(), Error> {
    let dir = open.place().await?.dir;
    let file = (open.action != CreateAction::OPENED).then_some(open.node);
    open.vfs.clone().settled().settle(Unsettled::existing(file, dir)).await
}

impl Persistent {
    async fn record(&self, open: &Open, owner: Owner<'_>, cached: Cached) -> Record {
        let locks = open.claim.locked().into_iter();
        Record {
            create_guid: owner.create_guid,
            client: owner.client,
            user: owner.user.to_owned(),
            user_id: owner.user_id,
            share: self.share.to_string(),
            root: Some(self.root),
            file: self.file,
            access: open.access.0,
            desired: self.desired.0,
            options: open.options.0,
            sharing: sharing_bits(self.sharing),
            action: open.action.0,
            timeout_ms: u32::try_from(owner.timeout.as_millis()).unwrap_or(u32::MAX),
            delete_pending: open.claim.delete_pending(),
            cached,
            locks: locks.map(|held| (held.range.offset, held.range.len, held.exclusive)).collect(),
            sequences: open.locks.all(),
            path: open.vfs.path(open.node).await.unwrap_or_default(),
        }
    }
}

fn of(open: &Open) -> Option<(&Durable, &Persistent)> {
    let durable = open.durable.get()?;
    Some((durable, durable.persistent()?))
}

impl Open {
    /// Records its changes; returns once they are on disk. Does nothing for an open that is not persistent. A change
    /// that cannot be recorded must not be acknowledged.
    pub(super) async fn save_record(&self) -> Result<(), NtStatus> {
        let Some((durable, persistent)) = of(self) else { return Ok(()) };
        let guard = persistent.gone.clone().lock_owned().await;
        if *guard {
            return Ok(());
        }
        let cached = match &self.caching {
            Caching::None => Cached::Nothing,
            Caching::Oplock(_) => {
                Cached::Oplock(bits(self.vfs.opens().caching(self.node, self.claim.key()).0))
            }
            Caching::Lease(lease) => Cached::Lease(lease.describe(), lease.source()),
        };
        let mut record = persistent.record(self, durable.owner(), cached).await;
        if persistent.charge(self.held(), &record).is_err() {
            // Without the path the file is still found, only later.
            record.path.clear();
        }
        persistent.journal.save(self.persistent, &record, guard).await.map_err(|e| {
            tracing::error!("cannot record a change of a persistent handle: {e}");
            status::UNEXPECTED_IO_ERROR
        })
    }
}

/// The file of an open was renamed. Recording the new path only makes the search after a restart faster, so a failure
/// is harmless.
pub(super) async fn moved(open: &Open) {
    // A failure is logged.
    let _ = open.save_record().await;
}

/// Whether a repeated CREATE matches the one that made this open (3.3.5.9).
pub(super) fn is_same_request(open: &Open, request: &Request) -> bool {
    let Some((_, persistent)) = of(open) else { return false };
    let options = request.options | CreateOptions::WRITE_THROUGH;
    open.options == options
        && persistent.desired == request.desired_access
        && persistent.sharing == rights_of_share(request.share_access)
}

/// Whether a session has a persistent handle that this CREATE made.
pub(super) fn is_connected(server: &Server, create_guid: Guid) -> bool {
    let is = |open: &Open| open.durable.get().is_some_and(|d| d.create_guid == Some(create_guid));
    server.sessions.all().iter().any(|session| !session.opens.select(is).is_empty())
}

fn bits(rights: Rights) -> u8 {
    state_of(rights).0 as u8
}

pub(super) fn rights_of_bits(bits: u8) -> Rights {
    rights_of(LeaseState(bits.into()))
}

fn sharing_bits(rights: Sharing) -> u8 {
    u8::from(rights.read) | u8::from(rights.write) << 1 | u8::from(rights.delete) << 2
}

pub(super) fn sharing_of(bits: u8) -> Sharing {
    Sharing { read: bits & 1 != 0, write: bits & 2 != 0, delete: bits & 4 != 0 }
}
