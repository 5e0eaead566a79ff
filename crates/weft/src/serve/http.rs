//! The admin server over HTTP: its socket, and its pages.
//!
//! `crate::http` decides who may ask. Pages about connections are gathered on the cores, at most once a second, so
//! that somebody who asks all the time does not slow down clients.

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::{Mutex, oneshot};
use tokio::time::MissedTickBehavior;
use weft_machine::net::{Tls, inherited};
use weft_machine::rt::Cores;
use weft_machine::{Pool, meter};

use super::error::{CannotListen, Choice, StartError};
use super::page::{self, Shows};
use super::replica::Replicas;
use super::status::Subject;
use crate::config::{AdminAddress, Plan, key};
use crate::http::{Answer, Answering, Background, Clients, Needs, Site, Socket};
use crate::listen::unix::{self, SocketFile};
use crate::metrics::latency::{self, At, Hour};
use crate::metrics::{self, Facts, text::Format};
use crate::status::Status;
use crate::status::slow::SlowOperations;

const PAGE: &str = "/";
const METRICS: &str = "/metrics";
const STATUS: &str = "/api/v1/status";
/// The status without names.
const OVERVIEW: &str = "/api/v1/overview";
const SCHEMA: &str = "/api/v1/schema";
const LATENCY: &str = "/api/v1/latency";
const LATENCY_SCHEMA: &str = "/api/v1/latency/schema";
const SLOW: &str = "/api/v1/slow";
const SLOW_SCHEMA: &str = "/api/v1/slow/schema";
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
    tls: Option<Tls>,
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
        let tls = plan.admin_tls.clone();
        let has_authorities = config.tls.admin.as_ref().is_some_and(|files| files.clients.is_some());
        let clients = match plan.admin_token.clone() {
            Some(token) => Clients::WithToken(token),
            None if has_authorities => Clients::WithCertificate,
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
                if !addr.ip().to_canonical().is_loopback() && tls.is_none() {
                    tracing::warn!(
                        "the admin server at {local} does not encrypt: its token can be read on the way; use a trusted network, \
                         or give --admin-tls-cert and --admin-tls-key"
                    );
                }
                let scheme = if tls.is_some() { "https" } else { "http" };
                if local.ip().to_canonical().is_unspecified() {
                    let port = local.port();
                    tracing::info!("status page: {scheme}://ADDRESS:{port}/, with any address of this host");
                } else {
                    tracing::info!("status page: {scheme}://{local}/");
                }
                let socket = Socket::Tcp(listener);
                let (port, path, file) = (Some(local.port()), None, None);
                Ok(Some(AdminHttp { socket, tls, clients, port, path, file }))
            }
            Some(AdminAddress::Unix(path)) => {
                let bound = unix::listen_at(path, SOCKET_MODE);
                let (listener, file) =
                    bound.map_err(|source| CannotListen::Socket { path: path.clone(), source })?;
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let (socket, clients) = (Socket::Unix(listener), Clients::OfSocket);
                let (port, path) = (None, Some(path));
                Ok(Some(AdminHttp { socket, tls: None, clients, port, path, file }))
            }
        }
    }

    /// What the status page can show.
    pub(super) fn shows(&self) -> Shows {
        match self.clients {
            Clients::OfSocket | Clients::WithCertificate => Shows::All,
            Clients::WithToken(_) => Shows::WithToken,
            Clients::OfThisHost => Shows::WithoutNames,
        }
    }

    /// Answers from now on. Returns the socket's file, which is removed on drop.
    pub(super) fn open(self, pages: Pages) -> Result<Option<SocketFile>, StartError> {
        crate::http::serve(self.socket, self.tls, self.clients, Arc::new(pages))
            .map_err(StartError::AdminThread)?;
        Ok(self.file)
    }
}

/// What the cores report, or why they do not; used for as long as it is fresh.
struct Kept<T>(Arc<Mutex<Option<Reported<T>>>>);

/// A report, and when it came.
type Reported<T> = (Instant, Result<T, String>);

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Kept<T> {
    /// Returns what is kept if it is fresh; otherwise asks again. Those who ask meanwhile wait for the same answer.
    ///
    /// The cores cannot be told that nobody waits any more. So a task of its own asks and keeps the answer: a client
    /// that leaves early causes no more work than one that stays.
    async fn fresh(
        &self,
        ask: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let mut kept = self.0.clone().lock_owned().await;
        if let Some((since, value)) = &*kept
            && since.elapsed() < FRESH
        {
            return value.clone();
        }
        let asked = tokio::spawn(async move {
            let value = ask.await;
            *kept = Some((Instant::now(), value.clone()));
            value
        });
        asked.await.unwrap_or_else(|e| Err(format!("the question to the cores failed: {e}")))
    }
}

