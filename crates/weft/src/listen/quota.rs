//! Limits the number of connections per service and per address.
//!
//! Every service has its own part of all connections, so that a flood of one (mountd asks for no password) does not
//! block the others. When a part is full, or an address has used up its share of it, an unidentified connection there
//! is closed in favour of the new one: the oldest one of the address with the most of them, so that a client that
//! logs on during a flood is not the victim. If all are identified, the new connection is refused. This file owns the
//! counts. It does not accept or close: a connection is told to close on its own core.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_machine::{Peer, Source, rt};

use super::notice::Notice;

/// Maximum number of connections of all services: each costs a descriptor, some kilobytes, and table entries.
const MAX_CONNECTIONS: usize = 8192;
/// The part of the process's descriptors used for connections; the others are for open files.
const DESCRIPTORS_PART: usize = 4;
/// A server starts only if this many descriptors are free once it listens: a quarter of them is divided among the
/// services, and with fewer, some services would get a single connection.
const LEAST_FREE: usize = 128;
/// The minimum value that the advice suggests.
const ADVISED: usize = 1024;
/// The unit of the services' parts.
const PARTS: usize = 16;
/// The part of a service's connections that one address may have.
const ADDRESS_PART: usize = 4;
/// The minimum per address, if the service has as many: a client with several channels on each of several links.
const ADDRESS_LEAST: usize = 64;

/// The part of all connections that may have been told to close and still be open. Beyond it, accepting waits for
/// them, because each still has its descriptor: a new client waits a moment in the listener's queue instead of being
/// refused for lack of one.
const LEAVING_PART: usize = 16;
/// How long accepting waits for closing connections. One that does not close delays nobody for longer.
const LEAVING_PAUSE: Duration = Duration::from_millis(100);

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// SMB, over TCP and RDMA.
    Smb,
    /// NFS, over TCP and RDMA.
    Nfs,
    /// MOUNT, NLM and NSM on mountd's port.
    Mount,
    /// rpcbind.
    Rpcbind,
    /// NBD.
    Nbd,
}

impl Service {
    const ALL: [Service; 5] = [Service::Smb, Service::Nfs, Service::Mount, Service::Rpcbind, Service::Nbd];

    /// Its part of all connections, in units of [`PARTS`]: file services have long-lived connections, the others
    /// short ones.
    fn parts(self) -> usize {
        match self {
            Service::Smb | Service::Nfs => 6,
            Service::Nbd => 2,
            Service::Mount | Service::Rpcbind => 1,
        }
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// The service is full.
    #[error("the service has all {0} connections of its part")]
    Service(usize),
    /// The address has reached its limit.
    #[error("its address has {0} connections already")]
    Address(usize),
    /// No descriptor is left.
    #[error("the process has no free descriptor (`ulimit -n`)")]
    Descriptors,
}

/// All counts. Clones share them.
#[derive(Clone)]
pub(crate) struct Quotas(Arc<Inner>);

struct Inner {
    connections: usize,
    services: Mutex<Vec<Counts>>,
    leaving: Mutex<Leaving>,
    /// A descriptor released in order to accept, and refuse, a connection when no other is free.
    spare: Mutex<Option<OwnedFd>>,
}

/// Connections that were told to close and still have their descriptors.
#[derive(Default)]
struct Leaving {
    connections: usize,
    /// Accept loops that wait for them.
    waiting: Vec<Waker>,
}

/// The connections of a service.
#[derive(Default)]
struct Counts {
    next: u64,
    all: usize,
    /// Connections whose peer is not identified.
    strangers: HashMap<u64, Arc<Notice>>,
    sources: HashMap<Source, OfSource>,
    /// Sources with such connections, by [`OfSource::rank`]: the last one makes room.
    ranks: BTreeSet<(Rank, Source)>,
}

#[derive(Default)]
struct OfSource {
    all: usize,
    /// Oldest first.
    strangers: BTreeSet<u64>,
}

/// The number of unidentified connections; among equal sources, the one with the oldest connection.
type Rank = (usize, Reverse<u64>);

impl OfSource {
    fn rank(&self) -> Option<Rank> {
        self.strangers.first().map(|oldest| (self.strangers.len(), Reverse(*oldest)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The quota slot of one connection, released on drop.
pub(crate) struct Slot {
    quotas: Quotas,
    service: Service,
    source: Source,
    number: u64,
    notice: Arc<Notice>,
    /// Whether a protocol serves it, and ends normally when its channel is closed.
    served: Cell<bool>,
}

/// How many descriptors this process may have now.
pub(crate) fn descriptors() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX)
}

/// Too few descriptors are free to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} files, but the server needs at least {needed}: raise the limit with \
     `ulimit -n {advised}` (as root where the hard limit is lower), or LimitNOFILE={advised} in its systemd unit",
    advised = .needed.next_power_of_two().max(ADVISED)
)]
pub(crate) struct FewDescriptors {
    limit: usize,
    needed: usize,
}

/// Raises the soft limit on descriptors to the hard limit.
pub(crate) fn raise_descriptors() -> Result<(), FewDescriptors> {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit on open files stays at {:?}: {e}", limit.current);
    }
    // The kernel assigns the lowest free number, so this one is the number in use. /proc would tell too, but may be
    // missing.
    let used = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
    let used = used.and_then(|lowest| usize::try_from(lowest.as_raw_fd()).ok());
    suffices(descriptors(), used)
}

