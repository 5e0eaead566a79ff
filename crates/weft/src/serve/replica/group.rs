//! A group: its files, its journal, and what its life needs of this server.
//!
//! Owns: the journal's block, locked as long as the group is here. Does not: decide what the group is
//! ([`weft_replica::group`] does), or carry bytes to another host (see [`super::carrier`]).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{LocalBoxFuture, join_all};
use rustix::fs::FlockOperation;
use weft_machine::{Pool, rt};
use weft_replica::destination;
use weft_replica::group::{self as engine, Behind, Cause, Host, Settled, Stopped, Unusable};
use weft_replica::journal::{self, Format, Names, Side, Wall};
use weft_replica::source::{self, Source};
use weft_replica::status::{PeerStatus, Phase, Role, Status};
use weft_store::block::{Block, BlockOp, Medium, Outcome};
use weft_store::volume::{Before, Create, Error as VolumeError, Place, Store, Volume, Volumes, free_bytes};

use super::carrier::{self, Carrier, Report};
use super::commands::host_name;
use super::config::{self, Folder, Partner};
use super::kept::Kept;
use super::names::GroupName;
use super::partners::Most;
use super::picture::Picture;
use super::setup::{self, Ask, Join, LOG_UNIT, Tell};
use super::stopped::{self, Mark, Now, Reason};
use super::{Absent, Member, Replicas, door, random};

pub(super) use engine::State;

/// Extents that are asked for at a time.
const EXTENTS: usize = 1024;

/// How long a partner that is asked for its epoch may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Group {
    /// Its name here.
    pub name: GroupName,
    /// Known unless its file is of no use.
    partnership: Option<[u8; 16]>,
    /// Those of its volumes that are served, in its order.
    pub(super) members: Vec<Arc<Member>>,
    /// Why it cannot be what its journal says, whatever that is.
    unusable: Option<String>,
    /// Those of its volumes that lie in memory are empty, though its journal is of the time before.
    memory_is_new: AtomicBool,
    config: Mutex<config::Group>,
    engine: engine::Group,
    /// Locked until the group ends. `None` where it was not opened yet, or cannot be.
    journal: Mutex<Option<Volume>>,
    links_known: Mutex<HashMap<String, Link>>,
    /// A test failover that goes on.
    pub(super) picture: Mutex<Option<Picture>>,
    /// What members had before they grew on a source's word, as long as the group has not grown: by their number.
    lent: Mutex<BTreeMap<usize, Before>>,
    /// What partners have said of being stopped.
    heard: Mutex<stopped::Heard>,
    /// Which of them has most, as was found out when this side was stopped, until it is a source, or follows one.
    most: Mutex<Option<Most>>,
    /// Counts how often it was stopped, from the time when this life began: above what it said in earlier lives.
    stops: AtomicU64,
}

