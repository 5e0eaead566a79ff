//! Durable handles: opens that outlive their session, where they wait, and who gets them back.
//!
//! Spec: [MS-SMB2] 3.3.5.9.7, 3.3.5.9.12 (reconnects), 3.3.7.1 (loss of a connection), 3.3.6.2 (scavenger). Owns the
//! opens without a session, at most [`MAX_PRESERVED`], and at most [`MAX_PRESERVED_OF_USER`] per user. Requests for
//! durability are in [`super::durability`], surviving a restart of the server in [`super::recording`].
//!
//! An open is in one place at any time: in the table of a session, or here. To move, it is taken out of one table
//! before it is put into the other. Only whoever takes it out of here can hand it to a client or close it: a reconnect,
//! the scavenger and an undeliverable break compete for a single `remove` from one map, and nobody closes a handle
//! through a reference that he kept. Between two tables it is an [`OwnedOpen`], which closes the open when it is
//! dropped.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weft_machine::{LogLimit, Time, rt};
use weft_store::opens::Opens;
use weft_store::rights::Right;
use weft_store::vfs::{NodeId, Vfs};
use weft_wire::smb2::create_context::{self, DurableFlags, ResponseContext};
use weft_wire::smb2::{FileId, Guid, NtStatus};

use super::caching::Caching;
use super::opens::Open;
use super::owned_open::OwnedOpen;
use super::persistent::Persistent;
use super::rights::CHANGING;
use crate::server::session::Session;
use crate::server::user_id::UserId;

/// Opens without a session, of all clients together.
pub(super) const MAX_PRESERVED: usize = 16_384;
/// The limit per user if several users can log on, so that nobody occupies all the room with abandoned handles. As many
/// are restored after a restart, which the test with 10,000 handles of one user needs.
const MAX_PRESERVED_OF_USER: usize = MAX_PRESERVED / 4 * 3;
/// The durable state of an open.
pub(crate) struct Durable {
    /// Version 2: identifies the CREATE.
    pub(super) create_guid: Option<Guid>,
    /// DurableOwner.
    pub(super) user: Arc<str>,
    /// Who that is; unknown of a record of an older version.
    pub(super) user_id: Option<UserId>,
    pub(super) client: Guid,
    pub(super) timeout: Duration,
    pub(super) home: Arc<Preserved>,
    /// Set if it survives a restart of the server.
    pub(super) persistent: Option<Persistent>,
}

/// The owner of a persistent handle, and how long the handle waits for its client.
pub(super) struct Owner<'a> {
    pub(super) user: &'a str,
    pub(super) user_id: Option<UserId>,
    /// ClientGuid.
    pub(super) client: Guid,
    /// The CreateGuid that its client assigned.
    pub(super) create_guid: Guid,
    pub(super) timeout: Duration,
}

impl Durable {
    /// The context that announced durability, for a repeated answer.
    pub(super) fn describe(&self) -> ResponseContext {
        match self.create_guid {
            None => ResponseContext::Durable,
            Some(_) => ResponseContext::DurableV2 {
                // At most five minutes.
                timeout_ms: self.timeout.as_millis() as u32,
                flags: match self.persistent {
                    Some(_) => DurableFlags::PERSISTENT,
                    None => DurableFlags::NONE,
                },
            },
        }
    }

    /// The persistent state, if it survives a restart of the server.
    pub(super) fn persistent(&self) -> Option<&Persistent> {
        self.persistent.as_ref()
    }

    /// Its owner.
    pub(super) fn owner(&self) -> Owner<'_> {
        Owner {
            user: &self.user,
            user_id: self.user_id,
            client: self.client,
            create_guid: self.create_guid.unwrap_or_default(),
            timeout: self.timeout,
        }
    }

    /// Whether it was opened by this user, and not by an earlier one of the name.
    pub(super) fn is_of(&self, user: &str, id: Option<UserId>) -> bool {
        *self.user == *user && (self.user_id.is_none() || self.user_id == id)
    }

    /// How long it waits for its client.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The table that it moves to when its session ends.
    pub(super) fn home(&self) -> &Arc<Preserved> {
        &self.home
    }
}

