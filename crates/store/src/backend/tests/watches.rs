//! Changes reported to watches of a directory.

use super::*;

/// Changes as `+name`, `-name`, `*name`, `<old`, `>new`.
fn shown(changes: Changes) -> Vec<String> {
    assert!(!changes.overflowed);
    let show = |change: Change| {
        let sign = match change.action {
            Action::Added => '+',
            Action::Removed => '-',
            Action::Modified => '*',
            Action::RenamedFrom => '<',
            Action::RenamedTo => '>',
            Action::StreamAdded | Action::StreamRemoved | Action::StreamModified => ':',
        };
        format!("{sign}{}", String::from_utf8(change.path.to_vec()).unwrap())
    };
    changes.changes.into_iter().map(show).collect()
}

#[test]
fn names_that_come_and_go_are_told() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        let watch = vfs.watch(d, false, What::ALL, room()).await.unwrap();
        let f = file(&vfs, d, "f").await.node;
        dir(&vfs, d, "sub").await;
        file(&vfs, ROOT, "elsewhere").await;
        assert_eq!(shown(watch.next().await), ["+f", "+sub"]);
        assert!(watch.take().is_empty());
        vfs.rename(at(d, b"f"), at(d, b"g"), false).await.unwrap();
        vfs.rename(at(d, b"g"), at(ROOT, b"g"), false).await.unwrap();
        vfs.rename(at(ROOT, b"g"), at(d, b"h"), false).await.unwrap();
        assert_eq!(shown(watch.next().await), ["<f", ">g", "-g", "+h"]);
        file(&vfs, d, "old").await;
        vfs.rename(at(d, b"h"), at(d, b"old"), true).await.unwrap();
        assert_eq!(shown(watch.next().await), ["+old", "-old", "<h", ">old"]);
        vfs.link(f, d, b"link").await.unwrap();
        // Two names of one file stay as they are, and so does one name.
        vfs.rename(at(d, b"old"), at(d, b"link"), true).await.unwrap();
        vfs.rename(at(d, b"link"), at(d, b"link"), true).await.unwrap();
        vfs.remove(d, b"link").await.unwrap();
        vfs.rmdir(d, b"sub").await.unwrap();
        assert_eq!(shown(watch.next().await), ["+link", "-link", "-sub"]);
        drop(watch);
        file(&vfs, d, "unseen").await;
        refused!(vfs.watch(f, false, What::ALL, room()).await, Error::NotDir);
    });
}

#[test]
fn changes_of_files_are_told_to_who_asked_for_them() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let watch = async |what| vfs.watch(ROOT, false, what, room()).await.unwrap();
        let names = watch(What::FILE_NAME).await;
        let dirs = watch(What::DIR_NAME).await;
        let (size, written) = (watch(What::SIZE).await, watch(What::WRITTEN).await);
        let (attributes, xattrs) = (watch(What::ATTRIBUTES).await, watch(What::XATTRS).await);
        let (security, born) = (watch(What::SECURITY).await, watch(What::BORN).await);
        put(&vfs, f, 0, b"x").await.unwrap();
        // A repeated change is reported once until it is read.
        put(&vfs, f, 1, b"x").await.unwrap();
        assert_eq!((shown(size.take()), shown(written.take())), (vec!["*f".into()], vec!["*f".into()]));
        vfs.open(f, true).await.unwrap().punch_hole(0, 1).await.unwrap();
        assert_eq!((shown(size.take()), shown(written.take())), (vec![], vec!["*f".into()]));
        vfs.setattr(f, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        assert_eq!(
            (shown(attributes.take()), shown(security.take())),
            (vec!["*f".into()], vec!["*f".into()])
        );
        vfs.set_xattr(f, b"a", b"1", SetXattr::Either).await.unwrap();
        assert_eq!(shown(xattrs.take()), ["*f"]);
        let dos = Dos { attributes: 2, born: Some(Timestamp::default()), changed: None };
        vfs.set_dos(f, None, dos).await.unwrap();
        assert_eq!((shown(attributes.take()), shown(born.take())), (vec!["*f".into()], vec!["*f".into()]));
        // Weft's own attributes do not count as extended attributes.
        assert!(xattrs.take().is_empty());
        dir(&vfs, ROOT, "d").await;
        assert_eq!((shown(names.take()), shown(dirs.take())), (vec![], vec!["+d".into()]));
    });
}

