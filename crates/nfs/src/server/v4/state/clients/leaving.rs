//! The removal of clients: the only way out of the table of clients.
//!
//! See RFC 8881 8.4.2.4, 8.4.3, 18.35.4 and 18.50, and RFC 7530 9.6.3. It decides which clients go when there are too
//! many. It does not close files: the caller receives what a client held, and may have to wait to close it.
//!
//! A client ends under the lock of what it holds: its lease ends first, then everything that it holds is taken.
//! Whatever a client acquires is added under the same lock, and only while the lease lasts ([`Client::living`]). So a
//! client that has ended acquires nothing, and leaves nothing behind: no open, no session, no journal entry. Whether
//! a client holds nothing is also checked under that lock.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use weft_machine::budget::{Full, Holder};
use weft_machine::{Charge, Source, Time};
use weft_store::ShareKey;
use weft_wire::nfs4::Status;

use super::super::budget::CLIENT_BYTES;
use super::super::{State, States};
use super::{Client, Mine, Name, Pending, Record, Table};
use crate::server::file_id::FileId;

/// What was taken from clients; the recipient closes it.
#[derive(Default)]
#[must_use = "files stay open until they are closed"]
pub struct Taken(pub Vec<Arc<State>>);

/// What ended clients held, collected while the table is locked.
#[derive(Default)]
#[must_use = "close it and remove it from the journal"]
pub(super) struct Ended {
    states: Vec<Arc<State>>,
    lost: Vec<Record>,
}

impl Ended {
    fn add(&mut self, other: Ended) {
        self.states.extend(other.states);
        self.lost.extend(other.lost);
    }
}

impl States {
    /// Ends a client if `so` holds for its state: from then on it acquires nothing, and everything that it holds is
    /// taken. Its record may stay, so that the client can be told what happened.
    pub(super) fn end_if(&self, client: &Client, so: impl FnOnce(&Mine) -> bool) -> Option<Ended> {
        let (states, sessions, back, remembered) = {
            let mut mine = client.mine();
            if !so(&mine) {
                return None;
            }
            client.lease.end();
            mine.owners.clear();
            mine.lock_owners.clear();
            mine.delegated.clear();
            mine.copies.drain().for_each(|(_, copy)| copy.cancel());
            let (states, sessions) = (std::mem::take(&mut mine.states), std::mem::take(&mut mine.sessions));
            (states, sessions, mine.back.take(), std::mem::take(&mut mine.remembered))
        };
        if let Some(back) = back {
            back.end();
        }
        sessions.iter().for_each(|session| self.leave_session(session));
        let lost = remembered.then(|| client.record()).into_iter().collect();
        Some(Ended { states: states.into_values().collect(), lost })
    }

    /// Forgets a client, whatever it holds.
    fn forget(&self, table: &mut Table, client: &Client) -> Ended {
        table.remove(client);
        self.end_if(client, |_| true).unwrap_or_default()
    }

    /// Forgets a client and its sessions if it holds no state; returns whether it did.
    pub(super) fn forget_empty(&self, table: &mut Table, client: &Client) -> bool {
        let Some(ended) = self.end_if(client, |mine| mine.states.is_empty()) else { return false };
        table.remove(client);
        table.forgotten.extend(ended.lost);
        true
    }

    /// Forgets the unconfirmed client of this name.
    pub(super) fn forget_pending(&self, table: &mut Table, name: &Name) {
        if let Some(old) = table.pending_of(name) {
            self.forget_empty(table, &old);
        }
    }

    /// Confirms the unconfirmed client of this name; the client that it replaces ends.
    pub(super) fn promote(&self, table: &mut Table, name: &Name) -> Ended {
        let Some(named) = table.names.get_mut(name) else { return Ended::default() };
        let Some(Pending { client, confirm, .. }) = named.pending.take() else { return Ended::default() };
        let replaced = named.confirmed.replace(client.clone());
        table.pending.remove(&client.id);
        client.mine().confirmed_with = Some(confirm);
        table.confirmed.insert(client.id, client);
        replaced.map(|old| self.forget(table, &old)).unwrap_or_default()
    }

