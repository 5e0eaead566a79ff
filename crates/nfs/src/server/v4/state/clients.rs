//! Clients: who they are by their own words, by which number they go, and what they hold.
//!
//! What: SETCLIENTID and its confirmation for minor version 0, EXCHANGE_ID and CREATE_SESSION for the others.
//! Spec: RFC 7530 16.33.5, 16.34.5; RFC 8881 18.35.4, 18.36.4, 18.50. Owns: client records.
//! Does not: close files; what a client held is handed to the caller, who may have to wait for that.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_machine::budget::{Full, Holder};
use weft_machine::{Charge, Source, Time};
use weft_store::opens::{Key, LockOwner as LockId, Opens};
use weft_wire::nfs4::{
    ChannelAttrs, ClientOwner, Confirm, CreateSession, CreateSessionOk, NetAddr, SessionId, Status, Verifier,
    exchange_flag,
};

use super::budget::{self, AWAITED_BYTES, CLIENT_BYTES, OWNER_BYTES, STATE_BYTES, no_room};
use super::identity::{Identity, Origin, Owned};
use super::numbers::Purpose;
use super::session::Session;
use super::stateids::Other;
use super::{Back, Lease, LockOwner, Offload, Owner, Ranges, Speaker, State, States};
use crate::server::durable::Who;

/// Where a client of minor version 0 can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    pub program: u32,
    pub ident: u32,
    pub location: NetAddr,
}

/// One run of one client.
pub struct Client {
    pub id: u64,
    pub who: Who,
    verifier: Verifier,
    pub lease: Arc<Lease>,
    mine: Mutex<Mine>,
    /// For this record; what it holds is charged to the same source.
    charge: Charge,
}

/// What it holds.
#[derive(Default)]
pub struct Mine {
    pub owners: HashMap<Bytes, Arc<Owner>>,
    pub lock_owners: HashMap<Bytes, Arc<LockOwner>>,
    pub states: HashMap<Other, Arc<State>>,
    pub sessions: Vec<Arc<Session>>,
    /// In whose name it opens, for each share's table of opens.
    keys: HashMap<usize, Key>,
    /// RECLAIM_COMPLETE came.
    pub reclaimed: bool,
    /// It is known after a restart that this client had state.
    remembered: bool,
    pub callback: Option<Callback>,
    /// How it is called (minor version 0); sessions have their own.
    pub back: Option<Arc<Back>>,
    /// Files that it has a delegation of, or is being granted one.
    pub delegated: HashSet<(usize, weft_store::NodeId)>,
    /// Files and owners of locks that it is told of when they can be had.
    pub awaited: HashSet<(usize, weft_store::NodeId, LockId)>,
    /// Copies that go on, or whose end it has not been told.
    pub copies: HashMap<Other, Arc<Offload>>,
    /// What it was confirmed with (minor version 0).
    confirmed_with: Option<Verifier>,
    /// The slot of CREATE_SESSION (RFC 8881 18.36.4): the last number, and what was answered.
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

    /// Who made the record.
    pub fn by(&self) -> &Identity {
        &self.lease.owned.by
    }

    fn name(&self) -> Name {
        Name { sessions: self.who.sessions, owner: self.who.name.clone(), origin: self.by().origin }
    }

    /// Room for an open, a set of locks or a delegation, to be asked for before anything is opened.
    pub fn state_room(&self) -> Result<Charge, Full> {
        self.room(STATE_BYTES)
    }

    /// Who is charged for what it holds.
    pub fn holder(&self) -> &Holder {
        self.charge.holder()
    }

    /// Room for a lock that it will be told of.
    pub fn awaited_room(&self) -> Result<Charge, Full> {
        self.room(AWAITED_BYTES)
    }

    /// Byte ranges of one of its owners in a file: none yet.
    pub fn ranges(&self) -> Result<Ranges, Full> {
        self.room(0).map(Ranges::new)
    }

