//! Watches: subscriptions to changes in a directory, and the queues that deliver them.
//!
//! [MS-FSA] 2.1.4.1 (change notifications) defines the events; NFS can use them as well.
//! Limits: [`MAX_WATCHES`] of a share; [`MAX_QUEUED`] changes and one MiB per watch, and the room in its owner's
//! [`Charge`]; beyond that the queue is emptied and marked, and its reader lists the directory again. The disk is not
//! watched here (a backend does that, see [`Backend::observe`]): changes through [`super::Vfs`] are reported,
//! whatever their protocol.
//!
//! Cost: while nothing is watched, one atomic load per change. A change is reported to the watches of its directory,
//! without examining others; watches of whole trees make every change walk up to the root. All watches of a directory
//! share one path, which is built only if one of them has room for it.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{BitOr, BitOrAssign};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use weft_machine::budget::Holder;
use weft_machine::{Charge, rt};

use super::own::Own;
use super::{Backend, Caller, DirName, Error, Kind, NodeId, Op, Outcome};

/// Maximum number of watches of one share.
pub const MAX_WATCHES: usize = 65_536;
/// Maximum number of watches of one directory, and of the tree below it, per account: each adds a cost to every
/// change there. Two connections of smbtorture have 512 requests each outstanding.
pub const MAX_WATCHES_OF_A_DIR: usize = 1024;
/// The same over all accounts.
pub const MAX_WATCHES_OF_A_DIR_IN_ALL: usize = 4 * MAX_WATCHES_OF_A_DIR;
/// Maximum number of changes in one queue: readers have no more room either, and deep changes by others must not use
/// up what the watch's owner may hold.
pub const MAX_QUEUED: usize = 4096;
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Memory of a change besides its path and directories, and of each directory.
const CHANGE_BYTES: usize = 96;
const DIR_BYTES: usize = size_of::<NodeId>();
/// The longest reported path: no Windows client accepts longer ones, and a tree has a path for each folder on the
/// way.
const MAX_PATH_BYTES: usize = 32 << 10;
/// Maximum depth below a watched tree at which changes are seen.
const MAX_DEPTH: usize = 1024;

/// Which property of a name or file changed; a watch selects some of these. Numbered as in [MS-SMB2] 2.2.35.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct What(pub u32);

impl What {
    /// Nothing.
    pub const NONE: What = What(0);
    /// A file's name: created, removed, renamed.
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

    /// Whether both have a property in common.
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

/// The kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The name was added.
    Added,
    /// The name was removed.
    Removed,
    /// The named object changed.
    Modified,
    /// It was renamed: the old name. The new one follows immediately.
    RenamedFrom,
    /// The new name.
    RenamedTo,
    /// A stream (`name:stream`) appeared.
    StreamAdded,
    /// A stream was removed.
    StreamRemoved,
    /// A stream changed.
    StreamModified,
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The kind.
    pub action: Action,
    /// The path below the watched directory, `/` between names.
    pub path: Arc<[u8]>,
    /// The directories below the watched one on that path, the innermost first: whoever tells a user of the change can
    /// ask whether the user may see them.
    pub dirs: Arc<[NodeId]>,
}

/// The changes that a watch has collected since the last call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// There were more than the queue holds: `changes` is empty, and the directory must be listed again.
    pub overflowed: bool,
    /// The directory itself is about to be removed: no more changes follow.
    pub ended: bool,
}

impl Changes {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.overflowed && !self.ended
    }
}

struct Queue {
    queued: Mutex<Queued>,
    waker: AtomicWaker,
    /// The memory of the watch and its queue.
    held: Charge,
}

#[derive(Default)]
struct Queued {
    changes: VecDeque<Change>,
    /// Their memory.
    bytes: usize,
    overflowed: bool,
    ended: bool,
}

impl Queued {
    /// Whether that is a new change. The path is charged to each queue that has it, although they share it.
    fn push(&mut self, told: &Told<'_>, held: &Charge) -> bool {
        // Another write to the same file is not a new change.
        let said = |last: &Change| last.action == Action::Modified && told.is_at(&last.path);
        if self.overflowed || told.event.action == Action::Modified && self.changes.back().is_some_and(said) {
            return false;
        }
        let dirs = told.below.len().saturating_mul(DIR_BYTES);
        let bytes = CHANGE_BYTES.saturating_add(told.len).saturating_add(dirs);
        let all = self.bytes.saturating_add(bytes);
        let fits = self.changes.len() < MAX_QUEUED && all <= MAX_QUEUED_BYTES && told.len <= MAX_PATH_BYTES;
        if fits && held.grow(bytes).is_ok() {
            self.bytes = all;
            let (path, dirs) = (told.path().clone(), told.dirs().clone());
            self.changes.push_back(Change { action: told.event.action, path, dirs });
        } else {
            self.empty(held);
            self.overflowed = true;
        }
        true
    }