/// Whether `limit` leaves [`LEAST_FREE`] besides those in use; `used` is `None` if none is free.
fn suffices(limit: usize, used: Option<usize>) -> Result<(), FewDescriptors> {
    let needed = used.unwrap_or(limit).saturating_add(LEAST_FREE);
    if limit >= needed { Ok(()) } else { Err(FewDescriptors { limit, needed }) }
}

impl Quotas {
    /// The quotas of this process, once everything listens. Fails if too few descriptors are left to serve.
    pub(crate) fn of_process() -> Result<Quotas, FewDescriptors> {
        raise_descriptors()?;
        Ok(Quotas::new(Quotas::connections(descriptors())))
    }

    /// The number of connections of a process that may have this many descriptors.
    fn connections(descriptors: usize) -> usize {
        MAX_CONNECTIONS.min(descriptors / DESCRIPTORS_PART)
    }

    pub(super) fn new(connections: usize) -> Quotas {
        let services = Service::ALL.iter().map(|_| Counts::default()).collect();
        let (leaving, spare) = (Mutex::default(), Mutex::default());
        let quotas = Inner { connections, services: Mutex::new(services), leaving, spare };
        let quotas = Quotas(Arc::new(quotas));
        quotas.has_spare();
        quotas
    }

    fn of_service(&self, service: Service) -> usize {
        (self.0.connections * service.parts() / PARTS).max(1)
    }

    fn of_address(&self, service: Service) -> usize {
        let all = self.of_service(service);
        (all / ADDRESS_PART).max(ADDRESS_LEAST).min(all)
    }

    /// Reserves a slot for a connection from `peer`; if necessary, takes that of the oldest unidentified connection.
    pub(crate) fn enter(&self, service: Service, peer: Peer) -> Result<Slot, Full> {
        if !self.has_spare() {
            return Err(Full::Descriptors);
        }
        let source = Source::of(peer);
        let mut services = lock(&self.0.services);
        let Some(counts) = services.get_mut(service as usize) else {
            return Err(Full::Service(0));
        };
        // Processes on this host that share memory with us run as our user.
        let of_source = counts.sources.get(&source).map_or(0, |of| of.all);
        let most = self.of_address(service);
        if source != Source::Local && of_source >= most {
            let oldest = counts.sources.get(&source).and_then(|of| of.strangers.first().copied());
            self.evict_of(counts, source, oldest.ok_or(Full::Address(most))?);
        }
        let most = self.of_service(service);
        if counts.all >= most {
            let (source, oldest) = counts.first_to_go().ok_or(Full::Service(most))?;
            self.evict_of(counts, source, oldest);
        }
        let (number, notice) = (counts.next, Arc::<Notice>::default());
        counts.next += 1;
        counts.all += 1;
        counts.strangers.insert(number, notice.clone());
        counts.change(source, |of| {
            of.all += 1;
            of.strangers.insert(number);
        });
        Ok(Slot { quotas: self.clone(), service, source, number, notice, served: Cell::new(false) })
    }

