//! What hosts hold through NLM: the names of their lock owners, blocked requests, share modes.
//!
//! See RFC 1813 appendix II. The table owns the names, and the opens that represent share modes. Ranges are in the
//! table of opens, beside those of SMB and NFSv4.
//!
//! A host is identified by its address and the name that it claims: either of the two alone would let one host
//! release what another one holds. A caller can invent any number of names, so memory is charged to the address from
//! which calls come ([`Source`]), in the budget of NFSv4's state: an address that uses up its part leaves the others
//! theirs.
//!
//! An owner is forgotten with its last range. While a LOCK request is running ([`Entered`]), its owner stays,
//! whatever other requests unlock or free meanwhile: otherwise the request would lock under a name by which nobody
//! could unlock.
//!
//! Locking: one mutex, held for short sections. Decisions that involve the table of opens are made under it; that
//! table never calls back.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::AbortHandle;
use weft_machine::budget::Full;
use weft_machine::{Budget, Charge, Source};
use weft_store::opens::{LockOwner, Open, Opens, Refused};
use weft_store::{NodeId, ShareKey};
use weft_wire::nlm::Object;

use crate::server::file_id::FileId;
use crate::server::v4::state::Ranges;

/// Memory charged for a host, without its name.
pub(super) const HOST_BYTES: usize = 1024;
/// Memory charged for a lock owner, without its name.
pub(super) const OWNER_BYTES: usize = 1024;
/// Memory charged for a file in which an owner holds ranges, or for one with a share mode.
pub(super) const FILE_BYTES: usize = 512;
/// Memory charged for a blocked request: its task, and the connection by which its client will be told.
pub(super) const WAIT_BYTES: usize = 16 << 10;
/// Most lock owners of a host.
pub(super) const MAX_OWNERS: usize = 16_384;
/// Most blocked requests of a host.
pub(super) const MAX_BLOCKED: usize = 1024;
/// Most share modes of a host.
pub(super) const MAX_SHARES: usize = 16_384;

/// A host that calls the lock manager.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HostId {
    pub addr: IpAddr,
    /// The name that it claims.
    pub name: Bytes,
}

/// A lock owner: a process of a host, as the host distinguishes them. The store's ids of lock owners are per share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct OwnerId {
    pub share: ShareKey,
    pub owner: Object,
    pub svid: u32,
}

struct Owner {
    id: LockOwner,
    /// The host's state number at its last LOCK, if it sent one.
    state: Option<u32>,
    /// Files in which it holds ranges or is about to.
    files: HashMap<NodeId, LockedFile>,
    _charge: Charge,
}

/// A file in which an owner holds ranges, waits for one, or has running requests.
struct LockedFile {
    ranges: Arc<Ranges>,
    /// Number of running LOCK requests, each an [`Entered`].
    pending: usize,
}

/// A running LOCK request. Its owner stays in the table until this is dropped, and longer if the owner then holds or
/// awaits a lock.
pub(super) struct Entered<'a> {
    table: &'a Table,
    host: &'a HostId,
    owner: &'a OwnerId,
    node: NodeId,
    opens: &'a Opens,
    /// The store's id of the owner.
    pub id: LockOwner,
    /// The memory charge for its ranges in the file.
    pub ranges: Arc<Ranges>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let Entered { table, host, owner, node, opens, .. } = *self;
        table.ended(host, owner, node);
        table.leave(host, owner, node, |id| opens.holds_ranges(node, id));
    }
}

/// A blocked request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Wish {
    pub owner: OwnerId,
    pub node: NodeId,
    pub offset: u64,
    pub length: u64,
    pub exclusive: bool,
}

pub(super) struct Blocked {
    /// Distinguishes this wait from an earlier one for the same lock.
    pub number: u64,
    pub cookie: Object,
    pub waiting: AbortHandle,
    /// The lock is granted, and the host has not acknowledged that yet.
    pub granted: bool,
    _charge: Charge,
}

