//! NSM: clients notify us of their restarts, and we notify clients that held locks of ours.
//!
//! See X/Open XNFS chapter 11 and RFC 1813 6.1. `monitors` remembers which hosts held locks; `nlm` verifies a
//! reported restart. MON is not served: monitoring for other programs of this host is the task of its own status
//! monitor.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use weft_machine::rt;
use weft_wire::nsm::{Change, Name, StatAnswer, procedure};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder, Xdr};

use super::Server;
use super::context::{Context, Results, args};
use super::monitors::name_for;
use super::nlm;

/// Hosts notified of our restart at a time: half of the allowed calls. An unreachable host takes five seconds, so a
/// thousand of them still let all others be notified within a grace period.
const AT_ONCE: usize = 128;
/// How often an unreachable host is called, and the pause between the rounds.
const ROUNDS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);
/// STAT's reply: this host does not monitor on behalf of the caller.
const STAT_FAIL: u32 = 1;

/// Answers a call.
pub(super) async fn answer(
    cx: &Context<'_>,
    number: u32,
    mut d: Decoder,
    mut body: Encoder,
) -> Result<Results, Reply> {
    match number {
        procedure::NULL => {}
        procedure::STAT => {
            let Name { .. } = args(&mut d)?;
            StatAnswer { result: STAT_FAIL, state: cx.server.monitors.state }.emit(&mut body);
        }
        procedure::NOTIFY => {
            let Change { name, state } = args(&mut d)?;
            nlm::restarted(cx, &name, Some(state)).await?;
        }
        _ => return Err(Reply::ProcedureUnavailable),
    }
    Ok(Results::new(body, None))
}

/// Notifies the hosts that held locks in the last run that this run has begun.
pub(super) async fn notify(server: &Server) {
    let hosts = server.monitors.before.clone();
    let unreached =
        rounds(hosts, async |host| tell(server, host).await, async || rt::sleep(PAUSE).await).await;
    for host in unreached {
        tracing::warn!(%host, "cannot reach a host's status monitor; the host may lose its locks");
    }
}

/// Calls all hosts, then again those that could not be reached: an unreachable host delays others only by its call.
/// Returns those that were never reached.
async fn rounds(
    mut hosts: Vec<IpAddr>,
    tell: impl AsyncFn(IpAddr) -> bool,
    pause: impl AsyncFn(),
) -> Vec<IpAddr> {
    for round in 0..ROUNDS {
        if hosts.is_empty() {
            break;
        }
        if round > 0 {
            pause().await;
        }
        let tell = &tell;
        let told = hosts.into_iter().map(async |host| (!tell(host).await).then_some(host));
        hosts = stream::iter(told).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
    }
    hosts
}

/// Returns whether the host was notified, or cannot be.
async fn tell(server: &Server, host: IpAddr) -> bool {
    let Some(name) = name_for(server, host) else { return true };
    let change = Change { name, state: server.monitors.state };
    let told = nlm::notify(&nlm::callback_target(server, host), &change).await;
    match &told {
        Ok(()) => tracing::debug!(%host, "was told to reclaim its locks"),
        Err(e) => tracing::debug!(%host, "was not told to reclaim its locks: {e}"),
    }
    told.is_ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn hosts_that_are_switched_off_are_told_again_when_all_others_were_told() {
        let hosts: Vec<IpAddr> = (1..=200).map(|n| Ipv4Addr::new(10, 0, 0, n).into()).collect();
        let (live, late) = (hosts[199], hosts[0]);
        let said = RefCell::new(Vec::new());
        let pauses = RefCell::new(Vec::new());
        let tell = async |host| {
            said.borrow_mut().push(host);
            let again = said.borrow().iter().filter(|told| **told == host).count();
            host == live || (host == late && again == 2)
        };
        let pause = async || pauses.borrow_mut().push(said.borrow().len());
        let unreached = rt::block_on(rounds(hosts.clone(), tell, pause)).unwrap();
        assert_eq!(*pauses.borrow(), [200, 200 + 199], "all once, then those that did not hear it");
        assert_eq!(said.borrow()[..200], hosts);
        assert_eq!((said.borrow().len(), unreached.len()), (200 + 199 + 198, 198));
        assert!(!unreached.contains(&live) && !unreached.contains(&late));
    }
}
