//! The simulated core: tasks, timers and virtual time, driven by one seed.
//!
//! The seed picks the next of the runnable tasks, so each seed is another interleaving. If none is runnable, time jumps
//! to the next timer; without a timer every task waits forever, and the run panics and lists them. It owns the tasks
//! and the clock of a world; `net` models the sockets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::network::{Network, SharedPipe};
use super::rng::Rng;
use super::trace::{Event, Trace};
use crate::clock::Time;
use crate::rt::turn;

/// Polls without progress of time after which a run counts as a livelock.
const POLLS_PER_INSTANT: u64 = 5_000_000;

/// The time of day at which a simulation begins: 2026-01-01.
const FIRST_WALL_SECS: u64 = 1_767_225_600;

/// Separates the generator of [`crate::random`] from the one that decides what happens.
const SECRETS: u64 = 0x5ec2_e700_0000_0001;

/// The id of the main future, which is passed to `run`.
const MAIN: u64 = 0;

type Future0 = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// Taken while the task is being polled.
    future: Option<Future0>,
    waker: Waker,
    spawned_at: &'static Location<'static>,
    cancelled: bool,
}

/// The runnable tasks; shared with wakers, which must be `Send`.
#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.lock();
        if !ready.contains(&self.id) {
            ready.push(self.id);
        }
    }
}

/// An event at a point in time.
enum Alarm {
    Wake(Waker),
    /// Something reaches the reading end of a pipe.
    Arrival(SharedPipe),
}

/// A simulated world: one core, its clock and its network.
pub(crate) struct World {
    pub(super) seed: u64,
    time: Cell<Time>,
    time_limit: Cell<Time>,
    /// The time of day, since 1970, at [`Time::ZERO`]; changed when the clock is set.
    wall_origin: Cell<i128>,
    /// What [`crate::random`] gives.
    secrets: RefCell<Rng>,
    tasks: RefCell<BTreeMap<u64, Slot>>,
    next_id: Cell<u64>,
    ready: Arc<Ready>,
    alarms: RefCell<BTreeMap<(Time, u64), Alarm>>,
    next_alarm: Cell<u64>,
    /// A turn is over at every second check.
    pub(super) short_turns: Cell<bool>,
    pub(super) rng: RefCell<Rng>,
    pub(super) trace: RefCell<Trace>,
    pub(super) net: RefCell<Network>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
    // Checked on every `rt::now`: cheaper than a look into the RefCell.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs inside a simulation.
pub(crate) fn active() -> bool {
    ACTIVE.get()
}

/// The world that runs on this thread.
pub(crate) fn current() -> Option<Rc<World>> {
    if !active() {
        return None;
    }
    CURRENT.with_borrow(Clone::clone)
}

/// Makes a world the current one until dropped; a panicking run prints how to repeat it.
struct Entered(Rc<World>);

impl Entered {
    fn enter(world: &Rc<World>) -> Entered {
        assert!(!active(), "a simulation does not run inside another");
        CURRENT.set(Some(world.clone()));
        ACTIVE.set(true);
        Entered(world.clone())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation with seed {:#x} failed at {:?}", self.0.seed, self.0.now());
        }
        self.0.clear();
        turn::end_simulated();
        ACTIVE.set(false);
        CURRENT.set(None);
    }
}

impl World {
    pub(super) fn new(seed: u64, time_limit: Duration) -> World {
        World {
            seed,
            time: Cell::new(Time::ZERO),
            time_limit: Cell::new(Time::ZERO + time_limit),
            wall_origin: Cell::new(i128::from(FIRST_WALL_SECS) * 1_000_000_000),
            secrets: RefCell::new(Rng::new(seed ^ SECRETS)),
            tasks: RefCell::default(),
            next_id: Cell::new(MAIN + 1),
            ready: Arc::default(),
            alarms: RefCell::default(),
            next_alarm: Cell::new(0),
            short_turns: Cell::new(false),
            rng: RefCell::new(Rng::new(seed)),
            trace: RefCell::default(),
            net: RefCell::default(),
        }
    }

