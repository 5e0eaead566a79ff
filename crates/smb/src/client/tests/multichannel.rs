//! Sessions of several connections: which connection carries what, and nothing lost or doubled when one is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{LocalBoxFuture, join_all};
use weft_machine::sim::{self, Sim};
use weft_machine::{Buf, rt};
use weft_transport::{Access, Channel, Exposed, Kind, Limits, Message, Outgoing, Segment, Sending, Traffic};
use weft_wire::smb2::{Command, Dialect, Header};

use super::super::*;
use super::own::Own;
use super::story;

/// A connection that a test can cut, silence, or hold up.
pub(super) struct FaultyChannel {
    inner: Rc<dyn Channel>,
    /// Holds what the client sends instead of sending it.
    held: RefCell<Option<Vec<Outgoing>>>,
    pub(super) silent: Cell<bool>,
    cut: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    /// MessageIds of the SESSION_SETUPs that the client sent.
    setups: RefCell<Vec<u64>>,
    /// The connection is cut after this many more messages of the client.
    left: Cell<Option<u32>>,
}

impl FaultyChannel {
    pub(super) fn new(inner: Rc<dyn Channel>) -> Rc<FaultyChannel> {
        Rc::new(FaultyChannel {
            inner,
            held: RefCell::new(None),
            silent: Cell::new(false),
            cut: Cell::new(false),
            reader: RefCell::default(),
            setups: RefCell::default(),
            left: Cell::new(None),
        })
    }

