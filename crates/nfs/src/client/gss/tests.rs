//! Calls by ticket against our server, in contexts of a toy mechanism. Time is virtual.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::Sim;
use weft_machine::{Listener, Pool, Stream};
use weft_store::rules::Flavor as Named;
use weft_transport::{Channel, Outgoing, Sending, Traffic, record};

use super::*;
use crate::client::{self, Credential as Caller, Offered, Options, SetAttributes, v4};
use crate::memory::{record as stream_of, without_rdma};
use crate::server::Server;
use crate::server::gss_tests::{
    contexts, forget, open_to_any_port, toy_mic, toy_unwrap, toy_wrap, without_tickets,
};

const KERBEROS: [Named; 3] = [Named::Krb5, Named::Krb5i, Named::Krb5p];
const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

/// The other end of the server's toy: its token names the client, the service and the lifetime in milliseconds.
struct Toy {
    client: String,
    lifetime_ms: u64,
}

impl Mechanism for Toy {
    fn step(&mut self, token: &[u8]) -> Result<Progress, weft_kerberos::Error> {
        match token {
            b"" => {
                let Toy { client, lifetime_ms } = self;
                Ok(Progress::Continue(format!("{client} nfs/host@R {lifetime_ms}").into_bytes()))
            }
            b"reply" => Ok(Progress::Done {
                token: Vec::new(),
                key: Vec::new().into(),
                client: Principal::parse(&self.client),
                lifetime: Some(Duration::from_millis(self.lifetime_ms)),
            }),
            _ => Err(weft_kerberos::Error::Gss("not the server's token".into())),
        }
    }
    fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, weft_kerberos::Error> {
        Ok(toy_mic(&self.client, message))
    }
    fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        toy_mic(&self.client, message) == mic
    }
    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, weft_kerberos::Error> {
        Ok(toy_wrap(&self.client, message))
    }
    fn unwrap(&mut self, token: &[u8]) -> Option<Vec<u8>> {
        toy_unwrap(&self.client, token)
    }
}

const HOUR_MS: u64 = 3_600_000;

/// The ticket of whoever `client` names at the time.
fn ticket_of(service: Service, lifetime_ms: u64, client: impl Fn() -> &'static str + 'static) -> Ticket {
    let make = move || -> Result<Box<dyn Mechanism>, weft_kerberos::Error> {
        Ok(Box::new(Toy { client: client().to_owned(), lifetime_ms }))
    };
    Ticket::by(Box::new(make), "host", service, AuthSys::new(Bytes::new(), 1000, 100))
}

fn ticket(service: Service) -> Ticket {
    ticket_of(service, HOUR_MS, || "alice@R")
}

/// Changes a message.
type Change = Box<dyn FnMut(&mut Vec<u8>)>;

/// What a test does to the messages of a connection.
#[derive(Default)]
struct Watch {
    /// All messages of the client.
    sent: RefCell<Vec<Bytes>>,
    /// Changes the server's messages.
    changes: RefCell<Option<Change>>,
    /// The connection ends instead of delivering the reply after this many; 0 stands for never.
    until: Cell<usize>,
}

impl Watch {
    /// The calls so far, as kind, transaction id and sequence number.
    fn calls(&self) -> Vec<(Procedure, u32, u32)> {
        let read = |message: &Bytes| match Call::parse(&mut Decoder::new(message.clone())).unwrap() {
            Call { xid, credential: Credential::Gss(gss), .. } => Some((gss.procedure, xid, gss.sequence)),
            _ => None,
        };
        self.sent.borrow().iter().filter_map(read).collect()
    }

    fn count(&self, kind: Procedure) -> usize {
        self.calls().iter().filter(|(procedure, ..)| *procedure == kind).count()
    }
}

/// A connection that a test watches.
struct Watched {
    inner: Rc<dyn Channel>,
    watch: Rc<Watch>,
    gone: Cell<bool>,
}

