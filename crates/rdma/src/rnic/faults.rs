//! Asynchronous events of devices: why a queue pair died, when its completions do not say.
//!
//! What: [`watch`]: a [`Fault`] that is set and wakes when the device reports something about a queue pair. Spec:
//! ibv_get_async_event(3). Owns: one thread a device, which sleeps in poll(2); references to the devices, for ever.
//! Does not: end connections; the queue pair looks at its fault.
//!
//! Events are of a device and concern queue pairs of any core, so a thread takes them. It could be late: a core that
//! is about to judge why its connection ended takes the events itself first ([`collect`]).

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

/// What a device reported of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The peer tried something that its rights do not cover.
    Access,
    /// The peer sent something that makes no sense.
    Request,
    /// The queue pair or its completion queue does not work any more.
    Broken,
    /// The device does not work any more.
    Device,
}

/// What has been reported of one queue pair; the first report counts.
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

    /// Whoever is to be woken then.
    fn set(&self, report: Report) -> Option<Waker> {
        let mut fault = lock(&self.0);
        fault.0.get_or_insert(report);
        fault.1.take()
    }
}

/// Who is watched: the addresses of a queue pair and of its completion queue.
#[derive(Default)]
struct Watched {
    faults: HashMap<usize, (usize, Weak<Fault>)>,
    /// Devices that have a thread.
    devices: Vec<usize>,
}

static WATCHED: OnceLock<Mutex<Watched>> = OnceLock::new();

fn watched() -> MutexGuard<'static, Watched> {
    lock(WATCHED.get_or_init(Mutex::default))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a queue pair watched.
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
    /// Takes whatever the device has reported until now.
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
    // The thread waits for a descriptor of its own, so that it never waits for a number that means something else.
    let fd: OwnedFd = fd.try_clone_to_owned()?;
    std::thread::Builder::new()
        .name("rnic-events".into())
        .spawn(move || {
            loop {
                match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(e) => return tracing::warn!("no events of an RDMA device any more: {e}"),
                }
                if let Err(e) = collect(library, context) {
                    // A device that was pulled out.
                    tracing::warn!("an RDMA device has gone: {e}");
                    let mut woken = Vec::new();
                    tell_all(&watched(), context.ptr().as_ptr() as usize, Report::Device, &mut woken);
                    return woken.into_iter().for_each(Waker::wake);
                }
            }
        })
        .map(drop)
}

fn async_fd(context: Context) -> BorrowedFd<'static> {
    // SAFETY: the context stays open for ever, and with it its descriptor.
    unsafe { BorrowedFd::borrow_raw((*context.ptr().as_ptr()).async_fd) }
}

/// Takes all events that there are, without waiting, and sets the faults of whom they concern.
fn collect(library: &'static Library, context: Context) -> io::Result<()> {
    let mut woken = Vec::new();
    let result = collect_locked(library, context, &mut woken);
    // Without the lock: waking another core may take time.
    woken.into_iter().for_each(Waker::wake);
    result
}

fn collect_locked(library: &'static Library, context: Context, woken: &mut Vec<Waker>) -> io::Result<()> {
    let device = context.ptr().as_ptr() as usize;
    // One thread at a time, from taking an event to telling: who has collected has seen all.
    let watched = watched();
    loop {
        let mut event = ibv_async_event { element: null_mut(), event_type: 0 };
        // SAFETY: the context is open, its descriptor does not block.
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
            // Ports and addresses that change, paths that migrate: the connection manager tells what matters.
            _ => {}
        }
        // SAFETY: the event taken above, once. Until then its queue pair cannot be destroyed, so the address that it
        // was looked up by was that of no other.
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

/// Takes references to all devices that librdmacm knows, and keeps them: its contexts then stay open for ever, also
/// when the last identifier on one has gone.
pub(super) fn keep_open(library: &'static Library) {
    static KEPT: OnceLock<()> = OnceLock::new();
    KEPT.get_or_init(|| {
        // SAFETY: a place for a number that nobody needs; the list is never freed, which is what keeps the references.
        let list = unsafe { (library.rdma_get_devices)(null_mut()) };
        tracing::debug!(found = !list.is_null(), "RDMA devices are kept open");
    });
}
