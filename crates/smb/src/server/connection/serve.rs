//! The loop of a connection: receives requests, runs them, and sends answers and notices.
//!
//! Spec: [MS-SMB2] 3.3.5.1 (accepting), 3.3.4.6 (notices), 3.3.7.1 (loss). Owns every request in flight. All requests
//! run inside the connection's task.
//!
//! Each message is processed as far as possible without waiting, before the next one is looked at; work that must wait
//! joins the futures in flight. Answers to a batch of messages leave together. Receiving stops while the number of
//! requests in flight or unsent reaches the client's credits, or while unsent answers take [`MAX_UNSENT_BYTES`]: a
//! client that does not read its answers waits, and memory does not grow. A long answer takes its buffer from the pool,
//! from a part shared by all connections of its address, before it is built, and holds it until the network has taken
//! the answer.
//!
//! [`MAX_UNSENT_BYTES`]: super::MAX_UNSENT_BYTES

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use weft_machine::{LogLimit, recorder, rt};
use weft_transport::{Channel, Error, Message, Outgoing};
use weft_wire::smb2::Header;

use super::{Connection, Unsent};
use crate::server::frame::{self, Tried};
use crate::server::notices::Notice;
use crate::server::outgoing;

/// How often, and at what interval, to check whether the client's host has acknowledged a notice.
const UNACKNOWLEDGED_LOOKS: u32 = 20;
const UNACKNOWLEDGED_PAUSE: Duration = Duration::from_millis(150);
/// Messages processed before their answers are sent.
const BATCH: usize = 64;
/// A connection keeps room for so many unsent messages, about three kilobytes.
const KEPT_UNSENT: usize = 16;
/// Batches without a pause before other tasks on this core get a turn, unless the clock ends the turn earlier.
const BATCHES_IN_A_ROW: usize = 4;

type Inflight = FuturesUnordered<LocalBoxFuture<'static, ()>>;
type Received = Result<Option<Message>, Error>;

/// The next message from the client.
#[derive(Default)]
struct Incoming<'a> {
    /// Dropped while nothing should be received, because a kept future must be polled.
    receiving: Option<LocalBoxFuture<'a, Received>>,
    /// A message that arrived when the turn was over.
    arrived: Option<Received>,
}

impl Connection {
    /// Sends the notices in the mailbox. Those that the medium does not take go to the session's other channels.
    fn deliver(self: &Rc<Self>, inflight: &mut Inflight) {
        for notice in self.mailbox.take() {
            let message = match notice.session.encrypt {
                false => Ok(notice.message.clone()),
                true => outgoing::seal_short(&notice.message, &notice.session),
            };
            let Ok(message) = message else {
                self.terminate("the session's nonces are used up");
                return;
            };
            let sending = self.channel.send(Outgoing::bytes(message));
            let others = notice.session.mailboxes().len() > 1;
            if !sending.is_taken() || others {
                let undelivered = &mut *self.undelivered.borrow_mut();
                let n = undelivered.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
                undelivered.insert(n, notice);
                let connection = self.clone();
                inflight.push(Box::pin(async move {
                    if sending.await.is_ok() {
                        connection.confirm(n).await;
                    }
                }));
            }
        }
    }

    /// 3.3.4.6: a notice that does not reach the client is sent over another channel, if there is one. The only sign of
    /// that is that the client's host does not acknowledge it.
    async fn confirm(&self, n: u64) {
        let mut before = 0;
        for _ in 0..UNACKNOWLEDGED_LOOKS {
            let now = self.channel.unacknowledged();
            // A busy connection always has unacknowledged bytes; if they become fewer, the client is alive.
            if now == 0 || now < before {
                self.undelivered.borrow_mut().remove(&n);
                return;
            }
            before = now;
            rt::sleep(UNACKNOWLEDGED_PAUSE).await;
        }
        let notice = self.undelivered.borrow_mut().remove(&n);
        if notice.is_some_and(|notice| notice.send_past(&self.mailbox)) {
            tracing::info!(peer = %self.peer, "a notice is not acknowledged; sending it over another channel");
        }
    }

    /// Serves until the peer or a protocol violation ends the connection.
    pub(in crate::server) async fn run(self: Rc<Connection>) {
        let mut inflight = Inflight::new();
        self.serve(&mut inflight).await;
        // Cancels the requests in flight; then nothing uses the sessions any more.
        drop(inflight);
        self.channel.close();
        let bindings: Vec<_> = self.bindings.borrow_mut().drain().collect();
        let unsent = std::mem::take(&mut *self.undelivered.borrow_mut());
        let unsent: Vec<Notice> = unsent.into_values().chain(self.mailbox.close()).collect();
        for (_, binding) in bindings {
            binding.leave(&self.server.sessions).await;
        }
        let lost = unsent.into_iter().filter_map(|notice| (!notice.send()).then_some(())).count();
        if lost > 0 {
            tracing::debug!(peer = %self.peer, "{lost} notices not sent: their client is gone");
        }
    }

