//! The nodes of a memory disk: directories with stable cookies, files, links.
//!
//! The bytes of files are in `content`.
//! Invariants: every node except the root has at least one place, or is held by an open; a directory has exactly one
//! place; `names` and
//! `order` of a directory list the same entries.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use weft_machine::clock;

use super::content::Content;
use super::quota::{Data, Usage};
use super::xattrs::Xattrs;
use crate::backend::names::{fold, is_called, short};
use crate::vfs::{
    Attr, DirName, Error, Kind, NodeId, SetAttr, SetTime, Special, Stable, Timestamp, XattrSummary,
};

/// Number of files that give up their descriptors when one is needed, so that not every further open has to search.
/// At most a megabyte each is copied with the tree locked.
const PARKED_AT_ONCE: usize = 8;
/// Number of files listed as having descriptors before the list is cleaned of those that have none.
const MIN_OPENED: usize = 1024;
/// Hard links of one file.
pub(super) const MAX_LINKS: usize = 1024;

/// The server's clock, in the form of file times.
pub(super) fn now() -> Timestamp {
    since_1970(clock::wall())
}

fn since_1970(time: Duration) -> Timestamp {
    Timestamp { secs: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), nanos: time.subsec_nanos() }
}

/// The contents of a node.
pub(super) enum Body {
    /// Bytes.
    File(Content),
    /// Entries.
    Dir(Entries),
    /// A target.
    Symlink(Vec<u8>),
    /// A pipe, socket or device, which exists only as a name.
    Special(Special),
}

/// The entries of a directory, by name and by cookie.
#[derive(Default)]
pub(super) struct Entries {
    names: BTreeMap<Vec<u8>, (u64, NodeId)>,
    order: BTreeMap<u64, Vec<u8>>,
    last_cookie: u64,
    /// A hash of each name and of its 8.3 name, with its cookie, for look-ups that ignore case.
    called: BTreeSet<(u64, u64)>,
    /// Its keys are random: nobody can construct names with equal hashes, so a look-up finds the right one first.
    hasher: RandomState,
    subdirs: u32,
}

/// A form in which an entry can be looked up.
#[derive(Hash)]
enum Called<'a> {
    /// By its own name, folded.
    Own(&'a [u8]),
    /// By its 8.3 name.
    Short(&'a [u8]),
}

impl Entries {
    pub(super) fn find(&self, name: &[u8]) -> Option<NodeId> {
        self.names.get(name).map(|&(_, node)| node)
    }

    pub(super) fn find_folded(&self, name: &[u8]) -> Option<NodeId> {
        let wanted = fold(name);
        let own = self.with_hash_of(Called::Own(&wanted)).find(|name| fold(name) == wanted);
        let by_short = || self.with_hash_of(Called::Short(&wanted)).find(|name| is_called(name, &wanted));
        own.or_else(by_short).and_then(|name| self.find(name))
    }

    /// The names with this hash; others only by chance, one in 2^64.
    fn with_hash_of(&self, called: Called<'_>) -> impl Iterator<Item = &[u8]> {
        let hash = self.hasher.hash_one(called);
        let range = self.called.range((hash, 0)..=(hash, u64::MAX));
        range.filter_map(|(_, at)| self.order.get(at)).map(Vec::as_slice)
    }

    /// The hashes under which look-ups find a name.
    fn hashes(&self, name: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let own = self.hasher.hash_one(Called::Own(&fold(name)));
        let short = short(name).map(|short| self.hasher.hash_one(Called::Short(short.as_bytes())));
        [Some(own), short].into_iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn insert(&mut self, name: &[u8], node: NodeId, is_dir: bool) {
        self.last_cookie += 1;
        self.names.insert(name.to_vec(), (self.last_cookie, node));
        self.order.insert(self.last_cookie, name.to_vec());
        self.called.extend(self.hashes(name).map(|hash| (hash, self.last_cookie)));
        self.subdirs += u32::from(is_dir);
    }

    fn remove(&mut self, name: &[u8], is_dir: bool) {
        let Some((cookie, _)) = self.names.remove(name) else { return };
        self.order.remove(&cookie);
        for hash in self.hashes(name) {
            self.called.remove(&(hash, cookie));
        }
        self.subdirs -= u32::from(is_dir);
    }

    /// Entries after a cookie.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], NodeId)> {
        self.order
            .range((Bound::Excluded(cookie), Bound::Unbounded))
            .filter_map(|(&cookie, name)| self.names.get(name).map(|&(_, node)| (cookie, &name[..], node)))
    }
}

/// A file, directory or link.
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) xattrs: Xattrs,
    /// Directory and name, once per hard link.
    places: Vec<DirName>,
    /// Number of opens that keep it although it may have no name.
    holds: usize,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
}