    /// The client sees the connection end; the server does not yet.
    pub(super) fn cut(&self) {
        self.cut.set(true);
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn hold(&self) {
        self.held.replace(Some(Vec::new()));
    }

    /// Delivers what was held.
    fn release(&self) {
        for message in self.held.take().unwrap_or_default() {
            drop(self.inner.send(message));
        }
    }
}

impl Channel for FaultyChannel {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }
    fn medium(&self) -> &'static str {
        self.inner.medium()
    }
    fn peer(&self) -> weft_transport::Peer {
        self.inner.peer()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        let mut receiving = self.inner.recv();
        Box::pin(std::future::poll_fn(move |cx| {
            if self.cut.get() {
                return std::task::Poll::Ready(Err(std::io::Error::from(
                    std::io::ErrorKind::ConnectionReset,
                )
                .into()));
            }
            self.reader.replace(Some(cx.waker().clone()));
            match receiving.as_mut().poll(cx) {
                std::task::Poll::Ready(Ok(Some(_))) if self.silent.get() => {
                    // Swallowed, and nothing else arrives.
                    std::task::Poll::Pending
                }
                polled => polled,
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        self.inner.try_recv().filter(|_| !self.silent.get() && !self.cut.get())
    }
    fn send(&self, message: Outgoing) -> Sending {
        if let Some(weft_transport::Part::Bytes(bytes)) = message.parts.first()
            && let Ok(header) = Header::parse(bytes)
            && header.command == Command::SessionSetup
        {
            self.setups.borrow_mut().push(header.message_id);
        }
        if let Some(left) = self.left.get() {
            self.left.set(left.checked_sub(1));
            if left == 0 {
                self.cut();
            }
        }
        if self.cut.get() {
            return Sending::answered(Err(weft_transport::Error::Closed));
        }
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.push(message);
            return Sending::answered(Ok(()));
        }
        self.inner.send(message)
    }
    fn cork(&self, on: bool) {
        self.inner.cork(on);
    }
    fn remote(&self, from: Vec<Segment>) -> Box<dyn weft_transport::RemotePayload> {
        self.inner.remote(from)
    }
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, weft_transport::Error> {
        self.inner.expose(buf, access)
    }
    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        self.inner.revoke(exposed)
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn close(&self) {
        // A held message must stay deliverable.
        if self.held.borrow().is_none() {
            self.inner.close();
        }
    }
}

pub(super) async fn tcp(own: &Own) -> Rc<FaultyChannel> {
    FaultyChannel::new(own.tcp().await)
}

fn pattern(len: usize, seed: u64) -> Bytes {
    story::pattern(len, seed).into()
}

#[test]
fn two_connections_share_the_payload() {
    for (dialect, encryption) in [
        (Dialect::V3_0, Wish::IfRequired),
        (Dialect::V3_0_2, Wish::Required),
        (Dialect::V3_1_1, Wish::IfRequired),
        (Dialect::V3_1_1, Wish::Required),
    ] {
        for signing in [Wish::IfRequired, Wish::Required] {
            Sim::new(41).run(async {
                let own = Own::new(|_| {});
                let options = Options { dialects: dialect..=dialect, encryption, signing, ..own.options() };
                let session = Session::connect(tcp(&own).await, options).await.unwrap();
                let tree = session.tree("data").await.unwrap();
                session.add(tcp(&own).await).await.unwrap();
                story::tell(&session, "data").await.unwrap();
                let file = tree.open("f", OpenOptions::create()).await.unwrap();
                let data = pattern(8 << 20, 7);
                let blocks = (0..8)
                    .map(|n| file.write(n << 20, data.slice((n as usize) << 20..(n as usize + 1) << 20)));
                join_all(blocks).await.into_iter().for_each(|written| written.unwrap());
                assert_eq!(file.read(0, 8 << 20).await.unwrap(), data);
                assert_eq!(own.server.session_count(), 1);
                let carriers = session.carriers();
                assert_eq!(carriers.len(), 2);
                for carrier in carriers {
                    assert!(carrier.traffic.sent.0 > 2 << 20, "{dialect} {:?}", session.carriers());
                }
                assert!(session.describe().to_string().ends_with(", 2 connections"));
                session.logoff().await.unwrap();
            });
        }
    }
}

/// The session's key signs binding requests on every connection, and their MessageIds are the nonces.
#[test]
fn no_two_bindings_use_the_same_message_ids() {
    Sim::new(46).run(async {
        let own = Own::new(|_| {});
        let first = tcp(&own).await;
        let session = Session::connect(first.clone(), own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let mut used = Vec::new();
        for _ in 0..6 {
            let channel = tcp(&own).await;
            session.add(channel.clone()).await.unwrap();
            used.append(&mut channel.setups.borrow_mut());
        }
        assert_eq!(used, (1..=12).collect::<Vec<u64>>());
        // The reserved ids are used afterwards: no window stalls.
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        for n in 0..3000u64 {
            file.write(n * 512, pattern(512, n)).await.unwrap();
        }
        for n in 0..3000u64 {
            assert_eq!(file.read(n * 512, 512).await.unwrap(), pattern(512, n));
        }
        story::tell(&session, "data").await.unwrap();
    });
}

#[test]
fn payload_prefers_rdma_and_goes_on_without_it() {
    Sim::new(42).run(async {
        let own = Own::new(|_| {});
        let session = Session::connect(tcp(&own).await, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        let (between, _) = own.rdma();
        let rdma = FaultyChannel::new(between);
        session.add(rdma.clone()).await.unwrap();
        let data = pattern(3 << 20, 1);
        file.write(0, data.clone()).await.unwrap();
        let buf = file.write_buf(3 << 20, own.pool.buf_from(&data).unwrap()).await.unwrap();
        assert_eq!(session.traffic().sent.0, session.carriers()[0].traffic.sent.0, "payload by RDMA alone");
        // In the middle of a buffer that should move by RDMA.
        rdma.left.set(Some(0));
        let buf = file.write_buf(6 << 20, buf).await.unwrap();
        assert_eq!(buf[..], data[..]);
        assert_eq!((session.carriers().len(), session.lost_connections()), (1, 1));
        for at in [0, 3 << 20, 6 << 20] {
            assert_eq!(file.read(at, 3 << 20).await.unwrap(), data, "at {at}");
        }
        file.close().await.unwrap();
    });
}

/// Copies with verification while connections are cut at every possible message, and new ones are added.
#[test]
fn nothing_is_lost_or_doubled_when_connections_are_cut_in_the_middle() {
    for cut_after in 0..40 {
        Sim::new(100 + u64::from(cut_after)).run(async move {
            let own = Own::new(|_| {});
            let first = tcp(&own).await;
            let session = Session::connect(first.clone(), own.options()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("f", OpenOptions::create()).await.unwrap();
            session.add(tcp(&own).await).await.unwrap();
            first.left.set(Some(cut_after));
            let data = pattern(1 << 20, 3);
            let blocks = (0..16u64).map(|n| {
                let (file, data) = (file.clone(), data.slice((n as usize) << 16..(n as usize + 1) << 16));
                async move {
                    // Versions of one block, each acknowledged before the next is written: the last one must win.
                    for version in 0..3u8 {
                        file.write(n << 16, vec![version; 1 << 16].into()).await?;
                    }
                    file.write(n << 16, data).await
                }
            });
            join_all(blocks).await.into_iter().for_each(|written| written.unwrap());
            assert_eq!(file.read(0, 1 << 20).await.unwrap(), data, "cut after {cut_after}");
            if first.cut.get() {
                assert_eq!(session.carriers().len(), 1);
                session.add(tcp(&own).await).await.unwrap();
            }
            assert_eq!(session.carriers().len(), 2);
            assert_eq!(tree.stat("f").await.unwrap().len, 1 << 20);
            assert_eq!(file.read(0, 1 << 20).await.unwrap(), data);
            file.close().await.unwrap();
            tree.remove("f").await.unwrap();
        });
    }
}

/// The trap of multichannel: a write on a lost connection reaches the server after the client has written again.
#[test]
fn a_write_that_comes_late_by_a_lost_connection_is_not_carried_out() {
    Sim::new(43).run(async {
        let own = Own::new(|_| {});
        let first = tcp(&own).await;
        let session = Session::connect(first.clone(), own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        session.add(tcp(&own).await).await.unwrap();
        first.hold();
        let old = file.write(0, pattern(1 << 16, 1));
        let story = async {
            rt::sleep(Duration::from_millis(1)).await;
            first.cut();
        };
        let (old, ()) = futures_util::join!(old, story);
        old.unwrap();
        let new = pattern(1 << 16, 2);
        file.write(0, new.clone()).await.unwrap();
        // Now the server gets what the client sent first.
        first.release();
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(file.read(0, 1 << 16).await.unwrap(), new, "overwritten by a message of before");
    });
}

#[test]
fn a_connection_that_falls_silent_is_left_soon() {
    Sim::new(44).run(async {
        let own = Own::new(|_| {});
        let first = tcp(&own).await;
        let session = Session::connect(first.clone(), own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        file.write(0, pattern(1 << 16, 1)).await.unwrap();
        session.add(tcp(&own).await).await.unwrap();
        first.silent.set(true);
        let before = rt::now();
        assert_eq!(file.read(0, 1 << 16).await.unwrap(), pattern(1 << 16, 1));
        assert_eq!(tree.stat("f").await.unwrap().len, 1 << 16);
        let took = rt::now() - before;
        assert!(took < Duration::from_secs(21), "{took:?}");
        assert_eq!(session.lost_connections(), 1);
    });
}

#[test]
fn what_cannot_be_a_channel_is_refused_and_the_session_goes_on() {
    Sim::new(45).run(async {
        let own = Own::new(|_| {});
        let other = Own::new(|config| config.server_guid = *b"somebody else's!");
        let session = Session::connect(tcp(&own).await, own.options()).await.unwrap();
        let error = session.add(tcp(&other).await).await.unwrap_err();
        assert!(matches!(error, Error::Violation(_)), "{error}");
        // A server with the same identity that does not know the session.
        let twin = Own::new(|_| {});
        let error = session.add(tcp(&twin).await).await.unwrap_err();
        assert!(error.status().is_some(), "{error}");
        session.echo().await.unwrap();
        assert_eq!(session.carriers().len(), 1);

        let single = Own::new(|config| config.multichannel = false);
        let session = Session::connect(tcp(&single).await, single.options()).await.unwrap();
        assert!(!session.is_multichannel());
        let error = session.add(tcp(&single).await).await.unwrap_err();
        assert!(matches!(error, Error::Misuse(_)), "{error}");
    });
}

#[test]
fn another_server_than_the_one_that_was_meant_is_refused_before_the_log_on() {
    Sim::new(47).run(async {
        let other = Own::new(|config| config.server_guid = *b"somebody else's!");
        let meant = Options { server: Some(*b"a server's guid!"), ..other.options() };
        let refused = Session::connect(tcp(&other).await, meant).await.err();
        assert!(matches!(refused, Some(Error::Denied(Denial::OtherServer))), "{refused:?}");
        let own = Own::new(|_| {});
        let meant = Options { server: Some(*b"a server's guid!"), ..own.options() };
        Session::connect(tcp(&own).await, meant).await.unwrap();
    });
}

/// Random cuts of random connections while files are created, written, listed and removed.
#[test]
fn whatever_is_cut_the_story_comes_to_its_end() {
    for seed in 0..12 {
        Sim::new(seed).run(async move {
            let own = Own::new(|_| {});
            let session = Session::connect(tcp(&own).await, own.options()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            for round in 0..6 {
                let channel = tcp(&own).await;
                let after = sim::with_rng(|rng| rng.below(60)) as u32;
                session.add(channel.clone()).await.unwrap();
                channel.left.set(Some(after + 4));
                let name = format!("file {round}");
                let file = tree.open(&name, OpenOptions::create()).await.unwrap();
                let data = pattern(700_000, seed * 10 + round);
                file.write(0, data.clone()).await.unwrap();
                assert_eq!(file.read(0, 800_000).await.unwrap(), data);
                file.close().await.unwrap();
                let names: Vec<_> =
                    tree.list("").await.unwrap().into_iter().map(|entry| entry.name).collect();
                assert!(names.contains(&name), "{names:?}");
                channel.cut();
            }
            for entry in tree.list("").await.unwrap() {
                tree.remove(&entry.name).await.unwrap();
            }
            assert!(tree.list("").await.unwrap().is_empty());
            assert_eq!(session.lost_connections(), 6);
        });
    }
}
