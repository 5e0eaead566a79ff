//! Accept loops: each new connection goes to a core and stays there. A loop owns its listening socket, makes a
//! channel of each connection and hands it to a service; it speaks no protocol itself.

mod holders;
mod known;
pub(crate) mod memory;
mod notice;
pub(crate) mod quota;
mod shortage;
pub(crate) mod unix;

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
use self::memory::{Member, Memory, Withheld};
use self::quota::{Quotas, Service, Slot};

/// What a service does with one connection, on the core that owns it.
pub(crate) type Serve =
    Arc<dyn Fn(Rc<dyn Channel>) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

/// The same for a protocol that takes the plain byte stream, and reports through its slot when the peer is known.
pub(crate) type ServeStream =
    Arc<dyn Fn(Stream, Rc<Slot>) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

/// How a TCP connection is framed on a port.
#[derive(Clone, Debug)]
pub(crate) enum Framing {
    /// SMB over TCP.
    Nbss,
    /// RPC over TCP; under TLS if the client asks for it and the server has a certificate.
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

/// Pause after descriptors have run out, so that a connection told to close has closed.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(5);
/// Pause after accepting failed for another reason.
const BROKEN_PAUSE: Duration = Duration::from_secs(1);
/// An SMB client that acknowledges nothing for this long is considered lost, and its open files are closed. Shorter
/// than the time others wait for its oplocks (35 s). NFS clients hold nothing through their connections.
const SILENCE: Duration = Duration::from_secs(30);

/// What every accept loop needs.
#[derive(Clone)]
pub(crate) struct Acceptor {
    /// Where connections run.
    pub cores: Arc<rt::Cores>,
    /// Payload buffers.
    pub pool: Pool,
    /// Limits how much of the pool each source may hold, known or not.
    pub memory: Arc<Memory>,
    /// TCP congestion control for connections accepted on TCP ports.
    pub congestion: Option<Arc<str>>,
    /// Who may have a connection.
    pub quotas: Quotas,
    /// The number of connections.
    pub connections: Arc<AtomicUsize>,
    /// When accepting ends.
    pub stop: Stop,
}

/// Tells the accept loops on all cores to end. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    state: Arc<Mutex<(bool, Vec<Waker>)>>,
    /// How many loops have something to clean up at their end.
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

    /// The process must not exit normally while the result lives: it is dropped after the clean-up.
    fn hold(&self) -> Counted {
        self.holding.fetch_add(1, Ordering::Relaxed);
        Counted(self.holding.clone())
    }

    /// Whether the loops have finished their clean-up, the removal of socket files.
    pub(crate) fn is_over(&self) -> bool {
        self.holding.load(Ordering::Relaxed) == 0
    }