    /// Takes all queued changes.
    fn empty(&mut self, held: &Charge) -> Queued {
        let ended = self.ended;
        let taken = std::mem::replace(self, Queued { ended, ..Queued::default() });
        if taken.bytes > 0 {
            held.shrink(taken.bytes);
        }
        taken
    }
}

impl Queue {
    fn new(held: Charge) -> Queue {
        Queue { queued: Mutex::default(), waker: AtomicWaker::new(), held }
    }

    fn queued(&self) -> MutexGuard<'_, Queued> {
        // Every critical section leaves the queue consistent.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds all of them before anybody can take one.
    fn push<'a>(&self, changes: impl Iterator<Item = &'a Told<'a>>) {
        let mut queued = self.queued();
        let mut any = false;
        for told in changes {
            any |= queued.push(told, &self.held);
        }
        drop(queued);
        if any {
            self.waker.wake();
        }
    }

    fn overflow(&self) {
        let mut queued = self.queued();
        queued.empty(&self.held);
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
        let taken = queued.empty(&self.held);
        queued.ended = false;
        drop(queued);
        Changes { changes: taken.changes.into(), overflowed: taken.overflowed, ended: taken.ended }
    }
}

/// A change of a name in a directory.
pub struct Event<'a> {
    /// The changed property.
    pub what: What,
    /// The kind of change.
    pub action: Action,
    /// The directory.
    pub dir: NodeId,
    /// The name.
    pub name: &'a [u8],
}

/// The directories from one up to the root, with the name of each in the next.
pub type Above = Vec<DirName>;

struct Registered {
    dir: NodeId,
    recursive: bool,
    filter: What,
    queue: Arc<Queue>,
}

impl Registered {
    /// Whether an event is selected by this watch, of its directory or of one above.
    fn sees(&self, told: &Told<'_>) -> bool {
        #[cfg(test)]
        tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
        self.filter.intersects(told.event.what) && (self.recursive || told.below.is_empty())
    }
}

/// An event as reported to watches of one directory, or of the tree below it.
struct Told<'a> {
    event: &'a Event<'a>,
    /// The directories between, from the event's own up to the one in the watched directory, each with its name.
    below: &'a [DirName],
    /// Length of the path in bytes.
    len: usize,
    path: OnceCell<Arc<[u8]>>,
    /// The directories between: see [`Change::dirs`].
    dirs: OnceCell<Arc<[NodeId]>>,
    /// The path last compared with this, and whether they are equal: queues with the same path share it.
    compared: RefCell<Option<(Arc<[u8]>, bool)>>,
}

impl<'a> Told<'a> {
    /// `None` if the event is neither in `dir` nor below it; `above` are the directories above the event's.
    fn to(dir: NodeId, (event, above): &'a (Event<'a>, Above)) -> Option<Told<'a>> {
        let below = match dir == event.dir {
            true => &[][..],
            // above[0] is (parent of the event's directory, its name there), and so on.
            false => above.get(..=above.iter().position(|place| place.dir == dir)?)?,
        };
        let len = below.iter().fold(event.name.len(), |len, DirName { name, .. }| len + name.len() + 1);
        let (path, dirs) = (OnceCell::new(), OnceCell::new());
        Some(Told { event, below, len, path, dirs, compared: RefCell::default() })
    }

    fn dirs(&self) -> &Arc<[NodeId]> {
        // Each place names the directory above: that of the last one is the watched one.
        self.dirs.get_or_init(|| match self.below.split_last() {
            None => Arc::default(),
            Some((_, before)) => {
                std::iter::once(self.event.dir).chain(before.iter().map(|place| place.dir)).collect()
            }
        })
    }

    fn path(&self) -> &Arc<[u8]> {
        self.path.get_or_init(|| {
            #[cfg(test)]
            tests::PATHS.with(|paths| paths.set(paths.get() + 1));
            let mut path = Vec::with_capacity(self.len);
            for DirName { name, .. } in self.below.iter().rev() {
                path.extend_from_slice(name);
                path.push(b'/');
            }
            path.extend_from_slice(self.event.name);
            path.into()
        })
    }

    fn is_at(&self, path: &Arc<[u8]>) -> bool {
        if path.len() != self.len {
            return false;
        }
        let mut compared = self.compared.borrow_mut();
        match &*compared {
            Some((last, equal)) if Arc::ptr_eq(last, path) => *equal,
            _ => compared.insert((path.clone(), self.is_spelled(path))).1,
        }
    }

    /// Whether a path equals this one, without building it.
    fn is_spelled(&self, path: &[u8]) -> bool {
        #[cfg(test)]
        tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
        let Some(mut rest) = path.strip_suffix(self.event.name) else { return false };
        for DirName { name, .. } in self.below {
            match rest.strip_suffix(b"/").and_then(|rest| rest.strip_suffix(&name[..])) {
                Some(before) => rest = before,
                None => return false,
            }
        }
        rest.is_empty()
    }
}

