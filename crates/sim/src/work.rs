//! The clients: a worker holds a file open by one protocol, and writes, reads and flushes it in an order that the seed decides.
//!
//! Each worker writes its own sectors, because an NFS client repeats writes that a server has lost, and relies on nobody else writing
//! there meanwhile. It writes no sector twice between two flushes, because repeated writes arrive in their old order. All workers read
//! everything. [`crate::model`] judges what they see. `locking` has the byte-range locks, `leasing` the
//! leases, `channels` the connections of SMB that break.

mod alone;
mod channels;
mod leasing;
mod locking;
mod names;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::with_rng;
use weft_machine::{Pool, Stream, rt};
use weft_nfs::client as nfs;
use weft_smb::client as smb;
use weft_transport::{Channel, record};

use self::leasing::LeasedFile;
use self::locking::LockFile;
use crate::disk::SECTOR;
use crate::fragile::Fragile;
use crate::model::{Failed, Protocol};
use crate::world::{CALL_LIMIT, NFS, PASSWORD, SHARE, USER, World, tell};

/// Files that workers share.
const FILES: usize = 3;
/// Sectors of each that a worker writes.
const OWN_SECTORS: usize = 8;
const WORKERS: usize = 4;
/// Names that each worker makes, renames and removes.
const OWN_NAMES: usize = 3;
const ALL_NAMES: usize = OWN_NAMES * WORKERS;
/// The file that is opened so that nobody else writes.
const ALONE: &str = "alone";
/// What a client waits before it tries to connect again.
const AGAIN: Duration = Duration::from_secs(2);
/// Attempts of one connection; a server is away for seconds.
const ATTEMPTS: usize = 60;

/// One client.
pub(crate) struct Worker {
    number: usize,
    kind: Kind,
    pool: Pool,
    session: Option<Session>,
    /// The connections of a session of SMB.
    channels: Rc<RefCell<Vec<Rc<Fragile>>>>,
    file: Option<(usize, u64, File)>,
    opens: u64,
    /// Sectors written since the last flush that was answered.
    dirty: BTreeSet<usize>,
    /// The file that it has open so that nobody else writes.
    alone: Option<File>,
    /// The file that it has open to lock ranges of it.
    locks: Option<LockFile>,
    /// The file that it has open with a lease.
    leased: Option<LeasedFile>,
    /// The same as a persistent handle, once its session is lost.
    lost: Option<alone::Lost>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Smb { sealed: bool },
    Nfs3,
    Nfs4,
}

enum Session {
    Smb(smb::Session, smb::Tree),
    Nfs3(nfs::Mount),
    Nfs4(nfs::v4::Mount),
}

enum File {
    Smb(smb::File),
    Nfs(Box<nfs::File>),
}

impl File {
    async fn close(self) -> Result<(), Error> {
        match self {
            File::Smb(file) => ends("CLOSE", file.close()).await,
            File::Nfs(file) => ends("CLOSE", file.close()).await,
        }
    }
}

/// Why a call failed, and what was said.
struct Error(Failed, String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0, self.1)
    }
}

impl From<smb::Error> for Error {
    fn from(e: smb::Error) -> Error {
        Error(if e.status().is_some() { Failed::Refused } else { Failed::Unknown }, e.to_string())
    }
}

impl From<nfs::Error> for Error {
    fn from(e: nfs::Error) -> Error {
        let refused = matches!(e, nfs::Error::Status(_) | nfs::Error::Status4(_) | nfs::Error::Locked(_));
        Error(if refused { Failed::Refused } else { Failed::Unknown }, e.to_string())
    }
}

