//! The volumes on the command line, opened once for all users and locked until the process ends.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use weft_machine::deadline::{self, Unanswered};
use weft_machine::{Pool, rt};
use weft_replica::front::Front;
use weft_store::Vfs;
use weft_store::backend::ShareVolume;
use weft_store::backend::volumes::Volumes as Shelf;
use weft_store::block::{Block, Medium};
use weft_store::volume::superblock::Superblock;
use weft_store::volume::{Error, Growth, Volume, Volumes};

use super::error::Unserved;
use super::replica::membership;
use crate::config::{LOOK_LIMIT, Plan};
use crate::out::{ShellCommand, path_name};
use crate::ready::{ReadyAbsent, ReadyVolume};
use crate::shares::{self, Described};
use crate::volume;

/// An open volume. Servers use its front; replication decides what is behind the front.
pub(super) struct Served {
    volume: Volume,
    front: Arc<Front>,
    read_only: bool,
}

impl Served {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.volume.name
    }

    /// Its metadata when it was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.volume.superblock
    }

    /// The block that its users read and write.
    pub fn block(&self) -> Arc<dyn Block> {
        self.front.clone()
    }

    /// Whether its users may not change it.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Its front and the volume itself, for replication only.
    pub fn behind(&self) -> (&Arc<Front>, &Volume) {
        (&self.front, &self.volume)
    }
}

/// A volume on the command line that cannot be opened: the server continues without it.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    /// Its name.
    pub name: String,
    /// What is wrong with its files.
    pub cause: String,
    /// The group that contains it.
    group: Option<String>,
    /// How to make its existing file accessible; then nothing needs to be restored or given up.
    allow: Option<&'static str>,
    /// The command that creates an empty file in place of a lost one, if the group cannot mistake it for the old one.
    remake: Option<String>,
}

impl Absent {
    /// Judges an open error: a lost or unusable file makes the volume absent. An unknown name, or a volume in use by
    /// another process, is a mistake in the command line; but a group's volume must have had metadata.
    fn of(remembered: &Volumes, name: &str, e: &Error) -> Result<Option<Absent>, Unserved> {
        let superblock = remembered.superblock(name).ok();
        let group = Absent::group_of(remembered, name, superblock.as_ref())?;
        let lost = match e {
            Error::Io { .. }
            | Error::Ceph(_)
            | Error::Shrunk { .. }
            | Error::Path { .. }
            | Error::Damaged { .. } => true,
            Error::NotFound(_) => group.is_some(),
            Error::Name(_)
            | Error::Exists(_)
            | Error::InGroup { .. }
            | Error::Taken { .. }
            | Error::TakenImage { .. }
            | Error::InUse(_)
            | Error::KeepsImage { .. }
            | Error::ImpossibleSize(_)
            | Error::Size(_) => false,
        };
        let remake = superblock.as_ref().and_then(remake);
        let cause = match e {
            Error::NotFound(_) => {
                format!("{} is missing", remembered.dir().join(format!("{name}.volume")).display())
            }
            other => other.to_string(),
        };
        let allow = match e {
            Error::Io { source, .. } => allow(source),
            // Whatever it is, nothing has been done to the image.
            Error::Ceph(_) => Some("Correct that"),
            Error::Shrunk { .. } if superblock.as_ref().is_some_and(|known| known.image.is_some()) => {
                Some("`rbd resize` restores its size, but not the data past its end: do that")
            }
            _ => None,
        };
        Ok(lost.then(|| Absent { name: name.to_owned(), cause, group, allow, remake }))
    }

    /// A volume whose file's file system has not answered. Nothing is asked of it.
    fn silent(
        remembered: &Volumes,
        superblock: &Superblock,
        name: &str,
        why: &str,
    ) -> Result<Absent, Unserved> {
        let group = Absent::group_of(remembered, name, Some(superblock))?;
        let cause = format!("cannot open {}: {why}", path_name(&superblock.path));
        let allow = Some("The volume may be intact: make its disk or server answer");
        Ok(Absent { name: name.to_owned(), cause, group, allow, remake: None })
    }

    /// The group that contains a volume.
    fn group_of(
        remembered: &Volumes,
        name: &str,
        superblock: Option<&Superblock>,
    ) -> Result<Option<String>, Unserved> {
        let state = remembered.dir().parent().unwrap_or(remembered.dir());
        let in_group = membership::group_of(state, name)?.filter(|in_group| in_group.is_sure);
        let marked = superblock.and_then(|superblock| superblock.membership.as_ref());
        Ok(in_group.map(|in_group| in_group.group).or_else(|| marked.map(|of| of.group.clone())))
    }

