//! Carries out administrators' commands on groups. `crate::args` parses command lines, `crate::replica` prints.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::{random, rt};
use weft_replica::group::{Cause, Partner as Destined, Stopped};
use weft_replica::source::{First, Source};
use weft_replica::status::{self, Mode, Phase, Role, Status};

use super::config::{self, Partner, Policy};
use super::destinations::{same_copy, who_is_at};
use super::error::{Error, LogLeft, Misfit, NoSnapshot, Unasked};
use super::group::{self, Group, State};
use super::names::GroupName;
use super::own_address::way_back;
use super::setup::{Ask, Join, LOG_UNIT, Tell, Wished};
use super::{Replicas, carrier, failover, picture};
use crate::admin::replica::{Command, Create, Differs, Reply};
use crate::args::replica::Objection;
use crate::hex::hex;
use crate::listen::Stop;
use crate::serve::names::host_name;
use crate::size::human;

/// Carries a command out; an error says what to type.
pub(super) async fn carry_out(
    replicas: &Arc<Replicas>,
    command: Command,
    hung_up: &Stop,
) -> Result<Reply, Error> {
    if let Command::Suspend { group, .. }
    | Command::Resume { group, .. }
    | Command::Verify { group, .. }
    | Command::Remove { group, .. }
    | Command::Resize { group, .. } = &command
        && let Ok(group) = replicas.group(group)
    {
        // The server may have started a moment ago. The command reports the group's state, and what it still waits
        // for.
        let _open = rt::timeout(FOLLOWS_WITHIN, let_open(&group)).await;
    }
    match command {
        Command::Status => Ok(Reply::Status(replicas.told())),
        Command::Create(wanted) => create(replicas, *wanted).await,
        Command::Suspend { group, to } => {
            let (group, source, n, name) = destination(replicas, &group, to.as_deref())?;
            source.suspend(n).await.map_err(|e| of_link(&group, &name, e))?;
            let group = &group.name;
            Ok(Reply::Done(format!(
                "replication of {group} to {name} is suspended; to continue: weft replica resume {group}"
            )))
        }
        Command::Resume { group, to } => {
            let (group, source, n, name) = destination(replicas, &group, to.as_deref())?;
            source.resume(n).await.map_err(|e| of_link(&group, &name, e))?;
            Ok(Reply::Done(format!("replication of {} to {name} continues", group.name)))
        }
        Command::Switch { group, to, failover, past } => {
            if failover && !past.contains(&Objection::Alive) {
                wait_for_silence(replicas, &group, hung_up).await?;
            }
            switch(replicas, &group, to.as_deref(), failover, &past).await
        }
        Command::Verify { group, to, repair } => {
            let (group, source, n, name) = destination(replicas, &group, to.as_deref())?;
            let_follow(&source, &name).await;
            let found = source.verify(n, repair).await.map_err(|e| of_link(&group, &name, e))?;
            let partners = group.config().partners;
            let copy = partners.into_iter().find(|partner| partner.name == name);
            let named = |part: status::Differs| {
                let volume = group.config().volumes.get(part.member).cloned().unwrap_or_default();
                Differs { volume, offset: part.offset, len: part.len }
            };
            Ok(Reply::Verified {
                bytes: found.bytes,
                different: found.different,
                first: found.first.into_iter().map(named).collect(),
                source: host_name(),
                copy: copy.map_or(name, |partner| partner.address.host),
            })
        }
        Command::Remove { group, to, force } => remove(replicas, &group, to.as_deref(), force).await,
        Command::Resolve { group, keep_here, force } => resolve(replicas, &group, keep_here, force).await,
        Command::TestFailover { group, end } => test_failover(replicas, &group, end).await,
        Command::Resize { group, size } => resize(replicas, &group, size).await,
    }
}

/// Names the link in an error.
fn of_link(group: &Group, to: &str, source: weft_replica::Error) -> Error {
    Error::Link { group: group.name.clone(), to: to.to_owned(), source }
}

/// How long a command waits for a destination that is about to follow, for example the former source.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(5);
const FOLLOWS_LOOK: Duration = Duration::from_millis(20);

