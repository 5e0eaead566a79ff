//! Clients: who they are by their own words, by which number they go, and what they hold.
//!
//! What: SETCLIENTID and its confirmation for minor version 0, EXCHANGE_ID and CREATE_SESSION for the others.
//! Spec: RFC 7530 16.33.5, 16.34.5; RFC 8881 18.35.4, 18.36.4, 18.50. Owns: client records.
//! Does not: forget them (`leaving`).

mod leaving;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_machine::budget::{Full, Holder};
use weft_machine::{Charge, Time};
use weft_store::ShareId;
use weft_store::opens::{Key, LockOwner as LockId, Opens};
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
    keys: HashMap<ShareId, Key>,
    /// RECLAIM_COMPLETE came.
    pub reclaimed: bool,
    /// It is known after a restart that this client had state.
    remembered: bool,
    pub callback: Option<Callback>,
    /// Another place to call it at, which it has not confirmed yet (minor version 0).
    change: Option<Change>,
    /// For what came in place of the callback that it was made with.
    callback_room: Option<Charge>,
    /// How it is called (minor version 0); sessions have their own.
    pub back: Option<Arc<Back>>,
    /// Files that it has a delegation of, or is being granted one.
    pub delegated: HashSet<FileId>,
    /// Files and owners of locks that it is told of when they can be had.
    pub awaited: HashSet<(FileId, LockId)>,
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
    pub fn key(&self, share: ShareId, opens: &Opens) -> Key {
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
    fn record(&self) -> Record {
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

/// A client that is not confirmed yet: it holds nothing, and its number is nobody else's.
struct Pending {
    client: Arc<Client>,
    confirm: Verifier,
    made: Time,
}

/// A change of a client that is not confirmed yet (RFC 7530 16.33.5). It is the client's own, not a record beside it: whoever
/// forgets what was never confirmed does not forget the client.
struct Change {
    confirm: Verifier,
    callback: Callback,
    room: Charge,
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
    /// What has nothing to reclaim, and is on disk still: the next sweep takes it from there. Each was on disk.
    forgotten: Vec<Record>,
}

/// A client on disk, by a record of this run or, without one, of the last.
type Record = (Who, Option<u64>);

impl Client {
    /// What it holds, while it may hold anything: what is put in here is found by whoever ends the client. `None`: all that it had
    /// was taken from it while a request of it was carried out, and nobody would look for more.
    pub fn living(&self) -> Option<MutexGuard<'_, Mine>> {
        let mine = self.mine();
        (!self.lease.has_ended()).then_some(mine)
    }

    /// Whether the client has this now.
    #[must_use]
    pub fn hold(&self, state: &Arc<State>) -> bool {
        let living = self.living();
        living.map(|mut mine| mine.states.insert(state.other, state.clone())).is_some()
    }
}

impl Table {
    fn pending_of(&self, name: &Name) -> Option<Arc<Client>> {
        self.names.get(name)?.pending.as_ref().map(|pending| pending.client.clone())
    }

    /// The client of this name that is not confirmed yet; there was none before.
    fn set_pending(&mut self, name: Name, pending: Pending) {
        self.pending.insert(pending.client.id, name.clone());
        self.names.entry(name).or_default().pending = Some(pending);
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
    /// verifier of its record, and nobody else was told that. One that is silent there has moved, or ended, and one that was
    /// refused here is another: they begin anew.
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
            // Another run of it, if any, has not come to anything.
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
        let alive = |known: &Client| !known.lease.lapsed(now, self.limits.lease);
        let confirmed = confirmed.or_else(|| table.elsewhere(owner, by, alive).cloned());
        let confirmed = confirmed.filter(|known| !known.lease.has_ended());
        let update = flags & exchange_flag::UPD_CONFIRMED_REC_A != 0;
        let answer = |known: &Client| {
            // Others may say the same: that is no sign of life of the client.
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
                // RFC 8881 18.35.4, case 3: one that holds nothing goes at once, with its sessions.
                if !self.forget_empty(&mut table, &known) && !known.lease.lapsed(now, self.limits.lease) {
                    return Err(Status::CLID_INUSE);
                }
            }
            Some(known) if known.verifier == owner.verifier => return Ok(answer(&known)),
            // A new run of the client: the old one stays until the new one makes a session.
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
        // SEQUENCE or BIND_CONN_TO_SESSION that he is the client.
        if owned.by.principal != by.principal {
            return Err(Status::CLID_INUSE);
        }
        if !owned.is_at(by.origin.source) {
            // As for one that is not known there, so that it makes itself known at once.
            owned.refuse(by.origin.source);
            return Err(Status::STALE_CLIENTID);
        }
        if pending.is_some() && client.lease.lapsed(now, self.limits.lease) {
            // RFC 8881 18.36.3: an unconfirmed record lives for a lease.
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
        // It is not silent: others go before it does.
        client.lease.renew(now);
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
        let Some(mut mine) = client.living() else {
            // What it had was taken in this moment. A session would be nobody's.
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
        // While it is the client's: whoever ends that takes it out again.
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
        // It held nothing, and what is on disk of it goes before it is told so.
        let Taken(_) = self.taken(table, ended);
        Ok(())
    }

    /// A client is on disk before it is told that it has its first state. Not under a mutex: it takes as long as the
    /// disk does.
    pub fn remember(&self, client: &Client) -> Result<(), Status> {
        let Some(durable) = &self.durable else { return Ok(()) };
        if client.mine().remembered {
            return Ok(());
        }
        let written =
            durable.remember(&client.who, client.id, || !client.lease.has_ended()).map_err(|e| {
                tracing::error!("a client cannot be remembered over a restart: {e}");
                Status::SERVERFAULT
            })?;
        if let Some(mut mine) = client.living() {
            mine.remembered = true;
            return Ok(());
        }
        // It has ended meanwhile, and whoever ended it did not know.
        if written {
            self.table().forgotten.push(client.record());
        }
        Err(Status::EXPIRED)
    }

    /// The client has taken back all that it had in the last run.
    pub fn reclaimed(&self, client: &Client) {
        if self.grace.done(&client.who) {
            // If it has anything now, it is on disk by its record of this run, and stays there.
            self.table().forgotten.push((client.who.clone(), None));
        }
    }

    /// The confirmed client that a lease is of, also one whose state was taken away.
    pub fn holder(&self, lease: &Lease) -> Option<Arc<Client>> {
        self.table().confirmed.get(&lease.client).cloned()
    }

    /// Whose ranges these are in a share's table of locks.
    pub fn lock_owner_of(&self, share: ShareId, id: LockId) -> Option<Arc<LockOwner>> {
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
}
