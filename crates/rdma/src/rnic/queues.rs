//! Work posted to the device, in order, and its completions.
//!
//! [`Queues`] tracks all work of a queue pair. See ibv_post_send(3), ibv_poll_cq(3) and RFC 5040 5.5 (order). It owns
//! the memory of posted work until its completion, or until the device's queue pair is gone. `requests` turns work into
//! requests; `queue_pair` decides when the connection ends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::rt::{self, PollerGuard};
use weft_machine::{Buf, Pool, Time, Window};

use super::bindings::*;
use super::cm::{Operation, Qp};
use super::faults::Watch;
use super::memory::{Local, NOT_REGISTERED, Piece, Regions};
use super::status::{self, Failed};
use crate::verbs::tally;
use crate::{Caps, Completion, Disconnect, Done, PostError, Segment, Stag, Traffic, Work, WorkError};

/// Completions taken from the device at a time.
const BATCH: usize = 32;
/// How long after the first flushed work the connection manager may take to report the reason.
const REASON_WITHIN: Duration = Duration::from_secs(2);
/// Marks receives among the numbers of work.
const RECV: u64 = 1 << 63;

/// Posted work and its completions.
pub(super) struct Queues {
    pub(super) pool: Pool,
    pub(super) send_pieces: usize,
    pub(super) caps: Caps,
    /// The device's side, until the connection ends. Declared, and so dropped, before the memory that it may access.
    pub(super) device: Option<DeviceSide>,
    pub(super) ended: Option<Disconnect>,
    /// Something failed; the reason may be reported soon.
    pub(super) reason: Option<Disconnect>,
    /// When to end without another event: work was flushed, or we are closing.
    pub(super) deadline: Option<(Time, Disconnect)>,
    pub(super) closing: bool,
    pub(super) completions: VecDeque<Completion>,
    /// Work that the device has not accepted yet.
    pub(super) queue: VecDeque<Work>,
    /// The oldest of this work, if it has been started.
    pub(super) head: Option<Head>,
    /// Work in the device's queue, oldest first; and the number of the first.
    pub(super) sends: VecDeque<Option<Flight>>,
    pub(super) first_send: u64,
    pub(super) recvs: VecDeque<Option<PostedRecv>>,
    pub(super) first_recv: u64,
    /// The error of a refused part of a Write; the Write's last part, which is flushed, completes it with this error.
    pub(super) blamed: Option<(u64, WorkError)>,
    /// Sends, Writes and Reads posted and not completed.
    pub(super) posted: usize,
    pub(super) local: Local,
    pub(super) regions: Regions,
    pub(super) traffic: Traffic,
}

/// In the order in which the fields must be dropped: events find a queue pair by its address.
pub(super) struct DeviceSide {
    pub(super) watch: Watch,
    pub(super) _poller: Option<PollerGuard>,
    pub(super) armed: bool,
    pub(super) qp: Arc<Qp>,
}

/// Work at the head of the queue.
pub(super) enum Head {
    /// Its payload is being read into memory.
    Loading {
        future: LocalBoxFuture<'static, io::Result<Vec<Bytes>>>,
        then: Loading,
        /// A task waits for it.
        awaited: bool,
    },
    /// A Write; `chain` is the part not posted yet.
    Writing { id: u64, chain: VecDeque<Bytes>, to: Segment, done: usize, len: usize, signalled: bool },
}

/// What the work becomes once its payload is in memory.
pub(super) enum Loading {
    Send { id: u64, invalidate: Option<Stag>, solicited: bool, signalled: bool },
    Write { id: u64, to: Segment, signalled: bool },
}

/// One work request of the device's send queue.
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) what: What,
    pub(super) len: usize,
    /// Keys and memory that the device needs until the completion.
    pub(super) _pieces: Vec<Piece>,
    pub(super) _data: Vec<Bytes>,
}

pub(super) enum What {
    Send {
        signalled: bool,
        invalidates: bool,
    },
    Write {
        signalled: bool,
    },
    /// A part of a Write that takes several requests, except the last.
    Part,
    Read {
        into: Window,
    },
}

pub(super) struct PostedRecv {
    id: u64,
    window: Window,
    _piece: Piece,
}

/// Why work was not handed to the device.
pub(super) enum Stop {
    /// The device accepts none; the reason is reported soon.
    Refused(io::Error),
    /// Memory could not be registered.
    Memory(io::Error),
}