/// The watches of one kind on one directory.
#[derive(Default)]
struct Group {
    by_id: BTreeMap<u64, Registered>,
    /// The number of watches of each account.
    held: HashMap<Holder, usize>,
}

impl Group {
    fn add(&mut self, id: u64, watch: Registered) -> Result<(), Error> {
        if self.by_id.len() >= MAX_WATCHES_OF_A_DIR_IN_ALL {
            return Err(Error::Limit("watches of a directory"));
        }
        let held = self.held.entry(watch.queue.held.holder().clone()).or_default();
        if *held >= MAX_WATCHES_OF_A_DIR {
            return Err(Error::Limit("watches of a directory"));
        }
        *held += 1;
        self.by_id.insert(id, watch);
        Ok(())
    }

    fn remove(&mut self, id: u64) {
        let Some(watch) = self.by_id.remove(&id) else { return };
        let holder = watch.queue.held.holder();
        match self.held.get_mut(holder) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(self.held.remove(holder)),
        }
    }
}

/// The watches of one directory.
#[derive(Default)]
struct Watched {
    /// Of the directory only.
    plain: Group,
    /// Of the tree below it.
    trees: Group,
}

impl Watched {
    fn group(&mut self, recursive: bool) -> &mut Group {
        if recursive { &mut self.trees } else { &mut self.plain }
    }

    fn all(&self) -> impl Iterator<Item = &Registered> {
        self.plain.by_id.values().chain(self.trees.by_id.values())
    }
}

type ByDir = HashMap<NodeId, Watched>;

/// All watches of a share.
#[derive(Default)]
pub struct Watches {
    by_dir: Mutex<ByDir>,
    next: AtomicU64,
    count: AtomicUsize,
    /// Number of those on whole trees.
    trees: AtomicUsize,
    own: Own,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watches({})", self.count.load(Ordering::Relaxed))
    }
}

impl Watches {
    fn by_dir(&self) -> MutexGuard<'_, ByDir> {
        self.by_dir.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The marks of our own changes.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// Whether there are any watches.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether there are watches of whole trees, so that a change needs its path.
    pub fn any_tree(&self) -> bool {
        self.trees.load(Ordering::Acquire) > 0
    }

