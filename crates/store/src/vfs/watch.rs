//! Watches: who wants to know what changes in a directory, and the queues that tell them.
//!
//! Spec: [MS-FSA] 2.1.4.1 (change notifications) decides which events there are; NFS may ask for them as well.
//! Owns: the queues. Limits: [`MAX_WATCHES`] of a share; [`MAX_QUEUED`] changes of a watch, [`MAX_QUEUED_BYTES`] of all together,
//! then its queue is emptied and marked: whoever reads it lists the directory anew.
//! Does not: watch the disk (a backend does, see [`Backend::observe`]): every change that goes through [`super::Vfs`]
//! is told, whichever protocol it came by.
//!
//! Cost: while nothing is watched, one atomic load per change. A change is told to whoever watches its directory;
//! watches of whole trees make every change cost a walk up to the root.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{BitOr, BitOrAssign};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::own::Own;
use super::stream::Stream;
use super::{Backend, Error, Kind, NodeId, Op, Outcome};

/// Watches of one share at a time.
pub const MAX_WATCHES: usize = 65_536;
/// Changes that wait in one queue.
pub const MAX_QUEUED: usize = 4096;
/// What the changes take that wait in all queues of a share: one that nobody reads costs no more than one that is read.
pub const MAX_QUEUED_BYTES: usize = 32 << 20;
/// What a change takes beside its path.
const CHANGE_BYTES: usize = 64;
/// How deep below a watched tree a change is still seen.
const MAX_DEPTH: usize = 1024;

/// What about a name or a file changed; a watch asks for some of these. Numbered as [MS-SMB2] 2.2.35 numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct What(pub u32);

impl What {
    /// Nothing.
    pub const NONE: What = What(0);
    /// A file's name: made, removed, renamed.
    pub const FILE_NAME: What = What(0x001);
    /// A directory's name.
    pub const DIR_NAME: What = What(0x002);
    /// Permissions, DOS attributes.
    pub const ATTRIBUTES: What = What(0x004);
    /// Size.
    pub const SIZE: What = What(0x008);
    /// Content, or the time of the last write.
    pub const WRITTEN: What = What(0x010);
    /// The time of the last read.
    pub const READ: What = What(0x020);
    /// The time of birth.
    pub const BORN: What = What(0x040);
    /// Extended attributes.
    pub const XATTRS: What = What(0x080);
    /// Owner, group, access control list.
    pub const SECURITY: What = What(0x100);
    /// A stream's name.
    pub const STREAM_NAME: What = What(0x200);
    /// A stream's size.
    pub const STREAM_SIZE: What = What(0x400);
    /// A stream's content.
    pub const STREAM_WRITTEN: What = What(0x800);
    /// All of them.
    pub const ALL: What = What(0xfff);

    /// Whether they have one in common.
    pub fn intersects(self, other: What) -> bool {
        self.0 & other.0 != 0
    }

    /// The name of a node of this kind.
    pub fn name_of(kind: Kind) -> What {
        if kind == Kind::Dir { What::DIR_NAME } else { What::FILE_NAME }
    }
}

impl BitOr for What {
    type Output = What;
    fn bitor(self, other: What) -> What {
        What(self.0 | other.0)
    }
}

impl BitOrAssign for What {
    fn bitor_assign(&mut self, other: What) {
        self.0 |= other.0;
    }
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The name appeared.
    Added,
    /// It went.
    Removed,
    /// What it names changed.
    Modified,
    /// It was renamed: the old name. The new one follows at once.
    RenamedFrom,
    /// The new name.
    RenamedTo,
    /// A stream (`name:stream`) appeared.
    StreamAdded,
    /// A stream went.
    StreamRemoved,
    /// A stream changed.
    StreamModified,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What happened.
    pub action: Action,
    /// To which path below the watched directory, `/` between names.
    pub path: Vec<u8>,
}

/// What a watch has seen since it was asked last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// In order.
    pub changes: Vec<Change>,
    /// There were more than the queue holds: `changes` is empty, and the directory is to be listed anew.
    pub overflowed: bool,
    /// The directory itself is about to be removed: nothing more will be told.
    pub ended: bool,
}

impl Changes {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.overflowed && !self.ended
    }
}

