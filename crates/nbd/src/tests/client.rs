//! A scripted client over a real socket, which parses every reply.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::buf::MAX_BUF;
use weft_machine::net::Socket;
use weft_machine::{Listener, Pool, Stream, rt};
use weft_store::block::Block;
use weft_store::volume::plain::Plain;
use weft_wire::nbd::handshake::{
    BASE_ALLOCATION, Choice, ClientFlags, GREETING_LEN, Greeting, INFO_BLOCK_SIZE, INFO_DESCRIPTION, Info,
    OptionCode, Queries, REPLY_HEADER_LEN, Reply, Wanted,
};
use weft_wire::nbd::transmission::{
    CHUNK_HEADER_LEN, Chunk, ChunkHeader, Code, Command, ReplyHeader, Request, SIMPLE_REPLY_LEN,
};

use crate::{Config, Error, Export, Limits, Server};

/// Size of every volume in these tests.
pub(super) const SIZE: u64 = 64 << 20;

/// A server whose exports are in memory.
pub(super) fn server(names: &[&str], limits: Limits) -> Arc<Server> {
    let blocks = names.iter().map(|_| Arc::new(Plain::in_memory(SIZE).expect("memory")) as Arc<dyn Block>);
    server_over(names, blocks.collect(), limits)
}

pub(super) fn server_over(names: &[&str], blocks: Vec<Arc<dyn Block>>, limits: Limits) -> Arc<Server> {
    let exports = names.iter().zip(blocks).map(|(name, block)| Export {
        name: (*name).to_owned(),
        description: format!("the volume {name}"),
        block,
        read_only: name.starts_with("ro"),
    });
    Server::new(Config {
        exports: exports.collect(),
        pool: Pool::new(4 * MAX_BUF),
        received: Pool::new(4 * MAX_BUF),
        tls: None,
        limits,
    })
}

/// How the server's side of a connection ended.
#[derive(Clone, Default)]
pub(super) struct Ended(Rc<Cell<Option<Result<(), Error>>>>);

impl Ended {
    /// Waits for it.
    pub(super) async fn wait(&self) -> Result<(), Error> {
        loop {
            if let Some(ended) = self.0.take() {
                return ended;
            }
            rt::yield_now().await;
        }
    }
}

/// A reply to one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Answer {
    pub cookie: u64,
    /// Data of a READ, in place.
    pub data: Vec<u8>,
    pub error: Option<Code>,
    /// Chunks other than data.
    pub chunks: Vec<Chunk>,
    /// Number of data chunks.
    pub pieces: usize,
}

pub(super) struct Client {
    pub stream: Stream,
    pub structured: bool,
    pub ended: Ended,
    cookie: u64,
}

impl Client {
    /// Connects, and reads and answers the greeting.
    pub(super) async fn connect(server: &Arc<Server>) -> Client {
        Client::silent(server).greeted().await
    }

    async fn greeted(self) -> Client {
        let client = self;
        let mut greeting = [0; GREETING_LEN];
        client.exact(&mut greeting).await;
        assert_eq!(Greeting::parse(&greeting).expect("a greeting").flags, 3);
        client.send(&ClientFlags { fixed_newstyle: true, no_zeroes: true }.emit()).await;
        client
    }

    /// Connects and sends nothing.
    pub(super) fn silent(server: &Arc<Server>) -> Client {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let over =
            |socket| Stream::from_socket(Socket::from_unix(socket).expect("connected")).expect("a stream");
        Client::over(server, over(ours), over(theirs))
    }

    /// The same by TCP.
    pub(super) async fn silent_by_tcp(server: &Arc<Server>) -> Client {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let ours = Stream::connect(listener.local_addr()).await.expect("connected");
        let theirs = Stream::from_socket(listener.accept().await.expect("accepted")).expect("a stream");
        Client::over(server, ours, theirs)
    }

    fn over(server: &Arc<Server>, stream: Stream, theirs: Stream) -> Client {
        let ended = Ended::default();
        let (server, end) = (server.clone(), ended.clone());
        rt::spawn(async move {
            end.0.set(Some(server.serve(theirs).await));
        })
        .detach();
        Client { stream, structured: false, ended, cookie: 100 }
    }

    /// Connects and chooses `export`, with structured replies and `base:allocation`, or with neither.
    pub(super) async fn go(server: &Arc<Server>, export: &str, structured: bool) -> Client {
        Client::connect(server).await.gone(export, structured).await
    }

    /// The same by TCP.
    pub(super) async fn go_by_tcp(server: &Arc<Server>, export: &str) -> Client {
        Client::silent_by_tcp(server).await.greeted().await.gone(export, true).await
    }

    async fn gone(mut self, export: &str, structured: bool) -> Client {
        let client = &mut self;
        if structured {
            assert_eq!(client.option(Choice::StructuredReply).await, [Reply::Ack]);
            client.structured = true;
            let queries = Queries { export: export.into(), queries: vec![BASE_ALLOCATION.into()] };
            let context = Reply::MetaContext { id: 1, name: BASE_ALLOCATION.into() };
            assert_eq!(client.option(Choice::SetMetaContext(queries)).await, [context, Reply::Ack]);
        }
        let replies = client.option(Choice::Go(wanted(export))).await;
        assert!(matches!(&replies[..], [Reply::Info(Info::Export { size: SIZE, .. }), .., Reply::Ack]));
        self
    }

