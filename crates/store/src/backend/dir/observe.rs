//! Reports changes that other programs make in a served folder to those who watch it.
//!
//! It uses inotify(7) on watched directories, read by its own thread, which sleeps while nothing happens. Watching a
//! tree means watching every directory in it, including later ones.
//! Limits: [`MAX_DIRS`] directories of a share, and the kernel's own (fs.inotify.max_user_watches); beyond that,
//! changes are not reported, which is logged once. If the kernel loses events, every watch is marked, and its reader
//! lists the directory again; trees are walked again to find directories that appeared meanwhile. Changes by this
//! server are reported elsewhere (see [`crate::vfs::Own`]). Changes on network file systems are not seen, and file
//! systems that may block and are mounted below the root are not observed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use weft_machine::clock;

use super::create::ASIDE;
use super::reach::MAX_DEPTH;
use super::{Folder, MAX_ENTRIES, sys};
use crate::vfs::depot::FOLDER;
use crate::vfs::{Above, Action, Error, Event, Kind, NameChange, NodeId, Own, Watches, What};

/// Maximum number of observed directories.
const MAX_DIRS: usize = 32_768;
/// Number of directories added or removed before events are read again.
const STEP: usize = 64;
/// How long to wait for the second half of a rename.
const PAIR_MS: i64 = 20;
/// The inotify events of a directory.
const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);
/// What may have changed if the kernel reports "attributes": permissions, owner, times, extended attributes.
const ATTRIBUTES: What = What(What::ATTRIBUTES.0 | What::SECURITY.0 | What::XATTRS.0 | What::WRITTEN.0);

/// Observes the directories of one share. Dropping it ends its thread.
pub(super) struct Observer {
    shared: Arc<Shared>,
    /// Written to when there is something to do; closed at the end.
    wake: OwnedFd,
}

struct Shared {
    inotify: OwnedFd,
    watches: Arc<Watches>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dirs: HashMap<i32, Observed>,
    by_node: HashMap<NodeId, i32>,
    /// Watched trees; while there are any, new directories are observed as well.
    trees: HashMap<NodeId, Tree>,
    /// How often the kernel has lost events.
    losses: u64,
    /// Whether the limit was logged.
    full: bool,
}

/// A tree, by its root.
#[derive(Default)]
struct Tree {
    /// The number of its watches.
    held: usize,
    /// The value of `losses` when its last complete walk began. If it is current, all directories in the tree are
    /// observed, and no request needs another walk.
    walked: Option<u64>,
}

/// An observed directory. Each use is counted under the lock that protects the entry, so an entry without uses
/// belongs to a tree or to nobody.
struct Observed {
    node: NodeId,
    /// Number of watches of this directory itself.
    plain: usize,
    /// Number of watches of directories in it: the kernel reports their removal here, and not to holders of a
    /// descriptor like us.
    below: usize,
}

/// Why a directory is observed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A watch of this directory by itself.
    Itself,
    /// A watch of a directory in it.
    Below,
    /// All watched trees together.
    Trees,
}

/// Keeps a directory or a tree observed. The kernel does not reuse watch numbers soon (it counts up to two thousand
/// million), so a count made here is released on the same entry, or on none.
pub(super) struct Guard {
    observer: Weak<Observer>,
    dir: NodeId,
    /// The watch of the directory.
    wd: i32,
    /// The watch of its parent directory.
    above: Option<i32>,
    recursive: bool,
}

impl Observed {
    fn is_idle(&self) -> bool {
        self.plain == 0 && self.below == 0
    }

    /// `None` for trees, which are not counted here.
    fn count(&mut self, of: Use) -> Option<&mut usize> {
        match of {
            Use::Itself => Some(&mut self.plain),
            Use::Below => Some(&mut self.below),
            Use::Trees => None,
        }
    }
}

/// The walk through a tree in progress.
struct Walk {
    root: NodeId,
    /// The future value of [`Tree::walked`].
    losses: u64,
    /// Whether this is a repeated walk: only directories that appeared while events were lost are new.
    again: bool,
    /// Whether events were lost during it.
    lost: bool,
    left: Vec<Unentered>,
}

