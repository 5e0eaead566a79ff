//! Reopens persistent handles when the server starts.
//!
//! Spec: [MS-SMB2] 3.3.5.9.12. The handles then wait among the preserved ones ([`super::durable`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use weft_machine::Account;
use weft_store::opens::{Form, Opening, Range};
use weft_store::rights::Right;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateAction, CreateOptions};

use super::caching::{Caching, Oplock};
use super::channel_sequence::ChannelSequence;
use super::durable::Durable;
use super::lease::Claimant;
use super::opens::{self, Open};
use super::owned_open::OwnedOpen;
use super::persistent::{Persistent, RECORD_COPIES};
use super::recording::{rights_of_bits, sharing_of};
use super::rights::{CHANGING, DATA, WRITE_DATA, reach_of, rights_of_access};
use crate::server::Server;
use crate::server::acting;
use crate::server::directory::Who;
use crate::server::held::{DESCRIPTORS_OF_OPEN, LOCK_BYTES, OPEN_BYTES};
use crate::server::journal::{Cached, Journal, Record, Unusable};

/// Reopens the handles of the last run; they wait for their clients as if the connections had just been lost.
pub(crate) async fn restore(server: &Arc<Server>) -> Result<(), Unusable> {
    let Some(journal) = &server.config.offers.journal else { return Ok(()) };
    let (mut lost, mut kept) = (Vec::new(), 0u32);
    let mut accounts = Accounts::default();
    server.resolve_groups().await;
    for (id, record) in journal.records()? {
        server.handles.taken(id);
        let account = accounts.find(server, &record.user).await;
        match reopen(server, journal, id, &record, account.as_deref()).await {
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

/// The accounts of the system of users who had handles.
#[derive(Default)]
struct Accounts {
    known: HashMap<String, Option<Arc<Account>>>,
    is_silent: bool,
}

impl Accounts {
    /// The account of a user. Once nobody answers, nobody is asked again: each question would delay the start.
    async fn find(&mut self, server: &Server, user: &str) -> Option<Arc<Account>> {
        if let Some(known) = self.known.get(user) {
            return known.clone();
        }
        if self.is_silent {
            return None;
        }
        match server.system.account(user).await {
            Ok(account) => {
                self.known.insert(user.to_owned(), account.clone());
                account
            }
            Err(why) => {
                tracing::warn!("handles that need a group of the system may be lost: {why}");
                self.is_silent = true;
                None
            }
        }
    }
}

async fn reopen(
    server: &Arc<Server>,
    journal: &Journal,
    id: u64,
    record: &Record,
    account: Option<&Account>,
) -> Result<Arc<Open>, String> {
    let offers = &server.config.offers;
    let share = server.shares.named(&record.share).filter(|share| offers.is_continuous(&share.name));
    let share = share.ok_or("the share is no longer continuously available")?;
    let access = AccessMask(record.access);
    let needed = if access.intersects(CHANGING) { Right::Write } else { Right::Read };
    let directory = server.directory();
    let is_ours = directory.is_ours(&record.user);
    if let Some(account) = account.filter(|_| !is_ours && server.admits_system_user(&record.user)) {
        // The map and the directory service may have changed since the log-on.
        let is_chosen = server.config.offers.principals.names(&record.user);
        server.system.admit(&record.user, account, is_chosen).map_err(|why| why.to_string())?;
    }
    let who = Who { user: &record.user, is_ours, account };
    if directory.right(who, &share.rules) < needed {
        return Err("its user no longer has the right".into());
    }
    let caller = acting::caller(&directory, who, &share);
    let caller = caller.map_err(|_| "its user has no account of the system any more")?;
    // The kernel judges its user again: the rights that the handle had are not the server's.
    let vfs = share.vfs.acting_as(caller);
    let text = |e: weft_store::vfs::Error| e.to_string();
    let attr = vfs.find_at(&record.path, record.file).await.map_err(text)?;
    let options = CreateOptions(record.options);
    let handles = &server.handles;
    let caching = match &record.cached {
        Cached::Nothing => Caching::None,
        Cached::Oplock(_) => Caching::Oplock(Arc::new(Oplock::new(&handles.preserved, vfs.opens()))),
        Cached::Lease(lease, source) => {
            let file = (vfs.opens(), attr.node);
            let user: Arc<str> = record.user.as_str().into();
            // Users of one address may have shared it.
            let who = Claimant { client: record.client, user: &user, source: *source };
            let lease = handles.leases.acquire(who, lease, file, &handles.preserved);
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
        reach: reach_of(access),
        past_grace: true,
        ..Opening::new(rights_of_access(access), sharing, caching.key(&vfs))
    };
    let claim = vfs.opens().try_open(attr.node, &opening).map_err(|refused| refused.to_string())?;
    let hold = vfs.hold(attr.node).await.map_err(text)?;
    let file = match access.intersects(DATA) {
        true => Some(vfs.open(attr.node, access.intersects(WRITE_DATA)).await.map_err(text)?),
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
        (Caching::Lease(lease), Cached::Lease(known, _)) => {
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
    let durable = Durable {
        create_guid: Some(record.create_guid),
        user: record.user.as_str().into(),
        client: record.client,
        timeout: Duration::from_millis(record.timeout_ms.into()),
        home: handles.preserved.clone(),
        persistent: Some(persistent),
    };
    let first = open.durable.set(durable).is_ok();
    debug_assert!(first, "it was just made");
    Ok(Arc::new(open))
}
