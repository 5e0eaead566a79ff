//! A group: its files, its journal, and its use of this server.
//!
//! It owns the journal's block, locked while the group exists on this server. [`weft_replica::group`] decides what
//! the group is, and [`super::carrier`] sends data to other hosts.

mod files;
mod lent;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{LocalBoxFuture, join, join_all};
use weft_machine::{random, rt};
use weft_replica::destination;
use weft_replica::group::{self as engine, Behind, Cause, Host, Settled, Stopped, Unusable};
use weft_replica::journal::{self, Format, Names, Side, Wall};
use weft_replica::signal::Signal;
use weft_replica::source::{self, Source};
use weft_replica::status::{PeerStatus, Role, Status};
use weft_store::block::{Block, BlockOp, Medium, Outcome};
use weft_store::volume::{Before, Error as VolumeError, Volume, Volumes};

use super::carrier::{self, Carrier, Report};
use super::config::{self, Partner};
use super::error::{Busy, Error, Unrecorded};
use super::kept::Kept;
use super::most::Most;
use super::names::GroupName;
use super::picture::Picture;
use super::setup::{Ask, Join, Tell};
use super::stopped::{self, Mark, Now, Reason};
use super::{Absent, CommandTurn, Member, Replicas, door};
use crate::hex::hex;
use crate::serve::names::host_name;

pub(super) use engine::State;
pub(super) use files::undo_beginning;
use files::{journal_bytes, make_journal, remove_journal};

/// Extents requested at a time.
const EXTENTS: usize = 1024;

/// Time limit for asking a partner for its epoch.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Group {
    /// Its name on this host.
    pub name: GroupName,
    /// Known unless its file is unusable.
    partnership: Option<[u8; 16]>,
    /// Its served volumes, in its order.
    pub(super) members: Vec<Arc<Member>>,
    /// Why it cannot take the role in its journal, whatever that is.
    unusable: Option<String>,
    /// Whether its volumes in memory are empty although its journal is from an earlier run.
    memory_is_new: AtomicBool,
    pub(super) config: Mutex<config::Group>,
    engine: engine::Group,
    /// Only one command at a time may change the group.
    busy: Mutex<Option<String>>,
    /// Locked until the group ends. `None` if it was not opened yet, or cannot be.
    journal: Mutex<Option<Volume>>,
    links_known: Mutex<HashMap<String, Link>>,
    /// A running test failover.
    pub(super) picture: Mutex<Option<Picture>>,
    /// The sizes of members before they grew for a source that has not grown the group yet, by their number.
    lent: Mutex<BTreeMap<usize, Before>>,
    /// What partners have reported about being stopped.
    heard: Mutex<stopped::Heard>,
    /// The side with the most data, found out when this side was stopped, until it is a source or follows one.
    most: Mutex<Option<Most>>,
    /// The source's host, if it says that it does not know this copy.
    pub(super) removed_by: Mutex<Option<String>>,
    /// The destination that is about to replace this source; empty if there is none.
    successor: Mutex<String>,
    /// Signals that this source's list of destinations has changed.
    pub(super) listed: Signal,
    /// What to type if all sides are copies, as last found out.
    no_source: Mutex<Option<String>>,
    /// Counts how often it was stopped in this run, starting above the counts of earlier runs.
    stops: AtomicU64,
}

