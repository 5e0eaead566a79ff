//! Binds a connection to its socket, with two small tasks and the user's own calls.
//!
//! All protocol rules are in `connection`; the driver owns the socket and decides nothing about the protocol.
//!
//! Posted work is sent when the user polls next, in one gather write for all of it, or by the sending task if the user
//! does something else first. The receiving task handles what arrives, so the peer's Reads and Writes are served
//! whether the user polls or not. The sending task also waits for room in the socket, for files that are not in the
//! page cache, and for timers.

mod hot;

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::file::busy::Claim;
use weft_machine::recorder::{self, Stage};
use weft_machine::rt::PollerGuard;
use weft_machine::{Buf, FileRange, Peer, Pool, Stream, Time, rt};

use self::hot::Hot;
use super::connection::{Connection, FileNeed};
use super::frame::Next;
use crate::verbs::{
    Access, Caps, Completion, Disconnect, PostError, QueuePair, Segment, Stag, Traffic, Work,
};

/// Pieces in one gather write; the kernel accepts up to 1024.
const SLICES: usize = 128;
/// Pieces of a short batch: a short READ's payload and its answer have some ten. An array is filled before it is used, and
/// filling a long one costs as much as sending a short message.
const FEW_SLICES: usize = 16;
/// Receives in a row before other tasks run: about 100 microseconds with full FPDUs.
const RECEIVES_PER_TURN: usize = 8;

