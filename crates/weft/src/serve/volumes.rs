//! The volumes of the command line, open once for all who serve them.
//!
//! Owns: the open volumes, locked until the process ends. Does not: speak a protocol.

use std::sync::Arc;

use weft_machine::{Pool, rt};
use weft_replica::front::Front;
use weft_store::Vfs;
use weft_store::backend::ShareVolume;
use weft_store::backend::volumes::Volumes as Shelf;
use weft_store::block::Block;
use weft_store::vfs::Share;
use weft_store::volume::superblock::Superblock;
use weft_store::volume::{Error, Growth, Volume};

use super::replica;
use crate::args::Serve;
use crate::ready::{ReadyAbsent, ReadyVolume};
use crate::shares::{self, Described};
use crate::volume;

/// A volume that is open. Whoever serves it has its front: what is behind that is for who replicates it to say.
pub(super) struct Served {
    volume: Volume,
    front: Arc<Front>,
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
}

impl Absent {
    /// Where that is what an error says: a file is gone or of no use. A name that nobody knows, or a volume that another process has,
    /// is a mistake of the command line.
    fn of(name: &str, e: &Error) -> Option<Absent> {
        let lost = match e {
            Error::Io { .. } | Error::Shrunk { .. } | Error::Path { .. } | Error::Damaged { .. } => true,
            Error::Name(_) | Error::NotFound(_) | Error::Exists(_) | Error::InUse(_) | Error::Size(_) => {
                false
            }
        };
        lost.then(|| Absent { name: name.to_owned(), cause: e.to_string() })
    }

    /// What is wrong, and what to type.
    pub fn why(&self) -> String {
        let Absent { name, cause } = self;
        format!(
            "{cause}. Put its file back and start the server again; if it is lost, `weft volume remove {name}` forgets the volume"
        )
    }
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

    /// What is wrong with the files of a volume that is served, if anything.
    pub async fn astray(&self, volume: &str) -> Option<String> {
        let (_, growth) = self.0.iter().find(|(name, _)| name == volume)?;
        let growth = growth.clone();
        rt::blocking(move || growth.astray()).await
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
pub(super) fn open(args: &Serve, pool: &Pool) -> Result<Opened, String> {
    for (i, name) in args.volume.iter().enumerate() {
        if args.volume[..i].contains(name) {
            return Err(format!("volume {name:?} is named twice"));
        }
    }
    let mut opened = Opened { served: Vec::new(), absent: Vec::new() };
    if args.volume.is_empty() {
        return Ok(opened);
    }
    if !args.replica {
        replica::refuse_members(args)?;
    }
    let remembered = volume::remembered(args.state_dir.as_deref()).map_err(|e| e.to_string())?;
    for name in &args.volume {
        let volume = match remembered.open(name, pool) {
            Ok(volume) => volume,
            Err(e) => {
                let absent = Absent::of(name, &e).ok_or_else(|| e.to_string())?;
                tracing::error!("volume {name} is not served: {}", absent.why());
                opened.absent.push(absent);
                continue;
            }
        };
        let front = Front::new(volume.block.geometry());
        if !args.replica {
            accept(name, &volume.growth)?;
            front.begin(volume.block.clone());
        }
        opened.served.push(Served { volume, front });
    }
    Ok(opened)
}

/// Takes a volume that is in no group as it is. Where its file is another one that is said: somebody may have put a backup in its
/// place, or not have meant to.
pub(super) fn accept(name: &str, growth: &Growth) -> Result<(), String> {
    let Some(why) = growth.replaced() else { return Ok(()) };
    tracing::warn!("volume {name}: {why}; it is served as it is now");
    growth.accept().map_err(|e| format!("volume {name}: {e}"))
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
pub(super) fn share(args: &Serve, volumes: &[Served]) -> Result<Option<Described>, String> {
    let Some(name) = &args.share_volumes else { return Ok(None) };
    shares::check_name(name).map_err(|e| format!("--share-volumes: {e}"))?;
    let shared = |served: &Served| ShareVolume {
        name: served.volume.name.clone(),
        block: served.block(),
        content: served.volume.content.clone(),
        read_only: args.nbd_read_only,
    };
    let vfs = Vfs::new(Shelf::shelf(volumes.iter().map(shared).collect()));
    let source = match volumes.len() {
        1 => "1 volume".to_owned(),
        n => format!("{n} volumes"),
    };
    Ok(Some(Described { share: Share::new(name.as_str(), vfs), source }))
}
