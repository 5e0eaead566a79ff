//! The flight recorder: where the time of slow operations goes.
//!
//! An operation costs a few stores as long as nothing about it is slow. It is followed (see `flight`) once it has to
//! wait, or has spent a noticeable time in one place. Then each wait says what it is for (`hop`), and the times of
//! all hops add up to the whole. What ends and was slow stays in its core's book (see `book`), the last ones of which
//! are shown beside those that have not ended.
//!
//! How an operation is found: its future is polled inside [`Recorded`], which makes it the current one of the thread.
//! Whoever waits needs no handle of it: a read of a file says that it is for the disk, whatever it is done for. Work that
//! continues in another task takes the operation along ([`carried`]).
//!
//! Stamps are readings of the time-stamp counter: one that the check of a turn has made anyway where a core begins or
//! resumes an operation, and one more for each end of a wait.

mod book;
mod flight;
mod hop;
mod list;
mod told;

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use self::book::{Book, THRESHOLD};
pub use self::book::{MAX_FOLLOWED, MAX_RECORD_BYTES, MAX_RECORDS};
use self::flight::Flight;
pub use self::flight::{Details, Stage, User};
pub use self::hop::{HOPS, Hop, PerHop};
pub use self::list::slow;
pub use self::told::Slow;
use crate::meter::{self, What};
use crate::rt::turn;

/// An operation that spends this part of the threshold in one place is followed from then on.
const NOTICEABLE_PART: u64 = 16;
/// Deciphering or verifying so many bytes takes ten microseconds and more.
const NOTICEABLE_BYTES: usize = 64 << 10;

/// Records operations that take this long or longer, in the whole process. The first call takes some milliseconds.
pub fn enable(threshold: Duration) {
    THRESHOLD.store(meter::ticks(threshold).max(1), Ordering::Relaxed);
}

/// The threshold; `None` before [`enable`].
pub fn threshold() -> Option<Duration> {
    let ticks = THRESHOLD.load(Ordering::Relaxed);
    (ticks != u64::MAX).then(|| meter::duration(ticks))
}

#[inline]
fn is_on() -> bool {
    THRESHOLD.load(Ordering::Relaxed) != u64::MAX
}

/// What waits are told to.
#[derive(Clone)]
enum Track {
    Flight(Arc<Flight>),
    /// The queue of answers of a connection.
    Stage(Arc<Stage>),
}

impl Track {
    fn enter(&self, hop: Hop) {
        match self {
            Track::Flight(flight) => flight.enter(hop),
            Track::Stage(stage) if hop == Hop::Disk => stage.enter(),
            Track::Stage(_) => {}
        }
    }

    fn leave(&self, hop: Hop) {
        match self {
            Track::Flight(flight) => flight.leave(hop),
            Track::Stage(stage) if hop == Hop::Disk => stage.leave(),
            Track::Stage(_) => {}
        }
    }
}

/// Holds a flight: the last one dropped ends it.
struct Holder(Arc<Flight>);

impl Clone for Holder {
    fn clone(&self) -> Holder {
        self.0.hold();
        Holder(self.0.clone())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Whose waits these are.
#[derive(Clone, Default)]
enum Owner {
    /// Nobody's.
    #[default]
    None,
    /// An operation's that is not followed yet.
    Unfollowed,
    Followed(Holder),
    Stage(Arc<Stage>),
}

/// An operation, from its message to its answer. Its default is none: nothing is recorded of it.
#[derive(Clone, Default)]
pub struct Operation {
    owner: Owner,
    received: u64,
    /// When the core began to work on it.
    mark: u64,
    what: What,
    bytes: u64,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let followed = matches!(self.owner, Owner::Followed(_));
        f.debug_struct("Operation").field("what", &self.what).field("followed", &followed).finish()
    }
}

/// What a thread works on. Everything that an operation needs is here, because each look-up of the thread's own costs.
struct Current {
    operation: RefCell<Operation>,
    /// Changes of the operation that need no more than a store.
    what: Cell<What>,
    book: OnceCell<Arc<Book>>,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            operation: RefCell::new(Operation { owner: Owner::None, received: 0, mark: 0, what: What::NONE, bytes: 0 }),
            what: Cell::new(What::NONE),
            book: OnceCell::new(),
        }
    };
}

