//! Accept loops: each new connection goes to a core and stays there.
//!
//! Owns: the listening sockets. Does not: speak a protocol; it makes a channel and hands it to a service.

mod known;
pub(crate) mod memory;
mod notice;
pub(crate) mod quota;
pub(crate) mod unix;
mod unread;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::net::{Socket, Tls, is_exhausted};
use weft_machine::{Listener, LogLimit, Peer, Pool, Stream, rt};
use weft_rdma::{Incoming, Request};
use weft_transport::strangers::{self, Strangers};
use weft_transport::{Channel, Error, datagram, nbss, record, rpcrdma, smbd};

use self::known::Placed;
use self::memory::{Member, Memory};
use self::quota::{Place, Quotas, Service};

/// What a service does with one connection, on the core that owns it.
pub(crate) type Serve =
    Arc<dyn Fn(Rc<dyn Channel>) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

/// The same for a protocol that takes the byte stream as it is, and says of its place when the peer is known.
pub(crate) type ServeStream =
    Arc<dyn Fn(Stream, Rc<Place>) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

/// What connections become on a port.
#[derive(Clone, Debug)]
pub(crate) enum Framing {
    /// SMB over TCP.
    Nbss,
    /// RPC over TCP, under TLS where a client asks for it and there is a certificate.
    Record(Option<Tls>),
}

/// How RDMA connections are used on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    /// SMB Direct.
    Smbd,
    /// RPC over RDMA.
    RpcRdma,
}

impl Messages {
    fn service(self) -> Service {
        match self {
            Messages::Smbd => Service::Smb,
            Messages::RpcRdma => Service::Nfs,
        }
    }
}

/// How long accepting waits when descriptors have run out: a connection that was told to go has gone by then.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(5);
/// How long accepting waits when it failed for another reason.
const BROKEN_PAUSE: Duration = Duration::from_secs(1);
/// A client of SMB that acknowledges nothing for so long is lost, and what it has open is closed: shorter than others
/// wait for its oplocks (35 s). NFS clients hold nothing by their connections.
const SILENCE: Duration = Duration::from_secs(30);

/// What every accept loop needs.
#[derive(Clone)]
pub(crate) struct Acceptor {
    /// Where connections run.
    pub cores: Arc<rt::Cores>,
    /// Payload buffers.
    pub pool: Pool,
    /// What each source may hold of them, known or not.
    pub memory: Arc<Memory>,
    /// TCP congestion control of what is accepted on TCP ports.
    pub congestion: Option<Arc<str>>,
    /// Who may have a connection.
    pub quotas: Quotas,
    /// How many connections there are.
    pub connections: Arc<AtomicUsize>,
    /// When accepting ends.
    pub stop: Stop,
}

/// Tells the accept loops, on whatever core, to end. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    state: Arc<Mutex<(bool, Vec<Waker>)>>,
    /// How many loops have something that is to be taken back at their end.
    holding: Arc<AtomicUsize>,
}

impl Stop {
    /// Ends them.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        let waiting = std::mem::take(&mut state.1);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// As long as the result lives the process must not end in order: it is dropped after what has to be taken back.
    fn hold(&self) -> Counted {
        self.holding.fetch_add(1, Ordering::Relaxed);
        Counted(self.holding.clone())
    }

    /// Whether the loops have taken back what has to be: the files of their sockets.
    pub(crate) fn is_over(&self) -> bool {
        self.holding.load(Ordering::Relaxed) == 0
    }

    /// Runs `future` unless it is time to end: then `None`.
    pub(crate) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let stopped = std::future::poll_fn(|cx| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(());
            }
            if !state.1.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.1.push(cx.waker().clone());
            }
            Poll::Pending
        });
        match select(pin!(stopped), pin!(future)).await {
            Either::Left(_) => None,
            Either::Right((output, _)) => Some(output),
        }
    }
}

