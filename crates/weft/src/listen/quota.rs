//! How many connections each service and each address may have.
//!
//! Every service has a part of all connections for itself, so that a flood of one (mountd asks nobody for a password) shuts
//! nobody out of another. Where a part, or what one address may have of it, is full, a connection there that nobody knows yet is
//! closed for the new one: the oldest of the address that has most of them, so that whoever logs on beside a flood is not the one
//! who goes. Only where all are known is the new one refused.
//! Owns: the counts. Does not: accept, or close: a connection that is to go is told so on its own core.

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

/// Connections at a time, of all services together: each costs a descriptor, some kilobytes, and a place in tables.
const MAX_CONNECTIONS: usize = 8192;
/// Of the descriptors of the process, one in so many is for connections; the others are for open files.
const DESCRIPTORS_PART: usize = 4;
/// A server starts only where so many descriptors are free once it listens: of a quarter of them each service has its part of the
/// connections, and with fewer whole services had one connection.
const LEAST_FREE: usize = 128;
/// What is advised where there are fewer, at least.
const ADVISED: usize = 1024;
/// What the parts of the services are counted in.
const PARTS: usize = 16;
/// Of the part of a service, an address may have one in so many connections.
const ADDRESS_PART: usize = 4;
/// An address may have so many at least, as far as there are: a client with several channels on each of some links.
const ADDRESS_LEAST: usize = 64;

/// Connections that were told to go and have not gone yet: of all connections, one in so many. Accepting waits for them beyond
/// that, because each still has its descriptor: whoever connects waits a moment in the listener's queue, instead of being
/// refused for want of one.
const LEAVING_PART: usize = 16;
/// How long accepting waits for those that leave. One that does not go keeps nobody waiting for longer.
const LEAVING_PAUSE: Duration = Duration::from_millis(100);

/// What connections are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// SMB, by TCP and RDMA.
    Smb,
    /// NFS, by TCP and RDMA.
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

    /// Its part of all connections, of [`PARTS`]: those of file services last, the others are short.
    fn parts(self) -> usize {
        match self {
            Service::Smb | Service::Nfs => 6,
            Service::Nbd => 2,
            Service::Mount | Service::Rpcbind => 1,
        }
    }
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// Of the service.
    #[error("the service has all {0} connections of its part")]
    Service(usize),
    /// Of the address.
    #[error("its address has {0} connections already")]
    Address(usize),
    /// No descriptor is left.
    #[error("the process has no descriptor left (`ulimit -n`)")]
    Descriptors,
}

/// All counts. Cloning shares them.
#[derive(Clone)]
pub(crate) struct Quotas(Arc<Inner>);

struct Inner {
    connections: usize,
    services: Mutex<Vec<Counts>>,
    leaving: Mutex<Leaving>,
    /// A descriptor that is given up to accept, and refuse, a connection when there is no other.
    spare: Mutex<Option<OwnedFd>>,
}

/// Connections that were told to go and still have their descriptors.
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
    /// Those that nobody knows.
    strangers: HashMap<u64, Arc<Notice>>,
    sources: HashMap<Source, OfSource>,
    /// The sources that have strangers, by [`OfSource::rank`]: who makes room is of the last.
    ranks: BTreeSet<(Rank, Source)>,
}

#[derive(Default)]
struct OfSource {
    all: usize,
    /// Oldest first.
    strangers: BTreeSet<u64>,
}

/// How many strangers, and of sources with as many the one whose oldest has been there for longest.
type Rank = (usize, Reverse<u64>);

impl OfSource {
    fn rank(&self) -> Option<Rank> {
        self.strangers.first().map(|oldest| (self.strangers.len(), Reverse(*oldest)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of one connection, which it gives back when it is dropped.
pub(crate) struct Place {
    quotas: Quotas,
    service: Service,
    source: Source,
    number: u64,
    notice: Arc<Notice>,
    /// A protocol serves it, which ends in order when its channel is closed.
    served: Cell<bool>,
}

/// How many descriptors this process may have now.
pub(crate) fn descriptors() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX)
}

/// Raises the soft limit on descriptors to the hard one, and says why this process has too few to serve.
pub(crate) fn raise_descriptors() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit on open files stays at {:?}: {e}", limit.current);
    }
    // The kernel gives out the lowest free number, so this one is how many there are. /proc would tell, but may be missing.
    let used = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
    let used = used.and_then(|lowest| usize::try_from(lowest.as_raw_fd()).ok());
    suffices(descriptors(), used)
}

