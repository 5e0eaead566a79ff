//! Replication in a server: its groups, their current roles, and how these change.
//!
//! `replica` is the engine; [`door`] and [`carrier`] are the transport over SMB; [`setup`] has the messages before
//! and after. This module owns the groups. A task per group opens the journal in the role that it records, and opens
//! it again when that has changed. The journal says what a group is, and the engine changes it.

mod carrier;
pub(crate) mod check;
mod commands;
pub(crate) mod config;
mod destinations;
mod door;
mod ended;
pub(super) mod error;
mod failover;
mod group;
mod holder;
mod kept;
mod lost;
mod marks;
pub(crate) mod membership;
mod most;
pub(crate) mod names;
mod no_source;
mod own_address;
mod partners;
mod picture;
mod position;
mod removed;
mod setup;
mod stopped;
mod told;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex as AsyncMutex;
use weft_machine::rt::{Cores, uncancelled};
use weft_machine::{Pool, random};
use weft_replica::front::Front;
use weft_replica::journal::LogMemory;
use weft_store::Vfs;
use weft_store::backend::Shelf;
use weft_store::block::Medium;
use weft_store::vfs::Share;
use weft_store::volume::superblock::Membership;
use weft_store::volume::{Error as VolumeError, Growth, Volumes};

use self::config::{Folder, Password, Remembered};
use self::door::Doors;
pub(crate) use self::error::Misfit;
use self::error::{Busy, Error, Unremembered, VolumeFault};
use self::group::{Group, Home, State};
use self::names::GroupName;
use self::position::Part;
pub(crate) use self::setup::few_and_distinct;
use self::setup::{Ask, Found, Join, Tell, UNREADABLE};
use self::stopped::Reason;
use super::volumes::{Absent, Served};
use crate::admin::replica::Reply;
use crate::listen::{Acceptor, Stop};

/// Everything that a server replicates.
pub(super) struct Replicas {
    cores: Arc<Cores>,
    pool: Pool,
    /// What the logs of all groups keep of the pool.
    log_memory: LogMemory,
    folder: Folder,
    /// The records of all volumes, including those that are not served.
    volumes: Volumes,
    doors: Doors,
    members: Vec<Arc<Member>>,
    /// Volumes on the command line that are not served.
    absent: Vec<Absent>,
    groups: Mutex<BTreeMap<GroupName, Arc<Group>>>,
    /// Only one command at a time may add or remove a group; this is its name.
    busy: Mutex<Option<String>>,
    /// Locked while this server becomes a destination.
    joins: AsyncMutex<()>,
    /// Only one examination of volumes at a time.
    looking: AsyncMutex<()>,
    /// Only one measurement of the journals' folder at a time: concurrent ones would disturb each other, and each
    /// needs a file and a thread.
    measuring: Arc<AsyncMutex<()>>,
    /// Whether the process is ending.
    ends: AtomicBool,
    own: Own,
    /// A random number that identifies this server under any host name.
    server: u64,
    /// Set once the server listens.
    smb_port: OnceLock<u16>,
    /// Set once the server listens.
    acceptor: OnceLock<Acceptor>,
}

/// A volume that can be replicated.
#[derive(Debug)]
struct Member {
    name: String,
    medium: Medium,
    front: Arc<Front>,
    bare: Arc<dyn weft_store::block::Block>,
    /// Its location, for messages.
    place: String,
    growth: Growth,
}

impl Member {
    /// Accepts the current content of its file, whichever file it is.
    fn accept(&self) -> Result<(), VolumeFault> {
        self.growth.accept().map_err(|source| self.fault(source))
    }

    /// Records in its metadata that it is in this group.
    fn enter(&self, group: &str, partnership: [u8; 16]) -> Result<(), VolumeFault> {
        let of = Membership { group: group.to_owned(), partnership };
        self.growth.set_membership(Some(of)).map_err(|source| self.fault(source))
    }

    /// Records in its metadata that it is in no group.
    fn leave(&self) -> Result<(), VolumeFault> {
        self.growth.set_membership(None).map_err(|source| self.fault(source))
    }

    /// Grows it to this many bytes, unless it has them.
    async fn lengthen(&self, size: u64) -> Result<(), VolumeFault> {
        if self.bare.geometry().size >= size {
            return Ok(());
        }
        let growth = self.growth.clone();
        let grown = weft_machine::rt::blocking(move || growth.grow(size)).await;
        grown.map(drop).map_err(|source| self.fault(source))
    }

