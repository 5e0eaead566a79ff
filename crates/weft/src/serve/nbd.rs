//! Volumes over NBD: opens them, binds their ports, hands connections to the server.
//!
//! Owns: the open volumes, as long as the server lives. Does not: speak NBD (see the `nbd` crate).

use std::path::PathBuf;
use std::sync::Arc;

use weft_machine::{Listener, Pool, rt};
use weft_nbd::{Config, Export, Limits, Server, Tls};
use weft_store::volume::Volume;
use zeroize::Zeroizing;

use crate::args::Serve;
use crate::listen::{Acceptor, ServeStream, unix::PathListener};
use crate::ready::{ReadyNbd, ReadyVolume};
use crate::volume;

/// The port that clients assume.
const NBD_PORT: u16 = 10809;

/// Volumes that are served.
pub(super) struct Nbd {
    server: Arc<Server>,
    /// They are locked until the process ends.
    volumes: Arc<Vec<Volume>>,
    tcp: Option<Listener>,
    unix: Option<PathListener>,
}

impl Nbd {
    /// Opens the volumes of the command line and binds; `None` where there are none.
    pub(super) fn bind(args: &Serve, pool: &Pool) -> Result<Option<Nbd>, String> {
        if args.volume.is_empty() {
            return Ok(None);
        }
        for (i, name) in args.volume.iter().enumerate() {
            if args.volume[..i].contains(name) {
                return Err(format!("volume {name:?} is named twice"));
            }
        }
        let remembered = volume::remembered(args.state_dir.as_deref()).map_err(|e| e.to_string())?;
        let opened =
            args.volume.iter().map(|name| remembered.open(name, pool)).collect::<Result<Vec<_>, _>>();
        let volumes = Arc::new(opened.map_err(|e| e.to_string())?);
        let tcp = match (args.nbd_port, args.nbd) {
            (Some(port), _) => Some(super::bind_tcp(args, port)?),
            (None, true) => Some(super::bind_tcp(args, NBD_PORT)?),
            (None, false) => None,
        };
        let unix = args.nbd_socket.as_ref().map(|path| {
            PathListener::bind(path).map_err(|e| format!("cannot listen on {}: {e}", path.display()))
        });
        let exports = volumes.iter().map(|volume| Export {
            name: volume.name.clone(),
            description: format!("Weft volume, {}", volume::place(&volume.superblock)),
            block: volume.block.clone(),
            read_only: args.nbd_read_only,
        });
        let config = Config {
            exports: exports.collect(),
            pool: pool.clone(),
            tls: tls(args)?,
            limits: Limits::default(),
        };
        Ok(Some(Nbd { server: Server::new(config), volumes, tcp, unix: unix.transpose()? }))
    }

    /// What `ready` says.
    pub(super) fn served(&self, args: &Serve) -> ReadyNbd {
        let volumes = self.volumes.iter().map(|volume| ReadyVolume {
            name: volume.name.clone(),
            kind: volume.superblock.medium.name(),
            source: volume::place(&volume.superblock),
            size: volume.superblock.size,
        });
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        ReadyNbd {
            nbd_tls: args.nbd_tls_cert.is_some(),
            nbd_port: self.tcp.as_ref().map(|tcp| tcp.local_addr().port()),
            nbd_socket: args.nbd_socket.as_ref().map(absolute),
            volumes: volumes.collect(),
        }
    }

    /// Accepts; the volumes stay open with the server's connections.
    pub(super) fn serve(self, acceptor: &Acceptor) -> Serving {
        let Nbd { server, volumes, tcp, unix } = self;
        let for_connections = server.clone();
        let serve: ServeStream = Arc::new(move |stream| {
            let server = for_connections.clone();
            let peer = stream.peer_addr().map_or("a Unix socket".into(), |peer| peer.to_string());
            Box::pin(async move {
                tracing::debug!("NBD from {peer}: connected");
                match server.serve(stream).await {
                    Ok(()) => tracing::debug!("NBD from {peer}: ended"),
                    Err(e) => tracing::warn!("NBD from {peer}: closed: {e}"),
                }
            })
        });
        if let Some(listener) = tcp {
            rt::spawn(acceptor.clone().streams(listener, serve.clone())).detach();
        }
        if let Some(listener) = unix {
            rt::spawn(acceptor.clone().unix_streams(listener, serve)).detach();
        }
        Serving { server, _volumes: volumes }
    }
}

/// TLS, where the command line has a certificate.
fn tls(args: &Serve) -> Result<Option<Tls>, String> {
    let (Some(certificate), Some(key)) = (&args.nbd_tls_cert, &args.nbd_tls_key) else { return Ok(None) };
    let read =
        |path: &PathBuf| std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()));
    let clients = args.nbd_tls_clients.as_ref().map(read).transpose()?;
    let tls = Tls::from_pem(&read(certificate)?, &Zeroizing::new(read(key)?), clients.as_deref());
    tls.map(Some).map_err(|e| format!("no TLS with {} and {}: {e}", certificate.display(), key.display()))
}

/// The server while it serves.
pub(super) struct Serving {
    pub server: Arc<Server>,
    _volumes: Arc<Vec<Volume>>,
}