struct Queue {
    queued: Mutex<Queued>,
    waker: AtomicWaker,
    /// Bytes that wait in all queues of the share.
    all_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queued {
    changes: VecDeque<Change>,
    /// What they take.
    bytes: usize,
    overflowed: bool,
    ended: bool,
}

impl Queued {
    /// Whether that is something new.
    fn push(&mut self, change: Change, all_bytes: &AtomicUsize) -> bool {
        // A file that is written to again says nothing new.
        let same = change.action == Action::Modified && self.changes.back() == Some(&change);
        if self.overflowed || same {
            return false;
        }
        let bytes = CHANGE_BYTES.saturating_add(change.path.len());
        let grown = |all: usize| all.checked_add(bytes).filter(|all| *all <= MAX_QUEUED_BYTES);
        let room = self.changes.len() < MAX_QUEUED
            && all_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if room {
            self.bytes += bytes;
            self.changes.push_back(change);
        } else {
            self.empty(all_bytes);
            self.overflowed = true;
        }
        true
    }

    /// Takes out what is queued.
    fn empty(&mut self, all_bytes: &AtomicUsize) -> Queued {
        let ended = self.ended;
        let taken = std::mem::replace(self, Queued { ended, ..Queued::default() });
        all_bytes.fetch_sub(taken.bytes, Ordering::Relaxed);
        taken
    }
}

impl Queue {
    fn new(all_bytes: Arc<AtomicUsize>) -> Queue {
        Queue { queued: Mutex::default(), waker: AtomicWaker::new(), all_bytes }
    }

    fn queued(&self) -> MutexGuard<'_, Queued> {
        // Each critical section leaves the queue whole.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds all of them before anybody can take one.
    fn push(&self, changes: impl Iterator<Item = Change>) {
        let mut queued = self.queued();
        let mut any = false;
        for change in changes {
            any |= queued.push(change, &self.all_bytes);
        }
        drop(queued);
        if any {
            self.waker.wake();
        }
    }

    fn overflow(&self) {
        let mut queued = self.queued();
        queued.empty(&self.all_bytes);
        queued.overflowed = true;
        drop(queued);
        self.waker.wake();
    }

    fn end(&self) {
        self.queued().ended = true;
        self.waker.wake();
    }

    fn take(&self) -> Changes {
        let mut queued = self.queued();
        let taken = queued.empty(&self.all_bytes);
        queued.ended = false;
        drop(queued);
        Changes { changes: taken.changes.into(), overflowed: taken.overflowed, ended: taken.ended }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let bytes = self.queued().bytes;
        self.all_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What happened to a name in a directory.
pub struct Event<'a> {
    /// What about it changed.
    pub what: What,
    /// How.
    pub action: Action,
    /// The directory.
    pub dir: NodeId,
    /// The name.
    pub name: &'a [u8],
}

/// The directories from one up to the root, with the name of each in the next.
pub type Above = Vec<(NodeId, Vec<u8>)>;

struct Registered {
    dir: NodeId,
    recursive: bool,
    filter: What,
    queue: Arc<Queue>,
}

impl Registered {
    /// The event, as this watch tells it; `above` are the directories above the event's.
    fn sees(&self, event: &Event<'_>, above: &Above) -> Option<Change> {
        if !self.filter.intersects(event.what) {
            return None;
        }
        let mut path = Vec::new();
        if self.dir != event.dir {
            // above[0] is (parent of dir, name of dir in it), and so on.
            let at = above.iter().position(|(parent, _)| *parent == self.dir).filter(|_| self.recursive)?;
            for (_, part) in above.get(..=at)?.iter().rev() {
                path.extend_from_slice(part);
                path.push(b'/');
            }
        }
        path.extend_from_slice(event.name);
        Some(Change { action: event.action, path })
    }
}

/// All watches of a share.
#[derive(Default)]
pub struct Watches {
    list: Mutex<BTreeMap<u64, Registered>>,
    next: AtomicU64,
    count: AtomicUsize,
    /// Those of whole trees among them.
    trees: AtomicUsize,
    /// What waits in all queues.
    queued_bytes: Arc<AtomicUsize>,
    own: Own,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watches({})", self.count.load(Ordering::Relaxed))
    }
}

impl Watches {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, Registered>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks of what we do ourselves.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// Whether anybody watches anything.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether somebody watches a whole tree, so that a change must know the path that leads to it.
    pub fn any_tree(&self) -> bool {
        self.trees.load(Ordering::Acquire) > 0
    }

