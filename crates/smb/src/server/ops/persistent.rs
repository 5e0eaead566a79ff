//! Persistent handles: recorded before the client learns of them, and reopened when the server starts.
//!
//! Spec: [MS-SMB2] 3.3.5.9.10, 3.3.5.9.12 (Open.IsPersistent), 3.3.7.1. The records are in the [`Journal`];
//! [`super::durable`] decides who gets a handle back, for handles of this run and of the last one alike.
//!
//! What a client was told is never lost: the record of a CREATE or a LOCK is written before its answer, and writes go
//! through to the file (3.3.5.9: FILE_WRITE_THROUGH). A record that cannot be written is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::lock::Mutex;
use weft_machine::budget::Full;
use weft_store::opens::{Caching as Rights, Form, Opening, Opens, Range, Rights as Sharing};
use weft_store::rights::Right;
use weft_store::vfs::{Kind, Share, Stable};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self as create_request, CreateAction, CreateOptions};
use weft_wire::smb2::negotiate::Capabilities;
use weft_wire::smb2::{Guid, NtStatus};

use super::caching::{self, Caching, Oplock, Wanted, state_of};
use super::channel_sequence::ChannelSequence;
use super::create::{self, rights_of_access};
use super::durable::{self, Durable, Owner, Preserved};
use super::opens::{self, Open};
use super::owned_open::OwnedOpen;
use super::security;
use super::status;
use crate::server::Server;
use crate::server::context::OpContext;
use crate::server::held::{self, DESCRIPTORS_OF_OPEN, LOCK_BYTES, OPEN_BYTES};
use crate::server::journal::{Cached, Journal, Record, Unusable};

/// The charge for a path, in multiples of its length: pages of the journal are half full.
const RECORD_COPIES: usize = 2;

