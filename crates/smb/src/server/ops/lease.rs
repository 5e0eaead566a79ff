//! Leases: caching rights that all opens of a client with the same key share.
//!
//! Spec: [MS-SMB2] 3.3.1.12, 3.3.1.13 (lease table, lease), 3.3.5.9.8, 3.3.5.9.11 (requests), 3.3.4.7 (breaks). Owns
//! the map from clients' keys to files, the epochs, and the sessions over which clients are notified of breaks. The
//! store owns the state of a lease. A lease lives as long as one of its opens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft_store::NodeId;
use weft_store::opens::{
    AckFailed, Caching as Rights, Form, Holder, Key, Open as Claim, Opens, Recall, Waiters,
};
use weft_wire::smb2::create_context::{self, LeaseFlags, LeaseState, LeaseV2};
use weft_wire::smb2::oplock_break::{ACK_REQUIRED, Notification};
use weft_wire::smb2::{Guid, NtStatus};

use super::caching::{Caching, insist, message};
use super::caching_rights::{rights_of, state_of};
use super::durable::Preserved;
use super::opens::Open;
use crate::server::session::Session;

/// Leases of all clients together.
const MAX_LEASES: usize = 1 << 20;
/// Sessions of one client that may carry the breaks of its leases.
const MAX_SESSIONS: usize = 64;

/// A lease.
pub(crate) struct Lease {
    client: Guid,
    key: Guid,
    node: NodeId,
    opens: Arc<Opens>,
    /// The store's key for it.
    store_key: Key,
    table: Weak<Leases>,
    preserved: Weak<Preserved>,
    state: Mutex<State>,
}

struct State {
    /// Version 2: the epoch counts changes of the lease.
    v2: Option<LeaseV2>,
    /// Its client named a parent lease, whatever its key.
    has_parent: bool,
    /// One of its opens deletes the file on close: the key may then be used for another file.
    delete_on_close: bool,
}

impl Lease {
    /// The store's key for it.
    pub(super) fn store_key(&self) -> Key {
        self.store_key
    }

    /// LeaseKey.
    pub(super) fn key(&self) -> Guid {
        self.key
    }

    /// Whether it was requested as version 2.
    pub(super) fn is_v2(&self) -> bool {
        lock(&self.state).v2.is_some()
    }

    /// Marks that one of its opens was made with DELETE_ON_CLOSE.
    pub(super) fn set_delete_on_close(&self) {
        lock(&self.state).delete_on_close = true;
    }

    /// Requests rights, more or the same (3.3.5.9.8); `claim` is one of its opens.
    pub(super) fn request(self: &Arc<Lease>, claim: &Claim, wanted: LeaseState) -> create_context::Lease {
        let state = &mut lock(&self.state);
        let (before, _) = self.opens.caching(self.node, self.store_key);
        let (now, breaking) = claim.request(Form::Lease, rights_of(wanted), self.clone());
        if let Some(v2) = state.v2.as_mut().filter(|_| now != before) {
            v2.epoch = v2.epoch.wrapping_add(1);
        }
        self.response(state, now, breaking)
    }

    /// Its current state, for a CREATE that changes nothing.
    pub(super) fn describe(&self) -> create_context::Lease {
        let (now, to) = self.opens.caching(self.node, self.store_key);
        self.response(&lock(&self.state), now, to.is_some())
    }

    fn response(&self, state: &State, rights: Rights, breaking: bool) -> create_context::Lease {
        let mut flags = LeaseFlags::NONE;
        if breaking {
            flags |= LeaseFlags::BREAK_IN_PROGRESS;
        }
        if state.has_parent {
            flags |= LeaseFlags::PARENT_LEASE_KEY_SET;
        }
        create_context::Lease { key: self.key, state: state_of(rights), flags, v2: state.v2 }
    }

    /// Whether all its opens wait for their client, which is possible only with handle caching (3.3.4.7).
    fn is_without_connection(&self) -> bool {
        let Some(preserved) = self.preserved.upgrade() else { return false };
        let waiting = preserved.count_cached((self.node, &self.opens), |open| self.is_of(open));
        waiting > 0 && waiting == self.opens.count_of(self.node, self.store_key)
    }

