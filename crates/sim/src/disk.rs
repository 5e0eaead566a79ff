//! The simulated twin of a folder: a [`Backend`] whose files lie in memory and are durable only as far as they were flushed.
//!
//! What a crash of the host leaves, sector by sector and name by name, the seed decides within these rules:
//!
//! | changed | durable after |
//! |---|---|
//! | bytes and size of a file | [`ObjectOp::Sync`] of it; until then each sector is old or new |
//! | a file's creation, and all changes of names before it | also by [`ObjectOp::Sync`] of it, as the journals of Linux' file systems have it |
//! | other names | [`Op::SyncDir`], [`Op::SyncAll`]; until then the first of the changes, in their order, are there |
//! | attributes | with a name, or with a flush of the file |
//!
//! A flush that fails has lost what it was to write, as Linux has it: later flushes succeed and do not write it, and every open of the
//! file is told once. A crash of the process loses nothing: the page cache is the kernel's.
//! There are no hard links and no large extended attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::with_rng;
use weft_machine::{DataRanges, Payload, PayloadSource, clock, rt};
use weft_store::object::Ended;
use weft_store::{
    Attr, Backend, Caller, Created, DirName, Done, Dos, Entry, Error, Exists, Hold, Kind, Listing, Make,
    NodeId, Object, ObjectOp, Op, OpenFile, Outcome, SetAttr, SetTime, SetXattr, Space, Stable, Submission,
    Timestamp, XattrSummary,
};

/// What is written as a whole or not at all.
pub const SECTOR: usize = 512;
/// Changes of names that are not durable; the oldest becomes so when there are more, as a journal commits from time to time.
const MAX_HISTORY: usize = 32;
/// EIO, ENOSPC.
const EIO: i32 = 5;

/// How the disk behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One operation in so many waits; 0: none does.
    pub slow_one_in: u64,
    /// How long it waits at most.
    pub wait: Duration,
    /// One flush in so many fails; 0: none does.
    pub failing_flush_one_in: u64,
    /// One write in so many fails; 0: none does.
    pub failing_write_one_in: u64,
    /// Bytes that all files together may have; 0: as many as they like.
    pub limit_bytes: usize,
}

/// A disk, and the file system on it, as one process sees it.
#[derive(Clone, Default)]
pub struct Disk {
    shared: Arc<Shared>,
    /// Which process: one that has ended changes nothing any more.
    process: u64,
}

#[derive(Default)]
struct Shared(Mutex<State>);

struct State {
    faults: Faults,
    /// Names and attributes as durable and after each change since; never empty.
    history: Vec<Tree>,
    contents: BTreeMap<NodeId, Content>,
    next: u64,
    /// Who keeps a node within reach.
    held: BTreeMap<NodeId, usize>,
    flushes: u64,
    /// Flushes that have failed.
    failures: u64,
    /// The process that runs.
    process: u64,
    /// How often the host has crashed: what was in flight then is not on disk.
    crashes: u64,
}

type Tree = BTreeMap<NodeId, Meta>;

#[derive(Clone)]
struct Meta {
    /// `None` for one whose name is gone.
    place: Option<(NodeId, Vec<u8>)>,
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    born: Timestamp,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Bytes and times.
#[derive(Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The flush that `synced` is of.
    synced_by: u64,
    /// Sectors that a failed flush has lost: no later one writes them until they are written again.
    lost: BTreeSet<usize>,
    /// How many flushes have failed.
    failures: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    atime: Timestamp,
}

fn now() -> Timestamp {
    let wall = clock::wall();
    Timestamp { secs: i64::try_from(wall.as_secs()).unwrap_or(i64::MAX), nanos: wall.subsec_nanos() }
}

