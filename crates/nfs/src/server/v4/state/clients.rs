//! Clients: their names, their ids, and what they hold.
//!
//! SETCLIENTID and its confirmation create them for minor version 0, EXCHANGE_ID and CREATE_SESSION for later ones.
//! See RFC 7530 16.33.5 and 16.34.5, RFC 8881 18.35.4, 18.36.4 and 18.50. [`Table`] holds the client records;
//! `leaving` removes them.

mod leaving;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_machine::budget::{Full, Holder};
use weft_machine::{Charge, Time};
use weft_store::opens::{Key, LockOwner as LockId, Opens};
use weft_store::{CurrentShares, ShareKey};
use weft_wire::nfs4::{
    ChannelAttrs, ClientOwner, Confirm, CreateSession, CreateSessionOk, NetAddr, SessionId, Status, Verifier,
    exchange_flag,
};

use super::budget::{self, AWAITED_BYTES, OWNER_BYTES, STATE_BYTES, no_room};
use super::numbers::{Other, Purpose};
use super::owned::Owned;
use super::session::Session;
use super::{Back, Lease, LockOwner, Offload, Owner, Ranges, Speaker, State, States};
use crate::server::durable::Who;
use crate::server::file_id::FileId;
use crate::server::identity::{Identity, Origin};

pub use leaving::Taken;

/// The callback address of a client of minor version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    pub program: u32,
    pub ident: u32,
    pub location: NetAddr,
}

/// One instance of a client.
pub struct Client {
    pub id: u64,
    pub who: Who,
    verifier: Verifier,
    pub lease: Arc<Lease>,
    mine: Mutex<Mine>,
    /// The charge for this record; what it holds is charged to the same source.
    charge: Charge,
}

/// What it holds.
#[derive(Default)]
pub struct Mine {
    pub owners: HashMap<Bytes, Arc<Owner>>,
    pub lock_owners: HashMap<Bytes, Arc<LockOwner>>,
    pub states: HashMap<Other, Arc<State>>,
    pub sessions: Vec<Arc<Session>>,
    /// Its key in each share's table of opens.
    keys: HashMap<ShareKey, Key>,
    /// RECLAIM_COMPLETE was received.
    pub reclaimed: bool,
    /// The journal records that this client had state.
    remembered: bool,
    pub callback: Option<Callback>,
    /// A new callback address that the client has not confirmed yet (minor version 0).
    change: Option<Change>,
    /// The charge for the callback that replaced the first one.
    callback_room: Option<Charge>,
    /// Its back channel (minor version 0); sessions have their own.
    pub back: Option<Arc<Back>>,
    /// Files for which it holds a delegation or is being granted one.
    pub delegated: HashSet<FileId>,
    /// Files and lock owners for which it will be notified of a free lock.
    pub awaited: HashSet<(FileId, LockId)>,
    /// Copies that are running, or whose end it has not been notified of.
    pub copies: HashMap<Other, Arc<Offload>>,
    /// The verifier that confirmed it (minor version 0).
    confirmed_with: Option<Verifier>,
    /// The slot of CREATE_SESSION (RFC 8881 18.36.4): the last sequence number, and the reply.
    sequence: u32,
    created: Option<Result<CreateSessionOk, Status>>,
}

impl Client {
    fn new(id: u64, name: Name, verifier: Verifier, by: Identity, now: Time, charge: Charge) -> Arc<Client> {
        let Name { sessions, owner, .. } = name;
        let lease = Arc::new(Lease::new(id, Owned::new(by, sessions), now));
        let who = Who { sessions, name: owner, by: Some(by.bytes()) };
        Arc::new(Client { id, who, verifier, lease, mine: Mutex::default(), charge })
    }

    /// The identity that created the record.
    pub fn by(&self) -> &Identity {
        &self.lease.owned.by
    }

    fn name(&self) -> Name {
        Name { sessions: self.who.sessions, owner: self.who.name.clone(), origin: self.by().origin }
    }

