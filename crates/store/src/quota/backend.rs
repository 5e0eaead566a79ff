//! A folder whose space is counted. Every operation that may change the space of its files reserves space first, and
//! afterwards measures the files that it has changed.
//!
//! | operation | reserves | measures |
//! |---|---|---|
//! | CREATE of a new name | a block for it and one for its directory | both |
//! | LINK | a block for the directory | the directory |
//! | RENAME | nothing | both directories, and what is replaced |
//! | REMOVE, RMDIR | nothing | the directory; the space of a last name is given back |
//! | SETATTR, also a truncation | nothing, because a longer file ends in a hole | the file |
//! | SETXATTR | the value, unless it is a short one of Weft's own, or no longer than the one that it replaces while nothing is left | the file or directory |
//! | a write, allocation, copy or clone | its range (see `ledger`) | the file |
//!
//! So renames of files and folders, DOS attributes, truncations and deletions work even while the quota is exceeded.
//!
//! An extended attribute of a client, and a named stream, counts however short it is. ext4 has room for some 100 bytes in the inode,
//! and gives the file a block for more: many short ones on many files would take as many blocks without a reservation.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use super::ledger::{Account, Allowance, BLOCK, Begun, Inode, Ledger, Limit, MAX_FILES, NO_LIMIT};
use crate::vfs::object::{self, Object, ObjectOp, Plain, Submission};
use crate::vfs::{
    Attr, Backend, Caller, Created, Effect, Error, Hold, Kind, Layer, NodeId, OWN_XATTRS, Op, OpenFile,
    Outcome, STREAM_XATTRS, Space,
};

/// A shorter extended attribute mostly fits into the inode, and takes no block of its own, if it is the only one.
const SHORT_XATTR: usize = 128;
/// What the attribute of an empty stream takes.
const EMPTY_STREAM: usize = 16;

/// See the module.
pub(super) struct Counting {
    inner: Arc<dyn Backend>,
    /// That of all shares of the folder.
    ledger: Arc<Ledger>,
    allowance: Arc<Allowance>,
}

/// The object of a name that an operation may remove or move.
struct Named {
    inode: Inode,
    node: NodeId,
    kind: Kind,
    links: u32,
    /// Before the operation.
    begun: Begun,
}

impl Counting {
    pub(super) fn new(inner: Arc<dyn Backend>, allowance: Arc<Allowance>) -> Counting {
        Counting { inner, ledger: allowance.ledger().clone(), allowance }
    }

    async fn ask(&self, op: Op) -> Result<Outcome, Error> {
        self.inner.submit(op, Caller::Server).await
    }

    async fn attr(&self, node: NodeId) -> Result<Attr, Error> {
        if let Some(attr) = self.inner.attr_now(node) {
            return attr;
        }
        match self.ask(Op::Getattr { node }).await? {
            Outcome::Attr(attr) => Ok(attr),
            other => unreachable!("backend answered {other:?}"),
        }
    }

    /// Counts what a node occupies now.
    async fn measure(&self, node: NodeId) {
        let begun = self.ledger.begin();
        match self.attr(node).await {
            Ok(attr) => self.measured(&attr, begun),
            // Removed meanwhile, by an operation that counts it.
            Err(Error::Stale | Error::NotFound) => {}
            Err(e) => tracing::warn!("the space of a changed file is unknown until the next count: {e}"),
        }
    }

    /// The same for one that an operation has just created.
    async fn measure_new(&self, node: NodeId) {
        let begun = self.ledger.begin();
        match self.attr(node).await {
            Ok(attr) if attr.nlink > 0 => self.ledger.created(Inode::of(&attr), attr.allocated, begun),
            Ok(_) | Err(Error::Stale | Error::NotFound) => {}
            Err(e) => tracing::warn!("the space of a new file is unknown until the next count: {e}"),
        }
    }

    fn measured(&self, attr: &Attr, begun: Begun) {
        // A file without a name has been forgotten already, or will be when it is closed.
        if attr.nlink > 0 {
            self.ledger.measured(Inode::of(attr), attr.allocated, begun);
        }
    }