/// The state that an open needs for its record.
pub(crate) struct Persistent {
    journal: Journal,
    share: Arc<str>,
    sharing: Sharing,
    /// DesiredAccess.
    desired: AccessMask,
    file: Stable,
    /// The charge for the record's path. Changes only while `gone` is held.
    path_bytes: AtomicUsize,
    /// Held by the writer of a record, rather than by the waiter, from building it until it is on disk, so that an
    /// older record never follows a newer one. True once the record is removed for good.
    gone: Arc<Mutex<bool>>,
}

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
    durable: &durable::Wanted,
    wanted: &Wanted,
) -> Option<Persistent> {
    let durable::Wanted::V2 { timeout, create_guid, persistent: true } = *durable else { return None };
    // 3.3.5.9.10: directories are never durable. Nor are streams, which have no name of their own across restarts.
    if open.kind != Kind::File || open.vfs.stream_of(open.node).is_some() || !available(cx, share) {
        return None;
    }
    let journal = cx.config().offers.journal.clone()?;
    let file = match open.vfs.stable(open.node).await {
        Ok(file) => file,
        Err(e) => {
            tracing::warn!("cannot make a handle persistent: {e}");
            return None;
        }
    };
    let gone = Arc::<Mutex<bool>>::default();
    let guard = gone.clone().lock_owned().await;
    let path_bytes = AtomicUsize::new(0);
    let persistent =
        Persistent { journal, share: share.name.clone(), sharing, desired, file, path_bytes, gone };
    let cached = match (&open.caching, wanted) {
        (Caching::Oplock(_), Wanted::Oplock(rights)) => Cached::Oplock(bits(*rights)),
        (Caching::Lease(_), Wanted::Lease(lease)) => Cached::Lease(*lease),
        _ => Cached::Nothing,
    };
    let session = cx.session();
    let owner = Owner { user: &session.user, client: session.client_guid, create_guid, timeout };
    let record = persistent.record(open, owner, cached).await;
    if let Err(full) = persistent.charge(open, &record) {
        let _ = held::refused(full);
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

impl Persistent {
    /// Charges the record. Only its path counts; the charges for an open and a lock cover the rest.
    fn charge(&self, open: &Open, record: &Record) -> Result<(), Full> {
        let (bytes, charged) = (RECORD_COPIES.saturating_mul(record.path.len()), &self.path_bytes);
        let before = charged.load(Ordering::Relaxed);
        match bytes.checked_sub(before) {
            Some(more) => open.held().grow(more)?,
            None => open.held().shrink(before.saturating_sub(bytes)),
        }
        charged.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn record(&self, open: &Open, owner: Owner<'_>, cached: Cached) -> Record {
        let locks = open.claim.locked().into_iter();
        Record {
            create_guid: owner.create_guid,
            client: owner.client,
            user: owner.user.to_owned(),
            share: self.share.to_string(),
            file: self.file,
            access: open.access.0,
            desired: self.desired.0,
            options: open.options.0,
            sharing: sharing_bits(self.sharing),
            action: open.action.0,
            timeout_ms: u32::try_from(owner.timeout.as_millis()).unwrap_or(u32::MAX),
            delete_pending: open.claim.delete_pending(),
            cached,
            locks: locks.map(|(range, exclusive)| (range.offset, range.len, exclusive)).collect(),
            sequences: open.locks.all(),
            path: open.vfs.path(open.node).await.unwrap_or_default(),
        }
    }
}

fn of(open: &Open) -> Option<(&Durable, &Persistent)> {
    let durable = open.durable.get()?;
    Some((durable, durable.persistent()?))
}

/// Records the changes of an open; returns once they are on disk. Does nothing for an open that is not persistent. A
/// change that cannot be recorded must not be acknowledged.
pub(super) async fn save(open: &Open) -> Result<(), NtStatus> {
    let Some((durable, persistent)) = of(open) else { return Ok(()) };
    let guard = persistent.gone.clone().lock_owned().await;
    if *guard {
        return Ok(());
    }
    let cached = match &open.caching {
        Caching::None => Cached::Nothing,
        Caching::Oplock(_) => Cached::Oplock(bits(open.vfs.opens().caching(open.node, open.claim.key()).0)),
        Caching::Lease(lease) => Cached::Lease(lease.describe()),
    };
    let mut record = persistent.record(open, durable.owner(), cached).await;
    if persistent.charge(open, &record).is_err() {
        // Without the path the file is still found, only later.
        record.path.clear();
    }
    persistent.journal.save(open.persistent, &record, guard).await.map_err(|e| {
        tracing::error!("cannot record a change of a persistent handle: {e}");
        status::UNEXPECTED_IO_ERROR
    })
}

/// The file of an open was renamed. Recording the new path only makes the search after a restart faster, so a failure
/// is harmless.
pub(super) async fn moved(open: &Open) {
    // A failure is logged.
    let _ = save(open).await;
}

/// Whether a repeated CREATE matches the one that made this open (3.3.5.9).
pub(super) fn is_same_request(open: &Open, request: &create_request::Request) -> bool {
    let Some((_, persistent)) = of(open) else { return false };
    let options = request.options | CreateOptions::WRITE_THROUGH;
    open.options == options
        && persistent.desired == request.desired_access
        && persistent.sharing == create::rights_of_share(request.share_access)
}

/// Whether a session has a persistent handle that this CREATE made.
pub(super) fn is_connected(server: &Server, create_guid: Guid) -> bool {
    let is = |open: &Open| open.durable.get().is_some_and(|d| d.create_guid == Some(create_guid));
    server.sessions.all().iter().any(|session| !session.opens.select(is).is_empty())
}

/// Removes the record of a closed open.
pub(super) async fn forget(open: &Open) {
    let Some((_, persistent)) = of(open) else { return };
    let mut guard = persistent.gone.clone().lock_owned().await;
    if std::mem::replace(&mut *guard, true) {
        return;
    }
    if let Err(e) = persistent.journal.forget(vec![open.persistent], guard).await {
        tracing::error!("a closed persistent handle may come back: cannot remove its record: {e}");
    }
}

/// Reopens the handles of the last run; they wait for their clients as if the connections had just been lost.
pub(crate) async fn restore(server: &Arc<Server>) -> Result<(), Unusable> {
    let Some(journal) = &server.config.offers.journal else { return Ok(()) };
    let (mut lost, mut kept) = (Vec::new(), 0u32);
    for (id, record) in journal.records()? {
        server.handles.taken(id);
        match reopen(server, journal, id, &record).await {
            Ok(open) => {
                let timeout = Duration::from_millis(record.timeout_ms.into());
                match server.handles.preserved.keep(OwnedOpen::new(open), timeout) {
                    Ok(()) => kept = kept.saturating_add(1),
                    Err(open) => open.close().await,
                }
            }
            Err(why) => {
                tracing::warn!("lost a persistent handle of {} on {}: {why}", record.user, record.share);
                lost.push(id);
            }
        }
    }
    if kept > 0 {
        tracing::info!("{kept} persistent handles are waiting for their clients");
    }
    if lost.is_empty() { Ok(()) } else { journal.forget(lost, ()).await }
}

async fn reopen(
    server: &Arc<Server>,
    journal: &Journal,
    id: u64,
    record: &Record,
) -> Result<Arc<Open>, String> {
    let offers = &server.config.offers;
    let share = server.shares.named(&record.share).filter(|share| offers.is_continuous(&share.name));
    let share = share.ok_or("the share is no longer continuously available")?;
    let access = AccessMask(record.access);
    let needed = if access.intersects(security::CHANGING) { Right::Write } else { Right::Read };
    if server.directory().right(&record.user, &share.rules) < needed {
        return Err("its user no longer has the right".into());
    }
    let vfs = share.vfs.clone();
    let text = |e: weft_store::vfs::Error| e.to_string();
    let attr = vfs.find_at(&record.path, record.file).await.map_err(text)?;
    let options = CreateOptions(record.options);
    let handles = &server.handles;
    let caching = match &record.cached {
        Cached::Nothing => Caching::None,
        Cached::Oplock(_) => Caching::Oplock(Arc::new(Oplock::new(&handles.preserved, vfs.opens()))),
        Cached::Lease(lease) => {
            let file = (vfs.opens(), attr.node);
            let lease = handles.leases.acquire(record.client, lease, file, &handles.preserved);
            Caching::Lease(lease.map_err(|status| format!("its lease: {status:?}"))?)
        }
    };
    // It was promised to its client, so it is charged and kept even beyond the limits.
    let locks_bytes = LOCK_BYTES.saturating_mul(record.locks.len());
    let holder = server.holder(None, &record.user.as_str().into());
    let path_bytes = RECORD_COPIES.saturating_mul(record.path.len());
    let kept_bytes = OPEN_BYTES.saturating_add(locks_bytes).saturating_add(path_bytes);
    let held = server.held.restore(holder.clone(), kept_bytes);
    let descriptors = server.descriptors.restore(holder, DESCRIPTORS_OF_OPEN);
    let sharing = sharing_of(record.sharing);
    let opening = Opening {
        reach: caching::reach_of(access),
        past_grace: true,
        ..Opening::new(rights_of_access(access), sharing, caching.key(&vfs))
    };
    let claim = vfs.opens().try_open(attr.node, &opening).map_err(|refused| refused.to_string())?;
    let hold = vfs.hold(attr.node).await.map_err(text)?;
    let file = match access.intersects(create::DATA) {
        true => Some(vfs.open(attr.node, access.intersects(create::WRITE_DATA)).await.map_err(text)?),
        false => None,
    };
    let place = vfs.place(attr.node).await.map_err(text)?;
    for (offset, len, exclusive) in &record.locks {
        let range = Range::new(*offset, *len).ok_or("a lock beyond the last byte")?;
        claim.try_lock(range, *exclusive).map_err(|refused| format!("a lock: {refused}"))?;
    }
    if options.contains(CreateOptions::DELETE_ON_CLOSE) {
        claim.set_delete_on_close();
    }
    if record.delete_pending {
        claim.set_delete_pending(true);
    }
    match (&caching, &record.cached) {
        (Caching::Oplock(oplock), Cached::Oplock(rights)) => {
            claim.request(Form::Oplock, rights_of_bits(*rights), oplock.clone());
        }
        (Caching::Lease(lease), Cached::Lease(known)) => {
            lease.request(&claim, known.state);
        }
        _ => {}
    }
    let open = Open::new(opens::New {
        id,
        sequence: ChannelSequence::default(),
        vfs,
        node: attr.node,
        kind: attr.kind,
        place,
        access,
        options,
        file,
        claim,
        caching,
        action: CreateAction(record.action),
        hold,
        held,
        descriptors,
    });
    let _ = open.share.set(share.name.clone());
    open.locks.restore(&record.sequences);
    let persistent = Persistent {
        journal: journal.clone(),
        share: share.name.clone(),
        sharing,
        desired: AccessMask(record.desired),
        file: record.file,
        path_bytes: AtomicUsize::new(path_bytes),
        gone: Arc::default(),
    };
    let owner = Owner {
        user: &record.user,
        client: record.client,
        create_guid: record.create_guid,
        timeout: Duration::from_millis(record.timeout_ms.into()),
    };
    let durable = Durable::restored(owner, handles.preserved.clone(), persistent);
    let first = open.durable.set(durable).is_ok();
    debug_assert!(first, "it was just made");
    Ok(Arc::new(open))
}

/// The caching rights of these opens were revoked because their client did not answer; updates their records.
pub(super) fn revoked(
    preserved: &Preserved,
    sessions: &[Arc<crate::server::session::Session>],
    file: (weft_store::NodeId, &Arc<Opens>),
    which: impl Fn(&Open) -> bool,
) {
    let mut opens = preserved.select(file, &which);
    sessions.iter().for_each(|session| opens.extend(session.opens.select(&which)));
    if !opens.is_empty() {
        weft_machine::rt::spawn(async move {
            for open in opens {
                // A failure is logged. The record then overstates the caching rights, which a reconnecting client is
                // told.
                let _ = save(&open).await;
            }
        })
        .detach();
    }
}

fn bits(rights: Rights) -> u8 {
    state_of(rights).0 as u8
}

fn rights_of_bits(bits: u8) -> Rights {
    caching::rights_of(weft_wire::smb2::create_context::LeaseState(bits.into()))
}

fn sharing_bits(rights: Sharing) -> u8 {
    u8::from(rights.read) | u8::from(rights.write) << 1 | u8::from(rights.delete) << 2
}

fn sharing_of(bits: u8) -> Sharing {
    Sharing { read: bits & 1 != 0, write: bits & 2 != 0, delete: bits & 4 != 0 }
}