/// Waits until a destination follows. If it does not, the engine reports why.
async fn let_follow(source: &Source, name: &str) {
    let until = rt::now() + FOLLOWS_WITHIN;
    let follows = || {
        let found = source.status().peers.into_iter().find(|peer| peer.name == name);
        found.is_none_or(|peer| peer.phase == Phase::ContinuouslyReplicating)
    };
    while !follows() && rt::now() < until {
        rt::sleep(FOLLOWS_LOOK).await;
    }
}

/// Whether a full disk on this side delays a write.
fn waits_for_space(group: &Group) -> bool {
    group.status().is_some_and(|status| status.full)
}

/// The answer to a command while the group is being opened.
fn opening(group: &Group) -> Error {
    let name = group.name.clone();
    if waits_for_space(group) { Error::OpeningFull(name) } else { Error::Opening(name) }
}

/// The answer to a command that a stopped group cannot carry out.
fn while_stopped(group: &Group, stopped: &Stopped) -> Error {
    Error::Stopped { group: group.name.clone(), why: stopped.why.clone() }
}

/// Waits until a group is open, but not while its disk is full.
async fn let_open(group: &Group) -> Result<(), Error> {
    let opened = std::pin::pin!(group.settled(|state| !matches!(state, State::Starting)));
    let full = async {
        while !waits_for_space(group) {
            rt::sleep(FOLLOWS_LOOK).await;
        }
    };
    match select(opened, std::pin::pin!(full)).await {
        Either::Left((opened, _)) => opened,
        Either::Right(_) => Err(opening(group)),
    }
}

/// A group's source, and the number and name of one of its destinations.
fn destination(
    replicas: &Replicas,
    group: &str,
    to: Option<&str>,
) -> Result<(Arc<Group>, Arc<Source>, usize, String), Error> {
    let group = replicas.group(group)?;
    let source = match group.state() {
        State::Source(source) => source,
        State::Destination(_) => return Err(ask_the_source(&group)),
        State::Starting => return Err(opening(&group)),
        State::Stopped(stopped) => return Err(while_stopped(&group, &stopped)),
    };
    let partners = group.config().partners;
    let partner = match (to, &partners[..]) {
        (None, [one]) => one.clone(),
        (None, []) => return Err(Error::NoDestinations(group.name.clone())),
        (None, several) => {
            let names = several.iter().map(|partner| partner.name.clone()).collect();
            return Err(Error::SeveralDestinations { group: group.name.clone(), names });
        }
        (Some(name), all) => {
            let found = all.iter().find(|partner| partner.name == name);
            let none = || Error::NoDestination { group: group.name.clone(), name: name.to_owned() };
            found.cloned().ok_or_else(none)?
        }
    };
    let n = group.number(&partner.name).ok_or_else(|| Error::NoLink(partner.name.clone()))?;
    Ok((group, source, n, partner.name))
}

fn ask_the_source(group: &Group) -> Error {
    let host = group.config().partners.first().map(|partner| partner.address.host.clone());
    Error::AtSource { group: group.name.clone(), host }
}

