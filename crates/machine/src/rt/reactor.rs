//! The loop of a core: runs tasks, polls pollers, checks the kernel, spins for a while, sleeps.
//!
//! Tasks, timers and sleeping are compio's (on io_uring, or epoll if the kernel or a seccomp filter forbids it); this
//! loop adds pollers, cheap socket readiness (see `readiness`) and the adaptive busy-poll phase. It owns the core's
//! compio runtime and counters; `cores` decides what runs on which core.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use compio_driver::{DriverType, ProactorBuilder};
use compio_runtime::fd::PollFd;
use compio_runtime::{Runtime, RuntimeBuilder};

use super::crowd::{self, Crowd};
use super::spin::{SPIN_MAX, Spin};
use super::watchdog::{Beat, NO_CORE};
use super::{background, poller, readiness, turn};

/// Wakes of one core by tasks of other cores that can be queued at once; further ones make the waking core wait.
const REMOTE_WAKES: usize = 4096;
/// A core runs at most this many tasks before it checks the kernel.
pub(super) const TASKS_PER_TURN: u32 = 64;
/// It runs tasks for no longer than this, so that tasks of milliseconds, of which each thinks that it is the only one,
/// do not keep it from its sockets, its timers and the background.
pub(super) const RUN_TICKS: u64 = turn::TURN_TICKS / 4;
/// While the last event came from a poller, a core checks its sockets in one turn out of this many: a system call costs
/// as much as dozens of checks of a ring. While it came from a socket, sockets are checked in each turn.
const TURNS_PER_SYSCALL: u32 = 32;
/// How often a spinning core polls its pollers in each turn: checking a ring costs a tenth of the rest.
const LOOKS_PER_TURN: u32 = 4;
/// It reads the clock in one turn out of this many, because that costs as much as the rest.
const TURNS_PER_CLOCK: u32 = 4;
/// A busy core checks for finished blocking calls in one turn out of this many, if it waits for any.
const TURNS_PER_BLOCKING: u32 = 8;
/// A busy core checks its timers in one turn out of this many (a spinning one knows when the next is due).
const TURNS_PER_TIMERS: u32 = 128;
/// It also checks them when this time has passed: tasks that copy megabytes make turns of milliseconds, and a timer
/// checked every hundred of them would not fire at all while the core is busy.
const TIMERS_LATE_MAX: Duration = Duration::from_micros(500);

/// The kernel interface that a core waits with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// io_uring if it works, otherwise epoll.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// Options for a core.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernel interface.
    pub driver: Driver,
    /// Longest busy-poll phase before a sleep; zero disables spinning.
    pub spin_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { driver: Driver::Auto, spin_max: SPIN_MAX }
    }
}

/// Counters of a core's loop since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Busy-poll phases that found something to do.
    pub spins_won: u64,
    /// Busy-poll phases that ended in a sleep.
    pub spins_lost: u64,
    /// Sleeps in the kernel, each ended by a wake-up.
    pub sleeps: u64,
}

/// The counters as other threads can read them; only their core writes.
#[derive(Debug, Default)]
pub(super) struct SharedCounters {
    spins_won: AtomicU64,
    spins_lost: AtomicU64,
    sleeps: AtomicU64,
}

