//! `weft serve`: binds everything, says `ready`, serves until a signal, drains, ends.
//!
//! Owns: the cores and the accept loops. Does not: speak a protocol.

mod capture;
mod names;
mod nbd;
mod neighbours;
mod registration;
pub(crate) mod replica;
mod rpc;
mod state_dir;
mod status;
mod volumes;

use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weft_machine::net::Interface;
use weft_machine::rt::{self, Cores, CoresOptions};
use weft_machine::{Listener, LogLimit, Pool, random};
use weft_nfs::server::{Durable, Net, Role, Service};
use weft_rdma::wrap::pcap::Capture;
use weft_smb::auth::Secret;
use weft_smb::server as smb;
use weft_transport::Channel;
use zeroize::Zeroizing;

use self::registration::Registration;
use self::replica::Replicas;
use self::rpc::RpcPort;
use self::volumes::{Growths, Opened};
use crate::Failure;
use crate::addresses::{self, Addresses, bind_each};
use crate::admin::Request;
use crate::admin::endpoint::{Endpoint, Handler};
use crate::admin::replica::{Command, Reply};
use crate::args::Serve;
use crate::config::{self, Plan, ShareConfig};
use crate::listen::quota::{Quotas, Service as Served};
use crate::listen::unix::SocketFile;
use crate::listen::{self, Acceptor, Framing, Messages, Stop};
use crate::out::path_name;
use crate::password;
use crate::providers;
use crate::ready::{Ready, ReadyShare};
use crate::shares::{self, Described};
use crate::signals::Signals;

/// What is said about replication by a server that does none.
const NO_REPLICAS: &str =
    "this server does not replicate: start it with --replica (weft serve --volume NAME --nbd --replica)";
/// How long requests in flight may take after a signal.
const DRAIN: Duration = Duration::from_secs(10);
/// The speed that is announced where the system knows none (loopback, virtual machines): 10 Gbit/s.
const LINK_SPEED_BPS: u64 = 10_000_000_000;

