//! A group: its volumes, its journal, and the task that lets it be what the journal says it is.
//!
//! Owns: the journal's block, locked as long as the group is here. Does not: carry bytes to another host (see
//! [`super::carrier`]).
//!
//! ```text
//!            ┌────────────── opened as ──────────────┐
//!   journal ─┤ source:      volumes open to users    ├─ roles exchanged, promoted, superseded ─► again
//!            │ destination: doors open to its source │─ both were written to, disk failed ─────► stopped, until told
//!            └───────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_machine::rt;
use weft_replica::destination::{self, Destination};
use weft_replica::journal::{self, Format, Side, Wall};
use weft_replica::rescue;
use weft_replica::source::{self, First, PeerConfig, Source};
use weft_replica::status::{Phase, Role, Status};
use weft_store::block::{Block, BlockOp, Medium, Outcome};
use weft_store::volume::{Create, Place, Volume, Volumes};

use super::carrier::{Carrier, Report};
use super::config::{self, Partner};
use super::picture::Picture;
use super::setup::Join;
use super::{Member, Replicas, door, random};

/// How often it is looked whether a source has stopped.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a group may take to open, and how often somebody who waits for it looks.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
const SETTLE_LOOK: Duration = Duration::from_millis(20);
/// How long links may take to end when a source has stopped.
const LINKS_END_WITHIN: Duration = Duration::from_secs(15);
/// Extents that are asked for at a time.
const EXTENTS: usize = 1024;

/// See the module.
pub(super) struct Group {
    /// Its name here.
    pub name: String,
    pub(super) partnership: [u8; 16],
    pub(super) members: Vec<Arc<Member>>,
    config: Mutex<config::Group>,
    side: Side,
    /// Locked until the group ends.
    _journal: Volume,
    state: Mutex<State>,
    links_known: Mutex<HashMap<String, Link>>,
    /// A test failover that goes on.
    pub(super) picture: Mutex<Option<Picture>>,
    /// Links that run.
    links: AtomicUsize,
    /// It ends for good, or with the process.
    ending: AtomicBool,
    /// The task has ended.
    ended: AtomicBool,
}

/// A link that runs, by its number at the source.
struct Link {
    number: usize,
    report: Arc<Mutex<Report>>,
}

