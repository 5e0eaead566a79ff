//! The admin server over HTTP: its socket, and its pages.
//!
//! `crate::http` decides who may ask. Pages about connections are gathered on the cores, at most once a second, so
//! that somebody who asks all the time does not slow down clients.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use tokio::sync::{Mutex, oneshot};
use weft_machine::Pool;
use weft_machine::net::inherited;
use weft_machine::rt::Cores;

use super::error::{CannotListen, Choice, StartError};
use super::replica::Replicas;
use super::status::Subject;
use crate::config::{AdminAddress, Plan, key};
use crate::http::{Answer, Answering, Clients, Needs, Site, Socket};
use crate::listen::unix::{self, SocketFile};
use crate::metrics::{self, Facts, text::Format};
use crate::status::Status;

const METRICS: &str = "/metrics";
const STATUS: &str = "/api/v1/status";
const SCHEMA: &str = "/api/v1/schema";
const HEALTH: &str = "/healthz";

/// How long an answer of the cores is used.
const FRESH: Duration = Duration::from_secs(1);
/// How long the cores may take for a status, which waits up to 2 s for each of them itself.
const STATUS_WITHIN: Duration = Duration::from_secs(5);
/// How long a healthy core may take to run a task.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// A Unix socket admits its user and group.
const SOCKET_MODE: u32 = 0o660;

/// The bound socket.
pub(super) struct AdminHttp {
    socket: Socket,
    clients: Clients,
    /// The TCP port.
    pub port: Option<u16>,
    /// The path of the Unix socket.
    pub path: Option<PathBuf>,
    file: Option<SocketFile>,
}

impl AdminHttp {
    /// Binds the configured address; `None` if there is none.
    pub(super) fn bind(plan: &Plan) -> Result<Option<AdminHttp>, StartError> {
        let config = plan.config();
        let clients = match plan.admin_token.clone() {
            Some(token) => Clients::WithToken(token),
            None => Clients::OfThisHost,
        };
        match &config.admin {
            None => Ok(None),
            Some(AdminAddress::Tcp(addr)) => {
                let bound = inherited::tcp(*addr).and_then(|listener| Ok((listener.local_addr()?, listener)));
                let (local, listener) = bound.map_err(|source| {
                    let choice = Choice::option(&config.sources.named(&key::ADMIN));
                    CannotListen::At { addr: *addr, choice, source }
                })?;
                if !addr.ip().to_canonical().is_loopback() {
                    tracing::warn!(
                        "the admin server at {local} does not encrypt: its token can be read on the way; use a trusted network, \
                         or put a proxy with TLS in front of a loopback address"
                    );
                }
                let socket = Socket::Tcp(listener);
                Ok(Some(AdminHttp { socket, clients, port: Some(local.port()), path: None, file: None }))
            }
            Some(AdminAddress::Unix(path)) => {
                let bound = unix::listen_at(path, SOCKET_MODE);
                let (listener, file) =
                    bound.map_err(|source| CannotListen::Socket { path: path.clone(), source })?;
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let (socket, clients) = (Socket::Unix(listener), Clients::OfSocket);
                Ok(Some(AdminHttp { socket, clients, port: None, path: Some(path), file }))
            }
        }
    }

    /// Answers from now on. Returns the socket's file, which is removed on drop.
    pub(super) fn open(self, pages: Pages) -> Result<Option<SocketFile>, StartError> {
        crate::http::serve(self.socket, self.clients, Arc::new(pages)).map_err(StartError::AdminThread)?;
        Ok(self.file)
    }
}

/// Something that the cores have reported, and when.
type Kept<T> = Mutex<Option<(Instant, T)>>;

/// The pages.
pub(super) struct Pages(Arc<Sources>);

struct Sources {
    cores: Arc<Cores>,
    subject: Arc<Subject>,
    replicas: Option<Arc<Replicas>>,
    pool: Pool,
    status: Kept<Result<Arc<Status>, String>>,
    health: Kept<Result<(), String>>,
}

impl Pages {
    /// Pages about this server.
    pub(super) fn new(
        cores: Arc<Cores>,
        subject: Arc<Subject>,
        replicas: Option<Arc<Replicas>>,
        pool: Pool,
    ) -> Pages {
        let (status, health) = (Kept::default(), Kept::default());
        Pages(Arc::new(Sources { cores, subject, replicas, pool, status, health }))
    }
}

