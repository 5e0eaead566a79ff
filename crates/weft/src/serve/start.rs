//! Starts a server from a plan: opens the volumes, binds every port, makes the services, then accepts.
//!
//! SMB announces the ports to its clients, so they are bound before the services exist, and nothing is accepted
//! before everything is ready.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use weft_machine::rt::{self, Cores};
use weft_machine::{Pool, heap};
use weft_store::Share;
use weft_store::audit::Audit;
use weft_store::rights::{Principal, Rights};

use super::admin::{Admin, Managed};
use super::announced::Announced;
use super::audit::Names;
use super::error::StartError;
use super::files::FileServers;
use super::http::{AdminHttp, Pages};
use super::log_ons::{self, LogOns};
use super::nbd::Nbd;
use super::neighbours::Marks;
use super::ports::FilePorts;
use super::registration::Registration;
use super::reload::{Changed, Current, Reload};
use super::replica::{Own, Replicas};
use super::service::ServiceManager;
use super::starting::Step;
use super::volumes::{self, Growths, Opened};
use super::{nbd, status};
use crate::args::{Serve, memory};
use crate::config::{Plan, buffers_within, key};
use crate::listen::quota::Quotas;
use crate::listen::unix::SocketFile;
use crate::listen::{self, Acceptor, Stop};
use crate::ready::{Ready, ReadyAbsent, ReadyShare};
use crate::shares::Described;

/// The server before anything listens.
pub(super) struct Start {
    pub plan: Plan,
    pub shares: Vec<Described>,
    /// Set if there is something for users who log on.
    pub log_ons: Option<Arc<LogOns>>,
    /// For servers that this one becomes a destination of. Set if volumes may be replicated.
    pub own: Option<Own>,
    pub cores: Arc<Cores>,
    pub connections: Arc<AtomicUsize>,
    pub stop: Stop,
    /// The command line, to read the configuration again.
    pub args: Serve,
    pub marks: Option<Marks>,
    pub audit: Audit,
    pub manager: ServiceManager,
    /// The part of the start that runs now. The log tells it if that takes long.
    pub step: Step,
}

/// The services, once everything listens.
pub(super) struct Services {
    pub ready: Ready,
    pub files: Option<FileServers>,
    pub nbd: Option<Arc<weft_nbd::Server>>,
    pub replicas: Option<Arc<Replicas>>,
    pub reload: Arc<Reload>,
    /// What other hosts are told.
    pub announced: Arc<Announced>,
    /// Locked until the process ends.
    pub volumes: Vec<volumes::Served>,
    /// Removed when the process ends, as the next.
    pub _admin: Option<SocketFile>,
    /// The Unix socket of the admin server.
    pub _admin_http: Option<SocketFile>,
    /// Unregistered when the process ends normally.
    pub _registration: Option<Registration>,
}

/// Everything that is bound.
struct Bound {
    nbd: Option<Nbd>,
    /// Set if there are shares, or for replication's doors.
    files: Option<FilePorts>,
    /// Set if metrics are served.
    http: Option<AdminHttp>,
}