    fn is_of(&self, open: &Open) -> bool {
        matches!(&open.caching, Caching::Lease(lease) if std::ptr::eq(&**lease, self))
    }

    /// Acknowledges a break (3.3.5.22.2).
    pub(super) fn acknowledge(&self, keep: LeaseState) -> Result<Waiters, NtStatus> {
        let rights = rights_of(keep);
        if state_of(rights) != keep {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        self.opens.give_way(self.node, self.store_key, rights).map_err(|failed| match failed {
            AckFailed::NotRecalled => NtStatus::UNSUCCESSFUL,
            AckFailed::TooMuch(_) => NtStatus::REQUEST_NOT_ACCEPTED,
        })
    }
}

impl Holder for Lease {
    /// Sends a break (3.3.4.7).
    fn recall(&self, recall: Recall) -> bool {
        // A further step of the same break does not change the epoch, as in Windows.
        let counts = !recall.goes_on;
        let epoch = lock(&self.state).v2.as_mut().map_or(0, |v2| {
            v2.epoch = v2.epoch.wrapping_add(counts.into());
            v2.epoch
        });
        let notification = Notification::Lease {
            epoch,
            flags: if recall.acknowledge { ACK_REQUIRED } else { 0 },
            key: self.key,
            current: state_of(recall.from),
            new: state_of(recall.to),
        };
        let message = message(0, &notification);
        let forfeits = || {
            self.preserved
                .upgrade()
                .is_some_and(|kept| kept.forfeit((self.node, &self.opens), |open| self.is_of(open)))
        };
        // Its client may have another connection, and not know a handle whose CREATE was never answered. If it is
        // reconnecting the handle at this moment, the handle is in a session and the client is notified.
        if !recall.to.handle && self.is_without_connection() && forfeits() {
            return true;
        }
        let Some(table) = self.table.upgrade() else { return false };
        let sessions = table.sessions(self.client);
        let told = sessions.iter().find(|session| session.notice(message.clone()).send());
        if let Some(session) = told {
            insist(session, message, &self.opens, recall);
            return true;
        }
        // Without a client to notify, its durable handles are forfeited in favour of the other opener.
        forfeits()
    }

    fn revoked(&self, node: NodeId, _: Key) {
        tracing::debug!("a lease break was not acknowledged in time: {node:?}");
        if let (Some(preserved), Some(table)) = (self.preserved.upgrade(), self.table.upgrade()) {
            preserved.revoked(&table.sessions(self.client), (node, &self.opens), |open| self.is_of(open));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        let mine = |known: &Weak<Lease>| std::ptr::eq(known.as_ptr(), self);
        {
            let leases = &mut *lock(&table.by_key);
            if let Entry::Occupied(mut known) = leases.by_key.entry(self.key)
                && let Some(at) = known.get().iter().position(|(_, lease)| mine(lease))
            {
                known.get_mut().swap_remove(at);
                leases.count = leases.count.saturating_sub(1);
                if known.get().is_empty() {
                    known.remove();
                }
            }
        }
        table.forget_sessions(self.client);
    }
}

/// GlobalLeaseTableList: the leases of all clients, by ClientGuid and LeaseKey.
#[derive(Default)]
pub(crate) struct Leases {
    by_key: Mutex<ByKey>,
    /// The sessions over which a client can be notified, first one first: any session serves any lease (3.3.4.7).
    sessions: Mutex<HashMap<Guid, Vec<Weak<Session>>>>,
}

/// Leases by LeaseKey, each with its client. Clients choose random keys, so a key usually has one lease.
#[derive(Default)]
struct ByKey {
    by_key: HashMap<Guid, Vec<(Guid, Weak<Lease>)>>,
    /// Number of leases, at most [`MAX_LEASES`].
    count: usize,
}

impl ByKey {
    fn find(&self, client: Guid, key: Guid) -> Option<Arc<Lease>> {
        let known = self.by_key.get(&key)?.iter();
        known.filter(|(owner, _)| *owner == client).find_map(|(_, lease)| lease.upgrade())
    }
}

impl Leases {
    /// The lease of a client with this key.
    pub(super) fn find(&self, client: Guid, key: Guid) -> Option<Arc<Lease>> {
        lock(&self.by_key).find(client, key)
    }