    pub(super) async fn send(&self, bytes: &[u8]) {
        self.stream.send_all(&[bytes.to_vec().into()]).await.expect("it is sent");
    }

    /// Fills `into`; false at the end of the stream.
    pub(super) async fn try_exact(&self, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            match self.stream.recv(&mut [IoSliceMut::new(&mut into[done..])]).await {
                Ok(n @ 1..) => done += n,
                Ok(0) | Err(_) => return false,
            }
        }
        true
    }

    async fn exact(&self, into: &mut [u8]) {
        assert!(self.try_exact(into).await, "the server hung up");
    }

    /// Sends an option and reads its replies up to the final one.
    pub(super) async fn option(&self, choice: Choice) -> Vec<Reply> {
        let bytes = choice.emit();
        self.send(&bytes).await;
        let code = OptionCode(u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")));
        self.replies(code).await
    }

    pub(super) async fn replies(&self, code: OptionCode) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            let mut header = [0; REPLY_HEADER_LEN];
            self.exact(&mut header).await;
            let (to, kind, len) = Reply::parse_header(&header).expect("a reply");
            assert_eq!(to, code);
            let mut data = vec![0; len as usize];
            self.exact(&mut data).await;
            let reply = Reply::parse(kind, &data).expect("a reply");
            let last = matches!(reply, Reply::Ack | Reply::Refused(..));
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// Sends a request; returns its cookie.
    pub(super) async fn ask(
        &mut self,
        command: Command,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let request = Request { flags, command, cookie: self.cookie, offset, len };
        self.send(&[&request.emit()[..], data].concat()).await;
        self.cookie
    }

    /// Sends a request and reads its reply.
    pub(super) async fn call(&mut self, command: Command, flags: u16, offset: u64, len: u32) -> Answer {
        let cookie = self.ask(command, flags, offset, len, &[]).await;
        let reads = if command == Command::READ { len } else { 0 };
        let answer = self.answer(offset, reads).await;
        assert_eq!(answer.cookie, cookie);
        answer
    }

    pub(super) async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Option<Code> {
        let cookie = self.ask(Command::WRITE, flags, offset, data.len() as u32, data).await;
        let answer = self.answer(0, 0).await;
        assert_eq!(answer.cookie, cookie);
        answer.error
    }

    pub(super) async fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let answer = self.call(Command::READ, 0, offset, len).await;
        assert_eq!(answer.error, None);
        answer.data
    }

    /// The next whole reply, which may be that of a READ of `len` bytes at `offset`.
    pub(super) async fn answer(&self, offset: u64, len: u32) -> Answer {
        let mut answer = Answer { data: vec![0; len as usize], ..Answer::default() };
        let mut covered = 0;
        loop {
            let mut bytes = [0; CHUNK_HEADER_LEN];
            self.exact(&mut bytes[..SIMPLE_REPLY_LEN]).await;
            let simple = ReplyHeader::parse(&bytes[..SIMPLE_REPLY_LEN]);
            if let Ok(ReplyHeader::Simple(reply)) = simple {
                assert!(!self.structured || len == 0, "a READ is answered in chunks");
                answer.cookie = reply.cookie;
                answer.error = reply.error;
                if reply.error.is_none() {
                    self.exact(&mut answer.data).await;
                }
                return answer;
            }
            assert!(self.structured, "no chunks were asked for");
            self.exact(&mut bytes[SIMPLE_REPLY_LEN..]).await;
            let Ok(ReplyHeader::Chunk(header)) = ReplyHeader::parse(&bytes) else { panic!("{bytes:x?}") };
            answer.cookie = header.cookie;
            match self.chunk(&header).await {
                Chunk::Data { offset: at, len } => {
                    let start = usize::try_from(at - offset).expect("inside");
                    self.exact(&mut answer.data[start..start + len as usize]).await;
                    answer.pieces += 1;
                    covered += len;
                }
                Chunk::Error { code, offset, message } => {
                    answer.error = Some(code);
                    answer.chunks.push(Chunk::Error { code, offset, message });
                }
                Chunk::None => {}
                other => answer.chunks.push(other),
            }
            if header.done {
                assert!(answer.error.is_some() || covered == len, "{covered} of {len} bytes came");
                return answer;
            }
        }
    }

    async fn chunk(&self, header: &ChunkHeader) -> Chunk {
        let mut payload = vec![0; Chunk::fixed_len(header) as usize];
        self.exact(&mut payload).await;
        Chunk::parse(header, &payload).expect("a chunk")
    }

    /// Whether the server closes the connection without another byte.
    pub(super) async fn is_over(&self) -> bool {
        !self.try_exact(&mut [0]).await
    }
}

pub(super) fn wanted(export: &str) -> Wanted {
    Wanted { export: export.into(), infos: vec![INFO_BLOCK_SIZE, INFO_DESCRIPTION] }
}

/// Runs a story in an event loop of its own.
pub(super) fn tell<F: Future<Output = ()>>(story: F) {
    rt::block_on(story).expect("the loop starts");
}
