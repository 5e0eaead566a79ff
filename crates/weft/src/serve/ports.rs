//! The ports of the file services: bound first, because SMB announces them to its clients, and served once the
//! servers exist. This file owns the listeners until they serve.

use std::net::SocketAddr;

use weft_machine::{Listener, Pool, rt};
use weft_nfs::server::{Net, Role, Service};
use weft_rdma::wrap::pcap::Capture;

use super::capture;
use super::error::{CannotListen, Choice, StartError};
use super::rpc::RpcPort;
use crate::addresses::{Addresses, bind_each, port_of};
use crate::config::{CaptureConfig, Key, Plan, key};
use crate::listen::quota::Service as Served;
use crate::listen::{self, Acceptor, Framing, Messages};
use crate::providers;

/// The ports of SMB and NFS.
pub(super) struct FilePorts {
    smb: Vec<Listener>,
    pub smb_rdma: RdmaPort,
    pub nfs: Option<RpcPort>,
    pub mountd: Option<RpcPort>,
    pub rpcbind: Option<RpcPort>,
    pub nfs_rdma: Option<RdmaPort>,
}

impl FilePorts {
    /// Binds every port of the plan, and starts its capture.
    pub(super) async fn bind(plan: &Plan, pool: &Pool) -> Result<FilePorts, StartError> {
        let config = plan.config();
        let listeners = &config.listeners;
        let smb = bind_tcp(plan, (key::SMB_PORT, listeners.smb_port)).await?;
        let rpc = async |role, key, port: Option<u16>| match port {
            Some(port) => RpcPort::bind(plan, pool, role, (key, port)).await.map(Some),
            None => Ok(None),
        };
        let nfs = rpc(Role::Nfs, key::NFS_PORT, listeners.nfs_port).await?;
        let mountd = rpc(Role::Mount, key::MOUNTD_PORT, listeners.mountd_port).await?;
        let rpcbind = rpc(Role::Rpcbind, key::RPCBIND_PORT, listeners.rpcbind_port).await?;
        let folders: Vec<_> = plan.folders().filter_map(|folder| plan.looks.real(folder)).collect();
        let begin = |asked: &CaptureConfig| {
            capture::begin(&config.sources.named(&key::CAPTURE), &asked.file, asked.limit_bytes, &folders)
        };
        let capture = config.rdma.capture.as_ref().map(begin).transpose()?;
        let rdma = async |key, port| RdmaPort::bind(plan, pool, (key, port), capture.as_ref()).await;
        let smb_rdma = rdma(key::SMB_DIRECT_PORT, listeners.smb_direct_port).await?;
        let nfs_rdma = match listeners.nfs_rdma_port {
            Some(port) => Some(rdma(key::NFS_RDMA_PORT, port).await?),
            None => None,
        };
        Ok(FilePorts { smb, smb_rdma, nfs, mountd, rpcbind, nfs_rdma })
    }

    /// SMB's port number.
    pub(super) fn smb_port(&self) -> Option<u16> {
        self.smb.first().map(port_of)
    }

    /// The services to register with rpcbind.
    pub(super) fn services(&self) -> Vec<Service> {
        let rpc = [&self.nfs, &self.mountd, &self.rpcbind].into_iter().flatten();
        let rdma = self.nfs_rdma.iter().flat_map(|rdma| Service::of(Role::Nfs, Net::Rdma, rdma.port));
        rpc.flat_map(RpcPort::services).chain(rdma).collect()
    }

    /// Accepts on all of them. `reached` are the addresses that get answers of any length over UDP.
    pub(super) fn serve(
        self,
        acceptor: &Acceptor,
        plan: &Plan,
        smb: &listen::Serve,
        nfs: &listen::Serve,
        reached: &weft_transport::datagram::Reached,
    ) {
        for listener in self.smb {
            let accepting = acceptor.clone().tcp(listener, Served::Smb, Framing::Nbss, smb.clone());
            rt::spawn(accepting).detach();
        }
        for port in [self.nfs, self.mountd, self.rpcbind].into_iter().flatten() {
            port.serve(acceptor, plan.nfs_tls.clone(), reached, nfs);
        }
        self.smb_rdma.serve(acceptor, Messages::Smbd, smb);
        if let Some(rdma) = self.nfs_rdma {
            rdma.serve(acceptor, Messages::RpcRdma, nfs);
        }
    }
}

/// The TCP listeners of one port.
pub(super) async fn bind_tcp(plan: &Plan, (key, port): (Key, u16)) -> Result<Vec<Listener>, CannotListen> {
    let bound = bind_each(&plan.listen, port, async |addr| Listener::bind(addr), port_of).await;
    let choice = || Choice::port(&key, plan.config().sources.origin_of(&key));
    bound.map_err(|(addr, source)| CannotListen::At { addr, choice: choice(), source })
}

/// The RDMA listeners of one port number.
pub(super) struct RdmaPort {
    pub port: u16,
    /// The providers that listen, each once, in the order in which they are offered.
    pub providers: Vec<&'static str>,
    listeners: Vec<Box<dyn weft_rdma::Listener>>,
}

impl RdmaPort {
    /// Listens with every provider: the first picks the port, the others take the same number.
    async fn bind(
        plan: &Plan,
        pool: &Pool,
        (key, mut port): (Key, u16),
        capture: Option<&Capture>,
    ) -> Result<RdmaPort, CannotListen> {
        let (rdma, congestion) = (&plan.config().rdma, plan.config().limits.congestion.as_deref());
        let (mut names, mut listeners) = (Vec::new(), Vec::new());
        for provider in providers::serving(pool, &rdma.providers, rdma.crc, congestion) {
            let provider = match capture {
                Some(capture) => providers::captured(provider, capture),
                None => provider,
            };
            let name = provider.name();
            let first = plan.listen.first();
            let bind = async |addr: SocketAddr| match provider.listen(addr).await {
                // A device belongs to only some addresses of a host.
                Err(e) if name == "rnic" && addr.ip() != first => {
                    tracing::info!("RDMA provider rnic does not listen on {addr}: {e}");
                    Ok(None)
                }
                bound => bound.map(Some),
            };
            // Shared-memory sockets are named by their port alone.
            let addresses = if name == "shm" { &Addresses::from(first) } else { &plan.listen };
            let port_of = |listener: &Option<Box<dyn weft_rdma::Listener>>| {
                listener.as_ref().map_or(port, |listener| listener.local_addr().port())
            };
            match bind_each(addresses, port, bind, port_of).await {
                Ok(bound) => {
                    let bound: Vec<_> = bound.into_iter().flatten().collect();
                    port = bound.first().map_or(port, |listener| listener.local_addr().port());
                    listeners.extend(bound);
                    names.push(name);
                }
                // Shared memory is an optional extra.
                Err((_, e)) if name == "shm" => tracing::warn!("RDMA provider shm is not served: {e}"),
                Err((addr, e)) if name == "rnic" => {
                    return Err(CannotListen::Device { addr, source: e });
                }
                Err((addr, source)) => {
                    let choice = Choice::port(&key, plan.config().sources.origin_of(&key));
                    return Err(CannotListen::At { addr, choice, source });
                }
            }
        }
        Ok(RdmaPort { port, providers: names, listeners })
    }

    fn serve(self, acceptor: &Acceptor, messages: Messages, serve: &listen::Serve) {
        for listener in self.listeners {
            rt::spawn(acceptor.clone().rdma(listener, messages, serve.clone())).detach();
        }
    }
}
