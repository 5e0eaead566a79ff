//! The connections of a session: which one a request takes, and what becomes of requests when one is lost.
//!
//! Spec: [MS-SMB2] 3.2.4.1.7 (selecting), 3.2.4.2.2 (alternate connections), 3.2.7.1 (loss), 3.2.5.12 (replay).
//! Owns: the connections, ChannelSequence. Does not: make connections or find addresses; nor replay by itself: whoever
//! made a request makes it again when [`Connections::goes_on`] says that this makes sense.
//!
//! Payload goes by RDMA where a connection has it, and among equals to the one with the least underway. When one is
//! lost, ChannelSequence rises before anything is sent again: a write that the server still holds of the lost connection
//! comes too late from then on, and a replay of one that it is carrying out is refused until that has ended.

use std::cell::{Cell, RefCell};
use std::ops::Add;
use std::rc::Rc;

use weft_transport::Traffic;
use weft_wire::smb2::NtStatus;

use super::error::Error;
use super::link::Link;
use super::negotiate::Negotiated;

/// One connection that is bound to the session.
pub(super) struct Connection {
    pub link: Link,
    pub negotiated: Rc<Negotiated>,
    /// Payload bytes of requests that are not answered.
    underway: Cell<usize>,
}

/// Payload that counts as underway until this is dropped.
pub(super) struct Underway<'a>(&'a Connection, usize);

impl Connection {
    pub fn new(link: Link, negotiated: Rc<Negotiated>) -> Rc<Connection> {
        Rc::new(Connection { link, negotiated, underway: Cell::new(0) })
    }

    /// Counts payload of a request that is about to be sent.
    pub fn carry(&self, len: usize) -> Underway<'_> {
        self.underway.set(self.underway.get().saturating_add(len));
        Underway(self, len)
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.0.underway.set(self.0.underway.get().saturating_sub(self.1));
    }
}

/// All connections of one session; never none.
pub(super) struct Connections {
    live: RefCell<Vec<Rc<Connection>>>,
    /// ChannelSequence, as every request carries it.
    sequence: Rc<Cell<u16>>,
    /// What moved over connections that are gone.
    retired: Cell<Traffic>,
    lost: Cell<u32>,
}

impl Connections {
    pub fn new(first: Rc<Connection>) -> Connections {
        let sequence = Rc::<Cell<u16>>::default();
        first.link.set_sequence(sequence.clone());
        Connections {
            live: RefCell::new(vec![first]),
            sequence,
            retired: Cell::default(),
            lost: Cell::new(0),
        }
    }

    /// Adds one that was bound.
    pub fn add(&self, connection: Rc<Connection>) {
        connection.link.set_sequence(self.sequence.clone());
        self.live.borrow_mut().push(connection);
    }

    /// Those that live, oldest first; when the last one is lost it stays, to say why.
    pub fn live(&self) -> Vec<Rc<Connection>> {
        self.live.borrow().clone()
    }

    pub fn len(&self) -> usize {
        self.live.borrow().len()
    }

    /// How many were lost so far.
    pub fn lost(&self) -> u32 {
        self.lost.get()
    }

    /// For requests without payload: the oldest that lives.
    pub fn any(&self) -> Rc<Connection> {
        self.pick(|_| 0)
    }

    /// For payload: of those that rank highest, the one with the least underway.
    pub fn pick(&self, rank: impl Fn(&Connection) -> u32) -> Rc<Connection> {
        self.forget_ended();
        let live = self.live.borrow();
        let better = |best, connection| {
            let (theirs, ours): (&Rc<Connection>, &Rc<Connection>) = (connection, best);
            let by_rank = rank(theirs).cmp(&rank(ours));
            if by_rank.then(ours.underway.get().cmp(&theirs.underway.get())).is_gt() { theirs } else { ours }
        };
        live.iter().reduce(better).expect("the last connection stays").clone()
    }

    /// Whether a request that failed like this is to be made again, by another connection.
    pub fn goes_on(&self, connection: &Rc<Connection>, error: &Error) -> bool {
        if !error.is_loss() {
            return false;
        }
        self.forget_ended();
        self.live.borrow().iter().any(|other| !Rc::ptr_eq(other, connection) && !other.link.is_ended())
    }

    /// Whether an answer says that the request is to be made again, a little later: its original is still being carried
    /// out (3.2.5.12).
    pub fn is_too_early(&self, error: &Error) -> bool {
        error.status() == Some(NtStatus::FILE_NOT_AVAILABLE) && (self.lost.get() > 0 || self.len() > 1)
    }

    /// 3.2.7.1.
    fn forget_ended(&self) {
        let live = &mut *self.live.borrow_mut();
        while live.len() > 1 {
            let Some(i) = live.iter().position(|connection| connection.link.is_ended()) else { return };
            let connection = live.remove(i);
            self.sequence.set(self.sequence.get().wrapping_add(1));
            self.lost.set(self.lost.get().saturating_add(1));
            let channel = connection.link.channel();
            self.retired.set(self.retired.get() + channel.traffic());
            tracing::warn!(
                peer = %channel.peer(),
                medium = channel.medium(),
                "a connection of the session is lost; {} left",
                live.len()
            );
        }
    }

    /// What moved over all of them.
    pub fn traffic(&self) -> Traffic {
        let live = self.live.borrow();
        live.iter().map(|connection| connection.link.channel().traffic()).fold(self.retired.get(), Add::add)
    }
}
