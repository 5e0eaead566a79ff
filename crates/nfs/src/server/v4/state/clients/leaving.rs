//! How clients go: the one way out of the table of clients.
//!
//! Spec: RFC 8881 8.4.2.4, 8.4.3, 18.35.4, 18.50; RFC 7530 9.6.3. Owns: who has to go when there are too many. Does not: close
//! files; what a client held is handed to the caller, who may have to wait for that.
//!
//! A client ends under the lock of what it holds: its lease first, and with that all that it has is taken. Whatever comes to a
//! client is put there under the same lock, and only while the lease lasts ([`Client::living`]). So nothing comes to a client
//! that has gone, and nothing that came before stays behind: no open, no session, nothing on disk. One that goes because it
//! holds nothing is looked at under that lock, too.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use weft_machine::budget::{Full, Holder};
use weft_machine::{Charge, Source, Time};
use weft_wire::nfs4::Status;

use super::super::budget::CLIENT_BYTES;
use super::super::{State, States};
use super::{Client, Mine, Name, Pending, Record, Table};
use crate::server::file_id::FileId;

/// What was taken from clients; whoever gets it closes it.
#[derive(Default)]
#[must_use = "files stay open until they are closed"]
pub struct Taken(pub Vec<Arc<State>>);

/// What clients that have ended had, while the table is locked.
#[derive(Default)]
#[must_use = "it is to be closed, and forgotten on disk"]
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
    /// Ends a client if what it holds is so: from then on nothing comes to it, and all that it has is taken. Its record may stay,
    /// by which it is told what has become of it.
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

    /// Forgets a client, with its sessions, if it holds no state; whether that was so.
    pub(super) fn forget_empty(&self, table: &mut Table, client: &Client) -> bool {
        let Some(ended) = self.end_if(client, |mine| mine.states.is_empty()) else { return false };
        table.remove(client);
        table.forgotten.extend(ended.lost);
        true
    }

    /// Forgets the client of this name that is not confirmed.
    pub(super) fn forget_pending(&self, table: &mut Table, name: &Name) {
        if let Some(old) = table.pending_of(name) {
            self.forget_empty(table, &old);
        }
    }

    /// The pending client of this name becomes the confirmed one; the one that it replaces ends.
    pub(super) fn promote(&self, table: &mut Table, name: &Name) -> Ended {
        let Some(named) = table.names.get_mut(name) else { return Ended::default() };
        let Some(Pending { client, confirm, .. }) = named.pending.take() else { return Ended::default() };
        let replaced = named.confirmed.replace(client.clone());
        table.pending.remove(&client.id);
        client.mine().confirmed_with = Some(confirm);
        table.confirmed.insert(client.id, client);
        replaced.map(|old| self.forget(table, &old)).unwrap_or_default()
    }

    /// What is to be closed. Others get it only after that, and then it is on disk already that nobody takes it back. Not
    /// under a mutex: that takes as long as the disk does.
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

    /// Takes all that lapsed clients hold which hold something on this node: somebody wants it (RFC 8881 8.4.2.4, courtesy).
    pub fn take_lapsed(&self, file: FileId, now: Time) -> Taken {
        let table = self.table();
        let holds = |mine: &Mine| mine.states.values().any(|state| state.file == file);
        let mut ended = Ended::default();
        for client in table.confirmed.values().filter(|client| client.lease.lapsed(now, self.limits.lease)) {
            ended.add(self.end_if(client, holds).unwrap_or_default());
        }
        self.taken(table, ended)
    }

    /// Takes what clients hold that have been silent for so long that nobody expects them back, and forgets records
    /// that were never confirmed. To be called from time to time.
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

    /// Room for one more client. When there is none, those go that were never confirmed in time and those that lapsed and
    /// hold nothing; then some of the address that has the most of them, if that is not the one that asks.
    pub(super) fn make_room(&self, table: &mut Table, source: Source, now: Time) -> Result<(), Status> {
        if table.len() < self.limits.clients {
            return Ok(());
        }
        self.forget_idle(table, now);
        if table.len() < self.limits.clients {
            return Ok(());
        }
        self.forget_most(table, source);
        // The client asks again by itself.
        if table.len() < self.limits.clients { Ok(()) } else { Err(Status::DELAY) }
    }

    /// Memory for one more client, whose names and addresses are so long.
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
            // Both minor versions know it, and the client asks again by itself.
            charge().map_err(|Full| Status::DELAY)
        })
    }

    /// Forgets clients that were never confirmed, and sessions and records of those that are silent and hold nothing.
    fn forget_idle(&self, table: &mut Table, now: Time) {
        self.forget_unconfirmed(table, now);
        let lapsed = |c: &&Arc<Client>| c.lease.lapsed(now, self.limits.lease) && !c.holds_anything();
        let idle: Vec<_> = table.confirmed.values().filter(lapsed).cloned().collect();
        self.forget_those(table, &idle);
    }

    /// Memory is scarce: idle clients of addresses that hold more than they should go, too.
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

    /// Forgets clients of the address that has the most of them, if `source` has fewer: those that are not confirmed, then
    /// those that hold nothing, the longest silent first. They make themselves known again.
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

/// A client is idle when it was silent for this part of a lease.
const IDLE_PART: u32 = 4;
/// Clients that go when there are too many: not one by one, since looking for them is work.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Leases of silence after which a client's state goes although nobody wants it: others that do not know NFS (SMB) may.
const COURTESY: u32 = 5;
