//! A channel whose quota slot and memory change when its peer is identified.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, Pool};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Peer, RemotePayload, Security, Segment,
    Sending, Stages, Traffic,
};

use super::memory::Member;
use super::quota::Slot;

/// See the module.
pub(super) struct Placed {
    pub(super) channel: Rc<dyn Channel>,
    pub(super) slot: Rc<Slot>,
    pub(super) member: Member,
}

impl Channel for Placed {
    fn kind(&self) -> Kind {
        self.channel.kind()
    }
    fn medium(&self) -> &'static str {
        self.channel.medium()
    }
    fn peer(&self) -> Peer {
        self.channel.peer()
    }
    fn limits(&self) -> Limits {
        self.channel.limits()
    }
    fn security(&self) -> Option<Security> {
        self.channel.security()
    }
    fn authenticated(&self) {
        self.channel.authenticated();
        if !self.member.admit() {
            tracing::debug!(peer = %self.peer(), "keeps unidentified peer's memory: its address has reached its limit");
        }
        if !self.slot.admit() {
            tracing::debug!(peer = %self.peer(), "identified too late: its slot was given away");
        }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        self.member.settle();
        self.channel.recv()
    }
    fn try_recv(&self) -> Option<Message> {
        self.channel.try_recv()
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.member.settle();
        self.channel.send(message)
    }
    fn backlog(&self) -> usize {
        self.channel.backlog()
    }
    fn unsent_bytes(&self) -> usize {
        self.channel.unsent_bytes()
    }
    fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }
    fn answers(&self) -> Option<Pool> {
        Some(self.member.answers())
    }
    fn unacknowledged(&self) -> usize {
        self.channel.unacknowledged()
    }
    fn stages(&self) -> Stages {
        self.channel.stages()
    }
    fn cork(&self, on: bool) {
        self.channel.cork(on);
    }
    fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
        self.channel.remote(from)
    }
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error> {
        self.channel.expose(buf, access)
    }
    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        self.channel.revoke(exposed)
    }
    fn traffic(&self) -> Traffic {
        self.channel.traffic()
    }
    fn close(&self) {
        self.channel.close();
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::buf::MAX_BUF;
    use weft_machine::{Listener, Stream, rt};
    use weft_transport::record;

    use super::super::memory::Memory;
    use super::super::quota::{Quotas, Service};
    use super::*;

    #[test]
    fn a_connection_that_found_no_room_when_its_peer_logged_on_finds_it_later() {
        rt::block_on(async {
            let pool = Pool::new(64 * MAX_BUF);
            let memory = Memory::new(&pool, &pool.for_strangers());
            let listener = Listener::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let stream = Stream::connect(listener.local_addr()).await.unwrap();
            let peer = Peer::Rdma("10.0.0.1:1".parse().unwrap());
            let slot = Rc::new(Quotas::new(64).enter(Service::Smb, peer).ok().unwrap());
            let channel = record::Record::channel(stream, pool.clone(), record::Config::default());
            let placed = Placed { channel, slot, member: memory.join_rdma(peer) };
            let own = placed.member.rdma();
            let takes = || std::iter::from_fn(|| own.try_alloc(MAX_BUF)).collect::<Vec<_>>().len();
            let first = own.try_alloc(4096).unwrap();
            drop(placed.recv());
            assert_eq!(takes(), 1, "nobody knows it yet");
            let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(MAX_BUF)).collect();
            placed.authenticated();
            drop(placed.recv());
            assert_eq!(takes(), 1, "there is no room");
            drop(held);
            drop(placed.recv());
            assert_eq!(takes(), 15, "a quarter of the pool, of which it holds something");
            drop(first);
        })
        .unwrap();
    }
}