    /// Returns what is to be closed. Others can have it only after that, and by then the journal excludes its
    /// reclaim. Called without a lock, because it takes as long as the disk does.
    pub(super) fn taken(&self, table: MutexGuard<'_, Table>, ended: Ended) -> Taken {
        drop(table);
        ended.states.iter().for_each(|state| self.leave(state));
        self.forget_durably(&ended.lost);
        Taken(ended.states)
    }

    /// These clients have nothing to reclaim after a restart.
    fn forget_durably(&self, clients: &[Record]) {
        let Some(durable) = &self.durable else { return };
        if !clients.is_empty()
            && let Err(e) = durable.forget(clients)
        {
            tracing::error!("a client without state may try to reclaim some after a restart: {e}");
        }
    }

    /// Takes everything from lapsed clients that hold something on this node, because another client wants it (RFC
    /// 8881 8.4.2.4, courtesy).
    pub fn take_lapsed(&self, file: FileId, now: Time) -> Taken {
        let table = self.table();
        let holds = |mine: &Mine| mine.states.values().any(|state| state.file == file);
        let mut ended = Ended::default();
        for client in table.confirmed.values().filter(|client| client.lease.lapsed(now, self.limits.lease)) {
            ended.add(self.end_if(client, holds).unwrap_or_default());
        }
        self.taken(table, ended)
    }

    /// Takes what clients hold in these shares, which are no longer served. The clients stay.
    pub fn take_from(&self, gone: &[ShareKey]) -> Taken {
        let clients: Vec<_> = self.table().confirmed.values().cloned().collect();
        let mut taken = Vec::new();
        for client in &clients {
            let mut mine = client.mine();
            mine.keys.retain(|share, _| !gone.contains(share));
            mine.lock_owners.values().for_each(|owner| owner.forget(gone));
            let of_gone = mine.states.values().filter(|state| gone.contains(&state.file.share));
            taken.extend(of_gone.map(|state| (client, state.clone())));
        }
        for (client, state) in &taken {
            // It counts a delegation as returned.
            self.drop_delegation(state);
            self.leave(state);
            client.mine().states.remove(&state.other);
        }
        Taken(taken.into_iter().map(|(_, state)| state).collect())
    }

    /// Takes the state of clients that have been silent for so long that they are not expected back, and forgets
    /// records that were never confirmed. Call this periodically.
    pub fn sweep(&self, now: Time) -> Taken {
        let mut table = self.table();
        let longest = self.limits.lease.saturating_mul(COURTESY);
        let gone = table.confirmed.values().filter(|client| client.lease.lapsed(now, longest));
        let gone: Vec<_> = gone.cloned().collect();
        let mut ended = Ended::default();
        for client in &gone {
            ended.add(self.forget(&mut table, client));
        }
        self.forget_unconfirmed(&mut table, now);
        ended.lost.append(&mut table.forgotten);
        ended.lost.extend(self.grace.missed(now).into_iter().map(|who| (who, None)));
        self.taken(table, ended)
    }

    fn forget_unconfirmed(&self, table: &mut Table, now: Time) {
        let pending = table.names.values().filter_map(|named| named.pending.as_ref());
        let old = pending.filter(|pending| now.since(pending.made) > self.limits.lease);
        let old: Vec<_> = old.map(|pending| pending.client.clone()).collect();
        self.forget_those(table, &old);
    }

    /// Forgets those of them that hold nothing.
    fn forget_those(&self, table: &mut Table, clients: &[Arc<Client>]) {
        for client in clients {
            self.forget_empty(table, client);
        }
    }

