//! The contract between protocols and backends: one enum of operations, one of outcomes, one of errors.
//!
//! Owns: nothing. Does not: implement; see `backend`.
//! Errors: [`Error`] is what both protocols map to their own codes.

mod dos;
mod file;
mod own;
mod sink;
mod streams;
mod watch;

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::LocalBoxFuture;

pub(crate) use self::dos::XATTR as DOS_XATTR;
pub use self::dos::{Beside, Dos, OWN_XATTRS};
pub use self::file::{OpenFile, Quota};
pub use self::own::{Own, Turn};
pub use self::sink::{Put, Sink};
use self::streams::Streams;
pub use self::streams::{MAX_STREAM_BYTES, MAX_STREAM_NAME, StreamEntry};
use self::watch::Witness;
pub use self::watch::{Action, Change, Changes, MAX_QUEUED, MAX_WATCHES, Watch, Watches, What};
use crate::backend::ReadOnly;
use crate::opens::{Access, Key, Opens, Refused};
use crate::rules::Rules;
use crate::snapshots::Snapshots;

/// How deep a name may lie for what is below a directory to be found.
const MAX_DEPTH: usize = 1024;
/// The longest name of an extended attribute in bytes: Linux takes 255, of which `user.` takes five.
pub const MAX_XATTR_NAME: usize = 250;
/// The longest value of an extended attribute in bytes (Linux's XATTR_SIZE_MAX). File systems may take less: ext4 keeps
/// all of a file's in 4 KiB unless it was made with `ea_inode`; then [`Error::NoSpace`] says so.
pub const MAX_XATTR_VALUE: usize = 65_536;

/// A file or directory of one share. Stable while the share is served; 1 is the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every share.
    pub const ROOT: NodeId = NodeId(1);
}

/// Which file a node is, as long as the file lives: the same after a restart, and on every share of the same folder.
/// Opaque; whoever gives it to a client must prove that it comes back unchanged, and bounds who may use it.
///
/// A `ram` share has none that survive: they hold a number that differs from run to run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stable(pub [u8; 24]);

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
    Special(Special),
}

/// What is a file by name alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block device with its major and minor number.
    Block(u32, u32),
    /// A character device with its major and minor number.
    Char(u32, u32),
}

/// Attributes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Which node.
    pub node: NodeId,
    /// Its number in the file system, which outlives this run where the file does.
    pub fileid: u64,
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
    /// What lies beside the file, when that was asked for.
    pub beside: Option<Beside>,
}

/// How SETXATTR treats an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Fail with [`Error::Exists`].
    Create,
    /// Fail with [`Error::NoXattr`] unless there is one.
    Replace,
    /// Take its place.
    Either,
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
    /// A pipe, socket or device. Whether somebody may make a device is for the protocol to decide, then for the kernel.
    Special(Special),
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
    /// At most `max` entries after `cookie` (0: from the start): [`Outcome::Entries`]. With `beside` each says what
    /// lies beside its file.
    Readdir { dir: NodeId, cookie: u64, max: usize, beside: bool },
    /// Where a node is now: its directory and name ([`Outcome::Place`]); an open handle deletes and renames by this.
    Place { node: NodeId },
    /// [`Outcome::Space`].
    Statfs,
    /// Makes a directory's entries durable: [`Outcome::Done`].
    SyncDir { dir: NodeId },
    /// Keeps a node within reach although its name goes away: [`Outcome::Held`].
    Hold { node: NodeId },
    /// The value of an extended attribute, named without `user.`: [`Outcome::Value`].
    GetXattr { node: NodeId, name: Vec<u8> },
    /// [`Outcome::Done`].
    SetXattr { node: NodeId, name: Vec<u8>, value: Vec<u8>, how: SetXattr },
    /// The names of all extended attributes, Weft's own among them: [`Outcome::Names`].
    ListXattrs { node: NodeId },
    /// [`Outcome::Done`].
    RemoveXattr { node: NodeId, name: Vec<u8> },
    /// What lies beside a file: [`Outcome::Beside`].
    Beside { node: NodeId },
    /// [`Outcome::Stable`].
    Stable { node: NodeId },
    /// The node of a file that was given out as this, perhaps before a restart: [`Outcome::Attr`].
    Find { stable: Stable },
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
    /// An extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// What lies beside a file.
    Beside(Beside),
    /// Which file it is.
    Stable(Stable),
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
    /// Only the owner, or root, may.
    #[error("operation not permitted")]
    NotPermitted,
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
    /// A file larger than the file system's files can be.
    #[error("file too large")]
    TooLarge,
    /// A named limit of the server (open files, nodes).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// The share is read-only.
    #[error("read-only")]
    ReadOnly,
    /// Not here.
    #[error("not supported")]
    NotSupported,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// An extended attribute, or all of them together, longer than the file system takes.
    #[error("extended attribute too big")]
    XattrTooBig,
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
    /// Whether it changes nothing, whoever asks.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Carries out one operation.
    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
    /// From now on until the answer is dropped, tells `watches` what others than this server change in `dir`, or in the
    /// tree below it. What goes through [`Vfs`] it does not tell: that bears a mark ([`Watches::own`]). By default nobody
    /// else changes anything.
    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> Option<Box<dyn Any + Send + Sync>> {
        let _ = (dir, recursive, watches);
        None
    }
}

