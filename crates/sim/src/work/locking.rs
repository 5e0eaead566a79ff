//! Byte-range locks of one file: a worker locks, waits, unlocks and closes in an order that the seed decides.
//!
//! [`crate::locks`] judges what is granted. A client of NFSv3 does not lock.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use weft_machine::rt;
use weft_nfs::client as nfs;
use weft_smb::client as smb;

use super::{Error, File, Kind, Session, Worker, below, ends, in_time};
use crate::locks::Claim;
use crate::model::Failed;
use crate::world::{World, tell};

/// The file whose ranges are locked.
const LOCKED: &str = "locked";
/// Bytes of a block; ranges begin and end at blocks.
const BLOCK_BYTES: u64 = 100;
/// Blocks that are locked: few, so that ranges meet.
const BLOCKS: usize = 6;
/// Longest range in blocks.
const LONGEST: usize = 3;
/// Every byte, for both protocols.
const WHOLE: Range<u64> = 0..u64::MAX;

/// The file of locks, open, and the ranges that its worker has locked.
pub(super) struct LockFile {
    file: File,
    locked: Vec<Range<u64>>,
}

/// How a request for a lock ended.
enum Outcome {
    Granted,
    /// Another lock is in the way.
    Denied,
    /// The client says that the server has lost its locks.
    Lost,
    Failed(Error),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Granted => f.write_str("granted"),
            Outcome::Denied => f.write_str("denied"),
            Outcome::Lost => f.write_str("its locks are lost"),
            Outcome::Failed(e) => write!(f, "{e}"),
        }
    }
}

impl From<Result<(), smb::Error>> for Outcome {
    fn from(answer: Result<(), smb::Error>) -> Outcome {
        match answer {
            Ok(()) => Outcome::Granted,
            Err(e) if e.is_locked() => Outcome::Denied,
            Err(e) => Outcome::Failed(e.into()),
        }
    }
}

impl From<Result<(), nfs::Error>> for Outcome {
    fn from(answer: Result<(), nfs::Error>) -> Outcome {
        match answer {
            Ok(()) => Outcome::Granted,
            Err(nfs::Error::LocksLost) => Outcome::Lost,
            Err(e) if e.is_locked() => Outcome::Denied,
            Err(e) => Outcome::Failed(e.into()),
        }
    }
}

impl File {
    async fn lock(&self, range: &Range<u64>, exclusive: bool, waits: bool) -> Outcome {
        let (offset, len) = (range.start, range.end - range.start);
        match self {
            File::Smb(file) => {
                use smb::{LockKind, OnConflict};
                let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
                let on_conflict = if waits { OnConflict::Wait } else { OnConflict::Fail };
                file.lock(smb::ByteRange { offset, len }, kind, on_conflict).await.into()
            }
            File::Nfs(file) => {
                use nfs::{LockKind, OnConflict};
                let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
                let on_conflict = if waits { OnConflict::Wait } else { OnConflict::Fail };
                file.lock(nfs::ByteRange { offset, len }, kind, on_conflict).await.into()
            }
        }
    }

    async fn unlock(&self, range: &Range<u64>) -> Outcome {
        let (offset, len) = (range.start, range.end - range.start);
        match self {
            File::Smb(file) => file.unlock(smb::ByteRange { offset, len }).await.into(),
            File::Nfs(file) => file.unlock(nfs::ByteRange { offset, len }).await.into(),
        }
    }
}

/// Some blocks.
fn blocks() -> Range<u64> {
    let start = below(BLOCKS);
    let end = (start + 1 + below(LONGEST)).min(BLOCKS);
    start as u64 * BLOCK_BYTES..end as u64 * BLOCK_BYTES
}

impl Worker {
    /// Opens the file of locks, locks or unlocks a range, or closes the file.
    pub(super) async fn use_locks(&mut self, world: &World) {
        let Some(locks) = &self.locks else { return self.open_locks(world).await };
        match below(8) {
            0 => self.close_locks(world).await,
            1..4 if !locks.locked.is_empty() => {
                let which = below(locks.locked.len());
                self.unlock(world, which).await;
            }
            // Some do not wait, and some give up soon.
            4 => {
                self.lock(world, blocks(), below(2) == 0, Some(Duration::from_secs(1 + below(5) as u64)))
                    .await
            }
            _ => self.lock(world, blocks(), below(2) == 0, None).await,
        }
    }