/// Runs the command.
pub(crate) fn run(args: Serve) -> Result<ExitCode, Failure> {
    let signals = Signals::catch()?;
    // Before anything fails for want of them.
    listen::quota::raise_descriptors()?;
    if let Some(bytes) = crate::signals::longest_file() {
        tracing::warn!(
            "no file can become longer than {bytes} bytes here (`ulimit -f`): writes past that fail"
        );
    }
    let json = args.json;
    let plan = args.config()?.check()?;
    let shares = shares::open(&plan.shares)?;
    // Until the process ends.
    let _marks = neighbours::mark(&shares);
    let password = match plan.serves_files() {
        true => Some(password::for_server(plan.user())?),
        false => None,
    };
    let cores = Arc::new(start_cores(&plan.config().limits)?);
    let (connections, stop) = (Arc::new(AtomicUsize::new(0)), Stop::default());
    let replicates = plan.config().replication.enabled;
    let start = Start {
        secret: password.as_ref().map(|password| Secret::password(&password.text)),
        password: password.as_ref().filter(|_| replicates).map(|password| password.text.clone()),
        plan,
        shares,
        cores: cores.clone(),
        connections: connections.clone(),
        stop: stop.clone(),
    };

    // Everything is bound on core 0: sockets belong to the core that accepts on them.
    let (report, started) = mpsc::channel();
    cores.run(0, move || async move {
        // The receiver waits for exactly this.
        let _ = report.send(start.start().await);
    });
    let Services { ready, files, nbd, replicas, _admin, _volumes, _registration } =
        started.recv().map_err(|_| "the first core ended before everything listened")??;
    if !json {
        if let Some(password) = password.as_ref().filter(|password| password.made_up) {
            note!("password of {}: {}", ready.user, *password.text);
        }
        crate::out::note(format_args!("{}", ready.how_to(&addresses::in_hints(ready.listen, &found()))));
    }
    drop(password);
    let mut stdout = std::io::stdout();
    let told = writeln!(stdout, "{}", ready.line(json)).and_then(|()| stdout.flush());
    told.map_err(|e| format!("standard output takes no line that says ready: {e}"))?;

    signals.wait()?;
    tracing::info!("draining: no new connections, requests in flight are answered");
    stop.stop();
    if let Some((smb, nfs)) = files {
        smb.drain();
        nfs.drain();
    }
    if let Some(nbd) = &nbd {
        nbd.drain();
    }
    let until = Instant::now() + DRAIN;
    while (connections.load(Ordering::Relaxed) > 0 || !stop.is_over()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(replicas) = replicas {
        // On a core: what is waited for there needs one.
        let (done, closed) = mpsc::channel();
        cores.run(0, move || async move {
            replicas.close().await;
            // The receiver waits for exactly this, or has given up.
            let _ = done.send(());
        });
        if closed.recv_timeout(DRAIN).is_err() {
            tracing::warn!(
                "replication was not closed within {} s: the next start replays its log",
                DRAIN.as_secs()
            );
        }
    }
    let left = connections.load(Ordering::Relaxed);
    if left > 0 {
        tracing::warn!("{left} connections did not end within {} s and are cut", DRAIN.as_secs());
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the threads that do everything for others.
fn start_cores(limits: &config::Limits) -> Result<Cores, Failure> {
    weft_store::set_id::leave_to_the_kernel()?;
    let n = match limits.cores {
        Some(n) => n,
        None => std::thread::available_parallelism()?.get(),
    };
    let core = rt::Options { spin_max: limits.spin, ..rt::Options::default() };
    let options = CoresOptions { pin: limits.pin, core };
    Ok(Cores::start_with(n, "weft-core", &options)?)
}

/// What the process serves, before anything listens.
struct Start {
    plan: Plan,
    shares: Vec<Described>,
    /// Present where there are shares.
    secret: Option<Secret>,
    /// For the servers that this one becomes a destination of. Present where volumes may be replicated.
    password: Option<Zeroizing<String>>,
    cores: Arc<Cores>,
    connections: Arc<AtomicUsize>,
    stop: Stop,
}

/// The services, once everything listens.
struct Services {
    ready: Ready,
    files: Option<(Arc<smb::Server>, Arc<weft_nfs::server::Server>)>,
    nbd: Option<Arc<weft_nbd::Server>>,
    replicas: Option<Arc<Replicas>>,
    /// They are locked until the process ends.
    _volumes: Vec<volumes::Served>,
    /// Goes with the process.
    _admin: Option<SocketFile>,
    /// Taken back when the process ends in order.
    _registration: Option<Registration>,
}

/// The RDMA listeners of one port number.
struct RdmaPort {
    port: u16,
    /// Those that listen, each once, in the order in which they are offered.
    providers: Vec<&'static str>,
    listeners: Vec<Box<dyn weft_rdma::Listener>>,
}

impl RdmaPort {
    /// Listens with every provider: the first picks the port, the others take the same number.
    async fn bind(
        plan: &Plan,
        pool: &Pool,
        mut port: u16,
        capture: Option<&Capture>,
    ) -> Result<RdmaPort, String> {
        let (rdma, congestion) = (&plan.config().rdma, plan.config().limits.congestion.as_deref());
        let (mut names, mut listeners) = (Vec::new(), Vec::new());
        for provider in providers::serving(pool, &rdma.providers, rdma.crc, congestion) {
            let provider = match capture {
                Some(capture) => providers::captured(provider, capture),
                None => provider,
            };
            let name = provider.name();
            let first = plan.listen.first();
            let bind = async |addr: SocketAddr| match provider.listen(addr).await {
                // A device is behind some addresses of a host.
                Err(e) if name == "rnic" && addr.ip() != first => {
                    tracing::info!("RDMA provider rnic does not listen on {addr}: {e}");
                    Ok(None)
                }
                bound => bound.map(Some),
            };
            // The sockets of shared memory are named by their port alone.
            let addresses = if name == "shm" { &Addresses::from(first) } else { &plan.listen };
            let port_of = |listener: &Option<Box<dyn weft_rdma::Listener>>| {
                listener.as_ref().map_or(port, |listener| listener.local_addr().port())
            };
            match bind_each(addresses, port, bind, port_of).await {
                Ok(bound) => {
                    let bound: Vec<_> = bound.into_iter().flatten().collect();
                    port = bound.first().map_or(port, |listener| listener.local_addr().port());
                    listeners.extend(bound);
                    names.push(name);
                }
                // Shared memory is an extra of this host.
                Err((_, e)) if name == "shm" => tracing::warn!("RDMA provider shm is not served: {e}"),
                Err((addr, e)) if name == "rnic" => return Err(cannot_listen_on_device(addr, &e)),
                Err((addr, e)) => return Err(cannot_listen(addr, &e)),
            }
        }
        Ok(RdmaPort { port, providers: names, listeners })
    }

    fn serve(self, acceptor: &Acceptor, messages: Messages, serve: &listen::Serve) {
        for listener in self.listeners {
            rt::spawn(acceptor.clone().rdma(listener, messages, serve.clone())).detach();
        }
    }
}

/// How long memory of buffers that are not needed stays before the system gets it back: taking it again costs a page fault
/// for each 4 KiB, so not between two bursts of one client.
const TRIM_EVERY: Duration = Duration::from_secs(10);

async fn keep_trimmed(pool: Pool) {
    loop {
        rt::sleep(TRIM_EVERY).await;
        pool.trim();
    }
}

/// Of the buffers, as much as `--buffers` says: those of everybody, and the share for peers before they are known.
fn buffers(bytes: u64) -> Result<(Pool, Pool), String> {
    let pool = Pool::new(usize::try_from(bytes).map_err(|e| e.to_string())?);
    // Memory that was had once stays: what listens can answer somebody.
    if pool.try_alloc(1).is_none() {
        return Err("the system has no memory for the first buffers, which take 64 MiB of address space: `ulimit -v`, `ulimit -f`, \
                    or the limit of the service or container, is too low"
            .into());
    }
    let strangers = pool.for_strangers();
    Ok((pool, strangers))
}

/// The TCP listeners of one port.
async fn bind_tcp(listen: &Addresses, port: u16) -> Result<Vec<Listener>, String> {
    let bound = bind_each(listen, port, async |addr| Listener::bind(addr), port_of).await;
    bound.map_err(|(addr, e)| cannot_listen(addr, &e))
}

fn port_of(listener: &Listener) -> u16 {
    listener.local_addr().port()
}

impl Start {
    /// Binds every port, then makes the services (SMB tells clients the ports), then accepts.
    async fn start(mut self) -> Result<Services, String> {
        let (pool, strangers) = buffers(self.plan.config().limits.buffers_bytes)?;
        rt::spawn(keep_trimmed(pool.clone())).detach();
        let Opened { served: volumes, absent } = volumes::open(&self.plan, &pool)?;
        let replicas = match self.password.take() {
            Some(password) => Some(self.replicas(&password, &pool, &volumes, &absent)?),
            None => None,
        };
        if let (true, [], None, [first, ..]) = (self.shares.is_empty(), &volumes[..], &replicas, &absent[..])
        {
            return Err(format!("nothing is left to serve: volume {}: {}", first.name, first.why()));
        }
        self.shares.extend(volumes::share(&self.plan, &volumes));
        let nbd = nbd::Nbd::bind(&self.plan, &pool, &volumes).await?;
        if self.shares.is_empty() && replicas.is_none() {
            return self.start_volumes(pool, strangers, nbd, Opened { served: volumes, absent });
        }
        let plan = &self.plan;
        let config = plan.config();
        let listeners = &config.listeners;
        let smb_tcp = bind_tcp(&plan.listen, listeners.smb_port).await?;
        let rpc = async |role, port: Option<u16>| match port {
            Some(port) => RpcPort::bind(plan, &pool, role, port).await.map(Some),
            None => Ok(None),
        };
        let nfs_port = rpc(Role::Nfs, listeners.nfs_port).await?;
        let mountd_port = rpc(Role::Mount, listeners.mountd_port).await?;
        let rpcbind_port = rpc(Role::Rpcbind, listeners.rpcbind_port).await?;
        let folders: Vec<PathBuf> = plan.folders().map(PathBuf::from).collect();
        let begin =
            |capture: &config::CaptureConfig| capture::begin(&capture.file, capture.limit_bytes, &folders);
        let capture = config.rdma.capture.as_ref().map(begin).transpose()?;
        let smb_rdma = RdmaPort::bind(plan, &pool, listeners.smb_direct_port, capture.as_ref()).await?;
        let nfs_rdma = match listeners.nfs_rdma_port {
            Some(port) => Some(RdmaPort::bind(plan, &pool, port, capture.as_ref()).await?),
            None => None,
        };
        let ready = Ready {
            ready: true,
            pid: std::process::id(),
            listen: plan.listen.first(),
            addresses: plan.listen.all().to_vec(),
            user: plan.user().to_owned(),
            smb_port: smb_tcp.first().map(port_of),
            smbd_port: Some(smb_rdma.port),
            providers: smb_rdma.providers.clone(),
            nfs_port: nfs_port.as_ref().map(RpcPort::port),
            nfs_rdma_port: nfs_rdma.as_ref().map(|rdma| rdma.port),
            mountd_port: mountd_port.as_ref().map(RpcPort::port),
            rpcbind_port: rpcbind_port.as_ref().map(RpcPort::port),
            nfs_udp: listeners.nfs_udp,
            shares: self.shares.iter().map(ReadyShare::from).collect(),
            nbd: nbd.as_ref().map(|nbd| nbd.served(plan)),
            volumes: volumes::ready(&volumes),
            not_served: volumes::ready_absent(&absent),
            driver: rt::driver(),
        };

        let admin = admin(plan, &self.stop)?;
        let served: Vec<_> = self.shares.into_iter().map(|d| d.share).collect();
        let all = served.clone();
        let doors = replicas.iter().map(|replicas| replicas.share());
        let offers = offers(plan)?;
        if config.smb.min_dialect < smb::Dialect::V3_0 {
            tracing::warn!(
                "--min-dialect {}: clients of SMB 2 are let in, whose sessions cannot be encrypted and which do not notice that somebody \
                 in between has chosen the dialect",
                config.smb.min_dialect
            );
        }
        let mut server_guid = random::bytes().map_err(|e| e.to_string())?;
        if let Some(journal) = &offers.journal {
            server_guid = journal.server_guid();
        }
        let smb = smb::Server::new(smb::Config {
            server_guid,
            name: host_name(),
            shares: served.iter().cloned().chain(doors).collect(),
            users: self
                .secret
                .map(|secret| smb::User { name: plan.user().to_owned(), secret })
                .into_iter()
                .collect(),
            names: names::of(&host_name(), &config.smb.server_names),
            signing: config.smb.signing,
            min_dialect: config.smb.min_dialect,
            require_encryption: config.smb.require_encryption,
            multichannel: true,
            interfaces: interfaces(&ready),
            endpoints: endpoints(&ready),
            offers,
            pool: pool.clone(),
            limits: smb::Limits::within(listen::quota::descriptors()),
        });
        smb.restore().await.map_err(|e| format!("persistent handles: {e}"))?;
        // NFS cannot encrypt.
        let (encrypted, in_the_clear): (Vec<_>, Vec<_>) =
            served.into_iter().partition(|share| share.rules.encrypted);
        for share in encrypted.iter().filter(|_| listeners.serve_nfs()) {
            tracing::warn!("share {} is not offered over NFS, which would not encrypt it", share.name);
        }
        let nfs = weft_nfs::server::Server::new(weft_nfs::server::Config {
            shares: in_the_clear,
            pool: pool.clone(),
            limits: weft_nfs::server::Limits::within(listen::quota::descriptors()),
            durable: durable(plan, &ready)?,
            policy: weft_nfs::server::Policy {
                decides: weft_store::is_root(),
                squash_root: config.nfs.root_squash,
            },
        });

        let rpc_ports: Vec<_> = [nfs_port, mountd_port, rpcbind_port].into_iter().flatten().collect();
        let mut services: Vec<_> = rpc_ports.iter().flat_map(RpcPort::services).collect();
        services.extend(ready.nfs_rdma_port.iter().flat_map(|port| Service::of(Role::Nfs, Net::Rdma, *port)));
        let registration = match config.nfs.register {
            true => Some(Registration::new(plan.listen.all(), &services)?),
            false => None,
        };
        nfs.announce(plan.listen.all().to_vec(), services);

        let tended = nfs.clone();
        rt::spawn(async move { tended.tend().await }).detach();

        let subject =
            status::Subject::new(self.cores.clone(), &ready, Some(smb.clone()), &all, Growths::of(&volumes));
        let _admin = admin.open(subject, replicas.clone(), Growths::of(&volumes));
        let acceptor = Acceptor {
            cores: self.cores,
            memory: listen::memory::Memory::new(&pool, &strangers),
            pool,
            congestion: plan.config().limits.congestion.as_deref().map(Arc::from),
            quotas: Quotas::of_process()?,
            connections: self.connections,
            stop: self.stop,
        };
        rt::spawn(acceptor.memory.clone().watch()).detach();
        if let Some(replicas) = &replicas {
            replicas.start(ready.smb_port.unwrap_or_default(), &acceptor);
        }
        let (for_smb, for_nfs) = (smb.clone(), nfs.clone());
        let serve_smb = service(move |channel| {
            let served = for_smb.accept(channel.clone());
            let place = status::show_smb(&served, &channel);
            async move {
                served.run().await;
                drop(place);
                Ok::<(), std::convert::Infallible>(())
            }
        });
        let serve_nfs = service(move |channel| {
            let seen = Rc::default();
            let (nfs, place) = (for_nfs.clone(), status::show_nfs(&seen, &channel));
            async move {
                let ended = nfs.serve_watched(channel, &seen).await;
                drop(place);
                ended
            }
        });
        for listener in smb_tcp {
            let accepting = acceptor.clone().tcp(listener, Served::Smb, Framing::Nbss, serve_smb.clone());
            rt::spawn(accepting).detach();
        }
        for port in rpc_ports {
            port.serve(&acceptor, plan.nfs_tls.clone(), &nfs.reached(), &serve_nfs);
        }
        smb_rdma.serve(&acceptor, Messages::Smbd, &serve_smb);
        if let Some(rdma) = nfs_rdma {
            rdma.serve(&acceptor, Messages::RpcRdma, &serve_nfs);
        }
        let nbd = nbd.map(|nbd| nbd.serve(&acceptor));
        Ok(Services {
            ready,
            files: Some((smb, nfs)),
            nbd,
            replicas,
            _admin,
            _volumes: volumes,
            _registration: registration,
        })
    }

    /// Replication of the volumes: fronts of those that are in a group are closed until the group opens them.
    fn replicas(
        &self,
        password: &str,
        pool: &Pool,
        volumes: &[volumes::Served],
        absent: &[volumes::Absent],
    ) -> Result<Arc<Replicas>, String> {
        // The plan would not be one without a place for it.
        let state = self.plan.state_dir().unwrap_or_default();
        Replicas::new(&self.plan, &state, password, &self.cores, pool, volumes, absent)
    }

    /// The same where there is no share: nothing but NBD listens.
    fn start_volumes(
        self,
        pool: Pool,
        strangers: Pool,
        nbd: Option<nbd::Nbd>,
        volumes: Opened,
    ) -> Result<Services, String> {
        let Opened { served: volumes, absent } = volumes;
        let plan = &self.plan;
        let admin = admin(plan, &self.stop)?;
        let ready = Ready {
            ready: true,
            pid: std::process::id(),
            listen: plan.listen.first(),
            addresses: plan.listen.all().to_vec(),
            user: plan.user().to_owned(),
            smb_port: None,
            smbd_port: None,
            providers: Vec::new(),
            nfs_port: None,
            nfs_rdma_port: None,
            mountd_port: None,
            rpcbind_port: None,
            nfs_udp: false,
            shares: Vec::new(),
            nbd: nbd.as_ref().map(|nbd| nbd.served(plan)),
            volumes: volumes::ready(&volumes),
            not_served: volumes::ready_absent(&absent),
            driver: rt::driver(),
        };
        let subject = status::Subject::new(self.cores.clone(), &ready, None, &[], Growths::of(&volumes));
        let _admin = admin.open(subject, None, Growths::of(&volumes));
        let acceptor = Acceptor {
            cores: self.cores,
            memory: listen::memory::Memory::new(&pool, &strangers),
            pool,
            congestion: plan.config().limits.congestion.as_deref().map(Arc::from),
            quotas: Quotas::of_process()?,
            connections: self.connections,
            stop: self.stop,
        };
        let nbd = nbd.map(|nbd| nbd.serve(&acceptor));
        Ok(Services {
            ready,
            files: None,
            nbd,
            replicas: None,
            _admin,
            _volumes: volumes,
            _registration: None,
        })
    }
}

/// The admin socket, where there is a place for one.
struct Admin {
    endpoint: Option<Endpoint>,
    /// Where it is.
    dir: Option<PathBuf>,
    stop: Stop,
}

/// Binds the admin socket. Only where its directory was named is it an error that there can be none.
fn admin(plan: &Plan, stop: &Stop) -> Result<Admin, String> {
    let (dir, is_named) = (plan.state_dir(), plan.config().state_dir.is_some());
    let bound = match &dir {
        Some(dir) if dir.is_file() => Err(format!("{} is a file: name a folder", path_name(dir))),
        Some(dir) => Endpoint::bind(dir).map_err(|e| format!("no admin socket in {}: {e}", path_name(dir))),
        None => Err("no admin socket: neither XDG_STATE_HOME nor HOME is set".to_owned()),
    };
    let endpoint = match bound {
        Ok(endpoint) => {
            // After our own is there: of two that start at the same time one at least sees the other.
            if let Some(dir) = &dir {
                neighbours::sharing_state(dir, is_named);
            }
            Some(endpoint)
        }
        Err(why) if is_named => return Err(format!("--state-dir: {why}")),
        Err(why) => {
            tracing::warn!("{why}; `weft status` will not find this server: name a --state-dir");
            None
        }
    };
    Ok(Admin { endpoint, dir, stop: stop.clone() })
}

impl Admin {
    /// From now on requests are answered. Gives the socket's file, which goes when that is dropped.
    fn open(
        self,
        subject: status::Subject,
        replicas: Option<Arc<Replicas>>,
        growths: Growths,
    ) -> Option<SocketFile> {
        let mut endpoint = self.endpoint?;
        let file = endpoint.take_file();
        let subject = Rc::new(subject.with_state(self.dir));
        let handler: Handler = Rc::new(move |request, hung_up| {
            let (subject, replicas, growths) = (subject.clone(), replicas.clone(), growths.clone());
            Box::pin(async move {
                match request {
                    Request::Grow { volume, size } => {
                        if replicas.is_some_and(|replicas| replicas.has(&volume)) {
                            return Err(format!(
                                "{volume} is replicated: weft replica resize {volume} {size}, where its source is"
                            ));
                        }
                        growths.grow(&volume, size).await.map(serde_json::Value::from)
                    }
                    Request::Replica(command) => {
                        let reply = match (replicas, command) {
                            (Some(replicas), command) => replicas.command(command, &hung_up).await?,
                            (None, Command::Status) => Reply::Status(Vec::new()),
                            (None, _) => return Err(NO_REPLICAS.into()),
                        };
                        serde_json::to_value(reply).map_err(|e| e.to_string())
                    }
                    Request::Status => {
                        let mut status = subject.status().await?;
                        status.replicas = replicas.map_or_else(Vec::new, |replicas| replicas.told());
                        serde_json::to_value(status).map_err(|e| e.to_string())
                    }
                }
            })
        });
        rt::spawn(endpoint.serve(handler, self.stop)).detach();
        file
    }
}

/// What the SMB server offers where the configuration asks for it.
fn offers(plan: &Plan) -> Result<smb::Offers, String> {
    let config = plan.config();
    let named = |is: fn(&ShareConfig) -> bool| -> Vec<String> {
        config.shares.iter().filter(|share| is(share)).map(|share| share.name.to_lowercase()).collect()
    };
    let (compressed, continuous) =
        (named(|share| share.compress), named(|share| share.continuous_availability));
    let journal = if continuous.is_empty() { None } else { Some(smb_journal(plan)?) };
    Ok(smb::Offers {
        dfs: plan.dfs.clone(),
        compression: config.smb.compress || !compressed.is_empty(),
        compressed,
        keytab: plan.keytab.clone(),
        journal,
        continuous,
        posix: config.smb.posix,
    })
}

/// Where persistent handles are written down.
fn smb_journal(plan: &Plan) -> Result<smb::journal::Journal, String> {
    // The plan would not be one without a place for them.
    let dir = plan.state_dir().unwrap_or_default();
    let instance = format!("{}-{}", plan.listen.first(), plan.config().listeners.smb_port);
    smb::journal::Journal::open(&dir, &instance)
        .map_err(|e| format!("persistent handles cannot be kept in {}: {e}", dir.display()))
}

/// What NFS keeps over restarts. A client that comes back needs the port that it knew: where that is picked anew at
/// every start, nothing is kept unless a directory is named.
fn durable(plan: &Plan, ready: &Ready) -> Result<Option<Durable>, String> {
    let config = plan.config();
    let fixed = |port: Option<u16>| port.filter(|port| *port != 0);
    let port = fixed(config.listeners.nfs_port).or(fixed(config.listeners.nfs_rdma_port));
    let served = ready.nfs_port.or(ready.nfs_rdma_port);
    let Some(served) = served else { return Ok(None) };
    let instance = format!("{}-{served}", plan.listen.first());
    if let Some(dir) = &config.state_dir {
        let opened = Durable::open(dir, &instance);
        return opened.map(Some).map_err(|e| format!("NFS clients would not survive a restart: {e}"));
    }
    if port.is_none() {
        return Ok(None);
    }
    let Some(dir) = crate::volume::state_of_user() else {
        tracing::warn!(
            "NFS clients will not survive a restart: neither XDG_STATE_HOME nor HOME is set; name a --state-dir"
        );
        return Ok(None);
    };
    match Durable::open(&dir, &instance) {
        Ok(durable) => Ok(Some(durable)),
        Err(e) => {
            tracing::warn!(
                "NFS clients will not survive a restart: {e}; mend that, or name another --state-dir"
            );
            Ok(None)
        }
    }
}

/// Wraps a protocol's `serve` so that every core can start it; a connection's end is a line in the log.
fn service<F, E>(serve: impl Fn(Rc<dyn Channel>) -> F + Send + Sync + 'static) -> listen::Serve
where
    F: Future<Output = Result<(), E>> + 'static,
    E: std::fmt::Display,
{
    Arc::new(move |channel: Rc<dyn Channel>| {
        let (kind, medium, peer) = (channel.kind(), channel.medium(), channel.peer());
        tracing::debug!("{kind:?} over {medium} from {peer}: connected");
        let ended = serve(channel);
        let connection = async move {
            match ended.await {
                Ok(()) => tracing::debug!("{kind:?} over {medium} from {peer}: ended"),
                Err(e) => {
                    static CLOSED: LogLimit = LogLimit::new();
                    if let Some(left_out) = CLOSED.pass(rt::now()) {
                        // All connections of an address that end about now are told by one line.
                        tracing::warn!(%peer, error = %e, "{kind:?} over {medium}: closed{left_out}");
                    }
                }
            }
        };
        Box::pin(connection) as Pin<Box<dyn Future<Output = ()>>>
    })
}

/// What a Weft client that knows only the TCP port of SMB is told: a line for each way to SMB Direct.
fn endpoints(ready: &Ready) -> String {
    let Some(port) = ready.smbd_port else { return String::new() };
    ready.providers.iter().map(|provider| format!("{provider} {port}\n")).collect()
}

/// What any client is told ([MS-SMB2] 2.2.32.5): the addresses that it can reach, asked of the system each time.
///
/// SMB Direct is announced only at the port where clients other than Weft's look for it.
fn interfaces(ready: &Ready) -> smb::Interfaces {
    let listen = ready.addresses.clone();
    let rdma = ready.smbd_port == Some(config::SMB_DIRECT_PORT)
        && ready.providers.iter().any(|provider| matches!(*provider, "iwarp" | "rnic"));
    smb::Interfaces::asked(move || match weft_machine::net::interfaces() {
        Ok(found) => served(&found, &listen, rdma),
        Err(e) => {
            tracing::warn!("the interfaces of this host cannot be listed: {e}");
            Vec::new()
        }
    })
}

/// The interfaces of this host, for hints: without them those name what is listened on.
fn found() -> Vec<Interface> {
    weft_machine::net::interfaces().unwrap_or_else(|e| {
        tracing::debug!("the interfaces of this host cannot be listed: {e}");
        Vec::new()
    })
}

/// The interfaces by which a client reaches a server that listens on `listen`: those that have such an address, or, for
/// all addresses, those that lead out of this host. One that has RDMA is told twice, with it and without: Linux's client
/// (6.12) opens no further TCP connection to an interface that is told to have RDMA. Windows takes each for both
/// ([MS-SMB2] note 198), and RDMA first.
fn served(found: &[Interface], listen: &[IpAddr], rdma: bool) -> Vec<smb::NetworkInterface> {
    let reached_at = |interface: &Interface, listen: &IpAddr| match listen {
        listen if !listen.is_unspecified() => interface.addr == *listen,
        _ if interface.loopback || !interface.is_routable() => false,
        IpAddr::V4(_) => interface.addr.is_ipv4(),
        IpAddr::V6(_) => true,
    };
    let reaches = |interface: &&Interface| listen.iter().any(|listen| reached_at(interface, listen));
    let told = |interface: &Interface, rdma| smb::NetworkInterface {
        index: interface.index,
        addr: interface.addr,
        link_speed_bps: interface.speed_bps.unwrap_or(LINK_SPEED_BPS),
        rdma,
        rss: interface.queues > 1,
    };
    let kinds: &[bool] = if rdma { &[true, false] } else { &[false] };
    found.iter().filter(reaches).flat_map(|one| kinds.iter().map(move |&rdma| told(one, rdma))).collect()
}

/// The sentence for a listener that could not be bound.
fn cannot_listen(addr: SocketAddr, error: &std::io::Error) -> String {
    cannot_listen_at(addr, "its option (--smb-port N, --smbd-port N, ...)", error)
}

/// The same where `option` chooses the port.
pub(crate) fn cannot_listen_at(addr: SocketAddr, option: &str, error: &std::io::Error) -> String {
    let advice = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let port = addr.port();
            return format!(
                "cannot listen on {addr}: another program has the port (`ss -ltnp sport = :{port}` shows it); choose another by \
                 {option}, or 0 for any"
            );
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root, CAP_NET_BIND_SERVICE (setcap cap_net_bind_service=+ep on the weft program) or a lower \
             net.ipv4.ip_unprivileged_port_start (sysctl): or choose a higher one"
        }
        std::io::ErrorKind::AddrNotAvailable => "; this host does not have that address",
        _ => "",
    };
    format!("cannot listen on {addr}: {error}{advice}")
}

fn cannot_listen_on_device(addr: SocketAddr, error: &std::io::Error) -> String {
    let ip = addr.ip();
    match error.kind() {
        std::io::ErrorKind::Unsupported => format!("--rdma rnic: {error}"),
        std::io::ErrorKind::AddrInUse => format!(
            "--rdma rnic: port {} is in use; iWARP devices share the ports of TCP: leave iwarp out (--rdma rnic,shm)",
            addr.port()
        ),
        _ => format!(
            "--rdma rnic: no RDMA device listens on {ip}: {error}; choose the address of one: --listen ADDR"
        ),
    }
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "WEFT".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, addr: &str, loopback: bool) -> Interface {
        let (name, addr) = (format!("if{index}"), addr.parse().unwrap());
        Interface { index, name, addr, loopback, speed_bps: None, queues: index as usize }
    }

    #[test]
    fn clients_are_told_what_they_can_reach() {
        let found = [
            interface(1, "127.0.0.1", true),
            interface(1, "::1", true),
            interface(2, "10.0.0.1", false),
            interface(2, "fe80::1", false),
            interface(3, "2001:db8::1", false),
        ];
        let told = |listen: &str| -> Vec<String> {
            let listen: Addresses = listen.parse().unwrap();
            let told = served(&found, listen.all(), false);
            told.iter().map(|interface| format!("{} {}", interface.index, interface.addr)).collect()
        };
        assert_eq!(told("127.0.0.1"), ["1 127.0.0.1"]);
        assert_eq!(told("localhost"), ["1 127.0.0.1", "1 ::1"]);
        assert_eq!(told("0.0.0.0"), ["2 10.0.0.1"]);
        assert_eq!(told("::"), ["2 10.0.0.1", "3 2001:db8::1"]);
        assert_eq!(told("10.9.9.9"), [""; 0]);
        let one = &served(&found, &["10.0.0.1".parse().unwrap()], false)[0];
        assert_eq!((one.rss, one.rdma, one.link_speed_bps), (true, false, LINK_SPEED_BPS));
    }

    #[test]
    fn an_interface_with_rdma_is_told_to_those_who_look_for_tcp_too() {
        let found = [interface(2, "10.0.0.1", false), interface(3, "10.0.1.1", false)];
        let told = served(&found, &["0.0.0.0".parse().unwrap()], true);
        let told: Vec<_> = told.iter().map(|one| (one.addr.to_string(), one.index, one.rdma)).collect();
        let each = |addr: &str, index| [(addr.to_owned(), index, true), (addr.to_owned(), index, false)];
        assert_eq!(told, [each("10.0.0.1", 2), each("10.0.1.1", 3)].concat());
    }
}
