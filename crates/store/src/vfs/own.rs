//! Recognizes this server's own changes, for a backend that sees all changes on the disk, because own changes have
//! already been reported.
//!
//! The kernel's notifications (inotify) do not say who made a change. Every operation of ours leaves a mark before it
//! acts, and a change on the disk with a mark is not reported again.
//! Limits: [`MAX_MARKS`]; if there are more, all are dropped, and a change may be reported twice. While nothing is
//! observed, nothing is marked, at a cost of one atomic load per change.
//!
//! A name is added or removed by one event, which uses up its mark. A content change causes any number of events: its
//! mark is valid for [`CONTENT`], and changes by others to the same file within that time are not reported separately
//! (ours was just reported).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::NodeId;

/// Maximum number of marks, about 100 bytes each.
const MAX_MARKS: usize = 16_384;
/// How long the event of a name is expected.
const NAME: Duration = Duration::from_secs(30);
/// How long content changes count as ours.
const CONTENT: Duration = Duration::from_secs(2);

/// The change of a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NameChange {
    /// It is added.
    Added,
    /// It is removed.
    Removed,
}

/// The marks of one share.
#[derive(Default)]
pub struct Own {
    /// Number of observers.
    observers: AtomicUsize,
    marks: Mutex<Marks>,
}

#[derive(Default)]
struct Marks {
    names: HashMap<(NodeId, Vec<u8>, NameChange), (u32, Instant)>,
    nodes: HashMap<NodeId, Instant>,
}

impl Own {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        // Each critical section is one change of a map.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the disk is observed, so that marks are needed.
    pub fn is_observed(&self) -> bool {
        self.observers.load(Ordering::Acquire) > 0
    }

    /// An observation begins.
    pub fn begin(&self) {
        self.observers.fetch_add(1, Ordering::AcqRel);
    }

    /// An observation ends.
    pub fn end(&self) {
        if self.observers.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self.marks() = Marks::default();
        }
    }

    /// Marks a name that we are about to add or remove.
    pub fn name(&self, dir: NodeId, name: &[u8], change: NameChange, now: Instant) {
        let mut marks = self.marks();
        let Marks { names, .. } = &mut *marks;
        make_room(names, |(_, at)| now.duration_since(*at) < NAME);
        let (count, at) = names.entry((dir, name.to_vec(), change)).or_insert((0, now));
        (*count, *at) = (*count + 1, now);
    }

    /// Removes the mark after a failure: there will be no event.
    pub fn unmark_name(&self, dir: NodeId, name: &[u8], change: NameChange) {
        self.take(dir, name, change);
    }

    /// Marks a node whose content or attributes we are about to change.
    pub fn content(&self, node: NodeId, now: Instant) {
        let mut marks = self.marks();
        make_room(&mut marks.nodes, |at| now.duration_since(*at) < CONTENT);
        marks.nodes.insert(node, now);
    }

    /// A name was added or removed: whether by us.
    pub fn is_own_name(&self, dir: NodeId, name: &[u8], change: NameChange, now: Instant) -> bool {
        self.take(dir, name, change).is_some_and(|at| now.duration_since(at) < NAME)
    }

    /// Content has changed: whether by us.
    pub fn is_own_content(&self, node: NodeId, now: Instant) -> bool {
        self.marks().nodes.get(&node).is_some_and(|at| now.duration_since(*at) < CONTENT)
    }

    /// Uses up one mark of a name.
    fn take(&self, dir: NodeId, name: &[u8], change: NameChange) -> Option<Instant> {
        let mut marks = self.marks();
        let key = (dir, name.to_vec(), change);
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
        own.name(dir, b"f", NameChange::Added, now);
        assert!(!own.is_own_name(dir, b"f", NameChange::Removed, now));
        assert!(own.is_own_name(dir, b"f", NameChange::Added, now));
        // Another program created it again.
        assert!(!own.is_own_name(dir, b"f", NameChange::Added, now));
        own.name(dir, b"f", NameChange::Removed, now);
        own.unmark_name(dir, b"f", NameChange::Removed);
        assert!(!own.is_own_name(dir, b"f", NameChange::Removed, now));
        own.name(dir, b"f", NameChange::Removed, now);
        assert!(!own.is_own_name(dir, b"f", NameChange::Removed, now + NAME));
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
