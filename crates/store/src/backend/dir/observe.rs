//! What other programs change in a served folder, told to whoever watches it.
//!
//! What: inotify(7) on the directories that somebody watches, read by a thread of its own, which sleeps while nothing
//! happens. A watch on a tree is one on each directory below it, those that appear later too.
//! Owns: the inotify descriptor and its watches. Limits: [`MAX_DIRS`] directories of a share, and the kernel's own
//! (fs.inotify.max_user_watches); what lies beyond is logged once and not told. When the kernel loses events, every
//! watch is marked so, and its reader lists the directory anew; trees are walked again for the directories that were lost.
//! Does not: tell what this server did itself (see [`crate::vfs::Own`]), or see changes on network file systems; of file systems that
//! may block and are mounted below the root it tells nothing.

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

use super::{Folder, MAX_DEPTH, MAX_ENTRIES, sys};
use crate::vfs::depot::FOLDER;
use crate::vfs::{Above, Action, Error, Event, Kind, NodeId, Own, Turn, Watches, What};

/// Directories observed at a time.
const MAX_DIRS: usize = 32_768;
/// Directories that are entered, or let go, between two looks at what has happened.
const STEP: usize = 64;
/// How long the second half of a rename is waited for.
const PAIR_MS: i64 = 20;
/// What is asked of the kernel about a directory.
const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);
/// What may have changed when the kernel says "attributes": permissions, owner, times, extended attributes.
const ATTRIBUTES: What = What(What::ATTRIBUTES.0 | What::SECURITY.0 | What::XATTRS.0 | What::WRITTEN.0);

/// Observes the directories of one share. Dropping it ends its thread.
pub(super) struct Observer {
    shared: Arc<Shared>,
    /// Written to when there is something to do; closed when there is not going to be.
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
    /// Trees that are watched; while there are any, directories that appear are observed as well.
    trees: HashMap<NodeId, Tree>,
    /// How often the kernel has lost events.
    losses: u64,
    /// The limit was logged.
    full: bool,
}

/// A tree, by its root.
#[derive(Default)]
struct Tree {
    /// How many watch it.
    held: usize,
    /// After how many losses its last whole walk began. When there were no more, all directories in it are observed,
    /// and however often it is asked for, it is not walked again.
    walked: Option<u64>,
}

/// An observed directory. Each use is counted under the lock under which the entry is found or made, so one without
/// any belongs to a tree, or to none any more.
struct Observed {
    node: NodeId,
    /// Watches of this directory by itself.
    plain: usize,
    /// Watches of directories in it: the kernel tells of their end here, and not to who has them open, as we have.
    below: usize,
}

/// What a directory is observed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A watch of this directory by itself.
    Itself,
    /// A watch of a directory in it.
    Below,
    /// The trees that are watched, all together.
    Trees,
}

/// Keeps a directory, or a tree, observed. The kernel counts watches on (two thousand million), so what is counted
/// here is taken back from the same entry, or from none.
pub(super) struct Guard {
    observer: Weak<Observer>,
    dir: NodeId,
    /// The watch of the directory.
    wd: i32,
    /// The watch of the directory that it lies in.
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

/// The walk through a tree that is under way.
struct Walk {
    root: NodeId,
    /// What [`Tree::walked`] becomes.
    losses: u64,
    /// All that is found was observed once, unless it came while events were lost.
    again: bool,
    /// Something was lost in it.
    lost: bool,
    left: Vec<Unentered>,
}

/// A directory that is to be observed.
struct Unentered {
    node: NodeId,
    /// How far below where the walk began.
    depth: usize,
    /// Somebody else made it, and everything in it is new.
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

