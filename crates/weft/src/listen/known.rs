//! A channel whose place among the connections, and whose memory, change when its peer is known.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, File};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Peer, Security, Segment, Sending,
    Traffic,
};

use super::memory::Member;
use super::quota::Place;

/// See the module.
pub(super) struct Placed {
    pub(super) channel: Rc<dyn Channel>,
    pub(super) place: Rc<Place>,
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
            tracing::debug!(peer = %self.peer(), "keeps a stranger's memory: its address holds all that it may");
        }
        if !self.place.admit() {
            tracing::debug!(peer = %self.peer(), "known too late: its place was taken");
        }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        self.channel.recv()
    }
    fn try_recv(&self) -> Option<Message> {
        self.channel.try_recv()
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.channel.send(message)
    }
    fn backlog(&self) -> usize {
        self.channel.backlog()
    }
    fn unacknowledged(&self) -> usize {
        self.channel.unacknowledged()
    }
    fn cork(&self, on: bool) {
        self.channel.cork(on);
    }
    fn fetch(&self, from: Vec<Segment>) -> LocalBoxFuture<'static, Result<Bytes, Error>> {
        self.channel.fetch(from)
    }
    fn fetch_into(&self, from: &[Segment], file: &File, offset: u64) -> Option<io::Result<()>> {
        self.channel.fetch_into(from, file, offset)
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