impl SharedCounters {
    pub(super) fn load(&self) -> Counters {
        Counters {
            spins_won: self.spins_won.load(Ordering::Relaxed),
            spins_lost: self.spins_lost.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

thread_local! {
    /// How often tasks of this core have been polled: shows a spin whether the kernel had events.
    static TASK_POLLS: Cell<u64> = const { Cell::new(0) };
    /// What the core of this thread reports to the watchdog.
    static BEAT: Cell<&'static Beat> = const { Cell::new(&NO_CORE) };
    /// The tasks of this core are being dropped.
    static STOPS: Cell<bool> = const { Cell::new(false) };
    /// Blocking calls that tasks of this core wait for.
    static BLOCKING: Cell<usize> = const { Cell::new(0) };
    /// Waits of this core that may end late.
    static SPIN_INHIBITORS: Cell<usize> = const { Cell::new(0) };
    /// The counters of the loop on this thread.
    static COUNTERS: Cell<Counters> = const { Cell::new(Counters { spins_won: 0, spins_lost: 0, sleeps: 0 }) };
}

/// Whether the tasks of this core are being dropped, so that it accepts no new ones.
pub(super) fn stops() -> bool {
    STOPS.get()
}

/// The counters of this thread's loop.
pub(super) fn counters() -> Counters {
    COUNTERS.get()
}

/// Marks that this core waits for a blocking call, until dropped.
pub(super) struct AwaitsBlocking(());

impl AwaitsBlocking {
    pub(super) fn new() -> AwaitsBlocking {
        BLOCKING.set(BLOCKING.get() + 1);
        AwaitsBlocking(())
    }
}

impl Drop for AwaitsBlocking {
    fn drop(&mut self) {
        BLOCKING.set(BLOCKING.get() - 1);
    }
}

/// Marks that this core waits for events that may be late, until dropped: while one exists and nothing is polled (see
/// `poller`), the core sleeps instead of spinning.
#[derive(Debug)]
pub struct SpinInhibitor {
    // The count is per thread.
    _local: PhantomData<Rc<()>>,
}

impl SpinInhibitor {
    /// Starts such a wait.
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> SpinInhibitor {
        SPIN_INHIBITORS.set(SPIN_INHIBITORS.get() + 1);
        SpinInhibitor { _local: PhantomData }
    }
}

impl Drop for SpinInhibitor {
    fn drop(&mut self) {
        // During thread exit the counter may already be gone.
        let _ = SPIN_INHIBITORS.try_with(|count| count.set(count.get() - 1));
    }
}

/// A task's future that counts its polls, and waits for its turn if they are long.
pub(super) struct Counted<F> {
    future: F,
    spawned: &'static Location<'static>,
    account: background::Account,
}

impl<F> Counted<F> {
    pub(super) fn new(future: F, spawned: &'static Location<'static>) -> Counted<F> {
        Counted { future, spawned, account: background::Account::default() }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(ticks) = background::turn(&self.account, cx) else { return Poll::Pending };
        TASK_POLLS.set(TASK_POLLS.get().wrapping_add(1));
        BEAT.get().runs(self.spawned);
        turn::begin(ticks);
        // SAFETY: the future is never moved out of a pinned `Counted`, which has no Drop of its own.
        let polled = unsafe { self.as_mut().map_unchecked_mut(|counted| &mut counted.future) }.poll(cx);
        background::ran(&self.account, turn::end());
        polled
    }
}

/// Wakes the main future of `block_on`, from any thread.
struct MainWaker {
    woken: AtomicBool,
    driver: Waker,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag is set first: a loop that the driver's waker keeps from sleeping checks it afterwards.
        self.woken.store(true, Ordering::Release);
        self.driver.wake_by_ref();
    }
}

fn build(options: &Options) -> io::Result<Runtime> {
    let mut proactor = ProactorBuilder::new();
    match options.driver {
        Driver::Auto => {}
        Driver::IoUring => _ = proactor.driver_type(DriverType::IoUring),
        Driver::Epoll => _ = proactor.driver_type(DriverType::Poll),
    }
    proactor.thread_pool_recv_timeout(WORKER_IDLE);
    let mut builder = RuntimeBuilder::new();
    // A core decides after each task whether to run another one, see `Core::run_tasks`.
    builder.with_proactor(proactor).sync_queue_size(REMOTE_WAKES).event_interval(1);
    let runtime = builder.build()?;
    DRIVER.get_or_init(|| {
        let driver = if runtime.driver_type().is_iouring() { "io_uring" } else { "epoll" };
        tracing::info!(driver, "using {driver}");
        driver
    });
    Ok(runtime)
}

/// A worker thread without a call for this long ends, so that threads started during a burst do not stay.
const WORKER_IDLE: Duration = Duration::from_secs(10);

/// The kernel interface of this process's first core.
static DRIVER: OnceLock<&str> = OnceLock::new();

/// "io_uring" or "epoll": the kernel interface of this process's first core; "none" before there is one.
pub fn driver() -> &'static str {
    DRIVER.get().copied().unwrap_or("none")
}

/// Runs `future` and the tasks that it spawns on this thread until `future` ends; unfinished tasks are dropped.
pub(super) fn block_on<F: Future>(
    options: &Options,
    watched: Option<(Arc<SharedCounters>, &'static Beat)>,
    future: F,
) -> io::Result<F::Output> {
    let runtime = build(options)?;
    let (shared, beat) = watched.unwrap_or_else(|| (Arc::default(), &NO_CORE));
    let outer = BEAT.replace(beat);
    beat.begin();
    turn::set_endless(crate::valgrind::runs_this());
    let set = readiness::Set::new()?;
    let _entered = set.enter();
    let outer_background = background::replace(background::Queue::default());
    let result = catch_unwind(AssertUnwindSafe(|| {
        runtime.enter(|| Ok(Core::new(&runtime, options, &shared, beat, set)?.run_to_end(future)))
    }));
    // The tasks are dropped here, after a panic has been caught: dropping futures while unwinding would leak them.
    // Their list is being iterated meanwhile, so tasks that they spawn are not added.
    let outer_stops = STOPS.replace(true);
    drop(background::replace(outer_background));
    drop(runtime);
    STOPS.set(outer_stops);
    beat.sleeps();
    BEAT.set(outer);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

struct Core<'a> {
    runtime: &'a Runtime,
    main: Arc<MainWaker>,
    set: Rc<readiness::Set>,
    /// compio's watch of `set` while the core sleeps.
    watch: PollFd<Rc<OwnedFd>>,
    spin: Spin,
    crowd: Crowd,
    /// Turns of the loop and of its spins, to count work that is not done in each.
    turns: u32,
    main_polls: u64,
    /// When timers were last checked.
    looked: Cell<Instant>,
    /// Whether the last event came from a poller (a ring in shared memory) or the kernel.
    news_by_poller: bool,
    counters: &'a SharedCounters,
    beat: &'static Beat,
}

impl<'a> Core<'a> {
    fn new(
        runtime: &'a Runtime,
        options: &Options,
        counters: &'a SharedCounters,
        beat: &'static Beat,
        set: Rc<readiness::Set>,
    ) -> io::Result<Core<'a>> {
        let main = Arc::new(MainWaker { woken: AtomicBool::new(true), driver: runtime.waker() });
        COUNTERS.set(counters.load());
        let watch = set.watch()?;
        Ok(Core {
            runtime,
            main,
            set,
            watch,
            spin: Spin::new(options.spin_max),
            crowd: Crowd::new(),
            turns: 0,
            main_polls: 0,
            looked: Cell::new(Instant::now()),
            news_by_poller: false,
            counters,
            beat,
        })
    }

    fn run_to_end<F: Future>(mut self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(self.main.clone());
        let mut cx = Context::from_waker(&waker);
        loop {
            self.beat.turn();
            if self.main.woken.swap(false, Ordering::AcqRel) {
                self.main_polls = self.main_polls.wrapping_add(1);
                turn::begin(turn::TURN_TICKS);
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            }
            let more = self.run_tasks();
            let news = self.ask_pollers();
            // Sockets are checked before a task in the background gets a turn: what has arrived goes first.
            let collected = !background::is_empty();
            if collected {
                self.collect_readiness();
            }
            let background = background::offer(TASK_POLLS.get().wrapping_add(self.main_polls), more);
            if more || news || background || self.main_woken() {
                // There is work, but the kernel must be checked in between, or a busy task would starve the sockets.
                self.turns = self.turns.wrapping_add(1);
                if !collected {
                    self.collect_in_turn();
                }
                let every = if BLOCKING.get() > 0 { TURNS_PER_BLOCKING } else { TURNS_PER_TIMERS };
                if self.turns.is_multiple_of(every) || self.looked.get().elapsed() >= TIMERS_LATE_MAX {
                    self.look_at_compio();
                }
            } else if !self.spin() {
                self.sleep();
            }
        }
    }

    /// Runs tasks for a while; true if more are hot.
    fn run_tasks(&self) -> bool {
        let began = turn::ticks();
        for _ in 0..TASKS_PER_TURN {
            if !self.runtime.run() {
                return false;
            }
            if turn::ended().saturating_sub(began) >= RUN_TICKS {
                break;
            }
        }
        true
    }

    fn main_woken(&self) -> bool {
        self.main.woken.load(Ordering::Acquire)
    }

    fn collect_readiness(&mut self) {
        if self.set.collect().expect("a core's own epoll set works") {
            self.news_by_poller = false;
        }
    }

    /// Collects readiness in each turn; only in some of them while events come from pollers, which a system call would
    /// delay.
    fn collect_in_turn(&mut self) {
        if !self.news_by_poller || self.turns.is_multiple_of(TURNS_PER_SYSCALL) {
            self.collect_readiness();
        }
    }

    fn ask_pollers(&mut self) -> bool {
        let news = poller::poll_all();
        self.news_by_poller |= news;
        news
    }

    /// Collects compio's events (finished blocking calls, expired timers) without waiting.
    fn look_at_compio(&self) {
        // A notified driver does not wait, not even for a timeout of zero, which would set up a kernel timer.
        self.main.driver.wake_by_ref();
        self.runtime.poll_with(Some(Duration::ZERO));
        self.looked.set(Instant::now());
    }

    /// The busy-poll phase, which checks everything at least once; true if there is something to run.
    fn spin(&mut self) -> bool {
        let hurry = SPIN_INHIBITORS.get() == 0 || poller::any();
        let budget = if hurry { self.spin.budget() } else { Duration::ZERO };
        let start = Instant::now();
        let timer = self.runtime.current_timeout().map(|wait| start + wait);
        let mut now = start;
        let (mut looked_about, mut crowded) = (start, false);
        let won = loop {
            let last = crowded || now.duration_since(start) >= budget;
            let polls = TASK_POLLS.get();
            self.turns = self.turns.wrapping_add(1);
            if last {
                self.collect_readiness();
            } else {
                self.collect_in_turn();
            }
            let blocked = BLOCKING.get() > 0 && self.turns.is_multiple_of(TURNS_PER_BLOCKING);
            // A sleep that follows at once checks by itself.
            if (last && !budget.is_zero()) || blocked || timer.is_some_and(|timer| timer <= now) {
                self.look_at_compio();
            }
            // Running the executor also takes in wakes by other threads.
            let more = self.runtime.run();
            if (0..LOOKS_PER_TURN).any(|_| self.ask_pollers())
                || more
                || TASK_POLLS.get() != polls
                || !background::is_empty()
                || self.main_woken()
            {
                break true;
            }
            if last {
                break false;
            }
            std::hint::spin_loop();
            if self.turns.is_multiple_of(TURNS_PER_CLOCK) {
                now = Instant::now();
                if now.duration_since(looked_about) >= crowd::LOOK_EVERY {
                    looked_about = now;
                    // Yields to threads that wait for a processor: one may be the peer that this core waits for.
                    crowded = self.crowd.waits();
                }
            }
        };
        if budget.is_zero() {
            return won;
        }
        // An event after that would have been seen by sleeping, and sooner.
        if won && !crowded {
            self.spin.won();
            count(&self.counters.spins_won);
        } else {
            self.spin.lost();
            count(&self.counters.spins_lost);
        }
        COUNTERS.set(self.counters.load());
        won
    }

    /// Sleeps in the kernel until an event or the next timer.
    fn sleep(&mut self) {
        let asleep = poller::before_sleep();
        // The last check of the pollers may have woken the main future.
        if !asleep.quiet || self.main_woken() {
            return;
        }
        // A watch that ended unnoticed since the last sleep reports once: set it again. Descriptors that became ready
        // meanwhile end the new one at once.
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(watched) = self.watch.poll_read_ready(&mut cx) {
            watched.expect("a core's own epoll set can be watched");
        }
        count(&self.counters.sleeps);
        COUNTERS.set(self.counters.load());
        self.beat.sleeps();
        self.runtime.poll_with(self.runtime.current_timeout());
        self.beat.turn();
        self.set.woken();
        drop(asleep);
        self.collect_readiness();
    }
}
