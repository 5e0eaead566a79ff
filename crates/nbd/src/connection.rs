//! The transmission phase: requests in, replies out, many at a time.
//!
//! See doc/proto.md "Transmission", "Ordering of messages and writes" and "Terminating the transmission phase". A
//! connection owns its unanswered requests; `execute` carries them out.
//!
//! Operation: one task polls the running requests, the reader and the writer in turn. A request starts when it is
//! read, and most finish at once. Those that wait for a disk run concurrently, and replies are sent in the order in
//! which requests finish. A FLUSH covers what was answered before it was read, which is all that the protocol
//! requires. Limits: the reader pauses while too many requests, or too many bytes of WRITEs, are unanswered, or while
//! the client does not read its replies. Every pause ends when a reply has been sent, and every poll of the task
//! polls all three.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream as _};
use weft_machine::recorder::{self, Details, Hop, Operation, Stage};
use weft_machine::rt;
use weft_store::block::BlockOp;
use weft_wire::nbd::transmission::{Command, REQUEST_LEN, Request, command_flags};

use crate::execute::{self, Refusal};
use crate::meter::{self, Meter};
use crate::negotiation::Agreed;
use crate::outbox::{Outbox, Reply};
use crate::receiver::Receiver;
use crate::resources::{Error, Limits, Resources};
use crate::watch::Watch;
use weft_machine::net::Link;

/// Productive rounds before other connections of the core get a turn, if the time slice is not over earlier: a client
/// whose requests arrive faster than they are answered would otherwise occupy the core.
const ROUNDS_IN_A_ROW: usize = 16;
/// How long a client may take to close the connection after the server has finished.
const LINGER: Duration = Duration::from_secs(1);

struct Connection<'a> {
    resources: &'a Resources,
    link: &'a Link,
    agreed: Agreed<'a>,
    watch: &'a Watch,
    meter: Meter,
    client: Arc<str>,
    running: RefCell<FuturesUnordered<LocalBoxFuture<'a, (Reply, Operation)>>>,
    outbox: RefCell<Outbox>,
    /// Tells the waits of replies for a disk.
    stage: Arc<Stage>,
    /// Replies wait to be sent.
    is_stuck: Cell<bool>,
    /// Requests whose reply has not been sent.
    unanswered: Cell<usize>,
    /// Bytes of the WRITEs among them.
    unanswered_bytes: Cell<usize>,
    reading: Cell<bool>,
    /// Counts the progress of the three parts, which another may wait for.
    turns: Cell<u64>,
}