impl Default for State {
    fn default() -> State {
        let root = Meta {
            place: None,
            kind: Kind::Dir,
            mode: 0o777,
            uid: 0,
            gid: 0,
            born: Timestamp::default(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
        };
        State {
            faults: Faults::default(),
            history: vec![BTreeMap::from([(NodeId::ROOT, root)])],
            contents: BTreeMap::from([(NodeId::ROOT, Content::default())]),
            next: NodeId::ROOT.0 + 1,
            held: BTreeMap::new(),
            flushes: 0,
            failures: 0,
            process: 0,
            crashes: 0,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits where the seed says so.
    async fn travel(&self) {
        let Faults { slow_one_in, wait, .. } = self.lock().faults;
        if happens(slow_one_in) {
            let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            rt::sleep(Duration::from_nanos(with_rng(|rng| rng.within(1..=nanos)))).await;
        }
    }
}

fn happens(one_in: u64) -> bool {
    one_in != 0 && with_rng(|rng| rng.one_in(one_in))
}

fn eio() -> Error {
    Error::Io(io::Error::from_raw_os_error(EIO))
}

impl State {
    fn tree(&self) -> &Tree {
        &self.history[self.history.len() - 1]
    }

    /// The tree after one more change.
    fn change(&mut self) -> &mut Tree {
        let tree = self.tree().clone();
        self.history.push(tree);
        if self.history.len() > MAX_HISTORY {
            self.history.remove(0);
        }
        let last = self.history.len() - 1;
        &mut self.history[last]
    }

    /// A flush of a file makes its creation durable.
    fn commit_creation(&mut self, node: NodeId) {
        let created = self.history.iter().position(|tree| tree.contains_key(&node)).unwrap_or_default();
        self.history.drain(..created);
    }

    fn commit_names(&mut self) {
        self.history.drain(..self.history.len() - 1);
    }

    fn meta(&self, node: NodeId) -> Result<&Meta, Error> {
        self.tree().get(&node).ok_or(Error::Stale)
    }

    fn dir(&self, node: NodeId) -> Result<&Meta, Error> {
        match self.meta(node)? {
            meta if meta.kind == Kind::Dir => Ok(meta),
            _ => Err(Error::NotDir),
        }
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let is = |meta: &Meta| {
            meta.place.as_ref().is_some_and(|(parent, called)| *parent == dir && called == name)
        };
        self.tree().iter().find(|(_, meta)| is(meta)).map(|(node, _)| *node)
    }

    fn children(&self, dir: NodeId) -> impl Iterator<Item = (NodeId, &Meta)> {
        let in_dir = move |meta: &Meta| meta.place.as_ref().is_some_and(|(parent, _)| *parent == dir);
        self.tree().iter().filter(move |(_, meta)| in_dir(meta)).map(|(node, meta)| (*node, meta))
    }

    fn content(&mut self, node: NodeId) -> &mut Content {
        self.contents.entry(node).or_default()
    }

    fn attr(&self, node: NodeId) -> Result<Attr, Error> {
        let meta = self.meta(node)?;
        let content = self.contents.get(&node);
        let size = content.map_or(0, |content| content.now.len() as u64);
        let time = |of: fn(&Content) -> Timestamp| content.map_or(meta.born, of);
        let mut stable = [0; 24];
        stable[..8].copy_from_slice(&node.0.to_le_bytes());
        Ok(Attr {
            node,
            fileid: node.0,
            stable: Stable(stable),
            kind: meta.kind,
            size,
            allocated: size.next_multiple_of(SECTOR as u64),
            nlink: if meta.place.is_some() || node == NodeId::ROOT { 1 } else { 0 },
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            atime: time(|content| content.atime),
            mtime: time(|content| content.mtime),
            ctime: time(|content| content.ctime),
            btime: meta.born,
            is_sealed: false,
        })
    }

    fn used(&self) -> usize {
        self.contents.values().map(|content| content.now.len()).sum()
    }

    fn require_room(&self, more: usize) -> Result<(), Error> {
        match self.faults.limit_bytes {
            0 => Ok(()),
            limit if self.used() + more <= limit => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    fn set(&mut self, node: NodeId, set: &SetAttr) -> Result<(), Error> {
        self.meta(node)?;
        if let Some(size) = set.size {
            if self.meta(node)?.kind != Kind::File {
                return Err(Error::Invalid);
            }
            self.resize(node, size)?;
        }
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            let meta = self.change().get_mut(&node).ok_or(Error::Stale)?;
            meta.mode = set.mode.unwrap_or(meta.mode);
            meta.uid = set.uid.unwrap_or(meta.uid);
            meta.gid = set.gid.unwrap_or(meta.gid);
        }
        let time = |time| match time {
            SetTime::Now => now(),
            SetTime::To(time) => time,
        };
        let content = self.content(node);
        content.atime = set.atime.map_or(content.atime, time);
        content.mtime = set.mtime.map_or(content.mtime, time);
        content.ctime = now();
        Ok(())
    }

    fn resize(&mut self, node: NodeId, size: u64) -> Result<(), Error> {
        let size = usize::try_from(size).map_err(|_| Error::TooLarge)?;
        let len = self.content(node).now.len();
        self.require_room(size.saturating_sub(len))?;
        let content = self.content(node);
        let (from, to) = (size.min(len), size.max(len));
        content.now.resize(size, 0);
        content.rewritten(from, to);
        Ok(())
    }

    fn write(&mut self, node: NodeId, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let end = at.checked_add(bytes.len()).ok_or(Error::TooLarge)?;
        let len = self.content(node).now.len();
        self.require_room(end.saturating_sub(len))?;
        let content = self.content(node);
        if end > len {
            content.now.resize(end, 0);
        }
        content.now[at..end].copy_from_slice(bytes);
        content.rewritten(at.min(len), end);
        Ok(())
    }

    /// Takes a name away; the node goes with it unless somebody keeps it.
    fn unlink(&mut self, node: NodeId) {
        let held = self.held.contains_key(&node);
        let tree = self.change();
        if held && let Some(meta) = tree.get_mut(&node) {
            meta.place = None;
        } else {
            tree.remove(&node);
        }
    }

    fn release(&mut self, node: NodeId) {
        let Some(count) = self.held.get_mut(&node) else { return };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&node);
            let orphan = |meta: &Meta| meta.place.is_none();
            if node != NodeId::ROOT && self.tree().get(&node).is_some_and(orphan) {
                let last = self.history.len() - 1;
                self.history[last].remove(&node);
            }
        }
    }

    /// Attributes of a node are durable.
    fn commit_attributes(&mut self, node: NodeId) {
        let Some(meta) = self.tree().get(&node).cloned() else { return };
        for tree in &mut self.history {
            if let Some(before) = tree.get_mut(&node) {
                *before = Meta { place: before.place.take(), ..meta.clone() };
            }
        }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.end_process();
        let survives = with_rng(|rng| rng.below(self.history.len()));
        self.history = vec![std::mem::take(&mut self.history[survives])];
        let State { contents, history, .. } = self;
        contents.retain(|node, _| history[0].contains_key(node));
        contents.values_mut().for_each(Content::crash);
        // Files that the dead process kept open and that have no name.
        self.drop_orphans();
    }

    /// Whatever the process kept within reach is free.
    fn end_process(&mut self) {
        self.process += 1;
        self.held.clear();
        self.drop_orphans();
    }

    fn drop_orphans(&mut self) {
        let orphans: Vec<NodeId> = self
            .tree()
            .iter()
            .filter(|(node, meta)| meta.place.is_none() && **node != NodeId::ROOT)
            .map(|(node, _)| *node)
            .collect();
        let last = self.history.len() - 1;
        for node in orphans {
            self.history[last].remove(&node);
        }
    }
}

impl Content {
    /// Bytes of `[from, to)` differ from what was there.
    fn rewritten(&mut self, from: usize, to: usize) {
        self.mtime = now();
        self.ctime = self.mtime;
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            self.lost.remove(&sector);
        }
    }

    /// What a flush brings to disk.
    fn flushed(&self) -> Vec<u8> {
        let mut bytes = self.now.clone();
        for sector in &self.lost {
            let range = sector * SECTOR..bytes.len().min((sector + 1) * SECTOR);
            for at in range {
                bytes[at] = self.synced.get(at).copied().unwrap_or(0);
            }
        }
        bytes
    }

    /// The flush failed.
    fn fail(&mut self) {
        self.failures += 1;
        let sectors = self.now.len().div_ceil(SECTOR);
        for sector in 0..sectors {
            let range = |bytes: &[u8]| {
                let end = bytes.len().min((sector + 1) * SECTOR);
                bytes.get(sector * SECTOR..end).map(<[u8]>::to_vec)
            };
            if range(&self.now) != range(&self.synced) {
                self.lost.insert(sector);
            }
        }
    }

    fn crash(&mut self) {
        let new_len = with_rng(|rng| rng.one_in(2));
        let len = if new_len { self.now.len() } else { self.synced.len() };
        let mut bytes = vec![0; len];
        for (sector, into) in bytes.chunks_mut(SECTOR).enumerate() {
            let at = sector * SECTOR;
            // What a failed flush has lost is not in memory that is ever written.
            let new = !self.lost.contains(&sector) && with_rng(|rng| rng.one_in(2));
            let from = if new { &self.now } else { &self.synced };
            let from = from.get(at..from.len().min(at + into.len())).unwrap_or(&[]);
            into[..from.len()].copy_from_slice(from);
        }
        self.now = bytes.clone();
        self.synced = bytes;
        self.lost.clear();
    }
}

impl Disk {
    /// Behaves so from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// How it behaves.
    pub fn faults(&self) -> Faults {
        self.lock().faults
    }

