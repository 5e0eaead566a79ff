//! Operations without a connection: a test bench passes requests to [`dispatch`], on a memory disk.

mod beside;
mod control;
mod files;
mod held;
mod hostile;
mod info;
mod judged;
mod kept;
mod listing;
mod locks;
mod macs;
mod names;
mod namespace;
mod notify;
mod offload;
mod payload;
mod pipes;
mod preserved;
mod reparse;
mod security;
mod short;
mod streams;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::budget::Holder;
use weft_machine::{Buf, Charge, File, Pool, rt};
use weft_store::backend::Ram;
use weft_store::rights::Right;
use weft_store::vfs::{Share, Vfs};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, RemotePayload, Segment, Sending,
    Traffic,
};
use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::create::{CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::header::{Flags, Id};
use weft_wire::smb2::negotiate::{Capabilities, SecurityMode, SigningId};
use weft_wire::smb2::{Command, Dialect, FileId, HEADER_LEN, Header, NtStatus};
use weft_wire::smb2::{close, create};

use super::dispatch;
use crate::crypto::{Preauth, Profile, Role, SessionKeys};
use crate::server::admission::Incoming;
use crate::server::answer::{Answer, Reply};
use crate::server::connection::Connection;
use crate::server::context::OpContext;
use crate::server::held::SESSION_BYTES;
use crate::server::negotiated::Negotiated;
use crate::server::session::{New, Session, Tree};
use crate::server::{Config, NetworkInterface, Offers, Server};

/// Size of the memory disk.
const DISK: u64 = 64 << 20;

/// A transport that moves nothing, but exposes the memory of a client.
struct Client {
    rdma: bool,
    /// What [`Channel::remote`] returns.
    memory: Bytes,
    /// Whether the transport can write from it directly into a file in memory.
    reaches_files: Cell<bool>,
    fetched: Rc<RefCell<Vec<Segment>>>,
    sent: Cell<usize>,
}

impl Channel for Client {
    fn kind(&self) -> Kind {
        Kind::Smbd
    }
    fn medium(&self) -> &'static str {
        "bench"
    }
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp(([192, 0, 2, 1], 700).into())
    }
    fn limits(&self) -> Limits {
        Limits { max_message: 1 << 20, max_rdma: self.rdma.then_some(8 << 20) }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(async { Ok(None) })
    }
    fn try_recv(&self) -> Option<Message> {
        None
    }
    fn send(&self, _: Outgoing) -> Sending {
        self.sent.set(self.sent.get() + 1);
        Sending::answered(Ok(()))
    }
    fn cork(&self, _: bool) {}
    fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
        let len: usize = from.iter().map(|segment| segment.len as usize).sum();
        let memory = self.memory.slice(..len);
        Box::new(Lent {
            memory,
            reaches_files: self.reaches_files.get(),
            from,
            fetched: self.fetched.clone(),
        })
    }
    fn expose(&self, _: Buf, _: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("servers expose nothing"))
    }
    fn revoke(&self, _: Exposed) -> Option<Buf> {
        None
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

/// Memory of the client that a request names.
#[derive(Debug)]
struct Lent {
    memory: Bytes,
    reaches_files: bool,
    from: Vec<Segment>,
    fetched: Rc<RefCell<Vec<Segment>>>,
}

impl RemotePayload for Lent {
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>> {
        let lent = Pool::new(1 << 20).buf_from(&self.memory[..len]).filter(|_| self.reaches_files)?;
        Some(file.place_at(offset, &lent.into_window()))
    }
    fn fetch(&self) -> weft_machine::payload::Fetching {
        self.fetched.replace(self.from.clone());
        Box::pin(std::future::ready(Ok(self.memory.clone())))
    }
}

/// One session in one tree, with its server.
struct Bench {
    vfs: Vfs,
    server: Arc<Server>,
    client: Rc<Client>,
    connection: Rc<Connection>,
    session: Arc<Session>,
    tree: Arc<Tree>,
    ids: Cell<u64>,
}

/// The sender of a request.
struct Asker<'a> {
    session: &'a Arc<Session>,
    tree: u32,
    flags: Flags,
    /// Whether the request was encrypted.
    sealed: bool,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Ram::new(DISK).into(), Dialect::V3_1_1, true)
    }

    fn with(vfs: Vfs, dialect: Dialect, rdma: bool) -> Bench {
        Bench::offering(Offers::default(), vfs, dialect, rdma)
    }

    /// A bench with this memory budget for sessions.
    fn holding(held_bytes: usize) -> Bench {
        let limits = crate::server::Limits { held_bytes, ..Default::default() };
        Bench::on(limited(limits, Offers::default(), Ram::new(DISK).into()), Dialect::V3_1_1, true)
    }

    /// A bench whose server limits the clients' descriptors to this number.
    fn opening(descriptors: usize) -> Bench {
        let limits = crate::server::Limits { descriptors, ..Default::default() };
        Bench::on(limited(limits, Offers::default(), Ram::new(DISK).into()), Dialect::V3_1_1, true)
    }

    fn offering(offers: Offers, vfs: Vfs, dialect: Dialect, rdma: bool) -> Bench {
        Bench::on(server(offers, vfs), dialect, rdma)
    }

    /// A session on a server that other benches may share.
    fn on(server: Arc<Server>, dialect: Dialect, rdma: bool) -> Bench {
        let share = Share::clone(&server.shares.now()[0]);
        let client = Rc::new(Client {
            rdma,
            memory: (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>().into(),
            reaches_files: Cell::new(false),
            fetched: Rc::default(),
            sent: Cell::new(0),
        });
        let connection = Rc::new(Connection::new(server.clone(), client.clone()));
        let profile = Profile { dialect, signing: SigningId::AES_CMAC, cipher: None };
        connection.set_negotiated(Negotiated {
            dialect,
            client_capabilities: Capabilities::LARGE_MTU,
            client_security_mode: SecurityMode::SIGNING_ENABLED,
            client_dialects: vec![Dialect::V2_1, Dialect::V3_0],
            client_guid: [9; 16],
            server_capabilities: Capabilities::LARGE_MTU,
            server_security_mode: SecurityMode::SIGNING_ENABLED,
            max_io: 8 << 20,
            transforms: Default::default(),
            compression: None,
            posix: false,
            profile,
        });
        let session = session(&server, &connection, 77, "tester", profile);
        let vfs = share.vfs.clone();
        let tree = session.connect(Some(share), Right::Write, 10).unwrap();
        Bench { vfs, server, client, connection, session, tree, ids: Cell::new(0) }
    }

    /// A session of another user on the same connection.
    fn another_session(&self, user: &str) -> Arc<Session> {
        let profile = self.connection.negotiated().profile;
        let id = self.session.id + self.connection.sessions_len() as u64;
        session(&self.server, &self.connection, id, user, profile)
    }

    fn cx(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> OpContext {
        self.cx_of(self.asker(), command, emit)
    }

    fn asker(&self) -> Asker<'_> {
        Asker { session: &self.session, tree: self.tree.id, flags: Flags::NONE, sealed: false }
    }

    fn cx_of(&self, asker: Asker<'_>, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> OpContext {
        self.ids.set(self.ids.get() + 1);
        let mut header = Header::request(command, self.ids.get());
        header.session_id = asker.session.id;
        header.credit_charge = 128;
        header.flags = asker.flags;
        header.id = Id::Sync { reserved: 0, tree: asker.tree };
        let mut message = header.to_bytes().to_vec();
        emit(&mut message);
        let incoming =
            Incoming { connection: &self.connection, header: &header, message: &mut message.into() };
        let sealed = asker.sealed.then_some(asker.session);
        let verified = incoming.verify(header.session_id, sealed).unwrap();
        let admitted = verified.in_session().unwrap().in_tree(header.tree_id()).unwrap();
        OpContext::new(admitted, None, true)
    }

    /// Sends one request and returns its answer as a message.
    async fn ask(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, NtStatus> {
        self.answer(command, emit).await.map(|reply| reply.message.into()).map_err(|failure| failure.status)
    }

    async fn answer(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Answer {
        dispatch(&self.cx(command, emit)).await
    }

    async fn create(&self, wish: &Wish<'_>) -> Result<create::Response, NtStatus> {
        let message = self.ask(Command::Create, |out| wish.request().emit(out)).await?;
        Ok(create::Response::parse(&message).unwrap())
    }

    async fn open(&self, wish: &Wish<'_>) -> Result<FileId, NtStatus> {
        self.create(wish).await.map(|response| response.file)
    }

    async fn close(&self, file: FileId) -> Result<close::Response, NtStatus> {
        let request = close::Request { flags: close::Flags::POSTQUERY_ATTRIB, file };
        let message = self.ask(Command::Close, |out| request.emit(out)).await?;
        Ok(close::Response::parse(&message).unwrap())
    }

    /// Creates a file with this content.
    async fn put(&self, path: &str, content: &[u8]) {
        let file = self
            .open(&Wish { disposition: CreateDisposition::OverwriteIf, ..Wish::file(path) })
            .await
            .unwrap();
        payload::write(self, file, 0, content).await.unwrap();
        self.close(file).await.unwrap();
    }

    async fn mkdir(&self, path: &str) {
        let file =
            self.open(&Wish { disposition: CreateDisposition::Create, ..Wish::dir(path) }).await.unwrap();
        self.close(file).await.unwrap();
    }

    async fn exists(&self, path: &str) -> bool {
        let wish = Wish {
            access: AccessMask::FILE_READ_ATTRIBUTES,
            options: CreateOptions::NONE,
            ..Wish::file(path)
        };
        match self.open(&wish).await {
            Ok(file) => self.close(file).await.is_ok(),
            Err(_) => false,
        }
    }
}

/// A server with one share.
fn server(offers: Offers, vfs: Vfs) -> Arc<Server> {
    limited(crate::server::Limits { opens: 100, ..Default::default() }, offers, vfs)
}

fn limited(limits: crate::server::Limits, offers: Offers, vfs: Vfs) -> Arc<Server> {
    Server::new(Config {
        signing: crate::server::Signing::Enabled,
        min_dialect: weft_wire::smb2::Dialect::V2_0_2,
        interfaces: vec![NetworkInterface {
            index: 3,
            addr: [127, 0, 0, 1].into(),
            link_speed_bps: 10_000_000_000,
            rdma: true,
            rss: false,
        }]
        .into(),
        endpoints: "iwarp 127.0.0.1:5445\n".into(),
        offers,
        limits,
        ..Config::new([7; 16], vec![Share::new("data", vfs)], Vec::new(), Pool::new(64 << 20))
    })
}

fn session(server: &Server, connection: &Connection, id: u64, user: &str, profile: Profile) -> Arc<Session> {
    let holder = Holder { source: Some(connection.source), user: Some(user.into()) };
    session_of(connection, server.held.charge_if_room(holder, SESSION_BYTES), id, user, profile)
}

fn session_of(connection: &Connection, held: Charge, id: u64, user: &str, profile: Profile) -> Arc<Session> {
    let keys = SessionKeys::derive(Role::Server, &profile, &[1; 16], &Preauth::new());
    let signing = keys.signing.clone();
    let session = Arc::new(Session::new(New {
        id,
        user: user.into(),
        is_ours: true,
        account: None,
        user_id: None,
        profile,
        client_guid: [9; 16],
        keys,
        signing_required: false,
        encrypt: false,
        audited: None,
        held,
    }));
    connection.bind(session.clone(), signing).unwrap();
    session
}

/// The parameters of a CREATE.
#[derive(Clone)]
struct Wish<'a> {
    path: &'a str,
    access: AccessMask,
    share: ShareAccess,
    disposition: CreateDisposition,
    options: CreateOptions,
    attributes: FileAttributes,
    contexts: Vec<weft_wire::smb2::create_context::RequestContext>,
}

impl Wish<'_> {
    /// Opens a file with all access, sharing everything.
    fn file(path: &str) -> Wish<'_> {
        Wish {
            path,
            access: AccessMask::FILE_ALL,
            share: ShareAccess::ALL,
            disposition: CreateDisposition::Open,
            options: CreateOptions::NON_DIRECTORY_FILE,
            attributes: FileAttributes::NORMAL,
            contexts: Vec::new(),
        }
    }

    fn dir(path: &str) -> Wish<'_> {
        Wish { options: CreateOptions::DIRECTORY_FILE, ..Wish::file(path) }
    }

    fn request(&self) -> create::Request {
        create::Request {
            oplock: OplockLevel::NONE,
            impersonation: 2,
            desired_access: self.access,
            attributes: self.attributes,
            share_access: self.share,
            disposition: self.disposition,
            options: self.options,
            name: self.path.to_owned(),
            contexts: self.contexts.clone(),
        }
    }
}

/// Runs a story.
fn run(story: impl AsyncFnOnce(Bench)) {
    rt::block_on(story(Bench::new())).unwrap();
}

/// The error of an answer that must fail.
fn status<T>(answer: Result<T, NtStatus>) -> NtStatus {
    match answer {
        Ok(_) => panic!("succeeded"),
        Err(status) => status,
    }
}
