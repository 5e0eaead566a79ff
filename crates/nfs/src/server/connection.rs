//! Runs one connection: takes calls in batches, runs them concurrently, and sends their replies together.
//!
//! See RFC 5531 section 8. It owns the requests that did not finish at once; `dispatch` parses and answers calls.
//!
//! Operation: a call starts when it is taken, and most finish at once, without a task or a wake-up. Requests that
//! wait (for a disk, a worker) are polled beside the next receive, and beside the wait for a peer that does not read
//! its replies. The replies of a batch are sent together.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream};
use weft_machine::recorder::{self, Details, Operation};
use weft_machine::rt;
use weft_transport::{Channel, Error, Message, Outgoing, Peer, Sending};

use super::Server;
use super::answers::Answers;
use super::at_once;
use super::context::Connection;
use super::header::NotRpc;
use super::instead::{self, Answer, Instead};
use super::line::{self, CallbackLine};
use super::watch::Watch;

/// Messages taken before the running requests are polled again.
const BATCH: usize = 64;
/// The largest future of a call, in bytes. Each call moves its future once, so what a READ or WRITE rarely awaits is boxed.
#[cfg(debug_assertions)]
const LARGEST_CALL: usize = 2880;
/// After this many calls without a pause, or when the time slice is over, the core's other connections get a turn: a
/// client whose calls arrive faster than they are answered would otherwise occupy the core. This is more than READs
/// need to use up the slice: after 64 calls their turns were shorter than those of SMB, and a client kept 0.8 of its
/// throughput beside others that kept the core busy.
const CALLS_IN_A_ROW: usize = 256;
/// A request longer than this comes alone: small ones are received together, and their replies leave together.
const LARGE_BYTES: usize = 16 << 10;
/// The reply to a large request waits for those of the next ones, while they have arrived already: to send a reply to a WRITE of 64
/// KiB costs a fifth of the WRITE. So many of them wait at most, and no longer than it takes to carry out so many bytes.
const HELD_REPLIES: usize = 8;
const HELD_BYTES: usize = 512 << 10;
/// A client that has few requests outstanding waits for the first reply before it sends more. Whether this is one shows when
/// replies wait, which is tried after so many requests without a pause.
const CROWD: usize = 16;
/// For how many requests a client that went on sending while as many replies waited as may is believed to have many outstanding.
const DEEP: usize = 256;
/// The same for a client that no export admits. Then it waits.
const STRANGERS_CALLS_IN_A_ROW: usize = 64;
/// How long a client that no export admits waits then: a thousand calls a second are more than NULL and MOUNT ever
/// need.
const STRANGERS_PAUSE: Duration = Duration::from_millis(64);
/// Up to this many such connections wait no longer than that. With more of them, each waits longer, so that many
/// connections still leave the server to others, but not so long that calls sent before a hang-up keep it busy for
/// minutes.
const STRANGERS_AT_ONCE: u32 = 8;
/// The longest pause, as a multiple of that one.
const MOST_PAUSES: u32 = 4;

/// The connections that wait for their next turn because no export admits their client.
#[derive(Default)]
pub(super) struct Strangers(AtomicU32);

impl Strangers {
    async fn pause(&self) {
        struct Waits<'a>(&'a AtomicU32);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits(&self.0);
        let pauses = (before / STRANGERS_AT_ONCE).saturating_add(1).min(MOST_PAUSES);
        rt::sleep(STRANGERS_PAUSE.saturating_mul(pauses)).await;
    }
}

type Received = Result<Option<Message>, Error>;
type Answered = (Result<Answer, NotRpc>, Operation);
type Running<'a> = LocalBoxFuture<'a, Answered>;

/// A reply that the network has not taken.
struct UnsentReply {
    sending: Sending,
    /// Its call.
    operation: Operation,
    /// What to send if it cannot be sent.
    instead: Option<Instead>,
}

/// The replies that the network has not taken, in order.
#[derive(Default)]
struct Unsent {
    queue: VecDeque<UnsentReply>,
    /// How many of them the flight recorder knows to wait.
    told: usize,
}

impl Unsent {
    fn push(&mut self, sending: Sending, operation: Operation, instead: Option<Instead>) {
        if !sending.is_taken() {
            self.queue.push_back(UnsentReply { sending, operation, instead });
        }
    }