    fn room(&self, bytes: usize) -> Result<Charge, Full> {
        self.charge.beside(bytes)
    }

    // What is changed is changed by one insert, remove or assignment at a time.
    pub fn mine(&self) -> MutexGuard<'_, Mine> {
        self.mine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In whose name it opens files of a share.
    pub fn key(&self, share: usize, opens: &Opens) -> Key {
        *self.mine().keys.entry(share).or_insert_with(|| opens.key())
    }

    /// The owner of opens with this name, new if need be and if there is room for it.
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
        // A copy: a slice would keep the receive buffer that the call came in.
        let name = Bytes::copy_from_slice(name);
        let owner = Arc::new(Owner::new(charge));
        mine.owners.insert(name, owner.clone());
        Ok(owner)
    }

    /// The same for locks.
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

    /// By which it can be asked: one that works, or else one that may work again.
    pub fn back(&self) -> Option<Arc<Back>> {
        let mine = self.mine();
        let mut all: Vec<_> = mine.sessions.iter().map(|session| &session.back).chain(&mine.back).collect();
        let at = all.iter().position(|back| back.is_up()).unwrap_or(0);
        (at < all.len()).then(|| all.swap_remove(at).clone())
    }

    /// As it is forgotten on disk.
    fn record(&self) -> (Who, Option<u64>) {
        (self.who.clone(), Some(self.id))
    }

    fn holds_anything(&self) -> bool {
        !self.mine().states.is_empty()
    }
}

/// Under what a client is known: by its own words, which anybody can say, and by where it says them. So nobody takes the
/// record of a client elsewhere, or keeps it from having one, and hosts that say the same do not disturb each other.
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

/// What is known under one name.
#[derive(Default)]
struct Named {
    confirmed: Option<Arc<Client>>,
    pending: Option<Pending>,
}

/// A client, or a change of a client, that is not confirmed yet.
struct Pending {
    client: Arc<Client>,
    confirm: Verifier,
    callback: Option<Callback>,
    made: Time,
}

/// All clients.
#[derive(Default)]
pub struct Table {
    names: HashMap<Name, Named>,
    /// Confirmed ones by number, also those whose state was taken away.
    confirmed: HashMap<u64, Arc<Client>>,
    /// Pending ones by number.
    pending: HashMap<u64, Name>,
    next: u32,
    verifiers: u64,
    /// Those that were forgotten for others' sake, and are on disk still: the next sweep takes them from there.
    forgotten: Vec<(Who, Option<u64>)>,
}

impl Client {
    /// Whether the client has this now. It has not where all that it had was taken from it while a request of it was carried out:
    /// nobody would look for this any more.
    #[must_use]
    pub fn hold(&self, state: &Arc<State>) -> bool {
        let mut mine = self.mine();
        // Whoever takes ends the lease first, and then waits for this lock.
        let holds = !self.lease.has_ended();
        if holds {
            mine.states.insert(state.other, state.clone());
        }
        holds
    }
}

/// What was taken from clients; whoever gets it closes it.
#[derive(Default)]
#[must_use = "files stay open until they are closed"]
pub struct Taken(pub Vec<Arc<State>>);

impl Table {
    fn set_pending(&mut self, name: Name, pending: Pending) {
        let id = pending.client.id;
        let named = self.names.entry(name.clone()).or_default();
        if let Some(old) = named.pending.replace(pending) {
            self.pending.remove(&old.client.id);
        }
        self.pending.insert(id, name);
    }

    /// The client of minor version 1 or later that has this number, confirmed or not, and its name if it is not.
    fn numbered(&self, id: u64) -> Option<(Arc<Client>, Option<Name>)> {
        let pending = self.pending.get(&id).filter(|name| name.sessions);
        let unconfirmed = pending.and_then(|name| Some((name, self.names.get(name)?.pending.as_ref()?)));
        match unconfirmed {
            Some((name, pending)) => Some((pending.client.clone(), Some(name.clone()))),
            None => Some((self.confirmed.get(&id).filter(|known| known.who.sessions)?.clone(), None)),
        }
    }