impl Queues {
    pub(super) fn post_recv(&mut self, id: u64, buf: Buf) -> Result<(), (PostError, Work)> {
        let Some(device) = &self.device else { return Err((PostError::Closed, Work::Recv { id, buf })) };
        if buf.is_part() {
            return Err((PostError::Misuse("part of a buffer to receive into"), Work::Recv { id, buf }));
        }
        if self.recvs.len() >= self.caps.max_recv_work {
            return Err((PostError::QueueFull, Work::Recv { id, buf }));
        }
        let len = buf.len();
        let mut whole = buf;
        whole.set_len(whole.capacity());
        let window = whole.into_window();
        let back = |window: Window, error| {
            let mut buf = window.try_into_buf().expect("nobody else holds this window");
            buf.set_len(len);
            Err((error, Work::Recv { id, buf }))
        };
        let piece = match self.local.writable(&window) {
            Ok(piece) => piece,
            Err(e) => {
                tracing::warn!("memory for a receive: {e}");
                return back(window, NOT_REGISTERED);
            }
        };
        let number = RECV | self.first_recv.wrapping_add(self.recvs.len() as u64);
        // SAFETY: `recvs` keeps the window until its completion, or until the queue pair is gone.
        if let Err(e) = unsafe { device.qp.post_recv(number, piece.sge) } {
            tracing::debug!("the device accepts no receive: {e}");
            return back(window, PostError::Closed);
        }
        self.recvs.push_back(Some(PostedRecv { id, window, _piece: piece }));
        Ok(())
    }

    /// Hands one request to the device.
    pub(super) fn fly(&mut self, operation: Operation, flight: Flight) -> Result<(), Stop> {
        let Some(device) = &self.device else {
            return Err(Stop::Refused(io::ErrorKind::NotConnected.into()));
        };
        let number = self.first_send.wrapping_add(self.sends.len() as u64);
        let mut pieces: Vec<_> = flight._pieces.iter().map(|piece| piece.sge).collect();
        // SAFETY: the flight holds the memory (shared bytes, or the window of a Read), and `sends` keeps it until its
        // completion, or until the queue pair is gone.
        unsafe { device.qp.post_send(number, operation, &mut pieces) }.map_err(Stop::Refused)?;
        self.sends.push_back(Some(flight));
        Ok(())
    }

    pub(super) fn take_completions(&mut self) {
        if let Some(device) = &self.device {
            let qp = device.qp.clone();
            self.take_completions_of(&qp);
        }
    }

    pub(super) fn take_completions_of(&mut self, qp: &Qp) {
        let mut batch = [ibv_wc::default(); BATCH];
        loop {
            let taken = match qp.cq().poll(&mut batch) {
                Ok(taken) => taken,
                Err(e) => {
                    self.reason.get_or_insert(Disconnect::Lost(e.kind()));
                    return;
                }
            };
            for completion in batch.iter().take(taken) {
                if completion.status != IBV_WC_SUCCESS {
                    let (status, vendor) = (qp.status_text(completion.status), completion.vendor_err);
                    tracing::debug!(status, vendor, "work failed");
                }
                if completion.wr_id & RECV != 0 {
                    self.receive(completion);
                } else {
                    self.sent(completion);
                }
            }
            if taken < BATCH {
                return;
            }
        }
    }

    fn receive(&mut self, completion: &ibv_wc) {
        let number = completion.wr_id & !RECV;
        let Some(PostedRecv { id, window, .. }) = take(&mut self.recvs, &mut self.first_recv, number) else {
            return self.unknown_completion();
        };
        if completion.status != IBV_WC_SUCCESS {
            self.completions.push_back(Completion { id, result: Err(WorkError::Flushed) });
            match status::of_recv(completion.status) {
                Some(reason) => _ = self.reason.get_or_insert(reason),
                None => self.flushed(),
            }
            return;
        }
        let len = completion.byte_len as usize;
        let whole = window.try_into_buf().ok().filter(|buf| len <= buf.capacity());
        let Some(mut buf) = whole else {
            self.completions.push_back(Completion { id, result: Err(WorkError::Flushed) });
            self.reason.get_or_insert(Disconnect::Violation("a message longer than its buffer"));
            return;
        };
        buf.set_len(len);
        let revoked = completion.wc_flags & IBV_WC_WITH_INV != 0;
        let invalidated = revoked.then_some(Stag(completion.invalidated_rkey));
        tally(&mut self.traffic.received, len);
        // The device does not report whether the peer asked for an event.
        let done = Done::Received { buf, invalidated, solicited: false };
        self.completions.push_back(Completion { id, result: Ok(done) });
    }

