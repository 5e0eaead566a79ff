//! Maps [`NodeId`]s to files: their identity, where they were last seen, and a cached O_PATH descriptor.
//!
//! Limits: `MAX_NODES` nodes and a number of cached descriptors; both are evicted in clock order (roughly least
//! recently used). A node that is held, or has known nodes below it, stays. The table makes no system calls; its lock
//! is held for a few map look-ups.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use foldhash::HashMap;

use super::sys::Identity;
use crate::vfs::{Error, Kind, NodeId};

/// How many files and directories are remembered, about 200 bytes each. An evicted node is stale to a client that
/// still uses it, and gets a new number at the next look-up.
pub(super) const MAX_NODES: usize = 1 << 20;

struct Node {
    identity: Identity,
    kind: Kind,
    parent: NodeId,
    name: Box<[u8]>,
    /// Number of nodes with this parent.
    children: u32,
    /// Alive while cached or held by an open.
    fd: Weak<OwnedFd>,
    /// Keeps `fd` cached.
    cached: Option<Arc<OwnedFd>>,
    /// Whether it is in the clock of cached descriptors, although its descriptor may be gone.
    clocked: bool,
    /// Used since the clock's hand passed: the descriptor, the node.
    used: (bool, bool),
}

/// Number of entries in the clocks of cached descriptors, over all shares.
static ALL_CACHED: AtomicUsize = AtomicUsize::new(0);

/// How to reach a node.
pub(super) enum Reach {
    /// By this descriptor.
    Fd(Arc<OwnedFd>),
    /// By opening this name in this directory.
    Name(NodeId, Box<[u8]>),
}

/// All nodes of a share.
pub(super) struct Table {
    nodes: HashMap<NodeId, Node>,
    ids: HashMap<Identity, NodeId>,
    next: u64,
    /// The clock of nodes: each once.
    hand: VecDeque<NodeId>,
    /// The clock of cached descriptors: each once. Nodes without a descriptor are skipped.
    cached: VecDeque<NodeId>,
    /// The limits of this share, and of all shares.
    max_cached: (usize, usize),
    max_nodes: usize,
}

impl Drop for Table {
    fn drop(&mut self) {
        ALL_CACHED.fetch_sub(self.cached.len(), Ordering::Relaxed);
    }
}

impl Table {
    /// A table with only the root.
    pub(super) fn new(
        root: Identity,
        fd: Arc<OwnedFd>,
        max_nodes: usize,
        max_cached: (usize, usize),
    ) -> Table {
        let node = Node {
            identity: root,
            kind: Kind::Dir,
            parent: NodeId::ROOT,
            name: Box::default(),
            children: 0,
            fd: Arc::downgrade(&fd),
            // Outside the clock, so it is never closed.
            cached: Some(fd),
            clocked: false,
            used: (true, true),
        };
        Table {
            nodes: HashMap::from_iter([(NodeId::ROOT, node)]),
            ids: HashMap::from_iter([(root, NodeId::ROOT)]),
            next: NodeId::ROOT.0 + 1,
            hand: VecDeque::new(),
            cached: VecDeque::new(),
            max_cached,
            max_nodes,
        }
    }

    /// The node of a file that was just seen as `name` in `parent`.
    pub(super) fn seen(
        &mut self,
        identity: Identity,
        kind: Kind,
        parent: NodeId,
        name: &[u8],
    ) -> Result<NodeId, Error> {
        if let Some(&id) = self.ids.get(&identity) {
            self.moved(id, parent, name);
            return Ok(id);
        }
        self.make_room()?;
        let id = NodeId(self.next);
        self.next += 1;
        let node = Node {
            identity,
            kind,
            parent,
            name: name.into(),
            children: 0,
            fd: Weak::new(),
            cached: None,
            clocked: false,
            used: (false, true),
        };
        self.nodes.insert(id, node);
        self.ids.insert(identity, id);
        self.hand.push_back(id);
        self.adopt(parent);
        Ok(id)
    }

    fn moved(&mut self, id: NodeId, parent: NodeId, name: &[u8]) {
        // The root has no name, even if it is found somewhere (as a bind mount inside itself).
        if id == NodeId::ROOT {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.used.1 = true;
        if *node.name != *name {
            node.name = name.into();
        }
        if node.parent != parent {
            let old = std::mem::replace(&mut node.parent, parent);
            self.disown(old);
            self.adopt(parent);
        }
    }

    fn adopt(&mut self, parent: NodeId) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
    }