/// What a client presents to reconnect a handle.
pub(super) struct Claim<'a> {
    pub file: FileId,
    /// Version 2.
    pub create_guid: Option<Guid>,
    pub client: Guid,
    pub user: &'a str,
    pub user_id: Option<UserId>,
    pub lease: Option<create_context::Lease>,
    /// Whether the client believes that the handle is persistent.
    pub persistent: bool,
    /// What the user may do on the share.
    pub right: Right,
}

impl Claim<'_> {
    /// 3.3.5.9.7, 3.3.5.9.12: whether the handle matches the client's request.
    fn check(&self, open: &Open) -> Result<(), NtStatus> {
        let durable = open.durable.get().ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        let same_lease = match (&open.caching, &self.lease) {
            (Caching::Lease(lease), Some(claimed)) => {
                lease.key() == claimed.key
                    && lease.is_v2() == claimed.v2.is_some()
                    && durable.client == self.client
            }
            (Caching::Lease(_), None) | (_, Some(_)) => false,
            (_, None) => true,
        };
        // Version 1 has no CreateGuid: it can also reconnect handles of version 2, and its own handles count as version
        // 2 handles with a GUID of zeros.
        let same_create = self.create_guid.is_none_or(|guid| guid == durable.create_guid.unwrap_or_default());
        let kept = durable.persistent.is_some() || open.resilient().is_some() || open.may_be_kept();
        if !same_create || !same_lease || !kept || (durable.persistent.is_some() && !self.persistent) {
            return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
        }
        if self.persistent && durable.persistent.is_none() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        // The user may have lost the right since.
        let exceeds = self.right < Right::Write && open.access.intersects(CHANGING);
        if durable.is_of(self.user, self.user_id) && !exceeds { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
    }
}

struct Kept {
    open: Arc<Open>,
    until: Time,
}

/// Opens that wait for their client.
#[derive(Default)]
pub(crate) struct Preserved(Mutex<Waiting>);

/// The opens, and indexes for the searches by CREATEs and breaks of other clients, which must not slow down as opens
/// accumulate.
#[derive(Default)]
struct Waiting {
    /// By FileId.Persistent.
    handles: HashMap<u64, Kept>,
    /// The opens of each file. The address of a share's table of opens identifies the share; it lives as long as any of
    /// its opens.
    files: HashMap<(usize, NodeId), OfFile>,
    /// The persistent opens by the CREATE that made them.
    made: BTreeSet<(Guid, u64)>,
    /// Number of opens per user, for users who are charged.
    of_users: HashMap<Arc<str>, usize>,
}

/// The opens of one file.
#[derive(Default)]
struct OfFile {
    handles: HashSet<u64>,
    /// How many of them are persistent.
    persistent: u32,
}

impl Waiting {
    fn insert(&mut self, open: Arc<Open>, until: Time) {
        let id = open.persistent;
        debug_assert!(!self.handles.contains_key(&id), "no number is given out twice");
        if let Some(user) = user(&open) {
            let count = self.of_users.entry(user.clone()).or_default();
            *count = count.saturating_add(1);
        }
        let of_file = self.files.entry(file(&open)).or_default();
        of_file.handles.insert(id);
        if open.is_persistent() {
            of_file.persistent = of_file.persistent.saturating_add(1);
            self.made.extend(create_guid(&open).map(|guid| (guid, id)));
        }
        self.handles.insert(id, Kept { open, until });
    }

    fn remove(&mut self, id: u64) -> Option<OwnedOpen> {
        let Kept { open, .. } = self.handles.remove(&id)?;
        if let Some(user) = user(&open) {
            match self.of_users.get_mut(user) {
                Some(count) if *count > 1 => *count = count.saturating_sub(1),
                _ => drop(self.of_users.remove(user)),
            }
        }
        if let Entry::Occupied(mut known) = self.files.entry(file(&open)) {
            let of_file = known.get_mut();
            of_file.handles.remove(&id);
            of_file.persistent = of_file.persistent.saturating_sub(open.is_persistent().into());
            if of_file.handles.is_empty() {
                known.remove();
            }
        }
        if open.is_persistent()
            && let Some(guid) = create_guid(&open)
        {
            self.made.remove(&(guid, id));
        }
        Some(OwnedOpen::new(open))
    }

