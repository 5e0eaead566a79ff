//! Finds a file by its identity, for a handle that a client kept over a restart of the server.
//!
//! Linux opens a file by handle only for a process that may read everything (CAP_DAC_READ_SEARCH), and even then does
//! not tell where in the tree the file is, which a share must know to stay inside its folder. So the tree is walked
//! once from the root, and the directory of each inode is remembered; a wanted file is found during the walk, or
//! later in its result. Nothing is written to disk.
//! A file system that is mounted in the tree and may block is walked apart, when a file of it is wanted: if it hangs, files
//! elsewhere are found nevertheless.
//! Limits: [`MAX_ENTRIES`] entries of a walk; a file beyond them is stale after a restart. If a file is not found in a walk
//! older than [`MAX_AGE`], the walk is repeated. The walk waits for the disk only where a listing would.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_machine::file::system::Device;
use weft_machine::{clock, rt};

use super::Folder;
use super::site::Site;
use super::sys::{self, Identity, Raw};
use crate::vfs::depot::FOLDER;
use crate::vfs::{Attr, Error, Kind, NodeId, Op, Stable};

/// Maximum number of entries remembered, about 50 bytes each.
pub(super) const MAX_ENTRIES: usize = 1 << 20;
/// Number of entries examined before other tasks run.
pub(super) const STEP: usize = 1024;
/// Number of entries examined first after the position at which a file was seen: it is the next entry unless others
/// were removed.
const FEW: usize = 4;
/// How long a finished walk that does not know a file is trusted.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The walks over mounted file systems that are remembered.
const MAX_MOUNTED: usize = 16;
/// How long a task waits for others that read the last pieces.
const PAUSE: Duration = Duration::from_millis(2);

/// The walk over the tree, and those over file systems in it that may block.
#[derive(Default)]
pub(super) struct Searches(HashMap<Option<Device>, Search>);

impl Searches {
    /// The walk that meets the files of a mounted file system that may block, or all others.
    fn of(&mut self, mounted: Option<Device>) -> &mut Search {
        if self.0.len() > MAX_MOUNTED && !self.0.contains_key(&mounted) {
            // A file system that is mounted again has another number.
            self.0.retain(|mounted, search| mounted.is_none() || search.reading > 0);
        }
        self.0.entry(mounted).or_default()
    }
}

/// One walk.
#[derive(Default)]
pub(super) struct Search {
    /// Directories still to be read, and the position in each.
    queue: VecDeque<(NodeId, u64)>,
    /// Pieces being read now, on any core.
    reading: usize,
    /// The directory in which an inode was seen, and the position before its entry. For several links, one of them.
    seen: HashMap<u64, (NodeId, u64)>,
    /// When it began; `None` if it has not begun.
    began: Option<Instant>,
}

/// The next step of a search for a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look in this directory: the file was seen there, after this position.
    In(NodeId, u64),
    /// Read the directory from this position on, then call [`Search::read`] and [`Search::done`].
    Read(NodeId, u64),
    /// Ask again: other tasks are reading the last pieces.
    Wait,
    /// Nothing was read recently: call [`Search::begin`].
    Begin,
    /// The file does not exist: everything was read recently.
    Nowhere,
}

/// A directory entry in a walk.
pub(super) struct Seen {
    pub(super) inode: u64,
    /// The position before it.
    pub(super) before: u64,
    /// The node of a directory.
    pub(super) dir: Option<NodeId>,
}

impl Search {
    /// The file is not where it was seen.
    pub(super) fn forget(&mut self, inode: u64) {
        self.seen.remove(&inode);
    }