    pub(super) fn set_time_limit(&self, limit: Duration) {
        self.time_limit.set(Time::ZERO + limit);
    }

    pub(crate) fn now(&self) -> Time {
        self.time.get()
    }

    /// See [`crate::clock::wall`]. No two answers are the same, as with a real clock: what is changed twice in one moment of virtual
    /// time bears two times.
    pub(crate) fn wall(&self) -> Duration {
        self.wall_origin.set(self.wall_origin.get() + 1);
        let nanos = self.wall_origin.get() + i128::from(self.now().as_nanos());
        // 64 bits of nanoseconds reach the year 2554.
        Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    pub(super) fn set_wall(&self, wall: Duration) {
        let nanos = i128::try_from(wall.as_nanos()).unwrap_or(i128::MAX);
        self.wall_origin.set(nanos - i128::from(self.now().as_nanos()));
    }

    /// See [`crate::random::fill`].
    pub(crate) fn fill_secret(&self, bytes: &mut [u8]) {
        self.secrets.borrow_mut().fill(bytes);
    }

    fn waker(&self, id: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker { id, ready: self.ready.clone() }))
    }

    pub(super) fn record(&self, event: Event) {
        self.trace.borrow_mut().record(self.now(), event);
    }

    /// Runs `future` until it ends, then drops all tasks.
    pub(super) fn run<F: Future>(self: &Rc<Self>, future: F) -> F::Output {
        let _entered = Entered::enter(self);
        let mut future = std::pin::pin!(future);
        let waker = self.waker(MAIN);
        waker.wake_by_ref();
        let mut polls = 0;
        loop {
            turn::begin_simulated(self.short_turns.get());
            match self.pick() {
                Some(MAIN) => {
                    self.record(Event::Poll(MAIN));
                    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return output;
                    }
                }
                Some(id) => self.poll_task(id),
                None => {
                    self.advance();
                    polls = 0;
                }
            }
            polls += 1;
            assert!(
                polls < POLLS_PER_INSTANT,
                "livelock: {polls} polls and time stands still at {:?}",
                self.now()
            );
        }
    }

    fn pick(&self) -> Option<u64> {
        let mut ready = self.ready.lock();
        if ready.is_empty() {
            return None;
        }
        let next = self.rng.borrow_mut().below(ready.len());
        // Not swap_remove: the others keep their order, so similar runs have similar traces.
        Some(ready.remove(next))
    }

    fn poll_task(&self, id: u64) {
        let taken = self.tasks.borrow_mut().get_mut(&id).and_then(|slot| {
            let future = slot.future.take()?;
            Some((future, slot.waker.clone(), slot.cancelled))
        });
        // `None`: a late wake of a task that has ended.
        let Some((mut future, waker, cancelled)) = taken else { return };
        self.record(Event::Poll(id));
        // A cancelled future ends here, as on a real core: in its own turn, not inside the task that cancelled it.
        if cancelled || future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(future);
            self.tasks.borrow_mut().remove(&id);
        } else if let Some(slot) = self.tasks.borrow_mut().get_mut(&id) {
            slot.future = Some(future);
        }
    }

    /// Nothing can run: moves time to the next alarm.
    fn advance(&self) {
        let Some(((at, _), alarm)) = self.alarms.borrow_mut().pop_first() else {
            let waiting: Vec<String> =
                self.tasks.borrow().values().map(|slot| slot.spawned_at.to_string()).collect();
            panic!(
                "deadlock at {:?}: nothing can run and no timer is set; the main future and {} tasks wait, spawned at {waiting:?}",
                self.now(),
                waiting.len()
            );
        };
        self.time.set(self.now().max(at));
        assert!(
            self.now() <= self.time_limit.get(),
            "the simulation runs on after its time limit, {:?}",
            self.time_limit.get()
        );
        match alarm {
            Alarm::Wake(waker) => waker.wake(),
            Alarm::Arrival(pipe) => pipe.wake_reader(),
        }
    }

    fn set_alarm(&self, at: Time, alarm: Alarm) -> (Time, u64) {
        let key = (at, self.next_alarm.get());
        self.next_alarm.set(key.1 + 1);
        self.alarms.borrow_mut().insert(key, alarm);
        key
    }

    /// Wakes the reader of `pipe` at `at`.
    pub(super) fn announce(&self, at: Time, pipe: SharedPipe) {
        self.set_alarm(at, Alarm::Arrival(pipe));
    }

    pub(crate) async fn sleep_until(self: Rc<Self>, deadline: Time) {
        let mut alarm = AlarmGuard { world: self, key: None };
        std::future::poll_fn(move |cx| {
            if alarm.world.now() >= deadline {
                return Poll::Ready(());
            }
            alarm.clear();
            alarm.key = Some(alarm.world.set_alarm(deadline, Alarm::Wake(cx.waker().clone())));
            Poll::Pending
        })
        .await;
    }

    #[track_caller]
    pub(crate) fn spawn<F: Future + 'static>(self: &Rc<Self>, future: F) -> Task<F::Output> {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let shared = Rc::new(Shared { output: RefCell::new(Output::Pending(None)) });
        let theirs = shared.clone();
        let future = Box::pin(async move {
            let output = future.await;
            theirs.finish(output);
        });
        let slot = Slot {
            future: Some(future),
            waker: self.waker(id),
            spawned_at: Location::caller(),
            cancelled: false,
        };
        slot.waker.wake_by_ref();
        self.tasks.borrow_mut().insert(id, slot);
        self.record(Event::Spawn(id));
        Task { id, world: Some(Rc::downgrade(self)), shared }
    }

    fn cancel(&self, id: u64) {
        if let Some(slot) = self.tasks.borrow_mut().get_mut(&id) {
            slot.cancelled = true;
            slot.waker.wake_by_ref();
        }
    }

    /// Drops all tasks, including those spawned by the drops, and everything in flight.
    fn clear(&self) {
        loop {
            let Some((_, slot)) = self.tasks.borrow_mut().pop_first() else { break };
            drop(slot);
        }
        self.ready.lock().clear();
        let alarms = std::mem::take(&mut *self.alarms.borrow_mut());
        drop(alarms);
        // Sockets that wait for an accept access the network when they are dropped, so drop them outside the borrow.
        let contents = self.net.borrow_mut().take_contents();
        drop(contents);
    }
}