    /// The opens of this file.
    fn of_file(&self, node: NodeId, opens: &Arc<Opens>) -> impl Iterator<Item = &Arc<Open>> {
        let ids = self.files.get(&key(node, opens)).into_iter().flat_map(|of_file| &of_file.handles);
        ids.filter_map(|id| Some(&self.handles.get(id)?.open))
    }

    /// The limit that prevents adding this open, if any.
    fn is_full(&self, open: &Open) -> Option<&'static str> {
        let of_user = user(open).and_then(|user| self.of_users.get(user)).copied().unwrap_or_default();
        if self.handles.len() >= MAX_PRESERVED {
            Some("durable handles without a client")
        } else if of_user >= MAX_PRESERVED_OF_USER {
            Some("durable handles of a user without a client")
        } else {
            None
        }
    }
}

/// The user who is charged; `None` if only one user can log on, who may use everything.
fn user(open: &Open) -> Option<&Arc<str>> {
    open.held().holder().user.as_ref()
}

fn file(open: &Open) -> (usize, NodeId) {
    key(open.node, open.vfs.opens())
}

fn key(node: NodeId, opens: &Arc<Opens>) -> (usize, NodeId) {
    (Arc::as_ptr(opens).addr(), node)
}

fn create_guid(open: &Open) -> Option<Guid> {
    open.durable.get()?.create_guid
}

impl Preserved {
    /// Takes an open whose session has ended; returns it if there is no room.
    pub(super) fn keep(self: &Arc<Preserved>, open: OwnedOpen, timeout: Duration) -> Result<(), OwnedOpen> {
        let (id, until) = (open.persistent, rt::now() + timeout);
        {
            let mut kept = lock(&self.0);
            if let Some(what) = kept.is_full(&open) {
                static FULL: LogLimit = LogLimit::new();
                if let Some(left_out) = FULL.pass(rt::now()) {
                    tracing::warn!("limit reached: {what}{left_out}");
                }
                return Err(open);
            }
            kept.insert(open.hand_over(), until);
        }
        let home = Arc::downgrade(self);
        rt::spawn(scavenge(home, id, until)).detach();
        Ok(())
    }

    /// Closes the waiting handles for whose user, by name and id, and files `stays` is false.
    pub(super) fn close_unless(&self, stays: impl Fn(&str, Option<UserId>, &Vfs) -> bool) {
        let mut kept = lock(&self.0);
        let open_stays =
            |open: &Open| open.durable.get().is_none_or(|of| stays(&of.user, of.user_id, &open.vfs));
        let lost = kept.handles.values().filter(|kept| !open_stays(&kept.open));
        let lost: Vec<_> = lost.map(|kept| kept.open.persistent).collect();
        let lost: Vec<_> = lost.into_iter().filter_map(|id| kept.remove(id)).collect();
        drop(kept);
        lost.into_iter().for_each(OwnedOpen::close_detached);
    }

    /// The waiting persistent handle that this CREATE made (3.3.5.9, 3.3.5.9.12).
    pub(super) fn made_by(&self, create_guid: Guid) -> Option<Arc<Open>> {
        let kept = lock(&self.0);
        let (_, id) = kept.made.range((create_guid, 0)..=(create_guid, u64::MAX)).next()?;
        Some(kept.handles.get(id)?.open.clone())
    }

    /// Whether a persistent handle of this file waits for its client, which makes the file unavailable to others.
    pub(super) fn reserves(&self, node: NodeId, opens: &Arc<Opens>) -> bool {
        lock(&self.0).files.get(&key(node, opens)).is_some_and(|of_file| of_file.persistent > 0)
    }