    async fn open_locks(&mut self, world: &World) {
        let opened = match &self.session {
            Some(Session::Smb(_, tree)) => {
                ends("CREATE", tree.open(LOCKED, smb::OpenOptions::create())).await.map(File::Smb)
            }
            Some(Session::Nfs4(mount)) => {
                let set = nfs::SetAttributes::default();
                ends("OPEN", mount.create(LOCKED, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs3(_)) | None => return,
        };
        self.told(world, format_args!("opens {LOCKED}"), &opened);
        match opened {
            Ok(file) => self.locks = Some(LockFile { file, locked: Vec::new() }),
            failed => self.judge_session(world, &failed),
        }
    }

    /// Closes the file of locks, which releases them.
    pub async fn close_locks(&mut self, world: &World) {
        let Some(locks) = self.locks.take() else { return };
        world.locks.released_all(self.number);
        tell!(world, "{self} closes {LOCKED}...");
        let closed = match locks.file {
            File::Smb(file) => ends("CLOSE", file.close()).await,
            File::Nfs(file) => ends("CLOSE", file.close()).await,
        };
        self.told(world, format_args!("closes {LOCKED}"), &closed);
        self.judge_session(world, &closed);
    }

    /// Locks a range; with `patience` it waits for that long.
    async fn lock(&mut self, world: &World, range: Range<u64>, exclusive: bool, patience: Option<Duration>) {
        let Some(locks) = &self.locks else { return };
        let claim = Claim { by: self.number, protocol: self.protocol(), range: range.clone(), exclusive };
        let kind = if exclusive { "exclusively" } else { "with others" };
        tell!(world, "{self} locks {range:?} {kind}, waits for {patience:?}...");
        world.locks.requested(&claim);
        let losses = world.locks.losses();
        let locking = locks.file.lock(&range, exclusive, patience.is_some());
        let outcome = match patience {
            Some(patience) => rt::timeout(patience, locking).await.ok(),
            None => Some(in_time("LOCK", locking).await),
        };
        let Some(outcome) = outcome else {
            tell!(world, "{self} waits no longer");
            // The server may have granted the lock in this moment.
            return self.close_locks(world).await;
        };
        tell!(world, "{self} locks {range:?}: {outcome}");
        match outcome {
            Outcome::Granted => {
                match world.locks.granted(claim, losses) {
                    Ok(claimed) => tell!(world, "{self} claims {range:?}: {claimed}"),
                    Err(why) => panic!("{self}: {why}"),
                }
                world.answered.set(world.answered.get() + 1);
                self.locks.iter_mut().for_each(|locks| locks.locked.push(range.clone()));
            }
            Outcome::Denied => {}
            Outcome::Lost => self.locks_lost(world).await,
            Outcome::Failed(e) => self.judge_session::<()>(world, &Err(e)),
        }
    }

    async fn unlock(&mut self, world: &World, which: usize) {
        let Some(locks) = &mut self.locks else { return };
        let range = locks.locked.swap_remove(which);
        let (losses, protocol) = (world.locks.losses(), self.protocol());
        let Some(locks) = &self.locks else { return };
        tell!(world, "{self} unlocks {range:?}...");
        let claimed = world.locks.released(self.number, protocol, &range);
        let outcome = in_time("UNLOCK", locks.file.unlock(&range)).await;
        tell!(world, "{self} unlocks {range:?}: {outcome}");
        match outcome {
            Outcome::Granted => world.answered.set(world.answered.get() + 1),
            Outcome::Denied => panic!("{self}: an unlock conflicts with a lock"),
            Outcome::Lost | Outcome::Failed(Error(Failed::Refused, _))
                if claimed && world.locks.losses() == losses =>
            {
                panic!("{self} had locked {range:?}, and the server was there: {outcome}")
            }
            Outcome::Lost => self.locks_lost(world).await,
            Outcome::Failed(e) => self.judge_session::<()>(world, &Err(e)),
        }
    }

    /// The client has found out that the server has lost its locks.
    async fn locks_lost(&mut self, world: &World) {
        assert!(!world.locks.has_claims(self.number), "{self} has lost its locks, and the server was there");
        self.close_locks(world).await;
    }

    /// Locks the whole file, when nothing fails any more and nobody else has locked anything.
    pub async fn lock_whole(&mut self, world: &World) {
        if matches!(self.kind, Kind::Nfs3) {
            return;
        }
        for attempt in 0.. {
            assert!(attempt < 4, "{self} cannot lock {LOCKED}, and nothing fails any more");
            if self.session.is_none() {
                // A lost session is made anew by the next open.
                self.open(world, 0).await;
            }
            self.open_locks(world).await;
            let Some(locks) = &self.locks else { continue };
            let losses = world.locks.losses();
            let (by, protocol) = (self.number, self.protocol());
            let claim = Claim { by, protocol, range: WHOLE, exclusive: true };
            // Others may have left locks behind; the server releases them when it finds out that they are gone.
            let locking = locks.file.lock(&WHOLE, true, true);
            let outcome = in_time("a LOCK of a file that nobody has locked", locking).await;
            tell!(world, "{self} locks the whole file: {outcome}");
            match outcome {
                Outcome::Granted => {
                    if let Err(why) = world.locks.granted(claim, losses) {
                        panic!("{self}: {why}");
                    }
                    world.answered.set(world.answered.get() + 1);
                    return self.close_locks(world).await;
                }
                Outcome::Failed(e) => self.judge_session::<()>(world, &Err(e)),
                Outcome::Denied | Outcome::Lost => self.close_locks(world).await,
            }
        }
    }
}