/// `None` while the thread ends: nothing is recorded then.
#[inline]
fn here<T>(act: impl FnOnce(&Current) -> T) -> Option<T> {
    CURRENT.try_with(act).ok()
}

impl Current {
    #[inline]
    fn book(&self) -> &Arc<Book> {
        self.book.get_or_init(Book::enter)
    }

    /// Exchanges the current operation with another one.
    #[inline]
    fn exchange(&self, operation: &mut Operation) {
        let mut inner = self.operation.borrow_mut();
        inner.what = self.what.replace(operation.what);
        std::mem::swap(&mut *inner, operation);
    }

    /// Who waits; an operation is followed from now on.
    fn track(&self) -> Option<Track> {
        let mut operation = self.operation.borrow_mut();
        if let Owner::Stage(stage) = &operation.owner {
            return Some(Track::Stage(stage.clone()));
        }
        operation.what = self.what.get();
        operation.flight(self.book(), turn::looked()).cloned().map(Track::Flight)
    }

    /// The flight of the current operation, if it is followed.
    #[inline]
    fn followed(&self) -> Option<Arc<Flight>> {
        match &self.operation.borrow().owner {
            Owner::Followed(holder) => Some(holder.0.clone()),
            _ => None,
        }
    }
}

/// When a message arrived, for messages that are taken later than they are received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival(u64);

impl Arrival {
    /// Of what this task has just received.
    #[inline]
    pub fn now() -> Arrival {
        Arrival(turn::arrived())
    }

    /// A message with this arrival is taken now: operations that begin are measured from then on.
    #[inline]
    pub fn taken(self) {
        turn::set_arrived(self.0);
    }
}

impl Operation {
    /// An operation whose message has just been taken.
    #[inline]
    pub fn begin() -> Operation {
        if !is_on() {
            return Operation::default();
        }
        let mark = turn::looked();
        let (owner, received) = (Owner::Unfollowed, turn::arrived().min(mark));
        Operation { owner, received, mark, what: What::NONE, bytes: 0 }
    }

    /// The current one, for what continues after its future has ended.
    pub fn current() -> Operation {
        here(|current| Operation { what: current.what.get(), ..current.operation.borrow().clone() })
            .unwrap_or_default()
    }

    /// Whether it has taken long, though nothing has followed it.
    #[inline]
    fn is_slow(&self, now: u64) -> bool {
        let took = now.saturating_sub(self.received);
        matches!(self.owner, Owner::Unfollowed) && took >= THRESHOLD.load(Ordering::Relaxed)
    }

    /// Its flight, which begins now at the latest.
    fn flight(&mut self, book: &Arc<Book>, now: u64) -> Option<&Arc<Flight>> {
        if let Owner::Unfollowed = self.owner {
            let flight = Arc::new(Flight::new(self.received, self.mark, self.what, now));
            flight.moves(self.bytes);
            book.follow(&flight);
            self.owner = Owner::Followed(Holder(flight));
        }
        match &self.owner {
            Owner::Followed(holder) => Some(&holder.0),
            _ => None,
        }
    }

    /// Its answer was not taken at once: it waits in these queues until this is dropped.
    pub fn sending(
        &mut self,
        stages: impl IntoIterator<Item = Arc<Stage>>,
        details: impl FnOnce() -> Details,
    ) {
        let now = turn::ticks();
        if let Some(Some(flight)) = here(|current| self.flight(current.book(), now).cloned()) {
            flight.paused(now);
            flight.sending(stages);
            if flight.lacks_details() {
                flight.describe(details());
            }
        }
    }
}

/// Makes an operation the current one until it is dropped.
struct Entered<'a>(&'a mut Operation, bool);