async fn create(replicas: &Arc<Replicas>, wanted: Create) -> Result<Reply, Error> {
    let _turn = replicas.take_turn("`weft replica create`")?;
    let name = match (&wanted.group, wanted.volumes.first()) {
        (Some(group), _) => group.clone(),
        (None, Some(volume)) => volume.parse::<GroupName>()?,
        (None, None) => return Err(Error::NoVolume),
    };
    if wanted.volumes.len() != wanted.their_volumes.len() {
        return Err(Misfit::Unpaired.into());
    }
    let mut sizes = Vec::new();
    for volume in &wanted.volumes {
        sizes.push(replicas.member(volume)?.bare.geometry().size);
    }
    let Create { address, their_volumes, .. } = &wanted;
    let look = Ask::Look { volumes: their_volumes.clone(), measure: false };
    let told = carrier::ask(address, &replicas.pool, &look).await?;
    let Tell::Looked { volumes: found, server, .. } = told else {
        return Err(Error::Unexpected);
    };
    // It would wait for the command that asks it.
    if server == replicas.server && server != 0 {
        return Err(Error::Itself(address.host.clone()));
    }
    for (found, size) in found.iter().zip(&sizes) {
        if found.size < *size {
            let (volume, host) = (found.name.clone(), address.host.clone());
            return Err(Error::ShorterThere { volume, host, there: found.size, here: *size });
        }
    }
    let log_bytes = wanted.log_bytes.unwrap_or_else(|| group::default_log_bytes(&sizes));
    let log_bytes = log_bytes.checked_next_multiple_of(LOG_UNIT).unwrap_or(u64::MAX);
    let partner = Partner {
        name: format!("{}:{name}", address.host),
        address: address.clone(),
        synchronous: wanted.synchronous,
    };
    let first = if wanted.seeded { First::Seeded } else { First::Copy };
    // Adds a destination to a group that is already a source.
    let existing = replicas.groups().get(&name).cloned();
    let _of_group = existing.as_ref().map(|group| group.take_turn("`weft replica create`")).transpose()?;
    let (partnership, policy) = match &existing {
        Some(group) => {
            let policy = admits(replicas, group, &wanted, &partner, server).await?;
            (group.partnership_hex(), policy)
        }
        None => {
            for volume in &wanted.volumes {
                if let Some(group) = replicas.group_of(volume) {
                    return Err(Error::InGroup { volume: volume.clone(), group });
                }
            }
            let policy = Policy {
                on_loss: wanted.on_loss.unwrap_or_default(),
                on_congestion: wanted.on_congestion.unwrap_or_default(),
            };
            (hex(random::bytes::<16>()?), policy)
        }
    };
    let join = Join::try_from(Wished {
        partnership: partnership.clone(),
        group: name.clone(),
        volumes: their_volumes.clone(),
        sizes,
        log_bytes,
        source: format!("{}:{name}", host_name()).into(),
        back: way_back(replicas, address, wanted.return_host.as_deref()).await?,
        synchronous: wanted.synchronous,
        policy,
        may_overwrite: wanted.overwrite || wanted.seeded,
    })?;
    let made = match carrier::exchange(address, &replicas.pool, &Ask::Join(Box::new(join.clone()))).await {
        Ok(Tell::Error(why)) => return Err(Unasked::Refused { host: address.host.clone(), why }.into()),
        // From now on the other server waits for this one.
        Ok(_) => match &existing {
            Some(group) => add_destination(replicas, group, &partner, first).await.map(|()| group.clone()),
            None => begin(replicas, &name, &wanted, &join, &partner, first).await,
        },
        // The other server may have joined: its answer may have been lost.
        Err(e) => Err(e.into()),
    };
    if let Err(why) = made {
        let leave = Ask::Leave { partnership, volumes: their_volumes.clone(), epoch: 0 };
        return Err(match carrier::ask(address, &replicas.pool, &leave).await {
            Ok(_) => why,
            Err(e) => {
                tracing::warn!("{} may be waiting for a source that does not come: {e}", address.host);
                Error::CopyLeft { why: Box::new(why), group: name, host: address.host.clone() }
            }
        });
    }
    let mode = if wanted.synchronous { "synchronously" } else { "asynchronously" };
    let (host, copy) = (&address.host, if wanted.seeded { "compared" } else { "copied" });
    Ok(Reply::Done(format!(
        "{name} is replicated {mode} to {host} and is being {copy}: weft replica status --watch"
    )))
}

