//! An in-memory transport, and a client that builds every byte by hand.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::Sim;
use weft_machine::{Buf, Payload, Pool, rt};
use weft_store::backend::ram::Ram;
use weft_store::vfs::{Share, Vfs};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits as Carries, Message, Outgoing, Part, Peer, Sending, To,
    Traffic,
};
use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::channel;
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::header::{self, Flags};
use weft_wire::smb2::negotiate::{self, Capabilities, CipherId, Context, HashId, SecurityMode, SigningId};
use weft_wire::smb2::{
    Command, Dialect, FileId, HEADER_LEN, Header, Id, NtStatus, close, compound, echo, read, session_setup,
    tree_connect, write,
};
use zeroize::Zeroizing;

use crate::auth::{Credentials, Initiator, Nonces, Secret, SessionKey};
use crate::crypto::{self, Preauth, Profile, Role, Sender, SessionKeys, SigningKey, TRANSFORM_LEN};
use crate::server::{Config, Server, User};

/// Both directions of one connection.
#[derive(Default)]
pub(super) struct Wire {
    requests: RefCell<VecDeque<Bytes>>,
    answers: RefCell<VecDeque<Outgoing>>,
    server_waker: RefCell<Option<Waker>>,
    client_waker: RefCell<Option<Waker>>,
    closed_by_client: Cell<bool>,
    pub closed_by_server: Cell<bool>,
    /// The medium accepts nothing: every send stays pending.
    pub stalled: Cell<bool>,
    /// The medium fails every send.
    pub broken: Cell<bool>,
    stalled_wakers: RefCell<Vec<Waker>>,
    /// The budget for answers to the client's address; the whole pool by default.
    pub room: RefCell<Option<Pool>>,
    /// The next message with a file payload fails as if the file were unreadable.
    pub unreadable: Cell<bool>,
    pub max_rdma: Cell<Option<usize>>,
    /// Messages are lost: nobody acknowledges them.
    pub hole: Cell<bool>,
    /// The client's address; shared memory of this host by default.
    peer: String,
}

thread_local! {
    /// Messages that the servers on this thread have sent.
    pub(super) static SENT: Cell<usize> = const { Cell::new(0) };
}