impl<'a> Entered<'a> {
    #[inline]
    fn new(operation: &'a mut Operation, runs: bool) -> Entered<'a> {
        here(|current| {
            current.exchange(operation);
            if runs {
                current.book().works_on(current.what.get(), turn::looked());
            }
        });
        Entered(operation, runs)
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        here(|current| {
            current.exchange(self.0);
            if self.1 {
                current.book().rests();
            }
        });
    }
}

/// The current operation of this thread is carried out until this is dropped: for work that never waits.
#[derive(Debug)]
pub struct AtOnce {
    is_on: bool,
    /// What the thread did before; hardly ever anything.
    outer: Option<Box<Operation>>,
}

impl AtOnce {
    /// An operation begins.
    #[inline]
    pub fn begin(what: What) -> AtOnce {
        if !is_on() {
            return AtOnce { is_on: false, outer: None };
        }
        let outer = here(|current| {
            let operation = &mut *current.operation.borrow_mut();
            let outer = match operation.owner {
                Owner::None => None,
                _ => Some(Box::new(Operation { what: current.what.get(), ..std::mem::take(operation) })),
            };
            *operation = Operation::begin();
            current.what.set(what);
            current.book().works_on(what, operation.mark);
            outer
        });
        AtOnce { is_on: true, outer: outer.flatten() }
    }
}

impl Drop for AtOnce {
    #[inline]
    fn drop(&mut self) {
        if !self.is_on {
            return;
        }
        let owner = here(|current| {
            current.book().rests();
            let operation = &mut *current.operation.borrow_mut();
            let owner = std::mem::take(&mut operation.owner);
            if let Some(outer) = self.outer.take() {
                current.what.set(outer.what);
                *operation = *outer;
            }
            owner
        });
        if let Some(Owner::Followed(holder)) = owner {
            holder.0.paused(turn::looked());
        }
    }
}

/// A future that carries an operation out.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Recorded<F> {
    future: F,
    operation: Operation,
}

/// Carries out an operation whose message has just been taken.
#[inline]
pub fn recorded<F: Future>(future: F) -> Recorded<F> {
    Recorded { future, operation: Operation::begin() }
}

/// Continues an operation.
#[inline]
pub fn continued<F: Future>(operation: Operation, future: F) -> Recorded<F> {
    Recorded { future, operation }
}

/// Continues the current operation in another task.
pub fn carried<F: Future>(future: F) -> Recorded<F> {
    let operation = here(|current| {
        let mut operation = current.operation.borrow_mut();
        operation.what = current.what.get();
        operation.flight(current.book(), turn::looked());
        operation.clone()
    });
    Recorded { future, operation: operation.unwrap_or_default() }
}

/// The same, returning the operation with its result: its answer is yet to be sent.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Kept<F>(Recorded<F>);

/// Carries out an operation whose message has just been taken, and whose answer somebody else sends.
#[inline]
pub fn kept<F: Future>(future: F) -> Kept<F> {
    Kept(recorded(future))
}

/// The same for an operation that has begun.
#[inline]
pub fn kept_on<F: Future>(operation: Operation, future: F) -> Kept<F> {
    Kept(continued(operation, future))
}

impl<F: Future> Future for Kept<F> {
    type Output = (F::Output, Operation);

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(F::Output, Operation)> {
        // SAFETY: the future is never moved out of a pinned `Kept`, which has no Drop of its own; its operation is not
        // pinned.
        let mut recorded = unsafe { self.map_unchecked_mut(|kept| &mut kept.0) };
        let polled = recorded.as_mut().poll_inside(cx);
        // SAFETY: as above.
        let operation = unsafe { &mut recorded.get_unchecked_mut().operation };
        polled.map(|done| (done, std::mem::take(operation)))
    }
}

impl<F: Future> Future for Recorded<F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.as_mut().poll_inside(cx);
        if polled.is_ready() {
            // SAFETY: the future is not moved; the operation is not pinned.
            unsafe { self.get_unchecked_mut() }.operation = Operation::default();
        }
        polled
    }
}

impl<F: Future> Recorded<F> {
    /// Leaves the operation as it is after the last poll.
    #[inline]
    fn poll_inside(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is never moved out of a pinned `Recorded`, which has no Drop of its own; the operation is
        // not pinned.
        let (future, operation) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.operation)
        };
        let entered = match &operation.owner {
            Owner::None => return future.poll(cx),
            Owner::Unfollowed => {
                operation.mark = turn::looked();
                Entered::new(operation, true)
            }
            Owner::Followed(holder) => {
                holder.0.resumed(turn::looked());
                Entered::new(operation, true)
            }
            Owner::Stage(_) => Entered::new(operation, false),
        };
        let polled = future.poll(cx);
        drop(entered);
        if polled.is_pending() || operation.is_slow(turn::looked()) {
            here(|current| {
                operation.flight(current.book(), turn::looked());
            });
        }
        if let Owner::Followed(holder) = &operation.owner {
            holder.0.paused(turn::look());
        }
        polled
    }
}

