//! Operations that succeed.

use super::*;

#[test]
fn a_file_is_made_written_read_and_found() {
    each(async |vfs| {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let Created { attr: made, is_new: new } =
            vfs.create(ROOT, b"a.bin", Make::File, Exists::Fail, set).await.unwrap();
        assert!(new);
        assert_eq!((made.kind, made.size, made.nlink, made.mode), (Kind::File, 0, 1, 0o640));
        let open = vfs.open(made.node, true).await.unwrap();
        open.write(3, &[Bytes::from_static(b"wo"), Bytes::from_static(b"rld")]).await.unwrap();
        open.sync().await.unwrap();
        vfs.sync_dir(ROOT).await.unwrap();
        assert_eq!(read(&open, 0, 100).await, b"\0\0\0world");
        assert_eq!(read(&open, 5, 2).await, b"rl");
        assert!(open.read(8, 1).data().await.unwrap().is_empty());
        assert!(open.read(u64::MAX, usize::MAX).data().await.unwrap().is_empty());
        let found = vfs.lookup(ROOT, b"a.bin", false).await.unwrap();
        assert_eq!((found.node, found.size), (made.node, 8));
        assert_eq!(vfs.getattr(made.node).await.unwrap(), found);
        assert_eq!(vfs.place(made.node).await.unwrap().borrow(), at(ROOT, b"a.bin"));
    });
}

#[test]
fn directories_nest_and_dots_lead_where_they_should() {
    each(async |vfs| {
        let a = dir(&vfs, ROOT, "a").await;
        let b = dir(&vfs, a.node, "b").await;
        assert_eq!((b.kind, b.size, b.nlink), (Kind::Dir, 0, 2));
        assert_eq!(vfs.getattr(a.node).await.unwrap().nlink, 3);
        assert_eq!(vfs.lookup(b.node, b"..", false).await.unwrap().node, a.node);
        assert_eq!(vfs.lookup(a.node, b"..", false).await.unwrap().node, ROOT);
        assert_eq!(vfs.lookup(ROOT, b"..", false).await.unwrap().node, ROOT);
        assert_eq!(vfs.lookup(ROOT, b".", false).await.unwrap().node, ROOT);
        assert_eq!(vfs.lookup(b.node, b".", false).await.unwrap().node, b.node);
        vfs.rmdir(a.node, b"b").await.unwrap();
        assert_eq!(vfs.getattr(a.node).await.unwrap().nlink, 2);
    });
}

#[test]
fn create_answers_an_existing_name_as_it_was_asked_to() {
    each(async |vfs| {
        let first = file(&vfs, ROOT, "f").await;
        put(&vfs, first.node, 0, b"12345678").await.unwrap();
        refused!(vfs.create(ROOT, b"f", Make::File, Exists::Fail, SetAttr::default()).await, Error::Exists);
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let Created { attr: again, is_new: new } =
            vfs.create(ROOT, b"f", Make::File, Exists::Reuse, mode).await.unwrap();
        assert!(!new);
        assert_eq!((again.node, again.size, again.mode), (first.node, 8, first.mode));
        let cut = SetAttr { size: Some(2), ..SetAttr::default() };
        let Created { attr: cut, is_new: new } =
            vfs.create(ROOT, b"f", Make::File, Exists::Reuse, cut).await.unwrap();
        assert!(!new);
        assert_eq!((cut.node, cut.size), (first.node, 2));
        let d = dir(&vfs, ROOT, "d").await;
        let Created { attr: same, is_new: new } =
            vfs.create(ROOT, b"d", Make::Dir, Exists::Reuse, SetAttr::default()).await.unwrap();
        assert_eq!((same.node, new), (d.node, false));
        refused!(vfs.create(ROOT, b"d", Make::File, Exists::Reuse, SetAttr::default()).await, Error::IsDir);
        refused!(vfs.create(ROOT, b"f", Make::Dir, Exists::Reuse, SetAttr::default()).await, Error::Exists);
        let link = Make::Symlink(b"x".to_vec());
        refused!(vfs.create(ROOT, b"f", link, Exists::Reuse, SetAttr::default()).await, Error::Exists);
    });
}

