//! The typed calls of a share's file system, one per operation, and the notifications that each sends.
//!
//! A [`Vfs`] shares the backend, the table of opens, the watches, and the known streams. The backend carries
//! operations out. Errors: those of the backend, and [`Error::Stale`] for removed streams.

mod callers;
mod settle;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use weft_machine::{Charge, Pool, rt};

pub use self::settle::Unsettled;
use super::depot;
use super::flushes::Failures;
use super::object::{Told, Witnessed};
use super::share_id::ShareId;
use super::share_key::{ShareKey, VfsId};
use super::stream::{Extent, is_full};
use super::streams::{StreamHead, Streams};
use super::unlinked::{self, Caches};
use super::watch::{Event, Witness};
use super::{
    Action, Attr, Backend, Cache, Caller, Created, DOS_XATTR, DirName, Dos, Error, Exists, Hold, Kind,
    Listing, Make, NodeId, OWN_XATTRS, Op, OpenFile, Outcome, Permissions, SetAttr, SetXattr, Space, Stable,
    StreamEntry, Watch, Watches, What, XattrSummary,
};
use crate::backend::ReadOnly;
use crate::health::{Health, Heard};
use crate::opens::{Access, Key, Opens, Refused};
use crate::quota::Quota;

/// Maximum depth at which nodes below a directory are found.
const MAX_DEPTH: usize = 1024;
/// Maximum number of directories that [`Vfs::open_below`] remembers.
const MAX_JUDGED: usize = 16_384;