/// Reads for the answers in the queue of a connection: its waits for a disk are theirs, and not those of the operation that is
/// carried out meanwhile.
#[inline]
pub fn staged<F: Future>(stage: &Arc<Stage>, future: F) -> Recorded<F> {
    let owner = if is_on() { Owner::Stage(stage.clone()) } else { Owner::None };
    Recorded { future, operation: Operation { owner, ..Operation::default() } }
}

/// The current operation's track; it is followed from now on.
fn current_track() -> Option<Track> {
    if !is_on() {
        return None;
    }
    here(Current::track).flatten()
}

/// The current operation is this, or its next part is.
#[inline]
pub fn is(what: What) {
    if !is_on() {
        return;
    }
    here(|current| {
        current.what.set(what);
        current.book().works_on_what(what);
        if let Owner::Followed(holder) = &current.operation.borrow().owner {
            holder.0.is(what, turn::looked());
        }
    });
}

/// The current operation moves so many bytes of payload.
#[inline]
pub fn moves(bytes: u64) {
    if !is_on() {
        return;
    }
    here(|current| {
        let operation = &mut *current.operation.borrow_mut();
        operation.bytes = bytes;
        if let Owner::Followed(holder) = &operation.owner {
            holder.0.moves(bytes);
        }
    });
}

/// The core has worked on this since it last looked at the clock. Reads the clock.
#[inline]
pub fn spent(hop: Hop) {
    if !is_on() {
        return;
    }
    let before = turn::looked();
    let now = turn::look();
    here(|current| {
        let operation = &mut *current.operation.borrow_mut();
        match &operation.owner {
            Owner::Followed(holder) => holder.0.spent(hop, now),
            Owner::Unfollowed => {
                let took = now.saturating_sub(before.max(operation.mark));
                if took > THRESHOLD.load(Ordering::Relaxed) / NOTICEABLE_PART {
                    operation.what = current.what.get();
                    if let Some(flight) = operation.flight(current.book(), now) {
                        flight.was(hop, took);
                    }
                }
            }
            Owner::None | Owner::Stage(_) => {}
        }
    });
}

/// The same for work on so many bytes: on a few of them it takes less time than anybody would notice, and counts as the
/// core's other work without a reading of the clock.
#[inline]
pub fn spent_on(hop: Hop, bytes: usize) {
    if bytes >= NOTICEABLE_BYTES {
        spent(hop);
    }
}

/// The current operation is answered, and has been counted: if it was slow although it never had to wait, it is followed
/// until it is sent.
#[inline]
pub fn answered(details: impl FnOnce() -> Details) {
    if !is_on() {
        return;
    }
    let now = if meter::is_on() { turn::looked() } else { turn::look_at_end() };
    let undescribed = here(|current| {
        let operation = &mut *current.operation.borrow_mut();
        match &operation.owner {
            Owner::Unfollowed if operation.is_slow(now) => {
                operation.what = current.what.get();
                operation.flight(current.book(), now).cloned()
            }
            Owner::Followed(holder) if holder.0.lacks_details() => Some(holder.0.clone()),
            _ => None,
        }
    });
    if let Some(Some(flight)) = undescribed {
        flight.describe(details());
    }
}

/// The current operation waits for events on purpose: nothing is recorded of it.
pub fn hide() {
    here(|current| {
        let operation = &mut *current.operation.borrow_mut();
        match &operation.owner {
            Owner::Followed(holder) => holder.0.hide(),
            Owner::Unfollowed => operation.owner = Owner::None,
            Owner::None | Owner::Stage(_) => {}
        }
    });
}

/// The current operation may wait for other clients as long as it likes: that does not make it slow.
pub fn is_patient() {
    if let Some(Track::Flight(flight)) = current_track() {
        flight.is_patient();
    }
}

/// A future whose operation is described once it is followed.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Described<F, D> {
    future: F,
    details: D,
    done: bool,
}