#[test]
fn an_exclusive_create_knows_its_own_retry() {
    each(async |vfs| {
        let ours = Exists::Verifier(*b"\xffabc\xffdef");
        let theirs = Exists::Verifier(*b"abcd1234");
        let Created { attr: first, is_new: new } =
            vfs.create(ROOT, b"x", Make::File, ours, SetAttr::default()).await.unwrap();
        assert!(new);
        let Created { attr: retry, is_new: new } =
            vfs.create(ROOT, b"x", Make::File, ours, SetAttr::default()).await.unwrap();
        assert_eq!((retry.node, new), (first.node, false));
        refused!(vfs.create(ROOT, b"x", Make::File, theirs, SetAttr::default()).await, Error::Exists);
        put(&vfs, first.node, 0, b"data").await.unwrap();
        refused!(vfs.create(ROOT, b"x", Make::File, ours, SetAttr::default()).await, Error::Exists);
    });
}

#[test]
fn attributes_are_set_and_kept() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        let (atime, mtime) = (Timestamp { secs: 1, nanos: 200 }, Timestamp { secs: 3_000_000_000, nanos: 4 });
        let set = SetAttr {
            size: Some(10_000),
            mode: Some(0o4711),
            atime: Some(SetTime::To(atime)),
            mtime: Some(SetTime::To(mtime)),
            ..SetAttr::default()
        };
        let attr = vfs.setattr(f.node, set).await.unwrap();
        assert_eq!((attr.size, attr.mode, attr.atime, attr.mtime), (10_000, 0o4711, atime, mtime));
        assert!(attr.ctime >= f.ctime);
        assert_eq!(attr.btime, f.btime);
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let attr = vfs.setattr(f.node, now).await.unwrap();
        assert_eq!(attr.atime, atime);
        assert!(attr.mtime >= f.mtime && attr.mtime < mtime);
        // A write moves the time of modification.
        let old = SetAttr { mtime: Some(SetTime::To(atime)), ..SetAttr::default() };
        vfs.setattr(f.node, old.clone()).await.unwrap();
        put(&vfs, f.node, 0, b"x").await.unwrap();
        assert!(vfs.getattr(f.node).await.unwrap().mtime >= f.mtime);
        // So does each write over existing data, and a truncation.
        for size in [None, None, None, None, Some(5000)] {
            let before = vfs.setattr(f.node, old.clone()).await.unwrap();
            assert_eq!(before.mtime, atime);
            match size {
                None => put(&vfs, f.node, 0, &[7; 8192]).await.unwrap(),
                size => drop(vfs.setattr(f.node, SetAttr { size, ..SetAttr::default() }).await.unwrap()),
            }
            let after = vfs.getattr(f.node).await.unwrap();
            assert!(after.mtime >= f.mtime && after.ctime >= before.ctime, "{before:?} {after:?}");
        }
        let d = dir(&vfs, ROOT, "d").await;
        let set = SetAttr { mode: Some(0o700), mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
        let attr = vfs.setattr(d.node, set).await.unwrap();
        assert_eq!((attr.mode, attr.mtime), (0o700, mtime));
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        refused!(vfs.setattr(d.node, size).await, Error::IsDir);
    });
}

#[test]
fn truncation_forgets_what_was_behind_it() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        put(&vfs, f.node, 0, b"secret").await.unwrap();
        for size in [2, 6] {
            vfs.setattr(f.node, SetAttr { size: Some(size), ..SetAttr::default() }).await.unwrap();
        }
        assert_eq!(contents(&vfs, f.node).await, b"se\0\0\0\0");
    });
}