/// A share's file system, with a typed call for each operation, the table of its opens, and its watches. Clones share
/// all three, and the id. It may act for a client, which then keeps its caching rights on directories that it changes.
#[derive(Clone)]
pub struct Vfs {
    id: VfsId,
    backend: Arc<dyn Backend>,
    /// In whose name it acts.
    by: Caller,
    opens: Arc<Opens>,
    watches: Arc<Watches>,
    /// The client for which it acts.
    key: Option<Key>,
    streams: Arc<Streams>,
    /// Caches that keep files open between requests.
    caches: Arc<Caches>,
    /// Counts the changes of security descriptors.
    descriptors: Arc<AtomicU64>,
    /// The health of the disk, if monitored.
    health: Option<Arc<Health>>,
    /// The quota, if there is one.
    quota: Option<Quota>,
    /// Counts the failed flushes of its files.
    failures: Failures,
    /// Whether changes are durable when they are answered.
    settles: bool,
}

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
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let caches = Arc::default();
        unlinked::look_after(&backend, &caches);
        let failures = Failures::default();
        Vfs {
            id: VfsId::new(),
            backend,
            by: Caller::Server,
            opens: Arc::default(),
            watches: Arc::default(),
            key: None,
            streams: Arc::new(Streams::new(failures.clone())),
            caches,
            descriptors: Arc::default(),
            health: None,
            quota: None,
            failures,
            settles: false,
        }
    }

    /// Its id, which its clones have too, and those made by [`Vfs::read_only`] and the like.
    pub fn id(&self) -> VfsId {
        self.id
    }

    /// Notifies `cache`, which knows this file system as `share`, of files that have lost their last name.
    pub fn add_cache(&self, share: ShareId, cache: Weak<dyn Cache>) {
        self.caches.add(ShareKey { id: share, vfs: self.id }, cache);
    }

    /// Checks once for files that other programs have removed, as a thread does periodically.
    #[cfg(test)]
    pub(crate) fn sweep(&self, now: std::time::Instant) {
        self.backend.sweep(usize::MAX);
        self.backend.tidy(now);
        self.caches.sweep();
    }

    /// Carries out a change together with what follows from it: notifications, recalls, flushes. A worker finishes a call
    /// that it has begun, so what follows must not end with the request, whose connection may be lost: others would keep
    /// what they cache.
    async fn whole<T: 'static, F: Future<Output = Result<T, Error>> + 'static>(
        &self,
        change: impl FnOnce(Vfs) -> F,
    ) -> Result<T, Error> {
        rt::to_the_end(change(self.clone())).await
    }

    /// Runs an operation that removes the name `victim`, or may replace it, and notifies caches of its file. The
    /// file's streams are removed with its last name.
    async fn unlink(&self, op: Op, victim: Option<DirName<&[u8]>>) -> Result<Unsettled, Error> {
        let owner = match victim {
            Some(victim) => self.streams_at(victim.dir, victim.name).await?,
            None => None,
        };
        let (outcome, unsettled) = self.change(op).await?;
        let gone = expect!(outcome, Outcome::Unlinked(gone) => gone);
        if let Some(node) = gone {
            self.caches.forget(node);
        }
        let Some((node, _held, owned)) = owner else { return Ok(unsettled) };
        // It may have other names, or have got one meanwhile.
        let links = match self.submit(Op::Getattr { node }).await {
            Ok(outcome) => Some(expect!(outcome, Outcome::Attr(attr) => attr.nlink)),
            Err(Error::Stale | Error::NotFound) => Some(0),
            Err(e) => {
                tracing::warn!("a removed file may have left its streams behind: {e}");
                None
            }
        };
        if links == Some(0) {
            self.streams.base_is_gone(node).into_iter().for_each(|stream| self.caches.forget(stream));
            // The name is removed even if this fails; the hourly check finds leftovers.
            if let Err(e) = depot::purge(&*self.backend, owned).await {
                tracing::warn!("the streams of a removed file are still there: {e}");
            }
        }
        Ok(unsettled)
    }

    /// The large streams of the object with this name, and a hold of it.
    async fn streams_at(
        &self,
        dir: NodeId,
        name: &[u8],
    ) -> Result<Option<(NodeId, Hold, depot::Owned)>, Error> {
        if self.backend.is_read_only() || !depot::any(&*self.backend).await? {
            return Ok(None);
        }
        let op = Op::Lookup { dir, name: name.to_vec(), fold_case: false };
        let attr = match self.backend.submit(op, Caller::Server).await {
            Ok(outcome) => expect!(outcome, Outcome::Attr(attr) => attr),
            // The operation itself reports errors in the name.
            Err(_) => return Ok(None),
        };
        match depot::of(&*self.backend, attr.stable).await? {
            Some(owned) => Ok(Some((attr.node, self.hold(attr.node).await?, owned))),
            None => Ok(None),
        }
    }

    /// [`Error::Access`] for a name that clients may not use.
    fn may_name(name: &[u8]) -> Result<(), Error> {
        if depot::hides(name) { Err(Error::Access) } else { Ok(()) }
    }

    /// The same file system, acting for a client that caches directories under this key.
    #[must_use]
    pub fn in_name_of(&self, key: Option<Key>) -> Vfs {
        Vfs { key, ..self.clone() }
    }

    /// The key under which directories changed through this stay cached.
    pub fn in_whose_name(&self) -> Option<Key> {
        self.key
    }

    /// Breaks others' caching rights on a directory whose entries or their attributes have changed.
    pub fn children_changed(&self, dir: NodeId) {
        if self.opens.caches_directories() {
            // Nobody waits: a listing from a moment ago was correct then.
            let _ = self.opens.recall(dir, self.key, Access::Children);
        }
    }

    /// Breaks others' caching rights on the directory of a file whose content has changed, because its size and times
    /// are in the listing. For protocols whose writers have no handle to close.
    pub async fn content_changed(&self, node: NodeId) {
        if self.opens.caches_directories()
            && let Ok(DirName { dir, .. }) = self.place(node).await
        {
            self.children_changed(dir);
        }
    }

    /// The table of opens, of every protocol.
    pub fn opens(&self) -> &Arc<Opens> {
        &self.opens
    }

    /// Increases with every change of a security descriptor, which invalidates earlier copies.
    pub fn descriptors(&self) -> u64 {
        self.descriptors.load(Ordering::Acquire)
    }

    /// "dir" or "ram".
    pub fn kind(&self) -> &'static str {
        self.backend.kind()
    }

    /// The same file system with the same opens, refusing changes.
    #[must_use]
    pub fn read_only(self) -> Vfs {
        self.caches.set_read_only(true);
        Vfs { backend: Arc::new(ReadOnly::new(self.backend)), ..self }
    }

    /// The same file system, which may be changed again after it was served [`Vfs::read_only`].
    #[must_use]
    pub fn changeable(self) -> Vfs {
        self.caches.set_read_only(false);
        self
    }

    /// Whether the server itself may change files between requests, as it does to clean up.
    pub fn is_tidied(&self) -> bool {
        !self.caches.are_read_only()
    }

    /// The same file system with the same opens, for users who may only read it.
    #[must_use]
    pub fn for_readers(&self) -> Vfs {
        Vfs { backend: Arc::new(ReadOnly::for_readers(self.backend.clone())), ..self.clone() }
    }

    /// The same file system, whose disk errors are recorded in `health`.
    #[must_use]
    pub fn heard_by(self, health: Health) -> Vfs {
        let health = Arc::new(health);
        Vfs { backend: Arc::new(Heard::new(self.backend, health.clone())), health: Some(health), ..self }
    }

    /// Closes the files that protocols keep open between requests.
    pub fn close_cached(&self) {
        self.caches.close();
    }

    /// The same file system, limited by `quota`: files that are opened through it.
    #[must_use]
    pub fn limited(self, quota: Quota) -> Vfs {
        Vfs { backend: quota.over(self.backend), quota: Some(quota), ..self }
    }

    /// Its quota, if there is one.
    pub fn quota(&self) -> Option<&Quota> {
        self.quota.as_ref()
    }

    /// All problems of its disk, and what to do about them, as far as the disk answers.
    pub async fn troubles(&self) -> Option<String> {
        self.health.clone()?.look().await
    }

    /// The health of its disk, if monitored.
    pub fn health(&self) -> Option<&Health> {
        self.health.as_deref()
    }

    /// Whether all changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.backend.is_read_only()
    }

    fn witness(&self) -> Witness {
        Witness { backend: self.backend.clone(), watches: self.watches.clone() }
    }

    async fn named(&self, what: What, action: Action, dir: NodeId, name: &[u8]) {
        self.children_changed(dir);
        if self.watches.any() {
            self.witness().tell(vec![Event { what, action, dir, name }]).await;
        }
    }

    async fn modified(&self, node: NodeId, what: What) {
        self.content_changed(node).await;
        if self.watches.any() && what != What::NONE {
            self.witness().modified(node, what).await;
        }
    }

    /// Until it is dropped, the watch collects the changes selected by `filter` of names in `dir`, or in the whole
    /// tree below it, by whomever. `held` is charged for waiting changes.
    pub async fn watch(
        &self,
        dir: NodeId,
        recursive: bool,
        filter: What,
        held: Charge,
    ) -> Result<Watch, Error> {
        if self.getattr(dir).await?.kind != Kind::Dir {
            return Err(Error::NotDir);
        }
        Watch::new(&self.watches, self.backend.clone(), (dir, recursive, filter), held).await
    }

    /// Notifies the watches of `dir` that it is about to be removed, so that they do not wait any longer.
    pub fn end_watches(&self, dir: NodeId) {
        if self.watches.any() {
            self.watches.end(dir);
        }
    }

    /// See [`Op::Lookup`].
    pub async fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Attr, Error> {
        if depot::hides(name) || (fold_case && depot::hides_folded(name)) {
            return Err(Error::NotFound);
        }
        let op = Op::Lookup { dir, name: name.to_vec(), fold_case };
        Ok(expect!(self.submit(op).await?, Outcome::Attr(attr) => attr))
    }

    /// See [`Op::Getattr`].
    pub async fn getattr(&self, node: NodeId) -> Result<Attr, Error> {
        if Streams::is_stream(node) {
            // Boxed: few nodes are streams, and most requests await this.
            return Box::pin(self.stream_attr(node)).await;
        }
        if let Some(attr) = self.attr_now(node) {
            return attr;
        }
        Ok(expect!(self.submit(Op::Getattr { node }).await?, Outcome::Attr(attr) => attr))
    }

    /// The same, if the attributes can be had without waiting. `None` for named streams.
    pub fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        if Streams::is_stream(node) { None } else { self.backend.attr_now(node) }
    }

    /// See [`Op::Setattr`].
    pub async fn setattr(&self, node: NodeId, set: SetAttr) -> Result<Attr, Error> {
        self.whole(|vfs| async move { vfs.set_attributes(node, set).await }).await
    }

    async fn set_attributes(&self, node: NodeId, set: SetAttr) -> Result<Attr, Error> {
        if Streams::is_stream(node) {
            let stream = self.streams.find(node)?;
            if let Some(size) = set.size {
                self.judge_streams(stream.base, Permissions::WRITE).await?;
                stream.set_size(size).await?;
                stream.modified(&self.witness()).await;
                self.settle(Unsettled::streams(node)).await?;
            }
            let rest = SetAttr { size: None, ..set };
            if rest != SetAttr::default() {
                Box::pin(self.set_attributes(stream.base, rest)).await?;
            }
            return self.stream_attr(node).await;
        }
        let what = set.what();
        let (outcome, unsettled) = self.change(Op::Setattr { node, set }).await?;
        let attr = expect!(outcome, Outcome::Attr(attr) => attr);
        self.modified(node, what).await;
        self.settle(unsettled).await?;
        Ok(attr)
    }

    /// See [`Op::Open`].
    pub async fn open(&self, node: NodeId, write: bool) -> Result<OpenFile, Error> {
        let (file, told) = match Streams::is_stream(node) {
            true => {
                let stream = self.streams.find(node)?;
                let wanted = if write { Permissions::READ | Permissions::WRITE } else { Permissions::READ };
                self.judge_streams(stream.base, wanted).await?;
                (stream.open(write).await?, Told::Stream(stream))
            }
            false => {
                let opened = self.submit(Op::Open { node, write }).await?;
                (expect!(opened, Outcome::File(file) => file), Told::File(node))
            }
        };
        let file = file.counted_by(&self.failures);
        if !write {
            return Ok(file);
        }
        // Flushes cover the changes that watches were told about.
        let file = file.heard_by(self.health.clone());
        let file = file.wrapped(|object| Arc::new(Witnessed::new(object, told, self.witness())));
        Ok(file.settling(self.settles))
    }

    /// The number of failed flushes of files, over all protocols. It increases before anybody learns about the
    /// failure: unflushed writes from before may be lost, and no later flush reports that.
    pub fn failed_flushes(&self) -> u64 {
        self.failures.count()
    }

    /// See [`Op::Create`].
    pub async fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<Created, Error> {
        let (created, unsettled) = self.make(dir, name, make, exists, set).await?;
        self.settle(unsettled).await?;
        Ok(created)
    }

    /// The same, for a caller that must prepare the new object before others use it, and then settles it, whether or
    /// not that succeeded.
    pub async fn make(
        &self,
        dir: NodeId,
        name: &[u8],
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<(Created, Unsettled), Error> {
        Self::may_name(name)?;
        let name = name.to_vec();
        self.whole(move |vfs| async move {
            let truncates = set.size.is_some();
            let op = Op::Create { dir, name: name.clone(), make, exists, set };
            let (outcome, unsettled) = vfs.change(op).await?;
            let created = expect!(outcome, Outcome::Created(created) => created);
            if created.is_new {
                vfs.named(What::name_of(created.attr.kind), Action::Added, dir, &name).await;
            } else if truncates {
                vfs.named(What::SIZE | What::WRITTEN, Action::Modified, dir, &name).await;
            }
            Ok((created, unsettled))
        })
        .await
    }

    /// See [`Op::Remove`].
    pub async fn remove(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        Self::may_name(name)?;
        let op = Op::Remove { dir, name: name.to_vec() };
        self.remove_name(op, What::FILE_NAME, DirName { dir, name }.to_owned()).await
    }

    async fn remove_name(&self, op: Op, what: What, victim: DirName) -> Result<(), Error> {
        self.whole(move |vfs| async move {
            let unsettled = vfs.unlink(op, Some(DirName { dir: victim.dir, name: &victim.name[..] })).await?;
            vfs.named(what, Action::Removed, victim.dir, &victim.name).await;
            vfs.settle(unsettled).await
        })
        .await
    }

    /// See [`Op::Rmdir`].
    pub async fn rmdir(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        Self::may_name(name)?;
        let op = Op::Rmdir { dir, name: name.to_vec() };
        self.remove_name(op, What::DIR_NAME, DirName { dir, name }.to_owned()).await
    }

    /// See [`Op::MayUnlink`].
    pub async fn may_unlink(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        Self::may_name(name)?;
        let op = Op::MayUnlink { dir, name: name.to_vec() };
        expect!(self.submit(op).await?, Outcome::Done => ());
        Ok(())
    }

    /// See [`Op::Rename`].
    pub async fn rename(&self, from: DirName<&[u8]>, to: DirName<&[u8]>, replace: bool) -> Result<(), Error> {
        Self::may_name(from.name)?;
        Self::may_name(to.name)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        self.whole(move |vfs| async move { vfs.move_name(from, to, replace).await }).await
    }

    async fn move_name(&self, from: DirName, to: DirName, replace: bool) -> Result<(), Error> {
        let from = DirName { dir: from.dir, name: &from.name[..] };
        let to = DirName { dir: to.dir, name: &to.name[..] };
        // Watches need the kind of the moved name, and the replaced name, if any.
        let seen = if self.watches.any() {
            let moved = self.lookup(from.dir, from.name, false).await.ok();
            let replaced = if replace { self.lookup(to.dir, to.name, false).await.ok() } else { None };
            // See [`Op::Rename`]. A file's only name may be given in another case.
            let stays = moved.as_ref().zip(replaced.as_ref()).is_some_and(|(moved, replaced)| {
                moved.node == replaced.node && (replaced.nlink > 1 || from == to)
            });
            (!stays).then(|| (moved.map_or(Kind::File, |moved| moved.kind), replaced))
        } else {
            None
        };
        let op = Op::Rename { from: from.to_owned(), to: to.to_owned(), replace };
        let unsettled = self.unlink(op, replace.then_some(to)).await?;
        self.children_changed(from.dir);
        self.children_changed(to.dir);
        let Some((kind, replaced)) = seen else { return self.settle(unsettled).await };
        let what = What::name_of(kind);
        let (gone, come) = match from.dir == to.dir {
            true => (Action::RenamedFrom, Action::RenamedTo),
            false => (Action::Removed, Action::Added),
        };
        let removed = replaced.map(|replaced| (What::name_of(replaced.kind), Action::Removed, to));
        let changes = removed.into_iter().chain([(what, gone, from), (what, come, to)]);
        let events = changes.map(|(what, action, DirName { dir, name })| Event { what, action, dir, name });
        self.witness().tell(events.collect()).await;
        self.settle(unsettled).await
    }

    /// See [`Op::Link`].
    pub async fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        Self::may_name(name)?;
        let name = name.to_vec();
        self.whole(move |vfs| async move {
            let (outcome, unsettled) = vfs.change(Op::Link { node, dir, name: name.clone() }).await?;
            expect!(outcome, Outcome::Done => ());
            vfs.named(What::FILE_NAME, Action::Added, dir, &name).await;
            vfs.settle(unsettled).await
        })
        .await
    }

    /// See [`Op::Readlink`].
    pub async fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        Ok(expect!(self.submit(Op::Readlink { node }).await?, Outcome::Target(target) => target))
    }

    /// See [`Op::Readdir`].
    pub async fn readdir(&self, dir: NodeId, cookie: u64, max: usize) -> Result<Listing, Error> {
        self.entries(dir, (cookie, max), false).await
    }

    /// Without entries that are hidden from clients.
    async fn entries(
        &self,
        dir: NodeId,
        (mut cookie, max): (u64, usize),
        xattrs: bool,
    ) -> Result<Listing, Error> {
        loop {
            let op = Op::Readdir { dir, cookie, max, xattrs };
            let mut listing = expect!(self.submit(op).await?, Outcome::Entries(listing) => listing);
            cookie = listing.entries.last().map_or(cookie, |last| last.cookie);
            listing.entries.retain(|entry| entry.name != depot::FOLDER);
            // At least one, unless the directory ends.
            if listing.is_last || !listing.entries.is_empty() {
                return Ok(listing);
            }
        }
    }

    /// Like [`Vfs::readdir`], with the summary of each file's extended attributes: one more system call per entry.
    pub async fn readdir_with_xattrs(&self, dir: NodeId, cookie: u64, max: usize) -> Result<Listing, Error> {
        self.entries(dir, (cookie, max), true).await
    }

    /// See [`Op::Place`].
    pub async fn place(&self, node: NodeId) -> Result<DirName, Error> {
        let node = self.streams.base(node)?;
        Ok(expect!(self.submit(Op::Place { node }).await?, Outcome::Place(place) => place))
    }

    /// See [`Op::Statfs`].
    pub async fn statfs(&self) -> Result<Space, Error> {
        Ok(expect!(self.submit(Op::Statfs).await?, Outcome::Space(space) => space))
    }

    /// See [`Op::SyncDir`].
    pub async fn sync_dir(&self, dir: NodeId) -> Result<(), Error> {
        expect!(self.submit(Op::SyncDir { dir }).await?, Outcome::Done => ());
        Ok(())
    }

    /// See [`Op::Hold`].
    pub async fn hold(&self, node: NodeId) -> Result<Hold, Error> {
        if Streams::is_stream(node) {
            return self.streams.find(node)?.hold().await;
        }
        Ok(expect!(self.submit(Op::Hold { node }).await?, Outcome::Held(hold) => hold))
    }

    /// See [`Op::GetXattr`]. [`Error::NoXattr`] if there is none, [`Error::NotSupported`] if the file system, or a
    /// node that is neither file nor directory, has no attributes at all.
    pub async fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Error> {
        let node = self.streams.base(node)?;
        let op = Op::GetXattr { node, name: name.to_vec() };
        Ok(expect!(self.submit(op).await?, Outcome::Value(value) => value))
    }

    /// See [`Op::SetXattr`]. [`Error::XattrTooBig`] beyond [`MAX_XATTR_VALUE`](super::MAX_XATTR_VALUE),
    /// [`Error::NoSpace`] if the file system accepts less.
    pub async fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let node = self.streams.base(node)?;
        loop {
            let op = Op::SetXattr { node, name: name.to_vec(), value: value.to_vec(), how };
            match self.change_xattr(node, name, op).await {
                // A stream stored in an attribute can be moved to a file.
                Err(e) if is_full(&e) && value.len() <= super::MAX_XATTR_VALUE => {
                    if !self.streams.make_room(&self.backend, node).await? {
                        return Err(e);
                    }
                }
                other => return other,
            }
        }
    }

    /// See [`Op::ListXattrs`]. No protocol shows the names that begin with [`OWN_XATTRS`].
    pub async fn list_xattrs(&self, node: NodeId) -> Result<Vec<Vec<u8>>, Error> {
        let node = self.streams.base(node)?;
        Ok(expect!(self.submit(Op::ListXattrs { node }).await?, Outcome::Names(names) => names))
    }

    /// See [`Op::RemoveXattr`].
    pub async fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Error> {
        let node = self.streams.base(node)?;
        let op = Op::RemoveXattr { node, name: name.to_vec() };
        self.change_xattr(node, name, op).await
    }

    /// Sets or removes the attribute `name`, and sends notifications.
    async fn change_xattr(&self, node: NodeId, name: &[u8], op: Op) -> Result<(), Error> {
        let (protects, is_own) = (name == crate::access::XATTR, name.starts_with(OWN_XATTRS));
        self.whole(move |vfs| async move {
            let done = vfs.change(op).await;
            if protects {
                vfs.descriptors.fetch_add(1, Ordering::AcqRel);
            }
            let (outcome, unsettled) = done?;
            expect!(outcome, Outcome::Done => ());
            if !is_own {
                vfs.modified(node, What::XATTRS).await;
            }
            vfs.settle(unsettled).await
        })
        .await
    }

    /// See [`Op::XattrSummary`].
    pub async fn xattr_summary(&self, node: NodeId) -> Result<XattrSummary, Error> {
        let node = self.streams.base(node)?;
        Ok(expect!(self.submit(Op::XattrSummary { node }).await?, Outcome::XattrSummary(summary) => summary))
    }

    /// Stores DOS attributes and birth of a file; `before` is the previous value, for detecting changes.
    /// [`Error::NotSupported`] without extended attributes.
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

    /// The node of a file's stream, found ignoring case; with `make` it is created if it is missing. A stream has its file's attributes with its own size and number; it is opened, held, read and
    /// written like a file. Its number is valid as long as there is a [`Hold`] or an [`OpenFile`] of it, and for a
    /// while after a look-up. [`Error::NotFound`] if it does not exist.
    pub async fn stream(&self, base: NodeId, name: &[u8], make: bool) -> Result<Created, Error> {
        if make && self.is_judged() {
            // Only the creation of a stream needs a permission; its use is judged when it is opened.
            match self.streams.look_up(&self.backend, base, name, false).await {
                Err(Error::NotFound) => self.judge_streams(base, Permissions::WRITE).await?,
                found => drop(found?),
            }
        }
        let (stream, is_new) = self.streams.look_up(&self.backend, base, name, make).await?;
        if is_new {
            let witness = self.witness();
            witness.streams(base, &[(name, What::STREAM_NAME, Action::StreamAdded)]).await;
            self.settle(Unsettled::streams(base)).await?;
        }
        Ok(Created { attr: self.stream_attr(stream.id).await?, is_new })
    }

    async fn stream_attr(&self, id: NodeId) -> Result<Attr, Error> {
        let stream = self.streams.find(id)?;
        let Extent { size, allocated } = stream.extent().await?;
        let op = Op::Getattr { node: stream.base };
        let base = expect!(self.submit(op).await?, Outcome::Attr(attr) => attr);
        Ok(Attr { node: id, kind: Kind::File, size, allocated, ..base })
    }

    /// The file and name of the stream with this number; `None` if it is not a stream.
    pub fn stream_of(&self, node: NodeId) -> Option<(NodeId, Vec<u8>)> {
        // The number itself shows that most nodes are not streams, without a look-up.
        let stream = Streams::is_stream(node).then(|| self.streams.find(node).ok())??;
        Some((stream.base, stream.name()))
    }

    /// Whether the opens of its streams allow removing a file or directory ([MS-FSA] 2.1.5.1.2.2: they are removed
    /// with it).
    pub fn may_remove_with_streams(&self, base: NodeId) -> Result<(), Refused> {
        self.streams.of(base).into_iter().try_for_each(|stream| self.opens.may_remove(stream))
    }

    /// The open nodes below `dir`, at any depth, in the order of their numbers. Open nodes mostly have the same
    /// directories above them, so each of those is asked for its place once. An open file whose place cannot be found
    /// out is left out: an open is of a file, not of its name, so it keeps its data wherever that is.
    pub async fn open_below(&self, dir: NodeId) -> Vec<NodeId> {
        let (mut below, mut judged) = (Vec::new(), HashMap::new());
        for node in self.opens.open_nodes() {
            if self.is_below(node, dir, &mut judged).await {
                below.push(node);
            }
        }
        below.sort_unstable();
        below
    }

    /// Whether `node` is below `dir`, at any depth. `judged` keeps the answers for the directories on the way.
    async fn is_below(&self, node: NodeId, dir: NodeId, judged: &mut HashMap<NodeId, bool>) -> bool {
        // A stream is where its file is; one of the root is nowhere else.
        let (mut at, mut way, mut found) = (self.base(node), Vec::new(), None);
        if at == dir {
            return false;
        }
        for _ in 0..MAX_DEPTH {
            rt::yield_if_due().await;
            if at == NodeId::ROOT {
                found = Some(false);
                break;
            }
            // A node without a name is in no directory.
            found = match self.place(at).await {
                Ok(place) if place.dir == dir => Some(true),
                Ok(place) => {
                    at = place.dir;
                    judged.get(&at).copied()
                }
                Err(Error::NotFound | Error::Stale) => Some(false),
                Err(e) => {
                    tracing::debug!(
                        "the place of {at:?}, which is open or above an open file, is not known: {e}"
                    );
                    return false;
                }
            };
            if found.is_some() {
                break;
            }
            way.push(at);
        }
        // A name that is too deep says nothing about the directories on the way.
        let Some(found) = found else { return false };
        let room = MAX_JUDGED.saturating_sub(judged.len());
        judged.extend(way.into_iter().take(room).map(|at| (at, found)));
        found
    }

    /// The file or directory of a number: a stream's file, or the node itself.
    pub fn base(&self, node: NodeId) -> NodeId {
        self.streams.base(node).unwrap_or(node)
    }

    /// All named streams of a file or directory.
    pub async fn streams(&self, base: NodeId) -> Result<Vec<StreamEntry>, Error> {
        let mut all = Vec::new();
        self.streams_while(base, |stream| {
            all.push(stream);
            true
        })
        .await?;
        Ok(all)
    }

    /// Its named streams in order, until `each` returns that it wants no more.
    pub async fn streams_while(
        &self,
        base: NodeId,
        each: impl FnMut(StreamEntry) -> bool,
    ) -> Result<(), Error> {
        self.streams.list(&*self.backend, base, each).await
    }

    /// Those of its named streams that `wanted` selects by their stored names, with their content if it has no more than
    /// `max` bytes. Permissions are not judged: listings show what the attributes of files are to others.
    pub async fn stream_heads(
        &self,
        base: NodeId,
        wanted: impl Fn(&[u8]) -> bool,
        (max, pool): (usize, &Pool),
    ) -> Result<Vec<StreamHead>, Error> {
        self.streams.heads(&self.backend, base, wanted, (max, pool)).await
    }

    /// Whether a file or directory has any named stream; false for a node that cannot have one.
    pub async fn has_streams(&self, base: NodeId) -> Result<bool, Error> {
        match self.streams.any(&*self.backend, base).await {
            Err(Error::NotSupported) => Ok(false),
            other => other,
        }
    }

    /// Removes a stream. Clients that have it open keep its bytes.
    pub async fn remove_stream(&self, base: NodeId, name: &[u8]) -> Result<(), Error> {
        self.judge_streams(base, Permissions::WRITE).await?;
        let gone = self.streams.remove(&self.backend, base, name).await?;
        self.caches.forget(gone);
        self.witness().streams(base, &[(name, What::STREAM_NAME, Action::StreamRemoved)]).await;
        self.settle(Unsettled::streams(base)).await
    }

    /// Renames the stream with this number; an existing stream is replaced only with `replace`.
    pub async fn rename_stream(&self, stream: NodeId, to: &[u8], replace: bool) -> Result<(), Error> {
        let stream = self.streams.find(stream)?;
        self.judge_streams(stream.base, Permissions::WRITE).await?;
        let from = stream.name();
        let replaced = self.streams.rename(&stream, to, replace).await?;
        replaced.into_iter().for_each(|stream| self.caches.forget(stream));
        let names = What::STREAM_NAME;
        let changes = [(&from[..], names, Action::StreamRemoved), (to, names, Action::StreamAdded)];
        self.witness().streams(stream.base, &changes).await;
        self.settle(Unsettled::streams(stream.base)).await
    }

    /// See [`Op::Stable`].
    pub async fn stable(&self, node: NodeId) -> Result<Stable, Error> {
        let node = self.streams.base(node)?;
        Ok(expect!(self.submit(Op::Stable { node }).await?, Outcome::Stable(stable) => stable))
    }

    /// The names from the root to a node, with `/` between them; empty for the root.
    pub async fn path(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        let (mut at, mut path) = (self.streams.base(node)?, Vec::new());
        for _ in 0..MAX_DEPTH {
            if at == NodeId::ROOT {
                return Ok(path);
            }
            let DirName { dir, mut name } = self.place(at).await?;
            if !path.is_empty() {
                name.push(b'/');
            }
            name.append(&mut path);
            (at, path) = (dir, name);
        }
        Err(Error::Limit("depth of a name"))
    }

    /// Like [`Vfs::find`], for a file that was last seen at `path`: it is searched for only if it is no longer there.
    pub async fn find_at(&self, path: &[u8], stable: Stable) -> Result<Attr, Error> {
        let mut at = NodeId::ROOT;
        for name in
            path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".." && *name != b".")
        {
            match self.lookup(at, name, false).await {
                Ok(attr) if attr.stable == stable => return Ok(attr),
                Ok(attr) => at = attr.node,
                Err(Error::NotFound | Error::NotDir | Error::Stale | Error::Access) => break,
                Err(e) => return Err(e),
            }
        }
        self.find(stable).await
    }

    /// See [`Op::Find`]. [`Error::Stale`] if no file of the share has this identity (any more).
    pub async fn find(&self, stable: Stable) -> Result<Attr, Error> {
        Ok(expect!(self.submit(Op::Find { stable }).await?, Outcome::Attr(attr) => attr))
    }
}

impl SetAttr {
    /// The changed attributes, for watches.
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
