//! Middleware over providers: the same verbs, with an addition.
//!
//! A [`Layer`] wraps a queue pair; [`Wrapped`] is a provider that applies it to all its connections, made and accepted.
//! [`trace`] counts and logs, [`fault`] refuses, delays and cuts, [`pcap`] captures. Layers do not change the meaning
//! of the verbs; the conformance suite runs over wrapped providers too.

/// Forwards the named methods of a [`QueuePair`] unchanged to the field `inner`.
macro_rules! pass_on {
    ($($method:ident)*) => { $(pass_on_one!($method);)* };
}

macro_rules! pass_on_one {
    (provider) => {
        fn provider(&self) -> &'static str {
            self.inner.provider()
        }
    };
    (caps) => {
        fn caps(&self) -> crate::verbs::Caps {
            self.inner.caps()
        }
    };
    (peer) => {
        fn peer(&self) -> weft_machine::Peer {
            self.inner.peer()
        }
    };
    (register) => {
        fn register(
            &self,
            buf: weft_machine::Buf,
            access: crate::verbs::Access,
        ) -> Result<crate::verbs::Segment, crate::verbs::PostError> {
            self.inner.register(buf, access)
        }
    };
    (register_shared) => {
        fn register_shared(&self, bytes: &bytes::Bytes) -> Option<crate::verbs::Segment> {
            self.inner.register_shared(bytes)
        }
    };
    (invalidate) => {
        fn invalidate(&self, stag: crate::verbs::Stag) -> Option<weft_machine::Buf> {
            self.inner.invalidate(stag)
        }
    };
    (look) => {
        fn look(&self) {
            self.inner.look();
        }
    };
    (stage) => {
        fn stage(&self) -> Option<std::sync::Arc<weft_machine::recorder::Stage>> {
            self.inner.stage()
        }
    };
    (traffic) => {
        fn traffic(&self) -> crate::verbs::Traffic {
            self.inner.traffic()
        }
    };
    (close) => {
        fn close(&self) {
            self.inner.close();
        }
    };
}

pub mod fault;
pub mod pcap;
pub mod trace;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Peer, Pool};

use crate::verbs::{
    Caps, ConnectError, ConnectParams, Connected, Incoming, Listener, Provider, QueuePair, Request, Work,
};

/// Wraps a queue pair. It moves to the core that will own a connection.
pub trait Layer: Clone + Send + 'static {
    /// The queue pair for the user.
    fn layer(&self, inner: Rc<dyn QueuePair>, set_up: &SetUp<'_>) -> Rc<dyn QueuePair>;
}

/// How a connection came about.
#[derive(Clone, Copy, Debug)]
pub struct SetUp<'a> {
    /// Whether this side initiated it.
    pub initiator: bool,
    /// The port of the listener.
    pub port: u16,
    /// Private data of the initiator.
    pub request: &'a Bytes,
    /// Private data of the acceptance.
    pub reply: &'a Bytes,
}

/// A provider with a layer on each of its connections. It reports the name and limits of the inner provider.
#[derive(Clone)]
pub struct Wrapped<L> {
    inner: Rc<dyn Provider>,
    layer: L,
}

impl<L: Layer> Wrapped<L> {
    /// Wraps each connection of `inner` in `layer`.
    pub fn new(inner: Rc<dyn Provider>, layer: L) -> Wrapped<L> {
        Wrapped { inner, layer }
    }
}

impl<L: Layer> Provider for Wrapped<L> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn listen(&self, addr: SocketAddr) -> LocalBoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let inner = self.inner.listen(addr).await?;
            Ok(Box::new(WrappedListener { inner, layer: self.layer.clone() }) as Box<dyn Listener>)
        })
    }

    fn connect(
        &self,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> LocalBoxFuture<'_, Result<Connected, ConnectError>> {
        Box::pin(async move {
            let request = params.private_data.clone();
            let (inner, reply) = self.inner.connect(addr, params).await?;
            let set_up = SetUp { initiator: true, port: addr.port(), request: &request, reply: &reply };
            Ok((self.layer.layer(inner, &set_up), reply))
        })
    }
}

struct WrappedListener<L> {
    inner: Box<dyn Listener>,
    layer: L,
}

impl<L: Layer> Listener for WrappedListener<L> {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn accept(&self) -> LocalBoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(async {
            let inner = self.inner.accept().await?;
            let port = self.inner.local_addr().port();
            Ok(Box::new(WrappedIncoming { inner, layer: self.layer.clone(), port }) as Box<dyn Incoming>)
        })
    }
}

struct WrappedIncoming<L> {
    inner: Box<dyn Incoming>,
    layer: L,
    port: u16,
}

impl<L: Layer> Incoming for WrappedIncoming<L> {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn charge(&mut self, pool: &Pool) {
        self.inner.charge(pool);
    }

    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn Request>, ConnectError>> {
        Box::pin(async move {
            let inner = self.inner.request().await?;
            Ok(Box::new(WrappedRequest { inner, layer: self.layer, port: self.port }) as Box<dyn Request>)
        })
    }
}

struct WrappedRequest<L> {
    inner: Box<dyn Request>,
    layer: L,
    port: u16,
}

impl<L: Layer> Request for WrappedRequest<L> {
    fn private_data(&self) -> &Bytes {
        self.inner.private_data()
    }

    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn accept(
        self: Box<Self>,
        params: ConnectParams,
        recvs: Vec<Work>,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn QueuePair>, ConnectError>> {
        Box::pin(async move {
            let (request, reply) = (self.inner.private_data().clone(), params.private_data.clone());
            let inner = self.inner.accept(params, recvs).await?;
            let set_up = SetUp { initiator: false, port: self.port, request: &request, reply: &reply };
            Ok(self.layer.layer(inner, &set_up))
        })
    }

    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>> {
        self.inner.reject(private_data)
    }
}
