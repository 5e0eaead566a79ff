//! READs whose reply cannot be sent, because a disk fails: they are answered all the same.

use weft_wire::nfs4;
use weft_wire::nfs4::{Op, SequenceOk, Stateid, opnum};

use super::*;
use crate::server::v4::tests::{Answer, Modern, Old, call, read_op, send, write_op};

/// When a medium finds out that it cannot read a file.
#[derive(Clone, Copy, PartialEq)]
enum Finds {
    InSend,
    /// At once, but the caller learns of it from the future.
    BehindSend,
    /// Behind an earlier message that waits for the peer.
    Later,
}

/// A medium that cannot read the files of its next messages.
struct Failing {
    calls: RefCell<VecDeque<Bytes>>,
    replies: RefCell<Vec<Outgoing>>,
    /// Messages with files that fail from now on.
    fails: Cell<usize>,
    finds: Finds,
    outstanding: Rc<Cell<usize>>,
}

impl Channel for Failing {
    without_rdma!();
    fn peer(&self) -> Peer {
        tcp(PEER)
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        let outstanding = self.outstanding.clone();
        Box::pin(async move {
            // The client closes when it has all replies.
            while outstanding.get() > 0 {
                rt::yield_now().await;
            }
            Ok(self.try_recv())
        })
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.calls.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        let is_file = |part: &Part| matches!(part, Part::Payload { data: Payload::File(_), .. });
        let fails = self.fails.get() > 0 && message.parts.iter().any(is_file);
        let outcome = if fails { Err(io::Error::from_raw_os_error(5).into()) } else { Ok(()) };
        match fails {
            true => self.fails.set(self.fails.get() - 1),
            false => self.replies.borrow_mut().push(message),
        }
        match self.finds {
            Finds::InSend => Sending::answered(outcome),
            Finds::BehindSend => Sending::waiting(std::future::ready(outcome)),
            Finds::Later => {
                let outstanding = self.outstanding.clone();
                outstanding.set(outstanding.get() + 1);
                Sending::waiting(async move {
                    rt::yield_now().await;
                    outstanding.set(outstanding.get() - 1);
                    outcome
                })
            }
        }
    }
    fn backlog(&self) -> usize {
        self.outstanding.get()
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

const ALL: [Finds; 3] = [Finds::InSend, Finds::BehindSend, Finds::Later];

/// The replies to these messages, of which the first `fails` that have a file in their reply fail.
fn replies(server: &Server, finds: Finds, fails: usize, messages: &[Bytes]) -> Vec<Bytes> {
    let failing = Rc::new(Failing {
        calls: RefCell::new(messages.iter().cloned().collect()),
        replies: RefCell::default(),
        fails: Cell::new(fails),
        finds,
        outstanding: Rc::default(),
    });
    rt::block_on(server.serve(failing.clone())).unwrap().unwrap();
    assert_eq!(failing.fails.get(), 0);
    failing.replies.take().into_iter().map(stream).collect()
}

#[test]
fn a_read_of_version_3_that_fails_behind_its_answer_gets_an_error_with_attributes() {
    for finds in ALL {
        let server = server();
        let file = make(&server, b"f");
        let data = Bytes::from_static(b"eight by").into();
        let head = WriteHead { file, offset: 0, count: 8, stable: Stable::FileSync };
        let args = WriteArgs { head, data };
        assert_eq!(status_of(&server, procedure::WRITE, &args), Status::OK);
        let read = nfs(procedure::READ, &ReadArgs { file, offset: 0, count: 100 });
        let answers = replies(&server, finds, 1, &[read.clone(), read]);
        assert_eq!(answers.len(), 2);
        // The error comes behind its neighbour, where that was sent first.
        let mut seen = Vec::new();
        for answer in answers {
            let mut d = Decoder::new(answer);
            assert_eq!(Reply::parse(&mut d).unwrap(), (7, Reply::Success));
            let status = Status(d.u32().unwrap());
            seen.push(status);
            let attributes = Option::<Attributes>::parse(&mut d).unwrap().expect("attributes");
            assert_eq!(attributes.size, 8);
            if status == Status::OK {
                assert_eq!((d.u32().unwrap(), d.u32().unwrap()), (8, 1));
                assert_eq!(d.opaque(100).unwrap(), "eight by");
            }
            d.end().unwrap();
        }
        seen.sort_by_key(|status| status.0);
        assert_eq!(seen, [Status::OK, Status::IO]);
    }
}

fn compound(bytes: &Bytes) -> Answer {
    let mut d = Decoder::new(bytes.clone());
    assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::Success);
    let head = nfs4::ReplyHead::parse(&mut d).unwrap();
    Answer { status: head.status, count: head.count, d }
}

#[test]
fn a_read_in_a_session_that_fails_behind_its_answer_gets_an_error_and_so_does_its_repetition() {
    for finds in ALL {
        let server = server();
        let a = Modern::new(&server, "a");
        let (file, stateid) = a.open("f", 3, 0);
        assert_eq!(a.status(file, write_op(stateid, 0, b"eight by")), nfs4::Status::OK);
        let next = |stateid: Stateid| {
            a.sequence.set(a.sequence.get() + 1);
            let ops = [
                a.sequence_op(a.sequence.get(), 0, false),
                Op::Putfh(file),
                read_op(stateid, 0, 100),
                Op::Getattr(nfs4::Bitmap::EMPTY),
            ];
            call(2, 1, &ops)
        };
        let (failing, good) = (next(stateid), next(stateid));
        let error = replies(&server, finds, 1, std::slice::from_ref(&failing)).remove(0);
        let again = replies(&server, finds, 0, &[failing]).remove(0);
        assert_eq!(error, again);
        let mut error = compound(&error);
        assert_eq!((error.status, error.count), (nfs4::Status::IO, 3));
        error.ok::<SequenceOk>(opnum::SEQUENCE);
        error.ok::<()>(opnum::PUTFH);
        assert_eq!(error.next(opnum::READ), nfs4::Status::IO);
        error.end();
        // The slot goes on, and so does the connection.
        let mut read = compound(&replies(&server, finds, 0, std::slice::from_ref(&good)).remove(0));
        assert_eq!((read.status, read.count), (nfs4::Status::OK, 4));
        read.ok::<SequenceOk>(opnum::SEQUENCE);
        read.ok::<()>(opnum::PUTFH);
        assert!(read.ok::<bool>(opnum::READ));
        assert_eq!(read.d.opaque(100).unwrap(), "eight by");
        // What was read is not kept.
        assert_eq!(send(&server, good).status, nfs4::Status::RETRY_UNCACHED_REP);
    }
}

/// An error of the READ would say that what follows was not carried out.
#[test]
fn a_compound_that_changes_something_behind_a_read_that_fails_is_not_said_to_have_ended_there() {
    let server = server();
    let a = Modern::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    assert_eq!(a.status(file, write_op(stateid, 0, b"eight by")), nfs4::Status::OK);
    a.sequence.set(a.sequence.get() + 1);
    let ops = [
        a.sequence_op(a.sequence.get(), 0, false),
        Op::Putfh(file),
        read_op(stateid, 0, 100),
        write_op(stateid, 0, b"other"),
    ];
    let failing = call(2, 1, &ops);
    let mut d = Decoder::new(replies(&server, Finds::Later, 1, std::slice::from_ref(&failing)).remove(0));
    assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::SystemError);
    d.end().unwrap();
    assert_eq!(send(&server, failing).status, nfs4::Status::RETRY_UNCACHED_REP);
}

#[test]
fn a_read_of_minor_version_0_that_fails_behind_its_answer_gets_an_error() {
    let server = server();
    let mut old = Old::new(&server, "old");
    let (file, stateid) = old.open("f", 3, 0);
    assert_eq!(old.status(file, write_op(stateid, 0, b"eight by")), nfs4::Status::OK);
    let read = call(0, 1, &[Op::Putfh(file), read_op(stateid, 0, 3), read_op(stateid, 3, 5)]);
    let answers = replies(&server, Finds::Later, 1, &[read.clone(), read]);
    let mut statuses: Vec<_> =
        answers.iter().map(|bytes| (compound(bytes).status.0, compound(bytes).count)).collect();
    statuses.sort();
    assert_eq!(statuses, [(nfs4::Status::OK.0, 3), (nfs4::Status::IO.0, 2)]);
}