    /// What is wrong, and what to type.
    pub fn why(&self) -> String {
        let Absent { name, cause, group, allow, .. } = self;
        match (group, allow) {
            (Some(group), _) => self.why_in(group),
            (None, Some(allow)) => format!("{cause}. {allow}, and start the server again"),
            (None, None) => format!(
                "{cause}. Restore its file and start the server again; if it is lost, `weft volume remove {name}` forgets the volume"
            ),
        }
    }

    /// The same for a volume in this group, which can restore its content.
    pub fn why_in(&self, group: &str) -> String {
        let Absent { cause, remake, .. } = self;
        if let Some(allow) = self.allow {
            return format!("{cause}. {allow}, and start the server again: its group then continues");
        }
        let anew = match remake {
            Some(remake) => format!(
                "`{remake}` here creates an empty file, and after restarting the server `weft replica resolve {group} --keep there` \
                 here copies its content. Or `weft replica remove {group} --force` here ends replication"
            ),
            None => format!(
                "`weft replica remove {group} --force` here ends replication; then the volume can be created again and be \
                 replicated to from the other host"
            ),
        };
        format!(
            "{cause}. Restore its file and start the server again. If it is lost and the other side has its content: `weft replica \
             switch {group} --failover` there, unless it is the source already; {anew}"
        )
    }
}

/// How to make an existing file accessible; `None` if it does not exist.
fn allow(e: &io::Error) -> Option<&'static str> {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => None,
        ErrorKind::ReadOnlyFilesystem => Some(
            "Its file system is read-only: mount it for writing (if a disk error has made it read-only, the kernel's log shows the error)",
        ),
        ErrorKind::PermissionDenied => Some("Give the server's user permission to read and write it"),
        _ => Some(
            "The volume may be intact: fix the cause of the error (for a disk error, see the kernel's log, dmesg)",
        ),
    }
}

/// The command that creates an empty file in place of a lost one. Only if the old file's identity is known well
/// enough that the new one cannot be mistaken for it; enlarging an existing file would not create a different one.
fn remake(superblock: &Superblock) -> Option<String> {
    let known = superblock.file.is_some_and(|file| file.born_us.is_some());
    let gone = superblock.medium == Medium::File && superblock.path.try_exists().is_ok_and(|exists| !exists);
    (known && gone).then(|| {
        ShellCommand::new("truncate")
            .option("-s", superblock.size.to_string())
            .operand(&superblock.path)
            .to_string()
    })
}

/// The volumes of the command line.
pub(super) struct Opened {
    /// The served volumes.
    pub served: Vec<Served>,
    /// The others.
    pub absent: Vec<Absent>,
}

/// Why a volume does not grow.
#[derive(Debug, thiserror::Error)]
pub(super) enum GrowError {
    /// Its copies would not grow with it.
    #[error("{volume} is replicated: weft replica resize {volume} {size}, on the host of its source")]
    Replicated { volume: String, size: u64 },
    /// It is not on the command line, or could not be opened.
    #[error("volume {0:?} is not served here")]
    NotServed(String),
    /// Its file cannot grow.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// The served volumes, for growing them.
#[derive(Clone, Default)]
pub(super) struct Growths(Vec<(String, Growth)>);

impl Growths {
    /// Of these volumes.
    pub fn of(volumes: &[Served]) -> Growths {
        Growths(
            volumes.iter().map(|served| (served.volume.name.clone(), served.volume.growth.clone())).collect(),
        )
    }

    /// The current size of a served volume in bytes.
    pub fn size(&self, volume: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == volume).map(|(_, growth)| growth.size())
    }

    /// What is wrong with a served volume, if anything.
    pub async fn trouble(&self, volume: &str) -> Option<String> {
        let (_, growth) = self.0.iter().find(|(name, _)| name == volume)?;
        let growth = growth.clone();
        rt::blocking(move || growth.trouble()).await
    }

    /// Grows a volume; returns its new size.
    pub async fn grow(&self, volume: &str, size: u64) -> Result<u64, GrowError> {
        let found = self.0.iter().find(|(name, _)| name == volume);
        let growth = found.map(|(_, growth)| growth.clone());
        let growth = growth.ok_or_else(|| GrowError::NotServed(volume.to_owned()))?;
        Ok(rt::blocking(move || growth.grow(size)).await?.size)
    }
}