    /// Closes an unidentified connection, of the service with the most of them; false if there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut services = lock(&self.0.services);
        let Some(counts) = services.iter_mut().max_by_key(|counts| counts.strangers.len()) else {
            return false;
        };
        let first = counts.first_to_go();
        first.inspect(|(source, number)| self.evict_of(counts, *source, *number)).is_some()
    }

    /// Tells a connection to close. From now on it counts only as closing.
    fn evict_of(&self, counts: &mut Counts, source: Source, number: u64) {
        if let Some(notice) = counts.strangers.remove(&number) {
            counts.leave(number, source);
            lock(&self.0.leaving).connections += 1;
            notice.give();
        }
    }

    /// Completes when most of the connections that were told to close have closed, or after [`LEAVING_PAUSE`].
    /// Awaited before each accept.
    pub(crate) async fn settled(&self) {
        if self.poll_settled(&Context::from_waker(Waker::noop())).is_pending() {
            let settled = rt::timeout(LEAVING_PAUSE, poll_fn(|cx| self.poll_settled(cx))).await;
            if settled.is_err() {
                tracing::debug!("connections that were told to close are still open");
            }
        }
    }

    fn poll_settled(&self, cx: &Context<'_>) -> Poll<()> {
        let mut leaving = lock(&self.0.leaving);
        if leaving.connections <= self.0.connections / LEAVING_PART {
            return Poll::Ready(());
        }
        if !leaving.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            leaving.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Releases the spare descriptor, so that one more connection can be accepted. The next [`Quotas::enter`]
    /// reclaims it, if necessary in place of that connection.
    pub(crate) fn give_spare_up(&self) {
        *lock(&self.0.spare) = None;
    }

    fn has_spare(&self) -> bool {
        let mut spare = lock(&self.0.spare);
        if spare.is_none() {
            // An eventfd opens no file: a bare root file system has none.
            *spare = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
        spare.is_some()
    }
}

impl Counts {
    /// The unidentified connection that makes room for others.
    fn first_to_go(&self) -> Option<(Source, u64)> {
        self.ranks.last().map(|((_, Reverse(oldest)), source)| (*source, *oldest))
    }

    fn change(&mut self, source: Source, change: impl FnOnce(&mut OfSource)) {
        let of = self.sources.entry(source).or_default();
        if let Some(rank) = of.rank() {
            self.ranks.remove(&(rank, source));
        }
        change(of);
        if let Some(rank) = of.rank() {
            self.ranks.insert((rank, source));
        }
        if of.all == 0 {
            self.sources.remove(&source);
        }
    }

    fn leave(&mut self, number: u64, source: Source) {
        self.all = self.all.saturating_sub(1);
        self.change(source, |of| {
            of.strangers.remove(&number);
            of.all = of.all.saturating_sub(1);
        });
    }
}

impl Slot {
    /// Marks the connection as identified, so that it no longer makes room. False if it has been told to close
    /// meanwhile.
    pub(crate) fn admit(&self) -> bool {
        let mut services = lock(&self.quotas.0.services);
        let Some(counts) = services.get_mut(self.service as usize) else { return false };
        if counts.strangers.remove(&self.number).is_some() {
            counts.change(self.source, |of| _ = of.strangers.remove(&self.number));
        }
        drop(services);
        !self.notice.is_given()
    }

    /// From now on a protocol ends the connection when it is told to close.
    pub(super) fn serve(&self) {
        self.served.set(true);
    }

    /// Completes when the connection is told to close and no protocol serves it.
    pub(super) fn poll_unserved(&self, cx: &Context<'_>) -> Poll<()> {
        if self.served.get() { Poll::Pending } else { self.poll_notice(cx) }
    }

    /// Completes when the connection is told to close.
    pub(crate) fn poll_notice(&self, cx: &Context<'_>) -> Poll<()> {
        self.notice.poll(cx)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut services = lock(&self.quotas.0.services);
        // The notice is given under this lock, and the connection leaves the counts then.
        if self.notice.is_given() {
            drop(services);
            let mut leaving = lock(&self.quotas.0.leaving);
            leaving.connections = leaving.connections.saturating_sub(1);
            let waiting = std::mem::take(&mut leaving.waiting);
            drop(leaving);
            waiting.into_iter().for_each(Waker::wake);
        } else if let Some(counts) = services.get_mut(self.service as usize) {
            counts.strangers.remove(&self.number);
            counts.leave(self.number, self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Peer {
        Peer::Tcp(text.parse().unwrap())
    }

    fn told(slot: &Slot) -> bool {
        slot.poll_notice(&Context::from_waker(Waker::noop())).is_ready()
    }

    /// A peer with its own address.
    fn nth(n: usize) -> Peer {
        from(&format!("10.0.{}.{}:700", n / 250, n % 250))
    }

    #[test]
    fn too_few_descriptors_are_refused_with_what_is_needed() {
        assert_eq!(suffices(256, Some(34)), Ok(()));
        assert_eq!(suffices(30 + LEAST_FREE, Some(30)), Ok(()));
        let refused = suffices(64, Some(30)).unwrap_err().to_string();
        for part in ["may open 64 files", "needs at least 158", "ulimit -n 1024", "LimitNOFILE=1024"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        // A host with many cores needs more than a small one; there may be none left to count with.
        assert!(suffices(1024, Some(1000)).unwrap_err().to_string().contains("ulimit -n 2048"));
        assert!(suffices(24, None).unwrap_err().to_string().contains("needs at least 152"));
    }

    #[test]
    fn connections_and_open_files_leave_descriptors_to_others() {
        for all in [64, 1024, 20_000, 1 << 20] {
            let smb = weft_smb::server::Limits::within(all).descriptors;
            let weft_nfs::server::Limits { open_files, descriptors: nfs, .. } =
                weft_nfs::server::Limits::within(all);
            let cached = weft_store::backend::dir::cached_descriptors(all);
            let taken = Quotas::connections(all) + smb + nfs + open_files + cached;
            assert!(taken <= all - all / 16, "{all}");
            assert!(
                weft_store::backend::dir::kept_free(all) <= all / 16,
                "what all have together can be had"
            );
        }
    }

    #[test]
    fn a_flood_of_one_service_leaves_the_others_their_part() {
        let quotas = Quotas::new(1600);
        let flood: Vec<_> = (0..1000).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(flood[..900].iter().all(told) && !flood[900..].iter().any(told), "the oldest went");
        assert!(quotas.enter(Service::Smb, nth(0)).is_ok());
        drop(flood);
        assert_eq!(lock(&quotas.0.services).iter().map(|counts| counts.all).sum::<usize>(), 0);
        let services = lock(&quotas.0.services);
        assert!(services.iter().all(|counts| counts.sources.is_empty() && counts.ranks.is_empty()));
    }

    #[test]
    fn an_address_has_a_part_and_shuts_nobody_out() {
        let quotas = Quotas::new(1600);
        // 600 for SMB, 150 per address.
        let other = quotas.enter(Service::Smb, from("192.0.2.2:1")).unwrap();
        let flood: Vec<_> =
            (1..1000).map(|port| quotas.enter(Service::Smb, from(&format!("192.0.2.1:{port}")))).collect();
        assert_eq!(flood.iter().filter(|slot| !told(slot.as_ref().unwrap())).count(), 150);
        assert!(!told(&other), "it is of another address");
        // For IPv6, a /64 counts as one address.
        let six: Vec<_> = (1..1000)
            .map(|n| quotas.enter(Service::Nfs, from(&format!("[2001:db8::{n:x}]:1"))).unwrap())
            .collect();
        assert_eq!(six.iter().filter(|slot| !told(slot)).count(), 150);
    }

    #[test]
    fn who_logs_on_beside_a_flood_is_not_the_one_who_goes() {
        let quotas = Quotas::new(1600);
        let honest = quotas.enter(Service::Smb, from("192.0.2.1:1")).unwrap();
        // Ten addresses send more connections than are admitted, for as long as the log-on takes.
        let flood: Vec<_> = (0..5000).map(|n| quotas.enter(Service::Smb, nth(n % 10)).unwrap()).collect();
        assert_eq!(flood.iter().filter(|slot| !told(slot)).count(), 599);
        assert!(!told(&honest) && honest.admit());
        // Among sources with equally many, the oldest connection goes first.
        let quotas = Quotas::new(1600);
        let one_each: Vec<_> = (0..101).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(told(&one_each[0]) && !one_each[1..].iter().any(told));
    }

    #[test]
    fn known_connections_stay_and_then_new_ones_are_refused() {
        let quotas = Quotas::new(1600);
        let known: Vec<_> = (0..100).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(known.iter().all(Slot::admit));
        assert_eq!(quotas.enter(Service::Mount, nth(100)).err(), Some(Full::Service(100)));
        assert!(!known.iter().any(told) && !quotas.evict());
        drop(known);
        assert!(quotas.enter(Service::Mount, nth(100)).is_ok());
        let peer = from("192.0.2.1:700");
        let known: Vec<_> = (0..64).map(|_| quotas.enter(Service::Mount, peer).unwrap()).collect();
        known.iter().for_each(|slot| assert!(slot.admit()));
        assert_eq!(quotas.enter(Service::Mount, peer).err(), Some(Full::Address(64)));
    }

    #[test]
    fn who_was_told_to_go_before_it_was_known_goes() {
        let quotas = Quotas::new(1600);
        let oldest = quotas.enter(Service::Nbd, nth(0)).unwrap();
        let newer = quotas.enter(Service::Nbd, nth(1)).unwrap();
        assert!(quotas.evict() && told(&oldest) && !told(&newer));
        assert!(!oldest.admit() && newer.admit());
        drop((oldest, newer));
        assert_eq!(lock(&quotas.0.services)[Service::Nbd as usize].all, 0);
    }

    #[test]
    fn accepting_waits_for_those_that_were_told_to_go() {
        let quotas = Quotas::new(160);
        let settled = || quotas.poll_settled(&Context::from_waker(Waker::noop())).is_ready();
        // Ten for mountd; from the eleventh on, each closes another one, which has its descriptor until it is gone.
        let mut flood: Vec<_> = (0..21).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(!settled(), "eleven leave, and ten may");
        drop(flood.remove(20));
        assert!(!settled(), "that was none of them");
        drop(flood.remove(0));
        assert!(settled());
        drop(flood);
        assert_eq!(lock(&quotas.0.leaving).connections, 0);
    }

    #[test]
    fn local_processes_are_bounded_by_the_service_alone() {
        let quotas = Quotas::new(1600);
        let local = Peer::Local { uid: 0, pid: Some(1) };
        let places: Vec<_> = (0..500).map(|_| quotas.enter(Service::Smb, local).unwrap()).collect();
        assert!(!places.iter().any(told));
    }
}