/// Whether a group can get this destination, before the other server is asked to become a copy. Returns the group's policy.
async fn admits(
    replicas: &Arc<Replicas>,
    group: &Arc<Group>,
    wanted: &Create,
    partner: &Partner,
    server: u64,
) -> Result<Policy, Error> {
    let (name, config) = (&group.name, group.config());
    if config.volumes != wanted.volumes {
        return Err(Error::OtherVolumes { group: name.clone(), volumes: config.volumes });
    }
    match group.state() {
        State::Source(_) => {}
        State::Destination(_) => return Err(ask_the_source(group)),
        State::Starting => return Err(opening(group)),
        State::Stopped(stopped) => return Err(while_stopped(group, &stopped)),
    }
    if config.partners.iter().any(|other| other.name == partner.name) {
        return Err(Error::AlreadyReplicated { group: name.clone(), destination: partner.name.clone() });
    }
    refuse_second_name(replicas, group, server, &partner.address.host).await?;
    // It may have changed meanwhile.
    let policy = group.config().policy;
    let differs = wanted.on_loss.is_some_and(|other| other != policy.on_loss)
        || wanted.on_congestion.is_some_and(|other| other != policy.on_congestion);
    if differs {
        return Err(Error::OtherPolicy(name.clone()));
    }
    Ok(policy)
}

async fn begin(
    replicas: &Arc<Replicas>,
    name: &GroupName,
    wanted: &Create,
    join: &Join,
    partner: &Partner,
    first: First,
) -> Result<Arc<Group>, Error> {
    let config = config::Group::new(
        name.clone(),
        join.partnership.clone(),
        wanted.volumes.clone(),
        join.log_bytes,
        join.policy,
    );
    let group = Group::create(replicas, config, Role::Source, join.sizes.clone(), None).await?;
    replicas.enter(group.clone());
    let attached = match group.settled(|state| matches!(state, State::Source(_))).await {
        Ok(()) => add_destination(replicas, &group, partner, first).await,
        Err(why) => Err(why),
    };
    let Err(why) = attached else { return Ok(group) };
    match replicas.dissolve(&group, true).await {
        Ok(()) => Err(why),
        Err(e) => Err(Error::NotUndone { why: Box::new(why), source: Box::new(e) }),
    }
}

async fn add_destination(
    replicas: &Arc<Replicas>,
    group: &Arc<Group>,
    partner: &Partner,
    first: First,
) -> Result<(), Error> {
    let wanted = Destined { name: partner.name.clone(), mode: partner.mode() };
    let remember = || {
        let changed = group.change_destinations(replicas, |config| config.partners.push(partner.clone()));
        changed.map_err(|e| e.to_string())
    };
    group.engine().attach(&replicas.home(group), &wanted, first, remember).await.map_err(Error::Engine)
}

/// Refuses a destination server that the group already has under another name: both links would lead to one copy and
/// end each other.
async fn refuse_second_name(
    replicas: &Replicas,
    group: &Group,
    server: u64,
    host: &str,
) -> Result<(), Error> {
    // An unreachable server is not the one that has just answered.
    match who_is_at(replicas, server, group.config().partners).await {
        None => Ok(()),
        Some(partner) => Err(Error::SecondName {
            group: group.name.clone(),
            host: host.to_owned(),
            destination: partner.name,
        }),
    }
}

/// Waits until the source of a copy has been silent for long enough, or is heard. The caller cancels the wait by
/// hanging up: nothing has changed then, and no other command was excluded meanwhile. A command that ends the copy
/// also ends the wait.
async fn wait_for_silence(replicas: &Arc<Replicas>, name: &str, hung_up: &Stop) -> Result<(), Error> {
    let group = replicas.group(name)?;
    let _opened = hung_up.or(let_open(&group)).await;
    // In other states, the command itself reports the problem.
    let State::Destination(copy) = group.state() else { return Ok(()) };
    if waits_for_space(&group) {
        return Ok(());
    }
    let over = group.engine().until(|state| !group.is_this_copy(state, &copy));
    let silent = group.engine().let_fall_silent(&copy);
    if hung_up.or(select(std::pin::pin!(silent), std::pin::pin!(over))).await.is_none() {
        let name = &group.name;
        tracing::info!("group {name}: the failover was cancelled: the group is still a copy");
        return Err(Error::Cancelled(name.clone()));
    }
    Ok(())
}