    /// Takes this handle out, if it is waiting.
    pub(super) fn remove(&self, open: &Arc<Open>) -> Option<OwnedOpen> {
        let mut kept = lock(&self.0);
        kept.handles.get(&open.persistent).filter(|known| Arc::ptr_eq(&known.open, open))?;
        kept.remove(open.persistent)
    }

    /// The waiting persistent handles of this file that `which` selects.
    pub(super) fn select(
        &self,
        (node, opens): (NodeId, &Arc<Opens>),
        which: impl Fn(&Open) -> bool,
    ) -> Vec<Arc<Open>> {
        let kept = lock(&self.0);
        kept.of_file(node, opens).filter(|open| open.is_persistent() && which(open)).cloned().collect()
    }

    /// Looks at the open of a waiting handle.
    pub(super) fn peek<T>(&self, claim: &Claim, see: impl FnOnce(&Open) -> T) -> Result<T, NtStatus> {
        let kept = lock(&self.0);
        let open = &kept.handles.get(&claim.file.persistent).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?.open;
        claim.check(open)?;
        Ok(see(open))
    }

    /// Takes a handle out for its client, which then has the only reference.
    pub(super) fn take(&self, claim: &Claim) -> Result<OwnedOpen, NtStatus> {
        let mut kept = lock(&self.0);
        let open = &kept.handles.get(&claim.file.persistent).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?.open;
        claim.check(open)?;
        kept.remove(claim.file.persistent).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)
    }

    /// The number of waiting handles of this file that depend on their caching rights.
    pub(super) fn count_cached(
        &self,
        (node, opens): (NodeId, &Arc<Opens>),
        of: impl Fn(&Open) -> bool,
    ) -> usize {
        lock(&self.0).of_file(node, opens).filter(|open| !stays(open) && of(open)).count()
    }

    /// The caching rights of these opens, here or in one of the sessions, were revoked because their client did not
    /// answer; updates their records.
    pub(super) fn revoked(
        &self,
        sessions: &[Arc<Session>],
        file: (NodeId, &Arc<Opens>),
        which: impl Fn(&Open) -> bool,
    ) {
        let mut opens = self.select(file, &which);
        sessions.iter().for_each(|session| opens.extend(session.opens.select(&which)));
        if !opens.is_empty() {
            rt::spawn(async move {
                for open in opens {
                    // A failure is logged. The record then overstates the caching rights, which a reconnecting client
                    // is told.
                    let _ = open.save_record().await;
                }
            })
            .detach();
        }
    }

    /// Closes the waiting handles of this file whose cache others need, because their client cannot be notified.
    /// Returns whether there were any.
    pub(super) fn forfeit(&self, (node, opens): (NodeId, &Arc<Opens>), of: impl Fn(&Open) -> bool) -> bool {
        let mut kept = lock(&self.0);
        // 3.3.4.7: persistent handles wait in any case.
        let mut any = kept.of_file(node, opens).any(|open| open.is_persistent() && of(open));
        let lost = kept.of_file(node, opens).filter(|open| !stays(open) && of(open));
        let lost: Vec<_> = lost.map(|open| open.persistent).collect();
        let lost: Vec<_> = lost.into_iter().filter_map(|id| kept.remove(id)).collect();
        drop(kept);
        any |= !lost.is_empty();
        lost.into_iter().for_each(OwnedOpen::close_detached);
        any
    }
}

/// Whether a handle waits even without caching rights: a resilient one only loses them.
fn stays(open: &Open) -> bool {
    open.is_persistent() || open.resilient().is_some()
}

/// Closes a handle whose client did not reconnect in time. If it did and was lost again, a later scavenger closes it.
async fn scavenge(home: Weak<Preserved>, id: u64, until: Time) {
    rt::sleep_until(until).await;
    let Some(home) = home.upgrade() else { return };
    let late = {
        let mut kept = lock(&home.0);
        match kept.handles.get(&id) {
            Some(known) if known.until <= rt::now() => kept.remove(id),
            _ => None,
        }
    };
    if let Some(late) = late {
        tracing::debug!("a durable handle was closed: its client did not come back in time");
        late.close().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of its content is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
