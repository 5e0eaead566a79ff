//! Test failover: a writable picture of a copy, served over NBD of its own, while replication goes on.
//!
//! Owns: the pictures, what they differ by (files without a name in the journal's folder), and their server. Does not:
//! survive the server, or listen anywhere but on 127.0.0.1: NBD knows no passwords.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weft_machine::{File, Listener, Stream, rt};
use weft_nbd::{Config, Export, Limits, Server};
use weft_replica::destination::Destination;
use weft_store::block::{Block, Medium};
use weft_store::volume::plain::Plain;

use super::group::Group;
use super::{Member, Replicas};
use crate::listen::Stop;

/// Pictures that are served; they end when this is dropped.
pub(super) struct Picture {
    /// Where they are served.
    pub uris: Vec<String>,
    server: Arc<Server>,
    stop: Stop,
}

impl Drop for Picture {
    fn drop(&mut self) {
        self.stop.stop();
        self.server.drain();
    }
}

/// Takes pictures of all volumes of a copy at one moment, and serves them.
pub(super) async fn take(replicas: &Replicas, group: &Group, copy: &Destination) -> Result<Picture, String> {
    let store = |size: u64| -> std::io::Result<Arc<dyn Block>> {
        let file = tempfile::tempfile_in(replicas.folder.path())?;
        file.set_len(size)?;
        Ok(Arc::new(Plain::new(File::from(OwnedFd::from(file)), None, Medium::File, size)))
    };
    let stores = copy.status().sizes.into_iter().map(store).collect::<Result<Vec<_>, _>>();
    let stores = stores.map_err(|e| format!("no room for what the picture differs by: {e}"))?;
    let blocks = copy.snapshot(stores).await.map_err(|e| e.to_string())?;
    let exports = group.members.iter().zip(blocks).map(|(member, block)| Export {
        name: member.name.clone(),
        description: "a picture of a copy, which goes with its test".into(),
        block,
        read_only: false,
    });
    let config = Config {
        exports: exports.collect(),
        pool: replicas.pool.clone(),
        received: replicas.pool.clone(),
        tls: None,
        limits: Limits::default(),
    };
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .map_err(|e| format!("the picture cannot be served: {e}"))?;
    let port = listener.local_addr().port();
    let (server, stop, cores) = (Server::new(config), Stop::default(), replicas.cores.clone());
    let uri = |member: &Arc<Member>| format!("nbd://127.0.0.1:{port}/{}", member.name);
    let uris = group.members.iter().map(uri).collect();
    let picture = Picture { uris, server: server.clone(), stop: stop.clone() };
    rt::spawn(async move {
        while let Some(accepted) = stop.or(listener.accept()).await {
            let socket = match accepted {
                Ok(socket) => socket,
                Err(e) => return tracing::warn!("the picture of a copy is not served any more: {e}"),
            };
            let server = server.clone();
            cores.run(cores.next(), move || async move {
                let served = match Stream::from_socket(socket) {
                    Ok(stream) => server.serve(stream).await.map_err(|e| e.to_string()),
                    Err(e) => Err(e.to_string()),
                };
                if let Err(e) = served {
                    tracing::debug!("NBD of a picture: closed: {e}");
                }
            });
        }
    })
    .detach();
    Ok(picture)
}