    /// A client that has come from another address before, and asks whether it reaches the same server here: it knows the
    /// verifier of its record, and nobody else was told that.
    fn elsewhere(&self, owner: &ClientOwner, by: &Identity) -> Option<&Arc<Client>> {
        let is_it = |known: &&Arc<Client>| {
            known.who.sessions
                && known.who.name == owner.id.0
                && known.verifier == owner.verifier
                && known.by().principal == by.principal
                && known.by().origin.standing == by.origin.standing
                && !known.mine().sessions.is_empty()
        };
        self.confirmed.values().find(is_it)
    }

    /// The pending client of this number becomes the confirmed one of its name. The one that it replaces is returned.
    fn promote(&mut self, name: &Name) -> Option<Arc<Client>> {
        let named = self.names.get_mut(name)?;
        let Pending { client, confirm, callback, .. } = named.pending.take()?;
        self.pending.remove(&client.id);
        {
            let mut mine = client.mine();
            mine.confirmed_with = Some(confirm);
            if callback.is_some() {
                mine.callback = callback;
            }
        }
        let replaced = named.confirmed.replace(client.clone()).filter(|old| old.id != client.id);
        if let Some(old) = &replaced {
            self.confirmed.remove(&old.id);
        }
        self.confirmed.insert(client.id, client);
        replaced
    }

    fn forget(&mut self, client: &Client) {
        self.confirmed.remove(&client.id);
        let name = client.name();
        if let Some(named) = self.names.get_mut(&name) {
            named.confirmed.take_if(|known| known.id == client.id);
            if named.pending.as_ref().is_some_and(|pending| pending.client.id == client.id) {
                named.pending = None;
                self.pending.remove(&client.id);
            }
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
    // Each change to the table leaves it whole, also when it panics for want of memory.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a client's id, of this run of the server.
    pub(super) fn number_of(&self, id: u64) -> u32 {
        self.numbers.show(Purpose::Client, id) as u32
    }

    /// What others are told of a client. Its id is the client's secret: with minor version 0, whoever knows it speaks for the client.
    pub fn shown(&self, id: u64) -> u64 {
        self.numbers.hide(Purpose::Shown, id)
    }

    /// The id of a client by its number.
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

    /// RFC 7530 16.33. `Err` says who uses the name.
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
        self.make_room(&mut table, source, now).map_err(Err)?;
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
        let same = confirmed
            .filter(|known| known.verifier == owner.verifier && known.by() == by && !known.lease.has_ended());
        let client = match same {
            Some(client) => client,
            None => {
                let texts = [&callback.location.netid.0, &callback.location.addr.0, &name.owner, &name.owner];
                let text = texts.iter().map(|text| text.len()).sum();
                let charge = self.client_room(&mut table, source, text, now).map_err(Err)?;
                let id = self.new_id(&mut table);
                Client::new(id, name.clone(), owner.verifier, *by, now, charge)
            }
        };
        let confirm = self.new_verifier(&mut table);
        let id = client.id;
        table.set_pending(name, Pending { client, confirm, callback: Some(callback), made: now });
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
            let replaced = table.promote(&name);
            drop(table);
            return Ok(replaced.map(|old| self.take(&old)).unwrap_or_default());
        }
        let known = table
            .confirmed
            .get(&args.client)
            .filter(|known| Speaker::Alone(&by.origin).may_use(&known.lease));
        let known = known.cloned().ok_or(Status::STALE_CLIENTID)?;
        if known.mine().confirmed_with != Some(args.verifier) {
            return Err(Status::STALE_CLIENTID);
        }
        if known.by().principal != by.principal {
            return Err(Status::CLID_INUSE);
        }
        known.lease.renew(now);
        Ok(Taken::default())
    }