impl Node {
    /// The summary of its extended attributes.
    pub(super) fn xattr_summary(&self) -> XattrSummary {
        match &self.body {
            Body::Symlink(target) => XattrSummary::of_link(target),
            _ => self.xattrs.summary(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.body {
            Body::File(_) => Kind::File,
            Body::Dir(_) => Kind::Dir,
            Body::Symlink(_) => Kind::Symlink,
            Body::Special(special) => Kind::Special(special),
        }
    }

    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    /// `serial` identifies the disk.
    fn attr(&self, node: NodeId, serial: u64) -> Result<Attr, Error> {
        let links = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let mut attr = Attr {
            fileid: node.0,
            stable: stable(node, serial),
            node,
            kind: self.kind(),
            size: 0,
            allocated: 0,
            nlink: links,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            is_sealed: false,
        };
        match &self.body {
            Body::File(Content::Empty) | Body::Special(_) => {}
            Body::File(Content::Open(data, set_after)) => {
                let found = data.file.state_in_memory()?;
                (attr.size, attr.allocated) = (found.len, found.allocated);
                // Otherwise the node's value is newer: setting its time also set its change time.
                if found.changed != set_after.mode {
                    attr.mode = written_to(self.mode);
                }
                if found.changed != set_after.mtime {
                    let changed = since_1970(found.changed);
                    (attr.mtime, attr.ctime) = (changed, self.ctime.max(changed));
                }
            }
            Body::File(Content::Parked(bytes, charge)) => {
                (attr.size, attr.allocated) = (bytes.len() as u64, charge.bytes());
            }
            Body::Dir(entries) => attr.nlink = entries.subdirs.saturating_add(2),
            Body::Symlink(target) => attr.size = target.len() as u64,
        }
        Ok(attr)
    }

    fn content(&mut self) -> Result<&mut Content, Error> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Dir(_) => Err(Error::IsDir),
            Body::Symlink(_) | Body::Special(_) => Err(Error::Invalid),
        }
    }

    /// Gives up its descriptor if nobody needs it. Returns whether one is now free.
    fn park(&mut self, id: NodeId) -> Result<bool, Error> {
        let attr = self.attr(id, 0)?;
        let parked = self.content()?.park()?;
        if parked {
            (self.mtime, self.ctime, self.mode) = (attr.mtime, attr.ctime, attr.mode);
        }
        Ok(parked)
    }

    fn set(&mut self, set: &SetAttr) -> Result<(), Error> {
        self.mode = set.mode.map_or(self.mode, |mode| mode & 0o7777);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if let Body::File(Content::Open(data, set_after)) = &mut self.body {
            let changed = data.file.state_in_memory()?.changed;
            if set.mtime.is_some() {
                set_after.mtime = changed;
            }
            if set.mode.is_none() && changed != set_after.mode {
                self.mode = written_to(self.mode);
            }
            set_after.mode = changed;
        }
        let time = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::Now) => now(),
            Some(SetTime::To(t)) => t,
        };
        self.atime = time(set.atime, self.atime);
        self.mtime = time(set.mtime, self.mtime);
        if *set != SetAttr::default() {
            self.ctime = now();
        }
        Ok(())
    }
}

/// The mode after a write (inode(7)): without execute permission for the group, the set-group-id bit means something
/// else.
fn written_to(mode: u32) -> u32 {
    let lent = if mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
    mode & !lent
}

