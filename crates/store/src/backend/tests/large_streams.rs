//! Named streams that do not fit into the attributes of their file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::*;

pub(super) const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251) as u8).collect()
}

pub(super) async fn make(vfs: &Vfs, base: NodeId, name: &str, bytes: &[u8]) -> NodeId {
    let stream = vfs.stream(base, name.as_bytes(), true).await.unwrap().attr.node;
    put(vfs, stream, 0, bytes).await.unwrap();
    stream
}

pub(super) async fn found(vfs: &Vfs, base: NodeId, name: &str) -> Vec<u8> {
    let stream = vfs.stream(base, name.as_bytes(), false).await.unwrap().attr;
    let bytes = contents(vfs, stream.node).await;
    assert_eq!(stream.size, bytes.len() as u64);
    bytes
}

pub(super) fn listed(streams: &[StreamEntry]) -> Vec<(&str, u64)> {
    streams.iter().map(|entry| (std::str::from_utf8(&entry.name).unwrap(), entry.size)).collect()
}

/// A served folder, and the paths of the files that hold large streams.
pub(super) fn served<F: Future<Output = ()>>(story: impl FnOnce(Vfs, PathBuf) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    rt::block_on(story(vfs, folder.path().to_owned())).unwrap();
}

pub(super) fn depot(folder: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| {
        fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let folders = entries(&folder.join(".weft-streams"));
    // Empty folders are removed.
    folders
        .iter()
        .flat_map(|folder| {
            let files = entries(folder);
            assert!(!files.is_empty());
            files
        })
        .collect()
}

#[test]
fn a_large_stream_is_written_listed_renamed_cut_and_removed() {
    each(async |vfs| {
        let before = vfs.statfs().await.unwrap();
        let (f, d) = (file(&vfs, ROOT, "f").await.node, dir(&vfs, ROOT, "d").await.node);
        let bytes = pattern(MIB);
        for base in [f, d] {
            let s = make(&vfs, base, "Big", &bytes).await;
            let attr = vfs.getattr(s).await.unwrap();
            assert!(attr.size == MIB as u64 && attr.allocated >= attr.size);
            assert_eq!(listed(&vfs.streams(base).await.unwrap()), [("Big", MIB as u64)]);
            assert_eq!(found(&vfs, base, "bIG").await, bytes);
            vfs.rename_stream(s, b"other", false).await.unwrap();
            assert_eq!(found(&vfs, base, "other").await, bytes);
            refused!(vfs.stream(base, b"Big", false).await, Error::NotFound);
            // A hole, and back to a few bytes: it stays in its file.
            put(&vfs, s, 3 * MIB as u64, b"end").await.unwrap();
            assert_eq!(vfs.getattr(s).await.unwrap().size, 3 * MIB as u64 + 3);
            let open = vfs.open(s, true).await.unwrap();
            open.punch_hole(0, 4096).await.unwrap();
            assert_eq!(read(&open, 4095, 2).await, [0, bytes[4096]]);
            let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(vfs.setattr(s, cut(5000)).await.unwrap().size, 5000);
            assert_eq!(open.len().await.unwrap(), 5000);
            open.append::<Error>(&Bytes::from_static(b"more"), |_| Ok(())).await.unwrap();
            open.sync().await.unwrap();
            assert_eq!(read(&open, 4999, 10).await, [&bytes[4999..5000], b"more"].concat());
            drop(open);
            assert_eq!(listed(&vfs.streams(base).await.unwrap()), [("other", 5004)]);
            vfs.remove_stream(base, b"OTHER").await.unwrap();
            assert!(vfs.streams(base).await.unwrap().is_empty());
        }
        let after = vfs.statfs().await.unwrap();
        // A disk is everybody's.
        if vfs.kind() == "ram" {
            assert!(before.free - after.free < 16_384, "{before:?} {after:?}");
        }
    });
}

#[test]
fn it_grows_under_those_who_have_it_open() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        let (one, two) = (vfs.open(s, true).await.unwrap(), vfs.open(s, true).await.unwrap());
        one.write(0, &[Bytes::from_static(b"small")]).await.unwrap();
        let old = two.read(0, 5).data().await.unwrap();
        // Some write little, some much, at the same time.
        let chunk = Bytes::from(pattern(30_000));
        let writes = (0..10u64).map(|n| {
            let (to, chunk) = (if n % 2 == 0 { &one } else { &two }, chunk.clone());
            async move { to.write(5 + n * 30_000, &[chunk]).await.unwrap() }
        });
        futures_util::future::join_all(writes).await;
        let expected = [&b"small"[..], &chunk.repeat(10)].concat();
        assert_eq!(old.into_chain(&Pool::new(1 << 20)).await.unwrap().concat(), b"small");
        for open in [&one, &two] {
            assert_eq!(read(open, 0, 1 << 20).await, expected);
        }
        // Without a name its bytes stay, and nobody else gets them.
        vfs.remove_stream(f, b"s").await.unwrap();
        make(&vfs, f, "s", &pattern(MIB)).await;
        one.write(0, &[Bytes::from_static(b"SMALL")]).await.unwrap();
        vfs.setattr(s, SetAttr { size: Some(7), ..SetAttr::default() }).await.unwrap();
        assert_eq!(read(&two, 0, 10).await, [b"SMALL", &chunk[..2]].concat());
        assert_eq!(found(&vfs, f, "s").await, pattern(MIB));
    });
}