#[test]
fn links_share_a_file_and_symlinks_keep_their_target() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        let d = dir(&vfs, ROOT, "d").await;
        vfs.link(f.node, d.node, b"g").await.unwrap();
        refused!(vfs.link(f.node, d.node, b"g").await, Error::Exists);
        refused!(vfs.link(d.node, ROOT, b"e").await, Error::IsDir);
        let g = vfs.lookup(d.node, b"g", false).await.unwrap();
        assert_eq!((g.node, g.nlink), (f.node, 2));
        put(&vfs, f.node, 0, b"both").await.unwrap();
        assert_eq!(contents(&vfs, g.node).await, b"both");
        vfs.remove(ROOT, b"f").await.unwrap();
        assert_eq!(contents(&vfs, vfs.lookup(d.node, b"g", false).await.unwrap().node).await, b"both");
        let make = Make::Symlink(b"../anywhere/\xff".to_vec());
        let Created { attr: link, is_new: new } =
            vfs.create(ROOT, b"l", make, Exists::Fail, SetAttr::default()).await.unwrap();
        assert_eq!((link.kind, link.size, new), (Kind::Symlink, 13, true));
        assert_eq!(vfs.readlink(link.node).await.unwrap(), b"../anywhere/\xff");
        refused!(vfs.readlink(g.node).await, Error::Invalid);
        refused!(vfs.open(link.node, false).await, Error::Invalid);
        let time =
            SetAttr { mtime: Some(SetTime::To(Timestamp { secs: 7, nanos: 0 })), ..SetAttr::default() };
        assert_eq!(vfs.setattr(link.node, time).await.unwrap().mtime.secs, 7);
        vfs.remove(ROOT, b"l").await.unwrap();
    });
}

#[test]
fn rename_moves_and_nodes_survive_it() {
    each(async |vfs| {
        let a = dir(&vfs, ROOT, "a").await;
        let b = dir(&vfs, ROOT, "b").await;
        let f = file(&vfs, a.node, "f").await;
        put(&vfs, f.node, 0, b"moving").await.unwrap();
        vfs.rename(at(a.node, b"f"), at(b.node, b"F"), false).await.unwrap();
        assert_eq!(vfs.place(f.node).await.unwrap().borrow(), at(b.node, b"F"));
        assert_eq!(contents(&vfs, f.node).await, b"moving");
        refused!(vfs.lookup(a.node, b"f", false).await, Error::NotFound);
        vfs.rename(at(ROOT, b"b"), at(a.node, b"sub"), false).await.unwrap();
        assert_eq!(vfs.lookup(b.node, b"..", false).await.unwrap().node, a.node);
        assert_eq!(contents(&vfs, f.node).await, b"moving");
        assert_eq!(vfs.lookup(b.node, b"F", false).await.unwrap().node, f.node);
        // A change of case alone.
        vfs.rename(at(b.node, b"F"), at(b.node, b"f"), false).await.unwrap();
        assert_eq!(sorted(&vfs, b.node).await, ["f"]);
    });
}

#[test]
fn rename_replaces_only_what_it_may() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        file(&vfs, ROOT, "g").await;
        let d = dir(&vfs, ROOT, "d").await;
        let e = dir(&vfs, ROOT, "e").await;
        file(&vfs, e.node, "inside").await;
        refused!(vfs.rename(at(ROOT, b"f"), at(ROOT, b"g"), false).await, Error::Exists);
        refused!(vfs.rename(at(ROOT, b"f"), at(ROOT, b"d"), true).await, Error::IsDir);
        refused!(vfs.rename(at(ROOT, b"d"), at(ROOT, b"f"), true).await, Error::NotDir);
        refused!(vfs.rename(at(ROOT, b"d"), at(ROOT, b"e"), true).await, Error::NotEmpty);
        refused!(vfs.rename(at(ROOT, b"d"), at(d.node, b"d"), true).await, Error::Invalid);
        let deep = dir(&vfs, d.node, "deep").await;
        refused!(vfs.rename(at(ROOT, b"d"), at(deep.node, b"d"), true).await, Error::Invalid);
        refused!(vfs.rename(at(ROOT, b"none"), at(ROOT, b"x"), true).await, Error::NotFound);
        vfs.rename(at(ROOT, b"f"), at(ROOT, b"g"), true).await.unwrap();
        assert_eq!(vfs.lookup(ROOT, b"g", false).await.unwrap().node, f.node);
        vfs.rmdir(d.node, b"deep").await.unwrap();
        vfs.rename(at(ROOT, b"e"), at(ROOT, b"d"), true).await.unwrap();
        assert_eq!(vfs.lookup(ROOT, b"d", false).await.unwrap().node, e.node);
        assert_eq!(sorted(&vfs, ROOT).await, ["d", "g"]);
        // Two names of one file: nothing changes.
        vfs.link(f.node, ROOT, b"h").await.unwrap();
        vfs.rename(at(ROOT, b"g"), at(ROOT, b"h"), true).await.unwrap();
        assert_eq!(vfs.getattr(f.node).await.unwrap().nlink, 2);
    });
}

