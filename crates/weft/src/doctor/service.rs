//! Uses an RDMA connection once to find the service behind it: SMB Direct, NFS or pings. It does not log on.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use weft_load::verbs::end::End;
use weft_load::verbs::ping;
use weft_machine::{Pool, rt};
use weft_nfs::client as nfs;
use weft_rdma::{ConnectParams, Provider};
use weft_transport::{Channel, rpcrdma, smbd};

use crate::Failure;
use crate::args::Service;

/// Uses the service once; returns the negotiated parameters.
pub(super) async fn try_out(
    service: Service,
    provider: &dyn Provider,
    addr: SocketAddr,
    limit: Duration,
    pool: &Pool,
) -> Result<String, Failure> {
    let tried = rt::timeout(limit, async {
        match service {
            Service::Smb => negotiate(provider, addr, pool).await,
            Service::Nfs => null_call(provider, addr, pool).await,
            Service::Ping => one_round(provider, addr, pool).await,
        }
    });
    tried.await.unwrap_or_else(|rt::Elapsed| Err("no answer in time".into()))
}

async fn negotiate(provider: &dyn Provider, addr: SocketAddr, pool: &Pool) -> Result<String, Failure> {
    let channel = smbd::connect(provider, addr, smbd::Config::default(), pool.clone()).await?;
    let agreed = channel.agreed();
    channel.close();
    Ok(format!(
        "negotiated: sends of {} bytes, receives of {}, messages up to {} KiB, RDMA up to {} KiB at a time, {} credits",
        agreed.max_send,
        agreed.max_receive,
        agreed.max_fragmented_send >> 10,
        agreed.max_read_write >> 10,
        agreed.send_credits,
    ))
}

/// NFS procedure 0 does nothing; even "no such version" proves that the server speaks RPC over RDMA.
async fn null_call(provider: &dyn Provider, addr: SocketAddr, pool: &Pool) -> Result<String, Failure> {
    let channel = rpcrdma::connect(provider, addr, rpcrdma::Config::default(), pool.clone()).await?;
    let outcome = nfs::null(channel.clone()).await;
    channel.close();
    match outcome {
        Ok(()) => Ok("RPC over RDMA: NFSv3 answers".into()),
        Err(nfs::Error::Rpc(reply)) => Ok(format!("RPC over RDMA answers, though not to NFSv3: {reply}")),
        Err(e) => Err(e.into()),
    }
}

async fn one_round(provider: &dyn Provider, addr: SocketAddr, pool: &Pool) -> Result<String, Failure> {
    let (qp, _) = provider.connect(addr, ConnectParams::default()).await?;
    let mut client = ping::Client::new(End::new(qp, pool.clone()), ping::DEFAULT_SIZE)?;
    let time = client.round().await?;
    client.close().await;
    let (size, us) = (ping::DEFAULT_SIZE, time.as_secs_f64() * 1e6);
    Ok(format!("{size} bytes went there by RDMA Read and came back by RDMA Write, unchanged, in {us:.0} us"))
}

/// Private data or foreign bytes in readable form.
pub(super) fn readable(bytes: &Bytes) -> String {
    const SHOWN: usize = 32;
    let dots = if bytes.len() > SHOWN { "..." } else { "" };
    format!("\"{}\"{dots}", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}