#[test]
fn a_tree_is_watched_whole() {
    each(async |vfs| {
        let a = dir(&vfs, ROOT, "a").await.node;
        let b = dir(&vfs, a, "b").await.node;
        let root = vfs.watch(ROOT, true, What::FILE_NAME | What::SIZE, room()).await.unwrap();
        let tree = vfs.watch(a, true, What::FILE_NAME | What::SIZE, room()).await.unwrap();
        let flat = vfs.watch(a, false, What::FILE_NAME | What::SIZE, room()).await.unwrap();
        let f = file(&vfs, b, "f").await.node;
        put(&vfs, f, 0, b"x").await.unwrap();
        file(&vfs, ROOT, "top").await;
        assert_eq!(shown(root.take()), ["+a/b/f", "*a/b/f", "+top"]);
        assert_eq!(shown(tree.take()), ["+b/f", "*b/f"]);
        assert!(flat.take().is_empty());
        vfs.rename(at(b, b"f"), at(a, b"f"), false).await.unwrap();
        assert_eq!(shown(root.take()), ["-a/b/f", "+a/f"]);
        assert_eq!(shown(flat.take()), ["+f"]);
    });
}

#[test]
fn a_queue_that_nobody_reads_overflows() {
    each(async |vfs| {
        let watch = vfs.watch(ROOT, false, What::FILE_NAME, room()).await.unwrap();
        for i in 0..=MAX_QUEUED {
            file(&vfs, ROOT, &i.to_string()).await;
        }
        assert_eq!(watch.next().await, Changes { overflowed: true, ..Changes::default() });
        // From here on changes are reported again.
        vfs.remove(ROOT, b"1").await.unwrap();
        assert_eq!(shown(watch.next().await), ["-1"]);
    });
}

#[test]
fn who_watches_a_directory_learns_that_it_goes() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        let (watch, other) = (
            vfs.watch(d, true, What::SIZE, room()).await.unwrap(),
            vfs.watch(ROOT, true, What::SIZE, room()).await.unwrap(),
        );
        vfs.end_watches(d);
        assert_eq!(watch.next().await, Changes { ended: true, ..Changes::default() });
        assert!(other.take().is_empty());
    });
}

/// Takes available changes whenever it is woken, like a request on another core.
struct Eager {
    watch: Watch,
    taken: Mutex<Vec<Vec<String>>>,
}

impl std::task::Wake for Eager {
    fn wake(self: Arc<Self>) {
        let changes = shown(self.watch.take());
        self.taken.lock().unwrap().push(changes);
    }
}

impl Eager {
    /// Waits for what comes.
    fn poll(self: &Arc<Eager>) {
        let waker = self.clone().into();
        assert!(self.watch.poll_next(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
}

/// smbtorture's smb2.notify.mask, on a busy machine.
#[test]
fn a_rename_is_told_in_one_piece() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        for name in ["a", "c"] {
            file(&vfs, d, name).await;
        }
        let watch = vfs.watch(ROOT, true, What::ALL, room()).await.unwrap();
        let eager = Arc::new(Eager { watch, taken: Mutex::default() });
        eager.poll();
        vfs.rename(at(d, b"a"), at(d, b"b"), false).await.unwrap();
        eager.poll();
        vfs.rename(at(d, b"b"), at(d, b"c"), true).await.unwrap();
        eager.poll();
        vfs.rename(at(d, b"c"), at(ROOT, b"c"), false).await.unwrap();
        let told = std::mem::take(&mut *eager.taken.lock().unwrap());
        let expected = [vec!["<d/a", ">d/b"], vec!["-d/c", "<d/b", ">d/c"], vec!["-d/c", "+c"]];
        assert_eq!(told, expected);
    });
}