/// Opens the volumes on the command line. If this server replicates, their fronts stay closed until replication has
/// found those in no group; if not, none of them may be in a group. A volume whose file is lost is not served, and
/// the log says so.
pub(super) async fn open(plan: &Plan, pool: &Pool) -> Result<Opened, Unserved> {
    let config = plan.config();
    let replicates = config.replication.enabled;
    let mut opened = Opened { served: Vec::new(), absent: Vec::new() };
    if config.volumes.is_empty() {
        return Ok(opened);
    }
    if !replicates {
        membership::refuse_members(plan)?;
    }
    let remembered = volume::remembered(plan.state_dir().as_deref());
    let remembered = remembered.map_err(|e| Unserved::Remembered(e.to_string()))?;
    let mut images = open_images(plan, &remembered, pool).await;
    for asked in &config.volumes {
        let name = &asked.name;
        let opened_one = match images.remove(name) {
            Some(opened) => judged(&remembered, name, opened)?,
            None => open_one(plan, &remembered, name, pool)?,
        };
        let volume = match opened_one {
            Ok(volume) => volume,
            Err(absent) => {
                tracing::error!("volume {name} is not served: {}", absent.why());
                opened.absent.push(absent);
                continue;
            }
        };
        let front = Front::new(volume.block.geometry());
        if !replicates {
            if let Some(of) = volume.growth.superblock().membership {
                return Err(Unserved::Replicated { volume: name.clone(), group: of.group });
            }
            let accepted = accept(name, &volume.growth);
            accepted.map_err(|source| Unserved::Accept { volume: name.clone(), source })?;
            front.begin(volume.block.clone());
        }
        opened.served.push(Served { volume, front, read_only: asked.read_only });
    }
    Ok(opened)
}

/// Opens the volumes that are images, all at the same time: a cluster that does not answer, or another client's lock, is
/// waited for once.
async fn open_images(
    plan: &Plan,
    remembered: &Volumes,
    pool: &Pool,
) -> BTreeMap<String, Result<Volume, Error>> {
    let is_image = |name: &&String| remembered.superblock(name).is_ok_and(|known| known.image.is_some());
    let opens = plan.config().volumes.iter().map(|asked| &asked.name).filter(is_image).map(|name| {
        let (volumes, buffers, named) = (remembered.clone(), pool.clone(), name.clone());
        async move {
            let opened = rt::blocking(move || volumes.open(&named, &buffers)).await;
            (name.clone(), opened)
        }
    });
    join_all(opens).await.into_iter().collect()
}

/// Opens a volume, unless its files are lost or do not answer.
fn open_one(
    plan: &Plan,
    remembered: &Volumes,
    name: &str,
    pool: &Pool,
) -> Result<Result<Volume, Absent>, Unserved> {
    let superblock = remembered.superblock(name).ok();
    let silent = |superblock: &Superblock, why: &str| Absent::silent(remembered, superblock, name, why);
    // The memory of a volume without a file may take long to get.
    let superblock = superblock.filter(|superblock| superblock.path != Path::new(""));
    let opened = match &superblock {
        None => remembered.open(name, pool),
        Some(superblock) => {
            if let Some(why) = plan.looks.silence(&superblock.path) {
                return Ok(Err(silent(superblock, &why)?));
            }
            let (volumes, buffers, named) = (remembered.clone(), pool.clone(), name.to_owned());
            let open = move || volumes.open(&named, &buffers);
            match deadline::within(&superblock.path, LOOK_LIMIT, open) {
                Ok(opened) => opened,
                Err(why @ Unanswered::Late(_)) => return Ok(Err(silent(superblock, &why.to_string())?)),
                // Nobody else can open it.
                Err(Unanswered::Unasked(_)) => remembered.open(name, pool),
            }
        }
    };
    judged(remembered, name, opened)
}

/// A volume, or why it is not served, or why the server does not start.
fn judged(
    remembered: &Volumes,
    name: &str,
    opened: Result<Volume, Error>,
) -> Result<Result<Volume, Absent>, Unserved> {
    match opened {
        Ok(volume) => Ok(Ok(volume)),
        Err(e) => Ok(Err(Absent::of(remembered, name, &e)?.ok_or(Unserved::Open(e))?)),
    }
}

/// Accepts a volume in no group as it is. If its file was replaced, that is logged: somebody may have restored a
/// backup, or may not have intended it.
pub(super) fn accept(name: &str, growth: &Growth) -> Result<(), Error> {
    let Some(why) = growth.replaced() else { return Ok(()) };
    tracing::warn!("volume {name}: {why}; it is served as it is now");
    growth.accept()
}

/// Ends the use of volumes whose storage others may wait for, all at the same time. Blocks, for a limited time.
pub(super) fn end(volumes: &[Served]) {
    std::thread::scope(|scope| {
        for served in volumes {
            scope.spawn(|| served.volume.growth.end());
        }
    });
}