    /// RFC 8881 18.35.4: the client, whether it is confirmed, and the number for its next CREATE_SESSION.
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
        // Only once it is known nowhere else is it looked for: that takes as long as there are clients.
        let confirmed = confirmed.or_else(|| table.elsewhere(owner, by).cloned());
        let confirmed = confirmed.filter(|known| !known.lease.has_ended());
        let update = flags & exchange_flag::UPD_CONFIRMED_REC_A != 0;
        let answer = |known: &Client| {
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
                    known.lease.renew(now);
                    Ok(answer(&known))
                };
            }
            Some(known) if known.by().principal != by.principal => {
                if known.holds_anything() && !known.lease.lapsed(now, self.limits.lease) {
                    return Err(Status::CLID_INUSE);
                }
                if !known.holds_anything() {
                    // RFC 8881 18.35.4, case 3: nobody misses it, and it goes at once.
                    known.lease.end();
                    table.forget(&known);
                }
            }
            Some(known) if known.verifier == owner.verifier => {
                known.lease.renew(now);
                return Ok(answer(&known));
            }
            // A new run of the client: the old one stays until the new one makes a session.
            Some(_) | None => {}
        }
        let charge = self.client_room(&mut table, source, name.owner.len().saturating_mul(2), now)?;
        let id = self.new_id(&mut table);
        let client = Client::new(id, name.clone(), owner.verifier, *by, now, charge);
        let confirm = self.new_verifier(&mut table);
        table.set_pending(name, Pending { client, confirm, callback: None, made: now });
        Ok((id, false, 1))
    }

    /// RFC 8881 18.36.4, for a channel to the server as `fore` has it, or with less where memory is scarce. `make` judges
    /// the arguments and makes the session; it is asked only for a new request.
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
        // Before anything is said of what it has asked before: that names a session. Who comes from another address shows by
        // BIND_CONN_TO_SESSION that he is the client.
        if owned.by.principal != by.principal || !owned.is_at(by.origin.source) {
            return Err(Status::CLID_INUSE);
        }
        if pending.is_some() && client.lease.lapsed(now, self.limits.lease) {
            // RFC 8881 18.36.3: an unconfirmed record lives for a lease.
            table.forget(&client);
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
        // Its place in the client's order is not taken: the client asks again by itself.
        let room = |fore| budget::session(&self.budget, client.holder(), fore);
        let (charge, fore) = match room(fore.clone()) {
            Ok(room) => room,
            Err(Full) => {
                self.relieve(&mut table, now);
                room(fore).map_err(|full| no_room(full, 1))?
            }
        };
        let made = make(client.lease.clone(), fore, charge);
        client.lease.renew(now);
        let mut mine = client.mine();
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
        mine.sessions.push(session.clone());
        drop(mine);
        client.ask_again();
        let replaced = pending.and_then(|name| table.promote(&name));
        drop(table);
        self.enter_session(session);
        Ok((ok, replaced.map(|old| self.take(&old)).unwrap_or_default()))
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
        if !client.lease.has_ended() {
            let mine = client.mine();
            if !mine.sessions.is_empty() || !mine.states.is_empty() {
                return Err(Status::CLIENTID_BUSY);
            }
        }
        client.lease.end();
        table.forget(&client);
        drop(table);
        self.forget_durably(&[client.record()]);
        Ok(())
    }

    /// A client is on disk before it is told that it has its first state. Not under a mutex: it takes as long as the
    /// disk does.
    pub fn remember(&self, client: &Client) -> Result<(), Status> {
        let Some(durable) = &self.durable else { return Ok(()) };
        if client.mine().remembered {
            return Ok(());
        }
        durable.remember(&client.who, client.id).map_err(|e| {
            tracing::error!("a client cannot be remembered over a restart: {e}");
            Status::SERVERFAULT
        })?;
        client.mine().remembered = true;
        Ok(())
    }

    /// These clients have nothing to reclaim after a restart.
    fn forget_durably(&self, clients: &[(Who, Option<u64>)]) {
        let Some(durable) = &self.durable else { return };
        if !clients.is_empty()
            && let Err(e) = durable.forget(clients)
        {
            tracing::error!("a client without state may try to reclaim some after a restart: {e}");
        }
    }

    /// The confirmed client that a lease is of, also one whose state was taken away.
    pub fn holder(&self, lease: &Lease) -> Option<Arc<Client>> {
        self.table().confirmed.get(&lease.client).cloned()
    }

    /// Whose ranges these are in a share's table of locks.
    pub fn lock_owner_of(&self, share: usize, id: LockId) -> Option<Arc<LockOwner>> {
        let clients: Vec<_> = self.table().confirmed.values().cloned().collect();
        clients
            .iter()
            .find_map(|client| client.mine().lock_owners.values().find(|owner| owner.is(share, id)).cloned())
    }

    /// The confirmed client that speaks, unless its state has been taken away: that of its session, or the one that it names.
    pub fn client(&self, by: Speaker<'_>, named: u64) -> Result<Arc<Client>, Status> {
        let id = match by {
            Speaker::Session(session) => session.lease.client,
            Speaker::Alone(_) => named,
        };
        let client = self.table().confirmed.get(&id).filter(|client| by.may_use(&client.lease)).cloned();
        let client = client.ok_or(Status::STALE_CLIENTID)?;
        if client.lease.has_ended() { Err(Status::EXPIRED) } else { Ok(client) }
    }

    /// Whether a client's state was taken away.
    pub(super) fn is_expired(&self, id: u64) -> bool {
        self.table().confirmed.get(&id).is_some_and(|client| client.lease.has_ended())
    }

    /// Whether this number was a client's that is known no more: another run of it has taken its place (RFC 7530
    /// 16.34.5), or it was silent for too long.
    pub(super) fn is_replaced(&self, id: u64) -> bool {
        let table = self.table();
        let given_out = (1..=table.next).contains(&self.number_of(id));
        given_out && !table.confirmed.contains_key(&id) && !table.pending.contains_key(&id)
    }

    /// Takes all that a client holds; its record may stay.
    fn take(&self, client: &Client) -> Taken {
        client.lease.end();
        let (states, sessions, back) = {
            let mut mine = client.mine();
            mine.owners.clear();
            mine.lock_owners.clear();
            mine.delegated.clear();
            mine.copies.drain().for_each(|(_, copy)| copy.cancel());
            let back = mine.back.take();
            (std::mem::take(&mut mine.states), std::mem::take(&mut mine.sessions), back)
        };
        if let Some(back) = back {
            back.end();
        }
        sessions.iter().for_each(|session| self.leave_session(session));
        let states: Vec<_> = states.into_values().collect();
        states.iter().for_each(|state| self.leave(state));
        Taken(states)
    }

    /// Takes what lapsed clients other than `by` hold on a node: somebody wants it (RFC 8881 8.4.2.4, courtesy).
    pub fn take_lapsed(&self, share: usize, node: weft_store::NodeId, now: Time) -> Taken {
        let lapsed = |client: &&Arc<Client>| {
            client.lease.lapsed(now, self.limits.lease)
                && client.mine().states.values().any(|state| (state.share, state.node) == (share, node))
        };
        let clients: Vec<_> = self.table().confirmed.values().filter(lapsed).cloned().collect();
        self.forget_durably(&clients.iter().map(|client| client.record()).collect::<Vec<_>>());
        Taken(clients.iter().flat_map(|client| self.take(client).0).collect())
    }

    /// Takes what clients hold that have been silent for so long that nobody expects them back, and forgets records
    /// that were never confirmed. To be called from time to time.
    pub fn sweep(&self, now: Time) -> Taken {
        let lease = self.limits.lease;
        let mut table = self.table();
        let gone: Vec<_> = table
            .confirmed
            .values()
            .filter(|c| c.lease.lapsed(now, lease.saturating_mul(COURTESY)))
            .cloned()
            .collect();
        for client in &gone {
            table.forget(client);
        }
        Self::forget_unconfirmed(&mut table, now, lease);
        let mut lost = std::mem::take(&mut table.forgotten);
        drop(table);
        lost.extend(self.grace.missed(now).into_iter().map(|who| (who, None)));
        lost.extend(gone.iter().map(|client| client.record()));
        self.forget_durably(&lost);
        Taken(gone.iter().flat_map(|client| self.take(client).0).collect())
    }

    fn forget_unconfirmed(table: &mut Table, now: Time, lease: std::time::Duration) {
        let Table { names, pending, .. } = table;
        names.retain(|_, named| {
            if named.pending.as_ref().is_some_and(|p| now.since(p.made) > lease)
                && let Some(old) = named.pending.take()
            {
                pending.remove(&old.client.id);
            }
            named.confirmed.is_some() || named.pending.is_some()
        });
    }

    /// Room for one more client. When there is none, those go that were never confirmed in time and those that lapsed and
    /// hold nothing; then some of the address that has the most of them, if that is not the one that asks.
    fn make_room(&self, table: &mut Table, source: Source, now: Time) -> Result<(), Status> {
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
    fn client_room(
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
        Self::forget_unconfirmed(table, now, self.limits.lease);
        let lapsed = |c: &&Arc<Client>| c.lease.lapsed(now, self.limits.lease) && !c.holds_anything();
        let idle: Vec<_> = table.confirmed.values().filter(lapsed).cloned().collect();
        idle.iter().for_each(|client| self.forget_empty(table, client));
    }

    /// Memory is scarce: idle clients of addresses that hold more than they should go, too.
    fn relieve(&self, table: &mut Table, now: Time) {
        self.forget_idle(table, now);
        let idle_after = self.limits.lease.checked_div(IDLE_PART).unwrap_or(self.limits.lease);
        let idle = |client: &&Arc<Client>| {
            client.lease.lapsed(now, idle_after) && !client.holds_anything() && client.charge.is_overdrawn()
        };
        let mut victims: Vec<_> = table.confirmed.values().filter(idle).cloned().collect();
        victims.sort_by_key(|client| client.lease.renewed());
        victims.truncate(FORGOTTEN_AT_ONCE);
        victims.iter().for_each(|client| self.forget_empty(table, client));
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
        let unconfirmed = pending.iter().filter(of_most).map(|client| (false, client));
        let empty = table.confirmed.values().filter(of_most).filter(|client| !client.holds_anything());
        let mut victims: Vec<_> = unconfirmed
            .chain(empty.map(|client| (true, client)))
            .map(|(known, c)| (known, c.clone()))
            .collect();
        victims.sort_by_key(|(known, client)| (*known, client.lease.renewed()));
        victims.truncate(FORGOTTEN_AT_ONCE);
        victims.iter().for_each(|(_, client)| self.forget_empty(table, client));
    }

    /// Forgets a client that holds no state.
    fn forget_empty(&self, table: &mut Table, client: &Client) {
        let (sessions, back, remembered) = {
            let mut mine = client.mine();
            (std::mem::take(&mut mine.sessions), mine.back.take(), mine.remembered)
        };
        if remembered {
            table.forgotten.push(client.record());
        }
        if let Some(back) = back {
            back.end();
        }
        sessions.iter().for_each(|session| self.leave_session(session));
        client.lease.end();
        table.forget(client);
    }
}

/// A client is idle when it was silent for this part of a lease.
const IDLE_PART: u32 = 4;
/// Clients that go when there are too many: not one by one, since looking for them is work.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Leases of silence after which a client's state goes although nobody wants it: others that do not know NFS (SMB) may.
const COURTESY: u32 = 5;