/// Whether `limit` leaves [`LEAST_FREE`] beside those in use; `None`: not one is left.
fn suffices(limit: usize, used: Option<usize>) -> Result<(), String> {
    let needed = used.unwrap_or(limit).saturating_add(LEAST_FREE);
    if limit >= needed {
        return Ok(());
    }
    let advised = needed.next_power_of_two().max(ADVISED);
    Err(format!(
        "this process may open {limit} files, and to serve it needs {needed} at least: raise the limit with \
         `ulimit -n {advised}` (as root where the hard limit is lower), or LimitNOFILE={advised} in its systemd unit"
    ))
}

impl Quotas {
    /// For this process, once everything listens. Fails where too few descriptors are left to serve.
    pub(crate) fn of_process() -> Result<Quotas, String> {
        raise_descriptors()?;
        Ok(Quotas::new(Quotas::connections(descriptors())))
    }

    /// Of a process that may have so many descriptors.
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

    /// A place for a connection from `peer`, if need be that of the oldest one that nobody knows.
    pub(crate) fn enter(&self, service: Service, peer: Peer) -> Result<Place, Full> {
        if !self.has_spare() {
            return Err(Full::Descriptors);
        }
        let source = Source::of(peer);
        let mut services = lock(&self.0.services);
        let Some(counts) = services.get_mut(service as usize) else {
            return Err(Full::Service(0));
        };
        // Processes of this host that share memory with us are our own.
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
        Ok(Place { quotas: self.clone(), service, source, number, notice, served: Cell::new(false) })
    }

    /// Closes a connection that nobody knows, of whatever service has most of them; false where there is none.
    pub(crate) fn evict(&self) -> bool {
        let mut services = lock(&self.0.services);
        let Some(counts) = services.iter_mut().max_by_key(|counts| counts.strangers.len()) else {
            return false;
        };
        let first = counts.first_to_go();
        first.inspect(|(source, number)| self.evict_of(counts, *source, *number)).is_some()
    }

    /// Tells a connection to go. From now on it does not count, but as one that leaves.
    fn evict_of(&self, counts: &mut Counts, source: Source, number: u64) {
        if let Some(notice) = counts.strangers.remove(&number) {
            counts.leave(number, source);
            lock(&self.0.leaving).connections += 1;
            notice.give();
        }
    }