#[test]
fn attributes_and_streams_make_room_for_each_other() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        // Three times what ext4 has room for.
        for n in 0..12 {
            make(&vfs, f, &format!("s{n}"), &pattern(1000 + n)).await;
        }
        vfs.set_xattr(f, b"an attribute", &[7; 2000], SetXattr::Either).await.unwrap();
        let s = vfs.stream(f, b"s3", false).await.unwrap().attr.node;
        vfs.rename_stream(s, b"a name that is longer than the one before", false).await.unwrap();
        assert_eq!(vfs.streams(f).await.unwrap().len(), 12);
        for n in (0..12).filter(|n| *n != 3) {
            assert_eq!(found(&vfs, f, &format!("s{n}")).await, pattern(1000 + n));
        }
        assert_eq!(found(&vfs, f, "a name that is longer than the one before").await, pattern(1003));
        assert_eq!(vfs.get_xattr(f, b"an attribute").await.unwrap(), [7; 2000]);
    });
}

#[test]
fn bytes_that_look_as_if_they_led_to_a_file_lead_nowhere() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "secret", &pattern(MIB)).await;
        let forged = [&b"\x89WEFT\r\n\x1a"[..], &[0; 8]].concat();
        for n in 0..=forged.len() {
            make(&vfs, f, &format!("forged{n}"), &forged[..n]).await;
            assert_eq!(found(&vfs, f, &format!("forged{n}")).await, forged[..n]);
        }
    });
}

#[test]
fn streams_go_with_the_last_name_of_their_file() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        let bytes = pattern(MIB);
        let s = make(&vfs, f, "s", &bytes).await;
        assert_eq!(depot(&folder).len(), 1);
        // Neither a move nor a rename makes a difference.
        dir(&vfs, ROOT, "d").await;
        let d = vfs.lookup(ROOT, b"d", false).await.unwrap().node;
        vfs.rename(at(ROOT, b"f"), at(d, b"g"), false).await.unwrap();
        vfs.link(f, ROOT, b"link").await.unwrap();
        vfs.remove(d, b"g").await.unwrap();
        assert_eq!(found(&vfs, f, "s").await, bytes);
        let open = vfs.open(s, false).await.unwrap();
        vfs.remove(ROOT, b"link").await.unwrap();
        assert!(depot(&folder).is_empty());
        assert_eq!(read(&open, 0, 10).await, bytes[..10]);
        assert!(open.is_unlinked(), "whoever caches it lets it go");

        // Replaced, and a folder.
        let old = file(&vfs, ROOT, "old").await.node;
        make(&vfs, old, "a", &bytes).await;
        make(&vfs, old, "b", &bytes).await;
        file(&vfs, ROOT, "new").await;
        make(&vfs, d, "of a folder", &bytes).await;
        assert_eq!(depot(&folder).len(), 3);
        vfs.rename(at(ROOT, b"new"), at(ROOT, b"old"), true).await.unwrap();
        assert_eq!(depot(&folder).len(), 1);
        vfs.rmdir(ROOT, b"d").await.unwrap();
        assert!(depot(&folder).is_empty());
    });
}