#[test]
fn a_removed_file_lives_on_in_its_opens() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        let open = vfs.open(f.node, true).await.unwrap();
        let hold = vfs.hold(f.node).await.unwrap();
        open.write(0, &[Bytes::from_static(b"still here")]).await.unwrap();
        vfs.remove(ROOT, b"f").await.unwrap();
        assert_eq!(read(&open, 0, 100).await, b"still here");
        open.write(0, &[Bytes::from_static(b"S")]).await.unwrap();
        let attr = vfs.getattr(f.node).await.unwrap();
        assert_eq!((attr.nlink, attr.size), (0, 10));
        vfs.setattr(f.node, SetAttr { size: Some(5), ..SetAttr::default() }).await.unwrap();
        assert_eq!(read(&open, 0, 100).await, b"Still");
        refused!(vfs.place(f.node).await, Error::Stale);
        drop((open, hold));
        // The name can be used again, by another file.
        let again = file(&vfs, ROOT, "f").await;
        assert_ne!(again.node, f.node);
    });
}

#[test]
fn cookies_survive_the_deletion_of_what_was_listed() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        for i in 0..100 {
            file(&vfs, d, &format!("file {i}")).await;
        }
        // Like a client that empties a directory while it reads it.
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let Listing { entries, is_last: end } = vfs.readdir(d, cookie, 7).await.unwrap();
            for entry in &entries {
                vfs.remove(d, &entry.name).await.unwrap();
            }
            seen += entries.len();
            cookie = entries.last().map_or(cookie, |last| last.cookie);
            if end {
                break;
            }
        }
        assert_eq!(seen, 100);
        assert_eq!(list(&vfs, d, 10).await, Vec::<String>::new());
        vfs.rmdir(ROOT, b"d").await.unwrap();
    });
}

#[test]
fn a_directory_of_ten_thousand() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "big").await.node;
        for i in 0..10_000 {
            file(&vfs, d, &format!("f{i:05}")).await;
        }
        let mut names = list(&vfs, d, 1000).await;
        assert_eq!(names.len(), 10_000);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10_000);
        assert_eq!((&names[0][..], &names[9_999][..]), ("f00000", "f09999"));
        refused!(vfs.rmdir(ROOT, b"big").await, Error::NotEmpty);
        let found = vfs.lookup(d, b"F09999", true).await.unwrap();
        assert_eq!(vfs.place(found.node).await.unwrap().name, b"f09999");
    });
}

#[test]
fn case_is_folded_only_on_request() {
    each(async |vfs| {
        let name = "Grüße.TXT";
        let f = file(&vfs, ROOT, name).await;
        refused!(vfs.lookup(ROOT, "gRÜßE.txt".as_bytes(), false).await, Error::NotFound);
        assert_eq!(vfs.lookup(ROOT, "gRÜßE.txt".as_bytes(), true).await.unwrap().node, f.node);
        refused!(vfs.lookup(ROOT, b"grusse.txt", true).await, Error::NotFound);
        // The exact spelling wins.
        let exact = file(&vfs, ROOT, "grüße.txt").await;
        assert_eq!(vfs.lookup(ROOT, "grüße.txt".as_bytes(), true).await.unwrap().node, exact.node);
        vfs.remove(ROOT, name.as_bytes()).await.unwrap();
        assert_eq!(vfs.lookup(ROOT, name.as_bytes(), true).await.unwrap().node, exact.node);
        vfs.remove(ROOT, "grüße.txt".as_bytes()).await.unwrap();
        refused!(vfs.lookup(ROOT, name.as_bytes(), true).await, Error::NotFound);
    });
}

