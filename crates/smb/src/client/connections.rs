//! The connections of a session: selects one for each request, and handles the loss of one.
//!
//! Spec: [MS-SMB2] 3.2.4.1.7 (selecting), 3.2.4.2.2 (alternate connections), 3.2.7.1 (loss), 3.2.5.12 (replay). Owns
//! the connections and ChannelSequence. It neither makes connections nor finds addresses, and does not replay by
//! itself: the caller repeats its request if [`Connections::goes_on`] says that this makes sense.
//!
//! Payload prefers connections with RDMA, and among equals the one with the fewest bytes in flight. When a connection
//! is lost, ChannelSequence rises before anything is sent again. The server then rejects writes from the lost
//! connection that it has not started, and refuses the replay of a write that it is carrying out until that one has
//! ended.

use std::cell::{Cell, RefCell};
use std::ops::Add;
use std::rc::Rc;

use weft_transport::Traffic;
use weft_wire::smb2::NtStatus;

use super::error::Error;
use super::link::Link;
use super::negotiate::Negotiated;

/// A connection that is bound to the session.
pub(super) struct Connection {
    pub link: Link,
    pub negotiated: Rc<Negotiated>,
    /// Payload bytes of unanswered requests.
    underway: Cell<usize>,
}

/// Payload that counts as in flight until this is dropped.
pub(super) struct Underway<'a>(&'a Connection, usize);

impl Connection {
    pub fn new(link: Link, negotiated: Rc<Negotiated>) -> Rc<Connection> {
        Rc::new(Connection { link, negotiated, underway: Cell::new(0) })
    }

    /// Counts the payload of a request that is about to be sent.
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

/// All connections of one session; never empty.
pub(super) struct Connections {
    live: RefCell<Vec<Rc<Connection>>>,
    /// ChannelSequence, which every request carries.
    sequence: Rc<Cell<u16>>,
    /// Traffic of connections that are gone.
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

    /// Adds a bound connection.
    pub fn add(&self, connection: Rc<Connection>) {
        connection.link.set_sequence(self.sequence.clone());
        self.live.borrow_mut().push(connection);
    }

    /// The live connections, oldest first. The last one stays in the list even when lost, because it holds the error.
    pub fn live(&self) -> Vec<Rc<Connection>> {
        self.live.borrow().clone()
    }

    pub fn len(&self) -> usize {
        self.live.borrow().len()
    }

    /// Number of connections lost so far.
    pub fn lost(&self) -> u32 {
        self.lost.get()
    }

    /// A connection for requests without payload: the oldest live one.
    pub fn any(&self) -> Rc<Connection> {
        self.pick(|_| 0)
    }

    /// A connection for payload: among those with the highest rank, the one with the fewest bytes in flight.
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

    /// Whether a request that failed with this error should be repeated over another connection.
    pub fn goes_on(&self, connection: &Rc<Connection>, error: &Error) -> bool {
        if !error.is_loss() {
            return false;
        }
        self.forget_ended();
        self.live.borrow().iter().any(|other| !Rc::ptr_eq(other, connection) && !other.link.is_ended())
    }

    /// Whether the server asks for the request to be repeated a little later, because its original is still being
    /// carried out (3.2.5.12).
    pub fn is_too_early(&self, error: &Error) -> bool {
        error.status() == Some(NtStatus::FILE_NOT_AVAILABLE) && (self.lost.get() > 0 || self.len() > 1)
    }

    /// Drops connections that have ended (3.2.7.1).
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
                "the session lost a connection; {} left",
                live.len()
            );
        }
    }

    /// The traffic of all connections, including those that are gone.
    pub fn traffic(&self) -> Traffic {
        let live = self.live.borrow();
        live.iter().map(|connection| connection.link.channel().traffic()).fold(self.retired.get(), Add::add)
    }
}
