//! Reopens persistent handles of earlier runs: when the server starts, and when a share comes back.
//!
//! Spec: [MS-SMB2] 3.3.5.9.12. The handles then wait among the preserved ones ([`super::durable`]).
//!
//! A record is forgotten if its handle is lost for good: its share is no longer configured to be continuously available, its
//! file is gone, its user may no longer open it or is another one of the same name now. If the share is absent or does not
//! answer, or if another folder is at its path because its disk is not mounted, the record stays, and so does the right of its client to
//! have the handle back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use weft_machine::{Account, rt};
use weft_store::opens::{Form, Opening, Range};
use weft_store::rights::Right;
use weft_store::vfs::{Error, NodeId, Share};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateAction, CreateOptions};

use super::audit;
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
use crate::server::user_id::UserId;

/// How long the file system of a share may take to reopen a handle. After that its other handles wait as well.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a handle is not reopened.
enum Unopened {
    /// It is lost for good.
    Lost(String),
    /// It may be reopened later.
    Waits(String),
}

impl From<Error> for Unopened {
    fn from(e: Error) -> Unopened {
        match e {
            // The disk fails, or the process has too much open: the file may be there.
            Error::Io(_) | Error::Limit(_) => Unopened::Waits(e.to_string()),
            e => Unopened::Lost(e.to_string()),
        }
    }
}

impl From<String> for Unopened {
    fn from(why: String) -> Unopened {
        Unopened::Lost(why)
    }
}

impl From<&str> for Unopened {
    fn from(why: &str) -> Unopened {
        Unopened::Lost(why.into())
    }
}

/// Reopens the handles of the last run; they wait for their clients as if the connections had just been lost.
pub(crate) async fn restore(server: &Arc<Server>) -> Result<(), Unusable> {
    let Some(journal) = &server.config.offers.journal else { return Ok(()) };
    let records = journal.records(|_| true)?;
    records.iter().for_each(|(id, _)| server.handles.taken(*id));
    server.resolve_groups().await;
    let shares = server.shares.now();
    let shares: Vec<Share> = shares.iter().map(|share| Share::clone(share)).collect();
    reopen_all(server, journal, &shares, records).await
}

/// Reopens the handles that were not restored before, on those of these shares that are there now.
pub(crate) async fn restore_on(server: &Arc<Server>, shares: &[Share]) -> Result<(), Unusable> {
    let Some(journal) = &server.config.offers.journal else { return Ok(()) };
    let unrestored = server.handles.unrestored().clone();
    if unrestored.is_empty() {
        return Ok(());
    }
    let mut records = journal.records_of(unrestored).await?;
    records.retain(|(_, record)| find(shares, &record.share).is_some());
    if records.is_empty() {
        return Ok(());
    }
    server.system.resolve(shares.iter(), server.directory().all_groups()).await;
    reopen_all(server, journal, shares, records).await
}

fn find<'a>(shares: &'a [Share], name: &str) -> Option<&'a Share> {
    let wanted = name.to_lowercase();
    shares.iter().find(|share| share.name.to_lowercase() == wanted)
}

