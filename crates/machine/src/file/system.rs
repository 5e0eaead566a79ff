//! File systems whose calls may block: such calls go to workers, and a file system that hangs occupies a bounded number
//! of them.
//!
//! A call on a core delays everybody whom the core serves. If the answer is in memory, that takes a microsecond, less
//! than a hop to a worker; a file system that depends on another machine or process may take forever. So
//! [`FileSystem::blocks`] decides where calls on names are made: always on workers if the file system is remote (see
//! `file::mounts`), on workers for a while after a call has taken [`SLOW_CALL`], and otherwise on the core. Calls on
//! data go to workers only if the file system is remote or hangs ([`FileSystem::may_hang`]): a disk that seeks for
//! names still takes writes into memory as usual.
//!
//! This file owns each file system's places among the workers, its queue for them, and the thread that closes its
//! descriptors. A call that has begun cannot be ended. The kernel decides when it ends; a caller may stop waiting, but
//! the place stays occupied until then.
//!
//! Each file system has [`OWN_PLACES`] to itself, and uses up to [`MAX_PLACES`] while some of the [`SHARED_PLACES`] are
//! free. At most [`MAX_WAITING`] calls wait for a place of one file system, each for at most [`MAX_WAIT`]; a call that
//! gets no place fails with [`Unanswered`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use super::mounts::Device;
use super::mounts::{self, Mount};
use crate::clock::Time;
use crate::recorder::{self, Hop};
use crate::rt::tickets::Tickets;
use crate::{rt, sim};

/// A call on names that takes this long delays others on its core for no good reason. An answer from the kernel's
/// caches takes a thousandth of it, a listing of thousands of entries a tenth; a host whose processors are all busy may
/// stop a thread for longer.
pub const SLOW_CALL: Duration = Duration::from_millis(50);
/// About [`SLOW_CALL`] in ticks of the turn's clock: reading the clock of the system twice took a tenth of the time that
/// a WRITE of 8 KiB spends in user space.
const SLOW_TICKS: u64 = 25 * rt::turn::TURN_TICKS;
/// Calls on names return to the cores when none has taken [`SLOW_CALL`] for this long.
pub const CALM: Duration = Duration::from_secs(5);
/// A call on names that has not ended after this time may never end.
pub const HUNG_CALL: Duration = Duration::from_secs(10);
/// Calls of a file system that may run at once, regardless of others.
pub const OWN_PLACES: usize = 4;
/// The most calls of a file system that run at once.
pub const MAX_PLACES: usize = 32;
/// Calls of all file systems beyond their own places that run at once.
pub const SHARED_PLACES: usize = 96;
/// Calls of all file systems that run at once. Together with those of [`rt`]'s kinds they are fewer than the worker
/// threads that a core may have.
pub const ALL_PLACES: usize = 160;
const _: () = assert!(rt::ALL_KINDS + ALL_PLACES <= rt::WORKERS, "each call finds a worker");
/// Calls that wait for a place of a file system.
pub const MAX_WAITING: usize = 1024;
/// The longest wait for a place.
pub const MAX_WAIT: Duration = Duration::from_secs(30);
/// Descriptors of a file system that wait to be closed; beyond that number, nothing is opened.
pub const MAX_CLOSING: usize = 256;
/// A thread with nothing to close ends after this time.
const CLOSER_IDLE: Duration = Duration::from_secs(10);
/// How often the log repeats that a file system does not answer.
const REMIND: Duration = Duration::from_secs(60);

/// A file system has no place for another call, because those that have begun do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file system does not answer")]
pub struct Unanswered;

impl From<Unanswered> for io::Error {
    fn from(_: Unanswered) -> io::Error {
        io::ErrorKind::ResourceBusy.into()
    }
}

/// A file system, identified by its device. Shares on the same file system use the same value.
#[derive(Debug)]
pub struct FileSystem {
    /// Identifies its places.
    number: u64,
    device: Device,
    is_remote: AtomicBool,
    /// The only field that a call on names reads.
    blocks: AtomicBool,
    /// The only field that a call on data reads.
    may_hang: AtomicBool,
    /// Neither of the two changes.
    is_fixed: bool,
    pace: Mutex<Pace>,
    told: Mutex<Option<Time>>,
    later: Mutex<Later>,
    /// Tells the thread that there is more to do, and others that something is done.
    changed: Condvar,
}

/// Durations of calls on names.
#[derive(Debug, Default)]
struct Pace {
    /// When the last slow call ended.
    slow: Option<Time>,
    /// The start times of calls running on workers, by their numbers.
    running: BTreeMap<u64, Time>,
    next: u64,
}