    /// The lease of a directory that a client names as ParentLeaseKey: its own, or else any client's. Windows passes
    /// the key to the object store without the ClientGuid ([MS-SMB2] 3.3.1.4, note 211; 3.3.5.9.11).
    pub(super) fn find_parent(&self, client: Guid, key: Guid, opens: &Arc<Opens>) -> Option<Arc<Lease>> {
        let leases = lock(&self.by_key);
        let known: Vec<_> =
            leases.by_key.get(&key)?.iter().filter_map(|(_, lease)| lease.upgrade()).collect();
        drop(leases);
        let here = || known.iter().filter(|lease| Arc::ptr_eq(&lease.opens, opens));
        here().find(|lease| lease.client == client).or_else(|| here().next()).cloned()
    }

    /// Breaks of the client's leases may be sent over this session from now on.
    pub(super) fn connect(&self, session: &Arc<Session>) {
        let mut clients = lock(&self.sessions);
        let sessions = clients.entry(session.client_guid).or_default();
        let weak = Arc::downgrade(session);
        if sessions.iter().any(|known| known.ptr_eq(&weak)) {
            return;
        }
        sessions.retain(|known| known.strong_count() > 0);
        if sessions.len() < MAX_SESSIONS {
            sessions.push(weak);
        }
    }

    fn sessions(&self, client: Guid) -> Vec<Arc<Session>> {
        let clients = lock(&self.sessions);
        clients.get(&client).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    fn forget_sessions(&self, client: Guid) {
        let mut clients = lock(&self.sessions);
        if clients.get(&client).is_some_and(|known| known.iter().all(|one| one.strong_count() == 0)) {
            clients.remove(&client);
        }
    }

    /// Refuses a key that belongs to another file, if the file of this request does not exist yet.
    pub(super) fn check_new(&self, client: Guid, key: Guid) -> Result<(), NtStatus> {
        match self.find(client, key) {
            Some(lease) if !lock(&lease.state).delete_on_close => Err(NtStatus::INVALID_PARAMETER),
            _ => Ok(()),
        }
    }

    /// The lease with which a file is opened; created if missing. A key belongs to one file (3.3.5.9.8).
    pub(super) fn acquire(
        self: &Arc<Leases>,
        client: Guid,
        wanted: &create_context::Lease,
        (opens, node): (&Arc<Opens>, NodeId),
        preserved: &Arc<Preserved>,
    ) -> Result<Arc<Lease>, NtStatus> {
        // Dropped after the lock: this may be the last reference, whose drop takes the lock.
        let known;
        let mut leases = lock(&self.by_key);
        known = leases.find(client, wanted.key);
        if let Some(lease) = &known {
            if lease.node == node && Arc::ptr_eq(&lease.opens, opens) {
                return Ok(lease.clone());
            }
            if !lock(&lease.state).delete_on_close {
                return Err(NtStatus::INVALID_PARAMETER);
            }
        }
        if leases.count >= MAX_LEASES {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let has_parent = wanted.v2.is_some() && wanted.flags.contains(LeaseFlags::PARENT_LEASE_KEY_SET);
        let parent = |v2: LeaseV2| match has_parent {
            true => v2,
            false => LeaseV2 { parent_key: Guid::default(), ..v2 },
        };
        let state = State { v2: wanted.v2.map(parent), has_parent, delete_on_close: false };
        let lease = Arc::new(Lease {
            client,
            key: wanted.key,
            node,
            opens: opens.clone(),
            store_key: opens.key(),
            table: Arc::downgrade(self),
            preserved: Arc::downgrade(preserved),
            state: Mutex::new(state),
        });
        leases.by_key.entry(wanted.key).or_default().push((client, Arc::downgrade(&lease)));
        leases.count = leases.count.saturating_add(1);
        Ok(lease)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of these tables is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
