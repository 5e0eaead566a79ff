//! A list of the connections on each core, read on request.
//!
//! Each connection has a closure that reports its current state. A connection is added and removed on its own core,
//! so the list adds no cost to a request; the counters are kept by the connections anyway. What an ended connection
//! had carried is added to a total of its kind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use weft_machine::rt::{self, Cores};

use crate::status::{Connection, Ended};

/// How long a core may take to report. Cores answer between two tasks, so this is generous.
const CORE_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

type Look = Box<dyn Fn() -> Connection>;

thread_local! {
    static CONNECTIONS: RefCell<BTreeMap<u64, Look>> = const { RefCell::new(BTreeMap::new()) };
    static ENTERED: Cell<u64> = const { Cell::new(0) };
    /// One element per protocol, transport and provider.
    static ENDED: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
}

/// A connection's entry in this core's list; removed on drop (on the same core).
pub(crate) struct ConnectionEntry(u64);

/// Adds a connection of this core.
pub(crate) fn enter(look: impl Fn() -> Connection + 'static) -> ConnectionEntry {
    let n = ENTERED.get();
    ENTERED.set(n + 1);
    CONNECTIONS.with_borrow_mut(|connections| connections.insert(n, Box::new(look)));
    ConnectionEntry(n)
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        // When a thread ends, its list may have been dropped first. The closure is dropped after the borrow has
        // ended, because it may hold the last reference to the connection.
        let look = CONNECTIONS.try_with(|connections| connections.borrow_mut().remove(&self.0));
        // A panic may have left the connection's state borrowed.
        if let Ok(Some(look)) = look
            && !std::thread::panicking()
        {
            let connection = look();
            // The same holds for this list.
            let _ = ENDED.try_with(|ended| add(&mut ended.borrow_mut(), &Ended::of(&connection)));
        }
    }
}

/// Adds to the total of the same kind.
fn add(totals: &mut Vec<Ended>, more: &Ended) {
    match totals.iter_mut().find(|total| total.is_like(more)) {
        Some(total) => {
            total.connections = total.connections.saturating_add(more.connections);
            total.traffic = total.traffic + more.traffic;
        }
        None => totals.push(more.clone()),
    }
}

/// The connections of some cores, and the totals of those that have ended there.
#[derive(Default)]
pub(crate) struct Found {
    /// The connections.
    pub connections: Vec<Connection>,
    /// The totals.
    pub ended: Vec<Ended>,
}

/// Those of this core.
fn here() -> Found {
    Found {
        connections: CONNECTIONS.with_borrow(|connections| connections.values().map(|look| look()).collect()),
        ended: ENDED.with_borrow(Vec::clone),
    }
}

#[derive(Default)]
struct Gathered {
    found: Found,
    answered: usize,
    waker: Option<Waker>,
}

/// Cores that did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("{silent} of {cores} cores did not answer within {} s", CORE_ANSWERS_WITHIN.as_secs())]
pub(crate) struct Silent {
    silent: usize,
    cores: usize,
}

/// Those of all cores.
pub(crate) async fn everywhere(cores: &Cores) -> Result<Found, Silent> {
    let gathered = Arc::new(Mutex::new(Gathered::default()));
    for core in 0..cores.len() {
        let gathered = gathered.clone();
        cores.run(core, move || async move {
            let found = here();
            let waker = {
                let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                gathered.found.connections.extend(found.connections);
                found.ended.iter().for_each(|ended| add(&mut gathered.found.ended, ended));
                gathered.answered += 1;
                gathered.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        });
    }
    let all = std::future::poll_fn(|cx| {
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        if gathered.answered == cores.len() {
            return Poll::Ready(std::mem::take(&mut gathered.found));
        }
        gathered.waker = Some(cx.waker().clone());
        Poll::Pending
    });
    rt::timeout(CORE_ANSWERS_WITHIN, all).await.map_err(|_| {
        let answered = gathered.lock().unwrap_or_else(PoisonError::into_inner).answered;
        Silent { silent: cores.len() - answered, cores: cores.len() }
    })
}