/// The server's end.
pub(super) struct Pipe(pub Rc<Wire>);

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Channel for Pipe {
    fn kind(&self) -> Kind {
        Kind::Nbss
    }
    fn medium(&self) -> &'static str {
        "memory"
    }
    fn peer(&self) -> Peer {
        self.0.peer.parse().map_or(Peer::Local { uid: 0, pid: Some(7) }, Peer::Tcp)
    }
    fn limits(&self) -> Carries {
        Carries { max_message: (1 << 20) + (64 << 10), max_rdma: self.0.max_rdma.get() }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            Some(message) => Poll::Ready(Ok(Some(message))),
            None if self.0.closed_by_client.get() => Poll::Ready(Ok(None)),
            None => {
                self.0.server_waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.0.requests.borrow_mut().pop_front()?;
        Some(Message { body, ..message() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        let file = |part: &Part| matches!(part, Part::Payload { data: Payload::File(_), .. });
        if message.parts.iter().any(file) && self.0.unreadable.take() {
            return Sending::answered(Err(Error::Io(io::ErrorKind::Other.into())));
        }
        self.0.answers.borrow_mut().push_back(message);
        SENT.set(SENT.get() + 1);
        wake(&self.0.client_waker);
        let wire = self.0.clone();
        Sending::waiting(poll_fn(move |cx| match wire.stalled.get() {
            _ if wire.broken.get() => Poll::Ready(Err(Error::Io(io::ErrorKind::ConnectionReset.into()))),
            true => {
                wire.stalled_wakers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            false => Poll::Ready(Ok(())),
        }))
    }
    fn backlog(&self) -> usize {
        0
    }
    fn unsent_bytes(&self) -> usize {
        if self.0.stalled.get() { self.0.unread_bytes() } else { 0 }
    }
    fn has_ended(&self) -> bool {
        self.0.broken.get()
    }
    fn answers(&self) -> Option<Pool> {
        self.0.room.borrow().clone()
    }
    fn unacknowledged(&self) -> usize {
        usize::from(self.0.hole.get())
    }
    fn cork(&self, _on: bool) {}
    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("no RDMA in this test"))
    }
    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {
        self.0.closed_by_server.set(true);
        wake(&self.0.client_waker);
    }
}

fn message() -> Message {
    Message { body: Bytes::new(), detached: None, ticket: Default::default() }
}

impl Wire {
    /// Lets the medium accept what it holds back.
    pub fn release(&self) {
        self.stalled.set(false);
        self.stalled_wakers.take().into_iter().for_each(Waker::wake);
    }

    /// Whether a message is ready to be received.
    pub fn is_answered(&self) -> bool {
        !self.answers.borrow().is_empty()
    }

    /// Bytes in memory of the messages that are ready to be received.
    pub fn unread_bytes(&self) -> usize {
        self.answers.borrow().iter().map(Outgoing::memory_bytes).sum()
    }

    /// Requests that the server has not received.
    pub fn unreceived(&self) -> usize {
        self.requests.borrow().len()
    }

    pub fn send(&self, message: impl Into<Bytes>) {
        self.requests.borrow_mut().push_back(message.into());
        wake(&self.server_waker);
    }

    /// Closes the connection from the client's side.
    pub fn hang_up(&self) {
        self.closed_by_client.set(true);
        wake(&self.server_waker);
    }

    /// The next message as the server passed it to the transport; `None` if it closed.
    pub async fn recv_outgoing(&self) -> Option<Outgoing> {
        poll_fn(|cx| match self.answers.borrow_mut().pop_front() {
            Some(message) => Poll::Ready(Some(message)),
            None if self.closed_by_server.get() => Poll::Ready(None),
            None => {
                self.client_waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// The next message, flattened.
    pub async fn recv(&self, pool: &Pool) -> Option<Bytes> {
        let message = self.recv_outgoing().await?;
        let mut flat = Vec::new();
        for part in message.parts {
            match part {
                Part::Bytes(bytes) => flat.extend_from_slice(&bytes),
                Part::Payload { data, to: To::Inline } => {
                    data.into_chain(pool).await.unwrap().iter().for_each(|b| flat.extend_from_slice(b));
                }
                Part::Payload { .. } => panic!("payload beside the message"),
            }
        }
        Some(flat.into())
    }
}

/// A server with one share `data` in memory, whose files outlive connections.
#[derive(Clone)]
pub(super) struct World {
    pub server: Arc<Server>,
    pub pool: Pool,
}

pub(super) const PASSWORD: &str = "correct horse";

impl World {
    pub fn with(change: impl FnOnce(&mut Config)) -> World {
        let pool = Pool::new(64 << 20);
        let user = |name: &str| User::new(name, Secret::password(PASSWORD));
        let mut config = Config {
            names: crate::auth::ServerNames::new(["weft"], || vec!["192.0.2.7".parse().unwrap()]).into(),
            signing: crate::server::Signing::Enabled,
            min_dialect: weft_wire::smb2::Dialect::V2_0_2,
            ..Config::new(
                [7; 16],
                vec![Share::new("Data", Vfs::new(Ram::new(64 << 20)))],
                vec![user("alice"), user("bob")],
                pool.clone(),
            )
        };
        change(&mut config);
        World { server: Server::new(config), pool }
    }

    pub fn new() -> World {
        World::with(|_| ())
    }

    /// A new connection, served by its own task.
    pub fn connect(&self) -> Client {
        self.connect_from("client")
    }

    /// A new connection from this address.
    pub fn connect_from(&self, peer: &str) -> Client {
        let wire = Rc::new(Wire { peer: peer.into(), ..Wire::default() });
        let (server, channel) = (self.server.clone(), Rc::new(Pipe(wire.clone())));
        rt::spawn(async move { server.serve(channel).await }).detach();
        Client {
            wire,
            pool: self.pool.clone(),
            preauth: Preauth::new(),
            profile: Profile { dialect: Dialect::V3_1_1, signing: SigningId::AES_CMAC, cipher: None },
            next_id: 0,
            credits: 1,
            session: 0,
            tree: 0,
            keys: None,
            material: None,
            session_signing: None,
            sequence: 0,
            replay: false,
            sign: false,
            seal: false,
            called: "weft",
        }
    }

    /// A client connected to the share, with 3.1.1 as Windows offers it.
    pub async fn client(&self) -> Client {
        let mut client = self.connect();
        client.negotiate(Offer::default()).await;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.tree().await;
        client
    }
}

/// Runs a story under virtual time.
pub(super) fn story<F: Future>(story: F) -> F::Output {
    Sim::new(1).run(story)
}

/// The contents of a client's NEGOTIATE.
#[derive(Clone)]
pub(super) struct Offer {
    pub dialects: Vec<Dialect>,
    pub mode: SecurityMode,
    pub capabilities: Capabilities,
    pub contexts: Vec<Context>,
    pub guid: [u8; 16],
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            dialects: vec![Dialect::V2_0_2, Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1],
            mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::LARGE_MTU | Capabilities::ENCRYPTION,
            contexts: vec![
                Context::Preauth { hashes: vec![HashId::SHA512], salt: Bytes::from_static(&[1; 32]) },
                Context::Encryption(vec![CipherId::AES_128_GCM, CipherId::AES_256_GCM]),
                Context::Signing(vec![SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256]),
            ],
            guid: [9; 16],
        }
    }
}

impl Offer {
    pub fn dialect(dialect: Dialect) -> Offer {
        Offer { dialects: vec![dialect], ..Offer::default() }
    }

    /// The request's bytes.
    pub fn emit(&self, message_id: u64) -> Vec<u8> {
        let mut out = Header { credit_charge: 0, ..Header::request(Command::Negotiate, message_id) }
            .to_bytes()
            .to_vec();
        negotiate::Request {
            security_mode: self.mode,
            capabilities: self.capabilities,
            client_guid: self.guid,
            dialects: self.dialects.clone(),
            contexts: self.contexts.clone(),
        }
        .emit(&mut out);
        out
    }
}

/// A client that builds every message by hand.
pub(super) struct Client {
    pub wire: Rc<Wire>,
    pub pool: Pool,
    pub preauth: Preauth,
    pub profile: Profile,
    pub next_id: u64,
    pub credits: u64,
    pub session: u64,
    pub tree: u32,
    pub keys: Option<SessionKeys>,
    /// The material of the session's keys, for further connections.
    pub material: Option<(Profile, SessionKey, Preauth)>,
    /// On a further channel: the session's key, which signs all messages of a log-on but the last.
    pub session_signing: Option<Arc<SigningKey>>,
    /// ChannelSequence of requests, and whether they are marked as replays.
    pub sequence: u16,
    pub replay: bool,
    pub sign: bool,
    pub seal: bool,
    /// The name by which it calls the server.
    pub called: &'static str,
}

/// A successful authentication.
pub(super) struct Authenticated {
    pub header: Header,
    pub frame: Bytes,
    pub session_key: SessionKey,
    pub preauth: Preauth,
}

/// One response: its header, and its bytes including the header.
pub(super) type Response = (Header, Bytes);

impl Client {
    /// A request with the next MessageId, unsigned. Asks for many credits.
    pub fn request(&mut self, command: Command, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        self.request_charged(command, 1, body)
    }

    pub fn request_charged(
        &mut self,
        command: Command,
        charge: u16,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut header = Header::request(command, self.next_id);
        header.credits = 64;
        header.credit_charge = charge;
        header.set_channel_sequence(self.sequence);
        if self.replay {
            header.flags |= Flags::REPLAY_OPERATION;
        }
        header.session_id = self.session;
        header.id = Id::tree(self.tree);
        self.next_id = self.next_id.wrapping_add(u64::from(charge.max(1)));
        let mut out = header.to_bytes().to_vec();
        body(&mut out);
        out
    }

    /// Signs or encrypts as configured, and sends.
    pub fn send(&self, mut message: Vec<u8>) {
        if self.seal {
            message = self.sealed(&message);
        } else if self.sign {
            self.keys.as_ref().unwrap().signing.sign(Sender::Client, &mut message);
        }
        self.wire.send(message);
    }

    pub fn sealed(&self, message: &[u8]) -> Vec<u8> {
        let mut out = vec![0; TRANSFORM_LEN];
        out.extend_from_slice(message);
        self.keys.as_ref().unwrap().sealer.as_ref().unwrap().seal(self.session, &mut out).unwrap();
        out
    }

    /// The next message, decrypted; it must be encrypted exactly if the client encrypts.
    pub async fn recv_frame(&self) -> Option<Bytes> {
        let message = self.wire.recv(&self.pool).await?;
        if !message.starts_with(&[0xFD]) {
            assert!(!self.seal, "an answer in the clear");
            return Some(message);
        }
        assert!(self.seal, "an encrypted answer to a plain request");
        let header = crypto::transform(&message).unwrap();
        assert_eq!(header.session_id, self.session);
        let mut plain = vec![0; header.original_message_size as usize];
        self.keys.as_ref().unwrap().opener.as_ref().unwrap().open(&message, &mut plain).unwrap();
        Some(plain.into())
    }

    /// The next response, alone in its message; verifies its signature, if any.
    pub async fn recv(&mut self) -> Option<Response> {
        let mut responses = self.recv_all().await?;
        assert_eq!(responses.len(), 1, "one response expected");
        responses.pop()
    }

    /// The responses of the next message.
    pub async fn recv_all(&mut self) -> Option<Vec<Response>> {
        let frame = self.recv_frame().await?;
        let responses: Vec<Response> = compound::split(frame)
            .map(|message| {
                let message = message.unwrap();
                let header = Header::parse(&message).unwrap();
                assert!(header.is_response());
                if header.flags.contains(Flags::SIGNED) {
                    let keys = self.keys.as_ref().expect("signed without keys");
                    assert!(keys.signing.verify(Sender::Server, &message), "signature of {header:?}");
                }
                (header, message)
            })
            .collect();
        self.credits += responses.iter().map(|(header, _)| u64::from(header.credits)).sum::<u64>();
        Some(responses)
    }

    /// Sends one request and takes its response.
    pub async fn call(&mut self, command: Command, body: impl FnOnce(&mut Vec<u8>)) -> Response {
        let request = self.request(command, body);
        self.send(request);
        self.recv().await.expect("the server closed the connection")
    }

    /// The status of a call.
    pub async fn status(&mut self, command: Command, body: impl FnOnce(&mut Vec<u8>)) -> NtStatus {
        self.call(command, body).await.0.status
    }

    /// Whether the server still answers.
    pub async fn is_served(&mut self) -> bool {
        let request = self.request(Command::Echo, |out| echo::Request.emit(out));
        self.send(request);
        match self.recv().await {
            Some((header, _)) => {
                assert_eq!(header.command, Command::Echo);
                header.status == NtStatus::SUCCESS
            }
            None => false,
        }
    }

    /// Asserts that the server has closed.
    pub async fn assert_closed(&mut self) {
        assert!(self.wire.recv(&self.pool).await.is_none(), "the connection goes on");
    }

    pub async fn negotiate(&mut self, offer: Offer) -> negotiate::Response {
        let (header, response) = self.try_negotiate(offer).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        response.unwrap()
    }

    pub async fn try_negotiate(&mut self, offer: Offer) -> (Header, Option<negotiate::Response>) {
        let request = offer.emit(self.next_id);
        self.next_id += 1;
        self.wire.send(request.clone());
        let (header, bytes) = self.recv().await.expect("the server closed the connection");
        if header.status != NtStatus::SUCCESS {
            return (header, None);
        }
        let response = negotiate::Response::parse(&bytes).unwrap();
        self.profile.dialect = response.dialect;
        self.profile.signing = match response.dialect {
            d if d < Dialect::V3_0 => SigningId::HMAC_SHA256,
            _ => SigningId::AES_CMAC,
        };
        self.profile.cipher =
            response.capabilities.contains(Capabilities::ENCRYPTION).then_some(CipherId::AES_128_CCM);
        for context in &response.contexts {
            match context {
                Context::Encryption(ciphers) => {
                    self.profile.cipher = ciphers.first().copied().filter(|c| c.0 != 0)
                }
                Context::Signing(algorithms) => self.profile.signing = algorithms[0],
                _ => {}
            }
        }
        self.preauth.update(&request);
        self.preauth.update(&bytes);
        (header, Some(response))
    }

    /// Both round trips of authentication. On success the final response was signed with the new keys.
    pub async fn log_on(&mut self, user: &str, password: &str) -> Result<session_setup::Response, NtStatus> {
        self.log_on_with(user, password, |_| ()).await
    }

    /// The same, with a change to each request.
    pub async fn log_on_with(
        &mut self,
        user: &str,
        password: &str,
        change: impl Fn(&mut session_setup::Request),
    ) -> Result<session_setup::Response, NtStatus> {
        // Reauthentication is protected like every other request.
        let signer = match &self.keys {
            Some(keys) if self.sign && !self.seal => Some(keys.signing.clone()),
            _ => None,
        };
        match self.authenticate(user, password, signer, change).await {
            Ok(last) => {
                if self.keys.is_none() {
                    let keys =
                        SessionKeys::derive(Role::Client, &self.profile, &last.session_key, &last.preauth);
                    self.keys = Some(keys);
                    self.material = Some((self.profile, last.session_key, last.preauth));
                }
                if !self.seal {
                    assert!(last.header.flags.contains(Flags::SIGNED), "the final response is signed");
                    assert!(self.keys.as_ref().unwrap().signing.verify(Sender::Server, &last.frame));
                }
                Ok(session_setup::Response::parse(&last.frame).unwrap())
            }
            Err(status) => {
                if self.keys.is_none() {
                    self.session = 0;
                }
                Err(status)
            }
        }
    }

    /// Binds this connection to the session of another one.
    pub async fn bind(&mut self, to: &Client) -> Result<(), NtStatus> {
        let (profile, key, preauth) = to.material.clone().unwrap();
        let session = SessionKeys::derive(Role::Client, &profile, &key, &preauth);
        self.bind_as("alice", PASSWORD, to.session, session).await
    }

    /// The same, with every parameter.
    pub async fn bind_as(
        &mut self,
        user: &str,
        password: &str,
        id: u64,
        session: SessionKeys,
    ) -> Result<(), NtStatus> {
        self.session = id;
        let binding = |setup: &mut session_setup::Request| {
            setup.flags = session_setup::RequestFlags::BINDING;
        };
        let last = self.authenticate(user, password, Some(session.signing.clone()), binding).await?;
        let signing = Arc::new(crypto::signing_key(&self.profile, &last.session_key, &last.preauth));
        assert!(last.header.flags.contains(Flags::SIGNED), "the final response is signed");
        assert!(signing.verify(Sender::Server, &last.frame), "with the key of the channel");
        self.session_signing = Some(session.signing.clone());
        self.keys = Some(SessionKeys { signing, ..session });
        Ok(())
    }

    /// Both round trips; returns the result if the last one succeeded.
    pub async fn authenticate(
        &mut self,
        user: &str,
        password: &str,
        signer: Option<Arc<SigningKey>>,
        change: impl Fn(&mut session_setup::Request),
    ) -> Result<Authenticated, NtStatus> {
        let credentials =
            Credentials { user: user.into(), domain: String::new(), secret: Secret::password(password) };
        let mut session_key = Zeroizing::new([0; 16]);
        weft_machine::random::fill(&mut *session_key).unwrap();
        let nonces = Nonces { client_challenge: *b"clientch", session_key };
        let (mut initiator, mut token) = Initiator::start(credentials, self.called, nonces);
        let mut preauth = self.preauth.clone();
        loop {
            let mut setup = session_setup::Request {
                flags: session_setup::RequestFlags::NONE,
                security_mode: SecurityMode::SIGNING_ENABLED,
                capabilities: Capabilities::NONE,
                previous_session_id: 0,
                token: token.into(),
            };
            change(&mut setup);
            let mut request = self.request(Command::SessionSetup, |out| setup.emit(out));
            if let Some(key) = &signer {
                key.sign(Sender::Client, &mut request);
            }
            preauth.update(&request);
            match self.seal {
                true => self.send(request),
                false => self.wire.send(request),
            }
            let Some(frame) = self.recv_frame().await else { return Err(NtStatus::CONNECTION_DISCONNECTED) };
            let header = Header::parse(&frame).unwrap();
            self.credits += u64::from(header.credits);
            match header.status {
                NtStatus::MORE_PROCESSING_REQUIRED => {
                    if let Some(key) = self.session_signing.as_ref().or(signer.as_ref()) {
                        assert!(key.verify(Sender::Server, &frame), "signed as the request was");
                    }
                    preauth.update(&frame);
                    self.session = header.session_id;
                    let response = session_setup::Response::parse(&frame).unwrap();
                    token = initiator.step(&response.token, 1).unwrap().unwrap();
                }
                NtStatus::SUCCESS => {
                    let response = session_setup::Response::parse(&frame).unwrap();
                    assert_eq!(initiator.step(&response.token, 1), Ok(None));
                    let session_key = Zeroizing::new(*initiator.session_key());
                    return Ok(Authenticated { header, frame, session_key, preauth });
                }
                status => return Err(status),
            }
        }
    }

    /// Connects to the share; 3.1.1 requires a signature for that.
    pub async fn tree(&mut self) {
        let (header, _) = self.tree_connect(r"\\server\data").await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        self.tree = header.tree_id().unwrap();
    }

    pub async fn tree_connect(&mut self, path: &str) -> Response {
        let sign = std::mem::replace(&mut self.sign, true);
        let tree = std::mem::replace(&mut self.tree, 0);
        let request = tree_connect::Request { flags: tree_connect::RequestFlags::NONE, path: path.into() };
        let response = self.call(Command::TreeConnect, |out| request.emit(out)).await;
        (self.sign, self.tree) = (sign, tree);
        response
    }

    /// Opens or creates a file with all rights.
    pub async fn open(&mut self, name: &str, options: CreateOptions) -> FileId {
        let (header, bytes) = self.call(Command::Create, |out| create_request(name, options).emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        create::Response::parse(&bytes).unwrap().file
    }

    pub async fn close(&mut self, file: FileId) -> NtStatus {
        self.status(Command::Close, |out| close_request(file).emit(out)).await
    }

    pub async fn write(&mut self, file: FileId, data: &[u8]) -> NtStatus {
        let request = write::Request {
            offset: 0,
            file,
            channel: channel::Channel::None,
            remaining_bytes: 0,
            flags: write::Flags::NONE,
            data: Bytes::copy_from_slice(data),
        };
        let charge = data.len().div_ceil(65_536).max(1) as u16;
        let request = self.request_charged(Command::Write, charge, |out| {
            request.emit_head(out);
            out.extend_from_slice(data);
        });
        self.send(request);
        self.recv().await.unwrap().0.status
    }

    pub async fn read(&mut self, file: FileId, length: u32) -> (NtStatus, Bytes) {
        let charge = length.div_ceil(65_536).max(1) as u16;
        let request = self.request_charged(Command::Read, charge, |out| read_request(file, length).emit(out));
        self.send(request);
        let (header, bytes) = self.recv().await.unwrap();
        let data = match header.status {
            NtStatus::SUCCESS => read::Response::parse(&bytes).unwrap().data,
            _ => Bytes::new(),
        };
        (header.status, data)
    }
}

pub(super) fn create_request(name: &str, options: CreateOptions) -> create::Request {
    create::Request {
        oplock: OplockLevel::NONE,
        impersonation: 2,
        desired_access: AccessMask::FILE_ALL,
        attributes: FileAttributes::NONE,
        share_access: ShareAccess(7),
        disposition: CreateDisposition::OpenIf,
        options,
        name: name.into(),
        contexts: Vec::new(),
    }
}

pub(super) fn close_request(file: FileId) -> close::Request {
    close::Request { flags: close::Flags::NONE, file }
}

pub(super) fn read_request(file: FileId, length: u32) -> read::Request {
    read::Request {
        padding: 0,
        flags: read::Flags::NONE,
        length,
        offset: 0,
        file,
        minimum_count: 0,
        channel: channel::Channel::None,
        remaining_bytes: 0,
    }
}

/// Links requests to a compound; all but the first are marked as related if `related`.
pub(super) fn link(requests: Vec<Vec<u8>>, related: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let last = requests.len() - 1;
    for (i, mut request) in requests.into_iter().enumerate() {
        if i > 0 && related {
            let flags = Header::parse(&request).unwrap().flags | Flags::RELATED_OPERATIONS;
            header::patch_flags(&mut request, flags);
        }
        let start = out.len();
        out.extend(request);
        if i < last {
            compound::link(&mut out, start);
        }
    }
    out
}

/// Signs each member of a compound.
pub(super) fn sign_each(keys: &SessionKeys, compound: &mut [u8]) {
    let mut rest = compound;
    loop {
        let next = u32::from_le_bytes(rest[20..24].try_into().unwrap()) as usize;
        let len = if next == 0 { rest.len() } else { next };
        let (member, tail) = rest.split_at_mut(len);
        keys.signing.sign(Sender::Client, member);
        if next == 0 {
            return;
        }
        rest = tail;
    }
}

/// Every message is at least a header long.
pub(super) const SHORTEST: usize = HEADER_LEN;