    /// Reserves memory for an open, a set of locks or a delegation, before anything is opened.
    pub fn state_room(&self) -> Result<Charge, Full> {
        self.room(STATE_BYTES)
    }

    /// The account that is charged for what it holds.
    pub fn holder(&self) -> &Holder {
        self.charge.holder()
    }

    /// Reserves memory for a lock that it will be notified of.
    pub fn awaited_room(&self) -> Result<Charge, Full> {
        self.room(AWAITED_BYTES)
    }

    /// An empty set of byte ranges for one of its owners in a file.
    pub fn ranges(&self) -> Result<Ranges, Full> {
        self.room(0).map(Ranges::new)
    }

    fn room(&self, bytes: usize) -> Result<Charge, Full> {
        self.charge.beside(bytes)
    }

    // Every change is a single insert, remove or assignment.
    pub fn mine(&self) -> MutexGuard<'_, Mine> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its key in the table of opens of a share.
    pub fn key(&self, share: ShareKey, opens: &Opens) -> Key {
        *self.mine().keys.entry(share).or_insert_with(|| opens.key())
    }

    /// The open owner with this name, created if missing and memory permits.
    pub fn owner(&self, name: &[u8], limit: usize) -> Result<Arc<Owner>, Full> {
        let mut mine = self.mine();
        if let Some(owner) = mine.owners.get(name) {
            return Ok(owner.clone());
        }
        let room = |mine: &Mine| match mine.owners.len() < limit {
            true => self.room(OWNER_BYTES.saturating_add(name.len())),
            false => Err(Full),
        };
        let charge = room(&mine).or_else(|_| {
            mine.owners.retain(|_, owner| !owner.is_idle());
            room(&mine)
        })?;
        // A copy, because a slice would keep the call's whole receive buffer in use.
        let name = Bytes::copy_from_slice(name);
        let owner = Arc::new(Owner::new(charge));
        mine.owners.insert(name, owner.clone());
        Ok(owner)
    }

    /// The lock owner with this name, in the same way.
    pub fn lock_owner(&self, name: &[u8], limit: usize) -> Result<Arc<LockOwner>, Full> {
        let mut mine = self.mine();
        if let Some(owner) = mine.lock_owners.get(name) {
            return Ok(owner.clone());
        }
        let room = |mine: &Mine| match mine.lock_owners.len() < limit {
            true => self.room(OWNER_BYTES.saturating_add(name.len())),
            false => Err(Full),
        };
        let charge = room(&mine).or_else(|_| {
            mine.lock_owners.retain(|_, owner| !owner.is_idle());
            room(&mine)
        })?;
        let name = Bytes::copy_from_slice(name);
        let owner = Arc::new(LockOwner::new(self.id, name.clone(), charge));
        mine.lock_owners.insert(name, owner.clone());
        Ok(owner)
    }

    /// Its back channel: preferably one that works, otherwise one that may work again.
    pub fn back(&self) -> Option<Arc<Back>> {
        let mine = self.mine();
        let mut all: Vec<_> = mine.sessions.iter().map(|session| &session.back).chain(&mine.back).collect();
        let at = all.iter().position(|back| back.is_up()).unwrap_or(0);
        (at < all.len()).then(|| all.swap_remove(at).clone())
    }

    /// The record to remove from the journal.
    fn record(&self) -> Record {
        (self.who.clone(), Some(self.id))
    }

    fn holds_anything(&self) -> bool {
        !self.mine().states.is_empty()
    }
}

/// Why a client does not hold a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotHeld {
    /// It has ended.
    Expired,
    /// The share of the state is no longer served.
    ShareGone,
}

impl From<NotHeld> for Status {
    fn from(why: NotHeld) -> Status {
        match why {
            NotHeld::Expired => Status::EXPIRED,
            NotHeld::ShareGone => Status::STALE,
        }
    }
}

/// The key of a client: the name that it claims, which anyone can claim, and the origin that claims it. So nobody can
/// take over a client's record from another place or prevent it from getting one, and hosts that claim the same name
/// do not disturb each other.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Name {
    sessions: bool,
    owner: Bytes,
    origin: Origin,
}