    /// The next step in a search for `inode`. One call, so that no result is missed between two.
    pub(super) fn next(&mut self, inode: u64, now: Instant) -> Next {
        if let Some((dir, before)) = self.seen.get(&inode) {
            return Next::In(*dir, *before);
        }
        if self.is_over(now) {
            return Next::Begin;
        }
        match self.queue.pop_front() {
            Some((dir, cookie)) => {
                self.reading += 1;
                Next::Read(dir, cookie)
            }
            None if self.reading > 0 => Next::Wait,
            None => Next::Nowhere,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let is_old = self.began.is_none_or(|began| now.duration_since(began) > MAX_AGE);
        self.queue.is_empty() && self.reading == 0 && is_old
    }

    /// Everything below these directories is read now, unless another task has begun that meanwhile.
    fn begin(&mut self, roots: Vec<NodeId>, now: Instant) {
        if self.is_over(now) {
            let queue = roots.into_iter().map(|root| (root, 0)).collect();
            *self = Search { began: Some(now), queue, ..Search::default() };
        }
    }

    /// A piece was read, or cannot be.
    pub(super) fn done(&mut self) {
        self.reading -= 1;
    }

    /// The entries read from `dir`; `more` is the position to continue from.
    pub(super) fn read(
        &mut self,
        dir: NodeId,
        entries: impl Iterator<Item = Result<Seen, Error>>,
        more: Option<u64>,
    ) {
        for entry in entries.flatten() {
            if self.seen.len() >= MAX_ENTRIES {
                tracing::warn!("limit reached: entries searched for a file handle");
                self.queue.clear();
                return;
            }
            self.seen.insert(entry.inode, (dir, entry.before));
            self.queue.extend(entry.dir.map(|dir| (dir, 0)));
        }
        // This directory first, while its position is fresh.
        if let Some(cookie) = more {
            self.queue.push_front((dir, cookie));
        }
    }
}

impl Folder {
    /// The file that was given out as `stable`: known, or searched for in steps.
    pub(super) async fn find(self: &Arc<Folder>, site: &Site, stable: Stable) -> Result<Attr, Error> {
        let wanted = Identity::from_stable(&stable, &self.home);
        let mounted = self.slow_system_of(&wanted).map(|_| wanted.device());
        loop {
            let known = self.table().of(&wanted);
            if let Some(node) = known {
                match self.step(site, move |folder| folder.getattr(node)).await {
                    // Another program has moved it since it was last seen.
                    Err(Error::Stale) => {}
                    other => return other,
                }
            }
            let next = self.searches().of(mounted).next(wanted.inode(), clock::instant());
            match next {
                Next::Begin => {
                    let roots = match mounted {
                        None => vec![NodeId::ROOT],
                        Some(device) => self.roots_of(site, device).await,
                    };
                    self.searches().of(mounted).begin(roots, clock::instant());
                }
                Next::In(parent, before) => {
                    // Near the position where it was seen, so that a large directory is not read for each of its
                    // files; elsewhere only if it was moved inside the directory.
                    let found = match self.find_in(site, parent, &wanted, before, FEW).await? {
                        None => self.find_in(site, parent, &wanted, 0, usize::MAX).await?,
                        found => found,
                    };
                    match found {
                        Some(attr) => return Ok(attr),
                        None => self.searches().of(mounted).forget(wanted.inode()),
                    }
                }
                Next::Read(dir, cookie) => {
                    let piece = Piece(self.clone(), mounted);
                    let read = self.step(site, move |folder| {
                        let _piece = piece;
                        folder.walk(mounted, dir, cookie)
                    });
                    match read.await {
                        Ok(()) | Err(Error::Stale | Error::NotFound | Error::NotDir | Error::Access) => {}
                        Err(e) => return Err(e),
                    }
                }
                Next::Wait => rt::sleep(PAUSE).await,
                Next::Nowhere => return Err(Error::Stale),
            }
            rt::yield_now().await;
        }
    }

    /// The directories where a mounted file system begins, as far as they can be reached.
    async fn roots_of(self: &Arc<Folder>, site: &Site, device: Device) -> Vec<NodeId> {
        let mut roots = Vec::new();
        for (way, name) in self.ways_across(device) {
            if let Ok(root) = self.follow(site, way, name).await {
                roots.push(root);
            }
        }
        roots
    }

    /// The directory that these names lead to from the root; the last one is looked up at `site`.
    async fn follow(
        self: &Arc<Folder>,
        site: &Site,
        way: Vec<Vec<u8>>,
        name: Vec<u8>,
    ) -> Result<NodeId, Error> {
        let mut dir = NodeId::ROOT;
        for name in way {
            let on_the_way = self.site(&Op::Lookup { dir, name: name.clone(), fold_case: false });
            dir = self.step(&on_the_way, move |folder| folder.exact(dir, &name)).await?.node;
        }
        Ok(self.step(site, move |folder| folder.exact(dir, &name)).await?.node)
    }