    /// Names it in an error.
    fn fault(&self, source: VolumeError) -> VolumeFault {
        VolumeFault { volume: self.name.clone(), source }
    }
}

/// How others log on to this server when the roles are exchanged.
pub(super) struct Own {
    user: String,
    password: Password,
}

impl Own {
    /// The user with this password.
    pub(super) fn new(user: &str, password: &str) -> Own {
        Own { user: user.to_owned(), password: Password::new(password) }
    }
}

impl Replicas {
    /// Makes the doors and the recorded groups, which start with [`Replicas::start`]. When this returns, the fronts
    /// of volumes in no group lead to the volumes; all others are closed, and their groups open them.
    pub(super) fn new(
        state: &Path,
        own: Own,
        cores: &Arc<Cores>,
        pool: &Pool,
        volumes: &[Served],
        absent: &[Absent],
    ) -> Result<Arc<Replicas>, Unremembered> {
        let member = |served: &Served| {
            let (front, volume) = served.behind();
            Arc::new(Member {
                name: volume.name.clone(),
                medium: volume.superblock.medium,
                place: crate::volume::place(&volume.superblock),
                front: front.clone(),
                bare: volume.block.clone(),
                growth: volume.growth.clone(),
            })
        };
        let members = volumes.iter().map(member).collect();
        let behind: Arc<OnceLock<Weak<Replicas>>> = Arc::default();
        let for_setup = behind.clone();
        let setup: door::Setup = Arc::new(move |message| -> LocalBoxFuture<'static, Bytes> {
            let replicas = for_setup.get().and_then(Weak::upgrade);
            Box::pin(async move {
                let told = match replicas {
                    Some(replicas) => replicas.setup(&message).await,
                    None => Tell::Error("the server is ending".to_owned().into()),
                };
                serde_json::to_vec(&told).unwrap_or_default().into()
            })
        });
        let doors = Doors::new(setup);
        let replicas = Arc::new(Replicas {
            cores: cores.clone(),
            pool: pool.clone(),
            log_memory: LogMemory::default(),
            folder: Folder::of(state),
            volumes: Volumes::at(state.join("volumes")),
            doors,
            members,
            absent: absent.to_vec(),
            groups: Mutex::default(),
            busy: Mutex::default(),
            joins: AsyncMutex::default(),
            looking: AsyncMutex::default(),
            measuring: Arc::default(),
            ends: AtomicBool::new(false),
            own,
            server: u64::from_le_bytes(random::bytes()?),
            smb_port: OnceLock::new(),
            acceptor: OnceLock::new(),
        });
        behind.get_or_init(|| Arc::downgrade(&replicas));
        replicas.remember()?;
        Ok(replicas)
    }

    /// Makes the recorded groups with their volumes, and opens the fronts of volumes in no group.
    fn remember(&self) -> Result<(), Unremembered> {
        let mut left = self.members.clone();
        // Known groups first: the remaining volumes may be in a group of which nothing is known.
        let mut found = self.folder.load()?;
        found.retain(|found| !self.undoes(found));
        let marked = |member: &Arc<Member>| (member.name.clone(), member.growth.superblock().membership);
        let marked: Vec<(String, Option<Membership>)> = self.members.iter().map(marked).collect();
        for name in marks::take_never_begun(&mut found, &marked) {
            tracing::warn!(
                "group {name}: the server ended while the group was created, before anything was replicated: the group is removed, and its volumes \
                 are served as they are. If the other host has a copy with that name: `weft replica remove {name} --force` there"
            );
            self.folder.remove(&name).map_err(|source| {
                let folder = self.folder.path().to_owned();
                Unremembered::NotForgotten { folder, group: name, source }
            })?;
        }
        marks::complete(&mut found, &marked, self.folder.path());
        found.sort_by_key(|found| matches!(found, Remembered::Damaged(damaged) if damaged.volumes.is_none()));
        for found in found {
            let (own, others) = left.into_iter().partition(|member| found.may_have(&member.name));
            left = others;
            let group = match found {
                Remembered::Group(config) => {
                    if let Err(e) = self.folder.save_members(&config) {
                        tracing::warn!("group {}: cannot record its volumes: {e}", config.name);
                    }
                    // In the group's order.
                    let mut own: Vec<Arc<Member>> = own;
                    own.sort_by_key(|member| config.volumes.iter().position(|name| *name == member.name));
                    Group::remembered(config, own, &self.absent)
                }
                Remembered::Damaged(damaged) => Group::damaged(damaged, own),
            };
            group.wait_for_it(self);
            self.groups().insert(group.name.clone(), group);
        }
        for member in left {
            super::volumes::accept(&member.name, &member.growth).map_err(|source| member.fault(source))?;
            member.front.begin(member.bare.clone());
        }
        Ok(())
    }

    /// Whether a group was still being created when the server ended, and is now removed.
    fn undoes(&self, found: &Remembered) -> bool {
        let Remembered::Group(config) = found else { return false };
        if !config.beginning {
            return false;
        }
        let name = &config.name;
        match group::undo_beginning(self, config) {
            Ok(()) => {
                tracing::warn!(
                    "group {name}: the server ended while the group was created: repeat `weft replica create`"
                );
                true
            }
            Err(why) => {
                tracing::error!(
                    "group {name}: the server ended while the group was created, and that could not be undone: {why}"
                );
                false
            }
        }
    }

    /// The hidden share.
    pub(super) fn share(&self) -> Share {
        Share::new(door::SHARE, Vfs::new(Shelf::new(self.doors.clone())))
    }

    /// Starts every recorded group.
    pub(super) fn start(self: &Arc<Self>, smb_port: u16, acceptor: &Acceptor) {
        self.smb_port.get_or_init(|| smb_port);
        self.acceptor.get_or_init(|| acceptor.clone());
        let groups: Vec<Arc<Group>> = self.groups().values().cloned().collect();
        groups.into_iter().for_each(|group| self.enter(group));
    }

    /// Whether the process is ending.
    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    fn enter(self: &Arc<Self>, group: Arc<Group>) {
        self.groups().insert(group.name.clone(), group.clone());
        let replicas = self.clone();
        self.cores.run(0, move || async move { group.govern(&replicas).await });
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<GroupName, Arc<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(self: &Arc<Self>, group: &Arc<Group>) -> Home {
        Home { group: group.clone(), replicas: self.clone() }
    }

    fn group(&self, name: &str) -> Result<Arc<Group>, Error> {
        let groups = self.groups();
        // A volume also names its group.
        let of_volume = || groups.values().find(|group| group.has(name));
        groups.get(name).or_else(of_volume).cloned().ok_or_else(|| {
            let (name, groups) =
                (name.to_owned(), groups.keys().map(ToString::to_string).collect::<Vec<_>>());
            match groups.is_empty() {
                true => Error::NoGroups(name),
                false => Error::NoGroup { name, groups },
            }
        })
    }

    fn member(&self, name: &str) -> Result<Arc<Member>, Error> {
        let found = self.members.iter().find(|member| member.name == name);
        found.cloned().ok_or_else(|| {
            let volume = name.to_owned();
            if let Some(absent) = self.absent.iter().find(|absent| absent.name == name) {
                return Error::Absent { volume, why: absent.why() };
            }
            let served = self.members.iter().map(|member| member.name.clone()).collect();
            Error::NotServed { volume, served }
        })
    }

    /// Whether a volume is replicated.
    pub(super) fn has(&self, volume: &str) -> bool {
        self.group_of(volume).is_some()
    }

    fn group_of(&self, volume: &str) -> Option<GroupName> {
        self.groups().values().find(|group| group.has(volume)).map(|group| group.name.clone())
    }

    /// Only one command at a time may add or remove a group. Others get its name.
    fn take_turn(&self, command: impl Into<String>) -> Result<CommandTurn<'_>, Busy> {
        CommandTurn::take(&self.busy, command.into())
    }

    /// Answers a source's server.
    async fn setup(self: &Arc<Self>, message: &[u8]) -> Tell {
        let ask: Ask = match serde_json::from_slice(message) {
            Ok(ask) => ask,
            Err(e) => return Tell::Error(format!("{UNREADABLE}: {e}").into()),
        };
        let told = match ask {
            Ask::Look { volumes, measure } => self.look(&volumes, measure).await,
            // These are completed even if the asking connection ends: half a group would be useless and in the way.
            Ask::Join(join) => {
                let replicas = self.clone();
                uncancelled(async move { replicas.join(*join).await }).await.map(|()| Tell::Done)
            }
            Ask::Leave { partnership, volumes, epoch } => {
                let replicas = self.clone();
                uncancelled(async move { replicas.leave(&partnership, &volumes, epoch).await })
                    .await
                    .map(|()| Tell::Done)
            }
            Ask::Grow { partnership, sizes } => {
                let replicas = self.clone();
                uncancelled(async move { replicas.make_longer(&partnership, &sizes).await })
                    .await
                    .map(|()| Tell::Done)
            }
            Ask::Epoch { partnership } => {
                let group = self.of_partnership(&partnership);
                Ok(Tell::Epoch(group.map_or(0, |group| group.latest_epoch())))
            }
            Ask::Stopped { partnership, why, cause, host, mark, most } => {
                if let Some(group) = self.of_partnership(&partnership) {
                    group.hear_stopped(
                        mark,
                        Reason { why: why.into(), cause: cause.into(), host: host.into(), most },
                    );
                }
                Ok(Tell::Done)
            }
            Ask::Holds { partnership } => {
                let group = self.of_partnership(&partnership);
                let unknown = || match self.folder.has_ended(&partnership) {
                    true => Part::Ended.into(),
                    false => Part::Unknown.into(),
                };
                Ok(Tell::Holds(group.map_or_else(unknown, |group| group.holds())))
            }
            Ask::Know { partnership, list } => match self.of_partnership(&partnership) {
                Some(group) => group.learn_list(self, *list).await,
                None => Err(Error::NoPartnership),
            },
            Ask::Goes { partnership, mark } => {
                if let Some(group) = self.of_partnership(&partnership) {
                    group.hear_goes(mark);
                }
                Ok(Tell::Done)
            }
            Ask::Nothing => Ok(Tell::Done),
        };
        told.unwrap_or_else(|e| Tell::Error(e.to_string().into()))
    }

    async fn look(&self, wanted: &[String], measure: bool) -> Result<Tell, Error> {
        setup::few_and_distinct(wanted)?;
        let log =
            match measure {
                true => Some(self.measure_log().await.map_err(|source| Error::JournalFolder {
                    folder: self.folder.path().to_owned(),
                    source,
                })?),
                false => None,
            };
        // Each examination walks over the volume's file.
        let _looking = self.looking.lock().await;
        let mut volumes = Vec::new();
        for name in wanted {
            let member = self.member(name)?;
            let used = group::used_bytes(&member.bare).await?;
            let (size, group) =
                (member.bare.geometry().size, self.group_of(name).map(|group| String::from(group).into()));
            volumes.push(Found { name: name.clone().into(), size, used, group });
        }
        Ok(Tell::Looked { log, volumes, server: self.server })
    }

    /// The speed of durable writes in the journals' folder.
    async fn measure_log(&self) -> io::Result<(f64, f64)> {
        let folder = self.folder.clone();
        // The caller may be gone before it is over; the next one must wait nevertheless.
        let alone = self.measuring.clone().lock_owned().await;
        weft_machine::rt::blocking(move || {
            let _alone = alone;
            folder.make()?;
            group::measure(folder.path())
        })
        .await
    }

    /// Makes this server a destination.
    async fn join(self: &Arc<Self>, join: Join) -> Result<(), Error> {
        let _turn = self.take_turn(format!("`weft replica create` of {}", join.source))?;
        let _joins = self.joins.lock().await;
        let mut members = Vec::new();
        for name in &join.volumes {
            let member = self.member(name)?;
            if let Some(group) = self.group_of(name) {
                return Err(Error::InGroupThere { volume: name.clone(), group });
            }
            members.push(member);
        }
        if members.len() != join.sizes.len() {
            return Err(Error::Sizes);
        }
        for (member, size) in members.iter().zip(&join.sizes) {
            let own = member.bare.geometry().size;
            if own < *size {
                return Err(Error::Shorter { volume: member.name.clone(), own, size: *size });
            }
            if !join.may_overwrite && group::used_bytes(&member.bare).await? > 0 {
                return Err(Error::HasData(member.name.clone()));
            }
        }
        if let Err(source) = self.folder.forget_ended(&join.partnership) {
            return Err(Error::Folder { folder: self.folder.path().to_owned(), source });
        }
        let group = Group::join(self, &join).await?;
        self.enter(group.clone());
        // Once it has the answer, the source finds an open door.
        if let Err(why) = group.settled(|state| matches!(state, State::Destination(_))).await {
            return Err(match self.dissolve(&group, true).await {
                Ok(()) => why,
                Err(e) => Error::NotUndone { why: Box::new(why), source: Box::new(e) },
            });
        }
        tracing::info!("group {} is now a destination of {}", group.name, join.source);
        Ok(())
    }

    fn of_partnership(&self, partnership: &str) -> Option<Arc<Group>> {
        let is = |group: &&Arc<Group>| group.partnership_hex() == partnership && !partnership.is_empty();
        self.groups().values().find(is).cloned()
    }

    /// The source of this epoch has ended the partnership. If `volumes` is not empty, it only takes back its join of
    /// these volumes.
    async fn leave(self: &Arc<Self>, partnership: &str, volumes: &[String], epoch: u64) -> Result<(), Error> {
        // A source that has lost the answer to its join says this while the join may still be running.
        drop(self.joins.lock().await);
        let Some(group) = self.of_partnership(partnership) else {
            self.note_ended(partnership, volumes);
            return Ok(());
        };
        if !volumes.is_empty() && group.config().volumes != volumes {
            return Ok(());
        }
        let name = group.name.clone();
        match group.state() {
            // It was another join: a source has connected since.
            State::Destination(copy) if !volumes.is_empty() && copy.holds() => return Ok(()),
            State::Destination(copy) if epoch > 0 && copy.latest_epoch() > epoch => {
                return Err(Error::FollowsThere { group: name, follows: copy.latest_epoch(), epoch });
            }
            State::Destination(_) => {}
            // It may have data that nobody else has.
            State::Stopped(_) => {
                return Err(Error::StoppedThere(name));
            }
            State::Source(_) | State::Starting => {
                return Err(Error::NotDestinationThere(name));
            }
        }
        let _turn = self.take_turn(format!("`weft replica remove {name}` of its source"))?;
        let _of_group = group.take_turn(format!("`weft replica remove {name}` of its source"))?;
        self.note_ended(partnership, volumes);
        self.dissolve(&group, false).await
    }

    /// Records that a source has ended a partnership. With volumes it has only taken back a join.
    fn note_ended(&self, partnership: &str, volumes: &[String]) {
        if volumes.is_empty()
            && door::parse_partnership(partnership).is_some()
            && let Err(e) = self.folder.note_ended(partnership)
        {
            tracing::warn!(
                "cannot record that partnership {partnership} was ended: {e}; if its source is restored from an earlier backup, it \
                 will not learn about it"
            );
        }
    }

    /// The source's volumes are about to grow: reserves room in this side's volumes. The group grows when the source
    /// says so in its next hello.
    async fn make_longer(&self, partnership: &str, sizes: &[u64]) -> Result<(), Error> {
        let group = self.of_partnership(partnership).ok_or(Error::NoPartnership)?;
        if !group.is_destination() {
            return Err(Error::NotDestination(group.name.clone()));
        }
        let _turn = group.take_turn(format!("`weft replica resize` of the source of {}", group.name))?;
        group.lend(sizes).await
    }

    /// Ends a group on this side: its volumes become ordinary volumes. Once begun, it is completed even if the caller
    /// is gone.
    async fn dissolve(self: &Arc<Self>, group: &Arc<Group>, give_up: bool) -> Result<(), Error> {
        let (replicas, group) = (self.clone(), group.clone());
        uncancelled(async move {
            group.end(&replicas, give_up).await?;
            replicas.groups().remove(&group.name);
            Ok(())
        })
        .await
    }

    /// Makes everything durable, so that the next start is quick.
    pub(super) async fn close(&self) {
        self.ends.store(true, Ordering::Release);
        let groups: Vec<Arc<Group>> = self.groups().values().cloned().collect();
        for group in groups {
            group.close().await;
        }
    }

    /// The state of all groups.
    pub(super) fn told(&self) -> Vec<crate::admin::replica::Group> {
        told::groups(self)
    }

    /// Carries a command out. A pure wait is cancelled when the caller hangs up.
    pub(super) async fn command(
        self: &Arc<Self>,
        command: crate::admin::replica::Command,
        hung_up: &Stop,
    ) -> Result<Reply, Error> {
        commands::carry_out(self, command, hung_up).await
    }
}

/// A command's turn, until it is dropped. Commands never wait for a turn: waiting for a command of another host would
/// prevent that host's request from being answered.
struct CommandTurn<'a>(&'a Mutex<Option<String>>);

impl<'a> CommandTurn<'a> {
    fn take(busy: &'a Mutex<Option<String>>, command: String) -> Result<CommandTurn<'a>, Busy> {
        let mut now = busy.lock().unwrap_or_else(PoisonError::into_inner);
        match &*now {
            Some(other) => Err(Busy(other.clone())),
            None => {
                *now = Some(command);
                Ok(CommandTurn(busy))
            }
        }
    }
}

impl Drop for CommandTurn<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests;