impl Pace {
    fn begin(&mut self, now: Time) -> u64 {
        let number = self.next;
        self.next += 1;
        self.running.insert(number, now);
        number
    }

    fn end(&mut self, number: u64, now: Time) {
        if let Some(began) = self.running.remove(&number) {
            self.took(now.since(began), now);
        }
    }

    fn took(&mut self, time: Duration, now: Time) {
        if time >= SLOW_CALL {
            self.slow = Some(now);
        }
    }

    /// Whether the next call may be slow, judging by the last ones.
    fn is_slow(&self, now: Time) -> bool {
        self.slow.is_some_and(|slow| now.since(slow) < CALM) || self.longest(now) >= SLOW_CALL
    }

    /// How long the oldest call has been running.
    fn longest(&self, now: Time) -> Duration {
        self.running.values().map(|began| now.since(*began)).max().unwrap_or_default()
    }
}

/// Work in order on a thread of the file system, which exists while there is work.
#[derive(Default)]
struct Later {
    work: VecDeque<Box<dyn FnOnce() + Send>>,
    runs: bool,
    /// How much was requested, and done; `done <= asked`.
    asked: u64,
    done: u64,
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Later({})", self.work.len())
    }
}

static ALL: Mutex<BTreeMap<Device, Weak<FileSystem>>> = Mutex::new(BTreeMap::new());

// Nothing below panics between two changes of what a lock guards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Updates the file systems after a change of the mounts. A device that is not among them keeps its state: it may still
/// be in use.
fn learn(mounts: &[Mount]) {
    for (device, system) in &*lock(&ALL) {
        if let (Some(system), Some(mount)) = (system.upgrade(), mounts.iter().find(|m| m.device == *device)) {
            system.is_remote.store(mount.is_remote(), Ordering::Release);
            system.update(rt::now());
        }
    }
}