    async fn serve(self: &Rc<Connection>, inflight: &mut Inflight) {
        let most = usize::from(self.server.config.limits.credits.max(1));
        let mut login = LoginTimer::new(self.server.config.limits.authenticate_ms);
        let mut batches = 0usize;
        let server = self.server.clone();
        let mut drain = server.drain.join();
        let mut incoming = Incoming::default();
        loop {
            let mut paused = false;
            let event = poll_fn(|cx| {
                let draining = drain.poll(cx);
                let event = self.poll_event(cx, inflight, &mut incoming, &mut login, most, draining);
                paused |= event.is_pending();
                event
            })
            .await;
            match event {
                Event::Progress => {}
                Event::Ended => return,
                Event::Drained => {
                    tracing::debug!(peer = %self.peer, "connection drained");
                    return;
                }
                Event::Received(Ok(Some(_))) if self.channel.has_ended() => return,
                Event::Received(Ok(Some(message))) => {
                    self.batch(message, inflight, most).await;
                    batches = if paused { 0 } else { batches.saturating_add(1) };
                    if batches == BATCHES_IN_A_ROW {
                        batches = 0;
                        rt::yield_now().await;
                    }
                }
                Event::Received(Ok(None)) => {
                    tracing::debug!(peer = %self.peer, "connection ended by the peer");
                    return;
                }
                Event::Received(Err(e)) => {
                    static LOST: LogLimit = LogLimit::new();
                    if let Some(left_out) = LOST.pass(rt::now()) {
                        tracing::warn!(peer = %self.peer, "connection lost: {e}{left_out}");
                    }
                    return;
                }
                Event::TooLate => {
                    return self.terminate("not authenticated in time");
                }
            }
            self.settle(inflight).await;
            if self.is_ended() {
                return;
            }
            rt::yield_if_due().await;
        }
    }