    fn add(self: &Arc<Watches>, registered: Registered) -> Result<u64, Error> {
        let mut by_dir = self.by_dir();
        if self.count.load(Ordering::Acquire) >= MAX_WATCHES {
            return Err(Error::Limit("watches of a share"));
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let recursive = registered.recursive;
        // If this exceeds a limit, there are others, so no empty entry is left behind.
        by_dir.entry(registered.dir).or_default().group(recursive).add(id, registered)?;
        self.trees.fetch_add(usize::from(recursive), Ordering::Release);
        self.count.fetch_add(1, Ordering::Release);
        Ok(id)
    }

    fn remove(&self, id: u64, dir: NodeId, recursive: bool) {
        let mut by_dir = self.by_dir();
        let Some(watched) = by_dir.get_mut(&dir) else { return };
        watched.group(recursive).remove(id);
        if watched.all().next().is_none() {
            by_dir.remove(&dir);
        }
        self.trees.fetch_sub(usize::from(recursive), Ordering::Release);
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// Reports events atomically: a watch gets all of them or none, so that a rename is never split. Each event comes
    /// with the directories above its own, which are only used for watches of trees.
    pub fn tell(&self, events: &[(Event<'_>, Above)]) {
        let by_dir = self.by_dir();
        let of_event = |(event, above): &(Event<'_>, Above)| {
            std::iter::once(event.dir).chain(above.iter().map(|place| place.dir)).collect::<Vec<_>>()
        };
        // Each once: a watch gets all events in one call.
        let mut dirs: Vec<NodeId> = events.iter().flat_map(of_event).collect();
        dirs.sort_unstable();
        dirs.dedup();
        for dir in dirs {
            let Some(watched) = by_dir.get(&dir) else { continue };
            let told: Vec<_> = events.iter().filter_map(|event| Told::to(dir, event)).collect();
            let happened_here = told.iter().any(|told| told.below.is_empty());
            let plain = watched.plain.by_id.values().filter(|_| happened_here);
            for watch in watched.trees.by_id.values().chain(plain) {
                watch.queue.push(told.iter().filter(|told| watch.sees(told)));
            }
        }
    }

    /// Notifies the watches of `dir` that it is about to be removed.
    pub fn end(&self, dir: NodeId) {
        self.by_dir().get(&dir).into_iter().flat_map(Watched::all).for_each(|watch| watch.queue.end());
    }

    /// Notifies the watches of `dir`, or of a tree, that changes were lost.
    pub fn lost(&self, dir: Option<NodeId>) {
        let by_dir = self.by_dir();
        let all = by_dir.values().flat_map(Watched::all);
        for watch in all.filter(|w| dir.is_none_or(|dir| w.recursive || w.dir == dir)) {
            watch.queue.overflow();
        }
    }
}

/// A watch on a directory, or on the tree below it. Dropping it ends it. Only one task may wait on it at a time.
pub struct Watch {
    id: u64,
    dir: NodeId,
    recursive: bool,
    queue: Arc<Queue>,
    watches: Arc<Watches>,
    /// Keeps the backend's observation of changes by others.
    _observed: Option<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.id)
    }
}

impl Watch {
    pub(super) async fn new(
        watches: &Arc<Watches>,
        backend: Arc<dyn Backend>,
        (dir, recursive, filter): (NodeId, bool, What),
        held: Charge,
    ) -> Result<Watch, Error> {
        let queue = Arc::new(Queue::new(held));
        let id = watches.add(Registered { dir, recursive, filter, queue: queue.clone() })?;
        let mut watch = Watch { id, dir, recursive, queue, watches: watches.clone(), _observed: None };
        watch._observed = backend.observe(dir, recursive, watches).await;
        Ok(watch)
    }

    /// The changes since the last call; empty if there are none.
    pub fn take(&self) -> Changes {
        self.queue.take()
    }

    /// Waits for a change.
    pub async fn next(&self) -> Changes {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Like [`Watch::next`], for a task that also waits for something else. The task that polled last is woken.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Changes> {
        self.queue.waker.register(cx.waker());
        let changes = self.queue.take();
        if changes.is_empty() { Poll::Pending } else { Poll::Ready(changes) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watches.remove(self.id, self.dir, self.recursive);
    }
}

/// Detects and reports changes: a backend, for finding nodes, and its watches.
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

    async fn place(&self, node: NodeId) -> Option<DirName> {
        if node == NodeId::ROOT {
            return None;
        }
        match self.backend.submit(Op::Place { node }, Caller::Server).await {
            Ok(Outcome::Place(place)) => Some(place),
            // It has no name any more, so it cannot be reported.
            _ => None,
        }
    }

    /// Reports changes of names atomically. If the path to the root cannot be found, the change itself still
    /// succeeds.
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
        while let Some(place) = self.place(at).await {
            at = place.dir;
            above.push(place);
            if above.len() == MAX_DEPTH {
                break;
            }
            rt::yield_if_due().await;
        }
        above
    }

    /// Reports changes of streams of `base` atomically.
    pub(super) async fn streams(&self, base: NodeId, changes: &[(&[u8], What, Action)]) {
        if !self.is_watched() {
            return;
        }
        if let Some(DirName { dir, name: file }) = self.place(base).await {
            let names: Vec<_> = changes.iter().map(|(name, ..)| [&file, &b":"[..], name].concat()).collect();
            let events = names.iter().zip(changes);
            let events = events.map(|(name, &(_, what, action))| Event { what, action, dir, name });
            self.tell(events.collect()).await;
        }
    }

    /// Reports a change of a named object.
    pub(super) async fn modified(&self, node: NodeId, what: What) {
        if !self.is_watched() {
            return;
        }
        if let Some(DirName { dir, name }) = self.place(node).await {
            self.tell(vec![Event { what, action: Action::Modified, dir, name: &name }]).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use weft_machine::{Budget, Source};

    use super::*;

    thread_local! {
        /// How often a watch has examined an event.
        pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
        /// Number of paths built, and of comparisons with earlier paths.
        pub(super) static PATHS: Cell<usize> = const { Cell::new(0) };
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_change_is_looked_at_by_no_watch_that_it_is_nothing_to() {
        let (watches, budget) = (Arc::new(Watches::default()), Budget::new(usize::MAX));
        let watch = |dir: u64, recursive| {
            let queue = Arc::new(Queue::new(budget.charge(Source::Local, 0).unwrap()));
            let registered =
                Registered { dir: NodeId(dir), recursive, filter: What::ALL, queue: queue.clone() };
            (watches.add(registered).unwrap(), queue, dir, recursive)
        };
        // 1/2/3, and a thousand others, with and without the tree below them.
        let near = [watch(3, false), watch(3, true), watch(2, true), watch(1, true)];
        let mut far = vec![watch(2, false), watch(1, false)];
        far.extend((10..1010).map(|dir| watch(dir, dir % 2 == 0)));
        let above = || {
            [(2, b"c"), (1, b"b")]
                .map(|(dir, name)| DirName { dir: NodeId(dir), name: name.to_vec() })
                .to_vec()
        };
        let event =
            |name| (Event { what: What::FILE_NAME, action: Action::Added, dir: NodeId(3), name }, above());
        let before = LOOKS.get();
        watches.tell(&[event(b"x"), event(b"y")]);
        assert_eq!(LOOKS.get() - before, near.len() * 2);
        let told = |(_, queue, ..): &(u64, Arc<Queue>, u64, bool)| {
            let changes = queue.take().changes;
            changes
                .into_iter()
                .map(|change| String::from_utf8(change.path.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(near.each_ref().map(told).concat(), ["x", "y", "x", "y", "c/x", "c/y", "b/c/x", "b/c/y"]);
        assert!(far.iter().all(|watch| told(watch).is_empty()));
        for (id, _, dir, recursive) in near.into_iter().chain(far) {
            watches.remove(id, NodeId(dir), recursive);
        }
        assert!(!watches.any() && !watches.any_tree() && watches.by_dir().is_empty());
    }

    /// Nine hundred nested folders, and a thousand watches of the tree's root: a WRITE must not cost a path for each
    /// of them.
    #[test]
    fn watches_of_a_tree_share_one_path_and_a_queue_that_says_it_already_needs_none() {
        let (watches, budget) = (Arc::new(Watches::default()), Budget::new(usize::MAX));
        let queues: Vec<_> = (0..1000)
            .map(|_| {
                let queue = Arc::new(Queue::new(budget.charge(Source::Local, 0).unwrap()));
                let (dir, filter) = (NodeId::ROOT, What::ALL);
                let registered = Registered { dir, recursive: true, filter, queue: queue.clone() };
                watches.add(registered).unwrap();
                queue
            })
            .collect();
        let counts = |levels: u64| {
            let above = (1..=levels)
                .rev()
                .map(|level| DirName { dir: NodeId(level), name: vec![b'n'; 250] })
                .collect();
            let dir = NodeId(levels + 1);
            let event = Event { what: What::WRITTEN, action: Action::Modified, dir, name: b"f" };
            let before = (PATHS.get(), COMPARED.get());
            watches.tell(&[(event, above)]);
            (PATHS.get() - before.0, COMPARED.get() - before.1)
        };
        assert_eq!(NodeId::ROOT, NodeId(1));
        assert_eq!(counts(100), (1, 0), "all have it in common");
        assert_eq!(counts(100), (0, 1), "nothing new, which is found once");
        assert_eq!(counts(900), (0, 0), "too long to be told");
        assert!(queues.iter().all(|queue| queue.take().overflowed));
        assert_eq!(counts(100), (1, 0), "whoever has listed the tree anew is told again");
        watches.lost(None);
        assert_eq!(counts(100), (0, 0), "nobody who has to list the tree anew is told");
    }
}