async fn reopen_all(
    server: &Arc<Server>,
    journal: &Journal,
    shares: &[Share],
    records: Vec<(u64, Record)>,
) -> Result<(), Unusable> {
    let mut accounts = Accounts::default();
    let (mut reopened, mut identified, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    let mut waiting: BTreeMap<String, (u32, String)> = BTreeMap::new();
    let mut silent: HashSet<String> = HashSet::new();
    for (id, record) in records {
        let opened = match find(shares, &record.share) {
            _ if !server.config.offers.is_continuous(&record.share) => {
                Err("the share is no longer continuously available".into())
            }
            None => Err(Unopened::Waits("the share is not there".into())),
            Some(_) if silent.contains(&record.share) => Err(Unopened::Waits(String::new())),
            Some(share) => {
                let account = accounts.find(server, &record.user).await;
                let account = account.as_ref().map(Option::as_deref).map_err(|silent| *silent);
                let reopening = reopen(server, journal, id, &record, share, account);
                rt::timeout(ANSWER_WITHIN, reopening).await.unwrap_or_else(|_| {
                    silent.insert(record.share.clone());
                    let seconds = ANSWER_WITHIN.as_secs();
                    Err(Unopened::Waits(format!("its file system has not answered for {seconds} s")))
                })
            }
        };
        let why = match opened {
            Ok(open) => {
                server.handles.unrestored().remove(&id);
                if let Some(durable) = open.durable.get()
                    && (record.user_id.is_none() || record.root.is_none())
                {
                    let root = durable.persistent().map(|persistent| persistent.root);
                    identified.push((id, Record { user_id: durable.user_id, root, ..record.clone() }));
                }
                reopened.push((OwnedOpen::new(open), Duration::from_millis(record.timeout_ms.into())));
                continue;
            }
            Err(Unopened::Waits(why)) if server.handles.await_share(id) => {
                let (count, first) = waiting.entry(record.share).or_default();
                *count = count.saturating_add(1);
                if first.is_empty() {
                    *first = why;
                }
                continue;
            }
            Err(Unopened::Waits(why)) => format!("{why}, and too many wait already"),
            Err(Unopened::Lost(why)) => why,
        };
        tracing::warn!("lost a persistent handle of {} on {}: {why}", record.user, record.share);
        server.handles.unrestored().remove(&id);
        lost.push(id);
    }
    // From now on a record of an older version is of the user who has the name, as it was until now, and of the folder in which its
    // file was found.
    if !identified.is_empty()
        && let Err(e) = journal.save_all(identified).await
    {
        tracing::warn!(
            "records of persistent handles do not say who their users are, or where their files: {e}"
        );
    }
    let mut kept = 0u32;
    for (open, timeout) in reopened {
        match server.handles.preserved.keep(open, timeout) {
            Ok(()) => kept = kept.saturating_add(1),
            Err(open) => open.close().await,
        }
    }
    if kept > 0 {
        tracing::info!("{kept} persistent handles are waiting for their clients");
    }
    for (share, (count, why)) in waiting {
        tracing::warn!(
            "{count} persistent handles on {share} are not restored yet: {why}. The next reload or start tries again"
        );
    }
    if lost.is_empty() { Ok(()) } else { journal.forget(lost, ()).await }
}

/// Nobody answers what accounts the system has.
#[derive(Clone, Copy)]
struct Silent;

/// The accounts of the system of users who had handles.
#[derive(Default)]
struct Accounts {
    known: HashMap<String, Option<Arc<Account>>>,
    is_silent: bool,
}

impl Accounts {
    /// The account of a user. Once nobody answers, nobody is asked again: each question would delay the start.
    async fn find(&mut self, server: &Server, user: &str) -> Result<Option<Arc<Account>>, Silent> {
        if let Some(known) = self.known.get(user) {
            return Ok(known.clone());
        }
        if self.is_silent {
            return Err(Silent);
        }
        match server.system.account(user).await {
            Ok(account) => {
                self.known.insert(user.to_owned(), account.clone());
                Ok(account)
            }
            Err(why) => {
                tracing::warn!("handles that need an account or a group of the system wait: {why}");
                self.is_silent = true;
                Err(Silent)
            }
        }
    }
}

async fn reopen(
    server: &Arc<Server>,
    journal: &Journal,
    id: u64,
    record: &Record,
    share: &Share,
    account: Result<Option<&Account>, Silent>,
) -> Result<Arc<Open>, Unopened> {
    // An account may be what the user lacks.
    let refused = |why: &str| match account {
        Err(Silent) => Unopened::Waits("nobody answers what accounts the system has".into()),
        Ok(_) => Unopened::Lost(why.into()),
    };
    let account = account.unwrap_or_default();
    let access = AccessMask(record.access);
    let needed = if access.intersects(CHANGING) { Right::Write } else { Right::Read };
    let directory = server.directory();
    let is_ours = directory.is_ours(&record.user);
    let who = Who { user: &record.user, is_ours, account };
    let user_id = directory.id_of(who);
    if record.user_id.is_some() && record.user_id != user_id {
        let why = "its user is gone, or another one has the name now";
        return Err(match record.user_id {
            Some(UserId::Uid(_)) => refused(why),
            _ => why.into(),
        });
    }
    if let Some(account) = account.filter(|_| !is_ours && server.admits_system_user(&record.user)) {
        // The map and the directory service may have changed since the log-on.
        let is_chosen = server.config.offers.principals.names(&record.user);
        server.system.admit(&record.user, account, is_chosen).map_err(|why| why.to_string())?;
    }
    if directory.right(who, &share.rules) < needed {
        return Err(refused("its user no longer has the right"));
    }
    let caller = acting::caller(&directory, who, share);
    let caller = caller.map_err(|_| refused("its user has no account of the system any more"))?;
    // The kernel judges its user again: the rights that the handle had are not the server's.
    let vfs = share.vfs.acting_as(caller);
    // In another folder the file is not found, and may not be searched for.
    let root = vfs.as_server().stable(NodeId::ROOT).await?;
    if record.root.is_some_and(|known| known != root) {
        return Err(Unopened::Waits(
            "another folder is at its path, perhaps because its disk is not mounted".into(),
        ));
    }
    let attr = vfs.find_at(&record.path, record.file).await?;
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
    let hold = vfs.hold(attr.node).await?;
    let file = match access.intersects(DATA) {
        true => Some(vfs.open(attr.node, access.intersects(WRITE_DATA)).await?),
        false => None,
    };
    let place = vfs.place(attr.node).await?;
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
        root,
        file: record.file,
        path_bytes: AtomicUsize::new(path_bytes),
        gone: Arc::default(),
    };
    let durable = Durable {
        create_guid: Some(record.create_guid),
        user: record.user.as_str().into(),
        user_id,
        client: record.client,
        timeout: Duration::from_millis(record.timeout_ms.into()),
        home: handles.preserved.clone(),
        persistent: Some(persistent),
    };
    let first = open.durable.set(durable).is_ok();
    debug_assert!(first, "it was just made");
    audit::restored(server, who, &open, &record.path).await;
    Ok(Arc::new(open))
}