impl FileSystem {
    /// The file system of a device.
    pub fn of(device: Device) -> Arc<FileSystem> {
        mounts::notify(learn);
        // Called outside the lock, because the first call reads the table of mounts and updates the known file systems.
        let mounts = mounts::mounts();
        let mut all = lock(&ALL);
        if let Some(known) = all.get(&device).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, system| system.strong_count() > 0);
        let is_remote = mounts.iter().any(|mount| mount.device == device && mount.is_remote());
        let system = Arc::new(FileSystem::new(device, is_remote, false));
        all.insert(device, Arc::downgrade(&system));
        system
    }

    /// The file system of a path without links, by the table of mounts only.
    pub fn at(path: &Path) -> Arc<FileSystem> {
        let mounts = mounts::mounts();
        let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several mounts at one point the last one hides the others.
        let nearest = above.max_by_key(|mount| mount.point.as_os_str().len());
        FileSystem::of(nearest.map_or((0, 0), |mount| mount.device))
    }

    /// A file system whose calls are always made in the same place, whatever is mounted and however long they take: for
    /// tests, which a busy host may interrupt in the middle of any call.
    pub fn fixed(blocks: bool) -> Arc<FileSystem> {
        Arc::new(FileSystem::new((0, 0), blocks, true))
    }

    fn new(device: Device, is_remote: bool, is_fixed: bool) -> FileSystem {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        FileSystem {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            device,
            is_remote: AtomicBool::new(is_remote),
            blocks: AtomicBool::new(is_remote),
            may_hang: AtomicBool::new(is_remote),
            is_fixed,
            pace: Mutex::default(),
            told: Mutex::default(),
            later: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Whether a call may never end, as of the last check: then calls on data must be made on workers, too. One atomic
    /// load.
    #[inline]
    pub fn may_hang(&self) -> bool {
        self.may_hang.load(Ordering::Acquire)
    }

    /// Whether calls on names must be made on workers: one atomic load.
    #[inline]
    pub fn blocks(&self) -> bool {
        self.blocks.load(Ordering::Acquire)
    }

    /// Decides again where calls are made.
    fn update(&self, now: Time) {
        if self.is_fixed {
            return;
        }
        let pace = lock(&self.pace);
        // Under the lock, so that an older observation is not stored last.
        let is_remote = self.is_remote.load(Ordering::Acquire);
        self.blocks.store(is_remote || pace.is_slow(now), Ordering::Release);
        self.may_hang.store(is_remote || pace.longest(now) >= HUNG_CALL, Ordering::Release);
    }

    /// Makes a call on names on this core, while nothing indicates that it may block.
    pub fn inline<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = rt::turn::ticks();
        let done = call();
        // Zero if this thread runs on another processor now, whose counter is behind.
        if rt::turn::ticks().saturating_sub(began) >= SLOW_TICKS {
            recorder::spent(Hop::Store);
            self.was_slow(rt::now());
        }
        done
    }

    #[cold]
    fn was_slow(&self, now: Time) {
        lock(&self.pace).took(SLOW_CALL, now);
        self.update(now);
    }

    /// Makes a call on names on a worker. It runs to its end even if the future is dropped. Under simulation it runs at
    /// once, on the caller's thread.
    ///
    /// # Panics
    /// With the call's own panic.
    pub async fn names<T: Send + 'static>(
        self: &Arc<FileSystem>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let system = self.clone();
        self.data(move || {
            let now = rt::now();
            let number = lock(&system.pace).begin(now);
            // Another call may have been running for long.
            system.update(now);
            // Also ends if the call panics.
            let _running = Running(&system, number);
            call()
        })
        .await
    }

    /// Makes a call on data on a worker; its duration says nothing about calls on names.
    ///
    /// # Panics
    /// With the call's own panic.
    pub async fn data<T: Send + 'static>(
        self: &Arc<FileSystem>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        if sim::active() {
            return Ok(call());
        }
        let place = self.place().await?;
        Ok(rt::on_worker(move || {
            let _place = place;
            call()
        })
        .await)
    }

    async fn place(self: &Arc<FileSystem>) -> Result<WorkerPlace, Unanswered> {
        let taken = lock(&PLACES).take(self.number);
        match taken {
            Taken::Now => return Ok(WorkerPlace(self.number)),
            Taken::Full => {}
            Taken::Wait => {
                let taking = Taking { number: self.number, ticket: None };
                if let Ok(place) = recorder::at(Hop::Pool, rt::timeout(MAX_WAIT, taking)).await {
                    return Ok(place);
                }
            }
        }
        self.tell(rt::now());
        Err(Unanswered)
    }

    fn tell(&self, now: Time) {
        let mut told = lock(&self.told);
        if told.is_none_or(|told| now.since(told) >= REMIND) {
            *told = Some(now);
            drop(told);
            tracing::warn!(
                "{} does not answer: requests to it are refused until its pending calls end",
                self.described()
            );
        }
    }

    fn described(&self) -> String {
        let (major, minor) = self.device;
        let mounts = mounts::mounts();
        match mounts.iter().find(|mount| mount.device == self.device) {
            Some(mount) => {
                let point = mount.point.as_os_str().as_encoded_bytes().escape_ascii();
                format!("the file system {point} ({})", mount.kind)
            }
            None => format!("the file system of device {major}:{minor}"),
        }
    }

    /// The message about it while its calls do not end.
    pub fn trouble(&self) -> Option<String> {
        self.trouble_at(rt::now())
    }

    fn trouble_at(&self, now: Time) -> Option<String> {
        let (longest, running) = {
            let pace = lock(&self.pace);
            (pace.longest(now), pace.running.len())
        };
        let hangs = longest >= HUNG_CALL;
        hangs.then(|| {
            format!(
                "{} does not answer: {running} operations wait for it, one for {} s. Check that its server or process is running",
                self.described(),
                longest.as_secs()
            )
        })
    }

    /// Runs `work` on a thread of this file system, after earlier work. The queue is not bounded here: each piece of
    /// work is a descriptor or a watch, which are bounded.
    pub fn later(self: &Arc<FileSystem>, work: impl FnOnce() + Send + 'static) {
        let mut later = lock(&self.later);
        later.asked += 1;
        later.work.push_back(Box::new(work));
        if later.runs {
            self.changed.notify_all();
            return;
        }
        later.runs = true;
        drop(later);
        let system = self.clone();
        let spawned =
            std::thread::Builder::new().name("weft-close".to_owned()).spawn(move || system.work_off(true));
        if let Err(e) = spawned {
            tracing::warn!("closing descriptors of {} blocks from now on: no thread: {e}", self.described());
            self.work_off(false);
        }
    }

    /// Runs the queued work; with `stays`, also work that comes soon.
    fn work_off(&self, stays: bool) {
        let mut later = lock(&self.later);
        loop {
            let Some(work) = later.work.pop_front() else {
                let idle = if stays { CLOSER_IDLE } else { Duration::ZERO };
                let more = self.changed.wait_timeout_while(later, idle, |later| later.work.is_empty());
                later = more.unwrap_or_else(PoisonError::into_inner).0;
                if later.work.is_empty() {
                    later.runs = false;
                    return;
                }
                continue;
            };
            drop(later);
            work();
            later = lock(&self.later);
            later.done += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is closed that was queued before this call. Blocks.
    pub fn settle(&self) {
        let mut later = lock(&self.later);
        let asked = later.asked;
        while later.done < asked {
            later = self.changed.wait(later).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether so much waits to be closed that nothing more may be opened.
    pub fn closes_too_much(&self) -> bool {
        lock(&self.later).work.len() >= MAX_CLOSING
    }
}

/// A call on names that is running on a worker.
struct Running<'a>(&'a FileSystem, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Running(system, number) = *self;
        let now = rt::now();
        lock(&system.pace).end(number, now);
        system.update(now);
    }
}

/// The places of all file systems.
#[derive(Default)]
struct Places {
    lanes: BTreeMap<u64, Lane>,
}

static PLACES: Mutex<Places> = Mutex::new(Places { lanes: BTreeMap::new() });

/// The places of one file system.
struct Lane {
    /// `taken <= MAX_PLACES`.
    taken: usize,
    waiting: Tickets,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { taken: 0, waiting: Tickets::new() }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Now,
    Wait,
    Full,
}

impl Places {
    fn is_free(&self, number: u64) -> bool {
        let taken = self.lanes.get(&number).map_or(0, |lane| lane.taken);
        let all: usize = self.lanes.values().map(|lane| lane.taken).sum();
        let shared: usize = self.lanes.values().map(|lane| lane.taken.saturating_sub(OWN_PLACES)).sum();
        all < ALL_PLACES && taken < MAX_PLACES && (taken < OWN_PLACES || shared < SHARED_PLACES)
    }

    fn take(&mut self, number: u64) -> Taken {
        let is_free = self.is_free(number);
        let lane = self.lanes.entry(number).or_default();
        match lane.waiting.len() {
            0 if is_free => {
                lane.taken += 1;
                Taken::Now
            }
            waiting if waiting < MAX_WAITING => Taken::Wait,
            _ => Taken::Full,
        }
    }

    fn wait(&mut self, number: u64, waker: Waker) -> u64 {
        self.lanes.entry(number).or_default().waiting.enter(waker)
    }

    /// Gives a place back, and grants what is free then. Returns the wakers of those who got a place.
    fn give(&mut self, number: u64) -> Vec<Waker> {
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.taken -= 1;
        }
        self.grant()
    }

    fn grant(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        let numbers: Vec<u64> = self.lanes.keys().copied().collect();
        for number in numbers {
            while self.is_free(number) {
                let Some(lane) = self.lanes.get_mut(&number) else { break };
                let Some(waker) = lane.waiting.grant() else { break };
                lane.taken += 1;
                woken.push(waker);
            }
        }
        self.lanes.retain(|_, lane| lane.taken > 0 || lane.waiting.len() > 0);
        woken
    }
}