    async fn named(&self, dir: NodeId, name: &[u8]) -> Option<Named> {
        let op = Op::Lookup { dir, name: name.to_vec(), fold_case: false };
        let Ok(Outcome::Attr(attr)) = self.ask(op).await else { return None };
        let (inode, begun) = (Inode::of(&attr), self.ledger.begin());
        Some(Named { inode, node: attr.node, kind: attr.kind, links: attr.nlink, begun })
    }

    /// A name of this object was removed or given to another one.
    async fn lost_its_name(&self, victim: Named) {
        let is_gone = match self.attr(victim.node).await {
            // Also one that was moved onto itself.
            Ok(attr) => attr.nlink == 0,
            // Nothing leads to it any more; a file may have names that are not known here.
            Err(_) => victim.kind == Kind::Dir || victim.links <= 1,
        };
        if is_gone {
            self.ledger.unlinked(victim.inode, victim.begun);
        }
    }

    async fn create(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Op::Create { dir, name, set, .. } = &op else { return self.inner.submit(op, by).await };
        let (dir, truncates) = (*dir, set.size.is_some());
        let room = self.ledger.has_room_for_a_file().then(|| self.allowance.reserve(2 * BLOCK));
        let _reserved = match room {
            Some(Ok(reserved)) => Some(reserved),
            // An existing file takes nothing, and an existing name is refused for what it is.
            _ if self.named(dir, name).await.is_some() => None,
            _ => return Err(Error::OverQuota),
        };
        let outcome = self.inner.submit(op, by).await?;
        if let Outcome::Created(Created { attr, is_new }) = &outcome {
            if *is_new {
                self.measure(dir).await;
                self.measure_new(attr.node).await;
            } else if truncates {
                self.measure(attr.node).await;
            }
        }
        Ok(outcome)
    }

    async fn remove(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let (Op::Remove { dir, name } | Op::Rmdir { dir, name }) = &op else {
            return self.inner.submit(op, by).await;
        };
        let (dir, victim) = (*dir, self.named(*dir, name).await);
        let outcome = self.inner.submit(op, by).await?;
        if let Some(victim) = victim {
            self.lost_its_name(victim).await;
        }
        self.measure(dir).await;
        Ok(outcome)
    }

    async fn rename(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Op::Rename { from, to, replace } = &op else { return self.inner.submit(op, by).await };
        let (from, to) = (from.clone(), to.clone());
        let victim = if *replace { self.named(to.dir, &to.name).await } else { None };
        // While the folder is counted, the count may find it at neither of its places.
        let moved = if self.ledger.is_counting() { self.named(from.dir, &from.name).await } else { None };
        if moved.as_ref().is_some_and(|moved| moved.kind == Kind::Dir) {
            self.ledger.moved();
        }
        let outcome = self.inner.submit(op, by).await?;
        if let Some(victim) = victim {
            self.lost_its_name(victim).await;
        }
        self.measure(to.dir).await;
        if from.dir != to.dir {
            self.measure(from.dir).await;
        }
        if let Some(moved) = moved {
            self.measure(moved.node).await;
        }
        Ok(outcome)
    }

    async fn set_xattr(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Op::SetXattr { node, name, value, .. } = &op else { return self.inner.submit(op, by).await };
        let (node, len) = (*node, value.len());
        // A client decides how many streams there are, and how many attributes that are not ours.
        let is_ours = name.starts_with(OWN_XATTRS) && !name.starts_with(STREAM_XATTRS);
        if is_ours && len <= SHORT_XATTR {
            return self.changed(op, by, node, 0).await;
        }
        let least = if name.starts_with(STREAM_XATTRS) { EMPTY_STREAM } else { 0 };
        // Even an empty value has a name.
        let _reserved = match self.allowance.reserve(len.max(1) as u64) {
            Ok(reserved) => Some(reserved),
            // Who has used everything up may still overwrite what is there, and empty it.
            Err(_) if self.xattr_len(node, name).await.is_some_and(|before| len <= before.max(least)) => None,
            Err(full) => return Err(full),
        };
        self.changed(op, by, node, 0).await
    }

    async fn xattr_len(&self, node: NodeId, name: &[u8]) -> Option<usize> {
        match self.ask(Op::GetXattr { node, name: name.to_vec() }).await {
            Ok(Outcome::Value(value)) => Some(value.len()),
            _ => None,
        }
    }