#[test]
fn streams_survive_a_restart_and_a_crash_while_they_grew() {
    let folder = tempfile::tempdir().unwrap();
    let open = || -> Vfs { Dir::open(folder.path()).unwrap().into() };
    rt::block_on(async {
        let vfs = open();
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "large", &pattern(MIB)).await;
        make(&vfs, f, "small", b"small").await;
    })
    .unwrap();
    // The file of `small` was begun, but nothing referred to it when the power failed.
    let large = depot(folder.path()).remove(0);
    rt::block_on(async {
        let vfs = open();
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        assert_eq!(listed(&vfs.streams(f).await.unwrap()), [("large", MIB as u64), ("small", 5)]);
        assert_eq!(found(&vfs, f, "large").await, pattern(MIB));
        make(&vfs, f, "small", &pattern(100_000)).await;
    })
    .unwrap();
    let small = depot(folder.path()).into_iter().find(|path| *path != large).unwrap();
    rt::block_on(async {
        let vfs = open();
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        vfs.remove_stream(f, b"small").await.unwrap();
        fs::write(&small, pattern(3 * MIB)).unwrap();
        make(&vfs, f, "small", &pattern(100_000)).await;
        assert_eq!(found(&vfs, f, "small").await, pattern(100_000));
        // Files without a reference are removed after two hourly checks; the thread may have made one already, too early.
        assert_eq!(depot(folder.path()).len(), 3);
        let now = Instant::now();
        [0, 3601, 7202].into_iter().for_each(|later| vfs.sweep(now + Duration::from_secs(later)));
        assert_eq!(depot(folder.path()).len(), 2);
        assert_eq!(fs::metadata(&small).map_err(|e| e.kind()).unwrap_err(), std::io::ErrorKind::NotFound);
        assert_eq!(found(&vfs, f, "small").await, pattern(100_000));
    })
    .unwrap();
}

#[test]
fn the_folder_is_no_clients() {
    served(async |vfs, folder| {
        let watch = vfs.watch(ROOT, true, What::ALL, room()).await.unwrap();
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "s", &pattern(MIB)).await;
        let mode =
            |path: &Path| std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
        let hidden = folder.join(".weft-streams");
        assert_eq!(mode(&hidden) & 0o777, 0o700);
        let file_of_it = depot(&folder).remove(0);
        assert_eq!((mode(file_of_it.parent().unwrap()) & 0o777, mode(&file_of_it) & 0o777), (0o700, 0o600));

        let names = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        assert_eq!(names(vfs.readdir(ROOT, 0, 10).await.unwrap().entries), [b"f"]);
        assert_eq!(names(vfs.readdir_with_xattrs(ROOT, 0, 10).await.unwrap().entries), [b"f"]);
        // One entry at a time, whichever comes first.
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let Listing { entries, is_last: end } = vfs.readdir(ROOT, cookie, 1).await.unwrap();
            assert!(end || !entries.is_empty());
            cookie = entries.last().map_or(cookie, |last| last.cookie);
            seen.extend(names(entries));
            if end {
                break;
            }
        }
        assert_eq!(seen, [b"f"]);
        let short = crate::backend::short_name(b".weft-streams").unwrap();
        for name in [".weft-streams", ".WEFT-Streams", &short] {
            refused!(vfs.lookup(ROOT, name.as_bytes(), true).await, Error::NotFound);
        }
        let name = b".weft-streams";
        refused!(vfs.lookup(ROOT, name, false).await, Error::NotFound);
        let made = vfs.create(ROOT, name, Make::Dir, Exists::Reuse, SetAttr::default()).await;
        refused!(made, Error::Access);
        refused!(vfs.rmdir(ROOT, name).await, Error::Access);
        refused!(vfs.rename(at(ROOT, name), at(ROOT, b"x"), false).await, Error::Access);
        refused!(vfs.rename(at(ROOT, b"f"), at(ROOT, name), true).await, Error::Access);
        refused!(vfs.link(f, ROOT, name).await, Error::Access);
        // Watches are notified about the stream only.
        fs::write(folder.join("end"), b"").unwrap();
        let mut told = Vec::new();
        while !told.iter().any(|change: &Change| *change.path == *b"end") {
            told.extend(watch.next().await.changes);
        }
        assert!(told.iter().all(|change| !change.path.starts_with(b".weft")), "{told:?}");
    });
}

