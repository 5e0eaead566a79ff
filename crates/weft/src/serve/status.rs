//! Gathers what this server serves, and to whom, on request. `crate::status` prints it; each connection's channel has
//! its own counters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use weft_machine::rt::{self, Cores};
use weft_smb::server as smb;
use weft_store::audit::{Audit, Losses};
use weft_store::quota::{Means, Quota, Usage};
use weft_store::vfs::Share;
use weft_transport::{Channel, Kind};

use super::announced::Announced;
use super::state_dir::StateDir;
use super::volumes::Growths;
use crate::config::AbsentShare;
use crate::ready::Ready;
use crate::shares::Described;
use crate::status::advice::{self, Offer};
use crate::status::{self, Connection, Seen, Session, Status, usage};
use crate::version;
use crate::watch::{self, ConnectionEntry};

/// How long a share may take to say whether it is in order, for the line that systemd shows.
const SUMMARY_WITHIN: Duration = Duration::from_secs(2);
/// How long a file system may take to say how much space it has.
const SPACE_WITHIN: Duration = Duration::from_millis(500);

fn told(described: &Described) -> (Share, status::Share) {
    let share = &described.share;
    let told = status::Share {
        name: share.name.to_string(),
        kind: share.vfs.kind().to_owned(),
        source: described.source.clone(),
        encrypted: share.rules.encrypted,
        ..status::Share::default()
    };
    (share.clone(), told)
}

fn told_quota(quota: &Quota) -> status::Quota {
    let Usage { limit_bytes, used_bytes, means } = quota.usage();
    let told = status::Quota { limit_bytes, used_bytes, ..status::Quota::default() };
    match means {
        Means::Project(id) => status::Quota { project: Some(id), ..told },
        Means::Count { files, is_counting, is_unknown } => {
            status::Quota { files, is_counting, is_unknown, ..told }
        }
    }
}

