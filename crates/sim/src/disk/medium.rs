//! What the disk keeps: names and bytes as they are now, as they are durable, and what a crash leaves of the difference.

use std::collections::{BTreeMap, BTreeSet};

use weft_machine::clock;
use weft_machine::sim::with_rng;
use weft_store::{Attr, Error, Kind, NodeId, SetAttr, SetTime, Stable, Timestamp};

use super::{Faults, SECTOR};

/// Changes of names that are not durable; the oldest becomes so when there are more, as a journal commits from time to time.
const MAX_HISTORY: usize = 32;

pub(super) struct State {
    pub(super) faults: Faults,
    /// Names and attributes as durable and after each change since; never empty.
    history: Vec<Tree>,
    pub(super) contents: BTreeMap<NodeId, Content>,
    pub(super) next: u64,
    /// Who keeps a node within reach.
    pub(super) held: BTreeMap<NodeId, usize>,
    pub(super) flushes: u64,
    /// Flushes that have failed.
    pub(super) failures: u64,
    /// The process that runs.
    pub(super) process: u64,
    /// How often the host has crashed: what was in flight then is not on disk.
    pub(super) crashes: u64,
}

pub(super) type Tree = BTreeMap<NodeId, Meta>;

#[derive(Clone)]
pub(super) struct Meta {
    /// `None` for one whose name is gone.
    pub(super) place: Option<(NodeId, Vec<u8>)>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) born: Timestamp,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Bytes and times.
#[derive(Default)]
pub(super) struct Content {
    pub(super) now: Vec<u8>,
    pub(super) synced: Vec<u8>,
    /// The flush that `synced` is of.
    pub(super) synced_by: u64,
    /// Sectors that a failed flush has lost: no later one writes them until they are written again.
    lost: BTreeSet<usize>,
    /// How many flushes have failed.
    pub(super) failures: u64,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) atime: Timestamp,
}

pub(super) fn now() -> Timestamp {
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

impl State {
    pub(super) fn tree(&self) -> &Tree {
        &self.history[self.history.len() - 1]
    }

    /// The tree after one more change.
    pub(super) fn change(&mut self) -> &mut Tree {
        let tree = self.tree().clone();
        self.history.push(tree);
        if self.history.len() > MAX_HISTORY {
            self.history.remove(0);
        }
        let last = self.history.len() - 1;
        &mut self.history[last]
    }

    /// A flush of a file makes its creation durable.
    pub(super) fn commit_creation(&mut self, node: NodeId) {
        let created = self.history.iter().position(|tree| tree.contains_key(&node)).unwrap_or_default();
        self.history.drain(..created);
    }

    pub(super) fn commit_names(&mut self) {
        self.history.drain(..self.history.len() - 1);
    }

    pub(super) fn meta(&self, node: NodeId) -> Result<&Meta, Error> {
        self.tree().get(&node).ok_or(Error::Stale)
    }

    pub(super) fn dir(&self, node: NodeId) -> Result<&Meta, Error> {
        match self.meta(node)? {
            meta if meta.kind == Kind::Dir => Ok(meta),
            _ => Err(Error::NotDir),
        }
    }

    pub(super) fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let is = |meta: &Meta| {
            meta.place.as_ref().is_some_and(|(parent, called)| *parent == dir && called == name)
        };
        self.tree().iter().find(|(_, meta)| is(meta)).map(|(node, _)| *node)
    }

    pub(super) fn children(&self, dir: NodeId) -> impl Iterator<Item = (NodeId, &Meta)> {
        let in_dir = move |meta: &Meta| meta.place.as_ref().is_some_and(|(parent, _)| *parent == dir);
        self.tree().iter().filter(move |(_, meta)| in_dir(meta)).map(|(node, meta)| (*node, meta))
    }

    pub(super) fn content(&mut self, node: NodeId) -> &mut Content {
        self.contents.entry(node).or_default()
    }

    pub(super) fn attr(&self, node: NodeId) -> Result<Attr, Error> {
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

    pub(super) fn used(&self) -> usize {
        self.contents.values().map(|content| content.now.len()).sum()
    }

    fn require_room(&self, more: usize) -> Result<(), Error> {
        match self.faults.limit_bytes {
            0 => Ok(()),
            limit if self.used() + more <= limit => Ok(()),
            _ => Err(Error::NoSpace),
        }
    }

    pub(super) fn set(&mut self, node: NodeId, set: &SetAttr) -> Result<(), Error> {
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

    pub(super) fn resize(&mut self, node: NodeId, size: u64) -> Result<(), Error> {
        let size = usize::try_from(size).map_err(|_| Error::TooLarge)?;
        let len = self.content(node).now.len();
        self.require_room(size.saturating_sub(len))?;
        let content = self.content(node);
        let (from, to) = (size.min(len), size.max(len));
        content.now.resize(size, 0);
        content.rewritten(from, to);
        Ok(())
    }

    pub(super) fn write(&mut self, node: NodeId, at: usize, bytes: &[u8]) -> Result<(), Error> {
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
    pub(super) fn unlink(&mut self, node: NodeId) {
        let held = self.held.contains_key(&node);
        let tree = self.change();
        if held && let Some(meta) = tree.get_mut(&node) {
            meta.place = None;
        } else {
            tree.remove(&node);
        }
    }

    pub(super) fn release(&mut self, node: NodeId) {
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
    pub(super) fn commit_attributes(&mut self, node: NodeId) {
        let Some(meta) = self.tree().get(&node).cloned() else { return };
        for tree in &mut self.history {
            if let Some(before) = tree.get_mut(&node) {
                *before = Meta { place: before.place.take(), ..meta.clone() };
            }
        }
    }

    pub(super) fn crash(&mut self) {
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
    pub(super) fn end_process(&mut self) {
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
    pub(super) fn flushed(&self) -> Vec<u8> {
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
    pub(super) fn fail(&mut self) {
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

    pub(super) fn crash(&mut self) {
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