/// A place of a file system, held by the call itself: dropping the future does not free it early.
struct WorkerPlace(u64);

impl Drop for WorkerPlace {
    fn drop(&mut self) {
        let woken = lock(&PLACES).give(self.0);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Waits for a place, in order.
struct Taking {
    number: u64,
    ticket: Option<u64>,
}

impl Future for Taking {
    type Output = WorkerPlace;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WorkerPlace> {
        let (number, mut woken) = (self.number, Vec::new());
        let mut places = lock(&PLACES);
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None => {
                let ticket = places.wait(number, cx.waker().clone());
                // A place may have become free since the request.
                woken = places.grant();
                ticket
            }
        };
        let lane = places.lanes.get_mut(&number);
        let waits = lane.is_some_and(|lane| !lane.waiting.fetch(ticket, cx.waker()));
        drop(places);
        self.ticket = waits.then_some(ticket);
        woken.into_iter().for_each(Waker::wake);
        if waits { Poll::Pending } else { Poll::Ready(WorkerPlace(number)) }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let granted =
            lock(&PLACES).lanes.get_mut(&self.number).is_some_and(|lane| lane.waiting.leave(ticket));
        if granted {
            drop(WorkerPlace(self.number));
        }
    }
}

/// A descriptor that is closed in the background if its file system may block: the last close of a written file sends
/// its data to the server or process behind the file system.
#[derive(Debug)]
pub struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    system: Option<Arc<FileSystem>>,
}

impl Descriptor {
    /// The descriptor of a file on this file system; `None` if it is known not to matter.
    pub fn new(fd: OwnedFd, system: Option<Arc<FileSystem>>) -> Descriptor {
        Descriptor { fd: ManuallyDrop::new(fd), system }
    }

    /// Its file system, while that may hang.
    pub fn blocking(&self) -> Option<&Arc<FileSystem>> {
        self.system.as_ref().filter(|system| system.may_hang())
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if let Some(system) = self.blocking() {
            system.later(move || drop(fd));
        }
    }
}

#[cfg(test)]
mod tests;