    /// Reads a piece of a directory for a search.
    fn walk(&self, mounted: Option<Device>, dir: NodeId, cookie: u64) -> Result<(), Error> {
        let fd = self.dir_fd(dir)?;
        let open = sys::open_dir(&fd)?;
        let apart = self.names_across(dir);
        let (raw, end) = sys::entries(open.as_fd(), cookie, STEP)?;
        let more = raw.last().map(|last| last.cookie).filter(|_| !end);
        let mut before = cookie;
        let entries = raw.into_iter().filter(|raw| raw.name != FOLDER).map(|raw| {
            let mut seen = Seen { inode: raw.inode, before, dir: None };
            before = raw.cookie;
            if raw.maybe_dir && !apart.iter().any(|across| across.name == raw.name) {
                let stat = sys::stat_at(fd.as_fd(), &raw.name)?;
                let is_dir = stat.kind() == Kind::Dir;
                // A mount point's own inode differs from the one that its directory lists.
                seen.inode = stat.identity().inode();
                seen.dir =
                    is_dir.then(|| self.seen(&stat, dir, &raw.name)).transpose()?.map(|attr| attr.node);
            }
            Ok(seen)
        });
        let entries: Vec<_> = entries.collect();
        self.searches().of(mounted).read(dir, entries.into_iter(), more);
        Ok(())
    }

    /// The entry of `dir` that is `wanted`, among about `max` entries after a position.
    async fn find_in(
        self: &Arc<Folder>,
        site: &Site,
        dir: NodeId,
        wanted: &Identity,
        mut cookie: u64,
        max: usize,
    ) -> Result<Option<Attr>, Error> {
        let open = match self.step(site, move |folder| folder.open_dir(dir)).await {
            Err(Error::Stale) => return Ok(None),
            other => other?,
        };
        let mut left = max;
        loop {
            let (open, wanted) = (open.clone(), *wanted);
            let read = self.step(site, move |folder| {
                let (raw, end) = sys::entries(open.as_fd(), cookie, left.min(STEP))?;
                let after = raw.last().map_or(cookie, |last| last.cookie);
                let apart = folder.names_across(dir);
                let may_be = |raw: &&Raw| {
                    (raw.maybe_dir || raw.inode == wanted.inode())
                        && !apart.iter().any(|across| across.name == raw.name)
                };
                for raw in raw.iter().filter(may_be) {
                    match sys::stat_at(open.as_fd(), &raw.name) {
                        Ok(stat) if stat.identity() == wanted => {
                            let found = folder.seen(&stat, dir, &raw.name)?;
                            return Ok((Some(found), (0, after, true)));
                        }
                        _ => {}
                    }
                }
                Ok((None, (raw.len(), after, end)))
            });
            let (found, (read, after, end)) = read.await?;
            cookie = after;
            left = left.saturating_sub(read);
            if found.is_some() {
                return Ok(found);
            }
            if end || left == 0 {
                return Ok(None);
            }
            rt::yield_now().await;
        }
    }
}

/// A piece of a directory being read for [`Search`], until it was read or cannot be.
struct Piece(Arc<Folder>, Option<Device>);

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.searches().of(self.1).done();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use weft_machine::file::system::FileSystem;

    use super::super::site::Systems;
    use super::*;

    #[test]
    fn a_walk_goes_everywhere_once_and_again_when_it_is_old() {
        let now = Instant::now();
        let mut search = begun(now);
        let file = |inode| Ok(Seen { inode, before: 5, dir: None });
        let sub = |inode, node| Ok(Seen { inode, before: 6, dir: Some(NodeId(node)) });
        let nobody = 1;
        assert_eq!(search.next(nobody, now), Next::Read(NodeId::ROOT, 0));
        search.read(NodeId::ROOT, [file(10), sub(11, 2)].into_iter(), Some(7));
        search.done();
        assert_eq!(search.next(10, now), Next::In(NodeId::ROOT, 5));
        assert_eq!(search.next(nobody, now), Next::Read(NodeId::ROOT, 7));
        search.read(NodeId::ROOT, [sub(12, 3), Err(Error::Stale)].into_iter(), None);
        search.done();
        assert_eq!(search.next(nobody, now), Next::Read(NodeId(2), 0));
        search.read(NodeId(2), [file(13)].into_iter(), None);
        search.done();
        assert_eq!(search.next(nobody, now), Next::Read(NodeId(3), 0));
        search.read(NodeId(3), std::iter::empty(), None);
        search.done();
        assert_eq!(search.next(nobody, now), Next::Nowhere);
        assert_eq!((search.next(13, now), search.next(14, now)), (Next::In(NodeId(2), 5), Next::Nowhere));
        search.forget(13);
        assert_eq!(search.next(13, now), Next::Nowhere);
        assert_eq!(search.next(10, now + MAX_AGE * 2), Next::In(NodeId::ROOT, 5));
        assert_eq!(search.next(13, now + MAX_AGE * 2), Next::Begin);
        search.begin(vec![NodeId::ROOT], now + MAX_AGE * 2);
        // Another task has seen the same.
        search.begin(vec![NodeId::ROOT], now + MAX_AGE * 2);
        assert_eq!(search.next(13, now + MAX_AGE * 2), Next::Read(NodeId::ROOT, 0));
        assert_eq!(search.next(13, now + MAX_AGE * 2), Next::Wait);
    }

