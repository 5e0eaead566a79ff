//! Objects of librdmacm: the event channel, the identifier (the "socket" of RDMA), and its queue pair.
//!
//! This is the thin layer between the C functions and the safe code of this room. See rdma_cm(7) and the man pages of
//! librdmacm-dev. It owns what the library allocated. It makes no decisions and never waits.
//!
//! An event is copied and acknowledged before it is returned, so that destroying its identifier never blocks.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use bytes::Bytes;

use super::bindings::*;
use super::library::Library;
use super::objects::{Context, Cq, Pd, non_blocking};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Delivers events; its descriptor can be waited on.
pub(super) struct EventChannel {
    library: &'static Library,
    ptr: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm may be called by any thread (rdma_cm(7)).
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// An event of an identifier.
pub(super) struct CmEvent {
    /// `RDMA_CM_EVENT_*`.
    pub(super) kind: u32,
    /// 0, a negative errno, or (when rejected over InfiniBand) the reason.
    pub(super) status: i32,
    /// What the peer sent, if the event carries it.
    pub(super) conn: Conn,
    /// The new identifier of a connection request.
    pub(super) request: Option<CmId>,
}

/// Private data and read depths, as seen from this side (rdma_get_cm_event(3)).
#[derive(Clone, Debug, Default)]
pub(super) struct Conn {
    pub(super) private_data: Bytes,
    /// Inbound Reads that the peer requests from us.
    pub(super) responder_resources: u8,
    /// Outbound Reads that the peer allows us.
    pub(super) initiator_depth: u8,
}

/// Our side's offer.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) private_data: Bytes,
    pub(super) ird: u8,
    pub(super) ord: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
}

impl EventChannel {
    pub(super) fn create(library: &'static Library) -> io::Result<Arc<EventChannel>> {
        // SAFETY: no precondition.
        let ptr = unsafe { (library.rdma_create_event_channel)() };
        let ptr = NonNull::new(ptr).ok_or_else(io::Error::last_os_error)?;
        let channel = EventChannel { library, ptr };
        non_blocking(&channel)?;
        Ok(Arc::new(channel))
    }

    /// The next event; `WouldBlock` when there is none.
    pub(super) fn next(self: &Arc<Self>) -> io::Result<CmEvent> {
        let mut event = null_mut();
        // SAFETY: the channel is alive; its descriptor does not block.
        if unsafe { (self.library.rdma_get_cm_event)(self.ptr.as_ptr(), &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the event and its private data live until it is acknowledged below. The identifiers on our channels
        // are connected ones, so the union holds `conn`; other kinds of event leave it zero.
        unsafe {
            let got = &*event;
            let conn = Conn {
                private_data: bytes_at(got.param.private_data, got.param.private_data_len),
                responder_resources: got.param.responder_resources,
                initiator_depth: got.param.initiator_depth,
            };
            let request = (got.event == RDMA_CM_EVENT_CONNECT_REQUEST)
                .then(|| NonNull::new(got.id))
                .flatten()
                .map(|ptr| CmId { ptr, channel: self.clone() });
            let copied = CmEvent { kind: got.event, status: got.status, conn, request };
            (self.library.rdma_ack_cm_event)(event);
            Ok(copied)
        }
    }
}

/// # Safety
/// `at` is null or points to `len` bytes.
unsafe fn bytes_at(at: *const c_void, len: u8) -> Bytes {
    if at.is_null() {
        return Bytes::new();
    }
    // SAFETY: as promised by the caller.
    Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(at.cast(), usize::from(len)) })
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open until it is destroyed, which is when `self` is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.ptr.as_ptr()).fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold an Arc of their channel, so none is left on it; all events were acknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.ptr.as_ptr()) };
    }
}