async fn switch(
    replicas: &Arc<Replicas>,
    name: &str,
    to: Option<&str>,
    failover: bool,
    past: &[Objection],
) -> Result<Reply, Error> {
    let group = replicas.group(name)?;
    // Two concurrent switches would undo what the other has told the partners.
    let _turn = group.take_turn(format!("`weft replica switch {name}`"))?;
    let tag = u64::from_le_bytes(random::bytes()?);
    let host =
        group.config().partners.first().map(|partner| partner.address.host.clone()).unwrap_or_default();
    if matches!(group.state(), State::Starting) {
        // The server may have started a moment ago.
        let_open(&group).await?;
    }
    match group.state() {
        State::Stopped(stopped) if failover => Err(while_stopped(&group, &stopped)),
        State::Destination(_) if failover && waits_for_space(&group) => {
            Err(Error::CopyFull(group.name.clone()))
        }
        State::Destination(copy) if failover => {
            let mode = copy.status().peers.first().and_then(|peer| peer.mode);
            let list = group.config().list;
            let (era, notes) = failover::take_over(replicas, &group, &copy, tag, past).await?;
            let others = group.tell_of_failover(replicas, list).await;
            let name = &group.name;
            let lost = match mode {
                Some(Mode::Asynchronous) => {
                    format!("; writes that {host} had acknowledged but not sent yet are missing")
                }
                _ => String::new(),
            };
            Ok(Reply::Done(format!(
                "{name} is now the source, epoch {}, with everything that had arrived here{lost}; {host} becomes its copy when it \
                 is back{others}{notes}",
                era.epoch
            )))
        }
        State::Destination(_) => Err(Error::NeedsFailover { group: group.name.clone(), host }),
        _ if failover => Err(Error::IsSource(group.name.clone())),
        _ => {
            let (group, source, n, to) = destination(replicas, name, to)?;
            let_follow(&source, &to).await;
            let others = group.hand_over(replicas, &source, n, &to, tag).await?;
            group.settled(|state| matches!(state, State::Destination(_))).await?;
            Ok(Reply::Done(format!("{to} is now the source, and this side its copy{others}")))
        }
    }
}

/// Whether a destination is up to date with what it is sent.
fn follows(status: &Status, name: &str) -> bool {
    status.peers.iter().any(|peer| peer.name == name && peer.phase == Phase::ContinuouslyReplicating)
}