    /// The host crashes: of what was not flushed the seed decides what is left.
    pub fn crash(&self) {
        self.lock().crash();
    }

    /// The process ends; what it has written stays.
    pub fn end_process(&self) {
        self.lock().end_process();
    }

    /// The disk as a new process sees it.
    pub fn for_process(&self) -> Disk {
        Disk { shared: self.shared.clone(), process: self.lock().process }
    }

    /// Nodes that the process keeps within reach.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// What a node is called, for messages.
    pub fn name_of(&self, node: NodeId) -> String {
        let state = self.lock();
        let place = state.tree().get(&node).and_then(|meta| meta.place.as_ref());
        place.map_or(format!("{node:?}"), |(_, name)| String::from_utf8_lossy(name).into_owned())
    }

    /// Flushes that have failed so far.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// The same for a process that still runs.
    fn running(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        if state.process == self.process { Ok(state) } else { Err(eio()) }
    }

    fn hold(&self, node: NodeId) -> Result<Held, Error> {
        let mut state = self.running()?;
        state.meta(node)?;
        *state.held.entry(node).or_default() += 1;
        Ok(Held { disk: self.clone(), node })
    }

    fn create(
        &self,
        dir: NodeId,
        name: Vec<u8>,
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<Outcome, Error> {
        check(&name)?;
        let mut state = self.running()?;
        state.dir(dir)?;
        if let Some(node) = state.child(dir, &name) {
            let kind = state.meta(node)?.kind;
            match (exists, &make, kind) {
                (Exists::Reuse, Make::File, Kind::File) => {
                    if set.size.is_some() {
                        state.set(node, &SetAttr { size: set.size, ..SetAttr::default() })?;
                    }
                }
                (Exists::Reuse, Make::Dir, Kind::Dir) => {}
                (Exists::Reuse, Make::File, Kind::Dir) => return Err(Error::IsDir),
                _ => return Err(Error::Exists),
            }
            return Ok(Outcome::Created(Created { attr: state.attr(node)?, is_new: false }));
        }
        let (kind, mode, target) = match make {
            Make::File => (Kind::File, 0o644, Vec::new()),
            Make::Dir => (Kind::Dir, 0o755, Vec::new()),
            Make::Symlink(target) => (Kind::Symlink, 0o777, target),
            Make::Special(special) => (Kind::Special(special), 0o644, Vec::new()),
        };
        let node = NodeId(state.next);
        state.next += 1;
        let (place, born) = (Some((dir, name)), now());
        let meta = Meta { place, kind, mode, uid: 0, gid: 0, born, target, xattrs: BTreeMap::new() };
        state.change().insert(node, meta);
        let content = state.content(node);
        (content.mtime, content.ctime, content.atime) = (born, born, born);
        let set = SetAttr { size: set.size.filter(|size| *size != 0), ..set };
        if set != SetAttr::default() {
            state.set(node, &set)?;
        }
        Ok(Outcome::Created(Created { attr: state.attr(node)?, is_new: true }))
    }

    fn remove(&self, dir: NodeId, name: &[u8], is_dir: bool) -> Result<Outcome, Error> {
        check(name)?;
        let mut state = self.running()?;
        state.dir(dir)?;
        let node = state.child(dir, name).ok_or(Error::NotFound)?;
        match (state.meta(node)?.kind == Kind::Dir, is_dir) {
            (true, false) => return Err(Error::IsDir),
            (false, true) => return Err(Error::NotDir),
            _ => {}
        }
        if state.children(node).next().is_some() {
            return Err(Error::NotEmpty);
        }
        state.unlink(node);
        Ok(Outcome::Unlinked(Some(node)))
    }

    fn rename(&self, from: &DirName, to: &DirName, replace: bool) -> Result<Outcome, Error> {
        check(&from.name)?;
        check(&to.name)?;
        let mut state = self.running()?;
        state.dir(from.dir)?;
        state.dir(to.dir)?;
        let node = state.child(from.dir, &from.name).ok_or(Error::NotFound)?;
        let mut gone = None;
        if let Some(victim) = state.child(to.dir, &to.name) {
            if victim == node {
                return Ok(Outcome::Unlinked(None));
            }
            let (kind, of) = (state.meta(victim)?.kind, state.meta(node)?.kind);
            match (kind == Kind::Dir, of == Kind::Dir) {
                _ if !replace => return Err(Error::Exists),
                (true, false) => return Err(Error::IsDir),
                (false, true) => return Err(Error::NotDir),
                _ if state.children(victim).next().is_some() => return Err(Error::NotEmpty),
                _ => gone = Some(victim),
            }
        }
        let held = gone.is_some_and(|victim| state.held.contains_key(&victim));
        // One change, so that a crash leaves either name or the other.
        let tree = state.change();
        if let Some(victim) = gone {
            match tree.get_mut(&victim) {
                Some(meta) if held => meta.place = None,
                _ => drop(tree.remove(&victim)),
            }
        }
        tree.get_mut(&node).ok_or(Error::Stale)?.place = Some((to.dir, to.name.clone()));
        Ok(Outcome::Unlinked(gone))
    }

    fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Outcome, Error> {
        let state = self.running()?;
        let meta = state.dir(dir)?;
        let node = match name {
            b"." => dir,
            b".." => meta.place.as_ref().map_or(NodeId::ROOT, |(parent, _)| *parent),
            name => {
                let folded = || {
                    let like = |meta: &Meta| {
                        meta.place.as_ref().is_some_and(|(_, called)| called.eq_ignore_ascii_case(name))
                    };
                    state.children(dir).find(|(_, meta)| like(meta)).map(|(node, _)| node)
                };
                let found = state.child(dir, name).or_else(|| if fold_case { folded() } else { None });
                found.ok_or(Error::NotFound)?
            }
        };
        Ok(Outcome::Attr(state.attr(node)?))
    }

    fn readdir(&self, dir: NodeId, cookie: u64, max: usize, xattrs: bool) -> Result<Outcome, Error> {
        let state = self.running()?;
        state.dir(dir)?;
        let mut after = state.children(dir).filter(|(node, _)| node.0 > cookie);
        let mut entries = Vec::new();
        for (node, meta) in after.by_ref().take(max) {
            let name = meta.place.as_ref().map(|(_, name)| name.clone()).unwrap_or_default();
            let xattrs = xattrs.then(|| self::xattr_summary(meta));
            entries.push(Entry { name, cookie: node.0, attr: Ok(state.attr(node)?), xattrs });
        }
        let end = after.next().is_none();
        Ok(Outcome::Entries(Listing { entries, is_last: end }))
    }

    fn xattr<T>(
        &self,
        node: NodeId,
        act: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.running()?;
        let mut xattrs = state.meta(node)?.xattrs.clone();
        let done = act(&mut xattrs)?;
        state.change().get_mut(&node).ok_or(Error::Stale)?.xattrs = xattrs;
        Ok(done)
    }

    fn carry_out(&self, op: Op) -> Result<Outcome, Error> {
        Ok(match op {
            Op::Lookup { dir, name, fold_case } => return self.lookup(dir, &name, fold_case),
            Op::Getattr { node } => Outcome::Attr(self.running()?.attr(node)?),
            Op::Setattr { node, set } => {
                let mut state = self.running()?;
                state.set(node, &set)?;
                Outcome::Attr(state.attr(node)?)
            }
            Op::Open { node, write } => {
                match self.running()?.meta(node)?.kind {
                    Kind::File => {}
                    Kind::Dir => return Err(Error::IsDir),
                    _ => return Err(Error::Invalid),
                }
                let seen = AtomicU64::new(self.running()?.content(node).failures);
                let file = OpenFile::new(node, Arc::new(Open { held: self.hold(node)?, seen }));
                Outcome::File(if write { file } else { file.read_only() })
            }
            Op::Create { dir, name, make, exists, set } => return self.create(dir, name, make, exists, set),
            Op::Remove { dir, name } => return self.remove(dir, &name, false),
            Op::Rmdir { dir, name } => return self.remove(dir, &name, true),
            Op::Rename { from, to, replace } => return self.rename(&from, &to, replace),
            Op::Link { .. } => return Err(Error::NotSupported),
            Op::Readlink { node } => match self.running()?.meta(node)? {
                meta if meta.kind == Kind::Symlink => Outcome::Target(meta.target.clone()),
                _ => return Err(Error::Invalid),
            },
            Op::Readdir { dir, cookie, max, xattrs } => return self.readdir(dir, cookie, max, xattrs),
            Op::Place { node } => {
                let (dir, name) = self.running()?.meta(node)?.place.clone().ok_or(Error::NotFound)?;
                Outcome::Place(DirName { dir, name })
            }
            Op::Statfs => {
                let state = self.running()?;
                let total = match state.faults.limit_bytes {
                    0 => 1 << 30,
                    limit => limit as u64,
                };
                let free = total.saturating_sub(state.used() as u64);
                Outcome::Space(Space { total, free, available: free, files: 1 << 20, files_free: 1 << 19 })
            }
            Op::SyncDir { dir } => {
                let mut state = self.running()?;
                state.dir(dir)?;
                state.commit_names();
                Outcome::Done
            }
            Op::SyncAll { node } => {
                let mut state = self.running()?;
                state.meta(node)?;
                state.commit_names();
                for content in state.contents.values_mut() {
                    content.synced = content.flushed();
                }
                Outcome::Done
            }
            Op::MayUnlink { .. } => Outcome::Done,
            Op::Access { wanted, .. } => Outcome::Permissions(wanted),
            Op::Hold { node } => Outcome::Held(Hold::new(Arc::new(self.hold(node)?))),
            Op::GetXattr { node, name } => {
                Outcome::Value(self.running()?.meta(node)?.xattrs.get(&name).cloned().ok_or(Error::NoXattr)?)
            }
            Op::SetXattr { node, name, value, how } => self.xattr(node, |xattrs| {
                match (how, xattrs.contains_key(&name)) {
                    (SetXattr::Create, true) => return Err(Error::Exists),
                    (SetXattr::Replace, false) => return Err(Error::NoXattr),
                    _ => {}
                }
                xattrs.insert(name, value);
                Ok(Outcome::Done)
            })?,
            Op::ListXattrs { node } => {
                Outcome::Names(self.running()?.meta(node)?.xattrs.keys().cloned().collect())
            }
            Op::RemoveXattr { node, name } => {
                self.xattr(node, |xattrs| xattrs.remove(&name).map(|_| Outcome::Done).ok_or(Error::NoXattr))?
            }
            Op::XattrSummary { node } => Outcome::XattrSummary(xattr_summary(self.running()?.meta(node)?)),
            Op::Stable { node } => Outcome::Stable(self.running()?.attr(node)?.stable),
            Op::Find { stable } => {
                let node = NodeId(u64::from_le_bytes(std::array::from_fn(|i| stable.0[i])));
                Outcome::Attr(self.running()?.attr(node)?)
            }
        })
    }
}

fn xattr_summary(meta: &Meta) -> XattrSummary {
    XattrSummary {
        dos: meta.xattrs.get(&b"weft.dos"[..]).and_then(|bytes| Dos::parse(bytes)),
        streams: meta.xattrs.keys().any(|name| name.starts_with(b"weft.stream.")),
        ..XattrSummary::default()
    }
}

fn check(name: &[u8]) -> Result<(), Error> {
    match name {
        b"" | b"." | b".." => Err(Error::BadName),
        name if name.len() > 255 => Err(Error::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Error::BadName),
        _ => Ok(()),
    }
}

impl Backend for Disk {
    fn kind(&self) -> &'static str {
        "sim"
    }

