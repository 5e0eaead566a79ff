//! Mounts an export: connects, chooses the version, and explains why an export cannot be mounted.

use std::net::SocketAddr;
use std::rc::Rc;

use futures_util::FutureExt;
use weft_machine::Stream;
use weft_machine::net::{CONNECT_LIMIT, SourcePort, may_reserve};
use weft_nfs::client::{Credential, Error, MAX_LINES, Mount, Options, Status, v4};
use weft_transport::{Channel, record, rpcrdma};
use weft_wire::mount::MountStatus;
use weft_wire::rpc::{AuthStat, Reply};

use super::super::dial::{Dial, Medium};
use super::super::logon::let_in;
use super::super::reach;
use super::flavor::{self, Chosen};
use crate::Failure;
use crate::default_port;
use crate::misuse::Misuse;
use crate::out::shell_word;
use crate::providers;
use crate::url::{NfsVersion, Security, Url};

/// A mount of either version.
pub(super) enum Mounted {
    V3(Mount),
    V4(v4::Mount),
}

/// Calls the method of the same name in either variant.
macro_rules! either {
    ($mounted:expr, $mount:ident => $what:expr) => {
        match $mounted {
            Mounted::V3($mount) => $what,
            Mounted::V4($mount) => $what,
        }
    };
}

pub(super) use either;

/// A mount with its flavor.
pub(super) type Ready = flavor::Mounted<Mounted>;

/// Mounts with the version in the URL, or the best one that the server supports; also returns why, if there was a
/// choice.
pub(super) async fn mount(dial: &Dial<'_>, medium: Medium) -> Result<(Ready, &'static str), Failure> {
    match (dial.url.version, dial.url.mount_port) {
        (Some(NfsVersion::V3), _) => return Ok((mount_v3(dial, medium).await?, "")),
        (None, Some(_)) => {
            return Ok((mount_v3(dial, medium).await?, ", because mountport implies version 3"));
        }
        _ => {}
    }
    let e = match mount_v4(dial, medium).await {
        Ok(mount) => return Ok((mount, "")),
        Err(e) => match e.downcast::<Error>() {
            Ok(e) => e,
            Err(e) => return Err(e),
        },
    };
    let mounting = refused(dial.url, "4.1", &e);
    // If the versions export different trees, MOUNT may find what LOOKUP does not.
    let other = e.is_version() || e.status() == Some(Status::NOENT);
    if dial.url.version.is_some() || !other {
        return Err(mounting.into());
    }
    match mount_v3(dial, medium).await {
        Ok(mount) if e.is_version() => Ok((mount, ", because the server does not support 4.1")),
        Ok(mount) => Ok((mount, ", because the server exports this only to version 3")),
        Err(also) => Err(format!("{mounting}; {also}").into()),
    }
}

async fn mount_v4(dial: &Dial<'_>, medium: Medium) -> Result<Ready, Failure> {
    let path = path(dial.url);
    let offered = async || {
        let (addr, channel) = channel(dial, medium).await?;
        let options = options(dial, flavor::any_ticket(dial.url));
        let asking = async { Ok(v4::offered(channel, &path, options).await?) };
        let_in(dial, medium, addr, None, asking).await
    };
    let attempt = async |chosen: &Chosen| {
        let (addr, channel) = channel(dial, medium).await?;
        let again = lasting(dial)?.map(|connections| (again(dial, medium), connections));
        let options = options(dial, chosen.credential());
        let mounting = async { Ok(v4::Mount::connect(channel, &path, options, again).await?) };
        let_in(dial, medium, addr, None, mounting).await.map(Mounted::V4)
    };
    flavor::mount(dial.url, dial.options, offered, attempt).await
}

async fn mount_v3(dial: &Dial<'_>, medium: Medium) -> Result<Ready, Failure> {
    let path = path(dial.url);
    let offered = async || {
        let (addr, channel) = tcp(dial, dial.url.mount_port.unwrap_or(dial.url.port)).await?;
        let options = options(dial, flavor::ids());
        let asking = async { Ok(weft_nfs::client::flavors(channel, &path, &options).await?) };
        let_in(dial, Medium::Tcp, addr, Some(addr), asking).await
    };
    let attempt = async |chosen: &Chosen| {
        let (addr, channel) = channel(dial, medium).await?;
        let (mountd_addr, mountd) = match dial.url.mount_port {
            Some(port) => tcp(dial, port).await.map(|(addr, mountd)| (Some(addr), mountd))?,
            None => (None, channel.clone()),
        };
        let options = options(dial, chosen.credential());
        let mounting = async { Ok(Mount::connect_with(channel, mountd, &path, options).await?) };
        let mount = let_in(dial, medium, addr, mountd_addr, mounting).await?;
        Ok(Mounted::V3(match lasting(dial)? {
            Some(connections) => mount.keep_connected(again(dial, medium), connections),
            None => mount,
        }))
    };
    let mounted = flavor::mount(dial.url, dial.options, offered, attempt).await;
    mounted.map_err(|e| match e.downcast::<Error>() {
        Ok(e) => refused(dial.url, "3", &e).into(),
        Err(e) => e,
    })
}