    fn poll_event<'a>(
        self: &'a Rc<Self>,
        cx: &mut Context<'_>,
        inflight: &mut Inflight,
        incoming: &mut Incoming<'a>,
        login: &mut LoginTimer,
        most: usize,
        draining: bool,
    ) -> Poll<Event> {
        let mut progress = false;
        // Notices precede the answers of requests that may be waiting for the client's reaction.
        if !self.is_ended() && self.mailbox.has_any() {
            self.deliver(inflight);
            progress = true;
        }
        // Requests in flight are not carried out after the channel has ended.
        while !self.channel.has_ended()
            && let Poll::Ready(Some(())) = inflight.poll_next_unpin(cx)
        {
            progress = true;
            if rt::turn_is_over() {
                break;
            }
        }
        if self.channel.has_ended() {
            // Others may wait for what these requests hold, and receiving may wait for their memory.
            inflight.clear();
        }
        if self.is_ended() {
            return Poll::Ready(Event::Ended);
        }
        if progress || !self.unsent.borrow().is_empty() {
            return Poll::Ready(Event::Progress);
        }
        if draining {
            incoming.receiving = None;
            // What waits for other clients may wait for ever, and is not waited for: its client repeats it at the next server.
            let left = inflight.len() > self.waiting.len() && !self.channel.has_ended();
            return if left { Poll::Pending } else { Poll::Ready(Event::Drained) };
        }
        if !self.channel.has_ended() && (inflight.len() >= most || self.is_full()) {
            incoming.receiving = None;
        } else if let Poll::Ready(received) = incoming.poll(&self.channel, cx) {
            return Poll::Ready(Event::Received(received));
        }
        self.mailbox.register(cx.waker());
        if self.mailbox.has_any() {
            cx.waker().wake_by_ref();
        }
        login.poll(cx, self.is_logged_on()).map(|()| Event::TooLate)
    }

    /// Handles a message and those that arrived with it; their answers leave together.
    async fn batch(self: &Rc<Connection>, first: Message, inflight: &mut Inflight, most: usize) {
        self.channel.cork(true);
        let mut next = Some(first);
        let mut handled = 0usize;
        while let Some(message) = next {
            match frame::at_once(self, message.body) {
                Ok(Tried::Answered) => {}
                Ok(Tried::Unfinished(rest)) => {
                    self.start(rt::boxed(|| frame::finish(self.clone(), rest)), inflight).await;
                }
                Ok(Tried::Other(message)) => {
                    let handle = || recorder::recorded(frame::handle(self.clone(), message));
                    self.start(rt::boxed(handle), inflight).await;
                }
                Err(reason) => self.terminate(reason),
            }
            // A break that this request caused leaves before the next answer, so that the client can attribute it.
            if self.mailbox.has_any() && !self.is_ended() {
                self.deliver(inflight);
            }
            handled = handled.saturating_add(1);
            let held = inflight.len().saturating_add(self.unsent.borrow().len());
            if handled == BATCH
                || held >= most
                || self.is_ended()
                || self.channel.has_ended()
                || self.is_full()
                || rt::turn_is_over()
            {
                break;
            }
            next = self.channel.try_recv();
        }
        self.channel.cork(false);
    }

    /// Runs a future as far as possible; the remainder continues in flight.
    async fn start(&self, mut work: LocalBoxFuture<'static, ()>, inflight: &mut Inflight) {
        if poll_once(work.as_mut()).await.is_none() {
            inflight.push(work);
        }
    }

    /// Follows up on sent messages: waits in flight for those that the medium has not taken, and answers a payload that
    /// could not be read with an error.
    async fn settle(self: &Rc<Connection>, inflight: &mut Inflight) {
        while !self.unsent.borrow().is_empty() {
            let mut unsent = std::mem::take(&mut *self.unsent.borrow_mut());
            let waiting = poll_fn(|cx| {
                let waits = |sending: &mut Unsent| match Pin::new(&mut sending.taken).poll(cx) {
                    Poll::Ready(outcome) => {
                        self.sent(outcome, &sending.fallback);
                        false
                    }
                    Poll::Pending => true,
                };
                Poll::Ready(unsent.extract_if(.., waits).collect::<Vec<_>>())
            });
            for mut sending in waiting.await {
                let connection = self.clone();
                let (stages, concerned) = (self.channel.stages(), sending.concerned);
                sending.operation.sending(stages.into_iter().flatten(), || self.details(concerned));
                inflight.push(Box::pin(async move {
                    // Whole: what it holds, and its operation, end with it.
                    let sending = sending;
                    let outcome = sending.taken.await;
                    connection.sent(outcome, &sending.fallback);
                }));
            }
            // The room is for the next batch.
            unsent.clear();
            if self.unsent.borrow().is_empty() && unsent.capacity() <= KEPT_UNSENT {
                self.unsent.replace(unsent);
            }
        }
    }

    fn sent(&self, outcome: Result<(), Error>, fallback: &[Header]) {
        match outcome {
            Ok(()) => {}
            Err(Error::Io(e)) if !fallback.is_empty() && !self.is_ended() && !self.channel.has_ended() => {
                outgoing::tell_unreadable(Some(&self.peer), &e);
                let outgoing = outgoing::unreadable(fallback);
                self.send(outgoing::short(outgoing));
            }
            // The receiving side sees this too, and logs the reason.
            Err(e) => tracing::debug!(peer = %self.peer, "cannot send an answer: {e}"),
        }
    }
}

impl<'a> Incoming<'a> {
    /// If a request in flight has used up the turn, a message waits for the next one. The end of the connection does
    /// not: otherwise requests that use up each turn would be carried on for a client that has gone.
    fn poll(&mut self, channel: &'a Rc<dyn Channel>, cx: &mut Context<'_>) -> Poll<Received> {
        let received = match self.arrived.take() {
            Some(arrived) => Poll::Ready(arrived),
            None => {
                let received = self.receiving.get_or_insert_with(|| channel.recv()).as_mut().poll(cx);
                if received.is_ready() {
                    self.receiving = None;
                }
                received
            }
        };
        if matches!(received, Poll::Ready(Ok(None) | Err(_))) || !rt::turn_is_over() {
            return received;
        }
        if let Poll::Ready(message) = received {
            self.arrived = Some(message);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Polls once, with the task's own waker.
async fn poll_once<T>(mut future: Pin<&mut (dyn Future<Output = T> + '_)>) -> Option<T> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

enum Event {
    /// A request in flight completed, or something was sent.
    Progress,
    Received(Result<Option<Message>, Error>),
    TooLate,
    Ended,
    /// The server drains, and nothing is in flight.
    Drained,
}

/// Ends a connection that has had no session for too long.
struct LoginTimer {
    limit: Duration,
    /// Runs while there is no session.
    sleep: Option<LocalBoxFuture<'static, ()>>,
}

impl LoginTimer {
    fn new(limit_ms: u64) -> LoginTimer {
        LoginTimer { limit: Duration::from_millis(limit_ms), sleep: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>, logged_on: bool) -> Poll<()> {
        if logged_on {
            self.sleep = None;
            return Poll::Pending;
        }
        let limit = self.limit;
        self.sleep.get_or_insert_with(|| Box::pin(rt::sleep(limit))).as_mut().poll(cx)
    }
}
