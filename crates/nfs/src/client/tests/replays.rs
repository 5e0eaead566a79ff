//! A mount that reconnects: recovery from a lost connection and from a restarted server.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Pool, rt};
use weft_transport::{Channel, Message, Outgoing, Sending, Ticket, Traffic};
use weft_wire::nfs3::*;
use weft_wire::rpc::{Call, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::super::{SetAttributes, *};
use super::{created, emit, fsinfo, mounted};
use crate::memory::{record, without_rdma};

/// A server behind all connections: a file, the replies sent, and the number of requests.
#[derive(Default)]
struct World {
    /// Calls in order of arrival: xid, procedure, all their bytes.
    seen: RefCell<Vec<(u32, u32, Bytes)>>,
    /// Replies by xid: a repetition gets the same one.
    answered: RefCell<std::collections::HashMap<u32, Vec<u8>>>,
    /// CREATEs, WRITEs and REMOVEs that were carried out.
    done: RefCell<Vec<(u32, u64, Bytes)>>,
    verifier: Cell<u8>,
    /// The connection ends after this many more calls; the last is carried out but not answered.
    until: Cell<usize>,
    dialed: Cell<usize>,
}

struct Line {
    world: Rc<World>,
    replies: RefCell<VecDeque<Message>>,
    gone: Cell<bool>,
}

impl Line {
    fn answer(&self, call: &Call, mut d: Decoder) -> Vec<u8> {
        let world = &self.world;
        let verifier = [world.verifier.get(); 8];
        match call.procedure {
            procedure::FSINFO => fsinfo(4096),
            procedure::CREATE => {
                world.done.borrow_mut().push((call.procedure, 0, Bytes::new()));
                created()
            }
            procedure::WRITE => {
                let args = WriteArgs::parse(&mut d).unwrap();
                let count = args.data.len() as u32;
                world.done.borrow_mut().push((
                    call.procedure,
                    args.head.offset,
                    Bytes::copy_from_slice(args.data.here()),
                ));
                let (wcc, committed) = (WccData::default(), Stable::Unstable);
                emit(&Outcome::<_, WccOnly>::Ok(WriteOk { wcc, count, committed, verifier }))
            }
            procedure::COMMIT => {
                emit(&Outcome::<_, WccOnly>::Ok(CommitOk { wcc: WccData::default(), verifier }))
            }
            procedure::REMOVE => {
                world.done.borrow_mut().push((call.procedure, 0, Bytes::new()));
                emit(&Outcome::<WccOnly, WccOnly>::Ok(WccOnly::default()))
            }
            procedure::NULL => Vec::new(),
            _ => mounted(),
        }
    }
}

impl Channel for Line {
    without_rdma!();
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp(([192, 0, 2, 1], 2049).into())
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        match self.try_recv() {
            None if !self.gone.get() => Box::pin(std::future::pending()),
            message => Box::pin(std::future::ready(Ok(message))),
        }
    }
    fn try_recv(&self) -> Option<Message> {
        self.replies.borrow_mut().pop_front()
    }
    fn send(&self, message: Outgoing) -> Sending {
        if self.gone.get() {
            return Sending::answered(Err(weft_transport::Error::Closed));
        }
        let body = record(message);
        let mut d = Decoder::new(body.clone());
        let call = Call::parse(&mut d).unwrap();
        self.world.seen.borrow_mut().push((call.xid, call.procedure, body));
        let known = self.world.answered.borrow().get(&call.xid).cloned();
        let results = known.unwrap_or_else(|| self.answer(&call, d));
        self.world.answered.borrow_mut().insert(call.xid, results.clone());
        let left = self.world.until.get();
        self.world.until.set(left.wrapping_sub(1));
        if left == 1 {
            self.gone.set(true);
            return Sending::answered(Ok(()));
        }
        let mut e = Encoder::default();
        Reply::Success.emit(call.xid, &mut e);
        let body = Bytes::from([&e.into_bytes()[..], &results].concat());
        self.replies.borrow_mut().push_back(Message { body, detached: None, ticket: Ticket::default() });
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic { sent: (1, 1), ..Traffic::default() }
    }
    fn close(&self) {
        self.gone.set(true);
    }
}

