//! Callbacks to a client of minor version 0, over a connection that the server makes to the address that the client
//! announces.
//!
//! See RFC 7530 3.4 (the callback path) and 16.33.5 (the address), and RFC 5665 5.2.3 (universal addresses). Only the
//! client's own host is called: a client that could name another host would make the server connect to anything
//! within its reach.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable, LocalBoxFuture};
use weft_machine::{Peer, Pool, Stream, rt};
use weft_transport::{Outgoing, record};
use weft_wire::nfs4::{CALLBACK_VERSION, CB_NULL, NetAddr};
use weft_wire::rpc::{Call, Credential};

use super::state::back::Back;
use crate::server::line::{self, CallbackLine, Heard};
use crate::server::outgoing::ConnectionPermit;

/// How long a client may take to answer CB_NULL.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest reply.
const MAX_ANSWER: usize = 64 << 10;

/// The client's callback address, if it is on the client's own host and uses TCP.
pub(super) fn address(location: &NetAddr, peer: Peer) -> Option<SocketAddr> {
    if !matches!(&*location.netid.0, b"tcp" | b"tcp6") {
        return None;
    }
    let text = std::str::from_utf8(&location.addr.0).ok()?;
    // The last two numbers are the port's bytes.
    let (rest, low) = text.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    let host: IpAddr = host.parse().ok()?;
    let same = peer.ip() == Some(host.to_canonical());
    (same && port != 0).then(|| SocketAddr::new(host, port))
}

/// Makes the connection, in a task on this core. It becomes the back channel once the client answers CB_NULL; then
/// calls `bound`.
pub(super) fn dial(
    back: &Arc<Back>,
    address: SocketAddr,
    pool: Pool,
    permit: ConnectionPermit,
    bound: impl FnOnce() + Send + 'static,
) {
    let (current, ended) = AbortHandle::new_pair();
    // The previous connection ends: a client has one, however often it announces its address.
    back.dialled(current);
    let back = back.clone();
    let task = async move {
        let _permit = permit;
        if let Err(why) = carry(back, address, pool, bound).await {
            tracing::debug!(%address, "no callbacks: {why}");
        }
    };
    rt::spawn(Abortable::new(task, ended).map(drop)).detach();
}

async fn carry(
    back: Arc<Back>,
    address: SocketAddr,
    pool: Pool,
    bound: impl FnOnce() + Send + 'static,
) -> Result<(), String> {
    let stream = Stream::connect_within(address, PATIENCE).await.map_err(|e| e.to_string())?;
    let channel = record::Record::channel(
        stream,
        pool,
        record::Config { max_message: MAX_ANSWER, ..record::Config::default() },
    );
    let line = Arc::new(CallbackLine::default());
    let mut calls = line.join();
    let program = back.route().program;
    let (probed, weak) = (Arc::downgrade(&line), Arc::downgrade(&back));
    let null = |xid, e: &mut _| {
        let credential = Credential::None;
        Call { xid, program, version: CALLBACK_VERSION, procedure: CB_NULL, credential }.emit(e);
    };
    let done = move |heard| {
        if let (Heard::Results(_), Some(line), Some(back)) = (heard, probed.upgrade(), weak.upgrade()) {
            back.bind(&line);
            bound();
        }
    };
    line.call(null, Box::new(done)).map_err(|_| "the line is full")?;
    // The client keeps its back channel alive, not the reverse: when the client is removed, this ends.
    let back = {
        let weak = Arc::downgrade(&back);
        drop(back);
        weak
    };
    let mut receiving: Option<LocalBoxFuture<'_, _>> = None;
    loop {
        let event = poll_fn(|cx| {
            while let Poll::Ready(call) = calls.poll(cx) {
                drop(channel.send(Outgoing::bytes(call)));
            }
            receiving.get_or_insert_with(|| channel.recv()).as_mut().poll(cx)
        });
        let received = match rt::timeout(PATIENCE, event).await {
            Ok(received) => received.map_err(|e| e.to_string())?,
            Err(rt::Elapsed) if back.strong_count() == 0 => return Ok(()),
            Err(rt::Elapsed) => continue,
        };
        receiving = None;
        match received {
            Some(message) if line::is_reply(&message.body) => line.deliver(message.body),
            Some(_) => return Err("the client is called at the announced address".to_owned()),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::nfs4::Text;

    use super::*;

    #[test]
    fn only_the_clients_own_host_is_called() {
        let at = |netid: &'static str, addr: &'static str| NetAddr {
            netid: Text::known(netid),
            addr: Text::known(addr),
        };
        let from = |location: &NetAddr| address(location, Peer::Tcp(([10, 0, 0, 1], 999).into()));
        assert_eq!(from(&at("tcp", "10.0.0.1.3.232")), Some("10.0.0.1:1000".parse().unwrap()));
        for other in [
            at("tcp", "10.0.0.2.3.232"),
            at("udp", "10.0.0.1.3.232"),
            at("tcp", "10.0.0.1.0.0"),
            at("tcp", "10.0.0.1.3.256"),
            at("tcp", "10.0.0.1"),
            at("tcp", ""),
        ] {
            assert_eq!(from(&other), None, "{other:?}");
        }
        let six = address(&at("tcp6", "::1.8.1"), Peer::Tcp("[::1]:7".parse().unwrap()));
        assert_eq!(six, Some("[::1]:2049".parse().unwrap()));
        let mapped = Peer::Tcp("[::ffff:127.0.0.1]:7".parse().unwrap());
        assert!(address(&at("tcp", "127.0.0.1.8.1"), mapped).is_some());
        assert_eq!(address(&at("tcp", "127.0.0.1.8.1"), Peer::Local { uid: 0, pid: Some(1) }), None);
    }
}