impl Channel for Watched {
    without_rdma!();
    fn peer(&self) -> weft_transport::Peer {
        self.inner.peer()
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        Box::pin(async move {
            let Some(mut message) = self.inner.recv().await? else { return Ok(None) };
            let left = self.watch.until.get();
            self.watch.until.set(left.saturating_sub(1));
            if left == 1 || self.gone.get() {
                self.gone.set(true);
                self.inner.close();
                return Ok(None);
            }
            if let Some(change) = &mut *self.watch.changes.borrow_mut() {
                let mut body = message.body.to_vec();
                change(&mut body);
                message.body = body.into();
            }
            Ok(Some(message))
        })
    }
    fn try_recv(&self) -> Option<Message> {
        None
    }
    fn send(&self, message: Outgoing) -> Sending {
        let bytes = stream_of(message);
        self.watch.sent.borrow_mut().push(bytes.clone());
        self.inner.send(Outgoing::bytes(bytes))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {
        self.inner.close();
    }
}

/// A server that listens in the simulation, and what passes between it and its clients.
struct World {
    server: Arc<Server>,
    addr: std::net::SocketAddr,
    pool: Pool,
    watch: Rc<Watch>,
    _serving: rt::Task<()>,
}

impl World {
    fn of(server: Arc<Server>) -> Rc<World> {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (addr, pool, served) = (listener.local_addr(), Pool::new(64 << 20), server.clone());
        let buffers = pool.clone();
        let serving = rt::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                let channel = record::Record::channel(stream, buffers.clone(), record::Config::default());
                let server = served.clone();
                connections.push(rt::spawn(async move { drop(server.serve(channel).await) }));
            }
        });
        Rc::new(World { server, addr, pool, watch: Rc::default(), _serving: serving })
    }

    async fn channel(&self) -> Rc<dyn Channel> {
        let stream = Stream::connect(self.addr).await.unwrap();
        let inner = record::Record::channel(stream, self.pool.clone(), record::Config::default());
        Rc::new(Watched { inner, watch: self.watch.clone(), gone: Cell::new(false) })
    }

    fn options(&self, ticket: &Ticket) -> Options {
        Options { credential: Caller::Ticket(ticket.clone()), pool: self.pool.clone() }
    }

    fn dial(self: &Rc<World>) -> client::Dial {
        let world = self.clone();
        Rc::new(move || {
            let world = world.clone();
            async move { Ok(world.channel().await) }.boxed_local()
        })
    }

    async fn v3(self: &Rc<World>, ticket: &Ticket) -> Result<client::Mount, Error> {
        let mount = client::Mount::connect(self.channel().await, "/ruled", self.options(ticket)).await?;
        Ok(mount.keep_connected(self.dial(), 2))
    }

    async fn v4(self: &Rc<World>, ticket: &Ticket) -> Result<v4::Mount, Error> {
        let again = Some((self.dial(), 2));
        v4::Mount::connect(self.channel().await, "/ruled", self.options(ticket), again).await
    }
}

fn story(flavors: &'static [Named], tale: impl AsyncFn(Rc<World>) + 'static) {
    let server = open_to_any_port(flavors);
    Sim::new(1).run(async move { tale(World::of(server)).await });
}

#[test]
fn every_protection_carries_data_in_each_version() {
    story(&KERBEROS, async |world| {
        for service in SERVICES {
            let ticket = ticket(service);
            assert_eq!(ticket.principal(), None);
            let content = Bytes::from((0..300_001).map(|n: u32| (n % 251) as u8).collect::<Vec<_>>());
            let (v3, v4) = (world.v3(&ticket).await.unwrap(), world.v4(&ticket).await.unwrap());
            assert_eq!(ticket.principal().as_deref(), Some("alice@R"));
            let file = v3.create("f", SetAttributes::default()).await.unwrap();
            file.write(0, content.clone()).await.unwrap();
            file.close().await.unwrap();
            assert_eq!(v4.stat("f").await.unwrap().uid, 1000, "the file is the principal's user's");
            let file = v4.open("f", true).await.unwrap();
            assert_eq!(file.read(0, content.len()).await.unwrap(), content, "{service:?}");
            file.write(5, content.clone()).await.unwrap();
            file.close().await.unwrap();
            let file = v3.open("f").await.unwrap();
            assert_eq!(file.read(5, content.len()).await.unwrap(), content, "{service:?}");
            assert_eq!(v4.list("").await.unwrap().len(), 1);
            // Both mounts share the context, which the first to end makes the server forget.
            assert_eq!((contexts(&world.server), world.watch.count(Procedure::Init)), (1, 1));
            v3.end().await;
            assert_eq!(contexts(&world.server), 0);
            v4.remove("f").await.unwrap();
            v4.end().await.unwrap();
            assert_eq!((contexts(&world.server), world.watch.count(Procedure::Destroy)), (0, 2));
            let secret = world.watch.sent.borrow().iter().any(|sent| holds(sent, &content[..64]));
            assert_eq!(secret, service != Service::Privacy);
            world.watch.sent.take();
        }
    });
}

fn holds(message: &[u8], content: &[u8]) -> bool {
    message.windows(content.len()).any(|window| window == content)
}

