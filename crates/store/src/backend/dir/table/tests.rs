use super::*;

fn fd() -> Arc<OwnedFd> {
    Arc::new(rustix::fs::memfd_create("table", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

fn table(max_nodes: usize, max_cached: usize) -> Table {
    Table::new(Identity::of(0), fd(), max_nodes, (max_cached, usize::MAX))
}

fn seen(table: &mut Table, inode: u64, parent: NodeId, name: &str) -> NodeId {
    table.seen(Identity::of(inode), Kind::Dir, parent, name.as_bytes()).unwrap()
}

#[test]
fn a_file_keeps_its_node_wherever_it_is_seen() {
    let mut t = table(100, 10);
    let a = seen(&mut t, 1, NodeId::ROOT, "a");
    let b = seen(&mut t, 2, NodeId::ROOT, "b");
    assert_ne!(a, b);
    assert_eq!(seen(&mut t, 1, b, "moved"), a);
    let (parent, name) = t.place(a).unwrap();
    assert_eq!((parent, &name[..]), (b, &b"moved"[..]));
    assert_eq!(seen(&mut t, 0, b, "root"), NodeId::ROOT);
    assert_eq!(t.place(NodeId::ROOT).unwrap().0, NodeId::ROOT);
}

#[test]
fn the_cache_of_descriptors_is_bounded_and_forgets_the_unused() {
    let mut t = table(100, 3);
    let ids: Vec<_> = (1..=10).map(|i| seen(&mut t, i, NodeId::ROOT, "x")).collect();
    let hot = ids[0];
    t.keep(hot, fd());
    let mut closed = 0;
    for &id in &ids[1..] {
        assert!(matches!(t.reach(hot).unwrap(), Reach::Fd(_)), "in use, yet closed");
        closed += usize::from(t.keep(id, fd()).1.is_some());
    }
    assert_eq!(closed, 7);
    let open = ids.iter().filter(|&&id| matches!(t.reach(id).unwrap(), Reach::Fd(_))).count();
    assert_eq!(open, 3);
    // Two that open the same node at once end up with one descriptor.
    let (first, _) = t.keep(ids[1], fd());
    let (second, _) = t.keep(ids[1], fd());
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn a_full_table_gives_up_what_nobody_needs() {
    let mut t = table(5, 10);
    let dir = seen(&mut t, 1, NodeId::ROOT, "dir");
    let inside = seen(&mut t, 2, dir, "inside");
    let held = seen(&mut t, 3, NodeId::ROOT, "held");
    let hold = t.keep(held, fd());
    let idle = seen(&mut t, 4, NodeId::ROOT, "idle");
    // Full. The next two evict nodes that are neither parents nor held.
    seen(&mut t, 5, NodeId::ROOT, "e");
    seen(&mut t, 6, NodeId::ROOT, "f");
    assert!(t.kind(dir).is_ok() || t.kind(inside).is_err());
    assert!(t.kind(held).is_ok());
    assert!(t.kind(idle).is_err() || t.kind(inside).is_err());
    assert!(t.nodes.len() <= 5);
    drop(hold);
    for inode in 100..1000 {
        seen(&mut t, inode, NodeId::ROOT, "more");
        assert!(t.nodes.len() <= 5);
        assert_eq!(t.ids.len(), t.nodes.len());
        assert_eq!(t.hand.len(), t.nodes.len() - 1);
    }
    assert!(t.kind(NodeId::ROOT).is_ok());
}

#[test]
fn a_table_full_of_what_is_needed_says_so() {
    let mut t = table(3, 10);
    let a = seen(&mut t, 1, NodeId::ROOT, "a");
    let b = seen(&mut t, 2, a, "b");
    let _hold = t.keep(b, fd());
    assert!(matches!(t.seen(Identity::of(3), Kind::File, a, b"c"), Err(Error::Limit(_))));
}

#[test]
fn a_turn_sees_each_cached_descriptor_once_and_what_is_unlinked_no_more() {
    let mut t = table(100, 10);
    let ids: Vec<_> = (1..=10).map(|i| seen(&mut t, i, NodeId::ROOT, "x")).collect();
    for &id in &ids {
        t.keep(id, fd());
    }
    let turns: Vec<_> = (0..3).flat_map(|_| t.turn(4)).map(|(id, _)| id).collect();
    assert_eq!(turns[..10], ids);
    for &id in &ids[..5] {
        assert!(t.unlinked(id).is_some());
        assert!(t.unlinked(id).is_none());
    }
    assert_eq!(t.turn(usize::MAX).len(), 5);
    assert!(t.unlinked(NodeId::ROOT).is_none(), "the share's own folder");
    // A node that lost its descriptor and gets another one is in the clock once.
    t.keep(ids[0], fd());
    assert_eq!((t.turn(usize::MAX).len(), t.cached.len()), (6, 10));
}

#[test]
fn where_all_shares_cache_too_many_descriptors_each_gives_up_what_it_caches() {
    let mut t = Table::new(Identity::of(0), fd(), 100, (10, 0));
    let ids: Vec<_> = (1..=10).map(|i| seen(&mut t, i, NodeId::ROOT, "x")).collect();
    for &id in &ids {
        let (held, _) = t.keep(id, fd());
        assert!(t.cached.is_empty());
        assert!(matches!(t.reach(id).unwrap(), Reach::Fd(_)), "it is held");
        drop(held);
        assert!(matches!(t.reach(id).unwrap(), Reach::Name(..)));
    }
    assert!(matches!(t.reach(NodeId::ROOT).unwrap(), Reach::Fd(_)));
}
