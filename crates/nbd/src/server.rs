//! The server: runs one connection from greeting to end.
//!
//! See doc/proto.md "Protocol phases". It owns the exports; `weft::listen` accepts connections.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::net::{Link, Tls};
use weft_machine::rt::{self, Drain};
use weft_machine::{LogLimit, Pool, Stream};
use weft_wire::nbd::handshake::{CLIENT_FLAGS_LEN, OPTION_HEADER_LEN, OptionHeader};

use crate::connection;
use crate::meter::Meter;
use crate::negotiation::{Agreed, Negotiation, Step};
use crate::receiver::Receiver;
use crate::resources::{Error, Export, Limits, Resources};
use crate::watch::Watch;

/// The log is reminded of an export's failing requests after this time, because each client repeats them as long as
/// they fail.
const REMIND: Duration = Duration::from_secs(600);

/// The configuration of a server.
#[derive(Debug)]
pub struct Config {
    /// The exports, whose names must differ.
    pub exports: Vec<Export>,
    /// Buffers for data to send.
    pub pool: Pool,
    /// Buffers for the payload of WRITEs, which clients may send slowly: separate memory, so that only writers wait
    /// for it.
    pub received: Pool,
    /// If set, everything but STARTTLS requires TLS.
    pub tls: Option<Tls>,
    /// Limits of each connection.
    pub limits: Limits,
}

/// Serves exports.
pub struct Server {
    pub(crate) exports: Vec<Export>,
    /// Limits the log of each export's failures, across all connections.
    failures: Vec<LogLimit>,
    pub(crate) resources: Resources,
    tls: Option<Tls>,
}

impl Server {
    /// Creates a server.
    pub fn new(config: Config) -> Arc<Server> {
        let Config { exports, pool, received, tls, limits } = config;
        let resources = Resources { pool, received, limits, drain: Drain::default() };
        let failures = exports.iter().map(|_| LogLimit::every(REMIND)).collect();
        Arc::new(Server { exports, failures, resources, tls })
    }

    /// An export by its index, with the log limit of its failures.
    pub(crate) fn chosen(&self, export: usize) -> Option<(&Export, &LogLimit)> {
        self.exports.get(export).zip(self.failures.get(export))
    }

    /// Accepts no more requests; those in flight are answered, then connections end.
    pub fn drain(&self) {
        self.resources.drain.begin();
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: Stream) -> Result<(), Error> {
        self.serve_watched(stream, &Watch::default()).await
    }

    /// Like [`Server::serve`]; counts the connection's activity in `watch`.
    pub fn serve_watched<'a>(
        &'a self,
        stream: Stream,
        watch: &'a Watch,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let is_unix = stream.peer().addr().is_none();
            let client = stream.peer().to_string().into();
            let mut link = Link::new(stream);
            let mut receiver = Receiver::default();
            match self.greeted(&mut link, &mut receiver).await {
                Ok(Some(agreed)) => {
                    watch.agreed(&agreed.export.name, self.tls.is_some());
                    let meter = Meter::new(is_unix, &agreed.export.name);
                    connection::serve(&self.resources, &link, receiver, agreed, (watch, meter, client)).await
                }
                Ok(None) => Ok(()),
                Err(e) => Err(e),
            }
        })
    }

    /// The handshake within its time; `None` if the client ended it, or the server drains: nothing has been asked for yet.
    async fn greeted<'a>(
        &'a self,
        link: &mut Link,
        receiver: &mut Receiver,
    ) -> Result<Option<Agreed<'a>>, Error> {
        let mut place = self.resources.drain.join();
        let mut negotiated =
            pin!(rt::timeout(self.resources.limits.handshake, self.negotiate(link, receiver)));
        poll_fn(|cx| match negotiated.as_mut().poll(cx) {
            Poll::Ready(Ok(agreed)) => Poll::Ready(agreed),
            Poll::Ready(Err(_)) => Poll::Ready(Err(Error::Violation("no export was chosen in time"))),
            Poll::Pending if place.poll(cx) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// The handshake; `None` if the client ended it.
    async fn negotiate<'a>(
        &'a self,
        link: &mut Link,
        receiver: &mut Receiver,
    ) -> Result<Option<Agreed<'a>>, Error> {
        let mut negotiation = Negotiation::new(&self.exports, &self.resources.limits, self.tls.is_some());
        link.send_all(&[Negotiation::greeting().to_vec().into()]).await?;
        let mut flags = [0; CLIENT_FLAGS_LEN];
        if !receiver.exact(link, &mut flags).await? {
            // Port scanners and health checks look at the greeting only.
            return Ok(None);
        }
        negotiation.client_flags(&flags)?;
        for _ in 0..self.resources.limits.options {
            let mut header = [0; OPTION_HEADER_LEN];
            if !receiver.exact(link, &mut header).await? {
                return Ok(None);
            }
            let header = OptionHeader::parse(&header)?;
            let step = if header.len > self.resources.limits.option_bytes {
                if header.len > self.resources.limits.skipped_bytes {
                    return Err(Error::Violation("an option that is far too long"));
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
                    // Bytes received before the key exchange could have been injected by anybody.
                    if receiver.is_ahead() {
                        return Err(Error::Violation("bytes before the TLS handshake"));
                    }
                    link.send_all(&[reply.into()]).await?;
                    if let Some(tls) = &self.tls {
                        link.start_tls(tls).await?;
                    }
                }
                Step::Start { replies, export, structured, context } => {
                    link.send_all(&[replies.into()]).await?;
                    let chosen = self.chosen(export);
                    let (export, failures) =
                        chosen.ok_or(Error::Violation("an export that does not exist"))?;
                    return Ok(Some(Agreed { export, failures, structured, context }));
                }
                Step::End(replies) => {
                    // A client that sends ABORT need not wait for the reply.
                    if let Err(e) = link.send_all(&[replies.into()]).await {
                        tracing::debug!("the client disconnected first: {e}");
                    }
                    return Ok(None);
                }
            }
        }
        Err(Error::Violation("too many options"))
    }
}