async fn remove(replicas: &Arc<Replicas>, name: &str, to: Option<&str>, force: bool) -> Result<Reply, Error> {
    let group = replicas.group(name)?;
    let _turn = replicas.take_turn(format!("`weft replica remove {name}`"))?;
    let _of_group = group.take_turn(format!("`weft replica remove {name}`"))?;
    if let State::Source(_) = group.state() {
        let (partners, kept): (Vec<Partner>, Vec<Partner>) = match to {
            None => (group.config().partners, Vec::new()),
            Some(_) => {
                let (_, _, _, name) = destination(replicas, name, to)?;
                group.config().partners.into_iter().partition(|partner| partner.name == name)
            }
        };
        if force
            && !partners.is_empty()
            && let Some(status) = group.status()
            && partners.iter().all(|partner| follows(&status, &partner.name))
        {
            return Err(Error::NeedsNoForce(group.name.clone()));
        }
        // A copy that has been told is gone, so first make sure that what follows can be recorded here. After an attempt that
        // failed at its end no copy is left, and only the removal of the records.
        if !group.engine().is_settled() {
            let has_room = group.engine().has_room().map_err(Error::Engine);
            let is_recorded = has_room.and_then(|()| Ok(group.change(replicas, |_| ())?));
            is_recorded.map_err(|why| Error::Unchanged(Box::new(why)))?;
        }
        let (mut unheard, mut notes) = (Vec::new(), String::new());
        for partner in &partners {
            match same_copy(replicas, partner, &kept).await {
                // If it is told that its name has ended, it loses the copy under its other name as well.
                Some(other) => {
                    notes = format!("; {} is the copy of {other}, which stays", partner.name);
                }
                None => {
                    let (partnership, epoch) = (group.partnership_hex(), group.latest_epoch());
                    let ask = Ask::Leave { partnership, volumes: Vec::new(), epoch };
                    if let Err(e) = carrier::ask(&partner.address, &replicas.pool, &ask).await {
                        if !force {
                            let destination = partner.name.clone();
                            return Err(Error::NotTold { destination, source: Box::new(e) });
                        }
                        unheard.push(partner.address.host.clone());
                    }
                }
            }
            let forget = || {
                let changed = group.change_destinations(replicas, |config| {
                    config.partners.retain(|other| other.name != partner.name);
                });
                changed.map_err(|e| e.to_string())
            };
            group.engine().detach(&partner.name, forget).await.map_err(Error::Engine)?;
        }
        let left = group.config().partners.len();
        if left == 0 {
            let ended = replicas.dissolve(&group, force).await;
            ended.map_err(|why| Error::NotEnded { group: group.name.clone(), why: Box::new(why) })?;
        }
        let name = &group.name;
        let there = match unheard.is_empty() {
            true => String::new(),
            false => format!("; run `weft replica remove {name}` on {}", unheard.join(" and ")),
        };
        return Ok(Reply::Done(match left {
            0 => format!("{name} is no longer replicated{there}"),
            n => format!("{name} has {n} destinations left{there}{notes}"),
        }));
    }
    if let State::Stopped(stopped) = group.state() {
        if !force {
            let log = match group.status().map(|status| status.last.saturating_sub(status.applied)) {
                _ if stopped.cause == Cause::Over => LogLeft::Over,
                None => LogLeft::Lost,
                Some(0) => LogLeft::None,
                Some(n) => LogLeft::Records(n),
            };
            let (group, why) = (group.name.clone(), stopped.why.clone());
            return Err(Error::StoppedNeedsForce { group, why, log });
        }
        let hosts: Vec<String> =
            group.config().concerned().iter().map(|partner| partner.address.host.clone()).collect();
        replicas.dissolve(&group, true).await?;
        let there = match hosts.is_empty() {
            true => String::new(),
            false => format!(
                "; if it still exists on {}, `weft replica remove {}` there ends it",
                hosts.join(" and "),
                group.name
            ),
        };
        return Ok(Reply::Done(format!(
            "{} is no longer replicated: its volumes can be used on this host{there}",
            group.name
        )));
    }
    if matches!(group.state(), State::Starting) {
        return Err(opening(&group));
    }
    if let Some(status) = group.status().filter(|status| !status.consistent && !force) {
        return Err(Error::Resyncing { group: group.name.clone(), role: status.role });
    }
    let source = group.config().partners.into_iter().next().map(|partner| partner.address.host);
    replicas.dissolve(&group, force).await?;
    let there =
        source.map(|host| format!("; also run `weft replica remove {}` on {host}, its source", group.name));
    Ok(Reply::Done(format!(
        "{} is no longer a copy: its volumes can be used on this host{}",
        group.name,
        there.unwrap_or_default()
    )))
}

async fn resolve(replicas: &Arc<Replicas>, name: &str, keep_here: bool, force: bool) -> Result<Reply, Error> {
    let group = replicas.group(name)?;
    // A new journal must not appear while the group ends, nor a role change while another is under way.
    let _turn = group.take_turn(format!("`weft replica resolve {name}`"))?;
    let host =
        group.config().partners.first().map(|partner| partner.address.host.clone()).unwrap_or_default();
    let home = replicas.home(&group);
    let tag = u64::from_le_bytes(random::bytes()?);
    let cause = match group.state() {
        State::Stopped(stopped) => Some(stopped.cause),
        _ => None,
    };
    let gives_up = match group.state() {
        State::Source(source) => source.is_disputed(),
        State::Stopped(stopped) => stopped.cause == Cause::Split,
        _ => false,
    };
    if gives_up && !keep_here && !force {
        group.would_follow_nobody(replicas).await?;
    }
    if let State::Destination(copy) = group.state()
        && !keep_here
        && !force
    {
        // Decides whether waiting is useful.
        group.look_for_holder(replicas, &copy).await;
    }
    group.engine().resolve(&home, keep_here, force, tag).await.map_err(Error::Engine)?;
    let name = &group.name;
    let compared = matches!(cause, Some(Cause::Log | Cause::Journal | Cause::Volume));
    Ok(Reply::Done(match (keep_here, compared) {
        (false, false) if cause == Some(Cause::SetBack) => format!(
            "{name} is now a copy, and is compared completely once {host} is the source; if it is not, run on that host: weft replica switch {name} \
             --failover"
        ),
        (true, _) if cause == Some(Cause::Over) => {
            format!(
                "{name} continues with this host's data, and has no copy on {host}: `weft replica remove {name} --force` ends replication"
            )
        }
        (true, true) => format!(
            "{name} continues with the data left on this host: unreadable data is missing. Its destinations are compared"
        ),
        (true, false) => format!(
            "this host's data of {name} counts; on {host}, if not yet done, run: weft replica resolve {name} --keep there"
        ),
        (false, true) => {
            format!("{name} is now a copy: differences from {host} are overwritten once {host} is the source")
        }
        (false, false) => {
            format!("{name} is now a copy: data that only this side had is overwritten when {host} connects")
        }
    }))
}