/// A share's file system, with a typed call for each operation, the table of its opens, and who watches it. Cloning
/// shares all three. It may act in somebody's name, who then keeps what he caches of the directories that he changes.
#[derive(Clone)]
pub struct Vfs(Arc<dyn Backend>, Arc<Opens>, Arc<Watches>, Option<Key>, Arc<Streams>, Arc<AtomicU64>);

macro_rules! expect {
    ($outcome:expr, $pattern:pat => $value:expr) => {
        match $outcome {
            $pattern => $value,
            other => unreachable!("backend answered {other:?}"),
        }
    };
}

impl Vfs {
    /// A file system over `backend`.
    pub fn new(backend: impl Backend + 'static) -> Vfs {
        Vfs(Arc::new(backend), Arc::default(), Arc::default(), None, Arc::default(), Arc::default())
    }

    /// The same file system, changed in the name of whoever caches directories by this key.
    #[must_use]
    pub fn in_name_of(&self, key: Option<Key>) -> Vfs {
        Vfs(self.0.clone(), self.1.clone(), self.2.clone(), key, self.4.clone(), self.5.clone())
    }

    /// Takes what others cache of a directory whose names, or what there is to say about them, have changed.
    pub fn children_changed(&self, dir: NodeId) {
        if self.1.caches_directories() {
            // Nobody waits: who listed it a moment ago saw it as it was.
            let _ = self.1.recall(dir, self.3, Access::Children);
        }
    }

    /// Takes what others cache of the directory of a file whose content has changed: its size and times are in the listing.
    /// For protocols whose writers have no handle that they close.
    pub async fn content_changed(&self, node: NodeId) {
        if self.1.caches_directories()
            && let Ok((dir, _)) = self.place(node).await
        {
            self.children_changed(dir);
        }
    }

    /// Who has what open, of every protocol.
    pub fn opens(&self) -> &Arc<Opens> {
        &self.1
    }

    /// Moves on with every change of a security descriptor: who has seen one looks again.
    pub fn descriptors(&self) -> u64 {
        self.5.load(Ordering::Acquire)
    }

    /// "dir" or "ram".
    pub fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// The same file system, with the same opens, for those who may change nothing.
    #[must_use]
    pub fn read_only(self) -> Vfs {
        Vfs(Arc::new(ReadOnly::new(self.0)), self.1, self.2, self.3, self.4, self.5)
    }

    /// Whether nothing can be changed in it.
    pub fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn witness(&self) -> Witness {
        Witness { backend: self.0.clone(), watches: self.2.clone() }
    }

    async fn named(&self, what: What, action: Action, dir: NodeId, name: &[u8]) {
        self.children_changed(dir);
        if self.2.any() {
            self.witness().named(what, action, dir, name).await;
        }
    }

    async fn modified(&self, node: NodeId, what: What) {
        self.content_changed(node).await;
        if self.2.any() && what != What::NONE {
            self.witness().modified(node, what).await;
        }
    }