    /// Runs `future`; returns `None` if the server stops first.
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
    /// Accepts TCP connections until stopped.
    pub(crate) async fn tcp(self, listener: Listener, service: Service, framing: Framing, serve: Serve) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
            match accepted {
                Ok(socket) => {
                    let (serve, framing, memory) = (serve.clone(), framing.clone(), self.memory.clone());
                    self.run_connection(service, socket.peer(), move |this, slot| async move {
                        let stream = match Stream::from_socket(socket) {
                            Ok(stream) => stream,
                            Err(e) => return lost(&e),
                        };
                        let member = memory.join(stream.peer());
                        let channel: Rc<dyn Channel> = match framing {
                            Framing::Nbss => {
                                if let Err(e) = stream.set_unacknowledged_limit(SILENCE) {
                                    tracing::warn!(
                                        "cannot set a limit for lost TCP peers; the system's default applies: {e}"
                                    );
                                }
                                let config = nbss::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: member.strangers.clone(),
                                    identified: member.incoming(),
                                    arriving: member.arriving(),
                                    max_message: strangers::LOGON_MESSAGE,
                                    limit: strangers::LOGON,
                                };
                                nbss::Nbss::of_stranger(stream, this.pool, config, terms)
                            }
                            Framing::Record(tls) => {
                                let config = record::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: member.strangers.clone(),
                                    identified: member.incoming(),
                                    arriving: member.arriving(),
                                    // A client that reconnects may first repeat its longest WRITE.
                                    max_message: config.max_message,
                                    limit: strangers::FIRST_CALL,
                                };
                                match record::accept(stream, tls.as_ref(), this.pool, config, terms).await {
                                    Ok(channel) => channel,
                                    Err(e) => return lost(&e),
                                }
                            }
                        };
                        converse(channel, slot, member, &serve).await;
                    });
                }
                Err(e) => self.pause(&e).await,
            }
        }
    }

    /// Serves datagrams until stopped. All peers are served on this core, which owns the socket.
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

    /// Accepts TCP connections as byte streams until stopped.
    pub(crate) async fn streams(self, listener: Listener, service: Service, serve: ServeStream) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(self.settled(listener.accept())).await {
            match accepted {
                Ok(socket) => self.stream(socket, service, &serve),
                Err(e) => self.pause(&e).await,
            }
        }
    }

    /// Accepts connections to a Unix socket until stopped; the socket's file is removed with the listener.
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
        self.run_connection(service, socket.peer(), move |_, slot| async move {
            match Stream::from_socket(socket) {
                Ok(stream) => serve(stream, slot).await,
                Err(e) => lost(&e),
            }
        });
    }

    /// Accepts RDMA connections until stopped; the socket file of shared memory is removed with the listener.
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
                        self.run_connection(service, incoming.peer(), move |_, slot| async move {
                            let member = memory.join_rdma(incoming.peer());
                            // iWARP's staging buffers count as well.
                            incoming.charge(&member.rdma());
                            match establish(incoming, messages, member.rdma()).await {
                                Ok(channel) => converse(channel, slot, member, &serve).await,
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

    /// Accepts once the connections that were told to close have closed.
    async fn settled<T>(&self, accept: impl Future<Output = T>) -> T {
        self.quotas.settled().await;
        accept.await
    }

    /// Runs `connection` on the next core if the quota has room for it. Until its peer is known it may be told to
    /// close.
    fn run_connection<F>(
        &self,
        service: Service,
        peer: Peer,
        connection: impl FnOnce(Acceptor, Rc<Slot>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let slot = match self.quotas.enter(service, peer) {
            Ok(slot) => slot,
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
            let slot = Rc::new(slot);
            let notice = poll_fn(|cx| slot.poll_unserved(cx));
            if let Either::Right(_) = select(pin!(connection(this, slot.clone())), pin!(notice)).await {
                evicted(peer);
            }
            drop(counted);
        });
    }

    /// Recovers after accepting has failed. If descriptors ran out, it frees one by closing the oldest unidentified
    /// connection, or at least refuses the waiting one, so that a flood does not block everybody else.
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

/// Counts one connection until it is dropped.
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

/// Serves a channel. A connection told to close is treated as if its peer had left: requests that have begun finish
/// normally.
async fn converse(channel: Rc<dyn Channel>, slot: Rc<Slot>, member: Member, serve: &Serve) {
    let placed = Rc::new(Placed { channel: channel.clone(), slot: slot.clone(), member });
    let serving = pin!(serve(placed.clone()));
    let displaced = poll_fn(|cx| slot.poll_notice(cx).map(|()| evicted));
    let withholds = poll_fn(|cx| placed.member.poll_notice(cx));
    slot.serve();
    if let Either::Right((told, serving)) = select(serving, select(displaced, withholds)).await {
        match told {
            Either::Left((say, _)) => say(channel.peer()),
            Either::Right((Withheld::Answers, _)) => did_not_read(channel.peer()),
            Either::Right((Withheld::Message { held_bytes }, _)) => {
                did_not_finish(channel.peer(), held_bytes)
            }
        }
        channel.close();
        serving.await;
    }
}

/// Logs a closed connection: others wait for the memory that its answers hold.
fn did_not_read(peer: Peer) {
    static UNREAD: LogLimit = LogLimit::new();
    if let Some(left_out) = UNREAD.pass(rt::now()) {
        let patience = holders::PATIENCE.as_secs();
        tracing::warn!(%peer, "closed: it has read none of its answers for {patience} s, and other connections need their memory{left_out}");
    }
}

/// Logs a closed connection: others wait for the memory of its message.
fn did_not_finish(peer: Peer, held_bytes: usize) {
    static UNFINISHED: LogLimit = LogLimit::new();
    if let Some(left_out) = UNFINISHED.pass(rt::now()) {
        let held_kib = held_bytes >> 10;
        tracing::warn!(%peer, "closed: its message arrives slowly, and other connections need the {held_kib} KiB that it holds{left_out}");
    }
}

/// Logs a connection that was closed in favour of another.
fn evicted(peer: Peer) {
    static EVICTED: LogLimit = LogLimit::new();
    if let Some(left_out) = EVICTED.pass(rt::now()) {
        tracing::warn!(%peer, "closed before its peer was known, in favour of another connection{left_out}");
    }
}

/// Logs a connection that ended before its first message.
fn lost(error: &dyn std::fmt::Display) {
    static LOST: LogLimit = LogLimit::new();
    if let Some(left_out) = LOST.pass(rt::now()) {
        tracing::warn!("a new connection was lost: {error}{left_out}");
    }
}
