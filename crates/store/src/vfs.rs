//! The contract between protocols and backends: one enum of operations, one of outcomes, one of errors.
//!
//! Owns: nothing. Does not: implement; see `backend`.
//! Errors: [`Error`] is what both protocols map to their own codes.

use std::any::Any;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{File, FileRange, Payload, Pool};

use crate::opens::Opens;

/// A file or directory of one share. Stable while the share is served; 1 is the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every share.
    pub const ROOT: NodeId = NodeId(1);
}

/// Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970, possibly negative.
    pub secs: i64,
    /// `0 <= nanos < 1_000_000_000`.
    pub nanos: u32,
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; never followed by the store.
    Symlink,
    /// Device, socket or pipe: listed, not opened.
    Other,
}

/// Attributes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which node.
    pub node: NodeId,
    /// What it is.
    pub kind: Kind,
    /// Bytes (0 for directories).
    pub size: u64,
    /// Bytes that it occupies.
    pub allocated: u64,
    /// Hard links.
    pub nlink: u32,
    /// Permission bits, 12 of them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Birth, or the earliest of the others where the file system keeps none.
    pub btime: Timestamp,
}

/// What to change; `None` leaves alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last write.
    pub mtime: Option<SetTime>,
}

/// A new timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This.
    To(Timestamp),
}

/// Space of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes free to this user.
    pub available: u64,
    /// Files in all.
    pub files: u64,
    /// Files free.
    pub files_free: u64,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, without `/` and NUL. `.` and `..` are not listed.
    pub name: Vec<u8>,
    /// Continue after this entry by passing it to the next [`Op::Readdir`]; never 0, and stable while the directory
    /// stays as it is.
    pub cookie: u64,
    /// Attributes at the time of listing.
    pub attr: Attr,
}

/// How CREATE treats an existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// Fail with [`Error::Exists`].
    Fail,
    /// Return it (`created` is false); with `size` in `set` it is truncated.
    Reuse,
    /// NFSv3 exclusive: return it if it was made with this verifier, fail otherwise.
    Verifier([u8; 8]),
}

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Make {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
}

/// One request to a backend.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Op {
    /// Name in directory: [`Outcome::Attr`]. `..` of the root is the root. With `fold_case` a name that does not exist
    /// as it is spelled matches one that differs by case only.
    Lookup { dir: NodeId, name: Vec<u8>, fold_case: bool },
    /// [`Outcome::Attr`].
    Getattr { node: NodeId },
    /// [`Outcome::Attr`], the new ones.
    Setattr { node: NodeId, set: SetAttr },
    /// [`Outcome::File`]. Regular files only.
    Open { node: NodeId, write: bool },
    /// [`Outcome::Created`].
    Create { dir: NodeId, name: Vec<u8>, make: Make, exists: Exists, set: SetAttr },
    /// Removes a file, link or other non-directory: [`Outcome::Done`].
    Remove { dir: NodeId, name: Vec<u8> },
    /// Removes an empty directory: [`Outcome::Done`].
    Rmdir { dir: NodeId, name: Vec<u8> },
    /// [`Outcome::Done`]. Without `replace` an existing target fails with [`Error::Exists`].
    Rename { from: NodeId, from_name: Vec<u8>, to: NodeId, to_name: Vec<u8>, replace: bool },
    /// A further name for a file: [`Outcome::Done`].
    Link { node: NodeId, dir: NodeId, name: Vec<u8> },
    /// [`Outcome::Target`].
    Readlink { node: NodeId },
    /// At most `max` entries after `cookie` (0: from the start): [`Outcome::Entries`].
    Readdir { dir: NodeId, cookie: u64, max: usize },
    /// Where a node is now: its directory and name ([`Outcome::Place`]); an open handle deletes and renames by this.
    Place { node: NodeId },
    /// [`Outcome::Space`].
    Statfs,
    /// Makes a directory's entries durable: [`Outcome::Done`].
    SyncDir { dir: NodeId },
    /// Keeps a node within reach although its name goes away: [`Outcome::Held`].
    Hold { node: NodeId },
}

/// What an operation gives back.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Outcome {
    /// Attributes.
    Attr(Attr),
    /// An open file.
    File(OpenFile),
    /// A node, and whether it is new.
    Created { attr: Attr, created: bool },
    /// Names, and whether the directory ends here.
    Entries { entries: Vec<Entry>, end: bool },
    /// Directory and name of a node.
    Place { dir: NodeId, name: Vec<u8> },
    /// A link's target.
    Target(Vec<u8>),
    /// Space.
    Space(Space),
    /// The node stays within reach until this is dropped.
    Held(Hold),
    /// Nothing to say.
    Done,
}