    /// From now on until it is dropped, the watch collects what `filter` asks for about the names in `dir`, or in the
    /// whole tree below it, whoever changes it.
    pub async fn watch(&self, dir: NodeId, recursive: bool, filter: What) -> Result<Watch, Error> {
        if self.getattr(dir).await?.kind != Kind::Dir {
            return Err(Error::NotDir);
        }
        Watch::new(&self.2, self.0.clone(), (dir, recursive, filter))
    }

    /// Tells whoever watches `dir` that it is about to be removed: they wait for nothing.
    pub fn end_watches(&self, dir: NodeId) {
        if self.2.any() {
            self.2.end(dir);
        }
    }

    /// See [`Op::Lookup`].
    pub async fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Attr, Error> {
        let op = Op::Lookup { dir, name: name.to_vec(), fold_case };
        Ok(expect!(self.0.submit(op).await?, Outcome::Attr(attr) => attr))
    }

    /// See [`Op::Getattr`].
    pub async fn getattr(&self, node: NodeId) -> Result<Attr, Error> {
        if Streams::is_stream(node) {
            return self.stream_attr(node).await;
        }
        Ok(expect!(self.0.submit(Op::Getattr { node }).await?, Outcome::Attr(attr) => attr))
    }

    /// See [`Op::Setattr`].
    pub async fn setattr(&self, node: NodeId, set: SetAttr) -> Result<Attr, Error> {
        if Streams::is_stream(node) {
            let stream = self.4.find(node)?;
            if let Some(size) = set.size {
                stream.set_size(size).await?;
                self.witness().stream(&stream, What::STREAM_SIZE | What::STREAM_WRITTEN).await;
            }
            let rest = SetAttr { size: None, ..set };
            if rest != SetAttr::default() {
                Box::pin(self.setattr(stream.base, rest)).await?;
            }
            return self.stream_attr(node).await;
        }
        let what = set.what();
        let attr = expect!(self.0.submit(Op::Setattr { node, set }).await?, Outcome::Attr(attr) => attr);
        self.modified(node, what).await;
        Ok(attr)
    }

    /// See [`Op::Open`].
    pub async fn open(&self, node: NodeId, write: bool) -> Result<OpenFile, Error> {
        let file = match Streams::is_stream(node) {
            true => self.4.find(node)?.open(write).await?,
            false => expect!(self.0.submit(Op::Open { node, write }).await?, Outcome::File(file) => file),
        };
        Ok(if write { file.witnessed(self.witness()) } else { file })
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
        let truncates = set.size.is_some();
        let op = Op::Create { dir, name: name.to_vec(), make, exists, set };
        let (attr, created) = expect!(
            self.0.submit(op).await?, Outcome::Created { attr, created } => (attr, created)
        );
        if created {
            self.named(What::name_of(attr.kind), Action::Added, dir, name).await;
        } else if truncates {
            self.named(What::SIZE | What::WRITTEN, Action::Modified, dir, name).await;
        }
        Ok((attr, created))
    }

    /// See [`Op::Remove`].
    pub async fn remove(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        expect!(self.0.submit(Op::Remove { dir, name: name.to_vec() }).await?, Outcome::Done => ());
        self.named(What::FILE_NAME, Action::Removed, dir, name).await;
        Ok(())
    }

    /// See [`Op::Rmdir`].
    pub async fn rmdir(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        expect!(self.0.submit(Op::Rmdir { dir, name: name.to_vec() }).await?, Outcome::Done => ());
        self.named(What::DIR_NAME, Action::Removed, dir, name).await;
        Ok(())
    }