/// The inner share's files may be protected by more than what the outer share, which does not know the folder,
/// checks.
#[test]
fn the_folder_of_a_share_inside_of_another_is_nobodys_there() {
    served(async |outer, folder| {
        let sub = dir(&outer, ROOT, "sub").await.node;
        let inner: Vfs = Dir::open(folder.join("sub")).unwrap().into();
        let f = file(&inner, ROOT, "f").await.node;
        make(&inner, f, "s", &pattern(MIB)).await;
        assert_eq!(depot(&folder.join("sub")).len(), 1);
        let name = b".weft-streams";
        refused!(outer.lookup(sub, name, false).await, Error::NotFound);
        refused!(outer.lookup(sub, name, true).await, Error::NotFound);
        refused!(outer.rename(at(sub, name), at(ROOT, b"mine"), false).await, Error::Access);
        let listed = outer.readdir(sub, 0, 10).await.unwrap().entries;
        assert_eq!(listed.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"f"]);
        assert_eq!(found(&inner, f, "s").await, pattern(MIB));
    });
}

#[test]
fn a_folder_of_that_name_that_others_can_read_holds_nothing() {
    served(async |vfs, folder| {
        fs::create_dir(folder.join(".weft-streams")).unwrap();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        refused!(put(&vfs, s, 0, &pattern(MIB)).await, Error::Access);
        put(&vfs, s, 0, b"small").await.unwrap();
        assert!(depot(&folder).is_empty());
    });
}

#[test]
fn what_other_programs_do_to_files_with_streams() {
    served(async |vfs, folder| {
        let mut now = Instant::now();
        let mut look = |hours: u32| {
            now += Duration::from_secs(3600) * hours;
            vfs.sweep(now);
        };
        dir(&vfs, ROOT, "d").await;
        for name in ["kept", "moved", "removed", "seen"] {
            let base = file(&vfs, ROOT, name).await.node;
            make(&vfs, base, "s", &pattern(100_000)).await;
        }
        fs::rename(folder.join("moved"), folder.join("d/elsewhere")).unwrap();
        // A copy has the attributes, but not the files they refer to.
        let mut cp = std::process::Command::new("cp");
        cp.arg("--preserve=all").arg(folder.join("kept")).arg(folder.join("copy"));
        assert!(cp.status().unwrap().success());
        fs::remove_file(folder.join("removed")).unwrap();
        fs::remove_file(folder.join("seen")).unwrap();
        // Streams of a file known to be deleted are removed at once; those of a possibly moved file after two checks.
        let restarted: Vfs = Dir::open(&folder).unwrap().into();
        restarted.sweep(Instant::now());
        assert_eq!(depot(&folder).len(), 4);
        restarted.sweep(Instant::now() + Duration::from_secs(1));
        assert_eq!(depot(&folder).len(), 4);
        restarted.sweep(Instant::now() + Duration::from_secs(3601));
        assert_eq!(depot(&folder).len(), 2);
        look(0);
        look(1);
        assert_eq!(depot(&folder).len(), 2);

        let d = vfs.lookup(ROOT, b"d", false).await.unwrap().node;
        let moved = vfs.lookup(d, b"elsewhere", false).await.unwrap().node;
        assert_eq!(found(&vfs, moved, "s").await, pattern(100_000));
        let copy = vfs.lookup(ROOT, b"copy", false).await.unwrap().node;
        assert!(vfs.streams(copy).await.unwrap().is_empty());
        refused!(vfs.stream(copy, b"s", false).await, Error::NotFound);
        make(&vfs, copy, "s", &pattern(70_000)).await;
        assert_eq!(found(&vfs, copy, "s").await, pattern(70_000));
        let kept = vfs.lookup(ROOT, b"kept", false).await.unwrap().node;
        assert_eq!(found(&vfs, kept, "s").await, pattern(100_000));
    });
}