#[test]
fn a_call_that_is_repeated_has_a_new_number_and_is_done_once() {
    story(&KERBEROS, async |world| {
        for service in SERVICES {
            let mount = world.v3(&ticket(service)).await.unwrap();
            mount.mkdir("d", SetAttributes::default()).await.unwrap();
            world.watch.sent.take();
            // The call is carried out, and its reply lost with the connection.
            world.watch.until.set(1);
            mount.rmdir("d").await.unwrap();
            let calls = world.watch.calls();
            let [(_, xid, sequence), (_, again, next)] = calls[..] else { panic!("{calls:?}") };
            assert!(xid == again && sequence < next, "{calls:?}");
            mount.end().await;
        }
    });
}

#[test]
fn a_context_that_the_server_has_forgotten_is_renewed_and_the_call_repeated() {
    story(&KERBEROS, async |world| {
        for service in SERVICES {
            let (v3, v4) =
                (world.v3(&ticket(service)).await.unwrap(), world.v4(&ticket(service)).await.unwrap());
            let file = v4.create("f", SetAttributes::default()).await.unwrap();
            forget(&world.server);
            world.watch.sent.take();
            let written = file.write(0, Bytes::from(vec![7; 100_000]));
            // The calls of both mounts are under way together.
            let (written, made) = futures_util::join!(written, v3.mkdir("d", SetAttributes::default()));
            written.unwrap();
            made.unwrap();
            file.close().await.unwrap();
            assert_eq!(world.watch.count(Procedure::Init), 2, "one for each ticket");
            v3.rmdir("d").await.unwrap();
            v4.remove("f").await.unwrap();
            v3.end().await;
            v4.end().await.unwrap();
        }
    });
}

#[test]
fn a_server_that_accepts_no_context_is_asked_once_more() {
    story(&KERBEROS, async |world| {
        let mount = world.v3(&ticket(Service::Privacy)).await.unwrap();
        world.watch.sent.take();
        // Replies to calls of data become refusals; those to control messages pass.
        let watch = world.watch.clone();
        *world.watch.changes.borrow_mut() = Some(Box::new(move |reply| {
            let xid = reply[..4].to_vec();
            let is_data = watch
                .calls()
                .iter()
                .any(|(kind, of, _)| *kind == Procedure::Data && of.to_be_bytes() == xid[..]);
            if is_data {
                let mut e = Encoder::default();
                Reply::AuthError(AuthStat::GSS_CREDPROBLEM)
                    .emit(u32::from_be_bytes(xid.try_into().unwrap()), &mut e);
                *reply = e.into_bytes().to_vec();
            }
        }));
        let refused = mount.null().await;
        assert!(
            matches!(refused, Err(Error::Rpc(Reply::AuthError(AuthStat::GSS_CREDPROBLEM)))),
            "{refused:?}"
        );
        assert_eq!((world.watch.count(Procedure::Data), world.watch.count(Procedure::Init)), (2, 1));
    });
}

#[test]
fn a_context_ends_with_its_ticket_and_another_one_follows() {
    story(&KERBEROS, async |world| {
        for service in SERVICES {
            let ticket = ticket_of(service, 60_000, || "alice@R");
            let mount = world.v4(&ticket).await.unwrap();
            world.watch.sent.take();
            for _ in 0..3 {
                rt::sleep(Duration::from_secs(61)).await;
                mount.list("").await.unwrap();
            }
            assert!(world.watch.count(Procedure::Init) >= 3, "{:?}", world.watch.calls());
            mount.end().await.unwrap();
        }
    });
}

#[test]
fn a_mount_stays_its_principals() {
    story(&KERBEROS, async |world| {
        let who = Rc::new(Cell::new("alice@R"));
        let now = who.clone();
        let ticket = ticket_of(Service::Integrity, HOUR_MS, move || now.get());
        let mount = world.v3(&ticket).await.unwrap();
        who.set("bob@R");
        forget(&world.server);
        let refused = mount.mkdir("d", SetAttributes::default()).await.unwrap_err();
        assert!(refused.to_string().contains("get a ticket of alice@R"), "{refused}");
        who.set("alice@R");
        mount.mkdir("d", SetAttributes::default()).await.unwrap();
    });
}