impl Name {
    fn of(owner: &ClientOwner, sessions: bool, by: &Identity) -> Name {
        Name { sessions, owner: Bytes::copy_from_slice(&owner.id.0), origin: by.origin }
    }
}

/// The records under one name.
#[derive(Default)]
struct Named {
    confirmed: Option<Arc<Client>>,
    pending: Option<Pending>,
}

/// An unconfirmed client, which holds nothing and whose id is unique.
struct Pending {
    client: Arc<Client>,
    confirm: Verifier,
    made: Time,
}

/// An unconfirmed change of a client (RFC 7530 16.33.5). It belongs to the client and is no record beside it, so
/// dropping unconfirmed records does not drop the client.
struct Change {
    confirm: Verifier,
    callback: Callback,
    room: Charge,
}

/// All clients.
#[derive(Default)]
pub struct Table {
    names: HashMap<Name, Named>,
    /// Confirmed clients by id, including those whose state was revoked.
    confirmed: HashMap<u64, Arc<Client>>,
    /// Unconfirmed clients by id.
    pending: HashMap<u64, Name>,
    next: u32,
    verifiers: u64,
    /// Clients with nothing to reclaim whose journal entries the next sweep removes. Each has such an entry.
    forgotten: Vec<Record>,
}

/// A client in the journal, by a record of this run or, without a number, of the last.
type Record = (Who, Option<u64>);

impl Client {
    /// What the client holds, while it may hold anything: whatever is added here is found by whoever ends the client.
    /// `None`: all its state was taken while one of its requests was running, and nobody would look for more.
    pub fn living(&self) -> Option<MutexGuard<'_, Mine>> {
        let mine = self.mine();
        (!self.lease.has_ended()).then_some(mine)
    }

    /// Whether the client holds this now: not if it has ended, or if the share is no longer served. Then the caller
    /// closes the state, because whoever took the others has missed it.
    pub fn hold(&self, state: &Arc<State>, shares: &CurrentShares) -> Result<(), NotHeld> {
        let mut living = self.living().ok_or(NotHeld::Expired)?;
        if !shares.serves(state.file.share) {
            return Err(NotHeld::ShareGone);
        }
        living.states.insert(state.other, state.clone());
        Ok(())
    }
}

impl Table {
    fn pending_of(&self, name: &Name) -> Option<Arc<Client>> {
        self.names.get(name)?.pending.as_ref().map(|pending| pending.client.clone())
    }

    /// Adds the unconfirmed client of this name, which has none yet.
    fn set_pending(&mut self, name: Name, pending: Pending) {
        self.pending.insert(pending.client.id, name.clone());
        self.names.entry(name).or_default().pending = Some(pending);
    }

    /// The client of minor version 1 or later with this id, confirmed or not, and its name if it is not.
    fn numbered(&self, id: u64) -> Option<(Arc<Client>, Option<Name>)> {
        let pending = self.pending.get(&id).filter(|name| name.sessions);
        let unconfirmed = pending.and_then(|name| Some((name, self.names.get(name)?.pending.as_ref()?)));
        match unconfirmed {
            Some((name, pending)) => Some((pending.client.clone(), Some(name.clone()))),
            None => Some((self.confirmed.get(&id).filter(|known| known.who.sessions)?.clone(), None)),
        }
    }

    /// A client known at another address asks whether it reaches the same server here: it knows its record's
    /// verifier, which nobody else was told. If it is silent at the other address, it has moved or ended; if it was
    /// refused here, it is another client. Both start over.
    fn elsewhere(
        &self,
        owner: &ClientOwner,
        by: &Identity,
        alive: impl Fn(&Client) -> bool,
    ) -> Option<&Arc<Client>> {
        let is_it = |known: &&Arc<Client>| {
            known.who.sessions
                && known.who.name == owner.id.0
                && alive(known)
                && !known.lease.owned.has_refused(by.origin.source)
                && known.verifier == owner.verifier
                && known.by().principal == by.principal
                && known.by().origin.standing == by.origin.standing
                && !known.mine().sessions.is_empty()
        };
        self.confirmed.values().find(is_it)
    }