/// An identifier, which listens or connects.
pub(super) struct CmId {
    ptr: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: as for `EventChannel`.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl CmId {
    pub(super) fn create(channel: &Arc<EventChannel>) -> io::Result<CmId> {
        let mut id = null_mut();
        // SAFETY: the channel is alive; `id` receives the result.
        check(unsafe {
            (channel.library.rdma_create_id)(channel.ptr.as_ptr(), &mut id, null_mut(), RDMA_PS_TCP)
        })?;
        let ptr = NonNull::new(id).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(CmId { ptr, channel: channel.clone() })
    }

    fn library(&self) -> &'static Library {
        self.channel.library
    }

    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.ptr.as_ptr()
    }

    /// From now on events go to `channel`; pending ones move there as well.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both are alive; events of the old channel are acknowledged when taken, so this does not block.
        check(unsafe { (self.library().rdma_migrate_id)(self.as_ptr(), channel.ptr.as_ptr()) })?;
        self.channel = channel.clone();
        Ok(())
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut addr = room_of(addr);
        // SAFETY: the identifier is alive; the address is as long as its family says.
        check(unsafe { (self.library().rdma_bind_addr)(self.as_ptr(), (&raw mut addr).cast()) })
    }

    pub(super) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.library().rdma_listen)(self.as_ptr(), backlog) })
    }

    pub(super) fn port(&self) -> u16 {
        // SAFETY: the identifier is alive.
        u16::from_be(unsafe { (self.library().rdma_get_src_port)(self.as_ptr()) })
    }

    pub(super) fn resolve_addr(&self, to: SocketAddr, timeout_ms: c_int) -> io::Result<()> {
        let mut to = room_of(to);
        // SAFETY: as in `bind`; no source address is given.
        check(unsafe {
            (self.library().rdma_resolve_addr)(self.as_ptr(), null_mut(), (&raw mut to).cast(), timeout_ms)
        })
    }

    pub(super) fn resolve_route(&self, timeout_ms: c_int) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.library().rdma_resolve_route)(self.as_ptr(), timeout_ms) })
    }

    /// The device, once the identifier is bound to one.
    pub(super) fn context(&self) -> io::Result<Context> {
        // SAFETY: the identifier is alive; librdmacm keeps the devices that it opened open.
        unsafe {
            let ptr = NonNull::new((*self.as_ptr()).verbs).ok_or(io::ErrorKind::NotConnected)?;
            super::faults::keep_open(self.library());
            Ok(Context::new(self.library(), ptr))
        }
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive.
        addr_in(unsafe { &(*self.as_ptr()).route.addr.dst_storage })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the identifier is alive; the data has the given length.
        check(unsafe { (self.library().rdma_reject)(self.as_ptr(), private_data.as_ptr().cast(), len) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: a queue pair holds an Arc of its identifier, so there is none on it; its events were acknowledged.
        let result = check(unsafe { (self.library().rdma_destroy_id)(self.as_ptr()) });
        if let Err(e) = result {
            tracing::warn!("rdma_destroy_id: {e}");
        }
    }
}

/// The size of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSizes {
    pub(super) send: u32,
    pub(super) recv: u32,
    pub(super) send_pieces: u32,
}

/// A queue pair. Dropping it ends all its work: afterwards the device touches no memory on behalf of this queue pair.
pub(super) struct Qp {
    id: Arc<CmId>,
    ptr: NonNull<ibv_qp>,
    cq: Arc<Cq>,
    _pd: Arc<Pd>,
}

// SAFETY: see `CmId` and `objects`.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// The operation of a work request in the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send { invalidate: Option<u32>, solicited: bool },
    Write { address: u64, rkey: u32 },
    Read { address: u64, rkey: u32 },
}

