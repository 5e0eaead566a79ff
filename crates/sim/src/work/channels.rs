//! Sessions of SMB over two connections, of which one breaks under a request: the client sends the request again over the other.
//!
//! The models hold as if it had been sent once.

use std::cell::RefCell;
use std::rc::Rc;

use weft_machine::Stream;
use weft_transport::nbss;

use super::{Error, Session, Worker, below, ends};
use crate::fragile::Fragile;
use crate::world::{SMB, World, tell};

impl Worker {
    /// A new connection of SMB.
    pub(super) async fn dial_smb(&self) -> Result<Rc<Fragile>, Error> {
        let stream = Stream::connect(SMB).await?;
        Ok(Fragile::new(nbss::Nbss::channel(stream, self.pool.clone(), nbss::Config::default())))
    }

    /// Adds a connection to the session.
    pub(super) async fn add_channel(&mut self, world: &World) {
        let Some(Session::Smb(session, _)) = &self.session else { return };
        if !session.is_multichannel() {
            return;
        }
        let added = async {
            let channel = self.dial_smb().await?;
            ends("a binding", session.add(channel.clone())).await?;
            Ok(channel)
        };
        let added = added.await;
        self.told(world, "adds a connection", &added);
        self.channels.borrow_mut().extend(added);
    }

    /// Adds a connection to a session with one, or lets one of two break under its next request.
    pub(super) async fn change_channels(&mut self, world: &Rc<World>) {
        self.channels.borrow_mut().retain(|channel| !channel.is_broken());
        match &self.session {
            Some(Session::Smb(session, _))
                if session.carriers().len() > 1 && self.channels.borrow().len() > 1 => {}
            _ => return self.add_channel(world).await,
        }
        // Requests without payload go over the first.
        let which = if below(4) == 0 { 1 } else { 0 };
        tell!(world, "{self} is about to lose a connection");
        let (there, number, all) = (world.clone(), self.number, Rc::downgrade(&self.channels));
        self.channels.borrow()[which].will_break(move || {
            tell!(there, "a connection of {number} breaks");
            // A break that needs no acknowledgement may be lost with it.
            there.leases.connection_lost(number);
            there.broken.set(there.broken.get() + 1);
            // The other one may have been about to break as well.
            let broken = |all: Rc<RefCell<Vec<Rc<Fragile>>>>| all.borrow().iter().all(|one| one.is_broken());
            if all.upgrade().is_none_or(broken) {
                there.session_lost(number);
            }
        });
    }

    /// No connection breaks any more.
    pub(super) fn keep_channels(&self) {
        self.channels.borrow().iter().for_each(|channel| channel.is_safe());
    }
}