    async fn changed(&self, op: Op, by: Caller, node: NodeId, bytes: usize) -> Result<Outcome, Error> {
        let _reserved = match bytes {
            0 => None,
            bytes => Some(self.allowance.reserve(bytes as u64)?),
        };
        let outcome = self.inner.submit(op, by).await?;
        self.measure(node).await;
        Ok(outcome)
    }

    /// The account of a node that is opened or held.
    async fn account(&self, node: NodeId) -> Result<Arc<Account>, Error> {
        let begun = self.ledger.begin();
        let attr = self.attr(node).await?;
        Ok(self.ledger.account(Inode::of(&attr), attr.allocated, begun))
    }

    async fn open(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Op::Open { node, write } = op else { return self.inner.submit(op, by).await };
        let outcome = self.inner.submit(op, by).await?;
        let Outcome::File(file) = outcome else { return Ok(outcome) };
        let account = self.account(node).await?;
        Ok(Outcome::File(match file.object().plain().cloned() {
            Some(plain) if write => {
                account.opened(&plain);
                file.limited(Arc::new(Limit::new(account, self.allowance.clone())))
            }
            Some(plain) => {
                let kept = Kept { _account: account, plain: Plain(plain) };
                OpenFile::new(file.node, Arc::new(kept)).read_only()
            }
            None => file,
        }))
    }

    async fn hold(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Op::Hold { node } = op else { return self.inner.submit(op, by).await };
        let outcome = self.inner.submit(op, by).await?;
        let Outcome::Held(hold) = outcome else { return Ok(outcome) };
        let account = self.account(node).await?;
        // In the order in which they are dropped: see `Kept`.
        Ok(Outcome::Held(Hold::new(Arc::new((account, hold)))))
    }

    /// The space of a share that is smaller than its disk.
    async fn space(&self, op: Op, by: Caller) -> Result<Outcome, Error> {
        let Outcome::Space(disk) = self.inner.submit(op, by).await? else { return Err(Error::Invalid) };
        let total = self.allowance.limit_bytes();
        if total == NO_LIMIT {
            return Ok(Outcome::Space(disk));
        }
        let free = match self.ledger.is_unknown() {
            true => 0,
            false => total.saturating_sub(self.ledger.used_bytes()),
        };
        let files = self.ledger.files() as u64;
        let files_free = (MAX_FILES as u64).saturating_sub(files);
        Ok(Outcome::Space(Space {
            total,
            free: free.min(disk.free),
            available: free.min(disk.available),
            files: files.saturating_add(files_free.min(disk.files_free)),
            files_free: files_free.min(disk.files_free),
        }))
    }
}

impl Layer for Counting {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match &op {
            Op::Open { .. } => return Box::pin(self.open(op, by)),
            Op::Hold { .. } => return Box::pin(self.hold(op, by)),
            Op::Statfs => return Box::pin(self.space(op, by)),
            Op::SetXattr { .. } => return Box::pin(self.set_xattr(op, by)),
            _ => {}
        }
        match op.effect() {
            Effect::AddsName { of: None, .. } => Box::pin(self.create(op, by)),
            Effect::AddsName { dir, of: Some(_), .. } => Box::pin(self.changed(op, by, dir, BLOCK as usize)),
            Effect::RemovesName { .. } => Box::pin(self.remove(op, by)),
            Effect::Moves { .. } => Box::pin(self.rename(op, by)),
            Effect::SetsAttributes(node) | Effect::SetsXattrs(node) => {
                Box::pin(self.changed(op, by, node, 0))
            }
            Effect::Inspects
            | Effect::Reads
            | Effect::Flushes
            | Effect::OpensToWrite
            | Effect::AsksToRemove => self.inner.submit(op, by),
        }
    }
}

/// A file that is open for reading. Its space counts as long as it is open; reading is not slower than without a quota.
#[derive(Debug)]
struct Kept {
    /// Dropped first: while the file is open, no other file has its number.
    _account: Arc<Account>,
    plain: Plain,
}

impl object::Layer for Kept {
    fn inner(&self) -> &dyn Object {
        &self.plain
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        self.plain.submit(op)
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        self.plain.write_now(offset, chain)
    }
}