    /// A batch has been sent: what is left waits for the peer, or for a disk.
    fn settle(&mut self, channel: &dyn Channel, client: &Arc<str>) {
        if channel.backlog() == 0 && channel.unsent_bytes() == 0 {
            self.finish(channel);
        }
        for UnsentReply { operation, .. } in self.queue.iter_mut().skip(self.told) {
            let details = || Details { client: Some(client.clone()), ..Details::default() };
            operation.sending(channel.stages().into_iter().flatten(), details);
        }
        self.told = self.queue.len();
    }

    /// The channel holds no message: each is taken or has failed. Only a reply with a file may have failed alone.
    fn finish(&mut self, channel: &dyn Channel) {
        self.told = 0;
        for _ in 0..self.queue.len() {
            let Some(UnsentReply { mut sending, operation, instead }) = self.queue.pop_front() else {
                return;
            };
            if instead.is_some()
                && let Poll::Ready(outcome) =
                    Pin::new(&mut sending).poll(&mut Context::from_waker(Waker::noop()))
            {
                self.sent(outcome, operation, instead, channel);
            }
        }
    }

    /// Ready when there are none. Whether one could be sent is shown by the next receive, unless its own payload is at
    /// fault: then its call is answered by an error.
    fn poll(&mut self, cx: &mut Context<'_>, channel: &dyn Channel) -> Poll<()> {
        while let Some(UnsentReply { sending, .. }) = self.queue.front_mut() {
            let Poll::Ready(outcome) = Pin::new(sending).poll(cx) else { return Poll::Pending };
            self.told = self.told.saturating_sub(1);
            if let Some(UnsentReply { operation, instead, .. }) = self.queue.pop_front() {
                self.sent(outcome, operation, instead, channel);
            }
        }
        Poll::Ready(())
    }

    fn sent(
        &mut self,
        outcome: Result<(), Error>,
        operation: Operation,
        instead: Option<Instead>,
        channel: &dyn Channel,
    ) {
        if let (Err(Error::Io(e)), Some(instead)) = (outcome, instead)
            && !channel.has_ended()
        {
            instead::tell(channel.peer(), &e);
            self.push(channel.send(instead.reply()), operation, None);
        }
    }
}

/// The replies to large requests that wait in the corked channel for the next ones.
#[derive(Default)]
struct Held {
    replies: usize,
    bytes: usize,
    /// Requests since the connection last waited for one.
    crowd: usize,
    /// For so many more requests the client is believed to have many outstanding.
    deep: usize,
}

impl Held {
    /// Requests of so many bytes were carried out. Whether their replies wait.
    fn may_wait(&mut self, requests: usize, bytes: usize) -> bool {
        self.crowd = self.crowd.saturating_add(requests);
        self.replies = self.replies.saturating_add(requests);
        self.bytes = self.bytes.saturating_add(bytes);
        if requests != 1 || bytes <= LARGE_BYTES {
            self.deep = 0;
            return false;
        }
        self.deep = self.deep.saturating_sub(1);
        let has_room = self.replies < HELD_REPLIES && self.bytes < HELD_BYTES;
        if self.replies > 1 && !has_room {
            self.deep = DEEP;
        }
        has_room && (self.deep > 0 || self.crowd > CROWD)
    }

    /// Sends them. Whether there were any.
    fn release(&mut self, channel: &dyn Channel) -> bool {
        let any = self.take() > 0;
        if any {
            channel.cork(false);
        }
        any
    }

    /// The number of them, which wait no longer.
    fn take(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.replies)
    }

    /// The connection waits for its next request.
    fn pause(&mut self) {
        self.crowd = 0;
    }
}

enum Event {
    Received(Received),
    Finished(Answered),
    /// The server has a call for the client.
    Calling(Bytes),
    Drained,
    /// The shares were replaced.
    SharesChanged,
}