fn stable(node: NodeId, serial: u64) -> Stable {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&node.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&serial.to_le_bytes());
    Stable(bytes)
}

/// All nodes.
pub(super) struct Tree {
    /// Distinguishes this disk from every other one, including the same share's after a restart.
    serial: u64,
    nodes: HashMap<NodeId, Node>,
    /// Files that have a descriptor, in the order in which they got it, and some that no longer have one.
    opened: VecDeque<NodeId>,
    next: u64,
    names: usize,
    max_names: usize,
}

impl Tree {
    /// A tree with only the root.
    pub(super) fn new(max_names: usize, serial: u64) -> Tree {
        let mut tree = Tree {
            serial,
            nodes: HashMap::default(),
            opened: VecDeque::new(),
            next: NodeId::ROOT.0 + 1,
            names: 0,
            max_names,
        };
        // Everybody with access to a memory disk may use all of it, as with /tmp.
        tree.nodes.insert(NodeId::ROOT, new_node(Body::Dir(Entries::default()), 0o1777));
        tree
    }

    pub(super) fn max_names(&self) -> usize {
        self.max_names
    }

    pub(super) fn free_names(&self) -> usize {
        self.max_names.saturating_sub(self.names)
    }

    /// Attributes of a node.
    pub(super) fn attr(&self, id: NodeId) -> Result<Attr, Error> {
        self.node(id)?.attr(id, self.serial)
    }