/// A link that runs, by its number at the source.
struct Link {
    number: usize,
    report: Arc<Mutex<Report>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept here is replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a log is sized that nobody has sized.
pub(super) fn default_log_bytes(sizes: &[u64]) -> u64 {
    let all = sizes.iter().fold(0_u64, |all, size| all.saturating_add(*size));
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

/// What a group needs of this server.
pub(super) struct Home {
    pub group: Arc<Group>,
    pub replicas: Arc<Replicas>,
}

impl Host for Home {
    fn side(&self) -> LocalBoxFuture<'_, Result<Side, Unusable>> {
        Box::pin(async move {
            let group = &self.group;
            if let Some(why) = &group.unusable {
                let why = match group.has_lost_file() {
                    true => format!("{why} {}", group.ways_out(&self.replicas).await),
                    false => why.clone(),
                };
                return Err(Unusable { cause: Cause::Failed, why });
            }
            if lock(&group.journal).is_none() {
                let opened = Volumes::at(self.replicas.folder.path()).open(&group.name, &self.replicas.pool);
                let opened = opened.map_err(|e| match e {
                    VolumeError::InUse(_) => {
                        Unusable { cause: Cause::Failed, why: format!("its journal: {e}") }
                    }
                    // The disk says nothing of what is on it.
                    VolumeError::Io { ref source, .. } if source.kind() != std::io::ErrorKind::NotFound => {
                        let why = group.engine.unreadable_journal(&e.to_string());
                        Unusable { cause: Cause::Failed, why }
                    }
                    other => {
                        Unusable { cause: Cause::Journal, why: group.engine.lost_journal(&other.to_string()) }
                    }
                });
                let opened = opened?;
                // An older one that was put back is whole, and does not know what was answered since.
                if let Some(why) = opened.growth.replaced() {
                    return Err(Unusable { cause: Cause::Journal, why: group.engine.lost_journal(&why) });
                }
                *lock(&group.journal) = Some(opened);
            }
            for member in &group.members {
                if let Some(why) = member.growth.replaced().or_else(|| group.differs(member)) {
                    let why = group.engine.replaced_volume(&member.name, &why);
                    return Err(Unusable { cause: Cause::Volume, why });
                }
            }
            // What an older version has not written down, and what has grown.
            if let Err(why) = group.keep(&self.replicas) {
                tracing::warn!(
                    "group {}: another volume in place of its own may not be noticed: {why}",
                    group.name
                );
            }
            match lock(&group.journal).as_ref() {
                Some(journal) => Ok(group.side(&self.replicas, journal)),
                None => Err(Unusable { cause: Cause::Failed, why: "its journal was closed".into() }),
            }
        })
    }

    fn renew(&self) -> LocalBoxFuture<'_, Result<(Side, Format), String>> {
        Box::pin(async move {
            let (group, config) = (&self.group, self.group.config());
            let partnership = group.partnership.ok_or("its file is of no use")?;
            let old = lock(&group.journal).take();
            let bare: Vec<u64> = group.members.iter().map(|member| member.bare.geometry().size).collect();
            // One that is whole knows how much of each volume is the group's.
            let told = match &old {
                Some(old) => {
                    journal::look(&(old.block.clone() as Arc<dyn Block>), &self.replicas.pool).await.ok()
                }
                None => None,
            };
            let told: Option<Vec<u64>> =
                told.map(|state| state.members.iter().map(|member| member.size).collect());
            let fits = |told: &Vec<u64>| {
                told.len() == bare.len() && told.iter().zip(&bare).all(|(told, bare)| told <= bare)
            };
            let sizes = told.filter(fits).unwrap_or(bare);
            drop(old);
            let format = Format {
                partnership,
                // Whoever lays it out knows.
                role: Role::Destination,
                tag: 0,
                sizes,
                log_bytes: config.log_bytes,
            };
            let (folder, bytes) = (&self.replicas.folder, journal_bytes(&format)?);
            // At once, on this core: of two who decide at the same time neither may find what the other one has half done.
            remove_journal(folder, &group.name);
            let journal = make_journal(folder, &self.replicas.pool, &config, bytes)?;
            // What they hold counts as what it is. From here to the end of this a crash leaves a journal that says nothing.
            group.members.iter().try_for_each(|member| member.accept())?;
            group.keep(&self.replicas)?;
            group.memory_is_new.store(false, Ordering::Release);
            let side = group.side(&self.replicas, &journal);
            *lock(&group.journal) = Some(journal);
            Ok((side, format))
        })
    }

    fn partners(&self) -> Vec<engine::Partner> {
        let partners = self.group.config().partners;
        partners.into_iter().map(|p| engine::Partner { mode: p.mode(), name: p.name }).collect()
    }

    fn source(&self) -> source::Config {
        let policy = self.group.config().policy;
        source::Config {
            find_zeroes: self.group.members.iter().any(|member| member.medium == Medium::Device),
            on_loss: policy.on_loss.into(),
            on_full: policy.on_congestion.into(),
            ..source::Config::default()
        }
    }

    fn destination(&self) -> destination::Config {
        let mode = self.group.config().partners.first().map(Partner::mode);
        destination::Config { mode, ..destination::Config::default() }
    }

    fn lead(&self, to: Behind) {
        if let Some(partnership) = self.group.partnership {
            self.replicas.doors.lead(partnership, to);
        }
    }

    fn ship(&self, source: &Arc<Source>, n: usize, partner: &str) {
        let partners = self.group.config().partners;
        if let Some(partner) = partners.iter().find(|other| other.name == partner) {
            self.group.ship(&self.replicas, source, n, partner);
        }
    }

    fn became(&self, state: &State) {
        if !matches!(state, State::Destination(_)) {
            lock(&self.group.picture).take();
        }
        if matches!(state, State::Source(_)) {
            self.group.know_most(None);
        }
        match state {
            State::Starting => lock(&self.group.links_known).clear(),
            State::Stopped(stopped) => {
                let (group, replicas) = (self.group.clone(), self.replicas.clone());
                let (stopped, stops) = (stopped.clone(), group.stops.fetch_add(1, Ordering::Relaxed));
                rt::spawn(async move { group.say_stopped(&replicas, &stopped, stops).await }).detach();
            }
            State::Source(source) => self.group.know_epoch(&self.replicas, source.status().epoch),
            State::Destination(copy) => {
                self.group.know_epoch(&self.replicas, copy.latest_epoch());
                let (group, replicas, copy) = (self.group.clone(), self.replicas.clone(), copy.clone());
                rt::spawn(async move { group.find_source(&replicas, &copy).await }).detach();
            }
        }
    }