struct AlarmGuard {
    world: Rc<World>,
    key: Option<(Time, u64)>,
}

impl AlarmGuard {
    fn clear(&mut self) {
        if let Some(key) = self.key.take() {
            self.world.alarms.borrow_mut().remove(&key);
        }
    }
}

impl Drop for AlarmGuard {
    fn drop(&mut self) {
        self.clear();
    }
}

enum Output<T> {
    Pending(Option<Waker>),
    Ready(T),
    Taken,
}

struct Shared<T> {
    output: RefCell<Output<T>>,
}

impl<T> Shared<T> {
    fn finish(&self, output: T) {
        let before = self.output.replace(Output::Ready(output));
        if let Output::Pending(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// A simulated task's handle: dropping it cancels the task.
pub(crate) struct Task<T> {
    id: u64,
    /// `None` once detached.
    world: Option<Weak<World>>,
    shared: Rc<Shared<T>>,
}

impl<T> Task<T> {
    pub(crate) fn detach(mut self) {
        self.world = None;
    }

    pub(crate) fn is_finished(&self) -> bool {
        !matches!(*self.shared.output.borrow(), Output::Pending(_))
    }
}

impl<T> Unpin for Task<T> {}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut output = self.shared.output.borrow_mut();
        match std::mem::replace(&mut *output, Output::Taken) {
            Output::Ready(value) => Poll::Ready(value),
            Output::Pending(_) => {
                *output = Output::Pending(Some(cx.waker().clone()));
                Poll::Pending
            }
            Output::Taken => panic!("a task was awaited again after its end"),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(world) = self.world.take().and_then(|world| world.upgrade())
            && !self.is_finished()
        {
            world.cancel(self.id);
        }
    }
}