/// The user's handle; dropping it closes the connection.
pub(super) struct Handle(Rc<Link>, #[allow(dead_code, reason = "held for its drop")] PollerGuard);

/// The outcome of a [`FileNeed`].
enum FileDone {
    Read(io::Result<Bytes>),
    Warm(io::Result<usize>),
}

struct Link {
    connection: RefCell<Connection>,
    stream: Stream,
    pool: Pool,
    peer: Peer,
    /// Waits in `poll`.
    user: RefCell<Option<Waker>>,
    /// The sending task.
    sender: RefCell<Option<Waker>>,
    /// The sending task was woken and has not run since.
    kicked: Cell<bool>,
    /// A read of payload that did not complete at once.
    reading: RefCell<Option<LocalBoxFuture<'static, FileDone>>>,
    /// Waits for a worker that has exclusive use of the file being sent.
    warm_again: RefCell<Option<LocalBoxFuture<'static, io::Result<Vec<Claim>>>>>,
    /// Tells the waits of payload for a disk.
    stage: Arc<Stage>,
    write_closed: Cell<bool>,
    /// Waits for more staging memory.
    staging: RefCell<Option<LocalBoxFuture<'static, Buf>>>,
    /// When the sending task checks the clock next.
    armed: Cell<Option<Time>>,
    hot: Rc<Hot>,
}

impl Handle {
    /// Starts the tasks.
    pub(super) fn new(connection: Connection, stream: Stream, pool: Pool) -> Handle {
        let peer = stream.peer().by_rdma();
        let link = Rc::new_cyclic(|link| Link {
            connection: RefCell::new(connection),
            stream,
            pool,
            peer,
            user: RefCell::new(None),
            sender: RefCell::new(None),
            kicked: Cell::new(false),
            reading: RefCell::new(None),
            warm_again: RefCell::new(None),
            stage: Stage::new(),
            write_closed: Cell::new(false),
            staging: RefCell::new(None),
            armed: Cell::new(None),
            hot: Rc::new(Hot::new(link.clone())),
        });
        let (sender, receiver) = (link.clone(), link.clone());
        rt::spawn(sender.send_task()).detach();
        rt::spawn(receiver.receive_task()).detach();
        let poller = rt::register_poller(link.hot.clone());
        Handle(link, poller)
    }
}

impl Link {
    async fn send_task(self: Rc<Link>) {
        let mut timer: Option<(Time, LocalBoxFuture<'static, ()>)> = None;
        std::future::poll_fn(|cx| {
            self.sender.borrow_mut().replace(cx.waker().clone());
            self.kicked.set(false);
            self.transmit();
            // Most deadlines are postponed again and again; one early timer costs less than a timer for each of them.
            let timeout = self.connection.borrow().timeout();
            if let Some(at) = timeout.filter(|at| self.armed.get().is_none_or(|armed| *at < armed)) {
                self.armed.set(Some(at));
                timer = Some((at, Box::pin(rt::sleep_until(at)) as LocalBoxFuture<'_, ()>));
            }
            if let Some((_, sleep)) = &mut timer
                && sleep.as_mut().poll(cx).is_ready()
            {
                timer = None;
                self.armed.set(None);
                if self.connection.borrow_mut().handle_timeout(rt::now()) {
                    // The receiving task sees this as the end of the stream.
                    self.stream.shutdown();
                }
                // `handle_timeout` may have produced output, and the next timeout must be set.
                cx.waker().wake_by_ref();
            }
            self.wake_user();
            if self.connection.borrow().finished() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if let Some(reason) = self.connection.borrow().ended() {
            tracing::debug!(peer = %self.peer, "iwarp connection ended: {reason}");
        }
    }

    async fn receive_task(self: Rc<Link>) {
        std::future::poll_fn(|cx| {
            for _ in 0..RECEIVES_PER_TURN {
                std::task::ready!(self.poll_staging(cx));
                let Poll::Ready(more) = self.receive(|slots| self.stream.poll_recv(cx, slots)) else {
                    return Poll::Pending;
                };
                self.transmit();
                self.wake_user();
                if !more {
                    // The sending task may be waiting for exactly this.
                    self.kick();
                    return Poll::Ready(());
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// One receive that does not wait, and its consequences; false when there was nothing to receive.
    fn try_receive(&self) -> bool {
        let recv = |slots: &mut [io::IoSliceMut<'_>]| match self.stream.try_recv(slots) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Poll::Pending
            }
            received => Poll::Ready(received),
        };
        let came = self.connection.borrow().is_between_messages() && self.receive(recv).is_ready();
        if came {
            self.transmit();
            self.wake_user();
        }
        came
    }

    /// [`Link::try_receive`] for a user about to poll, who will send the resulting output itself and need not be woken.
    fn receive_for_poll(&self) {
        let recv = |slots: &mut [io::IoSliceMut<'_>]| match self.stream.try_recv(slots) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Poll::Pending
            }
            received => Poll::Ready(received),
        };
        if self.connection.borrow().may_receive() {
            let _ = self.receive(recv);
        }
    }

    /// One receive and its consequences; false at the end of the stream.
    fn receive(&self, recv: impl FnOnce(&mut [io::IoSliceMut<'_>]) -> Poll<io::Result<usize>>) -> Poll<bool> {
        let mut connection = self.connection.borrow_mut();
        if let Some(staging) = connection.staging_wanted() {
            // Staging that is only useful, not needed, is taken only from a pool with plenty.
            let take = staging.needed || self.pool.has_plenty();
            match take.then(|| self.pool.try_alloc(staging.bytes)).flatten() {
                Some(buf) => connection.stage_in(buf),
                // The receiving task waits for the memory.
                None if staging.needed => return Poll::Pending,
                None => {}
            }
        }
        let received = std::task::ready!(match connection.recv_room() {
            Some(room) => recv(&mut [io::IoSliceMut::new(room)]),
            None => recv(&mut connection.recv_slots()),
        });
        let now = rt::now();
        Poll::Ready(match received {
            Ok(0) => {
                connection.eof(now);
                false
            }
            Ok(n) => {
                connection.received(n, now);
                self.hot.came(n);
                true
            }
            Err(e) => {
                connection.lost(e.kind(), now);
                false
            }
        })
        .map(|more| {
            let timeout = connection.timeout();
            drop(connection);
            // A deadline earlier than the one that the sending task waits for.
            if timeout.is_some_and(|at| self.armed.get().is_none_or(|armed| at < armed)) {
                self.kick();
            }
            more
        })
    }

    /// Waits for the staging memory that the next receive needs.
    fn poll_staging(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.staging.borrow_mut();
        let wanted = self.connection.borrow().staging_wanted().filter(|staging| staging.needed);
        let Some(wanted) = wanted else {
            *waiting = None;
            return Poll::Ready(());
        };
        let pool = self.pool.clone();
        let future = waiting.get_or_insert_with(|| Box::pin(async move { pool.alloc(wanted.bytes).await }));
        let buf = std::task::ready!(future.as_mut().poll(cx));
        *waiting = None;
        self.connection.borrow_mut().stage_in(buf);
        Poll::Ready(())
    }

    /// Sends what is ready. A wait that this starts wakes the sending task, whoever the caller is.
    fn transmit(&self) {
        // A caller that polls without pause asks often, and mostly there is nothing to send.
        if self.connection.borrow().is_quiet() && self.reading.borrow().is_none() {
            return;
        }
        let Some(waker) = self.sender.borrow().clone() else {
            // The sending task has not run yet, and will send this when it does.
            return;
        };
        let cx = &mut Context::from_waker(&waker);
        loop {
            self.fill_batch(cx);
            // Held for one attempt.
            let Poll::Ready(claims) = self.poll_warm_again(cx) else { return };
            let mut locked = None;
            let sent = {
                let connection = self.connection.borrow();
                if connection.nothing_to_send() {
                    if connection.finished_sending() && !self.write_closed.replace(true) {
                        self.stream.shutdown_write();
                    }
                    return;
                }
                let sent = match connection.pieces_out() <= FEW_SLICES {
                    true => self.send::<FEW_SLICES>(cx, &connection, &mut locked),
                    false => self.send::<SLICES>(cx, &connection, &mut locked),
                };
                let Some(sent) = sent else { return };
                sent
            };
            drop(claims);
            if let Some(range) = locked {
                let warm = async move { range.warm_claimed(0, range.len).await };
                self.warm_again.replace(Some(Box::pin(recorder::staged(&self.stage, warm))));
                continue;
            }
            match sent {
                Poll::Pending => return,
                Poll::Ready(Ok(n)) => self.connection.borrow_mut().sent(n, rt::now()),
                Poll::Ready(Err(e)) => self.send_failed(e.kind()),
            }
        }
    }

    /// Passes what is next to the socket, in up to `N` pieces. `None`: nothing is. `locked`: a file that cannot be sent at
    /// once.
    fn send<const N: usize>(
        &self,
        cx: &mut Context<'_>,
        connection: &Connection,
        locked: &mut Option<FileRange>,
    ) -> Option<Poll<io::Result<usize>>> {
        let mut slices = [IoSlice::new(&[]); N];
        Some(match connection.next_out(&mut slices) {
            Next::Nothing => return None,
            Next::Slices { filled, more: true } => self.stream.poll_send_more(cx, slices.split_at(filled).0),
            Next::Slices { filled, more: false } => self.stream.poll_send(cx, slices.split_at(filled).0),
            Next::File { range, from } => {
                let sent = self.stream.poll_send_file(cx, range, from, range.len);
                *locked = matches!(sent, Poll::Ready(Ok(0))).then(|| range.advanced(from));
                sent
            }
        })
    }

    /// Waits while a worker has exclusive use of the file being sent. If the file cannot be read, sending it fails
    /// later.
    fn poll_warm_again(&self, cx: &mut Context<'_>) -> Poll<Vec<Claim>> {
        let mut warm_again = self.warm_again.borrow_mut();
        if self.connection.borrow().finished_sending() {
            // Nothing is sent any more, so nobody would take the claim.
            *warm_again = None;
        }
        let Some(warm) = &mut *warm_again else { return Poll::Ready(Vec::new()) };
        let warm = std::task::ready!(warm.as_mut().poll(cx));
        *warm_again = None;
        Poll::Ready(warm.unwrap_or_default())
    }

    /// The socket accepts nothing more. The reason may still be unread: a peer that refuses us sends a Terminate and
    /// closes.
    fn send_failed(&self, kind: io::ErrorKind) {
        loop {
            let recv = |slots: &mut [io::IoSliceMut<'_>]| Poll::Ready(self.stream.try_recv(slots));
            if self.connection.borrow().ended().is_some() {
                break;
            }
            match self.receive(recv) {
                Poll::Ready(true) => {}
                _ => break,
            }
        }
        self.connection.borrow_mut().lost(kind, rt::now());
        *self.warm_again.borrow_mut() = None;
        // The receiving task sees this as the end of the stream.
        self.stream.shutdown();
    }

    /// Frames a batch, and reads files as it reaches them.
    fn fill_batch(&self, cx: &mut Context<'_>) {
        while self.poll_reading(cx).is_ready() {
            let wanted = {
                let mut connection = self.connection.borrow_mut();
                connection.pump();
                connection.wants_file()
            };
            let reading: LocalBoxFuture<'static, FileDone> = match wanted {
                None => return,
                Some(FileNeed::Warm(range)) => {
                    let warm =
                        async move { FileDone::Warm(range.warm(0, range.len).await.map(|()| range.len)) };
                    Box::pin(recorder::staged(&self.stage, warm))
                }
                Some(FileNeed::Read { range, piece }) => match self.read_at_once(&range, piece) {
                    Some(read) => {
                        self.connection.borrow_mut().file_read(read, rt::now());
                        continue;
                    }
                    None => {
                        let pool = self.pool.clone();
                        let read = async move { FileDone::Read(read_file(pool, range).await) };
                        Box::pin(recorder::staged(&self.stage, read))
                    }
                },
            };
            self.reading.borrow_mut().replace(reading);
        }
    }

    /// Reads from the page cache into a free buffer: the common case, without a future.
    fn read_at_once(&self, range: &FileRange, piece: Option<usize>) -> Option<io::Result<(Bytes, Vec<u32>)>> {
        let mut buf = self.pool.try_alloc(range.len)?;
        buf.set_len(range.len);
        let window = buf.into_window();
        let mut sums = Vec::new();
        let read = match piece {
            Some(piece) => range.try_read_summed(&window, piece, &mut sums)?,
            None => range.try_read_into(&window)?,
        };
        Some(read.and_then(|()| Ok((frozen(window)?, sums))))
    }

    fn poll_reading(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut reading = self.reading.borrow_mut();
        let Some(read) = reading.as_mut() else { return Poll::Ready(()) };
        let mut connection = self.connection.borrow_mut();
        if connection.ended().is_none() {
            match std::task::ready!(read.as_mut().poll(cx)) {
                FileDone::Read(read) => {
                    connection.file_read(read.map(|bytes| (bytes, Vec::new())), rt::now())
                }
                FileDone::Warm(warm) => connection.file_warm(warm, rt::now()),
            }
        }
        *reading = None;
        Poll::Ready(())
    }

    /// Wakes the sending task.
    fn kick(&self) {
        if !self.kicked.replace(true)
            && let Some(sender) = &*self.sender.borrow()
        {
            sender.wake_by_ref();
        }
    }

    fn wake_user(&self) {
        if self.connection.borrow().has_news()
            && let Some(user) = self.user.borrow_mut().take()
        {
            user.wake();
        }
    }
}

async fn read_file(pool: Pool, range: FileRange) -> io::Result<Bytes> {
    let mut buf = pool.alloc(range.len).await;
    buf.set_len(range.len);
    let window = buf.into_window();
    range.read_into(&window).await?;
    frozen(window)
}

fn frozen(window: weft_machine::Window) -> io::Result<Bytes> {
    // Nobody else holds this window; otherwise the payload could change while it is sent.
    window.try_into_buf().map(Buf::freeze).map_err(|_| io::ErrorKind::ResourceBusy.into())
}

impl QueuePair for Handle {
    fn provider(&self) -> &'static str {
        super::NAME
    }

    fn caps(&self) -> Caps {
        self.0.connection.borrow().caps()
    }

    fn peer(&self) -> Peer {
        self.0.peer
    }

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        self.0.connection.borrow_mut().register(buf, access)
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        let buf = self.0.connection.borrow_mut().invalidate(stag, rt::now());
        if self.0.connection.borrow().has_news() {
            self.0.kick();
        }
        buf
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let sends = !matches!(work, Work::Recv { .. });
        self.0.connection.borrow_mut().post(work)?;
        if sends {
            self.0.kick();
        }
        Ok(())
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let link = &*self.0;
        link.transmit();
        let mut connection = link.connection.borrow_mut();
        let before = out.len();
        connection.take_completions(out);
        if out.len() > before {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = connection.ended() {
            return Poll::Ready(Err(reason.clone()));
        }
        link.user.borrow_mut().replace(cx.waker().clone());
        Poll::Pending
    }

    fn look(&self) {
        self.0.receive_for_poll();
    }

    fn stage(&self) -> Option<Arc<Stage>> {
        Some(self.0.stage.clone())
    }

    fn traffic(&self) -> Traffic {
        self.0.connection.borrow().traffic()
    }

    fn close(&self) {
        self.0.connection.borrow_mut().close(rt::now());
        self.0.kick();
        self.0.wake_user();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}