    fn disown(&mut self, parent: NodeId) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children = parent.children.saturating_sub(1);
        }
    }

    /// How to reach a node; stale if it is unknown.
    pub(super) fn reach(&mut self, id: NodeId) -> Result<Reach, Error> {
        let node = self.nodes.get_mut(&id).ok_or(Error::Stale)?;
        node.used.1 = true;
        Ok(match node.fd.upgrade() {
            Some(fd) => {
                node.used.0 = true;
                Reach::Fd(fd)
            }
            None => Reach::Name(node.parent, node.name.clone()),
        })
    }

    /// The kind of a node: a file never changes its kind, only its name does.
    pub(super) fn kind(&self, id: NodeId) -> Result<Kind, Error> {
        self.nodes.get(&id).map(|node| node.kind).ok_or(Error::Stale)
    }

    /// The identity of a node.
    pub(super) fn identity(&self, id: NodeId) -> Result<Identity, Error> {
        self.nodes.get(&id).map(|node| node.identity).ok_or(Error::Stale)
    }

    /// The node of a known file.
    pub(super) fn of(&self, identity: &Identity) -> Option<NodeId> {
        self.ids.get(identity).copied()
    }

    /// Where a node was last seen.
    pub(super) fn place(&self, id: NodeId) -> Result<(NodeId, Box<[u8]>), Error> {
        self.nodes.get(&id).map(|node| (node.parent, node.name.clone())).ok_or(Error::Stale)
    }

    /// Whether a node is what the names in `way` lead to from the root, as far as that was seen.
    pub(super) fn is_at(&self, node: NodeId, way: &[Vec<u8>]) -> bool {
        let mut at = node;
        for name in way.iter().rev() {
            match self.nodes.get(&at) {
                Some(node) if at != NodeId::ROOT && *node.name == **name => at = node.parent,
                _ => return false,
            }
        }
        at == NodeId::ROOT
    }

    #[cfg(test)]
    pub(super) fn cache_nothing(&mut self) {
        self.max_cached.0 = 0;
    }

    /// Caches a descriptor of a node, and returns the one already in use if there is one. Also returns the evicted
    /// descriptor, for closing it outside of the lock.
    pub(super) fn keep(&mut self, id: NodeId, fd: Arc<OwnedFd>) -> (Arc<OwnedFd>, Option<Arc<OwnedFd>>) {
        let Some(node) = self.nodes.get_mut(&id) else { return (fd, None) };
        let fd = node.fd.upgrade().unwrap_or(fd);
        node.fd = Arc::downgrade(&fd);
        if node.cached.is_none() {
            node.cached = Some(fd.clone());
        }
        if !std::mem::replace(&mut node.clocked, true) {
            self.cached.push_back(id);
            ALL_CACHED.fetch_add(1, Ordering::Relaxed);
        }
        let out = if self.caches_too_many() { self.uncache() } else { None };
        (fd, out)
    }

    fn caches_too_many(&self) -> bool {
        let (own, all) = self.max_cached;
        self.cached.len() > own || ALL_CACHED.load(Ordering::Relaxed) > all
    }

    /// Evicts the least recently used descriptor. Two rounds suffice: the first clears the marks.
    fn uncache(&mut self) -> Option<Arc<OwnedFd>> {
        for _ in 0..2 * self.cached.len() {
            let id = self.cached.pop_front()?;
            let Some(node) = self.nodes.get_mut(&id) else {
                ALL_CACHED.fetch_sub(1, Ordering::Relaxed);
                continue;
            };
            if node.cached.is_some() && std::mem::take(&mut node.used.0) {
                self.cached.push_back(id);
                continue;
            }
            node.clocked = false;
            ALL_CACHED.fetch_sub(1, Ordering::Relaxed);
            // A node without a name has already given up its descriptor.
            if let Some(fd) = node.cached.take() {
                return Some(fd);
            }
            if !self.caches_too_many() {
                return None;
            }
        }
        None
    }

    /// A node's file has lost its last name: from now on only clients that have it open keep its descriptor.
    pub(super) fn unlinked(&mut self, id: NodeId) -> Option<Arc<OwnedFd>> {
        // The root is served even if it loses its name.
        self.nodes.get_mut(&id).filter(|_| id != NodeId::ROOT)?.cached.take()
    }

    /// The next `max` cached descriptors in clock order; the clock advances behind them.
    pub(super) fn turn(&mut self, max: usize) -> Vec<(NodeId, Arc<OwnedFd>)> {
        let turned = max.min(self.cached.len());
        let seen = self.cached.iter().take(turned);
        let seen = seen.filter_map(|id| Some((*id, self.nodes.get(id)?.cached.clone()?))).collect();
        self.cached.rotate_left(turned);
        seen
    }

    /// Evicts one node when the table is full. At most two rounds, the first clears the marks: a long walk once, then
    /// short ones.
    fn make_room(&mut self) -> Result<(), Error> {
        if self.nodes.len() < self.max_nodes {
            return Ok(());
        }
        for _ in 0..2 * self.hand.len() {
            let Some(id) = self.hand.pop_front() else { break };
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let busy = node.children > 0 || node.fd.strong_count() > 0;
            if std::mem::take(&mut node.used.1) || busy {
                self.hand.push_back(id);
                continue;
            }
            let (identity, parent) = (node.identity, node.parent);
            self.nodes.remove(&id);
            self.ids.remove(&identity);
            self.disown(parent);
            return Ok(());
        }
        Err(Error::Limit("nodes of a share"))
    }
}

#[cfg(test)]
mod tests;