    fn remove(&mut self, client: &Client) {
        self.confirmed.remove(&client.id);
        self.pending.remove(&client.id);
        let name = client.name();
        if let Some(named) = self.names.get_mut(&name) {
            named.confirmed.take_if(|known| known.id == client.id);
            named.pending.take_if(|pending| pending.client.id == client.id);
            if named.confirmed.is_none() && named.pending.is_none() {
                self.names.remove(&name);
            }
        }
    }

    fn len(&self) -> usize {
        self.confirmed.len().saturating_add(self.pending.len())
    }
}

impl States {
    // Every change leaves the table consistent, even if it panics because memory runs out.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number within a client id of this run of the server.
    pub(super) fn number_of(&self, id: u64) -> u32 {
        self.numbers.show(Purpose::Client, id) as u32
    }

    /// The number under which others see a client. The id is the client's secret: in minor version 0, whoever knows
    /// it can act for the client.
    pub fn shown(&self, id: u64) -> u64 {
        self.numbers.hide(Purpose::Shown, id)
    }

    /// The id of the client with this number.
    pub(super) fn client_id(&self, number: u32) -> u64 {
        self.numbers.hide(Purpose::Client, u64::from(self.epoch) << 32 | u64::from(number))
    }

    fn new_id(&self, table: &mut Table) -> u64 {
        loop {
            table.next = table.next.wrapping_add(1);
            let id = self.client_id(table.next);
            if !table.confirmed.contains_key(&id) && !table.pending.contains_key(&id) {
                return id;
            }
        }
    }

    fn new_verifier(&self, table: &mut Table) -> Verifier {
        table.verifiers = table.verifiers.wrapping_add(1);
        self.numbers.hide(Purpose::Confirmation, table.verifiers).to_be_bytes()
    }

    /// RFC 7530 16.33. `Err` names the address that uses the name.
    pub fn setclientid(
        &self,
        owner: &ClientOwner,
        callback: Callback,
        by: &Identity,
        now: Time,
    ) -> Result<Confirm, Result<NetAddr, Status>> {
        let name = Name::of(owner, false, by);
        let source = by.origin.source;
        let mut table = self.table();
        let confirmed = table.names.get(&name).and_then(|named| named.confirmed.clone());
        if let Some(known) = &confirmed
            && known.by().principal != by.principal
            && !known.lease.has_ended()
            && !known.lease.lapsed(now, self.limits.lease)
            && known.holds_anything()
        {
            let location = known.mine().callback.as_ref().map(|callback| callback.location.clone());
            return Err(location.ok_or(Status::CLID_INUSE));
        }
        let confirm = self.new_verifier(&mut table);
        let location = &callback.location;
        let text = location.netid.0.len().saturating_add(location.addr.0.len());
        if let Some(known) = &confirmed
            && known.verifier == owner.verifier
            && known.by() == by
            && !known.lease.has_ended()
        {
            let room = known.room(text).or_else(|Full| {
                self.relieve(&mut table, now);
                known.room(text)
            });
            let room = room.map_err(|Full| Err(Status::DELAY))?;
            let mut mine = known.living().ok_or(Err(Status::DELAY))?;
            mine.change = Some(Change { confirm, callback, room });
            drop(mine);
            // An unconfirmed newer instance, if any, is dropped.
            self.forget_pending(&mut table, &name);
            return Ok(Confirm { client: known.id, verifier: confirm });
        }
        self.make_room(&mut table, source, now).map_err(Err)?;
        let text = text.saturating_add(name.owner.len().saturating_mul(2));
        let charge = self.client_room(&mut table, source, text, now).map_err(Err)?;
        let id = self.new_id(&mut table);
        let client = Client::new(id, name.clone(), owner.verifier, *by, now, charge);
        client.mine().callback = Some(callback);
        if let Some(known) = &confirmed {
            known.mine().change = None;
        }
        self.forget_pending(&mut table, &name);
        table.set_pending(name, Pending { client, confirm, made: now });
        Ok(Confirm { client: id, verifier: confirm })
    }