impl From<weft_transport::Error> for Error {
    fn from(e: weft_transport::Error) -> Error {
        Error(Failed::Unknown, e.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error(Failed::Unknown, e.to_string())
    }
}

/// The workers of a world.
pub(crate) fn workers() -> Vec<Worker> {
    let kind = |number| match number % 2 {
        0 => Kind::Smb { sealed: below(2) == 0 },
        _ if below(2) == 0 => Kind::Nfs3,
        _ => Kind::Nfs4,
    };
    let worker = |number| Worker {
        number,
        kind: kind(number),
        pool: Pool::new(32 << 20),
        session: None,
        channels: Rc::default(),
        file: None,
        opens: 0,
        dirty: BTreeSet::new(),
        alone: None,
        locks: None,
        leased: None,
        lost: None,
    };
    (0..WORKERS).map(worker).collect()
}

fn below(n: usize) -> usize {
    with_rng(|rng| rng.below(n))
}

/// A call ends, whatever happens.
async fn ends<T, E: Into<Error>>(what: &str, call: impl Future<Output = Result<T, E>>) -> Result<T, Error> {
    in_time(what, call).await.map_err(Into::into)
}

async fn in_time<T>(what: &str, call: impl Future<Output = T>) -> T {
    match rt::timeout(CALL_LIMIT, call).await {
        Ok(done) => done,
        Err(_) => panic!("{what} was never answered"),
    }
}

impl Worker {
    fn protocol(&self) -> Protocol {
        match self.kind {
            Kind::Smb { .. } => Protocol::Smb,
            Kind::Nfs3 | Kind::Nfs4 => Protocol::Nfs,
        }
    }

    /// One thing that a client does.
    pub async fn step(&mut self, world: &Rc<World>) {
        let nanos = with_rng(|rng| rng.within(0..=200_000_000));
        rt::sleep(Duration::from_nanos(nanos)).await;
        if self.file.is_none() {
            let file = below(FILES);
            return self.open(world, file).await;
        }
        match below(29) {
            0..4 => self.write(world).await,
            4..7 => {
                self.read(world, None).await;
            }
            7..9 => self.flush(world).await,
            9 => self.close(world).await,
            10..12 => self.be_alone(world).await,
            12..15 => self.change_name(world).await,
            15..17 => self.rename(world).await,
            17..19 => self.look_at_another(world).await,
            19..24 => self.use_locks(world).await,
            24..27 => self.use_leases(world).await,
            _ => self.change_channels(world).await,
        }
    }

    /// Reads all of every file.
    pub async fn check(&mut self, world: &World) {
        self.keep_channels();
        for file in 0..FILES {
            // Its session may have been lost long ago, which the first call tells.
            for attempt in 0.. {
                assert!(attempt < 4, "{self} cannot read f{file}, and nothing fails any more");
                self.close(world).await;
                self.open(world, file).await;
                if self.read(world, Some(0..OWN_SECTORS * WORKERS)).await {
                    break;
                }
            }
        }
        self.read_alone(world).await;
        self.list(world).await;
        if self.number < 2 {
            // One by each protocol.
            self.look_at_all(world).await;
        }
    }

    /// Leaves the server as a client does that has done its work.
    pub async fn end(mut self, world: &World) {
        self.close(world).await;
        self.close_locks(world).await;
        self.close_leased(world).await;
        self.no_longer_alone(world).await;
        let ended = match self.session.take() {
            Some(Session::Smb(session, _)) => ends("LOGOFF", session.logoff()).await,
            Some(Session::Nfs4(mount)) => ends("the end of a session", async { mount.end().await }).await,
            Some(Session::Nfs3(mount)) => {
                mount.close();
                Ok(())
            }
            None => Ok(()),
        };
        self.told(world, "leaves", &ended);
    }

    fn told<T>(&self, world: &World, what: impl fmt::Display, outcome: &Result<T, Error>) {
        match outcome {
            Ok(_) => {
                world.answered.set(world.answered.get() + 1);
                world.alone.heard(self.number, rt::now());
                tell!(world, "{self} {what}");
            }
            Err(e) => tell!(world, "{self} {what}: {e}"),
        }
    }