    /// Handles a completion of the send queue. Sends and Writes complete in order, but Reads (on siw) after work posted
    /// behind them, so a completion concerns its own request only and says nothing about older ones.
    fn sent(&mut self, completion: &ibv_wc) {
        let Some(Flight { id, what, len, .. }) =
            take(&mut self.sends, &mut self.first_send, completion.wr_id)
        else {
            return self.unknown_completion();
        };
        if completion.status != IBV_WC_SUCCESS {
            let failed = match what {
                What::Send { invalidates, .. } => Failed::Send { invalidates },
                _ => Failed::WriteOrRead,
            };
            let (error, reason) = status::of_send(completion.status, failed);
            if !matches!(what, What::Part) {
                self.fail(id, error);
            } else if error != WorkError::Flushed {
                self.blamed = Some((id, error));
            }
            match reason {
                Some(reason) => _ = self.reason.get_or_insert(reason),
                None => self.flushed(),
            }
            return;
        }
        let (done, signalled) = match what {
            What::Part => return,
            What::Send { signalled, .. } => {
                tally(&mut self.traffic.sent, len);
                (Done::Sent, signalled)
            }
            What::Write { signalled } => {
                tally(&mut self.traffic.written, len);
                (Done::Written, signalled)
            }
            What::Read { into } => {
                tally(&mut self.traffic.read, len);
                match into.try_into_buf() {
                    Ok(buf) => (Done::Read { buf }, true),
                    // Happens only for a buffer that is part of another.
                    Err(_) => {
                        self.fail(id, WorkError::Flushed);
                        return;
                    }
                }
            }
        };
        self.posted = self.posted.saturating_sub(1);
        if signalled {
            self.completions.push_back(Completion { id, result: Ok(done) });
        }
    }

    fn unknown_completion(&mut self) {
        tracing::error!("an RDMA device completed work that was not posted");
        self.reason.get_or_insert(Disconnect::Lost(io::ErrorKind::Other));
    }

    pub(super) fn fail(&mut self, id: u64, error: WorkError) {
        self.posted = self.posted.saturating_sub(1);
        let error = match self.blamed.take() {
            Some((part_of, blame)) if part_of == id => blame,
            other => {
                self.blamed = other;
                error
            }
        };
        self.completions.push_back(Completion { id, result: Err(error) });
    }

    /// Work came back flushed: an event of the connection manager or the device will give the reason.
    pub(super) fn flushed(&mut self) {
        if !matches!(&self.deadline, Some((_, Disconnect::Lost(_)))) {
            let reason = Disconnect::Lost(io::ErrorKind::ConnectionAborted);
            self.deadline = Some((rt::now() + REASON_WITHIN, reason));
        }
    }

    /// Completes all posted work as flushed, in order.
    pub(super) fn flush(&mut self) {
        let mut ids = Vec::new();
        ids.extend(
            self.sends
                .drain(..)
                .flatten()
                .filter(|flight| !matches!(flight.what, What::Part))
                .map(|flight| flight.id),
        );
        ids.extend(self.head.take().map(|head| match head {
            Head::Loading { then, .. } => then.id(),
            Head::Writing { id, .. } => id,
        }));
        ids.extend(self.queue.drain(..).map(|work| work.id()));
        ids.extend(self.recvs.drain(..).flatten().map(|recv| recv.id));
        ids.into_iter().for_each(|id| self.fail(id, WorkError::Flushed));
        self.posted = 0;
    }
}

impl Loading {
    pub(super) fn id(&self) -> u64 {
        match self {
            Loading::Send { id, .. } | Loading::Write { id, .. } => *id,
        }
    }
}

/// Removes request `number` from those in the device's queue, of which the first has number `first`. Afterwards the
/// queue begins with a request that is still outstanding.
fn take<T>(posted: &mut VecDeque<Option<T>>, first: &mut u64, number: u64) -> Option<T> {
    let index = usize::try_from(number.checked_sub(*first)?).ok()?;
    let taken = posted.get_mut(index)?.take()?;
    while let Some(None) = posted.front() {
        posted.pop_front();
        *first = first.wrapping_add(1);
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_of_its_own_request() {
        let (mut posted, mut first): (VecDeque<_>, _) = (['a', 'b', 'c', 'd'].map(Some).into(), 10);
        // Number 12 completes before 10 and 11, as on siw if 10 is a Read.
        assert_eq!(take(&mut posted, &mut first, 12), Some('c'));
        assert_eq!((posted.len(), first), (4, 10));
        assert_eq!(take(&mut posted, &mut first, 12), None, "once");
        assert_eq!(take(&mut posted, &mut first, 10), Some('a'));
        assert_eq!((posted.len(), first), (3, 11));
        assert_eq!(take(&mut posted, &mut first, 11), Some('b'));
        assert_eq!((posted.len(), first), (1, 13));
        for unknown in [0, 12, 14, u64::MAX] {
            assert_eq!(take(&mut posted, &mut first, unknown), None);
        }
        assert_eq!(take(&mut posted, &mut first, 13), Some('d'));
        assert_eq!((posted.len(), first), (0, 14));
    }
}
