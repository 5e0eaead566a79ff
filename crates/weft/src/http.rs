//! A small HTTP/1.1 server for administrators, on a thread of its own: it answers GET from what it is given.
//!
//! The thread runs one tokio runtime, so that no request runs on a core that serves data. hyper parses, rustls encrypts.
//! This file owns the limits of time and of a request's size, [`places`] the number of connections, and [`guard`] who
//! may ask.

mod guard;
mod places;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use weft_machine::net::Tls;

pub(crate) use self::guard::{Clients, Needs};
use self::places::{Place, Places};

/// How long a client may take for the handshake of TLS, to send the head of a request, or be silent before it.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// After this time a connection ends with its next answer; a client that scrapes for longer connects again.
const LIFETIME: Duration = Duration::from_secs(120);
/// How long an answer may take after that.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Headers in it.
const MAX_HEADERS: usize = 64;

/// An answer, to GET and HEAD.
pub(crate) struct Answer {
    /// 200, or 503 if the server is not healthy.
    pub status: StatusCode,
    /// The type of its content.
    pub content_type: &'static str,
    /// Its content.
    pub content: Bytes,
    /// Its Content-Security-Policy, if it is a document.
    pub policy: Option<HeaderValue>,
}

impl Answer {
    /// 200.
    pub(crate) fn ok(content_type: &'static str, content: impl Into<Bytes>) -> Answer {
        Answer { status: StatusCode::OK, content_type, content: content.into(), policy: None }
    }
}

/// The future of an answer.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// The future of work that no answer waits for.
pub(crate) type Background = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is served.
pub(crate) trait Site: Send + Sync + 'static {
    /// What a path needs of a client; `None`: there is no such page.
    fn needs(&self, path: &str) -> Option<Needs>;

    /// Answers a request for a page. `accept` is its Accept header.
    fn answer(&self, path: &str, accept: &str) -> Answering;

    /// What happens beside the answers, until the process ends.
    fn background(&self) -> Background;
}

/// A bound socket.
pub(crate) enum Socket {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Serves until the process ends, over HTTPS if there is TLS.
pub(crate) fn serve(
    socket: Socket,
    tls: Option<Tls>,
    clients: Clients,
    site: Arc<dyn Site>,
) -> io::Result<()> {
    match &socket {
        Socket::Tcp(listener) => listener.set_nonblocking(true)?,
        Socket::Unix(listener) => listener.set_nonblocking(true)?,
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let tls = tls.map(|tls| TlsAcceptor::from(tls.config()));
    let served = Arc::new(Served { tls, clients, site, places: Arc::default() });
    let thread = std::thread::Builder::new().name("weft-admin".to_owned());
    let serving = move || {
        let ended = runtime.block_on(async {
            tokio::spawn(served.site.background());
            match socket {
                Socket::Tcp(listener) => {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    let next =
                        async || listener.accept().await.map(|(stream, from)| (stream, Some(from.ip())));
                    accept(&served, next).await
                }
                Socket::Unix(listener) => {
                    let listener = tokio::net::UnixListener::from_std(listener)?;
                    accept(&served, async || Ok((listener.accept().await?.0, None))).await
                }
            }
        });
        let Err::<Infallible, io::Error>(e) = ended;
        tracing::error!("the admin server has ended: {e}");
    };
    thread.spawn(serving).map(drop)
}

struct Served {
    tls: Option<TlsAcceptor>,
    clients: Clients,
    site: Arc<dyn Site>,
    places: Arc<Places>,
}

/// Accepts connections, with the address of the peer. Returns only if the socket itself fails.
async fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    served: &Arc<Served>,
    next: impl AsyncFn() -> io::Result<(S, Option<IpAddr>)>,
) -> io::Result<Infallible> {
    loop {
        let (stream, peer) = match next().await {
            Ok(accepted) => accepted,
            // accept(2): the connection was gone before it was accepted.
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Err(e),
            Err(e) => {
                tracing::warn!("the admin server: {e}; trying again in a second");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let serving = served.clone();
        served.places.take(peer, |place| async move {
            let Some(tls) = serving.tls.clone() else { return converse(serving, stream, place).await };
            match tokio::time::timeout(HEAD_WITHIN, tls.accept(stream)).await {
                Ok(Ok(stream)) => {
                    if stream.get_ref().1.peer_certificates().is_some() {
                        place.admit();
                    }
                    converse(serving, stream, place).await
                }
                Ok(Err(e)) => tracing::debug!("a client of the admin server failed its TLS handshake: {e}"),
                Err(_) => {
                    tracing::debug!("a client of the admin server did not end its TLS handshake in time")
                }
            }
        });
    }
}

/// Serves one connection.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    served: Arc<Served>,
    stream: S,
    place: Place,
) {
    let place = Arc::new(place);
    let service = service_fn(move |request| {
        let (served, place) = (served.clone(), place.clone());
        async move { Ok::<_, Infallible>(served.answer(request, &place).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = match tokio::time::timeout(LIFETIME, connection.as_mut()).await {
        Ok(ended) => Some(ended),
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER, connection).await.ok()
        }
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(e)) => tracing::debug!("a connection to the admin server ended: {e}"),
        None => tracing::debug!("a client of the admin server did not read its answer in time"),
    }
}

impl Served {
    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Response<Full<Bytes>> {
        if self.clients.has_shown_token(&request) {
            place.admit();
        }
        let path = request.uri().path();
        let needs = self.site.needs(path);
        let mut response = match self.clients.admit(&request, needs, place.peer()) {
            Ok(()) => {
                let accept =
                    request.headers().get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let accept = accept.collect::<Vec<_>>().join(",");
                let asked = place.ask();
                let Answer { status, content_type, content, policy } = self.site.answer(path, &accept).await;
                drop(asked);
                let mut response = response(status, content_type, content, &[]);
                if let Some(policy) = policy {
                    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
                }
                response
            }
            Err(refused) => {
                let (status, text, headers) = refused.told();
                response(status, "text/plain; charset=utf-8", format!("{text}\n").into(), headers)
            }
        };
        if place.must_leave(self.clients.want_token()) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Headers of every answer: it is of now, of the type that it says, and no other site's to show or load.
const ALWAYS: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

fn response(
    status: StatusCode,
    content_type: &'static str,
    content: Bytes,
    more: &[(HeaderName, &'static str)],
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(content));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in ALWAYS.iter().chain(more) {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