/// Keeps a node within reach: as long as it lives, attributes can be asked and set even when the name was removed.
/// Every open of a protocol that keeps opens owns one.
pub struct Hold(#[allow(dead_code, reason = "it works by being kept")] Arc<dyn Any + Send + Sync>);

impl Hold {
    /// Wraps whatever the backend wants kept.
    pub fn new(kept: Arc<dyn Any + Send + Sync>) -> Hold {
        Hold(kept)
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The node is gone.
    #[error("stale node")]
    Stale,
    /// The name exists.
    #[error("exists")]
    Exists,
    /// Not a directory.
    #[error("not a directory")]
    NotDir,
    /// A directory where a file was wanted.
    #[error("is a directory")]
    IsDir,
    /// Directory not empty.
    #[error("directory not empty")]
    NotEmpty,
    /// The user may not.
    #[error("access denied")]
    Access,
    /// A name that no file can have (empty, `/`, NUL, too long) or one that leaves the share.
    #[error("bad name")]
    BadName,
    /// Name too long.
    #[error("name too long")]
    NameTooLong,
    /// An argument makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// Disk, quota or ram limit full.
    #[error("no space")]
    NoSpace,
    /// A named limit of the server (open files, nodes).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// The share is read-only.
    #[error("read-only")]
    ReadOnly,
    /// Not here.
    #[error("not supported")]
    NotSupported,
    /// An open by somebody else forbids it (share modes).
    #[error("sharing violation")]
    Sharing,
    /// The world failed.
    #[error("{0}")]
    Io(io::Error),
}

/// A backend: one function. Middleware (trace, count, delay, fail) wraps it.
pub trait Backend: Send + Sync {
    /// "dir" or "ram".
    fn kind(&self) -> &'static str;
    /// Carries out one operation.
    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
}

/// An open regular file: reads are ranges that the transport fetches late, writes are chains.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// Which node.
    pub node: NodeId,
    file: File,
    read_only: bool,
    /// Bound on the file's size set by a ram share's limit; `None` elsewhere.
    quota: Option<Arc<dyn Quota>>,
}

/// Decides whether a write may grow a file (the size limit of a ram share).
pub trait Quota: std::fmt::Debug + Send + Sync {
    /// Called before bytes up to `end` are written to a file of size `len`; `Err(NoSpace)` refuses.
    fn grow(&self, len: u64, end: u64) -> Result<(), Error>;
}

impl OpenFile {
    /// Wraps a descriptor.
    pub fn new(node: NodeId, file: File, quota: Option<Arc<dyn Quota>>) -> OpenFile {
        OpenFile { node, file, read_only: false, quota }
    }

    /// The same, refusing writes.
    pub fn read_only(self) -> OpenFile {
        OpenFile { read_only: true, ..self }
    }

    /// The bytes of `[offset, offset + len)` that exist, unread as yet; empty at or past the end.
    pub fn read(&self, offset: u64, len: usize) -> Result<Payload, Error> {
        Ok(self.read_within(self.file.len()?, offset, len))
    }

    /// The same for a caller that has just learned the file's size, and so saves asking for it.
    pub fn read_within(&self, size: u64, offset: u64, len: usize) -> Payload {
        let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
        Payload::File(FileRange { file: self.file.clone(), offset, len })
    }

    /// The bytes of `[offset, offset + len)` that exist, read into a buffer now: one system call, where a range costs
    /// two (one for the size). `None`: the page cache does not hold them all, or the pool is empty; take a range.
    pub fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        let mut buf = pool.try_alloc(len)?;
        buf.set_len(len);
        let window = buf.into_window();
        // What fails here fails again, with its reason, when the range is read.
        let read = self.file.try_read_at(offset, &window)?.ok()?;
        let mut buf = window.try_into_buf().ok()?;
        buf.set_len(read);
        Some(Payload::from(buf.freeze()))
    }

    /// Writes all of `chain` at `offset`.
    pub async fn write(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::Access);
        }
        if let Some(quota) = &self.quota {
            let bytes: usize = chain.iter().map(Bytes::len).sum();
            let end = offset.checked_add(bytes as u64).ok_or(Error::Invalid)?;
            quota.grow(self.file.len()?, end)?;
        }
        Ok(self.file.write_at(offset, chain).await?)
    }

    /// Makes what was written durable.
    pub async fn sync(&self) -> Result<(), Error> {
        Ok(self.file.sync(false).await?)
    }

    /// Size now.
    pub fn len(&self) -> Result<u64, Error> {
        Ok(self.file.len()?)
    }

    /// Whether it is empty now.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }
}

/// A share's file system, with a typed call for each operation, and the table of its opens. Cloning shares both.
#[derive(Clone)]
pub struct Vfs(Arc<dyn Backend>, Arc<Opens>);

macro_rules! expect {
    ($outcome:expr, $pattern:pat => $value:expr) => {
        match $outcome {
            $pattern => Ok($value),
            other => unreachable!("backend answered {other:?}"),
        }
    };
}

impl Vfs {
    /// A file system over `backend`.
    pub fn new(backend: impl Backend + 'static) -> Vfs {
        Vfs(Arc::new(backend), Arc::new(Opens::default()))
    }

    /// Who has what open, of every protocol.
    pub fn opens(&self) -> &Arc<Opens> {
        &self.1
    }