/// Describes the current operation, if it has to wait.
#[inline]
pub fn described<F: Future, D: Fn() -> Details>(future: F, details: D) -> Described<F, D> {
    Described { future, details, done: false }
}

impl<F: Future, D: Fn() -> Details> Future for Described<F, D> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is never moved out of a pinned `Described`, which has no Drop of its own.
        let (future, details, done) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.details, &mut this.done)
        };
        let polled = future.poll(cx);
        if !*done && is_on() {
            if polled.is_pending() {
                // The operation will be followed.
                drop(current_track());
            }
            if let Some(flight) = here(Current::followed).flatten() {
                if flight.lacks_details() {
                    flight.describe(details());
                }
                *done = true;
            }
        }
        polled
    }
}

/// A wait whose purpose is known.
#[must_use = "futures do nothing unless they are polled"]
pub struct At<F> {
    future: F,
    hop: Hop,
    track: Waiting,
}

impl<F> std::fmt::Debug for At<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("At").field("hop", &self.hop).finish_non_exhaustive()
    }
}

/// While `future` waits, the current operation is at this hop.
#[inline]
pub fn at<F: Future>(hop: Hop, future: F) -> At<F> {
    At { future, hop, track: Waiting(None) }
}

impl<F: Future> Future for At<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is never moved out of a pinned `At`, which has no Drop of its own.
        let (future, hop, track) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), this.hop, &mut this.track)
        };
        let polled = future.poll(cx);
        match polled {
            Poll::Pending if track.0.is_none() => *track = wait(hop),
            Poll::Pending => {}
            Poll::Ready(_) => track.0 = None,
        }
        polled
    }
}

/// The current operation waits for something, until this is dropped; on any thread.
#[derive(Default)]
pub struct Waiting(Option<Entry>);

struct Entry {
    track: Track,
    hop: Hop,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.as_ref().map(|entry| entry.hop)).finish()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.track.leave(self.hop);
    }
}

/// The current operation begins to wait.
pub fn wait(hop: Hop) -> Waiting {
    Waiting(current_track().map(|track| {
        track.enter(hop);
        Entry { track, hop }
    }))
}

impl Waiting {
    /// It waits for something else now.
    pub fn becomes(&mut self, hop: Hop) {
        if let Some(entry) = &mut self.0
            && entry.hop != hop
        {
            match &entry.track {
                Track::Flight(flight) => flight.change(entry.hop, hop),
                track @ Track::Stage(_) => {
                    track.leave(entry.hop);
                    track.enter(hop);
                }
            }
            entry.hop = hop;
        }
    }
}

/// A call for a worker.
pub(crate) struct Handed(Arc<Call>);

/// The worker's part of it.
pub(crate) struct Worker(Arc<Call>);

struct Call {
    track: Track,
    state: AtomicU8,
}

const QUEUED: u8 = 0;
const RUNS: u8 = 1;
const DONE: u8 = 2;
const FORGOTTEN: u8 = 3;

/// The current operation passes a call to a worker.
pub(crate) fn handed() -> Option<Handed> {
    let track = current_track()?;
    track.enter(Hop::Store);
    track.enter(Hop::Pool);
    Some(Handed(Arc::new(Call { track, state: AtomicU8::new(QUEUED) })))
}

impl Handed {
    pub(crate) fn worker(&self) -> Worker {
        Worker(self.0.clone())
    }
}

impl Worker {
    /// Makes the call.
    pub(crate) fn run<T>(self, call: impl FnOnce() -> T) -> T {
        let Call { track, state } = &*self.0;
        let change = |from, to| state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if change(QUEUED, RUNS) {
            track.leave(Hop::Pool);
        }
        let done = call();
        // The other way round, it could be left before it is entered.
        track.enter(Hop::Queue);
        if !change(RUNS, DONE) {
            track.leave(Hop::Queue);
        }
        done
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Call { track, state } = &*self.0;
        match state.swap(FORGOTTEN, Ordering::AcqRel) {
            QUEUED => track.leave(Hop::Pool),
            DONE => track.leave(Hop::Queue),
            _ => {}
        }
        track.leave(Hop::Store);
    }
}

#[cfg(test)]
mod tests;
