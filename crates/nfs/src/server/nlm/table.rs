//! What hosts hold by NLM: names for their lock owners, requests that wait, share modes.
//!
//! Spec: RFC 1813 appendix II. Owns: the names, and the opens that share modes are. Does not: keep ranges; those are in the
//! table of opens, beside those of SMB and NFSv4.
//!
//! A host is an address and the name that it gives itself: one of the two alone would let one host give back what another
//! one holds. Locking: one mutex, for short sections. What is decided with the table of opens is decided under it; that
//! table never asks back.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::AbortHandle;
use weft_store::NodeId;
use weft_store::opens::{LockOwner, Open, Refused};
use weft_wire::nlm::Object;

/// Hosts that hold something or wait for it.
pub(super) const MAX_HOSTS: usize = 4096;
/// Lock owners of a host.
pub(super) const MAX_OWNERS: usize = 16_384;
/// Requests of a host that wait.
pub(super) const MAX_BLOCKED: usize = 1024;
/// Share modes of a host.
pub(super) const MAX_SHARES: usize = 16_384;

/// A host.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HostId {
    pub addr: IpAddr,
    /// By its own words.
    pub name: Bytes,
}

/// A file, by the number of its share.
pub(super) type FileId = (usize, NodeId);

/// Who locks: a process of a host, as the host tells them apart. The store's names are per share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct OwnerId {
    pub share: usize,
    pub owner: Object,
    pub svid: u32,
}

struct Owner {
    id: LockOwner,
    /// Files where it holds ranges.
    files: Vec<NodeId>,
}

/// A request that waits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Wish {
    pub owner: OwnerId,
    pub node: NodeId,
    pub offset: u64,
    pub length: u64,
    pub exclusive: bool,
}

pub(super) struct Blocked {
    /// Tells this wait from an earlier one of the same wish.
    pub number: u64,
    pub cookie: Object,
    pub waiting: AbortHandle,
    /// It is locked, and the host has not said yet that it knows.
    pub granted: bool,
}

#[derive(Default)]
struct Host {
    owners: HashMap<OwnerId, Owner>,
    blocked: HashMap<Wish, Blocked>,
    shares: HashMap<(FileId, Object), Open>,
}

impl Host {
    fn is_unused(&self) -> bool {
        self.owners.is_empty() && self.blocked.is_empty() && self.shares.is_empty()
    }
}

#[derive(Default)]
struct Hosts {
    known: HashMap<HostId, Host>,
    /// Of each owner in `known`, by the store's name for it.
    words: HashMap<(usize, LockOwner), (Object, u32)>,
    next: u64,
}

/// What a host held, to be given back by whoever took it out of the table.
#[derive(Default)]
pub(super) struct Freed {
    pub ranges: Vec<(FileId, LockOwner)>,
    pub shares: Vec<(usize, Open)>,
}

/// The table is full.
#[derive(Debug)]
pub(super) struct Full;

/// All hosts.
#[derive(Default)]
pub(super) struct Table(Mutex<Hosts>);

impl Table {
    // Each section leaves the maps whole, also when it panics for want of memory.
    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's name of an owner that is about to lock something in `node`; `new` makes one.
    pub fn enter(
        &self,
        host: &HostId,
        owner: &OwnerId,
        node: NodeId,
        new: impl FnOnce() -> LockOwner,
    ) -> Result<LockOwner, Full> {
        let hosts = &mut *self.hosts();
        let host = hosts.host(host)?;
        let full = host.owners.len() >= MAX_OWNERS;
        if full && !host.owners.contains_key(owner) {
            return Err(Full);
        }
        let known =
            host.owners.entry(owner.clone()).or_insert_with(|| Owner { id: new(), files: Vec::new() });
        if !known.files.contains(&node) {
            known.files.push(node);
        }
        let id = known.id;
        hosts.words.insert((owner.share, id), (owner.owner.clone(), owner.svid));
        Ok(id)
    }

    /// The store's name of an owner, if it has one.
    pub fn owner(&self, host: &HostId, owner: &OwnerId) -> Option<LockOwner> {
        Some(self.hosts().known.get(host)?.owners.get(owner)?.id)
    }

