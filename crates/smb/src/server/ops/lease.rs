//! Leases: caching rights that all opens of a client with the same key share.
//!
//! Spec: [MS-SMB2] 3.3.1.12, 3.3.1.13 (lease table, lease), 3.3.5.9.8, 3.3.5.9.11 (requests), 3.3.4.7 (breaks). Owns
//! the map from clients' keys to files, the epochs, and the sessions over which clients are notified of breaks. The
//! store owns the state of a lease. A lease lives as long as one of its opens.
//!
//! Neither a ClientGuid nor a LeaseKey is a secret: both go over the network in the clear unless the session is encrypted.
//! So a lease also belongs to its users. The first one opens it; others join it by opening the same file with the same
//! key from the same address, as the users of a terminal server do. Breaks go to the sessions of these users only, and
//! only they acknowledge them. The same ClientGuid and key from elsewhere are another lease.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft_machine::Source;
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
/// Sessions of a user of one client that may carry the breaks of its leases.
const MAX_SESSIONS: usize = 64;

/// Whoever names a lease.
#[derive(Clone, Copy)]
pub(super) struct Claimant<'a> {
    /// ClientGuid.
    pub(super) client: Guid,
    pub(super) user: &'a Arc<str>,
    /// The address; none if what is restored after a restart was recorded without one.
    pub(super) source: Option<Source>,
}

/// The users of a lease.
struct Members(Mutex<Membership>);

struct Membership {
    /// In the order in which they joined; at least one.
    users: Vec<Arc<str>>,
    /// The address of the first one, once known.
    source: Option<Source>,
}

impl Members {
    fn new(first: Claimant<'_>) -> Members {
        Members(Mutex::new(Membership { users: vec![first.user.clone()], source: first.source }))
    }

    fn has(&self, user: &str) -> bool {
        lock(&self.0).users.iter().any(|known| **known == *user)
    }

    /// Whether somebody uses the lease, or may join it.
    fn admits(&self, who: Claimant<'_>) -> bool {
        let members = lock(&self.0);
        // After a restart the address may be unknown, which is not the same address.
        let is_at_same_place = members.source.is_some() && members.source == who.source;
        is_at_same_place || members.users.iter().any(|known| *known == *who.user)
    }

    fn add(&self, who: Claimant<'_>) {
        let members = &mut *lock(&self.0);
        if !members.users.contains(who.user) {
            members.users.push(who.user.clone());
        }
        members.source = members.source.or(who.source);
    }

    fn users(&self) -> Vec<Arc<str>> {
        lock(&self.0).users.clone()
    }
}

/// A lease.
pub(crate) struct Lease {
    client: Guid,
    key: Guid,
    members: Arc<Members>,
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

    /// The address whose users share it, if known.
    pub(super) fn source(&self) -> Option<Source> {
        lock(&self.members.0).source
    }

    /// Records where a member is.
    pub(super) fn join(&self, who: Claimant<'_>) {
        self.members.add(who);
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
        let sessions = table.sessions(self);
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
            preserved.revoked(&table.sessions(self), (node, &self.opens), |open| self.is_of(open));
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
                && let Some(at) = known.get().iter().position(|named| mine(&named.lease))
            {
                known.get_mut().swap_remove(at);
                leases.count = leases.count.saturating_sub(1);
                if known.get().is_empty() {
                    known.remove();
                }
            }
        }
        table.forget_sessions(self);
    }
}

/// GlobalLeaseTableList: the leases of all clients, by ClientGuid and LeaseKey.
#[derive(Default)]
pub(crate) struct Leases {
    by_key: Mutex<ByKey>,
    /// The sessions over which a user of a client can be notified, first one first: any session serves any of the user's
    /// leases (3.3.4.7).
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    of: HashMap<UserOfClient, Vec<Weak<Session>>>,
    /// How many users of clients were left when those without a session were last removed.
    swept: usize,
}

/// As long as there are fewer users of clients, nobody looks for those without a session.
const MIN_SWEPT: usize = 64;

/// ClientGuid and user.
type UserOfClient = (Guid, Arc<str>);

/// Leases by LeaseKey. Clients choose random keys, so a key usually has one lease.
#[derive(Default)]
struct ByKey {
    by_key: HashMap<Guid, Vec<Named>>,
    /// Number of leases, at most [`MAX_LEASES`].
    count: usize,
}

/// A lease, and whose it is: known without a reference to it, whose drop would take the lock.
struct Named {
    client: Guid,
    members: Arc<Members>,
    lease: Weak<Lease>,
}

impl ByKey {
    fn find(&self, who: Claimant<'_>, key: Guid) -> Option<Arc<Lease>> {
        let known = self.by_key.get(&key)?.iter().filter(|named| named.client == who.client);
        // The user's own lease, before one that the user may join.
        let own = || known.clone().filter(|named| named.members.has(who.user));
        let any = || known.clone().filter(|named| named.members.admits(who));
        own().chain(any()).find_map(|named| named.lease.upgrade())
    }
}