    /// RFC 7530 16.34.
    pub fn setclientid_confirm(&self, args: &Confirm, by: &Identity, now: Time) -> Result<Taken, Status> {
        let mut table = self.table();
        if let Some(name) = table.pending.get(&args.client).cloned()
            && !name.sessions
            && let Some(pending) = table.names.get(&name).and_then(|named| named.pending.as_ref())
            && pending.confirm == args.verifier
            && pending.client.lease.owned.allows(&by.origin)
        {
            if pending.client.by().principal != by.principal {
                return Err(Status::CLID_INUSE);
            }
            pending.client.lease.renew(now);
            let replaced = self.promote(&mut table, &name);
            return Ok(self.taken(table, replaced));
        }
        let known = table
            .confirmed
            .get(&args.client)
            .filter(|known| Speaker::Alone(&by.origin).may_use(&known.lease));
        let known = known.cloned().ok_or(Status::STALE_CLIENTID)?;
        let mut mine = known.mine();
        let changes = mine.change.as_ref().is_some_and(|change| change.confirm == args.verifier);
        if !changes && mine.confirmed_with != Some(args.verifier) {
            return Err(Status::STALE_CLIENTID);
        }
        if known.by().principal != by.principal {
            return Err(Status::CLID_INUSE);
        }
        if let Some(Change { confirm, callback, room }) = mine.change.take_if(|_| changes) {
            mine.confirmed_with = Some(confirm);
            mine.callback = Some(callback);
            mine.callback_room = Some(room);
        }
        drop(mine);
        known.lease.renew(now);
        Ok(Taken::default())
    }

    /// RFC 8881 18.35.4: returns the client, whether it is confirmed, and the sequence number of its next
    /// CREATE_SESSION.
    pub fn exchange_id(
        &self,
        owner: &ClientOwner,
        flags: u32,
        by: &Identity,
        now: Time,
    ) -> Result<(u64, bool, u32), Status> {
        let name = Name::of(owner, true, by);
        let source = by.origin.source;
        let mut table = self.table();
        self.make_room(&mut table, source, now)?;
        let confirmed = table.names.get(&name).and_then(|named| named.confirmed.clone());
        // Searched for only if no other table has it, because the search visits every client.
        let alive = |known: &Client| !known.lease.lapsed(now, self.limits.lease);
        let confirmed = confirmed.or_else(|| table.elsewhere(owner, by, alive).cloned());
        let confirmed = confirmed.filter(|known| !known.lease.has_ended());
        let update = flags & exchange_flag::UPD_CONFIRMED_REC_A != 0;
        let answer = |known: &Client| {
            // Others may claim the same, so this is no sign of life of the client.
            if known.lease.owned.is_at(source) {
                known.lease.renew(now);
            }
            let next = known.mine().sequence.wrapping_add(1);
            (known.id, true, next)
        };
        match confirmed {
            None if update => return Err(Status::NOENT),
            Some(known) if update => {
                return if known.verifier != owner.verifier {
                    Err(Status::NOT_SAME)
                } else if known.by().principal != by.principal {
                    Err(Status::PERM)
                } else {
                    Ok(answer(&known))
                };
            }
            Some(known) if known.by().principal != by.principal => {
                // RFC 8881 18.35.4, case 3: a client that holds nothing is removed at once, with its sessions.
                if !self.forget_empty(&mut table, &known) && !known.lease.lapsed(now, self.limits.lease) {
                    return Err(Status::CLID_INUSE);
                }
            }
            Some(known) if known.verifier == owner.verifier => return Ok(answer(&known)),
            // A new instance of the client: the old one stays until the new one creates a session.
            Some(_) | None => {}
        }
        let charge = self.client_room(&mut table, source, name.owner.len().saturating_mul(2), now)?;
        let id = self.new_id(&mut table);
        let client = Client::new(id, name.clone(), owner.verifier, *by, now, charge);
        let confirm = self.new_verifier(&mut table);
        self.forget_pending(&mut table, &name);
        table.set_pending(name, Pending { client, confirm, made: now });
        Ok((id, false, 1))
    }