/// Why an export cannot be mounted, and what to type.
fn refused(url: &Url, version: &str, e: &Error) -> String {
    let (host, share) = (&url.host, &url.share);
    let none = match e {
        Error::Mount(status) => *status == MountStatus::NOENT,
        e => e.status() == Some(Status::NOENT),
    };
    if let Error::Flavors(offered) = e {
        return format!("export /{share} on {host}: {} (NFSv{version})", flavor::refused(url, offered));
    }
    match none {
        false if matches!(e, Error::Rpc(Reply::AuthError(AuthStat::TOOWEAK))) => {
            let other = Url { security: Some(Security::Krb5p), ..url.clone() };
            format!(
                "export /{share} on {host}: {e} (NFSv{version}); with a Kerberos ticket, write {}",
                shell_word(other.to_string())
            )
        }
        true => {
            format!(
                "no export /{share} on {host} (NFSv{version}); `{}` lists the exports",
                url.server().listing()
            )
        }
        false => format!("export /{share} on {host}: {e} (NFSv{version}){}", about_port(e, may_reserve())),
    }
}

/// Advice if the server refuses because of our source port (exports(5), `secure`).
fn about_port(e: &Error, may_reserve: bool) -> &'static str {
    let refused = |status| e.status() == Some(status);
    let mount = matches!(e, Error::Mount(MountStatus::ACCES | MountStatus::PERM));
    match may_reserve {
        // No other part of a mount fails with this status, and we could not use a reserved port, or RDMA has none.
        _ if refused(Status::PERM) => {
            "; the export requires a reserved port (below 1024): run weft as root, or add `insecure` to the export"
        }
        false if mount || refused(Status::ACCES) => {
            "; if the export requires a reserved port (below 1024): run weft as root, add `insecure` to the export, or show a Kerberos ticket (-k)"
        }
        _ => "",
    }
}

fn path(url: &Url) -> String {
    format!("/{}", url.share)
}

/// How many connections are kept open. `None`: a loss is an error, because a measurement must notice it.
fn lasting(dial: &Dial<'_>) -> Result<Option<usize>, Failure> {
    if dial.congestion.is_some() {
        return Ok(None);
    }
    let connections = dial.options.channels.unwrap_or(1) as usize;
    if connections > MAX_LINES {
        return Err(Misuse::new(format!("--channels {connections}: at most {MAX_LINES}")).into());
    }
    Ok(Some(connections))
}

pub(super) async fn tcp(dial: &Dial<'_>, port: u16) -> Result<(SocketAddr, Rc<dyn Channel>), Failure> {
    let (addr, stream) = dial.tcp(port).await?;
    Ok((addr, record::Record::channel(stream, dial.pool.clone(), record::Config::default())))
}

async fn channel(dial: &Dial<'_>, medium: Medium) -> Result<(SocketAddr, Rc<dyn Channel>), Failure> {
    let Some(provider) = dial.provider(medium)? else { return tcp(dial, dial.url.port).await };
    let connect = async |addr| {
        rpcrdma::connect(provider.as_ref(), addr, rpcrdma::Config::default(), dial.pool.clone()).await
    };
    let port = dial.url.rdma_port.unwrap_or(default_port::NFS_RDMA);
    let connected = dial.rdma(&format!("NFS over RDMA by {}", medium.name()), port, connect).await;
    let (addr, channel) = connected.map_err(|e| match dial.url.rdma_port {
        Some(_) => e,
        None => format!(
            "{e}; if it uses another port, append it to the URL: ?rdmaport=N (weft serve: --nfs-rdma-port)"
        )
        .into(),
    })?;
    Ok((addr, channel))
}

pub(super) fn options(dial: &Dial<'_>, credential: Credential) -> Options {
    Options { credential, pool: dial.pool.clone() }
}

/// Opens further connections like the first.
fn again(dial: &Dial<'_>, medium: Medium) -> weft_nfs::client::Dial {
    let (pool, crc) = (dial.pool.clone(), !dial.options.no_crc);
    let congestion = dial.congestion.map(str::to_owned);
    let port = match medium {
        Medium::Tcp => dial.url.port,
        _ => dial.url.rdma_port.unwrap_or(default_port::NFS_RDMA),
    };
    let addresses = dial.addresses(port);
    Rc::new(move || {
        let (pool, congestion, addresses) = (pool.clone(), congestion.clone(), addresses.clone());
        async move {
            let provider = match medium {
                Medium::Tcp => None,
                Medium::Iwarp => {
                    Some(providers::iwarp_from(SourcePort::Reserved, &pool, crc, congestion.as_deref()))
                }
                Medium::Shm => Some(providers::shm_provider(&pool)),
                Medium::Rnic => Some(providers::rnic_provider(&pool)),
            };
            let connect = async |addr| {
                let Some(provider) = &provider else {
                    let (congestion, source) = (congestion.as_deref(), SourcePort::Reserved);
                    let stream = Stream::connect_from(addr, CONNECT_LIMIT, congestion, source).await?;
                    let channel: Rc<dyn Channel> =
                        record::Record::channel(stream, pool.clone(), record::Config::default());
                    return Ok(channel);
                };
                let config = rpcrdma::Config::default();
                let channel: Rc<dyn Channel> =
                    rpcrdma::connect(provider.as_ref(), addr, config, pool.clone()).await?;
                Ok::<_, weft_transport::Error>(channel)
            };
            let failed = match reach::first(&addresses, connect).await {
                Ok((_, channel)) => return Ok(channel),
                Err(failed) => failed,
            };
            // The first address is the one at which the server was reached.
            Err(failed.into_iter().next().map_or(weft_transport::Error::Closed, |(_, e)| e))
        }
        .boxed_local()
    })
}