fn told_absent(absent: &AbsentShare) -> status::Share {
    status::Share {
        name: absent.name.clone(),
        kind: "dir".to_owned(),
        source: absent.source.clone(),
        not_served: Some(absent.told()),
        ..status::Share::default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No change under these locks can be interrupted.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sources of a status.
pub(super) struct Subject {
    cores: Arc<Cores>,
    smb: Option<Arc<smb::Server>>,
    shares: Mutex<Vec<(Share, status::Share)>>,
    absent: Mutex<Vec<status::Share>>,
    /// Of the configuration, since the start.
    warnings: Vec<String>,
    /// Of the users, since they were read.
    of_users: Mutex<Vec<String>>,
    announced: Option<Arc<Announced>>,
    audit: Audit,
    growths: Growths,
    /// Shares whose space is being asked for.
    asking: Mutex<HashMap<String, Arc<AtomicBool>>>,
    /// The problem last logged for each volume.
    logged: Mutex<BTreeMap<String, String>>,
    /// The part that never changes.
    base: Status,
    offer: Offer,
    since: Instant,
    /// Its state directory.
    state: Option<StateDir>,
}

impl Subject {
    /// The sources of a listening server.
    pub(super) fn new(
        cores: Arc<Cores>,
        ready: &Ready,
        smb: Option<Arc<smb::Server>>,
        shares: &[Described],
        growths: Growths,
    ) -> Subject {
        // Its size changes, so each status asks for it.
        let volume = |volume: &crate::ready::ReadyVolume| status::Volume {
            name: volume.name.clone(),
            kind: volume.kind.to_owned(),
            source: volume.source.clone(),
            ..status::Volume::default()
        };
        let absent = |absent: &crate::ready::ReadyAbsent| status::Volume {
            name: absent.name.clone(),
            not_served: Some(absent.why.clone()),
            ..status::Volume::default()
        };
        let base = Status {
            version: version::NUMBER.to_owned(),
            build: version::BUILD.to_owned(),
            pid: ready.pid,
            listen: ready.listen.to_string(),
            ports: ready.ports().map(|(name, port)| (name.to_owned(), port)).collect(),
            providers: ready.providers.iter().map(|&name| name.to_owned()).collect(),
            driver: ready.driver.to_owned(),
            volumes: ready.volumes.iter().map(volume).chain(ready.not_served.iter().map(absent)).collect(),
            ..Status::default()
        };
        let offer = Offer {
            host: crate::addresses::in_hints(ready.listen, &super::interfaces::found()),
            smbd_port: ready.smbd_port,
            nfs_rdma_port: ready.nfs_rdma_port,
            providers: base.providers.clone(),
        };
        let shares = Mutex::new(shares.iter().map(told).collect());
        let (absent, asking, logged, since) =
            (Mutex::default(), Mutex::default(), Mutex::default(), Instant::now());
        let (warnings, of_users) = (Vec::new(), Mutex::default());
        Subject {
            cores,
            smb,
            shares,
            absent,
            warnings,
            of_users,
            announced: None,
            audit: Audit::default(),
            growths,
            asking,
            logged,
            base,
            offer,
            since,
            state: None,
        }
    }

    /// The same with these warnings in each status.
    pub(super) fn with_warnings(self, warnings: Vec<String>) -> Subject {
        Subject { warnings, ..self }
    }

    /// The same with the losses of this audit log.
    pub(super) fn with_audit(self, audit: Audit) -> Subject {
        Subject { audit, ..self }
    }

    /// The same with the warnings about what it announces on its networks.
    pub(super) fn with_announced(self, announced: Arc<Announced>) -> Subject {
        Subject { announced: Some(announced), ..self }
    }

    /// The warnings about the users, from now on.
    pub(super) fn replace_warnings_of_users(&self, warnings: Vec<String>) {
        *lock(&self.of_users) = warnings;
    }

    /// The same with its state in this directory.
    pub(super) fn with_state(self, state: Option<PathBuf>) -> Subject {
        Subject { state: state.map(StateDir::new), ..self }
    }

    /// The same with its configuration from this file.
    pub(super) fn with_config(mut self, file: Option<&Path>) -> Subject {
        let shown = |file: &Path| {
            let whole = std::path::absolute(file);
            whole.unwrap_or_else(|_| file.to_owned()).to_string_lossy().into_owned()
        };
        self.base.config = file.map(shown);
        self
    }

    /// These shares are served from now on, and those of the file that are absent are not.
    pub(super) fn replace_shares(&self, shares: &[Described], absent: &[AbsentShare]) {
        *lock(&self.shares) = shares.iter().map(told).collect();
        *lock(&self.absent) = absent.iter().map(told_absent).collect();
        lock(&self.asking).retain(|name, _| shares.iter().any(|described| *described.share.name == **name));
    }

    /// What is served, in a few words. It looks at the shares as [`Subject::status`] does.
    pub(super) async fn summary(&self) -> String {
        let served: Vec<Share> = lock(&self.shares).iter().map(|(share, _)| share.clone()).collect();
        // A start or a reload waits for this, and a disk may hang.
        let looks = served.iter().map(|share| rt::timeout(SUMMARY_WITHIN, share.vfs.troubles()));
        let looks = join_all(looks).await;
        let troubled = looks.iter().filter(|look| !matches!(look, Ok(None))).count();
        let troubled =
            if troubled > 0 { format!(", shares needing attention: {troubled}") } else { String::new() };
        let (shares, absent) = (served.len(), lock(&self.absent).len());
        let volumes = self.base.volumes.iter().filter(|volume| volume.not_served.is_none()).count();
        let missing = self.base.volumes.len() - volumes + absent;
        let missing = if missing > 0 { format!(", not served: {missing}") } else { String::new() };
        format!("shares: {shares}, volumes: {volumes}{missing}{troubled}")
    }

    /// Logs only changes, because some users ask for a status every second.
    fn log_once(&self, volume: &status::Volume) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &volume.warning {
            Some(why) => logged.insert(volume.name.clone(), why.clone()),
            None => logged.remove(&volume.name),
        };
        if let Some(why) = volume.warning.as_ref().filter(|why| before.as_ref() != Some(*why)) {
            tracing::warn!("volume {}: {why}", volume.name);
        }
    }

    /// The space of a share, if its file system answers in time. One question at a time: of a file system that hangs,
    /// each would keep a worker.
    async fn space(&self, share: &Share) -> Option<status::Space> {
        let asking = lock(&self.asking).entry(share.name.to_string()).or_default().clone();
        if asking.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (told, answer) = oneshot::channel();
        let vfs = share.vfs.clone();
        rt::spawn(async move {
            let space = vfs.statfs().await;
            asking.store(false, Ordering::Release);
            // The receiver gives up when it is late.
            let _ = told.send(space);
        })
        .detach();
        let space = rt::timeout(SPACE_WITHIN, answer).await.ok()?.ok()?.ok()?;
        Some(status::Space { total_bytes: space.total, available_bytes: space.available })
    }

    /// The current status.
    pub(super) async fn status(&self) -> Result<Status, watch::Silent> {
        let mut status = self.base.clone();
        let found = watch::everywhere(&self.cores).await?;
        (status.connections, status.ended) = (found.connections, found.ended);
        if let Some(state) = &self.state {
            status.state_warning = state.trouble().await;
        }
        status.warnings = self.warnings.iter().chain(&*lock(&self.of_users)).cloned().collect();
        status.warnings.extend(self.announced.iter().flat_map(|announced| announced.warnings()));
        if let Some(Losses { events, why }) = self.audit.losses() {
            status.warnings.push(format!("audit log: {events} events have been lost since the start: {why}"));
        }
        status.warnings.extend(self.audit.fault().map(|fault| format!("audit log {fault}")));
        status.up_seconds = self.since.elapsed().as_secs();
        status.sessions = self.smb.as_ref().map_or(0, |smb| smb.session_count());
        let shares = lock(&self.shares).clone();
        let using = using(&status.connections);
        for (share, described) in &shares {
            let opens = share.vfs.opens();
            let opens = opens.open_nodes().into_iter().map(|node| opens.count(node)).sum();
            status.opens += opens;
            let warning = share.vfs.troubles().await;
            let space = self.space(share).await;
            let connections = using.get(&*share.name).copied().unwrap_or_default();
            let quota = share.vfs.quota().map(told_quota);
            let more = status::Share { opens, warning, space, quota, connections, ..described.clone() };
            status.shares.push(more);
        }
        status.shares.extend(lock(&self.absent).iter().cloned());
        for volume in &mut status.volumes {
            let has = |connection: &&Connection| {
                connection.nbd.as_ref().and_then(|nbd| nbd.volume.as_deref()) == Some(&*volume.name)
            };
            if let Some(size) = self.growths.size(&volume.name) {
                volume.size = size;
            }
            volume.clients = status.connections.iter().filter(has).count();
            volume.warning = self.growths.trouble(&volume.name).await;
            self.log_once(volume);
        }
        let order = |c: &Connection| (c.protocol.clone(), std::cmp::Reverse(c.age_seconds), c.peer.clone());
        status.connections.sort_by_key(order);
        advise(&self.offer, &mut status);
        status.kinds = status.of_kinds();
        Ok(status)
    }
}

/// Lists an SMB connection as long as the returned entry is kept.
pub(super) fn show_smb(served: &smb::Served, channel: &Rc<dyn Channel>) -> ConnectionEntry {
    let (served, channel, since) = (served.clone(), channel.clone(), Instant::now());
    watch::enter(move || {
        let about = served.about();
        let seen = Seen {
            knows_rdma: about.knows_rdma,
            multichannel: about.multichannel,
            asked_interfaces: about.asked_interfaces,
            asked_endpoints: about.asked_endpoints,
        };
        Connection {
            dialect: about.dialect,
            client: about.client,
            sessions: about.sessions.into_iter().map(session).collect(),
            seen,
            ..of_channel("smb", &*channel, since)
        }
    })
}

/// Lists an NFS connection as long as the returned entry is kept.
pub(super) fn show_nfs(seen: &Rc<weft_nfs::server::Watch>, channel: &Rc<dyn Channel>) -> ConnectionEntry {
    let (seen, channel, since) = (seen.clone(), channel.clone(), Instant::now());
    watch::enter(move || Connection {
        dialect: seen.version().map(|version| match version {
            // 4.0 is shown with its minor version; version 3 has none.
            (4, minor) => format!("4.{minor}"),
            (version, _) => version.to_string(),
        }),
        nfs: Some(status::Nfs { uids: seen.users() }),
        ..of_channel("nfs", &*channel, since)
    })
}

/// Lists an NBD connection as long as the returned entry is kept.
pub(super) fn show_nbd(
    peer: String,
    transport: &'static str,
    watch: &Rc<weft_nbd::Watch>,
) -> ConnectionEntry {
    let (watch, since) = (watch.clone(), Instant::now());
    watch::enter(move || {
        let ((read_bytes, reads), (written_bytes, writes)) = (watch.read(), watch.written());
        let nbd = status::Nbd {
            volume: watch.export().map(str::to_owned),
            tls: watch.tls(),
            read_bytes,
            reads,
            written_bytes,
            writes,
        };
        Connection {
            protocol: "nbd".into(),
            peer: peer.clone(),
            transport: transport.into(),
            age_seconds: since.elapsed().as_secs(),
            nbd: Some(nbd),
            ..Connection::default()
        }
    })
}

fn of_channel(protocol: &str, channel: &dyn Channel, since: Instant) -> Connection {
    let (transport, rdma) = match channel.kind() {
        Kind::Smbd => ("smb-direct", true),
        Kind::RpcRdma => ("rpc-rdma", true),
        Kind::Datagram => ("udp", false),
        Kind::Nbss | Kind::Record => ("tcp", false),
    };
    Connection {
        protocol: protocol.into(),
        peer: channel.peer().to_string(),
        transport: transport.into(),
        provider: rdma.then(|| channel.medium().to_owned()),
        age_seconds: since.elapsed().as_secs(),
        traffic: channel.traffic().into(),
        ..Connection::default()
    }
}

fn session(about: smb::SessionAbout) -> Session {
    let encrypted = about.shares.iter().filter(|share| share.encrypted).map(|share| share.name.clone());
    Session {
        id: format!("{:016x}", about.id),
        user: about.user,
        signing: about.signing.to_owned(),
        signing_required: about.signing_required,
        encryption: about.encryption.map(str::to_owned),
        channels: about.channels,
        encrypted_shares: encrypted.collect(),
        shares: about.shares.into_iter().map(|share| share.name).collect(),
        opens: about.opens,
        age_seconds: about.age_seconds,
    }
}

/// Adds to each connection whether it uses RDMA, and advice to those that could.
fn advise(offer: &Offer, status: &mut Status) {
    let by_rdma = advice::by_rdma(&status.connections);
    for connection in &mut status.connections {
        connection.advice = match connection.protocol.as_str() {
            "smb" => advice::smb(offer, connection, &by_rdma),
            "nfs" => advice::nfs(offer, connection),
            _ => None,
        };
        connection.rdma = usage::of(offer, connection, &by_rdma);
    }
}

/// The connections of each share, by its name.
fn using(connections: &[Connection]) -> HashMap<String, usize> {
    let mut using: HashMap<String, usize> = HashMap::new();
    for connection in connections {
        let names: HashSet<&String> = connection.sessions.iter().flat_map(|s| &s.shares).collect();
        for name in names {
            *using.entry(name.clone()).or_default() += 1;
        }
    }
    using
}