    async fn connect(&mut self, world: &World) -> Result<(), Error> {
        let pool = self.pool.clone();
        self.session = Some(match self.kind {
            Kind::Smb { sealed } => {
                let channel = self.dial_smb().await?;
                self.channels.replace(vec![channel.clone()]);
                let encryption = if sealed { smb::Wish::Required } else { smb::Wish::IfRequired };
                let options = smb::Options { encryption, ..smb::Options::new("weft", USER, PASSWORD, pool) };
                let session = match self.session_before() {
                    Some(before) => ends("a log-on", before.again(channel)).await?,
                    None => ends("a log-on", smb::Session::connect(channel, options)).await?,
                };
                let tree = ends("TREE_CONNECT", session.tree(SHARE)).await?;
                self.reopen(world, &session, &tree).await?;
                Session::Smb(session, tree)
            }
            Kind::Nfs3 => {
                let dial = dial(pool.clone());
                let channel = dial().await?;
                let options = nfs::Options { credential: credential(), pool };
                let mount =
                    ends("MOUNT", nfs::Mount::connect(channel, &format!("/{SHARE}"), options)).await?;
                Session::Nfs3(mount.keep_connected(dial, 1))
            }
            Kind::Nfs4 => {
                let dial = dial(pool.clone());
                let channel = dial().await?;
                let options = nfs::Options { credential: credential(), pool };
                let path = format!("/{SHARE}");
                let mount = nfs::v4::Mount::connect(channel, &path, options, Some((dial, 1)));
                Session::Nfs4(ends("EXCHANGE_ID", mount).await?)
            }
        });
        self.told(world, "connects", &Ok(()));
        Ok(())
    }