/// What `dir` caches of a directory follows our own changes and those of others.
#[test]
fn case_is_folded_while_a_directory_changes() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        let find = async |name: &str| vfs.lookup(d, name.as_bytes(), true).await.map(|attr| attr.node);
        refused!(find("a").await, Error::NotFound);
        let a = file(&vfs, d, "A").await.node;
        assert_eq!(find("a").await.unwrap(), a);
        vfs.rename(at(d, b"A"), at(d, b"B"), false).await.unwrap();
        refused!(find("a").await, Error::NotFound);
        assert_eq!(find("b").await.unwrap(), a);
        vfs.rename(at(d, b"B"), at(ROOT, b"C"), false).await.unwrap();
        refused!(find("b").await, Error::NotFound);
        vfs.link(a, d, b"Link").await.unwrap();
        assert_eq!(find("LINK").await.unwrap(), a);
        file(&vfs, d, "over").await;
        vfs.rename(at(ROOT, b"C"), at(d, b"over"), true).await.unwrap();
        // Two names of one file by now.
        vfs.remove(d, b"Link").await.unwrap();
        refused!(find("link").await, Error::NotFound);
        assert_eq!(find("OVER").await.unwrap(), a);
        for i in 0..100 {
            refused!(find(&format!("n{i}")).await, Error::NotFound);
            file(&vfs, d, &format!("N{i}")).await;
            assert!(find(&format!("n{i}")).await.is_ok());
        }
    });
}

#[test]
fn space_is_told() {
    each(async |vfs| {
        let space = vfs.statfs().await.unwrap();
        assert!(space.total > 0 && space.free <= space.total && space.available <= space.free);
        assert!(space.files_free <= space.files);
    });
}

#[test]
fn who_owns_what_is_made_takes_no_bits_of_its_mode() {
    each(async |vfs| {
        let known = file(&vfs, ROOT, "known").await;
        let (uid, gid) = (Some(known.uid), Some(known.gid));
        for mode in [0o4755, 0o2755, 0o6711, 0o640] {
            let set = SetAttr { mode: Some(mode), uid, gid, ..SetAttr::default() };
            let name = format!("{mode:o}");
            let made = vfs.create(ROOT, name.as_bytes(), Make::File, Exists::Fail, set).await.unwrap().attr;
            assert_eq!(made.mode, mode);
        }
    });
}

#[test]
fn folders_inherit_the_set_group_id_bit() {
    each(async |vfs| {
        let above = dir(&vfs, ROOT, "above").await;
        let wish = |mode| SetAttr { mode, ..SetAttr::default() };
        vfs.setattr(above.node, wish(Some(0o2775))).await.unwrap();
        let made = async |name: &[u8], make, mode| {
            vfs.create(above.node, name, make, Exists::Fail, wish(mode)).await.unwrap().attr.mode
        };
        assert_eq!(made(b"plain", Make::Dir, None).await & 0o2000, 0o2000);
        assert_eq!(made(b"asked", Make::Dir, Some(0o750)).await, 0o2750);
        assert_eq!(made(b"file", Make::File, Some(0o750)).await, 0o750);
    });
}

#[test]
fn who_writes_to_a_set_id_file_takes_its_bits() {
    // On its own thread, because it drops a capability.
    let story = || {
        crate::set_id::leave_to_the_kernel().unwrap();
        each(async |vfs| {
            let made = file(&vfs, ROOT, "f").await;
            let open = vfs.open(made.node, true).await.unwrap();
            let lent = |gid| SetAttr { mode: Some(0o6755), gid, ..SetAttr::default() };
            let now = async || vfs.getattr(made.node).await.unwrap().mode;
            assert_eq!(vfs.setattr(made.node, lent(None)).await.unwrap().mode, 0o6755);
            open.write(0, &[Bytes::from_static(b"x")]).await.unwrap();
            assert_eq!(now().await, 0o755);
            assert_eq!(vfs.setattr(made.node, lent(None)).await.unwrap().mode, 0o6755);
            vfs.setattr(made.node, SetAttr { size: Some(5), ..SetAttr::default() }).await.unwrap();
            assert_eq!(now().await, 0o755);
            // Without execute permission for the group, the bit requests mandatory locks, and stays.
            let kept = SetAttr { mode: Some(0o2644), ..SetAttr::default() };
            assert_eq!(vfs.setattr(made.node, kept).await.unwrap().mode, 0o2644);
            open.write(0, &[Bytes::from_static(b"y")]).await.unwrap();
            assert_eq!(now().await, 0o2644);
            // Permitted code may set the bit even for a group that this process is not in.
            if crate::is_root() {
                assert_eq!(vfs.setattr(made.node, lent(Some(12345))).await.unwrap().mode, 0o6755);
            }
        });
    };
    std::thread::spawn(story).join().unwrap();
}