/// A running link, by its number at the source.
struct Link {
    number: usize,
    report: Arc<Mutex<Report>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values in these locks are replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The default size of a log.
pub(super) fn default_log_bytes(sizes: &[u64]) -> u64 {
    let all = sizes.iter().fold(0_u64, |all, size| all.saturating_add(*size));
    (all / 4).clamp(64 << 20, journal::DEFAULT_LOG_BYTES).next_multiple_of(4096)
}

/// Bytes of a volume that are not holes.
pub(super) async fn used_bytes(block: &Arc<dyn Block>) -> Result<u64, Error> {
    let size = block.geometry().size;
    let (mut offset, mut used) = (0, 0);
    while offset < size {
        let op = BlockOp::Status { offset, len: size - offset, max_extents: EXTENTS };
        let Outcome::Extents(extents) = block.submit(op).await? else {
            return Err(Error::NoExtents);
        };
        for extent in extents {
            offset += extent.len;
            used += if extent.hole { 0 } else { extent.len };
        }
    }
    Ok(used)
}

/// Bytes per second of durable writes in a folder, and milliseconds of one small write. Takes half a second.
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

/// What a group needs from this server.
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
                    // The disk error does not say what is on the disk.
                    VolumeError::Io { ref source, .. } if source.kind() != std::io::ErrorKind::NotFound => {
                        let why = group.engine.unreadable_journal(&e.to_string());
                        Unusable { cause: Cause::Failed, why }
                    }
                    other => {
                        Unusable { cause: Cause::Journal, why: group.engine.lost_journal(&other.to_string()) }
                    }
                });
                let opened = opened?;
                // An older journal that was restored is intact, but lacks the records acknowledged since.
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
            // Adds what an older version has not recorded, and sizes that have grown.
            if let Err(why) = group.keep(&self.replicas) {
                tracing::warn!("group {}: a replaced volume may go unnoticed: {why}", group.name);
            }
            match lock(&group.journal).as_ref() {
                Some(journal) => Ok(group.side(&self.replicas, journal)),
                None => Err(Unusable { cause: Cause::Failed, why: "its journal was closed".into() }),
            }
        })
    }

    fn renew(&self) -> LocalBoxFuture<'_, Result<(Side, Format), String>> {
        Box::pin(async move { self.new_journal().await.map_err(|e| e.to_string()) })
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
            State::Source(source) => {
                self.group.know_epoch(&self.replicas, source.status().epoch);
                lock(&self.group.successor).clear();
                let (group, replicas, source) = (self.group.clone(), self.replicas.clone(), source.clone());
                rt::spawn(async move { group.say_list(&replicas, &source).await }).detach();
            }
            State::Destination(copy) => {
                self.group.know_epoch(&self.replicas, copy.latest_epoch());
                let (group, replicas, copy) = (self.group.clone(), self.replicas.clone(), copy.clone());
                let (also, of, watched) = (group.clone(), replicas.clone(), copy.clone());
                rt::spawn(async move { also.watch_holder(&of, &watched).await }).detach();
                let (also, of, watched) = (group.clone(), replicas.clone(), copy.clone());
                rt::spawn(async move { also.watch_removed(&of, &watched).await }).detach();
                rt::spawn(async move {
                    join(group.find_source(&replicas, &copy), group.look_for_source(&replicas, &copy)).await
                })
                .detach();
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
                    // It cannot be reached, or has an older version.
                    _ => 0,
                }
            });
            join_all(told).await.into_iter().fold(self.group.config().epoch, u64::max)
        })
    }
}