/// The pages.
pub(super) struct Pages(Arc<Sources>);

struct Sources {
    cores: Arc<Cores>,
    subject: Arc<Subject>,
    replicas: Option<Arc<Replicas>>,
    pool: Pool,
    document: Bytes,
    status: Kept<Arc<Status>>,
    /// The status as text, and the same without names.
    texts: Kept<Texts>,
    health: Kept<()>,
    /// What the meter has counted minute by minute, since `since`.
    hour: std::sync::Mutex<Hour>,
    since: Instant,
}

/// A status in JSON.
#[derive(Clone)]
struct Texts {
    whole: Bytes,
    without_names: Bytes,
}

impl Texts {
    fn of(status: &Status) -> serde_json::Result<Texts> {
        let told = status.bounded();
        let whole = serde_json::to_vec(&told)?.into();
        Ok(Texts { whole, without_names: serde_json::to_vec(&told.without_names())?.into() })
    }
}

impl Pages {
    /// Pages about this server.
    pub(super) fn new(
        (cores, subject, replicas, pool): (Arc<Cores>, Arc<Subject>, Option<Arc<Replicas>>, Pool),
        shows: Shows,
    ) -> Pages {
        let document = page::document(shows).into();
        let (status, texts, health) = (Kept::default(), Kept::default(), Kept::default());
        let (hour, since) = (std::sync::Mutex::default(), Instant::now());
        Pages(Arc::new(Sources {
            cores,
            subject,
            replicas,
            pool,
            document,
            status,
            texts,
            health,
            hour,
            since,
        }))
    }
}

impl Site for Pages {
    fn needs(&self, path: &str) -> Option<Needs> {
        match path {
            PAGE | HEALTH => Some(Needs::Nothing),
            METRICS | OVERVIEW | SCHEMA | LATENCY | LATENCY_SCHEMA | SLOW_SCHEMA => Some(Needs::Reader),
            STATUS | SLOW => Some(Needs::Administrator),
            _ => None,
        }
    }

    fn answer(&self, path: &str, accept: &str) -> Answering {
        let (sources, path, format) = (self.0.clone(), path.to_owned(), Format::accepted(accept));
        Box::pin(async move {
            match &*path {
                PAGE => sources.page(),
                METRICS => sources.metrics(format).await,
                STATUS => sources.status_page(|texts| texts.whole).await,
                OVERVIEW => sources.status_page(|texts| texts.without_names).await,
                SCHEMA => Answer::ok(SCHEMA_TYPE, SCHEMA_TEXT),
                LATENCY => sources.latency_page(),
                LATENCY_SCHEMA => Answer::ok(SCHEMA_TYPE, LATENCY_SCHEMA_TEXT),
                SLOW => sources.slow_page(),
                SLOW_SCHEMA => Answer::ok(SCHEMA_TYPE, SLOW_SCHEMA_TEXT),
                _ => sources.health_page().await,
            }
        })
    }

    /// Remembers each minute.
    fn background(&self) -> Background {
        let sources = self.0.clone();
        Box::pin(async move {
            let mut minutes = tokio::time::interval(latency::MINUTE);
            minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first one is due at once.
            minutes.tick().await;
            loop {
                minutes.tick().await;
                let at = sources.at();
                sources.hour().record(&meter::samples(), at);
            }
        })
    }
}

const SCHEMA_TYPE: &str = "application/schema+json";
// A test makes these of the types. The program does without what makes them: 300 KB.
/// The JSON schema of the status.
const SCHEMA_TEXT: &str = include_str!("schema/status.json");
/// The JSON schema of the durations.
const LATENCY_SCHEMA_TEXT: &str = include_str!("schema/latency.json");
/// The JSON schema of the slow operations.
const SLOW_SCHEMA_TEXT: &str = include_str!("schema/slow.json");

fn unavailable(why: &str) -> Answer {
    let answer = Answer::ok("text/plain; charset=utf-8", format!("{why}\n"));
    Answer { status: StatusCode::SERVICE_UNAVAILABLE, ..answer }
}

impl Sources {
    /// The status, gathered on the first core.
    async fn status(&self) -> Result<Arc<Status>, String> {
        let (cores, subject, replicas) = (self.cores.clone(), self.subject.clone(), self.replicas.clone());
        let gathered = self.status.fresh(async move {
            let (told, status) = oneshot::channel();
            cores.run(0, move || async move {
                let status = subject.status().await.map_err(|e| e.to_string());
                let replicas = replicas.map_or_else(Vec::new, |replicas| replicas.told());
                // The receiver gives up only when it is late.
                let _ = told.send(status.map(|status| Arc::new(status.with_replicas(replicas))));
            });
            match tokio::time::timeout(STATUS_WITHIN, status).await {
                Ok(Ok(status)) => status,
                Ok(Err(_)) => Err("the server ends".to_owned()),
                Err(_) => Err(format!("the first core did not answer within {} s", STATUS_WITHIN.as_secs())),
            }
        });
        gathered.await
    }