    async fn open(&mut self, world: &World, file: usize) {
        if self.session.is_none() {
            for _ in 0..ATTEMPTS {
                match self.connect(world).await {
                    Ok(()) if below(2) == 0 => {
                        self.add_channel(world).await;
                        break;
                    }
                    Ok(()) => break,
                    failed => self.told(world, "connects", &failed),
                }
                self.session = None;
                rt::sleep(AGAIN).await;
            }
        }
        let name = format!("f{file}");
        let set = nfs::SetAttributes::default();
        let opened = match &self.session {
            Some(Session::Smb(_, tree)) => {
                ends("CREATE", tree.open(&name, smb::OpenOptions::create())).await.map(File::Smb)
            }
            Some(Session::Nfs3(mount)) => {
                ends("CREATE", mount.create(&name, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            Some(Session::Nfs4(mount)) => {
                ends("OPEN", mount.create(&name, set)).await.map(|file| File::Nfs(Box::new(file)))
            }
            None => panic!("{self} cannot connect to a server that runs"),
        };
        self.told(world, format_args!("opens {name}"), &opened);
        match opened {
            Ok(opened) => {
                self.opens += 1;
                self.file = Some((file, self.opens * 100 + self.number as u64, opened));
            }
            Err(_) => self.lose(world),
        }
        self.dirty.clear();
    }

    /// What it has written by its open and not flushed is not written again.
    fn forget(&self, world: &World) {
        if let Some((_, open, _)) = &self.file {
            world.model.forgotten((*open, self.protocol()));
        }
    }

    /// Nothing of its session is left, except a persistent handle.
    fn lose(&mut self, world: &World) {
        world.locks.released_all(self.number);
        world.leases.released_all(self.number);
        self.forget(world);
        (self.file, self.locks, self.leased) = (None, None, None);
        self.leave_alone(world);
        self.dirty.clear();
    }

    async fn close(&mut self, world: &World) {
        let begun = world.model.moment();
        let Some((file, number, open)) = self.file.take() else { return };
        let by = (number, self.protocol());
        let closed = open.close().await;
        self.told(world, format_args!("closes f{file}"), &closed);
        if closed.is_ok() && by.1 == Protocol::Nfs {
            // It has committed what it wrote.
            world.model.committed(file, begun, by);
        }
        world.model.forgotten(by);
        self.judge_session(world, &closed);
        self.dirty.clear();
    }

    /// A client that cannot go on connects anew.
    fn judge_session<T>(&mut self, world: &World, outcome: &Result<T, Error>) {
        let lost = match (outcome, self.protocol()) {
            (Ok(_), _) => false,
            (Err(Error(failed, _)), Protocol::Smb) => *failed == Failed::Unknown,
            // A server that was started again does not know what it gave out.
            (Err(_), Protocol::Nfs) => true,
        };
        if lost {
            self.lose(world);
        }
    }

    async fn write(&mut self, world: &World) {
        let Some((file, open, opened)) = &self.file else { return };
        let own = self.number * OWN_SECTORS;
        let start = own + below(OWN_SECTORS);
        let end = (start + 1 + below(4)).min(own + OWN_SECTORS);
        if (start..end).any(|sector| self.dirty.contains(&sector)) {
            return self.flush(world).await;
        }
        let by = (*open, self.protocol());
        let writing = world.model.begin_write(*file, start..end, by, world.disk.failures());
        let tag = writing.tag;
        let data = Bytes::from(tag.to_le_bytes().repeat((end - start) * SECTOR / 8));
        let what = format!("writes {tag} to f{file} {start}..{end}");
        tell!(world, "{self} {what}...");
        let at = (start * SECTOR) as u64;
        let written = match opened {
            File::Smb(file) => ends("WRITE", file.write(at, data)).await,
            File::Nfs(file) => ends("WRITE", file.write(at, data)).await,
        };
        world.model.end_write(writing, written.as_ref().map(drop).map_err(|e| e.0));
        self.dirty.extend(start..end);
        self.told(world, what, &written);
        self.judge_session(world, &written);
    }

    /// Whether it was answered.
    async fn read(&mut self, world: &World, sectors: Option<Range<usize>>) -> bool {
        let Some((file, _, opened)) = &self.file else { return false };
        let file = *file;
        let sectors = sectors.unwrap_or_else(|| {
            let start = below(OWN_SECTORS * WORKERS);
            start..(start + 1 + below(12)).min(OWN_SECTORS * WORKERS)
        });
        let begun = world.model.moment();
        let (at, len) = ((sectors.start * SECTOR) as u64, sectors.len() * SECTOR);
        let read = match opened {
            File::Smb(file) => ends("READ", file.read(at, len)).await,
            File::Nfs(file) => ends("READ", file.read(at, len)).await,
        };
        self.told(world, format_args!("reads f{file} {sectors:?}"), &read);
        if let Ok(data) = &read {
            for (index, sector) in sectors.enumerate() {
                let tag = tag(data.get(index * SECTOR..).unwrap_or(&[]));
                let tag = tag.unwrap_or_else(|| panic!("{self} reads a torn sector {sector} of f{file}"));
                if let Err(why) = world.model.judge(file, sector, tag, begun) {
                    panic!("{self}: {why}");
                }
                world.model.settle(file, sector, tag, begun);
            }
        }
        self.judge_session(world, &read);
        read.is_ok()
    }

    async fn flush(&mut self, world: &World) {
        let Some((file, open, opened)) = &self.file else { return };
        let (file, by) = (*file, (*open, self.protocol()));
        tell!(world, "{self} flushes f{file}...");
        let begun = world.model.moment();
        let flushed = match opened {
            File::Smb(file) => ends("FLUSH", file.flush()).await,
            File::Nfs(file) => ends("COMMIT", file.commit()).await,
        };
        self.told(world, format_args!("flushes f{file}"), &flushed);
        if flushed.is_ok() {
            world.model.flushed(file, begun, by, world.disk.failures());
            self.dirty.clear();
        }
        self.judge_session(world, &flushed);
    }
}

/// What a sector holds; what is not there reads as zeros. `None`: more than one thing.
fn tag(sector: &[u8]) -> Option<u64> {
    let sector = &sector[..sector.len().min(SECTOR)];
    let (words, rest) = sector.as_chunks::<8>();
    let mut tags = words.iter().map(|word| u64::from_le_bytes(*word));
    let first = tags.next().unwrap_or(0);
    (rest.is_empty() && tags.all(|tag| tag == first)).then_some(first)
}

fn credential() -> nfs::Credential {
    nfs::Credential::Sys(nfs::AuthSys::new(Bytes::from_static(b"host"), 0, 0))
}

fn dial(pool: Pool) -> nfs::Dial {
    Rc::new(move || -> LocalBoxFuture<'static, Result<Rc<dyn Channel>, weft_transport::Error>> {
        let pool = pool.clone();
        Box::pin(async move {
            let stream = Stream::connect(NFS).await?;
            let channel: Rc<dyn Channel> = record::Record::channel(stream, pool, record::Config::default());
            Ok(channel)
        })
    })
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Smb { .. } => "smb",
            Kind::Nfs3 => "nfs3",
            Kind::Nfs4 => "nfs4",
        };
        write!(f, "{kind}-{}", self.number)
    }
}