    /// Makes room for one more client. If there is none, clients that were not confirmed in time and lapsed clients
    /// that hold nothing are removed; then some of the address that has most clients, unless that is the caller's.
    pub(super) fn make_room(&self, table: &mut Table, source: Source, now: Time) -> Result<(), Status> {
        if table.len() < self.limits.clients {
            return Ok(());
        }
        self.forget_idle(table, now);
        if table.len() < self.limits.clients {
            return Ok(());
        }
        self.forget_most(table, source);
        // The client repeats the request by itself.
        if table.len() < self.limits.clients { Ok(()) } else { Err(Status::DELAY) }
    }

    /// Reserves memory for one more client with names and addresses of this length.
    pub(super) fn client_room(
        &self,
        table: &mut Table,
        source: Source,
        text_bytes: usize,
        now: Time,
    ) -> Result<Charge, Status> {
        let charge = || self.budget.charge(source, CLIENT_BYTES.saturating_add(text_bytes));
        charge().or_else(|Full| {
            self.relieve(table, now);
            // Both minor versions have this status, and the client repeats the request by itself.
            charge().map_err(|Full| Status::DELAY)
        })
    }

    /// Forgets clients that were never confirmed, and sessions and records of silent clients that hold nothing.
    fn forget_idle(&self, table: &mut Table, now: Time) {
        self.forget_unconfirmed(table, now);
        let lapsed = |c: &&Arc<Client>| c.lease.lapsed(now, self.limits.lease) && !c.holds_anything();
        let idle: Vec<_> = table.confirmed.values().filter(lapsed).cloned().collect();
        self.forget_those(table, &idle);
    }

    /// Memory is scarce: also removes idle clients of addresses that exceed their share.
    pub(super) fn relieve(&self, table: &mut Table, now: Time) {
        self.forget_idle(table, now);
        let idle_after = self.limits.lease.checked_div(IDLE_PART).unwrap_or(self.limits.lease);
        let idle = |client: &&Arc<Client>| {
            client.lease.lapsed(now, idle_after) && !client.holds_anything() && client.charge.is_overdrawn()
        };
        let mut victims: Vec<_> = table.confirmed.values().filter(idle).cloned().collect();
        victims.sort_by_key(|client| client.lease.renewed());
        victims.truncate(FORGOTTEN_AT_ONCE);
        self.forget_those(table, &victims);
    }

    /// Forgets clients of the address that has most of them, if `source` has fewer: first unconfirmed ones, then
    /// those that hold nothing, the longest silent first. They can register again.
    fn forget_most(&self, table: &mut Table, source: Source) {
        let pending = table.names.values().filter_map(|named| named.pending.as_ref());
        let pending: Vec<_> = pending.map(|pending| pending.client.clone()).collect();
        let mut counts: HashMap<&Holder, usize> = HashMap::new();
        for client in table.confirmed.values().chain(&pending) {
            let count = counts.entry(client.holder()).or_default();
            *count = count.saturating_add(1);
        }
        let own = counts.get(&Holder::from(source)).copied().unwrap_or(0);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let most = most.filter(|(_, count)| count.saturating_sub(own) > 1);
        let Some((most, _)) = most else { return };
        let most = most.clone();
        let of_most = |client: &&Arc<Client>| *client.holder() == most;
        let confirmed = |client: &Client| table.confirmed.contains_key(&client.id);
        let all = pending.iter().chain(table.confirmed.values());
        let mut victims: Vec<_> =
            all.filter(of_most).filter(|client| !client.holds_anything()).cloned().collect();
        victims.sort_by_key(|client| (confirmed(client), client.lease.renewed()));
        victims.truncate(FORGOTTEN_AT_ONCE);
        self.forget_those(table, &victims);
    }
}

/// A client is idle after being silent for this part of a lease.
const IDLE_PART: u32 = 4;
/// Clients removed at a time when there are too many, because finding them is expensive.
const FORGOTTEN_AT_ONCE: usize = 64;

/// After this many leases of silence, a client's state is taken even if no NFS client wants it, because clients of
/// other protocols (SMB) may.
const COURTESY: u32 = 5;
