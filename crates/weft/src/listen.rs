//! Accept loops: each new connection goes to a core and stays there.
//!
//! Owns: the listening sockets. Does not: speak a protocol; it makes a channel and hands it to a service.

mod rdma_memory;
pub(crate) mod unix;

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::net::{Socket, Tls};
use weft_machine::{Listener, Pool, Stream, rt};
use weft_rdma::{Incoming, Request};
use weft_transport::strangers::{self, Strangers};
use weft_transport::{Channel, Error, datagram, nbss, record, rpcrdma, smbd};

/// Connections at a time, of all kinds together. More are closed at once, with a line in the log.
const MAX_CONNECTIONS: usize = 8192;

/// What a service does with one connection, on the core that owns it.
pub(crate) type Serve =
    Arc<dyn Fn(Rc<dyn Channel>) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

/// The same for a protocol that takes the byte stream as it is.
pub(crate) type ServeStream =
    Arc<dyn Fn(Stream) -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync + 'static>;

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
    /// Buffers for what peers send before they are known.
    pub strangers: Pool,
    /// TCP congestion control of what is accepted on TCP ports.
    pub congestion: Option<Arc<str>>,
    /// How many connections there are.
    pub connections: Arc<AtomicUsize>,
    /// When accepting ends.
    pub stop: Stop,
}

/// Tells the accept loops, on whatever core, to end. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Stop {
    /// Ends them.
    pub(crate) fn stop(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        let waiting = std::mem::take(&mut state.1);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Runs `future` unless it is time to end: then `None`.
    pub(crate) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let stopped = std::future::poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    pub(crate) async fn tcp(self, listener: Listener, framing: Framing, serve: Serve) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(listener.accept()).await {
            match accepted {
                Ok(socket) => {
                    let (serve, framing) = (serve.clone(), framing.clone());
                    self.place(move |this| async move {
                        let stream = match Stream::from_socket(socket) {
                            Ok(stream) => stream,
                            Err(e) => return tracing::warn!("a new connection was lost: {e}"),
                        };
                        let channel: Rc<dyn Channel> = match framing {
                            Framing::Nbss => {
                                if let Err(e) = stream.set_unacknowledged_limit(SILENCE) {
                                    tracing::warn!(
                                        "TCP waits for a lost peer as long as the system does: {e}"
                                    );
                                }
                                let config = nbss::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: this.strangers,
                                    max_message: strangers::LOGON_MESSAGE,
                                    limit: strangers::LOGON,
                                };
                                nbss::Nbss::of_stranger(stream, this.pool, config, terms)
                            }
                            Framing::Record(tls) => {
                                let config = record::Config { gather: true, ..Default::default() };
                                let terms = Strangers {
                                    pool: this.strangers,
                                    // What a client repeats on a new connection may be its longest WRITE.
                                    max_message: config.max_message,
                                    limit: strangers::FIRST_CALL,
                                };
                                match record::accept(stream, tls.as_ref(), this.pool, config, terms).await {
                                    Ok(channel) => channel,
                                    Err(e) => return tracing::warn!("an RPC connection was lost: {e}"),
                                }
                            }
                        };
                        serve(channel).await;
                    });
                }
                Err(e) => pause(&e).await,
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
                Err(e) => pause(&e).await,
            }
        }
    }

    /// Accepts TCP connections as byte streams until it is stopped.
    pub(crate) async fn streams(self, listener: Listener, serve: ServeStream) {
        self.tune(&listener);
        while let Some(accepted) = self.stop.or(listener.accept()).await {
            match accepted {
                Ok(socket) => self.stream(socket, &serve),
                Err(e) => pause(&e).await,
            }
        }
    }

    /// Accepts connections to a Unix socket until it is stopped; the socket's file goes with the listener.
    pub(crate) async fn unix_streams(self, listener: unix::PathListener, serve: ServeStream) {
        while let Some(accepted) = self.stop.or(listener.accept()).await {
            match accepted {
                Ok(socket) => self.stream(socket, &serve),
                Err(e) => pause(&e).await,
            }
        }
    }

    fn stream(&self, socket: Socket, serve: &ServeStream) {
        let serve = serve.clone();
        self.place(move |_| async move {
            match Stream::from_socket(socket) {
                Ok(stream) => serve(stream).await,
                Err(e) => tracing::warn!("a new connection was lost: {e}"),
            }
        });
    }

    /// Accepts RDMA connections until it is stopped; the socket file of shared memory goes with the listener.
    pub(crate) async fn rdma(self, listener: Box<dyn weft_rdma::Listener>, messages: Messages, serve: Serve) {
        let memory = rdma_memory::RdmaMemory::new(&self.pool);
        while let Some(accepted) = self.stop.or(listener.accept()).await {
            match accepted {
                Ok(incoming) => {
                    let (serve, memory) = (serve.clone(), memory.clone());
                    self.place(move |_| async move {
                        let member = memory.join(&incoming.peer());
                        match establish(incoming, messages, member.pool.clone()).await {
                            Ok(channel) => serve(channel).await,
                            Err(e) => tracing::warn!("an RDMA connection was not established: {e}"),
                        }
                    });
                }
                Err(e) => pause(&e).await,
            }
        }
    }

    /// Runs `connection` on the next core, counted.
    fn place<F>(&self, connection: impl FnOnce(Acceptor) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return tracing::warn!("refused a connection: {MAX_CONNECTIONS} are open");
        }
        let this = self.clone();
        self.cores.run(self.cores.next(), move || async move {
            let counted = Counted(this.connections.clone());
            connection(this).await;
            drop(counted);
        });
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
        Messages::Smbd => smbd::accept(request, smbd::Config::default(), pool).await?,
        Messages::RpcRdma => rpcrdma::accept(request, rpcrdma::Config::default(), pool).await?,
    })
}

/// Accepting fails when descriptors run out: say so and let connections end.
async fn pause(error: &std::io::Error) {
    tracing::warn!("accepting connections: {error}; trying again in a second (is `ulimit -n` too small?)");
    rt::sleep(std::time::Duration::from_secs(1)).await;
}
