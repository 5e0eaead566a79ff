//! Long replies that nobody reads: few are made, their bytes are the pool's, and the address has a part of that.

use weft_machine::buf::MAX_BUF;
use weft_store::{Exists, Make, SetAttr};
use weft_wire::nfs4::{self, Bitmap, Op, Readdir};

use super::*;
use crate::server::v4::tests::{call, root};

/// A peer that has sent calls and reads no reply until it is told to.
struct Unread {
    calls: RefCell<VecDeque<Bytes>>,
    replies: RefCell<Vec<Outgoing>>,
    room: Option<Pool>,
    reads: Cell<bool>,
    gone: Cell<bool>,
}

impl Unread {
    fn of(calls: Vec<Bytes>, room: Option<Pool>) -> Rc<Unread> {
        let calls = RefCell::new(calls.into());
        Rc::new(Unread {
            calls,
            replies: RefCell::default(),
            room,
            reads: Cell::new(false),
            gone: Cell::new(false),
        })
    }

    /// The number of calls not received, and the bytes of the replies.
    fn stands(&self) -> (usize, usize) {
        (self.calls.borrow().len(), self.replies.borrow().iter().map(Outgoing::memory_bytes).sum())
    }
}

impl Channel for Unread {
    without_rdma!();
    fn peer(&self) -> Peer {
        tcp(PEER)
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(std::future::ready(Ok(self.try_recv())))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.calls.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.replies.borrow_mut().push(message);
        if self.gone.get() {
            return Sending::answered(Err(Error::Closed));
        }
        match self.reads.get() {
            true => Sending::answered(Ok(())),
            false => Sending::waiting(std::future::pending()),
        }
    }
    fn unsent_bytes(&self) -> usize {
        if self.reads.get() { 0 } else { self.stands().1 }
    }
    fn has_ended(&self) -> bool {
        self.gone.get()
    }
    fn answers(&self) -> Option<Pool> {
        self.room.clone()
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

/// A server with a folder whose listing takes several replies.
fn with_long_folder() -> Arc<Server> {
    let server = server();
    for i in 0..600 {
        let (vfs, name) = (&server.vfs(0), format!("{i:0200}"));
        let made = vfs.create(NodeId::ROOT, name.as_bytes(), Make::File, Exists::Fail, SetAttr::default());
        rt::block_on(made).unwrap().unwrap();
    }
    server
}

fn listing(server: &Server) -> Bytes {
    let args =
        ReaddirArgs { dir: handle_of(server, 0, NodeId::ROOT), cookie: 0, verifier: [0; 8], count: 1 << 16 };
    nfs(nfs3::procedure::READDIR, &args)
}

fn compound_of_listings(server: &Server) -> Bytes {
    let readdir = Readdir {
        cookie: 0,
        verifier: [0; 8],
        dircount: 1 << 16,
        maxcount: 1 << 16,
        attributes: Bitmap::EMPTY,
    };
    let mut ops = vec![Op::Putfh(root(server))];
    ops.extend(vec![Op::Readdir(readdir); 10]);
    call(0, 0, &ops)
}

/// Serves until nothing moves any more.
async fn serve(server: &Arc<Server>, peer: &Rc<Unread>) -> rt::Task<Result<(), Error>> {
    let (server, channel) = (server.clone(), peer.clone());
    let serving = rt::spawn(async move { server.serve(channel).await });
    rt::sleep(std::time::Duration::from_secs(1)).await;
    serving
}

#[test]
fn long_replies_that_nobody_reads_are_few_and_lie_in_the_pool() {
    let server = with_long_folder();
    // A compound of ten listings is 640 KiB.
    let cases = [(listing(&server), 200_000), (compound_of_listings(&server), 1_400_000)];
    Sim::new(1).run(async {
        for (calls, most) in cases {
            let peer = Unread::of(vec![calls; 300], None);
            let serving = serve(&server, &peer).await;
            let (left, bytes) = peer.stands();
            assert!(left > 290, "{left} calls are left");
            assert!((60_000..most).contains(&bytes), "{bytes} bytes of replies");
            let held = server.pool.in_use_bytes();
            assert!(held >= bytes, "{held} of {bytes} bytes are the pool's");
            drop(serving);
            peer.replies.take();
            assert_eq!(server.pool.in_use_bytes(), 0);
        }
    });
}

#[test]
fn calls_of_a_client_that_has_gone_are_not_carried_out_for_nobody() {
    let server = with_long_folder();
    let calls = vec![compound_of_listings(&server); 300];
    Sim::new(1).run(async {
        let peer = Unread::of(calls, None);
        peer.reads.set(true);
        peer.gone.set(true);
        let served = serve(&server, &peer).await.await;
        assert!(served.is_ok(), "{served:?}");
        assert_eq!((peer.stands().0, peer.replies.borrow().len()), (299, 0));
    });
}

#[test]
fn a_listing_waits_for_room_and_a_compound_that_has_some_says_that_it_goes_on_later() {
    let server = with_long_folder();
    let null = nfs(nfs3::procedure::NULL, &());
    let calls = vec![listing(&server), compound_of_listings(&server), null];
    Sim::new(1).run(async {
        let room = server.pool.share(MAX_BUF);
        let taken = room.try_alloc(MAX_BUF).unwrap();
        let peer = Unread::of(calls, Some(room.clone()));
        peer.reads.set(true);
        let serving = serve(&server, &peer).await;
        // The last call needs no room.
        assert_eq!(peer.replies.borrow().len(), 1);
        // Both have room for one listing.
        drop(taken);
        let rest: Vec<_> = (0..63).map(|_| room.try_alloc(1 << 18)).collect();
        assert!(serving.await.is_ok());
        let replies = peer.replies.take();
        assert_eq!(replies.len(), 3);
        let statuses: Vec<_> = replies[1..].iter().map(status).collect();
        assert_eq!(statuses, [Status::OK.0, nfs4::Status::DELAY.0]);
        drop((replies, rest));
        assert_eq!(room.in_use_bytes(), 0);
    });
}

/// Others wait for what a call holds or was granted, whatever its client does.
#[test]
fn calls_go_on_while_their_client_reads_nothing() {
    let server = with_long_folder();
    let getattr = nfs(nfs3::procedure::GETATTR, &handle_of(&server, 0, NodeId::ROOT));
    let calls = std::iter::once(listing(&server)).chain(vec![getattr; 1000]).collect();
    Sim::new(1).run(async {
        let room = server.pool.share(MAX_BUF);
        let taken = room.try_alloc(MAX_BUF).unwrap();
        let peer = Unread::of(calls, Some(room.clone()));
        let serving = serve(&server, &peer).await;
        let (left, bytes) = peer.stands();
        assert!(left > 0 && bytes > 60_000, "it waits with {left} calls for {bytes} bytes to be taken");
        drop(taken);
        rt::sleep(std::time::Duration::from_secs(1)).await;
        let last = peer.replies.borrow().last().map(Outgoing::memory_bytes);
        assert!(last.is_some_and(|bytes| bytes > 50_000), "the listing is made");
        assert_eq!(peer.stands().0, left, "nothing is received");
        drop(serving);
    });
}

/// The status of the call or compound.
fn status(reply: &Outgoing) -> u32 {
    let Part::Bytes(bytes) = &reply.parts[0] else { panic!("{reply:?}") };
    let mut d = Decoder::new(bytes.clone());
    assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::Success);
    d.u32().unwrap()
}