/// How often other tasks run during a look-up that ignores case, and whether the name is found.
async fn looked_up(vfs: &Vfs, name: &str) -> (usize, bool) {
    let mut turns = 0;
    let mut looking = Box::pin(vfs.lookup(ROOT, name.as_bytes(), true));
    let found = std::future::poll_fn(|cx| {
        let polled = looking.as_mut().poll(cx);
        turns += usize::from(polled.is_pending());
        polled
    });
    let found = found.await.is_ok();
    (turns, found)
}

/// A very large folder is searched ignoring case: other tasks run between steps, and the cached names serve the next
/// look-up.
#[test]
fn a_name_in_another_case_is_searched_for_in_steps_and_once() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..5000 {
        std::fs::write(folder.path().join(format!("file {n}")), b"").unwrap();
    }
    let vfs = Vfs::from(Dir::open(folder.path()).unwrap());
    let turns = async |name: &str| looked_up(&vfs, name).await;
    rt::block_on(async {
        let (given, found) = turns("absent").await;
        assert!(given >= 4 && !found, "{given} turns given to others");
        assert_eq!(turns("FILE 4999").await, (0, true));
        assert_eq!(turns("ANOTHER").await, (0, false));
        // After an unreported change, three tasks ask at once: one of them reads.
        std::fs::write(folder.path().join("Late"), b"").unwrap();
        let (a, b, c) = futures_util::join!(turns("LATE"), turns("late1"), turns("late2"));
        assert_eq!((a.1, b.1, c.1), (true, false, false));
        assert!(a.0 >= 4, "{a:?}");
        assert!(b.0 + c.0 <= 2 * a.0 + 4, "who waits does not read again: {b:?} {c:?}");
    })
    .unwrap();
}

/// Names that differ only in case, and a name that could mean any of them: they are compared in steps, although the
/// folder is cached.
#[test]
fn names_of_one_key_are_compared_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let spelled = |i: usize| -> String {
        let letter = |(bit, c): (usize, char)| if i >> bit & 1 == 1 { c.to_ascii_uppercase() } else { c };
        "abcdefghijkl".chars().enumerate().map(letter).collect()
    };
    for i in 0..4095 {
        std::fs::write(folder.path().join(spelled(i)), b"").unwrap();
    }
    let vfs = Vfs::from(Dir::open(folder.path()).unwrap());
    let short = crate::backend::names::short(b"ABCDEFGHIJKL").unwrap();
    rt::block_on(async {
        assert!(vfs.lookup(ROOT, b"absent", true).await.is_err());
        let find = async |name: &str| looked_up(&vfs, name).await;
        let (turns, found) = find(&short.replacen('A', "B", 1)).await;
        assert!(!found && turns >= 3, "{turns} turns given to others");
        assert!(find(&short).await.1 && find("ABCDEFGHIJKL").await.1);
        assert_eq!(find("absent").await, (0, false));
    })
    .unwrap();
}

/// rename(2) of two names of one file keeps both: the cache forgets neither.
#[test]
fn a_rename_between_two_names_of_one_file_leaves_both() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("One"), b"").unwrap();
    std::fs::hard_link(folder.path().join("One"), folder.path().join("Two")).unwrap();
    std::fs::hard_link(folder.path().join("One"), folder.path().join("d/Three")).unwrap();
    let vfs = Vfs::from(Dir::open(folder.path()).unwrap());
    rt::block_on(async {
        let d = vfs.lookup(ROOT, b"d", false).await.unwrap().node;
        // Both directories are known from here on.
        assert!(
            vfs.lookup(ROOT, b"absent", true).await.is_err() && vfs.lookup(d, b"absent", true).await.is_err()
        );
        vfs.rename(at(ROOT, b"One"), at(ROOT, b"Two"), true).await.unwrap();
        vfs.rename(at(ROOT, b"One"), at(d, b"Three"), true).await.unwrap();
        for (dir, name) in [(ROOT, &b"ONE"[..]), (ROOT, b"TWO"), (d, b"THREE")] {
            assert!(vfs.lookup(dir, name, true).await.is_ok(), "{name:?}");
        }
    })
    .unwrap();
}
