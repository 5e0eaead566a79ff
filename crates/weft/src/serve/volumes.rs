//! The volumes of the command line, open once for all who serve them.
//!
//! Owns: the open volumes, locked until the process ends. Does not: speak a protocol.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use weft_machine::{Pool, rt};
use weft_replica::front::Front;
use weft_store::Vfs;
use weft_store::backend::ShareVolume;
use weft_store::backend::volumes::Volumes as Shelf;
use weft_store::block::Block;
use weft_store::volume::superblock::Superblock;
use weft_store::volume::{Error, Growth, Volume, Volumes};

use super::error::Unserved;
use super::replica;
use crate::config::Plan;
use crate::out::ShellCommand;
use crate::ready::{ReadyAbsent, ReadyVolume};
use crate::shares::{self, Described};
use crate::volume;

/// A volume that is open. Whoever serves it has its front: what is behind that is for who replicates it to say.
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

    /// What it was when it was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.volume.superblock
    }

    /// What its users read and write.
    pub fn block(&self) -> Arc<dyn Block> {
        self.front.clone()
    }

    /// Whether its users may not change it.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// What stands before it, and the volume itself: for who replicates it, and nobody else.
    pub fn behind(&self) -> (&Arc<Front>, &Volume) {
        (&self.front, &self.volume)
    }
}

/// A volume of the command line that cannot be opened: the server goes on without it.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    /// Its name.
    pub name: String,
    /// What is wrong with its files.
    pub cause: String,
    /// The group that it is in.
    group: Option<String>,
    /// What opens the file that is there, where it is not gone: nothing of it is to be put back, or given up, then.
    allow: Option<&'static str>,
    /// Makes an empty file in place of one that is gone, where its group would not take that for the old one.
    remake: Option<String>,
}

impl Absent {
    /// Where that is what an error says: a file is gone or of no use. A name that nobody knows, or a volume that another process has,
    /// is a mistake of the command line; but the metadata of a volume that is in a group were there.
    fn of(remembered: &Volumes, name: &str, e: &Error) -> Result<Option<Absent>, Unserved> {
        let superblock = remembered.info(name).ok().map(|known| known.superblock);
        let state = remembered.dir().parent().unwrap_or(remembered.dir());
        let in_group = replica::config::group_of(state, name)
            .map_err(Unserved::Groups)?
            .filter(|in_group| in_group.is_sure);
        let marked = superblock.as_ref().and_then(|superblock| superblock.membership.as_ref());
        let group = in_group.map(|in_group| in_group.group).or_else(|| marked.map(|of| of.group.clone()));
        let lost = match e {
            Error::Io { .. } | Error::Shrunk { .. } | Error::Path { .. } | Error::Damaged { .. } => true,
            Error::NotFound(_) => group.is_some(),
            Error::Name(_)
            | Error::Exists(_)
            | Error::InGroup { .. }
            | Error::Taken { .. }
            | Error::InUse(_)
            | Error::Size(_) => false,
        };
        let remake = superblock.as_ref().and_then(remake);
        let cause = match e {
            Error::NotFound(_) => {
                format!("{} is not there", remembered.dir().join(format!("{name}.volume")).display())
            }
            other => other.to_string(),
        };
        let allow = match e {
            Error::Io { source, .. } => allow(source),
            _ => None,
        };
        Ok(lost.then(|| Absent { name: name.to_owned(), cause, group, allow, remake }))
    }

    /// What is wrong, and what to type.
    pub fn why(&self) -> String {
        let Absent { name, cause, group, allow, .. } = self;
        match (group, allow) {
            (Some(group), _) => self.why_in(group),
            (None, Some(allow)) => format!("{cause}. {allow}, and start the server again"),
            (None, None) => format!(
                "{cause}. Put its file back and start the server again; if it is lost, `weft volume remove {name}` forgets the volume"
            ),
        }
    }

    /// The same of a volume that is in this group: it gets its content through that.
    pub fn why_in(&self, group: &str) -> String {
        let Absent { cause, remake, .. } = self;
        if let Some(allow) = self.allow {
            return format!("{cause}. {allow}, and start the server again: its group goes on from there");
        }
        let anew = match remake {
            Some(remake) => format!(
                "`{remake}` here makes an empty file, and after another start of the server `weft replica resolve {group} --keep there` \
                 here copies what it held. Or `weft replica remove {group} --force` here ends replication"
            ),
            None => format!(
                "`weft replica remove {group} --force` here ends replication, after which the volume can be created anew, and be \
                 replicated to from there"
            ),
        };
        format!(
            "{cause}. Put its file back and start the server again. If it is lost, and the other side has what it held: `weft replica \
             switch {group} --failover` there, unless it is the source already; {anew}"
        )
    }
}

/// What has a file opened that is there; `None` where it is not.
fn allow(e: &io::Error) -> Option<&'static str> {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => None,
        ErrorKind::ReadOnlyFilesystem => Some(
            "Its file system is read-only: mount it for writing (where an error of the disk has made it so, the kernel's log says which)",
        ),
        ErrorKind::PermissionDenied => Some("Let the user that the server runs as read and write it"),
        _ => Some(
            "The volume may be whole: mend what the error says (where it is the disk, the log of the kernel (dmesg) says more)",
        ),
    }
}

