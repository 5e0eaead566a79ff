//! Creates and removes a group's files.
//!
//! This module owns the order in which the group's file, its journal and the marks of its volumes are created and
//! removed, so that a crash in between leaves no volume that is served without its group. [`super::super::marks`]
//! reads them at the start.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use weft_machine::file::regular;
use weft_machine::{Pool, random, rt};
use weft_replica::group::Settled;
use weft_replica::journal::{self, Format};
use weft_replica::status::Role;
use weft_store::block::{Block, Medium};
use weft_store::volume::{Create, Storage, Volume, Volumes, free_bytes};

use super::{Group, lock};
use crate::hex::hex;
use crate::serve::replica::config::{self, Folder, Partner};
use crate::serve::replica::error::{Error, Uncreated, Unremoved, VolumeFault};
use crate::serve::replica::kept::Kept;
use crate::serve::replica::names::GroupName;
use crate::serve::replica::setup::{self, LOG_UNIT};
use crate::serve::replica::{Member, Replicas, door};

impl Group {
    /// Creates a group: makes and formats its journal, and records it.
    pub async fn create(
        replicas: &Replicas,
        mut config: config::Group,
        role: Role,
        sizes: Vec<u64>,
        partner: Option<Partner>,
    ) -> Result<Arc<Group>, Error> {
        if replicas.groups().contains_key(&config.name) {
            return Err(Error::Exists(config.name));
        }
        if replicas.groups().len() >= config::MOST_GROUPS {
            return Err(Error::TooManyGroups(config::MOST_GROUPS));
        }
        setup::few_and_distinct(&config.volumes)?;
        let members: Vec<Arc<Member>> =
            config.volumes.iter().map(|name| replicas.member(name)).collect::<Result<_, _>>()?;
        config.speaker = u64::from_le_bytes(random::bytes()?);
        config.in_memory = members.iter().all(|member| member.medium == Medium::Ram);
        config.kept = members.iter().map(|member| Kept::of(&member.growth.superblock())).collect();
        config.partners.extend(partner);
        config.beginning = true;
        let partnership = door::parse_partnership(&config.partnership).ok_or(Error::PartnershipLength)?;
        if let Some(other) = replicas.of_partnership(&hex(partnership)) {
            return Err(Error::PartnershipTaken(other.name.clone()));
        }
        let format = Format {
            partnership,
            role,
            tag: u64::from_le_bytes(random::bytes()?),
            sizes,
            log_bytes: config.log_bytes,
        };
        let bytes = journal_bytes(&format)?;
        if role == Role::Destination {
            make_folder(&replicas.folder)?;
            let place = (!config.in_memory).then_some(replicas.folder.path());
            let free = free_bytes(place).map_err(Error::FreeSpace)?;
            setup::leaves_enough("its journal", bytes, free)?;
        }
        // All checks have passed. From here on, files with this name are leftovers or made by this call.
        clear_way(replicas, &config.name)?;
        let made = async {
            // First the file that names its volumes: a journal of an unknown group closes all volumes that are in no
            // group.
            let (folder, pool, remembered) = (replicas.folder.clone(), replicas.pool.clone(), config.clone());
            let made = rt::blocking(move || {
                folder.save(&remembered).map_err(Uncreated::Record)?;
                make_journal(&folder, &pool, &remembered, bytes)
            });
            let journal = made.await?;
            let block: Arc<dyn Block> = journal.block.clone();
            journal::format(&block, &format).await?;
            // Before its first record, and after its file: a marked volume is in a group, or closed.
            let group = Group::new(config.clone(), Some(partnership), members.clone(), None, Some(journal));
            // Its file already names these volumes.
            let (name, marked) = (config.name.clone(), members.clone());
            let mark = move || marked.iter().try_for_each(|member| member.enter(&name, partnership));
            if !config.in_memory {
                rt::blocking(mark).await?;
            }
            // If a crash happens before this, the next start undoes the creation.
            group.change(replicas, |config| config.beginning = false)?;
            // From here on, nobody reads or writes past the group.
            for member in &members {
                member.front.hold("its replication is beginning").await;
            }
            Ok(group)
        };
        let made: Result<Arc<Group>, Error> = made.await;
        if made.is_err() {
            // It never ran: its log is empty.
            let (folder, name) = (replicas.folder.clone(), config.name.clone());
            if let Err(e) = rt::blocking(move || erase(&folder, &name, &members)).await {
                tracing::warn!("{e}");
            }
        }
        made
    }

