//! A client whose connection stays, so that the server can call it. Time is virtual.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_machine::sim::{Sim, turns_of_others};
use weft_transport::{Channel, Error, Message, Outgoing, Sending, Ticket, Traffic};

use super::*;
use crate::memory::{record, without_rdma};

/// Runs a story under virtual time.
pub fn story<F: Future>(story: F) -> F::Output {
    Sim::new(1).run(story)
}

/// Two queues, and who waits at each.
#[derive(Default)]
struct Wire {
    to_server: RefCell<VecDeque<Bytes>>,
    to_client: RefCell<VecDeque<Bytes>>,
    server: RefCell<Option<Waker>>,
    client: RefCell<Option<Waker>>,
    closed: Cell<bool>,
}

struct Pipe(Rc<Wire>);

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Channel for Pipe {
    without_rdma!();
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp(([192, 0, 2, 1], 700).into())
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            Some(message) => Poll::Ready(Ok(Some(message))),
            None if self.0.closed.get() => Poll::Ready(Ok(None)),
            None => {
                self.0.server.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.0.to_server.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.0.to_client.borrow_mut().push_back(record(message));
        wake(&self.0.client);
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

/// A connection that is served.
#[derive(Clone)]
pub struct Connection(Rc<Wire>);

impl Connection {
    pub fn new(server: &Arc<Server>) -> Connection {
        let wire = Rc::<Wire>::default();
        let (server, pipe) = (server.clone(), Rc::new(Pipe(wire.clone())));
        rt::spawn(async move { server.serve(pipe).await.unwrap() }).detach();
        Connection(wire)
    }

    pub async fn hang_up(&self) {
        self.0.closed.set(true);
        wake(&self.0.server);
        self.is_silent().await;
    }

    fn send(&self, message: Bytes) {
        self.0.to_server.borrow_mut().push_back(message);
        wake(&self.0.server);
    }

    /// The next message of this kind: a call (0) or a reply (1). Others wait.
    async fn next(&self, kind: u8) -> Bytes {
        let received = poll_fn(|cx| {
            let mut queue = self.0.to_client.borrow_mut();
            match queue.iter().position(|message| message[7] == kind) {
                Some(at) => Poll::Ready(queue.remove(at).unwrap()),
                None => {
                    self.0.client.replace(Some(cx.waker().clone()));
                    Poll::Pending
                }
            }
        });
        rt::timeout(Duration::from_secs(600), received).await.expect("a message")
    }

    pub async fn compound(&self, minor: u32, ops: &[Op]) -> Answer {
        self.send(call(minor, 1, ops));
        let mut d = Decoder::new(self.next(1).await);
        assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::Success);
        let head = ReplyHead::parse(&mut d).unwrap();
        Answer { status: head.status, count: head.count, d }
    }

    /// The server's next question.
    pub async fn asked(&self) -> Asked {
        let mut d = Decoder::new(self.next(0).await);
        let call = Call::parse(&mut d).unwrap();
        assert_eq!((call.version, call.procedure), (CALLBACK_VERSION, CB_COMPOUND));
        let asked = CbCompound::parse(&mut d).unwrap();
        d.end().unwrap();
        let [CbOp::Sequence(sequence), op] = &asked.ops.0[..] else { panic!("{asked:?}") };
        Asked { call, sequence: sequence.clone(), op: op.clone() }
    }

    /// Whether the server asks nothing now.
    pub async fn is_silent(&self) -> bool {
        for _ in 0..16 {
            rt::yield_now().await;
        }
        self.0.to_client.borrow().iter().all(|message| message[7] != 0)
    }

    /// A reply that ends after this many bytes, or continues with garbage.
    pub fn answer_badly(&self, asked: &Asked, bytes: usize) {
        let mut whole = answer_of(asked, Status::BADXDR, |_| ()).to_vec();
        whole.resize(bytes, 0xa5);
        self.send(whole.into());
    }

    /// The client rejects the call.
    pub fn refuse(&self, xid: u32) {
        let mut e = Encoder::default();
        Reply::ProgramUnavailable.emit(xid, &mut e);
        self.send(e.into_bytes());
    }

    /// Answers with this status, and what follows it.
    pub fn answer(&self, asked: &Asked, status: Status, result: impl FnOnce(&mut Encoder)) {
        self.send(answer_of(asked, status, result));
    }
}

fn answer_of(asked: &Asked, status: Status, result: impl FnOnce(&mut Encoder)) -> Bytes {
    let mut e = Encoder::default();
    Reply::Success.emit(asked.call.xid, &mut e);
    CbReplyHead { status, tag: text(""), count: 2 }.emit(&mut e);
    e.u32(cb_opnum::SEQUENCE);
    Status::OK.emit(&mut e);
    let CbSequence { session, sequence, slot, .. } = asked.sequence;
    e.fixed(&session);
    [sequence, slot, 15, 15].into_iter().for_each(|word| e.u32(word));
    e.u32(asked.op.number());
    status.emit(&mut e);
    result(&mut e);
    e.into_bytes()
}

/// A question from the server.
pub struct Asked {
    pub call: Call,
    pub sequence: CbSequence,
    pub op: CbOp,
}

impl Asked {
    pub fn recall(&self) -> &CbRecall {
        let CbOp::Recall(recall) = &self.op else { panic!("{:?}", self.op) };
        recall
    }
}

/// A client with a session whose back channel is the connection.
pub struct Live {
    pub wire: Connection,
    pub session: SessionId,
    pub minor: u32,
    pub sequence: Cell<u32>,
    /// Flags of the last SEQUENCE.
    pub flags: Cell<u32>,
}

impl Live {
    pub async fn new(server: &Arc<Server>, name: &'static str) -> Live {
        Live::with(server, name, session_flag::CONN_BACK_CHAN).await
    }

    pub async fn with(server: &Arc<Server>, name: &'static str, flags: u32) -> Live {
        let wire = Connection::new(server);
        let known: ExchangeIdOk =
            wire.compound(2, &[exchange_id(name, *b"verifier", 0)]).await.ok(opnum::EXCHANGE_ID);
        let Op::CreateSession(args) = create_session(known.client, known.sequence, channel()) else {
            unreachable!("it is one")
        };
        let args = CreateSession { flags, ..args };
        let made: CreateSessionOk =
            wire.compound(2, &[Op::CreateSession(args)]).await.ok(opnum::CREATE_SESSION);
        assert_eq!(made.flags, flags);
        let session = made.session;
        let live = Live { wire, session, minor: 2, sequence: 0.into(), flags: 0.into() };
        assert_eq!(live.run(&[Op::ReclaimComplete(false)]).await.status, Status::OK);
        live
    }

    pub async fn run(&self, ops: &[Op]) -> Answer {
        self.sequence.set(self.sequence.get() + 1);
        let (session, sequence) = (self.session, self.sequence.get());
        let mut all =
            vec![Op::Sequence(Sequence { session, sequence, slot: 0, highest_slot: 0, cache: false })];
        all.extend_from_slice(ops);
        let mut answer = self.wire.compound(self.minor, &all).await;
        self.flags.set(answer.ok::<SequenceOk>(opnum::SEQUENCE).flags);
        answer
    }

    pub async fn at(&self, handle: Handle, op: Op) -> Answer {
        let mut answer = self.run(&[Op::Putfh(handle), op]).await;
        answer.ok::<()>(opnum::PUTFH);
        answer
    }

    /// Opens (and creates) a file.
    pub async fn try_open(
        &self,
        server: &Server,
        name: &str,
        access: u32,
    ) -> Result<(Handle, OpenOk), Status> {
        let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let claim = Claim::Null(text(name));
        let open = Op::Open(Open { seqid: 0, access, deny: 0, owner, how, claim });
        let mut answer = self.run(&[Op::Putfh(root(server)), open, Op::Getfh]).await;
        answer.ok::<()>(opnum::PUTFH);
        if answer.status != Status::OK {
            return Err(answer.status);
        }
        let ok = answer.ok(opnum::OPEN);
        Ok((answer.ok(opnum::GETFH), ok))
    }

    pub async fn open(&self, server: &Server, name: &str, access: u32) -> (Handle, OpenOk) {
        self.try_open(server, name, access).await.unwrap()
    }

    pub async fn close(&self, handle: Handle, stateid: Stateid) {
        assert_eq!(self.at(handle, Op::Close(Close { seqid: 0, stateid })).await.status, Status::OK);
    }
}

/// The cost of an operation depends on what it finds, so none is counted.
#[test]
fn others_have_their_turn_between_the_operations_of_a_compound() {
    let turns = turns_of_others(async {
        let connection = Connection::new(&server());
        let mut ops = vec![Op::Putrootfh];
        ops.extend((0..100).map(|_| Op::Access(1)));
        let answer = connection.compound(0, &ops).await;
        assert_eq!((answer.status, answer.count), (Status::OK, 101));
    });
    assert!(turns >= 25, "{turns}");
}

#[test]
fn others_have_their_turn_between_the_calls_of_a_connection() {
    let turns = turns_of_others(async {
        let connection = Connection::new(&server());
        for _ in 0..60 {
            connection.send(call(0, 1, &[Op::Putrootfh]));
        }
        for _ in 0..60 {
            connection.next(1).await;
        }
    });
    assert!(turns >= 15, "{turns}");
}