#[test]
fn streams_of_a_file_that_the_host_deletes_while_it_is_known_go_at_once() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "s", &pattern(MIB)).await;
        fs::remove_file(folder.join("f")).unwrap();
        vfs.sweep(Instant::now());
        assert!(depot(&folder).is_empty());
    });
}

#[test]
fn a_read_only_share_reads_large_streams_and_removes_none() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "s", &pattern(MIB)).await;
        let vfs = Vfs::from(Dir::open(&folder).unwrap()).read_only();
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        assert_eq!(found(&vfs, f, "s").await, pattern(MIB));
        let s = vfs.stream(f, b"s", false).await.unwrap().attr.node;
        refused!(vfs.remove_stream(f, b"s").await, Error::ReadOnly);
        refused!(vfs.setattr(s, SetAttr { size: Some(0), ..SetAttr::default() }).await, Error::ReadOnly);
        fs::remove_file(folder.join("f")).unwrap();
        for hours in 0..3 {
            vfs.sweep(Instant::now() + Duration::from_secs(hours * 3601));
        }
        assert_eq!(depot(&folder).len(), 1);
    });
}

/// Its device number may change when the host restarts, and with it the identity of every file there.
#[test]
fn streams_of_files_on_another_device_are_not_taken_for_those_of_files_that_went() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        make(&vfs, f, "s", &pattern(MIB)).await;
        let here = depot(&folder).remove(0).parent().unwrap().to_owned();
        let name = here.file_name().unwrap().to_str().unwrap();
        let elsewhere = here.with_file_name([&name[..40], "01004000"].concat());
        fs::rename(&here, &elsewhere).unwrap();
        for hours in 0..4 {
            vfs.sweep(Instant::now() + Duration::from_secs(hours * 3601));
        }
        assert!(elsewhere.exists());
        // A folder of this device is removed.
        fs::rename(&elsewhere, here.with_file_name([&"0".repeat(40), &name[40..]].concat())).unwrap();
        for hours in 4..7 {
            vfs.sweep(Instant::now() + Duration::from_secs(hours * 3601));
        }
        assert!(depot(&folder).is_empty());
    });
}

/// The stream already has its own file, so moving it out frees no space.
#[test]
fn bytes_that_the_host_puts_into_the_attribute_of_an_open_stream_end_in_no_search_for_room() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", &pattern(MIB)).await;
        let open = vfs.open(s, true).await.unwrap();
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(folder.join("f"), "user.weft.stream.s", &[7; 1000], none).unwrap();
        // ext4 has no room for the first.
        for n in 0..8 {
            let set = vfs.set_xattr(f, format!("a{n}").as_bytes(), &[7; 60_000], SetXattr::Either).await;
            assert!(matches!(set, Ok(()) | Err(Error::NoSpace | Error::XattrTooBig)), "{set:?}");
        }
        assert_eq!(read(&open, 0, MIB).await, pattern(MIB));
    });
}
