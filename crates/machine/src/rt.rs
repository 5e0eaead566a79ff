//! The reactor of a core: tasks, timers, sleeping and busy polling.
//!
//! The functions here act on the loop of the calling thread: a real one (compio on io_uring or epoll), or the simulated
//! one of [`crate::sim`], on which the same code runs under virtual time. It owns each core's loop; tasks do not
//! migrate between cores.

mod background;
mod changes;
mod cores;
mod crowd;
mod drain;
mod poller;
mod reactor;
pub(crate) mod readiness;
mod spin;
pub(crate) mod tickets;
pub(crate) mod turn;

mod watchdog;

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use self::tickets::Tickets;
use crate::clock::Time;
use crate::recorder::{self, Hop};

pub use changes::{ChangeCount, Follower};
pub use cores::{Cores, CoresOptions};
pub use drain::{Drain, Drainee};
pub use poller::{Poller, PollerGuard, register_poller};
pub use reactor::{Counters, Driver, Options, SpinInhibitor, driver};
pub use spin::SPIN_MAX;
pub use turn::{YieldIfDue, turn_is_over, yield_if_due};

/// A spawned task. Dropping it cancels the task; [`Task::detach`] lets it continue.
#[must_use = "dropping a task cancels it"]
pub struct Task<T>(TaskKind<T>);

enum TaskKind<T> {
    Real(compio_runtime::JoinHandle<T>),
    Sim(crate::sim::Task<T>),
    /// Spawned by the drop of another task when the core stopped, and dropped at once.
    Dropped,
}

impl<T> Task<T> {
    /// Lets the task run to its end on its own.
    pub fn detach(self) {
        match self.0 {
            TaskKind::Real(task) => task.detach(),
            TaskKind::Sim(task) => task.detach(),
            TaskKind::Dropped => {}
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            TaskKind::Real(task) => task.is_finished(),
            TaskKind::Sim(task) => task.is_finished(),
            TaskKind::Dropped => true,
        }
    }
}

impl<T> Unpin for Task<T> {}

impl<T> Future for Task<T> {
    type Output = T;

    /// # Panics
    /// With the task's own panic, if it panicked.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            TaskKind::Real(task) => match Pin::new(task).poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(value)) => Poll::Ready(value),
                Poll::Ready(Err(compio_runtime::JoinError::Panicked(panic))) => {
                    std::panic::resume_unwind(panic)
                }
                // Only dropping the handle cancels a task, and this is the handle: so its core has stopped. The task
                // that awaits it is about to be dropped as well.
                Poll::Ready(Err(compio_runtime::JoinError::Cancelled)) => Poll::Pending,
            },
            TaskKind::Sim(task) => Pin::new(task).poll(cx),
            TaskKind::Dropped => Poll::Pending,
        }
    }
}

/// Starts a task on this core. A task spawned by the drop of another one, while the core stops, is dropped at once.
///
/// # Panics
/// Outside [`block_on`], [`Cores`] and [`Sim::run`](crate::sim::Sim::run).
#[track_caller]
pub fn spawn<F: Future + 'static>(future: F) -> Task<F::Output> {
    Task(match crate::sim::current() {
        Some(world) => TaskKind::Sim(world.spawn(future)),
        None => spawn_real(future, Location::caller()),
    })
}

/// A future on the heap that is made there. `Box::pin` copies the whole of it, also the parts that have no value before
/// it is polled: kilobytes for the future of a request.
#[inline]
pub fn boxed<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Runs `future` to its end in its own task: dropping the returned future does not cancel it.
///
/// # Panics
/// As [`spawn`], and with the task's own panic.
#[track_caller]
pub fn uncancelled<F: Future + 'static>(future: F) -> impl Future<Output = F::Output> {
    let mut detached = Detached(Some(spawn(recorder::carried(future))));
    std::future::poll_fn(move |cx| match &mut detached.0 {
        Some(task) => Pin::new(task).poll(cx),
        None => Poll::Pending,
    })
}

/// The same for a future that seldom has to wait: it gets a task of its own only then. Once polled, it runs to its end.
///
/// # Panics
/// As [`uncancelled`].
pub async fn to_the_end<F: Future + 'static>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    match std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => output,
        Poll::Pending => uncancelled(future).await,
    }
}