    /// Ends when most of those that were told to go have gone, or after [`LEAVING_PAUSE`]. To be awaited before each accept.
    pub(crate) async fn settled(&self) {
        if self.poll_settled(&Context::from_waker(Waker::noop())).is_pending() {
            let settled = rt::timeout(LEAVING_PAUSE, poll_fn(|cx| self.poll_settled(cx))).await;
            if settled.is_err() {
                tracing::debug!("connections that were told to go are still there");
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

    /// Gives the spare descriptor up, so that one more connection can be accepted. It is had again at the next
    /// [`Quotas::enter`], if need be in place of that connection.
    pub(crate) fn give_spare_up(&self) {
        *lock(&self.0.spare) = None;
    }

    fn has_spare(&self) -> bool {
        let mut spare = lock(&self.0.spare);
        if spare.is_none() {
            // No file is opened for it: a bare root has none.
            *spare = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok();
        }
        spare.is_some()
    }
}

impl Counts {
    /// The stranger that makes room for others.
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

impl Place {
    /// The connection is known from now on, and nobody's oldest stranger. One that was told to go meanwhile goes: false.
    pub(crate) fn admit(&self) -> bool {
        let mut services = lock(&self.quotas.0.services);
        let Some(counts) = services.get_mut(self.service as usize) else { return false };
        if counts.strangers.remove(&self.number).is_some() {
            counts.change(self.source, |of| _ = of.strangers.remove(&self.number));
        }
        drop(services);
        !self.notice.is_given()
    }

    /// From now on a protocol ends the connection when it is to go.
    pub(super) fn serve(&self) {
        self.served.set(true);
    }

    /// Ends when the connection is to go and no protocol serves it.
    pub(super) fn poll_unserved(&self, cx: &Context<'_>) -> Poll<()> {
        if self.served.get() { Poll::Pending } else { self.poll_notice(cx) }
    }

    /// Ends when the connection is to go.
    pub(crate) fn poll_notice(&self, cx: &Context<'_>) -> Poll<()> {
        self.notice.poll(cx)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut services = lock(&self.quotas.0.services);
        // One is told to go under this lock, and is taken out of the counts then.
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

    fn told(place: &Place) -> bool {
        place.poll_notice(&Context::from_waker(Waker::noop())).is_ready()
    }

    /// A peer of an address of its own.
    fn nth(n: usize) -> Peer {
        from(&format!("10.0.{}.{}:700", n / 250, n % 250))
    }

    #[test]
    fn too_few_descriptors_are_refused_with_what_is_needed() {
        assert_eq!(suffices(256, Some(34)), Ok(()));
        assert_eq!(suffices(30 + LEAST_FREE, Some(30)), Ok(()));
        let refused = suffices(64, Some(30)).unwrap_err();
        for part in ["may open 64 files", "needs 158 at least", "ulimit -n 1024", "LimitNOFILE=1024"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        // A host with many cores needs more than what suffices elsewhere; none may be left to count with.
        assert!(suffices(1024, Some(1000)).unwrap_err().contains("ulimit -n 2048"));
        assert!(suffices(24, None).unwrap_err().contains("needs 152 at least"));
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
        // 600 of SMB's, 150 of an address.
        let other = quotas.enter(Service::Smb, from("192.0.2.2:1")).unwrap();
        let flood: Vec<_> =
            (1..1000).map(|port| quotas.enter(Service::Smb, from(&format!("192.0.2.1:{port}")))).collect();
        assert_eq!(flood.iter().filter(|place| !told(place.as_ref().unwrap())).count(), 150);
        assert!(!told(&other), "it is of another address");
        // Of IPv6, a /64 counts as one.
        let six: Vec<_> = (1..1000)
            .map(|n| quotas.enter(Service::Nfs, from(&format!("[2001:db8::{n:x}]:1"))).unwrap())
            .collect();
        assert_eq!(six.iter().filter(|place| !told(place)).count(), 150);
    }

    #[test]
    fn who_logs_on_beside_a_flood_is_not_the_one_who_goes() {
        let quotas = Quotas::new(1600);
        let honest = quotas.enter(Service::Smb, from("192.0.2.1:1")).unwrap();
        // From ten addresses come more than are let in, for as long as the log-on takes.
        let flood: Vec<_> = (0..5000).map(|n| quotas.enter(Service::Smb, nth(n % 10)).unwrap()).collect();
        assert_eq!(flood.iter().filter(|place| !told(place)).count(), 599);
        assert!(!told(&honest) && honest.admit());
        // Of those who have as many, whoever came first goes first.
        let quotas = Quotas::new(1600);
        let one_each: Vec<_> = (0..101).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(told(&one_each[0]) && !one_each[1..].iter().any(told));
    }

    #[test]
    fn known_connections_stay_and_then_new_ones_are_refused() {
        let quotas = Quotas::new(1600);
        let known: Vec<_> = (0..100).map(|n| quotas.enter(Service::Mount, nth(n)).unwrap()).collect();
        assert!(known.iter().all(Place::admit));
        assert_eq!(quotas.enter(Service::Mount, nth(100)).err(), Some(Full::Service(100)));
        assert!(!known.iter().any(told) && !quotas.evict());
        drop(known);
        assert!(quotas.enter(Service::Mount, nth(100)).is_ok());
        let peer = from("192.0.2.1:700");
        let known: Vec<_> = (0..64).map(|_| quotas.enter(Service::Mount, peer).unwrap()).collect();
        known.iter().for_each(|place| assert!(place.admit()));
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
        // Ten of mountd's; the eleventh and on each send one away, which has its descriptor until it goes.
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
        let local = Peer::Local { uid: 0, pid: 1 };
        let places: Vec<_> = (0..500).map(|_| quotas.enter(Service::Smb, local).unwrap()).collect();
        assert!(!places.iter().any(told));
    }
}