/// Serves the connection until the client disconnects or breaks a rule, or the server drains.
pub(crate) async fn serve<'a>(
    resources: &'a Resources,
    link: &'a Link,
    receiver: Receiver,
    agreed: Agreed<'a>,
    (watch, meter, client): (&'a Watch, Meter, Arc<str>),
) -> Result<(), Error> {
    let connection = Connection {
        resources,
        link,
        agreed,
        watch,
        meter,
        client,
        running: RefCell::default(),
        outbox: RefCell::default(),
        stage: Stage::new(),
        is_stuck: Cell::new(false),
        unanswered: Cell::new(0),
        unanswered_bytes: Cell::new(0),
        reading: Cell::new(true),
        turns: Cell::new(0),
    };
    tracing::debug!(export = agreed.export.name, structured = agreed.structured, "NBD client");
    let mut place = resources.drain.join();
    let mut draining = false;
    // Dropped at its end and when it is no longer polled, because others wait for what it was granted.
    let mut reader: Option<LocalBoxFuture<'_, _>> = Some(Box::pin(connection.read(receiver)));
    let mut writer = pin!(connection.write());
    let mut read = None;
    let written = std::future::poll_fn(|cx| {
        for _ in 0..ROUNDS_IN_A_ROW {
            let turns = connection.turns.get();
            connection.poll_running(cx);
            if let Some(reading) = &mut reader {
                let ended = match reading.as_mut().poll(cx) {
                    Poll::Ready(ended) => Some(ended),
                    // A partly received request is the client's to repeat.
                    Poll::Pending if place.poll(cx) => {
                        draining = true;
                        Some(Ok(()))
                    }
                    Poll::Pending => None,
                };
                if ended.is_some() {
                    (read, reader) = (ended, None);
                    connection.reading.set(false);
                    connection.turn();
                }
            }
            if let Poll::Ready(written) = writer.as_mut().poll(cx) {
                return Poll::Ready(written);
            }
            if connection.turns.get() == turns {
                return Poll::Pending;
            }
            if rt::turn_is_over() {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    drop(reader);
    if written.is_err() {
        // Nobody receives the replies, but requests that have started are finished.
        std::future::poll_fn(|cx| {
            connection.poll_running(cx);
            if connection.running.borrow().is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
    if draining {
        linger(link).await;
    } else if written.is_ok() {
        // "NBD_CMD_DISC": the TLS session ends before the connection does.
        match rt::timeout(LINGER, link.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!("the client disconnected first: {e}"),
            Err(late) => tracing::debug!("the client did not close its TLS session in time: {late}"),
        }
    }
    read.unwrap_or(Ok(()))?;
    Ok(written?)
}

/// Unread bytes would reset the connection when it is closed, and the client would lose replies: they are received
/// until the client closes its side.
async fn linger(link: &Link) {
    let mut scratch = vec![0; 16 << 10];
    let ended = rt::timeout(LINGER, async {
        if link.finish().await.is_ok() {
            while matches!(link.recv(&mut scratch).await, Ok(1..)) {}
        }
    });
    if ended.await.is_err() {
        tracing::debug!("the client did not close the connection after the server did");
    }
}

const LATE_PAYLOAD: &str = "the payload of a WRITE did not arrive in time";

/// Limits the time for receiving the remainder of a request.
async fn in_time<T>(
    limit: Duration,
    receiving: impl Future<Output = std::io::Result<T>>,
    late: &'static str,
) -> Result<T, Error> {
    Ok(rt::timeout(limit, receiving).await.map_err(|_| Error::Violation(late))??)
}

impl<'a> Connection<'a> {
    fn turn(&self) {
        self.turns.set(self.turns.get().wrapping_add(1));
    }

    /// Polls the running requests and queues the replies of finished ones.
    fn poll_running(&self, cx: &mut Context<'_>) {
        let mut running = self.running.borrow_mut();
        while let Poll::Ready(Some((reply, operation))) = Pin::new(&mut *running).poll_next(cx) {
            self.queue(reply, operation);
            if rt::turn_is_over() {
                cx.waker().wake_by_ref();
                break;
            }
        }
    }

    /// A reply waits for the client or for a disk.
    fn waits_to_be_sent(&self, operation: &mut Operation) {
        let details = || Details { client: Some(self.client.clone()), ..Details::default() };
        operation.sending([self.stage.clone()], details);
    }

    fn queue(&self, reply: Reply, mut operation: Operation) {
        if self.is_stuck.get() {
            self.waits_to_be_sent(&mut operation);
        }
        self.outbox.borrow_mut().push(reply, operation);
        self.turn();
    }

    /// Takes requests until there are no more.
    async fn read(&self, mut receiver: Receiver) -> Result<(), Error> {
        loop {
            self.room_for(0).await;
            if !receiver.begun(self.link).await? {
                // A disconnect without NBD_CMD_DISC, but between two requests.
                return Ok(());
            }
            let mut header = [0; REQUEST_LEN];
            if receiver.has(REQUEST_LEN) {
                receiver.exact(self.link, &mut header).await?;
            } else {
                let rest = receiver.exact(self.link, &mut header);
                in_time(
                    self.resources.limits.payload,
                    rest,
                    "the remainder of a request did not arrive in time",
                )
                .await?;
            }
            let request = Request::parse(&header)?;
            if request.command == Command::DISC {
                return Ok(());
            }
            let judged = execute::judge(&request, &self.agreed, &self.resources.limits);
            self.unanswered.set(self.unanswered.get().saturating_add(1));
            if judged.is_ok() {
                self.watch.count(request.command, request.len);
            }
            if request.command == Command::WRITE {
                self.take_write(&mut receiver, request, judged).await?;
            } else {
                match judged {
                    Ok(()) => self.begin(request, Vec::new(), Operation::begin()),
                    Err(why) => {
                        self.queue(execute::refused(&self.agreed, &request, why), Operation::default());
                    }
                }
            }
            rt::yield_if_due().await;
        }
    }

    /// Receives a WRITE and its payload, which is read from the stream even if the request is refused.
    async fn take_write(
        &self,
        receiver: &mut Receiver,
        request: Request,
        judged: Result<(), Refusal>,
    ) -> Result<(), Error> {
        let limits = &self.resources.limits;
        if request.len > limits.request_bytes {
            return Err(Error::Violation("a WRITE longer than the largest block size"));
        }
        let len = request.len as usize;
        if let Err(why) = judged {
            self.skip(receiver, len).await?;
            self.queue(execute::refused(&self.agreed, &request, why), Operation::default());
            return Ok(());
        }
        if request.len > limits.piece_bytes {
            let begun = self.meter.begin(&request);
            let (reply, operation) = recorder::kept(self.told(request, async {
                let reply = self.write_in_pieces(receiver, request).await;
                begun.answered();
                reply
            }))
            .await;
            self.queue(reply?, operation);
            return Ok(());
        }
        let (data, operation) = recorder::kept(self.told(request, async {
            self.room_for(len).await;
            match len {
                0 => Ok(Vec::new()),
                _ => self.payload(receiver, len).await.map(|payload| vec![payload]),
            }
        }))
        .await;
        self.unanswered_bytes.set(self.unanswered_bytes.get().saturating_add(len));
        self.begin(request, data?, operation);
        Ok(())
    }

    /// Receives the payload of a WRITE, or a piece of it. The wait for a buffer has no time limit; a buffer that
    /// waits for the client is not available to others.
    async fn payload(&self, receiver: &mut Receiver, len: usize) -> Result<Bytes, Error> {
        let Limits { payload: limit, payload_step: step, .. } = self.resources.limits;
        // An announced payload takes no buffer until a part of it has arrived.
        let good_part = in_time(limit, receiver.good_part(self.link, len), LATE_PAYLOAD);
        recorder::at(Hop::Wire, good_part).await?;
        let mut buf = self.resources.received.alloc(len).await;
        buf.set_len(len);
        let mut done = 0;
        while done < len {
            let end = len.min(done.saturating_add(step));
            let part = in_time(limit, receiver.payload(self.link, &mut buf, done, end), LATE_PAYLOAD);
            done = recorder::at(Hop::Wire, part).await?;
        }
        Ok(buf.freeze())
    }

    /// Discards an unwanted payload, which must arrive at the same minimum rate as a wanted one.
    async fn skip(&self, receiver: &mut Receiver, len: usize) -> Result<(), Error> {
        let Limits { payload: limit, payload_step: step, .. } = self.resources.limits;
        let mut left = len;
        while left > 0 {
            let part = left.min(step);
            in_time(limit, receiver.skip(self.link, part), LATE_PAYLOAD).await?;
            left = left.saturating_sub(part);
        }
        Ok(())
    }

    /// One piece after another, so that no request holds a buffer while it waits for the next.
    async fn write_in_pieces(&self, receiver: &mut Receiver, request: Request) -> Result<Reply, Error> {
        let durable = request.flags & command_flags::FUA != 0;
        let (mut left, mut offset) = (request.len, request.offset);
        while left > 0 {
            let len = left.min(self.resources.limits.piece_bytes);
            let data = self.payload(receiver, len as usize).await?;
            let op = BlockOp::Write { offset, data: vec![data], durable };
            left = left.saturating_sub(len);
            // `judge` has checked that the whole request lies inside the export.
            offset = offset.saturating_add(u64::from(len));
            if let Err(e) = self.agreed.export.block.submit(op).await {
                self.skip(receiver, left as usize).await?;
                return Ok(execute::failed(&self.agreed, &request, &e));
            }
        }
        // All is written: what remains is an empty WRITE.
        Ok(execute::answer(self.resources, &self.agreed, Request { len: 0, ..request }, Vec::new()).await)
    }

    /// Tells the flight recorder what is carried out.
    async fn told<T>(&self, request: Request, work: impl Future<Output = T>) -> T {
        recorder::is(self.meter.what(&request));
        recorder::described(work, || meter::details(&self.client, &request)).await
    }

    /// Starts a request; most finish at once.
    fn begin(&self, request: Request, data: Vec<Bytes>, operation: Operation) {
        let counted_bytes = data.iter().map(Bytes::len).sum();
        let (resources, agreed, begun) = (self.resources, self.agreed, self.meter.begin(&request));
        let (what, client) = (self.meter.what(&request), self.client.clone());
        let answered = async move {
            recorder::is(what);
            recorder::moves(u64::from(request.len));
            let answering = execute::answer(resources, &agreed, request, data);
            let reply = recorder::described(answering, || meter::details(&client, &request)).await;
            begun.answered();
            recorder::answered(|| meter::details(&client, &request));
            Reply { counted_bytes, ..reply }
        };
        let mut future: LocalBoxFuture<'a, (Reply, Operation)> =
            Box::pin(recorder::kept_on(operation, answered));
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((reply, operation)) => self.queue(reply, operation),
            // The set polls it again before the task sleeps, with a counting waker.
            Poll::Pending => {
                self.running.borrow_mut().push(future);
                self.turn();
            }
        }
    }

    /// Waits until one more request with `payload` bytes is within the limits.
    async fn room_for(&self, payload: usize) {
        let limits = &self.resources.limits;
        // No waker: whatever makes room counts a turn, and after a turn everything is polled.
        std::future::poll_fn(|_| {
            let bytes = self.unanswered_bytes.get();
            let full = self.unanswered.get() >= limits.requests && payload == 0
                || self.outbox.borrow().len() >= limits.replies
                || bytes > 0 && bytes.saturating_add(payload) > limits.unanswered_bytes;
            if full { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Sends replies until the reader has ended and everything is answered.
    async fn write(&self) -> std::io::Result<()> {
        loop {
            let batch = std::future::poll_fn(|_| {
                let batch = self.outbox.borrow_mut().take();
                let over = !self.reading.get() && self.running.borrow().is_empty();
                if batch.is_some() || over { Poll::Ready(batch) } else { Poll::Pending }
            });
            let Some(batch) = batch.await else { return Ok(()) };
            let mut sending =
                pin!(recorder::staged(&self.stage, batch.send(self.link, &self.resources.pool)));
            let sent = std::future::poll_fn(|cx| {
                let sent = sending.as_mut().poll(cx);
                if sent.is_pending() && !self.is_stuck.replace(true) {
                    self.outbox
                        .borrow_mut()
                        .operations()
                        .for_each(|operation| self.waits_to_be_sent(operation));
                }
                sent
            });
            sent.await?;
            self.is_stuck.set(false);
            self.outbox.borrow_mut().sent();
            self.watch.answered();
            self.unanswered.set(self.unanswered.get().saturating_sub(batch.replies));
            let bytes = self.unanswered_bytes.get();
            self.unanswered_bytes.set(bytes.saturating_sub(batch.counted_bytes));
            self.turn();
        }
    }
}