/// How an empty file is made in place of one that is gone. Only where the old one is known so well that the new one cannot be taken
/// for it; where a file is there, to make that longer would be no other file.
fn remake(superblock: &Superblock) -> Option<String> {
    let known = superblock.file.is_some_and(|file| file.born_us.is_some());
    let gone = superblock.path.try_exists().is_ok_and(|exists| !exists);
    (known && gone).then(|| {
        ShellCommand::new("truncate")
            .option("-s", superblock.size.to_string())
            .operand(&superblock.path)
            .to_string()
    })
}

/// The volumes of the command line.
pub(super) struct Opened {
    /// Those that are served.
    pub served: Vec<Served>,
    /// The others.
    pub absent: Vec<Absent>,
}

/// The volumes that are served, as far as they can grow.
#[derive(Clone, Default)]
pub(super) struct Growths(Vec<(String, Growth)>);

impl Growths {
    /// Of these.
    pub fn of(volumes: &[Served]) -> Growths {
        Growths(
            volumes.iter().map(|served| (served.volume.name.clone(), served.volume.growth.clone())).collect(),
        )
    }

    /// Bytes of a volume that is served, as it is now.
    pub fn size(&self, volume: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == volume).map(|(_, growth)| growth.size())
    }

    /// What is wrong with a volume that is served, if anything.
    pub async fn trouble(&self, volume: &str) -> Option<String> {
        let (_, growth) = self.0.iter().find(|(name, _)| name == volume)?;
        let growth = growth.clone();
        rt::blocking(move || growth.trouble()).await
    }

    /// Makes one longer; its size then.
    pub async fn grow(&self, volume: &str, size: u64) -> Result<u64, String> {
        let found = self.0.iter().find(|(name, _)| name == volume);
        let growth = found.map(|(_, growth)| growth.clone());
        let growth = growth.ok_or_else(|| format!("volume {volume:?} is not served here"))?;
        let grown = rt::blocking(move || growth.grow(size)).await;
        grown.map(|superblock| superblock.size).map_err(|e| e.to_string())
    }
}

/// Opens the volumes of the command line. Where this server replicates, their fronts are closed until it has said which of them
/// are in no group; where it does not, none of them may be. One whose file is gone is not served, and the log says so.
pub(super) fn open(plan: &Plan, pool: &Pool) -> Result<Opened, Unserved> {
    let config = plan.config();
    let replicates = config.replication.enabled;
    let mut opened = Opened { served: Vec::new(), absent: Vec::new() };
    if config.volumes.is_empty() {
        return Ok(opened);
    }
    if !replicates {
        replica::refuse_members(plan)?;
    }
    let remembered = volume::remembered(config.state_dir.as_deref());
    let remembered = remembered.map_err(|e| Unserved::Remembered(e.to_string()))?;
    for asked in &config.volumes {
        let name = &asked.name;
        let volume = match remembered.open(name, pool) {
            Ok(volume) => volume,
            Err(e) => {
                let absent = Absent::of(&remembered, name, &e)?.ok_or(Unserved::Open(e))?;
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
            accept(name, &volume.growth)?;
            front.begin(volume.block.clone());
        }
        opened.served.push(Served { volume, front, read_only: asked.read_only });
    }
    Ok(opened)
}

/// Takes a volume that is in no group as it is. Where its file is another one that is said: somebody may have put a backup in its
/// place, or not have meant to.
pub(super) fn accept(name: &str, growth: &Growth) -> Result<(), Unserved> {
    let Some(why) = growth.replaced() else { return Ok(()) };
    tracing::warn!("volume {name}: {why}; it is served as it is now");
    growth.accept().map_err(|source| Unserved::Accept { volume: name.to_owned(), source })
}

/// What `ready` says of them.
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

/// What `ready` says of those that are not served.
pub(super) fn ready_absent(absent: &[Absent]) -> Vec<ReadyAbsent> {
    absent.iter().map(|absent| ReadyAbsent { name: absent.name.clone(), why: absent.why() }).collect()
}

/// The share in which they are files; `None` where none is wanted.
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
    Some(shares::ruled(config, vfs, source))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use weft_store::volume::{Create, Place};

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
            assert!(!said.contains("remove") && !said.contains("Put its file back"), "{said}");
            let said = why(ErrorKind::PermissionDenied.into(), group);
            assert!(said.contains("Let the user") && !said.contains("remove"), "{said}");
            // Of a disk that fails, and of a server without descriptors.
            for errno in [Errno::IO, Errno::MFILE] {
                let said = why(errno.into(), group);
                assert!(said.contains("may be whole") && said.contains("start the server again"), "{said}");
                assert!(!said.contains("remove") && !said.contains("Put its file back"), "{said}");
            }
            assert!(why(ErrorKind::NotFound.into(), group).contains("Put its file back"));
        }
    }

    /// A folder's name with a space ended the command that makes the file anew.
    #[test]
    fn what_makes_a_lost_file_anew_can_be_typed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("it's mine");
        std::fs::create_dir(&folder).unwrap();
        let volumes = Volumes::at(dir.path());
        let create = Create {
            place: Place::File(folder.join("v")),
            size: Some(1 << 20),
            allocate: false,
            direct: false,
            id: [7; 16],
            created: 1_790_000_000,
        };
        volumes.create("v", &create).unwrap();
        let known = volumes.info("v").unwrap().superblock;
        std::fs::remove_file(&known.path).unwrap();
        // Some file systems do not tell when a file was born.
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
            place: Place::Ram,
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