impl Start {
    /// Starts the server; it accepts connections when this returns.
    pub(super) async fn start(mut self) -> Result<Services, StartError> {
        let wanted = self.plan.config().limits.buffers_bytes;
        let given = buffers_within(wanted, memory());
        if given != wanted {
            tracing::info!("payload buffers take up to {} MiB, half of this host's memory", given >> 20);
        }
        let buffers = Buffers::new(given)?;
        let pool = &buffers.pool;
        self.step.begin("opening the volumes");
        let (opened, replicas) = self.open_volumes(pool).await?;
        self.step.begin("binding the ports");
        let mut bound = self.bind(pool, &opened).await?;
        let ready = self.ready(&bound, &opened);
        let admin = Admin::bind(&self.plan, &self.stop)?;
        let described = std::mem::take(&mut self.shares);
        let shares: Vec<Share> = described.iter().map(|described| described.share.clone()).collect();
        // Other servers log on as the configured user; the users of the store have nothing to do with replication.
        let own = self.log_ons.as_ref().and_then(|log_ons| log_ons.configured());
        let rights = Rights {
            read: None,
            write: Some(own.map(|name| Principal::User(name.to_owned())).into_iter().collect()),
        };
        let door = replicas.as_ref().map(|replicas| {
            let mut door = replicas.share();
            door.rules.rights = rights;
            door
        });
        let mut names = Names::default();
        let mut of_users = Vec::new();
        let files = match &bound.files {
            Some(_) => {
                self.step.begin("asking the system who the users and groups of rights are");
                let users =
                    self.log_ons.as_ref().map(|log_ons| log_ons.now()).transpose()?.unwrap_or_default();
                log_ons::warn_of_unknown(&shares, &users).await;
                of_users.clone_from(&users.warnings);
                names = Names::of(&users);
                let (door, audit) = (door.clone(), self.audit.clone());
                self.step.begin("opening again what clients of the last run had open");
                Some(FileServers::new(&self.plan, users, (shares, door), &ready, pool, audit).await?)
            }
            None => None,
        };
        self.step.begin("registering with rpcbind");
        let registration = self.announce(&bound, files.as_ref())?;
        self.step.begin("opening the admin socket and the listeners");
        let smb = files.as_ref().map(|files| files.smb.clone());
        let growths = Growths::of(&opened.served);
        let subject = status::Subject::new(self.cores.clone(), &ready, smb, &described, growths.clone());
        subject.replace_shares(&described, &self.plan.absent);
        subject.replace_warnings_of_users(of_users);
        let missing = self.plan.config().missing_addresses();
        let subject = subject.with_warnings(missing.iter().map(ToString::to_string).collect());
        let subject = subject
            .with_config(self.plan.config().sources.file())
            .with_state(admin.dir.clone())
            .with_audit(self.audit.clone());
        let announced = Arc::new(Announced::new(&self.plan, &ready));
        let subject = Arc::new(subject.with_announced(announced.clone()));
        let open = |http: AdminHttp| {
            let sources = (self.cores.clone(), subject.clone(), replicas.clone(), pool.clone());
            let pages = Pages::new(sources, http.shows());
            http.open(pages)
        };
        let admin_http = bound.http.take().map(open).transpose()?.flatten();
        let (config, served) = (self.plan.config().clone(), described.clone());
        let changed = Changed {
            log_ons: self.log_ons.clone(),
            files: files.clone(),
            door,
            subject: subject.clone(),
            announced: announced.clone(),
            audit: self.audit.clone(),
            manager: self.manager.clone(),
        };
        let reload = self.reload((described, names), changed);
        let audit = self.audit.clone();
        let managed = Managed { subject, replicas: replicas.clone(), growths, reload: reload.clone(), audit };
        let admin = admin.open(managed);
        let acceptor = self.acceptor(buffers)?;
        if let Some(replicas) = &replicas {
            replicas.start(ready.smb_port.unwrap_or_default(), &acceptor);
        }
        let step = self.step.clone();
        let nbd = self.accept(bound, files.as_ref(), &acceptor);
        step.begin("announcing the server on the network");
        // Whoever hears of the server finds it.
        announced.clone().tell(config, served).await;
        Ok(Services {
            ready,
            files,
            nbd,
            replicas,
            reload,
            announced,
            _admin: admin,
            _admin_http: admin_http,
            volumes: opened.served,
            _registration: registration,
        })
    }

    /// What reads the configuration again.
    fn reload(&mut self, (shares, names): (Vec<Described>, Names), changed: Changed) -> Arc<Reload> {
        let started = self.plan.config().clone();
        let current = Current { config: started.clone(), started, shares, marks: self.marks.take(), names };
        Arc::new(Reload::new(self.args.clone(), changed, current))
    }

    /// Opens the volumes with their replication, and makes the share that contains them as files.
    async fn open_volumes(&mut self, pool: &Pool) -> Result<(Opened, Option<Arc<Replicas>>), StartError> {
        let opened = volumes::open(&self.plan, pool).await?;
        let replicas = match self.own.take() {
            Some(own) => Some(self.replicas(own, pool, &opened)?),
            None => None,
        };
        if let (true, [], None, [first, ..]) =
            (self.shares.is_empty(), &opened.served[..], &replicas, &opened.absent[..])
        {
            return Err(StartError::NothingLeft { volume: first.name.clone(), why: first.why() });
        }
        self.shares.extend(volumes::share(&self.plan, &opened.served));
        Ok((opened, replicas))
    }

    /// Replication of the volumes: the fronts of volumes in a group stay closed until the group opens them.
    fn replicas(&self, own: Own, pool: &Pool, opened: &Opened) -> Result<Arc<Replicas>, StartError> {
        // A plan without a directory for it would not pass the check.
        let state = self.plan.state_dir().unwrap_or_default();
        let Opened { served, absent } = opened;
        Ok(Replicas::new(&state, own, &self.cores, pool, served, absent)?)
    }

    async fn bind(&self, pool: &Pool, opened: &Opened) -> Result<Bound, StartError> {
        let nbd = nbd::Nbd::bind(&self.plan, pool, &opened.served).await?;
        let files = match self.plan.serves_files() {
            true => Some(FilePorts::bind(&self.plan, pool).await?),
            false => None,
        };
        Ok(Bound { nbd, files, http: AdminHttp::bind(&self.plan)? })
    }