impl Site for Pages {
    fn needs(&self, path: &str) -> Option<Needs> {
        match path {
            HEALTH => Some(Needs::Nothing),
            METRICS | SCHEMA => Some(Needs::Reader),
            STATUS => Some(Needs::Administrator),
            _ => None,
        }
    }

    fn answer(&self, path: &str, accept: &str) -> Answering {
        let (sources, path, format) = (self.0.clone(), path.to_owned(), Format::accepted(accept));
        Box::pin(async move {
            match &*path {
                METRICS => sources.metrics(format).await,
                STATUS => sources.status_page().await,
                SCHEMA => Answer::ok("application/schema+json", SCHEMA_TEXT.clone()),
                _ => sources.health_page().await,
            }
        })
    }
}

/// The JSON schema of the status.
static SCHEMA_TEXT: LazyLock<String> = LazyLock::new(|| schemars::schema_for!(Status).as_value().to_string());

fn unavailable(why: &str) -> Answer {
    let content = format!("{why}\n");
    Answer { status: StatusCode::SERVICE_UNAVAILABLE, content_type: "text/plain; charset=utf-8", content }
}

/// Returns what is kept if it is fresh; otherwise asks again. Those who ask meanwhile wait for the same answer.
async fn fresh<T: Clone>(kept: &Kept<T>, ask: impl Future<Output = T>) -> T {
    let mut kept = kept.lock().await;
    match &*kept {
        Some((since, value)) if since.elapsed() < FRESH => value.clone(),
        _ => {
            let value = ask.await;
            *kept = Some((Instant::now(), value.clone()));
            value
        }
    }
}

impl Sources {
    /// The status, gathered on the first core.
    async fn status(&self) -> Result<Arc<Status>, String> {
        fresh(&self.status, async {
            let (told, status) = oneshot::channel();
            let (subject, replicas) = (self.subject.clone(), self.replicas.clone());
            self.cores.run(0, move || async move {
                let status = subject.status().await.map_err(|e| e.to_string());
                let replicas = replicas.map_or_else(Vec::new, |replicas| replicas.told());
                // The receiver gives up only when it is late.
                let _ = told.send(status.map(|status| Arc::new(Status { replicas, ..status })));
            });
            match tokio::time::timeout(STATUS_WITHIN, status).await {
                Ok(Ok(status)) => status,
                Ok(Err(_)) => Err("the server ends".to_owned()),
                Err(_) => Err(format!("the first core did not answer within {} s", STATUS_WITHIN.as_secs())),
            }
        })
        .await
    }

    async fn metrics(&self, format: Format) -> Answer {
        let status = self.status().await;
        let facts = Facts { status: status.as_deref().ok(), pool: &self.pool, cores: self.cores.counters() };
        Answer::ok(format.content_type(), metrics::page(&facts, format))
    }

    async fn status_page(&self) -> Answer {
        match self.status().await {
            Ok(status) => match serde_json::to_string(&*status) {
                Ok(text) => Answer::ok("application/json", text),
                Err(e) => unavailable(&e.to_string()),
            },
            Err(why) => unavailable(&why),
        }
    }

    /// Whether every core runs its tasks: what the service manager's watchdog asks, too.
    async fn health_page(&self) -> Answer {
        let health = fresh(&self.health, async {
            let (alive, mut answers) = tokio::sync::mpsc::unbounded_channel();
            for core in 0..self.cores.len() {
                let alive = alive.clone();
                self.cores.run(core, move || async move {
                    // The receiver gives up only when the core is late.
                    let _ = alive.send(core);
                });
            }
            let mut silent: Vec<usize> = (0..self.cores.len()).collect();
            let until = tokio::time::Instant::now() + ALIVE_WITHIN;
            while !silent.is_empty() {
                match tokio::time::timeout_at(until, answers.recv()).await {
                    Ok(Some(core)) => silent.retain(|waited| *waited != core),
                    Ok(None) | Err(_) => break,
                }
            }
            match silent.as_slice() {
                [] => Ok(()),
                silent => {
                    let numbers: Vec<String> = silent.iter().map(usize::to_string).collect();
                    let within = ALIVE_WITHIN.as_secs();
                    Err(format!("cores that did not answer within {within} s: {}", numbers.join(", ")))
                }
            }
        });
        match health.await {
            Ok(()) => Answer::ok("text/plain; charset=utf-8", "ok\n".to_owned()),
            Err(why) => unavailable(&why),
        }
    }
}
