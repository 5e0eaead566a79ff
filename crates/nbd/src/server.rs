//! The server: what it exports, its limits, and one connection from greeting to end.
//!
//! Spec: doc/proto.md "Protocol phases". Owns: the exports. Does not: accept connections (see `weft::listen`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt::{self, Drain};
use weft_machine::{Pool, Stream};
use weft_store::block::Block;
use weft_wire::nbd::Malformed;
use weft_wire::nbd::handshake::{CLIENT_FLAGS_LEN, OPTION_HEADER_LEN, OptionHeader};

use crate::connection::{self, Agreed};
use crate::negotiation::{Negotiation, Step};
use crate::receiver::Receiver;
use crate::watch::Watch;
use weft_machine::net::{Link, Tls};

/// A volume under the name that clients ask for.
#[derive(Clone, Debug)]
pub struct Export {
    /// The name.
    pub name: String,
    /// A sentence for people, which `nbdinfo` shows.
    pub description: String,
    /// Its bytes.
    pub block: Arc<dyn Block>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a connection may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Options of a handshake.
    pub options: usize,
    /// Bytes of an option's data that are looked at; a longer one is refused.
    pub option_bytes: u32,
    /// Bytes of an option's data that are skipped after it was refused; a longer one ends the connection.
    pub skipped_bytes: u32,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// Bytes of a READ or WRITE. Clients that do not ask assume 32 MiB ("Block size constraints").
    pub request_bytes: u32,
    /// A WRITE that is longer is carried out in pieces of this size, at most a pool buffer.
    pub piece_bytes: u32,
    /// How long [`Limits::payload_step`] bytes of a payload may take to come: it has a buffer meanwhile.
    pub payload: Duration,
    /// See [`Limits::payload`].
    pub payload_step: usize,
    /// Requests that are not answered yet.
    pub requests: usize,
    /// Bytes of WRITEs that are not answered yet.
    pub unanswered_bytes: usize,
    /// Replies that the client has not taken; then no more requests are taken from it.
    pub replies: usize,
    /// Extents of a BLOCK_STATUS reply.
    pub extents: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            options: 64,
            option_bytes: 32 << 10,
            skipped_bytes: 1 << 20,
            handshake: Duration::from_secs(30),
            request_bytes: 32 << 20,
            piece_bytes: 4 << 20,
            // 64 KiB a second at least: a piece of 4 MiB is here within about a minute, and half of it is not kept for longer.
            payload: Duration::from_secs(10),
            payload_step: 640 << 10,
            requests: 128,
            unanswered_bytes: 64 << 20,
            replies: 32,
            extents: 256,
        }
    }
}

/// What a server is made of.
#[derive(Debug)]
pub struct Config {
    /// What it exports; names differ.
    pub exports: Vec<Export>,
    /// Buffers for what is sent.
    pub pool: Pool,
    /// Buffers for the payload of WRITEs, which clients may be slow to send: a part of the memory of its own, so that nobody but
    /// they themselves waits for them.
    pub received: Pool,
    /// With it, nothing is told or done but under TLS.
    pub tls: Option<Tls>,
    /// Limits of each connection.
    pub limits: Limits,
}

/// Why a connection ended other than in order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client sent what is no message.
    #[error("the client sent no NBD message: {0}")]
    Malformed(#[from] Malformed),
    /// The client did what it must not.
    #[error("the client broke a rule: {0}")]
    Violation(&'static str),
    /// The connection or, with an answer half sent, the volume failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Serves exports.
pub struct Server {
    pub(crate) exports: Vec<Export>,
    pub(crate) pool: Pool,
    pub(crate) received: Pool,
    pub(crate) limits: Limits,
    tls: Option<Tls>,
    pub(crate) drain: Drain,
}

impl Server {
    /// A server of `config`.
    pub fn new(config: Config) -> Arc<Server> {
        let Config { exports, pool, received, tls, limits } = config;
        Arc::new(Server { exports, pool, received, limits, tls, drain: Drain::default() })
    }

    /// No more requests are taken; those in flight are answered, then connections end.
    pub fn drain(&self) {
        self.drain.begin();
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: Stream) -> Result<(), Error> {
        self.serve_watched(stream, &Watch::default()).await
    }

    /// [`Server::serve`]; what it does is counted in `watch`.
    pub async fn serve_watched(&self, stream: Stream, watch: &Watch) -> Result<(), Error> {
        let mut link = Link::new(stream);
        let mut receiver = Receiver::default();
        let greeted = rt::timeout(self.limits.handshake, self.negotiate(&mut link, &mut receiver));
        match greeted.await {
            Ok(Ok(Some(agreed))) => {
                watch.agreed(&agreed.export.name, self.tls.is_some());
                connection::serve(self, &link, receiver, agreed, watch).await
            }
            Ok(Ok(None)) => Ok(()),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::Violation("no export was chosen in time")),
        }
    }

    /// The handshake; `None` when the client took its leave.
    async fn negotiate<'a>(
        &'a self,
        link: &mut Link,
        receiver: &mut Receiver,
    ) -> Result<Option<Agreed<'a>>, Error> {
        let mut negotiation = Negotiation::new(&self.exports, &self.limits, self.tls.is_some());
        link.send_all(&[Negotiation::greeting().to_vec().into()]).await?;
        let mut flags = [0; CLIENT_FLAGS_LEN];
        if !receiver.exact(link, &mut flags).await? {
            // A look at the greeting: port scanners and health checks.
            return Ok(None);
        }
        negotiation.client_flags(&flags)?;
        for _ in 0..self.limits.options {
            let mut header = [0; OPTION_HEADER_LEN];
            if !receiver.exact(link, &mut header).await? {
                return Ok(None);
            }
            let header = OptionHeader::parse(&header)?;
            let step = if header.len > self.limits.option_bytes {
                if header.len > self.limits.skipped_bytes {
                    return Err(Error::Violation("an option far too long"));
                }
                receiver.skip(link, header.len as usize).await?;
                negotiation.too_long(header.code)
            } else {
                let mut data = vec![0; header.len as usize];
                if !data.is_empty() && !receiver.exact(link, &mut data).await? {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                negotiation.option(header.code, &data)
            };
            match step {
                Step::Continue(replies) => link.send_all(&[replies.into()]).await?,
                Step::StartTls(reply) => {
                    // What came before the keys were agreed on could have been put there by anybody.
                    if receiver.is_ahead() {
                        return Err(Error::Violation("bytes ahead of TLS"));
                    }
                    link.send_all(&[reply.into()]).await?;
                    if let Some(tls) = &self.tls {
                        link.start_tls(tls).await?;
                    }
                }
                Step::Start { replies, export, structured, context } => {
                    link.send_all(&[replies.into()]).await?;
                    let export = self.exports.get(export).ok_or(Error::Violation("an export that is not"))?;
                    return Ok(Some(Agreed { export, structured, context }));
                }
                Step::End(replies) => {
                    // A client that says goodbye need not wait for the answer.
                    if let Err(e) = link.send_all(&[replies.into()]).await {
                        tracing::debug!("the client left first: {e}");
                    }
                    return Ok(None);
                }
            }
        }
        Err(Error::Violation("too many options"))
    }
}
