//! Objects of libibverbs: protection domain, memory region, completion queue; each is freed by its last owner.
//!
//! This is the thin layer between the C functions and the safe code of this room; every method states what it
//! guarantees. See the man pages of libibverbs-dev. It owns what the library allocated. It makes no decisions.
//!
//! Any thread may use and free these objects: libibverbs locks them (rdma-core, Documentation/libibverbs.md).

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::bindings::*;
use super::devices::{Limits, Transport, query};
use super::library::Library;

/// An open device. librdmacm opens each device once and keeps it open (`faults` holds a reference that is never
/// released).
#[derive(Clone, Copy)]
pub(super) struct Context {
    library: &'static Library,
    ptr: NonNull<ibv_context>,
}

// SAFETY: any thread may use a context; see above.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// # Safety
    /// `ptr` is an open context that is never closed.
    pub(super) unsafe fn new(library: &'static Library, ptr: NonNull<ibv_context>) -> Context {
        Context { library, ptr }
    }

    pub(super) fn ptr(self) -> NonNull<ibv_context> {
        self.ptr
    }

    pub(super) fn limits(self) -> io::Result<Limits> {
        // SAFETY: the context is open.
        unsafe { query(self.library, self.ptr.as_ptr()) }.map(|attr| Limits::of(&attr))
    }

    pub(super) fn transport(self) -> Transport {
        // SAFETY: an open context points to its device, which lives as long.
        Transport::of(unsafe { (*(*self.ptr.as_ptr()).device).transport_type })
    }
}

/// A protection domain, which groups memory regions. Each connection has its own, so that no peer can access another's
/// regions.
pub(super) struct Pd {
    context: Context,
    ptr: NonNull<ibv_pd>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn alloc(context: Context) -> io::Result<Arc<Pd>> {
        // SAFETY: the context is open.
        let ptr = unsafe { (context.library.ibv_alloc_pd)(context.ptr.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Pd { context, ptr }))
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    /// Registers memory with the device, with `rights` of `IBV_ACCESS_*`.
    ///
    /// # Safety
    /// With a right to write, no Rust reference to any of the memory is used while the device may write it, that is,
    /// while work uses the region's key, local or remote. Without one, the device does not write it.
    pub(super) unsafe fn register(
        self: &Arc<Self>,
        address: usize,
        len: usize,
        rights: c_int,
    ) -> io::Result<Mr> {
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: registering pins the pages and touches none; an unmapped address is an error.
        let ptr = unsafe { (self.context.library.ibv_reg_mr)(self.as_ptr(), address, len, rights) };
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error)?;
        Ok(Mr { ptr, pd: self.clone() })
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds an Arc of it, so nothing is left.
        let errno = unsafe { (self.context.library.ibv_dealloc_pd)(self.as_ptr()) };
        report("ibv_dealloc_pd", errno);
    }
}

/// A registered memory region.
pub(super) struct Mr {
    ptr: NonNull<ibv_mr>,
    pd: Arc<Pd>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// The key for our own work.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the structure lives until it is deregistered; the key does not change.
        unsafe { (*self.ptr.as_ptr()).lkey }
    }

    /// The key for the peer's work.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    /// Deregisters it: after success neither side can access the memory. After an error the device may still.
    pub(super) fn release(self) -> io::Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and not dropped.
        let pd = unsafe { std::ptr::read(&this.pd) };
        // SAFETY: the region was registered once and is deregistered once.
        match unsafe { (pd.context.library.ibv_dereg_mr)(this.ptr.as_ptr()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: as in `release`, which skips this drop.
        let errno = unsafe { (self.pd.context.library.ibv_dereg_mr)(self.ptr.as_ptr()) };
        report("ibv_dereg_mr", errno);
    }
}

/// A completion queue, and the descriptor that signals completions.
pub(super) struct Cq {
    library: &'static Library,
    ptr: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: see the top of the file.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue of at least `entries` completions.
    pub(super) fn create(context: Context, entries: u32) -> io::Result<Arc<Cq>> {
        let library = context.library;
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context.ptr.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are alive; vector 0 always exists; no user context.
        let cq = unsafe {
            (library.ibv_create_cq)(context.ptr.as_ptr(), entries, null_mut(), channel.as_ptr(), 0)
        };
        let Some(ptr) = NonNull::new(cq) else {
            let error = io::Error::last_os_error();
            // SAFETY: the channel made above, which no queue uses.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let cq = Cq { library, ptr, channel };
        non_blocking(&cq)?;
        Ok(Arc::new(cq))
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.ptr.as_ptr()
    }

    /// Takes completions out; returns how many of `into` were filled.
    pub(super) fn poll(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive, its context has a full function table, and `into` has room for `room` entries.
        let filled = unsafe {
            let poll = (*(*self.as_ptr()).context).ops.poll_cq;
            poll.map_or(-1, |poll| poll(self.as_ptr(), room, into.as_mut_ptr()))
        };
        usize::try_from(filled).map_err(|_| io::Error::other("the completion queue has failed"))
    }

    /// Asks for an event at the next completion. An earlier completion does not trigger it: poll after this.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: as in `poll`.
        let errno = unsafe {
            let arm = (*(*self.as_ptr()).context).ops.req_notify_cq;
            arm.map_or(libc_enosys(), |arm| arm(self.as_ptr(), 0))
        };
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.abs())) }
    }

    /// Takes all pending events; false when there was none.
    pub(super) fn silence(&self) -> io::Result<bool> {
        let mut events = 0u32;
        loop {
            let (mut cq, mut user) = (null_mut(), null_mut());
            // SAFETY: the channel is alive and belongs to this queue alone; its descriptor does not block.
            match unsafe { (self.library.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut user) } {
                0 => events = events.saturating_add(1),
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => break,
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(e),
                },
            }
        }
        if events > 0 {
            // SAFETY: acknowledges as many events of this queue as were taken.
            unsafe { (self.library.ibv_ack_cq_events)(self.as_ptr(), events) };
        }
        Ok(events > 0)
    }
}

impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open until it is destroyed, which is when `self` is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an Arc of their queue, so none uses it; all events have been acknowledged.
        unsafe {
            report("ibv_destroy_cq", (self.library.ibv_destroy_cq)(self.as_ptr()));
            report(
                "ibv_destroy_comp_channel",
                (self.library.ibv_destroy_comp_channel)(self.channel.as_ptr()),
            );
        }
    }
}

/// Logs a failure to free an object, which happens when a device was removed; then nothing is left to free.
pub(super) fn report(what: &str, errno: c_int) {
    if errno != 0 {
        tracing::warn!("{what}: {}", io::Error::from_raw_os_error(errno.abs()));
    }
}

pub(super) fn non_blocking(fd: &impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

fn libc_enosys() -> c_int {
    rustix::io::Errno::NOSYS.raw_os_error()
}