pub(super) async fn serve(server: &Server, channel: Rc<dyn Channel>, watch: &Watch) -> Result<(), Error> {
    let peer = channel.peer();
    tracing::debug!(%peer, kind = ?channel.kind(), medium = channel.medium(), "NFS connection");
    // A handshake has verified the peer's address.
    let _present = match peer {
        Peer::Tcp(addr) | Peer::Rdma(addr) => Some(server.reached.arrive(addr.ip())),
        Peer::Udp(_) | Peer::Local { .. } => None,
    };
    let line = Arc::new(CallbackLine::default());
    let answers = Answers::of(&*channel, &server.pool);
    let connection = Connection::new(server, &*channel, &answers, &line, watch);
    let mut told = false;
    let mut running: FuturesUnordered<Running<'_>> = FuturesUnordered::new();
    let mut receiving = None;
    // A message that arrived when the turn was over.
    let mut arrived: Option<Received> = None;
    let mut unsent = Unsent::default();
    let mut held = Held::default();
    // The peer has too many unread replies: no more calls are received until the network has taken them.
    let mut is_full = false;
    let mut place = server.drain.join();
    let mut calls = line.join();
    let mut changes = server.shares.follow();
    let mut draining = false;
    let mut in_a_row = 0usize;
    let ended = loop {
        if draining && running.is_empty() {
            break Ok(());
        }
        let mut paused = false;
        let mut poll_event = |cx: &mut Context<'_>| {
            let event = 'event: {
                if let Poll::Ready(Some(finished)) = Pin::new(&mut running).poll_next(cx) {
                    break 'event Poll::Ready(Event::Finished(finished));
                }
                // A connection that waits must not keep the files of removed shares open.
                if changes.poll(cx) != connection.shares_number() {
                    break 'event Poll::Ready(Event::SharesChanged);
                }
                // Nobody has to be woken for what waits here.
                let all_sent = held.replies > 0 || unsent.poll(cx, &*channel).is_ready();
                if draining {
                    break 'event Poll::Pending;
                }
                if place.poll(cx) {
                    break 'event Poll::Ready(Event::Drained);
                }
                if is_full {
                    if !all_sent {
                        receiving = None;
                        break 'event Poll::Pending;
                    }
                    is_full = false;
                }
                if let Poll::Ready(call) = calls.poll(cx) {
                    break 'event Poll::Ready(Event::Calling(call));
                }
                if running.len() >= server.limits.requests || answers.is_waited_for() {
                    receiving = None;
                    break 'event Poll::Pending;
                }
                let received = match arrived.take() {
                    Some(arrived) => Poll::Ready(arrived),
                    None => {
                        let future: &mut LocalBoxFuture<'_, _> =
                            receiving.get_or_insert_with(|| channel.recv());
                        let received = future.as_mut().poll(cx);
                        if received.is_ready() {
                            receiving = None;
                        }
                        received
                    }
                };
                // If a running call has used up the time slice, a message waits for the next one. The end of the
                // connection does not: otherwise calls that use up each time slice would hold a closed connection.
                if matches!(received, Poll::Ready(Ok(None) | Err(_))) || !rt::turn_is_over() {
                    break 'event received.map(Event::Received);
                }
                if let Poll::Ready(message) = received {
                    arrived = Some(message);
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            };
            if event.is_pending() {
                if held.release(&*channel) {
                    unsent.settle(&*channel, &connection.client);
                    // The network wakes this when it takes what is left.
                    let _ = unsent.poll(cx, &*channel);
                }
                held.pause();
            }
            event
        };
        let event = poll_fn(|cx| {
            let event = poll_event(cx);
            paused |= event.is_pending();
            event
        })
        .await;
        if paused {
            in_a_row = 0;
        }
        let mut waits = false;
        let sent = match event {
            Event::Drained => {
                draining = true;
                receiving = None;
                continue;
            }
            Event::SharesChanged => {
                drop(connection.shares());
                continue;
            }
            Event::Calling(call) => {
                unsent.push(channel.send(Outgoing::bytes(call)), Operation::default(), None);
                Ok(())
            }
            Event::Finished(finished) => send(&*channel, finished, &mut unsent),
            // A call received before the end is not carried out, because nobody would get the reply.
            Event::Received(Ok(Some(_))) if channel.has_ended() => break Ok(()),
            Event::Received(Ok(Some(message))) => {
                channel.cork(true);
                let (bytes, before) = (message.body.len(), in_a_row);
                let begun = begin(&connection, &*channel, message, &mut running, &mut unsent, &mut in_a_row);
                let may_wait = held.may_wait(in_a_row.saturating_sub(before), bytes);
                waits = may_wait && told && begun.is_ok() && !rt::turn_is_over();
                begun
            }
            Event::Received(Ok(None)) => break Ok(()),
            Event::Received(Err(e)) => break Err(e),
        };
        if connection.admitted.get() && !told {
            channel.authenticated();
            told = true;
        }
        match sent {
            // No more calls are received from a peer that does not read its replies. Running requests continue,
            // because others wait for what they hold and for what they were granted.
            Ok(()) => {
                let fills = || channel.backlog() >= server.limits.replies || answers.is_full(&*channel);
                if !waits || in_a_row >= CALLS_IN_A_ROW || fills() {
                    held.release(&*channel);
                    unsent.settle(&*channel, &connection.client);
                    is_full |= fills();
                }
            }
            Err(e) => break Err(e),
        }
        if told && in_a_row >= CALLS_IN_A_ROW {
            in_a_row = 0;
            rt::yield_now().await;
        } else if !told && in_a_row >= STRANGERS_CALLS_IN_A_ROW {
            in_a_row = 0;
            server.strangers.pause().await;
        }
        rt::yield_if_due().await;
    };
    held.release(&*channel);
    drop(calls);
    // Running requests still change files; their replies can be sent only if the peer closed in order.
    while let Some(finished) = poll_fn(|cx| Pin::new(&mut running).poll_next(cx)).await {
        if ended.is_ok() && send(&*channel, finished, &mut unsent).is_err() {
            tracing::debug!(%peer, "a reply cannot be sent: the connection has ended");
        }
    }
    channel.close();
    ended
}

