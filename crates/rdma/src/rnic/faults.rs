//! Asynchronous events of devices: why a queue pair failed, if its completions do not say.
//!
//! [`watch`] returns a [`Fault`], which is set and wakes a task when the device reports an error of a queue pair
//! (ibv_get_async_event(3)). Each device has one thread, which sleeps in poll(2), and a reference that is never
//! released. The queue pair checks its fault and ends the connection.
//!
//! A device's events concern queue pairs on any core, so a thread takes them. The thread may be late, so a core that is
//! about to determine why its connection ended takes the events itself first ([`collect`]).

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use rustix::event::{PollFd, PollFlags};

use super::bindings::*;
use super::library::Library;
use super::objects::{Context, non_blocking};

/// What a device reported about a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The peer attempted an access without the right to it.
    Access,
    /// The peer sent an invalid request.
    Request,
    /// The queue pair or its completion queue has failed.
    Broken,
    /// The device has failed.
    Device,
}

/// The reports about one queue pair; the first one is kept.
#[derive(Default)]
pub(super) struct Fault(Mutex<(Option<Report>, Option<Waker>)>);

impl Fault {
    pub(super) fn report(&self) -> Option<Report> {
        lock(&self.0).0
    }

    /// Wakes `waker` at the first report.
    pub(super) fn wake(&self, waker: &Waker) {
        lock(&self.0).1 = Some(waker.clone());
    }

    /// Stores a report; returns the waker to wake.
    fn set(&self, report: Report) -> Option<Waker> {
        let mut fault = lock(&self.0);
        fault.0.get_or_insert(report);
        fault.1.take()
    }
}

/// A watched queue pair: its address and that of its completion queue.
#[derive(Default)]
struct Watched {
    faults: HashMap<usize, (usize, Weak<Fault>)>,
    /// Devices that have an event thread.
    devices: Vec<usize>,
}

static WATCHED: OnceLock<Mutex<Watched>> = OnceLock::new();

fn watched() -> MutexGuard<'static, Watched> {
    lock(WATCHED.get_or_init(Mutex::default))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a queue pair watched until dropped.
pub(super) struct Watch {
    library: &'static Library,
    context: Context,
    keys: [usize; 2],
    pub(super) fault: Arc<Fault>,
}

/// Watches the queue pair and the completion queue at these addresses.
pub(super) fn watch(library: &'static Library, context: Context, keys: [usize; 2]) -> io::Result<Watch> {
    let device = context.ptr().as_ptr() as usize;
    let fault = Arc::new(Fault::default());
    let mut watched = watched();
    if !watched.devices.contains(&device) {
        start(library, context)?;
        watched.devices.push(device);
    }
    for key in keys {
        watched.faults.insert(key, (device, Arc::downgrade(&fault)));
    }
    Ok(Watch { library, context, keys, fault })
}

impl Watch {
    /// Takes everything that the device has reported so far.
    pub(super) fn collect(&self) {
        if let Err(e) = collect(self.library, self.context) {
            tracing::debug!("asynchronous events: {e}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = watched();
        for key in self.keys {
            watched.faults.remove(&key);
        }
    }
}

fn start(library: &'static Library, context: Context) -> io::Result<()> {
    let fd = async_fd(context);
    non_blocking(&fd)?;
    // The thread waits on its own duplicate, so that it never waits on a descriptor number that was reused.
    let fd: OwnedFd = fd.try_clone_to_owned()?;
    std::thread::Builder::new()
        .name("rnic-events".into())
        .spawn(move || {
            loop {
                match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(e) => return tracing::warn!("no further events from an RDMA device: {e}"),
                }
                if let Err(e) = collect(library, context) {
                    // The device was removed.
                    tracing::warn!("an RDMA device has been removed: {e}");
                    let mut woken = Vec::new();
                    tell_all(&watched(), context.ptr().as_ptr() as usize, Report::Device, &mut woken);
                    return woken.into_iter().for_each(Waker::wake);
                }
            }
        })
        .map(drop)
}

fn async_fd(context: Context) -> BorrowedFd<'static> {
    // SAFETY: the context is never closed, and neither is its descriptor.
    unsafe { BorrowedFd::borrow_raw((*context.ptr().as_ptr()).async_fd) }
}

/// Takes all pending events, without waiting, and sets the faults of the queue pairs that they concern.
fn collect(library: &'static Library, context: Context) -> io::Result<()> {
    let mut woken = Vec::new();
    let result = collect_locked(library, context, &mut woken);
    // Without holding the lock: waking another core may take time.
    woken.into_iter().for_each(Waker::wake);
    result
}

fn collect_locked(library: &'static Library, context: Context, woken: &mut Vec<Waker>) -> io::Result<()> {
    let device = context.ptr().as_ptr() as usize;
    // Held from taking an event to reporting it, so that a caller that has collected has seen all events.
    let watched = watched();
    loop {
        let mut event = ibv_async_event { element: null_mut(), event_type: 0 };
        // SAFETY: the context is open, and its descriptor does not block.
        if unsafe { (library.ibv_get_async_event)(context.ptr().as_ptr(), &mut event) } != 0 {
            match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                e if e.kind() == io::ErrorKind::Interrupted => continue,
                e => return Err(e),
            }
        }
        let key = event.element as usize;
        tracing::debug!(event = event.event_type, "asynchronous event of an RDMA device");
        match event.event_type {
            IBV_EVENT_QP_ACCESS_ERR => tell(&watched, key, Report::Access, woken),
            IBV_EVENT_QP_REQ_ERR => tell(&watched, key, Report::Request, woken),
            IBV_EVENT_QP_FATAL | IBV_EVENT_CQ_ERR => tell(&watched, key, Report::Broken, woken),
            IBV_EVENT_DEVICE_FATAL => tell_all(&watched, device, Report::Device, woken),
            // Changes of ports and addresses, path migration: the connection manager reports what matters.
            _ => {}
        }
        // SAFETY: the event taken above, acknowledged once. Until then its queue pair cannot be destroyed, so the
        // address used for the lookup was not reused.
        unsafe { (library.ibv_ack_async_event)(&mut event) };
    }
}

fn tell(watched: &Watched, key: usize, report: Report, woken: &mut Vec<Waker>) {
    let fault = watched.faults.get(&key).and_then(|(_, fault)| fault.upgrade());
    woken.extend(fault.and_then(|fault| fault.set(report)));
}

fn tell_all(watched: &Watched, device: usize, report: Report, woken: &mut Vec<Waker>) {
    let faults = watched.faults.values().filter(|(of, _)| *of == device);
    woken.extend(faults.filter_map(|(_, fault)| fault.upgrade()?.set(report)));
}

/// Takes references to all devices that librdmacm knows and keeps them, so that its contexts stay open even after the
/// last identifier on one is gone.
pub(super) fn keep_open(library: &'static Library) {
    static KEPT: OnceLock<()> = OnceLock::new();
    KEPT.get_or_init(|| {
        // SAFETY: null, because the count is not needed; the list is never freed, which keeps the references.
        let list = unsafe { (library.rdma_get_devices)(null_mut()) };
        tracing::debug!(found = !list.is_null(), "keeping the RDMA devices open");
    });
}