/// What a group is.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Not known yet: its journal is being read.
    Starting,
    /// Written to here.
    Source(Arc<Source>),
    /// A copy.
    Destination(Arc<Destination>),
    /// Neither, and why. A source that has stopped may be kept for the decision.
    Stopped(String, Option<Arc<Source>>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept here is replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a log is sized that nobody has sized.
pub(super) fn default_log_bytes(sizes: &[u64]) -> u64 {
    let all: u64 = sizes.iter().sum();
    (all / 4).clamp(64 << 20, journal::DEFAULT_LOG_BYTES).next_multiple_of(4096)
}

/// Bytes of a volume that are not holes.
pub(super) async fn used_bytes(block: &Arc<dyn Block>) -> Result<u64, String> {
    let size = block.geometry().size;
    let (mut offset, mut used) = (0, 0);
    while offset < size {
        let op = BlockOp::Status { offset, len: size - offset, max_extents: EXTENTS };
        let Outcome::Extents(extents) = block.submit(op).await.map_err(|e| e.to_string())? else {
            return Err("a volume does not tell its extents".into());
        };
        for extent in extents {
            offset += extent.len;
            used += if extent.hole { 0 } else { extent.len };
        }
    }
    Ok(used)
}

/// Bytes a second of durable writes in a folder, and milliseconds of one small write. Takes half a second.
pub(super) fn measure(folder: &Path) -> io::Result<(f64, f64)> {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 32;
    const SMALL: usize = 20;
    let file = tempfile::tempfile_in(folder)?;
    let piece = vec![0xa5; PIECE];
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, (PIECE * PIECES) as u64)?;
    rustix::fs::fdatasync(&file)?;
    let began = Instant::now();
    for i in 0..PIECES {
        rustix::io::pwrite(file.as_fd(), &piece, (i * PIECE) as u64)?;
    }
    rustix::fs::fdatasync(&file)?;
    let rate = (PIECE * PIECES) as f64 / began.elapsed().as_secs_f64();
    let mut times: Vec<Duration> = Vec::new();
    for i in 0..SMALL {
        let began = Instant::now();
        rustix::io::pwrite(file.as_fd(), &piece[..8192], (i * 8192) as u64)?;
        rustix::fs::fdatasync(&file)?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok((rate, times[SMALL / 2].as_secs_f64() * 1e3))
}

impl Group {
    /// A group that is remembered.
    pub fn open(replicas: &Replicas, config: config::Group) -> Result<Arc<Group>, String> {
        let journal = Volumes::at(replicas.folder.path())
            .open(&config.name, &replicas.pool)
            .map_err(|e| e.to_string())?;
        Group::of(replicas, config, journal)
    }

    fn of(replicas: &Replicas, config: config::Group, journal: Volume) -> Result<Arc<Group>, String> {
        let partnership = door::parse_partnership(&config.partnership)
            .ok_or_else(|| format!("{:?} is no partnership", config.partnership))?;
        let members: Vec<Arc<Member>> =
            config.volumes.iter().map(|name| replicas.member(name)).collect::<Result<_, _>>()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let side = Side {
            journal: journal.block.clone(),
            members: members.iter().map(|member| member.bare.clone()).collect(),
            pool: replicas.pool.clone(),
            wall: Wall::new(now.as_millis() as u64),
        };
        Ok(Arc::new(Group {
            name: config.name.clone(),
            partnership,
            members,
            config: Mutex::new(config),
            side,
            _journal: journal,
            state: Mutex::new(State::Starting),
            links_known: Mutex::default(),
            picture: Mutex::default(),
            links: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }))
    }

    /// A new group: makes and formats its journal, and remembers it.
    pub async fn create(
        replicas: &Replicas,
        mut config: config::Group,
        role: Role,
        sizes: Vec<u64>,
        partner: Option<Partner>,
    ) -> Result<Arc<Group>, String> {
        if replicas.groups().contains_key(&config.name) {
            return Err(format!("there is a group {:?} already: --group names another", config.name));
        }
        if replicas.groups().len() >= config::MOST_GROUPS {
            return Err(format!("limit reached: {} groups", config::MOST_GROUPS));
        }
        let members: Vec<Arc<Member>> =
            config.volumes.iter().map(|name| replicas.member(name)).collect::<Result<_, _>>()?;
        config.in_memory = members.iter().all(|member| member.medium == Medium::Ram);
        config.partners.extend(partner);
        let partnership =
            door::parse_partnership(&config.partnership).ok_or("a partnership of the wrong length")?;
        let format = Format {
            partnership,
            role,
            tag: u64::from_le_bytes(random()?),
            sizes,
            log_bytes: config.log_bytes,
        };
        let bytes = journal::bytes(&format).map_err(|e| e.to_string())?.next_multiple_of(4096);
        replicas.folder.make().map_err(|e| format!("{}: {e}", replicas.folder.path().display()))?;
        let place = match config.in_memory {
            true => Place::Ram,
            false => Place::File(replicas.folder.journal(&config.name)),
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let wanted = Create {
            allocate: !config.in_memory,
            place,
            size: Some(bytes),
            direct: false,
            id: random()?,
            created,
        };
        let journals = Volumes::at(replicas.folder.path());
        journals.create(&config.name, &wanted).map_err(|e| format!("no journal: {e}"))?;
        let made = async {
            let journal = journals.open(&config.name, &replicas.pool).map_err(|e| e.to_string())?;
            let block: Arc<dyn Block> = journal.block.clone();
            journal::format(&block, &format).await.map_err(|e| e.to_string())?;
            replicas.folder.save(&config).map_err(|e| format!("the group cannot be remembered: {e}"))?;
            Group::of(replicas, config.clone(), journal)
        };
        match made.await {
            Ok(group) => Ok(group),
            Err(e) => {
                forget(replicas, &config.name);
                Err(e)
            }
        }
    }

    /// The group of a volume that becomes a copy.
    pub async fn join(replicas: &Replicas, join: &Join) -> Result<Arc<Group>, String> {
        let partner =
            Partner { name: join.source.clone(), address: join.back.clone(), synchronous: join.synchronous };
        let (name, partnership) = (&join.group, join.partnership.clone());
        let policy = join.policy;
        let config = config::Group::new(name, partnership, join.volumes.clone(), join.log_bytes, policy);
        // Its own volumes may be longer: what they have more is none of the group's, or it could not go back.
        let sizes = join.sizes.clone();
        Group::create(replicas, config, Role::Destination, sizes, Some(partner)).await
    }

    /// Whether a volume of this name is in it.
    pub fn has(&self, volume: &str) -> bool {
        self.members.iter().any(|member| member.name == volume)
    }

    /// 32 digits.
    pub fn partnership_hex(&self) -> String {
        door::hex(&self.partnership)
    }

    /// What it is now.
    pub fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// Waits until it has become what it is to be.
    pub async fn settled(&self, is: impl Fn(&State) -> bool) -> Result<(), String> {
        let until = rt::now() + SETTLES_WITHIN;
        loop {
            let state = self.state();
            if is(&state) {
                return Ok(());
            }
            if let State::Stopped(why, _) = state {
                return Err(why);
            }
            if rt::now() >= until {
                return Err(format!("{} takes long to open: see weft replica status", self.name));
            }
            rt::sleep(SETTLE_LOOK).await;
        }
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// Whether it keeps a copy.
    pub fn is_destination(&self) -> bool {
        matches!(self.state(), State::Destination(_))
    }

    /// How it is remembered.
    pub fn config(&self) -> config::Group {
        lock(&self.config).clone()
    }

    /// Remembers a change.
    pub fn change(&self, replicas: &Replicas, change: impl FnOnce(&mut config::Group)) -> Result<(), String> {
        let mut config = lock(&self.config);
        let mut new = config.clone();
        change(&mut new);
        replicas.folder.save(&new).map_err(|e| format!("the group cannot be remembered: {e}"))?;
        *config = new;
        Ok(())
    }

    /// What the engine says, where it runs.
    pub fn status(&self) -> Option<Status> {
        match self.state() {
            State::Source(source) | State::Stopped(_, Some(source)) => Some(source.status()),
            State::Destination(destination) => Some(destination.status()),
            _ => None,
        }
    }

    /// What is known of the link to a partner.
    pub fn report(&self, partner: &str) -> Report {
        lock(&self.links_known).get(partner).map(|link| lock(&link.report).clone()).unwrap_or_default()
    }

    /// The number of a destination of this source.
    pub fn number(&self, partner: &str) -> Option<usize> {
        lock(&self.links_known).get(partner).map(|link| link.number)
    }

    /// Lets the group be what its journal says, until it ends.
    pub async fn govern(self: &Arc<Self>, replicas: &Arc<Replicas>) {
        while !self.ending.load(Ordering::Acquire) {
            if let Err(why) = self.live(replicas).await {
                if self.ending.load(Ordering::Acquire) {
                    break;
                }
                tracing::error!("group {}: {why}", self.name);
                self.close_fronts(&why).await;
                let kept = match self.state() {
                    State::Source(source) => Some(source),
                    _ => None,
                };
                self.set(State::Stopped(why, kept));
                // Until somebody decides, or it ends.
                while matches!(self.state(), State::Stopped(..)) && !self.ending.load(Ordering::Acquire) {
                    rt::sleep(LOOK_EVERY).await;
                }
            }
        }
        replicas.doors.shut(&self.partnership);
        self.ended.store(true, Ordering::Release);
    }

    /// Decides about a source whose log is damaged: what is left of it counts, or what a destination has.
    pub async fn rescue(&self, keep_here: bool) -> Result<(), String> {
        let decided = match keep_here {
            true => rescue::salvage(&self.side, u64::from_le_bytes(random()?)).await,
            false => rescue::give_up(&self.side).await,
        };
        decided.map(drop).map_err(|e| e.to_string())
    }

    /// Begins anew with what the journal says.
    pub fn again(&self) {
        self.set(State::Starting);
    }

    async fn close_fronts(&self, why: &str) {
        for member in &self.members {
            member.front.close(why).await;
        }
    }

    /// One life. `Ok`: the journal is to be asked again.
    async fn live(self: &Arc<Self>, replicas: &Arc<Replicas>) -> Result<(), String> {
        self.set(State::Starting);
        lock(&self.links_known).clear();
        let state = journal::look(&self.side.journal, &self.side.pool).await.map_err(|e| e.to_string())?;
        match state.role {
            Role::Source => self.live_as_source(replicas, state).await,
            Role::Destination => self.live_as_destination(replicas).await,
        }
    }

    async fn live_as_destination(self: &Arc<Self>, replicas: &Arc<Replicas>) -> Result<(), String> {
        let partner = self.config().partners.first().cloned();
        let source = partner.as_ref().map_or("its source", |partner| &partner.name);
        self.close_fronts(&format!("this is the copy of a replica: it can be used at {source}")).await;
        let config = destination::Config {
            mode: partner.as_ref().map(Partner::mode),
            ..destination::Config::default()
        };
        let destination = Destination::open(self.side.clone(), config).await.map_err(|e| e.to_string())?;
        replicas.doors.lead(self.partnership, door::Behind::Destination(destination.clone()));
        self.set(State::Destination(destination.clone()));
        tracing::info!("group {}: destination of {source}", self.name);
        destination.run().await;
        lock(&self.picture).take();
        replicas.doors.shut(&self.partnership);
        let status = destination.status();
        match (status.role, status.last_error) {
            // Opened anew, it goes on before the damage.
            (Role::Destination, Some(why)) if destination.damage().is_some() => {
                tracing::error!("group {}: {why}", self.name);
                Ok(())
            }
            // Promoted, or the roles were exchanged.
            (Role::Source, _) => Ok(()),
            (_, Some(why)) => Err(why),
            (_, None) => Err("the destination has stopped".into()),
        }
    }

    async fn live_as_source(
        self: &Arc<Self>,
        replicas: &Arc<Replicas>,
        state: weft_replica::state::State,
    ) -> Result<(), String> {
        let policy = self.config().policy;
        let config = source::Config {
            find_zeroes: self.members.iter().any(|member| member.medium == Medium::Device),
            on_loss: policy.on_loss.into(),
            on_full: policy.on_congestion.into(),
            ..source::Config::default()
        };
        let source = Source::open(self.side.clone(), config).await.map_err(|e| match e {
            weft_replica::Error::Log(_) => format!(
                "{e}: writes that were answered may be missing here. A destination that has them takes over: `weft replica                  switch {name} --failover` there, then `weft replica resolve {name} --keep there` here. Without one: \
                 `weft replica resolve {name} --keep here` goes on with what is left",
                name = self.name
            ),
            other => other.to_string(),
        })?;
        replicas.doors.lead(self.partnership, door::Behind::Source(source.clone()));
        for partner in self.config().partners {
            let known = state.peers.iter().position(|p| p.as_ref().is_some_and(|p| p.name == partner.name));
            let n = match known {
                Some(n) => n,
                None => self.add(&source, &partner, First::Partner).await?,
            };
            self.ship(replicas, &source, n, &partner);
        }
        for (i, member) in self.members.iter().enumerate() {
            member.front.open(source.block(i)).await;
        }
        // Whoever sees this may use the volumes.
        self.set(State::Source(source.clone()));
        tracing::info!("group {}: source, epoch {}", self.name, state.era().epoch);
        while source.status().last_error.is_none() {
            rt::sleep(LOOK_EVERY).await;
        }
        let status = source.status();
        let why = status.last_error.unwrap_or_default();
        self.close_fronts(&why).await;
        let until = rt::now() + LINKS_END_WITHIN;
        while self.links.load(Ordering::Acquire) > 0 && rt::now() < until {
            rt::sleep(LOOK_EVERY).await;
        }
        match status.peers.first().map(|peer| peer.phase) {
            Some(Phase::Superseded) => {
                let now = journal::look(&self.side.journal, &self.side.pool).await;
                if now.map_err(|e| e.to_string())?.role == Role::Source {
                    source.demote().await.map_err(|e| format!("{why}; it does not become a copy: {e}"))?;
                }
                Ok(())
            }
            Some(Phase::SplitBrain) => Err(format!(
                "both sides were written to: {why}; `weft replica resolve {} --keep here` or `--keep there` decides",
                self.name
            )),
            _ => Err(why),
        }
    }

    /// Makes a partner a destination of this source.
    pub async fn add(&self, source: &Arc<Source>, partner: &Partner, first: First) -> Result<usize, String> {
        let peer = |first| PeerConfig { name: partner.name.clone(), mode: partner.mode(), first };
        match source.add_peer(peer(first)).await {
            Err(weft_replica::Error::State(why)) if first == First::Partner => {
                tracing::info!("group {}: {} is compared as a whole: {why}", self.name, partner.name);
                source.add_peer(peer(First::Seeded)).await
            }
            other => other,
        }
        .map_err(|e| e.to_string())
    }

    /// Runs the link to a destination, on a core of its own turn.
    pub fn ship(self: &Arc<Self>, replicas: &Replicas, source: &Arc<Source>, n: usize, partner: &Partner) {
        let report: Arc<Mutex<Report>> = Arc::default();
        lock(&self.links_known).insert(partner.name.clone(), Link { number: n, report: report.clone() });
        self.links.fetch_add(1, Ordering::AcqRel);
        let (group, source, address) = (self.clone(), source.clone(), partner.address.clone());
        let (pool, name) = (replicas.pool.clone(), partner.name.clone());
        replicas.cores.run(replicas.cores.next(), move || async move {
            let carrier = Rc::new(Carrier::new(address, group.partnership, pool, report));
            if let Err(e) = source.ship(n, carrier).await {
                tracing::error!("group {}: replication to {name} has ended: {e}", group.name);
            }
            group.links.fetch_sub(1, Ordering::AcqRel);
        });
    }

    /// Ends it for good: the volumes are volumes like any others, the journal is gone.
    pub async fn end(self: &Arc<Self>, replicas: &Replicas) -> Result<(), String> {
        self.close().await;
        forget(replicas, &self.name);
        for member in &self.members {
            member.front.open(member.bare.clone()).await;
        }
        Ok(())
    }

    /// Ends the task, with everything durable.
    pub async fn close(&self) {
        self.ending.store(true, Ordering::Release);
        for member in &self.members {
            member.front.hold().await;
        }
        let closed = match self.state() {
            State::Source(source) | State::Stopped(_, Some(source)) => source.close().await,
            State::Destination(destination) => destination.close().await,
            _ => Ok(()),
        };
        if let Err(e) = closed {
            tracing::warn!("group {}: while closing: {e}", self.name);
        }
        let until = rt::now() + LINKS_END_WITHIN;
        while !self.ended.load(Ordering::Acquire) && rt::now() < until {
            rt::sleep(LOOK_EVERY / 10).await;
        }
    }
}

/// Removes what is remembered of a group, as far as it is there.
fn forget(replicas: &Replicas, name: &str) {
    if let Err(e) = replicas.folder.remove(name) {
        tracing::warn!("group {name} was not forgotten: {e}");
    }
    // Not by way of the journal's own folder of volumes: its lock goes with its last user, who may be about to end.
    let path = replicas.folder.path().join(format!("{name}.volume"));
    for file in [path, replicas.folder.journal(name)] {
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} was left behind: {e}", file.display());
            }
            _ => {}
        }
    }
}