    fn latest_epoch(&self) -> LocalBoxFuture<'_, u64> {
        Box::pin(async move {
            let partnership = self.group.partnership_hex();
            let ask = Ask::Epoch { partnership };
            let partners = self.group.config().partners;
            let told = partners.iter().map(|partner| async {
                let told =
                    rt::timeout(ANSWERS_WITHIN, carrier::ask(&partner.address, &self.replicas.pool, &ask));
                match told.await {
                    Ok(Ok(Tell::Epoch(epoch))) => epoch,
                    // It cannot be reached, or is of an older version.
                    _ => 0,
                }
            });
            join_all(told).await.into_iter().fold(self.group.config().epoch, u64::max)
        })
    }
}

impl Group {
    fn new(
        config: config::Group,
        partnership: Option<[u8; 16]>,
        members: Vec<Arc<Member>>,
        unusable: Option<String>,
        journal: Option<Volume>,
    ) -> Arc<Group> {
        let fronts = members.iter().map(|member| member.front.clone()).collect();
        Arc::new(Group {
            name: config.name.clone(),
            partnership,
            members,
            unusable,
            memory_is_new: AtomicBool::new(false),
            engine: engine::Group::new(&config.name, fronts),
            config: Mutex::new(config),
            journal: Mutex::new(journal),
            links_known: Mutex::default(),
            picture: Mutex::default(),
            lent: Mutex::default(),
            heard: Mutex::default(),
            most: Mutex::default(),
            stops: AtomicU64::new(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
        })
    }

    /// A group that is remembered, with those of its volumes that are served and in no other group. What keeps it from being used
    /// is found out when it lives.
    pub fn remembered(
        mut config: config::Group,
        members: Vec<Arc<Member>>,
        not_served: &[Absent],
    ) -> Arc<Group> {
        if config.speaker == 0 {
            config.speaker = random().map(u64::from_le_bytes).unwrap_or_default();
        }
        let partnership = door::parse_partnership(&config.partnership);
        let name = &config.name;
        let is_member = |volume: &&String| members.iter().any(|member| member.name == **volume);
        let absent = config.volumes.iter().find(|volume| !is_member(volume));
        let lost = absent.and_then(|volume| not_served.iter().find(|lost| lost.name == *volume));
        let unusable = match (partnership, absent) {
            (None, _) => Some(format!(
                "{:?} is no partnership: `weft replica remove {name} --force` ends replication here",
                config.partnership
            )),
            (_, Some(volume)) if let Some(absent) = lost => {
                Some(format!("volume {volume} is not served: {}", absent.why_in(name)))
            }
            (_, Some(volume)) => Some(format!(
                "volume {volume} is not served here, or is in another group: start the server with --volume {volume}, or end \
                 replication here: `weft replica remove {name} --force`"
            )),
            _ => None,
        };
        let group = Group::new(config, partnership, members, unusable, None);
        group.memory_is_new.store(true, Ordering::Release);
        group
    }

    /// A group of which no more is known than what may be in it.
    pub fn damaged(found: config::Damaged, members: Vec<Arc<Member>>) -> Arc<Group> {
        let config::Damaged { name, volumes, partnership, why, .. } = found;
        let which = match &volumes {
            Some(_) => "its volumes are kept closed",
            None => "which volumes are in it is not known, so all that are in no other group are kept closed",
        };
        let why = format!(
            "{why}; {which}. Put the file back and start the server again. If it is lost, what its volumes hold can be used here after \
             `weft replica remove {name} --force`."
        );
        let served = || members.iter().map(|member| member.name.clone()).collect();
        let volumes = volumes.unwrap_or_else(served);
        let config = config::Group::new(name, String::new(), volumes, 0, config::Policy::default());
        Group::new(config, partnership, members, Some(why), None)
    }

    /// Why a volume that is served under the name of one of its own is another one.
    fn differs(&self, member: &Member) -> Option<String> {
        let (config, now) = (self.config(), member.growth.superblock());
        if member.medium == Medium::Ram && self.memory_is_new.load(Ordering::Acquire) {
            return Some("it lies in memory, and what it held is gone with the server that had it".into());
        }
        let at = config.volumes.iter().position(|name| *name == member.name)?;
        let of_another = now.membership.as_ref().filter(|of| Some(of.partnership) != self.partnership);
        if let Some(of) = of_another {
            let group = &of.group;
            return Some(format!(
                "it was in the group {group} since, of another partnership: older files were put back"
            ));
        }
        config.kept.get(at).and_then(|kept| kept.differs(&now))
    }

    /// Writes down which volumes it has, and in each of them that it is in this group. One in memory has nothing to find again.
    fn keep(&self, replicas: &Replicas) -> Result<(), String> {
        let config = self.config();
        let Some(partnership) = self.partnership.filter(|_| !config.in_memory) else { return Ok(()) };
        let kept: Vec<Kept> =
            self.members.iter().map(|member| Kept::of(&member.growth.superblock())).collect();
        if kept != config.kept {
            self.change(replicas, |config| config.kept = kept)?;
        }
        self.members.iter().try_for_each(|member| member.enter(&self.name, partnership))
    }

    fn side(&self, replicas: &Replicas, journal: &Volume) -> Side {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Side {
            journal: journal.block.clone(),
            members: self.members.iter().map(|member| member.bare.clone()).collect(),
            pool: replicas.pool.clone(),
            wall: Wall::new(now.as_millis() as u64),
            names: Names::new(
                &self.name,
                self.members.iter().map(|member| format!("{} ({})", member.name, member.place)),
            ),
            draw: random().map_or(now.as_nanos() as u64, u64::from_le_bytes),
        }
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
        setup::few_and_distinct(&config.volumes)?;
        let members: Vec<Arc<Member>> =
            config.volumes.iter().map(|name| replicas.member(name)).collect::<Result<_, _>>()?;
        config.speaker = u64::from_le_bytes(random()?);
        config.in_memory = members.iter().all(|member| member.medium == Medium::Ram);
        config.kept = members.iter().map(|member| Kept::of(&member.growth.superblock())).collect();
        config.partners.extend(partner);
        config.beginning = true;
        let partnership =
            door::parse_partnership(&config.partnership).ok_or("a partnership of the wrong length")?;
        if let Some(other) = replicas.of_partnership(&door::hex(&partnership)) {
            return Err(format!("group {} has this partnership already", other.name));
        }
        let format = Format {
            partnership,
            role,
            tag: u64::from_le_bytes(random()?),
            sizes,
            log_bytes: config.log_bytes,
        };
        let bytes = journal_bytes(&format)?;
        if role == Role::Destination {
            replicas.folder.make().map_err(|e| format!("{}: {e}", replicas.folder.path().display()))?;
            let place = (!config.in_memory).then_some(replicas.folder.path());
            let free = free_bytes(place).map_err(|e| format!("how much is free there is not known: {e}"))?;
            setup::leaves_enough("its journal", bytes, free)?;
        }
        // Everything was checked. From here on what bears this name was left by nobody, or is made by this call.
        clear_way(replicas, &config.name)?;
        let made = async {
            // First what names its volumes: a journal of which nobody knows whose it is closes all that are in no group.
            let (folder, pool, remembered) = (replicas.folder.clone(), replicas.pool.clone(), config.clone());
            let made = rt::blocking(move || {
                folder.save(&remembered).map_err(|e| format!("the group cannot be remembered: {e}"))?;
                make_journal(&folder, &pool, &remembered, bytes)
            });
            let journal = made.await?;
            let block: Arc<dyn Block> = journal.block.clone();
            journal::format(&block, &format).await.map_err(|e| e.to_string())?;
            // Before its first record, and not before its file: what is marked is in a group, or closed.
            let group = Group::new(config.clone(), Some(partnership), members.clone(), None, Some(journal));
            // Its file says already which volumes these are.
            let (name, marked) = (config.name.clone(), members.clone());
            let mark = move || marked.iter().try_for_each(|member| member.enter(&name, partnership));
            if !config.in_memory {
                rt::blocking(mark).await?;
            }
            // What a crash leaves before this is undone by the next start.
            group.change(replicas, |config| config.beginning = false)?;
            // Nobody reads or writes past the group from here on.
            for member in &members {
                member.front.hold("its replication is beginning").await;
            }
            Ok(group)
        };
        let made = made.await;
        if made.is_err() {
            // It never lived: its log holds nothing.
            let (folder, name) = (replicas.folder.clone(), config.name.clone());
            if let Err(e) = rt::blocking(move || erase(&folder, &name, &members)).await {
                tracing::warn!("{e}");
            }
        }
        made
    }

    /// The group of a volume that becomes a copy.
    pub async fn join(replicas: &Replicas, join: &Join) -> Result<Arc<Group>, String> {
        let partner = Partner {
            name: join.source.to_string(),
            address: join.back.clone(),
            synchronous: join.synchronous,
        };
        let (name, partnership) = (join.group.clone(), join.partnership.clone());
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

    /// 32 digits; none where its file is of no use.
    pub fn partnership_hex(&self) -> String {
        self.partnership.as_ref().map(door::hex).unwrap_or_default()
    }

    /// What it is now.
    pub fn state(&self) -> State {
        self.engine.state()
    }

    /// What decides that.
    pub fn engine(&self) -> &engine::Group {
        &self.engine
    }

    /// Waits until it has become what it is to be.
    pub async fn settled(&self, is: impl Fn(&State) -> bool) -> Result<(), String> {
        self.engine.settled(is).await
    }

    /// Whether it keeps a copy.
    pub fn is_destination(&self) -> bool {
        matches!(self.state(), State::Destination(_))
    }

    /// How it is remembered.
    pub fn config(&self) -> config::Group {
        lock(&self.config).clone()
    }

    /// Remembers a change. Where that fails, what was remembered before counts.
    pub fn change(&self, replicas: &Replicas, change: impl FnOnce(&mut config::Group)) -> Result<(), String> {
        let mut config = lock(&self.config);
        let mut new = config.clone();
        change(&mut new);
        replicas.folder.save(&new).map_err(|e| {
            let (name, folder) = (&self.name, replicas.folder.path().display());
            format!(
                "group {name} cannot be written down in {folder}: {e}; mend that and type the command again"
            )
        })?;
        *config = new;
        Ok(())
    }

    /// Makes destination number `n`, which is called `to`, the source in this side's place. What is to be said of the others.
    pub async fn hand_over(
        &self,
        replicas: &Replicas,
        source: &Source,
        n: usize,
        to: &str,
        tag: u64,
    ) -> Result<String, String> {
        // A destination's first partner is its source. That is written down first: nothing can be taken back once the roles
        // are exchanged, whereas the order of a source's partners means nothing, if they are not.
        self.change(replicas, |config| config.partners.sort_by_key(|partner| partner.name != to))
            .map_err(|why| format!("the roles are as they were: {why}"))?;
        let told = self.tell_of_successor(replicas, to).await?;
        let switched = source.switch(n, tag).await;
        if switched.is_err() && source.halted().is_none() {
            self.tell_that_it_stays(replicas, to).await;
        }
        switched.map_err(|e| format!("{} to {to}: {e}", self.name))?;
        Ok(told)
    }

    /// What the engine says, where it runs.
    pub fn status(&self) -> Option<Status> {
        self.engine.status()
    }

    /// What is known of the link to a partner.
    pub fn report(&self, partner: &str) -> Report {
        lock(&self.links_known).get(partner).map(|link| lock(&link.report).clone()).unwrap_or_default()
    }

    /// The number of a destination of this source.
    pub fn number(&self, partner: &str) -> Option<usize> {
        lock(&self.links_known).get(partner).map(|link| link.number)
    }

    /// Doors that are there from now on: whoever knocks is told to come again.
    pub fn wait_for_it(&self, replicas: &Replicas) {
        if let Some(partnership) = self.partnership {
            replicas.doors.lead(partnership, Behind::Starting);
        }
    }

    /// Lets the group be what its journal says, until it ends.
    pub async fn govern(self: &Arc<Self>, replicas: &Arc<Replicas>) {
        let home = Home { group: self.clone(), replicas: replicas.clone() };
        self.engine.govern(&home).await;
        if let Some(partnership) = &self.partnership {
            replicas.doors.shut(partnership);
        }
    }

    /// Runs the link to a destination, on a core of its own turn.
    pub fn ship(self: &Arc<Self>, replicas: &Replicas, source: &Arc<Source>, n: usize, partner: &Partner) {
        let Some(partnership) = self.partnership else { return };
        let report: Arc<Mutex<Report>> = Arc::default();
        lock(&self.links_known).insert(partner.name.clone(), Link { number: n, report: report.clone() });
        let (group, source, address) = (self.name.clone(), source.clone(), partner.address.clone());
        let (pool, name) = (replicas.pool.clone(), partner.name.clone());
        replicas.cores.run(replicas.cores.next(), move || async move {
            let carrier = Rc::new(Carrier::new(address, partnership, pool, report));
            match source.ship(n, carrier).await {
                Ok(()) => tracing::debug!("group {group}: the link to {name} has ended"),
                // Somebody has removed it meanwhile.
                Err(weft_replica::Error::NoPeer(_)) => {
                    tracing::info!("group {group}: {name} is no destination any more");
                }
                Err(e) => tracing::error!("group {group}: replication to {name} has ended: {e}"),
            }
        });
    }

    /// Tells all partners, as long as it is, that the group is stopped here; and then that it is not.
    async fn say_stopped(self: &Arc<Self>, replicas: &Arc<Replicas>, stopped: &Arc<Stopped>, stops: u64) {
        let is = |state: &State| match state {
            _ if replicas.ends() => Now::Over,
            State::Stopped(now) if Arc::ptr_eq(now, stopped) => Now::Stopped,
            State::Stopped(_) => Now::Over,
            State::Starting => Now::Starting,
            State::Source(_) | State::Destination(_) => Now::Goes,
        };
        let names: Vec<String> = self.config().partners.into_iter().map(|partner| partner.name).collect();
        let find = |name: &str| self.config().partners.into_iter().find(|partner| partner.name == name);
        let now = |name: &String| if find(name).is_some() { is(&self.state()) } else { Now::Over };
        let changes = async |was: Now| self.engine.until(|state| is(state) != was).await;
        let tell = async |name: &String, now: Now| match find(name) {
            Some(partner) => self.tell(replicas, &partner, now, stopped, stops).await,
            None => false,
        };
        stopped::say_to_all(&names, now, changes, tell).await;
    }

    /// Whether a partner has heard it.
    async fn tell(
        &self,
        replicas: &Replicas,
        partner: &Partner,
        now: Now,
        stopped: &Stopped,
        stops: u64,
    ) -> bool {
        let partnership = self.partnership_hex();
        let speaker = self.config().speaker;
        let mark = |number| Mark { speaker, number };
        let ask = match now {
            Now::Stopped => {
                let cause = stopped::word_of(stopped.cause).to_owned().into();
                let mark = mark(stops.saturating_mul(2));
                let why = stopped.why.clone().into();
                let most = self.most(replicas).await;
                self.know_most(Some(most.clone()));
                Ask::Stopped { partnership, why, cause, host: host_name().into(), mark, most }
            }
            Now::Goes => Ask::Goes { partnership, mark: mark(stops.saturating_mul(2).saturating_add(1)) },
            Now::Starting | Now::Over => return false,
        };
        let told = carrier::ask(&partner.address, &replicas.pool, &ask).await;
        if let Err(e) = &told {
            tracing::debug!("group {}: {} does not know how it is: {e}", self.name, partner.name);
        }
        told.is_ok()
    }

    /// A partner says that it is stopped, and why.
    pub fn hear_stopped(&self, mark: Mark, said: Reason) {
        lock(&self.heard).stopped(mark, said, rt::now());
    }

    /// A partner says that it is stopped no more.
    pub fn hear_goes(&self, mark: Mark) {
        lock(&self.heard).goes(mark, rt::now());
    }

    /// Why a partner is stopped, where it said so a moment ago.
    pub fn partner_stopped(&self) -> Option<String> {
        Some(self.heard_reason()?.told(&self.name, self.copy_has()))
    }

    /// Which side has most, as a partner said a moment ago that is stopped.
    pub fn heard_most(&self) -> Option<Most> {
        self.heard_reason().map(|said| said.most)
    }

    fn heard_reason(&self) -> Option<Reason> {
        let (said, age) = lock(&self.heard).latest(rt::now())?;
        // Where a hello was accepted since then, it is well.
        let is_well = self.status().is_some_and(|status| has_heard_since(&status, age));
        (!is_well).then_some(said)
    }

    /// Which of the other sides has most, where that was found out and counts.
    pub fn known_most(&self) -> Option<Most> {
        lock(&self.most).clone().filter(|most| most.last > 0)
    }

    /// Remembers it, or that it does not count any more.
    pub fn know_most(&self, most: Option<Most>) {
        *lock(&self.most) = most;
    }

    /// Why it is stopped, and which of its copies has most.
    pub fn why_stopped(&self, stopped: &Stopped) -> String {
        let most = self.known_most();
        let lacks_something =
            matches!(stopped.cause, Cause::Journal | Cause::Volume | Cause::Log | Cause::SetBack);
        match most.filter(|_| lacks_something && self.config().partners.len() > 1) {
            None => stopped.why.clone(),
            Some(most) => {
                let unasked = most.unasked();
                let unasked = if unasked.is_empty() { unasked } else { format!("; {unasked}") };
                format!(
                    "{}. Of the other hosts {} has most, up to record {}{unasked}",
                    stopped.why, most.holder, most.last
                )
            }
        }
    }

    /// The latest epoch that this side knows of.
    pub fn latest_epoch(&self) -> u64 {
        let known = self.config().epoch;
        match self.state() {
            State::Destination(copy) => copy.latest_epoch().max(known),
            _ => self.status().map_or(known, |status| status.epoch.max(known)),
        }
    }

    /// Remembers an epoch, should the journal be lost.
    fn know_epoch(&self, replicas: &Replicas, epoch: u64) {
        if self.config().epoch < epoch
            && let Err(why) = self.change(replicas, |config| config.epoch = epoch)
        {
            tracing::warn!("{why}; until then epoch {epoch} is not known should the journal be lost");
        }
    }

    /// Where the pictures of an open test failover are served.
    pub fn picture_uris(&self) -> Vec<String> {
        lock(&self.picture).as_ref().map(|picture| picture.uris.clone()).unwrap_or_default()
    }

    /// The source is about to grow: gives its volumes here room for that, as far as there is any, to all of them or to none.
    pub async fn lend(&self, sizes: &[u64]) -> Result<(), String> {
        if sizes.len() != self.members.len() {
            return Err("the number of volumes and that of their sizes differ".into());
        }
        self.keep_what_is_used();
        let lent = lock(&self.lent).clone();
        let members: Vec<Arc<Member>> = self.members.clone();
        let sizes = sizes.to_vec();
        let now = rt::blocking(move || lend_all(&members, &sizes, &lent)).await?;
        let mut lent = lock(&self.lent);
        now.into_iter().for_each(|(member, before)| {
            lent.entry(member).or_insert(before);
        });
        Ok(())
    }

    /// What the group has grown into is no longer to be given back.
    fn keep_what_is_used(&self) {
        let mut lent = lock(&self.lent);
        match self.status() {
            Some(status) => lent
                .retain(|member, before| status.sizes.get(*member).is_some_and(|size| *size <= before.size)),
            // How long its volumes are for the group is not known.
            None => lent.clear(),
        }
    }

    /// Gives back what the group has not grown into. Nobody uses the volumes.
    async fn give_back(&self) {
        let lent = std::mem::take(&mut *lock(&self.lent));
        let members = self.members.clone();
        rt::blocking(move || give_back(&members, lent)).await;
    }

    /// Ends it for good: the volumes are volumes like any others, the journal is gone.
    pub async fn end(self: &Arc<Self>, replicas: &Replicas) -> Result<(), String> {
        self.keep_what_is_used();
        let bare: Vec<Arc<dyn Block>> = self.members.iter().map(|member| member.bare.clone()).collect();
        self.engine.end(&bare, async |settled| self.forget(replicas, settled).await).await
    }

    /// Removes what is remembered of it. While that is not done durably, nobody may write to the volumes alone: after a crash they
    /// would be a group's.
    async fn forget(&self, replicas: &Replicas, settled: &Settled) -> Result<(), String> {
        lock(&self.picture).take();
        self.give_back().await;
        let (name, members) = (self.name.clone(), self.members.clone());
        let mut others = self.config().volumes;
        others.retain(|volume| !self.has(volume));
        let (folder, volumes) = (replicas.folder.clone(), replicas.volumes.clone());
        let _: &Settled = settled;
        rt::blocking(move || {
            for member in &members {
                if let Err(e) = member.accept() {
                    tracing::warn!("{e}");
                }
            }
            for volume in &others {
                // Whoever has it open, or its metadata, is not this server.
                if let Err(e) = volumes.leave_group(volume, &name) {
                    tracing::warn!("volume {volume}: {e}; it may still be said to be in the group {name}");
                }
            }
            erase(&folder, &name, &members)
        })
        .await
        .map_err(|e| format!("{e}; its volumes stay closed until the command is given again"))
    }

    /// Ends the task, with everything durable.
    pub async fn close(&self) {
        self.engine.close().await;
    }
}

/// Whether every partner was heard of, in a session, since something was said so long ago.
fn has_heard_since(status: &Status, age: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let said = u64::try_from(now.saturating_sub(age).as_millis()).unwrap_or(u64::MAX);
    let is_well = |peer: &PeerStatus| {
        let talks = matches!(
            peer.phase,
            Phase::InitialBlockCopy
                | Phase::SeededCopy
                | Phase::ReplayingLog
                | Phase::Resyncing
                | Phase::ContinuouslyReplicating
        );
        talks && peer.heard_ms > said
    };
    !status.peers.is_empty() && status.peers.iter().all(is_well)
}

/// Lets volumes grow, and tells what those had that did; where one cannot, none has. Blocks.
fn lend_all(
    members: &[Arc<Member>],
    sizes: &[u64],
    lent: &BTreeMap<usize, Before>,
) -> Result<BTreeMap<usize, Before>, String> {
    // What earlier growth was given for and is not used counts as free, and as taken again.
    let mut wanted: BTreeMap<Store, (u64, u64)> = BTreeMap::new();
    let mut longer = BTreeMap::new();
    for (i, (member, size)) in members.iter().zip(sizes).enumerate() {
        let wrong = |e: VolumeError| format!("volume {}: {e}", member.name);
        let before = member.growth.before().map_err(wrong)?;
        if *size > before.size {
            longer.insert(i, before);
        }
        let base = lent.get(&i).map_or(before.size, |before| before.size);
        let more = (*size).max(before.size).saturating_sub(base);
        let (store, free) = member.growth.room().map_err(wrong)?;
        let (all, least) = wanted.entry(store).or_insert((0, free));
        (*all, *least) = (all.saturating_add(more), free.min(*least));
    }
    if longer.is_empty() {
        return Ok(longer);
    }
    wanted.into_values().try_for_each(|(all, free)| setup::leaves_enough("that growth", all, free))?;
    let mut done = BTreeMap::new();
    for (i, before) in longer {
        let (Some(member), Some(size)) = (members.get(i), sizes.get(i)) else { continue };
        done.insert(i, before);
        if let Err(e) = member.growth.grow(*size) {
            give_back(members, done);
            return Err(format!("volume {}: {e}", member.name));
        }
    }
    Ok(done)
}

/// Blocks.
fn give_back(members: &[Arc<Member>], lent: BTreeMap<usize, Before>) {
    for (i, before) in lent {
        let Some(member) = members.get(i) else { continue };
        if let Err(e) = member.growth.give_back(&before) {
            tracing::warn!("volume {} stays longer than it was: {e}", member.name);
        }
    }
}

/// How long the block of a group's journal is.
fn journal_bytes(format: &Format) -> Result<u64, String> {
    let bytes = journal::bytes(format).map_err(|e| e.to_string())?;
    bytes.checked_next_multiple_of(LOG_UNIT).ok_or_else(|| "the journal would be too long".into())
}

/// Makes the block of a group's journal, in place of what there is, and opens it. Blocks: it may have many GiB.
fn make_journal(folder: &Folder, pool: &Pool, config: &config::Group, bytes: u64) -> Result<Volume, String> {
    folder.make().map_err(|e| format!("{}: {e}", folder.path().display()))?;
    let place = match config.in_memory {
        true => Place::Ram,
        false => Place::File(folder.journal(&config.name)),
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
    let journals = Volumes::at(folder.path());
    journals.create(&config.name, &wanted).map_err(|e| format!("no journal: {e}"))?;
    let opened = journals.open(&config.name, pool).map_err(|e| e.to_string());
    if opened.is_err() {
        // Made a moment ago.
        remove_journal(folder, &config.name);
    }
    opened
}

/// Removes what a crash has left of a group of this name that nobody remembers and no server has open. Nothing is removed where
/// that is not so.
fn clear_way(replicas: &Replicas, name: &GroupName) -> Result<(), String> {
    let folder = &replicas.folder;
    if folder.knows(name) {
        return Err(format!(
            "group {name} is remembered in {} already, by another server or from before: --group names another",
            folder.path().display()
        ));
    }
    let mut left = Vec::new();
    for path in [folder.metadata(name), folder.journal(name)] {
        let wrong = |e: io::Error| format!("{} is in the way of group {name}: {e}", path.display());
        match std::fs::File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(wrong(e)),
            // Kept, so that nobody opens it before it is gone.
            Ok(file) => {
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
                    .map_err(|e| wrong(e.into()))?;
                left.push((file, path));
            }
        }
    }
    for (_, path) in &left {
        std::fs::remove_file(path)
            .map_err(|e| format!("{} is in the way of group {name}: {e}", path.display()))?;
    }
    Ok(())
}

/// Removes what a crash has left of a group that was being made. Its volumes are locked by this server, so no other one makes it.
pub(super) fn undo_beginning(replicas: &Replicas, config: &config::Group) -> Result<(), String> {
    let name = &config.name;
    for volume in &config.volumes {
        match replicas.members.iter().find(|member| member.name == *volume) {
            Some(member) => {
                let now = member.growth.superblock().membership;
                if now.is_some_and(|of| *of.group == **name) {
                    member.leave()?;
                }
            }
            None => {
                replicas.volumes.leave_group(volume, name).map_err(|e| format!("volume {volume}: {e}"))?
            }
        }
    }
    erase(&replicas.folder, name, &[])
}

/// Removes what is remembered of a group, as far as it is there, durably. Its file goes last: a crash before that leaves a group
/// that is stopped, and none of which nobody knows what it had. Blocks.
fn erase(folder: &Folder, name: &GroupName, members: &[Arc<Member>]) -> Result<(), String> {
    for member in members {
        if let Err(e) = member.leave() {
            tracing::warn!("{e}; after the next start it is said to be in the group {name}");
        }
    }
    remove_journal(folder, name);
    folder
        .remove(name)
        .map_err(|e| format!("group {name} cannot be forgotten in {}: {e}", folder.path().display()))
}

/// Removes a journal, as far as it is there. Blocks.
fn remove_journal(folder: &Folder, name: &GroupName) {
    // Not by way of the journal's own folder of volumes: its lock goes with its last user, who may be about to end.
    for file in [folder.metadata(name), folder.journal(name)] {
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} was left behind: {e}", file.display());
            }
            _ => {}
        }
    }
}