    fn page(&self) -> Answer {
        let policy = Some(page::POLICY.clone());
        Answer { policy, ..Answer::ok("text/html; charset=utf-8", self.document.clone()) }
    }

    async fn metrics(&self, format: Format) -> Answer {
        let status = self.status().await;
        let facts = Facts { status: status.as_deref().ok(), pool: &self.pool, cores: self.cores.counters() };
        Answer::ok(format.content_type(), metrics::page(&facts, format))
    }

    /// The status in JSON, made once for all who ask within a second.
    async fn status_page(self: &Arc<Self>, which: fn(Texts) -> Bytes) -> Answer {
        let sources = self.clone();
        let texts = self.texts.fresh(async move {
            let status = sources.status().await?;
            Texts::of(&status).map_err(|e| e.to_string())
        });
        match texts.await {
            Ok(texts) => Answer::ok("application/json", which(texts)),
            Err(why) => unavailable(&why),
        }
    }

    /// The time for the last hour's minutes.
    fn at(&self) -> At {
        At { passed: self.since.elapsed(), wall: weft_machine::clock::wall() }
    }

    fn hour(&self) -> MutexGuard<'_, Hour> {
        // Every change is a push.
        self.hour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latency_page(&self) -> Answer {
        let latency = self.hour().told(&meter::samples(), self.at());
        match serde_json::to_vec(&latency) {
            Ok(text) => Answer::ok("application/json", text),
            Err(e) => unavailable(&e.to_string()),
        }
    }

    /// The slow operations. No core is asked: one of them may be stuck in what is to be shown.
    fn slow_page(&self) -> Answer {
        match serde_json::to_vec(&SlowOperations::now().bounded()) {
            Ok(text) => Answer::ok("application/json", text),
            Err(e) => unavailable(&e.to_string()),
        }
    }

    /// Whether every core runs its tasks: what the service manager's watchdog asks, too.
    async fn health_page(&self) -> Answer {
        let cores = self.cores.clone();
        let health = self.health.fresh(async move {
            let (alive, mut answers) = tokio::sync::mpsc::unbounded_channel();
            for core in 0..cores.len() {
                let alive = alive.clone();
                cores.run(core, move || async move {
                    // The receiver gives up only when the core is late.
                    let _ = alive.send(core);
                });
            }
            let mut silent: Vec<usize> = (0..cores.len()).collect();
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
            Ok(()) => Answer::ok("text/plain; charset=utf-8", "ok\n"),
            Err(why) => unavailable(&why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Makes the files anew if WEFT_WRITE_SCHEMAS is set.
    #[test]
    fn the_schemas_are_those_of_the_types() {
        let schemas = [
            ("status", schemars::schema_for!(Status), SCHEMA_TEXT),
            ("latency", schemars::schema_for!(latency::Latency), LATENCY_SCHEMA_TEXT),
            ("slow", schemars::schema_for!(SlowOperations), SLOW_SCHEMA_TEXT),
        ];
        for (name, schema, text) in schemas {
            let made = serde_json::to_string_pretty(schema.as_value()).unwrap() + "\n";
            let path = format!("{}/src/serve/schema/{name}.json", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("WEFT_WRITE_SCHEMAS").is_some() {
                std::fs::write(&path, made).unwrap();
                continue;
            }
            assert!(
                text == made,
                "{path} is not what the types say: WEFT_WRITE_SCHEMAS=1 cargo test -p weft the_schemas_are, twice"
            );
        }
    }

    #[test]
    fn clients_that_leave_before_the_answer_cause_one_question_a_second() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let kept = Arc::new(Kept::<usize>::default());
            let asked = Arc::new(AtomicUsize::new(0));
            let ask = |kept: Arc<Kept<usize>>, asked: Arc<AtomicUsize>| async move {
                kept.fresh(async move {
                    let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok(number)
                })
                .await
            };
            for _ in 0..50 {
                let leaves = tokio::spawn(ask(kept.clone(), asked.clone()));
                tokio::time::sleep(Duration::from_millis(1)).await;
                leaves.abort();
            }
            assert_eq!(asked.load(Ordering::Relaxed), 1);
            // Whoever stays gets the answer that the first one asked for.
            assert_eq!(ask(kept.clone(), asked.clone()).await, Ok(1));
            tokio::time::sleep(FRESH).await;
            assert_eq!(ask(kept, asked).await, Ok(2));
        });
    }
}
