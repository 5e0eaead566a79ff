//! Middleware over providers: the same verbs, with something done on the way.
//!
//! What: a [`Layer`] puts a queue pair around a queue pair; [`Wrapped`] is the provider whose connections, made and
//! accepted, all have it. [`trace`] counts and logs, [`fault`] refuses, delays and cuts.
//! Owns: nothing but its layers. Does not: change what the verbs mean; the conformance suite runs over wrapped ones too.

pub mod fault;
pub mod trace;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use crate::verbs::{
    Caps, ConnectError, ConnectParams, Connected, Incoming, Listener, Provider, QueuePair, Request, Work,
};

/// Puts a queue pair around a queue pair. Moves to the core that will own a connection.
pub trait Layer: Clone + Send + 'static {
    /// The queue pair that the user gets.
    fn layer(&self, inner: Rc<dyn QueuePair>) -> Rc<dyn QueuePair>;
}

/// A provider with a layer on each of its connections. Looks like the provider inside.
#[derive(Clone)]
pub struct Wrapped<L> {
    inner: Rc<dyn Provider>,
    layer: L,
}

impl<L: Layer> Wrapped<L> {
    /// `inner` with `layer` on each connection.
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
            let (inner, private_data) = self.inner.connect(addr, params).await?;
            Ok((self.layer.layer(inner), private_data))
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
            Ok(Box::new(WrappedIncoming { inner, layer: self.layer.clone() }) as Box<dyn Incoming>)
        })
    }
}

struct WrappedIncoming<L> {
    inner: Box<dyn Incoming>,
    layer: L,
}

impl<L: Layer> Incoming for WrappedIncoming<L> {
    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn Request>, ConnectError>> {
        Box::pin(async move {
            let inner = self.inner.request().await?;
            Ok(Box::new(WrappedRequest { inner, layer: self.layer }) as Box<dyn Request>)
        })
    }
}

struct WrappedRequest<L> {
    inner: Box<dyn Request>,
    layer: L,
}

impl<L: Layer> Request for WrappedRequest<L> {
    fn private_data(&self) -> &Bytes {
        self.inner.private_data()
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn accept(
        self: Box<Self>,
        params: ConnectParams,
        recvs: Vec<Work>,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn QueuePair>, ConnectError>> {
        Box::pin(async move {
            let inner = self.inner.accept(params, recvs).await?;
            Ok(self.layer.layer(inner))
        })
    }

    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>> {
        self.inner.reject(private_data)
    }
}