#[test]
fn what_nobody_reads_takes_a_bounded_amount_of_memory() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(64 << 20));
        let (budget, watches) = (Budget::new(20 << 20), 200);
        // One address alone.
        let part = 4 << 20;
        let greedy = Source::V4([192, 0, 2, 1].into());
        let charge = |source| budget.charge(source, 0).unwrap();
        let unread: Vec<_> = {
            let each = (0..watches).map(|_| vfs.watch(ROOT, false, What::FILE_NAME, charge(greedy)));
            futures_util::future::join_all(each).await.into_iter().map(Result::unwrap).collect()
        };
        let other = vfs.watch(ROOT, false, What::FILE_NAME, charge(Source::Local)).await.unwrap();
        let name = "n".repeat(200);
        // More than twice as many as may be queued.
        let files = 2 * part / (200 * watches);
        for n in 0..files {
            file(&vfs, ROOT, &format!("{name}{n}")).await;
        }
        let waits: usize =
            unread.iter().map(|watch| watch.take()).map(|changes| changes.changes.len() * 200).sum();
        assert!(waits > 0 && waits <= part, "{waits}");
        // Another account's queue is unaffected.
        assert_eq!(shown(other.take()).len(), files);
        assert_eq!(budget.used_bytes(), 0);
        // After reading there is room again, and nothing is lost.
        file(&vfs, ROOT, "last").await;
        assert!(unread.iter().all(|watch| shown(watch.take()) == ["+last"]));
    })
    .unwrap();
}

#[test]
fn one_account_has_a_bounded_number_of_watches_of_a_directory() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20));
        let d = dir(&vfs, ROOT, "d").await.node;
        for tree in [false, true] {
            let mut held = Vec::new();
            for _ in 0..MAX_WATCHES_OF_A_DIR {
                held.push(vfs.watch(ROOT, tree, What::ALL, room()).await.unwrap());
            }
            refused!(vfs.watch(ROOT, tree, What::ALL, room()).await, Error::Limit(_));
            // Elsewhere, the other kind, and somebody else.
            vfs.watch(d, tree, What::ALL, room()).await.unwrap();
            vfs.watch(ROOT, !tree, What::ALL, room()).await.unwrap();
            let other = Budget::new(100).charge(Source::V6(7), 0).unwrap();
            vfs.watch(ROOT, tree, What::ALL, other).await.unwrap();
            held.pop();
            vfs.watch(ROOT, tree, What::ALL, room()).await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn a_directory_has_a_bounded_number_of_watches_on_all_accounts() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20));
        let mut held = Vec::new();
        let watch = |account: u64| {
            vfs.watch(ROOT, true, What::ALL, Budget::new(100).charge(Source::V6(account), 0).unwrap())
        };
        for n in 0..MAX_WATCHES_OF_A_DIR_IN_ALL {
            held.push(watch((n / MAX_WATCHES_OF_A_DIR) as u64).await.unwrap());
        }
        refused!(watch(77).await, Error::Limit(_));
        held.pop();
        watch(77).await.unwrap();
    })
    .unwrap();
}

#[test]
fn changes_that_nobody_reads_take_a_mebibyte() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20));
        let watch = vfs.watch(ROOT, false, What::FILE_NAME, room()).await.unwrap();
        // Fewer than a queue holds, with the longest names.
        for n in 0..3500 {
            file(&vfs, ROOT, &format!("{n:0>255}")).await;
        }
        assert!(watch.take().overflowed);
        file(&vfs, ROOT, "next").await;
        assert_eq!(shown(watch.take()), ["+next"]);
    })
    .unwrap();
}