    fn add(self: &Arc<Watches>, registered: Registered) -> Result<u64, Error> {
        let mut list = self.list();
        if list.len() >= MAX_WATCHES {
            return Err(Error::Limit("watches of a share"));
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.trees.fetch_add(usize::from(registered.recursive), Ordering::Release);
        list.insert(id, registered);
        self.count.store(list.len(), Ordering::Release);
        Ok(id)
    }

    fn remove(&self, id: u64) {
        let mut list = self.list();
        if let Some(removed) = list.remove(&id) {
            self.trees.fetch_sub(usize::from(removed.recursive), Ordering::Release);
        }
        self.count.store(list.len(), Ordering::Release);
    }

    /// Tells what happened, at once: who watches sees all of it or nothing, so that no rename comes in halves. With each event go
    /// the directories above its own, which are only looked at for watches of trees.
    pub fn tell(&self, events: &[(Event<'_>, Above)]) {
        for watch in self.list().values() {
            watch.queue.push(events.iter().filter_map(|(event, above)| watch.sees(event, above)));
        }
    }

    /// Tells whoever watches `dir` that it is about to be removed.
    pub fn end(&self, dir: NodeId) {
        self.list().values().filter(|watch| watch.dir == dir).for_each(|watch| watch.queue.end());
    }

    /// Tells whoever watches `dir`, or a tree, that changes were lost.
    pub fn lost(&self, dir: Option<NodeId>) {
        for watch in self.list().values().filter(|w| dir.is_none_or(|dir| w.recursive || w.dir == dir)) {
            watch.queue.overflow();
        }
    }
}

/// A watch on a directory, or on the tree below one. Dropping it ends it. One task at a time waits on it.
pub struct Watch {
    id: u64,
    queue: Arc<Queue>,
    watches: Arc<Watches>,
    /// What the backend does to see changes that others make.
    _observed: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.id)
    }
}

impl Watch {
    pub(super) fn new(
        watches: &Arc<Watches>,
        backend: Arc<dyn Backend>,
        (dir, recursive, filter): (NodeId, bool, What),
    ) -> Result<Watch, Error> {
        let queue = Arc::new(Queue::new(watches.queued_bytes.clone()));
        let id = watches.add(Registered { dir, recursive, filter, queue: queue.clone() })?;
        let mut watch = Watch { id, queue, watches: watches.clone(), _observed: None };
        watch._observed = backend.observe(dir, recursive, watches);
        Ok(watch)
    }

    /// What has happened since the last call; empty when nothing has.
    pub fn take(&self) -> Changes {
        self.queue.take()
    }

    /// Waits until something happens.
    pub async fn next(&self) -> Changes {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Watch::next`], for who waits for something else too. The task that polled last is woken.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Changes> {
        self.queue.waker.register(cx.waker());
        let changes = self.queue.take();
        if changes.is_empty() { Poll::Pending } else { Poll::Ready(changes) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watches.remove(self.id);
    }
}

/// What sees changes and tells them: a backend, to ask where a node is, and its watches.
#[derive(Clone)]
pub(super) struct Witness {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) watches: Arc<Watches>,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.watches.fmt(f)
    }
}

impl Witness {
    pub(super) fn is_watched(&self) -> bool {
        self.watches.any()
    }

    async fn place(&self, node: NodeId) -> Option<(NodeId, Vec<u8>)> {
        if node == NodeId::ROOT {
            return None;
        }
        match self.backend.submit(Op::Place { node }).await {
            Ok(Outcome::Place { dir, name }) => Some((dir, name)),
            // It has no name any more: nobody can be told of it.
            _ => None,
        }
    }

    /// Tells changes of names, all at once. Failing to find the way to the root is no failure of the change.
    pub(super) async fn tell(&self, events: Vec<Event<'_>>) {
        if !self.is_watched() {
            return;
        }
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            let above = if self.watches.any_tree() { self.above(event.dir).await } else { Above::new() };
            told.push((event, above));
        }
        self.watches.tell(&told);
    }

    async fn above(&self, dir: NodeId) -> Above {
        let (mut at, mut above) = (dir, Above::new());
        while let Some((parent, name)) = self.place(at).await {
            above.push((parent, name));
            at = parent;
            if above.len() == MAX_DEPTH {
                break;
            }
        }
        above
    }

    /// Tells a change of a stream.
    pub(super) async fn stream(&self, stream: &Stream, what: What) {
        self.streams(stream.base, &[(&stream.name(), what, Action::StreamModified)]).await;
    }

    /// Tells what happened to streams of `base`, all at once.
    pub(super) async fn streams(&self, base: NodeId, changes: &[(&[u8], What, Action)]) {
        if !self.is_watched() {
            return;
        }
        if let Some((dir, file)) = self.place(base).await {
            let names: Vec<_> = changes.iter().map(|(name, ..)| [&file, &b":"[..], name].concat()).collect();
            let events = names.iter().zip(changes);
            let events = events.map(|(name, &(_, what, action))| Event { what, action, dir, name });
            self.tell(events.collect()).await;
        }
    }

    /// Tells a change of what a name leads to.
    pub(super) async fn modified(&self, node: NodeId, what: What) {
        if !self.is_watched() {
            return;
        }
        if let Some((dir, name)) = self.place(node).await {
            self.tell(vec![Event { what, action: Action::Modified, dir, name: &name }]).await;
        }
    }
}