/// Every byte of a reply but the transaction id and the fill counts.
#[test]
fn a_reply_that_is_not_the_servers_is_not_believed() {
    story(&KERBEROS, async |world| {
        for service in SERVICES {
            let mount = world.v3(&ticket(service)).await.unwrap();
            let end = Rc::new(Cell::new(usize::MAX));
            let at = Rc::new(Cell::new(24));
            while at.get() < end.get() {
                let (here, len) = (at.clone(), end.clone());
                *world.watch.changes.borrow_mut() = Some(Box::new(move |reply| {
                    // Without protection, results are only the server's as far as the header is.
                    len.set(if service == Service::None { 24 } else { reply.len() });
                    if let Some(byte) = reply.get_mut(here.get()) {
                        *byte ^= 1;
                    }
                }));
                let read = mount.getattr(mount.root()).await;
                // The MIC of the toy has 8 bytes, which no fill follows.
                if service == Service::None {
                    break;
                }
                assert!(
                    matches!(read, Err(Error::Forged | Error::Malformed(_) | Error::Rpc(_))),
                    "{service:?} {}: {read:?}",
                    at.get()
                );
                at.set(at.get() + 1);
            }
            // The verifier, its flavor, and the reply to another call.
            for (at, wrong) in [(15, 0), (20, 0x55), (27, 0x55)] {
                *world.watch.changes.borrow_mut() = Some(Box::new(move |reply| reply[at] = wrong));
                let read = mount.getattr(mount.root()).await;
                assert!(
                    matches!(read, Err(Error::Forged | Error::Malformed(_))),
                    "{service:?} {at}: {read:?}"
                );
            }
            let before = Rc::new(RefCell::new(VecDeque::new()));
            let replies = before.clone();
            *world.watch.changes.borrow_mut() = Some(Box::new(move |reply| {
                replies.borrow_mut().push_back(reply.clone());
                if replies.borrow().len() == 2 {
                    let xid = reply[..4].to_vec();
                    *reply = replies.borrow_mut().pop_front().unwrap();
                    reply[..4].copy_from_slice(&xid);
                }
            }));
            mount.getattr(mount.root()).await.unwrap();
            let read = mount.getattr(mount.root()).await;
            assert!(matches!(read, Err(Error::Forged)), "{service:?}: {read:?}");
            *world.watch.changes.borrow_mut() = None;
            mount.getattr(mount.root()).await.unwrap();
            mount.end().await;
        }
    });
}

#[test]
fn an_export_tells_which_flavors_it_accepts() {
    story(&[Named::Krb5i, Named::Krb5p], async |world| {
        let accepted = Offered(vec![Flavor::KRB5I, Flavor::KRB5P]);
        let sys = Caller::Sys(AuthSys::new(Bytes::new(), 1000, 100));
        let krb5 = ticket(Service::None);
        for credential in [sys.clone(), Caller::None, Caller::Ticket(krb5)] {
            let options = || Options { credential: credential.clone(), pool: world.pool.clone() };
            let v3 = client::Mount::connect(world.channel().await, "/ruled", options()).await;
            assert!(matches!(&v3, Err(Error::Flavors(offered)) if *offered == accepted), "{:?}", v3.err());
            let v4 = v4::Mount::connect(world.channel().await, "/ruled/below", options(), None).await;
            assert!(matches!(&v4, Err(Error::Flavors(offered)) if *offered == accepted), "{:?}", v4.err());
            let told = client::flavors(world.channel().await, "/ruled", &options()).await;
            assert_eq!(told.unwrap(), accepted.0);
            for path in ["/ruled", "/ruled/below"] {
                let told = v4::offered(world.channel().await, path, options()).await;
                assert_eq!(told.unwrap(), accepted.0, "{path}");
            }
        }
        assert_eq!(contexts(&world.server), 0, "none is left behind");
    });
}

#[test]
fn a_server_without_tickets_is_named_so() {
    let server = without_tickets();
    Sim::new(1).run(async move {
        let world = World::of(server);
        let refused = world.v4(&ticket(Service::Privacy)).await.err().unwrap().to_string();
        assert!(refused.contains("takes no Kerberos tickets") && refused.contains("sec=sys"), "{refused}");
    });
}

#[test]
fn a_number_waits_until_it_is_in_the_window() {
    let mechanism = Box::new(Toy { client: "alice@R".into(), lifetime_ms: HOUR_MS });
    let handle = Bytes::from_static(b"handle");
    let context = Rc::new(Context::new(mechanism, Service::None, (handle, 4), None, None));
    let take = || context.number().now_or_never().map(Option::unwrap);
    let mut taken: Vec<_> = (0..4).map(|_| take().unwrap()).collect();
    assert!(take().is_none(), "four are outstanding");
    // The second one does not help: a server discards what is a window below the highest.
    drop(taken.remove(1));
    assert!(take().is_none());
    let mut waiting = Box::pin(context.number());
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(taken.remove(0));
    assert!(waiting.now_or_never().flatten().is_some());
    assert!(!context.is_over(weft_machine::Time::ZERO));
}

#[test]
fn causes_are_told_with_what_mends_them() {
    let refused = |minor: i32| {
        let minor = minor.cast_unsigned();
        TicketError::Refused { host: "nas".into(), major: 13 << 16, minor }.to_string()
    };
    assert!(refused(-1_765_328_347).contains("clock"));
    assert!(refused(-1_765_328_343).contains("ktadd nfs/nas"));
    assert!(refused(0).contains("its log says why"));
}