impl Qp {
    pub(super) fn create(id: Arc<CmId>, pd: &Arc<Pd>, cq: &Arc<Cq>, sizes: QueueSizes) -> io::Result<Qp> {
        let cap = ibv_qp_cap {
            max_send_wr: sizes.send,
            max_recv_wr: sizes.recv,
            max_send_sge: sizes.send_pieces,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: identifier, domain and queue are alive and belong to one device; the Arcs below keep them so.
        check(unsafe { (id.library().rdma_create_qp)(id.as_ptr(), pd.as_ptr(), &mut attr) })?;
        // SAFETY: the identifier is alive, and has a queue pair now.
        let ptr = NonNull::new(unsafe { (*id.as_ptr()).qp }).ok_or(io::ErrorKind::NotConnected)?;
        Ok(Qp { id, ptr, cq: cq.clone(), _pd: pd.clone() })
    }

    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// The library's text for a completion status.
    pub(super) fn status_text(&self, status: u32) -> String {
        // SAFETY: the function returns a string constant for any number.
        unsafe { CStr::from_ptr((self.id.library().ibv_wc_status_str)(status)) }
            .to_string_lossy()
            .into_owned()
    }

    /// The address by which asynchronous events name this queue pair.
    pub(super) fn key(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    fn context(&self) -> &ibv_context {
        // SAFETY: a queue pair points to its context, which stays open.
        unsafe { &*(*self.ptr.as_ptr()).context }
    }

    /// Begins to connect; iWARP devices may do much of it inside the call, which then takes as long as a TCP connect.
    pub(super) fn connect(&self, offer: &Offer) -> io::Result<()> {
        let mut param = conn_param(offer)?;
        // SAFETY: the identifier is alive; the private data outlives the call.
        check(unsafe { (self.id.library().rdma_connect)(self.id.as_ptr(), &mut param) })
    }

    pub(super) fn accept(&self, offer: &Offer) -> io::Result<()> {
        let mut param = conn_param(offer)?;
        // SAFETY: as in `connect`.
        check(unsafe { (self.id.library().rdma_accept)(self.id.as_ptr(), &mut param) })
    }

    /// Ends the connection; posted work completes as flushed.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.id.library().rdma_disconnect)(self.id.as_ptr()) })
    }

    /// Posts a receive of at most `piece.length` bytes.
    ///
    /// # Safety
    /// Until the completion of `id`, or until the queue pair is dropped, the memory belongs to the device: nobody has a
    /// reference to it, and it returns to no pool.
    pub(super) unsafe fn post_recv(&self, id: u64, mut piece: ibv_sge) -> io::Result<()> {
        let mut work = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        let mut bad = null_mut();
        let post = self.context().ops.post_recv.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the library copies the request; the caller guarantees the memory.
        posted(unsafe { post(self.ptr.as_ptr(), &mut work, &mut bad) })
    }

    /// Posts work to the send queue; it always produces a completion.
    ///
    /// # Safety
    /// Until the completion of `id`, or until the queue pair is dropped, the memory of `pieces` stays valid: for a Read
    /// as in [`Qp::post_recv`]; for other work it is neither written nor freed.
    pub(super) unsafe fn post_send(
        &self,
        id: u64,
        operation: Operation,
        pieces: &mut [ibv_sge],
    ) -> io::Result<()> {
        let mut work = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: if pieces.is_empty() { null_mut() } else { pieces.as_mut_ptr() },
            num_sge: c_int::try_from(pieces.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            invalidate_rkey: 0,
            wr: wr_rdma { remote_addr: 0, rkey: 0, _atomic: [0; 2] },
            qp_type: 0,
            bind_mw: [0; 6],
        };
        match operation {
            Operation::Send { invalidate, solicited } => {
                if let Some(rkey) = invalidate {
                    work.opcode = IBV_WR_SEND_WITH_INV;
                    work.invalidate_rkey = rkey;
                }
                if solicited {
                    work.send_flags |= IBV_SEND_SOLICITED;
                }
            }
            Operation::Write { address, rkey } => {
                work.opcode = IBV_WR_RDMA_WRITE;
                (work.wr.remote_addr, work.wr.rkey) = (address, rkey);
            }
            Operation::Read { address, rkey } => {
                work.opcode = IBV_WR_RDMA_READ;
                (work.wr.remote_addr, work.wr.rkey) = (address, rkey);
            }
        }
        let mut bad = null_mut();
        let post = self.context().ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the library copies the request and its list; the caller guarantees the memory.
        posted(unsafe { post(self.ptr.as_ptr(), &mut work, &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the identifier's queue pair, destroyed once; it must go before the identifier does.
        unsafe { (self.id.library().rdma_destroy_qp)(self.id.as_ptr()) };
    }
}

fn conn_param(offer: &Offer) -> io::Result<rdma_conn_param> {
    Ok(rdma_conn_param {
        private_data: offer.private_data.as_ptr().cast(),
        private_data_len: u8::try_from(offer.private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        responder_resources: offer.ird,
        initiator_depth: offer.ord,
        flow_control: 1,
        retry_count: offer.retries,
        rnr_retry_count: offer.rnr_retries,
        srq: 0,
        qp_num: 0,
    })
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The post functions return an errno, of either sign.
fn posted(errno: c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.abs())) }
}

/// `struct sockaddr_in` or `struct sockaddr_in6`, stored in a `sockaddr_storage`.
fn room_of(addr: SocketAddr) -> sockaddr_room {
    let mut room = sockaddr_room([0; 128]);
    let bytes = &mut room.0;
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    room
}

fn addr_in(room: &sockaddr_room) -> Option<SocketAddr> {
    let bytes = &room.0;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        AF_INET => Some((Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[4..8]).ok()?), port).into()),
        AF_INET6 => {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?);
            let scope = u32::from_ne_bytes(<[u8; 4]>::try_from(&bytes[24..28]).ok()?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_parts() {
        for text in ["10.0.2.15:5445", "[2001:db8::1]:20049", "[fe80::1%7]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(addr_in(&room_of(addr)), Some(addr));
        }
        assert_eq!(addr_in(&sockaddr_room([0; 128])), None);
    }
}