    /// After a restart nobody found a file of the share while something that was mounted in it did not answer.
    #[test]
    fn a_file_is_found_while_a_mount_beside_it_hangs() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("hung/inside")).unwrap();
        std::fs::create_dir(tree.path().join("sub")).unwrap();
        std::fs::write(tree.path().join("sub/file"), b"").unwrap();
        let before = Folder::open(tree.path(), Systems::of).unwrap();
        let sub = before.exact(NodeId::ROOT, b"sub").unwrap().node;
        let hung = before.exact(NodeId::ROOT, b"hung").unwrap().node;
        let (file, inside) = (before.exact(sub, b"file").unwrap(), before.exact(hung, b"inside").unwrap());
        let story = async {
            let folder = Arc::new(Folder::open(tree.path(), Systems::of).unwrap());
            folder.cross(&[], b"hung", &FileSystem::fixed(true));
            let find = async |stable| {
                let site = folder.site_among(&Op::Find { stable });
                assert!(matches!(site, Site::Core(_)), "nobody waits for a place of what hangs");
                folder.find(&site, stable).await
            };
            let found = find(file.stable).await.unwrap();
            assert_eq!(found.stable, file.stable);
            // Nothing was asked of it: here it is a folder that answers.
            assert!(matches!(find(inside.stable).await, Err(Error::Stale)));
        };
        rt::block_on(story).unwrap();
    }

    fn begun(now: Instant) -> Search {
        let mut search = Search::default();
        assert_eq!(search.next(1, now), Next::Begin);
        search.begin(vec![NodeId::ROOT], now);
        search
    }

    /// A folder may have a million entries, and it is searched for each file that was moved inside it.
    #[test]
    fn a_folder_that_is_looked_through_is_read_in_steps_between_which_others_have_their_turn() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..2 * STEP + 1 {
            std::fs::write(folder.path().join(n.to_string()), b"").unwrap();
        }
        let story = async {
            let dir = Arc::new(Folder::open(folder.path(), Systems::of).unwrap());
            let nobody = Identity::from_stable(&Stable([7; 24]), &dir.home);
            let turns = Rc::new(Cell::new(0));
            let counted = turns.clone();
            let _other = rt::spawn(async move {
                loop {
                    counted.set(counted.get() + 1);
                    rt::yield_now().await;
                }
            });
            rt::yield_now().await;
            let before = turns.get();
            let site = Site::Core(None);
            assert!(dir.find_in(&site, NodeId::ROOT, &nobody, 0, usize::MAX).await.unwrap().is_none());
            assert!(turns.get() >= before + 2);
        };
        rt::block_on(story).unwrap();
    }

    /// After a restart all connections of a client ask for the same file at once.
    #[test]
    fn who_finds_everything_being_read_by_others_waits_for_them() {
        let now = Instant::now();
        let mut search = begun(now);
        assert_eq!(search.next(10, now), Next::Read(NodeId::ROOT, 0));
        assert_eq!(search.next(10, now), Next::Wait);
        assert_eq!(search.next(10, now + MAX_AGE * 2), Next::Wait, "no second walk beside it");
        search.read(NodeId::ROOT, [Ok(Seen { inode: 10, before: 0, dir: None })].into_iter(), None);
        assert_eq!(search.next(10, now), Next::In(NodeId::ROOT, 0));
        assert_eq!(search.next(11, now), Next::Wait);
        search.done();
        assert_eq!(search.next(11, now), Next::Nowhere);
    }
}