impl Home {
    /// See [`Host::renew`].
    async fn new_journal(&self) -> Result<(Side, Format), Error> {
        let (group, config) = (&self.group, self.group.config());
        let partnership = group.partnership.ok_or(Error::NoFile)?;
        let old = lock(&group.journal).take();
        let bare: Vec<u64> = group.members.iter().map(|member| member.bare.geometry().size).collect();
        // An intact journal knows how much of each volume belongs to the group.
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
            // The caller that lays it out knows the role.
            role: Role::Destination,
            tag: 0,
            sizes,
            log_bytes: config.log_bytes,
        };
        let (folder, bytes) = (&self.replicas.folder, journal_bytes(&format)?);
        // All at once, on this core: of two concurrent decisions, neither may find the other half done.
        remove_journal(folder, &group.name);
        let journal = make_journal(folder, &self.replicas.pool, &config, bytes)?;
        // The current contents of the volumes count. From here to the end of this function, a crash leaves a
        // journal without a state.
        group.members.iter().try_for_each(|member| member.accept())?;
        group.keep(&self.replicas)?;
        group.memory_is_new.store(false, Ordering::Release);
        let side = group.side(&self.replicas, &journal);
        *lock(&group.journal) = Some(journal);
        Ok((side, format))
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
            busy: Mutex::default(),
            config: Mutex::new(config),
            journal: Mutex::new(journal),
            links_known: Mutex::default(),
            picture: Mutex::default(),
            lent: Mutex::default(),
            heard: Mutex::default(),
            most: Mutex::default(),
            removed_by: Mutex::default(),
            successor: Mutex::default(),
            listed: Signal::default(),
            no_source: Mutex::default(),
            stops: AtomicU64::new(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
        })
    }

    /// A recorded group, with those of its volumes that are served and in no other group. Problems that prevent its
    /// use are found when it runs.
    pub fn remembered(
        mut config: config::Group,
        members: Vec<Arc<Member>>,
        not_served: &[Absent],
    ) -> Arc<Group> {
        if config.speaker == 0 {
            config.speaker = random::bytes().map(u64::from_le_bytes).unwrap_or_default();
        }
        let partnership = door::parse_partnership(&config.partnership);
        let name = &config.name;
        let is_member = |volume: &&String| members.iter().any(|member| member.name == **volume);
        let absent = config.volumes.iter().find(|volume| !is_member(volume));
        let lost = absent.and_then(|volume| not_served.iter().find(|lost| lost.name == *volume));
        let unusable = match (partnership, absent) {
            // It has answered nothing, and must not begin to: the next start undoes it.
            _ if config.beginning => Some(format!(
                "the server ended while the group was created, and that could not be undone, see the log: start the server again, or \
                 `weft replica remove {name} --force`"
            )),
            (None, _) => Some(format!(
                "{:?} is not a partnership: `weft replica remove {name} --force` ends replication on this host",
                config.partnership
            )),
            (_, Some(volume)) if let Some(absent) = lost => {
                Some(format!("volume {volume} is not served: {}", absent.why_in(name)))
            }
            (_, Some(volume)) => Some(format!(
                "volume {volume} is not served by this server, or is in another group: start the server with --volume {volume}, or end \
                 replication on this host: `weft replica remove {name} --force`"
            )),
            _ => None,
        };
        let group = Group::new(config, partnership, members, unusable, None);
        group.memory_is_new.store(true, Ordering::Release);
        group
    }

    /// A group of which only the possible members are known.
    pub fn damaged(found: config::Damaged, members: Vec<Arc<Member>>) -> Arc<Group> {
        let config::Damaged { name, volumes, partnership, why, .. } = found;
        let which = match &volumes {
            Some(_) => "its volumes stay closed",
            None => "its volumes are unknown, so all volumes in no other group stay closed",
        };
        let why = format!(
            "{why}; {which}. Restore the file and start the server again. If it is lost, the data in its volumes can be used on this host after \
             `weft replica remove {name} --force`."
        );
        let served = || members.iter().map(|member| member.name.clone()).collect();
        let volumes = volumes.unwrap_or_else(served);
        let config = config::Group::new(name, String::new(), volumes, 0, config::Policy::default());
        Group::new(config, partnership, members, Some(why), None)
    }

    /// Why a served volume with a member's name is not that member.
    fn differs(&self, member: &Member) -> Option<String> {
        let (config, now) = (self.config(), member.growth.superblock());
        if member.medium == Medium::Ram && self.memory_is_new.load(Ordering::Acquire) {
            return Some("it is in memory, and its data was lost when its server ended".into());
        }
        let at = config.volumes.iter().position(|name| *name == member.name)?;
        let of_another = now.membership.as_ref().filter(|of| Some(of.partnership) != self.partnership);
        if let Some(of) = of_another {
            let group = &of.group;
            return Some(format!(
                "it has been in the group {group} since, with another partnership: older files were restored"
            ));
        }
        config.kept.get(at).and_then(|kept| kept.differs(&now))
    }

    /// Records the group's volumes, and in each volume its membership. A group in memory records nothing.
    fn keep(&self, replicas: &Replicas) -> Result<(), Error> {
        let config = self.config();
        let Some(partnership) = self.partnership.filter(|_| !config.in_memory) else { return Ok(()) };
        let kept: Vec<Kept> =
            self.members.iter().map(|member| Kept::of(&member.growth.superblock())).collect();
        if kept != config.kept {
            self.change(replicas, |config| config.kept = kept)?;
        }
        Ok(self.members.iter().try_for_each(|member| member.enter(&self.name, partnership))?)
    }

    fn side(&self, replicas: &Replicas, journal: &Volume) -> Side {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Side {
            journal: journal.block.clone(),
            members: self.members.iter().map(|member| member.bare.clone()).collect(),
            pool: replicas.pool.clone(),
            log_memory: replicas.log_memory.clone(),
            wall: Wall::new(now.as_millis() as u64),
            names: Names::new(
                &self.name,
                self.members.iter().map(|member| format!("{} ({})", member.name, member.place)),
            ),
            draw: random::bytes().map_or(now.as_nanos() as u64, u64::from_le_bytes),
        }
    }

    /// Creates the group of a volume that becomes a copy.
    pub async fn join(replicas: &Replicas, join: &Join) -> Result<Arc<Group>, Error> {
        let partner = Partner {
            name: join.source.to_string(),
            address: join.back.clone(),
            synchronous: join.synchronous,
        };
        let (name, partnership) = (join.group.clone(), join.partnership.clone());
        let policy = join.policy;
        let config = config::Group::new(name, partnership, join.volumes.clone(), join.log_bytes, policy);
        // Its own volumes may be longer: the excess does not belong to the group, or the roles could not be exchanged
        // back.
        let sizes = join.sizes.clone();
        Group::create(replicas, config, Role::Destination, sizes, Some(partner)).await
    }

    /// Whether it contains a volume of this name.
    pub fn has(&self, volume: &str) -> bool {
        self.members.iter().any(|member| member.name == volume)
    }

    /// 32 digits; empty if its file is unusable.
    pub fn partnership_hex(&self) -> String {
        self.partnership.as_ref().map(hex).unwrap_or_default()
    }

    /// Its current state.
    pub fn state(&self) -> State {
        self.engine.state()
    }

    /// The engine that decides its state.
    pub fn engine(&self) -> &engine::Group {
        &self.engine
    }

    /// Waits until its state is as given.
    pub async fn settled(&self, is: impl Fn(&State) -> bool) -> Result<(), Error> {
        self.engine.settled(is).await.map_err(Error::Engine)
    }

    /// Whether it is a copy.
    pub fn is_destination(&self) -> bool {
        matches!(self.state(), State::Destination(_))
    }

    /// Its recorded configuration.
    pub fn config(&self) -> config::Group {
        lock(&self.config).clone()
    }

    /// Records a change, unless the group has ended: a list or an epoch that arrives late must not bring its file back. If that
    /// fails, the previous record stays in force.
    pub fn change(
        &self,
        replicas: &Replicas,
        change: impl FnOnce(&mut config::Group),
    ) -> Result<(), Unrecorded> {
        let mut config = lock(&self.config);
        if self.engine.is_settled() {
            return Err(Unrecorded::Ended(self.name.clone()));
        }
        let mut new = config.clone();
        change(&mut new);
        replicas.folder.save(&new).map_err(|source| {
            let (group, folder) = (self.name.clone(), replicas.folder.path().to_owned());
            Unrecorded::Io { group, folder, source }
        })?;
        *config = new;
        Ok(())
    }

    /// Makes destination number `n`, named `to`, the source in place of this side. Returns sentences about the
    /// others.
    pub async fn hand_over(
        &self,
        replicas: &Replicas,
        source: &Source,
        n: usize,
        to: &str,
        tag: u64,
    ) -> Result<String, Error> {
        // A destination's first partner is its source. That is recorded first: after the exchange nothing can be
        // undone, and if the exchange fails, the order of a source's partners has no meaning.
        self.change_destinations(replicas, |config| {
            config.partners.sort_by_key(|partner| partner.name != to);
            *lock(&self.successor) = to.to_owned();
        })
        .map_err(|e| {
            // Otherwise the next list would announce it.
            lock(&self.successor).clear();
            Error::RolesUnrecorded(e)
        })?;
        let switched = async {
            let told = self.tell_of_successor(replicas, to).await?;
            let switched = source.switch(n, tag).await;
            switched.map_err(|e| {
                let (group, to) = (self.name.clone(), to.to_owned());
                match source.has_given_up() {
                    true => Error::Link { group, to, source: e },
                    false => Error::RolesUnchanged { group, to, source: e },
                }
            })?;
            Ok(told)
        };
        let switched: Result<String, Error> = switched.await;
        if switched.is_err() && !source.has_given_up() && source.halted().is_none() {
            // Partners that were told about a new source are told, once reachable, that there is none.
            let stays = self.change_destinations(replicas, |_| lock(&self.successor).clear());
            if let Err(why) = stays {
                tracing::warn!("{why}; its destinations expect {to} to be the next source");
            }
        }
        switched
    }

    /// The destination that is about to replace this source; empty if there is none.
    pub fn successor(&self) -> String {
        lock(&self.successor).clone()
    }

    /// The turn of a command that changes this group; other groups' commands do not wait for it.
    pub fn take_turn(&self, command: impl Into<String>) -> Result<CommandTurn<'_>, Busy> {
        CommandTurn::take(&self.busy, command.into())
    }

    /// The engine's status, if it runs.
    pub fn status(&self) -> Option<Status> {
        self.engine.status()
    }

    /// The state of the link to a partner.
    pub fn report(&self, partner: &str) -> Report {
        lock(&self.links_known).get(partner).map(|link| lock(&link.report).clone()).unwrap_or_default()
    }

    /// The number of a destination of this source.
    pub fn number(&self, partner: &str) -> Option<usize> {
        lock(&self.links_known).get(partner).map(|link| link.number)
    }

    /// Opens doors that ask callers to try again.
    pub fn wait_for_it(&self, replicas: &Replicas) {
        if let Some(partnership) = self.partnership {
            replicas.doors.lead(partnership, Behind::Starting);
        }
    }

    /// Runs the group in the role that its journal says, until it ends.
    pub async fn govern(self: &Arc<Self>, replicas: &Arc<Replicas>) {
        let home = Home { group: self.clone(), replicas: replicas.clone() };
        self.engine.govern(&home).await;
        if let Some(partnership) = &self.partnership {
            replicas.doors.shut(partnership);
        }
    }

    /// Runs the link to a destination, on the next core in turn.
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
                // Another command has removed it meanwhile.
                Err(weft_replica::Error::NoPeer(_)) => {
                    tracing::info!("group {group}: {name} is no longer a destination");
                }
                Err(e) => tracing::error!("group {group}: replication to {name} has ended: {e}"),
            }
        });
    }

    /// Tells all partners that the group is stopped on this side, as long as it is; and then that it no longer is.
    async fn say_stopped(self: &Arc<Self>, replicas: &Arc<Replicas>, stopped: &Arc<Stopped>, stops: u64) {
        let is = |state: &State| match state {
            _ if replicas.ends() || self.engine.has_ended() => Now::Over,
            State::Stopped(now) if Arc::ptr_eq(now, stopped) => Now::Stopped,
            State::Stopped(_) => Now::Over,
            State::Starting => Now::Starting,
            State::Source(_) | State::Destination(_) => Now::Goes,
        };
        // One of several copies does not tell the others: their source is running.
        let names: Vec<String> =
            self.config().concerned().iter().map(|partner| partner.name.clone()).collect();
        let find = |name: &str| self.config().partners.into_iter().find(|partner| partner.name == name);
        let now = |name: &String| if find(name).is_some() { is(&self.state()) } else { Now::Over };
        let changes = async |was: Now| self.engine.until(|state| is(state) != was).await;
        let tell = async |name: &String, now: Now| match find(name) {
            Some(partner) => self.tell(replicas, &partner, now, stopped, stops).await,
            None => false,
        };
        stopped::say_to_all(&names, now, changes, tell).await;
    }

    /// Whether a partner has received the message.
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
            tracing::debug!("group {}: cannot tell {} its state: {e}", self.name, partner.name);
        }
        told.is_ok()
    }

    /// A partner reports that it is stopped, and why.
    pub fn hear_stopped(&self, mark: Mark, said: Reason) {
        lock(&self.heard).stopped(mark, said, rt::now());
    }

    /// A partner reports that it is no longer stopped.
    pub fn hear_goes(&self, mark: Mark) {
        lock(&self.heard).goes(mark, rt::now());
    }

    /// Why a partner is stopped, if it said so recently.
    pub fn partner_stopped(&self) -> Option<String> {
        Some(self.heard_reason()?.told(&self.name, self.copy_has()))
    }

    /// The side with the most data, as a stopped partner said recently.
    pub fn heard_most(&self) -> Option<Most> {
        self.heard_reason().map(|said| said.most)
    }

    fn heard_reason(&self) -> Option<Reason> {
        let (said, age) = lock(&self.heard).latest(rt::now())?;
        // If a hello has been accepted since then, it is running.
        let is_well = self.status().is_some_and(|status| has_heard_since(&status, age));
        (!is_well).then_some(said)
    }

    /// The side with the most data, if found out and still valid.
    pub fn known_most(&self) -> Option<Most> {
        lock(&self.most).clone().filter(|most| most.last > 0)
    }

    /// Sets or clears that side.
    pub fn know_most(&self, most: Option<Most>) {
        *lock(&self.most) = most;
    }

    /// See [`Group::no_source`].
    pub fn known_no_source(&self) -> Option<String> {
        lock(&self.no_source).clone()
    }

    /// Sets or clears what to type because all sides are copies.
    pub fn know_no_source(&self, what: Option<String>) {
        let mut known = lock(&self.no_source);
        if let Some(why) = &what
            && known.as_ref() != Some(why)
        {
            tracing::error!("group {}: {why}", self.name);
        }
        *known = what;
    }

    /// Why it is stopped, and which of its copies has the most data.
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
                    "{}. Of the other hosts, {} has the most, up to record {}{unasked}",
                    stopped.why, most.holder, most.last
                )
            }
        }
    }

    /// The latest epoch known to this side.
    pub fn latest_epoch(&self) -> u64 {
        let known = self.config().epoch;
        match self.state() {
            State::Destination(copy) => copy.latest_epoch().max(known),
            _ => self.status().map_or(known, |status| status.epoch.max(known)),
        }
    }

    /// Records an epoch in case the journal is lost.
    fn know_epoch(&self, replicas: &Replicas, epoch: u64) {
        if self.config().epoch < epoch
            && let Err(why) = self.change(replicas, |config| config.epoch = epoch)
        {
            tracing::warn!("{why}; until then, epoch {epoch} is unknown if the journal is lost");
        }
    }

    /// Where the snapshots of an open test failover are served.
    pub fn picture_uris(&self) -> Vec<String> {
        lock(&self.picture).as_ref().map(|picture| picture.uris.clone()).unwrap_or_default()
    }

    /// Ends it permanently: the volumes become ordinary volumes, and the journal is removed.
    pub async fn end(self: &Arc<Self>, replicas: &Replicas, give_up: bool) -> Result<(), Error> {
        self.keep_what_is_used();
        let bare: Vec<Arc<dyn Block>> = self.members.iter().map(|member| member.bare.clone()).collect();
        let forget =
            async |settled: &Settled| self.forget(replicas, settled).await.map_err(|e| e.to_string());
        self.engine.end(&bare, give_up, forget).await.map_err(Error::Engine)
    }

    /// Ends the task, with everything durable.
    pub async fn close(&self) {
        self.engine.close().await;
    }
}

/// Whether every partner was heard from, in a session, since something that was said `age` ago.
fn has_heard_since(status: &Status, age: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let said = u64::try_from(now.saturating_sub(age).as_millis()).unwrap_or(u64::MAX);
    let is_well = |peer: &PeerStatus| peer.phase.is_connected() && peer.heard_ms > said;
    !status.peers.is_empty() && status.peers.iter().all(is_well)
}