fn line(world: &Rc<World>) -> Rc<dyn Channel> {
    Rc::new(Line { world: world.clone(), replies: RefCell::default(), gone: Cell::new(false) })
}

/// A mount that dials its connections again.
async fn mount(world: &Rc<World>, lines: usize) -> Mount {
    let options = Options { credential: Credential::None, pool: Pool::new(0) };
    let mount = Mount::connect(line(world), "/x", options).await.unwrap();
    let again = world.clone();
    let dial: Dial = Rc::new(move || {
        again.dialed.set(again.dialed.get() + 1);
        let made = line(&again);
        async move { Ok(made) }.boxed_local()
    });
    mount.keep_connected(dial, lines)
}

#[test]
fn a_call_that_was_not_answered_is_asked_again_in_the_same_words_and_done_once() {
    rt::block_on(async {
        let world = Rc::new(World::default());
        let mount = mount(&world, 1).await;
        world.seen.borrow_mut().clear();
        // The next call is carried out, and its reply lost.
        world.until.set(1);
        mount.remove("f").await.unwrap();
        {
            let seen = world.seen.borrow();
            let [first, again] = &seen[..] else { panic!("{} calls", seen.len()) };
            assert_eq!(first, again, "the same xid, the same bytes");
        }
        assert_eq!(world.done.borrow().len(), 1);
        assert_eq!((mount.connections(), world.dialed.get()), ((1, 1), 1));
        // The traffic of the lost connection counts.
        assert_eq!(mount.traffic().sent, (2, 2));
    })
    .unwrap();
}

#[test]
fn what_a_restarted_server_has_lost_is_written_again_in_order() {
    rt::block_on(async {
        let world = Rc::new(World::default());
        let mount = mount(&world, 1).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        world.done.borrow_mut().clear();
        file.write(0, Bytes::from_static(b"one")).await.unwrap();
        file.write(1, Bytes::from_static(b"two")).await.unwrap();
        // The server restarts: uncommitted data and the reply cache are lost.
        world.verifier.set(1);
        world.done.borrow_mut().clear();
        world.answered.borrow_mut().clear();
        world.until.set(1);
        file.write(2, Bytes::from_static(b"new")).await.unwrap();
        file.commit().await.unwrap();
        let done: Vec<_> =
            world.done.borrow().iter().map(|(_, offset, data)| (*offset, data.clone())).collect();
        // The repetition of the third was answered from the cache. The first two are written again, and so is the
        // third, because they may overlap it.
        let expected = [(2, "new"), (0, "one"), (1, "two"), (2, "new")];
        assert_eq!(done, expected.map(|(offset, data)| (offset, Bytes::from_static(data.as_bytes()))));
        // After a commit, nothing is held.
        world.done.borrow_mut().clear();
        world.verifier.set(2);
        file.commit().await.unwrap();
        assert!(world.done.borrow().is_empty());
    })
    .unwrap();
}

#[test]
fn calls_take_turns_on_several_connections() {
    rt::block_on(async {
        let world = Rc::new(World::default());
        let mount = mount(&world, 3).await;
        for _ in 0..7 {
            mount.null().await.unwrap();
        }
        assert_eq!((mount.connections(), world.dialed.get()), ((3, 0), 2));
        // One connection ends: the others continue, and it is dialled again.
        world.until.set(1);
        for _ in 0..6 {
            mount.null().await.unwrap();
        }
        assert_eq!((mount.connections(), world.dialed.get()), ((3, 1), 3));
        mount.close();
    })
    .unwrap();
}

#[test]
fn what_a_server_says_wrongly_is_not_asked_again() {
    rt::block_on(async {
        let world = Rc::new(World::default());
        let options = Options { credential: Credential::None, pool: Pool::new(0) };
        let mount = Mount::connect(line(&world), "/x", options).await.unwrap();
        let dials = Rc::new(Cell::new(0));
        let count = dials.clone();
        let mount = mount.keep_connected(
            Rc::new(move || {
                count.set(count.get() + 1);
                async { Err(weft_transport::Error::Malformed("not a server")) }.boxed_local()
            }),
            1,
        );
        world.until.set(1);
        assert!(matches!(mount.null().await, Err(Error::Channel(_))));
        assert_eq!(dials.get(), 1);
    })
    .unwrap();
}
