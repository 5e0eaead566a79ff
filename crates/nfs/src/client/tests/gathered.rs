//! Calls that follow a batch of replies leave together.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_machine::{Buf, rt};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Segment, Sending, Traffic,
};

use super::*;

/// A medium that takes time: what a server has answered when its reader begins to wait arrives all at once.
struct Slow {
    server: Rc<dyn Channel>,
    arrived: RefCell<VecDeque<Message>>,
    held: RefCell<Vec<Outgoing>>,
    corked: Cell<bool>,
    /// System calls that a socket would have taken, and messages.
    sends: Cell<(u32, u32)>,
}

impl Slow {
    fn new(server: Rc<dyn Channel>) -> Rc<Slow> {
        Rc::new(Slow {
            server,
            arrived: RefCell::default(),
            held: RefCell::default(),
            corked: Cell::default(),
            sends: Cell::default(),
        })
    }

    fn leave(&self, messages: Vec<Outgoing>) {
        if messages.is_empty() {
            return;
        }
        let (times, all) = self.sends.get();
        self.sends.set((times + 1, all + messages.len() as u32));
        messages.into_iter().for_each(|message| drop(self.server.send(message)));
    }
}

impl Channel for Slow {
    fn kind(&self) -> Kind {
        self.server.kind()
    }
    fn medium(&self) -> &'static str {
        self.server.medium()
    }
    fn peer(&self) -> String {
        self.server.peer()
    }
    fn limits(&self) -> Limits {
        self.server.limits()
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| {
            if let Some(message) = self.try_recv() {
                return Poll::Ready(Ok(Some(message)));
            }
            self.cork(false);
            self.arrived.borrow_mut().extend(std::iter::from_fn(|| self.server.try_recv()));
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        self.arrived.borrow_mut().pop_front()
    }
    fn send(&self, message: Outgoing) -> Sending {
        match self.corked.get() {
            true => self.held.borrow_mut().push(message),
            false => self.leave(vec![message]),
        }
        Sending::answered(Ok(()))
    }
    fn cork(&self, on: bool) {
        self.corked.set(on);
        if !on {
            self.leave(self.held.take());
        }
    }
    fn fetch(&self, from: Vec<Segment>) -> LocalBoxFuture<'static, Result<Bytes, Error>> {
        self.server.fetch(from)
    }
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error> {
        self.server.expose(buf, access)
    }
    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        self.server.revoke(exposed)
    }
    fn traffic(&self) -> Traffic {
        self.server.traffic()
    }
    fn close(&self) {
        self.server.close();
    }
}

#[test]
fn calls_that_follow_a_batch_of_replies_leave_together() {
    rt::block_on(async {
        let slow = Slow::new(channel(false, |procedure, _| match procedure {
            procedure::FSINFO => Some(fsinfo(4096)),
            MNT => Some(mounted()),
            procedure::CREATE => Some(created()),
            _ => Some(read_ok(b"x", true)),
        }));
        let mount = Mount::connect(slow.clone(), "/x", options()).await.unwrap();
        let file = &mount.create("f", SetAttributes::default()).await.unwrap();
        let read = |n: u64| async move {
            for _ in 0..n {
                assert_eq!(file.read(0, 1).await.unwrap(), "x");
            }
        };
        slow.sends.set((0, 0));
        join_all((0..8).map(|_| read(10))).await;
        // One by one at first, and as the last of them come to their end.
        let (times, all) = slow.sends.get();
        assert_eq!(all, 80);
        assert!(times <= 8 + 10, "{times} system calls");
        // A call by itself is not held back.
        slow.sends.set((0, 0));
        read(3).await;
        assert_eq!(slow.sends.get(), (3, 3));
    })
    .unwrap();
}