    /// The stable identity of a node number on this disk, whether the node exists or not.
    pub(super) fn stable(&self, id: NodeId) -> Stable {
        stable(id, self.serial)
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.nodes.get(&id).ok_or(Error::Stale)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, Error> {
        self.nodes.get_mut(&id).ok_or(Error::Stale)
    }

    /// The extended attributes of a file or directory, for changing them.
    pub(super) fn xattrs_mut(&mut self, id: NodeId) -> Result<&mut Xattrs, Error> {
        let node = self.node_mut(id)?;
        if node.kind() == Kind::Symlink {
            return Err(Error::NotSupported);
        }
        node.ctime = now();
        Ok(&mut node.xattrs)
    }

    /// The entries of a directory.
    pub(super) fn entries(&self, id: NodeId) -> Result<&Entries, Error> {
        match &self.node(id)?.body {
            Body::Dir(entries) => Ok(entries),
            _ => Err(Error::NotDir),
        }
    }

    /// The parent of `id`, a directory; the root is its own parent.
    pub(super) fn parent(&self, id: NodeId) -> Result<NodeId, Error> {
        match self.node(id)?.places.first() {
            Some(place) => Ok(place.dir),
            None if id == NodeId::ROOT => Ok(id),
            None => Err(Error::Stale),
        }
    }

    /// The place of a node: one of its names.
    pub(super) fn place(&self, id: NodeId) -> Result<DirName, Error> {
        if id == NodeId::ROOT {
            return Err(Error::Invalid);
        }
        self.node(id)?.places.first().cloned().ok_or(Error::Stale)
    }

    /// Creates a node with a name that does not exist yet.
    pub(super) fn add(&mut self, dir: NodeId, name: &[u8], body: Body, mode: u32) -> Result<NodeId, Error> {
        // A removed directory that is still held accepts no new names.
        if dir != NodeId::ROOT && self.node(dir)?.places.is_empty() {
            return Err(Error::NotFound);
        }
        self.entries(dir)?;
        self.room_for_a_name()?;
        let id = NodeId(self.next);
        self.next += 1;
        self.nodes.insert(id, new_node(body, mode));
        self.attach(id, dir, name);
        Ok(id)
    }

    /// The bytes of a regular file in a memfd. If that exceeds the share's descriptors, other files give up theirs;
    /// [`Error::NoSpace`] if none can.
    pub(super) fn data(&mut self, id: NodeId, usage: &Arc<Usage>) -> Result<Arc<Data>, Error> {
        let had = self.node_mut(id)?.content()?.is_open();
        let data = match self.node_mut(id)?.content()?.data(usage) {
            Err(Error::NoSpace) if self.park()? => self.node_mut(id)?.content()?.data(usage)?,
            other => other?,
        };
        if !had {
            self.opened.push_back(id);
        }
        if self.opened.len() > MIN_OPENED + 2 * usage.descriptors() {
            let Tree { opened, nodes, .. } = self;
            let mut seen = HashSet::new();
            opened.retain(|id| {
                matches!(nodes.get(id).map(|node| &node.body), Some(Body::File(Content::Open(..))))
                    && seen.insert(*id)
            });
        }
        Ok(data)
    }

    /// Frees some descriptors of small files that nobody has open, oldest first. Returns whether it could.
    fn park(&mut self) -> Result<bool, Error> {
        let mut parked = 0;
        for _ in 0..self.opened.len() {
            let Some(id) = self.opened.pop_front() else { break };
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            if node.park(id)? {
                parked += 1;
            } else if node.content()?.is_open() {
                self.opened.push_back(id);
            }
            if parked == PARKED_AT_ONCE {
                break;
            }
        }
        Ok(parked > 0)
    }

    /// Changes attributes.
    pub(super) fn set(&mut self, id: NodeId, set: &SetAttr, usage: &Arc<Usage>) -> Result<(), Error> {
        if let Some(size) = set.size {
            self.data(id, usage)?.set_len(size)?;
        }
        self.node_mut(id)?.set(set)
    }

    /// Gives a file another name.
    pub(super) fn link(&mut self, id: NodeId, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        let node = self.node(id)?;
        if node.is_dir() {
            return Err(Error::IsDir);
        }
        if node.places.len() >= MAX_LINKS {
            return Err(Error::Limit("links of a file"));
        }
        if node.places.is_empty() {
            return Err(Error::NotFound);
        }
        if self.entries(dir)?.find(name).is_some() {
            return Err(Error::Exists);
        }
        self.room_for_a_name()?;
        self.attach(id, dir, name);
        self.node_mut(id)?.ctime = now();
        Ok(())
    }

    fn room_for_a_name(&self) -> Result<(), Error> {
        if self.names >= self.max_names { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Removes a name; the node is removed with its last name unless it is held. Returns a node that has no name
    /// left.
    pub(super) fn remove(
        &mut self,
        dir: NodeId,
        name: &[u8],
        want_dir: bool,
    ) -> Result<Option<NodeId>, Error> {
        let id = self.entries(dir)?.find(name).ok_or(Error::NotFound)?;
        match (&self.node(id)?.body, want_dir) {
            (Body::Dir(entries), true) if !entries.is_empty() => return Err(Error::NotEmpty),
            (Body::Dir(_), false) => return Err(Error::IsDir),
            (Body::File(_) | Body::Symlink(_) | Body::Special(_), true) => return Err(Error::NotDir),
            _ => {}
        }
        Ok(self.unname(id, dir, name))
    }

    fn unname(&mut self, id: NodeId, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.detach(id, dir, name);
        let unlinked = self.nodes.get(&id).is_some_and(|node| node.places.is_empty());
        self.forget_if_unreachable(id);
        unlinked.then_some(id)
    }

    /// Renames, replacing an existing name if allowed, like rename(2).
    pub(super) fn rename(
        &mut self,
        from: DirName<&[u8]>,
        to: DirName<&[u8]>,
        replace: bool,
    ) -> Result<Option<NodeId>, Error> {
        let id = self.entries(from.dir)?.find(from.name).ok_or(Error::NotFound)?;
        let target = self.entries(to.dir)?.find(to.name);
        if to.dir != NodeId::ROOT && self.node(to.dir)?.places.is_empty() {
            return Err(Error::NotFound);
        }
        if let Some(target) = target {
            if !replace {
                return Err(Error::Exists);
            }
            if target == id {
                return Ok(None);
            }
        }
        let is_dir = self.node(id)?.is_dir();
        if is_dir {
            let mut at = to.dir;
            while at != NodeId::ROOT {
                if at == id {
                    return Err(Error::Invalid);
                }
                at = self.parent(at)?;
            }
        }
        let mut unlinked = None;
        if let Some(target) = target {
            match (is_dir, &self.node(target)?.body) {
                (true, Body::Dir(entries)) if !entries.is_empty() => return Err(Error::NotEmpty),
                (true, Body::File(_) | Body::Symlink(_) | Body::Special(_)) => return Err(Error::NotDir),
                (false, Body::Dir(_)) => return Err(Error::IsDir),
                _ => {}
            }
            unlinked = self.unname(target, to.dir, to.name);
        }
        self.detach(id, from.dir, from.name);
        self.attach(id, to.dir, to.name);
        self.node_mut(id)?.ctime = now();
        Ok(unlinked)
    }

    fn attach(&mut self, id: NodeId, dir: NodeId, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let is_dir = node.is_dir();
        node.places.push(DirName { dir, name: name.to_vec() });
        self.names += 1;
        self.change_entries(dir, |entries| entries.insert(name, id, is_dir));
    }

    fn detach(&mut self, id: NodeId, dir: NodeId, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let is_dir = node.is_dir();
        node.places.retain(|place| place.borrow() != DirName { dir, name });
        node.ctime = now();
        self.names -= 1;
        self.change_entries(dir, |entries| entries.remove(name, is_dir));
    }

    fn change_entries(&mut self, dir: NodeId, change: impl FnOnce(&mut Entries)) {
        let Some(node) = self.nodes.get_mut(&dir) else { return };
        if let Body::Dir(entries) = &mut node.body {
            change(entries);
            node.mtime = now();
            node.ctime = node.mtime;
        }
    }

    pub(super) fn hold(&mut self, id: NodeId) -> Result<(), Error> {
        self.node_mut(id)?.holds += 1;
        Ok(())
    }

    pub(super) fn release(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.holds -= 1;
            self.forget_if_unreachable(id);
        }
    }

    fn forget_if_unreachable(&mut self, id: NodeId) {
        let gone = |node: &Node| node.places.is_empty() && node.holds == 0;
        if id != NodeId::ROOT && self.nodes.get(&id).is_some_and(gone) {
            self.nodes.remove(&id);
        }
    }
}

fn new_node(body: Body, mode: u32) -> Node {
    let now = now();
    Node {
        body,
        xattrs: Xattrs::default(),
        places: Vec::new(),
        holds: 0,
        mode: mode & 0o7777,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_in_any_case_looks_at_what_is_called_so_alone() {
        let mut entries = Entries::default();
        let spelled = |i: usize| -> Vec<u8> {
            let letter = |(bit, c): (usize, u8)| if i >> bit & 1 == 1 { c.to_ascii_uppercase() } else { c };
            b"abcdefghijkl".iter().copied().enumerate().map(letter).collect()
        };
        (0..4096).for_each(|i| entries.insert(&spelled(i), NodeId(i as u64), false));
        entries.insert(b"other long name", NodeId(5000), false);
        // The oldest of the names that differ only in case, by either form.
        let wanted = fold(&spelled(0));
        let name = short(&wanted).unwrap();
        assert_eq!(entries.find_folded(&wanted), Some(NodeId(0)));
        assert_eq!(entries.find_folded(name.to_ascii_lowercase().as_bytes()), Some(NodeId(0)));
        // The same digits after another letter: no name is compared.
        let other = name.replacen('A', "B", 1);
        assert_eq!(entries.with_hash_of(Called::Short(other.as_bytes())).count(), 0);
        assert_eq!(entries.find_folded(other.as_bytes()), None);
        // An own name takes precedence over another file's 8.3 name.
        let others = short(b"other long name").unwrap().to_lowercase();
        assert_eq!(entries.find_folded(others.as_bytes()), Some(NodeId(5000)));
        entries.insert(others.as_bytes(), NodeId(5001), false);
        assert_eq!(entries.find_folded(others.to_uppercase().as_bytes()), Some(NodeId(5001)));
        (0..4096).for_each(|i| entries.remove(&spelled(i), false));
        assert_eq!((entries.find_folded(&wanted), entries.called.len()), (None, 3));
    }
}
