//! Logs on to an SMB server and enters a share, over the transport that suits both.
//!
//! A Weft server reports its RDMA endpoints over TCP; other servers are assumed to use the standard port.

use std::net::SocketAddr;

use weft_smb::client::{Endpoint, Error, Options, Session, Tree, Wish};
use weft_wire::smb2::{Guid, NtStatus};

use crate::Failure;
use crate::args::Transport;
use crate::connect::RemoteShare;
use crate::connect::channels::{self, Keeper};
use crate::connect::dial::{Dial, Medium};
use crate::connect::logon::let_in;
use crate::connect::reach::authority;
use crate::default_port;
use crate::url::Url;

/// A session connected to a share.
pub(in crate::connect) struct Entered {
    pub session: Session,
    pub tree: Tree,
    /// Maintains the connections.
    pub keeper: Keeper,
    pub medium: Medium,
    pub reason: &'static str,
}

/// Logs on, and connects to the share of the URL.
pub(in crate::connect) async fn enter(dial: &Dial<'_>, password: &str) -> Result<Entered, Failure> {
    let (mut announced, mut asked): (Vec<Endpoint>, _) = (Vec::new(), None);
    let wants_tcp = dial.options.transport == Transport::Tcp;
    if !wants_tcp && dial.url.rdma_port.is_none() {
        // Asks over TCP. A server that does not know the question has no RDMA that we could find by asking.
        let to = (Medium::Tcp, 0);
        let (_, session) = log_on(dial, to, None, password).await.map_err(|e| named_for(dial, e))?;
        asked = Some(session.describe().server_guid);
        match session.endpoints().await {
            Ok(endpoints) => announced = endpoints,
            Err(e) if e.status().is_some() => tracing::debug!("the server announces no endpoints: {e}"),
            Err(e) => return Err(e.into()),
        }
        session.logoff().await?;
    }
    let announced = |medium: Medium| -> Option<u16> {
        announced.iter().find(|e| e.kind == medium.name()).and_then(|e| e.address.parse().ok())
    };
    // An iWARP device and our own iWARP interoperate.
    let port_of = |medium: Medium| {
        let alike = match medium {
            Medium::Rnic => announced(Medium::Iwarp),
            Medium::Iwarp => announced(Medium::Rnic),
            Medium::Tcp | Medium::Shm => None,
        };
        dial.url.rdma_port.or_else(|| announced(medium)).or(alike)
    };
    // A port in the URL does not imply that devices reach it, and an attempt without answer costs seconds.
    let worth_trying = |medium| match medium {
        Medium::Rnic => announced(medium).is_some(),
        _ => dial.url.rdma_port.or_else(|| announced(medium)).is_some(),
    };
    let mut last: Option<Failure> = None;
    for (medium, reason) in dial.choices(worth_trying) {
        let port = port_of(medium).unwrap_or(default_port::SMB_DIRECT);
        // A shared-memory socket is named by a port alone, so the server's identity must be checked.
        let server = asked.filter(|_| medium == Medium::Shm);
        match log_on(dial, (medium, port), server, password).await {
            Ok((addr, session)) => {
                let tree = enter_share(&session, dial).await?;
                let keeper = Keeper::new(dial, medium, addr);
                keeper.fill(&session).await;
                return Ok(Entered { session, tree, keeper, medium, reason });
            }
            // If the server has refused, no other transport is tried.
            Err(e) if e.downcast_ref::<Error>().is_some_and(|e| e.status().is_some()) => {
                return Err(named_for(dial, e));
            }
            Err(e) => {
                tracing::debug!("by {}: {e}", medium.name());
                last = Some(named_for(dial, e));
            }
        }
    }
    Err(last.unwrap_or_else(|| "no transport to try".into()))
}

/// The shares of a server, asked over TCP, without hidden ones.
pub(in crate::connect) async fn shares(dial: &Dial<'_>, password: &str) -> Result<Vec<RemoteShare>, Failure> {
    let to = (Medium::Tcp, 0);
    let (_, session) = log_on(dial, to, None, password).await.map_err(|e| named_for(dial, e))?;
    let shares = session.shares().await?;
    session.logoff().await?;
    let shown = shares.into_iter().filter(|share| share.is_disk && !share.hidden);
    Ok(shown.map(|share| RemoteShare { name: share.name, remark: share.remark }).collect())
}

/// `server`: the ServerGuid that must answer.
async fn log_on(
    dial: &Dial<'_>,
    (medium, port): (Medium, u16),
    server: Option<Guid>,
    password: &str,
) -> Result<(SocketAddr, Session), Failure> {
    let port = if medium == Medium::Tcp { dial.url.port } else { port };
    let (addr, channel) = channels::open(dial, medium, port).await?;
    let mut options = Options::new(&dial.url.host, &dial.url.user, password, dial.pool.clone());
    options.server = server;
    if dial.options.sign {
        options.signing = Wish::Required;
    }
    options.compression = dial.options.compress;
    let oldest = dial.options.min_dialect.unwrap_or(weft_smb::server::Dialect::V3_0);
    options.dialects = oldest..=*options.dialects.end();
    options.kerberos = dial.options.kerberos;
    if dial.options.encrypt {
        options.encryption = Wish::Required;
    }
    let logging_on = async { Ok(Session::connect(channel, options).await?) };
    Ok((addr, let_in(dial, medium, addr, None, logging_on).await?))
}

/// Adds the user and the server to a failed log-on.
fn named_for(dial: &Dial<'_>, failure: Failure) -> Failure {
    let Some(e) = failure.downcast_ref::<Error>() else { return failure };
    let Url { host, user, port, .. } = dial.url;
    match user.is_empty() {
        true => format!("{}: {e}", authority(host, *port)).into(),
        false => format!("{user} at {}: {e}", authority(host, *port)).into(),
    }
}

/// Connects to the share of the URL.
async fn enter_share(session: &Session, dial: &Dial<'_>) -> Result<Tree, Failure> {
    session.tree(&dial.url.share).await.map_err(|e| match e.status() {
        Some(status) => share_refused(dial.url, status, &e).into(),
        None => Failure::from(e),
    })
}

/// Why the server lets a user who has logged on not into the share of the URL.
fn share_refused(url: &Url, status: NtStatus, e: &Error) -> String {
    let Url { host, user, share, .. } = url;
    match status {
        NtStatus::BAD_NETWORK_NAME => {
            format!("no share {share} on {host}; `{}` lists the shares", url.server().listing())
        }
        NtStatus::ACCESS_DENIED => {
            format!("share {share} on {host}: {user} may not use it, or it requires --encrypt")
        }
        _ => format!("share {share} on {host}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::smb2::Command;

    use super::*;

    #[test]
    fn a_share_that_lets_nobody_in_is_named_with_the_reason_and_what_to_type() {
        let url = Url::parse("smb://alice@nas:4450/data/x").unwrap().unwrap();
        let said =
            |status| share_refused(&url, status, &Error::Status { command: Command::TreeConnect, status });
        let none = said(NtStatus::BAD_NETWORK_NAME);
        assert_eq!(none, "no share data on nas; `weft ls smb://alice@nas:4450` lists the shares");
        let denied = said(NtStatus::ACCESS_DENIED);
        assert_eq!(denied, "share data on nas: alice may not use it, or it requires --encrypt");
        let other = said(NtStatus::INSUFFICIENT_RESOURCES);
        assert!(
            other.starts_with("share data on nas: ") && other.contains("INSUFFICIENT_RESOURCES"),
            "{other}"
        );
        assert!(!other.contains("TreeConnect"), "{other}");
    }
}