    /// The contents of the ready line.
    fn ready(&self, bound: &Bound, opened: &Opened) -> Ready {
        let files = bound.files.as_ref();
        let listen = &self.plan.listen;
        Ready {
            ready: true,
            pid: std::process::id(),
            listen: listen.first(),
            addresses: listen.all().to_vec(),
            user: self.log_ons.as_ref().map(|log_ons| log_ons.first().to_owned()).unwrap_or_default(),
            smb_port: files.and_then(FilePorts::smb_port),
            smbd_port: files.map(|files| files.smb_rdma.port),
            providers: files.map(|files| files.smb_rdma.providers.clone()).unwrap_or_default(),
            nfs_port: files.and_then(|files| Some(files.nfs.as_ref()?.port())),
            nfs_rdma_port: files.and_then(|files| Some(files.nfs_rdma.as_ref()?.port)),
            mountd_port: files.and_then(|files| Some(files.mountd.as_ref()?.port())),
            rpcbind_port: files.and_then(|files| Some(files.rpcbind.as_ref()?.port())),
            admin_port: bound.http.as_ref().and_then(|http| http.port),
            admin_socket: bound.http.as_ref().and_then(|http| http.path.clone()),
            nfs_udp: files.is_some() && self.plan.config().listeners.nfs_udp,
            shares: self.shares.iter().map(ReadyShare::from).collect(),
            nbd: bound.nbd.as_ref().map(|nbd| nbd.served(&self.plan)),
            volumes: volumes::ready(&opened.served),
            not_served: volumes::ready_absent(&opened.absent),
            shares_not_served: self.plan.absent.iter().map(ReadyAbsent::from).collect(),
            driver: rt::driver(),
        }
    }

    /// Announces the services to NFS and, if configured, to this host's rpcbind.
    fn announce(
        &self,
        bound: &Bound,
        servers: Option<&FileServers>,
    ) -> Result<Option<Registration>, StartError> {
        let (Some(ports), Some(servers)) = (&bound.files, servers) else { return Ok(None) };
        let (config, listen) = (self.plan.config(), self.plan.listen.all());
        let services = ports.services();
        let registration = match config.nfs.register {
            true => Some(Registration::new(listen, &services).map_err(|fault| {
                let key = config.sources.named(&key::REGISTER);
                StartError::Unregistered { key, fault }
            })?),
            false => None,
        };
        servers.nfs.announce(listen.to_vec(), services);
        Ok(registration)
    }

    /// Makes the acceptor, within this process's limits.
    fn acceptor(&self, buffers: Buffers) -> Result<Acceptor, StartError> {
        let Buffers { pool, strangers } = buffers;
        Ok(Acceptor {
            cores: self.cores.clone(),
            memory: listen::memory::Memory::new(&pool, &strangers),
            pool,
            congestion: self.plan.config().limits.congestion.as_deref().map(Arc::from),
            quotas: Quotas::of_process()?,
            connections: self.connections.clone(),
            stop: self.stop.clone(),
        })
    }

    /// Accepts on all bound sockets.
    fn accept(
        self,
        bound: Bound,
        servers: Option<&FileServers>,
        acceptor: &Acceptor,
    ) -> Option<Arc<weft_nbd::Server>> {
        if let (Some(ports), Some(servers)) = (bound.files, servers) {
            let server = servers.nfs.clone();
            rt::spawn(async move { server.run_housekeeping().await }).detach();
            rt::spawn(acceptor.memory.clone().watch()).detach();
            let server = servers.smb.clone();
            rt::spawn(keep_trimmed(move || server.trim())).detach();
            let (smb, nfs) = (servers.serve_smb(), servers.serve_nfs());
            ports.serve(acceptor, &self.plan, &smb, &nfs, &servers.nfs.reached());
        }
        bound.nbd.map(|nbd| nbd.serve(acceptor))
    }
}

/// How long memory of unused buffers, and freed memory of the heap, is kept before the system gets it back. Reusing it
/// then costs a page fault per 4 KiB, so it should survive the gap between two bursts of one client.
const TRIM_EVERY: Duration = Duration::from_secs(10);

async fn keep_trimmed(trim: impl Fn()) {
    loop {
        rt::sleep(TRIM_EVERY).await;
        trim();
    }
}

/// Buffers for payload.
struct Buffers {
    /// For everybody.
    pool: Pool,
    /// The share for peers that are not identified yet.
    strangers: Pool,
}

impl Buffers {
    /// At most this many bytes.
    fn new(bytes: u64) -> Result<Buffers, StartError> {
        let pool = Pool::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        // Memory that was allocated once stays: a listening server can always answer.
        if pool.try_alloc(1).is_none() {
            return Err(StartError::NoMemory);
        }
        let trimmed = pool.clone();
        let trim = move || {
            trimmed.trim();
            heap::trim();
        };
        rt::spawn(keep_trimmed(trim)).detach();
        let strangers = pool.for_strangers();
        Ok(Buffers { pool, strangers })
    }
}
