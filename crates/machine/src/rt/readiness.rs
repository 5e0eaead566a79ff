//! Readiness of sockets: one edge-triggered epoll set per core, in which each descriptor is registered once.
//!
//! compio's own readiness (`PollFd`) allocates, submits and completes an operation for every wait, and costs about 2
//! microseconds each on both ends of a round trip; a registered descriptor costs one entry in the result of a system
//! call that a busy core makes anyway. The core still sleeps in compio, which watches this set as one descriptor. This
//! file owns the set and the state of each descriptor; `net` reads and writes the descriptors.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use compio_runtime::fd::PollFd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use super::turn;

/// Events collected in one system call; further ones wait for the next.
const EVENTS_PER_CALL: usize = 256;

/// A socket that had no room this recently probably waits for its peer still, which has a large part of the buffer to receive. A
/// peer that receives nothing says no more than once that there is no room.
const FULL_TICKS: u64 = turn::TURN_TICKS / 2;

/// The state of one direction of a descriptor.
#[derive(Default)]
struct Direction {
    /// An attempt may succeed: no EAGAIN since the last edge.
    ready: Cell<bool>,
    /// The peer is gone or the socket has failed: attempts return at once from now on, and no further edge comes.
    over: Cell<bool>,
    /// When what waits in the socket may have arrived, at the earliest; 0: nothing is known to wait.
    since: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Direction {
    /// Something has happened, not before `since`.
    fn edge(&self, over: bool, since: u64) {
        self.ready.set(true);
        if self.since.get() == 0 {
            self.since.set(since);
        }
        if over {
            self.over.set(true);
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ready.get() { Poll::Ready(()) } else { self.wait(cx) }
    }

    /// The next edge wakes the task.
    fn wait(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[derive(Default)]
struct DescriptorState {
    read: Direction,
    write: Direction,
}

/// The epoll set of a core.
pub(crate) struct Set {
    epoll: Rc<OwnedFd>,
    known: RefCell<Slab<Rc<DescriptorState>>>,
    events: RefCell<Vec<Event>>,
    /// What the set reports next has happened after this time.
    checked: Cell<u64>,
    /// When a socket last had no room; 0: never.
    filled: Cell<u64>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Set>>> = const { RefCell::new(None) };
}

/// Makes a set this thread's own until dropped.
pub(super) struct Entered(Option<Rc<Set>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Set {
    pub(super) fn new() -> io::Result<Rc<Set>> {
        let epoll = Rc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let events = RefCell::new(Vec::with_capacity(EVENTS_PER_CALL));
        let (checked, filled) = (Cell::new(turn::ticks()), Cell::new(0));
        Ok(Rc::new(Set { epoll, known: RefCell::default(), events, checked, filled }))
    }

    pub(super) fn enter(self: &Rc<Self>) -> Entered {
        Entered(CURRENT.replace(Some(self.clone())))
    }

    /// The descriptor that compio watches while the core sleeps.
    pub(super) fn watch(&self) -> io::Result<PollFd<Rc<OwnedFd>>> {
        PollFd::new(self.epoll.clone())
    }

    /// Whether a socket has had no room within the last [`FULL_TICKS`].
    pub(super) fn was_full(&self) -> bool {
        self.was_full_at(turn::ticks())
    }

    fn was_full_at(&self, now: u64) -> bool {
        let filled = self.filled.get();
        filled != 0 && now.saturating_sub(filled) < FULL_TICKS
    }

    /// The core has slept until now, so what the set reports next has just happened.
    pub(super) fn woken(&self) {
        self.checked.set(turn::ticks());
    }

    /// Takes in all pending edges, without waiting, and wakes the waiting tasks. Returns whether there were any.
    pub(super) fn collect(&self) -> io::Result<bool> {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = self.events.borrow_mut();
        events.clear();
        match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&NOW)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        let known = self.known.borrow();
        let since = self.checked.replace(turn::ticks());
        for event in events.iter() {
            // Wakers only schedule tasks, so nothing is registered or removed meanwhile.
            let Some(known) = known.get(event.data.u64() as usize) else { continue };
            let flags = event.flags;
            let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let no_more = failed || flags.contains(EventFlags::RDHUP);
            if no_more || flags.contains(EventFlags::IN) {
                known.read.edge(no_more, since);
            }
            if failed || flags.contains(EventFlags::OUT) {
                known.write.edge(failed, since);
            }
        }
        Ok(!events.is_empty())
    }
}

/// A descriptor in the set of its core.
pub(crate) struct Registered<T: AsFd> {
    fd: T,
    known: Rc<DescriptorState>,
    key: usize,
    set: Rc<Set>,
}

impl<T: AsFd> Registered<T> {
    /// Registers `fd` with the core of this thread. It is considered ready until an attempt fails.
    pub(crate) fn new(fd: T) -> io::Result<Registered<T>> {
        let set = CURRENT
            .with_borrow(Clone::clone)
            .ok_or_else(|| io::Error::other("a socket was given to a thread on which no core runs"))?;
        let known = Rc::new(DescriptorState::default());
        known.read.ready.set(true);
        known.write.ready.set(true);
        let key = set.known.borrow_mut().insert(known.clone());
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(e) = epoll::add(&*set.epoll, &fd, EventData::new_u64(key as u64), flags) {
            set.known.borrow_mut().remove(key);
            return Err(e.into());
        }
        Ok(Registered { fd, known, key, set })
    }

    /// Ready if an attempt to receive may succeed. Of several waiting tasks only the last one is woken.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.known.read.poll(cx)
    }

    /// Ready if the peer sends no more, or the socket has failed. Otherwise any edge wakes the task.
    pub(crate) fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let read = &self.known.read;
        if read.over.get() { Poll::Ready(()) } else { read.wait(cx) }
    }

    /// Ready if an attempt to send may succeed.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.known.write.poll(cx)
    }

    /// Whether an attempt to send may succeed.
    pub(crate) fn is_writable(&self) -> bool {
        self.known.write.ready.get()
    }

    /// An attempt to receive returned EAGAIN. (Only this thread takes in edges, so none is lost in between.)
    pub(crate) fn clear_readable(&self) {
        self.known.read.ready.set(false);
        self.known.read.since.set(0);
    }

    /// Something was received: when it may have arrived, at the earliest; 0 if that is not known.
    pub(crate) fn take_since(&self) -> u64 {
        self.known.read.since.take()
    }

    /// An attempt to send returned EAGAIN.
    pub(crate) fn clear_writable(&self) {
        self.known.write.ready.set(false);
        self.set.filled.set(turn::ticks());
    }

    /// A receive returned less than it had room for: nothing is left, except possibly the end of the stream (whose edge
    /// may have come together with the data's).
    pub(crate) fn drained(&self) {
        if !self.known.read.over.get() {
            self.known.read.ready.set(false);
        }
    }

    pub(crate) fn inner(&self) -> &T {
        &self.fd
    }
}

impl<T: AsFd> AsFd for Registered<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsFd> Drop for Registered<T> {
    fn drop(&mut self) {
        // Closing is not enough if a duplicate of the descriptor exists. It is in the set, so removal cannot fail.
        let _ = epoll::delete(&*self.set.epoll, &self.fd);
        self.set.known.borrow_mut().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_room_counts_for_a_while() {
        let set = Set::new().unwrap();
        assert!(!set.was_full(), "none was full yet");
        let _entered = set.enter();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let registered = Registered::new(ours).unwrap();
        let before = turn::ticks();
        registered.clear_writable();
        assert!(!registered.is_writable());
        assert!(set.was_full_at(before) && set.was_full_at(before + FULL_TICKS - 1));
        assert!(!set.was_full_at(turn::ticks() + FULL_TICKS));
    }
}
