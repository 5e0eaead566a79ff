//! Files without a name release their space: no cache keeps a descriptor of a file that nobody has open.

use futures_util::FutureExt;

use super::*;

/// Descriptors of this process that lie below `folder` and lead to files without a name.
pub(super) fn nameless(folder: &std::path::Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let gone =
        |path: &std::path::Path| path.starts_with(folder) && path.to_string_lossy().ends_with(" (deleted)");
    targets.filter(|path| gone(path)).count()
}

#[test]
fn what_is_removed_or_replaced_leaves_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let vfs = Vfs::from(Dir::open(&path).unwrap());
    rt::block_on(async {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, 0, b"data").await.unwrap();
        vfs.remove(ROOT, b"f").await.unwrap();
        assert_eq!(nameless(&path), 0, "removed");
        refused!(vfs.getattr(f).await, Error::Stale);
        let d = dir(&vfs, ROOT, "d").await.node;
        list(&vfs, d, 10).await;
        vfs.rmdir(ROOT, b"d").await.unwrap();
        assert_eq!(nameless(&path), 0, "a folder");
        // As an editor saves.
        put(&vfs, file(&vfs, ROOT, "doc").await.node, 0, b"old").await.unwrap();
        for _ in 0..8 {
            put(&vfs, file(&vfs, ROOT, "tmp").await.node, 0, b"new").await.unwrap();
            vfs.rename(at(ROOT, b"tmp"), at(ROOT, b"doc"), true).await.unwrap();
        }
        assert_eq!(nameless(&path), 0, "replaced");
        // Another name keeps it, and whoever has it open.
        let g = file(&vfs, ROOT, "g").await.node;
        vfs.link(g, ROOT, b"h").await.unwrap();
        vfs.remove(ROOT, b"g").await.unwrap();
        assert_eq!(vfs.lookup(ROOT, b"h", false).await.unwrap().node, g);
        let hold = vfs.hold(g).await.unwrap();
        vfs.remove(ROOT, b"h").await.unwrap();
        assert_eq!(vfs.getattr(g).await.unwrap().nlink, 0);
        drop(hold);
        assert_eq!(nameless(&path), 0, "the last who had it open has closed it");
    })
    .unwrap();
}

#[test]
fn what_other_programs_remove_is_found_by_the_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let vfs = Vfs::from(Dir::open(&path).unwrap());
    rt::block_on(async {
        let kept = file(&vfs, ROOT, "kept").await.node;
        put(&vfs, kept, 0, b"data").await.unwrap();
        for n in 0..100 {
            put(&vfs, file(&vfs, ROOT, &format!("f{n}")).await.node, 0, b"data").await.unwrap();
            std::fs::remove_file(path.join(format!("f{n}"))).unwrap();
        }
        let held = file(&vfs, ROOT, "held").await.node;
        let hold = vfs.hold(held).await.unwrap();
        std::fs::remove_file(path.join("held")).unwrap();
        vfs.sweep(std::time::Instant::now());
        assert_eq!(nameless(&path), 1, "what is open alone");
        assert_eq!(vfs.getattr(held).await.unwrap().nlink, 0);
        drop(hold);
        assert_eq!(nameless(&path), 0);
        assert_eq!(contents(&vfs, kept).await, b"data");
    })
    .unwrap();
}

/// The request of a connection that is lost: its name is gone, and others must not keep what they have cached.
#[test]
fn what_was_begun_is_told_although_nobody_waits_for_it_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let vfs = Vfs::from(Dir::open(folder.path()).unwrap());
    rt::block_on(async {
        for name in ["removed", "replaced"] {
            put(&vfs, file(&vfs, ROOT, name).await.node, 0, &vec![1; 2 << 20]).await.unwrap();
        }
        file(&vfs, ROOT, "new").await;
        let watch = vfs.watch(ROOT, false, What::FILE_NAME, room()).await.unwrap();
        assert!(vfs.remove(ROOT, b"removed").now_or_never().is_none());
        assert!(vfs.rename(at(ROOT, b"new"), at(ROOT, b"replaced"), true).now_or_never().is_none());
        let mut told = Vec::new();
        while told.len() < 4 {
            let changes = rt::timeout(std::time::Duration::from_secs(10), watch.next()).await;
            let changes = changes.unwrap_or_else(|_| panic!("only {told:?}")).changes;
            told.extend(
                changes
                    .iter()
                    .map(|change| (change.action, String::from_utf8_lossy(&change.path).into_owned())),
            );
        }
        told.sort_by_key(|(_, name)| name.clone());
        let names: Vec<&str> = told.iter().map(|(_, name)| &name[..]).collect();
        assert_eq!(names, ["new", "removed", "replaced", "replaced"]);
    })
    .unwrap();
}

/// Freeing a large file may take the disk long; the core continues meanwhile, and the answer comes when it is done.
#[test]
fn what_a_large_file_has_is_freed_where_that_may_be_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let vfs = Vfs::from(Dir::open(&path).unwrap());
    let much = vec![1; 2 << 20];
    rt::block_on(async {
        put(&vfs, file(&vfs, ROOT, "small").await.node, 0, b"data").await.unwrap();
        assert!(vfs.remove(ROOT, b"small").now_or_never().is_some(), "at once");
        let large = async |name: &str| {
            let node = file(&vfs, ROOT, name).await.node;
            put(&vfs, node, 0, &much).await.unwrap();
            node
        };
        large("removed").await;
        let mut removing = Box::pin(vfs.remove(ROOT, b"removed"));
        assert!((&mut removing).now_or_never().is_none(), "it is waited for elsewhere");
        assert!(!path.join("removed").exists(), "the name is gone by now");
        removing.await.unwrap();
        assert_eq!(nameless(&path), 0);
        large("replaced").await;
        file(&vfs, ROOT, "new").await;
        let mut renaming = Box::pin(vfs.rename(at(ROOT, b"new"), at(ROOT, b"replaced"), true));
        assert!((&mut renaming).now_or_never().is_none());
        renaming.await.unwrap();
        let cut = large("cut").await;
        let empty = SetAttr { size: Some(1), ..SetAttr::default() };
        let mut cutting = Box::pin(vfs.setattr(cut, empty));
        assert!((&mut cutting).now_or_never().is_none());
        assert_eq!(cutting.await.unwrap().size, 1);
        // For a file that keeps its size, space reserved past the end is released as well.
        let reserved = file(&vfs, ROOT, "reserved").await.node;
        vfs.open(reserved, true).await.unwrap().allocate(0, 2 << 20, true).await.unwrap();
        if vfs.getattr(reserved).await.unwrap().allocated > 0 {
            let same = SetAttr { size: Some(0), ..SetAttr::default() };
            let mut cutting = Box::pin(vfs.setattr(reserved, same));
            assert!((&mut cutting).now_or_never().is_none());
            assert_eq!(cutting.await.unwrap().allocated, 0);
        }
        large("made anew").await;
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        let mut making = Box::pin(vfs.create(ROOT, b"made anew", Make::File, Exists::Reuse, empty));
        assert!((&mut making).now_or_never().is_none());
        let made = making.await.unwrap();
        assert_eq!((made.attr.size, made.is_new), (0, false));
        // A client that has it open closes it without waiting; then a thread closes it.
        let open = vfs.open(large("open").await, true).await.unwrap();
        vfs.remove(ROOT, b"open").await.unwrap();
        drop(open);
        while nameless(&path) > 0 {
            std::thread::yield_now();
        }
    })
    .unwrap();
}