    /// RFC 8881 18.36.4: creates a session with the channel `fore`, reduced if memory is scarce. `make` checks the
    /// arguments and makes the session; it is called only for a new request.
    pub fn create_session(
        &self,
        args: &CreateSession,
        fore: ChannelAttrs,
        by: &Identity,
        now: Time,
        make: impl FnOnce(Arc<Lease>, ChannelAttrs, Charge) -> Result<(Session, CreateSessionOk), Status>,
    ) -> Result<(CreateSessionOk, Taken), Status> {
        let mut table = self.table();
        let (client, pending) = table.numbered(args.client).ok_or(Status::STALE_CLIENTID)?;
        let owned = &client.lease.owned;
        if client.lease.has_ended() || !owned.allows(&by.origin) {
            return Err(Status::STALE_CLIENTID);
        }
        // Checked before the cached reply is returned, because that names a session. A caller from another address
        // proves with SEQUENCE or BIND_CONN_TO_SESSION that it is the client.
        if owned.by.principal != by.principal {
            return Err(Status::CLID_INUSE);
        }
        if !owned.is_at(by.origin.source) {
            // As for an unknown client, so that it sends EXCHANGE_ID at once.
            owned.refuse(by.origin.source);
            return Err(Status::STALE_CLIENTID);
        }
        if pending.is_some() && client.lease.lapsed(now, self.limits.lease) {
            // RFC 8881 18.36.3: an unconfirmed record lives for one lease.
            self.forget_empty(&mut table, &client);
            return Err(Status::STALE_CLIENTID);
        }
        {
            let mine = client.mine();
            match &mine.created {
                Some(created) if args.sequence == mine.sequence => {
                    return created.clone().map(|ok| (ok, Taken::default()));
                }
                _ if args.sequence != mine.sequence.wrapping_add(1) => return Err(Status::SEQ_MISORDERED),
                _ => {}
            }
            if mine.sessions.len() >= self.limits.sessions {
                return Err(Status::NOSPC);
            }
        }
        // It is active, so others are removed before it.
        client.lease.renew(now);
        // Its sequence number is not used up: the client repeats the request by itself.
        let room = |fore| budget::session(&self.budget, client.holder(), fore);
        let (charge, fore) = match room(fore.clone()) {
            Ok(room) => room,
            Err(Full) => {
                self.relieve(&mut table, now);
                room(fore).map_err(|full| no_room(full, 1))?
            }
        };
        let made = make(client.lease.clone(), fore, charge);
        let Some(mut mine) = client.living() else {
            // The client's state was taken at this moment. A session would belong to nobody.
            if let Ok((session, _)) = made {
                session.end();
            }
            return Err(Status::STALE_CLIENTID);
        };
        mine.sequence = args.sequence;
        let (session, ok) = match made {
            Ok(made) => made,
            Err(status) => {
                mine.created = Some(Err(status));
                return Err(status);
            }
        };
        mine.created = Some(Ok(ok.clone()));
        let session = Arc::new(session);
        // While the client still owns it: whoever ends the client removes it again.
        self.enter_session(session.clone());
        mine.sessions.push(session);
        drop(mine);
        client.ask_again();
        let replaced = pending.map(|name| self.promote(&mut table, &name)).unwrap_or_default();
        Ok((ok, self.taken(table, replaced)))
    }

    /// RFC 8881 18.37.
    pub fn destroy_session(&self, id: &SessionId, by: &Identity) -> Result<(), Status> {
        let session = self.session(id, &by.origin)?;
        if session.lease.owned.by.principal != by.principal {
            return Err(Status::WRONG_CRED);
        }
        self.leave_session(&session);
        if let Some(client) = self.holder(&session.lease) {
            client.mine().sessions.retain(|known| known.id != *id);
        }
        Ok(())
    }