struct Host {
    owners: HashMap<OwnerId, Owner>,
    blocked: HashMap<Wish, Blocked>,
    shares: HashMap<(FileId, Object), (Open, Charge)>,
    _charge: Charge,
}

impl Host {
    fn is_unused(&self) -> bool {
        self.owners.is_empty() && self.blocked.is_empty() && self.shares.is_empty()
    }
}

#[derive(Default)]
struct Hosts {
    known: HashMap<HostId, Host>,
    /// The NLM names of each owner in `known`, by the store's id.
    words: HashMap<(ShareKey, LockOwner), (Object, u32)>,
    next: u64,
}

/// What a host held; whoever took it out of the table releases it.
#[derive(Default)]
pub(super) struct Freed {
    pub ranges: Vec<(FileId, LockOwner)>,
    pub shares: Vec<(ShareKey, Open)>,
}

/// All hosts.
pub(super) struct Table {
    hosts: Mutex<Hosts>,
    budget: Budget,
}

impl Table {
    /// An empty table, whose memory is charged to `budget`.
    pub fn new(budget: Budget) -> Table {
        Table { hosts: Mutex::default(), budget }
    }

    // Every section leaves the maps consistent, even if it panics because memory runs out.
    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters an owner that is about to lock something in `node`. `state` is the host's state number.
    pub fn enter<'a>(
        &'a self,
        host: &'a HostId,
        owner: &'a OwnerId,
        state: Option<u32>,
        node: NodeId,
        opens: &'a Opens,
    ) -> Result<Entered<'a>, Full> {
        let hosts = &mut *self.hosts();
        let entered = hosts.host(&self.budget, host).and_then(|known| {
            let charge = |bytes| self.budget.charge(Source::of_ip(host.addr), bytes);
            let new_here = known.owners.get(owner).is_none_or(|owner| !owner.files.contains_key(&node));
            let ranges = new_here.then(|| charge(FILE_BYTES)).transpose()?.map(|c| Arc::new(Ranges::new(c)));
            if !known.owners.contains_key(owner) {
                if known.owners.len() >= MAX_OWNERS {
                    return Err(Full);
                }
                // The owner's name is stored twice.
                let words = owner.owner.0.len().saturating_mul(2);
                let _charge = charge(OWNER_BYTES.saturating_add(words))?;
                let new = Owner { id: opens.lock_owner(), state: None, files: HashMap::new(), _charge };
                known.owners.insert(owner.clone(), new);
            }
            let known = known.owners.get_mut(owner).ok_or(Full)?;
            known.state = state.or(known.state);
            known.files.extend(ranges.map(|ranges| (node, LockedFile { ranges, pending: 0 })));
            let file = known.files.get_mut(&node).ok_or(Full)?;
            file.pending = file.pending.checked_add(1).ok_or(Full)?;
            Ok((known.id, file.ranges.clone()))
        });
        match entered {
            Ok((id, ranges)) => {
                hosts.words.insert((owner.share, id), (owner.owner.clone(), owner.svid));
                Ok(Entered { table: self, host, owner, node, opens, id, ranges })
            }
            Err(Full) => {
                hosts.tidy(host);
                Err(Full)
            }
        }
    }

    /// One request fewer is running.
    fn ended(&self, host: &HostId, owner: &OwnerId, node: NodeId) {
        let mut hosts = self.hosts();
        let owner = hosts.known.get_mut(host).and_then(|host| host.owners.get_mut(owner));
        if let Some(file) = owner.and_then(|owner| owner.files.get_mut(&node)) {
            file.pending = file.pending.saturating_sub(1);
        }
    }

    /// The memory charge for an owner's ranges in a file.
    pub fn ranges(&self, host: &HostId, owner: &OwnerId, node: NodeId) -> Option<Arc<Ranges>> {
        Some(self.hosts().known.get(host)?.owners.get(owner)?.files.get(&node)?.ranges.clone())
    }

    /// Whether a host holds or awaits anything.
    pub fn knows(&self, host: &HostId) -> bool {
        self.hosts().known.contains_key(host)
    }

    /// All hosts that do.
    pub fn hosts_known(&self) -> Vec<HostId> {
        self.hosts().known.keys().cloned().collect()
    }

    /// The addresses of hosts that do.
    pub fn addresses(&self) -> HashSet<IpAddr> {
        self.hosts().known.keys().map(|host| host.addr.to_canonical()).collect()
    }

    /// The store's id of an owner, if it has one.
    pub fn owner(&self, host: &HostId, owner: &OwnerId) -> Option<LockOwner> {
        Some(self.hosts().known.get(host)?.owners.get(owner)?.id)
    }

    /// The NLM name of a lock's owner.
    pub fn words(&self, share: ShareKey, id: LockOwner) -> Option<(Object, u32)> {
        self.hosts().words.get(&(share, id)).cloned()
    }

    /// Forgets that the owner locks in `node`, unless it holds or awaits a range there, or is about to lock one.
    pub fn leave(&self, host: &HostId, owner: &OwnerId, node: NodeId, holds: impl FnOnce(LockOwner) -> bool) {
        let hosts = &mut *self.hosts();
        let Some(known) = hosts.known.get_mut(host) else { return };
        let waits = known.blocked.keys().any(|wish| wish.owner == *owner && wish.node == node);
        if let Some(entry) = known.owners.get_mut(owner)
            && entry.files.get(&node).is_none_or(|file| file.pending == 0)
            && !waits
            && !holds(entry.id)
        {
            entry.files.remove(&node);
            if entry.files.is_empty() {
                hosts.words.remove(&(owner.share, entry.id));
                known.owners.remove(owner);
            }
        }
        hosts.tidy(host);
    }

    /// Registers a blocked request with the handle that ends its wait. `None`: it is already waiting; that wait
    /// continues with the new cookie.
    pub fn block(
        &self,
        host: &HostId,
        wish: &Wish,
        cookie: &Object,
        waiting: AbortHandle,
    ) -> Result<Option<u64>, Full> {
        let hosts = &mut *self.hosts();
        hosts.next = hosts.next.wrapping_add(1);
        let number = hosts.next;
        // A blocked request has entered its owner.
        let source = Source::of_ip(host.addr);
        let host = hosts.known.get_mut(host).ok_or(Full)?;
        if let Some(known) = host.blocked.get_mut(wish) {
            known.cookie = cookie.clone();
            return Ok(None);
        }
        if host.blocked.len() >= MAX_BLOCKED {
            return Err(Full);
        }
        let _charge = self.budget.charge(source, WAIT_BYTES)?;
        let blocked = Blocked { number, cookie: cookie.clone(), waiting, granted: false, _charge };
        host.blocked.insert(wish.clone(), blocked);
        Ok(Some(number))
    }

    /// Lets a blocked request try again: `attempt` takes the lock. Returns the cookie for GRANTED, or `None` if
    /// nobody waits any more. Then nothing is locked: a CANCEL is processed before or after this, never in between.
    pub fn poll_granted(
        &self,
        host: &HostId,
        wish: &Wish,
        number: u64,
        attempt: impl FnOnce() -> Poll<Result<(), Refused>>,
    ) -> Poll<Option<Result<Object, Refused>>> {
        let mut hosts = self.hosts();
        let blocked = hosts.known.get_mut(host).and_then(|host| host.blocked.get_mut(wish));
        let Some(blocked) = blocked.filter(|blocked| blocked.number == number) else {
            return Poll::Ready(None);
        };
        attempt().map(|done| {
            blocked.granted = done.is_ok();
            Some(done.map(|()| blocked.cookie.clone()))
        })
    }

    /// The wait has ended, for whatever reason; removes it. With a number, only if it is that wait.
    pub fn unblock(&self, host: &HostId, wish: &Wish, number: Option<u64>) -> Option<Blocked> {
        let mut hosts = self.hosts();
        let known = hosts.known.get_mut(host)?;
        if number.is_some_and(|number| known.blocked.get(wish).is_none_or(|b| b.number != number)) {
            return None;
        }
        let blocked = known.blocked.remove(wish);
        hosts.tidy(host);
        blocked
    }

    /// Changes or creates the share mode of an owner: calls `change` if there is one, `new` otherwise.
    pub fn share(
        &self,
        host: &HostId,
        file: FileId,
        owner: &Object,
        change: impl FnOnce(&Open) -> bool,
        new: impl FnOnce() -> Option<Open>,
    ) -> Result<bool, Full> {
        let mut hosts = self.hosts();
        let done = hosts.host(&self.budget, host).and_then(|known| {
            let key = (file, owner.clone());
            let bytes = FILE_BYTES.saturating_add(owner.0.len());
            match known.shares.get(&key) {
                Some((open, _)) => Ok(change(open)),
                None if known.shares.len() >= MAX_SHARES => Err(Full),
                None => {
                    let charge = self.budget.charge(Source::of_ip(host.addr), bytes)?;
                    let new = new().map(|open| known.shares.insert(key, (open, charge)));
                    Ok(new.is_some())
                }
            }
        });
        hosts.tidy(host);
        done
    }

    /// Removes a share mode.
    pub fn unshare(&self, host: &HostId, file: FileId, owner: &Object) -> Option<Open> {
        let mut hosts = self.hosts();
        let open = hosts.known.get_mut(host)?.shares.remove(&(file, owner.clone()));
        hosts.tidy(host);
        open.map(|(open, _)| open)
    }

    /// Removes what a host holds, and ends its waits, in every share for which `goes` returns true, given the host's
    /// state number at the time of its lock (share modes have none).
    pub fn free(&self, host: &HostId, goes: impl Fn(ShareKey, Option<u32>) -> bool) -> Freed {
        let hosts = &mut *self.hosts();
        let mut freed = Freed::default();
        let Some(known) = hosts.known.get_mut(host) else { return freed };
        let mut gone = HashSet::new();
        for (owner, known) in known.owners.iter_mut().filter(|(owner, known)| goes(owner.share, known.state))
        {
            freed.ranges.extend(
                known.files.keys().map(|node| (FileId { share: owner.share, node: *node }, known.id)),
            );
            // A lock that a running request will take can be released by this name alone.
            known.files.retain(|_, file| file.pending > 0);
            gone.insert(owner.clone());
        }
        for (_, blocked) in known.blocked.extract_if(|wish, _| gone.contains(&wish.owner)) {
            blocked.waiting.abort();
        }
        let shares = known.shares.extract_if(|(file, _), _| goes(file.share, None));
        freed.shares.extend(shares.map(|((file, _), (open, _))| (file.share, open)));
        for (owner, known) in known.owners.extract_if(|_, known| known.files.is_empty()) {
            hosts.words.remove(&(owner.share, known.id));
        }
        hosts.tidy(host);
        freed
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.hosts().known.len()
    }

    #[cfg(test)]
    pub fn waits(&self) -> usize {
        self.hosts().known.values().map(|host| host.blocked.len()).sum()
    }
}

impl Hosts {
    fn host(&mut self, budget: &Budget, host: &HostId) -> Result<&mut Host, Full> {
        if !self.known.contains_key(host) {
            let bytes = HOST_BYTES.saturating_add(host.name.len());
            let _charge = budget.charge(Source::of_ip(host.addr), bytes)?;
            let (owners, blocked, shares) = Default::default();
            self.known.insert(host.clone(), Host { owners, blocked, shares, _charge });
        }
        self.known.get_mut(host).ok_or(Full)
    }

    fn tidy(&mut self, host: &HostId) {
        if self.known.get(host).is_some_and(Host::is_unused) {
            self.known.remove(host);
        }
    }
}