    /// See [`Op::Rename`].
    pub async fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        replace: bool,
    ) -> Result<(), Error> {
        // Who watches learns which name went, if one is replaced, and what kind of name it was that moved.
        let seen = if self.2.any() {
            let moved = self.lookup(from.0, from.1, false).await.map(|attr| attr.kind).ok();
            let replaced = if replace { self.lookup(to.0, to.1, false).await.ok() } else { None };
            Some((moved.unwrap_or(Kind::File), replaced))
        } else {
            None
        };
        let op = Op::Rename {
            from: from.0,
            from_name: from.1.to_vec(),
            to: to.0,
            to_name: to.1.to_vec(),
            replace,
        };
        expect!(self.0.submit(op).await?, Outcome::Done => ());
        self.children_changed(from.0);
        self.children_changed(to.0);
        let Some((kind, replaced)) = seen else { return Ok(()) };
        if let Some(replaced) = replaced {
            self.named(What::name_of(replaced.kind), Action::Removed, to.0, to.1).await;
        }
        let what = What::name_of(kind);
        let (gone, come) = match from.0 == to.0 {
            true => (Action::RenamedFrom, Action::RenamedTo),
            false => (Action::Removed, Action::Added),
        };
        self.named(what, gone, from.0, from.1).await;
        self.named(what, come, to.0, to.1).await;
        Ok(())
    }

    /// See [`Op::Link`].
    pub async fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        let op = Op::Link { node, dir, name: name.to_vec() };
        expect!(self.0.submit(op).await?, Outcome::Done => ());
        self.named(What::FILE_NAME, Action::Added, dir, name).await;
        Ok(())
    }

    /// See [`Op::Readlink`].
    pub async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        Ok(expect!(self.0.submit(Op::Readlink { node }).await?, Outcome::Target(target) => target))
    }

    /// See [`Op::Readdir`].
    pub async fn readdir(&self, dir: NodeId, cookie: u64, max: usize) -> Result<(Vec<Entry>, bool), Error> {
        let op = Op::Readdir { dir, cookie, max, beside: false };
        Ok(expect!(self.0.submit(op).await?, Outcome::Entries { entries, end } => (entries, end)))
    }

    /// As [`Vfs::readdir`], with what lies beside each file: one system call more for an entry.
    pub async fn readdir_beside(
        &self,
        dir: NodeId,
        cookie: u64,
        max: usize,
    ) -> Result<(Vec<Entry>, bool), Error> {
        let op = Op::Readdir { dir, cookie, max, beside: true };
        Ok(expect!(self.0.submit(op).await?, Outcome::Entries { entries, end } => (entries, end)))
    }

    /// See [`Op::Place`].
    pub async fn place(&self, node: NodeId) -> Result<(NodeId, Vec<u8>), Error> {
        let node = self.4.base(node)?;
        Ok(expect!(self.0.submit(Op::Place { node }).await?, Outcome::Place { dir, name } => (dir, name)))
    }

    /// See [`Op::Statfs`].
    pub async fn statfs(&self) -> Result<Space, Error> {
        Ok(expect!(self.0.submit(Op::Statfs).await?, Outcome::Space(space) => space))
    }

    /// See [`Op::SyncDir`].
    pub async fn sync_dir(&self, dir: NodeId) -> Result<(), Error> {
        expect!(self.0.submit(Op::SyncDir { dir }).await?, Outcome::Done => ());
        Ok(())
    }

    /// See [`Op::Hold`].
    pub async fn hold(&self, node: NodeId) -> Result<Hold, Error> {
        if Streams::is_stream(node) {
            return self.4.find(node)?.hold().await;
        }
        Ok(expect!(self.0.submit(Op::Hold { node }).await?, Outcome::Held(hold) => hold))
    }

    /// See [`Op::GetXattr`]. [`Error::NoXattr`] when there is none, [`Error::NotSupported`] where the file system, or a
    /// node that is neither file nor directory, has none at all.
    pub async fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Error> {
        let node = self.4.base(node)?;
        let op = Op::GetXattr { node, name: name.to_vec() };
        Ok(expect!(self.0.submit(op).await?, Outcome::Value(value) => value))
    }

    /// See [`Op::SetXattr`]. [`Error::XattrTooBig`] beyond [`MAX_XATTR_VALUE`], [`Error::NoSpace`] where the file system
    /// takes less.
    pub async fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let node = self.4.base(node)?;
        let op = Op::SetXattr { node, name: name.to_vec(), value: value.to_vec(), how };
        let done = self.0.submit(op).await;
        if name == crate::access::XATTR {
            self.5.fetch_add(1, Ordering::AcqRel);
        }
        expect!(done?, Outcome::Done => ());
        if !name.starts_with(OWN_XATTRS) {
            self.modified(node, What::XATTRS).await;
        }
        Ok(())
    }

    /// See [`Op::ListXattrs`]. No protocol shows the names that begin with [`OWN_XATTRS`].
    pub async fn list_xattrs(&self, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
        let node = self.4.base(node)?;
        Ok(expect!(self.0.submit(Op::ListXattrs { node }).await?, Outcome::Names(names) => names))
    }

    /// See [`Op::RemoveXattr`].
    pub async fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Error> {
        let node = self.4.base(node)?;
        let op = Op::RemoveXattr { node, name: name.to_vec() };
        let done = self.0.submit(op).await;
        if name == crate::access::XATTR {
            self.5.fetch_add(1, Ordering::AcqRel);
        }
        expect!(done?, Outcome::Done => ());
        if !name.starts_with(OWN_XATTRS) {
            self.modified(node, What::XATTRS).await;
        }
        Ok(())
    }

    /// See [`Op::Beside`].
    pub async fn beside(&self, node: NodeId) -> Result<Beside, Error> {
        let node = self.4.base(node)?;
        Ok(expect!(self.0.submit(Op::Beside { node }).await?, Outcome::Beside(beside) => beside))
    }

    /// Keeps DOS attributes and birth of a file; `before` is what was kept, for telling what changed.
    /// [`Error::NotSupported`] where there are no extended attributes.
    pub async fn set_dos(&self, node: NodeId, before: Option<Dos>, dos: Dos) -> Result<(), Error> {
        self.set_xattr(node, DOS_XATTR, &dos.to_bytes(), SetXattr::Either).await?;
        let before = before.unwrap_or_default();
        let mut what = if before.attributes == dos.attributes { What::NONE } else { What::ATTRIBUTES };
        if before.born != dos.born {
            what |= What::BORN;
        }
        self.modified(node, what).await;
        Ok(())
    }

    /// The node of a file's stream, found without regard to case; with `make` it is made when there is none, which is
    /// told. A stream has the attributes of its file, a size and a number of its own; it is opened, held, read and
    /// written as files are, and its number holds as long as somebody keeps a [`Hold`] or an [`OpenFile`] of it, and for
    /// a while after it was looked up. [`Error::NotFound`] when there is none.
    pub async fn stream(&self, base: NodeId, name: &[u8], make: bool) -> Result<(Attr, bool), Error> {
        let (stream, made) = self.4.look_up(&self.0, base, name, make).await?;
        if made {
            let witness = self.witness();
            witness.stream_named(base, name, What::STREAM_NAME, Action::StreamAdded).await;
        }
        Ok((self.stream_attr(stream.id).await?, made))
    }

    async fn stream_attr(&self, id: NodeId) -> Result<Attr, Error> {
        let stream = self.4.find(id)?;
        let size = stream.size().await?;
        let op = Op::Getattr { node: stream.base };
        let base = expect!(self.0.submit(op).await?, Outcome::Attr(attr) => attr);
        // Beside the file it takes what it takes, in units that nobody sees.
        Ok(Attr { node: id, kind: Kind::File, size, allocated: size.next_multiple_of(8), ..base })
    }

    /// Whose stream a number is, and the stream's name; `None` for what is no stream.
    pub fn stream_of(&self, node: NodeId) -> Option<(NodeId, Vec<u8>)> {
        // The number tells first: most are no streams, and nothing need be looked up for those.
        let stream = Streams::is_stream(node).then(|| self.4.find(node).ok())??;
        Some((stream.base, stream.name()))
    }

    /// Whether the opens of its streams let a file or directory be removed ([MS-FSA] 2.1.5.1.2.2: it goes with them).
    pub fn may_remove_with_streams(&self, base: NodeId) -> Result<(), Refused> {
        self.4.of(base).into_iter().try_for_each(|stream| self.1.may_remove(stream))
    }

    /// Whether somebody has something open below `dir`, at whatever depth.
    pub async fn is_open_below(&self, dir: NodeId) -> bool {
        for node in self.1.open_nodes() {
            let mut at = node;
            for _ in 0..MAX_DEPTH {
                // What has no name any more lies nowhere.
                let Ok((parent, _)) = self.place(at).await else { break };
                if parent == dir && node != dir {
                    return true;
                }
                at = parent;
            }
        }
        false
    }

    /// The file or directory that a number leads to: of a stream its file, of everything else itself.
    pub fn base(&self, node: NodeId) -> NodeId {
        self.4.base(node).unwrap_or(node)
    }

    /// All named streams of a file or directory.
    pub async fn streams(&self, base: NodeId) -> Result<Vec<StreamEntry>, Error> {
        self.4.list(&*self.0, base).await
    }

    /// Whether a file or directory has any named stream; what cannot have one has none.
    pub async fn has_streams(&self, base: NodeId) -> Result<bool, Error> {
        match self.4.any(&*self.0, base).await {
            Err(Error::NotSupported) => Ok(false),
            other => other,
        }
    }

    /// Takes a stream away. Those who have it open keep its bytes.
    pub async fn remove_stream(&self, base: NodeId, name: &[u8]) -> Result<(), Error> {
        self.4.remove(&*self.0, base, name).await?;
        self.witness().stream_named(base, name, What::STREAM_NAME, Action::StreamRemoved).await;
        Ok(())
    }

    /// Gives the stream with this number another name; one of that name is replaced only with `replace`.
    pub async fn rename_stream(&self, stream: NodeId, to: &[u8], replace: bool) -> Result<(), Error> {
        let stream = self.4.find(stream)?;
        let from = stream.name();
        self.4.rename(&stream, to, replace).await?;
        let witness = self.witness();
        witness.stream_named(stream.base, &from, What::STREAM_NAME, Action::StreamRemoved).await;
        witness.stream_named(stream.base, to, What::STREAM_NAME, Action::StreamAdded).await;
        Ok(())
    }

    /// See [`Op::Stable`].
    pub async fn stable(&self, node: NodeId) -> Result<Stable, Error> {
        let node = self.4.base(node)?;
        Ok(expect!(self.0.submit(Op::Stable { node }).await?, Outcome::Stable(stable) => stable))
    }

    /// See [`Op::Find`]. [`Error::Stale`] when no file of the share is this one (any more).
    pub async fn find(&self, stable: Stable) -> Result<Attr, Error> {
        Ok(expect!(self.0.submit(Op::Find { stable }).await?, Outcome::Attr(attr) => attr))
    }
}