/// A directory to be observed.
struct Unentered {
    node: NodeId,
    /// Its depth below the walk's start.
    depth: usize,
    /// Whether another program created it, so that its contents are new.
    tell: bool,
}

impl Observer {
    /// Starts the thread.
    pub(super) fn start(dir: &Arc<Folder>, watches: &Arc<Watches>) -> Result<Arc<Observer>, Error> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let (woken, wake) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { inotify, watches: watches.clone(), state: Mutex::default() });
        let (for_thread, dir) = (shared.clone(), Arc::downgrade(dir));
        std::thread::Builder::new().name("weft-observe".to_owned()).spawn(move || {
            Reader::new(for_thread, dir).run(woken.as_fd());
        })?;
        Ok(Arc::new(Observer { shared, wake }))
    }

    /// Observes `dir`, or the tree below it, until the result is dropped.
    pub(super) fn observe(
        self: &Arc<Observer>,
        served: &Folder,
        dir: NodeId,
        recursive: bool,
    ) -> Option<Guard> {
        // Own changes must be marked from here on: the first event may be ours.
        self.own().begin();
        let Some(wd) = self.shared.add(served, dir, Use::Itself) else {
            self.own().end();
            return None;
        };
        let parent = served.place(dir).ok().map(|place| place.dir);
        let above = parent.and_then(|parent| self.shared.add(served, parent, Use::Below));
        let is_new = recursive && {
            let mut state = self.shared.state();
            let tree = state.trees.entry(dir).or_default();
            tree.held += 1;
            tree.held == 1
        };
        if is_new {
            self.wake();
        }
        Some(Guard { observer: Arc::downgrade(self), dir, wd, above, recursive })
    }

    /// Where own changes are marked.
    pub(super) fn own(&self) -> &Own {
        self.shared.watches.own()
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = rustix::io::write(&self.wake, &[0]);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(observer) = self.observer.upgrade() else { return };
        let shared = &observer.shared;
        observer.own().end();
        let mut state = shared.state();
        if self.recursive
            && let Entry::Occupied(mut tree) = state.trees.entry(self.dir)
        {
            tree.get_mut().held -= 1;
            if tree.get().held == 0 {
                tree.remove();
            }
        }
        let used = [(Some(self.wd), Use::Itself), (self.above, Use::Below)];
        for (wd, of) in used {
            let observed = wd.and_then(|wd| state.dirs.get_mut(&wd));
            if let Some(count) = observed.and_then(|observed| observed.count(of)) {
                *count -= 1;
            }
        }
        // While a tree is watched, any directory may belong to it.
        if !state.trees.is_empty() {
            return;
        }
        if self.recursive {
            drop(state);
            // There may be thousands, so the thread removes them.
            return observer.wake();
        }
        for wd in used.into_iter().filter_map(|(wd, _)| wd) {
            shared.let_go(&mut state, wd);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the two maps consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel watch for a directory, and counts its use.
    fn add(&self, served: &Folder, node: NodeId, of: Use) -> Option<i32> {
        let added = self.try_add(served, node, of);
        if let Err(Error::NoSpace | Error::Limit(_)) = added {
            let mut state = self.state();
            if !std::mem::replace(&mut state.full, true) {
                tracing::warn!(
                    "only {} directories can be watched for changes by other programs: raise fs.inotify.max_user_watches",
                    state.dirs.len()
                );
            }
        }
        added.ok()
    }

    fn try_add(&self, served: &Folder, node: NodeId, of: Use) -> Result<i32, Error> {
        // The kernel checks read permission on it, under the lock.
        if served.is_behind_slow_mount(node) {
            return Err(Error::NotSupported);
        }
        let fd = served.dir_fd(node)?;
        let mut state = self.state();
        let state = &mut *state;
        // The last watch of a tree may have ended while the directory was opened.
        if of == Use::Trees && state.trees.is_empty() {
            return Err(Error::NotFound);
        }
        let wd = match state.by_node.get(&node) {
            Some(wd) => *wd,
            None if state.dirs.len() >= MAX_DIRS => return Err(Error::Limit("observed directories")),
            None => {
                // The number identifies the directory that was checked, whatever has its name by now.
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let wd = inotify::add_watch(&self.inotify, path, MASK)?;
                state.by_node.insert(node, wd);
                wd
            }
        };
        let observed = state.dirs.entry(wd).or_insert(Observed { node, plain: 0, below: 0 });
        if observed.node != node {
            // The same directory, which the table has since given a new number.
            state.by_node.remove(&std::mem::replace(&mut observed.node, node));
        }
        if let Some(count) = observed.count(of) {
            *count += 1;
        }
        Ok(wd)
    }

    /// Stops observing a directory that nobody watches.
    fn let_go(&self, state: &mut State, wd: i32) {
        if let Entry::Occupied(observed) = state.dirs.entry(wd)
            && observed.get().is_idle()
        {
            state.by_node.remove(&observed.remove().node);
            // The watch is already gone if its directory is.
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    /// The kernel has ended a watch, because its directory is gone. Returns the directory if somebody watches it: its
    /// parent reports the removal as well, but only of a directory that is still known here.
    fn forget(&self, wd: i32) -> Option<NodeId> {
        let mut state = self.state();
        let observed = state.dirs.remove(&wd)?;
        state.by_node.remove(&observed.node);
        (observed.plain > 0).then_some(observed.node)
    }
}

/// An event, with its subject.
struct Seen {
    dir: NodeId,
    name: Vec<u8>,
    flags: ReadFlags,
    cookie: u32,
}

impl Seen {
    fn kind(&self) -> Kind {
        if self.flags.contains(ReadFlags::ISDIR) { Kind::Dir } else { Kind::File }
    }

    /// The change of its name.
    fn event(&self, action: Action) -> Event<'_> {
        Event { what: What::name_of(self.kind()), action, dir: self.dir, name: &self.name }
    }
}

/// The state of the thread.
struct Reader {
    shared: Arc<Shared>,
    dir: Weak<Folder>,
    /// The first half of a rename, whose second half may follow, and its time.
    pending: Option<(Seen, Instant)>,
    walk: Option<Walk>,
    /// Directories that were moved into a tree.
    arrived: Vec<Unentered>,
    /// How many of them may still be added at once, before later events are reported.
    at_once: usize,
}

impl Reader {
    fn new(shared: Arc<Shared>, dir: Weak<Folder>) -> Reader {
        Reader { shared, dir, pending: None, walk: None, arrived: Vec::new(), at_once: STEP }
    }

    fn run(mut self, woken: BorrowedFd<'_>) {
        let inotify = self.shared.clone();
        let mut buf = vec![MaybeUninit::uninit(); 65_536];
        let mut at_work = false;
        loop {
            let half = Timespec { tv_sec: 0, tv_nsec: PAIR_MS * 1_000_000 };
            let timeout = match at_work {
                true => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
                false => self.pending.as_ref().map(|_| half),
            };
            let mut fds = [
                PollFd::new(&inotify.inotify, PollFlags::IN),
                PollFd::from_borrowed_fd(woken, PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return tracing::warn!("changes by other programs are no longer reported: {e}"),
            }
            let ended = fds[1].revents().contains(PollFlags::HUP);
            let Some(served) = self.dir.upgrade().filter(|_| !ended) else { return };
            let mut byte = [0; 64];
            while matches!(rustix::io::read(woken, &mut byte), Ok(n) if n > 0) {}
            // In steps, because the kernel's event queue is limited.
            self.read(&served, &mut buf);
            at_work = self.step(&served);
        }
    }

    /// Does the next step of work; returns whether more is left.
    fn step(&mut self, served: &Folder) -> bool {
        let mut state = self.shared.state();
        if state.trees.is_empty() {
            self.walk = None;
            self.arrived = Vec::new();
            let idle = state.dirs.iter().filter(|(_, observed)| observed.is_idle()).map(|(wd, _)| *wd);
            let idle: Vec<_> = idle.take(STEP).collect();
            idle.iter().for_each(|wd| self.shared.let_go(&mut state, *wd));
            return idle.len() == STEP;
        }
        let losses = state.losses;
        let next = || {
            let unwalked = state.trees.iter().filter(|(_, tree)| tree.walked != Some(losses));
            // However often events are lost, each tree gets its turn.
            let (&root, tree) = unwalked.min_by_key(|(_, tree)| tree.walked)?;
            let left = vec![Unentered { node: root, depth: 0, tell: false }];
            Some(Walk { root, losses, again: tree.walked.is_some(), lost: false, left })
        };
        // A walk that nobody waits for ends. If events are lost during a walk, it continues, and another one follows.
        let under_way = self.walk.take().filter(|walk| state.trees.contains_key(&walk.root));
        self.walk = under_way.or_else(next);
        drop(state);
        let has_arrived = !self.arrived.is_empty();
        self.at_once = STEP;
        self.enter_arrived(served);
        let Some(mut walk) = self.walk.take() else { return has_arrived };
        for _ in 0..STEP {
            let Some(next) = walk.left.pop() else { break };
            walk.lost |= self.enter(served, &next, &mut walk.left) && walk.again;
        }
        if !walk.left.is_empty() {
            self.walk = Some(walk);
            return true;
        }
        if let Some(tree) = self.shared.state().trees.get_mut(&walk.root) {
            tree.walked = Some(walk.losses);
        }
        if walk.lost {
            // Changes inside since the watches learned about the loss.
            self.shared.watches.lost(Some(walk.root));
        }
        true
    }

    /// Adds arrived directories, up to the current limit.
    fn enter_arrived(&mut self, served: &Folder) {
        let mut arrived = std::mem::take(&mut self.arrived);
        while self.at_once > 0
            && let Some(next) = arrived.pop()
        {
            self.at_once -= 1;
            self.enter(served, &next, &mut arrived);
        }
        self.arrived = arrived;
    }

    /// Observes a directory, and queues its subdirectories. Returns whether it was new.
    fn enter(
        &self,
        served: &Folder,
        &Unentered { node, depth, tell }: &Unentered,
        left: &mut Vec<Unentered>,
    ) -> bool {
        let is_new = !self.shared.state().by_node.contains_key(&node);
        if self.shared.add(served, node, Use::Trees).is_none() {
            return false;
        }
        if depth == MAX_DEPTH {
            return is_new;
        }
        // A directory that cannot be listed is not reported.
        let _ = children(served, node, |name, child| {
            if tell {
                let kind = if child.is_some() { Kind::Dir } else { Kind::File };
                let (what, action) = (What::name_of(kind), Action::Added);
                self.tell(served, [Event { what, action, dir: node, name }]);
            }
            left.extend(child.map(|node| Unentered { node, depth: depth + 1, tell }));
        });
        is_new
    }

    /// The kernel's queue overflowed: directories may have appeared unseen.
    fn lost(&self) {
        self.shared.state().losses += 1;
        self.shared.watches.lost(None);
    }

    fn read(&mut self, served: &Folder, buf: &mut [MaybeUninit<u8>]) {
        let shared = self.shared.clone();
        let mut reader = inotify::Reader::new(&shared.inotify, buf);
        let mut any = false;
        self.at_once = STEP;
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            any = true;
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                tracing::warn!(
                    "the kernel lost changes of other programs: raise fs.inotify.max_queued_events"
                );
                self.lost();
                continue;
            }
            let wd = event.wd();
            let node = self.shared.state().dirs.get(&wd).map(|observed| observed.node);
            if flags.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT)
                && let Some(watched) = self.shared.forget(wd)
            {
                self.shared.watches.end(watched);
            }
            let Some(dir) = node else { continue };
            if let Some(name) = event.file_name() {
                let name = name.to_bytes().to_vec();
                self.seen(served, Seen { dir, name, flags, cookie: event.cookie() });
            }
        }
        let is_due = |since: &Instant| clock::since(*since) >= Duration::from_millis(PAIR_MS.unsigned_abs());
        if !any && let Some((from, _)) = self.pending.take_if(|(_, since)| is_due(since)) {
            // The other half of the rename is outside of the observed directories.
            self.went(served, &from);
        }
    }

    fn seen(&mut self, served: &Folder, seen: Seen) {
        if is_hidden(&seen.name) {
            return;
        }
        let from = self.pending.take().map(|(from, _)| from);
        match from {
            Some(from) if seen.flags.contains(ReadFlags::MOVED_TO) && from.cookie == seen.cookie => {
                let within = from.dir == seen.dir;
                let gone = if within { Action::RenamedFrom } else { Action::Removed };
                let come = if within { Action::RenamedTo } else { Action::Added };
                let (goes, comes) =
                    (self.is_foreign(&from, NameChange::Removed), self.is_foreign(&seen, NameChange::Added));
                let halves = [(goes, from.event(gone)), (comes, seen.event(come))];
                self.tell(served, halves.into_iter().filter_map(|(foreign, half)| foreign.then_some(half)));
                return self.came(served, &seen, comes);
            }
            Some(from) => self.went(served, &from),
            None => {}
        }
        if seen.flags.contains(ReadFlags::MOVED_FROM) {
            self.pending = Some((seen, clock::instant()));
        } else if seen.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            let foreign = self.is_foreign(&seen, NameChange::Added);
            if foreign {
                self.tell(served, [seen.event(Action::Added)]);
            }
            self.came(served, &seen, foreign);
        } else if seen.flags.contains(ReadFlags::DELETE) {
            self.went(served, &seen);
            if seen.kind() == Kind::Dir {
                self.end_of_removed(served);
            }
        } else {
            self.modified(served, &seen);
        }
    }

    /// Whether another program added or removed a name.
    fn is_foreign(&self, seen: &Seen, change: NameChange) -> bool {
        !self.shared.watches.own().is_own_name(seen.dir, &seen.name, change, clock::instant())
    }

    /// A name was removed.
    fn went(&self, served: &Folder, seen: &Seen) {
        if self.is_foreign(seen, NameChange::Removed) {
            self.tell(served, [seen.event(Action::Removed)]);
        }
    }

    /// Ends the watches of removed directories.
    fn end_of_removed(&self, served: &Folder) {
        let watched: Vec<_> = {
            let state = self.shared.state();
            state.dirs.values().filter(|observed| observed.plain > 0).map(|observed| observed.node).collect()
        };
        for node in watched {
            let gone = match served.getattr(node) {
                Ok(attr) => attr.nlink == 0,
                Err(e) => matches!(e, Error::Stale | Error::NotFound),
            };
            if gone {
                self.shared.watches.end(node);
            }
        }
    }

    /// A name was added; it is reported if another program did it.
    fn came(&mut self, served: &Folder, seen: &Seen, foreign: bool) {
        let Ok(attr) = served.exact(seen.dir, &seen.name) else { return };
        if !foreign {
            // Our own further changes of a file that we create.
            self.shared.watches.own().content(attr.node, clock::instant());
        }
        if attr.kind == Kind::Dir && !self.shared.state().trees.is_empty() {
            // A tree that is moved back and forth arrives faster than it can be added. A walk finds the rest.
            if self.arrived.len() >= MAX_DIRS {
                self.arrived = Vec::new();
                self.lost();
            }
            self.arrived.push(Unentered { node: attr.node, depth: 0, tell: foreign });
            self.enter_arrived(served);
        }
    }

    fn modified(&self, served: &Folder, seen: &Seen) {
        // An object without a name was already reported as removed.
        let Ok(attr) = served.exact(seen.dir, &seen.name) else { return };
        if self.shared.watches.own().is_own_content(attr.node, clock::instant()) {
            return;
        }
        let what = match seen.flags.contains(ReadFlags::MODIFY) {
            true => What::SIZE | What::WRITTEN,
            false => ATTRIBUTES,
        };
        self.tell(served, [Event { what, ..seen.event(Action::Modified) }]);
    }

    /// Reports all of it at once.
    fn tell<'a>(&self, served: &Folder, events: impl IntoIterator<Item = Event<'a>>) {
        let above = |dir| {
            let (mut at, mut above) = (dir, Above::new());
            while at != NodeId::ROOT && above.len() < MAX_DEPTH && self.shared.watches.any_tree() {
                let Ok(place) = served.place(at) else { break };
                at = place.dir;
                above.push(place);
            }
            above
        };
        let told = events.into_iter().map(|event| {
            let above = above(event.dir);
            (event, above)
        });
        let events: Vec<_> = told.collect();
        self.shared.watches.tell(&events);
    }
}