    /// So that what is changed is flushed where a protocol promises that.
    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn submit(&self, op: Op, _by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async {
            self.shared.travel().await;
            self.carry_out(op)
        })
    }
}

/// A claim on a node.
struct Held {
    disk: Disk,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A process that has ended has no claims.
        if let Ok(mut state) = self.disk.running() {
            state.release(self.node);
        }
    }
}

/// An open file.
struct Open {
    held: Held,
    /// Failed flushes that this open has been told of.
    seen: AtomicU64,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open({:?})", self.held.node)
    }
}

impl Open {
    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        self.held.disk.running()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        let mut state = self.state()?;
        let bytes = &state.content(self.held.node).now;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Bytes::copy_from_slice(&bytes[from..bytes.len().min(from.saturating_add(len))]))
    }

    async fn write(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        let mut at = usize::try_from(offset).map_err(|_| Error::TooLarge)?;
        let fails = self.state()?.faults.failing_write_one_in;
        for piece in chain {
            // A sector at a time is what a reader sees whole.
            for part in piece.chunks(SECTOR * 4) {
                if happens(fails) {
                    return Err(eio());
                }
                self.state()?.write(self.held.node, at, part)?;
                at += part.len();
                if with_rng(|rng| rng.one_in(4)) {
                    rt::yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// Goes on when nobody waits for it any more, as in the kernel; ends with the host.
    fn sync(&self, ended: Ended) -> Result<impl Future<Output = Result<Done, Error>> + use<>, Error> {
        let (disk, node) = (self.held.disk.clone(), self.held.node);
        let mut state = self.state()?;
        state.flushes += 1;
        let (number, fails, crashes) =
            (state.flushes, happens(state.faults.failing_flush_one_in), state.crashes);
        let content = state.content(node);
        let (bytes, failures) = (content.flushed(), content.failures + u64::from(fails));
        drop(state);
        // As the kernel has it: of flushes of one open that run at the same time only one is told, although each has lost what it was to write.
        // That the other clients of the open learn of it is up to the server.
        let told = self.seen.swap(failures, Ordering::SeqCst) < failures;
        Ok(rt::uncancelled(async move {
            disk.shared.travel().await;
            let mut state = disk.lock();
            if state.crashes != crashes {
                return Err(eio());
            }
            state.failures += u64::from(fails);
            let content = state.content(node);
            if fails {
                content.fail();
            } else if number > content.synced_by {
                (content.synced, content.synced_by) = (bytes, number);
                state.commit_attributes(node);
                state.commit_creation(node);
            }
            drop(state);
            let result = if told { Err(eio()) } else { Ok(()) };
            ended(&result);
            result.map(|()| Done::Done)
        }))
    }

    async fn carry_out(&self, op: ObjectOp<'_>) -> Result<Done, Error> {
        let node = self.held.node;
        self.held.disk.shared.travel().await;
        Ok(match op {
            ObjectOp::Read { offset, len, .. } => Done::Data(Payload::from(self.read(offset, len)?)),
            ObjectOp::Write { offset, source: PayloadSource::Memory(chain) } => {
                self.write(offset, chain).await?;
                Done::Done
            }
            ObjectOp::Write { source: PayloadSource::Remote { .. }, .. } => Done::NeedsMemory,
            ObjectOp::Append { bytes, admit } => {
                let at = self.state()?.content(node).now.len();
                admit(at as u64)?;
                self.state()?.write(node, at, bytes)?;
                Done::Done
            }
            ObjectOp::Sync { ended } => return self.sync(ended)?.await,
            ObjectOp::Allocate { offset, len, keep_size } => {
                let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
                let mut state = self.state()?;
                if !keep_size && end > state.content(node).now.len() as u64 {
                    state.resize(node, end)?;
                }
                Done::Done
            }
            ObjectOp::Zero { offset, len, .. } => {
                let mut state = self.state()?;
                let size = state.content(node).now.len();
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(size);
                let to = usize::try_from(offset.saturating_add(len)).unwrap_or(usize::MAX).min(size);
                state.write(node, from, &vec![0; to - from])?;
                Done::Done
            }
            ObjectOp::Copy { at, from, offset, len } => {
                let len = usize::try_from(len).map_err(|_| Error::TooLarge)?;
                let Done::Data(Payload::Chain(chain)) =
                    from.submit(ObjectOp::Read { offset, len, size: None }).await?
                else {
                    return Err(Error::NotSupported);
                };
                self.write(at, &chain).await?;
                Done::Copied(chain.iter().map(|piece| piece.len() as u64).sum())
            }
            ObjectOp::Extents { offset, len, .. } => {
                let size = self.state()?.content(node).now.len() as u64;
                let end = offset.saturating_add(len).min(size);
                let ranges = (offset < end).then_some(offset..end).into_iter().collect();
                Done::Extents(DataRanges { ranges, more: false })
            }
            ObjectOp::Len => Done::Len(self.state()?.content(node).now.len() as u64),
            ObjectOp::Resize { size } => {
                self.state()?.resize(node, size)?;
                Done::Done
            }
            ObjectOp::Clone { .. } | ObjectOp::Exchange { .. } => return Err(Error::NotSupported),
        })
    }
}

impl Object for Open {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        Submission::later(self.carry_out(op))
    }
}