/// A task that is detached when this is dropped.
struct Detached<T>(Option<Task<T>>);

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// `spawned` is reported as the task's origin.
fn spawn_real<F: Future + 'static>(future: F, spawned: &'static Location<'static>) -> TaskKind<F::Output> {
    match reactor::stops() {
        true => TaskKind::Dropped,
        false => TaskKind::Real(compio_runtime::spawn(reactor::Counted::new(future, spawned))),
    }
}

/// Runs `future` on a loop of this thread until it ends. Tasks still running then are dropped.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    block_on_with(&Options::default(), future)
}

/// [`block_on`] with options for the loop.
pub fn block_on_with<F: Future>(options: &Options, future: F) -> io::Result<F::Output> {
    reactor::block_on(options, None, future)
}

/// Counters of this thread's loop.
pub fn counters() -> Counters {
    reactor::counters()
}

/// Now: real monotonic time, or the simulation's.
pub fn now() -> Time {
    match crate::sim::current() {
        Some(world) => world.now(),
        None => Time::monotonic(),
    }
}

/// Waits until `deadline`; returns at once if that is in the past.
pub async fn sleep_until(deadline: Time) {
    match crate::sim::current() {
        Some(world) => world.sleep_until(deadline).await,
        None => compio_runtime::time::sleep_until(deadline.to_instant()).await,
    }
}

/// Waits for `duration`.
pub async fn sleep(duration: Duration) {
    sleep_until(now() + duration).await;
}

/// The time given to [`timeout`] passed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> io::Error {
        io::ErrorKind::TimedOut.into()
    }
}