impl Leases {
    /// The lease with this key, if the claimant is one of its users.
    pub(super) fn find(&self, who: Claimant<'_>, key: Guid) -> Option<Arc<Lease>> {
        let found = lock(&self.by_key).find(who, key);
        found.filter(|lease| lease.members.has(who.user))
    }

    /// The lease of a directory that a client names as ParentLeaseKey: its own, or else any client's. Windows passes
    /// the key to the object store without the ClientGuid ([MS-SMB2] 3.3.1.4, note 211; 3.3.5.9.11).
    pub(super) fn find_parent(&self, client: Guid, key: Guid, opens: &Arc<Opens>) -> Option<Arc<Lease>> {
        let leases = lock(&self.by_key);
        let known: Vec<_> =
            leases.by_key.get(&key)?.iter().filter_map(|named| named.lease.upgrade()).collect();
        drop(leases);
        let here = || known.iter().filter(|lease| Arc::ptr_eq(&lease.opens, opens));
        here().find(|lease| lease.client == client).or_else(|| here().next()).cloned()
    }

    /// Breaks of the leases of the session's user may be sent over this session from now on.
    pub(super) fn connect(&self, session: &Arc<Session>) {
        let clients = &mut *lock(&self.sessions);
        // Clients that take a new identifier each time never come back to their entry.
        if clients.of.len() >= clients.swept.saturating_mul(2).max(MIN_SWEPT) {
            clients.of.retain(|_, sessions| sessions.iter().any(|known| known.strong_count() > 0));
            clients.swept = clients.of.len();
        }
        let sessions = clients.of.entry((session.client_guid, session.user.clone())).or_default();
        let weak = Arc::downgrade(session);
        if sessions.iter().any(|known| known.ptr_eq(&weak)) {
            return;
        }
        sessions.retain(|known| known.strong_count() > 0);
        if sessions.len() < MAX_SESSIONS {
            sessions.push(weak);
        }
    }

    /// The sessions of a lease's users.
    fn sessions(&self, lease: &Lease) -> Vec<Arc<Session>> {
        let users = lease.members.users().into_iter();
        let clients = lock(&self.sessions);
        let known = users.filter_map(|user| clients.of.get(&(lease.client, user)));
        known.flatten().filter_map(Weak::upgrade).collect()
    }

    fn forget_sessions(&self, lease: &Lease) {
        let mut clients = lock(&self.sessions);
        for user in lease.members.users() {
            let name = (lease.client, user);
            if clients.of.get(&name).is_some_and(|known| known.iter().all(|one| one.strong_count() == 0)) {
                clients.of.remove(&name);
            }
        }
    }

    /// Refuses a key that belongs to another file, if the file of this request does not exist yet.
    pub(super) fn check_new(&self, who: Claimant<'_>, key: Guid) -> Result<(), NtStatus> {
        let found = lock(&self.by_key).find(who, key);
        match found {
            Some(lease) if !lock(&lease.state).delete_on_close => Err(NtStatus::INVALID_PARAMETER),
            _ => Ok(()),
        }
    }

    /// The lease with which a file is opened; created if missing. A key belongs to one file (3.3.5.9.8).
    pub(super) fn acquire(
        self: &Arc<Leases>,
        who: Claimant<'_>,
        wanted: &create_context::Lease,
        (opens, node): (&Arc<Opens>, NodeId),
        preserved: &Arc<Preserved>,
    ) -> Result<Arc<Lease>, NtStatus> {
        // Dropped after the lock: this may be the last reference, whose drop takes the lock.
        let known;
        let mut leases = lock(&self.by_key);
        known = leases.find(who, wanted.key);
        if let Some(lease) = &known {
            if lease.node == node && Arc::ptr_eq(&lease.opens, opens) {
                lease.join(who);
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
        let (client, members) = (who.client, Arc::new(Members::new(who)));
        let lease = Arc::new(Lease {
            client,
            key: wanted.key,
            members: members.clone(),
            node,
            opens: opens.clone(),
            store_key: opens.key(),
            table: Arc::downgrade(self),
            preserved: Arc::downgrade(preserved),
            state: Mutex::new(state),
        });
        let named = Named { client, members, lease: Arc::downgrade(&lease) };
        leases.by_key.entry(wanted.key).or_default().push(named);
        leases.count = leases.count.saturating_add(1);
        Ok(lease)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of these tables is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_whose_addresses_are_unknown_are_at_no_same_place() {
        let (alice, mallory): (Arc<str>, Arc<str>) = ("alice".into(), "mallory".into());
        let claimant = |user| Claimant { client: Guid::default(), user, source: None };
        let members = Members::new(claimant(&alice));
        assert!(members.admits(claimant(&alice)), "her own");
        assert!(!members.admits(claimant(&mallory)));
    }
}
