//! Readiness of sockets: one edge-triggered epoll set a core, in which each descriptor is registered once.
//!
//! compio's own readiness (`PollFd`) allocates, submits and completes an operation for every wait, and so costs about
//! 2 microseconds each on both ends of a round trip; a registered descriptor costs one entry in the answer of a system
//! call that a busy core makes anyway. The core still sleeps in compio, which watches this set as one descriptor.
//! Owns: the set and what is known of each descriptor. Does not: read or write descriptors (see `net`).

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

/// Events collected in one system call; more wait for the next.
const EVENTS_PER_CALL: usize = 256;

/// What is known of one direction of a descriptor.
#[derive(Default)]
struct Direction {
    /// An attempt is worth while: nothing said EAGAIN since the last edge.
    ready: Cell<bool>,
    /// The peer has gone or the socket has failed: attempts answer at once from now on, and no further edge comes.
    over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Direction {
    fn edge(&self, over: bool) {
        self.ready.set(true);
        if over {
            self.over.set(true);
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ready.get() {
            return Poll::Ready(());
        }
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[derive(Default)]
struct Known {
    read: Direction,
    write: Direction,
}

/// The epoll set of a core.
pub(crate) struct Set {
    epoll: Rc<OwnedFd>,
    known: RefCell<Slab<Rc<Known>>>,
    events: RefCell<Vec<Event>>,
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
        Ok(Rc::new(Set { epoll, known: RefCell::default(), events }))
    }

    pub(super) fn enter(self: &Rc<Self>) -> Entered {
        Entered(CURRENT.replace(Some(self.clone())))
    }

    /// What compio watches while the core sleeps.
    pub(super) fn watch(&self) -> io::Result<PollFd<Rc<OwnedFd>>> {
        PollFd::new(self.epoll.clone())
    }

    /// Takes in all edges that there are, without waiting, and wakes who waits for them. Whether there were any.
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
        for event in events.iter() {
            // Wakers only note who is to run, so nothing is registered or removed meanwhile.
            let Some(known) = known.get(event.data.u64() as usize) else { continue };
            let flags = event.flags;
            let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let no_more = failed || flags.contains(EventFlags::RDHUP);
            if no_more || flags.contains(EventFlags::IN) {
                known.read.edge(no_more);
            }
            if failed || flags.contains(EventFlags::OUT) {
                known.write.edge(failed);
            }
        }
        Ok(!events.is_empty())
    }
}

/// A descriptor in the set of its core.
pub(crate) struct Registered<T: AsFd> {
    fd: T,
    known: Rc<Known>,
    key: usize,
    set: Rc<Set>,
}

impl<T: AsFd> Registered<T> {
    /// Registers `fd` with the core of this thread. It is taken for ready until an attempt says otherwise.
    pub(crate) fn new(fd: T) -> io::Result<Registered<T>> {
        let set = CURRENT
            .with_borrow(Clone::clone)
            .ok_or_else(|| io::Error::other("a socket was given to a thread on which no core runs"))?;
        let known = Rc::new(Known::default());
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

    /// Ready when an attempt to receive may succeed. Only the last of several waiting tasks is woken.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.known.read.poll(cx)
    }

    /// Ready when an attempt to send may succeed.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.known.write.poll(cx)
    }

    /// An attempt to receive said EAGAIN. (Edges are taken in by this thread only, so none is lost in between.)
    pub(crate) fn clear_readable(&self) {
        self.known.read.ready.set(false);
    }

    /// An attempt to send said EAGAIN.
    pub(crate) fn clear_writable(&self) {
        self.known.write.ready.set(false);
    }

    /// A receive got less than it had room for: nothing is left, unless the end of the stream is (whose edge may have
    /// come together with the data's).
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
        // Closing is not enough where a duplicate of the descriptor lives on. It is in the set: removal cannot fail.
        let _ = epoll::delete(&*self.set.epoll, &self.fd);
        self.set.known.borrow_mut().remove(self.key);
    }
}
