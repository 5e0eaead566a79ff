use weft_machine::sim;
use weft_store::SetAttr;

use super::super::served::Served;
use crate::connect::{FILE_MODE, Remote};
use crate::when::When;

async fn make(remote: &Remote, name: &str) {
    remote.create(name).await.unwrap().close().await.unwrap();
}

fn of_mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// The new content of a private file was readable by everybody until it was complete, and with --resume as long as it
/// existed.
#[test]
fn what_replaces_a_private_file_is_nobody_else_s_meanwhile() {
    for (version, tag) in [("3", None), ("3", Some(".tag")), ("4.1", None), ("4.1", Some(".tag"))] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            for name in ["private", "plain"] {
                make(&remote, name).await;
            }
            served.set("private", of_mode(0o640)).await;
            let plain = served.found("plain").await.mode;
            for (name, mode) in [("private", 0o640), ("plain", plain), ("new", plain)] {
                let draft = remote.draft(name, tag, FILE_MODE).await.unwrap();
                let meanwhile = served.found(&draft.partial().path).await.mode;
                assert_eq!(meanwhile, 0o600, "{name} {version} {tag:?}");
                draft.replace().await.unwrap();
                assert_eq!(served.found(name).await.mode, mode, "{name} {version} {tag:?}");
            }
            // If the target is removed meanwhile, the draft becomes a normal new file.
            let draft = remote.draft("private", tag, FILE_MODE).await.unwrap();
            remote.remove("private").await.unwrap();
            draft.replace().await.unwrap();
            assert_eq!(served.found("private").await.mode, plain, "{version} {tag:?}");
        });
    }
}

/// The copy of a private file was readable by everybody.
#[test]
fn a_new_file_has_the_permissions_of_its_source() {
    for version in ["3", "4.1"] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            for mode in [0o600, 0o640, 0o755, 0o777, 0o400] {
                let name = format!("{mode:o}");
                remote.draft(&name, None, mode).await.unwrap().replace().await.unwrap();
                assert_eq!(served.found(&name).await.mode, mode & !super::umask(), "{version}");
            }
        });
    }
}

/// Whoever created it, or could read it, may have it open.
#[test]
fn a_partial_file_that_others_may_read_is_not_written_to() {
    for version in ["3", "4.1"] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            let first = remote.draft("f", Some(".tag"), FILE_MODE).await.unwrap();
            first.partial().file.write(0, b"first".as_slice().into()).await.unwrap();
            first.partial().file.close().await.unwrap();
            let left = served.found(&first.partial().path).await.node;
            // Our own partial file is resumed.
            let again = remote.draft("f", Some(".tag"), FILE_MODE).await.unwrap();
            let found = served.found(&again.partial().path).await;
            assert_eq!((found.node, found.size), (left, 5), "{version}");
            again.partial().file.close().await.unwrap();
            // A file that others may read stays, because another user may be using it.
            let theirs = &again.partial().path;
            served.set(theirs, of_mode(0o644)).await;
            let last = remote.draft("f", Some(".tag"), FILE_MODE).await.unwrap();
            assert_ne!(&last.partial().path, theirs, "{version}");
            let found = served.found(&last.partial().path).await;
            assert_eq!((found.size, found.mode), (0, 0o600), "{version}");
            last.discard().await.unwrap();
            let names = remote.list("").await.unwrap().into_iter().map(|entry| entry.name);
            assert!(names.eq([theirs.clone()]), "{version}");
            assert_eq!(served.found(theirs).await.node, left, "{version}");
        });
    }
}

/// Two users who copy one file to one target use the same partial name. The other's file used to be moved to the
/// target.
#[test]
fn what_took_the_place_of_a_partial_file_is_neither_moved_nor_removed() {
    for (version, replaces) in [("3", true), ("3", false), ("4.1", true), ("4.1", false)] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            make(&remote, "f").await;
            let target = served.found("f").await.node;
            let ours = remote.draft("f", Some(".tag"), FILE_MODE).await.unwrap();
            let path = &ours.partial().path;
            remote.remove(path).await.unwrap();
            make(&remote, path).await;
            let theirs = served.found(path).await;
            match replaces {
                true => drop(ours.replace().await.unwrap_err()),
                false => ours.discard().await.unwrap(),
            }
            let found = served.found(path).await;
            assert_eq!((found.node, found.mode), (theirs.node, theirs.mode), "{version}");
            assert_eq!(served.found("f").await.node, target, "{version}");
        });
    }
}

/// A time before 1970 used to be dropped silently, and shown as 1970.
#[test]
fn times_before_1970_are_kept_where_the_version_has_them() {
    for version in ["3", "4.1"] {
        sim::logged(1, async move {
            let mut served = Served::new();
            let remote = served.nfs(version).await;
            make(&remote, "f").await;
            let file = remote.open("f", true).await.unwrap();
            let old = When { secs: -315_619_200, nanos: 5 };
            let kept = file.set_modified(old).await.unwrap();
            assert_eq!(kept, version == "4.1");
            file.close().await.unwrap();
            let there = served.found("f").await.mtime;
            assert_eq!((there.secs, there.nanos) == (old.secs, old.nanos), kept);
            let told = remote.stat("f").await.unwrap().unwrap().modified;
            assert_eq!(told == old, kept, "{told}");
            assert_eq!(remote.list("").await.unwrap()[0].modified, told);
        });
    }
}