/// The served volumes in the ready line.
pub(super) fn ready(volumes: &[Served]) -> Vec<ReadyVolume> {
    let ready = |served: &Served| {
        let superblock = &served.volume.superblock;
        ReadyVolume {
            name: served.volume.name.clone(),
            kind: superblock.medium.name(),
            source: volume::place(superblock),
            size: superblock.size,
        }
    };
    volumes.iter().map(ready).collect()
}

/// The other volumes in the ready line.
pub(super) fn ready_absent(absent: &[Absent]) -> Vec<ReadyAbsent> {
    absent.iter().map(|absent| ReadyAbsent { name: absent.name.clone(), why: absent.why() }).collect()
}

/// The share that contains them as files; `None` if it is not configured.
pub(super) fn share(plan: &Plan, volumes: &[Served]) -> Option<Described> {
    let config = plan.shared_volumes()?;
    let shared = |served: &Served| ShareVolume {
        name: served.volume.name.clone(),
        block: served.block(),
        content: served.volume.content.clone(),
        read_only: served.read_only(),
    };
    let vfs = Vfs::new(Shelf::shelf(volumes.iter().map(shared).collect()));
    let source = match volumes.len() {
        1 => "1 volume".to_owned(),
        n => format!("{n} volumes"),
    };
    Some(shares::ruled(config, vfs, source, None))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use weft_store::volume::{Create, Storage};

    use super::*;

    #[test]
    fn a_file_that_may_not_be_written_is_not_taken_for_one_that_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let remembered = Volumes::at(dir.path().join("volumes"));
        let why = |source: io::Error, group: Option<&str>| {
            let e = Error::Io { doing: "cannot open", path: "/srv/v.volume".into(), source };
            let absent = Absent::of(&remembered, "v", &e).unwrap().unwrap();
            Absent { group: group.map(str::to_owned), ..absent }.why()
        };
        for group in [None, Some("db")] {
            let said = why(ErrorKind::ReadOnlyFilesystem.into(), group);
            assert!(said.contains("Its file system is read-only: mount it for writing"), "{said}");
            assert!(!said.contains("remove") && !said.contains("Restore its file"), "{said}");
            let said = why(ErrorKind::PermissionDenied.into(), group);
            assert!(said.contains("Give the server's user") && !said.contains("remove"), "{said}");
            // For a failing disk, and for a server without descriptors.
            for errno in [Errno::IO, Errno::MFILE] {
                let said = why(errno.into(), group);
                assert!(said.contains("may be intact") && said.contains("start the server again"), "{said}");
                assert!(!said.contains("remove") && !said.contains("Restore its file"), "{said}");
            }
            assert!(why(ErrorKind::NotFound.into(), group).contains("Restore its file"));
        }
    }

    /// A space in a folder's name broke the command that creates the file again.
    #[test]
    fn what_makes_a_lost_file_anew_can_be_typed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("it's mine");
        std::fs::create_dir(&folder).unwrap();
        let volumes = Volumes::at(dir.path());
        let create = Create {
            storage: Storage::File(folder.join("v")),
            size: Some(1 << 20),
            allocate: false,
            direct: false,
            id: [7; 16],
            created: 1_790_000_000,
        };
        volumes.create("v", &create).unwrap();
        let known = volumes.info("v").unwrap().superblock;
        std::fs::remove_file(&known.path).unwrap();
        // Some file systems do not report creation times.
        if let Some(command) = remake(&known) {
            assert!(std::process::Command::new("sh").args(["-c", &command]).status().unwrap().success());
            assert_eq!(known.path.metadata().unwrap().len(), 1 << 20, "{command}");
        }
    }

    #[test]
    fn the_size_that_a_status_tells_is_the_one_after_a_resize() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::at(dir.path());
        let ram = Create {
            storage: Storage::Ram,
            size: Some(1 << 20),
            allocate: false,
            direct: false,
            id: [7; 16],
            created: 1_790_000_000,
        };
        volumes.create("v", &ram).unwrap();
        let volume = volumes.open("v", &Pool::new(weft_machine::buf::MAX_BUF)).unwrap();
        let front = Front::new(volume.block.geometry());
        let growths = Growths::of(&[Served { volume, front, read_only: false }]);
        assert_eq!(growths.size("v"), Some(1 << 20));
        weft_machine::rt::block_on(growths.grow("v", 2 << 20)).unwrap().unwrap();
        assert_eq!((growths.size("v"), growths.size("w")), (Some(2 << 20), None));
    }
}