/// The output of `future`, or [`Elapsed`] (and `future` is dropped) if it takes longer than `duration`.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut limit = pin!(sleep(duration));
    std::future::poll_fn(|cx| {
        // The future is polled first: if it is ready at the deadline, it is in time.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        limit.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Lets the other runnable tasks have a turn. Tasks in the background ([`turn_is_over`]) may have to wait for longer.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Limits the calls of one kind that run at once in this process; others queue. Each core may have as many worker
/// threads as all kinds and file systems together can use ([`crate::file::system::ALL_PLACES`]), so a call always finds
/// one.
struct Kind {
    max: usize,
    places: Mutex<Places>,
}

struct Places {
    taken: usize,
    waiting: Tickets,
}

const BLOCKING_MAX: usize = 64;
const LENGTHY_MAX: usize = 4;
const RANGES_MAX: usize = 16;
const SEEKS_MAX: usize = 4;
/// Lookups have threads of their own, beside the workers. A directory service that hangs keeps these threads.
const DECISIONS_MAX: usize = 48;
const TRANSLATIONS_MAX: usize = 16;
/// Calls of all kinds that run at once.
pub(crate) const ALL_KINDS: usize = BLOCKING_MAX + LENGTHY_MAX + RANGES_MAX + SEEKS_MAX;

static BLOCKING: Kind = Kind::new(BLOCKING_MAX);
static LENGTHY: Kind = Kind::new(LENGTHY_MAX);
static RANGES: Kind = Kind::new(RANGES_MAX);
static SEEKS: Kind = Kind::new(SEEKS_MAX);
static DECISIONS: Kind = Kind::new(DECISIONS_MAX);
static TRANSLATIONS: Kind = Kind::new(TRANSLATIONS_MAX);

impl Kind {
    const fn new(max: usize) -> Kind {
        Kind { max, places: Mutex::new(Places { taken: 0, waiting: Tickets::new() }) }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run<T: Send + 'static>(&'static self, call: impl FnOnce() -> T + Send + 'static) -> T {
        if crate::sim::active() {
            return call();
        }
        let place = recorder::at(Hop::Pool, Taking { kind: self, number: None }).await;
        let work = move || {
            let _place = place;
            call()
        };
        on_worker(work).await
    }
}

/// Passes a call to a worker thread. The caller must bound the number of such calls.
pub(crate) async fn on_worker<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    #[cfg(test)]
    tests::BLOCKING_CALLS.set(tests::BLOCKING_CALLS.get() + 1);
    let _awaits = reactor::AwaitsBlocking::new();
    let handed = recorder::handed();
    let worker = handed.as_ref().map(recorder::Handed::worker);
    let answer = Arc::new(Mutex::new(None));
    let told = answer.clone();
    // Boxed, because compio makes 5 KB of code for each type of call, and a hundred calls in Weft end here. The two allocations
    // take a hundredth of the time in which a worker wakes up.
    let call: Box<dyn FnOnce() + Send> = Box::new(move || {
        let value = match worker {
            Some(worker) => worker.run(call),
            None => call(),
        };
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    });
    Task(TaskKind::Real(compio_runtime::spawn_blocking(call))).await;
    // A call that panicked has ended this function above.
    let value = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.expect("a call that has ended has told its value")
}

/// The maximum of worker threads per core, which is compio's own limit. `file::system` asserts that each call finds one.
pub(crate) const WORKERS: usize = 256;

/// A place of one kind, held by the call itself, so dropping the future does not free it early.
struct WorkerPlace(&'static Kind);

impl Drop for WorkerPlace {
    /// The first in the queue gets it, and only that task is woken.
    fn drop(&mut self) {
        let mut places = self.0.places();
        let next = places.waiting.grant();
        if next.is_none() {
            places.taken -= 1;
        }
        drop(places);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// Waits for a place, in order.
struct Taking {
    kind: &'static Kind,
    number: Option<u64>,
}

impl Future for Taking {
    type Output = WorkerPlace;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WorkerPlace> {
        let kind = self.kind;
        let places = &mut *kind.places();
        let Some(number) = self.number else {
            if places.taken < kind.max {
                places.taken += 1;
                return Poll::Ready(WorkerPlace(kind));
            }
            self.number = Some(places.waiting.enter(cx.waker().clone()));
            return Poll::Pending;
        };
        if !places.waiting.fetch(number, cx.waker()) {
            return Poll::Pending;
        }
        self.number = None;
        Poll::Ready(WorkerPlace(kind))
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let granted = self.kind.places().waiting.leave(number);
        if granted {
            drop(WorkerPlace(self.kind));
        }
    }
}

/// Runs a call that may block on a worker thread (under simulation: at once, on the caller's thread).
///
/// The call runs to its end even if the future is dropped.
///
/// # Panics
/// With the call's own panic.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    BLOCKING.run(call).await
}

/// [`blocking`] for a call that may take minutes, such as freeing the space of a fragmented file. Few run at once, and
/// waiting ones do not delay reads and syncs.
///
/// # Panics
/// With the call's own panic.
pub async fn lengthy<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    LENGTHY.run(call).await
}

/// [`blocking`] for a call that reserves, frees, zeroes or copies a range of a client's length. Such calls do not delay
/// reads and syncs, and deletions ([`lengthy`]) do not delay them.
///
/// # Panics
/// With the call's own panic.
pub async fn ranged<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    RANGES.run(call).await
}

/// [`blocking`] for a call that occupies a processor in the kernel in proportion to a file's fragmentation. More of
/// these than there are processors would keep the cores themselves from running.
///
/// # Panics
/// With the call's own panic.
pub async fn seeking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    SEEKS.run(call).await
}

/// What a question to a directory service (NSS) is for. Each purpose has places of its own, so that questions of one do not
/// wait for those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Log-ons, and the groups that rights name.
    Decision,
    /// Names and ids that clients show.
    Translation,
}

/// A place for a question to a directory service (NSS).
pub(crate) struct AskingPlace(Option<WorkerPlace>);

/// Waits for a place, in order. Dropping the future leaves the queue. Under simulation there is always a place.
pub(crate) async fn asking_place(purpose: Purpose) -> AskingPlace {
    if crate::sim::active() {
        return AskingPlace(None);
    }
    let kind = match purpose {
        Purpose::Decision => &DECISIONS,
        Purpose::Translation => &TRANSLATIONS,
    };
    AskingPlace(Some(Taking { kind, number: None }.await))
}

impl AskingPlace {
    /// Starts a question, which may never be answered, on a thread of its own (under simulation: at once, on the caller's
    /// thread). The call passes its answer on itself, and keeps the place until it ends.
    ///
    /// # Errors
    /// The thread cannot be started; the call is dropped.
    pub(crate) fn start(self, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Some(place) = self.0 else {
            call();
            return Ok(());
        };
        let work = move || {
            let _place = place;
            call();
        };
        std::thread::Builder::new().name("weft-nss".into()).spawn(work).map(drop)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
