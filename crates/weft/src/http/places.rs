//! The places for connections: few, and none that somebody without a token can keep from somebody with one.
//!
//! A connection is a stranger until it has shown a token or a certificate. When all places are taken, a new connection
//! gets that of a stranger: of the address with most of them, the oldest that waits for no answer. Where nobody can
//! show anything (loopback without a token, a Unix socket), all are strangers.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use weft_machine::net::Source;
use weft_machine::{LogLimit, rt};

/// Maximum number of connections.
pub(super) const MOST_CONNECTIONS: usize = 32;
/// When so many places are taken, a stranger's connection ends with its answer.
const CROWDED: usize = MOST_CONNECTIONS / 2;

/// All places.
#[derive(Default)]
pub(super) struct Places(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    next: u64,
    /// By arrival.
    all: BTreeMap<u64, Connection>,
}

struct Connection {
    peer: Option<IpAddr>,
    is_stranger: bool,
    /// Requests that wait for their answer: one at most.
    asking: usize,
    task: AbortHandle,
}

/// The place of a connection; it is free when this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    peer: Option<IpAddr>,
}

/// A request waits for its answer until this is dropped.
pub(super) struct Asking<'a>(&'a Place);

/// A peer in the log.
pub(super) fn named(peer: Option<IpAddr>) -> String {
    peer.map_or_else(|| "the Unix socket".to_owned(), |ip| ip.to_canonical().to_string())
}

fn source(peer: Option<IpAddr>) -> Option<Source> {
    peer.map(Source::of_ip)
}

impl Taken {
    /// The connection that makes room for another one.
    fn first_to_go(&self) -> Option<u64> {
        let strangers = || self.all.iter().filter(|(_, one)| one.is_stranger);
        let mut of_source: HashMap<Option<Source>, usize> = HashMap::new();
        for (_, one) in strangers() {
            *of_source.entry(source(one.peer)).or_default() += 1;
        }
        let rank = |one: &Connection| (one.asking == 0, of_source.get(&source(one.peer)).copied());
        // Of equal ones, `min_by_key` takes the first, which is the oldest.
        strangers().min_by_key(|(_, one)| std::cmp::Reverse(rank(one))).map(|(number, _)| *number)
    }
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        // No change is left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task of a new connection. If there is no place for it, its stream is dropped.
    pub(super) fn take<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Places>,
        peer: Option<IpAddr>,
        serve: impl FnOnce(Place) -> F,
    ) {
        let mut taken = self.taken();
        if taken.all.len() >= MOST_CONNECTIONS {
            static FULL: LogLimit = LogLimit::new();
            let logged = FULL.pass(rt::now());
            let gone = taken.first_to_go().and_then(|number| taken.all.remove(&number));
            if let Some(left_out) = logged {
                let done = match &gone {
                    Some(gone) => format!("closed one of {} for a new one of", named(gone.peer)),
                    None => "all of them have shown a token or a certificate; refused one of".to_owned(),
                };
                let peer = named(peer);
                tracing::warn!(
                    "limit reached: {MOST_CONNECTIONS} connections to the admin server: {done} {peer}{left_out}"
                );
            }
            match gone {
                Some(gone) => gone.task.abort(),
                None => return,
            }
        }
        let number = taken.next;
        taken.next += 1;
        // The lock is held until the connection is in the table, so that its place is not free before.
        let task = tokio::spawn(serve(Place { places: self.clone(), number, peer })).abort_handle();
        taken.all.insert(number, Connection { peer, is_stranger: true, asking: 0, task });
    }
}

impl Place {
    /// Who has it.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn change<T>(&self, change: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        self.places.taken().all.get_mut(&self.number).map(change)
    }

    /// The client has shown a token or a certificate.
    pub(super) fn admit(&self) {
        self.change(|one| one.is_stranger = false);
    }

    /// A request waits for its answer.
    pub(super) fn ask(&self) -> Asking<'_> {
        self.change(|one| one.asking += 1);
        Asking(self)
    }

    /// Whether the connection ends with this answer: a stranger's, where a token is wanted or the places run out.
    pub(super) fn must_leave(&self, wants_token: bool) -> bool {
        let taken = self.places.taken();
        let is_stranger = taken.all.get(&self.number).is_none_or(|one| one.is_stranger);
        is_stranger && (wants_token || taken.all.len() >= CROWDED)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.change(|one| one.asking = one.asking.saturating_sub(1));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places that are taken from these addresses, in this order; each connection stays until it is closed.
    async fn places(peers: &[&str]) -> (Arc<Places>, Arc<Mutex<Vec<Place>>>) {
        let (places, kept) = (Arc::new(Places::default()), Arc::<Mutex<Vec<Place>>>::default());
        for peer in peers {
            take(&places, &kept, peer).await;
        }
        (places, kept)
    }

    async fn take(places: &Arc<Places>, kept: &Arc<Mutex<Vec<Place>>>, peer: &str) {
        let kept = kept.clone();
        places.take(Some(peer.parse().unwrap()), |place| async move {
            kept.lock().unwrap().push(place);
            std::future::pending().await
        });
        tokio::task::yield_now().await;
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    fn numbers(places: &Places) -> Vec<u64> {
        places.taken().all.keys().copied().collect()
    }

    #[test]
    fn a_newcomer_gets_the_place_of_the_address_with_most_strangers() {
        run(async {
            let mut peers = vec!["192.0.2.1"];
            // A /64 counts as one address.
            let flood: Vec<String> = (1..MOST_CONNECTIONS).map(|n| format!("2001:db8::{n}")).collect();
            peers.extend(flood.iter().map(String::as_str));
            let (places, kept) = places(&peers).await;
            take(&places, &kept, "192.0.2.2").await;
            assert_eq!(numbers(&places), [0].into_iter().chain(2..33).collect::<Vec<u64>>());
            // One that waits for its answer stays while there are others.
            let held = kept.lock().unwrap();
            let asking = held[2].ask();
            assert_eq!(places.taken().first_to_go(), Some(3));
            drop(asking);
            assert_eq!(places.taken().first_to_go(), Some(2));
        });
    }

    #[test]
    fn whoever_has_shown_a_token_stays_and_a_full_house_of_them_refuses_others() {
        run(async {
            let (places, kept) = places(&["192.0.2.1"; MOST_CONNECTIONS]).await;
            kept.lock().unwrap()[0].admit();
            take(&places, &kept, "192.0.2.1").await;
            assert_eq!(numbers(&places), [0].into_iter().chain(2..33).collect::<Vec<u64>>());
            kept.lock().unwrap().iter().for_each(Place::admit);
            let before = numbers(&places);
            take(&places, &kept, "192.0.2.9").await;
            assert_eq!(numbers(&places), before);
            let left = kept.lock().unwrap().pop();
            drop(left);
            take(&places, &kept, "192.0.2.9").await;
            assert_eq!(numbers(&places).len(), MOST_CONNECTIONS);
        });
    }

    #[test]
    fn a_stranger_keeps_its_connection_only_where_no_token_is_wanted_and_there_is_room() {
        run(async {
            let (places, kept) = places(&["192.0.2.1"; CROWDED - 1]).await;
            assert!(!kept.lock().unwrap()[0].must_leave(false));
            assert!(kept.lock().unwrap()[0].must_leave(true));
            take(&places, &kept, "192.0.2.1").await;
            assert!(kept.lock().unwrap()[0].must_leave(false));
            kept.lock().unwrap()[0].admit();
            assert!(!kept.lock().unwrap()[0].must_leave(true));
        });
    }
}