    /// Observes `dir`, or the tree below it, until the answer is dropped.
    pub(super) fn observe(
        self: &Arc<Observer>,
        served: &Folder,
        dir: NodeId,
        recursive: bool,
    ) -> Option<Guard> {
        // From here on we mark what we do: the first event may be ours.
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

    /// Where what we do ourselves is marked.
    pub(super) fn own(&self) -> &Own {
        self.shared.watches.own()
    }

    fn wake(&self) {
        // A pipe that is full wakes as well.
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
        // While a tree is watched, all directories may belong to it.
        if !state.trees.is_empty() {
            return;
        }
        if self.recursive {
            drop(state);
            // There may be thousands: the thread lets them go.
            return observer.wake();
        }
        for wd in used.into_iter().filter_map(|(wd, _)| wd) {
            shared.let_go(&mut state, wd);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each critical section leaves the two maps alike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel to tell of a directory, and counts what for.
    fn add(&self, served: &Folder, node: NodeId, of: Use) -> Option<i32> {
        let added = self.try_add(served, node, of);
        if let Err(Error::NoSpace | Error::Limit(_)) = added {
            let mut state = self.state();
            if !std::mem::replace(&mut state.full, true) {
                tracing::warn!(
                    "changes that other programs make are told of {} directories only: raise fs.inotify.max_user_watches",
                    state.dirs.len()
                );
            }
        }
        added.ok()
    }

    fn try_add(&self, served: &Folder, node: NodeId, of: Use) -> Result<i32, Error> {
        // The kernel asks it whether we may read, under the lock.
        if served.is_behind_slow_mount(node) {
            return Err(Error::NotSupported);
        }
        let fd = served.dir_fd(node)?;
        let mut state = self.state();
        let state = &mut *state;
        // The last who watched a tree may have left while the directory was opened.
        if of == Use::Trees && state.trees.is_empty() {
            return Err(Error::NotFound);
        }
        let wd = match state.by_node.get(&node) {
            Some(wd) => *wd,
            None if state.dirs.len() >= MAX_DIRS => return Err(Error::Limit("observed directories")),
            None => {
                // The number names the directory that was checked, whatever has its name by now.
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let wd = inotify::add_watch(&self.inotify, path, MASK)?;
                state.by_node.insert(node, wd);
                wd
            }
        };
        let observed = state.dirs.entry(wd).or_insert(Observed { node, plain: 0, below: 0 });
        if observed.node != node {
            // The same directory, under the number that it had before the table gave it up.
            state.by_node.remove(&std::mem::replace(&mut observed.node, node));
        }
        if let Some(count) = observed.count(of) {
            *count += 1;
        }
        Ok(wd)
    }

    /// Ends the observation of a directory that nobody watches.
    fn let_go(&self, state: &mut State, wd: i32) {
        if let Entry::Occupied(observed) = state.dirs.entry(wd)
            && observed.get().is_idle()
        {
            state.by_node.remove(&observed.remove().node);
            // It is gone already when its directory is.
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    fn forget(&self, wd: i32) {
        let mut state = self.state();
        if let Some(observed) = state.dirs.remove(&wd) {
            state.by_node.remove(&observed.node);
        }
    }
}

/// One event, with what it is about.
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

    /// What happened to its name.
    fn event(&self, action: Action) -> Event<'_> {
        Event { what: What::name_of(self.kind()), action, dir: self.dir, name: &self.name }
    }
}

/// The thread's own.
struct Reader {
    shared: Arc<Shared>,
    dir: Weak<Folder>,
    /// The first half of a rename, whose second may follow, and when it came.
    pending: Option<(Seen, Instant)>,
    walk: Option<Walk>,
    /// Directories that came into a tree.
    arrived: Vec<Unentered>,
    /// How many of them may still be entered at once, before what happened after them is told.
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
                Err(e) => return tracing::warn!("changes of other programs are not told any more: {e}"),
            }
            let ended = fds[1].revents().contains(PollFlags::HUP);
            let Some(served) = self.dir.upgrade().filter(|_| !ended) else { return };
            let mut byte = [0; 64];
            while matches!(rustix::io::read(woken, &mut byte), Ok(n) if n > 0) {}
            // In steps: what the kernel tells of meanwhile has no room to wait in for long.
            self.read(&served, &mut buf);
            at_work = self.step(&served);
        }
    }