    /// RFC 8881 18.50.
    pub fn destroy_clientid(&self, id: u64, by: &Identity) -> Result<(), Status> {
        let mut table = self.table();
        let (client, _) = table.numbered(id).ok_or(Status::STALE_CLIENTID)?;
        let owned = &client.lease.owned;
        if !owned.allows(&by.origin) || !owned.is_at(by.origin.source) {
            return Err(Status::STALE_CLIENTID);
        }
        if owned.by.principal != by.principal {
            return Err(Status::WRONG_CRED);
        }
        let unused = |mine: &Mine| mine.sessions.is_empty() && mine.states.is_empty();
        let ended = self.end_if(&client, unused).ok_or(Status::CLIENTID_BUSY)?;
        table.remove(&client);
        // It held nothing, and its journal entry is removed before the reply.
        let Taken(_) = self.taken(table, ended);
        Ok(())
    }

    /// A client is in the journal before it is told that it has its first state. Called without a lock, because it
    /// takes as long as the disk does.
    pub fn remember(&self, client: &Client) -> Result<(), Status> {
        let Some(durable) = &self.durable else { return Ok(()) };
        if client.mine().remembered {
            return Ok(());
        }
        let written =
            durable.remember(&client.who, client.id, || !client.lease.has_ended()).map_err(|e| {
                tracing::error!("cannot record a client for the grace period after a restart: {e}");
                Status::SERVERFAULT
            })?;
        if let Some(mut mine) = client.living() {
            mine.remembered = true;
            return Ok(());
        }
        // The client has ended meanwhile, without knowledge of this entry.
        if written {
            self.table().forgotten.push(client.record());
        }
        Err(Status::EXPIRED)
    }

    /// The client has reclaimed all its state of the last run.
    pub fn reclaimed(&self, client: &Client) {
        if self.grace.done(&client.who) {
            // If it holds anything now, its journal entry is of this run and stays.
            self.table().forgotten.push((client.who.clone(), None));
        }
    }

    /// The confirmed client of a lease, including one whose state was revoked.
    pub fn holder(&self, lease: &Lease) -> Option<Arc<Client>> {
        self.table().confirmed.get(&lease.client).cloned()
    }

    /// The owner of these ranges in a share's table of locks.
    pub fn lock_owner_of(&self, share: ShareKey, id: LockId) -> Option<Arc<LockOwner>> {
        let clients: Vec<_> = self.table().confirmed.values().cloned().collect();
        clients
            .iter()
            .find_map(|client| client.mine().lock_owners.values().find(|owner| owner.is(share, id)).cloned())
    }

    /// The confirmed client for which the request acts, unless its state was revoked: its session's, or the one that
    /// it names.
    pub fn client(&self, by: Speaker<'_>, named: u64) -> Result<Arc<Client>, Status> {
        let id = match by {
            Speaker::Session(session) => session.lease.client,
            Speaker::Alone(_) => named,
        };
        let client = self.table().confirmed.get(&id).filter(|client| by.may_use(&client.lease)).cloned();
        let client = client.ok_or(Status::STALE_CLIENTID)?;
        if client.lease.has_ended() { Err(Status::EXPIRED) } else { Ok(client) }
    }

    /// Whether a client's state was revoked.
    pub(super) fn is_expired(&self, id: u64) -> bool {
        self.table().confirmed.get(&id).is_some_and(|client| client.lease.has_ended())
    }

    /// Whether this id belonged to a client that is no longer known: another instance has replaced it (RFC 7530
    /// 16.34.5), or it was silent for too long.
    pub(super) fn is_replaced(&self, id: u64) -> bool {
        let table = self.table();
        let given_out = (1..=table.next).contains(&self.number_of(id));
        given_out && !table.confirmed.contains_key(&id) && !table.pending.contains_key(&id)
    }
}