/// Starts a message and those received with it, and counts them.
fn begin<'a>(
    connection: &'a Connection<'a>,
    channel: &dyn Channel,
    first: Message,
    running: &mut FuturesUnordered<Running<'a>>,
    unsent: &mut Unsent,
    in_a_row: &mut usize,
) -> Result<(), Error> {
    let mut next = Some(first);
    let mut begun = 0usize;
    *connection.written.borrow_mut() = None;
    while let Some(mut message) = next {
        if line::is_reply(&message.body) {
            connection.line.deliver(message.body);
        } else if let Some((answer, operation)) = at_once::at_once(connection, &mut message) {
            send(channel, (Ok(answer), operation), unsent)?;
        } else {
            *connection.written.borrow_mut() = None;
            let answer = || {
                let answer = connection.answer(message);
                #[cfg(debug_assertions)]
                assert!(
                    size_of_val(&answer) <= LARGEST_CALL,
                    "{} bytes: box what READ and WRITE rarely await",
                    size_of_val(&answer)
                );
                recorder::kept(answer)
            };
            let mut future: Running<'a> = rt::boxed(answer);
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(finished) => send(channel, finished, unsent)?,
                // The set polls it again before the task sleeps, with a counting waker.
                Poll::Pending => running.push(future),
            }
        }
        begun = begun.saturating_add(1);
        *in_a_row = in_a_row.saturating_add(1);
        let room = begun < BATCH
            && running.len() < connection.server.limits.requests
            && !connection.answers.is_full(channel)
            && !channel.has_ended()
            && !rt::turn_is_over();
        next = if room { channel.try_recv() } else { None };
    }
    Ok(())
}

/// Queues a reply.
fn send(channel: &dyn Channel, (finished, operation): Answered, unsent: &mut Unsent) -> Result<(), Error> {
    match finished {
        Ok(Answer { reply, instead }) => {
            unsent.push(channel.send(reply), operation, instead);
            Ok(())
        }
        Err(NotRpc(why)) => {
            tracing::debug!(peer = %channel.peer(), why, "not an RPC call");
            Err(Error::Malformed(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that always has so many requests outstanding, each of so many bytes: into how many sends the replies to 10,000 of
    /// them go, and how often it waits for a reply that is held back.
    fn play(outstanding: usize, bytes: usize) -> (usize, usize) {
        let mut held = Held::default();
        let (mut arrived, mut sends, mut stalls) = (outstanding, 0, 0);
        for _ in 0..10_000 {
            arrived -= 1;
            let waits = held.may_wait(1, bytes);
            if !waits || arrived == 0 {
                stalls += usize::from(waits);
                sends += 1;
                arrived += held.take();
                if waits {
                    held.pause();
                }
            }
        }
        (sends, stalls)
    }

    #[test]
    fn replies_wait_for_each_other_if_the_client_goes_on_sending() {
        let (sends, stalls) = play(32, 65_672);
        assert!(sends < 10_000 / HELD_REPLIES + 2 * CROWD && stalls == 0, "{sends} sends, {stalls} stalls");
        for outstanding in 1..HELD_REPLIES {
            let (sends, stalls) = play(outstanding, 65_672);
            assert!(stalls <= 10_000 / CROWD, "{outstanding} outstanding: {sends} sends, {stalls} stalls");
        }
    }

    #[test]
    fn replies_to_what_is_small_or_very_large_do_not_wait() {
        assert_eq!([play(32, 8332), play(32, HELD_BYTES)], [(10_000, 0); 2]);
    }
}
