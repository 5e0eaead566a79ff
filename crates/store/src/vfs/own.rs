//! Which changes are our own, for a backend that sees all of them on the disk: those are told already.
//!
//! Why: a kernel that tells of changes (inotify) does not say whose they are. Every operation of ours leaves a mark
//! before it acts; what is seen on the disk and bears a mark is not told again.
//! Owns: the marks. Limits: [`MAX_MARKS`]; when there are more, all are dropped, and a change may be told twice.
//! Does not: mark anything while nothing is observed: then it costs one atomic load per change.
//!
//! A name comes or goes by one event, so its mark is used up by it. Content changes by as many events as the kernel
//! likes: its mark holds for [`CONTENT`], and what others do to the same file within that time is told by no event of
//! its own (ours was just told).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::NodeId;

/// Marks at a time: about 100 bytes each.
const MAX_MARKS: usize = 16_384;
/// How long the event of a name is waited for.
const NAME: Duration = Duration::from_secs(30);
/// How long content counts as changed by us.
const CONTENT: Duration = Duration::from_secs(2);

/// What happens to a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// It appears.
    Comes,
    /// It goes.
    Goes,
}

/// The marks of one share.
#[derive(Default)]
pub struct Own {
    /// How many observe.
    observers: AtomicUsize,
    marks: Mutex<Marks>,
}

#[derive(Default)]
struct Marks {
    names: HashMap<(NodeId, Vec<u8>, Turn), (u32, Instant)>,
    nodes: HashMap<NodeId, Instant>,
}

impl Own {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        // Each critical section is one change of a map.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody observes the disk, so that marks are needed.
    pub fn is_observed(&self) -> bool {
        self.observers.load(Ordering::Acquire) > 0
    }

    /// Somebody begins to observe.
    pub fn begin(&self) {
        self.observers.fetch_add(1, Ordering::AcqRel);
    }

    /// And ends.
    pub fn end(&self) {
        if self.observers.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self.marks() = Marks::default();
        }
    }

    /// We are about to let a name come or go.
    pub fn name(&self, dir: NodeId, name: &[u8], turn: Turn, now: Instant) {
        let mut marks = self.marks();
        let Marks { names, .. } = &mut *marks;
        make_room(names, |(_, at)| now.duration_since(*at) < NAME);
        let (count, at) = names.entry((dir, name.to_vec(), turn)).or_insert((0, now));
        (*count, *at) = (*count + 1, now);
    }

    /// It failed: there will be no event.
    pub fn unmark_name(&self, dir: NodeId, name: &[u8], turn: Turn) {
        self.take(dir, name, turn);
    }

    /// We are about to change what is in a node, or said about it.
    pub fn content(&self, node: NodeId, now: Instant) {
        let mut marks = self.marks();
        make_room(&mut marks.nodes, |at| now.duration_since(*at) < CONTENT);
        marks.nodes.insert(node, now);
    }

    /// A name was seen to come or go: whether by us.
    pub fn is_own_name(&self, dir: NodeId, name: &[u8], turn: Turn, now: Instant) -> bool {
        self.take(dir, name, turn).is_some_and(|at| now.duration_since(at) < NAME)
    }

    /// Content was seen to change: whether by us.
    pub fn is_own_content(&self, node: NodeId, now: Instant) -> bool {
        self.marks().nodes.get(&node).is_some_and(|at| now.duration_since(*at) < CONTENT)
    }

    /// Uses up one mark of a name.
    fn take(&self, dir: NodeId, name: &[u8], turn: Turn) -> Option<Instant> {
        let mut marks = self.marks();
        let key = (dir, name.to_vec(), turn);
        let (count, at) = marks.names.get_mut(&key)?;
        let at = *at;
        *count -= 1;
        if *count == 0 {
            marks.names.remove(&key);
        }
        Some(at)
    }
}

fn make_room<K: Eq + Hash, V>(marks: &mut HashMap<K, V>, holds: impl Fn(&V) -> bool) {
    if marks.len() >= MAX_MARKS {
        marks.retain(|_, mark| holds(mark));
    }
    if marks.len() >= MAX_MARKS {
        marks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_our_names_is_expected_once() {
        let (own, dir, now) = (Own::default(), NodeId(3), Instant::now());
        own.name(dir, b"f", Turn::Comes, now);
        assert!(!own.is_own_name(dir, b"f", Turn::Goes, now));
        assert!(own.is_own_name(dir, b"f", Turn::Comes, now));
        // Somebody else made it again.
        assert!(!own.is_own_name(dir, b"f", Turn::Comes, now));
        own.name(dir, b"f", Turn::Goes, now);
        own.unmark_name(dir, b"f", Turn::Goes);
        assert!(!own.is_own_name(dir, b"f", Turn::Goes, now));
        own.name(dir, b"f", Turn::Goes, now);
        assert!(!own.is_own_name(dir, b"f", Turn::Goes, now + NAME));
    }

    #[test]
    fn content_is_ours_for_a_while() {
        let (own, now) = (Own::default(), Instant::now());
        own.content(NodeId(3), now);
        assert!(own.is_own_content(NodeId(3), now) && own.is_own_content(NodeId(3), now));
        assert!(!own.is_own_content(NodeId(4), now));
        assert!(!own.is_own_content(NodeId(3), now + CONTENT));
    }

    #[test]
    fn marks_are_bounded_and_go_with_the_last_observer() {
        let (own, now) = (Own::default(), Instant::now());
        own.begin();
        own.begin();
        (0..20_000u64).for_each(|n| own.content(NodeId(n), now));
        assert!(own.marks().nodes.len() <= MAX_MARKS);
        own.end();
        assert!(own.is_observed() && own.is_own_content(NodeId(19_999), now));
        own.end();
        assert!(!own.is_observed() && !own.is_own_content(NodeId(19_999), now));
    }
}