    /// Removes its records. Until that is durable, the volumes must not be written to outside of the group, because
    /// after a crash they would belong to it.
    pub(super) async fn forget(&self, replicas: &Replicas, settled: &Settled) -> Result<(), Error> {
        // A change that has begun is recorded before, and removed with the rest; later ones are refused.
        drop(lock(&self.config));
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
                // Another server has the volume or its metadata open.
                if let Err(e) = volumes.leave_group(volume, &name) {
                    tracing::warn!(
                        "volume {volume}: {e}; its metadata may still say that it is in the group {name}"
                    );
                }
            }
            erase(&folder, &name, &members)
        })
        .await
        .map_err(Error::VolumesClosed)
    }
}

/// The length of the block of a group's journal.
pub(super) fn journal_bytes(format: &Format) -> Result<u64, Error> {
    journal::bytes(format)?.checked_next_multiple_of(LOG_UNIT).ok_or(Error::JournalTooLong)
}

fn make_folder(folder: &Folder) -> Result<(), Uncreated> {
    folder.make().map_err(|source| Uncreated::Folder { folder: folder.path().to_owned(), source })
}

/// Creates the block of a group's journal in place of an existing one, and opens it. Blocks: it may have many GiB.
pub(super) fn make_journal(
    folder: &Folder,
    pool: &Pool,
    config: &config::Group,
    bytes: u64,
) -> Result<Volume, Uncreated> {
    make_folder(folder)?;
    let storage = match config.in_memory {
        true => Storage::Ram,
        false => Storage::File(folder.journal(&config.name)),
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let wanted = Create {
        allocate: !config.in_memory,
        storage,
        size: Some(bytes),
        direct: false,
        id: random::bytes()?,
        created,
    };
    let journals = Volumes::at(folder.path());
    journals.create(&config.name, &wanted).map_err(Uncreated::Journal)?;
    let opened = journals.open(&config.name, pool).map_err(Uncreated::OpenJournal);
    if opened.is_err() {
        // It was created a moment ago.
        remove_journal(folder, &config.name);
    }
    opened
}

/// Removes what a crash has left of an unrecorded group with this name that no server has open; otherwise removes
/// nothing.
fn clear_way(replicas: &Replicas, name: &GroupName) -> Result<(), Uncreated> {
    let folder = &replicas.folder;
    if folder.knows(name) {
        return Err(Uncreated::Recorded { group: name.clone(), folder: folder.path().to_owned() });
    }
    let wrong = |path: &Path, source: io::Error| Uncreated::InTheWay {
        group: name.clone(),
        path: path.to_owned(),
        source,
    };
    let mut left = Vec::new();
    for path in [folder.metadata(name), folder.journal(name)] {
        match regular::read_only(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(wrong(&path, e)),
            // Kept open, so that nobody opens it before it is removed.
            Ok(file) => {
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
                    .map_err(|e| wrong(&path, e.into()))?;
                left.push((file, path));
            }
        }
    }
    for (_, path) in &left {
        std::fs::remove_file(path).map_err(|e| wrong(path, e))?;
    }
    Ok(())
}

/// Removes what a crash has left of a group being created. This server has its volumes locked, so no other server
/// creates it.
pub(in crate::serve::replica) fn undo_beginning(
    replicas: &Replicas,
    config: &config::Group,
) -> Result<(), Error> {
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
                let left = replicas.volumes.leave_group(volume, name);
                left.map_err(|source| VolumeFault { volume: volume.clone(), source })?;
            }
        }
    }
    Ok(erase(&replicas.folder, name, &[])?)
}

/// Durably removes the existing records of a group. Its file goes last: a crash before that leaves a stopped group
/// instead of remains whose volumes are unknown. Blocks.
fn erase(folder: &Folder, name: &GroupName, members: &[Arc<Member>]) -> Result<(), Unremoved> {
    for member in members {
        if let Err(e) = member.leave() {
            tracing::warn!("{e}; after the next start it counts as a member of the group {name}");
        }
    }
    remove_journal(folder, name);
    folder.remove(name).map_err(|source| {
        let (group, folder) = (name.clone(), folder.path().to_owned());
        Unremoved { group, folder, source }
    })
}

/// Removes a journal, as far as it exists. Blocks.
pub(super) fn remove_journal(folder: &Folder, name: &GroupName) {
    // Not through the journals' own volume folder: its lock ends with its last user, which may be about to end.
    for file in [folder.metadata(name), folder.journal(name)] {
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} was left behind: {e}", file.display());
            }
            _ => {}
        }
    }
}