impl SetAttr {
    /// What it changes, for who watches.
    fn what(&self) -> What {
        let mut what = What::NONE;
        let mut add = |set: bool, more| {
            if set {
                what |= more;
            }
        };
        add(self.size.is_some(), What::SIZE | What::WRITTEN);
        add(self.mode.is_some(), What::ATTRIBUTES | What::SECURITY);
        add(self.uid.is_some() || self.gid.is_some(), What::SECURITY);
        add(self.atime.is_some(), What::READ);
        add(self.mtime.is_some(), What::WRITTEN);
        what
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
            Some(Errno::NOSPC | Errno::DQUOT) => Error::NoSpace,
            Some(Errno::FBIG) => Error::TooLarge,
            Some(Errno::MFILE | Errno::NFILE) => Error::Limit("open files (ulimit -n)"),
            Some(Errno::ROFS) => Error::ReadOnly,
            Some(Errno::STALE) => Error::Stale,
            Some(Errno::NOTSUP) => Error::NotSupported,
            Some(Errno::NODATA) => Error::NoXattr,
            Some(Errno::TOOBIG) => Error::XattrTooBig,
            None if e.kind() == io::ErrorKind::Unsupported => Error::NotSupported,
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
    /// What is asked of whoever uses it.
    pub rules: Rules,
    /// Its earlier states, where its host keeps any.
    pub snapshots: Option<Arc<Snapshots>>,
}

impl Share {
    /// A share that asks nothing.
    pub fn new(name: impl Into<Arc<str>>, vfs: Vfs) -> Share {
        Share { name: name.into(), vfs, rules: Rules::default(), snapshots: None }
    }
}