impl Acceptor {
    /// Accepts TCP connections until it is stopped.
    pub(crate) async fn tcp(self, listener: Listener, service: Service, framing: Framing, serve: Serve) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
            match accepted {
                Ok(socket) => {
                    let (serve, framing, memory) = (serve.clone(), framing.clone(), self.memory.clone());
                    self.place(service, socket.peer(), move |this, place| async move {
                        let stream = match Stream::from_socket(socket) {
                            Ok(stream) => stream,
                            Err(e) => return lost(&e),
                        };
                        let member = memory.join(stream.peer());
                        let channel: Rc<dyn Channel> = match framing {
                            Framing::Nbss => {
                                if let Err(e) = stream.set_unacknowledged_limit(SILENCE) {
                                    tracing::warn!(
                                        "TCP waits for a lost peer as long as the system does: {e}"
                                    );
                                }
                                let config = nbss::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: member.strangers.clone(),
                                    max_message: strangers::LOGON_MESSAGE,
                                    limit: strangers::LOGON,
                                };
                                nbss::Nbss::of_stranger(stream, this.pool, config, terms)
                            }
                            Framing::Record(tls) => {
                                let config = record::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: member.strangers.clone(),
                                    // What a client repeats on a new connection may be its longest WRITE.
                                    max_message: config.max_message,
                                    limit: strangers::FIRST_CALL,
                                };
                                match record::accept(stream, tls.as_ref(), this.pool, config, terms).await {
                                    Ok(channel) => channel,
                                    Err(e) => return lost(&e),
                                }
                            }
                        };
                        converse(channel, place, member, &serve).await;
                    });
                }
                Err(e) => self.pause(&e).await,
            }
        }
    }

    /// Takes datagrams until it is stopped. All peers are served on this core, which has the socket.
    pub(crate) async fn udp(self, port: datagram::Port, serve: Serve) {
        while let Some(accepted) = self.stop.or(port.accept()).await {
            match accepted {
                Ok(channel) => {
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    let counted = Counted(self.connections.clone());
                    let serving = serve(channel);
                    rt::spawn(async move {
                        serving.await;
                        drop(counted);
                    })
                    .detach();
                }
                Err(e) => self.pause(&e).await,
            }
        }
    }

    /// Accepts TCP connections as byte streams until it is stopped.
    pub(crate) async fn streams(self, listener: Listener, service: Service, serve: ServeStream) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
            match accepted {
                Ok(socket) => self.stream(socket, service, &serve),
                Err(e) => self.pause(&e).await,
            }
        }
    }

    /// Accepts connections to a Unix socket until it is stopped; the socket's file goes with the listener.
    pub(crate) fn unix_streams(
        self,
        listener: unix::PathListener,
        service: Service,
        serve: ServeStream,
    ) -> impl Future<Output = ()> + 'static {
        let held = self.stop.hold();
        async move {
            while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
                match accepted {
                    Ok(socket) => self.stream(socket, service, &serve),
                    Err(e) => self.pause(&e).await,
                }
            }
            drop(listener);
            drop(held);
        }
    }

    fn stream(&self, socket: Socket, service: Service, serve: &ServeStream) {
        let serve = serve.clone();
        self.place(service, socket.peer(), move |_, place| async move {
            match Stream::from_socket(socket) {
                Ok(stream) => serve(stream, place).await,
                Err(e) => lost(&e),
            }
        });
    }

    /// Accepts RDMA connections until it is stopped; the socket file of shared memory goes with the listener.
    pub(crate) fn rdma(
        self,
        listener: Box<dyn weft_rdma::Listener>,
        messages: Messages,
        serve: Serve,
    ) -> impl Future<Output = ()> + 'static {
        let held = self.stop.hold();
        async move {
            while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
                match accepted {
                    Ok(mut incoming) => {
                        let (serve, memory) = (serve.clone(), self.memory.clone());
                        let service = messages.service();
                        self.place(service, incoming.peer(), move |_, place| async move {
                            let member = memory.join_rdma(incoming.peer());
                            // Staging of iWARP counts as well.
                            incoming.charge(&member.rdma());
                            match establish(incoming, messages, member.rdma()).await {
                                Ok(channel) => converse(channel, place, member, &serve).await,
                                Err(e) => lost(&e),
                            }
                        });
                    }
                    Err(e) => self.pause(&e).await,
                }
            }
            drop(listener);
            drop(held);
        }
    }

    /// Accepts when those that were told to go have gone.
    async fn settled<T>(&self, accept: impl Future<Output = T>) -> T {
        self.quotas.settled().await;
        accept.await
    }

    /// Runs `connection` on the next core, if there is a place for it. Until its peer is known it may be told to go.
    fn place<F>(
        &self,
        service: Service,
        peer: Peer,
        connection: impl FnOnce(Acceptor, Rc<Place>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let place = match self.quotas.enter(service, peer) {
            Ok(place) => place,
            Err(full) => {
                static REFUSED: LogLimit = LogLimit::new();
                if let Some(left_out) = REFUSED.pass(rt::now()) {
                    tracing::warn!(%peer, ?service, "refused a connection: {full}{left_out}");
                }
                return;
            }
        };
        self.connections.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        self.cores.run(self.cores.next(), move || async move {
            let counted = Counted(this.connections.clone());
            let place = Rc::new(place);
            let notice = poll_fn(|cx| place.poll_unserved(cx));
            if let Either::Right(_) = select(pin!(connection(this, place.clone())), pin!(notice)).await {
                evicted(peer);
            }
            drop(counted);
        });
    }

    /// After accepting has failed. Descriptors that ran out are had again by closing the oldest connection that nobody
    /// knows, or at least by refusing whoever waits, so that others than floods are not kept waiting.
    async fn pause(&self, error: &io::Error) {
        static FAILED: LogLimit = LogLimit::new();
        if let Some(left_out) = FAILED.pass(rt::now()) {
            tracing::warn!("accepting connections: {error} (is `ulimit -n` too small?){left_out}");
        }
        if is_exhausted(error) {
            self.quotas.evict();
            self.quotas.give_spare_up();
            rt::sleep(EXHAUSTED_PAUSE).await;
        } else {
            rt::sleep(BROKEN_PAUSE).await;
        }
    }

    fn tune(&self, listener: &Listener) {
        if let Some(name) = &self.congestion
            && let Err(e) = listener.set_congestion(name)
        {
            tracing::warn!("congestion control {name} was not set: {e}");
        }
    }
}