/// Begins or ends a test: a writable snapshot of a copy.
async fn test_failover(replicas: &Arc<Replicas>, name: &str, end: bool) -> Result<Reply, Error> {
    let group = replicas.group(name)?;
    let (name, held) = (&group.name, || group.picture.lock().unwrap_or_else(PoisonError::into_inner));
    if end {
        let ended = held().take().is_some();
        return match ended {
            true => {
                Ok(Reply::Done(format!("the snapshot of {name} is removed, with everything written to it")))
            }
            false => Err(NoSnapshot::Missing(name.clone()).into()),
        };
    }
    let State::Destination(copy) = group.state() else {
        return Err(NoSnapshot::NoCopy(name.clone()).into());
    };
    if held().is_some() {
        return Err(NoSnapshot::Open(name.clone()).into());
    }
    let picture = picture::take(replicas, &group.name, &group.members, &copy).await?;
    let uris = picture.uris.clone();
    *held() = Some(picture);
    Ok(Reply::Done(format!(
        "a writable snapshot, while replication continues: {}\nto end it: weft replica test-failover {name} --end",
        uris.join(" ")
    )))
}

/// Grows a volume while it is in use: space is first reserved on the destinations, then on this side, and then the
/// group grows. If a step in between fails, volumes are longer than their replicated part, and the command can be
/// repeated.
async fn resize(replicas: &Arc<Replicas>, name: &str, wanted: Option<u64>) -> Result<Reply, Error> {
    let group = replicas.group(name)?;
    let _turn = group.take_turn(format!("`weft replica resize {name}`"))?;
    let source = match group.state() {
        State::Source(source) => source,
        State::Destination(_) => return Err(ask_the_source(&group)),
        State::Starting => return Err(opening(&group)),
        State::Stopped(stopped) => return Err(while_stopped(&group, &stopped)),
    };
    let member = match group.members.iter().position(|member| member.name == name) {
        Some(member) => member,
        None if group.members.len() == 1 => 0,
        None => {
            let volumes = group.members.iter().map(|member| member.name.clone()).collect();
            return Err(Error::SeveralVolumes { name: name.to_owned(), volumes });
        }
    };
    let volume = &group.members[member];
    let size = wanted.unwrap_or(volume.bare.geometry().size);
    let mut sizes = source.status().sizes;
    if size < sizes[member] {
        let (volume, name) = (volume.name.clone(), name.to_owned());
        return Err(Error::Shrinks { volume, name, bytes: sizes[member] });
    }
    sizes[member] = size;
    for partner in group.config().partners {
        let ask = Ask::Grow { partnership: group.partnership_hex(), sizes: sizes.clone() };
        carrier::ask(&partner.address, &replicas.pool, &ask)
            .await
            .map_err(|e| Error::CannotGrow { destination: partner.name, source: Box::new(e) })?;
    }
    volume.lengthen(size).await?;
    source.grow(&sizes).await.map_err(|source| Error::NotGrown { volume: volume.name.clone(), source })?;
    Ok(Reply::Done(format!(
        "{} now has {}, and its copy will in a moment; NBD clients see the new size when they reconnect",
        volume.name,
        human(size)
    )))
}