    /// "dir" or "ram".
    pub fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// See [`Op::Lookup`].
    pub async fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Attr, Error> {
        let op = Op::Lookup { dir, name: name.to_vec(), fold_case };
        expect!(self.0.submit(op).await?, Outcome::Attr(attr) => attr)
    }

    /// See [`Op::Getattr`].
    pub async fn getattr(&self, node: NodeId) -> Result<Attr, Error> {
        expect!(self.0.submit(Op::Getattr { node }).await?, Outcome::Attr(attr) => attr)
    }

    /// See [`Op::Setattr`].
    pub async fn setattr(&self, node: NodeId, set: SetAttr) -> Result<Attr, Error> {
        expect!(self.0.submit(Op::Setattr { node, set }).await?, Outcome::Attr(attr) => attr)
    }

    /// See [`Op::Open`].
    pub async fn open(&self, node: NodeId, write: bool) -> Result<OpenFile, Error> {
        expect!(self.0.submit(Op::Open { node, write }).await?, Outcome::File(file) => file)
    }

    /// See [`Op::Create`].
    pub async fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<(Attr, bool), Error> {
        let op = Op::Create { dir, name: name.to_vec(), make, exists, set };
        expect!(self.0.submit(op).await?, Outcome::Created { attr, created } => (attr, created))
    }

    /// See [`Op::Remove`].
    pub async fn remove(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        expect!(self.0.submit(Op::Remove { dir, name: name.to_vec() }).await?, Outcome::Done => ())
    }

    /// See [`Op::Rmdir`].
    pub async fn rmdir(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        expect!(self.0.submit(Op::Rmdir { dir, name: name.to_vec() }).await?, Outcome::Done => ())
    }

    /// See [`Op::Rename`].
    pub async fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        replace: bool,
    ) -> Result<(), Error> {
        let op = Op::Rename {
            from: from.0,
            from_name: from.1.to_vec(),
            to: to.0,
            to_name: to.1.to_vec(),
            replace,
        };
        expect!(self.0.submit(op).await?, Outcome::Done => ())
    }

    /// See [`Op::Link`].
    pub async fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        expect!(self.0.submit(Op::Link { node, dir, name: name.to_vec() }).await?, Outcome::Done => ())
    }

    /// See [`Op::Readlink`].
    pub async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        expect!(self.0.submit(Op::Readlink { node }).await?, Outcome::Target(target) => target)
    }

    /// See [`Op::Readdir`].
    pub async fn readdir(&self, dir: NodeId, cookie: u64, max: usize) -> Result<(Vec<Entry>, bool), Error> {
        let op = Op::Readdir { dir, cookie, max };
        expect!(self.0.submit(op).await?, Outcome::Entries { entries, end } => (entries, end))
    }

    /// See [`Op::Place`].
    pub async fn place(&self, node: NodeId) -> Result<(NodeId, Vec<u8>), Error> {
        expect!(self.0.submit(Op::Place { node }).await?, Outcome::Place { dir, name } => (dir, name))
    }

    /// See [`Op::Statfs`].
    pub async fn statfs(&self) -> Result<Space, Error> {
        expect!(self.0.submit(Op::Statfs).await?, Outcome::Space(space) => space)
    }

    /// See [`Op::SyncDir`].
    pub async fn sync_dir(&self, dir: NodeId) -> Result<(), Error> {
        expect!(self.0.submit(Op::SyncDir { dir }).await?, Outcome::Done => ())
    }

    /// See [`Op::Hold`].
    pub async fn hold(&self, node: NodeId) -> Result<Hold, Error> {
        expect!(self.0.submit(Op::Hold { node }).await?, Outcome::Held(hold) => hold)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Error {
        io::Error::from(e).into()
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        use rustix::io::Errno;
        match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Error::NotFound,
            Some(Errno::EXIST) => Error::Exists,
            Some(Errno::NOTDIR) => Error::NotDir,
            Some(Errno::ISDIR) => Error::IsDir,
            Some(Errno::NOTEMPTY) => Error::NotEmpty,
            Some(Errno::ACCESS | Errno::PERM) => Error::Access,
            // openat2 RESOLVE_BENEATH: the path would leave the share.
            Some(Errno::XDEV | Errno::LOOP) => Error::BadName,
            Some(Errno::NAMETOOLONG) => Error::NameTooLong,
            Some(Errno::INVAL) => Error::Invalid,
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Error::NoSpace,
            Some(Errno::MFILE | Errno::NFILE) => Error::Limit("open files (ulimit -n)"),
            Some(Errno::ROFS) => Error::ReadOnly,
            Some(Errno::STALE) => Error::Stale,
            Some(Errno::NOTSUP) => Error::NotSupported,
            _ => Error::Io(e),
        }
    }
}

/// A named share.
#[derive(Clone)]
pub struct Share {
    /// What clients call it.
    pub name: Arc<str>,
    /// Its files.
    pub vfs: Vfs,
}