    /// Whose lock this is: the host's own words.
    pub fn words(&self, share: usize, id: LockOwner) -> Option<(Object, u32)> {
        self.hosts().words.get(&(share, id)).cloned()
    }

    /// Forgets that the owner locks in `node`, unless it still does or waits there.
    pub fn leave(&self, host: &HostId, owner: &OwnerId, node: NodeId, holds: impl FnOnce(LockOwner) -> bool) {
        let hosts = &mut *self.hosts();
        let Some(known) = hosts.known.get_mut(host) else { return };
        let waits = known.blocked.keys().any(|wish| wish.owner == *owner && wish.node == node);
        if let Some(entry) = known.owners.get_mut(owner)
            && !waits
            && !holds(entry.id)
        {
            entry.files.retain(|file| *file != node);
            if entry.files.is_empty() {
                hosts.words.remove(&(owner.share, entry.id));
                known.owners.remove(owner);
            }
        }
        hosts.tidy(host);
    }

    /// Notes that a request waits, by the handle that ends the wait. `None`: it waited already, and keeps to that; its
    /// cookie is this one from now on.
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
        let host = hosts.host(host)?;
        if let Some(known) = host.blocked.get_mut(wish) {
            known.cookie = cookie.clone();
            return Ok(None);
        }
        if host.blocked.len() >= MAX_BLOCKED {
            return Err(Full);
        }
        let blocked = Blocked { number, cookie: cookie.clone(), waiting, granted: false };
        host.blocked.insert(wish.clone(), blocked);
        Ok(Some(number))
    }

    /// Lets a request that waits try once more: `attempt` locks what it wishes. Gives the cookie for telling so, `None` when
    /// nobody waits any more: then nothing is locked, because a CANCEL comes before or after this and not within.
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

    /// The wait is over, however: takes it out. With a number, only if it is that wait.
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

    /// Changes or enters the share mode of an owner: `change` is asked where there is one, `new` where there is none.
    pub fn share(
        &self,
        host: &HostId,
        file: FileId,
        owner: &Object,
        change: impl FnOnce(&Open) -> bool,
        new: impl FnOnce() -> Option<Open>,
    ) -> Result<bool, Full> {
        let mut hosts = self.hosts();
        let known = hosts.host(host)?;
        let key = (file, owner.clone());
        let done = match known.shares.get(&key) {
            Some(open) => change(open),
            None if known.shares.len() >= MAX_SHARES => return Err(Full),
            None => match new() {
                Some(open) => known.shares.insert(key, open).is_none(),
                None => false,
            },
        };
        hosts.tidy(host);
        Ok(done)
    }

    /// Takes a share mode out.
    pub fn unshare(&self, host: &HostId, file: FileId, owner: &Object) -> Option<Open> {
        let mut hosts = self.hosts();
        let open = hosts.known.get_mut(host)?.shares.remove(&(file, owner.clone()));
        hosts.tidy(host);
        open
    }

    /// Takes out all that a host holds, and ends its waits.
    pub fn free(&self, host: &HostId) -> Freed {
        let mut hosts = self.hosts();
        let Some(host) = hosts.known.remove(host) else { return Freed::default() };
        let mut freed = Freed::default();
        host.blocked.into_values().for_each(|blocked| blocked.waiting.abort());
        for (owner, known) in host.owners {
            hosts.words.remove(&(owner.share, known.id));
            freed.ranges.extend(known.files.into_iter().map(|node| ((owner.share, node), known.id)));
        }
        freed.shares.extend(host.shares.into_iter().map(|(((share, _), _), open)| (share, open)));
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
    fn host(&mut self, host: &HostId) -> Result<&mut Host, Full> {
        if self.known.len() >= MAX_HOSTS && !self.known.contains_key(host) {
            return Err(Full);
        }
        Ok(self.known.entry(host.clone()).or_default())
    }

    fn tidy(&mut self, host: &HostId) {
        if self.known.get(host).is_some_and(Host::is_unused) {
            self.known.remove(host);
        }
    }
}
