//! Volumes over NBD: binds the ports and hands connections to the server. The `nbd` crate speaks NBD.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{Listener, LogLimit, Pool, rt};
use weft_nbd::{Config, Export, Limits, Server, Tls, Watch};

use super::error::CannotListen;
use super::ports::bind_tcp;
use super::status;
use super::volumes::Served;
use crate::addresses::port_of;
use crate::config::{Plan, key};
use crate::listen::quota::Service;
use crate::listen::{Acceptor, ServeStream, unix::PathListener};
use crate::ready::ReadyNbd;
use crate::volume;

/// The part of the buffers that incoming WRITEs of all clients may use, so that clients that send slowly do not delay
/// other protocols.
const RECEIVED_PART: usize = 4;

/// The served volumes.
pub(super) struct Nbd {
    server: Arc<Server>,
    /// One per address; empty if NBD is not served over TCP.
    tcp: Vec<Listener>,
    unix: Option<PathListener>,
}

impl Nbd {
    /// Binds; `None` if no option asks for NBD.
    pub(super) async fn bind(
        plan: &Plan,
        pool: &Pool,
        volumes: &[Served],
    ) -> Result<Option<Nbd>, CannotListen> {
        let listeners = &plan.config().listeners;
        let tcp = match listeners.nbd_port {
            Some(port) => bind_tcp(plan, (key::NBD_PORT, port)).await?,
            None => Vec::new(),
        };
        let unix = listeners.nbd_socket.as_ref().map(|path| {
            PathListener::bind(path).map_err(|source| CannotListen::Socket { path: path.clone(), source })
        });
        let unix = unix.transpose()?;
        if tcp.is_empty() && unix.is_none() {
            return Ok(None);
        }
        let exports = volumes.iter().map(|served| Export {
            name: served.name().to_owned(),
            description: format!("Weft volume, {}", volume::place(served.superblock())),
            block: served.block(),
            read_only: served.read_only(),
        });
        let server = server(exports.collect(), pool, plan.nbd_tls.clone());
        Ok(Some(Nbd { server, tcp, unix }))
    }

    /// NBD's part of `ready`, except for the volumes.
    pub(super) fn served(&self, plan: &Plan) -> ReadyNbd {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        ReadyNbd {
            nbd_tls: plan.nbd_tls.is_some(),
            nbd_port: self.tcp.first().map(port_of),
            nbd_socket: plan.config().listeners.nbd_socket.as_ref().map(absolute),
        }
    }

    /// Accepts connections.
    pub(super) fn serve(self, acceptor: &Acceptor) -> Arc<Server> {
        let Nbd { server, tcp, unix } = self;
        let serve = service(&server);
        for listener in tcp {
            rt::spawn(acceptor.clone().streams(listener, Service::Nbd, serve.clone())).detach();
        }
        if let Some(listener) = unix {
            rt::spawn(acceptor.clone().unix_streams(listener, Service::Nbd, serve)).detach();
        }
        server
    }
}

/// A server of these volumes.
pub(super) fn server(exports: Vec<Export>, pool: &Pool, tls: Option<Tls>) -> Arc<Server> {
    Server::new(Config {
        exports,
        pool: pool.clone(),
        received: pool.share(pool.limit_bytes() / RECEIVED_PART),
        tls,
        limits: Limits::default(),
    })
}

/// Serves its connections, and lists them in `weft status`.
pub(super) fn service(server: &Arc<Server>) -> ServeStream {
    let server = server.clone();
    Arc::new(move |stream, slot| {
        let server = server.clone();
        let peer = stream.peer().to_string();
        let transport = if stream.peer().addr().is_some() { "tcp" } else { "unix" };
        Box::pin(async move {
            tracing::debug!("NBD from {peer}: connected");
            let watch = Rc::new(Watch::with_notice(move || {
                slot.admit();
            }));
            let _entry = status::show_nbd(peer.clone(), transport, &watch);
            match server.serve_watched(stream, &watch).await {
                Ok(()) => tracing::debug!("NBD from {peer}: ended"),
                Err(e) => {
                    static CLOSED: LogLimit = LogLimit::new();
                    if let Some(left_out) = CLOSED.pass(rt::now()) {
                        tracing::warn!("NBD from {peer}: closed: {e}{left_out}");
                    }
                }
            }
        })
    })
}