/// One connection in the count, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn establish(
    incoming: Box<dyn Incoming>,
    messages: Messages,
    pool: Pool,
) -> Result<Rc<dyn Channel>, Error> {
    let request: Box<dyn Request> = incoming.request().await?;
    Ok(match messages {
        Messages::Smbd => {
            let max_stranger_size = strangers::LOGON_MESSAGE as u32;
            smbd::accept(request, smbd::Config { max_stranger_size, ..Default::default() }, pool).await?
        }
        Messages::RpcRdma => rpcrdma::accept(request, rpcrdma::Config::default(), pool).await?,
    })
}

/// Serves a channel. One that is told to go is closed as if its peer had left: what it has begun ends in order.
async fn converse(channel: Rc<dyn Channel>, place: Rc<Place>, member: Member, serve: &Serve) {
    let placed = Rc::new(Placed { channel: channel.clone(), place: place.clone(), member });
    let serving = pin!(serve(placed.clone()));
    let displaced = poll_fn(|cx| place.poll_notice(cx).map(|()| evicted));
    let unread = poll_fn(|cx| placed.member.poll_notice(cx).map(|()| did_not_read));
    place.serve();
    if let Either::Right((told, serving)) = select(serving, select(displaced, unread)).await {
        match told {
            Either::Left((say, _)) => say(channel.peer()),
            Either::Right((say, _)) => say(channel.peer()),
        }
        channel.close();
        serving.await;
    }
}

/// Others wait for the memory that a connection's answers hold.
fn did_not_read(peer: Peer) {
    static UNREAD: LogLimit = LogLimit::new();
    if let Some(left_out) = UNREAD.pass(rt::now()) {
        let patience = unread::PATIENCE.as_secs();
        tracing::warn!(%peer, "closed: it has read none of its answers for {patience} s, whose memory others wait for{left_out}");
    }
}

/// A connection gives its place to another.
fn evicted(peer: Peer) {
    static EVICTED: LogLimit = LogLimit::new();
    if let Some(left_out) = EVICTED.pass(rt::now()) {
        tracing::warn!(%peer, "closed before its peer was known: its place was needed{left_out}");
    }
}

/// A connection ended before anything was said on it.
fn lost(error: &dyn std::fmt::Display) {
    static LOST: LogLimit = LogLimit::new();
    if let Some(left_out) = LOST.pass(rt::now()) {
        tracing::warn!("a new connection was lost: {error}{left_out}");
    }
}