/// Changes in the folder of large streams are reported as changes of the files that have these streams; a folder in which an
/// object is made is no change at all.
fn is_hidden(name: &[u8]) -> bool {
    name == FOLDER || name.starts_with(ASIDE)
}

/// Calls `each` with the names in a directory, and with the nodes of those that are directories.
fn children(served: &Folder, dir: NodeId, mut each: impl FnMut(&[u8], Option<NodeId>)) -> Result<(), Error> {
    let fd = served.dir_fd(dir)?;
    let open = sys::open_dir(fd.as_fd())?;
    let mut cookie = 0;
    loop {
        let (raw, end) = sys::entries(open.as_fd(), cookie, MAX_ENTRIES)?;
        cookie = raw.last().map_or(cookie, |last| last.cookie);
        for raw in raw.into_iter().filter(|raw| !is_hidden(&raw.name)) {
            let attr = if raw.maybe_dir { served.exact(dir, &raw.name).ok() } else { None };
            each(&raw.name, attr.filter(|attr| attr.kind == Kind::Dir).map(|attr| attr.node));
        }
        if end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::site::Systems;
    use super::*;

    /// An observer whose thread is the test.
    fn observer(dir: &Arc<Folder>) -> (Arc<Observer>, Reader) {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let (_, wake) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let shared = Arc::new(Shared { inotify, watches: Arc::default(), state: Mutex::default() });
        let reader = Reader::new(shared.clone(), Arc::downgrade(dir));
        (Arc::new(Observer { shared, wake }), reader)
    }

    #[test]
    fn a_tree_is_walked_in_steps_and_once_however_often_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..200 {
            std::fs::create_dir(folder.path().join(n.to_string())).unwrap();
        }
        let dir = Arc::new(Folder::open(folder.path(), Systems::of).unwrap());
        let (observer, mut reader) = observer(&dir);
        let watch = || observer.observe(&dir, NodeId::ROOT, true).unwrap();
        let observed = || observer.shared.state().dirs.len();
        let held = watch();
        let mut steps = 0;
        while reader.step(&dir) {
            steps += 1;
        }
        assert_eq!((steps, observed()), (201usize.div_ceil(STEP), 201));
        // Three hundred more clients, and others that leave at once.
        let more: Vec<_> = (0..300).map(|_| watch()).collect();
        (0..300).for_each(|_| drop(watch()));
        assert!(!reader.step(&dir), "there is nothing to walk");
        drop((held, more));
        while reader.step(&dir) {}
        assert_eq!(observed(), 0);
        // A walk that nobody waits for ends.
        let left = watch();
        assert!(reader.step(&dir));
        drop(left);
        while reader.step(&dir) {}
        assert_eq!((observed(), reader.walk.is_some()), (0, false));
    }

    #[test]
    fn a_tree_that_comes_is_walked_in_steps() {
        let (folder, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for n in 0..200 {
            std::fs::create_dir_all(beside.path().join(format!("come/{n}"))).unwrap();
        }
        let dir = Arc::new(Folder::open(folder.path(), Systems::of).unwrap());
        let (observer, mut reader) = observer(&dir);
        let observed = || observer.shared.state().dirs.len();
        let held = observer.observe(&dir, NodeId::ROOT, true).unwrap();
        while reader.step(&dir) {}
        std::fs::rename(beside.path().join("come"), folder.path().join("come")).unwrap();
        let mut buf = vec![MaybeUninit::uninit(); 65_536];
        reader.read(&dir, &mut buf);
        assert_eq!(observed(), 1 + STEP);
        assert!(reader.step(&dir));
        assert_eq!(observed(), 1 + 2 * STEP);
        while reader.step(&dir) {}
        assert_eq!(observed(), 202);
        // More directories than can be observed.
        reader.arrived.extend((0..MAX_DIRS).map(|_| Unentered { node: NodeId::ROOT, depth: 0, tell: false }));
        std::fs::create_dir(folder.path().join("late")).unwrap();
        reader.read(&dir, &mut buf);
        assert_eq!((observed(), reader.arrived.len()), (203, 0));
        assert_eq!(observer.shared.state().losses, 1);
        // An arrival while nobody watches any more is not walked.
        std::fs::rename(folder.path().join("come"), folder.path().join("go")).unwrap();
        reader.read(&dir, &mut buf);
        drop(held);
        while reader.step(&dir) {}
        assert_eq!((observed(), reader.arrived.len()), (0, 0));
    }

    #[test]
    fn trees_are_walked_again_when_events_were_lost() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..100 {
            std::fs::create_dir_all(folder.path().join(format!("a/{n}"))).unwrap();
        }
        let dir = Arc::new(Folder::open(folder.path(), Systems::of).unwrap());
        let a = dir.exact(NodeId::ROOT, b"a").unwrap().node;
        let (observer, mut reader) = observer(&dir);
        let observed = || observer.shared.state().dirs.len();
        let _trees = [NodeId::ROOT, a].map(|root| observer.observe(&dir, root, true).unwrap());
        while reader.step(&dir) {}
        assert_eq!(observed(), 102);
        let lose = |reader: &mut Reader, name: &str| {
            std::fs::create_dir(folder.path().join("a").join(name)).unwrap();
            let mut buf = vec![0; 65_536];
            while rustix::io::read(&observer.shared.inotify, &mut buf).is_ok() {}
            reader.lost();
        };
        lose(&mut reader, "late");
        // Events lost in the middle of it do not prevent the walk from ending.
        assert!(reader.step(&dir));
        lose(&mut reader, "later");
        assert!(reader.walk.is_some());
        while reader.step(&dir) {}
        assert_eq!(observed(), 104);
        assert!(observer.shared.state().trees.values().all(|tree| tree.walked == Some(2)));
    }

    #[test]
    fn a_directory_is_observed_from_when_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let dir = Arc::new(Folder::open(folder.path(), Systems::of).unwrap());
        let a = dir.exact(NodeId::ROOT, b"a").unwrap().node;
        let (observer, mut reader) = observer(&dir);
        let observed = || observer.shared.state().dirs.len();
        // Something happens elsewhere just when a watch begins, and again before its parent is observed.
        let shared = &observer.shared;
        let wd = shared.add(&dir, a, Use::Itself).unwrap();
        reader.step(&dir);
        assert_eq!(observed(), 1);
        let above = shared.add(&dir, NodeId::ROOT, Use::Below);
        reader.step(&dir);
        assert_eq!(observed(), 2);
        observer.own().begin();
        let guard = Guard { observer: Arc::downgrade(&observer), dir: a, wd, above, recursive: false };
        // Two watch it; each ends only its own watch.
        let other = observer.observe(&dir, a, false).unwrap();
        drop(guard);
        reader.step(&dir);
        assert_eq!(observed(), 2);
        // The directory now has another number: its watches must survive.
        let other_node = NodeId(a.0 + 1000);
        assert!(shared.state().by_node.remove(&a).is_some());
        shared.state().dirs.get_mut(&wd).unwrap().node = other_node;
        shared.state().by_node.insert(other_node, wd);
        let again = observer.observe(&dir, a, false).unwrap();
        assert_eq!(shared.state().by_node.keys().filter(|node| **node != NodeId::ROOT).count(), 1);
        drop(again);
        assert_eq!(observed(), 2);
        drop(other);
        assert_eq!((observed(), shared.state().by_node.len()), (0, 0));
        // A late walk: nobody watches a tree any more.
        assert!(shared.add(&dir, a, Use::Trees).is_none());
        assert_eq!(observed(), 0);
    }
}