    /// Goes on with what is to be done; says whether that is not all.
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
            // However often events are lost, each has its turn.
            let (&root, tree) = unwalked.min_by_key(|(_, tree)| tree.walked)?;
            let left = vec![Unentered { node: root, depth: 0, tell: false }];
            Some(Walk { root, losses, again: tree.walked.is_some(), lost: false, left })
        };
        // One that nobody waits for any more ends. One during which events are lost goes on, and another follows.
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
            // What happened in there since the watches were told of the loss.
            self.shared.watches.lost(Some(walk.root));
        }
        true
    }

    /// Enters what has arrived, but no more than may be now.
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

    /// Observes a directory; those in it are left to do. Whether it was not observed.
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
        // What cannot be listed is not told.
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

    /// There was no room for what happened: directories may have come that nobody saw.
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
            if flags.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
                self.shared.forget(wd);
            }
            let Some(dir) = node else { continue };
            if let Some(name) = event.file_name() {
                let name = name.to_bytes().to_vec();
                self.seen(served, Seen { dir, name, flags, cookie: event.cookie() });
            }
        }
        let is_due = |since: &Instant| {
            clock::instant().duration_since(*since) >= Duration::from_millis(PAIR_MS.unsigned_abs())
        };
        if !any && let Some((from, _)) = self.pending.take_if(|(_, since)| is_due(since)) {
            // The other half of a rename is not among what is observed.
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
                let (goes, comes) = (self.is_foreign(&from, Turn::Goes), self.is_foreign(&seen, Turn::Comes));
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
            let foreign = self.is_foreign(&seen, Turn::Comes);
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

    /// Whether it was somebody else who let a name come or go.
    fn is_foreign(&self, seen: &Seen, turn: Turn) -> bool {
        !self.shared.watches.own().is_own_name(seen.dir, &seen.name, turn, clock::instant())
    }

    /// A name is gone.
    fn went(&self, served: &Folder, seen: &Seen) {
        if self.is_foreign(seen, Turn::Goes) {
            self.tell(served, [seen.event(Action::Removed)]);
        }
    }

    /// Ends the watches of directories that are not there any more.
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

    /// A name is there, and was told of if somebody else made it.
    fn came(&mut self, served: &Folder, seen: &Seen, foreign: bool) {
        let Ok(attr) = served.exact(seen.dir, &seen.name) else { return };
        if !foreign {
            // What else we do to a file that we make.
            self.shared.watches.own().content(attr.node, clock::instant());
        }
        if attr.kind == Kind::Dir && !self.shared.state().trees.is_empty() {
            // A tree that is moved to and fro arrives faster than it is entered. The walk finds what is left of it.
            if self.arrived.len() >= MAX_DIRS {
                self.arrived = Vec::new();
                self.lost();
            }
            self.arrived.push(Unentered { node: attr.node, depth: 0, tell: foreign });
            self.enter_arrived(served);
        }
    }

    fn modified(&self, served: &Folder, seen: &Seen) {
        // What has no name any more was told as removed.
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

    /// Tells all of it at once.
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

/// What is in the folder of large streams is told as changes of the files whose streams they are.
fn is_hidden(name: &[u8]) -> bool {
    name == FOLDER
}

/// Shows `each` the names in a directory, with the nodes of those that are directories.
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
        // A walk that nobody waits for any more ends.
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
        // More than can be observed is in the way.
        reader.arrived.extend((0..MAX_DIRS).map(|_| Unentered { node: NodeId::ROOT, depth: 0, tell: false }));
        std::fs::create_dir(folder.path().join("late")).unwrap();
        reader.read(&dir, &mut buf);
        assert_eq!((observed(), reader.arrived.len()), (203, 0));
        assert_eq!(observer.shared.state().losses, 1);
        // What comes while nobody is left who watches is not walked.
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
        // Events that are lost in the middle of it do not keep the walk from its end.
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
        // Something happens elsewhere just when a watch begins, and again before its parent is asked for.
        let shared = &observer.shared;
        let wd = shared.add(&dir, a, Use::Itself).unwrap();
        reader.step(&dir);
        assert_eq!(observed(), 1);
        let above = shared.add(&dir, NodeId::ROOT, Use::Below);
        reader.step(&dir);
        assert_eq!(observed(), 2);
        observer.own().begin();
        let guard = Guard { observer: Arc::downgrade(&observer), dir: a, wd, above, recursive: false };
        // Two watch it; what one takes back is its own.
        let other = observer.observe(&dir, a, false).unwrap();
        drop(guard);
        reader.step(&dir);
        assert_eq!(observed(), 2);
        // The directory is known by another number meanwhile: who watches it still does.
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
        // A walk is late: nobody watches a tree any more.
        assert!(shared.add(&dir, a, Use::Trees).is_none());
        assert_eq!(observed(), 0);
    }
}
