//! A server that answers late, some calls only, or not at all: how long the client waits, and what it reports to the
//! user.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::{self, Sim};
use weft_machine::{Pool, Time, rt};
use weft_transport::{Channel, Message, Outgoing, Sending, Ticket, Traffic};
use weft_wire::nfs3::*;
use weft_wire::rpc::{Call, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::super::{SetAttributes, *};
use super::{MNT, created, emit, fsinfo, mounted, read_ok, written};
use crate::memory::{record, without_rdma};

/// The delay of each procedure's reply; `None` is never.
type Delay = fn(u32) -> Option<Duration>;

/// A connection to it. Replies are sent in sequence.
struct Line {
    /// Reports that its reader waits for memory.
    starved: bool,
    delay: Delay,
    /// Replies under way, each with its time of arrival.
    replies: Rc<RefCell<VecDeque<Bytes>>>,
    reader: Rc<RefCell<Option<Waker>>>,
    gone: Cell<bool>,
}

impl Channel for Line {
    without_rdma!();
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp(([192, 0, 2, 1], 2049).into())
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            None if !self.gone.get() => {
                self.reader.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
            message => Poll::Ready(Ok(message)),
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.replies.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        let call = Call::parse(&mut Decoder::new(record(message))).unwrap();
        let Some(delay) = (self.delay)(call.procedure) else { return Sending::answered(Ok(())) };
        let results = match call.procedure {
            procedure::FSINFO => fsinfo(4096),
            procedure::CREATE => created(),
            procedure::READ => read_ok(b"x", true),
            procedure::WRITE => written(1, 1),
            procedure::NULL => Vec::new(),
            MNT => mounted(),
            _ => emit(&Outcome::<_, WccOnly>::Ok(CommitOk { wcc: WccData::default(), verifier: [1; 8] })),
        };
        let mut e = Encoder::default();
        Reply::Success.emit(call.xid, &mut e);
        let body = Bytes::from([&e.into_bytes()[..], &results].concat());
        let (replies, reader) = (self.replies.clone(), self.reader.clone());
        rt::spawn(async move {
            rt::sleep(delay).await;
            replies.borrow_mut().push_back(body);
            reader.take().into_iter().for_each(Waker::wake);
        })
        .detach();
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn waits_for_memory(&self) -> bool {
        self.starved
    }
    fn close(&self) {
        self.gone.set(true);
        self.reader.take().into_iter().for_each(Waker::wake);
    }
}

fn line(starved: bool, delay: Delay) -> Rc<dyn Channel> {
    Rc::new(Line { starved, delay, replies: Rc::default(), reader: Rc::default(), gone: Cell::new(false) })
}

/// A mount whose connections are dialled again; all behave alike.
async fn mount(delay: Delay) -> Mount {
    mount_of(false, delay).await
}

async fn mount_of(starved: bool, delay: Delay) -> Mount {
    let options = Options { credential: Credential::None, pool: Pool::new(0) };
    let mount = Mount::connect(line(starved, delay), "/x", options).await.unwrap();
    mount.keep_connected(Rc::new(move || async move { Ok(line(starved, delay)) }.boxed_local()), 1)
}

/// Runs a wait that ends the test; returns how many seconds it took. Checks that the user was told of it, each time
/// with the time left.
fn waited(story: impl Future<Output = Time>) -> u64 {
    let ((begun, end), waits) = sim::logged(1, async {
        let begun = story.await;
        (begun, rt::now())
    });
    let waits: Vec<_> = waits.into_iter().filter(|(_, told)| told.contains(" s at most")).collect();
    assert!(!waits.is_empty(), "the user is told");
    for (at, told) in &waits {
        let seconds = told.strip_suffix(" s at most").and_then(|told| told.rsplit(' ').next()).unwrap();
        assert_eq!(seconds.parse::<u64>().unwrap(), (end - *at).as_secs(), "{told}");
    }
    (end - begun).as_secs()
}

/// Mounts and creates a file.
fn begins(procedure: u32) -> Option<Duration> {
    matches!(procedure, procedure::FSINFO | procedure::CREATE | MNT).then_some(Duration::ZERO)
}

#[test]
fn a_server_that_falls_silent_has_one_limit_for_all_connections_together() {
    let seconds = waited(async {
        let mount = mount(begins).await;
        let begun = rt::now();
        assert!(mount.remove("f").await.is_err());
        begun
    });
    assert_eq!(seconds, 90);
}

#[test]
fn a_client_without_memory_for_answers_blames_itself() {
    let seconds = waited(async {
        let mount = mount_of(true, begins).await;
        let begun = rt::now();
        assert!(matches!(mount.remove("f").await, Err(Error::Starved(_))));
        begun
    });
    assert_eq!(seconds, 60);
}

#[test]
fn a_server_that_makes_much_durable_has_longer() {
    let seconds = waited(async {
        let mount = mount(begins).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        let begun = rt::now();
        assert!(file.commit().await.is_err());
        begun
    });
    assert_eq!(seconds, 180);
}

#[test]
fn a_call_that_is_left_unanswered_while_others_are_answered_has_an_end() {
    let seconds = waited(async {
        let some = |procedure| (procedure != procedure::READ).then_some(Duration::ZERO);
        let mount = mount(some).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        let begun = rt::now();
        let others = rt::spawn(async move {
            loop {
                mount.null().await.unwrap();
                rt::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(file.read(0, 1).await.is_err());
        drop(others);
        begun
    });
    assert_eq!(seconds, 90);
}

#[test]
fn what_comes_slowly_and_in_turn_is_waited_for_however_long_it_takes() {
    Sim::new(1).run(async {
        // Each READ is answered after all earlier ones.
        thread_local!(static BEFORE: Cell<u32> = const { Cell::new(0) });
        let slow = |procedure| match procedure {
            procedure::READ => {
                BEFORE.set(BEFORE.get() + 1);
                Some(Duration::from_secs(50) * BEFORE.get())
            }
            other => begins(other),
        };
        let mount = mount(slow).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        let begun = rt::now();
        let reads = (0..8).map(|_| file.read(0, 1));
        futures_util::future::try_join_all(reads).await.unwrap();
        assert_eq!((rt::now() - begun).as_secs(), 400);
        assert_eq!(mount.connections(), (1, 0), "nothing was lost, and asked for again");
    });
}
